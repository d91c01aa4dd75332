"""Two modes in the samples of a time: found where there are two, and not where there is one."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.data.modes import LEAST_SAMPLES, modes_of

pytestmark = pytest.mark.unit


def drawn(seed, count, times, shares, noise=0.02):
    dice = random.Random(seed)
    return [
        dice.choices(times, shares)[0] * max(0.5, 1 + noise * dice.gauss(0, 1))
        for _ in range(count)
    ]


@given(
    seed=st.integers(0, 1000),
    count=st.integers(60, 400),
    fast=st.floats(1e-6, 1e-2),
    ratio=st.floats(1.3, 10.0),
    share=st.floats(0.25, 0.75),
)
def test_two_times_by_turns_are_two_modes(seed, count, fast, ratio, share):
    samples = drawn(seed, count, (fast, fast * ratio), (share, 1 - share))
    low, high = modes_of(samples)
    assert low.share + high.share == pytest.approx(1.0)
    assert low.median_s == pytest.approx(fast, rel=0.03)
    assert high.median_s == pytest.approx(fast * ratio, rel=0.03)
    assert low.share == pytest.approx(share, abs=0.25)


@given(
    seed=st.integers(0, 1000),
    count=st.integers(1, 400),
    time_s=st.floats(1e-6, 1e-2),
    noise=st.floats(0.0, 0.05),
)
def test_one_time_with_noise_has_no_modes(seed, count, time_s, noise):
    assert modes_of(drawn(seed, count, (time_s,), (1.0,), noise)) == ()


@given(seed=st.integers(0, 1000), few=st.floats(0.0, 0.04))
def test_a_few_outliers_are_no_mode(seed, few):
    assert modes_of(drawn(seed, 300, (1e-5, 5e-5), (1 - few, few))) == ()


@given(st.lists(st.floats(1e-7, 1.0), max_size=LEAST_SAMPLES - 1))
def test_too_few_samples_show_nothing(samples):
    assert modes_of(samples) == ()
