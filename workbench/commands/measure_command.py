"""Time Impls and baselines over sizes and dtypes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from workbench import catalog
from workbench.backend.prewarm import Libraries, Prewarm, prewarmer
from workbench.backend.protocol import Backend, Measures, Problem
from workbench.backend.refusal import refusal_of
from workbench.commands.console import plan_line, say_result
from workbench.commands.operands import operands_of
from workbench.commands.problem import own_impls
from workbench.commands.progress import show_part
from workbench.commands.result import RunResult, write_result
from workbench.commands.run import (
    Opener,
    OpenResources,
    Recorder,
    any_backend,
    check_also,
    check_emulator,
    draw_ended_run,
    execute,
    gpu_present,
    measured_peaks,
    new_run,
    repository_of,
    resources,
    say_page,
)
from workbench.commands.selected import Selected
from workbench.commands.sizes import check_dtype, sizes_of
from workbench.compile import Compiled
from workbench.data.clock import folder_of
from workbench.data.errors import first_line
from workbench.data.events import RunState
from workbench.data.exits import COULD_NOT_RUN, INTERRUPTED, PASSED
from workbench.data.record import Case, Outcome, Phase, Profile, Record, Run
from workbench.data.tuned_cache import Tuned, default_path
from workbench.measurement.candidate import Candidate, Refusal, Timed
from workbench.reports import DRAWING, prewarm_page
from workbench.reports.run_index import write_run_page
from workbench.spec import Spec, sizes_text
from workbench.tuner.energy import add_energies
from workbench.tuner.space import RecordFactory

if TYPE_CHECKING:
    from rich.console import Console

    from workbench.commands.measure import MeasureOptions


PREWARMED = 8  # problems that are compiled before the first of them is timed


@dataclass
class MeasureCommand:
    """Run a measurement from the options to the page."""

    options: MeasureOptions
    console: Console
    open_backend: Opener | None = None  # `any_backend`, or a test's own
    tuned_file: Path | None = None  # the tuned configs; None: the user's own
    origins: dict[str, str] = field(default_factory=dict)  # source of each config, by key

    def go(self) -> int:
        """Run to the end. Returns 0, 2 where nothing gave a time, or 130 after Ctrl-C."""
        wanted = self.open_backend is None and self.options.device is None
        with prewarmer(self.options.kernel, Libraries.MEASURING, wanted=wanted) as prewarm:
            return self._measure(prewarm)

    def _measure(self, prewarm: Prewarm | None) -> int:
        options = self.options
        spec = catalog.spec_of(options.kernel)
        problems = problems_of(options, spec)
        operands = [operands_of((text, text), None, spec, None)[0] for text in options.impl]
        cache = Tuned.load(self.tuned_file or default_path())
        repository = repository_of(options.kernel)
        seen = prewarm if prewarm and gpu_present() else None  # torch may be told to see none
        opener = self.open_backend or partial(any_backend, prewarm=seen)
        with resources(options, lambda: opener(options.device, repository)) as opened:
            check_also(opened.backend, options.also)
            check_emulator(opened.backend)
            recorder, state = self._go(problems, Selected(operands, cache, opened.backend), opened)
        profiles: tuple[Profile, ...] = ()
        if "profile" in options.also and state == "complete":
            self._draw(recorder)  # it is there whatever becomes of the profiler
            profiles, stopped = self._profile(recorder, spec)
            state = "interrupted" if stopped else state
        page = self._draw(recorder, profiles)
        say_page(self.console, page)
        code = self._exit_code(recorder)
        code = INTERRUPTED if state == "interrupted" else code
        return self._write(code, replace(recorder.result(page), profiles=profiles))

    def _write(self, code: int, run: RunResult) -> int:
        return write_result(self.options, "measure", code, [run])

    def _profile(self, recorder: Recorder, spec: Spec) -> tuple[tuple[Profile, ...], bool]:
        """Profile every config of ours; returns its profiles, and whether Ctrl-C ended it early."""
        from workbench.commands import config_profiles as profiling

        options = self.options
        finals = [o for o in recorder.outcomes if isinstance(o, Record) and o.phase == "final"]
        configs = profiling.timed_configs(options.kernel, finals, spec.impls)
        return profiling.profile_run(configs, recorder.result(), options, self.console)

    def _go(
        self, problems: Sequence[Problem], selected: Selected, opened: OpenResources
    ) -> tuple[Recorder, RunState]:
        """Measure all problems; returns what was obtained, and how it ended."""
        backend = opened.backend
        whole = replace(
            self.options,
            sizes=tuple(dict.fromkeys(sizes_text(p.sizes) for p in problems)),
            dtype=tuple(dict.fromkeys(p.dtype for p in problems)),
            device=backend.device.name if backend.predicts else None,
        )
        name = ", ".join(dict.fromkeys(selected.names(problems[0].spec)))
        run = new_run("measure", name, whole.command, backend, problems)
        peaks = measured_peaks(opened.history, backend, whole.dtype)
        run = replace(run, ceilings={**run.ceilings, **peaks})
        self._say_begin(run)

        def obtain(recorder: Recorder) -> None:
            groups = [self._plan_group(problem, selected, recorder) for problem in problems]
            for at, (problem, group) in enumerate(zip(problems, groups, strict=True)):
                show_part(f"{sizes_text(problem.sizes)}, {problem.dtype}", at, len(problems))
                if at % PREWARMED == 0:
                    for each in groups[at : at + PREWARMED]:
                        each.prewarm()
                self._group(group, recorder)

        recorder = opened.recorder(run)
        state = execute(recorder, obtain, self._draw)
        draw_ended_run(recorder, self._conclude)
        return recorder, state

    def _plan_group(self, problem: Problem, selected: Selected, recorder: Recorder) -> ProblemGroup:
        """Return the candidates of one problem."""
        backend = recorder.backend
        factory = RecordFactory(recorder.run, problem, backend.protocol)
        energy, tell = "energy" in self.options.also, recorder.write_dispatches
        group = ProblemGroup(factory, backend, selected, energy, tell)
        group.plan()
        self.origins.update(group.origins)
        return group

    def _group(self, group: ProblemGroup, recorder: Recorder) -> None:
        """Measure one problem: each outcome is stored before the next, then all are shown."""
        recorder.begin(group.begin())
        before = len(recorder.outcomes)
        if not before:  # while the first ones are timed
            prewarm_page(partial(page_of, recorder.run, ()))
        for outcome in group.outcomes():
            recorder.keep(outcome)
        self._say(recorder.run, recorder.outcomes[before:])

    def _draw(self, recorder: Recorder, profiles: Sequence[Profile] = ()) -> Path:
        with DRAWING:
            html = page_of(recorder.run, recorder.outcomes, profiles)
        return write_run_page(folder_of(self.options.out, recorder.run.id), html)

    def _say_begin(self, run: Run) -> None:
        self.console.print(plan_line(run), style="bold yellow" if run.predicted else "bold")
        if run.predicted:
            self.console.print("Baselines have no prediction, so there is none to compare with.")

    def _exit_code(self, recorder: Recorder) -> int:
        return PASSED if recorder.has_times else COULD_NOT_RUN

    def _conclude(self, recorder: Recorder) -> None:
        """Print the fastest of each problem, if nothing else is printed."""
        from workbench.reports.figures.size_groups import groups_of
        from workbench.reports.measure import interval_origin, result_line

        if origin := interval_origin(recorder.outcomes):
            self.console.print(origin, soft_wrap=True)
        for group in groups_of(recorder.run, recorder.outcomes) if self.options.quiet else ():
            say_result(self.console, result_line(group))

    def _say(self, run: Run, outcomes: Sequence[Outcome]) -> None:
        from workbench.reports.measure import show_group

        show_group(self.console, run, outcomes, self.origins, self.options.wide)


@dataclass
class ProblemGroup:
    """Measure one problem: compile, compare all on cold data, then time each on hot data."""

    factory: RecordFactory
    backend: Backend
    selection: Selected
    energy: bool = False  # measured too, after all times
    report_compiled: Callable[[Case, Compiled], None] = lambda case, compiled: None
    origins: dict[str, str] = field(default_factory=dict)
    _todo: list[Candidate] = field(default_factory=list)
    _refusals: dict[str, Refusal] = field(default_factory=dict)

    def plan(self) -> None:
        """Prepare the candidates."""
        problem = self.factory.problem
        limits = self.backend.device.limits
        first_impl = own_impls(problem.spec, self.backend.device.backend)[0]
        default = first_impl.default(limits, problem.dtype, problem.sizes)
        for impl, config, origin in self.selection.configs(problem):
            first = impl is first_impl and config == default
            candidate = self.factory.candidate(impl, config, first)
            self.origins[candidate.key] = origin
            self._todo.append(candidate)
            if (reason := self._refusal(candidate)) is not None:
                self._refusals[candidate.key] = Refusal("refused", reason)

    def prewarm(self) -> None:
        """Start to compile all candidates, where they are timed here."""
        if not self.backend.predicts and (candidates := self._candidates_to_compile()):
            cast(Measures, self.backend).prewarm(self.factory.problem, candidates)

    def begin(self) -> Mapping[str, Mapping[str, Any]]:
        """Prepare the backend, once `plan` was called. Returns the ceilings that were measured."""
        try:
            return self.backend.begin(self.factory.problem, self._candidates_to_compile())
        except RuntimeError as error:
            refusal = Refusal("measure", first_line(error), own=False)
            self._refusals = {c.key: refusal for c in self._todo}
            return {}

    def _refusal(self, candidate: Candidate) -> str | None:
        return refusal_of(candidate, self.factory.problem, self.backend.device)

    def _candidates_to_compile(self) -> list[Candidate]:
        return [c for c in self._todo if c.impl.backend != "torch" and c.key not in self._refusals]

    def outcomes(self) -> Iterator[Outcome]:
        """Yield every outcome. A candidate that cannot run is an outcome too."""
        compiled: dict[str, Compiled] = {}
        for candidate, result in self.backend.compile(self._candidates_to_compile()):
            if isinstance(result, Refusal):
                self._refusals[candidate.key] = result
            else:
                compiled[candidate.key] = result
                self.report_compiled(candidate.case, result)
        for candidate in self._todo:
            if (reason := self._refusals.get(candidate.key)) is not None:
                yield self.factory.failure(candidate, reason, compiled.get(candidate.key))
        ready = [c for c in self._todo if c.key not in self._refusals]
        yield from (self._predict if self.backend.predicts else self._measure)(ready, compiled)

    def _predict(
        self, ready: Sequence[Candidate], compiled: Mapping[str, Compiled]
    ) -> Iterator[Outcome]:
        waiting = [(c, self.backend.time(c, compiled[c.key], None)) for c in ready]
        for candidate, future in waiting:
            yield self._outcome(candidate, future.result(), "predict", compiled)

    def _measure(
        self, ready: Sequence[Candidate], compiled: Mapping[str, Compiled]
    ) -> Iterator[Outcome]:
        if not ready:
            return
        measures = cast(Measures, self.backend)
        finals = measures.final(ready, [0.0] * len(ready))  # no estimate: it is made there
        cold = self._cold(ready, finals, compiled)
        if not self.energy:
            yield from cold
            yield from self._hot(measures, ready, finals, compiled)
            return
        hot: list[Outcome] = []
        stopped: KeyboardInterrupt | None = None
        try:  # energy comes last; if it is stopped, the times are kept
            hot += self._hot(measures, ready, finals, compiled)
            cold = self._cold(ready, add_energies(measures, ready, finals), compiled)
        except KeyboardInterrupt as error:
            stopped = error
        yield from (*cold, *hot)
        if stopped is not None:
            raise stopped

    def _cold(
        self,
        ready: Sequence[Candidate],
        finals: Sequence[Timed | Refusal],
        compiled: Mapping[str, Compiled],
    ) -> list[Outcome]:
        both = zip(ready, finals, strict=True)
        return [self._outcome(candidate, result, "final", compiled) for candidate, result in both]

    def _hot(
        self,
        measures: Measures,
        ready: Sequence[Candidate],
        finals: Sequence[Timed | Refusal],
        compiled: Mapping[str, Compiled],
    ) -> Iterator[Outcome]:
        for candidate, final in zip(ready, finals, strict=True):
            result = measures.hot(candidate) if isinstance(final, Timed) else None
            if isinstance(result, Timed):
                yield self._outcome(candidate, result, "hot", compiled)

    def _outcome(
        self,
        candidate: Candidate,
        result: Timed | Refusal,
        phase: Phase,
        compiled: Mapping[str, Compiled],
    ) -> Outcome:
        return self.factory.outcome(candidate, result, phase, compiled.get(candidate.key))


def page_of(run: Run, outcomes: Sequence[Outcome], profiles: Sequence[Profile] = ()) -> str:
    """Return the page of a measurement as HTML."""
    from workbench.reports.measure import page

    return page(run, outcomes, profiles)


def problems_of(options: MeasureOptions, spec: Spec) -> list[Problem]:
    """Return the problem of each size with each dtype. Raises CommandError."""
    for dtype in options.dtype:
        check_dtype(spec, dtype)
    sizes = [sizes_of(spec, text) for text in options.sizes] or [dict(s) for s in spec.bench]
    pairs = product(sizes, dict.fromkeys(options.dtype))
    return [Problem(options.kernel, spec, extents, dtype) for extents, dtype in pairs]
