"""Backend of the GPU in this machine: compiles in parallel, checks and times in a separate
process."""

from __future__ import annotations

import secrets
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from workbench.backend.arrivals import Arrivals
from workbench.backend.library_processes import LibraryProcesses
from workbench.backend.measuring import CannotBegin, Lost, Measuring
from workbench.backend.prewarm import LiveProcesses, compilers
from workbench.backend.processes import compile_all, compile_parts
from workbench.backend.protocol import GpuPlace, Problem, TimingResult, TimingTask
from workbench.compile import Compiled
from workbench.data.locks import LockBusy
from workbench.data.record import Energy, Environment, Verdict
from workbench.device.bounds import bound_s
from workbench.device.hardware import Device
from workbench.measurement import worker
from workbench.measurement.candidate import Candidate, Refusal, Timed
from workbench.measurement.protocol import Protocol
from workbench.spec import WorkbenchError

# A config that hangs costs this, then PATIENCE times as much alone, and 0.5 s for each new process.
FIRST_PASS_TIMEOUT_S = 2.0
# Triton 3.6 compiles a launcher in C at the first launch of a function: 0.5 s on a slow CPU.
LAUNCHER_S = 1.0
INTERLEAVED_TIMEOUT_S = 300.0
ENERGY_TIMEOUT_S = 10.0  # for each window of each config: at most a second of steps, or ten calls
ALONE_TIMEOUT_S = 30.0  # one task by itself, timed with very few windows
ATTEMPTS = 3  # at interleaved tasks: two of them may kill the process
# Measured before the first config, while the GPU is idle but for this: in the state boost.
CEILINGS: Mapping[str, dict[str, str]] = {
    "dram": {
        "unit": "B/s",
        "source": "the workbench's copy kernel, just before this run",
        "state": "boost",
    },
    "launch": {
        "unit": "s",
        "source": "an empty launch in a graph, just before this run",
        "state": "boost",
    },
    "resolution": {
        "unit": "s",
        "source": "least difference of two event pairs, just before this run",
    },
}


class NoGpu(WorkbenchError):
    """torch sees no GPU here."""


class Live:
    """Backend that measures on torch's current GPU. This process itself never touches the GPU."""

    predicts = False
    room = 1  # one config at a time on the GPU
    place = GpuPlace()

    def __init__(
        self,
        repository: Path | None,
        rules: Protocol | None = None,
        on_wait: Callable[[str], None] = lambda text: print(text, file=sys.stderr),
        prewarm: LiveProcesses | None = None,
    ) -> None:
        """Start the measuring process and read the device, or take those that `prewarm` started.

        `repository` holds the kernel: its commit is part of the fingerprint. `on_wait(message)` is
        called while waiting for the GPU's lock. Processes of `prewarm` are ended by its owner.
        Raises NoGpu where torch sees no GPU.
        """
        self.rules = rules or Protocol()
        self.protocol = self.rules.id
        self._on_wait = on_wait
        self._gpu = prewarm.gpu if prewarm else Measuring()
        self._compilers = prewarm.compilers if prewarm else None
        self._libraries = prewarm.libraries if prewarm else None
        self._own_libraries: LibraryProcesses | None = None  # not of `prewarm`: closed here
        self._waited_s = 0.0  # for libraries, and their finals
        try:
            result = self._gpu.describe(repository)
        except Lost as error:
            self._gpu.close()
            raise NoGpu(
                f"the process that reads the GPU's properties {error}; "
                "see `workbench doctor`, or compile for a target: --device h200"
            ) from None
        if result is None:
            self._gpu.close()
            raise NoGpu("torch sees no GPU here; name a target to compile for: --device h200")
        self.device: Device
        self.environment: Environment
        self.device, self.environment, self._lock = result
        self._locks = ExitStack()  # the GPU's lock, from the first problem to the end
        self._is_locked = False
        self._codes: dict[str, Compiled | Refusal] = {}  # compiled tasks by key
        self._prewarm: tuple[list[Candidate], Arrivals[Any]] | None = None
        self._prewarm_batches: list[tuple[Problem, list[Candidate], Arrivals[Any]]] = []
        self._problem: Problem
        self._preparation: tuple[Problem, Future[None]] | None = None
        self._seed = secrets.randbits(31)  # of the inputs: no kernel can know it
        self._self_test: dict[str, dict[str, Any]] = {}
        self._functions: set[str] = set()  # functions of which a launch returned

    @property
    def seconds(self) -> Mapping[str, float]:
        """Return the measuring process's seconds so far under the keys check, timed and flush, and
        those for libraries."""
        return {**self._gpu.seconds, **({"libraries": self._waited_s} if self._waited_s else {})}

    def prepare(self, problem: Problem) -> None:
        """Prepare a problem in the background, for `begin`, unless another process uses the GPU."""
        self._problem = problem
        self._preparation = problem, _background(self._prepare, 0.0)

    def begin(
        self, problem: Problem, candidates: Sequence[Candidate] = ()
    ) -> dict[str, dict[str, Any]]:
        """Prepare the problem and return the measured ceilings by name.

        Compiles `candidates` in the background and takes the GPU's lock. Raises RuntimeError where
        the problem does not fit the GPU.
        """
        begun, self._preparation = self._preparation, None
        self._problem = problem
        if candidates:  # compiled meanwhile
            self._prewarm = list(candidates), self._arrivals(problem, list(candidates))
        try:
            try:
                if begun is not None:
                    begun[1].result()
            except LockBusy:
                begun = None
            if begun is None or begun[0] is not problem:
                self._prepare()
        except CannotBegin as error:
            raise RuntimeError(str(error)) from None
        return self._self_test

    def _prepare(self, wait_s: float | None = None) -> None:
        """Take the GPU's lock, make the problem's inputs and measure the ceilings. Raises
        CannotBegin; LockBusy where another process holds the lock for longer than `wait_s`."""
        if not self._is_locked:
            self._locks.enter_context(self._gpu.lock(self._lock, self._on_wait, wait_s))
            self._is_locked = True
        self._gpu.begin(self._job)
        self._self_test = self._self_test or _ceilings(self._gpu.self_test())

    def begin_libraries(self) -> None:
        """Let the slow libraries of the problem get ready, for `libraries`."""
        if any(impl.imports for impl in self._problem.spec.impls):
            if self._libraries is None:
                self._libraries = self._own_libraries = LibraryProcesses(self._problem.kernel)
            self._libraries.compile(self._job)

    def libraries(
        self, winner: Candidate, libraries: Sequence[Candidate], limit_s: float
    ) -> list[tuple[Timed | Refusal, float | None]]:
        """Return the time of each slow library, and the winner's in the same rounds, as far as
        they are ready, within `limit_s`."""
        started = time.monotonic()
        assert self._libraries is not None  # `begin` has seen that there are such libraries
        try:
            return self._libraries.final(self._job, winner, libraries, limit_s)
        finally:
            self._waited_s += time.monotonic() - started

    @property
    def _job(self) -> worker.MeasureJob:
        problem = self._problem
        return worker.MeasureJob(
            problem.kernel, problem.sizes, problem.dtype, self.rules, self._seed
        )

    def prewarm(self, problem: Problem, candidates: Sequence[Candidate]) -> None:
        """Start to compile the candidates that `begin` will be given for a problem."""
        arrivals = Arrivals(self._compile(candidates, problem))
        self._prewarm_batches.append((problem, list(candidates), arrivals))

    def _arrivals(self, problem: Problem, candidates: list[Candidate]) -> Arrivals[Any]:
        """Return the results of `prewarm` for a problem; otherwise start to compile."""
        for batch in self._prewarm_batches:
            if batch[0] is problem and batch[1] == candidates:
                self._prewarm_batches.remove(batch)
                return batch[2]
        return Arrivals(self._compile(candidates, problem))

    def _compile(
        self, candidates: Sequence[Candidate], problem: Problem
    ) -> Generator[tuple[Candidate, Compiled | Refusal], None, None]:
        if self._compilers is None:
            self._compilers = compilers(problem.kernel)
        return compile_all(self._compilers, problem, candidates, self.device, here=True)

    def compile(
        self, candidates: Sequence[Candidate]
    ) -> Iterator[tuple[Candidate, Compiled | Refusal]]:
        """Yield each candidate with its Compiled or Refusal, in the order of completion."""
        prewarm, self._prewarm = self._prewarm, None
        if prewarm is not None and prewarm[0] == list(candidates):
            return iter(prewarm[1])
        return self._compile(candidates, self._problem)

    def time(
        self, candidate: Candidate, compiled: Compiled, best_s: float | None, patience: float = 1.0
    ) -> Future[Any]:
        """Check and time one candidate at once; return a future that is already done. The next
        config begins only after this result has been stored."""
        promise: Future[Any] = Future()
        promise.set_result(self._first_pass(candidate, best_s, patience, compiled))
        return promise

    def _first_pass(
        self,
        candidate: Candidate,
        best_s: float | None,
        patience: float = 1.0,
        compiled: Compiled | None = None,
    ) -> Timed | Refusal:
        kernel = compiled.kernel if compiled else None
        shapes = compiled.shapes if compiled else ()
        new = {shape.function for shape in shapes} - self._functions
        usual_s = FIRST_PASS_TIMEOUT_S + LAUNCHER_S * len(new) + self._slack_s(best_s or 0.0)
        limit_s = patience * usual_s
        try:
            result = self._gpu.ask(worker.first_pass, candidate, best_s, kernel, timeout_s=limit_s)
        except (Lost, CannotBegin) as error:
            return _refusal(error)
        self._functions |= new
        return self._note_result(result)

    def _note_result(self, result: Any) -> Timed | Refusal:
        """Return a result of the measuring process; one that poisons the process ends it."""
        if _poisons(result):
            self._gpu.replace()
        return cast(Timed | Refusal, result)

    def duplicate(self, candidate: Candidate, compiled: Compiled, leader: str) -> Future[Any]:
        """Check a config with the machine code of another one. Returns a future; see
        `Backend.duplicate`."""
        promise: Future[Any] = Future()
        try:
            result = self._gpu.ask(
                worker.duplicate,
                candidate,
                leader,
                timeout_s=FIRST_PASS_TIMEOUT_S + self._slack_s(0),
            )
            promise.set_result(result if result is None else self._note_result(result))
        except (Lost, CannotBegin) as error:
            promise.set_result(_refusal(error))
        return promise

    def _slack_s(self, best_s: float) -> float:
        """Return the seconds beyond the limit that a large problem may take: 50 calls, and about 40
        passes of the check over its tensors in float64."""
        spec, sizes = self._problem.spec, self._problem.sizes
        dtype = self._problem.dtype
        bound = bound_s(self.device, spec.bytes(sizes, dtype), spec.flops(**sizes), dtype)
        return 50 * max(best_s, bound) + 1e-10 * spec.held_bytes(sizes, dtype)

    def halve(
        self, candidates: Sequence[Candidate], estimates: Sequence[float], keep: int
    ) -> list[Timed | Refusal]:
        """Return a time or Refusal for each candidate after successive halving down to `keep`."""
        return self._measure_interleaved(worker.halve_candidates, candidates, estimates, keep)

    def final(
        self, candidates: Sequence[Candidate], estimates: Sequence[float]
    ) -> list[Timed | Refusal]:
        """Return a time or Refusal for each candidate from the final benchmark in interleaved
        rounds."""
        return self._measure_interleaved(worker.final, candidates, estimates)

    def hot(self, candidate: Candidate) -> Timed | Refusal:
        """Return the candidate's time on data that the cache may hold, or a Refusal."""
        try:
            result = self._gpu.ask(worker.hot, candidate, timeout_s=INTERLEAVED_TIMEOUT_S)
        except (Lost, CannotBegin) as error:
            return _refusal(error, own=False)
        return self._note_result(result)

    def compare(
        self, left: Candidate, right: Candidate, requested_threshold: float
    ) -> tuple[Timed | Refusal, Timed | Refusal, Verdict | None]:
        """Return both operands' times and the verdict on the right one; see `worker.compare`. The
        verdict is None where an operand has no time."""
        try:
            result = self._gpu.ask(
                worker.compare, left, right, requested_threshold, timeout_s=INTERLEAVED_TIMEOUT_S
            )
        except (Lost, CannotBegin) as error:
            alone = [self._first_pass(operand, None) for operand in (left, right)]
            bad = [a if isinstance(a, Refusal) else _refusal(error, own=False) for a in alone]
            return bad[0], bad[1], None
        if _poisons(result.left) or _poisons(result.right):
            self._gpu.replace()
        untimed = Refusal("measure", "gave no time", own=False)
        return result.left or untimed, result.right or untimed, result.verdict

    def sanitize(self, candidates: Sequence[Candidate]) -> list[Refusal | None]:
        """Return for each candidate why compute-sanitizer does not accept it, or None. Each runs at
        a size to check, outside of the process that measures."""
        from workbench.backend.sanitizing import checked_call, sanitized_each

        self._gpu.wait_idle()
        calls = [checked_call(self._problem, c, self.device.limits) for c in candidates]
        return [
            None
            if state == "kept"
            else Refusal("check", reason, own=state == "broken", rule="sanitizer")
            for state, reason in sanitized_each(calls)
        ]

    def energy(self, candidates: Sequence[Candidate], windows: int) -> list[Energy | str]:
        """Return each candidate's energy of one call, or why it has none; see `worker.energy`."""
        limit_s = INTERLEAVED_TIMEOUT_S + ENERGY_TIMEOUT_S * windows * len(candidates)
        try:
            self._gpu.wait_idle()
            result: list[Energy | str] = self._gpu.ask(
                worker.energy, candidates, windows, timeout_s=limit_s
            )
        except (Lost, CannotBegin) as error:
            return [_refusal(error, own=False).reason] * len(candidates)
        return result

    def _measure_interleaved(
        self, task: Any, candidates: Sequence[Candidate], estimates: Sequence[float], *more: Any
    ) -> list[Timed | Refusal]:
        """Return the results of a task over several configs. Where a config kills the process, it
        is identified and the others are tried once more."""
        for _, _, arrivals in self._prewarm_batches:
            arrivals.wait()
        result: dict[int, Timed | Refusal] = {}
        refusal: Refusal = Refusal("measure", "gave no time", own=False)
        for _ in range(2):
            left = [i for i in range(len(candidates)) if i not in result]
            entered, guesses = [candidates[i] for i in left], [estimates[i] for i in left]
            try:
                self._gpu.wait_idle()
                results = self._gpu.ask(
                    task, entered, guesses, *more, timeout_s=INTERLEAVED_TIMEOUT_S
                )
            except (Lost, CannotBegin) as error:
                refusal = _refusal(error, own=False)
                alone = {i: self._first_pass(candidates[i], None) for i in left}
                result |= {i: a for i, a in alone.items() if isinstance(a, Refusal)}
                continue
            culprit = next((i for i, r in zip(left, results, strict=True) if _poisons(r)), None)
            if culprit is None:
                result |= dict(zip(left, results, strict=True))
                break
            self._gpu.replace()
            result[culprit] = results[left.index(culprit)]
        return [result.get(i, refusal) for i in range(len(candidates))]

    def measure_interleaved(self, parts: Sequence[TimingTask]) -> list[TimingResult]:
        """Return the result of each task, timed in turns; see `worker.measure_interleaved`.

        Where a task kills the process, each is tried by itself and the survivors are timed again,
        at most ATTEMPTS times in all.
        """
        if not parts:
            return []
        compiled = self.compile_tasks(parts)
        refusal = {i: m for i, m in compiled.items() if isinstance(m, Refusal)}
        taken: dict[int, worker.TaskTime] = {}
        for attempt in range(ATTEMPTS):
            left = [i for i in range(len(parts)) if i not in refusal]
            if not left:
                break
            try:
                result = self._measure_tasks(
                    [parts[i] for i in left], self.rules, interleaved_s(len(left))
                )
            except (Lost, CannotBegin) as error:
                more = attempt + 1 < ATTEMPTS and isinstance(error, Lost)
                alone = {i: self._alone(parts[i]) for i in left} if more else {}
                guilty = {i: r for i, r in alone.items() if r is not None}
                refusal |= guilty or {i: _refusal(error, own=False) for i in left}
                continue
            culprit = next((n for n, t in enumerate(result) if _poisons(t.result)), None)
            if culprit is None:
                taken = dict(zip(left, result, strict=True))
                break
            self._gpu.replace()
            refusal[left[culprit]] = cast(Refusal, result[culprit].result)
        return [self._task_result(i, compiled, refusal, taken) for i in range(len(parts))]

    def compile_tasks(self, parts: Sequence[TimingTask]) -> dict[int, Compiled | Refusal]:
        """Return Compiled or Refusal of each task by its index, as `compile_parts` does, with a
        cache.

        Pass all tasks at once before timing them one after the other, so that no process waits.
        """
        new = [part for part in parts if part.candidate.key not in self._codes]
        if new:
            self._gpu.prepare_standby()  # meanwhile
            for kernel in {part.problem.kernel for part in parts if part.candidate.impl.imports}:
                self._gpu.import_libraries(kernel)
            if self._compilers is None:
                self._compilers = compilers(new[0].problem.kernel)
            compiles = partial(compile_all, code=True, here=True)
            compiled = compile_parts(self._compilers, new, self.device, compiles=compiles)
            self._codes |= {new[i].candidate.key: result for i, result in compiled.items()}
        results = ((i, self._codes.get(part.candidate.key)) for i, part in enumerate(parts))
        return {i: result for i, result in results if result is not None}

    def _measure_tasks(
        self, parts: Sequence[TimingTask], rules: Protocol, timeout_s: float
    ) -> list[worker.TaskTime]:
        """Return the results of `worker.measure_interleaved`. Raises Lost and CannotBegin."""
        self._gpu.wait_idle()
        tasks = [_part(part, rules, self._seed) for part in parts]
        result: list[worker.TaskTime] = self._gpu.ask(
            worker.measure_interleaved, tasks, timeout_s=timeout_s
        )
        return result

    def _alone(self, part: TimingTask) -> Refusal | None:
        """Return why a task cannot be run by itself, or None where it can."""
        brief = replace(self.rules, settle_s=0.0, rounds=2, least_rounds=2, most_rounds=2)
        try:
            (result,) = self._measure_tasks([replace(part, boost=False)], brief, ALONE_TIMEOUT_S)
        except (Lost, CannotBegin) as error:
            return _refusal(error)
        return cast(Refusal, self._note_result(result.result)) if _poisons(result.result) else None

    @staticmethod
    def _task_result(
        i: int,
        created: Mapping[int, Compiled | Refusal],
        refusal: Mapping[int, Refusal],
        taken: Mapping[int, worker.TaskTime],
    ) -> TimingResult:
        compiled = created.get(i)
        code = compiled if isinstance(compiled, Compiled) else None
        if i in refusal:
            return TimingResult(refusal[i], code)
        if i not in taken:
            return TimingResult(Refusal("measure", "gave no time", own=False), code)
        one = taken[i]
        return TimingResult(one.result, code, one.kernels, one.peak_bytes, one.boost)

    def close(self) -> None:
        """End all processes and release the GPU's lock."""
        if self._own_libraries is not None:
            self._own_libraries.close()
        if self._compilers is not None:
            self._compilers.close()
        self._gpu.close()
        self._locks.close()


def _background(task: Callable[..., None], *args: Any) -> Future[None]:
    """Run a task in a thread that does not outlive this process; return a future of its end."""
    future: Future[None] = Future()

    def run() -> None:
        try:
            task(*args)
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(None)

    threading.Thread(target=run, daemon=True).start()
    return future


def interleaved_s(parts: int) -> float:
    """Return the limit in seconds for `parts` interleaved tasks: the most that a hang costs."""
    return min(INTERLEAVED_TIMEOUT_S, 60.0 + 5.0 * parts)


def _part(part: TimingTask, rules: Protocol, seed: int) -> worker.WorkerTask:
    problem = part.problem
    job = worker.MeasureJob(problem.kernel, problem.sizes, problem.dtype, rules, seed)
    return worker.WorkerTask(job, part.candidate, part.regime, part.clock, part.boost)


def _poisons(result: Timed | Refusal | None) -> bool:
    return isinstance(result, Refusal) and result.is_poisoned


def _refusal(error: Exception, own: bool = True) -> Refusal:
    words = str(error) if isinstance(error, CannotBegin) else f"the measuring process: {error}"
    return Refusal(
        "measure",
        words,
        own and not isinstance(error, CannotBegin),
        cause=getattr(error, "cause", None),
        attempts=getattr(error, "attempts", 1),
    )


def _ceilings(results: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """Return ceilings in the format of `hardware.ceilings`."""
    return {
        f"{name}_measured": {"value": results[name], **about, "kind": "measured"}
        for name, about in CEILINGS.items()
        if name in results
    }
