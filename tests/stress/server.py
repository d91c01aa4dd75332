"""Run commands in forks of a process that has imported the command line, torch and Triton.

A start of Python with torch takes 1.5 to 3 s, a fork 0.05 s. The forked process has a session, an
environment, a folder and outputs of its own, and calls `workbench.cli.run` under its supervisor.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
DATA_BYTES = 6 << 30  # that a forked process may take, of a machine that others use too
IMPORTED = (
    "torch", "triton", "numpy", "typer", "rich.console", "rich.table", "rich.live", "sqlalchemy",
    "jinja2", "matplotlib.backends.backend_svg", "pebble", "workbench.dsl",
    "workbench.catalog.declared",
    "workbench.backend.offline", "workbench.backend.live", "workbench.reports.sweep",
    "workbench.reports.measure", "workbench.experiments", "workbench.commands.sweep_command",
    "workbench.commands.measure_command", "workbench.commands.compare_command",
    "workbench.commands.experiment_command", "workbench.commands.gate_command",
    "workbench.commands.report_pages", "workbench.commands.doctor",
)  # fmt: skip


class Server:
    """The server as its user sees it. One command runs at a time. A context manager."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, words: list[str], here: str, variables: dict[str, str], files: list[str],
              closed: list[int], gone: bool, limits: dict[str, float]) -> Forked:  # fmt: skip
        """Start a command; `cases.Place` says what its arguments are."""
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "server.py")], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, cwd=HERE.parents[1],
                env={**os.environ, "PYTHONPATH": variables["PYTHONPATH"]}, start_new_session=True,
            )  # fmt: skip
        assert self._process.stdin is not None
        order = {"words": words, "here": here, "variables": variables, "files": files,
                 "closed": closed, "gone": gone, "limits": limits}  # fmt: skip
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        return Forked(self._process)

    def close(self) -> None:
        """End the server."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


class Forked:
    """A command that the server has forked."""

    def __init__(self, server: subprocess.Popen[bytes]) -> None:
        assert server.stdout is not None
        self._answers, self._text = server.stdout.fileno(), b""
        self.pid = self._number(120.0) or 0  # the first one waits for the imports
        if not self.pid:
            raise ChildProcessError("the server of the stress test has ended")

    def wait(self, limit_s: float) -> int | None:
        """The exit code, or the negative number of a signal; None after `limit_s` seconds."""
        return self._number(limit_s)

    def _number(self, limit_s: float) -> int | None:
        """The next line, a number; None where none came in time."""
        while b"\n" not in self._text:
            ready, _, _ = select.select([self._answers], [], [], limit_s)
            if not ready or not (more := os.read(self._answers, 64)):
                return None
            self._text += more
        line, _, self._text = self._text.partition(b"\n")
        return int(line)


# In the server


def serve() -> None:
    """Fork a process for each line of the standard input, and print its id and its exit code."""
    orders, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(null, number)
    os.close(null)
    import importlib

    for name in IMPORTED:
        with suppress(ImportError):
            importlib.import_module(name)
    for line in orders:
        pid = os.fork()
        if pid == 0:
            os.close(orders.fileno())
            os.close(answers.fileno())
            _run(json.loads(line))
        print(pid, file=answers, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)


def _run(order: dict[str, Any]) -> None:
    """Become the process of a command, and end with its exit code."""
    import resource
    import tempfile

    os.setsid()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)  # a job in the background ignores them
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(order["variables"])
    os.chdir(order["here"])
    if order["gone"]:
        os.rmdir(order["here"])
    tempfile.tempdir = None
    resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES, resource.RLIM_INFINITY))
    for target, name in zip((1, 2), order["files"], strict=True):
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, target)
        os.close(file)
    for target in order["closed"]:
        os.close(target)
    for target, name in ((1, "stdout"), (2, "stderr")):
        known = target not in order["closed"]
        stream = open(target, "w", encoding="utf-8", closefd=False) if known else None  # noqa: SIM115
        setattr(sys, name, stream)
    _limit(order["limits"])
    from workbench.cli import run

    sys.argv = ["workbench", *order["words"]]
    code = 4
    try:
        code = run(order["words"])
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(code & 0xFF)


def _limit(limits: dict[str, float]) -> None:
    """Shorten the limits of the user's code, of a compilation and of a check, in seconds: a kernel
    that never ends would cost a minute of each. Workers cost a second of CPU each."""
    if not limits:
        return
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[os.getpid() % len(cpus)]})  # one worker of each kind
    from workbench.backend import checking
    from workbench.backend.offline import Offline
    from workbench.data.user_code import user_code

    user_code.__init__.__defaults__ = (limits["user_code"],)
    known = Offline.__init__.__kwdefaults__
    assert {"compile_s", "interpret_s"} <= set(known)
    known.update(compile_s=limits["worker"], interpret_s=limits["worker"])
    checking.INPUTS_TIMEOUT_S = checking.COMPARE_TIMEOUT_S = limits["worker"]


if __name__ == "__main__":
    serve()
