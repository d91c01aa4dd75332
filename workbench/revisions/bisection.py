"""Drive `git bisect` in a checkout of its own: the user's files, index and bisect state stay."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from workbench.revisions.worktree import Repository, WorktreeError

SHORT = 12  # digits of a commit in names and messages
Mark = Literal["good", "bad", "skip"]


@dataclass(frozen=True)
class Decision:
    """What became of one commit. `ratio` is its time over GOOD's, None where nothing was timed."""

    mark: Mark
    reason: str  # one sentence without a dot, or a verdict's words
    ratio: float | None = None


@dataclass(frozen=True)
class BisectStep:
    """One commit that was tried."""

    commit: str
    subject: str
    decision: Decision


@dataclass
class Bisection:
    """A search for the first bad commit between two. `folder` is a checkout of the repository that
    nothing else uses; with it the search's state goes."""

    repository: Repository
    folder: Path
    good: str  # whole hashes
    bad: str
    steps: list[BisectStep] = field(default_factory=list)
    candidates: list[str] = field(default_factory=list)  # the newest first

    @classmethod
    def check(cls, repository: Repository, good: str, bad: str) -> tuple[str, str]:
        """Return the whole hashes of both. Raises WorktreeError where GOOD does not lead to BAD."""
        first, last = repository.full_hash(good), repository.full_hash(bad)
        if first == last:
            raise WorktreeError(f"{good} and {bad} are the same commit; name two.")
        try:
            repository.output("merge-base", "--is-ancestor", first, last)
        except WorktreeError:
            raise WorktreeError(
                f"{good} is not an ancestor of {bad}, so no commit between them made it "
                f"slower; name "
                f"an older one, such as the one that `git merge-base {good} {bad}` prints."
            ) from None
        return first, last

    def search(
        self, decide: Callable[[str], Decision], tell: Callable[[BisectStep, int], None]
    ) -> list[str]:
        """Return the commits of which one is the first bad one: one, or several where the others
        could not be decided. `decide` is called with each commit that git chooses, and `tell` with
        the result and the number of steps that are left, about. Raises WorktreeError."""
        self._git("bisect", "start", "--no-checkout", self.bad, self.good)
        self._look()
        while not self.is_over:
            commit = self._git("rev-parse", "--verify", "BISECT_HEAD")
            if any(step.commit == commit for step in self.steps):
                break  # git offers none that is new
            step = BisectStep(commit, subject_of(self.repository, commit), decide(commit))
            self.steps.append(step)
            self._mark(step)
            left = 0 if self.is_over else math.ceil(math.log2(len(self.candidates)))
            tell(step, left)
        return self.candidates

    def _mark(self, step: BisectStep) -> None:
        try:
            self._git("bisect", step.decision.mark, step.commit)
        except WorktreeError:
            self._look()
            if not self.is_over:  # git fails, too, where only skipped commits are left
                raise
        self._look()

    def _look(self) -> None:
        """Read which commits may be the first bad one."""
        good = self._git("for-each-ref", "--format=%(objectname)", "refs/bisect/good-*").split()
        self.candidates = self._git("rev-list", "refs/bisect/bad", "--not", *good).split()

    @property
    def is_over(self) -> bool:
        """Whether one candidate is left, or every other one was skipped."""
        skipped = {step.commit for step in self.steps if step.decision.mark == "skip"}
        return len([c for c in self.candidates[1:] if c not in skipped]) == 0

    def _git(self, *arguments: str) -> str:
        return Repository(self.folder).output(*arguments)


def subject_of(repository: Repository, commit: str) -> str:
    """Return the subject of a commit."""
    return repository.output("log", "-1", "--format=%s", commit)


def describe(repository: Repository, commit: str, file: Path) -> dict[str, str]:
    """Return hash, subject, author's date and what the commit changed in the kernel's file, and in
    other files."""
    form = "--format=%H%x1f%aI%x1f%s"
    whole, date, subject = repository.output("log", "-1", form, commit).split("\x1f", 2)
    show = ("--literal-pathspecs", "show", "--format=", "--shortstat", "--first-parent", commit)
    return {
        "commit": whole,
        "subject": subject,
        "date": date,
        "kernel_file": repository.output(*show, "--", str(file)).strip() or "not changed",
        "all_files": repository.output(*show).strip() or "not changed",
    }
