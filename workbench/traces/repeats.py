"""Sequences of kernels that a device runs again and again, which a graph could hold."""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from workbench.traces.timeline import DeviceTimes
from workbench.traces.trace import Trace

SHORTEST = 3  # kernels
LEAST = 5  # times in a row
PERIODS = 64  # lengths that are tried, the most frequent distances between equal kernels
OCCURRENCES = 8  # of a kernel before, whose distance counts


@dataclass(frozen=True)
class Repeat:
    """Kernels that were launched `count` times in a row in the same order on one device."""

    names: tuple[str, ...]
    count: int
    start: int  # ns
    end: int
    kernel_ns: int  # of all its kernels
    gap_ns: int  # idle time between its kernels
    host_wait_ns: int  # idle time in which the device waited for a launch

    @property
    def kernels(self) -> int:
        """Kernels of one time."""
        return len(self.names)


def repeats(trace: Trace, times: DeviceTimes) -> list[Repeat]:
    """Return the sequences of at least three kernels that follow one another at least five times,
    the longest time first. Kernels count in order of their start, over all streams."""
    table = trace.activities
    order = table.kernels(times.order)
    names = [table.name_numbers[i] for i in order]
    result = []
    for first, period, count in _runs(names):
        part = order[first : first + period * count]
        start, end = table.starts[part[0]], max(table.ends[i] for i in part)
        gaps = [g for g in times.gaps if g.start >= start and g.end <= end]
        result.append(
            Repeat(
                tuple(table.names.entries[n] for n in names[first : first + period]),
                count,
                start,
                end,
                sum(map(table.length, part)),
                sum(gap.duration for gap in gaps),
                sum(gap.duration for gap in gaps if gap.cause == "host wait"),
            )
        )
    return sorted(result, key=lambda each: (each.start - each.end, each.start))


def _runs(names: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return first index, period and count of the repetitions, none within another. A run of one
    name alone is not a sequence."""
    results: list[tuple[int, int, int]] = []
    for period in _periods(names):
        results += _runs_of_period(names, period)
    # the most kernels first; of equal ones the shortest period, which is the sequence itself
    results.sort(key=lambda run: (-run[1] * run[2], run[1], run[0]))
    taken = bytearray(len(names))
    result = []
    for first, period, count in results:
        if not any(taken[first : first + period * count]):
            taken[first : first + period * count] = b"\1" * (period * count)
            result.append((first, period, count))
    return sorted(result)


def _periods(names: Sequence[int]) -> list[int]:
    """Return the lengths that a repeated sequence may have: the distances of a kernel to its next
    eight occurrences, as one may stand eight times in a sequence."""
    last: dict[int, deque[int]] = {}
    distances: Counter[int] = Counter()
    for at, name in enumerate(names):
        before = last.setdefault(name, deque(maxlen=OCCURRENCES))
        distances.update(at - other for other in before)
        before.append(at)
    # each kernel of a sequence votes in each repetition, so long periods are not at a disadvantage
    likely = distances.most_common(PERIODS)
    return sorted(period for period, _ in likely if period >= SHORTEST)


def _runs_of_period(names: Sequence[int], period: int) -> list[tuple[int, int, int]]:
    """Return the runs in which each kernel is the one `period` places before it."""
    result = []
    begin = None
    for at in range(period, len(names) + 1):
        same = at < len(names) and names[at] == names[at - period]
        if same and begin is None:
            begin = at - period
        elif not same and begin is not None:
            count = (at - begin) // period
            if count >= LEAST and len(set(names[begin : begin + period])) > 1:
                result.append((begin, period, count))
            begin = None
    return result
