"""Figure of a measurement: each Impl's share of its nearest ceiling, size by size."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from workbench.data.record import Record
from workbench.device.error_band import expected_s
from workbench.reports import colour, figure, figure_svg
from workbench.reports.figures.drawing import (
    EXPECTED_BAR,
    axes,
    marker_of,
    name_rows,
    note,
    note_row,
    short_name,
)

_LINE = 24  # px between rows


@dataclass(frozen=True)
class Share:
    """One record's share of its ceiling, in percent."""

    group: str
    record: Record
    impl: int  # index among the Impls of the page
    mark: str  # name of its marker
    percent: float

    @property
    def label(self) -> str:
        """Return the share as text: `86 %`; a predicted one has a tilde."""
        return f"{'' if self.record.is_measured else '~'}{self.percent:.0f} %"

    @property
    def expected_percent(self) -> tuple[float, float] | None:
        """Return the shares between which that of a measured time is expected, in percent and at
        most 100; None where the record is measured or its device was never compared."""
        ends = expected_s(self.record)
        if ends is None:
            return None
        least, most = (self.percent * self.record.time_s / s for s in reversed(ends))
        return min(least, 100.0), min(most, 100.0)


def shares(rows: Sequence[Share], prefix: str) -> Markup:
    """Return a row for each record, grouped by size and dtype; a bar has the shares that are
    expected if a predicted one is measured."""
    heads: list[tuple[float, str]] = []
    at: list[tuple[float, Share]] = []
    y = 0.0
    for group in dict.fromkeys(s.group for s in rows):
        heads.append((y, group))
        y += 1
        for share in [s for s in rows if s.group == group]:
            at.append((y, share))
            y += 1
        y += 0.4
    left, right, top = 286, 80, 8
    fig = figure(900, top + _LINE * y + 52)
    ax = axes(fig, left, top, 900 - left - right, _LINE * y, "x")
    reach = max([100.0, *(s.percent for s in rows)])
    ax.set(xlim=(0, reach * 1.02), ylim=(y - 0.5, -0.7))
    ax.set(xlabel="share of the nearest ceiling, %")
    name_rows(
        ax, [row for row, _ in at], [short_name(share.record.case.label, 44) for _, share in at]
    )
    for row, group in heads:
        note(ax, group, (0, row), (6, 0), "muted", va="center")
    for row, share in at:
        ink = colour(f"impl-{share.impl % 4}")
        end = share.expected_percent[0] if share.expected_percent else share.percent
        ax.plot([0, end], [row, row], color=colour("rule"), linewidth=3, zorder=1)
        if share.expected_percent:
            ax.plot(share.expected_percent, [row, row], **EXPECTED_BAR)
        face = ink if share.record.is_measured else "none"
        look = {"markersize": 8, "color": ink, "markerfacecolor": face, "zorder": 2}
        mark = marker_of(share.mark)
        ax.plot([share.percent], [row], marker=mark, **look)
        note_row(ax, row, share.label)
    return figure_svg(fig, prefix, "Share of the nearest ceiling")
