"""Compare two Impls or configs for an Apple GPU without one: `compare LEFT RIGHT --device m2max`.

Both are emulated, checked and predicted as by `measure`, and stored so. Their traffic is counted
and their predictions are intervals, so most pairs are INCONCLUSIVE: only intervals that do not
overlap decide, and dispatches that are equal in text, grid and counted bytes are SAME.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from workbench import catalog
from workbench.backend.metal.emulated import plan_launches
from workbench.commands.console import say_result
from workbench.commands.measure import MeasureOptions
from workbench.commands.measure_command import MeasureCommand
from workbench.commands.operands import is_run, kernel_of, operands_of, repository_with
from workbench.commands.options import CommandError
from workbench.commands.result import RunResult, write_result
from workbench.commands.run import Recorder
from workbench.commands.sizes import check_dtype
from workbench.data import verdict
from workbench.data.comparison import ComparisonResult, compared_part
from workbench.data.exits import COULD_NOT_RUN
from workbench.data.record import Record
from workbench.data.units import reading
from workbench.reports.measure import span_words
from workbench.revisions.worktree import WORKING

if TYPE_CHECKING:
    from rich.console import Console

    from workbench.commands.compare import CompareOptions


def compare_on_emulator(options: CompareOptions, console: Console) -> int:
    """Compare two operands for an Apple GPU. Returns the exit code of the verdict, 2 where one of
    them has no prediction, or 130 after Ctrl-C. Raises CommandError for stored runs and revisions,
    which have no emulated comparison."""
    (device,) = options.device
    texts = (options.left, options.right)
    if any(map(is_run, texts)):
        raise CommandError(f"Stored runs are compared as they are; leave out --device {device}.")
    kernel = kernel_of(*texts, next(iter(options.kernel), None))
    spec = catalog.spec_of(kernel)
    check_dtype(spec, options.dtype)
    for operand in operands_of(texts, None, spec, repository_with(kernel)):
        if operand.revision != WORKING:
            raise CommandError(
                f"{operand.revision} is a revision, and with --device {device} Impls and configs "
                "of the present file are compared; name two of them."
            )
    shared = {f.name for f in fields(MeasureOptions)} & {f.name for f in fields(options)}
    given = {name: getattr(options, name) for name in shared}
    given |= {"kernel": kernel, "impl": texts, "device": device, "dtype": (options.dtype,)}
    given |= {"sizes": (options.sizes,) if options.sizes else ()}
    return EmulatedComparison(MeasureOptions(**given), console).go()


@dataclass
class EmulatedComparison(MeasureCommand):
    """A measurement of two operands without a Mac that ends in a verdict."""

    result: ComparisonResult | None = None  # None where an operand has no prediction

    def _conclude(self, recorder: Recorder) -> None:
        super()._conclude(recorder)
        times = [o for o in recorder.outcomes if isinstance(o, Record)]
        if len(times) < len(recorder.outcomes) or not times:
            say_result(self.console, "No verdict: an operand has no prediction.", "bold")
            return
        left, right = times[0], times[-1]
        launches = [_launches(recorder, record) for record in (left, right)]
        alike = launches[0] == launches[1] and left.traffic == right.traffic
        word = verdict.compare_predictions(left, right, alike)
        self.console.print(f"right against left: {_counts(left, right)}")
        reason = _because(word, left, right)
        say_result(self.console, f"{word}. {reason}", "bold", whole=False)
        part = compared_part(left.case.kernel, word, reason, (left, right))
        names = left.case.label, right.case.label
        self.result = ComparisonResult("predicted times", *names, f"{word}. {reason}", [part])

    def _exit_code(self, recorder: Recorder) -> int:
        return self.result.exit_code if self.result else COULD_NOT_RUN

    def _write(self, code: int, run: RunResult) -> int:
        result = self.result.plain() if self.result else None
        return write_result(self.options, "compare", code, [run], comparison=result)


def _launches(recorder: Recorder, record: Record) -> object:
    """Return the dispatches of an operand: text, template values, grid and threadgroup."""
    spec = catalog.spec_of(recorder.run.source)
    impl = catalog.impl_of(spec, record.case.impl)
    case = record.case
    return plan_launches(impl, impl.config_of(case.config), case.sizes, case.dtype)


def _counts(left: Record, right: Record) -> str:
    """Return the counted bytes and dispatches of both, the right one first."""
    parts = []
    for record in (right, left):
        traffic = record.traffic
        assert traffic is not None
        dispatches = f"{traffic.dispatches} dispatch{'es' * (traffic.dispatches > 1)}"
        parts.append(f"{reading(traffic.bytes, 'B')} in sectors, {dispatches}")
    return " against ".join(parts)


def _because(word: str, left: Record, right: Record) -> str:
    """Return the sentence of a verdict, with both intervals."""
    theirs = f"{left.case.label} is predicted to take {span_words(left)}"
    if word == "SAME":
        return f"Both launch the same text on the same grid and move equal bytes: {theirs}."
    mine = f"{right.case.label} {span_words(right)}"
    ending = "the intervals overlap, so only a Mac decides"
    if word != "INCONCLUSIVE":
        ending = f"the intervals do not overlap, so the model predicts that the right one is {word}"
    return f"{theirs}, and {mine}: {ending}."
