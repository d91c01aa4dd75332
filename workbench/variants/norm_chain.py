"""L RMS norms in a row, each on what the one before left: a chain of small kernels.

The shapes are those of small layers (64 rows of 1024 in fp32), where a kernel takes a few
microseconds and the CPU longer than that to launch it. `eager` launches each norm by itself,
`fused` walks the whole chain in one launch, and `read_back` is `eager` with the rows taken to the
CPU and back after each norm, as code does that falls back to the CPU for one operation.
"""

from dataclasses import dataclass

import torch

from workbench.dsl import normal, pad_up, strides, tl, triton
from workbench.kernels import rms_norm
from workbench.spec import Spec, Tensor, Tolerance, Work, threads


def reference(x, w):
    for each in w:
        x = rms_norm.reference(x, each)
    return x


def weights_near_one(shape, dtype, device, generator):
    # of standard normal weights a product of 64 would be lost in one or two elements a row
    return (torch.rand(shape, generator=generator, device=device) * 0.2 + 0.9).to(dtype)


norm_chain = Spec(
    name="norm_chain",
    inputs={"x": Tensor("M N", make=normal), "w": Tensor("L N", make=weights_near_one)},
    outputs={"y": Tensor("M N")},
    reference=reference,
    flops=lambda M, N, L: 4 * L * M * N,
    check=[{"M": 1, "N": 1, "L": 1}, {"M": 3, "N": 127, "L": 2}, {"M": 2, "N": 64, "L": 3}],
    bench=[{"M": 64, "N": 1024, "L": 64}],
    # A norm's relative error of 2^-22 goes on to the next: 64 of them leave 2e-5 at most.
    tolerance={"fp32": Tolerance(relative=1e-4, rms_share=1e-6)},
)


@triton.jit
def _fused(
    x_ptr, w_ptr, y_ptr, N, L, stride_m, stride_n, stride_l, stride_w,
    EPS: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, BLOCK_N)
    far = n.to(tl.int64)
    x = tl.load(x_ptr + m * stride_m + far * stride_n, n < N, other=0.0).to(tl.float32)
    for i in range(L):
        at = tl.full((), i, tl.int64)
        w = tl.load(w_ptr + at * stride_l + far * stride_w, n < N, other=0.0).to(tl.float32)
        x = x * tl.rsqrt(tl.sum(x * x, axis=0) / N + EPS) * w
    tl.store(y_ptr + m * N + n, x.to(y_ptr.dtype.element_ty), n < N)


@dataclass(frozen=True)
class Warps:
    num_warps: int = threads(1, 8, default=4)


def refuse_rows(config, limits, *, itemsize, M, N, L):
    held = pad_up(N) // (config.num_warps * limits.warp_size)
    return limits.refuse_held(held, 64, "elements of a row")


def one_by_one(config, limits, *, itemsize, M, N, L):
    # a norm waits for the one before it, so that the chain is one long loop over its links
    return Work(tiles=M, steps=L, load_bytes=3 * N * itemsize, store_bytes=N * itemsize)


def register_work(config, limits, *, itemsize, M, N, L):
    return Work(tiles=M, steps=L, load_bytes=N * itemsize, store_bytes=N * itemsize)


def whole_rows(config):
    """The config of each norm in a launch of its own."""
    return rms_norm.Rows(block_m=1, num_warps=config.num_warps, early=1)


@norm_chain.impl(Warps, refuse=refuse_rows, work=one_by_one)
def eager(x, w, *, config):
    """A launch for each norm."""
    each = whole_rows(config)
    for i in range(w.shape[0]):
        x = rms_norm.rows(x, w[i], config=each)
    return x


@norm_chain.impl(Warps, refuse=refuse_rows, work=one_by_one)
def read_back(x, w, *, config):
    """A launch for each norm, and the rows to the CPU and back behind it: each copy waits."""
    each = whole_rows(config)
    for i in range(w.shape[0]):
        x = rms_norm.rows(x, w[i], config=each)
        if x.device.type != "meta":  # shapes alone cannot be copied
            x = x.cpu().to(x.device)
    return x


@norm_chain.impl(Warps, refuse=refuse_rows, work=register_work)
def fused(x, w, *, config):
    """One launch: a row stays in registers from the first norm to the last."""
    (M, N), L = x.shape, w.shape[0]
    y = x.new_empty(M, N)
    constants = dict(BLOCK_N=pad_up(N), num_warps=config.num_warps)
    _fused[(M,)](x, w, y, N, L, *strides(x, w), rms_norm.EPS, **constants)
    return y


@norm_chain.impl(backend="torch", name="torch")
def library(x, w):
    for each in w:
        x = torch.nn.functional.rms_norm(x, each.shape, each, rms_norm.EPS)
    return x
