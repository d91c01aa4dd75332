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
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from workbench.data.exits import COULD_NOT_RUN, INTERNAL, INTERRUPTED, stopped_by
from workbench.data.interrupts import CtrlC, ctrl_c
from workbench.data.memory import limit_memory
from workbench.data.temporary import processes_in_a_folder
from workbench.data.user_code import Mark, Marks, user_code, watch

POLL_S = 0.1
PATIENCE_S = 3.0  # from Ctrl-C to the end of user code that goes on
ENDING_S = 10.0  # of handlers that run when the child ends
ORPHANS_S = 2.0  # for helpers of multiprocessing, which end by themselves
ORPHANS_POLL_S = 0.005
_PR_SET_CHILD_SUBREAPER = 36  # of Linux' prctl
_FORWARDED = ("SIGTERM", "SIGHUP", "SIGQUIT")


def supervised(command: Callable[[], int]) -> int:
    """Run the command in a child process and return its exit code, or COULD_NOT_RUN, after one
    sentence, where the child ended otherwise. Without `fork` it runs in this process."""
    if not hasattr(os, "fork"):
        return command()
    marks = Marks()
    result, ours = os.pipe()  # the exit code; closed when the child ends
    alive, mine = os.pipe()  # closed when this process ends
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(result)
        os.close(mine)
        _child(command, marks, ours, alive)
    os.close(ours)
    os.close(alive)
    return _Supervisor(pid, marks, result).wait()


def _child(command: Callable[[], int], marks: Marks, result: int, alive: int) -> None:
    """Run the command, write its exit code to `result`, and end. Threads and exits of the user's
    code neither delay nor change it."""
    threading.Thread(target=_end_with_parent, args=(alive,), daemon=True).start()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, ctrl_c)
    watch(marks)
    limit_memory()
    sys.unraisablehook = _on_unraisable
    code = INTERNAL
    try:
        with processes_in_a_folder():
            try:
                code = command()
            except BaseException:  # `cli.main` reports all that it expects
                traceback.print_exc()
            finally:
                os.write(result, b"%d" % code)
                with suppress(BaseException), user_code("the end of the process", ENDING_S):
                    sys.stdout.flush()
                    sys.stderr.flush()
                    atexit._run_exitfuncs()
    finally:
        os._exit(code & 0xFF)


def _on_unraisable(ignored: sys.UnraisableHookArgs) -> None:
    """Repeat a Ctrl-C that came in a `__del__` or a callback, where Python drops it. Print anything
    else that was raised there in one line, where Python prints a traceback."""
    if isinstance(ignored.exc_value, CtrlC):
        again = threading.Timer(POLL_S, _interrupt)
        again.daemon = True
        again.start()
        return
    whose = getattr(ignored.object, "__qualname__", type(ignored.object).__name__)
    _say(f"note: {whose} raised {ignored.exc_type.__name__}, which Python ignores.")


def _interrupt() -> None:
    heard = callable(signal.getsignal(signal.SIGINT))  # not in the background of a script
    os.kill(os.getpid(), signal.SIGINT if heard else signal.SIGTERM)


def _end_with_parent(alive: int) -> None:
    """End this process when its parent is gone; its workers then end, too."""
    with suppress(OSError):
        os.read(alive, 1)
    os._exit(stopped_by(signal.SIGKILL))


class _Supervisor:
    """Wait for the child, end it where the user's code outlasts its limit, and say how it ended."""

    def __init__(self, pid: int, marks: Marks, result: int) -> None:
        self._pid, self._marks, self._result = pid, marks, result
        self._interrupted: float | None = None  # when Ctrl-C came
        self._ended: str | None = None  # why this process killed the child

    def wait(self) -> int:
        """Return the exit code of the command."""
        before = {signal.SIGINT: signal.signal(signal.SIGINT, self._ctrl_c)}
        for name in _FORWARDED:
            if signal.getsignal(number := getattr(signal, name)) is not signal.SIG_IGN:
                before[number] = signal.signal(number, self._forward)
        try:
            with _Orphans():
                code, status = self._child_end()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return self._exit_code(code, status)

    def _ctrl_c(self, number: int, frame: object) -> None:
        """The terminal sends Ctrl-C to the child as well, which stores what it has."""
        self._interrupted = self._interrupted or time.monotonic()

    def _forward(self, number: int, frame: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._pid, number)

    def _child_end(self) -> tuple[bytes, int]:
        """Return the exit code that the command wrote, if it did, and the status of the child."""
        code = b""
        while True:
            readable, _, _ = select.select([self._result], [], [], POLL_S)
            if readable:
                code += (text := os.read(self._result, 16))
                if not text:  # closed: the child is about to end, or has ended
                    _, status = os.waitpid(self._pid, 0)
                    return code, status
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:  # a process that the user's code forked may hold the pipe open
                while select.select([self._result], [], [], 0)[0]:
                    if not (text := os.read(self._result, 16)):
                        break
                    code += text
                return code, status
            self._check()

    def _check(self) -> None:
        """End the child where the user's code has outlasted its limit, or goes on after Ctrl-C."""
        now = time.monotonic()
        running = self._marks.running()
        late = [mark for mark in running if now > mark.deadline]
        stuck = self._interrupted is not None and now - self._interrupted > PATIENCE_S
        if late or (stuck and running):
            self._ended = "interrupted" if stuck else _late(late[0])
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)

    def _exit_code(self, code: bytes, status: int) -> int:
        if code:
            return int(code)
        if self._ended == "interrupted":
            _say("stopped")
            return INTERRUPTED
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
        _say(f"error: {reason}; correct it and run the command again.")
        return COULD_NOT_RUN


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
            if now > late + ENDING_S:  # a driver holds one that is killed
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


def _late(mark: Mark) -> str:
    return f"{mark.what} took longer than {mark.limit_s:.3g} s"


def _say(text: str) -> None:
    from workbench.commands.console import say  # only now: `--help` does not need it

    say(text, err=True)
