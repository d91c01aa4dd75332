"""Run the user's own functions so that neither their exits nor their loops end or hang a command.

A command runs in a child of the process that the user started (`commands/supervisor.py`). Sections
that run the user's code are marked in memory that both share, each with a time limit; the parent
ends a child that outlasts one, and says which code it was.
"""

from __future__ import annotations

import mmap
import struct
import threading
import time

from workbench import spec
from workbench.data.interrupts import CtrlC

LIMIT_S = 60.0  # of an import, or of one call of `refuse`, `resolve`, `work` or `flops`
THREADS = 16  # that can run the user's code at once; later ones are not watched
_SLOT = struct.Struct("d200p")  # the deadline on the monotonic clock, 0 if none; the words


class UserCodeExit(Exception):
    """The user's code raised an exception that is meant to end a process."""


class Marks:
    """The user's code that a command is running now, in memory that a forked process shares."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _SLOT.size * THREADS)
        self._threads: dict[int, int] = {}
        self._lock = threading.Lock()

    def set(self, what: str, deadline: float) -> tuple[str, float]:
        """Mark that this thread runs `what` until `deadline`, in seconds of the monotonic clock; 0
        ends the mark. Returns the mark before."""
        slot = self._slot()
        if slot is None:
            return "", 0.0
        before, words = _SLOT.unpack_from(self._memory, slot)
        _SLOT.pack_into(self._memory, slot, deadline, what.encode("utf-8", "replace")[:199])
        return words.decode("utf-8", "replace"), before

    def running(self) -> list[tuple[str, float]]:
        """Return the code that runs now, with the deadline of each."""
        slots = (_SLOT.unpack_from(self._memory, _SLOT.size * n) for n in range(THREADS))
        return [(words.decode("utf-8", "replace"), end) for end, words in slots if end]

    def _slot(self) -> int | None:
        me = threading.get_ident()
        with self._lock:
            number = self._threads.setdefault(me, len(self._threads))
        return number * _SLOT.size if number < THREADS else None


_marks: Marks | None = None  # None outside a supervised command


def watch(marks: Marks) -> None:
    """Mark the user's code in these marks from now on."""
    global _marks
    _marks = marks
    spec.watched = user_code


class user_code:
    """Context manager for code of the user; `what` names it in messages.

    Raises UserCodeExit where the code raises SystemExit, GeneratorExit or, without Ctrl-C,
    KeyboardInterrupt. In a command, the process is ended after `limit_s` seconds.
    """

    def __init__(self, what: str, limit_s: float = LIMIT_S) -> None:
        self._what, self._limit_s = what, limit_s
        self._before: tuple[str, float] | None = None

    def __enter__(self) -> None:
        if _marks is not None:
            self._before = _marks.set(self._what, time.monotonic() + self._limit_s)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if _marks is not None and self._before is not None:
            _marks.set(*self._before)
        if isinstance(error, SystemExit):
            raise UserCodeExit(f"it called sys.exit({error.code!r})") from error
        if isinstance(error, GeneratorExit):
            raise UserCodeExit("it raised GeneratorExit") from error
        if isinstance(error, KeyboardInterrupt) and not isinstance(error, CtrlC) and _marks:
            raise UserCodeExit("it raised KeyboardInterrupt") from error
