"""Verdicts of experiments at their thresholds, a little below and a little above; by hand."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from variant_results import context, failed, text, took

from workbench import catalog, experiments
from workbench.data.record import Measured
from workbench.device.ceilings import CeilingSet, ceiling_of
from workbench.device.hardware import find_device
from workbench.experiments import (
    Variant,
    cpu_vs_gpu,
    intensity,
    lora_rank,
    memory_vs_compute,
    quantization_overhead,
)
from workbench.experiments import expected as module_expected
from workbench.experiments.analysis import bounds, ceilings, knobs
from workbench.experiments.analysis import times as analysis
from workbench.experiments.analysis.bounds import Bound, bound
from workbench.experiments.analysis.knobs import Ranking, Varied, _times, _verdict, ranking
from workbench.experiments.analysis.products import product_for
from workbench.experiments.analysis.timeline import Timeline, reach_of, word_of
from workbench.experiments.analysis.times import Span, quotient, ratio_of, verdict_word
from workbench.experiments.expected import analyse_expected, fastest
from workbench.experiments.intensity import IntensityPoint, bend
from workbench.experiments.lora_rank import Layer, layer
from workbench.experiments.memory_vs_compute import (
    Shares,
    Times,
    _caveats,
    _ceiling_verdict,
    _rates,
    _resources,
    _spilling_parts,
    impossible,
    overlap,
    shares_of,
    times_of,
    word_at,
    words_of,
)
from workbench.experiments.quantization_overhead import packed_variants, plain_metal, verdict_text

pytestmark = pytest.mark.unit
EXACTLY = Span.exactly


# Numbers with intervals


def test_arithmetic_takes_the_widest_interval():
    a, b = Span(4.0, 2.0, 6.0), Span(2.0, 1.0, 3.0)
    assert a + b == Span(6.0, 3.0, 9.0) and a - b == Span(2.0, -1.0, 5.0)
    assert a / b == Span(2.0, 2.0 / 3.0, 6.0) and a.times(0.5) == Span(2.0, 1.0, 3.0)
    assert a.less(Span(5.0, 1.0, 7.0)) == Span(0.0, 0.0, 5.0)
    assert a.clamp(3.0, 5.0) == Span(4.0, 3.0, 5.0)
    assert a.extend_down(b) == Span(4.0, 1.0, 6.0) and b.extend_down(a) == b
    assert a.extend_up(b) == a and b.extend_up(a) == Span(2.0, 1.0, 6.0)
    assert (quotient(0.0, 0.0), quotient(1.0, 0.0), quotient(1.0, 2.0)) == (0.0, math.inf, 0.5)


@pytest.mark.parametrize(
    ("limit", "above", "below"),
    [
        (1.9, True, False),
        (2.0, None, False),
        (4.0, None, None),
        (6.0, False, None),
        (6.1, False, True),
    ],
)
def test_an_interval_may_not_tell(limit, above, below):
    span = Span(4.0, 2.0, 6.0)
    assert span.is_above(limit) is above and span.is_below(limit) is below


def variant(name="v", **more):
    return Variant(name, "softmax", "rows", {"M": 1, "N": 8}, "bf16", **more)


def windowed(name, medians):
    """Return a variant whose windows have these medians."""
    timing = Measured(1.0, 0.5, 2.0, tuple(medians), "cold", "graph", "p", len(medians),
                      window_sizes=(1,) * len(medians))  # fmt: skip
    result = took(variant(name), 1.0, half=0.25)
    return replace(result, outcome=replace(result.outcome, timing=timing))


def test_windows_of_the_same_rounds_are_paired_from_six_on():
    """Each pair has the ratio of 2, whatever the clock; the quotient of the ends is 0.25 to 4."""
    clock = (1.0, 3.0, 2.0, 5.0, 4.0, 2.5)
    left, right = windowed("a", clock), windowed("b", [2 * x for x in clock])
    assert ratio_of(left, right) == Span(2.0, 2.0, 2.0)
    few = windowed("a", clock[:5]), windowed("b", [2 * x for x in clock[:5]])
    assert ratio_of(*few) == Span(1.0, 0.25, 4.0) and ratio_of(left, few[1]) == Span(1.0, 0.25, 4.0)
    assert ratio_of(left, failed(variant())) is None and ratio_of(failed(variant()), left) is None


def test_reasons_name_two_of_many():
    reason = {f"v{n}": failed(variant(f"v{n}"), "it broke.") for n in range(4)}
    assert analysis.reasons(reason) == ["No time of v0; v1 and 2 more: it broke."]
    del reason["v3"]
    reason["odd"] = failed(variant("odd"), "other")
    assert analysis.reasons(reason) == [
        "No time of v0; v1; v2: it broke.",
        "No time of odd: other.",
    ]


def test_a_line_has_intervals_where_all_have():
    measured = {n: took(variant(), n * 1e-5, half=0.1) for n in (1, 2)}
    series = analysis.line("a", measured, 1e-6, "measured")
    assert series.x == (1.0, 2.0) and series.y == pytest.approx((10.0, 20.0))
    assert series.low == pytest.approx((9.0, 18.0)) and series.high == pytest.approx((11.0, 22.0))
    mixed = analysis.line("a", {**measured, 3: text(variant(), 3e-5)}, 1e-6, "predicted")
    assert mixed.low == mixed.high == () and mixed.y == pytest.approx((10.0, 20.0, 30.0))


def test_the_least_of_several_is_that_of_each_end():
    some = [took(variant(), 4.0, half=0.5), failed(variant()), took(variant(), 3.0, half=0.1)]
    assert analysis.least_of(some) == Span(3.0, 2.0, pytest.approx(3.3))
    assert analysis.least_of(some[1:2]) is None and analysis.quickest(some[1:2]) is None
    assert analysis.quickest(some) is some[2]


def test_ours_and_the_libraries_are_apart_at_each_rank():
    def at(impl, rank, time_s):
        one = Variant(f"{impl} {rank}", "lora", impl, {"M": 1, "r": rank}, "bf16")
        return took(one, time_s) if time_s else failed(one)

    results = [at("tiles", 4, 2e-5), at("fused", 4, 1e-5), at("torch", 4, 3e-5),
               at("tiles", 8, None), at("torch", 8, 4e-5), at("tiles", 16, 5e-5)]  # fmt: skip
    other = took(Variant("other", "lora", "tiles", {"M": 2, "r": 4}, "bf16"), 1e-9)
    found = layer({"M": 1}, {str(n): r for n, r in enumerate([*results, other])})
    assert {rank: r.time_s for rank, r in found.ours.items()} == {4: 1e-5, 16: 5e-5}
    assert {rank: r.time_s for rank, r in found.library.items()} == {4: 3e-5, 8: 4e-5}


# What limits a kernel


@pytest.mark.parametrize(
    ("traffic", "arithmetic", "share"),
    [
        (1.0, 1.0, 1.0), (1.0, 0.0, 1.0), (0.5, 0.4, 0.0), (0.5, 0.5, 0.0), (0.75, 0.5, 0.5),
        (0.5, 0.75, 0.5), (0.9, 0.0, 0.0), (math.inf, 1.0, 1.0), (0.8, 0.6, 2 / 3),
    ],
)  # fmt: skip
def test_what_is_hidden_is_a_share_of_the_shorter(traffic, arithmetic, share):
    assert overlap(traffic, arithmetic) == pytest.approx(share)


@pytest.mark.parametrize(
    ("shares", "word"),
    [
        ((0.8, 0.8, 0.0, 0.0), "balanced"), ((0.8, 0.79, 0.0, 0.0), "memory-bound"),
        ((0.79, 0.8, 0.0, 0.0), "compute-bound"), ((0.5, 0.3, 0.0, 0.0), "serialised"),
        ((0.4, 0.4, 0.0, 0.0), "serialised"), ((0.4, 0.39, 0.0, 0.0), "latency-bound"),
        ((0.9, 0.9, 0.5, 0.0), "latency-bound"), ((0.9, 0.9, 0.49, 0.79), "balanced"),
        ((0.9, 0.9, 0.0, 0.8), "latency-bound"),
    ],
)  # fmt: skip
def test_a_part_explains_the_time_from_four_fifths_on(shares, word):
    assert word_at(*shares) == word


def test_intervals_give_each_word_that_they_allow():
    def words(traffic, arithmetic):
        none = EXACTLY(0.0)
        return words_of(Shares(traffic, arithmetic, none, none, none))

    assert words(EXACTLY(0.9), EXACTLY(0.1)) == ["memory-bound"]
    assert words(Span(0.9, 0.8, 1.0), EXACTLY(0.8)) == ["balanced"]
    assert words(Span(0.9, 0.7, 1.0), EXACTLY(0.9)) == ["balanced", "compute-bound"]
    # a little under four fifths with 0.01 of the other is serialised, neither end is
    assert words(Span(0.85, 0.1, 0.9), EXACTLY(0.05)) == [
        "memory-bound", "latency-bound", "serialised"]  # fmt: skip


def test_shares_are_without_the_launch():
    times = Times(EXACTLY(5.0), EXACTLY(3.0), EXACTLY(9.0), EXACTLY(1.0), EXACTLY(4.5))
    shares = shares_of(times)
    assert (shares.traffic.value, shares.arithmetic.value) == (0.5, 0.25)
    assert shares.launch.value == pytest.approx(1 / 9) and shares.grid.value == 0.5
    assert shares_of(replace(times, grid=None)).grid == EXACTLY(0.0)


@pytest.mark.parametrize(("traffic", "wrong"), [(1.02, 0), (1.021, 1)])
def test_a_part_that_takes_longer_than_the_whole_is_none(traffic, wrong):
    times = Times(EXACTLY(traffic), EXACTLY(0.5), EXACTLY(1.0), EXACTLY(0.0))
    assert len(impossible(times)) == wrong
    wide = replace(times, traffic=Span(traffic, 1.0, 2.0))
    assert impossible(wide) == []


@pytest.mark.parametrize(
    ("dram", "peak", "reasons"),
    [
        (1000.0, 1000.0, 0), (980.4, 980.4, 0), (980.0, 1000.0, 1), (980.0, 980.0, 2),
        (0.0, 0.0, 0),
    ],
)  # fmt: skip
def test_rates_above_the_device_s_are_impossible(dram, peak, reasons):
    """1000 B in 1 s beside a launch of 1 s; two hundredths more than a ceiling are allowed."""
    times = Times(EXACTLY(2.0), EXACTLY(2.0), EXACTLY(3.0), EXACTLY(1.0))
    rows = _rates(SimpleNamespace(bytes=1000, flops=1000), times, (dram, peak))
    assert [row.name for row, _ in rows] == ["least bytes over A", "FLOPs over B"]
    assert [row.value for row, _ in rows] == [1000.0, 1000.0]
    assert sum(bool(reason) for _, reason in rows) == reasons
    assert [row.met for row, _ in rows] == (
        [None, None] if not dram else [dram > 980.2, peak > 980.2])  # fmt: skip
    only = _rates(SimpleNamespace(bytes=0, flops=1000), times, (dram, peak))
    assert [row.name for row, _ in only] == ["FLOPs over B"]
    launch = replace(times, traffic=EXACTLY(1.0))
    assert [row.name for row, _ in _rates(SimpleNamespace(bytes=9, flops=9), launch, (1, 1))] == [
        "FLOPs over B"]  # fmt: skip


def resources(**more):
    known = {"spill_bytes": 0, "blocks_per_core": 2, "programs": 8}
    return SimpleNamespace(resources=SimpleNamespace(**known | more))


def test_parts_that_spill_or_share_a_core_otherwise_are_named():
    def results(traffic, arithmetic, whole):
        every = {"traffic": traffic, "arithmetic": arithmetic, "whole": whole}
        return {name: SimpleNamespace(compilation=each) for name, each in every.items()}

    some = results(resources(spill_bytes=4), resources(spill_bytes=3), resources(spill_bytes=3))
    assert _spilling_parts(some) == [
        "A thread of the traffic variant spills 4 bytes, one of the whole 3"
    ]
    codes = {name: [] for name in ("whole", "traffic", "arithmetic")}
    cores = results(resources(blocks_per_core=3), resources(blocks_per_core=1), resources())
    both = _caveats(cores, codes)
    assert [("more" in line, "less" in line) for line in both] == [(True, False), (False, True)]
    assert _caveats(results(resources(), resources(), resources()), codes) == []
    unknown = {**codes, "whole": [SimpleNamespace(unknown=["a loop", "a loop"])]}
    assert _caveats(results(None, None, resources()), unknown) == ["Of the machine code: a loop."]
    unread = SimpleNamespace(resources=None)
    assert list(_resources(results(None, unread, resources()))) == ["whole"]


def test_a_grid_of_other_programs_is_left_out():
    def result(programs):
        every = {name: took(variant(name), 1e-5 * n) for n, name in
                 enumerate(("traffic", "arithmetic", "launch"), 1)}  # fmt: skip
        whole = took(variant("whole"), 9e-5)
        every["whole"] = replace(whole, compilation=resources(programs=programs))
        grid = took(variant("grid"), 4e-5)
        every["grid"] = replace(grid, variant=replace(grid.variant, sizes={"P": 8}))
        return every

    assert times_of(result(8)).grid is not None and times_of(result(9)).grid is None


def test_a_measured_mac_is_judged_by_its_ceilings():
    at = replace(context("softmax"), device=find_device("m2max"))
    known = {
        "dram_copy_measured": {"value": 3e11, "unit": "B/s", "source": "s", "kind": "measured"}
    }
    whole = took(variant("whole: rows"), 1e-4, bytes_=27_000_000, flops=1 << 10)
    for some, caveats in ((known, ["old"]), ({}, ["No ceiling was measured on this Mac: "
                                                      "workbench ceilings does.",
                                                      "old"])):  # fmt: skip
        result = _ceiling_verdict(replace(at, ceilings=some), whole, ["old"])
        assert list(result.caveats) == caveats
        assert result.evidence[0].name == "rows" and result.evidence[0].value == 1e-4
    result = _ceiling_verdict(replace(at, ceilings=known), whole, [])
    (least,) = [e for e in result.evidence if e.name == "memory traffic, at its ceiling"]
    assert least.value == pytest.approx(27e6 / 3e11) and least.group == "rows, least times"
    assert result.word == "memory-bound"


# Choices


@pytest.mark.parametrize(
    ("M", "N", "product"),
    [
        (4, 1 << 20, ("matvec", "rows")), (5, 64 * 128 - 128, ("matmul", "split_k")),
        (5, 64 * 128, ("matmul", "narrow")), (65, 32 * 128, ("matmul", "narrow")),
        (65, 31 * 128, ("matmul", "split_k")), (256, 16 * 128, ("matmul", "narrow")),
        (257, 16 * 128, ("matmul", "tiles")), (64, 63 * 128 + 1, ("matmul", "narrow")),
    ],
)  # fmt: skip
def test_a_product_is_split_where_its_tiles_are_few(M, N, product):
    assert product_for(M, N) == product


def test_q4_k_products_follow_the_rows_of_x():
    names = {M: [name for _, name in packed_variants(M)] for M in (4, 5, 64, 65)}
    assert "ordered" not in names[4] and {"slices", "tiles"} <= {*names[4]}
    assert names[5] == names[64] == ["slices", "tiles", "warp_groups"]
    assert names[65] == ["ordered", "unpack_first", "warp_groups"]
    kernels = {M: {kernel for kernel, _ in plain_metal(M, "torch.mv")[:-1]} for M in (4, 5)}
    assert kernels == {4: {"matvec"}, 5: {"matmul"}}


@pytest.mark.parametrize(
    ("span", "kind", "word"),
    [
        (Span(0.9, 0.8, 0.99), "measured", "faster"), (Span(0.9, 0.8, 1.0),
        "measured", "no difference seen"),
        (Span(1.1, 1.0, 1.2), "measured", "no difference seen"), (Span(1.1, 1.01, 1.2),
        "measured", "overhead"),
        (Span(0.9, 0.8, 0.99), "predicted", "predicted: faster"),
        (Span(0.9, 0.8, 1.0), "predicted", "the model cannot tell"),
        (Span(1.1, 1.0, 1.2), "predicted", "the model cannot tell"),
        (Span(1.1, 1.01, 1.2), "predicted", "predicted: overhead"),
        (Span(0.9, 0.9, 0.9), "predicted", "predicted: faster"),
        (Span(1.0, 1.0, 1.0), "predicted", "predicted: overhead"),
    ],
)  # fmt: skip
def test_packing_costs_what_its_interval_says(span, kind, word):
    said, sentence = verdict_text(span, kind, "fp16")
    assert said == word and "overhead of Q4_K over fp16" in sentence


@pytest.mark.parametrize(
    ("times", "make", "ties"),
    [
        ((1.0, 1.004, 1.006), lambda v, t: took(v, t), (1,)),
        ((1.0, 1.004, 1.006, 1.019, 1.021), lambda v, t: text(v, t), (1, 2, 3)),
        ((1.0, 1.005), lambda v, t: took(v, t), (1,)),
        ((1.0, 1.02), lambda v, t: text(v, t), (1,)),
        ((1.0, 1.1, 1.5), lambda v, t: took(v, t, half=0.1), (1,)),
    ],
)  # fmt: skip
def test_values_tie_within_half_a_percent_or_their_interval(times, make, ties):
    by_value = {n: [make(variant(), t * 2), make(variant(), t)] for n, t in enumerate(times)}
    found = ranking({**by_value, 9: [failed(variant())]})
    assert (found.winner, found.ties, found.missing) == (0, ties, (9,))
    assert found.best[0].time_s == 1.0 and found.ratios[1].value == pytest.approx(times[1])
    assert ranking({3: [failed(variant())]}) == Ranking({}, missing=(3,))


VARIED = Varied("warps", " warps", None, None)


@pytest.mark.parametrize(
    ("times", "ends", "word", "words"),
    [
        ((1.0, 1.5, 2.0), (0, 5), "0 warps, at the edge", "The worst, 2 warps, takes 2 times"),
        ((2.0, 1.5, 1.0), (0, 2), "2 warps, at the edge", "It is the largest that"),
        ((1.0, 1.5, 2.0), (-1, 5), "0 warps", "The worst, 2 warps"),
        ((1.0, 1.001, 2.0), (0, 5), "tie of 0 and 1 warps", "; tied with it: 1 warp. The worst"),
        ((1.0, 1.001, 1.002), (0, 5), "all tie", "; tied with it: all others."),
        ((1.0,), (0, 0), "0 warps", "The best warps for k.i at M=1 N=8 is 0 warps"),
    ],
)
def test_the_best_value_is_named_with_those_that_tie(times, ends, word, words):
    ranked = ranking({n: [took(variant(), t)] for n, t in enumerate(times)})
    said, sentence = _verdict(ranked, SimpleNamespace(title="k.i"), VARIED, "measured", ends)
    assert said == word and words in sentence
    assert ("at the edge" in said) == ("a better one may lie beyond" in sentence)


def test_times_of_each_value_and_of_the_default_are_listed():
    configs = [{"num_warps": n} for n in (1, 2, 4)]
    results = {f"v{n}": took(variant(f"v{n}", config=c), 1e-5 * (n + 1)) for n, c in
               enumerate(configs)}  # fmt: skip
    results["failed"] = failed(variant("failed", config={"num_warps": 8}))
    ranked = ranking({1: [results["v0"]], 2: [results["v1"]], 4: [results["v2"]]})
    rows = _times(ranked, {"num_warps": 4}, results, VARIED, "measured")
    assert [(row.name, row.value) for row in rows] == [
        ("1 warp: 1 warp", pytest.approx(1e-5)), ("2 warps: 2 warps", pytest.approx(2e-5)),
        ("4 warps: 4 warps", pytest.approx(3e-5)), ("2 warps over 1 warp", pytest.approx(2.0)),
        ("4 warps over 1 warp", pytest.approx(3.0)),
        ("the default (4 warps) over the best", pytest.approx(3.0)),
    ]  # fmt: skip


# Timelines, curves, layers


def timeline(gpu, step=0.0):
    """Four kernels in ten seconds."""
    return Timeline(EXACTLY(10.0), EXACTLY(gpu), EXACTLY(step), 4)


@pytest.mark.parametrize(
    ("gpu", "without", "reach", "word"),
    [
        (2.9, None, None, "launch-bound"), (3.0, None, None, "partly launch-bound"),
        (8.0, None, None, "partly launch-bound"), (8.1, None, None, "busy"),
        (9.0, None, 0.4, "inefficient kernels"), (9.0, None, 0.5, "busy"),
        (9.0, 4.9, None, "transfer-bound"), (9.0, 5.0, None, "busy"),
    ],
)  # fmt: skip
def test_a_timeline_has_the_word_of_what_it_waits_for(gpu, without, reach, word):
    spans = (EXACTLY(x) if x is not None else None for x in (without, reach))
    line = timeline(gpu)
    assert word_of(line, *spans) == word
    assert line.utilisation.value == pytest.approx(gpu / 10)
    assert line.kernel.value == pytest.approx(gpu / 4)
    assert line.gap.value == pytest.approx((10 - gpu) / 4)


def points_at(*intensities):
    """Return points of a roofline of 4 B/s and 32 FLOP/s, which bends at 8 FLOP a byte."""
    return [
        IntensityPoint(x, EXACTLY(min(4.0 * x, 32.0)), EXACTLY(min(4.0, 32.0 / x)))
        for x in intensities
    ]


def test_a_bend_is_where_slope_and_plateau_meet():
    """Points count from twice below the knee, at 4, and from twice above it, at 16."""
    for few in ((1, 2, 4, 8, 16, 32, 64), (2, 4, 16, 32)):
        found = bend(points_at(*few))
        assert (found.slope, found.plateau) == (EXACTLY(4.0), EXACTLY(32.0))
        assert found.knee.value == 8.0
    for fewer in ((1, 2, 4, 8), (), (2, 4.1, 16, 32), (2, 4, 15.9, 32), (1, 16, 32)):
        assert bend(points_at(*fewer)) is None


def test_steps_between_kernels_are_no_computing():
    line = timeline(9.0, 0.5)
    assert line.computing.value == 7.0 and line.utilisation == Span(0.9, 0.7, 0.9)
    assert line.efficiency == Span(0.7, 0.7, 0.9)
    assert line.kernel == Span(2.25, 1.75, 2.25) and line.gap == Span(0.25, 0.25, 0.75)
    shown = {row.name: row.met for row in line.evidence("g")}
    assert [met for met in shown.values() if met is not None] == [False]  # gaps of 0.25 s


def test_a_layer_s_spread_is_the_largest_time_over_the_least():
    ours = {4: took(variant(), 2e-5), 8: took(variant(), 1e-5), 16: took(variant(), 3e-5)}
    assert Layer({"M": 1}, ours, {}).spread.value == pytest.approx(3.0)
    assert Layer({"M": 1}, {4: ours[4]}, {}).spread is None
    assert Layer({"M": 1}, dict(list(ours.items())[:2]), {}).spread.value == pytest.approx(2.0)


# The least time of a call


def ceiling(name, value, unit, **more):
    plain = {"value": value, "unit": unit, "source": "s", "kind": "measured", **more}
    return ceiling_of("h200", name, plain)


def test_a_bound_is_the_larger_of_two_times():
    memory = ceiling("dram_copy_measured", 1e12, "B/s")
    compute = ceiling("compute_measured", 1e13, "FLOP/s", dtype="bf16")
    spec, sizes = catalog.spec_of("softmax"), {"M": 1000, "N": 1000}
    both = bound(spec, sizes, "bf16", CeilingSet("h200", (memory, compute), None))
    assert both.memory_s == pytest.approx(4e6 / 1e12)
    assert both.compute_s == pytest.approx(spec.flops(**sizes) / 1e13)
    assert (both.least_s, both.bound) == (both.memory_s, "memory")
    assert (
        Bound(None, None, 2.0, 3.0).bound == "compute"
        and Bound(None, None, 3.0, 3.0).bound == "memory"
    )
    assert Bound(None, None, None, None).least_s is None
    assert Bound(None, None, None, 3.0).least_s == 3.0


def test_what_is_unknown_of_a_device_is_said():
    spec, sizes = catalog.spec_of("softmax"), {"M": 1000, "N": 1000}
    h200 = find_device("h200")
    result = analyse_expected(spec, sizes, "bf16", h200, None, {}, "it")
    assert result.word.startswith("at least") and len(result.caveats) == 2
    assert "They fit the last-level cache" in result.caveats[1]
    cache = h200.cache.value
    for moved, fits in ((cache, True), (cache + 8, False)):
        rows = int(moved) // 8
        found = analyse_expected(spec, {"M": rows, "N": 2}, "bf16", h200, None, {}, "it")
        assert any("They fit" in c for c in found.caveats) is fits
    dark = replace(h200, dram=None)
    said = analyse_expected(spec, sizes, "bf16", dark, None, {}, "it").caveats
    assert any(f"The bandwidth of {h200.title} is unknown" in c for c in said)
    blind = analyse_expected(spec, sizes, "bf16", replace(h200, peaks={}), None, {}, "it").caveats
    assert any(f"No bf16 peak of {h200.title} is known" in c for c in blind)
    least = 4e6 / h200.dram.value
    for factor, word in ((2.0, "2x the bound"), (10.0, "10x the bound"), (9.96, "9.96x the bound")):
        given = analyse_expected(spec, sizes, "bf16", h200, factor * least, {}, "the time")
        assert given.word == word and "that." in given.sentence
    low = analyse_expected(spec, sizes, "bf16", h200, 0.5 * least, {}, "the time")
    assert "a cache served part of it" in low.sentence
    launch = {"launch_measured": {"value": 1.0, "unit": "s", "source": "s", "kind": "measured"}}
    slow = analyse_expected(spec, sizes, "bf16", h200, None, launch, "it").caveats
    assert any("A launch alone takes" in c for c in slow)
    launch["launch_measured"]["value"] = least / 2
    result = analyse_expected(spec, sizes, "bf16", h200, None, launch, "it")
    assert not any("A launch" in c for c in result.caveats)


def test_the_fastest_stored_time_is_cold_and_measured():
    def stored(time_s, phase="final", predicted=False, n=1):
        return SimpleNamespace(time_s=time_s, phase=phase, predicted=predicted, sizes={"N": n})

    rows = [stored(3.0), stored(2.0), stored(1.0, "hot"), stored(1.0, predicted=True),
            stored(1.0, n=2), stored(None)]  # fmt: skip
    assert fastest(rows, {"N": 1}).time_s == 2.0 and fastest(rows, {"N": 3}) is None
    assert memory_vs_compute.NEAR == 0.8


# Ceilings that are doubted


def sought(counted="bytes", level="dram", **more):
    arms = (variant("a"), variant("b"))
    return ceilings.Sought("dram_copy", "copy", level, counted, arms, **more)


STATED = SimpleNamespace(value=4.0, kind="datasheet")


@pytest.mark.parametrize(
    ("counted", "value", "state", "library", "known", "words"),
    [
        ("bytes", 0.98, "sustained", 1.0, {}, None),
        ("bytes", 0.979, "sustained", 1.0, {}, "0.979 of what lib reached"),
        ("launches", 2.0, "sustained", 1.96, {}, None),
        ("launches", 2.0, "sustained", 1.95, {}, "1.03 times as long as lib"),
        ("bytes", 4.0, "sustained", None, {}, None),
        ("bytes", 4.001, "sustained", None, {}, "1.00 of what is stated (datasheet)"),
        ("bytes", 0.99, "sustained", None, {"other": 1.0}, None),
        ("bytes", 0.989, "sustained", None, {"other": 1.0}, "it lies below other"),
        ("bytes", 0.97, "boost", None, {"own": 1.0}, None),
        ("bytes", 0.969, "boost", None, {"own": 1.0}, "0.969 of the sustained one"),
        ("bytes", 0.5, "boost", None, {"own": 1.0, "failed": True}, None),
        ("bytes", 0.5, "sustained", None, {"own": 1.0}, None),
    ],
)
def test_a_ceiling_is_doubted_beyond_its_limits(counted, value, state, library, known, words):
    s = sought(counted, lower_limits=("other",), statement=STATED)
    one = {"value": value, "state": state}
    if library:
        one["library"] = {"value": library, "name": "lib"}
    others = {}
    if "other" in known:
        others[ceilings.measured_name("other", state)] = {"value": known["other"], "title": "other"}
    if "own" in known:
        own = {"value": known["own"], "failed": known.get("failed", False)}
        others[ceilings.measured_name("dram_copy", "sustained")] = own
    said = ceilings.doubt(s, one, others)
    assert said is None if words is None else words in said


@pytest.mark.parametrize(("counted", "best"), [("bytes", "b"), ("launches", "a")])
def test_the_best_rate_is_the_largest_and_the_best_launch_the_shortest(monkeypatch, counted, best):
    rates = {"a": 1.0, "b": 2.0, "c": None}
    monkeypatch.setattr(
        ceilings, "rate_of",
        lambda result, counted, limits: rates[result] and SimpleNamespace(value=rates[result]),
    )  # fmt: skip
    arms = [SimpleNamespace(name=n) for n in "abcd"]
    results = {n: n for n in "abc"}
    found, rate = ceilings._best(sought(counted), arms, results, None)
    assert (found, rate.value) == (best, rates[best])
    assert ceilings._best(sought(counted), arms[2:], results, None) is None


def test_a_ceiling_without_a_time_has_the_reasons_of_its_variants():
    arms = [variant("a"), variant("b")]
    one = failed(arms[0], "it broke")
    for results, reason in (
        ({"a": one, "b": replace(one, variant=arms[1])}, "it broke"),
        ({"a": one, "b": failed(arms[1], "too large")}, "it broke; too large"),
        ({"b": failed(arms[1], "too large")}, "too large"), ({}, "it was not timed"),
    ):  # fmt: skip
        found = ceilings._plain(sought(), None, results, None)
        assert found == {
            "unit": "B/s", "title": "copy", "level": "dram", "kind": "missing",
            "source": "no variant gave a time", "reason": reason,
        }  # fmt: skip


def loop(loads=0, vector=0, matrix=0, readable=True):
    inner = SimpleNamespace(global_loads=loads, vector=vector, matrix=matrix)
    return SimpleNamespace(loop_counts=inner, readable=readable)


@pytest.mark.parametrize(
    ("level", "dtype", "loops", "words"),
    [
        ("cache", "fp32", [loop(loads=1)], None),
        ("cache", "fp32", [loop()], "no load is left"),
        ("shared", "fp32", [loop(loads=1), loop()], "no load is left"),
        ("compute", "fp32", [loop(vector=1)], None),
        ("compute", "fp32", [loop(matrix=1)], "no multiply-add is left"),
        ("compute", "bf16", [loop(matrix=1)], None),
        ("compute", "bf16", [loop(vector=1)], "no matrix instruction is left"),
        ("compute", "bf16", [loop(loads=2, matrix=1)], "2 loads are in the loop"),
        ("compute", "bf16", [loop(readable=False), loop()], "no matrix instruction is left"),
        ("dram", "fp32", [loop()], None),
        ("launch", "fp32", [loop()], None),
    ],
)
def test_machine_code_may_contradict_a_ceiling(level, dtype, loops, words):
    best = SimpleNamespace(compilation=SimpleNamespace(code=loops))
    said = ceilings.code_fault(sought(level=level, dtype=dtype), best)
    assert said is None if words is None else words in said
    assert ceilings.code_fault(sought(level=level), SimpleNamespace(compilation=None)) is None


# More of curves, knobs and layers


def test_occupancy_and_spills_are_those_that_are_known():
    def made(occupancy, spills=0, compiled=True):
        resources = SimpleNamespace(occupancy=occupancy, spill_bytes=spills, limiter="registers")
        held = SimpleNamespace(resources=resources if occupancy else None)
        return SimpleNamespace(compilation=held if compiled else None)

    best = {1: made(0.5, 8), 2: made(None), 3: made(0.5, compiled=False), 4: made(0.25)}
    rows = knobs._resources(Ranking(best), VARIED)
    assert [(row.name, row.value, row.unit) for row in rows] == [
        ("1 warp, limited by registers", 0.5, "1"), ("4 warps, limited by registers", 0.25, "1"),
        ("1 warp", 8, "B")]  # fmt: skip


@pytest.mark.parametrize(("longest", "is_wide"), [(1e-4, False), (1.01e-4, True)])
def test_an_axis_of_more_than_a_decade_is_logarithmic(longest, is_wide):
    ranked = ranking({1: [took(variant(), 1e-5)], 2: [took(variant(), longest)]})
    chart = knobs._chart(ranked, VARIED, "measured")
    assert chart.y_log is is_wide and chart.x_log is True and len(chart.series) == 1


@pytest.mark.parametrize(
    ("ridge", "last"), [(None, 64.0), (16.0, 64.0), (16.1, 128.0), (40.0, 256.0)]
)
def test_intensities_reach_twice_beyond_the_knee_of_what_is_stated(monkeypatch, ridge, last):
    """Twice APART of the ridge is the least that the last one must reach."""
    assert intensity.APART == 2
    pair = ridge and (SimpleNamespace(value=1.0), SimpleNamespace(value=ridge))
    monkeypatch.setattr(intensity, "INTENSITIES", (1.0, 64.0))
    monkeypatch.setattr(intensity, "_ridge", lambda at: pair)
    found = intensity._intensities(context("", "fp32"))
    assert found[0] == 1.0 and found[-1] == last and found == sorted(found)


def test_the_point_next_to_the_knee_is_next_by_its_ratio():
    """The knee is at 8; 5 is 1.6 times below it, 12 is 1.5 times above."""
    points = points_at(1, 5, 12, 64)
    rows = intensity._evidence(bend(points_at(1, 2, 4, 16, 32)), points, "measured")
    assert [(row.name, row.value) for row in rows] == [
        ("knee", 8.0), ("bandwidth of the slope", 4.0), ("rate of the plateau", 32.0),
        ("rate at 12 FLOP/B, next to the knee, over slope or plateau", 1.0)]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "knee", "ridge", "words"),
    [
        (
            "measured",
            Span(8.0, 7.0, 9.0),
            9.0,
            "8 FLOP/B (7 to 9), as the measured ceilings do at 9",
        ),
        ("measured", Span(8.0, 7.0, 9.0), 7.0, "(7 to 9), as the measured ceilings do at 7"),
        (
            "measured",
            Span(8.0, 7.0, 9.0),
            6.9,
            "(7 to 9), beyond the ridge of the measured",
        ),
        ("measured", Span(8.0, 7.0, 9.0), 9.1, "(7 to 9), short of the ridge of the measured"),
        ("predicted", Span(8.0, 7.0, 9.0), 5.0, "FLOP/B, where the measured ceilings have their"),
        ("measured", Span(8.0, 7.0, 9.0), None, "No bandwidth and fp32 peak of this device"),
    ],
)
def test_a_knee_is_compared_with_the_ridge(monkeypatch, kind, knee, ridge, words):
    pair = ridge and (SimpleNamespace(value=1.0, is_measured=True), SimpleNamespace(value=ridge))
    monkeypatch.setattr(intensity, "_ridge", lambda at: pair)
    bent = SimpleNamespace(knee=knee, slope=EXACTLY(4.0), plateau=EXACTLY(32.0))
    assert words in intensity._sentence(bent, kind, None)
    said = intensity._knee_sentence(knee, None)
    assert "a knee between 7 and 9 FLOP/B" in said
    assert said.endswith("FLOP/B.") if ridge is None else f"which meet at {ridge:.3g}" in said


def test_a_roof_is_drawn_with_its_ridge_among_the_points(monkeypatch):
    """4 B/s and 32 FLOP/s, in units of 1 FLOP/s: at 2, 8 and 16 FLOP a byte."""
    pairs = {"measured ceilings": (SimpleNamespace(value=4.0), SimpleNamespace(value=32.0))}
    monkeypatch.setattr(intensity, "_pairs", lambda measured, stated: pairs)
    monkeypatch.setattr(intensity, "TERA", 1.0)
    chart = intensity._chart(points_at(2, 16), "measured", None, None)
    rates, roofs = chart.series
    assert (rates.x, rates.y, rates.low) == ((2.0, 16.0), (8.0, 32.0), ())
    assert (roofs.x, roofs.y) == ((2.0, 8.0, 16.0), (8.0, 32.0, 32.0))
    spread = [replace(p, rate=Span(8.0, 7.0, 9.0)) for p in points_at(2)]
    assert intensity._chart(spread, "measured", None, None).series[0].low == (7.0,)


@pytest.mark.parametrize(("low", "shown"), [(0.5, 1), (0.0, 0), (-0.5, 0)])
def test_a_gain_is_shown_where_it_is_one(low, shown):
    """The GPU takes a half of the CPU's 2 s, or up to all of it and more."""
    gpu = Span(1.0, 0.5, 2.0 * (1 - low))
    rows = cpu_vs_gpu.gain_rows(EXACTLY(2.0), gpu)
    assert len(rows) == shown and all(row.value == 0.5 for row in rows)


def test_rows_of_a_bound_need_ceiling_and_time():
    memory = ceiling("dram_copy_measured", 1e12, "B/s")
    compute = ceiling("compute_measured", 1e13, "FLOP/s", dtype="bf16")
    for at, names in (
        (Bound(memory, compute, 2.0, 3.0), 2), (Bound(memory, None, 2.0, None), 1),
        (Bound(memory, compute, 2.0, None), 1), (Bound(None, compute, None, 3.0), 1),
    ):  # fmt: skip
        rows = module_expected._rows(at, "g", 6.0, "the time")
        assert sum(row.name.startswith("time at that") for row in rows) == names
        assert rows[-1].value == 6.0 / at.least_s and rows[-1].name == "the time, over the bound"


def test_a_cache_of_no_bytes_is_unknown():
    device = find_device("h200")
    assert bounds.ceilings(device, {}).cache_bytes == device.cache.value > 0
    without = replace(device, cache=replace(device.cache, value=0))
    assert bounds.ceilings(without, {}).cache_bytes is None


def test_a_path_of_a_kernel_is_that_beside_its_experiment(tmp_path):
    (tmp_path / "mine.py").write_text("")
    assert experiments._kernel_path(tmp_path, "mine.py") == str(tmp_path / "mine.py")
    assert experiments._kernel_path(tmp_path, "gone.py") == "gone.py"
    (tmp_path / "softmax").write_text("")
    assert experiments._kernel_path(tmp_path, "softmax") == "softmax"


@pytest.mark.parametrize(
    ("dram", "peak", "reach"),
    [
        (1e12, 1e13, 0.5),
        (1e12, None, 0.4),
        (None, 1e13, 0.5),
        (4e12, 1e13, 0.5),
        (None, None, None),
    ],
)
def test_what_a_call_reaches_is_its_larger_least_time_over_its_own(dram, peak, reach):
    """4 MB and 50 MFLOP in 10 us: 4 us at 1 TB/s, 5 us at 10 TFLOP/s."""
    result = took(variant(), 1e-5, bytes_=4_000_000, flops=50_000_000)
    device = SimpleNamespace(
        dram=dram and SimpleNamespace(value=dram),
        peaks={"bf16": SimpleNamespace(value=peak)} if peak else {},
    )
    found = reach_of(SimpleNamespace(device=device), result)
    assert found is None if reach is None else found.value == pytest.approx(reach)


def test_a_spread_of_measured_ranks_is_that_of_two_and_of_predicted_ones_of_any(monkeypatch):
    """Of 1 us and 2 us, each up to a half more or less: two measured ones differ by 2/3 to 6."""
    slow, fast = (took(variant(), t, half=0.5) for t in (2e-6, 1e-6))
    measured = Layer({"M": 1}, {4: slow, 8: fast}, {}).spread
    assert measured.value == pytest.approx(2.0) and measured.low == pytest.approx(2 / 3)
    spans = {"slow": Span(2e-6, 1e-6, 3e-6), "fast": Span(1e-6, 0.5e-6, 1.5e-6)}
    monkeypatch.setattr(lora_rank, "kind_of", lambda *each: "predicted")
    monkeypatch.setattr(
        lora_rank, "span_of", lambda each: spans["slow" if each is slow else "fast"]
    )
    predicted = Layer({"M": 1}, {4: slow, 8: fast}, {}).spread
    assert predicted == Span(measured.value, 1.0, pytest.approx(6.0))


@pytest.mark.parametrize(
    ("dram", "compute", "launch", "word"),
    [(8e-6, 2e-6, 1e-6, "memory-bound"), (2e-6, 8e-6, 1e-6, "compute-bound"),
     (2e-6, 2e-6, 9e-6, "latency-bound")],
)  # fmt: skip
def test_the_model_s_terms_give_its_word(dram, compute, launch, word):
    own = {"dram_s": dram, "cache_s": 0.0, "compute_s": compute, "latency_s": 1e-6}
    timing = replace(text(variant(), 1e-5).outcome.timing, launch_s=launch, **own)
    found = memory_vs_compute._model_verdict(timing, [])
    shares = {row.name: row.value for row in found.evidence}
    assert shares["traffic over the largest term"] == dram / max(dram, compute)
    assert shares["arithmetic over the largest term"] == compute / max(dram, compute)
    assert found.word == verdict_word(word, "predicted")


@pytest.mark.parametrize(
    ("terms", "is_apart", "caveats"),
    [
        ({"traffic": (3e-6, 2e-6, 4e-6), "arithmetic": (1e-6, 1e-6, 1.9e-6)}, True, 0),
        ({"traffic": (3e-6, 2e-6, 4e-6), "arithmetic": (1e-6, 1e-6, 2e-6)}, False, 0),
        ({"traffic": (3e-6, 2e-6, 4e-6), "launch": (1e-6, 1e-6, 1.9e-6)}, True, 1),
    ],
)
def test_a_mac_s_terms_decide_where_they_are_apart(monkeypatch, terms, is_apart, caveats):
    monkeypatch.setattr(memory_vs_compute.apple_model, "term_intervals", lambda *given: terms)
    monkeypatch.setattr(memory_vs_compute, "METAL_WORDS", dict.fromkeys(terms, "memory-bound"))
    at = SimpleNamespace(device=SimpleNamespace(title="M2 Max"))
    found = memory_vs_compute._expected_metal(at, text(variant(), 1e-5), ["old"])
    assert (found.word != memory_vs_compute.CANNOT_TELL) is is_apart
    assert ("overlap" in found.sentence) is not is_apart
    assert len(found.caveats) == 1 + caveats and found.caveats[-1] == "old"
    assert [row.value for row in found.evidence if row.group.endswith(", terms")] == [
        value for value, _, _ in terms.values()]  # fmt: skip


def test_a_regime_without_both_operands_leaves_the_other(monkeypatch):
    """No hot time of B is there, and the cold ones are; the hot regime comes first."""
    arms = [("A: plain", "hot", 1e-6), ("A: plain", "cold", 2e-6), ("B: packed", "cold", 3e-6)]
    results = {f"{n} {regime}": took(variant(n, regime=regime), t) for n, regime, t in arms}
    monkeypatch.setattr(quantization_overhead, "REGIMES", ("hot", "cold"))
    monkeypatch.setattr(quantization_overhead, "PLAIN", "A")
    monkeypatch.setattr(quantization_overhead, "PACKED", "B")
    monkeypatch.setattr(quantization_overhead, "ideal_share", lambda sizes, dtype: 0.5)
    monkeypatch.setattr(quantization_overhead, "_caveats", lambda *given: [])
    monkeypatch.setattr(quantization_overhead, "_rows", lambda regime, *given: [])
    at = SimpleNamespace(intervals=False, dtype="bf16")
    found = quantization_overhead._analyse(at, {"M": 1}, results)
    assert found.word != "no verdict" and "by bytes only it would be -50 %" in found.sentence
    assert [(row.value, row.group) for row in found.evidence] == [(-0.5, "cold calls")]


def test_values_tie_at_their_share_and_where_intervals_meet(monkeypatch):
    monkeypatch.setattr(knobs, "TIE_SHARE", 0.5)
    assert ranking({1: [took(variant(), 2.0)], 2: [took(variant(), 3.0)]}).ties == (2,)
    assert ranking({1: [took(variant(), 2.0)], 2: [took(variant(), 3.01)]}).ties == ()
    wide = [took(variant(), t, half=0.5) for t in (2.0, 6.0, 6.01)]  # 1 to 3, and 3 to 9
    assert ranking({1: [wide[0]], 2: [wide[1]], 3: [wide[2]]}).ties == (2,)


def test_a_ceiling_without_a_time_leaves_those_behind_it(monkeypatch):
    first, second = sought(), replace(sought(), name="dram_read")
    monkeypatch.setattr(
        ceilings, "_best", lambda s, *given: None if s is first else ("best", "rate")
    )
    monkeypatch.setattr(ceilings, "_plain", lambda s, *given: {"value": 1.0})
    monkeypatch.setattr(ceilings, "doubt", lambda s, one, known: f"{s.name} of {len(known)}")
    found = ceilings.evaluate([first, second], {}, None, {"earlier": {}})
    names = [ceilings.measured_name(n, "sustained") for n in ("dram_copy", "dram_read")]
    assert found == {
        names[0]: {"value": 1.0, "state": "sustained"},
        names[1]: {"value": 1.0, "state": "sustained", "failed": True,
                   "reason": "dram_read of 3"},
    }  # fmt: skip


def test_only_a_record_has_a_timing():
    assert took(variant(), 1e-5).timing.median_s == 1e-5
    assert failed(variant()).timing is None is text(variant(), 1e-5).timing
