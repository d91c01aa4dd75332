"""One sweep from the question to the page: what the `sweep` command does.

Every outcome is in the events file and in the database before the next is looked at, and the page
is written from what is there however the sweep ends.
"""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from workbench.backend.protocol import Backend, Problem
from workbench.commands.console import Terminal
from workbench.commands.options import (
    Question,
    SessionError,
    backend_for,
    default_hunt,
    hunt_of,
    most_of,
    problems_of,
    repository_of,
    sweep_named,
    undisturbed,
    writable,
)
from workbench.data.database import open_history
from workbench.data.events import EventLog, KernelDispatched, OpCompleted, RunFinished, RunState
from workbench.data.interrupts import Interrupts
from workbench.data.record import Failure, Measured, Outcome, Record, Run
from workbench.data.store import Store
from workbench.device import hardware
from workbench.reports import write_page
from workbench.spec import Impl, Knob, label, sizes_text, values
from workbench.sweeps import Sweep
from workbench.tuner import tuned
from workbench.tuner.engine import Engine, Split
from workbench.tuner.finals import Step
from workbench.tuner.first_pass import Compilation, Hunt
from workbench.tuner.portfolio import PortfolioError, portfolio
from workbench.tuner.resume import covering_run, earlier_outcomes, measured_ceilings
from workbench.tuner.selection import answer, on_one_footing, sentence
from workbench.tuner.space import Earlier, Plan, plan

if TYPE_CHECKING:
    from workbench.backend.prewarm import Ahead


@dataclass
class Session:
    """A sweep under way, at one size after the other, and where its outcomes go."""

    question: Question
    terminal: Terminal
    side: Callable[[str | None, Path], Backend] | None = None  # `backend_for`, or a test's own
    started: float = field(default_factory=time.monotonic)
    outcomes: list[Outcome] = field(default_factory=list)  # of the size under way
    counts: Counter[str] = field(default_factory=Counter)
    split: Split = field(default_factory=Split)
    tables: dict[str, list[Outcome]] = field(default_factory=dict)  # by sizes, of those that ended
    tuned_file: Path | None = None  # where winners are remembered; None: the user's own
    ahead: Ahead | None = None  # processes that get ready meanwhile; closed by `go`

    def go(self) -> int:
        """Run to the end. Returns the exit code: 0, or 130 after Ctrl-C.

        Raises the errors of the parts, each of which is one sentence; what can be refused is
        refused before any work.
        """
        try:
            return self._asked()
        finally:
            if self.ahead is not None:
                self.ahead.close()

    def _asked(self) -> int:
        asked = self.question
        sweep = sweep_named(asked.sweep)
        problems, impls = problems_of(asked)
        hunt = hunt_of(asked, self.started)
        writable(asked.out)
        if asked.metrics is not None:
            writable(asked.metrics.parent, asked.metrics)
        with open_history(asked.database) as history, Interrupts() as interrupts:
            opened = self.side or partial(backend_for, ahead=self.ahead)
            backend = opened(asked.device, repository_of(asked.kernel))
            try:
                undisturbed(backend, asked.strict)
                for at, problem in enumerate(problems):
                    store = Store(history, interrupts)
                    share = hunt.share(len(problems) - at) if hunt else None
                    if code := self._one(sweep, problem, impls, backend, store, share):
                        return code
                if len(problems) > 1:
                    self._together(problems)
                return 0
            finally:
                self.terminal.end()
                backend.close()

    def _one(
        self, sweep: Sweep, problem: Problem, impls: list[Impl], backend: Backend, store: Store,
        hunt: Hunt | None,
    ) -> int:  # fmt: skip
        self.outcomes, self.counts, self.split = [], Counter(), Split()
        if self.tables:  # the first size's seconds count from the command's start
            self.started = time.monotonic()
        asked = self.question
        asking = new_run(asked, sweep, problem, impls, backend)
        asking = replace(asking, incumbents=self._incumbents(asking))
        most = most_of(asked, hunt) if backend.predicts else 0
        made = plan(
            asking, problem, sweep, impls, backend.device, backend.protocol,
            only=asked.only, most=most,
        )  # fmt: skip
        earlier = Earlier() if asked.fresh else earlier_outcomes(store.history, made)
        earlier = replace(earlier, incumbent=incumbents_in(made))
        hunt = replace(hunt, final_s=0.0) if hunt and backend.predicts else hunt
        engine = Engine(made, backend, earlier, hunt or default_hunt(made, backend))
        if engine.finished and (old := covering_run(store.history, made, earlier)):
            return self._told_again(old, store)
        self.terminal.begin(asking, made, len(earlier.first))
        found = self._begin(backend, problem, engine, store, earlier)
        begun = replace(asking, ceilings={**asking.ceilings, **found})
        self.split.begin(backend)
        folder = asked.out / begun.id
        with EventLog(asked.metrics or folder / "events.jsonl") as log:
            store.begin(begun, log)
            try:
                state = self._obtain(engine, backend, begun, store)
            except BaseException:  # nothing more can be stored; show what there is
                self.terminal.end()
                with suppress(Exception):
                    self._page(begun, folder)
                raise
            store.end(state, self.counts, self.split.seconds)
        self._conclude(begun, folder)
        self.tables[sizes_text(problem.sizes)] = self.outcomes
        if state == "interrupted":
            return 130
        self._remember(begun, problem)
        return 0

    def _incumbents(self, asking: Run) -> dict[str, dict[str, int]]:
        """By Impl, the config that was found best before for just this."""
        try:
            known = tuned.Tuned.load(self.tuned_file or tuned.default_path())
        except tuned.TunedError as error:
            self.terminal.warn(str(error))
            return {}
        found = known.matching(asking.kernel, None, asking.device)
        return {
            e.impl: dict(e.config)
            for e in sorted(found, key=lambda e: e.at)
            if (dict(e.sizes), e.dtype, e.predicted)
            == (dict(asking.sizes), asking.dtype, asking.predicted)
        }

    def _remember(self, begun: Run, problem: Problem) -> None:
        """For launches that name no config. A file that cannot be written costs no answer."""
        try:
            tuned.remember(begun, self.outcomes, problem.spec, self.tuned_file)
        except tuned.TunedError as error:
            self.terminal.warn(str(error))

    def _begin(
        self, backend: Backend, problem: Problem, engine: Engine, store: Store, earlier: Earlier
    ) -> Mapping[str, Mapping[str, Any]]:
        if engine.finished:  # nothing will be measured: the ceilings are those of what is known
            return measured_ceilings(store.history, earlier)
        try:
            return backend.begin(problem, engine.first)
        except RuntimeError as error:
            why = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            raise SessionError(
                f"The GPU could not take {sizes_text(problem.sizes)} ({why}); name other --sizes."
            ) from None

    def _obtain(self, engine: Engine, backend: Backend, begun: Run, store: Store) -> RunState:
        """All outcomes, each stored before the next. Ctrl-C ends it early, with all so far."""
        try:
            for found in engine.outcomes():
                if isinstance(found, Step):
                    Thread(target=_ready, daemon=True).start()  # the final leaves us idle
                    self.split.table(self.counts, self.started)
                    self.terminal.step(found)
                elif isinstance(found, Compilation):
                    self._dispatched(found, begun, store)
                else:
                    store.keep(found)
                    self._completed(found, store)
        except KeyboardInterrupt:
            self.terminal.stopped()
            return "interrupted"
        finally:
            self.terminal.end()
            self.split.end(backend, engine.wait_s, self.started)
        return "complete"

    def _told_again(self, old: Run, store: Store) -> int:
        """All was obtained by an earlier run: its answer and its page once more."""
        self.outcomes = store.history.outcomes(old.id)
        self.counts = Counter(_kind(o) for o in self.outcomes)
        self.tables[sizes_text(old.sizes)] = self.outcomes
        self.terminal.again(old)
        if self.question.metrics is not None:
            with EventLog(self.question.metrics) as log:
                for event in (old, *self.outcomes):
                    log.write(event)
                log.write(RunFinished(_now(), old.id, "complete", dict(self.counts)))
        page = self.question.out / old.id / "report.html"
        if not page.is_file():
            self._page(old, page.parent)
        said = sentence(answer(old, self.outcomes))
        self.terminal.conclude(said, self.counts, self.split, page, None)
        return 0

    def _together(self, problems: Sequence[Problem]) -> None:
        """The fewest configs that serve all sizes, where several were asked for."""
        try:
            found = portfolio(screened_times(self.tables))
        except PortfolioError as error:
            self.terminal.warn(str(error))
            return
        stamp = f"{problems[0].spec.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
        file = self.question.out / f"portfolio-{stamp}.json"
        write_page(file, json.dumps(asdict(found), indent=1) + "\n")
        self.terminal.portfolio(found, file)

    def _dispatched(self, found: Compilation, run_: Run, store: Store) -> None:
        self.counts["compiled"] += 1
        self.counts["duplicate"] += found.duplicate
        self.terminal.counted(self.counts)
        if not self.question.profile:
            return
        r, c = found.compiled.resources, found.candidate
        store.log.write(
            KernelDispatched(
                at=_now(), run=run_.id, kernel=c.impl.title, config=values(c.config),
                grid=found.compiled.grid, threads=r.threads, shared_bytes=r.shared_bytes,
                registers=r.registers, occupancy=r.occupancy,
            )
        )  # fmt: skip

    def _completed(self, found: Outcome, store: Store) -> None:
        self.outcomes.append(found)
        self.counts[_kind(found)] += 1
        self.terminal.saw(found, self.counts)
        if not self.question.profile or isinstance(found, Failure):
            return
        case, timing = found.case, found.timing
        path = ["sweep", self.question.sweep, case.kernel, case.impl, label(case.config)]
        store.log.write(
            OpCompleted(
                at=_now(), run=found.run, op_path="/".join([*path, found.phase]),
                device_us=timing.median_s * 1e6 if isinstance(timing, Measured) else None,
                host_us=None, predicted=not found.measured,
            )
        )  # fmt: skip

    def _page(self, begun: Run, folder: Path) -> Path:
        from workbench.reports.sweep import page

        return write_page(
            folder / "report.html", page(begun, self.outcomes, self.split.seconds or None)
        )

    def _conclude(self, begun: Run, folder: Path) -> None:
        events = self.question.metrics or folder / "events.jsonl"
        written = self._page(begun, folder)
        said = sentence(answer(begun, self.outcomes))
        self.terminal.conclude(said, self.counts, self.split, written, events)


def _ready() -> None:
    """Import what the page is made with, which takes most of a second, before it is asked for."""
    import jinja2  # noqa: F401
    import matplotlib.backends.backend_svg  # noqa: F401

    import workbench.reports.sweep  # noqa: F401


def _kind(found: Outcome) -> str:
    if isinstance(found, Record):
        kinds = {"screen": "measured", "predict": "predicted"}
        return kinds.get(found.phase, found.phase)
    return {"refused": "refused", "check": "wrong"}.get(found.stage, "failed")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def incumbents_in(made: Plan) -> frozenset[str]:
    """Keys of the plan's candidates that are their Impl's incumbent."""
    best = made.run.incumbents
    return frozenset(c.key for c in made.candidates if best.get(c.impl.name) == values(c.config))


def screened_times(tables: Mapping[str, Sequence[Outcome]]) -> dict[str, dict[str, float]]:
    """Seconds by sizes and config, all obtained alike: of the screen, or predicted."""
    return {
        sizes: {r.case.label: r.time_s for r in on_one_footing(outcomes).values()
                if not r.case.is_baseline}
        for sizes, outcomes in tables.items()
    }  # fmt: skip


def new_run(
    asked: Question, sweep: Sweep, problem: Problem, impls: list[Impl], backend: Backend
) -> Run:
    """The run that this question opens."""
    now = datetime.now(UTC)
    stamp = f"{now:%Y%m%d-%H%M%S}-{asked.sweep}-{problem.spec.name}-{secrets.token_hex(2)}"
    knobs: tuple[Knob, ...] = () if asked.only else tuple(sweep.tune)
    whole = replace(  # said in full: defaults may change, and another machine may have a GPU
        asked,
        sizes=(sizes_text(problem.sizes),),
        device=backend.device.name if backend.predicts else None,
    )
    return Run(
        id=stamp,
        engine="sweep",
        name=asked.sweep,
        command=whole.command,
        started=now.isoformat(timespec="milliseconds"),
        kernel=problem.spec.name,
        sizes=dict(problem.sizes),
        dtype=problem.dtype,
        device=backend.device.name,
        predicted=backend.predicts,
        vary=tuple(k.__name__ for k in sweep.vary),
        tune=tuple(k.__name__ for k in knobs),
        impls={i.name: {"choices": i.choices(), "knobs": i.knobs()} for i in impls},
        ceilings=hardware.ceilings(backend.device, problem.dtype),
        environment=backend.environment,
        source=asked.kernel,
    )
