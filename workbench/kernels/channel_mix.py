"""Squared ReLU, y = max(k, 0)^2: the step between the two products of RWKV's channel mixing.

RWKV-7 computes Wv max(Wk x, 0)^2, and RWKV-6 multiplies that by sigmoid(r) behind the second
product. 2 FLOP for two elements moved: memory-bound everywhere, at the speed of a copy.

NaN stays NaN in its place, and -inf becomes 0.
"""

from dataclasses import dataclass

import torch

from workbench.dsl import LIGER, baseline, meta, tile_count, tl, triton
from workbench.spec import Spec, Tensor, Work, threads, tile


def reference(k):
    return torch.where(k < 0, 0.0, k * k)


channel_mix = Spec(
    name="channel_mix",
    inputs={"k": Tensor("M F")},
    outputs={"y": Tensor("M F")},
    reference=reference,
    flops=lambda M, F: 2 * M * F,
    check=[{"M": 1, "F": 1}, {"M": 5, "F": 127}, {"M": 37, "F": 781}],
    bench=[{"M": 8192, "F": 10_240}, {"M": 64, "F": 10_240}],
)


@triton.jit
def _tiles(
    k_ptr, y_ptr, M, F, stride_m, stride_f, BLOCK_M: tl.constexpr, BLOCK_F: tl.constexpr
):  # fmt: skip
    blocks = tl.cdiv(F, BLOCK_F)
    m = (tl.program_id(0) // blocks).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    f = (tl.program_id(0) % blocks) * BLOCK_F + tl.arange(0, BLOCK_F)[None, :]
    mask = (m < M) & (f < F)
    k = tl.load(k_ptr + m * stride_m + f.to(tl.int64) * stride_f, mask, other=0.0).to(tl.float32)
    k = tl.where(k < 0, 0.0, k)  # a maximum would lose NaN
    tl.store(y_ptr + m * F + f, (k * k).to(y_ptr.dtype.element_ty), mask)


@dataclass(frozen=True)
class Tiles:
    block_m: int = tile(1, 16, default=4)
    block_f: int = tile(128, 4096, default=1024)
    num_warps: int = threads(1, 16, default=8)


def refuse_tiles(config, limits, *, itemsize, M, F):
    held = config.block_m * config.block_f // (config.num_warps * limits.warp_size)
    if held > 64:
        return f"each thread would hold {held} elements in registers; 64 is the most"
    if held < 4:
        return f"{config.num_warps} warps leave each thread {held} elements, less than one load"
    return None


def work(config, limits, *, itemsize, M, F):
    moved = config.block_m * config.block_f * itemsize
    tiles_ = tile_count(config, M=M, F=F)
    return Work(tiles=tiles_, steps=1, load_bytes=moved, store_bytes=moved)


@channel_mix.impl(Tiles, refuse=refuse_tiles, work=work)
def tiles(k, *, config):
    """One pass, one tile per program: each element is read once and written once."""
    M, F = k.shape
    y = k.new_empty(M, F)
    _tiles[(tile_count(config, M=M, F=F),)](k, y, M, F, *k.stride(), **meta(config))
    return y


@baseline(channel_mix)
def library(k):
    return torch.relu(k).square()


@channel_mix.library("liger", refuse=LIGER.refuse_rows(F=65_536))
def liger(k):
    return LIGER("ops:LigerReLUSquaredFunction.apply")(k)
