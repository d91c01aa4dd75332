"""Figure of ceilings: horizontal bars, level by level."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from workbench.reports import colour, figure, figure_svg
from workbench.reports.figures.drawing import SMALL, SMALLER, axes, bar, name_rows, note, note_row

COLOURS = {
    "dram": "roof-memory",
    "cache": "roof-cache",
    "shared": "roof-cache",
    "compute": "roof-compute",
}
_LINE = 26  # px between rows
_LEFT, _RIGHT, _WIDTH = 250, 160, 900
_GAP = 74  # px between two panels: an axis, its label and a title


@dataclass(frozen=True)
class Bar:
    """One ceiling, in the unit of its panel; unknown numbers are None."""

    title: str
    value: float | None  # measured
    low: float | None
    high: float | None
    stated_value: float | None
    library: float | None
    text: str
    word: str  # "sound", "unchecked", "failed", "missing"
    boost: bool = False  # at the boost clock; else sustained, or of no clock


@dataclass(frozen=True)
class Panel:
    """One level and its unit."""

    title: str
    unit: str
    bars: Sequence[Bar]
    level: str

    @property
    def reach(self) -> float:
        """Return the largest number drawn."""
        results = [v for b in self.bars for v in (b.value, b.high, b.stated_value, b.library) if v]
        return max(results, default=1.0)


def bars(panels: Sequence[Panel], prefix: str) -> Markup | None:
    """Return all levels below each other, each on an axis from zero; None where there are none."""
    if not panels:
        return None
    height = sum(_LINE * len(p.bars) + _GAP for p in panels)
    fig = figure(_WIDTH, height)
    top = 26.0
    for panel in panels:
        _panel(fig, panel, top)
        top += _LINE * len(panel.bars) + _GAP
    return figure_svg(fig, prefix, "Ceilings, level by level")


def _panel(fig: object, panel: Panel, top: float) -> None:
    ax = axes(fig, _LEFT, top, _WIDTH - _LEFT - _RIGHT, _LINE * len(panel.bars), "x")
    ax.set(xlim=(0, panel.reach * 1.04), ylim=(len(panel.bars) - 0.4, -0.6))
    ax.set_xlabel(panel.unit)
    name_rows(ax, range(len(panel.bars)), [b.title for b in panel.bars])
    ax.tick_params(axis="x", labelsize=SMALLER)
    aside = (-_LEFT + 8, 8)
    note(ax, panel.title, (0, 1), aside, size=SMALL, weight="bold", xycoords="axes fraction")
    for row, one in enumerate(panel.bars):
        _bar(ax, row, one, colour(COLOURS.get(panel.level, "muted")))


def _bar(ax: Any, row: int, one: Bar, ink: str) -> None:
    """Draw a bar. Filled: measured, thin: at the boost clock, hollow: failed its check, tick:
    stated, cross: library."""
    if one.value is not None:
        look: dict[str, Any] = {"color": "none", "linestyle": (0, (3, 2))}
        if one.word in ("sound", "unchecked"):
            look = {"color": ink, "alpha": 0.75}
        ax.barh(row, one.value, 0.2 if one.boost else 0.5, edgecolor=ink, linewidth=1.2, **look)
        if one.low is not None and one.high is not None:
            bar(ax, one.low, one.high, row, "ink", 1.6)
    if one.stated_value is not None:
        dash = {"linewidth": 2, "linestyle": (0, (2, 1.4))}
        ax.plot([one.stated_value] * 2, [row - 0.38, row + 0.38], color=colour("ink"), **dash)
    if one.library is not None:
        for width, size, name in ((5.0, 9, "ground"), (2.0, 7, "ink")):  # a halo
            look = {"markersize": size, "markeredgewidth": width, "color": colour(name)}
            ax.plot([one.library], [row], marker="x", **look)
    note_row(ax, row, one.text if one.word in ("sound", "missing") else f"{one.text}, {one.word}")
