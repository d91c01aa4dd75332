"""Time the same sweeps on two versions of the workbench, in turns, in one run.

    python benchmarks/revisions.py BEFORE AFTER [--rounds 3] [--only measured] [--out FILE]

BEFORE and AFTER are folders that hold `workbench/`: `git worktree add /tmp/before REVISION` makes
one. A predicted sweep of 208 configs runs everywhere; a measured one runs where torch sees a GPU.
Each run has a database and a folder of its own; the compiler's cache is shared and warm after a
first round that is not counted. Prints the median seconds of each and AFTER over BEFORE.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SWEEPS = {
    "predicted": ["full", "--kernel", "matmul", "--device", "h200"],
    "measured": ["full", "--kernel", "softmax", "--sizes", "M=8192,N=4096"],
}


def sweep_s(tree: Path, words: list[str]) -> tuple[float, int]:
    """Run one sweep in a process of its own. Returns its wall time in seconds, and how many
    configs it tried. Raises RuntimeError where it fails."""
    with tempfile.TemporaryDirectory() as folder:
        places = ["--out", folder, "--database", f"sqlite:///{folder}/h.db"]
        command = [sys.executable, "-m", "workbench.sweep", *words, *places]
        path = os.pathsep.join(filter(None, [str(tree), os.environ.get("PYTHONPATH", "")]))
        environment = {**os.environ, "PYTHONPATH": path, "XDG_DATA_HOME": folder}
        started = time.perf_counter()
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
        spent = time.perf_counter() - started
    if done.returncode:
        raise RuntimeError(f"{tree}: exit {done.returncode}: {done.stderr.strip()[-400:]}")
    tried = re.search(r"(\d+) configs to try", done.stdout)
    return spent, int(tried[1]) if tried else 0


def compare(before: Path, after: Path, kind: str, rounds: int) -> dict[str, object]:
    """Return the seconds of both versions, taken in turns, and the ratio of their medians."""
    times: dict[str, list[float]] = {"before": [], "after": []}
    configs = 0
    for turn in range(rounds + 1):
        pair = [("before", before), ("after", after)]
        for name, tree in pair if turn % 2 else reversed(pair):
            spent, configs = sweep_s(tree, SWEEPS[kind])
            if turn:  # the first round fills the compiler's cache
                times[name].append(spent)
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    ratio = medians["after"] / medians["before"]
    return {"sweep": kind, "configs": configs, "seconds": times, "median_s": medians,
            "ratio": ratio}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=list(SWEEPS), help="this sweep alone")
    parser.add_argument("--out", type=Path)
    wanted = parser.parse_args()
    import torch

    kinds = ["predicted", *(["measured"] if torch.cuda.is_available() else [])]
    rows = []
    for kind in [wanted.only] if wanted.only else kinds:
        row = compare(wanted.before.resolve(), wanted.after.resolve(), kind, wanted.rounds)
        rows.append(row)
        median = row["median_s"]
        print(f"{kind}: {row['configs']} configs, {median} s, ratio {row['ratio']:.3f}", flush=True)
    if wanted.out:
        wanted.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
