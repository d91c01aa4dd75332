"""The arithmetic of `rms_norm` without its memory traffic: `rows`, with one row of x for all
programs, and without its stores.

The row and w stay in the first-level cache, from which a program takes 8192 elements of each, in
bf16, in 256 clocks, at 128 bytes a clock; its 256 threads with 340 instructions each take 690. What
`rows` would store is computed, and stored under a mask that allows no row when it is launched: the
compiler does not know that, so nothing is left out. What is stored and checked is a number a row, a
times 1 / sqrt(mean(x^2) + eps).
"""

import torch

from workbench.dsl import meta, padded, strides, tl, triton
from workbench.dsl.row_schemes import refuse_rows
from workbench.kernels.rms_norm import EPS, Rows, size_rows
from workbench.spec import Spec, Tensor, Work


def reference(a, x, w):
    return a * torch.rsqrt(x.square().mean() + EPS)


rms_norm_arithmetic = Spec(
    name="rms_norm_arithmetic",
    inputs={"a": Tensor("M"), "x": Tensor("N"), "w": Tensor("N")},
    outputs={"y": Tensor("M")},
    reference=reference,
    flops=lambda M, N: 4 * M * N,
    check=[{"M": 1, "N": 1}, {"M": 5, "N": 127}, {"M": 13, "N": 781}, {"M": 4, "N": 4096}],
    bench=[{"M": 8192, "N": 8192}, {"M": 8192, "N": 4096}, {"M": 32, "N": 4096}],
)


@triton.jit
def _rows(
    a_ptr, x_ptr, w_ptr, y_ptr, M, N, stored, stride_a, stride_x, stride_w,
    EPS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    m = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
    n = tl.arange(0, BLOCK_N)[None, :]
    mask = (m < M) & (n < N)
    x_ptrs = x_ptr + 0 * m + n.to(tl.int64) * stride_x
    w_ptrs = w_ptr + n.to(tl.int64) * stride_w
    a = tl.load(a_ptr + m * stride_a, m < M, other=0.0).to(tl.float32)
    x = tl.load(x_ptrs, mask, other=0.0).to(tl.float32)
    if EARLY:
        w = tl.load(w_ptrs, n < N, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=1, keep_dims=True) / N + EPS)
    if not EARLY:
        w = tl.load(w_ptrs, n < N, other=0.0).to(tl.float32)
    y = (x * scale * w).to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + m * N + n, y, (m < stored) & (n < N))
    tl.store(y_ptr + m, (a * scale).to(y_ptr.dtype.element_ty), m < M)


def rows_work(config, limits, *, itemsize, M, N):
    number = config.block_m * itemsize
    return Work(tiles=-(-M // config.block_m), steps=1, load_bytes=number, store_bytes=number)


@rms_norm_arithmetic.impl(Rows, resolve=size_rows, refuse=refuse_rows, work=rows_work)
def rows(a, x, w, *, config):
    """As many rows as `rms_norm.rows` computes, each of them x. `hints` change nothing."""
    M, N = a.shape[0], x.shape[0]
    y = a.new_empty(M)
    sizes = M, N, 0, *strides(a, x, w), EPS
    constants = dict(BLOCK_N=padded(N), EARLY=bool(config.early), **meta(config))
    _rows[(triton.cdiv(M, config.block_m),)](a, x, w, y, *sizes, **constants)
    return y
