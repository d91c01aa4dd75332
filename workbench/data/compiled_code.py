"""The machine code of a config, as two compilers or two versions of a kernel are compared by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from workbench.data.record import Predicted, Resources, register


@dataclass(frozen=True)
class HotLoop:
    """The innermost loop with the most matrix instructions, then with the most memory accesses."""

    instructions: int  # in the listing
    groups: Mapping[str, int]  # by kind of instruction; none that is 0
    load_bytes: int | None  # of one thread and pass; None where a descriptor states them


@dataclass(frozen=True)
class CompiledCode:
    """Machine code of one config, compiled for one device. `resources`, `groups` and `loop` are
    those of the largest launch."""

    code: str  # sha256 of the machine code, grid, threads and arguments of all launches
    resources: Resources
    launches: int  # of one call
    groups: Mapping[str, int] = field(default_factory=dict)  # instructions by kind
    loop: HotLoop | None = None
    predicted: Predicted | None = None
    notes: tuple[str, ...] = ()  # facts that are not known, a sentence each


register(HotLoop, CompiledCode)
