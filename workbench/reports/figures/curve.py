"""Figures of series of points: rates over one axis of the sizes, and charts of findings."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from workbench.data.record import Chart, Series
from workbench.reports import colour, figure, figure_svg
from workbench.reports.figures.drawing import (
    LIBRARY_MARKS,
    MARKS,
    SMALL,
    axes,
    legend_beside,
    log_ticks,
    marker_of,
    plain,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 820, 400  # px
TIME_UNIT = "µs"  # of curves without declared bytes and FLOPs
KEY_LETTERS = 30  # of a line of the key, which has 200 px beside its marks
LOG_FROM = 8.0  # largest over smallest size or time, from which its axis is logarithmic


@dataclass(frozen=True)
class Curve:
    """Rates over one axis, the other axes and the dtype being equal."""

    axis: str
    fixed_text: str  # the other axes and the dtype
    unit: str  # "GB/s" or "TFLOP/s"; TIME_UNIT for times in place of rates
    lines: tuple[Series, ...]  # of each Impl, at the sizes at which it has a time
    bound: Series | None = None  # the rate at the roofline bound; None without a ceiling
    libraries: frozenset[str] = frozenset()  # names of those lines that are libraries'

    @property
    def title(self) -> str:
        """Return `rate, GB/s over N, M=4096, bf16`."""
        return f"{self.quantity} over {self.axis}, {self.fixed_text}"

    @property
    def quantity(self) -> str:
        """Return what is drawn: `rate, GB/s`, or `time of one call, µs`."""
        return f"{'time of one call' if self.unit == TIME_UNIT else 'rate'}, {self.unit}"


def curve_svg(curve: Curve, prefix: str) -> Markup:
    """Return a curve as inline SVG."""
    return figure_svg(curve_figure(curve), prefix, curve.title)


def curve_figure(curve: Curve) -> Figure:
    """Return a curve as a figure. Measured rates are filled marks on solid lines, predicted ones
    hollow marks on dashed lines; libraries have thin crosses."""
    fig = figure(WIDTH, HEIGHT)
    ax = axes(fig, 76, 16, WIDTH - 316, HEIGHT - 72, "both")
    kinds = {line.kind for line in curve.lines}
    kind = kinds.pop() if len(kinds) == 1 else "as marked"
    ax.set(xlabel=f"{curve.axis} ({curve.fixed_text})", ylabel=f"{curve.quantity}, {kind}")
    _scale(ax, curve)
    for n, line in enumerate(line for line in curve.lines if line.name not in curve.libraries):
        draw_series(ax, line, n)
    for n, line in enumerate(line for line in curve.lines if line.name in curve.libraries):
        draw_series(ax, line, n, library=True)
    if curve.bound is not None:
        ink = colour("roof-memory" if curve.unit == "GB/s" else "roof-compute")
        ax.plot(
            curve.bound.x, curve.bound.y, color=ink, linewidth=2, label=_wrap_name(curve.bound.name)
        )
    tops = [y for line in (*curve.lines, curve.bound) if line for y in (*line.y, *line.high)]
    ends = [y for line in curve.lines for y in (*line.y, *line.low, *line.high)]
    if curve.unit == TIME_UNIT and max(ends) >= LOG_FROM * min(ends):
        ax.set_yscale("log")
        log_ticks(ax.yaxis, *ax.get_ylim())
    else:
        ax.set_ylim(0, 1.06 * max(tops, default=1.0))
    legend_beside(ax)
    return fig


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


def _wrap_name(name: str) -> str:
    """Return a name in lines that fit beside the axes."""
    return "\n".join(textwrap.fill(line, KEY_LETTERS) for line in name.splitlines())


def _scale(ax: Any, curve: Curve) -> None:
    """Set the scale of the sizes, and a tick at each where they are few."""
    xs = sorted({x for line in curve.lines for x in line.x})
    if xs[-1] >= LOG_FROM * xs[0]:
        ax.set_xscale("log", base=2)
    shown = xs if len(xs) <= 9 else xs[:: -(-len(xs) // 9)]
    ax.set_xticks(shown, [size_text(x) for x in shown])
    ax.xaxis.minorticks_off()


def size_text(size: float) -> str:
    """Return a size as a tick: 768, 16Ki, 4Mi."""
    for step, name in ((1 << 20, "Mi"), (1 << 10, "Ki")):
        if size >= 16 * (1 << 10) and size % step == 0:
            return f"{size // step}{name}"
    return f"{size:,}" if size < 100_000 else f"{size:.3g}"


def draw_series(ax: Any, series: Series, n: int, library: bool = False) -> None:
    """Draw the n-th line, dashed unless it is measured, with its intervals. Its points are filled
    if measured and hollow if predicted; others have none."""
    marks = LIBRARY_MARKS if library else MARKS
    mark, measured = marker_of(marks[n % len(marks)]), series.kind == "measured"
    ink, width = colour("muted" if library else f"impl-{n % 4}"), 1.0 if library else 1.8
    look: dict[str, Any] = {"markersize": 6, "zorder": 3, "linewidth": width, "label": series.name}
    look |= {"linestyle": "-" if measured else (0, (5, 3)), "color": ink}
    look |= {"marker": mark if measured or series.kind == "predicted" else ""}
    ax.plot(series.x, series.y, markerfacecolor=ink if measured else "none", **look)
    if series.low and series.high:
        ends = zip(series.y, series.low, series.high, strict=True)
        reach = [(max(0.0, y - low), max(0.0, high - y)) for y, low, high in ends]
        look = {"fmt": "none", "ecolor": ink, "elinewidth": 1.2, "capsize": 2.5, "zorder": 2}
        ax.errorbar(series.x, series.y, list(zip(*reach, strict=True)), **look)


def crosses(lines: Sequence[Series]) -> bool:
    """Return whether there is something to draw: two sizes at least."""
    return len({x for line in lines for x in line.x}) > 1
