"""Transpose: y[n, m] = x[m, n].

Nothing is computed, so memory limits it; what costs is that one of the two sides walks memory
across its rows. A tile is read along the rows of x and written along those of y, and turned round
in shared memory between, so that both sides move whole lines of 64 bytes or more.

The bits are moved, also those of NaN.
"""

from dataclasses import dataclass

import torch

from workbench.dsl import baseline, meta, tile_count, tl, triton
from workbench.spec import Spec, Tensor, Tolerance, Work, among, threads, tile


def reference(x):
    return torch.stack(x.unbind(1))


transpose = Spec(
    name="transpose",
    inputs={"x": Tensor("M N")},
    outputs={"y": Tensor("N M")},
    reference=reference,
    flops=lambda M, N: 0,
    nonfinite=("x",),
    check=[{"M": 1, "N": 1}, {"M": 5, "N": 127}, {"M": 129, "N": 66}],
    bench=[{"M": 8192, "N": 8192}, {"M": 65_536, "N": 1024}, {"M": 4096, "N": 11_008}],
    tolerance={dtype: Tolerance(relative=0.0) for dtype in ("fp32", "fp16", "bf16")},
)


@triton.jit
def _tiles(
    x_ptr, y_ptr, M, N, stride_m, stride_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    # GROUP_M tiles below each other are neighbours in time: their columns of y fill whole pages
    rows, columns = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    program = tl.program_id(0)
    band = program // (GROUP_M * columns)
    first = band * GROUP_M
    height = tl.minimum(rows - first, GROUP_M)
    within = program % (GROUP_M * columns)
    m = ((first + within % height) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    n = ((within // height) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    mask = (m < M)[:, None] & (n < N)[None, :]
    x = tl.load(x_ptr + m[:, None] * stride_m + n[None, :] * stride_n, mask)
    tl.store(y_ptr + n[:, None] * M + m[None, :], tl.trans(x), tl.trans(mask))


@dataclass(frozen=True)
class Tiles:
    block_m: int = tile(16, 256, default=64)
    block_n: int = tile(16, 256, default=64)
    group_m: int = among(1, 8, default=8)
    num_warps: int = threads(2, 16, default=4)


def refuse_tiles(config, limits, *, itemsize, M, N):
    elements = config.block_m * config.block_n
    held = elements // (config.num_warps * limits.warp_size)
    if not 4 <= held <= 64:
        block = f"{held} elements of the tile"
        return f"each thread would hold {block}; 4 to 64 elements are worth trying"
    if elements * itemsize > limits.shared_bytes // 2:
        return f"a tile of {elements * itemsize} bytes leaves no room for a second block beside it"
    return None


def work(config, limits, *, itemsize, M, N):
    moved = config.block_m * config.block_n * itemsize
    tiles = tile_count(config, M=M, N=N)
    return Work(tiles=tiles, steps=1, load_bytes=moved, store_bytes=moved)


@transpose.impl(Tiles, refuse=refuse_tiles, work=work)
def tiles(x, *, config):
    """One program turns one tile round in shared memory: both sides move whole lines."""
    M, N = x.shape
    y = x.new_empty(N, M)
    grid = tile_count(config, M=M, N=N)
    _tiles[(grid,)](x, y, M, N, *x.stride(), **meta(config))
    return y


@baseline(transpose)
def library(x):
    return x.t().contiguous()
