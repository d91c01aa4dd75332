"""Read the commits of a repository for the site of the history: order, branches, subjects, and what
lies between two commits."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from workbench.revisions.series import CommitOrder
from workbench.revisions.worktree import Repository, WorktreeError

MOST_BRANCHES = 40  # with the newest commits; each takes a call of git
LISTED = 30  # commits between two measured ones that are listed; the others are counted
_MAIN = ("origin/main", "origin/master", "main", "master")


@dataclass(frozen=True)
class CommitText:
    """A commit as pages show it."""

    hash: str
    date: str  # of the author, 2026-11-24
    subject: str
    touches: bool = False  # whether it changes the kernel's file


@dataclass(frozen=True)
class Between:
    """Commits after one and up to another, the newest first; `more` are not listed. `file` is what
    became of the kernel's file, empty if that is not known."""

    commits: tuple[CommitText, ...] = ()
    more: int = 0
    file: str = ""


@dataclass
class Commits:
    """What a repository says of measured commits. Without a repository it says nothing."""

    repository: Repository | None
    order: CommitOrder = field(default_factory=CommitOrder)
    texts: Mapping[str, CommitText] = field(default_factory=dict)
    main: str = ""  # the branch that is shown first
    left_out: int = 0  # branches beyond MOST_BRANCHES
    _intervals: dict[tuple[str, str, str], Between] = field(default_factory=dict)

    @classmethod
    def read(cls, repository: Repository | None, measured: Collection[str]) -> Commits:
        """Return the commits of a repository, with the branches that hold measured ones. Raises
        WorktreeError where git fails."""
        if repository is None:
            return cls(None)
        texts = _texts(repository)
        if not texts.keys() & set(measured):
            return cls(repository)
        names = _branches(repository)
        branches = {}
        for name in names[:MOST_BRANCHES]:
            hashes = repository.output("rev-list", "--end-of-options", f"refs/{name}").split()
            if own := frozenset(hashes) & frozenset(measured):
                branches[_short(name)] = own
        places = {commit: n for n, commit in enumerate(texts) if commit in set(measured)}
        main = _main_of(repository, branches)
        left_out = max(0, len(names) - MOST_BRANCHES)
        return cls(repository, CommitOrder(places, branches), texts, main, left_out)

    def interval(self, old: str, new: str, file: str) -> Between:
        """Return the commits after `old` up to `new`, and what became of the kernel's file; nothing
        where the repository does not hold both."""
        key = (old, new, file)
        if key not in self._intervals:
            self._intervals[key] = self._read_between(*key)
        return self._intervals[key]

    def _read_between(self, old: str, new: str, file: str) -> Between:
        if self.repository is None or old not in self.texts or new not in self.texts:
            return Between()
        span = f"{old}..{new}"
        try:
            hashes = self.repository.output("rev-list", span).split()
            touching: set[str] = set()
            stat = ""
            if file and self._holds(new, file):
                ask = partial(self.repository.output, "--literal-pathspecs")
                before = self.repository.renamed_since(old, new).get(Path(file))
                names = (file, str(before)) if before else (file,)
                touching = set(ask("rev-list", span, "--", *names).split())
                stat = ask("diff", "--shortstat", "--find-renames", old, new, "--", *names)
                stat = f"{file}: {stat.strip() or 'not changed'}"
        except WorktreeError:
            return Between()
        some = sorted(hashes, key=lambda h: h not in touching)[:LISTED]  # those that touch it first
        commits = [self._text(h, h in touching) for h in hashes if h in set(some)]
        return Between(tuple(commits), len(hashes) - len(commits), stat)

    def _text(self, commit: str, touches: bool) -> CommitText:
        text = self.texts[commit]
        return CommitText(commit, text.date, text.subject, touches)

    def _holds(self, commit: str, file: str) -> bool:
        assert self.repository is not None
        listed = ("ls-tree", "--name-only", commit, "--", file)
        return bool(self.repository.output("--literal-pathspecs", *listed))


def repository_at(folder: Path) -> Repository | None:
    """Return the repository that holds a folder; None if there is none."""
    try:
        return Repository.find(folder)
    except WorktreeError:
        return None


def _texts(repository: Repository) -> dict[str, CommitText]:
    """Return all commits that a ref reaches, parents before children."""
    form = "--format=%H%x1f%as%x1f%s"
    lines = repository.output("log", "--all", "--topo-order", "--reverse", "-z", form).split("\0")
    parts = [line.split("\x1f", 2) for line in lines if line.count("\x1f") >= 2]
    return {commit: CommitText(commit, date, subject) for commit, date, subject in parts}


def _branches(repository: Repository) -> list[str]:
    """Return the branches as `heads/main` and `remotes/origin/main`, the newest commit first."""
    options = ("--sort=-committerdate", "--format=%(refname)", "refs/heads", "refs/remotes")
    names = repository.output("for-each-ref", *options).splitlines()
    return [name.removeprefix("refs/") for name in names if not name.endswith("/HEAD")]


def _short(name: str) -> str:
    return name.partition("/")[2]


def _main_of(repository: Repository, branches: Mapping[str, Collection[str]]) -> str:
    """Return the branch to show first: the remote's own, main or master, else the one that is
    checked out, else the one with most measured commits; empty without any."""
    named = []
    for ref in ("refs/remotes/origin/HEAD", "HEAD"):
        try:
            named.append(repository.output("symbolic-ref", "--short", "--quiet", ref))
        except WorktreeError:  # detached, or no remote
            named.append("")
    names = [named[0], *_MAIN, named[1]]
    first = next((name for name in names if name in branches), None)
    return first or max(branches, key=lambda name: len(branches[name]), default="")
