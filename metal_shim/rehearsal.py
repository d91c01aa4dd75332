"""A clock for rehearsals of a measurement on a Mac: no GPU takes part, and no time is one.

It follows from the bytes of a call's inputs, with a spread of a tenth of a percent: whatever stands
on a clock can be run and tested without one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.data.mac import Mac
from workbench.data.record import Checked
from workbench.spec import Impl, label, values

REHEARSED = Mac("Apple M2 Max", 38, 96 << 30, "ac", False)
EVALUATION_S, DISPATCH_S = 2e-4, 4e-6


@dataclass
class RehearsalDriver:
    """Implements `MetalDriver`; its clock goes on by what each call is said to take."""

    elapsed_s: float = 0.0
    checked_by: Checked = "rehearsal"

    def now(self) -> float:
        """Return the seconds that have gone by on this clock."""
        return self.elapsed_s

    def prepare(
        self, impl: Impl, config: Any, inputs: Sequence[Any], cold_bytes: int
    ) -> RehearsalCall:
        """Return a call that takes 20 us, and a second for 100 GB of its inputs."""
        bytes_ = sum(x.numel() * x.element_size() for x in inputs)
        name = f"{impl.title} {label(values(config))}"
        return RehearsalCall(self, 2e-5 + bytes_ / 1e11, name)

    def empty(self) -> RehearsalCall:
        """Return a call that takes no time but for its dispatch."""
        return RehearsalCall(self, 0.0, "empty")

    def info(self) -> Mapping[str, Any]:
        """Return nothing: no device is described."""
        return {}


@dataclass
class RehearsalCall:
    """Implements `TimedCall` on the clock of its driver."""

    driver: RehearsalDriver
    call_s: float
    name: str
    dispatches: int = 1
    chains: int = field(default=0, repr=False)

    def seconds(self, calls: int) -> float:
        """Return the seconds that a chain is said to take."""
        self.chains += 1
        digest = hashlib.sha256(f"{self.name} {self.chains}".encode()).digest()
        spread = 1 + 1e-3 * (digest[0] / 255 - 0.5)
        work_s = calls * (DISPATCH_S + self.call_s) * spread
        spent_s = EVALUATION_S + work_s
        self.driver.elapsed_s += spent_s
        return spent_s


class SameProcess:
    """Runs tasks at once in this process, where `workers.Solo` has one of its own."""

    def ask(self, task: Callable[..., Any], *args: Any, timeout_s: float) -> Any:
        """Run a task and return its result, without a limit."""
        return task(*args)

    def end(self) -> None:
        """Do nothing: there is no process."""
