"""Interface between a sweep and the backend that it runs on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from workbench.compile import Compiled
from workbench.data.record import Energy, Environment, Verdict
from workbench.device.hardware import Device
from workbench.measurement.candidate import Candidate, Refusal, Timed
from workbench.measurement.protocol import Protocol as Rules
from workbench.spec import Sizes, Spec


@dataclass(frozen=True)
class Problem:
    """One kernel at one set of sizes and one dtype."""

    kernel: str  # as the user named it
    spec: Spec
    sizes: Sizes
    dtype: str


@dataclass(frozen=True)
class GpuPlace:
    """A GPU of a cluster, as runs and outcomes name it; see `Run.gpu` and `Run.references`."""

    gpu: str = ""
    references: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class TimingTask:
    """One variant of an experiment to time. With the `host` clock a call lasts until the GPU is
    idle, including all launches by the CPU. With `boost` it is also timed in that state, before the
    clock settles."""

    problem: Problem
    candidate: Candidate
    regime: Literal["cold", "hot"] = "cold"
    clock: Literal["device", "host"] = "device"
    boost: bool = False


@dataclass(frozen=True)
class TimingResult:
    """The outcome of one task."""

    result: Timed | Refusal
    compilation: Compiled | None = None  # with its `code`
    kernels: int | None = None  # launched by one call
    peak_bytes: int | None = None  # peak of GPU memory during one call, beyond its inputs
    boost: Timed | Refusal | None = None  # in that state; None if not requested or not correct


class Backend(Protocol):
    """A backend of sweeps. `compile` yields in the order of completion."""

    device: Device
    environment: Environment
    predicts: bool  # times come from the analytic model
    protocol: str  # id of the measurement protocol, or the model's name: part of every key
    room: int  # candidates that may be timed at once
    place: GpuPlace  # of a cluster; empty for this machine

    @property
    def seconds(self) -> Mapping[str, float]:
        """Return seconds of measuring so far by activity; empty where nothing is measured."""

    def prepare(self, problem: Problem) -> None:
        """Start to prepare a problem in the background, for `begin`, where that takes time."""

    def begin(
        self, problem: Problem, candidates: Sequence[Candidate] = ()
    ) -> dict[str, dict[str, Any]]:
        """Prepare a problem and start to compile `candidates` in the background, for `compile`.
        Returns measured ceilings in the format of `hardware.ceilings`."""

    def compile(
        self, candidates: Sequence[Candidate]
    ) -> Iterator[tuple[Candidate, Compiled | Refusal]]:
        """Yield each candidate with its Compiled or Refusal."""

    def time(
        self, candidate: Candidate, compiled: Compiled, best_s: float | None, patience: float = 1.0
    ) -> Future[Timed | Refusal]:
        """Check and time one candidate, now or in the background; return a future of the result.
        Its time limit is `patience` times the usual one."""

    def duplicate(
        self, candidate: Candidate, compiled: Compiled, leader: str
    ) -> Future[Timed | Refusal | None]:
        """Check a config whose machine code is that of the timed config with the key `leader`.

        Returns a future of a Timed where the leader's time is also its own (its timing is not
        used), of a Refusal where it is wrong, and of None where it must be timed by itself.
        """

    def measure_interleaved(self, parts: Sequence[TimingTask]) -> list[TimingResult]:
        """Compile, check and time tasks of different problems in turns; return their results.
        `begin` must have been called with the problem of the first."""

    def close(self) -> None:
        """End all processes."""


class Measures(Backend, Protocol):
    """A backend with a clock. A model needs none of these, as its times do not vary."""

    rules: Rules

    def prewarm(self, problem: Problem, candidates: Sequence[Candidate]) -> None:
        """Start to compile the candidates that `begin` will be given for a problem. Nothing is
        timed before they are compiled."""

    def halve(
        self, candidates: Sequence[Candidate], estimates: Sequence[float], keep: int
    ) -> list[Timed | Refusal]:
        """Return better times for the best of the first pass, by halving down to `keep`."""

    def final(
        self, candidates: Sequence[Candidate], estimates: Sequence[float]
    ) -> list[Timed | Refusal]:
        """Return times of the best candidates, measured against each other."""

    def begin_libraries(self) -> None:
        """Let libraries that are slow to import get ready for `libraries`, in the background."""

    def libraries(
        self, winner: Candidate, libraries: Sequence[Candidate], limit_s: float
    ) -> list[tuple[Timed | Refusal, float | None]]:
        """Return the time of each library that is slow to import, and the winner's in the same
        rounds. What is not ready, or takes longer than `limit_s`, is refused."""

    def sanitize(self, candidates: Sequence[Candidate]) -> list[Refusal | None]:
        """Return for each candidate why racecheck or memcheck does not accept it, or None."""

    def hot(self, candidate: Candidate) -> Timed | Refusal:
        """Return the candidate's time on data that the cache may hold."""

    def energy(self, candidates: Sequence[Candidate], windows: int) -> list[Energy | str]:
        """Return the energy of one call of each candidate, from `windows` windows in turns, or one
        sentence that says why it has none. To be called after all times are taken."""

    def compare(
        self, left: Candidate, right: Candidate, requested_threshold: float
    ) -> tuple[Timed | Refusal, Timed | Refusal, Verdict | None]:
        """Return both operands' times and the verdict: is the right one slower than the left one by
        more than `requested_threshold` (0.01 is one percent)?"""
