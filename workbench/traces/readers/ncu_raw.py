"""CSV of ncu's raw page: a row of metrics, a row of units, then one row per kernel. Numbers have
thousands separators, even in base units."""

import re

from workbench.traces.readers import TraceReader
from workbench.traces.readers.inputs import ncu
from workbench.traces.readers.inputs.source import Source
from workbench.traces.readers.inputs.tables import rows
from workbench.traces.trace import Trace, plain

SOURCE_COUNTERS = "memory_"  # ncu's own, of which the names have no unit in front
HEAD = re.compile(r'^"ID",(?=[^\n]*"Kernel Name")(?=[^\n]*__)[^\n]*', re.M)


def sniff(source: Source) -> bool:
    """Return whether a file has a head of metrics."""
    match = HEAD.search(source.head_text)
    return bool(match and '"Section Name"' not in match[0] and '"Metric Name"' not in match[0])


def read(source: Source) -> Trace:
    """Return the dispatches with their counters. Raises ValueError where a row is damaged."""
    trace = Trace("ncu", ncu.version_of(source))
    comma = ncu.has_decimal_comma(source)
    heads: list[str] = []
    units: list[str] | None = None
    for row in rows(source, ncu.table_lines(source, trace.notes)):
        if not heads or row[:1] == ["ID"]:  # a second head, of a file that was added to this one
            heads, units = (row if row[:1] == ["ID"] else []), None
        elif units is None and row and not row[0].isdigit():
            units = row
        else:
            with trace.tally.record("launches"):
                if len(row) != len(heads):
                    raise ValueError(f"a row has {len(row)} fields, its head {len(heads)}")
                _add(heads, units or [""] * len(heads), row, trace, comma)
    ncu.settle(trace.dispatches)
    return trace


def _add(heads: list[str], units: list[str], row: list[str], trace: Trace, comma: bool) -> None:
    named = dict(zip(heads, row, strict=True))
    dispatch = ncu.launch_of(named)
    for head, unit, text in zip(heads, units, row, strict=False):
        if "__" in head or head.startswith(SOURCE_COUNTERS):
            name = plain(head)
            dispatch.counters[name] = ncu.counter(name, unit, text, comma)
    trace.dispatches.append(dispatch)
    facts = trace.devices.setdefault(dispatch.device, {})
    facts.update(ncu.properties(dispatch, named))
    display = dispatch.counters.get("device__attribute_display_name")
    if display is not None and display.text:
        facts["name"] = display.text


READER = TraceReader("raw page of ncu (CSV)", sniff, read)
