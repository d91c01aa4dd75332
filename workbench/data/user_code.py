"""Run the user's own functions so that neither their exits nor their loops end or hang a command.

A command runs in a child of the process that the user started (`backend/supervisor.py`). Sections
that run the user's code are marked in memory that both share, each with a time limit; the parent
ends a child that outlasts one, and says which code it was.
"""

import math
import mmap
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from workbench.data.interrupts import CtrlC

LIMIT_S = 60.0  # of an import, or of one call of `refuse`, `resolve`, `work` or `flops`
THREADS = 16  # that can run the user's code at once; later ones are not watched
# the deadline on the monotonic clock, 0 if none; the limit in seconds; the words
_SLOT = struct.Struct("dd200p")

_CLOCK = {name: getattr(time, name) for name in ("monotonic", "perf_counter", "sleep", "time")}


class UserCodeExit(Exception):
    """The user's code raised an exception that is meant to end a process, or that has no text, or
    it replaced the clock."""


@dataclass(frozen=True)
class Mark:
    """Code of the user that runs now. Times are seconds of the monotonic clock; infinity stands for
    a program of the user's, whose end and whose signals are its own."""

    what: str = ""
    limit_s: float = 0.0
    deadline: float = 0.0  # 0: nothing runs

    @property
    def began_s(self) -> float:
        """When it began."""
        return self.deadline - self.limit_s

    @property
    def is_program(self) -> bool:
        """Whether it is a program that the command waits for."""
        return self.deadline == math.inf


class Marks:
    """The user's code that a command is running now, in memory that a forked process shares."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _SLOT.size * THREADS)
        self._threads: dict[int, int] = {}
        self._lock = threading.Lock()

    def set(self, mark: Mark) -> Mark:
        """Set the mark of this thread. Returns the one before."""
        slot = self._slot()
        if slot is None:
            return Mark()
        before = self._read(slot)
        words = mark.what.encode("utf-8", "replace")[:199]
        _SLOT.pack_into(self._memory, slot * _SLOT.size, mark.deadline, mark.limit_s, words)
        return before

    def running(self) -> list[Mark]:
        """Return the marks of the code that runs now."""
        return [mark for slot in range(THREADS) if (mark := self._read(slot)).deadline]

    def _read(self, slot: int) -> Mark:
        deadline, limit_s, words = _SLOT.unpack_from(self._memory, slot * _SLOT.size)
        return Mark(words.decode("utf-8", "replace"), limit_s, deadline)

    def _slot(self) -> int | None:
        with self._lock:
            slot = self._threads.setdefault(threading.get_ident(), len(self._threads))
        return slot if slot < THREADS else None


_marks: Marks | None = None  # None outside a supervised command


def watch(marks: Marks) -> None:
    """Mark the user's code in these marks from now on."""
    global _marks
    _marks = marks


class user_code:
    """Context manager for code of the user; `what` names it in messages.

    Raises UserCodeExit where the code raises an exception that would end a process, such as
    SystemExit, or an error whose text cannot be had. In a command, KeyboardInterrupt is one of
    these without Ctrl-C, and the process is ended after `limit_s` seconds.
    """

    def __init__(self, what: str, limit_s: float = LIMIT_S) -> None:
        self._what, self._limit_s = what, limit_s
        self._old_mark: Mark | None = None

    def __enter__(self) -> None:
        if _marks is not None:
            deadline = time.monotonic() + self._limit_s
            self._old_mark = _marks.set(Mark(self._what, self._limit_s, deadline))

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if not isinstance(error, CtrlC):
                _restore_clock()
                if error is not None:
                    _check(error)
        finally:
            if _marks is not None and self._old_mark is not None:
                _marks.set(self._old_mark)


def _restore_clock() -> None:
    """Put back functions of `time` that the code replaced, and raise UserCodeExit: by a clock that
    stands still, processes are waited for without end."""
    replaced = [name for name, own in _CLOCK.items() if getattr(time, name, None) is not own]
    for name in replaced:
        setattr(time, name, _CLOCK[name])
    if replaced:
        raise UserCodeExit(f"it replaced time.{replaced[0]}")


def _check(error: BaseException) -> None:
    """Raise UserCodeExit in place of an exception that would end a process, or has no text."""
    if isinstance(error, SystemExit):
        raise UserCodeExit(f"it called sys.exit({_text(error.code, repr)})") from error
    if isinstance(error, KeyboardInterrupt) and not _marks:
        return
    if not isinstance(error, Exception):
        raise UserCodeExit(f"it raised {type(error).__name__}") from error
    if _text(error, str) is None:
        raise UserCodeExit(f"it raised {type(error).__name__}, which has no text") from None


def _text(value: object, write: Callable[[object], str]) -> str | None:
    """Return a value of the user's as text, or None where that fails or ends the process."""
    try:
        return write(value)[:300]
    except BaseException as error:
        if isinstance(error, CtrlC):
            raise
        return None


@contextmanager
def hide_main() -> Iterator[None]:
    """Return a context manager that keeps new workers from importing the user's script, as they
    would import any parent's: an interpreting worker must set Triton's mode before it is imported,
    and a script may have no guard."""
    main = vars(sys.modules["__main__"])
    before: dict[str, Any] = {n: main[n] for n in ("__file__", "__spec__") if n in main}
    main.pop("__file__", None)
    main["__spec__"] = None
    try:
        yield
    finally:
        main.update(before)
