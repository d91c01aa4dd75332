"""Rules of a timeline exactly at their thresholds, and what a report of ncu holds, by hand."""

import sys
from array import array
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from workbench.data.intervals import union
from workbench.traces.readers.inputs import ncu_worker
from workbench.traces.rules import (
    casts,
    clock,
    exposed_sync,
    graph_candidate,
    host_bound,
    inefficient,
    launch_bound,
    rules,
    short_kernels,
    transfers,
    variation,
)
from workbench.traces.trace import ActivityKind, Trace

pytestmark = pytest.mark.unit
KERNEL, COPY = ActivityKind.KERNEL, ActivityKind.COPY


def timeline(*kernels, copies=(), **times):
    """Return what rules see of kernels of these lengths in ns, and of copies of these bytes."""
    trace = Trace("nsys")
    at = 0
    for length in kernels:
        name, length = length if isinstance(length, tuple) else ("k", length)
        trace.activities.add(KERNEL, name, at, at + length)
        at += length
    for name, size in copies:
        trace.activities.add(COPY, name, at, at + 1, moved=size)
    known = dict(
        order=array("l", range(len(kernels) + len(copies))), window=1000, utilisation=0.25,
        kernel_sum=at, copied_bytes=None, copy_count=len(copies), launches=True,
        copies_exposed=SimpleNamespace(length=0), idle=lambda: {"host wait": 600, "copy": 100},
    )  # fmt: skip
    more = dict(launch_wait=600, copying_idle=0, gaps=(), repeats=(), rows=(), ranges=(), lacks=())
    more |= {name: times.pop(name) for name in list(times) if name in more}
    return SimpleNamespace(trace=trace, times=SimpleNamespace(**known | times), **more)


def holds(rule, summary):
    return rule.RULE.evaluate(summary, rule.RULE.thresholds) is not None


@pytest.mark.parametrize(
    ("more", "found"),
    [({}, True), ({"utilisation": 0.299}, True), ({"utilisation": 0.3}, False),
     ({"launch_wait": 350}, True), ({"launch_wait": 349}, False),
     ({"idle": lambda: {"host wait": 0}}, False)],
)  # fmt: skip
def test_a_device_is_launch_bound_below_30_percent(more, found):
    """It idles for 700 ns, half of which are 350."""
    assert holds(launch_bound, timeline(9999, 9999, 20_000, **more)) == found


@pytest.mark.parametrize(("typical", "found"), [(9999, True), (10_000, False)])
def test_a_launch_bound_device_has_kernels_below_10_us(typical, found):
    assert holds(launch_bound, timeline(1, typical, 20_000)) == found
    assert not holds(launch_bound, timeline())
    held = launch_bound.evaluate(timeline(1, 2000, 20_000), launch_bound.RULE.thresholds)
    assert held.gain_ns == 600 and held.sentence == (
        "The device had work in 25 % of the window and waited for launches in 60 % of it; the "
        "median kernel takes 2 µs."
    )
    assert [e.value for e in held.evidence] == [0.25, 0.6, 2e-6]


@pytest.mark.parametrize(
    ("more", "found"),
    [({"utilisation": 0.79}, True), ({"utilisation": 0.8}, False),
     ({"launch_wait": 200}, True), ({"launch_wait": 199}, False)],
)  # fmt: skip
def test_a_device_is_host_bound_below_80_percent(more, found):
    assert holds(host_bound, timeline(5, **more)) == found


def test_the_first_gap_of_the_host_is_the_longest():
    def gap(cause, length, host=""):
        return SimpleNamespace(gap=SimpleNamespace(cause=cause, duration=length), host=host)

    gaps = (gap("copy", 900), gap("host wait", 300, "h" * 90), gap("host wait", 200, "x"))
    held = host_bound.evaluate(timeline(5, gaps=gaps), host_bound.RULE.thresholds)
    assert held.sentence.endswith(
        f" The longest of these gaps takes 300 ns; the host was in {'h' * 80}."
    )
    assert [e.value for e in held.evidence] == [0.25, 0.6, 300e-9] and held.gain_ns == 600
    held = host_bound.evaluate(timeline(5, gaps=gaps[:1]), host_bound.RULE.thresholds)
    assert len(held.evidence) == 2 and "The longest" not in held.sentence


def test_a_graph_leaves_a_microsecond_a_kernel():
    """Three kernels five times leave 15 µs of the gaps."""

    def repeat(gap, wait=1, kernels=3):
        return SimpleNamespace(kernels=kernels, count=5, gap_ns=gap, host_wait_ns=wait)

    assert not holds(graph_candidate, timeline(repeats=(repeat(15_000), repeat(20_000, 0))))
    held = graph_candidate.evaluate(
        timeline(repeats=(repeat(15_001), repeat(19_000, 7), repeat(26_000, 8, 5))),
        graph_candidate.RULE.thresholds,
    )
    assert held.gain_ns == 1 + 4000 + 1000
    assert [e.value for e in held.evidence] == [3.0, 5.0, 19e-6, 7e-9]
    assert held.sentence.startswith("3 kernels run 5 times in a row in the same order, with 19 µs")


@pytest.mark.parametrize(
    ("kernels", "found"),
    [((9999, 10_000), True), ((9999, 10_000, 10_000), False), ((2500, 10_000), True),
     ((2499, 10_000), False), ((), False)],
)  # fmt: skip
def test_short_kernels_are_half_of_them_and_a_fifth_of_the_time(kernels, found):
    assert holds(short_kernels, timeline(*kernels)) == found


def test_short_kernels_are_counted():
    held = short_kernels.evaluate(timeline(6000, 4000, 10_000), short_kernels.RULE.thresholds)
    assert [e.value for e in held.evidence] == [2.0, 0.5]
    assert held.sentence.startswith("67 % of the kernels take less than 10 µs, and they hold 50 %")


@pytest.mark.parametrize(("used", "found"), [(0.8, False), (0.81, True)])
def test_kernels_hold_the_time_above_80_percent(used, found):
    rows = [SimpleNamespace(name=f"k{n}" + "x" * 70, total_ns=100 * (5 - n)) for n in range(5)]
    summary = timeline(2000, utilisation=used, rows=rows)
    assert holds(inefficient, summary) == found
    assert not holds(inefficient, timeline(2000, utilisation=used))
    assert not holds(inefficient, timeline(utilisation=used, rows=rows))
    if found:
        held = inefficient.evaluate(summary, inefficient.RULE.thresholds)
        assert [e.value for e in held.evidence] == [0.81, 0.25, 0.2, 0.15]
        assert "60 % of it in k0" in held.sentence and held.gain_ns is None
        assert held.evidence[0].met is True and len(held.evidence[1].name) == 60 + len(", share")


SMALL = [("Memcpy HtoD (Pageable)", 65_535)] * 101


@pytest.mark.parametrize(
    ("more", "found"),
    [({}, False), ({"copying_idle": 50}, False), ({"copying_idle": 51}, True),
     ({"copies_exposed": SimpleNamespace(length=51)}, True),
     ({"copies_exposed": SimpleNamespace(length=25), "copying_idle": 26}, True),
     ({"copies": SMALL[:100]}, False), ({"copies": SMALL}, True),
     ({"copies": [("a", 65_536)] * 101}, False), ({"copies": [("a", -1)] * 101}, False),
     ({"copies": SMALL, "ranges": [SimpleNamespace(name="step#1", count=2),
                                   SimpleNamespace(name="x", count=1)]}, False),
     ({"copies": SMALL, "ranges": [SimpleNamespace(name="x", count=2)]}, True)],
)  # fmt: skip
def test_copies_hold_a_device_up_above_five_percent_or_100_a_step(more, found):
    assert holds(transfers, timeline(10, **more)) == found


def test_copies_are_counted():
    copies = [*SMALL[:2], ("Memcpy DtoH", 65_536)]
    summary = timeline(10, copies=copies, copied_bytes=196_606, copying_idle=100,
                       copies_exposed=SimpleNamespace(length=250))  # fmt: skip
    held = transfers.evaluate(summary, transfers.RULE.thresholds)
    assert held.sentence == (
        "Copies overlapped no kernel in 25 % of the window: 3 copies, 2 of them below "
        "64 kB. They moved 197 kB. 2 of them use pageable memory. In another 10 % the device was "
        "idle because the host was in a copy."
    )
    assert [e.value for e in held.evidence] == [0.25, 0.1, 3.0, 2.0] and held.gain_ns == 350
    assert held.evidence[0].met is False
    plain = transfers.evaluate(timeline(10, copies=[("a", 1)] * 101), transfers.RULE.thresholds)
    assert plain.evidence[0].met is True and plain.sentence.endswith("below 64 kB.")


@pytest.mark.parametrize(
    ("kernels", "more", "found"),
    [([1] * 10 + [100], {}, True), ([1] * 9 + [100], {}, False), ([1] * 11, {}, False),
     ([0] * 10 + [0], {}, False), ([1] * 10 + [100], {"kernel_sum": 2200}, True),
     ([1] * 10 + [100], {"kernel_sum": 2201}, False), ([0] * 6 + [2] * 6, {}, False),
     ([0] * 7 + [2] * 6, {}, True)],
)  # fmt: skip
def test_a_kernel_varies_by_more_than_its_mean(kernels, more, found):
    """Times of 0 and 2, as many of each, deviate by their mean exactly."""
    assert holds(variation, timeline(*kernels, **more)) == found


def test_the_kernel_that_costs_most_above_its_median_varies():
    some = [("a", n) for n in [1] * 10 + [100]] + [("b", n) for n in [2] * 10 + [400]]
    held = variation.evaluate(timeline(*some), variation.RULE.thresholds)
    assert held.sentence == (
        "b takes 2 ns to 400 ns with one grid, 11 launches; its median is 2 ns."
    )
    assert held.gain_ns == 398 and [e.value for e in held.evidence] == [2e-9, 4e-7, 420 / 530]
    assert held.advice.endswith("it would save 40 % of the window.")


@pytest.mark.parametrize(
    ("low", "high", "profiled", "found"),
    [(1.0, 1.03125, 1.0, 0), (1.0, 1.25, 1.0, 1), (1.0, 1.0, 1.25, 1), (1.0, 1.0, 0.75, 1),
     (1.0, 1.0, 1.03125, 0), (1.0, 1.25, 0.5, 2)],
)  # fmt: skip
def test_clocks_are_apart_beyond_a_limit(low, high, profiled, found):
    """1 and 1 + 1/32 are exact, so that the limit is met exactly."""
    metrics = {"plain_clock": 1e9, "plain_clock_low": low * 1e9, "plain_clock_high": high * 1e9,
               "sm_clock": profiled * 1e9}  # fmt: skip
    assert len(list(clock._sentences(metrics, 1 / 32))) == found
    alone = {"plain_clock": 1e9}
    assert clock.evaluate(alone, {"apart": 0.03}) is None


def test_every_rule_of_a_timeline_is_tried_here_or_in_its_golden_traces():
    assert set(rules()) == {
        "launch_bound",
        "transfers",
        "exposed_sync",
        "host_bound",
        "inefficient",
        "graph_candidate",
        "short_kernels",
        "casts",
        "variation",
    }


# What NVIDIA's package gives


class Metric:
    """A metric of the package: one value, or instances by what they correlate with."""

    def __init__(self, value=None, unit="", ids=None, values=()):
        self._value, self._unit, self._ids, self._values = value, unit, ids, values

    def has_value(self):
        return self._value is not None

    def value(self, at=None):
        return self._value if at is None else self._values[at]

    def unit(self):
        return self._unit

    def has_correlation_ids(self):
        return self._ids is not None

    def correlation_ids(self):
        return SimpleNamespace(value=lambda at: self._ids[at])

    def num_instances(self):
        return len(self._values)


STALLS = "smsp__pcsamp_warps_issue_stalled_"
AT = 0x1000


def action(name, **more):
    metrics = {
        "a": Metric(1.5, "s"), "b": Metric(float("nan")), "c": Metric(None), "d": Metric([1]),
        "none": None, "launch__device_id": Metric(3),
        **{f"launch__grid_dim_{axis}": Metric(n) for n, axis in enumerate("xyz", 2)},
        **{f"launch__block_dim_{axis}": Metric(8.0) for axis in "xy"},
        "sass__inst_executed_per_opcode": Metric(1, "", ["FADD", "LDG"], [5, 6]),
        "inst_executed": Metric(1, "", [AT + 16, AT + 32], [10, 20]),
        "thread_inst_executed_true": Metric(1, "", [AT + 32], [640]),
        "thread_inst_executed": Metric(1, "", [AT + 16], [320]),
        "memory_l2_theoretical_sectors_local": Metric(1),
        f"{STALLS}wait": Metric(1, "", [AT + 16, AT + 48], [2, 3]),
        f"{STALLS}barrier": Metric(1, "", [AT + 16], [4]),
        f"{STALLS}wait_not_issued": Metric(1, "", [AT + 16], [1]),
        f"{STALLS}barrier_not_issued": Metric(1, "", [AT + 16], [1]),
        **more,
    }  # fmt: skip
    texts = {AT: " NOP ", AT + 16: "FADD", AT + 32: "LDG", AT + 48: "EXIT"}
    info = SimpleNamespace(file_name=lambda: "/a/k.py", line=lambda: 7)
    return SimpleNamespace(
        name=lambda: name, metric_names=lambda: list(metrics), metric_by_name=metrics.get,
        sass_by_pc=lambda at: texts.get(at, ""),
        source_info=lambda at: info if at == AT + 32 else None,
        source_files=lambda: {"/a/k.py": "x", "/b/two.py": "1", "/c/two.py": "2", "e.py": ""},
    )  # fmt: skip


def launches(monkeypatch, *groups) -> Iterator[dict]:
    package = SimpleNamespace(load_report=lambda path: groups)
    monkeypatch.setitem(sys.modules, "ncu_report", package)
    return list(ncu_worker.launches("x.ncu-rep"))


def test_each_launch_of_a_report_is_whole(monkeypatch):
    bare = {
        "inst_executed": None,
        f"{STALLS}wait": None,
        f"{STALLS}barrier": Metric(4),
        "launch__device_id": Metric("x"),
        "sass__inst_executed_per_opcode": Metric(1),
    }
    one, two, three = launches(
        monkeypatch, [action("one"), action("two", **bare)], [action("three")]
    )
    assert [each["id"] for each in (one, two, three)] == [0, 1, 2] and three["name"] == "three"
    assert (one["device"], two["device"]) == (3, 0)
    assert one["grid"] == [2, 3, 4] and one["block"] is None
    known = {n: one["metrics"][n] for n in ("a", "b", "c", "d", "none")}
    assert known == {"a": (1.5, "s"), "b": (None, ""), "c": (None, ""), "d": ("[1]", ""),
                     "none": (None, "")}  # fmt: skip
    assert one["opcodes"] == {"FADD": 5.0, "LDG": 6.0} and two["opcodes"] == {}
    assert one["stalls"] == ["wait", "barrier"]
    assert one["columns"] == ["Thread Instructions Executed"]
    assert one["sources"] == {"k.py": "x"}
    # samples, not issued, executions, lanes, waits, barriers, thread instructions
    assert one["instructions"] == [
        (AT, "NOP", "", (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)),
        (AT + 16, "FADD", "", (6.0, 2.0, 10.0, 0.0, 2.0, 4.0, 320.0)),
        (AT + 32, "LDG", "k.py:7", (0.0, 0.0, 20.0, 640.0, 0.0, 0.0, 0.0)),
        (AT + 48, "EXIT", "", (3.0, 0.0, 0.0, 0.0, 3.0, 0.0, 0.0)),
    ]
    assert two["instructions"] == []


@pytest.mark.parametrize(("spent", "found"), [(50, True), (49, False), (None, False)])
def test_casts_are_five_percent_of_the_kernels(spent, found):
    rows = [SimpleNamespace(name="product", total_ns=900, count=9)]
    rows += [SimpleNamespace(name="copy or cast", total_ns=spent, count=2)] if spent else []
    summary = timeline(1000)
    summary.classes = rows
    held = casts.evaluate(summary, casts.RULE.thresholds)
    assert (held is not None) == found
    if held:
        assert [e.value for e in held.evidence] == [0.05, 2.0] and held.gain_ns == 50


def test_waits_of_other_devices_are_not_the_devices_own():
    """Of 1000 ns nothing is queued in 51, of which the second call waited in 20 and the third in
    31; the first one is of another device."""
    trace = Trace("nsys")
    for name, start, end in (("other", 0, 100), ("second", 0, 20), ("third", 15, 90)):
        trace.activities.add(ActivityKind.SYNC, name, start, end)
    times = SimpleNamespace(window=1000, sync=SimpleNamespace(length=90), is_of=lambda t, n: n > 0)
    summary = SimpleNamespace(trace=trace, times=times)
    for ends, found in ([(0, 20), (50, 81)], True), ([(0, 20), (50, 80)], False):
        times.sync_unqueued = union(ends)
        held = exposed_sync.evaluate(summary, exposed_sync.RULE.thresholds)
        assert (held is not None) == found
        if held:
            assert [e.name for e in held.evidence[2:]] == ["exposed in third", "exposed in second"]
            assert [e.value for e in held.evidence] == [0.051, 0.09, 36e-9, 20e-9]
            assert held.sentence.endswith("Most of it in third.") and held.gain_ns == 51
