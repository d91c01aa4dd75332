"""Figures of an experiment: its charts, and the times of all its variants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup

from workbench.data.record import Chart, Measured, Record, group_by
from workbench.data.units import unit_of
from workbench.reports import colour, figure, figure_svg
from workbench.reports.figures.curve import draw_series
from workbench.reports.figures.drawing import SMALL, axes, log_ticks, plain, short_name
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
        draw_series(ax, series, n)
    if result.y_log:
        log_ticks(ax.yaxis, *ax.get_ylim())
    timed = [series for series in result.series if series.kind in ("measured", "predicted")]
    xs = sorted({x for series in timed for x in series.x})
    if result.x_log and 1 < len(xs) <= 12:
        ax.set_xticks(xs, [f"{x:g}" for x in xs])
        ax.xaxis.minorticks_off()
    tops = [y for series in result.series for y in (*series.y, *series.high)]
    if not result.y_log and tops and min(tops) >= 0:
        ax.set_ylim(0, 1.08 * max(tops) or 1.0)
    if len(result.series) > 1:
        ax.legend(loc="best", fontsize=SMALL, frameon=False, labelcolor=colour("ink"))
    return fig


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
