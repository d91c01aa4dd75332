"""Check configs in Triton's interpreter, with the code under test and the reference apart.

One process, the checker, makes the inputs from a seed that no kernel can know, and holds the
reference. Others run the launchers and return bytes. Neither reads the memory of the other.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench.backend.protocol import Problem
from workbench.backend.workers import LOST, Workers
from workbench.data.errors import first_sentence
from workbench.measurement.candidate import Candidate, Refusal
from workbench.source import SourceChanged, loaded
from workbench.spec import Sizes, SpecFault

if TYPE_CHECKING:
    from workbench.measurement.correctness import Checked
    from workbench.measurement.handover import Given, Returned
    from workbench.measurement.tamper import Snapshot

PREPARE_TIMEOUT_S = 300.0  # of inputs and references at all sizes to check
JUDGE_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Question:
    """The calls of one problem that a config is checked by."""

    kernel: str
    dtype: str
    calls: tuple[tuple[tuple[str, int], ...], ...]  # the sizes of each, as pairs
    seed: int

    @staticmethod
    def of(kernel: str, dtype: str, sizes: Sequence[Mapping[str, int]], seed: int) -> Question:
        """Return the question that has one call for each of these sizes."""
        return Question(kernel, dtype, tuple(tuple(s.items()) for s in sizes), seed)

    @property
    def sizes(self) -> list[dict[str, int]]:
        """Return the sizes of each call."""
        return [dict(pairs) for pairs in self.calls]


class Checks:
    """Processes that check configs, and the questions that were asked so far."""

    def __init__(self, count: int) -> None:
        """Run at most `count` configs at once, and one checker."""
        self._runners = Workers(count, interpreted=True)
        self._checker = Workers(1)
        self.seed = secrets.randbits(31)  # of all inputs
        self._given: dict[Question, Future[Any]] = {}

    def check(
        self, problem: Problem, candidate: Candidate, sizes: Sequence[Sizes], timeout_s: float
    ) -> Future[Checked | Refusal]:
        """Return a future of the result over these sizes: the largest error, or a Refusal.

        It raises SpecFault where the Spec itself is wrong, SourceChanged where the kernel's file
        is not the one that was planned, and CancelledError where the processes were ended first.
        """
        asked = Question.of(problem.kernel, problem.dtype, sizes, self.seed)

        def run(given: list[Given]) -> Future[Any]:
            return self._runners.submit(run_calls, asked, candidate, given, timeout_s=timeout_s)

        def judge(answers: list[Returned] | Refusal) -> Future[Any]:
            if isinstance(answers, Refusal):
                return _done(answers)
            return self._checker.submit(judge_calls, asked, answers, timeout_s=JUDGE_TIMEOUT_S)

        return then(then(self._inputs(asked), run), judge)

    def _inputs(self, asked: Question) -> Future[Any]:
        if asked not in self._given:
            prepared = self._checker.submit(prepare_calls, asked, timeout_s=PREPARE_TIMEOUT_S)
            self._given[asked] = _blaming_the_spec(prepared)
        return self._given[asked]

    def close(self) -> None:
        """End all processes."""
        self._runners.close()
        self._checker.close()


def then(first: Future[Any], follow: Callable[[Any], Future[Any]]) -> Future[Any]:
    """Return a future of `follow`'s result, which starts with the result of `first`."""
    result: Future[Any] = Future()

    def settle(done: Future[Any]) -> None:
        if done.cancelled():
            result.set_exception(CancelledError())
        elif (error := done.exception()) is not None:
            result.set_exception(error)
        else:
            result.set_result(done.result())

    def begin(done: Future[Any]) -> None:
        if done.cancelled() or done.exception() is not None:
            settle(done)
            return
        try:
            follow(done.result()).add_done_callback(settle)
        except RuntimeError:  # the pool is closed
            result.set_exception(CancelledError())

    first.add_done_callback(begin)
    return result


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def _blaming_the_spec(prepared: Future[Any]) -> Future[Any]:
    """Return the future with a SpecFault in place of a lost process: only the Spec's code ran."""
    result: Future[Any] = Future()

    def settle(done: Future[Any]) -> None:
        error = CancelledError() if done.cancelled() else done.exception()
        if error is None:
            result.set_result(done.result())
        elif isinstance(error, LOST):
            result.set_exception(
                SpecFault(
                    f"The process that makes the inputs and the reference {error}; correct the "
                    "Spec: no kernel was tried."
                )
            )
        else:
            result.set_exception(error)

    prepared.add_done_callback(settle)
    return result


# Tasks of the checker

_before: Snapshot | None = None  # the functions that it relies on, before the user's file was read
_problems: dict[tuple[Any, ...], Any] = {}
_KEPT = 64  # problems


def prepare_calls(asked: Question) -> list[Given]:
    """Return the inputs of each call, and keep the reference. Raises SpecFault."""
    from workbench.measurement.handover import given
    from workbench.measurement.tamper import snapshot

    global _before
    _before = _before or snapshot()
    problems = [_problem(asked, sizes) for sizes in asked.sizes]
    return [given(p.spec, s, p.inputs) for p, s in zip(problems, asked.sizes, strict=True)]


def _problem(asked: Question, sizes: Sizes) -> Any:
    from workbench.measurement.correctness import PreparedProblem

    key = (asked.kernel, asked.dtype, asked.seed, *sizes.items())
    if key not in _problems:
        spec = loaded(asked.kernel).spec
        while len(_problems) >= _KEPT:
            del _problems[next(iter(_problems))]
        _problems[key] = PreparedProblem.of(spec, sizes, asked.dtype, "cpu", asked.seed)
    return _problems[key]


def judge_calls(asked: Question, answers: Sequence[Returned]) -> Checked | Refusal:
    """Compare what the launches returned with the reference, and return the largest error with the
    bits of all outputs, or a Refusal for the first that is wrong."""
    from workbench.measurement.correctness import Checked
    from workbench.measurement.handover import checked

    results = []
    for sizes, answer in zip(asked.sizes, answers, strict=True):
        result = checked(_problem(asked, sizes), answer)
        if _before is not None and (name := _before.changed()) is not None:
            reason = f"importing the kernel's file replaces {name}, on which checks rely"
            return Refusal("check", reason)
        if result.wrong:
            return Refusal("check", f"at {dict(sizes)} {result.wrong}")
        results.append(result)
    bits = _joined([r.bits for r in results])
    return Checked(max(r.error for r in results), None, bits)


def _joined(bits: Sequence[str]) -> str:
    """Return one hash, in 16 hex digits, of several."""
    return hashlib.sha256(" ".join(bits).encode()).hexdigest()[:16]


# Tasks of the processes that run the code under test


def run_calls(
    asked: Question, candidate: Candidate, calls: Sequence[Given]
) -> list[Returned] | Refusal:
    """Launch one config on the inputs of each call, in an interpreting worker, and return the
    outputs, or a Refusal where the interpreter stopped."""
    from workbench.measurement.handover import returned

    kernel = loaded(asked.kernel)
    impl = kernel.impl(candidate.case.impl, candidate.code)
    config = impl.config(**candidate.case.config)
    answers = []
    for call in calls:
        try:
            answers.append(returned(impl, config, call))
        except (SpecFault, SourceChanged):
            raise
        except Exception as error:
            at, why = dict(call.sizes), first_sentence(error)
            return Refusal("check", f"the interpreter stopped at {at}: {why}")
        if answers[-1].wrong:  # the others cannot mend it
            return _first_wrong(answers, calls)
    return answers


def _first_wrong(answers: Sequence[Returned], calls: Sequence[Given]) -> Refusal:
    at = dict(calls[len(answers) - 1].sizes)
    return Refusal("check", f"at {at} {answers[-1].wrong}")
