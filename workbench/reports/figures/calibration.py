"""Figure of a calibration: times over the best known at the sizes that were held back."""

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from workbench.reports import colour, figure, figure_svg
from workbench.reports.figures.drawing import SMALL, axes, name_rows

_LEFT, _RIGHT, _WIDTH, _LINE = 190, 30, 900, 40
_TOP, _AXIS = 34, 48  # px above the rows for the key, and below them for the axis
TICKS = (1, 1.15, 1.5, 2, 3, 5, 10, 20, 50)


# A kernel, and at each size held back the times over the best known: chosen ones and defaults.
Regrets = tuple[str, Sequence[float], Sequence[float]]


def regrets(parts: Sequence[Regrets], prefix: str) -> Markup | None:
    """Return a row for each kernel: a dot for the config that a launch takes, a ring for the
    default, one of each a size. None where there are none."""
    every = [x for _, chosen, defaults in parts for x in (*chosen, *defaults)]
    if not every:
        return None
    height = _TOP + _LINE * len(parts) + _AXIS
    fig = figure(_WIDTH, height)
    ax = axes(fig, _LEFT, _TOP, _WIDTH - _LEFT - _RIGHT, _LINE * len(parts), "x")
    most = max(1.2, 1.08 * max(every))
    ax.set_xscale("log")
    ax.set(xlim=(0.985, most), ylim=(len(parts) - 0.5, -0.5))
    ax.set_xticks([t for t in TICKS if t <= most], [f"{t:g}" for t in TICKS if t <= most])
    ax.set_xticks([], minor=True)
    ax.set_xlabel("time over that of the best known config, at each size held back (log)")
    name_rows(ax, range(len(parts)), [title for title, *_ in parts])
    for row, (_, chosen, defaults) in enumerate(parts):
        _row(ax, row, chosen, defaults)
    _key(ax)
    return figure_svg(fig, prefix, "Chosen and default configs over the best known")


def _row(ax: Any, row: int, chosen: Sequence[float], defaults: Sequence[float]) -> None:
    ring = {"facecolors": "none", "edgecolors": colour("roof-memory"), "linewidths": 1.6}
    ax.scatter(defaults, [row + 0.17] * len(defaults), s=46, marker="D", label="default", **ring)
    ink = {"color": colour("roof-compute"), "alpha": 0.85}
    ax.scatter(chosen, [row - 0.17] * len(chosen), s=46, label="chosen", **ink)


def _key(ax: Any) -> None:
    known = dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
    names = {"chosen": "taken by a launch without a config", "default": "the file's default"}
    drawn = ax.legend(
        [known[name] for name in names],
        list(names.values()),
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=2,
        frameon=False,
        fontsize=SMALL,
        borderaxespad=0.2,
        handletextpad=0.4,
    )
    for text in drawn.get_texts():
        text.set_color(colour("ink"))
