"""Pages of runs that are over: from the database, or from an events file."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from workbench.catalog import names_in, unknown
from workbench.events import RunFinished, read
from workbench.history import open_history
from workbench.record import Comparison, Failure, Outcome, Record, Run
from workbench.report import ReportError, write_page

Seconds = Mapping[str, float]  # where a run's wall time went; empty where that is not known
Stored = tuple[Run, list[Outcome], list[Comparison], Seconds]


def draw(report: str, which: str, out: Path | None, database: str | None) -> Path:
    """Write the page `report` of the run `which` (an id, its start, `last`, or an events file).

    Returns its path. Raises ReportError, EventsError or HistoryError, each one sentence.
    """
    known = [n for n in names_in("workbench.reports") if not n.endswith("_figures")]
    if report not in known:
        raise ReportError(unknown("report", report, known))
    file = Path(which)
    if which.endswith(".jsonl") or file.is_file():
        run, outcomes, comparisons, seconds = _from_file(file)
    else:
        run, outcomes, comparisons, seconds = _from(which, database)
    made = import_module(f"workbench.reports.{report}")
    _refuse_another(report, run, known)
    also = (comparisons,) if comparisons else (seconds,) if seconds and report == "sweep" else ()
    html = made.page(run, outcomes, *also)
    return write_page(out or Path("results") / run.id / "report.html", html).resolve()


def _refuse_another(report: str, run: Run, known: list[str]) -> None:
    """Raises ReportError where the run is of an engine that another report draws."""
    ours = {n: getattr(import_module(f"workbench.reports.{n}"), "ENGINES", (n,)) for n in known}
    if run.engine in ours[report]:
        return
    drawn = next((n for n, engines in ours.items() if run.engine in engines), None)
    then = f"draw it with `workbench report {drawn} {run.id}`" if drawn else "no report draws it"
    raise ReportError(f"{run.id} is a run of `{run.engine}`, not of `{report}`; {then}.")


def _from(which: str, database: str | None) -> Stored:
    with open_history(database) as history:
        run = history.run(which)
        return run, history.outcomes(run.id), history.comparisons(run.id), {}


def _from_file(path: Path) -> Stored:
    """The last run of an events file, from its good lines."""
    found = read(path)
    runs = [e for e in found.events if isinstance(e, Run)]
    if not runs:
        bad = f" ({len(found.bad)} lines are unreadable)" if found.bad else ""
        raise ReportError(f"{path} holds no run{bad}; name an events file that a sweep wrote.")
    run = runs[-1]
    kept = [e for e in found.events if isinstance(e, (Record, Failure)) and e.run == run.id]
    compared = [e for e in found.events if isinstance(e, Comparison) and e.run == run.id]
    ends = [e for e in found.events if isinstance(e, RunFinished) and e.run == run.id]
    return run, kept, compared, ends[-1].seconds if ends else {}
