"""HTML of a result in a notebook: the answer, a figure and ten rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING

from workbench.reports import figure_svg, palettes, render

if TYPE_CHECKING:
    from workbench.api.result import Result

ROWS_SHOWN = 10
_NUMBERS = count()  # ids of two results on one notebook must differ


def html_of(result: Result) -> str:
    """Return the block. Colours follow the notebook's theme, or else the system's."""
    heads, rows = result._table()
    shown = filled(heads, rows)
    number = next(_NUMBERS)
    figure = result._figure()
    prefix = f"wb{number}"
    light, dark = palettes()
    pages = [run.page for run in result.runs if run.page is not None]
    return render(
        "notebook.html.j2",
        id=prefix,
        light=light,
        dark=dark,
        kind=result._kind,
        predicted=result.predicted,
        sentence=result.sentence,
        figure=None if figure is None else figure_svg(figure, prefix, "Figure of the result"),
        heads=[heads[n] for n in shown],
        rows=[[row[n] for n in shown] for row in rows[:ROWS_SHOWN]],
        more=max(0, len(rows) - ROWS_SHOWN),
        page=str(pages[-1].resolve()) if pages else "",
    )


def filled(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the indices of columns that are not empty."""
    return [n for n in range(len(heads)) if any(row[n] for row in rows)]
