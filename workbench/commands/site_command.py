"""Write the history as a folder of pages."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import workbench
from workbench import catalog
from workbench.commands.console import doing, say_result
from workbench.commands.result import write_result
from workbench.commands.stored import damage_text, stored_runs
from workbench.data.clock import folder_of, timestamp
from workbench.data.database import BestTime, History, RunFacts
from workbench.data.exits import PASSED
from workbench.data.files import reason_of
from workbench.data.interrupts import Interrupts
from workbench.data.temporary import temporary_folder
from workbench.data.units import amount
from workbench.reports.history_site import ListedChange, Site, file_of, index_page, kernel_page
from workbench.revisions.change_points import require_ruptures
from workbench.revisions.commits import Between, Commits, repository_at
from workbench.revisions.series import EVERYTHING, Collected, HistorySeries, LevelChange, add_views
from workbench.revisions.worktree import Repository
from workbench.spec import WorkbenchError

if TYPE_CHECKING:
    from rich.console import Console

    from workbench.commands.site import SiteOptions


MARKER = ".workbench-site"  # a file that tells a folder of ours from any other
PREFIX = ".workbench-site-"  # of the folder beside OUT in which the pages are written
PHASES = ("final", "hot")  # a first pass is read only where a problem has no final


class SiteError(WorkbenchError):
    """The site cannot be written; one sentence says why and what to do."""


@dataclass
class SiteCommand:
    """One site, from the database to the folder."""

    options: SiteOptions
    console: Console
    notes: list[str] = field(default_factory=list)

    def go(self) -> int:
        """Write the site. Returns the exit code. Raises SiteError where OUT is not a folder of ours
        or cannot be written, SiteMissing without ruptures, and HistoryError."""
        options = self.options
        out = options.out.absolute()
        check_place(out)
        require_ruptures()
        with stored_runs(options.database) as history:
            with doing(self.console, "reading the history"):
                runs = history.run_facts()
                collected = _collect(history, runs)
                predicted = _predicted_times(history, runs, collected)
            repository = repository_at(options.repository or Path.cwd())
            measured = {r.environment.commit for r in runs.values() if r.environment.commit}
            commits = Commits.read(repository, measured)
            with doing(self.console, "looking for steps"):
                series = collected.series(commits.order)
                for each in series:
                    add_views(each, commits.order)
            with doing(self.console, "reading what changed"):
                changes = list(self._changes(history, series, commits))
            self._note(history, collected, series, commits)
        site = Site(
            series,
            changes,
            predicted,
            _branches_of(series, commits.main),
            commits.texts,
            self._links(series, out),
            self.notes,
            timestamp(),
            options.command,
        )
        with doing(self.console, "writing the pages"):
            write_folder(out, _pages(site))
        return self._conclude(site, out)

    def _changes(
        self, history: History, series: Sequence[HistorySeries], commits: Commits
    ) -> Iterator[ListedChange]:
        """Yield each step once, with all branches that show it."""
        files: dict[str, str] = {}
        for each in series:
            branches: dict[LevelChange, list[str]] = {}
            for branch, view in each.views.items():
                for change in view.changes:
                    branches.setdefault(change, []).append(branch)
            for change, names in branches.items():
                before, after = each.points[change.before], each.points[change.after]
                newest = after.runs[-1]
                if newest not in files:
                    files[newest] = _kernel_file(history, newest, commits.repository)
                between = Between()
                if before.name.is_known and after.name.is_known:
                    between = commits.interval(before.name.text, after.name.text, files[newest])
                yield ListedChange(each, change, tuple(names), between)

    def _note(
        self,
        history: History,
        collected: Collected,
        series: Sequence[HistorySeries],
        commits: Commits,
    ) -> None:
        """Collect the sentences on what is not shown."""
        add = self.notes.append
        if commits.repository is None:
            add(
                "No repository was read, so points are in the order of their times and there is "
                "no filter of branches: run it inside the repository, or name it by --repository."
            )
        elif not commits.order.places:
            add("The repository holds none of the measured commits, so points are in the order of "
                "their times and there is no filter of branches.")  # fmt: skip
        if commits.left_out:
            add(f"{commits.left_out} branches with older commits were not read.")
        if collected.taken_over:
            add(f"{amount(collected.taken_over, 'time')} that runs took over from earlier ones "
                "are counted once, in the run that measured them.")  # fmt: skip
        dirty = sum(point.name.dirty for each in series for point in each.points)
        if dirty:
            be = "is" if dirty == 1 else "are"
            add(f"{amount(dirty, 'point')} {be} of work trees with uncommitted changes.")
        if history.damaged:
            text = damage_text(history)
            add(f"{text[:1].upper()}{text[1:]}.")

    def _links(self, series: Sequence[HistorySeries], out: Path) -> dict[str, str]:
        """Return the pages of the runs that exist, as links from the site's folder."""
        from urllib.parse import quote

        results = self.options.results
        links = {}
        for name in {run for each in series for point in each.points for run in point.runs}:
            page = folder_of(results, name) / "report.html"
            if page.is_file():
                links[name] = quote(os.path.relpath(page.absolute(), out))
        return links

    def _conclude(self, site: Site, out: Path) -> int:
        main = site.branches[0] if site.branches else ""
        shown = [c for c in site.changes if main in c.branches]
        slower = sum(c.change.direction == "slower" for c in shown)
        faster = sum(c.change.direction == "faster" for c in shown)
        on = f" on {main}" if main else ""
        self.console.print(
            f"{amount(len(site.kernels), 'kernel')}, {len(site.series)} series"
            f"{on}: {amount(slower, 'regression')}, {amount(faster, 'improvement')}"
        )
        for text in self.notes:
            self.console.print(text, soft_wrap=True)
        say_result(self.console, f"site  {out / 'index.html'}")
        return write_result(
            self.options,
            "site",
            PASSED,
            page=str(out / "index.html"),
            kernels=len(site.kernels),
            series=len(site.series),
            changes=[_plain(c) for c in site.changes],
            notes=self.notes,
        )


def _plain(listed: ListedChange) -> dict[str, object]:
    change, points = listed.change, listed.series.points
    return {
        **listed.series.key._asdict(),
        "branches": list(listed.branches),
        "before": points[change.before].name.text,
        "after": points[change.after].name.text,
        "direction": change.direction,
        "ratio": change.ratio.middle,
        "low": change.ratio.low,
        "high": change.ratio.high,
        "p": change.p,
        "sought_in": listed.series.sought_in,
        "old_s": change.old.middle,
        "new_s": change.new.middle,
        "differences": list(change.differences),
    }


# Reading


def _collect(history: History, runs: dict[str, RunFacts]) -> Collected:
    """Return all final and hot times, and the best of each first pass where there is no final."""
    collected = Collected(runs)
    for record in history.timed_records(PHASES):
        collected.add(record)
    rows = [
        row.id
        for row in history.best_times("first_pass")
        if not collected.has_final(row.kernel, row.sizes, row.dtype, row.device)
    ]
    for record in history.timed_by_id(rows):
        collected.add(record)
    return collected


def _predicted_times(
    history: History, runs: dict[str, RunFacts], collected: Collected
) -> list[BestTime]:
    """Return the best prediction of the newest run of each problem without any measured time."""
    measured = collected.problems
    newest: dict[tuple[str, ...], tuple[tuple[float, float], BestTime]] = {}
    for row in history.best_times("predict"):
        problem = (row.kernel, row.sizes, row.dtype, row.device)
        if problem in measured:
            continue
        known = runs.get(row.run)
        order = (known.started_s if known else 0.0, -row.time_s)
        if problem not in newest or order > newest[problem][0]:
            newest[problem] = (order, row)
    return [newest[problem][1] for problem in sorted(newest)]


def _branches_of(series: Sequence[HistorySeries], main: str) -> list[str]:
    """Return the branches of all series, `main` first."""
    names = {branch for each in series for branch in each.views}
    names = names or {EVERYTHING}  # predictions are shown where nothing was measured
    return sorted(names, key=lambda name: (name != main, name != EVERYTHING, name))


def _kernel_file(history: History, run: str, repository: Repository | None) -> str:
    """Return the kernel's file of a run as a path in the repository; empty if that is not known."""
    if repository is None or (stored := history.stored_run(run)) is None:
        return ""
    source = stored.source
    if source in catalog.kernel_names():
        return f"workbench/kernels/{source}.py"
    with suppress(ValueError, OSError, WorkbenchError):
        if source.endswith(".py"):
            return str(repository.relative_path(Path(source)))
    return ""


# Writing


def check_place(out: Path) -> None:
    """Raise SiteError where the folder holds something that `site` did not write."""
    try:
        if not out.exists() and not out.is_symlink():
            return
        ours = out.is_dir() and (not any(out.iterdir()) or (out / MARKER).is_file())
    except OSError as error:
        raise SiteError(
            f"{out} cannot be read ({reason_of(error)}); name another folder."
        ) from None
    if out.is_symlink() or not ours:
        raise SiteError(
            f"{out} holds something that `workbench site` did not write, and would be replaced; "
            "name a new folder."
        )


def write_folder(out: Path, pages: Iterable[tuple[str, str]]) -> None:
    """Write the pages, each with its path in the site, beside the folder, which they then replace
    as a whole. Ctrl-C and errors leave the old folder. Raises SiteError if it cannot write."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with Interrupts() as interrupts, temporary_folder(out.parent, PREFIX) as draft:
            new = draft / "new"
            new.mkdir()
            for name, html in pages:
                file = new / name
                file.parent.mkdir(exist_ok=True)
                file.write_text(html, encoding="utf-8", errors="replace")
            marker = {"command": "workbench site", "version": workbench.__version__}
            (new / MARKER).write_text(json.dumps(marker) + "\n", encoding="utf-8")
            with interrupts.later():
                _swap(new, out, draft / "old")
    except OSError as error:
        raise SiteError(
            f"{out} cannot be written ({reason_of(error)}); name a folder that you may write to."
        ) from None


def _swap(new: Path, out: Path, old: Path) -> None:
    if out.exists():
        check_place(out)  # it may have changed while the pages were written
        out.rename(old)
    try:
        new.rename(out)
    except OSError:
        if old.exists():
            old.rename(out)
        raise


def _pages(site: Site) -> Iterator[tuple[str, str]]:
    yield "index.html", index_page(site)
    for kernel in site.kernels:
        yield file_of(kernel), kernel_page(site, kernel)
