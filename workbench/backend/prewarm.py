"""Start the processes of a live sweep before anything else is imported.

Importing takes seconds in the measuring process, in the compilers and for the kernel's file here;
starting early lets these overlap.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from workbench.backend.measuring import Measuring, MeasuringProcess
from workbench.backend.processes import prepare
from workbench.backend.workers import Pool, Workers, cpu_count
from workbench.data.environment import gpu_shown


class LiveProcesses(Protocol):
    """Processes of a live backend that were started before it: of this machine, or of a worker of a
    cluster."""

    @property
    def gpu(self) -> MeasuringProcess:
        """Return the measuring process."""

    @property
    def compilers(self) -> Pool:
        """Return the pool of compiling processes."""


class Prewarm:
    """Processes that start in a background thread, as their server must import torch first. The
    properties block until they are there."""

    def __init__(self, kernel: str) -> None:
        starting = ThreadPoolExecutor(1)
        self._gpu = starting.submit(Measuring)
        self._compilers = starting.submit(compilers, kernel)
        starting.shutdown(wait=False)

    @property
    def gpu(self) -> Measuring:
        """Return the measuring process."""
        return self._gpu.result()

    @property
    def compilers(self) -> Workers:
        """Return the pool of compiling processes."""
        return self._compilers.result()

    def close(self) -> None:
        """End all of them."""
        self.compilers.close()
        self.gpu.close()


def begin_prewarm(kernel: str) -> Prewarm | None:
    """Start the processes and return them, or None where no GPU is visible."""
    return Prewarm(kernel) if gpu_shown() else None


def compilers(kernel: str) -> Workers:
    """Start and return a pool of compiling workers that import the compiler and the kernel's
    file."""
    pool = Workers(max(1, cpu_count() - 1))  # one CPU is left to launch
    pool.everywhere(prepare, kernel)
    return pool
