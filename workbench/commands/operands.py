"""Parse the operands of a comparison.

An operand is an Impl (`tiles`, `matmul.tiles`), an Impl at a config
(`tiles:block_m=128,num_warps=8`), or the kernel's file at a revision (`HEAD~1`, `v1.2`, a hash, or
WORKING for the file as it is).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench import catalog
from workbench.commands.options import CommandError
from workbench.data.database import open_history
from workbench.data.errors import first_sentence
from workbench.data.user_code import user_code
from workbench.revisions.worktree import WORKING, Repository, WorktreeError
from workbench.spec import Impl, Limits, Sizes, Spec, WorkbenchError, label

if TYPE_CHECKING:
    from workbench.commands.compare import CompareOptions

DEFAULT_KERNEL = "matmul"
RUN_ID = re.compile(r"\d{8}-\d{6}(-|$)")  # how the id of a stored run begins


class OperandError(WorkbenchError):
    """An operand cannot be parsed; one sentence says which, and what it may be."""


@dataclass(frozen=True)
class Operand:
    """One operand of a comparison, as the user named it."""

    impl: str | None = None  # None: the first Triton Impl of the file, or else its first
    knobs: Mapping[str, int] = field(default_factory=dict)  # named; the others keep their default
    revision: str = WORKING

    def choose(self, spec: Spec, limits: Limits, dtype: str, sizes: Sizes) -> tuple[Impl, Any]:
        """Return the Impl and its config in this version of the kernel, at these sizes. Raises
        CatalogError or OperandError."""
        first = next((i.name for i in spec.impls if i.backend == "triton"), spec.impls[0].name)
        impl = catalog.impl_of(spec, self.impl or first)
        if unknown := [name for name in self.knobs if name not in impl.knobs()]:
            raise OperandError(catalog.name_hint(f"knob of {impl.title}", unknown[0], impl.knobs()))
        try:
            with user_code(f"a config of {impl.title}"):
                text = replace(impl.declared_default(limits, dtype), **self.knobs)
        except Exception as error:  # the config's own `__post_init__`
            raise OperandError(
                f"{impl.config.__name__} of {impl.title} cannot be made of {label(self.knobs)} "
                f"({first_sentence(error)}); name other values."
            ) from error
        return impl, impl.resolved_config(text, limits, dtype, sizes)


def is_run(text: str) -> bool:
    """Return whether an operand names a stored run."""
    return RUN_ID.match(text) is not None


def are_traces(options: CompareOptions) -> bool:
    """Return whether the operands are traces: two files of a profiler, or two runs of `read` or
    `profile`. Raises HistoryError, and CommandError where only one of them is."""
    texts = (options.left, options.right)
    files = [_is_file(text) for text in texts]
    if all(files):
        return True
    if any(files) and all(texts):
        file, other = texts if files[0] else texts[::-1]
        if not is_run(other):
            raise CommandError(f"{file} is a file and {other} is not; name two files of traces.")
        raise CommandError(
            f"{file} is a file and {other} a stored run; name two files, or two runs of `read`."
        )
    if "energy" in options.also or not all(is_run(text) for text in texts):
        return False
    with open_history(options.database, True) as history:
        runs = [history.run(text) for text in texts]
    traces = [run.kind == "trace" for run in runs]
    if any(traces) and not all(traces):
        raise CommandError(
            f"{runs[0].id} is a run of `{runs[0].engine}` and {runs[1].id} of `{runs[1].engine}`; "
            "profiled times are never compared with measured ones. Name two runs of one kind."
        )
    return all(traces)


def _is_file(text: str) -> bool:
    """Return whether an operand names a file, or a folder by a path with a separator: a bare name
    is an Impl's or a revision's, even if a folder has it too."""
    path = Path(text)
    return path.is_file() or (os.sep in text and path.is_dir())


def kernel_of(left: str, right: str, kernel: str | None) -> str:
    """Return the kernel of both operands: as named, or from their prefixes (`softmax.rows`).

    Raises OperandError where they belong to two kernels.
    """
    if kernel is not None:
        return kernel
    known = catalog.known_kernels()
    prefixes = [text.partition(":")[0].rpartition(".")[0] for text in (left, right)]
    named = list(dict.fromkeys(p for p in prefixes if p in known))
    if len(named) > 1:
        raise OperandError(
            f"{left} and {right} are of two kernels, which compute different things; "
            "name two operands of one kernel."
        )
    return named[0] if named else DEFAULT_KERNEL


def repository_with(kernel: str) -> Repository | None:
    """Return the git repository that holds the kernel's file; None if there is none."""
    file = catalog.module_of(kernel).__file__
    try:
        return Repository.find(Path(file)) if file else None
    except WorktreeError:
        return None


def operands_of(
    text: tuple[str, str], impl: str | None, spec: Spec, repository: Repository | None
) -> tuple[Operand, Operand]:
    """Return both operands. `impl` is the value of `--impl`, for revisions. Raises OperandError."""
    run, other = sorted(text, key=is_run, reverse=True)
    if is_run(run) and not is_run(other):
        raise OperandError(
            f"{run} is a stored run, and {other} is not; name two, as `workbench history` lists "
            "them."
        )
    named = Operand() if impl is None else config_operand(impl, spec)
    left, right = (_operand(each, named, spec, repository) for each in text)
    return left, right


def config_operand(text: str, spec: Spec) -> Operand:
    """Return the operand that names an Impl, with or without a config. Raises OperandError."""
    if (result := _impl_operand(text, spec)) is None:
        raise OperandError(_unknown_impl(text, spec))
    return result


def _unknown_impl(text: str, spec: Spec) -> str:
    names = [i.name for i in spec.impls]
    return catalog.name_hint(f"impl of {spec.name}", text.partition(":")[0], names)


def _operand(text: str, named: Operand, spec: Spec, repository: Repository | None) -> Operand:
    if (result := _impl_operand(text, spec)) is not None:
        return result
    if text == WORKING or (repository is not None and repository.commit(text) is not None):
        return replace(named, revision=text)
    where = f"no commit of {repository.title()}" if repository else "it is in no git repository"
    raise OperandError(f"{_unknown_impl(text, spec)} Nor is it a revision: {where}.")


def _impl_operand(text: str, spec: Spec) -> Operand | None:
    """Return the operand that names an Impl, with or without a config; None if it names none."""
    head, colon, rest = text.partition(":")
    name = head.removeprefix(f"{spec.name}.")
    if name not in [i.name for i in spec.impls]:
        return None
    return Operand(name, knobs_of(text, rest) if colon else {})


def knobs_of(operand: str, text: str) -> dict[str, int]:
    """Return the knobs that `block_m=128,num_warps=8` names. Raises OperandError, which quotes the
    whole operand."""
    knobs = {}
    for part in text.split(","):
        name, _, value = (word.strip() for word in part.partition("="))
        if not (name and value.isascii() and value.isdecimal() and len(value) < 10):
            raise OperandError(
                f"{operand} is not a config: {part!r} is not a knob and a whole number; "
                "write tiles:block_m=128,num_warps=8."
            )
        knobs[name] = int(value)
    return knobs


def titles(
    operands: tuple[Operand, Operand], impls: tuple[Impl, Impl], configs: tuple[Any, Any]
) -> tuple[str, str]:
    """Return the names of both operands: as short as distinguishes them, and at least the Impl."""
    plain = [vars(c) for c in configs]
    versions = operands[0].revision != operands[1].revision
    alike = impls[0].name == impls[1].name and plain[0] == plain[1]
    left, right = (
        i.name
        + (f" {label(p)}" if p and not (versions and alike) else "")
        + (f" at {s.revision}" if versions or s.revision != WORKING else "")
        for s, i, p in zip(operands, impls, plain, strict=True)
    )
    return left, right
