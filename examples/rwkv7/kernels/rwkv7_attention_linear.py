"""The part of an RWKV-7 layer before its recurrence: layer norm, token shift, all projections and
what is made of them.

With C = 64 H channels, and tokens mixed in six ways, r, k and v are products with C x C matrices.
The decay w, the rate a, the share of the first layer's values and the gate g come from pairs of
narrow matrices: 3 P, 3 P, 2 P and 10 P wide, which at C = 2560 and P = 32 are the 96, 96, 64 and
320 that RWKV-LM's rules give (1.8, 1.8, 1.3 sqrt(C) and 0.6 C^0.8, in multiples of 32).
`rwkv7_gates` makes w, k, v, kk and a of them, in one launch.

Norm, shift and gates are the workbench's kernels, the products and the two activations torch's.
Left out: the norm ahead of the first layer, and the copy of the last token that the next call
shifts in.
"""

from dataclasses import dataclass

import rwkv7_gates
import torch
from torch.nn.functional import linear

from workbench.kernels import layer_norm, token_shift
from workbench.spec import Spec, Tensor, Tolerance, threads

N = 64  # channels of a head
GATES = 5  # of `vectors`: those that rwkv7_gates takes; the norm's two follow
NARROW = (3, 3, 2, 10)  # widths over P: decay, rate, value, gate


def narrow(matrices):
    """The four matrices of `down` or `up`, each `width C`."""
    P = len(matrices) // sum(NARROW)
    return matrices.split([width * P for width in NARROW])


def reference(x, last, first, vectors, mix, square, down, up):
    """The meaning, at whatever float dtype comes in."""
    B, T, C = x.shape
    x = layer_norm.reference(x, vectors[GATES], vectors[GATES + 1])
    xr, xk, xv, xw, xa, xg = token_shift.reference(x, last, mix)
    r, k, v = (x_ @ w.T for x_, w in zip((xr, xk, xv), square, strict=True))
    (dw, da, dv, dg), (uw, ua, uv, ug) = narrow(down), narrow(up)
    decay, rate = torch.tanh(xw @ dw.T) @ uw, (xa @ da.T) @ ua
    value, g = (xv @ dv.T) @ uv, torch.sigmoid(xg @ dg.T) @ ug
    heads = (t.view(B * T, C // N, N) for t in (decay, rate, value, k, v, first))
    created = rwkv7_gates.reference(*heads, vectors[:GATES].view(GATES, C // N, N))
    w, k, v, kk, a = (t.view(B, T, C // N, N) for t in created)
    return r.view(w.shape), w, k, v, kk, a, g


def normals(shape, dtype, device, generator):
    return torch.randn(shape, generator=generator, device=device).to(dtype)


def weights(shape, dtype, device, generator):
    """Of products that keep the size of their inputs, as a trained layer's do: rows of C."""
    created = torch.randn(shape, generator=generator, device=device)
    return (created * shape[-1] ** -0.5).to(dtype)


def ups(shape, dtype, device, generator):
    """Of products with few rows, whose sums are of about one tenth."""
    created = torch.randn(shape, generator=generator, device=device)
    return (created * 0.1 * (shape[0] / sum(NARROW)) ** -0.5).to(dtype)


def values_near_one(shape, dtype, device, generator):
    return (torch.rand(shape, generator=generator, device=device) * 0.5 + 0.75).to(dtype)


def products(B, T, H, P):
    """FLOP of the matrix products alone."""
    C = N * H
    return 2 * B * T * C * (3 * C + 2 * sum(NARROW) * P)


WIDE = "B T H*64"
rwkv7_attention_linear = Spec(
    name="rwkv7_attention_linear",
    inputs={
        "x": Tensor(WIDE, make=normals),
        "last": Tensor("B H*64", make=normals),
        "first": Tensor(WIDE, make=normals),
        "vectors": Tensor("7 H*64", make=values_near_one),
        "mix": Tensor("6 H*64", make=token_shift.fractions),
        "square": Tensor("3 H*64 H*64", make=weights),
        "down": Tensor("18*P H*64", make=weights),
        "up": Tensor("18*P H*64", make=ups),
    },
    outputs={
        **{name: Tensor("B T H 64") for name in ("r", "w", "k", "v", "kk", "a")},
        "g": Tensor(WIDE),
    },
    reference=reference,
    # and per channel: 7 of the norm, 18 of the shift, 30 of the gates
    flops=lambda B, T, H, P: products(B, T, H, P) + 55 * B * T * N * H,
    check=[
        {"B": 1, "T": 1, "H": 1, "P": 1},
        {"B": 2, "T": 5, "H": 1, "P": 2},
        {"B": 1, "T": 3, "H": 3, "P": 1},
    ],
    bench=[
        {"B": 1, "T": 1024, "H": 40, "P": 32},
        {"B": 1, "T": 1, "H": 40, "P": 32},
        {"B": 64, "T": 1, "H": 40, "P": 32},
    ],
    # Each of up to five calls in a row rounds what it writes, and kk is divided by a length.
    tolerance={
        "fp32": Tolerance(relative=1e-4, rms_share=1e-4),
        "fp16": Tolerance(relative=2e-3, rms_share=1e-2),
        "bf16": Tolerance(relative=1e-2, rms_share=8e-2),
    },
)


def untold(config, limits, *, itemsize, **sizes):
    """There is no prediction: raises ValueError."""
    raise ValueError(
        "most of its time goes into the library's products, which the model does not know; it is "
        "timed where there is a GPU"
    )


@dataclass(frozen=True)
class Warps:
    num_warps: int = threads(2, 8, default=4)  # of norm, shift and gates


def refuse_parts(config, limits, *, itemsize, **sizes):
    held = layer_norm.pad_up(N * sizes["H"]) // (config.num_warps * limits.warp_size)
    if held > 64:
        return f"each thread would hold {held} elements of a row; 64 is the most"
    return None


def normalize(x, weight, bias, config):
    """Layer norm over the channels of `B T C`."""
    rows = layer_norm.Rows(block_m=1, num_warps=config.num_warps)
    return layer_norm.rows(x.reshape(-1, x.shape[-1]), weight, bias, config=rows).view(x.shape)


def shift_tokens(x, last, mix, config):
    """Each token mixed with the one before it, `X B T C`."""
    tiles = token_shift.Tiles(block_t=4, block_d=128 * config.num_warps, num_warps=config.num_warps)
    return token_shift.tiles(x, last, mix, config=tiles)


@rwkv7_attention_linear.impl(Warps, refuse=refuse_parts, work=untold)
def parts(x, last, first, vectors, mix, square, down, up, *, config):
    """A call each for norm, shift, the three C x C products, eight narrow products, two
    activations and the gates."""
    B, T, C = x.shape
    x = normalize(x, vectors[GATES], vectors[GATES + 1], config)
    mixed = shift_tokens(x, last, mix, config).view(6, B * T, C)
    r, k, v = torch.bmm(mixed[:3], square.transpose(1, 2))
    xv, xw, xa, xg = mixed[2:]
    (dw, da, dv, dg), (uw, ua, uv, ug) = narrow(down), narrow(up)
    decay, rate = torch.tanh(linear(xw, dw)) @ uw, linear(xa, da) @ ua
    value, g = linear(xv, dv) @ uv, torch.sigmoid(linear(xg, dg)) @ ug
    heads = (t.reshape(B * T, C // N, N) for t in (decay, rate, value, k, v, first))
    each = rwkv7_gates.Heads(block_h=4 * config.num_warps, num_warps=config.num_warps)
    created = rwkv7_gates.heads(*heads, vectors[:GATES].reshape(GATES, C // N, N), config=each)
    w, k, v, kk, a = (t.view(B, T, C // N, N) for t in created)
    return r.view(w.shape), w, k, v, kk, a, g.view(B, T, C)
