"""XML of `xctrace export`: rows whose columns are positional after the schema, and values that
refer to one another by id, forward too. No sample is at hand; the tests write one by the documented
form."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from workbench.data.record_tally import DEVICE
from workbench.traces.readers import TraceReader
from workbench.traces.readers.inputs.numbers import integer
from workbench.traces.readers.inputs.source import Source, head_matches
from workbench.traces.readers.inputs.xml import parse
from workbench.traces.trace import ActivityKind, Trace, plain

sniff = head_matches(re.compile("<trace-query-result"))


@dataclass
class _CellValue:
    """A value of a row: its id or the id that it refers to, its text and what is displayed."""

    id: str = ""
    ref: str = ""
    text: str = ""
    label: str = ""


@dataclass
class _SchemaTable:
    """A table of a schema."""

    schema: str
    columns: list[str] = field(default_factory=list)
    rows: list[list[_CellValue]] = field(default_factory=list)


def read(source: Source) -> Trace:
    """Return the intervals of a file. Raises ValueError where it is damaged."""
    trace = Trace("xctrace")
    values: dict[str, _CellValue] = {}
    tables = _tables(source, values)
    others: list[str] = []
    for table in tables:
        if table.schema != INTERVALS:
            others.append(f"{plain(table.schema)} ({len(table.rows):,} rows)")
            continue
        for number, row in enumerate(table.rows, 1):
            source.place = f"row {number} of {plain(table.schema)}"
            with trace.tally.record(DEVICE):
                _add(trace, table, [_resolve_value(value, values) for value in row])
    trace.list_devices()
    if not trace.activities and not trace.tally.bad:
        tables_seen = f"; it holds {', '.join(others)[:300]}" if others else ""
        trace.notes.append(f"it has no row of {INTERVALS}, the work of the GPU{tables_seen}")
    elif others:
        trace.notes.append(f"tables that are not of the GPU were left out: {', '.join(others)}")
    trace.part_devices_by_process(
        "several processes use the GPU; each is shown by itself, with its own window"
    )
    return trace


def _tables(source: Source, values: dict[str, _CellValue]) -> list[_SchemaTable]:
    tables: list[_SchemaTable] = []
    path: list[str] = []
    stack: list[_CellValue] = []

    def start(name: str, attributes: dict[str, str]) -> None:
        path.append(name)
        if name == "schema":
            tables.append(_SchemaTable(attributes.get("name", "")))
        elif name == "row":
            if not tables:
                raise ValueError("a row stands before its schema")
            tables[-1].rows.append([])
        elif "row" in path:
            value = _CellValue(
                attributes.get("id", ""), attributes.get("ref", ""), "", attributes.get("fmt", "")
            )
            stack.append(value)
            if value.id:
                values[value.id] = value
            if path[-2] == "row":
                tables[-1].rows[-1].append(value)

    def end(name: str, text: str) -> None:
        path.pop()
        if name == "mnemonic" and tables and "schema" in path:
            tables[-1].columns.append(text)
        elif "row" in path and name != "row":
            stack.pop().text = text

    parse(source, start, end)
    return tables


def _resolve_value(value: _CellValue, values: dict[str, _CellValue]) -> _CellValue:
    if not value.ref:
        return value
    if value.ref not in values:
        raise KeyError(f"a value refers to {value.ref}, which is not in the file")
    return values[value.ref]


def _add(trace: Trace, table: _SchemaTable, values: list[_CellValue]) -> None:
    row = dict(zip(table.columns, values, strict=False))

    def shown_text(*names: str) -> str:
        for name in names:
            if name in row and (row[name].label or row[name].text):
                return plain(row[name].label or row[name].text)
        return ""

    if shown_text("state") not in ("", "Active") or shown_text("depth") not in ("", "0"):
        return
    start = integer(row["start"].text)
    trace.activities.add(
        ActivityKind.KERNEL,
        NUMBERED.sub("", shown_text("label", "name", "event-label", "channel-name")) or "interval",
        start,
        start + integer(row["duration"].text),
        shown_text("gpu", "device") or "gpu",
        shown_text("channel-name", "channel", "channel-subtitle"),
        shown_text("process") or "no process",
    )


INTERVALS = "metal-gpu-intervals"  # the one schema whose rows are work of the GPU
NUMBERED = re.compile(r"\ACommand Buffer \d+:|\s+0x[0-9a-fA-F]+\Z")  # of each command buffer


READER = TraceReader("XML of xctrace", sniff, read, is_whole=True)
