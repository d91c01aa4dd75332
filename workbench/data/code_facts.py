"""Facts of one kernel's machine code that rules are evaluated on: plain numbers and source lines.

Counts are of instructions in the listing, not of executions. Hot code is that inside of loops, or
all of a kernel without a loop, with the functions that it calls.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Marked:
    """Instructions of one kind, and the source lines that they belong to."""

    count: int = 0
    places: tuple[str, ...] = ()  # `mine.py:12`, the most instructions first


@dataclass(frozen=True)
class CodeFacts:
    """Facts of the code of one kernel for one target. None where the code or the target does not
    tell; `FACTS` says of each what would."""

    function: str  # name of the device function
    target: str  # "h200", or the architecture of a file
    arch: str  # "sm_90", "gfx942"
    instructions: int  # of hot code
    matrix: int  # matrix instructions of the whole kernel
    spills: Marked  # loads and stores of spilled registers, in loops
    fp64: Marked  # in hot code
    divisions: Marked  # by integers that are not constants, in innermost loops
    accesses: Marked  # global loads and stores in hot code whose width is known
    narrow: Mapping[int, Marked]  # of these, by the bytes that one thread moves
    arithmetic: Marked  # floating-point instructions outside of the matrix unit, in hot code
    load_bytes: int  # that one thread loads if each global load of hot code runs once
    # loads through registers in loops with matrix instructions, and loads past them in any loop
    staged_loads: Marked | None = None
    async_loads: int | None = None
    stages: int | None = None  # that the launch asks for
    product: str | None = None  # what says that it is a product; empty: nothing does
    dtype: str | None = None  # of the problem
    registers: int | None = None  # of a thread
    shared_bytes: int | None = None  # of a block
    shared_limit: int | None = None  # of a block on the device
    occupancy: float | None = None  # resident warps over the most that fit, 0 to 1
    limiter: str | None = None  # of the occupancy
    next_step: str | None = None  # least change that raises the occupancy, and to what
    waves: float | None = None  # programs over those resident at once
    in_flight: float | None = None  # requested bytes over those that keep DRAM busy
    warnings: tuple[tuple[str, str], ...] | None = None  # of ptxas: number and sentence
    overlaps: tuple[tuple[str, str, int], ...] | None = None  # partitions, blocks in both


# What tells a fact that may be None.
FACTS: Mapping[str, str] = {
    "staged_loads": "a target with asynchronous copies (sm_80 or later)",
    "async_loads": "a target with asynchronous copies (sm_80 or later)",
    "stages": "a kernel in place of a file",
    "product": "a kernel in place of a file",
    "dtype": "a kernel in place of a file",
    "registers": "a kernel in place of a file",
    "shared_bytes": "a kernel in place of a file",
    "shared_limit": "a kernel in place of a file",
    "occupancy": "a kernel in place of a file",
    "limiter": "a kernel in place of a file",
    "next_step": "a kernel in place of a file",
    "waves": "a kernel in place of a file",
    "in_flight": "a device with a known bandwidth",
    "warnings": "PTX of NVIDIA, which ptxas assembles again",
    "overlaps": "a warp-specialised kernel of NVIDIA",
}
