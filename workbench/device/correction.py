"""Correct the analytic model by a calibration, and choose the config of a launch with it.

log(measured / predicted) of one kernel at one dtype is a Gaussian process (Rasmussen and Williams
2006, chapter 2) over the knobs, the Impl and the sizes. Its mean is the median over all times; far
from every measured size it returns to that. Its four constants were chosen on times of `matmul` on
an H200 (docs/facts.md), where they hardly mattered: the choice was the same for most of 36 sets.

Only times whose sizes are alike in alignment are used: rows that begin at multiples of 16 elements
are loaded in wide words, others are not, and neither tells of the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from workbench.data.stats import median
from workbench.device.calibration import CalibrationTime, calibration_of
from workbench.device.cost_model import guessed
from workbench.device.hardware import DEVICES, Device
from workbench.spec import Impl, Sizes, Spec, values

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

# Prior standard deviations of log(measured / predicted), and reaches of the covariance
OF_SIZES = 0.3  # shared by all configs at the same sizes
OF_CONFIG = 0.2  # of one config; half of its variance is shared by all sizes
STEPS = 2.0  # of a knob, over which the errors of configs are correlated
OCTAVES = 4.0  # of an axis, over which the errors at sizes are correlated
NOISE = 0.02  # times of the first pass differ by 1 to 2 %
ALIGNED = 16  # elements
LEAST_SIZES = 4  # a calibration of fewer sizes corrects nothing
ALIKE = {"bf16": "fp16", "fp16": "bf16"}  # equal rates and bytes on all known devices
CLEAR = 0.02  # a config replaces the default where it is estimated faster by more than this

# predict(device, impl, config, time) returns the model's seconds of a config that was measured
Predict = Callable[[Device, Impl, Any, CalibrationTime], float]


@dataclass(frozen=True)
class SizedConfig:
    """A config of an Impl at certain sizes."""

    impl: Impl
    config: Any
    sizes: Sizes


@dataclass(frozen=True)
class Estimate:
    """A config and the seconds that the corrected model gives it."""

    config: Any
    seconds: float
    device: str = ""  # whose calibration it is


class Correction:
    """The Gaussian process of one kernel at one dtype."""

    def __init__(self, places: Sequence[SizedConfig], logs: Sequence[float]) -> None:
        """Fit to log(measured / predicted) at these places, at least one."""
        import numpy as np

        self._impls = sorted({p.impl.name for p in places})
        self._knobs = sorted({name for p in places for name in p.impl.choices()})
        self._axes = list(places[0].sizes)
        self._configs, self._sizes = self._features(places)
        self._mean = float(median(logs))
        noisy = self._covariance(self._configs, self._sizes) + NOISE**2 * np.eye(len(places))
        self._weights = np.linalg.solve(noisy, np.asarray(logs) - self._mean)

    def logs(self, places: Sequence[SizedConfig]) -> list[float]:
        """Return the expected log(measured / predicted) at these places."""
        covariance = self._covariance(*self._features(places))
        return [float(x) for x in self._mean + covariance @ self._weights]

    def _features(self, places: Sequence[SizedConfig]) -> tuple[Floats, Floats]:
        """Return (places, knobs), in steps of each knob's choices, two Impls one step apart, and
        (places, axes), in octaves."""
        import numpy as np

        rows = []
        for place in places:
            choices, knobs = place.impl.choices(), values(place.config)
            row = [math.sqrt(0.5) * (place.impl.name == name) for name in self._impls]
            row += [_step(choices.get(name, ()), knobs.get(name)) for name in self._knobs]
            rows.append(row)
        octaves = [[math.log2(p.sizes[axis]) for axis in self._axes] for p in places]
        return np.array(rows), np.array(octaves)

    def _covariance(self, configs: Floats, sizes: Floats) -> Floats:
        near = _matern(sizes, self._sizes, OCTAVES)
        alike = _matern(configs, self._configs, STEPS)
        wide = _matern(sizes, self._sizes, 2 * OCTAVES)
        result: Floats = OF_SIZES**2 * near + OF_CONFIG**2 * alike * (1 + wide) / 2
        return result


def _step(choices: Sequence[int], value: int | None) -> float:
    """Return the index of a value among sorted choices, between two of them if it lies there; 0 for
    an Impl without the knob."""
    if value is None or not choices:
        return 0.0
    below = [i for i, choice in enumerate(sorted(choices)) if choice <= value]
    at = below[-1] if below else 0
    return at + (0.5 if sorted(choices)[at] < value else 0.0)


def _matern(left: Floats, right: Floats, reach: float) -> Floats:
    """Return the Matern covariance of 3/2 (ibid., 4.17) between rows, 1 for equal ones."""
    import numpy as np

    square = (left**2).sum(1)[:, None] + (right**2).sum(1)[None] - 2 * left @ right.T
    far = np.sqrt(3 * np.maximum(square, 0.0)) / reach
    result: Floats = (1 + far) * np.exp(-far)
    return result


def is_aligned(spec: Spec, sizes: Sizes) -> bool:
    """Return whether all rows of tensors of two or more axes begin at a multiple of 16 elements."""
    tensors = (*spec.inputs.values(), *spec.outputs.values())
    shapes = (tensor.shape(sizes) for tensor in tensors)
    return all(shape[-1] % ALIGNED == 0 for shape in shapes if len(shape) > 1)


# Kernels of a calibration


@dataclass(frozen=True)
class CalibratedKernel:
    """Times of a kernel at one dtype, at sizes of one alignment, and what corrects a model by
    them."""

    spec: Spec
    places: Sequence[SizedConfig]  # that were measured, without those that are held back
    logs: Sequence[float]  # log(measured / predicted) of each
    correction: Correction

    @property
    def impls(self) -> set[str]:
        """Names of the Impls that were measured."""
        return {place.impl.name for place in self.places}

    def configs(self, impl: Impl) -> list[Any]:
        """Return the configs of an Impl that were measured at any size."""
        return list(dict.fromkeys(p.config for p in self.places if p.impl.name == impl.name))

    def factors(self, places: Sequence[SizedConfig]) -> list[float]:
        """Return the expected ratio of measured to predicted time of each place."""
        return [math.exp(x) for x in self.correction.logs(places)]


def calibrated_kernel(
    times: Sequence[CalibrationTime], spec: Spec, device: Device, aligned: bool, predict: Predict
) -> CalibratedKernel | None:
    """Return a kernel's times at one dtype and what corrects the model by them; None where they are
    of fewer than LEAST_SIZES sizes of this alignment. `predict` gives the model's seconds of a
    measured time. Configs that the kernel no longer has are left out."""
    places, logs = list[SizedConfig](), list[float]()
    for time in times:
        place = sized_config(spec, time)
        if time.held or place is None or is_aligned(spec, time.sizes) != aligned:
            continue
        predicted_s = predict(device, place.impl, place.config, time)
        if 0 < predicted_s < math.inf:
            places.append(place)
            logs.append(math.log(time.median_s / predicted_s))
    if len({tuple(place.sizes.items()) for place in places}) < LEAST_SIZES:
        return None
    return CalibratedKernel(spec, places, logs, Correction(places, logs))


def sized_config(spec: Spec, time: CalibrationTime) -> SizedConfig | None:
    """Return the config of a time and its sizes; None where the kernel has no such Impl, knobs or
    axes any more."""
    impls = (impl for impl in spec.impls if impl.backend == "triton")
    impl = next((impl for impl in impls if impl.name == time.impl), None)
    if impl is None or time.config.keys() != impl.choices().keys():
        return None
    if set(time.sizes) != set(spec.axes):
        return None
    return SizedConfig(impl, impl.config(**time.config), time.sizes)


def left_out(kernel: CalibratedKernel) -> list[float]:
    """Return measured over corrected time of every place, each size corrected by the times at the
    other sizes only."""
    ratios = []
    at = [tuple(place.sizes.items()) for place in kernel.places]
    for sizes in dict.fromkeys(at):
        inside = [i for i, one in enumerate(at) if one == sizes]
        others = [i for i, one in enumerate(at) if one != sizes]
        fitted = Correction([kernel.places[i] for i in others], [kernel.logs[i] for i in others])
        expected = fitted.logs([kernel.places[i] for i in inside])
        ratios += [math.exp(kernel.logs[i] - log) for i, log in zip(inside, expected, strict=True)]
    return ratios


# The kernels of the workbench

KERNELS = "workbench.kernels."  # modules of kernels that a calibration is of

_KNOWN: dict[tuple[object, ...], CalibratedKernel | None] = {}


def kernel_for(
    impl: Impl, device: Device, dtype: str | None, sizes: Sizes, predict: Predict
) -> CalibratedKernel | None:
    """Return what corrects the model for a kernel at sizes like these, kept for later calls; None
    where the device's calibration has nothing of it. Raises CalibrationError."""
    spec, known = impl.spec, calibration_of(device.name)
    if known is None or dtype is None or not impl.launch.__module__.startswith(KERNELS):
        return None
    aligned = is_aligned(spec, sizes)
    at = (known.digest, repr(device), spec.name, dtype, aligned, predict)
    if at not in _KNOWN:
        times = known.of(spec.name, dtype)
        _KNOWN[at] = calibrated_kernel(times, spec, device, aligned, predict)
    return _KNOWN[at]


# Launches


def best_estimate(impl: Impl, device: Device, dtype: str, sizes: Sizes) -> Estimate | None:
    """Return the config with the least corrected time before compiling, or the default, unless
    another is clearly faster.

    The configs are those that were measured for the calibration of the device, or else of one of
    its architecture, in this dtype or the other one of 16 bits. None where the Impl has no
    calibration for sizes like these. Raises CalibrationError.
    """
    source = _calibrated(device)
    if source is None:
        return None
    alike = (kernel_for(impl, source, d, sizes, guessed_by_row) for d in (dtype, ALIKE.get(dtype)))
    kernel = next((k for k in alike if k is not None and impl.name in k.impls), None)
    if kernel is None:
        return None
    estimate = best_of(kernel, impl, device, dtype, sizes)
    return replace(estimate, device=source.name) if estimate else None


def _calibrated(device: Device) -> Device | None:
    """Return the device, or if it has no calibration one of the same architecture that has: its
    ratios of measured to predicted times then correct the model of this one."""
    alike = (d for d in DEVICES.values() if d.limits.arch == device.limits.arch)
    return next((d for d in (device, *alike) if calibration_of(d.name)), None)


def best_of(
    kernel: CalibratedKernel, impl: Impl, device: Device, dtype: str, sizes: Sizes
) -> Estimate | None:
    """Return the config of an Impl with the least corrected time, or the default, as
    `best_estimate` does; `kernel` corrects predictions before compiling. None where no config can
    run at these sizes."""
    default = impl.default(device.limits, dtype, sizes)
    configs = [
        config
        for config in dict.fromkeys((default, *kernel.configs(impl)))
        if impl.rejection_reason(config, device.limits, dtype, sizes) is None
    ]
    if not configs:
        return None
    factors = kernel.factors([SizedConfig(impl, config, sizes) for config in configs])
    guesses = [guessed(impl, config, device, dtype, sizes) for config in configs]
    seconds = [s * factor for s, factor in zip(guesses, factors, strict=True)]
    best = min(range(len(configs)), key=seconds.__getitem__)
    if configs[0] == default and seconds[0] <= (1 + CLEAR) * seconds[best]:
        best = 0
    if not math.isfinite(seconds[best]):
        return None
    return Estimate(configs[best], seconds[best])


def guessed_by_row(device: Device, impl: Impl, config: Any, time: CalibrationTime) -> float:
    """Return the model's seconds, before compiling, of a config that was measured."""
    return guessed(impl, config, device, time.dtype, time.sizes)
