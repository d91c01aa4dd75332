"""CSV tables under limits, with their place for error sentences."""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping

from workbench.traces.readers.inputs.numbers import integer
from workbench.traces.readers.inputs.source import Source

Row = dict[str, str]


def rows(source: Source, lines: Iterable[str] | None = None) -> Iterator[list[str]]:
    """Yield the fields of each row; `source.place` is the row. Raises ReadError for a field beyond
    the limit or a quote that never ends."""
    csv.field_size_limit(source.limits.field_bytes)
    reader = csv.reader(source.lines() if lines is None else lines)
    number = 0
    while True:
        number += 1
        source.place = f"row {number}"
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            source.fail(str(error), "check that file")
        source.place = f"row {number}"
        source.count()
        yield row


def table(
    source: Source, is_head: Callable[[list[str]], bool] = bool, lines: Iterable[str] | None = None
) -> Iterator[Row]:
    """Yield each row under the first row that is a head, as a dict by head. Rows before it are
    skipped; short rows lack fields, and fields beyond the head are dropped."""
    heads: list[str] | None = None
    for row in rows(source, lines):
        if heads is None:
            if is_head(row):
                heads = [name.strip() for name in row]
        elif any(row):
            yield dict(zip(heads, row, strict=False))


def pick(row: Mapping[str, str], *names: str) -> str | None:
    """Return the first of some columns that a row has and that is not empty."""
    for name in names:
        if value := row.get(name):
            return value
    return None


def pick_integer(row: Mapping[str, str], *names: str) -> int | None:
    """Return the value that `pick` takes as a whole number, or None."""
    text = pick(row, *names)
    return integer(text) if text else None


def need(row: Mapping[str, str], *names: str) -> str:
    """Return the first of some columns that a row has. Raises KeyError where it has none."""
    value = pick(row, *names)
    if value is None:
        raise KeyError(f"there is no value in the column {names[0]}")
    return value


def first_row(text: str) -> list[str]:
    """Return the fields of the first row of a text that has any."""
    for line in text.splitlines()[:200]:
        if line.strip():
            try:
                return [field.strip() for field in next(csv.reader([line]))]
            except (csv.Error, StopIteration):
                return []
    return []
