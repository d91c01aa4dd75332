"""MLX's own versions of operations: on a Mac they are timed beside the Metal kernels, on Linux they
are a second reference on the CPU. Nothing here is compiled by `mx.compile`, which would drop equal
subexpressions of a chain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
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


def quantize_inputs(inputs: Sequence[torch.Tensor]) -> Arrays:
    """Return x and the weights of GGUF's Q4_K blocks as users of MLX have them: 4 bits in groups of
    64, with a scale and a bias of each group in x's dtype. In 16 bits these are 4.5 bits a weight,
    as in Q4_K, whose own scales, of groups of 32, MLX's format holds in no fewer than 6."""
    x, w = inputs
    dense = array_of(weights_of(w).to(x.dtype))
    return [array_of(x), *mx.quantize(dense, group_size=64, bits=4)]


def weights_of(w: torch.Tensor) -> torch.Tensor:
    """Return the weights of Q4_K blocks as float64."""
    return torch.as_tensor(import_module("workbench.kernels.q4_k_matmul").unpack(w))


@dataclass(frozen=True)
class MlxOperation:
    """An operation of MLX's: `prepare` makes its arrays once, outside of any time. `checked`
    takes the place of both where these arrays are not the operation's own inputs."""

    run: Callable[..., Any]
    prepare: Callable[[Sequence[torch.Tensor]], Arrays] = plain
    checked_call: Callable[[Sequence[torch.Tensor]], torch.Tensor] | None = None


def _patches(x: Any, w: Any, bias: Any, position: Any) -> Any:
    return x @ w.T + bias + position[mx.arange(x.shape[0]) % position.shape[0]]


def _product(x: Any, w: Any, scales: Any, biases: Any) -> Any:
    return mx.quantized_matmul(x, w, scales, biases, transpose=True, group_size=64, bits=4)


def _checked_product(inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return MLX's product, and what the weights of Q4_K give beside those that its format makes of
    them. MLX's CPU backend sums in x's dtype, up to 17 tolerances off, and its Metal kernels in
    fp32: on the CPU the product is one in fp32."""
    x, packed, scales, biases = quantize_inputs(inputs)
    exact = [part.astype(mx.float32) for part in (scales, biases)]
    held = tensor_of(mx.dequantize(packed, exact[0], exact[1], group_size=64, bits=4), "fp32")
    on_cpu = mx.default_device() == mx.Device(mx.cpu)
    if on_cpu:
        x, scales, biases = x.astype(mx.float32), *exact
    y = _product(x, packed, scales, biases)
    beside = inputs[0].double() @ (weights_of(inputs[1]) - held.double()).T
    return (tensor_of(y.astype(mx.float32), "fp32") + beside).to(inputs[0].dtype)


OPERATIONS = {
    "copy": MlxOperation(lambda x: x * 1),
    "softmax": MlxOperation(lambda x: mx.softmax(x, axis=-1, precise=True)),
    "rms_norm": MlxOperation(lambda x, w: mx.fast.rms_norm(x, w, 1e-6)),
    "layer_norm": MlxOperation(lambda x, w, b: mx.fast.layer_norm(x, w, b, 1e-5)),
    "matmul": MlxOperation(lambda a, b: a @ b),
    "matvec": MlxOperation(lambda x, w: x @ w.T),
    "lora": MlxOperation(lambda x, w, a, b: x @ w.T + 2.0 * ((x @ a.T) @ b.T)),
    "patch_embed": MlxOperation(_patches),
    "q4_k_matmul": MlxOperation(_product, quantize_inputs, _checked_product),
}


def mlx_impl(spec: Spec) -> Impl | None:
    """Return MLX's own version of an operation as an Impl on tensors, or None where it has none."""
    operation = OPERATIONS.get(spec.name)
    if operation is None:
        return None

    def launch(*inputs: torch.Tensor) -> torch.Tensor:
        if operation.checked_call is not None:
            return operation.checked_call(inputs)
        result = operation.run(*operation.prepare(inputs))
        mx.eval(result)
        return tensor_of(result, WORDS[inputs[0].dtype]).to(inputs[0].dtype)

    return Impl(spec, "mlx", launch, "mlx", NoKnobs, None, lambda c, limits, **_: None, None, {})
