"""Launch Metal kernels: through MLX where there is a Metal device, else in the emulator.

    KERNEL = metal_kernel("softmax", inputs="x", outputs="y", body=BODY)
    y = KERNEL(x, like=x, grid=(256 * rows, 1, 1), group=256, T=x.dtype, TG=256)

Arrays are torch tensors on the CPU; MLX's own arrays are never seen by a caller.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import torch

from metal_shim import emulate, host
from metal_shim.emulate import LaunchRejected, MetalLaunch
from metal_shim.signature import LIBRARY_NAMES, ArrayType, MetalCall, MetalSource, TemplateValue

# Words of the project and torch's dtypes
DTYPES: Mapping[str, torch.dtype] = {w: getattr(torch, name) for w, name in LIBRARY_NAMES.items()}
WORDS = {dtype: word for word, dtype in DTYPES.items()}


@dataclass(frozen=True)
class MetalKernel:
    """A kernel that is launched by calling it; `same_value` names the outputs to which several
    threads may write the same value at once."""

    source: MetalSource
    same_value: tuple[str, ...] = ()

    def __call__(
        self,
        *inputs: torch.Tensor,
        like: torch.Tensor | Sequence[torch.Tensor],
        grid: tuple[int, int, int],
        group: int | tuple[int, int, int],
        init_value: float | None = None,
        **template: torch.dtype | bool | int,
    ) -> Any:
        """Launch and return the outputs: one tensor, or a tuple of several.

        Args:
            inputs: Tensors on the CPU of any strides; what is not dense is copied first, as by MLX.
            like: Tensors, also on `meta`, of the outputs' shapes and dtypes.
            grid: Threads of the whole grid along x, y, z; edge threadgroups are smaller.
            group: Threads of a threadgroup; a number stands for x alone.
            init_value: What all outputs hold before the launch, as MLX's argument of this name.
            template: Values of the template parameters, in their order.

        Raises LaunchRejected, EmulationError or CompilerMissing, see `emulate`.
        """
        models = (like,) if isinstance(like, torch.Tensor) else tuple(like)
        _check(self.source, inputs, models)
        call = MetalCall(self.source, _types(inputs), _types(models), _values(template))
        size = (group, 1, 1) if isinstance(group, int) else group
        if emulate.is_planned(call, grid, size):
            outputs = [torch.empty(tuple(m.shape), dtype=m.dtype, device="meta") for m in models]
        elif metal_device() and not emulate.is_requested():
            outputs = import_module("metal_shim.mlx_backend").launch_call(
                call, inputs, grid, size, init_value
            )
        else:
            start = dict[str, bytes]()
            if init_value is not None:
                full = [torch.full_like(m, init_value, device="cpu") for m in models]
                start = dict(zip(self.source.outputs, map(_bytes, full), strict=True))
            given = [_bytes(x) for x in inputs]
            launch = MetalLaunch(call, given, grid, size, self.same_value, start)
            results = zip(map(bytearray, emulate.emulate_launch(launch)), models, strict=True)
            outputs = [torch.frombuffer(c, dtype=m.dtype).view(m.shape) for c, m in results]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def refuse_threadgroup(self, **template: torch.dtype | str | bool | int) -> str | None:
        """Return in one sentence why threadgroup memory does not suffice, or None if it does."""
        return host.refuse_threadgroup(host.threadgroup_bytes(self.source, _values(template)))


def metal_kernel(
    name: str,
    *,
    inputs: str,
    outputs: str,
    body: str,
    header: str = "",
    same_value: str = "",
    atomic_outputs: bool = False,
) -> MetalKernel:
    """Return a kernel of this name. Names of arrays are separated by blanks; body and header are
    Metal source as `mx.fast.metal_kernel` takes it, and so is `atomic_outputs`. Raises ValueError
    where a name is none."""
    for word in (name, *inputs.split(), *outputs.split(), *same_value.split()):
        if not re.fullmatch(r"[A-Za-z_]\w*", word):
            raise ValueError(f"{word!r} is not a valid name in Metal; use letters, digits and _")
    arrays = (tuple(inputs.split()), tuple(outputs.split()))
    source = MetalSource(name, *arrays, body, header, atomic_outputs=atomic_outputs)
    return MetalKernel(source, tuple(same_value.split()))


@cache
def metal_device() -> bool:
    """Return whether MLX is installed and has a Metal device."""
    try:
        mlx = import_module("mlx.core")
    except ImportError:
        return False
    return bool(mlx.metal.is_available())


def _check(
    source: MetalSource, inputs: Sequence[torch.Tensor], models: Sequence[torch.Tensor]
) -> None:
    """Raise LaunchRejected where the tensors do not fit the kernel's declaration."""
    arrays = ("inputs", source.inputs, inputs), ("outputs", source.outputs, models)
    for kind, names, given in arrays:
        if len(names) != len(given):
            raise LaunchRejected(
                f"{source.name} has {len(names)} {kind} ({', '.join(names)}), not {len(given)}."
            )
        for name, x in zip(names, given, strict=True):
            if kind == "inputs" and x.device.type != "cpu" and not emulate.is_planning():
                raise LaunchRejected(
                    f"{source.name} takes tensors on the CPU, and {name} is on {x.device}; "
                    "call .cpu() first."
                )
            if x.dtype not in WORDS:
                raise LaunchRejected(
                    f"{source.name}: Metal does not support {x.dtype}, the dtype of {name}."
                )


def _values(template: Mapping[str, torch.dtype | TemplateValue]) -> dict[str, TemplateValue]:
    return {n: WORDS[v] if isinstance(v, torch.dtype) else v for n, v in template.items()}


def _types(tensors: Sequence[torch.Tensor]) -> tuple[ArrayType, ...]:
    return tuple(ArrayType(tuple(x.shape), WORDS[x.dtype]) for x in tensors)


def _bytes(x: torch.Tensor) -> bytes:
    # a copy: one element of any stride counts as contiguous, and torch does not view it as bytes
    dense = x.detach().reshape(-1).clone(memory_format=torch.contiguous_format)
    return dense.view(torch.uint8).numpy().tobytes() if dense.numel() else b""
