"""Triad: y = a + 0.5 b, element by element.

Two streams read, one written: the mix of STREAM's triad, and of many fused elementwise kernels.
At 2 FLOP for three elements moved it is memory-bound on every GPU in `devices/`.

NaN and infinities stay in their places.
"""

from dataclasses import dataclass

from workbench.dsl import baseline, meta, strides, tile_count, tl, triton
from workbench.spec import Spec, Tensor, Work, threads, tile

SCALE = 0.5


def reference(a, b):
    """With SCALE written out: taken from the kernel's own, a wrong one would not show."""
    return a + 0.5 * b


triad = Spec(
    name="triad",
    inputs={"a": Tensor("N"), "b": Tensor("N")},
    outputs={"y": Tensor("N")},
    reference=reference,
    flops=lambda N: 2 * N,
    nonfinite=("a", "b"),
    check=[{"N": 1}, {"N": 127}, {"N": 4096}, {"N": 33_331}],
    bench=[{"N": 1 << 28}, {"N": 1 << 24}],
    longest=1 << 40,
)


@triton.jit
def _blocks(a_ptr, b_ptr, y_ptr, N, stride_a, stride_b, SCALE: tl.constexpr, BLOCK_N: tl.constexpr):
    n = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    a = tl.load(a_ptr + n * stride_a, n < N).to(tl.float32)
    b = tl.load(b_ptr + n * stride_b, n < N).to(tl.float32)
    tl.store(y_ptr + n, (a + SCALE * b).to(y_ptr.dtype.element_ty), n < N)


@dataclass(frozen=True)
class Blocks:
    block_n: int = tile(256, 16_384, default=1024)
    num_warps: int = threads(1, 16, default=4)


def refuse_blocks(config, limits, *, itemsize, N):
    held = config.block_n // (config.num_warps * limits.warp_size)
    return limits.refuse_held(held, 64, "elements of each input in registers")


def work(config, limits, *, itemsize, N):
    moved = config.block_n * itemsize
    return Work(tiles=-(-N // config.block_n), steps=1, load_bytes=2 * moved, store_bytes=moved)


# 64 threads a warp: 8 elements of 16 bits for each make one load of 128 bits
CDNA = {"gfx90a gfx942 gfx950": Blocks(block_n=2048)}


@triad.impl(Blocks, refuse=refuse_blocks, work=work, defaults=CDNA)
def blocks(a, b, *, config):
    """One program adds `block_n` neighbours."""
    (N,) = a.shape
    y = a.new_empty(N)
    _blocks[(tile_count(config, N=N),)](a, b, y, N, *strides(a, b), SCALE, **meta(config))
    return y


@baseline(triad)
def library(a, b):
    return a.add(b, alpha=SCALE)
