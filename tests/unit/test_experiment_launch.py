"""launch_overhead: key figures, targets and scenarios as functions of what was timed."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from variant_results import by_name, context, failed, text, took

from workbench.experiments.analysis.timeline import EMPTY, REMEDY, Timeline, word_of
from workbench.experiments.analysis.times import Span
from workbench.experiments.launch_overhead import EXPERIMENT, analyse, variants
from workbench.reports.findings import GAINS, IMPACT, KPI

US = 1e-6
QUESTION = context("norm_chain", "fp32")
VARIANTS = {variant.name: variant for variant in variants(QUESTION)}
TIMES = {  # an eager chain of 64 that takes 10 us a kernel, of which the GPU works 2
    "eager": 640 * US, "in a graph": 128 * US, "torch, eager": 450 * US,
    "torch, in a graph": 140 * US, "copied to the CPU and back": 4000 * US,
    "fused, launched": 60 * US, "fused": 50 * US, EMPTY: 0.8 * US,
}  # fmt: skip
COUNTS = {"eager": 64, "in a graph": 64, "torch, eager": 64, "torch, in a graph": 64,
          "fused, launched": 1, "fused": 1, EMPTY: 1}  # fmt: skip


def result(half=0.01, without=(), **times):
    """All arms, some with other times, some without one."""
    every = {**TIMES, **times}
    created = {"made": "_rows", "launches": 64}
    return {
        n: failed(a) if n in without
        else took(a, every[n], half=half, kernels=COUNTS.get(n), **created)
        for n, a in VARIANTS.items()
    }  # fmt: skip


def words(of):
    return [j.word for j in analyse(QUESTION, of)]


def test_the_three_scenarios_have_their_words():
    assert words(result()) == [
        "launch-bound", "partly launch-bound", "transfer-bound", "inefficient kernels"
    ]  # fmt: skip


def test_the_table_of_key_figures_and_its_targets():
    eager = analyse(QUESTION, result(half=0.0))[0]
    rows = by_name(eager, "eager")
    assert rows[KPI.total].value == 640 * US
    assert rows[KPI.utilisation].value == pytest.approx(0.2)
    assert rows[KPI.utilisation].target == "> 80 %" and rows[KPI.utilisation].met is False
    assert rows[KPI.efficiency].value == pytest.approx((128 - 64 * 0.8) / 640)
    assert rows[KPI.efficiency].target == "> 70 %" and rows[KPI.efficiency].met is False
    assert rows[KPI.kernels].value == 64 and rows[KPI.kernels].unit == "kernels"
    assert rows[KPI.kernel].value == pytest.approx(2 * US)
    assert rows[KPI.gap].value == pytest.approx(8 * US)
    assert rows[KPI.gap].target == "< 1 µs" and rows[KPI.gap].met is False
    # the true ones lie between: a graph's own steps are 0.8 us at most
    assert (rows[KPI.kernel].low, rows[KPI.kernel].high) == pytest.approx((1.2 * US, 2 * US))
    assert (rows[KPI.gap].low, rows[KPI.gap].high) == pytest.approx((8 * US, 8.8 * US))
    graph = by_name(eager, "in a graph")
    assert graph[f"{KPI.gap}, at most"].met is True and KPI.utilisation not in graph


def test_impact_and_gains_are_shares_of_the_total_time():
    eager, _, copied, _ = analyse(QUESTION, result(half=0.0))
    assert [e.value for e in eager.evidence if e.group == IMPACT] == pytest.approx([0.8])
    gains = {e.name: e.value for e in eager.evidence if e.group == GAINS}
    assert gains == pytest.approx({
        "capture the calls in a graph": 1 - 128 / 640, "fuse them into one kernel": 1 - 60 / 640,
    })  # fmt: skip
    assert [e.value for e in copied.evidence if e.group == IMPACT] == pytest.approx([0.84])


def test_what_saves_nothing_is_no_opportunity():
    slower = analyse(QUESTION, result(**{"fused, launched": 700 * US}))[0]
    assert "fuse them into one kernel" not in by_name(slower, GAINS)


def test_a_kernel_that_waits_for_nobody_and_reaches_the_device_is_busy():
    question = context("rms_norm", "fp32", sizes={"M": 64, "N": 1024})
    own = {a.name: a for a in variants(question)}
    assert list(own) == ["eager", "in a graph", EMPTY]
    moved = int(90 * US * 4.8e12)
    of = {
        "eager": took(own["eager"], 102 * US, kernels=1, bytes_=moved),
        "in a graph": took(own["in a graph"], 100 * US, kernels=1, bytes_=moved),
        EMPTY: took(own[EMPTY], 0.8 * US, kernels=1),
    }
    (only,) = analyse(question, of)
    assert only.word == "busy" and by_name(only)[KPI.utilisation].met is True


def test_wide_intervals_decide_nothing():
    wide = analyse(QUESTION, result(half=0.3, **{"in a graph": 450 * US}))[0]
    assert wide.word == "undecided" and by_name(wide)[KPI.utilisation].met is None
    sure = analyse(QUESTION, result(half=0.5))[0]  # somewhere under 80 %
    assert sure.word == "partly launch-bound" and by_name(sure)[KPI.utilisation].met is False


@pytest.mark.parametrize("name", ["eager", "in a graph"])
def test_an_arm_without_a_time_is_said_and_no_word_given(name):
    first = analyse(QUESTION, result(without=(name,)))[0]
    assert first.word == "no verdict" and f"No time of {name}: it broke." in first.caveats
    assert KPI.utilisation not in by_name(first)


def test_without_an_empty_launch_computing_time_is_only_known_to_be_at_most_gpu_time():
    eager = analyse(QUESTION, result(without=(EMPTY,)))[0]
    rows = by_name(eager, "eager")
    assert eager.word == "launch-bound" and rows[KPI.efficiency].low == 0.0
    assert f"No time of {EMPTY}: it broke." in eager.caveats


def test_a_call_that_waits_for_the_gpu_has_no_gpu_time():
    of = result()
    of["in a graph"] = took(VARIANTS["in a graph"], 640 * US, method="host", kernels=None)
    eager = analyse(QUESTION, of)[0]
    assert eager.word == "no verdict" and "copies to the CPU" in eager.sentence


def test_without_a_gpu_only_predictions_stand_there():
    question = context("norm_chain", "fp32", predicts=True)
    of = {n: failed(a, "it is timed where there is a GPU") for n, a in VARIANTS.items()}
    of["in a graph"], of["fused"] = (
        text(VARIANTS["in a graph"], 1e-4, 64),
        text(VARIANTS["fused"], 5e-5),
    )
    (only,) = analyse(question, of)
    assert only.word == "needs a GPU" and f"and {len(VARIANTS) - 4} more: it is" in only.caveats[0]
    assert {e.kind for e in only.evidence if e.unit == "s"} == {"predicted"}
    assert by_name(only, "in a graph")[KPI.kernels].value == 64


def test_names_of_arms_are_unique_and_every_word_has_a_remedy():
    assert len(VARIANTS) == len(variants(QUESTION)) and EXPERIMENT.kernels == ("norm_chain",)
    assert set(words(result())) <= set(REMEDY)


times = st.floats(1e-7, 1e-1)
halves = st.floats(0, 0.4)
spans = st.builds(lambda t, h: Span(t, t * (1 - h), t * (1 + h)), times, halves)
lines = st.builds(Timeline, spans, spans, st.one_of(st.none(), spans), st.integers(1, 1000))


@given(lines)
def test_every_figure_lies_in_its_interval_and_shares_in_one(line):
    for share in (line.utilisation, line.efficiency):
        assert 0 <= share.low <= share.value <= share.high <= 1
    for seconds in (line.kernel, line.gap):
        assert 0 <= seconds.low <= seconds.value <= seconds.high
    assert line.efficiency.value <= line.utilisation.value
    whole = (line.kernel.value + line.gap.value) * line.kernels
    if line.gpu.value <= line.total.value:
        assert math.isclose(whole, line.total.value, rel_tol=1e-9)


@given(lines, st.floats(0.1, 10))
def test_words_do_not_depend_on_the_unit_of_time(line, factor):
    scaled = Timeline(
        line.total.times(factor), line.gpu.times(factor),
        line.step.times(factor) if line.step else None, line.kernels,
    )  # fmt: skip
    edges = [abs(s - b) for s in (line.utilisation.low, line.utilisation.high) for b in (0.3, 0.8)]
    if min(edges) > 1e-9:
        assert word_of(scaled) == word_of(line)


@given(lines, st.one_of(st.none(), spans), st.one_of(st.none(), spans))
def test_a_word_is_only_given_where_the_interval_carries_it(line, without, reach):
    word = word_of(line, without, reach)
    assert word in REMEDY
    if word == "launch-bound":
        assert line.utilisation.high < 0.3
    if word in ("busy", "inefficient kernels"):
        assert line.utilisation.low > 0.8
    if word == "inefficient kernels":
        assert reach is not None and reach.high < 0.5
    if word == "transfer-bound":
        assert without is not None and (line.total.low - without.high) / line.total.high > 0.45


@given(
    st.dictionaries(st.sampled_from(sorted(VARIANTS)), times),
    st.sets(st.sampled_from(sorted(VARIANTS))),
)
def test_whatever_was_timed_there_is_a_judgement(other, without):
    for analysis in analyse(QUESTION, result(without=without, **other)):
        assert analysis.sentence.endswith(".")
        assert all(math.isfinite(e.value) for e in analysis.evidence)
        assert all(e.low <= e.value <= e.high for e in analysis.evidence if e.low is not None)
