"""Metrics: formulas of each tool, names of older tools and of the guides."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.traces.metric import (
    BY_NAME,
    METRICS,
    STALL_COUNTERS,
    STALLS,
    counter_name,
    exact_counters,
    limiter,
    metric_value,
    metric_values,
    refusals,
    stall_counter,
    stall_shares,
)
from workbench.traces.profilers.names import names_of
from workbench.traces.trace import CounterValue, Dispatch

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
    assert exact_counters(dispatch) == {} and [c.name for c in refusals(dispatch)] == ["a"]


def test_waves_leave_places_empty():
    values = metric_values(dispatch_of(launch__waves_per_multiprocessor=1.25), "ncu")
    assert values["empty_places"].value == pytest.approx(0.375)


def test_what_limits_occupancy():
    limits = {"launch__occupancy_limit_registers": 2.0, "launch__occupancy_limit_warps": 8.0}
    assert limiter(limits) == ["registers"] and limiter({}) == []


CHIPS = {"sm_80": "GA100", "sm_89": "AD102", "sm_90": "GH100", "sm_100": "GB100", "sm_120": "GB202"}
OWN = ("launch__", "derived__", "sass__", "memory_", "smsp__pcsamp_")  # of ncu, on every chip
NCU_OWN = ("sm__maximum_warps_per_active_cycle_pct",)
ELSEWHERE = {"stall_gmma": ["GH100"], "stall_imc_miss": ["GA100", "AD102", "GH100"]}


def bases(chip):
    """Names of the counters, ratios and throughputs of a chip, without rollups."""
    return set(names_of(chip))


@pytest.mark.parametrize("chip", CHIPS.values(), ids=CHIPS)
def test_every_metric_has_a_formula_of_counters_that_the_chip_has(chip):
    """But for two reasons to stall that some chips do not have."""
    known = bases(chip)
    for metric in METRICS:
        formulas = [f for f in metric.formulas if "ncu" in f.tools]
        if not formulas:
            continue
        there = [
            all(n.startswith(OWN) or n in NCU_OWN or n.split(".")[0] in known for n in f.needs)
            for f in formulas
        ]
        assert any(there) == (chip in ELSEWHERE.get(metric.name, [chip])), metric.name


@pytest.mark.parametrize("chip", CHIPS.values(), ids=CHIPS)
def test_names_of_guides_become_names_that_the_chip_has(chip):
    known = bases(chip)
    for of in ("inst", "thread_inst"):
        name = f"smsp__{of}_executed_not_predicated_off.sum"
        assert name.split(".")[0] not in known
        assert counter_name(name).split(".")[0] in known


@pytest.mark.parametrize("pattern", STALL_COUNTERS)
@given(st.dictionaries(st.sampled_from(STALLS), st.floats(0.01, 100), min_size=1))
def test_any_kind_of_stall_counter_gives_shares(pattern, cycles):
    counters = {pattern.format(reason): value for reason, value in cycles.items()}
    shares = stall_shares(counters)
    assert sum(shares.values()) == pytest.approx(1)
    assert shares == pytest.approx({r: v / sum(cycles.values()) for r, v in cycles.items()})


def test_flop_counts_a_fused_operation_twice_and_a_packed_one_by_its_halves():
    metric = BY_NAME["vector_flop"]
    start = "smsp__sass_thread_inst_executed_op_"
    counters = {f"{start}{k}{op}_pred_on.sum": 1.0 for k in "fhd" for op in ("add", "mul", "fma")}
    assert metric_value(metric, counters, "ncu").value == 4 + 8 + 4
    only = {n: v for n, v in counters.items() if "_op_f" in n}
    assert metric_value(metric, only, "ncu").value == 4
    waves = {f"SQ_INSTS_VALU_{op}_{kind}": 1.0 for op in ("ADD", "MUL", "TRANS", "FMA")
             for kind in ("F16", "F32", "F64")}  # fmt: skip
    assert metric_value(metric, waves, "rocprof-compute").value == 64 * 15
