"""Read the files of any profiler: KPIs with their targets, and one row a kernel."""

from __future__ import annotations

from pathlib import Path

from workbench.commands import field
from workbench.commands.field import argument, option
from workbench.commands.options import Options


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
    """Run the command. Returns 0; 1 where a checker found something, 3 where it did not end."""
    from workbench.commands.trace_reading import read_files

    return read_files(options)
