"""NVIDIA Nsight Systems: a timeline of kernels, copies, calls and ranges."""

from pathlib import Path

from workbench.traces.profilers import (
    Command,
    Profiler,
    ProfilerError,
    ToolRun,
    list_files,
    refuse_without,
)
from workbench.traces.profilers.running.expected import check_marked_calls
from workbench.traces.profilers.running.failures import check_exit
from workbench.traces.profilers.running.machine import Machine
from workbench.traces.profilers.running.workload import Workload, whole_command
from workbench.traces.readers import read
from workbench.traces.trace import Trace

NAME = "nsys"
available = refuse_without(
    "cuda",
    "nsys records an NVIDIA GPU here, and no driver shows one; `--tool trace` records the CPU.",
    NAME,
    "nsys is not on the path; install NVIDIA Nsight Systems, or use `--tool trace`.",
)
reads = list_files(f"{NAME}.nsys-rep", f"{NAME}.sqlite")


def argv(machine: Machine, workload: Workload, folder: Path) -> list[str]:
    """Return the command line. Raises ProgramError."""
    marks = ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]
    return [
        *(machine.program(NAME), "profile", "--trace=cuda,nvtx", "--sample=none"),
        *("--cpuctxsw=none", "--cuda-graph-trace=node"),
        *(marks if workload.marks else ()),
        *("-f", "true", "-o", str(folder / NAME)),
        *whole_command(workload, machine),
    ]


def further(machine: Machine, workload: Workload, folder: Path) -> list[Command]:
    """Return the command that writes the report as SQLite."""
    report, table = folder / f"{NAME}.nsys-rep", folder / f"{NAME}.sqlite"
    words = ["export", "--type", "sqlite", "-f", "true", "-o", str(table), str(report)]
    return [Command([machine.program(NAME), *words], due=report.exists)]


def parse(run: ToolRun) -> Trace:
    """Return the timeline. Raises ProfilerError where it lacks what was to be recorded, and
    ReadError where it cannot be read."""
    half = run.folder / f"{NAME}.qdstrm"
    if half.exists() and not (run.folder / f"{NAME}.nsys-rep").exists():
        raise ProfilerError(
            f"This nsys wrote {half.name} and can make no report of it, as the one in ncu's "
            "folder; install NVIDIA Nsight Systems itself, or use `--tool trace`."
        )
    check_exit(run, NAME)
    table = run.folder / f"{NAME}.sqlite"
    if not table.exists():
        raise ProfilerError(
            f"nsys could not export {NAME}.nsys-rep; run `nsys export --type sqlite` on it by hand."
        )
    trace = read([table])
    check_marked_calls(run, trace)
    return trace


PROFILER = Profiler(
    "NVIDIA Nsight Systems", available, argv, reads, parse, further, instead="trace"
)
