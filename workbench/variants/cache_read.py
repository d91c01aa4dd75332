"""Reads that end in the last-level cache: P programs, each of which reads 64 pieces of 4096 numbers
out of a small x, from a place of its own on and round its end; y[p] is the largest number seen.

Called over and over on the same x (regime hot), it asks nothing of DRAM. Loads pass by the cores'
own caches (`.cg`), and at any moment the programs read pieces that lie far apart, so that all
slices of the cache work. A maximum is exact, needs no order, and cannot be left out since it is
stored. NaN is not a number, and so never the largest.
"""

from dataclasses import dataclass

import torch

from workbench.dsl import strides, tl, triton
from workbench.spec import Extent, Spec, Tensor, Tolerance, Work, among, threads

PIECE = 4096
READS = 64  # pieces a program reads


def reference(x, first):
    largest = x.masked_fill(x.isnan(), -float("inf")).view(-1, PIECE).amax(1)
    step = torch.arange(READS, device=x.device)
    return largest[(first.long()[:, None] + step) % len(largest)].amax(1)


def anywhere(shape, dtype, device, generator):
    """First pieces, any whole number: they count modulo those that there are."""
    return torch.randint(1 << 20, shape, generator=generator, device=device, dtype=dtype)


cache_read = Spec(
    name="cache_read",
    inputs={"x": Tensor("N"), "first": Tensor("P", dtype="int32", make=anywhere)},
    outputs={"y": Tensor("P")},
    reference=reference,
    flops=lambda N, P: 0,  # comparisons are none
    check=[{"N": 4096, "P": 1}, {"N": 3 * 4096, "P": 2}, {"N": 9 * 4096, "P": 3}],
    bench=[{"N": 3 << 21, "P": 4224}, {"N": 1 << 21, "P": 4224}],
    tolerance={dtype: Tolerance(relative=0.0) for dtype in ("fp32", "fp16", "bf16")},
    extents={"N": Extent(multiple=PIECE)},
)


@triton.jit
def _pieces(
    x_ptr, first_ptr, y_ptr, N, stride_x, stride_first,
    PIECE: tl.constexpr, READS: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    p = tl.program_id(0).to(tl.int64)
    pieces = N // PIECE
    piece = (tl.load(first_ptr + p * stride_first) % pieces).to(tl.int64)
    n = tl.arange(0, PIECE)
    most = tl.full((PIECE,), -float("inf"), tl.float32)
    for _ in range(0, READS, AT_ONCE):
        for _ in tl.static_range(AT_ONCE):
            x = tl.load(x_ptr + (piece * PIECE + n) * stride_x, cache_modifier=".cg")
            most = tl.maximum(most, x.to(tl.float32))
            piece = tl.where(piece + 1 == pieces, 0, piece + 1)  # a remainder takes ten times that
    tl.store(y_ptr + p, tl.max(most, axis=0).to(y_ptr.dtype.element_ty))


@dataclass(frozen=True)
class Pieces:
    at_once: int = among(1, 2, default=2)  # pieces whose loads do not wait for each other
    num_warps: int = threads(4, 16, default=8)


def refuse_pieces(config, limits, *, itemsize, N, P):
    held = (1 + config.at_once) * PIECE // (config.num_warps * limits.warp_size)
    return limits.refuse_held(held, 128)


def work(config, limits, *, itemsize, N, P):
    return Work(tiles=P, steps=READS, load_bytes=PIECE * itemsize, store_bytes=itemsize)


@cache_read.impl(Pieces, refuse=refuse_pieces, work=work)
def pieces(x, first, *, config):
    """One program reads 64 pieces, `at_once` of them together."""
    (P,) = first.shape
    y = x.new_empty(P)
    constants = dict(PIECE=PIECE, READS=READS, AT_ONCE=config.at_once, num_warps=config.num_warps)
    _pieces[(P,)](x, first, y, *x.shape, *strides(x, first), **constants)
    return y


@cache_read.impl(backend="torch", name="torch")
def library(x, first):
    """Reads x once and gathers what it found: as fast as a cache of ours can be read from torch."""
    largest = x.view(-1, PIECE).amax(1)
    step = torch.arange(READS, device=x.device)
    return largest[(first.long()[:, None] + step) % len(largest)].amax(1)
