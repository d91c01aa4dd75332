"""Run a command in a child of this process, which reports how it ended.

The user's own code runs in the child and its workers only. If that code ends its process, never
returns, crashes or takes all memory, this process says so in one sentence and returns 2.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import gettempdir

from workbench.data.exits import COULD_NOT_RUN, INTERNAL, stopped_by
from workbench.data.interrupts import ENDING_S, STOPS, CtrlC, Interrupts, repeat_stop
from workbench.data.memory import limit_memory
from workbench.data.temporary import processes_in_a_folder, remove_leftovers
from workbench.data.user_code import Mark, Marks, user_code, watch

POLL_S = 0.1
PATIENCE_S = 3.0  # from a stop to the end of user code that goes on
EXITING_S = 10.0  # of handlers that run when the child ends
ORPHANS_S = 2.0  # for helpers of multiprocessing, which end by themselves
ORPHANS_POLL_S = 0.005
_PR_SET_CHILD_SUBREAPER = 36  # of Linux' prctl
_SIGNALS = frozenset(getattr(signal, name) for name in STOPS if hasattr(signal, name))


def supervise(command: Callable[[], int], tell: Callable[[str], None]) -> int:
    """Run the command in a child process and return its exit code, or COULD_NOT_RUN, after one
    sentence to `tell`, where the child ended otherwise. Without `fork` it runs in this process."""
    if not hasattr(os, "fork"):
        return command()
    marks = Marks()
    result, ours = os.pipe()  # the exit code; closed when the child ends
    alive, mine = os.pipe()  # closed when this process ends
    sys.stdout.flush()
    sys.stderr.flush()
    # A process that meets a signal before it has its handlers would leave the other one alone.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    pid = os.fork()
    if pid == 0:
        os.close(result)
        os.close(mine)
        _child(command, tell, marks, ours, alive, before)
    os.close(ours)
    os.close(alive)
    return _Supervisor(pid, marks, result, tell).wait(before)


def _child(
    command: Callable[[], int],
    tell: Callable[[str], None],
    marks: Marks,
    result: int,
    alive: int,
    mask: Iterable[int],
) -> None:
    """Run the command, write its exit code to `result`, and end. Threads and exits of the user's
    code neither delay nor change it, and signals only until the command itself has ended."""
    threading.Thread(target=_end_with_parent, args=(alive,), daemon=True).start()
    watch(marks)
    limit_memory()
    sys.unraisablehook = partial(_handle_unraisable, tell)
    code = INTERNAL
    try:
        with Interrupts(STOPS) as stops, processes_in_a_folder():
            try:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                code = command()
            except CtrlC:  # between two instructions of `cli.main`
                code = stops.exit_code
            except BaseException:  # `cli.main` reports all that it expects
                traceback.print_exc()
            finally:
                stops.end()
                os.write(result, b"%d" % code)
                with suppress(BaseException), user_code("the end of the process", EXITING_S):
                    sys.stdout.flush()
                    sys.stderr.flush()
                    atexit._run_exitfuncs()
    finally:
        os._exit(code & 0xFF)


def _handle_unraisable(tell: Callable[[str], None], ignored: sys.UnraisableHookArgs) -> None:
    """Repeat a Ctrl-C that came in a `__del__` or a callback, where Python drops it. Print anything
    else that was raised there in one line, where Python prints a traceback."""
    if isinstance(ignored.exc_value, CtrlC):
        repeat_stop(POLL_S)
        return
    whose = getattr(ignored.object, "__qualname__", type(ignored.object).__name__)
    tell(f"note: {whose} raised {ignored.exc_type.__name__}, which Python ignores.")


def _end_with_parent(alive: int) -> None:
    """End this process when its parent is gone; its workers then end, too."""
    with suppress(OSError):
        os.read(alive, 1)
    os._exit(stopped_by(signal.SIGKILL))


def _has_program(running: Sequence[Mark]) -> bool:
    return any(mark.is_program for mark in running)


class _Supervisor:
    """Wait for the child, end it where the user's code outlasts its limit or a stop does not end,
    and say how it ended."""

    def __init__(self, pid: int, marks: Marks, result: int, tell: Callable[[str], None]) -> None:
        self._pid, self._marks, self._result, self._tell = pid, marks, result, tell
        self._stop: int | None = None  # the signal that came first
        self._stop_s = 0.0  # when it came
        self._is_passed_on = False  # the child has it
        self._ended: str | None = None  # why this process killed the child

    def wait(self, mask: Iterable[int]) -> int:
        """Return the exit code of the command. `mask` is that of signals from now on. The handlers
        stay: a second signal may come until this process has ended."""
        for number in (*_SIGNALS, signal.SIGQUIT):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._hit)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        with _Orphans():
            code, status = self._child_end()
        if self._ended is not None:
            with suppress(OSError):  # no folder can be written to
                remove_leftovers(Path(gettempdir()))
        return self._exit_code(code, status)

    def _hit(self, number: int, frame: object) -> None:
        """Pass a signal on, but Ctrl-C later: the terminal sends it to the child as well."""
        if number != signal.SIGINT:
            self._send(number)
        # A program ends by its own signal, often before the next poll: what follows is not stopped.
        if number in _SIGNALS and self._stop is None and not _has_program(self._marks.running()):
            self._stop, self._stop_s = number, time.monotonic()
            self._is_passed_on = number != signal.SIGINT

    def _send(self, number: int) -> None:
        if self._pid:
            with suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def _child_end(self) -> tuple[bytes, int]:
        """Return the exit code that the command wrote, if it did, and the status of the child."""
        code = b""
        while True:
            more = self._more(POLL_S)
            code += more or b""
            if more == b"":  # closed: the child is about to end, or its code closed every file
                time.sleep(ORPHANS_POLL_S)
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:  # a process that the user's code forked may hold the pipe open
                self._pid = 0
                while more := self._more(0.0):
                    code += more
                return code, status
            self._check()

    def _more(self, wait_s: float) -> bytes | None:
        """Return what the child wrote to the pipe, empty if it is closed; None if nothing came."""
        readable, _, _ = select.select([self._result], [], [], wait_s)
        return os.read(self._result, 16) if readable else None

    def _check(self) -> None:
        """End the child where the user's code has outlasted its limit, or where it goes on after a
        stop. A program that it waits for has signals of its own."""
        now, running = time.monotonic(), self._marks.running()
        if _has_program(running):
            self._stop = None
        if self._stop is not None:
            self._check_stop(self._stop, now, running)
        elif late := [mark for mark in running if now > mark.deadline]:
            self._kill(f"{late[0].what} took longer than {late[0].limit_s:.3g} s")

    def _check_stop(self, number: int, now: float, running: Sequence[Mark]) -> None:
        if not self._is_passed_on:  # a second one is harmless
            self._is_passed_on = True
            self._send(number)
        if any(now - max(self._stop_s, mark.began_s) > PATIENCE_S for mark in running):
            self._kill("stopped")
        elif now - self._stop_s > ENDING_S:
            name = signal.Signals(number).name
            self._kill(
                f"stopped: the command went on for {ENDING_S:.0f} s after {name} and was killed; "
                "its stored results are kept, so run it again for the rest."
            )

    def _kill(self, reason: str) -> None:
        self._ended = reason
        self._send(signal.SIGKILL)

    def _exit_code(self, code: bytes, status: int) -> int:
        if code:
            return int(code)
        if self._ended is not None and self._stop is not None:
            self._tell(self._ended)
            return stopped_by(self._stop)
        running = self._marks.running()
        whose = running[0].what if running else "the code that it ran"
        if self._ended is not None:
            reason = self._ended
        elif not os.WIFSIGNALED(status):
            reason = f"{whose} ended the process (exit code {os.WEXITSTATUS(status)})"
        else:
            number = os.WTERMSIG(status)
            if number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                return stopped_by(number)
            name = signal.Signals(number).name
            killed = "; the system may have run out of memory" if number == signal.SIGKILL else ""
            reason = f"{whose} ended the process ({name}{killed})"
        self._tell(f"error: {reason}; correct it and run the command again.")
        return COULD_NOT_RUN


@contextmanager
def contain_workers() -> Iterator[None]:
    """Return a context manager that ends all processes that its workers leave, so that none of them
    can write to what is written after it."""
    from workbench.backend.workers import begin_server, end_server

    begin_server()
    with _Orphans():
        try:
            yield
        finally:
            end_server()


class _Orphans:
    """Context manager that ends what a command leaves: processes that its child or a worker started
    and that outlive them. Linux makes them children of this process."""

    def __enter__(self) -> None:
        self._before = _children()  # the child itself, and what is none of the command's
        _adopt(True)

    def __exit__(self, *_: object) -> None:
        late = time.monotonic() + ORPHANS_S
        while orphans := _children() - self._before:
            now = time.monotonic()
            for pid in orphans if now > late else ():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for pid in orphans:
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            if now > late + EXITING_S:  # a driver holds one that is killed
                break
            time.sleep(ORPHANS_POLL_S)
        _adopt(False)


def _adopt(wanted: bool) -> None:
    """Let this process be the parent of its descendants' orphans, or leave them to the system."""
    import ctypes

    with suppress(OSError, AttributeError):  # only Linux has it
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0)


def _children() -> set[int]:
    """Return the ids of this process' children; none where the system does not tell."""
    pids: set[int] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            pids |= {int(pid) for pid in path.read_text().split()}
    return pids
