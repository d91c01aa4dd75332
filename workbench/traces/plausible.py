"""Find impossible times on a timeline, behind all readers: leave them out or cut them, and count.

Profilers write a time of zero where they could not collect one (CUPTI: "start and end 0"), and a
few write durations that overflow. One such record makes a window of years.
"""

import math
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from workbench.data.record import group_by
from workbench.data.record_tally import DEVICE, HOST
from workbench.data.units import duration
from workbench.traces.trace import WORK, Activities, ActivityKind, Trace

FAR = 100  # times the span of the other events: a void this long parts no two events of a recording
LEAST_VOID_NS = 100_000_000_000  # programs sleep and load for seconds between kernels
LONG_NS = 1_000_000_000  # durations below a second are never too long
OVERRUN_NS = 20_000  # programmatic dependent launch overlaps kernels by up to 4 µs (B200 sample)
FEWEST = 4  # events that tell where a recording lies

MOST_PERCENT = 110.0
SHARES = re.compile(r"pct_of_peak|hit_rate|throughput\b")
PERCENTAGES = "percentages"

IMPOSSIBLE = "left out, as they are not between 0 and 100 %"
ZERO = "left out, as their times are zero"
BACKWARD = "left out, as they end before they start"
OUTSIDE = "left out, as their times lie far from all others"
LONG = "left out, as they last over 100 times as long as all others together"


def drop_impossible(trace: Trace) -> None:
    """Leave activities with impossible times out of a trace and cut those that run over the next
    kernel of their stream. Each is counted in `trace.tally`."""
    table, tally = trace.activities, trace.tally
    by_noun = {
        DEVICE: list(table.select(*WORK)),
        HOST: list(table.select(*(kind for kind in ActivityKind if kind not in WORK))),
    }
    for noun, numbers in by_noun.items():
        unreadable = sum(count for (kind, _), count in tally.bad.items() if kind == noun)
        tally.totals[noun] = len(numbers) + unreadable
    if trace.has_streams:  # first, since the start of what runs too long may well be right
        _cut_overruns(trace)
    bad: dict[int, str] = {}
    for numbers in by_noun.values():
        bad |= _bad_times(table, numbers)
    bad |= _too_long(table, bad)
    for index, reason in bad.items():
        activity = table[index]
        is_work = activity.kind in WORK
        key = (activity.process, activity.correlation) if is_work else None
        tally.drop(DEVICE if is_work else HOST, reason, "", key)
    if bad:
        table.remove(bad.keys())
    _drop_percentages(trace)


def _drop_percentages(trace: Trace) -> None:
    """Leave out counters that are shares of a peak or hit rates and lie far above 100 %: passes of
    one kernel that are put together give a little more than 100. No duration is negative."""
    for dispatch in trace.dispatches:
        if dispatch.duration_ns is not None and not 0 <= dispatch.duration_ns < math.inf:
            dispatch.duration_ns = None
        for name, counter in dispatch.counters.items():
            if counter.unit != "%" or counter.value is None or not SHARES.search(name):
                continue
            trace.tally.totals[PERCENTAGES] += 1
            if not 0 <= counter.value <= MOST_PERCENT:
                dispatch.counters[name] = counter._replace(value=None, state="refused")
                trace.tally.drop(PERCENTAGES, IMPOSSIBLE, f"{name} {counter.text}")


def _bad_times(table: Activities, numbers: Sequence[int]) -> dict[int, str]:
    """Return the reason of each activity whose times are zero, in reverse, or far from those of
    the others. `numbers` are of the device or of the host: their clocks may differ."""
    starts, ends = table.starts, table.ends
    bad: dict[int, str] = {}
    good: list[int] = []
    for i in numbers:
        if ends[i] < starts[i]:
            bad[i] = BACKWARD
        elif starts[i] == 0 == ends[i]:
            bad[i] = ZERO
        else:
            good.append(i)
    timed = [i for i in good if starts[i] > 0]
    if len(timed) < FEWEST:
        return bad
    first, last = _body(sorted(starts[i] for i in timed))
    latest = _body(sorted(ends[i] for i in timed))[1]
    void = max(FAR * (latest - first), LEAST_VOID_NS)
    for i in good:
        # Proton's times begin at zero, so a start of zero is impossible only far from the others
        if starts[i] <= 0 and first - starts[i] > void:
            bad[i] = ZERO
        elif starts[i] > 0 and not (first <= starts[i] <= last and ends[i] <= latest):
            bad[i] = OUTSIDE
    return bad


def _body(times: Sequence[int]) -> tuple[int, int]:
    """Return the first and the last of sorted times that belong together: the middle half, and
    every time beyond it that no void parts from them."""
    low, high = len(times) // 4, len(times) - 1 - len(times) // 4
    while True:
        void = max(FAR * (times[high] - times[low]), LEAST_VOID_NS)
        if low > 0 and times[low] - times[low - 1] <= void:
            low -= 1
        elif high < len(times) - 1 and times[high + 1] - times[high] <= void:
            high += 1
        else:
            return times[low], times[high]


def _too_long(table: Activities, bad: dict[int, str]) -> dict[int, str]:
    """Return work of a device that lasts longer than all other activities allow, where no event of
    the host lasts as long."""
    lengths = [end - start for start, end in zip(table.starts, table.ends, strict=True)]
    long = [i for i, length in enumerate(lengths) if length > LONG_NS and i not in bad]
    others = [i for i, length in enumerate(lengths) if length <= LONG_NS and i not in bad]
    if not long or len(others) < 2 * FEWEST:
        return {}
    span = max(table.ends[i] for i in others) - min(table.starts[i] for i in others)
    waited = max((lengths[i] for i in long if table.kinds[i] not in WORK), default=0)
    return {
        i: LONG
        for i in long
        if table.kinds[i] in WORK and lengths[i] > FAR * span and 2 * waited < lengths[i]
    }


def _cut_overruns(trace: Trace) -> None:
    """Cut kernels that run beyond the whole next kernel of their stream at its start, as Perfetto
    does. Kernels of one launch, those of a graph, may run side by side."""
    table, most, count = trace.activities, 0, 0
    for index, following in _neighbours(table):
        over = table.ends[index] - table.starts[following]
        is_graph = table.correlations[index] == table.correlations[following] >= 0
        if over > OVERRUN_NS and table.ends[index] > table.ends[following] and not is_graph:
            table.ends[index] = table.starts[following]
            most, count = max(most, over), count + 1
    if count:
        reason = (
            "cut at the start of the next kernel of their stream, which they run over by up to "
            f"{duration(most / 1e9)}"
        )
        trace.tally.bad[DEVICE, reason] += count


def _neighbours(table: Activities) -> Iterator[tuple[int, int]]:
    """Yield each kernel with the next one of its stream."""
    kernels = table.select(ActivityKind.KERNEL)
    lanes = group_by(kernels, lambda i: (table.device_numbers[i], *table.thread(i)))
    for lane in lanes.values():
        yield from pairwise(sorted(lane, key=lambda i: (table.starts[i], table.ends[i])))
