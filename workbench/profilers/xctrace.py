"""Apple's xctrace: intervals of the GPU by the template "Metal System Trace"."""

from __future__ import annotations

from pathlib import Path

from workbench.data.trace import Trace
from workbench.profilers import Command, Profiler, ProfilerError, ToolRun
from workbench.profilers.running.failures import check_ended
from workbench.profilers.running.machine import Machine
from workbench.profilers.running.workload import Workload, whole_command
from workbench.readers import read

NAME = "xctrace"
TABLE = '/trace-toc/run[@number="1"]/data/table[@schema="metal-gpu-intervals"]'


def available(machine: Machine, workload: Workload) -> str | None:
    """Return why xctrace cannot run here, or None."""
    if machine.system != "darwin":
        return "xctrace is a part of Xcode, for macOS; use `--tool trace` here."
    if "xcrun" not in machine.programs:
        return "xcrun is not on the path; install Xcode and select it with xcode-select."
    if workload.marked:
        return "Triton's kernels do not run on Apple's GPUs; name a program: -- python step.py."
    return None


def argv(machine: Machine, workload: Workload, folder: Path) -> list[str]:
    """Return the command line. Raises ProgramError."""
    return [
        *(machine.program("xcrun"), NAME, "record", "--template", "Metal System Trace"),
        *("--output", str(folder / "metal.trace"), "--time-limit", "8s", "--no-prompt"),
        *("--launch", "--", *whole_command(workload, machine)),
    ]


def further(machine: Machine, workload: Workload, folder: Path) -> list[Command]:
    """Return the command that prints the intervals as XML."""
    trace = folder / "metal.trace"
    words = [NAME, "export", "--input", str(trace), "--xpath", TABLE]
    return [Command([machine.program("xcrun"), *words], folder / "metal.xml", trace.exists)]


def reads(workload: Workload, folder: Path) -> list[Path]:
    """Return the file that must come back."""
    return [folder / "metal.xml"]


def parse(run: ToolRun) -> Trace:
    """Return the intervals. Raises ProfilerError where there are none, as in some recordings, and
    ReadError where they cannot be read."""
    check_ended(run, NAME)
    trace = read(list(run.files))
    if not trace.activities:
        raise ProfilerError(
            "xctrace recorded no interval of the GPU, as some recordings do; take the command "
            "buffers' own GPU times."
        )
    return trace


PROFILER = Profiler("Apple xctrace", available, argv, reads, parse, further)
