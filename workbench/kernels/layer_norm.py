"""Layer norm over the last axis: y = (x - mean(x)) / sqrt(var(x) + eps) * w + b.

At 7 FLOP for two elements moved it is memory-bound on every GPU in `devices/`. With the row in
registers the variance is the mean of the centred squares, which costs no second reading and does
not cancel as E[x^2] - E[x]^2 does. A row that is walked in blocks (`looped`) gets there by
Welford's update: groups of neighbours have their means and sums of squares, joined at the end.

NaN or an infinity in x makes NaN of its row and of no other.
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
from workbench.spec import AUTO, Spec, Tensor, among, rms_bounds, value_or

EPS = 1e-5


def reference(x, w, b):
    """With EPS written out: taken from the kernel's own, a wrong one would not show."""
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5) * w + b


layer_norm = Spec(
    name="layer_norm",
    inputs={"x": Tensor("M N"), "w": Tensor("N"), "b": Tensor("N")},
    outputs={"y": Tensor("M N")},
    reference=reference,
    flops=lambda M, N: 7 * M * N,
    nonfinite=("x",),
    check=[{"M": 1, "N": 1}, {"M": 5, "N": 127}, {"M": 13, "N": 781}, {"M": 4, "N": 4096}],
    bench=[
        {"M": 8192, "N": 4096},
        {"M": 8192, "N": 8192},
        {"M": 2048, "N": 32_768},
        {"M": 32, "N": 4096},
        {"M": 1, "N": 5120},
    ],
    # x - mean and the sum with b cancel: what fp32 lost before, some 2^-23 of a row's magnitude,
    # stays beside an element that is nearly zero.
    tolerance=rms_bounds(fp32=2e-6, fp16=2e-6, bf16=2e-6),
)


@triton.jit
def _rows(
    x_ptr, w_ptr, b_ptr, y_ptr, M, N, stride_m, stride_n, stride_w, stride_b,
    EPS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, EARLY: tl.constexpr,
    ONCE: tl.constexpr, KEPT: tl.constexpr,
):  # fmt: skip
    m = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
    n = tl.arange(0, BLOCK_N)[None, :]
    mask, wide = (m < M) & (n < N), n.to(tl.int64)
    x = tl.load(x_ptr + m * stride_m + wide * stride_n, mask, other=0.0, eviction_policy=ONCE)
    if EARLY:
        w = tl.load(w_ptr + wide * stride_w, n < N, other=0.0, eviction_policy=KEPT)
        b = tl.load(b_ptr + wide * stride_b, n < N, other=0.0, eviction_policy=KEPT)
    x = x.to(tl.float32)
    # div_rn: the mean of equal values must be that value, or 1 / sqrt(eps) magnifies what is left
    mean = tl.div_rn(tl.sum(x, axis=1, keep_dims=True), tl.cast(N, tl.float32))
    z = tl.where(n < N, x - mean, 0.0)
    z *= tl.rsqrt(tl.sum(z * z, axis=1, keep_dims=True) / N + EPS)
    if not EARLY:
        w = tl.load(w_ptr + wide * stride_w, n < N, other=0.0, eviction_policy=KEPT)
        b = tl.load(b_ptr + wide * stride_b, n < N, other=0.0, eviction_policy=KEPT)
    y = z * w.to(tl.float32) + b.to(tl.float32)
    tl.store(y_ptr + m * N + n, y.to(y_ptr.dtype.element_ty), mask)


@triton.jit
def _persistent(
    x_ptr, w_ptr, b_ptr, y_ptr, M, N, stride_m, stride_n, stride_w, stride_b,
    EPS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    n = tl.arange(0, BLOCK_N)[None, :]
    w = tl.load(w_ptr + n.to(tl.int64) * stride_w, n < N, other=0.0)
    b = tl.load(b_ptr + n.to(tl.int64) * stride_b, n < N, other=0.0)
    x_ptrs = x_ptr + n.to(tl.int64) * stride_n
    blocks = tl.cdiv(M, BLOCK_M)
    for block in tl.range(tl.program_id(0), blocks, tl.num_programs(0), num_stages=STAGES):
        m = (block * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
        mask = (m < M) & (n < N)
        x = tl.load(x_ptrs + m * stride_m, mask, other=0.0, eviction_policy="evict_first")
        x = x.to(tl.float32)
        mean = tl.div_rn(tl.sum(x, axis=1, keep_dims=True), tl.cast(N, tl.float32))
        z = tl.where(n < N, x - mean, 0.0)
        z *= tl.rsqrt(tl.sum(z * z, axis=1, keep_dims=True) / N + EPS)
        y = z * w.to(tl.float32) + b.to(tl.float32)
        tl.store(y_ptr + m * N + n, y.to(y_ptr.dtype.element_ty), mask)


@triton.jit
def _looped(
    x_ptr, w_ptr, b_ptr, y_ptr, M, N, stride_m, stride_n, stride_w, stride_b,
    EPS: tl.constexpr, BLOCK_N: tl.constexpr, ONCE: tl.constexpr, KEPT: tl.constexpr,
):  # fmt: skip
    # 8 neighbours, a thread's widest load of 16 bits, are a group with one mean and one sum of
    # squares about it: two registers and a few instructions, where it was two for each element.
    # All of it is reckoned from the row's first element, so that a level leaves no trace.
    m = tl.program_id(0).to(tl.int64)
    groups = tl.arange(0, BLOCK_N // 8)
    n = groups[:, None] * 8 + tl.arange(0, 8)[None, :]
    wide = n.to(tl.int64)
    x_ptrs = x_ptr + m * stride_m + wide * stride_n
    origin = tl.load(x_ptr + m * stride_m).to(tl.float32)
    means = tl.zeros((BLOCK_N // 8,), tl.float32)
    squares, counts = means, means
    for low in range(0, N, BLOCK_N):
        start, inside = tl.cast(low, tl.int64), n < N - low
        x = tl.load(x_ptrs + start * stride_n, inside, other=0.0, eviction_policy=KEPT)
        x = tl.where(inside, x.to(tl.float32) - origin, 0.0)
        more = tl.minimum(tl.maximum(N - low - groups * 8, 0), 8).to(tl.float32)
        mean = tl.sum(x, axis=1) / tl.maximum(more, 1.0)
        apart = tl.where(inside, x - mean[:, None], 0.0)
        share = more / tl.maximum(counts + more, 1.0)
        away = mean - means
        means += away * share
        squares += tl.sum(apart * apart, axis=1) + away * away * counts * share
        counts += more
    mean = tl.sum(counts * means, axis=0) / N
    apart = means - mean
    scale = tl.rsqrt(tl.sum(squares + counts * apart * apart, axis=0) / N + EPS)
    last = (N - 1) // BLOCK_N * BLOCK_N
    for back in range(0, N, BLOCK_N):  # backwards: what was read last is still in the caches
        low = last - back
        start, inside = tl.cast(low, tl.int64), n < N - low
        x = tl.load(x_ptrs + start * stride_n, inside, other=0.0, eviction_policy=ONCE)
        w = tl.load(w_ptr + (start + wide) * stride_w, inside, other=0.0, eviction_policy=KEPT)
        b = tl.load(b_ptr + (start + wide) * stride_b, inside, other=0.0, eviction_policy=KEPT)
        y = (x.to(tl.float32) - origin - mean) * scale * w.to(tl.float32) + b.to(tl.float32)
        tl.store(y_ptr + (m * N + start) + n, y.to(y_ptr.dtype.element_ty), inside)


@dataclass(frozen=True)
class Rows(row_schemes.Rows):
    hints: int = among(0, 1, default=1)  # x passes through the caches, w and b stay
    early: int = among(0, 1, default=AUTO)  # w and b are asked for before the row's sums are known


def size_rows(config, limits, *, itemsize, M, N):
    """Return the config with what is AUTO chosen by the sizes.

    w and b are asked for early only where few rows leave nobody to wait for them: the registers
    cost 41.2 us instead of 36.0 at 8192 rows of 4096 and 94.4 instead of 70.2 at 8192. A row beyond
    16384 gets all the threads that a program can have: 2048 rows of 32768 take 91.8 us so, with 16
    warps 108.4.
    """
    most = row_schemes.widest_rows(limits, N)
    config = row_schemes.fill_rows(config, limits, M, N, most)
    return replace(config, early=value_or(config.early, int(M < 1024)))


@layer_norm.impl(
    Rows, resolve=size_rows, refuse=row_schemes.refuse_rows, work=row_schemes.rows_work(vectors=2)
)
def rows(x, w, b, *, config):
    """`block_m` whole rows in registers: x is read once."""
    M, N = x.shape
    y = x.new_empty(M, N)
    once, kept = policies(config.hints)
    constants = dict(BLOCK_N=pad_up(N), EARLY=bool(config.early), ONCE=once, KEPT=kept)
    sizes = M, N, *strides(x, w, b), EPS
    _rows[(triton.cdiv(M, config.block_m),)](x, w, b, y, *sizes, **constants, **meta(config))
    return y


@layer_norm.impl(
    row_schemes.Persistent,
    refuse=row_schemes.refuse_persistent(rows=3, most=96),  # of x, w and b
    work=row_schemes.rows_work(vectors=2),
)
def persistent(x, w, b, *, config):
    """Each program walks many rows: w and b are read once and stay in registers, and the next
    rows are on their way while one is worked on."""
    M, N = x.shape
    y = x.new_empty(M, N)
    grid, constants = row_schemes.persistent_launch(x, config)
    _persistent[grid](x, w, b, y, M, N, *strides(x, w, b), EPS, **constants)
    return y


# Two programs of 32 warps or four of 16 fill a core. The rows of two lie in its first-level cache
# when they are read again, beside w and b.
@layer_norm.impl(
    row_schemes.Looped,
    resolve=row_schemes.size_blocks(long=8192),
    refuse=row_schemes.refuse_looped,
    work=row_schemes.looped_work(),
    defaults=row_schemes.CDNA,
)
def looped(x, w, b, *, config):
    """One row in blocks: any length, but x is read twice."""
    M, N = x.shape
    y = x.new_empty(M, N)
    once, kept = policies(config.hints)
    _looped[(M,)](x, w, b, y, M, N, *strides(x, w, b), EPS, ONCE=once, KEPT=kept, **meta(config))
    return y


@baseline(layer_norm)
def library(x, w, b):
    return torch.nn.functional.layer_norm(x, w.shape, w, b, EPS)


@layer_norm.library("liger", refuse=LIGER.refuse_rows(N=65_536))
def liger(x, w, b):
    return LIGER("ops:LigerLayerNormFunction.apply")(x, w, b, EPS)
