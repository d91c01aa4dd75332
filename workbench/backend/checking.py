"""Check configs in Triton's interpreter, with the code under test and the reference apart.

One process, the checker, makes the inputs from a seed that no kernel can know, and holds the
reference. Others run the launchers and return bytes. Neither reads the memory of the other.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.backend.protocol import Problem
from workbench.backend.workers import LOST, Workers
from workbench.catalog.source import SourceChanged, load_kernel
from workbench.data.errors import first_sentence
from workbench.data.user_code import user_code
from workbench.measurement.candidate import Candidate, Refusal
from workbench.spec import Sampling, Sizes, SpecFault, sizes_text

if TYPE_CHECKING:
    from workbench.measurement.correctness import Checked
    from workbench.measurement.handover import CallResult, Given, Returned
    from workbench.measurement.tamper import Snapshot

INPUTS_TIMEOUT_S = 300.0  # of inputs and references of all calls
COMPARE_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class CheckCall:
    """One call of a check: its sizes, as pairs, and the seed of its inputs, which may hold `hard`
    values (see `measurement/hard_inputs.py`)."""

    pairs: tuple[tuple[str, int], ...]
    seed: int
    hard: bool = False

    @staticmethod
    def create(sizes: Sizes, seed: int, hard: bool = False) -> CheckCall:
        """Return the call at these sizes."""
        return CheckCall(tuple(sizes.items()), seed, hard)

    @property
    def sizes(self) -> dict[str, int]:
        """Return the sizes by axis."""
        return dict(self.pairs)


@dataclass(frozen=True)
class CheckRequest:
    """The calls by which launchers of one Spec are checked."""

    kernel: str  # that holds the Spec
    dtype: str
    calls: tuple[CheckCall, ...]


class Checks:
    """The processes that check configs."""

    def __init__(
        self,
        count: int,
        launch: Callable[..., Any] | None = None,
        here: Path | None = None,
        trusts: bool = True,
        *,
        first: tuple[Callable[..., Any], Any] | None = None,
        checker: Workers | None = None,
    ) -> None:
        """Run at most `count` configs at once, and one checker, which may be that of others.
        `launch` is the task that launches a config on the inputs of several calls; None:
        `launch_calls`, in Triton's interpreter. Modules in the folder `here` are found after all
        others: by the checker, too, if it `trusts` them. All begin with the task `first`."""
        self._launch = launch or launch_calls
        self._runners = Workers(count, interpreted=True, here=here, first=first)
        self.checker = checker or Workers(1, here=here if trusts else None, first=first)
        self.seed = secrets.randbits(31)  # of all inputs
        self._inputs: dict[CheckRequest, Future[Any]] = {}

    def check(
        self, problem: Problem, candidate: Candidate, sizes: Sequence[Sizes], timeout_s: float
    ) -> Future[Checked | Refusal]:
        """Return a future of the result over these sizes: the largest error with the bits of all
        outputs, or a Refusal. See `calls` for what it raises."""
        each = tuple(CheckCall.create(s, self.seed) for s in sizes)
        request = CheckRequest(problem.kernel, problem.dtype, each)
        compared = self.calls(request, problem.kernel, candidate, timeout_s)
        return then(compared, lambda results: _done_future(join(request, results)))

    def calls(
        self, request: CheckRequest, kernel: str, candidate: Candidate, timeout_s: float
    ) -> Future[list[CallResult] | Refusal]:
        """Launch a candidate of `kernel` on the inputs of each call, one after the other in one
        process; return a future of the results, or of a Refusal where a launch failed.

        It raises SpecFault where the Spec itself is wrong, SourceChanged where the kernel's file
        is not the one that was planned, and CancelledError where the processes were ended first.
        """

        def launch_inputs(inputs: list[Given]) -> Future[Any]:
            return self._runners.submit(
                self._launch, kernel, candidate, inputs, timeout_s=timeout_s
            )

        def compare_results(results: list[Returned] | Refusal) -> Future[Any]:
            if isinstance(results, Refusal):
                return _done_future(results)
            return self.ask(compare_outputs, request, results, timeout_s=COMPARE_TIMEOUT_S)

        return then(then(self.inputs_of(request), launch_inputs), compare_results)

    def check_samples(
        self, kernel: str, candidate: Candidate, examined: Any, sampling: Sampling, timeout_s: float
    ) -> Future[Checked | Refusal | None]:
        """Check some programs of a candidate's launch; `examined` is what compiling found. Returns
        a future of None where they did not end in time, or where nothing is known of them."""

        def compare_results(result: Any) -> Future[Any]:
            if result is None or isinstance(result, Refusal):
                return _done_future(result)
            return self.ask(sampling.compare, kernel, result, timeout_s=COMPARE_TIMEOUT_S)

        launched = self._runners.submit(
            sampling.launch, kernel, candidate, examined, timeout_s=timeout_s
        )
        return then(_unless_late(launched), compare_results)

    def ask(self, task: Callable[..., Any], *args: Any, timeout_s: float) -> Future[Any]:
        """Run a task in the checker and return a future of its result."""
        return self.checker.submit(task, *args, timeout_s=timeout_s)

    def run(self, task: Callable[..., Any], *args: Any, timeout_s: float) -> Future[Any]:
        """Run a task in a process that runs the code under test; return a future of its result."""
        return self._runners.submit(task, *args, timeout_s=timeout_s)

    def inputs_of(self, request: CheckRequest) -> Future[Any]:
        """Return a future of the inputs of each call, as a list of Given."""
        if request not in self._inputs:
            limit_s = INPUTS_TIMEOUT_S
            inputs = tried_again(lambda: self.ask(make_inputs, request, timeout_s=limit_s))
            self._inputs[request] = _blaming_the_spec(inputs)
        return self._inputs[request]

    def restart(self, checker: bool = True) -> None:
        """Start new processes, into which no kernel's file was imported; also the checker's, unless
        that is to keep its inputs and references."""
        self._runners.restart()
        if checker:
            self._inputs.clear()
            self.checker.restart()

    def close(self) -> None:
        """End all processes."""
        self._runners.close()
        self.checker.close()


def join(request: CheckRequest, results: Sequence[CallResult] | Refusal) -> Checked | Refusal:
    """Return the largest error of several calls with one hash of their bits, or a Refusal for the
    first call that is wrong."""
    from workbench.measurement.correctness import Checked

    if isinstance(results, Refusal):
        return results
    each = [result.check for result in results]
    for call, checked in zip(request.calls, each, strict=True):
        if checked.wrong:
            return Refusal(
                "check", f"at {sizes_text(call.sizes)} {checked.wrong}", rule=checked.rule
            )
    words = " ".join(checked.bits for checked in each)
    bits = hashlib.sha256(words.encode()).hexdigest()[:16]
    return Checked(max(checked.error for checked in each), bits=bits)


# Futures


def then(first: Future[Any], follow: Callable[[Any], Future[Any]]) -> Future[Any]:
    """Return a future of `follow`'s result, which starts with the result of `first`."""
    result: Future[Any] = Future()

    def begin(done: Future[Any]) -> None:
        if done.cancelled() or done.exception() is not None:
            _settle(result, done)
            return
        try:
            follow(done.result()).add_done_callback(lambda last: _settle(result, last))
        except RuntimeError:  # the pool is closed
            result.set_exception(CancelledError())

    first.add_done_callback(begin)
    return result


def _unless_late(first: Future[Any]) -> Future[Any]:
    """Return the future with None in place of a task that took too long."""
    result: Future[Any] = Future()

    def settle(done: Future[Any]) -> None:
        if not done.cancelled() and isinstance(done.exception(), TimeoutError):
            result.set_result(None)
        else:
            _settle(result, done)

    first.add_done_callback(settle)
    return result


def tried_again(task: Callable[[], Future[Any]]) -> Future[Any]:
    """Return a future of a task's result. Where its process is lost it is run a second time: the
    system may have killed it."""
    result: Future[Any] = Future()

    def retry_if_lost(done: Future[Any]) -> None:
        if done.cancelled() or not isinstance(done.exception(), LOST):
            _settle(result, done)
            return
        try:
            task().add_done_callback(lambda last: _settle(result, last))
        except RuntimeError:  # the pool is closed
            result.set_exception(CancelledError())

    task().add_done_callback(retry_if_lost)
    return result


def _settle(promise: Future[Any], done: Future[Any]) -> None:
    """Give one future the result or the error of another one that is done."""
    error = CancelledError() if done.cancelled() else done.exception()
    if error is None:
        promise.set_result(done.result())
    else:
        promise.set_exception(error)


def _done_future(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def _blaming_the_spec(inputs: Future[Any]) -> Future[Any]:
    """Return the future, a SpecFault in place of a process lost twice: only the Spec's code ran."""
    result: Future[Any] = Future()

    def settle(done: Future[Any]) -> None:
        error = None if done.cancelled() else done.exception()
        if not isinstance(error, LOST):
            _settle(result, done)
            return
        lost = f"The process that makes the inputs and the reference {error}"
        result.set_exception(SpecFault(f"{lost}; correct the Spec: no kernel was tried."))

    inputs.add_done_callback(settle)
    return result


# Tasks of the checker

_snapshot: Snapshot | None = None  # of the functions that it relies on, before the user's file
_problems: dict[tuple[Any, ...], Any] = {}
_KEPT = 64  # problems


def make_inputs(request: CheckRequest) -> list[Given]:
    """Return the inputs of each call, and keep their reference. Raises SpecFault."""
    from workbench.measurement.handover import pack

    problems = [_problem(request, call) for call in request.calls]
    return [pack(p.spec, c.sizes, p.inputs) for p, c in zip(problems, request.calls, strict=True)]


def import_trusted(kernel: str) -> Any:
    """Import the Spec of a kernel in the checker and return it. Functions that the check relies on
    are remembered as they were before."""
    from workbench.measurement.tamper import snapshot

    global _snapshot
    _snapshot = _snapshot or snapshot()
    return load_kernel(kernel, bare=True).spec


def remember_spec(kernel: str) -> None:
    """Import the Spec of a kernel in the checker, before any code under test runs."""
    import_trusted(kernel)


def _problem(request: CheckRequest, call: CheckCall) -> Any:
    from workbench.measurement.correctness import PreparedProblem
    from workbench.measurement.hard_inputs import hard_problem

    key = (request.kernel, request.dtype, call)
    if key not in _problems:
        spec = import_trusted(request.kernel)
        while len(_problems) >= _KEPT:
            del _problems[next(iter(_problems))]
        make = hard_problem if call.hard else PreparedProblem.make
        _problems[key] = make(spec, call.sizes, request.dtype, "cpu", call.seed)
    return _problems[key]


def compare_outputs(
    request: CheckRequest, results: Sequence[Returned]
) -> list[CallResult] | Refusal:
    """Compare what the launches returned with the reference of each call. Returns a Refusal where
    the file of the Spec replaced a function that this relies on."""
    from workbench.measurement.handover import CallResult, compare

    compared = [
        CallResult(compare(_problem(request, call), result), result.launches, result.operators)
        for call, result in zip(request.calls, results, strict=True)
    ]
    if (name := replaced_function()) is not None:
        reason = f"importing the kernel's file replaces {name}, on which checks rely"
        return Refusal("check", reason, rule="functions")
    return compared


def replaced_function() -> str | None:
    """Return the name of a function that checks rely on and that importing a Spec replaced."""
    return _snapshot.replaced_function() if _snapshot is not None else None


# Tasks of the processes that run the code under test


def launch_calls(
    kernel: str, candidate: Candidate, calls: Sequence[Given]
) -> list[Returned] | Refusal:
    """Launch one config on the inputs of each call, in an interpreting worker, and return the
    outputs, or a Refusal for the first launch that fails."""
    from workbench.measurement.handover import launch_on_inputs

    module = load_kernel(kernel)
    impl = module.impl(candidate.case.impl, candidate.code)
    config = impl.config(**candidate.case.config)
    results: list[Returned] = []
    for call in calls:
        at = sizes_text(call.sizes)
        try:
            with user_code(f"the launch of {impl.title}", INPUTS_TIMEOUT_S):
                results.append(launch_on_inputs(impl, config, call))
        except (SpecFault, SourceChanged):
            raise
        except Exception as error:
            reason = f"the interpreter stopped at {at}: {first_sentence(error)}"
            return Refusal("check", reason, rule=None if _is_unsupported(error) else "process")
        if (fault := results[-1].fault) is not None:  # the other calls cannot mend it
            return Refusal("check", f"at {at} {fault.reason}", rule=fault.rule)
    return results


def _is_unsupported(error: BaseException | None) -> bool:
    """Return whether the interpreter lacks what a kernel uses, such as inline assembly."""
    while error is not None:
        if isinstance(error, NotImplementedError) or "InterpreterBuilder" in str(error):
            return True
        error = error.__cause__
    return False
