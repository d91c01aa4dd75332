"""Axes, rows, notes and marks, as all figures of the pages draw them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from workbench.reports import colour

SMALL, SMALLER = 12, 11  # px, of text in figures
_HOURGLASS = ((-1, 1), (1, 1), (-1, -1), (1, -1), (-1, 1))
_BAR = ((-0.4, -1), (0.4, -1), (0.4, 1), (-0.4, 1), (-0.4, -1))
_DASH = tuple((y, x) for x, y in _BAR)
_HALF = ((-1, -0.5), (1, -0.5), (0.87, 0.1), (0.5, 0.5), (0, 0.6), (-0.5, 0.5), (-0.87, 0.1),
         (-1, -0.5))  # fmt: skip
# What matplotlib draws for `sweep.MARKS` and `sweep.LIBRARY_MARKS`, in the same order.
MARKERS: tuple[Any, ...] = ("o", "s", "^", "D", "v", "*", _HOURGLASS, _BAR, "<", ">", _DASH, _HALF)
LIBRARY_MARKERS = ("X", "P", "1", "2")
# Bar between the ends of an error band: where a measured number is expected
EXPECTED_BAR: Mapping[str, Any] = {
    "color": colour("accent"), "linewidth": 3, "alpha": 0.5, "zorder": 1,
}  # fmt: skip
ROW = ("axes fraction", "data")  # coordinates of a note beside a row


def axes(
    fig: Any,
    left: float,
    top: float,
    width: float,
    height: float,
    grid: Literal["", "x", "y", "both"] = "",
) -> Any:
    """Return axes at a place in CSS pixels from the upper left, in the page's colours."""
    across, down = (inches * 72 for inches in fig.get_size_inches())
    ax = fig.add_axes((left / across, 1 - (top + height) / down, width / across, height / down))
    ax.set_facecolor("none")
    muted = colour("muted")
    ax.tick_params(which="both", color=muted, labelcolor=muted, labelsize=SMALL, width=0.8)
    for axis in (ax.xaxis, ax.yaxis):
        axis.label.set(color=muted, size=SMALL)
    frame(ax, ("left", "bottom"))
    if grid:
        ax.grid(axis=grid, color=colour("rule"), linewidth=0.8)
        ax.set_axisbelow(True)
    return ax


def frame(ax: Any, spines: Iterable[str]) -> None:
    """Show only these spines: `left`, `bottom`."""
    for name, spine in ax.spines.items():
        spine.set(visible=name in set(spines), color=colour("muted"), linewidth=0.8)


def name_rows(ax: Any, at: Sequence[float], names: Sequence[str]) -> None:
    """Write names at the left of rows, in place of a y axis."""
    ax.set_yticks(at, names)
    ax.tick_params(axis="y", length=0, labelsize=SMALL, labelcolor=colour("ink"))
    frame(ax, ("bottom",))


def plain_ticks(*axes: Any) -> None:
    """Write the ticks of an x or y axis as plain numbers."""
    for axis in axes:
        axis.set_major_formatter(lambda v, _: f"{v:g}")


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
