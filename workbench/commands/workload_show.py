"""Print the kernels of a workload file, or of several as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.commands import field
from workbench.commands.console import Output, aloud, console_for
from workbench.commands.options import Options
from workbench.data.exits import COULD_NOT_RUN, PASSED
from workbench.data.units import duration, percent

if TYPE_CHECKING:
    from rich.console import Console

    from workbench.workload.file import RecordedWorkload
    from workbench.workload.table import WorkloadRow


class WorkloadShowOptions(Options):
    files: tuple[str, ...] = field.workload_files()
    quiet: bool = field.quiet("Print only the table.")
    json: Path | None = field.json()


def run(options: WorkloadShowOptions) -> int:
    """Run the command. Returns its exit code. Raises WorkloadError."""
    from workbench.workload.file import read_all

    return show(options, read_all(options.files), PASSED)


HEADINGS = ("kernel", "launches", "signatures", "GPU time", "config now", "from")
RIGHT = ("launches", "signatures", "GPU time")  # headings of numbers
OTHERS_SHOWN = 5


def show(options: Output, workload: RecordedWorkload, code: int) -> int:
    """Print the table, and write the JSON document. Returns the exit code."""
    from workbench.commands.result import write_result
    from workbench.workload.table import rows_of

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
    from workbench.reports.tables import text_table
    from workbench.workload.gpu_time import shares
    from workbench.workload.table import head_lines

    for line in head_lines(workload):
        console.print(line, soft_wrap=True)
    for times in workload.times:
        console.print(shares(times), soft_wrap=True)
    cells = [
        (
            row.name,
            f"{row.launches:,}",
            f"{row.signatures:,}",
            time_text(workload, row),
            config_cell(row),
            row.origin,
        )
        for row in rows
    ]
    console.print(text_table(HEADINGS, cells, RIGHT))
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
