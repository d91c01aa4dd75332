"""One problem on one live GPU: inputs in rotation, and samples of how long a call takes.

cold: input and output sets rotate, and together span three last-level caches, so that a call
finds none of its data there. Where that would take too many sets, the cache is flushed whenever
the rotation begins anew. hot: one set, back to back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from workbench import inputs, stats
from workbench.check import as_tuple
from workbench.measure.clocks import SmClock
from workbench.measure.protocol import Protocol
from workbench.measure.rounds import Window, clean, stable
from workbench.measure.stream import (
    FirstCall,
    Flush,
    Graphs,
    NotCapturable,
    Step,
    begin_samples,
    event_samples,
    first_call,
    host_samples,
    timer_step_s,
    wait,
)
from workbench.record import Measured
from workbench.spec import Impl, Sizes, Spec

Regime = Literal["cold", "hot"]
State = Literal["boost", "sustained"]
Method = Literal["events", "graph", "host"]
MOST_SETS = 128  # that span the caches by themselves
# With flushes: a set is used once between two of them, so this many calls fit in one graph. Fewer
# would let the start of a graph, some 5 us, weigh more than 0.02 us a call.
FLUSHED_SETS = 256
MOST_CALLS = 2000  # in one graph
STEPS = 1000  # of the timer in one graph: rounding stays under 0.1 %


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
    clock: SmClock | None = None  # tells the SM clock of each window
    _sets: list[tuple[Any, ...]] = field(init=False)
    _flush: Flush | None = field(init=False, default=None)
    _graphs: Graphs | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        count, flushed = set_count(
            self.spec.bytes(self.sizes, self.dtype), self.protocol.cache_multiple * self.cache_bytes
        )
        if flushed:
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
        """Seconds of one call, roughly: the least of three after the one that compiles and
        loads. Learns what enqueueing takes the host, and whether the call waits for the GPU."""
        rotation.call()
        wait()
        first = rotation.learn()
        again = host_samples(rotation.step(), 2) if first.waits else rotation.samples(2)
        # what `learn` saw of a call that waits was the hold
        return min(again) if first.waits else min(first.seconds, *again)

    def timed(self, rotation: Rotation, estimate_s: float, graph_s: float | None = None) -> Timed:
        """The way to take a sample that suits a call of about this length. A graph holds
        `graph_s` seconds of calls: the protocol's, unless a screen asks for less."""
        if rotation.waits:
            return Timed("host", rotation, 1, estimate_s, self.clock)
        if estimate_s >= self.protocol.graph_below_s:
            return Timed("events", rotation, 1, estimate_s, self.clock)
        span_s = max(graph_s or self.protocol.graph_s, STEPS * timer_step_s())
        calls = graph_calls(span_s, estimate_s, len(rotation.sets), rotation.flush is not None)
        if self._graphs is None:
            self._graphs = Graphs()
        try:
            graph = self._graphs.capture(calls, rotation.call)
        except NotCapturable:
            rotation.forget()  # outputs that were never written
            return Timed("host", rotation, 1, estimate_s, self.clock)
        timed = Timed("graph", rotation, calls, estimate_s, self.clock, graph)
        # The first replay uploads the graph, so it may take longer than those that follow.
        timed.estimate_s = min(estimate_s, timed.samples(1)[0])
        return timed

    def measured(
        self,
        timed: Timed,
        windows: Sequence[Window],
        regime: Regime,
        state: State = "boost",
        **also: Any,
    ) -> Measured:
        """Windows of samples as a result; `also` are fields that the sensors gave. The clock is
        that of the windows, else the sensors'. Raises Impossible below the physical floor when
        cold."""
        kept, left_out = clean(windows, self.protocol.throttled)
        taken = [window.samples_s for window in kept]
        samples = [s for window in taken for s in window]
        median = stats.median(samples)
        if regime == "cold" and median < self.protocol.floor * self.floor_s:
            raise Impossible(
                f"{median * 1e6:.2f} us is below what the device can reach "
                f"({self.floor_s * 1e6:.2f} us): not a time"
            )
        low, high = stats.windowed_interval(taken)
        clocks = [window.sm_mhz for window in kept if window.sm_mhz is not None]
        if clocks:
            also["sm_mhz"] = stats.median(clocks)
        return Measured(
            median_s=median,
            low_s=low,
            high_s=high,
            samples_s=tuple(samples),
            regime=regime,
            method=timed.method,
            protocol=self.protocol.id,
            rounds=len(kept),
            state=state,
            window_sizes=tuple(len(window) for window in taken),
            window_mhz=tuple(clocks) if len(clocks) == len(kept) else (),
            left_out=left_out,
            # a screen at the boost clock is not asked to be narrow
            stable=state == "boost" or stable(kept, self.protocol),
            **also,
        )


@dataclass
class Rotation:
    """Calls that walk over input sets and keep as many outputs alive, so that no output is
    rewritten while the cache still holds it."""

    impl: Impl
    config: Any
    sets: list[tuple[Any, ...]]
    flush: Flush | None = None
    host_s: float = 50e-6  # what enqueueing one call and its events takes
    waits: bool = False  # a call returns only when the GPU is done
    _turn: int = 0
    _kept: dict[int, tuple[Any, ...]] = field(default_factory=dict)

    def call(self) -> None:
        """One call on the next set."""
        at = self._turn % len(self.sets)
        self._kept[at] = as_tuple(self.impl(*self.sets[at], config=self.config))
        self._turn += 1

    def forget(self) -> None:
        """Let go of all outputs."""
        self._kept.clear()

    def turn_over(self) -> None:
        """Flush where the next call would begin the rotation anew."""
        if self.flush is not None and self._turn % len(self.sets) == 0:
            self.flush()

    def step(self, device_s: float = 0.0) -> Step:
        """One call as one sample; `device_s` is how long it takes, roughly."""
        return Step(self.call, self.host_s, device_s, self.turn_over if self.flush else None)

    def learn(self) -> FirstCall:
        """One call behind a held stream; remembers what it showed."""
        found = first_call(self.step())
        self.waits = found.waits
        if not found.waits:
            self.host_s = found.host_s
        return found

    def samples(self, count: int, device_s: float = 0.0) -> list[float]:
        """Seconds of each of `count` calls between events; a call takes about `device_s`."""
        return event_samples(self.step(device_s), count)


@dataclass
class Timed:
    """A rotation with the method that samples it; `calls` calls make one sample. An Arm of
    `rounds`."""

    method: Method
    rotation: Rotation
    calls: int
    estimate_s: float  # of one call
    clock: SmClock | None = None
    graph: Any = None

    @property
    def sample_s(self) -> float:
        """Seconds that one sample takes, its share of the flushes too."""
        flush = self.rotation.flush
        shared = 1 if self.graph is not None else len(self.rotation.sets)
        return self.estimate_s * self.calls + (flush.seconds / shared if flush else 0.0)

    def begin(self, seconds: float, least: int = 1) -> Started:
        """Put samples on the stream that together last about `seconds`, at least `least` of them,
        and return while they run. A call that waits for the GPU itself is over by then."""
        count = max(least, math.ceil(seconds / self.sample_s))
        return Started(self._begun(count, self.clock), self.clock)

    def window(self, seconds: float, least: int = 1) -> Window:
        """Such samples, once they are all taken."""
        return self.begin(seconds, least).window()

    def samples(self, count: int) -> list[float]:
        """Seconds a call, `count` times. The SM clock is not read."""
        return self._begun(count, None)()

    def _begun(self, count: int, clock: SmClock | None) -> Callable[[], list[float]]:
        if self.method == "host":
            taken = host_samples(self.rotation.step(), count, clock)
            return lambda: taken
        if self.graph is None:
            return begin_samples(self.rotation.step(self.estimate_s), count, clock).seconds
        replay = Step(
            self.graph.replay, device_s=self.estimate_s * self.calls, flush=self.rotation.flush
        )
        all_ = begin_samples(replay, count, clock)
        return lambda: [s / self.calls for s in all_.seconds()]


@dataclass
class Started:
    """A window whose samples are on the stream."""

    seconds: Callable[[], list[float]]
    clock: SmClock | None

    def window(self) -> Window:
        """Its samples and its clock; waits for them and for nothing behind them."""
        samples = tuple(self.seconds())
        return Window(samples, self.clock.mhz() if self.clock else None)


def set_count(problem_bytes: int, span_bytes: float) -> tuple[int, bool]:
    """How many sets rotate, and whether the cache must be flushed besides, for sets of
    `problem_bytes` to span `span_bytes`. At least two, so that neighbours differ."""
    count = max(2, math.ceil(span_bytes / max(1, problem_bytes)))
    return (FLUSHED_SETS, True) if count > MOST_SETS else (count, False)


def graph_calls(span_s: float, call_s: float, sets: int, flushed: bool) -> int:
    """Calls in a graph that lasts about `span_s`. Each round over the sets is whole, for else a
    replay would find in the cache what the one before left; after a flush, each set is used at
    most once."""
    wanted = min(MOST_CALLS, math.ceil(span_s / max(call_s, 1e-6)))
    return min(wanted, sets) if flushed else sets * math.ceil(wanted / sets)
