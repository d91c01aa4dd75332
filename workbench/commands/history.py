"""List the outcomes of earlier runs."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.commands import field
from workbench.commands.console import aloud, console_for, say
from workbench.commands.field import argument, flag, option
from workbench.commands.options import Options
from workbench.data.exits import COULD_NOT_RUN, PASSED
from workbench.data.units import console_duration
from workbench.spec import label, sizes_text

if TYPE_CHECKING:
    from rich.console import Console

    from workbench.data.database import History, OldRuns, Row


class HistoryOptions(Options):
    kernel: str | None = argument("This kernel only: its name, or path/to/mine.py.", None)
    impl: str | None = option(None, "This Impl only.")
    device: str | None = option(None, "This device only.")
    dtype: str | None = option(None, "This dtype only.")
    failures: bool = flag("Only failures.", "--failures")
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
        (), "Write a file for other tools: parquet=, benchmark-json= or bencher=FILE; repeated."
    )
    database: str | None = field.database()


ALWAYS = ("at", "kernel", "config", "sizes", "phase", "time")
TELLS_APART = ("device", "dtype")
IF_WIDE = (*TELLS_APART, "registers", "commit", "spills, B", "run")  # the first that fit
# Columns that are shortened in turn, to no less than so many characters; a time is shorter, but a
# failure's reason stands in its place
LEAST = (("time", 30), ("config", 12), ("sizes", 8), ("time", 12))
WHOLE = 4096  # characters of a line that is never shortened
HEADINGS = (
    "at", "kernel", "config", "sizes", "dtype", "device", "phase", "time", "registers", "spills, B",
    "commit", "run",
)  # fmt: skip


def history_table(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Return the cells under `HEADINGS`. A predicted time begins with `~` and ends in "predicted";
    a failure shows its reason instead of a time."""
    return [
        (
            row.at[:16].replace("T", " "),
            row.kernel,
            f"{row.impl} {label(row.config)}" if row.config else row.impl,
            sizes_text(row.sizes, " "),
            row.dtype,
            row.device,
            row.phase or ("refused" if row.stage == "refused" else f"{row.stage} failed"),
            _time(row),
            _count(row.registers),
            _count(row.spill_bytes),
            _commit(row),
            row.run,
        )
        for row in rows
    ]


def show_history(history: History, console: Console, options: HistoryOptions) -> list[Row]:
    """Print the newest outcomes that match, and return them; `--wide` prints all columns, whatever
    the console's width. Raises HistoryError."""
    from rich.table import Table
    from rich.text import Text

    from workbench.device.error_band import devices_words

    filters = options.kernel, options.impl, options.device, options.dtype
    rows = history.search(*filters, failures_only=options.failures, limit=options.limit)
    if not rows:
        console.print("Nothing in the history matches: drop a filter, or measure something first.")
        return rows
    cells = zip(*history_table(rows), strict=True)
    columns = {h: [_printable(c) for c in own] for h, own in zip(HEADINGS, cells, strict=True)}
    widths = {h: max(map(len, (h, *column))) for h, column in columns.items()}
    if options.wide:
        console.width = WHOLE
    else:
        widths = fitting_widths(widths, [h for h in IF_WIDE if any(columns[h])], console.width)
    table = Table(box=None, pad_edge=False)
    for heading, width in widths.items():
        table.add_column(heading, no_wrap=True, overflow="ellipsis", width=width)
    for texts in zip(*(columns[heading] for heading in widths), strict=True):
        table.add_row(*map(Text, texts))  # Text: a compiler's "[error]" is not markup
    with aloud(console):
        console.print(table)
        for line in devices_words((r.device, r.kernel) for r in rows if r.predicted and r.time_s):
            console.print(f"Predicted times of {line}", soft_wrap=True)
    if len(rows) == options.limit:
        console.print(f"The newest {options.limit}; a larger limit shows more.")
    return rows


def fitting_widths(whole: Mapping[str, int], more: Sequence[str], room: int) -> dict[str, int]:
    """Return the widths of the columns to print in `room` characters, two spaces between them, of
    the widths that hold each column whole: those of ALWAYS, shortened where they must be, or with
    the first of `more` that fit."""
    room += 2  # no space follows the last column
    need = sum(whole[heading] + 2 for heading in ALWAYS)
    cut = max(0, whole["time"] - LEAST[0][1])  # of a reason, for what tells rows apart
    shown = set(ALWAYS)
    for heading in more:
        need += whole[heading] + 2
        if need - cut * (heading in TELLS_APART) > room:
            break
        shown.add(heading)
    widths = {heading: width for heading, width in whole.items() if heading in shown}
    for heading, least in LEAST:
        excess = sum(width + 2 for width in widths.values()) - room
        if excess > 0:
            widths[heading] = min(widths[heading], max(least, widths[heading] - excess))
    return widths


def _time(row: Row) -> str:
    if row.time_s is None:
        return row.reason or "no time"
    text = console_duration(row.time_s)
    return f"~{text} predicted" if row.predicted else text


def _count(count: int | None) -> str:
    return "" if count is None else str(count)


def _commit(row: Row) -> str:
    return row.commit[:8] + ("+" if row.dirty else "") if row.commit else ""


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)


def run(options: HistoryOptions) -> int:
    """Run the command. Returns its exit code. Raises HistoryError."""
    from workbench.commands.history_exports import check_exports, write_exports
    from workbench.commands.result import write_result
    from workbench.commands.stored import stored_runs
    from workbench.data.database import HistoryError

    if options.kernel:
        from workbench.experiments import kernel_name

        options = replace(options, kernel=kernel_name(options.kernel))
    if options.prune:
        return prune(options)
    if options.older_than or options.keep is not None or options.yes:
        raise HistoryError("--older-than, --keep and --yes belong to --prune; add it.")
    console = console_for(options)
    check_exports(options)
    with stored_runs(options.database, reading=options.load is None) as history:
        if options.load is not None:
            _import(history, options.load, console)
        rows = show_history(history, console, options)
    write_exports(options, rows, console)
    return write_result(options, "history", PASSED, **plain_rows(rows))


def plain_rows(rows: Sequence[Row]) -> dict[str, Any]:
    """Return rows as plain data: measured and predicted times and failures are three lists."""
    kinds: dict[str, Any] = {"measured": [], "predicted": [], "failures": []}
    for row in rows:
        timed = "predicted" if row.predicted else "measured"
        kinds["failures" if row.time_s is None else timed].append(asdict(row))
    return kinds


def _import(history: History, path: Path, console: Console) -> None:
    from workbench.data.database import HistoryError
    from workbench.data.returned import unpack
    from workbench.device.hardware import UNCOMPILED

    if _is_packed(path):
        count = history.import_run(unpack(path, list(UNCOMPILED)))
        console.print(f"{count} events imported, of one run", soft_wrap=True)
        return
    taken = history.import_events(path)
    if taken.unreadable and not taken.total:
        first = f"line {taken.bad[0].number}: {taken.bad[0].reason}"
        raise HistoryError(f"{path} holds no event ({first}); name an events file that a run wrote")
    text = f"{taken.total} events imported, {taken.unreadable} lines unreadable"
    console.print(text, soft_wrap=True)
    for line in taken.bad[:5]:
        console.print(f"  line {line.number}: {line.reason}", soft_wrap=True)


def _is_packed(path: Path) -> bool:
    """Return whether a file is one of metal_shim.bring_back, by its name or its first bytes."""
    try:
        with path.open("rb") if path.is_file() else nullcontext() as file:
            return path.suffix == ".gz" or (file is not None and file.read(2) == b"\x1f\x8b")
    except OSError:
        return path.suffix == ".gz"


# Deleting old runs


def prune(options: HistoryOptions) -> int:
    """Delete old runs after a confirmation. Returns the exit code: 2 if nothing was confirmed.
    Raises HistoryError where the options say nothing to delete, and TunedError where the tuned
    cache, whose runs stay, cannot be read."""
    from workbench.commands.stored import stored_runs
    from workbench.data.database import HistoryError
    from workbench.data.tuned_cache import Tuned, default_path

    if options.older_than is None and options.keep is None:
        raise HistoryError("--prune needs --older-than 90d, --keep 100, or both.")
    if options.impl or options.dtype or options.failures or options.load or options.json:
        raise HistoryError(
            "--prune deletes whole runs; name only a kernel, --device, --older-than and --keep."
        )
    before = None if options.older_than is None else _parse_moment(options.older_than, time.time())
    tuned = {e.run for e in Tuned.load(default_path()).entries.values()}
    with stored_runs(options.database, reading=False) as history:
        old = history.old_runs(before, options.keep or 0, options.kernel, options.device, tuned)
        console = console_for(options)
        console.quiet = options.quiet and options.yes  # who is asked needs to know what goes
        console.print(_what_goes(old), soft_wrap=True)
        if not old.runs and not old.orphans:
            return PASSED
        if not options.yes and not _confirm():
            return COULD_NOT_RUN
        history.delete(old)
        console.print("Deleted, and the space given back.")
    return PASSED


def _what_goes(old: OldRuns) -> str:
    held = (
        f" ({old.needed_runs} of them since a tuned config or the newest ceilings come from them, "
        "or they may still be running)"
    )
    stays = f"{old.kept_runs} runs stay{held if old.needed_runs else ''}."
    if not old.runs and not old.orphans:
        return f"Nothing to delete: {stays}"
    parts = [f"{count} {name}" for name, count in old.counts.items() if count]
    if old.runs:
        parts.insert(0, f"{len(old.runs)} runs ({old.oldest[:10]} to {old.newest[:10]})")
    if old.orphans:
        parts.append(f"{old.orphans} outcomes of no run")
    return f"To delete: {', '.join(parts)}. {stays}"


def _confirm() -> bool:
    """Ask on the terminal. Returns whether the user agreed. Raises HistoryError without one."""
    from workbench.data.database import HistoryError

    if not sys.stdin.isatty():
        raise HistoryError("Nothing was deleted: nobody can be asked here; add --yes.")
    say("Delete them? [y/N]")
    agreed = sys.stdin.readline().strip().lower() in ("y", "yes")
    if not agreed:
        say("Nothing was deleted.")
    return agreed


_UNITS_S = {"h": 3600.0, "d": 86400.0, "w": 7 * 86400.0, "y": 365 * 86400.0}


def _parse_moment(text: str, now: float) -> float:
    """Return the moment, in seconds since 1970, that `90d` or a date names. Raises HistoryError."""
    from workbench.data.database import epoch_s

    if match := re.fullmatch(r"(\d{1,5})([hdwy])", text, re.ASCII):
        return now - int(match[1]) * _UNITS_S[match[2]]
    return epoch_s(text, f"--older-than {text}", "90d, 12w, 1y, or a date as 2026-11-21")
