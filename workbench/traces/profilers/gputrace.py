"""A capture of Metal commands, for Xcode: `perf/KERNEL_YYYY-MM-DD.gputrace`, and a JSON file with
what belongs beside it. Not run yet: it needs a Mac."""

from pathlib import Path

from workbench.traces.profilers import Profiler, ProfilerError, ToolRun
from workbench.traces.profilers.running.machine import CAPTURE, Machine
from workbench.traces.profilers.running.workload import ProgramError, Workload
from workbench.traces.trace import Trace

NAME = "gputrace"
MODULE = "metal_shim.capture"
VALIDATION = "MTL_DEBUG_LAYER"  # of Apple: 1 makes Metal validate each call of its API


def available(machine: Machine, workload: Workload) -> str | None:
    """Return why no capture can be taken here, or None."""
    if machine.system != "darwin":
        return "A GPU capture needs macOS and a Metal device; see the command with --dry-run."
    return None


def argv(machine: Machine, workload: Workload, folder: Path) -> list[str]:
    """Return the command line. Raises ProgramError where a program is named."""
    if MODULE not in workload.words:
        raise ProgramError("A GPU capture is of a Metal kernel; name one, as in: profile softmax.")
    return [machine.python, *workload.words[1:]]


def reads(workload: Workload, folder: Path) -> list[Path]:
    """Return the files that must come back."""
    trace = Path(workload.words[-1])
    return [trace, trace.with_suffix(".json")]


def parse(run: ToolRun) -> Trace:
    """Return no trace: Xcode alone reads a capture. Raises ProfilerError always."""
    raise ProfilerError("Only Xcode reads a capture; open it there.")


PROFILER = Profiler(
    "Xcode GPU capture", available, argv, reads, parse, variables={CAPTURE: "1", VALIDATION: "1"}
)
