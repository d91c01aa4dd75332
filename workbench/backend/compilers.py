"""Compile configs with several versions of Triton, each in processes of its own, or several
versions of a kernel, and return the facts of their machine code."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self

from workbench.backend.offline import model_time
from workbench.backend.processes import COMPILE_TIMEOUT_S, outcome_of
from workbench.backend.workers import LOST, PATIENCE, Workers, cpu_count
from workbench.catalog.source import loaded
from workbench.compile import Compiled, CompileError
from workbench.compile.code_identity import compile_code
from workbench.data.compiled_code import CompiledCode
from workbench.data.errors import first_sentence
from workbench.data.record import Case, Predicted, key_of
from workbench.data.triton_key import key_of_triton
from workbench.device.correction import SizedConfig
from workbench.device.cost_model import MODEL
from workbench.device.hardware import Device
from workbench.measurement.candidate import Refusal
from workbench.spec import Impl, WorkbenchError

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

    def key(self, compiler: Compiler, device: Device) -> str:
        """Return the key of the facts: equal keys have equal facts."""
        return key_of(
            self.case,
            code=self.digest or self.code,
            by=compiler.key,
            of=f"{FACTS} {MODEL} {device!r}",
        )


def triton_here() -> tuple[str, str, str]:
    """Return version, key and folder of the Triton that this process imports."""
    import triton

    key = hashlib.sha256(key_of_triton().encode()).hexdigest()[:16]
    return str(triton.__version__), key, str(Path(triton.__file__).parent.parent)


def facts_task(job: FactsJob, device: Device) -> CompiledCode | Refusal:
    """Compile one config in a worker and return its facts with the predicted time, or a Refusal."""
    case = job.case
    impl = loaded(job.kernel, job.version).impl(case.impl, job.code)
    config = impl.config(**case.config)
    if reason := impl.rejection_reason(config, device.limits, case.dtype, case.sizes):
        return Refusal("refused", reason)
    try:
        read = compile_code(impl, config, case.sizes, case.dtype, device)
    except CompileError as error:
        return Refusal("compile", str(error))
    return _add_prediction(read.facts, impl, config, case, device, read.compiled)


def _add_prediction(
    facts: CompiledCode, impl: Impl, config: Any, case: Case, device: Device, compiled: Compiled
) -> CompiledCode:
    predicted: Predicted | None = None
    notes = facts.notes
    try:
        predicted = model_time(device, compiled, SizedConfig(impl, config, case.sizes), case.dtype)
    except Exception as error:  # a figure that is not known, or the kernel's own `work`
        notes = (*notes, f"no prediction: {first_sentence(error)}")
    return CompiledCode(
        facts.code, facts.resources, facts.launches, facts.groups, facts.loop, predicted, notes
    )


class Compilers:
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

    def compile(
        self, tasks: Sequence[tuple[int, FactsJob, Device]]
    ) -> Iterator[tuple[int, CompiledCode | Refusal]]:
        """Yield the place in `tasks` of each, whose first part is the place of its pool, with its
        facts or a Refusal, in the order of completion."""
        lost: list[int] = []
        for n, result in self._run(tasks, range(len(tasks)), self._timeout_s):
            if isinstance(result, Refusal) and result.cause is not None:
                lost.append(n)
            else:
                yield n, result
        yield from self._run(tasks, lost, PATIENCE * self._timeout_s)

    def _run(
        self, tasks: Sequence[tuple[int, FactsJob, Device]], numbers: Sequence[int], limit_s: float
    ) -> Iterator[tuple[int, CompiledCode | Refusal]]:
        done: SimpleQueue[tuple[int, Any]] = SimpleQueue()
        for n in numbers:
            pool, job, device = tasks[n]
            future = self._pools[pool].submit(facts_task, job, device, timeout_s=limit_s)
            future.add_done_callback(lambda future, n=n: done.put((n, future)))  # type: ignore
        for _ in numbers:
            n, future = done.get()
            yield n, outcome_of(future, "compile")

    def close(self) -> None:
        """End all processes."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _unusable(folder: Path | None, reason: str) -> CompilerError:
    place = f"Triton in {folder}" if folder else "The installed Triton"
    return CompilerError(
        f"{place} cannot be used ({reason.rstrip('.')}); name a version that is installed, or the "
        "folder of one: pip install --no-deps --target DIR triton==VERSION."
    )
