"""The `workload` command: record what a program launches, and show or merge what was recorded."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.catalog import unknown
from workbench.commands.console import aloud, console_for, note, prints_aside, say_result
from workbench.commands.options import OptionError, WorkloadOptions
from workbench.commands.result import write_result
from workbench.commands.run import check_file
from workbench.commands.workload_program import program_words, startup_variables
from workbench.data.environment import gpu_shown
from workbench.data.exits import COULD_NOT_RUN, PASSED, stopped_by
from workbench.data.units import duration, percent
from workbench.device.hardware import device_named
from workbench.traces.profilers.running.child import ChildEnd, run_child
from workbench.traces.profilers.running.expected import ending
from workbench.traces.profilers.running.workload import title_of
from workbench.workload.file import RecordedWorkload, merged, read, write
from workbench.workload.gpu_time import shares
from workbench.workload.options import RecordOptions
from workbench.workload.program import handed_on
from workbench.workload.startup import sitecustomize
from workbench.workload.strict import WorkloadError
from workbench.workload.table import WorkloadRow, head_lines, rows_of

if TYPE_CHECKING:
    from rich.console import Console

ACTIONS = ("record", "show", "merge", "tune", "run", "compare", "export")
# The actions of other modules: `commands/workload_run.py` and so on.
ELSEWHERE = ("run", "compare", "export")
DEFAULT_FILE = Path("run.workload")
HEADINGS = ("kernel", "launches", "signatures", "GPU time", "config now", "from")
OTHERS_SHOWN = 5


def run(options: WorkloadOptions) -> int:
    """Run the command. Returns its exit code: of `record`, that of the program. Raises OptionError,
    WorkloadError and others, each of which is one sentence."""
    if options.action not in ACTIONS:
        raise OptionError(unknown("action of workload", options.action, ACTIONS))
    if options.action in ELSEWHERE:
        module = import_module(f"workbench.commands.workload_{options.action}")
        code: int = module.run(options)
        return code
    check_options(options)
    if options.action == "tune":
        from workbench.commands.workload_tune import tune_workload

        return tune_workload(options)
    if options.action == "record":
        return record_program(options)
    files = [Path(name) for name in options.files]
    workload = merged([read(file) for file in files])
    if options.action == "merge":
        write(options.out or DEFAULT_FILE, workload)
    return show(options, workload, PASSED)


def check_options(options: WorkloadOptions) -> None:
    """Raise OptionError where the words and options do not fit the action."""
    recording = options.action == "record"
    if recording and options.files:
        raise OptionError(
            f"{options.files[0]} is one word too many; a program stands behind --: workbench "
            "workload record -- python train.py."
        )
    if recording and not any(options.program[:1]):
        raise OptionError(
            "No program is named; write: workbench workload record -- python train.py."
        )
    if not recording and options.program:
        raise OptionError(f"`{options.action}` takes files and no program; leave -- out.")
    if not recording and not options.files:
        raise OptionError(f"No file is named; write: workbench workload {options.action} FILE.")
    if options.action == "show" and options.out is not None:
        raise OptionError("`show` writes no file; leave --out out.")
    if recording and options.device is not None:
        device_named(options.device)  # raises for an unknown one
    if options.profile_steps < 0:
        raise OptionError("--profile-steps counts steps; write 0 for none, or more.")


# Recording


def record_program(options: WorkloadOptions) -> int:
    """Run a program whose processes record themselves, and merge their files. Returns the exit
    code. Raises WorkloadError where there is no such program or it launched no kernel."""
    file = options.out or DEFAULT_FILE
    check_file(file, "--out")
    words = program_words(options.program)
    file.absolute().parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{file.name}.parts-", dir=file.absolute().parent))
    end = run_child(
        words,
        own=False,
        aside=prints_aside(options),
        more=startup_variables(
            {sitecustomize.VARIABLE: handed_on(folder.absolute(), recording_of(options))}
        ),
    )
    code = stopped_by(end.stopped) if end.stopped else end.code
    workload = recorded_in(folder)
    if workload is None:
        shutil.rmtree(folder, ignore_errors=True)
        raise WorkloadError(nothing_recorded(options, end))
    write(file, workload)
    shutil.rmtree(folder, ignore_errors=True)
    code = show(options, workload, code)
    if end.code and not end.stopped:
        note(f"{title_of(options.program)} ended with {ending(end.code)}.")
    say_result(console_for(options), f"workload  {file.resolve()}")
    return code


def recording_of(options: WorkloadOptions) -> RecordOptions:
    """Return what is recorded."""
    return RecordOptions(options.profile_steps, options.values, options.device)


def recorded_in(folder: Path) -> RecordedWorkload | None:
    """Return what the processes of a program recorded; None where no process launched a kernel. A
    file that cannot be read costs its process."""
    workloads = []
    for path in sorted(folder.glob("*.workload")):
        try:
            workloads.append(read(path))
        except WorkloadError as error:
            note(str(error))
    launched = [each for each in workloads if each.launches]
    return merged(launched) if launched else None


def nothing_recorded(options: WorkloadOptions, end: ChildEnd) -> str:
    """Return why there is no workload, in one sentence."""
    title = title_of(options.program)
    failed = f", and it ended with {ending(end.code)}" if end.code else ""
    if end.code and options.device is None and not gpu_shown():
        return (
            f"No Python process of {title} launched a Triton kernel{failed}. There is no GPU here; "
            "if the program asks for one, as what it printed says, let a device answer: --device "
            "h200."
        )
    return (
        f"No Python process of {title} launched a Triton kernel{failed}; check that the part that "
        "launches runs, and that Python is not started with -S, -E or -I."
    )


# Output


def show(options: WorkloadOptions, workload: RecordedWorkload, code: int) -> int:
    """Print the table, and write the JSON document. Returns the exit code."""
    console = console_for(options)
    rows = rows_of(workload)
    with aloud(console):
        print_table(console, workload, rows)
    if not rows:
        code = code or COULD_NOT_RUN
    return write_result(
        options,
        "workload",
        code,
        launches=workload.launches,
        signatures=len(workload.signatures),
        processes=[asdict(process) for process in workload.processes],
        kernels=[asdict(row) for row in rows],
        times=[asdict(times) for times in workload.times],
        notes=workload.notes,
    )


def print_table(console: Console, workload: RecordedWorkload, rows: Sequence[WorkloadRow]) -> None:
    """Print the table of a workload."""
    from rich.table import Table
    from rich.text import Text

    for line in head_lines(workload):
        console.print(line, soft_wrap=True)
    for times in workload.times:
        console.print(shares(times), soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    for heading in HEADINGS:
        number = heading in ("launches", "signatures", "GPU time")
        table.add_column(heading, justify="right" if number else "left", overflow="fold")
    for row in rows:
        cells = (row.name, f"{row.launches:,}", f"{row.signatures:,}", time_text(workload, row))
        table.add_row(*map(Text, (*cells, config_cell(row), row.origin)))
    console.print(table)
    print_rest(console, workload, rows)


def print_rest(console: Console, workload: RecordedWorkload, rows: Sequence[WorkloadRow]) -> None:
    """Print the longest other kernels, and which kernels depend on values that were not kept."""
    for times in workload.times:
        for name, seconds in times.others[:OTHERS_SHOWN]:
            share = percent(seconds / times.total_s) if times.total_s else "-"
            console.print(f"not Triton, or not recorded: {share} {name[:100]}", soft_wrap=True)
    needed = [row.name for row in rows if row.needs_values]
    if needed:
        console.print(
            f"Integer tensors, which may be indices or offsets, are arguments of "
            f"{', '.join(needed[:5])}{' and others' if len(needed) > 5 else ''}; their values were "
            "not kept. --values keeps small ones.",
            soft_wrap=True,
        )


def time_text(workload: RecordedWorkload, row: WorkloadRow) -> str:
    """Return the GPU time of a row with its share: `3.2 ms, 41 %`."""
    if row.gpu_s is not None:
        return f"{duration(row.gpu_s)}, {percent(row.share or 0.0)}"
    return "not profiled" if any(p.mode == "gpu" for p in workload.processes) else "no GPU"


def config_cell(row: WorkloadRow) -> str:
    """Return the config of most launches, and how many others there are."""
    others = row.configs - 1
    more = f" (and {others} other{'s' * (others > 1)})" if others > 0 else ""
    return f"{row.config or '-'}{more}"
