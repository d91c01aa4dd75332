"""The process that measures, with a warm one beside it that takes over when it is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workbench.backend.workers import BEGIN_S, LOST, Solo
from workbench.data.record import Environment
from workbench.device.hardware import Device
from workbench.measurement import worker


class Lost(Exception):
    """The measuring process died or was ended during a task. Its successor is in place."""


class CannotBegin(Exception):
    """The problem does not fit the GPU: one sentence."""


class Measuring:
    """One process at a time touches the GPU's clock. A config that takes it down costs no more
    than making the inputs anew: the next process has its imports and its context already."""

    def __init__(self) -> None:
        """Starts it: it imports the compiler and opens the GPU while others do other things."""
        self._now = Solo()
        self._now.begin(worker.warm)
        self._standby: Solo | None = None
        self._job: worker.MeasureJob | None = None
        self._begun = False
        self.spent: Counter[str] = Counter()  # seconds: check, timed, flush
        self.lost = 0  # processes

    def describe(self, repository: Path | None) -> tuple[Device, Environment, str] | None:
        """See `worker.describe`. Raises Lost where the GPU takes the process that asks with it."""
        try:
            result: tuple[Device, Environment, str] | None = self._now.ask(
                worker.describe, repository, timeout_s=BEGIN_S
            )
        except LOST as error:
            raise Lost(str(error)) from None
        self._now.begin(worker.load)  # while its owner plans
        return result

    def begin(self, job: worker.MeasureJob) -> None:
        """Give it a problem. Raises CannotBegin."""
        self._job, self._begun = job, False
        self._ready()

    def _ready(self) -> None:
        if self._begun:
            return
        try:
            self._now.ask(worker.begin, self._job, timeout_s=BEGIN_S)
        except LOST as error:
            self._replace()
            raise CannotBegin(f"the process that makes the inputs {error}") from None
        except Exception as error:  # out of memory, a reference that fails
            text = str(error).strip().splitlines() or [type(error).__name__]
            raise CannotBegin(text[0]) from None
        self._begun = True
        self.prepare_standby()

    def prepare_standby(self) -> None:
        """Start the process that takes over, where there is none."""
        if self._standby is None:
            self._standby = Solo()
            self._standby.begin(worker.warm)
            self._standby.begin(worker.load)

    def wait_idle(self) -> None:
        """Begin the problem, and wait until the spare process has opened the GPU: while it does,
        nothing can be timed well. Raises CannotBegin."""
        self._ready()
        if self._standby is not None:
            try:
                self._standby.settle()
            except LOST:
                self._standby = None

    def self_test(self) -> dict[str, float]:
        """Measured ceilings, by name. Raises CannotBegin."""
        try:
            result: dict[str, float] = self._now.ask(worker.self_test, timeout_s=BEGIN_S)
        except LOST as error:
            self._replace()
            raise CannotBegin(f"the self-test {error}") from None
        return result

    def ask(self, task: Callable[..., Any], *args: Any, timeout_s: float) -> Any:
        """The result of a task of `worker`. Raises Lost, or CannotBegin when the problem did not
        fit any more."""
        self._ready()
        try:
            result, spent = self._now.ask(task, *args, timeout_s=timeout_s)
        except LOST as error:
            self._replace()
            raise Lost(str(error)) from None
        self.spent["check"] += spent.check
        self.spent["timed"] += spent.timed
        self.spent["flush"] += spent.total - spent.check - spent.timed
        return result

    def poisoned(self) -> None:
        """The process can measure nothing any more: let the next one take over."""
        self._replace()

    def _replace(self) -> None:
        self._now.end()
        self.lost += 1
        self._now, self._standby = self._standby or Solo(), None
        self._begun = False

    def close(self) -> None:
        """End both processes."""
        for process in (self._now, self._standby):
            if process is not None:
                process.end()
