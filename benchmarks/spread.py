"""How far apart are the medians that fresh processes report? Ours, and Triton's own beside them.

Each process begins the problem, runs one final of the default config alone, and lets `do_bench`
and `do_bench_cudagraph` time the same call. The spread is the largest median over the least.

    python benchmarks/spread.py --processes 20 --out spread.json
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from peers import (
    DTYPE,
    LONG,
    SHORT,
    Case,
    default_of,
    do_bench,
    do_bench_cudagraph,
    do_bench_mean,
    pick_cases,
)
from runs import save, say, show, task, write_reply

CLOCKS = ("ours", "do_bench", "do_bench_mean", "do_bench_cudagraph")


# In a process of its own


def once(words: Sequence[str], final_s: float | None, peers: bool, answer: str) -> None:
    """Time every case by every clock; what is known is written after each."""
    began = time.perf_counter()
    results: dict[str, Any] = {"cases": {}}
    import torch

    torch.zeros(1, device="cuda")
    results["start_s"] = time.perf_counter() - began
    from workbench.measurement.preflight import gpu_lock, lock_name

    with gpu_lock(lock_name(torch.cuda.current_device()), lambda sentence: None):
        for case in pick_cases(words, (*LONG, *SHORT)):
            row: dict[str, Any] = {}
            results["cases"][case.name] = row
            note_figures(row, "ours", lambda case=case: ours(case, final_s))
            if peers:
                others(row, case)
            write_reply(answer, results)


def ours(case: Case, final_s: float | None) -> dict[str, Any]:
    """One final of one config, as a sweep runs it."""
    from workbench.measurement import worker
    from workbench.measurement.candidate import Candidate, Refusal
    from workbench.measurement.protocol import Protocol
    from workbench.spec import values

    protocol = Protocol() if final_s is None else replace(Protocol(), final_s=final_s)
    started = time.perf_counter()
    worker.begin(worker.MeasureJob(case.kernel, dict(case.sizes), DTYPE, protocol))
    began_s = time.perf_counter() - started
    impl, config = default_of(case)
    results, _ = worker.final([Candidate.create(impl.name, values(config))], [0.0])
    if isinstance(results[0], Refusal):
        raise RuntimeError(results[0].reason)
    timing = results[0].timing
    return {
        "median_s": timing.median_s, "low_s": timing.low_s, "high_s": timing.high_s,
        "method": timing.method, "stable": timing.stable, "sm_mhz": timing.sm_mhz,
        "windows": timing.rounds, "left_out": timing.left_out, "throttle": list(timing.throttle),
        "begin_s": began_s, "final_s": time.perf_counter() - started - began_s,
    }  # fmt: skip


def others(row: dict[str, Any], case: Case) -> None:
    """The other clocks on the same inputs: one set and their own flush, as people call them."""
    from workbench.measurement import inputs

    try:
        impl, config = default_of(case)
        given = inputs.make(impl.spec, case.sizes, DTYPE, "cuda")
    except Exception as error:
        row["others"] = {"reason": f"{type(error).__name__}: {error}"}
        return

    def call() -> Any:
        return impl(*given, config=config)

    def alone(clock: Callable[[Any], float]) -> dict[str, Any]:
        return {"median_s": clock(call)}

    note_figures(row, "do_bench", lambda: alone(do_bench))
    note_figures(row, "do_bench_mean", lambda: alone(do_bench_mean))
    note_figures(row, "do_bench_cudagraph", lambda: alone(do_bench_cudagraph))


def note_figures(row: dict[str, Any], clock: str, measure: Callable[[], dict[str, Any]]) -> None:
    """A clock's figures, or why it gave none."""
    started = time.perf_counter()
    try:
        row[clock] = measure()
    except Exception as error:
        row[clock] = {"reason": f"{type(error).__name__}: {error}"[:300]}
    row[clock]["took_s"] = time.perf_counter() - started


# Here


def spread_of(medians: Sequence[float]) -> float | None:
    """Largest over least, less one, in percent."""
    return 100 * (max(medians) / min(medians) - 1) if len(medians) > 1 else None


def medians_of(runs: Sequence[Mapping[str, Any]], case: str, clock: str) -> list[float]:
    """What this clock said of this case, process by process."""
    results = [run["cases"].get(case, {}).get(clock, {}).get("median_s") for run in runs]
    return [m for m in results if m]


def rows_of(runs: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """One line a case: the median of all, and the spread by each clock."""
    rows = []
    for case in dict.fromkeys(name for run in runs for name in run["cases"]):
        mine = sorted(medians_of(runs, case, "ours"))
        middle = mine[len(mine) // 2] * 1e6 if mine else None
        spreads = [spread_of(medians_of(runs, case, clock)) for clock in CLOCKS]
        unstable = sum(
            not r["cases"].get(case, {}).get("ours", {}).get("stable", True) for r in runs
        )
        rows.append([case, len(mine), middle, *spreads, unstable])
    return rows


def text(number: int, result: Mapping[str, Any] | None, ended: Any) -> None:
    """A line on one process."""
    if result is None:
        say(f"process {number}: {ended.reason}")
        return
    parts = [f"start {result['start_s']:.1f} s"]
    for name, row in result["cases"].items():
        mine = row.get("ours", {})
        words = (
            f"{mine['median_s'] * 1e6:.3f} us" if "median_s" in mine else mine.get("reason", "-")
        )
        spent = sum(clock.get("took_s", 0.0) for clock in row.values())
        parts.append(f"{name} {words} in {spent:.1f} s")
    say(f"process {number}, {ended.wall_s:.1f} s: {'; '.join(parts)}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--processes", type=int, default=20)
    parser.add_argument("--only", nargs="*", default=[], help="cases whose names hold these words")
    parser.add_argument("--final-s", type=float, help="longest final; the protocol's own else")
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="ours alone")
    parser.add_argument(
        "--ahead", type=int, default=1, dest="at_once", help="processes at once; one measures"
    )
    parser.add_argument("--limit-s", type=float, default=40.0, help="of one process")
    parser.add_argument("--seconds", type=float, default=400.0, help="no process is begun after")
    parser.add_argument("--out", default="spread.json", help="JSON file to write")
    parser.add_argument("--task", nargs=2, help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.task:
        once(**json.loads(wanted.task[1]))
        return
    runs: list[dict[str, Any]] = []
    lost: list[str] = []  # why a process gave nothing
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:

        def one(number: int) -> tuple[Any, Any] | None:
            if time.perf_counter() - began > wanted.seconds:
                return None
            return task(
                "spread.py", "once", wanted.limit_s if number else 4 * wanted.limit_s, Path(folder),
                words=wanted.only, final_s=wanted.final_s, peers=wanted.peers,
            )  # fmt: skip

        one(0)  # fills the compile cache
        # the next ones import while one measures; the GPU's lock lets them measure in turn
        with ThreadPoolExecutor(wanted.at_once) as pool:
            for number, result in enumerate(pool.map(one, range(1, wanted.processes + 1)), 1):
                if result is None:
                    say(f"{wanted.seconds:.0f} s are over")
                    break
                results, ended = result
                text(number, results, ended)
                if results:
                    runs.append({**results, "wall_s": ended.wall_s})
                else:
                    lost.append(ended.reason)
                save(wanted.out, {"final_s": wanted.final_s, "runs": runs, "lost": lost})
    heads = ["case", "n", "median us", *(f"{clock} %" for clock in CLOCKS), "unstable"]
    show(heads, rows_of(runs))
    cut = "" if wanted.final_s is None else f"; a final was cut at {wanted.final_s} s"
    for reason in lost:
        print(f"a process gave nothing: {reason}")
    print(f"%: largest median over the least of n fresh processes, less one{cut}")


if __name__ == "__main__":
    main()
