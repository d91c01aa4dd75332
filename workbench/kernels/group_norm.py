"""What RWKV-7 does to the output of its recurrence, head by head:

y = ((x - mean(x)) / sqrt(var(x) + eps) * weight + bias + sum(r * k * r_k) * v) * g

Mean, variance and sum run over the N channels of one head of one token; eps is 64e-5. About 14
FLOP for six elements moved: memory-bound everywhere. A head is 64 channels, so one program takes
many heads, each spread over the few threads that one wide load of it needs.

NaN or an infinity in x makes NaN of its head, only for that token.
"""

from dataclasses import dataclass

import torch

from workbench.dsl import baseline, meta, strides, tile_count, tl, triton
from workbench.spec import Extent, Spec, Tensor, Work, rms_bounds, threads, tile

EPS = 64e-5


def reference(x, r, k, v, g, weight, bias, bonus):
    centred = x - x.mean(-1, keepdim=True)
    # EPS written out: taken from the kernel's own, a wrong one would not show
    normal = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + 64e-5)
    kept = (r * k * bonus).sum(-1, keepdim=True) * v
    return (normal * weight + bias + kept) * g


group_norm = Spec(
    name="group_norm",
    inputs={
        "x": Tensor("M H N"),
        "r": Tensor("M H N"),
        "k": Tensor("M H N"),
        "v": Tensor("M H N"),
        "g": Tensor("M H N"),
        "weight": Tensor("H N"),
        "bias": Tensor("H N"),
        "bonus": Tensor("H N"),
    },
    outputs={"y": Tensor("M H N")},
    reference=reference,
    flops=lambda M, H, N: 14 * M * H * N,
    check=[{"M": 1, "H": 1, "N": 64}, {"M": 7, "H": 5, "N": 64}, {"M": 3, "H": 3, "N": 32}],
    bench=[{"M": 32_768, "H": 40, "N": 64}, {"M": 64, "H": 40, "N": 64}],
    extents={"N": Extent(choices=(32, 64, 128))},
    # The sum over a head may cancel: what rounding leaves is in proportion to the sum's parts.
    tolerance=rms_bounds(fp32=1e-5, fp16=1e-5, bf16=1e-5),
)


@triton.jit
def _heads(
    x_ptr, r_ptr, k_ptr, v_ptr, g_ptr, weight_ptr, bias_ptr, bonus_ptr, y_ptr, M, H,
    stride_xm, stride_xh, stride_xn, stride_rm, stride_rh, stride_rn,
    stride_km, stride_kh, stride_kn, stride_vm, stride_vh, stride_vn,
    stride_gm, stride_gh, stride_gn, stride_wh, stride_wn, stride_bh, stride_bn,
    stride_uh, stride_un, EPS: tl.constexpr, N: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0).to(tl.int64) * BLOCK_H + tl.arange(0, BLOCK_H)[:, None]
    m, h = head // H, head % H
    n = tl.arange(0, N)[None, :].to(tl.int64)
    mask = head < tl.cast(M, tl.int64) * H
    x = tl.load(x_ptr + m * stride_xm + h * stride_xh + n * stride_xn, mask, other=0.0)
    r = tl.load(r_ptr + m * stride_rm + h * stride_rh + n * stride_rn, mask, other=0.0)
    k = tl.load(k_ptr + m * stride_km + h * stride_kh + n * stride_kn, mask, other=0.0)
    v = tl.load(v_ptr + m * stride_vm + h * stride_vh + n * stride_vn, mask, other=0.0)
    g = tl.load(g_ptr + m * stride_gm + h * stride_gh + n * stride_gn, mask, other=0.0)
    weight = tl.load(weight_ptr + h * stride_wh + n * stride_wn)
    bias = tl.load(bias_ptr + h * stride_bh + n * stride_bn)
    bonus = tl.load(bonus_ptr + h * stride_uh + n * stride_un)
    x = x.to(tl.float32)
    x -= tl.sum(x, axis=1, keep_dims=True) / N
    x *= tl.rsqrt(tl.sum(x * x, axis=1, keep_dims=True) / N + EPS)
    kept = r.to(tl.float32) * k.to(tl.float32) * bonus.to(tl.float32)
    y = x * weight.to(tl.float32) + bias.to(tl.float32)
    y += tl.sum(kept, axis=1, keep_dims=True) * v.to(tl.float32)
    y *= g.to(tl.float32)
    tl.store(y_ptr + head * N + n, y.to(y_ptr.dtype.element_ty), mask)


@dataclass(frozen=True)
class Heads:
    block_h: int = tile(4, 128, default=32)
    num_warps: int = threads(1, 8, default=4)


def refuse_heads(config, limits, *, itemsize, M, H, N):
    held = config.block_h * N // (config.num_warps * limits.warp_size)
    if held > 32:
        return f"each thread would hold {held} elements of each of five inputs; 32 is the most"
    if held < 4:
        return f"{config.num_warps} warps leave each thread {held} elements, less than one load"
    return None


def work(config, limits, *, itemsize, M, H, N):
    moved = config.block_h * N * itemsize
    return Work(tiles=-(-M * H // config.block_h), steps=1, load_bytes=5 * moved, store_bytes=moved)


@group_norm.impl(Heads, refuse=refuse_heads, work=work)
def heads(x, r, k, v, g, weight, bias, bonus, *, config):
    """`block_h` heads in registers: five inputs are read once, and nothing else is written."""
    M, H, N = x.shape
    y = x.new_empty(M, H, N)
    inputs = x, r, k, v, g, weight, bias, bonus
    grid = (tile_count(config, H=M * H),)
    _heads[grid](*inputs, y, M, H, *strides(*inputs), EPS=EPS, N=N, **meta(config))
    return y


@baseline(group_norm)
def library(x, r, k, v, g, weight, bias, bonus):
    M, H, N = x.shape
    flat = x.reshape(M, H * N), H, weight.reshape(-1), bias.reshape(-1)
    normal = torch.nn.functional.group_norm(*flat, EPS).view(M, H, N)
    return (normal + (r * k * bonus).sum(-1, keepdim=True) * v) * g
