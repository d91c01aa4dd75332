"""List the outcomes of earlier runs."""

from __future__ import annotations

from pathlib import Path

from workbench.commands import field
from workbench.commands.field import argument, flag, option
from workbench.commands.options import Options


class HistoryOptions(Options):
    kernel: str | None = argument("This kernel only: its name, or path/to/mine.py.", None)
    impl: str | None = option(None, "This Impl only.")
    device: str | None = option(None, "This device only.")
    dtype: str | None = option(None, "This dtype only.")
    failures: bool = flag("Failures alone.", "--failures")
    limit: int = option(50, "Rows at most, newest first.", min=1)
    wide: bool = flag("Print all columns; otherwise those that fit.", "--wide")
    load: Path | None = option(None, "Import the good lines of this events file first.")
    prune: bool = flag("Delete old runs; asks before.", "--prune")
    older_than: str | None = option(None, "Prune: runs older than 90d, 12w, or a date.")
    keep: int | None = option(None, "Prune: the newest runs to keep, whatever their age.", min=0)
    yes: bool = flag("Prune without asking.", "--yes")
    quiet: bool = field.quiet("Print only the outcomes.")
    json: Path | None = field.json("Write the outcomes to this file; - is standard output.")
    export: tuple[str, ...] = field.file_option(
        (), "Write a file for others: parquet=FILE, benchmark-json=FILE or bencher=FILE; repeated."
    )
    database: str | None = field.database()


def run(options: HistoryOptions) -> int:
    """Run the command. Returns its exit code."""
    from workbench.commands.history_table import list_outcomes

    return list_outcomes(options)
