"""What only a GPU executes, with a GPU that records what it is asked: each number by hand."""

import ctypes
import itertools
import math
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from workbench.device.hardware import device_named
from workbench.measurement import (
    bench,
    function_timer,
    graphs,
    handover,
    preflight,
    probe,
    stream,
    transfers,
    worker,
)
from workbench.measurement.candidate import Candidate, Refusal, Timed
from workbench.measurement.correctness import Checked
from workbench.measurement.energy import EnergyError
from workbench.measurement.function_timer import GpuTimer
from workbench.measurement.graphs import NotJoined
from workbench.measurement.probe import Ticks, window_mhz
from workbench.measurement.protocol import Protocol
from workbench.measurement.rounds import Window
from workbench.measurement.worker import MeasureJob
from workbench.spec import Spec, SpecFault, Tensor

pytestmark = pytest.mark.unit
H200 = device_named("h200")


# Sets of a user's function


@pytest.mark.parametrize(
    ("held", "owners", "free", "count", "flushed"),
    [
        (0, 1, 1000, 1, True),  # its inputs are there already
        (-8, 1, 1000, 1, True),
        (100, 1, 1000, 3, False),  # three caches of 100 bytes
        (99, 1, 1000, 4, False),
        (100, 2, 1000, 6, False),  # half of each set; half of the memory has room for 5 more
        (100, 2, 999, 5, True),
        (99, 2, 10_000, 7, False),  # 49 bytes of each
        (1, 1, 10_000, 256, True),  # 300 are more than 128
    ],
)
def test_sets_span_three_caches_or_half_of_the_memory(
    monkeypatch, held, owners, free, count, flushed
):
    allocated = iter((50, 50 + held))
    cuda = SimpleNamespace(
        memory_allocated=lambda: next(allocated), mem_get_info=lambda: (free, 10**9)
    )
    monkeypatch.setattr(function_timer, "torch", SimpleNamespace(cuda=cuda))
    timer = GpuTimer.__new__(GpuTimer)
    timer.rules, timer._bench = Protocol(), SimpleNamespace(cache_bytes=100)
    sets, flush = timer.sets(lambda number: {"set": number}, owners)
    assert [each["set"] for each in sets] == list(range(count)) and flush is flushed


def test_results_of_functions_agree_within_torch_s_tolerance_in_any_layout():
    timer, x = GpuTimer.__new__(GpuTimer), torch.tensor([[1.0, math.nan], [3.0, 4.0]])
    assert timer.difference(x, x.T.contiguous().T) is None
    assert timer.difference((x, x), (x, x)) is None
    assert "3.0" not in (text := timer.difference(x, x + 1)) and "not close" in text
    assert timer.difference(x, None) and timer.difference((x, x), x)


def test_calls_are_flushed_by_one_flush_and_their_bound_is_that_of_the_problem(monkeypatch):
    made = []
    monkeypatch.setattr(function_timer, "Flush", lambda size: made.append(size) or f"flush {size}")
    timer = GpuTimer.__new__(GpuTimer)
    forgotten, seen = [], []
    timer._flush = None
    timer._bench = SimpleNamespace(
        cache_bytes=7, bound_s=0.0, first_time=lambda rotation: 2e-5,
        choose_method=lambda rotation, first: SimpleNamespace(rotation=rotation, first=first),
        summarise=lambda *given, **also: seen.append((given, also)) or "time",
    )  # fmt: skip
    calls = [lambda: "a", lambda: "b"]
    entrants = [timer.entrant(calls, flushed) for flushed in (False, True, True)]
    assert [e.rotation.flush for e in entrants] == [None, "flush 7", "flush 7"] and made == [7]
    rotation = entrants[0].rotation
    rotation.call(), rotation.call()
    assert rotation.outputs == {0: ("a",), 1: ("b",)} and entrants[0].first == 2e-5
    looked = []
    monkeypatch.setattr(bench, "other_streams_s", lambda: 0.0)
    monkeypatch.setattr(bench.Bench, "_runs_early", lambda self, each: looked.append(each))
    bench.Bench.__new__(bench.Bench)._refuse_other_streams(rotation, 1e-3)
    assert looked == [rotation]  # a function of the user's may compute on another stream as well
    one = SimpleNamespace(rotation=SimpleNamespace(forget=lambda: forgotten.append(1)))
    assert timer.summarise(one, ["window"], 3e-6, {"power_w": 5.0}) == "time"
    assert timer._bench.bound_s == 3e-6 and forgotten == [1]
    assert seen == [((one, ["window"], "cold", "sustained"), {"power_w": 5.0})]


# Work on other streams


@pytest.mark.parametrize(
    ("seconds", "busy", "calls", "raises"),
    [
        (1e-3, [0.0], 1, False),
        (9e-4, [0.0], 2, False),
        (1e-4, [0.0], 10, False),
        (1e-5, [0.0], 20, False),
        (0.0, [0.0], 20, False),
        (1e-3, [2.49e-4], 1, False),
        (1e-3, [2.5e-4, 0.0], 2, False),  # a quarter of a millisecond is work
        (1e-3, [1.0, 1.0, 0.0], 3, False),  # the host was interrupted twice
        (1e-3, [1.0, 1.0, 1.0], 3, True),
    ],
)
def test_work_of_another_stream_is_looked_for_three_times(
    monkeypatch, seconds, busy, calls, raises
):
    left, called = iter(busy), []
    monkeypatch.setattr(bench, "other_streams_s", lambda: next(left))
    rotation = SimpleNamespace(restored_call=lambda: called.append(1), waits=True, copies=None)
    one = bench.Bench.__new__(bench.Bench)
    with pytest.raises(NotJoined) if raises else nullcontext():
        one._refuse_other_streams(rotation, seconds)
    assert len(called) == calls and not list(left)


@pytest.mark.parametrize(
    ("waits", "copies", "traced", "seen", "tries", "raises"),
    [
        (False, None, False, [True], 1, True),
        (False, None, False, [False], 1, False),
        (False, None, False, [None, True], 2, True),  # the first hold ended too early
        (False, None, False, [None, False], 2, False),
        (False, None, False, [None, None], 2, False),  # nothing is proved
        (True, None, False, [], 0, False),
        (False, "copies", False, [], 0, False),
        (False, None, True, [], 0, False),
    ],
)
def test_a_call_that_writes_while_its_stream_is_held_is_refused(
    monkeypatch, waits, copies, traced, seen, tries, raises
):
    results, forgotten = iter(seen), []

    class Memory:
        is_written = "written"

        def __init__(self, run_aside):
            assert run_aside is bench.run_beside

        def __enter__(self):
            return self

        def __exit__(self, *error):
            return None

    monkeypatch.setattr(bench, "Poisoned", Memory)
    monkeypatch.setattr(bench, "other_streams_s", lambda: 0.0)
    monkeypatch.setattr(bench, "runs_while_held", lambda *given: next(results))
    rotation = SimpleNamespace(
        restored_call=lambda: None, call=lambda: None, host_s=1e-5, is_traced=traced, waits=waits,
        copies=copies, forget=lambda: forgotten.append(1),
    )  # fmt: skip
    with pytest.raises(NotJoined) if raises else nullcontext():
        bench.Bench.__new__(bench.Bench)._refuse_other_streams(rotation, 1e-3)
    assert len(forgotten) == tries and not list(results)


# The self-test, and what tells two GPUs of one model apart


@pytest.fixture
def benches(monkeypatch):
    """A bench whose samples are what is written below, and what it was asked."""
    asked = []

    class Bench:
        def __init__(self, spec, sizes, dtype, cache_bytes, bound, protocol):
            self.spec, self.sizes = spec, sizes
            asked.append(("bench", spec.name, dict(sizes), dtype, cache_bytes, bound))

        def calls(self, impl, config, regime="cold"):
            asked.append(("calls", impl.name, regime))
            return "rotation"

        def first_time(self, rotation):
            return 1e-5

        def choose_method(self, rotation, first):
            return self

        def window(self, seconds, least):
            asked.append(("window", seconds, least))
            n = sum(one[0] == "window" for one in asked)
            return SimpleNamespace(samples_s=(1e-3 * n, 2e-3 * n, 9e-3 * n))

    monkeypatch.setattr("workbench.measurement.bench.Bench", Bench)
    monkeypatch.setattr("workbench.measurement.stream.timer_step_s", lambda: 32e-9)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (16 << 10, 1 << 30))
    return asked


def test_the_self_test_takes_the_best_of_eight_windows_of_a_copy_and_one_of_a_launch(benches):
    """1024 elements of bf16 are read and written, 4096 bytes, in 2 ms; the ninth window's median is
    18 ms."""
    found = preflight.self_test(5, Protocol())
    assert found == {
        "resolution": 32e-9,
        "dram": pytest.approx(4096 / 2e-3),
        "launch": pytest.approx(18e-3),
    }
    assert [one for one in benches if one[0] != "window"] == [
        ("bench", "copy", {"N": 1024}, "bf16", 5, 0.0), ("calls", "blocks", "cold"),
        ("bench", "copy", {"N": 1}, "bf16", 5, 0.0), ("calls", "blocks", "hot"),
    ]  # fmt: skip
    assert [one for one in benches if one[0] == "window"] == [("window", 0.02, 10)] * 9


def test_references_are_the_copy_and_a_product_that_was_warm(benches):
    """The eleventh window is the product's second; its median is 22 ms."""
    found = preflight.references(5, Protocol())
    flops = 2 * 4096**3
    assert found == {"copy": pytest.approx(4096 / 2e-3), "product": pytest.approx(flops / 22e-3)}
    assert benches[-4:] == [
        ("bench", "matmul", {"M": 4096, "N": 4096, "K": 4096}, "bf16", 5, 0.0),
        ("calls", "torch", "cold"), ("window", 0.5, 10), ("window", 0.5, 10),
    ]  # fmt: skip


# The probe of the clock


class Event:
    """Notes when it is recorded and awaited."""

    def __init__(self, log):
        self.log = log

    def record(self):
        self.log.append("record")

    def synchronize(self):
        self.log.append("wait")


@pytest.fixture
def clock(monkeypatch):
    """Returns the probe of a GPU with this backend: each run adds its ticks to what is written."""
    log, state = [], SimpleNamespace(ns=0, log=None, mhz=1500.0)

    def made(hip):
        tick_ns = 10 if hip else 1

        def launch(slot, SPAN, MOST, HIP, num_warps):
            log.append((SPAN, MOST, HIP, num_warps))
            start = state.ns // tick_ns
            cycles = int(state.ns * state.mhz / 1e3)
            state.ns += 30_000
            more = int(30_000 * state.mhz / 1e3)
            end = state.ns // tick_ns
            values = [start, cycles, end, cycles + more, 3, 0, 0, 0]
            slot.copy_(torch.tensor(values, dtype=torch.int64))

        def zeros(*shape, dtype, device="", pin_memory=False):
            return torch.zeros(*shape, dtype=dtype)

        fake = SimpleNamespace(
            version=SimpleNamespace(hip="6" if hip else None), zeros=zeros, int64=torch.int64,
            cuda=SimpleNamespace(Event=lambda: Event(log)),
        )  # fmt: skip
        monkeypatch.setattr(probe, "torch", fake)
        monkeypatch.setattr(probe, "read_clock", {(1,): launch})
        return probe.Probe()

    state.made, state.log = made, log
    return state


@pytest.mark.parametrize(("hip", "span"), [(False, 30_000), (True, 3_000)])
def test_the_probe_reads_windows_in_the_order_in_which_they_ended(clock, hip, span):
    one = clock.made(hip)
    assert clock.log == [(span, 100_000, hip, 1)] * 2 + ["record", "wait"]
    del clock.log[:]
    for mhz in (1000.0, 1200.0):  # two may be pending
        one.begin()
        clock.ns, clock.mhz = 0, mhz
        one.begin()
        one.end()
    assert clock.log == [(span, 100_000, hip, 1)] * 3 + ["record"] + [
        (span, 100_000, hip, 1)] * 3 + ["record"]  # fmt: skip
    assert [one.mhz(), one.mhz()] == [pytest.approx(1000.0), pytest.approx(1200.0)]
    for mhz in (1300.0, 1400.0, 1500.0):  # the first of three is dropped
        clock.ns, clock.mhz = 0, mhz
        one.begin()
        one.end()
    assert [one.mhz(), one.mhz()] == [pytest.approx(1400.0), pytest.approx(1500.0)]


def test_a_probe_whose_counter_stands_still_is_not_used(clock):
    clock.mhz = 0.0
    with pytest.raises(RuntimeError, match="stands still"):
        clock.made(False)


@pytest.mark.parametrize(
    ("before", "after", "mhz"),
    [
        # 2000 cycles in 1000 ns of each, 4000 in 2000 between them
        ((0, 0, 1000, 2000, 5), (3000, 6000, 4000, 8000, 5), 2000.0),
        ((0, 0, 1000, 2000, 0), (3000, 6000, 4000, 8000, 0), 2000.0),
        # 4400 in 2000 between them: a tenth more is the most
        ((0, 0, 1000, 2000, 5), (3000, 6400, 4000, 8400, 5), 2200.0),
        ((0, 0, 1000, 2000, 5), (3000, 6402, 4000, 8402, 5), 2000.0),
        ((0, 0, 1000, 2000, 5), (3000, 5600, 4000, 7600, 5), 1800.0),
        ((0, 0, 1000, 2000, 5), (3000, 5598, 4000, 7598, 5), 2000.0),
        # of 1000 and 2000 within the two runs, 1800 between them
        ((0, 0, 1000, 1000, 5), (3000, 4600, 4000, 6600, 5), 1800.0),
        # two cores, or unknown ones: the mean of 2000 and 1000
        ((0, 0, 1000, 2000, 5), (3000, 6000, 4000, 7000, 6), 1500.0),
        ((0, 0, 1000, 2000, -1), (3000, 6400, 4000, 8400, -1), 2000.0),
        # of one that stood still nothing is used
        ((0, 0, 0, 2000, 5), (3000, 6000, 4000, 7000, 5), 1000.0),
        ((0, 0, 1000, 0, 5), (3000, 6000, 4000, 7000, 5), 1000.0),
        ((0, 0, 0, 0, 5), (3000, 6000, 3000, 7000, 5), None),
    ],
)
def test_the_clock_of_a_window_is_that_of_one_core_or_the_mean_of_two(before, after, mhz):
    found = window_mhz(Ticks(*before), Ticks(*after), 1.0)
    assert found == (None if mhz is None else pytest.approx(mhz))


@pytest.mark.parametrize(
    ("interpreted", "available", "hip", "arch", "can"),
    [
        (False, True, None, "", True),
        (True, True, None, "", False),
        (False, False, None, "", False),
        (False, True, "6", "gfx942:sramecc+", True),
        (False, True, "6", "gfx1100", False),
    ],
)
def test_the_probe_runs_on_nvidia_s_and_on_gfx9(
    monkeypatch, interpreted, available, hip, arch, can
):
    cuda = SimpleNamespace(
        is_available=lambda: available, current_device=lambda: 4,
        get_device_properties=lambda index: SimpleNamespace(gcnArchName=arch),
        current_stream=lambda: SimpleNamespace(synchronize=lambda: waited.append(1)),
    )  # fmt: skip
    waited = []
    fake = SimpleNamespace(cuda=cuda, version=SimpleNamespace(hip=hip))
    monkeypatch.setattr(probe, "torch", fake)
    monkeypatch.setattr(probe, "INTERPRETED", interpreted)
    assert probe.can_probe() is can
    monkeypatch.setattr(probe, "Probe", lambda: "probe")
    sensors = SimpleNamespace(source="nvml")
    assert (probe.sm_clock(sensors) == "probe") is can
    monkeypatch.setattr(probe, "Probe", lambda: 1 / 0)
    assert probe.sm_clock(sensors).source == "nvml" and len(waited) == can


# The driver's graphs


class Driver:
    """A driver whose graph has these nodes; notes what is called."""

    def __init__(self, *kinds):
        self.kinds, self.log = kinds, []

    def cuGraphGetNodes(self, graph, nodes, count):
        if nodes is not None:
            nodes[:] = range(1, len(self.kinds) + 1)
        count._obj.value = len(self.kinds)
        return 0

    def cuGraphNodeGetType(self, node, kind):
        kind._obj.value = self.kinds[node.value - 1]
        return 0

    def cuGraphKernelNodeGetParams_v2(self, node, params):
        to = params._obj
        to.func, to.kernel = (7, None) if node.value % 2 else (None, 9)
        to.gridx, to.gridy, to.gridz = node.value, 2, 1
        to.blockx, to.blocky, to.blockz, to.shared = 128, 1, 1, 4096
        return 0

    def cuFuncGetName(self, name, function):
        name._obj.value = b"function%d" % function.value
        return 0

    def cuKernelGetName(self, name, kernel):
        name._obj.value = b"kernel%d" % kernel.value
        return 0

    def cuGraphDestroy(self, graph):
        self.log.append("destroy")
        return 0

    def cuStreamBeginCapture_v2(self, stream, mode):
        self.log.append(f"begin {mode}")
        return 0

    def cuStreamEndCapture(self, stream, captured):
        self.log.append("end")
        return 0

    def cuGraphInstantiateWithFlags(self, ready, captured, flags):
        self.log.append(f"instantiate {flags.value}")
        ready._obj.value = 5
        return 0

    def cuGraphExecDestroy(self, ready):
        return 0

    def cuGetErrorString(self, error, words):
        words._obj.value = None if error == 2 else b"not so"
        return 0

    def refused(self):
        return 904

    def silent(self):
        return 2


def driver(monkeypatch, *kinds):
    made = Driver(*kinds)
    monkeypatch.setattr(graphs, "_driver", lambda: made)
    monkeypatch.setattr(graphs, "_stream", lambda: SimpleNamespace(cuda_stream=3))
    cuda = SimpleNamespace(
        use_mem_pool=lambda pool: nullcontext(), stream=lambda stream: nullcontext(),
        MemPool=lambda: "pool", CUDAGraph=object,
    )  # fmt: skip
    monkeypatch.setattr(graphs, "torch", SimpleNamespace(cuda=cuda, version=None))
    return made


def test_nodes_of_a_graph_are_counted_and_named(monkeypatch):
    graph = ctypes.c_void_p(1)
    driver(monkeypatch, 0, 1, 0, 2, 4, 1)
    assert graphs._nodes(graph, *graphs.COPIES) == 3 and graphs._nodes(graph, 0) == 2
    assert graphs.node_names(graph) == [
        "function7 [1, 2, 1, 128, 1, 1] 4096", "graph node of type 1",
        "function7 [3, 2, 1, 128, 1, 1] 4096", "graph node of type 2", "graph node of type 4",
        "graph node of type 1",
    ]  # fmt: skip
    driver(monkeypatch, 1, 0)
    assert graphs.node_names(graph)[1] == "kernel9 [2, 2, 1, 128, 1, 1] 4096"
    driver(monkeypatch)
    assert graphs._nodes(graph, 0) == 0 and graphs.node_names(graph) == []


def test_a_driver_that_refuses_is_quoted(monkeypatch):
    driver(monkeypatch)
    with pytest.raises(RuntimeError, match=r"refused: not so \(CUDA error 904\)"):
        graphs._ask("refused")
    with pytest.raises(RuntimeError, match=r"silent: unknown \(CUDA error 2\)"):
        graphs._ask("silent")


def test_a_capture_holds_as_many_calls_as_it_was_asked_and_leaves_none_open(monkeypatch):
    made, called = driver(monkeypatch, 0, 2), []
    captured = graphs.DriverGraphs()
    graph = captured.capture(3, lambda: called.append(1))
    assert len(called) == 3 and graph.copies == 1
    assert made.log == ["begin 1", "end", "instantiate 0", "destroy"]
    del made.log[:]
    assert captured.kernels(lambda: called.append(1)) == 1 and len(called) == 4
    assert made.log == ["begin 1", "end", "destroy"]
    del made.log[:]
    assert captured.launches(lambda: 1 / 0) is None and captured.kernels(lambda: 1 / 0) is None
    assert made.log == ["begin 1", "end", "destroy"] * 2
    with pytest.raises(graphs.NotCapturable, match="no graph can hold it: division by zero"):
        captured.capture(1, lambda: 1 / 0)
    with pytest.raises(NotJoined):
        captured.capture(1, lambda: made_error("unjoined (CUDA error 904)"))
    drawing = SimpleNamespace(capture=lambda calls, call: ("torch", calls))
    monkeypatch.setattr(graphs, "TorchGraphs", lambda: drawing)
    assert captured.capture(2, lambda: made_error("no CUDA generator here")) == ("torch", 2)


def made_error(text):
    raise RuntimeError(text)


# Streams


class Host:
    """A host and one stream in virtual time: a launch takes 1 us, a cycle 0.5 ns."""

    def __init__(self):
        self.host_s = self.drained_s = 0.0
        self.held = []

    def launch(self, device_s):
        self.host_s += 1e-6
        self.drained_s = max(self.host_s, self.drained_s) + device_s

    def _sleep(self, cycles):
        self.held.append(cycles)
        self.launch(cycles * 0.5e-9)

    def synchronize(self):
        self.host_s = max(self.host_s, self.drained_s)

    def current_stream(self):
        return self

    def Event(self, enable_timing=False):
        event = SimpleNamespace(at_s=0.0)
        event.record = lambda: setattr(event, "at_s", max(self.host_s, self.drained_s))
        event.query = lambda: self.host_s >= event.at_s
        event.elapsed_time = lambda end: 1e3 * (end.at_s - event.at_s)
        return event


@pytest.fixture
def host(monkeypatch):
    made = Host()
    filled = []

    def rand(count, device):
        filled.append((count, device))
        return SimpleNamespace(mul_=lambda by: filled.append(by) or made.launch(3e-5))

    fake = SimpleNamespace(
        cuda=made, rand=rand, zeros=lambda shape, device: "sum",
        sum=lambda junk, dim, out: filled.append((dim, out)) or made.launch(1e-5),
    )  # fmt: skip
    monkeypatch.setattr(stream, "torch", fake)
    monkeypatch.setattr(stream, "time", SimpleNamespace(perf_counter=lambda: made.host_s))
    for kept in (stream.marks, stream._plain_mark, stream._delay_rate, stream.timer_step_s):
        kept.cache_clear()
    yield SimpleNamespace(cuda=made, filled=filled)
    for kept in (stream.marks, stream._plain_mark, stream._delay_rate, stream.timer_step_s):
        kept.cache_clear()


def test_a_delay_is_in_cycles_of_the_fastest_trial_and_twenty_milliseconds_at_most(host):
    stream.delay(1e-3)  # 2e9 cycles a second, less what the events take
    assert host.cuda.held[0] == 1 and set(host.cuda.held[1:-1]) == {200_000}
    assert len(host.cuda.held) == 12 and host.cuda.held[-1] == pytest.approx(2e6, rel=0.02)
    stream.delay(7.0)
    assert host.cuda.held[-1] == pytest.approx(4e7, rel=0.02)


def test_the_timer_s_step_is_that_between_pauses_of_37_cycles(host):
    """Pauses grow by 18.5 ns; where two of them read as one, the step is not that of the timer."""
    assert stream.timer_step_s() == pytest.approx(18.5e-9, rel=0.02)
    pauses = [cycles for cycles in host.cuda.held if cycles < 200_000][1:]
    assert pauses == [1 + 37 * n for n in range(256)]


def test_a_flush_writes_twice_the_cache_and_knows_its_seconds(host):
    flush = stream.Flush(1000)  # 500 elements of 4 bytes
    assert host.filled[0] == (500, "cuda") and flush.seconds == pytest.approx(4e-5, rel=0.1)
    assert host.filled[1:] == [-1.0, (0, "sum")] * 2
    assert host.cuda.held[-1] == pytest.approx(2e-4 * 2e9, rel=0.02)  # held while it is timed


def test_windows_that_are_pending_have_events_of_their_own(monkeypatch):
    """Of five samples two fit in the queue: a wait after each batch but the last."""
    used, waits = [], []
    event = SimpleNamespace(
        record=lambda: None, synchronize=lambda: None, elapsed_time=lambda end: 2.0
    )
    monkeypatch.setattr(stream, "_BANKS", itertools.cycle((0, 256)))
    monkeypatch.setattr(stream, "marks", lambda index: used.append(index) or (event, event))
    monkeypatch.setattr(stream, "delay", lambda seconds: None)
    monkeypatch.setattr(stream, "wait", lambda: waits.append(len(used)))
    step = stream.TimerStep(lambda: None, 1e-6, 1e-5)
    for first in (0, 256):
        assert stream.begin_samples(step, 3).seconds() == [2e-3] * 3
        assert used[-3:] == [first, first + 1, first + 2] and waits == []
    monkeypatch.setattr(stream, "QUEUED", 2)
    del used[:]
    assert stream.begin_samples(step, 5).seconds() == [2e-3] * 5
    assert used == [0, 1, 256, 257, 0] and waits == [2, 4]


@pytest.mark.parametrize(
    ("takes_s", "seen", "result"), [(1e-4, True, True), (1e-4, False, False), (1.0, True, None)]
)
def test_a_hold_that_ended_first_proves_nothing(host, takes_s, seen, result):
    def look():
        host.cuda.host_s += takes_s
        return seen

    assert stream.runs_while_held(lambda: host.cuda.launch(1e-5), look, 1e-3) is result
    assert host.cuda.held[-1] == pytest.approx((2e-3 + 4e-3) * 2e9, rel=0.02)
    assert host.cuda.host_s >= host.cuda.drained_s


def test_what_another_stream_does_is_the_time_that_the_device_takes_longer(monkeypatch, host):
    host.cuda.launch(5e-4)
    real = host.cuda.synchronize

    def synchronize():
        real()
        host.cuda.host_s += 3e-4 if waited else 0.0
        waited.append(1)

    waited = []
    monkeypatch.setattr(host.cuda, "synchronize", synchronize)
    assert stream.other_streams_s() == pytest.approx(3e-4)


# Inputs that are handed to another process


def test_inputs_of_one_layout_and_place_share_memory_and_no_others(monkeypatch):
    monkeypatch.setattr(handover, "_places", {})
    first = handover._place_input(0, torch.ones(2, 3))
    assert first.tolist() == [[1.0] * 3] * 2
    again = handover._place_input(0, torch.full((2, 3), 2.0))
    assert again is first and first.tolist() == [[2.0] * 3] * 2
    others = [(1, torch.ones(2, 3)), (0, torch.ones(3, 2)), (0, torch.ones(2, 3).half()),
              (0, torch.ones(3, 2).T), (0, torch.ones(1, 3).expand(2, 3))]  # fmt: skip
    for index, x in others:
        assert handover._place_input(index, x) is x
    wide = torch.ones(1, 3).expand(1, 3)  # one row of stride 0 shares nothing
    alike = torch.ones(1, 3).as_strided((1, 3), (0, 1))
    assert handover._place_input(0, alike) is alike and handover._place_input(0, wide) is wide
    assert handover._place_input(0, torch.zeros(3).as_strided((1, 3), (0, 1))) is alike


def test_threads_and_children_that_a_launch_leaves_are_counted(tmp_path, monkeypatch):
    for thread, children in (("1", "11 12 "), ("2", "13"), ("3", "")):
        (tmp_path / thread).mkdir()
        (tmp_path / thread / "children").write_text(children)
    monkeypatch.setattr(handover, "Path", lambda path: tmp_path)
    threads, children = handover._running()
    assert children == 3 and threads >= 1
    same = (threads, 3)
    assert handover._left_behind(same) is None and handover._left_behind((threads + 1, 4)) is None
    assert "a thread running" in handover._left_behind((threads - 1, 3)).reason
    assert "a process running" in handover._left_behind((threads, 2)).reason


def test_copies_to_and_from_the_host_have_each_kind_and_size(monkeypatch):
    begun, made = [], []

    def of(direction, pinned, sent):
        made.append((direction, pinned, len(sent), sent.dtype))
        return SimpleNamespace(begin=lambda seconds, least: begun.append((seconds, least)))

    monkeypatch.setattr(transfers, "SIZES", (64, 256))
    monkeypatch.setattr(transfers, "_Copy", SimpleNamespace(create=of))
    found = transfers._entrants.__wrapped__()
    kinds = [(d, p) for p in (True, False) for d in ("h2d", "d2h")]
    assert list(found) == [(d, p, size) for size in (64, 256) for d, p in kinds]
    assert made == [(d, p, size, torch.uint8) for size in (64, 256) for d, p in kinds]
    assert begun == [(0.0, 2)] * 8
    assert transfers.Copied("h2d", True, 1, None, True).name == "h2d_pinned"
    assert transfers.Copied("d2h", False, 1, None, True).name == "d2h_pageable"


# The tasks of the measuring process


class Asked:
    """A bench that notes what it is asked, and whose calls take 10 us."""

    def __init__(self, first_s=1e-5, launches=("kernel [1]",), impossible=0):
        self.first_s, self.names, self.impossible = first_s, launches, impossible
        self.log = []
        self.second_inputs = "second"

    def calls(self, impl, config, regime="cold"):
        self.log.append(("calls", impl.name, regime))
        return SimpleNamespace(impl=impl)

    def first_time(self, rotation):
        return self.first_s

    def launches(self, rotation):
        return None if self.names is None else list(self.names)

    def choose_method(self, rotation, estimate, graph_s=None):
        self.log.append(("timed", estimate, graph_s))
        return SimpleNamespace(calls=4, estimate_s=estimate, method="graph", window=self.window)

    def window(self, seconds, least):
        self.log.append(("window", seconds, least))
        return Window((1e-5, 3e-5))

    def summarise(self, timed, windows, regime, state="boost", **also):
        if self.impossible:
            self.impossible -= 1
            raise bench.Impossible("too fast")
        return SimpleNamespace(windows=windows, regime=regime, state=state, also=also)


@pytest.fixture
def task(monkeypatch):
    """Returns the state of a process with this bench; a check passes with an error of 0.5."""
    spec = Spec("k", {"x": Tensor("N")}, {"y": Tensor("N")}, None, lambda N: 0, [], [])
    spec.impl(name="one")(lambda x: x)

    def made(asked):
        job = MeasureJob("k", {"N": 1}, "bf16", Protocol(), seed=8)
        state = worker._State(job, spec, asked, H200, None, {0: "first", 1: "second"})
        monkeypatch.setattr(worker, "_now", state)
        monkeypatch.setattr(worker, "_snapshot", None)
        return state

    monkeypatch.setattr(
        "workbench.measurement.correctness.check", lambda *given: Checked(0.5, bits="b")
    )
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    return made


ONE = replace(Candidate.create("one", {}), key="key")


@pytest.mark.parametrize(
    ("first_s", "best_s", "window"),
    [
        (1e-5, None, (3e-3, 5)),
        (1e-3, None, (3e-3, 5)),
        (3e-5, 1e-5, (3e-3, 5)),  # three times the best is not given up
        (3.01e-5, 1e-5, (0.0, 1)),
        (20e-6, 1e-6, (3e-3, 5)),  # and no call of 20 us
        (20.1e-6, 1e-6, (0.0, 1)),
    ],
)
def test_a_first_pass_gives_up_what_is_three_times_as_slow(task, first_s, best_s, window):
    asked = Asked(first_s)
    state = task(asked)
    result, spent = worker.first_pass(ONE, best_s, "kernel")
    assert isinstance(result, Timed)
    assert (result.error, result.bits, result.seed, result.check) == (0.5, "b", 8, "gpu")
    assert asked.log[-2:] == [("timed", first_s, 2e-4), ("window", *window)]
    assert state.launches == {"key": ["kernel [1]"]}
    assert spent.timing_s == pytest.approx(4 * 4e-5) and 0 < spent.check <= spent.total


def test_an_impossible_time_is_taken_again_once(task):
    asked = Asked(impossible=1)
    task(asked)
    result, spent = worker.first_pass(ONE, None)
    assert isinstance(result, Timed) and spent.timing_s == pytest.approx(2 * 4 * 4e-5)
    task(Asked(impossible=2))
    result, _ = worker.first_pass(ONE, None)
    assert result == Refusal("measure", "too fast", rule="floor")


@pytest.mark.parametrize(
    ("launches", "kernel", "launched"),
    [
        (("a [1]", "mine [1]"), "mine", None),
        (("a [1]",), None, None),
        (None, "mine", None),
        ((" [1]",), "mine", None),  # the driver tells no names
        (("[1]",), "mine", None),
        (("a [1]", "b [2]", "a [3]"), "mine", "a, b"),
        ((), "mine", "nothing"),
        ((f"{'n' * 90} [1]",), "mine", "n" * 80),
    ],
)
def test_a_call_launches_what_was_compiled(task, launches, kernel, launched):
    state = task(Asked(launches=launches))
    result, _ = worker.first_pass(ONE, None, kernel)
    if launched is None:
        assert isinstance(result, Timed)
    else:
        assert (result.stage, result.rule) == ("check", "launches")
        assert result.reason == (f"a call launches {launched} on its own stream, and not the "
                                 "compiled kernel `mine`")  # fmt: skip
    assert state.launches == ({} if launches is None else {"key": list(launches)})


def test_a_time_has_the_bytes_that_the_reference_moves(task):
    state = task(Asked())
    state.launches["leader"], state.moved_bytes = ["kernel [1]"], 3
    for result, _ in (worker.first_pass(ONE, None), worker.duplicate(ONE, "leader")):
        assert isinstance(result, Timed) and result.moved_bytes == 3


@pytest.mark.parametrize(
    ("launches", "is_same"), [(("mine [1]",), True), (("mine [2]",), False), (None, False)]
)
def test_a_duplicate_is_one_that_launches_what_its_leader_did(task, launches, is_same):
    state = task(Asked(launches=launches))
    state.launches["leader"] = ["mine [1]"]
    result, _ = worker.duplicate(ONE, "leader")
    assert (result == Timed(None, 0.5, "gpu", "b", 8)) is is_same
    assert is_same or result is None
    state.launches.clear()
    assert worker.duplicate(ONE, "leader")[0] is None


def test_a_candidate_that_is_wrong_has_no_time_in_any_task(task, monkeypatch):
    task(asked := Asked())
    monkeypatch.setattr(
        "workbench.measurement.correctness.check",
        lambda *given: Checked(3.0, wrong="it is 3 off", rule="values"),
    )
    wrong = Refusal("check", "it is 3 off", rule="values")
    assert worker.first_pass(ONE, None)[0] == worker.duplicate(ONE, "key")[0] == wrong
    assert worker.open_alone(ONE) == wrong and not asked.log
    monkeypatch.setattr(worker, "_snapshot", SimpleNamespace(replaced_function=lambda: "torch.sum"))
    poisoned = worker.first_pass(ONE, None)[0]
    assert (poisoned.is_poisoned, poisoned.rule) == (True, "functions")
    assert "the kernel's code replaced torch.sum" in poisoned.reason
    monkeypatch.setattr(worker, "_snapshot", SimpleNamespace(replaced_function=lambda: None))
    assert worker.first_pass(ONE, None)[0] == wrong


def test_the_second_check_is_on_the_second_inputs(task, monkeypatch):
    state, made, seen = task(Asked()), [], []
    monkeypatch.setattr(
        "workbench.measurement.correctness.PreparedProblem",
        SimpleNamespace(wrap=lambda *given: made.append(given) or "made"),
    )
    monkeypatch.setattr(
        "workbench.measurement.correctness.check",
        lambda impl, config, problem: seen.append(problem) or Checked(0.1),
    )
    del state.problems[1]
    assert worker._verify(ONE, 1) == worker._verify(ONE, 1) == Checked(0.1)
    assert made == [(state.spec, "bf16", "second", {"N": 1})] and seen == ["made", "made"]


def test_the_open_candidate_is_timed_in_the_windows_that_are_kept(task, monkeypatch):
    asked = Asked()
    state = task(asked)
    taken = iter(Window((n * 1e-5,)) for n in range(1, 4))
    begun = []

    def begin(seconds, least):
        begun.append((seconds, least))
        return SimpleNamespace(window=lambda: next(taken))

    for kept, expected in ((None, [1, 2, 3]), (2, [2, 3])):
        taken = iter(Window((n * 1e-5,)) for n in range(1, 4))
        monkeypatch.setattr(
            asked, "choose_method", lambda rotation, first: SimpleNamespace(begin=begin, calls=1)
        )
        monkeypatch.setattr(
            worker, "_checked_again", lambda candidate, entrant, first: (first, True)
        )
        assert worker.open_alone(ONE) is None
        assert [worker.window_alone(0.5, n).samples_s for n in (1, 2, 3)] == [
            (n * 1e-5,) for n in (1, 2, 3)
        ]
        result = worker.close_alone(kept)
        assert result.timing.windows == [Window((n * 1e-5,)) for n in expected]
        assert (result.timing.regime, result.timing.state) == ("cold", "sustained")
        assert state.alone is None and begun[-3:] == [(0.5, 1), (0.5, 2), (0.5, 3)]
    with pytest.raises(RuntimeError, match="no open candidate"):
        worker.close_alone()


@pytest.mark.parametrize(
    ("text", "asked"), [("Tried to allocate 2.50 GiB.", "2.50 GiB"), ("no", "memory")]
)
def test_memory_that_is_missing_is_said_in_numbers(monkeypatch, text, asked):
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (3 << 29, 80 << 30))
    said = worker._memory_sentence(text)
    assert f"allocate {asked}, where 1.5 of 80 GiB are free" in said


def test_libraries_with_the_same_imports_share_a_process():
    impls = [SimpleNamespace(name=name, imports=imports) for name, imports in
             (("a", ("x",)), ("b", ()), ("c", ("y",)), ("d", ("x",)), ("e", ("z",)))]  # fmt: skip
    assert worker.share_of(impls, 0, 2) == ["a", "d", "e"] and worker.share_of(impls, 1, 2) == ["c"]
    assert worker.share_of(impls, 0, 1) == ["a", "c", "d", "e"] and worker.share_of([], 0, 2) == []


def test_libraries_are_imported_and_compiled_by_share_with_those_that_fail_left_out(monkeypatch):
    imported, compiled, emptied = [], [], []

    def bring(name):
        imported.append(name)
        if name == "broken":
            raise ImportError(name)

    def library(name, *imports, fails=False, compiles=True):
        launch = SimpleNamespace()
        if compiles:
            launch.compile_only = lambda *given: 1 / 0 if fails else compiled.append((name, *given))
        return SimpleNamespace(name=name, imports=imports, launch=launch)

    impls = [library("a", "broken", "x"), library("b", "y", fails=True), library("c", "x", "x2"),
             library("d", "z", compiles=False), library("e", "x", "x2")]  # fmt: skip
    spec = SimpleNamespace(impls=impls)
    monkeypatch.setattr(worker, "import_module", bring)
    monkeypatch.setattr(worker, "load_kernel", lambda kernel: SimpleNamespace(spec=spec))
    monkeypatch.setattr(worker, "_set_precision", lambda: emptied.append("precision"))
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: emptied.append("empty"))
    monkeypatch.setattr(
        "workbench.measurement.inputs.make", lambda spec, *given: [given[1:]]
    )  # sizes left out
    job = MeasureJob("k", {"N": 1}, "bf16", Protocol(), seed=8)
    worker.import_libraries("k", 0, 2)
    assert imported == ["broken", "x", "x2"]
    worker.import_libraries("k", 1, 2)
    assert imported[3:] == ["y", "z"]
    worker.compile_libraries(job, 1, 2)  # b fails, and d has nothing to compile
    assert compiled == [] and emptied == ["precision", "empty"]
    worker.compile_libraries(job, 0, 2)
    assert compiled == [(name, ("bf16", "cuda", 8)) for name in "ace"]
    del emptied[:]
    impls[:] = [library("d", "z", compiles=False)]
    worker.compile_libraries(job, 0, 1)
    assert emptied == []


@pytest.mark.parametrize("task_name", ["references", "_prepare_state"])
def test_a_process_without_a_gpu_says_so(monkeypatch, task_name):
    monkeypatch.setattr(worker.hardware, "live", lambda: None)
    with pytest.raises(RuntimeError, match="torch sees no GPU in the measuring process"):
        getattr(worker, task_name)(*[None] * (task_name == "_prepare_state"))
    monkeypatch.setattr(worker.hardware, "live", lambda: H200)
    monkeypatch.setattr(worker.preflight, "references", lambda cache, rules: (cache, rules))
    assert worker.references() == (60 << 20, Protocol())


def test_the_floor_of_a_lookup_is_that_of_the_rows_that_its_own_inputs_name(monkeypatch):
    """On the CPU, in place of a GPU: the table is 4 MB, of which 3 of 16 rows are distinct."""
    values = {7: torch.arange(16) % 5, 8: torch.arange(16) % 3}
    spec = Spec(
        "lookup", {"table": Tensor("V D"), "at": Tensor("N", "int64")}, {"y": Tensor("N D")},
        reference=lambda table, at: table[at], flops=lambda V, D, N: 0, check=[], bench=[],
    )  # fmt: skip
    monkeypatch.setattr(worker.hardware, "live", lambda: H200)
    monkeypatch.setattr(worker, "load_kernel", lambda kernel: SimpleNamespace(spec=spec, load=int))
    monkeypatch.setattr(worker, "_set_precision", int)
    monkeypatch.setattr(torch.cuda, "empty_cache", int)
    monkeypatch.setattr(torch.cuda, "current_device", int)
    monkeypatch.setattr("workbench.measurement.clocks.Clocks", lambda device: None)
    monkeypatch.setattr("workbench.measurement.probe.sm_clock", lambda sensors: None)
    monkeypatch.setattr("workbench.measurement.bench.Flush", lambda size: size)
    monkeypatch.setattr(
        "workbench.measurement.inputs.make",
        lambda spec, sizes, dtype, device, seed: (torch.randn(8192, 128), values[seed]),
    )
    job = MeasureJob("lookup", {"V": 8192, "D": 128, "N": 16}, "fp32", Protocol(), 7)
    state = worker._prepare_state(job)
    least = 3 * 512 + 16 * 8 + 16 * 512
    assert state.bench.moved_bytes == least
    assert state.bench.bound_s == least / H200.dram.value
    assert state.bench.hot_bound_s == least / (2 * H200.cache_bandwidth.value)
    assert sorted(state.problems) == [0, 1] and state.bench._flush is not None
    assert torch.equal(state.problems[1].inputs[1], values[8])


class Raced:
    """An entrant that notes its name, whose windows are its times in turn."""

    def __init__(self, name, seconds, method="graph", calls=1):
        self.name, self.estimate_s, self.method, self.calls = name, seconds, method, calls


@pytest.fixture
def final(task, monkeypatch):
    """A final of entrants with these times; what it was asked, and the arguments of each time."""
    timed = []
    state = task(Asked())
    for name in "bcde":
        state.spec.impl(name=name)(lambda x: x)
    monkeypatch.setattr(worker, "_checked_again", lambda candidate, entrant, first: (first, True))
    monkeypatch.setattr(
        worker, "_add_time",
        lambda checked, entrant, windows, state, also, regime="cold", repeats=None:
            timed.append((entrant.name, state, also, repeats)) or entrant.name,
    )  # fmt: skip
    played = []

    def play(entrants, protocol=None, busiest=None, near=math.inf):
        played.append((list(entrants), protocol, near))
        times = {i: e.estimate_s for i, e in entrants.items()}
        return {i: [Window((s,))] for i, s in times.items()}, {"power_w": 7.0}

    monkeypatch.setattr(worker, "_play_rounds", play)
    return SimpleNamespace(state=state, timed=timed, played=played)


def test_a_final_asks_precision_of_who_is_near(final, monkeypatch):
    """Far is more than the share `far` behind the best; brief is more than `near` behind."""
    rules = replace(Protocol(), far=0.5, near=0.25, far_rounds=3)
    final.state.job = replace(final.state.job, protocol=rules)
    times = [4.0, 5.0, 5.5, 6.0, 6.5]
    entrants = {i: Raced(n, s) for i, (n, s) in enumerate(zip("abcde", times, strict=True))}
    monkeypatch.setattr(worker, "_entrants", lambda *given, only: (entrants, {}))
    candidates = [Candidate.create(n, {}) for n in ("one", *"bcde")]
    assert worker.final(candidates, times)[0] == list("abcde")
    near, far = final.played
    assert near == ([0, 1, 2, 3], None, 0.25)
    assert far[0] == [4] and far[1] == replace(rules, settle_s=0.0, rounds=3, most_rounds=3)
    assert [(name, also["brief"]) for name, _, also, _ in final.timed] == [
        ("a", False), ("b", False), ("c", True), ("d", True), ("e", True)]  # fmt: skip
    assert {(state, also["power_w"], repeats) for _, state, also, repeats in final.timed} == {
        ("sustained", 7.0, True)}  # fmt: skip


def test_a_comparison_names_the_side_that_cannot_be_timed(task, monkeypatch):
    task(Asked())
    one, two = Refusal("measure", "one"), Refusal("measure", "two")
    for failed, sides in (
        ({0: one}, (one, None)), ({1: one}, (one, None)), ({2: two}, (None, two)),
        ({0: one, 1: two, 2: two}, (one, two)),
    ):  # fmt: skip
        monkeypatch.setattr(worker, "_entrants", lambda *given, failed=failed: ({}, failed))
        result, _ = worker.compare(ONE, ONE, 0.01)
        assert (result.left, result.right, result.verdict) == (*sides, None)


def test_the_open_candidate_has_an_estimate_of_its_own(task, monkeypatch):
    state = task(asked := Asked(first_s=3e-5))
    assert worker.open_alone(ONE) is None and asked.log[-1] == ("timed", 3e-5, None)
    assert state.alone.check.error == 0.5
    refused = Refusal("measure", "no")
    monkeypatch.setattr(worker, "_entrants", lambda *given: ({}, {0: refused}))
    assert worker.open_alone(ONE) is refused


def test_energy_is_asked_of_all_that_can_be_timed(task, monkeypatch):
    task(Asked())
    log = []
    monkeypatch.setattr("torch.cuda.current_device", lambda: 4)
    monkeypatch.setattr("torch.cuda.synchronize", lambda: log.append("wait"))
    monkeypatch.setattr("workbench.measurement.energy_counter.open_counter", lambda index: index)
    entrants = {0: "a", 2: "c", 3: "d"}
    asked = []
    monkeypatch.setattr(
        worker, "_entrants",
        lambda candidates, estimates: asked.append(estimates)
        or (entrants, {1: Refusal("measure", "b fails")}),
    )  # fmt: skip

    def back_to_back(entrant):
        if entrant == "c":
            raise EnergyError("c changes its inputs")
        return f"load {entrant}"

    def energies(loads, counter, windows):
        log.append((loads, counter, windows))
        return {i: f"energy {load}" for i, load in loads.items()}

    monkeypatch.setattr("workbench.measurement.back_to_back.BackToBack", back_to_back)
    monkeypatch.setattr("workbench.measurement.energy.energies", energies)
    result, _ = worker.energy([ONE] * 4, 6)
    assert result == ["energy load a", "b fails", "c changes its inputs", "energy load d"]
    assert log == ["wait", ({0: "load a", 3: "load d"}, 4, 6)] and asked == [[0.0] * 4]

    def fails(*given):
        raise EnergyError("no counter") if len(log) == 3 else ValueError("a driver")

    monkeypatch.setattr("workbench.measurement.energy.energies", fails)
    result, _ = worker.energy([ONE] * 4, 6)
    assert result == ["no counter", "b fails", "c changes its inputs", "no counter"]
    result, _ = worker.energy([ONE] * 4, 6)
    assert result[0] == result[3] == "ValueError: a driver" and result[1] == "b fails"


def test_tasks_behind_one_that_poisons_the_gpu_have_no_time(task, monkeypatch):
    """The second of four ends everything; the results of the first stay."""
    parts = [SimpleNamespace(job=n, candidate=n, boost=False, regime="cold") for n in range(4)]
    tasks = worker._Interleaved(parts, {})
    poison = Refusal("launch", "lost", is_poisoned=True)
    plain = Refusal("check", "wrong")
    tasks.counts = {0: (1, 10), 3: (4, 40)}
    closed = []

    def close(i, taken):
        closed.append(i)
        return [plain, poison][i], None

    monkeypatch.setattr(tasks, "_close_task", close)
    results = tasks.close(None)
    assert [r.result for r in results] == [plain, poison, poison, poison] and closed == [0, 1]
    assert [(r.kernels, r.peak_bytes) for r in results] == [(1, 10), (None, None), (None, None),
                                                           (4, 40)]  # fmt: skip
    tasks.refusals = {1: plain}
    assert [r.result for r in tasks.refuse_tasks(poison)] == [poison, plain, poison, poison]


def test_tasks_are_opened_in_order_until_one_poisons_the_gpu(task, monkeypatch):
    state = task(Asked())
    parts = [SimpleNamespace(job=state.job, candidate=n, boost=n == 0, regime="cold")
             for n in range(5)]  # fmt: skip
    outcomes = [Checked(0.1), Refusal("check", "wrong"), ValueError("odd"),
                Refusal("launch", "lost", is_poisoned=True), Checked(0.2)]  # fmt: skip

    def checked(candidate, seed=0):
        if isinstance(outcomes[candidate], Exception):
            raise outcomes[candidate]
        return outcomes[candidate]

    monkeypatch.setattr(worker, "_verify", checked)
    monkeypatch.setattr(worker, "_entrant", lambda part: (f"entrant {part.candidate}", (2, 3)))
    key = (state.job.kernel, *state.job.sizes.items(), state.job.dtype)
    tasks = worker._Interleaved(parts, {key: state})
    assert tasks.open() is outcomes[3] and tasks.entrants == {0: "entrant 0"}
    assert tasks.counts == {0: (2, 3)} and list(tasks.refusals) == [1, 2, 3]
    assert tasks.refusals[2] == Refusal("measure", "ValueError: odd")
    seen = []
    monkeypatch.setattr(worker, "_rest_windows", lambda entrants: seen.append(entrants) or "rested")
    monkeypatch.setattr(worker, "_play_rounds", lambda *given: seen.append(given) or ("rounds", {}))
    tasks.entrants = {0: Raced("a", 1e-5), 4: Raced("b", 3e-5)}
    assert tasks.take() == ("rounds", "rested", {})
    assert list(seen[0]) == [0] and seen[1][1:] == (state.job.protocol, tasks.entrants[4])


def test_the_heaviest_is_the_longest_that_a_graph_or_events_time():
    few = {0: Raced("a", 1e-5), 1: Raced("b", 3e-5), 2: Raced("c", 9e-5, "host")}
    assert worker._heaviest(few).name == "b" and worker._heaviest({}) is None
    assert worker._heaviest({2: few[2]}).name == "c"


def test_processes_that_come_while_entrants_play_are_counted(task, monkeypatch):
    """Two at first, then 1, 4 and 3: two more at the most."""
    state = task(Asked())
    seen = iter(([1, 2], [1], [1, 2, 3, 4], [1, 2, 3]))
    state.sensors = SimpleNamespace(
        processes=lambda: next(seen), read=lambda: "reading", summary=lambda some: {"read": some}
    )
    settled = []
    monkeypatch.setattr(
        worker.rounds, "settle", lambda entrant, protocol: settled.append(entrant.name)
    )

    def play(entrants, protocol, after_round, near):
        for _ in range(3):
            after_round()
        return {i: [Window((1e-3, 2e-3)), Window((3e-3,))] for i in entrants}

    monkeypatch.setattr(worker.rounds, "play", play)
    few = {0: Raced("a", 2e-5, calls=5), 1: Raced("b", 1e-5)}
    windows, also = worker._play_rounds(few)
    assert list(windows) == [0, 1] and settled == ["b"]
    assert also == {"read": ["reading"] * 3, "others_on_gpu": 2}
    assert state.durations.timing_s == pytest.approx(6 * 6e-3)
    assert worker._play_rounds({}) == ({}, {}) and worker._processes(
        SimpleNamespace(processes=lambda: None)) == 0  # fmt: skip


def test_memory_that_is_missing_is_given_back_first(task, monkeypatch):
    task(Asked())
    emptied = []
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: emptied.append(1))
    monkeypatch.setattr(worker, "_memory_sentence", lambda text: f"out: {text}")
    missing = type("OutOfMemoryError", (Exception,), {})("Tried")
    assert worker._error_refusal(missing, "launch") == Refusal("measure", "out: Tried")
    assert emptied == [1]
    assert worker._error_refusal(NotJoined("it runs on"), "launch") == Refusal(
        "check", "it runs on", rule="streams")  # fmt: skip
    with pytest.raises(SpecFault):
        worker._error_refusal(SpecFault("the reference"), "launch")


def test_a_call_of_the_host_s_clock_has_its_kernels_and_memory(task, monkeypatch):
    state = task(Asked())
    rotation = SimpleNamespace(
        peak_bytes=lambda: 7, waits=False, restored_call="call", step=lambda: "step",
        forget=lambda: log.append("forget"),
    )  # fmt: skip
    log = []
    state.bench = SimpleNamespace(
        calls=lambda impl, config, regime: log.append(regime) or rotation,
        first_time=lambda rotation: 2e-5, choose_method=lambda rotation, first: ("timed", first),
        clock="clock",
    )  # fmt: skip
    counting = SimpleNamespace(kernels=lambda call: 3)
    monkeypatch.setattr("workbench.measurement.graphs.graphs", lambda: counting)
    monkeypatch.setattr(
        "workbench.measurement.stream.host_samples", lambda step, count: [9e-5, 8e-5][:count]
    )
    part = worker.WorkerTask(state.job, ONE, "hot")
    assert worker._entrant(part) == (("timed", 2e-5), (3, 7)) and log == ["hot", "forget"]
    made, _ = worker._entrant(replace(part, clock="host"))
    assert (made.method, made.calls, made.estimate_s, made.clock) == ("host", 1, 8e-5, "clock")
    rotation.waits = True
    assert worker._entrant(part)[1] == (None, 7)


def test_the_seconds_of_a_task_are_by_activity(task, monkeypatch):
    state = task(Asked())
    now = iter(range(10))
    monkeypatch.setattr(worker.time, "perf_counter", lambda: float(next(now)))

    @worker.account_seconds
    def work(x):
        with worker._checking():
            pass
        with worker._checking():
            pass
        worker._took(SimpleNamespace(calls=3), [Window((0.5, 1.0)), Window((0.5,))])
        return x

    state.spent = worker.Spent(9.0, 9.0)
    assert work("result") == ("result", worker.Spent(check=2.0, timing_s=6.0, total=5.0))


def test_a_hot_time_follows_a_final_and_alternates_with_cold_calls(task, monkeypatch):
    state = task(asked := Asked())
    played = []

    def play(entrants, protocol=None):
        played.append((list(entrants), protocol))
        return {0: ["cold"], 1: ["hot"]}, {"power_w": 7.0}

    monkeypatch.setattr(worker, "_play_rounds", play)
    result, _ = worker.hot(ONE)
    assert [entry for entry in asked.log if entry[0] == "calls"] == [
        ("calls", "one", "cold"), ("calls", "one", "hot")]  # fmt: skip
    assert played == [([0, 1], replace(state.job.protocol, settle_s=0.0, rounds=12))]
    timing = result.timing
    assert (timing.windows, timing.regime, timing.state) == (["hot"], "hot", "sustained")
    assert timing.also == {"power_w": 7.0} and (result.error, result.check) == (0.0, "gpu")
