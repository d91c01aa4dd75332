"""Run an experiment: prepare its variants, time them, report its finding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench import catalog
from workbench.backend.libraries import impl_named
from workbench.backend.prewarm import Libraries, prewarmer
from workbench.backend.protocol import Backend, Problem, TimingResult, TimingTask
from workbench.backend.refusal import refusal_of
from workbench.commands.console import doing, plan_line, say_result
from workbench.commands.result import write_result
from workbench.commands.run import (
    Opener,
    OpenResources,
    Recorder,
    any_backend,
    check_emulator,
    draw_ended_run,
    execute,
    gpu_present,
    new_run,
    paper_backend,
    repository_of,
    resources,
    say_page,
)
from workbench.commands.sizes import sizes_of
from workbench.data.clock import folder_of, timestamp
from workbench.data.database import History
from workbench.data.exits import COULD_NOT_RUN, INTERRUPTED, PASSED
from workbench.data.record import Finding, Phase, Run, key_of
from workbench.data.tuned_cache import Tuned, default_path
from workbench.data.units import amount
from workbench.device import hardware
from workbench.experiments import (
    Context,
    Experiment,
    ExperimentError,
    Variant,
    VariantResult,
    experiment_names,
    find_experiment,
    kernel_name,
    seconds,
    title_of,
)
from workbench.experiments.analysis import ceilings
from workbench.measurement.candidate import Refusal
from workbench.measurement.protocol import BOOST, Protocol
from workbench.reports.run_index import write_run_page
from workbench.spec import ITEMSIZE, Impl, Sizes
from workbench.tuner.choice import tuned_entry
from workbench.tuner.space import RecordFactory

if TYPE_CHECKING:
    from rich.console import Console

    from workbench.commands.experiment import ExperimentOptions


# Half the rounds of a final benchmark: an experiment compares times that differ by a tenth or more,
# and all experiments together should take minutes.
RULES = Protocol(rounds=12, most_rounds=32, final_s=6.0)


@dataclass
class ExperimentCommand:
    """Run an experiment on all its kernels, one after the other."""

    options: ExperimentOptions
    console: Console
    open_backend: Opener | None = None  # None: the GPU that is here, or a prediction
    tuned_file: Path | None = None  # the tuned configs; None: the user's own
    recorder: Recorder | None = None  # of the run under way
    _shown_caveats: set[str] = field(default_factory=set)  # caveats, each printed once

    def go(self) -> int:
        """Run to the end. Returns 0, 2 where nothing gave a time, or 130 after Ctrl-C."""
        options = self.options
        experiment = find_experiment(str(options.name))
        given_s = _given_seconds(options, experiment)
        with ExitStack() as stack:
            prewarms = self.open_backend is None and experiment.runs and options.device is None
            early = prewarmer(options.kernel or "copy", Libraries.NOBODY, wanted=prewarms)
            prewarm = stack.enter_context(early)
            check_dtypes(self._dtype(experiment), self._kernels(experiment))
            cache = Tuned.load(self.tuned_file or default_path())
            if prewarm is not None and not gpu_present():
                prewarm = None
            check_device(options, experiment)
            live = partial(any_backend, prewarm=prewarm, rules=RULES)
            opener = self.open_backend or (live if experiment.runs else paper_backend)
            repository = self._repository()
            opened = stack.enter_context(
                resources(options, lambda: opener(options.device, repository))
            )
            return self._go(experiment, given_s, cache, opened)

    def _go(
        self, experiment: Experiment, given_s: float | None, cache: Tuned, opened: OpenResources
    ) -> int:
        options, backend = self.options, opened.backend
        if backend.device.backend == hardware.METAL:
            check_mac(options, experiment)
        measured = ceilings.measured_ceilings(opened.history, backend.device.name) or {}
        planned = self._plan(experiment, backend, measured)
        if experiment.runs:
            check_emulator(backend)
        else:
            history = opened.history
            planned = [(_add_times(c, given_s, history), variants) for c, variants in planned]
        problems = [variant_problem(v) for _, variants in planned for v in variants]
        problems = problems or [_whole_problem(context) for context, _ in planned]
        device = backend.device.name if backend.predicts else None
        command = replace(options, device=device).command
        run = new_run("experiment", title_of(str(options.name)), command, backend, problems)
        run = replace(run, ceilings={**run.ceilings, **measured})
        on_paper = f"Nothing is run. All figures are computed for {backend.device.title}."
        line = plan_line(run) if experiment.runs else on_paper
        self.console.print(line, style="bold yellow" if run.predicted else "bold")

        obtain = partial(self._obtain, experiment, planned, cache)
        recorder = self.recorder = opened.recorder(run)
        state = execute(recorder, obtain, self._draw)
        if state == "interrupted":
            self.console.print("Stopped; the outcomes so far are stored.")
        page = draw_ended_run(recorder, self._draw)
        say_page(self.console, page)
        nothing_ran = bool(recorder.findings) and not recorder.outcomes
        code = PASSED if recorder.has_times or nothing_ran else COULD_NOT_RUN
        code = INTERRUPTED if state == "interrupted" else code
        return write_result(options, "experiment", code, [recorder.result(page)])

    def _plan(
        self, experiment: Experiment, backend: Backend, measured: Mapping[str, Any]
    ) -> list[tuple[Context, Sequence[Variant]]]:
        """Return the context of each kernel, and its variants. Raises ExperimentError."""
        options, dtype = self.options, self._dtype(experiment)
        planned: list[tuple[Context, Sequence[Variant]]] = []
        for kernel in self._kernels(experiment):
            if options.sizes is not None and not kernel:
                raise ExperimentError(
                    f"--sizes are those of a kernel, and {options.name} names its own; leave "
                    "--sizes out."
                )
            named = options.sizes
            sizes = sizes_of(catalog.spec_of(kernel), named) if named is not None else None
            context = Context(kernel, sizes, dtype, backend.device, backend.predicts, measured)
            variants = list(experiment.variants(context))
            for variant in variants:
                check_dtypes(variant.dtype, (variant.kernel,))
            planned.append((context, variants))
        return planned

    def _repository(self) -> Path:
        """Return the folder whose commit the results belong to: of the kernel or experiment."""
        kernel, name = self.options.kernel, str(self.options.name)
        if kernel is None and catalog.is_path(name):
            return Path(name).resolve().parent
        return repository_of(kernel or "matmul")

    def _dtype(self, experiment: Experiment) -> str:
        return experiment.dtype if self.options.dtype is None else self.options.dtype

    def _kernels(self, experiment: Experiment) -> tuple[str, ...]:
        """Return the kernels that are examined; an empty name if the experiment has its own."""
        kernel = self.options.kernel
        return (kernel,) if kernel is not None else experiment.kernels or ("",)

    def _obtain(
        self,
        experiment: Experiment,
        planned: Sequence[tuple[Context, Sequence[Variant]]],
        cache: Tuned,
        recorder: Recorder,
    ) -> None:
        """Time and analyse every kernel in turn, each stored and shown before the next."""
        from workbench.reports.experiment import show

        backend = recorder.backend
        every = [prepare(c, variants, recorder.run, backend, cache) for c, variants in planned]
        for at, prepared in enumerate(every, 1):
            context = prepared.context
            with self._doing(prepared, f"{at}/{len(every)}" if len(every) > 1 else ""):
                if not recorder.has_begun:
                    compile_all(every, backend)
                tested = begin(prepared, backend)
                if not recorder.has_begun:  # ceilings that were measured before go first
                    recorder.begin({**tested, **recorder.run.ceilings})
                results, _ = timed_in_states(prepared, recorder.run, backend)
            for result in results.values():
                keep_variant(result, recorder)
            whole = replace(context, ceilings=recorder.run.ceilings)
            for analysis in experiment.analyse(whole, results):
                sizes = whole.sizes or _common_sizes(context, prepared.variants)
                about = replace(whole, sizes=sizes)
                finding = analysis.finding(recorder.run.id, timestamp(), recorder.run.name, about)
                recorder.keep(finding)
                show(self.console, finding, self._shown_caveats)
                if self.console.quiet:
                    say_result(self.console, finding_line(finding))

    def _doing(self, prepared: Prepared, at: str) -> AbstractContextManager[None]:
        """Show what is running, which may take a minute before the first finding."""
        if not prepared.variants:
            return nullcontext()
        last = "predicted" if prepared.context.predicts else "timed"
        about = kernel_name(prepared.context.kernel) or title_of(str(self.options.name))
        variants = amount(len(prepared.variants), "variant")
        text = f"{at} {about}: {variants}, compiled, checked and {last}"
        return doing(self.console, text.strip())

    def _draw(self, recorder: Recorder) -> Path:
        from workbench.reports.experiment import page

        html = page(recorder.run, recorder.outcomes, recorder.findings)
        return write_run_page(folder_of(self.options.out, recorder.run.id), html)


def check_device(options: ExperimentOptions, experiment: Experiment) -> None:
    """Raise ExperimentError where an experiment that needs a GPU is to run for an Apple GPU that is
    not present."""
    metal = hardware.backend_of(options.device) == hardware.METAL
    if metal and experiment.runs and not experiment.is_emulated:
        name = title_of(str(options.name))
        swept = f"`workbench sweep {name} --device {options.device} --dtype fp16` emulates, checks"
        is_sweep = name in catalog.names_in("workbench.sweeps")
        hint = f"{swept} and counts its configs; or " if is_sweep else ""
        raise ExperimentError(
            f"{name} needs a GPU: nothing predicts its times for {options.device}; {hint}name "
            f"another device, or one of {_metal_names()}."
        )


def check_mac(options: ExperimentOptions, experiment: Experiment) -> None:
    """Raise ExperimentError where an experiment cannot be measured on a Mac."""
    if experiment.runs and not experiment.is_emulated:
        raise ExperimentError(
            f"{title_of(str(options.name))} times Triton kernels or by the host's clock, and a Mac "
            f"has neither, since MLX returns before the launch; name one of {_metal_names()}."
        )


def _metal_names() -> str:
    """Return the names of the experiments that take Apple's GPUs."""
    return ", ".join(name for name in experiment_names() if find_experiment(name).is_emulated)


def keep_variant(result: VariantResult, recorder: Recorder) -> None:
    """Store the outcome of a variant, and write its events."""
    name, outcome = result.variant.name, result.outcome
    recorder.write_dispatches(outcome.case, result.compilation, name)
    recorder.keep(outcome, name)


def finding_line(finding: Finding) -> str:
    """Return a finding as one line: `matmul: compute-bound. Its arithmetic alone takes ...`."""
    about = f"{finding.kernel}: " if finding.kernel else ""
    return f"{about}{finding.word}. {finding.sentence}"


def _given_seconds(options: ExperimentOptions, experiment: Experiment) -> float | None:
    """Return the seconds of `--time`. Raises ExperimentError."""
    if options.time is None:
        return None
    if experiment.runs:
        message = f"--time is for what is not run, and {options.name} is; leave it out."
        raise ExperimentError(message)
    return seconds(options.time)


def _add_times(context: Context, given_s: float | None, history: History) -> Context:
    """Return the context with a time to compare with the expected one: given, or stored."""
    name = catalog.spec_of(context.kernel).name
    rows = history.search(name, device=context.device.name, dtype=context.dtype, limit=10_000)
    return replace(context, given_s=given_s, earlier=rows)


def check_dtypes(dtype: str, kernels: Sequence[str]) -> None:
    """Raise ExperimentError where a kernel lacks this dtype, CatalogError for no such kernel."""
    if dtype not in ITEMSIZE:
        raise ExperimentError(catalog.name_hint("dtype", dtype, ITEMSIZE))
    for kernel in filter(None, kernels):
        spec = catalog.spec_of(kernel)
        if dtype not in spec.tolerance:
            raise ExperimentError(
                f"{spec.name} is for {', '.join(spec.tolerance)} and not for {dtype}; name one of "
                "those with --dtype."
            )


def _common_sizes(context: Context, variants: Sequence[Variant]) -> Sizes | None:
    """Return the sizes that all variants of the kernel share; None if they differ."""
    mine = [dict(v.sizes) for v in variants if v.kernel == context.kernel]
    return mine[0] if mine and all(sizes == mine[0] for sizes in mine) else None


def _whole_problem(context: Context) -> Problem:
    spec = catalog.spec_of(context.kernel)
    return Problem(context.kernel, spec, dict(context.sizes or spec.bench[0]), context.dtype)


# One kernel


@dataclass(frozen=True)
class Prepared:
    """One kernel of the experiment: its variants, and the timing task of each."""

    context: Context
    variants: Sequence[Variant]
    tasks: Mapping[str, TimingTask]  # by the variant's name
    refusals: Mapping[str, Refusal]


def variant_problem(variant: Variant) -> Problem:
    """Return the problem of a variant. Raises CatalogError."""
    spec = catalog.spec_of(variant.kernel)
    return Problem(variant.kernel, spec, dict(variant.sizes), variant.dtype)


def prepare(
    context: Context, variants: Sequence[Variant], run: Run, backend: Backend, cache: Tuned
) -> Prepared:
    """Return the timing tasks of a kernel's variants. Variants whose Impl rejects their config are
    listed separately, with the reason."""
    tasks: dict[str, TimingTask] = {}
    refused: dict[str, Refusal] = {}
    for variant in variants:
        problem = variant_problem(variant)
        impl = impl_named(problem.spec, variant.impl)
        if variant.config is not None:
            config = impl.config_of(variant.config)
        else:
            config = _config(problem, impl, backend, cache)
        factory = RecordFactory(run, problem, backend.protocol)
        candidate = factory.candidate(impl, config, False)
        if variant.clock == "host":  # a different quantity than the time on the device
            key = key_of(candidate.case, of=candidate.key, clock="host")
            candidate = replace(candidate, key=key)
        tasks[variant.name] = TimingTask(problem, candidate, variant.regime, variant.clock)
        if reason := refusal_of(candidate, problem, backend.device):
            refused[variant.name] = Refusal("refused", reason)
    return Prepared(context, variants, tasks, refused)


def _config(problem: Problem, impl: Impl, backend: Backend, cache: Tuned) -> Any:
    """Return the config that was tuned for this problem on this device, else the default."""
    if impl.backend == "triton" and not backend.predicts:
        at = impl, backend.device, problem.dtype, problem.sizes
        entry = tuned_entry(cache, *at, backend.environment.versions)
        if entry is not None:
            return impl.config_of(entry.config)
    return impl.default(backend.device.limits, problem.dtype, problem.sizes)


def compile_all(every: Sequence[Prepared], backend: Backend) -> None:
    """Compile the variants of all kernels at once, since one kernel alone would leave most
    processes idle. A failure is reported where the variant is timed."""
    from workbench.backend.live import Live

    if isinstance(backend, Live):
        todo = [(p, name) for p in every for name in p.tasks if name not in p.refusals]
        backend.compile_tasks([prepared.tasks[name] for prepared, name in todo])


def begin(prepared: Prepared, backend: Backend) -> dict[str, dict[str, Any]]:
    """Begin with the first problem that can run and fits the GPU. Returns the ceilings that
    `backend.begin` measured, or none where no problem fits, which each variant then reports."""
    todo = [t.problem for name, t in prepared.tasks.items() if name not in prepared.refusals]
    for at, problem in enumerate(todo):
        if problem not in todo[:at]:
            with suppress(RuntimeError):
                return backend.begin(problem)
    return {}


def timed_in_states(
    prepared: Prepared, run: Run, backend: Backend
) -> tuple[dict[str, VariantResult], dict[str, VariantResult]]:
    """Return the result of each variant by name: sustained, then those in the state boost, of tasks
    that request it and were correct."""
    todo = [name for name in prepared.tasks if name not in prepared.refusals]
    tasks = [prepared.tasks[name] for name in todo]
    results = backend.measure_interleaved(tasks) if tasks else []
    outcomes = dict(zip(todo, results, strict=True))
    mine = prepared.variants
    boosted = {
        v.name: _boost_result(v, prepared.tasks[v.name], result, run, backend)
        for v in mine
        if (result := outcomes.get(v.name)) is not None and result.boost is not None
    }
    return {v.name: _result(v, prepared, outcomes.get(v.name), run, backend) for v in mine}, boosted


def _boost_result(
    variant: Variant, task: TimingTask, result: TimingResult, run: Run, backend: Backend
) -> VariantResult:
    """Return the result in the state boost, which has a key of its own: it is not a final."""
    assert result.boost is not None
    key = key_of(task.candidate.case, of=task.candidate.key, state="boost", rules=BOOST.id)
    factory = RecordFactory(run, task.problem, backend.protocol)
    candidate = replace(task.candidate, key=key)
    outcome = factory.outcome(candidate, result.boost, "first_pass", result.compilation)
    return VariantResult(variant, outcome, result.compilation, result.kernels, result.peak_bytes)


def _result(
    variant: Variant, prepared: Prepared, result: TimingResult | None, run: Run, backend: Backend
) -> VariantResult:
    task = prepared.tasks[variant.name]
    factory = RecordFactory(run, task.problem, backend.protocol)
    if result is None:
        refusal = prepared.refusals[variant.name]
        return VariantResult(variant, factory.failure(task.candidate, refusal))
    measured: Phase = "hot" if variant.regime == "hot" else "final"
    phase: Phase = "predict" if backend.predicts else measured
    outcome = factory.outcome(task.candidate, result.result, phase, result.compilation)
    return VariantResult(variant, outcome, result.compilation, result.kernels, result.peak_bytes)
