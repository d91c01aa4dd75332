"""Pages of sweeps of several sizes, drawn by another process while the next size is measured.

A page takes one to two seconds, in which the GPU would wait; on a host of two GPUs both would, as
one process draws for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from workbench.backend.workers import LOST, Solo
from workbench.data.record import Finding, Outcome, Run
from workbench.reports.run_index import write_run_page


def page_of(
    run: Run,
    outcomes: Sequence[Outcome],
    seconds: Mapping[str, float] | None,
    findings: Sequence[Finding],
) -> str:
    """Return the page of a sweep as HTML."""
    from workbench.reports.sweep import page

    return page(run, outcomes, seconds, findings=findings)


@dataclass
class Pages:
    """Pages that are under way. `finish` writes them; without it they are not written."""

    _process: Solo = field(default_factory=Solo)
    _begun: list[tuple[Path, tuple[Any, ...], Future[Any]]] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)  # sizes on several GPUs end in several threads

    def begin(
        self,
        folder: Path,
        run: Run,
        outcomes: Sequence[Outcome],
        seconds: Mapping[str, float] | None,
        findings: Sequence[Finding],
    ) -> Path:
        """Begin to draw the page of a run. Returns the path that `finish` writes it to."""
        what = run, list(outcomes), seconds, list(findings)
        with self._lock:
            self._begun.append((folder, what, self._process.promise(page_of, *what)))
        return folder / "report.html"

    def finish(self) -> None:
        """Write all pages that were begun, and end the process. A page that cannot be drawn raises
        its error once the others are written. Nothing more may be begun."""
        errors: list[Exception] = []
        begun, self._begun = self._begun, []
        for folder, what, drawn in begun:
            try:
                write_run_page(folder, self._drawn(what, drawn))
            except Exception as error:
                errors.append(error)
        self._process.end()
        if errors:
            raise errors[0]

    def _drawn(self, what: tuple[Any, ...], drawn: Future[Any]) -> str:
        """Return a page; one whose process was lost is drawn here."""
        try:
            html: str = self._process.kept(drawn)
        except LOST:
            html = page_of(*what)
        return html
