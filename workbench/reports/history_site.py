"""Draw the site of the history: the matrix of kernels and devices, and a page for each kernel.

Each page is one file with its data in it, so that it opens from a disk. Names from the database are
text everywhere: they are escaped, and those of files are slugs.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from workbench.data.clock import slug
from workbench.data.database import BestTime
from workbench.data.name_table import NameTable
from workbench.data.record import Ratio
from workbench.data.units import amount, duration, rough, span_text, text_of, unit_of
from workbench.device.error_band import devices_words
from workbench.reports import render
from workbench.reports.figures.history import sparkline
from workbench.revisions.change_points import LEAST_POINTS
from workbench.revisions.commits import Between, CommitText
from workbench.revisions.series import CommitName, CommitPoint, HistorySeries, LevelChange

ENGINES: tuple[str, ...] = ()  # it is made by `workbench site` of all runs, and of no single one

WHICH = {"best": "best config", "default": "default config", "library": "library"}
PHASES = {"final": "final benchmark", "first_pass": "first pass", "hot": "hot"}


@dataclass(frozen=True)
class ListedChange:
    """A step of a series with the branches that show it and the commits between."""

    series: HistorySeries
    change: LevelChange
    branches: tuple[str, ...]
    commits: Between


@dataclass
class Site:
    """What the pages show."""

    series: Sequence[HistorySeries]
    changes: Sequence[ListedChange]
    predictions: Sequence[BestTime]  # the newest of problems without a measured time
    branches: Sequence[str]  # the one to show first comes first
    commits: Mapping[str, CommitText] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)  # page of a run, from the site's root
    notes: Sequence[str] = ()  # a sentence each
    date: str = ""  # when, ISO 8601
    command: str = ""

    @property
    def kernels(self) -> list[str]:
        """Names of all kernels, sorted."""
        return sorted({s.key.kernel for s in self.series} | {p.kernel for p in self.predictions})

    @property
    def devices(self) -> list[str]:
        """Names of the devices with measured times, then of those with predictions alone."""
        measured = sorted({s.key.device for s in self.series})
        return measured + sorted({p.device for p in self.predictions} - set(measured))

    @property
    def dtypes(self) -> list[str]:
        """Names of all dtypes, sorted."""
        return sorted({s.key.dtype for s in self.series} | {p.dtype for p in self.predictions})


def file_of(kernel: str) -> str:
    """Return the path of a kernel's page in the site. Two kernels never have the same, also where
    the file system takes upper and lower case for the same."""
    name = slug(kernel)
    if name != kernel or name != name.lower():
        name = f"{name[:150]}-{hashlib.sha256(kernel.encode('utf-8', 'replace')).hexdigest()[:8]}"
    return f"kernels/{name}.html"


def id_of(series: HistorySeries) -> str:
    """Return the series' id in links: eight hex digits of its key, the same in every site."""
    return hashlib.sha256("\0".join(series.key).encode("utf-8", "replace")).hexdigest()[:8]


def index_page(site: Site) -> str:
    """Return the page with the matrix and all changes as HTML."""
    return render(
        "history_site.html.j2",
        site=site,
        rows=_matrix(site),
        changes=[_change_row(site, each, "") for each in _sort_changes(site.changes)],
        measured={s.key.device for s in site.series},
        errors=devices_words((p.device, p.kernel) for p in site.predictions),
        regressions=_count(site, "slower"),
        improvements=_count(site, "faster"),
        data=_script_safe({"branches": list(site.branches)}),
        least=2 * LEAST_POINTS,
    )


def kernel_page(site: Site, kernel: str) -> str:
    """Return the page of one kernel as HTML, with its points as JSON."""
    series = sorted((s for s in site.series if s.key.kernel == kernel), key=_place)
    changes = [c for c in site.changes if c.series.key.kernel == kernel]
    predicted = [p for p in site.predictions if p.kernel == kernel]
    keys = [s.key for s in series]
    return render(
        "history_kernel.html.j2",
        site=site,
        kernel=kernel,
        devices=sorted({k.device for k in keys}),
        dtypes=sorted({k.dtype for k in keys}),
        sizes=sorted({k.sizes for k in keys}),
        impls=sorted({k.impl for k in keys}),
        series=series,
        predicted=[(p, rough(p.time_s)) for p in predicted],
        errors=devices_words((p.device, p.kernel) for p in predicted),
        changes=[_change_row(site, each, "../") for each in _sort_changes(changes)],
        data=_script_safe(_kernel_data(site, series)),
        least=2 * LEAST_POINTS,
    )


def _place(series: HistorySeries) -> tuple[Any, ...]:
    """Return what orders the curves of a page: finals before others, our Impls before libraries."""
    key = series.key
    order = list(PHASES).index(key.phase) if key.phase in PHASES else len(PHASES)
    return order, list(WHICH).index(key.which), key


def _count(site: Site, direction: str) -> int:
    """Return how many changes of the first branch have this direction."""
    main = site.branches[0] if site.branches else ""
    return sum(c.change.direction == direction and main in c.branches for c in site.changes)


# The matrix


def _matrix(site: Site) -> list[dict[str, Any]]:
    """Return the rows, one for each problem; one for each group of branches whose cells differ."""
    by_problem: dict[tuple[str, str, str], dict[str, list[HistorySeries]]] = {}
    for s in site.series:
        if s.key.which == "best" and s.key.regime == "cold":
            kernel, sizes, dtype, device = s.key.problem
            by_problem.setdefault((kernel, dtype, sizes), {}).setdefault(device, []).append(s)
    only = {(p.kernel, p.dtype, p.sizes, p.device): p for p in site.predictions}
    for kernel, dtype, sizes, _ in only:
        by_problem.setdefault((kernel, dtype, sizes), {})
    first = _first_problems(by_problem)
    rows = []
    for problem in sorted(by_problem):
        for branches, cells in _cells(site, by_problem[problem], problem, only).items():
            kernel, dtype, sizes = problem
            rows.append(
                {
                    "kernel": kernel, "dtype": dtype, "sizes": sizes, "file": file_of(kernel),
                    "first": first[kernel, dtype] == sizes, "cells": cells,
                    "branches": " ".join(map(str, branches)),
                }
            )  # fmt: skip
    return rows


def _first_problems(
    by_problem: Mapping[tuple[str, str, str], Mapping[str, Sequence[HistorySeries]]],
) -> dict[tuple[str, str], str]:
    """Return the sizes that stand for each kernel and dtype: those with most points."""
    points: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for (kernel, dtype, sizes), devices in by_problem.items():
        many = sum(len(s.points) for each in devices.values() for s in each)
        points.setdefault((kernel, dtype), []).append((many, sizes))
    return {problem: max(each)[1] for problem, each in points.items()}


def _cells(
    site: Site,
    devices: Mapping[str, Sequence[HistorySeries]],
    problem: tuple[str, str, str],
    only: Mapping[tuple[str, str, str, str], BestTime],
) -> dict[tuple[int, ...], tuple[Any, ...]]:
    """Return the cells of a problem, by the numbers of the branches that have these."""
    grouped: dict[tuple[Any, ...], list[int]] = {}
    for number, branch in enumerate(site.branches):
        cells = []
        for device in site.devices:
            series = _cell_series(devices.get(device, ()), branch)
            predicted = only.get((*problem, device))
            cells.append(
                _cell(series, branch)
                if series
                else _predicted_cell(predicted)
                if predicted
                else None
            )
        if any(cells):
            grouped.setdefault(tuple(cells), []).append(number)
    return {tuple(numbers): cells for cells, numbers in grouped.items()}


def _cell_series(each: Sequence[HistorySeries], branch: str) -> HistorySeries | None:
    """Return the series of a cell: of a final benchmark if there is one, in the newest protocol,
    the Impl that is fastest at its latest commit."""
    there = [s for s in each if branch in s.views]
    if not there:
        return None
    finals = [s for s in there if s.key.phase == "final"] or there
    newest = max(finals, key=lambda s: _latest(s, branch).epoch_s).key
    alike = [s for s in finals if (s.key.protocol, s.key.phase) == (newest.protocol, newest.phase)]
    return min(alike, key=lambda s: _latest(s, branch).time.middle)


def _drawn_places(series: HistorySeries, branch: str) -> list[int]:
    """Return the places of the points of a cell: commits, or changed work trees where that is all
    there is."""
    places = series.views[branch].places
    return [n for n in places if not series.points[n].name.dirty] or list(places)


def _latest(series: HistorySeries, branch: str) -> CommitPoint:
    return series.points[_drawn_places(series, branch)[-1]]


class Cell(NamedTuple):
    """A cell of the matrix, as text; `spark` is SVG. A predicted time has no trend."""

    series: str
    time: str
    words: str
    spark: str = ""
    trend: str = ""
    direction: str = ""
    is_predicted: bool = False


def _cell(series: HistorySeries, branch: str) -> Cell:
    view, latest = series.views[branch], _latest(series, branch)
    words = [series.key.impl]
    if latest.ratio is not None:
        words.append(f"{latest.ratio.middle:.3g}× {series.reference}")
    if series.key.phase != "final":
        words.append(PHASES.get(series.key.phase, series.key.phase))
    if latest.name.dirty:
        words.append("uncommitted changes")
    trend, direction = _trend(series, branch)
    places = {place: n for n, place in enumerate(_drawn_places(series, branch))}
    drawn = sparkline(
        [series.points[n].time.middle for n in places],
        [(places[c.after], c.direction) for c in view.changes],
    )
    return Cell(
        id_of(series), duration(latest.time.middle), ", ".join(words), drawn, trend, direction
    )


def _trend(series: HistorySeries, branch: str) -> tuple[str, str]:
    """Return the newest step in words, and its direction."""
    view = series.views[branch]
    if view.changes:
        change = view.changes[-1]
        at = commit_title(series.points[change.after].name)
        return f"{change_text(change)} at {at}", change.direction
    clean = sum(not series.points[n].name.dirty for n in view.places)
    if clean < 2 * LEAST_POINTS:
        return f"{amount(clean, 'commit')}; a step needs {2 * LEAST_POINTS}", "few"
    return f"no step in {clean} commits", "steady"


def _predicted_cell(predicted: BestTime) -> Cell:
    time = f"~{rough(predicted.time_s)}"
    return Cell("", time, f"{predicted.impl}, predicted", is_predicted=True)


# Changes


def change_text(change: LevelChange) -> str:
    """Return a step in words: `3.1 % slower`; of a library's, how its ratio moved."""
    share = change.ratio.middle
    if change.direction == "library":
        return f"{100 * (share - 1):+.1f} % of the ratio, by the library"
    larger = share if share > 1 else 1 / share
    way = "slower" if share > 1 else "faster"
    text = f"{100 * (larger - 1):.1f} % {way}"
    if change.direction == "episode":
        return f"{text} for {change.commits} commits (a short episode, not a step)"
    if change.direction == "drift":
        return f"{text} over {change.commits} commits (a drift: no single commit)"
    return text


def commit_title(name: CommitName) -> str:
    """Return a commit in short: `3f2a9c1d`, with `+` where the work tree had changes; a run's id
    where there was no commit."""
    return f"{name.text[:8]}{'+' if name.dirty else ''}" if name.is_known else name.text


def _sort_changes(changes: Iterable[ListedChange]) -> list[ListedChange]:
    """Return regressions first, the newest before the others."""
    order = ("slower", "drift", "library", "faster", "episode")
    return sorted(
        changes,
        key=lambda c: (order.index(c.change.direction), -c.series.points[c.change.after].epoch_s),
    )


def _change_row(site: Site, listed: ListedChange, root: str) -> dict[str, Any]:
    series, change = listed.series, listed.change
    before, after = series.points[change.before], series.points[change.after]
    numbers = {name: n for n, name in enumerate(site.branches)}
    return {
        "key": series.key, "file": root + file_of(series.key.kernel), "series": id_of(series),
        "title": series_title(series), "direction": change.direction,
        "text": change_text(change), "span": _span(change),
        "before": _commit(site, before), "after": _commit(site, after),
        "old": _level(change.old, change.old), "new": _level(change.new, change.old),
        "sought": f"ratio to {series.reference}" if series.sought_in == "ratio" else "time",
        "p": f"{change.p:.1g}", "differences": change.differences, "between": listed.commits,
        "branches": " ".join(str(numbers[b]) for b in listed.branches if b in numbers),
        "runs": [(run, root + site.links[run] if run in site.links else "")
                 for run in (*before.runs[-2:], *after.runs[-2:])],
    }  # fmt: skip


def _span(change: LevelChange) -> str:
    """Return the interval of a step in percent, of the same sign as its text."""
    low, high = change.ratio.low, change.ratio.high
    if change.ratio.middle < 1 and change.direction != "library":
        low, high = 1 / high, 1 / low
    return f"{100 * (low - 1):.1f} to {100 * (high - 1):.1f} %"


def _level(level: Ratio, unit: Ratio) -> str:
    scale, symbol = unit_of(unit.middle)
    return f"{text_of(level.middle, scale)} {symbol} ({span_text(level.low, level.high, scale)})"


def _commit(site: Site, point: CommitPoint) -> dict[str, str]:
    commit = site.commits.get(point.name.text)
    return {
        "title": commit_title(point.name),
        "date": commit.date if commit else "",
        "subject": commit.subject if commit else "",
    }


def series_title(series: HistorySeries) -> str:
    """Return how the times of a series were taken: `tiles, best config; final benchmark, cold`."""
    key = series.key
    which = WHICH[key.which]
    how = [PHASES.get(key.phase, key.phase)] + ([] if key.phase == "hot" else [key.regime])
    return f"{key.impl}, {which}; {', '.join(how)}"


# Data of a kernel's page


def _kernel_data(site: Site, series: Sequence[HistorySeries]) -> dict[str, Any]:
    """Return the points as lists of numbers; names are places in lists of texts."""
    commits, runs, configs = NameTable(), NameTable(), NameTable()
    drawn = [_series_data(site, s, commits, runs, configs) for s in series]
    texts = {name: site.commits.get(name) for name in commits.entries}
    return {
        "branches": list(site.branches),
        "commits": [[n, t.date if t else "", t.subject if t else ""] for n, t in texts.items()],
        "runs": [
            [run, f"../{site.links[run]}" if run in site.links else ""] for run in runs.entries
        ],
        "configs": configs.entries,
        "series": drawn,
    }


def _series_data(
    site: Site, series: HistorySeries, commits: NameTable, runs: NameTable, configs: NameTable
) -> dict[str, Any]:
    key = series.key
    points = [
        [
            commits[p.name.text], 2 * (not p.name.is_known) + p.name.dirty, *_numbers(p.time),
            *(_numbers(p.ratio) if p.ratio else (None, None, None)),
            [runs[run] for run in p.runs], configs[p.config],
        ]
        for p in series.points
    ]  # fmt: skip
    everything = tuple(range(len(points)))
    views = {}
    for number, branch in enumerate(site.branches):
        if (view := series.views.get(branch)) is not None:
            places = None if view.places == everything else list(view.places)
            views[number] = [places, [_change_data(c) for c in view.changes]]
    return {
        "id": id_of(series), "device": key.device, "dtype": key.dtype, "sizes": key.sizes,
        "impl": key.impl, "which": key.which, "title": series_title(series),
        "how": f"{key.state} clock, method {key.method}, protocol {key.protocol}",
        "reference": series.reference, "sought": series.sought_in, "points": points, "views": views,
    }  # fmt: skip


def _change_data(change: LevelChange) -> list[Any]:
    return [change.before, change.after, change.direction, change_text(change), _span(change)]


def _numbers(value: Ratio) -> list[float]:
    return [float(f"{v:.6g}") for v in (value.middle, value.low, value.high)]


def _script_safe(value: Any) -> Any:
    """Return JSON that cannot end the script element that holds it."""
    from markupsafe import Markup

    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)
