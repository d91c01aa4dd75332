"""Copy: y = x, element by element.

The simplest memory-bound kernel: nothing to compute, every byte read once and written once. What
it reaches is the bandwidth that any streaming kernel on the device can hope for.

The bits are copied, also those of NaN.
"""

from dataclasses import dataclass

import torch

from workbench.dsl import meta, tl, triton
from workbench.spec import Spec, Tensor, Tolerance, Work, threads, tile


def reference(x):
    return x.clone()


copy = Spec(
    name="copy",
    inputs={"x": Tensor("N")},
    outputs={"y": Tensor("N")},
    reference=reference,
    flops=lambda N: 0,
    nonfinite=("x",),
    check=[{"N": 1}, {"N": 127}, {"N": 4096}, {"N": 33_331}],
    bench=[{"N": 1 << 28}, {"N": 1 << 24}],
    tolerance={dtype: Tolerance(relative=0.0) for dtype in ("fp32", "fp16", "bf16")},
    longest=1 << 40,
)


@triton.jit
def _blocks(x_ptr, y_ptr, N, stride_x, BLOCK_N: tl.constexpr):
    # int64: an element may lie more than 2^31 elements from the first
    n = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    tl.store(y_ptr + n, tl.load(x_ptr + n * stride_x, n < N), n < N)


@dataclass(frozen=True)
class Blocks:
    block_n: int = tile(256, 32_768, default=1024)
    num_warps: int = threads(1, 16, default=4)


def refuse_blocks(config, limits, *, itemsize, N):
    held = config.block_n // (config.num_warps * limits.warp_size)
    return limits.refuse_held(held, 128)


def work(config, limits, *, itemsize, N):
    moved = config.block_n * itemsize
    return Work(tiles=-(-N // config.block_n), steps=1, load_bytes=moved, store_bytes=moved)


# 64 threads a warp: 8 elements of 16 bits for each make one load of 128 bits
CDNA = {"gfx90a gfx942 gfx950": Blocks(block_n=2048)}


@copy.impl(Blocks, refuse=refuse_blocks, work=work, defaults=CDNA)
def blocks(x, *, config):
    """One program copies `block_n` neighbours."""
    (N,) = x.shape
    y = x.new_empty(N)
    _blocks[(triton.cdiv(N, config.block_n),)](x, y, N, x.stride(0), **meta(config))
    return y


copy.library("torch", lambda x: torch.clone(x, memory_format=torch.contiguous_format))
