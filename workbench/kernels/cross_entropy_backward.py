"""Gradient of cross entropy: d = (exp(logits - lse) - [v = target]) * g, row by row, where lse is
the forward pass' log of the sum and g the gradient of the row's loss. Rows whose target lies
outside 0..V-1 (-100, say) are ignored: their gradient is 0, and they are not read.

At 4 FLOP for two elements moved it is memory-bound on every GPU in `devices/`. With lse at hand
no element depends on another: one pass, no reduction, and any element may go to any program.

NaN in a logit that counts stays in its place, and -inf has the probability 0.
"""

from dataclasses import dataclass

import torch

from workbench.dsl import baseline, meta, strides, tile_count, tl, triton
from workbench.spec import Spec, Tensor, Tolerance, Work, threads, tile


def reference(logits, target, lse, g):
    V = logits.shape[1]
    ignored = ((target < 0) | (target >= V))[:, None]
    column = torch.arange(V, device=logits.device)
    softmax = torch.exp(logits - lse[:, None])
    d = (softmax - (column == target[:, None]).to(logits.dtype)) * g[:, None]
    return torch.where(ignored, 0.0, d)


def ids(shape, dtype, device, generator):
    """Token ids as Zipf's law has them: spread evenly over the logarithm, up to 2^17 = 131072; one
    in sixteen is -100, which asks to be ignored."""
    even = torch.rand(shape, generator=generator, device=device, dtype=torch.float64)
    token = torch.exp2(17 * (even * 16 % 1)).to(dtype) - 1
    return torch.where(even < 0.0625, -100, token)


def logs(shape, dtype, device, generator):
    """About log(V) + 1/2, which standard normal logits sum to, for V of some thousands."""
    return 8 + torch.randn(shape, generator=generator, device=device).to(dtype)


cross_entropy_backward = Spec(
    name="cross_entropy_backward",
    inputs={
        "logits": Tensor("M V"),
        "target": Tensor("M", dtype="int64", make=ids),
        "lse": Tensor("M", dtype="fp32", make=logs),
        "g": Tensor("M", dtype="fp32"),
    },
    outputs={"d": Tensor("M V")},
    reference=reference,
    flops=lambda M, V: 4 * M * V,
    check=[{"M": 1, "V": 1}, {"M": 9, "V": 127}, {"M": 13, "V": 1781}, {"M": 3, "V": 4096}],
    bench=[{"M": 4096, "V": 128_256}, {"M": 8192, "V": 32_000}],
    tolerance={
        # fp32: (x - lse) * log2(e) is rounded before the exponential, 1e-5 at -80; and where
        # p is near 1, p - 1 keeps the rounding of p
        "fp32": Tolerance(relative=2e-5, rms_share=1e-5),
        "fp16": Tolerance(relative=1e-3, rms_share=1e-4),
        "bf16": Tolerance(relative=8e-3, rms_share=1e-4),
    },
)


@triton.jit
def _blocks(
    x_ptr, target_ptr, lse_ptr, g_ptr, d_ptr, V, stride_m, stride_v, stride_t, stride_l, stride_g,
    BLOCK_V: tl.constexpr,
):  # fmt: skip
    grid_v = tl.cdiv(V, BLOCK_V)
    pid = tl.program_id(0)
    m = (pid // grid_v).to(tl.int64)
    v = (pid % grid_v).to(tl.int64) * BLOCK_V + tl.arange(0, BLOCK_V)
    target = tl.load(target_ptr + m * stride_t)
    valid = (target >= 0) & (target < V)
    high = tl.where(valid, V, 0)
    lse, g = tl.load(lse_ptr + m * stride_l), tl.load(g_ptr + m * stride_g)
    x = tl.load(x_ptr + m * stride_m + v * stride_v, v < high, other=0.0).to(tl.float32)
    d = (tl.exp(x - lse) - tl.where(v == target, 1.0, 0.0)) * g
    d = tl.where(valid, d, 0.0)
    tl.store(d_ptr + m * V + v, d.to(d_ptr.dtype.element_ty), v < V)


@dataclass(frozen=True)
class Blocks:
    block_v: int = tile(512, 16_384, default=2048)
    num_warps: int = threads(1, 16, default=8)


def refuse_blocks(config, limits, *, itemsize, M, V):
    threads_ = config.num_warps * limits.warp_size
    if config.block_v // threads_ > 64:
        return f"each thread would hold {config.block_v // threads_} elements; 64 is the most"
    return None


def work(config, limits, *, itemsize, M, V):
    moved = config.block_v * itemsize
    return Work(tiles=M * -(-V // config.block_v), steps=1, load_bytes=moved, store_bytes=moved)


# 64 threads a warp: 8 elements of 16 bits for each make one load of 128 bits
CDNA = {"gfx90a gfx942 gfx950": Blocks(2048, 4)}


@cross_entropy_backward.impl(Blocks, refuse=refuse_blocks, work=work, defaults=CDNA)
def blocks(logits, target, lse, g, *, config):
    """One program owns `block_v` neighbours of a row."""
    M, V = logits.shape
    d = logits.new_empty(M, V)
    inputs, grid = (logits, target, lse, g), (M * tile_count(config, V=V),)
    _blocks[grid](*inputs, d, V, *strides(*inputs), **meta(config))
    return d


@baseline(cross_entropy_backward)
def library(logits, target, lse, g):
    d = torch.exp(logits.float() - lse[:, None])
    valid = (target >= 0) & (target < logits.shape[1])
    rows = torch.arange(len(d), device=d.device)
    d[rows, torch.where(valid, target, 0)] -= 1.0
    return torch.where(valid[:, None], d * g[:, None], 0.0).to(logits.dtype)
