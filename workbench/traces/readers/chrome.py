"""Chrome JSON of other tools: rocprof v1, Proton's trace, Proton inside a kernel, any other.

rocprof writes numbers as text, and an empty event first. Proton inside a kernel counts cycles and
writes microseconds at an assumed clock of 1 GHz, so only times within one CTA compare.
"""

import re
from collections import Counter
from typing import Any

from workbench.data.record_tally import HOST
from workbench.traces.readers import TraceReader, kineto
from workbench.traces.readers.inputs.numbers import integer, ns_of_us, whole
from workbench.traces.readers.inputs.source import Source
from workbench.traces.readers.inputs.stream import JsonStream
from workbench.traces.trace import WORK, ActivityKind, Trace, is_launch, kind_of_call, plain

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
    """Turns events into activities; processes and threads are named by events of their own, which
    may follow."""

    def __init__(self, trace: Trace, source: Source) -> None:
        self.trace, self.source = trace, source
        self.process_names: dict[str, str] = {}
        self.thread_names: dict[tuple[str, str], str] = {}
        self.open_events: dict[tuple[str, str], list[dict[str, Any]]] = {}
        self.spans: list[tuple[str, str, str, str, int, int, str, int, str]] = []
        self.unmatched = 0
        self.is_inside = False
        self.unknown: Counter[str] = Counter()  # events by process and category

    def add(self, event: dict[str, Any]) -> None:
        """Add one event."""
        phase, pid, tid = event.get("ph"), str(event.get("pid", "")), str(event.get("tid", ""))
        if phase == "M":
            facts = event.get("args")
            name = plain(str(facts.get("name", ""))) if isinstance(facts, dict) else ""
            if event.get("name") == "process_name":
                self.process_names[pid] = name
            elif event.get("name") == "thread_name":
                self.thread_names[pid, tid] = name
        elif phase == "X":
            with self.trace.tally.record(HOST, ("", _correlation(event.get("args")))):
                start = self._ns(event["ts"])
                self._add(event, pid, tid, start, start + self._ns(event.get("dur", 0)))
        elif phase == "B":
            self.open_events.setdefault((pid, tid), []).append(event)
        elif phase == "E":
            if not (open_ranges := self.open_events.get((pid, tid))):
                self.unmatched += 1
                return
            begin = open_ranges.pop()
            with self.trace.tally.record(HOST):
                self._add(begin, pid, tid, self._ns(begin["ts"]), self._ns(event["ts"]))

    def _ns(self, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise TypeError("a time is not a number")
        return ns_of_us(value.strip() if isinstance(value, str) else value)

    def _add(self, event: dict[str, Any], pid: str, tid: str, start: int, end: int) -> None:
        """Keep an event until all names are known."""
        facts = event.get("args")
        facts = facts if isinstance(facts, dict) else {}
        if "BeginNs" in facts and "EndNs" in facts:  # exact, where ts is rounded
            start, end = integer(str(facts["BeginNs"])), integer(str(facts["EndNs"]))
        name = str(event.get("name", "")).removesuffix(" [clone .kd]").removesuffix(".kd")
        lane, device = facts.get("stream", tid), facts.get("device_id", facts.get("device", "0"))
        is_stack = "call_stack" in facts
        category = "kernel" if is_stack else str(event.get("cat", ""))
        span = pid, tid, category, plain(name), start, end, plain(str(lane)), _correlation(facts)
        self.spans.append((*span, str(device)))

    def _kind(self, pid: str, tid: str, category: str, name: str) -> tuple[ActivityKind, str]:
        """Return the kind of an event and its device, empty for the process's own; by the names of
        its process and thread."""
        process, thread = self.process_names.get(pid, pid), self.thread_names.get((pid, tid), "")
        low = category.lower()
        if INSIDE.search(pid) or INSIDE.search(process):
            self.is_inside = True
            return ActivityKind.RANGE, plain(process)
        if match := JAX_DEVICE.search(process):
            return self._jax_kind(match, thread, name)
        if match := re.search(r"\bGPU\s?(\d+)", process):
            return ActivityKind.KERNEL, match[1]
        if re.search(r"\bCOPY\b", process):
            return ActivityKind.COPY, "copy engine"
        if "API" in process or low in ("hip", "hsa", "cuda_api") or is_launch(name):
            return kind_of_call(name), ""
        if low == "kernel":
            return ActivityKind.KERNEL, ""
        self.unknown[f"process {plain(process)}" + (f", category {plain(low)}" if low else "")] += 1
        if DEVICE_WORDS.search(low) or DEVICE_WORDS.search(process):
            self.trace.tally.add_unread(f"process {plain(process)[:80]}, category {plain(low)}", 1,
                                      UNKNOWN)  # fmt: skip
        return ActivityKind.RANGE, ""

    def _jax_kind(self, match: re.Match[str], thread: str, name: str) -> tuple[ActivityKind, str]:
        """Return the kind of an event on a device of JAX: its streams hold the work, its other
        lanes sums of it by module and operation. A TPU has no streams, so its operations count."""
        device = f"{match[1]}:{match[2]}" if match[1] != "GPU" else match[2]
        if thread.startswith("Stream #") or (match[1] != "GPU" and thread == "XLA Ops"):
            self.trace.has_streams = match[1] == "GPU"
            moves = re.match(r"Mem(?:cpy|set)", name)
            if moves:
                return (ActivityKind.SET if moves[0] == "Memset" else ActivityKind.COPY), device
            return ActivityKind.KERNEL, device
        return ActivityKind.RANGE, ""

    def finish(self, stream: JsonStream) -> None:
        """Add the activities, and notes."""
        trace = self.trace
        for pid, tid, category, name, start, end, lane, correlation, own in self.spans:
            kind, device = self._kind(pid, tid, category, name)
            if kind in WORK:
                device = device or own
                lane = self.thread_names.get((pid, tid), lane)
            trace.activities.add(kind, name, start, end, device, lane, "", correlation)
        trace.list_devices()
        if self.is_inside:
            trace.notes.append(
                "times inside kernels assume a clock of 1 GHz: compare them within one CTA only"
            )
        left = self.unmatched + sum(map(len, self.open_events.values()))
        if left:
            trace.notes.append(f"{left} events have no matching begin or end and were left out")
        if stream.is_cut:
            trace.notes.append("the file ends within its events; its end is missing")
        if trace.activities and not any(True for _ in trace.activities.select(*WORK)):
            seen = ", ".join(f"{name} ({count:,})" for name, count in self.unknown.most_common(5))
            trace.notes.append(
                "no event is known to have run on a device" + (f"; it has {seen}" if seen else "")
            )


def _correlation(facts: Any) -> int:
    """Return the correlation id in the arguments of an event; -1 without one."""
    facts = facts if isinstance(facts, dict) else {}
    numbers = (whole(facts.get(key)) for key in ("correlation", "corrId", "correlation_id"))
    return next((number for number in numbers if number is not None), -1)


JAX_DEVICE = re.compile(r"/device:(\w+):(\d+)")
DEVICE_WORDS = re.compile(r"gpu|kernel|cuda|rocm|\bdevice\b|level.?zero", re.I)
UNKNOWN = "record with torch.profiler, nsys or rocprofv3, whose files say what ran on a device"

READER = TraceReader("Chrome trace", sniff, read, is_whole=True, may_be_cut=True)
