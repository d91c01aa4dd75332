"""Intervals and timelines, held to implementations that look at every nanosecond."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.data.intervals import (
    clip,
    difference,
    gaps,
    intersection,
    intervals,
    union,
)
from workbench.traces.timeline import device_times, devices, kernel_rows, named_ranges
from workbench.traces.trace import (
    Activities,
    ActivityKind,
    CheckerResult,
    CounterValue,
    Dispatch,
    Geometry,
    Total,
    Trace,
    clock_step,
    kind_of_call,
    plain,
)

pytestmark = pytest.mark.unit

END = 60
PAIRS = st.lists(
    st.tuples(st.integers(-5, END), st.integers(0, 12)).map(lambda p: (p[0], p[0] + p[1])),
    max_size=12,
)


def points(pairs):
    """Every nanosecond that lies in one of the intervals."""
    return {t for start, end in pairs for t in range(start, end)}


@given(PAIRS)
def test_a_union_holds_each_nanosecond_once(pairs):
    known = union(pairs)
    assert points(known.pairs()) == points(pairs)
    assert known.length == len(points(pairs))
    assert all(end < start for (_, end), (start, _) in pairwise(known.pairs()))
    assert all(start < end for start, end in known.pairs())


@given(PAIRS, PAIRS)
def test_cuts_are_those_of_sets(left, right):
    a, b = union(left), union(right)
    assert points(intersection(a, b).pairs()) == points(left) & points(right)
    assert points(difference(a, b).pairs()) == points(left) - points(right)
    assert intersection(a, b).length + difference(a, b).length == a.length


@given(PAIRS, st.integers(-5, END), st.integers(-5, END))
def test_clipping_is_an_intersection(pairs, start, end):
    assert points(clip(union(pairs), start, end).pairs()) == points(pairs) & set(range(start, end))


@given(PAIRS)
def test_gaps_fill_a_union(pairs):
    known = union(pairs)
    between = list(gaps(known))
    whole = {*points(between), *points(known.pairs())}
    assert not points(between) & points(pairs)
    assert not pairs or not whole or whole == set(range(min(whole), max(whole) + 1))


def test_intervals_out_of_order_are_refused():
    with pytest.raises(ValueError, match="order"):
        intervals([(5, 6), (1, 2)])


# Timelines

WORK = st.sampled_from([ActivityKind.KERNEL, ActivityKind.COPY, ActivityKind.SET])
EVENTS = st.lists(
    st.tuples(WORK, st.integers(0, 3000), st.integers(1, 900), st.integers(-1, 6)),
    min_size=1,
    max_size=14,
)
CALLS = st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 400), st.booleans()), max_size=7)


def trace_of(events, calls, device="0"):
    trace = Trace("test")
    for number, (start, length, waits) in enumerate(calls):
        name = "cudaStreamSynchronize" if waits else "cudaLaunchKernel"
        trace.activities.add(
            kind_of_call(name), name, start, start + length, lane="1", correlation=number
        )
    for kind, start, length, correlation in events:
        trace.activities.add(
            kind, f"k{start % 3}", start, start + length, device, "7", "", correlation, moved=8
        )
    return trace


def naive(trace, launched_only=True):
    """Window, busy time, idle time by cause and exposed waits, by looking at each nanosecond."""
    rows = list(trace.activities)
    calls = {}
    for row in rows:
        if row.kind in (ActivityKind.CALL, ActivityKind.SYNC):
            calls.setdefault(row.correlation, row)
    work = [row for row in rows if row.device]
    launched = [row for row in work if row.correlation in calls]
    if launched_only and launched:
        begun = min(row.start for row in launched)
        work = [row for row in work if row in launched or row.start >= begun]
    start, end = min(row.start for row in work), max(row.end for row in work)
    busy = {t for row in work for t in range(row.start, row.end)}
    waits = {
        t
        for row in rows
        if row.kind == ActivityKind.SYNC
        for t in range(max(row.start, start), min(row.end, end))
    }
    idle = {"host wait": 0, "step": 0, "dependency": 0}
    step = clock_step(trace.activities) or 0
    at = start
    while at < end:
        if at in busy:
            at += 1
            continue
        stop = at
        while stop not in busy:
            stop += 1
        first = min((row for row in work if row.start >= stop), key=lambda r: (r.start, r.end))
        call = calls.get(first.correlation)
        if call is not None and call.start > at:
            idle["host wait"] += stop - at
        else:
            cause = "unknown" if call is None else "dependency"
            cause = "step" if stop - at < max(1000, step) else cause
            idle[cause] = idle.get(cause, 0) + stop - at
        at = stop
    return end - start, len(busy), idle, len(waits), len(waits - busy)


@given(EVENTS, CALLS, st.booleans())
def test_a_timeline_is_what_each_nanosecond_says(events, calls, launched_only):
    trace = trace_of(events, calls)
    times = device_times(trace, "0", launched_only=launched_only)
    window, busy, idle, wall, exposed = naive(trace, launched_only)
    assert (times.window, times.busy.length) == (window, busy)
    assert sum(times.idle().values()) == window - busy
    # Two that begin together may differ in their launch, which names another cause.
    starts = [trace.activities.starts[i] for i in times.order]
    if len(set(starts)) == len(starts):
        assert times.idle() == idle
    assert (times.sync.length, times.sync_exposed.length) == (wall, exposed)
    assert times.kernel_sum == sum(row.total_ns for row in kernel_rows(trace, [times]))


@given(EVENTS, EVENTS)
def test_devices_are_never_summed(left, right):
    trace = trace_of(left, [])
    both = trace_of(left, [])
    both.activities.extend(trace_of(right, [], "1").activities)
    assert devices(both) == ["0", "1"]
    alone, beside = device_times(trace, "0"), device_times(both, "0")
    assert (alone.window, alone.busy, alone.kernel_sum) == (
        beside.window,
        beside.busy,
        beside.kernel_sum,
    )


def test_kernels_of_a_graph_share_one_launch():
    trace = trace_of([(ActivityKind.KERNEL, 10 + 20 * i, 5, 3) for i in range(4)], [])
    trace.activities.add(ActivityKind.CALL, "cudaGraphLaunch", 0, 4, correlation=3)
    launches = trace.activities.launches()
    assert list(launches) == [4, 4, 4, 4, -1]
    assert device_times(trace, "0").launches == 4


def test_a_launch_is_of_its_own_process():
    trace = Trace("test")
    trace.activities.add(ActivityKind.CALL, "cudaLaunchKernel", 0, 4, process="a", correlation=1)
    trace.activities.add(ActivityKind.KERNEL, "k", 5, 6, "0", process="b", correlation=1)
    assert list(trace.activities.launches()) == [-1, -1]


def test_a_range_holds_what_was_launched_in_it():
    trace = trace_of(
        [(ActivityKind.KERNEL, 500, 10, 0), (ActivityKind.KERNEL, 600, 10, 1)],
        [(0, 5, False), (100, 5, False)],
    )
    trace.activities.add(ActivityKind.RANGE, "step", 90, 120)
    times = device_times(trace, "0", within=named_ranges(trace, "step"))
    assert times.kernel_count == 1 and times.start == 600
    with pytest.raises(ValueError, match="no work"):
        device_times(trace, "0", within=named_ranges(trace, "other"))


# Storage and nouns


@given(EVENTS, CALLS)
def test_columns_give_back_what_was_added(events, calls):
    table = trace_of(events, calls).activities
    again = Activities()
    for activity in table:
        again.add(*activity)
    assert list(again) == list(table) and len(table) == len(events) + len(calls)


@pytest.mark.parametrize(
    ("start", "end", "correlation"),
    [(2**63, 1, 0), (0, 2**63, 0), (-(2**63) - 1, 0, 0), (0, 1, 2**63)],
)
def test_what_no_column_holds_is_refused_whole(start, end, correlation):
    table = Activities()
    with pytest.raises(OverflowError):
        table.add(ActivityKind.CALL, "a", start, end, correlation=correlation)
    assert len(table) == len(table.starts) == len(table.bytes) == 0


def test_activities_are_small():
    table = Activities()
    for i in range(100):
        table.add(ActivityKind.KERNEL, "k", i, i + 1, "0", geometry=Geometry((1, 1, 1)))
    columns = [
        getattr(table, name) for name in vars(table) if hasattr(vars(table)[name], "typecode")
    ]
    assert sum(column.itemsize for column in columns) <= 60 and len(columns) == 10


def test_dispatches_of_one_launch_are_joined():
    left, right = Trace("ncu"), Trace("ncu")
    left.dispatches = [Dispatch("k", "0", counters={"a": CounterValue("a", 1.0)})]
    right.dispatches = [
        Dispatch("k", "0", counters={"b": CounterValue("b", 2.0)}, duration_ns=5.0),
        Dispatch("k", "1"),
    ]
    left.join(right)
    first, second = left.dispatches
    assert set(first.counters) == {"a", "b"} and first.duration_ns == 5.0 and second.id == "1"


def test_totals_stand_in_for_a_timeline():
    trace = Trace("test", totals=[Total(ActivityKind.KERNEL, "k", 2, 30.0)])
    (row,) = kernel_rows(trace)
    assert (row.count, row.mean_ns) == (2, 15.0)


@pytest.mark.parametrize(("errors", "verdict"), [(None, "inconclusive"), (0, "pass"), (3, "fail")])
def test_the_summary_line_is_the_verdict(errors, verdict):
    assert CheckerResult(errors=errors).verdict == verdict


@given(st.text())
def test_names_hold_no_character_that_a_terminal_obeys(text):
    assert not re.search("[\x00-\x1f\x7f-\x9f]", plain(text))


@pytest.mark.parametrize(
    ("name", "waits"),
    [
        ("cudaStreamSynchronize_v3020", True),
        ("hipDeviceSynchronize", True),
        ("cuCtxSynchronize", True),
        ("cudaLaunchKernel", False),
        ("cudaMemcpy", False),
    ],
)
def test_calls_that_wait_are_known(name, waits):
    assert (kind_of_call(name) == ActivityKind.SYNC) is waits
