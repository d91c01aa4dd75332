"""A Dask cluster whose workers own GPUs or compile: who takes part, and calls to one worker.

This process plans, decides and stores. A worker with the resource GPU holds a measuring process;
see `cluster_worker`. Every wait here ends when the worker, the scheduler or the command is gone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from workbench.backend import replies
from workbench.backend.cluster import worker as cluster_worker
from workbench.backend.cluster.joining import (
    GpuReport,
    WorkerReport,
    files_hash,
    kernel_refusal,
    model_refusal,
    software_refusal,
)
from workbench.backend.measuring import Stopped, WorkerRefused
from workbench.catalog.source import load_kernel
from workbench.data.environment import GPU_VARIABLES, fingerprint, gpus_of_host
from workbench.data.errors import first_sentence
from workbench.spec import WorkbenchError

INSTALL = "pip install 'kernel-workbench[cluster]'"
POLL_S = 0.2  # between looks at whether a worker that is waited for is still there
SCHEDULER_S = 120.0  # a scheduler's service and its workers are back within a minute, usually
ASK_S = 10.0  # of the scheduler, for the list of its workers
JOIN_S = 60.0  # for the first GPU worker, and for another one when none is left
CONNECT_S = 10.0
GPU = "GPU"  # the resource that a worker with a GPU declares

# Dask's own messages say nothing that a sentence here does not; its default prints each connection.
_LOGGERS = ("", ".client", ".worker", ".nanny", ".scheduler", ".core", ".http.proxy")
QUIET = {"logging": {f"distributed{name}": "critical" for name in _LOGGERS}}


class ClusterError(WorkbenchError):
    """A cluster cannot be used; one sentence says why and what to do next."""


class WorkerDied(Exception):
    """A worker left during a call. Not an outcome by itself."""


class SchedulerGone(Exception):
    """The scheduler does not answer."""


def require_distributed() -> None:
    """Raise ClusterError where Dask's scheduler is not installed."""
    if find_spec("distributed") is None:
        raise ClusterError(f"--workers needs Dask's distributed, which is not installed: {INSTALL}")


@dataclass(eq=False)
class ClusterWorker:
    """A worker that takes part."""

    address: str
    name: str  # in sentences
    threads: int
    report: WorkerReport
    gone_event: threading.Event = field(default_factory=threading.Event)
    kernels: dict[str, bool] = field(default_factory=dict)  # by name: whether it is the one here
    checking: threading.Lock = field(default_factory=threading.Lock)  # of one


@dataclass(eq=False)
class ClusterGpu:
    """A worker with a GPU that no other command uses, as it holds the GPU's lock."""

    cluster: Cluster
    worker: ClusterWorker
    actor: Any
    report: GpuReport | None = None
    references: Mapping[str, float] = field(default_factory=dict)
    seconds: Counter[str] = field(default_factory=Counter)  # seconds there: check, timed, flush

    @property
    def gpu(self) -> GpuReport:
        """What the worker reported of its GPU, as it joined."""
        assert self.report is not None
        return self.report

    @property
    def title(self) -> str:
        """Name of the GPU on terminals, pages and in outcomes."""
        return self.gpu.title(self.worker.report.host)

    def perform(self, name: str, *args: Any) -> Any:
        """Call a method of the worker's measuring process. Returns its result. Raises what the
        method raises, WorkerDied or Stopped."""
        return self._read(
            self.cluster.resolve(self.worker, lambda: self.actor.perform(name, *args))
        )

    def ask(self, task: Any, args: tuple[Any, ...], timeout_s: float) -> Any:
        """Run a task in the worker's measuring process. Returns as `perform`."""
        call = self.cluster.resolve(self.worker, lambda: self.actor.ask(task, args, timeout_s))
        return self._read(call)

    def _read(self, data: bytes) -> Any:
        result, spent = _value(data)
        self.seconds = Counter(spent)
        return result


class Cluster:
    """Workers of one Dask scheduler. `gpus` and `workers` are those that take part now."""

    def __init__(
        self,
        connect: Callable[[], Any],
        place: str,
        notify: Callable[[str], None],
        local: Any = None,
    ) -> None:
        """Connect. `connect()` returns a new Client; `place` names the scheduler in sentences;
        `notify(message)` is called for each worker that is refused or has left. `local` is a
        cluster of this process, ended by `close`. Raises ClusterError."""
        self._connect, self.place, self._notify, self._local = connect, place, notify, local
        self._ours = WorkerReport("", dict(fingerprint(None, None).versions), files_hash(), 0)
        self._lock = threading.RLock()
        self._addresses: set[str] = set()  # addresses that are or were joining
        self._first: ClusterGpu | None = None
        self.workers: dict[str, ClusterWorker] = {}
        self.gpus: list[ClusterGpu] = []
        self.refusals: list[str] = []
        self.deaths: Counter[str] = Counter()  # of workers, by the key of the config that ran
        self._stop: threading.Event = threading.Event()
        self.client = self._try_connect(CONNECT_S)

    def _try_connect(self, limit_s: float) -> Any:
        try:
            return self._connect()
        except (OSError, ValueError, TypeError, RuntimeError) as error:
            raise ClusterError(
                f"The scheduler {self.place} does not answer ({first_sentence(error)}); start it "
                "with `dask scheduler`, or correct --workers."
            ) from None

    # Waiting

    def stop(self) -> None:
        """End all waits of other threads with Stopped."""
        self._stop.set()

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stop.is_set()

    def check(self, worker: ClusterWorker | None) -> None:
        """Raise Stopped where the command is being stopped, WorkerDied where a worker has left."""
        if self._stop.is_set():
            raise Stopped
        if worker is not None and worker.gone_event.is_set():
            raise WorkerDied(worker.name)

    def resolve(
        self, worker: ClusterWorker | None, begin: Callable[[], Any], limit_s: float | None = None
    ) -> Any:
        """Return the result of what `begin()` gives to await in Dask's loop. Raises its error,
        Stopped, WorkerDied (also where the worker cannot be reached), or TimeoutError after
        `limit_s`."""
        done, result = threading.Event(), list[Any]()

        async def collect() -> None:
            try:
                result.append((True, await begin()))
            except BaseException as error:  # also that the loop or the future was cancelled
                result.append((False, error))
            finally:
                done.set()

        self.check(worker)
        self.client.loop.add_callback(collect)
        end = None if limit_s is None else time.monotonic() + limit_s
        while not done.wait(POLL_S):
            self.check(worker)
            if end is not None and time.monotonic() > end:
                raise TimeoutError(f"took longer than {limit_s:.3g} s")
        right, value = result[0]
        if right:
            return value
        if worker is not None:
            worker.gone_event.set()
            raise WorkerDied(worker.name)
        raise value

    def result_of(self, address: str, task: Callable[..., Any], *args: Any) -> Any:
        """Run a task of `cluster_worker` on one worker. Returns its result, raises its error,
        Stopped, or WorkerDied where the worker has left."""
        future = self.client.submit(
            cluster_worker.run_to_bytes, task, *args, workers=[address], allow_other_workers=False,
            pure=False, retries=0,
        )  # fmt: skip
        done = threading.Event()
        future.add_done_callback(lambda _: done.set())
        while not done.wait(POLL_S):
            self.check(self.workers.get(address))
            if address not in self._addresses:
                raise WorkerDied(address)
        try:
            data = future.result(timeout=ASK_S)
        except Exception as error:
            if future.status == "error" and type(error).__name__ != "KilledWorker":
                raise  # the worker cannot import the workbench
            raise WorkerDied(address) from None
        return _value(data)

    # Who takes part

    def refresh(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Mark the workers that have left. Returns the address and Dask's description of each that
        is new. Raises SchedulerGone."""
        if self.client.status != "running":
            raise SchedulerGone
        try:
            facts = self.resolve(None, lambda: self.client.scheduler.identity(n_workers=-1), ASK_S)
        except Exception:
            raise SchedulerGone from None
        now = facts["workers"]
        with self._lock:
            for address in self._addresses - now.keys():
                self._remove_worker(address)
            new = [(a, w) for a, w in now.items() if a not in self._addresses]
            self._addresses |= {address for address, _ in new}
        return new

    def _remove_worker(self, address: str) -> None:
        self._addresses.discard(address)
        worker = self.workers.pop(address, None)
        self.gpus = [gpu for gpu in self.gpus if gpu.worker is not worker]
        if worker is not None:
            worker.gone_event.set()
            if not self._stop.is_set():
                self._notify(f"the worker {worker.name} has left")

    def scheduler_lost(self) -> None:
        """Let every wait for a worker end: workers leave when their scheduler does."""
        with self._lock:
            for address in list(self._addresses):
                self._addresses.discard(address)
                if (worker := self.workers.pop(address, None)) is not None:
                    worker.gone_event.set()
            self.gpus = []

    def reconnect(self, limit_s: float = SCHEDULER_S) -> None:
        """Connect to the scheduler again. Raises ClusterError after `limit_s` seconds."""
        with suppress(Exception):
            self.client.close(timeout=1)
        end = time.monotonic() + limit_s
        while True:
            try:
                self.client = self._try_connect(CONNECT_S)
                return
            except ClusterError:
                if time.monotonic() > end:
                    raise ClusterError(
                        f"The scheduler {self.place} did not come back within {limit_s:.0f} s; "
                        "the results so far are stored, and the same command continues."
                    ) from None
                time.sleep(POLL_S)

    def join(self, address: str, about: Mapping[str, Any]) -> ClusterGpu | None:
        """Let a worker take part. Returns its GPU, or None where it only compiles. Raises
        WorkerRefused, after its sentence was notified; WorkerDied; Stopped."""
        try:
            return self._admit_worker(address, about)
        except WorkerRefused as error:
            self.refuse(str(error))
            raise

    def refuse(self, sentence: str) -> None:
        """Note that a worker was refused."""
        self.refusals.append(sentence)
        self._notify(sentence)

    def _admit_worker(self, address: str, about: Mapping[str, Any]) -> ClusterGpu | None:
        name = _name(address, about)
        try:
            report = self.result_of(address, cluster_worker.report)
        except (WorkerDied, Stopped):
            raise
        except Exception as error:
            raise WorkerRefused(
                f"The worker {name} cannot run this workbench ({first_sentence(error)}); install "
                "the same version there."
            ) from None
        if (reason := software_refusal(name, report, self._ours)) is not None:
            raise WorkerRefused(reason)
        worker = ClusterWorker(address, name, int(about["nthreads"]), report)
        gpu = self._gpu_of(worker) if about.get("resources", {}).get(GPU) else None
        with self._lock:
            if address not in self._addresses:
                raise WorkerDied(name)
            self.workers[address] = worker
            self.gpus += [gpu] if gpu else []
        return gpu

    def _gpu_of(self, worker: ClusterWorker) -> ClusterGpu:
        """Take the GPU of a worker and measure its library references. Raises WorkerRefused where
        it is none that can take part."""
        with self._lock:
            self.workers[worker.address] = worker  # `refresh` tells it when it leaves
        actor = self._actor(worker)
        gpu = ClusterGpu(self, worker, actor)
        report = gpu.perform("open")
        if report is None:
            self.workers.pop(worker.address, None)
            raise WorkerRefused(
                f"The worker {worker.name} declares a GPU, and torch sees none there; see "
                "`workbench doctor` on that host."
            )
        gpu.report = report
        self._check_model(gpu)
        self._take_lock(gpu)
        gpu.references = gpu.perform("references")
        return gpu

    def _actor(self, worker: ClusterWorker) -> Any:
        future = self.client.submit(
            cluster_worker.GpuActor, actor=True, workers=[worker.address],
            allow_other_workers=False, pure=False,
        )  # fmt: skip
        done = threading.Event()
        future.add_done_callback(lambda _: done.set())
        while not done.wait(POLL_S):
            self.check(worker)
        try:
            return future.result(timeout=ASK_S)
        except Exception as error:
            self.check(worker)
            self.workers.pop(worker.address, None)
            raise WorkerRefused(
                f"The worker {worker.name} cannot start a measuring process "
                f"({first_sentence(error)}); see `workbench doctor` on that host."
            ) from None

    def _check_model(self, gpu: ClusterGpu) -> None:
        with self._lock:
            first = self._first = self._first or gpu
            twice = next((g for g in self.gpus if g.gpu.lock == gpu.gpu.lock), None)
        reason = model_refusal(
            gpu.worker.name, gpu.gpu.device.name, first.worker.name, first.gpu.device.name
        )
        if reason is None and twice is not None:
            reason = (
                f"The worker {gpu.worker.name} has the GPU of {twice.worker.name}; give each "
                "worker a GPU of its own with CUDA_VISIBLE_DEVICES."
            )
        if reason is not None:
            self.workers.pop(gpu.worker.address, None)
            raise WorkerRefused(reason)

    def _take_lock(self, gpu: ClusterGpu) -> None:
        heard = ""
        while True:
            holder = gpu.perform("lock", gpu.gpu.lock)
            if holder is None:
                return
            if not heard:
                heard = holder
                self._notify(f"waiting for {gpu.title}: {holder.partition(' after ')[0]}")
            time.sleep(POLL_S)

    def compiling(self, kernel: str) -> Iterator[ClusterWorker]:
        """Yield the workers that have the kernel's code as it is here. Any other is refused, once,
        with a sentence."""
        ours = {name: code for name, code in load_kernel(kernel).hashes.items()}
        for worker in list(self.workers.values()):
            with worker.checking, suppress(WorkerDied):
                if kernel not in worker.kernels:
                    worker.kernels[kernel] = self._has(worker, kernel, ours)
            if worker.kernels.get(kernel):
                yield worker

    def _has(self, worker: ClusterWorker, kernel: str, ours: Mapping[str, str]) -> bool:
        try:
            theirs = self.result_of(worker.address, cluster_worker.kernel_hashes, kernel)
            reason = kernel_refusal(worker.name, kernel, theirs, ours)
        except (WorkerDied, Stopped):
            raise
        except Exception as error:
            reason = (
                f"The worker {worker.name} cannot import {kernel} ({first_sentence(error)}); put "
                "the file there, or on a disk that all hosts share."
            )
        if reason is not None:
            self.refuse(reason)
        return reason is None

    def died_at(self, key: str) -> int:
        """Count a worker that died while it ran the config of this key. Returns how many did."""
        with self._lock:
            self.deaths[key] += 1
            return self.deaths[key]

    def close(self) -> None:
        """Leave the cluster; end it where it is of this process."""
        self._stop.set()
        for end in (self.client, self._local):
            with suppress(Exception):
                if end is not None:
                    end.close(timeout=5)


def _name(address: str, about: Mapping[str, Any]) -> str:
    name = str(about.get("name", address))
    return address if name == address else f"{name} ({address})"


def _value(data: bytes) -> Any:
    """Return the result in the bytes of a worker. Raises the error in them, or Unreadable."""
    right, result = replies.read(data)
    if right:
        return result
    raise result


# Making clusters


def local_cluster(many: int, notify: Callable[[str], None], preload: Sequence[str] = ()) -> Cluster:
    """Start a Dask cluster on this host with one worker process for each of `many` GPUs, which
    share the CPUs. Returns it. `preload` are more files that Dask loads in each worker. Raises
    ClusterError where the host has fewer GPUs, or where Dask is missing."""
    require_distributed()
    names = gpus_of_host()
    if many > len(names):
        raise ClusterError(
            f"--workers {many} asks for more GPUs than this host shows ({len(names)}); "
            + (f"write --workers {len(names)}." if names else "see `workbench doctor`.")
        )
    import dask

    from workbench.backend.workers import cpu_count

    dask.config.set(QUIET)
    from distributed import Client, Nanny, Scheduler, SpecCluster

    threads = max(1, (cpu_count() - 1) // many)
    files = [str(Path(cluster_worker.__file__)), *preload]
    specs = {
        name: {
            "cls": Nanny,
            "options": {
                "nthreads": threads,
                "resources": {GPU: 1},
                "env": dict.fromkeys(GPU_VARIABLES, name),
                "host": "127.0.0.1",
                "memory_limit": 0,
                "silence_logs": logging.CRITICAL,
                "preload": files,
                "dashboard_address": None,
            },
        }
        for name in names[:many]
    }
    here = {"host": "127.0.0.1", "dashboard": False, "dashboard_address": "127.0.0.1:0"}
    security = _security(notify)
    for options in (here, *(spec["options"] for spec in specs.values())):
        options.update({"security": security, "protocol": "tls"} if security else {})
    scheduler = {"cls": Scheduler, "options": here}
    local = SpecCluster(
        workers=specs, scheduler=scheduler, silence_logs=False, security=security or None
    )
    return Cluster(lambda: Client(local, timeout=CONNECT_S), "of this process", notify, local)


def _security(notify: Callable[[str], None]) -> Any:
    """Return a certificate of this cluster alone: without one any user of this host could send its
    workers code to run. None where the package that makes it is missing, which is told."""
    from distributed.security import Security

    try:
        return Security.temporary()
    except ImportError:
        notify(
            "The connections of --workers are not encrypted, so another user of this host could "
            f"run code as you: {INSTALL}."
        )
        return None


def remote_cluster(url: str, notify: Callable[[str], None]) -> Cluster:
    """Join the cluster of a scheduler and return it: `tcp://host:8786` or `tls://host:8786`, the
    latter with the certificates of Dask's configuration. Raises ClusterError without an answer."""
    require_distributed()
    import dask

    dask.config.set(QUIET)
    from distributed import Client

    if not url.partition("://")[2].rpartition(":")[2].isdigit():
        raise ClusterError(f"--workers {url} is not an address; write tcp://HOST:8786.")
    return Cluster(lambda: Client(url, timeout=CONNECT_S), url, notify)
