"""What the data's functions return at their limits and beside them, each worked out by hand."""

import functools
import math
import os
import sqlite3
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
import synthetic
from compiled_cases import RESOURCES, outcome, predicted

from workbench.code import compared_pair
from workbench.data import (
    database,
    energy,
    environment,
    errors,
    events,
    expected_change,
    files,
    interrupts,
    locks,
    mac,
    memory,
    modes,
    plain,
    project,
    record,
    returned,
    stats,
    temporary,
    user_code,
)
from workbench.data.comparison import EvidenceChange
from workbench.data.compiled_code import CompiledCode, HotLoop
from workbench.data.events import EventLog, RunFinished
from workbench.data.record import Evidence, Profile, Ratio, Record
from workbench.revisions import change_points, series
from workbench.traces import (
    host_work,
    instruction_metrics,
    kernel_class,
    plausible,
    repeats,
    rule_metrics,
    shortfall,
    timeline,
    trace_compare,
    trace_export,
    trace_kpis,
)
from workbench.traces.plausible import drop_impossible
from workbench.traces.trace import (
    ActivityKind,
    CheckerResult,
    CounterValue,
    Dispatch,
    Geometry,
    Total,
    Trace,
    TraceFile,
)
from workbench.traces.trace_compare import KernelChange
from workbench.traces.trace_summary import summarise

pytestmark = pytest.mark.unit
KERNEL, COPY, CALL, OP, RANGE, SYNC = (
    *(ActivityKind.KERNEL, ActivityKind.COPY, ActivityKind.CALL, ActivityKind.OP),
    *(ActivityKind.RANGE, ActivityKind.SYNC),
)


def trace_of(*activities):
    """Return a trace of these kinds, names, starts, ends and more, on one stream of device 0."""
    trace = Trace("torch", has_streams=True)
    for kind, name, start, end, *more in activities:
        work = kind in (KERNEL, COPY)
        correlation, process, lane = (*more, *(-1, "p", "7" if work else "1")[len(more) :])
        trace.activities.add(
            kind, name, start, end, "0" if work else "", lane, process, correlation
        )
    return trace


# Timelines: the first activity of a file is the launch of the first kernel


def test_a_launch_that_is_the_first_of_its_file_counts():
    """A launch from 0 to 4 starts a kernel at 10; without it would be a gap of unknown cause. The
    copy holds no bytes, which is a number."""
    trace = trace_of(
        (CALL, "cudaLaunchKernel", 30_000, 30_004, 1),
        (KERNEL, "early", 0, 10_000, 7),
        (KERNEL, "a", 40_000, 50_000, 1),
    )
    trace.activities.add(COPY, "copy", 60_000, 70_000, "0", "7", "p", -1, moved=0)
    launches = trace.activities.launches()
    assert list(launches) == [-1, -1, 0, -1]
    times = timeline.device_times(trace, "0")
    assert (times.launches, times.left_out, times.copied_bytes) == (1, 1, 0)
    assert [trace.activities[i].name for i in times.order] == ["a", "copy"]
    whole = timeline.device_times(trace, "0", launched_only=False)
    assert [(gap.start, gap.end, gap.cause) for gap in whole.gaps] == [
        (10_000, 40_000, "host wait"), (50_000, 60_000, "unknown")]  # fmt: skip
    kpis = {k.name: k.value for k in trace_kpis._launch_kpis(trace, whole, launches)}
    assert kpis == {"launch call, median": 4e-9, "launch delay, median": pytest.approx(9.996e-6)}
    within = timeline.named_ranges(trace_of((RANGE, "step", 29_999, 30_001)), "step")
    chosen = timeline.device_times(trace, "0", launched_only=False, within=within)
    assert [trace.activities[i].name for i in chosen.order] == ["a"]
    flows = trace_export.perfetto(summarise(trace))
    assert flows.count('"ph": "s"') + flows.count('"ph":"s"') == 1


@pytest.mark.parametrize(
    ("launch", "start", "end", "step", "cause"),
    [
        (0, 100, 5000, None, "host wait"),  # launched at 101, after the gap began
        (0, 101, 5000, None, "dependency"),
        (0, 102, 1101, None, "step"),
        (0, 102, 1102, None, "dependency"),
        (0, 102, 2101, 2000, "step"),
        (0, 102, 2102, 2000, "dependency"),
        (-1, 100, 1099, None, "step"),
        (-1, 100, 1100, 0, "unknown"),
    ],
)
def test_the_cause_of_a_gap(launch, start, end, step, cause):
    table = trace_of((CALL, "launch", 101, 104)).activities
    assert timeline._cause(table, 0, launch, start, end, step) == cause


def kpis_of(**more):
    """Return the values that KPIs take from a device's times."""
    spans = SimpleNamespace(length=0)
    plain = {
        "utilisation": 0.9, "step": None, "launched": 1, "window": 1000, "sync": spans,
        "sync_exposed": spans, "sync_unqueued": spans, "copy_count": 1, "copied_bytes": None,
        "copies": spans, "copies_exposed": spans, "kernel_sum": 100,
    }  # fmt: skip
    return SimpleNamespace(**{**plain, **more})


@pytest.mark.parametrize(
    ("share", "met"), [(0.29, "bad"), (0.3, "no"), (0.8, "no"), (0.801, "yes"), (0.0, "bad")]
)
def test_a_utilisation_below_three_tenths_is_bad_and_above_eight_is_met(share, met):
    assert trace_kpis._utilisation(kpis_of(utilisation=share)).met == met


@pytest.mark.parametrize(
    ("mean", "step", "met", "note"),
    [(999, None, "yes", ""), (1000, None, "no", ""), (2000, 2000, "no", ""),
     (1999, 2000, "yes", "below the clock step of 2000 ns")],
)  # fmt: skip
def test_a_mean_gap_below_a_microsecond_or_the_clock_s_step_is_met(mean, step, met, note):
    times = kpis_of(step=step, gap_statistics=lambda: (mean, 20, 300))
    first, median, high = trace_kpis._gap_kpis(times)
    assert (first.met, first.note, first.value) == (met, note, mean / 1e9)
    assert (median.value, high.value) == (2e-8, 3e-7)
    (none,) = trace_kpis._gap_kpis(kpis_of(gap_statistics=lambda: None))
    assert (none.value, none.met, none.note) == (None, "yes", "no gap")


@pytest.mark.parametrize(("launched", "causes"), [(0, 1), (1, 2), (2, 2)])
def test_idle_time_has_causes_where_one_launch_is_in_the_file(launched, causes):
    times = kpis_of(launches=launched, idle=lambda: {"step": 5, "unknown": 7})
    found = trace_kpis._idle_kpis(times)
    assert len(found) == causes and sum(k.value for k in found) == pytest.approx(12e-9)


@pytest.mark.parametrize(("ns", "met"), [(49, "yes"), (50, "no"), (51, "no")])
def test_a_twentieth_of_the_window_is_too_much(ns, met):
    spans = SimpleNamespace(length=ns)
    times = kpis_of(sync=spans, sync_exposed=spans, sync_unqueued=SimpleNamespace(length=ns - 9),
                    copies_exposed=spans, copies=SimpleNamespace(length=4),
                    copied_bytes=8)  # fmt: skip
    trace = trace_of((CALL, "launch", 0, 1))
    wall, exposed = trace_kpis._sync_kpis(trace, times)
    assert (wall.met, exposed.met, wall.value) == (met, met, ns / 1000)
    assert exposed.note == "9 ns of it between queued kernels"
    *_, bandwidth, copies = trace_kpis._copy_kpis(times)
    assert (copies.met, copies.value, bandwidth.value) == (met, ns / 1000, 8 / 4e-9)
    (missing,) = trace_kpis._sync_kpis(trace_of((KERNEL, "k", 0, 1)), times)
    assert missing.note == "the file has no call of the runtime"
    assert trace_kpis._copy_kpis(kpis_of(copy_count=0)) == []
    assert (
        trace_kpis._copy_kpis(replace_names(times, copies=SimpleNamespace(length=0)))[2].value
        is None
    )


def replace_names(times, **more):
    return SimpleNamespace(**{**vars(times), **more})


@pytest.mark.parametrize(("spent", "met"), [(59, "yes"), (60, "no")])
def test_products_of_six_tenths_are_too_many(spent, met):
    classes = [SimpleNamespace(name=n, total_ns=t) for n, t in
               (("GEMM", spent - 9), ("GEMM", 9), ("copy", 5))]  # fmt: skip
    (share,) = trace_kpis._gemm_share(kpis_of(), classes)
    assert (share.value, share.met) == (spent / 100, met)
    assert trace_kpis._gemm_share(kpis_of(kernel_sum=0), classes) == []


# The host beside a device


def test_a_gap_that_begins_as_its_copy_ends_does_not_cost_it():
    """Copies of the host from 0 to 100 and 200 to 210; the device idles from 100 to 150 and from
    205 to 300, which begins in the second one."""
    trace = trace_of(
        (CALL, "cudaMemcpyAsync", 0, 100, 1), (COPY, "copy", 50, 100, 1),
        (KERNEL, "a", 150, 205, 2), (CALL, "cudaMemcpyAsync", 200, 210, 3),
        (COPY, "copy", 300, 310, 3),
    )  # fmt: skip
    launches = trace.activities.launches()
    times = timeline.device_times(trace, "0", launched_only=False)
    assert list(host_work.copy_calls(trace, times, launches).pairs()) == [(50, 100), (200, 210)]
    assert list(host_work.copy_waits(trace, times, launches).pairs()) == [(205, 300)]


def test_the_work_of_other_processes_explains_no_gap():
    """Process q has no work on the device; its event comes first in the file."""
    trace = trace_of(
        (OP, "other", 10, 20, -1, "q"), (OP, "own", 10, 20), (KERNEL, "a", 0, 10),
        (KERNEL, "b", 20, 30),
    )  # fmt: skip
    times = timeline.device_times(trace, "0", launched_only=False)
    (gap,) = host_work.longest_gaps(trace, times, trace.activities.launches())
    assert (gap.host, gap.host_share, gap.launch, gap.next) == ("own", 1.0, "", "b")


@pytest.mark.parametrize(
    ("works", "host", "share"),
    [
        ([("half", 10, 15), ("most", 0, 40)], "half", 0.5),  # the shortest that covers half
        ([("less", 10, 14), ("more", 11, 15), ("none", 20, 90)], "less", 0.4),
        ([("less", 10, 14), ("half", 13, 18)], "half", 0.5),
        ([("whole", 0, 40), ("short", 9, 21)], "short", 1.0),
        ([("beside", 0, 10)], "", 0.0),
    ],
)
def test_the_host_s_work_in_a_gap_is_the_shortest_of_half_of_it(works, host, share):
    trace = trace_of(*((OP, *work) for work in works), (KERNEL, "a", 0, 10), (KERNEL, "b", 20, 30))
    times = timeline.device_times(trace, "0", launched_only=False)
    (gap,) = host_work.longest_gaps(trace, times, trace.activities.launches())
    assert (gap.host, gap.host_share) == (host, share)


def test_operations_that_meet_are_not_nested():
    """From 0 to 10 and from 10 to 20 in one from 0 to 20; calls at 9, 10 and 20."""
    trace = trace_of(
        (OP, "outer", 0, 20), (OP, "first", 0, 10), (OP, "second", 10, 20),
        *((CALL, "launch", at, at + 1, n) for n, at in enumerate((9, 10, 20))),
        *((KERNEL, "k", 30 + n, 31 + n, n) for n in range(3)),
    )  # fmt: skip
    table = trace.activities
    found = host_work.operations_of(table, table.launches(), range(6, 9))
    assert found == [1, 2, -1]
    rows = [(row.name, row.count, row.total_ns, row.own_ns) for row in
            host_work.operation_rows(trace)]  # fmt: skip
    assert rows == [("first", 1, 10, 10), ("second", 1, 10, 10), ("outer", 1, 20, 0)]


# What repeats


def sequence(names, step=10):
    trace = Trace("torch")
    for at, name in enumerate(names):
        trace.activities.add(KERNEL, name, step * at, step * at + 7, "0", "7", "p")
    return trace


def test_repeats_are_listed_by_their_time_the_longest_first():
    """Five of abc, then six of def, then five of ghi: 147, 177 and 147 ns long."""
    trace = sequence("abc" * 5 + "x" + "def" * 6 + "y" + "ghi" * 5)
    found = repeats.repeats(trace, timeline.device_times(trace, "0"))
    assert [("".join(r.names), r.count, r.start, r.end - r.start) for r in found] == [
        ("def", 6, 160, 177), ("abc", 5, 0, 147), ("ghi", 5, 350, 147)]  # fmt: skip
    assert [r.kernel_ns for r in found] == [18 * 7, 15 * 7, 15 * 7]
    assert [r.gap_ns for r in found] == [17 * 3, 14 * 3, 14 * 3]


def test_a_sequence_within_another_is_not_listed():
    """Of 30 times abc neither abcabc nor bca is a second sequence."""
    trace = sequence("abc" * 30)
    found = repeats.repeats(trace, timeline.device_times(trace, "0"))
    assert [("".join(r.names), r.count) for r in found] == [("abc", 30)]
    assert repeats._runs([1, 2, 3] * 10 + [9] + [4, 5, 6, 7] * 6) == [(0, 3, 10), (31, 4, 6)]
    assert repeats._runs_of_period([1, 2, 3] * 5, 3) == [(0, 3, 5)]
    assert repeats._runs_of_period([1, 2, 3] * 4 + [1, 2], 3) == []
    assert repeats._runs_of_period([1] * 30, 3) == []
    twice = [1, 2, 3] * 5 + [4] + [1, 2, 3] * 6
    assert repeats._runs_of_period(twice, 3) == [(0, 3, 5), (16, 3, 6)]


# Impossible times


def bad_of(*times):
    table = trace_of(*((KERNEL, f"k{n}", *pair) for n, pair in enumerate(times))).activities
    return plausible._bad_times(table, range(len(times)))


def test_a_start_at_zero_is_far_from_a_recording_behind_a_void():
    """Proton's trace begins at zero, and its first kernel may lie a while before the others."""
    body = [(10**11 + 200 * n, 10**11 + 200 + 200 * n) for n in range(5)]
    assert bad_of((0, 50), *body) == {}
    later = [(a + 1, b + 1) for a, b in body]
    assert bad_of((0, 50), *later) == {0: plausible.ZERO}
    assert bad_of((1, 50), *later) == {}  # an early event, at no void from the others
    assert bad_of((0, 0), (9, 3), *body) == {0: plausible.ZERO, 1: plausible.BACKWARD}
    assert bad_of((0, 0), *body[:3]) == {0: plausible.ZERO}
    assert bad_of((0, 5), *later[:3]) == {}  # too few to say where the recording lies


@pytest.mark.parametrize(
    ("times", "body"),
    [
        ([1, 2, 3, 4], (1, 4)),
        ([0, 10, 20, 30, 100_000_000_030], (0, 100_000_000_030)),
        ([0, 10, 20, 30, 100_000_000_031], (0, 30)),
        ([0, 100_000_000_000, 100_000_000_001, 100_000_000_002], (0, 100_000_000_002)),
        ([0, 10**11 + 1, 10**11 + 2, 10**11 + 3], (10**11 + 1, 10**11 + 3)),
    ],
)  # fmt: skip
def test_a_void_of_a_hundred_seconds_parts_no_times(times, body):
    assert plausible._body(times) == body


@pytest.mark.parametrize(
    ("kind", "length", "waited", "long"),
    [
        (KERNEL, 100 * 20_000_000 + 1, 0, True),
        (KERNEL, 100 * 20_000_000, 0, False),
        (OP, 3_000_000_000, 0, False),  # the host may wait
        (KERNEL, 3_000_000_000, 1_499_999_999, True),
        (KERNEL, 3_000_000_000, 1_500_000_000, False),
    ],
)
def test_work_that_lasts_a_hundred_times_all_others_is_too_long(kind, length, waited, long):
    """Eight kernels from 20 ms to 40 ms: their span is 20 ms."""
    others = [(KERNEL, "k", 20_000_000 + n, 40_000_000 - n) for n in range(8)]
    trace = trace_of(
        *others, (kind, "long", 0, length), (SYNC, "wait", 20_000_000, 20_000_000 + (waited or 1))
    )
    found = plausible._too_long(trace.activities, {})
    assert found == ({8: plausible.LONG} if long else {})
    assert (
        plausible._too_long(trace_of(*others[:7], (kind, "long", 0, length)).activities, {}) == {}
    )
    assert plausible._too_long(trace.activities, {8: "bad"}) == {}


@pytest.mark.parametrize(
    ("first", "second", "correlations", "end"),
    [
        ((0, 50_000), (30_000, 40_000), (1, 2), 50_000),  # 20 us are an early launch
        ((0, 50_000), (29_999, 40_000), (1, 2), 29_999),
        ((0, 50_000), (20_000, 50_000), (1, 2), 50_000),  # not beyond the whole next one
        ((0, 50_000), (20_000, 49_999), (1, 2), 20_000),
        ((0, 50_000), (20_000, 40_000), (5, 5), 50_000),  # of one graph
        ((0, 50_000), (20_000, 40_000), (0, 0), 50_000),
        ((0, 50_000), (20_000, 40_000), (-1, -1), 20_000),
    ],
)
def test_a_kernel_that_runs_over_the_next_one_is_cut_at_its_start(first, second, correlations, end):
    trace = trace_of(*((KERNEL, "k", *times, n) for times, n in
                       zip((first, second), correlations, strict=True)))  # fmt: skip
    plausible._cut_overruns(trace)
    assert trace.activities.ends[0] == end
    assert bool(trace.tally.bad) is (end != 50_000)


@pytest.mark.parametrize(
    ("name", "value", "unit", "kept"),
    [("l2_hit_rate", 110.0, "%", True), ("l2_hit_rate", 110.1, "%", False),
     ("l2_hit_rate", 0.0, "%", True), ("l2_hit_rate", -0.1, "%", False),
     ("l2_hit_rate", 400.0, "s", True), ("l2_hits", 400.0, "%", True)],
)  # fmt: skip
def test_shares_of_a_peak_are_up_to_110_percent(name, value, unit, kept):
    trace = trace_of()
    trace.dispatches = [Dispatch("k", duration_ns=0.0, counters={
        name: CounterValue(name, value, unit, str(value))}),
        Dispatch("k", duration_ns=math.inf), Dispatch("k", duration_ns=-1.0)]  # fmt: skip
    drop_impossible(trace)
    assert (trace.dispatches[0].counters[name].value == value) is kept
    assert [d.duration_ns for d in trace.dispatches] == [0.0, None, None]


# Traces of several files


def test_what_two_files_hold_is_added_up():
    def half(n):
        trace = trace_of((KERNEL, f"k{n}", n, n + 1))
        trace.files = [TraceFile(f"f{n}", n, "")]
        trace.totals = [Total(KERNEL, f"t{n}", 1, float(n))]
        trace.notes, trace.tables = [f"note {n}", "both"], {f"table {n}": n}
        trace.devices = {"0": {f"fact {n}": n}, str(n): {}}
        trace.has_streams = n == 2
        return trace

    first = half(1)
    first.join(half(2))
    assert [f.name for f in first.files] == ["f1", "f2"]
    assert [t.name for t in first.totals] == ["t1", "t2"]
    assert first.notes == ["note 1", "both", "note 2"] and first.has_streams
    assert first.tables == {"table 1": 1, "table 2": 2}
    assert first.devices == {"0": {"fact 1": 1, "fact 2": 2}, "1": {}, "2": {}}
    assert [a.name for a in first.activities] == ["k1", "k2"]


def page_of(*names, table="instructions", counters=False, numbered=False):
    return [
        Dispatch(name, str(n) if numbered else "", instructions=table,
                 counters={"c": CounterValue("c", 1.0, "%", "1")} if counters else {})
        for n, name in enumerate(names)
    ]  # fmt: skip


def test_a_page_of_instructions_goes_with_the_launches_in_their_order():
    page, launches = page_of("a", "b"), page_of("a", "b", table=None, counters=True, numbered=True)
    for first, second in ((page, launches), (launches, page)):
        trace = Trace("ncu", dispatches=[replace(d) for d in first])
        trace.join(Trace("ncu", dispatches=[replace(d) for d in second]))
        assert [(d.name, d.id, d.instructions) for d in trace.dispatches] == [
            ("a", "0", "instructions"), ("b", "1", "instructions")]  # fmt: skip
    other = page_of("a", "c")
    trace = Trace("ncu", dispatches=[replace(d) for d in launches])
    trace.join(Trace("ncu", dispatches=other))
    assert [d.name for d in trace.dispatches] == ["a", "b", "a", "c"]
    trace = Trace("ncu", dispatches=page_of("a", "b"))
    trace.join(Trace("ncu", dispatches=page_of("a", "b")))  # two pages of instructions
    assert len(trace.dispatches) == 4
    half = [*page_of("a"), *launches[1:]]
    trace = Trace("ncu", dispatches=half)
    trace.join(Trace("ncu", dispatches=page_of("a", "b")))
    assert [d.instructions for d in trace.dispatches] == ["instructions", "instructions"]


@pytest.mark.parametrize(
    ("device", "call", "vendor"),
    [("NVIDIA H200", "", "nvidia"), ("gfx942", "", "amd"), ("Apple M2", "cudaLaunch", "apple"),
     ("", "hipLaunchKernel", "amd"), ("", "cudaLaunch", "nvidia"), ("", "launch", ""),
     ("AMD Instinct", "cudaLaunch", "amd"), ("GeForce RTX", "", "nvidia")],
)  # fmt: skip
def test_the_maker_is_that_of_the_devices_or_of_the_calls(device, call, vendor):
    trace = trace_of((CALL, call or "x", 0, 1))
    trace.devices = {"0": {"name": device}, "1": {}}
    assert trace.vendor == vendor


def test_logs_and_xml_of_one_checker_are_one_result():
    log = CheckerResult("", ["a"], None, 1, 2)
    xml = CheckerResult("memcheck", ["b", "c"], 4, 10, 20)
    for first, second in ((log, xml), (xml, log)):
        trace = Trace("sanitizer", checker=first)
        trace.join(Trace("sanitizer", checker=second))
        assert trace.checker == CheckerResult("memcheck", ["b", "c"], 4, 11, 22)
    trace = Trace("sanitizer", checker=xml)
    trace.join(Trace("sanitizer", checker=replace(xml, errors=0)))
    assert trace.checker.errors == 4 and trace.checker.records == ["b", "c", "b", "c"]


# Comparisons of traces


def figure(name, before, after, unit="1", low=None, high=None):
    return EvidenceChange(name, Evidence(name, before, unit, "profiled", low, high),
                        Evidence(name, after, unit, "profiled"))  # fmt: skip


@pytest.mark.parametrize(
    ("change", "notable"),
    [
        (figure("stall_wait", 10.0, 10.5), False),  # half a cycle of fifty, a hundredth
        (figure("stall_wait", 10.0, 10.51), True),
        (figure("share", 0.0, 0.01), False),
        (figure("share", 0.0, 0.0101), True),
        (figure("bytes", 99.0, 100.0, "B"), False),
        (figure("bytes", 98.9, 100.0, "B"), True),
        (figure("bytes", 0.0, 0.0, "B"), False),
        (figure("bytes", 0.0, 1.0, "B"), True),
    ],
)
def test_a_metric_that_differs_by_more_than_a_hundredth_is_notable(change, notable):
    assert trace_compare._notable(change, 50.0) is notable


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [(1.05, 1.2, "same"), (1.0501, 1.2, "slower"), (0.9, 1 / 1.05, "same"),
     (0.9, 0.952, "faster"), (0.9, 1.2, "same")],
)  # fmt: skip
def test_a_kernel_is_slower_beyond_the_threshold_with_its_whole_interval(low, high, word):
    assert trace_compare._word((low + high) / 2, low, high, 0.05) == word


@pytest.mark.parametrize(
    ("after", "spread", "word", "said"),
    [
        (1.0625, None, "SAME", "+6.25 %: within the threshold of 6 %"),
        (0.9375, None, "SAME", "-6.25 %: within the threshold of 6 %"),
        (1.07, None, "SLOW", "+7 %: beyond the spread of the steps"),
        (0.93, None, "FAST", "-7 %: beyond the spread of the steps"),
        (1.07, (0.9, 1.07), "SAME", "+7 %: within the spread of the steps"),
        (1.07, (0.9, 1.06), "SLOW", "+7 %: beyond the spread of the steps"),
    ],
)
def test_steps_are_judged_by_the_threshold_and_their_spread(after, spread, word, said):
    low, high = spread or (None, None)
    before = Evidence("ProfilerStep#", 1.0, "s", "profiled", low, high)
    later = Evidence("ProfilerStep#", after, "s", "profiled", 1.0, after)
    step = EvidenceChange("ProfilerStep#", before, later)
    found, reason = trace_compare._steps_verdict(step, 0.0625)
    assert (found, reason.partition(", ")[2]) == (word, said)


def kernel_change(word, before=True, after=True, counts=(1, 1), metrics=()):
    made = [Profile("run", synthetic.AT, "ncu", "1", "H200", "k", "", count=n, metrics=metrics)
            for n in counts]  # fmt: skip
    both = [one if there else None for one, there in zip(made, (before, after), strict=True)]
    return KernelChange("k", *both, word)


@pytest.mark.parametrize(
    ("ratio", "words", "word", "said"),
    [
        (1.125, ["slower"], "SAME", "without a spread up to"),
        (1.13, ["slower", "slower", "faster"], "SLOW", ", with 2 kernels slower"),
        (1.13, ["slower", "new"], "SLOW", "1 kernel slower and 1 kernel in only one of the two"),
        (1.13, ["gone", "new"], "SLOW", ", with 2 kernels in only one of the two"),
        (0.8, ["faster", "slower"], "FAST", ", with 1 kernel faster"),
        (8 / 9, ["faster"], "SAME", "without a spread up to"),
        (1.13, ["same"], "INCONCLUSIVE", "no kernel is slower: idle time of one window"),
        (2.5, ["same"], "SLOW", "; no kernel is slower, so it is idle time"),
        (0.3, [], "FAST", "; no kernel is faster, so it is idle time"),
    ],
)
def test_a_window_is_slower_where_a_kernel_says_so_or_much_is_idle(ratio, words, word, said):
    kernels = [kernel_change(w) for w in words]
    found, reason = trace_compare._window_verdict(
        figure("total time", 1.0, ratio, "s"), kernels, 0.125
    )
    assert found == word and said in reason


def operand(name="a.json", lacks="", devices=("0",)):
    return SimpleNamespace(name=name, lacks=lacks, devices=devices)


def test_what_two_traces_did_is_the_same_work_or_said():
    unlike = trace_compare._no_verdict
    one, two = operand(), operand("b.json", devices=("0", "1"))
    same = [kernel_change("same", counts=(3, 3))]
    assert unlike(one, operand(), same, []) is None
    assert unlike(one, two, same, []) == (
        "INCONCLUSIVE", "1 devices had work before and 2 after")  # fmt: skip
    assert unlike(one, operand("c.json", "It ends early."), same, []) == (
        "INCONCLUSIVE", "c.json is incomplete. It ends early")  # fmt: skip
    more = [kernel_change("same", counts=(3, 4)), kernel_change("same", counts=(1, 1))]
    said = "the two did not do the same work: 4 launches before and 5 after, of the kernels"
    assert said in unlike(one, operand(), more, [])[1]
    step = figure("ProfilerStep#", 1.0, 1.0, "s")
    others = figure("kernels of ProfilerStep#", 4.0, 4.0, "kernels")
    each = figure("kernels of ProfilerStep#", 4.0, 5.0, "kernels")
    assert unlike(one, operand(), more, [step, others]) is None
    assert unlike(one, operand(), more, [step, others, each]) == (
        "INCONCLUSIVE", "kernels of ProfilerStep# are 4 before and 5 after, of the same kernels: a "
        "step did not do the same work")  # fmt: skip
    fused = [*more, kernel_change("new", before=False)]
    assert unlike(one, operand(), fused, [step, each]) is None
    assert unlike(one, operand(), [kernel_change("gone", after=False)], [])[1] == (
        "the two have no kernel and no numbered range in common")  # fmt: skip
    assert unlike(one, operand(), [kernel_change("gone", after=False)], [step]) is None
    counted = (Evidence("c", 1.0, "1", "profiled"),)
    assert (
        unlike(one, operand(), [kernel_change("same", counts=(3, 4), metrics=counted)], []) is None
    )


def test_a_verdict_needs_a_total_with_a_ratio():
    verdict = trace_compare._verdict
    total, none = figure("total time", 1.0, 1.0, "s"), figure("total time", 0.0, 1.0, "s")
    assert none.ratio is None
    assert verdict([], [], [], 0.01) == verdict([none], [], [], 0.01) == (
        "INCONCLUSIVE", trace_compare.NOTHING)  # fmt: skip
    assert verdict([figure("other", 1.0, 9.0), total], [], [], 0.01)[0] == "SAME"
    step, load = figure("Step#", 1.0, 2.0, "s"), figure("load", 1.0, 0.5, "s")
    assert verdict([total], [load, step], [], 0.01)[0] == "SLOW"
    assert verdict([total], [load], [], 0.01)[0] == "FAST"


# Series of commits


def point(n, time_s, ratio=None, **more):
    plain = {"config": "", "binary": "", "environment": None, **more}
    return SimpleNamespace(
        name=SimpleNamespace(text=f"c{n}", dirty=False), time=Ratio(time_s, time_s, time_s),
        ratio=None if ratio is None else Ratio(ratio, ratio, ratio), **plain,
    )  # fmt: skip


def series_of(points, sought_in="time"):
    return SimpleNamespace(points=points, sought_in=sought_in, views={})


@pytest.mark.parametrize(
    ("ratios", "sought"),
    [
        ([1.0, 1.1, 1.2], "ratio"),  # as noisy as the times
        ([1.0, 1.1], "time"),
        ([1.0, 1.3, 1.0], "time"),
        ([1.0] * 9 + [None], "ratio"),
        ([1.0] * 8 + [None] * 2, "time"),
    ],
)
def test_ratios_are_sought_in_where_nearly_all_points_have_quiet_ones(ratios, sought):
    assert series.REFERENCED == 0.9
    times = [1.0, 1.1, 1.2, *[1.3] * 9][: len(ratios)]
    if len(ratios) == 10:
        times = [1.0, 1.1] * 5
    points = [point(n, t, r) for n, (t, r) in enumerate(zip(times, ratios, strict=True))]
    assert series._sought_in(series_of(points)) == sought


def test_an_episode_has_the_levels_of_five_points_on_each_side():
    """Points 2 to 4 are slow: before them two, behind them five count."""
    times = [1.0, 1.2, 3.0, 3.3, 3.1, 1.1, 1.3, 1.4, 1.5, 1.6, 9.0]
    points = [point(n, t) for n, t in enumerate(times)]
    step = change_points.SeriesStep(2, Ratio(2.0, 1.9, 2.1), 1e-6, "episode", 5)
    used = list(range(len(times)))
    change = series._episode(series_of(points), used, step)
    assert (change.before, change.after, change.direction, change.commits) == (1, 2, "episode", 3)
    assert change.old == Ratio(1.3, 1.0, 1.6) and change.new == Ratio(3.1, 3.0, 3.3)
    later = replace(step, index=7, end=9)
    assert series._episode(series_of(points), used, later).old.low == 1.1  # 2 to 6, and 9 to 10
    assert series._episode(series_of(points), used, later).old == Ratio(3.0, 1.1, 9.0)


@pytest.mark.parametrize(
    ("sought_in", "ratio", "in_time", "direction"),
    [("time", 1.1, 0.0, "slower"), ("time", 0.9, 0.0, "faster"),
     ("ratio", math.exp(0.25), 0.125, "slower"),  # the library moved by as much
     ("ratio", math.exp(0.5), 0.125, "library"), ("ratio", math.exp(-0.5), -0.4, "faster")],
)  # fmt: skip
def test_a_library_that_moved_more_than_the_kernel_is_the_reason(
    sought_in, ratio, in_time, direction
):
    assert series._direction(sought_in, ratio, in_time) == direction


def test_of_a_few_runs_the_whole_range_is_the_interval():
    few = [Ratio(float(n), n - 0.5, n + 0.25) for n in range(1, 6)]
    assert series._aggregate(few) == Ratio(3.0, 0.5, 5.25)
    six = [*few, Ratio(6.0, 5.9, 6.1)]
    assert series._aggregate(six) == Ratio(3.5, 1.0, 6.0)
    left = SimpleNamespace(time_s=6.0, low_s=5.0, high_s=8.0)
    right = SimpleNamespace(time_s=3.0, low_s=2.0, high_s=4.0)
    assert series._ratio(left, right) == Ratio(2.0, 1.25, 4.0)
    assert series._ratio(left, replace_names(right, low_s=0.0)).high == pytest.approx(8 / 3)
    assert series._reference([{"a": 1, "b": 1}, {"b": 1}, {"a": 1}, {"c": 1}]) == "a"
    assert series._reference([{}, {}]) == ""


# Statistics


def test_samples_whose_effective_number_is_just_enough_have_order_statistics():
    """With a correlation of a half 18 samples count as six, 15 as five."""
    eighteen, fifteen = [float(n) for n in range(18)], [float(n) for n in range(15)]
    assert stats.least_for(0.95) == 6
    assert stats._effective_interval(eighteen, 0.5, 0.95) == (0.0, 17.0)
    assert stats._effective_interval(fifteen, 0.5, 0.95) == (0.0, 14.0)
    assert stats._effective_interval([float(n) for n in range(60)], 0.5, 0.95) == (
        pytest.approx(59 * 5 / 19), pytest.approx(59 * 14 / 19))  # fmt: skip
    assert stats._effective_interval(eighteen, 0.5, 0.7) == (
        pytest.approx(3.4),
        pytest.approx(13.6),
    )


def test_resamples_taken_in_parts_give_the_same_interval(monkeypatch):
    samples = [1.0 + (7 * n % 11) / 10 for n in range(40)]
    whole = stats.bootstrap_interval(samples)
    monkeypatch.setattr(stats, "_MOST_AT_ONCE", 40 * 300)
    assert stats.bootstrap_interval(samples) == whole


@pytest.mark.parametrize(
    ("ps", "rejected"),
    [([0.05], [True]), ([0.0501], [False]), ([0.025, 0.05], [True, True]),
     ([0.0251, 0.0], [True, True]), ([0.05, 0.0251], [False, False]),
     ([0.02, 0.5, 0.01], [True, False, True]), ([0.5, 0.2, 0.01], [False, False, True])],
)  # fmt: skip
def test_holm_steps_down_from_the_least(ps, rejected):
    assert stats.holm(ps) == rejected


def test_of_two_splits_that_part_as_much_the_first_is_taken():
    assert modes._split([0.0, 1.0, 2.0]) == 1 and modes._split([0.0, 0.1, 2.0]) == 2
    assert modes._split([0.0, 0.0, 0.0]) == 1


# Change points


def test_permutations_taken_in_parts_give_the_same_chance(monkeypatch):
    import numpy as np

    part = np.array([0.0, 1, 0, 2, 1, 0, 1, 3, 0, 1, 2, 0])
    whole = change_points._p_of(part, 2.0)
    monkeypatch.setattr(change_points, "_AT_ONCE", 12 * 500)
    assert change_points._p_of(part, 2.0) == whole
    assert change_points._p_of(np.zeros(12), 0.0) == 1.0  # as large is counted
    assert change_points._p_of(part, 1e9) == 1 / 2000


def test_noise_is_that_from_one_point_to_the_next():
    """Steps of 0.1, 0.1 and 0.3 in logs: the median step is 0.1."""
    values = [math.exp(x) for x in (0.0, 0.1, 0.0, 0.3)]
    assert change_points.noise_of(values) == pytest.approx(1.4826 * 0.1 / math.sqrt(2))
    assert change_points.noise_of(values[:2]) == 0.0
    assert change_points.noise_of(values[:3]) > 0
    assert change_points.levels([1.0, 3.0, 5.0, 7.0], [1, 3]) == [1.0, 4.0, 7.0]


def test_runs_of_three_or_four_points_that_return_are_excursions():
    import numpy as np

    def found(*at, height=1.0, n=20):
        logs = np.array([0.001 * (k % 2) for k in range(n)])
        logs[list(at)] += height
        return [(start, end) for start, end, _ in change_points._excursions(logs)]

    assert found(7, 8, 9) == [(7, 10)] and found(7, 8, 9, 10) == [(7, 11)]
    assert found(7, 8) == [] and found(7, 8, 9, 10, 11) == []
    assert found(5, 6, 7) == [(5, 8)] and found(4, 5, 6) == []
    assert found(12, 13, 14) == [(12, 15)] and found(13, 14, 15) == []
    assert found(5, 6, 7, 13, 14, 9) == [(5, 8)]
    assert found(5, 6, 7, 13, 14, 15, n=21) == [(5, 8), (13, 16)]
    assert found(7, 8, 9, height=-1.0) == [(7, 10)] and found(7, 8, 9, height=0.005) == []


def test_a_ramp_is_found_where_it_begins_and_ends():
    import numpy as np

    part = np.array([0.0] * 10 + [0.1 * n for n in range(1, 20)] + [2.0] * 10)
    begin, end, change, left = change_points._best_ramp(part)
    assert (begin, end) == (9, 30) and change == pytest.approx(2.0) and left == pytest.approx(0.0)


# What is left


def test_a_range_of_text_is_no_tuple_of_numbers():
    test = functools.partial(plain._fits, hint=tuple[float, ...])
    assert test((1.0, 2)) and test(()) and not test([1.0]) and not test((1.0, "a"))
    assert not test("") and not test("ab")
    assert plain._extents({"N": 0, "M": 3}) and not plain._extents({"N": 3, "M": -1})
    assert plain._durations((0.0, 1.0)) and not plain._durations((1.0, -1.0))
    assert not plain._durations((math.inf,)) and not plain._positive(0.0)
    assert not plain._positive(math.inf) and plain._positive(1e-9)
    assert plain._fits(plain.LARGEST, int) and not plain._fits(plain.LARGEST + 1, int)
    assert not plain._fits(True, int) and not plain._fits(math.nan, float)
    assert plain._fits(plain.LARGEST, float) and not plain._fits(True, float)


def test_instructions_of_a_loop_are_for_the_same_work():
    one = SimpleNamespace(instructions=400, groups={"matrix": 2}, load_bytes=8)
    other = SimpleNamespace(instructions=420, groups={"matrix": 2}, load_bytes=4)
    assert compared_pair.loop_rates(one, other) == (200.0, 210.0, "a matrix instruction")
    plain = [replace_names(loop, groups={}) for loop in (one, other)]
    assert compared_pair.loop_rates(*plain) == (50.0, 105.0, "a byte")
    assert compared_pair.loop_rates(one, plain[1]) is None is compared_pair.loop_rates(one, None)
    assert compared_pair.loop_rates(plain[0], replace_names(plain[1], load_bytes=0)) is None


def code_of(
    registers=100, spills=0, occupancy=0.5, bits=64, unit="", launches=1, loop=11, time=1.0
):
    code = CompiledCode("a", launches, {}, HotLoop(loop, {}, 10))
    resources = replace(
        RESOURCES, registers=registers, spill_bytes=spills, occupancy=occupancy, load_bits=bits,
        matrix_unit=unit,
    )  # fmt: skip
    return outcome(code, resources, time and predicted(time))


@pytest.mark.parametrize(
    ("one", "other", "worse"),
    [
        ({"loop": 10}, {"loop": 11}, []),  # a tenth more is what counts
        ({"loop": 10}, {"loop": 12}, ["instructions in the hot loop 1 to 1.2 a byte"]),
        ({"registers": 40}, {"registers": 44}, []),
        ({"registers": 40}, {"registers": 45}, ["registers 40 to 45"]),
        ({"registers": 20}, {"registers": 32}, []),  # so few limit nothing
        ({"registers": 20}, {"registers": 33}, ["registers 20 to 33"]),
        # at full occupancy and the same predicted time they cost nothing
        (
            {"registers": 20, "occupancy": 1.0, "time": 1.0},
            {"registers": 37, "occupancy": 1.0, "time": 1.0},
            [],
        ),
        (
            {"registers": 20, "occupancy": 1.0, "time": None},
            {"registers": 37, "occupancy": 1.0, "time": None},
            ["registers 20 to 37"],
        ),
        (
            {"registers": 20, "occupancy": 1.0, "time": 1.0},
            {"registers": 37, "occupancy": 1.0, "time": 1.01},
            ["registers 20 to 37"],
        ),
        ({"occupancy": 0.5}, {"occupancy": 0.25}, ["occupancy 50 to 25 %"]),
        ({"spills": 8}, {"spills": 24}, ["scratch 8 to 24 B"]),
        ({"spills": 8}, {"spills": 23}, []),
        ({"bits": 128}, {"bits": 64}, ["load width 128 bits to 64 bits"]),
        ({"launches": 1}, {"launches": 2}, ["launches 1 to 2"]),
        ({"time": 1.0}, {"time": 1.25}, []),
        ({"time": 1.0}, {"time": 1.5}, ["predicted time up by 50 %"]),
        ({"time": None}, {"time": 1.5}, []),
    ],
)
def test_code_is_worse_beyond_what_counts(one, other, worse):
    assert list(compared_pair._worse(code_of(**one), code_of(**other), 0.25)) == worse
    back = list(compared_pair._worse(code_of(**one), code_of(**other), 0.25, backwards=True))
    assert len(back) == len(worse) and not set(back) & set(worse)


@pytest.mark.parametrize(
    ("left", "right", "has_ratio"),
    [((1.0,) * 6, (2.0,) * 6, True), ((1.0,) * 6, (2.0,) * 5, False), ((), (), False),
     ((1.0,) * 5 + (0.0,), (2.0,) * 6, False), ((1.0,) * 6, (2.0, -1.0, 2.0) * 2, False)],
)  # fmt: skip
def test_energies_of_the_same_rounds_have_a_ratio(left, right, has_ratio):
    both = [SimpleNamespace(window_joules=joules) for joules in (left, right)]
    found = energy.energy_ratio(*both)
    assert found == (Ratio(2.0, 2.0, 2.0) if has_ratio else None)
    assert energy.energy_ratio(None, both[0]) is None is energy.energy_ratio(both[0], None)


def test_an_expectation_that_cannot_be_judged_leaves_those_behind_it(monkeypatch):
    falls = expected_change.Expectation("c", "c falls", lambda before, after: after < before)
    beside = replace(falls, metric="a", text="a less b", bounding_metric="b")
    monkeypatch.setattr(
        expected_change, "EXPECTED",
        {"x": (replace(falls, metric="none", text="none"), beside,
               replace(beside, bounding_metric="no"), falls)},
    )  # fmt: skip

    def profile(a, b, c, unit="B"):
        some = [Evidence(n, v, u, "profiled") for n, v, u in
                (("a", a, "B"), ("b", b, "B"), ("c", c, unit))]  # fmt: skip
        return SimpleNamespace(metrics=some)

    found = expected_change.expectation_results("x", profile(1.0, 9.0, 5.0), profile(4.0, 3.0, 2.0))
    assert [(r.text, r.state) for r in found] == [
        ("none", "not measured"), ("a less b", "not met"), ("a less b", "not measured"),
        ("c falls", "met")]  # fmt: skip
    odd = expected_change.expectation_results(
        "x", profile(1.0, 9.0, 5.0), profile(4.0, 3.0, 2.0, "s"))  # fmt: skip
    assert [r.state for r in odd][1::2] == ["not met", "not measured"]


def test_a_processor_without_a_name_is_that_of_its_machine(monkeypatch):
    fake = SimpleNamespace(read_text=lambda: "vendor_id : x\n")
    monkeypatch.setattr(environment, "Path", lambda path: fake)
    monkeypatch.setattr(environment.sys, "platform", "linux")
    monkeypatch.setattr(environment.platform, "machine", lambda: "arm64")
    for processor, cpu in (("", "arm64"), ("a chip", "a chip")):
        monkeypatch.setattr(
            environment.platform, "processor", lambda processor=processor: processor
        )
        assert environment._cpu() == cpu
    monkeypatch.setattr(environment.sys, "platform", "darwin")
    for named, cpu in (("Apple M2", "Apple M2"), (None, "arm64")):
        monkeypatch.setattr(environment, "output_of", lambda *words, named=named: named)
        assert environment._cpu() == cpu
    fake.read_text = lambda: "model name\t: Xeon  \nmodel name\t: other\n"
    assert environment._cpu() == "Xeon"


def test_a_project_is_the_first_repository_above_a_folder(tmp_path):
    (tmp_path / "outer" / "inner" / "deep").mkdir(parents=True)
    (tmp_path / "outer" / "other").mkdir()
    (tmp_path / "outer" / ".git").mkdir()
    deep, other = tmp_path / "outer/inner/deep", tmp_path / "outer/other"
    assert project.project_id(deep) == project.project_id(other)
    (tmp_path / "outer" / "inner" / ".git").mkdir()
    assert project.project_id(deep) != project.project_id(other)
    assert project.project_id(tmp_path) != project.project_id(other)


def test_one_launch_of_more_than_nine_tenths_is_said():
    def said(*lengths):
        table = trace_of(*((KERNEL, f"k{n}", 0, length) for n, length in enumerate(lengths)))
        return shortfall.lone_kernel(table.activities, range(len(lengths)))

    assert said(*[1] * 9, 81) == ""  # nine tenths
    assert said(*[1] * 4, 82, *[1] * 5) == (
        "one launch of k4 holds 90.1 % of the kernel time of its device")  # fmt: skip
    assert said(*[1] * 8, 900) == "" and said() == ""
    shifted = trace_of(*((KERNEL, "k", 1000, 1001) for _ in range(9)), (KERNEL, "one", 5, 95))
    assert "one launch of one holds 90.9 %" in shortfall.lone_kernel(shifted.activities, range(10))


def test_stalls_are_shares_of_their_sum():
    def profile(*values):
        some = tuple(Evidence(n, v, "1", "profiled") for n, v in values)
        return SimpleNamespace(metrics=some, total_s=2.0)

    three = profile(("stall_a", 3.0), ("stall_b", 1.0), ("c", 7.0))
    assert rule_metrics.profile_metrics(three) == {
        "stall_a": 0.75, "stall_b": 0.25, "c": 7.0, "duration": 2.0}  # fmt: skip
    assert rule_metrics.profile_metrics(profile(("stall_a", 0.0)))["stall_a"] == 0.0
    assert rule_metrics.profile_metrics(profile(("duration", 5.0)))["duration"] == 5.0


@pytest.mark.parametrize(("count", "is_long"), [(4096, False), (4097, True)])
def test_lists_and_objects_of_a_returned_file_have_a_most(count, is_long):
    assert (returned._fault([0] * count) is not None) is is_long
    assert (returned._object_fault({f"k{n}": 0 for n in range(count)}) is not None) is is_long


@pytest.mark.parametrize(
    ("value", "fault"),
    [(1 << 63, None), ((1 << 63) + 1, "a number that is too large"), (-(1 << 63), None),
     (9.9e299, None), (1e300, "a number that is not finite"),
     (math.inf, "a number that is not finite"),
     ("x" * 600, None), ("x" * 601, "a text that is too long or not printable"),
     ([1, ["a", {"k": "é"}]], "a text that is too long or not printable"),
     ({"1": 0}, "a key that is not a name"), ({"a" * 61: 0}, None),
     ({"a" * 62: 0}, "a key that is not a name"),
     ([{}, {"a": "/home/x/y"}], "a path"), (None, None), (True, None)],
)  # fmt: skip
def test_what_is_not_allowed_in_a_returned_file_is_said(value, fault):
    assert returned._fault(value) == fault


def test_a_lock_whose_holder_lives_is_left_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(locks.tempfile, "gettempdir", lambda: str(tmp_path))
    lock = locks.Lock("test", "one", "the test", stays=False)
    slept = []
    monkeypatch.setattr(locks.time, "sleep", slept.append)
    locks.remove_stale_file(lock)  # there is none
    locks.remove_stale_file(locks.Lock("test", "not \udcff.py", "a file's name that is not UTF-8"))
    lock.path.touch()
    locks.remove_stale_file(lock)
    assert not lock.path.exists() and not slept
    asked = []

    def held(lock, on_wait, timeout_s):
        asked.append(timeout_s)
        raise locks.LockBusy("held")

    monkeypatch.setattr(locks, "hold_lock", held)
    lock.path.touch()
    locks.remove_stale_file(lock)
    assert asked == [0] and lock.path.exists()


def test_a_stop_waits_for_the_outermost_of_blocks():
    one = interrupts.Interrupts()
    with pytest.raises(interrupts.CtrlC), one.later():
        with one.later():
            one.begin(2)
            one._is_due = True
        assert one._hold_count == 1 and one._is_due
    assert one._hold_count == 0


@pytest.mark.parametrize("is_within", [True, False])
def test_a_stop_of_a_program_is_that_of_the_command(monkeypatch, is_within):
    one = interrupts.Interrupts()
    repeated = []
    monkeypatch.setattr(one, "repeat", repeated.append)
    monkeypatch.setattr(interrupts.Interrupts, "_current", one if is_within else None)
    with pytest.raises(interrupts.CtrlC):
        interrupts.stop_by(15)
    interrupts.repeat_stop(0.5)
    assert (one.number, repeated) == ((15, [0.5]) if is_within else (None, []))
    assert one.exit_code == (143 if is_within else 130)


def test_threads_beyond_the_slots_leave_no_mark():
    marks = user_code.Marks.__new__(user_code.Marks)
    marks._lock = user_code.threading.Lock()
    marks._threads = {-n: n for n in range(user_code.THREADS)}
    assert marks._slot() is None and marks.set(user_code.Mark("x", 1.0, 2.0)) == user_code.Mark()
    marks._threads = {-n: n for n in range(user_code.THREADS - 1)}
    assert marks._slot() == user_code.THREADS - 1


# The database


@pytest.fixture
def history(tmp_path):
    with database.open_history(f"sqlite:///{tmp_path / 'history.db'}") as opened:
        yield opened


STARTED_S = 1_700_000_000


def moment(seconds):
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def stored(history, *names, **more):
    """Store runs with these names, one second apart, each with an outcome; return the outcome."""
    run, outcomes = synthetic.copy()
    record = next(o for o in outcomes if isinstance(o, Record))
    for n, name in enumerate(names):
        at = moment(STARTED_S + n)
        history.add_run(replace(run, id=name, started=at, **more))
        history.add(replace(record, run=name, at=at))
        history.finish_run(name, "complete")
    return record


def damage(history, table, column, value, where):
    with history._writing() as db:
        db.exec_driver_sql(f"update {table} set {column} = ? where {where}", (value,))


@pytest.mark.parametrize(("page", "looks"), [(1, 4), (2, 2), (3, 2), (4, 1)])
def test_runs_are_read_a_page_at_a_time_until_one_is_not_full(history, monkeypatch, page, looks):
    stored(history, "a", "b", "c")
    monkeypatch.setattr(database, "_RUNS_AT_ONCE", page)
    opened, real = [], history._reading
    monkeypatch.setattr(history, "_reading", lambda: opened.append(1) or real())
    assert [run.id for run in history.newest_runs()] == ["c", "b", "a"]
    assert len(opened) == looks


def test_what_is_damaged_is_counted_each_time(history):
    stored(history, "a", "b", "c", "d")
    damage(history, "runs", "payload", "no JSON", "id in ('a', 'c')")
    assert [run.id for run in history.runs()] == ["d", "b"] and history.damaged == 2
    damage(history, "runs", "started_epoch_s", "never", "id in ('b', 'd')")
    assert sorted(history.run_facts()) == ["a", "c"] and history.damaged == 4
    damage(history, "outcomes", "time_s", "long", "run in ('a', 'b')")
    rows = history.best_times("first_pass") + history.best_times("final")
    assert history.damaged == 4 + (4 - len(rows)) and len(rows) == 2


def test_the_best_time_of_an_impl_in_a_run_is_its_least(history):
    record = stored(history, "a")
    case = record.case
    for n, (impl, time_s) in enumerate((("x", 3e-6), ("x", 2e-6), ("x", 4e-6), ("y", 5e-6))):
        timing = replace(record.timing, median_s=time_s)
        history.add(replace(record, run="a", key=f"k{n}", case=replace(case, impl=impl),
                            timing=timing, phase=record.phase))  # fmt: skip
    found = {row.impl: row.time_s for row in history.best_times(record.phase)}
    assert (found["x"], found["y"]) == (2e-6, 5e-6)


@pytest.mark.parametrize(
    ("sizes", "time_s", "fits"),
    [('{"N": 0}', 1.0, True), ('{"N": -1}', 1.0, False), ({"N": 8}, 1.0, True), ("[]", 1.0, False),
     ('{"N": 8}', 0.0, False), ('{"N": 8}', math.inf, False), ('{"N": 1.5}', 1.0, False),
     ('{"N', 1.0, False), ('{"N": 8}', "1", False)],
)  # fmt: skip
def test_a_row_of_a_best_time_is_what_it_must_be(sizes, time_s, fits):
    row = SimpleNamespace(id=7, run="a", kernel="k", impl="i", dtype="bf16", device="d",
                          sizes=sizes, time_s=time_s)  # fmt: skip
    assert (database._best_time(row) is not None) is fits
    assert database._best_time(SimpleNamespace(**{**vars(row), "kernel": "a\nb"})) is None
    assert database._best_time(SimpleNamespace(**{**vars(row), "run": "../a"})) is None


@pytest.mark.parametrize(
    ("before_s", "old"), [(STARTED_S, 0), (STARTED_S + 1, 1), (STARTED_S + 2, 2)]
)
def test_runs_are_old_that_began_before_a_moment(history, monkeypatch, before_s, old):
    record = stored(history, "a", "b", "c")
    history.add(replace(record, run="nobody", at=moment(STARTED_S)))
    monkeypatch.setattr(database, "_BATCH", 1)
    found = history.old_runs(before_s)
    assert found.runs == ("b", "a")[2 - old :] and found.orphans == (
        0 if before_s == STARTED_S else 1
    )
    assert found.counts["outcomes"] == old
    history.delete(found)
    assert [run.id for run in history.runs()] == ["c", "b", "a"][: 3 - old]


def test_a_run_of_the_last_day_that_did_not_end_may_still_run(history, monkeypatch):
    run, _ = synthetic.copy()
    for n in range(3):
        history.add_run(replace(run, id=f"r{n}", started=moment(STARTED_S + n)))
    monkeypatch.setattr(database.time, "time", lambda: STARTED_S + 1 + 86400.0)
    assert history.old_runs(None).runs == ("r1", "r0")  # a day ago, and longer
    history.finish_run("r2", "complete")
    assert history.old_runs(None).runs == ("r2", "r1", "r0")
    assert history.old_runs(None, needed={"r1"}).runs == ("r2", "r0")
    assert history.old_runs(None, keep=1).runs == ("r1", "r0")


@pytest.mark.parametrize(
    ("several", "shown"),
    [(["a"], "(a);"), (["a", "b", "c"], "(a, b, c);"), (["a", "b", "c", "d"], "(a, b, c, ...);")],
)
def test_three_runs_that_begin_alike_are_named(history, several, shown):
    assert shown in history._no_run("x", several)
    assert "holds no run yet" in history._no_run("last", [])
    assert "holds no run 'x'" in history._no_run("x", [])


def test_an_import_counts_what_it_holds_and_what_it_cannot_read(history, tmp_path, monkeypatch):
    run, outcomes = synthetic.copy()
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        log.write(run)
        for outcome in outcomes[:3]:
            log.write(outcome)
    path.write_bytes(path.read_bytes() + b"one\ntwo\n")
    with EventLog(path) as log:
        for outcome in outcomes[3:5]:
            log.write(outcome)
        log.write(RunFinished(run.started, run.id, "complete", {}))
    path.write_bytes(path.read_bytes() + b"three\n")
    monkeypatch.setattr(database, "_BATCH", 2)
    monkeypatch.setattr(database, "_MANY_BAD", 2)
    found = history.import_events(path)
    assert (found.total, found.unreadable, len(found.bad)) == (7, 3, 2)
    assert len(history.outcomes(run.id)) == 5 and history.state(run.id) == "complete"


def slept_by(module, monkeypatch):
    """Return the seconds that a module asks to sleep; each sleep takes one second."""
    now, slept = [0.0], []

    def sleep(seconds):
        slept.append(seconds)
        now[0] += 1.0

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    return slept


def test_a_file_that_two_processes_open_is_tried_again_until_its_seconds_are_over(monkeypatch):
    slept = slept_by(database, monkeypatch)
    monkeypatch.setattr(database, "_BUSY_S", 2.0)

    def fails(error):
        def connect():
            raise error

        one = database.History.__new__(database.History)
        one._engine, one._guard = SimpleNamespace(connect=connect), lambda verb: nullcontext()
        return one

    with pytest.raises(sqlite3.OperationalError):
        fails(sqlite3.OperationalError("database is locked"))._use_wal()
    assert slept == [0.02] * 3  # at 0, 1 and 2 s; at 3 s the time is over
    with pytest.raises(sqlite3.OperationalError):
        fails(sqlite3.OperationalError("disk is full"))._use_wal()
    assert len(slept) == 3


def test_an_events_file_that_was_torn_ends_within_a_line(tmp_path):
    path = tmp_path / "events.jsonl"
    for data in (b"", b"a\n", b"a\nb", b"\n", b"b"):
        path.write_bytes(data)
        handle = os.open(path, os.O_RDWR)
        assert events._ends_torn(handle) is data.endswith(b"b")
        os.close(handle)


def test_an_events_file_that_cannot_be_opened_leaves_nothing_open(tmp_path, monkeypatch):
    def fails(handle):
        raise OSError("odd")

    closed = []
    monkeypatch.setattr(events, "_ends_torn", fails)
    monkeypatch.setattr(EventLog, "close", lambda self: closed.append(self._file is not None))
    with pytest.raises(events.EventsError, match="cannot open the events file"):
        EventLog(tmp_path / "events.jsonl")
    assert closed[0] is True


# Streams


def test_a_fifo_is_opened_when_somebody_reads_from_it(tmp_path, monkeypatch):
    """Nobody reads: looks at 0, 1 and 2 s, and at 3 s the time is over."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    slept = slept_by(files, monkeypatch)
    monkeypatch.setattr(files, "OTHER_END_S", 2.0)
    with pytest.raises(OSError, match="no process reads from it"):
        files.open_stream(path)
    assert len(slept) == 3
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    handle = files.open_stream(path)
    assert os.get_blocking(handle)
    os.close(handle), os.close(reader)
    del slept[:]
    with pytest.raises(OSError, match="no process writes to it"):
        files.open_to_read(path)
    assert len(slept) == 3


# More of the host, of stops and of values


def test_the_first_activity_of_a_file_launches_a_copy():
    """The call is activity 0, and the operation around it comes behind it in the file."""
    trace = trace_of(
        (CALL, "cudaMemcpyAsync", 0, 40, 1), (COPY, "copy", 50, 90, 1), (OP, "aten::copy_", -5, 45),
        (KERNEL, "k", 95, 99, 2),
    )  # fmt: skip
    launches = trace.activities.launches()
    times = timeline.device_times(trace, "0", launched_only=False)
    whole = replace(times, start=-10)
    assert list(host_work.copy_calls(trace, whole, launches).pairs()) == [(-5, 45)]
    assert host_work.operations_of(trace.activities, launches, [1, 3]) == [2, -1]
    alone = trace_of((OP, "aten::copy_", 0, 45), (CALL, "cudaMemcpyAsync", 1, 40, 1),
                     (COPY, "copy", 50, 90, 1))  # fmt: skip
    launches = alone.activities.launches()
    assert host_work.operations_of(alone.activities, launches, [2]) == [0]
    times = replace(timeline.device_times(alone, "0"), start=0)
    assert list(host_work.copy_calls(alone, times, launches).pairs()) == [(0, 45)]


def test_ranges_take_what_was_launched_before_their_end():
    """A call at 10 starts the first kernel; the second has no launch and begins at the end."""
    trace = trace_of(
        (CALL, "launch", 10, 12, 1), (RANGE, "step", 10, 20), (KERNEL, "a", 30, 35, 1),
        (KERNEL, "b", 20, 25), (KERNEL, "c", 19, 21),
    )  # fmt: skip
    launches = trace.activities.launches()
    times = timeline.device_times(trace, "0", launched_only=False)
    moments = host_work._launch_moments(trace.activities, times, launches)
    assert host_work._work_by_range(trace.activities, [1], moments) == [[2, 4]]
    (row,) = host_work.range_rows(trace, times, launches)
    assert (row.count, row.kernels, row.busy_ns, row.window_ns) == (1, 2, 7, 16)
    assert (row.low_ns, row.median_ns, row.high_ns) == (25, 25, 25)


def test_a_range_begins_no_earlier_than_the_one_before_it_ended():
    trace = trace_of((RANGE, "s", 0, 10), (RANGE, "s", 10, 20), (RANGE, "s", 15, 18),
                     (RANGE, "s", 12, 30, -1, "q"))  # fmt: skip
    table = trace.activities
    assert host_work._range_lengths(table, [0, 1, 3, 2], []) == [10, 10, 18, 3]
    work = [[], [3], [], []]  # the second lasts until 30
    assert host_work._range_lengths(table, [0, 1, 3, 2], work) == [10, 20, 18, 3]


def test_of_works_of_one_length_the_first_explains_a_gap():
    trace = trace_of((OP, "first", 10, 16), (OP, "second", 12, 18), (OP, "third", 20, 30),
                     (KERNEL, "a", 0, 10), (KERNEL, "b", 20, 30))  # fmt: skip
    times = timeline.device_times(trace, "0", launched_only=False)
    (gap,) = host_work.longest_gaps(trace, times, trace.activities.launches())
    assert (gap.host, gap.host_share) == ("first", 0.6)


@pytest.mark.parametrize(
    ("before", "after", "holds"),
    [(8.0, 6.0, True), (8.0, 6.01, False), (0.0, 0.0, False), (1e-9, 0.0, True)],
)
def test_a_metric_falls_by_its_share_at_least(before, after, holds):
    assert expected_change._falls(0.25)(before, after) is holds


def test_shares_of_samples_need_samples():
    word = instruction_metrics.STALL
    totals = {f"{word}a": 3.0, f"{word}b": 1.0, f"{word}a b": 9.0, "other": 9.0}
    table = SimpleNamespace(heads=list(totals), total=totals.__getitem__)
    found = instruction_metrics.sampled_stalls(table)
    assert found == {instruction_metrics.reason_of(f"{word}{n}"): share for n, share in
                     (("a", 0.75), ("b", 0.25))}  # fmt: skip
    table.total = lambda head: 0.0
    assert instruction_metrics.sampled_stalls(table) == {}


@pytest.mark.parametrize(
    ("after_s", "name", "raises", "again"),
    [(20.0, "work", False, False), (20.1, "work", True, False), (0.0, "acquire", False, True)],
)
def test_a_second_signal_interrupts_after_its_seconds(monkeypatch, after_s, name, raises, again):
    """The first came at 0 s; the function that is interrupted has this name."""
    one, sent = interrupts.Interrupts(), []
    now = [0.0]
    monkeypatch.setattr(interrupts.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(one, "_send", sent.append)
    frame = SimpleNamespace(f_code=SimpleNamespace(co_name=name), f_back=None)
    with pytest.raises(interrupts.CtrlC) if not again else nullcontext():
        one._hit(2, frame)
    assert sent == ([interrupts.RETRY_S] if again else [])
    now[0] = after_s
    with pytest.raises(interrupts.CtrlC) if raises else nullcontext():
        one._hit(15, frame)
    assert one.number == 2


@pytest.mark.parametrize(
    ("name", "importing", "waited_s", "is_due"),
    [("acquire", 0, 0.99, True), ("acquire", 0, 1.0, False), ("work", 1, 9.9, True),
     ("work", 1, 10.0, False), ("work", 0, 0.0, False)],
)  # fmt: skip
def test_a_stop_is_put_off_in_locks_and_imports(monkeypatch, name, importing, waited_s, is_due):
    one, sent = interrupts.Interrupts(), []
    monkeypatch.setattr(interrupts.time, "monotonic", lambda: waited_s)
    monkeypatch.setattr(one, "_send", sent.append)
    frame = SimpleNamespace(f_code=SimpleNamespace(co_name=name), f_back=None)
    for _ in range(importing):
        frame.f_back = SimpleNamespace(
            f_code=SimpleNamespace(co_name=interrupts.IMPORTING), f_back=None
        )
    one.number, one._is_due = 2, True
    with nullcontext() if is_due else pytest.raises(interrupts.CtrlC):
        one._raise_due(frame)
    assert one._is_due is is_due and sent == [interrupts.RETRY_S] * is_due
    one.end()
    one._raise_due(None)


@pytest.mark.parametrize("joules", [None, 0.0, -1.0, 2.0])
def test_work_per_joule_needs_joules(monkeypatch, joules):
    taken = None if joules is None else SimpleNamespace(joules=joules)
    monkeypatch.setattr(energy, "energy_of", lambda record: taken)
    record = SimpleNamespace(bytes=4e9, flops=8e9)
    found = [energy.work_per_joule(record, memory) for memory in (True, False)]
    assert found == ([(2.0, "GB/J"), (4.0, "GFLOP/J")] if joules == 2.0 else [None, None])


def test_of_points_that_nothing_beats_equal_ones_stand_once():
    points = [(1.0, 5.0), (2.0, 5.0), (1.0, 5.0), (3.0, 4.0), (0.5, 9.0), (3.0, 4.5)]
    assert energy.pareto_front(points) == [4, 0, 3] and energy.pareto_front([]) == []


@pytest.mark.parametrize(
    ("value", "is_ceiling"),
    [
        ({"value": 1.0, "unit": "B/s", "source": "x", "kind": "measured"}, True),
        ({"value": 1.0, "unit": "B/s", "source": "x", "kind": "measured", "low": 0.5}, True),
        ({"value": 1.0, "unit": "B/s", "source": "x"}, False),
        ({"unit": "B/s", "source": "x", "kind": "missing"}, True),
        ({"value": None, "unit": "B/s", "source": "x", "kind": "missing"}, True),
        ({"value": None, "unit": "B/s", "source": "x", "kind": "measured"}, False),
        ({"value": 0.0, "unit": "B/s", "source": "x", "kind": "measured"}, False),
        ({"value": 1.0, "unit": 1, "source": "x", "kind": "measured"}, False),
        ({"value": 1.0, "unit": "B/s", "source": "x", "kind": "measured", "library": "x"}, False),
        ({"value": 1.0, "unit": "B/s", "source": "x", "kind": "measured", "stated": {}}, True),
        ({"value": 1.0, "unit": "B/s", "source": "x", "kind": "measured", "state": "odd"}, False),
    ],
)
def test_a_ceiling_is_what_was_stated_or_measured(value, is_ceiling):
    assert bool(plain._ceiling(value)) is is_ceiling


# Steps of a series


def step_at(at, ratio, p=1e-4):
    return change_points.SeriesStep(at, Ratio(ratio, ratio, ratio), p)


def test_steps_of_one_direction_over_a_ramp_are_a_drift():
    """Twelve points of a ramp are enough, eleven are not; the p is the largest of the steps'."""
    import numpy as np

    def kept(length, *steps):
        ramp = [0.01 * n for n in range(1, length)]
        series = np.array([0.0] * 15 + ramp + [0.01 * length] * 15)
        return change_points._join_drifts(series, list(steps))

    up = [step_at(18, 1.05, 1e-4), step_at(24, 1.05, 3e-4)]
    (drift,) = kept(12, *up)
    assert (drift.kind, drift.index, drift.end, drift.p) == ("drift", 15, 27, 3e-4)
    assert drift.ratio.middle == pytest.approx(math.exp(0.12))
    assert kept(4, *up) == up  # too short


@pytest.mark.parametrize(
    ("effect", "is_weak"), [(2.0, False), (1.999, True), (0.5, False), (1 / 1.999, True)]
)
def test_a_step_of_the_least_effect_is_listed(effect, is_weak):
    found = change_points._weakness(step_at(3, effect, 0.5), 1.0)
    assert found == (is_weak, 0.5, -abs(math.log(effect)))


def test_nine_values_have_no_steps():
    values = [1.0] * 4 + [2.0] * 5
    assert change_points.steps(values) == change_points.episodes(values) == []


# Ties


def test_excursions_at_the_limit_of_their_level():
    """Without noise the limit is a hundredth; levels that far apart are one, a run that high is
    none, and one whose least is half of its most is none."""
    import numpy as np

    limit = math.log1p(0.01)

    def found(left, run, right):
        logs = np.array([*left, *run, *right], dtype=float)
        return [(start, end) for start, end, _ in change_points._excursions(logs)]

    zero, high = [0.0] * 5, [1.0] * 3
    assert found(zero, high, [limit] * 5) == [(5, 8)]
    assert found(zero, high, [1.01 * limit] * 5) == []
    assert found(zero, [limit] * 3, zero) == [] and found(zero, [1.01 * limit] * 3, zero) == [
        (5, 8)
    ]
    assert found(zero, [1.0, 2.0, 1.0], zero) == []
    assert found(zero, [1.1, 2.0, 1.1], zero) == [(5, 8)]
    assert found([0.0] * 4 + [1.0], [2.0] * 3, zero) == [(5, 8)]
    assert found([0.0] * 4 + [1.01], [2.0] * 3, zero) == []


def test_of_ramps_that_fit_as_well_the_first_is_taken():
    import numpy as np

    with np.errstate(divide="raise", invalid="raise"):
        assert change_points._best_ramp(np.zeros(20)) == (0, 2, 0.0, 0.0)


def test_levels_that_leave_nothing_are_no_drift(monkeypatch):
    import numpy as np

    exact = np.array([0.0] * 10 + [1.0] * 10)
    for left in (0.0, 1.0):
        monkeypatch.setattr(change_points, "_best_ramp", lambda part, left=left: (0, 20, 1.0, left))
        assert change_points._join_drifts(exact, [step_at(10, 2.0)]) == [step_at(10, 2.0)]
    monkeypatch.setattr(change_points, "_best_ramp", lambda part: (0, 20, 1.0, 0.0))
    assert change_points._join_drifts(exact, [step_at(9, 2.0)]) == [step_at(9, 2.0)]


@pytest.mark.parametrize(
    ("steps", "gain", "length", "is_drift"),
    [(2, 0.0, 12, True), (2, 0.0, 11, False), (2, -3.1, 12, False), (2, -2.9, 12, True),
     (1, 8.9, 12, False), (1, 9.1, 12, True), (3, -8.9, 12, True), (3, -9.1, 12, False)],
)  # fmt: skip
def test_a_drift_must_gain_what_its_parameters_cost(monkeypatch, steps, gain, length, is_drift):
    """Twenty points, whose log is 3.0: of one step a ramp costs 3 and the 6 of being sure, of two
    it saves 3, of three 9."""
    import numpy as np

    assert round(math.log(20), 3) == 2.996
    monkeypatch.setattr(change_points, "SURE", 9.0 - math.log(20))
    series = np.array([0.0, 1.0] * 10)
    levels = [step_at(n, 1.1) for n in (6, 10, 14)[:steps]]
    cuts = [step.index for step in levels]
    whole = sum(float(((p - p.mean()) ** 2).sum()) for p in np.split(series, cuts))
    by = gain if steps == 1 else gain / 3.0 * math.log(20)
    monkeypatch.setattr(
        change_points, "_best_ramp", lambda part: (3, 3 + length, 0.5, whole / math.exp(by / 20))
    )
    found = change_points._join_drifts(series, levels)
    assert [step.kind for step in found] == (["drift"] if is_drift else ["step"] * steps)
    if is_drift:
        assert (found[0].index, found[0].end) == (4, 3 + length)


@pytest.mark.parametrize(
    ("low", "high", "count", "has_two"),
    [
        ((10, 1.0), (10, 2.0), 20, True),
        ((5, 1.0), (15, 2.0), 20, None),
        ((20, 0.0), (20, 2.0), 40, False),
        ((20, -1.0), (20, 2.0), 40, False),
    ],
)
def test_two_modes_are_of_enough_positive_samples(monkeypatch, low, high, count, has_two):
    samples = [value for many, value in (low, high) for _ in range(many)]
    monkeypatch.setattr(modes, "LEAST_SAMPLES", count)
    monkeypatch.setattr(modes, "LEAST_SHARE", 0.25)
    found = modes.modes_of(samples)
    if has_two is not False:  # a quarter of them is enough
        assert [(m.share, m.median_s) for m in found] == [
            (many / count, value) for many, value in (low, high)]  # fmt: skip
        monkeypatch.setattr(modes, "LEAST_SAMPLES", count + 1)
    assert modes.modes_of(samples) == ()


def test_modes_as_far_apart_as_is_asked_are_two(monkeypatch):
    """Medians of 1 and 2; each half has a width of 0.25 between its first and last tenth."""
    low = [0.75] * 4 + [1.0] * 12 + [1.25] * 4
    samples = low + [x + 1.0 for x in low]
    monkeypatch.setattr(modes, "LEAST_SAMPLES", 40)
    for ratio, clear, count in ((2.0, 2.0, 2), (2.01, 2.0, 0), (2.0, 2.01, 0)):
        monkeypatch.setattr(modes, "LEAST_RATIO", ratio)
        monkeypatch.setattr(modes, "CLEAR", clear)
        assert len(modes.modes_of(samples)) == count


def test_an_operation_that_is_the_first_of_its_file_names_a_class():
    trace = trace_of((OP, "aten::mm", 0, 9), (CALL, "launch", 1, 2, 1), (KERNEL, "k", 20, 30, 1),
                     (KERNEL, "softmax", 40, 45))  # fmt: skip
    launches = trace.activities.launches()
    times = timeline.device_times(trace, "0", launched_only=False)
    rows = kernel_class.class_rows(trace, times, launches)
    assert [(row.name, row.count, row.total_ns, row.rules) for row in rows] == [
        ("GEMM", 1, 10, (("launched by aten::mm", 10),)),
        ("softmax", 1, 5, (("its name holds softmax", 5),))]  # fmt: skip


def test_a_start_behind_zero_is_not_a_time_of_zero():
    body = [(10**13 + 200 * n, 10**13 + 200 + 200 * n) for n in range(5)]
    assert bad_of((1, 50), *body) == {0: plausible.OUTSIDE}
    assert bad_of((0, 50), *body) == {0: plausible.ZERO}


def test_a_lock_that_another_holds_is_busy_after_its_seconds(tmp_path, monkeypatch):
    """The clock stands at 5 s: without seconds to wait it is busy at once."""
    import fcntl

    monkeypatch.setattr(locks.tempfile, "gettempdir", lambda: str(tmp_path))
    now, slept = [5.0], []

    def sleep(seconds):
        slept.append(seconds)
        now[0] += 1.0

    monkeypatch.setattr(locks, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    lock = locks.Lock("test", "one", "the test")
    other = locks._open_file(lock)
    fcntl.flock(other, fcntl.LOCK_EX)
    said = []
    for timeout_s, waits in ((0, 0), (2, 2)):
        with (
            pytest.raises(
                locks.LockBusy, match=f"another process still holds the test after {timeout_s} s"
            ),
            locks.hold_lock(lock, said.append, timeout_s),
        ):
            pass
        assert len(slept) == waits
    locks._sign(other, 4321)
    with (
        pytest.raises(locks.LockBusy, match="process 4321 still"),
        locks.hold_lock(lock, said.append, 1),
    ):
        pass
    assert said == ["waiting for the test, which another process holds",
                    "waiting for the test, which process 4321 holds"]  # fmt: skip
    locks._sign(other, os.getpid())
    with (
        pytest.raises(locks.LockBusy, match="this process holds"),
        locks.hold_lock(lock, said.append),
    ):
        pass
    os.close(other)
    with locks.hold_lock(lock, said.append):
        assert locks._holder(os.open(lock.path, os.O_RDONLY)) == os.getpid()
    assert lock.path.read_bytes() == b"" and len(said) == 2


def test_two_runs_of_one_import_count_both(history):
    run, outcomes = synthetic.copy()
    two = [run, replace(run, id="other"), outcomes[0], replace(outcomes[0], run="other")]
    assert history.import_run(two) == 4 and len(history.runs()) == 2


def test_rows_without_a_time_are_neither_best_nor_damaged(history):
    stored(history, "a", "b")
    damage(history, "outcomes", "time_s", 0, "run = 'a'")
    rows = [*history.best_times("first_pass"), *history.best_times("final")]
    assert [row.run for row in rows] == ["b"] and history.damaged == 0
    damage(history, "outcomes", "sizes", "{", "run = 'a'")
    for looks in (1, 2):
        assert [row.run for row in history.search()] == ["b"] and history.damaged == looks


# Small parts


@pytest.mark.parametrize(
    ("text", "said"),
    [("x" * 400, 300), ("an error: " + "x" * 400, 300), ("x", len("ValueError: x")), ("", 10)],
)
def test_an_error_is_said_in_three_hundred_letters(text, said):
    assert len(errors.first_sentence(ValueError(text))) == said
    assert len(errors.first_sentence(errors.WorkbenchError("y" * 400))) == 300
    lines = "at 3:4:\n  x = y\nIt cannot be added."
    assert errors.first_sentence(ValueError(lines)) == "ValueError: It cannot be added."
    assert errors.first_sentence(ValueError("first\nthird error: here")) == "third error: here"
    caused = ValueError("at 3:4:")
    caused.__cause__ = KeyError("no")
    assert errors.first_sentence(caused) == "KeyError: 'no'"


@pytest.mark.parametrize(
    ("soft", "hard", "limit"), [(-1, -1, 500), (400, -1, 400), (900, 300, 300), (600, 700, 500)]
)
def test_the_memory_of_a_process_is_a_share_of_the_machine_s(monkeypatch, soft, hard, limit):
    import resource

    taken = []
    monkeypatch.setattr(memory, "total_bytes", lambda: 1000)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: taken.append(limits))
    memory.limit_memory(0.5)
    assert taken == [(limit, hard)] and resource.RLIM_INFINITY == -1


def test_energy_beyond_the_idle_board_s_and_the_bytes_of_sectors():
    """A fifth of the power is the idle board's. 3 sectors four times, and 5 half a time: 14.5."""
    active = record.Energy.active_joules.fget
    assert active(SimpleNamespace(joules=10.0, idle_w=20.0, power_w=100.0)) == 8.0
    assert active(SimpleNamespace(joules=10.0, idle_w=20.0, power_w=0.0)) == 10.0
    buffers = [SimpleNamespace(sectors=3, scale=4.0), SimpleNamespace(sectors=5, scale=0.5)]
    counts = SimpleNamespace(buffers=buffers)
    (kind,) = [k for k in vars(record).values() if isinstance(k, type)
               and "counted_bytes" in vars(k)]  # fmt: skip
    assert kind.counted_bytes.fget(counts) == 256 and kind.bytes.fget(counts) == 464


def test_times_that_cannot_be_are_left_out_and_counted():
    trace = trace_of((KERNEL, "k", 0, 0), (KERNEL, "k", 9, 3), (KERNEL, "k", 5, 8),
                     (OP, "o", 7, 2))  # fmt: skip
    drop_impossible(trace)
    assert [(a.start, a.end) for a in trace.activities] == [(5, 8)]
    assert trace.tally.bad == {
        (plausible.DEVICE, plausible.ZERO): 1, (plausible.DEVICE, plausible.BACKWARD): 1,
        (plausible.HOST, plausible.BACKWARD): 1}  # fmt: skip


@pytest.mark.parametrize(
    ("version", "is_refused"),
    [(database.SCHEMA, False), (database.SCHEMA + 1, True), (None, True), ("1", True)],
)
def test_a_database_of_a_newer_schema_is_refused(history, version, is_refused):
    db = SimpleNamespace(scalar=lambda query: version)
    with pytest.raises(database.HistoryError) if is_refused else nullcontext():
        history._refuse_newer(db)


def test_a_lock_whose_file_was_removed_is_taken_anew(tmp_path, monkeypatch):
    """The first two files are gone when they are locked, as their last holders removed them."""
    monkeypatch.setattr(locks.tempfile, "gettempdir", lambda: str(tmp_path))
    lock = locks.Lock("test", "one", "the test", stays=False)
    seen = iter((False, False, True))
    monkeypatch.setattr(locks, "_is_there", lambda handle, path: next(seen))
    with locks.hold_lock(lock, lambda _: None, 0):
        assert lock.path.read_text() == str(os.getpid()) and next(seen, "all") == "all"
    assert not lock.path.exists()


def test_a_mac_s_settings_are_those_that_are_known(monkeypatch):
    known = mac.Mac("Apple M2 Max", 38, 32 << 30, "ac", False)
    monkeypatch.delenv("MLX_ENABLE_TF32", raising=False)
    monkeypatch.setattr(mac, "installed_version", lambda name: "0.30")
    made = mac.mac_environment(known, {"architecture": "g14"})
    assert made.settings == {"power": "ac", "low_power_mode": "0", "gpu_cores": "38",
                             "architecture": "g14", "math_mode": "safe"}  # fmt: skip
    nothing = mac.mac_environment(mac.Mac(None, None, None, None, None))
    assert nothing.settings == {"math_mode": "safe"} and made.gpu_memory_bytes == 32 << 30


def test_copies_of_earlier_records_are_counted():
    _, outcomes = synthetic.copy()
    one = next(o for o in outcomes if isinstance(o, Record))
    began = datetime.fromisoformat(one.at).timestamp()
    facts = {"a": SimpleNamespace(started_s=began + 1), "b": SimpleNamespace(started_s=began)}
    found = series.Collected(facts)
    for name in ("a", "a", "b", "none"):
        found.add(replace(one, run=name))
    assert (found.taken_over, found.records) == (2, 2)


@pytest.mark.parametrize("lacks", ["before", "after", "neither"])
def test_points_of_two_machines_differ_in_what_both_say(lacks):
    def machine(torch, power, tf32):
        return SimpleNamespace(versions={"torch": torch, "numpy": torch}, driver="580", gpu="H200",
                               power_limit_w=power, clock_policy="unknown", python="3.11",
                               settings={"tf32": tf32} if tf32 else {})  # fmt: skip

    a, b = machine("2.10", 700.0, "1"), machine("2.11", 500.4, None)
    before, after = (point(0, 1.0, environment=a, config="x", binary="m"),
                     point(1, 1.0, environment=b, config="x", binary="n"))  # fmt: skip
    if lacks != "neither":
        {"before": before, "after": after}[lacks].environment = None
        assert series.differences(before, after) == ("machine code",)
        return
    assert series.differences(before, after) == (
        "torch 2.10 to 2.11",
        "power limit in W 700 to 500",
        "tf32 1 to none",
        "machine code",
    )
    after.config = ""
    assert series.differences(before, after)[-1] == "config x to none"
    after.config, after.binary = "x", "m"
    assert series.differences(before, after)[-1] == "not the machine code"


@pytest.mark.parametrize("grid", [(), (4, 3, 2)])
def test_programs_are_those_of_the_grid_where_no_counter_says(grid):
    dispatch = Dispatch("k", geometry=Geometry(grid, (128, 1, 1)), duration_ns=2e9)
    found = rule_metrics.rule_metrics(dispatch, "ncu")
    assert found.get("programs") == (24.0 if grid else None) and found["duration"] == 2.0


@pytest.mark.parametrize(
    ("names", "remedy"),
    [(("cudaLaunchKernel", "cudaGraphLaunch"), shortfall.GRAPHS),
     (("cudaLaunchKernel", "cudaLaunchKernel"), shortfall.AGAIN)],
)  # fmt: skip
def test_launches_without_work_have_a_remedy(names, remedy):
    trace = trace_of(*((CALL, name, 10 * n, 10 * n + 1, n) for n, name in enumerate(names)),
                     (KERNEL, "k", 90, 95, 9))  # fmt: skip
    (found,) = shortfall.shortfalls(trace, trace.activities.launches())
    assert found.remedy == remedy and "2 of 2 launches have no work" in str(found.sentence)


def test_a_launch_within_another_of_its_kind_is_its_own():
    """The second call of the runtime makes one of the driver, which has the kernel's number; two
    calls of one name, one within the other, are two."""
    trace = trace_of(
        (CALL, "cudaLaunchKernel", 0, 10, 1), (CALL, "cudaLaunchKernel", 2, 4, 2),
        (CALL, "cudaLaunchKernel", 20, 30, 3), (CALL, "cuLaunchKernel", 22, 24, 4),
        (CALL, "cudaLaunchKernel", 40, 50, 5), (CALL, "cuLaunchKernel", 50, 54, 6),
    )  # fmt: skip
    table = trace.activities
    assert shortfall._holders(table, range(6), {0, 2, 4}) == {2}
    assert shortfall._holders(table, range(6), {3}) == {3}
    assert shortfall._holders(table, range(6), {2, 3}) == set() == (
        shortfall._holders(table, range(6), set()))  # fmt: skip


def test_an_interval_of_correlated_samples_holds_both_of_its_kinds(monkeypatch):
    samples = [1.0 + n / 100 for n in range(40)]  # in order: their ranks go on
    monkeypatch.setattr(stats, "_effective_interval", lambda *given: (1.1, 1.3))
    for taken, joined in (((1.0, 1.2), (1.0, 1.3)), ((1.2, 1.4), (1.1, 1.4))):
        monkeypatch.setattr(stats, "bootstrap_interval", lambda *given, taken=taken: taken)
        assert stats.interval(samples) == joined


def test_folders_of_the_dead_go_and_those_of_the_living_stay(tmp_path):
    dead, alive, plain = (tmp_path / f"{temporary.PREFIX}{n}" for n in ("dead", "alive", "plain"))
    for folder in (dead, alive, plain):
        folder.mkdir()
    (tmp_path / f"{temporary.PREFIX}link").symlink_to(dead)
    os.close(temporary.lock_folder(dead))
    handle = temporary.lock_folder(alive)
    temporary.remove_leftovers(tmp_path)
    assert not dead.exists() and alive.exists() and plain.exists()
    os.close(handle)
    temporary.remove_leftovers(tmp_path)
    assert not alive.exists() and plain.exists()


def test_folders_of_other_users_stay(tmp_path, monkeypatch):
    folder = tmp_path / f"{temporary.PREFIX}other"
    folder.mkdir()
    os.close(temporary.lock_folder(folder))
    owner = os.getuid()
    monkeypatch.setattr(temporary.os, "getuid", lambda: owner + 1)
    assert temporary.lock_of_dead(folder) is None
    temporary.remove_leftovers(tmp_path)
    assert folder.exists()


@pytest.mark.parametrize(("ns", "text"), [(None, ""), (0.0, "0"), (1234.5, "1234.5")])
def test_a_launch_in_a_table_has_its_duration(ns, text):
    dispatch = Dispatch("k", "7", device="0", duration_ns=ns,
                        geometry=Geometry((2, 3, 1), ()))  # fmt: skip
    assert trace_export._launch(dispatch) == ["k", "7", "0", "2x3x1", "", text]


def test_a_device_without_work_in_a_range_leaves_those_behind_it():
    trace = trace_of((KERNEL, "k", 0, 10))
    for device, start in (("1", 100), ("2", 10)):
        trace.activities.add(KERNEL, "k", start, start + 5, device, "7", "p")
    trace.activities.add(RANGE, "step", 100, 110, "", "1", "p")
    within = timeline.named_ranges(trace, "step")
    assert [d.times.device for d in summarise(trace, within).devices] == ["1"]


def test_the_mark_of_code_within_other_code_gives_the_outer_one_back(monkeypatch):
    log, outer = [], user_code.Mark("outer", 5.0, 105.0)
    marks = SimpleNamespace(set=lambda mark: log.append(mark) or outer)
    monkeypatch.setattr(user_code, "_marks", marks)
    with user_code.user_code("inner", 2.0):
        assert len(log) == 1 and log[0].what == "inner"
    assert log[1:] == [outer] and outer.began_s == 100.0


@pytest.mark.parametrize(
    ("error", "reason"),
    [(OSError(2, "No such File"), "no such file"), (ValueError("Odd"), "odd"),
     (ValueError(), "valueerror"), (OSError("Plain"), "plain")],
)  # fmt: skip
def test_the_reason_of_an_error_is_the_system_s_or_its_own(error, reason):
    assert files.reason_of(error) == reason


def test_a_start_below_zero_lies_further_from_the_others():
    """Five events from 100 s on: -1 ns lies further from them than a void."""
    body = [(10**11 + 200 * n, 10**11 + 200 + 200 * n) for n in range(5)]
    assert bad_of((-1, 50), *body) == {0: plausible.ZERO} and bad_of((0, 50), *body) == {}
    nearer = [(a - 1, b - 1) for a, b in body]
    assert bad_of((-1, 50), *nearer) == {}


def test_points_are_in_the_order_of_commits_a_changed_tree_behind_its_own():
    order = series.CommitOrder({"c0": 0, "c1": 1})
    points = [point(1, 1.0), point(0, 1.0), point(0, 2.0), point(7, 1.0)]
    for at_s, one in enumerate(points):
        one.epoch_s = float(at_s)
    points[1].name.dirty = points[3].name.dirty = True
    assert [order.place(one) for one in points] == [
        (1, False, 0.0), (0, True, 1.0), (0, False, 2.0), (-1, False, 3.0)]  # fmt: skip
