"""Gaussian process over log(time / predicted): what measured times say of the configs that were not
measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from workbench.measurement.candidate import Candidate

Floats = NDArray[np.float64]

NOISE = 0.015  # of log(first-pass time): first-pass times of one binary differ by 1 to 2 %
OFFSET = 1.0  # prior deviation of log(time / predicted) that all points share
# ... and that the points of an Impl share: the model may rank Impls wrongly by 2x. With 0.35 a
# sixth of what one time showed of an Impl was taken for an error of that one config.
IMPL = 1.0
REFIT = 1.5  # a shape is chosen anew when the number of observations has grown by this factor
DOUBT = 2.0  # of log likelihoods: within it another shape is as good as the best
TRUST = 0.2  # prior deviation of the exponent of the prediction, which is 1 beforehand


@dataclass(frozen=True)
class Shape:
    """Covariance of log(time / predicted). All fields but `reach` are prior standard deviations."""

    own: float  # of one point
    reach: float  # steps of a knob over which the errors of points are correlated
    trust: float = TRUST


SHAPES = tuple(Shape(own, reach) for own in (0.05, 0.15, 0.45) for reach in (1.0, 2.0, 4.0))
ALONE = tuple(Shape(own, 0.25) for own in (0.05, 0.15, 0.45))  # neighbours share next to nothing
FIRST = Shape(0.15, 2.0)
# ... of log(prediction once compiled / guess). A reach of one step would be chosen where sizes are
# unaligned, and then next to nothing is known of a config before it is compiled.
COMPILED = tuple(
    Shape(own, reach, 0.5) for own in (0.45, 0.27, 0.15, 0.09, 0.05) for reach in (2.0, 4.0)
)


@dataclass(frozen=True)
class Places:
    """Places of points in knob space: `steps` is (points, axes), `impl` the number of each one's
    Impl, `shared` the prior deviation that the points of an Impl share."""

    steps: Floats
    impl: NDArray[np.int64]
    shared_memory: float

    def select(self, which: Sequence[int]) -> Places:
        """Return the places of these points."""
        return Places(self.steps[which], self.impl[which], self.shared_memory)


def places(points: Sequence[Candidate], shared: float = 0.0) -> Places:
    """Return the places: a knob's index among its values; two Impls are one step apart. Points of
    one of several Impls share an error of the deviation `shared`."""
    names = sorted({name for p in points for name in p.case.config})
    values = {n: sorted({p.case.config[n] for p in points if n in p.case.config}) for n in names}
    impls = sorted({p.case.impl for p in points})
    rows = []
    for point in points:
        knobs = point.case.config
        row = [math.sqrt(0.5) * (point.case.impl == impl) for impl in impls]
        row += [float(values[n].index(knobs[n])) if n in knobs else 0.0 for n in names]
        rows.append(row)
    steps = np.array(rows).reshape(len(points), len(impls) + len(names))
    numbers = np.array([impls.index(p.case.impl) for p in points], dtype=np.int64)
    return Places(steps, numbers, shared if len(impls) > 1 else 0.0)  # one has that of all points


@dataclass(frozen=True)
class Posterior:
    """Normal distribution of every point's log(time), with the covariance of any points."""

    mean: Floats
    variance: Floats
    likelihood: float  # logarithm, up to a constant, of the likelihood of the observations
    explained_part: Floats  # (observations, points): its product with itself was explained by them
    places: Places
    prior_offset: Floats  # prior mean, less its own mean
    shape: Shape

    def covariance(self, which: Sequence[int]) -> Floats:
        """Return the covariance of these points; those without a variance have none."""
        places, centred = self.places.select(which), self.prior_offset[which]
        prior = _covariance(places, places, centred, centred, self.shape)
        part = self.explained_part[:, which]
        open_ = self.variance[which] > 0
        return np.asarray((prior - part.T @ part) * np.outer(open_, open_))


def posterior(places: Places, prior: Floats, seen: Mapping[int, float], shape: Shape) -> Posterior:
    """Return the posterior by Rasmussen and Williams, algorithm 2.1. `prior` is the prior mean and
    `seen` the observed logarithms by point."""
    centred = prior - prior.mean()
    own = OFFSET**2 + places.shared_memory**2 + shape.trust**2 * centred**2 + shape.own**2
    if not seen:
        return Posterior(prior, own, 0.0, np.zeros((0, len(prior))), places, centred, shape)
    at = list(seen)
    residual = np.array(list(seen.values())) - prior[at]
    shift = residual.mean()
    cross = _covariance(places.select(at), places, centred[at], centred, shape)
    lower = np.linalg.cholesky(cross[:, at] + NOISE**2 * np.eye(len(at)))
    scaled = np.linalg.inv(lower) @ np.column_stack([residual - shift, cross])
    weight, explained = scaled[:, 0], scaled[:, 1:]
    return Posterior(
        prior + shift + explained.T @ weight,
        np.maximum(own - (explained**2).sum(axis=0), 1e-8),
        float(-0.5 * weight @ weight - np.log(np.diag(lower)).sum()),
        explained,
        places,
        centred,
        shape,
    )


def _covariance(a: Places, b: Places, a_mean: Floats, b_mean: Floats, shape: Shape) -> Floats:
    """Return the prior covariance of two sets of points. That of neighbours is Matern's of 3/2
    (Rasmussen and Williams, 4.17): compilers have cliffs, and a smoother covariance is
    overconfident beyond them."""
    squares = (a.steps**2).sum(axis=1)[:, None] + (b.steps**2).sum(axis=1)[None, :]
    apart = np.maximum(squares - 2 * a.steps @ b.steps.T, 0.0)
    far = np.sqrt(3 * apart) / shape.reach
    shared = OFFSET**2 + a.shared_memory**2 * (a.impl[:, None] == b.impl[None, :])
    trusted = shape.trust**2 * np.outer(a_mean, b_mean)
    return np.asarray(shared + trusted + shape.own**2 * (1 + far) * np.exp(-far))


def predict_compiled(
    places: Places, guessed: Floats, known: Mapping[int, float], shape: Shape
) -> Posterior:
    """Return the distribution of the logarithm of every point's prediction once it is compiled.
    `known` are those of the compiled ones, without noise. While none is known, nothing is said of
    how guesses err."""
    result = posterior(places, guessed, known, shape)
    if not known:
        return replace(result, variance=np.zeros(len(guessed)))
    at = list(known)
    result.mean[at], result.variance[at] = list(known.values()), 0.0
    return result


def likeliest(
    shapes: Sequence[Shape], places: Places, prior: Floats, seen: Mapping[int, float]
) -> list[Shape]:
    """Return these shapes by their likelihood (ibid., 5.4), the largest first, without those that
    are less likely by DOUBT or more."""
    at = list(seen)
    own = dict(enumerate(seen.values()))  # the likelihood needs the measured points alone
    tried = {s: posterior(places.select(at), prior[at], own, s).likelihood for s in shapes}
    best = max(tried.values())
    return sorted((s for s in tried if tried[s] > best - DOUBT), key=lambda s: -tried[s])


class Fit:
    """The likely ones of some shapes, chosen anew when there are REFIT times as many
    observations."""

    def __init__(self, shapes: Sequence[Shape], first: Shape) -> None:
        """Take `first` while there are fewer than four observations."""
        self._shapes, self._likely, self._fit_count = shapes, [first], 0

    def likely(self, places: Places, prior: Floats, seen: Mapping[int, float]) -> list[Shape]:
        """Return the likely shapes for these observations, the likeliest first."""
        if len(seen) >= max(4, REFIT * self._fit_count):
            self._fit_count = len(seen)
            self._likely = likeliest(self._shapes, places, prior, seen)
        return self._likely


@dataclass(frozen=True)
class Belief:
    """What is believed of every point's log(time): its prediction once compiled, and the error of
    that, which are independent."""

    prior: Posterior
    posterior: Posterior
    timed_configs: Sequence[int]
    others: Sequence[Belief] = ()  # with covariances of other shapes, which are likely too
    chances: dict[float, float] = field(default_factory=dict)  # by share: see `chance_left`

    @cached_property
    def deviation(self) -> Floats:
        """Return the standard deviation of every point."""
        return np.asarray(np.sqrt(self.posterior.variance + self.prior.variance))

    @cached_property
    def gain(self) -> list[float]:
        """Return the expected improvement of every point, in units of the logarithm of the time."""
        mean = self.posterior.mean
        # the least mean of a measured point; the least time is biased low by noise
        best = mean[self.timed_configs].min() if self.timed_configs else mean.min()
        return [float(g) for g in improvement(best, mean, self.deviation)]

    def draw(self, which: Sequence[int], times: int) -> Floats:
        """Return draws of log(time) of these points together: (times, points)."""
        covariance = self.posterior.covariance(which) + self.prior.covariance(which)
        lower = np.linalg.cholesky(covariance + 1e-7 * np.eye(len(which)))  # 0.03 %, for rounding
        normal = np.random.default_rng(0).standard_normal((times, len(which)))
        return np.asarray(self.posterior.mean[which] + normal @ lower.T)


def improvement(best: float, mean: Floats, deviation: Floats) -> Floats:
    """Return the expected improvement on `best` (Jones et al. 1998, equation 15)."""
    z = (best - mean) / deviation
    density = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    return np.asarray(deviation * (z * normal_cdf(z) + density))


def normal_cdf(z: Floats) -> Floats:
    """Return the share of a standard normal distribution that is below each `z`."""
    return np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in z])


def logs(seconds: Sequence[float]) -> Floats:
    """Return the logarithms; the median where there is no prediction."""
    result = np.log(np.asarray(seconds, dtype=float))
    known = np.isfinite(result)
    return np.where(known, result, np.median(result[known]) if known.any() else 0.0)
