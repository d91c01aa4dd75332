"""Numbers in rows: a point each, filled if measured and else hollow, with its interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workbench.data.record import Measured, Record
from workbench.data.units import text_of
from workbench.reports import colour, figure
from workbench.reports.figures.drawing import axes, log_ticks, name_rows, note_row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Ends = tuple[float, float]
LINE, RIGHT = 24, 90  # px between rows, and beside the axes for the numbers as text


@dataclass(frozen=True)
class ValueRow:
    """A number in a row of its own; without one a head of those below it. `low` and `high` are the
    ends of its interval."""

    name: str
    value: float | None = None
    text: str = ""
    measured: bool = True
    low: float | None = None
    high: float | None = None
    group: int = 0  # rows of one group have one colour

    @property
    def ends(self) -> Ends | None:
        """Return the ends of its interval; None where it has none."""
        return None if self.low is None or self.high is None else (self.low, self.high)


def time_row(
    name: str, record: Record, scale: float, group: int = 0, expected: Ends | None = None
) -> ValueRow:
    """Return a time in units of `scale` seconds, with its interval, else with the one that is
    `expected` of it, in seconds."""
    timing = record.timing
    ends = (timing.low_s, timing.high_s) if isinstance(timing, Measured) else timing.interval_s
    ends = ends or expected
    low, high = (ends[0] / scale, ends[1] / scale) if ends else (None, None)
    text = f"{'' if record.is_measured else '~'}{text_of(record.time_s, scale)}"
    return ValueRow(name, record.time_s / scale, text, record.is_measured, low, high, group)


def rows_figure(
    rows: Sequence[ValueRow], x_label: str, left: float, across: float, log: bool = False
) -> Figure:
    """Return numbers in rows, on an axis from 0 or a logarithmic one."""
    fig = figure(left + across + RIGHT, 8 + LINE * len(rows) + 52)
    ax = axes(fig, left, 8, across, LINE * len(rows), "x")
    ax.set(ylim=(len(rows) - 0.5, -0.5), xlabel=x_label)
    numbers = [x for row in rows for x in (row.value, *(row.ends or ())) if x is not None]
    if log:
        low, high = min(numbers) / 1.6, max(numbers) * 1.6
        ax.set(xscale="log", xlim=(low, high))
        log_ticks(ax.xaxis, low, high)
    else:
        ax.set_xlim(0, 1.05 * max(numbers))
    name_rows(ax, range(len(rows)), [row.name for row in rows])
    for n, (label, row) in enumerate(zip(ax.get_yticklabels(), rows, strict=True)):
        if row.value is None:
            label.set_fontweight("bold")
            if n:
                ax.axhline(n - 0.5, color=colour("rule"), linewidth=0.8)
            continue
        ink = colour(f"impl-{row.group % 4}")
        face = ink if row.measured else "none"
        if row.ends:
            ax.plot(row.ends, [n, n], color=ink, linewidth=2, zorder=2)
        look = {"markersize": 7, "color": ink, "markerfacecolor": face, "zorder": 3}
        ax.plot([row.value], [n], marker="o", **look)
        note_row(ax, n, row.text)
    return fig
