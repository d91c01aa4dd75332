"""torch.profiler: operators of the CPU, and on a GPU kernels, copies and launches."""

from pathlib import Path

from workbench.traces.profilers import Profiler, ToolRun, list_files
from workbench.traces.profilers.running.expected import check_inside, check_marked_calls
from workbench.traces.profilers.running.machine import Machine
from workbench.traces.profilers.running.torch_recording import OPERATORS, TRACE
from workbench.traces.profilers.running.workload import Workload, recorder_argv
from workbench.traces.readers import read
from workbench.traces.trace import Trace

reads = list_files(TRACE, OPERATORS)


def available(machine: Machine, workload: Workload) -> str | None:
    """Return why torch.profiler cannot record this here, or None. The program of a user may have an
    interpreter of its own, whose torch is not known here."""
    if workload.marks and "torch" not in machine.versions:
        return "torch is not installed, and torch.profiler is a part of it: pip install torch."
    return None


def argv(machine: Machine, workload: Workload, folder: Path) -> list[str]:
    """Return the command line. Raises ProgramError."""
    return recorder_argv(workload, machine, "torch", folder, workload.options)


def parse(run: ToolRun) -> Trace:
    """Return the trace. Raises ProfilerError where it lacks what was to be recorded, and ReadError
    where it cannot be read."""
    check_inside(run, "torch", "torch.profiler")
    trace = read([run.folder / TRACE])
    check_marked_calls(run, trace)
    return trace


PROFILER = Profiler("torch.profiler", available, argv, reads, parse, wraps_program=False)
