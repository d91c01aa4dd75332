"""The `predict` command: which configs it names, and with which times and intervals."""

import itertools
import json
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import workbench as wb
from workbench import catalog
from workbench.commands.options import CommandError, OptionError
from workbench.commands.predict import PredictOptions, run
from workbench.device.cost_model import guess_seconds
from workbench.device.hardware import UnknownDevice, device_named
from workbench.tuner import prediction
from workbench.tuner.prediction import FIRST, KNOBS, NotPredicted, rank_configs

ROOT = Path(__file__).parents[2]


def test_without_a_calibration_configs_are_ranked_by_the_model(monkeypatch):
    """A search of many has the same best config as all of them."""
    device, spec = device_named("a100"), catalog.spec_of("transpose")
    sizes, (impl, *_) = dict(spec.bench[0]), spec.impls
    choices = [f.metadata["choices"] for f in fields(impl.config)]
    every = [impl.config(*point) for point in itertools.product(*choices)]
    times = [
        guess_seconds(impl, config, device, "fp32", sizes)
        for config in {*every, impl.default(device.limits, "fp32", sizes)}
        if impl.rejection_reason(config, device.limits, "fp32", sizes) is None
    ]
    searched = rank_configs(spec, [impl], device, "fp32", sizes)
    monkeypatch.setattr(prediction, "MANY", len(times) + 100)
    ranking = rank_configs(spec, [impl], device, "fp32", sizes)
    assert searched.configs[0].time_s == ranking.configs[0].time_s
    assert searched.configs_tried < len(times)
    apart = {float(f"{time:.3g}"): time for time in sorted(times, reverse=True)}
    assert [one.time_s for one in ranking.configs] == sorted(apart.values())[:5]
    assert ranking.configs_tried == len(times) > 20 and not ranking.calibrated_by
    assert all(one.expected_s is None for one in ranking.configs), "an A100 was never compared"


def test_a_calibration_corrects_the_times_and_the_band_is_that_of_estimates():
    device = device_named("h200")
    (band,) = (b for b in device.bands if b.kind == "estimate")
    result = wb.predict("softmax", sizes={"M": 4096, "N": 8192}, device="h200")
    assert len(result.configs) == 5 and result.plain()["calibrated_by"] == "h100"
    assert result.best == min(result.configs, key=lambda one: one.time_s)
    least_s = 2 * 4096 * 8192 * 2 / device.dram.value
    for one in result.configs:
        assert one.expected_s == (max(band.low * one.time_s, least_s), band.high * one.time_s)
        assert one.bound == "memory"
    assert result.best.expected_s[0] == least_s, "the band alone would be below what is possible"
    assert least_s < result.best.time_s < 1.5 * least_s
    assert result.predicted and "predicted, limited by memory." in result.sentence
    card = result.best._repr_html_()
    assert result.sentence in card and "nothing was run or checked" in card
    assert list(result.frame()["time_s"]) == [one.time_s for one in result.configs]


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"dtype": "fp64"}, "no dtype 'fp64'"),
        ({"sizes": "M=4096"}, "lacks N"),
        ({"device": "m2max"}, "`workbench sweep`, `measure`"),
        ({"grid": "1"}, "--grid describes the launch of a FILE.py:FUNCTION"),
        ({"kernel": "nowhere.py:f"}, "is not FILE.py:FUNCTION of a file that is there"),
        ({"kernel": "nowhere.py:f", "sizes": "M=1"}, "--sizes is for a kernel"),
    ],
)
def test_what_cannot_be_predicted_is_refused_in_a_sentence(more, sentence):
    options = {"kernel": "softmax", "device": "h200", **more}
    with pytest.raises((CommandError, OptionError, UnknownDevice), match=sentence):
        run(PredictOptions(**options))


def test_a_kernel_without_work_is_sent_to_the_sweep():
    spec = catalog.spec_of("copy")
    bare = [replace(impl, work=None) for impl in spec.impls]
    with pytest.raises(NotPredicted, match=r"copy declares no `work`.*workbench sweep copy"):
        rank_configs(spec, bare, device_named("h200"), "bf16", dict(spec.bench[0]))
    with pytest.raises(NotPredicted, match=r"workbench sweep 'my files/copy.py' --device h200"):
        at = device_named("h200"), "bf16", dict(spec.bench[0])
        rank_configs(spec, bare, *at, "my files/copy.py")


def test_the_command_needs_neither_torch_nor_triton_and_says_the_same():
    """Kernels' files get stand-ins for both, with which their `work` counts alike; no file of a
    kernel uses them as it is imported."""
    code = (
        "import sys; from workbench import catalog; from workbench.cli import main; "
        "from workbench.commands.predict import spec_without_triton; "
        "main('predict rope --device h200 --json -'.split()); "
        "[spec_without_triton(name) for name in catalog.kernel_names()]; "
        "sys.exit('torch' in sys.modules or 'triton' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    here = wb.predict("rope", device="h200").plain()
    assert json.loads(done.stdout)["predictions"] == here["predictions"]


@given(data=st.data())
@settings(max_examples=8, deadline=None)
def test_the_search_of_many_configs_finds_what_all_of_them_hold(data):
    """Where an Impl has many configs only some are predicted. The first one is the fastest of all,
    or, at few sizes, hardly slower."""
    spec, device = catalog.spec_of("matmul"), device_named("h200")
    m, n, k = (data.draw(st.integers(1, 600), label=axis) * 8 - 4 for axis in "MNK")  # unaligned
    sizes = {"M": m, "N": n, "K": k}
    (impl,) = (impl for impl in spec.impls if impl.name == "tiles")
    ranking = rank_configs(spec, [impl], device, "bf16", sizes)
    every = impl.space(impl.default(device.limits, "bf16", sizes), KNOBS)
    runs = (c for c in every if impl.rejection_reason(c, device.limits, "bf16", sizes) is None)
    times = [guess_seconds(impl, config, device, "bf16", sizes) for config in runs]
    assert len(times) > ranking.configs_tried > FIRST
    assert min(times) <= ranking.configs[0].time_s <= 1.05 * min(times)
