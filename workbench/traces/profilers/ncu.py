"""NVIDIA Nsight Compute: counters of one warm call of a kernel."""

from pathlib import Path

from workbench.traces.metric import refusals
from workbench.traces.profilers import (
    Command,
    Profiler,
    ProfilerError,
    ToolRun,
    list_files,
    refuse_without,
)
from workbench.traces.profilers.running.call_script import RANGE
from workbench.traces.profilers.running.expected import check_dispatches
from workbench.traces.profilers.running.failures import check_exit, inaccessible_counters
from workbench.traces.profilers.running.machine import Machine
from workbench.traces.profilers.running.workload import Workload, whole_command
from workbench.traces.readers import read
from workbench.traces.readers.inputs.source import ReadError
from workbench.traces.trace import Trace

NAME = "ncu"
RAW, SOURCE = "ncu_raw.csv", "ncu_source.csv"
# 34 passes, 9.4 s for one kernel with its process (H200, ncu 2025.3.1, 2026-11-22), where `basic`
# takes 8.8 s and `full` 10.3 s: so there is no shorter list.
SECTIONS = (
    "SpeedOfLight", "LaunchStats", "Occupancy", "WarpStateStats", "SchedulerStats",
    "MemoryWorkloadAnalysis", "MemoryWorkloadAnalysis_Tables", "InstructionStats",
    "ComputeWorkloadAnalysis", "SourceCounters", "WorkloadDistribution",
)  # fmt: skip
WITHOUT = refuse_without(
    "cuda",
    "ncu reads counters of an NVIDIA GPU, and no driver shows one here; `--tool trace` records the "
    "CPU.",
    NAME,
    "ncu is not on the path; install NVIDIA Nsight Compute, or use `--tool trace`.",
)
reads = list_files(f"{NAME}.ncu-rep")
SETS = ("basic", "detailed", "full", "roofline", "source")


def available(machine: Machine, workload: Workload) -> str | None:
    """Return why ncu cannot run here, or None."""
    if (reason := WITHOUT(machine, workload)) is None and machine.counters.is_allowed is False:
        return f"ncu cannot read counters: {machine.counters.reason}; {machine.counters.remedy}."
    return reason


def argv(machine: Machine, workload: Workload, folder: Path) -> list[str]:
    """Return the command line. Raises ProgramError."""
    marks = ["--profile-from-start", "off", "--nvtx", "--nvtx-include", f"{RANGE}/"]
    names = (*workload.counters, *(() if workload.selection else workload.defaults))
    counters = ["--metrics", ",".join(names)] if names else []
    return [
        machine.program(NAME),
        *("--clock-control", "none", "--cache-control", "all"),
        *(marks if workload.marks else ()),
        *_sections(workload.selection),
        *counters,
        *("-f", "-o", str(folder / NAME), "--log-file", str(folder / "ncu.log")),
        *whole_command(workload, machine),
    ]


def _sections(selection: str) -> list[str]:
    """Return the options of a set; a set has gone and one has lost a section in ncu 2025.3."""
    if not selection:
        named = [word for section in SECTIONS for word in ("--section", section)]
        return ["--import-source", "yes", *named]
    if selection == "source":
        return ["--section", "SourceCounters", "--import-source", "yes"]
    more = ["--section", "WarpStateStats"] if selection == "detailed" else []
    return ["--set", selection, *more, "--import-source", "yes"]


def explain_set(selection: str | None) -> str:
    """Return what is said of a set that is not taken as it is named; empty where it is."""
    if selection == "source":
        return "The set `source` is gone: --section SourceCounters --import-source yes is taken."
    if selection == "detailed":
        return "The set `detailed` has no WarpStateStats: --section WarpStateStats is added."
    return ""


def further(machine: Machine, workload: Workload, folder: Path) -> list[Command]:
    """Return the commands that print the report as CSV, where NVIDIA's package cannot read it: its
    counters, and its instructions with their samples. Never without --import: ncu would run the
    report as a program."""
    if "ncu-report" in machine.versions:
        return []
    report = folder / f"{NAME}.ncu-rep"
    words = [machine.program(NAME), "--import", str(report), "--csv", "--print-units", "base"]
    source = ["--page", "source", "--print-source", "sass"]
    return [
        Command([*words, "--page", "raw"], folder / RAW, report.exists),
        Command([*words, *source], folder / SOURCE, report.exists, is_parallel=True),
    ]


def parse(run: ToolRun) -> Trace:
    """Return the dispatches with their counters. Raises ProfilerError where one is missing, and
    ReadError where the report cannot be read."""
    check_exit(run, NAME)
    raw = run.folder / RAW
    trace = read([raw if raw.exists() else run.folder / f"{NAME}.ncu-rep"])
    _add_instructions(trace, run.folder / SOURCE)
    check_dispatches(run, trace)
    lost = inaccessible_counters(run.text)
    bases = {word.split(".")[0] for word in run.workload.counters}
    missing = sorted(
        {c.name for d in trace.dispatches for c in refusals(d) if c.name.split(".")[0] in bases}
        | {name for name in lost if name.split(".")[0] in bases}
    )
    if missing:
        raise ProfilerError(
            f"ncu gave no value for {', '.join(missing)}; leave them out of --metrics; the "
            f"rest is in {run.folder / NAME}.ncu-rep."
        )
    if absent := _absent_defaults(run.workload, trace):
        trace.notes.append(f"ncu gave no value for {', '.join(absent)}, which are asked by default")
    if lost:
        trace.notes.append(f"ncu could not access {len(lost)} of its counters: {', '.join(lost)}")
    return trace


def _absent_defaults(workload: Workload, trace: Trace) -> list[str]:
    """Return the counters that were asked by default and have no value, or were left out."""
    if workload.selection:
        return []
    every = [{name for name, c in d.counters.items() if c.state == "ok"} for d in trace.dispatches]
    return [name for name in workload.defaults if not all(name in known for known in every)]


def _add_instructions(trace: Trace, page: Path) -> None:
    """Add the instructions of a source page that was printed beside the counters. Without
    SourceCounters ncu prints none, and the counters stand alone."""
    if not page.exists():
        return
    try:
        trace.join(read([page]))
    except ReadError as error:
        trace.notes.append(f"The instructions could not be read: {error}")


PROFILER = Profiler(
    "NVIDIA Nsight Compute", available, argv, reads, parse, further, calls=1, instead="trace"
)
