"""Roofline as a figure for papers: a column of 85 mm, light, legible in print.

PNG at 600 dots an inch, SVG with text as outlines, PDF with fonts that stay text.
"""

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from workbench.reports import figure, use_inks
from workbench.reports.figures.roofline import (
    LINE,
    ROW,
    Form,
    chart_shapes,
    key_shapes,
    strip_shapes,
)
from workbench.reports.figures.roofline_points import Sheet
from workbench.reports.figures.scene import Line, Scene, scene_of
from workbench.reports.figures.shapes import Label, PointMark, Ring, ShapeGroup, inks, paint

KINDS = ("png", "svg", "pdf")
SCALE = 6 / 11  # points of a px: journals accept no text smaller than 6 pt, and texts have 11 px
WIDTH = 85 / 25.4 * 72 / SCALE  # px
_NARROW = 26  # most letters of an entry of a key in two columns
_TICKS = {"major.size": 3.5, "minor.size": 2.0, "major.pad": 3.5, "minor.pad": 3.4}  # px
_SETTINGS: dict[str, Any] = {
    "font.family": "sans-serif",
    "svg.fonttype": "path",
    "pdf.fonttype": 42,
    "svg.hashsalt": "roofline",
    "text.parse_math": False,
    **{f"{a}tick.{key}": size * SCALE for a in "xy" for key, size in _TICKS.items()},
}


def paper(sheet: Sheet, kind: str) -> bytes:
    """Return the figure as bytes of this kind, `png`, `svg` or `pdf`. It has the roofline where a
    point has FLOPs, and the strip of those without. The same sheet gives the same bytes."""
    import matplotlib

    scene = scene_of(sheet)
    scene = replace(scene, lines=_shown_ceilings(scene))
    kernels = scene.strip_kernels
    aside = 24 + 7 * max(map(len, kernels), default=0)
    form = Form(WIDTH, 70, 8, WIDTH - 80, 290, aside, 8, 6, 1.5, SCALE, has_key=True)
    chart = 344 if scene.placed_points or not kernels else 0  # px
    whole = chart + (ROW * len(kernels) + 56 if kernels else 0)
    key, rows = _key(scene, whole + 12)
    with matplotlib.rc_context(_SETTINGS), use_inks(inks()):
        fig = figure(WIDTH * SCALE, (whole + LINE * (rows + 1)) * SCALE)
        fig.set_facecolor(inks()["ground"])
        shapes = chart_shapes(fig, scene, form) if chart else []
        shapes += strip_shapes(fig, scene, form, chart + 8) if kernels else []
        paint(fig, [*shapes, *key], SCALE)
        out = io.BytesIO()
        created: Mapping[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
        fig.savefig(out, format=kind, dpi=600, metadata=created.get(kind))
    return out.getvalue()


def _shown_ceilings(scene: Scene) -> tuple[Line, ...]:
    """Return the ceilings of the points' dtypes; for space the best ones of several devices."""
    results = []
    for line in scene.lines:
        c = line.ceiling
        best = scene.sheet.ceilings[c.device].select(c.state or "sustained").best(c.level, c.dtype)
        few = scene.several or c.level in ("cache", "shared")
        if not scene.is_off(line) and (c is best or not few):
            results.append(line)
    return tuple(results)


Entry = tuple[str, str, Callable[[float, float], Sequence[Any]]]  # words, CSS classes, shapes


def _entries(scene: Scene) -> Iterator[Entry]:
    """Yield what the key names: lines, marks, and the rings of profiles."""
    for line in scene.lines if scene.placed_points else ():
        draw = partial(key_shapes, scene, line, brief=True)
        yield scene.label(line, brief=True), scene.line_colour(line), draw
    points = scene.sheet.points
    looks = [(name, f"i{n} m", mark) for name, n, mark in scene.looks()]
    if any(point.regime == "predicted" for point in points):
        looks.append(("predicted: hollow", "i0 p", "circle"))
    for name, look, mark in looks:
        yield name, look, partial(_mark_entry, PointMark((0, 0), mark, 0.9), name)
    if any(t.level == "dram" for n in scene.placed_points for t in points[n].traffic):
        name = "profiled DRAM traffic"
        yield name, "traffic", partial(_mark_entry, Ring((0, 0), 4.5, ""), name)


def _mark_entry(mark: PointMark | Ring, name: str, x: float, y: float) -> list[Any]:
    return [mark._replace(place=(x + 13, y - 4)), Label((x + 48, y), name, "name")]


def _key(scene: Scene, top: float) -> tuple[list[Any], int]:
    """Return the key below the axes, where this width has space, and its number of rows."""
    entries = list(_entries(scene))
    columns = 2 if max((len(name) for name, *_ in entries), default=0) <= _NARROW else 1
    rows = -(-len(entries) // columns)
    boost = any("boost" in line.look for line in scene.lines)
    title = "solid: measured; dashed: stated" + ("; dash-dotted: at boost" if boost else "")
    key: list[Any] = [Label((8, top), title)]
    for number, (_, look, draw) in enumerate(entries):
        place = 8 + WIDTH / 2 * (number // rows), top + LINE * (1 + number % rows)
        key.append(ShapeGroup("K", draw(*place), look))
    return key, rows
