"""Gradients of RMS norm: from x, w and dy = dL/dy to dx = dL/dx and dw = dL/dw.

With r = 1 / sqrt(mean(x^2) + eps), z = x * r and g = dy * w they are dx = r * (g - z * mean(g * z))
for each row and dw = the sum of dy * z over all rows. At some 10 FLOP for two elements read and one
written it is memory-bound on every GPU in `devices/`: each row is read once, r is computed from
it again, and each program keeps its own sum for dw in registers over all rows that it walks. Those
partial sums, one row of fp32 a program, are added by a second launch in one fixed order, so that
equal inputs give equal bits.

NaN in dy makes NaN of its row of dx and of its column in dw, and of nothing else.
"""

from dataclasses import dataclass

import torch

from workbench.dsl import compile_call, normal, row_schemes, strides, tl, triton
from workbench.dsl.device import sum_pairs
from workbench.spec import Extent, Spec, Tensor, among, rms_bounds, stages, threads

EPS = 1e-6


def reference(x, w, dy):
    """With EPS written out: taken from the kernel's own, a wrong one would not show."""
    r = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    z, g = x * r, dy * w
    return r * (g - z * (g * z).mean(-1, keepdim=True)), (dy * z).sum(0)


rms_norm_backward = Spec(
    name="rms_norm_backward",
    # Rows whose dy * w lies along x, as in every row of one element, leave nothing of dx but what
    # eps is of the mean square, a millionth: below what fp32 can tell. So all inputs are
    # random; and Triton's interpreter would round dx wrongly where w made it a bf16 denormal.
    inputs={
        "x": Tensor("M N", make=normal),
        "w": Tensor("N", make=normal),
        "dy": Tensor("M N", make=normal),
    },
    outputs={"dx": Tensor("M N"), "dw": Tensor("N")},
    reference=reference,
    flops=lambda M, N: 10 * M * N,
    check=[{"M": 1, "N": 8}, {"M": 5, "N": 136}, {"M": 11, "N": 784}, {"M": 3, "N": 1032}],
    bench=[{"M": 8192, "N": 8192}, {"M": 8192, "N": 4096}, {"M": 16_384, "N": 2048}],
    extents={"N": Extent(multiple=8)},
    # Both outputs are differences or sums of terms of either sign: what fp32 loses, 2^-24 of each
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
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    blocks = tl.cdiv(M, BLOCK_M)
    for block in tl.range(tl.program_id(0), blocks, tl.num_programs(0), num_stages=STAGES):
        m = (block * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
        mask = (m < M) & (n < N)
        x = tl.load(x_ptrs + m * stride_xm, mask, other=0.0, eviction_policy="evict_first")
        dy = tl.load(dy_ptrs + m * stride_ym, mask, other=0.0, eviction_policy="evict_first")
        x, dy = x.to(tl.float32), dy.to(tl.float32)
        g = dy * w.to(tl.float32)
        squares, along = sum_pairs(x * x, g * x)
        r = tl.rsqrt(squares / N + EPS)
        along = r * along / N
        z = x * r
        dx = r * (g - z * along)
        tl.store(dx_ptr + m * N + n, dx.to(dx_ptr.dtype.element_ty), mask)
        sums += dy * z
    total = tl.sum(sums, axis=0, keep_dims=True)
    tl.store(sums_ptr + tl.program_id(0).to(tl.int64) * N + n, total, n < N)


@triton.jit
def _add_up(sums_ptr, dw_ptr, PROGRAMS, N, BLOCK_P: tl.constexpr, BLOCK_N: tl.constexpr):
    n = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]
    total = tl.zeros((BLOCK_P, BLOCK_N), tl.float32)
    for start in range(0, PROGRAMS, BLOCK_P):
        p = (start + tl.arange(0, BLOCK_P)).to(tl.int64)[:, None]
        total += tl.load(sums_ptr + p * N + n, (p < PROGRAMS) & (n < N), other=0.0)
    dw = tl.sum(total, axis=0, keep_dims=True)
    tl.store(dw_ptr + n, dw.to(dw_ptr.dtype.element_ty), n < N)


@dataclass(frozen=True)
class Persistent(row_schemes.Persistent):
    num_warps: int = threads(4, 16, default=16)
    num_stages: int = stages(1, 4, default=3)
    per_core: int = among(1, 2, 3, 4, default=1)  # programs on one core


CDNA = {"gfx90a gfx942 gfx950": Persistent(num_warps=8)}  # 64 threads each


@rms_norm_backward.impl(
    Persistent,
    refuse=row_schemes.refuse_persistent(rows=4, most=128, read=2),  # of x, dy, w and the sums
    work=row_schemes.rows_work(read=2),
    defaults=CDNA,
)
def persistent(x, w, dy, *, config):
    """Each program walks many rows with w and its sum for dw in registers, and the next rows are
    on their way while one is worked on."""
    M, N = x.shape
    dx, dw = x.new_empty(M, N), w.new_empty(N)
    (programs,), constants = row_schemes.persistent_launch(x, config)
    sums = x.new_empty(programs, N, dtype=torch.float32)
    _persistent[(programs,)](x, w, dy, dx, sums, M, N, *strides(x, w, dy), EPS, **constants)
    # 64 columns are two whole lines of each partial sum, and at N = 8192 programs for 128 cores
    _add_up[(triton.cdiv(N, 64),)](sums, dw, programs, N, BLOCK_P=128, BLOCK_N=64, num_warps=8)
    return dx, dw


def library(x, w, dy):
    """Autograd: the forward pass runs as well, as it must where nothing of it was kept."""
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    with torch.enable_grad():
        y = torch.nn.functional.rms_norm(x, w.shape, w, EPS)
    return torch.autograd.grad(y, (x, w), dy)


def call_in_fp32(x, w, dy):
    wide, upstream, N = x.float(), dy.float(), x.shape[-1]
    r = torch.rsqrt(torch.linalg.vecdot(wide, wide)[:, None] / N + EPS)
    g = upstream * w.float()
    dx = r * g - wide * r**3 * torch.linalg.vecdot(g, wide)[:, None] / N
    return dx.to(x.dtype), (upstream * wide * r).sum(0).to(w.dtype)


rms_norm_backward.library("torch", library)
rms_norm_backward.library("torch.compile", compile_call(call_in_fp32))
