"""Share problems among the GPUs of a Dask cluster: one problem at a time on each, in a thread.

The main thread watches the cluster and gets Ctrl-C. A problem stays on one GPU; one whose GPU has
gone is begun again on another and takes over what is stored.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from workbench.backend.cluster.cluster import (
    JOIN_S,
    SCHEDULER_S,
    Cluster,
    ClusterError,
    ClusterGpu,
    SchedulerGone,
    WorkerDied,
    local_cluster,
    remote_cluster,
)
from workbench.backend.measuring import GpuGone, WorkerRefused
from workbench.data.references import ALIKE, apart
from workbench.data.units import percent
from workbench.spec import WorkbenchError

LOOK_S = 0.3  # between two looks at the workers of the cluster
MOVES = 5  # of one problem to another GPU: a sixth would meet the same fault
STOP_S = 12.0  # for threads to store what they have after Ctrl-C, of ENDING_S in all


@contextmanager
def cluster_of(workers: str, notify: Callable[[str], None]) -> Iterator[Cluster]:
    """Return a context manager with a cluster of so many GPUs of this host, or with that of the
    scheduler at this address. Raises ClusterError."""
    if workers.isdigit():
        cluster = local_cluster(int(workers), notify)
    else:
        cluster = remote_cluster(workers, notify)
    try:
        yield cluster
    finally:
        cluster.close()


@dataclass(eq=False)
class Job:
    """A problem, or a family of them, that one GPU does as a whole."""

    title: str
    run: Callable[[ClusterGpu], None]
    moves: int = 0


class Spread:
    """Give jobs to the GPUs of a cluster as they become free."""

    def __init__(self, cluster: Cluster, say: Callable[[str], None]) -> None:
        self._cluster, self.say = cluster, say
        self._change = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._running: set[Job] = set()
        self._joining = 0
        self._over = False
        self._threads: list[threading.Thread] = []
        self._serving: list[ClusterGpu] = []
        self._served = False  # whether any job began
        self._errors: list[Exception] = []
        self._alone_since: float | None = None  # without a GPU

    @property
    def share(self) -> int:
        """Jobs that each GPU still begins, at most, one that begins now among them."""
        return max(1, math.ceil((len(self._waiting) + 1) / self.gpus))

    @property
    def gpus(self) -> int:
        """Number of GPUs that work now, at least 1."""
        return max(1, len(self._serving))

    def first(self) -> ClusterGpu:
        """Wait for a GPU that takes part, and return it. Raises ClusterError without one."""
        while not self._serving:
            self._look()
            self._look_for_gpus()
            time.sleep(LOOK_S)
        return self._serving[0]

    def run(self, jobs: Sequence[Job]) -> None:
        """Run all jobs. Raises KeyboardInterrupt after Ctrl-C, and where the cluster does not come
        back, once every thread has stored what it has; ClusterError where no worker can take part;
        else the first error of a job, once all others are done."""
        with self._change:
            self._waiting.extend(jobs)
            self._change.notify_all()
        try:
            while self._waiting or self._running:
                self._look()
                self._look_for_gpus()
                with self._change:
                    self._change.wait(LOOK_S)
        finally:
            self._end()
        if self._errors:
            raise self._errors[0]

    @property
    def _ending(self) -> bool:
        return self._over or self._cluster.stopping

    def _end(self) -> None:
        """Let the threads end: those that wait for a job or join, and those that run one where jobs
        are left."""
        with self._change:
            self._over = True
            self._cluster.stop()
            self._change.notify_all()
        end = time.monotonic() + STOP_S
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _look(self) -> None:
        """Let new workers join; wait for the scheduler where it is gone."""
        try:
            new = self._cluster.refresh()
        except SchedulerGone:
            self._cluster.scheduler_lost()
            self.say(
                f"The scheduler {self._cluster.place} does not answer; waiting up to "
                f"{SCHEDULER_S:.0f} s for it. The results so far are stored."
            )
            try:
                self._cluster.reconnect()
            except ClusterError as error:
                self.say(str(error))
                raise KeyboardInterrupt from None
            self.say(f"The scheduler {self._cluster.place} is back.")
            return
        for address, about in new:
            with self._change:
                self._joining += 1
            thread = threading.Thread(target=self._serve, args=(address, about), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _look_for_gpus(self) -> None:
        """Raise ClusterError where no GPU takes part, and KeyboardInterrupt where none does any
        more. A worker that died may be restarted, and others may join, within JOIN_S."""
        now = time.monotonic()
        if self._serving or self._joining:
            self._alone_since = None
            return
        self._alone_since = self._alone_since or now
        refusals = self._cluster.refusals
        if refusals and not self._served:
            raise ClusterError(refusals[-1])
        if now - self._alone_since < JOIN_S:
            return
        if not self._served:
            raise ClusterError(
                f"The scheduler {self._cluster.place} has no worker with a GPU; start one there: "
                'dask worker ADDRESS --resources "GPU=1".'
            )
        self.say("No GPU is left; the results are stored, and the same command continues.")
        raise KeyboardInterrupt

    # In the thread of a worker

    def _serve(self, address: str, about: Mapping[str, Any]) -> None:
        gpu: ClusterGpu | None = None
        try:
            with suppress(WorkerRefused, WorkerDied, GpuGone, KeyboardInterrupt):
                gpu = self._cluster.join(address, about)
                if gpu is not None:
                    self._announce(gpu)
        except Exception as error:
            self._errors.append(error)
        with self._change:
            self._joining -= 1
            if gpu is not None:
                self._serving.append(gpu)
        try:
            while gpu is not None and (job := self._next()) is not None:
                if not self._run_job(job, gpu):
                    return
        finally:
            with self._change:
                if gpu is not None:
                    self._serving.remove(gpu)
                self._change.notify_all()

    def _announce(self, gpu: ClusterGpu) -> None:
        text = f"{gpu.title}: {references_text(gpu.references)}"
        first = self._serving[0] if self._serving else gpu
        if (difference := apart(first.references, gpu.references)) > ALIKE:
            text += (
                f"; {percent(difference)} from {first.title}, so their times are not ranked "
                "together"
            )
        self.say(text)

    def _next(self) -> Job | None:
        """Wait for a job. Returns None at the end."""
        with self._change:
            while not self._waiting and not self._ending:
                self._change.wait(1.0)
            if self._ending:
                return None
            job = self._waiting.popleft()
            self._running.add(job)
            self._served = True
            return job

    def _run_job(self, job: Job, gpu: ClusterGpu) -> bool:
        """Run a job. Returns whether the GPU can do another one."""
        usable = False
        try:
            job.run(gpu)
            usable = True
        except (GpuGone, WorkerDied):
            self._requeue(job, gpu)
        except WorkerRefused:
            with self._change:
                self._waiting.appendleft(job)
                self._served = len(self._running) > 1
        except KeyboardInterrupt:  # Stopped: what is left counts as unfinished
            with self._change:
                self._waiting.appendleft(job)
        except Exception as error:
            self._errors.append(error)
            usable = True
        finally:
            with self._change:
                self._running.discard(job)
                self._change.notify_all()
        return usable

    def _requeue(self, job: Job, gpu: ClusterGpu) -> None:
        job.moves += 1
        if job.moves > MOVES:
            self._errors.append(
                WorkbenchError(
                    f"{job.title} lost its worker {job.moves} times; its results are stored. "
                    "See the logs of the workers."
                )
            )
            return
        self.say(f"{gpu.title} has left during {job.title}, which goes on with another GPU.")
        with self._change:
            self._waiting.appendleft(job)


def references_text(references: Mapping[str, float]) -> str:
    """Return `copy 4.02 TB/s, product 651 TFLOP/s`."""
    units = {"copy": "TB/s", "product": "TFLOP/s"}
    return ", ".join(f"{n} {v / 1e12:.3g} {units.get(n, '')}" for n, v in references.items())
