"""Run the parts of an evaluation, each in the process that may run it."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from workbench.backend.checking import CheckRequest
from workbench.backend.processes import COMPILE_TIMEOUT_S, CompileJob, compile_task, outcome_of
from workbench.backend.workers import LOST
from workbench.compile import Compiled
from workbench.data.user_code import LIMIT_S
from workbench.device.hardware import Device
from workbench.evaluation.calls import HIDDEN, calls_at
from workbench.evaluation.problem import SpecError, SpecFacts, spec_facts
from workbench.evaluation.processes import Processes
from workbench.evaluation.submission import (
    Submission,
    SubmissionError,
    Wanted,
    describe,
    functions_of,
)
from workbench.evaluation.verdict import RuleResult, call_results, fail_rules
from workbench.measurement.candidate import Refusal
from workbench.spec import Sizes, sizes_text

INTERPRET_TIMEOUT_S = 300.0  # of all calls of an evaluation


@dataclass(frozen=True)
class CheckedCalls:
    """The results of the rules that the interpreter decides, and the sizes that decided them."""

    results: Sequence[RuleResult]
    error: float | None = None  # largest, in tolerances
    hidden_sizes: Sequence[Mapping[str, int]] = ()


class Evaluator:
    """One evaluation, part by part."""

    def __init__(
        self,
        processes: Processes,
        wanted: Wanted,
        spec: str,
        device: Device,
        seed: int,
        limit_s: float = INTERPRET_TIMEOUT_S,
    ) -> None:
        """`spec` names the kernel whose Spec is trusted; `seed` decides sizes, values and order.
        All calls in the interpreter may take `limit_s` seconds."""
        self.wanted, self._spec, self.device, self._seed = wanted, spec, device, seed
        self._limit_s = limit_s
        self._checks, self._compilers = processes.checks, processes.compilers
        self._recorders = processes.recorders

    def facts(self, timed: Mapping[str, int] | None) -> SpecFacts:
        """Return the facts of the Spec. Raises SpecError and CatalogError."""
        task = self._checks.ask(
            spec_facts, self._spec, self.wanted.dtype, timed, self._seed, timeout_s=LIMIT_S
        )
        try:
            facts: SpecFacts = task.result()
        except LOST as error:
            reason = f"The process that imports the Spec of {self._spec} {error}"
            raise SpecError(f"{reason}; correct that file.") from None
        return facts

    def describe(self, facts: SpecFacts) -> Submission | Refusal:
        """Return the code under test, or a Refusal where its process is lost. Raises CatalogError,
        and SubmissionError where its config cannot run at the sizes to time."""
        every = (facts.timed_sizes, *facts.named_sizes, *facts.hidden_sizes, *facts.larger)
        limits = self.device.limits
        task = self._recorders.submit(describe, self.wanted, limits, every, timeout_s=LIMIT_S)
        try:
            submission: Submission = task.result()
        except LOST as error:
            return Refusal("check", f"the import of the file: {error}", rule="process")
        if len(submission.rejections) != len(every):
            return Refusal("check", "its description is of other sizes", rule="process")
        if (reason := submission.rejections[0]) is not None:
            at = f"{sizes_text(facts.timed_sizes)} in {self.wanted.dtype} on {self.device.name}"
            raise SubmissionError(
                f"{submission.title} cannot take {at}: {reason}; name others with --sizes, "
                "--dtype or --impl."
            )
        return submission

    def compile(self, submission: Submission, facts: SpecFacts) -> Compiled | Refusal:
        """Return the config compiled at the sizes to time, or why it cannot be."""
        job = CompileJob(
            self.wanted.kernel,
            submission.candidate,
            facts.timed_sizes,
            self.wanted.dtype,
            self.device,
            None,
            submission.title,
        )
        return self._outcome(self._compilers.submit(compile_task, job, timeout_s=COMPILE_TIMEOUT_S))

    def check(self, submission: Submission, facts: SpecFacts) -> CheckedCalls:
        """Return the results of calls in the interpreter, at sizes of the Spec and at others."""
        named, hidden = _accepted_sizes(submission, facts)
        if not named:
            reason = "the config takes none of the sizes to check"
            return CheckedCalls(fail_rules(Refusal("check", reason)))
        if submission.blocker:
            refusal = Refusal("check", submission.blocker)
            return CheckedCalls(fail_rules(refusal), hidden_sizes=hidden)
        calls = calls_at(named, hidden, self._seed)
        functions = self._functions(submission, (*named, *hidden))
        if isinstance(functions, Refusal):
            return CheckedCalls(fail_rules(functions), hidden_sizes=hidden)
        request = CheckRequest(self._spec, self.wanted.dtype, calls)
        results = self._outcome(
            self._checks.calls(request, self.wanted.kernel, submission.candidate, self._limit_s)
        )
        if isinstance(results, Refusal):
            return CheckedCalls(fail_rules(results), hidden_sizes=hidden)
        by_call = {call: functions[tuple(call.pairs)] for call in calls}
        right = [result.check.error for result in results if not result.check.wrong]
        rules = call_results(calls, results, by_call, named)
        return CheckedCalls(rules, max(right, default=None), hidden)

    def _functions(
        self, submission: Submission, sizes: Sequence[Sizes]
    ) -> dict[Any, tuple[str, ...]] | Refusal:
        """Return the device functions that a call launches at each of the sizes."""
        task = self._compilers.submit(
            functions_of,
            self.wanted.kernel,
            submission.candidate,
            sizes,
            self.wanted.dtype,
            self.device,
            timeout_s=COMPILE_TIMEOUT_S * len(sizes),
        )
        names = self._outcome(task)
        if isinstance(names, Refusal):
            return names
        return {tuple(at.items()): each for at, each in zip(sizes, names, strict=True)}

    @staticmethod
    def _outcome(task: Future[Any]) -> Any:
        return outcome_of(task, "check")


def _accepted_sizes(
    submission: Submission, facts: SpecFacts
) -> tuple[list[Mapping[str, int]], list[Mapping[str, int]]]:
    """Return the sizes to check that the config takes, and the first others that it takes."""
    reasons = submission.rejections[1:]
    count = len(facts.named_sizes)
    named = [s for s, reason in zip(facts.named_sizes, reasons, strict=False) if reason is None]
    rest = zip(facts.hidden_sizes, reasons[count : count + len(facts.hidden_sizes)], strict=True)
    return named, [s for s, reason in rest if reason is None][:HIDDEN]
