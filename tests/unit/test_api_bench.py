"""Timing decorated functions, on a GPU that takes no time; and the curve over one axis."""

from dataclasses import replace

import pytest
import synthetic
import torch
from fake_timer import FakeCall, FakeTimer, fake_gpu
from hypothesis import given, settings
from hypothesis import strategies as st

import workbench as wb
from workbench.api.outcome_table import time_text
from workbench.commands import bench as command
from workbench.data.record import Record
from workbench.device.error_band import BOUND, expected_s, expected_words, factor_words
from workbench.measurement.functions import Refused, time_functions
from workbench.reports.figures.curve import TIME_UNIT, curve_svg
from workbench.reports.figures.curve_data import curves_of, rate_of, varied_axis

pytestmark = pytest.mark.unit

SIZES = {"N": [2**12, 2**18, 2**24]}


def seconds(n, start, rate=4e12):
    return start + 12 * n / rate


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Functions are timed on a stand-in; results go to a folder of the test."""
    timer = FakeTimer()
    init = command.BenchCommand.__init__
    monkeypatch.setattr(init, "__defaults__", (lambda: fake_gpu(timer),))
    return timer, {"out": tmp_path / "results", "database": f"sqlite:///{tmp_path / 'h.db'}"}


def decorated(**more):
    @wb.bench(SIZES, **more)
    def add(N):
        """Add two vectors."""
        calls = {"torch": FakeCall(seconds(N, 3e-6), "sum")}
        calls["triton"] = FakeCall(seconds(N, 2e-6, 4.2e12), "sum")
        calls["wrong"] = FakeCall(1e-6, "product")
        calls["broken"] = FakeCall(1e-6, error=ValueError("no such launch"))
        return calls

    return add


def test_providers_are_timed_in_turns_and_compared_with_the_first(place):
    timer, more = place
    result = decorated(bytes=lambda N: 12 * N).run(**more)
    assert isinstance(result, wb.BenchResult) and not result.predicted
    assert [best.impl for best in result.bests] == ["triton"] * 3
    for record in result.records:
        n, timing = record.case.sizes["N"], record.timing
        start, rate = {"torch": (3e-6, 4e12), "triton": (2e-6, 4.2e12)}[record.case.impl]
        assert timing.median_s == pytest.approx(seconds(n, start, rate), rel=1e-6)
        assert timing.regime == "cold" and timing.rounds >= timer.rules.rounds
        assert record.bytes == 12 * n and record.checked == "gpu"
    stages = {(f.case.impl, f.stage, f.reason) for f in result.failures}
    assert stages == {
        ("wrong", "check", "its result is not that of torch: product is not sum"),
        ("broken", "launch", "ValueError: no such launch"),
    }
    assert all(len(calls) == 4 for calls in timer.made) and len(timer.made) == timer.many


def test_the_result_is_stored_and_drawn_as_a_measurement_is(place):
    _, more = place
    add = decorated(bytes=lambda N: 12 * N)
    result = add.run(sizes={"N": [1024, 2048]}, **more)
    assert add.__doc__ == "Add two vectors." and set(add(4)) == {
        "torch",
        "triton",
        "wrong",
        "broken",
    }
    stored = wb.history("add", database=more["database"]).frame()
    assert set(stored["impl"]) == {"torch", "triton", "wrong", "broken"}
    page = result.page.read_text()
    assert "Over N: rate, GB/s" in page and "roofline bound" in page
    assert "triton is fastest at 2 of 2 sizes" in result.sentence
    labels = [t.get_text() for t in result.plot().axes[0].get_legend().get_texts()]
    assert labels == ["torch", "triton", "roofline bound:\nDRAM at 4.8 TB/s (datasheet)"]


def test_without_declared_costs_times_are_drawn_and_no_bound(place):
    _, more = place
    result = decorated().run(**more)
    (curve,) = curves_of(result.run, result.outcomes)
    assert curve.unit == TIME_UNIT and curve.bound is None
    assert curve.lines[0].y == pytest.approx([1e6 * seconds(n, 3e-6) for n in SIZES["N"]])
    assert "share of the nearest ceiling" not in result.page.read_text().lower()


def test_a_time_below_the_bound_is_refused(place):
    _, more = place
    result = decorated(bytes=lambda N: 10**12 * N).run(**more)
    assert not result.records and result.failures[0].reason.endswith("what the device can reach")
    assert "no provider gave a time" in repr(result)


def test_a_named_device_gives_the_bound_alone(place):
    timer, more = place
    add = decorated(bytes=lambda N: 12 * N, flops=lambda N: N, dtype="fp32")
    result = add.run(device="h200", **more)
    assert result.predicted and not timer.made and "nothing was timed" in result.sentence
    assert {b.impl for b in result.bests} == {"roofline bound"}
    assert result.bests[-1].time_s == pytest.approx(12 * 2**24 / 4.8e12)
    with pytest.raises(wb.WorkbenchError, match="declare bytes= or flops="):
        decorated().run(device="h200", **more)
    with pytest.raises(wb.WorkbenchError, match="no device is named"):
        add.run(device="h2000", **more)


def test_without_a_gpu_it_refuses_in_one_sentence(place, monkeypatch):
    monkeypatch.setattr(command.BenchCommand.__init__, "__defaults__", (lambda: None,))
    with pytest.raises(wb.WorkbenchError, match=r"needs a GPU that torch sees.*device="):
        decorated().run(**place[1])


def test_named_providers_get_the_same_random_inputs(place):
    timer, more = place
    import torch

    @wb.bench({"N": 16}, ["one", "two"])
    def draw(N, provider):
        return FakeCall(1e-6, torch.rand(N).tolist())

    before = torch.random.get_rng_state()
    result = draw.run(**more)
    assert len(result.records) == 2 and timer.owners == 2
    assert torch.equal(before, torch.random.get_rng_state())
    one, two = (calls["one"].result for calls in timer.made)
    assert one != two  # sets differ


def test_what_cannot_be_timed_is_said(place):
    _, more = place
    with pytest.raises(wb.WorkbenchError, match=r"cannot be called with M.*each axis"):
        wb.bench({"M": 1})(lambda N: {})
    for sizes in ({"N": 0}, {}, []):
        with pytest.raises(wb.WorkbenchError, match="size"):
            wb.bench(sizes)
    with pytest.raises(wb.WorkbenchError, match="no mapping from providers"):
        wb.bench({"N": 1})(lambda N: None).run(**more)
    with pytest.raises(wb.WorkbenchError, match="float for x, not a function"):
        wb.bench({"N": 1})(lambda N: {"x": 0.5}).run(**more)


@settings(max_examples=20)
@given(
    times=st.dictionaries(st.sampled_from("abcdef"), st.floats(1e-6, 1e-3), min_size=1),
    broken=st.sets(st.sampled_from("abcdef")),
    wrong=st.sets(st.sampled_from("abcdef")),
)
def test_each_provider_has_a_time_or_a_reason(times, broken, wrong):
    timer = FakeTimer()
    error = ValueError("broken")

    def make(number):
        return {
            name: FakeCall(s, name in wrong, error if name in broken else None)
            for name, s in times.items()
        }

    results = time_functions(timer, make, now=timer.gpu.now)
    assert list(results) == list(times)
    first = next(iter(times))
    for name, result in results.items():
        fails = name in broken
        differs = first not in broken and (name in wrong) != (first in wrong)
        assert isinstance(result, Refused) == (fails or differs)
        if not isinstance(result, Refused):
            assert result.median_s == pytest.approx(times[name])


# The curve


def over(sizes, **more):
    """A run whose Impls `rows` and `torch` take 2 and 3 µs and 12 TB/s at sizes of N."""
    run, outcomes = synthetic.copy()
    like = next(o for o in outcomes if isinstance(o, wb.Record) and o.phase == "final")
    records = []
    for n in sizes:
        for impl, backend, start in (("rows", "triton", 2e-6), ("torch", "torch", 3e-6)):
            case = replace(like.case, impl=impl, backend=backend, sizes={"M": 64, "N": n})
            timing = synthetic.measured(start + n * 1e-12, noise=0)
            change = {"bytes": 4 * n, "flops": 0, "timing": timing, **more}
            records.append(replace(like, case=case, key=f"{impl}{n}", **change))
    return run, records


def test_a_curve_has_the_impls_the_libraries_and_the_bound():
    sizes = [2**k for k in range(10, 24)]
    run, records = over(sizes)
    (curve,) = curves_of(run, list(reversed(records)))
    lines = {line.name: line for line in curve.lines}
    assert curve.axis == "N" and curve.fixed_text == "M=64, fp32" and curve.unit == "GB/s"
    assert lines["rows"].x == tuple(sizes) and "torch" in curve.libraries
    assert lines["rows"].y[0] == pytest.approx(4 * 1024 / 2.001024e-6 / 1e9, rel=1e-3)
    assert all(low <= y <= high for line in curve.lines
               for low, y, high in zip(line.low, line.y, line.high, strict=True))  # fmt: skip
    ceiling = max(c["value"] for c in run.ceilings.values() if c["unit"] == "B/s") / 1e9
    assert max(curve.bound.y) <= ceiling * (1 + 1e-9) and min(curve.bound.y) > 1000
    svg = curve_svg(curve, "c")
    assert "16Ki" in svg and "rate, GB/s, measured" in svg and "roofline bound" in svg


def test_one_record_with_bytes_makes_the_rate_that_of_bytes():
    record = next(o for o in synthetic.softmax()[1] if isinstance(o, Record))
    ridge = 1e9  # all are bound by memory
    none = replace(record, bytes=0, flops=0)
    cases = {
        "GB/s": (record, replace(record, bytes=0)),
        "TFLOP/s": (replace(record, bytes=0), none),
        TIME_UNIT: (none, none),
    }
    for unit, records in cases.items():
        assert rate_of(records, ridge)[1] == rate_of(records[::-1], ridge)[1] == unit


def test_sizes_that_differ_on_one_axis_have_a_curve():
    assert varied_axis([{"M": 1, "N": 2}, {"M": 1, "N": 3}]) == "N"
    assert varied_axis([{"M": 1, "N": 2}, {"M": 2, "N": 3}]) is None
    assert varied_axis([{"M": 1}, {"M": 1}]) is None
    run, records = over([1024])
    assert curves_of(run, records) == [] == curves_of(run, [])
    two = replace(records[0], case=replace(records[0].case, dtype="bf16", sizes={"M": 64, "N": 9}))
    assert curves_of(run, [*records, two]) == []  # one size for each dtype


@pytest.mark.parametrize(
    "wrong",
    [{"bytes": lambda N: -4261412864}, {"flops": lambda N: -1}, {"bytes": lambda N: float("nan")},
     {"flops": lambda N: float("inf")}, {"bytes": lambda N: None}, {"bytes": lambda M: M},
     {"flops": lambda N: 1 / 0}, {"bytes": lambda N: "12"}],
)  # fmt: skip
@pytest.mark.parametrize("device", [None, "h200"])
def test_costs_that_no_call_has_are_refused_in_one_sentence(place, wrong, device):
    _, more = place
    with pytest.raises(wb.WorkbenchError, match=f"{next(iter(wrong))}= of add at N=") as error:
        decorated(**wrong).run(device=device, **more)
    assert str(error.value).endswith(".") and "\n" not in str(error.value)


def test_bytes_below_those_of_the_returned_tensors_give_no_rate(place, capsys):
    """A value 1000 times too small gave 4.19 GB/s without a word (TileOPs issue 183)."""
    _, more = place

    def timed(factor):
        @wb.bench({"N": [1024]}, bytes=lambda N: 12 * N // factor, check=False)
        def add(N):
            call = FakeCall(seconds(N, 3e-6), torch.zeros(N))
            return {"torch": call}

        return add.run(**more).records[0].bytes

    assert timed(1) == 12 * 1024 and "less than" not in capsys.readouterr().err
    assert timed(1000) == 0
    said = capsys.readouterr()
    assert "bytes= is 12, less than the 4,096 of the tensors" in said.out + said.err


def test_a_bound_has_no_band():
    """67 MB at 4.8 TB/s take 14 us at least: no measured time is expected below or around that."""
    _, outcomes = synthetic.softmax(predicted=True, device="h200")
    record = next(o for o in outcomes if isinstance(o, wb.Record))
    assert expected_s(record) is not None and "times the predicted" in time_text(record)
    bound = replace(record, timing=replace(record.timing, model=BOUND))
    assert expected_s(bound) is None and factor_words([bound]) == expected_words(bound) == ""
    assert time_text(bound).startswith("at least ")
