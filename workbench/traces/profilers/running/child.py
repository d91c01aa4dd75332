"""Run a command as a child that has this process' terminal, and wait for it."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any

from workbench.data.bytecode import bytecode_variables
from workbench.data.environment import FP_FUSION
from workbench.data.exits import stopped_by
from workbench.data.user_code import user_code
from workbench.spec import WorkbenchError

PATIENCE = 2  # times Ctrl-C until the child is killed: the first one ends the program alone
ENDING_S = 10.0  # of a child that was told to end


class ChildError(WorkbenchError):
    """A command cannot be started; the message is one sentence."""


@dataclass(frozen=True)
class ChildEnd:
    """The end of a command: its exit code as a shell gives it, and how it came to it."""

    code: int
    stop_signal: int = (
        0  # the first signal, such as Ctrl-C, that came to this process before; 0 if none
    )
    timed_out: bool = False


def run_child(
    argv: Sequence[str],
    limit_s: float | None = None,
    *,
    own: bool,
    aside: bool = False,
    more: Mapping[str, str] | None = None,
    output: Path | None = None,
) -> ChildEnd:
    """Run a command with the streams of this process and return how it ended. `aside`: what it
    prints goes to standard error, as standard output is for something else. `more`: variables that
    are set for it. `output`: a file that takes its standard output and error.

    Ctrl-C at a terminal reaches the child, too: this process waits until it has written what it
    has. After `limit_s` seconds its program is interrupted, then killed. Temporary files of a
    program that is not our `own` stay where they would be without this process. Raises ChildError
    where it cannot be started.
    """
    with _Waiting() as waiting, ExitStack() as files:
        out = None if output is None else files.enter_context(output.open("wb"))
        process = start_child(argv, own=own, aside=aside, more=more, output=out)
        waiting.begin(process)
        timed_out = _wait(process, limit_s)
    return _end_of(process, waiting, timed_out)


def start_child(
    argv: Sequence[str],
    *,
    own: bool,
    aside: bool = False,
    more: Mapping[str, str] | None = None,
    output: IO[bytes] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a command as `run_child` does, and return its process. Raises ChildError."""
    variables = {**os.environ, **(more or {})}
    if own:
        # the code that was timed, from Triton's cache, and imports that are compiled already
        variables = {FP_FUSION: "1", **variables, **bytecode_variables()}
    else:
        variables["TMPDIR"] = tempfile.gettempdir()
    sys.stdout.flush()  # what was printed before comes before the child's output
    out: Any = output or (sys.stderr.fileno() if aside else None)
    err = None if output is None else subprocess.STDOUT
    try:
        return subprocess.Popen(list(argv), env=variables, stdout=out, stderr=err)
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise ChildError(f"{argv[0]} cannot be started ({reason}); name another one.") from None


def wait_for_child(process: subprocess.Popen[bytes], limit_s: float | None = None) -> ChildEnd:
    """Wait for a child that was started before, with limit and signals as in `run_child`. Returns
    its end."""
    with _Waiting() as waiting:
        waiting.begin(process)
        timed_out = _wait(process, limit_s)
    return _end_of(process, waiting, timed_out)


def _end_of(process: subprocess.Popen[bytes], waiting: _Waiting, timed_out: bool) -> ChildEnd:
    code = process.returncode
    return ChildEnd(code if code >= 0 else stopped_by(-code), waiting.first, timed_out)


def _wait(process: subprocess.Popen[bytes], limit_s: float | None) -> bool:
    """Wait for a child, and return whether it outlasted its limit."""
    try:
        process.wait(limit_s)
        return False
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(ENDING_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return True


class _Waiting:
    """Signals while a child runs: Ctrl-C is the child's own matter at first; what is sent to this
    process alone interrupts it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self.first, self._count = 0, 0
        self._old_handlers: dict[int, Any] = {}
        self._mark = user_code("the program", math.inf)

    def __enter__(self) -> _Waiting:
        self._mark.__enter__()
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is None or signal.getsignal(number) in (signal.SIG_IGN, None):
                continue
            try:
                self._old_handlers[number] = signal.signal(number, self._hit)
            except ValueError:  # not the main thread
                return self
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._old_handlers.items():
            signal.signal(number, before)
        self._mark.__exit__(None, None, None)

    def begin(self, process: subprocess.Popen[bytes]) -> None:
        """Send signals to this process from now on, and one that came before."""
        self._process = process
        if self.first:
            process.send_signal(signal.SIGINT)

    def _hit(self, number: int, frame: FrameType | None) -> None:
        self.first, self._count = self.first or number, self._count + 1
        if self._process is None or self._process.poll() is not None:
            return
        if self._count > PATIENCE:
            self._process.kill()
        elif number != signal.SIGINT:
            self._process.send_signal(signal.SIGINT)
