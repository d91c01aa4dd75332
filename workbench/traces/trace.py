"""The nouns of a profiler's output: traces, activities, dispatches, counters, totals, records.

Times are whole nanoseconds of the file's own clock. Activities are stored in columns, about 50
bytes each, with every name once, so that a million of them fit into memory.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from workbench.data.intervals import Intervals, union
from workbench.data.name_table import NameTable
from workbench.data.record_tally import RecordTally
from workbench.data.units import amount


class ActivityKind(IntEnum):
    """Kinds of an activity. KERNEL, COPY and SET are work of a device, the others of the host."""

    KERNEL = 0
    COPY = 1
    SET = 2
    SYNC = 3  # the host waits for the device
    CALL = 4  # any other call of the runtime or driver
    OP = 5  # an operation of a framework
    RANGE = 6  # a range that the user named


WORK = (ActivityKind.KERNEL, ActivityKind.COPY, ActivityKind.SET)

SYNCHRONIZE = re.compile(
    r"\w*(?:Device|Stream|Event)Synchronize|cu\w*Synchronize"
    r"|(?:ur|pi|ze)[A-Z]\w*(?:Wait|Finish|Synchronize)"  # of SYCL and Level Zero
)
LAUNCH = re.compile(r"\w*(?:Launch\w*Kernel|KernelLaunch|GraphLaunch|EnqueueGraph)")


def is_launch(call: str) -> bool:
    """Return whether a call of a runtime or driver starts kernels or replays a graph."""
    return LAUNCH.match(call) is not None


def kind_of_call(name: str) -> ActivityKind:
    """Return SYNC for a call that waits for the device, and CALL for any other."""
    return ActivityKind.SYNC if SYNCHRONIZE.match(name) else ActivityKind.CALL


class Geometry(NamedTuple):
    """Size and resources of a launch; None where the file does not tell."""

    grid: tuple[int, int, int] | None = None  # in blocks
    block: tuple[int, int, int] | None = None  # in threads
    registers: int | None = None  # per thread
    shared_bytes: int | None = None  # per block


class Activity(NamedTuple):
    """One interval on a timeline."""

    kind: ActivityKind
    name: str
    start: int  # ns
    end: int  # ns
    device: str  # empty for the host
    lane: str  # stream, queue or thread
    process: str
    correlation: int  # of a launch and what it started; -1 without one
    geometry: Geometry
    bytes: int  # moved; -1 where the file does not tell

    @property
    def duration(self) -> int:
        """Length in ns."""
        return self.end - self.start


NOWHERE = Geometry()
LEAST, MOST = -(2**63), 2**63 - 1


class Activities(Sequence[Activity]):
    """Activities in columns, in the order in which they were added."""

    def __init__(self) -> None:
        self.kinds = array("b")
        self.starts, self.ends = array("q"), array("q")
        self.correlations, self.bytes = array("q"), array("q")
        self.name_numbers, self.device_numbers = array("i"), array("i")
        self.lane_numbers, self.process_numbers = array("i"), array("i")
        self.geometry_numbers = array("i")
        self.names, self.devices, self.lanes = NameTable(), NameTable(), NameTable()
        self.processes, self.geometries = NameTable(), NameTable()

    def add(
        self,
        kind: ActivityKind,
        name: str,
        start: int,
        end: int,
        device: str = "",
        lane: str = "",
        process: str = "",
        correlation: int = -1,
        geometry: Geometry = NOWHERE,
        moved: int = -1,
    ) -> None:
        """Add one activity; times in ns, `moved` in bytes. Impossible times are sorted out later,
        by `plausible`. Raises OverflowError for a number that 64 bits do not hold."""
        low, high = (start, end) if start <= end else (end, start)
        if not (low >= LEAST and high <= MOST and LEAST <= correlation <= MOST >= moved >= LEAST):
            raise OverflowError("a number is larger than 64 bits hold")
        self.kinds.append(kind)
        self.starts.append(start)
        self.ends.append(end)
        self.correlations.append(correlation)
        self.bytes.append(moved)
        self.name_numbers.append(self.names[name])
        self.device_numbers.append(self.devices[device])
        self.lane_numbers.append(self.lanes[lane])
        self.process_numbers.append(self.processes[process])
        self.geometry_numbers.append(self.geometries[geometry])

    def extend(self, others: Activities) -> None:
        """Add all activities of another table."""
        for activity in others:
            self.add(*activity)

    def remove(self, numbers: Collection[int]) -> None:
        """Leave out some activities; those that follow them get other numbers."""
        for name, column in list(vars(self).items()):
            if isinstance(column, array):
                rest = (value for index, value in enumerate(column) if index not in numbers)
                setattr(self, name, array(column.typecode, rest))

    def __len__(self) -> int:
        return len(self.kinds)

    def __getitem__(self, index: Any) -> Any:
        """Return one activity by its number."""
        return Activity(
            ActivityKind(self.kinds[index]),
            self.names.entries[self.name_numbers[index]],
            self.starts[index],
            self.ends[index],
            self.devices.entries[self.device_numbers[index]],
            self.lanes.entries[self.lane_numbers[index]],
            self.processes.entries[self.process_numbers[index]],
            self.correlations[index],
            self.geometries.entries[self.geometry_numbers[index]],
            self.bytes[index],
        )

    def __iter__(self) -> Iterator[Activity]:
        return (self[index] for index in range(len(self)))

    def name(self, index: int) -> str:
        """Return the name of an activity; empty for -1."""
        return "" if index < 0 else self.names.entries[self.name_numbers[index]]

    def length(self, index: int) -> int:
        """Return the duration of an activity in ns."""
        return self.ends[index] - self.starts[index]

    def thread(self, index: int) -> tuple[int, int]:
        """Return the numbers of the process and the lane of an activity."""
        return self.process_numbers[index], self.lane_numbers[index]

    def kernels(self, order: Iterable[int]) -> list[int]:
        """Return those of some activities that are kernels."""
        return [index for index in order if self.kinds[index] == ActivityKind.KERNEL]

    def union(self, numbers: Iterable[int]) -> Intervals:
        """Return the time in which at least one of some activities lasted."""
        return union((self.starts[i], self.ends[i]) for i in numbers)

    def select(self, *kinds: ActivityKind) -> Iterator[int]:
        """Yield the numbers of the activities of some kinds, in the order of the file."""
        kind_numbers = frozenset(map(int, kinds))
        return (index for index, kind in enumerate(self.kinds) if kind in kind_numbers)

    def launches(self) -> array[int]:
        """Return, for each activity, the number of the call that launched it; -1 where none is in
        the file. Many may share one call, as those of a graph do."""
        calls: dict[tuple[int, int], int] = {}
        for index in self.select(ActivityKind.CALL, ActivityKind.SYNC):
            if self.correlations[index] >= 0:
                key = (self.process_numbers[index], self.correlations[index])
                calls.setdefault(key, index)
        result = array("q", [-1]) * len(self)
        for index in self.select(*WORK):
            key = (self.process_numbers[index], self.correlations[index])
            result[index] = calls.get(key, -1)
        return result


State = Literal["ok", "absent", "refused"]
Scope = Literal["launch", "summary", "sample", "instruction"]


class CounterValue(NamedTuple):
    """One number of the tool: by its own name, in its own unit."""

    name: str
    value: float | None  # None unless the state is ok
    unit: str = ""
    text: str = ""  # as the file has it
    state: State = "ok"
    scope: Scope = "launch"

    @classmethod
    def read(cls, name: str, value: float | None, text: str, unit: str = "") -> CounterValue:
        """Return a counter that a file has: absent where it has no value of it."""
        return cls(name, value, unit, text, "absent" if value is None else "ok")

    @property
    def exact(self) -> float | None:
        """Value, or None where it is not a finite number."""
        return self.value if self.value is not None and math.isfinite(self.value) else None


@dataclass
class InstructionTable:
    """Counters by instruction: one row an instruction, with the heads of the tool."""

    heads: tuple[str, ...]  # of `values`
    addresses: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    places: list[str] = field(default_factory=list)  # file:line, or empty
    values: list[tuple[float | None, ...]] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)  # text of files, where the tool kept it

    def add(self, address: int, text: str, place: str, values: Iterable[float | None]) -> None:
        """Add one instruction."""
        self.addresses.append(address)
        self.texts.append(text)
        self.places.append(place)
        self.values.append(tuple(values))

    def total(self, head: str) -> float:
        """Return the sum of a column over all instructions; 0 where there is none."""
        if head not in self.heads:
            return 0.0
        at = self.heads.index(head)
        return math.fsum(row[at] or 0.0 for row in self.values)


@dataclass
class Dispatch:
    """One execution of a kernel, with the counters that the tool took."""

    name: str
    id: str = ""
    device: str = ""
    lane: str = ""
    geometry: Geometry = NOWHERE
    duration_ns: float | None = None
    counters: dict[str, CounterValue] = field(default_factory=dict)  # by name
    instructions: InstructionTable | None = None
    opcodes: dict[str, float] = field(default_factory=dict)  # executions by opcode
    notes: list[str] = field(default_factory=list)  # the tool's own advice

    @property
    def is_counted(self) -> bool:
        """Whether the tool counted anything: of the launch, or of its instructions."""
        return bool(self.counters or self.opcodes) or self.instructions is not None


@dataclass(frozen=True)
class Total:
    """Sums over all activities of one name, from files that hold no single ones."""

    kind: ActivityKind
    name: str
    count: int
    total_ns: float
    device: str = ""
    low_ns: float | None = None  # the least, or the lower end of an interval of confidence
    high_ns: float | None = None
    counters: tuple[CounterValue, ...] = ()


@dataclass(frozen=True)
class CheckerRecord:
    """One error or hazard that a checker printed."""

    level: str  # error, warning
    text: str
    kernel: str = ""
    offset: int | None = None  # of the instruction, in bytes
    file: str = ""
    line: int | None = None
    thread: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    bytes: int | None = None  # size of the access


@dataclass
class CheckerResult:
    """The result of a checker: its records, and the count of its summary line, which decides where
    there is one."""

    tool: str = ""  # memcheck, racecheck, ...; empty where the file does not tell
    records: list[CheckerRecord] = field(default_factory=list)
    errors: int | None = None  # of the summary; None without one
    not_printed: int = 0
    warnings: int = 0  # of the summary of racecheck: hazards that it found as well

    @property
    def verdict(self) -> Literal["pass", "fail", "inconclusive"]:
        """Verdict of the summary line. Without one: fail if an error was printed, else
        inconclusive."""
        if self.errors is None:
            return "fail" if self._printed_errors else "inconclusive"
        return "fail" if self.errors or self.warnings else "pass"

    @property
    def counts_text(self) -> str:
        """What the summary line counts: `0 errors, 1 warning`; without one, what was printed."""
        if self.errors is None:
            printed = self._printed_errors
            words = f"{amount(printed, 'error')} printed, " if printed else ""
            return f"{words}no summary line"
        warnings = f", {amount(self.warnings, 'warning')}" if self.warnings else ""
        return amount(self.errors, "error") + warnings

    @property
    def _printed_errors(self) -> int:
        return sum(record.level == "error" for record in self.records)


@dataclass(frozen=True)
class TraceFile:
    """A file that was read: its base name, its size in bytes and its hash."""

    name: str
    bytes: int
    sha256: str


@dataclass
class Trace:
    """The content of the files of one run of one tool."""

    tool: str
    version: str = ""
    title: str = ""  # of the format
    files: list[TraceFile] = field(default_factory=list)
    devices: dict[str, dict[str, Any]] = field(default_factory=dict)  # properties by device
    activities: Activities = field(default_factory=Activities)
    dispatches: list[Dispatch] = field(default_factory=list)
    totals: list[Total] = field(default_factory=list)
    checker: CheckerResult | None = None
    tables: dict[str, Any] = field(default_factory=dict)  # other facts of the file, by name
    rank: int | None = None  # of the process in a distributed job, where the file tells
    has_streams: bool = False  # lanes of kernels are streams, which run one after the other
    notes: list[str] = field(default_factory=list)  # what was left out or assumed, and why
    tally: RecordTally = field(default_factory=RecordTally)  # of what could not be used

    @property
    def vendor(self) -> str:
        """Maker of the devices: `amd`, `nvidia`, `apple`, or empty where nothing tells."""
        names = " ".join(str(device.get("name", "")) for device in self.devices.values()).lower()
        for vendor, words in VENDORS.items():
            if any(word in names for word in words):
                return vendor
        for start, vendor in (("hip", "amd"), ("cuda", "nvidia")):
            if any(name.startswith(start) for name in self.activities.names.entries):
                return vendor
        return ""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show."""
        return not (
            self.activities or self.dispatches or self.totals or self.checker or self.tables
        )

    def list_devices(self) -> None:
        """Enter the devices that have work on the timeline, each with the facts that are known."""
        used = sorted(set(self.activities.devices.entries) - {""})
        self.devices = {name: self.devices.get(name, {}) for name in used}

    def name_devices(self, title: str) -> None:
        """Put a title before the names of processes and devices: each recording calls its first
        device 0, and counts its correlation ids from 1."""

        def full_title(name: str) -> str:
            return f"{title}, {name}" if name else ""

        self.devices = {full_title(name): facts for name, facts in self.devices.items()}
        self.activities.devices.rename(full_title)
        self.activities.processes.rename(lambda name: f"{title}, {name}" if name else title)
        self.tally.lost_work = {
            (f"{title}, {name}" if name else title, n) for name, n in self.tally.lost_work
        }
        for dispatch in self.dispatches:
            dispatch.device = full_title(dispatch.device)
        self.totals = [replace(total, device=full_title(total.device)) for total in self.totals]

    def part_devices_by_process(self, note: str = "") -> None:
        """Give each process a device of its own where several use one ordinal, which names a
        device within its process only. A note says so, `note` if one is given."""
        table = self.activities
        users: dict[int, set[int]] = {}
        for i in table.select(*WORK):
            users.setdefault(table.device_numbers[i], set()).add(table.process_numbers[i])
        shared = {number for number, processes in users.items() if len(processes) > 1}
        if not shared:
            return
        for i in table.select(*WORK):
            if (number := table.device_numbers[i]) in shared:
                ordinal = table.devices.entries[number]
                name = f"{table.processes.entries[table.process_numbers[i]]}, {ordinal}"
                self.devices.setdefault(name, self.devices.get(ordinal, {}))
                table.device_numbers[i] = table.devices[name]
        ordinals = sorted(table.devices.entries[number] for number in shared)
        for ordinal in ordinals:
            self.devices.pop(ordinal, None)
        self.notes.append(
            note
            or f"several processes use a device {', '.join(ordinals)}; the file does not say which "
            "GPU that is, so each process has one of its own"
        )

    def join(self, other: Trace) -> None:
        """Add what another file of the same run holds."""
        self.version = self.version or other.version
        self.files += other.files
        self.has_streams |= other.has_streams
        self.tally.join(other.tally)
        for name, properties in other.devices.items():
            self.devices.setdefault(name, {}).update(properties)
        self.activities.extend(other.activities)
        self.totals += other.totals
        self.tables |= other.tables
        self.notes += [note for note in other.notes if note not in self.notes]
        self._join_dispatches(other.dispatches)
        if other.checker is not None:
            self.checker = _join_results(self.checker, other.checker)

    def _join_dispatches(self, others: Sequence[Dispatch]) -> None:
        if _is_source_page(others) and _same_kernels(self.dispatches, others):
            for mine, page in zip(self.dispatches, others, strict=True):
                mine.instructions = mine.instructions or page.instructions
            return
        if _is_source_page(self.dispatches) and _same_kernels(self.dispatches, others):
            for page, other in zip(self.dispatches, others, strict=True):
                other.instructions = other.instructions or page.instructions
            self.dispatches = list(others)
            return
        dispatches = {(d.id, d.name): d for d in self.dispatches if d.id}
        for new in others:
            old = dispatches.get((new.id, new.name))
            if old is None:
                self.dispatches.append(new)
                continue
            old.counters = new.counters | old.counters
            old.instructions = old.instructions or new.instructions
            old.opcodes = old.opcodes or new.opcodes
            old.notes += [note for note in new.notes if note not in old.notes]
            if old.duration_ns is None:
                old.duration_ns = new.duration_ns
            if old.geometry == NOWHERE:
                old.geometry = new.geometry


def _is_source_page(dispatches: Sequence[Dispatch]) -> bool:
    """Return whether these are of a page of instructions alone, which numbers no launch."""
    return bool(dispatches) and all(
        d.instructions is not None and not d.id and not d.counters for d in dispatches
    )


def _same_kernels(some: Sequence[Dispatch], others: Sequence[Dispatch]) -> bool:
    """Return whether two different pages of one report have the same kernels in the same order."""
    if _is_source_page(some) == _is_source_page(others):
        return False
    return [d.name for d in some] == [d.name for d in others]


VENDORS = {
    "nvidia": ("nvidia", "geforce"),
    "amd": ("amd", "gfx", "instinct", "radeon"),
    "apple": ("apple",),
}


def _join_results(result: CheckerResult | None, more: CheckerResult) -> CheckerResult:
    """Return the result of a log and an XML file of one run: the log has the summary."""
    if result is None:
        return more
    records = max(result.records, more.records, key=len)
    both = result.errors is not None and more.errors is not None
    errors = (result.errors or 0) + (more.errors or 0) if both else result.errors
    return CheckerResult(
        result.tool or more.tool,
        records if not both else result.records + more.records,
        errors if errors is not None else more.errors,
        result.not_printed + more.not_printed,
        result.warnings + more.warnings,
    )


def clock_step(activities: Activities) -> int | None:
    """Return the least positive difference between starts and ends of a device's activities, in
    ns; None where there are fewer than two times."""
    times = sorted(
        {t for i in activities.select(*WORK) for t in (activities.starts[i], activities.ends[i])}
    )
    return min((b - a for a, b in pairwise(times)), default=None)


def plain(name: str) -> str:
    """Return a name without the characters that a terminal would obey or nobody sees, and with
    plain spaces."""
    if name.isprintable():
        return name
    return "".join(c if c.isprintable() else " " if c.isspace() and c > " " else "" for c in name)
