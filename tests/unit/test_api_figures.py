"""What the figures of results hold: points, intervals, lines, limits, labels, by hand."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import synthetic
from matplotlib.colors import to_hex

from workbench.api import figures
from workbench.api.figures import ValueRow
from workbench.data.record import Profile, Record
from workbench.data.selection import Selection
from workbench.reports import colour

pytestmark = pytest.mark.unit

RUN, OUTCOMES = synthetic.matmul()
RECORDS = [o for o in OUTCOMES if isinstance(o, Record)]
OWN = [r for r in RECORDS if r.phase == "final" and not r.case.is_baseline]
LIBRARY = next(r for r in RECORDS if r.phase == "final" and r.case.is_baseline)


def timed(record, median, low=None, high=None, **more):
    timing = replace(record.timing, median_s=median, low_s=low or median, high_s=high or median)
    return replace(record, timing=timing, **more)


def points(ax):
    """Return the points of each line with a marker: places, colour, and whether it is filled."""
    return [([float(x) for x in line.get_xdata()], [round(float(y), 6) for y in line.get_ydata()],
             to_hex(line.get_color()), line.get_markerfacecolor() != "none")
            for line in ax.get_lines() if line.get_marker() not in ("None", None, "")]  # fmt: skip


def ink(name):
    return to_hex(colour(name))


def named(record, impl, **config):
    return replace(record, case=replace(record.case, impl=impl, config=config))


def test_rows_have_points_intervals_and_what_is_left_out():
    bars = [ValueRow("a" * 46, 2.0, "two", low=1.0, high=4.0), ValueRow("b" * 47, 3.0, "three",
            is_measured=False, group=5), ValueRow("c", 1.0, "one", low=0.5)]  # fmt: skip
    (ax,) = figures.bars_figure(bars, "time").axes
    assert points(ax) == [([2.0], [0.0], ink("impl-0"), True), ([3.0], [1.0], ink("impl-1"), False),
                          ([1.0], [2.0], ink("impl-0"), True)]  # fmt: skip
    spans = [line for line in ax.get_lines() if len(line.get_xdata()) == 2]
    assert [list(line.get_xdata()) for line in spans] == [[1.0, 4.0]]
    assert list(spans[0].get_ydata()) == [0, 0] and spans[0].get_linewidth() == 2
    assert ax.get_xlim() == (0, pytest.approx(4.2)) and ax.get_ylim() == (2.5, -0.5)
    texts = [t.get_text() for t in ax.texts] + [t.get_text() for t in ax.get_yticklabels()]
    assert {"two", "three", "one", "a" * 46, "b" * 45 + "…"} <= set(texts)
    assert ax.get_xlabel() == "time" and figures.bars_figure([], "time") is None
    many = [ValueRow(str(n), n + 1.0, "") for n in range(26)]
    (ax,) = figures.bars_figure(many, "time").axes
    assert ax.get_xlabel() == "time; 2 more rows in the table" and len(points(ax)) == 24
    (ax,) = figures.bars_figure(many[:24], "rate", log=True).axes
    assert (
        ax.get_xlabel() == "rate"
        and ax.get_xscale() == "log"
        and ax.get_xlim() == pytest.approx((1 / 1.6, 38.4))
    )
    assert ax.xaxis.get_major_formatter()(20_000.0, 0) == "20 k"
    assert list(ax.xaxis.get_ticklocs()) == [1, 2, 5, 10, 20]
    assert not len(ax.xaxis.get_minorticklocs())


def test_configs_are_ranked_by_their_latest_times():
    a, b, c = (named(timed(r, s), impl, x=n) for n, (r, impl, s) in enumerate(
        zip(OWN * 3, ("one", "two", "one"), (4e-6, 2e-6, 30e-6), strict=False)))  # fmt: skip
    older = timed(a, 1e-6, phase="first_pass")
    hot = timed(a, 0.5e-6, phase="hot")
    b = replace(b, default=True)
    a = replace(a, default=False)
    c = replace(c, default=False)
    library = timed(LIBRARY, 3e-6)
    (ax,) = figures.ranked_figure([older, a, hot, b, c, library], Selection(False, a)).axes
    assert points(ax)[:2] == [([1.0], [2.0], ink("impl-0"), True),
                              ([2.0, 3.0], [4.0, 30.0], ink("impl-1"), True)]  # fmt: skip
    rings = points(ax)[2:]
    assert [(x, y, c) for x, y, c, _ in rings] == [([1.0], [2.0], ink("ink")),
                                                   ([2.0], [4.0], ink("accent"))]  # fmt: skip
    labels = [t.get_text() for t in ax.get_legend().get_texts()]
    assert labels == ["two", "one", "cublas", "default", "selected"]
    assert ax.get_ylim() == (0, pytest.approx(8 * 1.06)), "four times the fastest"
    assert ax.get_ylabel() == "time of one call, µs, measured"
    flat = [line for line in ax.get_lines() if list(line.get_ydata()) == [3.0, 3.0]]
    assert len(flat) == 1 and flat[0].get_label() == library.case.impl and not ax.texts
    (ax,) = figures.ranked_figure([a, b], Selection(False, b)).axes
    assert ax.get_ylim() == (0, pytest.approx(4 * 1.06))
    assert [t.get_text() for t in ax.get_legend().get_texts()][-1] == "selected, the default"
    assert figures.ranked_figure([library], Selection(False)) is None


def test_times_of_records_are_rows_with_their_intervals():
    one = named(timed(OWN[0], 4e-6, 3e-6, 6e-6), "one", x=1)
    two = named(timed(OWN[0], 20e-6, 10e-6, 30e-6), "two", x=2)
    bars = []
    real = figures.bars_figure
    figures.bars_figure = lambda *words: bars.append(words)
    try:
        figures.times_figure([one, two])
        other = replace(two, case=replace(two.case, kernel="softmax"))
        figures.times_figure([one, other])
    finally:
        figures.bars_figure = real
    rows, label = bars[0]
    assert label == "time of one call, µs"
    assert [(r.name, r.text, r.is_measured, r.group) for r in rows] == [
        (one.case.label, "4.000", True, 0), (two.case.label, "20.00", True, 1)]  # fmt: skip
    assert [(r.value, r.low, r.high) for r in rows] == [
        pytest.approx((4, 3, 6)), pytest.approx((20, 10, 30))]  # fmt: skip
    assert [r.name for r in bars[1][0]] == [
        f"matmul: {one.case.label}",
        f"softmax: {two.case.label}",
    ]
    assert figures.times_figure([]) is None
    predicted = next(o for o in synthetic.matmul(predicted=True)[1] if isinstance(o, Record))
    row = figures._time_bar(predicted, 1e-6, 2, False)
    assert row.text.startswith("~") and not row.is_measured and row.group == 2
    low, high = figures.expected_s(predicted) or (None, None)
    assert (row.low, row.high) == (low and pytest.approx(low / 1e-6), high and pytest.approx(
        high / 1e-6))  # fmt: skip


def test_rates_and_profiles_are_rows(monkeypatch):
    bars = []
    monkeypatch.setattr(figures, "bars_figure", lambda *words, **more: bars.append((*words, more)))
    ceilings = {
        "dram": {"value": 4e12, "unit": "B/s", "kind": "datasheet"},
        "compute_measured": {"value": 9e14, "unit": "FLOP/s", "kind": "measured"},
        "cache": {"value": 8e12, "unit": "B/s", "kind": "measured"},
        "launch": {"value": 1e-6, "unit": "s", "kind": "measured"},
        "none": {"value": 0, "unit": "B/s", "kind": "measured"},
    }  # fmt: skip
    figures.ceilings_figure(ceilings)
    rows, label, more = bars[0]
    assert label == "B/s and FLOP/s (log)" and more == {"log": True}
    assert [(r.name, r.value, r.group) for r in rows] == [
        ("dram", 4e12, 0), ("compute_measured", 9e14, 1), ("cache", 8e12, 0)]  # fmt: skip
    assert [r.is_measured for r in rows] == [
        figures.origin_of(n, ceilings[n]) == "measured"
        for n in ("dram", "compute_measured", "cache")
    ]
    profiles = [Profile.__new__(Profile) for _ in range(3)]
    for profile, name, total in zip(profiles, "abc", (2e-3, 5e-3, None), strict=True):
        object.__setattr__(profile, "name", name)
        object.__setattr__(profile, "total_s", total)
    figures.profiles_figure(profiles)
    rows, label, _ = bars[1]
    assert [(r.name, r.text) for r in rows] == [("b", "5000.0"), ("a", "2000.0")]
    assert rows[0].value == pytest.approx(5000) and label == "total time, µs, profiled"
    assert figures.profiles_figure(profiles[2:]) is None


def test_a_history_has_the_four_kernels_with_the_most_outcomes():
    counts = {"a": 1, "b": 3, "c": 2, "d": 2, "e": 2}
    rows = [{"kernel": k, "kind": "measured", "at": f"2026-11-0{n + 1}T00:00:00", "time_s": 2e-6}
            for k, many in counts.items() for n in range(many)]  # fmt: skip
    rows[1]["kind"] = "predicted"
    rows.append({"kernel": "a", "kind": "measured", "at": "2026-11-01", "time_s": None})
    (ax,) = figures.history_figure(rows).axes
    labels = [t.get_text() for t in ax.get_legend().get_texts()]
    assert labels == ["b, measured", "b, predicted", *(f"{k}, measured" for k in "cde")]
    filled = [(line.get_markerfacecolor() != "none", to_hex(line.get_color()),
               len(line.get_ydata()))
              for line in ax.get_lines()]  # fmt: skip
    assert filled == [(True, ink("impl-0"), 2), (False, ink("impl-0"), 1), *(
        (True, ink(f"impl-{n}"), 2) for n in (1, 2, 3))]  # fmt: skip
    assert list(ax.get_lines()[0].get_ydata()) == pytest.approx([2.0, 2.0])
    assert ax.get_ylabel() == "time of one call, µs" and ax.get_ylim() == (0, pytest.approx(2.3))
    assert figures.history_figure(rows[-1:]) is None


@pytest.mark.parametrize(
    "factor, shown",
    [
        (1, ["0.0", "0.5", "1.0", "1.5", "2.0"]),
        (5, ["2", "5", "10"]),
        (2000, ["10", "100", "1000"]),
    ],
)
def test_a_history_has_numbers_on_both_axes(factor, shown):
    """Runs of one second stood under `06:47.600000`; a short logarithmic axis had no number."""
    at = "2026-11-26T12:06:47.{}00000"
    rows = [{"kernel": "a", "kind": "measured", "at": at.format(n), "time_s": 2e-6 * f}
            for n, f in enumerate((1, factor))]  # fmt: skip
    (ax,) = figures.history_figure(rows).axes
    ax.figure.draw_without_rendering()
    for axis, texts in ((ax.yaxis, shown), (ax.xaxis, ["12:05", "12:10"])):
        low, high = axis.get_view_interval()
        ticks = zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)
        assert [label.get_text() for at, label in ticks if low <= at <= high] == texts
    assert ("(log)" in ax.get_ylabel()) == (factor > 4)


def test_a_curve_or_else_the_times_are_drawn(monkeypatch):
    monkeypatch.setattr(figures, "times_figure", lambda records: [r.phase for r in records])
    monkeypatch.setattr(figures, "curve_figure", lambda curve: f"curve {curve}")
    monkeypatch.setattr(figures, "chart_figure", lambda chart: f"chart {chart}")
    monkeypatch.setattr(figures, "curves_of", lambda run, outcomes: [])
    assert set(figures.curve_or_times(RUN, OUTCOMES)) == {"final"}
    monkeypatch.setattr(figures, "curves_of", lambda run, outcomes: [3, 4])
    assert figures.curve_or_times(RUN, OUTCOMES) == "curve 3"
    findings = [SimpleNamespace(charts=()), SimpleNamespace(charts=(1, 2))]
    assert figures.finding_figure(findings, OWN[:1]) == "chart 1"
    assert figures.finding_figure(findings[:1], OWN[:1]) == ["final"]
    fig = figures.notebook_figure(figures.figure(100, 80), {"ground": "#ffffff"})
    assert fig.patch.get_visible() and to_hex(fig.patch.get_facecolor()) == "#ffffff"
    assert fig._repr_png_()[:4] == b"\x89PNG"
