"""Reads that end in a core's own cache: P programs, each of which reads its row of x over and over,
block by block; y[p] is the largest number of row p.

What plain Triton can show of the memory inside a core. Global loads that hit the first-level cache
go through the same banks as shared memory on NVIDIA's GPUs, 128 bytes a clock (on AMD's, the cache
is apart from the LDS); a load by address costs more instructions than one from shared memory, so
this is a floor of what shared memory gives. Rows must fit the cache, all of a core's together. A
maximum is exact and cannot be left out, since it is stored.
"""

from dataclasses import dataclass

from workbench.dsl import INTERPRETED, meta, tl, triton
from workbench.spec import Extent, Spec, Tensor, Tolerance, Work, threads, tile

PASSES = 512


def reference(x):
    return x.masked_fill(x.isnan(), -float("inf")).amax(1)


l1_read = Spec(
    name="l1_read",
    inputs={"x": Tensor("P N")},
    outputs={"y": Tensor("P")},
    reference=reference,
    flops=lambda P, N: 0,  # comparisons are none
    check=[{"P": 1, "N": 1024}, {"P": 3, "N": 4096}, {"P": 7, "N": 8192}],
    bench=[{"P": 264, "N": 8192}, {"P": 132, "N": 8192}],
    tolerance={dtype: Tolerance(relative=0.0) for dtype in ("fp32", "fp16", "bf16")},
    extents={"N": Extent(multiple=1024)},
)


@triton.jit
def _rows(x_ptr, y_ptr, N, stride_p, stride_n, BLOCK_N: tl.constexpr, PASSES: tl.constexpr):
    p = tl.program_id(0).to(tl.int64)
    row = x_ptr + p * stride_p
    lane = tl.arange(0, BLOCK_N)
    most = tl.full((BLOCK_N,), -float("inf"), tl.float32)
    # Where a row ends only the launch knows. With a constant there (or a remainder by a power of
    # two) ptxas saw that a load of one pass is a load of the next, and left some of them out.
    start = 0
    for _ in range(0, PASSES * N, BLOCK_N):
        x = tl.load(row + (start + lane).to(tl.int64) * stride_n)
        most = tl.maximum(most, x.to(tl.float32))
        start = tl.where(start + BLOCK_N == N, 0, start + BLOCK_N)
    tl.store(y_ptr + p, tl.max(most, axis=0).to(y_ptr.dtype.element_ty))


@dataclass(frozen=True)
class Rows:
    block_n: int = tile(1024, 4096, default=2048)
    num_warps: int = threads(4, 16, default=8)


def refuse_rows(config, limits, *, itemsize, P, N):
    held = config.block_n // (config.num_warps * limits.warp_size)
    if N % config.block_n:
        return f"a row of {N} has no whole number of blocks of {config.block_n}"
    return limits.refuse_held(held, 32)


def work(config, limits, *, itemsize, P, N):
    return Work(tiles=P, steps=PASSES, load_bytes=N * itemsize, store_bytes=itemsize)


@l1_read.impl(Rows, refuse=refuse_rows, work=work)
def rows(x, *, config):
    """One program reads its row 512 times, `block_n` elements at once."""
    P, N = x.shape
    y = x.new_empty(P)
    passes = 2 if INTERPRETED else PASSES  # every pass finds the same
    _rows[(P,)](x, y, N, *x.stride(), PASSES=passes, **meta(config))
    return y


@l1_read.impl(backend="torch", name="torch")
def library(x):
    return x.amax(1)
