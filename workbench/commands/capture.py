"""Capture one call of a Metal kernel for Xcode: `workbench profile softmax --tool gputrace`."""

from __future__ import annotations

from datetime import UTC, date, datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from workbench import catalog
from workbench.commands.console import prints_aside
from workbench.commands.options import ProfileOptions
from workbench.commands.result import write_result
from workbench.data.clock import slug
from workbench.data.exits import PASSED, stopped_by
from workbench.traces.profilers import ProfilerError, preflight, profilers
from workbench.traces.profilers.gputrace import MODULE, NAME
from workbench.traces.profilers.running.child import run_child
from workbench.traces.profilers.running.machine import Machine
from workbench.traces.profilers.running.workload import CALL_LIMIT_S, MarkedCalls, Workload

if TYPE_CHECKING:
    from rich.console import Console

FOLDER = Path("perf")


def trace_path(kernel: str, day: date, folder: Path = FOLDER) -> Path:
    """Return the name of a new capture, `perf/softmax_2026-11-24.gputrace`, with `_2` and so on
    where that one is there."""
    stem = f"{slug(catalog.spec_of(kernel).name)}_{day.isoformat()}"
    names = (f"{stem}.gputrace" if n == 1 else f"{stem}_{n}.gputrace" for n in count(1))
    return next(folder / name for name in names if not (folder / name).exists())


def words_of(options: ProfileOptions, *more: str) -> list[str]:
    """Return the options that name a call of a kernel, and `more` of them, as words."""
    given = ((name, getattr(options, name)) for name in ("impl", "sizes", "dtype", *more))
    return [word for name, v in given if v is not None for word in (f"--{name}", str(v))]


def capture_workload(options: ProfileOptions, machine: Machine, trace: Path) -> Workload:
    """Return the call of a kernel that is captured."""
    words = [machine.python, "-m", MODULE, catalog.absolute(str(options.kernel))]
    words += words_of(options, "calls")
    words += ["--trace", str(trace)]
    return Workload(tuple(words), str(options.kernel), marks=MarkedCalls(options.calls or 1, True))


def capture(options: ProfileOptions, machine: Machine, console: Console) -> int:
    """Take the capture, in a process of its own. Returns the exit code. Raises ProfilerError where
    it cannot be taken or is not there afterwards."""
    tool = profilers()[NAME]
    trace = trace_path(str(options.kernel), datetime.now(UTC).date())
    workload = capture_workload(options, machine, trace)
    preflight(tool, machine, workload)
    argv = tool.argv(machine, workload, FOLDER)
    FOLDER.mkdir(exist_ok=True)
    end = run_child(argv, CALL_LIMIT_S, own=True, aside=prints_aside(options), more=tool.variables)
    if end.stop_signal:
        return stopped_by(end.stop_signal)
    missing = [path for path in tool.reads(workload, FOLDER) if not path.exists()]
    if end.code or missing:
        lost = f"{missing[0]} is missing" if missing else f"it ended with code {end.code}"
        raise ProfilerError(f"The capture of {options.kernel} failed ({lost}); see above.")
    for path in tool.reads(workload, FOLDER):
        console.print(f"written  {path}", soft_wrap=True)
    console.print("Open it in Xcode; enter what it shows in the JSON file, under entered_by_hand.")
    return write_result(options, "profile", PASSED)
