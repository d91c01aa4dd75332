"""The host beside a device's timeline: operations that launched kernels, reasons of long gaps,
ranges and steps. All are pure functions of a trace."""

import heapq
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from workbench.data.intervals import Intervals, clip, difference, intersection, intervals, union
from workbench.data.record import group_by
from workbench.traces.timeline import DeviceTimes, Gap, range_name
from workbench.traces.trace import Activities, ActivityKind, Trace

HOST = (ActivityKind.SYNC, ActivityKind.CALL, ActivityKind.OP, ActivityKind.RANGE)
LONGEST = 10  # gaps that are looked into


def operations_of(table: Activities, launches: Sequence[int], numbers: Iterable[int]) -> list[int]:
    """Return, for each activity of `numbers`, the innermost host operation in which it was
    launched, by thread; -1 where the file has none."""
    indices = list(numbers)
    threads = group_by(table.select(ActivityKind.OP), table.thread)
    calls = group_by({launches[i] for i in indices if launches[i] >= 0}, table.thread)
    parents: dict[int, int] = {}
    for where in calls.keys() & threads.keys():
        parents.update(_innermost(table, calls[where], threads[where]))
    return [parents.get(launches[i], -1) for i in indices]


def copy_calls(trace: Trace, times: DeviceTimes, launches: Sequence[int]) -> Intervals:
    """Return the time that the host spends in copies, within the window: in the innermost
    operations that started them, or in the calls themselves where the file has no operation."""
    table = trace.activities
    copies = [i for i in times.order if table.kinds[i] == ActivityKind.COPY and launches[i] >= 0]
    inside = operations_of(table, launches, copies)
    hosts = {o if o >= 0 else launches[i] for i, o in zip(copies, inside, strict=True)}
    return clip(table.union(hosts), times.start, times.end)


def copy_waits(trace: Trace, times: DeviceTimes, launches: Sequence[int]) -> Intervals:
    """Return the time in which the device idles for copies: while the host is in one, and a whole
    gap that begins then. A copy that the host waits for leaves nothing queued behind it, so what
    the host needs for its next launch is part of what the copy costs."""
    inside = copy_calls(trace, times, launches)
    idle = difference(intervals([(times.start, times.end)]), times.busy)
    whole = []
    for start, end in idle.pairs():
        before = bisect_right(inside.starts, start) - 1
        if before >= 0 and start < inside.ends[before]:
            whole.append((start, end))
    return union([*whole, *intersection(inside, idle).pairs()])


def _innermost(
    table: Activities, calls: Iterable[int], operations: Iterable[int]
) -> Iterator[tuple[int, int]]:
    """Yield each call with the innermost operation of its thread that holds its start. Operations
    of a thread are nested."""
    outer_first = sorted(operations, key=lambda i: (table.starts[i], -table.ends[i]))
    stack: list[int] = []
    at = 0
    for call in sorted(calls, key=lambda i: table.starts[i]):
        start = table.starts[call]
        while at < len(outer_first) and table.starts[outer_first[at]] <= start:
            stack.append(outer_first[at])
            at += 1
        while stack and table.ends[stack[-1]] <= start:
            stack.pop()
        if stack:
            yield call, stack[-1]


@dataclass(frozen=True)
class ExplainedGap:
    """A gap of a device, with the host's work in it, the launch that ended it, and what ran next.
    Names are empty where the file does not tell."""

    gap: Gap
    host: str  # the innermost work of the host that lasted for most of the gap
    host_share: float  # of the gap, 0 to 1
    launch: str  # call that launched `next`
    next: str


def longest_gaps(
    trace: Trace, times: DeviceTimes, launches: Sequence[int], most: int = LONGEST
) -> list[ExplainedGap]:
    """Return the longest gaps of a device, the longest first."""
    table = trace.activities
    chosen = heapq.nsmallest(most, times.gaps, key=lambda gap: (-gap.duration, gap.start))
    beside = _host_work(table, chosen, times)
    names = table.name
    return [
        ExplainedGap(gap, names(index), share, names(launches[gap.next]), names(gap.next))
        for gap, (index, share) in zip(chosen, beside, strict=True)
    ]


def _host_work(
    table: Activities, gaps: Sequence[Gap], times: DeviceTimes
) -> list[tuple[int, float]]:
    """Return, for each gap, the shortest work of the host that covers at least half of it, else
    that which covers most; and its share of the gap. -1 and 0 without any."""
    best: list[tuple[tuple[float, ...], int, float]] = [((0.0,), -1, 0.0) for _ in gaps]
    order = sorted(range(len(gaps)), key=lambda n: gaps[n].start)
    ends = [gaps[n].end for n in order]
    for index in table.select(*HOST):
        start, end = table.starts[index], table.ends[index]
        if not times.is_of(table, index):
            continue
        for n in order[bisect_right(ends, start) :]:
            gap = gaps[n]
            if gap.start >= end:
                break
            share = (min(end, gap.end) - max(start, gap.start)) / gap.duration
            rank = (1.0, -float(end - start)) if share >= 0.5 else (0.0, share)
            if share > 0 and (best[n][1] < 0 or rank > best[n][0]):
                best[n] = rank, index, share
    return [(index, share) for _, index, share in best]


@dataclass(frozen=True)
class RangeRow:
    """All host ranges of one name, numbers in it left out: `ProfilerStep#`. Times of the device are
    of the work that was launched in them. A range lasts until that work has ended too, and begins
    no earlier than the one before it ended: in an asynchronous program the host ends its step long
    before the device (after pytorch/kineto PR 108)."""

    name: str
    count: int
    median_ns: float  # of one range
    low_ns: int
    high_ns: int
    kernels: int  # in all of them
    busy_ns: int  # the device had work, in all of them
    window_ns: int  # first start to last end of that work, summed over the ranges


def range_rows(trace: Trace, times: DeviceTimes | None, launches: Sequence[int]) -> list[RangeRow]:
    """Return a row for each name of host ranges, in the order of the file; without a device those
    of the host alone."""
    table = trace.activities
    ranges = table.select(ActivityKind.RANGE)
    own = [i for i in ranges if times is None or times.is_of(table, i)]
    groups = group_by(own, lambda i: range_name(table.name(i)))
    moments = _launch_moments(table, times, launches) if times else None
    return [_range_row(name, table, indices, moments) for name, indices in groups.items()]


def _range_row(
    name: str, table: Activities, indices: Sequence[int], moments: Sequence[tuple[int, int]] | None
) -> RangeRow:
    ordered = sorted(indices, key=lambda i: table.starts[i])
    each = _work_by_range(table, ordered, moments) if moments is not None else []
    lengths = _range_lengths(table, ordered, each)
    unions = [intervals(sorted((table.starts[i], table.ends[i]) for i in work)) for work in each]
    return RangeRow(
        name,
        len(indices),
        statistics.median(lengths),
        min(lengths),
        max(lengths),
        sum(table.kinds[i] == ActivityKind.KERNEL for work in each for i in work),
        sum(union.length for union in unions),
        sum(union.ends[-1] - union.starts[0] for union in unions if union.starts),
    )


def _range_lengths(
    table: Activities, ordered: Sequence[int], work: Sequence[Sequence[int]]
) -> list[int]:
    """Return the length of each range in ns: from the later of its start and the end of the one
    before it on its thread, to the later of its end and that of the `work` that it launched."""
    result = []
    before: dict[tuple[int, int], tuple[int, int]] = {}  # ends of the last, host's and whole
    for n, index in enumerate(ordered):
        start, host_end, thread = table.starts[index], table.ends[index], table.thread(index)
        end = max([host_end, *(table.ends[i] for i in work[n])] if work else [host_end])
        last_host_end, last_end = before.get(thread, (start, start))
        if last_host_end <= start:  # else one within the other
            start = max(start, last_end)
            before[thread] = host_end, max(end, last_end)
        result.append(max(0, end - start))
    return result


def _launch_moments(
    table: Activities, times: DeviceTimes, launches: Sequence[int]
) -> list[tuple[int, int]]:
    """Return when each of the device's activities was launched, or without a launch began, and its
    index; in order of time."""
    begun = ((launches[i] if launches[i] >= 0 else i, i) for i in times.order)
    return sorted((table.starts[at], i) for at, i in begun)


def _work_by_range(
    table: Activities, ordered: Sequence[int], moments: Sequence[tuple[int, int]]
) -> list[list[int]]:
    """Return the work of the device that was launched in each range. Ranges of one name on several
    threads may overlap: the last that began takes the work."""
    result = []
    for index, following in zip_longest(ordered, ordered[1:]):
        start, end = table.starts[index], table.ends[index]
        if following is not None:
            end = min(end, table.starts[following])
        first = bisect_left(moments, (start, -1))
        last = bisect_left(moments, (end, -1), lo=first)
        result.append([i for _, i in moments[first:last]])
    return result


@dataclass(frozen=True)
class OperationRow:
    """All host operations of one name. `own_ns` leaves out what operations inside them took; one
    inside another of its name is a part of that, in `count` and `total_ns`."""

    name: str
    count: int
    total_ns: int
    own_ns: int


def operation_rows(trace: Trace) -> list[OperationRow]:
    """Return one row for each name of host operations, the most time of their own first."""
    table = trace.activities
    sums: dict[int, list[int]] = {}
    for indices in group_by(table.select(ActivityKind.OP), table.thread).values():
        for index, own, outermost in _own_times(table, indices):
            row = sums.setdefault(table.name_numbers[index], [0, 0, 0])
            row[2] += own
            if outermost:
                row[0] += 1
                row[1] += table.length(index)
    rows = [OperationRow(table.names.entries[n], *row) for n, row in sums.items()]
    return sorted(rows, key=lambda row: (-row.own_ns, row.name))


def _own_times(table: Activities, indices: list[int]) -> Iterator[tuple[int, int, bool]]:
    """Yield each operation of a thread with its time less that of those directly inside it, and
    whether it is in none of its own name."""
    inside: dict[int, int] = {}
    nested: set[int] = set()
    stack: list[int] = []
    names = table.name_numbers
    for index in sorted(indices, key=lambda i: (table.starts[i], -table.ends[i])):
        while stack and table.ends[stack[-1]] <= table.starts[index]:
            stack.pop()
        if stack:
            inside[stack[-1]] = inside.get(stack[-1], 0) + table.length(index)
        if any(names[other] == names[index] for other in stack):
            nested.add(index)
        stack.append(index)
    for index in indices:
        yield index, max(0, table.length(index) - inside.get(index, 0)), index not in nested
