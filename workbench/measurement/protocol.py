"""Parameters of a measurement, which are part of every result's key."""

import hashlib
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Protocol:
    """All parameters of a measurement, times in seconds. Two results are ranked together only when
    their protocol ids are equal."""

    cache_multiple: float = 3.0  # input sets in rotation span this many last-level caches
    # Shorter kernels are timed in graphs, longer ones by events: between its two events a call
    # takes 2 to 3 us more than in a graph, on an H200 from 34 to 254 us alike.
    graph_below_s: float = 2e-3
    graph_s: float = 1e-3  # calls in one graph last at least this long together
    first_pass_samples: int = 5
    first_pass_s: float = 3e-3  # ... or as many samples as fit here
    give_up: float = 3.0  # a first sample this many times the best ends a config's first pass
    first_pass_graph_s: float = 2e-4  # a graph of the first pass: ten samples of 0.2 ms suffice
    halve: int = 32  # number of the best configs that enter the halving
    halving_turns: int = 2  # windows of each before the first halving; twice as many after each
    halving_window_s: float = 0.003
    finalists: int = 8  # beside the default config and the library baselines
    settle_s: float = 1.0  # longest wait for the clock to settle before the final
    settle_window_s: float = 0.1
    settled: float = 0.005  # two such windows in a row within this: settled
    # An H200 under its power cap changes its clock by 5 % within a tenth of a second: with windows
    # of 50 ms two configs' medians differed by up to 4 % between rounds. Short windows and many
    # rounds let every config see the same mixture.
    rounds: int = 24  # order reversed each round
    most_rounds: int = 40  # more, in pairs, until `precise` holds
    window_s: float = 0.005
    final_s: float = 12.0  # ... or this much time is spent, after
    least_rounds: int = 4  # ... of them at least, however slow the kernels are
    # A final has the launch and the best config of each Impl. Those that are slower than the best
    # by more than this share take turns with each other, later: the clock wanders by 5 %.
    far: float = 0.15
    far_rounds: int = 6  # the fewest that have a 95 % interval
    near: float = 0.03  # ... and those within this share of it are measured until they are precise
    precise: float = 0.0025  # half-width of the median's 95 % interval, relative
    least_samples: int = 30
    least_s: float = 0.1  # ... that together last this long
    throttled: float = 0.75  # windows below this share of their run's median clock are left out
    bound: float = 0.97  # a time below this share of the roofline bound is impossible
    requested_threshold: float = 0.01  # a comparison's threshold when none is named
    # A comparison pairs windows that lie close in time. The clock moves by the square root of the
    # time between them, so twice as many windows of half the length decide better in equal time:
    # 48 rounds of three windows take 0.7 s.
    compare_rounds: int = 48
    compare_window_s: float = 0.005
    doublings: int = 2  # of the rounds, while nothing is decided
    compare_s: float = 8.0  # no further round is begun after this

    @property
    def looks(self) -> int:
        """Return how often a comparison may stop: after the first rounds and after each
        doubling."""
        return 1 + self.doublings

    @property
    def id(self) -> str:
        """Return the short hash that names this protocol: `p4-3f2a91`."""
        return "p4-" + digest(asdict(self))

    @property
    def older_id(self) -> str:
        """Return the id of the same protocol in keys of schema 1."""
        of_then = {k: v for k, v in (asdict(self) | _THEN).items() if k not in _LATER}
        return "p3-" + digest({_FORMER.get(k, k): v for k, v in of_then.items()})


@dataclass(frozen=True)
class BoostRules:
    """Parameters of ceilings in the state boost, times in seconds. They are part of those keys
    alone."""

    # After a window at full power the pause is ten times as long, so the board takes little more
    # than its idle power on average and its power cap does not bite.
    rounds: int = 6
    first_pause_s: float = 0.3  # before the first window: the checks have loaded the GPU
    pause_s: float = 0.03
    window_s: float = 0.003  # as long as a config of the first pass

    @property
    def id(self) -> str:
        """Return the short hash that names these parameters: `b1-3f2a91`."""
        return "b1-" + digest(asdict(self))


BOOST = BoostRules()

_THEN = {"window_s": 0.01, "most_rounds": 64}  # values in schema 1
_LATER = ("far", "far_rounds", "near")  # parameters that schema 1 did not have

# Names of parameters in schema 1, where they were part of the hash.
_FORMER = {
    "first_pass_samples": "screen_samples",
    "first_pass_s": "screen_s",
    "first_pass_graph_s": "screen_graph_s",
    "halve": "race",
    "halving_turns": "race_turns",
    "halving_window_s": "race_window_s",
    "bound": "floor",
    "requested_threshold": "asked",
    "compare_rounds": "contest_rounds",
    "compare_window_s": "contest_window_s",
    "compare_s": "contest_s",
}


def digest(parameters: dict[str, Any]) -> str:
    """Return six hex digits, a hash of these parameters."""
    return hashlib.sha256(repr(parameters).encode()).hexdigest()[:6]
