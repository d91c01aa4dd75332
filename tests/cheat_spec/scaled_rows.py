"""y = x w and s = the sum of each row of y: the Spec that the deceptions are held to, with one
honest Impl."""

from dataclasses import dataclass

import torch

from workbench.dsl import tl, triton
from workbench.spec import Spec, Tensor, Tolerance, threads, tile


def reference(x, w):
    y = x * w
    return y, y.sum(1)


scaled_rows = Spec(
    name="scaled_rows",
    inputs={"x": Tensor("M N"), "w": Tensor("N")},
    outputs={"y": Tensor("M N"), "s": Tensor("M")},
    reference=reference,
    flops=lambda M, N: 2 * M * N,
    check=[{"M": 4, "N": 64}, {"M": 5, "N": 77}, {"M": 3, "N": 300}],
    bench=[{"M": 8192, "N": 4096}],
    tolerance={"fp32": Tolerance(1e-5, 1e-5), "bf16": Tolerance(8e-3, 4e-3)},
)


@triton.jit
def _rows(x_ptr, w_ptr, y_ptr, s_ptr, N, BLOCK_N: tl.constexpr):
    m = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, BLOCK_N)
    x = tl.load(x_ptr + m * N + n, n < N, 0.0).to(tl.float32)
    w = tl.load(w_ptr + n, n < N, 0.0).to(tl.float32)
    y = x * w
    tl.store(y_ptr + m * N + n, y.to(y_ptr.dtype.element_ty), n < N)
    tl.store(s_ptr + m, tl.sum(y, 0).to(s_ptr.dtype.element_ty))


@dataclass(frozen=True)
class Rows:
    block_n: int = tile(64, 4096, default=4096)
    num_warps: int = threads(4, 8, default=8)


def refuse(config, limits, *, itemsize, M, N):
    return f"a row of {N} is longer than the block" if config.block_n < N else None


@scaled_rows.impl(Rows, refuse=refuse)
def rows(x, w, *, config):
    """One program computes a row."""
    y, s = torch.empty_like(x), x.new_empty(x.shape[0])
    _rows[(x.shape[0],)](x, w, y, s, x.shape[1], BLOCK_N=config.block_n, num_warps=config.num_warps)
    return y, s


@scaled_rows.library("torch")
def in_torch(x, w):
    return reference(x, w)
