"""Time calls on a Metal device through MLX: warm up, chain calls, subtract empty kernels.

Pure logic over `TimedCall`, which MLX implements on a Mac and a fake clock in tests. MLX is lazy,
and the host's share of one evaluation is about 0.2 ms: a sample is the time to evaluate a chain of
calls, less that of an equal chain of empty kernels, over the number of calls.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal
from typing import Protocol as Interface

from workbench.data import stats
from workbench.data.record import Measured
from workbench.measurement.candidate import Untimed
from workbench.measurement.protocol import Protocol, digest
from workbench.measurement.rounds import Window, pooled_time

MIB = 1 << 20


@dataclass(frozen=True)
class MetalProtocol(Protocol):
    """Parameters of a measurement on a Metal device. The clock is one of them, so that times of two
    clocks are never ranked together."""

    clock: Literal["eval", "command buffer"] = "eval"
    agree: float = 0.01  # two medians in a row within this: warm
    warm_samples: int = 5
    warm_most: int = 20  # windows of the warm-up
    short_s: float = 2e-3  # shorter calls are chained
    chain_s: float = 5e-3  # a chain lasts about this long
    least_share: float = 1.5  # of a chain over its empty twin, below which the host hides the call
    least_calls: int = 20
    most_calls: int = 1000
    cold_bytes: int = 192 * MIB  # of inputs in rotation: three system-level caches of 64 MB
    # A window is a few evaluations of a chain and of its empty twin, 10 ms a pair.
    window_s: float = 0.03
    compare_window_s: float = 0.03
    compare_rounds: int = 12
    settle_window_s: float = 0.05
    rounds: int = 8
    most_rounds: int = 24
    final_s: float = 4.0
    compare_s: float = 6.0
    precise: float = 0.005
    least_samples: int = 16
    halve: int = 16

    @property
    def id(self) -> str:
        """Return the short hash that names this protocol: `mlx1-3f2a91`."""
        return "mlx1-" + digest(asdict(self))


class TimedCall(Interface):
    """A call on prepared inputs that can be evaluated many times."""

    dispatches: int  # kernels of one call

    def seconds(self, calls: int) -> float:
        """Return the seconds to evaluate that many calls, each after the one before it."""


@dataclass(frozen=True)
class WarmUp:
    """State of a call after its warm-up, times in seconds."""

    call_s: float  # of one call in a chain, the host's share included
    calls: int  # of a chain
    windows: int
    has_settled: bool  # two medians in a row agreed


def chain_length(call_s: float, rules: MetalProtocol) -> int:
    """Return the calls of one chain: as many as last `chain_s`, for a short call from `least_calls`
    to `most_calls`, for a long one as few as one."""
    calls = math.ceil(rules.chain_s / max(call_s, 1e-9))
    least = rules.least_calls if call_s < rules.short_s else 1
    return min(max(calls, least), rules.most_calls)


def warm_up(call: TimedCall, rules: MetalProtocol) -> WarmUp:
    """Call until the medians of two windows in a row agree within `agree`, or `warm_most` windows
    are over. Returns the state then."""
    calls = chain_length(call.seconds(rules.least_calls) / rules.least_calls, rules)
    last = math.inf
    for window in range(1, rules.warm_most + 1):
        middle = stats.median([call.seconds(calls) for _ in range(rules.warm_samples)])
        if abs(middle - last) <= rules.agree * middle:
            return WarmUp(middle / calls, calls, window, True)
        last = middle
    return WarmUp(last / calls, calls, rules.warm_most, False)


def net_s(chain_s: float, empty_s: float, calls: int) -> float:
    """Return the seconds of one call: a chain less its empty twin, and at least a nanosecond."""
    return max((chain_s - empty_s) / calls, 1e-9)


@dataclass(frozen=True)
class MetalEntrant:
    """A call that takes turns with others; implements `rounds.Entrant` and `rounds.Started`.

    `empty` dispatches one empty kernel a call; a call of several dispatches is compared with a
    chain of as many. Both chains of a sample follow each other, and share the state of the clock.
    """

    call: TimedCall
    empty: TimedCall
    warm: WarmUp
    samples: int = 1

    @classmethod
    def warm_up(cls, call: TimedCall, empty: TimedCall, rules: MetalProtocol) -> MetalEntrant:
        """Return the call after its warm-up. Raises Untimed where its chain lasts less than
        `least_share` times as long as the empty one: encoding on the host may be all of it."""
        entrant = cls(call, empty, warm_up(call, rules))
        pairs = [entrant.pair() for _ in range(rules.warm_samples)]
        share = stats.median([chain_s / max(empty_s, 1e-12) for chain_s, empty_s in pairs])
        if share < rules.least_share:
            raise Untimed(
                f"a chain of its calls takes {share:.2f} times as long as one of empty kernels, "
                f"and this clock needs {rules.least_share:g}: the call is too short for it"
            )
        return entrant

    def pair(self) -> tuple[float, float]:
        """Return the seconds of a chain and of its empty twin."""
        calls = self.warm.calls
        return self.call.seconds(calls), self.empty.seconds(calls * self.call.dispatches)

    def begin(self, seconds: float, least: int = 1) -> MetalEntrant:
        """Return samples of about `seconds` in total, at least `least`, to be taken by `window`."""
        one_s = 2 * self.warm.calls * self.warm.call_s
        samples = max(least, 1, round(seconds / max(one_s, 1e-9)))
        return replace(self, samples=min(samples, 32))

    def window(self) -> Window:
        """Take the samples and return them."""
        pairs = [self.pair() for _ in range(self.samples)]
        samples = tuple(net_s(*pair, self.warm.calls) for pair in pairs)
        return Window(samples, lasted_s=sum(map(sum, pairs)))


def measured_time(
    windows: Sequence[Window],
    warm: WarmUp,
    rules: MetalProtocol,
    regime: Literal["cold", "hot"],
    stable: bool,
    compile_s: float | None = None,
) -> Measured:
    """Return the measured time of windows taken in rounds; `compile_s` stays apart. A call whose
    warm-up did not settle is not stable, however narrow its interval is."""
    more = {"stable": stable and warm.has_settled, "compile_s": compile_s}
    return pooled_time(windows, regime, rules.clock, rules.id, state="sustained", **more)
