"""What does recording add to the real launches of libraries? Host time a launch, without a GPU.

    python benchmarks/workload_launches.py --before main --out launches.json

The launches of the programs of examples/workloads are caught on the CPU and made again, through
Triton's own `Autotuner.run`, with an empty function in place of `JITFunction.run`, so that what
takes longer with recording is recording alone. Launches without recording, with it, and with that
of another revision (--before) take turns in one process. Before each `cold` launch 8 MB of other
memory are read, as a program's own work would do.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import runpy
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runs import ROOT

PROGRAMS = ("fla_layers", "liger_llama")  # the second needs transformers
ROUNDS, REPEATS, COLD = 15, 200, 6
MANY = 13  # arguments and more are many
EVICTED = bytearray(8 << 20)

Launch = tuple[Any, tuple[Any, ...], dict[str, Any]]


def catch_launches(name: str) -> list[Launch]:
    """Launches of a program, each with the object that the program launches."""
    import workbench.workload
    from workbench.workload.recorder import LaunchRecorder

    result: dict[Any, Launch] = {}
    real = LaunchRecorder.note_launch

    def note_launch(self: Any, jit: Any, args: Any, kwargs: Any, grid: Any, by: Any) -> None:
        given = dict(kwargs)
        if by.tuner is not None:
            for word in by.tuner.best_config.all_kwargs():
                given.pop(word, None)
        given["grid"] = (lambda shape: lambda meta: shape)(grid)
        if hasattr(by.tuner, "cache_results"):
            by.tuner.cache_results = False  # the cache on disk asks the GPU
        result.setdefault((id(jit), id(by)), (by.tuner or jit, tuple(args), given))
        real(self, jit, args, kwargs, grid, by)

    LaunchRecorder.note_launch = note_launch  # type: ignore[method-assign]
    sys.argv = [name, "--steps", "1"]
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            workbench.workload.record(Path(folder) / "x.workload", profile_steps=0),
        ):
            runpy.run_path(str(ROOT / "examples" / "workloads" / f"{name}.py"), run_name="__main__")
    finally:
        LaunchRecorder.note_launch = real  # type: ignore[method-assign]
    return list(result.values())


@contextmanager
def empty_launches() -> Iterator[None]:
    """Replace what launches by a function that only asks for the grid, and what times by none."""
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    real, bench = JITFunction.run, Autotuner._bench

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        if callable(grid):
            grid({})

    JITFunction.run = run
    Autotuner._bench = lambda *args, **kwargs: [1.0, 1.0, 1.0]
    try:
        yield
    finally:
        JITFunction.run, Autotuner._bench = real, bench


def module_of(revision: str, folder: Path) -> Any:
    """Return the recorder of another revision, below another name."""
    command = ["git", "-C", str(ROOT), "archive", revision, "workbench/workload"]
    packed = subprocess.run(command, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    (folder / "workbench" / "workload").rename(folder / "workload_before")
    for file in (folder / "workload_before").glob("*.py"):
        file.write_text(file.read_text().replace("workbench.workload", "workload_before"))
    sys.path.insert(0, str(folder))
    return importlib.import_module("workload_before.recorder")


@contextmanager
def recording(module: Any, folder: Path) -> Iterator[None]:
    """Record with this recorder; with None nothing is recorded."""
    if module is None:
        yield
        return
    recorder = module.LaunchRecorder(folder / "x.workload", module.RecordOptions(0, False))
    with recorder:
        recorder._hooks._caught = False  # launches go on to the empty function
        yield


def each_us(launch: Launch, cold: bool) -> float:
    """Return the time of one launch in us: the least of warm ones, the median of cold ones."""
    owner, args, kwargs = launch
    run, clock = owner.run, time.perf_counter_ns
    if not cold:
        began = clock()
        for _ in range(REPEATS):
            owner.run(*args, warmup=False, **kwargs)
        return (clock() - began) / REPEATS / 1e3
    times = []
    for _ in range(COLD):
        sum(EVICTED[::64])
        began = clock()
        run(*args, warmup=False, **kwargs)
        times.append(clock() - began)
    return statistics.median(times) / 1e3


def measure_launches(
    launches: list[Launch], kinds: dict[str, Any], cold: bool
) -> list[dict[str, float]]:
    """Least time of each launch in us, by kind; the order of kinds changes from round to round."""
    best: list[dict[str, list[float]]] = [{kind: [] for kind in kinds} for _ in launches]
    with tempfile.TemporaryDirectory() as folder:
        for number in range(ROUNDS):
            order = list(kinds)[:: 1 if number % 2 else -1]
            for kind in order:
                with recording(kinds[kind], Path(folder)):
                    for launch, times in zip(launches, best, strict=True):
                        each_us(launch, False)  # settle
                        times[kind].append(each_us(launch, cold))
    reduce: Callable[..., float] = statistics.median if cold else min
    return [{kind: reduce(of) for kind, of in times.items()} for times in best]


def summary(launches: list[Launch], times: list[dict[str, float]], before: bool) -> dict[str, Any]:
    """Mean us that recording adds to launches of few and of many arguments."""
    result = {}
    for name, wanted in (("few", False), ("many", True)):
        chosen = [
            t
            for launch, t in zip(launches, times, strict=True)
            if (len(launch[1]) + len(launch[2]) >= MANY) == wanted
        ]
        if not chosen:
            continue
        added = statistics.mean(t["now"] - t["plain"] for t in chosen)
        result[name] = {"launches": len(chosen), "added_us": added}
        if before:
            was = statistics.mean(t["before"] - t["plain"] for t in chosen)
            result[name] |= {"before_us": was, "ratio": added / was}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", help="revision of git to compare with")
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=PROGRAMS[:1])
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    given = parser.parse_args()
    from workbench.workload import recorder

    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        kinds: dict[str, Any] = {"plain": None, "now": recorder}
        if given.before:
            kinds["before"] = module_of(given.before, Path(folder))
        for name in given.only:
            launches = catch_launches(name)
            with empty_launches():
                for cold in (False, True):
                    times = measure_launches(launches, kinds, cold)
                    kind = "cold" if cold else "warm"
                    result[f"{name}, {kind}"] = summary(launches, times, bool(given.before))
            given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
