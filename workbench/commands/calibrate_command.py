"""Time configs of each kernel over sizes that fill its space, and write the device's calibration.

All outcomes are stored in the database as they are known, so the same command continues after a
stop of any kind.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from workbench import catalog
from workbench.backend.prewarm import KeptProcesses
from workbench.backend.protocol import Backend, Problem
from workbench.commands.console import note, say_result
from workbench.commands.options import DEFAULT_TARGET, CommandError, OptionError
from workbench.commands.problem import find_sweep
from workbench.commands.result import write_result
from workbench.commands.run import (
    Opener,
    OpenResources,
    Recorder,
    check_file,
    check_outputs,
    execute,
    gpu_present,
    new_run,
    repository_of,
    resources,
    say_page,
)
from workbench.commands.sizes import check_dtype
from workbench.data.clock import folder_of, run_id
from workbench.data.errors import first_line
from workbench.data.exits import COULD_NOT_RUN, INTERRUPTED, PASSED
from workbench.data.record import Case, Measured, Outcome, Record, Resources, Run
from workbench.data.units import amount, console_microseconds
from workbench.device.calibration import (
    Calibration,
    CalibrationTime,
    calibration_of,
    load,
    own_path,
    save,
    sizes_in,
    times_not_held_back,
)
from workbench.device.correction import calibrated_kernel, is_aligned, same_architecture
from workbench.device.hardware import Device, device_named
from workbench.measurement.candidate import Candidate
from workbench.reports import write_page
from workbench.reports.calibration import page, part_of, show
from workbench.spec import Spec, sizes_text, values
from workbench.tuner.design import design
from workbench.tuner.first_pass import FirstPass, SearchPlan
from workbench.tuner.held_back import chosen_launch
from workbench.tuner.resume import earlier_outcomes
from workbench.tuner.search import Budget, Strategy
from workbench.tuner.space import Plan, plan_sweep

if TYPE_CHECKING:
    from rich.console import Console

    from workbench.commands.calibrate import CalibrateOptions


# Kernels in which sizes decide between Impls or configs, and the dtype that models run them in
KERNELS: Mapping[str, str] = {
    "matmul": "bf16", "softmax": "bf16", "rms_norm": "bf16", "layer_norm": "bf16",
    "attention": "bf16", "causal_attention": "bf16", "q4_k_matmul": "fp16", "wkv7": "bf16",
    "lora": "bf16",
}  # fmt: skip

Launches = tuple[int, tuple[Resources, ...]]


@dataclass(frozen=True)
class SizedProblem:
    """A problem of the design; one that is held back only checks what the others give."""

    problem: Problem
    is_check: bool


@dataclass
class CalibrateCommand:
    """Calibrate one device."""

    options: CalibrateOptions
    console: Console
    open_backend: Opener | None = None
    start_s: float = field(default_factory=time.monotonic)
    times: dict[str, CalibrationTime] = field(default_factory=dict)  # by the outcome's key
    # number and resources of a call's launches, by what `_config_key` returns
    launches: dict[tuple[object, ...], Launches] = field(default_factory=dict)
    is_complete: bool = False  # every size was measured
    current_problem: Problem | None = None  # by the backend

    def go(self) -> int:
        """Run to the end. Returns 0, 2 where nothing was measured, or 130 after Ctrl-C."""
        options = self.options
        check_outputs(options)
        check_file(options.to, "--to")
        seconds = seconds_of(options)
        kernels = kernels_of(options)
        if options.device is not None or (self.open_backend is None and not gpu_present()):
            return self._show(device_named(options.device or DEFAULT_TARGET), kernels)
        processes = KeptProcesses() if self.open_backend is None else None
        try:
            if processes is not None:
                for name in kernels:
                    processes.prepare(name)  # or an import would be part of a config's time limit
            with resources(options, lambda: self._backend(processes)) as opened:
                return self._measure(opened, kernels, seconds)
        finally:
            if processes is not None:
                processes.end()

    def _backend(self, processes: KeptProcesses | None) -> Backend:
        from workbench.backend.live import Live

        repository = repository_of("matmul")
        if self.open_backend is not None:
            return self.open_backend(None, repository)
        return Live(repository, prewarm=processes)

    # Without a GPU

    def _show(self, device: Device, kernels: Mapping[str, str]) -> int:
        """Print the sizes, and what the calibration of the device gives."""
        note(f"nothing is measured; these are the sizes for {device.title}, and its calibration")
        for name, dtype in kernels.items():
            sizes = self._sizes(catalog.spec_of(name), dtype, device)
            first = "; ".join(map(sizes_text, sizes[:3]))
            self.console.print(f"{name} in {dtype}: {amount(len(sizes), 'size')}: {first}; ...")
        calibration = calibration_of(device.name)
        if calibration is None:
            others = (d for d in same_architecture(device) if calibration_of(d.name))
            source = next(others, None)
            usual = f"takes the ratios of {source.title}" if source else "takes the default"
            say_result(
                self.console,
                f"{device.title} has no calibration. `workbench calibrate` measures one where that "
                f"GPU is; until then a launch without a config {usual}.",
            )
            return write_result(self.options, "calibrate", PASSED, parts=[])
        return self._conclude(calibration, device, PASSED)

    def _sizes(self, spec: Spec, dtype: str, device: Device) -> list[dict[str, int]]:
        return design(spec, dtype, device, self.options.measure + self.options.check)

    # With one

    def _measure(self, opened: OpenResources, kernels: Mapping[str, str], seconds: float) -> int:
        backend = opened.backend
        if backend.predicts:
            raise CommandError("A calibration is measured; leave out --device where the GPU is.")
        problems = list(self._problems(kernels, backend.device))
        if not problems:
            raise CommandError("No size of these kernels suits this GPU; name others.")
        run = new_run(
            "calibrate", "all", self.options.command, backend, [p.problem for p in problems]
        )

        # the times so far, with which the command continues after a stop
        partial = self.options.out / f"calibration-{backend.device.name}.partial.csv.gz"
        before = {_config_key(t): t for t in load(partial).times} if partial.exists() else {}
        self.launches = {at: (t.launches, t.each) for at, t in before.items()}

        def obtain(recorder: Recorder) -> None:
            recorder.begin()
            for at, sized in enumerate(problems):
                left = seconds - (time.monotonic() - self.start_s)
                if left <= 0:
                    note("the budget is spent; the same command continues with what is stored")
                    break
                self._one(sized, opened, recorder, left, f"{at + 1}/{len(problems)}")
                times = before | {_config_key(t): t for t in self.times.values()}
                save(Calibration(head_of(recorder.run, backend), tuple(times.values())), partial)
            else:
                self.is_complete = True

        state = execute(opened.recorder(run), obtain, lambda recorder: None)
        code = INTERRUPTED if state == "interrupted" else PASSED
        if not self.times:
            say_result(self.console, "Nothing was measured.")
            return write_result(self.options, "calibrate", code or COULD_NOT_RUN, parts=[])
        created = self._write_calibration(run, backend)
        if self.is_complete:
            partial.unlink(missing_ok=True)
        return self._conclude(created, backend.device, code)

    def _problems(self, kernels: Mapping[str, str], device: Device) -> Iterator[SizedProblem]:
        """Yield the first size of each kernel, then the second, so that a stop leaves all of them
        alike; those that are held back last."""
        each = []
        for name, dtype in kernels.items():
            spec = catalog.spec_of(name)
            sizes = self._sizes(spec, dtype, device)
            each.append([Problem(name, spec, one, dtype) for one in sizes])
        for at, problems in enumerate(zip_longest(*each)):
            for problem in problems:
                if problem is not None:
                    yield SizedProblem(problem, at >= self.options.measure)

    def _one(
        self,
        sized: SizedProblem,
        opened: OpenResources,
        recorder: Recorder,
        seconds: float,
        place: str,
    ) -> None:
        """Time the default of each Impl, the configs that a search tries first, and where the size
        is held back also the one that a launch would take."""
        problem, backend = sized.problem, opened.backend
        impls = [i for i in problem.spec.impls if i.backend == "triton"]
        plan = plan_sweep(
            recorder.run, problem, find_sweep("full"), impls, backend.device, backend.protocol
        )
        earlier = earlier_outcomes(opened.history, plan).first
        cached = {k: o for k, o in earlier.items() if _config_key(o.case) in self.launches}
        self._keep(cached.values(), sized.is_check)
        defaults = [
            values(impl.default(backend.device.limits, problem.dtype, problem.sizes))
            for impl in impls
        ]
        own = [c for c in plan.candidates if values(c.config) in defaults]
        budget = Budget(seconds=seconds, configs=self.options.configs)
        try:
            self._pass(replace(plan, candidates=own), cached, Budget(), recorder, sized.is_check)
            self._pass(plan, cached, budget, recorder, sized.is_check)
            if sized.is_check and (choice := self._chosen_candidates(plan, backend.device)):
                more = replace(plan, candidates=choice)
                self._pass(more, cached, Budget(), recorder, sized.is_check)
        except RuntimeError as error:
            note(f"{problem.kernel} {sizes_text(problem.sizes)} is left out: {first_line(error)}")
            return
        best = min((t.median_s for t in self._here(plan)), default=None)
        text = f"best {console_microseconds(best)}" if best else "no config has a time"
        number = amount(len(self._here(plan)), "config")
        self.console.print(
            f"{place}  {problem.kernel} {sizes_text(problem.sizes)}: {number}, {text}"
        )

    def _pass(
        self,
        plan: Plan,
        outcomes: dict[str, Outcome],
        budget: Budget,
        recorder: Recorder,
        is_check: bool,
    ) -> None:
        """Time configs of a plan that have no outcome yet; adds each outcome to `outcomes`."""
        ours = {c.key: outcomes[c.key] for c in plan.candidates if c.key in outcomes}
        search = SearchPlan(Strategy.MODEL, budget, final_s=0.0)
        first = FirstPass(plan, recorder.backend, ours, search)
        if not first.first:
            return
        if self.current_problem is not plan.problem:  # its inputs are made once
            recorder.backend.begin(plan.problem, first.first)
            self.current_problem = plan.problem
        for result in first.outcomes():
            if isinstance(result, tuple):
                candidate, compiled = result
                each = compiled.each if compiled.launches > 1 else ()
                self.launches[_config_key(candidate.case)] = compiled.launches, each
            else:
                recorder.keep(result)
                outcomes[result.key] = result
                self._keep([result], is_check)

    def _keep(self, outcomes: Iterable[Outcome], is_check: bool) -> None:
        for outcome in outcomes:
            launches = self.launches.get(_config_key(outcome.case))
            if launches and (entry := time_of(outcome, launches, is_check)) is not None:
                self.times[outcome.key] = entry

    def _here(self, plan: Plan) -> list[CalibrationTime]:
        return [self.times[c.key] for c in plan.candidates if c.key in self.times]

    def _chosen_candidates(self, plan: Plan, device: Device) -> list[Candidate]:
        """Return the candidate that a launch would take by what was measured so far."""
        problem = plan.problem
        spec, dtype, sizes = problem.spec, problem.dtype, problem.sizes
        ours = (t for t in self.times.values() if (t.kernel, t.dtype) == (spec.name, dtype))
        kernel = calibrated_kernel(times_not_held_back(ours), spec, device, is_aligned(spec, sizes))
        choice = chosen_launch(kernel, device, dtype, sizes) if kernel else None
        if choice is None:
            return []
        impl, config = choice
        return [c for c in plan.candidates if (c.impl.name, c.config) == (impl.name, config)]

    # The file

    def _write_calibration(self, run: Run, backend: Backend) -> Calibration:
        """Write the calibration: what was measured now, and other kernels as they were. After a
        stop a kernel with fewer sizes than before is as it was, too."""
        path = self.options.to or own_path(backend.device.name)
        before = load(path) if path.exists() else Calibration({})
        new = Calibration({}, tuple(self.times.values()))
        times: list[CalibrationTime] = []
        for kernel in dict.fromkeys((*new.kernels, *before.kernels)):
            ours, theirs = new.times_of(*kernel), before.times_of(*kernel)
            fewer = not self.is_complete and _measured_sizes(ours) < _measured_sizes(theirs)
            times += theirs if fewer or not ours else ours
        created = Calibration(head_of(run, backend), tuple(times))
        save(created, path)
        say_result(self.console, f"calibration  {path.resolve()}")
        return created

    def _conclude(self, calibration: Calibration, device: Device, code: int) -> int:
        """Print and draw what the calibration gives at the sizes that it holds back."""
        parts = [part_of(calibration, name, dtype, device) for name, dtype in calibration.kernels]
        show(self.console, parts)
        file = folder_of(self.options.out, run_id("calibrate", device.name)) / "report.html"
        write_page(file, page(calibration, parts, device))
        say_page(self.console, file)
        return write_result(
            self.options, "calibrate", code, parts=[p.plain for p in parts], page=str(file)
        )


def seconds_of(options: CalibrateOptions) -> float:
    """Return the seconds of `--budget`. Raises OptionError for a number of configs."""
    budget = Budget.parse(options.budget)
    if budget.seconds == float("inf"):
        raise OptionError("--budget is a time; write seconds, minutes or hours: 90s, 30m.")
    return budget.seconds


def kernels_of(options: CalibrateOptions) -> dict[str, str]:
    """Return the dtype of each kernel to calibrate. Raises CommandError for one that is not the
    workbench's own, or does not support the dtype."""
    names = catalog.kernel_names()
    result = {}
    for name in dict.fromkeys(options.kernel or KERNELS):
        if name not in names:
            raise CommandError(catalog.name_hint("kernel of the workbench", name, names))
        dtype = options.dtype or KERNELS.get(name) or "bf16"
        check_dtype(catalog.spec_of(name), dtype)
        result[name] = dtype
    return result


def _config_key(of: Case | CalibrationTime) -> tuple[object, ...]:
    """Return what a config is known by in a table."""
    config = tuple(sorted(of.config.items()))
    return of.kernel, of.dtype, of.impl, config, tuple(sorted(of.sizes.items()))


def _measured_sizes(times: Sequence[CalibrationTime]) -> int:
    return len(sizes_in(t for t in times if not t.is_check))


def time_of(outcome: Outcome, launches: Launches, is_check: bool) -> CalibrationTime | None:
    """Return the time of an outcome of a first pass, also that of another config with the same
    machine code; None where it has none."""
    if not isinstance(outcome, Record) or outcome.phase != "first_pass":
        return None
    if outcome.resources is None or not isinstance(outcome.timing, Measured):
        return None
    case = outcome.case
    return CalibrationTime(
        case.kernel,
        dict(case.sizes),
        case.dtype,
        case.impl,
        dict(case.config),
        outcome.resources,
        outcome.timing.median_s,
        *launches,
        is_check,
    )


def head_of(run: Run, backend: Backend) -> dict[str, str]:
    """Return the head of the file of a calibration."""
    versions = run.environment.versions
    return {
        "device": backend.device.name,
        "gpu": run.environment.gpu or backend.device.title,
        "date": run.started[:10],
        "versions": ", ".join(f"{n} {versions[n]}" for n in ("torch", "triton") if n in versions),
        "protocol": f"cold first pass, {backend.protocol}",
        "source": f"workbench calibrate, run {run.id}",
    }
