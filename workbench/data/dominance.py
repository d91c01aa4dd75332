"""Configs of Metal kernels by what the emulator counted, with no time at all.

Of two configs of one Impl the one that does no more of anything that was counted, and less of
something, dominates the other. Those that no config dominates are the front. What registers,
occupancy and caches make of it is not counted, so the front has no order.
"""

from collections.abc import Iterable, Mapping, Sequence

from workbench.data.record import Outcome

QUANTITIES = (
    "sectors",
    "threadgroup accesses",
    "bank rounds",
    "barriers",
    "dispatches",
    "bytes past the edges",
)


def counts_of(outcome: Outcome) -> Mapping[str, int]:
    """Return the counted quantities of an outcome, at its own sizes; {} where none were counted."""
    traffic = outcome.traffic
    if traffic is None:
        return {}
    numbers = (
        traffic.bytes // 32,
        traffic.all_accesses,
        traffic.all_bank_rounds,
        traffic.all_barriers,
        traffic.dispatches,
        traffic.edge_bytes,
    )
    return dict(zip(QUANTITIES, numbers, strict=True))


def rounded_counts(outcome: Outcome) -> tuple[float, ...]:
    """Return the counts in two significant digits: they are carried over from a smaller size."""
    return tuple(float(f"{n:.2g}") for n in counts_of(outcome).values())


def dominates(one: Outcome, other: Outcome) -> bool:
    """Return whether `one`, of the same Impl, counts no more of anything and less of something."""
    ours, theirs = rounded_counts(one), rounded_counts(other)
    same = one.case.impl == other.case.impl
    return same and ours != theirs and all(a <= b for a, b in zip(ours, theirs, strict=True))


def front_of(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Return the counted outcomes that no other dominates, in the given order."""
    counted = [o for o in outcomes if o.traffic is not None]
    return [o for o in counted if not any(dominates(other, o) for other in counted)]


def first_of(front: Sequence[Outcome]) -> Outcome | None:
    """Return the config to begin with: the one with the fewest sectors, then the fewest of each
    further quantity; of equals the default. None of an empty front."""
    return min(front, key=lambda o: (*rounded_counts(o), not o.default), default=None)
