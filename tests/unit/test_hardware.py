"""The device table is whole and sane, and a live GPU is never taken for another one."""

import math
import pickle
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.device import hardware
from workbench.device.hardware import DEVICES, Quantity, UnknownDevice, ceilings, device_named, live

every_device = pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)

KINDS = {"datasheet", "measured", "computed", "driver"}
DTYPES = {"fp32", "fp32_matrix", "tf32", "fp16", "bf16", "fp8", "int8"}


def quantities(device):
    fixed = [device.clock_hz, device.dram, device.cache, device.cache_bandwidth]
    return [q for q in (*fixed, *device.peaks.values()) if q is not None]


# The table


def test_the_table_has_the_devices_asked_for():
    assert list(DEVICES) == [
        "a100",
        "h100",
        "h200",
        "b200",
        "rtx4090",
        "rtx5090",
        "mi250x",
        "mi300x",
        "mi355x",
        "rx7900xtx",
    ]
    assert all(name == device.name for name, device in DEVICES.items())


@every_device
def test_every_number_says_where_it_is_from(device):
    assert device.limits_source
    for quantity in quantities(device):
        assert quantity.source.strip() and quantity.kind in KINDS
        assert math.isfinite(quantity.value) and quantity.value > 0
        assert ("computed" in quantity.source) == (quantity.kind == "computed") or (
            quantity.kind == "datasheet"
        )


@every_device
def test_magnitudes_are_those_of_gpus(device):
    assert 1e9 < device.clock_hz.value < 4e9 and device.clock_hz.unit == "Hz"
    assert 0.5e12 < device.dram.value < 20e12 and device.dram.unit == "B/s"
    assert 4 * 2**20 <= device.cache.value <= 2**30 and device.cache.unit == "B"
    assert device.dram.value < device.cache_bandwidth.value < 50e12
    assert set(device.peaks) <= DTYPES and {"fp32", "fp16", "bf16", "int8"} <= set(device.peaks)
    for dtype, peak in device.peaks.items():
        assert 1e13 < peak.value < 1e16
        assert peak.unit == ("OP/s" if dtype.startswith("int") else "FLOP/s")


@every_device
def test_peaks_follow_the_width_of_the_dtype(device):
    peak = {dtype: q.value for dtype, q in device.peaks.items()}
    assert peak["fp16"] == peak["bf16"] > peak["fp32"]
    assert peak["int8"] >= peak["fp16"]
    if "fp8" in peak:
        assert peak["fp8"] == pytest.approx(2 * peak["fp16"], rel=0.001)
    if "tf32" in peak:
        assert peak["tf32"] == pytest.approx(peak["fp16"] / 2, rel=0.03)


@every_device
def test_the_vector_peak_is_lanes_times_clock(device):
    per_clock = hardware._CORES[device.limits.arch].flops_per_clock
    computed = device.limits.cores * per_clock * device.clock_hz.value
    assert device.peaks["fp32"].value == pytest.approx(computed, rel=0.005)


@every_device
def test_one_full_block_fits_a_core(device):
    limits = device.limits
    assert limits.warp_size == (64 if limits.arch.startswith("gfx9") else 32)
    assert limits.shared_bytes + device.shared_reserved <= device.shared_per_core
    assert limits.threads_per_block <= device.warps_per_core * limits.warp_size
    assert device.registers_per_core % device.register_unit == 0
    assert device.warps_per_core % device.schedulers_per_core == 0
    assert device.backend == ("cuda" if limits.arch.startswith("sm_") else "hip")


@pytest.mark.parametrize(
    ("name", "shared_kib", "cores", "registers"),
    [
        ("a100", 163, 108, 255),
        ("h100", 227, 132, 255),
        ("h200", 227, 132, 255),
        ("b200", 227, 148, 255),
        ("rtx4090", 99, 128, 255),
        ("rtx5090", 99, 170, 255),
        ("mi250x", 64, 110, 512),
        ("mi300x", 64, 304, 512),
        ("mi355x", 160, 256, 512),
        ("rx7900xtx", 64, 48, 256),  # 96 compute units, which HIP counts in pairs
    ],
)
def test_limits_are_the_published_ones(name, shared_kib, cores, registers):
    limits = DEVICES[name].limits
    assert limits.shared_bytes == shared_kib * 1024
    assert limits.cores == cores
    assert limits.registers_per_thread == registers


def test_a_die_of_the_mi250x_says_that_it_is_one():
    assert "one of its two dies" in DEVICES["mi250x"].title


def test_a_device_travels_to_another_process():
    for device in DEVICES.values():
        assert pickle.loads(pickle.dumps(device)) == device


# Names


@pytest.mark.parametrize("text", ["h200", "H200", "RTX 4090", "rtx-4090", "RX_7900_XTX"])
def test_a_name_is_found_however_it_is_spelt(text):
    assert device_named(text).name == "".join(c for c in text.lower() if c.isalnum())


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(UnknownDevice) as raised:
        device_named("h20")
    text = str(raised.value)
    assert "h200" in text and "workbench devices" in text and "\n" not in text


@given(st.text(max_size=20))
def test_any_other_name_is_refused_in_one_sentence(name):
    try:
        assert device_named(name) in DEVICES.values()
    except UnknownDevice as error:
        assert isinstance(error, ValueError)
        assert "lists them all" in str(error) and "\n" not in str(error)


def test_the_list_shows_every_device(capsys):
    hardware._list()
    printed = capsys.readouterr().out
    every = (*DEVICES.values(), *hardware.UNCOMPILED.values())
    assert len(printed.splitlines()) == len(every)
    assert all(d.name in printed and d.title in printed for d in every)


def test_what_triton_does_not_compile_for_is_known_by_its_figures_alone():
    assert hardware.described("M2 Max").dram.value == 400e9
    assert hardware.described("h200") is DEVICES["h200"]
    with pytest.raises(UnknownDevice, match="Triton does not compile for Apple M2 Max"):
        device_named("m2max")


# Ceilings


def test_ceilings_are_plain_data():
    plain = ceilings(DEVICES["h200"], "bf16")
    assert plain["dram"]["value"] == 4.8e12 and plain["dram"]["unit"] == "B/s"
    assert plain["dram"]["kind"] == "datasheet" and plain["cache"]["kind"] == "measured"
    assert plain["compute"]["value"] == 989.4e12 and plain["compute"]["dtype"] == "bf16"
    for ceiling in plain.values():
        assert {"value", "unit", "source", "kind"} <= set(ceiling)
        assert all(isinstance(v, (str, float, int)) for v in ceiling.values())


@every_device
def test_a_ceiling_that_nobody_stated_is_absent(device):
    assert "compute" not in ceilings(device, "fp4")
    assert set(ceilings(device, "bf16")) == {"dram", "cache", "compute"}


# The live GPU: torch is played by a stand-in that answers as torch does.


def properties(**changed):
    """What torch says of an H200 (torch 2.11, driver 580), with some of it changed."""
    text = {
        "name": "NVIDIA H200",
        "major": 9,
        "minor": 0,
        "gcnArchName": "NVIDIA H200",
        "multi_processor_count": 132,
        "total_memory": 150_000_000_000,
        "warp_size": 32,
        "L2_cache_size": 60 * 2**20,
        "clock_rate": 1_980_000,
        "memory_clock_rate": 3_201_000,
        "memory_bus_width": 6144,
        "max_threads_per_multi_processor": 2048,
        "regs_per_multiprocessor": 65536,
        "shared_memory_per_block": 48 * 1024,
        "shared_memory_per_block_optin": 227 * 1024,
        "shared_memory_per_multiprocessor": 228 * 1024,
    }
    return SimpleNamespace(**{**text, **changed})


def amd(**changed):
    """What torch says of an MI300X; HIP leaves the opt-in size at 0 and counts only the L2."""
    return properties(
        **{
            "name": "AMD Instinct MI300X",
            "gcnArchName": "gfx942:sramecc+:xnack-",
            "major": 9,
            "minor": 4,
            "multi_processor_count": 304,
            "warp_size": 64,
            "L2_cache_size": 4 * 2**20,
            "clock_rate": 2_100_000,
            "shared_memory_per_block": 64 * 1024,
            "shared_memory_per_block_optin": 0,
            "shared_memory_per_multiprocessor": 64 * 1024,
            **changed,
        }
    )


@pytest.fixture
def torch_sees(monkeypatch):
    def see(result, hip=None):
        cuda = SimpleNamespace(
            is_available=lambda: result is not None,
            current_device=lambda: 0,
            get_device_properties=lambda index: result,
        )
        stand_in = SimpleNamespace(cuda=cuda, version=SimpleNamespace(hip=hip))
        monkeypatch.setitem(sys.modules, "torch", stand_in)
        return live()

    return see


def test_no_gpu_is_none(torch_sees):
    assert torch_sees(None) is None


def test_no_torch_is_none(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)  # makes the import fail
    assert live() is None


def test_a_known_gpu_keeps_its_name_and_its_stated_figures(torch_sees):
    device = torch_sees(properties(L2_cache_size=50 * 2**20))
    known = DEVICES["h200"]
    assert device.name == "h200" and device.title == "NVIDIA H200"
    assert device.limits == known.limits
    assert (device.dram, device.peaks) == (known.dram, known.peaks)
    assert device.cache.value == 50 * 2**20 and device.cache.kind == "driver"


def test_the_driver_has_the_last_word_on_limits(torch_sees):
    device = torch_sees(
        properties(shared_memory_per_block_optin=200 * 1024, regs_per_multiprocessor=32768)
    )
    assert device.limits.shared_bytes == 200 * 1024
    assert device.registers_per_core == 32768


def test_a_torch_that_says_less_leaves_the_table_as_it_is(torch_sees):
    text = vars(properties())
    for attribute in ("shared_memory_per_block_optin", "regs_per_multiprocessor", "warp_size"):
        del text[attribute]
    assert torch_sees(SimpleNamespace(**text)).limits == DEVICES["h200"].limits


def test_a_partition_has_its_share_of_arithmetic_and_no_bandwidth(torch_sees):
    device = torch_sees(properties(name="NVIDIA H200 MIG 1g.18gb", multi_processor_count=33))
    assert device.name == "h200" and device.limits.cores == 33
    assert device.peaks["bf16"].value == pytest.approx(989.4e12 / 4)
    assert device.peaks["bf16"].kind == "computed"
    assert device.dram is None and device.cache_bandwidth is None
    assert set(ceilings(device, "bf16")) == {"compute"}


def test_hip_keeps_the_infinity_cache_and_the_register_file_of_the_table(torch_sees):
    device = torch_sees(amd(), hip="7.0")
    known = DEVICES["mi300x"]
    assert device.name == "mi300x" and device.limits == known.limits
    assert device.cache == known.cache
    assert device.registers_per_core == known.registers_per_core


@pytest.mark.parametrize("counted", [48, 96])
def test_rdna_is_counted_in_work_group_processors(torch_sees, counted):
    text = amd(
        name="AMD Radeon RX 7900 XTX",
        gcnArchName="gfx1100",
        multi_processor_count=counted,
        warp_size=32,
    )
    device = torch_sees(text, hip="7.0")
    assert device.name == "rx7900xtx" and device.limits.cores == 48
    assert device.dram == DEVICES["rx7900xtx"].dram


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA H200 NVL",
        "NVIDIA GH200 480GB",
        "NVIDIA H100 PCIe",
        "NVIDIA H100 NVL",
        "NVIDIA H20",
    ],
)
def test_other_hoppers_are_not_taken_for_an_sxm_module(torch_sees, name):
    device = torch_sees(properties(name=name))
    assert device.name not in DEVICES and device.title == name
    assert device.limits.arch == "sm_90"
    assert set(device.peaks) == {"fp32"} and device.peaks["fp32"].kind == "computed"
    assert device.dram.value == pytest.approx(4.917e12, rel=0.001)
    assert device.cache_bandwidth is None


def test_no_amd_gpu_is_taken_for_an_mi300x(torch_sees):
    device = torch_sees(amd(name="AMD Instinct MI325X"), hip="7.0")
    assert device.name == "amd-instinct-mi325x"
    assert device.dram is None and device.cache_bandwidth is None
    assert set(device.peaks) == {"fp32"}
    assert device.cache.value == 256 * 2**20  # CDNA 3 has it behind the L2 that HIP reports


def test_an_unknown_architecture_is_described_by_the_driver_alone(torch_sees):
    device = torch_sees(
        properties(name="NVIDIA X1", major=13, minor=1, clock_rate=0, memory_clock_rate=0)
    )
    assert device.name == "nvidia-x1" and device.limits.arch == "sm_131"
    assert device.peaks == {} and device.dram is None and device.clock_hz is None
    assert device.warps_per_core == 64 and device.limits.shared_bytes == 227 * 1024
    assert ceilings(device, "bf16") == {}
    assert all(isinstance(q, Quantity) and q.source for q in quantities(device))
