"""A launch without the values of its tensors: function, arguments, grid, options, config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

# What decided the config: the caller, `@triton.heuristics`, `@triton.autotune`, or torch.compile.
Origin = Literal["call", "heuristics", "autotune", "inductor"]


@dataclass(frozen=True)
class KernelFunction:
    """A device function: where it is, and a hash of its text and of all that it calls."""

    name: str
    module: str
    file: str
    text_hash: str  # 16 hex digits; comments, docstrings and formatting do not count
    arguments: tuple[str, ...]
    constexprs: tuple[str, ...] = ()


@dataclass(frozen=True)
class TensorArgument:
    """A tensor's layout. Tensors with equal `storage` share memory."""

    dtype: str  # torch's name: bfloat16
    shape: tuple[int, ...]
    stride: tuple[int, ...]  # in elements
    align: int  # largest power of two up to 16 that divides the address, in bytes
    storage: int  # number of its storage among those of the launch, in order of appearance
    values: tuple[int, ...] | None = None  # of an integer tensor, where they were requested

    @property
    def needs_values(self) -> bool:
        """Whether a launch may depend on values that were not kept: an integer tensor may hold
        indices, offsets or counts."""
        return self.values is None and self.dtype.startswith(("int", "uint", "bool"))


PlainKind = Literal["int", "float", "bool", "none", "str", "dtype", "function", "other"]


@dataclass(frozen=True)
class PlainArgument:
    """Any other argument. A float is its `repr`; of kind `other` the value is its type's name."""

    kind: PlainKind
    value: int | bool | str | None


@dataclass(frozen=True)
class DescriptorArgument:
    """A tensor descriptor (TMA)."""

    base: TensorArgument
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    block_shape: tuple[int, ...]


@dataclass(frozen=True)
class TupleArgument:
    """A tuple of arguments."""

    items: tuple[RecordedArgument, ...]


RecordedArgument = TensorArgument | PlainArgument | DescriptorArgument | TupleArgument


@dataclass(frozen=True)
class ConfigGrids:
    """The grid of a launch as a function of the knobs that a config sets."""

    knobs: tuple[str, ...]  # that the grid depends on, or may
    shapes: Mapping[tuple[int, ...], tuple[int, ...]]  # grid by the values of the knobs

    def shape(self, config: Mapping[str, Any]) -> tuple[int, ...] | None:
        """Return the grid of a config; None where it was not recorded."""
        return self.shapes.get(tuple(config.get(name) for name in self.knobs))  # type: ignore[misc]


@dataclass(frozen=True)
class LaunchSignature:
    """All that two launches have in common that may share one config."""

    function: KernelFunction
    arguments: Mapping[str, RecordedArgument]  # in the function's order
    grid: tuple[int, ...]
    options: Mapping[str, PlainArgument] = field(default_factory=dict)  # num_warps and the like
    origin: Origin = "call"
    config: Mapping[str, PlainArgument] = field(default_factory=dict)  # the config in use
    choices: int = 1  # configs that it was chosen from
    tuned: bool = True  # False: the first config of a list, taken without a GPU
    key: tuple[str, ...] | None = None  # of the autotuner, each value as text
    grids: ConfigGrids | None = None  # of an autotuner's configs; None where they are not known

    @property
    def warps(self) -> int | None:
        """Warps of a program, where the launch names them."""
        for source in (self.config, self.options):
            if (given := source.get("num_warps")) is not None and isinstance(given.value, int):
                return given.value
        return None


def tensors_of(argument: RecordedArgument) -> list[TensorArgument]:
    """Return the tensors of an argument."""
    if isinstance(argument, TensorArgument):
        return [argument]
    if isinstance(argument, DescriptorArgument):
        return [argument.base]
    if isinstance(argument, TupleArgument):
        return [tensor for item in argument.items for tensor in tensors_of(item)]
    return []


def plain_value(argument: PlainArgument) -> Any:
    """Return the value of a plain argument: a float as a float, names as text."""
    return float(str(argument.value)) if argument.kind == "float" else argument.value
