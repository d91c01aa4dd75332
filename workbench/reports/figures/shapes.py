"""Shapes of a picture that is laid out, in px from the upper left.

They become SVG over the axes of a page, or artists of matplotlib for a paper. Both take colours by
the same classes, those of `sweep.css` and `roofline.css`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from markupsafe import escape

from workbench.reports import TEMPLATES, light_inks
from workbench.reports.figures.drawing import marker_of
from workbench.reports.figures.room import Place


class Path(NamedTuple):
    """Lines through places; `closed` ones are filled."""

    lines: Sequence[Sequence[Place]]
    look: str = ""
    is_closed: bool = False


class Label(NamedTuple):
    """Words from their left baseline on, or with the anchor of their class."""

    place: Place
    words: str
    look: str = ""


class Ring(NamedTuple):
    """A circle, with what it shows under the pointer."""

    place: Place
    radius: float
    title: str
    look: str = ""


class PointMark(NamedTuple):
    """The mark of a device or dtype: a point with its row in the table, or one of a legend."""

    place: Place
    name: str
    size: float = 0.7  # of its size in `_marks.html.j2`, in which a circle has 8.4 px
    row: int | None = None


class ShapeGroup(NamedTuple):
    """Shapes that the same switches show, see `roofline`; without any, points that the keyboard
    reaches."""

    switches: str
    shapes: Sequence[Any]
    look: str = ""
    is_off: bool = False  # hidden at first


def segment(*places: Place, look: str = "") -> Path:
    """Return one line through places."""
    return Path((places,), look)


# As SVG.

_KEYS = (
    'tabindex="0" role="group" '
    'aria-label="points: arrow keys go from one to the next, Enter to its row"'
)


def svg(shapes: Iterable[Any]) -> str:
    """Return shapes as SVG."""
    return "".join(map(_element, shapes))


def _pair(at: Place) -> str:
    return f"{round(at[0], 1):g} {round(at[1], 1):g}"


def _element(shape: Any) -> str:
    look = f' class="{shape.look}"' if getattr(shape, "look", "") else ""
    if isinstance(shape, ShapeGroup) and not shape.switches:
        return f"<g{look} {_KEYS}>{svg(shape.shapes)}</g>"
    if isinstance(shape, ShapeGroup):
        hidden = ' style="display:none"' if shape.is_off else ""
        return f'<g data-t="{shape.switches}"{look}{hidden}>{svg(shape.shapes)}</g>'
    if isinstance(shape, Path):
        lines = ("M" + "L".join(map(_pair, line)) for line in shape.lines)
        return f'<path{look} d="{"".join(lines)}{"z" * shape.is_closed}"/>'
    x, y = (round(each, 1) for each in shape.place)
    if isinstance(shape, Label):
        return f'<text{look} x="{x:g}" y="{y:g}">{escape(shape.words)}</text>'
    if isinstance(shape, Ring):
        title = f"<title>{escape(shape.title)}</title>"
        return f'<circle{look} cx="{x:g}" cy="{y:g}" r="{shape.radius:g}">{title}</circle>'
    if shape.row is None:
        return f'<use class="dev" href="#s-{shape.name}" x="{x:g}" y="{y:g}"/>'
    use = f'<use href="#k-{shape.name}" x="{x:g}" y="{y:g}"'
    return f'{use} style="--s:{shape.size:.2f};--o:{x:g}px {y:g}px" data-r="{shape.row}"/>'


# For papers.

_SHEETS = "sweep", "roofline"  # style sheets of a roofline's page

# What a class adds to the shapes that have it, or whose group has it; widths are in px.
_LOOKS: Mapping[str, Mapping[str, Any]] = {
    "roof": {"linewidth": 1.6},
    "stated": {"dashes": (5, 3)},
    "boost": {"dashes": (12, 3, 2, 3)},
    "ridge": {"markerfacecolor": "ground", "linewidth": 1.6},
    "lead": {"linewidth": 0.7, "alpha": 0.6},
    "band": {"linewidth": 0, "alpha": 0.2},
    "arrow": {"linewidth": 1.2},
    "slower": {"color": "warn"},
    "name": {"color": "ink"},
    "traffic": {"color": "muted", "dashes": (3, 2), "markerfacecolor": "none"},
    "warn": {"color": "warn"},
    "m": {"markeredgecolor": "ground"},
    "p": {"markerfacecolor": "none"},
    "hot": {"alpha": 0.5},
}


@cache
def inks() -> dict[str, str]:
    """Return the light colours of the pages, by their names and by the classes that have them."""
    first, second = ((TEMPLATES / f"{n}.css").read_text(encoding="utf-8") for n in _SHEETS)
    known = light_inks() | dict(re.findall(r"--([\w-]+): (#\w+);", second.split("@media")[0]))
    pairs = re.findall(r"\.([\w-]+) \{ --c: var\(--([\w-]+)\)", first + second)
    return known | {name: known[ink] for name, ink in pairs}


def paint(fig: Any, shapes: Iterable[Any], scale: float) -> None:
    """Add shapes to a figure whose px are `scale` points; those that are hidden at first are left
    out."""
    from matplotlib.transforms import Affine2D

    high = fig.get_figheight()
    px = Affine2D().scale(scale / 72, -scale / 72).translate(0, high) + fig.dpi_scale_trans
    for order, (shape, classes) in enumerate(_single_shapes(shapes, ())):
        fig.add_artist(_artist(shape, _style(classes, scale), scale, px)).set_zorder(10 + order)


def _single_shapes(
    shapes: Iterable[Any], classes: Sequence[str]
) -> Iterator[tuple[Any, Sequence[str]]]:
    """Yield each shape that is shown at first, with its classes and those of its groups."""
    for shape in shapes:
        own = (*classes, *getattr(shape, "look", "").split())
        if not isinstance(shape, ShapeGroup):
            yield shape, own
        elif not shape.is_off:
            yield from _single_shapes(shape.shapes, own)


def _style(classes: Sequence[str], scale: float) -> dict[str, Any]:
    known = inks()
    style: dict[str, Any] = {"color": "ink", "linewidth": 1.0, "markerfacecolor": "color"}
    for name in classes:
        style |= dict(_LOOKS.get(name, {})) | ({"color": name} if name in known else {})
    style["linewidth"] *= scale
    faces = {k: style["color"] if v == "color" else v for k, v in style.items() if "color" in k}
    return style | {k: known.get(v, v) for k, v in faces.items()}


def _artist(shape: Any, style: dict[str, Any], scale: float, px: Any) -> Any:
    from matplotlib.lines import Line2D
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Outline
    from matplotlib.text import Text

    if isinstance(shape, Label):
        size, anchor = (8.0, "center") if shape.look == "warn" else (11.0, "left")
        look = {"color": style["color"], "fontsize": size * scale, "parse_math": False}
        return Text(*shape.place, shape.words, ha=anchor, transform=px, **look)
    if isinstance(shape, Path):
        look = {name: style[name] for name in ("color", "linewidth", "alpha") if name in style}
        dash = (0, [scale * each for each in style["dashes"]]) if "dashes" in style else "-"
        lines = ([*line, line[0]] if shape.is_closed else line for line in shape.lines)
        outline = Outline.make_compound_path(*map(Outline, lines))
        filled = shape.is_closed and shape.look != "warn"
        return PathPatch(outline, fill=filled, linestyle=dash, transform=px, **look)
    style.pop("dashes", None)
    size = 2 * shape.radius if isinstance(shape, Ring) else 8.4 * shape.size
    marker = "o" if isinstance(shape, Ring) else marker_of(shape.name)
    style["markeredgewidth"] = style.pop("linewidth")
    look = {"linestyle": "", "marker": marker, "markersize": size * scale, "transform": px}
    return Line2D([shape.place[0]], [shape.place[1]], **style, **look)
