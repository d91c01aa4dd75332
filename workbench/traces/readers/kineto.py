"""Kineto JSON: torch.profiler's `export_chrome_trace`, read event by event.

Times are microseconds whatever `displayTimeUnit` says. Host operations are most of a file: all of a
small file are kept, and of a large one those whose name was asked for as a range.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from workbench.data.record_tally import BAD_VALUE, DEVICE, HOST, UNREADABLE
from workbench.traces.readers import TraceReader
from workbench.traces.readers.inputs.numbers import integer, ns_of_us
from workbench.traces.readers.inputs.source import Source
from workbench.traces.readers.inputs.stream import JsonStream
from workbench.traces.trace import (
    NOWHERE,
    Activities,
    ActivityKind,
    Geometry,
    Trace,
    kind_of_call,
    plain,
)

WORK = {
    "kernel": ActivityKind.KERNEL,
    "concurrent_kernel": ActivityKind.KERNEL,
    "gpu_memcpy": ActivityKind.COPY,
    "memcpy": ActivityKind.COPY,
    "gpu_memset": ActivityKind.SET,
    "memset": ActivityKind.SET,
    "mtia_ccp_events": ActivityKind.KERNEL,
    "hpu_op": ActivityKind.KERNEL,
}
CALLS = frozenset(
    ["runtime", "driver", "glow_runtime"]
    + [f"{maker}_{part}" for maker in ("cuda", "hip", "xpu", "mtia", "privateuse1")
       for part in ("runtime", "driver")]
)  # fmt: skip
RANGES = frozenset(["user_annotation"])
OPERATIONS = frozenset(["cpu_op", "operator"])
FUNCTIONS = frozenset(["python_function"])  # of the stack; kept where a range names them
# Categories of libkineto's ActivityType.cpp that are not work of a device, and the trace's own
OTHERS = frozenset(
    ["", "gpu_user_annotation", "external_correlation", "cpu_instant_event", "overhead", "trace",
     "cuda_sync", "cuda_event", "cuda_profiler_range", "mtia_insight", "mtia_counters",
     "collective_comm", "ac2g", "fwdbwd", "async_cpu_to_gpu", "async_gpu", "itt"]
)  # fmt: skip
SILENT = {
    spelt
    for name in OTHERS | OPERATIONS | FUNCTIONS
    for spelt in (name, name.capitalize(), name.upper())
}
DEVICE_WORDS = re.compile(r"gpu|kernel|device|mtia|xpu|hpu|npu|privateuse|memcpy|memset", re.I)

MARKS = re.compile(
    r'"(?:schemaVersion|deviceProperties|distributedInfo|cupti_version)"\s*:'
    r'|"cat"\s*:\s*"(?:kernel|gpu_memcpy|cuda_runtime|cuda_driver|ac2g|cpu_op|python_function|'
    r"user_annotation|Kernel|Runtime|Operator|Memcpy|hip_runtime|xpu_runtime|mtia_runtime|"
    r'mtia_ccp_events|hpu_op|privateuse1_runtime)"'
)
EVENTS = re.compile(r'"traceEvents"\s*:\s*\[|\A\s*\[\s*\{\s*"(?:ph|cat|name|pid|ts)"')


def sniff(source: Source) -> bool:
    """Return whether a file is Kineto's: its own keys, or its categories of events."""
    text = source.head_text
    if text.lstrip()[:1] not in ("{", "[") or '"call_stack"' in text:  # that is Proton's
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
        if batch and not isinstance(batch[0], dict):
            _add_structs(batch, number, builder)
        else:
            _add_dicts(batch, number, builder)
        number += len(batch)
    builder.finish(stream, number)
    return builder.trace


def _add_dicts(batch: list[Any], number: int, builder: _Builder) -> None:
    """Add the events that the standard library decoded; `number` events came before."""
    for at, event in enumerate(batch, number + 1):
        if not isinstance(event, dict) or event.get("ph") != "X":
            continue
        category = event.get("cat") or ""
        facts = _Facts.read_arguments(event.get("args"))
        try:
            if category in builder.kinds:
                where = event.get("pid"), event.get("tid")
                begin, length = _ns(event["ts"]), _ns(event.get("dur", 0))
                builder.add(category, event.get("name"), begin, length, *where, facts)
            elif category not in SILENT:
                builder.pass_over(category, facts)
        except BAD_VALUE as error:
            builder.drop(category, at, error, event.get("pid"), facts)


def _add_structs(batch: list[Any], number: int, builder: _Builder) -> None:
    """Add the events that msgspec decoded."""
    kinds, add = builder.kinds, builder.add
    for at, event in enumerate(batch, number + 1):
        if event.ph != "X":
            continue
        try:
            if event.cat in kinds:
                begin, length = _ns_of_text(bytes(event.ts)), _ns_of_text(bytes(event.dur) or b"0")
                add(event.cat, event.name, begin, length, event.pid, event.tid, event.args)
            elif event.cat not in SILENT:
                builder.pass_over(event.cat, event.args)
        except BAD_VALUE as error:
            builder.drop(event.cat, at, error, event.pid, event.args)


class _Facts:
    """Arguments of one event that are read; None for those that it lacks."""

    __slots__ = (
        "block", "bytes", "correlation", "device", "grid", "rank", "registers", "shared", "stream",
    )  # fmt: skip
    NAMES: ClassVar[Mapping[str, str]] = {
        "registers": "registers per thread", "shared": "shared memory",
    }  # fmt: skip  # as the file spells those that it spells otherwise

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, None)

    @classmethod
    def read_arguments(cls, arguments: Any) -> _Facts:
        """Return the facts of an event's `args`, which may be anything."""
        facts = cls()
        if isinstance(arguments, dict):
            for name in cls.__slots__:
                setattr(facts, name, arguments.get(cls.NAMES.get(name, name)))
        return facts


def _fast_decoder() -> Callable[[str], list[Any]]:
    """Return a decoder of a list of events: by msgspec into objects that leave times as text, or
    without it by the standard library into dicts."""
    try:
        import msgspec
    except ImportError:
        plain_decode: Callable[[str], list[Any]] = json.JSONDecoder(parse_float=str).decode
        return plain_decode
    slots = [(name, Any, None) for name in _Facts.__slots__]
    facts = msgspec.defstruct("KinetoFacts", slots, rename=_Facts.NAMES, gc=False, frozen=True)
    fields: list[tuple[str, Any, Any]] = [(name, str, "") for name in ("ph", "cat", "name")]
    fields += [(name, msgspec.Raw, msgspec.Raw(b"")) for name in ("ts", "dur")]
    fields += [(name, int | str | float, "") for name in ("pid", "tid")]
    event = msgspec.defstruct("KinetoEvent", [*fields, ("args", facts, facts())], gc=False)
    decode: Callable[[str], list[Any]] = msgspec.json.Decoder(list[event]).decode  # type: ignore[valid-type]
    return decode


class _Builder:
    """Turns the events of a file into activities."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.trace = Trace("torch.profiler")
        self.trace.has_streams = True
        self.activities: Activities = self.trace.activities
        self.kinds = _kinds(source)
        self.names: dict[str, tuple[str, ActivityKind]] = {}  # as shown, and the kind of a call
        self.texts: dict[Any, str] = {}  # of streams, threads and devices
        self.processes: dict[Any, str] = {}  # by pid, rank and ordinal of a device
        self.passed: Counter[str] = Counter()  # events of categories that are not known
        self.on_device: Counter[str] = Counter()  # those of them that name a device

    def add(
        self, category: str, raw_name: Any, start: int, length: int, pid: Any, tid: Any, facts: Any
    ) -> None:
        """Add an event of a category in `kinds`; times in ns."""
        if (entry := self.names.get(raw_name)) is None:
            if not isinstance(raw_name, str):
                raise TypeError("the name of an event is not text")
            name = plain(raw_name)
            entry = self.names[raw_name] = name, kind_of_call(name)
        name, call = entry
        kind = self.kinds[category]
        correlation = facts.correlation
        if type(correlation) is not int:
            correlation = -1 if correlation is None else integer(correlation)
        if kind <= ActivityKind.SET:
            ordinal = pid if facts.device is None else facts.device
            stream = self._text(tid if facts.stream is None else facts.stream)
            moved = facts.bytes
            if type(moved) is not int:
                moved = -1 if moved is None else integer(moved)
            geometry = _geometry(facts) if kind == ActivityKind.KERNEL else NOWHERE
            where = self._text(ordinal), stream, self._process(pid, facts.rank, ordinal)
            end = start + length
            self.activities.add(kind, name, start, end, *where, correlation, geometry, moved)
        elif kind != ActivityKind.OP or self._wants(category, name):
            if kind == ActivityKind.CALL:
                kind = call
            else:
                correlation = -1
            where = "", self._text(tid), self._process(pid, facts.rank, 0)
            self.activities.add(kind, name, start, start + length, *where, correlation)

    def _process(self, pid: Any, rank: Any, ordinal: Any) -> str:
        """Return the process of an event. Tools that merge the files of several ranks write `[TP01]
        0` for pid 0 (SGLang), or `args.rank` and add a number to each pid (TraceLens): it is what
        the pid of a device's event exceeds its ordinal by."""
        key = pid, rank, ordinal
        try:
            number = self.processes.get(key)
        except TypeError:  # a value that no process can have
            return ""
        if number is None:
            number = self.processes[key] = self._new_process(pid, rank, ordinal)
        return number

    @staticmethod
    def _new_process(pid: Any, rank: Any, ordinal: Any) -> str:
        if type(rank) is int:
            return f"rank {rank}"
        if isinstance(pid, str) and (match := MERGED.match(pid)):
            return plain(match[1])
        if type(pid) is int and type(ordinal) is int:
            return str(pid - ordinal)
        return ""

    def pass_over(self, category: str, facts: Any) -> None:
        """Count an event of a category that is not read."""
        self.passed[category] += 1
        if facts.device is not None or DEVICE_WORDS.search(category):
            self.on_device[category] += 1

    def drop(self, category: str, number: int, error: Exception, pid: Any, facts: Any) -> None:
        """Leave out an event with a value that cannot be read."""
        kind = DEVICE if self.kinds.get(category, ActivityKind.OP) in WORK.values() else HOST
        words = f": {error}" if isinstance(error, ValueError | TypeError | OverflowError) else ""
        process = self._process(pid, facts.rank, pid if facts.device is None else facts.device)
        key = (process, facts.correlation) if kind == DEVICE else None
        self.trace.tally.drop(kind, UNREADABLE, f"event {number:,}{words}"[:120], key)

    def _wants(self, category: str, name: str) -> bool:
        """Return whether a host operation is kept."""
        if name == self.source.range_name:
            return True
        return self.source.keeps_operations and category.lower() in OPERATIONS

    def _text(self, value: Any) -> str:
        """Return a stream, thread or device as text."""
        text = self.texts.get(value)
        if text is None:
            text = self.texts[value] = plain(str(value))
        return text

    def finish(self, stream: JsonStream, number: int) -> None:
        """Add what the head of the file tells, and notes."""
        head, trace = stream.head, self.trace
        properties = head.get("deviceProperties")
        used = set(self.activities.devices.entries)
        for device in properties if isinstance(properties, list) else []:
            if isinstance(device, dict) and str(device.get("id")) in used:
                trace.devices[str(device["id"])] = device
        for name in used - {""} - set(trace.devices):
            trace.devices[name] = {}
        job = head.get("distributedInfo")
        rank = job.get("rank") if isinstance(job, dict) else None
        trace.rank = rank if type(rank) is int else None
        version = head.get("cupti_version", head.get("roctracer_version", ""))
        trace.version = str(version)
        if stream.is_cut:
            trace.notes.append("the file ends within its events; its end is missing")
        if not self.source.keeps_operations:
            trace.notes.append(
                "host operations were left out, as the file is large: classes of kernels are by "
                "the kernels' names, and gaps have no operation with them"
            )
        self._part_processes()
        for category, count in self.on_device.items():
            trace.tally.add_unread(f"category {plain(category)}", count, UNKNOWN_CATEGORY)
        others = ", ".join(f"{plain(name)} {n:,}" for name, n in self.passed.most_common(5))
        others = f" (categories that are not known: {others})" if others else ""
        if not self.activities:
            trace.notes.insert(0, f"none of its {number:,} events ran on a device{others}")
        elif not any(True for _ in self.activities.select(*WORK.values())):
            trace.notes.append(
                f"no event ran on a device: the profiler recorded only the host{others}"
            )

    def _part_processes(self) -> None:
        """Find the process of each activity, and give each its own devices where the file was
        merged from those of several ranks. Raises ReadError where that cannot be told."""
        table = self.activities
        texts = {*table.processes.entries, *(text for text, _ in self.trace.tally.lost_work)}
        offsets = {text for text in texts if text.lstrip("-").isdigit()}
        used = {table.process_numbers[i] for i in table.select(*WORK.values())}
        starts = sorted(int(text) for text in offsets & {table.processes.entries[n] for n in used})
        if starts and starts[-1] - starts[0] < LEAST_OFFSET:
            starts = []
        owners = dict.fromkeys(offsets, "")
        for text in offsets if starts else ():
            owners[text] = f"process {max((s for s in starts if s <= int(text)), default=0)}"
        if not starts:
            self._refuse_mixed_ids()
        tally = self.trace.tally
        tally.lost_work = {(owners.get(text, text), number) for text, number in tally.lost_work}
        for i, number in enumerate(table.process_numbers):
            text = table.processes.entries[number]
            table.process_numbers[i] = table.processes[owners.get(text, text)]
        self.trace.part_devices_by_process()

    def _refuse_mixed_ids(self) -> None:
        """Raise ReadError where launches of two processes have one correlation id, and nothing
        tells which of them a kernel is of."""
        table = self.activities
        callers: dict[int, int] = {}
        for i in table.select(ActivityKind.CALL):
            process = table.process_numbers[i]
            if (
                table.correlations[i] > 0
                and (callers.setdefault(table.correlations[i], process) != process)
                and table.processes.entries[process].lstrip("-").isdigit()
            ):
                self.source.place = ""
                self.source.fail(
                    "launches of several processes have the same correlation ids, and no kernel "
                    "tells its process",
                    "read the files from before they were merged",
                )


def _kinds(source: Source) -> dict[str, ActivityKind]:
    """Return the kind of each category that is kept, also as older files write it: `Kernel`."""
    kinds = {**WORK, **dict.fromkeys(CALLS, ActivityKind.CALL)}
    kinds |= dict.fromkeys(RANGES, ActivityKind.RANGE)
    if source.keeps_operations or source.range_name is not None:
        kinds |= dict.fromkeys(OPERATIONS, ActivityKind.OP)
    if source.range_name is not None:
        kinds |= dict.fromkeys(FUNCTIONS, ActivityKind.OP)
    return {spelt: kind for name, kind in kinds.items() for spelt in (name, name.capitalize())}


UNKNOWN_CATEGORY = "name their meaning in an issue of the workbench, or record other activities"
LEAST_OFFSET = 1000  # between the pids of merged ranks; ordinals of devices differ by less
MERGED = re.compile(r"\[([^\]]+)\]")  # before the pid


def _ns_of_text(text: bytes) -> int:
    """Return a time of an event in ns, from its text in the file."""
    if text[-4:-3] == b"." and text[:-4].isdigit() and text[-3:].isdigit():  # as Kineto writes
        return int(text[:-4] + text[-3:])
    return _ns(text.decode())


def _ns(value: Any) -> int:
    """Return a time of an event in ns."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError("a time is not a number")
    if isinstance(value, str):
        value = value.strip().strip('"')
        if value.lstrip("-").isdigit():
            return int(value) * 1000
    return ns_of_us(value)


def _geometry(facts: Any) -> Geometry:
    return Geometry(
        _three(facts.grid), _three(facts.block), _whole(facts.registers), _whole(facts.shared)
    )


def _three(value: Any) -> tuple[int, int, int] | None:
    if isinstance(value, list) and len(value) == 3:
        x, y, z = value
        if type(x) is type(y) is type(z) is int:
            return x, y, z
        return integer(x), integer(y), integer(z)
    return None


def _whole(value: Any) -> int | None:
    return value if value is None or type(value) is int else integer(value)


READER = TraceReader("trace of torch.profiler", sniff, read, is_whole=True, may_be_cut=True)
