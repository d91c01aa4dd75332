"""CPU time of emulated and checked Metal configs, with an empty cache of programs and again.

    python benchmarks/emulated_configs.py            every Metal kernel, about two minutes
    python benchmarks/emulated_configs.py softmax

Needs clang 19 or later and no GPU. A config is the default of a Metal Impl at one check size in one
dtype, in one schedule; its time is user and system time of this process and of those that it
starts, without the reference. None of it says anything of a GPU.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile

import torch

from metal_shim.check import MetalCase, cases
from metal_shim.compiler import find_compiler, runner
from metal_shim.emulate import EmulationOptions, emulation
from workbench import catalog
from workbench.measurement.correctness import PreparedProblem, check


def cpu_s() -> float:
    """Return user and system time of this process and its children so far, seconds."""
    return sum(os.times()[:4])


def taken_s(case: MetalCase, problem: PreparedProblem) -> float:
    """Return the CPU time of one checked run, seconds."""
    before = cpu_s()
    with emulation(EmulationOptions()):
        wrong = check(case.impl, case.config, problem).wrong
    assert wrong is None, f"{case}: {wrong}"
    return cpu_s() - before


def times(names: list[str]) -> tuple[list[float], list[float]]:
    """Return the times of all cases of these kernels, first and second runs, seconds."""
    cold, warm = [], []
    for name in names:
        spec = catalog.spec_of(name)
        for case in cases(spec):
            problem = PreparedProblem.make(spec, case.sizes, case.dtype, "cpu")
            cold.append(taken_s(case, problem))
            warm.append(taken_s(case, problem))
    return cold, warm


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        runner(find_compiler())  # once for all configs
        cold, warm = times(sys.argv[1:] or catalog.names_in(catalog.METAL))
    for title, each in (("empty cache", cold), ("again", warm)):
        at = statistics.quantiles(each, n=10)[-1]
        print(
            f"{title}: {len(each)} configs, median {statistics.median(each) * 1e3:.0f} ms, "
            f"90th percentile {at * 1e3:.0f} ms, most {max(each) * 1e3:.0f} ms"
        )


if __name__ == "__main__":
    main()
