"""Sums over the last axis: y[m] = sum of x[m, :], in fp32.

One addition for an element read: memory-bound on every GPU in `devices/`. With many rows each
program sums one or several (`rows`); with few, a row is cut into slices whose sums a second launch
adds up in a fixed order (`slices`), so that the whole device reads and the bits are the same each
time.

NaN and infinities stay in their rows.
"""

from dataclasses import dataclass, replace

import torch

from workbench.dsl import baseline, meta, pad_up, tl, triton
from workbench.spec import AUTO, Spec, Tensor, Tolerance, Work, threads, tile, value_or


def reference(x):
    return x.sum(-1)


reduce = Spec(
    name="reduce",
    inputs={"x": Tensor("M N")},
    outputs={"y": Tensor("M", dtype="fp32")},
    reference=reference,
    flops=lambda M, N: M * N,
    nonfinite=("x",),
    check=[{"M": 1, "N": 1}, {"M": 5, "N": 127}, {"M": 37, "N": 781}, {"M": 2, "N": 9001}],
    bench=[{"M": 8192, "N": 8192}, {"M": 1, "N": 1 << 26}, {"M": 1 << 20, "N": 64}],
    # sums of both signs cancel: what is lost is a share of the summands, not of the sum
    tolerance=dict.fromkeys(("fp32", "fp16", "bf16"), Tolerance(relative=1e-5, rms_share=2e-5)),
)


@triton.jit
def _rows(x_ptr, y_ptr, M, N, stride_m, stride_n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    lane = tl.arange(0, BLOCK_N).to(tl.int64)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, N, BLOCK_N):
        n = start + lane
        mask = (m < M)[:, None] & (n < N)[None, :]
        at = x_ptr + m[:, None] * stride_m + n[None, :] * stride_n
        total += tl.load(at, mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + m, tl.sum(total, axis=1), m < M)


@triton.jit
def _slices(x_ptr, part_ptr, N, span, S, stride_m, stride_n, BLOCK_N: tl.constexpr):
    m, s = (tl.program_id(0) // S).to(tl.int64), (tl.program_id(0) % S).to(tl.int64)
    lane = tl.arange(0, BLOCK_N).to(tl.int64)
    total = tl.zeros((BLOCK_N,), tl.float32)
    end = tl.minimum(N, (s + 1) * span)
    for start in range(s * span, end, BLOCK_N):
        n = start + lane
        x = tl.load(x_ptr + m * stride_m + n * stride_n, n < end, other=0.0)
        total += x.to(tl.float32)
    tl.store(part_ptr + m * S + s, tl.sum(total, axis=0))


@dataclass(frozen=True)
class Rows:
    block_m: int = tile(1, 64, default=AUTO)
    block_n: int = tile(64, 8192, default=AUTO)
    num_warps: int = threads(1, 16, default=AUTO)


def size_rows(config, limits, *, itemsize, M, N):
    """Return the config with blocks of 4096 elements, of several rows where rows are short and
    eight programs a core remain: 2759 rows of 837 take 3.6 us on an H100 by twos with 4 warps, 3.9
    by fours with 8. A program for each of 2^20 rows of 64 takes 5 times as long as torch.
    """
    block_n = value_or(config.block_n, max(64, min(4096, pad_up(N))))
    most = max(1, min(64, 4096 // block_n, M // (8 * limits.cores)))
    block_m = value_or(config.block_m, 1 << most.bit_length() - 1)
    each = 8 if block_m == 1 else 16  # elements of a thread
    warps = max(1, min(8, block_m * block_n // (each * limits.warp_size)))
    return replace(
        config, block_m=block_m, block_n=block_n, num_warps=value_or(config.num_warps, warps)
    )


def refuse_rows(config, limits, *, itemsize, M, N):
    held = config.block_m * config.block_n // (config.num_warps * limits.warp_size)
    if not 1 <= held <= 64:
        return f"each thread would hold {held} elements in registers; 1 to 64 fit"
    if (in_turn := -(-N // config.block_n)) > 4096:
        return f"{in_turn} numbers would be added one after the other, which fp32 rounds too often"
    return None


def rows_work(config, limits, *, itemsize, M, N):
    return Work(
        tiles=-(-M // config.block_m),
        steps=-(-N // config.block_n),
        load_bytes=config.block_m * config.block_n * itemsize,
        store_bytes=config.block_m * 4,
    )


@reduce.impl(Rows, resolve=size_rows, refuse=refuse_rows, work=rows_work)
def rows(x, *, config):
    """`block_m` rows a program, in lanes that are summed once at the end."""
    M, N = x.shape
    y = x.new_empty(M, dtype=torch.float32)
    _rows[(triton.cdiv(M, config.block_m),)](x, y, M, N, *x.stride(), **meta(config))
    return y


MOST_SLICES = 1024  # of a row: their sums are one block of the second launch
PROGRAMS = 2048  # that fill the largest GPUs several times


@dataclass(frozen=True)
class Slices:
    """AUTO: short slices of short rows, see `size_slices`."""

    block_n: int = tile(512, 8192, default=AUTO)
    num_warps: int = threads(2, 16, default=AUTO)


def size_slices(config, limits, *, itemsize, M, N):
    """Return the config with what is AUTO chosen by the length of the rows: 34 rows of 70,656 take
    a fifth longer on an H100 in slices of 4096 than in slices of 1024. Each lane gets 16 bytes: on
    an AMD GPU of 64 lanes 4 warps would load 8 bytes of bf16 each."""
    block_n = value_or(config.block_n, 1024 if N <= 1 << 18 else 4096)
    whole = block_n * itemsize // (16 * limits.warp_size)
    suited = max(2, min(8 if block_n > 2048 else 4, whole))
    return replace(config, block_n=block_n, num_warps=value_or(config.num_warps, suited))


def refuse_slices(config, limits, *, itemsize, M, N):
    held = config.block_n // (config.num_warps * limits.warp_size)
    if not 1 <= held <= 64:
        return f"each thread would hold {held} elements in registers; 1 to 64 fit"
    return None


def slices_work(config, limits, *, itemsize, M, N):
    span, count = slice_extents(M, N, config.block_n)
    return Work(
        tiles=M * count,
        steps=-(-span // config.block_n),
        load_bytes=config.block_n * itemsize,
        store_bytes=4,
    )


def slice_extents(M, N, block_n):
    """Elements of a slice, whole blocks, and how many slices a row has."""
    wanted = max(1, min(MOST_SLICES, PROGRAMS // M))
    span = -(-N // (wanted * block_n)) * block_n
    return span, -(-N // span)


@reduce.impl(Slices, resolve=size_slices, refuse=refuse_slices, work=slices_work)
def slices(x, *, config):
    """A row is summed by many programs, and their sums by one: few long rows fill the device."""
    M, N = x.shape
    span, S = slice_extents(M, N, config.block_n)
    part = x.new_empty(M, S, dtype=torch.float32)
    _slices[(M * S,)](x, part, N, span, S, *x.stride(), **meta(config))
    y = x.new_empty(M, dtype=torch.float32)
    width = triton.next_power_of_2(S)
    _rows[(M,)](part, y, M, S, S, 1, BLOCK_M=1, BLOCK_N=width, num_warps=4 if width > 128 else 1)
    return y


@baseline(reduce)
def library(x):
    return x.sum(-1, dtype=torch.float32)
