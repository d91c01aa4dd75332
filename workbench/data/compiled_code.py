"""The machine code of a config, as two compilers or two versions of a kernel are compared by it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from workbench.data.impl_check import ImplCheck


@dataclass(frozen=True)
class HotLoop:
    """The innermost loop with the most matrix instructions, then with the most memory accesses."""

    instructions: int  # in the listing
    groups: Mapping[str, int]  # by kind of instruction; none that is 0
    load_bytes: int | None  # of one thread and pass; None where a descriptor states them


@dataclass(frozen=True)
class CompiledCode:
    """Machine code of one config, compiled for one device. `groups` and `loop` are those of the
    largest launch."""

    digest: str  # sha256 of the machine code, grid, threads and arguments of all launches
    launches: int  # of one call
    groups: Mapping[str, int] = field(default_factory=dict)  # instructions by kind
    loop: HotLoop | None = None
    notes: tuple[str, ...] = ()  # facts that are not known, a sentence each


@dataclass(frozen=True)
class CodeVersions:
    """Two versions of the compiler or of kernels, which a run compares by their machine code."""

    before: str  # "Triton 3.6.0", or a revision
    after: str
    devices: tuple[str, ...]
    threshold: float  # share up to which predicted times are the same
    configs: int  # that are to be compared
    unchanged: int = 0  # configs that are not compiled, as their source is the same
    left_out: tuple[str, ...] = ()  # what cannot be compared, a sentence each
    checks: tuple[ImplCheck, ...] = ()  # of the results of changed Impls
