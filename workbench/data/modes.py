"""Find two modes in samples of a time, such as a kernel that takes 40 us or 125 us by turns."""

import math
from collections.abc import Sequence

from workbench.data.record import Mode

LEAST_SHARE = 0.1  # of the samples in the smaller mode: fewer are outliers
LEAST_RATIO = 1.15  # of the two modes: an H200's clock moves a time by up to 5 %
LEAST_SAMPLES = 20
CLEAR = 3.0  # the modes lie this many of their own half-widths apart


def modes_of(samples: Sequence[float]) -> tuple[Mode, ...]:
    """Return the two modes of samples in seconds, faster first; empty if there is only one.

    The samples are split where the variance between the two parts is largest (Otsu 1979), on a
    logarithmic scale. The parts are modes if both are large, far apart, and narrow against their
    distance; the halves of a uniform or a normal distribution are not.
    """
    if len(samples) < LEAST_SAMPLES or min(samples) <= 0:
        return ()
    ordered = sorted(samples)
    at = _split([math.log(s) for s in ordered])
    low, high = ordered[:at], ordered[at:]
    if min(len(low), len(high)) < LEAST_SHARE * len(ordered):
        return ()
    middles = _quantile(low, 0.5), _quantile(high, 0.5)
    widths = [(_quantile(part, 0.9) - _quantile(part, 0.1)) / 2 for part in (low, high)]
    apart = middles[1] - middles[0]
    if middles[1] < LEAST_RATIO * middles[0] or apart < CLEAR * sum(widths):
        return ()
    return tuple(
        Mode(len(part) / len(ordered), middle)
        for part, middle in zip((low, high), middles, strict=True)
    )


def _split(ordered: Sequence[float]) -> int:
    """Return the size of the lower part that makes the variance between both parts largest."""
    total, below, best, at = sum(ordered), 0.0, -1.0, 1
    for count, value in enumerate(ordered[:-1], 1):
        below += value
        above = len(ordered) - count
        distance = below / count - (total - below) / above
        between = count * above * distance * distance
        if between > best:
            best, at = between, count
    return at


def _quantile(ordered: Sequence[float], q: float) -> float:
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]
