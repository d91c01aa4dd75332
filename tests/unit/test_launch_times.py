"""The launch that is expected to be the fastest at sizes that were not measured."""

import gzip
import itertools
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import launch_times as benchmark

from workbench.catalog import spec_of
from workbench.device import calibration, hardware
from workbench.device import launch_times as module
from workbench.device.calibration import CalibrationError, calibration_of, save
from workbench.device.launch_times import FAR, LAUNCHES, MOST, LaunchTimes, launch_times
from workbench.device.launch_trees import MEAN, launch_features
from workbench.spec import values
from workbench.tuner.choice import choice_of, choices_of

pytestmark = pytest.mark.unit
KERNELS = sorted(path.name.partition(".")[0] for path in LAUNCHES.glob("sm_90/*.csv.gz"))
# Within 12 % of the best at none of 16 drawn sizes
BEATEN = {"softmax": {"split"}}
TREES = {kernel: launch_times("sm_90", kernel).trees for kernel in KERNELS}
BY_MEAN = [k for k, trees in TREES.items() if trees is None or MEAN in trees.features]
H200 = hardware.find_device("h200")
CONFIGS = [("rows", {"block": 1}), ("rows", {"block": 2}), ("looped", {"block": 4})]


def untold(name, knobs):
    """Of a table without trees nothing is asked."""
    raise AssertionError(f"{name} with {knobs} was asked for")


def told(kernel, sizes):
    """What the model says of a kernel's launches on an H200."""
    impls = {impl.name: impl for impl in spec_of(kernel).impls}
    return lambda name, knobs: launch_features(
        impls[name], impls[name].config(**knobs), H200, "bf16", sizes
    )


def table(lines, dtype="bf16"):
    """A table of lines (rows, width, times of the three configs)."""
    sizes = [{"M": m, "N": n} for m, n, *_ in lines]
    us = np.array([us for *_, us in lines], dtype=float)
    return LaunchTimes({}, CONFIGS, sizes, [dtype] * len(lines), us)


times = st.lists(st.floats(1, 1000), min_size=3, max_size=3)


@given(times, st.integers(1, 4096), st.integers(128, 65536))
def test_at_a_measured_size_the_order_is_the_measured_one(us, m, n):
    """What lies many octaves away counts nothing."""
    found = table([(m, n, us), (m, 2**13 * n, us[::-1])]).expect("bf16", {"M": m, "N": n}, untold)
    clear = [min(math.log(one / min(us)), MOST) for one in us]
    order = [CONFIGS.index((x.impl, x.config)) for x in found]
    assert all(clear[a] <= clear[b] + 1e-6 for a, b in itertools.pairwise(order))
    assert all(1 - 1e-9 <= x.ratio <= math.exp(MOST) + 1e-9 for x in found)


@given(times, st.floats(0.1, 10))
def test_a_faster_clock_changes_nothing(us, factor):
    lines = [(64, 1024, us), (64, 2048, [5.0, 6.0, 7.0])]
    faster = [(64, 1024, [factor * one for one in us]), *lines[1:]]
    here = {"M": 64, "N": 1500}
    found, again = (table(one).expect("bf16", here, untold) for one in (lines, faster))
    assert [x.ratio for x in found] == pytest.approx([x.ratio for x in again])


def test_nothing_is_expected_of_sizes_or_numbers_that_nobody_measured():
    one = table([(64, 1024, [1.0, 2.0, 3.0])])
    assert one.expect("fp16", {"M": 64, "N": 1024}, untold)
    assert not one.expect("fp32", {"M": 64, "N": 1024}, untold)
    assert not one.expect("bf16", {"M": 64, "K": 1024}, untold)
    assert not one.expect("bf16", {"M": 64, "N": int(1024 / 2 ** (FAR + 1))}, untold)
    assert one.expect("bf16", {"M": 64, "N": 1 << 30}, untold), "longer rows are like the longest"


def test_a_config_that_was_not_timed_is_neither_first_nor_last():
    found = table([(64, 1024, [1.0, math.nan, 9.0])]).expect("bf16", {"M": 64, "N": 1024}, untold)
    assert [x.config["block"] for x in found] == [1, 2, 4]


def test_rows_of_another_alignment_tell_little():
    lines = [(64, 4096, [1.0, 2.0, 3.0]), (64, 4100, [3.0, 2.0, 1.0])]
    for n, block in ((4112, 1), (4099, 4)):
        assert table(lines).expect("bf16", {"M": 64, "N": n}, untold)[0].config["block"] == block


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_choice_at_measured_sizes_is_near_the_best(kernel, tmp_path):
    measured = launch_times("sm_90", kernel)
    for n in range(0, len(measured.sizes), 9):
        first, *_ = untuned(kernel, measured.sizes[n], tmp_path, measured.dtypes[n])
        taken = first.impl.name, values(first.config)
        us = [
            us
            for (name, knobs), us in zip(measured.configs, measured.us[n], strict=True)
            if (name, dict(knobs)) == taken
        ]
        assert not us or us[0] <= 1.1 * np.nanmin(measured.us[n])


def test_a_default_that_was_timed_nowhere_keeps_what_its_impl_sets_by_the_sizes(tmp_path):
    """`split_k` of `matmul` splits K in as many parts as fill the cores."""
    sizes = {"M": 100, "N": 512, "K": 14336}
    first, *_ = untuned("matmul", sizes, tmp_path)
    timed = [dict(c) for name, c in launch_times("sm_90", "matmul").configs if name == "split_k"]
    default = first.impl.default(H200.limits, "bf16", sizes)
    assert first.impl.name == "split_k" and first.config == default
    assert values(default) not in timed
    others = {"M": 100, "N": 2048, "K": 14336}
    assert values(untuned("matmul", others, tmp_path)[0].config) in timed


@pytest.mark.parametrize(
    "text", ["", "sizes,dtype,rows block=1\n", "sizes,rows block=1\nM=1 N=2,3\n",
             "sizes,dtype,rows block=1\nM=1 N=2,bf16,fast\n"]
)  # fmt: skip
def test_a_damaged_table_is_one_sentence(text, tmp_path, monkeypatch):
    (tmp_path / "sm_90").mkdir()
    (tmp_path / "sm_90" / "softmax.csv.gz").write_bytes(gzip.compress(text.encode()))
    monkeypatch.setattr(module, "LAUNCHES", tmp_path)
    launch_times.cache_clear()
    with pytest.raises(CalibrationError, match=r"softmax.csv.gz is damaged .*install the work"):
        launch_times("sm_90", "softmax")
    launch_times.cache_clear()


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_table_has_the_impls_and_knobs_of_its_kernel(kernel):
    measured, spec = launch_times("sm_90", kernel), spec_of(kernel)
    ours = {i.name: i for i in spec.impls if i.backend == "triton"}
    assert ours.keys() - {name for name, _ in measured.configs} == BEATEN.get(kernel, set())
    assert all(ours[name].choices().keys() == c.keys() for name, c in measured.configs)
    assert all(sizes.keys() == set(spec.axes) for sizes in measured.sizes)
    assert {"gpu", "date", "versions", "unit", "source"} <= measured.metadata.keys()


@pytest.mark.parametrize("kernel", BY_MEAN)
def test_at_sizes_that_are_left_out_the_choice_is_near_the_best(kernel):
    """Half are within 3 % of the best, and 85 % within 15 %; docs/facts.md has the shares."""
    over = sorted(benchmark.left_out(launch_times("sm_90", kernel)))
    assert len(over) >= 8
    assert over[len(over) // 2] <= 1.03 and over[int(0.85 * len(over))] <= 1.15


def untuned(kernel, sizes, tmp_path, dtype="bf16"):
    at = spec_of(kernel), H200, dtype, sizes
    return choices_of(*at, path=tmp_path / "tuned.json", versions={})


def test_a_launch_takes_the_config_that_is_expected_to_be_the_fastest(tmp_path):
    sizes = {"M": 2610, "N": 2810}
    first, *others = untuned("layer_norm", sizes, tmp_path)
    expected = launch_times("sm_90", "layer_norm").expect("bf16", sizes, told("layer_norm", sizes))[
        0
    ]
    assert (first.impl.name, values(first.config)) == (expected.impl, dict(expected.config))
    assert first.ratio == expected.ratio <= min(c.ratio for c in others if c.ratio)
    assert "by the times measured at sizes like these" in first.text


@pytest.mark.parametrize("kernel", ("layer_norm", "softmax", "reduce"))
@pytest.mark.parametrize(("m", "n"), [(1, 128), (3, 5000), (300, 20_000), (4096, 60_000)])
def test_an_impl_has_the_first_config_that_can_run(kernel, m, n, tmp_path):
    sizes = {"M": m, "N": n}
    chosen = {c.impl.name: values(c.config) for c in untuned(kernel, sizes, tmp_path)}
    ours = {i.name: i for i in spec_of(kernel).impls if i.backend == "triton"}
    first = {}
    for one in launch_times("sm_90", kernel).expect("bf16", sizes, told(kernel, sizes)):
        impl = ours[one.impl]
        config = impl.config(**one.config)
        if impl.rejection_reason(config, H200.limits, "bf16", sizes) is None:
            first.setdefault(one.impl, dict(one.config))
    assert first and first == {name: chosen[name] for name in first}


def test_the_users_own_calibration_comes_first(tmp_path, monkeypatch):
    spec, sizes = spec_of("softmax"), {"M": 4096, "N": 1024}
    rows = next(i for i in spec.impls if i.name == "rows")
    at = rows, H200, "bf16", sizes
    nothing = {"path": tmp_path / "tuned.json", "versions": {}}
    assert choice_of(*at, **nothing).ratio
    mine = tmp_path / "h200.csv.gz"
    shipped = calibration_of("h100", "softmax")
    save(replace(shipped, metadata={**shipped.metadata, "device": "h200"}), mine)
    monkeypatch.setattr(calibration, "own_path", lambda device: mine)
    own = choice_of(*at, **nothing)
    assert own.ratio is None and "the calibration of h200" in own.text
