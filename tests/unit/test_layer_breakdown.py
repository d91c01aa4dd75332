"""layer_breakdown: shares, gains and bottlenecks as functions of what was timed."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from variant_results import ROOT, by_name, context, failed, text, took

from workbench import catalog
from workbench.experiments import ExperimentError
from workbench.experiments.analysis.bounds import Bound
from workbench.experiments.analysis.times import Span
from workbench.spec import ITEMSIZE

layer = catalog.module_at(ROOT / "examples/rwkv7/layer_breakdown.py")
ALIKE, CASES, LAYER, TOTAL, N = layer.ALIKE, layer.CASES, layer.LAYER, layer.TOTAL, layer.N
TimedPart, variants, bottlenecks, breakdown = (
    layer.TimedPart,
    layer.variants,
    layer.bottlenecks,
    layer.breakdown,
)
calls_of, analyse, parts_of = layer.calls_of, layer.analyse, layer.parts_of
US = 1e-6
AGREE = "the parts and the whole"
NAMES = ("attention_linear", "wkv", "attention_output", "ffn")
QUESTION = context(LAYER)
PREDICTED = context(LAYER, predicts=True)
ONE = context(LAYER, sizes={"B": 2, "T": 64, "H": 2, "P": 2})


def a_part(name, middle, half=0.0, bound_s=1 * US):
    span = Span(middle, middle * (1 - half), middle * (1 + half))
    return TimedPart(name, span, Bound(None, None, bound_s, None), 1 << 20, 1 << 20)


def without(part):
    return replace(part, span=None, failure="it broke")


def four(*times, bounds=(1, 1, 1, 1), half=0.0):
    return [a_part(n, t * US, half, f * US) for n, t, f in zip(NAMES, times, bounds, strict=True)]


seconds = st.floats(1e-6, 1e-2)
parts = st.lists(st.tuples(seconds, st.floats(0.01, 1.2)), min_size=4, max_size=4).map(
    lambda drawn: [a_part(n, t, 0.0, t * f) for n, (t, f) in zip(NAMES, drawn, strict=True)]
)


# The verdict


def test_the_part_with_the_most_to_gain_has_the_word():
    # wkv takes longest, but is near its floor
    analysed = breakdown(
        "prefill", four(60, 100, 20, 50, bounds=(20, 95, 10, 40)), a_part(TOTAL, 235 * US),
        "measured",
    )  # fmt: skip
    assert analysed.word == "attention_linear"
    assert (
        "attention_linear (40.00 µs, 67 % of its time), then attention_output" in analysed.sentence
    )
    assert "the parts take 230.00 µs" in analysed.sentence and "0.979 times" in analysed.sentence
    assert "wkv" not in analysed.sentence  # of the fourth nothing is said
    assert by_name(analysed, "share of the parts")["attention_linear"].value == 60 / 230
    assert by_name(analysed, "time over its floor")["wkv"].value == pytest.approx(100 / 95)
    assert by_name(analysed, AGREE)["parts together over the layer"].met is True


def test_two_that_may_be_first_are_both_named():
    near = breakdown("x", four(60, 59, 20, 20, half=0.05), a_part(TOTAL, 160 * US), "measured")
    assert near.word == "attention_linear or wkv"
    clear = breakdown("x", four(60, 40, 20, 20, half=0.05), a_part(TOTAL, 140 * US), "measured")
    assert clear.word == "attention_linear"


@given(parts)
def test_shares_make_one_and_bottlenecks_are_in_order(drawn):
    analysed = breakdown("x", drawn, a_part(TOTAL, 1.0), "measured")
    shares = [e.value for e in analysed.evidence if e.group == "share of the parts"]
    assert sum(shares) == pytest.approx(1) and len(shares) == 4
    gains = [p.gain.value for p in bottlenecks(drawn)]
    assert gains == sorted(gains, reverse=True) and min(gains) >= 0
    most = max(p.span.value - p.bound.least_s for p in drawn)
    assert gains[0] == max(0.0, most)


@given(parts, st.floats(1e-3, 1e3))
def test_the_word_does_not_depend_on_the_unit_of_time(drawn, factor):
    first, second = [*(p.gain.value for p in bottlenecks(drawn)), 0.0, 0.0][:2]
    assume(first - second > 1e-9 * first)
    scaled = [a_part(p.name, p.span.value * factor, 0.0, p.bound.least_s * factor) for p in drawn]
    whole = a_part(TOTAL, 1.0)
    words = {breakdown("x", some, whole, "measured").word for some in (drawn, scaled)}
    assert len(words) == 1


@given(parts, st.sampled_from(range(4)), st.floats(1.01, 100))
def test_a_part_that_takes_longer_has_more_to_gain(drawn, which, factor):
    slower = list(drawn)
    part = drawn[which]
    slower[which] = a_part(part.name, part.span.value * factor * 1e3, 0.0, part.bound.least_s)
    analysed = breakdown("x", slower, a_part(TOTAL, 1.0), "measured")
    assume(max(p.gain.value for p in slower) == slower[which].gain.value)
    assert analysed.word.split(" or ")[0] == part.name


@pytest.mark.parametrize(("whole", "met"), [(200, True), (215, True), (170, False), (240, False)])
def test_parts_that_do_not_make_the_whole_are_said_to(whole, met):
    analysed = breakdown("x", four(80, 60, 40, 20), a_part(TOTAL, whole * US), "measured")
    row = by_name(analysed, AGREE)["parts together over the layer"]
    assert row.met is met is (abs(200 / whole - 1) <= ALIKE)
    assert any("shares of the parts are not" in words for words in analysed.caveats) is not met


def test_a_part_without_a_time_leaves_no_bottleneck():
    broken = four(80, 60, 40, 20)
    broken[1] = without(broken[1])
    analysed = breakdown("x", broken, without(a_part(TOTAL, 1.0)), "measured")
    assert analysed.word == "incomplete" and "no time of wkv" in analysed.sentence
    assert "No time of wkv: it broke." in analysed.caveats
    assert "No time of total: it broke." in analysed.caveats
    groups = {e.group for e in analysed.evidence if e.name.split(",")[0] == "wkv"}
    assert groups == {"least bytes", "FLOPs", "floor"}


def test_without_ceilings_there_is_no_floor():
    unknown = [a_part(n, 10 * US, bound_s=None) for n in NAMES]
    analysed = breakdown("x", unknown, a_part(TOTAL, 40 * US), "measured")
    assert analysed.word == "no floor" and "workbench ceilings" in analysed.sentence


# The parts


@pytest.mark.parametrize("sizes", CASES.values(), ids=CASES)
def test_the_calls_of_a_part_do_its_products(sizes):
    """The FLOPs of the kernels that stand for a part are those that the part declares, but for
    sums and activations, for which no kernel stands."""
    for part in parts_of(sizes):
        whole = catalog.spec_of(part.whole.kernel).flops(**part.whole.sizes)
        calls = sum(c.times * catalog.spec_of(c.kernel).flops(**c.sizes) for c in part.calls)
        assert calls == pytest.approx(whole, rel=2e-3), part.name
    layer = catalog.spec_of(LAYER).flops(**sizes)
    measure_interleaved = sum(
        catalog.spec_of(p.whole.kernel).flops(**p.whole.sizes) for p in parts_of(sizes)
    )
    assert layer == measure_interleaved


def test_weights_are_those_of_the_layer():
    sizes = CASES["decode, 1 sequence"]
    C, narrow = N * sizes["H"], 18 * sizes["P"]
    weights = ITEMSIZE["bf16"] * C * (4 * C + 8 * C + 2 * narrow)
    state = 2 * 4 * sizes["H"] * N * N
    least = catalog.spec_of(LAYER).bytes(sizes, "bf16")
    assert weights + state < least < 1.01 * (weights + state)


@pytest.mark.parametrize("question", [QUESTION, PREDICTED], ids=["measured", "predicted"])
def test_every_arm_is_an_impl_that_takes_its_sizes(question):
    limits = question.device.limits
    for variant in variants(question):
        spec = catalog.spec_of(variant.kernel)
        impl = catalog.impl_of(spec, variant.impl)
        assert spec.refuse(variant.sizes) is None and set(variant.sizes) == set(spec.axes)
        config = (
            impl.config(**variant.config)
            if variant.config
            else impl.default(limits, variant.dtype, variant.sizes)
        )
        assert impl.rejection_reason(config, limits, "bf16", variant.sizes) is None, variant.name


def test_what_is_timed_is_told_in_the_words_of_its_part():
    results = {
        variant.name: took(variant, 100 * US, half=0.01, kernels=3)
        for variant in variants(QUESTION)
    }
    analysed = analyse(QUESTION, results)
    assert [j.sentence.split(":")[0] for j in analysed] == list(CASES)
    for each in analysed:
        time = by_name(each, "time")
        assert list(time) == [*NAMES, TOTAL, "the parts together"]
        assert time["ffn"].value == 100 * US and time["ffn"].low == 99 * US
        assert time["the parts together"].value == pytest.approx(400 * US)
        assert by_name(each, "launches")["ffn"].value == 3
        assert by_name(each, AGREE)["parts together over the layer"].met is False


def test_one_size_that_is_named_is_the_only_case():
    results = {variant.name: took(variant, 100 * US) for variant in variants(ONE)}
    (analysed,) = analyse(ONE, results)
    assert analysed.sentence.startswith("B=2 T=64 H=2 P=2: ") and len(results) == 5


def test_predicted_parts_are_the_sums_of_their_calls():
    sizes = CASES["prefill"]
    results = {variant.name: text(variant, 10 * US) for variant in variants(PREDICTED)}
    analysed = analyse(PREDICTED, results)[0]
    for part in parts_of(sizes):
        row = by_name(analysed, "time")[part.name]
        assert row.value == pytest.approx(10 * US * sum(c.times for c in part.calls))
        assert row.kind == "predicted" and row.low is None
    assert analysed.word.startswith("predicted: ") and "~" in analysed.sentence
    assert TOTAL not in by_name(analysed, "time")
    assert LAYER not in {call.kernel for call in calls_of(sizes, True)}


def test_a_failed_arm_is_named_with_its_reason():
    results = {
        a.name: failed(a) if "ffn" in a.name and "prefill" in a.name else took(a, 100 * US)
        for a in variants(QUESTION)
    }
    words = [j.word for j in analyse(QUESTION, results)]
    assert words[0] == "incomplete" and "incomplete" not in words[1:]


def test_other_kernels_have_no_parts():
    with pytest.raises(ExperimentError, match="leave --kernel out"):
        variants(context("matmul"))
