"""What is profiled: a program of the user's, or the script of one call of ours; and how much of it
is recorded."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from workbench.spec import WorkbenchError
from workbench.traces.profilers.running.machine import Machine

PYTHON = re.compile(r"(?:python|pypy)[\d.]*(?:\.exe)?\Z")
RECORDER = Path(__file__).with_name("recorder.py")
HEAD_BYTES = 256  # of a script, for its first line
# Options of the interpreter that take the next word as their value.
VALUED = ("-X", "-W", "--check-hash-based-pycs")


class ProgramError(WorkbenchError):
    """A command line cannot be run under a profiler; the message is one sentence."""


@dataclass(frozen=True)
class StepSchedule:
    """The steps of a program to record: after `wait` and `warmup` of them, `active` ones."""

    wait: int
    warmup: int
    active: int

    def words(self) -> list[str]:
        """Return the options of the recorder."""
        pairs = (("--wait", self.wait), ("--warmup", self.warmup), ("--active", self.active))
        return [word for name, value in pairs for word in (name, str(value))]


CALL_STEPS = StepSchedule(wait=1, warmup=1, active=1)  # of the script of one call
CALL_LIMIT_S = 600.0  # of the calls of one kernel under a profiler


@dataclass(frozen=True)
class MarkedCalls:
    """What must come back of a script of ours: ranges named `wb`, one a call, and on a GPU the
    launches of each."""

    calls: int
    uses_gpu: bool
    kernel: str = ""  # name of the device function; empty for a library's
    launches: int | None = None  # of one call; None where it is not known


@dataclass(frozen=True)
class Workload:
    """A command to run under a profiler, and how it is recorded."""

    words: tuple[str, ...]
    title: str  # in messages
    schedule: StepSchedule | None = None
    marks: MarkedCalls | None = None  # None for a program of the user's
    options: tuple[str, ...] = field(default=())  # of the recorder: --shapes, --memory, --stacks
    data: str = "tree"  # of Proton: tree, trace, inside
    counters: tuple[str, ...] = ()  # of ncu and rocprofv3, beyond those of the tool
    # of ncu and rocprofv3 for this GPU; one that cannot be counted is left out, and said so
    defaults: tuple[str, ...] = ()
    selection: str = ""  # of ncu: a set of sections
    instruments: tuple[str, ...] = ()  # of xctrace, recorded beside the GPU
    every: bool = False  # of checks: go on after a finding
    checks: tuple[str, ...] = ()  # of the sanitizer: these alone; empty for all of them


def title_of(words: Sequence[str]) -> str:
    """Return the name of a program in messages: `step.py` of `python step.py 3`."""
    if not PYTHON.match(Path(words[0]).name):
        return Path(words[0]).name or words[0]
    rest = words[_end_of_flags(words) :]
    if rest and rest[0] == "-m":
        rest = rest[1:]
    title = words[0] if not rest or rest[0].startswith("-") else rest[0]
    return Path(title).name or title


def python_command(words: Sequence[str], machine: Machine) -> tuple[list[str], list[str]]:
    """Return the interpreter with its options, and what it runs: `script args`, `-m module args` or
    `-c code args`.

    Raises ProgramError where the command is not a Python program, as `torchrun` written in Python
    is and a shell script is not, or where its script is not there.
    """
    first = words[0]
    if PYTHON.match(Path(first).name):
        return _interpreter(words, machine)
    path = first if first.endswith(".py") else machine.programs.get(first, first)
    script = Path(path)
    if not script.is_file():
        raise ProgramError(
            f"There is no program {first}; write: -- python path/to/{Path(first).name}."
        )
    if first.endswith(".py"):
        return [machine.python], [str(script), *words[1:]]
    if (own := _first_line(script)) is not None:
        return own, [str(script), *words[1:]]
    raise ProgramError(
        f"{first} is not a Python program, and this profiler runs inside of one; write: -- python "
        "step.py."
    )


def _interpreter(words: Sequence[str], machine: Machine) -> tuple[list[str], list[str]]:
    path = machine.programs.get(words[0])
    if path is None:
        raise ProgramError(f"There is no interpreter {words[0]}; name one that is on the path.")
    at = _end_of_flags(words)
    flags, rest = [path, *words[1:at]], list(words[at:])
    if not rest or rest[0] == "-" or (rest[0] in ("-m", "-c") and len(rest) < 2):
        raise ProgramError(
            f"`{' '.join(words)[:80]}` names no script; write: -- {words[0]} step.py."
        )
    if rest[0] not in ("-m", "-c") and not Path(rest[0]).exists():
        raise ProgramError(f"There is no script {rest[0]}; check its path.")
    return flags, rest


def _end_of_flags(words: Sequence[str]) -> int:
    """Return the place of the first word behind the options of an interpreter."""
    at = 1
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-m", "-c", "-"):
        at += 2 if words[at] in VALUED else 1
    return at


def _first_line(script: Path) -> list[str] | None:
    """Return the interpreter that the first line of a script names, if it is Python's."""
    try:
        with script.open("rb") as file:
            line = file.read(HEAD_BYTES).partition(b"\n")[0].decode("utf-8", "replace")
    except OSError:
        return None
    words = line.removeprefix("#!").split() if line.startswith("#!") else []
    if words[:1] == ["/usr/bin/env"]:
        words = words[1:]
    return words if words and PYTHON.match(Path(words[0]).name) else None


def whole_command(workload: Workload, machine: Machine) -> list[str]:
    """Return the command line of any program, for a tool that stands around it. Raises
    ProgramError where it is not there."""
    if workload.marks:
        return [machine.python, *workload.words[1:]]
    first, *rest = workload.words
    if PYTHON.match(Path(first).name) or first.endswith(".py"):
        python, program = python_command(workload.words, machine)
        return [*python, *program]
    path = machine.programs.get(first, first)
    if path == first and not Path(path).is_file():
        raise ProgramError(
            f"There is no program {first}; write: -- python path/to/{Path(first).name}."
        )
    return [path, *rest]


def recorder_argv(
    workload: Workload, machine: Machine, tool: str, folder: Path, options: Sequence[str]
) -> list[str]:
    """Return the command line that runs the workload inside of the recorder. Raises
    ProgramError."""
    if workload.marks:  # a script of ours, which is written before it runs
        python, program = [machine.python], list(workload.words[1:])
    else:
        python, program = python_command(workload.words, machine)
    steps = workload.schedule.words() if workload.schedule else []
    flags = ["--stepping"] if workload.marks else []
    own = [str(RECORDER), tool, "--folder", str(folder), *steps, *flags, *options]
    return [*python, *own, "--", *program]
