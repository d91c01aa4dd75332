"""What does recording a workload cost? Host time a launch, and the file of a million launches.

    python benchmarks/workload_record.py --out workload_record.json

No GPU is needed: Triton's own part of a launch is replaced by an empty function, so that what is
timed beyond it is recording alone. Four kinds of launches: few and many tensors, with a tuple and a
callable as grid, by keyword as an autotuner launches.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from triton.runtime.jit import JITFunction

import workbench.workload

REPEATS, LAUNCHES = 9, 20_000
MILLION = 1_000_000
SIGNATURES = (10, 1_000, 4_096)
STEP_S, STEP_LAUNCHES = 10e-3, 200  # the step whose overhead is stated


@triton.jit
def few(x, y, n, BLOCK: tl.constexpr):
    pass


@triton.jit
def many(a, b, c, d, e, f, g, h, s0, s1, s2, s3, n, m, scale, BLOCK: tl.constexpr):
    pass


def cases() -> dict[str, Callable[[], Any]]:
    """Launches by name."""
    t = [torch.empty(64, 64) for _ in range(8)]
    long = (*t, 64, 1, 64, 1, 64, 64, 0.5)
    return {
        "2 tensors, grid a tuple": lambda: few[(8,)](t[0], t[1], 64, BLOCK=64),
        "2 tensors, grid callable": lambda: few[lambda m: (8,)](t[0], t[1], 64, BLOCK=64),
        "8 tensors, grid a tuple": lambda: many[(8,)](*long, BLOCK=64, num_warps=4),
        "8 tensors, grid callable": lambda: many[lambda m: (8,)](*long, BLOCK=64, num_warps=4),
    }


def each_us(launch: Callable[[], Any]) -> float:
    """Median time of one launch in us."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        for _ in range(LAUNCHES):
            launch()
        times.append((time.perf_counter() - start) / LAUNCHES)
    return 1e6 * statistics.median(times)


def overhead(folder: Path) -> dict[str, dict[str, float]]:
    """Time of a launch without and with recording, of an empty `JITFunction.run`."""
    real = JITFunction.run

    def empty(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        if callable(grid):
            grid({})

    JITFunction.run = empty
    try:
        plain = {name: each_us(launch) for name, launch in cases().items()}
        with workbench.workload.record(folder / "cost.workload", profile_steps=0):
            active = workbench.workload.recorder.LaunchRecorder.active
            active._hooks._caught = False  # launches go on to the empty function
            recorded = {name: each_us(launch) for name, launch in cases().items()}
    finally:
        JITFunction.run = real
    return {
        name: {
            "plain_us": plain[name],
            "recorded_us": recorded[name],
            "recording_us": recorded[name] - plain[name],
            "of_a_step_percent": 100
            * (recorded[name] - plain[name])
            * 1e-6
            * STEP_LAUNCHES
            / STEP_S,
        }
        for name in plain
    }


def sizes(folder: Path) -> dict[str, dict[str, float]]:
    """File of a million launches, by the number of distinct signatures."""
    result = {}
    for distinct in SIGNATURES:
        path = folder / f"{distinct}.workload"
        shapes = [torch.empty(1 + i, 64) for i in range(distinct)]
        start = time.perf_counter()
        with workbench.workload.record(path, profile_steps=0):
            for x in itertools.islice(itertools.cycle(shapes), MILLION):
                few[(len(x),)](x, x, len(x), BLOCK=64)
        result[str(distinct)] = {
            "bytes": path.stat().st_size,
            "seconds": time.perf_counter() - start,
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    path = parser.parse_args().out
    with tempfile.TemporaryDirectory() as folder:
        content = {
            "torch": torch.__version__,
            "triton": triton.__version__,
            "overhead": overhead(Path(folder)),
            "a_million_launches": sizes(Path(folder)),
        }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
