"""Proton's hatchet file: a tree of scopes and kernels with sums, and a map of devices.

Units stand in the names of the metrics: `time (ns)`, `flops16`. A kernel that Proton's own launch
metadata started is not work of the program.
"""

import math
import re
from typing import Any

from workbench.traces.readers import TraceReader
from workbench.traces.readers.inputs.numbers import UNIT_NS, integer
from workbench.traces.readers.inputs.source import Source
from workbench.traces.readers.inputs.stream import load_json
from workbench.traces.trace import ActivityKind, CounterValue, Total, Trace, plain

LAUNCH_METADATA = "__proton_launch_metadata"
TIMED = re.compile(r"(?P<name>.*?)\s*\((?P<unit>\w+)\)\Z")
KNOWN = ("count", "device_id", "device_type")


def sniff(source: Source) -> bool:
    """Return whether a file is a list with a tree of frames."""
    text = source.head_text.lstrip()
    return (
        text.startswith("[")
        and '"traceEvents"' not in text
        and ('"frame"' in text or '"children"' in text)
        and ('"metrics"' in text or '"ROOT"' in text)
    )


def read(source: Source) -> Trace:
    """Return the totals of a hatchet file. Raises ValueError where it is damaged."""
    trace = Trace("proton")
    value = load_json(source)
    if not isinstance(value, list):
        raise TypeError("it is not a list of trees")
    for number, tree in enumerate(value, 1):
        source.place = f"tree {number}"
        if isinstance(tree, dict) and "frame" in tree:
            _walk(tree, trace, source)
        elif isinstance(tree, dict):
            _devices(tree, trace)
    if not trace.totals:
        trace.devices = {}
        trace.notes.append("it holds a root without kernels")
    return trace


def _devices(tree: dict[str, Any], trace: Trace) -> None:
    for kind, members in tree.items():
        for name, properties in (members if isinstance(members, dict) else {}).items():
            facts = properties if isinstance(properties, dict) else {}
            trace.devices[plain(f"{kind} {name}")] = facts


def _walk(tree: dict[str, Any], trace: Trace, source: Source) -> float:
    """Add the totals of a tree. Returns the time of all its kernels in ns."""
    frame = tree["frame"]
    name = plain(str(frame["name"]))
    if name.partition(":")[0] == LAUNCH_METADATA:  # newer versions add the kernel's name
        return 0.0
    source.count()
    metrics = tree.get("metrics") or {}
    time_ns: float | None = None
    counters: tuple[CounterValue, ...] = ()
    count = -1
    with trace.tally.record("frames"):
        time_ns, counters = _metrics(metrics)
        count = integer(str(metrics.get("count", 0)))
    within = 0.0
    for child in tree.get("children") or []:
        within += _walk(child, trace, source)
    if name == "ROOT" or count < 0:  # a bad frame tells nothing of its own
        return within
    device = " ".join(str(metrics[key]) for key in ("device_type", "device_id") if key in metrics)
    if time_ns is not None or (count and counters):
        total = Total(
            ActivityKind.KERNEL, name, count, time_ns or 0.0, plain(device), None, None, counters
        )
        trace.totals.append(total)
    if tree.get("children"):
        whole = within + (time_ns or 0.0)
        trace.totals.append(Total(ActivityKind.RANGE, name, count or 1, whole, counters=counters))
    return within + (time_ns or 0.0)


def _metrics(metrics: dict[str, Any]) -> tuple[float | None, tuple[CounterValue, ...]]:
    """Return the time of a frame in ns, or None, and its other metrics."""
    time_ns = None
    counters = []
    for key, value in metrics.items():
        if key in KNOWN:
            continue
        match = TIMED.match(key)
        name, unit = (match["name"], match["unit"]) if match else (key, "")
        number = float(value) if isinstance(value, int | float) else None
        if number is not None and not math.isfinite(number):
            raise ValueError(f"{key} is not a finite number")
        if number is None:
            if re.fullmatch(r"time|flops\d*|bytes|count", name):
                raise TypeError(f"{key} is not a number")
            counters.append(CounterValue(plain(name), None, unit, plain(str(value))))
        elif name == "time" and unit in UNIT_NS:
            time_ns = number * UNIT_NS[unit]
        else:
            counters.append(CounterValue(plain(name), number, unit, str(value)))
    return time_ns, tuple(counters)


READER = TraceReader("Proton profile", sniff, read, is_whole=True)
