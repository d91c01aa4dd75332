"""Kill a sweep with SIGKILL half way and run it again: what is measured twice, and what is lost?

Then the finished sweep once more, a few times: how long that takes, and that nothing is measured.

    python benchmarks/resume.py --out resume.json
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runs import (
    LISTS,
    ROOT,
    Ended,
    Swept,
    epoch_s,
    kill_group,
    read_events,
    run_command,
    save,
    say,
    show,
    sweep,
    sweep_command,
    sweep_course,
)

DTYPE = "bf16"
POLL_S = 0.05
IMPORTS = {
    "python": "pass",
    "command line": "import workbench.cli",
    "session": "import workbench.commands.sweep_command, workbench.history, workbench.sweep",
    "torch": "import torch",
}


def stored_configs(path: Path) -> int:
    """Configs whose outcome is in an events file that is still being written."""
    if not path.exists():
        return 0
    text = path.read_bytes()
    refused = text.count(b'"stage":"refused"')
    return text.count(b'{"type":"Record"') + text.count(b'{"type":"Failure"') - refused


def struck(command: Sequence[str], events: Path, half: int, limit_s: float, cache: str) -> Swept:
    """Run a sweep and kill its process, that alone, when `half` outcomes are stored."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, "PYTHONPATH": path, "TRITON_CACHE_DIR": cache}
    started, clock = time.time(), time.perf_counter()
    process = subprocess.Popen(
        list(command), cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    while process.poll() is None and time.perf_counter() - clock < limit_s:
        if stored_configs(events) >= half:
            break
        time.sleep(POLL_S)
    over = process.poll()
    os.kill(process.pid, signal.SIGKILL) if over is None else None
    process.wait()
    text = "it ended before it could be killed" if over is not None else "killed"
    result = sweep_course(
        Ended(over, started, time.perf_counter() - clock, text), read_events(events)
    )
    time.sleep(1.0)  # its children see that their parent is gone
    kill_group(process.pid)  # for a child that did not: its group still has that number
    return result


def timed_keys(result: Swept, since_s: float = 0.0) -> set[str]:
    """Keys that were measured in this run: not taken from earlier, not another's duplicate."""
    from workbench.data.record import Record

    return {
        e.key
        for e in result.events
        if isinstance(e, Record)
        and e.phase in ("first_pass", "predict")
        and e.same_as is None
        and epoch_s(e.at) >= since_s - 1e-3  # events hold milliseconds
    }


def tried_keys(result: Swept) -> set[str]:
    """Keys with any outcome but a refusal."""
    return {
        e.key
        for e in result.events
        if hasattr(e, "key") and getattr(e, "stage", None) != "refused" and not e.case.is_baseline
    }


def obtained_outcomes(result: Swept) -> int:
    """Outcomes of every kind and phase that are of this run and not of an earlier one."""
    began = result.process.started_s
    fresh = [e for e in result.events if hasattr(e, "key") and epoch_s(e.at) >= began - 1e-3]
    return sum(getattr(e, "stage", None) != "refused" for e in fresh)


def imports(cache: str) -> dict[str, float]:
    """Seconds that a process takes to import parts of the workbench."""
    return {
        name: run_command([sys.executable, "-c", code], 60, TRITON_CACHE_DIR=cache).wall_s
        for name, code in IMPORTS.items()
    }


def course(context: argparse.Namespace, folder: Path, keep: Any) -> None:
    """All parts, one after the other."""
    kernel = context.kernel
    more = ["--device", context.device] if context.device else []
    cache, events = str(folder / "triton"), folder / "first.jsonl"
    command = [*sweep_command(context.sweep, kernel, DTYPE, folder, events), *more]
    first = struck(command, events, context.half, context.limit_s, cache)
    say(
        f"first run: {first.process.text} after {first.end_s:.1f} s, "
        f"{first.configs} outcomes stored"
    )
    keep("first", {"killed": first.process.code is None, "configs": first.configs})
    second = sweep(context.sweep, kernel, DTYPE, folder, context.limit_s, *more)
    again = timed_keys(second, second.process.started_s)
    twice = timed_keys(first) & again
    gone = tried_keys(first) - tried_keys(second)
    keep("second", {
        "table_s": second.table_s, "configs": second.configs, "measured": len(again),
        "measured_before": len(timed_keys(first)), "twice": sorted(twice), "lost": sorted(gone),
        "said": second.process.text,
    })  # fmt: skip
    say(f"second run: exit {second.process.code}, {second.end_s:.1f} s, {len(again)} measured")
    thirds = []
    for _ in range(context.thirds):
        third = sweep(context.sweep, kernel, DTYPE, folder, context.limit_s, *more)
        thirds.append({
            "wall_s": third.end_s, "stored_s": third.stored_s, "obtained": obtained_outcomes(third),
            "split": dict(third.split),
        })  # fmt: skip
        say(f"finished sweep again: {thirds[-1]}")
        keep("third", thirds)
    keep("imports", imports(cache))


def rows_of(result: dict[str, Any]) -> list[list[Any]]:
    """What it comes to."""
    second, thirds = result.get("second", {}), result.get("third", [])
    rows: list[list[Any]] = [
        ["killed when this many were stored", result.get("first", {}).get("configs")],
        ["measured before", second.get("measured_before")],
        ["measured after", second.get("measured")],
        ["measured twice", len(second["twice"]) if second else None],
        ["lost", len(second["lost"]) if second else None],
    ]
    if thirds:
        best = min(thirds, key=lambda t: t["wall_s"])
        rows.append(["finished sweep again: obtained", max(t["obtained"] for t in thirds)])
        rows.append(["... wall s, best", best["wall_s"]])
        rows.append(["... until all was stored (then the page), s", best["stored_s"]])
        rows += [[f"... of that {name}", seconds] for name, seconds in best["split"].items()]
    rows += [[f"a process that imports {n}, s", s] for n, s in result.get("imports", {}).items()]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kernel", default=str(LISTS / "matmul.py"))
    parser.add_argument("--sweep", default="full")
    parser.add_argument("--half", type=int, default=128, help="outcomes stored when it is killed")
    parser.add_argument("--thirds", type=int, default=3, help="runs of the finished sweep")
    parser.add_argument("--limit-s", type=float, default=120.0, help="of one run")
    parser.add_argument("--device", help="predict for this device, to try the script without a GPU")
    parser.add_argument("--out", default="resume.json", help="JSON file to write")
    wanted = parser.parse_args()
    results: dict[str, Any] = {}

    def keep(key: str, value: Any) -> None:
        results[key] = value
        save(wanted.out, results)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            course(wanted, Path(folder), keep)
        except Exception as error:
            keep("error", repr(error))
            say(f"it ended: {error!r}")
    show(("figure", ""), rows_of(results))


if __name__ == "__main__":
    main()
