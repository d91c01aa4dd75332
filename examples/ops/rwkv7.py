"""A layer of RWKV-7 made of operations, whole in one graph of torch.compile.

    python examples/ops/rwkv7.py

`examples/rwkv7` times the same layer part by part; here it is a function for a model. Its narrow
products and gates are left to torch, whose compiler fuses what stands between two products. It
needs a GPU, or TRITON_INTERPRET=1 for a small layer on the CPU.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import linear

from workbench import ops
from workbench.measurement.inputs import make

sys.path.append(str(Path(__file__).resolve().parents[1] / "rwkv7" / "kernels"))
LAYER: Any = import_module("rwkv7_layer")
SPEC, PARTS = LAYER.rwkv7_layer, LAYER.before


def normalize(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Layer norm over the channels of `B T C`."""
    return ops.layer_norm(x.flatten(0, 1), weight, bias).view(x.shape)


def attention_inputs(
    x: torch.Tensor, last: torch.Tensor, first: torch.Tensor, vectors: torch.Tensor,
    mix: torch.Tensor, square: torch.Tensor, down: torch.Tensor, up: torch.Tensor,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """Return r, w, k, v, kk and a, each `B T H 64`, and the gate, `B T C`."""
    B, T, C = x.shape
    gates, N = PARTS.GATES, PARTS.N
    mixed = ops.token_shift(normalize(x, vectors[gates], vectors[gates + 1]), last, mix)
    r, k, v = torch.bmm(mixed[:3].flatten(1, 2), square.mT)
    xv, xw, xa, xg = mixed[2:].flatten(1, 2)
    (dw, da, dv, dg), (uw, ua, uv, ug) = PARTS.narrow(down), PARTS.narrow(up)
    decay, rate = torch.tanh(linear(xw, dw)) @ uw, linear(xa, da) @ ua
    value, g = linear(xv, dv) @ uv, torch.sigmoid(linear(xg, dg)) @ ug
    heads = [t.reshape(B * T, C // N, N) for t in (decay, rate, value, k, v, first)]
    created = PARTS.rwkv7_gates.reference(*heads, vectors[:gates].view(gates, C // N, N))
    each = [t.reshape(B, T, C // N, N) for t in (r, *created)]
    return *each, g.view(B, T, C)


def layer(
    x: torch.Tensor, last: torch.Tensor, first: torch.Tensor, state: torch.Tensor,
    vectors: torch.Tensor, mix: torch.Tensor, square: torch.Tensor, down: torch.Tensor,
    up: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return the layer's output, `B T C`, and the state after the last token, `B H 64 64`."""
    B, T, C = x.shape
    before, behind, fed = LAYER.apart(vectors, mix, square)
    own, shifts, products = before
    arguments = x, last[0], first, own, shifts, products, down, up
    r, w, k, v, kk, a, g = attention_inputs(*arguments)
    y, after = ops.wkv7(r, w, k, v, kk, a, state)
    flat = [t.reshape(B * T, C // PARTS.N, PARTS.N) for t in (y, r, k, v, g)]
    heads = ops.group_norm(*flat, *behind[0])
    x = torch.addmm(x.flatten(0, 1), heads.view(B * T, C), behind[1].T).view(B, T, C)
    norms, shifts = fed
    mixed = ops.token_shift(normalize(x, *norms), last[1], shifts)[0]
    hidden = ops.channel_mix(linear(mixed.flatten(0, 1), key))
    return torch.addmm(x.flatten(0, 1), hidden, value.T).view(B, T, C), after


def distance(sizes: dict[str, int], dtype: str, device: str, backend: str) -> float:
    """Return the largest difference from the reference in float64, over the output's rms."""
    inputs = make(SPEC, sizes, dtype, device)
    with torch.no_grad():
        y, _ = torch.compile(layer, fullgraph=True, backend=backend)(*inputs)
        wanted, _ = SPEC.reference(*(x.double() for x in inputs))
    return float((y - wanted).abs().max() / wanted.square().mean().sqrt())


def main() -> None:
    if torch.cuda.is_available():
        far = distance({"B": 1, "T": 1024, "H": 40, "P": 32}, "bf16", "cuda", "inductor")
    else:
        far = distance({"B": 1, "T": 3, "H": 1, "P": 1}, "fp32", "cpu", "aot_eager")
    print(f"differs from the reference by {far:.2g} of its rms at most")


if __name__ == "__main__":
    main()
