"""Residual addition and RMS norm in one pass: h = x + r, y = h / sqrt(mean(h^2) + eps) * w.

What a transformer block begins with: r is the residual stream and h the new one. Apart, the sum is
written and read again; together they read two elements and write two for 5 FLOP, memory-bound on
every GPU in `hardware.py`. y is computed from the sum before it is rounded to h.

NaN makes NaN of its row of y; an infinity gives NaN in its place and 0 in the rest of its row. In h
both stay in their places, and other rows do not see them.
"""

from dataclasses import dataclass, replace

import torch

from workbench.dsl import (
    LIGER,
    baseline,
    cores,
    meta,
    normal,
    padded,
    policies,
    strides,
    tile_count,
    tl,
    triton,
)
from workbench.spec import AUTO, Spec, Tensor, Work, among, given, stages, threads, tile

EPS = 1e-6


def reference(x, r, w):
    """With EPS written out: taken from the kernel's own, a wrong one would not show."""
    h = x + r
    return h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6) * w, h


fused_add_rms_norm = Spec(
    name="fused_add_rms_norm",
    # r is always of ordinary size: sums of bf16 denormals are beyond Triton's interpreter
    inputs={"x": Tensor("M N"), "r": Tensor("M N", make=normal), "w": Tensor("N")},
    outputs={"y": Tensor("M N"), "h": Tensor("M N")},
    reference=reference,
    flops=lambda M, N: 5 * M * N,
    nonfinite=("x",),
    check=[{"M": 1, "N": 1}, {"M": 5, "N": 127}, {"M": 13, "N": 781}, {"M": 4, "N": 4096}],
    bench=[
        {"M": 8192, "N": 8192},
        {"M": 8192, "N": 4096},
        {"M": 2048, "N": 32_768},
        {"M": 32, "N": 4096},
        {"M": 1, "N": 5120},
    ],
)


@triton.jit
def _rows(
    x_ptr, r_ptr, w_ptr, y_ptr, h_ptr, M, N,
    stride_xm, stride_xn, stride_rm, stride_rn, stride_w,
    EPS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, EARLY: tl.constexpr,
    ONCE: tl.constexpr, KEPT: tl.constexpr,
):  # fmt: skip
    m = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
    n = tl.arange(0, BLOCK_N)[None, :]
    mask, wide = (m < M) & (n < N), n.to(tl.int64)
    x = tl.load(x_ptr + m * stride_xm + wide * stride_xn, mask, other=0.0, eviction_policy=ONCE)
    r = tl.load(r_ptr + m * stride_rm + wide * stride_rn, mask, other=0.0, eviction_policy=ONCE)
    if EARLY:
        w = tl.load(w_ptr + wide * stride_w, n < N, other=0.0, eviction_policy=KEPT).to(tl.float32)
    h = x.to(tl.float32) + r.to(tl.float32)
    tl.store(h_ptr + m * N + n, h.to(h_ptr.dtype.element_ty), mask)
    scale = tl.rsqrt(tl.sum(h * h, axis=1, keep_dims=True) / N + EPS)
    if not EARLY:
        w = tl.load(w_ptr + wide * stride_w, n < N, other=0.0, eviction_policy=KEPT).to(tl.float32)
    tl.store(y_ptr + m * N + n, (h * scale * w).to(y_ptr.dtype.element_ty), mask)


@triton.jit
def _persistent(
    x_ptr, r_ptr, w_ptr, y_ptr, h_ptr, M, N,
    stride_xm, stride_xn, stride_rm, stride_rn, stride_w,
    EPS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    n = tl.arange(0, BLOCK_N)[None, :]
    w = tl.load(w_ptr + n.to(tl.int64) * stride_w, n < N, other=0.0)
    x_ptrs, r_ptrs = x_ptr + n.to(tl.int64) * stride_xn, r_ptr + n.to(tl.int64) * stride_rn
    blocks = tl.cdiv(M, BLOCK_M)
    for block in tl.range(tl.program_id(0), blocks, tl.num_programs(0), num_stages=STAGES):
        m = (block * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
        mask = (m < M) & (n < N)
        x = tl.load(x_ptrs + m * stride_xm, mask, other=0.0, eviction_policy="evict_first")
        r = tl.load(r_ptrs + m * stride_rm, mask, other=0.0, eviction_policy="evict_first")
        h = x.to(tl.float32) + r.to(tl.float32)
        tl.store(h_ptr + m * N + n, h.to(h_ptr.dtype.element_ty), mask)
        scale = tl.rsqrt(tl.sum(h * h, axis=1, keep_dims=True) / N + EPS)
        y = h * scale * w.to(tl.float32)
        tl.store(y_ptr + m * N + n, y.to(y_ptr.dtype.element_ty), mask)


@triton.jit
def _looped(
    x_ptr, r_ptr, w_ptr, y_ptr, h_ptr, M, N,
    stride_xm, stride_xn, stride_rm, stride_rn, stride_w,
    EPS: tl.constexpr, BLOCK_N: tl.constexpr, ONCE: tl.constexpr, KEPT: tl.constexpr,
):  # fmt: skip
    # 8 neighbours, a thread's widest load of 16 bits, share one sum: registers for more loads
    m = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, BLOCK_N // 8)[:, None] * 8 + tl.arange(0, 8)[None, :]
    wide = n.to(tl.int64)
    x_ptrs = x_ptr + m * stride_xm + wide * stride_xn
    r_ptrs = r_ptr + m * stride_rm + wide * stride_rn
    squares = tl.zeros((BLOCK_N // 8,), tl.float32)
    for low in range(0, N, BLOCK_N):
        start, inside = tl.cast(low, tl.int64), n < N - low
        x = tl.load(x_ptrs + start * stride_xn, inside, other=0.0, eviction_policy=KEPT)
        r = tl.load(r_ptrs + start * stride_rn, inside, other=0.0, eviction_policy=KEPT)
        h = x.to(tl.float32) + r.to(tl.float32)
        tl.store(h_ptr + (m * N + start) + n, h.to(h_ptr.dtype.element_ty), inside)
        squares += tl.sum(h * h, axis=1)
    scale = tl.rsqrt(tl.sum(squares, axis=0) / N + EPS)
    last = (N - 1) // BLOCK_N * BLOCK_N
    for back in range(0, N, BLOCK_N):  # backwards: what was read last is still in the caches
        low = last - back
        start, inside = tl.cast(low, tl.int64), n < N - low
        x = tl.load(x_ptrs + start * stride_xn, inside, other=0.0, eviction_policy=ONCE)
        r = tl.load(r_ptrs + start * stride_rn, inside, other=0.0, eviction_policy=ONCE)
        w = tl.load(w_ptr + (start + wide) * stride_w, inside, other=0.0, eviction_policy=KEPT)
        y = (x.to(tl.float32) + r.to(tl.float32)) * scale * w.to(tl.float32)
        tl.store(y_ptr + (m * N + start) + n, y.to(y_ptr.dtype.element_ty), inside)


@dataclass(frozen=True)
class Rows:
    block_m: int = tile(1, 16, default=1)
    num_warps: int = threads(1, 32, default=8)
    hints: int = among(0, 1, default=1)  # x and r pass through the caches, w stays
    early: int = among(0, 1, default=1)  # w is asked for before the row's sum is known


@dataclass(frozen=True)
class RowsBySize(Rows):
    """AUTO: what suits the length and the number of the rows, see `size_rows`."""

    block_m: int = tile(1, 16, default=AUTO)
    num_warps: int = threads(1, 32, default=AUTO)
    early: int = among(0, 1, default=AUTO)


def size_rows(config, limits, *, itemsize, M, N):
    """Return the config with what is AUTO chosen by the sizes.

    A thread holds 16 elements, in 16 bits two of its widest loads: on an H200 softmax of rows of
    4096 takes 42.3 us with 8, 33.8 with 16 and 34.1 with 32. From 8 warps on it is 32, so that two
    programs still fit a core. A program costs a core some 70 ns to begin, as much as moving 2 KB
    there, so where there are many short rows, some of them share one. A row beyond 16384 gets all
    the 1024 threads that a program can have, and no registers are left to ask early for w: 2048
    rows of 32768 take 136 us so, read twice 156.
    """
    short = min(16, max(1, 2048 // padded(N))) if M >= 4096 else 1
    block_m = given(config.block_m, short)
    held = block_m * padded(N)
    widest = limits.threads_per_block // limits.warp_size if N > 16_384 else 16
    share = 256 if limits.cores >= M else 512  # a row for each core waits for its loads alone
    suited = max(1, min(8, held // share), min(widest, held // 1024))
    num_warps = given(config.num_warps, suited)
    early = given(config.early, int(N <= 16_384))
    return replace(config, block_m=block_m, num_warps=num_warps, early=early)


def refuse_rows(config, limits, *, itemsize, M, N):
    threads_ = config.num_warps * limits.warp_size
    held = config.block_m * padded(N) // threads_
    most = 64 if threads_ < 1024 else 32  # 1024 threads have 64 registers each
    return limits.refuse_program(threads_, held, most)


def rows_work(config, limits, *, itemsize, M, N):
    moved = config.block_m * N * itemsize
    tiles, loaded = tile_count(config, M=M), 2 * moved + N * itemsize
    return Work(tiles=tiles, steps=1, load_bytes=loaded, store_bytes=2 * moved)


@fused_add_rms_norm.impl(RowsBySize, resolve=size_rows, refuse=refuse_rows, work=rows_work)
def rows(x, r, w, *, config):
    """`block_m` whole rows in registers: x and r are read once."""
    M, N = x.shape
    y, h = x.new_empty(M, N), x.new_empty(M, N)
    once, kept = policies(config.hints)
    constants = dict(BLOCK_N=padded(N), EARLY=bool(config.early), ONCE=once, KEPT=kept)
    sizes = M, N, *strides(x, r, w), EPS
    _rows[(triton.cdiv(M, config.block_m),)](x, r, w, y, h, *sizes, **constants, **meta(config))
    return y, h


@dataclass(frozen=True)
class Persistent:
    block_m: int = tile(1, 4, default=1)
    num_warps: int = threads(4, 16, default=8)
    num_stages: int = stages(1, 4, default=3)
    per_core: int = among(1, 2, 3, 4, default=2)  # programs on one core


def refuse_persistent(config, limits, *, itemsize, M, N):
    threads_ = config.num_warps * limits.warp_size
    block = config.block_m * padded(N)
    held = 2 * block // threads_  # of h and of w
    most = min(96, 65_536 // threads_ - 48)  # NVIDIA has 65536 registers a core, AMD more
    buffers = (config.num_stages - 1) * 2 * block * itemsize
    return limits.refuse_program(threads_, held, most, buffers)


@fused_add_rms_norm.impl(Persistent, refuse=refuse_persistent, work=rows_work)
def persistent(x, r, w, *, config):
    """Each program walks many rows: w is read once and stays in registers, and the next rows are
    on their way while one is worked on."""
    M, N = x.shape
    y, h = x.new_empty(M, N), x.new_empty(M, N)
    programs = min(cores(x) * config.per_core, triton.cdiv(M, config.block_m))
    constants = dict(BLOCK_M=config.block_m, BLOCK_N=padded(N), STAGES=config.num_stages)
    sizes = M, N, *strides(x, r, w), EPS
    _persistent[(programs,)](x, r, w, y, h, *sizes, **constants, num_warps=config.num_warps)
    return y, h


@dataclass(frozen=True)
class Looped:
    """AUTO: what suits the length of the rows, see `size_blocks`."""

    block_n: int = tile(512, 16_384, default=AUTO)
    num_warps: int = threads(1, 32, default=AUTO)
    hints: int = among(0, 1, default=1)  # what is read again stays in the caches


def size_blocks(config, limits, *, itemsize, M, N):
    """Return the config with what is AUTO chosen by the length of the rows.

    Two programs of 32 warps fill a core, and more of their rows lies in its first-level cache when
    it is read again: 2048 rows of 32768 take 156 us on an H200, with four programs of 16 warps 186.
    Shorter rows of four programs lie there too.
    """
    long = N > 16_384
    block_n = given(config.block_n, 8192 if long else max(512, min(4096, padded(N))))
    suited = max(1, min(32, block_n // 256))
    num_warps = given(config.num_warps, suited)
    return replace(config, block_n=block_n, num_warps=num_warps)


def refuse_looped(config, limits, *, itemsize, M, N):
    held = config.block_n // (config.num_warps * limits.warp_size)
    return limits.refuse_held(held, 64)


def looped_work(config, limits, *, itemsize, M, N):
    steps, row = 2 * tile_count(config, N=N), 2 * N * itemsize
    return Work(tiles=M, steps=steps, load_bytes=2 * config.block_n * itemsize, store_bytes=row)


# 64 threads a warp
CDNA = {"gfx90a gfx942 gfx950": Looped(block_n=4096, num_warps=8)}


@fused_add_rms_norm.impl(
    Looped, resolve=size_blocks, refuse=refuse_looped, work=looped_work, defaults=CDNA
)
def looped(x, r, w, *, config):
    """One row in blocks: any length, but x and r are read twice."""
    M, N = x.shape
    y, h = x.new_empty(M, N), x.new_empty(M, N)
    once, kept = policies(config.hints)
    _looped[(M,)](x, r, w, y, h, M, N, *strides(x, r, w), EPS, ONCE=once, KEPT=kept, **meta(config))
    return y, h


@baseline(fused_add_rms_norm)
def library(x, r, w):
    h = x + r
    return torch.nn.functional.rms_norm(h, w.shape, w, EPS), h


@fused_add_rms_norm.library("liger", refuse=LIGER.refuse_rows(N=65_536))
def liger(x, r, w):
    """Its mode that computes in fp32 from h on, which is rounded first."""
    return LIGER("ops:LigerFusedAddRMSNormFunction.apply")(x, r, w, EPS, 0.0, "gemma")
