"""Rank the configs of a kernel by predicted time before any is compiled.

Resources are those that a config had when it was measured for a calibration, or else the model's
estimates. Where the device's architecture has a calibration of the kernel, the configs are those
that were measured for it and the defaults, and their times are corrected by it; else those of all
Impls take part, as in a sweep of all knobs. Of an Impl with many configs the fastest is searched by
steps of one knob, and of the best Impl of two, from four configs: of 8,028 configs of matmul some
290 are predicted. At ten sizes on each of five devices none of them was over 1 % faster than the
one that it finds, but at three on a MI300X, 18 %; at 1,310 sizes and devices of all kernels none of
the spaces with up to 500 configs had one that was.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Any

from workbench.device.bounds import bound_s
from workbench.device.correction import CalibratedKernel, ModelledConfig, kernels_for
from workbench.device.cost_model import estimate_time
from workbench.device.error_band import ends_of, estimate_band
from workbench.device.hardware import Device
from workbench.spec import Impl, Sizes, Spec, WorkbenchError, sizes_text, values
from workbench.sweeps.full import SWEEP

FIRST = 5  # configs that are named
MANY = 64  # configs of an Impl, beyond which not all are predicted
KNOBS = tuple(SWEEP.vary)


class NotPredicted(WorkbenchError):
    """No time can be predicted before compiling; one sentence says why, and what to do."""


@dataclass(frozen=True)
class PredictedConfig:
    """A config with its predicted time."""

    impl: str  # empty for a function without a Spec
    config: Mapping[str, Any]
    time_s: float
    bound: str  # the name of the largest term of the model
    # within which a measured time is expected; None where the device was never compared
    expected_s: tuple[float, float] | None


@dataclass(frozen=True)
class ConfigRanking:
    """The fastest predicted configs, the best first, of how many, and whose calibration corrected
    them."""

    configs: tuple[PredictedConfig, ...]
    configs_tried: int
    calibrated_by: str = ""


@dataclass(frozen=True)
class _EstimatedConfig:
    impl: Impl
    config: Any
    seconds: float
    bound: Callable[[], str]


def rank_configs(
    spec: Spec, impls: Sequence[Impl], device: Device, dtype: str, sizes: Sizes, word: str = ""
) -> ConfigRanking:
    """Return the fastest predicted configs of these Impls at these sizes. Raises NotPredicted where
    none of them declares `work` or takes the sizes, ValueError where the device lacks a figure, and
    CalibrationError. `word` names the kernel on the command line, its name by default."""
    kernel = next(kernels_for(spec, device, dtype, sizes), None)
    refusals: list[str] = []
    at = _PredictedPlace(device, dtype, sizes, refusals)
    every = at.estimates(impls) if kernel is None else at.correct(impls, kernel)
    if not every:
        raise NotPredicted(_nothing(spec, at, refusals, word or spec.name))
    best = list(_first_distinct(sorted(every, key=lambda one: one.seconds)))
    band = estimate_band(device)
    least_s = bound_s(device, spec.bytes(sizes, dtype), spec.flops(**sizes), dtype)
    configs = tuple(
        PredictedConfig(
            one.impl.name,
            values(one.config),
            one.seconds,
            one.bound(),
            ends_of(band, one.seconds, least_s),
        )
        for one in best
    )
    return ConfigRanking(configs, len(every), kernel.device.name if kernel else "")


def _first_distinct(ordered: Sequence[_EstimatedConfig]) -> Iterator[_EstimatedConfig]:
    """Yield the first configs that the model tells apart. Of configs of an Impl whose times are
    equal to three digits, such as those that differ only in the order of tiles, the first is
    named."""
    apart: dict[tuple[str, str], _EstimatedConfig] = {}
    for one in ordered:
        apart.setdefault((one.impl.name, f"{one.seconds:.3g}"), one)
        if len(apart) == FIRST:
            break
    yield from apart.values()


@dataclass(frozen=True)
class _PredictedPlace:
    """Where configs are to run."""

    device: Device
    dtype: str
    sizes: Sizes
    refusals: list[str]

    def estimates(self, impls: Sequence[Impl]) -> list[_EstimatedConfig]:
        """Return configs that run here by the model, the fastest among them. Raises ValueError
        where the device lacks a figure."""
        spaces = [_Space(self, impl) for impl in impls if impl.work]
        for space in spaces:
            space.search()
        legal = [space for space in spaces if space.best]
        if legal:
            min(legal, key=lambda space: space.seconds(space.best)).search_pairs()
        return [one for space in spaces for one in space.estimates()]

    def estimate(self, impl: Impl, config: Any) -> _EstimatedConfig | None:
        """Return a config with its predicted time; None for one that cannot run here."""
        limits, dtype, sizes = self.device.limits, self.dtype, self.sizes
        if reason := impl.rejection_reason(config, limits, dtype, sizes):
            self.refusals.append(reason)
            return None
        predicted = estimate_time(impl, config, self.device, dtype, sizes)
        assert predicted is not None  # it declares work
        return _EstimatedConfig(impl, config, predicted.predicted_s, lambda: predicted.bound)

    def correct(self, impls: Sequence[Impl], kernel: CalibratedKernel) -> list[_EstimatedConfig]:
        """Return the configs of a calibration that run here, by the corrected model."""
        device, sizes = self.device, self.sizes
        places: list[ModelledConfig] = []
        for impl in impls:
            default = impl.default(device.limits, self.dtype, sizes)
            for config in self._configs(impl, kernel):
                new = config == default or impl.name not in kernel.impls
                resources_of = kernel.estimate_resources if new else kernel.recall_resources
                if (place := resources_of(impl, config, device, sizes)) is not None:
                    places.append(place)
        seconds = kernel.seconds(places, device, self.dtype)
        return [
            _EstimatedConfig(p.impl, p.config, s, lambda p=p: p.predict(device, self.dtype).bound)  # type: ignore[misc]
            for p, s in zip(places, seconds, strict=True)
            if math.isfinite(s)
        ]

    def _configs(self, impl: Impl, kernel: CalibratedKernel) -> Iterator[Any]:
        """Yield the configs of an Impl that can run here: those of a calibration and the default.
        All configs of an Impl that was not measured are corrected by one factor, so the fastest of
        them by the model are enough."""
        limits, dtype, sizes = self.device.limits, self.dtype, self.sizes
        if impl.work is None:
            return
        if impl.name not in kernel.impls:
            space = _Space(self, impl)
            space.search()
            fastest = sorted(space.estimates(), key=lambda one: one.seconds)
            yield from (one.config for one in fastest[:FIRST])
            return
        default = impl.default(limits, dtype, sizes)
        for config in dict.fromkeys((default, *kernel.configs(impl))):
            if (reason := impl.rejection_reason(config, limits, dtype, sizes)) is None:
                yield config
            else:
                self.refusals.append(reason)


class _Space:
    """The configs of an Impl, of which some are predicted."""

    def __init__(self, at: _PredictedPlace, impl: Impl) -> None:
        self._at, self._impl = at, impl
        self._default = impl.default(at.device.limits, at.dtype, at.sizes)
        self._axes = impl.choices(KNOBS)
        self._estimates: dict[Any, _EstimatedConfig | None] = {}

    def seconds(self, config: Any) -> float:
        """Return the predicted time of a config; infinite where it cannot run."""
        if config not in self._estimates:
            self._estimates[config] = self._at.estimate(self._impl, config)
        one = self._estimates[config]
        return one.seconds if one else math.inf

    def estimates(self) -> list[_EstimatedConfig]:
        """Return the configs that were predicted."""
        return [one for one in self._estimates.values() if one]

    @property
    def best(self) -> Any:
        """Return the fastest config so far, or None."""
        one = min(self.estimates(), key=lambda one: one.seconds, default=None)
        return one.config if one else None

    def search(self) -> None:
        """Predict all configs where they are few. Else go from some of them by steps of one knob,
        each to the fastest config that differs by it, until none is faster: from the default by the
        last knobs first. Where it spills, a shorter step of its wide tile may be the fastest config
        of all, which no step from smaller tiles leads to."""
        if math.prod(map(len, self._axes.values())) <= MANY:
            for config in (self._default, *self._impl.space(self._default, KNOBS)):
                self.seconds(config)
            return
        steps = [(name,) for name in self._axes]
        self._descend(self._default, steps[::-1])
        for start in self._starts():
            self._descend(start, steps)

    def search_pairs(self) -> None:
        """Go on from the fastest config by steps of two knobs at once."""
        self._descend(self.best, list(itertools.combinations(self._axes, 2)))

    def _starts(self) -> Iterator[Any]:
        """Yield the configs with the first, the middle and the last choices."""
        for place in (0, 0.5, 1):
            chosen = {name: some[int(place * (len(some) - 1))] for name, some in self._axes.items()}
            yield self._impl.config_of({**values(self._default), **chosen})

    def _descend(self, at: Any, steps: Sequence[tuple[str, ...]]) -> None:
        best, is_better = self.seconds(at), True
        while is_better:
            is_better = False
            for names in steps:
                for choices in itertools.product(*(self._axes[name] for name in names)):
                    changed = dict(zip(names, choices, strict=True))
                    config = self._impl.config_of({**values(at), **changed})
                    if (time_s := self.seconds(config)) < best:
                        best, at, is_better = time_s, config, True


def _nothing(spec: Spec, at: _PredictedPlace, refusals: Sequence[str], word: str) -> str:
    """Return why no config of a kernel has a prediction, and what to do."""
    name, device = spec.name, at.device.name
    if not refusals:
        return (
            f"{name} declares no `work`, by which a time is predicted before compiling; declare "
            f"it, or compile its configs: workbench sweep {quote(word)} --device {device}."
        )
    usual = max(set(refusals), key=refusals.count)
    return (
        f"No config of {name} can take {sizes_text(at.sizes)} in {at.dtype} on {device}: {usual}; "
        "name other sizes with --sizes."
    )
