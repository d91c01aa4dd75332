"""Experiments of configuration and cost: what their judges say of times that are known."""

import io
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from null_backend import Fate, Null
from rich.console import Console

from workbench import catalog
from workbench.code.loops import Code, Counts
from workbench.commands import experiment_command
from workbench.commands.experiment import ExperimentOptions
from workbench.compile import Compiled
from workbench.data import stats
from workbench.data.database import open_history
from workbench.data.record import Case, Failure, Measured, Predicted, Record, Resources
from workbench.device.hardware import device_named, find_device
from workbench.experiments import (
    Context,
    ExperimentError,
    VariantResult,
    block_size,
    expected,
    intensity,
    lora_rank,
    quantization_overhead,
    seconds,
    tile_size,
)
from workbench.experiments.analysis import knobs
from workbench.experiments.analysis.times import Span, ratio_of

H200 = device_named("h200")
MADE = {
    "dram_measured": {"value": 4e12, "unit": "B/s", "source": "made up", "kind": "measured"},
    "fma_fp32_measured": {
        "value": 60e12,
        "unit": "FLOP/s",
        "source": "made up",
        "dtype": "fp32",
        "kind": "measured",
        "low": 59e12,
        "high": 61e12,
    },
    "launch_graph_measured": {"value": 1e-6, "unit": "s", "source": "made up", "kind": "measured"},
}


def asking(kernel="", dtype="bf16", sizes=None, device=H200, predicts=False, ceilings=MADE):
    return Context(kernel, sizes, dtype, device, predicts, ceilings)


def timed(variant, time_s, spread=0.001, windows=(), predicted=False):
    """An arm with that time; its interval is `spread` to either side."""
    spec = catalog.spec_of(variant.kernel)
    case = Case(
        spec.name,
        variant.impl,
        "triton",
        dict(variant.config or {}),
        dict(variant.sizes),
        variant.dtype,
        "h200",
    )
    timing = (
        Predicted(time_s, "model", 0.0, time_s, 0.0, 0.0, 0.0, "memory")
        if predicted
        else Measured(
            time_s,
            time_s * (1 - spread),
            time_s * (1 + spread),
            tuple(windows),
            variant.regime,
            "graph",
            "p",
            window_sizes=(1,) * len(windows),
        )
    )
    outcome = Record(
        case,
        variant.name,
        "run",
        "2026-11-21T09:30:00+00:00",
        "hot" if variant.regime == "hot" else "predict" if predicted else "final",
        timing,
        spec.flops(**variant.sizes),
        spec.bytes(variant.sizes, variant.dtype),
        "gpu",
        0.1,
    )
    return VariantResult(variant, outcome)


def failed(variant, reason="it broke"):
    case = Case(
        variant.kernel, variant.impl, "triton", {}, dict(variant.sizes), variant.dtype, "h200"
    )
    return VariantResult(
        variant, Failure(case, variant.name, "run", "2026-11-21", "measure", reason)
    )


def all_timed(variants, seconds, **how):
    return {variant.name: timed(variant, seconds(variant), **how) for variant in variants}


def rows(analysis):
    return {e.name: e for e in analysis.evidence}


# intensity

INTENSITY = intensity.variants(asking(dtype="fp32"))


def roofline(bandwidth, peak, sharpness=math.inf, noise=0.0, seed=0):
    """Times of a device that is exactly as its roofline says, or rounded at the knee."""
    dice = random.Random(seed)

    def seconds(variant):
        spec = catalog.spec_of(variant.kernel)
        terms = (
            spec.bytes(variant.sizes, variant.dtype) / bandwidth,
            spec.flops(**variant.sizes) / peak,
        )
        top = max(terms)
        both = (
            top
            if math.isinf(sharpness)
            else (top * sum((t / top) ** sharpness for t in terms) ** (1 / sharpness))
        )
        return both * (1 + noise * dice.uniform(-1, 1))

    return seconds


@given(
    bandwidth=st.floats(1e11, 1e13),
    knee=st.floats(0.55, 30),
    noise=st.floats(0, 0.004),
    seed=st.integers(0, 99),
)
def test_the_knee_is_where_bandwidth_and_peak_meet(bandwidth, knee, noise, seed):
    result = all_timed(
        INTENSITY, roofline(bandwidth, bandwidth * knee, noise=noise, seed=seed), spread=0.005
    )
    bent = intensity.bend([intensity.point(f) for f in result.values()])
    knee_ = bent.knee
    assert knee_.low <= knee <= knee_.high
    assert knee_.value == pytest.approx(knee, rel=0.011)
    assert bent.slope.value == pytest.approx(bandwidth, rel=0.005)
    assert knee_.high / knee_.low < 1.04  # all points of both sides, and no wider


@given(knee=st.floats(1, 20), sharpness=st.floats(3, 8))
def test_a_round_knee_is_found_from_points_that_lie_apart(knee, sharpness):
    result = all_timed(INTENSITY, roofline(4e12, 4e12 * knee, sharpness))
    bent = intensity.bend([intensity.point(f) for f in result.values()])
    assert bent.knee.value == pytest.approx(knee, rel=0.06)


def test_intensities_are_those_of_the_question():
    spec = catalog.spec_of("streamed_fma")
    got = [spec.flops(**a.sizes) / (16 * a.sizes["N"]) for a in INTENSITY]
    assert got == [2.0**e for e in range(-3, 8)]
    half = intensity.variants(asking(dtype="fp16"))
    assert [a.sizes["F"] for a in half] == [2**e for e in range(10)]


def test_the_knee_is_set_against_the_measured_ridge():
    (text,) = intensity.analyse(asking(dtype="fp32"), all_timed(INTENSITY, roofline(4e12, 60e12)))
    assert (
        text.word == "knee at 15 FLOP/B" and "as the measured ceilings do at 15." in text.sentence
    )
    row = rows(text)["knee"]
    assert row.unit == "FLOP/B" and row.kind == "measured" and row.low < 15 < row.high
    chart = text.charts[0]
    assert [s.name for s in chart.series] == [
        "measured rate",
        "measured ceilings",
        "stated ceilings",
    ]
    assert chart.x_log and chart.y_log and chart.series[0].low and len(chart.series[0].x) == 11
    (low,) = intensity.analyse(asking(dtype="fp32"), all_timed(INTENSITY, roofline(4e12, 40e12)))
    assert "short of the ridge" in low.sentence


def test_a_predicted_knee_has_a_tilde_and_no_interval():
    result = all_timed(INTENSITY, roofline(4e12, 60e12), predicted=True)
    (text,) = intensity.analyse(asking(dtype="fp32", predicts=True), result)
    assert text.word == "knee at ~15 FLOP/B" and "~4.0 TB/s" not in text.sentence
    assert all(e.low is None for e in text.evidence if e.kind == "predicted")
    assert {e.kind for e in text.evidence} == {"predicted", "measured", "datasheet", "computed"}


def test_without_a_plateau_there_is_no_knee():
    (text,) = intensity.analyse(asking(dtype="fp32"), all_timed(INTENSITY, roofline(1e12, 1e15)))
    assert text.word == "no knee"
    broken = {variant.name: failed(variant) for variant in INTENSITY}
    (none,) = intensity.analyse(asking(dtype="fp32"), broken)
    assert none.word == "no knee" and not none.charts
    assert any("it broke" in caveat for caveat in none.caveats)


@pytest.mark.parametrize(
    ("F", "outside", "inside", "whole"),
    [
        (16, 128, 0, True),
        (1024, 256, 256, True),
        (1024, 8192, 0, True),
        (1024, 250, 256, False),
        (16, 64, 0, False),
        (64, 512, 256, False),
    ],
)
def test_machine_code_with_fewer_multiply_adds_is_told(F, outside, inside, whole):
    resources = Resources("b", 32, 0, 0, 128, 16, 1.0, "threads", 1, 1.0, 0.0, 128, None, 0.1)
    counts = Counts(vector=outside + inside), Counts(vector=inside)
    code = Code("sm_90", 1 if inside else 0, *counts)
    variant = replace(INTENSITY[0], sizes={"N": 1 << 25, "F": F}, config={"block_n": 1024})
    result = replace(
        timed(variant, 1e-4), compilation=Compiled(resources, "k", (1,), 1, code=(code,))
    )
    assert intensity.complete(result) is whole
    assert bool(intensity._missing_work([result])) is not whole
    assert intensity.complete(replace(result, compilation=None)) is None


@pytest.mark.parametrize(
    ("experiment", "context"),
    [
        (intensity, asking("matmul", "fp32")),
        (intensity, asking(dtype="fp8")),
        (quantization_overhead, asking("matmul", "fp16")),
        (quantization_overhead, asking("q4_k_matmul", "fp32")),
        (lora_rank, asking("matmul")),
        (tile_size, asking("empty")),
    ],
)
def test_what_cannot_be_asked_is_one_sentence(experiment, context):
    with pytest.raises(ExperimentError) as caught:
        experiment.EXPERIMENT.variants(context)
    assert str(caught.value).endswith(".") and "\n" not in str(caught.value)


# ratios


@given(st.floats(0.2, 5), st.integers(0, 999))
def test_what_a_round_shares_cancels(true, seed):
    dice = random.Random(seed)
    drift = [1e-5 * dice.uniform(0.8, 1.2) for _ in range(24)]
    left = timed(INTENSITY[0], stats.median(drift), 0.2, drift)
    right = timed(INTENSITY[1], true * stats.median(drift), 0.2, [true * d for d in drift])
    assert ratio_of(left, right).low == pytest.approx(true) == ratio_of(left, right).high
    fewer = ratio_of(left, timed(INTENSITY[1], true * stats.median(drift), 0.2))
    assert fewer.low < true < fewer.high and fewer.high / fewer.low > 2
    assert ratio_of(left, failed(INTENSITY[1])) is None


# quantization_overhead

QUANTIZED = quantization_overhead.variants(asking("q4_k_matmul", "fp16"))


def sided(a_s, b_s, slow=3.0):
    """The first Impl of each side takes that long, any other `slow` times as long."""

    def seconds(variant):
        best = {"matvec": "torch.linear", "q4_k_matmul": "rows"}[variant.kernel]
        base = b_s if variant.kernel == "q4_k_matmul" else a_s
        return base if variant.impl == best else slow * base

    return seconds


@settings(max_examples=15, deadline=None)
@given(st.floats(1e-6, 1e-3), st.floats(0.2, 5), st.floats(0.0005, 0.02))
def test_overhead_is_that_of_the_fastest_and_has_the_right_word(a_s, ratio, spread):
    result = all_timed(QUANTIZED, sided(a_s, ratio * a_s), spread=spread)
    text = quantization_overhead.analyse(asking("q4_k_matmul", "fp16"), result)
    assert len(text) == 2
    for one in text:
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
    results = {
        a.name: failed(a) if a.kernel == "q4_k_matmul" and a.sizes["N"] == 2560 else timed(a, 1e-5)
        for a in QUANTIZED
    }
    small, large = quantization_overhead.analyse(asking("q4_k_matmul", "fp16"), results)
    assert small.word == "no verdict" and not small.evidence
    assert any("it broke" in caveat for caveat in small.caveats)
    assert large.word == "no difference seen"
    assert "matvec.rows" in large.caveats[0] and "torch" in large.caveats[0]
    alone = {n: f if "rows" in n else failed(f.variant) for n, f in results.items()}
    assert not any(
        "torch" in c
        for c in quantization_overhead._caveats(
            asking("q4_k_matmul", "fp16"), dict(large.sizes), alone
        )
        if "is the fastest of" in c
    )
    assert any("not comparable" in c for c in large.caveats)  # 117 MB do not fit the cache
    assert not any("not comparable" in c for c in small.caveats)


def test_products_that_suit_more_rows_are_compared_where_there_are_more():
    sizes = {"M": 512, "N": 14336, "K": 4096}
    variants = quantization_overhead.variants(asking("q4_k_matmul", "fp16", sizes))
    names = {f"{a.kernel}.{a.impl}" for a in variants}
    assert names == {
        "matvec.tiles",
        "matmul.tiles",
        "matmul.persistent",
        "matvec.torch.linear",
        "q4_k_matmul.ordered",
        "q4_k_matmul.unpack_first",
        "q4_k_matmul.warp_groups",
    }
    assert len({a.name for a in variants}) == len(variants) == 14
    for variant in variants:  # each there is
        catalog.impl_of(catalog.spec_of(variant.kernel), variant.impl)


# tile_size and block_size

TILES = tile_size.EXPERIMENT.variants(asking("matmul"))
BLOCKS = block_size.EXPERIMENT.variants(asking("matmul"))


@pytest.mark.parametrize(
    ("variants", "varied", "wanted"),
    [
        (TILES, tile_size.EDGE, [16, 32, 64, 128, 256]),
        (BLOCKS, block_size.BLOCK, [32, 64, 128, 256, 512]),
    ],
)
def test_each_value_has_a_few_configs_that_can_run(variants, varied, wanted):
    assert {(a.kernel, a.impl) for a in variants} == {("matmul", "tiles")}
    impl = catalog.impl_of(catalog.spec_of("matmul"), "tiles")
    numbers = [varied.number(impl, a.config, asking("matmul")) for a in variants]
    assert sorted(set(numbers)) == wanted
    assert all(1 <= numbers.count(n) <= knobs.TRIED + 1 for n in wanted)
    assert len({a.name for a in variants}) == len(variants)
    assert impl.default(H200.limits, "bf16", variants[0].sizes) in [
        impl.config(**a.config) for a in variants
    ]
    for variant in variants:
        config = impl.config(**variant.config)
        assert not impl.rejection_reason(config, H200.limits, "bf16", variant.sizes)


def test_a_value_that_cannot_run_keeps_an_arm_that_says_why():
    cdna = asking("matmul", device=device_named("mi300x"))
    impl = catalog.spec_of("matmul").impls[0]
    numbers = {block_size.block(impl, a.config, cdna) for a in block_size.EXPERIMENT.variants(cdna)}
    assert numbers == {64, 128, 256, 512, 1024}  # 64 threads a warp
    narrow = asking("matmul", "fp32", {"M": 64, "N": 64, "K": 64}, device_named("mi300x"))
    refused = [
        a for a in tile_size.EXPERIMENT.variants(narrow)
        if impl.rejection_reason(impl.config(**a.config), narrow.device.limits, "fp32", a.sizes)
    ]  # fmt: skip
    edges = [tile_size.edge(impl, a.config, narrow) for a in refused]
    assert len(edges) == len(set(edges))  # one for each value, and only where nothing else is


@pytest.mark.parametrize("experiment", [tile_size, block_size])
@pytest.mark.parametrize("kernel", ["softmax", "copy", "lora_delta", "q4_k_matmul", "wkv7"])
def test_other_kernels_have_other_values(experiment, kernel):
    wanted = asking(kernel)
    variants = experiment.EXPERIMENT.variants(wanted)
    (text,) = experiment.EXPERIMENT.analyse(
        wanted, all_timed(variants, lambda variant: 1e-5 + len(variant.name) % 7 * 1e-6)
    )
    drawn = text.charts[0].series[0].x
    assert len(drawn) >= 2 and min(drawn) > 0  # a log axis; what a launcher chooses is no value
    assert any(name.startswith("the default (") for name in rows(text))


VALUES = [16, 32, 64, 128, 256]


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


def spoken(experiment, variants, seconds, **how):
    (text,) = experiment.EXPERIMENT.analyse(asking("matmul"), all_timed(variants, seconds, **how))
    return text


def test_a_verdict_says_which_how_much_and_whether_it_is_at_the_edge():
    impl = catalog.spec_of("matmul").impls[0]

    def edge(variant):
        return tile_size.edge(impl, variant.config, asking("matmul"))

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
    results = {
        a.name: failed(a, "it spilled")
        if tile_size.edge(impl, a.config, asking("matmul")) == 256
        else timed(a, 1e-5)
        for a in TILES
    }
    (text,) = tile_size.EXPERIMENT.analyse(asking("matmul"), results)
    assert text.sentence.endswith("No time of 256.") and any(
        "it spilled" in c for c in text.caveats
    )
    (none,) = tile_size.EXPERIMENT.analyse(asking("matmul"), {a.name: failed(a) for a in TILES})
    assert none.word == "no verdict"


# lora_rank

LORA = lora_rank.variants(asking("lora_delta", "fp32"))


def test_every_rank_of_every_size_has_an_arm():
    for kernel in ("lora_delta", "lora"):
        variants = lora_rank.variants(asking(kernel, "fp32"))
        at = {(a.sizes["K"], a.sizes["r"]) for a in variants if a.impl != "torch"}
        assert at == {(k, r) for k in (512, 1024, 2048) for r in (4, 8, 16, 32, 64)}
        assert len({a.name for a in variants}) == len(variants)
    assert {a.sizes["r"] for a in LORA if a.impl == "fused"} == {4, 8, 16}
    own = lora_rank.variants(asking("lora", "bf16", {"M": 16, "N": 4096, "K": 4096, "r": 7}))
    assert {(a.sizes["M"], a.sizes["r"]) for a in own} == {(16, r) for r in (4, 8, 16, 32, 64)}


@settings(max_examples=15, deadline=None)
@given(st.floats(1.0, 1.5), st.floats(0.0002, 0.05))
def test_flat_means_that_the_whole_interval_is(growth, spread):
    result = all_timed(LORA, lambda a: 4e-6 * (growth if a.sizes["r"] == 64 else 1), spread=spread)
    (text,) = lora_rank.analyse(asking("lora_delta", "fp32"), result)
    wide = (1 + spread) / (1 - spread)
    word = (
        "flat in rank"
        if growth * wide <= 1.15
        else "the rank costs time"
        if growth / wide > 1.15
        else "not decided"
    )
    assert text.word == word
    row = next(e for e in text.evidence if e.name == "largest over least time")
    assert row.value == pytest.approx(growth) and row.target == "<= 1.15"
    assert row.met is {"flat in rank": True, "the rank costs time": False}.get(word)
    assert len(text.charts[0].series) == 3 and "rank 64: bound by compute" in rows(text)


def test_ranks_without_a_time_are_named_and_one_is_too_few():
    results = {a.name: timed(a, 4e-6) if a.sizes["r"] == 4 else failed(a) for a in LORA}
    (text,) = lora_rank.analyse(asking("lora_delta", "fp32"), results)
    assert text.word == "not decided"
    assert "M=64 K=512 N=512 has no time at rank 8, 16, 32, 64." in text.caveats
    (none,) = lora_rank.analyse(asking("lora_delta", "fp32"), {a.name: failed(a) for a in LORA})
    assert none.word == "not decided" and not none.charts


# expected

M2_MAX = find_device("m2max")
Q4_K = {"M": 1, "N": 2560, "K": 2560}


def test_the_expected_time_of_a_small_q4_k_product_on_an_m2_max():
    spec = catalog.spec_of("q4_k_matmul")
    text = expected.analyse_expected(spec, Q4_K, "fp32", M2_MAX, seconds("0.5ms"))
    row = rows(text)
    assert f"{row['least bytes'].value / 1e6:.1f}" == "3.7"
    assert f"{row['FLOPs'].value / 1e6:.1f}" == "13.1"
    assert f"{row['time at that bandwidth'].value * 1e3:.3f}" == "0.009"
    assert f"{row['time at that compute'].value * 1e3:.3f}" == "0.001"
    assert text.word == "54x the bound" and "set by memory" in text.sentence
    assert "3.71 MB at 400 GB/s" in text.sentence and "13.1 MFLOP at 13.6 TFLOP/s" in text.sentence


@given(st.integers(1, 64), st.integers(1, 32), st.integers(1, 32), st.floats(1e-7, 1))
def test_the_floor_is_the_larger_of_the_two_times(M, n, k, given_s):
    spec, sizes = catalog.spec_of("q4_k_matmul"), {"M": M, "N": 256 * n, "K": 256 * k}
    text = expected.analyse_expected(spec, sizes, "fp16", M2_MAX, given_s)
    row = rows(text)
    times = [row[f"time at that {name}"].value for name in ("bandwidth", "compute")]
    assert row["the larger: the bound"].value == max(times)
    assert row["the time given, over the bound"].value == pytest.approx(given_s / max(times))
    bound = "memory" if times[0] >= times[1] else "compute"
    assert f"set by {bound}" in text.sentence


def test_measured_ceilings_give_a_second_floor_and_unknown_ones_none():
    spec = catalog.spec_of("copy")
    text = expected.analyse_expected(spec, {"N": 1 << 20}, "fp32", H200, known=MADE)
    groups = {e.group for e in text.evidence}
    assert f"on {H200.title}, as measured" in groups and f"on {H200.title}, as stated" in groups
    assert any("a hot call may take less" in c for c in text.caveats)
    blind = replace(H200, dram=None, cache_bandwidth=None, peaks={})
    none = expected.analyse_expected(spec, {"N": 1 << 20}, "fp32", blind)
    assert none.word == "unknown" and "workbench ceilings" in none.sentence
    (wanted,) = expected.analyse(asking("q4_k_matmul", "fp16"), {})
    assert "M=1 N=14336 K=4096" in wanted.sentence and wanted.word.startswith("at least ")
    small = expected.analyse_expected(spec, {"N": 1 << 20}, "fp32", H200, 1e-9)
    assert "a cache served part of it" in small.sentence


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
    with pytest.raises(ExperimentError, match="is not a time; write a number"):
        seconds(text)


def test_the_fastest_stored_time_is_that_of_the_same_sizes(tmp_path):
    variant = replace(INTENSITY[0], kernel="copy", impl="blocks", sizes={"N": 1 << 20})
    outcomes = [timed(variant, 5e-6).outcome, timed(replace(variant, sizes={"N": 4}), 4e-6).outcome]
    outcomes += [timed(replace(variant, regime="hot"), 3e-6).outcome, failed(variant).outcome]
    outcomes += [timed(variant, 1e-9, predicted=True).outcome]
    with open_history(f"sqlite:///{tmp_path}/history.db") as history:
        for outcome in outcomes:
            history.add(outcome)
        rows = history.search("copy")
    result = expected.fastest(rows, {"N": 1 << 20})
    assert result is not None and result.time_s == 5e-6
    assert expected.fastest(rows, {"N": 7}) is None


# from the question to the page


@pytest.mark.parametrize("predicts", [False, True])
def test_an_experiment_runs_to_its_page(tmp_path, predicts):
    def fate(candidate):
        return Fate(time_s=3e-5 if candidate.case.kernel == "matvec" else 1e-5)

    question = ExperimentOptions(
        "quantization_overhead",
        out=tmp_path,
        database=f"sqlite:///{tmp_path}/h.db",
    )
    text = io.StringIO()
    console = Console(file=text, width=200, highlight=False, markup=False)
    backend = Null(fate, predicts=predicts)
    assert (
        experiment_command.ExperimentCommand(
            question, console, lambda device, folder: backend, tuned_file=tmp_path / "winners.json"
        ).go()
        == 0
    )
    with open_history(question.database) as history:
        findings = history.findings(history.run("last").id)
    word = "predicted: faster" if predicts else "faster"
    assert [f.word for f in findings] == [word, word]
    assert all(f.dtype == "fp16" and f.kernel == "q4_k_matmul" for f in findings)
    assert "-66.7 %" in text.getvalue() and "by bytes only" in text.getvalue()


def test_a_ratio_of_predictions_claims_no_interval():
    a, b = (timed(INTENSITY[0], t, predicted=True) for t in (1e-5, 2e-5))
    assert ratio_of(a, b) == Span.exactly(2.0)
