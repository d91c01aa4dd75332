"""Time calls of one problem on the live GPU, with inputs in rotation.

cold: input and output sets rotate, and together span three last-level caches, so that a call finds
none of its data there. Where that would take too many sets, the cache is flushed whenever the
rotation starts again. hot: one set, back to back.

A launch that changes its inputs works on copies, and the sets keep their values. The copies are
restored before each sample and the cache is flushed after that, both outside the time. A graph has
a copy for each of its calls, so that no restore lies between two of them. Hot, where one copy must
stay in the cache, each call of the graph follows a restore, and the time of a graph of the restores
alone, replayed in turn with it, is subtracted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Any, Literal

import torch

from workbench.data import stats
from workbench.data.modes import modes_of
from workbench.data.record import Measured
from workbench.measurement import inputs
from workbench.measurement.clocks import SmClock
from workbench.measurement.correctness import (
    Checked,
    Poisoned,
    check_outputs,
    is_traced,
    poison_outputs,
)
from workbench.measurement.graphs import (
    OTHER_STREAM,
    Graph,
    Graphs,
    NotCapturable,
    NotJoined,
    graphs,
    reset_persisting_lines,
    run_beside,
)
from workbench.measurement.mutated import Working
from workbench.measurement.protocol import Protocol
from workbench.measurement.rotation import Rotation
from workbench.measurement.rounds import Window, clean, pooled_time, stable
from workbench.measurement.stream import (
    Flush,
    TimerStep,
    begin_samples,
    host_samples,
    other_streams_s,
    runs_while_held,
    timer_step_s,
    wait,
)
from workbench.spec import Impl, Sizes, Spec

Regime = Literal["cold", "hot"]
State = Literal["boost", "sustained"]
Method = Literal["events", "graph", "host"]
MOST_SETS = 128  # most sets in rotation without flushes
# With flushes: a set is used once between two of them, so this many calls fit in one graph. With
# fewer, the start of a graph, some 5 us, would add more than 0.02 us to a call.
FLUSHED_SETS = 256
MOST_HELD = 4 << 30  # bytes of memory of sets of which a call moves a small part
MOST_CALLS = 2000  # in one graph
OTHERWISE = 1.1  # ratio of a graph's time to the events', above which copies run differently
OTHER_S = 1e-3  # of calls in a row, after which work of another stream shows
OTHER_CALLS = 20
OTHER_LOOKS = 3
HELD_TRIES = 2
CHECKED_SETS = 3  # whose results of timed calls are checked: two of the same values, one of others
STEPS = 1000  # timer steps in one graph: rounding stays under 0.1 %


class Impossible(Exception):
    """A time below what the device can physically reach: the measurement is wrong."""


@dataclass
class Bench:
    """Inputs of one problem in rotation, with the methods that time a call on them."""

    spec: Spec
    sizes: Sizes
    dtype: str
    cache_bytes: int
    bound_s: float  # least seconds of a cold call
    protocol: Protocol
    clock: SmClock | None = None  # reads the SM clock of each window
    hot_bound_s: float = 0.0  # least seconds of a call on cached data
    pair: Sequence[tuple[Any, ...]] = ()  # inputs of two values: even sets have those of the first
    moved_bytes: int = 0  # by a call; 0: those of all inputs and outputs
    _sets: list[tuple[Any, ...]] = field(init=False)
    _flush: Flush | None = field(init=False, default=None)
    _restore_flush: Flush | None = field(init=False, default=None)  # flush that follows a restore
    _working: Working = field(init=False)
    _graphs: Graphs | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        count, flushed = set_count(
            self.moved_bytes or self.spec.bytes(self.sizes, self.dtype),
            self.protocol.cache_multiple * self.cache_bytes,
            self.spec.held_bytes(self.sizes, self.dtype),
        )
        if flushed:
            self._flush = Flush(self.cache_bytes)
        # two random sets, and copies of them: the cache needs other addresses, and a kernel that
        # remembers results by address or value must not pass
        pair = self.pair or [
            inputs.make(self.spec, self.sizes, self.dtype, "cuda", seed) for seed in (0, 1)
        ]
        rest = [tuple(x.clone() for x in pair[n % 2]) for n in range(2, count)]
        self._sets, first = [*pair, *rest], pair[0]
        self._working = Working(dict(zip(self.spec.inputs, first, strict=True)))

    @property
    def first_inputs(self) -> tuple[Any, ...]:
        """Return the set on which results are checked; no call changes it."""
        return self._sets[0]

    @property
    def second_inputs(self) -> tuple[Any, ...]:
        """Return a set of other values, on which results are checked again."""
        return self._sets[1]

    def calls(self, impl: Impl, config: Any, regime: Regime = "cold") -> Rotation:
        """Return a rotation that calls the Impl at this config on each set of inputs in turn."""
        cold = regime == "cold"
        sets, flush = self._sets if cold else self._sets[:1], self._flush if cold else None
        if not impl.mutates:
            return Rotation(impl, config, sets, flush, is_traced=is_traced(impl))
        if cold and flush is None:  # restored data is still in the cache
            flush = self._restore_flush = self._restore_flush or Flush(self.cache_bytes)
        copies = self._working.copies(impl.mutates, 1)
        return Rotation(impl, config, sets, flush, copies, impl.mutates)

    def first_time(self, rotation: Rotation) -> float:
        """Return the approximate seconds of one call: the least of three after a warm-up call.
        Records the host's time to enqueue it, which `summarise` stores, and whether the call waits
        for the GPU."""
        rotation.restored_call()
        wait()
        reset_persisting_lines()
        first = rotation.learn()
        again = host_samples(rotation.step(), 2) if first.waits else rotation.samples(2)
        # the first time of a call that waits is that of the delay kernel
        seconds = min(again) if first.waits else min(first.seconds, *again)
        self._refuse_other_streams(rotation, seconds)
        if first.waits or seconds < self.protocol.graph_below_s:
            rotation.learn_issue(seconds)  # of a longer call it is learnt while it is timed
        return seconds

    def _refuse_other_streams(self, rotation: Rotation, seconds: float) -> None:
        """Raise NotJoined where work of a call runs on a stream that the current one does not wait
        for: found by running while the current stream is held, or after it is done."""
        calls = min(OTHER_CALLS, max(1, math.ceil(OTHER_S / max(seconds, 1e-6))))
        for _ in range(OTHER_LOOKS):  # the host may have been interrupted
            for _ in range(calls):
                rotation.restored_call()
            if other_streams_s() < OTHER_S / 4:
                break
        else:
            raise NotJoined(OTHER_STREAM)
        if rotation.waits or rotation.copies is not None or rotation.is_traced:
            return
        if self._runs_early(rotation):
            raise NotJoined(OTHER_STREAM)

    def _runs_early(self, rotation: Rotation) -> bool:
        """Return whether a call writes its outputs while the current stream is held. What a first
        try loads may outlast the hold."""
        early = None
        for _ in range(HELD_TRIES):
            memory = Poisoned(run_aside=run_beside)
            with memory:
                early = runs_while_held(rotation.call, memory.is_written, rotation.host_s)
            rotation.forget()
            if early is not None:
                break
        return bool(early)

    def launches(self, rotation: Rotation) -> list[str] | None:
        """Return the kernels of one call with their shapes, in order, or None where unknown."""
        if rotation.waits:
            return None
        self._graphs = self._graphs or graphs()
        names = self._graphs.launches(rotation.restored_call)
        rotation.forget()  # outputs that were never written, before their memory is freed
        return names

    def check_calls(self, entrant: BenchTime, problems: Sequence[Any]) -> list[tuple[int, Checked]]:
        """Return the checks of the results of timed calls, each with the index of its problem: of
        three sets, or of fewer where there are no more. Outputs are poisoned, and the timed calls
        run once more. Empty where a call changes its inputs. `problems` are those of even and of
        odd sets; the first timed call may be on either."""
        rotation = entrant.rotation
        if rotation.copies is not None:
            return []
        # of a graph with fewer calls than there are sets, those that it writes
        checked = dict(list(rotation.outputs.items())[:CHECKED_SETS])
        for at, outputs in checked.items():
            if not poison_outputs(outputs, rotation.sets[at]):
                return []
        entrant.samples(1 if entrant.graph else len(rotation.sets))
        torch.cuda.synchronize()
        return [(at % 2, check_outputs(rotation.outputs[at], problems[at % 2])) for at in checked]

    def choose_method(
        self, rotation: Rotation, estimate_s: float, graph_s: float | None = None
    ) -> BenchTime:
        """Return the sampling method that suits a call of about `estimate_s` seconds. A graph holds
        `graph_s` seconds of calls, the protocol's by default; the first pass asks for less."""
        if rotation.waits:
            return BenchTime("host", rotation, 1, estimate_s, self.clock)
        if estimate_s >= self.protocol.graph_below_s:
            return BenchTime("events", rotation, 1, estimate_s, self.clock)
        span_s = max(graph_s or self.protocol.graph_s, STEPS * timer_step_s())
        # a flush after restores does not mean that the sets are too small by themselves
        flushed = rotation.flush is not None and rotation.flush is not self._restore_flush
        calls = graph_calls(span_s, estimate_s, len(rotation.sets), flushed)
        try:
            entrant = self._capture_graph(rotation, calls, estimate_s)
        except NotCapturable:
            self._graphs = None
            rotation.forget()  # the failed capture's outputs, which were never written
            return BenchTime("host", rotation, 1, estimate_s, self.clock)
        # The first replay uploads the graph, so it may take longer than those that follow; where
        # two graphs are subtracted, its difference may be anything.
        seen = entrant.samples(1 if entrant.restores is None else 2)[-1]
        if _otherwise(entrant, seen, estimate_s):
            return BenchTime("events", rotation, 1, estimate_s, self.clock)
        entrant.estimate_s = min(estimate_s, seen) if seen > 0 else estimate_s
        return entrant

    def _capture_graph(self, rotation: Rotation, calls: int, estimate_s: float) -> BenchTime:
        """Capture as many calls as there is memory for the inputs that they change. Raises
        NotCapturable."""
        if self._graphs is None:
            self._graphs = graphs()
        capture, copies, restores = self._graphs.capture, rotation.copies, None
        rotation.forget()  # outputs of calls before, which no replay writes again
        if copies is None:
            graph = capture(calls, rotation.call)
        elif rotation.flush is not None:
            copies = self._working.copies(rotation.mutates, calls)
            rotation, calls = replace(rotation, copies=copies), copies.count
            graph = capture(calls, rotation.call)
        else:
            graph = capture(calls, rotation.restored_call)
            restores = capture(calls, copies.restore)
        return BenchTime("graph", rotation, calls, estimate_s, self.clock, graph, restores)

    def summarise(
        self,
        entrant: BenchTime,
        windows: Sequence[Window],
        regime: Regime,
        state: State = "boost",
        brief: bool = False,
        **also: Any,
    ) -> Measured:
        """Return the result of windows of samples; `also` are further fields from the sensors. Of
        `brief` rounds it need not be precise.

        The clock is that of the windows, else the sensors'. Raises Impossible where a time is below
        what its regime allows.
        """
        steady, left_out = clean(windows, self.protocol.throttled)
        clocks = [window.sm_mhz for window in steady if window.sm_mhz is not None]
        if clocks:
            also["sm_mhz"] = stats.median(clocks)
        time = pooled_time(
            steady,
            regime,
            entrant.method,
            self.protocol.id,
            state=state,
            window_mhz=tuple(clocks) if len(clocks) == len(steady) else (),
            left_out=left_out,
            host_s=entrant.rotation.issued_s,
            **also,
        )
        bound = self.bound_s if regime == "cold" else self.hot_bound_s
        if time.median_s < self.protocol.bound * bound:
            raise Impossible(
                f"{time.median_s * 1e6:.2f} us is below what the device can reach "
                f"({bound * 1e6:.2f} us): not a time"
            )
        modes = modes_of(time.samples_s)
        # the first pass, at the boost clock, need not be narrow
        narrow = state == "boost" or brief or stable(steady, self.protocol)
        return replace(time, stable=not modes and narrow, modes=modes)


@dataclass
class BenchTime:
    """A rotation with its sampling method, `calls` calls a sample. An Entrant of `rounds`."""

    method: Method
    rotation: Rotation
    calls: int
    estimate_s: float  # of one call
    clock: SmClock | None = None
    graph: Graph | None = None
    restores: Graph | None = None  # a graph of the restores in `graph`, to be subtracted

    @property
    def sample_s(self) -> float:
        """Return the seconds of one sample, including its restores and its share of the flushes."""
        flush, copies = self.rotation.flush, self.rotation.copies
        each = self.graph is not None or copies is not None
        shared = 1 if each else len(self.rotation.sets)
        before = flush.seconds / shared if flush else 0.0
        if copies is not None:
            before += copies.seconds * (1 if self.restores is None else 2 * self.calls)
        return self.estimate_s * self.calls + before

    def begin(self, seconds: float, least: int = 1) -> StartedSample:
        """Enqueue samples of about `seconds` in total, at least `least`, and return while they run.
        A call that waits for the GPU is already over by then."""
        count = max(least, math.ceil(seconds / self.sample_s))
        return StartedSample(self._begin_samples(count, self.clock), self.clock)

    def window(self, seconds: float, least: int = 1) -> Window:
        """Take samples of about `seconds` in total, at least `least`, and return their window."""
        return self.begin(seconds, least).window()

    def samples(self, count: int) -> list[float]:
        """Return the seconds of a call from each of `count` samples, the SM clock unread."""
        return self._begin_samples(count, None)()

    def _begin_samples(self, count: int, clock: SmClock | None) -> Callable[[], list[float]]:
        if self.method == "host":
            samples = host_samples(self.rotation.step(), count, clock)
            return lambda: samples
        if self.graph is None:
            step = self.rotation.issued_step(self.estimate_s)
            return begin_samples(step, count, clock).seconds
        if self.restores is not None:
            return self._differences(self.graph, self.restores, count, clock)
        rotation, replay = self.rotation, self.graph.replay
        device_s = self.estimate_s * self.calls
        before = rotation.flush if rotation.copies is None else rotation.turn_over
        host_s = TimerStep.host_s + (rotation.copies.host_s if rotation.copies else 0.0)
        all_ = begin_samples(TimerStep(replay, host_s, device_s, before), count, clock)
        return lambda: [s / self.calls for s in all_.seconds()]

    def _differences(
        self, whole: Graph, restores: Graph, count: int, clock: SmClock | None
    ) -> Callable[[], list[float]]:
        """Replay the graph and that of its restores in turn: a sample is their difference."""
        turns = cycle((whole.replay, restores.replay))
        device_s = self.rotation.copies.seconds * self.calls if self.rotation.copies else 0.0
        all_ = begin_samples(TimerStep(lambda: next(turns)(), device_s=device_s), 2 * count, clock)

        def seconds() -> list[float]:
            result = all_.seconds()
            pairs = zip(result[::2], result[1::2], strict=True)
            return [(whole - restores) / self.calls for whole, restores in pairs]

        return seconds


@dataclass
class StartedSample:
    """A window whose samples are enqueued."""

    seconds: Callable[[], list[float]]
    clock: SmClock | None

    def window(self) -> Window:
        """Return the window with its samples and clock; waits for these and for no later work."""
        samples = tuple(self.seconds())
        return Window(samples, self.clock.mhz() if self.clock else None)


def _otherwise(entrant: BenchTime, seen_s: float, estimate_s: float) -> bool:
    """Return whether copies in the graph run slower than by themselves. The driver's own copy of 1
    GB reaches 2.7 TB/s in a graph, on an H200, and 4.2 TB/s when torch issues it."""
    if seen_s <= OTHERWISE * estimate_s or entrant.graph is None or entrant.restores is not None:
        return False
    return entrant.graph.copies > 0


def set_count(problem_bytes: int, span_bytes: float, held_bytes: int = 0) -> tuple[int, bool]:
    """Return the number of rotating sets that span `span_bytes`, and whether the cache must be
    flushed besides. A call moves `problem_bytes` of a set, which takes `held_bytes` of memory. At
    least two sets, so that neighbours differ."""
    count = max(2, math.ceil(span_bytes / max(1, problem_bytes)))
    if count > 2 and count * held_bytes > max(MOST_HELD, 2 * span_bytes):
        return 2, True
    return (FLUSHED_SETS, True) if count > MOST_SETS else (count, False)


def graph_calls(span_s: float, call_s: float, sets: int, flushed: bool) -> int:
    """Return the number of calls in a graph of about `span_s` seconds.

    Rounds over the sets are complete, since a replay would otherwise find data of the one before in
    the cache; with flushes, each set is used at most once.
    """
    wanted = min(MOST_CALLS, math.ceil(span_s / max(call_s, 1e-6)))
    return min(wanted, sets) if flushed else sets * math.ceil(wanted / sets)
