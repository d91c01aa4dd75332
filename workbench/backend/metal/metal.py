"""Backend of a Mac's GPU: Metal kernels through MLX, checked and timed in a process of their own.

The device's own part, `metal_shim/mlx_backend.py`, is loaded by name. No Apple GPU has run it yet;
tests drive this backend with a clock of their own.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from workbench.backend.metal.emulated import compiled_launches, plan_launches
from workbench.backend.protocol import GpuPlace, Problem, TimingResult, TimingTask
from workbench.backend.workers import LOST, Solo, cause_of
from workbench.compile import Compiled
from workbench.data.errors import first_sentence
from workbench.data.mac import Mac, mac_environment, read_mac
from workbench.data.record import Energy, Verdict
from workbench.device.hardware import METAL, UNCOMPILED, Device
from workbench.measurement import metal_worker
from workbench.measurement.candidate import Candidate, Refusal, Timed
from workbench.measurement.metal_timing import MetalProtocol
from workbench.measurement.metal_worker import MetalDriver, MetalPair, MetalTask
from workbench.spec import WorkbenchError

TASK_S = 120.0  # the limit of one task: a check of the reference on the CPU takes most of it


class NoMetal(WorkbenchError):
    """Nothing can be measured on this Mac; the message is one sentence."""


class TaskRunner(Protocol):
    """Runs tasks, as `workers.Solo` does."""

    def ask(self, task: Callable[..., Any], *args: Any, timeout_s: float) -> Any:
        """Run a task and return its result. Raises TimeoutError or ChildProcessError."""

    def end(self) -> None:
        """End the process."""


def mac_device(mac: Mac) -> Device:
    """Return the device of a Mac: its file, with its own number of GPU cores. Peaks of another
    number of cores are scaled; the file's bandwidth is that of the largest GPU, and is left out
    where cores differ. Raises NoMetal where the chip is not listed."""
    name = re.sub(r"^apple|\s", "", (mac.chip or "").lower())
    if name not in UNCOMPILED:
        chip = mac.chip or "the chip (system_profiler does not name it)"
        raise NoMetal(f"No device file describes {chip}; `workbench devices` lists those it knows.")
    device = UNCOMPILED[name]
    cores = mac.gpu_cores or device.limits.cores
    if cores == device.limits.cores:
        return device
    share = cores / device.limits.cores
    source = f"computed as {share:.3f} of the largest GPU's, by cores: "
    peaks = {
        dtype: replace(q, value=share * q.value, source=source + q.source, kind="computed")
        for dtype, q in device.peaks.items()
    }
    limits = replace(device.limits, cores=cores)
    return replace(device, limits=limits, dram=None, peaks=peaks)


class MetalLive:
    """Backend that measures on the Metal device of this machine."""

    predicts = False
    room = 1
    place = GpuPlace()

    def __init__(
        self,
        repository: Path | None,
        *,
        battery: bool = False,
        mac: Mac | None = None,
        driver: MetalDriver | None = None,
        process: TaskRunner | None = None,
        rules: MetalProtocol | None = None,
    ) -> None:
        """Read the Mac and start the measuring process. `mac`, `driver` and `process` replace those
        of this machine.

        Raises NoMetal where the Mac runs on its battery or in low power mode, unless `battery`
        allows it, and where its chip is unknown.
        """
        self.rules = rules or MetalProtocol()
        self.protocol = self.rules.id
        mac = mac or read_mac()
        if not battery and (reason := mac.refusal()) is not None:
            raise NoMetal(reason)
        self.device = mac_device(mac)
        self._is_started = process is None
        self._process: TaskRunner = process or Solo()
        self._driver = driver
        info = self._process.ask(metal_worker.info, driver, timeout_s=TASK_S)
        self.environment = mac_environment(mac, info, repository)
        self.ceilings: Mapping[str, Mapping[str, Any]] = {}  # measured before on this device
        self._seed = secrets.randbits(31)
        self._problem: Problem

    @property
    def seconds(self) -> Mapping[str, float]:
        """Return nothing: seconds are not told apart here."""
        return {}

    def prepare(self, problem: Problem) -> None:
        """Do nothing: there is nothing to prepare that takes time."""

    def begin(
        self, problem: Problem, candidates: Sequence[Candidate] = ()
    ) -> dict[str, dict[str, Any]]:
        """Set the problem. Returns `ceilings`: those that `workbench ceilings` stored."""
        self._problem = problem
        return {name: dict(ceiling) for name, ceiling in self.ceilings.items()}

    def compile(
        self, candidates: Sequence[Candidate]
    ) -> Iterator[tuple[Candidate, Compiled | Refusal]]:
        """Yield each candidate with its dispatches; Apple's compiler runs at the first launch."""
        for candidate in candidates:
            yield candidate, self._plan_candidate(candidate, self._problem)

    def _plan_candidate(self, candidate: Candidate, problem: Problem) -> Compiled | Refusal:
        if candidate.case.backend == "mlx":
            return Compiled(None, "", (), 1, ttgir=candidate.key)
        if candidate.case.backend != METAL:
            return Refusal("refused", "only Metal kernels and MLX's operations run here")
        try:
            launches = plan_launches(candidate.impl, candidate.config, problem.sizes, problem.dtype)
        except WorkbenchError as error:
            return Refusal("compile", first_sentence(error))
        return replace(compiled_launches(launches, None), ttgir=candidate.key)

    def time(
        self, candidate: Candidate, compiled: Compiled, best_s: float | None, patience: float = 1.0
    ) -> Future[Timed | Refusal]:
        """Check and time one candidate at once, in few rounds; return a future that is done."""
        promise: Future[Timed | Refusal] = Future()
        promise.set_result(self._measure_tasks([self._task(candidate)], 2, patience)[0])
        return promise

    def duplicate(
        self, candidate: Candidate, compiled: Compiled, leader: str
    ) -> Future[Timed | Refusal | None]:
        """Return a future of None: Apple's compiler tells no two configs to be alike."""
        promise: Future[Timed | Refusal | None] = Future()
        promise.set_result(None)
        return promise

    def halve(
        self, candidates: Sequence[Candidate], estimates: Sequence[float], keep: int
    ) -> list[Timed | Refusal]:
        """Return a time or Refusal for each candidate, from a few interleaved rounds."""
        return self._measure_tasks([self._task(c) for c in candidates], 4)

    def final(
        self, candidates: Sequence[Candidate], estimates: Sequence[float]
    ) -> list[Timed | Refusal]:
        """Return a time or Refusal for each candidate, from interleaved rounds."""
        return self._measure_tasks([self._task(c) for c in candidates])

    def hot(self, candidate: Candidate) -> Timed | Refusal:
        """Return the candidate's time on the same buffers, or a Refusal."""
        return self._measure_tasks([self._task(candidate, regime="hot")])[0]

    def prewarm(self, problem: Problem, candidates: Sequence[Candidate]) -> None:
        """Do nothing: a kernel is compiled at its first launch."""

    def begin_libraries(self) -> None:
        """Do nothing: MLX is imported already."""

    def libraries(
        self, winner: Candidate, libraries: Sequence[Candidate], limit_s: float
    ) -> list[tuple[Timed | Refusal, float | None]]:
        """Return nothing: MLX is imported already, and is timed in the final."""
        return []

    def sanitize(self, candidates: Sequence[Candidate]) -> list[Refusal | None]:
        """Return None for each: `python -m metal_shim.check` has the checks of Metal kernels."""
        return [None for _ in candidates]

    def energy(self, candidates: Sequence[Candidate], windows: int) -> list[Energy | str]:
        """Return for each that macOS gives no energy counter without root."""
        return ["on macOS only root can read the energy counter"] * len(candidates)

    def compare(
        self, left: Candidate, right: Candidate, requested_threshold: float
    ) -> tuple[Timed | Refusal, Timed | Refusal, Verdict | None]:
        """Return both operands' times and the verdict on the right one."""
        tasks = self._task(left), self._task(right)
        pair = self._ask(metal_worker.compare_tasks, *tasks, requested_threshold, self.rules)
        if isinstance(pair, Refusal):
            return pair, pair, None
        assert isinstance(pair, MetalPair)
        return pair.left, pair.right, pair.verdict

    def measure_interleaved(self, parts: Sequence[TimingTask]) -> list[TimingResult]:
        """Return the result of each task, timed in turns. The host's clock is refused: MLX is lazy,
        and a call returns before anything is launched."""
        results: dict[int, TimingResult] = {}
        tasks: dict[int, MetalTask] = {}
        for at, part in enumerate(parts):
            compiled = self._plan_candidate(part.candidate, part.problem)
            if isinstance(compiled, Refusal):
                results[at] = TimingResult(compiled)
            elif part.clock == "host":
                results[at] = TimingResult(
                    Refusal("measure", "a call of MLX returns before the launch")
                )
            else:
                untimed = Refusal("measure", "gave no time")
                results[at] = TimingResult(untimed, compiled, compiled.launches)
                tasks[at] = self._task(part.candidate, part.problem, part.regime)
        timed = self._measure_tasks(list(tasks.values())) if tasks else []
        for at, result in zip(tasks, timed, strict=True):
            results[at] = replace(results[at], result=result)
        return [results[at] for at in range(len(parts))]

    def _task(
        self, candidate: Candidate, problem: Problem | None = None, regime: Any = "cold"
    ) -> MetalTask:
        at = problem or self._problem
        return MetalTask(at.kernel, candidate, dict(at.sizes), at.dtype, self.device, regime)

    def _measure_tasks(
        self, tasks: Sequence[MetalTask], most_rounds: int | None = None, patience: float = 1.0
    ) -> list[Timed | Refusal]:
        """Return a result for each task. Where the process is lost, each is tried by itself."""
        limit_s = patience * TASK_S * max(1, len(tasks))
        args = (tasks, self.rules, most_rounds)
        result = self._ask(metal_worker.measure_tasks, *args, limit_s=limit_s)
        if not isinstance(result, Refusal):
            timed: list[Timed | Refusal] = result
            return timed
        if len(tasks) == 1:
            return [result]
        return [self._measure_tasks([task], most_rounds, patience)[0] for task in tasks]

    def _ask(self, task: Callable[..., Any], *args: Any, limit_s: float = 4 * TASK_S) -> Any:
        """Return the result of a task, or a Refusal where the process is lost; a new one takes its
        place."""
        try:
            return self._process.ask(task, *args, self._driver, self._seed, timeout_s=limit_s)
        except LOST as error:
            if self._is_started:
                self._process = Solo()
            return Refusal("measure", f"the measuring process: {error}", cause=cause_of(error))

    def ask(self, task: Callable[..., Any], *args: Any, limit_s: float) -> Any:
        """Run a task of `metal_worker` in the measuring process and return its result. Raises
        NoMetal where the process is lost."""
        result = self._ask(task, *args, limit_s=limit_s)
        if isinstance(result, Refusal):
            raise NoMetal(f"{result.reason[:1].upper()}{result.reason[1:]}.")
        return result

    def close(self) -> None:
        """End the measuring process."""
        self._process.end()
