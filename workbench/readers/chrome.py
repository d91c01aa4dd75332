"""Chrome JSON of other tools: rocprof v1, Proton's trace, Proton inside a kernel, any other.

rocprof writes numbers as text, and an empty event first. Proton inside a kernel counts cycles and
writes microseconds at an assumed clock of 1 GHz, so only times within one CTA compare.
"""

from __future__ import annotations

import re
from typing import Any

from workbench.data.trace import WORK, ActivityKind, Trace, kind_of_call, plain
from workbench.readers import TraceReader, kineto
from workbench.readers.inputs.numbers import integer, ns_of_us
from workbench.readers.inputs.source import Source
from workbench.readers.inputs.stream import JsonStream

INSIDE = re.compile(r" Core\d+ CTA\d+\Z")
INSIDE_MARK = re.compile(r'"pid"\s*:\s*"[^"]* Core\d+ CTA\d+"')


def sniff(source: Source) -> bool:
    """Return whether a file has trace events that are not Kineto's."""
    return bool(kineto.EVENTS.search(source.head_text)) and not kineto.sniff(source)


def read(source: Source) -> Trace:
    """Return the trace of a Chrome JSON file. Raises ValueError where an event is damaged."""
    text = source.head_text
    tool = "proton" if "call_stack" in text or INSIDE_MARK.search(text) else "chrome"
    if '"BeginNs"' in text or re.search(r'"args"\s*:\s*\{\s*"name"\s*:\s*"\d* ?GPU\d', text):
        tool = "rocprof"
    builder = _ChromeEvents(Trace(tool), source)
    stream = JsonStream(source)
    number = 0
    for batch in stream.batches():
        for event in batch:
            number += 1
            source.place = f"event {number:,}"
            if isinstance(event, dict) and event:
                builder.add(event)
    builder.finish(stream)
    return builder.trace


class _ChromeEvents:
    """Turns events into activities; processes are named by events of their own."""

    def __init__(self, trace: Trace, source: Source) -> None:
        self.trace, self.source = trace, source
        self.process_names: dict[str, str] = {}
        self.begun: dict[tuple[str, str], list[tuple[str, int]]] = {}
        self.unmatched = 0
        self.inside = False

    def add(self, event: dict[str, Any]) -> None:
        """Add one event."""
        phase, pid, tid = event.get("ph"), str(event.get("pid", "")), str(event.get("tid", ""))
        if phase == "M":
            if event.get("name") == "process_name" and isinstance(event.get("args"), dict):
                self.process_names[pid] = plain(str(event["args"].get("name", "")))
        elif phase == "X":
            start = self._ns(event["ts"])
            length = self._ns(event.get("dur", 0))
            self._add(event, pid, tid, str(event["name"]), start, start + length)
        elif phase == "B":
            name, start = str(event.get("name", "")), self._ns(event["ts"])
            self.begun.setdefault((pid, tid), []).append((name, start))
        elif phase == "E":
            open_ranges = self.begun.get((pid, tid))
            if not open_ranges:
                self.unmatched += 1
                return
            name, start = open_ranges.pop()
            self._add(event, pid, tid, name, start, self._ns(event["ts"]))

    def _ns(self, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise TypeError("a time is no number")
        return ns_of_us(value.strip() if isinstance(value, str) else value)

    def _add(
        self, event: dict[str, Any], pid: str, tid: str, name: str, start: int, end: int
    ) -> None:
        facts = event.get("args")
        facts = facts if isinstance(facts, dict) else {}
        if "BeginNs" in facts and "EndNs" in facts:  # exact, where ts is rounded
            start, end = integer(str(facts["BeginNs"])), integer(str(facts["EndNs"]))
        kind, device = self._kind(str(event.get("cat", "")), pid, name, facts)
        lane = str(facts.get("stream", tid))
        name = name.removesuffix(" [clone .kd]").removesuffix(".kd")
        number = facts.get("correlation", facts.get("corrId", -1))
        correlation = integer(str(number)) if str(number).lstrip("-").isdigit() else -1
        if end < start:
            self.unmatched += 1
            return
        self.trace.activities.add(
            kind, plain(name), start, end, device, plain(lane), self.source.name, correlation
        )

    def _kind(
        self, category: str, pid: str, name: str, facts: dict[str, Any]
    ) -> tuple[ActivityKind, str]:
        """Return the kind of an event and its device, by the name of its process."""
        process = self.process_names.get(pid, pid)
        if INSIDE.search(pid) or INSIDE.search(process):
            self.inside = True
            return ActivityKind.RANGE, plain(process)
        if match := re.search(r"\bGPU\s?(\d+)", process):
            return ActivityKind.KERNEL, match[1]
        if re.search(r"\bCOPY\b", process):
            return ActivityKind.COPY, "copy engine"
        if "API" in process or category.lower() in ("hip", "hsa", "cuda_api"):
            return kind_of_call(name), ""
        if category.lower() == "kernel" or "call_stack" in facts:
            return ActivityKind.KERNEL, str(facts.get("device_id", facts.get("device", "0")))
        return ActivityKind.RANGE, ""

    def finish(self, stream: JsonStream) -> None:
        """Add notes."""
        trace = self.trace
        trace.devices = {name: {} for name in sorted(set(trace.activities.devices.known) - {""})}
        if self.inside:
            trace.notes.append(
                "times inside kernels assume a clock of 1 GHz: compare them within one CTA only"
            )
        left = self.unmatched + sum(map(len, self.begun.values()))
        if left:
            trace.notes.append(f"{left} events have no matching begin or end and were left out")
        if stream.is_cut:
            trace.notes.append("the file ends within its events; its end is missing")
        if trace.activities and not any(True for _ in trace.activities.of_kind(*WORK)):
            trace.notes.append("no event is known to have run on a device")


READER = TraceReader("Chrome trace", sniff, read, is_whole=True)
