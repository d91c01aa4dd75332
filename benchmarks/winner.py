"""Does the sweep find the best config, and the same one each time?

Runs the sweep several times in fresh processes, then measures every legal config against every
other for long, and says how far each run's winner is from the best.

    python benchmarks/winner.py matmul bf16 OUT.json --runs 5
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import as_completed
from contextlib import closing
from pathlib import Path

from exhaustive import compile_resources, legal

from workbench import catalog
from workbench.backend.measuring import Measuring
from workbench.backend.workers import Workers, cpu_count
from workbench.data.events import read
from workbench.data.record import Record
from workbench.measurement import worker
from workbench.measurement.candidate import Candidate, Timed
from workbench.measurement.protocol import Protocol

LONG = Protocol(rounds=6, most_rounds=6, window_s=0.01, final_s=400.0)


def sweep(kernel, dtype, folder):
    started = time.time()
    command = [sys.executable, "-m", "workbench.sweep", "tile_size", "--kernel", kernel, "--dtype",
               dtype, "--fresh", "--quiet", "--out", folder, "--events-file",
               f"{folder}/events.jsonl", "--database",
               f"sqlite:///{folder}/history.db"]  # fmt: skip
    words = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    seconds = time.time() - started
    finals = [
        {"impl": r.case.impl, "config": dict(r.case.config), "median_s": r.timing.median_s,
         "low_s": r.timing.low_s, "high_s": r.timing.high_s, "sm_mhz": r.timing.sm_mhz,
         "windows": r.timing.rounds, "baseline": r.case.is_baseline}
        for r in read(Path(folder) / "events.jsonl").events
        if isinstance(r, Record) and r.phase == "final"
    ]  # fmt: skip
    return {"seconds": seconds, "said": words.splitlines()[0], "finals": finals}


def exhaustive(kernel, dtype):
    spec = catalog.spec_of(kernel)
    sizes = dict(spec.bench[0])
    with Workers(max(1, cpu_count() - 1)) as pool, closing(Measuring()) as gpu:
        device, *_ = gpu.describe(None)
        futures = {
            pool.submit(compile_resources, kernel, i, c, sizes, dtype, device, timeout_s=60): (i, c)
            for i, c in legal(kernel, sizes, dtype, device)
        }
        seen = {}
        for done in as_completed(futures):
            if not isinstance(done.result(), str):
                seen.setdefault(done.result().binary, futures[done])
        gpu.begin(worker.MeasureJob(kernel, sizes, dtype, LONG))
        choices = [Candidate.create(i, c) for i, c in seen.values()]
        results = gpu.ask(worker.final, choices, [0.0] * len(choices), timeout_s=500)
    return [
        {"impl": c.case.impl, "config": c.case.config, "median_s": r.timing.median_s}
        for c, r in zip(choices, results, strict=True)
        if isinstance(r, Timed)
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kernel")
    parser.add_argument("dtype")
    parser.add_argument("out")
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    runs = []
    for n in range(args.runs):
        with tempfile.TemporaryDirectory() as folder:
            runs.append(sweep(args.kernel, args.dtype, folder))
        print(f"run {n}: {runs[-1]['seconds']:.1f} s  {runs[-1]['said']}", flush=True)
        for f in sorted(runs[-1]["finals"], key=lambda f: f["median_s"]):
            middle, low, high = (f[k] * 1e6 for k in ("median_s", "low_s", "high_s"))
            print(
                f"    {middle:8.2f} us [{low:.2f}, {high:.2f}]", f["impl"], f["config"], flush=True
            )
    started = time.time()
    table = sorted(exhaustive(args.kernel, args.dtype), key=lambda r: r["median_s"])
    print(f"exhaustive: {len(table)} distinct configs in {time.time() - started:.0f} s")
    for row in table[:6]:
        print(f"    {row['median_s'] * 1e6:8.2f} us", row["impl"], row["config"])
    best = table[0]["median_s"]
    medians_s = []
    for run in runs:
        won = min((f for f in run["finals"] if not f["baseline"]), key=lambda f: f["median_s"])
        at = [r for r in table if r["impl"] == won["impl"] and r["config"] == won["config"]]
        medians_s.append(won["median_s"])
        behind = 100 * (at[0]["median_s"] / best - 1) if at else float("nan")
        print(f"winner {won['median_s'] * 1e6:.2f} us, {behind:+.2f} % in the exhaustive table")
    print(
        f"winners of {len(runs)} runs: spread {100 * (max(medians_s) / min(medians_s) - 1):.2f} %"
    )
    Path(args.out).write_text(json.dumps({"runs": runs, "exhaustive": table}))


if __name__ == "__main__":
    main()
