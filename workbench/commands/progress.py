"""Show the progress of a command: to its caller in Python, or in lines where no terminal is."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol, TextIO


class Progress(Protocol):
    """A display of how far a command is."""

    def show(self, text: str, done: int = 0, total: int = 0) -> None:
        """Show `text`, and a bar of `done` out of `total` steps; without a total no bar."""

    def end(self) -> None:
        """Remove the display."""


@dataclass(frozen=True)
class Redirection:
    """Where a command prints to, and the display of its progress, if there is one."""

    output: TextIO
    progress: Progress | None = None

    def show(self, text: str, done: int = 0, total: int = 0) -> None:
        """Show progress, if it is displayed."""
        if self.progress is not None:
            self.progress.show(text, done, total)


_REDIRECTED: ContextVar[Redirection | None] = ContextVar("redirected", default=None)


def redirection() -> Redirection | None:
    """Return the redirection in force; None on the command line."""
    return _REDIRECTED.get()


@contextmanager
def redirect(output: TextIO, progress: Progress | None) -> Iterator[None]:
    """Return a context manager in which commands print to `output` and show their progress by
    `progress`, which is ended with it."""
    token = _REDIRECTED.set(Redirection(output, progress))
    try:
        yield
    finally:
        _REDIRECTED.reset(token)
        if progress is not None:
            progress.end()


def show_part(text: str, done: int, total: int) -> None:
    """Show that part `done` of `total` begins; the command line prints each part at its end."""
    if (to := redirection()) is not None:
        to.show(text, done, total)


EVERY_S = 5.0  # between two lines
LINE_S = 1.0  # to print one


class ProgressLines:
    """Prints a line of progress every few seconds from a thread of its own, until `end`: where no
    terminal shows a live line, and in the log of a CI job."""

    def __init__(self, line: Callable[[], str], out: Callable[[str], None], every_s: float) -> None:
        self._line, self._out, self._every_s = line, out, every_s
        # A bare lock, which `end` gives back in one step of the interpreter: an Event takes a lock
        # of its own, and a thread that is interrupted while it has that one waits for itself.
        self._until_end = threading.Lock()
        self._until_end.acquire()
        self._is_over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._until_end.acquire(timeout=self._every_s) and not self._is_over:
            self._out(self._line())

    def end(self) -> None:
        """Print no more lines. A line whose reader is stuck is not waited for."""
        if not self._is_over:
            self._is_over = True
            self._until_end.release()
        self._thread.join(LINE_S)
