"""Impls of one kernel over its sizes and dtypes, against its baselines: the `measure` command."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from workbench import catalog
from workbench.backend.protocol import Backend, Candidate, Measures, Problem, Refusal, Timed
from workbench.commands.comparison import opened_run
from workbench.commands.operands import Side, sides_of
from workbench.commands.options import (
    SessionError,
    backend_for,
    repository_of,
    sizes_of,
    undisturbed,
    writable,
)
from workbench.compile import Compiled
from workbench.data.database import open_history
from workbench.data.events import EventLog, RunState
from workbench.data.interrupts import Interrupts
from workbench.data.record import Failure, Outcome, Phase, Record, Run
from workbench.data.store import Store
from workbench.reports import drawn_at_least, write_page
from workbench.spec import Impl, Spec, sizes_text
from workbench.tuner import tuned
from workbench.tuner.space import Identity

if TYPE_CHECKING:
    from rich.console import Console

Opened = Callable[[str | None, Path], Backend]  # `backend_for`, or a test's own


@dataclass(frozen=True)
class Question:
    """What `measure` was asked, in the words of the command line. Empty means all."""

    kernel: str
    impls: tuple[str, ...] = ()  # `tiles` or `tiles:block_m=128`
    sizes: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ("bf16",)
    device: str | None = None
    out: Path = Path("results")
    database: str | None = None
    strict: bool = False  # refuse where others use the GPU
    winners: Path | None = None  # the file of tuned configs; None: the user's own

    @property
    def command(self) -> str:
        """The exact command that asks this again."""
        words = ["workbench", "measure", self.kernel]
        for option, many in (("impl", self.impls), ("sizes", self.sizes), ("dtype", self.dtypes)):
            for value in many:
                words += [f"--{option}", value]
        return shlex.join(words + (["--device", self.device] if self.device else []))


@dataclass
class Timing:
    """A measurement from the question to the page."""

    question: Question
    console: Console
    opened: Opened | None = None
    outcomes: list[Outcome] = field(default_factory=list)
    origins: dict[str, str] = field(default_factory=dict)  # where a config is from, by key

    def go(self) -> int:
        """Run to the end. Returns the exit code: 0; 2 where nothing gave a time; 130 after Ctrl-C.

        Raises the errors of the parts, each of which is one sentence.
        """
        asked = self.question
        spec = catalog.spec_of(asked.kernel)
        problems = problems_of(asked, spec)
        sides = [sides_of((said, said), None, spec, None)[0] for said in asked.impls]
        winners = tuned.Tuned.load(asked.winners or tuned.default_path())
        writable(asked.out)
        with ExitStack() as stack:
            history = stack.enter_context(open_history(asked.database))
            interrupts = stack.enter_context(Interrupts())
            backend = (self.opened or backend_for)(asked.device, repository_of(asked.kernel))
            stack.callback(backend.close)
            undisturbed(backend, self.question.strict)
            picks = Picks(sides, winners, backend)
            return self._go(problems, picks, backend, Store(history, interrupts))

    def _go(self, problems: Sequence[Problem], picks: Picks, backend: Backend, store: Store) -> int:
        asked = self.question
        whole = replace(
            asked, sizes=tuple(dict.fromkeys(sizes_text(p.sizes) for p in problems)),
            dtypes=tuple(dict.fromkeys(p.dtype for p in problems)),
            device=backend.device.name if backend.predicts else None,
        )  # fmt: skip
        named = ", ".join(dict.fromkeys(picks.names(problems[0].spec)))
        begun = opened_run("measure", named, whole.command, backend, problems)
        self._say_begin(begun)
        folder = asked.out / begun.id
        with (
            EventLog(folder / "events.jsonl") as log,
            drawn_at_least(lambda: self._draw(begun, folder)),
        ):
            state, run = self._obtain(problems, picks, begun, backend, store, log)
        self.console.print(f"report  {self._draw(run, folder).resolve()}", soft_wrap=True)
        if state == "interrupted":
            return 130
        return 0 if any(isinstance(o, Record) for o in self.outcomes) else 2

    def _obtain(
        self, problems: Sequence[Problem], picks: Picks, run: Run, backend: Backend, store: Store,
        log: EventLog,
    ) -> tuple[RunState, Run]:  # fmt: skip
        """Every problem in turn, each stored and told before the next."""
        begun, state = False, "complete"
        try:
            for problem in problems:
                course = Course(Identity(run, problem, backend.protocol), backend, picks)
                ceilings = course.begin()
                if not begun:
                    run = replace(run, ceilings={**run.ceilings, **ceilings})
                    store.begin(run, log)
                    begun = True
                found = []
                for outcome in course.outcomes():
                    store.keep(outcome)
                    self.outcomes.append(outcome)
                    found.append(outcome)
                self.origins.update(course.origins)
                self._say(run, found)
        except KeyboardInterrupt:
            state = "interrupted"
        if not begun:
            store.begin(run, log)
        counts = Counter[str](o.phase if isinstance(o, Record) else o.stage for o in self.outcomes)
        ended: RunState = "complete" if state == "complete" else "interrupted"
        store.end(ended, counts, dict(backend.spent))
        return ended, run

    def _draw(self, run: Run, folder: Path) -> Path:
        from workbench.reports.measure import page

        return write_page(folder / "report.html", page(run, self.outcomes))

    def _say_begin(self, run: Run) -> None:
        from workbench.commands.console import plan_line

        self.console.print(plan_line(run), style="bold yellow" if run.predicted else "bold")
        if run.predicted:
            self.console.print("Baselines have no prediction, so there is none to stand beside.")

    def _say(self, run: Run, found: Sequence[Outcome]) -> None:
        from workbench.reports.measure import show_group

        show_group(self.console, run, found, self.origins)


@dataclass
class Picks:
    """Which Impls take part, and each at which config: as asked, else tuned, else the default."""

    sides: Sequence[Side]
    winners: tuned.Tuned
    backend: Backend

    def names(self, spec: Spec) -> list[str]:
        """Of the Impls asked for; all Triton ones where none was."""
        return [s.impl or "" for s in self.sides] or [
            i.name for i in spec.impls if i.backend == "triton"
        ]

    def of(self, problem: Problem) -> Iterator[tuple[Impl, Any, str]]:
        """Impl, config and where the config is from; the library's versions come last."""
        spec, limits = problem.spec, self.backend.device.limits
        for side in self.sides or [Side(name) for name in self.names(spec)]:
            impl, config = side.chosen(spec, limits, problem.dtype, problem.sizes)
            origin = "as asked" if side.knobs else "default"
            if not side.knobs and (entry := self._tuned(impl, problem)) is not None:
                config, origin = impl.config(**entry.config), f"tuned {entry.at[:10]}"
            yield impl, config, origin
        asked = {side.impl for side in self.sides}
        for impl in spec.impls:
            if impl.backend != "torch" or impl.name in asked or self.backend.predicts:
                continue
            config = impl.config()
            if impl.rejection_reason(config, limits, problem.dtype, problem.sizes) is None:
                yield impl, config, "library"

    def _tuned(self, impl: Impl, problem: Problem) -> tuned.Entry | None:
        if self.backend.predicts or impl.backend != "triton":
            return None
        return self.winners.find(
            problem.spec.name, impl.name, problem.sizes, problem.dtype, self.backend.device.name,
            self.backend.environment.versions, tuned.source_of(impl),
        )  # fmt: skip


@dataclass
class Course:
    """One problem: compile, then all against each other cold, then each on hot data."""

    identity: Identity
    backend: Backend
    picks: Picks
    origins: dict[str, str] = field(default_factory=dict)
    _todo: list[Candidate] = field(default_factory=list)
    _why: dict[str, Refusal] = field(default_factory=dict)

    def begin(self) -> Mapping[str, Mapping[str, Any]]:
        """Get ready; the ceilings that were measured."""
        problem = self.identity.problem
        limits, first_impl = self.backend.device.limits, problem.spec.impls[0]
        default = first_impl.default(limits, problem.dtype, problem.sizes)
        for impl, config, origin in self.picks.of(problem):
            first = impl is first_impl and config == default
            candidate = self.identity.candidate(impl, config, first)
            self.origins[candidate.key] = origin
            self._todo.append(candidate)
            if (why := self._refused(candidate)) is not None:
                self._why[candidate.key] = Refusal("refused", why)
        try:
            return self.backend.begin(problem, self._to_compile())
        except RuntimeError as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            refusal = Refusal("measure", lines[0], own=False)
            self._why = {c.key: refusal for c in self._todo}
            return {}

    def _refused(self, candidate: Candidate) -> str | None:
        problem, limits = self.identity.problem, self.backend.device.limits
        impl, config = candidate.impl, candidate.config
        return impl.rejection_reason(config, limits, problem.dtype, problem.sizes)

    def _to_compile(self) -> list[Candidate]:
        return [c for c in self._todo if c.impl.backend == "triton" and c.key not in self._why]

    def outcomes(self) -> Iterator[Outcome]:
        """Every outcome. What cannot run is an outcome too."""
        made: dict[str, Compiled] = {}
        for candidate, found in self.backend.compiled(self._to_compile()):
            if isinstance(found, Refusal):
                self._why[candidate.key] = found
            else:
                made[candidate.key] = found
        for candidate in self._todo:
            if (why := self._why.get(candidate.key)) is not None:
                yield self.identity.failure(candidate, why, made.get(candidate.key))
        ready = [c for c in self._todo if c.key not in self._why]
        yield from (self._predicted if self.backend.predicts else self._measured)(ready, made)

    def _predicted(
        self, ready: Sequence[Candidate], made: Mapping[str, Compiled]
    ) -> Iterator[Outcome]:
        waiting = [(c, self.backend.timed(c, made[c.key], None)) for c in ready]
        for candidate, future in waiting:
            yield self._outcome(candidate, future.result(), "predict", made)

    def _measured(
        self, ready: Sequence[Candidate], made: Mapping[str, Compiled]
    ) -> Iterator[Outcome]:
        if not ready:
            return
        measures = cast(Measures, self.backend)
        finals = measures.final(ready, [0.0] * len(ready))  # no estimate: it is made there
        right = []
        for candidate, found in zip(ready, finals, strict=True):
            outcome = self._outcome(candidate, found, "final", made)
            right += [] if isinstance(outcome, Failure) else [candidate]
            yield outcome
        for candidate in right:
            found = measures.hot(candidate)
            if isinstance(found, Timed):
                yield self._outcome(candidate, found, "hot", made)

    def _outcome(
        self, candidate: Candidate, found: Timed | Refusal, phase: Phase,
        made: Mapping[str, Compiled],
    ) -> Outcome:  # fmt: skip
        return self.identity.outcome(candidate, found, phase, made.get(candidate.key))


def problems_of(asked: Question, spec: Spec) -> list[Problem]:
    """Each size with each dtype. Raises SessionError."""
    for dtype in asked.dtypes:
        if dtype not in spec.tolerance:
            raise SessionError(catalog.unknown("dtype", dtype, spec.tolerance))
    sizes = [sizes_of(spec, text) for text in asked.sizes] or [dict(s) for s in spec.bench]
    pairs = product(sizes, dict.fromkeys(asked.dtypes))
    return [Problem(asked.kernel, spec, extents, dtype) for extents, dtype in pairs]
