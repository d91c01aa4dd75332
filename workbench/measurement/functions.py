"""Time functions of the user's in this process, by the protocol of a final benchmark.

A function makes inputs and returns calls, one for each provider. It is called once for each set of
inputs, and the calls rotate over the sets: together they span three last-level caches, so that a
call finds none of its data there. Functions that make no inputs of their own get a flush before
each call instead. All providers of one size take turns, after the clock has settled.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from workbench.data.errors import first_sentence
from workbench.data.record import Environment, Measured
from workbench.device.hardware import Device
from workbench.measurement import rounds
from workbench.measurement.protocol import Protocol as Rules
from workbench.measurement.rounds import Entrant, Now, Window

Call = Callable[[], Any]
Make = Callable[[int], Mapping[str, Call]]
"""Makes the set of inputs of this number; returns a call for each provider."""

MOST_MEMORY = 0.5  # share of the free memory that the sets may take


class Timer(Protocol):
    """Times calls on a GPU, or on a stand-in of a test."""

    rules: Rules

    def sets(self, make: Make, owners: int) -> tuple[list[Mapping[str, Call]], bool]:
        """Return as many sets as a cold measurement needs, and whether the cache must be flushed
        besides. `owners` providers share the memory that a set takes."""

    def difference(self, expected: Any, result: Any) -> str | None:
        """Return in one sentence how two results differ, or None where they agree."""

    def entrant(self, calls: Sequence[Call], flushed: bool) -> Entrant:
        """Return these calls as an entrant; its `estimate_s` is the time of one call."""

    def summarise(
        self, entrant: Any, windows: Sequence[Window], bound_s: float, also: Mapping[str, Any]
    ) -> Measured:
        """Return the time from windows of samples. Raises where it is below `bound_s`."""

    def read(self) -> Any:
        """Return a reading of the sensors."""

    def summary(self, readings: Sequence[Any]) -> Mapping[str, Any]:
        """Return what the sensors say, as fields of `Measured`."""


@dataclass(frozen=True)
class Refused:
    """A provider that gave no time."""

    stage: str  # "check", "launch" or "measure"
    reason: str


def time_functions(
    timer: Timer,
    make: Make,
    *,
    owners: int = 1,
    check: bool = True,
    bound_s: float = 0.0,
    now: Now = time.perf_counter,
) -> dict[str, Measured | Refused]:
    """Return the time of each provider on cold data, or why it has none.

    Args:
        timer: what times the calls.
        make: makes a set of inputs; returns a call for each provider.
        owners: providers that share the memory of one set.
        check: compare the result of each provider with that of the first.
        bound_s: least seconds of a call; a shorter time is refused.
        now: a monotonic clock in seconds.
    """
    sets, flushed = timer.sets(make, owners)
    names = list(sets[0])
    refused = _refused_providers(timer, sets[0]) if check else {}
    entrants: dict[str, Any] = {}
    for name in names:
        if name not in refused:
            try:
                entrants[name] = timer.entrant([each[name] for each in sets], flushed)
            except Exception as error:
                refused[name] = Refused("launch", first_sentence(error))
    windows, also = _play_rounds(timer, entrants, now)
    results: dict[str, Measured | Refused] = {}
    for name in names:
        try:
            taken = windows[name] if name not in refused else []
            results[name] = refused.get(name) or timer.summarise(
                entrants[name], taken, bound_s, also
            )
        except Exception as error:
            results[name] = Refused("measure", first_sentence(error))
    return results


def _refused_providers(timer: Timer, calls: Mapping[str, Call]) -> dict[str, Refused]:
    """Return the providers whose result is not that of the first one, or that fail."""
    refused: dict[str, Refused] = {}
    (first, *_) = calls
    expected: Any = None
    for name, call in calls.items():
        try:
            result = call()
            if name == first:
                expected = result
            elif first not in refused and (how := timer.difference(expected, result)):
                refused[name] = Refused("check", f"its result is not that of {first}: {how}")
        except Exception as error:
            refused[name] = Refused("launch", first_sentence(error))
    return refused


def _play_rounds(
    timer: Timer, entrants: Mapping[str, Any], now: Now
) -> tuple[Mapping[str, list[Window]], Mapping[str, Any]]:
    """Return windows of all entrants in turns after the clock has settled, and the sensors
    meanwhile."""
    if not entrants:
        return {}, {}
    readings: list[Any] = []
    rounds.settle(min(entrants.values(), key=lambda e: e.estimate_s), timer.rules, now)
    windows = rounds.play(entrants, timer.rules, lambda: readings.append(timer.read()), now)
    return windows, timer.summary(readings)


@dataclass(frozen=True)
class TimedGpu:
    """The GPU of this process: its properties, the machine, the name of its lock, and a timer."""

    device: Device
    environment: Environment
    lock: str
    timer: Timer
