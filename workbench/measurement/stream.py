"""Time calls on the GPU's stream: delays that hold it, flushes and events.

Waits are for the stream alone, never for the whole device: on ROCm that takes several times longer.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import cycle, pairwise
from typing import Any

import torch

from workbench.measurement.clocks import SmClock

LONGEST_DELAY_S = 0.02
QUEUED = 256  # samples between two waits: the queue of a CUDA stream holds about 1000 launches
# Time of the host to fill and read outputs beside a held stream: two or three small graphs
HELD_S = 2e-3
DELAY_PROBE = 200_000  # cycles: 0.1 ms at 2 GHz


@dataclass(frozen=True)
class TimerStep:
    """The call that one sample times, and the flush before it."""

    call: Callable[[], None]
    host_s: float = 50e-6  # host seconds to enqueue it with its two events
    device_s: float = 0.0  # approximate seconds on the device
    # restores the inputs that the call changes, and flushes: outside the events
    flush: Callable[[], None] | None = None

    @property
    def lag_s(self) -> float:
        """Return the seconds by which the host may be slower than the device in each call. The host
        takes a fifth longer at times, which adds up over 256 calls."""
        return max(0.0, 1.2 * self.host_s - self.device_s)


class Samples:
    """Samples that are enqueued and may not have run yet."""

    def __init__(self, pairs: Sequence[tuple[Any, Any]], seconds_before: list[float]) -> None:
        self._pairs, self._seconds_before = pairs, seconds_before

    def seconds(self) -> list[float]:
        """Return the seconds of each sample; waits for the last of them and for no later work."""
        if self._pairs:
            self._pairs[-1][1].synchronize()
        return self._seconds_before + [start.elapsed_time(end) * 1e-3 for start, end in self._pairs]


def begin_samples(step: TimerStep, count: int, clock: SmClock | None = None) -> Samples:
    """Enqueue `count` calls, each between two events, and return their samples while they run.

    Work enqueued next follows without a pause. At most two such windows may be pending. The stream
    is held while the host gets ahead, so that no launch latency falls between the events: with
    torch.compile a call of 33 us took the host 80 us. Where the host is faster than the device, the
    hold is short, as a longer one would let the GPU rest and raise its clock.
    """
    most = max(1, min(QUEUED, int(LONGEST_DELAY_S / 2 / step.lag_s))) if step.lag_s else QUEUED
    samples: list[float] = []
    while True:
        batch = min(most, count - len(samples))
        offset = next(_BANKS)
        pairs = [marks(offset + i) for i in range(batch)]
        delay(50e-6 + 2 * step.host_s + 1.5 * batch * step.lag_s)
        if clock is not None and not samples:
            clock.begin()
        for start, end in pairs:
            if step.flush is not None:
                step.flush()
            start.record()
            step.call()
            end.record()
        if len(samples) + batch == count:
            if clock is not None:
                clock.end()
            return Samples(pairs, samples)
        wait()
        samples += Samples(pairs, []).seconds()


_BANKS = cycle((0, QUEUED))  # events of one window are read while those of the next are recorded


def event_samples(step: TimerStep, count: int, clock: SmClock | None = None) -> list[float]:
    """Return the seconds of each of `count` calls, between two events on the stream."""
    samples = begin_samples(step, count, clock)
    wait()
    return samples.seconds()


def host_samples(step: TimerStep, count: int, clock: SmClock | None = None) -> list[float]:
    """Return the seconds of each of `count` calls by the host's clock, including launch latency.
    For calls that wait for the GPU themselves, so that the stream cannot be held before them."""
    samples: list[float] = []
    if clock is not None:
        clock.begin()
    for _ in range(count):
        if step.flush is not None:
            step.flush()
        wait()
        started = time.perf_counter()
        step.call()
        wait()
        samples.append(time.perf_counter() - started)
    if clock is not None:
        clock.end()
        wait()
    return samples


@dataclass(frozen=True)
class FirstCall:
    """Result of one call behind a held stream."""

    seconds: float  # by events, or by the host's clock where it waits for the GPU
    host_s: float  # host seconds to enqueue it with its two events
    waits: bool  # it returned only after the hold: it waits for the GPU


def first_call(step: TimerStep) -> FirstCall:
    """Time one call behind a held stream and return its result.

    A call that returns while the stream is still held does not wait for the GPU. The short hold
    proves that for nearly all; a call that outlasts the long hold, too, is assumed to wait.
    """
    for seconds in (5e-4, LONGEST_DELAY_S):
        if step.flush is not None:
            step.flush()
        mark, (start, end) = _plain_mark(), marks(0)
        delay(seconds)
        mark.record()
        started = time.perf_counter()
        start.record()
        step.call()
        waits = bool(mark.query())
        end.record()
        host_s = time.perf_counter() - started
        wait()
        if not waits:
            return FirstCall(start.elapsed_time(end) * 1e-3, host_s, False)
    return FirstCall(host_s, host_s, True)


def issue_s(call: Callable[[], None]) -> float:
    """Return the host seconds until a call returns: to issue it, where it does not wait for the
    GPU."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def wait() -> None:
    """Wait until all work on the current stream is done."""
    torch.cuda.current_stream().synchronize()


@cache
def second_stream() -> Any:
    """Return a stream beside the current one, on which memory is filled and read. On CUDA graphs
    alone may run on it: see `graphs.run_beside`."""
    return torch.cuda.Stream()


def other_streams_s() -> float:
    """Return the seconds that the device is busy after the current stream is done."""
    wait()
    started = time.perf_counter()
    torch.cuda.synchronize()
    return time.perf_counter() - started


def runs_while_held(
    call: Callable[[], Any], seen: Callable[[], bool], host_s: float
) -> bool | None:
    """Return whether `seen` comes true while the current stream is held before the call: its work
    then runs on another stream, without waiting for this one. `seen` reads memory of the device
    beside this stream. Returns None where the hold ended first, which proves nothing."""
    mark = _plain_mark()
    wait()
    delay(HELD_S + 4 * host_s)
    mark.record()
    call()
    result = seen()
    proved = not mark.query()
    wait()
    return result if proved else None


def delay(seconds: float) -> None:
    """Keep the current stream busy for about `seconds`, at most LONGEST_DELAY_S. The kernel counts
    cycles, so it ends even if the host dies."""
    torch.cuda._sleep(int(min(seconds, LONGEST_DELAY_S) * _delay_rate()))


@cache
def _delay_rate() -> float:
    """Return the cycles a second of `torch.cuda._sleep`: the SM clock, or a slower fixed one on
    RDNA. The fastest of a few trials, because an idle GPU starts at a low clock."""
    torch.cuda._sleep(1)  # loads the kernel
    rates: list[float] = []
    start, end = marks(0)
    for _ in range(5):
        torch.cuda._sleep(DELAY_PROBE)  # so that the launch of the next is not timed
        start.record()
        torch.cuda._sleep(DELAY_PROBE)
        end.record()
        wait()
        rates.append(DELAY_PROBE / (start.elapsed_time(end) * 1e-3))
    return max(rates)


@cache
def timer_step_s() -> float:
    """Return the step of the event timer in seconds, from pairs with increasing pauses between
    them. Raises ValueError where the timer stands still."""
    pairs = [marks(i) for i in range(QUEUED)]
    delay(2e-3)
    for i, (start, end) in enumerate(pairs):
        start.record()
        torch.cuda._sleep(1 + PAUSE * i)
        end.record()
    wait()
    return least_step_s([start.elapsed_time(end) * 1e-3 for start, end in pairs])


PAUSE = 37  # further cycles for each: 20 ns at the boost clock, below the finest known step


def least_step_s(results: Sequence[float]) -> float:
    """Return the smallest difference in seconds between two different times.

    Times are fp32 milliseconds, so those within 0.1 ns count as equal. On an H200, 256 pairs with
    nothing between them all took 8.672 us, and the step is 0.032 us: that is why the times must
    differ. Raises ValueError when they do not.
    """
    text = sorted({round(seconds * 1e10) for seconds in results})
    if len(text) < 2:
        raise ValueError("the GPU's timer stands still: pauses of different lengths read the same")
    return min(b - a for a, b in pairwise(text)) * 1e-10


@cache
def marks(index: int) -> tuple[Any, Any]:
    """Return a pair of timing events, created once: creating them takes longer than using them."""
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)


@cache
def _plain_mark() -> Any:
    return torch.cuda.Event()


class Flush:
    """Replaces the contents of the last-level cache: twice its size is written, then read, so that
    its lines are clean and nothing is written back inside the sample that follows."""

    def __init__(self, cache_bytes: int) -> None:
        self._junk = torch.rand(2 * cache_bytes // 4, device="cuda")  # fp32, not constant
        self._sum = torch.zeros((), device="cuda")
        self()
        start, end = marks(0)
        delay(2e-4)
        start.record()
        self()
        end.record()
        wait()
        self.seconds = start.elapsed_time(end) * 1e-3

    def __call__(self) -> None:
        self._junk.mul_(-1.0)
        torch.sum(self._junk, dim=0, out=self._sum)
