"""AMD's rocprof-compute: all counters of an Instinct GPU, by as many replays of the program."""

from pathlib import Path

from workbench.traces.profilers import Profiler, ToolRun, list_files, refuse_without
from workbench.traces.profilers.running.failures import check_exit
from workbench.traces.profilers.running.machine import Machine
from workbench.traces.profilers.running.workload import Workload, whole_command
from workbench.traces.readers import read
from workbench.traces.trace import Trace

NAME = "rocprof-compute"
FOLDER = "rocprof_compute"
available = refuse_without(
    "hip",
    "rocprof-compute profiles an AMD Instinct GPU, and no driver shows one here; use "
    "`--tool trace`.",
    NAME,
    "rocprof-compute is not on the path; install rocprofiler-compute from ROCm.",
)
reads = list_files(f"{FOLDER}/pmc_perf.csv")


def argv(machine: Machine, workload: Workload, folder: Path) -> list[str]:
    """Return the command line. Raises ProgramError."""
    kernel = workload.marks.kernel if workload.marks else ""
    only = ["-k", kernel] if kernel else []
    words = ["profile", "-n", "wb", "--path", str(folder / FOLDER), "--no-roof", *only]
    return [machine.program(NAME), *words, "--", *whole_command(workload, machine)]


def parse(run: ToolRun) -> Trace:
    """Return the dispatches with their counters. Raises ProfilerError where there are none, and
    ReadError where they cannot be read."""
    check_exit(run, NAME)
    return read(list(run.files))


PROFILER = Profiler("AMD rocprof-compute", available, argv, reads, parse, calls=1, instead="trace")
