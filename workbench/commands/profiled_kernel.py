"""A kernel before it is profiled: its config is resolved, checked, and on a GPU measured without a
tool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench import catalog
from workbench.backend.protocol import Problem, TimingTask
from workbench.commands.console import prints_aside
from workbench.commands.operands import Operand, operands_of
from workbench.commands.options import DEFAULT_TARGET, CommandError
from workbench.commands.result import write_result
from workbench.commands.run import (
    OpenResources,
    Recorder,
    backend_for,
    execute,
    gpu_present,
    new_run,
    repository_of,
    resources,
)
from workbench.commands.selected import Selected
from workbench.commands.sizes import check_dtype, sizes_of
from workbench.data.clock import slug
from workbench.data.exits import INTERRUPTED, PASSED, stopped_by
from workbench.data.record import Failure, Outcome, Record, Run
from workbench.data.tuned_cache import Tuned, default_path
from workbench.data.units import duration
from workbench.device import hardware
from workbench.device.error_band import factor_words
from workbench.measurement.candidate import Candidate
from workbench.spec import Impl, Limits, Spec, label, sizes_text, values
from workbench.traces.profilers import ProfilerError, preflight, profilers
from workbench.traces.profilers.gputrace import MODULE, NAME
from workbench.traces.profilers.running.call_script import OneCall
from workbench.traces.profilers.running.child import run_child
from workbench.traces.profilers.running.machine import Machine
from workbench.traces.profilers.running.workload import CALL_LIMIT_S, MarkedCalls, Workload
from workbench.tuner.space import RecordFactory

if TYPE_CHECKING:
    from rich.console import Console

    from workbench.backend.prewarm import Prewarm
    from workbench.commands.profile import ProfileOptions

DEFAULT_DTYPE = "bf16"
DEFAULT_CALLS = 10  # of tools that do not say otherwise


@dataclass(frozen=True)
class PreparedKernel:
    """A kernel that is ready to be profiled."""

    run: Run | None  # holds the plain time; None where nothing is run
    call: OneCall
    marks: MarkedCalls
    sentence: str  # what will be recorded
    records: tuple[Record, ...] = ()  # the plain time
    has_begun: bool = False  # the run is stored

    def change_calls(self, calls: int) -> PreparedKernel:
        """Return the same with another number of calls to record."""
        return replace(
            self, call=replace(self.call, calls=calls), marks=replace(self.marks, calls=calls)
        )


def prepare_kernel(
    options: ProfileOptions, machine: Machine, console: Console, prewarm: Prewarm | None = None
) -> PreparedKernel | int:
    """Resolve, check, and on a GPU measure a kernel, by processes of `prewarm` if they were
    started before. Returns what is to be profiled, or an exit code after Ctrl-C. Raises
    CommandError where the config is wrong or cannot run."""
    spec, sizes, dtype = _problem(options, machine)
    problem = Problem(str(options.kernel), spec, sizes, dtype)
    operand = _operand(options, spec)
    repository = repository_of(problem.kernel)
    seen = prewarm if prewarm and gpu_present() else None  # torch may be told to see none
    with resources(options, lambda: backend_for(None, repository, seen)) as opened:
        selected = Selected([operand], Tuned.load(default_path()), opened.backend)
        impl, config, origin = next(selected.configs(problem))
        _check_config(impl, config, opened.backend.device.limits, dtype, sizes)
        plain = _PlainRun(options, problem, impl, config, opened, console)
        if not plain.go():
            return INTERRUPTED
    gpu = machine.gpu if not opened.backend.predicts else ""
    call = _call(options, problem, impl, config, gpu)
    kernels = MarkedCalls(call.calls, bool(gpu), plain.kernel, plain.launches)
    text = f"{impl.title} {label(values(config))}".rstrip()
    sentence = _sentence(call, f"{text} ({origin})", impl, plain.outcome)
    records = (plain.outcome,) if plain.outcome is not None else ()
    return PreparedKernel(plain.run, call, kernels, sentence, records, plain.begun)


def planned_kernel(options: ProfileOptions, machine: Machine) -> PreparedKernel:
    """Return what would be profiled, with the config resolved and nothing run. Raises CommandError
    and the errors of kernels that are not there."""
    spec, sizes, dtype = _problem(options, machine)
    problem = Problem(str(options.kernel), spec, sizes, dtype)
    device = (hardware.live() if machine.gpu else None) or hardware.device_named(DEFAULT_TARGET)
    impl, config = _operand(options, spec).choose(spec, device.limits, dtype, sizes)
    _check_config(impl, config, device.limits, dtype, sizes)
    call = _call(options, problem, impl, config, machine.gpu)
    return PreparedKernel(None, call, MarkedCalls(call.calls, bool(machine.gpu)), "")


def _problem(options: ProfileOptions, machine: Machine) -> tuple[Spec, dict[str, int], str]:
    """Return Spec, sizes and dtype. Without a GPU the default sizes are the largest of those to
    check: a reference on a CPU takes minutes at sizes to time."""
    spec = catalog.spec_of(str(options.kernel))
    dtype = options.dtype or DEFAULT_DTYPE
    check_dtype(spec, dtype)
    if options.sizes is None and not machine.gpu:
        largest: Mapping[str, int] = max(spec.check, key=lambda sizes: spec.bytes(sizes, dtype))
        return spec, dict(largest), dtype
    return spec, sizes_of(spec, options.sizes), dtype


def _operand(options: ProfileOptions, spec: Spec) -> Operand:
    if options.impl is None:
        return Operand()
    return operands_of((options.impl, options.impl), None, spec, None)[0]


def _check_config(
    impl: Impl, config: Any, limits: Limits, dtype: str, sizes: Mapping[str, int]
) -> None:
    reason = impl.rejection_reason(config, limits, dtype, sizes)
    if reason is not None:
        at = f" at {label(values(config))}" if values(config) else ""
        raise CommandError(f"{impl.title}{at} cannot run ({reason}); name another config.")


def _call(options: ProfileOptions, problem: Problem, impl: Impl, config: Any, gpu: str) -> OneCall:
    """Return the call to record: the Impl on a GPU; on a CPU a library's own version as it is, and
    for a kernel of Triton the reference, since the interpreter's calls say nothing of it."""
    kernel = str(options.kernel)
    own = bool(gpu) or impl.backend == "torch"
    return OneCall(
        catalog.absolute(kernel),
        impl.title if own else f"{problem.spec.name}.reference",
        impl.name if own else None,
        values(config) if own else {},
        problem.sizes,
        problem.dtype,
        gpu,
        options.calls or DEFAULT_CALLS,
        impl.mutates if own else (),
    )


def _sentence(call: OneCall, text: str, impl: Impl, outcome: Record | None) -> str:
    """Return what is known of the config and what will be recorded."""
    at = f"{sizes_text(call.sizes)}, {call.dtype}"
    spent = duration(outcome.time_s) if outcome else ""
    if call.gpu:
        return f"{text} at {at}: right{f', {spent} without a profiler' if spent else ''}."
    instead = "" if call.impl else f", in place of {impl.title}"
    right = ""
    if outcome:
        error = factor_words([outcome])
        right = f"{text}: right, ~{spent} predicted for {outcome.case.device} ({error}). "
    return f"{right}No GPU: {call.title} is recorded on the CPU at {at}{instead}."


class _PlainRun:
    """The config checked, and timed or predicted, before any profiler enters; an ordinary outcome
    of a run."""

    def __init__(
        self,
        options: ProfileOptions,
        problem: Problem,
        impl: Impl,
        config: Any,
        opened: OpenResources,
        console: Console,
    ) -> None:
        self._options, self._problem, self._impl, self._config = options, problem, impl, config
        self._opened, self._console = opened, console
        self.run: Run | None = None
        self.begun, self.kernel = False, ""
        self.launches: int | None = None
        self.outcome: Record | None = None
        self.result: Outcome | None = None

    def go(self) -> bool:
        """Obtain and store the outcome. Returns whether it was not interrupted. Raises CommandError
        where the config is wrong."""
        backend = self._opened.backend
        whole = replace(
            self._options, sizes=sizes_text(self._problem.sizes), dtype=self._problem.dtype
        )
        run = new_run("profile", self._impl.title, whole.command, backend, [self._problem])
        self.run = run = replace(run, kind="trace")
        if backend.predicts and self._impl.backend == "torch":
            return True  # nothing to compile or to predict: the library is taken as it is
        how = "in Triton's interpreter" if backend.predicts else "and timed without a profiler"
        self._console.print(f"{self._impl.title} is checked first, {how}.", soft_wrap=True)
        recorder = self._opened.recorder(run)
        state = execute(recorder, self._obtain, lambda _: None)
        self.run, self.begun = recorder.run, True
        if isinstance(self.result, Failure):
            reason = f"{self.result.stage}: {self.result.reason}".rstrip(".")
            raise CommandError(
                f"{self._impl.title} fails without a profiler ({reason}); correct it, and "
                "profile it then."
            )
        return state == "complete"

    def _obtain(self, recorder: Recorder) -> None:
        backend = recorder.backend
        factory = RecordFactory(recorder.run, self._problem, backend.protocol)
        candidate: Candidate = factory.candidate(self._impl, self._config, False)
        compiling = [candidate] if self._impl.backend == "triton" else []
        recorder.begin(backend.begin(self._problem, compiling))
        task = TimingTask(self._problem, candidate)
        (timed,) = backend.measure_interleaved([task])
        phase = "predict" if backend.predicts else "final"
        outcome = factory.outcome(candidate, timed.result, phase, timed.compilation)  # type: ignore[arg-type]
        recorder.keep(outcome)
        self.result = outcome
        self.outcome = outcome if isinstance(outcome, Record) else None
        self.kernel = timed.compilation.kernel if timed.compilation else ""
        # what restores an input that a call changes is launched outside of the marked ranges
        self.launches = None if self._impl.mutates else timed.kernels


FOLDER = Path("perf")


def trace_path(kernel: str, day: date, folder: Path = FOLDER) -> Path:
    """Return the name of a new capture, `perf/softmax_2026-11-24.gputrace`, with `_2` and so on
    where that one is there."""
    stem = f"{slug(catalog.spec_of(kernel).name)}_{day.isoformat()}"
    names = (f"{stem}.gputrace" if n == 1 else f"{stem}_{n}.gputrace" for n in count(1))
    return next(folder / name for name in names if not (folder / name).exists())


def words_of(options: ProfileOptions, *more: str) -> list[str]:
    """Return the options that name a call of a kernel, and `more` of them, as words."""
    given = ((name, getattr(options, name)) for name in ("impl", "sizes", "dtype", *more))
    return [word for name, v in given if v is not None for word in (f"--{name}", str(v))]


def capture_workload(options: ProfileOptions, machine: Machine, trace: Path) -> Workload:
    """Return the call of a kernel that is captured."""
    words = [machine.python, "-m", MODULE, catalog.absolute(str(options.kernel))]
    words += words_of(options, "calls")
    words += ["--trace", str(trace)]
    return Workload(tuple(words), str(options.kernel), marks=MarkedCalls(options.calls or 1, True))


def capture(options: ProfileOptions, machine: Machine, console: Console) -> int:
    """Take the capture, in a process of its own. Returns the exit code. Raises ProfilerError where
    it cannot be taken or is not there afterwards."""
    tool = profilers()[NAME]
    trace = trace_path(str(options.kernel), datetime.now(UTC).date())
    workload = capture_workload(options, machine, trace)
    preflight(tool, machine, workload)
    argv = tool.argv(machine, workload, FOLDER)
    FOLDER.mkdir(exist_ok=True)
    end = run_child(argv, CALL_LIMIT_S, own=True, aside=prints_aside(options), more=tool.variables)
    if end.stop_signal:
        return stopped_by(end.stop_signal)
    missing = [path for path in tool.reads(workload, FOLDER) if not path.exists()]
    if end.code or missing:
        lost = f"{missing[0]} is missing" if missing else f"it ended with code {end.code}"
        raise ProfilerError(f"The capture of {options.kernel} failed ({lost}); see above.")
    for path in tool.reads(workload, FOLDER):
        console.print(f"written  {path}", soft_wrap=True)
    console.print("Open it in Xcode; enter what it shows in the JSON file, under entered_by_hand.")
    return write_result(options, "profile", PASSED)
