"""The engine of profilers: whether a tool can run here, its command line, its run, and what must
have come back.

One file of this folder is one tool, with `PROFILER = Profiler(title, available, argv, reads,
parse)`. All but `parse` are pure functions of a `Machine`, so command lines and refusals are tested
as text where no tool is.
"""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from workbench.data.trace import Trace
from workbench.profilers.running.child import ChildEnd, run_child
from workbench.profilers.running.machine import Machine, collector_refusal
from workbench.profilers.running.recorder import STATUS
from workbench.profilers.running.workload import Workload
from workbench.spec import WorkbenchError


class ProfilerError(WorkbenchError):
    """A tool cannot run here, or gave nothing usable; the message is one sentence."""


@dataclass(frozen=True)
class Profiler:
    """A tool that records a workload.

    `available(machine, workload)` returns in one sentence why it cannot run, or None.
    `argv(machine, workload, folder)` returns the command line whose files will lie in the folder;
    it raises ProgramError where the tool cannot run that program. `reads(workload, folder)` returns
    the files that must come back. `parse(run)` returns their trace, and raises ProfilerError where
    it is not what was to be recorded.
    """

    title: str
    available: Callable[[Machine, Workload], str | None]
    argv: Callable[[Machine, Workload, Path], list[str]]
    reads: Callable[[Workload, Path], list[Path]]
    parse: Callable[[ToolRun], Trace]


@dataclass(frozen=True)
class ToolRun:
    """One run of a tool that is over."""

    workload: Workload
    folder: Path
    end: ChildEnd
    files: tuple[Path, ...]  # those of `Profiler.reads` that are there
    status: RecordingStatus | None = None  # of a tool that runs inside of the program


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


@cache
def profilers() -> dict[str, Profiler]:
    """Return every tool by the name of its file."""
    names = [info.name for info in pkgutil.iter_modules(__path__) if not info.ispkg]
    return {name: import_module(f"{__name__}.{name}").PROFILER for name in sorted(names)}


def preflight(profiler: Profiler, machine: Machine, workload: Workload) -> None:
    """Raise ProfilerError where the tool cannot run, before anything is started."""
    reason = collector_refusal(machine) or profiler.available(machine, workload)
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
    end = run_child(argv, limit_s, own=workload.marked is not None, aside=aside)
    files = tuple(path for path in profiler.reads(workload, folder) if path.exists())
    return ToolRun(workload, folder, end, files, _status(folder))


def _status(folder: Path) -> RecordingStatus | None:
    """Return what the recorder wrote, or None without one. The file is not kept."""
    path = folder / STATUS
    try:
        known: Any = json.loads(path.read_text(encoding="utf-8"))
        path.unlink()
        return RecordingStatus(**{k: known[k] for k in _FIELDS if k in known})
    except (OSError, ValueError, TypeError):
        return None


_FIELDS = tuple(RecordingStatus.__dataclass_fields__)
