"""Compare the energy of records: ratios, the Pareto front of time and energy, work per joule."""

from collections.abc import Iterable, Sequence

from workbench.data import stats
from workbench.data.record import Energy, Measured, Outcome, Ratio, Record


def energy_of(outcome: Outcome | None) -> Energy | None:
    """Return the measured energy of an outcome, or None."""
    timing = outcome.timing if isinstance(outcome, Record) else None
    return timing.energy if isinstance(timing, Measured) else None


def absences(outcomes: Iterable[Outcome]) -> dict[str, list[Record]]:
    """Return the records whose energy was requested and is absent, by the reason."""
    results: dict[str, list[Record]] = {}
    for outcome in outcomes:
        timing = outcome.timing if isinstance(outcome, Record) else None
        if isinstance(outcome, Record) and isinstance(timing, Measured) and timing.no_energy:
            results.setdefault(timing.no_energy, []).append(outcome)
    return results


def energy_ratio(left: Energy | None, right: Energy | None) -> Ratio | None:
    """Return the joules of a call of `right` over those of `left`, round by round, with the 95 %
    interval. None unless both have windows of the same rounds."""
    if left is None or right is None:
        return None
    a, b = left.window_joules, right.window_joules
    if not a or len(a) != len(b) or min(*a, *b) <= 0:
        return None
    return stats.ratio(a, b)


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the indices of the points that no other beats in one coordinate without losing in the
    other, where less is better; by the first coordinate. Of equal points the first one stands."""
    results: list[int] = []
    least = float("inf")
    for n in sorted(range(len(points)), key=lambda n: (points[n], n)):
        if points[n][1] < least:
            results.append(n)
            least = points[n][1]
    return results


def work_per_joule(record: Record, memory: bool) -> tuple[float, str] | None:
    """Return the work of a call per joule and its unit: GB/J from least bytes where `memory`, else
    GFLOP/J. None where the record has no energy."""
    energy = energy_of(record)
    if energy is None or energy.joules <= 0:
        return None
    work, unit = (record.bytes, "GB/J") if memory else (record.flops, "GFLOP/J")
    return work / energy.joules / 1e9, unit
