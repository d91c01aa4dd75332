"""Rounds of the final: the finalists' windows in the order taken, and the SM clock below."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from workbench.data.record import Measured, Record
from workbench.data.stats import quantile
from workbench.reports import colour, figure, figure_svg
from workbench.reports.figures.drawing import SMALLER, axes, plain_ticks
from workbench.reports.figures.sweep import FAR, Board

_LEAST = 2  # fewest windows of a line

Series = Sequence[tuple[Record, Sequence[float]]]


@dataclass(frozen=True)
class Lines:
    """Records whose windows are drawn as lines; the other finalists form one band."""

    winner: Record | None
    library: Record | None  # the fastest, where it is near


def lines(records: Sequence[Record], winner: Record | None) -> Lines:
    """Return the records to draw as lines; `records` are finalists and libraries, fastest first."""
    near = [r for r in records if r.time_s <= FAR * min(r.time_s for r in records)]
    return Lines(winner, next((r for r in near if r.case.is_baseline), None))


def rounds(board: Board, records: Sequence[Record], who: Lines, prefix: str) -> Markup | None:
    """Return window medians by round, and the SM clock of each window where it was read. None where
    no finalist has two windows."""
    best = min((r.time_s for r in records), default=0.0)
    near = [r for r in records if r.time_s <= FAR * best]  # a slow one would flatten the others
    timed = [(r, r.timing) for r in near if isinstance(r.timing, Measured)]
    times = [(r, t.window_medians) for r, t in timed]
    shown = [(r, [board.time(s) for s in result]) for r, result in times if len(result) >= _LEAST]
    clocks = [(r, t.window_mhz) for r, t in timed if len(t.window_mhz) >= _LEAST]
    return _round_figure(board, shown, clocks, who, prefix) if shown else None


def _round_figure(board: Board, times: Series, clocks: Series, who: Lines, prefix: str) -> Markup:
    width, left, upper, lower = 590, 72, 190, 130
    fig = figure(width, upper + (lower + 24 if clocks else 0) + 66)
    above = axes(fig, left, 14, width - left - 14, upper, "y")
    _panel(above, board, times, who)
    above.set_ylabel(f"window's median, {board.unit[1]}")
    last = above
    if clocks:
        last = axes(fig, left, upper + 38, width - left - 14, lower, "y")
        _panel(last, board, clocks, who)
        last.set_ylabel("SM clock, MHz")
        last.set_xlim(above.get_xlim())
        above.set_xticklabels([])
    last.set_xlabel("round of the final")
    return figure_svg(fig, prefix, "Rounds of the final")


def _panel(ax: Any, board: Board, series: Series, who: Lines) -> None:
    """Draw two lines over the range of the rest, as ten lines could not be followed."""
    shown = [v for _, values in series for v in values]
    low, high = quantile(shown, 0.005), quantile(shown, 0.995)
    room = (high - low) * 0.06 or 0.01 * high
    most = max(len(values) for _, values in series)
    ax.set(xlim=(0.5, most + 0.5), ylim=(low - room, high + room))
    ax.xaxis.get_major_locator().set_params(integer=True, nbins=8)
    ax.yaxis.get_major_locator().set_params(nbins=5)
    plain_ticks(ax.xaxis, ax.yaxis)
    ax.tick_params(labelsize=SMALLER)
    rest = [values for r, values in series if r is not who.winner and r is not who.library]
    if rest:
        at = range(1, max(map(len, rest)) + 1)
        each = [[values[n - 1] for values in rest if n <= len(values)] for n in at]
        look = {"color": colour("hatch"), "alpha": 0.55, "linewidth": 0}
        ax.fill_between(at, list(map(min, each)), list(map(max, each)), **look)
    for record, values in series:
        if record is who.winner or record is who.library:
            style = _style(board, record, record is who.winner)
            ax.plot(range(1, len(values) + 1), values, **style)


def _style(board: Board, record: Record, winner: bool) -> dict[str, Any]:
    """Return the style of a line, distinct in width and dash as well as in colour."""
    if winner:
        return {"color": colour("accent"), "linewidth": 2, "zorder": 5}
    ink = colour(f"impl-{board.impls.index(record.case.impl) % 4}")
    return {"color": ink, "linewidth": 1.3, "linestyle": (0, (4, 2)), "zorder": 4}
