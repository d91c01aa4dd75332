"""Strip of the roofline report: kernels that declare no FLOPs, under the bandwidths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup, escape

from workbench.reports import figure, figure_svg, place
from workbench.reports.figures.drawing import axes, frame, plain_ticks
from workbench.reports.figures.roofline import (
    CHAR,
    LINE,
    WIDTH,
    Line,
    Places,
    Room,
    Scene,
    arrow_to,
    dash,
    group,
    ink_of,
    line_tokens,
    line_words,
    point_marks,
    tokens,
    warning_marks,
)

_ROW = 30  # px


def strip(scene: Scene, prefix: str) -> Markup:
    """Return the rate of least bytes of kernels without arithmetic, a row for each."""
    points = scene.sheet.points
    kernels = list(dict.fromkeys(points[n].record.case.kernel for n in scene.strip))
    rates = [points[n].bytes_rate / 1e9 for n in scene.strip]
    ceilings = _bandwidths(scene, max(rates))
    values = [line.ceiling.value / 1e9 for line in ceilings]
    low, high = min([*rates, *values]), max([*rates, *values])
    top = 18 + LINE * min(4, len(ceilings))
    fig = figure(WIDTH, top + _ROW * len(kernels) + 52)
    ax = axes(fig, 190, top, WIDTH - 190 - 24, _ROW * len(kernels))
    if high > 10 * low:
        ax.set(xscale="log")
        low, high = low / 1.5, high * 1.5
    else:
        low, high = max(0.0, low - 0.1 * (high - low)), high + 0.06 * (high - low)
    if low == high:
        low, high = 0.9 * low, 1.1 * high
    ax.set(xlim=(low, high), ylim=(len(kernels) - 0.5, -0.5))
    ax.set(xlabel="least bytes over time, GB/s")
    ax.set_yticks(range(len(kernels)), kernels)
    ax.tick_params(axis="y", length=0)
    plain_ticks(ax.xaxis)
    frame(ax, ("bottom",))
    row = {n: kernels.index(points[n].record.case.kernel) for n in scene.strip}
    at = {n: place(ax, points[n].bytes_rate / 1e9, y) for n, y in row.items()}
    parts = [*_uprights(ax, scene, ceilings, top), *_strip_whiskers(ax, scene, at)]
    parts += [*_strip_arrows(scene, at), point_marks(scene, scene.strip, at)]
    room = Room(WIDTH, top + _ROW * len(kernels), 0, 0)
    return figure_svg(fig, prefix, "Bandwidth", "".join([*parts, *warning_marks(scene, at, room)]))


def _bandwidths(scene: Scene, reach: float) -> list[Line]:
    """Return DRAM's lines, and the cache's where a point is near: it would compress the range."""
    memory = [line for line in scene.lines if not line.dtypes]
    return [n for n in memory if n.ceiling.level == "dram" or n.ceiling.value / 1e9 <= reach * 1.3]


def _uprights(ax: Any, scene: Scene, lines: Sequence[Line], top: float) -> list[str]:
    parts, ends = [], [1e9] * 4
    bottom = ax.get_ylim()[0]
    for line in sorted(lines, key=lambda n: -n.ceiling.value):
        x, low = place(ax, line.ceiling.value / 1e9, bottom)
        words = line_words(scene, line)
        row = next((n for n, end in enumerate(ends) if x <= end), 3)
        ends[row] = x - CHAR * len(words) - 26
        y = top - 6 - LINE * row
        body = f'<path class="roof{dash(line)}" d="M{x:g} {y + 3:g}V{low:g}"/>'
        body += f'<text class="end" x="{x:g}" y="{y:g}">{escape(words)}</text>'
        if line.ceiling.is_measured and line.ceiling.low and line.ceiling.high:
            a = place(ax, line.ceiling.low / 1e9, bottom)[0]
            b = place(ax, line.ceiling.high / 1e9, bottom)[0]
            body += f'<path class="band" d="M{a:g} {top:g}H{b:g}V{low:g}H{a:g}z"/>'
        parts.append(group(line_tokens(scene, line), body, scene.off(line), ink_of(scene, line)))
    return parts


def _strip_whiskers(ax: Any, scene: Scene, at: Places) -> list[str]:
    parts = []
    for n, (_, y) in at.items():
        point = scene.sheet.points[n]
        if point.bar_s is None:
            continue
        ends = [place(ax, point.load.bytes / s / 1e9, 0)[0] for s in point.bar_s]
        drawn = f'<path class="whisk" d="M{ends[0]:g} {y:g}H{ends[1]:g}"/>'
        look_ = f"i{scene.number(point) % 4}"
        parts.append(group(f"{tokens(scene, point)} W", drawn, kind=look_))
    return parts


def _strip_arrows(scene: Scene, at: Places) -> list[str]:
    """Return arrows with labels beside them, as both points lie on one line."""
    parts = []
    for arrow in scene.sheet.arrows:
        if arrow.start not in at or arrow.end not in at:
            continue
        (x0, y), (x1, _) = at[arrow.start], at[arrow.end]
        words = f"{100 * arrow.change:+.1f} %".replace("-", "−")
        anchor = "start" if x1 >= x0 else "end"
        body = arrow_to(x0, y, x1, y) if abs(x1 - x0) >= 14 else ""
        gap = 14 if x1 >= x0 else -14
        body += f'<text class="change" text-anchor="{anchor}" x="{x1 + gap:g}" y="{y + 4:g}">'
        kind = "arrow slower" if arrow.change > 0 else "arrow"
        switches = f"{tokens(scene, scene.sheet.points[arrow.end])} A"
        parts.append(group(switches, f"{body}{words}</text>", kind=kind))
    return parts
