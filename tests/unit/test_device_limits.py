"""What models, ceilings, bands and drivers say exactly at their limits, worked out by hand."""

import ctypes
import math
import random
from dataclasses import replace
from types import SimpleNamespace

import drawn_device
import pytest
import synthetic

from workbench.catalog import spec_of
from workbench.data.record import Predicted
from workbench.device import (
    bounds,
    ceilings,
    code_model,
    correction,
    cost_model,
    cuda_driver,
    hardware,
)
from workbench.device import error_band as E
from workbench.device.calibration import (
    Calibration,
    CalibrationError,
    _merge_calibrations,
    calibration_of,
    load,
    save,
    sizes_in,
    times_not_held_back,
)
from workbench.device.ceilings import CeilingSet, Load, ceiling_set, diagnose
from workbench.device.hardware import DEVICES, UNCOMPILED, DeviceFileError, find_device, read_device
from workbench.device.occupancy import occupancy, waves
from workbench.spec import Work

pytestmark = pytest.mark.unit
H200 = DEVICES["h200"]
CREATED = replace(
    drawn_device.resources(random.Random(0), 132), spill_bytes=0, shared_bytes=0, threads=256,
    blocks_per_core=1, matrix_unit="wgmma", copy_engine=True,
)  # fmt: skip


# The models


@pytest.mark.parametrize(("spilled", "rate"), [(960, 18 * 1.98e9), (961, 9.7e12 / 132 * 0.33)])
def test_spills_stay_near_a_core_up_to_its_240_kib(spilled, rate):
    """960 bytes of each of 256 threads are 240 KiB, written and read."""
    work = code_model.LaunchWork(132, 8, 1, (), 0.0, 0.0)
    model = code_model._CodeModel(H200, work, replace(CREATED, spill_bytes=spilled))
    assert model._spill_s(1) == pytest.approx(2 * 256 * spilled / rate)


@pytest.mark.parametrize(("spilled", "rate"), [(912, 18 * 1.98e9), (913, 9.7e12 / 132 * 0.33)])
def test_spills_stay_near_a_core_up_to_its_shared_memory(spilled, rate):
    """912 bytes of each of 256 threads are the 228 KiB of a core."""
    model = cost_model._Model(H200, Work(132, 1, 0, 0), replace(CREATED, spill_bytes=spilled),
                              "bf16", 0, 1, cost_model.CONSTANTS)  # fmt: skip
    assert model.spills(1) == pytest.approx(2 * 256 * spilled / rate)


@pytest.mark.parametrize(
    ("least", "moved"),
    [(60 << 20, 60 << 20), ((60 << 20) + 1, (1 + 100) * 128 * 64 * 60 * 2 + 100)],
)
def test_what_the_cache_holds_is_read_once(least, moved):
    """100 tiles of 128 rows and columns are in work at once: 60 steps read the rows of one and the
    columns of 100, 64 deep and 2 bytes each; each tile stores a byte."""
    work = Work(100, 60, (128 + 128) * 64 * 2, 1, (128, 128, 64), band=1)
    model = cost_model._Model(
        H200, work, replace(CREATED, programs=100), "bf16", 0, 3, cost_model.CONSTANTS
    )
    assert model.dram_bytes(least) == moved


def test_no_time_at_all_has_a_norm():
    assert cost_model.norm([0.0, 0.0], 5.6) == 0.0
    assert cost_model.norm([3.0, 4.0], 2.0) == pytest.approx(5.0)
    assert cost_model.norm([3.0, 4.0], 1.0) == pytest.approx(7.0)


@pytest.mark.parametrize("lacking", [{"clock_hz": None}, {"dram": None}, {"cache_bandwidth": None}])
def test_a_figure_that_lacks_is_named(lacking):
    device = replace(H200, peaks={}, **lacking)
    name = {"clock_hz": "clock", "dram": "memory bandwidth", "cache_bandwidth": "cache bandwidth"}
    words = f"the {name[next(iter(lacking))]}, bf16 peak, fp32 peak of {H200.title} is unknown"
    with pytest.raises(ValueError, match=words):
        cost_model.predict(device, Work(1, 1, 1, 1), CREATED, dtype="bf16", flops=0, bytes_=1)


def test_a_work_of_no_trips_has_a_time():
    found = cost_model.predict(H200, Work(132, 0, 1024, 1024), replace(CREATED, matrix_unit=None),
                               dtype="bf16", flops=10**6, bytes_=10**6)  # fmt: skip
    assert found.compute_s == 0.0 and math.isfinite(found.predicted_s)


@pytest.mark.parametrize(
    ("asked", "blocks", "limiter"),
    [((1, 0, 0), 32, "blocks"), ((1024, 0, 0), 2, "threads"), ((1025, 0, 0), 0, "threads"),
     ((32, 255, 0), 8, "registers"), ((32, 256, 0), 0, "registers"),
     ((32, 0, 227 << 10), 1, "shared memory"), ((32, 0, (227 << 10) + 1), 0, "shared memory")],
)  # fmt: skip
def test_a_block_fits_up_to_each_limit(asked, blocks, limiter):
    threads, registers, shared = asked
    at = occupancy(H200, threads=threads, registers=registers, shared_bytes=shared)
    assert (at.blocks_per_core, at.limiter) == (blocks, limiter)


def test_no_block_is_no_wave():
    assert waves(H200, 0, 2) == waves(H200, 5, 0) == (0.0, 0.0)
    assert waves(H200, 1, 1) == (1 / 132, 131 / 132) and waves(H200, 264, 2) == (1.0, 0.0)


# The correction


def test_rows_are_aligned_if_every_tensor_of_two_axes_is():
    assert correction.is_aligned(spec_of("copy"), {"N": 17})  # of one axis only
    sizes = {"M": 3, "N": 48}
    assert correction.is_aligned(spec_of("softmax"), sizes)
    assert not correction.is_aligned(spec_of("softmax"), sizes | {"N": 40})


def test_a_calibration_of_four_sizes_corrects_and_of_three_does_not():
    known = calibration_of("h100")
    times = known.times_of("softmax", "bf16")
    spec = spec_of("softmax")
    good = [s for s in sizes_in(times) if correction.is_aligned(spec, s)]
    some = [next(t for t in times if t.sizes == s) for s in good[:4]]
    foreign = replace(some[0], impl="gone")
    ragged = replace(some[0], sizes={"M": 64, "N": 40})
    four = correction.calibrated_kernel([foreign, ragged, *some], spec, DEVICES["h100"], True)
    assert [dict(p.sizes) for p in four.places] == good[:4]
    assert correction.calibrated_kernel(some[:3], spec, DEVICES["h100"], True) is None


def test_a_kernel_is_corrected_by_its_own_dtype_and_then_by_the_other():
    spec, sizes = spec_of("softmax"), {"M": 1024, "N": 1024}
    for dtype in ("bf16", "fp16"):
        found = list(correction.kernels_for(spec, DEVICES["h200"], dtype, sizes))
        assert [(k.device.name, k.dtype) for k in found] == [("h100", "bf16")]
        assert list(correction.kernels_for(spec, DEVICES["h200"], dtype, sizes)) == found
    for device, other in (("h200", None), ("h200", "fp32"), ("a100", "bf16")):
        assert not list(correction.kernels_for(spec, DEVICES[device], other, sizes))
    theirs = [replace(i, launch=print) for i in spec.impls]
    foreign = replace(spec, impls=tuple(theirs))
    assert not list(correction.kernels_for(foreign, DEVICES["h200"], "bf16", sizes))


def test_a_guess_is_of_the_launch_with_most_programs(monkeypatch):
    small, large = (replace(CREATED, programs=n) for n in (1, 7))
    for each, launches, kept in (((small, large), 2, (small, large)), ((large,), 1, ())):
        monkeypatch.setattr(correction, "guesses", lambda *_, each=each: each)
        found = correction.guessed_config(None, "config", H200, "bf16", {"M": 1})
        assert (found.resources.programs, found.launches, found.each) == (7, launches, kept)
    monkeypatch.setattr(correction, "guesses", lambda *_: ())
    assert correction.guessed_config(None, "config", H200, "bf16", {"M": 1}) is None


@pytest.mark.parametrize(("factor", "stays"), [(1.05, True), (1.06, False)])
def test_a_default_stays_up_to_five_percent(monkeypatch, factor, stays):
    """Two configs, the default 1.05 or 1.06 times slower than the other."""
    impl = SimpleNamespace(name="rows", default=lambda *_: "default",
                           rejection_reason=lambda *_: None)  # fmt: skip
    place = {c: SimpleNamespace(config=c) for c in ("default", "other")}
    kernel = SimpleNamespace(
        estimate_resources=lambda i, c, *_: place[c], recall_resources=lambda i, c, *_: place[c],
        configs=lambda i: ["default", "other"], seconds=lambda *_: [factor, 1.0],
    )  # fmt: skip
    found = correction.best_of(kernel, impl, H200, "bf16", {"M": 1})
    assert found.config == ("default" if stays else "other")


def test_own_times_replace_those_that_are_shipped_kernel_by_kernel(tmp_path):
    known = calibration_of("h100")
    pairs = known.kernels[:2]
    some = [known.times_of(*pair)[0] for pair in pairs]
    of_two = [t for t in known.times if t.each][:1]
    paths = [tmp_path / f"{n}.gz" for n in (1, 2)]
    save(replace(known, times=(*some, *of_two)), paths[0])
    mine = replace(some[0], median_s=1.5e-6, is_check=True, resources=replace(
        some[0].resources, matrix_unit=None, copy_engine=True))  # fmt: skip
    save(replace(known, times=(mine,)), paths[1])
    theirs, ours = map(load, paths)
    assert ours.times[0].resources.matrix_unit is None and ours.times[0].resources.copy_engine
    assert theirs.times[0].resources.matrix_unit == some[0].resources.matrix_unit
    both = _merge_calibrations(paths[0], (0, 0, 0), paths[1], (0, 0, 0), "")
    left = [t for t in theirs.times if (t.kernel, t.dtype) != pairs[0]]
    assert list(both.times) == [*ours.times, *left] and both.digest == ours.digest + theirs.digest
    assert _merge_calibrations(paths[0], (0, 0, 0), paths[1], None, "") == theirs
    assert _merge_calibrations(paths[0], None, paths[1], (0, 0, 0), "") == ours
    assert _merge_calibrations(paths[0], None, paths[1], None, "") is None
    assert times_not_held_back(both.times) == left
    assert sizes_in([*ours.times, *ours.times]) == [dict(mine.sizes)]


# Ceilings


def test_a_ceiling_of_each_state_has_its_name():
    assert ceilings.measured_name("cache", "boost") == "cache_boost_measured"
    assert ceilings.measured_name("cache", "sustained") == "cache_measured"
    plain = {"a_measured": {"state": "sustained"}, "a_boost_measured": {"state": "boost"},
             "b_boost_measured": {"state": "boost"}, "dram": {}}  # fmt: skip
    assert list(ceilings.ceilings_in_state(plain, "sustained")) == [
        "a_measured",
        "b_boost_measured",
        "dram",
    ]
    assert list(ceilings.ceilings_in_state(plain, "boost")) == [
        "a_boost_measured",
        "b_boost_measured",
        "dram",
    ]


def test_a_device_is_known_by_its_own_name_or_its_drivers():
    assert ceilings.known_device("h100") is DEVICES["h100"]
    assert ceilings.known_device("m2max") is UNCOMPILED["m2max"]
    assert ceilings.known_device("NVIDIA H200") is H200
    assert ceilings.known_device("NVIDIA H200 NVL") is None and ceilings.known_device("x") is None


def run_with(started, engine="sweep", **known):
    return replace(synthetic.copy()[0], device="h200", started=started, engine=engine,
                   id=started, ceilings=known)  # fmt: skip


def stated(value, **more):
    return {"value": value, "unit": "B/s", "source": "here", "kind": "measured", **more}


def test_the_newest_run_of_ceilings_comes_first():
    runs = [
        run_with("3", dram_measured=stated(3e12)),
        run_with("1", "ceilings", cache_measured=stated(1e12), dram_measured=stated(1e12)),
        run_with("2", "ceilings", cache_measured=stated(2e12), l1_measured=stated(5, failed=True)),
        run_with("4", "ceilings", l1_measured=stated(6, failed=True, reason="too wide")),
        replace(run_with("9", "ceilings", cache_measured=stated(9e12)), device="h100"),
    ]
    known = ceiling_set("h200", runs)
    values = {c.name: (c.value, c.run) for c in known.ceilings if c.is_measured}
    assert values == {"cache_measured": (2e12, "2"), "dram_measured": (1e12, "1")}
    assert known.failures == (("l1_measured", "too wide"),) and known.cache_bytes == 60 << 20
    assert {c.name for c in known.ceilings if c.origin == "datasheet"} >= {"dram", "compute_bf16"}


@pytest.mark.parametrize(
    ("known", "whole"),
    [({}, True), ({"dram": {"value": 4.8e12 * 1.009}}, True),
     ({"dram": {"value": 4.8e12 * 0.989}}, False), ({"dram": {"value": 4.8e12 * 1.011}}, False),
     ({"compute": {"value": 9e13, "dtype": "bf16"}}, False),
     ({"compute": {"value": 9e13, "dtype": "bf16", "kind": "measured"}}, True),
     ({"compute": {"value": 989.4e12, "dtype": "bf16"}}, True),
     ({"compute": {"value": 9e13, "dtype": "fp4"}}, True)],
)  # fmt: skip
def test_a_part_of_a_gpu_has_other_peaks(known, whole):
    assert ceilings._whole(run_with("1", **known), H200) == whole
    some = ceiling_set("h200", [run_with("1", **known)]).ceilings
    assert any(c.name == "cache" for c in some) == whole


NO_LOAD = Load(1e-5, 1e-5, 0, 0, "bf16", "cold")


def test_a_call_that_declares_nothing_is_a_launch():
    one = drawn_device.one
    launch = CeilingSet("h200", (one("launch_measured", "launch", 4e-6),))
    held = diagnose(NO_LOAD, launch)
    assert held.sentence.endswith("its 10 µs are a launch, of which the floor is 4 µs.")
    assert held.gain_s == pytest.approx(6e-6) and held.word == "launch-bound"
    assert diagnose(replace(NO_LOAD, time_s=3e-6), launch).gain_s == 0.0
    alone = diagnose(NO_LOAD, CeilingSet("h200"))
    assert alone.gain_s is None and alone.sentence.endswith("are a launch.")
    for load_, lacking in (
        (replace(NO_LOAD, bytes=1), "its memory"),
        (replace(NO_LOAD, flops=1), "bf16 arithmetic"),
        (replace(NO_LOAD, flops=1, regime="hot"), "the last-level cache, "),
    ):
        assert f"no ceiling of {lacking}" in diagnose(load_, launch).sentence.lower()
    assert NO_LOAD.intensity is None and replace(NO_LOAD, flops=6, bytes=2).intensity == 3.0


@pytest.mark.parametrize(
    ("launch_s", "words"),
    [(0.999e-5, ""), (1e-5, "about a tenth of it"), (1.11e-5, "11 % of it"), (1.5e-5, "15 % of it"),
     (3.3e-5, "about a third of it"), (5e-5, "about half of it"), (1e-4, "100 % of it"),
     (1.01e-4, "")],
)  # fmt: skip
def test_a_launch_is_mentioned_from_a_tenth_to_the_whole_of_a_time(launch_s, words):
    text = ceilings._launch_words(replace(NO_LOAD, time_s=1e-4), launch_s)
    assert text.endswith(words) and bool(text) == bool(words)


@pytest.mark.parametrize(
    ("regime", "moved", "name"),
    [("cold", 1.04e8, "dram_copy"), ("cold", 1.06e8, "dram_read"), ("cold", 1.2e8, "dram_copy"),
     ("predicted", 1.06e8, "dram_copy")],
)  # fmt: skip
def test_a_call_above_a_copy_may_read_more(regime, moved, name):
    one = drawn_device.one
    some = (one("dram_copy_measured", "dram", 1e12, high=1.05e12),
            one("dram_read_measured", "dram", 1.1e12))  # fmt: skip
    held = diagnose(Load(1e-4, 1e-4, 0, int(moved), "bf16", regime), CeilingSet("h200", some))
    assert held.ceiling.stem == name


# Error bands


def predicted(kernel="matmul", seconds=1e-4, device="h200", model="analytic-4", **more):
    _, outcomes = synthetic.matmul(predicted=True)
    record = next(o for o in outcomes if hasattr(o, "timing"))
    timing = replace(record.timing, predicted_s=seconds, model=model, **more)
    return replace(record, case=replace(record.case, kernel=kernel, device=device), timing=timing,
                   bytes=1000, flops=0)  # fmt: skip


def test_a_prediction_has_the_band_of_its_kernel_or_its_kind():
    assert E.band_of(predicted()).title == "matrix products"
    assert E.band_of(predicted("mine")).title == "other kernels with matrix products"
    plain = replace(predicted("mine"), resources=None)
    assert E.band_of(plain).title == "other kernels"
    assert E.band_of(predicted("mine", 4e-6)).title == "other launch-sized kernels"
    code = predicted(model="code-1")
    assert E.band_of(code).title == "products timed from their code"
    assert E.band_of(replace(code, resources=None)).title == "kernels timed from TTGIR alone"
    issued = E.band_of(predicted(model="code-2"))
    assert issued.title == "kernels timed from their machine code"
    assert E.band_of(predicted(device="a100")) is None
    assert E.band_of(predicted(device="none")) is None
    assert E.kind_of(replace(plain, timing=synthetic.measured(1e-4))) == "stream"
    assert E.band_words(predicted(device="a100")) == "never validated on this device"
    assert E.band_words(predicted()) == (
        "measured times of matrix products are 0.66 to 1.4 times the predicted"
    )


def test_a_band_ends_no_lower_than_the_least_bytes_take():
    """0.66 to 1.4 times 100 us; 4.8e8 bytes at 4.8 TB/s take 100 us."""
    one = predicted()
    assert E.expected_s(one) == (pytest.approx(66e-6), pytest.approx(140e-6))
    assert E.expected_s(replace(one, bytes=480_000_000))[0] == pytest.approx(1e-4)
    code = predicted(model="code-1")
    assert E.expected_s(code) == (pytest.approx(65e-6), pytest.approx(135e-6))
    assert E.expected_s(replace(code, bytes=470_000_000))[0] == pytest.approx(47e-5 / 4.8)
    partly_read = replace(code, bytes=490_000_000)  # or it would take longer than it is predicted
    assert E.expected_s(partly_read)[0] == pytest.approx(65e-6)
    assert E.expected_s(replace(one, timing=synthetic.measured(1e-4))) is None
    assert E.expected_s(predicted(shortest_s=1e-5, longest_s=2e-4)) is None
    assert E.expected_s(predicted(device="a100")) is E.expected_s(predicted(device="none")) is None
    assert E.expected_words(one) == "66 µs to 140 µs"
    assert E.expected_words(replace(one, timing=synthetic.measured(1e-4))) == ""
    assert E.expected_words(predicted(device="a100")) == E.NEVER


def test_numbers_that_stand_in_one_table_share_their_bands():
    one, other, never = predicted(), predicted("attention"), predicted(device="a100")
    measured = replace(other, timing=synthetic.measured(1e-4))
    assert E.factor_words([measured]) == ""
    assert E.factor_words([never, never]) == E.NEVER
    alike = "measured times are 0.66 to 1.4 times the predicted"
    assert E.factor_words([one, one, measured]) == alike
    both = "measured over predicted: 0.66 to 1.4 for matrix products, 1 to 1.6 for attention"
    assert E.factor_words([one, other]) == both
    assert E.factor_words([one, never, other]) == f"{both}, others {E.NEVER}"
    assert E.factor_words([one, never]) == (
        f"measured over predicted: 0.66 to 1.4 for matrix products, others {E.NEVER}"
    )


def test_bands_of_several_kernels_have_those_of_kinds_where_one_lacks():
    head = "Measured over predicted time, 5th to 95th percentile (all, if fewer than 20): "
    own = "0.66 to 1.4 for matrix products (8,921 times)"
    assert E.device_words("h200", "matmul, lora") == f"{head}{own}."
    words = E.device_words("h200", "matmul, mine")
    assert words.startswith(f"{head}{own}; 0.8 to 1.6 for other kernels with matrix products")
    assert "before compiling" not in words and words.count(";") == 6
    assert E.device_words("h200").count(";") == 12


# Drivers and files


@pytest.mark.parametrize(
    ("version", "built", "runs"),
    [(12, "12.8", True), (12, "13.0", False), (13, "12.8", True), (0, "12.8", False)],
)
def test_a_driver_runs_what_was_built_for_its_version_or_an_older_one(version, built, runs):
    assert cuda_driver.CudaDriver((version, 9)).can_run(built) == runs


class Library:
    """A driver of two GPUs in which one call fails."""

    def __init__(self, fails="", code=3, name=b"CUDA_ERROR_X"):
        self.fails, self.code, self.name, self.asked = fails, code, name, []

    def __getattr__(self, name):
        def call(*arguments):
            self.asked.append(name)
            if name == "cuGetErrorName":
                arguments[1]._obj.value = self.name
                return 0
            values = {"cuDriverGetVersion": 13010, "cuDeviceGetCount": 2}
            if name in values:
                arguments[0]._obj.value = values[name]
            elif name == "cuDeviceGet":
                arguments[0]._obj.value = 5 + arguments[1]
            elif name == "cuDeviceGetName":
                arguments[0].value = b"GPU %d" % arguments[2].value
            elif name == "cuDeviceTotalMem_v2":
                arguments[0]._obj.value = arguments[1].value << 30
            return self.code if name == self.fails else 0

        return call


CALLS = ("cuDriverGetVersion", "cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName",
         "cuDeviceTotalMem_v2")  # fmt: skip


def test_each_call_of_a_driver_may_fail(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Library())
    two = tuple(cuda_driver.CudaGpu(f"GPU {n}", n << 30) for n in (5, 6))
    assert cuda_driver.cuda_driver() == cuda_driver.CudaDriver((13, 1), two)
    for fails in CALLS:
        for name, words in ((b"CUDA_ERROR_X", "CUDA_ERROR_X"), (None, "error 3")):
            library = Library(fails, name=name)
            monkeypatch.setattr(ctypes, "CDLL", lambda _, library=library: library)
            with pytest.raises(cuda_driver.DriverFailed, match=words):
                cuda_driver.cuda_driver()
            assert library.asked[-2:] == [fails, "cuGetErrorName"]
    monkeypatch.setattr(ctypes, "CDLL", lambda _: Library("cuInit", 100))
    assert cuda_driver.cuda_driver() == cuda_driver.CudaDriver((13, 1), ())


TEXT = (hardware.FOLDER / "h200.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "warp_size = 32",
            "warp_size = 32\nwarp_sizes = 32",
            "[limits] has the unknown key warp_sizes",
        ),
        ("value = 4.8", "value = 4.8\nkin = 1", "[dram] has the unknown key kin; is it kind?"),
        ("low = 0.66", "low = 0.66\nlo = 1", "[[bands]] has the unknown key lo; is it low?"),
        ("low = 0.66", "low = 1.41", "must have a low of at most its high, not 1.41 to 1.4."),
        (
            "int8 = 1978.9",
            "int8 = 1978.9\ninth = 3",
            "[[peaks]] has the unknown key inth; is it int8?",
        ),
        (
            "cores = 132",
            "cores = 132\nmemry = 3",
            "h200.toml has the unknown key memry; is it memory?",
        ),
        ("cores = 132", "cores = 132\nzzzzz = 3", "h200.toml has the unknown key zzzzz."),
        (
            'kind = "stream"',
            'kind = "river"',
            "of product, stream, launch, code product, code, issued code, estimate for the key "
            "kind, not 'river'.",
        ),
        ("cores = 132", "cores = -1", "must have a whole number for the key cores, not -1."),
        (
            'unit = "TB/s"',
            'unit = "GB/s"',
            "must state the key value in the unit TB/s, not 'GB/s'.",
        ),
        (
            'unit = "MiB"',
            'unit = "KiB"',
            "must state the key value in the unit MiB or GiB, not 'KiB'.",
        ),
        (
            'title = "NVIDIA H200 SXM 141 GB"',
            "title = 3",
            "must have a text for the key title, not 3.",
        ),
        ("[[bands]]", "[bands]", "must write the key bands as [[bands]]"),
    ],
)
def test_each_mistake_in_a_file_is_named(tmp_path, old, new, words):
    text = TEXT.replace(old, new, 1) if new != "[bands]" else (
        TEXT[: TEXT.index("[[bands]]")] + "[bands]\n")  # fmt: skip
    (tmp_path / "h200.toml").write_text(text, encoding="utf-8")
    with pytest.raises(DeviceFileError) as error:
        read_device(tmp_path / "h200.toml")
    assert words in str(error.value)


def test_equal_ends_zero_figures_and_no_cores_are_figures(tmp_path):
    text = TEXT.replace("low = 0.66", "low = 1.40", 1).replace("cores = 132", "cores = 0")
    (tmp_path / "zero.toml").write_text(text.replace("value = 4.8", "value = 0"), encoding="utf-8")
    device = read_device(tmp_path / "zero.toml")
    assert device.bands[0].low == 1.4 and device.limits.cores == 0 and device.dram.value == 0.0


def test_metal_is_asked_for_on_a_mac_only(monkeypatch):
    for platform, answer, found in (("darwin", True, True), ("darwin", False, False),
                                    ("linux", True, False)):  # fmt: skip
        monkeypatch.setattr(hardware.sys, "platform", platform)
        there = SimpleNamespace(metal_device=lambda answer=answer: answer)
        monkeypatch.setattr(hardware, "import_module", lambda name, there=there: there)
        assert hardware.metal_device() is found


@pytest.mark.parametrize(("major", "reserved"), [(7, 0), (8, 1024), (9, 1024)])
def test_cuda_takes_a_kib_of_each_block_since_8_0(major, reserved):
    driver = SimpleNamespace(major=major, multi_processor_count=4)
    assert hardware._describe_unlisted(driver, f"sm_{major}9").shared_reserved == reserved
    assert hardware._describe_unlisted(driver, "gfx900").shared_reserved == 0


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_bound_is_the_larger_of_bytes_and_flops(dtype):
    """4.8e9 bytes at 4.8 TB/s take 1 ms, from the cache 9.7 TB/s at twice its rate 0.247 ms."""
    peak = {"bf16": 989.4e12, "fp32": 494.7e12}[dtype]
    assert bounds.bound_s(H200, 4_800_000_000, 10, dtype) == pytest.approx(1e-3)
    assert bounds.hot_bound_s(H200, 4_800_000_000, 10, dtype) == pytest.approx(4.8e9 / 19.4e12)
    assert bounds.bound_s(H200, 10, 10**12, dtype) == pytest.approx(1e12 / peak)
    assert find_device("m2max").peaks.keys() >= {"fp32"}


def test_each_launch_of_a_call_adds_to_its_prediction():
    short, long = (
        code_model.LaunchWork(n, 4, 1, (code_model.RegionWork({"vector": 1e4}, 3.0, False),), m, m)
        for n, m in ((1, 0.0), (132, 1e9))
    )
    parts = [code_model.predict_launch(H200, w, CREATED) for w in (short, long, short)]
    whole = code_model.predict_each(H200, [short, long, short], [CREATED] * 3)
    assert isinstance(whole, Predicted) and whole.bound == "memory" == parts[1].bound
    assert whole.predicted_s == pytest.approx(sum(p.predicted_s for p in parts))
    assert whole.dram_s == pytest.approx(1e9 / (4.8e12 * 0.895))
    assert whole.launch_s == pytest.approx(2.1e-6) and parts[0].bound != "memory"


def test_the_longest_of_unequal_programs_begins_and_ends_once():
    """Four of 132 persistent programs have a tile: a mean one has 0.03 of its trips."""

    def predicted_s(trips, rounds):
        straight = code_model.RegionWork({"vector": 1e5}, 1.0, False)
        loop = code_model.RegionWork({"vector": 1e5}, trips, True, loop=7)
        work = code_model.LaunchWork(132, 4, 1, (straight, loop), 0.0, 0.0, rounds)
        return code_model.predict_launch(H200, work, CREATED).predicted_s

    assert predicted_s(100 * 4 / 132, 33.0) == pytest.approx(predicted_s(100.0, None))


# Further parts of models and files


@pytest.mark.parametrize(("warps", "cycles"), [(2, 150), (7, 150), (8, 160)])
def test_blocks_start_one_after_the_other(warps, cycles):
    """100 blocks of a core that do nothing: 20 cycles a warp each, 150 at least."""
    work = code_model.LaunchWork(132, warps, 1, (), 0.0, 0.0)
    ends, start = 600e-9 + 234 / 1.98e9, 100 * cycles / 1.98e9
    expected = (ends**5.6 + start**5.6) ** (1 / 5.6)
    found = code_model._CodeModel(H200, work, CREATED)._program_s(100)
    assert found == pytest.approx(expected)
    spilled = 2 * 256 * 960 / (18 * 1.98e9)
    found = code_model._CodeModel(H200, work, replace(CREATED, spill_bytes=960))._program_s(1)
    assert found == pytest.approx(ends + spilled, rel=1e-4)


def test_resources_are_octaves_in_units_of_their_reaches():
    some = replace(
        CREATED, spill_bytes=3, blocks_per_core=2, threads=128, programs=1056, registers=64
    )
    assert correction._resources(some, H200.limits) == [2 / 8, 8 / 2, 2 / 6, 0.5]
    none = replace(some, blocks_per_core=0, programs=0)
    assert correction._resources(none, H200.limits)[1:3] == [7 / 2, -math.log2(132) / 6]


def test_each_launch_of_a_measured_call_moves():
    """Two launches of 10 and 20 tiles, the second by 8 programs: there are 30 and 5 tiles now."""
    small, large = (replace(CREATED, programs=n) for n in (10, 8))
    place = correction.ModelledConfig(None, "c", {"M": 1}, large, 2, (small, large))
    before = [Work(n, 1, 1, 1) for n in (10, 20)]
    now = [Work(n, 1, 1, 1) for n in (30, 5)]
    moved = correction._move(place, {"M": 2}, now, before)
    assert [r.programs for r in moved.each] == [30, 5] and moved.resources == moved.each[1]
    other = replace(place, resources=replace(large, registers=1))
    assert correction._move(other, {"M": 2}, now, before).resources == moved.each[0]
    fewer = correction._move(place, {"M": 2}, now[:1], before)
    one_before = correction._move(place, {"M": 2}, now, before[:1])
    assert one_before.each == () and one_before.resources.programs == 8
    assert fewer.each == () and fewer.resources.programs == 8  # as measured: fewer than its tiles


@pytest.mark.parametrize("damage", [{"median_s": 0.0}, {"median_s": 1e6}, {"sizes": {}},
                                    {"sizes": {"M": 4, "N": 0}}])  # fmt: skip
def test_an_impossible_line_of_a_calibration_is_damage(tmp_path, damage):
    time = calibration_of("h100").times[0]
    path = tmp_path / "x.csv.gz"
    about = calibration_of("h100").metadata
    save(Calibration(about, (replace(time, **damage),)), path)
    with pytest.raises(CalibrationError, match=r"is damaged .the line"):
        load(path)
    named = replace(time, median_s=999_999.0, sizes={"M": 1},
                    resources=replace(time.resources, binary="0123456789"))  # fmt: skip
    save(Calibration(about, (named,)), path)
    assert load(path).times[0].resources.binary == "01234567"


def test_an_interval_has_the_shares_of_its_ends():
    """100 MB at 1 TB/s take 100 us: half of 200 us, a quarter of 400 us."""
    known = CeilingSet("h200", (drawn_device.one("dram_copy_measured", "dram", 1e12),))
    load_ = Load(3e-4, 3e-4, 0, 10**8, "bf16", "predicted", span_s=(2e-4, 4e-4))
    held = diagnose(load_, known)
    assert held.sentence == "Predicted: 25 % to 50 % of DRAM (measured)."
    assert held.word == "predicted as an interval" and held.share is None


def test_a_call_passes_a_ceiling_beyond_it_only():
    ceiling = drawn_device.one("dram_copy_measured", "dram", 2.0**40)
    load_ = Load(2.0**-10, 2.0**-10, 0, 2**30, "bf16", "cold")
    assert not ceilings._exceeds(load_, ceiling)
    assert ceilings._exceeds(replace(load_, bytes=2**30 + 1), ceiling)
    assert not ceilings._exceeds(replace(load_, bytes=2**30 + 1, high_s=2.0**-9), ceiling)
    assert not ceilings._exceeds(replace(load_, bytes=2**30 + 1), replace(ceiling, high=2.0**41))
    for cache, words in ((2.0**30, "fit into the last-level cache"), (2.0**30 - 1, "fewer bytes")):
        known = CeilingSet("h200", (ceiling,), cache)
        assert words in ceilings._reason_above(load_, ceiling, known)


def test_one_stated_ceiling_of_a_level_is_drawn():
    one = drawn_device.one
    some = [one(name, "cache", value, origin="datasheet") for name, value in
            (("cache", 2e12), ("l2", 3e12))]  # fmt: skip
    assert [c.name for c in CeilingSet("h200", tuple(some)).lines()] == ["l2"]


@pytest.mark.parametrize("value", [1, 0.5, 1e300])
def test_a_ceiling_is_any_positive_number(value):
    assert ceilings.ceiling_of("h200", "dram", stated(value)).value == value
    for bad in (0, -value, math.inf, "1", None):
        assert ceilings.ceiling_of("h200", "dram", stated(bad)) is None
