"""Store what a GPU says of two versions of Triton: a run of `compare`, each verdict as it comes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from workbench import catalog
from workbench.backend.compilers import Compiler, FactsJob
from workbench.backend.protocol import Problem
from workbench.backend.version_timing import RULES, NoVersionTimes, VersionTimes
from workbench.code.code_pair import CodePair
from workbench.commands.options import CompareOptions
from workbench.data.clock import timestamp
from workbench.data.compiled_code import CompiledCode
from workbench.data.events import RunState
from workbench.data.project import project_id
from workbench.data.record import Case, Comparison, Environment, Outcome, Run, key_of
from workbench.data.store import Store
from workbench.device import hardware
from workbench.device.hardware import Device
from workbench.measurement.candidate import Candidate, Refusal, Timed
from workbench.reports.compare import COMPILERS, holm_verdicts
from workbench.spec import label
from workbench.tuner.space import RecordFactory


@dataclass(frozen=True)
class MeasuredPair:
    """A pair of the machine code of two versions, and the job that compiled it."""

    pair: CodePair
    job: FactsJob


@dataclass
class VersionVerdicts:
    """The verdicts of one run. It is stored from the first of them on."""

    store: Store
    run: Run
    compilers: Sequence[Compiler]
    comparisons: list[Comparison] = field(default_factory=list)

    def keep(self, measured: MeasuredPair, result: VersionTimes | NoVersionTimes) -> None:
        """Store the outcomes of both versions and their comparison."""
        if not self.comparisons:
            self.store.begin(self.run)
        left, right = self._outcomes(measured, result)
        case = measured.job.case
        verdict = result.verdict if isinstance(result, VersionTimes) else None
        before, after = (_name(case, compiler) for compiler in self.compilers)
        comparison = Comparison(
            self.run.id, timestamp(), case.kernel, dict(case.sizes), case.dtype,
            before, after, left.key, right.key, verdict, RULES.looks,
        )  # fmt: skip
        for entry in (left, right, comparison):
            self.store.keep(entry)
        self.comparisons.append(comparison)

    def end(self, state: RunState) -> None:
        """Store how the run ended; nothing where there was no verdict."""
        if self.comparisons:
            words = Counter(c.verdict.word if c.verdict else "none" for c in self.comparisons)
            self.store.end(state, words, {})

    def corrected(self, pairs: Sequence[CodePair]) -> list[CodePair]:
        """Return the pairs with the verdicts as the run's page shows them, corrected for their
        number."""
        verdicts = {
            (c.kernel, c.right_key): c.verdict for c in holm_verdicts(self.comparisons) if c.verdict
        }
        result = []
        for pair in pairs:
            known = (
                verdicts.get((pair.case.kernel, self._key(pair.case, 1))) if pair.measured else None
            )
            result.append(replace(pair, measured=known) if known else pair)
        return result

    def _outcomes(
        self, measured: MeasuredPair, result: VersionTimes | NoVersionTimes
    ) -> tuple[Outcome, Outcome]:
        """Return the outcome of each version, with the resources of its code."""
        pair, job = measured.pair, measured.job
        spec = catalog.spec_of(job.kernel)
        problem = Problem(job.kernel, spec, job.case.sizes, job.case.dtype)
        factory = RecordFactory(self.run, problem, RULES.id)
        outcomes = []
        for place, facts in enumerate((pair.before, pair.after)):
            candidate = Candidate(job.case, self._key(job.case, place), None, None)  # type: ignore[arg-type]
            outcome = factory.outcome(candidate, _result(result, place), "compare", None)
            known = facts.resources if isinstance(facts, CompiledCode) else None
            outcomes.append(replace(outcome, resources=known))
        return outcomes[0], outcomes[1]

    def _key(self, case: Case, place: int) -> str:
        return key_of(case, compiler=self.compilers[place].key, protocol=RULES.id)


def _result(result: VersionTimes | NoVersionTimes, place: int) -> Timed | Refusal:
    if isinstance(result, VersionTimes):
        return (result.before, result.after)[place]
    if result.place in (None, place):
        return Refusal("measure", result.reason)
    return Refusal("measure", "the other version could not run", own=False)


def _name(case: Case, compiler: Compiler) -> str:
    return f"{case.impl} {label(case.config)} by {compiler.title}"


def run_of_verdicts(
    options: CompareOptions,
    identity: str,
    device: Device,
    environment: Environment,
    measured: Sequence[MeasuredPair],
    compilers: Sequence[Compiler],
) -> Run:
    """Return the run of `compare` that holds the verdicts on these pairs."""
    cases = [each.job.case for each in measured]
    alike = all(case.kernel == cases[0].kernel and case.sizes == cases[0].sizes for case in cases)
    versions = {**environment.versions, "triton": " and ".join(c.version for c in compilers)}
    return Run(
        project=project_id(),
        id=identity,
        engine="compare",
        name=COMPILERS,
        command=options.command,
        started=timestamp(),
        kernel=", ".join(dict.fromkeys(case.kernel for case in cases)),
        sizes=dict(cases[0].sizes) if alike else {},
        dtype=options.dtype,
        device=device.name,
        predicted=False,
        vary=(),
        tune=(),
        impls={},
        ceilings=dict(hardware.ceilings(device, options.dtype)),
        environment=replace(environment, versions=versions),
        source=", ".join(dict.fromkeys(each.job.kernel for each in measured)),
    )
