"""The `tuned` command: list, export, import and forget tuned configs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.catalog import is_path, spec_of
from workbench.commands.console import aloud, console_for, note, say_result
from workbench.commands.options import TunedOptions
from workbench.commands.result import write_result
from workbench.commands.tuned_code import bits_text, code, time_text
from workbench.data.exits import PASSED
from workbench.data.files import is_output, real_path
from workbench.data.tuned_cache import (
    Entry,
    Tuned,
    TunedError,
    changing,
    damage_text,
    default_path,
    read,
    write,
)
from workbench.device.error_band import devices_words
from workbench.spec import label, sizes_text

if TYPE_CHECKING:
    from rich.console import Console


def run(options: TunedOptions) -> int:
    """Run the command. Returns its exit code."""
    result = use(options, console_for(options))
    return write_result(options, "tuned", PASSED, **result)


# Between files


def export(entries: Sequence[Entry], to: Path, of: Path) -> None:
    """Write entries of the file `of` to another. Raises TunedError."""
    if real_path(to) == real_path(of):
        raise TunedError(f"{to} is the file of tuned configs itself; export to another.")
    write(to, entries)


def merge(
    given: Path, path: Path, on_damage: Callable[[str], object] | None = None
) -> tuple[int, int]:
    """Add the usable entries of another file, the newer of equal keys. `on_damage` is called with
    what is wrong with each of the others. Returns how many were new or newer, and how many were
    read.

    Raises TunedError where a file cannot be read or written, and then nothing of it is added.
    """
    entries = read(given, on_damage)
    with changing(path) as tuned:
        before = dict(tuned.entries)
        for entry in entries:
            tuned.add(entry)
        changed = sum(before.get(key) != entry for key, entry in tuned.entries.items())
    return changed, len(entries)


def forget(entries: Sequence[Entry], path: Path) -> None:
    """Remove these entries from the file. Raises TunedError."""
    with changing(path) as tuned:
        for entry in entries:
            if tuned.entries.get(entry.key) == entry:
                del tuned.entries[entry.key]


# Output


def use(options: TunedOptions, console: Console) -> dict[str, Any]:
    """Show, export, import or forget tuned configs, as the options say. Returns what the JSON
    document holds of it: the entries, or of an import the numbers of them. Raises TunedError where
    the options conflict or a file cannot be used."""
    actions = {
        "--export": options.export,
        "--import": options.load,
        "--code": options.code,
        "--forget": options.forget,
    }
    named = [name for name, value in actions.items() if value]
    if len(named) > 1:
        raise TunedError(f"{' and '.join(named)} are two things to do; ask for one at a time.")
    path = options.file or default_path()
    if options.load is not None:
        if options.kernel or options.impl or options.device:
            raise TunedError("--import takes a file whole; leave the kernel, Impl and device out.")
        bad: list[str] = []
        taken, of = merge(options.load, path, bad.append)
        if bad:
            note(f"{options.load}: {len(bad)} damaged left out, the first is {bad[0]}")
        text = f"{taken} of {of} entries are new or newer, and are in {path}."
        say_result(console, text, whole=False)
        return {"file": str(path), "read": of, "changed": taken}
    tuned = Tuned.load(path)
    if tuned.damaged:
        note(damage_text(path, tuned.damaged))
    file = Path(options.kernel) if options.kernel and is_path(options.kernel) else None
    kernel = spec_of(str(file)).name if file else options.kernel
    entries = tuned.matching(kernel, options.impl, options.device)
    if options.forget:
        if options.kernel is None:
            raise TunedError("--forget needs a kernel; write `workbench tuned KERNEL --forget`.")
        forget(entries, path)
        say_result(console, f"{len(entries)} entries forgotten.")
    elif options.export is not None:
        export(entries, options.export, path)
        if not is_output(options.export):
            text = f"{len(entries)} entries written to {options.export}."
            say_result(console, text, whole=False)
    first = tuned.fastest()  # an older winner is marked, too
    shown = [replace(entry, fastest=entry.key in first) for entry in entries]
    if options.code and entries:
        say_result(console, code(shown, file))  # lines stay whole, to be pasted
    elif not (options.forget or options.export):
        with aloud(console):
            show_tuned(shown, console)
    return {"file": str(path), "entries": [asdict(entry) for entry in shown]}


HEADINGS = ("kernel", "sizes", "dtype", "device", "config", "time", "bits", "date", "versions")


def show_tuned(entries: Sequence[Entry], console: Console) -> None:
    """Print a table of entries; a predicted time begins with `~`. Versions need 140 columns."""
    from rich.table import Table
    from rich.text import Text

    if not entries:
        console.print("Nothing is tuned that matches: `workbench sweep` tunes a kernel.")
        return
    table = Table(box=None, pad_edge=False)
    shown = [h for h in HEADINGS if h != "versions" or console.width >= 140]
    for heading in shown:
        table.add_column(heading, overflow="fold", no_wrap=heading in ("time", "date"))
    for e in entries:
        sizes = sizes_text(e.sizes, " ")  # a narrow column breaks at spaces
        cells = (
            f"{e.kernel}.{e.impl}",
            sizes,
            e.dtype,
            e.device,
            label(e.config),
            time_text(e),
            bits_text(e),
            e.at[:10],
            f"torch {e.torch}, triton {e.triton}",
        )
        table.add_row(*map(Text, cells[: len(shown)]))
    console.print(table)
    for line in devices_words((e.device, e.kernel) for e in entries if e.predicted):
        console.print(f"Predicted times of {line}", soft_wrap=True)
