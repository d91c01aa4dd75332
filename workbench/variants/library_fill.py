"""Memory set to one value, 64 bits at a time. It is there for what torch's fill_ reaches, the
library reference of writes. Of two inputs only the lengths are used, so all that moves is what is
written.

Of 16-bit numbers fill_ writes 3.4 TB/s on an H200, of 64-bit ones 4.6. Constant bits cost less
power than the random ones of `fill`, which DRAM's bandwidth does not mind.
"""

from dataclasses import dataclass

import torch

from workbench.dsl import tl, triton
from workbench.spec import Spec, Tensor, Tolerance, Work, threads, tile

VALUE = 0x0123_4567_89AB_CDEF


def reference(a, b):
    return torch.full((len(a), len(b)), VALUE, device=a.device)


library_fill = Spec(
    name="library_fill",
    inputs={"a": Tensor("M"), "b": Tensor("N")},
    outputs={"y": Tensor("M N", dtype="int64")},
    reference=reference,
    flops=lambda M, N: 0,
    check=[{"M": 1, "N": 1}, {"M": 3, "N": 127}, {"M": 17, "N": 1000}],
    bench=[{"M": 1 << 14, "N": 4096}, {"M": 1 << 12, "N": 4096}],
    tolerance={"fp32": Tolerance(relative=0.0)},
)


@triton.jit
def _blocks(y_ptr, count, VALUE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.full((BLOCK,), VALUE, tl.int64), at < count)


@dataclass(frozen=True)
class Blocks:
    block: int = tile(512, 4096, default=1024)
    num_warps: int = threads(4, 8, default=4)


def work(config, limits, *, itemsize, M, N):
    tiles = -(-M * N // config.block)
    return Work(tiles=tiles, steps=1, load_bytes=0, store_bytes=8 * config.block)


@library_fill.impl(Blocks, work=work)
def blocks(a, b, *, config):
    """One program sets `block` neighbours."""
    y = a.new_empty(len(a), len(b), dtype=torch.int64)
    _blocks[(triton.cdiv(y.numel(), config.block),)](
        y, y.numel(), VALUE=VALUE, BLOCK=config.block, num_warps=config.num_warps
    )
    return y


@library_fill.impl(backend="torch", name="torch.fill_")
def library(a, b):
    return a.new_empty(len(a), len(b), dtype=torch.int64).fill_(VALUE)
