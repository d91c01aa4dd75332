"""CSV of `ncu --print-summary`: least, most and mean of each metric over the launches that share a
name, so that two different kernels of one name are one."""

import re

from workbench.traces.readers import TraceReader
from workbench.traces.readers.inputs import ncu
from workbench.traces.readers.inputs.numbers import integer
from workbench.traces.readers.inputs.source import Source, head_matches
from workbench.traces.readers.inputs.tables import Row, table
from workbench.traces.trace import ActivityKind, CounterValue, Total, Trace, plain

HEAD = re.compile(r'^"[^\n]*"Invocations"[^\n]*"Minimum"', re.M)
Key = tuple[str, str, str]


sniff = head_matches(HEAD)


def read(source: Source) -> Trace:
    """Return the totals of a summary. Raises ValueError where a row is damaged."""
    trace = Trace("ncu", ncu.version_of(source))
    comma = ncu.has_decimal_comma(source)
    groups: dict[Key, list[Row]] = {}
    lines = ncu.table_lines(source, trace.notes)
    for row in table(source, lambda heads: "Minimum" in heads, lines):
        with trace.tally.record("rows"):
            integer(row["Invocations"])
            key = row["Kernel Name"], row.get("Block Size", ""), row.get("Grid Size", "")
            groups.setdefault(key, []).append(row)
    trace.totals += [_total(key, group, comma) for key, group in groups.items()]
    if groups:
        trace.notes.append("launches that share a name were merged by ncu, whatever they are")
    return trace


def _total(key: Key, group: list[Row], comma: bool) -> Total:
    counters: dict[str, CounterValue] = {}
    low = high = mean = None
    for row in group:
        name = ncu.metric_of(row["Section Name"], plain(row["Metric Name"]))
        unit = row.get("Metric Unit", "")
        if name not in counters:
            counters[name] = ncu.counter(name, unit, row.get("Average", ""), comma, "summary")
        if name == ncu.DURATION:
            low, high, mean = (
                ncu.counter(name, unit, row.get(head, ""), comma).exact
                for head in ("Minimum", "Maximum", "Average")
            )
    count = integer(group[0]["Invocations"])
    return Total(
        ActivityKind.KERNEL,
        plain(key[0]),
        count,
        (mean or 0.0) * count,
        plain(group[0].get("Device", "")),
        low,
        high,
        tuple(counters.values()),
    )


READER = TraceReader("summary of ncu (CSV)", sniff, read)
