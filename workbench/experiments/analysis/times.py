"""Times with their intervals, arithmetic on them, and their presentation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workbench.data import stats
from workbench.data.record import Evidence, Kind, Series, group_by
from workbench.experiments import VariantResult


@dataclass(frozen=True)
class Span:
    """A number with its 95 % interval, or with bounds. Operations give the widest interval."""

    value: float
    low: float
    high: float

    @classmethod
    def exactly(cls, value: float) -> Span:
        """Return a number that is known without an interval."""
        return cls(value, value, value)

    def __add__(self, other: Span) -> Span:
        return Span(self.value + other.value, self.low + other.low, self.high + other.high)

    def __sub__(self, other: Span) -> Span:
        return Span(self.value - other.value, self.low - other.high, self.high - other.low)

    def __truediv__(self, other: Span) -> Span:
        """Return the quotient of numbers from 0 on; infinite where the divisor may be 0."""
        low, high = quotient(self.low, other.high), quotient(self.high, other.low)
        return Span(quotient(self.value, other.value), low, high)

    def times(self, factor: float) -> Span:
        """Return the number multiplied by a factor that is not negative."""
        return Span(self.value * factor, self.low * factor, self.high * factor)

    def less(self, other: Span) -> Span:
        """Return the difference, with all parts below zero set to zero."""
        return (self - other).clamp(0.0, math.inf)

    def clamp(self, low: float, high: float) -> Span:
        """Return the number with all parts limited to these bounds."""
        return Span(*(min(max(x, low), high) for x in (self.value, self.low, self.high)))

    def extend_down(self, other: Span) -> Span:
        """Return the same number with an interval extended down to that of another."""
        return Span(self.value, min(self.low, other.low), self.high)

    def extend_up(self, other: Span) -> Span:
        """Return the same number with an interval extended up to that of another."""
        return Span(self.value, self.low, max(self.high, other.high))

    def is_above(self, bound: float) -> bool | None:
        """Return whether it exceeds the bound; None if the interval allows both."""
        return True if self.low > bound else False if self.high <= bound else None

    def is_below(self, bound: float) -> bool | None:
        """Return whether it is less than the bound; None if the interval allows both."""
        return True if self.high < bound else False if self.low >= bound else None


def quotient(a: float, b: float) -> float:
    """Return a / b of numbers that are not negative: 0 / 0 is 0, others over 0 are infinite."""
    return a / b if b > 0 else math.inf if a > 0 else 0.0


def span_of(result: VariantResult | None) -> Span | None:
    """Return the seconds of a variant; None if it has none. A prediction has an interval where the
    model states one."""
    if result is None or result.time_s is None:
        return None
    return Span(result.time_s, *(result.interval_s or (result.time_s, result.time_s)))


def ratio_of(left: VariantResult, right: VariantResult) -> Span | None:
    """Return the right variant's time over the left's, with its 95 % interval; None if one has no
    time.

    Variants are interleaved window by window, so if both kept the same number of windows, at least
    the six that a 95 % interval needs, it is that of the ratios within each round: influences that
    a round's two windows share cancel. Otherwise it is the quotient of the two intervals' ends,
    which is wider. A ratio of predictions without intervals is exact.
    """
    a, b = span_of(left), span_of(right)
    if a is None or b is None:
        return None
    ours, theirs = (r.timing.window_medians if r.timing else [] for r in (left, right))
    if len(ours) == len(theirs) >= stats.least_for(0.95):
        paired = stats.ratio(ours, theirs)
        return Span(paired.middle, paired.low, paired.high)
    return b / a


def quickest(results: Sequence[VariantResult]) -> VariantResult | None:
    """Return the variant with the least time; None if none has one."""
    timed = [each for each in results if each.time_s is not None]
    return min(timed, key=lambda each: each.time_s or 0.0, default=None)


def least_of(results: Sequence[VariantResult]) -> Span | None:
    """Return the least time of several variants whose intervals may overlap, so that none of them
    is chosen; None if none has a time."""
    spans = [span for each in results if (span := span_of(each)) is not None]
    if not spans:
        return None
    return Span(
        min(each.value for each in spans),
        min(each.low for each in spans),
        min(each.high for each in spans),
    )


def kind_of(*results: VariantResult) -> Kind:
    """Return whether a number computed from these times is measured or predicted."""
    return "measured" if all(each.timing for each in results) else "predicted"


def launches(result: VariantResult | None) -> int | None:
    """Return the kernels of a call, counted in a graph, else by the compiler; None if unknown."""
    if result is None:
        return None
    if result.kernels is not None:
        return result.kernels
    return result.compilation.launches if result.compilation else None


# Presentation


def row(
    name: str,
    span: Span,
    unit: str,
    kind: Kind,
    group: str = "",
    target: str = "",
    met: bool | None = None,
) -> Evidence:
    """Return a number as evidence. A prediction has an interval where the model states one."""
    exact = kind == "predicted" and span.low == span.high
    low, high = (None, None) if exact else (span.low, span.high)
    return Evidence(name, span.value, unit, kind, low, high, group, target, met)


CANNOT_TELL = "the model cannot tell"  # where intervals of predictions overlap


def mark(kind: Kind) -> str:
    """Return the sign before a number of this kind: `~` if predicted."""
    return "~" if kind == "predicted" else ""


def verdict_word(word: str, kind: Kind) -> str:
    """Return a verdict's word, with "predicted: " before it if it rests on predictions."""
    return f"predicted: {word}" if kind == "predicted" else word


def reasons(results: Mapping[str, VariantResult]) -> list[str]:
    """Return a sentence for each reason why there is no time, with its first variants."""
    failed = {name: each.failure.rstrip(".") for name, each in results.items() if each.failure}
    by_reason = group_by(failed, lambda name: failed[name])
    return [f"No time of {_first(names)}: {reason}." for reason, names in by_reason.items()]


def _first(names: Sequence[str]) -> str:
    more = f" and {len(names) - 2} more" if len(names) > 3 else ""
    return "; ".join(names[:2] if more else names) + more


def line(name: str, results: Mapping[int, VariantResult], scale: float, kind: Kind) -> Series:
    """Return times in units of `scale` seconds as a series; with intervals if all are measured."""
    ends = [e for each in results.values() if (e := each.interval_s) is not None]
    ends = ends if len(ends) == len(results) else []
    low, high = tuple(a / scale for a, _ in ends), tuple(b / scale for _, b in ends)
    times = tuple((each.time_s or 0.0) / scale for each in results.values())
    return Series(name, tuple(map(float, results)), times, low, high, kind)
