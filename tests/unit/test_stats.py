"""Quantiles, intervals and rank correlation agree with SciPy and numpy, and with the binomial."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from workbench.stats import median, median_interval, quantile, spearman

times = st.floats(min_value=1e-9, max_value=1e3, allow_nan=False)
samples = st.lists(times, min_size=1, max_size=200)
confidences = st.sampled_from([0.5, 0.8, 0.9, 0.95, 0.99])


@given(samples, st.floats(0, 1))
def test_quantile_is_numpys_type_7(values, q):
    assert quantile(values, q) == pytest.approx(np.quantile(values, q, method="linear"), rel=1e-12)


@given(samples)
def test_median_is_numpys(values):
    assert median(values) == pytest.approx(np.median(values), rel=1e-12)


@given(samples, st.floats(0, 1))
def test_quantile_lies_within_the_samples_whatever_their_order(values, q):
    found = quantile(values, q)
    assert min(values) <= found <= max(values) * (1 + 1e-12)
    assert found == quantile(values[::-1], q)


def test_nothing_has_no_quantile_and_no_interval():
    with pytest.raises(ValueError, match="no samples"):
        quantile([], 0.5)
    with pytest.raises(ValueError, match="no samples"):
        median_interval([])


def coverage(n, rank):
    """Chance that the median lies between the samples of these two ranks, counted from 0."""
    return 1 - 2 * scipy_stats.binom.cdf(rank, n, 0.5)


@pytest.mark.parametrize(
    ("n", "ranks"),
    [  # from 1, as tables of order statistics print them: for 95 %
        (6, (1, 6)), (8, (1, 8)), (9, (2, 8)), (10, (2, 9)), (20, (6, 15)), (30, (10, 21)),
        (100, (40, 61)),
    ],
)  # fmt: skip
def test_interval_of_the_tables(n, ranks):
    assert median_interval(range(1, n + 1)) == ranks


@given(st.integers(1, 3000), confidences)
def test_interval_is_the_narrowest_that_covers(n, confidence):
    low, high = median_interval(range(n), confidence)
    assert high == n - 1 - low
    if low > 0:
        assert coverage(n, low) >= confidence - 1e-9
    narrower = low + 1
    if narrower <= n - 1 - narrower:
        assert coverage(n, narrower) < confidence + 1e-9


@given(samples, confidences)
def test_interval_holds_the_median_and_is_the_whole_range_of_few(values, confidence):
    low, high = median_interval(values, confidence)
    assert low <= median(values) * (1 + 1e-12) and median(values) <= high * (1 + 1e-12)
    if len(values) < 6 and confidence >= 0.95:
        assert (low, high) == (min(values), max(values))


def test_interval_covers_the_true_median_as_often_as_it_says():
    draws = np.random.default_rng(0).exponential(size=(4000, 25))
    found = [median_interval(list(row)) for row in draws]
    covered = np.mean([low <= math.log(2) <= high for low, high in found])
    assert 0.95 <= covered <= 0.975  # the ranks (8, 18) of 25 cover 95.7 %


pairs = st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=2, max_size=60)


@given(pairs)
def test_spearman_is_scipys_with_ties(both):
    x, y = zip(*both, strict=True)
    found = spearman(x, y)
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert math.isnan(found)
    else:
        assert found == pytest.approx(scipy_stats.spearmanr(x, y).statistic, abs=1e-12)


@given(st.lists(times, min_size=2, max_size=60, unique=True))
def test_spearman_sees_order_alone(values):
    assert spearman(values, [math.log(v) for v in values]) >= 1 - 1e-12 or len(
        {math.log(v) for v in values}
    ) < len(values)
    assert spearman(values, [-v for v in values]) == pytest.approx(-1)


@pytest.mark.parametrize(("x", "y"), [([], []), ([1], [1]), ([1, 2], [1, 2, 3])])
def test_spearman_of_unequal_or_too_few_is_refused(x, y):
    with pytest.raises(ValueError, match="two equally long"):
        spearman(x, y)
