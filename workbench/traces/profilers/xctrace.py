"""Apple's xctrace: intervals of the GPU by the template "Metal System Trace".

`instrument=` adds samples of the CPU or allocations to the same recording. They stay in
`metal.trace`, for Instruments: only the intervals of the GPU are exported and read.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from workbench.traces.profilers import Command, Profiler, ProfilerError, ToolRun, list_files
from workbench.traces.profilers.running.failures import check_exit
from workbench.traces.profilers.running.machine import Machine
from workbench.traces.profilers.running.workload import Workload, whole_command
from workbench.traces.readers import read
from workbench.traces.trace import Activities, Trace

NAME = "xctrace"
MODULE = "metal_shim.capture"
INSTRUMENTS = ("Time Profiler", "Allocations")
reads = list_files("metal.xml")
CALLS = 200  # of a Metal kernel: a recording needs a few intervals
TABLE = '/trace-toc/run[@number="1"]/data/table[@schema="metal-gpu-intervals"]'


def calls_of_kernel(python: str, options: Sequence[str]) -> list[str]:
    """Return the program that calls a Metal kernel; `options` are its name, and its Impl, sizes and
    dtype."""
    return [python, "-m", MODULE, *options, "--calls", str(CALLS)]


def record_line(machine: Machine, program: Sequence[str]) -> str:
    """Return the command line that records a program into the present folder."""
    here = replace(machine, programs={**machine.programs, machine.python: machine.python})
    return shlex.join(argv(here, Workload(tuple(program), "a Metal kernel"), Path()))


def available(machine: Machine, workload: Workload) -> str | None:
    """Return why xctrace cannot run here, or None."""
    if machine.system != "darwin":
        return "xctrace is a part of Xcode, for macOS; use `--tool trace` here."
    if "xcrun" not in machine.programs:
        return "xcrun is not on the path; install Xcode and select it with xcode-select."
    if workload.marks:
        return (
            "xctrace records a program; of a Metal kernel name a program that calls it: "
            f"-- {' '.join(calls_of_kernel('python', ['softmax']))}."
        )
    return None


def argv(machine: Machine, workload: Workload, folder: Path) -> list[str]:
    """Return the command line. Raises ProgramError."""
    more = [word for name in workload.instruments for word in ("--instrument", name)]
    return [
        *(machine.program("xcrun"), NAME, "record", "--template", "Metal System Trace", *more),
        *("--output", str(folder / "metal.trace"), "--time-limit", "8s", "--no-prompt"),
        *("--launch", "--", *whole_command(workload, machine)),
    ]


def further(machine: Machine, workload: Workload, folder: Path) -> list[Command]:
    """Return the command that prints the intervals as XML."""
    trace = folder / "metal.trace"
    words = [NAME, "export", "--input", str(trace), "--xpath", TABLE]
    return [Command([machine.program("xcrun"), *words], folder / "metal.xml", trace.exists)]


def parse(run: ToolRun) -> Trace:
    """Return the intervals of the program. Raises ProfilerError where there are none, as in some
    recordings, and ReadError where they cannot be read."""
    check_exit(run, NAME)
    trace = read(list(run.files))
    if not trace.activities:
        raise ProfilerError(
            "xctrace recorded no interval of the GPU, as some recordings do; record again."
        )
    return select_program(trace, Path(run.workload.words[0]).name)


def select_program(trace: Trace, program: str) -> Trace:
    """Return a trace with only the activities of one program: a recording has those of all
    processes, also the window server's. Raises ProfilerError where it has none of the program."""
    table, own = trace.activities, Activities()
    for activity in table:
        if _letters(activity.process) == _letters(program):
            own.add(*activity)
    if not own:
        seen = ", ".join(sorted(set(table.processes.entries)))[:200]
        raise ProfilerError(f"xctrace recorded no interval of {program}, but of: {seen}.")
    note = "a row is an encoder, which may hold several kernels: count and mean are of encoders"
    return replace(trace, activities=own, notes=[*trace.notes, note])


def _letters(process: str) -> str:
    """Return `python` of `Python (4711)` and of `python3.12`."""
    name = re.match(r"[A-Za-z_-]*", process)
    return name[0].lower() if name else ""


PROFILER = Profiler("Apple xctrace", available, argv, reads, parse, further)
