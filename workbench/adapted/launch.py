"""Launch without a config: read sizes and dtype from the inputs, let `tuner.choice` choose the
config, and log the choice in one line.

The line is logged at level INFO by the logger `workbench`. If the program has not set up logging,
it goes to standard error; `logging.getLogger("workbench").setLevel("WARNING")` silences it.
"""

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from workbench.data.tuned_cache import LOOKED_UP
from workbench.device.hardware import DEVICES, Device
from workbench.dsl import CORES_OF_A_CPU, pretended_limits
from workbench.measurement.inputs import torch_dtype
from workbench.spec import AUTO, ITEMSIZE, Impl, Limits, Spec, label, solve_axis
from workbench.tuner.choice import LOGGER, choice_of

MOST = 4096  # shapes kept per Impl, about 0.5 KB each, as a program may use ever new shapes


def choose(impl: Impl, inputs: Sequence[Any], at: Any) -> Any:
    """Return the config for these inputs, which are tensors; `impl.launch_configs[at]` keeps it."""
    config = _choice(impl, inputs)
    if not any(configs is impl.launch_configs for configs in LOOKED_UP):
        LOOKED_UP.append(impl.launch_configs)
    if len(impl.launch_configs) >= MOST:
        impl.launch_configs.clear()
    impl.launch_configs[at] = config
    return config


def _choice(impl: Impl, inputs: Sequence[Any]) -> Any:
    """Return the config. Logs it, unless no GPU takes part: on a CPU, in the interpreter, or on
    meta tensors."""
    from workbench.dsl import INTERPRETED

    place = inputs[0].device
    if INTERPRETED or getattr(place, "type", None) != "cuda":  # torch's name for AMD's, too
        return resolve(impl, impl.config(), inputs)
    device = device_of(place)
    dtype, sizes = dtype_of(impl.spec, inputs), sizes_of(impl.spec, inputs)
    if dtype is None or sizes is None:
        what = "dtype" if dtype is None else "sizes"
        failure_of = f"the inputs do not say which {what} of {impl.spec.name} this is"
        declared = impl.declared_default(device.limits, dtype or "")
        return log_choice(impl, resolve(impl, declared, inputs), f"the default; {failure_of}")
    choice = choice_of(impl, device, dtype, sizes)
    if choice.unread:
        LOGGER.warning("%s: %s: %s", impl.title, label(vars(choice.config)), choice.text)
        return choice.config
    return log_choice(impl, choice.config, choice.text)


def resolve(impl: Impl, config: Any, inputs: Sequence[Any]) -> Any:
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
    return impl.resolved_config(config, limits_of(inputs[0].device), dtype, sizes)


def limits_of(place: Any) -> Limits:
    """Return the limits of the GPU `place`. If it is none, return those of the device that is
    compiled for, or in the interpreter those of an H200 with the cores of `dsl.CORES_OF_A_CPU`."""
    if place.type == "cuda":
        return device_of(place).limits
    return pretended_limits() or replace(DEVICES["h200"].limits, cores=CORES_OF_A_CPU)


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
            described = solve_axis(axis, extent, sizes)
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
