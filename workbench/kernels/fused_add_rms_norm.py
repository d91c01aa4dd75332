"""Residual addition and RMS norm in one pass: h = x + r, y = h / sqrt(mean(h^2) + eps) * w.

What a transformer block begins with: r is the residual stream and h the new one. Two kernels write
the sum and read it again; this one reads two elements and writes two for 5 FLOP, memory-bound on
every GPU in `devices/`. y is computed from the sum before it is rounded to h.

NaN makes NaN of its row of y; an infinity gives NaN in its place and 0 in the rest of its row. In h
both stay in their places, and other rows do not see them.
"""

from dataclasses import dataclass, replace

import torch

from workbench.dsl import (
    LIGER,
    baseline,
    meta,
    normal,
    pad_up,
    policies,
    row_schemes,
    strides,
    tl,
    triton,
)
from workbench.kernels import rms_norm
from workbench.spec import AUTO, Spec, Tensor, among, stages, value_or

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
class Rows(row_schemes.Rows):
    hints: int = among(0, 1, default=1)  # x and r pass through the caches, w stays
    early: int = among(0, 1, default=AUTO)  # w is asked for before the row's sum is known


def size_rows(config, limits, *, itemsize, M, N):
    """Return the config with what is AUTO chosen by the sizes.

    A row beyond 16384 gets all the 1024 threads that a program can have, and no registers are left
    to ask early for w: 2048 rows of 32768 take 136 us so, read twice 156.
    """
    most = row_schemes.widest_rows(limits, N)
    config = row_schemes.fill_rows(config, limits, M, N, most)
    return replace(config, early=value_or(config.early, int(N <= 16_384)))


@fused_add_rms_norm.impl(
    Rows,
    resolve=size_rows,
    refuse=row_schemes.refuse_rows,
    work=row_schemes.rows_work(read=2, written=2, vectors=1),
)
def rows(x, r, w, *, config):
    """`block_m` whole rows in registers: x and r are read once."""
    M, N = x.shape
    y, h = x.new_empty(M, N), x.new_empty(M, N)
    once, kept = policies(config.hints)
    constants = dict(BLOCK_N=pad_up(N), EARLY=bool(config.early), ONCE=once, KEPT=kept)
    sizes = M, N, *strides(x, r, w), EPS
    rms_norm._rows[(triton.cdiv(M, config.block_m),)](
        x, r, w, y, h, *sizes, **constants, **meta(config)
    )
    return y, h


@dataclass(frozen=True)
class Persistent(row_schemes.Persistent):
    num_stages: int = stages(1, 4, default=3)


@fused_add_rms_norm.impl(
    Persistent,
    refuse=row_schemes.refuse_persistent(rows=2, most=96, read=2),  # of h and of w
    work=row_schemes.rows_work(read=2, written=2, vectors=1),
)
def persistent(x, r, w, *, config):
    """Each program walks many rows: w is read once and stays in registers, and the next rows are
    on their way while one is worked on."""
    M, N = x.shape
    y, h = x.new_empty(M, N), x.new_empty(M, N)
    grid, constants = row_schemes.persistent_launch(x, config)
    rms_norm._persistent[grid](x, r, w, y, h, M, N, *strides(x, r, w), EPS, **constants)
    return y, h


# Two programs of 32 warps fill a core, and more of their rows lies in its first-level cache when it
# is read again: 2048 rows of 32768 take 156 us on an H200, with four programs of 16 warps 186.
@fused_add_rms_norm.impl(
    row_schemes.Looped,
    resolve=row_schemes.size_blocks(long=8192),
    refuse=row_schemes.refuse_looped,
    work=row_schemes.looped_work(read=2, written=2),
    defaults=row_schemes.CDNA,
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
