"""Open the database for a command, and say what in it is damaged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from workbench.commands.console import note
from workbench.data.database import History, open_history


@contextmanager
def stored_runs(url: str | None, reading: bool = True) -> Iterator[History]:
    """Return a context manager with the database, opened only to be read unless `reading` is False.
    A note at the end counts the damaged rows that were left out. Raises HistoryError."""
    with open_history(url, reading) as history:
        try:
            yield history
        finally:
            if history.damaged:
                note(damage_text(history))


def damage_text(history: History) -> str:
    """Return one sentence on the damaged rows that were left out."""
    rows = "1 row" if history.damaged == 1 else f"{history.damaged} rows"
    return (
        f"{rows} of {history.name} cannot be used and {'is' if rows == '1 row' else 'are'} left "
        "out; import the events files of those runs into a new history"
    )
