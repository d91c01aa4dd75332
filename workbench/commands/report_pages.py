"""Draw pages of stored runs: of one run, or the roofline of any number of runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING

from workbench import reports
from workbench.catalog import name_hint
from workbench.commands.console import note
from workbench.commands.options import REPORTS
from workbench.commands.result import RunResult, document, json_text
from workbench.commands.stored import (
    ANY_RUN,
    LAST,
    WITH_FINDING,
    WITH_TIME,
    RunKind,
    last_run,
    stored_runs,
)
from workbench.data.clock import folder_of
from workbench.data.database import History, default_url
from workbench.data.events import RunFinished, read
from workbench.data.exits import PASSED
from workbench.data.files import FileError, is_stream, real_path, write_files
from workbench.data.record import Comparison, Failure, Finding, Outcome, Profile, Record, Run
from workbench.reports import ReportError, write_page
from workbench.reports.run_index import PAGE, write_index

if TYPE_CHECKING:
    from workbench.commands.report import ReportOptions
    from workbench.reports.figures.roofline_points import Sheet


SEVERAL = ("roofline", "findings")  # reports of any number of runs; the others draw one
_ALL = 1_000_000  # runs: more than a database holds
RUN_PAGE = re.compile(r"^def page\(\s*run\b", re.M)  # in a file whose page draws a run


def report_names() -> list[str]:
    """Return the names of the reports: the workbench's, and those of files that were added to
    `reports/`, which draw a page of a run."""
    files = Path(reports.__file__).parent.glob("*.py")
    added = (file.stem for file in files if RUN_PAGE.search(file.read_text(encoding="utf-8")))
    return sorted({*REPORTS, *added})


def make(options: ReportOptions) -> list[Path]:
    """Write a report and the files requested beside it. Returns the paths, the report's first.

    Each file is written atomically, and none before all contents are known. Raises ReportError,
    EventsError or HistoryError, each one sentence.
    """
    names = report_names()
    if options.name not in names:
        raise ReportError(name_hint("report", options.name, names))
    if options.name == "roofline":
        return _roofline(options)
    _refuse_options(options)
    if options.name == "findings":
        return _markdown(options)
    if len(options.runs) > 1:
        raise ReportError(
            f"the report {options.name} draws one run, and {len(options.runs)} are named; name "
            f"one, or ask for one of {', '.join(SEVERAL)}."
        )
    module = import_module(f"workbench.reports.{options.name}")
    kind = RunKind(
        f"run that the report {options.name} draws",
        lambda history, run: _draws(options.name, _comparison_result(history, run)),
    )
    every = _read_runs(options.runs[0] if options.runs else LAST, options.database, kind)
    result = next((one for one in reversed(every) if _draws(options.name, one)), every[-1])
    _refuse_another(options.name, result, names)
    result = result.timed_part() if options.name == "compare" else result
    html = module.page(result.run, result.outcomes, **_also(module.page, result))
    place = options.out or _place([result.run], "report.html")
    return _write_with_document(options, place, html, [result])


def _write_with_document(
    options: ReportOptions, place: Path, text: str, every: Sequence[RunResult]
) -> list[Path]:
    """Write a report, and the JSON document of its runs if it was requested."""
    if options.json is None:
        written = [_full_path(write_page(place, text))]
        if options.out is None and place.name == PAGE:
            write_index(place.parent.parent)
        return written
    runs = [replace(result, page=place) for result in every]
    content = json_text(document("report", PASSED, runs))
    return _write_all([("--out", place, text), ("--json", options.json, content)])


def sheet(
    runs: Sequence[str] = (),
    kernel: str | None = None,
    device: str | None = None,
    everything: bool = False,
    database: str | None = None,
) -> Sheet:
    """Return the contents of a roofline of these runs, or of the last run if nothing is named.

    The newest complete run of `ceilings` of each device in the database is included; see
    `reports.figures.roofline_points`.

    Raises ReportError, EventsError or HistoryError where there is no such run.
    """
    from workbench.reports.figures.roofline_points import RunWithOutcomes, sheet_of

    if not (kernel or device):
        results = _read_all_runs(runs, database, WITH_TIME)
        once = {each.run.id: each for each in results}
        shown = once.values() if runs else [each.timed_part() for each in once.values()]
        stored = [RunWithOutcomes(k.run, k.outcomes, k.comparisons, k.profiles) for k in shown]
        devices = dict.fromkeys(each.run.device for each in stored)
        files = all(_is_file(which) for which in runs) and bool(runs)
        return sheet_of(stored, _ceilings(devices, database, files), everything)
    if runs:
        raise ReportError("name runs, or a kernel and a device, and not both.")
    with stored_runs(database) as history:
        result = _search(history, kernel, device)
        ceilings = _ceilings(dict.fromkeys(run.device for run in result), database)
        # one at a time: all samples of all runs may be more than the memory holds
        each = (_history_run(history, run).timed_part() for run in result)
        stored_ = (
            RunWithOutcomes(k.run, _outcomes(k, kernel), k.comparisons, k.profiles) for k in each
        )
        return sheet_of(stored_, ceilings, everything)


# Reports of several runs


def _roofline(options: ReportOptions) -> list[Path]:
    from workbench.experiments import kernel_name
    from workbench.reports.figures.paper import KINDS, paper
    from workbench.reports.figures.roofline_points import csv_text, json_text
    from workbench.reports.roofline import page

    kind = options.figure.suffix.lower().removeprefix(".") if options.figure else ""
    if options.figure and kind not in KINDS:
        raise ReportError(
            f"a figure cannot be written as {options.figure.name!r}; end its name in "
            f"{', '.join('.' + k for k in KINDS[:-1])} or .{KINDS[-1]}."
        )
    kernel = kernel_name(options.kernel) if options.kernel else None
    filters = options.runs, kernel, options.device, options.everything
    result = sheet(*filters, options.database)
    place = options.out or _place(result.runs, "roofline.html")
    files: list[tuple[str, Path, str | bytes]] = [("--out", place, page(result))]
    if options.csv:
        files.append(("--csv", options.csv, csv_text(result)))
    if options.json:
        files.append(("--json", options.json, json_text(result)))
    if options.figure:
        files.append(("--figure", options.figure, paper(result, kind)))
    return _write_all(files)


def _write_all(files: Sequence[tuple[str, Path, str | bytes]]) -> list[Path]:
    """Write all of the files or none; `files` are option, path and content. Returns the paths."""
    by_path: dict[Path, str] = {}
    for option, path, _ in files:
        place = path if is_stream(path) else real_path(path)
        if (other := by_path.setdefault(place, option)) != option:
            raise ReportError(f"{other} and {option} both name {path}; give each its own file.")
        if path.is_dir():
            raise ReportError(f"{path} is a folder; name the file in it: {option} FILE.")
    try:
        write_files([(path, content) for _, path, content in files], make_folders=True)
    except FileError as error:
        option = next(option for option, path, _ in files if path == error.path)
        raise ReportError(
            f"{error.path} cannot be written to ({error.reason}); name another place with {option}."
        ) from None
    return [_full_path(path) for _, path, _ in files]


def _full_path(path: Path) -> Path:
    """Return the whole path of a file, to be copied; that of a stream as it was named."""
    return path if is_stream(path) else real_path(path)


def _markdown(options: ReportOptions) -> list[Path]:
    from workbench.reports.findings import markdown

    results = _read_all_runs(options.runs, options.database, WITH_FINDING)
    text = markdown([(k.run, k.outcomes, k.findings) for k in results])
    place = _place([k.run for k in results], "FINDINGS.md")
    return _write_with_document(options, options.out or place, text, results)


def _refuse_options(options: ReportOptions) -> None:
    """Raise ReportError for options that only the roofline has."""
    for name in ("kernel", "device", "everything", "csv", "figure"):
        if getattr(options, name):
            option = "--all" if name == "everything" else f"--{name}"
            raise ReportError(
                f"{option} is an option of the roofline; leave it out of `report {options.name}`."
            )


def _place(runs: Sequence[Run], name: str) -> Path:
    """Return the path of a report: in the folder of its run, if it is of one alone."""
    return (
        folder_of(Path("results"), runs[0].id) / name if len(runs) == 1 else Path("results", name)
    )


def _also(page: Callable[..., str], result: RunResult) -> dict[str, object]:
    """Return what a page takes beside a run and its outcomes."""
    names = "comparisons", "findings", "profiles", "state"
    fields = {name: getattr(result, name) for name in names} | {"seconds": result.seconds or None}
    return {name: fields[name] for name in signature(page).parameters if name in fields}


def _refuse_another(report: str, result: RunResult, names: list[str]) -> None:
    """Raise ReportError where this report does not draw the run."""
    if _draws(report, result):
        return
    run, drawn = result.run, next((name for name in names if _draws(name, result)), None)
    then = f"draw it with `workbench report {drawn} {run.id}`" if drawn else "no report draws it"
    raise ReportError(
        f"the report {report} does not draw {run.id}, a run of `{run.engine}`; {then}."
    )


def _draws(report: str, kept: RunResult) -> bool:
    """Return whether a report draws a run: by its kind, and if that is `times` by its engine. What
    was timed of a run by machine code is a comparison."""
    module, run = import_module(f"workbench.reports.{report}"), kept.run
    if report == "compare" and run.kind == "code":
        return any(c.by == "time" for c in kept.comparisons)
    if (kind := getattr(module, "KIND", "times")) != "times" or run.kind != "times":
        return run.kind == kind
    return run.engine in getattr(module, "ENGINES", (report,))


# Reading runs


def _is_file(which: str) -> bool:
    return which.endswith(".jsonl") or Path(which).is_file()


def _read_runs(which: str, database: str | None, kind: RunKind) -> list[RunResult]:
    """Return the run of the database that this names, or all runs of an events file in order."""
    if _is_file(which):
        return _file_runs(Path(which))
    return [stored_run(which, database, kind)]


def stored_run(which: str, database: str | None, kind: RunKind = ANY_RUN) -> RunResult:
    """Return the run of the database with this id, or the last one of a kind in this project.
    Raises HistoryError where there is none."""
    with stored_runs(database) as history:
        if which != LAST:
            return _history_run(history, history.run(which))
        return _history_run(history, last_run(history, kind))


def _read_all_runs(runs: Sequence[str], database: str | None, kind: RunKind) -> list[RunResult]:
    """Return what all of these name, or the last run of the kind if none is named."""
    return [each for which in runs or [LAST] for each in _read_runs(which, database, kind)]


def _comparison_result(history: History, run: Run) -> RunResult:
    """Return a run with its comparisons only, of those by machine code."""
    return RunResult(run, (), history.comparisons(run.id) if run.kind == "code" else ())


def _history_run(history: History, run: Run) -> RunResult:
    return RunResult(
        run,
        history.outcomes(run.id),
        history.comparisons(run.id),
        history.findings(run.id),
        history.profiles(run.id),
        state=history.state(run.id),
    )


def _file_runs(path: Path) -> list[RunResult]:
    """Return the runs of an events file, from its good lines."""
    result = read(path)
    runs = [e for e in result.events if isinstance(e, Run)]
    if not runs:
        bad = f" ({_lines(len(result.bad))} unreadable)" if result.bad else ""
        raise ReportError(f"{path} holds no run{bad}; name an events file that a run wrote.")
    if result.bad:  # the report lacks them, so the user is told
        text = f"in {path} {_lines(len(result.bad))} unreadable and left out"
        note(f"{text}, the first is line {result.bad[0].number}")
    results = []
    for run in {run.id: run for run in runs}.values():
        own = [e for e in result.events if not isinstance(e, Run) and e.run == run.id]
        ends = [e for e in own if isinstance(e, RunFinished)]
        outcomes = [e for e in own if isinstance(e, (Record, Failure))]
        comparisons = [e for e in own if isinstance(e, Comparison)]
        findings = [e for e in own if isinstance(e, Finding)]
        profiles = [e for e in own if isinstance(e, Profile)]
        one = RunResult(run, outcomes, comparisons, findings, profiles)
        for end in ends[-1:]:
            one = replace(one, state=end.state, seconds=end.seconds)
        results.append(one)
    return results


def _lines(count: int) -> str:
    return f"{count} line{'s are' if count != 1 else ' is'}"


def _search(history: History, kernel: str | None, device: str | None) -> list[Run]:
    """Return all runs of a kernel, a device, or both; of those by machine code what was timed.
    Raises ReportError where there is none."""
    mine = []
    for run in history.runs(limit=_ALL):
        if run.versions is not None:
            run = _history_run(history, run).timed_part().run
        kernels = None, *run.kernel.split(", ")
        if run.kind != "code" and kernel in kernels and device in (None, run.device):
            mine.append(run)
    if not mine:
        what = " on ".join(filter(None, (kernel or "any kernel", device)))
        message = f"the database holds no run of {what}; `workbench history` lists what it holds."
        raise ReportError(message)
    return mine


def _outcomes(result: RunResult, kernel: str | None) -> Sequence[Outcome]:
    """Return the outcomes of this kernel; all of an experiment, whose variants count."""
    if kernel is None or result.run.engine == "experiment":
        return result.outcomes
    return [o for o in result.outcomes if o.case.kernel == kernel]


def _ceilings(devices: Mapping[str, None], database: str | None, files: bool = False) -> list[Run]:
    """Return the newest complete run of `ceilings` of each device. Events files need no database:
    without a named one, the default is used only if it exists."""
    if files and database is None and not _default_exists():
        return []
    results = []
    with stored_runs(database) as history:
        for device in devices:
            runs = history.runs(engine="ceilings", device=device, limit=20)
            measured = (r for r in runs if not r.predicted)
            results += [r for r in measured if history.state(r.id) == "complete"][:1]
    return results


def _default_exists() -> bool:
    from sqlalchemy.engine import make_url

    return Path(make_url(default_url()).database or "").is_file()
