"""One problem on one live GPU: inputs in rotation, and samples of how long a call takes.

cold: input and output sets rotate, and together span three last-level caches, so that a call
finds none of its data there; where that would take too many sets, the cache is flushed before each
call instead. hot: one set, back to back.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import torch

from workbench import inputs, stats
from workbench.check import as_tuple
from workbench.measure.protocol import Protocol
from workbench.record import Measured
from workbench.spec import Impl, Sizes, Spec

Regime = Literal["cold", "hot"]
HOLD_CYCLES_S = 2.0e9  # cycles that one second of holding the stream takes, about
LONGEST_HOLD_S = 0.02
MOST_SETS = 128
MOST_CALLS = 2000  # in one graph
AHEAD = 256  # calls between two waits: the queue of a CUDA stream holds about 1000 launches


class Impossible(Exception):
    """A time below what the device can physically reach: the measurement is wrong."""


@dataclass
class Bench:
    """Inputs of one problem in rotation, and the clock."""

    spec: Spec
    sizes: Sizes
    dtype: str
    cache_bytes: int
    floor_s: float
    protocol: Protocol
    _sets: list[tuple[Any, ...]] = field(default_factory=list)
    _flush: Flush | None = None

    def __post_init__(self) -> None:
        span = self.protocol.cache_multiple * self.cache_bytes
        count = max(2, math.ceil(span / max(1, self.spec.bytes(self.sizes, self.dtype))))
        if count > MOST_SETS:
            count = 1
            self._flush = Flush(self.cache_bytes)
        # one random set, and copies of it: values do not matter to the cache, addresses do
        first = inputs.make(self.spec, self.sizes, self.dtype, "cuda")
        self._sets = [first] + [tuple(x.clone() for x in first) for _ in range(count - 1)]

    @property
    def first_inputs(self) -> tuple[Any, ...]:
        """The set that answers are checked on."""
        return self._sets[0]

    def calls(self, impl: Impl, config: Any, regime: Regime = "cold") -> Rotation:
        """One Impl at one config, ready to be called on the next set of inputs."""
        cold = regime == "cold"
        flush = self._flush if cold else None
        return Rotation(impl, config, self._sets if cold else self._sets[:1], flush)

    def first_time(self, rotation: Rotation) -> float:
        """Seconds of one call, roughly. Compiles and loads first; learns what the host takes."""
        rotation.call()
        torch.cuda.synchronize()
        started = time.perf_counter()
        rotation.call()
        rotation.host_s = time.perf_counter() - started
        torch.cuda.synchronize()
        return min(rotation.samples(3, 0.0))

    def window(self, timed: Timed, seconds: float, least: int = 1) -> list[float]:
        """Samples that together last about `seconds`, at least `least` of them."""
        count = max(least, math.ceil(seconds / (timed.estimate_s * timed.calls)))
        return timed.samples(count)

    def timed(self, rotation: Rotation, estimate_s: float) -> Timed:
        """The way to take a sample that suits a call of about this length."""
        if estimate_s >= self.protocol.graph_below_s:
            return Timed("events", rotation, 1, estimate_s)
        calls = math.ceil(self.protocol.graph_s / max(estimate_s, 1e-6))
        calls = len(rotation.sets) * math.ceil(min(calls, MOST_CALLS) / len(rotation.sets))
        if rotation.flush is None:
            timed = Timed("graph", rotation, calls, estimate_s, _captured(calls, rotation.call))
        else:  # a flush lasts some 60 us: a hundred of them are enough
            calls = min(calls, 100)
            both = _captured(calls, rotation.flush, rotation.call)
            alone = _captured(calls, rotation.flush)
            timed = Timed("graph", rotation, calls, estimate_s, both, alone)
        timed.samples(1)  # the first replay uploads the graph
        return timed

    def measured(
        self, timed: Timed, windows: Sequence[Sequence[float]], regime: Regime, **also: Any
    ) -> Measured:
        """Windows of samples as a result. Raises Impossible below the physical floor when cold."""
        samples = [s for window in windows for s in window]
        median = stats.median(samples)
        if regime == "cold" and median < self.protocol.floor * self.floor_s:
            raise Impossible(
                f"{median * 1e6:.2f} us is below what the device can reach "
                f"({self.floor_s * 1e6:.2f} us): not a time"
            )
        low, high = stats.windowed_interval(windows)
        return Measured(
            median_s=median, low_s=low, high_s=high, samples_s=tuple(samples), regime=regime,
            method=timed.method, protocol=self.protocol.id, rounds=len(windows), **also,
        )  # fmt: skip


@dataclass
class Rotation:
    """Calls that walk over input sets and keep as many outputs alive, so that no output is
    rewritten while the cache still holds it."""

    impl: Impl
    config: Any
    sets: list[tuple[Any, ...]]
    flush: Flush | None = None
    host_s: float = 50e-6  # what enqueueing one call takes
    _turn: int = 0
    _kept: dict[int, tuple[Any, ...]] = field(default_factory=dict)

    def call(self) -> None:
        """One call on the next set."""
        at = self._turn % len(self.sets)
        self._kept[at] = as_tuple(self.impl(*self.sets[at], config=self.config))
        self._turn += 1

    def samples(self, count: int, estimate_s: float) -> list[float]:
        """Seconds of each of `count` calls, which take about `estimate_s`."""
        return _event_samples(self.call, count, self.host_s - estimate_s, self.host_s, self.flush)


class Flush:
    """Turns the last-level cache over: writes and reads twice its size."""

    def __init__(self, cache_bytes: int) -> None:
        self._junk = torch.rand(cache_bytes // 2, device="cuda")  # 2 x cache of fp32

    def __call__(self) -> None:
        self._junk.add_(1.0)


@dataclass
class Timed:
    """A rotation with the method that samples it; `calls` calls make one sample."""

    method: Literal["events", "graph"]
    rotation: Rotation
    calls: int
    estimate_s: float
    graph: Any = None
    flushes: Any = None  # the same graph without the calls, to be subtracted

    def samples(self, count: int) -> list[float]:
        """Seconds a call, `count` times."""
        if self.graph is None:
            return self.rotation.samples(count, self.estimate_s)
        both = _event_samples(self.graph.replay, count)
        if self.flushes is None:
            return [s / self.calls for s in both]
        alone = _event_samples(self.flushes.replay, count)
        return [(b - a) / self.calls for b, a in zip(both, alone, strict=True)]


def _event_samples(
    call: Callable[[], None],
    count: int,
    lag_s: float = 0.0,
    host_s: float = 50e-6,
    flush: Flush | None = None,
) -> list[float]:
    """Seconds of each of `count` calls, between two events on the stream.

    The stream is held back while the host gets ahead, so that no launch latency falls between the
    events: with torch.compile a call of 33 us took the host 80 us. `lag_s` is by how much the host
    is slower than the device, a call; where it is faster, holding would only let the GPU rest and
    raise its clock.
    """
    lag_s = max(0.0, lag_s)
    most = max(1, min(AHEAD, int(LONGEST_HOLD_S / lag_s))) if lag_s else AHEAD
    samples: list[float] = []
    while len(samples) < count:
        batch = min(most, count - len(samples))
        marks = [_marks(i) for i in range(batch)]
        hold_s = 50e-6 + 2 * host_s + 1.5 * batch * lag_s
        torch.cuda._sleep(int(HOLD_CYCLES_S * hold_s))
        for start, end in marks:
            if flush is not None:
                flush()
            start.record()
            call()
            end.record()
        torch.cuda.current_stream().synchronize()
        samples += [start.elapsed_time(end) * 1e-3 for start, end in marks]
    return samples


@cache
def _marks(index: int) -> tuple[Any, Any]:
    """A pair of timing events, made once: making them takes longer than using them."""
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)


def _captured(calls: int, *steps: Callable[[], None]) -> Any:
    """A graph of `calls` times these steps."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            for step in steps:
                step()
    return graph
