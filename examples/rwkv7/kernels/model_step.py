"""A step of a small transformer: L layers over the S tokens of one prompt, width 64 * H.

Each layer is what the kernels of the workbench and the library's products make of it: RMS norm, a
product to queries, keys and values, causal attention, a product, addition and RMS norm in one, a
product to both halves of SwiGLU, SwiGLU, a product. That is 8 calls a layer, most of them shorter
than their own launch by the CPU. There is no rotation of positions, no vocabulary, and a head is 64
wide. `torch` is the same step of torch's own functions, with addition and norm apart.
"""

from dataclasses import dataclass

import torch

from workbench.kernels import causal_attention, fused_add_rms_norm, rms_norm, swiglu
from workbench.spec import Spec, Tensor, Tolerance, stages, threads

HEAD = 64


def heads(qkv):
    """Queries, keys and values of a product, each `1 S H 64`: views, whose strides go wide."""
    return qkv.view(1, len(qkv), 3, -1, HEAD).unbind(2)


def reference(x, before, qkv, out, between, up, down, last):
    """The meaning, at whatever float dtype comes in."""
    S, width = x.shape
    for i in range(len(qkv)):
        y = rms_norm.reference(x, before[i])
        o = causal_attention.reference(*heads(y @ qkv[i]))
        y, x = fused_add_rms_norm.reference(o.reshape(S, width) @ out[i], x, between[i])
        x = x + swiglu.reference(y @ up[i]) @ down[i]
    return rms_norm.reference(x, last)


def normals(shape, dtype, device, generator):
    return torch.randn(shape, generator=generator, device=device).to(dtype)


def weights(shape, dtype, device, generator):
    """Of products that keep the size of their inputs, as a trained layer's do."""
    created = torch.randn(shape, generator=generator, device=device)
    return (created * shape[-2] ** -0.5).to(dtype)


def values_near_one(shape, dtype, device, generator):
    return (torch.rand(shape, generator=generator, device=device) * 0.5 + 0.75).to(dtype)


model_step = Spec(
    name="model_step",
    inputs={
        "x": Tensor("S H*64", make=normals),
        "before": Tensor("L H*64", make=values_near_one),
        "qkv": Tensor("L H*64 H*192", make=weights),
        "out": Tensor("L H*64 H*64", make=weights),
        "between": Tensor("L H*64", make=values_near_one),
        "up": Tensor("L H*64 2*F", make=weights),
        "down": Tensor("L F H*64", make=weights),
        "last": Tensor("H*64", make=values_near_one),
    },
    outputs={"y": Tensor("S H*64")},
    reference=reference,
    # the products, the scores and the weighted values at and below the diagonal
    flops=lambda S, H, L, F: (
        2 * S * L * (4 * (64 * H) ** 2 + 3 * 64 * H * F) + 2 * L * H * S * (S + 1) * 64
    ),
    check=[
        {"S": 1, "H": 1, "L": 1, "F": 16},
        {"S": 5, "H": 2, "L": 1, "F": 24},
        {"S": 3, "H": 1, "L": 2, "F": 16},
    ],
    bench=[{"S": 512, "H": 16, "L": 4, "F": 2816}, {"S": 128, "H": 16, "L": 4, "F": 2816}],
    # Each call rounds what it writes, and what the sums inherit of it grows with the layers.
    tolerance={
        "fp32": Tolerance(relative=1e-4, rms_share=1e-4),
        "bf16": Tolerance(relative=1e-2, rms_share=1e-1),
    },
)


def untold(config, limits, *, itemsize, **sizes):
    """There is no prediction: raises ValueError."""
    raise ValueError(
        "half of the step's time goes into the library's products, which the model does not know; "
        "it is timed where there is a GPU"
    )


@dataclass(frozen=True)
class Warps:
    num_warps: int = threads(2, 8, default=4)  # of norms and SwiGLU
    num_stages: int = stages(1, 2, default=2)  # of attention


def refuse_step(config, limits, *, itemsize, S, H, L, F):
    held = rms_norm.pad_up(64 * H) // (config.num_warps * limits.warp_size)
    if held > 64:
        return f"each thread would hold {held} elements of a row; 64 is the most"
    if config.num_stages > 1 and limits.arch.startswith("gfx"):
        return "Triton 3.6 cannot pipeline the loop of attention for AMD's GPUs at some strides"
    return None


AMD = dict.fromkeys(("gfx90a", "gfx942", "gfx950", "gfx1100"), Warps(num_stages=1))


@model_step.impl(Warps, refuse=refuse_step, work=untold, defaults=AMD)
def step(x, before, qkv, out, between, up, down, last, *, config):
    """The workbench's kernels, the sums carried from one call to the next, torch's products."""
    norm = rms_norm.Rows(block_m=1, num_warps=config.num_warps, early=1)
    add = fused_add_rms_norm.Rows(block_m=1, num_warps=config.num_warps, early=1)
    dedup = swiglu.Blocks(num_warps=config.num_warps)
    scales = [*before[1:].unbind(), last]  # of the norm that the next layer begins with
    y = rms_norm.rows(x, before[0], config=norm)
    for i in range(len(qkv)):
        o = attend(torch.mm(y, qkv[i]), config.num_stages)
        y, x = fused_add_rms_norm.rows(torch.mm(o, out[i]), x, between[i], config=add)
        o = swiglu.blocks(torch.mm(y, up[i]), config=dedup)
        y, x = fused_add_rms_norm.rows(torch.mm(o, down[i]), x, scales[i], config=add)
    return y


def attend(qkv, depth):
    """Causal attention at a tile that any device takes."""
    small = causal_attention.Tiles(block_m=64, block_n=32, num_warps=4, num_stages=depth)
    return causal_attention.tiles(*heads(qkv), config=small).view(len(qkv), -1)


@model_step.impl(backend="torch", name="torch")
def library(x, before, qkv, out, between, up, down, last):
    norm, attention = torch.nn.functional.rms_norm, torch.nn.functional.scaled_dot_product_attention
    S, width = x.shape
    for i in range(len(qkv)):
        q, k, v = (t.transpose(1, 2) for t in heads(norm(x, (width,), before[i], 1e-6) @ qkv[i]))
        o = attention(q, k, v, is_causal=True).transpose(1, 2).reshape(S, width)
        x = x + o @ out[i]
        dedup, other = (norm(x, (width,), between[i], 1e-6) @ up[i]).chunk(2, dim=-1)
        x = x + (torch.nn.functional.silu(dedup) * other) @ down[i]
    return norm(x, (width,), last, 1e-6)
