"""An experiment from the question to the page: the `experiment` command."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench import catalog
from workbench.backend.prewarm import begin_ahead
from workbench.backend.protocol import Backend, Candidate, Done, Part, Problem, Refusal
from workbench.commands.comparison import opened_run
from workbench.commands.options import (
    backend_for,
    gpu_present,
    on_paper,
    repository_of,
    sizes_of,
    undisturbed,
    writable,
)
from workbench.data.database import History, open_history
from workbench.data.events import EventLog, RunState
from workbench.data.interrupts import Interrupts
from workbench.data.record import Finding, Outcome, Phase, Record, Run, key_of
from workbench.data.store import Store
from workbench.experiments import (
    Arm,
    Asked,
    Experiment,
    ExperimentError,
    Found,
    experiment_named,
    seconds,
)
from workbench.experiments.analysis import ceilings
from workbench.measurement.protocol import Protocol
from workbench.reports import drawn_at_least, write_page
from workbench.spec import ITEMSIZE, Sizes
from workbench.tuner import tuned
from workbench.tuner.space import Identity

if TYPE_CHECKING:
    from rich.console import Console

Opened = Callable[[str | None, Path], Backend]  # `backend_for`, or a test's own

# Half of a final's rounds: an experiment tells times apart that differ by a tenth and more, and
# all of them together are to take minutes.
RULES = Protocol(rounds=12, most_rounds=32, final_s=6.0)


@dataclass(frozen=True)
class Question:
    """What `experiment` was asked, in the words of the command line."""

    experiment: str
    kernel: str | None = None
    sizes: str | None = None
    dtype: str | None = None
    device: str | None = None
    out: Path = Path("results")
    database: str | None = None
    strict: bool = False  # refuse where others use the GPU
    winners: Path | None = None  # the file of tuned configs; None: the user's own
    time: str | None = None  # "0.5ms": set against what is expected

    @property
    def command(self) -> str:
        """The exact command that asks this again."""
        words = ["workbench", "experiment", self.experiment]
        for option in ("kernel", "sizes", "dtype", "device", "time"):
            value = getattr(self, option)
            words += [f"--{option}", value] if value is not None else []
        return shlex.join(words)


@dataclass(frozen=True)
class Trial:
    """One kernel under the experiment: what is asked of it, and what is timed."""

    asked: Asked
    arms: Sequence[Arm]
    parts: Mapping[str, Part]  # by the arm's name
    refused: Mapping[str, Refusal]


@dataclass
class Trials:
    """An experiment on all its kernels, one after the other."""

    question: Question
    console: Console
    opened: Opened | None = None
    outcomes: list[Outcome] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    _told: set[str] = field(default_factory=set)  # caveats, each said once

    def go(self) -> int:
        """Run to the end. Returns the exit code: 0; 2 where nothing gave a time; 130 after Ctrl-C.

        Raises the errors of the parts, each of which is one sentence.
        """
        asked = self.question
        experiment = experiment_named(asked.experiment)
        given_s = _seconds(asked.time, experiment, asked.experiment)
        with ExitStack() as stack:
            ahead = None  # started before kernels are imported
            if self.opened is None and experiment.runs and asked.device is None:
                ahead = begin_ahead(asked.kernel or "copy")
            if ahead is not None:
                stack.callback(ahead.close)
            dtype_known(self._dtype(experiment), self._named(experiment))
            winners = tuned.Tuned.load(asked.winners or tuned.default_path())
            writable(asked.out)
            if ahead is not None and not gpu_present():
                ahead = None
            history = stack.enter_context(open_history(asked.database))
            interrupts = stack.enter_context(Interrupts())
            repository = repository_of(asked.kernel or "matmul")
            live = partial(backend_for, ahead=ahead, rules=RULES)
            opened = self.opened or (live if experiment.runs else on_paper)
            backend = opened(asked.device, repository)
            stack.callback(backend.close)
            undisturbed(backend, asked.strict)
            known = ceilings.known(history, backend.device.name) or {}
            planned = self._planned(experiment, backend, known)
            if not experiment.runs:
                planned = [(self._on_paper(a, given_s, history), arms) for a, arms in planned]
            problems = [arm_problem(arm) for each, arms in planned for arm in arms]
            problems = problems or [_whole_problem(each) for each, _ in planned]
            device = backend.device.name if backend.predicts else None
            command = replace(asked, device=device).command
            run = opened_run("experiment", asked.experiment, command, backend, problems)
            run = replace(run, ceilings={**run.ceilings, **known})
            return self._go(experiment, planned, run, backend, winners, Store(history, interrupts))

    def _planned(
        self, experiment: Experiment, backend: Backend, known: Mapping[str, Any]
    ) -> list[tuple[Asked, Sequence[Arm]]]:
        """What is asked of each kernel, and its arms. Raises ExperimentError."""
        asked = self.question
        planned: list[tuple[Asked, Sequence[Arm]]] = []
        for kernel in self._named(experiment):
            sizes = None
            if asked.sizes is not None:
                if not kernel:
                    raise ExperimentError(
                        f"--sizes are those of a kernel, and {asked.experiment} names its own; "
                        "leave --sizes out."
                    )
                sizes = sizes_of(catalog.spec_of(kernel), asked.sizes)
            each = Asked(
                kernel, sizes, self._dtype(experiment), backend.device, backend.predicts,
                known,
            )  # fmt: skip
            arms = list(experiment.arms(each))
            for arm in arms:
                dtype_known(arm.dtype, (arm.kernel,))
            planned.append((each, arms))
        return planned

    def _dtype(self, experiment: Experiment) -> str:
        asked = self.question.dtype
        return experiment.dtype if asked is None else asked

    def _named(self, experiment: Experiment) -> tuple[str, ...]:
        """The kernels that are examined; an empty name where the experiment has its own."""
        asked = self.question
        return (asked.kernel,) if asked.kernel is not None else experiment.kernels or ("",)

    @staticmethod
    def _on_paper(asked: Asked, given_s: float | None, history: History) -> Asked:
        """With the time to set against what is expected: given, or of earlier runs."""
        name = catalog.spec_of(asked.kernel).name
        rows = history.search(name, device=asked.device.name, dtype=asked.dtype, limit=10_000)
        return replace(asked, given_s=given_s, earlier=rows)

    def _go(
        self, experiment: Experiment, planned: Sequence[tuple[Asked, Sequence[Arm]]], begun: Run,
        backend: Backend, winners: tuned.Tuned, store: Store,
    ) -> int:  # fmt: skip
        from workbench.commands.console import plan_line

        on_paper = f"Nothing is run: worked out for {backend.device.title}."
        line = plan_line(begun) if experiment.runs else on_paper
        self.console.print(line, style="bold yellow" if begun.predicted else "bold")
        folder = self.question.out / begun.id
        with (
            EventLog(folder / "events.jsonl") as log,
            drawn_at_least(lambda: self._draw(begun, folder)),
        ):
            state, run = self._obtain(experiment, planned, begun, backend, winners, store, log)
        if state == "interrupted":
            self.console.print("Stopped; what was found so far is stored.")
        self.console.print(f"report  {self._draw(run, folder).resolve()}", soft_wrap=True)
        if state == "interrupted":
            return 130
        timed = any(isinstance(o, Record) for o in self.outcomes)
        return 0 if timed or (self.findings and not self.outcomes) else 2

    def _obtain(
        self, experiment: Experiment, planned: Sequence[tuple[Asked, Sequence[Arm]]], run: Run,
        backend: Backend, winners: tuned.Tuned, store: Store, log: EventLog,
    ) -> tuple[RunState, Run]:  # fmt: skip
        """Every kernel in turn, each stored and told before the next."""
        state: RunState = "complete"
        begun = False
        try:
            trials = [made(asked, arms, run, backend, winners) for asked, arms in planned]
            for at, trial in enumerate(trials, 1):
                asked, arms = trial.asked, trial.arms
                with self._doing(trial, f"{at}/{len(trials)}" if len(trials) > 1 else ""):
                    if not begun:
                        compile_ahead(trials, backend)
                    tested = begin(trial, backend)
                    if not begun:
                        run = replace(run, ceilings={**tested, **run.ceilings})
                        store.begin(run, log)
                        begun = True
                    found = timed(trial, run, backend)
                for each in found.values():
                    store.keep(each.outcome)
                    self.outcomes.append(each.outcome)
                whole = replace(asked, ceilings=run.ceilings)
                for judgement in experiment.judge(whole, found):
                    about = whole if whole.sizes else replace(whole, sizes=_alike(asked, arms))
                    finding = judgement.finding(run.id, _now(), run.name, about)
                    store.keep_finding(finding)
                    self.findings.append(finding)
                    self._say(finding)
        except KeyboardInterrupt:
            state = "interrupted"
        if not begun:
            store.begin(run, log)
        counts = Counter[str](o.phase if isinstance(o, Record) else o.stage for o in self.outcomes)
        store.end(state, counts, dict(backend.spent))
        return state, run

    def _doing(self, trial: Trial, at: str) -> AbstractContextManager[None]:
        """Says what goes on, which may be a minute before the first word of an answer."""
        from workbench.commands.console import doing

        if not trial.arms:
            return nullcontext()
        last = "predicted" if trial.asked.predicts else "timed"
        arms = f"{len(trial.arms)} arm{'s' * (len(trial.arms) != 1)}"
        about = trial.asked.kernel or self.question.experiment
        what = f"{about}: {arms}, compiled, checked and {last}"
        return doing(self.console, f"{at} {what}".strip())

    def _draw(self, run: Run, folder: Path) -> Path:
        from workbench.reports.experiment import page

        return write_page(folder / "report.html", page(run, self.outcomes, self.findings))

    def _say(self, finding: Finding) -> None:
        from workbench.reports.experiment import show

        show(self.console, finding, self._told)


def _seconds(text: str | None, experiment: Experiment, name: str) -> float | None:
    """Of `--time`. Raises ExperimentError."""
    if text is None:
        return None
    if experiment.runs:
        raise ExperimentError(f"--time is for what is not run, and {name} is; leave it out.")
    return seconds(text)


def dtype_known(dtype: str, kernels: Sequence[str]) -> None:
    """Raises ExperimentError where a kernel is not for `dtype`, CatalogError where there is none
    of that name."""
    if dtype not in ITEMSIZE:
        raise ExperimentError(catalog.unknown("dtype", dtype, ITEMSIZE))
    for kernel in filter(None, kernels):
        spec = catalog.spec_of(kernel)
        if dtype not in spec.tolerance:
            raise ExperimentError(
                f"{spec.name} is for {', '.join(spec.tolerance)} and not for {dtype}; name one of "
                "those with --dtype."
            )


def _alike(asked: Asked, arms: Sequence[Arm]) -> Sizes | None:
    """The sizes that all arms of the asked kernel have; None where they differ."""
    mine = [dict(arm.sizes) for arm in arms if arm.kernel == asked.kernel]
    return mine[0] if mine and all(sizes == mine[0] for sizes in mine) else None


def _whole_problem(asked: Asked) -> Problem:
    spec = catalog.spec_of(asked.kernel)
    return Problem(asked.kernel, spec, dict(asked.sizes or spec.bench[0]), asked.dtype)


def arm_problem(arm: Arm) -> Problem:
    """The problem of an arm. Raises CatalogError."""
    return Problem(arm.kernel, catalog.spec_of(arm.kernel), dict(arm.sizes), arm.dtype)


def made(
    asked: Asked, arms: Sequence[Arm], run: Run, backend: Backend, winners: tuned.Tuned
) -> Trial:
    """The parts of a trial; an arm whose Impl refuses its config is set apart, with the reason."""
    parts: dict[str, Part] = {}
    refused: dict[str, Refusal] = {}
    for arm in arms:
        problem = arm_problem(arm)
        impl = catalog.impl_of(problem.spec, arm.impl)
        if arm.config is not None:
            config = impl.config(**arm.config)
        else:
            config = chosen(problem, impl, backend, winners)
        candidate = Identity(run, problem, backend.protocol).candidate(impl, config, False)
        if arm.clock == "host":  # another question than how long the device takes
            candidate = replace(
                candidate, key=key_of(candidate.case, asked=candidate.key, by="host")
            )
        parts[arm.name] = Part(problem, candidate, arm.regime, arm.clock)
        limits = backend.device.limits
        if why := impl.rejection_reason(config, limits, arm.dtype, problem.sizes):
            refused[arm.name] = Refusal("refused", why)
    return Trial(asked, arms, parts, refused)


def compile_ahead(trials: Sequence[Trial], backend: Backend) -> None:
    """Compile the parts of all trials at once: in one trial's turn most processes would have
    nothing to do. What fails is told where it is timed."""
    from workbench.backend.live import Live

    if isinstance(backend, Live):
        todo = [(t, name) for t in trials for name in t.parts if name not in t.refused]
        backend.compiled_parts([trial.parts[name] for trial, name in todo])


def begin(trial: Trial, backend: Backend) -> dict[str, dict[str, Any]]:
    """Begin with the first problem that is to run and fits the GPU; returns what `backend.begin`
    does, and nothing where none fits, which each part then says."""
    todo = [trial.parts[name].problem for name in trial.parts if name not in trial.refused]
    for at, problem in enumerate(todo):
        if problem not in todo[:at]:
            with suppress(RuntimeError):
                return backend.begin(problem)
    return {}


def chosen(problem: Problem, impl: Any, backend: Backend, winners: tuned.Tuned) -> Any:
    """The config that was tuned for this problem here, else the default."""
    if impl.backend == "triton" and not backend.predicts:
        entry = winners.find(
            problem.spec.name, impl.name, problem.sizes, problem.dtype, backend.device.name,
            backend.environment.versions, tuned.source_of(impl),
        )  # fmt: skip
        if entry is not None:
            return impl.config(**entry.config)
    return impl.default(backend.device.limits, problem.dtype, problem.sizes)


def timed(trial: Trial, run: Run, backend: Backend) -> dict[str, Found]:
    """What became of each arm, by name."""
    todo = [name for name in trial.parts if name not in trial.refused]
    parts = [trial.parts[name] for name in todo]
    done = dict(zip(todo, backend.together(parts) if parts else [], strict=True))
    return {arm.name: _found(arm, trial, done.get(arm.name), run, backend) for arm in trial.arms}


def _found(arm: Arm, trial: Trial, done: Done | None, run: Run, backend: Backend) -> Found:
    part = trial.parts[arm.name]
    identity = Identity(run, part.problem, backend.protocol)
    candidate: Candidate = part.candidate
    if done is None:
        return Found(arm, identity.failure(candidate, trial.refused[arm.name]))
    taken: Phase = "hot" if arm.regime == "hot" else "final"
    phase: Phase = "predict" if backend.predicts else taken
    outcome = identity.outcome(candidate, done.found, phase, done.compiled)
    return Found(arm, outcome, done.compiled, done.kernels, done.peak_bytes)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
