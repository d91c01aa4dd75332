"""What the products share that give a SIMD-group its part of a block: config, limits and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from workbench.spec import among, tile


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
    return {
        "BM": config.block_m,
        "BN": config.block_n,
        "BK": config.block_k,
        "SM": config.simd_m,
        "SN": config.simd_n,
    }
