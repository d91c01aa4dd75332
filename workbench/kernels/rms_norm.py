"""RMS norm over the last axis: y = x / sqrt(mean(x^2) + eps) * w.

At 4 FLOP for two elements moved it is memory-bound on every GPU in `devices/`: a row is read
once while it fits into registers (`rows`, `persistent`) and twice when it is walked in blocks
(`looped`). What is left to win is w: read for each row it doubles what the caches must deliver,
so it is kept in the first-level cache (`hints`) or in registers (`persistent`).

NaN in x makes NaN of its row; an infinity gives NaN in its place and 0 in the rest of its row.
Other rows do not see them.
"""

from dataclasses import dataclass, replace

import torch

from workbench.dsl import (
    LIGER,
    baseline,
    meta,
    pad_up,
    policies,
    row_schemes,
    strides,
    tl,
    triton,
)
from workbench.spec import AUTO, Spec, Tensor, among, value_or

EPS = 1e-6


def reference(x, w):
    """With EPS written out: taken from the kernel's own, a wrong one would not show."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w


rms_norm = Spec(
    name="rms_norm",
    inputs={"x": Tensor("M N"), "w": Tensor("N")},
    outputs={"y": Tensor("M N")},
    reference=reference,
    flops=lambda M, N: 4 * M * N,
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


# With a residual r, as in `fused_add_rms_norm`, the row is h = x + r, which is stored as well.
# Without one, r, its strides and h are None: then they are no arguments of the compiled kernel.
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
    if r_ptr is None:
        h = x.to(tl.float32)
    else:
        r = tl.load(r_ptr + m * stride_rm + wide * stride_rn, mask, other=0.0, eviction_policy=ONCE)
    if EARLY:
        w = tl.load(w_ptr + wide * stride_w, n < N, other=0.0, eviction_policy=KEPT).to(tl.float32)
    if r_ptr is not None:
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
    x_ptrs = x_ptr + n.to(tl.int64) * stride_xn
    if r_ptr is not None:
        r_ptrs = r_ptr + n.to(tl.int64) * stride_rn
    blocks = tl.cdiv(M, BLOCK_M)
    for block in tl.range(tl.program_id(0), blocks, tl.num_programs(0), num_stages=STAGES):
        m = (block * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
        mask = (m < M) & (n < N)
        x = tl.load(x_ptrs + m * stride_xm, mask, other=0.0, eviction_policy="evict_first")
        if r_ptr is not None:
            r = tl.load(r_ptrs + m * stride_rm, mask, other=0.0, eviction_policy="evict_first")
        h = x.to(tl.float32)
        if r_ptr is not None:
            h += r.to(tl.float32)
            tl.store(h_ptr + m * N + n, h.to(h_ptr.dtype.element_ty), mask)
        scale = tl.rsqrt(tl.sum(h * h, axis=1, keep_dims=True) / N + EPS)
        y = h * scale * w.to(tl.float32)
        tl.store(y_ptr + m * N + n, y.to(y_ptr.dtype.element_ty), mask)


@triton.jit
def _looped(
    x_ptr, w_ptr, y_ptr, M, N, stride_m, stride_n, stride_w,
    EPS: tl.constexpr, BLOCK_N: tl.constexpr, ONCE: tl.constexpr, KEPT: tl.constexpr,
):  # fmt: skip
    # 8 neighbours, a thread's widest load of 16 bits, share one sum: registers for more loads
    m = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, BLOCK_N // 8)[:, None] * 8 + tl.arange(0, 8)[None, :]
    x_ptrs = x_ptr + m * stride_m + n.to(tl.int64) * stride_n
    w_ptrs = w_ptr + n.to(tl.int64) * stride_w
    squares = tl.zeros((BLOCK_N // 8,), tl.float32)
    for low in range(0, N, BLOCK_N):
        x_low = x_ptrs + tl.cast(low, tl.int64) * stride_n
        x = tl.load(x_low, n < N - low, other=0.0, eviction_policy=KEPT).to(tl.float32)
        squares += tl.sum(x * x, axis=1)
    scale = tl.rsqrt(tl.sum(squares, axis=0) / N + EPS)
    last = (N - 1) // BLOCK_N * BLOCK_N
    for back in range(0, N, BLOCK_N):  # backwards: what was read last is still in the caches
        low = last - back
        start, inside = tl.cast(low, tl.int64), n < N - low
        x = tl.load(x_ptrs + start * stride_n, inside, other=0.0, eviction_policy=ONCE)
        w = tl.load(w_ptrs + start * stride_w, inside, other=0.0, eviction_policy=KEPT)
        y = x.to(tl.float32) * scale * w.to(tl.float32)
        tl.store(y_ptr + (m * N + start) + n, y.to(y_ptr.dtype.element_ty), inside)


@dataclass(frozen=True)
class Rows(row_schemes.Rows):
    early: int = among(0, 1, default=AUTO)  # w is asked for before the row's sum is known


def size_rows(config, limits, *, itemsize, M, N):
    """Return the config with what is AUTO chosen by the sizes.

    A row beyond 16384 gets all the threads that a program can have: 2048 rows of 32768 take 71.4 us
    so, with 16 warps 72.3. Such threads have 64 registers, too few for 32 numbers of x and as many
    of w in fp32: 64 bytes of them spill on sm_90 if w is asked for early.
    """
    most = row_schemes.widest_rows(limits, N)
    config = row_schemes.fill_rows(config, limits, M, N, most)
    return replace(config, early=value_or(config.early, 0 if N > 16_384 and itemsize > 2 else 1))


@rms_norm.impl(
    Rows, resolve=size_rows, refuse=row_schemes.refuse_rows, work=row_schemes.rows_work(vectors=1)
)
def rows(x, w, *, config):
    """`block_m` whole rows in registers: x is read once."""
    M, N = x.shape
    y = x.new_empty(M, N)
    once, kept = policies(config.hints)
    constants = dict(BLOCK_N=pad_up(N), EARLY=bool(config.early), ONCE=once, KEPT=kept)
    sizes = M, N, *x.stride(), None, None, w.stride(0), EPS
    grid = (triton.cdiv(M, config.block_m),)
    _rows[grid](x, None, w, y, None, *sizes, **constants, **meta(config))
    return y


@rms_norm.impl(
    row_schemes.Persistent,
    refuse=row_schemes.refuse_persistent(rows=2, most=96),  # of x and of w
    work=row_schemes.rows_work(vectors=1),
)
def persistent(x, w, *, config):
    """Each program walks many rows: w is read once and stays in registers, and the next rows are
    on their way while one is worked on."""
    M, N = x.shape
    y = x.new_empty(M, N)
    grid, constants = row_schemes.persistent_launch(x, config)
    sizes = M, N, *x.stride(), None, None, w.stride(0), EPS
    _persistent[grid](x, None, w, y, None, *sizes, **constants)
    return y


# Two programs of 32 warps fill a core, and their rows lie in its first-level cache when they are
# read again: with blocks of 8192, one load of each thread on its way, 2048 rows of 32768 take 70.0
# us on an H200, with four programs of 16 warps 78.2. Softmax gains 11 % from a second load.
@rms_norm.impl(
    row_schemes.Looped,
    resolve=row_schemes.size_blocks(long=16_384),
    refuse=row_schemes.refuse_looped,
    work=row_schemes.looped_work(),
    defaults=row_schemes.CDNA,
)
def looped(x, w, *, config):
    """One row in blocks: any length, but x is read twice."""
    M, N = x.shape
    y = x.new_empty(M, N)
    once, kept = policies(config.hints)
    _looped[(M,)](x, w, y, M, N, *strides(x, w), EPS, ONCE=once, KEPT=kept, **meta(config))
    return y


@baseline(rms_norm)
def library(x, w):
    return torch.nn.functional.rms_norm(x, w.shape, w, EPS)


@rms_norm.library("liger", refuse=LIGER.refuse_rows(N=65_536))
def liger(x, w):
    """Its mode that computes in fp32 throughout, as ours does."""
    return LIGER("ops:LigerRMSNormFunction.apply")(x, w, EPS, 0.0, "gemma")
