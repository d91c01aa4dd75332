"""The device table is whole and sane, and a live GPU is never taken for another one."""

import math
import pickle
import sys
from contextlib import suppress
from dataclasses import fields, replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench import cli
from workbench.device import hardware
from workbench.device.ceilings import known_device
from workbench.device.hardware import (
    DEVICES,
    UNCOMPILED,
    DeviceFileError,
    Devices,
    Quantity,
    UnknownDevice,
    ceilings,
    device_named,
    live,
    read_device,
)

every_device = pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)

KINDS = {"datasheet", "published", "computed", "driver"}
DTYPES = {"fp32", "fp32_matrix", "tf32", "fp16", "bf16", "fp8", "int8"}


def quantities(device):
    fixed = [device.clock_hz, device.dram, device.cache, device.cache_bandwidth]
    return [q for q in (*fixed, *device.peaks.values()) if q is not None]


# The table


def test_the_folder_is_the_table():
    files = {path.stem for path in hardware.FOLDER.iterdir()}
    assert files == {*DEVICES, *UNCOMPILED} and not {*DEVICES} & {*UNCOMPILED}
    assert all(name == device.name for name, device in {**DEVICES, **UNCOMPILED}.items())
    assert len(DEVICES) == len(list(DEVICES)) >= 10


def test_a_device_is_read_when_it_is_asked_for(tmp_path):
    """A file that is broken does not stand in the way of another."""
    for name in ("h200", "broken"):
        (tmp_path / f"{name}.toml").write_text(H200 if name == "h200" else "title = ")
    assert Devices(tmp_path, compiled=True)["h200"] == DEVICES["h200"]
    assert "no_such" not in DEVICES and "../devices/h200" not in DEVICES


def test_devices_of_one_architecture_share_their_limits():
    """So what the driver does not say of another GPU of it may be taken from any of them."""
    seen = {}
    for device in DEVICES.values():
        same = (
            device.backend,
            replace(device.limits, cores=0),
            *(getattr(device, f.name) for f in fields(device) if f.type == "int"),
            device.limits_source,
            device.fp32_flops_per_clock,
        )
        assert seen.setdefault(device.limits.arch, same) == same


# The files: what is not in the form is refused in one sentence that names the file and the key.

H200 = (hardware.FOLDER / "h200.toml").read_text(encoding="utf-8")
M2MAX = (hardware.FOLDER / "m2max.toml").read_text(encoding="utf-8")


def refusal(folder, text, name="mine"):
    path = folder / f"{name}.toml"
    path.write_text(text)
    with pytest.raises(DeviceFileError) as raised:
        read_device(path)
    words = str(raised.value)
    assert words.startswith(f"devices/{name}.toml") and words.endswith(".") and "\n" not in words
    return words


@pytest.mark.parametrize("path", sorted(hardware.FOLDER.iterdir()), ids=lambda path: path.stem)
def test_every_key_of_every_file_is_needed_or_may_be_left_out(path, tmp_path):
    """Each line of each file is taken out: what is left is refused by the key's name, or lacks
    nothing that a file must have; and no key is read under two names."""
    may_go = {"matches", "excludes", "kind", *hardware.DTYPES}
    may_go |= {"fp32_flops_per_clock", "schedulers_per_core"}
    lines = path.read_text(encoding="utf-8").replace("\\\n", "").splitlines()
    for at, line in enumerate(lines):
        key, equals, _ = line.partition(" = ")
        if not equals or line.startswith("#"):
            continue
        without = "\n".join([*lines[:at], *lines[at + 1 :]])
        if key in may_go:
            (tmp_path / f"left{at}.toml").write_text(without)
            with suppress(DeviceFileError):  # the only peak of its group
                assert read_device(tmp_path / f"left{at}.toml") != DEVICES.get(path.stem)
        else:
            assert key in refusal(tmp_path, without, f"without{at}")
        duplicate = "\n".join([*lines[:at], line.replace(key, key + "x", 1), *lines[at + 1 :]])
        assert key in refusal(tmp_path, duplicate, f"twin{at}")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('value = 4.8\nunit = "TB/s"', 'value = 4.8\nunit = "GB"', "in the unit TB/s, not 'GB'"),
        ('unit = "GHz"', 'unit = "TB/s"', "the key value in the unit GHz, not 'TB/s'"),
        ('unit = "TOP/s"', 'unit = "TFLOP/s"', "the key int8 in the unit TOP/s"),
        ('source = "NVIDIA H200 datasheet"', 'source = " "', "[dram] must have a text for the key"),
        ('kind = "driver"', 'kind = "guessed"', "for the key kind, not 'guessed'"),
        ("value = 4.8", 'value = "4.8"', "[dram] must have a number for the key value, not '4.8'"),
        ("value = 4.8", "value = nan", "[dram] must have a number for the key value, not nan"),
        ("value = 4.8", "value = -1", "[dram] must have a number for the key value, not -1"),
        ("cores = 132", "cores = true", "must have a whole number for the key cores, not True"),
        ("cores = 132", "cores = 13.2", "must have a whole number for the key cores, not 13.2"),
        ("[clock]", "[clocks]", "has the unknown key clocks; is it clock?"),
        ("fp16 = 989.4", "fp61 = 989.4", "[[peaks]] has the unknown key fp61; is it fp16?"),
        ("int8 = 1978.9\n", "", "[[peaks]] has no peak"),
        ('matches = ["NVIDIA H200"]', 'matches = "NVIDIA H200"', "a list of texts for the key"),
        ("[limits]", "[[limits]]", "[limits] is not a table"),
        ("cores = 132", "cores = ", "is not TOML"),
    ],
)  # fmt: skip
def test_a_figure_without_unit_or_source_is_refused(tmp_path, old, new, words):
    assert H200.count(old) >= 1
    assert words in refusal(tmp_path, H200.replace(old, new, 1))


def test_a_dtype_has_one_peak(tmp_path):
    twice = H200.replace("int8 = 1978.9", "fp8 = 1978.9").replace("TOP/s", "TFLOP/s")
    assert "states the key fp8 a second time" in refusal(tmp_path, twice)


def test_a_name_that_cannot_be_typed_is_refused(tmp_path):
    assert "lower-case letters and digits" in refusal(tmp_path, H200, "RTX-6000")


def test_a_made_up_device_is_one_file(tmp_path, monkeypatch, capsys):
    """It is listed, named, recognised by the driver's name, and worked out for."""
    text = H200.replace("NVIDIA H200 SXM 141 GB", "Made Up 1").replace("NVIDIA H200", "Made Up")
    (tmp_path / "madeup1.toml").write_text(text.replace("value = 4.8", "value = 9.6"))
    (tmp_path / "h200.toml").write_text(H200)
    (tmp_path / "paper1.toml").write_text(M2MAX.replace("Apple M2 Max", "Paper 1"))
    for table in (DEVICES, UNCOMPILED):
        monkeypatch.setattr(table, "folder", tmp_path)
    assert list(DEVICES) == ["h200", "madeup1"] and list(UNCOMPILED) == ["paper1"]
    assert device_named("Made-Up 1").dram.value == 9.6e12
    assert known_device("Made Up GPU").name == "madeup1"
    with pytest.raises(UnknownDevice, match="madeup1"):
        device_named("madeup2")
    words = ["experiment", "expected", "--kernel", "copy", "--sizes", "N=4800000000"]
    words += ["--out", str(tmp_path / "out"), "--database", f"sqlite:///{tmp_path / 'h.db'}"]
    for name, takes in (("h200", "at least 4000.0 µs"), ("madeup1", "at least 2000.0 µs")):
        assert cli.main([*words, "--device", name]) == 0
        assert takes in capsys.readouterr().out


def test_a_broken_file_is_one_sentence_on_the_command_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "broken.toml").write_text(H200.replace("cores = 132\n", ""))
    monkeypatch.setattr(DEVICES, "folder", tmp_path)
    assert cli.main(["devices"]) == 2
    assert capsys.readouterr().err == "error: devices/broken.toml lacks the key cores.\n"


# What the table says


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
    if device.clock_hz is not None:
        assert 1e9 < device.clock_hz.value < 4e9 and device.clock_hz.unit == "Hz"
    if device.dram is not None:
        assert 0.1e12 < device.dram.value < 50e12 and device.dram.unit == "B/s"
    assert 2**20 <= device.cache.value <= 2**30 and device.cache.unit == "B"
    if device.dram is not None and device.cache_bandwidth is not None:
        assert device.dram.value < device.cache_bandwidth.value < 100e12
    assert set(device.peaks) <= DTYPES
    for dtype, peak in device.peaks.items():
        assert 1e12 < peak.value < 1e17
        assert peak.unit == ("OP/s" if dtype.startswith("int") else "FLOP/s")


@every_device
def test_peaks_follow_the_width_of_the_dtype(device):
    peak = {dtype: q.value for dtype, q in device.peaks.items()}
    if {"fp32", "fp16", "bf16"} <= set(peak):
        assert peak["fp16"] == peak["bf16"] > peak["fp32"]
    if {"int8", "fp16"} <= set(peak):
        assert peak["int8"] >= peak["fp16"]
    if {"fp8", "fp16"} <= set(peak):
        assert peak["fp8"] == pytest.approx(2 * peak["fp16"], rel=0.001)
    if {"tf32", "fp16"} <= set(peak):
        assert peak["tf32"] == pytest.approx(peak["fp16"] / 2, rel=0.03)


@every_device
def test_the_vector_peak_is_lanes_times_clock(device):
    if device.clock_hz is None or device.fp32_flops_per_clock is None:
        pytest.skip("not stated")
    computed = device.limits.cores * device.fp32_flops_per_clock * device.clock_hz.value
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
        ("h200", 227, 132, 255),
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
    assert cli.main(["devices"]) == 0
    printed = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
    every = {**DEVICES, **UNCOMPILED}
    more = {"h100": ", calibrated for 9 kernels"}
    wanted = [[n, d.limits.arch, d.title + more.get(n, "")] for n, d in sorted(every.items())]
    assert printed == wanted


def test_what_triton_does_not_compile_for_is_known_by_its_figures_alone():
    assert hardware.find_device("M2 Max").dram.value == 400e9
    assert hardware.find_device("h200") is DEVICES["h200"]
    with pytest.raises(UnknownDevice, match="Triton does not compile for Apple M2 Max"):
        device_named("m2max")


APPLE = [device for device in UNCOMPILED.values() if device.backend == "metal"]


@pytest.mark.parametrize("device", APPLE, ids=lambda device: device.name)
def test_what_is_stated_of_an_apple_gpu(device):
    """Metal's limits are alike; a peak is there where sources agree on it, and has a source."""
    family = {"m1": "apple7", "m2": "apple8", "m3": "apple9", "m4": "apple9", "m5": "apple10"}
    assert device.family == family[device.name[:2]] and device.limits.arch == "metal"
    assert (device.limits.threads_per_block, device.limits.shared_bytes) == (1024, 32768)
    assert all(q.source and q.kind == "computed" for q in device.peaks.values())
    known = {"m1": {"fp32", "fp16"}, "m2": {"fp32", "fp16"}}.get(device.name[:2], set())
    assert {*device.peaks} == ({"fp32"} if device.name == "m5" else known)
    for peak in device.peaks.values():  # two operations of 128 lanes at 1.27 to 1.56 GHz, rounded
        assert 1.26e9 < peak.value / device.limits.cores / 256 < 1.6e9


def test_the_rates_of_an_m2_max_are_those_of_guide_2():
    device = UNCOMPILED["m2max"]
    assert device.dram.value == 400e9 and device.memory.value == 96 * 2**30
    assert device.peaks["fp32"].value == device.peaks["fp16"].value == 13.6e12
    assert len(APPLE) == 18 and known_device("m2max") is device


def test_a_family_is_of_apple_gpus_alone(tmp_path):
    assert "lacks the key family" in refusal(tmp_path, M2MAX.replace('family = "apple8"', ""))
    other = H200.replace("cores = 132", 'cores = 132\nfamily = "apple8"')
    assert "unknown key family" in refusal(tmp_path, other)


# Ceilings


@pytest.mark.parametrize("name, parts", [("h100", True), ("h200", True), ("b200", False)])
def test_fp32_has_the_ceiling_of_its_bf16_parts_where_kernels_make_them(name, parts):
    peaks, plain = DEVICES[name].peaks, ceilings(DEVICES[name], "fp32")["compute"]
    assert plain["value"] == (peaks["bf16"].value / 6 if parts else peaks["fp32"].value)
    assert (plain["kind"] == "computed") == parts
    assert parts == plain["source"].startswith("a sixth of the bf16 peak")


def test_ceilings_are_plain_data():
    plain = ceilings(DEVICES["h200"], "bf16")
    assert plain["dram"]["value"] == 4.8e12 and plain["dram"]["unit"] == "B/s"
    assert plain["dram"]["kind"] == "datasheet" and plain["cache"]["kind"] == "published"
    assert plain["compute"]["value"] == 989.4e12 and plain["compute"]["dtype"] == "bf16"
    for ceiling in plain.values():
        assert {"value", "unit", "source", "kind"} <= set(ceiling)
        assert all(isinstance(v, (str, float, int)) for v in ceiling.values())


@every_device
def test_a_ceiling_that_nobody_stated_is_absent(device):
    assert "compute" not in ceilings(device, "fp4")
    compute = device.peaks.get("bf16")
    stated = {"dram": device.dram, "cache": device.cache_bandwidth, "compute": compute}
    assert set(ceilings(device, "bf16")) == {name for name, q in stated.items() if q is not None}


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
