"""Run the program of `workload record`, `run` and `compare`: its command line, the variables by
which its Python processes import `workbench/workload/startup`, and its runs in fresh processes,
several of which may import ahead of their turn."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from workbench.data.exits import stopped_by
from workbench.spec import WorkbenchError
from workbench.traces.profilers.running.child import (
    ENDING_S,
    ChildEnd,
    run_child,
    start_child,
    wait_for_child,
)
from workbench.traces.profilers.running.expected import ending
from workbench.traces.profilers.running.machine import machine_here
from workbench.traces.profilers.running.workload import Workload, title_of, whole_command
from workbench.workload.deployed import Deployment
from workbench.workload.errors import WorkloadError
from workbench.workload.gate import Gate
from workbench.workload.startup import sitecustomize
from workbench.workload.step_marks import MarkOptions

LOOK_S = 0.05  # between two looks at runs that import
NOTE_S = 60.0  # imports of a large program take up to this


def program_words(program: Sequence[str]) -> list[str]:
    """Return the command line of a program. Raises WorkloadError where there is no such program."""
    machine = machine_here(tuple(program[:1]))
    words = whole_command(Workload(tuple(program), title_of(program)), machine)
    if shutil.which(words[0]) is None and not Path(words[0]).exists():
        raise WorkloadError(f"There is no program {words[0]}; name one that is on the path.")
    return words


def startup_variables(more: Mapping[str, str]) -> dict[str, str]:
    """Return these variables, and the PYTHONPATH with which Python processes heed them."""
    own = str(Path(sitecustomize.__file__).resolve().parent)
    paths = [own, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths), **more}


class UngatedError(WorkbenchError):
    """A run ended before its turn; the message is one sentence."""


@dataclass(frozen=True)
class StartedRun:
    """A run that imports, or waits for its turn."""

    process: subprocess.Popen[bytes]
    gate: Gate


@dataclass
class ProgramRunner:
    """Runs of the program, each in a fresh process, in the order of `rounds`. As many as
    `concurrency` import at the same time, and then take turns; `tell` is called with notes on
    those."""

    words: list[str]
    marks: MarkOptions
    deployment: Deployment  # of the runs with the table
    rounds: int
    concurrency: int
    aside: bool  # its output goes to standard error
    tell: Callable[[str], None]
    now: Callable[[], float] = time.perf_counter
    started_runs: dict[tuple[int, bool], StartedRun] = field(default_factory=dict)

    def __enter__(self) -> ProgramRunner:
        self._place = Path(tempfile.mkdtemp(prefix="workbench-compare-"))
        return self

    def __exit__(self, *_: object) -> None:
        for run in self.started_runs.values():
            run.gate.close()
            run.process.terminate()
        for run in self.started_runs.values():
            with suppress(subprocess.TimeoutExpired):
                run.process.wait(ENDING_S)
            run.process.kill()
            run.process.wait()
        shutil.rmtree(self._place, ignore_errors=True)

    @contextmanager
    def once(self, number: int, pinned: bool) -> Iterator[tuple[Path, ChildEnd, float]]:
        """Return a context manager of the folder with what a run left, of how it ended, and of its
        wall time in seconds; where it waited for its turn, from then on. Raises UngatedError where
        a run did not wait."""
        folder = self._folder(number, pinned)
        if self.concurrency == 1:
            began = self.now()
            end = run_child(
                self.words, own=False, aside=self.aside, more=self._variables(folder, pinned)
            )
        else:
            if (number, pinned) not in self.started_runs:
                self._start(number, pinned)
            run = self.started_runs[number, pinned]
            began = self.now()
            run.gate.open()
            end = wait_for_child(run.process)
            del self.started_runs[number, pinned]
        yield folder, end, self.now() - began
        shutil.rmtree(folder, ignore_errors=True)

    def _start(self, number: int, pinned: bool) -> None:
        """Start this run and those that follow it, and wait until all of them wait."""
        planned = [(n, p) for n in range(self.rounds) for p in order_of(n)]
        at = planned.index((number, pinned))
        for each in planned[at : at + self.concurrency]:
            folder = self._folder(*each)
            gate = Gate(folder)
            process = start_child(
                self.words, own=False, aside=self.aside, more=self._variables(folder, each[1])
            )
            self.started_runs[each] = StartedRun(process, gate)
        began = noted = self.now()
        while left := sum(not run.gate.waited_for for run in self.started_runs.values()):
            if (now := self.now()) - noted >= NOTE_S:
                noted = now
                self.tell(
                    f"after {now - began:.0f} s {left} of {len(self.started_runs)} runs have not "
                    "used the GPU through torch, nor marked a step; a run that never does so "
                    "needs a comparison without --at-once"
                )
            for run in self.started_runs.values():
                if (code := run.process.poll()) is not None:
                    how = ending(code if code >= 0 else stopped_by(-code))
                    raise UngatedError(
                        f"A run ended with {how} before its first use of the GPU through torch "
                        "and its first step, so --at-once cannot schedule it; see what it printed, "
                        "or compare without --at-once."
                    )
            time.sleep(LOOK_S)

    def _folder(self, number: int, pinned: bool) -> Path:
        folder = self._place / f"{number}-{int(pinned)}"
        folder.mkdir(exist_ok=True)
        return folder

    def _variables(self, folder: Path, pinned: bool) -> dict[str, str]:
        marks = replace(self.marks, folder=str(folder), gate=self.concurrency > 1)
        more = {sitecustomize.MARKS: marks.text(), sitecustomize.TUNED: ""}
        if pinned:
            more[sitecustomize.TUNED] = replace(self.deployment, folder=str(folder)).text()
        return startup_variables(more)


def order_of(number: int) -> tuple[bool, bool]:
    """Return which run of a round has the table, in order: A B, B A, A B, ..."""
    return (False, True) if number % 2 == 0 else (True, False)
