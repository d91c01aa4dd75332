"""Which configs are best at the sizes of the goals? A sweep of each case, as a user would run it.

The sweep `full` of every Impl, within a budget for each case; what comes out is the winner beside
the default, and the runners-up, from which defaults are chosen.

    python benchmarks/tune.py --out tuned.json --budget 12s
    python benchmarks/tune.py --out tuned.json --only softmax wkv --seconds 600
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernels import GOALS, Goal, pick_goals
from runs import run_command, save

SHOWN = 8  # of the final


def tune_goal(goal: Goal, budget: str, limit_s: float) -> dict[str, Any]:
    """One sweep, and what its final said."""
    with tempfile.TemporaryDirectory() as folder:
        sizes = ",".join(f"{k}={v}" for k, v in goal.sizes.items())
        command = [
            sys.executable, "-m", "workbench.sweep", "full", "--kernel", goal.kernel,
            "--sizes", sizes, "--dtype", goal.dtype, "--budget", budget, "--out", folder,
            "--database", f"sqlite:///{folder}/history.db", "--quiet",
        ]  # fmt: skip
        ended = run_command(command, limit_s)
        result = list(Path(folder).glob("*/events.jsonl"))
        row = text(result[0]) if result else {}
    return {**row, "wall_s": ended.wall_s, **({} if ended.code == 0 else {"reason": ended.reason})}


def text(path: Path) -> dict[str, Any]:
    """The final's times, the default's, and why others failed."""
    from workbench.data.events import read
    from workbench.data.record import Failure, Record

    events = read(path).events
    finals = [e for e in events if isinstance(e, Record) and e.phase == "final"]
    screens = [e for e in events if isinstance(e, Record) and e.phase in ("first_pass", "predict")]
    failed = [e for e in events if isinstance(e, Failure) and e.stage != "refused"]
    finals.sort(key=lambda r: r.time_s)
    return {
        "screened": len(screens),
        "best_screen": {impl: _best(screens, impl) for impl in {r.case.impl for r in screens}},
        "final": [
            {"us": r.time_s * 1e6, "impl": r.case.impl, "config": dict(r.case.config),
             "default": r.default, "library": r.case.is_baseline}
            for r in finals
        ],
        "failed": [f"{f.case.label}: {f.stage}: {f.reason}"[:240] for f in failed][:SHOWN],
    }  # fmt: skip


def _best(screens: Sequence[Any], impl: str) -> dict[str, Any]:
    """Of the screen: the fastest of one Impl, and its default."""
    mine = sorted((r for r in screens if r.case.impl == impl), key=lambda r: r.time_s)
    return {"us": mine[0].time_s * 1e6, "config": dict(mine[0].case.config)}


def line(goal: Goal, row: dict[str, Any]) -> str:
    """One line: the default, the winner, the library."""
    final = row.get("final", [])
    ours = [r for r in final if not r["library"]]
    default = next((r for r in ours if r["default"]), None)
    library = next((r for r in final if r["library"]), None)
    parts = [f"{goal.name:44s}"]
    for name, at in (("default", default), ("best", ours[0] if ours else None),
                     ("library", library)):  # fmt: skip
        parts.append(f"{name} {at['us']:9.2f}" if at else f"{name}         -")
    if ours:
        parts.append(f"{ours[0]['impl']} {ours[0]['config']}")
    return "  ".join(parts) + (f"  {row['reason']}" if "reason" in row else "")


def main() -> int:
    text = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    text.add_argument("--out", type=Path, required=True, help="JSON, written after each case")
    text.add_argument("--only", nargs="*", default=[], help="cases whose names hold one of these")
    text.add_argument("--budget", default="12s", help="of each sweep")
    text.add_argument("--seconds", type=float, default=1500, help="begin no case after this")
    wanted = text.parse_args()
    known = json.loads(wanted.out.read_text()) if wanted.out.exists() else {"cases": {}}
    end = time.time() + wanted.seconds
    for goal in pick_goals(wanted.only, GOALS):
        if goal.name in known["cases"] or time.time() > end:
            continue
        row = known["cases"][goal.name] = tune_goal(goal, wanted.budget, 120.0)
        save(str(wanted.out), known)
        print(line(goal, row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
