"""MLX's own versions of operations: on a Mac they are timed beside the Metal kernels, on Linux they
are a second reference on the CPU. Nothing here is compiled by `mx.compile`, which would drop equal
subexpressions of a chain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import torch

from metal_shim.kernel import WORDS
from metal_shim.mlx_backend import array_of, tensor_of
from workbench.spec import Impl, NoKnobs, Spec

Arrays = Sequence[Any]


def plain(inputs: Sequence[torch.Tensor]) -> Arrays:
    """Return MLX's copies of the tensors."""
    return [array_of(x) for x in inputs]


def affine(w: torch.Tensor) -> Arrays:
    """Return GGUF's Q4_K blocks in MLX's affine format: 4 bits in groups of 32, with the scale d *
    scale_j and the bias -dmin * min_j in fp32, as packed words, scales and biases.

    The layout of a block is that of `block_q4_K` in ggml: d, dmin, 12 bytes of 6-bit scales and
    minima, 128 bytes of nibbles.
    """
    block = w.reshape(w.shape[0], -1, 144)
    d, dmin = (block[..., i : i + 2].contiguous().view(torch.float16).float() for i in (0, 2))
    first, second, third = (block[..., i : i + 4].int() for i in (4, 8, 12))
    scale = torch.cat([first & 63, (third & 15) | (first >> 6 << 4)], -1)
    minimum = torch.cat([second & 63, (third >> 4) | (second >> 6 << 4)], -1)
    pairs = block[..., 16:].int().unflatten(-1, (4, 1, 32))
    nibbles = torch.cat([pairs & 15, pairs >> 4], -2).flatten(1).unflatten(-1, (-1, 8)).long()
    packed = (nibbles << (4 * torch.arange(8))).sum(-1)
    return [mx.array(packed.numpy()).astype(mx.uint32),
            array_of((d * scale).flatten(1)), array_of((-(dmin * minimum)).flatten(1))]  # fmt: skip


@dataclass(frozen=True)
class MlxOperation:
    """An operation of MLX's: `prepare` makes its arrays once, outside of any time."""

    run: Callable[..., Any]
    prepare: Callable[[Sequence[torch.Tensor]], Arrays] = plain


def _patches(x: Any, w: Any, bias: Any, position: Any) -> Any:
    return x @ w.T + bias + position[mx.arange(x.shape[0]) % position.shape[0]]


def _quantized(x: Any, w: Any, scales: Any, biases: Any) -> Any:
    """Return the product in x's dtype. Scales in 16 bits, as users have them, are up to 7
    tolerances off Q4_K's 6-bit ones times its fp16 ones; those in fp32 make the product fp32."""
    y = mx.quantized_matmul(x, w, scales, biases, transpose=True, group_size=32, bits=4)
    return y.astype(x.dtype)


OPERATIONS = {
    "copy": MlxOperation(lambda x: x * 1),
    "softmax": MlxOperation(lambda x: mx.softmax(x, axis=-1, precise=True)),
    "rms_norm": MlxOperation(lambda x, w: mx.fast.rms_norm(x, w, 1e-6)),
    "layer_norm": MlxOperation(lambda x, w, b: mx.fast.layer_norm(x, w, b, 1e-5)),
    "matmul": MlxOperation(lambda a, b: a @ b),
    "matvec": MlxOperation(lambda x, w: x @ w.T),
    "lora": MlxOperation(lambda x, w, a, b: x @ w.T + 2.0 * ((x @ a.T) @ b.T)),
    "patch_embed": MlxOperation(_patches),
    "q4_k_matmul": MlxOperation(_quantized, lambda given: [array_of(given[0]), *affine(given[1])]),
}


def mlx_impl(spec: Spec) -> Impl | None:
    """Return MLX's own version of an operation as an Impl on tensors, or None where it has none."""
    operation = OPERATIONS.get(spec.name)
    if operation is None:
        return None

    def launch(*inputs: torch.Tensor) -> torch.Tensor:
        result = operation.run(*operation.prepare(inputs))
        mx.eval(result)
        return tensor_of(result, WORDS[inputs[0].dtype]).to(inputs[0].dtype)

    return Impl(spec, "mlx", launch, "mlx", NoKnobs, None, _takes_all, None, {})


def _takes_all(config: Any, limits: Any, **sizes: int) -> None:
    return None
