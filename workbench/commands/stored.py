"""Open the database for a command, and say what in it is damaged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from workbench.commands.console import note
from workbench.data.database import History, HistoryError, open_history
from workbench.data.project import project_id
from workbench.data.record import Run

LAST = "last"
_FIRST, _ALL = 20, 1_000_000  # runs: more than a database holds


def last_run(history: History, what: str, wanted: Callable[[Run], bool]) -> Run:
    """Return the newest run of this project for which `wanted` is true, of `what`: `a profile`.
    Older runs state no project and belong to every one. Raises HistoryError where there is none.
    """
    project, seen = project_id(), 0
    for limit in (_FIRST, _ALL):
        for run in history.runs(limit=limit)[seen:]:
            if run.project in ("", project) and wanted(run):
                return run
        seen = _FIRST
    damaged = " (a part of it is damaged)" if history.damaged else ""
    raise HistoryError(
        f"{history.name} holds no run with {what} of this project, which is the Git repository or "
        f"the working folder{damaged}; name a run by its id, as `workbench history` lists them"
    )


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
