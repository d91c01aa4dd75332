"""Gradients of layer norm: from x, w and dy = dL/dy to dx = dL/dx, dw = dL/dw and db = dL/db.

With r = 1 / sqrt(var(x) + eps), z = (x - mean(x)) * r and g = dy * w they are
dx = r * (g - mean(g) - z * mean(g * z)) for each row, dw = the sum of dy * z over all rows and db =
the sum of dy. At some 15 FLOP for two elements read and one written it is memory-bound on every GPU
in `devices/`: each row is read once, mean and r are computed from it again, and each program
keeps its own sums for dw and db in registers over all rows that it walks. Those partial sums, two
rows of fp32 a program, are added by a second launch in one fixed order, so that equal inputs give
equal bits.

NaN in dy makes NaN of its row of dx and of its column in dw and db, and of nothing else.
"""

from dataclasses import dataclass

import torch

from workbench.dsl import compile_call, normal, row_schemes, strides, tl, triton
from workbench.dsl.device import sum_pairs
from workbench.spec import Extent, Spec, Tensor, rms_bounds, stages

EPS = 1e-5


def reference(x, w, dy):
    """With EPS written out: taken from the kernel's own, a wrong one would not show."""
    centred = x - x.mean(-1, keepdim=True)
    r = torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5)
    z, g = centred * r, dy * w
    dx = r * (g - g.mean(-1, keepdim=True) - z * (g * z).mean(-1, keepdim=True))
    return dx, (dy * z).sum(0), dy.sum(0)


layer_norm_backward = Spec(
    name="layer_norm_backward",
    # Of rows of one or two elements, and of rows of equal ones, nothing is left of dx but what eps
    # is of the variance: below what fp32 can tell. So all are random, rows have 8
    # or more; and Triton's interpreter would round dx wrongly where w made it a bf16 denormal.
    inputs={
        "x": Tensor("M N", make=normal),
        "w": Tensor("N", make=normal),
        "dy": Tensor("M N", make=normal),
    },
    outputs={"dx": Tensor("M N"), "dw": Tensor("N"), "db": Tensor("N")},
    reference=reference,
    flops=lambda M, N: 15 * M * N,
    check=[{"M": 1, "N": 8}, {"M": 5, "N": 136}, {"M": 11, "N": 784}, {"M": 3, "N": 1032}],
    bench=[{"M": 8192, "N": 4096}, {"M": 8192, "N": 8192}, {"M": 16_384, "N": 2048}],
    extents={"N": Extent(multiple=8)},
    # The outputs are differences or sums of terms of either sign: what fp32 loses, 2^-24 of each
    # term and of the sum so far, stays beside an element that is nearly zero.
    tolerance=rms_bounds(fp32=1e-5, fp16=1e-5, bf16=1e-5),
)


@triton.jit
def _persistent(
    x_ptr, w_ptr, dy_ptr, dx_ptr, sums_ptr, M, N,
    stride_xm, stride_xn, stride_w, stride_ym, stride_yn,
    EPS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    n = tl.arange(0, BLOCK_N)[None, :]
    w = tl.load(w_ptr + n.to(tl.int64) * stride_w, n < N, other=0.0)
    x_ptrs, dy_ptrs = x_ptr + n.to(tl.int64) * stride_xn, dy_ptr + n.to(tl.int64) * stride_yn
    sums_w = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    sums_b = sums_w
    blocks = tl.cdiv(M, BLOCK_M)
    for block in tl.range(tl.program_id(0), blocks, tl.num_programs(0), num_stages=STAGES):
        m = (block * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
        mask = (m < M) & (n < N)
        x = tl.load(x_ptrs + m * stride_xm, mask, other=0.0, eviction_policy="evict_first")
        dy = tl.load(dy_ptrs + m * stride_ym, mask, other=0.0, eviction_policy="evict_first")
        x, dy = x.to(tl.float32), dy.to(tl.float32)
        g = dy * w.to(tl.float32)
        level, mean = sum_pairs(g, x)
        level, mean = level / N, tl.div_rn(mean, tl.cast(N, tl.float32))
        z = tl.where(n < N, x - mean, 0.0)
        along, squares = sum_pairs(g * z, z * z)
        r = tl.rsqrt(squares / N + EPS)
        z, along = z * r, along * r / N
        dx = r * (g - level - z * along)
        tl.store(dx_ptr + m * N + n, dx.to(dx_ptr.dtype.element_ty), mask)
        sums_w += dy * z
        sums_b += dy
    sums_ptrs = sums_ptr + tl.program_id(0).to(tl.int64) * 2 * N + n
    tl.store(sums_ptrs, tl.sum(sums_w, axis=0, keep_dims=True), n < N)
    tl.store(sums_ptrs + N, tl.sum(sums_b, axis=0, keep_dims=True), n < N)


@triton.jit
def _add_up(sums_ptr, dw_ptr, db_ptr, PROGRAMS, N, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr):
    n = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]
    total_w = tl.zeros((BLOCK_P, BLOCK_N), tl.float32)
    total_b = total_w
    for start in range(0, PROGRAMS, BLOCK_P):
        p = (start + tl.arange(0, BLOCK_P)).to(tl.int64)[:, None]
        mask = (p < PROGRAMS) & (n < N)
        total_w += tl.load(sums_ptr + 2 * p * N + n, mask, other=0.0)
        total_b += tl.load(sums_ptr + (2 * p + 1) * N + n, mask, other=0.0)
    dw, db = tl.sum(total_w, axis=0, keep_dims=True), tl.sum(total_b, axis=0, keep_dims=True)
    tl.store(dw_ptr + n, dw.to(dw_ptr.dtype.element_ty), n < N)
    tl.store(db_ptr + n, db.to(db_ptr.dtype.element_ty), n < N)


@dataclass(frozen=True)
class Persistent(row_schemes.Persistent):
    num_stages: int = stages(1, 4, default=3)


@layer_norm_backward.impl(
    Persistent,
    refuse=row_schemes.refuse_persistent(rows=5, most=160, read=2),  # of x, dy, w and the two sums
    work=row_schemes.rows_work(read=2),
    defaults={"fp32": Persistent(per_core=1)},
)
def persistent(x, w, dy, *, config):
    """Each program walks many rows with w and its sums for dw and db in registers, and the next
    rows are on their way while one is worked on."""
    M, N = x.shape
    dx, dw, db = x.new_empty(M, N), w.new_empty(N), w.new_empty(N)
    (programs,), constants = row_schemes.persistent_launch(x, config)
    sums = x.new_empty(programs, 2, N, dtype=torch.float32)
    _persistent[(programs,)](x, w, dy, dx, sums, M, N, *strides(x, w, dy), EPS, **constants)
    # 64 columns are two whole lines of each partial sum, and at N = 8192 programs for 128 cores
    _add_up[(triton.cdiv(N, 64),)](sums, dw, db, programs, N, BLOCK_P=128, BLOCK_N=64, num_warps=8)
    return dx, dw, db


def library(x, w, dy):
    """ATen's backward pass, with mean and r computed beforehand as a forward pass would leave
    them."""
    mean = x.float().mean(-1, keepdim=True)
    r = torch.rsqrt((x.float() - mean).square().mean(-1, keepdim=True) + EPS)
    zero = torch.zeros_like(w)
    return torch.ops.aten.native_layer_norm_backward(
        dy.contiguous(), x.contiguous(), w.shape, mean, r, w.contiguous(), zero, [True] * 3
    )


def call_in_fp32(x, w, dy):
    wide, upstream, N = x.float(), dy.float(), x.shape[-1]
    variance, mean = torch.var_mean(wide, -1, correction=0, keepdim=True)
    r = torch.rsqrt(variance + EPS)
    z, g = (wide - mean) * r, upstream * w.float()
    dx = (N * g - g.sum(-1, keepdim=True) - z * (g * z).sum(-1, keepdim=True)) * r / N
    return dx.to(x.dtype), (upstream * z).sum(0).to(w.dtype), upstream.sum(0).to(w.dtype)


layer_norm_backward.library("torch", library)
layer_norm_backward.library("torch.compile", compile_call(call_in_fp32))
