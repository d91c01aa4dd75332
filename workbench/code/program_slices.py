"""Find the values of a kernel on which its addresses, masks, trips and branches depend."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from workbench.code.block_descriptors import names_in
from workbench.code.ttgir import BLOCK, Function, Op

LOADS = ("load", "async_copy_global_to_local", "async_tma_copy_global_to_local")
WRITES = ("store", "atomic_rmw", "async_tma_copy_local_to_global", "async_tma_reduce")
ACCESSES = (*LOADS, *WRITES)
LOOPS = ("scf.for", "scf.while")
LAST = ("scf.yield", "scf.condition")
Chosen = Callable[[Op], bool]


def every_op(ops: Iterable[Op]) -> Iterable[Op]:
    """Yield operations and those inside them, in the order of the text."""
    for op in ops:
        yield op
        for region in op.regions:
            yield from every_op(region)


def needed_values(function: Function, chosen: Chosen = lambda op: True) -> frozenset[str]:
    """Return the names of values that decide where the `chosen` accesses of a kernel are, whether
    and how often they are done."""
    links: dict[str, set[str]] = defaultdict(set)
    roots: set[str] = set()
    _read(function.body, links, roots, chosen)
    match: set[str] = set()
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        if name not in match:
            match.add(name)
            waiting.extend(links[name])
    return frozenset(match)


def _read(ops: Sequence[Op], links: dict[str, set[str]], roots: set[str], chosen: Chosen) -> bool:
    """Note what each value is computed from, and return whether an access is among these."""
    has_access = False
    for op in ops:
        if op.word in ACCESSES and chosen(op):
            roots.update(accessed_operands(op))
            has_access = True
        inner = [_read(region, links, roots, chosen) for region in op.regions]
        has_access |= any(inner)
        if any(inner) and op.name == "scf.if":
            roots.update(op.operands[:1])
        if op.name in LOOPS:
            _read_loop(op, links, roots if any(inner) else set())
        elif op.name == "scf.if":
            _read_if(op, links)
        elif op.name == "cf.cond_br":
            roots.update(op.operands[:1])
        for name in op.results:
            links[name].update(op.operands)
        if (buffer := filled_buffer(op)) is not None:
            links[buffer].update(n for n in op.operands if n != buffer)
        elif op.word == "tensormap_create":
            links[op.operands[0]].update(op.operands[1:])
    return has_access


def filled_buffer(op: Op) -> str | None:
    """Return the name of the buffer in shared memory that an operation fills."""
    if op.word in ("async_copy_global_to_local", "local_store"):
        return op.operands[1]
    if op.word == "async_tma_copy_global_to_local":
        return op.operands[1 + len(names_in(op.text)[0])]
    return op.results[0] if op.word == "local_alloc" else None


def accessed_operands(op: Op) -> list[str]:
    """Return the operands of an access that are its pointers and its mask."""
    names = op.operands
    if op.word.startswith("async_tma"):
        at = 1 + len(names_in(op.text)[0])
        return [*names[:at], *names[at + 2 : at + 3]]
    if op.word == "load":
        return names[:2]
    if op.word == "async_copy_global_to_local":
        mask = re.search(r" mask (%[\w.#$-]+)", op.text)
        return [names[0], *([mask.group(1)] if mask else [])]
    return [names[0], *names[2:3]]


def _read_loop(op: Op, links: dict[str, set[str]], roots: set[str]) -> None:
    """Link what a loop carries with what it begins as and with what each trip yields."""
    heads = re.findall(r"(%[\w.$-]+) = (%[\w.#$-]+)", op.text.split(" -> ")[0].split(" : ")[0])
    last = op.regions[-1][-1]
    yielded = last.operands if last.name in LAST else []
    if op.name == "scf.for":
        (index, low), *heads = heads
        bounds = re.match(r".*? to (%[\w.#$-]+) step (%[\w.#$-]+)", op.text)
        ends = [low, *(bounds.groups() if bounds else ())]
        links[index].update(ends)
        for name in op.results:
            links[name].update(ends)
        for result, passed in zip(op.results, yielded, strict=False):
            links[result].add(passed)
    else:
        condition, *passed_on = op.regions[0][-1].operands
        ends = [condition]
        first = op.regions[1][:1]
        labels = first[0].results if first and first[0].name == BLOCK else []
        for names in (labels, op.results):
            for name, passed in zip(names, passed_on, strict=False):
                links[name].update((passed, condition))
    roots.update(ends)
    for (name, begin), passed in zip(heads, yielded, strict=False):
        links[name].update((begin, passed))
    for result, (_, begin) in zip(op.results, heads, strict=False):
        links[result].add(begin)


def _read_if(op: Op, links: dict[str, set[str]]) -> None:
    for region in op.regions:
        if region and region[-1].name == "scf.yield":
            for result, value in zip(op.results, region[-1].operands, strict=False):
                links[result].update((value, *op.operands[:1]))
