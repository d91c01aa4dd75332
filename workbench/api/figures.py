"""Figures of results, in the colours of `reports.colour`."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from typing import TYPE_CHECKING, Any

from workbench.data.record import Finding, Outcome, Profile, Record, Run
from workbench.data.selection import Selection
from workbench.data.units import quantity, text_of, unit_of
from workbench.device.ceilings import origin_of
from workbench.device.error_band import expected_s, factor_words
from workbench.reports import colour, figure
from workbench.reports.figures.curve import chart_figure, curve_figure
from workbench.reports.figures.curve_data import curves_of
from workbench.reports.figures.drawing import (
    MARKS,
    axes,
    legend_beside,
    log_ticks,
    marker_of,
    short_name,
)
from workbench.reports.figures.rows import ValueRow, rows_figure, time_row

if TYPE_CHECKING:
    from datetime import datetime

    from matplotlib.figure import Figure

MOST_ROWS = 24  # of a figure of rows
NARROW = 4.0  # times within this factor of each other stand on a linear axis


def notebook_figure(fig: Figure, inks: Mapping[str, str]) -> Figure:
    """Return a figure on an opaque ground, which a notebook shows also without pyplot."""
    fig.patch.set_facecolor(inks["ground"])
    fig.patch.set_visible(True)

    def png() -> bytes:
        out = io.BytesIO()
        fig.savefig(out, format="png", dpi=144)
        return out.getvalue()

    vars(fig)["_repr_png_"] = png
    return fig


def ranked_figure(records: Sequence[Record], result: Selection) -> Figure | None:
    """Return the time of every config of a sweep by its rank, an Impl a colour, and the library
    baselines as lines. A config is drawn at its latest measurement."""
    latest = {r.case.label: r for r in records if r.phase != "hot"}
    own = sorted((r for r in latest.values() if not r.case.is_baseline), key=lambda r: r.time_s)
    if not own:
        return None
    scale, unit = unit_of(own[0].time_s)
    fig = figure(820, 340)
    ax = axes(fig, 76, 14, 560, 270, "y")
    impls = list(dict.fromkeys(r.case.impl for r in own))
    for n, impl in enumerate(impls):
        places = [at for at, r in enumerate(own, 1) if r.case.impl == impl]
        ys = [own[at - 1].time_s / scale for at in places]
        _points(ax, places, ys, n, impl, own[places[0] - 1].is_measured)
    libraries = [r for r in latest.values() if r.case.is_baseline]
    for record, style in zip(libraries, cycle(("-", "--", ":"))):
        look = {"color": colour("muted"), "linewidth": 1, "linestyle": style}
        ax.axhline(record.time_s / scale, label=record.case.impl, **look)
    _mark(ax, own, result, scale)
    ax.xaxis.get_major_locator().set_params(integer=True)
    kind = "measured" if own[0].is_measured else "predicted"
    error = "" if own[0].is_measured else f"; {factor_words(own)}"
    ax.set(xlabel=f"configs, fastest first{error}", ylabel=f"time of one call, {unit}, {kind}")
    ax.set_ylim(0, min(max(r.time_s for r in own), 4 * own[0].time_s) / scale * 1.06)
    legend_beside(ax)
    return fig


def _points(
    ax: Any, xs: Sequence[Any], ys: Sequence[float], n: int, label: str, measured: bool
) -> None:
    ink = colour(f"impl-{n % 4}")
    look = {"linestyle": "", "marker": marker_of(MARKS[n % len(MARKS)]), "markersize": 5}
    ax.plot(xs, ys, color=ink, markerfacecolor=ink if measured else "none", label=label, **look)


def _mark(ax: Any, own: Sequence[Record], result: Selection, scale: float) -> None:
    """Ring the selected config and that of a launch, each kind once in the legend."""
    named, winner = set(), result.winner
    for at, record in enumerate(own, 1):
        is_winner = winner is not None and record.case == winner.case
        if is_winner or record.default:
            ink = colour("accent" if is_winner else "ink")
            look = {"linestyle": "", "marker": "o", "markersize": 12, "markerfacecolor": "none"}
            name = "selected" if is_winner else result.launch_kind
            name += f", the {result.launch_kind}" if is_winner and record.default else ""
            look["label"] = "_" if name in named else name  # matplotlib leaves "_" out
            named.add(name)
            ax.plot([at], [record.time_s / scale], color=ink, **look)


def curve_or_times(run: Run, outcomes: Sequence[Outcome]) -> Figure | None:
    """Return the curve over the one axis on which the sizes differ, else the times in rows."""
    curves = curves_of(run, outcomes)
    if curves:
        return curve_figure(curves[0])
    cold = [o for o in outcomes if isinstance(o, Record) and o.phase in ("final", "predict")]
    return times_figure(cold)


def times_figure(records: Sequence[Record]) -> Figure | None:
    """Return the time of each record in a row, with its interval."""
    if not records:
        return None
    scale, unit = unit_of(min(r.time_s for r in records))
    impls = list(dict.fromkeys(r.case.impl for r in records))
    several = len({r.case.kernel for r in records}) > 1
    bars = [_time_bar(r, scale, impls.index(r.case.impl), several) for r in records]
    error = factor_words(records)
    predicted = f"; hollow: predicted, {error}" if error else ""
    return bars_figure(bars, f"time of one call, {unit}{predicted}")


def _time_bar(record: Record, scale: float, group: int, several: bool) -> ValueRow:
    name = f"{record.case.kernel}: {record.case.label}" if several else record.case.label
    return time_row(name, record, scale, group, expected_s(record))


def finding_figure(findings: Sequence[Finding], records: Sequence[Record]) -> Figure | None:
    """Return the first chart of the findings, else the times of the variants."""
    charts = [chart for finding in findings for chart in finding.charts]
    return chart_figure(charts[0]) if charts else times_figure(records)


def ceilings_figure(ceilings: Mapping[str, Mapping[str, Any]]) -> Figure | None:
    """Return the bandwidths and rates in rows, on a logarithmic axis."""
    rates = {n: c for n, c in ceilings.items() if c.get("value") and c["unit"].endswith("/s")}
    units = list(dict.fromkeys(c["unit"] for c in rates.values()))
    bars = [
        ValueRow(
            name,
            float(c["value"]),
            quantity(c["value"], c["unit"]),
            origin_of(name, c) == "measured",
            group=units.index(c["unit"]),
        )
        for name, c in rates.items()
    ]
    return bars_figure(bars, f"{' and '.join(units)} (log)", log=True)


def profiles_figure(profiles: Sequence[Profile]) -> Figure | None:
    """Return the total time of each kernel in a row, the longest first."""
    timed = [(p.name, p.total_s) for p in profiles if p.total_s]
    if not timed:
        return None
    scale, unit = unit_of(max(s for _, s in timed))
    ranked = sorted(timed, key=lambda each: -each[1])
    bars = [ValueRow(name, s / scale, text_of(s, scale)) for name, s in ranked]
    return bars_figure(bars, f"total time, {unit}, profiled")


def history_figure(rows: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Return times over dates, a colour for each of the four kernels with the most outcomes."""
    timed = [row for row in rows if row["time_s"]]
    if not timed:
        return None
    from datetime import datetime

    scale, unit = unit_of(min(row["time_s"] for row in timed))
    fig = figure(820, 340)
    ax = axes(fig, 76, 14, 480, 270, "y")
    names = [row["kernel"] for row in timed]
    most = sorted(dict.fromkeys(names), key=lambda name: -names.count(name))[:4]
    for n, name in enumerate(most):
        for kind in ("measured", "predicted"):
            some = [row for row in timed if (row["kernel"], row["kind"]) == (name, kind)]
            if some:
                xs = [datetime.fromisoformat(row["at"]) for row in some]
                ys = [row["time_s"] / scale for row in some]
                _points(ax, xs, ys, n, f"{name}, {kind}", kind == "measured")
    times = [row["time_s"] / scale for row in timed]
    is_log = max(times) > NARROW * min(times)
    ax.set(ylabel=f"time of one call, {unit}{' (log)' if is_log else ''}")
    if is_log:
        ax.set_yscale("log")
        log_ticks(ax.yaxis, *ax.get_ylim())
    else:
        ax.set_ylim(0, 1.15 * max(times))
    _dates(ax, [datetime.fromisoformat(row["at"]) for row in timed])
    legend_beside(ax)
    return fig


def _dates(ax: Any, times: Sequence[datetime]) -> None:
    """Write dates and minutes along x: runs of one minute stand in a window of ten."""
    from datetime import timedelta

    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    room = max(timedelta(minutes=5), 0.05 * (max(times) - min(times)))
    ax.set_xlim(min(times) - room, max(times) + room)
    locator = AutoDateLocator(minticks=3, maxticks=7)
    ax.xaxis.set(major_locator=locator, major_formatter=ConciseDateFormatter(locator))


def bars_figure(bars: Sequence[ValueRow], x_label: str, log: bool = False) -> Figure | None:
    """Return the first numbers in rows; None where there are none."""
    if not bars:
        return None
    left_out = max(0, len(bars) - MOST_ROWS)
    shown = [replace(bar, name=short_name(bar.name, 46)) for bar in bars[:MOST_ROWS]]
    more = f"; {left_out} more rows in the table" if left_out else ""
    return rows_figure(shown, f"{x_label}{more}", 300, 430, log)
