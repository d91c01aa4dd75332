"""Defer Ctrl-C during atomic writes, and end by other signals as by Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

from workbench.data.exits import INTERRUPTED, stopped_by


class CtrlC(KeyboardInterrupt):
    """A KeyboardInterrupt that a signal caused, and not the user's code. `raised` is true once
    there was one in this process."""

    raised = False

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        CtrlC.raised = True


def ctrl_c(number: int, frame: FrameType | None) -> None:
    """Raise CtrlC. A handler for SIGINT, in place of Python's own."""
    raise CtrlC


class Interrupts:
    """Let Ctrl-C raise KeyboardInterrupt as usual inside the `with` block, except inside `later()`,
    where it is deferred to the end.

    Nothing changes outside the main thread, or where Ctrl-C is ignored or handled by another.
    """

    def __init__(self) -> None:
        self._held = self._pending = False
        self._before: Any = None

    def __enter__(self) -> Self:
        if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, ctrl_c):
            try:
                self._before = signal.signal(signal.SIGINT, self._hit)
            except ValueError:  # not the main thread, which alone is interrupted
                self._before = None
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _hit(self, number: int, frame: FrameType | None) -> None:
        self._pending = self._held
        if not self._held:
            raise CtrlC

    @contextmanager
    def later(self) -> Iterator[None]:
        """Return a context manager that defers Ctrl-C until its block has ended. Raises
        KeyboardInterrupt there if one was deferred."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self._pending:
            self._pending = False
            raise CtrlC


class Stops:
    """Let SIGTERM and SIGHUP act as Ctrl-C inside the `with` block, so that what cleans up after
    Ctrl-C does so after them. A signal that is ignored (`nohup`) or handled by another stays so."""

    def __init__(self) -> None:
        self._number: int | None = None
        self._before: dict[int, Any] = {}

    @property
    def exit_code(self) -> int:
        """Exit code of a command that was stopped: by the signal that came first, or by Ctrl-C."""
        return INTERRUPTED if self._number is None else stopped_by(self._number)

    def __enter__(self) -> Self:
        for name in ("SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is None or signal.getsignal(number) is not signal.SIG_DFL:
                continue
            try:
                self._before[number] = signal.signal(number, self._hit)
            except ValueError:  # not the main thread
                return self
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _hit(self, number: int, frame: FrameType | None) -> None:
        self._number = self._number or number
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler):  # ignored, as in the background of a script
            raise CtrlC
        handler(signal.SIGINT, frame)
