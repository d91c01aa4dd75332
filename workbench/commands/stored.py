"""Open the database for a command, and say what in it is damaged."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from workbench.commands.console import note
from workbench.data.database import History, HistoryError, open_history
from workbench.data.project import project_id
from workbench.data.record import Record, Run

LAST = "last"


@dataclass(frozen=True)
class RunKind:
    """A kind of run that `last` stands for."""

    what: str  # `run with a profile`
    test: Callable[[History, Run], bool]


ANY_RUN = RunKind("run", lambda history, run: True)
WITH_PROFILE = RunKind("run with a profile", lambda history, run: bool(history.profiles(run.id)))
# that of a search which stopped belongs to a sweep, and is on its page
WITH_FINDING = RunKind(
    "run with a finding",
    lambda history, run: run.engine != "sweep" and bool(history.findings(run.id)),
)
WITH_TIME = RunKind(
    "run with a time",
    lambda history, run: any(
        isinstance(o, Record) and (run.kind != "code" or o.is_measured)
        for o in history.outcomes(run.id)
    ),
)


def last_run(history: History, kind: RunKind) -> Run:
    """Return the newest run of a kind in this project. Older runs state no project and belong to
    every one. Raises HistoryError where there is none."""
    project = project_id()
    for run in history.newest_runs():
        if run.project in ("", project) and kind.test(history, run):
            return run
    damaged = " (a part of it is damaged)" if history.damaged else ""
    raise HistoryError(
        f"{history.name} holds no {kind.what} of this project, which is the Git repository or the "
        f"working folder{damaged}; name a run by its id, as `workbench history` lists them"
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
