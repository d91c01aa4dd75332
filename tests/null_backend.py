"""A backend without processes, GPU or compiler: tests say what becomes of each config.

It answers at once and always the same, so that whatever stands on a backend can be tested for all
that may happen to a config, in milliseconds and without torch.
"""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import synthetic

from workbench.backend.protocol import GpuPlace, Problem, TimingResult, TimingTask
from workbench.code.loops import Code
from workbench.compile import Compiled
from workbench.data import stats
from workbench.data.record import (
    Cause,
    Energy,
    Environment,
    Measured,
    Predicted,
    Ratio,
    Resources,
    Verdict,
)
from workbench.data.verdict import verdict
from workbench.device.hardware import Device, device_named
from workbench.measurement.candidate import Candidate, Refusal, Timed
from workbench.measurement.protocol import Protocol

ENVIRONMENT = Environment(
    gpu=None,
    driver=None,
    gpu_memory_bytes=None,
    power_limit_w=None,
    clock_policy="unknown",
    others_on_gpu=None,
    os="none",
    cpu="none",
    python="3",
    versions={"workbench": "0"},
    settings={},
    commit=None,
    dirty=None,
)


@dataclass(frozen=True)
class Fate:
    """What becomes of one config; by default it is right and takes `time_s`."""

    time_s: float = 100e-6
    noise: float = 0.001  # of each sample, relative
    binary: str | None = None  # configs of one binary are duplicates; None: its own
    differs: bool = False  # its launches are not those of the config with the same binary
    compile_error: str | None = None
    wrong: str | None = None  # what the check says
    raises: Exception | None = None  # out of the future that times it
    lost: tuple[Cause, ...] = ()  # how its process ends, by attempt; later ones give a time
    hangs: bool = False  # until `release`
    boost: float = 0.9  # its time at the boost clock, over the sustained one
    takes_s: float = 0.0  # before the time is known
    halve: str | None = None  # why it fails once it is measured again
    final: str | None = None
    code: tuple[Code, ...] = ()  # what its machine code says
    kernels: int | None = 1  # of one call
    peak_bytes: int | None = None
    power_w: float = 500.0
    no_energy: str | None = None  # why its energy cannot be had
    sanitized: str | None = None  # what compute-sanitizer finds


class Null:
    """Implements `protocol.Backend`. `requests` lists what it was asked to do, in order:
    ("compile", label), ("time", label), ("halve", label), ("final", label), ("hot", label)."""

    def __init__(
        self,
        fate: Callable[[Candidate], Fate] = lambda candidate: Fate(),
        *,
        predicts: bool = False,
        device: str = "h200",
        rules: Protocol | None = None,
        begin_error: str | None = None,
    ) -> None:
        """With `begin_error` the problem does not fit: `begin` raises RuntimeError."""
        self.device: Device = device_named(device)
        self.environment = ENVIRONMENT
        self.predicts = predicts
        self.rules = rules or Protocol()
        self.protocol = "null-model" if predicts else self.rules.id
        self.requests: list[tuple[str, str]] = []
        self.closed, self.begun, self.place = False, 0, GpuPlace()
        self.room = 1 << 30 if predicts else 1
        self._fate, self._begin_error = fate, begin_error
        self._released = threading.Event()
        self._turn = ThreadPoolExecutor(1)  # for what does not answer at once

    @property
    def seconds(self) -> Mapping[str, float]:
        """Nothing: there is no clock."""
        return {}

    def prepare(self, problem: Problem) -> None:
        """Do nothing: there is nothing to prepare that takes time."""

    def begin(
        self, problem: Problem, candidates: Sequence[Candidate] = ()
    ) -> dict[str, dict[str, Any]]:
        """Nothing to get ready."""
        self.begun += 1
        if self._begin_error is not None:
            raise RuntimeError(self._begin_error)
        if self.predicts:
            return {}
        source = "made up"
        return {
            "dram_measured": {"value": 4e12, "unit": "B/s", "source": source, "kind": "measured"}
        }

    def compile(
        self, candidates: Sequence[Candidate]
    ) -> Iterator[tuple[Candidate, Compiled | Refusal]]:
        """In the order given."""
        for candidate in candidates:
            self._note("compile", candidate)
            fate = self._fate(candidate)
            if fate.compile_error is not None:
                yield candidate, Refusal("compile", fate.compile_error)
            else:
                yield candidate, Compiled(null_resources(candidate, fate), "null", (64,), 1)

    def time(
        self, candidate: Candidate, compiled: Compiled, best_s: float | None, patience: float = 1.0
    ) -> Future[Any]:
        """At once, unless its fate is to hang or to take long."""
        self._note("time" if patience == 1 else "time again", candidate)
        fate = self._fate(candidate)
        if patience > 1 or fate.lost:
            fate = replace(fate, lost=fate.lost[patience > 1 :])
        if fate.hangs or fate.takes_s:
            return self._turn.submit(self._slowly, candidate, fate)
        given: Future[Any] = Future()
        try:
            given.set_result(self._reply(candidate, fate))
        except Exception as error:
            given.set_exception(error)
        return given

    def duplicate(self, candidate: Candidate, compiled: Compiled, leader: str) -> Future[Any]:
        """As its fate says; None where it `differs`."""
        self._note("check", candidate)
        fate = self._fate(candidate)
        given: Future[Any] = Future()
        given.set_result(None if fate.differs else self._reply(candidate, fate))
        return given

    def _slowly(self, candidate: Candidate, fate: Fate) -> Timed | Refusal:
        if fate.hangs:
            self._released.wait()
        time.sleep(fate.takes_s)
        return self._reply(candidate, fate)

    def release(self) -> None:
        """What hangs goes on."""
        self._released.set()

    def prewarm(self, problem: Problem, candidates: Sequence[Candidate]) -> None:
        """Nothing takes time."""

    def halve(
        self, candidates: Sequence[Candidate], estimates: Sequence[float], keep: int
    ) -> list[Timed | Refusal]:
        """In the order given."""
        return [self._again("halve", c, self._fate(c).halve) for c in candidates]

    def final(
        self, candidates: Sequence[Candidate], estimates: Sequence[float]
    ) -> list[Timed | Refusal]:
        """In the order given."""
        return [self._again("final", c, self._fate(c).final) for c in candidates]

    def begin_libraries(self) -> None:
        """There is none to wait for."""

    def libraries(
        self, winner: Candidate, libraries: Sequence[Candidate], limit_s: float
    ) -> list[tuple[Timed | Refusal, float | None]]:
        """As in a final."""
        beside = self._again("final", winner, None)
        winner_s = beside.timing.median_s if isinstance(beside, Timed) else None
        return [(self._again("final", c, self._fate(c).final), winner_s) for c in libraries]

    def sanitize(self, candidates: Sequence[Candidate]) -> list[Refusal | None]:
        """The finding of each one's fate."""
        for candidate in candidates:
            self._note("sanitize", candidate)
        findings = [self._fate(c).sanitized for c in candidates]
        return [Refusal("check", x, rule="sanitizer") if x else None for x in findings]

    def hot(self, candidate: Candidate) -> Timed | Refusal:
        """A fifth faster than cold."""
        self._note("hot", candidate)
        fate = self._fate(candidate)
        return Timed(self._measured(candidate, fate.time_s * 0.8, fate.noise, "hot"), 0.1, "gpu")

    def energy(self, candidates: Sequence[Candidate], windows: int) -> list[Energy | str]:
        """The power of each one's fate times its time."""
        results: list[Energy | str] = []
        for candidate in candidates:
            self._note("energy", candidate)
            fate = self._fate(candidate)
            took = synthetic.energy_of(fate.time_s, fate.power_w, windows, candidate.key)
            results.append(fate.no_energy or took)
        return results

    def compare(
        self, left: Candidate, right: Candidate, requested_threshold: float
    ) -> tuple[Timed | Refusal, Timed | Refusal, Verdict | None]:
        """By the times that the two are fated to have, to a thousandth."""
        self._note("contest", left)
        self._note("contest", right)
        results = [self._again("contest", c, self._fate(c).final) for c in (left, right)]
        if any(isinstance(f, Refusal) for f in results):
            return results[0], results[1], None
        middle = self._fate(right).time_s / self._fate(left).time_s
        ratio = Ratio(middle, middle * 0.999, middle * 1.001)
        return results[0], results[1], verdict(ratio, ratio, requested_threshold, 0.001, 24)

    def measure_interleaved(self, parts: Sequence[TimingTask]) -> list[TimingResult]:
        """In the order given, each as long as it is fated to be."""
        results = []
        for part in parts:
            self._note("together", part.candidate)
            fate = self._fate(part.candidate)
            if fate.compile_error is not None:
                results.append(TimingResult(Refusal("compile", fate.compile_error)))
                continue
            created = Compiled(
                null_resources(part.candidate, fate), "null", (64,), 1, code=fate.code
            )
            time = Refusal("measure", fate.final) if fate.final else self._part(part, fate)
            boost = None
            if part.boost and isinstance(time, Timed):
                boost = self._part(part, replace(fate, time_s=fate.time_s * fate.boost), "boost")
            results.append(TimingResult(time, created, fate.kernels, fate.peak_bytes, boost))
        return results

    def _part(self, part: TimingTask, fate: Fate, state: Any = "sustained") -> Timed | Refusal:
        selection = self._reply(part.candidate, fate)
        if self.predicts or isinstance(selection, Refusal):
            return selection
        timing = self._measured(part.candidate, fate.time_s, fate.noise, part.regime)
        mhz = 1980.0 if state == "boost" else 1500.0
        return Timed(replace(timing, state=state, sm_mhz=mhz), 0.1, "gpu")

    def close(self) -> None:
        """Lets go of what hangs."""
        self.closed = True
        self._released.set()
        self._turn.shutdown(wait=False, cancel_futures=True)

    def _note(self, what: str, candidate: Candidate) -> None:
        self.requests.append((what, candidate.case.label))

    def _again(self, what: str, candidate: Candidate, failure: str | None) -> Timed | Refusal:
        self._note(what, candidate)
        if failure is not None:
            return Refusal("measure", failure)
        return self._reply(candidate, replace(self._fate(candidate), lost=()))

    def _reply(self, candidate: Candidate, fate: Fate) -> Timed | Refusal:
        if fate.raises is not None:
            raise fate.raises
        if fate.lost:
            return Refusal("measure", "its process was lost", cause=fate.lost[0])
        if fate.wrong is not None:
            return Refusal("check", fate.wrong)
        if self.predicts:
            parts = (fate.time_s, 0.0, 0.0, 0.0, 0.0)
            return Timed(
                Predicted(fate.time_s, self.protocol, *parts, "compute"), 0.1, "interpreter"
            )
        return Timed(self._measured(candidate, fate.time_s, fate.noise, "cold"), 0.1, "gpu")

    def _measured(self, candidate: Candidate, time_s: float, noise: float, regime: Any) -> Measured:
        dice = random.Random(candidate.key + regime)  # the same config, the same samples
        samples = tuple(time_s * (1 + noise * dice.gauss(0, 1)) for _ in range(9))
        low, high = stats.median_interval(samples)
        middle, of = stats.median(samples), self.protocol
        return Measured(middle, low, high, samples, regime, "events", of, host_s=4e-6)


def null_resources(candidate: Candidate, fate: Fate) -> Resources:
    """What a null compiler says of any config."""
    binary = fate.binary or hashlib.sha256(candidate.case.label.encode()).hexdigest()[:16]
    return Resources(
        binary=binary,
        registers=64,
        spill_bytes=0,
        shared_bytes=4096,
        threads=128,
        blocks_per_core=2,
        occupancy=0.125,
        limiter="registers",
        programs=64,
        waves=0.5,
        tail=0.5,
        load_bits=128,
        matrix_unit=None,
        compile_s=0.01,
    )
