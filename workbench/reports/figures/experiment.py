"""Figures of an experiment: its charts, and the times of all its variants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from workbench.data.record import Chart, Measured, Record, Series, group_by
from workbench.data.units import unit_of
from workbench.reports import colour, figure, figure_svg
from workbench.reports.figures.drawing import MARKERS, SMALL, axes, plain, short_name
from workbench.reports.figures.rows import ValueRow, rows_figure, time_row
from workbench.spec import label, sizes_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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


def times(records: Sequence[Record], prefix: str) -> Markup:
    """Return the time of each variant by kernel, on a log axis, with the median's interval."""
    scale, unit = unit_of(min(r.time_s for r in records))
    rows: list[ValueRow] = []
    for kernel, mine in group_by(records, lambda r: r.case.kernel).items():
        same = all(r.case.sizes == mine[0].case.sizes for r in mine)
        at = sizes_text(mine[0].case.sizes, " ") if same else ""
        rows.append(ValueRow(f"{kernel}, {at}" if at else kernel))
        rows += [time_row(_name(r, not same), r, scale) for r in mine]
    fig = rows_figure(rows, f"time of one call, {unit} (log)", 400, 470, log=True)
    return figure_svg(fig, prefix, "Time of each variant")


def _name(record: Record, sized: bool) -> str:
    """Return a name that distinguishes a variant; the config, which is longest, comes last."""
    case, timing = record.case, record.timing
    parts = [case.impl, sizes_text(case.sizes, " ") if sized else ""]
    if isinstance(timing, Measured):
        parts += ["hot"] * (timing.regime == "hot") + ["host clock"] * (timing.method == "host")
    parts.append(label(case.config) if case.config else "")
    name = ", ".join(part for part in parts if part)
    return short_name(name, 60)
