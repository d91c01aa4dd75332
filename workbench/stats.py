"""Medians and their intervals: pure functions of numbers, standard library only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise


def quantile(samples: Sequence[float], q: float) -> float:
    """Linear-interpolation quantile (Hyndman and Fan, type 7). q in 0..1; ValueError if empty."""
    if not samples:
        raise ValueError("no samples, no quantile")
    ordered = sorted(samples)
    at = q * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def median(samples: Sequence[float]) -> float:
    """The middle sample, or halfway between the two in the middle."""
    return quantile(samples, 0.5)


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Distribution-free interval of the median from order statistics (David and Nagaraja,
    Order Statistics, 7.1): the narrowest symmetric pair of ranks whose binomial coverage reaches
    `confidence`. With fewer than six samples no pair of ranks reaches 95 %: the whole range.
    """
    ordered = sorted(samples)
    rank = _rank(len(ordered), confidence)
    return ordered[rank], ordered[-1 - rank]


def windowed_interval(
    windows: Sequence[Sequence[float]], confidence: float = 0.95
) -> tuple[float, float]:
    """Interval of the median of samples taken in windows that lie apart in time.

    Neighbouring samples share a clock and a temperature, so counting each of them as independent
    makes the interval far too narrow. Where the lag-1 autocorrelation within the windows exceeds
    0.2 and there are at least six windows, the windows' own medians are what is counted.
    """
    pooled = [s for window in windows for s in window]
    if len(windows) < 6 or autocorrelation(pooled) <= 0.2:
        return median_interval(pooled, confidence)
    low, high = median_interval([median(window) for window in windows], confidence)
    middle = median(pooled)
    return min(low, middle), max(high, middle)


def autocorrelation(samples: Sequence[float]) -> float:
    """Lag-1 autocorrelation (Box and Jenkins, 2.1.5); 0 for constant or fewer than three."""
    if len(samples) < 3:
        return 0.0
    mean = sum(samples) / len(samples)
    spread = sum((s - mean) ** 2 for s in samples)
    together = sum((a - mean) * (b - mean) for a, b in pairwise(samples))
    return together / spread if spread else 0.0


@lru_cache(maxsize=4096)
def _rank(n: int, confidence: float) -> int:
    """Largest r with P(B <= r) <= (1 - confidence) / 2 for B ~ Binomial(n, 1/2), the number of
    samples below the median: it lies below the sample of rank r (from 0) when B <= r."""
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
    """Rank correlation with ties at their mean rank; NaN when either side is constant."""
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
