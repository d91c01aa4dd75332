"""Keep one call running back to back on the GPU, as the load of an energy window.

The calls are those of the timed windows: the same rotation, and the same graph. Nothing holds the
stream between them, since the energy of a hold would be counted too.
"""

import math
from collections import deque
from typing import Any

import torch

from workbench.measurement.bench import BenchTime
from workbench.measurement.energy import EnergyError

PENDING_S = 0.03  # of calls enqueued: reading the counter takes some milliseconds at times
MOST_PIECES = 128  # enqueued at once: the queue of a CUDA stream holds about 1000 launches


class BackToBack:
    """An `EnergyLoad`: pieces, each a replay of the graph or one call, with an event behind each
    that says when it is done."""

    def __init__(self, entrant: BenchTime) -> None:
        """Take the calls of a timed entrant.

        Raises EnergyError where a call changes its inputs: they would have to be restored between
        two calls, and the counter cannot tell the one from the other.
        """
        if entrant.rotation.copies is not None:
            raise EnergyError(
                "a call of it changes its inputs, and the counter cannot tell its energy from that "
                "of restoring them; compare only times"
            )
        self.estimate_s = entrant.estimate_s
        self.regime = "cold" if entrant.rotation.flush is None else "warm"
        self._piece = entrant.graph.replay if entrant.graph is not None else entrant.rotation.call
        self._calls = entrant.calls
        self._waits = entrant.method == "host"
        self._most = min(MOST_PIECES, max(2, math.ceil(PENDING_S / self.piece_s)))
        self._free: list[Any] = []
        self._pending: deque[Any] = deque()
        self._calls_done = 0

    @property
    def piece_s(self) -> float:
        """Return the seconds of one piece."""
        return max(self.estimate_s * self._calls, 1e-6)

    def feed(self) -> int:
        """Enqueue pieces until enough are pending; return how many calls are done."""
        if self._waits:  # it is over when it returns, or a capture of it is not possible
            self._piece()
            torch.cuda.current_stream().synchronize()
            self._calls_done += self._calls
            return self._calls_done
        self._collect()
        while len(self._pending) < self._most:
            self._piece()
            event = self._free.pop() if self._free else torch.cuda.Event()
            event.record()
            self._pending.append(event)
        return self._calls_done

    def _collect(self) -> None:
        while self._pending and self._pending[0].query():
            self._free.append(self._pending.popleft())
            self._calls_done += self._calls

    def drain(self) -> None:
        """Wait until every piece is done, and count from 0 again."""
        torch.cuda.current_stream().synchronize()
        self._collect()
        self._calls_done = 0
