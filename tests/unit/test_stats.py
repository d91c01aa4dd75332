"""Quantiles, intervals and rank correlation agree with SciPy and numpy, and with the binomial."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats
from scipy.signal import lfilter

from workbench.data.stats import (
    CORRELATED,
    ENOUGH,
    autocorrelation,
    block_length,
    bootstrap_interval,
    geomean,
    holm,
    interval,
    least_for,
    median,
    median_interval,
    quantile,
    rank_autocorrelation,
    ratio,
    spearman,
    summary,
    windowed_interval,
)

pytestmark = pytest.mark.unit

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
    result = quantile(values, q)
    assert min(values) <= result <= max(values) * (1 + 1e-12)
    assert result == quantile(values[::-1], q)


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
    results = [median_interval(list(row)) for row in draws]
    covered = np.mean([low <= math.log(2) <= high for low, high in results])
    assert 0.95 <= covered <= 0.975  # the ranks (8, 18) of 25 cover 95.7 %


pairs = st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=2, max_size=60)


@given(pairs)
def test_spearman_is_scipys_with_ties(both):
    x, y = zip(*both, strict=True)
    result = spearman(x, y)
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert math.isnan(result)
    else:
        assert result == pytest.approx(scipy_stats.spearmanr(x, y).statistic, abs=1e-12)


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


# Correlated samples


def series(rho, n, rows=1, seed=0):
    """Rows of AR(1) noise of unit variance, lag-1 autocorrelation rho, true median 0."""
    white = np.random.default_rng(seed).standard_normal((rows, n + 200))
    return lfilter([math.sqrt(1 - rho**2)], [1, -rho], white)[:, 200:].tolist()


def covered(result, rows):
    """Share of rows whose interval holds the true median 0."""
    return np.mean([low <= 0 <= high for low, high in map(result, rows)])


@pytest.mark.parametrize(
    ("rho", "n"),
    [
        (0.0, 60),
        (0.4, 60),
        (0.7, 24),
        (0.7, 100),
        pytest.param(0.8, 300, marks=pytest.mark.nightly),
    ],
)
def test_interval_covers_the_median_of_correlated_samples(rho, n):
    rows = series(rho, n, rows=150)
    assert covered(interval, rows) >= 0.92
    if rho >= 0.7:
        assert covered(median_interval, rows) < 0.8, "counting each as independent does not"


@pytest.mark.nightly
def test_bootstrap_covers_long_correlated_series():
    rows = series(0.6, 400, rows=150)
    assert 0.87 <= covered(bootstrap_interval, rows) <= 0.98
    assert covered(median_interval, rows) < 0.85


def test_bootstrap_of_independent_samples_is_scipys():
    values = np.random.default_rng(3).exponential(size=301)
    low, high = bootstrap_interval(values.tolist())
    theirs = scipy_stats.bootstrap(
        (values,), np.median, n_resamples=4000, method="percentile", rng=1
    ).confidence_interval
    width = theirs.high - theirs.low
    assert low == pytest.approx(theirs.low, abs=0.3 * width)
    assert high == pytest.approx(theirs.high, abs=0.3 * width)


@given(st.lists(times, min_size=1, max_size=60))
def test_bootstrap_is_repeatable_and_stays_within_the_samples(values):
    low, high = bootstrap_interval(values)
    assert (low, high) == bootstrap_interval(values)
    assert min(values) * (1 - 1e-12) <= low <= high <= max(values) * (1 + 1e-12)


@given(st.integers(1, 10_000), st.floats(0, 1), st.floats(0, 1))
def test_blocks_grow_with_correlation_and_fit(n, one, other):
    low, high = sorted((one, other))
    assert 1 <= block_length(n, low) <= block_length(n, high) <= max(1, n // 4)
    assert block_length(n, 0.0) == 1


@given(st.lists(times, min_size=1, max_size=100))
def test_correlation_can_only_widen_an_interval(values):
    low, high = interval(values)
    inner_low, inner_high = median_interval(values)
    if len(values) < ENOUGH or rank_autocorrelation(values) <= CORRELATED:
        assert (low, high) == (inner_low, inner_high)
    assert low <= inner_low * (1 + 1e-9) and inner_high <= high * (1 + 1e-9)


def test_rare_outliers_do_not_hide_a_wandering_clock():
    values = [1 + 0.01 * x for x in series(0.9, 2000)[0]]
    for at in range(0, 2000, 400):
        values[at] *= 10
    assert autocorrelation(values) < CORRELATED < 0.8 < rank_autocorrelation(values)


def test_windows_apart_in_time_count_as_one_each_where_their_samples_move_together():
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(200):  # a clock of its own in each of 30 windows
        rows.append([list(c + 0.1 * rng.standard_normal(50)) for c in rng.standard_normal(30)])
    assert covered(windowed_interval, rows) >= 0.92
    pooled = [[s for window in row for s in window] for row in rows]
    assert covered(median_interval, pooled) < 0.5


@given(st.sampled_from([0.5, 0.8, 0.9, 0.95, 0.99, 0.999]))
def test_least_for_is_the_first_n_whose_range_covers(confidence):
    n = least_for(confidence)
    assert 1 - 2.0 ** (1 - n) >= confidence - 1e-9 > 1 - 2.0 ** (2 - n) - 2e-9


# Ratios, suites, summaries

positive = st.floats(min_value=1e-7, max_value=1e3, allow_nan=False)
rounds = st.lists(st.tuples(positive, positive), min_size=1, max_size=60)


@given(rounds)
def test_ratio_turns_over_with_its_sides(both):
    left, right = zip(*both, strict=True)
    there, back = ratio(left, right), ratio(right, left)
    assert there.low <= there.middle * (1 + 1e-12) and there.middle <= there.high * (1 + 1e-12)
    assert back.middle == pytest.approx(1 / there.middle)
    if len(both) < ENOUGH:
        assert (back.low, back.high) == pytest.approx((1 / there.high, 1 / there.low))


@given(st.lists(positive, min_size=1, max_size=60), st.floats(0.1, 10))
def test_what_both_sides_share_cancels(left, factor):
    result = ratio(left, [factor * t for t in left])
    assert (result.low, result.middle, result.high) == pytest.approx((factor,) * 3)


def test_ratio_covers_the_true_ratio_under_a_shared_clock():
    rng = np.random.default_rng(5)
    hits = 0
    for _ in range(500):
        clock = np.exp(0.05 * rng.standard_normal(24))
        left, right = (t * clock * np.exp(0.002 * rng.standard_normal(24)) for t in (1.0, 1.02))
        result = ratio(left.tolist(), right.tolist())
        hits += result.low <= 1.02 <= result.high
        assert result.high / result.low < 1.02, "the clock's 5 % is not in it"
    assert 0.93 <= hits / 500 <= 0.99


@pytest.mark.parametrize(
    ("left", "right"), [([1.0], [1.0, 2.0]), ([0.0], [1.0]), ([1.0], [-1.0]), ([], [])]
)
def test_a_ratio_needs_pairs_of_positive_times(left, right):
    with pytest.raises(ValueError):
        ratio(left, right)


@given(st.lists(positive, min_size=1, max_size=60))
def test_geomean_is_scipys(values):
    assert geomean(values) == pytest.approx(scipy_stats.gmean(values), rel=1e-9)


@pytest.mark.parametrize("values", [[], [1.0, 0.0], [1.0, -1.0], [math.nan]])
def test_geomean_of_none_or_of_nothing_positive_is_refused(values):
    with pytest.raises(ValueError, match="positive"):
        geomean(values)


p_lists = st.lists(st.floats(0, 1), max_size=12)


@given(p_lists, st.floats(0.001, 0.5))
def test_holm_is_its_adjusted_p_values(p, alpha):
    """By the closed form: the running maximum of (m - i) p, in order of p (Wright, 1992)."""
    order = np.argsort(p, kind="stable")
    steps = [(len(p) - i) * p[at] for i, at in enumerate(order)]
    adjusted = dict(zip(order.tolist(), np.maximum.accumulate(steps or [0]), strict=False))
    for i, rejected in enumerate(holm(p, alpha)):
        if abs(adjusted[i] - alpha) > 1e-12:
            assert rejected == (adjusted[i] <= alpha)


@given(p_lists, st.floats(0.001, 0.5))
def test_holm_lies_between_bonferroni_and_benjamini_hochberg(p, alpha):
    result = holm(p, alpha)
    rates = scipy_stats.false_discovery_control(p) if p else []
    for rejected, one, rate in zip(result, p, rates, strict=True):
        if one < alpha / len(p) * (1 - 1e-9):
            assert rejected
        if rejected:
            assert rate <= alpha * (1 + 1e-9)


def test_holm_errs_in_at_most_alpha_of_the_suites():
    p = np.random.default_rng(7).uniform(size=(4000, 10))
    wrong = np.mean([any(holm(list(row), 0.05)) for row in p])
    assert 0.03 <= wrong <= 0.06


@given(st.lists(positive, min_size=1, max_size=60))
def test_summary_is_numpys(values):
    result = summary(values)
    ends = np.quantile(values, [0, 0.05, 0.25, 0.5, 0.75, 0.95, 1])
    mine = (result.min, result.p5, result.p25, result.median, result.p75, result.p95, result.max)
    assert mine == pytest.approx(tuple(ends), rel=1e-9)
    assert (result.n, result.mean) == (len(values), pytest.approx(np.mean(values), rel=1e-9))
    spread = np.std(values, ddof=1) if len(values) > 1 else 0.0
    assert result.stddev == pytest.approx(spread, rel=1e-6, abs=1e-9 * max(values))
