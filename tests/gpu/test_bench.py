"""The bench on the GPU that is here: methods agree, cold is cold, who waits is found out, and the
clock is a clock."""

import pytest
import torch

from workbench import catalog
from workbench.data import stats
from workbench.device import hardware
from workbench.measurement import preflight, stream
from workbench.measurement.bench import Bench, Rotation
from workbench.measurement.clocks import Clocks, SensorClock
from workbench.measurement.graphs import NotCapturable, graphs
from workbench.measurement.probe import Probe, can_probe, sm_clock
from workbench.measurement.protocol import Protocol

DEVICE = hardware.live()
if DEVICE is None:
    pytest.skip("torch sees no GPU here", allow_module_level=True)
CACHE = int(DEVICE.cache.value) if DEVICE.cache else 64 << 20
COPY = catalog.spec_of("copy")
BLOCKS = catalog.impl_of(COPY, "blocks")


@pytest.fixture(scope="module")
def clock():
    return sm_clock(Clocks(torch.cuda.current_device()))


def copies(count, clock=None, **rules):
    """A Bench of the copy kernel at this many elements, and its calls."""
    bench = Bench(COPY, {"N": count}, "bf16", CACHE, 0.0, Protocol(**rules), clock)
    return bench, bench.calls(BLOCKS, BLOCKS.config())


def median_of(timed, seconds=0.02):
    return stats.median(timed.window(seconds, least=10).samples_s)


@pytest.mark.alone
@pytest.mark.parametrize("megabytes", [40, 100])
def test_graphs_and_events_agree(megabytes):
    results = {}
    for method, below in (("graph", 1.0), ("events", 0.0)):
        bench, rotation = copies(megabytes << 19, graph_below_s=below)
        timed = bench.choose_method(rotation, bench.first_time(rotation))
        assert timed.method == method
        results[method] = median_of(timed)
    # beside a kernel of 20 us, what a pair of events adds still shows
    assert results["graph"] == pytest.approx(results["events"], rel=0.15, abs=4e-6)


@pytest.mark.alone
def test_a_graph_of_more_calls_tells_the_same_time():
    bench, rotation = copies(4 << 20)
    estimate = bench.first_time(rotation)
    short, long = (bench.choose_method(rotation, estimate, span) for span in (1e-3, 4e-3))
    assert long.calls > short.calls
    assert median_of(short) == pytest.approx(median_of(long), rel=0.05, abs=1e-7)


@pytest.mark.alone
def test_with_a_flush_a_small_problem_is_cold():
    bench, cold = copies(1 << 18)  # 1 MiB in and out: by itself it would stay in the cache
    assert cold.flush is not None
    hot = bench.calls(BLOCKS, BLOCKS.config(), "hot")
    times = [median_of(bench.choose_method(r, bench.first_time(r))) for r in (cold, hot)]
    assert times[0] > times[1] > 0


def test_the_flush_reads_and_writes_more_than_the_cache():
    flush = stream.Flush(CACHE)
    bytes_ = flush._junk.numel() * flush._junk.element_size()
    assert bytes_ >= 2 * CACHE
    if DEVICE.dram:  # written, which reads it too, then read
        assert flush.seconds > 2 * bytes_ / DEVICE.dram.value * 0.5
    before = flush._junk[:8].clone()
    flush()
    assert torch.equal(flush._junk[:8], -before) and before.unique().numel() > 1


def waits_by_item(x, config):
    return x + float(x.flatten()[0].item() > 1e30)


def waits_for_the_device(x, config):
    y = x * 2
    torch.cuda.synchronize()
    return y


def only_enqueues(x, config):
    return x * 2


@pytest.mark.parametrize(
    ("impl", "waits"),
    [(waits_by_item, True), (waits_for_the_device, True), (only_enqueues, False)],
)
def test_a_call_that_waits_is_timed_by_the_host_and_the_stream_lives_on(impl, waits):
    bench, _ = copies(1 << 20)
    sets = [(torch.ones(1 << 20, device="cuda"),) for _ in range(3)]
    rotation = Rotation(impl, None, sets)
    timed = bench.choose_method(rotation, bench.first_time(rotation))
    assert rotation.waits is waits and timed.method == ("host" if waits else "graph")
    assert median_of(timed) > 1e-6
    assert float((torch.ones(8, device="cuda") * 2).sum()) == 16


def test_what_no_graph_can_hold_is_timed_by_the_host_and_the_next_graph_works():
    bench, copying = copies(1 << 20)
    rotation = Rotation(waits_by_item, None, [(torch.ones(64, device="cuda"),)])
    assert bench.choose_method(rotation, 1e-5).method == "host", "its wait was not looked for"
    assert bench.choose_method(copying, bench.first_time(copying)).method == "graph"


def test_a_call_that_breaks_off_leaves_the_stream_usable():
    """And what it says is what went wrong, not that the capture failed."""
    created = graphs()
    with pytest.raises(NotCapturable, match="of its own"):
        created.capture(1, breaks_off)
    x = torch.zeros(4, device="cuda")
    created.capture(3, lambda: x.add_(1)).replay()
    assert x.tolist() == [3, 3, 3, 3]


def breaks_off():
    torch.ones(4, device="cuda")
    raise RuntimeError("an error of its own")


def test_what_a_graph_allocates_stays_its_own_after_its_maker_is_gone():
    x, kept = torch.ones(1 << 16, device="cuda"), []
    created = graphs()
    graph = created.capture(2, lambda: kept.append(x * 2))
    graph.replay()
    del created
    others = [torch.full((1 << 16,), -1.0, device="cuda") for _ in range(64)]
    graph.replay()
    stream.wait()
    assert all(bool((y == 2).all()) for y in kept)
    assert all(bool((y == -1).all()) for y in others)


@pytest.mark.alone
@pytest.mark.parametrize("below", [1.0, 0.0], ids=["graph", "events"])
def test_the_host_issues_a_plain_launch_in_microseconds(below):
    bench, rotation = copies(4 << 20, graph_below_s=below)
    timed = bench.choose_method(rotation, bench.first_time(rotation))
    result = bench.summarise(timed, [timed.window(2e-3)], "cold")
    assert timed.method == ("graph" if below else "events")
    assert 0.5e-6 < result.host_s < 1e-3


@pytest.mark.alone
def test_the_tenth_graph_of_a_process_takes_as_long_as_the_first():
    bench, rotation = copies(1 << 20)
    timed = [bench.choose_method(rotation, bench.first_time(rotation)) for _ in range(10)]
    first, last = (median_of(timed[i]) for i in (0, -1))
    assert last == pytest.approx(first, rel=0.04), "a graph has two states: see docs/facts.md"


@pytest.mark.alone
def test_the_probe_agrees_with_the_driver_and_counts_whole_windows(clock):
    if not can_probe():
        pytest.skip("this GPU has not both counters")
    assert clock.source == "probe"
    bench, rotation = copies(1 << 26, clock)
    timed = bench.choose_method(rotation, bench.first_time(rotation))
    timed.window(0.3)  # out of rest
    window = timed.window(0.1)
    sensor = SensorClock(Clocks(torch.cuda.current_device()))
    rotation.samples(50, timed.estimate_s)
    sensor.end()
    assert window.sm_mhz is not None and 100 < window.sm_mhz < 4000
    if (text := sensor.mhz()) is not None:
        assert window.sm_mhz == pytest.approx(text, rel=0.25)


@pytest.mark.alone
def test_the_probe_tells_the_cycles_of_a_hold(clock):
    """A hold counts cycles of the same clock: so many cycles in so many seconds."""
    if not can_probe() or torch.version.hip is not None:
        pytest.skip("its holds count another clock")
    probe = Probe()
    cycles = 20_000_000
    start, end = stream.marks(0)
    for _ in range(3):  # the last at a clock that has settled
        probe.begin()
        start.record()
        torch.cuda._sleep(cycles)
        end.record()
        probe.end()
        stream.wait()
    seconds = start.elapsed_time(end) * 1e-3
    assert probe.mhz() == pytest.approx(cycles / seconds / 1e6, rel=0.02)


@pytest.mark.alone
def test_the_self_test_is_physical():
    result = preflight.self_test(CACHE, Protocol())
    assert set(result) == {"dram", "launch", "resolution"}
    assert 1e-9 < result["resolution"] < 1e-5
    assert 1e-7 < result["launch"] < 2e-5
    if DEVICE.dram:
        assert 0.4 * DEVICE.dram.value < result["dram"] < 1.02 * DEVICE.dram.value


def test_a_result_of_a_live_window_carries_its_clock(clock):
    bench, rotation = copies(1 << 24, clock)
    timed = bench.choose_method(rotation, bench.first_time(rotation))
    windows = [timed.window(0.01) for _ in range(4)]
    result = bench.summarise(timed, windows, "cold", "boost")
    assert result.window_sizes == tuple(len(w.samples_s) for w in windows)
    if clock.source != "none":
        assert len(result.window_mhz) == 4 and result.cycles is not None
