"""Choose the kernels' files that a gate compares: changed, reached by a change, or removed."""

from __future__ import annotations

import ast
import errno
import hashlib
import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path

from workbench.catalog.source import parse_without_docstrings
from workbench.data.files import reason_of
from workbench.revisions.worktree import Repository
from workbench.spec import Spec

LARGEST = 4 << 20  # bytes of a kernel's file; the largest built-in one has 40 kB

_IMPORT = re.compile(rb"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+)?import[ \t]+(\([^)]*\)|[^\n]*)", re.M)
_NAME = re.compile(rb"\w+")


@dataclass(frozen=True)
class LeftOut:
    """A kernel that was not compared, and the reason; `broken` if it should have been."""

    what: str
    reason: str
    broken: bool = False


def leave(left_out: list[LeftOut], what: str, reason: str, broken: bool = False) -> None:
    """Add what is not compared to a list, once for each reason."""
    shown = what if what.isprintable() else ascii(what)[1:-1]  # the name of a file
    left = LeftOut(shown, " ".join(reason.split()), broken)
    if left not in left_out:  # once, not for each size
        left_out.append(left)


@dataclass
class ChangedKernels:
    """The kernels' files of a repository that differ from those of a revision."""

    repository: Repository
    baseline: str
    left_out: list[LeftOut] = field(default_factory=list)

    def files(self) -> list[Path]:
        """Return the files that register an Impl and differ from the baseline, are new, or import a
        file of the repository that differs, also through others."""
        repository = self.repository
        new = repository.untracked_files()
        changed = repository.changed_since(self.baseline)
        kernels = [f for f in changed if self._holds_kernel(f, f in new)]
        reached = importers(repository.root, repository.tracked_files(), changed)
        kernels += [f for f in reached if self._holds_kernel(f, True)]
        return [repository.root / f for f in sorted(kernels)]

    def list_removed(self) -> None:
        """List the files that held a kernel at the baseline and do not any more, under any name."""
        repository, baseline = self.repository, self.baseline
        renamed = {*repository.renamed_since(baseline).values()}
        gone = [file for file in repository.removed_since(baseline) if file not in renamed]
        others = set(repository.changed_since(baseline)) - repository.untracked_files()
        gone += [file for file in sorted(others) if not self._may_hold_kernel(file)]
        for file in gone:
            if has_kernel(repository.text_at(baseline, file)):
                leave(self.left_out, str(file), f"removed since {baseline}")

    def _may_hold_kernel(self, file: Path) -> bool:
        try:
            return has_kernel(_source(self.repository.root / file))
        except OSError:  # said by `files`
            return True

    def _holds_kernel(self, file: Path, new: bool) -> bool:
        """Return whether a file registers an Impl. One that cannot be read is left out; if git
        tracks it, that is a failure, since it may be a kernel that cannot run any more."""
        try:
            return has_kernel(_source(self.repository.root / file))
        except OSError as error:
            reason = f"it cannot be read ({reason_of(error)})"
            leave(self.left_out, str(file), reason, broken=not new)
            return False


@dataclass(frozen=True)
class ChangedCode:
    """The files whose code, or that of a file that they import, is not a revision's."""

    files: frozenset[Path]  # paths from the root
    digest: str  # of the revision and of the code of all files that differ from it

    @classmethod
    def find(cls, repository: Repository, revision: str) -> ChangedCode:
        """Return what differs from a revision. Comments, docstrings and formatting are not code; of
        a link nothing is known."""
        root, tracked = repository.root, repository.tracked_files()
        links = {file for file in tracked if (root / file).is_symlink()}
        now = {f: _code_of(root / f) for f in {*repository.changed_since(revision), *links}}
        for file in list(now):
            then = os.fsencode(repository.text_at(revision, file))
            if file not in links and code_in(then) == now[file]:
                del now[file]
        gone = repository.removed_since(revision)
        reached = importers(root, tracked | repository.untracked_files(), [*now, *gone])
        texts = [
            repository.full_hash(revision),
            *(f"{f}\0{now[f]}" for f in sorted(now)),
            *map(str, gone),
        ]
        digest = hashlib.sha256("\0".join(texts).encode("utf-8", "surrogateescape"))
        return cls(frozenset({*now, *gone, *reached}), digest.hexdigest()[:16])


def _code_of(path: Path) -> str:
    try:
        return code_in(_source(path))
    except OSError as error:
        return f"unreadable: {reason_of(error)}"


def code_in(text: bytes) -> str:
    """Return the code in a Python file, without comments and docstrings; of one that cannot be
    parsed its bytes as text."""
    try:
        return ast.dump(parse_without_docstrings(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return text.rstrip(b"\n").decode("utf-8", "surrogateescape")


def importers(root: Path, files: set[Path], changed: list[Path]) -> set[Path]:
    """Return those of the files that import a changed one, directly or through others, and did not
    change themselves. Modules are told apart by the last part of their name, so a file may be
    returned that imports another module of that name."""
    named = {file: _imported_names(root / file) for file in files - set(changed)}
    result: set[Path] = set()
    names = {_module_name(file) for file in changed}
    while reached := {file for file, words in named.items() if words & names} - result:
        result |= reached
        names = {_module_name(file) for file in reached}
    return result


def _module_name(file: Path) -> bytes:
    name = file.parent.name if file.name == "__init__.py" else file.stem
    return os.fsencode(name)


def _imported_names(path: Path) -> set[bytes]:
    """Return every name in the import statements of a file; none of one that cannot be read."""
    try:
        text = _source(path)
    except OSError:
        return set()
    parts = [part for matched in _IMPORT.findall(text) for part in matched]
    return {name for part in parts for name in _NAME.findall(part)}


def _source(file: Path) -> bytes:
    """Return the content of a file that may be a kernel. Raises OSError for one that is not a
    regular file, that is a link to none, or that is larger than any kernel."""
    # without waiting for the writer of a FIFO
    with open(file, "rb", opener=lambda at, flags: os.open(at, flags | os.O_NONBLOCK)) as opened:
        described = os.fstat(opened.fileno())
        if not stat.S_ISREG(described.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        if described.st_size > LARGEST:
            raise OSError(errno.EFBIG, f"it is larger than {LARGEST >> 20} MiB")
        return opened.read()


def has_kernel(text: str | bytes) -> bool:
    """Return whether a Python file registers an Impl: a top-level function under `@name.impl(...)`.
    Of a file that cannot be parsed, whether it has the text of such a line: it is then a kernel
    that cannot be imported."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raw = text.encode("utf-8", "replace") if isinstance(text, str) else text
        return re.search(rb"^@\w+\.impl\(", raw, re.MULTILINE) is not None
    calls = [
        d.func
        for f in body
        if isinstance(f, ast.FunctionDef)
        for d in f.decorator_list
        if isinstance(d, ast.Call)
    ]
    return any(isinstance(call, ast.Attribute) and call.attr == "impl" for call in calls)


def removed_impls(then: Spec, now: Spec, language: str) -> list[str]:
    """Return the titles of the Impls in this language that a kernel had and has not any more."""
    names = {impl.name for impl in now.impls}
    gone = [impl for impl in then.impls if impl.backend == language and impl.name not in names]
    return [impl.title for impl in gone]
