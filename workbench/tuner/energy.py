"""Add energies to times: after all times of a problem are taken, on the same calls."""

from collections.abc import Sequence
from dataclasses import replace

from workbench.backend.protocol import Measures
from workbench.data.record import Energy, Measured
from workbench.measurement.candidate import Candidate, Refusal, Timed
from workbench.measurement.energy import WINDOWS


def add_energies(
    backend: Measures,
    candidates: Sequence[Candidate],
    results: Sequence[Timed | Refusal],
    windows: int = WINDOWS,
) -> list[Timed | Refusal]:
    """Return the results, each time with its energy, or with the sentence why it has none. The
    times themselves stay as they are."""
    right = [n for n, result in enumerate(results) if isinstance(result, Timed)]
    if not right:
        return list(results)
    taken = backend.energy([candidates[n] for n in right], windows)
    energies = dict(zip(right, taken, strict=True))
    return [
        _add_energy(result, energies[n]) if isinstance(result, Timed) else result
        for n, result in enumerate(results)
    ]


def _add_energy(result: Timed, energy: Energy | str) -> Timed:
    timing = result.timing
    assert isinstance(timing, Measured)  # a backend that measures gave it
    if isinstance(energy, Energy):
        return replace(result, timing=replace(timing, energy=energy))
    return replace(result, timing=replace(timing, no_energy=energy))
