"""What the products share that give a SIMD-group its part of a block: config, limits and launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from metal_shim.kernel import MetalKernel
from workbench.spec import Limits, Work, among, tile


@dataclass(frozen=True)
class Simdgroup:
    """`simd_m` x `simd_n` SIMD-groups for a block of `block_m` x `block_n` of the product."""

    block_m: int = tile(16, 128, default=64)
    block_n: int = tile(16, 128, default=64)
    block_k: int = tile(8, 32, default=16)
    simd_m: int = among(1, 2, 4, default=2)  # SIMD-groups along M
    simd_n: int = among(1, 2, 4, default=2)


def refuse_uneven(config: Any) -> str | None:
    """Return in one sentence why SIMD-groups do not share a block in 8 x 8 parts, or None."""
    for axis in "mn":
        block, count = getattr(config, f"block_{axis}"), getattr(config, f"simd_{axis}")
        if block % (8 * count):
            return f"block_{axis} = {block} is no multiple of 8 x {count} SIMD-groups"
    return None


def block_values(config: Any) -> dict[str, int]:
    """Return the template values of the blocks and of their SIMD-groups."""
    blocks = {f"B{axis.upper()}": getattr(config, f"block_{axis}") for axis in "mnk"}
    return blocks | {"SM": config.simd_m, "SN": config.simd_n}


def refuse_shared(
    kernel: MetalKernel, config: Any, limits: Limits, *, itemsize: int, RANK: int = 0, **sizes: int
) -> str | None:
    """Return in one sentence why a block is not shared, or its sums or threadgroup memory do not
    suffice, or None. `RANK` is a further template value, of so many more columns of sums."""
    if reason := refuse_uneven(config):
        return reason
    columns = config.block_n + RANK
    held = config.block_m * columns // (32 * config.simd_m * config.simd_n)
    values = block_values(config) | ({"RANK": RANK} if RANK else {})
    kind = "fp32" if itemsize == 4 else "fp16"
    return limits.refuse_sums(held) or kernel.refuse_threadgroup(T=kind, **values)


def block_work(config: Any, limits: Limits, *, itemsize: int, M: int, N: int, K: int) -> Work:
    """Return the work of a product whose threadgroups have a block each."""
    return Work.of_product(config, itemsize, M=M, N=N, K=K)


def launch_blocks(
    kernel: MetalKernel, config: Any, N: int, *inputs: torch.Tensor, **more: int
) -> Any:
    """Launch a threadgroup for each block of an output of N columns, with as many rows as the first
    input, and return it."""
    x, group = inputs[0], 32 * config.simd_m * config.simd_n
    grid = (group * -(-N // config.block_n), -(-x.shape[0] // config.block_m), 1)
    y, values = x.new_empty(x.shape[0], N, device="meta"), block_values(config)
    return kernel(*inputs, like=y, grid=grid, group=group, T=x.dtype, **values, **more)
