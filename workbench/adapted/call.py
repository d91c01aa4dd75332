"""One call of a user's kernel as plain data: arguments, configs with their grids, memory layouts.

It is stored in `call.json` in the kernel's folder. Tensors are stored beside it: `args.pt` has the
values that the user gave, `answer.pt` the expected outputs; `moved_args.pt` and `moved_answer.pt`
are the same for a second check, on other values.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from workbench.adapted.travel import Place
from workbench.data.plain import read_as
from workbench.spec import ITEMSIZE

CALL, ARGS, EXPECTED = "call.json", "args.pt", "answer.pt"
MOVED_ARGS, MOVED_EXPECTED = "moved_args.pt", "moved_answer.pt"
# Of a launch of which only some programs run: elements whose writers do so in every config, and
# which elements of the expected outputs are known.
PROBES, WRITTEN = "probes.pt", "written.pt"

# What an output must hold before the launch: the given values, zeros, or any values.
Initial = Literal["values", "zeros", "nothing"]


@dataclass(frozen=True)
class Layout:
    """Memory layout of a tensor. It is stored and passed as contiguous memory: the tensor itself if
    it is contiguous and aligned, else all memory from its first element to its last."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    lead: int = 0  # elements between an address divisible by 16 and the first one
    plain: bool = True  # contiguous and aligned

    @property
    def extents(self) -> tuple[int, ...]:
        """Extents of the contiguous memory."""
        if self.plain:
            return self.shape
        span = 1 + sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))
        return (self.lead + span,)

    def view(self, memory: Any) -> Any:
        """Return the tensor in this memory as the user's kernel sees it."""
        if self.plain:
            return memory
        at = memory.storage_offset() + self.lead  # `as_strided` counts from the storage's start
        return memory.as_strided(self.shape, self.stride, at)


@dataclass(frozen=True)
class Argument:
    """One argument of the launch: a plain value, a tensor by name, or a tensor descriptor."""

    name: str
    positional: bool
    value: Any = None  # packed
    tensor: str | None = None
    descriptor: Any = None  # packed fields of a TensorDescriptor beside its base


class WordNumber(int):
    """The number of a knob's value that is a string or a bool: it prints as that value."""

    word: str

    def __new__(cls, number: int, word: str) -> WordNumber:
        """Return the number with its word."""
        self = super().__new__(cls, number)
        self.word = word
        return self

    def __str__(self) -> str:
        return self.word

    def __getnewargs__(self) -> tuple[int, str]:  # type: ignore[override]
        return int(self), self.word


def word_numbers(values: Mapping[str, int], kwargs: Mapping[str, Any]) -> dict[str, int]:
    """Return a config's numbers, of which those that stand for words print as the words."""
    return {
        n: WordNumber(v, str(kwargs[n])) if isinstance(kwargs.get(n), (bool, str)) else v
        for n, v in values.items()
    }


@dataclass(frozen=True)
class ConfigEntry:
    """One config of the user's list: as numbers, as Triton takes it, and its grid."""

    values: Mapping[str, int]
    kwargs: Mapping[str, Any]  # packed, with num_warps and the other options
    grid: tuple[int, ...]
    pre_hook: Place | None = None


@dataclass(frozen=True)
class Knobs:
    """One field of the config type."""

    name: str
    choices: tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """A kernel with its arguments, and everything that the user stated about it."""

    name: str
    place: Place
    arguments: tuple[Argument, ...]
    tensors: Mapping[str, Layout]
    entries: tuple[ConfigEntry, ...]
    knobs: tuple[Knobs, ...]
    flops: int = 0
    dtype: str = ""  # dtype of the run
    tolerance: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    initial: Mapping[str, Initial] = field(default_factory=dict)  # of all changed tensors
    unchecked: str = ""  # why nothing is known about its outputs; empty where they are known
    sampled: bool = False  # only some programs of a launch run in the interpreter
    shares: Mapping[str, float] = field(default_factory=dict)  # of an output that a launch writes
    # outputs of partial results along their first axis, as many as the config writes, the rest
    # zeros: their sum along it is compared
    partial: tuple[str, ...] = ()
    # distinct bytes that a launch reads and that it writes by its code, where that says it
    moved_bytes: tuple[int, int] | None = None

    @property
    def total_bytes(self) -> int:
        """Return the bytes of all tensors."""
        return sum(math.prod(t.shape) * ITEMSIZE[t.dtype] for t in self.tensors.values())

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the tensors whose values a launch needs."""
        return tuple(t for t in self.tensors if self.initial.get(t, "values") != "nothing")

    @property
    def mutates(self) -> tuple[str, ...]:
        """Inputs that a launch changes; other outputs need not be restored before the next."""
        return tuple(t for t in self.inputs if t in self.initial)

    def compared_output(self, name: str, x: Any) -> Any:
        """Return what of an output is compared: of partial results their sum, else all of it."""
        if name not in self.partial:
            return x
        wide = x.double() if x.is_floating_point() else x
        return wide.sum(0, keepdim=True).to(x.dtype)

    def compared_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of the part of an output that is compared."""
        shape = self.tensors[name].shape
        return (1, *shape[1:]) if name in self.partial else shape

    def entry(self, values: Mapping[str, int]) -> ConfigEntry | None:
        """Return the listed config with these values, or None."""
        return next((e for e in self.entries if dict(e.values) == dict(values)), None)

    def write(self, folder: Path) -> None:
        """Write the call to `call.json` in a folder."""
        text = json.dumps(asdict(self), indent=1)
        (folder / CALL).write_text(text, encoding="utf-8")

    @staticmethod
    def read(folder: Path) -> Call:
        """Return the call of `call.json` in a folder. Raises OSError, or ValueError if damaged."""
        plain = json.loads((folder / CALL).read_text(encoding="utf-8"))
        call: Call = read_as(Call, plain, CALL)
        entries = (replace(e, values=word_numbers(e.values, e.kwargs)) for e in call.entries)
        return replace(call, entries=tuple(entries))
