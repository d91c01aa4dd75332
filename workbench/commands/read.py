"""Read the files of any profiler: KPIs with their targets, and one row per kernel."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.commands import field
from workbench.commands.console import console_for, say_result
from workbench.commands.field import argument, option
from workbench.commands.options import Options
from workbench.data.exits import PASSED
from workbench.data.files import write_files

if TYPE_CHECKING:
    from workbench.data.intervals import Intervals
    from workbench.data.record import Finding
    from workbench.traces.trace import Trace
    from workbench.traces.trace_summary import TraceSummary


class ReadOptions(Options):
    files: tuple[str, ...] = argument("Files of one run, folders, .gz, .zip, or -.")
    range: str | None = option(None, "Only what was launched in host ranges of this name.")
    json: Path | None = field.json("Write all of it to this file; - is standard output.")
    csv: Path | None = option(None, "Write the kernels to this file.", stored=False)
    perfetto: Path | None = option(
        None, "Write a timeline for ui.perfetto.dev to this file.", stored=False
    )
    quiet: bool = field.quiet("Print only KPIs, findings and the page's path.")
    out: Path = field.out()
    database: str | None = field.database()


def run(options: ReadOptions) -> int:
    """Run the command. Returns 0; 1 where a checker found something, 3 where it did not end. Raises
    ReadError where nothing can be read."""
    from workbench.commands.run import say_page
    from workbench.commands.trace_tables import print_trace
    from workbench.commands.traces import incomplete_sentence, keep, trace_run
    from workbench.traces.profilers.sanitizer import CODES
    from workbench.traces.readers import read

    trace = read(options.files, range_name=options.range)
    summary = summarise(trace, options.range)
    kept = trace_run(summary, "read", trace.files[0].name, options.command)
    files = _files(summary, kept.findings, options)
    console = console_for(options)
    print_trace(console, summary, kept.findings)
    write_files(files)
    for path, _ in files:
        console.print(f"written  {path}", soft_wrap=True)
    say_page(console, keep(kept, summary, options.out, options.database))
    if summary.lacks:
        say_result(console, incomplete_sentence(summary.lacks))
    return CODES[trace.checker.verdict] if trace.checker is not None else PASSED


def _files(
    summary: TraceSummary, findings: Sequence[Finding], options: ReadOptions
) -> list[tuple[Path, str | bytes]]:
    """Return the requested files with their content. Raises ReadError where one cannot be made."""
    from workbench.traces.readers.inputs.source import ReadError
    from workbench.traces.trace_export import json_text, kernels_csv, perfetto, summary_json

    trace = summary.trace
    files: list[tuple[Path, str | bytes]] = []
    if options.json is not None:
        files.append((options.json, json_text(summary_json(summary))))
    if options.csv is not None:
        files.append((options.csv, kernels_csv(trace, summary.rows)))
    if options.perfetto is not None:
        if not summary.times:
            raise ReadError(
                f"{trace.files[0].name} has no timeline, which --perfetto needs; leave it out."
            )
        files.append((options.perfetto, perfetto(summary, findings)))
    return files


def summarise(trace: Trace, range_name: str | None = None) -> TraceSummary:
    """Return the summary of a trace, of a named host range alone if one is given. Raises ReadError
    where the file has no such range, or no work in it."""
    from workbench.traces.readers.inputs.source import ReadError
    from workbench.traces.trace_summary import summarise as summary_of

    if range_name is None:
        return summary_of(trace)
    summary = summary_of(trace, _range(trace, range_name))
    if not summary.devices:
        raise ReadError(f"no work was launched in the range {range_name}; name another one.")
    return summary


def _range(trace: Trace, name: str) -> Intervals:
    from workbench.traces.readers.inputs.source import ReadError
    from workbench.traces.timeline import named_ranges
    from workbench.traces.timeline import range_name as without_number
    from workbench.traces.trace import ActivityKind

    within = named_ranges(trace, name)
    if not within.starts:
        table = trace.activities
        numbers = {table.name_numbers[i] for i in table.select(ActivityKind.RANGE)}
        names = sorted({without_number(table.names.entries[n]) for n in numbers})[:10]
        known = f"its ranges are {', '.join(names)}" if names else "it has none"
        raise ReadError(f"{trace.files[0].name} has no range {name}; {known}.")
    return within
