"""Running sums along the last axis: y[m, n] = x[m, 0] + ... + x[m, n], added up in fp32.

One addition for two elements moved: memory-bound. A row is one chain, so what costs is waiting:
with many rows a program walks one block by block and carries the sum (`looped`); with few, three
launches cut the rows into slices: sums of slices, running sums of those, then each slice with what
comes before it (`slices`), which reads x twice.

A NaN makes NaN of all that follows in its row, and an infinity stays one; what comes before and
other rows do not see them.
"""

from dataclasses import dataclass, replace

import torch

from workbench.dsl import baseline, meta, tl, triton
from workbench.spec import AUTO, Spec, Tensor, Work, rms_bounds, threads, tile, value_or


def reference(x):
    return x.cumsum(-1)


cumsum = Spec(
    name="cumsum",
    inputs={"x": Tensor("M N")},
    outputs={"y": Tensor("M N")},
    reference=reference,
    flops=lambda M, N: M * N,
    nonfinite=("x",),
    check=[{"M": 1, "N": 1}, {"M": 5, "N": 127}, {"M": 37, "N": 781}, {"M": 2, "N": 9001}],
    bench=[{"M": 4096, "N": 8192}, {"M": 8, "N": 1 << 22}],
    tolerance=rms_bounds(fp32=2e-5, fp16=2e-5, bf16=2e-5),
)


@triton.jit
def _looped(x_ptr, y_ptr, N, stride_m, stride_n, BLOCK_N: tl.constexpr):
    m = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK_N).to(tl.int64)
    before = 0.0
    for start in range(0, N, BLOCK_N):
        n = start + lane
        x = tl.load(x_ptr + m * stride_m + n * stride_n, n < N, other=0.0).to(tl.float32)
        y = before + tl.cumsum(x, axis=0)
        before += tl.sum(x, axis=0)
        tl.store(y_ptr + m * N + n, y.to(y_ptr.dtype.element_ty), n < N)


@triton.jit
def _sums(x_ptr, part_ptr, N, S, stride_m, stride_n, BLOCK_N: tl.constexpr):
    m, s = (tl.program_id(0) // S).to(tl.int64), (tl.program_id(0) % S).to(tl.int64)
    n = s * BLOCK_N + tl.arange(0, BLOCK_N)
    x = tl.load(x_ptr + m * stride_m + n * stride_n, n < N, other=0.0).to(tl.float32)
    tl.store(part_ptr + m * S + s, tl.sum(x, axis=0))


@triton.jit
def _carried(x_ptr, before_ptr, y_ptr, N, S, stride_m, stride_n, BLOCK_N: tl.constexpr):
    m, s = (tl.program_id(0) // S).to(tl.int64), (tl.program_id(0) % S).to(tl.int64)
    n = s * BLOCK_N + tl.arange(0, BLOCK_N)
    x = tl.load(x_ptr + m * stride_m + n * stride_n, n < N, other=0.0).to(tl.float32)
    before = tl.load(before_ptr + m * S + s - 1, s > 0, other=0.0)
    y = before + tl.cumsum(x, axis=0)
    tl.store(y_ptr + m * N + n, y.to(y_ptr.dtype.element_ty), n < N)


@dataclass(frozen=True)
class Looped:
    """AUTO: a short row in one step, see `size_looped`."""

    block_n: int = tile(256, 8192, default=AUTO)
    num_warps: int = threads(1, 16, default=AUTO)


def size_looped(config, limits, *, itemsize, M, N):
    """Return the config with what is AUTO chosen by the length of the rows.

    On an H100 43 rows of 2832 take 2.4 us in one step and 3.6 in two, and 633 rows of 1920 take 3.3
    with 4 warps and 5.0 with 8.
    """
    whole = max(256, triton.next_power_of_2(N))
    block_n = value_or(config.block_n, whole if whole <= 4096 else 2048)
    suited = max(2, min(4, block_n // 128)) if N <= block_n <= 2048 else 8
    return replace(config, block_n=block_n, num_warps=value_or(config.num_warps, suited))


def refuse_blocks(config, limits, *, itemsize, M, N):
    held = config.block_n // (config.num_warps * limits.warp_size)
    if not 1 <= held <= 32:
        return f"each thread would hold {held} elements in registers; 1 to 32 fit"
    return None


def looped_work(config, limits, *, itemsize, M, N):
    moved = config.block_n * itemsize
    steps = -(-N // config.block_n)
    return Work(tiles=M, steps=steps, load_bytes=moved, store_bytes=steps * moved)


# 64 threads a warp: 8 elements of 16 bits for each make one load of 128 bits
CDNA = {"gfx90a gfx942 gfx950": Looped(block_n=4096, num_warps=8)}


@cumsum.impl(Looped, resolve=size_looped, refuse=refuse_blocks, work=looped_work, defaults=CDNA)
def looped(x, *, config):
    """One row per program, block by block with the sum carried along: x is read once."""
    M, N = x.shape
    y = x.new_empty(M, N)
    _looped[(M,)](x, y, N, *x.stride(), **meta(config))
    return y


@dataclass(frozen=True)
class Slices:
    """AUTO: short slices where long ones leave cores idle, see `size_slices`."""

    block_n: int = tile(1024, 8192, default=AUTO)
    num_warps: int = threads(2, 16, default=AUTO)


def size_slices(config, limits, *, itemsize, M, N):
    """Return the config with what is AUTO chosen by the length of the rows: on an H100 6 rows of
    189,312 take 8.5 us in slices of 4096 and 7.1 in slices of 1024, 312 of 19,361 59 % longer.
    Each lane gets 16 bytes: on an AMD GPU of 64 lanes 4 warps would load 8 bytes of bf16 each."""
    block_n = value_or(config.block_n, 1024 if N <= 1 << 18 else 4096)
    whole = block_n * itemsize // (16 * limits.warp_size)
    suited = max(2, min(8 if block_n >= 4096 else 4, whole))
    return replace(config, block_n=block_n, num_warps=value_or(config.num_warps, suited))


def slices_work(config, limits, *, itemsize, M, N):
    moved = config.block_n * itemsize
    return Work(tiles=M * -(-N // config.block_n), steps=2, load_bytes=moved, store_bytes=moved)


@cumsum.impl(Slices, resolve=size_slices, refuse=refuse_blocks, work=slices_work)
def slices(x, *, config):
    """Sums of slices first, then each slice with what comes before it: few rows fill the device."""
    M, N = x.shape
    S = triton.cdiv(N, config.block_n)
    at = {"BLOCK_N": config.block_n, "num_warps": config.num_warps}
    part = x.new_empty(M, S, dtype=torch.float32)
    _sums[(M * S,)](x, part, N, S, *x.stride(), **at)
    before = x.new_empty(M, S, dtype=torch.float32)
    _looped[(M,)](part, before, S, S, 1, BLOCK_N=2048, num_warps=4)
    y = x.new_empty(M, N)
    _carried[(M * S,)](x, before, y, N, S, *x.stride(), **at)
    return y


@baseline(cumsum)
def library(x):
    return torch.cumsum(x, -1)
