"""Check the results of changed Impls for `gate`, in Triton's interpreter and without a GPU.

What is right is said by the baseline's Spec: its reference, tolerance and sizes to check. The code
of the branch runs in processes of its own, which hold no reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.backend.checking import CheckCall, CheckRequest, Checks, sizes_taken
from workbench.backend.offline import INTERPRET_TIMEOUT_S
from workbench.backend.processes import outcome_of
from workbench.backend.workers import cpu_count
from workbench.commands.console import say_result
from workbench.data.exits import FAILED, INTERRUPTED, PASSED, UNDECIDED
from workbench.data.impl_check import ImplCheck, State, worst_first
from workbench.data.units import counted
from workbench.measurement.candidate import Candidate, Refusal
from workbench.source import SourceChanged, code_hash, loaded
from workbench.spec import Impl, Limits, ResolveError, Sizes, Spec, SpecFault, sizes_text, values

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class ChangedImpl:
    """An Impl of the work tree whose code is not the baseline's."""

    kernel: str  # as workers import it
    impl: Impl
    baseline: Path | None  # the kernel's file there; None: the kernel is new

    @property
    def references(self) -> list[str]:
        """Return the kernels whose Specs say what is right: the baseline's first, as far as it
        takes and gives the same tensors."""
        own = self.impl.spec
        if self.baseline is None:
            return [self.kernel]
        then = loaded(str(self.baseline)).spec
        same = _tensors(then) == _tensors(own)
        return [str(self.baseline), self.kernel] if same else [self.kernel]


def _tensors(spec: Spec) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return tuple(spec.inputs), tuple(spec.outputs)


def changed_impls(kernel: str, spec: Spec, baseline: Path | None) -> Iterator[ChangedImpl]:
    """Yield the Triton Impls of a kernel that are new or have other code than at the baseline,
    whose version of the file is given. Raises CatalogError where that cannot be imported."""
    known = loaded(str(baseline)).hashes if baseline is not None else {}
    for impl in spec.impls:
        if impl.backend == "triton" and known.get(impl.name) != code_hash(impl):
            yield ChangedImpl(kernel, impl, baseline)


def say_checks(
    console: Console, changed: Sequence[ChangedImpl], dtype: str, limits: Limits
) -> list[ImplCheck]:
    """Check the Impls, print what is wrong before all else, and return what was found."""
    if changed:
        many = counted(len(changed), "changed Impl")
        console.print(f"Checking the results of {many} in Triton's interpreter.", style="bold")
    checks = list(check_results(changed, dtype, limits))
    for check in worst_first(checks):
        if check.state == "wrong":
            say_result(console, check.line, "bold red", whole=False)
        else:
            console.print(check.line, soft_wrap=True)
    return checks


def checked_code(checks: Sequence[ImplCheck], code: int) -> int:
    """Return the exit code of a gate: 1 where a result is wrong, whatever its speed; at least 3
    where only the branch's own Spec takes it for right; else `code`."""
    states = {check.state for check in checks}
    if "wrong" in states and code != INTERRUPTED:
        return FAILED
    return UNDECIDED if "other reference" in states and code == PASSED else code


def check_results(
    changed: Sequence[ChangedImpl], dtype: str, limits: Limits
) -> Iterator[ImplCheck]:
    """Check each Impl at its default configs and yield what was found, in the order given. Configs
    that a device with these limits refuses are left out."""
    if not changed:
        return
    with closing(Checks(min(cpu_count(), len(changed)))) as checks:
        each = [_UnderCheck(checks, one, dtype, limits) for one in changed]
        for one in each:
            yield one.result()


class _UnderCheck:
    """The check of one Impl, which is under way."""

    def __init__(self, checks: Checks, of: ChangedImpl, dtype: str, limits: Limits) -> None:
        self._checks, self._of, self._dtype, self._limits = checks, of, dtype, limits
        self._first, *self._second = of.references
        self._begun = self._begin(self._first)

    def _begin(self, reference: str) -> list[tuple[CheckRequest, Future[Any]]]:
        """Start the check of each config against the Spec of a kernel."""
        begun = []
        for candidate, sizes in self._candidates(loaded(reference).spec.check):
            calls = tuple(CheckCall.at(s, self._checks.seed) for s in sizes)
            request = CheckRequest(reference, self._dtype, calls)
            timeout_s = INTERPRET_TIMEOUT_S
            compared = self._checks.calls(request, self._of.kernel, candidate, timeout_s)
            begun.append((request, compared))
        return begun

    def _candidates(self, check: Sequence[Sizes]) -> Iterator[tuple[Candidate, Sequence[Sizes]]]:
        """Yield each config that is the default somewhere, with the sizes that it takes."""
        impl, seen = self._of.impl, []
        for sizes in (*check, *impl.spec.bench):
            try:
                config = impl.default(self._limits, self._dtype, sizes)
            except ResolveError:
                continue
            if config in seen:
                continue
            seen.append(config)
            named = Candidate.by_name(impl.name, values(config))
            whole = replace(named, key=impl.title, code=code_hash(impl), impl=impl, config=config)
            if taken := sizes_taken(whole, self._limits, self._dtype, check):
                yield whole, taken

    def result(self) -> ImplCheck:
        """Wait for what was found."""
        state, reason = self._worst(self._begun)
        if state != "wrong" or not self._second:
            return ImplCheck(self._of.impl.title, state, reason)
        own, _ = self._worst(self._begin(self._second[0]))
        if own == "right":
            state = "other reference"
            reason = f"right by its own Spec, and by the baseline's not: {reason}"
        return ImplCheck(self._of.impl.title, state, reason)

    def _worst(self, begun: Sequence[tuple[CheckRequest, Future[Any]]]) -> tuple[State, str]:
        """Return the worst of all configs, and the reason."""
        if not begun:
            return "unchecked", "its defaults take none of the sizes to check"
        each = [_of_config(request, compared) for request, compared in begun]
        order: tuple[State, ...] = ("wrong", "unchecked", "right")
        return min(each, key=lambda one: order.index(one[0]))


def _of_config(request: CheckRequest, compared: Future[Any]) -> tuple[State, str]:
    """Return what was found of one config. What the interpreter lacks, and a process that was slow,
    say nothing of the kernel."""
    try:
        done = outcome_of(compared, "check")
    except (SpecFault, SourceChanged) as error:
        return "unchecked", str(error)
    if isinstance(done, Refusal):
        known = done.rule is not None or done.cause == "crash"
        return "wrong" if known else "unchecked", done.reason
    for call, result in zip(request.calls, done, strict=True):
        if result.checked.wrong:
            return "wrong", f"at {sizes_text(call.sizes)} {result.checked.wrong}"
    return "right", ""
