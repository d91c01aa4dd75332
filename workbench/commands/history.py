"""The `history` command: list the outcomes of earlier runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench.commands.options import HistoryOptions
from workbench.data.database import History, Row, open_history
from workbench.data.units import console_duration
from workbench.spec import brief, sizes_text

if TYPE_CHECKING:
    from rich.console import Console

NARROW = ("at", "kernel", "config", "sizes", "phase", "time")  # columns for a width of 120
YIELDING = ("config", "sizes", "run")  # shortened first if the width does not suffice
HEADINGS = ("at", "kernel", "config", "sizes", "dtype", "device", "phase", "time", "commit", "run")


def history_table(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Return the cells under `HEADINGS`. A predicted time begins with `~` and ends in "predicted";
    a failure shows its reason instead of a time."""
    return [
        (
            row.at[:16].replace("T", " "),
            row.kernel,
            f"{row.impl} {brief(row.config)}" if row.config else row.impl,
            sizes_text(row.sizes, " "),
            row.dtype,
            row.device,
            row.phase or ("refused" if row.stage == "refused" else f"{row.stage} failed"),
            _time(row),
            _commit(row),
            row.run,
        )
        for row in rows
    ]


def show_history(
    history: History,
    console: Console,
    kernel: str | None = None,
    device: str | None = None,
    impl: str | None = None,
    dtype: str | None = None,
    failures: bool = False,
    limit: int = 50,
) -> None:
    """Print the newest outcomes that match. Raises HistoryError."""
    from rich.table import Table
    from rich.text import Text

    rows = history.search(kernel, impl, device, dtype, failures_only=failures, limit=limit)
    if not rows:
        console.print("Nothing in the history matches: drop a filter, or measure something first.")
        return
    shown = HEADINGS if console.width >= 140 else NARROW
    lines = [
        [_printable(c) for h, c in zip(HEADINGS, cells, strict=True) if h in shown]
        for cells in history_table(rows)
    ]
    table = Table(box=None, pad_edge=False)
    for heading, *cells in zip(shown, *lines, strict=True):
        whole = max(map(len, (heading, *cells)))
        least = 8 if heading in YIELDING else min(whole, 30)  # a reason may be long
        table.add_column(heading, no_wrap=True, overflow="ellipsis", min_width=least)
    for cells in lines:  # Text: a compiler's "[error]" is no markup
        table.add_row(*map(Text, cells))
    console.print(table)
    if len(rows) == limit:
        console.print(f"The newest {limit}; a larger limit shows more.")


def _time(row: Row) -> str:
    if row.time_s is None:
        return row.reason or "no time"
    text = console_duration(row.time_s)
    return f"~{text} predicted" if row.predicted else text


def _commit(row: Row) -> str:
    return row.commit[:8] + ("+" if row.dirty else "") if row.commit else ""


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)


def run(options: HistoryOptions) -> int:
    """Run the command. Returns its exit code."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:  # a pipe has no width: nothing is left out
        console = Console(width=240)
    with open_history(options.database) as history:
        if options.load is not None:
            taken = history.import_events(options.load)
            print(f"{taken.kept} events imported, {len(taken.bad)} lines unreadable")
            for line in taken.bad[:5]:
                print(f"  line {line.number}: {line.reason}")
        show_history(
            history,
            console,
            options.kernel,
            options.device,
            options.impl,
            options.dtype,
            options.failures,
            options.limit,
        )
    return 0
