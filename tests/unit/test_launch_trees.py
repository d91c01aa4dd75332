"""The boosted trees that order a kernel's configs at sizes that were not measured."""

import gzip
import math
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import launch_trees as benchmark

from workbench.catalog import spec_of
from workbench.device import hardware
from workbench.device.calibration import CalibrationError
from workbench.device.launch_times import TREES, LaunchTimes, launch_times
from workbench.device.launch_trees import FIELDS, NEAR, LaunchTrees, parse_trees, relate
from workbench.spec import values
from workbench.tuner.choice import choices_of

pytestmark = pytest.mark.unit
KERNELS = sorted(path.name.partition(".")[0] for path in TREES.glob("sm_90/*.csv.gz"))
H200 = hardware.find_device("h200")
NAMES = ("log time", "knob block", "log2 M")


def walk(tree, launch):
    """The value of one tree, by following it from its first split."""
    split, threshold, left, right, leaves = tree
    at = 0
    while at >= 0:
        at = (left if launch[NAMES[split[at]]] <= threshold[at] else right)[at]
    return leaves[-1 - at]


@st.composite
def grown(draw, splits=4):
    """A tree of up to four splits, whose children come after them."""
    number = st.integers(-3, 3).map(float)
    feature = [draw(st.integers(0, len(NAMES) - 1)) for _ in range(splits)]
    threshold = [draw(number) + 0.5 for _ in range(splits)]
    left, right = (
        [draw(st.integers(at + 1, splits - 1) | st.integers(-splits - 1, -1))
         if at + 1 < splits else draw(st.integers(-splits - 1, -1)) for at in range(splits)]
        for _ in range(2)
    )  # fmt: skip
    return feature, threshold, left, right, [draw(number) for _ in range(splits + 1)]


a_launch = st.fixed_dictionaries({name: st.integers(-4, 4).map(float) for name in NAMES})


def trees_of(each, features=NAMES):
    return LaunchTrees({}, features, *(np.array(column) for column in zip(*each, strict=True)))


@given(st.lists(grown(), min_size=1, max_size=5), st.lists(a_launch, min_size=1, max_size=6))
def test_what_is_expected_is_the_sum_over_the_trees(each, launches):
    found = trees_of(each).expect(launches)
    assert found.tolist() == [sum(walk(tree, one) for tree in each) for one in launches]


def test_of_a_config_that_the_model_cannot_predict_nothing_is_expected():
    slow_from_two = ([1], [1.5], [-1], [-2], [0.0, 1.0])
    configs = [("rows", {"block": block}) for block in (1, 2, 4)]
    sizes, us = [{"M": 64, "N": 64, "K": 64}], np.ones((1, 3))
    trees = trees_of([slow_from_two])
    one = LaunchTimes({"defaults": "kept"}, configs, sizes, ["bf16"], us, trees)

    def describe(name, knobs):
        block = float(knobs["block"])
        return None if block == 1 else {"log time": 0.0, "knob block": block, "log2 M": 6.0}

    found = one.expect("bf16", sizes[0], describe)
    assert [x.config["block"] for x in found] == [2, 4]
    assert all(x.has_defaults for x in found)
    assert one.expect("bf16", sizes[0], lambda name, knobs: None) == []


def test_a_launch_is_compared_with_the_others():
    launches = [{"log time": 2.0}, {"log time": -1.0}]
    relate(launches)
    assert [one["log time over least"] for one in launches] == [3.0, 0.0]


@pytest.mark.parametrize("kernel", KERNELS)
def test_trees_know_the_features_of_their_kernel(kernel):
    measured = launch_times("sm_90", kernel)
    known = {name for one in benchmark.describe(kernel, measured, 0).values() for name in one}
    assert known - set(NEAR) <= set(measured.trees.features) <= known
    assert {"source", "device", "times"} <= measured.trees.metadata.keys()


@pytest.mark.parametrize("kernel", KERNELS)
def test_trees_order_what_was_measured(kernel):
    """Of the sizes that they were trained on. If the model changed: `python
    benchmarks/launch_trees.py`."""
    measured, over = launch_times("sm_90", kernel), []
    for n in range(0, len(measured.sizes), 3):
        launches = benchmark.describe(kernel, measured, n)
        expected = dict(zip(launches, measured.trees.expect(list(launches.values())), strict=True))
        timed = [c for c in expected if math.isfinite(measured.us[n, c])]
        first = min(timed, key=lambda c: expected[c])
        over.append(measured.us[n, first] / np.nanmin(measured.us[n]))
    assert sorted(over)[int(0.9 * len(over))] <= 1.03 and max(over) <= 1.1


def table_of(us, trees=None):
    """Times of three configs at sizes an octave apart."""
    configs = [("rows", {"block": block}) for block in (1, 2, 4)]
    sizes = [{"M": 64, "N": 1024 << n} for n in range(len(us))]
    return LaunchTimes({}, configs, sizes, ["bf16"] * len(us), np.array(us), trees)


def test_the_mean_leaves_out_what_it_is_told_to():
    one = table_of([[1.0, 2.0, 3.0], [2.0, 1.0, 3.0], [3.0, 2.0, 1.0]])
    mean, octaves = one.mean("bf16", one.sizes[1])
    assert octaves == 0 and mean.argmin() == 1
    mean, octaves = one.mean("bf16", one.sizes[1], without={0, 1})
    assert octaves == math.sqrt(2) and mean.argmin() == 2  # the axis, and its padding
    assert one.mean("bf16", one.sizes[1], without={0, 1, 2})[1] == math.inf
    assert one.mean("fp32", one.sizes[1])[1] == math.inf


SLOW_BY_THE_MEAN = ([0], [0.1], [-1], [-2], [0.0, 1.0])


def test_trees_are_told_what_near_sizes_took():
    found = table_of([[3.0, 1.0, 2.0]], trees_of([SLOW_BY_THE_MEAN], NEAR)).expect(
        "bf16", {"M": 64, "N": 1024}, lambda name, knobs: {"log time": float(knobs["block"])}
    )
    assert found[0].config["block"] == 2 and found[0].ratio < found[1].ratio
    assert not any(x.has_defaults for x in found)


def test_kernels_of_rows_have_the_mean_where_the_model_knows_nothing_of_the_device():
    found = table_of([[1.5, 1.0, 1.2]], trees_of([SLOW_BY_THE_MEAN], NEAR)).expect(
        "bf16", {"M": 64, "N": 1024}, lambda name, knobs: None
    )
    assert [x.config["block"] for x in found] == [2, 4, 1]


@pytest.mark.parametrize("kernel", ("matmul", "lora", "q4_k_matmul"))
@pytest.mark.parametrize("m", [7, 96, 3000])
def test_a_launch_takes_what_the_trees_expect_to_be_the_fastest(kernel, m, tmp_path):
    spec, sizes = spec_of(kernel), {"M": m, "N": 4096, "K": 2048}
    sizes |= {"r": 16} if kernel == "lora" else {}
    choices = choices_of(spec, H200, "bf16", sizes, path=tmp_path / "tuned.json", versions={})
    ratios = [one.ratio for one in choices if one.ratio]
    assert ratios == sorted(ratios) and "by the times measured at sizes like" in choices[0].text
    for one in choices:
        assert one.impl.rejection_reason(one.config, H200.limits, "bf16", sizes) is None
    first, timed = choices[0], launch_times("sm_90", kernel).configs
    assert (first.impl.name, values(first.config)) in [(name, dict(c)) for name, c in timed] or (
        first.config == first.impl.default(H200.limits, "bf16", sizes)
    )


WHOLE = ["0 1", "0.5 0.5", "1 -1", "-2 -3", "0.1 0.2 0.3"]
DAMAGED = [
    (0, "0 3"), (0, "0 -1"), (0, "x 1"), (1, "0.5"), (2, "0 -1"), (2, "2 -1"), (3, "-2 -4"),
    (4, "0.1"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "text"), DAMAGED)
def test_damaged_trees_are_one_sentence(field, text, tmp_path):
    """Features, children and leaves that are not there, and children above their split."""
    path, head = tmp_path / "matmul.csv.gz", f"# features: {', '.join(NAMES)}\n{','.join(FIELDS)}\n"

    def write(fields):
        path.write_bytes(gzip.compress((head + ",".join(fields) + "\n").encode()))

    write(WHOLE)
    whole = parse_trees(path)
    assert whole.expect([dict.fromkeys(NAMES, 0.0)]).tolist() == [0.1]
    write([text if n == field else one for n, one in enumerate(WHOLE)])
    with pytest.raises(CalibrationError, match=r"matmul.csv.gz is damaged .*install the work"):
        parse_trees(path)


@pytest.mark.parametrize("text", ["", "split_feature\n", "# features: a\n" + ",".join(FIELDS)])
def test_trees_without_a_line_are_one_sentence(text, tmp_path):
    path = tmp_path / "matmul.csv.gz"
    path.write_bytes(gzip.compress(text.encode()))
    with pytest.raises(CalibrationError, match="is damaged"):
        parse_trees(path)


def test_kernels_of_products_have_trees():
    assert {"matmul", "matvec", "lora", "q4_k_matmul", "fp8_matmul"} <= {*KERNELS}
