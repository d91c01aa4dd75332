"""Samples on a GPU that is not there: no launch latency in them, no cache that is warm, each call
by the clock that suits it."""

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from workbench.data import stats
from workbench.measurement import graphs, stream
from workbench.measurement.bench import (
    FLUSHED_SETS,
    MOST_CALLS,
    MOST_SETS,
    Bench,
    BenchTime,
    Impossible,
    Rotation,
    graph_calls,
    set_count,
)
from workbench.measurement.protocol import Protocol
from workbench.measurement.rounds import Window
from workbench.measurement.stream import (
    LONGEST_DELAY_S,
    TimerStep,
    begin_samples,
    delay,
    event_samples,
    first_call,
    host_samples,
    least_step_s,
)
from workbench.spec import Spec, Tensor

RATE = 1.7e9  # cycles a second


class FakeCuda:
    """A host and one stream in virtual time: work begins when the host has enqueued it and all
    before it is done."""

    def __init__(self):
        self.host_s = self.drained_s = 0.0
        self.waits = 0
        self.holds = []

    def launch(self, device_s, host_s=5e-6):
        self.host_s += host_s
        self.drained_s = max(self.host_s, self.drained_s) + device_s

    def synchronize(self):
        self.waits += 1
        self.host_s = max(self.host_s, self.drained_s)

    def _sleep(self, cycles):
        self.holds.append(cycles / RATE)
        self.launch(cycles / RATE)

    def current_stream(self):
        return self

    def Event(self, enable_timing=False):
        return FakeEvent(self)


@dataclass
class FakeEvent:
    cuda: FakeCuda
    at_s: float = 0.0

    def record(self):
        self.cuda.host_s += 1e-6
        self.at_s = max(self.cuda.host_s, self.cuda.drained_s)

    def query(self):
        return self.cuda.host_s >= self.at_s

    def synchronize(self):
        self.cuda.host_s = max(self.cuda.host_s, self.at_s)

    def elapsed_time(self, end):
        return 1e3 * (end.at_s - self.at_s)


@pytest.fixture
def cuda(monkeypatch):
    return put(monkeypatch)


def put(monkeypatch):
    """A fresh FakeCuda in place of torch's."""
    fake = FakeCuda()
    monkeypatch.setattr(stream, "torch", SimpleNamespace(cuda=fake))
    monkeypatch.setattr(stream, "time", SimpleNamespace(perf_counter=lambda: fake.host_s))
    monkeypatch.setattr("workbench.measurement.bench.timer_step_s", lambda: 32e-9)
    monkeypatch.setattr("workbench.measurement.bench.reset_persisting_lines", lambda: None)
    # one stream only; tests/gpu has launchers that use several
    monkeypatch.setattr(Bench, "_refuse_other_streams", lambda self, rotation, seconds: None)
    for kept in (stream.marks, stream._plain_mark, stream._delay_rate):
        kept.cache_clear()
    return fake


@pytest.fixture(autouse=True)
def clean_caches():
    yield
    for kept in (stream.marks, stream._plain_mark, stream._delay_rate):
        kept.cache_clear()


@given(host_s=st.floats(1e-6, 8e-3), device_s=st.floats(1e-6, 8e-3), count=st.integers(1, 700))
def test_no_launch_latency_falls_between_the_events(host_s, device_s, count):
    with pytest.MonkeyPatch.context() as patch:
        cuda = put(patch)
        call = lambda: cuda.launch(device_s, host_s)  # noqa: E731
        samples = event_samples(TimerStep(call, host_s + 2e-6, device_s), count)
        assert len(samples) == count
        assert samples == pytest.approx([device_s] * count, rel=1e-6, abs=1e-9)
        assert max(cuda.holds) <= LONGEST_DELAY_S * 1.001


def test_a_host_that_lags_would_be_timed_without_the_hold(cuda, monkeypatch):
    monkeypatch.setattr(stream, "delay", lambda seconds: None)
    call = lambda: cuda.launch(33e-6, 80e-6)  # noqa: E731
    assert min(event_samples(TimerStep(call, 80e-6, 33e-6), 20)) > 79e-6


def test_the_stream_rests_little_where_the_host_is_ahead(cuda):
    call = lambda: cuda.launch(1e-3, 20e-6)  # noqa: E731
    event_samples(TimerStep(call, 20e-6, 1e-3), 100)
    trials = 11  # of the hold's own rate
    assert sum(cuda.holds[trials:]) < 1e-3 < 0.1 * 0.1


@given(host_s=st.floats(1e-6, 3e-4), device_s=st.floats(1e-6, 5e-3), waiting=st.booleans())
def test_a_call_that_waits_for_the_gpu_is_found_out(host_s, device_s, waiting):
    with pytest.MonkeyPatch.context() as patch:
        cuda = put(patch)

        def call():
            cuda.launch(device_s, host_s)
            if waiting:
                cuda.synchronize()

        result = first_call(TimerStep(call))
        assert result.waits is waiting
        if not waiting:
            assert result.seconds == pytest.approx(device_s, rel=1e-6, abs=1e-9)
            assert result.host_s == pytest.approx(host_s + 2e-6, rel=1e-6)
            assert cuda.holds[-1] == pytest.approx(5e-4, rel=0.01), "a short hold proved it"


def test_a_slow_host_alone_does_not_make_a_call_one_that_waits(cuda):
    call = lambda: cuda.launch(1e-5, 4e-3)  # noqa: E731
    assert first_call(TimerStep(call)).waits is False


@given(host_s=st.floats(1e-6, 1e-3), device_s=st.floats(1e-6, 1e-2), flush_s=st.floats(1e-6, 1e-3))
def test_by_the_host_clock_a_flush_is_outside_and_latency_inside(host_s, device_s, flush_s):
    with pytest.MonkeyPatch.context() as patch:
        cuda = put(patch)
        step = TimerStep(lambda: cuda.launch(device_s, host_s), flush=lambda: cuda.launch(flush_s))
        samples = host_samples(step, 5)
        assert samples == pytest.approx([host_s + device_s] * 5, rel=1e-6, abs=1e-9)


@given(device_s=st.floats(1e-6, 1e-3), flush_s=st.floats(2e-5, 1e-3), count=st.integers(1, 40))
def test_a_flush_is_outside_the_events(device_s, flush_s, count):
    with pytest.MonkeyPatch.context() as patch:
        cuda = put(patch)
        flushed = []

        def flush():
            flushed.append(cuda.launch(flush_s))

        step = TimerStep(lambda: cuda.launch(device_s), 5e-6, device_s, flush)
        samples = event_samples(step, count)
        assert samples == pytest.approx([device_s] * count, rel=1e-6, abs=1e-9)
        assert len(flushed) == count


@dataclass
class FakeClock:
    """Writes down when it was asked."""

    cuda: FakeCuda
    source: str = "probe"

    def __post_init__(self):
        self.text = []

    def begin(self):
        self.text.append(("begin", self.cuda.host_s, self.cuda.drained_s))

    def end(self):
        self.text.append(("end", self.cuda.host_s, self.cuda.drained_s))

    def mhz(self):
        return 1500.0


@given(count=st.integers(1, 600), host_s=st.floats(1e-6, 1e-3), by_host=st.booleans())
def test_the_clock_is_read_once_before_and_once_after_a_window(count, host_s, by_host):
    with pytest.MonkeyPatch.context() as patch:
        cuda = put(patch)
        clock, calls = FakeClock(cuda), []

        def call():
            assert len(clock.text) == 1
            calls.append(cuda.launch(1e-4, host_s))

        (host_samples if by_host else event_samples)(TimerStep(call, host_s, 1e-4), count, clock)
        assert [kind for kind, *_ in clock.text] == ["begin", "end"]
        assert len(calls) == count
        _, host, drained = clock.text[1]
        assert by_host or host <= drained, "asked while the last sample was still under way"
        assert cuda.host_s >= cuda.drained_s, "the window was waited for"


def test_reading_the_clock_costs_no_further_wait(cuda):
    step = TimerStep(lambda: cuda.launch(1e-4), 5e-6, 1e-4)
    event_samples(step, 300)
    without, cuda.waits = cuda.waits, 0
    event_samples(step, 300, FakeClock(cuda))
    assert cuda.waits <= without


def test_a_window_may_begin_while_another_runs_and_the_stream_never_rests(cuda):
    """Two windows under way: each tells its own samples, and no pause lies between them."""
    step = TimerStep(lambda: cuda.launch(1e-4), 5e-6, 1e-4)
    begun = [begin_samples(step, 100), begin_samples(step, 100)]
    rested = cuda.drained_s
    for _ in range(5):
        result = begun.pop(0).seconds()
        assert cuda.host_s < cuda.drained_s, "the next one is still running"
        begun.append(begin_samples(step, 100))
        assert result == pytest.approx([1e-4] * 100)
    busy = 5 * 100 * 1e-4
    assert cuda.drained_s - rested == pytest.approx(busy, rel=0.02), "but for the short holds"


def test_a_hold_is_as_long_as_asked_and_never_longer_than_the_longest(cuda):
    for wanted in (1e-4, 3e-3, 1.0):
        delay(wanted)
        assert cuda.holds[-1] == pytest.approx(min(wanted, LONGEST_DELAY_S), rel=1e-3)


@given(
    step=st.integers(1, 1000),
    counts=st.lists(st.integers(1, 5000), min_size=2, max_size=50, unique=True),
)
def test_the_step_of_a_timer_is_the_least_difference_of_what_it_tells(step, counts):
    gap = min(b - a for a, b in pairwise(sorted(counts)))
    result = least_step_s([step * 1e-9 * n for n in (*counts, counts[0])])
    assert result == pytest.approx(step * 1e-9 * gap, rel=1e-6)


def test_a_timer_that_stands_still_is_an_error():
    with pytest.raises(ValueError, match="stands still"):
        least_step_s([8.672e-6] * 9)


# Sets, graphs and windows


@given(problem=st.integers(1, 1 << 34), span=st.integers(1, 1 << 30))
def test_sets_span_the_caches_or_the_cache_is_flushed(problem, span):
    count, flushed = set_count(problem, span)
    assert count >= 2
    if flushed:
        assert count == FLUSHED_SETS and problem * MOST_SETS < span
    else:
        assert count * problem >= span and count <= MOST_SETS
        assert count == 2 or (count - 1) * problem < span, "no more sets than needed"


@given(
    span=st.floats(1e-4, 1e-2), call=st.floats(1e-7, 1e-3), sets=st.integers(1, 256),
    flushed=st.booleans(),
)  # fmt: skip
def test_a_graph_is_long_enough_and_never_finds_its_own_data(span, call, sets, flushed):
    calls = graph_calls(span, call, sets, flushed)
    assert calls >= 1
    if flushed:
        assert calls <= sets, "each set at most once after a flush"
        assert calls in (sets, MOST_CALLS) or calls * max(call, 1e-6) >= span * 0.999
    else:
        assert calls % sets == 0, "each replay begins where the one before began"
        assert calls * max(call, 1e-6) >= span * 0.999 or calls >= MOST_CALLS
        assert (calls - sets) * max(call, 1e-6) <= span * 1.001, "and no longer"


TOY = Spec(
    name="toy", inputs={"x": Tensor("N")}, outputs={"y": Tensor("N")}, reference=lambda x: x,
    flops=lambda N: N, check=[], bench=[],
)  # fmt: skip


def sets_of(cache_bytes, elements, **rules):
    """A Bench on memory of the CPU, with a flush that does nothing but know its size."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("workbench.measurement.bench.Flush", lambda size: SimpleNamespace(size=size))
        patch.setattr(
            "workbench.measurement.bench.inputs.make", lambda *wanted: (torch.zeros(elements),)
        )
        return Bench(TOY, {"N": elements}, "fp32", cache_bytes, 0.0, Protocol(**rules))


@given(elements=st.integers(1, 4096), caches=st.floats(0.01, 200.0), multiple=st.floats(1.0, 4.0))
def test_a_bench_spans_as_many_caches_as_the_protocol_says(elements, caches, multiple):
    """Three by default. Inputs and outputs count: 8 bytes an element here."""
    cache = max(1, int(caches * 8 * elements))
    for rules in ({}, {"cache_multiple": multiple}):
        bench = sets_of(cache, elements, **rules)
        span = rules.get("cache_multiple", 3.0) * cache
        assert bench._working is not None
        if bench._flush is None:
            assert len(bench._sets) * 8 * elements >= span
            assert len(bench._sets) == 2 or (len(bench._sets) - 1) * 8 * elements < span
        else:
            assert bench._flush.size == cache and MOST_SETS * 8 * elements < span
        storages = {x.data_ptr() for one in bench._sets for x in one}
        assert len(storages) == len(bench._sets), "each set in memory of its own"


def test_sets_that_a_call_reads_a_part_of_span_the_caches_by_that_part():
    """Of 32 kB an eighth moves: eight times as many sets, of the two that were given."""
    given = (torch.zeros(4096),), (torch.ones(4096),)
    whole = Bench(TOY, {"N": 4096}, "fp32", 1 << 16, 0.0, Protocol(), pair=given)
    part = Bench(TOY, {"N": 4096}, "fp32", 1 << 16, 0.0, Protocol(), pair=given, moved_bytes=4096)
    assert (len(whole._sets), len(part._sets)) == (6, 48)
    assert part.first_inputs is given[0] and part.second_inputs is given[1]
    assert [float(x[0]) for (x,) in part._sets] == [0.0, 1.0] * 24


@pytest.mark.parametrize("cache_bytes", [1 << 10, 1 << 20], ids=["rotates", "flushes"])
def test_cold_calls_walk_over_all_sets_and_hot_ones_stay_on_one(cache_bytes):
    bench = sets_of(cache_bytes, 64)
    impl = SimpleNamespace(mutates=(), backend="triton")
    cold, hot = bench.calls(impl, None, "cold"), bench.calls(impl, None, "hot")
    assert cold.sets is bench._sets and len(cold.sets) > 1
    assert len(hot.sets) == 1 and hot.sets[0] is bench.first_inputs
    assert (cold.flush is not None) == (cache_bytes == 1 << 20) and hot.flush is None


def rotation(cuda, sets=3, device_s=2e-4, flush=None):
    """A Rotation whose calls take this long on the fake GPU; `used` are the sets it walked."""
    used = []

    def impl(x, config):
        cuda.launch(device_s)
        used.append(x)
        return object()

    return Rotation(impl, None, [(i,) for i in range(sets)], flush), used


@given(sets=st.integers(1, 9), calls=st.integers(1, 40))
def test_calls_walk_over_the_sets_and_a_flush_comes_before_each_round(sets, calls):
    with pytest.MonkeyPatch.context() as patch:
        cuda = put(patch)
        flushed = []
        turning, used = rotation(cuda, sets, flush=lambda: flushed.append(len(used)))
        event_samples(turning.step(2e-4), calls)
        assert used == [i % sets for i in range(calls)]
        assert flushed == list(range(0, calls, sets))
        assert len(turning.outputs) == min(sets, calls), "as many outputs live as sets"


@given(seconds=st.floats(0.0, 0.05), least=st.integers(1, 40), device_s=st.floats(6.4e-5, 5e-3))
def test_a_window_lasts_as_long_as_asked(seconds, least, device_s):
    with pytest.MonkeyPatch.context() as patch:
        cuda = put(patch)
        turning, used = rotation(cuda, device_s=device_s)
        timed = BenchTime("events", turning, 1, device_s, FakeClock(cuda))
        window = timed.window(seconds, least)
        count = len(window.samples_s)
        assert count == len(used) == max(least, math.ceil(seconds / device_s))
        assert window.samples_s == pytest.approx([device_s] * count, rel=1e-6)
        assert window.sm_mhz == 1500.0
        assert BenchTime("events", turning, 1, device_s).window(0.0).sm_mhz is None


@given(calls=st.integers(1, 500), flush_s=st.none() | st.floats(1e-5, 1e-3))
def test_a_graph_tells_the_time_of_one_call_and_counts_its_flush(calls, flush_s):
    with pytest.MonkeyPatch.context() as patch:
        cuda = put(patch)
        flush = None
        if flush_s is not None:

            class Flush:
                seconds = flush_s

                def __call__(self):
                    cuda.launch(flush_s)

            flush = Flush()
        turning, _ = rotation(cuda, flush=flush)
        graph = SimpleNamespace(replay=lambda: cuda.launch(calls * 3e-6, 2e-5))
        timed = BenchTime("graph", turning, calls, 3e-6, graph=graph)
        started = cuda.host_s
        window = timed.window(0.02, least=2)
        assert window.samples_s == pytest.approx([3e-6] * len(window.samples_s), rel=1e-6)
        assert timed.sample_s == pytest.approx(calls * 3e-6 + (flush_s or 0))
        assume(calls * 3e-6 > 1e-4)  # else the host lags, and it is held back for that
        assert cuda.host_s - started < 0.02 + 2 * timed.sample_s + 2e-3


@pytest.mark.parametrize("waiting", [False, True])
def test_each_call_gets_the_clock_that_suits_it(cuda, waiting):
    bench = bench_of(Protocol())
    for device_s, method in ((4e-3, "events"), (1e-5, "graph")):
        captured = SimpleNamespace(capture=lambda calls, call: FakeGraph(cuda, calls * 1e-5))
        bench._graphs = captured
        turning, used = rotation(cuda, device_s=device_s)
        if waiting:
            impl = turning.impl
            turning.impl = lambda x, config, impl=impl: (impl(x, config), cuda.synchronize())
        estimate = bench.first_time(turning)
        timed = bench.choose_method(turning, estimate)
        assert len(used) <= (7 if device_s > 1e-3 else 16), (
            "a first pass pays for few calls beside its samples"
        )
        assert timed.method == ("host" if waiting else method)
        if not waiting:
            assert timed.window(4e-3).samples_s[0] == pytest.approx(device_s, rel=1e-3)
            assert turning.host_s == pytest.approx(7e-6, rel=1e-3)


@given(
    host_s=st.floats(1e-6, 3e-4), device_s=st.floats(1e-6, 5e-3), allocation_s=st.floats(0, 1e-3),
    waiting=st.booleans(),
)  # fmt: skip
def test_the_host_time_to_issue_a_call_is_learnt_without_holds_events_and_allocations(
    host_s, device_s, allocation_s, waiting
):
    """Memory of an output is allocated at the first two calls on a set."""
    with pytest.MonkeyPatch.context() as patch:
        cuda, calls = put(patch), []

        def impl(x, config):
            calls.append(x)
            cuda.launch(device_s, host_s + (allocation_s if calls.count(x) < 3 else 0.0))
            if waiting:
                cuda.synchronize()
            return object()

        turning = Rotation(impl, None, [(n,) for n in range(9)])
        bench = bench_of(Protocol())
        first = bench.first_time(turning)
        assert turning._turn == len({*calls}), "the rotation goes on where it was"
        timed = bench.choose_method(turning, first) if turning.issued_s is None else None
        if timed is not None:  # long: learnt while it is timed
            assert timed.method == "events" and first >= Protocol().graph_below_s
            timed.samples(200)
        expected = host_s + device_s if waiting else host_s
        assert turning.issued_s == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_what_the_host_times_itself_is_not_watched(cuda):
    turning, _ = rotation(cuda)
    host_samples(turning.step(), 3)
    BenchTime("host", turning, 1, 2e-4).samples(3)
    assert turning.issued_s is None


@pytest.mark.parametrize(("copies", "slower", "method"), [
    (3, 1.5, "events"), (3, 1.05, "graph"), (0, 1.5, "graph"),
])  # fmt: skip
def test_what_the_driver_copies_otherwise_in_a_graph_is_timed_by_events(
    cuda, copies, slower, method
):
    bench = bench_of(Protocol())
    bench._graphs = SimpleNamespace(
        capture=lambda calls, call: FakeGraph(cuda, calls * slower * 1e-4, copies)
    )
    turning, _ = rotation(cuda, device_s=1e-4)
    timed = bench.choose_method(turning, bench.first_time(turning))
    assert timed.method == method
    text = stats.median(timed.window(4e-3).samples_s)
    assert text == pytest.approx(1e-4 if method == "events" else slower * 1e-4, rel=1e-3)


@dataclass
class FakeGraph:
    cuda: FakeCuda
    device_s: float
    copies: int = 0

    def replay(self):
        self.cuda.launch(self.device_s)


@given(before=st.integers(0, 300), calls=st.integers(1, 300))
def test_results_of_timed_calls_are_those_that_the_graph_writes(before, calls):
    """Of calls before the capture an output may be there still, which no replay writes."""
    with pytest.MonkeyPatch.context() as patch:
        cuda = put(patch)
        patch.setattr("workbench.measurement.bench.torch.cuda.synchronize", lambda: None)
        patch.setattr("workbench.measurement.bench.check_outputs",
                      lambda outputs, expected: torch.equal(outputs[0], expected))  # fmt: skip
        bench, made = sets_of(1 << 20, 4), []
        for at, (x,) in enumerate(bench._sets):
            x.fill_(at % 2)

        def impl(x, config):
            made.append((x, 2 * x))
            return made[-1][1]

        def capture(calls, call):
            del made[:]
            for _ in range(calls):
                call()
            return SimpleNamespace(copies=0, replay=lambda: [y.copy_(2 * x) for x, y in made])

        bench._graphs = SimpleNamespace(capture=capture)
        turning = Rotation(impl, None, bench._sets)
        for _ in range(before):
            turning.call()
        timed = bench._capture_graph(turning, calls, 1e-6)
        patch.setattr(stream, "torch", SimpleNamespace(cuda=cuda))
        checked = bench.check_calls(timed, [torch.zeros(4), torch.full((4,), 2.0)])
        assert [right for _, right in checked] == [True] * min(3, calls)
        first = before % len(bench._sets)
        assert [problem for problem, _ in checked] == [
            (first + n) % len(bench._sets) % 2 for n in range(len(checked))
        ]


def test_a_call_that_no_graph_can_hold_is_timed_by_the_host(cuda):
    bench = bench_of(Protocol())

    def capture(calls, call):
        call()
        raise graphs.NotCapturable("no graph can hold it: it asks the host")

    bench._graphs = SimpleNamespace(capture=capture)
    turning, _ = rotation(cuda, device_s=1e-5)
    timed = bench.choose_method(turning, 1e-5)
    assert timed.method == "host" and not turning.outputs


def test_a_screen_may_ask_for_a_shorter_graph(cuda):
    wanted = []
    bench = bench_of(Protocol())
    bench._graphs = SimpleNamespace(
        capture=lambda calls, call: wanted.append(calls) or FakeGraph(cuda, calls * 1e-5)
    )
    turning, _ = rotation(cuda, sets=1, device_s=1e-5)
    for graph_s in (None, 3e-4, 1e-9):
        bench.choose_method(turning, 1e-5, graph_s)
    assert wanted == [100, 30, 4], "1 ms, 0.3 ms, and 1000 steps of the timer"


# Calls that change their inputs


@dataclass
class FakeCopies:
    """Copies that are told apart by their number alone."""

    cuda: FakeCuda
    log: list
    count: int = 1
    seconds: float = 3e-6
    host_s: float = 4e-6

    def restore(self):
        self.cuda.launch(self.seconds, self.host_s)
        self.log.append("restore")

    def call_inputs(self, inputs, turn):
        return (*inputs, turn % self.count)


class FakeFlush:
    def __init__(self, cuda, log, seconds=9e-5):
        self.cuda, self.log, self.seconds = cuda, log, seconds

    def __call__(self):
        self.cuda.launch(self.seconds)
        self.log.append("flush")


class FakeGraphs:
    """What is captured is run again at each replay, on the device alone."""

    def __init__(self, cuda, log):
        self.cuda, self.log, self.captured = cuda, log, []

    def capture(self, calls, call):
        self.captured.append(calls)
        recorded, real = [], self.cuda.launch
        self.cuda.launch = lambda device_s, host_s=0.0: recorded.append(device_s)
        before = len(self.log)
        for _ in range(calls):
            call()
        text = self.log[before:]
        del self.log[before:]
        self.cuda.launch = real

        def replay():
            self.log.append(tuple(text))
            self.cuda.launch(sum(recorded), 2e-5)

        return SimpleNamespace(replay=replay)


def changing(cuda, device_s, cold=True, waiting=False, sets=3):
    """A bench and a Rotation of calls that change an input, and what happened in order."""
    log = []
    bench = bench_of(Protocol())
    bench._graphs = FakeGraphs(cuda, log)
    bench._flush = None
    copies = {n: FakeCopies(cuda, log, n) for n in (1, *range(2, 2100))}
    bench._working = SimpleNamespace(copies=lambda names, wanted: copies[wanted])
    bench._sets = [(i,) for i in range(sets)]
    bench._restore_flush = FakeFlush(cuda, log)

    def launch(x, which, config):
        log.append(("call", which))
        cuda.launch(device_s)
        if waiting:
            cuda.synchronize()

    class Changing:
        mutates = ("x",)

        def __call__(self, x, which, config):
            launch(x, which, config)

    return bench, bench.calls(Changing(), None, "cold" if cold else "hot"), log


@given(device_s=st.floats(2.1e-3, 5e-3), count=st.integers(1, 20), cold=st.booleans())
def test_a_restore_precedes_flush_and_events_of_every_call(device_s, count, cold):
    with pytest.MonkeyPatch.context() as patch:
        cuda = put(patch)
        bench, turning, log = changing(cuda, device_s, cold)
        timed = bench.choose_method(turning, bench.first_time(turning))
        assert timed.method == "events"
        assert log[:2] == ["restore", ("call", 0)], "the first call too finds what it expects"
        log.clear()
        samples = timed.samples(count)
        assert samples == pytest.approx([device_s] * count, rel=1e-6)
        assert log == ["restore", *(["flush"] if cold else []), ("call", 0)] * count
        before = 3e-6 + (9e-5 if cold else 0.0)
        assert timed.sample_s == pytest.approx(timed.estimate_s + before)


@given(device_s=st.floats(2e-6, 1e-3), sets=st.integers(1, 9))
def test_each_call_of_a_cold_graph_has_a_copy_that_was_restored_before_the_replay(device_s, sets):
    with pytest.MonkeyPatch.context() as patch:
        cuda = put(patch)
        bench, turning, log = changing(cuda, device_s, sets=sets)
        timed = bench.choose_method(turning, bench.first_time(turning))
        assert timed.method == "graph" and timed.restores is None
        assert timed.calls * device_s >= 0.999e-3, "as long as any graph, with few sets too"
        log.clear()
        samples = timed.samples(3)
        assert samples == pytest.approx([device_s] * 3, rel=1e-6)
        assert log[0::3] == ["restore"] * 3 and log[1::3] == ["flush"] * 3
        for calls in log[2::3]:
            copies = [which for _, which in calls]
            assert len(calls) == timed.calls == len(set(copies)) == timed.rotation.copies.count
            assert "restore" not in calls


@given(device_s=st.floats(2e-6, 1e-3))
def test_hot_the_time_of_the_restores_in_the_graph_is_taken_off(device_s):
    with pytest.MonkeyPatch.context() as patch:
        cuda = put(patch)
        bench, turning, log = changing(cuda, device_s, cold=False)
        timed = bench.choose_method(turning, bench.first_time(turning))
        assert timed.method == "graph" and bench._graphs.captured == [timed.calls] * 2
        log.clear()
        samples = timed.samples(4)
        assert samples == pytest.approx([device_s] * 4, rel=1e-6)
        whole, restores = ("restore", ("call", 0)) * timed.calls, ("restore",) * timed.calls
        assert log == [whole, restores] * 4, "in turn"
        assert timed.sample_s == pytest.approx(timed.calls * (timed.estimate_s + 6e-6))


@given(device_s=st.floats(1e-5, 1e-3), cold=st.booleans())
def test_by_the_host_clock_a_restore_is_outside(device_s, cold):
    with pytest.MonkeyPatch.context() as patch:
        cuda = put(patch)
        bench, turning, log = changing(cuda, device_s, cold, waiting=True)
        timed = bench.choose_method(turning, bench.first_time(turning))
        assert timed.method == "host"
        log.clear()
        assert timed.samples(3) == pytest.approx([5e-6 + device_s] * 3, rel=1e-6)
        assert log == ["restore", *(["flush"] if cold else []), ("call", 0)] * 3


def test_an_impl_that_changes_nothing_is_neither_restored_nor_flushed_for_others(cuda):
    bench, turning, _ = changing(cuda, 1e-3)
    other = bench.calls(SimpleNamespace(mutates=(), backend="triton"), None)
    assert turning.copies is not None and turning.flush is bench._restore_flush
    assert other.copies is None and other.flush is None


# Results


def bench_of(protocol, bound_s=0.0, hot_bound_s=0.0):
    """A Bench of no problem."""
    bench = object.__new__(Bench)
    bench.protocol, bench.bound_s, bench.clock = protocol, bound_s, None
    bench.hot_bound_s = hot_bound_s
    bench._flush = bench._graphs = None
    return bench


TIMED = SimpleNamespace(method="events", rotation=SimpleNamespace(issued_s=4e-6))
windows_ = st.lists(
    st.builds(
        Window,
        st.lists(st.floats(1e-6, 2e-6), min_size=1, max_size=9).map(tuple),
        st.none() | st.floats(1400, 1900),
    ),
    min_size=1,
    max_size=12,
)


@given(windows=windows_)
def test_a_result_holds_every_sample_with_its_window_and_clock(windows):
    result = bench_of(Protocol()).summarise(TIMED, windows, "cold", "sustained", power_w=690.0)
    samples = [s for w in windows for s in w.samples_s]
    clocks = [w.sm_mhz for w in windows if w.sm_mhz is not None]
    assert result.samples_s == tuple(samples)
    assert result.window_sizes == tuple(len(w.samples_s) for w in windows)
    assert sum(result.window_sizes) == len(samples) and result.rounds == len(windows)
    assert result.window_mhz == (tuple(clocks) if len(clocks) == len(windows) else ())
    assert result.sm_mhz == (stats.median(clocks) if clocks else None)
    assert result.low_s <= result.median_s == stats.median(samples) <= result.high_s
    assert (result.state, result.regime, result.left_out) == ("sustained", "cold", 0)
    assert result.power_w == 690.0 and result.protocol == Protocol().id
    assert result.host_s == 4e-6


@given(windows=windows_)
def test_the_sensor_speaks_where_no_window_knows_its_clock(windows):
    silent = [replace(w, sm_mhz=None) for w in windows]
    result = bench_of(Protocol()).summarise(TIMED, silent, "cold", "boost", sm_mhz=1234.0)
    assert result.sm_mhz == 1234.0 and result.window_mhz == ()
    text = bench_of(Protocol()).summarise(
        TIMED, [replace(w, sm_mhz=1500.0) for w in windows], "cold", "boost", sm_mhz=1234.0
    )
    assert text.sm_mhz == 1500.0


@given(slow=st.integers(1, 5), share=st.floats(0.3, 0.74))
def test_throttled_windows_are_left_out_and_counted(slow, share):
    right = [Window((1e-5, 1e-5), 1500.0)] * 12
    bad = [Window((2e-5, 2e-5, 2e-5), 1500.0 * share)] * slow
    result = bench_of(Protocol()).summarise(TIMED, [*bad, *right], "cold", "sustained")
    assert result.left_out == 3 * slow and result.median_s == 1e-5
    assert result.window_sizes == (2,) * 12 and result.window_mhz == (1500.0,) * 12


def test_no_time_beats_the_floor_of_its_regime():
    windows = [Window((9.6e-6,) * 5)]
    bench = bench_of(Protocol(), bound_s=1e-5, hot_bound_s=5e-6)
    with pytest.raises(Impossible, match=r"4\.80 us is below"):
        bench.summarise(TIMED, [Window((4.8e-6,) * 5)], "hot")
    with pytest.raises(Impossible, match=r"9\.60 us is below"):
        bench.summarise(TIMED, windows, "cold")
    assert bench.summarise(TIMED, windows, "hot").median_s == 9.6e-6
    assert bench.summarise(TIMED, [Window((9.8e-6,) * 5)], "cold").median_s == 9.8e-6


def test_a_final_that_stayed_wide_is_not_stable_and_a_screen_is_not_asked():
    wide, narrow = (
        [Window((1e-3 * (1 + spread * (i % 7)),) * 20) for i in range(28)]
        for spread in (0.1, 0.0001)
    )
    bench = bench_of(Protocol())
    assert bench.summarise(TIMED, wide, "cold", "boost").stable
    assert not bench.summarise(TIMED, wide, "cold", "sustained").stable
    assert bench.summarise(TIMED, narrow, "cold", "sustained").stable
