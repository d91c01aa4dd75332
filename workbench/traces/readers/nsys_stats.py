"""CSV tables of `nsys stats`: sums by name, and traces of the GPU. Units stand in the heads, other
output before them, and several tables may follow one another."""

import re
from collections.abc import Iterator

from workbench.data.record_tally import DEVICE, HOST
from workbench.traces.readers import TraceReader
from workbench.traces.readers.inputs.numbers import UNIT_NS, integer, number, three, whole
from workbench.traces.readers.inputs.source import Source, head_matches
from workbench.traces.readers.inputs.tables import Row, rows
from workbench.traces.trace import ActivityKind, Geometry, Total, Trace, kind_of_call, plain

UNIT = re.compile(r"(?P<name>.+?) \((?P<unit>[^)]+)\)\Z")
HEAD = re.compile(r'^"?(?:Time \(%\)"?,"?Total Time \(|Start \(\w+\)"?,"?Duration \()', re.M)
MEMORY = re.compile(r"\[CUDA mem(?:cpy|set)\b[^\]]*\]\Z")
SIZE = {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 1024, "MiB": 1 << 20}


sniff = head_matches(HEAD)


def read(source: Source) -> Trace:
    """Return the sums and intervals of the tables. Raises ValueError where a value is damaged."""
    trace = Trace("nsys", has_streams=True)
    for row, units in _tables(source):
        if "Total Time" in row:
            with trace.tally.record("rows"):
                _add_total(row, units, trace)
        elif "Start" in row and "Duration" in row:
            key = ("", whole(_correlation(row))) if "Device" in row else None
            with trace.tally.record(DEVICE if key else HOST, key):
                _add_activity(row, units, trace)
    trace.list_devices()
    return trace


def _tables(source: Source) -> Iterator[tuple[Row, dict[str, str]]]:
    """Yield each row by head without its unit, and the units of the heads."""
    heads: list[str] = []
    units: dict[str, str] = {}
    for row in rows(source):
        if HEAD.match(",".join(row[:2])):
            heads, units = [], {}
            for name in row:
                match = UNIT.match(name.strip())
                heads.append(match["name"] if match else name.strip())
                units[heads[-1]] = match["unit"] if match else ""
        elif heads and len(row) == len(heads):
            yield dict(zip(heads, row, strict=True)), units
        elif heads and row:
            heads = []


def _ns(row: Row, units: dict[str, str], name: str) -> float | None:
    value = number(row.get(name, ""))
    return None if value is None else value * UNIT_NS[units[name]]


def _need_ns(row: Row, units: dict[str, str], name: str) -> float:
    value = _ns(row, units, name)
    if value is None:
        raise ValueError(f"{name} has no value")
    return value


def _whole_ns(row: Row, units: dict[str, str], name: str) -> int:
    """Return a time in whole ns, exactly: a float of epoch size would lose hundreds of them."""
    text = row.get(name, "").strip()
    if units[name] == "ns" and text.lstrip("-").isdigit():
        return int(text)
    return round(_need_ns(row, units, name))


def _add_total(row: Row, units: dict[str, str], trace: Trace) -> None:
    name = plain(row.get("Name") or row.get("Operation") or row.get("Range") or "")
    category = row.get("Category", "")
    count = integer(row.get("Instances") or row.get("Num Calls") or row.get("Count") or "0")
    kind = ActivityKind.RANGE
    if "Num Calls" in row or category == "CUDA_API":
        kind = kind_of_call(name)
    elif "Operation" in row and category != "CUDA_KERNEL":
        kind = _kind_of_operation(name)
    elif "Range" not in row:
        kind = ActivityKind.KERNEL
    total = _need_ns(row, units, "Total Time")
    low, high = _ns(row, units, "Min"), _ns(row, units, "Max")
    trace.totals.append(Total(kind, name, count, total, "", low, high))


def _correlation(row: Row) -> str:
    """Return the correlation id of a row, which the tables of one nsys spell in two ways."""
    return row.get("CorrId") or row.get("CorrID") or "-1"


def _kind_of_operation(name: str) -> ActivityKind:
    """Return the kind of an operation on memory: `[CUDA memcpy Device-to-Host]`, or without the
    brackets in a table of such operations."""
    return ActivityKind.SET if "memset" in name.lower() else ActivityKind.COPY


def _add_activity(row: Row, units: dict[str, str], trace: Trace) -> None:
    name = plain(row.get("Name", ""))
    start = _whole_ns(row, units, "Start")
    end = start + _whole_ns(row, units, "Duration")
    correlation = integer(_correlation(row))
    if "Device" not in row:
        where = "", row.get("Tid", ""), "", correlation
        trace.activities.add(kind_of_call(name), name, start, end, *where)
        return
    kind = _kind_of_operation(name) if MEMORY.match(name) else ActivityKind.KERNEL
    moved = number(row.get("Bytes", ""))
    byte_count = -1 if moved is None else round(moved * SIZE.get(units.get("Bytes", "B"), 1))
    where = plain(row["Device"]), plain(row.get("Strm", "")), "", correlation
    trace.activities.add(kind, name, start, end, *where, _geometry(row), byte_count)


def _geometry(row: Row) -> Geometry:
    grid, block = (
        three(row.get(f"{what}{axis}", "").strip() for axis in "XYZ") for what in ("Grd", "Blk")
    )
    registers = row.get("Reg/Trd", "").strip()
    return Geometry(grid, block, integer(registers) if registers else None)


READER = TraceReader("CSV of nsys stats", sniff, read)
