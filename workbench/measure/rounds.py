"""Windows of samples in rounds: settle the clock, take turns, stop when the intervals are narrow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol as Interface


@dataclass(frozen=True)
class Window:
    """Samples taken one after the other, and the SM clock meanwhile."""

    samples_s: tuple[float, ...]
    sm_mhz: float | None = None


class Arm(Interface):
    """Something that can be timed: a call on a live GPU, or a test's own."""

    def window(self, seconds: float, least: int = 1) -> Window:
        """Samples that together last about `seconds`, at least `least` of them."""
