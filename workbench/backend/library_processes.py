"""Processes that get libraries' versions ready while a sweep goes on, and time them beside its
winner.

torch.compile and packages of kernels import for seconds and compile at their first launch: on an
H100's host 9 to 16 s each (docs/log.md). The process that measures a sweep never does that; what
is not ready when the sweep has its answer is named, and has no time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from workbench.backend.workers import LOST, Solo
from workbench.measurement import worker
from workbench.measurement.candidate import Candidate, Refusal, Timed
from workbench.spec import SpecFault

NOT_READY = "was not ready when the sweep had its answer; `workbench measure` waits for it"
PROCESSES = 2  # torch.compile in one; most kernels have one other library
READY_S = 0.3  # for one that is about to be ready


class LibraryProcesses:
    """Processes that import the libraries of a kernel from the start, each its share of them."""

    def __init__(self, kernel: str, times: bool = True) -> None:
        """Start them. Without `times` they only import, and never open the GPU."""
        self._solos = [Solo() for _ in range(PROCESSES)]
        for share, solo in enumerate(self._solos):
            if times:
                solo.begin(worker.warm)
            solo.begin(worker.import_libraries, kernel, share, PROCESSES)

    def compile(self, job: worker.MeasureJob) -> None:
        """Compile what a problem needs, in the background."""
        for share, solo in enumerate(self._solos):
            solo.begin(worker.compile_libraries, job, share, PROCESSES)

    def final(
        self,
        job: worker.MeasureJob,
        winner: Candidate,
        libraries: Sequence[Candidate],
        limit_s: float,
    ) -> list[tuple[Timed | Refusal, float | None]]:
        """Return the time of each library, and the winner's in the same rounds: of one final in
        each process that is ready. All of it takes `limit_s` at most."""
        result: dict[str, tuple[Timed | Refusal, float | None]] = {}
        ready: list[tuple[Solo, list[Candidate]]] = []
        now = time.monotonic()
        soon, end = now + min(READY_S, limit_s), now + limit_s
        for share, solo in enumerate(self._solos):
            names = worker.share_of(winner.impl.spec.impls, share, PROCESSES)
            mine = [c for c in libraries if c.impl.name in names]
            if mine and solo.is_ready(soon - time.monotonic()):
                solo.begin(worker.begin, job)
                ready.append((solo, mine))
        for solo, _ in ready:
            solo.is_ready(end - time.monotonic())  # before the first of them times anything
        for solo, mine in ready:
            if solo.is_ready(0.0):
                result |= _time_final(solo, winner, mine, end - time.monotonic())
        late = Refusal("measure", NOT_READY)
        return [result.get(c.key, (late, None)) for c in libraries]

    def close(self) -> None:
        """End all processes."""
        for solo in self._solos:
            solo.kill()
        for solo in self._solos:
            solo.end()


def _time_final(
    solo: Solo, winner: Candidate, libraries: Sequence[Candidate], limit_s: float
) -> dict[str, tuple[Timed | Refusal, float | None]]:
    """Return the results of a final in one process, by the libraries' keys."""
    try:
        candidates = [winner, *libraries]
        (first, *others), _ = solo.ask(
            worker.final, candidates, [0.0] * len(candidates), timeout_s=limit_s
        )
    except SpecFault:
        raise
    except LOST as error:
        first = Refusal("measure", f"the process of the libraries {error}")
        others = [first] * len(libraries)
    except Exception as error:  # it is too large for a second process beside the first
        first = Refusal("measure", f"{type(error).__name__}: {error}".splitlines()[0])
        others = [first] * len(libraries)
    if isinstance(first, Refusal):
        alone = Refusal("measure", f"the winner could not be timed with it: {first.reason}")
        others = [o if isinstance(o, Refusal) else alone for o in others]
        return {c.key: (o, None) for c, o in zip(libraries, others, strict=True)}
    winner_s = first.timing.median_s
    return {c.key: (o, winner_s) for c, o in zip(libraries, others, strict=True)}
