"""Figure of ceilings: horizontal bars, level by level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from workbench.reports import colour, figure, figure_svg
from workbench.reports.figures.sweep import SMALL, SMALLER
from workbench.reports.figures.sweep import _axes as axes
from workbench.reports.figures.sweep import _frame as frame

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
    stated: float | None
    library: float | None
    text: str
    word: str  # "sound", "unchecked", "failed", "missing"


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
        results = [v for b in self.bars for v in (b.value, b.high, b.stated, b.library) if v]
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
    ax = axes(fig, _LEFT, top, _WIDTH - _LEFT - _RIGHT, _LINE * len(panel.bars))
    ax.set(xlim=(0, panel.reach * 1.04), ylim=(len(panel.bars) - 0.4, -0.6))
    ax.set_xlabel(panel.unit, size=SMALL, color=colour("muted"))
    ax.set_yticks(range(len(panel.bars)), [b.title for b in panel.bars])
    ax.tick_params(axis="y", length=0, labelsize=SMALL, labelcolor=colour("ink"))
    ax.tick_params(axis="x", labelsize=SMALLER, labelcolor=colour("muted"))
    ax.grid(axis="x", color=colour("rule"), linewidth=0.8)
    ax.set_axisbelow(True)
    frame(ax, ("bottom",))
    ax.annotate(
        panel.title,
        (0, 1),
        (-_LEFT + 8, 8),
        xycoords="axes fraction",
        textcoords="offset points",
        size=SMALL,
        weight="bold",
        color=colour("ink"),
    )
    for row, bar in enumerate(panel.bars):
        _bar(ax, row, bar, colour(COLOURS.get(panel.level, "muted")))


def _bar(ax: Any, row: int, bar: Bar, ink: str) -> None:
    """Draw one bar. Filled: measured. Hollow: failed its check. Tick: stated. Cross: library
    reference."""
    draw = ax.barh
    if bar.value is not None:
        sound = bar.word in ("sound", "unchecked")
        draw(
            row,
            bar.value,
            0.5,
            color=ink if sound else "none",
            edgecolor=ink,
            linewidth=1.2,
            linestyle="-" if sound else (0, (3, 2)),
            alpha=0.75 if sound else 1,
        )
        if bar.low is not None and bar.high is not None:
            ax.plot(
                [bar.low, bar.high],
                [row, row],
                color=colour("ink"),
                linewidth=1.6,
                solid_capstyle="butt",
            )
    if bar.stated is not None:
        ax.plot(
            [bar.stated] * 2,
            [row - 0.38, row + 0.38],
            color=colour("ink"),
            linewidth=2,
            linestyle=(0, (2, 1.4)),
        )
    if bar.library is not None:
        for width, size, ink in ((5.0, 9, colour("ground")), (2.0, 7, colour("ink"))):  # a halo
            ax.plot(
                [bar.library],
                [row],
                marker="x",
                markersize=size,
                markeredgewidth=width,
                color=ink,
            )
    note = bar.text if bar.word == "sound" else f"{bar.text}, {bar.word}"
    ax.annotate(
        note if bar.text != "missing" else "missing",
        (1, row),
        (8, 0),
        va="center",
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        size=SMALL,
        color=colour("ink"),
    )
