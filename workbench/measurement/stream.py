"""What is put on the GPU's stream to time a call: a hold, a flush, events.

Waits are for the stream alone, never for the whole device: on ROCm that costs several times more.
"""

from __future__ import annotations

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
DELAY_PROBE = 200_000  # cycles: 0.1 ms at 2 GHz


@dataclass(frozen=True)
class TimerStep:
    """What one sample times, and how the stream must stand before it."""

    call: Callable[[], None]
    host_s: float = 50e-6  # what enqueueing it takes the host, its two events too
    device_s: float = 0.0  # what it takes the device, roughly
    # restores what the call changes, and flushes: outside the events
    flush: Callable[[], None] | None = None

    @property
    def lag_s(self) -> float:
        """By how much the host may be slower than the device, a call: it takes a fifth longer at
        times, and over 256 calls that adds up."""
        return max(0.0, 1.2 * self.host_s - self.device_s)


class Samples:
    """Samples that were put on the stream and may not have run yet."""

    def __init__(self, pairs: Sequence[tuple[Any, Any]], before: list[float]) -> None:
        self._pairs, self._before = pairs, before

    def seconds(self) -> list[float]:
        """Of each; waits for the last of them and for nothing behind it."""
        if self._pairs:
            self._pairs[-1][1].synchronize()
        return self._before + [start.elapsed_time(end) * 1e-3 for start, end in self._pairs]


def begin_samples(step: TimerStep, count: int, clock: SmClock | None = None) -> Samples:
    """Put `count` calls on the stream, each between two events, and return while they run: what
    is put there next follows without a pause. At most two such windows may be under way.

    The stream is held back while the host gets ahead, so that no launch latency falls between the
    events: with torch.compile a call of 33 us took the host 80 us. Where the host is faster than
    the device, more than a short hold would only let the GPU rest and raise its clock.
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
    """Seconds of each of `count` calls, between two events on the stream."""
    samples = begin_samples(step, count, clock)
    wait()
    return samples.seconds()


def host_samples(step: TimerStep, count: int, clock: SmClock | None = None) -> list[float]:
    """Seconds of each of `count` calls by the host's clock, launch latency and all: for a call
    that waits for the GPU itself, so that the stream cannot be held back before it."""
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
    """What one call behind a held stream shows."""

    seconds: float  # by events, or by the host's clock where it waits for the GPU
    host_s: float  # what enqueueing it took, its two events too
    waits: bool  # it returned only after the hold: it waits for the GPU


def first_call(step: TimerStep) -> FirstCall:
    """Time one call behind a held stream. A call that returns while the stream is still held
    waits for nothing. The short hold proves that for nearly all; one that outlasts the long hold
    too is taken to wait."""
    for seconds in (5e-4, LONGEST_DELAY_S):
        if step.flush is not None:
            step.flush()
        held, (start, end) = _plain_mark(), marks(0)
        delay(seconds)
        held.record()
        started = time.perf_counter()
        start.record()
        step.call()
        waits = bool(held.query())
        end.record()
        host_s = time.perf_counter() - started
        wait()
        if not waits:
            return FirstCall(start.elapsed_time(end) * 1e-3, host_s, False)
    return FirstCall(host_s, host_s, True)


def wait() -> None:
    """Until all on the current stream is done."""
    torch.cuda.current_stream().synchronize()


def delay(seconds: float) -> None:
    """Keep the current stream busy for about this long, at most LONGEST_HOLD_S: a kernel that
    counts cycles, so that it ends whatever becomes of the host."""
    torch.cuda._sleep(int(min(seconds, LONGEST_DELAY_S) * _delay_rate()))


@cache
def _delay_rate() -> float:
    """Cycles a second of `torch.cuda._sleep`: the SM clock, or a slower fixed one on RDNA. The
    fastest of a few trials, because a GPU that rested begins at a low clock."""
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
    """The step of the timer behind the events, from pairs with ever longer pauses between them."""
    pairs = [marks(i) for i in range(QUEUED)]
    delay(2e-3)
    for i, (start, end) in enumerate(pairs):
        start.record()
        torch.cuda._sleep(1 + PAUSE * i)
        end.record()
    wait()
    return least_step_s([start.elapsed_time(end) * 1e-3 for start, end in pairs])


PAUSE = 37  # cycles more for each: 20 ns at the boost clock, less than the finest step known


def least_step_s(result: Sequence[float]) -> float:
    """The smallest difference between two of these times. Times are told in fp32 of a millisecond,
    so what differs by under 0.1 ns is the same. On an H200, 256 pairs with nothing between them
    all took 8.672 us, and the step is 0.032 us: that is why the times must differ.

    Raises ValueError when they do not."""
    text = sorted({round(seconds * 1e10) for seconds in result})
    if len(text) < 2:
        raise ValueError("the GPU's timer stands still: pauses of different lengths read the same")
    return min(b - a for a, b in pairwise(text)) * 1e-10


@cache
def marks(index: int) -> tuple[Any, Any]:
    """A pair of timing events, made once: making them takes longer than using them."""
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)


@cache
def _plain_mark() -> Any:
    return torch.cuda.Event()


class Flush:
    """Turns the last-level cache over: twice its size is written, then read, so that what stays
    is clean and nothing has to be written back inside the sample that follows."""

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
