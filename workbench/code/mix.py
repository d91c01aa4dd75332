"""Add up the instructions of a part of a listing: mix, bytes by access width, matrix work."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from workbench.code.kinds import GROUPS, access_of, group_of, matrix_flops
from workbench.code.listing import Instruction


@dataclass(frozen=True)
class Access:
    """Instructions of one kind of memory access and width."""

    kind: str  # "global load", "shared store", "spill", ...
    width: int | None  # bytes that one thread moves; None where a descriptor states them
    count: int

    @property
    def bytes(self) -> int | None:
        """Return the bytes that one thread moves if each instruction runs once."""
        return None if self.width is None else self.width * self.count


@dataclass(frozen=True)
class Mix:
    """Counts of instructions in a listing, not of executions."""

    instructions: int
    groups: Mapping[str, int]  # by GROUPS; none that is 0
    accesses: tuple[Access, ...]
    matrix: Mapping[str, int]  # matrix instructions by opcode
    matrix_flops: int | None  # of them, each once: of a warp or warp group; None if unknown


def mix_of(ops: Iterable[Instruction], arch: str) -> Mix:
    """Return the mix of some instructions of a listing for the target `arch`."""
    ops = list(ops)
    kinds = [group_of(op, arch) for op in ops]
    counts = Counter(kinds)
    accesses = Counter(a for op in ops if (a := access_of(op, arch)) is not None)
    matrix = [op for op, kind in zip(ops, kinds, strict=True) if kind == "matrix"]
    flops = [matrix_flops(op) for op in matrix]
    known = [each for each in flops if each is not None]
    order = sorted(accesses, key=lambda a: (a[0], a[1] is None, a[1] or 0))
    return Mix(
        instructions=len(ops),
        groups={group: counts[group] for group in GROUPS if counts[group]},
        accesses=tuple(Access(kind, width, accesses[kind, width]) for kind, width in order),
        matrix=dict(Counter(op.opcode for op in matrix)),
        matrix_flops=sum(known) if len(known) == len(flops) else None,
    )
