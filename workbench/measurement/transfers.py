"""Time copies between host and device by the host's clock: from the call until the GPU is idle.

The GPU accesses pinned memory directly; the driver copies pageable memory through a pinned buffer
of its own. After its timing, every copy is compared with its source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from workbench.data import stats
from workbench.data.record import Measured, group_by
from workbench.measurement import rounds
from workbench.measurement.protocol import Protocol
from workbench.measurement.rounds import Window

Direction = Literal["h2d", "d2h"]
SIZES = tuple(4096 << 2 * e for e in range(9))  # bytes: 4 KiB to 256 MiB
# The link's clock need not settle, and its times vary more than a kernel's: few short windows.
RULES = Protocol(rounds=4, most_rounds=4, window_s=0.003)


@dataclass(frozen=True)
class Copied:
    """One kind of copy at one size. `right`: the target equals the source."""

    direction: Direction
    is_pinned: bool
    bytes: int
    timing: Measured | None
    right: bool

    @property
    def name(self) -> str:
        """Return the kind of copy: `h2d_pinned`."""
        return f"{self.direction}_{'pinned' if self.is_pinned else 'pageable'}"


def prepare() -> None:
    """Run all steps of `host_copies` that come before timing."""
    import torch

    if torch.cuda.is_available():
        _entrants()


def host_copies() -> list[Copied]:
    """Return both directions, pinned and pageable, at every size, timed in turns. Runs in a process
    of its own. Raises RuntimeError where torch sees no GPU."""
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("torch sees no GPU in the process that copies")
    entrants = _entrants()
    taken = rounds.play(entrants, RULES)
    return [_copy_result(key, entrant, taken[key]) for key, entrant in entrants.items()]


@cache
def _entrants() -> dict[tuple[Direction, bool, int], _Copy]:
    """Return all copies, ready: pages are mapped and staging memory is allocated."""
    import torch

    generator = torch.Generator().manual_seed(0)
    noise = torch.empty(SIZES[-1] // 8, dtype=torch.int64).random_(generator=generator)
    sent = noise.view(torch.uint8)
    directions: tuple[Direction, ...] = ("h2d", "d2h")
    entrants = {
        (direction, pinned, size): _Copy.create(direction, pinned, sent[:size])
        for size in SIZES
        for pinned in (True, False)
        for direction in directions
    }
    for entrant in entrants.values():
        entrant.begin(0.0, 2)
    return entrants


def _copy_result(key: tuple[Any, bool, int], entrant: _Copy, windows: list[Window]) -> Copied:
    direction, pinned, size = key
    right = entrant.has_arrived()
    return Copied(direction, pinned, size, summarise(windows) if right else None, right)


def summarise(windows: list[Window]) -> Measured:
    """Return windows of the host's clock as a result, in seconds."""
    return rounds.pooled_time(windows, "hot", "host", RULES.id)


@dataclass
class _Copy:
    """One copy that can be timed: an Entrant of `rounds`."""

    source: Any
    target: Any
    estimate_s: float = 1e-4

    @staticmethod
    def create(direction: str, pinned: bool, sent: Any) -> _Copy:
        """Return a copy of these bytes between memory of host and device."""
        import torch

        host = torch.empty(sent.shape, dtype=sent.dtype, pin_memory=pinned)
        device = torch.zeros(sent.shape, dtype=sent.dtype, device="cuda")
        if direction == "h2d":
            return _Copy(host.copy_(sent), device)
        return _Copy(device.copy_(sent), host.zero_())

    def begin(self, seconds: float, least: int = 1) -> Window:
        """Take copies of about `seconds` in total; they are over when this returns."""
        from workbench.measurement.stream import TimerStep, host_samples

        count = max(least, 2, min(64, int(seconds / self.estimate_s)))
        samples = host_samples(TimerStep(self._copy), count)
        self.estimate_s = stats.median(samples)
        return Window(tuple(samples))

    def _copy(self) -> None:
        self.target.copy_(self.source, non_blocking=True)

    def has_arrived(self) -> bool:
        """Return whether the target equals the source."""
        import torch

        return bool(torch.equal(self.target.cuda(), self.source.cuda()))


def group_by_name(copies: list[Copied]) -> Mapping[str, list[Copied]]:
    """Return the copies of each kind by its name, the smallest first."""
    return group_by(sorted(copies, key=lambda c: c.bytes), lambda c: c.name)
