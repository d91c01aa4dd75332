"""The live backend on a GPU of a cluster: its measuring process and its compilers are elsewhere."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from workbench import catalog
from workbench.backend import replies
from workbench.backend.cluster import worker as cluster_worker
from workbench.backend.cluster.cluster import POLL_S, Cluster, ClusterGpu, ClusterWorker, WorkerDied
from workbench.backend.live import Live
from workbench.backend.measuring import GpuGone, Lost, Stopped, WorkerRefused
from workbench.backend.protocol import GpuPlace
from workbench.data.environment import fingerprint
from workbench.data.record import Environment
from workbench.device.hardware import Device
from workbench.measurement import worker
from workbench.measurement.candidate import Candidate, Refusal, Timed
from workbench.measurement.protocol import Protocol


class RemoteMeasuring:
    """The measuring process of a GPU worker, for one problem at a time."""

    def __init__(self, gpu: ClusterGpu) -> None:
        self._gpu = gpu

    @property
    def seconds(self) -> Counter[str]:
        """Seconds of the worker's process so far: check, timed, flush."""
        return self._gpu.seconds

    def _check(self) -> None:
        if self._gpu.worker.gone_event.is_set():
            raise _gone_error(self._gpu)

    def _perform(self, name: str, *args: Any) -> Any:
        self._check()
        try:
            return self._gpu.perform(name, *args)
        except WorkerDied:
            raise _gone_error(self._gpu) from None

    def describe(self, repository: Path | None) -> tuple[Device, Environment, str] | None:
        """Return what the worker reported as it joined, with the commit of the repository here.
        Raises GpuGone."""
        self._check()
        gpu, here = self._gpu.gpu, fingerprint(None, repository)
        environment = replace(gpu.environment, commit=here.commit, dirty=here.dirty)
        return gpu.device, environment, gpu.lock

    def begin(self, job: worker.MeasureJob) -> None:
        """Prepare the process for a problem. Raises CannotBegin or GpuGone."""
        self._perform("begin", replace(job, kernel=catalog.absolute(job.kernel)))

    def prepare_standby(self) -> None:
        """Start the standby process where there is none. Raises GpuGone."""
        self._perform("prepare_standby")

    def import_libraries(self, kernel: str) -> None:
        """Do nothing: the worker imports them at their first launch."""

    def wait_idle(self) -> None:
        """Wait until nothing disturbs timing. Raises CannotBegin or GpuGone."""
        self._perform("wait_idle")

    def self_test(self) -> dict[str, float]:
        """Return the measured ceilings by name. Raises CannotBegin or GpuGone."""
        result: dict[str, float] = self._perform("self_test")
        return result

    def replace(self) -> None:
        """Replace the process, which can measure nothing more. Raises GpuGone."""
        self._perform("replace")

    def lock(
        self, name: str, on_wait: Callable[[str], None], timeout_s: float | None = None
    ) -> AbstractContextManager[None]:
        """Return a context manager that does nothing: the worker holds the lock since it joined."""
        return nullcontext()

    def ask(self, task: Callable[..., Any], *args: Any, timeout_s: float) -> Any:
        """Return the result of a task, as `Measuring.ask`. Where the worker dies during it, raises
        Lost with the cause "crash", and GpuGone at every later call."""
        self._check()
        try:
            return self._gpu.ask(task, args, timeout_s)
        except WorkerDied:
            of_config = args and isinstance(args[0], Candidate)
            deaths = self._gpu.cluster.died_at(args[0].key) if of_config else 1
            text = f"the worker of {self._gpu.title} died"
            raise Lost(ChildProcessError(text), attempts=deaths) from None

    def close(self) -> None:
        """Do nothing: the worker goes on with another problem."""


def _gone_error(gpu: ClusterGpu) -> GpuGone:
    return GpuGone(f"The worker of {gpu.title} has left the cluster.")


class ClusterPool:
    """Compiling processes of all workers that have a kernel, as one pool for one problem."""

    def __init__(self, gpu: ClusterGpu, workers: list[ClusterWorker]) -> None:
        self._gpu, self._workers = gpu, workers
        self._pending: dict[Future[Any], Any] = {}  # with Dask's own future
        self._lock = threading.Lock()
        self._end_event = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def submit(self, task: Callable[..., Any], *args: Any, timeout_s: float) -> Future[Any]:
        """Run a task in a compiling process of any of the workers. Returns a future that raises as
        that of `Workers.submit`, or GpuGone or Stopped."""
        promise: Future[Any] = Future()
        if (error := self._end_reason()) is not None:
            promise.set_exception(error)
            return promise
        places = [w.address for w in self._workers if not w.gone_event.is_set()]
        inner = self._gpu.cluster.client.submit(
            cluster_worker.run_to_bytes, cluster_worker.run_in_pool, task, args, timeout_s,
            workers=places, allow_other_workers=False, pure=False,
        )  # fmt: skip
        with self._lock:
            self._pending[promise] = inner
        inner.add_done_callback(lambda done: self._finish(promise, done))
        return promise

    def _finish(self, promise: Future[Any], inner: Any) -> None:
        with self._lock:
            if self._pending.pop(promise, None) is None:
                return
        try:
            right, value = replies.read(inner.result(timeout=60))
            error = None if right else value
        except Exception as failure:  # Dask's: each worker that tried it died, or all are gone
            value = None
            error = self._end_reason() or ChildProcessError(f"its worker died ({failure})")
        _settle(promise, value, error)

    def _end_reason(self) -> BaseException | None:
        if self._gpu.cluster.stopping:
            return Stopped()
        return _gone_error(self._gpu) if self._gpu.worker.gone_event.is_set() else None

    def _watch(self) -> None:
        """End what is pending when the problem's GPU is gone or the command is stopped: a task that
        is bound to workers that have left stays pending for ever."""
        while not self._end_event.wait(POLL_S):
            if (error := self._end_reason()) is not None:
                self._drop(error)

    def _drop(self, error: BaseException) -> None:
        with self._lock:
            pending, self._pending = self._pending, {}
        for promise in pending:
            _settle(promise, None, error)

    def close(self) -> None:
        """Cancel what is pending. The processes stay with their workers."""
        self._end_event.set()
        with self._lock:
            pending, self._pending = self._pending, {}
        for inner in pending.values():
            with suppress(Exception):
                inner.cancel()


def _settle(promise: Future[Any], value: Any, error: BaseException | None) -> None:
    with suppress(InvalidStateError):  # cancelled meanwhile
        if error is None:
            promise.set_result(value)
        else:
            promise.set_exception(error)


class AsidePool:
    """One process beside the measuring process that sees the same GPU, started for each task."""

    def __init__(self, gpu: ClusterGpu) -> None:
        self._gpu = gpu

    def submit(self, task: Callable[..., Any], *args: Any, timeout_s: float) -> Future[Any]:
        """Run a task to its end. Returns a future that is done and raises as `Workers.submit`, or
        GpuGone."""
        promise: Future[Any] = Future()
        try:
            self._check_disk([arg for arg in args if isinstance(arg, Path)])
            promise.set_result(self._gpu.perform("aside", task, args, timeout_s))
        except WorkerDied:
            promise.set_exception(_gone_error(self._gpu))
        except Exception as error:
            promise.set_exception(error)
        return promise

    def _check_disk(self, paths: list[Path]) -> None:
        """Raise WorkerRefused where the worker does not see these paths."""
        cluster, worker = self._gpu.cluster, self._gpu.worker
        if gone := cluster.result_of(worker.address, cluster_worker.missing, paths):
            reason = (
                f"The worker {worker.name} does not see {gone[0].parent}; name a folder on a disk "
                "that all hosts share: --out FOLDER."
            )
            cluster.refuse(reason)
            raise WorkerRefused(reason)

    def close(self) -> None:
        """Do nothing: the process has ended with its task."""


@dataclass(frozen=True)
class _RemoteProcesses:
    """See `prewarm.LiveProcesses`."""

    gpu: RemoteMeasuring
    compilers: ClusterPool
    libraries: None = None


NOT_HERE = "is not timed on the GPUs of a cluster; `workbench measure` times it on one of them"


class ClusterLive(Live):
    """The live backend on one GPU of a cluster. Compiles on all its workers with the kernel."""

    def __init__(
        self, gpu: ClusterGpu, kernel: str, repository: Path | None, rules: Protocol | None = None
    ) -> None:
        """Raises WorkerRefused where the GPU's worker has other code of the kernel; GpuGone."""
        workers = list(gpu.cluster.compiling(catalog.absolute(kernel)))
        if gpu.worker.gone_event.is_set():
            raise _gone_error(gpu)
        if gpu.worker not in workers:
            raise WorkerRefused(f"The worker {gpu.worker.name} has not the code of {kernel}.")
        processes = _RemoteProcesses(RemoteMeasuring(gpu), ClusterPool(gpu, workers))
        super().__init__(repository, rules, prewarm=processes)
        self.place = GpuPlace(gpu.title, dict(gpu.references))

    def begin_libraries(self) -> None:
        """Do nothing: a GPU of a cluster has a measuring process alone."""

    def libraries(
        self, winner: Candidate, libraries: Sequence[Candidate], limit_s: float
    ) -> list[tuple[Timed | Refusal, float | None]]:
        """Return for each that it is not timed here."""
        return [(Refusal("measure", NOT_HERE), None) for _ in libraries]


__all__ = ["AsidePool", "Cluster", "ClusterLive", "ClusterPool", "RemoteMeasuring"]
