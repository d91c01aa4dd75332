"""Choose the next config to measure, for spaces that are too large to try all.

A search gets the legal configs, each with the time that the model predicts. It returns the order in
which to compile them, picks one of the compiled configs to measure next, and receives its time. All
strategies have this one interface; none of them measures, compiles or keeps a clock.
"""

from __future__ import annotations

import heapq
import math
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from workbench.measurement.candidate import Candidate
from workbench.spec import WorkbenchError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


class SearchError(WorkbenchError, ValueError):
    """A budget cannot be parsed, or a strategy is not installed; the message is one sentence."""


@dataclass(frozen=True)
class Budget:
    """Limit of what may be measured: seconds of the whole sweep, or distinct binaries."""

    seconds: float = math.inf
    configs: float = math.inf

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Return the budget of `30s`, `2m`, `1h`, or of `200` for so many configs. Raises
        SearchError where the text cannot be parsed."""
        result = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip(), re.ASCII)
        amount, unit = (float(result[1]), result[2]) if result else (0.0, "")
        if amount <= 0 or not math.isfinite(amount) or (not unit and amount != int(amount)):
            raise SearchError(
                f"A budget of `{text}` cannot be read; write seconds, minutes or hours (30s, 2m, "
                "1h) or a number of configs (200), above zero."
            )
        return cls(seconds=amount * _SECONDS[unit]) if unit else cls(configs=amount)

    def spent(self, elapsed_s: float, measured: int) -> bool:
        """Return whether nothing more should be measured. Duplicates of a measured binary do not
        count."""
        return elapsed_s >= self.seconds or measured >= self.configs


_SECONDS: Mapping[str, float] = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Search(Protocol):
    """Interface of every strategy. Points are the candidates that it was created with, identified
    by their key."""

    def order(self, n: int) -> list[Candidate]:
        """Return the next `n` points to compile, best first: each once, fewer when there are no
        more."""

    def revise(self, point: Candidate, predicted_s: float) -> None:
        """Store the prediction from the resources of a point that was compiled, in seconds."""

    def ask(self, ready: Sequence[Candidate]) -> Candidate | None:
        """Return the one of these compiled points to measure next, or None if there is none."""

    def tell(self, point: Candidate, time_s: float | None) -> None:
        """Store the time of a point in seconds, also that of a duplicate; None if it failed at any
        stage."""


class Strategy(Enum):
    """Search strategies by their name on the command line."""

    EXHAUSTIVE = "exhaustive"
    MODEL = "model"
    RANDOM = "random"
    TPE = "tpe"


def search_of(
    strategy: Strategy, points: Sequence[Candidate], seed: int = 0, *, predicts: bool = False
) -> Search:
    """Return a search over these points, by predicted times where it `predicts`, else by those of a
    first pass. Equal seeds and times give equal searches. Raises SearchError where the strategy
    needs a package that is not installed."""
    slowest = math.inf if predicts else SLOWEST
    created: Mapping[Strategy, Callable[[Sequence[Candidate], int], Search]] = {
        Strategy.EXHAUSTIVE: lambda p, _: Fixed(sorted(p, key=lambda x: x.predicted_s)),
        Strategy.RANDOM: lambda p, s: Fixed(random.Random(s).sample(list(p), len(p))),
        Strategy.MODEL: lambda p, s: ModelSearch(p, s, slowest),
        Strategy.TPE: Tpe,
    }
    return created[strategy](points, seed)


class Fixed:
    """An order that is known beforehand and does not depend on measured times."""

    def __init__(self, points: Sequence[Candidate]) -> None:
        self._points = list(points)
        self._rank = {p.key: rank for rank, p in enumerate(points)}
        self._next = 0

    def order(self, n: int) -> list[Candidate]:
        """Return the next `n` points in the fixed order."""
        given = self._points[self._next : self._next + max(0, n)]
        self._next += len(given)
        return given

    def revise(self, point: Candidate, predicted_s: float) -> None:
        """Ignore the revised prediction."""
        pass

    def ask(self, ready: Sequence[Candidate]) -> Candidate | None:
        """Return the first of these points in the fixed order, or None if there is none."""
        return min(ready, key=lambda p: self._rank[p.key], default=None)

    def tell(self, point: Candidate, time_s: float | None) -> None:
        """Ignore the measured time."""
        pass


LARGEST = 4096  # points that the surrogate holds; those predicted slower come after, in order
# A first pass stops at three times the best, so larger ratios are not known. Predictions do not:
# held down to that, configs of ten times the best came before others that are near it.
SLOWEST = 3.0
NOISE = 0.015  # of log(first-pass time): first-pass times of one binary differ by 1 to 2 %
OFFSET = 1.0  # prior deviation of log(time / predicted) that all points share
LEARN = 8  # the model is updated when there are more new times than 1/8 of all
REFIT = 1.5  # the shape is chosen anew when the number of times has grown by this factor


@dataclass(frozen=True)
class Shape:
    """Covariance of log(time / predicted). All fields but `reach` are prior standard deviations."""

    own: float  # of one point
    reach: float  # steps of a knob over which the errors of points are correlated
    trust: float  # of the exponent of the prediction, which is 1 beforehand


SHAPES = tuple(Shape(own, reach, 0.2) for own in (0.05, 0.15, 0.45) for reach in (1.0, 2.0, 4.0))
FIRST = Shape(0.15, 2.0, 0.2)
COMPILED = Shape(0.45, 2.0, 0.5)  # of log(prediction once compiled / guess)


class ModelSearch:
    """The analytic prediction, corrected by measured times.

    log(time) is a Gaussian process (Rasmussen and Williams 2006, chapter 2): its mean is the
    prediction to a power near 1, times a factor common to all, and its covariance correlates the
    errors of neighbours in knob space. The next point is the one of the largest expected
    improvement (Jones et al. 1998), so points unlike all measured ones are tried too. Width and
    reach of the covariance are those of the largest likelihood (ibid., 5.4) on a grid.
    """

    def __init__(self, points: Sequence[Candidate], seed: int, slowest: float = SLOWEST) -> None:
        """Search these points by times that are known up to `slowest` times the best."""
        self._slowest = slowest
        ranked = random.Random(seed).sample(list(points), len(points))  # ties in any order
        ranked.sort(key=lambda p: p.predicted_s)
        self._points = ranked
        self._at = {p.key: i for i, p in enumerate(ranked[:LARGEST])}
        self._tail = Fixed(ranked[LARGEST:])
        self._guessed = _logs([p.predicted_s for p in ranked[:LARGEST]])
        self._revised_s: dict[int, float] = {}
        self._given: set[int] = set()
        self._times: dict[int, float] = {}  # seconds
        self._failed: set[int] = set()
        self._steps = _positions(ranked[:LARGEST])
        self._gains: list[float] | None = None
        self._news = 0  # results since the gains were computed
        self._fitted = 0  # number of times when the shape was chosen
        self._shape = FIRST

    def order(self, n: int) -> list[Candidate]:
        """Return the next `n` points to compile, those of the largest expected improvement
        first."""
        if len(self._given) == len(self._at):
            return self._tail.order(n)
        gain = self._gain()
        gone = self._given | self._failed | self._times.keys()
        left = [i for i in range(len(self._at)) if i not in gone]
        best = heapq.nlargest(n, left, key=gain.__getitem__)
        self._given.update(best)
        return [self._points[i] for i in best] + self._tail.order(max(0, n) - len(best))

    def revise(self, point: Candidate, predicted_s: float) -> None:
        """Store the prediction of a compiled point in seconds, which replaces the guess before
        compiling."""
        if point.key in self._at:
            self._revised_s[self._at[point.key]] = predicted_s
            self._news += not self._times  # later, only a new time triggers an update

    def ask(self, ready: Sequence[Candidate]) -> Candidate | None:
        """Return the point of the largest expected improvement among these, or None if there is
        none."""
        known = [p for p in ready if p.key in self._at]
        if not known:
            return self._tail.ask(ready)
        gain = self._gain()
        return max(known, key=lambda p: gain[self._at[p.key]])

    def tell(self, point: Candidate, time_s: float | None) -> None:
        """Store the measured time of a point in seconds, or None if it failed."""
        if (i := self._at.get(point.key)) is None:
            return
        if time_s is None:
            self._failed.add(i)
            return
        self._times[i] = time_s
        self._news += 1

    def _gain(self) -> list[float]:
        """Return the expected improvement of every point, in units of the logarithm of the time."""
        if self._gains is None or self._news > len(self._times) // LEARN:
            self._gains, self._news = self._compute(), 0
        return self._gains

    def _compute(self) -> list[float]:
        import numpy as np

        prior = self._prior()
        mean = np.minimum(prior.mean, prior.mean.min() + math.log(self._slowest))
        best_s = min(self._times.values(), default=math.inf)
        times = {i: math.log(min(t, self._slowest * best_s)) for i, t in self._times.items()}
        if len(times) >= max(4, REFIT * self._fitted):
            self._fitted = len(times)
            self._shape = self._likeliest(mean, times)
        result = _posterior(self._steps, mean, times, self._shape)
        # the least mean of a measured point; the least time is biased low by noise
        best = result.mean[list(times)].min() if times else result.mean.min()
        gain = _improvement(best, result.mean, np.sqrt(result.variance + prior.variance))
        return [float(g) for g in gain]

    def _likeliest(self, mean: Floats, times: Mapping[int, float]) -> Shape:
        at = list(times)
        seen = dict(enumerate(times.values()))  # the likelihood needs the measured points alone
        tried = {s: _posterior(self._steps[at], mean[at], seen, s).likelihood for s in SHAPES}
        return max(tried, key=lambda s: tried[s])

    def _prior(self) -> _Normal:
        """Return the distribution of log(time) before any is measured. Corrections of the
        prediction by compiling are extended to neighbours that are not compiled: they too may spill
        or load in narrow words."""
        import numpy as np

        known = {i: math.log(s) for i, s in self._revised_s.items() if math.isfinite(s)}
        if not known:
            return _Normal(self._guessed, np.zeros(len(self._guessed)), 0.0)
        result = _posterior(self._steps, self._guessed, known, COMPILED)
        at = list(known)
        result.mean[at], result.variance[at] = list(known.values()), 0.0
        return result


@dataclass(frozen=True)
class _Normal:
    """Normal distribution of every point's log(time)."""

    mean: Floats
    variance: Floats
    likelihood: float  # logarithm, up to a constant, of the likelihood of the observations


def _posterior(steps: Floats, prior: Floats, seen: Mapping[int, float], shape: Shape) -> _Normal:
    """Return the posterior by Rasmussen and Williams, algorithm 2.1, with the Matern covariance of
    3/2 (4.17): compilers have cliffs, and a smoother covariance is overconfident beyond them.
    `steps` is (points, axes), `prior` the prior mean and `seen` the observed logarithms by point.
    """
    import numpy as np

    centred = prior - prior.mean()
    own_variance = OFFSET**2 + shape.trust**2 * centred**2 + shape.own**2
    if not seen:
        return _Normal(prior, own_variance, 0.0)
    at = list(seen)
    residual = np.array(list(seen.values())) - prior[at]
    shift = residual.mean()
    square = (steps**2).sum(axis=1)
    apart = square[at][:, None] + square[None, :] - 2 * steps[at] @ steps.T
    cross = OFFSET**2 + shape.trust**2 * np.outer(centred[at], centred)
    far = np.sqrt(3 * np.maximum(apart, 0.0)) / shape.reach
    cross += shape.own**2 * (1 + far) * np.exp(-far)
    lower = np.linalg.cholesky(cross[:, at] + NOISE**2 * np.eye(len(at)))
    scaled = np.linalg.inv(lower) @ np.column_stack([residual - shift, cross])
    weight, explained = scaled[:, 0], scaled[:, 1:]
    return _Normal(
        prior + shift + explained.T @ weight,
        np.maximum(own_variance - (explained**2).sum(axis=0), 1e-8),
        float(-0.5 * weight @ weight - np.log(np.diag(lower)).sum()),
    )


def _improvement(best: float, mean: Floats, deviation: Floats) -> Floats:
    """Return the expected improvement on `best` (Jones et al. 1998, equation 15)."""
    import numpy as np

    z = (best - mean) / deviation
    below = np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in z])
    density = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    return np.asarray(deviation * (z * below + density))


def _logs(seconds: Sequence[float]) -> Floats:
    """Return the logarithms; the median where there is no prediction."""
    import numpy as np

    logs = np.log(np.asarray(seconds, dtype=float))
    known = np.isfinite(logs)
    return np.where(known, logs, np.median(logs[known]) if known.any() else 0.0)


def _positions(points: Sequence[Candidate]) -> Floats:
    """Return (points, axes): a knob's index among its values; two Impls are one step apart."""
    import numpy as np

    names = sorted({name for p in points for name in p.case.config})
    values = {n: sorted({p.case.config[n] for p in points if n in p.case.config}) for n in names}
    impls = sorted({p.case.impl for p in points})
    rows = []
    for point in points:
        knobs = point.case.config
        row = [math.sqrt(0.5) * (point.case.impl == impl) for impl in impls]
        row += [float(values[n].index(knobs[n])) if n in knobs else 0.0 for n in names]
        rows.append(row)
    return np.array(rows).reshape(len(points), len(impls) + len(names))


class Tpe:
    """Optuna's tree-structured Parzen estimator (Bergstra et al. 2011), the extra `search`.

    It suggests knobs freely; the point nearest to the suggestion in knob space is taken, and the
    estimator learns from the point's own knobs. It does not use predictions.
    """

    def __init__(self, points: Sequence[Candidate], seed: int) -> None:
        try:
            import optuna
        except ImportError as error:
            raise SearchError(
                "The strategy tpe needs optuna, which is not installed here; "
                "`pip install kernel-workbench[search]`, or choose the strategy model."
            ) from error
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._optuna = optuna
        self._study = optuna.create_study(
            sampler=optuna.samplers.TPESampler(seed=seed, multivariate=True)
        )
        self._left = {p.key: p for p in points}
        self._place = dict(zip(self._left, _positions(points).tolist(), strict=True))
        self._axes: dict[str, Any] = {
            str(axis): optuna.distributions.FloatDistribution(0.0, max(column))
            for axis, column in enumerate(zip(*self._place.values(), strict=True))
        }

    def order(self, n: int) -> list[Candidate]:
        """Return the next `n` points to compile, each the nearest to a new suggestion."""
        chosen: list[Candidate] = []
        while self._left and len(chosen) < n:
            chosen.append(self._nearest(self._left.values()))
            del self._left[chosen[-1].key]
        return chosen

    def revise(self, point: Candidate, predicted_s: float) -> None:
        """Ignore the revised prediction."""
        pass

    def ask(self, ready: Sequence[Candidate]) -> Candidate | None:
        """Return the point nearest to a new suggestion among these, or None if there is none."""
        return self._nearest(ready) if ready else None

    def tell(self, point: Candidate, time_s: float | None) -> None:
        """Add the measured time of a point in seconds to the study; None removes the point."""
        self._left.pop(point.key, None)
        if time_s is None:
            return
        params = dict(zip(self._axes, self._place[point.key], strict=True))
        trial = self._optuna.create_trial(
            params=params, distributions=self._axes, value=math.log(time_s)
        )
        self._study.add_trial(trial)

    def _nearest(self, points: Iterable[Candidate]) -> Candidate:
        trial = self._study.ask(self._axes)
        self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)  # a suggestion only
        wished = [trial.params[axis] for axis in self._axes]
        return min(points, key=lambda p: math.dist(self._place[p.key], wished))
