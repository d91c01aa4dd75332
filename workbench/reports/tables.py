"""Tables of pages and of the terminal: a head for each column, and a row for each item."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Literal

Table = dict[str, Any]  # heads; rows, each its cells and whether it is bad; what the template takes
Columns = Sequence[tuple[str, Callable[[Any], str]]]


def table(
    columns: Columns,
    items: Sequence[Any],
    most: int | None = None,
    bad: Callable[[Any], bool] = lambda item: False,
    **more: Any,
) -> Table:
    """Return the table of items, of which at most `most` are shown and the others counted. `more`
    is for the template: `text` are the numbers of columns that are set to the left."""
    rows = [([cell(item) for _, cell in columns], bad(item)) for item in items[:most]]
    counted = {} if most is None else {"more": max(0, len(items) - most)}
    return {"heads": [head for head, _ in columns], "rows": rows, **counted, **more}


def text_table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]] = (),
    right: Collection[str] | None = None,
    whole: Collection[str] = (),
) -> Any:
    """Return a table for the terminal, without lines. The columns of the heads in `right` are set
    to the right; without it all but the first. Cells of the heads in `whole` are not broken."""
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False)
    for number, head in enumerate(heads):
        to_right = number > 0 if right is None else head in right
        justify: Literal["left", "right"] = "right" if to_right else "left"
        lost: Literal["ellipsis", "fold"] = "ellipsis" if head in whole else "fold"
        drawn.add_column(head, justify=justify, overflow=lost, no_wrap=head in whole)
    for row in rows:
        drawn.add_row(*map(Text, row))
    return drawn
