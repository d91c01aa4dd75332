"""Compute medians, ratios and their intervals: pure functions of numbers; the bootstrap needs
numpy."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from workbench.data.record import Ratio

CORRELATED = 0.2  # lag-1 autocorrelation above which samples do not count as independent
ENOUGH = 20  # the autocorrelation of fewer samples is mostly noise: its deviation is 1/sqrt(n)
RESAMPLES = 1000
_MOST_AT_ONCE = 2_000_000  # numbers that one step of the bootstrap holds: 16 MB


def quantile(samples: Sequence[float], q: float) -> float:
    """Return the linear-interpolation quantile (Hyndman and Fan, type 7). q is in 0..1. Raises
    ValueError if empty."""
    if not samples:
        raise ValueError("no samples, no quantile")
    ordered = sorted(samples)
    at = q * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def median(samples: Sequence[float]) -> float:
    """Return the middle sample, or halfway between the two in the middle."""
    return quantile(samples, 0.5)


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return the distribution-free interval of the median from order statistics (David and
    Nagaraja, Order Statistics, 7.1): the narrowest symmetric pair of ranks whose binomial coverage
    reaches `confidence`. With fewer than six samples no pair of ranks reaches 95 %, and it is the
    whole range."""
    ordered = sorted(samples)
    rank = _rank(len(ordered), confidence)
    return ordered[rank], ordered[-1 - rank]


def least_for(confidence: float) -> int:
    """Return the fewest samples whose whole range covers the median with `confidence`; it misses
    the median with probability 2^(1-n)."""
    return math.ceil(1 - math.log2(1 - confidence) - 1e-9)


def interval(samples: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return the interval of the median of samples in the order they were taken.

    From order statistics. Where the lag-1 autocorrelation of the ranks exceeds 0.2: those of the
    effective number of samples, joined with the block bootstrap. (On AR(1) series of 24 to 400
    samples with rho from 0.3 to 0.8 that covers 94 to 99 %; the bootstrap alone 69 to 93 %.) Raises
    ValueError if empty.
    """
    rho = rank_autocorrelation(samples) if len(samples) >= ENOUGH else 0.0
    if rho <= CORRELATED:
        return median_interval(samples, confidence)
    low, high = _effective_interval(samples, rho, confidence)
    also_low, also_high = bootstrap_interval(samples, confidence)
    return min(low, also_low), max(high, also_high)


def _effective_interval(
    samples: Sequence[float], rho: float, confidence: float
) -> tuple[float, float]:
    """Return order statistics as if there were n (1 - rho) / (1 + rho) samples (Bartlett, 1935);
    the whole range if those are too few."""
    effective = int(len(samples) * (1 - rho) / (1 + rho))
    if effective < least_for(confidence):
        return min(samples), max(samples)
    q = _rank(effective, confidence) / (effective - 1)
    return quantile(samples, q), quantile(samples, 1 - q)


def windowed_interval(
    windows: Sequence[Sequence[float]], confidence: float = 0.95
) -> tuple[float, float]:
    """Return the interval of the median of samples taken in windows that lie apart in time.

    Neighbouring samples share a clock and a temperature, so counting each of them as independent
    makes the interval far too narrow. Where the lag-1 autocorrelation of the ranks exceeds 0.2 and
    there are at least six windows, the medians of the windows are counted instead.
    """
    pooled = [s for window in windows for s in window]
    if len(windows) < 6:
        return interval(pooled, confidence)
    if rank_autocorrelation(pooled) <= CORRELATED:
        return median_interval(pooled, confidence)
    low, high = interval([median(window) for window in windows], confidence)
    middle = median(pooled)
    return min(low, middle), max(high, middle)


def bootstrap_interval(samples: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return the percentile interval of the median by the circular block bootstrap (Politis and
    Romano, 1992).

    The same samples always give the same interval. Raises ValueError if empty.
    """
    import numpy as np

    if not samples:
        raise ValueError("no samples, no interval")
    values = np.asarray(samples, dtype=float)
    n = len(values)
    block = block_length(n, rank_autocorrelation(samples))
    blocks = -(-n // block)
    rng = np.random.default_rng(0)
    medians: list[float] = []
    while len(medians) < RESAMPLES:
        rows = min(RESAMPLES - len(medians), max(1, _MOST_AT_ONCE // n))
        starts = rng.integers(0, n, (rows, blocks, 1))
        at = ((starts + np.arange(block)) % n).reshape(rows, -1)[:, :n]
        medians += np.median(values[at], axis=1).tolist()
    tail = (1 - confidence) / 2
    return quantile(medians, tail), quantile(medians, 1 - tail)


def block_length(n: int, rho: float) -> int:
    """Return the samples in one block of the circular bootstrap (Politis and White, 2004, for an
    AR(1) series with lag-1 autocorrelation rho): (6 rho^2 / (1 - rho^2)^2 * n)^(1/3), from 1 to
    n/4."""
    rho = min(abs(rho), 0.99)
    best = math.cbrt(6 * rho**2 / (1 - rho**2) ** 2 * n)
    return max(1, min(math.ceil(best), n // 4))


def ratio(left: Sequence[float], right: Sequence[float], confidence: float = 0.95) -> Ratio:
    """Return the median of right over left, pair by pair, and its interval from the order
    statistics of the log ratios. Influences that both of a pair share, such as the clock, cancel.
    Raises ValueError unless the sequences are equally long, not empty and positive."""
    if len(left) != len(right):
        raise ValueError("a paired ratio needs two equally long sequences")
    if not all(value > 0 for value in (*left, *right)):
        raise ValueError("a ratio needs positive values")
    logs = [math.log(r / x) for x, r in zip(left, right, strict=True)]
    low, high = interval(logs, confidence)
    return Ratio(math.exp(median(logs)), math.exp(low), math.exp(high))


def geomean(values: Sequence[float]) -> float:
    """Return the geometric mean of positive values. Raises ValueError if there are none, or one is
    not positive."""
    if not values or not all(value > 0 for value in values):
        raise ValueError("a geometric mean needs positive values")
    return math.exp(math.fsum(math.log(value) for value in values) / len(values))


def holm(p_values: Sequence[float], alpha: float = 0.05) -> list[bool]:
    """Return which hypotheses are rejected if the chance of any false rejection among them is to
    stay under alpha (Holm, 1979): step down from the smallest p until one exceeds alpha / (m - i).
    """
    rejected = [False] * len(p_values)
    for i, at in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if not p_values[at] <= alpha / (len(p_values) - i):
            break
        rejected[at] = True
    return rejected


@dataclass(frozen=True)
class Summary:
    """Distribution of samples, in the samples' own unit: seconds for times."""

    n: int
    min: float
    p5: float
    p25: float
    median: float
    p75: float
    p95: float
    max: float
    mean: float
    stddev: float  # of the sample (n - 1); 0 for a single one


def summary(samples: Sequence[float]) -> Summary:
    """Return the summary of samples. Raises ValueError if empty."""
    p5, p25, middle, p75, p95 = (quantile(samples, q) for q in (0.05, 0.25, 0.5, 0.75, 0.95))
    n = len(samples)
    mean = math.fsum(samples) / n
    spread = math.fsum((s - mean) ** 2 for s in samples)
    return Summary(
        n=n,
        min=min(samples),
        p5=p5,
        p25=p25,
        median=middle,
        p75=p75,
        p95=p95,
        max=max(samples),
        mean=mean,
        stddev=math.sqrt(spread / (n - 1)) if n > 1 else 0.0,
    )


def autocorrelation(samples: Sequence[float]) -> float:
    """Return the lag-1 autocorrelation (Box and Jenkins, 2.1.5); 0 for constant or fewer than
    three."""
    if len(samples) < 3:
        return 0.0
    mean = sum(samples) / len(samples)
    spread = sum((s - mean) ** 2 for s in samples)
    pooled = sum((a - mean) * (b - mean) for a, b in pairwise(samples))
    return pooled / spread if spread else 0.0


def rank_autocorrelation(samples: Sequence[float]) -> float:
    """Return the lag-1 autocorrelation of the ranks (Wald and Wolfowitz, 1943). Two samples in a
    thousand that take ten times as long hide a drifting clock from `autocorrelation`, but not from
    this."""
    return autocorrelation(_ranks(samples))


@lru_cache(maxsize=4096)
def _rank(n: int, confidence: float) -> int:
    """Return the largest r with P(B <= r) <= (1 - confidence) / 2 for B ~ Binomial(n, 1/2), the
    number of samples below the median, which is below the sample of rank r (from 0) if B <= r."""
    if n == 0:
        raise ValueError("no samples, no interval")
    log_half = n * math.log(2)
    below, rank = 0.0, 0
    for r in range((n - 1) // 2 + 1):
        log_choose = math.lgamma(n + 1) - math.lgamma(r + 1) - math.lgamma(n - r + 1)
        below += math.exp(log_choose - log_half)
        if below > (1 - confidence) / 2:
            break
        rank = r
    return rank


def spearman(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the rank correlation with ties at their mean rank; NaN if either sequence is constant.
    Raises ValueError unless both have the same length of at least two."""
    if len(x) != len(y) or len(x) < 2:
        raise ValueError("Spearman needs two equally long sequences of at least two values")
    rx, ry = _ranks(x), _ranks(y)
    mx, my = sum(rx) / len(rx), sum(ry) / len(ry)
    covariance = sum((a - mx) * (b - my) for a, b in zip(rx, ry, strict=True))
    spread = math.sqrt(sum((a - mx) ** 2 for a in rx) * sum((b - my) ** 2 for b in ry))
    return covariance / spread if spread else math.nan


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for i in order[start : end + 1]:
            ranks[i] = (start + end) / 2
        start = end + 1
    return ranks
