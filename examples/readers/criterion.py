"""Output of criterion (`cargo bench`): a name, and low, best and high estimate of its time."""

from __future__ import annotations

import re

from workbench.data.record_tally import UNREADABLE
from workbench.traces.readers import TraceReader
from workbench.traces.readers.inputs.numbers import convert_to_ns
from workbench.traces.readers.inputs.source import Source
from workbench.traces.trace import ActivityKind, Total, Trace, plain

OUTSIDE = "left out, as an estimate lies outside of its interval"
VALUE = r"([\d.]+) (ps|ns|µs|us|ms|s)"
TIME = re.compile(rf"^(?P<name>\S.*?)?\s+time:\s+\[{VALUE} {VALUE} {VALUE}\]", re.M)
LOOKS = re.compile(r"^\S*\s+time:\s+\[", re.M)


def sniff(source: Source) -> bool:
    """Return whether a file has a time in criterion's form."""
    text = source.head_text
    return bool(LOOKS.search(text)) and (" outliers among " in text or "Benchmarking " in text
                                         or bool(TIME.search(text)))  # fmt: skip


def read(source: Source) -> Trace:
    """Return a total for each benchmark. A time that is damaged is left out and counted."""
    trace = Trace("criterion")
    name = ""
    for line in source.lines():
        source.count()
        match = TIME.match(line)
        if match is None:
            if LOOKS.match(line):
                trace.tally.totals["times"] += 1
                trace.tally.drop("times", UNREADABLE, plain(line.strip())[:100])
            elif line.strip() and not line.startswith((" ", "Benchmarking", "Found")):
                name = plain(line.strip())
            continue
        with trace.tally.record("times"):
            low, best, high = (_ns(match[number], match[number + 1]) for number in (2, 4, 6))
            label = plain(match["name"] or name)
            if low <= best <= high:
                trace.totals.append(Total(ActivityKind.OP, label, 1, best, "", low, high))
            else:
                trace.tally.drop("times", OUTSIDE, plain(line.strip())[:100])
    return trace


def _ns(text: str, unit: str) -> float:
    if unit == "ps":
        return float(text) / 1000
    value = convert_to_ns(float(text), unit)
    assert value is not None  # the pattern allows units of time alone
    return value


READER = TraceReader("output of criterion", sniff, read)
