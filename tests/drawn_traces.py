"""Tables of all that readers take from the small golden files, and from small files of our own:
each activity, dispatch, counter, sum, record, note and what was left out."""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from table_text import text_of
from written_traces import WRITTEN

from workbench.traces.readers import read
from workbench.traces.readers.inputs.source import ReadError
from workbench.traces.trace import Trace

GOLDEN = Path(__file__).resolve().parent / "golden" / "traces"
LARGEST = 110_000  # bytes of a file, unpacked
FIRST = 40  # activities, counters and the like of one file


def contents(trace: Trace) -> Iterator[str]:
    """Yield what a trace holds, a line each."""
    yield f"{trace.title} {trace.tool} {trace.version}"
    yield text_of([(f.name.rsplit("/", 1)[-1], f.bytes) for f in trace.files])
    devices = dict(sorted(trace.devices.items()))
    yield f"rank {trace.rank} streams {trace.has_streams} {text_of(devices)}"
    for activity in islice(trace.activities, FIRST):
        yield f"activity {activity.kind.name} {text_of(activity[1:])}"
    for dispatch in trace.dispatches[:FIRST]:
        head = (dispatch.name, dispatch.id, dispatch.device, dispatch.lane, dispatch.geometry)
        yield f"dispatch {text_of(head)} {text_of(dispatch.duration_ns)} {text_of(dispatch.notes)}"
        yield from (f"  {text_of(c)}" for c in islice(dispatch.counters.values(), FIRST))
        yield f"  {text_of(dict(islice(dispatch.opcodes.items(), FIRST)))}"
        if table := dispatch.instructions:
            rows = zip(table.addresses, table.texts, table.places, table.values, strict=True)
            yield f"  {len(table.texts)} {text_of(table.heads)} {sorted(table.sources)}"
            yield from (f"  {text_of(row)}" for row in islice(rows, FIRST))
    yield from (f"sum {text_of(total)}" for total in trace.totals[:FIRST])
    if trace.checker:
        yield from (f"record {text_of(record)}" for record in trace.checker.records[:FIRST])
        counts = (trace.checker.errors, trace.checker.not_printed, trace.checker.warnings)
        yield f"{trace.checker.tool} {counts}"
    yield from (f"table {name} {short(table)}" for name, table in sorted(trace.tables.items()))
    yield from (f"note {note}" for note in trace.notes)
    tally = trace.tally
    yield f"{dict(tally.totals)} {dict(tally.bad)} {dict(tally.unread)} {tally.examples}"
    yield f"lost {sorted(tally.lost_work)} {tally.remedies}"


def short(table: Any) -> str:
    """Return the beginning of a table of a trace."""
    return text_of(table)[:2000]


def answer(path: Path, **options: Any) -> Iterator[str]:
    """Yield what a file holds, or why it is refused."""
    try:
        yield from contents(read([path], **options))
    except ReadError as error:
        yield str(error).replace(str(path.parent), "FOLDER")


def size_of(path: Path) -> int:
    """Return the bytes of a file, unpacked."""
    data = path.read_bytes()
    return len(gzip.decompress(data)) if path.suffix == ".gz" else len(data)


def folder_table(folder: str) -> Iterator[str]:
    """Yield what is in each small file of a folder."""
    for path in sorted((GOLDEN / folder).rglob("*")):
        if path.is_file() and size_of(path) < LARGEST:
            yield f"# {path.name}"
            yield from answer(path)


def written_table(name: str) -> Iterator[str]:
    """Yield what is in a file that is written here."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        WRITTEN[name](path)
        yield from answer(path)


TABLES: dict[str, Callable[[], Iterator[str]]] = {
    **{f"contents_{path.name}": partial(folder_table, path.name)
       for path in sorted(GOLDEN.iterdir()) if path.is_dir()},
    **{f"written_{name}": partial(written_table, name) for name in WRITTEN},
}  # fmt: skip
