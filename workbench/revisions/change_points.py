"""Find the steps in a series of times over commits: pure functions of numbers.

Steps are proposed by PELT (Killick, Fearnhead and Eckley, JASA 107, 2012) of the package ruptures,
with a penalty that proposes too many, and each then has to pass a permutation test and a least
effect. benchmarks/history_site.py measures false alarms and steps that are missed.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from workbench.data.record import Ratio
from workbench.spec import WorkbenchError

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[np.float64]]

LEAST_EFFECT = 0.01  # share below which a step is not listed: the default of `compare --threshold`
LEAST_POINTS = 5  # on each side of a step; one or two slow commits are not a level
PENALTY = 3.0  # of PELT, times log(n), in variances of the noise
LARGEST_P = 0.001  # of the permutation test
PERMUTATIONS = 1999
LEAST_EPISODE = 3  # points; one or two are outliers
LEAST_DRIFT = 12  # points of a ramp; a shorter one may be a step that is blurred by noise
SURE = 6.0  # twice the log of the likelihood that a drift in place of one step must gain
CLIPPED = 3.0  # deviations from the local median beyond which a point counts no further
LEAST_NOISE = 2e-4  # share: below it, rounding of a series without noise would count as noise
MOST_CORRELATED = 0.8  # lag-1 autocorrelation of the noise that is still corrected for
UNSURE = 2.0  # deviations of the estimated autocorrelation that are added to it
_WINDOW = 9  # points of the local median
_AT_ONCE = 2_000_000  # numbers that one batch of permutations holds: 16 MB


class SiteMissing(WorkbenchError):
    """The package that finds change points is not installed."""


ChangeKind = Literal["step", "drift", "episode"]


@dataclass(frozen=True)
class SeriesStep:
    """A step of a series. `at` is the place of the first point after it; `ratio` is the level after
    over the level before, with its 95 % interval. A drift goes from one level to the other over
    many points, so that no commit can be named; an episode returns to its level after a few."""

    index: int
    ratio: Ratio
    p: float  # of the permutation test
    kind: ChangeKind = "step"
    end: int = 0  # of a drift or an episode: the place of the first point after it


@dataclass(frozen=True)
class _Noise:
    """Deviation of one point, in logs, and the factor by which autocorrelation widens a mean."""

    sigma: float
    widening: float


def require_ruptures() -> None:
    """Raise SiteMissing where ruptures is not installed; imports nothing."""
    if importlib.util.find_spec("ruptures") is None:
        raise SiteMissing(
            "The package ruptures, which finds change points, is not installed: pip install "
            "'kernel-workbench[site]'."
        )


def steps(values: Sequence[float], least_effect: float = LEAST_EFFECT) -> list[SeriesStep]:
    """Return the steps of a series of positive values in their order.

    Computed on logs, in which outliers count no further than three deviations from the median of
    their neighbours. A step is kept where the levels differ by `least_effect` (a share) or more,
    and where the largest standardised difference of two means, divided by the factor of the noise's
    autocorrelation, is beyond those of 99.9 % of the permutations of the points around it. Fewer
    than ten values have no steps. Raises SiteMissing without the package ruptures.
    """
    import numpy as np

    if len(values) < 2 * LEAST_POINTS:
        return []
    logs = np.log(np.asarray(values, dtype=float))
    for start, end, base in _excursions(logs):
        logs[start:end] = base
    series = _clip(logs)
    places = _propose_places(series)
    while places:
        noise = _noise(series, places)
        ends = [0, *places, len(series)]
        results = [
            _test_step(series, ends[n], place, ends[n + 2], noise) for n, place in enumerate(places)
        ]
        worst = max(range(len(places)), key=lambda n: _weakness(results[n], least_effect))
        if _weakness(results[worst], least_effect) <= (False, LARGEST_P, 0.0):
            return _join_drifts(series, results)
        del places[worst]
        places = _settle_places(series, places)
    return []


def episodes(values: Sequence[float]) -> list[SeriesStep]:
    """Return the short episodes of a series of positive values: `LEAST_EPISODE` points or more, too
    few for a level, that all lie beyond three deviations on one side of those around them."""
    import numpy as np

    if len(values) < 2 * LEAST_POINTS:
        return []
    logs = np.log(np.asarray(values, dtype=float))
    sigma = max(_deviation_of_differences(logs), LEAST_NOISE)
    results = []
    for start, end, base in _excursions(logs):
        change = float(np.median(logs[start:end])) - base
        reach = 2 * sigma * math.sqrt(1 / (end - start) + 1 / (2 * LEAST_POINTS))
        ratio = Ratio(*(math.exp(change + by) for by in (0.0, -reach, reach)))
        chance = math.erfc(CLIPPED / math.sqrt(2)) ** (end - start)
        results.append(SeriesStep(start, ratio, chance, "episode", end))
    return results


def _excursions(logs: Array) -> list[tuple[int, int, float]]:
    """Return start, end and surrounding level of each run of three or four points that leave their
    level and return to it. Clipping is enough for one or two."""
    import numpy as np

    limit = max(CLIPPED * _deviation_of_differences(logs), math.log1p(LEAST_EFFECT))
    result: list[tuple[int, int, float]] = []
    start = LEAST_POINTS
    while start < len(logs) - LEAST_POINTS:
        for length in range(LEAST_POINTS - 1, LEAST_EPISODE - 1, -1):
            end = start + length
            left, right = logs[start - LEAST_POINTS : start], logs[end : end + LEAST_POINTS]
            base = float(np.median(np.concatenate([left, right])))
            sign = 1.0 if logs[start] > base else -1.0
            apart = sign * (logs[start - 1 : end + 1] - base)
            most = float(apart[1:-1].max())  # points half as far are of the level, not the run
            level = abs(float(np.median(left)) - float(np.median(right))) <= limit
            least = float(apart[1:-1].min())
            alone = least > limit and least > most / 2 >= max(apart[0], apart[-1])
            if len(right) == LEAST_POINTS and level and alone:
                result.append((start, end, base))
                start = end
                break
        start += 1
    return result


def _join_drifts(series: Array, results: list[SeriesStep]) -> list[SeriesStep]:
    """Return the steps with those that follow one another in one direction as a drift, where a ramp
    fits the series between their neighbours better than they do."""
    import numpy as np

    steps: list[SeriesStep] = []
    ends = [0, *(step.index for step in results), len(series)]
    n = 0
    while n < len(results):
        up = results[n].ratio.middle > 1
        last = n
        while last + 1 < len(results) and (results[last + 1].ratio.middle > 1) == up:
            last += 1
        part = series[ends[n] : ends[last + 2]]
        cuts = [step.index - ends[n] for step in results[n : last + 1]]
        levels_left = sum(float(((p - p.mean()) ** 2).sum()) for p in np.split(part, cuts))
        begin, end, change, left = _best_ramp(part)
        parameters = 2 * (last - n + 1) + 1  # a level and a place for each step; a ramp has four
        gain = len(part) * math.log(levels_left / left) if left > 0 and levels_left > 0 else 0.0
        sure = SURE if last == n else 0.0
        if end - begin >= LEAST_DRIFT and gain > (4 - parameters) * math.log(len(part)) + sure:
            reach = 2 * math.sqrt(left / len(part)) * math.sqrt(2 / LEAST_POINTS)
            ratio = Ratio(*(math.exp(change + by) for by in (0.0, -reach, reach)))
            p = max(step.p for step in results[n : last + 1])
            steps.append(SeriesStep(ends[n] + begin + 1, ratio, p, "drift", ends[n] + end))
        else:
            steps += results[n : last + 1]
        n = last + 1
    return steps


def _best_ramp(part: Array) -> tuple[int, int, float, float]:
    """Return begin, end and change of the ramp between two levels that fits best, and the sum of
    the squares that it leaves. Begin and end are sought at forty places."""
    import numpy as np

    places = np.unique(np.linspace(0, len(part) - 1, 40).astype(int))
    at = np.arange(len(part))
    best = (0, 0, 0.0, math.inf)
    for begin in places:
        for end in places[places > begin]:
            ramp = np.clip((at - begin) / (end - begin), 0, 1)
            ramp -= ramp.mean()
            slope = float(ramp @ part) / float(ramp @ ramp)
            left = float(((part - part.mean() - slope * ramp) ** 2).sum())
            if left < best[3]:
                best = int(begin), int(end) + 1, slope, left
    return best


def _weakness(step: SeriesStep, least_effect: float) -> tuple[bool, float, float]:
    """Return what orders steps by how little speaks for them: too small, p, and the effect."""
    effect = abs(math.log(step.ratio.middle))
    return effect < math.log1p(least_effect), step.p, -effect


def _settle_places(series: Array, places: Sequence[int]) -> list[int]:
    """Return the places, each moved to the best split between its neighbours, since one was
    dropped."""
    ends = [0, *places, len(series)]
    for n in range(1, len(ends) - 1):
        part = series[ends[n - 1] : ends[n + 1]]
        ends[n] = ends[n - 1] + LEAST_POINTS + int(_differences(part[None])[0].argmax())
    return ends[1:-1]


def levels(values: Sequence[float], places: Sequence[int]) -> list[float]:
    """Return the median of each part between the places of steps, in the unit of the values."""
    from workbench.data.stats import median

    ends = [0, *places, len(values)]
    return [median(values[a:b]) for a, b in pairwise(ends)]


def noise_of(values: Sequence[float]) -> float:
    """Return the robust deviation of one point from the next, as a share: steps, of which there are
    few, do not count. 0 of fewer than three values."""
    import numpy as np

    if len(values) < 3:
        return 0.0
    return _deviation_of_differences(np.log(np.asarray(values, dtype=float)))


def _deviation_of_differences(series: Array) -> float:
    import numpy as np

    return float(1.4826 * np.median(np.abs(np.diff(series))) / np.sqrt(2))


def _clip(series: Array) -> Array:
    """Return the series with each point at most three deviations from the local median. The median
    of a window keeps steps where they are."""
    import numpy as np

    half = _WINDOW // 2
    wide = np.pad(series, half, mode="reflect")
    local = np.median(np.lib.stride_tricks.sliding_window_view(wide, _WINDOW), axis=1)
    most = CLIPPED * max(_deviation_of_differences(series), LEAST_NOISE)
    return np.clip(series, local - most, local + most)


def _propose_places(series: Array) -> list[int]:
    """Return the places that PELT proposes. Raises SiteMissing without ruptures."""
    import numpy as np

    require_ruptures()
    # the linear kernel is the cost of a shift of the mean, and is computed in C: 0.1 ms at 60
    # points, 40 ms at 2,000, where ruptures.Pelt takes two minutes
    from ruptures import KernelCPD

    sigma = max(_deviation_of_differences(series), LEAST_NOISE)
    search = KernelCPD(kernel="linear", min_size=LEAST_POINTS)
    centred = (series - np.median(series)) / sigma
    ends = search.fit(centred[:, None]).predict(pen=PENALTY * np.log(len(series)))
    return [int(end) for end in ends[:-1]]


def _noise(series: Array, places: Sequence[int]) -> _Noise:
    """Return the noise about the levels between these places."""
    import numpy as np

    parts = np.split(series, list(places))
    rest = [part - part.mean() for part in parts]
    square = sum(float((r**2).sum()) for r in rest)
    sigma = max(float(np.sqrt(square / max(1, len(series) - len(parts)))), LEAST_NOISE)
    lagged = sum(float((r[1:] * r[:-1]).sum()) for r in rest)
    correlation = lagged / square if square else 0.0
    # the estimate is too low by (1 + 4 rho) / n for each fitted mean (Marriott and Pope, 1954),
    # and two deviations are added: an estimate from 60 points is off by 0.13
    correlation += len(parts) * (1 + 4 * max(correlation, 0.0)) / len(series)
    correlation += UNSURE / math.sqrt(len(series))
    correlation = min(max(correlation, 0.0), MOST_CORRELATED)
    return _Noise(sigma, float(np.sqrt((1 + correlation) / (1 - correlation))))


def _test_step(series: Array, start: int, at: int, end: int, noise: _Noise) -> SeriesStep:
    """Return the step at a place between `start` and `end`, with its p."""
    import numpy as np

    part, split = series[start:end], at - start
    observed = float(_differences(part[None])[0][split - LEAST_POINTS])
    change = float(part[split:].mean() - part[:split].mean())
    error = noise.sigma * noise.widening * math.sqrt(1 / split + 1 / (len(part) - split))
    reach = _quantile_of_t(len(part) - 2) * error
    ratio = Ratio(*(float(np.exp(change + by)) for by in (0.0, -reach, reach)))
    rest = np.concatenate([half - half.mean() for half in (part[:split], part[split:])])
    return SeriesStep(at, ratio, _p_of(rest, observed / noise.widening))


def _differences(rows: Array) -> Array:
    """Return, for each row and each split with enough points on both sides, the difference of both
    means over the root of 1/a + 1/b."""
    import numpy as np

    length = rows.shape[1]
    centred = rows - rows.mean(axis=1, keepdims=True)
    split = np.arange(LEAST_POINTS, length - LEAST_POINTS + 1)
    sums = np.cumsum(centred, axis=1)[:, split - 1]
    differences: Array = np.abs(sums) / np.sqrt(split * (length - split) / length)
    return differences


def _p_of(part: Array, observed: float) -> float:
    """Return the share of permutations with a difference as large, the series itself among them.
    The permutations are the same each time, so that a page that is written again is the same."""
    import numpy as np

    dice = np.random.default_rng(len(part))
    beyond, left = 1, PERMUTATIONS
    while left:
        many = min(left, max(1, _AT_ONCE // len(part)))
        rows = dice.permuted(np.broadcast_to(part, (many, len(part))), axis=1)
        beyond += int((_differences(rows).max(axis=1) >= observed).sum())
        left -= many
    return beyond / (PERMUTATIONS + 1)


def _quantile_of_t(freedom: int) -> float:
    from scipy.special import stdtrit  # ruptures brings scipy

    return float(stdtrit(max(1, freedom), 0.975))
