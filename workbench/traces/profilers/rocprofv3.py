"""AMD's rocprofv3: a trace of kernels, copies and calls; with `--metrics` groups of counters."""

import re
from pathlib import Path

from workbench.traces.profilers import Command, Profiler, ProfilerError, ToolRun, refuse_without
from workbench.traces.profilers.running.expected import check_whole
from workbench.traces.profilers.running.failures import check_exit
from workbench.traces.profilers.running.machine import Machine
from workbench.traces.profilers.running.workload import Workload, whole_command
from workbench.traces.readers import read
from workbench.traces.trace import Trace

NAME = "rocprofv3"
AVAILABLE = "rocprofv3-avail"
WITHOUT = refuse_without(
    "hip",
    "rocprofv3 records an AMD GPU, and no driver shows one here; `--tool trace` records the CPU.",
    NAME,
    "rocprofv3 is not on the path; install rocprofiler-sdk from ROCm.",
)
TRACES = ("--kernel-trace", "--hip-runtime-trace", "--memory-copy-trace", "--marker-trace")


def available(machine: Machine, workload: Workload) -> str | None:
    """Return why rocprofv3 cannot run here, or None."""
    if (reason := WITHOUT(machine, workload)) is None and not machine.kfd:
        return "rocprofv3 needs /dev/kfd, which this user may not open; join the group render."
    return reason


def argv(machine: Machine, workload: Workload, folder: Path) -> list[str]:
    """Return the command line of the trace. Raises ProgramError."""
    return _run(machine, workload, folder, TRACES, "trace")


def _run(
    machine: Machine, workload: Workload, folder: Path, words: tuple[str, ...], name: str
) -> list[str]:
    where = ("--output-format", "rocpd", "-d", str(folder), "-o", name)
    return [machine.program(NAME), *words, *where, "--", *whole_command(workload, machine)]


def further(machine: Machine, workload: Workload, folder: Path) -> list[Command]:
    """Return a check and a pass for each group of counters: a group that needs two passes fails
    the job. Filters hold for counters, not for the trace."""
    commands = []
    kernel = workload.marks.kernel if workload.marks else ""
    only = ("--kernel-include-regex", f"^{re.escape(kernel)}", "--kernel-iteration-range", "[2-2]")
    for number, group in enumerate(_groups(workload)):
        names = tuple(group.split(","))
        check = [machine.program(AVAILABLE), "pmc-check", *names]
        message = (
            f"{' '.join(names)} cannot be counted in one pass here; name fewer in a group, with "
            "spaces between the groups, or see `rocprofv3-avail list`."
        )
        if AVAILABLE in machine.programs and workload.counters:
            commands.append(Command(check, folder / f"check{number}.log", must=message))
        words = ("--pmc", *names, *(only if kernel else ()))
        commands.append(Command(_run(machine, workload, folder, words, f"counters{number}")))
    return commands


def _groups(workload: Workload) -> tuple[str, ...]:
    """Return the groups that the user names, else those of this GPU."""
    return workload.counters or workload.defaults


def reads(workload: Workload, folder: Path) -> list[Path]:
    """Return the databases that must come back, and those of groups that are asked by default."""
    names = ["trace", *(f"counters{number}" for number in range(len(_groups(workload))))]
    return [folder / f"{name}_results.db" for name in names]


def parse(run: ToolRun) -> Trace:
    """Return the timeline and the counters. Raises ProfilerError where something is missing, and
    ReadError where a file cannot be read."""
    check_exit(run, NAME)
    paths = reads(run.workload, run.folder)
    missing = [path.name for path in paths if path not in run.files]
    if missing and (run.workload.counters or paths[0].name in missing):
        raise ProfilerError(
            f"rocprofv3 left no {', '.join(missing)}; `--dry-run` prints its command lines."
        )
    first = read(paths[:1])
    check_whole(run, first)
    for group, path in zip(_groups(run.workload), paths[1:], strict=True):
        if path in run.files:
            first.join(read([path]))
        else:
            names = group.replace(",", ", ")
            first.notes.append(f"rocprofv3 counted none of {names}, which are asked by default")
    return first


PROFILER = Profiler("AMD rocprofv3", available, argv, reads, parse, further, instead="trace")
