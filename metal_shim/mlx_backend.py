"""Launch Metal kernels on a Metal device through MLX. Imported on a Mac alone.

Written from MLX's documentation and source; no Apple GPU has run it yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np
import torch

from metal_shim.signature import MetalCall, MetalSource

_DTYPES = {
    "fp32": mx.float32,
    "fp16": mx.float16,
    "bf16": mx.bfloat16,
    "int64": mx.int64,
    "int32": mx.int32,
    "int16": mx.int16,
    "int8": mx.int8,
    "uint8": mx.uint8,
    "bool": mx.bool_,
}


def launched(
    call: MetalCall,
    inputs: Sequence[torch.Tensor],
    grid: tuple[int, int, int],
    group: tuple[int, int, int],
) -> list[torch.Tensor]:
    """Launch through MLX, wait for the end, and return the outputs as tensors on the CPU."""
    arrays = [_array(x, t.dtype) for x, t in zip(inputs, call.inputs, strict=True)]
    template = [(n, _DTYPES[v] if isinstance(v, str) else v) for n, v in call.template.items()]
    outputs = _kernel(call.source)(
        inputs=arrays,
        template=template,
        grid=grid,
        threadgroup=group,
        output_shapes=[t.shape for t in call.outputs],
        output_dtypes=[_DTYPES[t.dtype] for t in call.outputs],
    )
    mx.eval(outputs)
    return [_tensor(y, t.dtype) for y, t in zip(outputs, call.outputs, strict=True)]


@cache
def _kernel(source: MetalSource) -> Any:
    return mx.fast.metal_kernel(
        name=source.name,
        input_names=list(source.inputs),
        output_names=list(source.outputs),
        source=source.body,
        header=source.header,
    )


def _array(x: torch.Tensor, dtype: str) -> Any:
    """Return MLX's copy of a tensor. numpy has no bfloat16: its bits travel as uint16."""
    dense = x.detach().contiguous()
    if dtype == "bf16":
        return mx.array(dense.view(torch.int16).numpy().view(np.uint16)).view(mx.bfloat16)
    return mx.array(dense.numpy())


def _tensor(y: Any, dtype: str) -> torch.Tensor:
    if dtype == "bf16":
        bits = np.array(y.view(mx.uint16)).view(np.int16)
        return torch.from_numpy(bits).view(torch.bfloat16)
    return torch.from_numpy(np.array(y))
