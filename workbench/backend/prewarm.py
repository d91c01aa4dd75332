"""Start the processes of a live sweep before anything else is imported.

Importing takes seconds in the measuring process, in the compilers and for the kernel's file here;
starting early lets these overlap.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from enum import Enum
from typing import Any, Protocol

from workbench.backend.library_processes import LibraryProcesses
from workbench.backend.measuring import Measuring, MeasuringProcess
from workbench.backend.processes import import_compiler, prepare
from workbench.backend.workers import (
    BEGIN_S,
    Pool,
    Workers,
    cpu_count,
    end_server,
    preload_compiler,
)
from workbench.data.environment import gpu_shown
from workbench.measurement import worker


class Libraries(Enum):
    """Who times the libraries of a kernel that are slow to import."""

    NOBODY = "nobody"
    OTHERS = "separate processes, with the winner"
    MEASURING = "the measuring process, in one final with all others"


class LiveProcesses(Protocol):
    """Processes of a live backend that were started before it: of this machine, or of a worker of a
    cluster."""

    @property
    def gpu(self) -> MeasuringProcess:
        """Return the measuring process."""

    @property
    def compilers(self) -> Pool | None:
        """Return the pool of compiling processes, if they were started."""

    @property
    def libraries(self) -> LibraryProcesses | None:
        """Return the processes of slow libraries, if they were started."""


class Prewarm:
    """Processes that start in a background thread, as their server must import torch first. The
    properties block until they are there."""

    def __init__(self, kernel: str, libraries: Libraries, compiles: bool = True) -> None:
        """Start them. Where nothing is compiled the command may interpret kernels, too: it starts
        its compilers itself, and the measuring process does not import the kernel."""
        self._inside = libraries is Libraries.MEASURING
        # Where Python keeps no bytecode they also import what another process imports: of what
        # they have compiled it reads the bytecode. Half of the 10 s of torch.compile is compiling.
        wanted = libraries is Libraries.OTHERS or (self._inside and bool(sys.pycache_prefix))
        starting = ThreadPoolExecutor(1)
        own = kernel if compiles else ""
        self._gpu = starting.submit(Measuring, own, kernel if self._inside else "")
        self._compilers = None
        if compiles:
            preload_compiler()
            self._compilers = starting.submit(compilers, kernel)
        self._others = None
        if wanted:
            self._others = starting.submit(LibraryProcesses, kernel, not self._inside)
        starting.shutdown(wait=False)

    @property
    def gpu(self) -> Measuring:
        """Return the measuring process."""
        return self._gpu.result()

    @property
    def compilers(self) -> Workers | None:
        """Return the pool of compiling processes, if they were started."""
        return self._compilers.result() if self._compilers else None

    @property
    def libraries(self) -> LibraryProcesses | None:
        """Return the processes of slow libraries, if they are to time them."""
        return self._others.result() if self._others and not self._inside else None

    def close(self) -> None:
        """End all of them, at once: the driver takes 0.2 s to release each that opened the GPU."""
        with ThreadPoolExecutor(3) as threads:
            for started in (self._others, self._compilers, self._gpu):
                if started is not None:
                    threads.submit(started.result().close)
        end_server()


def begin_prewarm(
    kernel: str, libraries: Libraries = Libraries.OTHERS, compiles: bool = True
) -> Prewarm | None:
    """Start the processes and return them, or None where no GPU is visible."""
    return Prewarm(kernel, libraries, compiles) if gpu_shown() else None


@contextmanager
def prewarmer(
    kernel: str, libraries: Libraries, *, wanted: bool = True, compiles: bool = True
) -> Iterator[Prewarm | None]:
    """Return a context manager that starts the processes, where they are `wanted` and a GPU is
    visible, and ends them. To be entered before slow imports."""
    processes = begin_prewarm(kernel, libraries, compiles) if wanted else None
    try:
        yield processes
    finally:
        if processes is not None:
            processes.close()


def compilers(kernel: str) -> Workers:
    """Start and return a pool of compiling workers that import compiler and kernel."""
    pool = Workers(max(1, cpu_count() - 1))  # one CPU is left to launch
    pool.everywhere(prepare, kernel)
    return pool


class KeptProcesses:
    """Processes of live backends that follow each other, such as those of a workload's signatures:
    each imports a library once, which takes some 10 s of fla-core. A backend's `close` leaves them;
    `end` ends them. As a pool it runs a task in the measuring process, between two problems."""

    def __init__(self) -> None:
        self._measuring = Measuring()
        self._count = max(1, cpu_count() - 1)
        self._workers = Workers(self._count)
        self._workers.everywhere(import_compiler)  # while the measuring process opens the GPU
        self.gpu: MeasuringProcess = _Left(self._measuring)
        self.libraries = None  # nothing of a workload has a library's version
        self.compilers: Pool = _Left(self._workers)

    def prepare(self, kernel: str) -> None:
        """Import a kernel and what its launches need in all processes at once, and wait for it.
        What fails is said by the backend that begins with it."""
        every = [
            self._workers.submit(prepare, kernel, timeout_s=BEGIN_S) for _ in range(self._count)
        ]
        with suppress(Exception):
            self._measuring.aside(worker.import_kernel, kernel, timeout_s=BEGIN_S)
        for each in every:
            each.exception()

    def submit(self, task: Callable[..., Any], *args: Any, timeout_s: float) -> Future[Any]:
        """Run a task in the measuring process; return a future that is done."""
        future: Future[Any] = Future()
        try:
            future.set_result(self._measuring.aside(task, *args, timeout_s=timeout_s))
        except Exception as error:
            future.set_exception(error)
        return future

    def close(self) -> None:
        """Leave the processes to `end`."""

    def end(self) -> None:
        """End all processes, at once."""
        with ThreadPoolExecutor(2) as threads:
            for one in (self._workers, self._measuring):
                threads.submit(one.close)


class _Left:
    """A pool or a measuring process whose `close` leaves it to its owner."""

    def __init__(self, of: Any) -> None:
        self._of = of

    def close(self) -> None:
        """Leave it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)
