"""Tables of pages: a head and a cell for each column, and a row for each item."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

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
