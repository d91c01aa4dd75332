"""Kineto JSON: torch.profiler's `export_chrome_trace`, read event by event.

Times are microseconds whatever `displayTimeUnit` says. Host operations are kept only where a range
of their name was asked for, since they are most of the file.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from workbench.data.trace import (
    NOWHERE,
    Activities,
    ActivityKind,
    Geometry,
    Trace,
    kind_of_call,
    plain,
)
from workbench.readers import Reader
from workbench.readers.inputs.numbers import integer, ns_of_us
from workbench.readers.inputs.source import Source
from workbench.readers.inputs.stream import JsonStream

WORK = {
    "kernel": ActivityKind.KERNEL,
    "concurrent_kernel": ActivityKind.KERNEL,
    "gpu_memcpy": ActivityKind.COPY,
    "memcpy": ActivityKind.COPY,
    "gpu_memset": ActivityKind.SET,
    "memset": ActivityKind.SET,
}
CALLS = frozenset(["cuda_runtime", "cuda_driver", "runtime", "driver", "hip_runtime", "hip_driver"])
RANGES = frozenset(["user_annotation"])
OPERATIONS = frozenset(["cpu_op", "operator", "python_function"])

MARKS = re.compile(
    r'"(?:schemaVersion|deviceProperties|baseTimeNanoseconds|distributedInfo|cupti_version)"\s*:'
    r'|"cat"\s*:\s*"(?:kernel|gpu_memcpy|cuda_runtime|cuda_driver|ac2g|cpu_op|python_function|'
    r'user_annotation|Kernel|Runtime|Operator|Memcpy|hip_runtime)"'
)
EVENTS = re.compile(r'"traceEvents"\s*:\s*\[|\A\s*\[\s*\{\s*"(?:ph|cat|name|pid|ts)"')


def sniff(source: Source) -> bool:
    """Return whether a file is Kineto's: its own keys, or its categories of events."""
    text = source.head_text
    if text.lstrip()[:1] not in ("{", "["):
        return False
    if text.lstrip()[:1] == "{" and '"schemaVersion"' in text and '"deviceProperties"' in text:
        return True
    return bool(MARKS.search(text) and (EVENTS.search(text) or '"distributedInfo"' in text))


def read(source: Source) -> Trace:
    """Return the trace of a Kineto file. Raises ValueError where an event is damaged."""
    builder = _Builder(source)
    stream = JsonStream(source)
    decode = _fast_decoder()
    number = 0
    for batch in stream.batches("traceEvents", decode):
        for event in batch:
            number += 1
            if isinstance(event, dict):
                category = event.get("cat")
                if category is None or event.get("ph") != "X":
                    continue
                arguments: Any = event.get("args")
                times = event.get("ts"), event.get("dur")
                name, pid, tid = event.get("name"), event.get("pid"), event.get("tid")
            else:
                category = event.cat
                if category not in builder.wanted or event.ph != "X":
                    continue
                arguments = json.loads(bytes(event.args)) if event.args else None
                times = bytes(event.ts).decode(), bytes(event.dur).decode()
                name, pid, tid = event.name, event.pid, event.tid
            if category in builder.wanted:
                source.place = f"event {number:,}"
                builder.add(str(category).lower(), name, times, pid, tid, arguments)
    builder.finish(stream, number)
    return builder.trace


def _fast_decoder() -> Callable[[str], list[Any]] | None:
    """Return a decoder of a list of events by msgspec, or None without it."""
    try:
        import msgspec
    except ImportError:
        return None
    event = msgspec.defstruct(
        "KinetoEvent",
        [
            ("ph", str, ""),
            ("cat", str, ""),
            ("name", str, ""),
            ("ts", msgspec.Raw, msgspec.Raw(b"")),
            ("dur", msgspec.Raw, msgspec.Raw(b"")),
            ("pid", int | str | float, ""),
            ("tid", int | str | float, ""),
            ("args", msgspec.Raw, msgspec.Raw(b"")),
        ],
        gc=False,
    )
    decode: Callable[[str], list[Any]] = msgspec.json.Decoder(list[event]).decode  # type: ignore[valid-type]
    return decode


class _Builder:
    """Turns the events of a file into activities."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.trace = Trace("torch.profiler")
        self.activities: Activities = self.trace.activities
        self.dropped: Counter[str] = Counter()
        names = {*WORK, *CALLS, *RANGES}
        if source.range_name is not None:
            names |= OPERATIONS
        spelt = {name.capitalize() for name in names}
        self.wanted = frozenset(names | spelt)

    def add(self, category: str, name: Any, times: Any, pid: Any, tid: Any, arguments: Any) -> None:
        """Add an event of a wanted category."""
        if not isinstance(name, str):
            raise TypeError("the name of an event is no text")
        if times[0] is None:
            raise KeyError("an event has no ts")
        start = _ns(times[0])
        length = 0 if times[1] in (None, "") else _ns(times[1])
        if length < 0:
            self.dropped["a negative duration"] += 1
            return
        facts: Mapping[str, Any] = arguments if isinstance(arguments, dict) else {}
        name = plain(name)
        if (kind := WORK.get(category)) is not None:
            self._add_work(kind, name, start, start + length, pid, tid, facts)
        elif category in CALLS:
            kind = kind_of_call(name)
            self._add(kind, name, start, start + length, tid, _correlation(facts))
        elif category in RANGES:
            self._add(ActivityKind.RANGE, name, start, start + length, tid, -1)
        elif name == self.source.range_name:
            self._add(ActivityKind.OP, name, start, start + length, tid, -1)

    def _add(
        self, kind: ActivityKind, name: str, start: int, end: int, lane: Any, correlation: int
    ) -> None:
        self.activities.add(kind, name, start, end, "", str(lane), self.source.name, correlation)

    def _add_work(
        self,
        kind: ActivityKind,
        name: str,
        start: int,
        end: int,
        pid: Any,
        tid: Any,
        facts: Mapping[str, Any],
    ) -> None:
        moved = facts.get("bytes")
        self.activities.add(
            kind,
            name,
            start,
            end,
            plain(str(facts.get("device", pid))),
            plain(str(facts.get("stream", tid))),
            self.source.name,
            _correlation(facts),
            _geometry(facts) if kind == ActivityKind.KERNEL else NOWHERE,
            -1 if moved is None else integer(moved),
        )

    def finish(self, stream: JsonStream, number: int) -> None:
        """Add what the head of the file tells, and notes."""
        head, trace = stream.head, self.trace
        properties = head.get("deviceProperties")
        used = set(self.activities.devices.values)
        for device in properties if isinstance(properties, list) else []:
            if isinstance(device, dict) and str(device.get("id")) in used:
                trace.devices[str(device["id"])] = device
        for name in used - {""} - set(trace.devices):
            trace.devices[name] = {}
        version = head.get("cupti_version", head.get("roctracer_version", ""))
        trace.version = str(version)
        if stream.is_cut:
            trace.notes.append("the file ends within its events; its end is missing")
        for reason, count in self.dropped.items():
            trace.notes.append(f"{count} events with {reason} were left out")
        if not self.activities:
            trace.notes.insert(0, f"none of its {number:,} events ran on a device")
        elif not any(True for _ in self.activities.of_kind(*WORK.values())):
            trace.notes.append("no event ran on a device: the profiler recorded the host alone")


def _ns(value: Any) -> int:
    """Return a time of an event in ns."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError("a time is no number")
    if isinstance(value, str):
        value = value.strip().strip('"')
        if value.lstrip("-").isdigit():
            return int(value) * 1000
    return ns_of_us(value)


def _correlation(facts: Mapping[str, Any]) -> int:
    value = facts.get("correlation")
    return -1 if value is None else integer(value)


def _geometry(facts: Mapping[str, Any]) -> Geometry:
    return Geometry(
        _three(facts.get("grid")),
        _three(facts.get("block")),
        _whole(facts.get("registers per thread")),
        _whole(facts.get("shared memory")),
    )


def _three(value: Any) -> tuple[int, int, int] | None:
    if isinstance(value, list) and len(value) == 3:
        x, y, z = map(integer, value)
        return x, y, z
    return None


def _whole(value: Any) -> int | None:
    return None if value is None else integer(value)


READER = Reader("trace of torch.profiler", sniff, read)
