"""Axes, rows, notes and marks, as all figures of the pages draw them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from workbench.data.units import quantity
from workbench.reports import colour

SMALL, SMALLER = 12, 11  # px, of text in figures
_HOURGLASS = ((-1, 1), (1, 1), (-1, -1), (1, -1), (-1, 1))
_BAR = ((-0.4, -1), (0.4, -1), (0.4, 1), (-0.4, 1), (-0.4, -1))
_DASH = tuple((y, x) for x, y in _BAR)
_HALF = ((-1, -0.5), (1, -0.5), (0.87, 0.1), (0.5, 0.5), (0, 0.6), (-0.5, 0.5), (-0.87, 0.1),
         (-1, -0.5))  # fmt: skip
# Marks by their names in `_marks.html.j2`, as matplotlib draws them: of Impls, in this order, and
# of library baselines; each repeats after its last.
MARKERS: Mapping[str, Any] = {
    "circle": "o",
    "square": "s",
    "triangle": "^",
    "diamond": "D",
    "down": "v",
    "star": "*",
    "hourglass": _HOURGLASS,
    "bar": _BAR,
    "left": "<",
    "right": ">",
    "dash": _DASH,
    "half": _HALF,
}
LIBRARY_MARKERS = {"cross": "X", "plus": "P", "wye": "1", "fork": "2"}
MARKS, LIBRARY_MARKS = tuple(MARKERS), tuple(LIBRARY_MARKERS)
# Bar between the ends of an error band: where a measured number is expected
EXPECTED_BAR: Mapping[str, Any] = {
    "color": colour("accent"), "linewidth": 3, "alpha": 0.5, "zorder": 1,
}  # fmt: skip
ROW = ("axes fraction", "data")  # coordinates of a note beside a row


def marker_of(mark: str) -> Any:
    """Return matplotlib's marker of one of these names."""
    return LIBRARY_MARKERS.get(mark) or MARKERS[mark]


def axes(
    fig: Any,
    left: float,
    top: float,
    width: float,
    height: float,
    grid: Literal["", "x", "y", "both"] = "",
    scale: float = 1.0,
) -> Any:
    """Return axes at a place in CSS pixels from the upper left, in the page's colours; `scale` are
    the points of a pixel."""
    across, down = (inches * 72 / scale for inches in fig.get_size_inches())
    ax = fig.add_axes((left / across, 1 - (top + height) / down, width / across, height / down))
    ax.set_facecolor("none")
    muted = colour("muted")
    size, width = SMALL * scale, 0.8 * scale
    ax.tick_params(which="both", color=muted, labelcolor=muted, labelsize=size, width=width)
    for axis in (ax.xaxis, ax.yaxis):
        axis.label.set(color=muted, size=size)
    frame(ax, ("left", "bottom"), scale)
    if grid:
        ax.grid(axis=grid, color=colour("rule"), linewidth=0.8)
        ax.set_axisbelow(True)
    return ax


def frame(ax: Any, spines: Iterable[str], scale: float = 1.0) -> None:
    """Show only these spines: `left`, `bottom`."""
    for name, spine in ax.spines.items():
        spine.set(visible=name in set(spines), color=colour("muted"), linewidth=0.8 * scale)


def name_rows(ax: Any, at: Sequence[float], names: Sequence[str]) -> None:
    """Write names at the left of rows, in place of a y axis."""
    ax.set_yticks(at, names)
    ax.tick_params(axis="y", length=0, labelsize=SMALL, labelcolor=colour("ink"))
    frame(ax, ("bottom",))


def plain_ticks(*axes: Any) -> None:
    """Write the ticks of an x or y axis as plain numbers."""
    for axis in axes:
        axis.set_major_formatter(lambda v, _: f"{v:g}")


def log_ticks(axis: Any, low: float, high: float) -> None:
    """Set the ticks of a logarithmic axis to powers of ten, and 2 and 5 times them on a short
    one."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if high < 1000 * low else (1,)
    axis.set_ticks([t for e in powers for s in steps if low <= (t := s * 10.0**e) <= high])
    axis.set_ticks([], minor=True)
    axis.set_major_formatter(lambda value, _: plain(value))


def plain(value: float) -> str:
    """Return a tick's text: 0.5, 200, 20 G."""
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if prefix == 'k' else size):g} {prefix}"
    return f"{value:g}"


def one_two_five(low: float, high: float) -> list[float]:
    """Return round numbers from `low` to `high` as ticks of a logarithmic axis."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 1.5, 2, 3, 4, 5, 7) if high / low < 20 else (1, 2, 5) if high / low < 200 else (1,)
    return [s * 10.0**d for d in decades for s in steps if low <= s * 10.0**d <= high]


def decades(ax: Any, scale: float = 1.0) -> None:
    """Set ticks at powers of ten, with metric prefixes for rates."""
    for axis, limits, write in (
        (ax.xaxis, ax.get_xlim(), lambda v, _: f"{v:g}"),
        (ax.yaxis, ax.get_ylim(), lambda v, _: quantity(v, "").rstrip()),
    ):
        first, last = (math.log10(v) for v in limits)
        powers = [10.0**e for e in range(math.ceil(first), math.floor(last) + 1)]
        axis.set_ticks(powers if len(powers) > 2 else one_two_five(*limits))
        axis.set_major_formatter(write)
        axis.set_minor_formatter(lambda v, _: "")
    ax.grid(which="major", color=colour("rule"), linewidth=0.8 * scale)
    ax.tick_params(which="minor", length=2 * scale)


def legend_beside(ax: Any) -> None:
    """Write the legend at the right of the axes."""
    look = {"fontsize": SMALL, "frameon": False, "labelcolor": colour("ink")}
    ax.legend(loc="upper left", bbox_to_anchor=(1.01, 1.02), borderaxespad=0, **look)


def short_name(name: str, most: int) -> str:
    """Return a name, cut where it has more letters than these."""
    return name if len(name) <= most else f"{name[: most - 1]}…"


def note(
    ax: Any,
    text: str,
    at: tuple[float, float],
    offset: tuple[float, float],
    ink: str = "ink",
    size: float = SMALLER,
    **more: Any,
) -> None:
    """Write a text at an offset in px from a point, in a colour of the palette."""
    ax.annotate(text, at, offset, textcoords="offset points", size=size, color=colour(ink), **more)


def note_row(ax: Any, row: float, text: str, size: float = SMALL) -> None:
    """Write a text at the right of a row."""
    note(ax, text, (1, row), (8, 0), size=size, va="center", xycoords=ROW)


def bar(ax: Any, low: float, high: float, row: float, ink: str, width: float, **more: Any) -> None:
    """Draw an interval along a row, in a colour of the palette."""
    look = {"color": colour(ink), "linewidth": width, "solid_capstyle": "butt"}
    ax.plot([low, high], [row, row], **look, **more)
