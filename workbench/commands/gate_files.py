"""Describe the kernels that a gate compares: first all of the baseline, then the branch."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from workbench import catalog
from workbench.backend.described import Description, DescriptionRequest, describe
from workbench.backend.workers import Workers
from workbench.commands.gate_checks import ChangedImpl, Judges, changed_impls
from workbench.device.hardware import Device
from workbench.revisions.changed_kernels import ChangedCode, LeftOut, leave
from workbench.revisions.worktree import Repository, WorktreeError, Worktrees

Prepare = Callable[[Sequence[Description], Sequence[Device]], None]


@dataclass(frozen=True)
class GateFiles:
    """The files of the kernels to compare, in the work tree and at the baseline."""

    repository: Repository
    trees: Worktrees
    baseline: str
    dtype: str
    files: Sequence[Path]

    @property
    def root(self) -> Path:
        """Return the root of the work tree."""
        return self.repository.root

    @property
    def digest(self) -> str:
        """Return a hash of all code of the work tree, by which facts of it are stored."""
        return self.changed_code.digest

    @cached_property
    def changed_code(self) -> ChangedCode:
        """Return which files have other code than at the baseline."""
        return ChangedCode.find(self.repository, self.baseline)

    def is_same(self, file: Path) -> bool:
        """Return whether a file and all files of the repository that it imports have the code of
        the baseline. This reads them: a hash that the kernel's process made would be its word."""
        return self.repository.relative_path(file) not in self.changed_code.files


@dataclass(frozen=True)
class Known:
    """What is known of the kernels before any is compiled as it is."""

    judges: Judges
    kernels: Sequence[tuple[Description, Description]]  # at the baseline and now
    changed_impls: Sequence[ChangedImpl]  # whose results are to be checked
    unchanged_configs: int  # configs of files with the baseline's code


def describe_both(
    files: GateFiles,
    devices: tuple[Device, ...],
    dtype: str,
    left_out: list[LeftOut],
    stack: ExitStack,
    prepare: Prepare,
) -> Known:
    """Return the kernels of both versions, described. `prepare` does with the baseline's what is to
    be done before code of the branch runs. What cannot be compared is left out."""
    then = _baseline(files, devices, left_out)
    same = {file for file in then if then[file] is not None and files.is_same(file)}
    todo = [d for file, d in then.items() if d is not None and file not in same]
    judges = stack.enter_context(Judges(files.root))
    judges.remember(todo)
    prepare(todo, devices)
    unchanged = sum(_configs(d) for file in same if (d := then[file]) is not None)
    kernels, changed = list[tuple[Description, Description]](), list[ChangedImpl]()
    with Workers(1, here=files.root) as workers:
        for file, was in then.items():
            if file in same:
                continue
            check = was.check if was else ()
            bench = was.bench if was else None
            request = DescriptionRequest(str(file), dtype, devices, bench=bench, check=check)
            try:
                now = replace(describe(workers, request), file=str(file))
            except catalog.CatalogError as error:
                leave(left_out, file.name, str(error), broken=True)
                continue
            if dtype not in now.dtypes:
                lost = was is not None and dtype in was.dtypes
                more = " any more" if lost else ""
                leave(left_out, now.name, f"it does not support {dtype}{more}", broken=lost)
                continue
            if was is None:
                leave(left_out, now.name, f"new since {files.baseline}")
            else:
                kernels.append((was, now))
            changed += changed_impls(now, was)
    return Known(judges, kernels, changed, unchanged)


def _baseline(
    files: GateFiles, devices: tuple[Device, ...], left_out: list[LeftOut]
) -> dict[Path, Description | None]:
    """Return the description of each file at the baseline; None where there it was not."""
    then = dict[Path, Description | None]()
    with Workers(1) as workers:
        for file in files.files:
            try:
                within = files.repository.relative_path(file)
                version = files.trees.file(files.baseline, within)
                if version is None:
                    then[file] = None
                    continue
                request = DescriptionRequest(str(file), files.dtype, devices, version=str(version))
                then[file] = replace(describe(workers, request), file=str(version))
            except (catalog.CatalogError, WorktreeError) as error:
                leave(left_out, file.name, str(error), broken=True)
    return then


def _configs(kernel: Description) -> int:
    return sum(launch.config is not None for impl in kernel.impls for launch in impl.launches)
