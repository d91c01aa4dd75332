"""Energy of one call, from a counter of joules that is updated in steps.

A driver's counter stands still between two updates, 10 to 100 ms apart. A window therefore lasts
many steps and begins and ends at an update: the joules between the two, over the calls done between
them. Nothing here knows a GPU: the counter, the calls and the clock are given.
"""

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Protocol, TypeVar

from workbench.data import stats
from workbench.data.record import Energy
from workbench.measurement.rounds import orders

K = TypeVar("K")
WINDOWS = 6  # of each entrant: the fewest whose range covers the median with 95 %
COMPARED_WINDOWS = 12  # of each operand: six pairs of rounds, one the reverse of the other


class EnergyError(Exception):
    """No energy can be had; the message, one sentence, says the reason and what to do."""


class Counter(Protocol):
    """A counter of the joules that a board has taken since some moment."""

    source: str

    def millijoules(self) -> int:
        """Return the counter's present value."""


class EnergyLoad(Protocol):
    """A call that is kept running back to back."""

    estimate_s: float  # of one call
    regime: str  # "cold", or "warm" where the cache is not flushed between calls

    def feed(self) -> int:
        """Keep enough calls enqueued; return how many are done since the last `drain`."""

    def drain(self) -> None:
        """Wait until every enqueued call is done, and count from 0 again."""


@dataclass(frozen=True)
class Clock:
    """Seconds on a monotonic clock, and a short pause between two looks at the counter."""

    now: Callable[[], float] = time.perf_counter
    pause: Callable[[], None] = lambda: time.sleep(1e-4)


@dataclass(frozen=True)
class Rules:
    """Parameters of energy windows. They change no time, so they are not part of a protocol."""

    steps: int = 20  # updates of the counter in a window, at least
    least_s: float = 0.4  # ... and seconds
    least_calls: int = 10  # ... and calls
    lead_steps: int = 3  # updates before a window, in which power and counter follow the load
    lead_s: float = 0.1  # ... and seconds
    intervals: int = 8  # between updates, from which the step is read
    wait_s: float = 5.0  # longest wait for an update
    sharp: float = 0.2  # an update is placed within this share of a step
    retries: int = 2  # windows of one entrant taken again because the counter went back


@dataclass(frozen=True)
class CounterUpdate:
    """An update of the counter: the value it changed to, and when, within half of `gap_s`."""

    clock_s: float
    millijoules: int
    gap_s: float


@dataclass(frozen=True)
class EnergyWindow:
    """One window: joules and seconds between two updates, and the calls done meanwhile."""

    joules: float
    lasted_s: float
    calls: float  # with the share of the calls that ran at either end

    @property
    def power_w(self) -> float:
        """Average power in watts."""
        return self.joules / self.lasted_s


class WentBack(EnergyError):
    """The counter fell: the driver was loaded anew, or the counter began again."""


@dataclass
class Meter:
    """Finds the updates of a counter by polling it."""

    counter: Counter
    clock: Clock
    rules: Rules
    step_s: float = 0.0  # between two updates; 0 until it is known
    _value: int = 0  # at the last look

    def edge(self, each: Callable[[], object] = lambda: None) -> CounterUpdate:
        """Return the next update that is placed sharply; `each` is called before every look.

        Raises EnergyError where the counter stands still.
        """
        # a look that came late, as the host was busy, does not say when the update was
        sharp_s = self.rules.sharp * self.step_s if self.step_s else math.inf
        before_s, value = self._look()
        end = before_s + self.rules.wait_s
        while True:
            each()
            self.clock.pause()
            at_s, now = self._look()
            if now != value and at_s - before_s <= max(sharp_s, 1e-3):
                return CounterUpdate((before_s + at_s) / 2, now, at_s - before_s)
            if at_s > end:
                raise EnergyError(
                    f"the energy counter was not updated within {self.rules.wait_s:g} s, so it "
                    "cannot be read; update the driver, or leave out --also energy"
                )
            before_s, value = at_s, now

    def _look(self) -> tuple[float, int]:
        """Return the moment and the counter's value. Raises WentBack where it fell."""
        before, self._value = self._value, self.counter.millijoules()
        if self._value < before:
            raise WentBack(
                "the energy counter began again while it was read; run the command again, or leave "
                "out --also energy"
            )
        return self.clock.now(), self._value

    def find_step(self) -> float:
        """Return the seconds between two updates, and keep them: the median of several."""
        self.step_s = 0.0
        edges = [self.edge() for _ in range(self.rules.intervals + 1)]
        self.step_s = step_of([edge.clock_s for edge in edges])
        return self.step_s

    def idle_w(self) -> float:
        """Return the power in watts of the board with nothing enqueued."""
        first = self.edge()
        end = first.clock_s + self._span_s(0.0)
        last = first
        while last.clock_s < end:
            last = self.edge()
        return _joules(first, last) / (last.clock_s - first.clock_s)

    def _span_s(self, call_s: float) -> float:
        rules = self.rules
        return max(rules.steps * self.step_s, rules.least_s, rules.least_calls * call_s)

    def window(self, load: EnergyLoad) -> EnergyWindow:
        """Return one window of calls back to back. Raises WentBack where the counter fell."""
        try:
            return self._window(load)
        finally:
            load.drain()

    def _window(self, load: EnergyLoad) -> EnergyWindow:
        rules, progress = self.rules, [(self.clock.now(), 0)]

        def each() -> None:
            done = load.feed()
            if done > progress[-1][1]:
                progress.append((self.clock.now(), done))

        def run_until(over: Callable[[], bool]) -> None:
            while not over():
                each()
                self.clock.pause()
                self._look()  # so that a counter that falls is seen

        start = self.clock.now() + max(rules.lead_steps * self.step_s, rules.lead_s)
        run_until(lambda: self.clock.now() >= start and len(progress) > 1)
        first = self.edge(each)
        end = first.clock_s + self._span_s(load.estimate_s)
        run_until(lambda: self.clock.now() >= end)
        last = self.edge(each)
        run_until(lambda: progress[-1][0] >= last.clock_s)
        calls = done_at(progress, last.clock_s) - done_at(progress, first.clock_s)
        return EnergyWindow(_joules(first, last), last.clock_s - first.clock_s, calls)


def step_of(at_s: Sequence[float]) -> float:
    """Return the seconds between updates seen at these times: the median of the differences, so
    that one update which was missed counts for little. Raises ValueError for fewer than two."""
    return stats.median([b - a for a, b in pairwise(at_s)])


def done_at(progress: Sequence[tuple[float, int]], at_s: float) -> float:
    """Return the calls done at a moment, between the two looks around it. `progress` holds the
    seconds and the calls done of each look, both rising; before the first and after the last look
    the count is theirs."""
    n = bisect_left([t for t, _ in progress], at_s)
    if n == 0 or n == len(progress):
        return float(progress[min(n, len(progress) - 1)][1])
    (a, x), (b, y) = progress[n - 1], progress[n]
    return x + (y - x) * (at_s - a) / (b - a)


def _joules(first: CounterUpdate, last: CounterUpdate) -> float:
    return (last.millijoules - first.millijoules) * 1e-3


def energies(
    loads: Mapping[K, EnergyLoad],
    counter: Counter,
    windows: int = WINDOWS,
    rules: Rules | None = None,
    clock: Clock | None = None,
) -> dict[K, Energy]:
    """Return the energy of one call of each load, from windows in turns whose order is reversed
    each round.

    The GPU must be idle at first, and that power is measured before the windows. Raises EnergyError
    where the counter cannot be used.
    """
    if not loads:
        return {}
    meter = Meter(counter, clock or Clock(), rules or Rules())
    _again(meter.find_step, meter.rules.retries)
    idle_w = _again(meter.idle_w, meter.rules.retries)
    taken: dict[K, list[EnergyWindow]] = {key: [] for key in loads}
    for order in islice(orders(list(loads)), windows):
        for key in order:
            load = loads[key]
            taken[key].append(_again(lambda load=load: meter.window(load), meter.rules.retries))  # type: ignore[misc]
    return {
        key: energy_of(taken[key], idle_w, meter.step_s, counter.source, load.regime)
        for key, load in loads.items()
    }


T = TypeVar("T")


def _again(take: Callable[[], T], retries: int) -> T:
    """Return what `take` gives, tried again where the counter went back meanwhile."""
    for _ in range(retries):
        try:
            return take()
        except WentBack:
            continue
    return take()


def energy_of(
    windows: Sequence[EnergyWindow], idle_w: float, step_s: float, source: str, regime: str
) -> Energy:
    """Return the energy of windows: medians, and the interval from order statistics."""
    each = [window.joules / window.calls for window in windows]
    low, high = stats.median_interval(each)
    return Energy(
        joules=stats.median(each),
        low_joules=low,
        high_joules=high,
        power_w=stats.median([window.power_w for window in windows]),
        idle_w=idle_w,
        calls=round(sum(window.calls for window in windows)),
        windows=len(windows),
        window_s=stats.median([window.lasted_s for window in windows]),
        step_s=step_s,
        source=source,
        regime="warm" if regime == "warm" else "cold",
        window_joules=tuple(each),
    )
