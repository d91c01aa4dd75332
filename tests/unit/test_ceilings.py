"""Ceilings on the null side: what is sought, when one stands, what is kept, what a page says."""

import io
import random
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from null_backend import Fate, Null
from nullside import entries
from rich.console import Console

from workbench import catalog
from workbench.code.loops import Code, Counts
from workbench.commands import ceilings_command as command
from workbench.commands import experiment_command
from workbench.commands.ceilings import CeilingsOptions
from workbench.commands.ceilings_command import CeilingsCommand
from workbench.commands.report import draw
from workbench.data.database import open_history
from workbench.data.events import RunFinished, read
from workbench.data.record import Failure, Record, Run
from workbench.device.hardware import DEVICES, UnknownDevice
from workbench.experiments.analysis import ceilings
from workbench.experiments.analysis.ceilings import (
    groups_of,
    measured_ceilings,
    stated_ceilings,
    stream_elements,
    usable,
)
from workbench.measurement import transfers
from workbench.measurement.rounds import Window
from workbench.reports.ceilings import line, page, pairs_of, word
from workbench.spec import sizes_text

pytestmark = pytest.mark.unit

H200 = DEVICES["h200"]
# what each kernel is fated to reach, a second; libraries a hundredth less
RATES = {"read_only": 4.4e12, "fill": 4.1e12, "library_fill": 4.1e12, "copy": 4.2e12,
         "triad": 4.25e12, "reduce": 4.4e12, "cache_read": 7e12, "library_cache": 7e12,
         "l1_read": 3e13, "compute_only": 6e13}  # fmt: skip
PEAKS = {"fp32": 4e14, "fp16": 8e14, "bf16": 8e14, "fp8": 15e14, "int8": 16e14}


def usual(candidate, factor=1.0):
    """A time at which every check of every ceiling holds; `factor` times the rate."""
    case, spec = candidate.case, candidate.impl.spec
    if spec.name in ("empty", "empty_chain"):
        count = case.sizes.get("L", 1)
        return Fate(count * 0.8e-6 / factor, kernels=count)
    if candidate.impl.work is not None and spec.name in ("cache_read", "l1_read", "library_cache"):
        work = candidate.impl.work(candidate.config, H200.limits, itemsize=4, **case.sizes)
        amount = work.tiles * work.steps * work.load_bytes
    elif spec.name in RATES and spec.name != "compute_only":
        amount = spec.bytes(case.sizes, case.dtype)
    else:
        amount = spec.flops(**case.sizes)
    small = spec.name == "matmul" and case.dtype == "fp32"
    rate = 5e13 if small else RATES.get(spec.name) or PEAKS[case.dtype]
    slower = 0.99 if case.backend == "torch" else 1.0
    # DRAM has a clock of its own; everything else is a ninth faster at the boost clock
    boost = 1.0 if rate < 5e12 else 0.9
    return Fate(amount / (rate * slower * factor), boost=boost)


def host_copies(right=True):
    created = []
    for direction in ("h2d", "d2h"):
        for pinned in (True, False):
            for size in transfers.SIZES[::4]:
                dice = random.Random(size)
                seconds = 5e-6 + size / (5e10 if pinned else 1e10)
                windows = [Window(tuple(seconds * dice.uniform(1, 1.01) for _ in range(4)))] * 3
                timing = transfers.summarise(windows) if right else None
                created.append(transfers.Copied(direction, pinned, size, timing, right))
    return created


class Place:
    """A folder with a database and results, and ceilings measured in it."""

    def __init__(self, folder):
        self.out, self.url = folder / "results", f"sqlite:///{folder / 'history.db'}"
        self.console = io.StringIO()

    def gauge(self, fate=usual, copies=host_copies, device=None, **more):
        wanted = CeilingsOptions(device=device, out=self.out, database=self.url)
        self.null = Null(fate, rules=command.RULES)
        text = Console(file=self.console, width=200)
        self.gauging = CeilingsCommand(wanted, text, lambda: self.null, copies, **more)
        return self.gauging.go()

    def known(self):
        with open_history(self.url) as history:
            return measured_ceilings(history, "h200")

    def events(self):
        (file,) = self.out.glob("*/events.jsonl")
        result = read(file)
        assert not result.bad
        return entries(result.events)

    @property
    def result(self):
        return self.gauging.ceilings

    @property
    def text(self):
        return self.console.getvalue()


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Pages take a second to draw; the tests that look at them draw them."""
    monkeypatch.setattr("workbench.reports.ceilings.page", lambda *a: "<p>page</p>")
    return Place(tmp_path)


# What is sought


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
def test_what_is_sought_can_be_asked_of_every_device(device):
    """Kernels, Impls and configs exist, sizes fit the Specs; of each ceiling some arm may run,
    or each refuses in a sentence."""
    groups = groups_of(device, None)
    names = [s.name for g in groups for s in g.sought]
    assert len(names) == len(set(names))
    for group in groups:
        variants = group.variants
        assert len({a.name for a in variants}) == len(variants)
        for variant in variants:
            problem = experiment_command.variant_problem(variant)
            assert problem.spec.refuse(variant.sizes) is None and set(problem.spec.axes) == set(
                variant.sizes
            )
        for sought in group.sought:
            reason = [refusal(a, device) for a in sought.variants]
            assert None in reason or all(len(w.split()) > 4 for w in reason), sought.name
            if device.name in ("h200", "h100"):
                assert reason == [None] * len(reason), f"{sought.name}: {reason}"


def refusal(variant, device):
    spec = catalog.spec_of(variant.kernel)
    impl = catalog.impl_of(spec, variant.impl)
    config = impl.config(**variant.config)
    return impl.rejection_reason(config, device.limits, variant.dtype, variant.sizes)


@given(st.one_of(st.none(), st.integers(1 << 30, 1 << 40)))
def test_a_stream_is_a_power_of_two_that_fits(memory):
    count = stream_elements(memory)
    assert count & (count - 1) == 0 and 1 << 20 <= count <= ceilings.STREAM
    assert memory is None or 512 * count <= memory


# One measurement


def test_all_ceilings_are_found_checked_and_kept(place):
    assert place.gauge() == 0
    kept = place.known()
    assert set(kept) == set(place.result) and not any(c.get("failed") for c in kept.values())
    for name in ("dram_read", "cache", "shared", "compute_bf16", "compute_int8", "launch_pdl",
                 "launch_eager", "h2d_pinned", "d2h_pageable"):  # fmt: skip
        one = kept[name + "_measured"]
        assert one["low"] <= one["value"] <= one["high"] and one["kind"] == "measured"
        assert one["source"] and one["unit"] in ("B/s", "FLOP/s", "OP/s", "s")
    assert kept["dram_copy_measured"]["value"] == pytest.approx(4.2e12, rel=0.01)
    assert kept["launch_eager_measured"]["value"] == pytest.approx(0.8e-6, rel=0.01)
    assert kept["h2d_pinned_measured"]["value"] == pytest.approx(5e10, rel=0.02)
    *outcomes, run, end = place.events()
    assert isinstance(run, Run) and run.ceilings == {**stated_ceilings(H200), **place.result}
    assert isinstance(end, RunFinished) and end.state == "complete"
    assert len(outcomes) == len(place.gauging.recorder.outcomes)
    with open_history(place.url) as history:
        assert history.outcomes(run.id) == list(outcomes)


def test_each_ceiling_is_measured_in_both_states(place):
    place.gauge()
    kept = place.known()
    for stem, factor in (
        ("dram_read", 1.0),
        ("cache", 0.9),
        ("shared", 0.9),
        ("compute_bf16", 0.9),
    ):
        settled, boost = kept[f"{stem}_measured"], kept[f"{stem}_boost_measured"]
        assert (settled["state"], boost["state"]) == ("sustained", "boost")
        assert (settled["clock_mhz"], boost["clock_mhz"]) == (1500.0, 1980.0)
        assert settled["value"] == pytest.approx(factor * boost["value"], rel=0.01)
        assert ("library" in settled) == ("library" in boost) == (stem != "shared")
    assert not [n for n in kept if "boost" in n and n.startswith(("launch", "h2d", "d2h"))]
    records = [e for e in place.events() if isinstance(e, Record) and e.case.kernel != "host_copy"]
    phases = {(r.timing.state, r.phase) for r in records}
    assert phases == {("boost", "first_pass"), ("sustained", "final"), ("sustained", "hot")}
    keys = [r.key for r in records]
    assert len(set(keys)) == len(keys), "a time of one state is never found for the other"
    text = next(x for x in place.text.splitlines() if x.startswith("bf16, matrix unit: "))
    sustained, boost = (
        float(found[1]) for found in re.finditer(r"(?:sustained|boost) ([\d.]+) TFLOP/s", text)
    )
    assert (sustained, boost) == (pytest.approx(800, rel=0.01), pytest.approx(888, rel=0.01))
    assert "1500 MHz" in text


@pytest.mark.parametrize("device", ["h200", "mi300x"])
def test_one_state_of_a_ceiling_is_compared_with_the_same_state_alone(device):
    """L1 must exceed the cache: at the boost clock the cache of that clock."""
    (group,) = [g for g in groups_of(DEVICES[device], None) if g.name == "caches"]
    shared = group.sought[1]
    known_ = {
        "cache_measured": {"value": 5.0, "title": "cache", "state": "sustained"},
        "cache_boost_measured": {"value": 7.0, "title": "cache", "state": "boost"},
        "shared_measured": {"value": 6.0, "title": "L1", "state": "sustained"},
    }
    for state, value, stands in (("sustained", 6.0, True), ("boost", 6.5, False),
                                 ("boost", 7.1, True)):  # fmt: skip
        one = {"value": value, "state": state, "title": "L1"}
        assert (ceilings.doubt(replace(shared, statement=None), one, known_) is None) == stands


@given(st.floats(0.5, 1.0), st.sampled_from(["cache", "compute"]))
def test_a_boost_ceiling_below_the_sustained_one_is_not_used(share, level):
    sought = ceilings.Sought("x", "x", level, "bytes", ())
    settled = {"value": 1.0, "title": "x", "state": "sustained"}
    one = {"value": share, "state": "boost", "title": "x"}
    reason = ceilings.doubt(sought, one, {"x_measured": settled})
    assert (reason is None) == (share >= ceilings.RECOVERED)
    assert reason is None or "the clock had not recovered" in reason
    assert ceilings.doubt(sought, one, {"x_measured": {**settled, "failed": True}}) is None
    assert ceilings.doubt(sought, {**one, "state": "sustained"}, {"x_measured": settled}) is None


def test_a_clock_that_does_not_recover_leaves_the_sustained_ceiling(place):
    place.gauge(lambda c: replace(usual(c), boost=1.2))
    kept = place.known()
    assert not any("boost" in name for name in kept) and "compute_bf16_measured" in kept
    assert "sound; boost failed" in place.text and "had not recovered" in place.text


def test_the_best_arm_counts(place):
    def fate(c):
        chosen = c.case.kernel == "copy" and c.case.config.get("block_n") == 2048
        return usual(c, 1.05 if chosen else 1.0)

    place.gauge(fate)
    one = place.result["dram_copy_measured"]
    assert one["value"] == pytest.approx(1.05 * 4.2e12, rel=0.01)
    assert "block_n 2048" in one["source"] and "best of 3" in one["source"]


@pytest.mark.parametrize(
    ("kernel", "factor", "name", "reason"),
    [
        ("matrix_only", 0.9, "compute_bf16", "does not reach the limit"),
        ("fill", 0.9, "dram_write", "torch.fill_"),
        ("read_only", 1.2, "dram_read", "cannot be"),
        ("l1_read", 1.2, "shared", "not all of the work was done"),
        ("l1_read", 0.2, "shared", "below last-level cache"),
        ("copy", 1.06, "dram_read", "below DRAM, copy"),
        ("empty_chain", 0.1, "launch", "as long as one empty kernel"),
    ],
)
def test_a_ceiling_that_fails_its_check_is_shown_and_never_used(
    place, kernel, factor, name, reason
):
    def fate(c):
        return usual(c, factor if c.case.kernel == kernel and c.case.backend != "torch" else 1.0)

    place.gauge(fate)
    one = place.result[name + "_measured"]
    assert one["failed"] and reason in one["reason"] and word(one) == "failed"
    kept = place.known()
    assert name + "_measured" not in kept
    assert "compute_fp32_measured" in kept, "the others stand"
    assert "failed" in place.text and one["reason"] in place.text


def test_launches_that_a_graph_does_not_hold_are_no_launches(place):
    place.gauge(lambda c: replace(usual(c), kernels=255))
    assert "255 kernels instead of 256" in place.result["launch_measured"]["reason"]


@pytest.mark.parametrize(
    ("kernel", "counts", "name", "reason"),
    [
        ("matrix_only", Counts({"128": 2}, matrix=8), "compute_fp16", "2 loads are in the loop"),
        ("matrix_only", Counts(vector=9), "compute_fp16", "no matrix instruction"),
        ("compute_only", Counts(matrix=9), "compute_fp32", "no multiply-add"),
        ("cache_read", Counts(vector=9), "cache", "no load is left"),
    ],
)
def test_the_machine_code_must_do_what_is_counted(place, kernel, counts, name, reason):
    code = Code("sm_90", 1, counts, counts)

    def fate(c):
        return replace(usual(c), code=(code,) if c.case.kernel == kernel else ())

    place.gauge(fate)
    assert reason in place.result[name + "_measured"]["reason"]
    place.gauge(lambda c: replace(usual(c), code=(replace(code, readable=False),)))
    assert not any(c.get("failed") for c in place.result.values())


def test_an_arm_that_fails_costs_itself_alone(place):
    def fate(c):
        return Fate(wrong="NaN at y[0]") if c.case.kernel == "matrix_int8" else usual(c)

    assert place.gauge(fate) == 0
    one = place.result["compute_int8_measured"]
    assert word(one) == "missing" and "NaN at y[0]" in one["reason"] and "value" not in one
    (pair,) = pairs_of({n: c for n, c in place.result.items() if "int8" in n})
    assert "boost missing: NaN at y[0]" in line(pair)
    assert not any("int8" in name for name in place.known())
    failures = [e for e in place.events() if isinstance(e, Failure)]
    assert {f.case.kernel for f in failures} == {"matrix_int8"}


def test_a_ceiling_without_its_yardstick_says_that_it_was_not_held_against_one(place):
    def fate(c):
        broken = c.case.kernel == "copy" and c.case.backend == "torch"
        return Fate(final="out of GPU memory") if broken else usual(c)

    place.gauge(fate)
    one = place.result["dram_copy_measured"]
    assert word(one) == "unchecked" and "dram_copy_measured" in place.known()
    assert "torch.clone gave no time (out of GPU memory)" in place.text


def test_copies_that_cannot_be_timed_say_why(place):
    def lost():
        raise ChildProcessError("its process died (exit code -9)")

    assert place.gauge(copies=lost) == 0
    assert "exit code -9" in place.result["h2d_pinned_measured"]["reason"]
    assert "h2d_pinned_measured" not in place.known()


def test_a_copy_that_arrives_wrong_is_a_failure(place):
    place.gauge(copies=lambda: host_copies(right=False))
    results = [e for e in place.events() if isinstance(e, Failure)]
    assert results and {f.stage for f in results} == {"check"}
    assert word(place.result["d2h_pinned_measured"]) == "missing"


def test_nothing_measured_is_exit_code_2(place):
    assert place.gauge(lambda c: Fate(final="no luck"), copies=list) == 2
    assert place.known() == {}


def test_ctrl_c_keeps_what_was_measured_and_is_no_answer(place):
    def fate(c):
        if c.case.kernel == "compute_only":
            raise KeyboardInterrupt
        return usual(c)

    assert place.gauge(fate) == 130
    assert place.known() is None, "half a run is not what a device reaches"
    *_, run, end = place.events()
    assert end.state == "interrupted" and "cache_measured" in run.ceilings
    assert (
        sum(isinstance(e, Record) for e in place.events())
        == len(place.gauging.recorder.outcomes)
        > 0
    )


def test_the_latest_complete_run_is_known(place):
    place.gauge()
    place.gauge(lambda c: usual(c, 0.99))
    assert place.known()["dram_copy_measured"]["value"] == pytest.approx(0.99 * 4.2e12, rel=0.01)
    with open_history(place.url) as history:
        assert measured_ceilings(history, "h100") is None


# Without a GPU


def test_a_named_device_is_looked_up_and_nothing_pretends(place):
    assert place.gauge(device="mi300x") == 0
    assert "Nothing was measured" in place.text and "5.3 TB/s" in place.text
    assert "_measured" not in place.text and place.null.begun == 0
    assert not list(place.out.glob("*/events.jsonl")) and place.known() is None
    with pytest.raises(UnknownDevice, match="mi300x"):
        place.gauge(device="mi300")


def test_what_is_stated_is_said_to_be_of_which_device_compiled_for_or_not(place):
    assert place.gauge(device="m2max") == 0
    assert place.text.startswith("What is stated of Apple M2 Max.")
    assert "0.4 TB/s" in place.text and "Nothing was measured" in place.text


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
def test_every_stated_ceiling_has_a_source_and_none_is_measured(device):
    result = stated_ceilings(device)
    assert {"dram", "cache"} <= set(result) and usable(result) == {}
    assert all(c["source"] and c["value"] > 0 for c in result.values())
    assert {n[8:] for n in result if n.startswith("compute_")} == set(device.peaks)


# The page


def test_the_page_shows_all_and_is_drawn_again(tmp_path):
    place = Place(tmp_path)
    place.gauge(lambda c: usual(c, 0.9 if c.case.kernel == "matrix_only" else 1.0))
    run = next(e for e in place.events() if isinstance(e, Run))
    first = (place.out / run.id / "report.html").read_text()
    assert draw("ceilings", run.id, tmp_path / "again.html", place.url).read_text() == first
    assert "sustained" in first and "at the boost clock" in first and "1980" in first
    for title in (c["title"] for c in place.result.values()):
        assert title.replace("'", "&#39;") in first
    assert "does not reach the limit" in first and "4096.0" not in first
    assert sizes_text({"N": ceilings.STREAM}) in first and "http" not in first.split("<body>")[1]


def test_a_page_of_nothing_and_one_of_stated_figures_are_drawn():
    nothing = replace(command.stated_run(H200, CeilingsOptions()), ceilings={})
    assert "Nobody states a figure" in page(nothing, [])
    assert "nothing here was measured" in page(command.stated_run(H200, CeilingsOptions()), [])
