"""Numbers in rows: a point each, filled if measured and else hollow, with its interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from markupsafe import Markup

from workbench.data.record import Measured, Record, group_by
from workbench.data.units import text_of, unit_of
from workbench.reports import colour, figure, figure_svg
from workbench.reports.figures.drawing import axes, log_ticks, name_rows, note_row, short_name
from workbench.spec import label, sizes_text

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
    is_measured: bool = True
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
    for n, (title, row) in enumerate(zip(ax.get_yticklabels(), rows, strict=True)):
        if row.value is None:
            title.set_fontweight("bold")
            if n:
                ax.axhline(n - 0.5, color=colour("rule"), linewidth=0.8)
            continue
        ink = colour(f"impl-{row.group % 4}")
        face = ink if row.is_measured else "none"
        if row.ends:
            ax.plot(row.ends, [n, n], color=ink, linewidth=2, zorder=2)
        look = {"markersize": 7, "color": ink, "markerfacecolor": face, "zorder": 3}
        ax.plot([row.value], [n], marker="o", **look)
        note_row(ax, n, row.text)
    return fig


def times(records: Sequence[Record], prefix: str) -> Markup:
    """Return the time of each variant by kernel, on a log axis, with the median's interval."""
    scale, unit = unit_of(min(r.time_s for r in records))
    rows: list[ValueRow] = []
    for kernel, mine in group_by(records, lambda r: r.case.kernel).items():
        same = all(r.case.sizes == mine[0].case.sizes for r in mine)
        at = sizes_text(mine[0].case.sizes, " ") if same else ""
        rows.append(ValueRow(f"{kernel}, {at}" if at else kernel))
        rows += [time_row(_name(r, not same), r, scale) for r in mine]
    fig = rows_figure(rows, f"time of one call, {unit} (log)", 400, 470, log=True)
    return figure_svg(fig, prefix, "Time of each variant")


def _name(record: Record, sized: bool) -> str:
    """Return a name that distinguishes a variant; the config, which is longest, comes last."""
    case, timing = record.case, record.timing
    parts = [case.impl, sizes_text(case.sizes, " ") if sized else ""]
    if isinstance(timing, Measured):
        parts += ["hot"] * (timing.regime == "hot") + ["host clock"] * (timing.method == "host")
    parts.append(label(case.config) if case.config else "")
    name = ", ".join(part for part in parts if part)
    return short_name(name, 60)
