"""A sweep from the options to the page and the tuned config.

A sweep over several sizes is a run for each of them, and then a portfolio.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from workbench.adapted.kernel import Listed
from workbench.backend.protocol import Backend, Problem
from workbench.commands.console import SweepConsole, console_for, note, prints_aside
from workbench.commands.options import CommandError
from workbench.commands.problem import (
    check_sweep,
    default_search,
    find_sweep,
    predicted_configs,
    problems_of,
    search_plan_of,
)
from workbench.commands.result import RunResult, write_result
from workbench.commands.run import (
    Opener,
    OpenResources,
    Recorder,
    any_backend,
    check_also,
    check_emulator,
    check_sanitizer,
    draw_ended_run,
    execute,
    measured_peaks,
    new_run,
    repository_of,
    resources,
    wants_cluster,
)
from workbench.data.clock import folder_of, slug, timestamp
from workbench.data.errors import first_line
from workbench.data.events import EventLog, RunFinished
from workbench.data.exits import COULD_NOT_RUN, INTERRUPTED, PASSED
from workbench.data.interrupts import Interrupts
from workbench.data.locks import Lock, hold_lock, remove_stale_file
from workbench.data.record import Failure, Finding, Outcome, Profile, Record, Run
from workbench.data.references import alike
from workbench.data.selection import Selection, comparable_times, select
from workbench.data.tuned_cache import Tuned, TunedError, damage_text, default_path
from workbench.device.calibration import CalibrationError, calibration_of, shipped_devices
from workbench.device.hardware import METAL
from workbench.reports import DRAWING, prewarm_page, write_page
from workbench.reports.page_drawing import PageDrawing, page_of
from workbench.reports.run_index import write_run_page
from workbench.reports.selection_sentence import sentence
from workbench.spec import Impl, Knob, sizes_text, values
from workbench.sweeps import Sweep
from workbench.tuner import tuned
from workbench.tuner.choice import LaunchChoice, choices_of
from workbench.tuner.engine import Engine, TimeBreakdown
from workbench.tuner.finals import Step
from workbench.tuner.first_pass import Dispatch, SearchPlan
from workbench.tuner.portfolio import PortfolioError, portfolio
from workbench.tuner.resume import covering_run, earlier_outcomes, measured_ceilings
from workbench.tuner.space import Earlier, Plan, plan_sweep

if TYPE_CHECKING:
    from workbench.backend.cluster.cluster import ClusterGpu
    from workbench.backend.prewarm import KeptProcesses, Prewarm
    from workbench.commands.sweep import SweepOptions


@dataclass
class SweepCommand:
    """Run a sweep, one size after the other."""

    options: SweepOptions
    console: SweepConsole
    open_backend: Opener | None = None  # `any_backend`, or a test's own
    tuned_file: Path | None = None  # path of the tuned cache; None: the user's own
    prewarm: Prewarm | KeptProcesses | None = (
        None  # processes that were started before; closed by `go`
    )
    start_s: float = field(default_factory=time.monotonic)
    tables: dict[str, list[Outcome]] = field(default_factory=dict)  # by sizes, of finished runs
    results: list[RunResult] = field(default_factory=list)  # of finished runs
    sentences: list[str] = field(default_factory=list)
    portfolio: dict[str, Any] | None = None  # of several sizes
    seconds: dict[str, Mapping[str, float]] = field(default_factory=dict)  # by part, by run
    run: Run | None = None  # the last one, its selection and its page
    selection: Selection | None = None
    page: Path | None = None
    pages: PageDrawing | None = None  # of several sizes, drawn while the next one is measured

    def go(self) -> int:
        """Run to the end. Returns the exit code: 0, or 130 after Ctrl-C.

        Raises the errors of the parts, each of which is one sentence; options are checked before
        any work.
        """
        try:
            code = self._sizes()
            more = {"sentences": self.sentences, "portfolio": self.portfolio}
            return write_result(self.options, "sweep", code, self.results, **more)
        finally:
            if self.prewarm is not None:
                self.prewarm.close()

    def _sizes(self) -> int:
        sweep = find_sweep(self.options.name)
        check_sweep(self.options.name, sweep, self.options.device)
        problems, impls = problems_of(self.options)
        if len(problems) == 1:
            return self._all(sweep, problems, impls)
        self.pages = PageDrawing()
        try:
            return self._all(sweep, problems, impls)
        finally:
            with Interrupts() as interrupts, interrupts.later():
                self.pages.finish()

    @property
    def outcomes(self) -> list[Outcome]:
        """Outcomes at the last sizes that were swept."""
        return list(self.tables.values())[-1] if self.tables else []

    def _all(self, sweep: Sweep, problems: Sequence[Problem], impls: list[Impl]) -> int:
        options = self.options
        search = search_plan_of(options, self.start_s)
        opener = self.open_backend or partial(any_backend, prewarm=self.prewarm)
        Thread(target=_prewarm_plan, daemon=True).start()
        repository = repository_of(options.kernel)
        worst = PASSED
        if wants_cluster(options):
            return self._spread(problems, sweep, impls, search)
        check_sanitizer(options.require, options.device)
        with resources(options, lambda: opener(options.device, repository)) as opened:
            check_also(opened.backend, options.also)
            try:
                for at, problem in enumerate(problems):
                    share = search.share(len(problems) - at) if search else None
                    code = _OneSize(self, problem, opened, share).go(sweep, impls)
                    if code == INTERRUPTED:
                        return code
                    worst = max(worst, code)
            finally:
                self.console.end()
        if len(problems) > 1:
            self._portfolio(problems)
        if "profile" in options.also and not self._profile(impls):
            return INTERRUPTED
        return worst

    def _spread(
        self,
        problems: Sequence[Problem],
        sweep: Sweep,
        impls: list[Impl],
        search: SearchPlan | None,
    ) -> int:
        """Run the sweep on the GPUs of a cluster, a size on each. Returns the exit code."""
        from workbench.backend.cluster.remote import ClusterLive
        from workbench.backend.cluster.spread import Job, Spread, cluster_of
        from workbench.commands.gpu_lines import GpuLines, ProblemConsole

        lines = GpuLines(self.options.quiet, prints_aside(self.options))
        ended: dict[str, tuple[SweepCommand, int]] = {}  # by sizes
        code = PASSED
        with cluster_of(str(self.options.workers), note) as cluster:
            spread = Spread(cluster, lines.say)

            def run_size(problem: Problem, gpu: ClusterGpu) -> None:
                sizes, options = sizes_text(problem.sizes), self.options
                here = repository_of(options.kernel)
                share = search.share(spread.share) if search else None
                console = ProblemConsole(lines, sizes, gpu.title)
                # its results are taken over at its end
                one = SweepCommand(options, console, tuned_file=self.tuned_file, pages=self.pages)
                opener = partial(ClusterLive, gpu, options.kernel, here)
                with resources(options, opener) as opened:
                    ended[sizes] = one, _OneSize(one, problem, opened, share).go(sweep, impls)
                if ended[sizes][1] == INTERRUPTED:
                    raise KeyboardInterrupt

            try:
                spread.run([Job(sizes_text(p.sizes), partial(run_size, p)) for p in problems])
            except KeyboardInterrupt:
                code = INTERRUPTED
            finally:
                lines.end()
                self._take_over([ended[s] for p in problems if (s := sizes_text(p.sizes)) in ended])
        if code == PASSED and len(problems) > 1:
            self._portfolio(problems)
        return max([code, *(one for _, one in ended.values())])

    def _take_over(self, ended: Sequence[tuple[SweepCommand, int]]) -> None:
        for one, _ in ended:
            self.tables |= one.tables
            self.results += one.results
            self.sentences += one.sentences
            self.seconds |= one.seconds
            self.run, self.selection, self.page = one.run, one.selection, one.page

    def _profile(self, impls: Sequence[Impl]) -> bool:
        """Profile the winner of each size, and draw the pages again. Returns whether it was not
        interrupted."""
        from workbench.commands import config_profiles as profiling

        options, console = self.options, console_for(self.options)
        if self.pages is not None:
            self.pages.finish()
        for at, result in enumerate(self.results):
            winner = select(result.run, result.outcomes).winner
            configs = profiling.timed_configs(options.kernel, [winner] if winner else [], impls)
            profiles, stopped = profiling.profile_run(configs, result, options, console)
            page = self._draw_profiles(result, profiles)
            self.results[at] = replace(result, profiles=profiles, page=page)
            if stopped:
                return False
        return True

    def _draw_profiles(self, result: RunResult, profiles: Sequence[Profile]) -> Path:
        from workbench.reports.sweep import page

        seconds = self.seconds.get(result.run.id) or None
        findings = result.findings
        html = page(result.run, result.outcomes, seconds, profiles=profiles, findings=findings)
        return write_run_page(folder_of(self.options.out, result.run.id), html)

    def _portfolio(self, problems: Sequence[Problem]) -> None:
        """Write and print the smallest set of configs that serves all of several sizes."""
        tables, note = tables_of_alike_gpus(self.tables, [r.run for r in self.results])
        if note:
            self.console.warn(note)
        try:
            chosen = portfolio(times_by_config(tables))
        except PortfolioError as error:
            self.console.warn(str(error))
            return
        stamp = f"{slug(problems[0].spec.name)}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
        file = self.options.out / f"portfolio-{stamp}.json"
        self.portfolio = {**asdict(chosen), **({"left_out": note} if note else {})}
        write_page(file, json.dumps(self.portfolio, indent=1) + "\n")
        self.console.portfolio(chosen, file)


# A sweep that predicts recommends after 20 configs, or from 16 on once 25 s have passed. By the
# stored tables (benchmarks/first_recommendation.py) the top config of the whole sweep is among the
# first 20 at all 17 shapes, and among the first 16 at 16.
FIRST_CONFIGS, LEAST_CONFIGS, FIRST_S = 20, 16, 25.0
# A sweep that measures names the best so far after 8 configs, and a better one every five seconds.
SO_FAR_CONFIGS, SO_FAR_S = 8, 5.0


@dataclass
class _OneSize:
    """Run the sweep at one size."""

    command: SweepCommand
    problem: Problem
    resources: OpenResources
    search: SearchPlan | None
    breakdown: TimeBreakdown = field(default_factory=TimeBreakdown)
    counts: Counter[str] = field(default_factory=Counter)
    has_recommended: bool = False  # a first recommendation was printed, or there is none to print
    best: Record | None = None  # of the first pass
    last_printed: tuple[str, float] = ("", 0.0)  # key of the best that was printed last, and when

    def go(self, sweep: Sweep, impls: list[Impl]) -> int:
        command, options, backend = self.command, self.command.options, self.resources.backend
        if command.tables:  # the first size's seconds count from the command's start
            command.start_s = time.monotonic()
        backend.prepare(self.problem)  # while the configs are planned
        run = sweep_run(options, sweep, self.problem, impls, backend)
        launches = self._launches(run)
        run = self._complete_run(run, launches)
        most = predicted_configs(self.search) if backend.predicts else 0
        plan = plan_sweep(
            run,
            self.problem,
            sweep,
            impls,
            backend.device,
            backend.protocol,
            only=options.only,
            most=most,
            launches=launches,
        )
        history = self.resources.history
        anew = options.fresh or run.same_bits_as  # bits compare only on the same inputs
        earlier = Earlier() if anew else earlier_outcomes(history, plan)
        best = run.previous_best
        keys = (c.key for c in plan.candidates if best.get(c.impl.name) == values(c.config))
        earlier = replace(earlier, previous_best=frozenset(keys))
        search = self.search
        if search and backend.predicts:
            search = replace(search, final_s=0.0)
        search = search or default_search(plan, backend)
        energy, sanitize = "energy" in options.also, "sanitizer" in options.require
        engine = Engine(plan, backend, earlier, search, energy, sanitize)
        remove_stale_file(self._lock)
        if engine.is_finished and (old := covering_run(history, plan, earlier)):
            return self._show_again(old, plan)
        failed = sum(isinstance(outcome, Failure) for outcome in earlier.first.values())
        command.console.begin(run, plan, len(earlier.first), failed)
        with self._alone(engine):
            return self._execute(run, engine, earlier)

    def _complete_run(self, run: Run, launches: Sequence[LaunchChoice]) -> Run:
        """Return a run with what earlier sweeps chose, and what launches take as it begins."""
        return replace(
            run,
            previous_best=self._previous_best(run),
            same_bits_as=bits_option(self.command.options, self.resources.backend),
            launch_kind="tuned config" if launches and launches[0].entry else "default",
        )

    def _alone(self, engine: Engine) -> AbstractContextManager[None]:
        """Return a context manager in which no other process predicts times of this problem for the
        same database, so that the second takes over the outcomes of the first. A GPU has its own
        lock."""
        if not self.resources.backend.predicts or engine.is_finished or self.command.options.fresh:
            return nullcontext()
        return hold_lock(self._lock, self.command.console.warn)

    @property
    def _lock(self) -> Lock:
        problem, device = self.problem, self.resources.backend.device.name
        about = (self.resources.history.name, device, problem.kernel, problem.dtype)
        name = "\n".join((*about, sizes_text(problem.sizes)))
        return Lock("sweep", name, f"the sweep of {problem.spec.name} for {device}", stays=False)

    def _execute(self, run: Run, engine: Engine, earlier: Earlier) -> int:
        options = self.command.options
        waited = not engine.is_finished
        ceilings = self._begin(engine, earlier)
        if waited and not options.fresh and not run.same_bits_as:
            # another process may have stored results while this one waited for its turn
            new = engine.look_again(earlier_outcomes(self.resources.history, engine.plan))
            if new:
                self.command.console.print_joining(new)
        self.breakdown.begin(self.resources.backend)
        recorder = self.resources.recorder(run)
        recorder.counts, recorder.events = self.counts, options.events

        def obtain(recorder: Recorder) -> None:
            opened = self.resources
            peaks = measured_peaks(opened.history, opened.backend, [run.dtype])
            recorder.begin({**peaks, **ceilings})
            self._obtain(engine, recorder)

        def draw(recorder: Recorder) -> tuple[Selection, Path]:
            selection = select(recorder.run, recorder.outcomes)
            return selection, self._page(recorder.result(), selection)

        state = execute(recorder, obtain, draw)
        pages = self.command.pages
        if pages is None or state == "interrupted":
            selection, page = draw_ended_run(recorder, draw)
        else:
            selection = select(recorder.run, recorder.outcomes)
            page = self._begin_page(pages, recorder.result())
        self._conclude(recorder.result(page), selection)
        if state == "interrupted":
            return INTERRUPTED
        self._remember(recorder.run, recorder.outcomes)
        return _exit_code(recorder.outcomes)

    def _launches(self, run: Run) -> list[LaunchChoice]:
        """Return what launches without a config run at these sizes today, the first first."""
        device, problem = self.resources.backend.device, self.problem
        # a launch of a Metal kernel names its config, and that of a user's function is the user's
        if device.backend == METAL or any(isinstance(i, Listed) for i in problem.spec.impls):
            return []
        at = problem.spec, device, problem.dtype, problem.sizes
        path, versions = self.command.tuned_file, run.environment.versions
        return choices_of(*at, path=path, versions=versions)

    def _previous_best(self, run: Run) -> dict[str, dict[str, int]]:
        """Return the config that an earlier sweep of the same problem chose, by Impl."""
        try:
            known = Tuned.load(self.command.tuned_file or default_path())
        except TunedError as error:
            self.command.console.warn(str(error))
            return {}
        if known.damage_notes:
            path = self.command.tuned_file or default_path()
            self.command.console.warn(damage_text(path, known.damage_notes))
        entries = known.matching(run.kernel, None, run.device)
        return {
            e.impl: dict(e.config)
            for e in sorted(entries, key=lambda e: e.at)
            if (dict(e.sizes), e.dtype, e.predicted) == (dict(run.sizes), run.dtype, run.predicted)
        }

    def _remember(self, run: Run, outcomes: Sequence[Outcome]) -> None:
        """Store the winners for launches that name no config. A failure to write affects no result.
        A prediction for an Apple GPU is not stored, as it ranks nothing inside its interval."""
        if self.resources.backend.device.backend == METAL:
            return
        try:
            limits = self.resources.backend.device.limits
            tuned.remember(run, outcomes, self.problem.spec, self.command.tuned_file, limits)
        except TunedError as error:
            self.command.console.warn(str(error))

    def _begin(self, engine: Engine, earlier: Earlier) -> Mapping[str, Mapping[str, Any]]:
        """Prepare the backend. Returns the ceilings that were measured."""
        if engine.is_finished:  # nothing will be measured: take the ceilings of the earlier run
            return measured_ceilings(self.resources.history, earlier)
        check_emulator(self.resources.backend)
        try:
            return self.resources.backend.begin(self.problem, engine.first)
        except RuntimeError as error:
            reason = first_line(error).rstrip(".")
            sizes = sizes_text(self.problem.sizes)
            raise CommandError(
                f"The GPU could not take {sizes} ({reason}); name other --sizes."
            ) from None

    def _obtain(self, engine: Engine, recorder: Recorder) -> None:
        """Obtain all outcomes, each stored before the next. Ctrl-C ends it with all so far."""
        console, started = self.command.console, self.command.start_s
        try:
            for result in engine.outcomes():
                if isinstance(result, Step):
                    if result.name == "final" and self.command.pages is None:  # the CPU is idle
                        known = recorder.run, list(recorder.outcomes), None, ()
                        prewarm_page(partial(page_of, *known))
                    self.breakdown.table(self.counts, started)
                    console.step(result)
                elif isinstance(result, Finding):
                    recorder.keep(result)
                elif isinstance(result, tuple):
                    self._note_dispatch(result, recorder)
                else:
                    recorder.keep(result)
                    self._note_outcome(result)
                    self._recommend(engine.plan, recorder)
        except KeyboardInterrupt:
            console.print_stop()
            raise
        finally:
            console.end()
            self.breakdown.end(self.resources.backend, engine.wait_s, started)
            recorder.seconds = self.breakdown.seconds

    def _note_dispatch(self, dispatch: Dispatch, recorder: Recorder) -> None:
        candidate, compiled = dispatch
        self.counts["compiled"] += 1
        self.counts["duplicate"] += compiled.duplicate
        self.command.console.update_counts(self.counts)
        recorder.write_dispatches(candidate.case, compiled)

    def _note_outcome(self, outcome: Outcome) -> None:
        self.counts[_kind(outcome)] += 1
        self.command.console.saw(outcome, self.counts)
        if isinstance(outcome, Record) and outcome.phase == "first_pass":
            self.best = min(outcome, self.best or outcome, key=lambda r: r.time_s)
            self._say_so_far(self.best)

    def _say_so_far(self, best: Record) -> None:
        """Print the best measured config where it is another one than was printed last."""
        key, at = self.last_printed
        now = time.monotonic()
        if best.key != key and self.counts["measured"] >= SO_FAR_CONFIGS and now - at >= SO_FAR_S:
            self.last_printed = best.key, now
            self.command.console.so_far(best, self.counts["measured"])

    def _recommend(self, plan: Plan, recorder: Recorder) -> None:
        """Print a first recommendation, once, while most configs are still to be tried. A
        prediction for an Apple GPU ranks nothing inside its interval, so there is none."""
        if self.has_recommended or not self.resources.backend.predicts:
            return
        late = time.monotonic() - self.command.start_s > FIRST_S
        predicted, total = self.counts["predicted"], len(plan.candidates)
        if predicted < (LEAST_CONFIGS if late else FIRST_CONFIGS):
            return
        self.has_recommended = True
        tried = predicted + self.counts["failed"] + self.counts["wrong"]
        selection = select(recorder.run, recorder.outcomes)
        if tried < total and selection.winner is not None and selection.is_ranked:
            text = sentence(replace(selection, ties=(), edges=()))
            self.command.console.first_recommendation(text, tried, total)

    def _show_again(self, old: Run, plan: Plan) -> int:
        """Show the result and the page of an earlier run that holds every outcome. Returns the exit
        code."""
        options = self.command.options
        cases = {c.key: c.case for c in plan.candidates}  # stored ones print numbers for words
        stored = self.resources.history.outcomes(old.id)
        outcomes = [replace(o, case=cases.get(o.key, o.case)) for o in stored]
        result = RunResult(
            old, outcomes, (), self.resources.history.findings(old.id), state="complete"
        )
        self.counts.update(_kind(o) for o in outcomes)
        failed = sum(isinstance(o, Failure) and o.stage != "refused" for o in outcomes)
        self.command.console.again(old, failed)
        if options.events_file is not None:
            with EventLog(options.events_file) as log:
                for event in (old, *outcomes, *result.findings):
                    log.write(event)
                log.write(RunFinished(timestamp(), old.id, "complete", dict(self.counts)))
        selection = select(old, outcomes)
        page = folder_of(options.out, old.id) / "report.html"
        if not page.is_file():
            self._page(result, selection)
        self._conclude(replace(result, page=page), selection)
        return _exit_code(outcomes)

    def _page(self, result: RunResult, selection: Selection) -> Path:
        from workbench.reports.sweep import page

        run, seconds = result.run, self.breakdown.seconds or None
        with DRAWING:
            html = page(run, result.outcomes, seconds, selection, findings=result.findings)
        return write_run_page(folder_of(self.command.options.out, run.id), html)

    def _begin_page(self, pages: PageDrawing, result: RunResult) -> Path:
        run, seconds = result.run, self.breakdown.seconds or None
        folder = folder_of(self.command.options.out, run.id)
        return pages.begin(folder, run, result.outcomes, seconds, result.findings)

    def _conclude(self, result: RunResult, selection: Selection) -> None:
        command, outcomes, page = self.command, list(result.outcomes), result.page
        assert page is not None
        command.tables[sizes_text(self.problem.sizes)] = outcomes
        command.run, command.selection, command.page = result.run, selection, page
        energy = self._energy_words(result.run, outcomes, selection)
        stopped = [finding.sentence for finding in result.findings]
        text = " ".join([sentence(selection), *stopped, *energy])
        command.results.append(result)
        command.seconds[result.run.id] = self.breakdown.seconds or {}
        command.sentences.append(text)
        command.console.conclude(text, self.counts, self.breakdown, page, result.events)
        for failure in selection.baseline_failures:
            command.console.warn(f"{failure.case.impl}: {failure.reason}.")

    def _energy_words(self, run: Run, outcomes: list[Outcome], selection: Selection) -> list[str]:
        """Return what the console says of energy, where it was requested."""
        from workbench.reports.figures.energy import energy_notes, energy_sentence

        if "energy" not in self.command.options.also:
            return []
        final = [o for o in outcomes if isinstance(o, Record) and o.phase == "final"]
        sentences = [
            energy_sentence(final, selection.winner),
            *energy_notes(final, run.environment),
        ]
        return [words for words in sentences if words]


def _prewarm_plan() -> None:
    """Read the calibrations, half a second of work that a plan needs, while the measuring process
    opens the GPU. What is wrong with one is said by the plan. (No code is parsed here: Python's
    `ast` fails in two threads at once, CPython issue 106905.)"""
    with suppress(CalibrationError):
        for name in shipped_devices():
            calibration_of(name)


def _kind(outcome: Outcome) -> str:
    if isinstance(outcome, Record):
        kinds = {"first_pass": "measured", "predict": "predicted"}
        return kinds.get(outcome.phase, outcome.phase)
    if outcome.stage == "measure" and outcome.traffic is not None:
        return "unpredicted"  # emulated and right, where the model lacks a figure
    return {"refused": "refused", "check": "wrong"}.get(outcome.stage, "failed")


def _exit_code(outcomes: Sequence[Outcome]) -> int:
    answered = any(isinstance(o, Record) or _kind(o) == "unpredicted" for o in outcomes)
    return PASSED if answered else COULD_NOT_RUN


def bits_option(options: SweepOptions, backend: Backend) -> str:
    """Return the config whose bits the winner must have; empty where none is required. Raises
    CommandError where no outputs of the GPU are there to compare."""
    if "same-bits" not in options.require:
        return ""
    if backend.predicts:
        raise CommandError(
            "--require same-bits compares outputs of a GPU, and none takes part here; leave it "
            "out, or run where there is one."
        )
    return "default"


def times_by_config(tables: Mapping[str, Sequence[Outcome]]) -> dict[str, dict[str, float]]:
    """Return seconds by sizes and config, all obtained alike: of the first pass, or predicted."""
    return {
        sizes: {
            r.case.label: r.time_s
            for r in comparable_times(outcomes).values()
            if not r.case.is_baseline
        }
        for sizes, outcomes in tables.items()
    }


def tables_of_alike_gpus(
    tables: Mapping[str, list[Outcome]], runs: Sequence[Run]
) -> tuple[Mapping[str, list[Outcome]], str]:
    """Return the tables of the most sizes whose GPUs have library references within 3 % of one of
    them, and one sentence on the sizes that are left out; empty if there are none."""
    by_sizes = {sizes_text(run.sizes): run for run in runs if run.references}
    if len(by_sizes) < len(tables):  # not of a cluster
        return tables, ""
    near = [
        [s for s in tables if alike(by_sizes[s].references, run.references)]
        for run in by_sizes.values()
    ]
    kept = max(near, key=len)
    left = [s for s in tables if s not in kept]
    if not left:
        return tables, ""
    gpus = ", ".join(dict.fromkeys(by_sizes[s].gpu for s in left))
    note = (
        f"{'; '.join(left)} ran on {gpus}, whose library references differ by more than 3 % from "
        "those of the other sizes' GPUs; the portfolio leaves them out"
    )
    return {s: tables[s] for s in kept}, note


def sweep_run(
    options: SweepOptions, sweep: Sweep, problem: Problem, impls: list[Impl], backend: Backend
) -> Run:
    """Return the run of a sweep at one size. Its command states the defaults explicitly: they may
    change, and another machine may have a GPU."""
    knobs: tuple[Knob, ...] = () if options.only else tuple(sweep.tune)
    device = backend.device.name if backend.predicts else None
    whole = replace(options, sizes=(sizes_text(problem.sizes),), device=device)
    run = new_run("sweep", options.name, whole.command, backend, [problem], tag=options.name)
    return replace(
        run,
        vary=tuple(k.__name__ for k in sweep.vary),
        tune=tuple(k.__name__ for k in knobs),
        impls={i.name: {"choices": i.choices(), "knobs": i.knobs()} for i in impls},
    )
