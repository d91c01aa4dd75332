"""How a time is obtained, as values: part of every result's key."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Protocol:
    """All parameters of a measurement. Times in seconds.

    Two results are ranked together only when their protocol ids are equal.
    """

    cache_multiple: float = 3.0  # input sets in rotation span this many last-level caches
    graph_below_s: float = 64e-6  # shorter kernels are timed in graphs, longer ones by events
    graph_s: float = 1e-3  # calls in one graph last at least this long together
    screen_samples: int = 5
    screen_s: float = 3e-3  # ... or as many samples as fit here
    give_up: float = 3.0  # a first sample this many times the best ends a config's screen
    race: int = 32  # how many of the best are screened once more, in reversed order
    finalists: int = 8  # beside the default config and the library baselines
    settle_s: float = 1.0  # longest wait for the clock to settle before the final
    settled: float = 0.005  # two tenths of a second in a row within this: settled
    # An H200 under its power cap changes its clock by 5 % within a tenth of a second: with windows
    # of 50 ms two configs' medians differed by up to 4 % between rounds. Short windows and many
    # rounds let every config see the same mixture.
    rounds: int = 24  # order reversed each round
    most_rounds: int = 96  # more, in pairs, until `precise` holds
    window_s: float = 0.01
    final_s: float = 12.0  # ... or this much time is spent
    precise: float = 0.0025  # half-width of the median's 95 % interval, relative
    least_samples: int = 30
    floor: float = 0.97  # a time below this share of the physical floor is impossible

    @property
    def id(self) -> str:
        """Short hash that names this protocol: `p1-3f2a91`."""
        return "p1-" + hashlib.sha256(repr(asdict(self)).encode()).hexdigest()[:6]
