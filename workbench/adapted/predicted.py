"""Predict the time of a function's configs for one call from their code; nothing runs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from workbench.adapted.kernel import refused_grid, unwrap
from workbench.code.ttgir import NotModelled
from workbench.compile import CompileError, read_resources, work_of_launch
from workbench.compile.launches import capture_launches
from workbench.data.errors import first_sentence
from workbench.data.record import Predicted, Resources
from workbench.device.code_model import predict_launch
from workbench.device.error_band import code_band, ends_of
from workbench.device.hardware import Device
from workbench.spec import label
from workbench.tuner.prediction import FIRST, ConfigRanking, NotPredicted, PredictedConfig


class PredictedCall:
    """A call of a function, whose configs are compiled one by one."""

    def __init__(self, kernel: Any, device: Device, named: Mapping[str, Any], grid: Any) -> None:
        """Take a `@triton.jit` function, its arguments by name and its grid."""
        self._kernel, self._device, self._named, self._grid = unwrap(kernel), device, named, grid
        self._contents = _Integers(named)

    def predict(self, config: Any) -> tuple[Predicted, Resources]:
        """Return the predicted time of a launch and the resources of its code. Raises NotModelled,
        CompileError, the errors of the compiler, and ValueError where the device lacks a figure."""
        with capture_launches(self._device) as launches:
            self._kernel[self._grid](**self._named, **config.all_kwargs())
        (launch,) = launches
        resources = read_resources(launch, launches, self._device, 0.0)
        if reason := refused_grid(launch.grid, self._device.limits):
            raise CompileError(reason)
        if not resources.blocks_per_core:
            raise CompileError(f"does not fit {self._device.name}")
        known = replace(launch.launch_arguments, contents=self._contents)
        work = work_of_launch(launch.kernel, launch.grid, known, self._device, resources)
        return predict_launch(self._device, work, resources), resources


def rank_function(
    kernel: Any, device: Device, named: Mapping[str, Any], grid: Any, configs: Sequence[Any]
) -> ConfigRanking:
    """Return the fastest predicted configs of a function for these arguments, after compiling each.
    Raises NotPredicted where no time can be derived from its code, or no config compiles."""
    call, name = PredictedCall(kernel, device, named, grid), unwrap(kernel).__name__
    times: list[tuple[Predicted, Resources, Any]] = []
    failed: list[str] = []
    for config in configs:
        try:
            predicted, resources = call.predict(config)
        except NotModelled as reason:
            raise NotPredicted(f"{name} is not ranked: {reason}.") from None
        except Exception as error:  # the compiler's, or of the device
            failed.append(f"{label(config.all_kwargs())}: {first_sentence(error)}")
        else:
            times.append((predicted, resources, config))
    if not times:
        first = failed[0].rstrip(".") if failed else "none was given"
        raise NotPredicted(f"No config of {name} gives a time on {device.name}; {first}.")
    apart: dict[str, tuple[Predicted, Resources, Any]] = {}  # one config for each machine code
    for one in sorted(times, key=lambda one: one[0].predicted_s):
        apart.setdefault(one[1].binary, one)
    best = tuple(
        PredictedConfig(
            "",
            config.all_kwargs(),
            time.predicted_s,
            time.bound,
            ends_of(code_band(device, resources, time.model), time.predicted_s),
        )
        for time, resources, config in list(apart.values())[:FIRST]
    )
    return ConfigRanking(best, len(times))


class _Integers(Mapping[str, Any]):
    """The tensors of integers among the arguments, flat and on the CPU, each copied once."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = {
            name: value
            for name, value in named.items()
            if hasattr(value, "is_floating_point") and not value.is_floating_point()
        }
        self._copies: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._copies:
            value = self._named[name]
            self._copies[name] = value.detach().cpu().contiguous().reshape(-1).long().numpy()
        return self._copies[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._named)

    def __len__(self) -> int:
        return len(self._named)
