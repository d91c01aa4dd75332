"""Count loads, stores and arithmetic of machine code, in all and inside its loops.

A loop is a cycle of the control flow that can be reached from the entry. A prologue that loads
ahead is outside, slow paths behind the end of the kernel belong to the place that branches to them,
and the branch to itself that pads NVIDIA's code does not count. Counts are of instructions in the
listing, not of executions; an unrolled loop has its body several times.
"""

import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.code.flow import loop_levels
from workbench.code.kinds import BY_DESCRIPTOR, amd_kind, sass_kind
from workbench.code.listing import Instruction, Listing, disassemble, read_amdgcn_listing, read_sass


@dataclass(frozen=True)
class Counts:
    """Instructions by kind.

    `loads` are those of global memory by kind: `"128"` is 128 bits for each thread, `"async 128"`
    the same straight into shared memory, `"descriptor"` one tile of the copy engine. `vector` are
    floating-point additions, multiplications and fused multiply-adds, whatever their width;
    `special` are exponentials, logarithms, roots, reciprocals and the like (MUFU).
    """

    loads: Mapping[str, int] = field(default_factory=dict)
    stores: int = 0  # to global memory
    shared_loads: int = 0
    matrix: int = 0
    vector: int = 0
    special: int = 0

    @property
    def global_loads(self) -> int:
        """Return the number of load instructions of global memory, of every kind."""
        return sum(self.loads.values())

    @property
    def load_bytes(self) -> int | None:
        """Return the bytes that one thread loads where each instruction runs once; None for loads
        by descriptor, whose size is not in the listing."""
        if BY_DESCRIPTOR in self.loads:
            return None
        return sum(int(kind.split()[-1]) // 8 * count for kind, count in self.loads.items())


@dataclass(frozen=True)
class Code:
    """Facts of one launch's machine code. `unknown` lists, a sentence each, facts that the listing
    does not hold; where `readable` is false, nothing is known at all."""

    arch: str  # Triton's name of the target: "sm_90", "gfx942"
    loops: int  # that hold a counted instruction: a loop that only waits does not count
    whole: Counts
    loop_counts: Counts
    unknown: tuple[str, ...] = ()
    readable: bool = True


def code_of(asm: Mapping[str, Any], arch: str) -> Code:
    """Return the facts of a compiled kernel from the `asm` of Triton's CompiledKernel.

    Reads the cubin, disassembled (some 0.1 s), or AMD's assembly for the target `arch`. Does not
    raise: for unreadable code the result's `readable` is false.
    """
    if "amdgcn" in asm:
        return code_of_amdgcn(asm["amdgcn"], arch)
    if "cubin" not in asm:
        return _unreadable(arch, f"there is no machine code for {arch} to read")
    try:
        return code_of_sass(disassemble(asm["cubin"]), arch)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return _unreadable(arch, f"the machine code could not be disassembled: {error}")


def code_of_sass(listing: str, arch: str) -> Code:
    """Return the facts of a listing by nvdisasm, with labels (`-c` or `-g`)."""
    return _code(read_sass(listing), sass_kind, arch)


def code_of_amdgcn(text: str, arch: str) -> Code:
    """Return the facts of AMD assembly as LLVM writes it."""
    return _code(read_amdgcn_listing(text), amd_kind, arch)


def _counts(kinds: Iterable[str | None]) -> Counts:
    text = Counter(kind for kind in kinds if kind is not None)
    loads = {k.removeprefix("load "): n for k, n in text.items() if k.startswith("load ")}
    return Counts(
        dict(sorted(loads.items())),
        text["store"],
        text["shared"],
        text["matrix"],
        text["vector"],
        text["special"],
    )


# Facts of a listing


def _code(listing: Listing, kind_of: Callable[[Instruction], str | None], arch: str) -> Code:
    if not listing.instructions:
        return _unreadable(arch, "the listing holds no instruction")
    kinds = [kind_of(op) for op in listing.instructions]
    _, every = loop_levels(listing)
    loops = [loop for loop in every if any(kinds[i] for i in loop)]  # not those that only wait
    inside = set[int]().union(*loops)
    ops = [listing.instructions[i] for i in sorted(inside)]
    return Code(
        arch=arch,
        loops=len(loops),
        whole=_counts(kinds),
        loop_counts=_counts(kinds[i] for i in inside),
        unknown=tuple(_unknown(listing, loops, ops, kinds)),
    )


def _unknown(
    listing: Listing,
    loops: Sequence[set[int]],
    inside: Sequence[Instruction],
    kinds: Sequence[str | None],
) -> Iterable[str]:
    if listing.lost_jumps:
        names = ", ".join(sorted(set(listing.lost_jumps)))
        yield f"it has jumps with unknown targets ({names}), so loops may have been missed"
    if f"load {BY_DESCRIPTOR}" in kinds:
        yield "the bytes of a load by descriptor are stated only in the descriptor"
    if any(op.opcode.startswith(("s_load_", "s_buffer_load_")) for op in inside):
        yield "scalar loads inside loops are not counted: those of arguments and of data look alike"
    if not loops:
        yield "it has no loop; a fully unrolled one looks like any other code"


def _unreadable(arch: str, reason: str) -> Code:
    return Code(arch, 0, Counts(), Counts(), (reason,), readable=False)
