"""The arithmetic of `softmax` without its memory traffic: `rows`, with one row of x for all
programs, and without its stores.

The row stays in the first-level cache, from which a program of 256 threads takes 4096 elements of
bf16 in 64 clocks, at 128 bytes a clock; its 300 instructions take 600. What `rows` would store is
computed, and stored under a mask that allows no row when it is launched: the compiler does not know
that, so nothing is left out. What is stored and checked is a number a row, a times the mean of
exp(x - max(x)).
"""

import torch

from workbench.dsl import meta, pad_up, strides, tl, triton
from workbench.dsl.row_schemes import Rows, refuse_rows, size_rows
from workbench.spec import Spec, Tensor, Work


def reference(a, x):
    return a * torch.exp(x - x.max()).mean()


softmax_arithmetic = Spec(
    name="softmax_arithmetic",
    inputs={"a": Tensor("M"), "x": Tensor("N")},
    outputs={"y": Tensor("M")},
    reference=reference,
    flops=lambda M, N: 5 * M * N,
    check=[{"M": 1, "N": 1}, {"M": 5, "N": 127}, {"M": 13, "N": 781}, {"M": 4, "N": 4096}],
    bench=[{"M": 8192, "N": 4096}, {"M": 32_768, "N": 1024}],
)


@triton.jit
def _rows(
    a_ptr, x_ptr, y_ptr, M, N, stored, stride_a, stride_x,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    m = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
    n = tl.arange(0, BLOCK_N)[None, :]
    x_ptrs = x_ptr + 0 * m + n.to(tl.int64) * stride_x
    a = tl.load(a_ptr + m * stride_a, m < M, other=0.0).to(tl.float32)
    x = tl.load(x_ptrs, n < N, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=1, keep_dims=True))
    total = tl.sum(e, axis=1, keep_dims=True)
    y = e * (1.0 / total)
    tl.store(y_ptr + m * N + n, y.to(y_ptr.dtype.element_ty), (m < stored) & (n < N))
    tl.store(y_ptr + m, (a * (total / N)).to(y_ptr.dtype.element_ty), m < M)


def rows_work(config, limits, *, itemsize, M, N):
    number = config.block_m * itemsize
    return Work(tiles=-(-M // config.block_m), steps=1, load_bytes=number, store_bytes=number)


@softmax_arithmetic.impl(Rows, resolve=size_rows, refuse=refuse_rows, work=rows_work)
def rows(a, x, *, config):
    """As many rows as `softmax.rows` computes, each of them x. `hints` change nothing."""
    M, N = a.shape[0], x.shape[0]
    y = a.new_empty(M)
    constants = dict(BLOCK_N=pad_up(N), **meta(config))
    _rows[(triton.cdiv(M, config.block_m),)](a, x, y, M, N, 0, *strides(a, x), **constants)
    return y
