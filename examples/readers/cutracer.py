"""CUTracer's histogram: counts and cycles of instructions by warp and region, one kernel a file.
The kernel's name stands in the name of the file alone."""

from __future__ import annotations

import re
from collections import Counter

from workbench.traces.readers import TraceReader
from workbench.traces.readers.inputs.numbers import integer
from workbench.traces.readers.inputs.source import Source
from workbench.traces.readers.inputs.tables import first_row, need, table
from workbench.traces.trace import CounterValue, Dispatch, Trace, plain

NEGATIVE = "left out, as a count in them is below zero"
HEADS = ["warp_id", "region_id", "instruction", "count", "cycles"]
NAME = re.compile(r"(?:kernel_)?(.+?)(?:_[0-9a-f]{8})?_hist\.csv")


def sniff(source: Source) -> bool:
    """Return whether the first row is CUTracer's."""
    return first_row(source.head_text) == HEADS


def read(source: Source) -> Trace:
    """Return one dispatch with sums over warps. A damaged row is left out and counted."""
    trace = Trace("cutracer")
    counts: Counter[str] = Counter()
    cycles: Counter[str] = Counter()
    warps = set()
    for row in table(source):
        with trace.tally.record("rows"):
            name, warp = plain(need(row, "instruction")), (row["warp_id"], row["region_id"])
            count, took = integer(need(row, "count")), integer(need(row, "cycles"))
            if min(count, took) < 0:
                trace.tally.drop("rows", NEGATIVE, f"{name} {count} {took}")
                continue
            counts[name] += count
            cycles[name] += took
            warps.add(warp)
    if counts:
        match = NAME.match(source.name.rsplit("/", 1)[-1])
        dispatch = Dispatch(match[1] if match else source.name)
        for prefix, table_of in (("instructions", counts), ("cycles", cycles)):
            for name, value in sorted(table_of.items()):
                key = f"{prefix}.{name}"
                dispatch.counters[key] = CounterValue(
                    key, float(value), prefix, str(value), "ok", "instruction"
                )
        dispatch.notes.append(f"sums over {len(warps)} warps and regions")
        trace.dispatches.append(dispatch)
    return trace


READER = TraceReader("histogram of CUTracer", sniff, read)
