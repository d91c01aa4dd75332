"""torch.profiler's `export_memory_timeline` in its raw form: time, action, size and category of
each allocation."""

from __future__ import annotations

import re

from workbench.traces.readers import TraceReader
from workbench.traces.readers.inputs.source import Source, head_matches
from workbench.traces.readers.inputs.stream import load_json
from workbench.traces.trace import Trace

BEGIN = re.compile(r"\A\s*\[\s*\[\s*-?\d+\s*,\s*[1-4]\s*,\s*-?\d+\s*,\s*\d+\s*\]")
ACTIONS = range(1, 5)  # preexisting, create, increment a version, destroy


sniff = head_matches(BEGIN)


def read(source: Source) -> Trace:
    """Return the peak of the memory that was held. Raises ValueError where a row is damaged."""
    trace = Trace("torch.profiler")
    now = peak = events = 0
    for number, row in enumerate(load_json(source), 1):
        source.place = f"row {number:,}"
        source.count()
        with trace.tally.record("rows"):
            time, action, size, category = row
            if any(type(value) is not int for value in (time, action, size, category)):
                raise TypeError("a value is not a whole number")
            if action not in ACTIONS:
                raise ValueError(f"{action} is not an action")
            now += size  # negative where memory is given back
            peak, events = max(peak, now), events + 1
    trace.tables["memory"] = {"events": events, "peak_bytes": peak, "end_bytes": now}
    return trace


READER = TraceReader("memory timeline of torch.profiler", sniff, read)
