"""Keep the facts of compiled configs in an events file, from which a stopped comparison resumes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from workbench.backend.compilers import Compiler, Compilers, FactsJob
from workbench.data.clock import timestamp
from workbench.data.compiled_code import CompiledCode
from workbench.data.events import ConfigCompiled, EventLog, iterate
from workbench.data.files import is_stream
from workbench.data.machine_failure import is_of_machine
from workbench.device.hardware import Device
from workbench.measurement.candidate import Refusal

NAME = "compiled.jsonl"  # of the events file in `--out`, the same for every run


@dataclass(frozen=True)
class CompileTask:
    """One config for one device and one version of the compiler, which is that of pool `pool`."""

    pool: int
    compiler: Compiler
    job: FactsJob
    device: Device

    @property
    def key(self) -> str:
        """Return the key by which its facts are kept."""
        return self.job.key(self.compiler, self.device)


@dataclass
class CodeStore:
    """Facts by key, of this run and of earlier ones, and the `log` that they are written to. To be
    closed."""

    path: Path | None  # None: nothing is kept
    run: str
    known: dict[str, CompiledCode | str] = field(default_factory=dict)  # a string is a failure

    def __post_init__(self) -> None:
        if self.path is not None and not is_stream(self.path) and self.path.exists():
            for event in iterate(self.path, word=b'"ConfigCompiled"'):
                if isinstance(event, ConfigCompiled) and not is_of_machine(event.failure):
                    self.known[event.key] = event.facts or event.failure
        self.log = EventLog(self.path)

    def obtain(
        self, pools: Compilers, tasks: Sequence[CompileTask], again: bool = False
    ) -> Iterator[tuple[int, CompiledCode | str]]:
        """Yield the place of each task with its facts, or the reason why there are none: what is
        known first, unless all are to be compiled `again`; then the others as they are compiled.
        Each is on disk before it is yielded. What the machine failed at is not kept, and
        tried again in the next run."""
        todo = []
        for n, task in enumerate(tasks):
            if not again and (known := self.known.get(task.key)) is not None:
                yield n, known
            else:
                todo.append(n)
        work = [(tasks[n].pool, tasks[n].job, tasks[n].device) for n in todo]
        for place, result in pools.compile(work):
            task = tasks[todo[place]]
            if isinstance(result, Refusal):
                facts, failure = None, " ".join(result.reason.split())
            else:
                facts, failure = result, ""
            if not isinstance(result, Refusal) or not (result.cause or is_of_machine(failure)):
                self._keep(task, facts, failure)
            yield todo[place], facts or failure

    def _keep(self, task: CompileTask, facts: CompiledCode | None, failure: str) -> None:
        if task.key in self.known:
            return
        title, case = task.compiler.title, task.job.case
        self.log.write(ConfigCompiled(timestamp(), self.run, task.key, title, case, facts, failure))
        self.known[task.key] = facts or failure

    def close(self) -> None:
        """Close the file."""
        self.log.close()
