"""Draw a page of stored runs: of one run again, or the roofline of any number of runs."""

from __future__ import annotations

from pathlib import Path

from workbench.commands import field
from workbench.commands.field import argument, flag, option
from workbench.commands.options import Options


class ReportOptions(Options):
    name: str = argument("sweep, compare, measure, experiment, ceilings, trace, roofline, ...")
    runs: tuple[str, ...] = argument(
        "A run's id or its start, or an events file. Default: last.", (), "[RUN]..."
    )
    kernel: str | None = option(None, "Roofline: all runs of this kernel, in place of RUN.")
    device: str | None = option(None, "Roofline: all runs on this device, in place of RUN.")
    everything: bool = flag("Roofline: every config of a sweep, every part of a kernel.", "--all")
    out: Path | None = option(None, "File to write.")
    csv: Path | None = option(None, "Roofline: also write every number drawn, as CSV.")
    json: Path | None = field.json("Also write what is drawn; - is standard output.")
    figure: Path | None = option(None, "Roofline: also a figure for papers: .png, .svg or .pdf.")
    quiet: bool = field.quiet("Print nothing but errors.")
    database: str | None = field.database()


def run(options: ReportOptions) -> int:
    """Run the command. Returns its exit code."""
    from workbench.commands.console import console_for, is_stdout
    from workbench.commands.report_pages import make

    console = console_for(options)
    for path in make(options):
        if not is_stdout(path):
            console.print(f"report  {path}", soft_wrap=True)
    return 0


def draw(report: str, which: str, out: Path | None, database: str | None) -> Path:
    """Write the report of the run `which` (an id, its start, `last`, or an events file).

    Returns its path. Raises ReportError, EventsError or HistoryError, each one sentence.
    """
    from workbench.commands.report_pages import make

    return make(ReportOptions(report, (which,), out=out, database=database))[0]
