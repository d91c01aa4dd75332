"""What a change of a kernel was to do to its counters, and whether it did. Pure functions.

Each name stands for one of four changes of a product's epilogue or main loop, with the counters
that it must move: a barrier of all warps replaced by mbarriers, stores by the copy engine replaced
by direct ones, loads of tensor memory issued one step ahead, operands of the epilogue prefetched.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from workbench.data.record import Profile

State = Literal["met", "not met", "not measured"]

BARRIER_FALL = 0.8  # share by which stalls at barriers fall where only those that must wait do
LOADS_FALL = 0.5  # of global loads, where bias and positions come from shared memory
STALL_FALL = 0.2  # of other stalls: less is within what two runs of one kernel differ by


@dataclass(frozen=True)
class Expectation:
    """One metric and what is to become of it: `holds(before, after)`."""

    metric: str  # see `data.metric`
    text: str
    holds: Callable[[float, float], bool]
    bounding_metric: str = ""  # a metric of which the fall bounds this one's rise


@dataclass(frozen=True)
class ExpectationResult:
    """Whether an expectation was met; values are None where a file does not tell."""

    text: str
    state: State
    metric: str
    before: float | None = None
    after: float | None = None
    unit: str = ""


def _falls(share: float) -> Callable[[float, float], bool]:
    return lambda before, after: before > 0 and after <= (1 - share) * before


def _stalls(reason: str, share: float = STALL_FALL) -> Expectation:
    text = f"stalls by {reason.replace('_', ' ')} fall by {100 * share:.0f} % or more"
    return Expectation(f"stall_{reason}", text, _falls(share))


EXPECTED: Mapping[str, tuple[Expectation, ...]] = {
    "mbarrier": (
        _stalls("barrier", BARRIER_FALL),
        Expectation(
            "stall_membar", "stalls by membar rise by less than those at barriers fall",
            lambda rise, fall: rise < fall, bounding_metric="stall_barrier",
        ),
    ),
    "direct_store": (
        _stalls("wait"),
        _stalls("short_scoreboard"),
        Expectation("lanes_on", "more lanes are on", lambda before, after: after > before),
    ),
    "tmem_ahead": (_stalls("long_scoreboard"),),
    "prefetch": (
        Expectation(
            "global_loads", f"global loads fall by {100 * LOADS_FALL:.0f} % or more",
            _falls(LOADS_FALL),
        ),
    ),
}  # fmt: skip


def longest_counted(profiles: Sequence[Profile]) -> Profile | None:
    """Return the launch with counters that took longest, or None where none has any."""
    counted = [p for p in profiles if p.metrics]
    return max(counted, key=lambda p: p.total_s or 0.0, default=None)


def expectation_results(name: str, before: Profile, after: Profile) -> list[ExpectationResult]:
    """Return the result of each expectation of a change, by the metrics of one kernel before and
    after it. Raises KeyError for an unknown name."""
    values = [{e.name: e for e in profile.metrics} for profile in (before, after)]
    results = []
    for each in EXPECTED[name]:
        old, new = (metrics.get(each.metric) for metrics in values)
        if old is None or new is None or old.unit != new.unit:
            results.append(ExpectationResult(each.text, "not measured", each.metric))
            continue
        pair = (old.value, new.value)
        if each.bounding_metric:
            first, second = (metrics.get(each.bounding_metric) for metrics in values)
            if first is None or second is None:
                results.append(ExpectationResult(each.text, "not measured", each.metric))
                continue
            pair = (new.value - old.value, first.value - second.value)
        state: State = "met" if each.holds(*pair) else "not met"
        results.append(
            ExpectationResult(each.text, state, each.metric, old.value, new.value, old.unit)
        )
    return results
