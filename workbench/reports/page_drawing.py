"""Pages of sweeps of several sizes, drawn by another process while the next size is measured.

A page takes one to two seconds, in which the GPU would wait; on a host of two GPUs both would, as
one process draws for both.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from workbench.backend.workers import LOST, Solo
from workbench.data.record import Finding, Outcome, Run
from workbench.reports import DRAWING
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


PAGE_S = 120.0  # a page of a thousand configs takes two


class PageDrawing:
    """Pages that are under way. `finish` waits for them."""

    def __init__(self) -> None:
        """Start the process."""
        self._process = Solo()
        # one at a time, by a thread that waits: a result that nobody reads blocks its process
        self._thread = ThreadPoolExecutor(1)
        self._begun: list[Future[None]] = []

    def begin(
        self,
        folder: Path,
        run: Run,
        outcomes: Sequence[Outcome],
        seconds: Mapping[str, float] | None,
        findings: Sequence[Finding],
    ) -> Path:
        """Begin to draw and write the page of a run. Returns its path."""
        what = run, list(outcomes), seconds, list(findings)
        self._begun.append(self._thread.submit(self._write, folder, what))
        return folder / "report.html"

    def finish(self) -> None:
        """Wait until all pages that were begun are written, and end the process. Raises the first
        error of a page once the others are written. Nothing more may be begun."""
        self._thread.shutdown()
        self._process.end()
        begun, self._begun = self._begun, []
        for page in begun:
            page.result()

    def _write(self, folder: Path, what: tuple[Any, ...]) -> None:
        """Write a page; one whose process is lost is drawn here."""
        try:
            html: str = self._process.ask(page_of, *what, timeout_s=PAGE_S)
        except LOST:
            with DRAWING:
                html = page_of(*what)
        write_run_page(folder, html)
