"""Figures of an experiment: its charts, and the times of all its variants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from workbench.data.record import Chart, Measured, Predicted, Record, Series
from workbench.data.units import text_of, unit_of
from workbench.reports import colour, figure, figure_svg
from workbench.reports.figures.drawing import MARKERS, SMALL, axes, name_rows, note_row, plain_ticks
from workbench.spec import label, sizes_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LINE = 24  # px between rows


def chart(result: Chart, prefix: str) -> Markup:
    """Return a chart of lines as inline SVG."""
    return figure_svg(chart_figure(result), prefix, result.title)


def chart_figure(result: Chart) -> Figure:
    """Return a chart of lines; points are filled if measured, hollow if predicted, else absent."""
    fig = figure(640, 360)
    ax = axes(fig, 96, 16, 520, 286, "both")
    ax.set(xlabel=result.x_label, ylabel=result.y_label)
    for log, axis, scale in (
        (result.x_log, ax.xaxis, ax.set_xscale),
        (result.y_log, ax.yaxis, ax.set_yscale),
    ):
        if log:
            scale("log")
        axis.set_major_formatter(lambda v, _: plain(v))
        axis.set_minor_formatter(lambda v, _: "")
    for n, series in enumerate(result.series):
        _line(ax, n, series)
    if result.y_log:
        ys = [y for series in result.series for y in series.y if y > 0]
        if ys and max(ys) < 300 * min(ys):  # powers of ten alone would give two or three lines
            from matplotlib.ticker import LogLocator

            ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    xs = sorted({x for series in result.series if _is_time(series) for x in series.x})
    if result.x_log and 1 < len(xs) <= 12:
        ax.set_xticks(xs, [f"{x:g}" for x in xs])
        ax.xaxis.minorticks_off()
    tops = [y for series in result.series for y in (*series.y, *series.high)]
    if not result.y_log and tops and min(tops) >= 0:
        ax.set_ylim(0, 1.08 * max(tops) or 1.0)
    if len(result.series) > 1:
        ax.legend(loc="best", fontsize=SMALL, frameon=False, labelcolor=colour("ink"))
    return fig


def _is_time(series: Series) -> bool:
    return series.kind in ("measured", "predicted")


def _line(ax: Any, n: int, series: Series) -> None:
    ink = colour(f"impl-{n % 4}")
    measured = series.kind == "measured"
    look = {"linestyle": "-" if measured else (0, (5, 3)), "linewidth": 1.6, "zorder": 3}
    look |= {"marker": MARKERS[n % len(MARKERS)] if _is_time(series) else "", "markersize": 5}
    look |= {"markerfacecolor": ink if measured else "none"}
    ax.plot(series.x, series.y, color=ink, label=series.name, **look)
    if series.low and series.high:
        below = [max(0.0, y - low) for y, low in zip(series.y, series.low, strict=True)]
        above = [max(0.0, high - y) for y, high in zip(series.y, series.high, strict=True)]
        look = {"fmt": "none", "ecolor": ink, "elinewidth": 1.2, "capsize": 2.5, "zorder": 2}
        ax.errorbar(series.x, series.y, (below, above), **look)


def plain(value: float) -> str:
    """Return a tick's text: 0.5, 200, 20 G."""
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if prefix == 'k' else size):g} {prefix}"
    return f"{value:g}"


def times(records: Sequence[Record], prefix: str) -> Markup:
    """Return the time of each variant by kernel, on a log axis, with the median's interval."""
    rows: list[tuple[str, Record | None]] = []
    for kernel in dict.fromkeys(r.case.kernel for r in records):
        mine = [r for r in records if r.case.kernel == kernel]
        same = all(r.case.sizes == mine[0].case.sizes for r in mine)
        of = sizes_text(mine[0].case.sizes, " ") if same else ""
        rows.append((f"{kernel}, {of}" if of else kernel, None))
        rows += [(_name(r, not same), r) for r in mine]
    fig = figure(960, 8 + _LINE * len(rows) + 52)
    ax = axes(fig, 400, 8, 470, _LINE * len(rows), "x")
    seconds = [r.time_s for r in records]
    seconds += [end for r in records if not r.is_measured for end in _ends(r.timing) or ()]
    scale, unit = unit_of(min(seconds))
    low, high = min(seconds) / scale, max(seconds) / scale
    ax.set(xscale="log", xlim=(low / 1.6, high * 1.6), ylim=(len(rows) - 0.5, -0.5))
    ax.set(xlabel=f"time of one call, {unit} (log)")
    decades = range(math.floor(math.log10(low / 1.6)), math.ceil(math.log10(high * 1.6)) + 1)
    ticks = [m * 10.0**e for e in decades for m in (1, 2, 5)]
    ax.set_xticks([t for t in ticks if low / 1.6 <= t <= high * 1.6], minor=False)
    plain_ticks(ax.xaxis)
    ax.xaxis.minorticks_off()
    name_rows(ax, range(len(rows)), [name for name, _ in rows])
    for name, (_, record) in zip(ax.get_yticklabels(), rows, strict=True):
        name.set_fontweight("normal" if record else "bold")
    for row, (_, record) in enumerate(rows):
        if record is not None:
            _bar(ax, row, record, scale)
        elif row:
            ax.axhline(row - 0.5, color=colour("rule"), linewidth=0.8)
    return figure_svg(fig, prefix, "Time of each variant")


def _ends(timing: Measured | Predicted) -> tuple[float, float] | None:
    """Return the ends of an interval in seconds; None where the model states none."""
    if isinstance(timing, Measured):
        return timing.low_s, timing.high_s
    return timing.interval_s


def _bar(ax: Any, row: int, record: Record, scale: float) -> None:
    ink, at = colour("impl-0"), record.time_s / scale
    face = ink if record.is_measured else "none"
    ax.plot([at], [row], marker="o", markersize=7, color=ink, markerfacecolor=face, zorder=3)
    if ends := _ends(record.timing):
        ends = ends[0] / scale, ends[1] / scale
        ax.plot(ends, [row, row], color=ink, linewidth=2, zorder=2)
    note_row(ax, row, ("" if record.is_measured else "~") + text_of(record.time_s, scale))


def _name(record: Record, sized: bool) -> str:
    """Return a name that distinguishes a variant; the config, which is longest, comes last."""
    case, timing = record.case, record.timing
    parts = [case.impl, sizes_text(case.sizes, " ") if sized else ""]
    if isinstance(timing, Measured):
        parts += ["hot"] * (timing.regime == "hot") + ["host clock"] * (timing.method == "host")
    parts.append(label(case.config) if case.config else "")
    name = ", ".join(part for part in parts if part)
    return name if len(name) <= 60 else name[:59] + "…"
