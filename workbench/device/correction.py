"""Correct the analytic model by a calibration, and choose the config of a launch with it.

log(measured / predicted) of one kernel at one dtype is a Gaussian process (Rasmussen and Williams
2006, chapter 2) over the knobs, the Impl, the sizes and what the model is most often wrong about:
spills, occupancy, rounds of blocks over the cores and registers. Its mean is the median over all
times; far from every measured size it returns to that. Its constants were chosen on the sizes of
nine kernels on an H100 that are not held back, each size left out in turn (docs/facts.md).

Before a config is compiled its resources are those that it had at the nearest measured size at
which its tiles are alike, or else the model's estimates.

Only times whose sizes are alike in alignment are used: rows that begin at multiples of 16 elements
are loaded in wide words, others are not, and neither tells of the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from workbench.data.record import Predicted, Resources, group_by
from workbench.data.stats import median
from workbench.device.bounds import bound_s
from workbench.device.calibration import CalibrationTime, calibration_of
from workbench.device.cost_model import LaunchResources, guesses, predict_launches
from workbench.device.hardware import DEVICES, Device
from workbench.spec import Impl, Limits, Sizes, Spec, Work, values

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

# Prior standard deviations of log(measured / predicted), and reaches of the covariance
SIZES_SD = 0.15  # shared by all configs at the same sizes
IMPL_SD = 0.4  # shared by configs of an Impl with the same resources
CONFIG_SD = 0.3  # of one config
# Half of the variance of an Impl and of a config is shared by all sizes.
STEPS = 1.5  # of a knob, over which the errors of configs are correlated
OCTAVES = 3.0  # of an axis, over which the errors at sizes are correlated
# Octaves of spilled bytes, of occupancy and of rounds, and registers, over which they are
SPILLS, OCCUPANCY, ROUNDS, REGISTERS = 8.0, 2.0, 6.0, 128.0
NOISE = 0.03  # times of the first pass differ by 1 to 2 %
ALIGNED = 16  # elements
LEAST_SIZES = 4  # a calibration of fewer sizes corrects nothing
ALIKE = {"bf16": "fp16", "fp16": "bf16"}  # equal rates and bytes on all known devices
CLEAR = 0.05  # a config replaces the default where it is estimated faster by more than this


@dataclass(frozen=True)
class SizedConfig:
    """A config of an Impl at certain sizes."""

    impl: Impl
    config: Any
    sizes: Sizes


@dataclass(frozen=True)
class ModelledConfig(SizedConfig):
    """A config with the resources of its launches: of its machine code, or estimated."""

    resources: Resources  # of the largest launch
    launches: int = 1
    each: tuple[Resources, ...] = ()  # of every launch in order, if there are several

    def predict(self, device: Device, dtype: str) -> Predicted:
        """Return the model's time. Raises ValueError as `predict_launches` does."""
        impl, sizes = self.impl, self.sizes
        return predict_launches(
            device,
            impl.work_of(self.config, device.limits, dtype, sizes),
            LaunchResources(self.resources, self.launches, self.each),
            dtype=dtype,
            flops=impl.spec.flops(**sizes),
            bytes_=impl.spec.bytes(sizes, dtype),
            stages=getattr(self.config, "num_stages", 1),
        )

    def seconds(self, device: Device, dtype: str) -> float:
        """Return the seconds that the model predicts; infinite where it cannot."""
        try:
            return self.predict(device, dtype).predicted_s
        except Exception:  # the device lacks a figure, or the kernel's own `work` failed
            return math.inf


@dataclass(frozen=True)
class Estimate:
    """A config and the seconds that the corrected model gives it."""

    config: Any
    seconds: float
    device: str = ""  # whose calibration it is


class Correction:
    """The Gaussian process of one kernel at one dtype, on a device with these limits."""

    def __init__(
        self, limits: Limits, places: Sequence[ModelledConfig], logs: Sequence[float]
    ) -> None:
        """Fit to log(measured / predicted) at these places, at least one."""
        import numpy as np

        self._limits = limits
        self._impls = sorted({p.impl.name for p in places})
        self._knobs = sorted({name for p in places for name in p.impl.choices()})
        self._axes = list(places[0].sizes)
        self._steps: dict[tuple[str, Any], list[float]] = {}  # of the knobs, by Impl and config
        self._data = self._features(places)
        self._mean = float(median(logs))
        noisy = self._covariance(self._data) + NOISE**2 * np.eye(len(places))
        self._weights = np.linalg.solve(noisy, np.asarray(logs) - self._mean)

    def logs(self, places: Sequence[ModelledConfig]) -> list[float]:
        """Return the expected log(measured / predicted) at these places."""
        covariance = self._covariance(self._features(places))
        return [float(x) for x in self._mean + covariance @ self._weights]

    def _features(self, places: Sequence[ModelledConfig]) -> _Features:
        import numpy as np

        impls, knobs, octaves, created_rows = [], [], [], []
        index = {name: i for i, name in enumerate(self._impls)}
        for place in places:
            impls.append(index.get(place.impl.name, -1))
            knobs.append(self._knob_steps(place))
            octaves.append([math.log2(place.sizes[axis]) / OCTAVES for axis in self._axes])
            created_rows.append(_resources(place.resources, self._limits))
        return _Features(*map(np.array, (impls, knobs, octaves, created_rows)))

    def _knob_steps(self, place: ModelledConfig) -> list[float]:
        """Return the step of each knob among its choices, in units of its reach."""
        at = place.impl.name, place.config
        if at not in self._steps:
            choices, config = place.impl.choices(), values(place.config)
            steps = [_step(choices.get(n, ()), config.get(n)) for n in self._knobs]
            self._steps[at] = [step / STEPS for step in steps]
        return self._steps[at]

    def _covariance(self, new: _Features) -> Floats:
        """Return the covariance of places with those that were measured."""
        import numpy as np

        data, octaves = self._data, new.octaves
        if (octaves == octaves[:1]).all():  # configs at the same sizes
            octaves = octaves[:1]
        near = _matern(octaves, data.octaves)
        result = _matern(new.writes, data.writes)
        result *= IMPL_SD**2
        equal = _matern(np.hstack([new.knobs, new.writes]), np.hstack([data.knobs, data.writes]))
        equal *= CONFIG_SD**2
        result += equal
        result *= (1 + near) / 2
        result *= new.impls[:, None] == data.impls[None]
        result += SIZES_SD**2 * near
        return result


@dataclass(frozen=True)
class _Features:
    """Places as numbers: each Impl's index (places,), -1 for one that was not measured; steps of
    the knobs (places, knobs), octaves of the axes (places, axes) and resources (places, 4), all in
    units of their reaches."""

    impls: Floats
    knobs: Floats
    octaves: Floats
    writes: Floats


def _resources(resources: Resources, limits: Limits) -> list[float]:
    blocks = max(1, resources.blocks_per_core)
    return [
        math.log2(1 + resources.spill_bytes) / SPILLS,
        math.log2(blocks * resources.threads) / OCCUPANCY,
        math.log2(max(1, resources.programs) / (limits.cores * blocks)) / ROUNDS,
        resources.registers / REGISTERS,
    ]


def _step(choices: Sequence[int], value: int | None) -> float:
    """Return the index of a value among sorted choices, between two of them if it lies there; 0 for
    an Impl without the knob."""
    if value is None or not choices:
        return 0.0
    below = [i for i, choice in enumerate(sorted(choices)) if choice <= value]
    at = below[-1] if below else 0
    return at + (0.5 if sorted(choices)[at] < value else 0.0)


def _matern(left: Floats, right: Floats) -> Floats:
    """Return the Matern covariance of 3/2 (ibid., 4.17) between rows, 1 for equal ones."""
    import numpy as np

    far = left @ (-2 * right.T)  # the square of the distance, in place: it has a million elements
    far += (left**2).sum(1)[:, None]
    far += (right**2).sum(1)
    np.maximum(far, 0.0, out=far)
    far *= 3
    np.sqrt(far, out=far)
    result: Floats = np.exp(-far)
    far += 1
    result *= far
    return result


def is_aligned(spec: Spec, sizes: Sizes) -> bool:
    """Return whether all rows of tensors of two or more axes begin at a multiple of 16 elements."""
    tensors = (*spec.inputs.values(), *spec.outputs.values())
    shapes = (tensor.shape(sizes) for tensor in tensors)
    return all(shape[-1] % ALIGNED == 0 for shape in shapes if len(shape) > 1)


# Kernels of a calibration


class CalibratedKernel:
    """Times of a kernel at one dtype and one alignment, and what corrects a model by them."""

    def __init__(
        self,
        spec: Spec,
        device: Device,
        dtype: str,
        places: Sequence[ModelledConfig],
        logs: Sequence[float],
    ) -> None:
        """Fit to log(measured / predicted) of places that were measured on the device."""
        self.spec, self.device, self.dtype = spec, device, dtype
        self.places, self.logs = places, logs
        self.correction = Correction(device.limits, places, logs)
        self._config_places = group_by(places, lambda place: (place.impl.name, place.config))
        self._tiles: dict[int, object] = {}
        self.impls = {place.impl.name for place in places}  # that were measured

    def configs(self, impl: Impl) -> list[Any]:
        """Return the configs of an Impl that were measured at any size."""
        return [config for name, config in self._config_places if name == impl.name]

    def factors(self, places: Sequence[ModelledConfig]) -> list[float]:
        """Return the expected ratio of measured to predicted time of each place."""
        return [math.exp(x) for x in self.correction.logs(places)]

    def seconds(self, places: Sequence[ModelledConfig], device: Device, dtype: str) -> list[float]:
        """Return the corrected seconds of each place on a device, none of them below the bound of
        the call."""
        if not places:
            return []
        sizes = places[0].sizes
        least_s = bound_s(device, self.spec.bytes(sizes, dtype), self.spec.flops(**sizes), dtype)
        predicted = [place.seconds(device, dtype) for place in places]
        each = zip(predicted, self.factors(places), strict=True)
        return [max(least_s, factor * seconds) for seconds, factor in each]

    def estimate_resources(
        self, impl: Impl, config: Any, device: Device, sizes: Sizes
    ) -> ModelledConfig | None:
        """Return a config with the resources that it is remembered by, or else with those that the
        model expects; None where it expects nothing."""
        recalled = self.recall_resources(impl, config, device, sizes)
        return recalled or guessed_config(impl, config, device, self.dtype, sizes)

    def recall_resources(
        self, impl: Impl, config: Any, device: Device, sizes: Sizes
    ) -> ModelledConfig | None:
        """Return a config with the resources that it had at the nearest measured size at which its
        tiles are padded to the same powers of two, so that its code is most likely the same; None
        where it was not measured at such a size."""
        at = (impl.name, config)
        if at not in self._config_places:
            return None
        works = impl.work_of(config, device.limits, self.dtype, sizes) or ()
        tile = _pad(works)
        places = [place for place in self._config_places[at] if self._tile(place) == tile]
        if not places:
            return None
        nearest = min(places, key=lambda place: _octaves(place.sizes, sizes))
        return _move(nearest, sizes, works, self._works(nearest))

    def _works(self, place: ModelledConfig) -> tuple[Work, ...]:
        limits = self.device.limits
        return place.impl.work_of(place.config, limits, self.dtype, place.sizes) or ()

    def _tile(self, place: ModelledConfig) -> object:
        at = id(place)  # of `places`, which this object holds
        if at not in self._tiles:
            self._tiles[at] = _pad(self._works(place))
        return self._tiles[at]


def _pad(works: Sequence[Work]) -> object:
    """Return the products and the bytes of a tile of each launch, padded to powers of two."""
    return [
        (tuple(map(_power_of_two, work.dot or ())), _power_of_two(work.load_bytes))
        for work in works
    ]


def _power_of_two(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()


def _octaves(left: Sizes, right: Sizes) -> float:
    """Return how far apart sizes are; code is made for short axes, so these count more."""
    return sum((math.log2(left[n] / right[n]) / math.log2(2 * right[n])) ** 2 for n in left)


def _move(
    place: ModelledConfig, sizes: Sizes, works: Sequence[Work], before: Sequence[Work]
) -> ModelledConfig:
    """Return a measured place at other sizes: a program for each tile, unless there were fewer
    programs than tiles. `works` are of the launches there, `before` of those that were measured."""
    resources = place.each or (place.resources,)
    if not len(works) == len(resources) == len(before):
        resources, works, before = (place.resources,), works[:1], before[:1]
    each = tuple(
        _launch(one, now.tiles if one.programs >= old.tiles else min(one.programs, now.tiles))
        for one, now, old in zip(resources, works, before, strict=True)
    )
    largest = each[resources.index(place.resources)] if place.resources in resources else each[0]
    every = each if len(each) == place.launches > 1 else ()
    return ModelledConfig(place.impl, place.config, sizes, largest, place.launches, every)


def _launch(resources: Resources, programs: int) -> Resources:
    """Return the resources of a launch of so many programs."""
    if resources.programs == programs:
        return resources
    launch = copy(resources)  # a third of the time of `replace`, which a call needs 1,000 times
    launch.__dict__["programs"] = programs
    return launch


def calibrated_kernel(
    times: Sequence[CalibrationTime], spec: Spec, device: Device, aligned: bool
) -> CalibratedKernel | None:
    """Return times of a kernel at one dtype and what corrects the model by them; None where they
    are of fewer than LEAST_SIZES sizes of this alignment. Configs that the kernel no longer has are
    left out."""
    places, logs = list[ModelledConfig](), list[float]()
    for time in times:
        place = measured_config(spec, time)
        if place is None or is_aligned(spec, time.sizes) != aligned:
            continue
        predicted_s = place.seconds(device, time.dtype)
        if 0 < predicted_s < math.inf:
            places.append(place)
            logs.append(math.log(time.median_s / predicted_s))
    if len({tuple(place.sizes.items()) for place in places}) < LEAST_SIZES:
        return None
    return CalibratedKernel(spec, device, times[0].dtype, places, logs)


def measured_config(spec: Spec, time: CalibrationTime) -> ModelledConfig | None:
    """Return the config of a time with its sizes and resources; None where the kernel has no such
    Impl, knobs or axes any more."""
    impls = (impl for impl in spec.impls if impl.backend == "triton")
    impl = next((impl for impl in impls if impl.name == time.impl), None)
    if impl is None or time.config.keys() != impl.choices().keys():
        return None
    if set(time.sizes) != set(spec.axes):
        return None
    config = impl.config(**time.config)
    return ModelledConfig(impl, config, time.sizes, time.resources, time.launches, time.each)


def guessed_config(
    impl: Impl, config: Any, device: Device, dtype: str, sizes: Sizes
) -> ModelledConfig | None:
    """Return a config with the resources that the model expects of it uncompiled, or None."""
    each = guesses(impl, config, device, dtype, sizes)
    if not each:
        return None
    largest = max(each, key=lambda known: known.programs)
    return ModelledConfig(impl, config, sizes, largest, len(each), each if len(each) > 1 else ())


def left_out(kernel: CalibratedKernel) -> list[float]:
    """Return measured over corrected time of every place, each size corrected by the times at the
    other sizes only."""
    ratios = []
    limits, places, logs = kernel.device.limits, kernel.places, kernel.logs
    at = [tuple(place.sizes.items()) for place in places]
    for sizes in dict.fromkeys(at):
        inside = [i for i, one in enumerate(at) if one == sizes]
        others = [i for i, one in enumerate(at) if one != sizes]
        fitted = Correction(limits, [places[i] for i in others], [logs[i] for i in others])
        expected = fitted.logs([places[i] for i in inside])
        ratios += [math.exp(logs[i] - log) for i, log in zip(inside, expected, strict=True)]
    return ratios


# The kernels of the workbench

KERNELS = "workbench.kernels."  # modules of kernels that a calibration is of


def is_shipped(spec: Spec) -> bool:
    """Return whether an Impl of a Spec comes with the workbench: only these have stored times."""
    return any(impl.launch.__module__.startswith(KERNELS) for impl in spec.impls)


_KERNELS: dict[tuple[object, ...], CalibratedKernel | None] = {}


def kernels_for(
    spec: Spec, device: Device, dtype: str | None, sizes: Sizes
) -> Iterator[CalibratedKernel]:
    """Yield what corrects the model for a kernel at sizes like these, from all of its times: of the
    device's calibration, then of those of devices of the same architecture, in this dtype and the
    other one of 16 bits. Each is kept for later calls. Raises CalibrationError."""
    if dtype is None or not is_shipped(spec):
        return
    aligned = is_aligned(spec, sizes)
    for source in same_architecture(device):
        if (calibration := calibration_of(source.name, spec.name)) is None:
            continue
        for one in (dtype, ALIKE.get(dtype)):
            at = (calibration.digest, repr(source), spec.name, one, aligned)
            if at not in _KERNELS:
                times = calibration.times_of(spec.name, one or "")
                _KERNELS[at] = calibrated_kernel(times, spec, source, aligned)
            if (kernel := _KERNELS[at]) is not None:
                yield kernel


def same_architecture(device: Device) -> Iterator[Device]:
    """Yield the device and others of its architecture: their ratios of measured to predicted times
    correct the model of this one, too. A file of a device is read when its turn comes, 0.7 ms."""
    arch, own = device.limits.arch, DEVICES.get(device.name, device)
    yield own if own.limits.arch == arch else device
    for name in DEVICES:
        if name != device.name and (other := DEVICES[name]).limits.arch == arch:
            yield other


# Launches


def best_estimate(impl: Impl, device: Device, dtype: str, sizes: Sizes) -> Estimate | None:
    """Return the config with the least corrected time before compiling, or the default, unless
    another is clearly faster.

    The configs are those that were measured for the calibration of the device, or else of one of
    its architecture, in this dtype or the other one of 16 bits. None where the Impl has no
    calibration for sizes like these. Raises CalibrationError.
    """
    kernels = kernels_for(impl.spec, device, dtype, sizes)
    kernel = next((kernel for kernel in kernels if impl.name in kernel.impls), None)
    if kernel is None:
        return None
    estimate = best_of(kernel, impl, device, dtype, sizes)
    return replace(estimate, device=kernel.device.name) if estimate else None


def best_of(
    kernel: CalibratedKernel, impl: Impl, device: Device, dtype: str, sizes: Sizes
) -> Estimate | None:
    """Return the config of an Impl with the least corrected time, or the default, as
    `best_estimate` does. None where no config can run at these sizes."""
    default = impl.default(device.limits, dtype, sizes)
    takes = {default: kernel.estimate_resources} | dict.fromkeys(
        (c for c in kernel.configs(impl) if c != default), kernel.recall_resources
    )
    places = [
        place
        for config, resources_of in takes.items()
        if impl.rejection_reason(config, device.limits, dtype, sizes) is None
        and (place := resources_of(impl, config, device, sizes)) is not None
    ]
    if not places:
        return None
    seconds = kernel.seconds(places, device, dtype)
    best = min(range(len(places)), key=seconds.__getitem__)
    if places[0].config == default and seconds[0] <= (1 + CLEAR) * seconds[best]:
        best = 0
    if not math.isfinite(seconds[best]):
        return None
    return Estimate(places[best].config, seconds[best])
