"""AMD's rocprof, the first of that name: sums of kernels. Its durations lie up to 20 % off those of
rocprofv3, by AMD's documentation."""

from pathlib import Path

from workbench.traces.profilers import Profiler, ToolRun, list_files, refuse_without
from workbench.traces.profilers.running.failures import check_exit
from workbench.traces.profilers.running.machine import Machine
from workbench.traces.profilers.running.workload import Workload, whole_command
from workbench.traces.readers import read
from workbench.traces.trace import Trace

NAME = "rocprof"
available = refuse_without(
    "hip",
    "rocprof records an AMD GPU, and no driver shows one here; use `--tool trace`.",
    NAME,
    "rocprof is not on the path, as ROCm no longer has it; use `--tool rocprofv3`.",
)
reads = list_files(f"{NAME}.stats.csv")


def argv(machine: Machine, workload: Workload, folder: Path) -> list[str]:
    """Return the command line. Raises ProgramError."""
    words = ["--stats", "--hip-trace", "--hsa-trace", "-o", str(folder / f"{NAME}.csv")]
    return [machine.program(NAME), *words, *whole_command(workload, machine)]


def parse(run: ToolRun) -> Trace:
    """Return the sums. Raises ProfilerError where there are none, and ReadError where they cannot
    be read."""
    check_exit(run, NAME)
    return read(list(run.files))


PROFILER = Profiler("AMD rocprof (v1)", available, argv, reads, parse, instead="trace")
