"""Compute how many blocks of a kernel are resident on one core, and which resource limits them.

Pure arithmetic on the compiler's figures, the same as cuda_occupancy.h of the CUDA toolkit does and
as LLVM's AMDGPU back end assumes. Occupancy says how full a core can be, not how fast it is.
"""

from dataclasses import dataclass
from typing import Literal

from workbench.device.hardware import Device

Limiter = Literal["registers", "shared memory", "threads", "blocks"]

_UNLIMITED = 1 << 30


@dataclass(frozen=True)
class Occupancy:
    """Blocks and warps resident at once on one core, `fraction` of the most warps that it holds (0
    to 1), and the resource that runs out first."""

    blocks_per_core: int
    warps_per_core: int
    fraction: float
    limiter: Limiter


def occupancy(device: Device, *, threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """Return the occupancy of blocks of `threads` threads, with `registers` 32-bit registers a
    thread (on CDNA architectural and accumulation registers together) and `shared_bytes` bytes a
    block.

    A block that cannot run at all gets 0 blocks and the limiter that forbids it. Of resources that
    run out together, the core's own limits (threads, blocks) are named first: freeing registers
    would not help. Raises ValueError when a number is negative or threads is 0.
    """
    if threads < 1 or registers < 0 or shared_bytes < 0:
        raise ValueError(
            f"a block needs at least 1 thread and no negative resources, not {threads} threads, "
            f"{registers} registers and {shared_bytes} bytes"
        )
    warps, most = -(-threads // device.limits.warp_size), device.limits.threads_per_block
    fits: dict[Limiter, int] = {
        "threads": device.warps_per_core // warps if threads <= most else 0,
        "blocks": _block_limit(device, warps),
        "registers": _register_limit(device, registers, warps),
        "shared memory": _shared_limit(device, shared_bytes),
    }
    limiter = min(fits, key=lambda resource: fits[resource])
    blocks = fits[limiter]
    resident = blocks * warps
    return Occupancy(blocks, resident, resident / device.warps_per_core, limiter)


def waves(device: Device, programs: int, blocks_per_core: int) -> tuple[float, float]:
    """Return the number of waves, `programs / (blocks_per_core * cores)`, and the tail: the share
    (0 to 1) of the last wave's places that stays empty, 0 where that number is whole.

    Both are 0 when no block fits.
    """
    places = blocks_per_core * device.limits.cores
    if places <= 0 or programs <= 0:
        return 0.0, 0.0
    left_over = programs % places
    return programs / places, (places - left_over) / places if left_over else 0.0


def _block_limit(device: Device, warps: int) -> int:
    # On AMD the limit is the number of barriers, and a block of one wave needs none.
    if device.backend == "hip" and warps == 1:
        return _UNLIMITED
    return device.blocks_per_core


def _register_limit(device: Device, registers: int, warps: int) -> int:
    """Return the limit by registers: each scheduler allocates its part to warps in whole units."""
    if registers == 0:
        return _UNLIMITED
    if registers > device.limits.registers_per_thread:
        return 0
    per_warp = _round_up(registers * device.limits.warp_size, device.register_unit)
    per_scheduler = device.registers_per_core // device.schedulers_per_core
    # CUDA rejects a block as if its warps were spread evenly over the schedulers, so 9 warps of
    # a block count as 12 there; the blocks after the first are packed warp by warp.
    spread = _round_up(warps, device.schedulers_per_core)
    if device.backend == "cuda" and per_warp * spread > device.registers_per_core:
        return 0
    return per_scheduler // per_warp * device.schedulers_per_core // warps


def _shared_limit(device: Device, shared_bytes: int) -> int:
    if shared_bytes > device.limits.shared_bytes:
        return 0
    taken = _round_up(shared_bytes + device.shared_reserved, device.shared_unit)
    return device.shared_per_core // taken if taken else _UNLIMITED


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
