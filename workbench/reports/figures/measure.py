"""Figure of a measurement: each Impl's share of its nearest ceiling, size by size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from workbench.reports import colour, figure, figure_svg
from workbench.reports.figures.sweep import SMALL, SMALLER
from workbench.reports.figures.sweep import _axes as axes
from workbench.reports.figures.sweep import _frame as frame

MARKERS = ("o", "s", "^", "D")  # as `sweep_figures.MARKS`
_LINE = 24  # px between rows


@dataclass(frozen=True)
class Share:
    """One record's share of its ceiling, in percent."""

    group: str
    label: str
    impl: int  # index among the Impls of the page
    baseline: bool
    measured: bool
    percent: float


def shares(rows: Sequence[Share], prefix: str) -> Markup:
    """Return a row for each record, grouped by size and dtype."""
    groups = list(dict.fromkeys(s.group for s in rows))
    ticks: list[tuple[float, str]] = []
    heads: list[tuple[float, str]] = []
    at: list[tuple[float, Share]] = []
    y = 0.0
    for group in groups:
        heads.append((y, group))
        y += 1
        for share in [s for s in rows if s.group == group]:
            at.append((y, share))
            ticks.append((y, share.label))
            y += 1
        y += 0.4
    left, right, top = 286, 80, 8
    fig = figure(900, top + _LINE * y + 52)
    ax = axes(fig, left, top, 900 - left - right, _LINE * y)
    reach = max([100.0, *(s.percent for s in rows)])
    ax.set(xlim=(0, reach * 1.02), ylim=(y - 0.5, -0.7))
    ax.set(xlabel="share of the nearest ceiling, %")
    ax.set_yticks([t for t, _ in ticks], [_short(name) for _, name in ticks])
    ax.tick_params(axis="y", length=0, labelsize=SMALL, labelcolor=colour("ink"))
    ax.grid(axis="x", color=colour("rule"), linewidth=0.8)
    ax.set_axisbelow(True)
    frame(ax, ("bottom",))
    for row, group in heads:
        ax.annotate(
            group,
            (0, row),
            (6, 0),
            textcoords="offset points",
            va="center",
            size=SMALLER,
            color=colour("muted"),
        )
    for row, share in at:
        ink = colour(f"impl-{share.impl % 4}")
        ax.plot([0, share.percent], [row, row], color=colour("rule"), linewidth=3, zorder=1)
        ax.plot(
            [share.percent],
            [row],
            marker="X" if share.baseline else MARKERS[share.impl % 4],
            markersize=8,
            color=ink,
            zorder=2,
            markerfacecolor=ink if share.measured else "none",
        )
        ax.annotate(
            f"{share.percent:.0f} %",
            (1, row),
            (8, 0),
            va="center",
            size=SMALL,
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            color=colour("ink"),
        )
    return figure_svg(fig, prefix, "Share of the nearest ceiling")


def _short(name: str) -> str:
    name = name.replace(" warps", "w").replace(" stages", "s")
    return name if len(name) <= 44 else name[:43] + "…"
