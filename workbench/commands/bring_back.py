"""The steps of `python -m metal_shim.bring_back`: what a Mac's owner measures once for others.

Each step yields results that are stored before the next, and leaves out those that an earlier,
stopped run of it stored. No Mac has run it yet; a rehearsal runs all of it but the last step.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from workbench import catalog
from workbench.backend.libraries import MLX, library_impls
from workbench.backend.metal.emulated import count_task
from workbench.backend.metal.metal import MetalLive
from workbench.backend.protocol import Problem, TimingTask
from workbench.commands.run import new_run
from workbench.compile import Compiled
from workbench.data.clock import timestamp
from workbench.data.errors import first_sentence
from workbench.data.events import Event, EventLog, RunFinished, read
from workbench.data.files import write_file
from workbench.data.record import Evidence, Failure, Finding, Outcome, Record, Run
from workbench.data.returned import COMMAND, ENGINE, FULL, REHEARSAL, hide_paths, pack
from workbench.data.units import duration
from workbench.device.hardware import Device
from workbench.experiments import VariantResult
from workbench.experiments.analysis.ceilings import CeilingGroup, Sought, evaluate, groups_of
from workbench.measurement import metal_worker
from workbench.measurement.candidate import Candidate
from workbench.spec import Impl, Knob, Sizes, WorkbenchError, sizes_text, threads, tile
from workbench.traces.profilers import preflight, run_tool
from workbench.traces.profilers.running.machine import machine_here
from workbench.traces.profilers.running.workload import Workload
from workbench.traces.profilers.xctrace import PROFILER as XCTRACE
from workbench.traces.trace_summary import summarise
from workbench.tuner.space import RecordFactory

SWEPT: tuple[tuple[str, str, Knob], ...] = (
    ("softmax", "simd_rows", threads),
    ("matmul", "tiled", tile),
)
KERNELS = (
    "softmax", "rms_norm", "layer_norm", "matmul", "matvec", "lora", "q4_k_matmul",
    "sample_topk_topp",
)  # fmt: skip
KPIS = ("GPU utilisation", "mean gap", "kernel count", "mean kernel time")
RECORDED = ("-m", "metal_shim.capture", "softmax", "--calls", "200")
TASK_S = 300.0  # of the checks of one kernel


@dataclass(frozen=True)
class BringBackPlan:
    """What is measured, and on what. A rehearsal takes the smallest size of each."""

    kernels: Sequence[str] = KERNELS
    checked_kernels: Sequence[str] = field(default_factory=lambda: catalog.names_in(catalog.METAL))
    ceilings: bool = True
    sizes: int = 4
    dtype: str = "fp16"
    rehearsal: bool = False

    def sizes_of(self, kernel: str) -> list[Sizes]:
        """Return the sizes to time: those that move the fewest bytes."""
        spec = catalog.spec_of(kernel)
        every = spec.check if self.rehearsal else spec.bench
        return sorted(every, key=lambda sizes: spec.bytes(sizes, self.dtype))[: self.sizes]

    def ceiling_group(self, device: Device) -> CeilingGroup:
        """Return the ceilings to measure, those of `workbench ceilings`; none unless wanted."""
        (group,) = groups_of(device, None)
        sought = group.sought if self.ceilings else ()
        return replace(group, sought=tuple(map(self._rehearsal_ceiling, sought)))

    def _rehearsal_ceiling(self, sought: Sought) -> Sought:
        """Return a ceiling at the smallest size to check in a rehearsal."""
        if not self.rehearsal:
            return sought
        (variant,) = sought.variants
        spec = catalog.spec_of(variant.kernel)
        sizes = min(spec.check, key=lambda sizes: spec.bytes(sizes, variant.dtype))
        return replace(sought, variants=(replace(variant, sizes=dict(sizes)),))


@dataclass
class BringBack:
    """One run: `outcomes` yields every result, and leaves out what `known` holds."""

    backend: MetalLive
    run: Run
    plan: BringBackPlan
    events: Sequence[Event] = ()
    say: Callable[[str], None] = print

    def __post_init__(self) -> None:
        self._keys = {e.key for e in self.events if isinstance(e, Record | Failure)}
        self._stated = {(e.experiment, e.kernel) for e in self.events if isinstance(e, Finding)}
        self._times = {e.key: e for e in self.events if isinstance(e, Record)}

    def outcomes(self) -> Iterator[Event]:
        """Yield the results of the steps in their order; the fingerprint was the first."""
        steps = (
            ("every Metal kernel is checked", self._checks),
            ("ceilings: read, copy, multiply and add", self._ceilings),
            ("eight kernels at four sizes, and MLX's own versions", self._kernels),
            ("threadgroups of softmax and tiles of matmul", self._sweeps),
            ("the emulator against the GPU, on the same inputs", self._emulator),
            ("a capture and a Metal System Trace, where Xcode is there", self._xctrace),
        )
        for number, (title, step) in enumerate(steps, 2):
            self.say(f"step {number} of {len(steps) + 1}: {title}")
            yield from step()

    def _checks(self) -> Iterator[Event]:
        for kernel in self.plan.checked_kernels:
            if ("metal_checks", kernel) in self._stated:
                continue
            yield self._finding("metal_checks", kernel, partial(self._check, kernel))

    def _check(self, kernel: str) -> tuple[str, str, list[Evidence]]:
        least = self.plan.sizes if self.plan.rehearsal else None
        done = self.backend.ask(metal_worker.check_kernel, kernel, least, limit_s=TASK_S)
        evidence = [
            Evidence("cases", done.cases, "1", "computed"),
            Evidence("wrong results", done.wrong, "1", "computed"),
            Evidence("largest error over its tolerance", min(done.error, 1e9), "1", "computed"),
        ]
        return ("wrong" if done.wrong else "right"), done.sentence, evidence

    def _ceilings(self) -> Iterator[Event]:
        for variant in self.plan.ceiling_group(self.backend.device).variants:
            yield from self._measure(variant.kernel, [variant.impl], variant.sizes, variant.dtype)

    def _kernels(self) -> Iterator[Event]:
        for kernel in self.plan.kernels:
            spec = catalog.spec_of(kernel)
            own = next(i.name for i in spec.impls if i.backend == "metal")
            for sizes in self.plan.sizes_of(kernel):
                yield from self._measure(kernel, [own, MLX], sizes, self.plan.dtype)

    def _sweeps(self) -> Iterator[Event]:
        for kernel, impl, knob in SWEPT:
            if kernel in self.plan.kernels:
                sizes = self.plan.sizes_of(kernel)[-1]
                yield from self._measure(kernel, [impl], sizes, self.plan.dtype, knob)

    def _emulator(self) -> Iterator[Event]:
        for kernel in self.plan.kernels:
            if ("emulator", kernel) not in self._stated:
                yield self._finding("emulator", kernel, partial(self._compare_emulator, kernel))

    def _compare_emulator(self, kernel: str) -> tuple[str, str, list[Evidence]]:
        sizes = self.plan.sizes_of(kernel)[-1]
        problem, (candidate, *_) = self._candidates(kernel, [None], sizes, self.plan.dtype)
        device = self.backend.device
        task = metal_worker.MetalTask(kernel, candidate, sizes, problem.dtype, device)
        error = self.backend.ask(metal_worker.emulator_difference, task, limit_s=TASK_S)
        name = "largest difference over its tolerance"
        evidence = [Evidence(name, min(error, 1e9), "1", "computed")]
        counted = count_task(kernel, candidate, sizes, problem.dtype, device)
        if isinstance(counted, Compiled) and counted.traffic:
            bytes_ = float(counted.traffic.bytes)
            evidence.append(Evidence("counted bytes of a call", bytes_, "B", "computed"))
            if (record := self._times.get(candidate.key)) is not None:
                rate = bytes_ / record.time_s
                evidence.append(Evidence("counted bytes over the time", rate, "B/s", "measured"))
        word = "same" if error <= 1 else "different"
        return word, f"The emulator and the device give {word} results.", evidence

    def _xctrace(self) -> Iterator[Event]:
        if not self.plan.rehearsal and ("xctrace", "softmax") not in self._stated:
            yield self._finding("xctrace", "softmax", xctrace_figures)

    def _measure(
        self, kernel: str, impls: Sequence[str], sizes: Sizes, dtype: str, *knobs: Knob
    ) -> Iterator[Outcome]:
        """Yield the outcomes of Impls at one size that are not known, timed in turns; with `knobs`
        those of each of their values."""
        problem, candidates = self._candidates(kernel, impls, sizes, dtype, *knobs)
        left = [c for c in candidates if c.key not in self._keys]
        factory = self._factory(problem)
        results = self.backend.measure_interleaved([TimingTask(problem, c) for c in left])
        for candidate, result in zip(left, results, strict=True):
            outcome = factory.outcome(candidate, result.result, "final", None)
            if isinstance(outcome, Failure):
                outcome = replace(outcome, reason=hide_paths(outcome.reason))
            else:
                self._times[outcome.key] = outcome
            self._keys.add(outcome.key)
            self.say(f"  {outcome_line(outcome, self.plan.rehearsal)}")
            yield outcome

    def _candidates(
        self, kernel: str, impls: Sequence[str | None], sizes: Sizes, dtype: str, *knobs: Knob
    ) -> tuple[Problem, list[Candidate]]:
        limits = self.backend.device.limits
        problem = Problem(kernel, catalog.spec_of(kernel), dict(sizes), dtype)
        factory, candidates = self._factory(problem), list[Candidate]()
        for impl in filter(None, (self._impl(kernel, name) for name in impls)):
            default = impl.default(limits, dtype, sizes)
            configs = dict.fromkeys((default, *(impl.space(default, knobs) if knobs else ())))
            for config in configs:
                if impl.rejection_reason(config, limits, dtype, sizes) is None:
                    candidates.append(factory.candidate(impl, config, config == default))
        return problem, candidates

    def _impl(self, kernel: str, name: str | None) -> Impl | None:
        """Return an Impl by its name, the first Metal one for None; None where MLX has no such
        operation."""
        spec = catalog.spec_of(kernel)
        if name == MLX:
            return next(iter(library_impls(spec, self.backend.device, False)), None)
        return next(i for i in spec.impls if i.backend == "metal" and name in (None, i.name))

    def _factory(self, problem: Problem) -> RecordFactory:
        return RecordFactory(self.run, problem, self.backend.protocol)

    def _finding(
        self, experiment: str, kernel: str, obtain: Callable[[], tuple[str, str, list[Evidence]]]
    ) -> Finding:
        """Return what a step says of a kernel; a step that fails is a finding too."""
        try:
            word, sentence, evidence = obtain()
        except (WorkbenchError, OSError, RuntimeError, ValueError) as error:
            word, sentence, evidence = "not possible", first_sentence(error), []
        self.say(f"  {kernel}: {word}. {sentence}")
        return Finding(
            self.run.id, timestamp(), experiment, kernel, {}, "", word, hide_paths(sentence),
            tuple(evidence),
        )  # fmt: skip


def outcome_line(outcome: Outcome, rehearsal: bool) -> str:
    """Return an outcome in one line of the terminal."""
    case = outcome.case
    name = f"{case.kernel}.{case.label} {sizes_text(case.sizes, ' ')} {case.dtype}"
    if isinstance(outcome, Failure):
        return f"{name}: no time ({outcome.reason})"
    clock = " by the clock of a rehearsal" if rehearsal else ""
    return f"{name}: {duration(outcome.time_s)}{clock}"


def xctrace_figures() -> tuple[str, str, list[Evidence]]:
    """Return what a Metal System Trace of 200 calls says of our process, after a capture for Xcode
    that stays in `perf/`. Raises ProfilerError where it cannot be recorded."""
    machine = machine_here()
    workload = Workload((sys.executable, *RECORDED), "softmax")
    preflight(XCTRACE, machine, workload)
    command = [sys.executable, "-m", "workbench", "profile", "softmax", "--tool", "gputrace"]
    captured = subprocess.run(command, check=False).returncode == 0
    with TemporaryDirectory() as folder:
        trace = XCTRACE.parse(run_tool(XCTRACE, machine, workload, Path(folder), 120.0))
    kpis = [kpi for each in summarise(trace).devices for kpi in each.kpis if kpi.name in KPIS]
    evidence = [Evidence(k.name, k.value, k.unit, "profiled") for k in kpis if k.value is not None]
    also = "a capture is in perf" if captured else "no capture could be taken"
    return "recorded", f"Intervals are of encoders, maybe of several kernels; {also}.", evidence


# The file


def new_bring_back(backend: MetalLive, rehearsal: bool) -> Run:
    """Return a run that begins now. It names no file and no command line of its owner."""
    problem = Problem("softmax", catalog.spec_of("softmax"), {}, "fp16")
    run = new_run(ENGINE, REHEARSAL if rehearsal else FULL, COMMAND, backend, [problem])
    return replace(run, kernel="", sizes={}, source="")


def earlier_events(folder: Path, run: Run) -> tuple[Path, list[Event]] | None:
    """Return the file of a run that was stopped on the same device, at the same commit and with the
    same software, and its events; None where there is none."""
    for path in sorted(folder.glob(f"*_{run.device}_*.jsonl"), reverse=True):
        events = read(path).events
        first = events[0] if events else None
        if isinstance(first, Run) and (first.name, first.environment, first.device) == (
            run.name, run.environment, run.device,
        ):  # fmt: skip
            return path, events
    return None


def measured_ceilings(
    plan: BringBackPlan, device: Device, outcomes: Sequence[Outcome]
) -> dict[str, dict[str, Any]]:
    """Return the ceilings that these outcomes measured, as `workbench ceilings` evaluates them."""
    group = plan.ceiling_group(device)
    results = {
        v.name: VariantResult(v, o)
        for v in group.variants
        for o in outcomes
        if (o.case.kernel, o.case.impl, o.case.dtype) == (v.kernel, v.impl, v.dtype)
        and dict(o.case.sizes) == dict(v.sizes)
    }
    return evaluate(group.sought, results, device.limits, {})


def bring_back(
    backend: MetalLive, plan: BringBackPlan, folder: Path, say: Callable[[str], None] = print
) -> Path:
    """Run all steps, or those that a stopped run lacks. Returns the file to send back. Raises
    EventsError, FileError or ReturnedError where it cannot be written."""
    run = new_bring_back(backend, plan.rehearsal)
    word = "rehearsal" if plan.rehearsal else "results"
    file = f"{word}_{run.device}_{run.started[:10]}.jsonl"
    path, known = earlier_events(folder, run) or (folder / file, [])
    if known and isinstance(known[0], Run):
        run = known[0]
        say(f"continues the run that {path} holds")
    env = run.environment
    fingerprint = {"gpu": env.gpu, "os": env.os, **env.settings, **env.versions}
    say(f"step 1 of 7: {json.dumps(fingerprint)}")
    say(f"every result is written to {path} as it comes; the same command continues from there")
    events: list[Event] = [*known] or [run]
    with EventLog(path) as log:
        if not known:
            log.write(run)
        for event in BringBack(backend, run, plan, known, say).outcomes():
            log.write(event)
            events.append(event)
    outcomes = [e for e in events if isinstance(e, Record | Failure)]
    measured = measured_ceilings(plan, backend.device, outcomes)
    finished = replace(run, ceilings={**run.ceilings, **measured})
    times = sum(isinstance(outcome, Record) for outcome in outcomes)
    end = RunFinished(timestamp(), run.id, "complete", {"final": times})
    packed = path.with_suffix(".jsonl.gz")
    write_file(packed, pack([finished, *events[1:], end], plan.rehearsal))
    path.unlink()
    return packed
