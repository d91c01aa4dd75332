"""Check out other commits of the user's repository in temporary folders, by `git worktree`. The
user's own files, index and branches are never written to."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from typing import Self

from workbench.data.closing import Closing
from workbench.data.interrupts import Interrupts
from workbench.data.temporary import lock_folder, lock_of_dead
from workbench.spec import WorkbenchError

WORKING = "WORKING"  # the files of the work tree, instead of a revision
FOLDER = "workbench-"  # how the names of the folders of checkouts begin


class WorktreeError(WorkbenchError):
    """A git command failed; one sentence: what, where, and what to do next."""


@dataclass(frozen=True)
class Repository:
    """A git repository, given by the root of its work tree."""

    root: Path

    @classmethod
    def find(cls, file: Path) -> Self:
        """Return the repository that holds a file or folder. Raises WorktreeError where there is
        none."""
        folder = file if file.is_dir() else file.parent
        try:
            return cls(Path(_git(folder, "rev-parse", "--show-toplevel")).resolve())
        except WorktreeError as error:
            raise WorktreeError(
                f"{file} is in no git repository that can be read ({error}); revisions can be "
                "compared only where there is one."
            ) from None

    def commit(self, revision: str) -> str | None:
        """Return the whole hash that a revision names; None if it names no commit."""
        words = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
        try:
            return _git(self.root, *words) or None
        except WorktreeError:
            return None

    def full_hash(self, revision: str) -> str:
        """Return the whole hash that a revision names. Raises WorktreeError where it names no
        commit."""
        if (result := self.commit(revision)) is not None:
            return result
        raise WorktreeError(f"{revision!r} names no commit of {self.title()}.")

    def title(self) -> str:
        """Return the root and how to list or fetch its commits, for a sentence on a missing one."""
        if _git(self.root, "rev-parse", "--is-shallow-repository") == "true":
            fetch = "git fetch --unshallow --tags origin '+refs/heads/*:refs/remotes/origin/*'"
            return f"{self.root}, which is a shallow clone; fetch the rest: {fetch}"
        return f"{self.root}; `git log --all` lists those that it has"

    def output(self, *arguments: str) -> str:
        """Return the output of a git command that reads this repository. Raises WorktreeError where
        git fails."""
        return _git(self.root, *arguments)

    def relative_path(self, file: Path) -> Path:
        """Return a file's path from the root. Raises WorktreeError where it is outside the
        repository."""
        try:
            return file.resolve().relative_to(self.root)
        except ValueError:
            raise WorktreeError(
                f"{file} lies outside the repository {self.root}; name a file in it."
            ) from None

    def changed_since(self, revision: str) -> list[Path]:
        """Return the Python files that differ from a revision or are new, as paths from the
        root."""
        commit = self.full_hash(revision)
        kinds = ("--name-only", "--diff-filter=d", "-z")
        changed = _git(self.root, "diff", *kinds, commit, "--", "*.py")
        named = {Path(name) for name in changed.split("\0") if name}
        return sorted(named | self.untracked_files())

    def removed_since(self, revision: str) -> list[Path]:
        """Return the Python files that a revision has and the work tree lacks, as paths from the
        root."""
        kinds = ("--name-only", "--no-renames", "--diff-filter=D", "-z")
        named = _git(self.root, "diff", *kinds, self.full_hash(revision), "--", "*.py")
        return [Path(name) for name in named.split("\0") if name]

    def renamed_since(self, revision: str, *to: str) -> dict[Path, Path]:
        """Return the Python files of the work tree, or of another commit, that a revision has under
        another name, each with that name, as paths from the root. git tells them by what they have
        in common."""
        kinds = ("--find-renames", "--name-status", "--diff-filter=R", "-z")
        named = _git(self.root, "diff", *kinds, self.full_hash(revision), *to, "--", "*.py").split(
            "\0"
        )
        return dict(zip(map(Path, named[2::3]), map(Path, named[1::3]), strict=False))

    def text_at(self, revision: str, file: Path) -> str:
        """Return the text of a file at a revision, by its path from the root; empty where there was
        none."""
        try:
            return _git(self.root, "show", f"{self.full_hash(revision)}:{file.as_posix()}")
        except WorktreeError:
            return ""

    def tracked_files(self) -> set[Path]:
        """Return the Python files that git tracks, as paths from the root."""
        every = _git(self.root, "ls-files", "-z", "--", "*.py")
        return {Path(name) for name in every.split("\0") if name}

    def untracked_files(self) -> set[Path]:
        """Return the Python files that git does not track and does not ignore, as paths from the
        root."""
        new = _git(self.root, "ls-files", "--others", "--exclude-standard", "-z", "--", "*.py")
        return {Path(name) for name in new.split("\0") if name}

    def links(self, commit: str) -> list[Path]:
        """Return the symbolic links of a commit, as paths from the root."""
        every = _git(self.root, "ls-tree", "-r", "-z", "--full-tree", commit)
        entries = (entry.partition("\t") for entry in every.split("\0") if entry)
        return [Path(name) for kind, _, name in entries if kind.startswith("120000 ")]


@dataclass
class Worktrees(Closing):
    """Checkouts of other commits; all are removed after the `with` block, however it ends. Those of
    a process that was killed are removed by the next one that makes a checkout."""

    repository: Repository
    _folder: Path | None = None
    _lock: int | None = None
    _folders: dict[str, Path] = field(default_factory=dict)

    def root(self, revision: str) -> Path:
        """Return the root of a checkout of this revision; that of the user's own files for WORKING.

        A link of the commit into the work tree leads into the checkout instead: the files of the
        revision must not be those of the user. Raises WorktreeError where git fails.
        """
        if revision == WORKING:
            return self.repository.root
        commit = self.repository.full_hash(revision)
        if commit not in self._folders:
            if self._folder is None:
                _remove_leftovers(self.repository.root)
                self._folder = Path(mkdtemp(prefix=FOLDER)).resolve()
                self._lock = lock_folder(self._folder)
            path = self._folder / commit[:12]
            self._folders[commit] = path  # before git begins, so that it is removed in any case
            # no hooks: a post-checkout hook may write anywhere
            _git(
                self.repository.root,
                "-c",
                f"core.hooksPath={os.devnull}",
                "worktree",
                "add",
                "--detach",
                "--quiet",
                str(path),
                commit,
            )
            for link in self.repository.links(commit):
                _redirect(path, link, self.repository.root)
        return self._folders[commit]

    def drop(self, revision: str) -> None:
        """Remove the checkout of a revision before the end; nothing if there is none, or for
        WORKING. Ctrl-C is deferred."""
        commit = None if revision == WORKING else self.repository.commit(revision)
        if commit in self._folders:
            with Interrupts() as interrupts, interrupts.later():
                self._remove_one(commit)

    def file(self, revision: str, within: Path) -> Path | None:
        """Return a file of a revision by its path from the root, or by the one that it had there
        before it was renamed; None if that revision lacks it. Raises WorktreeError for a link that
        leads nowhere, or to files of the work tree."""
        root = self.root(revision)
        path = root / within
        if path.is_symlink() and not path.exists():
            raise WorktreeError(f"{within} is a link that leads nowhere at {revision}; correct it.")
        real = path.resolve()
        ours = self.repository.root
        if revision != WORKING and real.is_relative_to(ours) and not real.is_relative_to(root):
            raise WorktreeError(
                f"{within} at {revision} leads to {real} in the work tree, so it is not a file of "
                "that revision; make the link relative."
            )
        if path.is_file() or revision == WORKING:
            return path if path.is_file() else None
        before = self.repository.renamed_since(revision).get(within)
        return None if before is None else self.file(revision, before)

    def close(self) -> None:
        """Remove all checkouts and their entries in the repository. Ctrl-C is deferred to the
        end."""
        with Interrupts() as interrupts, interrupts.later():
            self._remove()

    def _remove(self) -> None:
        for commit in list(self._folders):
            self._remove_one(commit)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            _quietly(self.repository.root, "worktree", "prune")  # forget removed folders
            self._folder = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _remove_one(self, commit: str) -> None:
        path = str(self._folders[commit])
        try:
            _git(self.repository.root, "worktree", "remove", "--force", "--force", path)
        except WorktreeError:  # git was interrupted while it created the checkout
            shutil.rmtree(path, ignore_errors=True)
        del self._folders[commit]


def _redirect(checkout: Path, link: Path, root: Path) -> None:
    """Let a link of a checkout lead where the same link of the work tree leads, with the files of
    the checkout in place of those of the work tree."""
    here = checkout / link
    if not here.is_symlink():  # git writes files where there are no links
        return
    target = os.readlink(here)
    from_root = os.path.normpath(os.path.join(link.parent, target))
    if not os.path.isabs(target) and not from_root.startswith(".."):
        return
    there = Path(os.path.normpath(root / from_root))  # as in the work tree
    for path in (there, Path(os.path.realpath(there))):
        if path.is_relative_to(root):
            there = checkout / path.relative_to(root)
            break
    here.unlink()
    here.symlink_to(there)


def _remove_leftovers(root: Path) -> None:
    """Remove the checkouts of processes that were killed."""
    listed = _git(root, "worktree", "list", "--porcelain").splitlines()
    folders = {Path(line[9:]).parent for line in listed if line.startswith("worktree ")}
    for folder in folders | set(Path(gettempdir()).glob(f"{FOLDER}*")):
        if not folder.name.startswith(FOLDER) or (handle := lock_of_dead(folder)) is None:
            continue
        for path in [p for p in folder.iterdir() if p.is_dir()]:
            _quietly(root, "worktree", "remove", "--force", "--force", str(path))
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)
        _quietly(root, "worktree", "prune")


def _git(folder: Path, *arguments: str) -> str:
    """Return the output of git. Raises WorktreeError with its last line."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",  # a name of a file may hold any bytes
            check=False,
            env=_surroundings(),
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # so that Ctrl-C does not reach git, which would stop half way
        )
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise WorktreeError(f"git cannot be run: {reason}; install it.") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise WorktreeError(f"git {arguments[0]}: {last.removeprefix('fatal: ').rstrip('.')}")
    return done.stdout.rstrip("\n")


def _quietly(folder: Path, *arguments: str) -> None:
    try:
        _git(folder, *arguments)
    except WorktreeError:
        return


def _surroundings() -> Mapping[str, str]:
    """Return the environment without variables that name another repository or index: inside a git
    hook GIT_DIR and GIT_INDEX_FILE would direct every command at the user's own."""
    variables = {k: v for k, v in os.environ.items() if k not in _local_names()}
    return {**variables, "GIT_OPTIONAL_LOCKS": "0"}  # `git diff` would refresh the user's index


@lru_cache(maxsize=1)
def _local_names() -> frozenset[str]:
    """Return the names of these variables as git lists them."""
    try:
        command = ["git", "rev-parse", "--local-env-vars"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return frozenset()
    return frozenset(done.stdout.split())
