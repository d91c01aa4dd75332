"""Divide a listing into basic blocks, and find dominators and loops of its control flow.

A loop is a cycle that can be reached from the entry; loops with one head are one loop. The branch
to itself that pads NVIDIA's code is not reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from workbench.code.listing import Listing


@dataclass(frozen=True)
class Block:
    """Instructions from `start` to before `end` that run one after the other.

    A block begins where a jump leads and ends at a jump. `nvdisasm -bbcfg` also begins one at each
    label to which no jump leads: the point of convergence that BSSY names, after its BSYNC, and a
    BRX that labels itself. Such a label changes no path, so it begins no block here.
    """

    number: int
    start: int
    end: int
    successors: tuple[int, ...]  # numbers of the blocks that can follow


@dataclass
class Loop:
    """A loop, with those directly inside it."""

    head: int  # number of the block with the lowest address
    blocks: frozenset[int]
    inner: list[Loop] = field(default_factory=list)

    def all(self, depth: int = 0) -> list[tuple[int, Loop]]:
        """Return this loop and all inside it, each with its depth, outer ones first."""
        return [(depth, self), *(x for loop in self.inner for x in loop.all(depth + 1))]


@dataclass(frozen=True)
class FlowGraph:
    """The basic blocks of a listing, which of them the entry reaches, and the loops."""

    blocks: tuple[Block, ...]
    reachable: frozenset[int]
    loops: tuple[Loop, ...]  # the outermost

    def all_loops(self) -> list[tuple[int, Loop]]:
        """Return all loops, each with its depth, outer ones before those inside."""
        return [x for loop in self.loops for x in loop.all()]


def flow_graph(listing: Listing) -> FlowGraph:
    """Return blocks and loops of a listing."""
    blocks = _blocks(listing)
    after = {b.number: b.successors for b in blocks}
    first = {b.start: b.number for b in blocks}
    reached = reachable(after, [first[root] for root in listing.roots])
    within = {n: [m for m in after[n] if m in reached] for n in reached}
    loops = [(min(loop), frozenset(loop)) for loop in all_loops(reached, within)]
    return FlowGraph(tuple(blocks), frozenset(reached), tuple(_nest_loops(loops)))


def _blocks(listing: Listing) -> list[Block]:
    count = len(listing.instructions)
    starts = {0, *listing.roots} if count else set()
    for i, leads in enumerate(listing.successors):
        if i in listing.ends or leads not in ([i + 1], []):
            starts.update([*leads, i + 1])
    borders = [*sorted(n for n in starts if n < count), count]
    number = {start: n for n, start in enumerate(borders[:-1])}
    pairs = pairwise(borders)
    return [
        Block(n, start, end, tuple(number[m] for m in listing.successors[end - 1]))
        for n, (start, end) in enumerate(pairs)
    ]


def _nest_loops(loops: Sequence[tuple[int, frozenset[int]]]) -> list[Loop]:
    """Return the outermost loops as trees, in the order of their addresses."""
    roots: list[Loop] = []
    placed: list[Loop] = []
    for head, blocks in sorted(loops, key=lambda one: (-len(one[1]), one[0])):
        loop = Loop(head, blocks)
        around = [each for each in placed if blocks < each.blocks]
        (min(around, key=lambda each: len(each.blocks)).inner if around else roots).append(loop)
        placed.append(loop)
    for loop in placed:
        loop.inner.sort(key=lambda each: each.head)
    return sorted(roots, key=lambda each: each.head)


def dominators(graph: FlowGraph) -> dict[int, int]:
    """Return the immediate dominator of each reached block; a root is its own (Cooper, Harvey and
    Kennedy 2001). Blocks that several roots reach are dominated by block -1."""
    after = {b.number: b.successors for b in graph.blocks if b.number in graph.reachable}
    before: dict[int, list[int]] = {n: [] for n in after}
    for n, leads in after.items():
        for m in leads:
            before[m].append(n)
    starts = [n for n in after if not before[n]] or [min(after, default=0)]
    order = {n: i for i, n in enumerate(reversed(_postorder(after, starts)))}
    order[-1] = -1
    result = {-1: -1, **dict.fromkeys(starts, -1)}
    changed = True
    while changed:
        changed = False
        for n in sorted((n for n in order if n not in starts and n != -1), key=order.__getitem__):
            known = [m for m in before[n] if m in result]
            best = known[0]
            for m in known[1:]:
                while m != best:
                    m, best = (result[m], best) if order[m] > order[best] else (m, result[best])
            changed |= result.get(n) != best
            result[n] = best
    return result


def _postorder(after: Mapping[int, Sequence[int]], starts: Iterable[int]) -> list[int]:
    seen, result = set[int](), list[int]()
    for start in starts:
        work = [(start, 0)] if start not in seen else []
        seen.add(start)
        while work:
            node, at = work.pop()
            if at == len(after[node]):
                result.append(node)
                continue
            work.append((node, at + 1))
            if (following := after[node][at]) not in seen:
                seen.add(following)
                work.append((following, 0))
    return result


def dominated_blocks(immediate: Mapping[int, int], block: int) -> set[int]:
    """Return the blocks that are only reached through `block`, with itself."""
    result = {block}
    for n in immediate:
        path = []
        at = n
        while at != -1 and at not in result:
            path.append(at)
            at = immediate[at]
        if at != -1:
            result.update(path)
    return result


def reachable(
    after: Mapping[int, Sequence[int]], roots: Iterable[int], without: int | None = None
) -> set[int]:
    """Return the nodes that the roots reach, on ways that leave out the node `without`."""
    seen = {n for n in roots if n != without}
    todo = list(seen)
    while todo:
        fresh = [n for n in after[todo.pop()] if n not in seen and n != without]
        seen.update(fresh)
        todo += fresh
    return seen


def loop_levels(listing: Listing) -> tuple[set[int], list[set[int]]]:
    """Return the instructions that the entry reaches, and those of every loop, outer and inner."""
    graph = flow_graph(listing)

    def instructions(numbers: Iterable[int]) -> set[int]:
        spans = (graph.blocks[n] for n in numbers)
        return {i for block in spans for i in range(block.start, block.end)}

    loops = [instructions(loop.blocks) for _, loop in graph.all_loops()]
    return instructions(graph.reachable), loops


def _cycles(nodes: Iterable[int], after: Mapping[int, Sequence[int]]) -> list[list[int]]:
    """Return the strongly connected components with a cycle (Tarjan 1972), not recursive."""
    order: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    held: set[int] = set()
    results = []
    for root in nodes:
        if root in order:
            continue
        work = [(root, 0)]
        while work:
            node, at = work.pop()
            if node not in order:
                order[node] = low[node] = len(order)
                stack.append(node)
                held.add(node)
            for k in range(at, len(after[node])):
                duplicate = after[node][k]
                if duplicate not in order:
                    work += [(node, k), (duplicate, 0)]  # `node` resumes here afterwards
                    break
                if duplicate in held:
                    low[node] = min(low[node], low[duplicate])
            else:
                if low[node] == order[node]:
                    cut = stack.index(node)
                    component = stack[cut:]
                    del stack[cut:]
                    held.difference_update(component)
                    if len(component) > 1 or node in after[node]:
                        results.append(component)
    return results


def all_loops(nodes: set[int], after: Mapping[int, Sequence[int]]) -> list[set[int]]:
    """Return every loop, the outer ones and those inside them."""
    results = []
    for component in _cycles(sorted(nodes), after):
        inside = set(component)
        results.append(inside)
        entered = {n for m in nodes - inside for n in after[m] if n in inside}
        heads = entered or {min(inside)}
        # cycles that remain without the edges back to the head are inner loops
        within = {n: [m for m in after[n] if m in inside and m not in heads] for n in inside}
        results += all_loops(inside, within)
    return results
