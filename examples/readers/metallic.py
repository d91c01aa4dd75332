"""Events of metallic, one JSON object a line. A file may hold several runs, and its last line may
be cut. A duration of 0 µs means less than 1 µs."""

from __future__ import annotations

import json
from typing import Any

from workbench.traces.readers import TraceReader
from workbench.traces.readers.inputs.source import Source
from workbench.traces.trace import ActivityKind, Total, Trace, plain

EVENTS = ("GpuKernelDispatched", "GpuOpCompleted")


def sniff(source: Source) -> bool:
    """Return whether the first lines are events of metallic."""
    text = source.head_text
    return (
        text.lstrip()[:1] == "{"
        and '"event"' in text
        and any(f'"type":"{name}"' in text.replace(" ", "") for name in EVENTS)
    )


def read(source: Source) -> Trace:
    """Return totals by operation, and the geometry of kernels. A damaged event is left out and
    counted."""
    trace = Trace("metallic")
    kernels: dict[str, list[int]] = {}
    spent: dict[str, list[int]] = {}
    others: dict[str, int] = {}
    for line in source.lines():
        source.count()
        if not line.strip():
            continue
        with trace.tally.record("events"):
            event = json.loads(line)["event"]
            _take(event["type"], event.get("data") or {}, kernels, spent, others)
    for name, durations in spent.items():
        kind = ActivityKind.KERNEL if name in kernels else ActivityKind.OP
        total, low, high = (1000.0 * each(durations) for each in (sum, min, max))
        trace.totals.append(Total(kind, name, len(durations), total, "", low, high))
    zeros = sum(durations.count(0) for durations in spent.values())
    if zeros:
        trace.notes.append(f"{zeros} durations of 0 µs are less than 1 µs, and count as 0")
    for name in sorted(set(kernels) - set(spent)):
        trace.notes.append(f"{name} was dispatched, and no duration of it is in the file")
    if others:
        trace.tables["events"] = others
    return trace


def _take(
    kind: Any,
    data: dict[str, Any],
    kernels: dict[str, list[int]],
    spent: dict[str, list[int]],
    others: dict[str, int],
) -> None:
    if kind == "GpuKernelDispatched":
        kernels.setdefault(plain(str(data["kernel_name"])), list(data.get("thread_groups") or []))
    elif kind == "GpuOpCompleted":
        name = plain(str(data["op_name"]).rsplit("/", 1)[-1])
        value = data["duration_us"]
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"{value!r} is not a duration")
        spent.setdefault(name, []).append(value)
    else:
        name = plain(str(kind))
        others[name] = others.get(name, 0) + 1


READER = TraceReader("events of metallic", sniff, read)
