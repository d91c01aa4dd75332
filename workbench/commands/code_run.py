"""Store a run that compares two versions by their machine code, and resume what was compiled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from workbench.code.compared_pair import ComparedPair, code_change, has_facts
from workbench.commands.comparison import comparison_of
from workbench.commands.result import RunResult, shared_sizes
from workbench.data.clock import folder_of, run_id, timestamp
from workbench.data.compiled_code import CodeVersions
from workbench.data.database import History
from workbench.data.environment import fingerprint
from workbench.data.events import EventLog, RunState
from workbench.data.interrupts import Interrupts
from workbench.data.machine_failure import is_of_machine
from workbench.data.project import project_id
from workbench.data.record import Case, Comparison, Environment, Failure, Outcome, Run
from workbench.data.store import Store
from workbench.reports.versions import CodeChanges, changes_of

if TYPE_CHECKING:
    from workbench.backend.compilers import Compiler, Compilers, CompileTask
    from workbench.commands.bisect import BisectOptions
    from workbench.commands.compare import CompareOptions
    from workbench.commands.gate import GateOptions

    CodeOptions: TypeAlias = BisectOptions | CompareOptions | GateOptions


def new_code_run(
    options: CodeOptions,
    engine: str,
    cases: Sequence[Case],
    versions: CodeVersions,
    compilers: Sequence[Compiler],
    repository: Path | None = None,
    environment: Environment | None = None,
) -> Run:
    """Return the run of an engine that compares these configs by their machine code. `environment`
    is that of a GPU which is to measure some of them."""
    environment = environment or fingerprint(None, repository)
    kernels = list(dict.fromkeys(case.kernel for case in cases))
    triton = " and ".join(dict.fromkeys(compiler.version for compiler in compilers))
    return Run(
        project=project_id(),
        id=run_id(engine, *kernels) if len(kernels) == 1 else run_id(engine, "suite"),
        engine=engine,
        name=f"{versions.before} to {versions.after}",
        command=options.command,
        started=timestamp(),
        kernel=", ".join(kernels),
        sizes=shared_sizes(cases),
        dtype=options.dtype,
        device=", ".join(versions.devices),
        predicted=True,
        environment=replace(environment, versions={**environment.versions, "triton": triton}),
        kind="code",
        versions=versions,
    )


@dataclass
class CodeRun:
    """One run, whose outcomes are in both stores before the next is obtained; see `stored_code`."""

    run: Run
    store: Store
    folder: Path  # of the page
    events: Path
    outcomes: dict[str, Outcome] = field(default_factory=dict)  # by key
    comparisons: list[Comparison] = field(default_factory=list)
    state: RunState = "interrupted"

    def find_known(self, tasks: Sequence[CompileTask]) -> dict[str, Outcome]:
        """Return the outcomes of earlier runs by key. What the machine failed at is left out, and
        tried again."""
        earlier = self.store.history.find(task.key for task in tasks)
        return {key: outcome for key, outcome in earlier.items() if _says_all(outcome)}

    def obtain(
        self, pools: Compilers, tasks: Sequence[CompileTask], known: Mapping[str, Outcome]
    ) -> Iterator[tuple[int, Outcome]]:
        """Yield the place of each task with its outcome: those known first, then the others as they
        are compiled."""
        todo = []
        for n, task in enumerate(tasks):
            if (outcome := known.get(task.key)) is None:
                todo.append(n)
            else:
                yield n, self.keep(outcome)
        for place, outcome in pools.compile([tasks[n] for n in todo]):
            yield todo[place], self.keep(outcome)

    def keep(self, outcome: Outcome) -> Outcome:
        """Store an outcome as one of this run, once, and return it."""
        outcome = replace(outcome, run=self.run.id)
        if outcome.key not in self.outcomes:
            self.store.keep(outcome)
        return self.outcomes.setdefault(outcome.key, outcome)

    def pairs(
        self,
        pools: Compilers,
        tasks: Sequence[tuple[CompileTask, CompileTask]],
        known: Mapping[str, Outcome],
    ) -> Iterator[tuple[int, ComparedPair]]:
        """Yield the place of each pair of tasks with its pair when both are compiled."""
        outcomes: dict[int, Outcome] = {}
        for n, outcome in self.obtain(pools, [task for both in tasks for task in both], known):
            outcomes[n] = outcome
            place, other = n // 2, n + 1 - 2 * (n % 2)
            if other in outcomes:
                before, after = outcomes.pop(2 * place), outcomes.pop(2 * place + 1)
                yield place, self.compare(before, after, tasks[place][1].job.tuning_date)

    def compare(
        self, before: Outcome, after: Outcome, tuned: str = "", commit: str = ""
    ) -> ComparedPair:
        """Store that two outcomes are compared by their code, and return the pair."""
        versions = self.run.versions
        assert versions is not None
        word = "by" if self.run.engine == "compare" else "at"
        left = f"{before.case.label} {word} {versions.before}"
        right = f"{after.case.label} {word} {commit or versions.after}"
        entry = comparison_of(self.run, ((before, left), (after, right)), None)
        entry = replace(entry, by="code", tuned=tuned, commit=commit)
        self.keep_comparison(entry)
        return ComparedPair(entry, before, after, code_change(before, after, versions.threshold))

    def keep_comparison(self, comparison: Comparison) -> None:
        """Store a comparison of two outcomes of this run."""
        self.store.keep(comparison)
        self.comparisons.append(comparison)

    @property
    def changes(self) -> CodeChanges:
        """Return what was compared so far."""
        return changes_of(self.run, list(self.outcomes.values()), self.comparisons, self.state)

    def result(self, page: Path) -> RunResult:
        """Return the run with all that was stored of it, for the JSON document."""
        entries = list(self.outcomes.values()), self.comparisons
        return RunResult(self.run, *entries, state=self.state, page=page, events=self.events)


def _says_all(outcome: Outcome) -> bool:
    """Return whether an outcome of an earlier run stands for this one."""
    if isinstance(outcome, Failure) and outcome.code is None:
        return not (outcome.cause or is_of_machine(outcome.reason))
    return has_facts(outcome)


@contextmanager
def stored_code(options: CodeOptions, run: Run, history: History) -> Iterator[CodeRun]:
    """Return a context manager that stores the run, and at its end how it ended. Ctrl-C ends the
    block early: the state is "interrupted" then, and after an error, which is raised again."""
    folder = folder_of(options.out, run.id)
    file = options.events_file or folder / "events.jsonl"
    with Interrupts() as interrupts, EventLog(file) as log:
        stored = CodeRun(run, Store(history, interrupts, log), folder, file)
        stored.store.begin(run)
        try:
            yield stored
            stored.state = "complete"
        except KeyboardInterrupt:
            pass
        finally:  # an error leaves what was compiled, too
            stored.store.end(stored.state, Counter(p.word for p in stored.changes.pairs), {})
