"""Successive halving (Karnin, Koren and Somekh 2013): drop the slower half, double the rest's
time."""

from collections.abc import Mapping
from typing import TypeVar

from workbench.data import stats
from workbench.measurement.protocol import Protocol
from workbench.measurement.rounds import Entrant, Window, stream

K = TypeVar("K")


def halve(entrants: Mapping[K, Entrant], protocol: Protocol, keep: int) -> dict[K, list[Window]]:
    """Return the windows of each variant, taken in turns whose order is reversed each time.

    After a stage the slower half is dropped, and any variant whose interval lies wholly above the
    best one's; the others get twice as many windows, until at most `keep` are left. A dropped
    variant keeps the windows that it took part in.
    """
    windows: dict[K, list[Window]] = {key: [] for key in entrants}
    left, turns = list(entrants), protocol.halving_turns
    while left:
        order = [key for turn in range(turns) for key in left[:: -1 if turn % 2 else 1]]
        for key, window in stream(
            ((key, entrants[key]) for key in order), protocol.halving_window_s
        ):
            windows[key].append(window)
        if len(left) <= keep:
            break
        left = survivors(left, windows, max(keep, len(left) // 2))
        turns *= 2
    return windows


def survivors(left: list[K], windows: Mapping[K, list[Window]], most: int) -> list[K]:
    """Return the `most` fastest of these, without those that are surely slower than the fastest; in
    the order of `left`, so that neighbours in time stay neighbours."""
    medians = {key: stats.median([s for w in windows[key] for s in w.samples_s]) for key in left}
    ranked = sorted(left, key=medians.__getitem__)
    bounds = {key: stats.windowed_interval([w.samples_s for w in windows[key]]) for key in ranked}
    high = bounds[ranked[0]][1]
    best = {key for key in ranked[:most] if bounds[key][0] <= high}
    return [key for key in left if key in best]
