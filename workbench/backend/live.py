"""The GPU that is here: compiled in parallel, checked and measured in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

from workbench.backend.processes import compile_all, outcome_of
from workbench.backend.protocol import Candidate, Problem, Refusal, Timed
from workbench.compile import Compiled
from workbench.hardware import Device
from workbench.measure import worker
from workbench.measure.protocol import Protocol
from workbench.record import Environment, Stage
from workbench.spec import values
from workbench.workers import LOST, Workers, cpu_count

BEGIN_TIMEOUT_S = 180.0  # the first import of torch on a cold disk took 60 s
SCREEN_TIMEOUT_S = 30.0
FINAL_TIMEOUT_S = 300.0


class NoGpu(Exception):
    """torch sees no GPU here."""


class Live:
    """Measures on torch's current GPU. This process itself never touches the GPU."""

    predicts = False

    def __init__(self, repository: Path | None, rules: Protocol | None = None) -> None:
        """`repository` holds the kernel: its commit is part of the fingerprint. Raises NoGpu."""
        self.rules = rules or Protocol()
        self.protocol = self.rules.id
        self._gpu = Workers(1)
        try:
            asked = self._gpu.submit(worker.describe, repository, timeout_s=BEGIN_TIMEOUT_S)
            found = asked.result()
        except LOST as error:
            self._gpu.close()
            raise NoGpu(
                f"the process that asks the GPU what it is {error}; "
                "see `workbench doctor`, or compile for a target: --device h200"
            ) from None
        if found is None:
            self._gpu.close()
            raise NoGpu("torch sees no GPU here; name a target to compile for: --device h200")
        self.device: Device
        self.environment: Environment
        self.device, self.environment = found
        self._compilers = Workers(max(1, cpu_count() - 2))  # two are left to launch and to wait
        self._turn = ThreadPoolExecutor(1)  # one config at a time on the GPU
        self._begun = False
        self._problem: Problem

    def begin(self, problem: Problem) -> dict[str, dict[str, Any]]:
        """Raises BeginError's sentence as RuntimeError when the problem does not fit the GPU."""
        self._problem = problem
        found = self._begin()
        if isinstance(found, str):
            raise RuntimeError(found)
        source = "the workbench's copy kernel, just before this run"
        return {
            "dram_measured": {
                "value": found["dram"], "unit": "B/s", "source": source, "kind": "measured"
            },
            "launch_measured": {
                "value": found["launch"], "unit": "s", "kind": "measured",
                "source": "an empty launch in a graph, just before this run",
            },
        }  # fmt: skip

    def _begin(self) -> dict[str, float] | str:
        p = self._problem
        job = worker.Job(p.kernel, p.sizes, p.dtype, self.rules)
        begun = self._gpu.submit(worker.begin, job, timeout_s=BEGIN_TIMEOUT_S)
        found: dict[str, float] | str = outcome_of(begun, "measure")
        self._begun = not isinstance(found, (Refusal, str))
        return found.reason if isinstance(found, Refusal) else found

    def compiled(
        self, candidates: Sequence[Candidate]
    ) -> Iterator[tuple[Candidate, Compiled | Refusal]]:
        return compile_all(self._compilers, self._problem, candidates, self.device)

    def timed(self, candidate: Candidate, compiled: Compiled, best_s: float | None) -> Future[Any]:
        return self._turn.submit(self._screen, candidate, best_s)

    def _screen(self, candidate: Candidate, best_s: float | None) -> Timed | Refusal:
        task = (worker.screen, choice_of(candidate), best_s)
        found: Timed | Refusal = self._asked(task, SCREEN_TIMEOUT_S)[0]
        return found

    def race(self, candidates: Sequence[Candidate], best_s: float) -> list[Timed | Refusal]:
        """The best of the screen once more, in the order given."""
        task = (worker.race, [choice_of(c) for c in candidates], best_s)
        return self._asked(task, FINAL_TIMEOUT_S, len(candidates))

    def final(
        self, candidates: Sequence[Candidate], estimates: Sequence[float]
    ) -> list[Timed | Refusal]:
        task = (worker.final, [choice_of(c) for c in candidates], list(estimates))
        return self._asked(task, FINAL_TIMEOUT_S, len(candidates))

    def hot(self, candidate: Candidate) -> Timed | Refusal:
        task = (worker.hot, choice_of(candidate))
        found: Timed | Refusal = self._asked(task, SCREEN_TIMEOUT_S)[0]
        return found

    def _asked(self, task: tuple[Any, ...], timeout_s: float, many: int = 1) -> list[Any]:
        """Results of a task in the measuring process, which is replaced when it is lost."""
        if not self._begun and isinstance(why := self._begin(), str):
            return [Refusal("measure", why)] * many
        found = outcome_of(self._gpu.submit(*task, timeout_s=timeout_s), "measure")
        if isinstance(found, Refusal):  # timed out or died: its process is a new one now
            self._begun = False
            return [found] * many
        results = found if isinstance(found, list) else [found]
        if any(r.poisoned for r in results):
            self._gpu.restart()
            self._begun = False
        return [_timed(r) for r in results]

    def close(self) -> None:
        self._turn.shutdown(wait=False, cancel_futures=True)
        self._compilers.close()
        self._gpu.close()


def choice_of(candidate: Candidate) -> worker.Choice:
    """A candidate by name, as it travels to the measuring process."""
    return worker.Choice(candidate.impl.name, values(candidate.config))


def _timed(screened: worker.Screened) -> Timed | Refusal:
    if screened.timing is None:
        stage = cast(Stage, screened.stage or "measure")
        return Refusal(stage, screened.reason or "gave no time")
    return Timed(screened.timing, screened.error, "gpu")
