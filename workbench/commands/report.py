"""Reports of runs that are over: from the database, or from events files."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.catalog import names_in, unknown
from workbench.data.database import History, default_url, open_history
from workbench.data.events import RunFinished, read
from workbench.data.record import Comparison, Failure, Finding, Outcome, Record, Run
from workbench.reports import ReportError, write_page

if TYPE_CHECKING:
    from workbench.reports.figures.roofline_points import Sheet

SEVERAL = ("roofline", "findings")  # reports of any number of runs; the others draw one
_ALL = 1_000_000  # runs: more than a database holds


@dataclass(frozen=True)
class Kept:
    """One run and all that was stored of it."""

    run: Run
    outcomes: Sequence[Outcome] = ()
    comparisons: Sequence[Comparison] = ()
    findings: Sequence[Finding] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)  # empty where not known


@dataclass(frozen=True)
class Wanted:
    """A report as the command line asks for it. `runs` are ids, their starts, `last`, or events
    files; `kernel` and `device` stand for all runs of theirs in the database."""

    report: str
    runs: tuple[str, ...] = ()
    kernel: str | None = None
    device: str | None = None
    everything: bool = False  # all configs of a sweep
    out: Path | None = None
    csv: Path | None = None
    json: Path | None = None
    figure: Path | None = None
    database: str | None = None


def draw(report: str, which: str, out: Path | None, database: str | None) -> Path:
    """Write the report of the run `which` (an id, its start, `last`, or an events file).

    Returns its path. Raises ReportError, EventsError or HistoryError, each one sentence.
    """
    return make(Wanted(report, (which,), out=out, database=database))[0]


def make(wanted: Wanted) -> list[Path]:
    """Write a report and what was asked beside it; returns the paths, the report's first.

    Each file is written whole or not at all, and none before all is known. Raises ReportError,
    EventsError or HistoryError, each one sentence.
    """
    known = names_in("workbench.reports")
    if wanted.report not in known:
        raise ReportError(unknown("report", wanted.report, known))
    if wanted.report == "roofline":
        return _roofline(wanted)
    _refuse_options(wanted)
    if wanted.report == "findings":
        return [_markdown(wanted)]
    if len(wanted.runs) > 1:
        raise ReportError(
            f"the report {wanted.report} draws one run, and {len(wanted.runs)} are named; name "
            f"one, or ask for one of {', '.join(SEVERAL)}."
        )
    kept = _kept(wanted.runs[0] if wanted.runs else "last", wanted.database)[-1]
    made = import_module(f"workbench.reports.{wanted.report}")
    _refuse_another(wanted.report, kept.run, known)
    html = made.page(kept.run, kept.outcomes, *_also(wanted.report, kept))
    return [write_page(wanted.out or _place(kept.run, "report.html"), html).resolve()]


def sheet(
    runs: Sequence[str] = (),
    kernel: str | None = None,
    device: str | None = None,
    everything: bool = False,
    database: str | None = None,
) -> Sheet:
    """What a roofline of these runs shows, see `workbench.roofline`; of the last run where nothing
    is named. The newest complete run of `ceilings` of each device in the database counts too.

    Raises ReportError, EventsError or HistoryError.
    """
    from workbench.reports.figures.roofline_points import Stored, sheet_of

    if not (kernel or device):
        kept = [each for which in runs or ["last"] for each in _kept(which, database)]
        once = {each.run.id: each for each in kept}
        stored = [Stored(k.run, k.outcomes, k.comparisons) for k in once.values()]
        devices = dict.fromkeys(each.run.device for each in stored)
        files = all(_is_file(which) for which in runs) and bool(runs)
        return sheet_of(stored, _ceilings(devices, database, files), everything)
    if runs:
        raise ReportError("name runs, or a kernel and a device, and not both.")
    with open_history(database) as history:
        found = _search(history, kernel, device)
        ceilings = _ceilings(dict.fromkeys(run.device for run in found), database)
        # one at a time: all samples of all runs may be more than the memory holds
        each = (_of_history(history, run) for run in found)
        stored_ = (Stored(k.run, _of_kernel(k, kernel), k.comparisons) for k in each)
        return sheet_of(stored_, ceilings, everything)


# The reports of several runs.


def _roofline(wanted: Wanted) -> list[Path]:
    from workbench.reports.figures.paper import KINDS, paper
    from workbench.reports.figures.roofline_points import csv_text, json_text
    from workbench.reports.roofline import page

    kind = wanted.figure.suffix.lower().removeprefix(".") if wanted.figure else ""
    if wanted.figure and kind not in KINDS:
        raise ReportError(
            f"a figure cannot be written as {wanted.figure.name!r}; end its name in "
            f"{', '.join('.' + k for k in KINDS[:-1])} or .{KINDS[-1]}."
        )
    found = sheet(wanted.runs, wanted.kernel, wanted.device, wanted.everything, wanted.database)
    one = found.runs[0] if len(found.runs) == 1 else None
    place = _place(one, "roofline.html") if one else Path("results") / "roofline.html"
    files: list[tuple[str, Path, str | bytes]] = [("--out", wanted.out or place, page(found))]
    if wanted.csv:
        files.append(("--csv", wanted.csv, csv_text(found)))
    if wanted.json:
        files.append(("--json", wanted.json, json_text(found)))
    if wanted.figure:
        files.append(("--figure", wanted.figure, paper(found, kind)))
    return _written(files)


def _written(files: Sequence[tuple[str, Path, str | bytes]]) -> list[Path]:
    """All of the files or none, each whole; `files` are option, path and content."""
    by_path: dict[Path, str] = {}
    for option, path, _ in files:
        if (other := by_path.setdefault(path.resolve(), option)) != option:
            raise ReportError(f"{other} and {option} both name {path}; give each its own file.")
        if path.is_dir():
            raise ReportError(f"{path} is a folder; name the file in it: {option} FILE.")
    drafts = [path.with_name(f".{path.name}.{os.getpid()}.tmp") for _, path, _ in files]
    at = files[0]  # the one that is being written
    try:
        for at, draft in zip(files, drafts, strict=True):
            at[1].parent.mkdir(parents=True, exist_ok=True)
            draft.write_bytes(at[2].encode() if isinstance(at[2], str) else at[2])
        for at, draft in zip(files, drafts, strict=True):
            draft.replace(at[1])
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise ReportError(
            f"{at[1]} cannot be written to ({why}); name another place with {at[0]}."
        ) from None
    finally:
        for draft in drafts:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
    return [path.resolve() for _, path, _ in files]


def _markdown(wanted: Wanted) -> Path:
    kept = [each for which in wanted.runs or ("last",) for each in _kept(which, wanted.database)]
    made = import_module("workbench.reports.findings")
    text = made.markdown([(k.run, k.outcomes, k.findings) for k in kept])
    one = kept[0].run if len(kept) == 1 else None
    place = _place(one, "FINDINGS.md") if one else Path("results") / "FINDINGS.md"
    return write_page(wanted.out or place, text).resolve()


def _refuse_options(wanted: Wanted) -> None:
    """Raises ReportError for options that only the roofline has."""
    named = {
        "--kernel": wanted.kernel, "--device": wanted.device, "--all": wanted.everything,
        "--csv": wanted.csv, "--json": wanted.json, "--figure": wanted.figure,
    }  # fmt: skip
    for option, value in named.items():
        if value:
            raise ReportError(
                f"{option} is an option of the roofline; leave it out of `report {wanted.report}`."
            )


def _place(run: Run, name: str) -> Path:
    return Path("results") / run.id / name


def _also(report: str, kept: Kept) -> tuple[object, ...]:
    """What a page takes beside a run and its outcomes."""
    if report == "experiment":
        return (kept.findings,)
    if kept.comparisons:
        return (kept.comparisons,)
    return (kept.seconds,) if kept.seconds and report == "sweep" else ()


def _refuse_another(report: str, run: Run, known: list[str]) -> None:
    """Raises ReportError where the run is of an engine that another report draws."""
    ours = {n: getattr(import_module(f"workbench.reports.{n}"), "ENGINES", (n,)) for n in known}
    if run.engine in ours[report]:
        return
    drawn = next((n for n, engines in ours.items() if run.engine in engines), None)
    then = f"draw it with `workbench report {drawn} {run.id}`" if drawn else "no report draws it"
    raise ReportError(f"{run.id} is a run of `{run.engine}`, not of `{report}`; {then}.")


# From where runs are read.


def _is_file(which: str) -> bool:
    return which.endswith(".jsonl") or Path(which).is_file()


def _kept(which: str, database: str | None) -> list[Kept]:
    """The run of the database that this names, or all runs of an events file, the last one last."""
    if _is_file(which):
        return _from_file(Path(which))
    with open_history(database) as history:
        return [_of_history(history, history.run(which))]


def _of_history(history: History, run: Run) -> Kept:
    return Kept(
        run, history.outcomes(run.id), history.comparisons(run.id), history.findings(run.id)
    )


def _from_file(path: Path) -> list[Kept]:
    """The runs of an events file, from its good lines."""
    found = read(path)
    runs = [e for e in found.events if isinstance(e, Run)]
    if not runs:
        bad = f" ({_lines(len(found.bad))} unreadable)" if found.bad else ""
        raise ReportError(f"{path} holds no run{bad}; name an events file that a run wrote.")
    if found.bad:  # what is drawn lacks them, and who looks at it has to know
        said = f"in {path} {_lines(len(found.bad))} unreadable and left out"
        print(f"note: {said}, the first is line {found.bad[0].number}", file=sys.stderr)
    kept = []
    for run in {run.id: run for run in runs}.values():
        own = [e for e in found.events if not isinstance(e, Run) and e.run == run.id]
        ends = [e for e in own if isinstance(e, RunFinished)]
        kept.append(Kept(
            run,
            [e for e in own if isinstance(e, (Record, Failure))],
            [e for e in own if isinstance(e, Comparison)],
            [e for e in own if isinstance(e, Finding)],
            ends[-1].seconds if ends else {},
        ))  # fmt: skip
    return kept


def _lines(count: int) -> str:
    return f"{count} line{'s are' if count != 1 else ' is'}"


def _search(history: History, kernel: str | None, device: str | None) -> list[Run]:
    """All runs of a kernel, a device, or both. Raises ReportError where there is none."""
    runs = history.runs(device=device, limit=_ALL)
    mine = [r for r in runs if kernel is None or kernel in r.kernel.split(", ")]
    if not mine:
        what = " on ".join(filter(None, (kernel or "any kernel", device)))
        raise ReportError(
            f"the database holds no run of {what}; `workbench history` lists what it holds."
        )
    return mine


def _of_kernel(kept: Kept, kernel: str | None) -> Sequence[Outcome]:
    """Outcomes of this kernel alone, where a run has several; an experiment's arms all count."""
    if kernel is None or kept.run.engine == "experiment":
        return kept.outcomes
    return [o for o in kept.outcomes if o.case.kernel == kernel]


def _ceilings(devices: Mapping[str, None], database: str | None, files: bool = False) -> list[Run]:
    """The newest complete run of `ceilings` of each device. Events files need no database: where
    none was named, one is asked only if it is there."""
    if files and database is None and not _default_exists():
        return []
    found = []
    with open_history(database) as history:
        for device in devices:
            runs = history.runs(engine="ceilings", device=device, limit=20)
            measured = (r for r in runs if not r.predicted)
            found += [r for r in measured if history.state(r.id) == "complete"][:1]
    return found


def _default_exists() -> bool:
    from sqlalchemy.engine import make_url

    return Path(make_url(default_url()).database or "").is_file()
