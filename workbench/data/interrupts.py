"""Let a stop, which is Ctrl-C or another signal, interrupt a command once, and never while it
writes to the stores, takes a lock or imports."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, ClassVar, NoReturn

from workbench.data.exits import INTERRUPTED, stopped_by

STOPS = ("SIGINT", "SIGTERM", "SIGHUP")  # SIGHUP is missing on Windows
ENDING_S = 20.0  # from a signal to the end of the stop that it began
LOCKED_S = 1.0  # for a lock that is being taken or given back
IMPORT_S = 10.0  # for an import; torch's takes 1 to 5 s
RETRY_S = 0.01
# Functions of Python that take a lock, or give one back (`threading.Condition`, `logging.Handler`,
# the import's own). An exception at their first or last instruction leaves it locked for ever.
LOCKING = frozenset(
    ["__enter__", "__exit__", "acquire", "release", "_acquire_restore", "_release_save"]
)
# An exception inside an import may be lost, or end the process: torch's C++ drops one of numpy's
# import, and aborts at one that comes in the import of `torch.distributed`.
IMPORTING = "_find_and_load"  # of importlib._bootstrap


class CtrlC(KeyboardInterrupt):
    """A KeyboardInterrupt that a signal caused, and not the user's code."""


class Interrupts:
    """Let the first of some signals raise CtrlC in the main thread inside the `with` block. It is
    deferred to the end of `later()`, of an import, and of a function that takes or gives back a
    lock. Later signals do nothing until the block has ended: they would interrupt what stores, and
    deadlock with a lock that this thread holds. One that comes after ENDING_S interrupts again.

    Inside another such block, which is returned instead, a new one changes nothing; nor does one
    outside the main thread. A signal that is ignored (`nohup`) or handled by another stays so.
    """

    _current: ClassVar[Interrupts | None] = None

    def __init__(self, names: Sequence[str] = ("SIGINT",)) -> None:
        self._names = names
        self.number: int | None = None  # the first signal
        self._began_s = 0.0  # when it came
        self._is_due = self._is_over = False  # an exception is due; none is raised any more
        self._hold_count = 0  # blocks of `later`
        self._imports = 0  # that were under way when the block began
        self._old_handlers: dict[int, Any] = {}

    @property
    def exit_code(self) -> int:
        """Exit code of a command that was stopped: by the signal that came first, or by Ctrl-C."""
        return INTERRUPTED if self.number is None else stopped_by(self.number)

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is not threading.main_thread():
            return self
        if Interrupts._current is not None:
            return Interrupts._current
        Interrupts._current = self
        self._imports = _imports(sys._getframe())
        for name in self._names:
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) in _DEFAULTS:
                self._old_handlers[number] = signal.signal(number, self._hit)
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._old_handlers.items():
            signal.signal(number, before)
        if Interrupts._current is self:
            Interrupts._current = None

    def end(self) -> None:
        """Let no signal interrupt the rest of the block."""
        self._is_over = True

    @contextmanager
    def later(self) -> Iterator[None]:
        """Return a context manager that defers a stop until its block has ended. Raises
        KeyboardInterrupt there if one was deferred."""
        self._hold_count += 1
        try:
            yield
        finally:
            self._hold_count -= 1
        self._raise_due(None)

    def repeat(self, after_s: float) -> None:
        """Interrupt once more, where Python drops an exception: in a `__del__` or a callback."""
        self._is_due = True
        self._send(after_s)

    def begin(self, number: int) -> None:
        """Let this signal be the one that stops, unless there was one."""
        self.number, self._began_s = self.number or number, time.monotonic()

    def _hit(self, number: int, frame: FrameType | None) -> None:
        if self.number is None or time.monotonic() - self._began_s > ENDING_S:
            self.begin(number)
            self._is_due = True
        self._raise_due(frame)

    def _raise_due(self, frame: FrameType | None) -> None:
        if not self._is_due or self._hold_count or self._is_over:
            return
        if frame is not None and time.monotonic() - self._began_s < self._patience_s(frame):
            self._send(RETRY_S)
            return
        self._is_due = False
        raise CtrlC

    def _patience_s(self, frame: FrameType) -> float:
        """Return for how long an exception in this frame waits, in seconds from the signal."""
        if _imports(frame) > self._imports:
            return IMPORT_S
        return LOCKED_S if frame.f_code.co_name in LOCKING else 0.0

    def _send(self, after_s: float) -> None:
        """Send this process the signal of the stop again. By a bare thread: the locks of
        `threading` may be held."""

        def send() -> None:
            time.sleep(after_s)
            if Interrupts._current is self and self.number is not None:
                os.kill(os.getpid(), self.number)

        _thread.start_new_thread(send, ())


def _imports(frame: FrameType | None) -> int:
    """Return how many imports are under way in a frame and its callers."""
    count = 0
    while frame is not None:
        count += frame.f_code.co_name == IMPORTING
        frame = frame.f_back
    return count


_DEFAULTS = (signal.SIG_DFL, signal.default_int_handler)


def repeat_stop(after_s: float) -> None:
    """Interrupt the command of this process once more; see `Interrupts.repeat`."""
    if Interrupts._current is not None:
        Interrupts._current.repeat(after_s)


def stop_by(number: int) -> NoReturn:
    """Stop the command by a signal that a program of it took. Raises CtrlC."""
    if Interrupts._current is not None:
        Interrupts._current.begin(number)
    raise CtrlC
