"""Names shared by kernels in Gluon: the language, and the parts of a pipeline of warp groups.

Gluon is Triton's lower level: layouts, shared memory, barriers and the warp groups' asynchronous
products are written out. It renames parts between Triton 3.6 and 3.9, and this module alone knows
which. It has no interpreter, so a kernel in it is compiled here and checked where a GPU is: its
Impl is declared with `unchecked=UNCHECKED`.

A pipeline moves blocks through rings of slots in shared memory. Each slot has two barriers: `full`
is completed by the copy engine when a block has arrived, `free` by the consumers when all of them
have read it. A phase bit tells one round of a ring from the next.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from workbench.dsl import block_strides
from workbench.spec import Limits

try:
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia.hopper import (
        fence_async_shared,
        mbarrier,
        tma,
        warpgroup_mma,
        warpgroup_mma_wait,
    )
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    # Triton 3.6's names, and those of 3.9
    group_barrier = getattr(gl, "thread_barrier", None) or gl.barrier
    copy_in = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
    copy_out = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
except ModuleNotFoundError:  # no wheel of Triton for this system
    from workbench.dsl import triton as gluon

    gl = mbarrier = tma = TensorDescriptor = group_barrier = gluon
    fence_async_shared = warpgroup_mma = warpgroup_mma_wait = copy_in = copy_out = gluon

RENAMED = {"float8_e4m3fn": "float8e4nv"}  # torch's name, and the language's
UNCHECKED = "Triton's interpreter does not run Gluon"


def refuse_hopper(limits: Limits) -> str | None:
    """Return why a device has no asynchronous products of warp groups, or None if it has them."""
    if limits.arch != "sm_90":
        return f"it is written for the warp groups' products of Hopper (sm_90), not {limits.arch}"
    return None


def describe_blocks(name: str, tensor: Any, block: list[int]) -> Any:
    """Return a descriptor of blocks of a tensor for the copy engine. Raises ValueError, which calls
    it `name`, where the tensor cannot have one."""
    strides = block_strides(name, tensor)
    layout = _block_layout(tuple(block), str(tensor.dtype).removeprefix("torch."))
    return TensorDescriptor(tensor, list(tensor.shape), strides, block, layout)


@cache  # of the 32 us of a descriptor the layout takes 22
def _block_layout(block: tuple[int, ...], dtype: str) -> Any:
    kind = getattr(gl, RENAMED.get(dtype, dtype))
    return gl.NVMMASharedLayout.get_default_for(list(block), kind)


@gluon.jit
def barriers(SLOTS: gl.constexpr, COUNT: gl.constexpr):
    """Return a barrier for each slot of a ring; COUNT arrivals complete one."""
    bars = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(SLOTS):
        mbarrier.init(bars.index(i), COUNT)
    return bars


@gluon.jit
def next_slot(slot, phase, SLOTS: gl.constexpr):
    """Return the slot after this one. Once around the ring, the phase of its barriers flips."""
    slot += 1
    if slot == SLOTS:
        slot = 0
        phase ^= 1
    return slot, phase


@gluon.jit
def fetch(descriptor, at, ring, full, free, slot, phase):
    """Wait until a slot is free, and let the copy engine fill it."""
    mbarrier.wait(free.index(slot), phase)
    mbarrier.expect(full.index(slot), descriptor.block_type.nbytes)
    copy_in(descriptor, at, full.index(slot), ring.index(slot))


@gluon.jit
def fetch_parts(descriptors, at, rings, full, free, slot, phase):
    """Fetch a block as `fetch` does, whose last axis lies in one part or in two: descriptors and
    rings are pairs, and the second is None where there is one part."""
    if descriptors[1] is None:
        fetch(descriptors[0], at, rings[0], full, free, slot, phase)
    else:
        first, rest = descriptors
        mbarrier.wait(free.index(slot), phase)
        mbarrier.expect(full.index(slot), first.block_type.nbytes + rest.block_type.nbytes)
        copy_in(first, at, full.index(slot), rings[0].index(slot))
        beyond = [at[0], at[1], at[2], first.block_type.shape[3]]
        copy_in(rest, beyond, full.index(slot), rings[1].index(slot))


@gluon.jit
def await_launch():
    """Wait until the launch before has ended, where this one may begin before that. Then let the
    next launch begin: it finds all that this one has found."""
    gl.inline_asm_elementwise(
        "griddepcontrol.wait; griddepcontrol.launch_dependents; // $0", "=r", [], dtype=gl.int32,
        is_pure=False, pack=1,
    )  # fmt: skip


@gluon.constexpr_function
def _named(op, number):
    return f"{op} {number}, 256; mov.b32 $0, $1;"


@gluon.jit
def named_barrier(OP: gl.constexpr, NUMBER: gl.constexpr, x):
    """Issue `bar.sync` or `bar.arrive` for two warp groups, 256 threads. Gluon has no named
    barriers; it uses numbers 0 to 2 itself in a kernel of three partitions. `x` is any integer."""
    gl.inline_asm_elementwise(
        _named(OP, NUMBER), "=r,r", [x], dtype=gl.int32, is_pure=False, pack=1
    )


# ptxas sees that a move changes nothing, but not that no GPU has 2^24 cores.
_SAME = gl.constexpr(
    "{ .reg .b32 zero; mov.u32 zero, %nsmid; shr.u32 zero, zero, 24; xor.b32 $0, $1, zero; }"
)


@gluon.jit
def unwidened(x):
    """Return x in such a way that what was computed of it before is computed again, not kept: 64
    numbers of 16 bits in a thread, widened once, take 103 registers, and 64 are enough where they
    are widened at each use."""
    PACK: gl.constexpr = 32 // x.dtype.primitive_bitwidth
    return gl.inline_asm_elementwise(
        _SAME, "=r,r", [x], dtype=x.dtype, is_pure=False, pack=PACK
    )  # fmt: skip
