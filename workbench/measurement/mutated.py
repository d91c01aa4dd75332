"""Copies of the inputs that a launch changes: restored before each sample, outside its time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from workbench.measurement.stream import TimerStep, first_call

ALIGNED = 512  # bytes: as torch's allocator aligns, so that all copies run the same code


class Copies:
    """`count` copies of some inputs of one problem, in memory of their own."""

    def __init__(self, parts: Sequence[tuple[int, Any, Any]]) -> None:
        """`parts`: which input it is, its values, and the copies with one axis more in front."""
        self._parts = parts
        self._views = [(place, list(stack)) for place, _, stack in parts]
        self.count = len(self._views[0][1])
        self.restore()
        result = first_call(TimerStep(self.restore))
        self.seconds = result.seconds  # of one restore, on the device
        self.host_s = result.host_s

    @staticmethod
    def of(values: Mapping[int, Any], count: int) -> Copies:
        """So many copies of the inputs at these places."""
        return Copies([(place, x, stacked(x, count)) for place, x in values.items()])

    def first(self, count: int) -> Copies:
        """The first of them alone, in the same memory."""
        return Copies([(place, x, stack[:count]) for place, x, stack in self._parts])

    def restore(self) -> None:
        """Give every copy the values that it began with: one launch for each input."""
        for _, x, stack in self._parts:
            stack.copy_(x)

    def given(self, inputs: Sequence[Any], turn: int) -> tuple[Any, ...]:
        """The inputs of a call, with copies where it changes them."""
        created = list(inputs)
        for place, views in self._views:
            created[place] = views[turn % self.count]
        return tuple(created)


class Working:
    """The copies that the Impls of one problem change; they share memory, for each sample begins
    with a restore. `inputs` by name are only read."""

    def __init__(self, inputs: Mapping[str, Any]) -> None:
        self._inputs = inputs
        self._created: dict[tuple[frozenset[str], int], Copies] = {}
        self._largest: dict[frozenset[str], Copies] = {}

    def copies(self, mutates: Sequence[str], wanted: int) -> Copies:
        """`wanted` copies of these inputs, or as many as half of the free memory holds; at least
        one."""
        names = frozenset(mutates)
        places = {i: x for i, (n, x) in enumerate(self._inputs.items()) if n in names}
        largest = self._largest.get(names)
        if largest is None or largest.count < wanted:
            fitting = (
                free_bytes()
                // 2
                // max(1, sum(_step(x) * x.element_size() for x in places.values()))
            )
            room = 1 << (wanted - 1).bit_length()  # so that few sizes are ever asked for
            count = max(1, min(room, fitting))
            if largest is None or count > largest.count:
                largest = self._largest[names] = Copies.of(places, count)
                self._created = {k: c for k, c in self._created.items() if k[0] != names}
        count = min(wanted, largest.count)
        if (names, count) not in self._created:
            self._created[names, count] = largest.first(count)
        return self._created[names, count]


def stacked(x: Any, count: int) -> Any:
    """Memory for `count` tensors like `x`, each aligned: shape (count, *x.shape)."""
    like = torch.empty_like(x)  # dense, in the order of the axes of `x`
    step = _step(x)
    memory = torch.empty(count * step, dtype=x.dtype, device=x.device)
    return memory.as_strided((count, *x.shape), (step, *like.stride()))


def _step(x: Any) -> int:
    """Elements from one copy to the next."""
    count, per = int(x.numel()), ALIGNED // int(x.element_size())
    return max(1, -(-count // per)) * per


def free_bytes() -> int:
    """Memory of the GPU that nobody has taken."""
    return int(torch.cuda.mem_get_info()[0])
