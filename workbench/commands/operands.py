"""What a comparison can have on either side, in the words of the command line.

An Impl (`tiles`, `matmul.tiles`), an Impl at a config (`tiles:block_m=128,num_warps=8`), or the
kernel's file at a revision (`HEAD~1`, `v1.2`, a hash, or WORKING for the file as it is).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from workbench import catalog
from workbench.commands.worktree import WORKING, Repository, WorktreeError
from workbench.spec import Impl, Limits, Sizes, Spec, label

DEFAULT_KERNEL = "matmul"
RUN_ID = re.compile(r"\d{8}-\d{6}(-|$)")  # how the id of a stored run begins


class SideError(Exception):
    """One sentence: which side cannot be understood, and what it may be."""


@dataclass(frozen=True)
class Side:
    """One side as it was asked for."""

    impl: str | None = None  # None: the first Triton Impl of the file
    knobs: Mapping[str, int] = field(default_factory=dict)  # said; the others keep their default
    revision: str = WORKING

    def chosen(self, spec: Spec, limits: Limits, dtype: str, sizes: Sizes) -> tuple[Impl, Any]:
        """The Impl and its config in this version of the kernel, at these sizes. Raises
        CatalogError, SideError."""
        first = next(i.name for i in spec.impls if i.backend == "triton")
        impl = catalog.impl_of(spec, self.impl or first)
        if unknown := [name for name in self.knobs if name not in impl.knobs()]:
            raise SideError(catalog.unknown(f"knob of {impl.title}", unknown[0], impl.knobs()))
        said = replace(impl.declared(limits, dtype), **self.knobs)
        return impl, impl.resolved(said, limits, dtype, sizes)


def is_run(said: str) -> bool:
    """Whether a side names a stored run."""
    return RUN_ID.match(said) is not None


def kernel_of(left: str, right: str, kernel: str | None) -> str:
    """The kernel that both sides are of: as named, or as their prefixes say (`softmax.rows`).

    Raises SideError where they are of two.
    """
    if kernel is not None:
        return kernel
    known = catalog.kernel_names()
    prefixes = [said.partition(":")[0].rpartition(".")[0] for said in (left, right)]
    named = list(dict.fromkeys(p for p in prefixes if p in known))
    if len(named) > 1:
        raise SideError(
            f"{left} and {right} are of two kernels, which compute different things; "
            "name two sides of one."
        )
    return named[0] if named else DEFAULT_KERNEL


def repository_with(kernel: str) -> Repository | None:
    """The git repository that holds the kernel's file; None where there is none."""
    file = catalog.module_of(kernel).__file__
    try:
        return Repository.of(Path(file)) if file else None
    except WorktreeError:
        return None


def sides_of(
    said: tuple[str, str], impl: str | None, spec: Spec, repository: Repository | None
) -> tuple[Side, Side]:
    """Both sides. `impl` is what `--impl` says of revisions. Raises SideError."""
    named = Side() if impl is None else _of_impl(impl, spec)
    if named is None:
        names = [i.name for i in spec.impls]
        raise SideError(catalog.unknown(f"impl of {spec.name}", str(impl).partition(":")[0], names))
    left, right = (_side(each, named, spec, repository) for each in said)
    return left, right


def _side(said: str, named: Side, spec: Spec, repository: Repository | None) -> Side:
    if is_run(said):
        raise SideError(f"{said} is a stored run: compare it with another stored run.")
    if (found := _of_impl(said, spec)) is not None:
        return found
    if said == WORKING or (repository is not None and repository.commit(said) is not None):
        return replace(named, revision=said)
    names = [i.name for i in spec.impls]
    word = said.partition(":")[0]
    unknown = catalog.unknown(f"impl of {spec.name}", word, names)
    where = f"no commit of {repository.root}" if repository else "its file is in no git repository"
    raise SideError(f"{unknown} Nor is it a revision: {where}.")


def _of_impl(said: str, spec: Spec) -> Side | None:
    """A side that names an Impl, with or without a config; None where it names none."""
    head, colon, rest = said.partition(":")
    name = head.removeprefix(f"{spec.name}.")
    if name not in [i.name for i in spec.impls]:
        return None
    return Side(name, _knobs(said, rest) if colon else {})


def _knobs(said: str, text: str) -> dict[str, int]:
    knobs = {}
    for part in text.split(","):
        name, _, value = (word.strip() for word in part.partition("="))
        if not (name and value.isascii() and value.isdecimal() and len(value) < 10):
            raise SideError(
                f"{said} is no config: {part!r} is not a knob and a whole number; "
                "write tiles:block_m=128,num_warps=8."
            )
        knobs[name] = int(value)
    return knobs


def titles(
    sides: tuple[Side, Side], impls: tuple[Impl, Impl], configs: tuple[Any, Any]
) -> tuple[str, str]:
    """What the two are called: as short as tells them apart, and never less than the Impl."""
    plain = [vars(c) for c in configs]
    versions = sides[0].revision != sides[1].revision
    alike = impls[0].name == impls[1].name and plain[0] == plain[1]
    left, right = (
        i.name
        + (f" {label(p)}" if p and not (versions and alike) else "")
        + (f" at {s.revision}" if versions or s.revision != WORKING else "")
        for s, i, p in zip(sides, impls, plain, strict=True)
    )
    return left, right
