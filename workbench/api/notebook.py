"""HTML of a result in a notebook: the answer, a figure and ten rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING

from workbench.reports import figure_svg, palettes, render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from workbench.api.result import Result

ROWS_SHOWN = 10
_NUMBERS = count()  # ids of two results on one notebook must differ


def html_of(result: Result) -> str:
    """Return the block of a result."""
    pages = [run.page for run in result.runs if run.page is not None]
    page = str(pages[-1].resolve()) if pages else ""
    table, figure = result._table(), result._figure()
    return card(result._kind, result.predicted, result.sentence, table, figure, page)


def card(
    kind: str,
    predicted: bool,
    sentence: str,
    table: tuple[Sequence[str], Sequence[Sequence[str]]],
    figure: Figure | None = None,
    page: str = "",
) -> str:
    """Return a block: how the numbers were obtained, the answer, a figure and a table. Colours
    follow the notebook's theme, or else the system's."""
    heads, rows = table
    shown = [n for n in range(len(heads)) if any(row[n] for row in rows)]
    prefix = f"wb{next(_NUMBERS)}"
    light, dark = palettes()
    return render(
        "notebook.html.j2",
        id=prefix,
        light=light,
        dark=dark,
        kind=kind,
        predicted=predicted,
        sentence=sentence,
        figure=None if figure is None else figure_svg(figure, prefix, "Figure of the result"),
        heads=[heads[n] for n in shown],
        rows=[[row[n] for n in shown] for row in rows[:ROWS_SHOWN]],
        more=max(0, len(rows) - ROWS_SHOWN),
        page=page,
    )
