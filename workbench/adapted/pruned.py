"""Leave the best predicted configs to `@triton.autotune`: its `early_config_prune`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from workbench.adapted.kernel import launched
from workbench.compile import CompileError, read_resources
from workbench.compile.code_work import launch_work
from workbench.compile.launches import captured
from workbench.compile.ttgir import NotModelled
from workbench.data.errors import first_sentence
from workbench.device.code_model import predict_launch
from workbench.device.hardware import Device

MOST = 5  # configs that are left
_log = logging.getLogger("workbench")


def pruner(kernel: Any, device: Device, most: int = MOST) -> Callable[..., list[Any]]:
    """Return a function for `early_config_prune`: it compiles all configs for the device, predicts
    their times from the code, and leaves the best. It leaves all where no time can be derived."""

    def early_config_prune(
        configs: Sequence[Any], named_args: Mapping[str, Any], **kwargs: Any
    ) -> list[Any]:
        every, given = list(configs), dict(named_args)
        if len(every) <= most:
            return every
        own = {n: v for n, v in kwargs.items() if n in kernel.arg_names}
        call = _PrunedCall(launched(kernel), device, {**given, **own}, kwargs["grid"])
        times: list[tuple[float, int]] = []
        for i, config in enumerate(every):
            try:
                times.append((call.predicted_s(config), i))
            except NotModelled as reason:
                _log.warning("%s: no config is left out: %s", kernel.__name__, reason)
                return every
            except Exception as error:  # the config does not compile: nothing would launch it
                _log.info("%s: %s: %s", kernel.__name__, config, first_sentence(error))
        return [every[i] for _, i in sorted(times)[:most]] or every

    return early_config_prune


class _PrunedCall:
    """A call whose configs are compared."""

    def __init__(self, kernel: Any, device: Device, named: Mapping[str, Any], grid: Any) -> None:
        self._kernel, self._device, self._named, self._grid = kernel, device, named, grid
        self._contents = _Integers(named)

    def predicted_s(self, config: Any) -> float:
        """Return the predicted seconds of a launch. Raises NotModelled, CompileError, the errors of
        the compiler, and ValueError where the device lacks a figure."""
        with captured(self._device) as launches:
            self._kernel[self._grid](**self._named, **config.all_kwargs())
        (launch,) = launches
        resources = read_resources(launch, launches, self._device, 0.0)
        if not resources.blocks_per_core:
            raise CompileError(f"does not fit {self._device.name}")
        known = replace(launch.given, contents=self._contents)
        stages = getattr(launch.kernel.metadata, "num_stages", 1)
        text = launch.kernel.asm["ttgir"]
        work = launch_work(text, launch.grid, known, self._device, resources, stages)
        return predict_launch(self._device, work, resources).predicted_s


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
