"""Match the machine code of an NVIDIA kernel with the loops and accesses of its TTGIR, by the
source lines that both name. Loops of the same lines, as of a function that is inlined twice, are
told apart by the order of their addresses."""

import itertools
import struct
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from workbench.code.program_slices import ACCESSES, LOOPS, WRITES, every_op
from workbench.code.ttgir import Function, Op, read_ttgir
from workbench.code.warp_code import WarpCode, WarpInstruction, read_warp_code
from workbench.device.warp_timeline import ACCESSES as MEMORY_KINDS
from workbench.device.warp_timeline import (
    ATOMIC,
    DOUBLE,
    DRAIN,
    MATRIX,
    STORE,
    Issued,
    IssuedCode,
    IssuedLoop,
)

BELOW = 8  # lines; a load is inline assembly, of which each line counts as one of the source
Line = tuple[str, int]


def issued_code(ttgir: str, cubin: bytes) -> Issued | None:
    """Return what a warp issues. None for a kernel that uses the matrix units, whose products have
    terms of their own, or doubles, whose rate no device states, and for code that cannot be read in
    this way."""
    try:
        code = read_warp_code(cubin)
    except (ValueError, LookupError, struct.error):
        return None
    if any(one.kind in MATRIX + DOUBLE for one in code.instructions):
        return None
    return _Match(read_ttgir(ttgir), code).count_issued()


def _ops_by_loop(ops: Sequence[Op], loop: int) -> Iterator[tuple[int, Op]]:
    """Yield all operations, each with the number of the innermost loop around it."""
    for op in ops:
        yield loop, op
        for region in op.regions:
            yield from _ops_by_loop(region, op.number if op.name in LOOPS else loop)


class _Match:
    def __init__(self, function: Function, code: WarpCode) -> None:
        self._code = code
        self._sites: dict[tuple[bool, int, Line], int] = {}  # by whether it writes, loop and line
        for loop, op in _ops_by_loop(function.body, 0):
            if op.line and op.word in ACCESSES:
                self._sites.setdefault((op.word in WRITES, loop, op.line), op.number)
        loops = [op for op in every_op(function.body) if op.name in LOOPS]
        inside = {op.number: [each for r in op.regions for each in every_op(r)] for op in loops}
        self._lines = {n: {op.line for op in ops} - {None} for n, ops in inside.items()}
        self._inner = {n: {op.number for op in ops} for n, ops in inside.items()}

    def count_issued(self) -> Issued | None:
        """Return the instructions outside of loops, and those of each loop; None where loops of
        machine code cannot be told apart."""
        inside: set[int] = set()
        alike: dict[tuple[int, ...], list[list[WarpInstruction]]] = {}
        for _, loop in sorted(self._code.graph.all_loops(), key=lambda one: one[1].head):
            inside |= loop.blocks
            own = loop.blocks.difference(*(inner.blocks for inner in loop.inner))
            body = list(self._instructions(own))
            alike.setdefault(self._loops_of(body), []).append(body)
        loops: list[IssuedLoop] = []
        for numbers, bodies in alike.items():
            each, left = divmod(len(bodies), max(1, len(numbers)))
            if numbers and left:
                return None
            for i, number in enumerate(numbers):  # in the order of addresses
                codes = [self._loop_code(b, number) for b in bodies[i * each : (i + 1) * each]]
                codes.sort(key=lambda one: -len(one.sites))
                if any(len(x.sites) <= len(y.sites) for x, y in itertools.pairwise(codes)):
                    return None
                loops.append(IssuedLoop(number, codes[0], codes[-1] if len(codes) > 1 else None))
        straight = self._loop_code(list(self._instructions(self._straight_blocks(inside))), 0)
        return Issued(straight, tuple(sorted(loops, key=lambda one: one.number)))

    def _straight_blocks(self, inside: Collection[int]) -> list[int]:
        """Return the blocks outside of loops up to the kernel's end: slow paths lie behind it."""
        graph, result = self._code.graph, []
        for number in sorted(graph.reachable - set(inside)):
            result.append(number)
            if not graph.blocks[number].successors:
                break
        return result

    def _instructions(self, blocks: Collection[int]) -> Iterator[WarpInstruction]:
        """Yield the instructions of blocks but for those that call a slow path, as of a division:
        few warps execute them."""
        for number in sorted(blocks):
            block = self._code.graph.blocks[number]
            own = self._code.instructions[block.start : block.end]
            if not any(one.is_call for one in own):
                yield from own

    def _loops_of(self, body: Sequence[WarpInstruction]) -> tuple[int, ...]:
        """Return the numbers of the loops in TTGIR that have most lines of a body, without those
        around others of them. There are several where a function is inlined several times."""
        lines = Counter(one.line for one in body)
        score = {n: sum(lines[line] for line in own) for n, own in self._lines.items()}
        best = max(score.values(), default=0)
        tied = [n for n, count in score.items() if count == best and best]
        return tuple(n for n in tied if not any(m in self._inner[n] for m in tied))

    def _loop_code(self, body: Sequence[WarpInstruction], loop: int) -> IssuedCode:
        accesses = [one for one in body if one.kind in MEMORY_KINDS]
        return IssuedCode(
            "".join(one.kind for one in body),
            tuple(one.control for one in body),
            tuple(self._site(one, loop) for one in accesses),
            tuple(one.pending for one in body if one.kind == DRAIN),
            tuple(one.width for one in accesses),
        )

    def _site(self, one: WarpInstruction, loop: int) -> int:
        """Return the access of an instruction; one of straight code may be of a loop that the
        compiler has resolved."""
        if one.line is None:
            return 0
        writes, (file, last) = one.kind in STORE + ATOMIC, one.line
        for line in range(last, last - BELOW, -1):
            if own := self._sites.get((writes, loop, (file, line))):
                return own
        alike = (n for (w, _, at), n in self._sites.items() if (w, at) == (writes, one.line))
        return next(alike, 0)
