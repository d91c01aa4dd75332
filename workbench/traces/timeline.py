"""Window, utilisation, gaps by cause, host waits and synchronisation of one device's timeline.

All are pure functions of a trace. Devices are never summed, nor are streams: work that runs at the
same time counts once.
"""

from __future__ import annotations

import re
import statistics
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from workbench.data.intervals import Intervals, clip, difference, gaps, intersection, intervals
from workbench.traces.trace import (
    LEAST,
    WORK,
    Activities,
    Activity,
    ActivityKind,
    Trace,
    clock_step,
)

SHORT_NS = 1000  # a gap this short is the device's own step from one kernel to the next

Cause = Literal["host wait", "step", "dependency", "unknown"]


@dataclass(frozen=True)
class Gap:
    """Time in which a device had no work, and the activity that ended it."""

    start: int  # ns
    end: int  # ns
    cause: Cause
    next: int  # number of the activity that ends it

    @property
    def duration(self) -> int:
        """Length in ns."""
        return self.end - self.start


@dataclass(frozen=True)
class KernelRow:
    """All kernels of one name on one device."""

    name: str
    device: str
    count: int
    total_ns: float
    low_ns: float | None
    high_ns: float | None

    @property
    def mean_ns(self) -> float:
        """Mean duration in ns; 0 without a kernel."""
        return self.total_ns / self.count if self.count else 0.0


@dataclass(frozen=True)
class DeviceTimes:
    """The timeline of one device: the numbers of its activities in order of start, and the unions
    over them."""

    device: str
    order: Sequence[int]  # numbers of activities
    start: int  # of the window, ns
    end: int
    busy: Intervals  # kernels, copies and sets
    kernels: Intervals  # kernels alone
    gaps: tuple[Gap, ...]
    sync: Intervals  # the host waits, within the window
    step: int | None  # of the clock, ns
    kernel_count: int
    kernel_sum: int  # ns, of all kernels
    copied_bytes: int | None  # None where no copy tells
    copies: Intervals
    copy_count: int
    launches: int  # kernels whose launch is in the file
    left_out: int  # activities without a launch in the file, outside of the window
    hosts: frozenset[int] = frozenset()  # numbers of the processes that used it; empty for all

    def is_of(self, table: Activities, index: int) -> bool:
        """Return whether an activity of the host is of a process that used the device."""
        return not self.hosts or table.process_numbers[index] in self.hosts

    @property
    def window(self) -> int:
        """Length of the window in ns."""
        return self.end - self.start

    @property
    def utilisation(self) -> float:
        """Share of the window in which the device had work."""
        return self.busy.length / self.window if self.window else 1.0

    @property
    def launch_efficiency(self) -> float:
        """Share of the window in which a kernel ran."""
        return self.kernels.length / self.window if self.window else 1.0

    @property
    def sync_exposed(self) -> Intervals:
        """Time in which the host waited and the device had no work."""
        return difference(self.sync, self.busy)

    @property
    def sync_unqueued(self) -> Intervals:
        """The part of `sync_exposed` in which no work was queued: without the steps between kernels
        that were launched before, such as those of a graph."""
        queued = ("step", "dependency")
        empty = intervals((g.start, g.end) for g in self.gaps if g.cause not in queued)
        return intersection(self.sync, empty)

    @property
    def copies_exposed(self) -> Intervals:
        """Time of copies beside which no kernel ran."""
        return difference(self.copies, self.kernels)

    def idle(self) -> dict[Cause, int]:
        """Return idle time in ns by cause; `unknown` only where the file lacks a launch."""
        result: dict[Cause, int] = {"host wait": 0, "step": 0, "dependency": 0}
        for gap in self.gaps:
            result[gap.cause] = result.get(gap.cause, 0) + gap.duration
        return result

    def gap_statistics(self) -> tuple[float, float, float] | None:
        """Return mean, median and 95th percentile of the gaps in ns; None without a gap."""
        lengths = sorted(gap.duration for gap in self.gaps)
        if not lengths:
            return None
        at = min(len(lengths) - 1, round(0.95 * (len(lengths) - 1)))
        return statistics.fmean(lengths), statistics.median(lengths), lengths[at]


def devices(trace: Trace) -> list[str]:
    """Return the devices that have work on the timeline."""
    table = trace.activities
    numbers = {table.device_numbers[i] for i in table.select(*WORK)}
    return sorted(table.devices.entries[number] for number in numbers)


def device_times(
    trace: Trace,
    device: str,
    *,
    launched_only: bool = True,
    within: Intervals | None = None,
    launches: array[int] | None = None,
) -> DeviceTimes:
    """Return the timeline of a device.

    Args:
        launched_only: leave out what began before the first work whose launch is in the file: it
            was launched before the profiler began, so the start of the window says nothing.
        within: host ranges; then work alone that was launched, or without launches ran, in them.
        launches: of `trace.activities.launches()`, if known.

    Raises ValueError where the device has no such work.
    """
    table = trace.activities
    launches = table.launches() if launches is None else launches
    device_number = table.devices.entries.index(device) if device in table.devices.entries else -1
    numbers = [i for i in table.select(*WORK) if table.device_numbers[i] == device_number]
    launched = sum(launches[i] >= 0 for i in table.kernels(numbers))
    indices = numbers
    if launched_only:
        first = min((table.starts[i] for i in numbers if launches[i] >= 0), default=LEAST)
        indices = [i for i in numbers if launches[i] >= 0 or table.starts[i] >= first]
    left_out = len(numbers) - len(indices)
    if within is not None:
        indices = _select_inside(table, indices, launches, within)
    if not indices:
        raise ValueError(f"device {device} has no work")
    indices.sort(key=lambda i: (table.starts[i], table.ends[i]))
    return _times(trace, device, indices, launches, launched, left_out)


def _select_inside(
    table: Activities, indices: list[int], launches: array[int], within: Intervals
) -> list[int]:
    """Return the activities that were launched in host ranges, or began in them."""

    def is_inside(index: int) -> bool:
        at = launches[index]
        time = table.starts[at if at >= 0 else index]
        place = bisect_right(within.starts, time) - 1
        return place >= 0 and time < within.ends[place]

    return [index for index in indices if is_inside(index)]


def _times(
    trace: Trace, device: str, order: list[int], launches: array[int], launched: int, left_out: int
) -> DeviceTimes:
    table = trace.activities

    def time_of(numbers: Sequence[int]) -> Intervals:
        return intervals((table.starts[i], table.ends[i]) for i in numbers)

    kernels = table.kernels(order)
    copies = [i for i in order if table.kinds[i] == ActivityKind.COPY]
    moved = [table.bytes[i] for i in copies if table.bytes[i] >= 0]
    step = clock_step(table)
    busy = time_of(order)
    # busy and idle time make up the window: work without a length has no part in it
    start, end = (busy.starts[0], busy.ends[-1]) if busy.starts else (table.starts[order[0]],) * 2
    hosts = _hosts(table, order)
    waits = table.union(
        i for i in table.select(ActivityKind.SYNC) if not hosts or table.process_numbers[i] in hosts
    )
    return DeviceTimes(
        device=device,
        order=order,
        start=start,
        end=end,
        busy=busy,
        kernels=time_of(kernels),
        gaps=tuple(_gaps(table, order, busy, launches, step)),
        sync=clip(waits, start, end),
        step=step,
        kernel_count=len(kernels),
        kernel_sum=sum(map(table.length, kernels)),
        copied_bytes=sum(moved) if moved else None,
        copies=time_of(copies),
        copy_count=len(copies),
        launches=launched,
        left_out=left_out,
        hosts=hosts,
    )


def _hosts(table: Activities, order: Sequence[int]) -> frozenset[int]:
    """Return the processes that used a device; empty where no other activity names one of them."""
    work = frozenset(table.process_numbers[i] for i in order)
    others = set(ActivityKind) - set(WORK)
    is_named = any(table.process_numbers[i] in work for i in table.select(*others))
    return work if is_named else frozenset()


def _gaps(
    table: Activities, order: Sequence[int], busy: Intervals, launches: array[int], step: int | None
) -> list[Gap]:
    """Return the gaps of a union, each with its cause and the activity that ended it."""
    result: list[Gap] = []
    at = 0
    for start, end in gaps(busy):
        while table.starts[order[at]] < end:
            at += 1
        index = order[at]
        cause = _cause(table, index, launches[index], start, end, step)
        result.append(Gap(start, end, cause, index))
    return result


def _cause(
    table: Activities, index: int, launch: int, start: int, end: int, step: int | None
) -> Cause:
    """Return the reason of a gap: its end was launched after it began, or it is one step of the
    device, or the device waited for something else. Unknown without a launch in the file."""
    if launch >= 0 and table.starts[launch] > start:
        return "host wait"
    if end - start < max(SHORT_NS, step or 0):
        return "step"
    return "dependency" if launch >= 0 else "unknown"


def kernel_rows(trace: Trace, devices: Sequence[DeviceTimes] = ()) -> list[KernelRow]:
    """Return one row for each kernel and device, the longest total first. Kernels of a timeline
    come first, else dispatches with a duration, else totals of the file."""
    groups: dict[tuple[str, str], list[float]] = {}
    for times in devices:
        for index in times.order:
            activity: Activity = trace.activities[index]
            if activity.kind == ActivityKind.KERNEL:
                groups.setdefault((activity.name, times.device), []).append(activity.duration)
    if not groups:
        for dispatch in trace.dispatches:
            if dispatch.duration_ns is not None:
                key = (dispatch.name, dispatch.device)
                groups.setdefault(key, []).append(dispatch.duration_ns)
    rows = [
        KernelRow(name, device, len(spent), sum(spent), min(spent), max(spent))
        for (name, device), spent in groups.items()
    ]
    if not rows:
        rows = [
            KernelRow(t.name, t.device, t.count, t.total_ns, t.low_ns, t.high_ns)
            for t in trace.totals
            if t.kind == ActivityKind.KERNEL
        ]
    return sorted(rows, key=lambda row: (-row.total_ns, row.name, row.device))


NUMBER = re.compile(r"#\d+")


def range_name(name: str) -> str:
    """Return the name of a range without the number of its step: `ProfilerStep#`."""
    return NUMBER.sub("#", name)


def named_ranges(trace: Trace, name: str) -> Intervals:
    """Return the union of the host ranges and operations of a name; `ProfilerStep#` is the name of
    all steps."""
    table = trace.activities
    numbers = {
        n for n, entry in enumerate(table.names.entries) if name in (entry, range_name(entry))
    }
    hosts = table.select(ActivityKind.RANGE, ActivityKind.OP)
    return table.union(i for i in hosts if table.name_numbers[i] in numbers)
