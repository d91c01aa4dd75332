"""What both sides share: a pool that compiles each machine code once, and how failures are named.

Of the configs that are alike once Triton has optimised them the first to get there claims the
rest of the way, in whichever process. The others stop and are given what the first one got.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any

from workbench import catalog
from workbench.backend.protocol import Candidate, Problem, Refusal, TimingTask
from workbench.backend.workers import LOST, Workers
from workbench.compile import (
    Compiled,
    CompiledDuplicate,
    CompileError,
    compile_config,
    compile_unless_duplicate,
)
from workbench.data.record import Stage
from workbench.device.hardware import Device
from workbench.spec import Sizes, values

COMPILE_TIMEOUT_S = 60.0


def prepare(kernel: str) -> None:
    """Runs in a worker: import the kernel's file and the compiler, and let Triton hash its own
    libraries, half a second which else the first config would take longer."""
    from triton.runtime.cache import triton_key

    triton_key()
    catalog.spec_of(kernel)


@dataclass(frozen=True)
class CompileJob:
    """One config to compile, as it travels to a worker."""

    kernel: str
    version: str | None  # the kernel's file where it is not the problem's own
    impl: str
    config: Mapping[str, int]
    sizes: Sizes
    dtype: str
    device: Device
    claims: Path | None  # where keys are claimed; None compiles to the end in any case
    owner: str  # how the claim names this job
    code: bool = False  # read the machine code, too


@dataclass(frozen=True)
class Duplicate:
    """A config whose machine code another job makes."""

    duplicate: CompiledDuplicate
    owner: str  # of the claim


def compile_task(job: CompileJob) -> Compiled | Duplicate | Refusal:
    """Runs in a worker."""
    try:
        if job.version is None:
            spec = catalog.spec_of(job.kernel)
        else:
            spec = catalog.version_of(Path(job.version))
        impl = catalog.impl_of(spec, job.impl)
        problem = impl, impl.config(**job.config), job.sizes, job.dtype, job.device
        if job.claims is None:
            return compile_config(*problem, code=job.code)
        claims = job.claims
        result = compile_unless_duplicate(*problem, lambda key: claimed(claims, key, job.owner))
        if isinstance(result, CompiledDuplicate):
            return Duplicate(result, os.readlink(claims / result.key))
        return result
    except CompileError as error:
        return Refusal("compile", str(error))


def claimed(claims: Path, key: str, owner: str) -> bool:
    """Whether `owner` is the first, in all processes, to claim the key. A link that points nowhere
    is made and read whole, which a file is not."""
    try:
        os.symlink(owner, claims / key)
    except FileExistsError:
        return False
    return True


def compile_all(
    pool: Workers,
    problem: Problem,
    candidates: Sequence[Candidate],
    device: Device,
    timeout_s: float = COMPILE_TIMEOUT_S,
    code: bool = False,
) -> Generator[tuple[Candidate, Compiled | Refusal], None, None]:
    """Compile in parallel, begun in the order given; answers in the order in which they come.
    With `code` the machine code of each is read, and none waits for another.

    A candidate that has the machine code of another comes after it, with the other's resources,
    its own seconds and `twin` set. Where the other one failed, it is compiled by itself.
    """
    with TemporaryDirectory(prefix="workbench-claims-", ignore_cleanup_errors=True) as folder:
        under_way = _UnderWay(pool, problem, device, timeout_s, Path(folder), code)
        try:
            for candidate in candidates:
                under_way.submit(candidate, shared=not code)
            yield from under_way.results()
        finally:
            under_way.cancel()


class _UnderWay:
    """Jobs in the pool, and who waits for whom."""

    def __init__(
        self,
        pool: Workers,
        problem: Problem,
        device: Device,
        timeout_s: float,
        claims: Path,
        code: bool,
    ) -> None:
        self._pool, self._problem, self._device = pool, problem, device
        self._timeout_s, self._claims, self._code = timeout_s, claims, code
        self._submitted = 0
        self._jobs: dict[Future[Any], tuple[Candidate, str]] = {}
        self._open: set[str] = set()  # owners that have not answered
        self._waiting: dict[str, list[tuple[Candidate, CompiledDuplicate]]] = {}  # by owner
        self._compiled: dict[str, Compiled] = {}  # by key
        self._done: SimpleQueue[Future[Any]] = SimpleQueue()

    def submit(self, candidate: Candidate, shared: bool) -> None:
        """One job more. One that is not `shared` neither claims nor waits."""
        self._submitted += 1
        owner, problem = str(self._submitted), self._problem
        job = CompileJob(
            problem.kernel,
            candidate.version,
            candidate.impl.name,
            values(candidate.config),
            problem.sizes,
            problem.dtype,
            self._device,
            self._claims if shared else None,
            owner,
            self._code,
        )
        future = self._pool.submit(compile_task, job, timeout_s=self._timeout_s)
        self._jobs[future] = candidate, owner
        self._open.add(owner)
        future.add_done_callback(self._done.put)

    def results(self) -> Iterator[tuple[Candidate, Compiled | Refusal]]:
        """Every candidate once."""
        while self._jobs:
            future = self._done.get()
            candidate, owner = self._jobs.pop(future)
            self._open.remove(owner)
            result = outcome_of(future, "compile")
            if isinstance(result, Duplicate):
                yield from self._follow(candidate, result)
            else:
                if isinstance(result, Compiled):
                    self._compiled.setdefault(result.ttgir, result)
                yield candidate, result
            # whoever waited for this one now finds its code, or that there will be none
            for waiting, duplicate in self._waiting.pop(owner, []):
                yield from self._follow(waiting, Duplicate(duplicate, owner))

    def _follow(
        self, candidate: Candidate, duplicate: Duplicate
    ) -> Iterator[tuple[Candidate, Compiled]]:
        first_key = duplicate.duplicate
        if (compile_some := self._compiled.get(first_key.key)) is not None:
            resources = replace(compile_some.resources, compile_s=first_key.compile_s)
            yield candidate, replace(compile_some, resources=resources, duplicate=True)
        elif duplicate.owner in self._open:
            self._waiting.setdefault(duplicate.owner, []).append((candidate, first_key))
        else:
            self.submit(candidate, shared=False)

    def cancel(self) -> None:
        """Nobody wants the rest."""
        for future in self._jobs:
            future.cancel()


def compile_parts(
    pool: Workers, parts: Sequence[TimingTask], device: Device, timeout_s: float = COMPILE_TIMEOUT_S
) -> dict[int, Compiled | Refusal]:
    """Parts of different problems, by their number: what the compiler makes of each Triton Impl,
    its machine code read; a library's version is not there."""
    same: dict[Any, list[int]] = {}
    for i, part in enumerate(parts):
        if part.candidate.impl.backend == "triton":
            at = part.problem
            same.setdefault((at.kernel, *at.sizes.items(), at.dtype), []).append(i)

    def compile_some(numbers: Sequence[int]) -> dict[int, Compiled | Refusal]:
        of = {parts[i].candidate.key: parts[i].candidate for i in numbers}
        problem = parts[numbers[0]].problem
        every = compile_all(pool, problem, list(of.values()), device, timeout_s, code=True)
        by_key = {candidate.key: what for candidate, what in every}
        return {i: by_key[parts[i].candidate.key] for i in numbers}

    results: dict[int, Compiled | Refusal] = {}
    if same:  # problem by problem, most processes would have nothing to do
        with ThreadPoolExecutor(len(same)) as threads:
            for each in threads.map(compile_some, same.values()):
                results |= each
    return results


def outcome_of(future: Future[Any], stage: Stage) -> Any:
    """A task's result, or a Refusal that names what happened to its process."""
    try:
        return future.result()
    except LOST as error:
        return Refusal(stage, f"the {stage} {error}")
    except Exception as error:
        return Refusal(stage, f"{type(error).__name__}: {error}")
