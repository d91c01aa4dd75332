"""Displays of progress: in a notebook an HTML bar, on a terminal a line."""

from __future__ import annotations

import html
import sys
import time
from typing import Any

from workbench.commands.console import clean
from workbench.commands.progress import Progress

EVERY_S = 0.2  # between two updates of a display


def progress_display(title: str, shows: bool | None) -> Progress | None:
    """Return the display for this place: a bar in a notebook, a line where standard error is a
    terminal, else none. `shows` is False for none, and True for a line also without a terminal.
    """
    if shows is False:
        return None
    if runs_in_notebook():
        return NotebookBar(title)
    return TerminalLine(title) if shows or sys.stderr.isatty() else None


def runs_in_notebook() -> bool:
    """Return whether this code runs in a kernel of Jupyter, whose outputs are HTML."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class NotebookBar:
    """A bar in the output of a notebook's cell, removed at the end."""

    def __init__(self, title: str) -> None:
        self._title, self._last_s = title, 0.0
        self._handle: Any = None

    def show(self, text: str, done: int = 0, total: int = 0) -> None:
        """Draw the bar, at most five times a second."""
        now = time.monotonic()
        if self._handle is not None and now - self._last_s < EVERY_S:
            return
        self._last_s = now
        self._draw(bar_html(self._title, text, done, total))

    def end(self) -> None:
        """Remove the bar."""
        if self._handle is not None:
            self._draw("")

    def _draw(self, text: str) -> None:
        from IPython.display import HTML, display

        if self._handle is None:
            self._handle = display(HTML(text), display_id=True)
        else:
            self._handle.update(HTML(text))


def bar_html(title: str, text: str, done: int, total: int) -> str:
    """Return the bar as HTML; without a total it is of unknown length."""
    value = f'value="{done}" max="{total}"' if total else ""
    count = f"{done}/{total} " if total else ""
    return (
        f'<div style="font: 13px system-ui, sans-serif"><progress {value} '
        f'aria-label="{html.escape(title)}" style="width: 16em; vertical-align: middle">'
        f"</progress> {html.escape(title)}: {count}{html.escape(text)}</div>"
    )


class TerminalLine:
    """A line on standard error: live on a terminal, elsewhere one every ten seconds."""

    PLAIN_S = 10.0

    def __init__(self, title: str) -> None:
        self._title, self._last_s = title, -self.PLAIN_S
        self._live: Any = None

    def show(self, text: str, done: int = 0, total: int = 0) -> None:
        """Show the line."""
        count = f"{done}/{total}  " if total else ""
        line = clean(f"{self._title}  {count}{text}")
        if sys.stderr.isatty():
            from rich.text import Text

            self._status().update(status=Text(line, no_wrap=True, overflow="ellipsis"))
        elif time.monotonic() - self._last_s >= self.PLAIN_S:
            self._last_s = time.monotonic()
            print(line, file=sys.stderr)

    def _status(self) -> Any:
        if self._live is None:
            from rich.console import Console

            self._live = Console(stderr=True).status(self._title)
            self._live.start()
        return self._live

    def end(self) -> None:
        """Remove a live line."""
        if self._live is not None:
            self._live.stop()
            self._live = None
