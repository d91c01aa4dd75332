"""Metrics: formulas of each tool, names of older tools and of the guides."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.data.metric import (
    BY_NAME,
    METRICS,
    counter_name,
    exact_counters,
    limiter,
    metric_value,
    metric_values,
    refused,
    stall_counter,
    stall_shares,
)
from workbench.data.trace import CounterValue, Dispatch

pytestmark = pytest.mark.unit

COUNTS = st.integers(0, 10**9)


def dispatch_of(**counters):
    known = {name: CounterValue(name, value) for name, value in counters.items()}
    return Dispatch("k", counters=known)


def test_each_metric_is_declared_once():
    assert len(BY_NAME) == len(METRICS)
    assert {metric.better for metric in METRICS} <= {"higher", "lower", "neither"}
    assert all(metric.formulas and metric.unit and metric.title for metric in METRICS)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_metric_without_its_counters_is_none(metric):
    assert metric_value(metric, {}, "ncu") is None
    for formula in metric.formulas:
        for tool in formula.tools:
            some = dict.fromkeys(formula.needs[1:], 1.0)
            others = [f for f in metric.formulas if f is not formula]
            if not any(set(f.needs) <= set(some) for f in others):
                assert metric_value(metric, some, tool) is None


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_metric_of_zeros_is_a_number_or_none(metric):
    for formula in metric.formulas:
        known = metric_value(metric, dict.fromkeys(formula.needs, 0.0), formula.tools[0])
        assert known is None or (math.isfinite(known.value) and known.source)


@given(COUNTS, COUNTS, COUNTS, COUNTS)
def test_bytes_of_gfx90a(reads, small_share, writes, wide_share):
    """32 bytes for a small read and a narrow write, 64 for each other one."""
    small, wide = min(small_share, reads), min(wide_share, writes)
    counters = {
        "TCC_EA_RDREQ_sum": reads,
        "TCC_EA_RDREQ_32B_sum": small,
        "TCC_EA_WRREQ_sum": writes,
        "TCC_EA_WRREQ_64B_sum": wide,
    }
    known = metric_value(BY_NAME["dram_bytes"], counters, "rocprof-compute")
    assert known.value == 32 * small + 64 * (reads - small) + 64 * wide + 32 * (writes - wide)


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=6))
def test_stalls_are_shares_of_their_sum(cycles):
    reasons = ("barrier", "wait", "long_scoreboard", "selected", "membar", "gmma")
    known = dict(zip(map(stall_counter, reasons), cycles, strict=False))
    shares = stall_shares(known)
    assert sum(cycles) == 0 or sum(shares.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("smsp__inst_executed_not_predicated_off.sum", "smsp__thread_inst_executed_pred_on.sum"),
        (
            "smsp__thread_inst_executed_not_predicated_off.avg",
            "smsp__thread_inst_executed_pred_on.avg",
        ),
        (
            "dram__throughput.avg.pct_of_peak_sustained_elapsed",
            "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        ),
        ("dram__bytes_op_read.sum", "dram__bytes_read.sum"),
        (stall_counter("no_instructions"), stall_counter("no_instruction")),
        ("gpu__dram_throughput.avg", "gpu__dram_throughput.avg"),
    ],
)
def test_names_of_older_tools_and_guides(old, new):
    assert counter_name(old) == new
    assert exact_counters(dispatch_of(**{old: 3.0}))[new] == 3.0


def test_a_counter_that_was_refused_has_no_value():
    dispatch = Dispatch("k", counters={"a": CounterValue("a", None, "", "n/a", "refused")})
    assert exact_counters(dispatch) == {} and [c.name for c in refused(dispatch)] == ["a"]


def test_waves_leave_places_empty():
    values = metric_values(dispatch_of(launch__waves_per_multiprocessor=1.25), "ncu")
    assert values["empty_places"].value == pytest.approx(0.375)


def test_what_limits_occupancy():
    limits = {"launch__occupancy_limit_registers": 2.0, "launch__occupancy_limit_warps": 8.0}
    assert limiter(limits) == ["registers"] and limiter({}) == []
