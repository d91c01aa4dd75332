"""What sensors and the probe say becomes a clock in MHz, and nothing where nobody says anything."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.measurement.clocks import REASONS, Clocks, Reading, SensorClock, reasons
from workbench.measurement.probe import Ticks, window_mhz

mhz = st.floats(300, 3000)
ns = st.integers(20_000, 60_000)


def run(at_ns, span_ns, clock_mhz, first=0, core=0):
    """What the probe would write, started at `at_ns`, the counter then at `first`."""
    return Ticks(at_ns, first, at_ns + span_ns, first + round(span_ns * clock_mhz / 1e3), core)


@given(at=st.integers(0, 10**15), span=ns, clock=mhz, first=st.integers(0, 2**60))
def test_cycles_over_time_are_the_clock(at, span, clock, first):
    assert run(at, span, clock, first).mhz(1) == pytest.approx(clock, rel=1e-3)


@given(span=ns, clock=mhz, tick=st.sampled_from([1, 10]))
def test_a_slower_timer_counts_fewer_ticks_for_the_same_clock(span, clock, tick):
    ticks = Ticks(0, 0, span // tick, round(span // tick * tick * clock / 1e3), -1)
    assert ticks.mhz(tick) == pytest.approx(clock, rel=1e-3)


@given(span=ns, clock=mhz)
def test_a_timer_or_a_counter_that_stands_still_tells_nothing(span, clock):
    still = Ticks(5, 7, 5, 7 + span, 0), Ticks(5, 7, 5 + span, 7, 0)
    assert all(ticks.mhz(1) is None for ticks in still)
    assert window_mhz(*still, 1) is None
    right = run(0, span, clock)
    assert window_mhz(right, still[0], 1) == window_mhz(still[1], right, 1) == right.mhz(1)


@given(
    clock=mhz,
    swing=st.floats(0.92, 1.08),
    lasted=st.integers(10**6, 10**8),
    first=st.integers(0, 99),
)
def test_on_one_core_the_whole_window_is_counted(clock, swing, lasted, first):
    before = run(0, 30_000, clock, first)
    inside = round(lasted * clock * swing / 1e3)
    after = run(30_000 + lasted, 30_000, clock, before.last + inside)
    assert window_mhz(before, after, 1) == pytest.approx(clock * swing, rel=1e-3)


@given(
    clock=mhz,
    slept=st.floats(0.0, 0.85),
    other=st.integers(1, 131),
    lasted=st.integers(10**6, 10**8),
)
def test_a_counter_that_slept_or_another_core_leaves_the_two_ends(clock, slept, other, lasted):
    before = run(0, 30_000, clock)
    inside = round(lasted * clock * slept / 1e3)
    sleepy = run(30_000 + lasted, 30_000, clock * 1.02, before.last + inside)
    elsewhere = run(30_000 + lasted, 30_000, clock * 1.02, 12345, core=other)
    unknown = run(30_000 + lasted, 30_000, clock * 1.02, before.last + inside, core=-1)
    for after in (sleepy, elsewhere, unknown):
        assert window_mhz(before, after, 1) == pytest.approx(clock * 1.01, rel=1e-3)


def test_the_summary_names_fields_of_a_measurement():
    readings = [Reading(1000.0, 40.0, throttle=("sync boost",))]
    readings.append(Reading(1200.0, 42.0, throttle=("power cap",)))
    readings.append(Reading(1100.0, 41.0, throttle=("power cap", "hardware thermal")))
    assert Clocks.summary(readings) == {
        "sm_mhz": 1100.0,
        "temperature_c": 41.0,
        "power_w": None,
        "throttle": ("hardware thermal", "power cap", "sync boost"),
    }
    assert set(Clocks.summary([]).values()) == {None, ()}


@given(st.sets(st.sampled_from(sorted(REASONS))), st.booleans())
def test_each_bit_has_its_name_and_an_idle_gpu_is_not_throttled(bits, idle):
    assert reasons(sum(bits) | idle) == tuple(n for b, n in REASONS.items() if b in bits)
    assert reasons(sum(bits) | 1 << 40)[-1] == hex(1 << 40)


# The libraries, as modules that stand in for them


class NoAnswer(Exception):
    pass


def refused(*_):
    raise NoAnswer


@pytest.fixture
def nvml(monkeypatch):
    """An NVML with one GPU, which is found by its UUID alone."""
    wanted = []
    library = ModuleType("pynvml")
    library.NVMLError = NoAnswer
    library.nvmlInit = lambda: None
    library.nvmlDeviceGetHandleByUUID = lambda uuid: wanted.append(uuid) or uuid
    library.nvmlDeviceGetClockInfo = lambda gpu, kind: {1: 1545}[kind]
    library.nvmlDeviceGetTemperature = lambda gpu, kind: {0: 61}[kind]
    library.nvmlDeviceGetPowerUsage = lambda gpu: 690_500
    library.nvmlDeviceGetCurrentClocksEventReasons = lambda gpu: 0x4
    library.nvmlDeviceGetComputeRunningProcesses = lambda gpu: [SimpleNamespace(pid=77)]
    monkeypatch.setitem(sys.modules, "pynvml", library)
    return library, wanted


def test_nvml_is_read_for_the_gpu_of_that_uuid(nvml):
    clocks = Clocks("GPU-one")
    assert nvml[1] == ["GPU-one"] and clocks.source == "nvml"
    assert clocks.read() == Reading(1545.0, 61.0, pytest.approx(690.5), ("power cap",))
    assert clocks.processes() == [77]


def test_what_one_sensor_refuses_is_missing_alone(nvml):
    library, _ = nvml
    library.nvmlDeviceGetPowerUsage = library.nvmlDeviceGetComputeRunningProcesses = refused
    library.nvmlDeviceGetCurrentClocksEventReasons = refused
    library.nvmlDeviceGetCurrentClocksThrottleReasons = lambda gpu: 0x41
    clocks = Clocks("GPU-one")
    assert clocks.read() == Reading(1545.0, 61.0, None, ("hardware thermal",))
    assert clocks.processes() is None


def test_without_a_library_nothing_is_read(monkeypatch, nvml):
    nvml[0].nvmlDeviceGetHandleByUUID = refused
    for _ in range(2):
        clocks = Clocks("GPU-gone")
        assert (clocks.source, clocks.read(), clocks.processes()) == ("none", Reading(), None)
        monkeypatch.setitem(sys.modules, "pynvml", None)  # as if not installed


def test_amdsmi_is_read_for_the_gpu_on_that_bus(monkeypatch):
    text = {"current_gfxclks": [2100, 2090, "N/A", 2110], "current_gfxclk": 132,
            "temperature_hotspot": 70, "current_socket_power": 748,
            "average_socket_power": 700, "throttle_status": "N/A"}  # fmt: skip
    library = ModuleType("amdsmi")
    library.AmdSmiException = NoAnswer
    library.amdsmi_init = lambda: None
    library.amdsmi_get_processor_handles = lambda: ["0000:0C:00.0", "0000:23:00.0"]
    library.amdsmi_get_gpu_device_bdf = lambda gpu: gpu
    library.amdsmi_get_gpu_metrics_info = lambda gpu: {"0000:23:00.0": text}[gpu]
    library.amdsmi_get_gpu_process_list = lambda gpu: [{"pid": 9}]
    monkeypatch.setitem(sys.modules, "amdsmi", library)
    torch = ModuleType("torch")
    torch.version = SimpleNamespace(hip="6.4")
    props = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x23, pci_device_id=0)
    torch.cuda = SimpleNamespace(get_device_properties=lambda index: props)
    monkeypatch.setitem(sys.modules, "torch", torch)
    clocks = Clocks(0)
    assert clocks.source == "amdsmi" and clocks.processes() == [9]
    assert clocks.read() == Reading(2100.0, 70.0, 748.0)
    text.update(current_gfxclks="N/A", current_socket_power="N/A", throttle_status=True)
    assert clocks.read() == Reading(132.0, 70.0, 700.0, ("throttled",))
    library.amdsmi_get_gpu_metrics_info = refused
    assert clocks.read() == Reading()


def test_the_sensor_is_read_while_the_samples_run_and_says_which_it_is(nvml):
    clock = SensorClock(Clocks("GPU-one"))
    clock.begin()
    assert clock.mhz() is None and clock.source == "nvml"
    clock.end()
    nvml[0].nvmlDeviceGetClockInfo = lambda gpu, kind: 345  # idle again
    assert clock.mhz() == 1545.0
