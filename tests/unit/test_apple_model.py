"""The model `apple-2`: a roofline of counted bytes, with an interval and without guesses."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.backend import offline
from workbench.backend.metal.emulated import counted_sizes
from workbench.backend.protocol import Problem
from workbench.backend.refusal import refusal_of
from workbench.catalog import names_in, spec_of
from workbench.commands.problem import CommandError, check_sweep, find_sweep, own_impls
from workbench.data.record import BufferCounts, Case, CountedTraffic, Predicted
from workbench.device import apple_model
from workbench.device.apple_model import HIGH, LOW, MARGIN, SHARES, MetalWork, chip_class, predict
from workbench.device.hardware import UNCOMPILED, device_named
from workbench.measurement.candidate import Candidate
from workbench.spec import values

M2MAX = UNCOMPILED["m2max"]
M4MAX = UNCOMPILED["m4max"]
METAL = names_in("metal_shim.kernels")
works = st.builds(
    MetalWork,
    bytes=st.integers(1, 1 << 40),
    least_bytes=st.integers(1, 1 << 40),
    flops=st.integers(0, 1 << 50),
    threads=st.integers(1, 1 << 32),
    dispatches=st.integers(1, 4),
)


def candidate_of(impl, config):
    case = Case(impl.spec.name, impl.name, "metal", values(config), {}, "", "m2max")
    return Candidate(case, "", impl, config)


@given(works)
def test_a_prediction_is_its_launches_and_its_largest_term(work):
    result = predict(M2MAX, work, "fp32")
    terms = {"memory": result.dram_s, "compute": result.compute_s, "waves": result.latency_s}
    assert result.predicted_s == pytest.approx(result.launch_s + max(terms.values()))
    assert terms[result.bound] == max(terms.values()) and result.cache_s is None
    assert result.launch_s == pytest.approx(work.dispatches * apple_model.LAUNCH_S)
    assert result.predicted_s <= result.longest_s <= HIGH * result.predicted_s
    least = min(work.bytes, work.least_bytes)
    again = (work.bytes - least) / (2 if work.least_bytes <= 48 << 20 else 1)
    assert result.dram_s >= (least + again) / M2MAX.dram.value
    assert result.compute_s >= work.flops / M2MAX.peaks["fp32"].value


@given(works)
def test_each_term_has_an_interval_around_its_value(work):
    terms = apple_model.term_intervals(M2MAX, predict(M2MAX, work, "fp32"), work.least_bytes)
    assert set(terms) == {"memory traffic", "arithmetic", "launch and waves"}
    assert all(0 <= low <= value <= high for value, low, high in terms.values())


# Published times


FILE = Path(__file__).parents[2] / "benchmarks" / "data" / "apple_published.csv"


def published():
    with FILE.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def share_of(row):
    """The class of a published time and the share of the stated figure that it reaches."""
    device, time_s = UNCOMPILED[row["chip"]], float(row["reported_ms"]) * 1e-3
    memory_s = float(row["bytes"]) / device.dram.value
    peak = device.peaks.get(row["dtype"])
    compute_s = float(row["flops"]) / peak.value if peak else 0.0
    name = chip_class(device.title) if memory_s >= compute_s else "arithmetic"
    return name, max(memory_s, compute_s) / time_s


def shares_of(rows):
    known = {}
    for name, share in map(share_of, rows):
        known.setdefault(name, []).append(share)
    return {name: (min(each), max(each)) for name, each in known.items()}


def test_the_shares_are_those_of_the_published_times():
    rows = published()
    assert len(rows) == 18 and len({row["chip"] for row in rows}) == 13
    assert all(row["source"] for row in rows)
    rounded = {name: (round(a, 2), round(b, 2)) for name, (a, b) in shares_of(rows).items()}
    assert rounded == dict(SHARES)


def test_with_a_chip_left_out_its_published_times_are_within_the_band_of_the_others(monkeypatch):
    """At least 16 of 18 are, and no band is wider than a factor of 1.8."""
    rows, inside = published(), 0
    for row in rows:
        others = [other for other in rows if other["chip"] != row["chip"]]
        monkeypatch.setattr(apple_model, "SHARES", shares_of(others))
        moved, flops = int(row["bytes"]), int(row["flops"])
        work = MetalWork(float(moved), moved, flops, threads=0)
        result = predict(UNCOMPILED[row["chip"]], work, row["dtype"])
        inside += result.shortest_s <= float(row["reported_ms"]) * 1e-3 <= result.longest_s
        assert 1 < result.longest_s / result.shortest_s <= 1.8, row
    assert inside >= 16


def test_ends_of_an_interval_by_hand():
    """536.87 MB at 400 GB/s: 1.342 ms. Of 400 GB/s Max chips reach 77 to 93 %, 15 % more at most,
    and no more than all of them; a dispatch is 3.5 to 10 us."""
    result = predict(M2MAX, MetalWork(2.0**29, 2**29, 0, 0), "fp32")
    assert result.shortest_s == pytest.approx(1.34218e-3 + 3.5e-6, rel=1e-4)
    assert result.longest_s == pytest.approx(1.34218e-3 / (0.77 / MARGIN) + 10e-6, rel=1e-4)


def test_second_reads_take_half_as_long_where_the_reported_cache_holds_all():
    """48 MB on an M2 Max. Its cache is reported; that of an M4 Max is not."""
    for device, least, factor in ((M2MAX, 40 << 20, 1.5), (M2MAX, 50 << 20, 2), (M4MAX, 4096, 2)):
        once = predict(device, MetalWork(float(least), least, 0, 0), "fp32")
        twice = predict(device, MetalWork(2.0 * least, least, 0, 0), "fp32")
        assert twice.dram_s == pytest.approx(factor * once.dram_s)
        assert twice.shortest_s == once.shortest_s


def test_a_changed_model_or_device_changes_the_key_of_predictions(tmp_path):
    method = offline.method_for(M2MAX)
    key = offline.model_key(method, M2MAX)
    faster = replace(M2MAX, dram=replace(M2MAX.dram, value=2 * M2MAX.dram.value))
    assert key.startswith("apple-2 ") and key != offline.model_key(method, faster)
    assert key != offline.model_key(offline.method_for(M4MAX), M4MAX)
    keys = set()
    texts = ("HIGH = 2.0", "HIGH = 2.0  # a comment", "HIGH = 3.0")
    for number, text in enumerate(texts):
        file = tmp_path / f"model{number}.py"
        file.write_text(text)
        keys.add(offline.model_key(replace(method, files=(file,)), M2MAX))
    assert len(keys) == 2
    assert all(file.is_file() for file in method.files)


@given(works)
def test_the_lower_end_is_of_the_least_bytes_and_no_shorter_than_the_chip_allows(work):
    """It does not depend on what the emulator counted beyond the least bytes."""
    result = predict(M2MAX, work, "fp32")
    least = min(work.bytes, work.least_bytes)
    cached = predict(M2MAX, replace(work, bytes=least), "fp32")
    bound = max(least / M2MAX.dram.value, work.flops / M2MAX.peaks["fp32"].value)
    assert result.shortest_s == cached.shortest_s >= max(bound, LOW * cached.launch_s)
    assert result.shortest_s <= cached.predicted_s <= result.predicted_s <= result.longest_s


@given(works, st.sampled_from(["bytes", "flops", "threads", "dispatches"]))
def test_more_work_takes_no_less_time(work, field):
    more = replace(work, **{field: 2 * getattr(work, field)})
    assert predict(M2MAX, more, "fp32").predicted_s >= predict(M2MAX, work, "fp32").predicted_s


@given(works)
def test_without_a_peak_only_what_memory_limits_has_a_prediction(work):
    compute_bound = work.flops > apple_model.RIDGE * work.least_bytes
    if compute_bound:
        with pytest.raises(ValueError, match="the fp32 peak of Apple M4 Max is unknown"):
            predict(M4MAX, work, "fp32")
    else:
        result = predict(M4MAX, work, "fp32")
        assert result.compute_s is None and result.bound in ("memory", "waves")


def test_without_a_bandwidth_nothing_has_a_prediction():
    with pytest.raises(ValueError, match="bandwidth of Apple M2 Max is unknown"):
        predict(replace(M2MAX, dram=None), MetalWork(1, 1, 1, 1), "fp32")


def test_what_is_unknown_is_below_every_known_ridge():
    """So no kernel is said to be limited by memory that arithmetic limits on a known chip."""
    ridges = [
        d.peaks["fp32"].value / d.dram.value for d in UNCOMPILED.values() if "fp32" in d.peaks
    ]
    assert len(ridges) == 9 and min(ridges) / 2 >= apple_model.RIDGE


@pytest.mark.parametrize("name", METAL)
def test_bytes_are_counted_at_a_small_size_that_the_config_takes(name):
    """Halving keeps whole tiles: the kernel's formula falls by a whole factor in all of them."""
    spec = spec_of(name)
    for impl in own_impls(spec, "metal"):
        for sizes in spec.bench:
            config = impl.default(M2MAX.limits, "fp16", sizes)
            if impl.rejection_reason(config, M2MAX.limits, "fp16", sizes):
                continue
            small = counted_sizes(impl, config, M2MAX.limits, "fp16", sizes)
            assert all(small[axis] <= sizes[axis] for axis in sizes)
            assert spec.refuse(small) is None
            assert impl.rejection_reason(config, M2MAX.limits, "fp16", small) is None
            assert spec.flops(**small) < 1 << 26 and spec.bytes(small, "fp16") < 1 << 24


# Refusals, before anything runs


def refused(kernel, name, sizes, device=M2MAX, dtype="fp16", **knobs):
    spec = spec_of(kernel)
    impl = next(i for i in spec.impls if i.name == name and i.backend == "metal")
    config = impl.config_of({**values(impl.config()), **knobs})
    problem = Problem(kernel, spec, sizes, dtype)
    return refusal_of(candidate_of(impl, config), problem, device)


SQUARE = {"M": 4096, "N": 4096, "K": 4096}


@pytest.mark.parametrize(
    ("knobs", "reason"),
    [
        ({"tile": 16}, None),
        ({"tile": 32}, None),
        ({"tile": 64}, "one output a thread takes 4096 threads; a threadgroup has at most 1024"),
        ({"tile": 128}, "one output a thread takes 16384 threads"),
    ],
)
def test_the_tiles_of_guide_2_are_choices_and_impossible_ones_refused(knobs, reason):
    said = refused("matmul", "tiled", SQUARE, **knobs)
    assert said is None if reason is None else said.startswith(reason)
    (tiled,) = [i for i in spec_of("matmul").impls if i.name == "tiled"]
    assert {16, 32, 64, 128} <= {*tiled.choices()["tile"]}


@pytest.mark.parametrize("name", ["softmax", "rms_norm", "layer_norm", "matvec", "read_only"])
def test_the_threads_of_guide_2_are_choices(name):
    choices = [i.choices().get("threads", ()) for i in own_impls(spec_of(name), "metal")]
    assert any({32, 64, 128, 256, 512} <= {*each} for each in choices), choices


def test_simd_groups_that_do_not_divide_a_block_are_refused():
    reason = refused("matmul", "simdgroup", SQUARE, block_m=16, simd_m=4)
    assert reason == "block_m = 16 is not a multiple of 8 x 4 SIMD-groups"


def test_threadgroup_memory_is_counted_from_the_declarations():
    wide = {"block_m": 128, "block_n": 128, "block_k": 32, "simd_m": 4, "simd_n": 4}
    reason = refused("matmul", "simdgroup", SQUARE, dtype="fp32", **wide)
    assert reason == "36864 bytes of threadgroup memory; a threadgroup has 32768"


def test_a_buffer_is_no_larger_than_the_memory_of_the_chip():
    sizes = {"M": 1 << 21, "N": 1 << 16}
    reason = refused("softmax", "online", sizes, device=UNCOMPILED["m2"])
    assert reason == "the buffer of x needs 256 GiB; Apple M2 has 24 GiB"


def test_an_axis_of_the_grid_ends_before_two_to_the_32():
    sizes = {"M": 1 << 23, "N": 64}
    reason = refused("softmax", "online", sizes, threads=1024)
    assert reason is not None and "an axis of the grid has 2^32 threads or more" in reason


# What a device finds


def test_the_impls_are_those_of_the_device():
    spec = spec_of("softmax")
    assert {i.backend for i in own_impls(spec, M2MAX.backend)} == {"metal"}
    assert {i.backend for i in own_impls(spec, device_named("h200").backend)} == {"triton"}
    with pytest.raises(CommandError, match="attention has no Metal kernel; these operations"):
        own_impls(spec_of("attention"), "metal")


def test_the_sweep_of_threadgroups_names_block_size_on_other_devices():
    sweep = find_sweep("threadgroup")
    check_sweep("threadgroup", sweep, "m2max")
    for device in ("h200", "mi300x", None):
        with pytest.raises(CommandError, match="for this device name block_size"):
            check_sweep("threadgroup", sweep, device)
    check_sweep("block_size", find_sweep("block_size"), "m2max")


def test_what_a_sweep_will_not_say_is_said_for_each_peak():
    """The peak of bf16 is stated for no M2 Max; a copy is limited by memory, so it needs none."""
    matmul, copy = 2 * 4096**3, 0
    said = apple_model.unsaid(M2MAX, "bf16", matmul, 3 * 2 * 4096**2)
    assert said.startswith("No times: the bf16 peak of Apple M2 Max is unknown, and arithmetic may")
    for dtype, flops in (("fp16", matmul), ("bf16", copy)):
        said = apple_model.unsaid(M2MAX, dtype, flops, 3 * 2 * 4096**2)
        assert said.startswith("No config will be called the fastest: ")


def test_what_is_counted_has_no_field_for_a_time():
    for counted in (CountedTraffic, BufferCounts):
        assert not [n for n in counted.__dataclass_fields__ if n.endswith(("_s", "time", "us"))]
    assert not {*Predicted.__dataclass_fields__} & {"median_s", "low_s", "high_s", "samples_s"}
