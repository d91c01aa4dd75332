"""Two sides against each other on the GPU: what the `compare` command does."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, cast

from workbench import catalog
from workbench.backend.protocol import Backend, Measures, Problem
from workbench.commands.comparison import Corner, Ring, opened_run, say_begin, show_bout
from workbench.commands.operands import Side, is_run, kernel_of, repository_with, sides_of
from workbench.commands.options import (
    SessionError,
    backend_for,
    gpu_present,
    repository_of,
    sizes_of,
    undisturbed,
    writable,
)
from workbench.commands.worktree import Worktrees
from workbench.data import verdict
from workbench.data.database import History, open_history
from workbench.data.events import EventLog
from workbench.data.interrupts import Interrupts
from workbench.data.record import Comparison, Measured, Record, Run
from workbench.data.store import Store
from workbench.measurement.protocol import Protocol
from workbench.reports import drawn_at_least, write_page
from workbench.spec import label, sizes_text
from workbench.tuner.selection import answer
from workbench.tuner.space import Identity

if TYPE_CHECKING:
    from rich.console import Console

Opened = Callable[[str | None, Path], Backend]  # `backend_for`, or a test's own


class ContestError(Exception):
    """One sentence: why nothing can be compared, and what to do next."""


@dataclass(frozen=True)
class Question:
    """What `compare` was asked, in the words of the command line."""

    left: str
    right: str
    kernel: str | None = None
    impl: str | None = None
    sizes: str | None = None
    dtype: str = "bf16"
    threshold: float = Protocol().asked
    out: Path = Path("results")
    database: str | None = None
    strict: bool = False  # refuse where others use the GPU

    @property
    def command(self) -> str:
        """The exact command that asks this again."""
        words = ["workbench", "compare", self.left, self.right]
        said = {"kernel": self.kernel, "impl": self.impl, "sizes": self.sizes,
                "dtype": self.dtype, "threshold": f"{self.threshold:g}"}  # fmt: skip
        for option, value in said.items():
            if value is not None:
                words += [f"--{option}", value]
        return shlex.join(words)


@dataclass
class Match:
    """One comparison from the question to the page."""

    question: Question
    console: Console
    opened: Opened | None = None

    def go(self) -> int:
        """Run to the end. Returns the exit code of the verdict (see `compare.exit_code`), or 130
        after Ctrl-C. Raises the errors of the parts, each of which is one sentence."""
        asked = self.question
        if is_run(asked.left) and is_run(asked.right):
            return suspect(asked, self.console)
        kernel = kernel_of(asked.left, asked.right, asked.kernel)
        spec = catalog.spec_of(kernel)
        if asked.dtype not in spec.tolerance:
            raise SessionError(catalog.unknown("dtype", asked.dtype, spec.tolerance))
        problem = Problem(kernel, spec, sizes_of(spec, asked.sizes), asked.dtype)
        repository = repository_with(kernel)
        sides = sides_of((asked.left, asked.right), asked.impl, spec, repository)
        writable(asked.out)
        needs_gpu(self.opened)
        with ExitStack() as stack:
            trees = stack.enter_context(Worktrees(repository)) if repository else None
            history = stack.enter_context(open_history(asked.database))
            interrupts = stack.enter_context(Interrupts())
            backend = (self.opened or backend_for)(None, repository_of(kernel))
            stack.callback(backend.close)
            undisturbed(backend, self.question.strict)
            return self._go(problem, sides, trees, backend, Store(history, interrupts))

    def _go(
        self, problem: Problem, sides: tuple[Side, Side], trees: Worktrees | None,
        backend: Backend, store: Store,
    ) -> int:  # fmt: skip
        asked = self.question
        versions = sides[0].revision != sides[1].revision
        whole = replace(asked, kernel=problem.kernel, sizes=sizes_text(problem.sizes))
        run = opened_run("compare", "versions" if versions else "impls", whole.command, backend,
                      [problem])  # fmt: skip
        corner = Corner(Identity(run, problem, backend.protocol), backend.device.limits, trees)
        file = catalog.module_of(problem.kernel).__file__
        bout = corner.bout(sides, Path(file) if file else None)
        say_begin(self.console, run, asked.threshold)
        folder = asked.out / run.id
        with EventLog(folder / "events.jsonl") as log:
            ring = Ring(cast(Measures, backend), store, run, log, asked.threshold)
            with drawn_at_least(lambda: ring.draw(folder)):
                state = ring.hold_all([bout], lambda s: show_bout(self.console, s, ring.run))
        if state == "interrupted":
            return 130
        self.console.print(f"report  {ring.draw(folder).resolve()}", soft_wrap=True)
        return verdict.exit_code([c.verdict for c in ring.comparisons])


def needs_gpu(opened: Opened | None) -> None:
    """Raises ContestError where nothing can be measured."""
    if opened is None and not gpu_present():
        raise ContestError(
            "Comparing needs a GPU that torch sees, and there is none here; run it where there is "
            "one, or name two stored runs (`workbench history` lists them)."
        )


# Stored runs


def suspect(asked: Question, console: Console) -> int:
    """What two stored runs hint at: the winner of the right one over that of the left. They were
    not interleaved, so nothing is measured, and nothing stored beyond the page.

    Returns the exit code. Raises ContestError, HistoryError or compare.Incomparable.
    """
    writable(asked.out)
    with open_history(asked.database) as history:
        left, right = (_winner(history, which, asked) for which in (asked.left, asked.right))
        run = history.run(right.run)
    for what in ("kernel", "device", "dtype", "sizes"):
        a, b = getattr(left.case, what), getattr(right.case, what)
        if a != b:
            raise ContestError(
                f"{asked.left} and {asked.right} differ in {what} ({_said(a)} and {_said(b)}); "
                "name runs of one problem on one device."
            )
    assert isinstance(left.timing, Measured) and isinstance(right.timing, Measured)
    found = verdict.suspected(left.timing, right.timing, asked.threshold)
    names = tuple(f"{r.case.impl} {label(r.case.config)} of {r.run}" for r in (left, right))
    said = f"{found.word[:1].upper()}{found.word[1:]}: {names[1]} against {names[0]}: {found.why}."
    page = _suspicion_page(asked, run, (left, right), (names[0], names[1]), said)
    console.print(said, style="bold")
    console.print(f"report  {page.resolve()}", soft_wrap=True)
    return verdict.exit_code([found])


def _winner(history: History, which: str, asked: Question) -> Record:
    """The measured winner of a run, of `--impl` and at `--sizes` where they are named."""
    run = history.run(which)
    sizes = sizes_of(catalog.spec_of(run.source), asked.sizes) if asked.sizes else run.sizes
    if not sizes:
        raise ContestError(f"{run.id} holds several sizes; name one with --sizes.")
    outcomes = [
        o for o in history.outcomes(run.id) if asked.impl is None or o.case.impl == asked.impl
    ]
    dtype = run.dtype if "," not in run.dtype else asked.dtype
    won = answer(replace(run, sizes=sizes, dtype=dtype), outcomes).winner
    if won is None or not won.measured:
        raise ContestError(
            f"{run.id} holds no measured time that could be compared; name a run of `sweep` or "
            "`measure` on a GPU."
        )
    return won


def _suspicion_page(
    asked: Question, of: Run, sides: tuple[Record, Record], names: tuple[str, str], said: str
) -> Path:
    from workbench.reports.compare import page

    now = datetime.now(UTC)
    identity = f"{now:%Y%m%d-%H%M%S}-compare-{of.kernel}-{secrets.token_hex(2)}"
    run = replace(of, id=identity, engine="compare", name="runs", command=asked.command,
                  started=now.isoformat(timespec="milliseconds"))  # fmt: skip
    # one config in both runs has one key, and the page tells sides apart by theirs
    left, right = (replace(r, key=place) for r, place in zip(sides, ("left", "right"), strict=True))
    case = right.case
    told = Comparison(run.id, run.started, case.kernel, case.sizes, case.dtype, *names, left.key,
                      right.key, None)  # fmt: skip
    return write_page(asked.out / run.id / "report.html", page(run, [left, right], [told], said))


def _said(value: object) -> str:
    return sizes_text(value) if isinstance(value, dict) else str(value)
