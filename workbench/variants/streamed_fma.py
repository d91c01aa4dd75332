"""F fused multiply-adds on each element of three streams: x <- a x + b, then x <- A x + B.

Three elements are read and one is written whatever F is, so F alone sets the FLOPs for each byte:
F / 8 in fp32, from 1/8 at F = 1 to 128 at F = 1024. What one thread holds are chains that do not
wait for each other, as in `compute_only`; the second factor and addend are constants, so that a
multiply-add reads two registers and no bank of them twice. Trips of 32 keep the loop's own
instructions near 1 % where a thread holds eight chains.
"""

from dataclasses import dataclass

import torch

from workbench.dsl import meta, strides, tl, triton
from workbench.spec import Spec, Tensor, Tolerance, Work, threads, tile

UNROLLED = 32
A, B = 1 - 2.0**-10, 2.0**-10  # both exact; x goes to 1


def reference(x, a, b, steps):
    x = a * x + b
    for _ in range(steps.shape[0] - 1):
        x = A * x + B
    return x


def no_values(shape, dtype, device, generator):
    """What only its length is asked of."""
    return torch.zeros(shape, dtype=dtype, device=device)


streamed_fma = Spec(
    name="streamed_fma",
    inputs={
        "x": Tensor("N"),
        "a": Tensor("N"),
        "b": Tensor("N"),
        "steps": Tensor("F", dtype="uint8", make=no_values),  # its length is the number, unread
    },
    outputs={"y": Tensor("N")},
    reference=reference,
    flops=lambda N, F: 2 * N * F,
    check=[{"N": 1, "F": 1}, {"N": 127, "F": 2}, {"N": 4096, "F": 33}, {"N": 1031, "F": 70}],
    bench=[{"N": 1 << 25, "F": 1}, {"N": 1 << 25, "F": 1024}],
    tolerance={
        # a rounding of 2^-24 at each step, of which the factor forgets the older ones
        "fp32": Tolerance(relative=4e-5, rms_share=4e-5),
        "fp16": Tolerance(relative=1e-3, rms_share=4e-5),
        "bf16": Tolerance(relative=8e-3, rms_share=4e-5),
    },
)


@triton.jit
def _blocks(
    x_ptr, a_ptr, b_ptr, y_ptr, N, stride_x, stride_a, stride_b, A: tl.constexpr, B: tl.constexpr,
    TRIPS: tl.constexpr, UNROLLED: tl.constexpr, REST: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    x = tl.load(x_ptr + n * stride_x, n < N, other=0.0).to(tl.float32)
    a = tl.load(a_ptr + n * stride_a, n < N, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + n * stride_b, n < N, other=0.0).to(tl.float32)
    x = tl.fma(a, x, b)
    a = tl.full((BLOCK_N,), A, tl.float32)
    b = tl.full((BLOCK_N,), B, tl.float32)
    for _ in range(TRIPS):
        for _ in tl.static_range(UNROLLED):
            x = tl.fma(a, x, b)
    for _ in tl.static_range(REST):
        x = tl.fma(a, x, b)
    tl.store(y_ptr + n, x.to(y_ptr.dtype.element_ty), n < N)


@dataclass(frozen=True)
class Blocks:
    block_n: int = tile(256, 8192, default=1024)
    num_warps: int = threads(1, 16, default=4)


def refuse_blocks(config, limits, *, itemsize, N, F):
    held = config.block_n // (config.num_warps * limits.warp_size)
    if not 1 <= held <= 32:
        return f"each thread would hold {held} chains; 1 to 32 fit its registers"
    return None


def work(config, limits, *, itemsize, N, F):
    moved = config.block_n * itemsize
    return Work(tiles=-(-N // config.block_n), steps=1, load_bytes=3 * moved, store_bytes=moved)


# 64 threads a warp: as many chains for each
CDNA = dict.fromkeys(("gfx90a", "gfx942", "gfx950"), Blocks(block_n=2048))


@streamed_fma.impl(Blocks, refuse=refuse_blocks, work=work, defaults=CDNA)
def blocks(x, a, b, steps, *, config):
    """One program runs `block_n` chains of as many multiply-adds as `steps` is long."""
    (N,), (F,) = x.shape, steps.shape
    y = x.new_empty(N)
    trips, rest = divmod(F - 1, UNROLLED)
    constants = dict(TRIPS=trips, UNROLLED=UNROLLED, REST=rest, **meta(config))
    grid = (triton.cdiv(N, config.block_n),)
    _blocks[grid](x, a, b, y, N, *strides(x, a, b), A, B, **constants)
    return y
