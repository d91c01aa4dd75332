"""Compute the addresses of a tensor descriptor's blocks, which the copy engine moves whole.

A descriptor holds a tensor's shape and strides. A block of it is read or written at coordinates:
elements outside of the shape are read as zero, and not written.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.code.ttgir import NotModelled

LISTS = re.compile(r"\[([^\]]*)\]")


@dataclass(frozen=True)
class BlockDescriptor:
    """A tensor descriptor of each program; an extent is an array of one number a program, or of one
    for all."""

    base: Any  # addresses
    shape: Sequence[Any]
    strides: Sequence[Any]  # in bytes

    def block(self, at: Sequence[Any], extents: Sequence[int]) -> tuple[Any, Any]:
        """Return the addresses of a block at these coordinates, and which of them are inside of the
        tensor. Raises NotModelled where a coordinate, an extent or a stride is unknown."""
        each = (self.base, *at, *self.shape, *self.strides)
        if len(at) != len(extents) or any(value is None for value in each):
            raise NotModelled("an address depends on data that is not given")
        pointers, inside = _column(self.base, len(at)), np.ones((1,) * (1 + len(at)), dtype=bool)
        for axis, extent in enumerate(extents):
            along = np.arange(extent).reshape([-1 if d == axis else 1 for d in range(len(at))])
            place = _column(at[axis], len(at)) + along
            pointers = pointers + place * _column(self.strides[axis], len(at))
            inside = inside & (place >= 0) & (place < _column(self.shape[axis], len(at)))
        return np.where(inside, pointers, _column(self.base, len(at))), inside


def _column(value: Any, rank: int) -> Any:
    """Return one number a program with `rank` further axes."""
    return np.asarray(value).reshape(-1, *[1] * rank)


def names_in(text: str) -> list[list[str]]:
    """Return the names in each pair of square brackets of a text, in order."""
    return [[n.strip() for n in inner.split(",") if n.strip()] for inner in LISTS.findall(text)]
