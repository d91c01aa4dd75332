"""One Chromium for each process of a run, and pages that are written once in a run.

The tests of one file run in several processes. Each of them wrote all pages of the file and built
the documentation, a quarter of the seconds of these tests.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import sync_playwright

from workbench.reports import write_page

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
Once = Callable[[str, Callable[[Path], None]], Path]


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One Chromium for all tests of this process."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip("no Chromium on PATH: the pages were not opened")
    with sync_playwright() as run:
        chromium = run.chromium.launch(executable_path=program, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def new_tab(browser: Any) -> Callable[..., Any]:
    """Return `new_tab(width, scheme, **more)`: an empty tab without a network. Tabs of the same
    settings share a context and its window, which is half of the time of opening a page: the
    window's own buttons are pages. No page of ours keeps anything in the browser."""
    contexts: dict[Any, Any] = {}

    def opened(width: int, scheme: str, **more: str) -> Any:
        key = width, scheme, *more.items()
        if key not in contexts:
            contexts[key] = browser.new_context(
                viewport={"width": width, "height": 900}, color_scheme=scheme, **more
            )
            contexts[key].set_offline(True)
            contexts[key].new_page()  # keeps the window, which closes with its last tab
        return contexts[key].new_page()

    return opened


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """Return `once(name, fill)`: the folder `name` of this run, filled by the first process that
    asks for it. Others wait for that one."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # of all processes of the run

    def made(name: str, fill: Callable[[Path], None]) -> Path:
        folder, done = root / name, root / f"{name}.done"
        with (root / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)  # of a process that failed
                folder.mkdir()
                fill(folder)
                done.touch()
        return folder

    return made


class Pages:
    """Paths of pages by their names; each page is written when a test first opens it."""

    def __init__(self, title: str, html: Callable[[str], str], once: Once) -> None:
        self._title, self._html, self._once = title, html, once

    def __getitem__(self, name: str) -> Path:
        def fill(folder: Path) -> None:
            write_page(folder / "page.html", self._html(name))

        return self._once(f"{self._title} {name}", fill) / "page.html"


@pytest.fixture(scope="session")
def pages(once: Once) -> Callable[[str, Callable[[str], str]], Pages]:
    """Return `pages(title, html)`, which returns the pages of a file by their names."""
    return lambda title, html: Pages(title, html, once)
