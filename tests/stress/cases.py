"""A case of the stress test: its folder, the commands that it runs there, and the violations.

A case is drawn from the seed, the generator's name and its number alone, so `--only` repeats it.
"""

from __future__ import annotations

import os
import random
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stress.server import Server
from workbench.data import exits

ROOT = Path(__file__).resolve().parents[2]
POLL_S = 0.02
GONE_S = 10.0  # from the end of a command to that of its last process
# What a violation is, in the order of the table's columns.
KINDS = (
    "traceback",
    "hang",
    "lost",
    "false failure",
    "leftover",
    "twice",  # obtained twice
    "accepted",  # a wrong result that has a time
    "exit",  # an exit code that docs/commands.md does not give this end, or no sentence
)
CODES = {exits.PASSED, exits.FAILED, exits.COULD_NOT_RUN, exits.UNDECIDED, exits.INTERRUPTED}


@dataclass(frozen=True)
class Violation:
    """Something that must not be: one of KINDS, and what was seen."""

    kind: str
    text: str


@dataclass(frozen=True)
class Ended:
    """How a command ended. A negative code is the number of the signal that ended its process."""

    code: int
    out: str
    err: str
    seconds: float
    hung: bool  # it outlasted its limit, and was killed
    left: tuple[str, ...]  # processes that went on after it had ended

    def faults(self, codes: frozenset[int] | set[int] = frozenset(CODES)) -> list[Violation]:
        """What is wrong with any command that ended so; `codes` are the exit codes that it may
        have."""
        faults: list[Violation] = []
        text = self.out + self.err
        if "Traceback (most recent" in text:
            faults.append(Violation("traceback", text[-2000:]))
        if self.hung:
            faults.append(Violation("hang", f"no end after {self.seconds:.0f} s"))
        elif self.code not in codes:
            faults.append(Violation("exit", f"exit code {self.code}: {self.err[-2000:]}"))
        elif self.code == exits.COULD_NOT_RUN and len(text.split()) < 3:
            faults.append(Violation("exit", f"no sentence: {text!r}"))
        if "\x1b" in text:
            faults.append(Violation("exit", f"an escape sequence is printed: {text[-500:]!r}"))
        if self.left:
            faults.append(Violation("leftover", f"processes went on: {', '.join(self.left)}"))
        return faults


@dataclass(frozen=True)
class Case:
    """One case: the generator's name, its number, and the seed of the whole."""

    suite: str
    number: int
    seed: int

    @property
    def name(self) -> str:
        """The name by which `--only` takes it."""
        return f"{self.suite}/{self.number}"

    def random(self) -> random.Random:
        """A generator of random numbers that is the case's own."""
        return random.Random(f"{self.seed} {self.name}")


@dataclass
class Place:
    """The folder of a case: it stands for the home, the data, the temporary files and the current
    folder of its commands."""

    folder: Path
    server: Server
    ran: list[str] = field(default_factory=list)  # command lines, to repeat them by hand

    def __post_init__(self) -> None:
        for name in ("home", "data", "tmp", "here", "out"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)

    @property
    def here(self) -> Path:
        """The current folder of its commands."""
        return self.folder / "here"

    @property
    def database(self) -> str:
        """The URL of its database."""
        return f"sqlite:///{self.folder / 'runs.db'}"

    def environment(self, more: Mapping[str, str | None] | None = None) -> dict[str, str]:
        """The variables of its commands; None in `more` removes one."""
        known = {**os.environ, "PYTHONPATH": os.pathsep.join(_paths()), "PYTHONUTF8": "1"}
        known |= {"HOME": str(self.folder / "home"), "XDG_DATA_HOME": str(self.folder / "data")}
        known |= {"TMPDIR": str(self.folder / "tmp"), "CUDA_VISIBLE_DEVICES": ""}
        known |= {"HIP_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "100"}
        changed: dict[str, str | None] = {"TRITON_INTERPRET": None, **(more or {})}
        known |= {k: v for k, v in changed.items() if v is not None}
        return {k: v for k, v in known.items() if changed.get(k, "") is not None}

    def forked(self, words: Sequence[str], limit_s: float, **how: Any) -> Ended:
        """Run a command in a fork of a process that has imported the command line and torch."""
        return self._run(words, limit_s, self.server.start, **how)

    def real(self, words: Sequence[str], limit_s: float, **how: Any) -> Ended:
        """Run a command as a user does: `python -m workbench ...`."""
        return self._run(words, limit_s, _Own, **how)

    def _run(
        self,
        words: Sequence[str],
        limit_s: float,
        start: Any,
        variables: Mapping[str, str | None] | None = None,
        limits: Mapping[str, float] | None = None,
        output: str | None = None,
        closed: Sequence[int] = (),
        gone: bool = False,
    ) -> Ended:
        """`output` is a file in place of the case's own, `closed` the descriptors to close before
        the start, `gone` deletes the current folder first."""
        self.note(words)
        number = len(self.ran)
        files = [self.folder / f"{number}.out", self.folder / f"{number}.err"]
        here = self.here
        if gone:
            here = self.folder / "gone"
            here.mkdir(exist_ok=True)
        began = time.monotonic()
        process = start(
            list(words), str(here), self.environment(variables), [output or str(files[0]),
            str(files[1])], closed=list(closed), gone=gone, limits=dict(limits or {}),
        )  # fmt: skip
        code = process.wait(limit_s)
        seconds, hung = time.monotonic() - began, code is None
        if hung:
            end_session(process.pid)
            code = process.wait(GONE_S)
        left = left_of(process.pid)
        text = [f.read_bytes().decode("utf-8", "replace") if f.exists() else "" for f in files]
        return Ended(-9 if code is None else code, text[0], text[1], seconds, hung, tuple(left))

    def note(self, words: Sequence[str]) -> None:
        """Keep a command line with the case, for who repeats it by hand."""
        keep = ("HOME", "XDG_DATA_HOME", "TMPDIR")
        variables = self.environment()
        shown = [f"{k}={shlex.quote(variables[k])}" for k in keep]
        line = f"{' '.join(shown)} python -m workbench {shlex.join(words)}"
        self.ran.append(line.encode("utf-8", "backslashreplace").decode())

    def temporary(self) -> list[str]:
        """Names of what lies in the folder of temporary files."""
        return sorted(p.name for p in (self.folder / "tmp").iterdir())


class _Own:
    """A process of its own, with the methods of one that the server forked."""

    def __init__(
        self, words: list[str], here: str, variables: dict[str, str], files: list[str],
        closed: list[int], gone: bool, limits: dict[str, float],
    ) -> None:  # fmt: skip
        assert not limits, "only a forked process has other limits"
        line = ["-m", "workbench", *words]

        def prepare() -> None:
            for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(each, signal.SIG_DFL)  # a job in the background ignores some
            for number in closed:
                os.close(number)
            if gone:
                os.rmdir(here)

        with open(files[0], "ab") as out, open(files[1], "ab") as err:
            self._process = subprocess.Popen(
                [sys.executable, *line], cwd=here, env=variables, stdin=subprocess.DEVNULL,
                stdout=out, stderr=err, start_new_session=True, preexec_fn=prepare,
            )  # fmt: skip
        self.pid = self._process.pid

    def wait(self, limit_s: float) -> int | None:
        try:
            return self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None


def _paths() -> list[str]:
    before = os.environ.get("PYTHONPATH", "")
    return [str(ROOT), *([before] if before else [])]


def session(number: int) -> dict[int, str]:
    """The processes of a session by their id, each with its name; those that have ended are left
    out."""
    found: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        with suppress(OSError):
            name, _, rest = (folder / "stat").read_text("utf-8", "replace").rpartition(")")
            state, _, _, of = rest.split()[:4]
            if int(of) == number and state not in "ZX":
                found[int(folder.name)] = name.partition("(")[2]
    return found


def end_session(number: int) -> None:
    """Kill all processes of a session."""
    for pid in session(number):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def left_of(number: int, limit_s: float = GONE_S) -> list[str]:
    """The processes of a session that go on for longer than `limit_s`; they are killed then."""
    end = time.monotonic() + limit_s
    while (found := session(number)) and time.monotonic() < end:
        time.sleep(POLL_S)
    end_session(number)
    return [f"{name} ({pid})" for pid, name in found.items()]
