"""What a sweep asks of the side that it runs on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from workbench.compile import Compiled
from workbench.hardware import Device
from workbench.record import Case, Checked, Environment, Measured, Predicted, Stage
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


class Backend(Protocol):
    """One side. `compiled` and `timed` may run ahead in processes of their own; both yield in the
    order in which answers come."""

    device: Device
    environment: Environment
    predicts: bool  # times come from the analytic model
    protocol: str  # of measurement, or the model's name: part of every key

    def begin(self, problem: Problem) -> dict[str, dict[str, Any]]:
        """Get ready. Returns ceilings found by measuring, as `hardware.ceilings` writes them."""

    def compiled(
        self, candidates: Sequence[Candidate]
    ) -> Iterator[tuple[Candidate, Compiled | Refusal]]:
        """What the compiler makes of each."""

    def timed(self, candidate: Candidate, compiled: Compiled, best_s: float | None) -> Any:
        """Start to check and time one; a Future of Timed or Refusal."""

    def final(
        self, candidates: Sequence[Candidate], estimates: Sequence[float]
    ) -> list[Timed | Refusal] | None:
        """The best against each other; None where a final means nothing."""

    def hot(self, candidate: Candidate) -> Timed | Refusal | None:
        """The winner on data that the cache may hold; None where that means nothing."""

    def close(self) -> None:
        """End all processes."""
