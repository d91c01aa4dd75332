"""SwiGLU: y = silu(gate) * up, where x = [gate | up] side by side, as one projection writes them.

At 6 FLOP for three elements moved (two read, one written) it is memory-bound on every GPU in
`devices/`; two bytes read for one written is a mix on which an H200 moves more bytes a second
than on a plain copy. Nothing is shared between elements, so all that counts is that each thread
has enough wide loads in flight and that no address arithmetic stands between them.

NaN and infinities stay in their places, one result each.
"""

from dataclasses import dataclass

import torch

from workbench.dsl import LIGER, baseline, meta, tile_count, tl, triton
from workbench.spec import Spec, Tensor, Tolerance, Work, among, threads, tile


def reference(x):
    gate, up = x.chunk(2, dim=-1)
    return gate * torch.sigmoid(gate) * up


swiglu = Spec(
    name="swiglu",
    inputs={"x": Tensor("M 2*N")},
    outputs={"y": Tensor("M N")},
    reference=reference,
    flops=lambda M, N: 6 * M * N,
    nonfinite=("x",),
    check=[{"M": 1, "N": 1}, {"M": 5, "N": 127}, {"M": 13, "N": 781}, {"M": 4, "N": 2048}],
    bench=[{"M": 8192, "N": 14_336}, {"M": 64, "N": 14_336}, {"M": 8192, "N": 4096}],
    tolerance={
        # fp32: gate * log2(e) is rounded before the exponential, 1e-5 at gate = -80
        "fp32": Tolerance(relative=2e-5, rms_share=1e-6),
        "fp16": Tolerance(relative=1e-3, rms_share=1e-6),
        "bf16": Tolerance(relative=8e-3, rms_share=1e-6),
    },
)


@triton.jit
def _blocks(
    x_ptr, y_ptr, M, N, stride_m, stride_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STREAM: tl.constexpr,
):  # fmt: skip
    grid_n = tl.cdiv(N, BLOCK_N)
    pid = tl.program_id(0)
    m = ((pid // grid_n) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
    n = ((pid % grid_n) * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]
    mask = (m < M) & (n < N)
    gates = x_ptr + m * stride_m + n.to(tl.int64) * stride_n
    ups = gates + tl.cast(N, tl.int64) * stride_n
    policy: tl.constexpr = "evict_first" if STREAM else ""
    gate = tl.load(gates, mask, other=0.0, eviction_policy=policy).to(tl.float32)
    up = tl.load(ups, mask, other=0.0, eviction_policy=policy).to(tl.float32)
    y = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(y_ptr + m * N + n, y.to(y_ptr.dtype.element_ty), mask)


@dataclass(frozen=True)
class Blocks:
    block_m: int = tile(1, 4, default=1)
    block_n: int = tile(256, 4096, default=1024)
    num_warps: int = threads(1, 8, default=4)
    stream: int = among(0, 1, default=0)  # ask the cache to drop what was read


def refuse_blocks(config, limits, *, itemsize, M, N):
    each = config.block_m * config.block_n / (config.num_warps * limits.warp_size)
    if each > 32:
        return f"each thread would hold {each:g} elements of both halves; 32 is the most"
    if each < 4:
        return f"each thread would have {each:g} elements, too few for wide loads"
    return None


def work(config, limits, *, itemsize, M, N):
    block = config.block_m * config.block_n * itemsize
    tiles = tile_count(config, M=M, N=N)
    return Work(tiles=tiles, steps=1, load_bytes=2 * block, store_bytes=block)


# 64 threads a warp: 8 elements of 16 bits for each make one load of 128 bits
CDNA = {"gfx90a gfx942 gfx950": Blocks(block_n=2048)}


@swiglu.impl(Blocks, refuse=refuse_blocks, work=work, defaults=CDNA)
def blocks(x, *, config):
    """One program owns a block of one or a few rows: two streams in, one out."""
    M, N = x.shape[0], x.shape[1] // 2
    y = x.new_empty(M, N)
    grid = tile_count(config, M=M, N=N)
    _blocks[(grid,)](x, y, M, N, *x.stride(), STREAM=bool(config.stream), **meta(config))
    return y


@baseline(swiglu)
def library(x):
    gate, up = x.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


@swiglu.library("liger", refuse=LIGER.refuse_rows(N=65_536))
def liger(x):
    return LIGER("ops:LigerFusedGateUpSiLUMulFunction.apply")(x)
