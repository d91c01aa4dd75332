"""The engine of profilers: whether a tool can run here, its command line, its run, and what must
have come back.

One file of this folder is one tool, with `PROFILER = Profiler(title, available, argv, reads,
parse)`. All but `parse` are pure functions of a `Machine`, so command lines and refusals are tested
as text where no tool is.
"""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Any

from workbench.spec import WorkbenchError
from workbench.traces.profilers.running.child import (
    ChildEnd,
    run_child,
    start_child,
    wait_for_child,
)
from workbench.traces.profilers.running.machine import Machine, collector_refusal
from workbench.traces.profilers.running.recorder import STATUS
from workbench.traces.profilers.running.workload import Workload
from workbench.traces.trace import Trace

LOG = "tool.log"  # what a tool prints around a script of ours
LOG_BYTES = 1 << 20


class ProfilerError(WorkbenchError):
    """A tool cannot run here, or gave nothing usable; the message is one sentence."""


@dataclass(frozen=True)
class Command:
    """A command line that follows the first one of a tool: an export, a check, another pass."""

    argv: list[str]
    output: Path | None = None  # that takes what it prints
    due: Callable[[], bool] = lambda: True  # asked when its turn comes
    must: str = ""  # what is said, in place of going on, where it fails
    is_parallel: bool = False  # runs while the others do; has an output and no `must`


@dataclass(frozen=True)
class Profiler:
    """A tool that records a workload.

    `available(machine, workload)` returns in one sentence why it cannot run, or None.
    `argv(machine, workload, folder)` returns the command line whose files will lie in the folder;
    it raises ProgramError where the tool cannot run that program. `reads(workload, folder)` returns
    the files that must come back. `parse(run)` returns their trace, and raises ProfilerError where
    it is not what was to be recorded. `further` returns the command lines that follow the first.
    """

    title: str
    available: Callable[[Machine, Workload], str | None]
    argv: Callable[[Machine, Workload, Path], list[str]]
    reads: Callable[[Workload, Path], list[Path]]
    parse: Callable[[ToolRun], Trace]
    further: Callable[[Machine, Workload, Path], list[Command]] = lambda *_: []
    variables: Mapping[str, str] = field(default_factory=dict)  # that are set for the program
    calls: int = 10  # of a kernel, where the user names no number
    instead: str = ""  # tool that goes on where this one gave nothing usable
    wraps_program: bool = True  # a program around the user's, whose own output is a file of the run
    code: Callable[[ToolRun], int] | None = None  # exit code of a tool whose result is a verdict


def refuse_without(
    gpu: str, no_gpu: str, program: str, no_program: str
) -> Callable[[Machine, Workload], str | None]:
    """Return the `available` of a tool around a program: the sentence without a GPU that it can
    record, and the one where it is not on the path."""

    def available(machine: Machine, workload: Workload) -> str | None:
        if machine.gpu != gpu:
            return no_gpu
        return None if program in machine.programs else no_program

    return available


def list_files(*names: str) -> Callable[[Workload, Path], list[Path]]:
    """Return the `reads` of a tool that always leaves the same files."""
    return lambda workload, folder: [folder / name for name in names]


@dataclass(frozen=True)
class ToolRun:
    """One run of a tool that is over."""

    workload: Workload
    folder: Path
    end: ChildEnd
    files: tuple[Path, ...]  # those of `Profiler.reads` that are there
    status: RecordingStatus | None = None  # of a tool that runs inside of the program

    @property
    def text(self) -> str:
        """What the tool printed, in all its logs."""
        parts = [_beginning(path) for path in sorted(self.folder.glob("*.log"))]
        return "\n".join(parts)


@dataclass(frozen=True)
class RecordingStatus:
    """What the recorder inside of a program says of it."""

    state: str  # `unused`: the program never imported what is recorded; `recording`; `ended`
    steps: int = 0  # calls of `workbench.step`
    recorded: str = ""  # `program`, `steps`, or empty for nothing
    exception: str = ""  # that ended the program
    fault: str = ""  # of the profiler itself
    conflict: bool = False  # the program uses the same profiler itself
    gpu_used: bool = False
    unreadable: int = 0  # events whose names are no text; the table of operators has none of them
    recorded_step_s: Sequence[float] = ()  # the host's seconds of each recorded step
    plain_step_s: Sequence[float] = ()  # of each step without the profiler


@cache
def profilers() -> dict[str, Profiler]:
    """Return every tool by the name of its file."""
    names = [info.name for info in pkgutil.iter_modules(__path__) if not info.ispkg]
    return {
        name.replace("_", "-"): import_module(f"{__name__}.{name}").PROFILER
        for name in sorted(names)
    }


def refusal(profiler: Profiler, machine: Machine, workload: Workload) -> str | None:
    """Return in one sentence why a tool cannot run, or None."""
    return collector_refusal(machine) or profiler.available(machine, workload)


def preflight(profiler: Profiler, machine: Machine, workload: Workload) -> None:
    """Raise ProfilerError where the tool cannot run, before anything is started."""
    reason = refusal(profiler, machine, workload)
    if reason is not None:
        raise ProfilerError(reason)


def run_tool(
    profiler: Profiler,
    machine: Machine,
    workload: Workload,
    folder: Path,
    limit_s: float | None = None,
    aside: bool = False,
) -> ToolRun:
    """Run a tool in a process of its own and return the run. `folder` must exist; with `aside` what
    the program prints goes to standard error.

    Raises ProfilerError, ProgramError or ChildError where it cannot be started.
    """
    preflight(profiler, machine, workload)
    argv = profiler.argv(machine, workload, folder)
    own = workload.marks is not None
    log = folder / LOG if profiler.wraps_program and own else None
    end = run_child(argv, limit_s, own=own, aside=aside, more=profiler.variables, output=log)
    commands = profiler.further(machine, workload, folder)
    for number, command in enumerate(commands):
        if end.stop_signal or end.timed_out:
            break
        if command.due() and not command.is_parallel:
            output = command.output or (folder / f"further{number}.log" if own else None)
            with _run_beside(commands[number + 1 :], limit_s, own, profiler.variables):
                after = run_child(
                    command.argv,
                    limit_s,
                    own=own,
                    aside=aside,
                    more=profiler.variables,
                    output=output,
                )
            if after.code and command.must:
                raise ProfilerError(command.must)
            end = end if end.code or not (after.stop_signal or after.timed_out) else after
    outputs = [c.output for c in commands if c.output is not None and c.output.suffix != ".log"]
    paths = dict.fromkeys([*profiler.reads(workload, folder), *outputs])
    files = tuple(path for path in paths if path.exists())
    return ToolRun(workload, folder, end, files, _status(folder))


@contextmanager
def _run_beside(
    commands: Sequence[Command], limit_s: float | None, own: bool, more: Mapping[str, str]
) -> Iterator[None]:
    """Return a context manager that runs the next commands that are to run beside another one, and
    waits for them at its end."""
    with ExitStack() as stack:
        for command in takewhile(lambda c: c.is_parallel, commands):
            if command.due() and command.output is not None:
                file = stack.enter_context(command.output.open("wb"))
                child = start_child(command.argv, own=own, more=more, output=file)
                stack.callback(wait_for_child, child, limit_s)
        yield


def _status(folder: Path) -> RecordingStatus | None:
    """Return what the recorder wrote, or None without one. The file is not kept."""
    path = folder / STATUS
    try:
        plain: Any = json.loads(path.read_text(encoding="utf-8"))
        path.unlink()
        return RecordingStatus(**{k: plain[k] for k in _FIELDS if k in plain})
    except (OSError, ValueError, TypeError):
        return None


def _beginning(path: Path) -> str:
    """Return the first megabyte of a log; empty where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(LOG_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


_FIELDS = tuple(RecordingStatus.__dataclass_fields__)
