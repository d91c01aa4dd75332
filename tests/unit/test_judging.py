"""Spans of times: whatever lies in the intervals that go into an operation, its result covers."""

import math

import pytest
from founds import asked, failed, told, took
from hypothesis import given
from hypothesis import strategies as st

from workbench.experiments.lora_rank import arms
from workbench.judging.times import Span, kind_of, mark, over, quotient, reasons, row, worded

numbers = st.floats(1e-6, 1e3)
ARMS = arms(asked("lora_delta", "fp32"))[:6]


@st.composite
def spans(draw):
    low, value, high = sorted(draw(st.tuples(numbers, numbers, numbers)))
    return Span(value, low, high)


def inside(span, share):
    return span.low + share * (span.high - span.low)


@given(spans(), spans(), st.floats(0, 1), st.floats(0, 1))
def test_an_operation_covers_what_may_come_of_it(a, b, at, to):
    x, y = inside(a, at), inside(b, to)
    for found, exact in (
        (a + b, x + y), (a - b, x - y), (a / b, x / y), (a.less(b), max(0.0, x - y)),
        (a.times(3), 3 * x), (a.down_to(b), x), (a.up_to(b), x),
    ):  # fmt: skip
        slack = 1e-9 * max(abs(exact), 1.0)
        assert found.low - slack <= exact <= found.high + slack
        assert found.low <= found.value <= found.high


@given(spans(), numbers)
def test_a_bound_is_passed_only_where_the_whole_interval_passes_it(span, bound):
    assert span.above(bound) in (None, span.value > bound)
    assert span.below(bound) in (None, span.value < bound)
    if span.low < bound < span.high:
        assert span.above(bound) is None and span.below(bound) is None


def test_nothing_over_nothing_is_nothing():
    assert quotient(0.0, 0.0) == 0.0 and quotient(1.0, 0.0) == math.inf
    assert Span(1.0, 0.5, 2.0) / Span(0.0, 0.0, 1.0) == Span(math.inf, 0.5, math.inf)


def test_a_number_of_predictions_has_a_mark_and_no_interval():
    measured, predicted = took(ARMS[0], 1e-6, half=0.1), told(ARMS[1], 2e-6)
    assert kind_of(measured) == "measured" and kind_of(measured, predicted) == "predicted"
    assert row("r", Span(1.0, 0.9, 1.1), "1", "predicted").low is None
    assert row("r", Span(1.0, 0.9, 1.1), "1", "measured").low == 0.9
    assert mark("predicted") + worded("flat", "predicted") == "~predicted: flat"
    assert mark("measured") + worded("flat", "measured") == "flat"


def test_a_ratio_with_few_windows_is_that_of_the_intervals():
    found = over(took(ARMS[0], 1e-6, half=0.1), took(ARMS[1], 2e-6, half=0.1))
    assert (found.value, found.low, found.high) == pytest.approx((2.0, 1.8 / 1.1, 2.2 / 0.9))
    assert over(failed(ARMS[0]), took(ARMS[1], 1e-6)) is None


def test_arms_without_a_time_are_told_by_reason():
    found = {f"arm {n}": failed(arm, "it broke.") for n, arm in enumerate(ARMS[:5])}
    found["last"] = failed(ARMS[5], "too large")
    assert reasons(found) == [
        "No time of arm 0; arm 1 and 3 more: it broke.", "No time of last: too large.",
    ]  # fmt: skip
