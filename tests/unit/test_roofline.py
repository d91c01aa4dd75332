"""What holds a kernel, which records are points, and what is drawn and written of them."""

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import synthetic
from hypothesis import assume, given
from hypothesis import strategies as st
from matplotlib.colors import to_hex

from workbench.data.record import Case, Comparison, Predicted, Ratio, Record, Verdict, key_of
from workbench.data.units import duration, quantity
from workbench.device import hardware
from workbench.device.ceilings import (
    CeilingSet,
    Load,
    ceiling_of,
    ceiling_set,
    ceilings_in_state,
    diagnose,
    stem_of,
)
from workbench.reports import figure
from workbench.reports.figures import paper
from workbench.reports.figures.roofline_points import (
    COLUMNS,
    RunWithOutcomes,
    bests,
    csv_text,
    frame,
    json_text,
    rows,
    sheet_of,
)
from workbench.reports.figures.room import Room
from workbench.reports.figures.scene import scene_of
from workbench.reports.figures.shapes import (
    Label,
    PointMark,
    Ring,
    ShapeGroup,
    inks,
    paint,
    segment,
    svg,
)
from workbench.reports.roofline import page, sentence

DRAM, PEAK, LAUNCH, EAGER, CACHE = 4.3e12, 780e12, 0.8e-6, 3.2e-6, 6.4e12


def ceiling(name, value, unit, **more):
    text = {"value": value, "unit": unit, "source": "here", "kind": "measured", **more}
    created = ceiling_of("h200", name, text)
    assert created is not None
    return created


def known(*more, cache_bytes=60e6):
    return CeilingSet("h200", (
        ceiling("dram_copy_measured", DRAM, "B/s", low=0.99 * DRAM, high=1.01 * DRAM),
        ceiling("cache_measured", CACHE, "B/s"),
        ceiling("bf16_measured", PEAK, "FLOP/s", dtype="bf16"),
        ceiling("launch_measured", LAUNCH, "s"),
        ceiling("launch_eager_measured", EAGER, "s"),
        ceiling("launch_pdl_measured", LAUNCH / 2, "s"),
        *more,
    ), cache_bytes)  # fmt: skip


times = st.floats(1e-7, 1.0)
amounts = st.integers(0, 10**13)
regimes = st.sampled_from(["cold", "hot", "predicted"])
loads = st.builds(
    lambda t, wide, flops, moved, regime: Load(t, t * wide, flops, moved, "bf16", regime),
    times, st.floats(1.0, 1.2), amounts, amounts, regimes,
)  # fmt: skip


# What holds a kernel.


@given(loads)
def test_a_share_and_a_gain_are_of_the_same_time(load):
    held = diagnose(load, known())
    assert held.sentence.endswith(".") and held.sentence[0] == held.sentence[0].upper()
    assert held.gain_s is not None and 0 <= held.gain_s <= load.time_s, "all ceilings are known"
    assert (held.share is None) == (not load.bytes and not load.flops)
    if held.share is not None:
        bound_s = held.share * load.time_s
        least_s = max(bound_s, LAUNCH)
        assert held.gain_s == pytest.approx(max(0.0, load.time_s - least_s), abs=1e-12)
        amount = load.flops if held.ceiling.level == "compute" else load.bytes
        assert amount / held.ceiling.value == pytest.approx(bound_s)


@given(loads)
def test_the_nearest_roof_is_the_one_that_allows_least(load):
    held = diagnose(load, known())
    assert (held.share is None) == (held.ceiling is None) == (not load.bytes and not load.flops)
    assume(held.share is not None)
    memory = CACHE if load.regime == "hot" and load.bytes <= 60e6 else DRAM
    allowed = max(load.bytes / memory, load.flops / PEAK)
    assert held.share == pytest.approx(allowed / load.time_s)


@given(loads, st.floats(1.0, 3.0))
def test_a_higher_roof_is_a_smaller_share(load, factor):
    rates = [c for c in known().ceilings if c.level != "launch"]
    higher = CeilingSet(
        "h200", tuple(replace(c, value=c.value * factor, high=None) for c in rates), 60e6
    )
    one, other = diagnose(load, known()), diagnose(load, higher)
    assert (one.share is None) == (other.share is None)
    if one.share is not None:
        assert other.share <= one.share * (1 + 1e-9)
        assert other.word != "above its ceiling" or one.word == "above its ceiling" or one.share > 1


@given(loads)
def test_only_what_passes_both_spreads_is_above(load):
    held = diagnose(load, known())
    assert (held.word == "above its ceiling") == bool(held.excess_reason)
    if held.excess_reason:
        amount = load.flops if held.ceiling.level == "compute" else load.bytes
        assert amount / load.high_s > (held.ceiling.high or held.ceiling.value)
    elif held.word in ("memory-bound", "compute-bound", "balanced"):
        assert held.share >= 0.6


@given(loads, st.sampled_from(["fp8", "tf32"]))
def test_the_ceiling_of_another_dtype_changes_nothing(load, dtype):
    other = ceiling(f"{dtype}_measured", 1e3, "FLOP/s", dtype=dtype)
    assert diagnose(load, known(other)) == diagnose(load, known())


@given(loads, st.sampled_from(["boost", "sustained"]), st.floats(1.03, 2.0))
def test_a_time_stands_under_the_ceiling_of_its_own_state(load, state, factor):
    """Also where it is alone: a ceiling of the other state stands in, and the sentence says so."""
    load = replace(load, state=state)
    settled = [replace(c, state="sustained") for c in known().ceilings]
    boost = [
        replace(
            c,
            name=c.name.replace("_measured", "_boost_measured"),
            state="boost",
            **({} if c.level == "launch" else {"value": factor * c.value, "high": None}),
        )
        for c in settled
    ]
    both = CeilingSet("h200", (*boost, *settled), 60e6)
    own, other = (boost, settled) if state == "boost" else (settled, boost)
    assert diagnose(load, both) == diagnose(load, CeilingSet("h200", tuple(own), 60e6))
    alone = diagnose(load, CeilingSet("h200", tuple(other), 60e6))
    if alone.ceiling is not None:
        assert alone.ceiling in other and f"the time is of the {state} clock" in alone.sentence
        assert f"{alone.ceiling.state} clock (" in alone.sentence
        assert "the time is of" not in diagnose(load, both).sentence
    assert both.ridge(settled[2]) == pytest.approx(PEAK / DRAM)
    assert both.ridge(boost[2]) == pytest.approx(PEAK / DRAM)
    assert [c.state for c in both.lines()] == ["sustained", "boost"] * 3


NAMED = st.dictionaries(
    st.sampled_from(["dram", "dram_measured", "dram_boost_measured", "compute_bf16_measured",
                     "compute_bf16_boost_measured", "compute"]),
    st.sampled_from([{}, {"state": "boost"}, {"state": "sustained"}]),
)  # fmt: skip


@given(NAMED, st.sampled_from(["boost", "sustained"]))
def test_of_one_state_is_what_has_it_or_has_no_other(named, state):
    result = ceilings_in_state(named, state)
    assert {stem_of(n) for n in result} == {stem_of(n) for n in named}
    for name, c in named.items():
        if c.get("state", state) == state:
            assert result[name] == c
        elif name in result:
            same = [d for n, d in named.items() if stem_of(n) == stem_of(name)]
            assert state not in [d.get("state") for d in same]


def test_both_states_are_drawn_and_the_one_without_points_is_switched_off():
    run, outcomes = synthetic.matmul()
    outcomes = [
        replace(o, timing=replace(o.timing, state="sustained"))
        if isinstance(o, Record) and o.phase in ("final", "hot")
        else o
        for o in outcomes
    ]
    value = {"unit": "FLOP/s", "kind": "measured", "source": "here", "dtype": "bf16", "low": 1.0}
    measured = {
        "compute_bf16_measured": {**value, "value": 8e14, "state": "sustained"},
        "compute_bf16_boost_measured": {**value, "value": 1.06e15, "state": "boost"},
    }
    own = replace(run, id="c", engine="ceilings", ceilings=measured)
    sheet = sheet_of([RunWithOutcomes(run, outcomes)], [own])
    assert {p.load.state for p in sheet.points} == {"sustained"}
    html = page(sheet)
    hidden = r'<g data-t="D0 T-bf16 O-measured S-{}" class="l-compute"{}>'
    assert re.search(hidden.format("sustained", ""), html)
    assert re.search(hidden.format("boost", ' style="display:none"'), html)
    assert 'data-word="S-boost" aria-pressed="false"' in html
    assert "1.06 PFLOP/s, measured, boost clock" in html and "roof boost" in html
    every = sheet_of([RunWithOutcomes(run, outcomes)], [own], everything=True)
    assert {p.load.state for p in every.points} == {"boost", "sustained"}
    assert 'data-word="S-boost" aria-pressed="true"' in page(every)
    for n in bests(every):
        assert every.points[n].load.state == "sustained", "a first pass is not ranked with finals"
    assert {r["ceiling_state"] for r in rows(every)} >= {"boost", "sustained"}


def load_of(time_us, flops=0, moved=0, regime="cold", **more):
    return Load(time_us * 1e-6, time_us * 1e-6, flops, moved, "bf16", regime, **more)


@pytest.mark.parametrize(
    ("load", "word", "text"),
    [
        (load_of(100, moved=int(0.93 * DRAM * 1e-4)), "memory-bound",
         "Memory-bound: 93 % of measured DRAM (4.3 TB/s); 7 µs to gain."),
        (load_of(100, flops=int(0.8 * PEAK * 1e-4), moved=1), "compute-bound", "80 % of measured"),
        (load_of(100, int(0.9 * PEAK * 1e-4), int(0.9 * DRAM * 1e-4)), "balanced", "90 %"),
        (load_of(3, moved=4096), "launch-bound", "the launch floor of 800 ns is about a quarter"),
        (load_of(100, moved=4096, host=True), "below its ceilings", "too few loads in flight"),
        (load_of(12.5, moved=4096, host=True), "launch-bound", "of 3.2 µs is about a quarter"),
        (load_of(100, moved=int(0.3 * DRAM * 1e-4)), "below its ceilings", "it waits"),
        (load_of(0.9), "launch-bound", "no bytes and no FLOPs"),
        (load_of(100, moved=int(1.3 * DRAM * 1e-4)), "above its ceiling", "fewer bytes move"),
        (load_of(1, moved=int(1.3 * DRAM * 1e-6)), "above its ceiling", "fit into the last-level"),
        (load_of(100, int(1.3 * PEAK * 1e-4), 1), "above its ceiling", "fewer FLOPs are done"),
        (load_of(1, moved=int(9e12 * 1e-6), regime="hot"), "above its ceiling", "hot:"),
        (load_of(9, moved=int(1.2 * DRAM * 9e-6), regime="predicted"), "above its ceiling",
         "the model"),
        (load_of(100, moved=int(1.005 * DRAM * 1e-4)), "memory-bound", "equal within both spreads"),
    ],
)  # fmt: skip
def test_words(load, word, text):
    held = diagnose(load, known())
    assert held.word == word and text.lower() in held.sentence.lower()


def test_a_kinder_mix_of_reads_and_writes_is_named():
    read = ceiling("dram_read_measured", 4.6e12, "B/s")
    held = diagnose(load_of(100, moved=int(4.5e12 * 1e-4)), known(read))
    assert (held.word, held.ceiling.stem) == ("memory-bound", "dram_read")
    assert held.sentence.startswith("Memory-bound: 98 % of measured DRAM, read (4.6 TB/s); above a")
    beyond = diagnose(load_of(100, moved=int(4.8e12 * 1e-4)), known(read))
    assert beyond.word == "above its ceiling" and beyond.ceiling.stem == "dram_copy"


def test_without_a_ceiling_nothing_is_said_of_a_share():
    held = diagnose(load_of(100, 10**9, 10**9), CeilingSet("odd"))
    assert held.word == "unknown" and held.share is None and held.gain_s is None


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("dram", {"value": 4.8e12, "unit": "B/s", "kind": "datasheet"}, ("dram", "datasheet", "")),
        ("cache", {"value": 9e12, "unit": "B/s", "kind": "measured"}, ("cache", "published", "")),
        ("cache_measured", {"value": 9e12, "unit": "B/s"}, ("cache", "measured", "")),
        ("shared_measured", {"value": 3e13, "unit": "B/s"}, ("shared", "measured", "")),
        ("compute_fp16", {"value": 1e15, "unit": "FLOP/s"}, ("compute", "datasheet", "fp16")),
        ("fp32_fma_measured", {"value": 6e13, "unit": "FLOP/s"}, ("compute", "measured", "fp32")),
        ("compute", {"value": 2e15, "unit": "OP/s", "dtype": "int8"},
         ("compute", "datasheet", "int8")),
        ("launch_measured", {"value": 8e-7, "unit": "s"}, ("launch", "measured", "")),
        ("h2d_pinned", {"value": 5e10, "unit": "B/s"}, ("link", "datasheet", "")),
    ],
)  # fmt: skip
def test_ceilings_are_read_by_name_and_unit(name, text, expected):
    created = ceiling_of("h200", name, text)
    assert (created.level, created.origin, created.dtype) == expected


@pytest.mark.parametrize(
    "text",
    [{}, {"value": 0, "unit": "B/s"}, {"value": float("nan"), "unit": "B/s"},
     {"value": "much", "unit": "B/s"}, {"value": 1.0, "unit": "Hz"},
     {"value": 1.0, "unit": "B/s", "failed": "read is below copy"}],
)  # fmt: skip
def test_what_is_no_ceiling_is_left_out(text):
    assert ceiling_of("h200", "dram", text) is None


def run_of(engine="measure", device="h200", ceilings=None, started="2026-11-21T09:30:00+00:00"):
    run, _ = synthetic.softmax()
    stated = hardware.ceilings(hardware.DEVICES["h200"], "bf16") if ceilings is None else ceilings
    return replace(run, id=f"{engine}-{started}", engine=engine, device=device, ceilings=stated,
                   started=started)  # fmt: skip


def test_measured_ceilings_come_from_the_newest_ceilings_run():
    def text(value):
        return {"dram_measured": {"value": value, "unit": "B/s", "source": "x", "kind": "measured"}}

    old = run_of("ceilings", ceilings=text(1e12), started="2026-11-20T00:00:00+00:00")
    new = run_of("ceilings", ceilings=text(2e12), started="2026-11-21T00:00:00+00:00")
    own = run_of("sweep", ceilings=text(3e12), started="2026-11-22T00:00:00+00:00")
    other = run_of("ceilings", "mi300x", text(9e12), started="2026-11-23T00:00:00+00:00")
    assert ceiling_set("h200", [own, old, new, other]).best("dram").value == 2e12
    assert ceiling_set("h200", [own]).best("dram").value == 3e12
    assert ceiling_set("mi300x", [old]).best("dram").origin == "datasheet"


def test_a_part_of_a_gpu_does_not_get_the_whole_ones_peaks():
    cut = {"dram": {"value": 1e12, "unit": "B/s", "source": "a seventh", "kind": "computed"}}
    assert ceiling_set("h200", [run_of(ceilings=cut)]).best("compute", "fp8") is None
    assert ceiling_set("h200", [run_of()]).best("compute", "fp8").value == 1978.9e12


# Which records are points.


def record(run, name="softmax", time_s=40e-6, phase="final", at=synthetic.AT, **more):
    impl, backend = more.pop("impl", "rows"), more.pop("backend", "triton")
    config = more.pop("config", {"num_warps": 4})
    case = Case(name, impl, backend, config, {"M": 8192, "N": 4096}, "bf16", run.device)
    timing = more.pop("timing", None) or synthetic.measured(time_s)
    flops = more.pop("flops", 5 * 8192 * 4096)
    return Record(case, key_of(case), run.id, at, phase, timing, flops, 4 * 8192 * 4096, "gpu", 0.4,
                  **more)  # fmt: skip


def test_a_sweep_gives_its_winner_default_and_libraries_and_all_on_request():
    stored = RunWithOutcomes(*synthetic.matmul())
    few, every = sheet_of([stored]), sheet_of([stored], everything=True)
    assert sorted(p.role for p in few.points) == [
        "default",
        "library",
        "library",
        "winner",
        "winner",
    ]
    assert [p.regime for p in few.points if p.role == "winner"] == ["cold", "hot"]
    assert {p.record.phase for p in few.points} == {"final", "hot"}
    assert len(every.points) > 200
    configs = [(p.name, p.regime) for p in every.points]
    assert len(configs) == len(set(configs)), "a config stands once"
    [arrow] = few.arrows
    start, end = few.points[arrow.start], few.points[arrow.end]
    assert (start.role, end.role, arrow.what) == ("default", "winner", "default to winner")
    assert arrow.change == pytest.approx(end.load.time_s / start.load.time_s - 1)


def test_the_final_stands_before_the_screen_and_the_newer_before_the_older():
    run, later = run_of(), run_of(started="2026-11-22T09:30:00+00:00")
    final = record(run, time_s=40e-6)
    first_pass = record(later, time_s=30e-6, phase="first_pass", at="2026-11-22T09:30:00+00:00")
    newer = record(later, time_s=50e-6, at="2026-11-22T09:31:00+00:00")
    assert [p.record for p in sheet_of([RunWithOutcomes(run, [first_pass, final])]).points] == [
        final
    ]
    both = sheet_of([RunWithOutcomes(later, [newer]), RunWithOutcomes(run, [final, first_pass])])
    assert [p.record for p in both.points] == [newer]


def test_hot_and_predicted_times_are_points_of_their_own():
    run = run_of()
    hot = record(run, phase="hot", timing=replace(synthetic.measured(30e-6), regime="hot"))
    text = Predicted(35e-6, "analytic-1", 0.0, 0.0, 0.0, 0.0, 0.0, "memory")
    predicted = record(run, phase="predict", timing=text)
    sheet = sheet_of([RunWithOutcomes(run, [record(run), hot, predicted])])
    assert [p.regime for p in sheet.points] == ["cold", "hot", "predicted"]
    kinds = {row["regime"]: row["kind"] for row in rows(sheet)}
    assert kinds == {"cold": "measured", "hot": "measured", "predicted": "predicted"}
    assert sheet.points[2].limit.sentence.startswith("Predicted: ")
    shares = [p.share_of_time for p in sheet.points]
    assert sum(shares[:2]) == pytest.approx(1) and shares[2] == 1


def test_what_has_most_to_gain_is_told_with_its_device_among_several():
    run = run_of()
    one, other = record(run, time_s=40e-6), record(run, time_s=90e-6)
    assert " on " not in sentence(sheet_of([RunWithOutcomes(run, [one])]))
    there = replace(other, case=replace(other.case, device="h100"), key="another")
    assert " on h100 has most to gain" in sentence(sheet_of([RunWithOutcomes(run, [one, there])]))


def test_arrows_of_a_measurement_and_of_a_comparison():
    run = run_of()
    own, slow = record(run, time_s=40e-6), record(run, time_s=45e-6, config={"num_warps": 8})
    libraries = [record(run, time_s=t, impl=name, backend="torch", config={})
                 for name, t in (("torch", 60e-6), ("compile", 50e-6))]  # fmt: skip
    sheet = sheet_of([RunWithOutcomes(run, [own, slow, *libraries])])
    [arrow] = sheet.arrows
    assert sheet.points[arrow.start].record is libraries[1]
    assert sheet.points[arrow.end].record is own and arrow.what == "library to best"
    duel = run_of("compare")
    operands = [record(duel, time_s=t, phase="compare", config={"num_warps": w})
             for t, w in ((40e-6, 4), (50e-6, 8))]  # fmt: skip
    word = Verdict("SLOW", Ratio(1.25, 1.24, 1.26), None, 0.01, 0.01, 0.001, 48, "so")
    text = Comparison(duel.id, synthetic.AT, "softmax", {}, "bf16", "a", "b", operands[0].key,
                      operands[1].key, word)  # fmt: skip
    sheet = sheet_of([RunWithOutcomes(duel, operands, [text])])
    [arrow] = sheet.arrows
    assert arrow.change == pytest.approx(operands[1].time_s / operands[0].time_s - 1)
    assert [sheet.points[n].role for n in (arrow.start, arrow.end)] == ["left", "right"]


def test_arithmetic_is_judged_by_the_units_that_do_it():
    run = run_of()
    created = synthetic._resources({"num_warps": 4}, 60, 0, 0, 0.5, "threads")
    vector, matrix = created, replace(created, matrix_unit="wgmma")

    def analysed(dtype, resources):
        result = record(run, resources=resources)
        result = replace(result, case=replace(result.case, dtype=dtype))
        return sheet_of([RunWithOutcomes(run, [result])]).points[0].load.dtype

    assert analysed("bf16", vector) == "fp32" and analysed("bf16", matrix) == "bf16"
    assert analysed("fp32", matrix) == "tf32" and analysed("fp32", vector) == "fp32"
    library = record(run, impl="torch", backend="torch", config={})
    both = sheet_of([RunWithOutcomes(run, [record(run, resources=vector), library])])
    assert {p.load.dtype for p in both.points} == {"fp32"}, "a library as its kernel"
    for share, dtype in ((0.5, "fp32"), (1.5, "tf32")):
        fp32 = replace(library, case=replace(library.case, dtype="fp32"))
        flops = int(share * hardware.DEVICES[fp32.case.device].peaks["fp32"].value * fp32.time_s)
        [point] = sheet_of([RunWithOutcomes(run, [replace(fp32, flops=flops)])]).points
        assert point.load.dtype == dtype, "no vector unit is so fast"


def test_the_best_of_a_problem_is_no_library_where_there_is_another():
    sheet = sheet_of(lifelike(), everything=True)
    for n in bests(sheet):
        best = sheet.points[n]
        same = [p for p in sheet.points if p.record.case.kernel == best.record.case.kernel
                and (p.device, p.regime) == (best.device, best.regime)]  # fmt: skip
        own = [p for p in same if not p.record.case.is_baseline]
        assert best.load.time_s == min(p.load.time_s for p in own)
    assert len(bests(sheet)) == 6  # three kernels, two of them also hot, one predicted


def test_parts_of_kernels_are_no_points_beside_them():
    run = run_of("experiment")
    names = ("softmax", "softmax_traffic", "softmax_arithmetic")
    times = [record(run, n) for n in names]
    few, every = (
        sheet_of([RunWithOutcomes(run, times)]),
        sheet_of([RunWithOutcomes(run, times)], everything=True),
    )
    assert [p.record.case.kernel for p in few.points] == ["softmax"] and few.apart == 2
    assert len(every.points) == 3 and every.apart == 0
    assert "2 times of parts of kernels" in page(few) and "parts of kernels" not in page(every)
    alone = sheet_of([RunWithOutcomes(run, times[1:])])  # nothing else is there to show
    assert len(alone.points) == 2 and alone.apart == 0


def test_what_gave_no_time_is_counted():
    run = run_of()
    failed = synthetic.failure(run, record(run), "compile", "no")
    assert sheet_of([RunWithOutcomes(run, [failed])]).silent == {"softmax rows: compile": 1}
    assert sheet_of([RunWithOutcomes(*synthetic.matmul())]).silent == {}


# What is written.


def lifelike():
    stored = [
        RunWithOutcomes(*synthetic.matmul()),
        RunWithOutcomes(*synthetic.softmax()),
        RunWithOutcomes(*synthetic.copy()),
    ]
    predicted, outcomes = synthetic.softmax(predicted=True)
    moved = [replace(o, case=replace(o.case, device="mi300x")) for o in outcomes]
    stated = hardware.ceilings(hardware.DEVICES["mi300x"], "bf16")
    return [*stored, RunWithOutcomes(replace(predicted, device="mi300x", ceilings=stated), moved)]


def test_every_number_is_written_unrounded():
    sheet = sheet_of(lifelike())
    read = list(csv.DictReader(io.StringIO(csv_text(sheet))))
    assert [list(row) for row in read] == [list(COLUMNS)] * len(sheet.points)
    text = json.loads(json_text(sheet))
    for row, plain, point in zip(read, text["points"], sheet.points, strict=True):
        assert float(row["time_s"]) == plain["time_s"] == point.record.time_s
        assert int(row["flops"]) == point.record.flops and int(row["bytes"]) == point.record.bytes
        rate = row["byte_per_s"]
        assert float(rate) == plain["byte_per_s"] == point.record.bytes / point.record.time_s
        assert row["diagnosis"] == point.limit.sentence
    assert {c["device"] for c in text["ceilings"]} == {"NVIDIA H200", "mi300x"}
    assert len(text["arrows"]) == len(sheet.arrows)


def test_a_frame_has_the_rows():
    sheet = sheet_of(lifelike())
    result = frame(sheet)
    assert list(result.columns) == list(COLUMNS) and len(result) == len(sheet.points)
    assert result["time_s"].tolist() == [point.record.time_s for point in sheet.points]
    assert result["bytes"].dtype.kind == result["flops"].dtype.kind == "i"


@given(st.floats(1e-9, 1e3), st.floats(1, 1e16))
def test_numbers_in_words_are_within_half_a_percent(seconds, rate):
    scale = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
    number, unit = duration(seconds).split()
    assert float(number) * scale[unit] == pytest.approx(seconds, rel=6e-3)
    number, unit = quantity(rate, "B/s").split()
    prefix = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}[unit.removesuffix("B/s")]
    assert float(number) * prefix == pytest.approx(rate, rel=6e-3)


# What is drawn.


def many(n):
    """A measurement of n problems of twelve kernels, some of them without FLOPs."""
    run = run_of()
    created = []
    for i in range(n):
        kernel, flops = f"kernel_{i % 12}", 0 if i % 12 == 0 else 10 ** (6 + i % 7)
        result = record(run, kernel, time_s=10.0 ** -(3 + i % 3) * (1 + i / n), flops=flops)
        created.append(replace(result, case=replace(result.case, sizes={"M": i, "N": 4096})))
    return sheet_of([RunWithOutcomes(run, created)])


def test_three_hundred_points_are_a_small_page_that_needs_nothing_else():
    sheet = many(300)
    html = page(sheet)
    assert len(sheet.points) == 300 and len(html.encode()) < 520_000
    assert len(re.findall(r'<use href="#k-\w+"[^>]* data-r="', html)) == 300
    assert not re.search(r'(?:src|href)="(?!#|data:)', html) and "@import" not in html
    assert not re.search(r"url\((?!#)", html)


def test_kernels_without_flops_stand_on_the_strip():
    html = page(sheet_of([RunWithOutcomes(*synthetic.copy())]))
    assert 'aria-label="Bandwidth"' in html and 'aria-label="Roofline"' not in html


def test_a_page_of_nothing_says_so():
    html = page(sheet_of([RunWithOutcomes(*synthetic.empty())]))
    assert "nothing to draw" in html and 'id="configs"' not in html
    assert "nothing to draw" in page(sheet_of([]))


def test_measured_and_predicted_look_different():
    html = page(sheet_of(lifelike()))
    assert "All times on mi300x are predicted" in html
    assert re.search(r'<g data-t="D1 T-bf16 K-predicted S-boost" class="i1 p">', html)
    assert re.search(r'<g data-t="D0 T-bf16 K-cold S-sustained" class="i0 m">', html)
    assert re.search(r"<td>~\d[\d.]* µs", html), "the table of both devices marks a predicted time"
    kept = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.S)
    words = {name: each for name, each, _ in json.loads(kept[1])["columns"]}
    assert words["kind"] == ["measured", "predicted"]


def test_ceilings_of_dtypes_that_nothing_computes_in_are_off():
    html = page(sheet_of([RunWithOutcomes(*synthetic.matmul())]))
    assert re.search(r'data-word="T-bf16" aria-pressed="true"', html)
    assert re.search(r'data-word="T-fp8" aria-pressed="false"', html)
    hidden = 'data-t="D0 T-fp8|T-int8 O-stated" class="l-compute" style="display:none"'
    assert hidden in html


@given(st.lists(st.tuples(st.floats(0, 700), st.floats(0, 500), st.text("abc_", min_size=1,
                max_size=18)), max_size=25))  # fmt: skip
def test_words_never_lie_over_one_another(wanted):
    room = Room(700, 500, 0, 0)
    room.dots = [(x, y) for x, y, _ in wanted]
    for x, y, text in wanted:
        room.find((x, y), text, far=True)
    for n, box in enumerate(room.boxes):
        assert box[0] >= 0 and box[2] <= 700 and box[1] >= 0 and box[3] <= 500
        for other in room.boxes[:n]:
            apart = box[2] <= other[0] or other[2] <= box[0]
            assert apart or box[3] <= other[1] or other[3] <= box[1]


@given(st.lists(st.tuples(st.integers(1, 10**14), st.integers(1, 10**10), st.floats(1e-7, 1e-1)),
                min_size=1, max_size=6))  # fmt: skip
def test_every_point_lies_within_the_axes(wanted):
    run = run_of()
    created = [replace(record(run, f"k{n}", time_s=t), flops=f, bytes=b)
            for n, (f, b, t) in enumerate(wanted)]  # fmt: skip
    scene = scene_of(sheet_of([RunWithOutcomes(run, created)]))
    for n in scene.placed_points:
        point = scene.sheet.points[n]
        assert scene.x[0] < point.load.intensity < scene.x[1]
        assert scene.y[0] < point.flops_rate < scene.y[1]


# The figure for papers.


def test_a_figure_is_a_column_wide_and_the_same_each_time():
    sheet = sheet_of([RunWithOutcomes(*synthetic.softmax())])
    svg = paper.paper(sheet, "svg")
    assert svg == paper.paper(sheet, "svg")
    assert re.search(rb'width="240\.9\d*pt"', svg), "85 mm"


def test_a_figure_has_the_light_colours_of_the_page():
    folder = Path(paper.__file__).parents[1]
    css = (folder / "sweep.css").read_text() + (folder / "roofline.css").read_text()
    for name, ink in (("ink", "ink"), ("warn", "warn"), ("l-shared", "roof-shared"),
                      ("i2", "impl-2"), ("d3", "impl-3")):  # fmt: skip
        assert re.search(rf"--{ink}: (#\w+)", css)[1] == inks()[name]


def test_shapes_are_the_same_on_a_page_and_in_a_paper():
    line = segment((0, 0), (10, 5), look="roof stated")
    marks = ShapeGroup("D0", [PointMark((3, 4), "square", 1.0, 7), Ring((1, 2), 4, "r")], "i1 p")
    hidden = ShapeGroup("D1", [Label((0, 0), "<no>")], "d0", is_off=True)
    shapes = [ShapeGroup("D0", [line], "l-dram"), marks, hidden]
    text = svg(shapes)
    assert '<g data-t="D0" class="l-dram"><path class="roof stated" d="M0 0L10 5"/></g>' in text
    assert 'href="#k-square" x="3" y="4"' in text and 'data-r="7"' in text
    assert '<g data-t="D1" class="d0" style="display:none"><text x="0" y="0">&lt;no&gt;' in text
    fig = figure(100, 50)
    paint(fig, shapes, 0.5)
    drawn, square, ring = fig.get_children()[1:]
    assert to_hex(drawn.get_edgecolor()) == inks()["l-dram"] and not drawn.get_fill()
    assert drawn.get_linewidth() == 0.8 and drawn.get_linestyle() != "-"
    assert to_hex(square.get_color()) == inks()["i1"] and square.get_markerfacecolor() == "none"
    assert (square.get_marker(), square.get_markersize()) == ("s", 4.2)
    assert (ring.get_marker(), ring.get_markersize()) == ("o", 4.0)
    assert drawn.get_transform().transform((10, 5)) == pytest.approx((5, 47.5))


def test_a_text_may_touch_the_edges_of_its_room():
    """From 10 to 110 and 20 to 70, with 2 px at the left."""
    room = Room(100, 50, 10, 20)
    assert not room._is_outside((12, 20, 110, 70))
    beyond = ((11.9, 20, 110, 70), (12, 19.9, 110, 70), (12, 20, 110.1, 70), (12, 20, 110, 70.1))
    assert all(map(room._is_outside, beyond))
