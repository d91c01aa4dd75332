"""Spans of times: whatever lies in the intervals that go into an operation, its result covers."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from variant_results import context, failed, text, took

from workbench import catalog
from workbench.device.hardware import device_named
from workbench.experiments.analysis.bounds import Bound, bound, ceilings
from workbench.experiments.analysis.times import (
    Span,
    kind_of,
    mark,
    quotient,
    ratio_of,
    reasons,
    row,
    verdict_word,
)
from workbench.experiments.lora_rank import variants

numbers = st.floats(1e-6, 1e3)
VARIANTS = variants(context("lora_delta", "fp32"))[:6]


@st.composite
def spans(draw):
    low, value, high = sorted(draw(st.tuples(numbers, numbers, numbers)))
    return Span(value, low, high)


def inside(span, share):
    return span.low + share * (span.high - span.low)


@given(spans(), spans(), st.floats(0, 1), st.floats(0, 1))
def test_an_operation_covers_what_may_come_of_it(a, b, at, to):
    x, y = inside(a, at), inside(b, to)
    for result, exact in (
        (a + b, x + y), (a - b, x - y), (a / b, x / y), (a.less(b), max(0.0, x - y)),
        (a.times(3), 3 * x), (a.extend_down(b), x), (a.extend_up(b), x),
    ):  # fmt: skip
        slack = 1e-9 * max(abs(exact), 1.0)
        assert result.low - slack <= exact <= result.high + slack
        assert result.low <= result.value <= result.high


@given(spans(), numbers)
def test_a_bound_is_passed_only_where_the_whole_interval_passes_it(span, bound):
    assert span.is_above(bound) in (None, span.value > bound)
    assert span.is_below(bound) in (None, span.value < bound)
    if span.low < bound < span.high:
        assert span.is_above(bound) is None and span.is_below(bound) is None


def test_nothing_over_nothing_is_nothing():
    assert quotient(0.0, 0.0) == 0.0 and quotient(1.0, 0.0) == math.inf
    assert Span(1.0, 0.5, 2.0) / Span(0.0, 0.0, 1.0) == Span(math.inf, 0.5, math.inf)


def test_a_number_of_predictions_has_a_mark_and_the_interval_that_a_model_states():
    measured, predicted = took(VARIANTS[0], 1e-6, half=0.1), text(VARIANTS[1], 2e-6)
    assert kind_of(measured) == "measured" and kind_of(measured, predicted) == "predicted"
    assert row("r", Span(1.0, 1.0, 1.0), "1", "predicted").low is None
    assert row("r", Span(1.0, 0.9, 1.1), "1", "predicted").low == 0.9
    assert row("r", Span(1.0, 0.9, 1.1), "1", "measured").low == 0.9
    assert mark("predicted") + verdict_word("flat", "predicted") == "~predicted: flat"
    assert mark("measured") + verdict_word("flat", "measured") == "flat"


def test_a_ratio_with_few_windows_is_that_of_the_intervals():
    result = ratio_of(took(VARIANTS[0], 1e-6, half=0.1), took(VARIANTS[1], 2e-6, half=0.1))
    assert (result.value, result.low, result.high) == pytest.approx((2.0, 1.8 / 1.1, 2.2 / 0.9))
    assert ratio_of(failed(VARIANTS[0]), took(VARIANTS[1], 1e-6)) is None


def test_arms_without_a_time_are_told_by_reason():
    results = {f"arm {n}": failed(variant, "it broke.") for n, variant in enumerate(VARIANTS[:5])}
    results["last"] = failed(VARIANTS[5], "too large")
    assert reasons(results) == [
        "No time of arm 0; arm 1 and 3 more: it broke.", "No time of last: too large.",
    ]  # fmt: skip


@given(memory_s=st.none() | numbers, compute_s=st.none() | numbers)
def test_no_call_takes_less_than_the_longer_of_its_two_times(memory_s, compute_s):
    result = Bound(None, None, memory_s, compute_s)
    known = [s for s in (memory_s, compute_s) if s is not None]
    assert (result.least_s is None) == (not known)
    assert all(result.least_s >= s for s in known) and (not known or result.least_s in known)
    if len(known) == 2 and memory_s != compute_s:
        assert result.bound == ("compute" if compute_s > memory_s else "memory")


def test_a_floor_is_bytes_over_bandwidth_and_flops_over_the_peak_of_the_dtype():
    device, spec = device_named("h200"), catalog.spec_of("matmul")
    sizes = {"M": 4096, "N": 4096, "K": 4096}
    result = bound(spec, sizes, "bf16", ceilings(device, {}))
    assert result.memory_s == pytest.approx(3 * 2 * 4096**2 / 4.8e12)
    assert result.compute_s == pytest.approx(2 * 4096**3 / 989e12, rel=1e-3)
    assert result.least_s == result.compute_s and result.bound == "compute"
    assert bound(spec, sizes, "fp32", ceilings(device, {})).compute_s > 10 * result.compute_s
