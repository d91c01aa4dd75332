"""Take windows of samples in rounds: settle the clock, take turns, stop when intervals are
narrow."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from typing import Any, TypeVar
from typing import Protocol as Interface

from workbench.data import stats, verdict
from workbench.data.record import Measured, Ratio, Verdict
from workbench.measurement.protocol import BoostRules, Protocol

K = TypeVar("K")
Now = Callable[[], float]  # seconds on a monotonic clock

# Orders of three entrants, each followed by its reverse: over the six, each is twice in each place
# and follows each other one twice (Williams, 1949). A pair of rounds cancels a steady drift.
ORDERS = ((0, 1, 2), (2, 1, 0), (1, 2, 0), (0, 2, 1), (2, 0, 1), (1, 0, 2))


@dataclass(frozen=True)
class Window:
    """Samples taken one after the other, and the SM clock in MHz meanwhile."""

    samples_s: tuple[float, ...]
    sm_mhz: float | None = None
    lasted_s: float | None = None  # a graph's sample is the time of one of its many calls

    def window(self) -> Window:
        """Return itself: samples that are taken when `Entrant.begin` returns are `Started`, too."""
        return self


class Started(Interface):
    """Samples that are being taken."""

    def window(self) -> Window:
        """Return the window of samples once all of them are taken."""


class Entrant(Interface):
    """Something that can be timed: a call on a live GPU, or a stand-in of a test."""

    def begin(self, seconds: float, least: int = 1) -> Started:
        """Begin samples of about `seconds` in total, at least `least`, and return them. The next
        entrant may begin before these are taken, so that the GPU is not idle between the two."""


def stream(
    entrants: Iterable[tuple[K, Entrant]], seconds: float, now: Now = time.perf_counter
) -> Iterator[tuple[K, Window]]:
    """Yield a window of each of these entrants in order; each begins while the one before it runs.

    An H200 that was idle between windows, a third of the time, gave the first variant of each round
    a clock 4 % higher than the others'. A caller that stops early leaves one window unread.
    """
    running: tuple[K, Started] | None = None
    last = now()
    for key, entrant in entrants:
        started = key, entrant.begin(seconds)
        if running is not None:
            window, end = running[1].window(), now()
            yield running[0], _lasting(window, last, end)
            last = end
        running = started
    if running is not None:
        yield running[0], _lasting(running[1].window(), last, now())


def _lasting(window: Window, start: float, end: float) -> Window:
    """Return the window with its duration: from the end of the one before it."""
    return window if window.lasted_s is not None else replace(window, lasted_s=end - start)


def settle(entrant: Entrant, protocol: Protocol, now: Now = time.perf_counter) -> bool:
    """Run one entrant until two windows in a row agree: the boost clock has become the sustained
    one. Returns False when `settle_s` was spent before."""
    end, last = now() + protocol.settle_s, math.inf
    while now() < end:
        result = stats.median(entrant.begin(protocol.settle_window_s).window().samples_s)
        if abs(result - last) <= protocol.settled * result:
            return True
        last = result
    return False


def play(
    entrants: Mapping[K, Entrant],
    protocol: Protocol,
    after_round: Callable[[], None] | None = None,
    now: Now = time.perf_counter,
    near: float = math.inf,
) -> dict[K, list[Window]]:
    """Return windows of all entrants in turn, taken until all are precise; those that are slower
    than the fastest by more than the share `near` need not be.

    Rounds come in pairs, the second in reversed order, and are the same for every entrant; each
    pair has an order of its own, so that no entrant always follows the same one. At least `rounds`
    of them, more until every entrant is `precise`, at most `most_rounds`; none is begun once
    `final_s` are spent, after `least_rounds`. `stable` reports those that are not precise then.
    """
    # An entrant goes on after it is precise, for as long as any is not: only windows of the same
    # rounds saw the same clock. Were the precise ones left out, the mixture of work would change
    # too, and with it the power and the clock of those that remain.
    windows: dict[K, list[Window]] = {key: [] for key in entrants}
    medians: dict[K, list[float]] = {key: [] for key in entrants}
    waiting, start = list(entrants), now()
    if not entrants:
        return windows
    endless = ((key, entrants[key]) for order in orders(list(entrants)) for key in order)
    for taken, (key, window) in enumerate(stream(endless, protocol.window_s, now), 1):
        windows[key].append(window)
        medians[key].append(stats.median(window.samples_s))
        if taken % len(entrants):
            continue
        if after_round is not None:
            after_round()
        done = taken // len(entrants)
        if done % 2:
            continue
        if done >= max(protocol.most_rounds, 2):
            break
        if done >= protocol.least_rounds and now() - start >= protocol.final_s:
            break
        # from the windows' medians, not all samples: sorting those takes longer than a window
        while done >= protocol.rounds and waiting:
            taken_of = medians[waiting[0]]
            best = min(map(stats.median, medians.values()))
            if stats.median(taken_of) <= (1 + near) * best:
                if not _enough(windows[waiting[0]], protocol):
                    break
                if not _narrow(taken_of, protocol):
                    break
            waiting.pop(0)
        if not waiting:
            break
    return windows


def rested_windows(
    entrants: Mapping[K, Entrant], rules: BoostRules, rest: Callable[[float], None] = time.sleep
) -> dict[K, list[Window]]:
    """Return windows of all entrants in turn, each after a pause in which the clock recovers: times
    in the state boost. `rest` passes that many seconds with nothing on the GPU."""
    windows: dict[K, list[Window]] = {key: [] for key in entrants}
    if not entrants:
        return windows
    rest(rules.first_pause_s)
    for order in islice(orders(list(entrants)), rules.rounds):
        for key in order:
            rest(rules.pause_s)
            windows[key].append(entrants[key].begin(rules.window_s).window())
    return windows


def orders(keys: list[K]) -> Iterator[list[K]]:
    """Yield orders without end: as given and reversed, then shuffled and reversed, and so on; the
    same in every run."""
    dice, order = random.Random(0), list(keys)
    while True:
        yield order
        yield order[::-1]
        order = dice.sample(keys, len(keys))


def pooled_time(
    windows: Sequence[Window], regime: Any, method: Any, protocol: str, **more: Any
) -> Measured:
    """Return the measured time of windows: the median of all samples and its interval. `more` are
    further fields."""
    each = [window.samples_s for window in windows]
    samples = tuple(s for window in each for s in window)
    low, high = stats.windowed_interval(each)
    sizes = tuple(map(len, each))
    about = regime, method, protocol, len(each)
    return Measured(stats.median(samples), low, high, samples, *about, window_sizes=sizes, **more)


def stable(windows: Sequence[Window], protocol: Protocol) -> bool:
    """Return whether an entrant's interval is as narrow as the protocol requires, over enough
    samples that lasted long enough."""
    if not windows or not _enough(windows, protocol):
        return False
    samples = [window.samples_s for window in windows]
    low, high = stats.windowed_interval(samples)
    middle = stats.median([s for window in samples for s in window])
    return (high - low) / 2 <= protocol.precise * middle


def _enough(windows: Sequence[Window], protocol: Protocol) -> bool:
    count = sum(len(window.samples_s) for window in windows)
    lasted_s = sum(window.lasted_s or sum(window.samples_s) for window in windows)
    return count >= protocol.least_samples and lasted_s >= protocol.least_s


def _narrow(medians: Sequence[float], protocol: Protocol) -> bool:
    low, high = stats.median_interval(medians)
    if (high - low) / 2 > protocol.precise * stats.median(medians):
        return False  # the wider interval below cannot be narrow then
    low, high = stats.interval(medians)
    return (high - low) / 2 <= protocol.precise * stats.median(medians)


def clean(windows: Sequence[Window], share: float = 0.75) -> tuple[list[Window], int]:
    """Return the windows without those below `share` of the run's own median clock, and the number
    of samples left out. A window of unknown clock is kept, and so is every outlier."""
    fine = _fine(windows, share)
    steady = [window for window, good in zip(windows, fine, strict=True) if good]
    left_out = sum(len(w.samples_s) for w, good in zip(windows, fine, strict=True) if not good)
    return steady, left_out


def _fine(windows: Sequence[Window], share: float) -> list[bool]:
    clocks = [window.sm_mhz for window in windows if window.sm_mhz is not None]
    least = share * stats.median(clocks) if clocks else 0.0
    return [window.sm_mhz is None or window.sm_mhz >= least for window in windows]


@dataclass(frozen=True)
class PairTimes:
    """Windows of the left operand, of the same code again and of the right operand, in rounds, and
    their verdict."""

    left: list[Window]
    again: list[Window]
    right: list[Window]
    verdict: Verdict


def compare(
    left: Entrant,
    again: Entrant,
    right: Entrant,
    protocol: Protocol,
    requested_threshold: float | None = None,
    now: Now = time.perf_counter,
) -> PairTimes:
    """Compare two operands in interleaved rounds and return their windows and verdict.

    `again` is the left operand's code once more: the difference of the two is the noise floor.
    `requested_threshold` is the protocol's own when None. The verdict is computed after
    `compare_rounds` and after each doubling while nothing is decided, each time at the confidence
    of `verdict.confidence_of`, so that all intervals hold together.
    """
    requested_threshold = (
        protocol.requested_threshold if requested_threshold is None else requested_threshold
    )
    entrants = (left, again, right)
    windows: tuple[list[Window], list[Window], list[Window]] = ([], [], [])
    # fewer pairs of rounds than this have no interval of that confidence, however slow the kernel
    fewest = 2 * stats.least_for(verdict.confidence_of(protocol.looks))
    settle(left, protocol, now)
    end = now() + protocol.compare_s
    for look in range(protocol.looks):
        rounds = range(len(windows[0]), protocol.compare_rounds * 2**look)
        turns = (
            (entrant, entrants[entrant])
            for at in takewhile(lambda at: at % 2 or at < fewest or now() < end, rounds)
            for entrant in ORDERS[at % 6]
        )
        for entrant, window in stream(turns, protocol.compare_window_s, now):
            windows[entrant].append(window)
        result = decide(*windows, protocol, requested_threshold)
        if now() >= end or _is_final(result):
            break
    return PairTimes(*windows, result)


def _is_final(result: Verdict) -> bool:
    """Return whether the verdict is final. SAME within a noise floor above the requested threshold
    may improve with more rounds."""
    if result.word == "SAME":
        return result.noise <= result.requested_threshold
    return result.word != "INCONCLUSIVE"


def decide(
    left: Sequence[Window],
    again: Sequence[Window],
    right: Sequence[Window],
    protocol: Protocol,
    requested_threshold: float,
) -> Verdict:
    """Return the verdict of windows taken in rounds. Two rounds, one the reverse of the other, make
    one pair of times; pairs with a throttled window are left out."""
    confidence = verdict.confidence_of(protocol.looks)
    both = (left, again, right)
    fine = [
        all(w) for w in zip(*(_fine(operand, protocol.throttled) for operand in both), strict=True)
    ]
    pairs = [i for i in range(0, len(fine), 2) if fine[i] and fine[i + 1]]
    enough = len(pairs) >= stats.least_for(confidence)
    if not enough:
        pairs = list(range(0, len(fine), 2))
    times = [_times(operand, pairs) for operand in both]
    noise = verdict.noise_of(stats.ratio(times[0], times[1], confidence))
    cycles = _cycles(left, right, pairs, confidence)
    ratio = stats.ratio(times[0], times[2], confidence)
    result = verdict.verdict(ratio, cycles, requested_threshold, noise, len(fine))
    if enough:
        return result
    reason = f"too few of {len(fine)} rounds ran at the usual clock: the GPU was throttled"
    return replace(result, word="INCONCLUSIVE", reason=reason)


def _times(windows: Sequence[Window], pairs: Sequence[int]) -> list[float]:
    """Return the geometric mean of the two windows' medians, in seconds, of each pair."""
    medians = [stats.median(window.samples_s) for window in windows]
    return [math.sqrt(medians[i] * medians[i + 1]) for i in pairs]


def _cycles(
    left: Sequence[Window], right: Sequence[Window], pairs: Sequence[int], confidence: float
) -> Ratio | None:
    """Return the ratio in clock cycles, or None where the clock of a window is unknown."""
    both: list[list[float]] = []
    for windows in (left, right):
        cycles: list[float] = []
        for window in windows:
            if not window.sm_mhz:
                return None
            cycles.append(stats.median(window.samples_s) * window.sm_mhz * 1e6)
        both.append([math.sqrt(cycles[i] * cycles[i + 1]) for i in pairs])
    return stats.ratio(both[0], both[1], confidence)
