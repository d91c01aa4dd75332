"""What a launcher hands to its kernels, on tensors without memory: nothing is compiled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from table_text import text_of

from workbench.compile.dedup import Dedup
from workbench.compile.launches import Launch, capture_launches
from workbench.device.hardware import Device
from workbench.measurement import inputs
from workbench.spec import Impl, Sizes


class Uncompiled(Dedup):
    """Takes launches that have no machine code."""

    def begin(self, arguments: str, grid: tuple[int, ...]) -> None:
        pass

    def end(self, kernel: Any) -> None:
        pass


def launches_of(
    impl: Impl, config: Any, device: Device, dtype: str, sizes: Sizes
) -> tuple[list[Launch], Any]:
    """Return the launches of a config in order, and its outputs."""
    from triton.runtime.jit import JITFunction

    real, JITFunction.run = JITFunction.run, lambda self, *args, **kwargs: None
    try:
        with capture_launches(device, Uncompiled()) as launches:
            outputs = impl(*inputs.shapes(impl.spec, sizes, dtype), config=config)
    finally:
        JITFunction.run = real
    return launches, outputs


def launch_lines(
    impl: Impl, config: Any, device: Device, dtype: str, sizes: Sizes
) -> tuple[str, ...]:
    """Return a line for each launch, and one for the outputs."""
    launches, outputs = launches_of(impl, config, device, dtype, sizes)
    several = outputs if isinstance(outputs, tuple) else (outputs,)
    formed = [(x.dtype, tuple(x.shape), x.stride()) for x in several]
    return *map(launch_text, launches), f"gives {text_of(formed)}"


def launch_text(launch: Launch) -> str:
    """Return grid, constants, options and arguments of a launch."""
    constants = {name: getattr(v, "__name__", v) for name, v in launch.constants.items()}
    return (
        f"{launch.function} {launch.grid} {text_of(constants)} {text_of(launch.options)} "
        f"{launch.arguments}"
    )


def planned_lines(impl: Impl, config: Any, dtype: str, sizes: Sizes) -> Iterator[str]:
    """Yield a line for each dispatch of a Metal kernel, and one for the outputs, or the reason why
    it is not launched."""
    from metal_shim.emulate import LaunchRejected, planning

    try:
        with planning() as launches:
            outputs = impl(*inputs.shapes(impl.spec, sizes, dtype), config=config)
    except (LaunchRejected, ValueError) as error:
        yield f"refused: {error}"
        return
    for launch in launches:
        call = launch.call
        arrays = [(a.shape, a.dtype) for a in (*call.inputs, *call.outputs)]
        counts = launch.threads, launch.threadgroups, launch.threadgroup_bytes
        yield (
            f"{call.function} {launch.grid} {launch.group} {text_of(dict(call.template))} "
            f"{text_of(arrays)} {counts} {launch.refusal()}"
        )
    several = outputs if isinstance(outputs, tuple) else (outputs,)
    yield f"gives {text_of([(x.dtype, tuple(x.shape)) for x in several])}"
