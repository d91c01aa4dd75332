"""Compile configs in a pool, each machine code once, and name the failures of processes.

Of configs with equal code after Triton's optimisation, the first to claim the key, in whichever
process, is compiled to the end. The others stop there and take its result.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from tempfile import gettempdir
from typing import Any

from workbench.backend.measuring import GpuGone
from workbench.backend.protocol import Problem, TimingTask
from workbench.backend.workers import LOST, PATIENCE, Pool, cause_of
from workbench.catalog.source import SourceChanged, load_kernel
from workbench.compile import (
    Compiled,
    CompiledDuplicate,
    CompileError,
    compile_config,
    compile_unless_duplicate,
)
from workbench.compile.dedup import store_skipped
from workbench.data.errors import first_sentence
from workbench.data.machine_failure import full_folder
from workbench.data.record import Stage
from workbench.data.temporary import temporary_folder
from workbench.data.triton_key import key_of_triton
from workbench.device.hardware import Device
from workbench.measurement.candidate import Candidate, Refusal
from workbench.spec import Sizes, SpecFault

COMPILE_TIMEOUT_S = 60.0


def import_compiler() -> None:
    """Import the compiler in a worker, and Triton's hash of its own libraries, which would cost the
    first config half a second."""
    key_of_triton()


def prepare(kernel: str) -> None:
    """Import the compiler and the kernel's file in a worker."""
    import_compiler()
    load_kernel(kernel).load()


@dataclass(frozen=True)
class CompileJob:
    """One config to compile, as it is sent to a worker."""

    kernel: str
    candidate: Candidate
    sizes: Sizes
    dtype: str
    device: Device
    claims: Path | None  # folder of claimed keys; None always compiles to the end
    owner: str  # name of this job in a claim
    code: bool = False  # read the machine code, too
    here: bool = False  # the GPU of this machine launches it


@dataclass(frozen=True)
class Duplicate:
    """A config whose machine code another job compiles."""

    duplicate: CompiledDuplicate
    owner: str  # of the claim


def compile_task(job: CompileJob) -> Compiled | Duplicate | Refusal:
    """Compile one config in a worker and return its Compiled, Duplicate or Refusal."""
    try:
        case = job.candidate.case
        kernel = load_kernel(job.kernel, job.candidate.version)
        impl = kernel.impl(case.impl, job.candidate.code)
        problem = impl, impl.config(**case.config), job.sizes, job.dtype, job.device
        if job.claims is None:
            return compile_config(*problem, code=job.code, here=job.here)
        claims = job.claims
        result = compile_unless_duplicate(
            *problem, lambda key: claim_key(claims, key, job.owner), claims, job.here
        )
        if isinstance(result, CompiledDuplicate):
            return Duplicate(result, os.readlink(claims / result.key))
        return result
    except Exception as error:
        from triton import knobs  # not before: importing this module does not import Triton

        if full := full_folder((gettempdir(), knobs.cache.dir)):
            return Refusal("compile", f"{full} ({first_sentence(error)})")
        if isinstance(error, CompileError):
            return Refusal("compile", str(error))
        raise


def store_duplicate(duplicate: CompiledDuplicate, claims: Path) -> None:
    """Let a launch of a duplicate find its code in Triton's cache: the measuring process would
    compile it again, 0.3 s and more each."""
    for launch in duplicate.skipped_launches:
        store_skipped(launch, claims)


def claim_key(claims: Path, key: str, owner: str) -> bool:
    """Claim the key for `owner` and return whether it is the first in all processes. Uses a
    dangling symbolic link, which is created and read atomically, unlike a file."""
    try:
        os.symlink(owner, claims / key)
    except FileExistsError:
        return False
    return True


def compile_all(
    pool: Pool,
    problem: Problem,
    candidates: Sequence[Candidate],
    device: Device,
    timeout_s: float = COMPILE_TIMEOUT_S,
    code: bool = False,
    here: bool = False,
) -> Generator[tuple[Candidate, Compiled | Refusal], None, None]:
    """Compile in parallel, started in the order given; yield results in the order of completion.

    With `code` the machine code of each is read, and no config waits for another. With `here` what
    launches them on this machine's GPU is compiled, too. A duplicate comes after the config whose
    machine code it shares, with that one's resources, its own seconds and `duplicate` set. Where
    the other one failed, it is compiled by itself.
    """
    with temporary_folder() as folder:
        under_way = _UnderWay(pool, problem, device, timeout_s, folder, code, here)
        try:
            for candidate in candidates:
                under_way.submit(candidate, shared=not code)
            yield from under_way.results()
        finally:
            under_way.cancel()


class _UnderWay:
    """Jobs in the pool, and the duplicates that wait for them."""

    def __init__(
        self,
        pool: Pool,
        problem: Problem,
        device: Device,
        timeout_s: float,
        claims: Path,
        code: bool,
        here: bool,
    ) -> None:
        self._pool, self._problem, self._device = pool, problem, device
        self._timeout_s, self._claims, self._code, self._here = timeout_s, claims, code, here
        self._submit_count = 0
        self._jobs: dict[Future[Any], tuple[Candidate, str]] = {}
        self._open: set[str] = set()  # owners that have not finished
        self._waiting: dict[str, list[tuple[Candidate, CompiledDuplicate]]] = {}  # by owner
        self._codes: dict[str, Compiled] = {}  # by key
        self._duplicates: dict[Future[Any], tuple[Candidate, Compiled]] = {}
        self._done_queue: SimpleQueue[Future[Any]] = SimpleQueue()
        self._losses: list[tuple[Candidate, Refusal]] = []  # tried again when all others are done

    def submit(self, candidate: Candidate, shared: bool, patience: float = 1.0) -> None:
        """Submit one job. One that is not `shared` neither claims nor waits."""
        self._submit_count += 1
        owner, problem = str(self._submit_count), self._problem
        job = CompileJob(
            problem.kernel,
            candidate,
            problem.sizes,
            problem.dtype,
            self._device,
            self._claims if shared else None,
            owner,
            self._code,
            self._here,
        )
        future = self._pool.submit(compile_task, job, timeout_s=patience * self._timeout_s)
        self._jobs[future] = candidate, owner
        self._open.add(owner)
        future.add_done_callback(self._done_queue.put)

    def results(self) -> Iterator[tuple[Candidate, Compiled | Refusal]]:
        """Yield every candidate once. Those whose process is lost are tried again at the end, one
        at a time."""
        yield from self._take_finished()
        while self._losses:
            candidate, first = self._losses.pop(0)
            self.submit(candidate, shared=False, patience=PATIENCE)
            for again, result in self._take_finished(last=True):
                if isinstance(result, Refusal) and result.cause == first.cause:
                    result = replace(result, attempts=2)
                yield again, result

    def _take_finished(self, last: bool = False) -> Iterator[tuple[Candidate, Compiled | Refusal]]:
        while self._jobs or self._duplicates:
            future = self._done_queue.get()
            if future in self._duplicates:  # or not, after an error: its launch then compiles
                yield self._duplicates.pop(future)
                continue
            candidate, owner = self._jobs.pop(future)
            self._open.remove(owner)
            result = outcome_of(future, "compile")
            if isinstance(result, Duplicate):
                self._follow(candidate, result)
            elif isinstance(result, Refusal) and result.cause and not last:
                self._losses.append((candidate, result))
            else:
                if isinstance(result, Compiled):
                    self._codes.setdefault(result.ttgir, result)
                yield candidate, result
            # those that waited for this one now find its code, or that there is none
            for waiting, duplicate in self._waiting.pop(owner, []):
                self._follow(waiting, Duplicate(duplicate, owner))

    def _follow(self, candidate: Candidate, duplicate: Duplicate) -> None:
        first_key = duplicate.duplicate
        if (compiled := self._codes.get(first_key.key)) is not None:
            assert compiled.resources is not None  # Triton compiled it
            resources = replace(compiled.resources, compile_s=first_key.compile_s)
            same = replace(compiled, resources=resources, duplicate=True)
            future: Future[Any] = Future()
            if first_key.skipped_launches:
                claim = first_key, self._claims
                future = self._pool.submit(store_duplicate, *claim, timeout_s=self._timeout_s)
            else:
                future.set_result(None)
            self._duplicates[future] = candidate, same
            future.add_done_callback(self._done_queue.put)
        elif duplicate.owner in self._open:
            self._waiting.setdefault(duplicate.owner, []).append((candidate, first_key))
        else:
            self.submit(candidate, shared=False)

    def cancel(self) -> None:
        """Cancel the jobs that are left."""
        for future in (*self._jobs, *self._duplicates):
            future.cancel()


def compile_parts(
    pool: Pool,
    parts: Sequence[TimingTask],
    device: Device,
    timeout_s: float = COMPILE_TIMEOUT_S,
    compiles: Callable[..., Iterator[tuple[Candidate, Compiled | Refusal]]] | None = None,
) -> dict[int, Compiled | Refusal]:
    """Return Compiled or Refusal of each task that is no library's, by its index. Tasks may have
    different problems. `compiles` compiles the configs of one; None: `compile_all`, which reads
    their machine code, too."""
    compiles = compiles or partial(compile_all, code=True)
    same: dict[Any, list[int]] = {}
    for i, part in enumerate(parts):
        if part.candidate.impl.backend != "torch":
            at = part.problem
            same.setdefault((at.kernel, *at.sizes.items(), at.dtype), []).append(i)

    def compile_some(numbers: Sequence[int]) -> dict[int, Compiled | Refusal]:
        candidates = {parts[i].candidate.key: parts[i].candidate for i in numbers}
        problem = parts[numbers[0]].problem
        every = compiles(pool, problem, list(candidates.values()), device, timeout_s)
        by_key = {candidate.key: what for candidate, what in every}
        return {i: by_key[parts[i].candidate.key] for i in numbers}

    results: dict[int, Compiled | Refusal] = {}
    if same:  # all problems at once, as one at a time would leave most processes idle
        with ThreadPoolExecutor(len(same)) as threads:
            for each in threads.map(compile_some, same.values()):
                results |= each
    return results


def outcome_of(future: Future[Any], stage: Stage) -> Any:
    """Return a task's result, or a Refusal that names what happened to its process."""
    try:
        return future.result()
    except (SourceChanged, SpecFault, GpuGone):
        raise
    except LOST as error:
        return Refusal(stage, f"the {stage} {error}", cause=cause_of(error))
    except Exception as error:
        return Refusal(stage, f"{type(error).__name__}: {error}")
