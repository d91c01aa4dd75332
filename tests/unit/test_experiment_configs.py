"""Experiments of configuration and cost: what their judges say of times that are known."""

import io
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from workbench import catalog
from workbench.backend.null import Fate, Null
from workbench.commands import experiment
from workbench.compile import Compiled
from workbench.compile.loops import Code, Counts
from workbench.data import stats
from workbench.data.database import open_history
from workbench.data.record import Case, Failure, Measured, Predicted, Record, Resources
from workbench.device.hardware import described, device_named
from workbench.experiments import (
    Asked,
    ExperimentError,
    Found,
    block_size,
    expected,
    intensity,
    lora_rank,
    quantization_overhead,
    seconds,
    tile_size,
)
from workbench.experiments.analysis import knobs
from workbench.experiments.analysis.times import Span, over
from workbench.spec import ITEMSIZE

H200 = device_named("h200")
MADE = {
    "dram_measured": {"value": 4e12, "unit": "B/s", "source": "made up", "kind": "measured"},
    "fma_fp32_measured": {"value": 60e12, "unit": "FLOP/s", "source": "made up", "dtype": "fp32",
                          "kind": "measured", "low": 59e12, "high": 61e12},
    "launch_graph_measured": {"value": 1e-6, "unit": "s", "source": "made up", "kind": "measured"},
}  # fmt: skip


def asking(kernel="", dtype="bf16", sizes=None, device=H200, predicts=False, ceilings=MADE):
    return Asked(kernel, sizes, dtype, device, predicts, ceilings)


def timed(arm, time_s, spread=0.001, windows=(), predicted=False):
    """An arm with that time; its interval is `spread` to either side."""
    spec = catalog.spec_of(arm.kernel)
    case = Case(spec.name, arm.impl, "triton", dict(arm.config or {}), dict(arm.sizes), arm.dtype,
                "h200")  # fmt: skip
    timing = (
        Predicted(time_s, "model", 0.0, time_s, 0.0, 0.0, 0.0, "memory")
        if predicted
        else Measured(
            time_s, time_s * (1 - spread), time_s * (1 + spread), tuple(windows), arm.regime,
            "graph", "p", window_sizes=(1,) * len(windows),
        )
    )  # fmt: skip
    outcome = Record(
        case, arm.name, "run", "2026-11-21T09:30:00+00:00", "hot" if arm.regime == "hot" else
        "predict" if predicted else "final", timing, spec.flops(**arm.sizes),
        spec.bytes(arm.sizes, arm.dtype), "gpu", 0.1,
    )  # fmt: skip
    return Found(arm, outcome)


def failed(arm, reason="it broke"):
    case = Case(arm.kernel, arm.impl, "triton", {}, dict(arm.sizes), arm.dtype, "h200")
    return Found(arm, Failure(case, arm.name, "run", "2026-11-21", "measure", reason))


def all_timed(arms, seconds, **how):
    return {arm.name: timed(arm, seconds(arm), **how) for arm in arms}


def rows(judgement):
    return {e.name: e for e in judgement.evidence}


# intensity

INTENSITY = intensity.arms(asking(dtype="fp32"))


def roofline(bandwidth, peak, sharpness=math.inf, noise=0.0, seed=0):
    """Times of a device that is exactly as its roofline says, or rounded at the knee."""
    dice = random.Random(seed)

    def seconds(arm):
        spec = catalog.spec_of(arm.kernel)
        terms = spec.bytes(arm.sizes, arm.dtype) / bandwidth, spec.flops(**arm.sizes) / peak
        top = max(terms)
        both = top if math.isinf(sharpness) else (
            top * sum((t / top) ** sharpness for t in terms) ** (1 / sharpness)
        )  # fmt: skip
        return both * (1 + noise * dice.uniform(-1, 1))

    return seconds


@settings(max_examples=25, deadline=None)
@given(
    bandwidth=st.floats(1e11, 1e13), knee=st.floats(0.55, 30), noise=st.floats(0, 0.004),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_the_knee_is_where_bandwidth_and_peak_meet(bandwidth, knee, noise, seed):
    found = all_timed(INTENSITY, roofline(bandwidth, bandwidth * knee, noise=noise, seed=seed),
                      spread=0.005)  # fmt: skip
    bent = intensity.bend([intensity.point(f) for f in found.values()])
    found_knee = bent.knee
    assert found_knee.low <= knee <= found_knee.high
    assert found_knee.value == pytest.approx(knee, rel=0.011)
    assert bent.slope.value == pytest.approx(bandwidth, rel=0.005)
    assert found_knee.high / found_knee.low < 1.04  # all points of both sides, and no wider


@settings(max_examples=25, deadline=None)
@given(knee=st.floats(1, 20), sharpness=st.floats(3, 8))
def test_a_round_knee_is_found_from_points_that_lie_apart(knee, sharpness):
    found = all_timed(INTENSITY, roofline(4e12, 4e12 * knee, sharpness))
    bent = intensity.bend([intensity.point(f) for f in found.values()])
    assert bent.knee.value == pytest.approx(knee, rel=0.06)


def test_intensities_are_those_of_the_question():
    spec = catalog.spec_of("streamed_fma")
    got = [spec.flops(**a.sizes) / (16 * a.sizes["N"]) for a in INTENSITY]
    assert got == [2.0**e for e in range(-3, 8)]
    half = intensity.arms(asking(dtype="fp16"))
    assert [a.sizes["F"] for a in half] == [2**e for e in range(10)]


def test_the_knee_is_set_against_the_measured_ridge():
    (said,) = intensity.judge(asking(dtype="fp32"), all_timed(INTENSITY, roofline(4e12, 60e12)))
    assert (
        said.word == "knee at 15 FLOP/B" and "as the measured ceilings do at 15." in said.sentence
    )
    row = rows(said)["knee"]
    assert row.unit == "FLOP/B" and row.kind == "measured" and row.low < 15 < row.high
    chart = said.charts[0]
    assert [s.name for s in chart.series] == [
        "measured rate",
        "measured ceilings",
        "stated ceilings",
    ]
    assert chart.x_log and chart.y_log and chart.series[0].low and len(chart.series[0].x) == 11
    (low,) = intensity.judge(asking(dtype="fp32"), all_timed(INTENSITY, roofline(4e12, 40e12)))
    assert "short of the ridge" in low.sentence


def test_a_predicted_knee_has_a_tilde_and_no_interval():
    found = all_timed(INTENSITY, roofline(4e12, 60e12), predicted=True)
    (said,) = intensity.judge(asking(dtype="fp32", predicts=True), found)
    assert said.word == "knee at ~15 FLOP/B" and "~4.0 TB/s" not in said.sentence
    assert all(e.low is None for e in said.evidence if e.kind == "predicted")
    assert {e.kind for e in said.evidence} == {"predicted", "measured", "datasheet", "computed"}


def test_without_a_plateau_there_is_no_knee():
    (said,) = intensity.judge(asking(dtype="fp32"), all_timed(INTENSITY, roofline(1e12, 1e15)))
    assert said.word == "no knee"
    broken = {arm.name: failed(arm) for arm in INTENSITY}
    (none,) = intensity.judge(asking(dtype="fp32"), broken)
    assert none.word == "no knee" and not none.charts
    assert any("it broke" in caveat for caveat in none.caveats)


@pytest.mark.parametrize(
    ("F", "outside", "inside", "whole"),
    [(16, 128, 0, True), (1024, 256, 256, True), (1024, 8192, 0, True), (1024, 250, 256, False),
     (16, 64, 0, False), (64, 512, 256, False)],
)  # fmt: skip
def test_machine_code_with_fewer_multiply_adds_is_told(F, outside, inside, whole):
    resources = Resources("b", 32, 0, 0, 128, 16, 1.0, "threads", 1, 1.0, 0.0, 128, None, 0.1)
    counts = Counts(vector=outside + inside), Counts(vector=inside)
    code = Code("sm_90", 1 if inside else 0, *counts)
    arm = replace(INTENSITY[0], sizes={"N": 1 << 25, "F": F}, config={"block_n": 1024})
    found = replace(timed(arm, 1e-4), compiled=Compiled(resources, "k", (1,), 1, code=(code,)))
    assert intensity.complete(found) is whole
    assert bool(intensity._undone([found])) is not whole
    assert intensity.complete(replace(found, compiled=None)) is None


@pytest.mark.parametrize(
    ("experiment", "asked"),
    [
        (intensity, asking("matmul", "fp32")), (intensity, asking(dtype="fp8")),
        (quantization_overhead, asking("matmul", "fp16")),
        (quantization_overhead, asking("q4_k_matmul", "fp32")),
        (lora_rank, asking("matmul")), (tile_size, asking("empty")),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_one_sentence(experiment, asked):
    with pytest.raises(ExperimentError) as caught:
        experiment.arms(asked)
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)


# ratios


@settings(max_examples=30, deadline=None)
@given(st.floats(0.2, 5), st.integers(0, 999))
def test_what_a_round_shares_cancels(true, seed):
    dice = random.Random(seed)
    drift = [1e-5 * dice.uniform(0.8, 1.2) for _ in range(24)]
    left = timed(INTENSITY[0], stats.median(drift), 0.2, drift)
    right = timed(INTENSITY[1], true * stats.median(drift), 0.2, [true * d for d in drift])
    assert over(left, right).low == pytest.approx(true) == over(left, right).high
    fewer = over(left, timed(INTENSITY[1], true * stats.median(drift), 0.2))
    assert fewer.low < true < fewer.high and fewer.high / fewer.low > 2
    assert over(left, failed(INTENSITY[1])) is None


# quantization_overhead

QUANTIZED = quantization_overhead.arms(asking("q4_k_matmul", "fp16"))


def sided(a_s, b_s, slow=3.0):
    """The first Impl of each side takes that long, any other `slow` times as long."""

    def seconds(arm):
        best = {"matvec": "torch.linear", "q4_k_matmul": "rows"}[arm.kernel]
        base = b_s if arm.kernel == "q4_k_matmul" else a_s
        return base if arm.impl == best else slow * base

    return seconds


@settings(max_examples=15, deadline=None)
@given(st.floats(1e-6, 1e-3), st.floats(0.2, 5), st.floats(0.0005, 0.02))
def test_overhead_is_that_of_the_fastest_and_has_the_right_word(a_s, ratio, spread):
    found = all_timed(QUANTIZED, sided(a_s, ratio * a_s), spread=spread)
    said = quantization_overhead.judge(asking("q4_k_matmul", "fp16"), found)
    assert len(said) == 2
    for one in said:
        row = rows(one)["overhead, (B - A) / A"]
        assert row.value == pytest.approx(ratio - 1) and row.low < row.value < row.high
        if abs(ratio - 1) > 3 * spread:
            assert one.word == ("faster" if ratio < 1 else "overhead")
        elif row.low < 0 < row.high:
            assert one.word == "no difference seen"
        assert rows(one)["ideal by bytes"].value == pytest.approx(-0.72, abs=0.005)
        assert "-72 %" in one.sentence and {"cold calls", "hot calls"} <= {
            e.group for e in one.evidence
        }


def test_a_side_without_a_time_gets_no_verdict():
    found = {
        a.name: failed(a) if a.kernel == "q4_k_matmul" and a.sizes["N"] == 2560 else timed(a, 1e-5)
        for a in QUANTIZED
    }
    small, large = quantization_overhead.judge(asking("q4_k_matmul", "fp16"), found)
    assert small.word == "no verdict" and not small.evidence
    assert any("it broke" in caveat for caveat in small.caveats)
    assert large.word == "no difference seen"
    assert "matvec.rows" in large.caveats[0] and "torch" in large.caveats[0]
    alone = {n: f if "rows" in n else failed(f.arm) for n, f in found.items()}
    assert not any(
        "torch" in c
        for c in quantization_overhead._caveats(
            asking("q4_k_matmul", "fp16"), dict(large.sizes), alone
        )
        if "is the fastest of" in c
    )
    assert any("no like for like" in c for c in large.caveats)  # 117 MB do not fit the cache
    assert not any("no like for like" in c for c in small.caveats)


def test_products_that_suit_more_rows_are_compared_where_there_are_more():
    sizes = {"M": 512, "N": 14336, "K": 4096}
    arms = quantization_overhead.arms(asking("q4_k_matmul", "fp16", sizes))
    names = {f"{a.kernel}.{a.impl}" for a in arms}
    assert names == {"matvec.tiles", "matmul.tiles", "matmul.persistent", "matvec.torch.linear",
                     "q4_k_matmul.tiles", "q4_k_matmul.ordered"}  # fmt: skip
    assert len({a.name for a in arms}) == len(arms) == 12
    for arm in arms:  # each there is
        catalog.impl_of(catalog.spec_of(arm.kernel), arm.impl)


# tile_size and block_size

TILES = tile_size.arms(asking("matmul"))
BLOCKS = block_size.arms(asking("matmul"))


@pytest.mark.parametrize(
    ("arms", "varied", "wanted"),
    [(TILES, tile_size.EDGE, [16, 32, 64, 128, 256]),
     (BLOCKS, block_size.BLOCK, [32, 64, 128, 256, 512])],
)  # fmt: skip
def test_each_value_has_a_few_configs_that_can_run(arms, varied, wanted):
    assert {(a.kernel, a.impl) for a in arms} == {("matmul", "tiles")}
    impl = catalog.impl_of(catalog.spec_of("matmul"), "tiles")
    numbers = [varied.number(impl, a.config, asking("matmul")) for a in arms]
    assert sorted(set(numbers)) == wanted
    assert all(1 <= numbers.count(n) <= knobs.TRIED + 1 for n in wanted)
    assert len({a.name for a in arms}) == len(arms)
    assert impl.default(H200.limits, "bf16", arms[0].sizes) in [
        impl.config(**a.config) for a in arms
    ]
    for arm in arms:
        config = impl.config(**arm.config)
        assert not impl.refuse(config, H200.limits, itemsize=ITEMSIZE["bf16"], **arm.sizes)


def test_a_value_that_cannot_run_keeps_an_arm_that_says_why():
    cdna = asking("matmul", device=device_named("mi300x"))
    impl = catalog.spec_of("matmul").impls[0]
    numbers = {block_size.block(impl, a.config, cdna) for a in block_size.arms(cdna)}
    assert numbers == {64, 128, 256, 512, 1024}  # 64 threads a warp
    narrow = asking("matmul", "fp32", {"M": 64, "N": 64, "K": 64}, device_named("mi300x"))
    refused = [
        a for a in tile_size.arms(narrow)
        if impl.refuse(impl.config(**a.config), narrow.device.limits, itemsize=4, **a.sizes)
    ]  # fmt: skip
    edges = [tile_size.edge(impl, a.config, narrow) for a in refused]
    assert len(edges) == len(set(edges))  # one for each value, and only where nothing else is


@pytest.mark.parametrize("experiment", [tile_size, block_size])
@pytest.mark.parametrize("kernel", ["softmax", "copy", "lora_delta", "q4_k_matmul", "wkv7"])
def test_other_kernels_have_other_values(experiment, kernel):
    asked = asking(kernel)
    arms = experiment.arms(asked)
    (said,) = experiment.judge(asked, all_timed(arms, lambda arm: 1e-5 + len(arm.name) % 7 * 1e-6))
    drawn = said.charts[0].series[0].x
    assert len(drawn) >= 2 and min(drawn) > 0  # a log axis; what a launcher chooses is no value
    assert any(name.startswith("the default (") for name in rows(said))


VALUES = [16, 32, 64, 128, 256]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(1e-6, 1e-3), min_size=5, max_size=5), st.floats(0.0001, 0.01))
def test_the_fastest_value_wins_and_ties_are_those_that_cannot_be_told_apart(times, spread):
    by_value = {
        v: [timed(TILES[0], t, spread), timed(TILES[1], 2 * t, spread), failed(TILES[2])]
        for v, t in zip(VALUES, times, strict=True)
    }
    ranked = knobs.ranking(by_value)
    best = min(times)
    assert ranked.best[ranked.winner].time_s == best and not ranked.missing
    for v, t in zip(VALUES, times, strict=True):
        assert ranked.ratios[v].value == pytest.approx(t / best)
        if v != ranked.winner:
            apart = t / best > max(1.005, (1 + spread) / (1 - spread)) * 1.0001
            assert (v in ranked.ties) is not apart or t / best == pytest.approx(1.005, rel=1e-3)


def spoken(experiment, arms, seconds, **how):
    (said,) = experiment.judge(asking("matmul"), all_timed(arms, seconds, **how))
    return said


def test_a_verdict_says_which_how_much_and_whether_it_is_at_the_edge():
    impl = catalog.spec_of("matmul").impls[0]

    def edge(arm):
        return tile_size.edge(impl, arm.config, asking("matmul"))

    falling = spoken(tile_size, TILES, lambda a: 1e-3 / edge(a))
    assert falling.word == "256, at the edge"
    assert "takes 16 times as long (16 to 16" in falling.sentence
    inner = {16: 9e-5, 32: 4e-5, 64: 2e-5, 128: 1e-5, 256: 3e-5}
    one = spoken(tile_size, TILES, lambda a: inner[edge(a)])
    assert one.word == "128" and "matmul.tiles at M=4096 N=4096 K=4096 is 128 (" in one.sentence
    assert rows(one)["16 over 128"].value == pytest.approx(9)
    assert any(name.startswith("the default (") for name in rows(one))
    assert one.charts[0].series[0].x == (16, 32, 64, 128, 256) and not one.charts[0].y_log
    tie = spoken(tile_size, TILES, lambda a: {**inner, 64: 1.001e-5}[edge(a)])
    assert tie.word == "tie of 64 and 128"
    many = spoken(tile_size, TILES, lambda a: {**inner, 64: 1e-5, 256: 1e-5}[edge(a)])
    assert many.word == "tie of 64, 128 and 256"
    predicted = spoken(block_size, BLOCKS, lambda a: 1e-5, predicted=True)
    assert predicted.word == "predicted: all tie"
    assert "~10.00 µs" in predicted.sentence and "The worst" not in predicted.sentence


def test_values_and_arms_without_a_time_are_named():
    impl = catalog.spec_of("matmul").impls[0]
    found = {
        a.name: failed(a, "it spilled")
        if tile_size.edge(impl, a.config, asking("matmul")) == 256 else timed(a, 1e-5)
        for a in TILES
    }  # fmt: skip
    (said,) = tile_size.judge(asking("matmul"), found)
    assert said.sentence.endswith("No time of 256.") and any(
        "it spilled" in c for c in said.caveats
    )
    (none,) = tile_size.judge(asking("matmul"), {a.name: failed(a) for a in TILES})
    assert none.word == "no verdict"


# lora_rank

LORA = lora_rank.arms(asking("lora_delta", "fp32"))


def test_every_rank_of_every_size_has_an_arm():
    for kernel in ("lora_delta", "lora"):
        arms = lora_rank.arms(asking(kernel, "fp32"))
        at = {(a.sizes["K"], a.sizes["r"]) for a in arms if a.impl != "torch"}
        assert at == {(k, r) for k in (512, 1024, 2048) for r in (4, 8, 16, 32, 64)}
        assert len({a.name for a in arms}) == len(arms)
    assert {a.sizes["r"] for a in LORA if a.impl == "fused"} == {4, 8, 16}
    own = lora_rank.arms(asking("lora", "bf16", {"M": 16, "N": 4096, "K": 4096, "r": 7}))
    assert {(a.sizes["M"], a.sizes["r"]) for a in own} == {(16, r) for r in (4, 8, 16, 32, 64)}


@settings(max_examples=15, deadline=None)
@given(st.floats(1.0, 1.5), st.floats(0.0002, 0.05))
def test_flat_means_that_the_whole_interval_is(growth, spread):
    found = all_timed(LORA, lambda a: 4e-6 * (growth if a.sizes["r"] == 64 else 1), spread=spread)
    (said,) = lora_rank.judge(asking("lora_delta", "fp32"), found)
    wide = (1 + spread) / (1 - spread)
    word = (
        "flat in rank" if growth * wide <= 1.15
        else "the rank costs time" if growth / wide > 1.15 else "not decided"
    )  # fmt: skip
    assert said.word == word
    row = next(e for e in said.evidence if e.name == "largest over least time")
    assert row.value == pytest.approx(growth) and row.target == "<= 1.15"
    assert row.met is {"flat in rank": True, "the rank costs time": False}.get(word)
    assert len(said.charts[0].series) == 3 and "rank 64: floor by compute" in rows(said)


def test_ranks_without_a_time_are_named_and_one_is_too_few():
    found = {a.name: timed(a, 4e-6) if a.sizes["r"] == 4 else failed(a) for a in LORA}
    (said,) = lora_rank.judge(asking("lora_delta", "fp32"), found)
    assert said.word == "not decided"
    assert "M=64 K=512 N=512 has no time at rank 8, 16, 32, 64." in said.caveats
    (none,) = lora_rank.judge(asking("lora_delta", "fp32"), {a.name: failed(a) for a in LORA})
    assert none.word == "not decided" and not none.charts


# expected

M2_MAX = described("m2max")
Q4_K = {"M": 1, "N": 2560, "K": 2560}


def test_the_expected_time_of_a_small_q4_k_product_on_an_m2_max():
    spec = catalog.spec_of("q4_k_matmul")
    said = expected.expected(spec, Q4_K, "fp32", M2_MAX, seconds("0.5ms"))
    row = rows(said)
    assert f"{row['least bytes'].value / 1e6:.1f}" == "3.7"
    assert f"{row['FLOPs'].value / 1e6:.1f}" == "13.1"
    assert f"{row['time at that bandwidth'].value * 1e3:.3f}" == "0.009"
    assert f"{row['time at that compute'].value * 1e3:.3f}" == "0.001"
    assert said.word == "54x the floor" and "set by memory" in said.sentence
    assert "3.71 MB at 400 GB/s" in said.sentence and "13.1 MFLOP at 13.6 TFLOP/s" in said.sentence


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 64), st.integers(1, 32), st.integers(1, 32), st.floats(1e-7, 1))
def test_the_floor_is_the_larger_of_the_two_times(M, n, k, given_s):
    spec, sizes = catalog.spec_of("q4_k_matmul"), {"M": M, "N": 256 * n, "K": 256 * k}
    said = expected.expected(spec, sizes, "fp16", M2_MAX, given_s)
    row = rows(said)
    times = [row[f"time at that {name}"].value for name in ("bandwidth", "compute")]
    assert row["the larger: the floor"].value == max(times)
    assert row["the time given, over the floor"].value == pytest.approx(given_s / max(times))
    bound = "memory" if times[0] >= times[1] else "compute"
    assert f"set by {bound}" in said.sentence


def test_measured_ceilings_give_a_second_floor_and_unknown_ones_none():
    spec = catalog.spec_of("copy")
    said = expected.expected(spec, {"N": 1 << 20}, "fp32", H200, known=MADE)
    groups = {e.group for e in said.evidence}
    assert f"on {H200.title}, as measured" in groups and f"on {H200.title}, as stated" in groups
    assert any("a hot call may take less" in c for c in said.caveats)
    blind = replace(H200, dram=None, cache_bandwidth=None, peaks={})
    none = expected.expected(spec, {"N": 1 << 20}, "fp32", blind)
    assert none.word == "unknown" and "workbench ceilings" in none.sentence
    (asked,) = expected.judge(asking("q4_k_matmul", "fp16"), {})
    assert "M=1 N=14336 K=4096" in asked.sentence and asked.word.startswith("at least ")
    small = expected.expected(spec, {"N": 1 << 20}, "fp32", H200, 1e-9)
    assert "a cache served part of it" in small.sentence


@settings(max_examples=30, deadline=None)
@given(st.floats(1e-3, 1e6), st.sampled_from(["s", "ms", "us", "µs", "ns"]), st.booleans())
def test_times_are_read_as_they_are_written(value, unit, space):
    scale = {"s": 1, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}[unit]
    text = f"{value:.6f}{' ' * space}{unit}"
    assert seconds(text) == pytest.approx(float(f"{value:.6f}") * scale)


def test_times_may_have_a_power_of_ten():
    assert seconds("5e-4s") == seconds("0.5 ms") == seconds(".05E1ms") == pytest.approx(5e-4)


@pytest.mark.parametrize(
    "text",
    ["", "5", "ms", "0ms", "-1 ms", "5 min", "1e", "nan s", "5 ms x", "1e999s", "1e-999 s", "٣ ms"],
)
def test_what_is_no_time_is_one_sentence(text):
    with pytest.raises(ExperimentError, match="is no time; write a number"):
        seconds(text)


def test_the_fastest_stored_time_is_that_of_the_same_sizes(tmp_path):
    arm = replace(INTENSITY[0], kernel="copy", impl="blocks", sizes={"N": 1 << 20})
    outcomes = [timed(arm, 5e-6).outcome, timed(replace(arm, sizes={"N": 4}), 4e-6).outcome]
    outcomes += [timed(replace(arm, regime="hot"), 3e-6).outcome, failed(arm).outcome]
    outcomes += [timed(arm, 1e-9, predicted=True).outcome]
    with open_history(f"sqlite:///{tmp_path}/history.db") as history:
        for outcome in outcomes:
            history.add(outcome)
        rows = history.search("copy")
    found = expected.fastest(rows, {"N": 1 << 20})
    assert found is not None and found.time_s == 5e-6
    assert expected.fastest(rows, {"N": 7}) is None


# from the question to the page


@pytest.mark.parametrize("predicts", [False, True])
def test_an_experiment_runs_to_its_page(tmp_path, predicts):
    def fate(candidate):
        return Fate(time_s=3e-5 if candidate.case.kernel == "matvec" else 1e-5)

    question = experiment.Question(
        "quantization_overhead", out=tmp_path, database=f"sqlite:///{tmp_path}/h.db",
        winners=tmp_path / "winners.json",
    )  # fmt: skip
    said = io.StringIO()
    console = Console(file=said, width=200, highlight=False, markup=False)
    backend = Null(fate, predicts=predicts)
    assert experiment.Trials(question, console, lambda device, folder: backend).go() == 0
    with open_history(question.database) as history:
        findings = history.findings(history.run("last").id)
    word = "predicted: faster" if predicts else "faster"
    assert [f.word for f in findings] == [word, word]
    assert all(f.dtype == "fp16" and f.kernel == "q4_k_matmul" for f in findings)
    assert "-66.7 %" in said.getvalue() and "by bytes alone" in said.getvalue()


def test_a_ratio_of_predictions_claims_no_interval():
    a, b = (timed(INTENSITY[0], t, predicted=True) for t in (1e-5, 2e-5))
    assert over(a, b) == Span.exactly(2.0)
