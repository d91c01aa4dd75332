"""What a sweep asks of the side that it runs on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from workbench.compile import Compiled
from workbench.data.record import Case, Checked, Environment, Measured, Predicted, Stage, Verdict
from workbench.device.hardware import Device
from workbench.measurement.protocol import Protocol as Rules
from workbench.spec import Impl, Sizes, Spec


@dataclass(frozen=True)
class Problem:
    """What is swept: one kernel at one set of sizes and one dtype."""

    kernel: str  # as the user named it
    spec: Spec
    sizes: Sizes
    dtype: str


@dataclass(frozen=True)
class Candidate:
    """One config under consideration."""

    case: Case
    key: str
    impl: Impl
    config: Any
    default: bool = False
    older_key: str = ""  # the key that schema 1 gave the same config
    version: str | None = None  # the kernel's file where it is not the problem's own


@dataclass(frozen=True)
class Timed:
    """A right answer and its time."""

    timing: Measured | Predicted
    error: float
    checked: Checked


@dataclass(frozen=True)
class Refusal:
    """No time, and why: becomes a Failure."""

    stage: Stage
    reason: str
    own: bool = True  # the config's own doing; else it took part when something else went wrong


@dataclass(frozen=True)
class TimingTask:
    """One arm of an experiment. By the `host` clock a call lasts from its beginning until the GPU
    is silent, and all that the CPU launches counts."""

    problem: Problem
    candidate: Candidate
    regime: Literal["cold", "hot"] = "cold"
    clock: Literal["device", "host"] = "device"


@dataclass(frozen=True)
class TimingResult:
    """What became of a part."""

    result: Timed | Refusal
    compiled: Compiled | None = None  # with its `code`
    kernels: int | None = None  # launched by one call
    peak_bytes: int | None = None  # of the GPU's memory, beyond inputs, during one call


class Backend(Protocol):
    """One side. `compiled` yields in the order in which answers come."""

    device: Device
    environment: Environment
    predicts: bool  # times come from the analytic model
    protocol: str  # of measurement, or the model's name: part of every key
    room: int  # how many may be timed at once

    @property
    def spent(self) -> Mapping[str, float]:
        """Seconds of measuring so far by what they went into; empty where nothing is measured."""

    def begin(
        self, problem: Problem, candidates: Sequence[Candidate] = ()
    ) -> dict[str, dict[str, Any]]:
        """Get ready, and start to compile `candidates` meanwhile, for `compiled` to give them.
        Returns ceilings found by measuring, as `hardware.ceilings` writes them."""

    def compiled(
        self, candidates: Sequence[Candidate]
    ) -> Iterator[tuple[Candidate, Compiled | Refusal]]:
        """What the compiler makes of each."""

    def timed(
        self, candidate: Candidate, compiled: Compiled, best_s: float | None
    ) -> Future[Timed | Refusal]:
        """Check and time one, now or in a process that does so meanwhile."""

    def measure_interleaved(self, parts: Sequence[TimingTask]) -> list[TimingResult]:
        """Parts of different problems: compiled, checked, and timed against each other. `begin`
        was called with the problem of the first."""

    def close(self) -> None:
        """End all processes."""


class Measures(Backend, Protocol):
    """A side with a clock. A model gives the same answer every time: it has nothing to settle."""

    rules: Rules

    def halve(
        self, candidates: Sequence[Candidate], estimates: Sequence[float], keep: int
    ) -> list[Timed | Refusal]:
        """Better times for the best of the screen, by successive halving down to `keep`."""

    def final(
        self, candidates: Sequence[Candidate], estimates: Sequence[float]
    ) -> list[Timed | Refusal]:
        """The best against each other."""

    def hot(self, candidate: Candidate) -> Timed | Refusal:
        """The winner on data that the cache may hold."""

    def compare(
        self, left: Candidate, right: Candidate, requested_threshold: float
    ) -> tuple[Timed | Refusal, Timed | Refusal, Verdict | None]:
        """Both sides against each other: is the right one slower by more than `asked`?"""
