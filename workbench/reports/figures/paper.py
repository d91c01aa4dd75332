"""Roofline as a figure for papers: a column of 85 mm, light, legible in print.

PNG at 600 dots an inch, SVG with text as outlines, PDF with fonts that stay text.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from workbench.data.units import quantity
from workbench.device.ceilings import LEVELS
from workbench.reports.figures.drawing import plain_ticks
from workbench.reports.figures.limit_lines import decades
from workbench.reports.figures.roofline import Line, Room, Scene, mark_of, points_to_label, scene_of
from workbench.reports.figures.roofline_points import Point, Sheet
from workbench.reports.figures.sweep import marker_of

KINDS = ("png", "svg", "pdf")
WIDTH_IN = 85 / 25.4
TEXT, SMALL = 7.0, 6.0  # pt: the least that journals accept
# The light colours of sweep.css and roofline.css, by their names there.
INK: Mapping[str, str] = {
    "ink": "#1a1f26",
    "muted": "#57606c",
    "rule": "#dfe3e8",
    "ground": "#ffffff",
    "roof-memory": "#6d4a9c",
    "roof-cache": "#6b6f76",
    "roof-compute": "#9a3412",
    "roof-shared": "#2f6b3a",
    "warn": "#a02020",
    "impl-0": "#0072b2",
    "impl-1": "#b85000",
    "impl-2": "#00795a",
    "impl-3": "#9b4a7e",
}
RING: Mapping[str, Any] = {  # a profiled point
    "marker": "o", "markersize": 3.6, "markerfacecolor": "none", "markeredgewidth": 0.6,
    "markeredgecolor": INK["ink"],
}  # fmt: skip
_CEILING = {
    "dram": "roof-memory",
    "cache": "roof-cache",
    "shared": "roof-shared",
    "compute": "roof-compute",
}
_SHORT = {"shared": "L1, shared"}
_NAMES, _CHANGES = 8, 6  # most named points and labelled arrows
_NARROW = 34  # most letters of a legend entry in two columns
_PT = 72.0
_UNITS = 11 / SMALL  # units of Room, whose text has 11 px, in a point


def paper(sheet: Sheet, kind: str) -> bytes:
    """Return the figure as bytes of this kind, `png`, `svg` or `pdf`. It has the roofline where a
    point has FLOPs, and the strip of those without. The same sheet gives the same bytes."""
    import matplotlib
    from matplotlib.figure import Figure

    scene = scene_of(sheet)
    kernels = list(dict.fromkeys(sheet.points[n].record.case.kernel for n in scene.strip))
    above = bool(scene.placed) or not kernels
    heights = [2.55] * above + [0.42 + 0.17 * len(kernels)] * bool(kernels)
    rc = {
        "font.size": TEXT,
        "font.family": "sans-serif",
        "svg.fonttype": "path",
        "pdf.fonttype": 42,
        "svg.hashsalt": "roofline",
        "axes.linewidth": 0.5,
        "text.parse_math": False,
    }
    size = WIDTH_IN, sum(heights)
    with matplotlib.rc_context(rc):
        fig = Figure(figsize=size, facecolor=INK["ground"], layout="constrained")
        axes = fig.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
        if above:
            _roofline(axes[0], scene)
        if kernels:
            _strip(axes[-1], scene, kernels)
        _words(fig, scene)
        fig.draw_without_rendering()  # computes the layout
        if above:
            _annotate(axes[0], scene)
        out = io.BytesIO()
        created: Mapping[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
        fig.savefig(out, format=kind, dpi=600, metadata=created.get(kind))
    return out.getvalue()


def _axes(ax: Any) -> None:
    for operand, spine in ax.spines.items():
        spine.set(visible=operand in ("left", "bottom"), color=INK["muted"])
    ax.tick_params(which="both", color=INK["muted"], labelcolor=INK["ink"], width=0.5, length=2.5)
    ax.tick_params(which="minor", length=1.2)


def _roofline(ax: Any, scene: Scene) -> None:
    ax.set(xscale="log", yscale="log", xlim=scene.x, ylim=scene.y)
    ax.set(xlabel="arithmetic intensity (FLOP/B)", ylabel="rate (FLOP/s)")
    decades(ax)
    ax.grid(which="major", color=INK["rule"], linewidth=0.4)
    ax.set_axisbelow(True)
    _axes(ax)
    for line in _shown_ceilings(scene):
        _line(ax, scene, line)
    for n in _large_first(scene, scene.placed):
        point = scene.sheet.points[n]
        x, y = point.load.intensity or 1.0, point.flops_rate
        if point.bar_s:
            ends = [point.load.flops / s for s in point.bar_s]
            ax.plot([x, x], ends, color=_ink(scene, point), linewidth=0.5, zorder=3)
        _mark(ax, scene, n, x, y)
        _draw_traffic(ax, point, (x, y))


def _draw_traffic(ax: Any, point: Point, declared: tuple[float, float]) -> None:
    """Draw a ring at the intensity by DRAM's counted bytes, and the arrow to it from the point."""
    for each in point.traffic:
        if each.level == "dram":
            at = each.flops / each.bytes, each.flops / point.load.time_s
            ax.plot(*[[v] for v in at], linestyle="", zorder=3, **RING)
            look = {"linewidth": 0.5, "color": INK["muted"], "linestyle": (0, (2, 1.5))}
            look |= {"arrowstyle": "-|>,head_width=0.1,head_length=0.25", "shrinkA": 0}
            ax.annotate("", at, declared, zorder=3, arrowprops={**look, "shrinkB": 2})


def _shown_ceilings(scene: Scene) -> list[Line]:
    """Return the ceilings of the points' dtypes; for space the best ones of several devices."""
    results = []
    for line in scene.lines:
        c = line.ceiling
        best = scene.sheet.ceilings[c.device].select(c.state or "sustained").best(c.level, c.dtype)
        few = len(scene.sheet.devices) > 1 or c.level in ("cache", "shared")
        if not scene.off(line) and (c is best or not few):
            results.append(line)
    return results


def _line(ax: Any, scene: Scene, line: Line) -> None:
    c = line.ceiling
    style = _stroke(scene, line)
    xs, ys = zip(line.start, line.end, strict=True)
    ax.plot(xs, ys, zorder=2, **style)
    if c.is_measured and c.low and c.high:
        bounds = [[bound if line.dtypes else x * bound for x in xs] for bound in (c.low, c.high)]
        ax.fill_between(xs, *bounds, color=style["color"], alpha=0.25, linewidth=0, zorder=1)
    if line.ridge and scene.x[0] < line.ridge < scene.x[1]:
        look = {"marker": "o", "markersize": 2.6, "markeredgewidth": 0.7, "zorder": 3}
        look |= {"markerfacecolor": INK["ground"], "color": style["color"]}
        ax.plot([line.ridge], [c.value], **look)


def _stroke(scene: Scene, line: Line) -> dict[str, Any]:
    """Return colour, width and dash of a ceiling's line."""
    devices, c = scene.sheet.devices, line.ceiling
    number = f"impl-{devices.index(c.device) % 4}" if len(devices) > 1 else _CEILING[c.level]
    dash: Any = "-" if c.is_measured else (0, (4, 2))
    if c.is_measured and c.state == "boost":
        dash = (0, (8, 2, 1.5, 2))
    return {"color": INK[number], "linewidth": 0.9, "linestyle": dash}


def _words(fig: Any, scene: Scene) -> None:
    """Draw the legend below the axes: at this width there is no space inside."""
    from matplotlib.lines import Line2D

    several = len(scene.sheet.devices) > 1
    handles, words = [], []
    for line in _shown_ceilings(scene) if scene.placed else []:
        c = line.ceiling
        handles.append(Line2D([], [], **_stroke(scene, line)))
        what = ", ".join(line.dtypes) or _SHORT.get(c.level, LEVELS[c.level])
        ridge = f", ridge {line.ridge:.3g}" if line.ridge else ""
        start = f"{c.device} " if several else ""
        clock = "both clocks" if line.alike else c.state
        state = f", {clock}" if clock else ""
        words.append(f"{start}{what} {quantity(c.value, c.unit)}{state}{ridge}")
    points = scene.sheet.points
    numbers = {p.device if several else p.record.case.dtype: scene.number(p) for p in points}
    marks = [(k, marker_of(mark_of(n)), INK[f"impl-{n % 4}"], True) for k, n in numbers.items()]
    if any(p.record.case.is_baseline for p in points):
        marks.append(("library", "X", INK["muted"], True))
    if any(p.regime == "predicted" for p in points):
        marks.append(("predicted", "o", INK["muted"], False))
    if any(t.level == "dram" for n in scene.placed for t in points[n].traffic):
        handles.append(Line2D([], [], linestyle="", **RING))
        words.append("profiled DRAM traffic")
    for name, marker, ink, full in marks:
        mark = Line2D([], [], linestyle="", marker=marker, markersize=3.4, color=ink)
        mark.set_markerfacecolor(ink if full else "none")
        handles.append(mark)
        words.append(name)
    columns = 2 if max(map(len, words), default=0) <= _NARROW else 1
    room = {"handlelength": 1.8, "handletextpad": 0.5, "columnspacing": 0.8, "borderpad": 0.2}
    boost = any(
        n.ceiling.is_measured and n.ceiling.state == "boost" for n in _shown_ceilings(scene)
    )
    title = "solid: measured; dashed: stated" + ("; dash-dotted: at boost" if boost else "")
    head = {"title": title, "title_fontsize": SMALL}
    look = {"fontsize": SMALL, "frameon": False, "labelspacing": 0.25, "alignment": "left"}
    fig.legend(handles, words, loc="outside lower left", ncols=columns, **room, **head, **look)
    rows = 1 + math.ceil(len(words) / columns)
    fig.set_figheight(fig.get_figheight() + 0.125 * rows)


def _ink(scene: Scene, point: Point) -> str:
    return INK[f"impl-{scene.number(point) % 4}"]


def _large_first(scene: Scene, numbers: Sequence[int]) -> list[int]:
    return sorted(numbers, key=lambda n: -scene.sheet.points[n].share_of_time)


def _mark(ax: Any, scene: Scene, n: int, x: float, y: float) -> None:
    point = scene.sheet.points[n]
    largest = max(p.share_of_time for p in scene.sheet.points)
    size = max(2.2, 6.5 * math.sqrt(point.share_of_time / largest))  # diameter, pt
    ink = _ink(scene, point)
    look = {
        "color": ink,
        "markerfacecolor": "none" if point.regime == "predicted" else ink,
        "alpha": 0.5 if point.regime == "hot" else 0.9,
        "markeredgewidth": 0.6 if point.regime == "predicted" else 0.3,
        "markeredgecolor": ink if point.regime != "cold" else INK["ground"],
    }
    marker = marker_of(scene.mark(point))
    ax.plot([x], [y], linestyle="", marker=marker, markersize=size, zorder=4, **look)
    if point.held.above:
        warned = {"size": TEXT, "weight": "bold", "color": INK["warn"], "ha": "center"}
        ax.annotate("!", (x, y), (0, 4), textcoords="offset points", **warned)


def _annotate(ax: Any, scene: Scene) -> None:
    """Draw names of the main points, and arrows with their changes, without overlapping text."""
    high = ax.figure.get_figheight() * _PT
    scale = _PT / ax.figure.dpi * _UNITS

    def spot(x: float, y: float) -> tuple[float, float]:
        right, up = ax.transData.transform((x, y))
        return right * scale, high * _UNITS - up * scale

    (x0, y0), (x1, y1) = spot(scene.x[0], scene.y[1]), spot(scene.x[1], scene.y[0])
    room = Room(x1 - x0, y1 - y0, x0, y0)
    points = scene.sheet.points
    at = {n: spot(points[n].load.intensity or 1.0, points[n].flops_rate) for n in scene.placed}
    room.dots = list(at.values())
    for n in scene.placed:
        for each in (t for t in points[n].traffic if t.level == "dram"):
            ring = spot(each.flops / each.bytes, each.flops / points[n].load.time_s)
            room.ring(at[n], ring)
    for line in _shown_ceilings(scene):
        room.cross(*spot(*line.start), *spot(*line.end))

    def write(text: str, place: tuple[float, float], ink: str) -> None:
        where = place[0] / _UNITS, high - place[1] / _UNITS
        ax.annotate(text, where, xycoords="figure points", size=SMALL, color=INK[ink], zorder=6)

    for n, name in points_to_label(scene, scene.placed, _NAMES):
        if place := room.find(*at[n], name, 8):
            write(name, place, "ink")
    drawn = [a for a in scene.sheet.arrows if a.start in at and a.end in at]
    drawn.sort(key=lambda a: -abs(a.change) * points[a.start].share_of_time)
    long = [a for a in drawn if math.dist(at[a.start], at[a.end]) >= 6 * _UNITS]
    for number, arrow in enumerate(long):
        ink = "warn" if arrow.change > 0 else "ink"
        ends = [(points[n].load.intensity, points[n].flops_rate) for n in (arrow.end, arrow.start)]
        look = {"linewidth": 0.6, "color": INK[ink], "shrinkA": 0, "shrinkB": 2}
        look |= {"arrowstyle": "-|>,head_width=0.12,head_length=0.3"}
        ax.annotate("", *ends, zorder=5, arrowprops=look)
        words = f"{100 * arrow.change:+.0f} %".replace("-", "−")
        middle = (at[arrow.start][1] + at[arrow.end][1]) / 2
        if number < _CHANGES and (place := room.find(at[arrow.end][0], middle, words, 6)):
            write(words, place, ink)


def _strip(ax: Any, scene: Scene, kernels: Sequence[str]) -> None:
    points = scene.sheet.points
    bands = [n for n in scene.lines if n.ceiling.level == "dram" and not scene.off(n)]
    rates = [points[n].bytes_rate for n in scene.strip]
    values = [*rates, *(n.ceiling.value for n in bands)]
    low, high = min(values), max(values)
    if high > 10 * low:
        ax.set_xscale("log")
        ax.set_xlim(low / 1.6e9, high * 1.6 / 1e9)
    else:
        room = 0.08 * (high - low) or 0.1 * high
        ax.set_xlim((low - room) / 1e9, (high + room) / 1e9)
    ax.set(ylim=(len(kernels) - 0.5, -0.5), xlabel="least bytes over time (GB/s)")
    ax.set_yticks(range(len(kernels)), kernels)
    plain_ticks(ax.xaxis)
    ax.tick_params(axis="x", labelsize=SMALL)
    _axes(ax)
    for line in bands:
        ax.axvline(line.ceiling.value / 1e9, **_stroke(scene, line))
    for n in _large_first(scene, scene.strip):
        point = points[n]
        row = kernels.index(point.record.case.kernel)
        if point.bar_s:
            ends = [point.load.bytes / s / 1e9 for s in point.bar_s]
            ax.plot(ends, [row, row], color=_ink(scene, point), linewidth=0.6)
        _mark(ax, scene, n, point.bytes_rate / 1e9, row)
