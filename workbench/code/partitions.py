"""Find the partitions of a warp-specialised kernel, and what they share.

Worker warps wait for a number and jump by it (BRX) to their part of the code. The blocks that are
only reached through one target of this jump are a partition. The warps that do not wait take the
other side of an earlier branch: the default partition.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations

from workbench.code.flow import Block, FlowGraph, dominated_blocks, dominators, reachable
from workbench.code.kinds import WORK, group_of
from workbench.code.listing import Instruction, Listing

# A role, and the instructions of which one shows it, in the order of what is said of a partition.
ROLES = (
    ("matrix", re.compile(r"UTC\w*MMA|\w*GMMA")),
    ("tensor loads", re.compile(r"UTMALDG|UBLKCP")),
    ("epilogue", re.compile(r"LDTM|UTMASTG|STG")),
)
DEFAULT = "default"
NVIDIA = "sm_100"  # any of its targets: only NVIDIA's code has a jump to partitions
_BARRIER = re.compile(r"\[(?:\w+\+)*(?:0x([0-9a-f]+))\]")


@dataclass(frozen=True)
class Partition:
    """Code of one group of warps."""

    name: str  # DEFAULT, or the number of the jump's target
    blocks: frozenset[int]  # numbers
    labels: int  # blocks that begin at a label, as `nvdisasm -cfg` counts them
    roles: tuple[str, ...]  # empty: it only waits or ends
    barriers: frozenset[int]  # offsets of the mbarriers in shared memory that it names


@dataclass(frozen=True)
class Specialisation:
    """The partitions of a kernel."""

    jump: int  # block with the jump to the partitions
    partitions: tuple[Partition, ...]
    overlaps: tuple[tuple[str, str, int], ...]  # two partitions, blocks that both reach
    shared_barriers: tuple[tuple[int, tuple[str, ...]], ...]  # offset, names of partitions


def specialisation(listing: Listing, graph: FlowGraph) -> Specialisation | None:
    """Return the partitions of a warp-specialised kernel, or None for a plain one.

    A kernel is specialised if a jump to several targets leads to at least two parts with a role of
    their own, or to one and the warps that do not jump have another.
    """
    immediate = dominators(graph)
    for block in graph.blocks:
        last = listing.instructions[block.end - 1]
        if block.number not in graph.reachable or not last.opcode.startswith("BRX"):
            continue
        partitions = list(_partitions(listing, graph, immediate, block))
        if sum(bool(each.roles) for each in partitions) >= 2:
            overlaps = _overlaps(listing, graph, immediate, block, partitions)
            return Specialisation(block.number, tuple(partitions), overlaps, _barriers(partitions))
    return None


def _partitions(
    listing: Listing, graph: FlowGraph, immediate: Mapping[int, int], jump: Block
) -> Iterable[Partition]:
    if (rest := _default(graph, immediate, jump)) is not None:
        yield _partition(DEFAULT, rest, listing, graph)
    for n, target in enumerate(jump.successors):
        yield _partition(str(n), dominated_blocks(immediate, target), listing, graph)


def _default(graph: FlowGraph, immediate: Mapping[int, int], jump: Block) -> set[int] | None:
    """Return the largest part beside the way to the jump: of warps that do not wait."""
    best: set[int] = set()
    at, below = immediate[jump.number], jump.number
    while at != -1:
        for start in graph.blocks[at].successors:
            part = dominated_blocks(immediate, start) if start in immediate else set()
            if immediate.get(start) == at and below not in part and len(part) > len(best):
                best = part
        at, below = immediate[at], at
    return best or None


def _partition(name: str, blocks: set[int], listing: Listing, graph: FlowGraph) -> Partition:
    ops = [op for n in sorted(blocks) for op in _instructions(graph.blocks[n], listing)]
    roles = tuple(role for role, known in ROLES if any(known.match(op.opcode) for op in ops))
    places = (_BARRIER.search(op.operands) for op in ops if op.opcode.startswith("SYNCS"))
    barriers = frozenset(int(place[1], 16) for place in places if place)
    labelled = sum(graph.blocks[n].start in listing.labels for n in blocks)
    return Partition(name, frozenset(blocks), labelled, roles, barriers)


def _instructions(block: Block, listing: Listing) -> list[Instruction]:
    return listing.instructions[block.start : block.end]


def _overlaps(
    listing: Listing,
    graph: FlowGraph,
    immediate: Mapping[int, int],
    jump: Block,
    partitions: Iterable[Partition],
) -> tuple[tuple[str, str, int], ...]:
    """Return the pairs of partitions that reach the same blocks with memory accesses or matrix
    instructions, beside the way to the jump that tells them apart; and the number of blocks. The
    blocks that a partition owns are of no other, so they would never overlap."""
    way, at = set[int](), jump.number
    while at != -1:
        way.add(at)
        at = immediate[at]
    after = {b.number: [n for n in b.successors if n not in way] for b in graph.blocks}
    reach: dict[str, set[int]] = {}
    for each in partitions:
        entry = jump.successors[int(each.name)] if each.name != DEFAULT else min(each.blocks)
        blocks = reachable(after, [entry]) if entry not in way else set()
        reach[each.name] = {n for n in blocks if _works(graph.blocks[n], listing)}
    counts = ((a, b, len(reach[a] & reach[b])) for a, b in combinations(reach, 2))
    return tuple(each for each in counts if each[2])


def _works(block: Block, listing: Listing) -> bool:
    return any(group_of(op, NVIDIA) in WORK for op in _instructions(block, listing))


def _barriers(partitions: Iterable[Partition]) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """Return the offsets of mbarriers that several partitions name."""
    users: dict[int, list[str]] = {}
    for partition in partitions:
        for offset in partition.barriers:
            users.setdefault(offset, []).append(partition.name)
    return tuple((k, tuple(users[k])) for k in sorted(users) if len(users[k]) > 1)
