"""Compare the machine code of two kernels: blocks matched by their opcodes, not line by line."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from workbench.code.code_reading import MachineCode
from workbench.code.flow import Loop
from workbench.code.mix import Mix, mix_of

LIKE = 0.5  # least share of equal opcodes of two blocks that are taken for one


@dataclass(frozen=True)
class Change:
    """One figure of both kernels; None where it is not known."""

    name: str
    before: int | None
    after: int | None


@dataclass(frozen=True)
class BlockPair:
    """Two blocks that were matched, or one that has no counterpart."""

    before: int | None
    after: int | None
    equal: float  # share of equal opcodes, 0 to 1
    changes: tuple[Change, ...] = ()  # groups of the mix that differ


@dataclass(frozen=True)
class CodeComparison:
    """What differs between two kernels."""

    same_binary: bool
    same_code: bool  # the same opcodes in the same blocks
    resources: tuple[Change, ...]  # all of them
    mix: tuple[Change, ...]  # groups that differ
    loops: tuple[
        tuple[int | None, int | None, tuple[Change, ...]], ...
    ]  # heads, groups that differ
    blocks: tuple[BlockPair, ...]  # those that are not equal
    equal_blocks: int


def compare_code(before: MachineCode, after: MachineCode) -> CodeComparison:
    """Return the differences of two kernels."""
    pairs = _align(_opcodes(before), _opcodes(after))
    changed = [_add_changes(pair, before, after) for pair in pairs if pair.equal < 1]
    return CodeComparison(
        same_binary=before.binary == after.binary,
        same_code=not changed,
        resources=_resources(before, after),
        mix=_changes(before.whole, after.whole),
        loops=tuple(_loops(before, after, pairs)),
        blocks=tuple(changed),
        equal_blocks=len(pairs) - len(changed),
    )


def _opcodes(code: MachineCode) -> list[tuple[str, ...]]:
    """Return the opcodes of each block; padding behind the kernel is left out."""
    ops = code.listing.instructions
    return [
        tuple(op.opcode for op in ops[block.start : block.end])
        for block in code.graph.blocks
        if block.number in code.graph.reachable
    ]


def _numbers(code: MachineCode) -> list[int]:
    return [b.number for b in code.graph.blocks if b.number in code.graph.reachable]


def _align(left: Sequence[tuple[str, ...]], right: Sequence[tuple[str, ...]]) -> list[BlockPair]:
    """Return every block once, in order, by its place among the reached ones."""
    result: list[BlockPair] = []
    for tag, a, b, c, d in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        if tag == "equal":
            result += [BlockPair(i, c + i - a, 1.0) for i in range(a, b)]
        else:
            result += _alike(left, right, range(a, b), range(c, d))
    return result


def _alike(
    left: Sequence[tuple[str, ...]], right: Sequence[tuple[str, ...]], some: range, others: range
) -> list[BlockPair]:
    """Return pairs of blocks between two matched places; the ones most alike come first."""
    scores = sorted(
        ((_share(left[i], right[k]), -abs((i - some.start) - (k - others.start)), i, k)
         for i in some for k in others), reverse=True,
    )  # fmt: skip
    taken: dict[int, BlockPair] = {}
    used: set[int] = set()
    for share, _, i, k in scores:
        if share >= LIKE and i not in taken and k not in used:
            taken[i] = BlockPair(i, k, min(share, 0.999) if left[i] != right[k] else 1.0)
            used.add(k)
    gone = [taken.get(i, BlockPair(i, None, 0.0)) for i in some]
    return [*gone, *(BlockPair(None, k, 0.0) for k in others if k not in used)]


def _share(left: tuple[str, ...], right: tuple[str, ...]) -> float:
    """Return the share of opcodes in common, in any order and without modifiers: a compiler that
    schedules anew moves all instructions of a block."""
    first, second = (Counter(name.split(".")[0] for name in names) for names in (left, right))
    return 2 * (first & second).total() / max(len(left) + len(right), 1)


def _add_changes(pair: BlockPair, before: MachineCode, after: MachineCode) -> BlockPair:
    numbers = _numbers(before), _numbers(after)
    left = None if pair.before is None else numbers[0][pair.before]
    right = None if pair.after is None else numbers[1][pair.after]
    changes = _changes(_block_mix(before, left), _block_mix(after, right))
    return BlockPair(left, right, pair.equal, changes)


def _block_mix(code: MachineCode, number: int | None) -> Mix:
    if number is None:
        return mix_of((), code.arch)
    block = code.graph.blocks[number]
    return mix_of(code.listing.instructions[block.start : block.end], code.arch)


def _changes(before: Mix, after: Mix) -> tuple[Change, ...]:
    groups = dict.fromkeys((*before.groups, *after.groups))
    rows = [Change("instructions", before.instructions, after.instructions)]
    rows += [Change(g, before.groups.get(g, 0), after.groups.get(g, 0)) for g in groups]
    return tuple(row for row in rows if row.before != row.after)


def _resources(before: MachineCode, after: MachineCode) -> tuple[Change, ...]:
    def peak(code: MachineCode) -> int | None:
        return code.peak_live[0] if code.peak_live else None

    names = ("registers", "stack_bytes", "spill_store_bytes", "spill_load_bytes")
    titles = ("registers", "stack, B", "spill stores, B", "spill loads, B")
    pairs = zip(names, titles, strict=True)
    rows = [Change(title, getattr(before, n), getattr(after, n)) for n, title in pairs]
    rows.append(Change("most live registers", peak(before), peak(after)))
    rows.append(Change("instructions", before.whole.instructions, after.whole.instructions))
    rows.append(Change("blocks", len(before.graph.reachable), len(after.graph.reachable)))
    rows.append(Change("loops", len(before.graph.all_loops()), len(after.graph.all_loops())))
    return tuple(rows)


def _loops(
    before: MachineCode, after: MachineCode, pairs: Sequence[BlockPair]
) -> list[tuple[int | None, int | None, tuple[Change, ...]]]:
    """Return loops that differ, matched by the most matched blocks in common, else in order."""
    numbers = _numbers(before), _numbers(after)
    match = {
        numbers[0][p.before]: numbers[1][p.after]
        for p in pairs
        if p.before is not None and p.after is not None
    }
    left, right = (dict(enumerate(loop for _, loop, _ in c.loops())) for c in (before, after))
    scores = sorted(
        ((len({match.get(n) for n in a.blocks} & b.blocks), -abs(i - k), i, k)
         for i, a in left.items() for k, b in right.items()), reverse=True,
    )  # fmt: skip
    partner: dict[int, int] = {}
    for score, _, i, k in scores:
        if score and i not in partner and k not in partner.values():
            partner[i] = k

    def mix(code: MachineCode, loop: Loop | None) -> Mix:
        return mix_of(code.instructions(loop) if loop else (), code.arch)

    rows: list[tuple[Loop | None, Loop | None]] = [
        (loop, right[partner[i]] if i in partner else None) for i, loop in left.items()
    ]
    rows += [(None, loop) for k, loop in right.items() if k not in partner.values()]
    result = []
    for a, b in rows:
        changes = _changes(mix(before, a), mix(after, b))
        if changes:
            result.append((a.head if a else None, b.head if b else None, changes))
    return result
