"""Launch and time Metal kernels on a Metal device through MLX. Imported on a Mac and by tests.

Written from MLX's documentation and source; no Apple GPU has run it yet. What does not need one is
elsewhere: `workbench/measurement/metal_timing.py` decides what is evaluated how often. Chains run
on MLX's CPU backend too, where tests hold them to MLX's laziness.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from typing import Any, Literal

os.environ["MLX_ENABLE_TF32"] = "0"  # or products in fp32 lose bits on an M5; MLX reads it once

import mlx.core as mx
import numpy as np
import torch

from metal_shim.signature import LIBRARY_NAMES, ArrayType, MetalCall, MetalSource
from workbench.spec import Impl

MLX_DTYPES = {w: getattr(mx, name, mx.bool_) for w, name in LIBRARY_NAMES.items()}
Step = Callable[..., Sequence[Any]]  # a dispatch: arrays to arrays, nothing evaluated
MOST_SETS = 4096  # of inputs in rotation, however small they are

_LAUNCHES: ContextVar[list[tuple[Step, list[Any]]] | None] = ContextVar("launches", default=None)


def launch_call(
    call: MetalCall,
    inputs: Sequence[torch.Tensor],
    grid: tuple[int, int, int],
    group: tuple[int, int, int],
    init_value: float | None = None,
) -> list[torch.Tensor]:
    """Launch through MLX, wait for the end, and return the outputs as tensors on the CPU."""
    arrays = [array_of(x) for x in inputs]
    step = partial(dispatch, call, grid, group, init_value=init_value)
    if (launches := _LAUNCHES.get()) is not None:
        launches.append((step, arrays))
    outputs = step(*arrays)
    mx.eval(outputs)
    return [tensor_of(y, t.dtype) for y, t in zip(outputs, call.outputs, strict=True)]


def dispatch(
    call: MetalCall, grid: Any, group: Any, *arrays: Any, init_value: float | None = None
) -> Sequence[Any]:
    """Return the outputs of one dispatch, not yet evaluated."""
    template = [(n, MLX_DTYPES[v] if isinstance(v, str) else v) for n, v in call.template.items()]
    more = {"grid": grid, "threadgroup": group, "template": template, "init_value": init_value}
    shapes, dtypes = [t.shape for t in call.outputs], [MLX_DTYPES[t.dtype] for t in call.outputs]
    kernel = mlx_kernel(call.source)
    return list(kernel(inputs=list(arrays), output_shapes=shapes, output_dtypes=dtypes, **more))


@cache
def mlx_kernel(source: MetalSource) -> Any:
    """Return MLX's kernel of this source; made once, as MLX compiles each of its kernels."""
    inputs, outputs, atomic = list(source.inputs), list(source.outputs), source.atomic_outputs
    return mx.fast.metal_kernel(
        source.name, inputs, outputs, source.body, source.header, atomic_outputs=atomic
    )


def array_of(x: torch.Tensor) -> Any:
    """Return MLX's copy of a tensor. numpy has no bfloat16: its bits travel as uint16."""
    dense = x.detach().contiguous()
    if dense.dtype == torch.bfloat16:
        return mx.array(dense.view(torch.int16).numpy().view(np.uint16)).view(mx.bfloat16)
    return mx.array(dense.numpy())


def tensor_of(y: Any, dtype: str) -> torch.Tensor:
    """Return a tensor with the values of an array of this dtype."""
    if dtype == "bf16":
        bits = np.array(y.view(mx.uint16)).view(np.int16)
        return torch.from_numpy(bits).view(torch.bfloat16)
    return torch.from_numpy(np.array(y))


# Timing


def chain(steps: Sequence[Step], sets: Sequence[Sequence[Sequence[Any]]], calls: int) -> Any:
    """Return one element that needs all of `calls` calls, each after the one before; nothing is
    evaluated. `sets` hold the arrays of each step; calls take them in turn.

    Between two dispatches stands one that reads an element of the first's output. It makes MLX put
    a barrier into its concurrent encoder, behind which the second one starts.
    """
    token = None
    for number in range(calls):
        for step, arrays in zip(steps, sets[number % len(sets)], strict=True):
            given = arrays if token is None else mx.depends(list(arrays), [token])
            outputs = step(*given)
            last: Any = outputs[0] if isinstance(outputs, list | tuple) else outputs
            token = mx.abs(last.reshape(-1)[:1])
    return token


@dataclass(frozen=True)
class MlxCall:
    """A call whose inputs lie in MLX's memory; implements `TimedCall` by the clock "eval"."""

    steps: Sequence[Step]
    sets: Sequence[Sequence[Sequence[Any]]]

    @property
    def dispatches(self) -> int:
        """Kernels of one call; of an operation of MLX's its graph, which counts as one."""
        return len(self.steps)

    def seconds(self, calls: int) -> float:
        """Return the seconds to evaluate a chain of that many calls. The graph is built before."""
        token = chain(self.steps, self.sets, calls)
        mx.synchronize()
        start = time.perf_counter()
        mx.eval(token)  # `mx.synchronize` alone would wait for nothing: no one asked for the value
        return time.perf_counter() - start


def rotation(arrays: Sequence[Sequence[Any]], cold_bytes: int) -> list[Sequence[Sequence[Any]]]:
    """Return copies of the arrays that hold at least `cold_bytes` in all; one set for 0."""
    size = max(1, sum(a.nbytes for step in arrays for a in step))
    count = min(MOST_SETS, max(1, -(-cold_bytes // size)))
    sets = [[[mx.array(a) for a in step] for step in arrays] for _ in range(count - 1)]
    mx.eval(sets)
    return [arrays, *sets]


class MlxDriver:
    """Prepare calls on the Metal device, for `workbench/measurement/metal_worker.py`."""

    now = staticmethod(time.perf_counter)
    checked_by: Literal["gpu"] = "gpu"

    def prepare(
        self, impl: Impl, config: Any, inputs: Sequence[torch.Tensor], cold_bytes: int
    ) -> MlxCall:
        """Return a call of an Impl on copies of these inputs."""
        if impl.backend == "mlx":
            operation = import_module("metal_shim.operations").OPERATIONS[impl.spec.name]
            return MlxCall([operation.run], rotation([operation.prepare(inputs)], cold_bytes))
        before = _LAUNCHES.set(launches := list[tuple[Step, list[Any]]]())
        try:
            impl(*inputs, config=config)
        finally:
            _LAUNCHES.reset(before)
        steps, arrays = [step for step, _ in launches], [arrays for _, arrays in launches]
        return MlxCall(steps, rotation(arrays, cold_bytes))

    def empty(self) -> MlxCall:
        """Return a call of a kernel of one thread that writes one number."""
        source, one = MetalSource("empty", ("x",), ("y",), "y[0] = x[0];"), (1, 1, 1)
        call = MetalCall(source, (ArrayType((8,), "fp32"),), (ArrayType((1,), "fp32"),), {})
        return MlxCall([partial(dispatch, call, one, one)], [[[mx.zeros((8,))]]])

    def info(self) -> Mapping[str, Any]:
        """Return MLX's description of the device."""
        return dict(mx.device_info())


def capture(path: str, call: Callable[[], Any]) -> None:
    """Write the Metal commands of a call as a `.gputrace`. Raises RuntimeError where MLX has no
    Metal device: elsewhere `start_capture` returns in silence."""
    if not mx.metal.is_available():
        raise RuntimeError("MLX has no Metal device here, so nothing can be captured")
    mx.metal.start_capture(path)
    try:
        call()
    finally:
        mx.metal.stop_capture()
