"""Calibrations: the file, what corrects the model, what a launch chooses, and the command."""

import gzip
import hashlib
import io
import math
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import at_night, nightly
from null_backend import Fate, Null, null_resources
from rich.console import Console

from workbench import catalog
from workbench.backend.offline import model_time
from workbench.backend.protocol import Problem
from workbench.commands.calibrate import CalibrateOptions
from workbench.commands.calibrate_command import KERNELS, CalibrateCommand
from workbench.commands.options import CommandError, OptionError
from workbench.commands.problem import find_sweep
from workbench.commands.run import new_run
from workbench.compile import Compiled
from workbench.data.record import Resources
from workbench.data.stats import median
from workbench.device.calibration import (
    SHIPPED,
    Calibration,
    CalibrationError,
    CalibrationTime,
    calibration_of,
    load,
    own_path,
    save,
    sizes_in,
    times_not_held_back,
)
from workbench.device.correction import (
    CLEAR,
    Correction,
    ModelledConfig,
    best_estimate,
    best_of,
    calibrated_kernel,
    guessed_config,
    is_aligned,
    kernels_for,
    left_out,
)
from workbench.device.cost_model import guess_seconds
from workbench.device.hardware import device_named
from workbench.reports.calibration import page, part_of
from workbench.spec import values
from workbench.tuner import first_pass
from workbench.tuner.design import design, round_extent
from workbench.tuner.held_back import summary_of
from workbench.tuner.space import plan_sweep

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import calibration_elsewhere

pytestmark = pytest.mark.unit

H200, H100 = device_named("h200"), device_named("h100")
MATMUL = catalog.spec_of("matmul")
TILES = catalog.impl_of(MATMUL, "tiles")
ABOUT = {"device": "h200", "gpu": "a GPU", "date": "2026-11-25", "versions": "triton 3.6.0",
         "protocol": "p4-1", "source": "a test"}  # fmt: skip
CREATED = Resources(
    binary="abcd1234", registers=64, spill_bytes=0, shared_bytes=49152, threads=256,
    blocks_per_core=1, occupancy=0.0, limiter="", programs=1024, waves=0.0, tail=0.0,
    load_bits=128, matrix_unit="wgmma", compile_s=0.0,
)  # fmt: skip
AT = {"M": 2048, "N": 2048, "K": 2048}
EDGES = st.sampled_from([256, 512, 1024, 2048, 4096])
SIZES = st.fixed_dictionaries({"M": EDGES, "N": EDGES, "K": EDGES})
SHAPES = [{"M": m, "N": n, "K": 1024} for m in (512, 4096) for n in (1024, 2048, 8192)]


def legal(sizes, count):
    """The first legal configs of `matmul.tiles`, its default in front."""
    default = TILES.default(H200.limits, "bf16", sizes)
    every = dict.fromkeys((default, *TILES.space(default)))
    fits = (c for c in every if TILES.rejection_reason(c, H200.limits, "bf16", sizes) is None)
    return [c for c, _ in zip(fits, range(count), strict=False)]


@cache
def expected(count, shape):
    """Configs that are legal at a shape, with the resources and the seconds that the model
    expects."""
    places = [at(config, SHAPES[shape]) for config in legal(SHAPES[shape], count)]
    return [(p.config, p.resources, p.seconds(H200, "bf16")) for p in places]


def at(config, sizes=None):
    """A config of `matmul.tiles` before it is compiled."""
    return guessed_config(TILES, config, H200, "bf16", sizes or AT)


def timed(factor, shapes=6, count=8):
    """Times of configs that take `factor(config)` of what the model expects, at the first of
    SHAPES."""
    return [
        CalibrationTime(
            "matmul", SHAPES[shape], "bf16", "tiles", values(config), created, factor(config) * s
        )
        for shape in range(shapes)
        for config, created, s in expected(count, shape)
    ]


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Write the user's own calibration of the H200, which nothing else reads."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr("workbench.device.calibration.SHIPPED", tmp_path / "none")

    def write(times, device="h200", **about):
        path = own_path(device)
        save(Calibration(ABOUT | {"device": device} | about, tuple(times)), path)
        return path

    return write


# The file

NUMBERS = st.dictionaries(
    st.sampled_from(["block_m", "num_warps", "M", "N", "hints"]),
    st.integers(1, 1 << 20),
    min_size=1,
)
RESOURCES = st.builds(
    lambda registers, unit, engine: replace(
        CREATED, registers=registers, matrix_unit=unit, copy_engine=engine
    ),
    st.integers(0, 255),
    st.sampled_from([None, "wgmma"]),
    st.booleans(),
)
TIMES = st.builds(
    CalibrationTime,
    st.sampled_from(["matmul", "softmax"]),
    NUMBERS,
    st.sampled_from(["bf16", "fp32"]),
    st.sampled_from(["tiles", "rows"]),
    NUMBERS,
    RESOURCES,
    st.integers(1, 10**9).map(lambda n: n * 1e-9),  # the file has thousandths of a microsecond
    st.integers(1, 9),
    st.lists(RESOURCES.map(lambda r: replace(r, binary="")), max_size=3).map(tuple),
    st.booleans(),
)


@given(st.lists(TIMES, max_size=6))
def test_a_file_gives_back_what_was_written(tmp_path_factory, times):
    path = tmp_path_factory.mktemp("calibration") / "h200.csv.gz"
    save(Calibration(ABOUT, tuple(times)), path)
    again = load(path)
    assert dict(again.metadata) == ABOUT
    assert len(again.times) == len(times)
    for one, other in zip(again.times, times, strict=True):
        assert one.median_s == pytest.approx(other.median_s, abs=1e-12)
        assert replace(one, median_s=0.0) == replace(other, median_s=0.0)


@given(st.data())
def test_a_damaged_file_is_refused_in_one_sentence(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("calibration") / "h200.csv.gz"
    save(Calibration(ABOUT, tuple(timed(lambda config: 1.0, 1, 2))), path)
    text = gzip.decompress(path.read_bytes()).decode()
    kind = data.draw(st.sampled_from(["packed", "column", "number", "head"]))
    if kind == "packed":
        whole = path.read_bytes()
        path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 9))])
    else:
        changed = {
            "column": text.replace("median_us", "median_ms"),
            "number": text.replace("tiles,block_m", "tiles,block_m", 1).replace(",128,", ",x,"),
            "head": text.replace("# device: h200\n", ""),
        }[kind]
        path.write_bytes(gzip.compress(changed.encode()))
    with pytest.raises(CalibrationError) as error:
        load(path)
    message = str(error.value)
    assert str(path) in message and "\n" not in message and "workbench calibrate" in message


def test_the_users_own_times_come_before_those_that_are_shipped(own, tmp_path, monkeypatch):
    folder = tmp_path / "shipped"
    monkeypatch.setattr("workbench.device.calibration.SHIPPED", folder)
    theirs = [replace(t, kernel=k) for t in timed(lambda c: 1.0) for k in ("matmul", "softmax")]
    save(Calibration(ABOUT, tuple(theirs)), folder / "h200.csv.gz")
    assert calibration_of("h200").kernels == [("matmul", "bf16"), ("softmax", "bf16")]
    ours = timed(lambda config: 2.0)
    own(ours)
    known = calibration_of("h200")
    assert [t.median_s for t in known.times_of("matmul", "bf16")] == pytest.approx(
        [t.median_s for t in ours], abs=1e-9
    )
    assert len(known.times_of("softmax", "bf16")) == len(theirs) // 2
    for kernel in ("matmul", "softmax"):
        of_one = calibration_of("h200", kernel)
        assert of_one.kernels == [(kernel, "bf16")] and of_one.digest == known.digest
        assert of_one.times_of(kernel, "bf16") == known.times_of(kernel, "bf16")
    assert calibration_of("h100") is None and calibration_of("h200", "copy").times == ()


# What corrects the model


FEWER = settings(max_examples=15)  # each example corrects the model anew


def kernel_of(times):
    return calibrated_kernel(times, MATMUL, H200, True)


@FEWER
@given(st.floats(0.3, 3.0), SIZES)
def test_a_constant_error_is_corrected_everywhere(factor, sizes):
    kernel = kernel_of(timed(lambda config: factor))
    places = [at(config, sizes) for config in legal(sizes, 5)]
    assert kernel.factors(places) == pytest.approx([factor] * len(places), rel=1e-3)
    assert left_out(kernel) == pytest.approx([1.0] * len(kernel.places), rel=1e-3)


@settings(max_examples=6)
@given(st.sampled_from([1, 2, 4, 8, 16]), st.floats(0.5, 2.0))
def test_times_are_met_where_they_were_measured(warps, factor):
    """An error of some configs alone is learnt, and not passed on to those far away."""
    times = timed(lambda config: factor if config.num_warps == warps else 1.0, count=40)
    kernel = kernel_of(times)
    for place, log, corrected in zip(
        kernel.places, kernel.logs, kernel.correction.logs(kernel.places), strict=True
    ):
        assert corrected == pytest.approx(log, abs=0.12), place


def test_far_from_all_sizes_the_median_error_is_expected():
    logs = [0.5, -0.1, 0.2]
    configs = legal(AT, 3)
    places = [at(config) for config in configs]
    far = {axis: 1 << 60 for axis in AT}
    correction = Correction(H200.limits, places, logs)
    moved = [replace(place, sizes=far) for place in places]
    near, away = (correction.logs(some) for some in (places, moved))
    assert median(logs) == 0.2 and near == pytest.approx(logs, abs=0.05)
    # half of a config's own variance is shared by all sizes, that of the sizes is not
    assert max(abs(log - 0.2) for log in away) <= 0.75 * max(abs(log - 0.2) for log in logs)


def test_few_sizes_other_code_and_ragged_rows_correct_nothing():
    every = timed(lambda config: 2.0)
    assert kernel_of(every) is not None
    three = [t for t in every if t.sizes in SHAPES[:3]]
    assert kernel_of(three) is None
    assert kernel_of([replace(t, config={"block_m": 128}) for t in every]) is None
    assert kernel_of([replace(t, impl="gone") for t in every]) is None
    assert calibrated_kernel(every, MATMUL, H200, False) is None
    assert not is_aligned(MATMUL, {"M": 64, "N": 64, "K": 60}) and is_aligned(MATMUL, AT)
    assert is_aligned(MATMUL, {"M": 3, "N": 64, "K": 64}), "M is no axis of a row's elements"


def test_predicted_times_stay_the_models_own(own):
    """Times of a first pass are at the boost clock, and what is predicted is compared with finals,
    too: under the power cap those take up to a quarter longer."""
    config = TILES.default(H200.limits, "bf16", AT)
    place, created = at(config), Compiled(CREATED, "", (1,), 1)
    plain = model_time(H200, created, place, "bf16")
    own(timed(lambda config: 2.0))
    assert model_time(H200, created, place, "bf16") == plain


def test_a_sweep_tries_the_corrected_order(own):
    """The guesses of a plan are multiplied by what the calibration says of each config."""
    problem = Problem("matmul", MATMUL, AT, "bf16")
    null = Null()
    run = new_run("sweep", "full", "", null, [problem])

    def planned():
        plan = plan_sweep(run, problem, find_sweep("full"), [TILES], H200, null.protocol)
        return {c.key: c for c in plan.candidates}

    plain = planned()
    own(timed(lambda config: 3.0 if config.num_warps == 8 else 1.5, count=60))
    corrected = planned()
    assert corrected.keys() == plain.keys()
    kernel = next(kernels_for(MATMUL, H200, "bf16", AT))
    for one in list(corrected.values())[::40]:
        place = kernel.estimate_resources(TILES, one.config, H200, AT)
        (seconds,) = kernel.seconds([place], H200, "bf16")
        assert one.predicted_s == pytest.approx(seconds)
    assert len({c.predicted_s / plain[k].predicted_s for k, c in corrected.items()}) > 1


# Launches


def test_a_launch_takes_what_the_times_say(own):
    """The config that was measured to be clearly the fastest, at sizes between those measured."""
    assert best_estimate(TILES, H200, "bf16", AT) is None
    configs = legal(AT, 30)
    fast = configs[17]
    guesses = {c: guess_seconds(TILES, c, H200, "bf16", AT) for c in configs}
    share = 0.5 * min(guesses.values()) / guesses[fast]
    own(timed(lambda config: share if config == fast else 1.0, count=30))
    estimate = best_estimate(TILES, H200, "bf16", AT)
    assert estimate.config == fast != configs[0]
    assert best_estimate(TILES, H200, "fp16", AT).config == fast, "as fast as in bf16"
    assert best_estimate(TILES, H200, "fp32", AT) is None
    assert best_estimate(TILES, H200, "bf16", AT | {"K": 2047}) is None
    of_h100 = best_estimate(TILES, H100, "bf16", AT)
    assert of_h100.config == fast and of_h100.device == "h200", "the same architecture"
    assert best_estimate(TILES, device_named("a100"), "bf16", AT) is None


@pytest.mark.parametrize(("slower", "stays"), [(0.5 * CLEAR, True), (1.5 * CLEAR, False)])
def test_the_default_stays_unless_another_is_clearly_faster(slower, stays):
    default, other = legal(AT, 2)
    kernel = SimpleNamespace(
        configs=lambda impl: [other],
        estimate_resources=lambda impl, config, device, sizes: at(config),
        recall_resources=lambda impl, config, device, sizes: at(config),
        seconds=lambda places, device, dtype: [1 + slower, 1.0],
    )
    estimate = best_of(kernel, TILES, H200, "bf16", AT)
    assert estimate.config == (default if stays else other)
    assert estimate.seconds == pytest.approx(1 + slower if stays else 1)


def test_a_choice_names_the_calibration_and_survives_a_damaged_one(own, monkeypatch):
    from workbench.tuner import choice as tuner_choice

    monkeypatch.setattr(tuner_choice, "_versions", lambda: {"torch": "2.11.0", "triton": "3.6.0"})
    monkeypatch.setattr(tuner_choice, "expected_launches", lambda problem: ())
    choice = tuner_choice.choice_of(TILES, H200, "bf16", AT)
    assert choice.expected_s is None and choice.text.startswith("the default; nothing tuned")
    path = own(timed(lambda config: 2.0))
    choice = tuner_choice.choice_of(TILES, H200, "bf16", AT)
    assert choice.expected_s and "by the calibration of h200, which expects" in choice.text
    path.write_bytes(b"\x1f\x8b damaged")
    choice = tuner_choice.choice_of(TILES, H200, "bf16", AT)
    assert choice.unread and str(path) in choice.text
    assert choice.config == TILES.default(H200.limits, "bf16", AT)


def test_an_operation_takes_the_impl_that_is_expected_to_be_faster(own, monkeypatch):
    """Where all Impls have an expected time and no case was measured within half an octave; there
    the measured ranks order them, and an Impl that was not timed is first where it is clear."""
    pytest.importorskip("triton")
    from workbench.tuner import choice

    def made(name, expected_s):
        impl = catalog.impl_of(MATMUL, name)
        return choice.LaunchChoice(impl, impl.config(), "", expected_s=expected_s)

    def order(*given, rows):
        case = choice.MeasuredCase("matmul", AT | {"M": rows}, "bf16", ["persistent", "tiles"])
        monkeypatch.setattr(choice, "_nearest", lambda *rest: case)
        monkeypatch.setattr(choice, "expected_launches", lambda problem: ())
        return [c.impl.name for c in choice.order(MATMUL, given, H200, "bf16", AT)]

    tiles, persistent = made("tiles", 1e-6), made("persistent", 2e-6)
    near, far = AT["M"] * 5 // 4, AT["M"] * 2
    assert order(tiles, persistent, rows=far) == ["tiles", "persistent"]
    assert order(tiles, persistent, rows=near) == ["persistent", "tiles"]
    assert order(tiles, replace(persistent, expected_s=None), rows=far)[0] == "persistent"
    slower, faster = made("stream_k", 1.95e-6), made("narrow", 1.5e-6)
    assert order(slower, faster, tiles, persistent, rows=near) == [
        "narrow", "persistent", "tiles", "stream_k",
    ]  # fmt: skip


# The design of sizes


@pytest.mark.parametrize("name", KERNELS)
def test_a_design_has_sizes_that_the_kernel_takes(name):
    spec, dtype = catalog.spec_of(name), KERNELS[name]
    sizes = design(spec, dtype, H200, 20)
    assert len({tuple(s.items()) for s in sizes}) == len(sizes) == 20
    assert design(spec, dtype, H200, 7) == sizes[:7]
    for one in sizes:
        assert spec.refuse(one) is None and is_aligned(spec, one), one
        for axis in one:
            assert one[axis] >= min(s[axis] for s in spec.bench) * 0.9, axis
            assert one[axis] <= 2 * max(s[axis] for s in spec.bench) * 1.1, axis
    for axis in sizes[0]:  # both halves of each free axis are visited
        low, high = (f(s[axis] for s in spec.bench) for f in (min, max))
        if high >= 4 * low:
            middle = math.sqrt(low * high)
            assert min(s[axis] for s in sizes) < middle < max(s[axis] for s in sizes)


@given(st.floats(16.0, 1e6))
def test_an_extent_has_few_figures_and_long_ones_are_aligned(extent):
    result = round_extent(extent)
    assert result == pytest.approx(extent, rel=0.13)
    assert result < 64 or result % 16 == 0
    assert round_extent(result) == result


# What is shipped


SHIPPED_H100 = load(SHIPPED / "h100.csv.gz")
# By day the first: all take 20 s, and at night the command's test has them all, too.
NAMES = [name for name, _ in SHIPPED_H100.kernels]
HELD_BACK = at_night(NAMES, lambda name: NAMES.index(name) == 0)


@pytest.mark.parametrize("kernel", HELD_BACK)
def test_the_shipped_calibration_holds_at_sizes_held_back(kernel):
    """Sizes, and the figures of docs/facts.md within which each kernel is."""
    dtype = KERNELS[kernel]
    times = SHIPPED_H100.times_of(kernel, dtype)
    part = part_of(SHIPPED_H100, kernel, dtype, H100)
    assert len(sizes_in(times_not_held_back(times))) == 12 and len(part.held_sizes) >= 7
    figures = summary_of(part.held_sizes)
    assert figures["first_median"] <= 0.07 and figures["five_worst"] <= 0.17
    assert figures["error_median"] <= 0.11
    assert 0.7 < part.errors.low < 1 < part.errors.high < 1.7


def test_an_h200_takes_the_ratios_of_the_h100():
    """At the aligned sizes of the exhaustive tables of an H200 the config that is chosen takes at
    most 2 % longer than the best of its Impls, where it is in the table."""
    seen = list(calibration_elsewhere.choices())
    known = [choice for choice in seen if choice.regret is not None]
    assert len(seen) == 10 and len(known) >= 6
    assert all(choice.regret <= 0.02 for choice in known)


# The command


def planted(candidate):
    """The time of a config: the model's, with an error of each knob's value."""
    case = candidate.case
    error = sum(
        int(hashlib.sha256(f"{knob}{value}".encode()).hexdigest()[:8], 16) % 1000 / 5000
        for knob, value in (("impl", case.impl), *case.config.items())
    )
    created = null_resources(candidate, Fate())
    place = ModelledConfig(candidate.impl, candidate.config, case.sizes, created)
    return Fate(time_s=min(place.seconds(H200, case.dtype), 1.0) * math.exp(error))


class Place:
    """A folder, a database, and a GPU that takes the planted times."""

    def __init__(self, folder):
        self.folder, self.text = folder, io.StringIO()
        self.file = folder / "calibration.csv.gz"
        self.null = Null()

    def run(self, fate=planted, **more):
        self.null = Null(fate)
        usual = {"kernel": ("rms_norm",), "measure": 4, "check": 2, "configs": 8, "to": self.file}
        options = CalibrateOptions(
            out=self.folder / "results", database=f"sqlite:///{self.folder / 'history.db'}",
            **usual | more,
        )  # fmt: skip
        console = Console(file=self.text, width=240, highlight=False, markup=False)
        return CalibrateCommand(options, console, lambda device, folder: self.null).go()

    @property
    def timed(self):
        return [label for what, label in self.null.requests if what == "time"]

    @property
    def partial(self):
        return self.folder / "results" / "calibration-h200.partial.csv.gz"


class AtOnce:
    """A thread whose target has run once it is started."""

    def __init__(self, target, daemon):
        self.start = target


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A search tries what is compiled first, which follows the clock: one run of 30 on a busy
    machine timed another config. Here a batch is compiled before any of it is tried."""
    monkeypatch.setattr(first_pass, "threading", SimpleNamespace(Thread=AtOnce))
    return Place(tmp_path)


def test_a_gpu_is_calibrated_and_checked(place):
    assert place.run(configs=10) == 0
    known = load(place.file)
    times = known.times_of("rms_norm", "bf16")
    assert len(sizes_in([t for t in times if not t.is_check])) == 4
    assert len(sizes_in([t for t in times if t.is_check])) == 2
    assert known.metadata["device"] == "h200"
    spec = catalog.spec_of("rms_norm")
    for sizes in sizes_in(times):
        here = {(t.impl, tuple(t.config.items())) for t in times if t.sizes == sizes}
        assert 10 <= len(here) <= 10 + 1
        for impl in spec.impls:
            if impl.backend == "triton":
                default = impl.default(H200.limits, "bf16", sizes)
                if impl.rejection_reason(default, H200.limits, "bf16", sizes) is None:
                    assert (impl.name, tuple(values(default).items())) in here
    part = part_of(known, "rms_norm", "bf16", H200)
    # of 10 configs a size; each knob of a planted time errs by up to 20 %
    assert all(h.chosen_s is not None and h.regret < 0.25 for h in part.held_sizes)
    assert all(h.first_s < 1.05 * h.best_s for h in part.held_sizes)
    assert "rms_norm in bf16" in place.text.getvalue() and not place.partial.exists()
    html = page(known, [part], H200)
    assert "Held-back sizes" in html and "rms_norm in bf16" in html


@pytest.mark.parametrize("after", at_night((1, 13, 30), lambda after: after == 13))
def test_a_stopped_command_continues(place, after):
    """Nothing that was timed is timed again, and the file is that of a command without a stop."""
    seen = []

    def stopping(candidate):
        seen.append(candidate.key)
        fate = planted(candidate)
        return replace(fate, raises=KeyboardInterrupt()) if len(seen) > 3 * after else fate

    assert place.run(stopping) == 130
    first = {(one, label) for one, label in enumerate(place.timed[:-1])}
    assert place.run() == 0
    whole = Place(place.folder / "whole")
    whole.folder.mkdir()
    assert whole.run() == 0
    created, expected = (
        {(t.impl, *t.config.values(), *t.sizes.values()): t.median_s for t in load(p.file).times}
        for p in (place, whole)
    )
    assert created == pytest.approx(expected)
    assert len(place.timed) + len(first) <= len(whole.timed) + 9, "one size at most is timed again"


@pytest.mark.nightly
def test_a_second_stop_forgets_nothing(place):
    """Also one that comes before the sizes of the first command are reached again."""

    def stopping(after):
        def fate(candidate):
            late = len(place.timed) > after
            return replace(planted(candidate), raises=KeyboardInterrupt() if late else None)

        return fate

    assert place.run(stopping(25)) == 130
    first = {(t.impl, *t.config.values(), *t.sizes.values()) for t in load(place.partial).times}
    assert place.run(stopping(9), kernel=("swiglu", "rms_norm")) == 130
    again = {(t.impl, *t.config.values(), *t.sizes.values()) for t in load(place.partial).times}
    assert len(first) > 16 and again >= first
    assert place.run() == 0 and len(place.timed) < 30


def test_a_spent_budget_leaves_a_file_and_a_note(place, capsys):
    assert place.run(budget="0.001s") == 2
    assert "the same command continues" in capsys.readouterr().err
    assert not place.file.exists()


def test_other_kernels_keep_their_times(place):
    assert place.run(check=0) == 0
    assert place.run(kernel=("swiglu",), check=0) == 0
    assert load(place.file).kernels == [("swiglu", "bf16"), ("rms_norm", "bf16")]


def test_a_stop_does_not_replace_more_sizes_by_fewer(place):
    assert place.run() == 0
    whole = load(place.file)

    def stopping(candidate):
        if len(place.timed) > 20:  # in the third size
            return replace(planted(candidate), raises=KeyboardInterrupt())
        return planted(candidate)

    place.folder = place.folder / "again"
    place.folder.mkdir()
    assert place.run(stopping) == 130
    assert load(place.file).times == whole.times
    assert len(load(place.partial).times) < len(whole.times)
    assert place.run() == 0 and len(load(place.file).times) == len(whole.times)


def test_what_does_not_fit_the_gpu_is_left_out(place, capsys):
    original, calls = Null.begin, []

    def begin(self, problem, candidates=()):
        calls.append(problem)
        if len({tuple(p.sizes.items()) for p in calls}) == 2:
            raise RuntimeError("out of memory\nmore")
        return original(self, problem, candidates)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Null, "begin", begin)
        assert place.run(check=0) == 0
    assert "is left out: out of memory" in capsys.readouterr().err
    assert len(sizes_in(load(place.file).times)) == 3


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"budget": "200"}, "--budget is a time"),
        ({"kernel": ("matmull",)}, "matmul"),
        ({"kernel": ("softmax",), "dtype": "fp8"}, "dtype"),
    ],
)
def test_options_are_refused_in_one_sentence(place, more, words):
    with pytest.raises((OptionError, CommandError)) as error:
        place.run(**more)
    assert words in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("device", "kernel", "sentence"),
    [
        pytest.param("h100", "rms_norm", " of 8 ", marks=nightly),
        ("h200", "rms_norm", "takes the ratios of NVIDIA H100"),
        ("mi300x", "rms_norm", "until then a launch without a config takes the default"),
        pytest.param("h100", "matmul", " of 8 ", marks=nightly),
    ],
)
def test_without_a_gpu_the_sizes_and_the_stored_calibration_are_shown(
    place, capsys, monkeypatch, device, kernel, sentence
):
    """By day a calibration of two kernels: the whole of an H100's is checked in 9 s."""
    whole = calibration_of("h100")
    some = (*whole.times_of("rms_norm", "bf16"), *whole.times_of("softmax", "bf16"))
    if kernel == "rms_norm" and device == "h100":
        less = Calibration(whole.metadata, some)
        monkeypatch.setattr(
            "workbench.commands.calibrate_command.calibration_of", lambda name: less
        )
    assert place.run(device=device, kernel=(kernel,)) == 0
    assert "nothing is measured" in capsys.readouterr().err
    text = place.text.getvalue()
    assert f"{kernel} in bf16: 6 sizes: M=" in text
    assert sentence in text
    assert not place.file.exists() and not place.null.requests
    assert (place.folder / "results").exists() == (device == "h100"), "a page of what is stored"
