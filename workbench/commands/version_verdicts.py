"""Store what a GPU says of two versions of Triton: a run of `compare`, each verdict as it comes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from workbench import catalog
from workbench.backend.compilers import Compiler, FactsJob
from workbench.backend.protocol import Problem
from workbench.backend.version_timing import RULES, NoVersionTimes, VersionTimes
from workbench.code.code_pair import CodePair
from workbench.commands.code_run import run_of_versions
from workbench.commands.comparison import comparison_of
from workbench.data.events import RunState
from workbench.data.record import Comparison, Environment, Run, key_of
from workbench.data.store import Store
from workbench.device import hardware
from workbench.device.hardware import Device
from workbench.measurement.candidate import Candidate, Refusal, Timed
from workbench.reports.compare import COMPILERS
from workbench.tuner.space import RecordFactory

if TYPE_CHECKING:
    from workbench.commands.compare import CompareOptions


@dataclass
class VersionVerdicts:
    """The verdicts of one run. It is stored from the first of them on."""

    store: Store
    run: Run
    compilers: Sequence[Compiler]
    comparisons: list[Comparison] = field(default_factory=list)

    def keep(self, pair: CodePair, job: FactsJob, result: VersionTimes | NoVersionTimes) -> None:
        """Store the outcomes of both versions, with the resources of their code, and their
        comparison."""
        if not self.comparisons:
            self.store.begin(self.run)
        spec, case = catalog.spec_of(job.kernel), job.case
        factory = RecordFactory(
            self.run, Problem(job.kernel, spec, case.sizes, case.dtype), RULES.id
        )
        operands = []
        for place, compiler in enumerate(self.compilers):
            key = key_of(case, compiler=compiler.key, protocol=RULES.id)
            candidate = Candidate(case, key, None, None)  # type: ignore[arg-type]
            outcome = factory.outcome(candidate, _result(result, place), "compare", None)
            compiled = (pair.before, pair.after)[place]
            outcome = replace(outcome, resources=compiled.resources)
            self.store.keep(outcome)
            operands.append((outcome, f"{case.label} by {compiler.title}"))
        verdict = result.verdict if isinstance(result, VersionTimes) else None
        comparison = comparison_of(self.run, operands, verdict, RULES.looks)
        self.store.keep(comparison)
        self.comparisons.append(comparison)

    def end(self, state: RunState) -> None:
        """Store how the run ended; nothing where there was no verdict."""
        if self.comparisons:
            words = Counter(c.verdict.word if c.verdict else "none" for c in self.comparisons)
            self.store.end(state, words, {})


def _result(result: VersionTimes | NoVersionTimes, place: int) -> Timed | Refusal:
    if isinstance(result, VersionTimes):
        return (result.before, result.after)[place]
    if result.place in (None, place):
        return Refusal("measure", result.reason)
    return Refusal("measure", "the other version could not run", own=False)


def run_of_verdicts(
    options: CompareOptions,
    device: Device,
    environment: Environment,
    jobs: Sequence[FactsJob],
    compilers: Sequence[Compiler],
) -> Run:
    """Return the run of `compare` that holds the verdicts on these pairs."""
    about, cases = (COMPILERS, device.name), [job.case for job in jobs]
    return replace(
        run_of_versions(options, "compare", about, cases, compilers, environment),
        predicted=False,
        ceilings=dict(hardware.ceilings(device, options.dtype)),
        source=", ".join(dict.fromkeys(job.kernel for job in jobs)),
    )
