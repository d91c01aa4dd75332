"""The numbers of a sweep's page: all that a time comes with, in the table and in the CSV's data."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import synthetic
from hypothesis import given
from hypothesis import strategies as st

from workbench.commands.report import draw
from workbench.data.events import EventLog, RunFinished
from workbench.data.record import Measured, Outcome, Record, Run
from workbench.data.selection import ranking, select
from workbench.data.stats import median, summary
from workbench.reports.figures import detail
from workbench.reports.figures.final import lines, rounds
from workbench.reports.figures.sweep import Board
from workbench.reports.sweep import page

pytestmark = pytest.mark.unit

RUN, OUTCOMES = synthetic.matmul()
STAND = ranking(OUTCOMES)
FINALS = [o for o in STAND if isinstance(o, Record) and o.phase == "final"]
HOT = [o for o in OUTCOMES if isinstance(o, Record) and o.phase == "hot"]
BEST = select(RUN, OUTCOMES).winner
IMPLS = list(dict.fromkeys(o.case.impl for o in STAND))
BOARD = Board({id(o): n for n, o in enumerate(STAND)}, IMPLS, (1e-6, "µs"), BEST, {})
SECONDS: Mapping[str, float] = {"start": 4.0, "check": 2.0, "timed": 3.5, "idle": 0.5}


def test_the_final_in_full_holds_every_figure_that_is_promised() -> None:
    full = detail.final_table(RUN, BOARD, [*FINALS, *HOT], {})
    assert len(full["rows"]) == len(FINALS) + len(HOT)
    for head in (
        "regime", "clock state", "median", "95 % low", "95 % high", "min", "p5", "p25", "p75",
        "p95", "mean", "stddev", "n", "left out", "SM clock, MHz", "cycles", "°C", "W",
        "throttled by", "least bytes", "FLOPs", "GB/s", "TFLOP/s", "measured", "datasheet",
    ):  # fmt: skip
        assert head in full["heads"], head
    assert sum(n for _, n in full["groups"]) == len(full["heads"])
    assert all(len(row["cells"]) == len(full["heads"]) for row in full["rows"])


@pytest.mark.parametrize("number", range(len(FINALS)))
def test_its_cells_are_what_the_samples_say(number: int) -> None:
    record = FINALS[number]
    timing = record.timing
    assert isinstance(timing, Measured)
    full = detail.final_table(RUN, BOARD, [record], {})
    cells = dict(zip(full["heads"], full["rows"][0]["cells"], strict=True))
    text = summary(timing.samples_s)
    for name in ("min", "p5", "p25", "median", "p75", "p95", "mean", "stddev"):
        assert float(cells[name]) == pytest.approx(getattr(text, name) * 1e6, abs=0.006), name
    assert (cells["n"], cells["left out"]) == (str(text.n), str(timing.left_out))
    assert float(cells["cycles"]) == pytest.approx(timing.median_s * 1755e6, abs=1)
    assert float(cells["datasheet"]) == pytest.approx(
        100 * record.flops / timing.median_s / 989e12, abs=0.06
    )


def test_no_memory_ceiling_is_over_a_hot_call() -> None:
    cold = detail.times_of(RUN, FINALS[0])
    hot = detail.times_of(RUN, HOT[0])
    assert cold is not None and hot is not None
    assert cold.share("measured") == (pytest.approx(FINALS[0].bytes / FINALS[0].time_s / 4.3e12),
                                   "DRAM")  # fmt: skip
    assert hot.share("measured") is None
    result = hot.share("datasheet")
    assert result is not None and result[1] == "bf16 compute, boost clock"


@given(st.booleans(), st.lists(st.just("power cap"), max_size=1), st.integers(0, 9))
def test_each_reason_for_doubt_is_marked(stable: bool, throttle: list[str], left: int) -> None:
    timing = FINALS[0].timing
    assert isinstance(timing, Measured)
    timing = replace(timing, stable=stable, throttle=tuple(throttle), left_out=left)
    words = detail.doubts(replace(FINALS[0], timing=timing))
    assert ("unstable" in words) != stable
    assert ("throttled" in words) == bool(throttle)
    assert (f"{left} left out" in words) == (left > 0)


def test_the_page_marks_doubts_in_words_and_in_both_tables() -> None:
    text = page(RUN, [replace(o, default=False) for o in OUTCOMES])
    assert "95\u00a0%:" in text and "final, cold, sustained" in text
    for word in ("unstable", "throttled", "5 left out"):
        assert text.count(f"<i>{word}</i>") >= 2, word
    run, outcomes = synthetic.matmul()
    alone = [o for o in outcomes if isinstance(o, Record) and o.default]  # it wins, for want of all
    words = page(run, alone)
    assert "time is unstable" in words and "5 samples of it taken at under 3/4" in words


def expanded(line: str, width: int) -> list[str]:
    """What the page's script makes of a line."""
    cells: list[str] = []
    for cell in [*line.split("\t"), *[""] * width][:width]:
        cells.append(cells[-1] if cell == detail.SAME else cell)
    return cells


@given(st.lists(st.sampled_from(["1.5", "1.5", "2", "", "power cap"]), min_size=1, max_size=9))
def test_a_line_of_data_says_what_went_into_it(cells: list[str]) -> None:
    assert expanded(detail._line(cells), len(cells)) == cells


def test_the_data_has_a_line_for_every_row_and_every_figure_once() -> None:
    data = detail.csv_data(RUN, BOARD, STAND)
    lines_ = data["lines"].split("\n")
    assert len(lines_) == len(STAND)
    heads = [*data["heads"], *data["shared"]]
    assert len(heads) == len(set(heads)) and "stddev, µs" in heads and "cycles" in heads
    for outcome, line in zip(STAND, lines_, strict=True):
        assert bool(line) == isinstance(outcome, Record)
        if isinstance(outcome, Record):
            cells = dict(zip(data["heads"], expanded(line, len(data["heads"])), strict=True))
            assert float(cells["median, µs"]) == pytest.approx(outcome.time_s * 1e6, rel=1e-4)


def test_without_a_measured_time_no_line_has_data() -> None:
    for make in (synthetic.empty, synthetic.all_failed, lambda: synthetic.matmul(predicted=True)):
        run, outcomes = make()
        data = detail.csv_data(run, BOARD, outcomes)
        assert not data["lines"].strip() and "protocol" not in data["problem"]


def test_where_the_time_went_adds_up() -> None:
    result = detail.time_parts(RUN, OUTCOMES, SECONDS)
    assert [p["name"] for p in result["parts"]] == [*SECONDS]
    assert sum(float(p["percent"]) for p in result["parts"]) == pytest.approx(100)
    tried = sum(isinstance(o, Record) or o.stage != "refused" for o in STAND) - 2  # libraries
    assert result["words"].startswith(f"10.0 s for {tried} configs: {6 * tried} configs a minute")
    later = replace(RUN, started="2026-11-21T09:31:00+00:00")
    assert "known from earlier runs" in detail.time_parts(later, OUTCOMES, SECONDS)["words"]
    assert detail.time_parts(RUN, OUTCOMES, None) == detail.time_parts(RUN, OUTCOMES, {}) == {}


def test_the_page_says_where_the_time_went_only_where_it_is_known() -> None:
    assert "Where the time went" not in page(RUN, OUTCOMES)
    text = page(RUN, OUTCOMES, SECONDS)
    assert "Where the time went" in text and "<b>3.5 s</b>, 35.0 %" in text


@given(st.lists(st.lists(st.floats(1e-6, 1e-3), min_size=1, max_size=5), max_size=9))
def test_windows_are_cut_where_they_ended(windows: list[list[float]]) -> None:
    samples = tuple(s for window in windows for s in window)
    sizes = tuple(map(len, windows))
    timing = replace(synthetic.measured(1e-4), samples_s=samples, window_sizes=sizes)
    assert timing.window_medians == pytest.approx([median(w) for w in windows])
    assert replace(timing, samples_s=(*samples, 1.0)).window_medians == []


def test_a_final_without_windows_has_no_rounds() -> None:
    bare = [
        replace(r, timing=replace(r.timing, window_sizes=(), window_mhz=()))  # type: ignore[type-var]
        for r in FINALS
    ]
    assert rounds(BOARD, FINALS, lines(FINALS, BEST), "a") is not None
    assert rounds(BOARD, bare, lines(bare, None), "b") is None
    assert rounds(BOARD, [], lines([], None), "c") is None


def test_an_incumbent_that_stays_is_said_to() -> None:
    result = select(RUN, OUTCOMES)
    tie = result.ties[0]
    run = replace(RUN, previous_best={tie.case.impl: dict(tie.case.config)})
    assert "was the best in an earlier run" in page(run, OUTCOMES)
    assert "was the best in an earlier run" not in page(RUN, OUTCOMES)


def test_a_predicted_tie_is_not_called_a_measurement() -> None:
    run, outcomes = synthetic.softmax(predicted=True)
    first, other, *rest = [replace(o, default=False) for o in ranking(outcomes)]
    assert isinstance(first, Record) and isinstance(other, Record)
    near = replace(first.timing, predicted_s=1.01 * first.time_s)
    text = page(run, [first, replace(other, timing=near, default=True), *rest])
    assert (
        f"{first.case.label} is predicted to be faster than the winner by less than 2\u00a0%"
        in text
    )
    assert "the winner is the default" in text and "does not differ measurably" not in text


def many() -> tuple[Run, list[Outcome]]:
    """Over 827 configs with a time, as a matmul over two Impls and three groupings has."""
    run, outcomes = synthetic.matmul()
    grown = [
        replace(o, key=f"{o.key}{g}", case=replace(o.case, config={**o.case.config, "group_m": g}))
        for g in (1, 4, 8, 16)
        for o in outcomes
        if not o.case.is_baseline
    ]
    return run, [*grown, *(o for o in outcomes if o.case.is_baseline)]


def test_eight_hundred_configs_fit() -> None:
    run, outcomes = many()
    rows = ranking(outcomes)
    timed = sum(isinstance(o, Record) for o in rows)
    kept = {id(o) for o in [o for o in rows if isinstance(o, Record)][: min(timed, 827)]}
    text = page(run, [o for o in outcomes if id(o) in kept], SECONDS)
    assert len(re.findall(r'<tr id="r\d+"', text)) == len(kept) >= 827
    assert len(text.encode()) < 700_000


def test_heads_travel_as_json_that_a_name_cannot_break() -> None:
    run, outcomes = synthetic.copy()
    text = page(replace(run, kernel="\"'><b>&"), outcomes)
    wanted = re.search(r'data-problem="([^"]*)"', text)
    assert wanted is not None
    assert json.loads(html.unescape(wanted[1]))["kernel"] == "\"'><b>&"


@pytest.mark.parametrize("seconds", [SECONDS, {}])
def test_a_page_from_an_events_file_knows_where_the_time_went(
    tmp_path: Path, seconds: Mapping[str, float]
) -> None:
    run, outcomes = synthetic.copy()
    file = tmp_path / "events.jsonl"
    with EventLog(file) as log:
        for event in (run, *outcomes):
            log.write(event)
        log.write(RunFinished(synthetic.AT, run.id, "complete", {}, dict(seconds)))
    created = draw("sweep", str(file), tmp_path / "page.html", None)
    assert ("Where the time went" in created.read_text(encoding="utf-8")) == bool(seconds)
