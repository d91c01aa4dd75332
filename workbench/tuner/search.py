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
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from workbench.measurement.candidate import Candidate
from workbench.spec import WorkbenchError

if TYPE_CHECKING:
    from workbench.tuner.surrogate import Belief, Posterior


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

    def is_spent(self, elapsed_s: float, measured: int) -> bool:
        """Return whether nothing more should be measured. Duplicates of a measured binary do not
        count."""
        return elapsed_s >= self.seconds or measured >= self.configs


@dataclass(frozen=True)
class StopRule:
    """When to stop a search in which going on cannot pay: `least` configs were timed, and the
    probability that another one is faster by more than `share` is at most `chance`."""

    chance: float = 0.05
    share: float = 0.01
    # after fewer the surrogate is sometimes sure of too much: with 64, one of 80 replays of several
    # Impls stopped 5 % off the best (`benchmarks/search.py --stop`)
    least: int = 96


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

    def chance_left(self, share: float) -> float:
        """Return the probability that an untried point is faster than the best by more than
        `share`; 1 where the strategy does not know."""


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
        points = self._points[self._next : self._next + max(0, n)]
        self._next += len(points)
        return points

    def revise(self, point: Candidate, predicted_s: float) -> None:
        """Ignore the revised prediction."""
        pass

    def ask(self, ready: Sequence[Candidate]) -> Candidate | None:
        """Return the first of these points in the fixed order, or None if there is none."""
        return min(ready, key=lambda p: self._rank[p.key], default=None)

    def tell(self, point: Candidate, time_s: float | None) -> None:
        """Ignore the measured time."""
        pass

    def chance_left(self, share: float) -> float:
        """Return 1: the order says nothing of times."""
        return 1.0


LARGEST = 4096  # points that the surrogate holds; those predicted slower come after, in order
# A first pass stops at three times the best, so larger ratios are not known. Predictions do not:
# held down to that, configs of ten times the best came before others that are near it.
SLOWEST = 3.0
LEARN = 8  # the model is updated when there are more new times than 1/8 of all

# Of the chance that an untried point is better: so many of the most promising ones are drawn
# together, so often, with so many of the best timed ones: 15 ms of a CPU, with 1050 points.
JOINT, DRAWS, RIVALS = 256, 1024, 16


class ModelSearch:
    """The analytic prediction, corrected by measured times.

    log(time) is a Gaussian process (Rasmussen and Williams 2006, chapter 2): its mean is the
    prediction to a power near 1, times a factor common to all and one to each Impl, and its
    covariance correlates the errors of neighbours in knob space. The next point is the one of the
    largest expected improvement (Jones et al. 1998), so points unlike all measured ones are tried
    too; but the best of each Impl comes first. Width and reach of the covariance are those of the
    largest likelihood (ibid., 5.4) on a grid.
    """

    def __init__(self, points: Sequence[Candidate], seed: int, slowest: float = SLOWEST) -> None:
        """Search these points by times that are known up to `slowest` times the best."""
        from workbench.tuner import surrogate

        self._surrogate = surrogate
        self._slowest = slowest
        ranked = random.Random(seed).sample(list(points), len(points))  # ties in any order
        ranked.sort(key=lambda p: p.predicted_s)
        self._points = ranked
        self._index = {p.key: i for i, p in enumerate(ranked[:LARGEST])}
        self._tail = Fixed(ranked[LARGEST:])
        self._log_guesses = surrogate.logs([p.predicted_s for p in ranked[:LARGEST]])
        self._revised_s: dict[int, float] = {}
        self._given_points: set[int] = set()
        self._times: dict[int, float] = {}  # seconds
        self._failed_points: set[int] = set()
        self._belief: Belief | None = None
        self._news = 0  # results since the belief was computed
        errors, guesses, shared = (
            surrogate.SHAPES + surrogate.ALONE,
            surrogate.COMPILED,
            surrogate.IMPL,
        )
        if math.isinf(slowest):  # nothing is measured: these find the top config sooner
            errors, guesses, shared = surrogate.SHAPES, surrogate.COMPILED[:1], 0.0
        self._places = surrogate.places(ranked[:LARGEST], shared)
        self._errors = surrogate.Fit(errors, surrogate.FIRST)
        self._guesses = surrogate.Fit(guesses, surrogate.COMPILED[0])

    def order(self, n: int) -> list[Candidate]:
        """Return the next `n` points to compile: the best of each Impl that has none yet, then
        those of the largest expected improvement."""
        if len(self._given_points) == len(self._index):
            return self._tail.order(n)
        gain = self._update_belief().gain
        gone = self._given_points | self._failed_points | self._times.keys()
        left = [i for i in range(len(self._index)) if i not in gone]
        leaders = self._leaders(left, gone)
        best = heapq.nlargest(n, left, key=lambda i: (i in leaders, gain[i]))
        self._given_points.update(best)
        return [self._points[i] for i in best] + self._tail.order(max(0, n) - len(best))

    def revise(self, point: Candidate, predicted_s: float) -> None:
        """Store the prediction of a compiled point in seconds, which replaces the guess before
        compiling."""
        if point.key in self._index:
            self._revised_s[self._index[point.key]] = predicted_s
            self._news += not self._times  # later, only a new time triggers an update

    def ask(self, ready: Sequence[Candidate]) -> Candidate | None:
        """Return the point to measure next among these, or None if there is none: that of the
        largest expected improvement, those of an Impl that was not tried before all others."""
        known = [self._index[p.key] for p in ready if p.key in self._index]
        if not known:
            return self._tail.ask(ready)
        gain, tried = self._update_belief().gain, self._impls(self._tried_points)
        impl = self._places.impl
        return self._points[max(known, key=lambda i: (impl[i] not in tried, gain[i]))]

    def tell(self, point: Candidate, time_s: float | None) -> None:
        """Store the measured time of a point in seconds, or None if it failed."""
        if (i := self._index.get(point.key)) is None:
            return
        if time_s is None:
            self._failed_points.add(i)
            return
        self._times[i] = time_s
        self._news += 1

    def chance_left(self, share: float = 0.01) -> float:
        """Return the probability that a point which is neither timed nor failed is faster than the
        best of the timed ones by more than `share`. It is 1 until every Impl was tried and while no
        point was compiled, since nothing is known then of how guesses err; also where there are
        more points than the surrogate holds."""
        tried = self._tried_points
        left = [i for i in range(len(self._index)) if i not in tried]
        if not left and len(self._points) == len(self._index):
            return 0.0
        impls = self._impls(self._index.values())
        knows = self._times and self._revised_s and self._impls(tried) == impls
        if not knows or len(self._points) > len(self._index):
            return 1.0
        belief = self._update_belief()
        if share not in belief.chances:
            # the largest of the likely shapes: a wrong one may be sure of too much
            every = [self._chance(b, left, share) for b in (belief, *belief.others)]
            belief.chances[share] = max(every)
        return belief.chances[share]

    def _chance(self, belief: Belief, left: Sequence[int], share: float) -> float:
        """Return `chance_left` by draws of the times of the most promising points together: their
        errors are correlated, so neither a sum nor a product of single chances would do."""
        import numpy as np

        mean, points = belief.posterior.mean, self._points
        best = heapq.nsmallest(RIVALS, self._times, key=lambda i: (mean[i], points[i].key))
        bar = mean[best[0]] + math.log1p(-share)
        single = self._surrogate.normal_cdf((bar - mean) / belief.deviation)
        likely = heapq.nlargest(JOINT, left, key=lambda i: (single[i], points[i].key))
        # sorted by key, so that the draws do not depend on the order of the candidates
        at = sorted([*best, *likely], key=lambda i: points[i].key)
        drawn = belief.draw(at, DRAWS)
        timed = np.isin(at, best)
        faster = drawn[:, ~timed].min(axis=1) < drawn[:, timed].min(axis=1) + math.log1p(-share)
        return float(faster.mean())

    @property
    def _tried_points(self) -> set[int]:
        return self._failed_points | self._times.keys()

    def _impls(self, of: Iterable[int]) -> set[int]:
        return {int(self._places.impl[i]) for i in of}

    def _leaders(self, left: Sequence[int], gone: set[int]) -> set[int]:
        """Return the point predicted fastest of each Impl that no point of is gone."""
        led, result = self._impls(gone), set()
        for i in left:  # fastest first
            if (impl := int(self._places.impl[i])) not in led:
                led.add(impl)
                result.add(i)
        return result

    def _update_belief(self) -> Belief:
        if self._belief is None or self._news > len(self._times) // LEARN:
            self._belief, self._news = self._compute(), 0
        return self._belief

    def _compute(self) -> Belief:
        import numpy as np

        guessed = self._prior()
        least = np.full(len(self._impls(self._index.values())), np.inf)
        np.minimum.at(least, self._places.impl, guessed.mean)
        mean = np.minimum(guessed.mean, least[self._places.impl] + math.log(self._slowest))
        best_s = min(self._times.values(), default=math.inf)
        times = {i: math.log(min(t, self._slowest * best_s)) for i, t in self._times.items()}
        best, *others = (
            self._surrogate.Belief(
                guessed, self._surrogate.posterior(self._places, mean, times, shape), list(times)
            )
            for shape in self._errors.likely(self._places, mean, times)
        )
        return replace(best, others=others)

    def _prior(self) -> Posterior:
        """Return the distribution of log(time) before any is measured. Corrections of the
        prediction by compiling are extended to neighbours that are not compiled: they too may spill
        or load in narrow words."""
        known = {i: math.log(s) for i, s in self._revised_s.items() if math.isfinite(s)}
        likely = self._guesses.likely(self._places, self._log_guesses, known)
        return self._surrogate.predict_compiled(self._places, self._log_guesses, known, likely[0])


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
        from workbench.tuner.surrogate import places

        self._optuna = optuna
        self._study = optuna.create_study(
            sampler=optuna.samplers.TPESampler(seed=seed, multivariate=True)
        )
        self._left = {p.key: p for p in points}
        self._place = dict(zip(self._left, places(points).steps.tolist(), strict=True))
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

    def chance_left(self, share: float) -> float:
        """Return 1: the study gives no probability."""
        return 1.0

    def _nearest(self, points: Iterable[Candidate]) -> Candidate:
        trial = self._study.ask(self._axes)
        self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)  # a suggestion only
        wished = [trial.params[axis] for axis in self._axes]
        return min(points, key=lambda p: math.dist(self._place[p.key], wished))
