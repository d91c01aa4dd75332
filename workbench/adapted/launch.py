"""Choose the config of a launch without one: the one tuned for this device, or the one that its
calibration expects to be the fastest at these sizes, or the default, or the nearest to it that fits
them; and log the choice in one line.

The line is logged at level INFO by the logger `workbench`. If the program has not set up logging,
it goes to standard error; `logging.getLogger("workbench").setLevel("WARNING")` silences it.
"""

from __future__ import annotations

import logging
import sys
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from workbench.data.tuned_cache import (
    LOOKED_UP,
    Entry,
    Tuned,
    TunedError,
    damage_text,
    default_path,
)
from workbench.data.units import rough
from workbench.device.calibration import CalibrationError
from workbench.device.correction import best_estimate
from workbench.device.hardware import DEVICES, Device
from workbench.dsl import CORES_OF_A_CPU, pretended
from workbench.measurement.inputs import torch_dtype
from workbench.spec import (
    AUTO,
    ITEMSIZE,
    Impl,
    Limits,
    Sizes,
    Spec,
    label,
    sizes_text,
    solved,
    values,
)
from workbench.tuner import tuned

LOGGER = logging.getLogger("workbench")
MOST = 4096  # shapes kept per Impl, about 0.5 KB each, as a program may use ever new shapes


def choose(impl: Impl, inputs: Sequence[Any], at: Any) -> Any:
    """Return the config for these inputs, which are tensors; it is kept in `impl.chosen[at]`."""
    config = _choice(impl, inputs)
    if not any(choices is impl.chosen for choices in LOOKED_UP):
        LOOKED_UP.append(impl.chosen)
    if len(impl.chosen) >= MOST:
        impl.chosen.clear()
    impl.chosen[at] = config
    return config


def _choice(impl: Impl, inputs: Sequence[Any]) -> Any:
    """Return the config. Logs it, unless no GPU takes part: on a CPU, in the interpreter, or on
    meta tensors."""
    from workbench.dsl import INTERPRETED

    place = inputs[0].device
    if INTERPRETED or getattr(place, "type", None) != "cuda":  # torch's name for AMD's, too
        return resolved(impl, impl.config(), inputs)
    device = device_of(place)
    dtype, sizes = dtype_of(impl.spec, inputs), sizes_of(impl.spec, inputs)
    if dtype is None or sizes is None:
        what = "dtype" if dtype is None else "sizes"
        failure_of = f"the inputs do not say which {what} of {impl.spec.name} this is"
        declared = impl.declared(device.limits, dtype or "")
        return log_choice(impl, resolved(impl, declared, inputs), f"the default; {failure_of}")
    choice = config_at(impl, device, dtype, sizes)
    if choice.unread:
        LOGGER.warning("%s: %s: %s", impl.title, label(vars(choice.config)), choice.text)
        return choice.config
    return log_choice(impl, choice.config, choice.text)


@dataclass(frozen=True)
class ConfigChoice:
    """The config of an Impl for one device, dtype and sizes, and where it comes from."""

    config: Any
    text: str
    tuned_s: float | None = None  # the time that was measured with it, in seconds; None if default
    unread: bool = False  # the tuned cache or the calibration could not be read
    expected_s: float | None = None  # by the calibration of the device


def config_at(impl: Impl, device: Device, dtype: str, sizes: Sizes) -> ConfigChoice:
    """Return the config that was tuned for these sizes; else that of the device's calibration; else
    the default, or if that is refused the nearest to it that is not."""
    default, name = tuned_or_default(impl, device.limits, dtype, sizes)
    try:
        entry = _tuned(default_path()).find(
            impl.spec.name,
            impl.name,
            sizes,
            dtype,
            device.name,
            _versions(),
            tuned.sources_of(impl),
        )
    except TunedError as error:
        return ConfigChoice(default, f"{name}; {error}", unread=True)
    if entry is None:
        return _calibrated(impl, device, dtype, sizes, ConfigChoice(default, name))
    config, failure = fitting(impl, entry, device.limits, sizes)
    since = f"tuned {entry.at[:10]} on {device.name} for {sizes_text(entry.sizes)}"
    if config is None:
        return ConfigChoice(default, f"{name}; the one {since} is refused: {failure}")
    if dict(entry.sizes) != dict(sizes):
        since += f", the nearest to {sizes_text(sizes)}"
    return ConfigChoice(config, since, entry.time_s)


def _calibrated(
    impl: Impl, device: Device, dtype: str, sizes: Sizes, default: ConfigChoice
) -> ConfigChoice:
    """Return the config that the calibration of the device expects to be the fastest at these
    sizes; the default where it has nothing of the Impl at sizes like these."""
    nothing = f"nothing tuned for {sizes_text(sizes)} in {dtype} on {device.name}"
    try:
        estimate = best_estimate(impl, device, dtype, sizes)
    except CalibrationError as error:
        return replace(default, text=f"{default.text}; {error}", unread=True)
    if estimate is None:
        return replace(default, text=f"{default.text}; {nothing}")
    name = default.text if estimate.config == default.config else "chosen for these sizes"
    source = f"the calibration of {estimate.device}"
    text = f"{name} by {source}, which expects {rough(estimate.seconds)}; {nothing}"
    return ConfigChoice(estimate.config, text, expected_s=estimate.seconds)


def resolved(impl: Impl, config: Any, inputs: Sequence[Any]) -> Any:
    """Return the config with a number in place of every AUTO, by the inputs of a launch.

    If no GPU holds them, the limits are those of the device that is compiled for, or in the
    interpreter those of an H200 with the cores of `dsl.CORES_OF_A_CPU`. Raises ValueError where the
    inputs do not determine the sizes.
    """
    if not impl.is_open(config):
        return config
    dtype, sizes = dtype_of(impl.spec, inputs), sizes_of(impl.spec, inputs)
    if dtype is None or sizes is None:
        open_ = ", ".join(n for n in impl.auto if getattr(config, n) == AUTO)
        raise ValueError(
            f"{impl.title}: the inputs do not say which sizes of {impl.spec.name} these are, and "
            f"{open_} depends on them; name it in the config"
        )
    return impl.resolved(config, limits_of(inputs[0].device), dtype, sizes)


def limits_of(place: Any) -> Limits:
    """Return the limits of the GPU `place`. If it is none, return those of the device that is
    compiled for, or in the interpreter those of an H200 with the cores of `dsl.CORES_OF_A_CPU`."""
    if place.type == "cuda":
        return device_of(place).limits
    return pretended() or replace(DEVICES["h200"].limits, cores=CORES_OF_A_CPU)


def tuned_or_default(impl: Impl, limits: Limits, dtype: str, sizes: Sizes) -> tuple[Any, str]:
    """Return the config that runs if nothing is tuned, and its name: the default, or if that is
    refused the config that differs from it by the fewest steps and is not. If each is refused, or
    `refuse` fails, it is still the default: the launch then raises the error."""
    default = impl.default(limits, dtype, sizes)
    # sorted, for what was AUTO may lie between two choices
    choices, usual = {n: sorted(some) for n, some in impl.choices().items()}, values(default)

    def failure_of(config: Any) -> str | None:
        return impl.rejection_reason(config, limits, dtype, sizes)

    def steps(config: Any) -> int:
        return sum(
            abs(bisect_left(among, getattr(config, knob)) - bisect_left(among, usual[knob]))
            for knob, among in choices.items()
        )

    if (refused := failure_of(default)) is not None:
        for config in sorted(impl.space(default), key=steps):
            if failure_of(config) is None:
                return config, f"the nearest to the default, which is refused ({refused})"
    return default, "the default"


def fitting(impl: Impl, entry: Entry, limits: Limits, sizes: Sizes) -> tuple[Any, str]:
    """Return the entry's config if it can run at these sizes; else None and the reason."""
    choices = impl.choices()
    if entry.config.keys() != choices.keys():
        return None, f"its fields are not those of {impl.config.__name__}"
    config = impl.resolved(impl.config(**entry.config), limits, entry.dtype, sizes)
    failure_of = impl.rejection_reason(config, limits, entry.dtype, sizes)
    return (None, failure_of) if failure_of else (config, "")


def sizes_of(spec: Spec, inputs: Sequence[Any]) -> dict[str, int] | None:
    """Return the sizes that the shapes of the inputs determine, in the order of the Spec's own
    sizes; None where they contradict the Spec, or where an axis is in no input."""
    if len(inputs) != len(spec.inputs):
        return None
    results: list[tuple[str, int]] = []
    for tensor, x in zip(spec.inputs.values(), inputs, strict=True):
        axes = tensor.axes.split()
        if len(axes) != len(x.shape):
            return None
        results += zip(axes, map(int, x.shape), strict=True)
    sizes: dict[str, int] = {}
    for _ in range(2):  # an axis may be a product whose factors later inputs determine
        for axis, extent in results:
            described = solved(axis, extent, sizes)
            if described is None:
                return None
            sizes |= described
    if sizes.keys() != set(spec.axes):
        return None
    return {axis: sizes[axis] for axis in (spec.bench[0] if spec.bench else spec.axes)}


def dtype_of(spec: Spec, inputs: Sequence[Any]) -> str | None:
    """Return the workbench's name of the dtype of the inputs that follow the one under test; None
    if none does, or if it has no name here."""
    follow = (
        x.dtype for t, x in zip(spec.inputs.values(), inputs, strict=False) if t.dtype is None
    )
    return _dtypes().get(next(follow, None))


@cache
def _dtypes() -> Mapping[Any, str]:
    return {torch_dtype(name): name for name in ITEMSIZE}


@cache
def device_of(place: Any) -> Device:
    """Return the GPU that holds the inputs, which need not be the current one."""
    import torch

    from workbench.device.hardware import live

    with torch.cuda.device(place):
        result = live()
    assert result is not None  # a tensor lies on it
    return result


@cache
def _versions() -> Mapping[str, str]:
    """Return the versions as sweeps record them. Takes about 0.1 s, once a process."""
    from workbench.data.environment import fingerprint

    return fingerprint(None, None).versions


def _tuned(path: Path) -> Tuned:
    """Return the tuned cache, read again only if the file has changed. Raises TunedError."""
    try:
        described = path.stat()
    except OSError:
        return Tuned.load(path)
    return _read(path, (described.st_mtime_ns, described.st_size, described.st_ino))


@lru_cache(maxsize=1)
def _read(path: Path, stamp: tuple[int, int, int]) -> Tuned:
    result = Tuned.load(path)
    if result.damaged:
        LOGGER.warning("%s", damage_text(path, result.damaged))
    return result


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Write for programs that have not set up logging, and be silent once they have."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            self.stream = sys.stderr
            super().emit(record)


def log_choice(impl: Impl, config: Any, failure_of: str) -> Any:
    """Log the config of an Impl and the reason for it. Returns the config."""
    if LOGGER.level == logging.NOTSET and not LOGGER.hasHandlers():
        LOGGER.setLevel(logging.INFO)
        LOGGER.addHandler(_Stderr())
    LOGGER.info("%s: %s; %s", impl.title, label(vars(config)), failure_of)
    return config
