"""Backend of a named target: compiles for it, checks on the CPU, predicts times.

No GPU need be present; every time comes from a model. Triton kernels are compiled for the target
and checked in Triton's interpreter; Metal kernels are compiled and checked in the emulator.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.backend.checking import Checks, launch_calls
from workbench.backend.processes import COMPILE_TIMEOUT_S, compile_all, compile_parts, outcome_of
from workbench.backend.protocol import GpuPlace, Problem, TimingResult, TimingTask
from workbench.backend.workers import Workers, cpu_count
from workbench.catalog.source import SourceChanged, code_of_file
from workbench.code.code_work import code_files
from workbench.compile import Compiled
from workbench.data.environment import fingerprint
from workbench.data.errors import first_sentence
from workbench.data.record import Checked, Environment, Predicted
from workbench.device import apple_model, code_model, cost_model, occupancy, warp_timeline
from workbench.device.correction import ModelledConfig, SizedConfig
from workbench.device.hardware import METAL, Device
from workbench.measurement.candidate import Candidate, Refusal, Timed
from workbench.spec import SpecFault, Work, values

INTERPRET_TIMEOUT_S = 120.0
SAMPLE_TIMEOUT_S = 90.0  # of some programs of one config, with the import of a large package
NOT_COMPILED = "the config was not compiled for the device: no prediction"

Compilations = Iterator[tuple[Candidate, Compiled | Refusal]]


@dataclass(frozen=True)
class OfflineMethod:
    """How configs of one kind of device are compiled, launched for a check, and predicted.

    compile(pool, problem, candidates, device, timeout_s) yields each candidate with its result;
    `launch` is the task of `Checks`; predict(problem, candidate, compiled, device) returns a
    Predicted, or raises ValueError; environment(known) names the software that takes part.
    """

    model: str
    files: tuple[Path, ...]  # whose text decides what is counted and predicted
    check: Checked
    compile: Callable[[Workers, Problem, Sequence[Candidate], Device, float], Compilations]
    launch: Callable[..., Any]
    predict: Callable[[Problem, Candidate, Compiled, Device], Predicted]
    environment: Callable[[Environment], Environment]


class Offline:
    """Backend that compiles for `device`, checks on the CPU and predicts times."""

    predicts = True
    room = 1 << 30  # no limit: the interpreter pool queues them
    place = GpuPlace()
    seconds: Mapping[str, float] = {}

    def __init__(
        self,
        device: Device,
        repository: Path | None,
        *,
        compile_s: float = COMPILE_TIMEOUT_S,
        interpret_s: float = INTERPRET_TIMEOUT_S,
    ) -> None:
        """Start the worker pools.

        `repository` holds the kernel: its commit is part of the fingerprint. A config is given up
        after `compile_s` seconds of compilation or `interpret_s` seconds of checking.
        """
        self._compile_s, self._interpret_s = compile_s, interpret_s
        self.device = device
        self._method = method_for(device)
        self.protocol = model_key(self._method, device)
        self.environment = self._method.environment(fingerprint(None, repository))
        self._compilers = Workers(cpu_count())
        self._checks = Checks(cpu_count(), self._method.launch)
        self._check_futures: dict[tuple[Any, ...], Future[Any]] = {}
        self._problem: Problem

    def prepare(self, problem: Problem) -> None:
        """Do nothing: there is nothing to prepare that takes time."""

    def begin(
        self, problem: Problem, candidates: Sequence[Candidate] = ()
    ) -> dict[str, dict[str, Any]]:
        """Set the problem and return no ceilings, as nothing is measured."""
        self._problem = problem
        self._check_futures.clear()
        return {}

    def compile(
        self, candidates: Sequence[Candidate]
    ) -> Iterator[tuple[Candidate, Compiled | Refusal]]:
        """Yield each candidate with its Compiled or Refusal, in the order of completion."""
        return self._method.compile(
            self._compilers, self._problem, candidates, self.device, self._compile_s
        )

    def time(
        self, candidate: Candidate, compiled: Compiled, best_s: float | None, patience: float = 1.0
    ) -> Future[Any]:
        """Return a future with the predicted time, set once the config has been checked.

        Configs of Triton that differ only in warps and stages share one check, since the
        interpreter has neither.
        """
        if candidate.impl.unchecked_reason:
            return self._predict_unchecked(candidate, compiled)
        knobs = candidate.impl.knobs()
        alike = ALIKE if candidate.impl.backend == "triton" else ()
        seen = {k: v for k, v in values(candidate.config).items() if knobs[k] not in alike}
        same = (candidate.impl.name, patience, *seen.items())
        if same not in self._check_futures:
            timeout_s = patience * self._interpret_s
            self._check_futures[same] = self._check(candidate, compiled, timeout_s)
        promise: Future[Any] = Future()
        problem = self._problem  # bound now: another may have begun when the check ends
        self._check_futures[same].add_done_callback(
            lambda done: self._settle(promise, done, problem, candidate, compiled)
        )
        return promise

    def _predict_unchecked(self, candidate: Candidate, compiled: Compiled) -> Future[Any]:
        """Return a future of the predicted time of a config that nothing here can run."""
        none: Future[Any] = Future()
        none.set_result(None)
        promise: Future[Any] = Future()
        self._settle(promise, none, self._problem, candidate, compiled)
        return promise

    def _check(self, candidate: Candidate, compiled: Compiled, timeout_s: float) -> Future[Any]:
        """Return a future of the check at all sizes of the Spec that do not reject this config, or
        of some programs of its launch."""
        problem, limits = self._problem, self.device.limits
        if (sampling := candidate.impl.sampling) is not None:
            facts, limit_s = compiled.examination, min(timeout_s, SAMPLE_TIMEOUT_S)
            return self._checks.check_samples(problem.kernel, candidate, facts, sampling, limit_s)
        impl, config, dtype = candidate.impl, candidate.config, problem.dtype
        every = problem.spec.check
        sizes = [s for s in every if impl.rejection_reason(config, limits, dtype, s) is None]
        if sizes:
            return self._checks.check(problem, candidate, sizes, timeout_s)
        none: Future[Any] = Future()
        reason = "it takes none of the sizes to check, so its result is unchecked"
        none.set_result(Refusal("check", reason))
        return none

    def duplicate(self, candidate: Candidate, compiled: Compiled, leader: str) -> Future[Any]:
        """Check a config with the machine code of another one. Returns a future; see
        `Backend.duplicate`."""
        return self.time(candidate, compiled, None)

    def _settle(self, promise: Future[Any], *arguments: Any) -> None:
        try:
            promise.set_result(self._analyse_candidate(*arguments))
        except (SourceChanged, SpecFault) as error:
            promise.set_exception(error)

    def _analyse_candidate(
        self, done: Future[Any], problem: Problem, candidate: Candidate, compiled: Compiled
    ) -> Any:
        if done.cancelled() or isinstance(done.exception(), CancelledError):
            return Refusal("check", "the sweep ended before it was checked")
        checked = outcome_of(done, "check")
        if isinstance(checked, Refusal):
            return checked
        try:
            predicted = self._method.predict(problem, candidate, compiled, self.device)
            if checked is None:
                return Timed(predicted, None, "not here")
            by = self._method.check
            if candidate.impl.sampling is not None:
                return Timed(predicted, checked.error, by, programs=checked.programs)
            resources = compiled.resources if candidate.impl.is_watched else None
            ran = resources.programs if resources else None
            seed = self._checks.seed
            return Timed(predicted, checked.error, by, checked.bits, seed, programs=ran)
        except ValueError as unknown:
            return Refusal("measure", str(unknown))
        except Exception as error:  # from the kernel's own `work`: the future must be set
            return Refusal("measure", f"no prediction: {first_sentence(error)}")

    def measure_interleaved(self, parts: Sequence[TimingTask]) -> list[TimingResult]:
        """Return the result of each task: compiled, checked, and predicted where the model covers
        it."""
        compiles = self._method.compile if self.device.backend == METAL else None
        computed = compile_parts(self._compilers, parts, self.device, self._compile_s, compiles)
        waiting: list[tuple[Compiled | None, Future[Any] | Refusal]] = []
        for i, part in enumerate(parts):
            compiled = computed.get(i)
            if isinstance(compiled, Refusal):
                waiting.append((None, compiled))
            elif compiled is None or part.regime == "hot" or part.clock == "host":
                waiting.append((compiled, Refusal("measure", _reason_unpredictable(part))))
            else:
                self.begin(part.problem)
                waiting.append((compiled, self.time(part.candidate, compiled, None)))
        return [
            TimingResult(
                results if isinstance(results, Refusal) else results.result(),
                compiled,
                compiled.launches if compiled else None,
            )
            for compiled, results in waiting
        ]

    def close(self) -> None:
        """End both worker pools."""
        self._compilers.close()
        self._checks.close()


ALIKE = ("threads", "stages")


def method_for(device: Device) -> OfflineMethod:
    """Return how configs for this device are compiled, checked and predicted."""
    if device.backend == METAL:
        from workbench.backend.metal import emulated

        return OfflineMethod(
            apple_model.MODEL,
            (Path(apple_model.__file__), *emulated.emulator_files()),
            "emulated",
            emulated.emulate_all,
            emulated.emulate_calls,
            emulated.metal_prediction,
            emulated.emulator_environment,
        )
    return OfflineMethod(
        cost_model.MODEL,
        (
            Path(cost_model.__file__),
            Path(code_model.__file__),
            Path(warp_timeline.__file__),
            Path(occupancy.__file__),
            *code_files(),
        ),
        "interpreter",
        compile_all,
        launch_calls,
        triton_prediction,
        lambda known: known,
    )


def model_key(method: OfflineMethod, device: Device) -> str:
    """Return the model's name and a hash of its code and of the device's figures. It is part of
    each outcome's key, so that a changed model or device file predicts anew."""
    text = "\0".join([*map(code_of_file, method.files), repr(device)])
    return f"{method.model} {hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _reason_unpredictable(part: TimingTask) -> str:
    """Return why the model cannot predict a task."""
    if part.candidate.impl.backend == "torch":
        return "a library's own version has no prediction; it is timed where there is a GPU"
    if part.clock == "host":
        return "the launch time of the CPU is not predicted; a GPU is needed to time it"
    return "calls on cached data are not predicted; they are timed where there is a GPU"


def prediction(
    problem: Problem, candidate: Candidate, compiled: Compiled, device: Device
) -> Predicted:
    """Return the time by the device's model. Raises ValueError where the device lacks a figure."""
    return method_for(device).predict(problem, candidate, compiled, device)


def triton_prediction(
    problem: Problem, candidate: Candidate, compiled: Compiled, device: Device
) -> Predicted:
    """Return the analytic model's time of a Triton kernel. Raises ValueError where the device lacks
    a figure."""
    place = SizedConfig(candidate.impl, candidate.config, problem.sizes)
    return model_time(device, compiled, place, problem.dtype)


def model_time(device: Device, compiled: Compiled, place: SizedConfig, dtype: str) -> Predicted:
    """Return the analytic model's time of a compiled config. Raises ValueError where the device
    lacks a figure."""
    if compiled.resources is None:
        raise ValueError(NOT_COMPILED)
    if place.impl.work is None:
        return derived_time(device, compiled)
    resources = compiled.resources, compiled.launches, compiled.each
    return ModelledConfig(place.impl, place.config, place.sizes, *resources).predict(device, dtype)


def derived_time(device: Device, compiled: Compiled) -> Predicted:
    """Return the time of a compiled config by what its code does. Raises ValueError where that
    cannot be derived, or where the device lacks a figure."""
    if not compiled.works:
        raise ValueError(f"not ranked: {compiled.not_modelled}")
    return code_model.predict_each(device, compiled.works, compiled.each)


def predicted_time(
    device: Device,
    compiled: Compiled,
    works: tuple[Work, ...] | None,
    dtype: str,
    flops: int,
    bytes_: int,
    stages: int,
) -> Predicted:
    """Return the analytic model's time of a compiled config, as `predict_launches` does. Raises
    ValueError as that does, and where the config was not compiled for the device."""
    if compiled.resources is None:
        raise ValueError(NOT_COMPILED)
    resources = cost_model.LaunchResources(compiled.resources, compiled.launches, compiled.each)
    return cost_model.predict_launches(
        device, works, resources, dtype=dtype, flops=flops, bytes_=bytes_, stages=stages
    )
