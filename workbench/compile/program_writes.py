"""Find which elements all programs of a launch write, from their addresses; nothing runs.

Only the operations on which an address of a store depends are walked, for all programs, in chunks.
The result says how much of each tensor is written, which programs write the elements that are asked
about, and whether two programs write one element.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from workbench.code.code_work import places_of
from workbench.code.program_slices import WRITES, every_op, filled_buffer, needed_values
from workbench.code.program_values import (
    BASE_BITS,
    LaunchArguments,
    LoopHead,
    ProgramValues,
    Value,
    broadcast_weights,
)
from workbench.code.ttgir import Function, NotModelled, Op, pointer_type, read_ttgir

CHUNK = 1 << 21  # elements of one store whose addresses are computed at a time
MOST = 1 << 28  # elements that all programs may write
MOST_TRIPS = 4096  # of a loop around a store
NOBODY = -1


@dataclass(frozen=True)
class WrittenTensor:
    """What all programs write of one tensor."""

    argument: str
    elements: int  # distinct ones
    excess: int = 0  # elements past the end of its memory
    atomic: bool = False  # some of it by atomic operations
    # an element that two programs store to, and these programs; they may write the same value
    shared_element: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class Footprint:
    """What all programs of a launch write, and who writes the elements that were asked about."""

    programs: int
    tensors: tuple[WrittenTensor, ...]
    writers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # NOBODY: no program


def footprint_of(
    ttgir: str, grid: Sequence[int], inputs: LaunchArguments, requested: Callable[[str, int], Any]
) -> Footprint:
    """Return what all programs of a launch write. `requested(argument, elements)` returns the
    indices of a tensor of so many elements whose writers are wanted. Raises NotModelled where an
    address cannot be computed, or where there are too many."""
    function = read_ttgir(ttgir)
    programs = math.prod(grid)
    seen = _Seen(inputs, programs)
    needed = needed_values(function, lambda op: op.word in WRITES)
    stores = [op for op in every_op(function.body) if op.word in WRITES]
    step = max(1, CHUNK // max((pointer_type(op).count for op in stores), default=1))
    for begin in range(0, programs, step):
        numbers = np.arange(begin, min(programs, begin + step))
        _WriteWalk(function, numbers, grid, inputs, needed, seen)
    writers = {
        name: tuple(int(w) for w in tensor.writer[requested(name, len(tensor.writer))])
        for name, tensor in seen.tensors.items()
    }
    written = tuple(tensor.result() for tensor in seen.tensors.values())
    return Footprint(programs, written, writers)


class _Writers:
    """The last program that wrote each element of one tensor."""

    def __init__(self, argument: str, count: int) -> None:
        self.argument = argument
        self.writer = np.full(count, NOBODY, dtype=np.int32)
        self.beyond = 0
        self.is_atomic = False
        self.shared: tuple[int, int, int] | None = None

    def note(self, at: Any, programs: Any, atomic: bool) -> None:
        inside = (at >= 0) & (at < len(self.writer))
        if not inside.all():
            self.beyond += int((~inside).sum())
            at, programs = at[inside], programs[inside]
        before = self.writer[at]
        self.writer[at] = programs
        self.is_atomic |= atomic
        if self.shared is None and not atomic:
            self._look_for_two(at, programs, before)

    def _look_for_two(self, at: Any, programs: Any, before: Any) -> None:
        earlier = np.flatnonzero((before != NOBODY) & (before != programs))
        if earlier.size:
            i = earlier[0]
            self.shared = int(at[i]), int(before[i]), int(programs[i])
            return
        beside_ = np.flatnonzero(self.writer[at] != programs)  # in the same chunk
        if beside_.size:
            i = beside_[0]
            self.shared = int(at[i]), int(programs[i]), int(self.writer[at[i]])

    def result(self) -> WrittenTensor:
        elements = int((self.writer != NOBODY).sum())
        return WrittenTensor(self.argument, elements, self.beyond, self.is_atomic, self.shared)


class _Seen:
    """The writers of all tensors so far."""

    def __init__(self, inputs: LaunchArguments, programs: int) -> None:
        self.given, self.tensors = inputs, dict[str, _Writers]()
        self._rest = MOST

    def note(self, name: str, item: int, offsets: Any, programs: Any, atomic: bool) -> None:
        self._rest -= offsets.size
        if self._rest < 0:
            raise NotModelled(f"its programs write more than {MOST:,} elements")
        if name not in self.tensors:
            self.tensors[name] = _Writers(name, self.given.tensors[name] // item)
        self.tensors[name].note(offsets // item, programs, atomic)


class _WriteWalk(ProgramValues):
    """A walk of some programs that computes where they store, trip by trip."""

    def __init__(
        self,
        function: Function,
        numbers: Any,
        grid: Sequence[int],
        inputs: LaunchArguments,
        needed: frozenset[str],
        seen: _Seen,
    ) -> None:
        super().__init__(function, places_of(grid, numbers), grid, inputs)
        self._numbers, self._needs, self._seen = numbers, needed, seen
        self.block(function.body)

    def step(self, op: Op) -> None:
        """Walk an operation only if where a store goes depends on it."""
        stores = op.word in WRITES or any(
            inner.word in WRITES for region in op.regions for inner in every_op(region)
        )
        if stores or self._needs.intersection(op.results) or op.name == "cf.cond_br":
            super().step(op)
        else:  # integers in shared memory, and descriptors
            holder = op.operands[0] if op.word == "tensormap_create" else filled_buffer(op)
            if holder in self._needs:
                super().step(op)

    def access(self, op: Op, pointers: Value, mask: Value, what: str) -> None:
        if what not in ("store", "atomic"):
            return
        if pointers is None:
            raise NotModelled("where it writes depends on data that is not given")
        kind = pointer_type(op)
        shape = (self.programs, *(kind.shape or (1,) * (pointers.ndim - 1)))
        live = self.weight > 0
        if mask is not None:
            live = broadcast_weights(live, pointers, mask, np.empty(shape)) & (mask != 0)
        else:
            live = broadcast_weights(live, pointers, np.empty(shape))
        on = np.broadcast_to(live, shape)
        numbers = broadcast_weights(self._numbers, np.empty(shape))
        places = np.broadcast_to(pointers, shape)
        programs = np.broadcast_to(numbers, shape)
        if on.all():
            places, programs = places.ravel(), programs.ravel()
        else:
            places, programs = places[on], programs[on]
        for one, by in _split_by_tensor(places, programs):
            name = self.tensor_of(one if one.size else pointers)
            if name is None:
                raise NotModelled("it writes by a pointer that is not an argument")
            offsets = self.offsets(one) if one.size else one
            self._seen.note(name, int(kind.item_bytes), offsets, by, what == "atomic")

    def loop(self, op: Op, head: LoopHead) -> None:
        outer, trips = self.weight, head.trips
        most = int((trips * (outer > 0)).max())
        if most > MOST_TRIPS:
            raise NotModelled(f"it writes in a loop of more than {MOST_TRIPS:,} trips")
        carried = [self.env.get(begin) for _, begin in head.pairs]
        for trip in range(most):
            alive = (trips > trip) * outer
            self.weight = alive
            self.env[head.index] = head.start + head.stride * trip
            self._enter([name for name, _ in head.pairs], carried)
            carried = _carried_values(carried, self.block(op.regions[0]), alive > 0)
        self.weight = outer
        self._enter(op.results, carried)

    def loop_until(self, op: Op) -> None:
        raise NotModelled("where it writes depends on a loop that ends by its own test")

    def _enter(self, names: Sequence[str], values: Sequence[Value]) -> None:
        for name, value in zip(names, values, strict=False):
            self.env[name] = value


def _split_by_tensor(places: Any, programs: Any) -> Iterator[tuple[Any, Any]]:
    """Yield addresses and their programs tensor by tensor: a program may choose the tensor that it
    writes to. Addresses shortly before the start of a tensor are of that one."""
    if not places.size or (int(places.max()) >> BASE_BITS) == (int(places.min()) >> BASE_BITS):
        yield places, programs
        return
    tensors = (places + (1 << (BASE_BITS - 1))) >> BASE_BITS
    for tensor in np.unique(tensors):
        yield places[tensors == tensor], programs[tensors == tensor]


def _carried_values(before: Sequence[Value], after: Sequence[Value], alive: Any) -> list[Value]:
    """Return what a loop carries after a trip that only some programs take."""
    results: list[Value] = []
    for old, new in zip(before, after, strict=True):
        if old is None or new is None:
            results.append(None)
        elif alive.all():
            results.append(new)
        else:
            results.append(np.where(broadcast_weights(alive, old, new), new, old))
    return results
