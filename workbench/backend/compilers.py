"""Compile configs with several versions of Triton, each in processes of its own, or several
versions of a kernel: outcomes with the facts of their machine code, and with predicted times."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from workbench.backend.offline import model_time
from workbench.backend.processes import COMPILE_TIMEOUT_S, outcome_of
from workbench.backend.workers import LOST, PATIENCE, Workers, cpu_count
from workbench.catalog.source import load_kernel
from workbench.compile import CompileError
from workbench.compile.code_identity import compile_code
from workbench.data.clock import timestamp
from workbench.data.closing import Closing
from workbench.data.errors import first_sentence
from workbench.data.record import Case, Failure, Outcome, Record, key_of
from workbench.data.triton_key import key_of_triton
from workbench.device.correction import SizedConfig
from workbench.device.cost_model import MODEL
from workbench.device.hardware import Device
from workbench.measurement.candidate import Refusal
from workbench.spec import WorkbenchError

FACTS = "facts-1"  # part of every key: raised when facts are read in another way
PROBE_S = 120.0  # to import Triton from a cold disk and hash its libraries, 300 MB


class CompilerError(WorkbenchError):
    """A version of Triton cannot be used; one sentence says which, and what to do."""


@dataclass(frozen=True)
class Compiler:
    """A version of Triton."""

    version: str
    key: str  # hash of its sources and libraries
    folder: Path | None  # that holds triton/; None is the installed one

    @property
    def title(self) -> str:
        """Return its name in messages."""
        return f"Triton {self.version}"


def installed_version() -> str | None:
    """Return the version of the installed Triton, without importing it; None if there is none."""
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return None


def folders_beside(version: str) -> list[Path]:
    """Return the folders in which a version is looked for: in the environment, beside it, and in
    the user's data folder."""
    from platformdirs import user_data_dir

    environment, own = Path(sys.prefix), Path(user_data_dir("kernel-workbench", appauthor=False))
    return [parent / f"triton-{version}" for parent in (environment, environment.parent, own)]


@dataclass(frozen=True)
class FactsJob:
    """One config to compile for one device, as it is sent to a worker."""

    kernel: str
    case: Case
    code: str  # hash of the Impl's code, with which the worker's own must agree
    version: str | None = None  # path of the kernel's file where it is not the kernel's own
    digest: str = ""  # of the files, where the hash of the code is the word of that code
    tuning_date: str = ""  # date of a tuned config; empty for a default

    def failure(self, refusal: Refusal, **facts: Any) -> Failure:
        """Return the failure of this config, without key and run."""
        reason = " ".join(refusal.reason.split())
        about = {"cause": refusal.cause, "attempts": refusal.attempts, **facts}
        return Failure(self.case, "", "", "", refusal.stage, reason, **about)


@dataclass(frozen=True)
class CompileTask:
    """One config for one device and one version of the compiler, which is that of pool `pool`."""

    pool: int
    compiler: Compiler
    job: FactsJob
    device: Device

    @property
    def key(self) -> str:
        """Return the key of its outcome: equal keys have equal facts."""
        job = self.job
        code, of = job.digest or job.code, f"{FACTS} {MODEL} {self.device!r}"
        return key_of(job.case, code=code, by=self.compiler.key, of=of)

    def outcome(self, result: Outcome | Refusal) -> Outcome:
        """Return what a worker sent as an outcome that belongs to no run yet."""
        outcome = self.job.failure(result) if isinstance(result, Refusal) else result
        return replace(outcome, case=self.job.case, key=self.key, at=timestamp())


def triton_here() -> tuple[str, str, str]:
    """Return version, key and folder of the Triton that this process imports."""
    import triton

    key = hashlib.sha256(key_of_triton().encode()).hexdigest()[:16]
    return str(triton.__version__), key, str(Path(triton.__file__).parent.parent)


def facts_task(job: FactsJob, device: Device) -> Outcome:
    """Compile one config in a worker and return its outcome, without key and run: a record with the
    predicted time, or a failure; one that says why no time is predicted has the facts too."""
    case = job.case
    impl = load_kernel(job.kernel, job.version).impl(case.impl, job.code)
    config = impl.config(**case.config)
    if reason := impl.rejection_reason(config, device.limits, case.dtype, case.sizes):
        return job.failure(Refusal("refused", reason))
    try:
        compiled, code = compile_code(impl, config, case.sizes, case.dtype, device)
    except CompileError as error:
        return job.failure(Refusal("compile", str(error)))
    facts: dict[str, Any] = {"resources": compiled.resources, "code": code}
    spec, at = impl.spec, (case.sizes, case.dtype)
    try:
        predicted = model_time(device, compiled, SizedConfig(impl, config, case.sizes), case.dtype)
        costs = spec.flops(**case.sizes), spec.bytes(*at)
        facts |= {"bytes_read": (read := spec.bytes_read(*at)), "bytes_written": costs[1] - read}
    except Exception as error:  # a figure that is not known, or the kernel's own `work`
        return job.failure(Refusal("measure", f"no prediction: {first_sentence(error)}"), **facts)
    return Record(case, "", "", "", "code", predicted, *costs, "not here", None, **facts)


class Compilers(Closing):
    """Pools of compiling processes, one for each version of Triton; `close` or the end of a `with`
    block ends them all."""

    def __init__(
        self,
        folders: Sequence[Path | None],
        timeout_s: float = COMPILE_TIMEOUT_S,
        here: Path | None = None,
    ):
        """Start a pool for each folder; None is the installed Triton. A config is given up after
        `timeout_s` seconds, and tried once more, longer, if its process was lost. Modules in the
        folder `here` are found after all others."""
        self._timeout_s = timeout_s
        self._stack = ExitStack()
        each = max(1, cpu_count() // len(folders))
        self._folders = folders
        self._pools = [
            self._stack.enter_context(Workers(each, packages=f, here=here)) for f in folders
        ]

    def versions(self) -> list[Compiler]:
        """Return the version in each folder, imported in its own pool. Raises CompilerError where a
        folder holds none that can be imported."""
        tasks = [pool.submit(triton_here, timeout_s=PROBE_S) for pool in self._pools]
        results = []
        for folder, task in zip(self._folders, tasks, strict=True):
            try:
                version, key, place = task.result()
            except LOST as error:
                raise _unusable(folder, f"importing it {error}") from None
            except Exception as error:
                raise _unusable(folder, first_sentence(error)) from None
            if folder is not None and Path(place).resolve() != folder.resolve():
                raise _unusable(folder, f"{place} was imported in its place")
            results.append(Compiler(version, key, folder))
        return results

    def compile(self, tasks: Sequence[CompileTask]) -> Iterator[tuple[int, Outcome]]:
        """Yield the place of each task with its outcome, in the order of completion."""
        lost: list[int] = []
        for n, outcome in self._run(tasks, range(len(tasks)), self._timeout_s):
            if isinstance(outcome, Failure) and outcome.cause is not None:
                lost.append(n)
            else:
                yield n, outcome
        yield from self._run(tasks, lost, PATIENCE * self._timeout_s)

    def _run(
        self, tasks: Sequence[CompileTask], numbers: Sequence[int], limit_s: float
    ) -> Iterator[tuple[int, Outcome]]:
        done: SimpleQueue[tuple[int, Any]] = SimpleQueue()
        for n in numbers:
            task = tasks[n]
            pool = self._pools[task.pool]
            future = pool.submit(facts_task, task.job, task.device, timeout_s=limit_s)
            future.add_done_callback(lambda future, n=n: done.put((n, future)))  # type: ignore
        for _ in numbers:
            n, future = done.get()
            yield n, tasks[n].outcome(outcome_of(future, "compile"))

    def close(self) -> None:
        """End all processes."""
        self._stack.close()


def _unusable(folder: Path | None, reason: str) -> CompilerError:
    place = f"Triton in {folder}" if folder else "The installed Triton"
    return CompilerError(
        f"{place} cannot be used ({reason.rstrip('.')}); name a version that is installed, or the "
        "folder of one: pip install --no-deps --target DIR triton==VERSION."
    )
