"""The measuring process, with a standby process that replaces it when it is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, cast

from workbench.backend.workers import BEGIN_S, LOST, Solo, cause_of
from workbench.data.errors import first_line
from workbench.data.record import Environment
from workbench.device.hardware import Device
from workbench.measurement import preflight, worker
from workbench.spec import SpecFault, WorkbenchError


class Lost(Exception):
    """The measuring process died or was ended during a task. Its successor is in place."""

    def __init__(self, error: Exception, attempts: int = 1) -> None:
        super().__init__(str(error))
        self.cause = cause_of(error)
        self.attempts = attempts  # at this config that ended in the same cause


class WorkerRefused(WorkbenchError):
    """A worker may not take part; one sentence says what differs."""


class GpuGone(WorkbenchError):
    """The GPU that a problem was given is gone, with the worker of the cluster that has it. What
    was obtained is stored; the problem goes on with another GPU. Never raised by a GPU of this
    process."""


class Stopped(KeyboardInterrupt):
    """The command is being stopped: raised where a thread of it waits for a cluster, as Ctrl-C
    reaches the main thread alone."""


class CannotBegin(Exception):
    """The problem does not fit the GPU; the message is one sentence."""


class MeasuringProcess(Protocol):
    """What a live backend asks of a measuring process; see `Measuring`."""

    @property
    def seconds(self) -> Mapping[str, float]:
        """Return the seconds spent so far under check, timed and flush."""

    def describe(self, repository: Path | None) -> tuple[Device, Environment, str] | None:
        """Return device, environment and lock name of the GPU, or None."""

    def begin(self, job: worker.MeasureJob) -> None:
        """Prepare the process for a problem. Raises CannotBegin."""

    def prepare_standby(self) -> None:
        """Start the standby process where there is none."""

    def import_libraries(self, kernel: str) -> None:
        """Start to import what the libraries of a kernel need, before they are timed."""

    def wait_idle(self) -> None:
        """Wait until nothing disturbs timing. Raises CannotBegin."""

    def self_test(self) -> dict[str, float]:
        """Return the measured ceilings by name. Raises CannotBegin."""

    def lock(
        self, name: str, on_wait: Callable[[str], None], timeout_s: float | None = None
    ) -> AbstractContextManager[None]:
        """Return a context manager that holds the GPU's lock."""

    def ask(self, task: Callable[..., Any], *args: Any, timeout_s: float) -> Any:
        """Run a task of `worker` in the process. Returns its result. Raises Lost, CannotBegin."""

    def replace(self) -> None:
        """Replace the process."""

    def close(self) -> None:
        """End the process, or leave it to its owner."""


class Measuring:
    """Owner of the one process that uses the GPU's clock.

    A config that kills it costs no more than creating the inputs again: the standby process has
    already imported the compiler and opened the GPU.
    """

    def __init__(self, kernel: str = "", libraries_of: str = "") -> None:
        """Start the process; in the background it imports the compiler, opens the GPU and describes
        it for `kernel`; later it imports what the libraries of the kernel `libraries_of` need,
        where it is to time them."""
        self._libraries_of = libraries_of
        self._now = Solo(spawned=True)
        self._now.begin(worker.warm)
        self._promised_facts = self._now.promise(worker.describe_of, kernel) if kernel else None
        self._now.begin(worker.load)
        self._standby: Solo | None = None
        self._job: worker.MeasureJob | None = None
        self._is_begun = False
        self.seconds: Counter[str] = Counter()  # seconds: check, timed, flush
        self.lost_processes = 0

    def describe(self, repository: Path | None) -> tuple[Device, Environment, str] | None:
        """Return device, environment and lock name of the GPU, or None; see `worker.describe`.
        Raises Lost where the process dies or outlasts its limit."""
        try:
            result = self._description(repository)
        except LOST as error:
            raise Lost(error) from None
        if self._libraries_of and result is not None:
            self.import_libraries(self._libraries_of)
        return result

    def _description(self, repository: Path | None) -> tuple[Device, Environment, str] | None:
        if self._promised_facts is not None:
            try:
                at, facts = self._now.keep(self._promised_facts)
            except LOST:
                raise
            except Exception:  # of the kernel's file: its own import says it better
                at, facts = None, None
            if at == str(repository):
                return cast("tuple[Device, Environment, str] | None", facts)
        answer = self._now.ask(worker.describe, repository, timeout_s=BEGIN_S)
        return cast("tuple[Device, Environment, str] | None", answer)

    def begin(self, job: worker.MeasureJob) -> None:
        """Prepare the process for a problem. Raises CannotBegin where it does not fit."""
        self._job, self._is_begun = job, False
        self._ready()

    def _ready(self) -> None:
        if self._is_begun:
            return
        try:
            self._now.ask(worker.begin, self._job, timeout_s=BEGIN_S)
        except LOST as error:
            self.replace()
            raise CannotBegin(f"the process that makes the inputs {error}") from None
        except SpecFault:  # no other process could prepare the problem either
            raise
        except Exception as error:  # out of memory
            raise CannotBegin(first_line(error)) from None
        self._is_begun = True
        self.prepare_standby()

    def prepare_standby(self) -> None:
        """Start the standby process where there is none."""
        if self._standby is None:
            self._standby = Solo()
            self._standby.begin(worker.warm)
            self._standby.begin(worker.load)

    def import_libraries(self, kernel: str) -> None:
        """Start to import what the libraries of a kernel need, in the background."""
        self._now.begin(worker.import_libraries, kernel, 0, 1)

    def wait_idle(self) -> None:
        """Prepare the problem and wait until the standby process has opened the GPU, which would
        disturb timing. Raises CannotBegin."""
        self._ready()
        if self._standby is not None:
            try:
                self._standby.settle()
            except LOST:
                self._standby = None

    def self_test(self) -> dict[str, float]:
        """Return the measured ceilings by name: `dram` in B/s, `launch` and `resolution` in
        seconds. Raises CannotBegin where the process is lost."""
        try:
            result: dict[str, float] = self._now.ask(worker.self_test, timeout_s=BEGIN_S)
        except LOST as error:
            self.replace()
            raise CannotBegin(f"the self-test {error}") from None
        return result

    def references(self) -> dict[str, float]:
        """Return the library references by which GPUs of one model are compared; see
        `worker.references`. Raises CannotBegin where the process is lost."""
        try:
            result: dict[str, float] = self._now.ask(worker.references, timeout_s=BEGIN_S)
        except LOST as error:
            self.replace()
            raise CannotBegin(f"the library references {error}") from None
        return result

    def lock(
        self, name: str, on_wait: Callable[[str], None], timeout_s: float | None = None
    ) -> AbstractContextManager[None]:
        """Return a context manager that holds the GPU's lock; see `preflight.gpu_lock`."""
        return preflight.gpu_lock(name, on_wait, timeout_s)

    def ask(self, task: Callable[..., Any], *args: Any, timeout_s: float) -> Any:
        """Run a task of `worker` in the process and return its result.

        Raises Lost where the process dies or outlasts `timeout_s` seconds, CannotBegin where the
        problem no longer fits.
        """
        self._ready()
        try:
            result, spent = self._now.ask(task, *args, timeout_s=timeout_s)
        except LOST as error:
            self.replace()
            raise Lost(error) from None
        self.seconds["check"] += spent.check
        self.seconds["timed"] += spent.timing_s
        self.seconds["flush"] += spent.total - spent.check - spent.timing_s
        return result

    def aside(self, task: Callable[..., Any], *args: Any, timeout_s: float) -> Any:
        """Run another task in the process, between two problems, and return its result. Raises its
        error; unless that is a sentence, the process is replaced, as a launch may have spoilt it.
        """
        self._job, self._is_begun = None, False
        try:
            return self._now.ask(task, *args, timeout_s=timeout_s)
        except WorkbenchError:
            raise
        except Exception:
            self.replace()
            raise

    def replace(self) -> None:
        """Replace the process, which can measure nothing more after a GPU error."""
        self._now.end()
        self.lost_processes += 1
        self._now, self._standby = self._standby or Solo(), None
        self._is_begun = False

    def close(self) -> None:
        """End both processes."""
        for process in (self._now, self._standby):
            if process is not None:
                process.end()
