"""Softmax over the last axis: y = exp(x - max(x)) / sum(exp(x - max(x))).

At 5 FLOP for two elements moved it is memory-bound on every GPU in `hardware.py`, so what counts
is how often a row is read: once while it fits into registers (`rows`), twice when it is walked in
blocks (`looped`), whose second reading finds a row of up to a few MB in the last-level cache.
"""

from dataclasses import dataclass
from functools import cache

import torch

from workbench.dsl import tl, triton
from workbench.spec import Spec, Tensor, Tolerance, Work, threads, tile


def reference(x):
    return torch.softmax(x, dim=-1)


softmax = Spec(
    name="softmax",
    inputs={"x": Tensor("M N")},
    outputs={"y": Tensor("M N")},
    reference=reference,
    flops=lambda M, N: 5 * M * N,
    check=[{"M": 1, "N": 1}, {"M": 5, "N": 127}, {"M": 37, "N": 781}, {"M": 4, "N": 4096}],
    bench=[{"M": 8192, "N": 4096}, {"M": 2048, "N": 32_768}],
    tolerance={
        # fp32: x * log2(e) is rounded before the exponential, 1.4e-5 at x - max = -100
        "fp32": Tolerance(relative=2e-5, of_rms=1e-6),
        "fp16": Tolerance(relative=1e-3, of_rms=1e-4),  # 6e-8 is fp16's least step above zero
        "bf16": Tolerance(relative=8e-3, of_rms=1e-6),
    },
)


@triton.jit
def _rows(x_ptr, y_ptr, M, N, stride_m, stride_n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    m = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
    n = tl.arange(0, BLOCK_N)[None, :]
    mask = (m < M) & (n < N)
    x_ptrs = x_ptr + m * stride_m + n.to(tl.int64) * stride_n
    x = tl.load(x_ptrs, mask, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=1, keep_dims=True))
    y = e / tl.sum(e, axis=1, keep_dims=True)
    tl.store(y_ptr + m * N + n, y.to(y_ptr.dtype.element_ty), mask)


@triton.jit
def _looped(x_ptr, y_ptr, M, N, stride_m, stride_n, BLOCK_N: tl.constexpr):
    m = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK_N).to(tl.int64)  # a row may be as long as offsets allow
    high = tl.full((BLOCK_N,), -float("inf"), tl.float32)  # each lane's own running maximum
    total = tl.zeros((BLOCK_N,), tl.float32)
    for start in range(0, N, BLOCK_N):
        n = start + lane
        x = tl.load(x_ptr + m * stride_m + n * stride_n, n < N, other=-float("inf"))
        x = x.to(tl.float32)
        higher = tl.maximum(high, x)
        base = tl.where(higher == -float("inf"), 0.0, higher)  # -inf - -inf would be NaN
        total = total * tl.exp(high - base) + tl.exp(x - base)
        high = higher
    top = tl.max(high, axis=0)
    base = tl.where(top == -float("inf"), 0.0, top)
    scale = 1.0 / tl.sum(total * tl.exp(high - base), axis=0)
    for start in range(0, N, BLOCK_N):
        n = start + lane
        x = tl.load(x_ptr + m * stride_m + n * stride_n, n < N, other=-float("inf"))
        y = tl.exp(x.to(tl.float32) - base) * scale
        tl.store(y_ptr + m * N + n, y.to(y_ptr.dtype.element_ty), n < N)


@dataclass(frozen=True)
class Rows:
    block_m: int = tile(1, 16, default=1)
    num_warps: int = threads(1, 32, default=8)


def too_long(config, limits, *, itemsize, M, N):
    padded = 1 << (N - 1).bit_length()
    held = config.block_m * padded // (config.num_warps * limits.warp_size)
    if held > 64:
        return f"each thread would hold {held} elements of its rows in registers; 64 is the most"
    if config.num_warps * limits.warp_size > limits.threads_per_block:
        return f"{config.num_warps} warps are more than one block may have here"
    return None


def rows_work(config, limits, *, itemsize, M, N):
    moved = config.block_m * N * itemsize
    return Work(tiles=-(-M // config.block_m), steps=1, load_bytes=moved, store_bytes=moved)


@softmax.impl(Rows, refuse=too_long, work=rows_work)
def rows(x, *, config):
    """`block_m` whole rows in registers: x is read once."""
    M, N = x.shape
    y = x.new_empty(M, N)
    _rows[(triton.cdiv(M, config.block_m),)](
        x, y, M, N, x.stride(0), x.stride(1),
        BLOCK_M=config.block_m, BLOCK_N=triton.next_power_of_2(N), num_warps=config.num_warps,
    )  # fmt: skip
    return y


@dataclass(frozen=True)
class Looped:
    block_n: int = tile(512, 16_384, default=4096)
    num_warps: int = threads(1, 32, default=8)


def too_wide(config, limits, *, itemsize, M, N):
    held = config.block_n // (config.num_warps * limits.warp_size)
    if held > 64:
        return f"each thread would hold {held} elements in registers; 64 is the most"
    if config.num_warps * limits.warp_size > limits.threads_per_block:
        return f"{config.num_warps} warps are more than one block may have here"
    return None


def looped_work(config, limits, *, itemsize, M, N):
    steps = -(-N // config.block_n)
    return Work(
        tiles=M, steps=2 * steps, load_bytes=config.block_n * itemsize, store_bytes=N * itemsize
    )


@softmax.impl(Looped, refuse=too_wide, work=looped_work)
def looped(x, *, config):
    """One row in blocks, with a running maximum: any length, but x is read twice."""
    M, N = x.shape
    y = x.new_empty(M, N)
    _looped[(M,)](
        x, y, M, N, x.stride(0), x.stride(1), BLOCK_N=config.block_n, num_warps=config.num_warps
    )
    return y


@softmax.impl(backend="torch", name="torch")
def library(x):
    return torch.softmax(x, dim=-1)


@softmax.impl(backend="torch", name="torch.compile")
def compiled(x):
    return _compiled()(x)


@cache
def _compiled():
    return torch.compile(library.launch, dynamic=False)
