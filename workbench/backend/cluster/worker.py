"""Functions that run in a worker of a Dask cluster. Dask also loads this file into local workers.

The Dask worker itself imports no kernel and opens no GPU: its own child processes do, as those of a
command on one machine. Results travel as bytes that are read without running what they name.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.backend import replies
from workbench.backend.cluster.joining import GpuReport, WorkerReport, files_hash
from workbench.backend.measuring import Measuring
from workbench.backend.processes import CompileJob
from workbench.backend.workers import BEGIN_S, Workers
from workbench.catalog.source import load_kernel
from workbench.data.environment import GPU_VARIABLES, fingerprint
from workbench.data.locks import LockBusy
from workbench.data.temporary import temporary_folder

# Replaced by stand-ins in tests, where there is no GPU and no compiler.
new_measuring: Callable[[], Measuring] = Measuring
new_pool: Callable[[int], Workers] = Workers
environment = fingerprint


def dask_setup(worker: Any) -> None:
    """Prepare a local worker; Dask calls it. Ctrl-C is the parent's, which ends its workers."""
    with suppress(ValueError):  # not the main thread
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def run_to_bytes(task: Callable[..., Any], *args: Any) -> bytes:
    """Run a task of this file and return the bytes of its result or error; see `replies`."""
    try:
        return replies.write(True, task(*args))
    except Exception as error:
        return replies.write(False, error)


def report() -> WorkerReport:
    """Return what the parent compares with itself before it gives this worker any work."""
    _let_have_children()
    return WorkerReport(
        host=socket.gethostname(),
        versions=dict(environment(None, None).versions),
        code=files_hash(),
        pid=os.getpid(),
    )


def kernel_hashes(kernel: str) -> dict[str, str]:
    """Return the hash of the code of each Impl of a kernel, as this host has it. A process of its
    own imports it. Raises the error of the import."""
    result: dict[str, str] = _pool().submit(code_of, kernel, timeout_s=BEGIN_S).result()
    return result


def code_of(kernel: str) -> dict[str, str]:
    """Return the hash of each Impl's code; runs in a compiling process."""
    return dict(load_kernel(kernel).hashes)


def missing(paths: Sequence[Path]) -> list[Path]:
    """Return the paths that are not there on this host."""
    return [path for path in paths if not path.exists()]


def run_in_pool(task: Callable[..., Any], args: tuple[Any, ...], timeout_s: float) -> Any:
    """Run a task, such as `compile_task`, in this worker's pool. Returns its result."""
    pool = _pool()
    if args and isinstance(args[0], CompileJob):
        args = (_replace_claims(args[0]), *args[1:])
    return pool.submit(task, *args, timeout_s=timeout_s).result()


_pools: list[Workers] = []  # one, once it was needed
_claims: dict[Path, Path] = {}  # by the folder of the parent's host
_starting = threading.Lock()
_exits = ExitStack()


def _pool() -> Workers:
    """Return the pool of this worker, one process a thread of Dask's, started when needed."""
    from distributed import get_worker

    _let_have_children()
    with _starting:
        if not _pools:
            _pools.append(new_pool(get_worker().state.nthreads))
        return _pools[0]


def _replace_claims(job: CompileJob) -> CompileJob:
    """Return the job with a folder of this host for its claims, where the parent's is of another:
    equal code is then compiled once on each host."""
    if job.claims is None or job.claims.is_dir():
        return job
    with _starting:
        if job.claims not in _claims:
            _claims[job.claims] = _exits.enter_context(temporary_folder())
    return replace(job, claims=_claims[job.claims])


def _let_have_children() -> None:
    """Let this process start others. A nanny marks its worker as a daemon, which may not."""
    process = multiprocessing.current_process()
    if process.daemon:
        process.daemon = False


class GpuActor:
    """Owner of the measuring process of one GPU worker, and of the GPU's lock. A Dask actor: the
    scheduler drops it when its client has gone, which ends both."""

    def __init__(self) -> None:
        _let_have_children()
        self._gpu = new_measuring()
        self._locks = ExitStack()

    def perform(self, name: str, *args: Any) -> bytes:
        """Call a method of the measuring process, or one of this class, by its name. Returns the
        bytes of its result with the seconds spent so far."""
        own: dict[str, Callable[..., Any]]
        own = {
            "open": self._open,
            "lock": self._lock,
            "unlock": self._locks.close,
            "aside": self._aside,
        }
        method = own.get(name) or getattr(self._gpu, name)
        return run_to_bytes(lambda: (method(*args), dict(self._gpu.seconds)))

    def ask(self, task: Callable[..., Any], args: tuple[Any, ...], timeout_s: float) -> bytes:
        """Run a task in the measuring process. Returns as `perform`."""
        return run_to_bytes(
            lambda: (self._gpu.ask(task, *args, timeout_s=timeout_s), dict(self._gpu.seconds))
        )

    def _open(self) -> GpuReport | None:
        """Return the GPU of this worker, or None where torch sees none."""
        described = self._gpu.describe(None)
        if described is None:
            return None
        device, environment, lock = described
        return GpuReport(device, environment, lock, _index())

    def _lock(self, name: str) -> str | None:
        """Take the GPU's lock. Returns None, or the sentence that says who holds it."""
        try:
            self._locks.enter_context(self._gpu.lock(name, lambda _: None, timeout_s=0))
        except LockBusy as error:
            return str(error)
        return None

    def _aside(self, task: Callable[..., Any], args: tuple[Any, ...], timeout_s: float) -> Any:
        """Run a task in a process of its own that sees the same GPU."""
        with new_pool(1) as pool:
            return pool.submit(task, *args, timeout_s=timeout_s).result()

    def __del__(self) -> None:
        with suppress(Exception):
            self._locks.close()
            self._gpu.close()


def _index() -> str:
    """Return the number of the GPU on its host as the environment names it; "0" where all are
    visible, since torch takes the first one."""
    named = next((os.environ[v] for v in GPU_VARIABLES if os.environ.get(v)), "0")
    return named.split(",")[0]
