"""Check the results of changed Impls for `gate`, in Triton's interpreter and without a GPU.

What is right is said by the baseline's Spec: its reference, tolerance and sizes to check. The code
of the branch runs in processes of its own, which hold no reference; this one imports no kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.backend.checking import CheckCall, CheckRequest, Checks, remember_spec
from workbench.backend.described import CheckedConfig, DescribedImpl, Description
from workbench.backend.offline import INTERPRET_TIMEOUT_S
from workbench.backend.processes import outcome_of
from workbench.backend.workers import cpu_count
from workbench.catalog.source import SourceChanged
from workbench.commands.console import say_result
from workbench.data.closing import Closing
from workbench.data.impl_check import ImplCheck, State, worst_first
from workbench.data.units import amount
from workbench.measurement.candidate import Candidate, Refusal
from workbench.spec import Sizes, SpecFault, sizes_text

if TYPE_CHECKING:
    from rich.console import Console

IMPORT_S = 60.0


@dataclass(frozen=True)
class ChangedImpl:
    """An Impl of the work tree whose file, or one that it imports, is not the baseline's."""

    now: Description
    impl: DescribedImpl
    then: Description | None  # None: the kernel is new

    @property
    def title(self) -> str:
        """Return its name in messages."""
        return f"{self.now.name}.{self.impl.name}"

    @property
    def references(self) -> list[Description]:
        """Return the kernels whose Specs say what is right: the baseline's first, as far as it
        takes and gives the same tensors."""
        if self.then is None or self.then.tensors != self.now.tensors:
            return [self.now]
        return [self.then, self.now]

    @property
    def old_configs(self) -> Sequence[CheckedConfig]:
        """Return the baseline's configs, with the sizes to check that they take."""
        was = self.then.impl(self.impl.name) if self.then else None
        return was.taken_configs(self.references[0].check) if was else ()


def changed_impls(now: Description, then: Description | None) -> Iterator[ChangedImpl]:
    """Yield the Triton Impls of a kernel whose code may have changed."""
    for impl in now.impls:
        if impl.backend == "triton":
            yield ChangedImpl(now, impl, then)


def say_checks(
    console: Console, judges: Judges, changed: Sequence[ChangedImpl], dtype: str
) -> list[ImplCheck]:
    """Check the Impls, print what is wrong before all else, and return what the checks gave."""
    if changed:
        many = amount(len(changed), "changed Impl")
        console.print(f"Checking the results of {many} in Triton's interpreter.", style="bold")
    checks = judges.check(changed, dtype)
    for check in worst_first(checks):
        if check.state == "wrong":
            say_result(console, check.line, "bold red", whole=False)
        else:
            console.print(check.line, soft_wrap=True, markup=False)
    return checks


class Judges(Closing):
    """Processes that check Impls: one judge holds the Specs of the baseline, another one those of
    the branch, whose files could change what the first one says. To be closed."""

    def __init__(self, here: Path) -> None:
        """Use modules of the folder `here` where the branch imports them."""
        count = cpu_count()
        self._baseline = Checks(count, here=here, trusts=False)
        self._branch = Checks(count, here=here)

    def remember(self, specs: Sequence[Description]) -> None:
        """Import the Specs of the baseline. To be called before code of the branch runs, which
        could write to their files."""
        begun = [self._baseline.ask(remember_spec, s.file, timeout_s=IMPORT_S) for s in specs]
        for future in begun:
            with suppress(Exception):  # said by the check that needs it
                future.result()

    def check(self, changed: Sequence[ChangedImpl], dtype: str) -> list[ImplCheck]:
        """Return what the check of each Impl at its default configs gave, in the order given."""
        first = [self._begin_checks(one, one.references[0], dtype) for one in changed]
        checks = [self._one(one, begun, dtype) for one, begun in zip(changed, first, strict=True)]
        lost = [n for n, check in enumerate(checks) if check.state == "unchecked"]
        if lost:
            self._baseline.restart(checker=False)  # into processes that no branch's file is in
        for n in lost:
            if self._can_check(changed[n], dtype):
                reason = f"the baseline's can be checked, and this cannot: {checks[n].reason}"
                checks[n] = ImplCheck(checks[n].title, "unproven", reason)
        return checks

    def _one(self, one: ChangedImpl, begun: Sequence[Begun], dtype: str) -> ImplCheck:
        state, reason = _worst(begun)
        references = one.references
        if state == "wrong" and len(references) > 1:
            own, _ = _worst(self._begin_checks(one, references[1], dtype))
            if own == "right":
                state = "other reference"
                reason = f"right by its own Spec, and wrong by the baseline's: {reason}"
        if state == "right" and (refused := _newly_refused_sizes(one)):
            state = "unproven"
            reason = f"it refuses {sizes_text(refused[0])}, at which the baseline's is checked"
        return ImplCheck(one.title, state, reason)

    def _begin_checks(self, one: ChangedImpl, reference: Description, dtype: str) -> list[Begun]:
        """Start the check of each config of an Impl against the Spec of a kernel."""
        checks = self._baseline if reference is one.then else self._branch
        taken = one.impl.taken_configs(reference.check)
        return [
            Begun(checks, reference.file, one.now.file, one.impl.name, config, dtype)
            for config in taken
        ]

    def _can_check(self, one: ChangedImpl, dtype: str) -> bool:
        """Return whether the baseline's code passes the check that the branch's cannot take."""
        if one.then is None or one.references[0] is not one.then:
            return False
        file = one.then.file
        begun = [
            Begun(self._baseline, file, file, one.impl.name, config, dtype)
            for config in one.old_configs
        ]
        return bool(begun) and _worst(begun)[0] == "right"

    def close(self) -> None:
        """End all processes."""
        self._baseline.close()
        self._branch.close()


class Begun:
    """The check of one config, which is under way."""

    def __init__(
        self,
        checks: Checks,
        reference: str,
        kernel: str,
        impl: str,
        config: CheckedConfig,
        dtype: str,
    ) -> None:
        calls = [CheckCall.create(sizes, checks.seed) for sizes in config.sizes]
        calls += [CheckCall.create(sizes, checks.seed, hard=True) for sizes in config.sizes[-1:]]
        self._request = CheckRequest(reference, dtype, tuple(calls))
        candidate = Candidate.create(impl, config.config)
        self._compared: Future[Any] = checks.calls(
            self._request, kernel, candidate, INTERPRET_TIMEOUT_S
        )

    def result(self) -> tuple[State, str]:
        """Return what the check gave. What the interpreter lacks, and a process that was slow, say
        nothing of the kernel."""
        try:
            done = outcome_of(self._compared, "check")
        except (SpecFault, SourceChanged) as error:
            return "unchecked", str(error)
        if isinstance(done, Refusal):
            known = done.rule is not None or done.cause == "crash"
            return "wrong" if known else "unchecked", done.reason
        for call, result in zip(self._request.calls, done, strict=True):
            if result.check.wrong:
                return "wrong", f"at {sizes_text(call.sizes)} {result.check.wrong}"
        return "right", ""


def _worst(begun: Sequence[Begun]) -> tuple[State, str]:
    """Return the worst of all configs, and the reason."""
    if not begun:
        return "unchecked", "its defaults take none of the sizes to check"
    order: tuple[State, ...] = ("wrong", "unchecked", "right")
    return min((one.result() for one in begun), key=lambda one: order.index(one[0]))


def _newly_refused_sizes(one: ChangedImpl) -> list[Sizes]:
    """Return the sizes to check that the baseline's Impl takes and the branch's does not."""
    check = one.references[0].check
    taken = [s for config in one.impl.taken_configs(check) for s in config.sizes]
    return [s for config in one.old_configs for s in config.sizes if s not in taken]
