"""Measure one config with two versions of Triton against each other, each in its own process.

Two versions cannot live in one process, so a window is taken by one process while the others are
idle: the orders of rounds, the statistics and the verdict are those of `rounds.compare`. The first
version has two processes, and the difference of these is the noise floor: it holds what differs
from process to process, such as the places of buffers, beside what differs from window to window.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from workbench.backend.compilers import FactsJob
from workbench.backend.workers import BEGIN_S, LOST, Solo
from workbench.data.closing import Closing
from workbench.data.errors import first_sentence
from workbench.data.record import Environment, Verdict
from workbench.device.hardware import Device
from workbench.measurement import preflight, rounds, worker
from workbench.measurement.candidate import Candidate, Refusal, Timed
from workbench.measurement.protocol import Protocol
from workbench.measurement.rounds import Window

# four times the usual window: the GPU changes from one process to another before each of them
RULES = Protocol(compare_window_s=0.02)
CHECK_S = 120.0  # to compile, check and time one config
WINDOW_S = 60.0


@dataclass(frozen=True)
class VersionTimes:
    """The verdict on the second version against the first, and the time of each."""

    verdict: Verdict
    before: Timed
    after: Timed


@dataclass(frozen=True)
class NoVersionTimes:
    """The reason why there is no verdict, and the version that gave it: 0 or 1, None for both."""

    reason: str
    place: int | None = None


@dataclass(frozen=True)
class ProcessEntrant:
    """The open config of a process. A window is over before `begin` returns, so that no two
    processes are on the GPU at once."""

    process: Solo

    def begin(self, seconds: float, least: int = 1) -> Window:
        """Return samples of about `seconds` in total, at least `least`, once they are taken. Raises
        what `Solo.ask` raises."""
        samples = (worker.window_alone, seconds, least)
        return cast(Window, self.process.ask(*samples, timeout_s=WINDOW_S))


class VersionTimer(Closing):
    """Three processes: two with the first version and one with the second. Holds the GPU's lock
    from the first comparison on; `close` or the end of a `with` block ends and releases all."""

    def __init__(
        self,
        folders: Sequence[Path | None],
        on_wait: Callable[[str], None],
        start: Callable[[Path | None], Any] = lambda folder: Solo(packages=folder),
    ) -> None:
        """Name the folder of each of two versions, None for the installed one. `on_wait(message)`
        is called while waiting for the GPU's lock; `start(folder)` starts a process."""
        before, after = folders
        self._folders, self._on_wait, self._start = (before, before, after), on_wait, start
        self._processes: list[Any] = []
        self._locks = ExitStack()
        self._lock: str | None = None
        self._is_locked = False
        self.environment: Environment | None = None  # of the machine, once `device` has found one

    def device(self) -> Device | None:
        """Return the GPU of this machine, or None where a process sees none."""
        try:
            result = self._ready(1)[0].ask(worker.describe, None, timeout_s=BEGIN_S)
        except LOST:
            self._end()
            return None
        if result is None:
            return None
        device, self.environment, self._lock = result
        return device  # type: ignore[no-any-return]

    def compare(self, job: FactsJob, threshold: float) -> VersionTimes | NoVersionTimes:
        """Return the verdict on the second version against the first with both times, or why there
        is none. Results are checked before the windows and after the last; `device` comes first."""
        if not self._is_locked and self._lock is not None:
            self._locks.enter_context(preflight.gpu_lock(self._lock, self._on_wait))
            self._is_locked = True
        case = job.case
        problem = worker.MeasureJob(job.kernel, case.sizes, case.dtype, RULES, secrets.randbits(31))
        candidate = Candidate(case, "", None, None, code=job.code)  # type: ignore[arg-type]
        processes = self._ready()
        try:
            for process in processes:
                process.ask(worker.begin, problem, timeout_s=BEGIN_S)
            if isinstance(opened := self._each(worker.open_alone, candidate), NoVersionTimes):
                return opened
            before, again, after = (ProcessEntrant(process) for process in processes)
            times = rounds.compare(before, again, after, RULES, threshold)
            closed = self._each(worker.close_alone, len(times.left))
            if isinstance(closed, NoVersionTimes):
                return closed
            return VersionTimes(times.verdict, closed[0], closed[-1])
        except LOST as error:
            self._end()
            return NoVersionTimes(f"a measuring process {error}")
        except Exception as error:  # out of memory, a changed file, a wrong Spec
            self._end()
            return NoVersionTimes(first_sentence(error))

    def _each(self, task: Callable[..., Any], *args: Any) -> list[Any] | NoVersionTimes:
        """Run a task in each process. Returns the results, or why the first that refuses does."""
        results = []
        for place, process in enumerate(self._processes):
            result = process.ask(task, *args, timeout_s=CHECK_S)
            if isinstance(result, Refusal):
                if result.is_poisoned:
                    self._end()
                return NoVersionTimes(str(result.reason), int(place == len(self._folders) - 1))
            results.append(result)
        return results

    def _ready(self, count: int = 3) -> list[Any]:
        """Return the first processes, started where they are not there."""
        for folder in self._folders[len(self._processes) : count]:
            process = self._start(folder)
            self._processes.append(process)
            process.begin(worker.warm)
            process.begin(worker.load)
        return self._processes

    def _end(self) -> None:
        for process in self._processes:
            process.end()
        self._processes = []

    def close(self) -> None:
        """End the processes and release the GPU's lock."""
        self._end()
        self._locks.close()
