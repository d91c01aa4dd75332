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
        """Restore the copies once and time that. Each of `parts` is the input's index, its values,
        and the copies stacked along a new first axis."""
        self._parts = parts
        self._views = [(place, list(stack)) for place, _, stack in parts]
        self.count = len(self._views[0][1])
        self.restore()
        result = first_call(TimerStep(self.restore))
        self.seconds = result.seconds  # of one restore, on the device
        self.host_s = result.host_s

    @staticmethod
    def create(values: Mapping[int, Any], count: int) -> Copies:
        """Return `count` copies of the inputs at these indices."""
        return Copies([(place, x, stack_copies(x, count)) for place, x in values.items()])

    def first(self, count: int) -> Copies:
        """Return the first `count` copies, in the same memory."""
        return Copies([(place, x, stack[:count]) for place, x, stack in self._parts])

    def restore(self) -> None:
        """Restore the original values of every copy: one launch for each input."""
        for _, x, stack in self._parts:
            stack.copy_(x)

    def call_inputs(self, inputs: Sequence[Any], turn: int) -> tuple[Any, ...]:
        """Return the inputs of call number `turn`, with copies of those that it changes."""
        arguments = list(inputs)
        for place, views in self._views:
            arguments[place] = views[turn % self.count]
        return tuple(arguments)


class Working:
    """The copies that the Impls of one problem change. They share memory, since each sample begins
    with a restore. `inputs` by name are only read."""

    def __init__(self, inputs: Mapping[str, Any]) -> None:
        self._inputs = inputs
        self._copies: dict[tuple[frozenset[str], int], Copies] = {}
        self._largest: dict[frozenset[str], Copies] = {}

    def copies(self, mutates: Sequence[str], most: int) -> Copies:
        """Return `most` copies of these inputs, or fewer where half of the free memory holds fewer;
        at least one."""
        names = frozenset(mutates)
        places = {i: x for i, (n, x) in enumerate(self._inputs.items()) if n in names}
        largest = self._largest.get(names)
        if largest is None or largest.count < most:
            fitting = (
                free_bytes()
                // 2
                // max(1, sum(_step(x) * x.element_size() for x in places.values()))
            )
            room = 1 << (most - 1).bit_length()  # so that few sizes are ever allocated
            count = max(1, min(room, fitting))
            if largest is None or count > largest.count:
                largest = self._largest[names] = Copies.create(places, count)
                self._copies = {k: c for k, c in self._copies.items() if k[0] != names}
        count = min(most, largest.count)
        if (names, count) not in self._copies:
            self._copies[names, count] = largest.first(count)
        return self._copies[names, count]


def stack_copies(x: Any, count: int) -> Any:
    """Return memory for `count` tensors like `x`, each aligned: shape (count, *x.shape)."""
    like = torch.empty_like(x)  # dense, in the order of the axes of `x`
    step = _step(x)
    memory = torch.empty(count * step, dtype=x.dtype, device=x.device)
    return memory.as_strided((count, *x.shape), (step, *like.stride()))


def _step(x: Any) -> int:
    """Return the number of elements from one copy to the next."""
    count, per = int(x.numel()), ALIGNED // int(x.element_size())
    return max(1, -(-count // per)) * per


def free_bytes() -> int:
    """Return the GPU's free memory in bytes."""
    return int(torch.cuda.mem_get_info()[0])
