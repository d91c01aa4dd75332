"""Compute the integers, addresses and masks of programs of a launch from TTGIR.

A value is an array [programs, *shape] of int64, whose axes are 1 where it does not vary, or None
where it is unknown, as any float is. Nothing is read but tensors of integers whose content is
given.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

import numpy as np

from workbench.code.block_descriptors import BlockDescriptor, names_in
from workbench.code.program_slices import ACCESSES
from workbench.code.ttgir import (
    BLOCK,
    DESCRIPTOR,
    Function,
    NotModelled,
    Op,
    element_bytes,
    pointer_type,
    types_in,
)

BASE_BITS = 42  # an address is its tensor's number plus one, above the offset in bytes
Value = Any  # an array, or None


@dataclass(frozen=True)
class LaunchArguments:
    """The arguments of a launch by the name of the parameter."""

    scalars: Mapping[str, int | None]  # None for a float
    tensors: Mapping[str, int]  # bytes from the pointer to the end of the memory behind it
    contents: Mapping[str, Any] = field(default_factory=dict)  # known integers, flat from there
    # of tensor descriptors: extents and strides, these in elements
    descriptors: Mapping[str, tuple[Sequence[int], Sequence[int]]] = field(default_factory=dict)

    def names(self) -> list[str]:
        """Return the names of the tensors, whose place is the number in an address."""
        return list(self.tensors)


def _quotient(a: Any, b: Any) -> Any:
    """Return a / b rounded toward zero, as a GPU divides."""
    b = np.where(b == 0, 1, b)
    return np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))


def _remainder(a: Any, b: Any) -> Any:
    return a - b * _quotient(a, b)


BINARY: Mapping[str, Callable[[Any, Any], Any]] = {
    **{"addi": np.add, "subi": np.subtract, "muli": np.multiply, "divsi": _quotient},
    **{"divui": _quotient, "remsi": _remainder, "remui": _remainder, "minsi": np.minimum},
    **{"maxsi": np.maximum, "minui": np.minimum, "maxui": np.maximum, "andi": np.bitwise_and},
    **{"ori": np.bitwise_or, "xori": np.bitwise_xor, "shli": np.left_shift},
    **{"shrsi": np.right_shift, "shrui": np.right_shift, "floordivsi": np.floor_divide},
    "ceildivsi": lambda a, b: -(-a // b),
    "ceildivui": lambda a, b: -(-a // b),
}
COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    **{"eq": np.equal, "ne": np.not_equal, "slt": np.less, "sle": np.less_equal},
    **{"sgt": np.greater, "sge": np.greater_equal, "ult": np.less, "ule": np.less_equal},
    **{"ugt": np.greater, "uge": np.greater_equal},
}
# Operations whose result is their first operand, as far as integers go.
SAME = (
    *("broadcast", "extsi", "extui", "trunci", "index_cast", "bitcast", "ptr_to_int"),
    *("int_to_ptr", "convert_layout"),
)


def broadcast_weights(weights: Any, *others: Any) -> Any:
    """Return one number a program with as many axes as the values have."""
    rank = max(o.ndim for o in others)
    return weights.reshape(-1, *[1] * (rank - 1))


class ProgramValues:
    """The values of some programs of a launch. Subclasses say what an access and a loop are."""

    firsts = False  # a tensor is its first element only

    def __init__(
        self, function: Function, pids: Sequence[Any], grid: Sequence[int], given: LaunchArguments
    ) -> None:
        """Begin before the first operation; `pids` are the programs' places along three axes."""
        if function.blocks > 1:
            raise NotModelled("its programs are clusters of blocks (num_ctas > 1)")
        self.function, self.grid, self.given = function, (*grid, 1, 1)[:3], given
        self.pids, self.programs = pids, len(pids[0])
        self.env: dict[str, Value] = {}
        self.weight = np.ones(self.programs)  # executions of the present operation by each program
        self._names = given.names()
        self._roots: dict[str, str] = {}  # buffer -> its allocation
        self._held: dict[str, Value] = {}  # allocation -> known integers in it
        self._descriptors: dict[str, BlockDescriptor] = {}
        follow: Iterator[int] = iter(())  # the parameters that a descriptor is passed as, in order
        for name, kind in zip(function.parameters, function.kinds, strict=True):
            argument = name.removeprefix("%")
            if argument in given.tensors or argument in given.scalars:
                self.env[name] = self._argument(argument)
            elif kind == "i1":  # whether a descriptor pads with NaN, or rounds to tf32
                self.env[name] = None
            elif (number := next(follow, None)) is not None:
                self.env[name] = np.array([number], dtype=np.int64)
            else:
                raise NotModelled(f"its parameter {argument} is not an argument of the launch")
            if argument in given.descriptors:
                follow = self._describe(name, kind)

    def _argument(self, name: str) -> Value:
        if name in self.given.tensors:
            return np.array([(self._names.index(name) + 1) << BASE_BITS], dtype=np.int64)
        number = self.given.scalars[name]
        return None if number is None else np.array([int(number)], dtype=np.int64)

    def _describe(self, name: str, kind: str) -> Iterator[int]:
        """Note a descriptor among the parameters; yield the numbers of those after it, which the
        compiler has once for a descriptor and twice where it replaces one by pointers."""
        shape, strides = self.given.descriptors[name.removeprefix("%")]
        if (block := DESCRIPTOR.search(kind)) is not None:
            item = int(element_bytes(block.group(2)))
            self._descriptors[name] = BlockDescriptor(
                self.env[name],
                [np.array([n]) for n in shape],
                [np.array([n * item]) for n in strides],
            )
        return cycle((*shape, *strides))

    def block_of(self, op: Op, at: Sequence[str]) -> tuple[Any, Any]:
        """Return the addresses of a descriptor's block at the coordinates of these names, and which
        of them are inside of its tensor. Raises NotModelled where they are unknown."""
        descriptor = self._descriptors.get(op.operands[0])
        if descriptor is None:
            raise NotModelled("a descriptor comes from a loop or a branch")
        extents = pointer_type(op).shape
        extents = (1,) * len(extents) if self.firsts else extents
        return descriptor.block([self.env.get(name) for name in at], extents)

    def tensor_of(self, pointers: Value) -> str | None:
        """Return the name of the tensor that pointers point into."""
        if pointers is None or not pointers.size:
            return None
        number = int(pointers.reshape(-1)[0] >> BASE_BITS) - 1
        return self._names[number] if 0 <= number < len(self._names) else None

    def offsets(self, pointers: Any) -> Any:
        """Return the bytes between the start of their tensor and each pointer."""
        return pointers - ((int(pointers.reshape(-1)[0] >> BASE_BITS)) << BASE_BITS)

    # Hooks

    def access(self, op: Op, pointers: Value, mask: Value, what: str) -> None:
        """Note an access to memory of kind `what`: load, copy, store or atomic."""

    def count(self, op: Op) -> None:
        """Note an operation that is not an access."""

    def loop(self, op: Op, head: LoopHead) -> None:
        """Walk a loop whose trips are computable."""
        raise NotImplementedError

    def loop_until(self, op: Op) -> None:
        """Walk a loop whose end is computed in it."""
        raise NotImplementedError

    def leave(self, op: Op) -> None:
        """Note that a loop or a branch has ended."""

    # Structure

    def block(self, ops: Sequence[Op]) -> list[Value]:
        """Walk operations in order; return the operands of the last one, which yields."""
        waiting: dict[str, Any] = {}  # label -> weight of the programs that go there
        for op in ops:
            if op.name == BLOCK:
                label = re.split("[:(]", op.text)[0].strip()
                if label in waiting:
                    self.weight = waiting.pop(label)
                    self.leave(op)
            elif op.name in ENDS:
                if op.name != "tt.return" or not waiting:
                    return [self.env.get(n) for n in op.operands]
            elif op.name in ("cf.cond_br", "cf.br"):
                self._branch(op, waiting)
            else:
                self.step(op)
        return []

    def _branch(self, op: Op, waiting: dict[str, Any]) -> None:
        labels = re.findall(r"\^\w+", op.text)
        if op.name == "cf.br":
            waiting[labels[0]] = self.weight + waiting.get(labels[0], 0)
            return
        value = self.env.get(op.operands[0])
        if value is None:
            raise NotModelled("a branch depends on data that is not given")
        value = np.broadcast_to(value, (self.programs,))
        for label, goes in zip(labels, (value != 0, value == 0), strict=True):
            waiting[label] = self.weight * goes + waiting.get(label, 0)

    def step(self, op: Op) -> None:
        """Walk one operation. Raises NotModelled for one that no list here has."""
        if op.name in ("scf.for", "scf.while", "scf.if"):
            {"scf.for": self._repeat, "scf.while": self.loop_until, "scf.if": self._if}[op.name](op)
            self.leave(op)
            return
        rule = VALUES.get(op.word)
        if rule is None and op.word not in UNKNOWN and not op.name.startswith(FLOATS):
            raise NotModelled(f"no model of {op.name}")
        value = rule(self, op) if rule else None
        for i, name in enumerate(op.results):
            self.env[name] = value if i == 0 else None
        if op.word not in ACCESSES:
            self.count(op)

    def _repeat(self, op: Op) -> None:
        head = LoopHead.parse(op)
        bounds = [self.env.get(name) for name in (head.low, head.high, head.step)]
        if any(bound is None for bound in bounds):
            raise NotModelled("the trips of a loop depend on data that is not given")
        low, high, by = (np.asarray(bound) for bound in bounds)
        head.start, head.stride = low, by
        trips = np.maximum(0, -((low - high) // np.maximum(by, 1)))
        head.trips = np.broadcast_to(trips, (self.programs,)).astype(np.int64)
        self.loop(op, head)

    def _if(self, op: Op) -> None:
        condition, outer = self.env.get(op.operands[0]), self.weight
        if condition is None:
            condition = self.either(op)
        share = np.broadcast_to(condition, (self.programs,)) * 1.0
        results: list[list[Value]] = [[], []]
        for i, region in enumerate(op.regions):
            self.weight = outer * (1 - share if i else share)
            results[i] = self.block(region)
        self.weight = outer
        for i, name in enumerate(op.results):
            a, b = (r[i] if i < len(r) else None for r in results)
            unknown = a is None or b is None
            self.env[name] = None if unknown else np.where(broadcast_weights(share, a, b) > 0, a, b)

    def either(self, op: Op) -> Any:
        """Return the share of programs that take a branch of which nothing says whether. Raises
        NotModelled where that matters."""
        raise NotModelled("a branch depends on data that is not given")

    # Values

    def pair(self, op: Op) -> tuple[Value, Value]:
        """Return the values of the first two operands."""
        a, b = op.operands[:2]
        return self.env.get(a), self.env.get(b)

    def content(self, op: Op, pointers: Value) -> Value:
        """Return what a load of known integers gives."""
        known = self.given.contents.get(self.tensor_of(pointers) or "")
        if known is None or (int(pointers.max()) ^ int(pointers.min())) >> BASE_BITS:
            return None  # nothing is known, or several tensors are read
        at = self.offsets(pointers) // int(pointer_type(op).item_bytes)
        return known[np.clip(at, 0, len(known) - 1)]


@dataclass
class LoopHead:
    """The head of a counting loop: names of its values, and its trips by program."""

    index: str
    low: str
    high: str
    step: str
    pairs: list[tuple[str, str]]  # carried value in the loop, and what it begins as
    start: Any = None
    stride: Any = None
    trips: Any = None

    @staticmethod
    def parse(op: Op) -> LoopHead:
        """Return the head of a `scf.for`. Raises NotModelled where it has another form."""
        match = re.match(
            r"(?:unsigned )?(%[\w.$-]+) = (%[\w.#$-]+) to (%[\w.#$-]+) step (%[\w.#$-]+)"
            r"(?: iter_args\((.*?)\) ->)?",
            op.text,
        )
        if match is None:
            raise NotModelled("a loop whose head has another form")
        index, low, high, by, carried = match.groups()
        pairs = re.findall(r"(%[\w.$-]+) = (%[\w.#$-]+)", carried or "")
        return LoopHead(index, low, high, by, pairs)


def _constant(walk: ProgramValues, op: Op) -> Value:
    match = re.match(r"(?:dense<)?(-?\d+|true|false)>?(?: : (.*))?$", op.text)
    kind = (match.group(2) or "i1") if match else ""  # `true` has no type
    if not match or re.search(r"\bb?f\d+[,>]?", kind.split(",")[0]):
        return None
    word, kinds = match.group(1), types_in(op.text)
    value = int(word == "true") if word[0] in "tf" else int(word)
    rank = len(kinds[0].shape) if kinds else 0
    return np.full((1,) * (1 + rank), value, dtype=np.int64)


def _program_id(walk: ProgramValues, op: Op) -> Value:
    return walk.pids["xyz".index(op.text[0])]


def _program_count(walk: ProgramValues, op: Op) -> Value:
    return np.array([walk.grid["xyz".index(op.text[0])]], dtype=np.int64)


def _range(walk: ProgramValues, op: Op) -> Value:
    ends = re.search(r"end = (\d+)", op.text), re.search(r"start = (\d+)", op.text)
    end, start = (int(match.group(1)) if match else 0 for match in ends)
    return np.arange(start, start + 1 if walk.firsts else end, dtype=np.int64)[None]


def _splat(walk: ProgramValues, op: Op) -> Value:
    value = walk.env.get(op.operands[0])
    rank = len(types_in(op.text)[-1].shape)
    return None if value is None else value.reshape(-1, *[1] * rank)


def _unsplat(walk: ProgramValues, op: Op) -> Value:
    value = walk.env.get(op.operands[0])
    return None if value is None else value.reshape(len(value), -1)[:, 0]


def _same(walk: ProgramValues, op: Op) -> Value:
    return walk.env.get(op.operands[0]) if op.operands else None


def _expand(walk: ProgramValues, op: Op) -> Value:
    value, match = walk.env.get(op.operands[0]), re.search(r"axis = (\d+)", op.text)
    assert match is not None  # every one has an axis
    return None if value is None else np.expand_dims(value, int(match.group(1)) + 1)


def _reshape(walk: ProgramValues, op: Op) -> Value:
    value, (a, b) = walk.env.get(op.operands[0]), types_in(op.text)[-2:]
    if value is None:
        return None
    if walk.firsts or value[0].size == 1:
        return value.reshape(len(value), *[1] * len(b.shape))
    return np.broadcast_to(value, (len(value), *a.shape)).reshape(len(value), *b.shape)


def _transpose(walk: ProgramValues, op: Op) -> Value:
    value, match = walk.env.get(op.operands[0]), re.search(r"array<i32: ([\d, ]+)>", op.text)
    if value is None or match is None:
        return None
    return np.transpose(value, (0, *[int(n) + 1 for n in match.group(1).split(",")]))


def _move(walk: ProgramValues, op: Op) -> Value:
    a, b = walk.pair(op)
    match = re.search(r"!tt\.ptr<[a-z]+(\d+)", op.text)
    item = max(1, int(match.group(1)) // 8) if match else 8
    return None if a is None or b is None else a + b * item


def _compare(walk: ProgramValues, op: Op) -> Value:
    a, b = walk.pair(op)
    if a is None or b is None:
        return None
    return COMPARE[op.text.split()[0].rstrip(",")](a, b).astype(np.int64)


def _select(walk: ProgramValues, op: Op) -> Value:
    c, a, b = (walk.env.get(n) for n in op.operands[:3])
    return None if c is None or a is None or b is None else np.where(c != 0, a, b)


def _combine(walk: ProgramValues, op: Op) -> Value:
    a, b = walk.pair(op)
    if op.word == "andi" and (_is_zero(a) or _is_zero(b)):
        return np.zeros((1,) * max(v.ndim for v in (a, b) if v is not None), dtype=np.int64)
    return None if a is None or b is None else BINARY[op.word](a, b)


def _is_zero(value: Value) -> bool:
    return value is not None and value.size == 1 and not value.any()


def _load(walk: ProgramValues, op: Op) -> Value:
    pointers = walk.env.get(op.operands[0])
    mask = walk.env.get(op.operands[1]) if len(op.operands) > 1 else None
    if len(op.operands) > 1 and mask is None:
        raise NotModelled("which elements are read depends on data that is not given")
    walk.access(op, pointers, mask, "load")
    return walk.content(op, pointers)


def _copy(walk: ProgramValues, op: Op) -> Value:
    named = re.search(r" mask (%[\w.#$-]+)", op.text)
    pointers = walk.env.get(op.operands[0])
    walk.access(op, pointers, walk.env.get(named.group(1)) if named else None, "copy")
    walk._held[walk._roots.get(op.operands[1], "")] = walk.content(op, pointers)
    return None


def _store(walk: ProgramValues, op: Op) -> Value:
    names = op.operands
    mask = walk.env.get(names[2]) if len(names) > 2 else None
    if len(names) > 2 and mask is None:
        raise NotModelled("which elements are written depends on data that is not given")
    walk.access(op, walk.env.get(names[0]), mask, "store")
    return None


def _added_to(walk: ProgramValues, op: Op) -> Value:
    names = op.operands
    mask = walk.env.get(names[2]) if len(names) > 2 else None
    walk.access(op, walk.env.get(names[0]), mask, "atomic")
    return None


def _created_descriptor(walk: ProgramValues, op: Op) -> Value:
    """Note the descriptor that is written to memory; its lists have the innermost axis first, and
    no stride of that one."""
    place, base = op.operands[:2]
    _, extents, strides, _ = names_in(op.text)
    _, element = re.findall(r"!tt\.ptr<(\w+)", op.text)[:2]  # of the place, and of the tensor
    item = np.array([int(element_bytes(element))])
    walk._descriptors[place] = BlockDescriptor(
        walk.env.get(base),
        [walk.env.get(n) for n in reversed(extents)],
        [*(walk.env.get(n) for n in reversed(strides)), item],
    )
    return None


def _same_descriptor(walk: ProgramValues, op: Op) -> Value:
    walk._descriptors[op.results[0]] = walk._descriptors[op.operands[0]]
    return None


def _copied_block(walk: ProgramValues, op: Op) -> Value:
    at = names_in(op.text)[0]
    target, barrier, predicate = op.operands[1 + len(at) :][:3]
    pointers, inside = walk.block_of(op, at)
    taken = walk.env.get(predicate)
    if taken is None:
        raise NotModelled("which elements are read depends on data that is not given")
    mask = inside & (broadcast_weights(np.asarray(taken), pointers) != 0)
    # a barrier of its own is waited for at once; one of several is of a loop that runs in stages
    walk.access(op, pointers, mask, "load" if walk._roots.get(barrier) == barrier else "copy")
    known = walk.content(op, pointers)
    walk._held[walk._roots.get(target, "")] = None if known is None else known * inside
    return None


def _stored_block(walk: ProgramValues, op: Op) -> Value:
    pointers, inside = walk.block_of(op, names_in(op.text)[0])
    walk.access(op, pointers, inside, "atomic" if op.word == "async_tma_reduce" else "store")
    return None


def _allocate(walk: ProgramValues, op: Op) -> Value:
    walk._roots[op.results[0]] = op.results[0]
    walk._held[op.results[0]] = walk.env.get(op.operands[0]) if op.operands else None
    return None


def _index(walk: ProgramValues, op: Op) -> Value:
    walk._roots[op.results[0]] = walk._roots.get(op.operands[0], "")
    return None


def _local(walk: ProgramValues, op: Op) -> Value:
    return walk._held.get(walk._roots.get(op.operands[0], ""))


def _assemble(walk: ProgramValues, op: Op) -> Value:
    if "pure = true" not in op.text:
        raise NotModelled("no model of inline assembly that is not pure")
    return None


Rule = Callable[[ProgramValues, Op], Value]
VALUES: Mapping[str, Rule] = {
    **dict.fromkeys(BINARY, _combine),
    **dict.fromkeys(SAME, _same),
    **{"constant": _constant, "get_program_id": _program_id, "get_num_programs": _program_count},
    **{"make_range": _range, "splat": _splat, "unsplat": _unsplat, "expand_dims": _expand},
    **{"reshape": _reshape, "trans": _transpose, "addptr": _move, "cmpi": _compare},
    **{"select": _select, "load": _load, "store": _store, "atomic_rmw": _added_to},
    "elementwise_inline_asm": _assemble,
    **{"async_copy_global_to_local": _copy, "local_alloc": _allocate, "local_load": _local},
    **dict.fromkeys(("memdesc_index", "memdesc_subslice", "memdesc_subview"), _index),
    **dict.fromkeys(("memdesc_trans", "memdesc_reshape"), _index),
    **{"tensormap_create": _created_descriptor, "reinterpret_tensor_descriptor": _same_descriptor},
    "async_tma_copy_global_to_local": _copied_block,
    **dict.fromkeys(("async_tma_copy_local_to_global", "async_tma_reduce"), _stored_block),
}
ENDS = ("scf.yield", "scf.condition", "tt.reduce.return", "tt.scan.return", "tt.return")
FLOATS = ("math.", "ub.", "rocdl.")  # dialects; of the last only hints to the scheduler
# Operations that are modelled, and whose result is a float or is not followed.
UNKNOWN = frozenset(
    (
        *("addf", "subf", "mulf", "divf", "remf", "negf", "maxnumf", "minnumf", "maximumf"),
        *("minimumf", "cmpf", "extf", "truncf", "sitofp", "uitofp", "fptosi", "fptoui"),
        *("fp_to_fp", "clampf", "precise_sqrt", "precise_divf", "approx_divf", "mulhiui"),
        *("extern_elementwise", "in_thread_transpose", "cond_barrier"),
        *("mulsi_extended", "mului_extended", "reduce", "scan", "dot", "warp_group_dot"),
        *("warp_group_dot_wait", "local_store", "local_dealloc", "async_wait"),
        *("async_commit_group", "fence_async_shared", "barrier", "join", "split", "cat", "gather"),
        *("histogram", "assert", "print", "global_scratch_alloc", "tensormap_fenceproxy_acquire"),
        *("init_barrier", "inval_barrier", "barrier_expect", "wait_barrier"),
        *("async_tma_store_wait", "grid_dependency_wait", "grid_dependency_launch_dependents"),
    )
)
