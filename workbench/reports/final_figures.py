"""The final as it went: every finalist's windows in the order taken, and the SM clock under them.

A finalist's windows lie beside all others' of the same round, so what moves all lines at once is
the machine and not a config.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from workbench.record import Measured, Record
from workbench.report import colour, figure, figure_svg
from workbench.reports.sweep_figures import SMALLER, Board, window_medians
from workbench.reports.sweep_figures import _axes as axes
from workbench.stats import quantile

_FAR = 1.3  # a library this much slower than the fastest would flatten all other lines
_LEAST = 2  # windows that make a line

Series = Sequence[tuple[Record, Sequence[float]]]


def rounds(board: Board, records: Sequence[Record], words: Mapping[int, str], prefix: str) -> Any:
    """Window medians by round, and the SM clock of each window where it was read.

    `words` names the winner and what ties with it, by the record's id. None where no finalist has
    two windows.
    """
    timed = [(r, r.timing) for r in records if isinstance(r.timing, Measured)]
    best = min((t.median_s for _, t in timed), default=0.0)
    times = [(r, window_medians(t)) for r, t in timed if t.median_s <= _FAR * best]
    times = [(r, [board.time(s) for s in found]) for r, found in times if len(found) >= _LEAST]
    clocks = [(r, t.window_mhz) for r, t in timed if len(t.window_mhz) >= _LEAST]
    if not times:
        return None
    return _drawn(board, times, clocks, words, prefix)


def _drawn(
    board: Board, times: Series, clocks: Series, words: Mapping[int, str], prefix: str
) -> Markup:
    width, left, upper, lower = 590, 62, 190, 110
    fig = figure(width, upper + (lower + 24 if clocks else 0) + 66)
    above = axes(fig, left, 14, width - left - 14, upper)
    _lines(above, board, times, words)
    above.set_ylabel(f"window's median, {board.unit[1]}")
    last = above
    if clocks:
        last = axes(fig, left, upper + 38, width - left - 14, lower)
        _lines(last, board, clocks, words)
        last.set_ylabel("SM clock, MHz")
        last.set_xlim(above.get_xlim())
        above.set_xticklabels([])
    last.set_xlabel("round of the final")
    return figure_svg(fig, prefix, "Rounds of the final")


def _lines(ax: Any, board: Board, series: Series, words: Mapping[int, str]) -> None:
    """One line a finalist: the winner over the libraries over what ties over the others."""
    shown = [v for _, values in series for v in values]
    low, high = quantile(shown, 0.005), quantile(shown, 0.995)
    room = (high - low) * 0.06 or 0.01 * high
    most = max(len(values) for _, values in series)
    ax.set(xlim=(0.5, most + 0.5), ylim=(low - room, high + room))
    ax.grid(axis="y", color=colour("rule"), linewidth=0.8)
    ax.set_axisbelow(True)
    ax.xaxis.get_major_locator().set_params(integer=True, nbins=8)
    ax.yaxis.get_major_locator().set_params(nbins=5)
    for formatted in (ax.xaxis, ax.yaxis):
        formatted.set_major_formatter(lambda v, _: f"{v:g}")
    ax.tick_params(labelsize=SMALLER)
    for record, values in series:
        ax.plot(range(1, len(values) + 1), values, **_style(board, record, words))


def _style(board: Board, record: Record, words: Mapping[int, str]) -> dict[str, Any]:
    """Told apart by width and dash as well as by colour."""
    word = words.get(id(record), "")
    if word == "winner":
        return {"color": colour("accent"), "linewidth": 2.2, "zorder": 5}
    if record.case.is_baseline:
        ink = colour(f"impl-{board.impls.index(record.case.impl) % 4}")
        return {"color": ink, "linewidth": 1.3, "linestyle": (0, (4, 2)), "zorder": 4}
    if word:
        return {"color": colour("ink"), "linewidth": 0.9, "alpha": 0.75, "zorder": 3}
    return {"color": colour("muted"), "linewidth": 0.8, "alpha": 0.45, "zorder": 2}
