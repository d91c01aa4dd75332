"""RMS norm over the last axis: y = x / sqrt(mean(x^2) + eps) * w.

At 4 FLOP for two elements moved it is memory-bound on every GPU in `hardware.py`: a row is read
once while it fits into registers (`rows`) and twice when it is walked in blocks (`looped`).
"""

from dataclasses import dataclass
from functools import cache

import torch

from workbench.dsl import tl, triton
from workbench.spec import Spec, Tensor, Work, threads, tile

EPS = 1e-6


def reference(x, w):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * w


rms_norm = Spec(
    name="rms_norm",
    inputs={"x": Tensor("M N"), "w": Tensor("N")},
    outputs={"y": Tensor("M N")},
    reference=reference,
    flops=lambda M, N: 4 * M * N,
    check=[{"M": 1, "N": 1}, {"M": 5, "N": 127}, {"M": 37, "N": 781}, {"M": 4, "N": 4096}],
    bench=[{"M": 8192, "N": 8192}, {"M": 8192, "N": 4096}],
)


@triton.jit
def _rows(
    x_ptr, w_ptr, y_ptr, M, N, stride_m, stride_n, stride_w,
    EPS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    m = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
    n = tl.arange(0, BLOCK_N)[None, :]
    mask = (m < M) & (n < N)
    x = tl.load(x_ptr + m * stride_m + n.to(tl.int64) * stride_n, mask, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + n.to(tl.int64) * stride_w, n < N, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=1, keep_dims=True) / N + EPS)
    tl.store(y_ptr + m * N + n, (x * scale * w).to(y_ptr.dtype.element_ty), mask)


@triton.jit
def _looped(
    x_ptr, w_ptr, y_ptr, M, N, stride_m, stride_n, stride_w,
    EPS: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK_N).to(tl.int64)  # a row may be as long as offsets allow
    squares = tl.zeros((BLOCK_N,), tl.float32)
    for start in range(0, N, BLOCK_N):
        n = start + lane
        x = tl.load(x_ptr + m * stride_m + n * stride_n, n < N, other=0.0)
        squares += x.to(tl.float32) * x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(squares, axis=0) / N + EPS)
    for start in range(0, N, BLOCK_N):
        n = start + lane
        x = tl.load(x_ptr + m * stride_m + n * stride_n, n < N, other=0.0)
        w = tl.load(w_ptr + n * stride_w, n < N, other=0.0)
        y = x.to(tl.float32) * scale * w.to(tl.float32)
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
    return Work(
        tiles=-(-M // config.block_m), steps=1, load_bytes=moved + N * itemsize, store_bytes=moved
    )


@rms_norm.impl(Rows, refuse=too_long, work=rows_work)
def rows(x, w, *, config):
    """`block_m` whole rows in registers: x is read once."""
    M, N = x.shape
    y = x.new_empty(M, N)
    _rows[(triton.cdiv(M, config.block_m),)](
        x, w, y, M, N, x.stride(0), x.stride(1), w.stride(0), EPS,
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


@rms_norm.impl(Looped, refuse=too_wide, work=looped_work)
def looped(x, w, *, config):
    """One row in blocks: any length, but x is read twice."""
    M, N = x.shape
    y = x.new_empty(M, N)
    _looped[(M,)](
        x, w, y, M, N, x.stride(0), x.stride(1), w.stride(0), EPS,
        BLOCK_N=config.block_n, num_warps=config.num_warps,
    )  # fmt: skip
    return y


@rms_norm.impl(backend="torch", name="torch")
def library(x, w):
    return torch.nn.functional.rms_norm(x, w.shape, w, EPS)


@rms_norm.impl(backend="torch", name="torch.compile")
def compiled(x, w):
    return _compiled()(x, w)


@cache
def _compiled():
    return torch.compile(library.launch, dynamic=False)
