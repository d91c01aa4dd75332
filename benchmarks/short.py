"""Kernels of 2 to 10 us: our median against the profiler's device time, and `do_bench` beside it.

All clocks see the same call. Ours and the profiler's are cold, with input sets in rotation. The
profiler looks twice: at calls from the host, and at the same calls in a graph, where `step` is
from one start to the next and so holds the gap between two kernels.

    python benchmarks/short.py --out short.json
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from typing import Any

from peers import (
    DTYPE,
    MORE,
    SHORT,
    Case,
    capture_calls,
    default_of,
    do_bench,
    do_bench_cudagraph,
    do_bench_mean,
    launches,
    pick_cases,
    rotating,
    steps_s,
    usual,
)
from runs import save, say, show
from spread import note_figures, ours

WITHIN = 0.03  # of the profiler's time
WITHIN_S = 0.1e-6  # ... or this much
CALLS = 300
WARM_UP = 50  # calls before the profiler looks: it would see the clock rise


def profile_calls(case: Case, graph: bool) -> dict[str, Any]:
    """Median device time of the kernel over `CALLS` cold calls, and of the steps between starts."""
    import statistics

    import torch

    call, sets = rotating(case)
    for _ in range(WARM_UP):
        call()
    torch.cuda.synchronize()
    run: Callable[[], Any] = (
        capture_calls(call, CALLS).replay if graph else lambda: repeat_call(call)
    )
    if graph:
        run()  # the first replay uploads the graph
    result = usual(launches(run))
    if len(result) < CALLS // 2:
        raise RuntimeError(f"the profiler saw {len(result)} of {CALLS} kernels: no CUPTI here?")
    return {
        "median_s": statistics.median(one.duration_s for one in result),
        "step_s": statistics.median(steps_s(result)),
        "kernel": result[0].name, "n": len(result), "sets": sets,
    }  # fmt: skip


def repeat_call(call: Callable[[], Any]) -> None:
    """`CALLS` calls."""
    for _ in range(CALLS):
        call()


def hot_call(case: Case) -> Callable[[], Any]:
    """The call on one set of inputs, as `do_bench` is given it; it flushes for itself."""
    from workbench.measurement import inputs

    impl, config = default_of(case)
    given = inputs.make(impl.spec, case.sizes, DTYPE, "cuda")
    return lambda: impl(*given, config=config)


def clocks_of(case: Case) -> dict[str, Callable[[], dict[str, Any]]]:
    """Each clock by name. The profiler is last: it makes every later launch slower."""
    return {
        "ours": lambda: ours(case, None),
        "do_bench": lambda: {"median_s": do_bench(hot_call(case))},
        "do_bench_mean": lambda: {"median_s": do_bench_mean(hot_call(case))},
        "do_bench_cudagraph": lambda: {"median_s": do_bench_cudagraph(hot_call(case))},
        "profiler": lambda: profile_calls(case, graph=False),
        "profiler_graph": lambda: profile_calls(case, graph=True),
    }


def percent_off(row: Mapping[str, Any], clock: str) -> float | None:
    """How far a clock is from the profiler, in percent."""
    mine, theirs = (row.get(c, {}).get("median_s") for c in (clock, "profiler"))
    return 100 * (mine / theirs - 1) if mine and theirs else None


def holds(mine_s: float, theirs_s: float) -> bool:
    """Within 3 % or 0.1 us."""
    return abs(mine_s - theirs_s) <= max(WITHIN * theirs_s, WITHIN_S)


def rows_of(result: Mapping[str, Mapping[str, Any]]) -> list[list[Any]]:
    """One line a case."""
    rows = []
    for name, row in result.items():
        values = {clock: row.get(clock, {}).get("median_s") for clock in row}
        mine, theirs = values.get("ours"), values.get("profiler")
        inside = ("yes" if holds(mine, theirs) else "NO") if mine and theirs else None
        line: list[Any] = [name, *(_us(values.get(c)) for c in ("ours", "profiler"))]
        line += [percent_off(row, "ours"), inside, _us(values.get("profiler_graph"))]
        line.append(_us(row.get("profiler_graph", {}).get("step_s")))
        for clock in ("do_bench", "do_bench_mean", "do_bench_cudagraph"):
            line += [_us(values.get(clock)), percent_off(row, clock)]
        rows.append(line)
    return rows


def _us(seconds: float | None) -> float | None:
    return seconds * 1e6 if seconds else None


HEADS = (
    "case", "ours us", "profiler us", "%", "within", "in a graph us", "step us", "do_bench us", "%",
    "its mean us", "%", "cudagraph us", "%",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=[], help="cases whose names hold these words")
    parser.add_argument("--seconds", type=float, default=150.0, help="no clock is begun after")
    parser.add_argument("--out", default="short.json", help="JSON file to write")
    wanted = parser.parse_args()
    began = time.perf_counter()
    cases = pick_cases(wanted.only, (*SHORT, *MORE))
    results: dict[str, dict[str, Any]] = {case.name: {} for case in cases}
    # clock by clock, not case by case: once the profiler is attached, launches stay slower
    for clock in clocks_of(cases[0]) if cases else ():
        for case in cases:
            if time.perf_counter() - began > wanted.seconds:
                results[case.name][clock] = {"reason": "no time was left", "took_s": 0.0}
                continue
            note_figures(results[case.name], clock, clocks_of(case)[clock])
            row = results[case.name][clock]
            text = f"{row['median_s'] * 1e6:.3f} us" if "median_s" in row else row["reason"]
            say(f"{clock} {case.name}: {text} in {row['took_s']:.2f} s")
            save(wanted.out, results)
    show(HEADS, rows_of(results))
    print("%: off the profiler's median device time; within: by 3 % or 0.1 us")


if __name__ == "__main__":
    main()
