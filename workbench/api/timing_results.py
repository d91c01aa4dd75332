"""Results of commands that time configs: sweep, measure, compare, and decorated functions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.api.call import Called, call
from workbench.api.outcome_table import outcome_table, time_text
from workbench.api.result import BestConfig, Result, only
from workbench.commands.compare import CompareOptions
from workbench.commands.tune_options import TunedFunction
from workbench.data.record import Comparison, Record, Verdict
from workbench.data.verdict import SUSPECTED
from workbench.spec import WorkbenchError

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from workbench.data.selection import Selection
    from workbench.reports.figures.size_groups import Group


class TimedResult(Result):
    """Result whose runs have winners, which can be compared."""

    def compare(self, earlier: Result, *, threshold: float = 0.01) -> CompareResult:
        """Return the comparison of the winner of an earlier run, left, with that of this one,
        right. Both must be measured. They were not interleaved, so the result is at most a
        suspicion. Raises WorkbenchError where they cannot be compared."""
        options = CompareOptions(
            left=earlier.run.id, right=self.run.id, threshold=threshold, **self._called.place
        )
        return CompareResult(call(options, None))


class SweepResult(TimedResult):
    """Result of a sweep: a run for each size."""

    @property
    def best(self) -> BestConfig:
        """The config that the sweep selects. Raises WorkbenchError where no config gave a time, or
        where several sizes were swept."""
        return only(self.bests, self.sentence)

    @property
    def bests(self) -> tuple[BestConfig, ...]:
        """The selected config of each size that has one."""
        selected = [selection.winner for selection in self.selections]
        return tuple(BestConfig(record) for record in selected if record is not None)

    @property
    def selections(self) -> tuple[Selection, ...]:
        """The selection of each size: winner, default, baselines, ties, ends of the space."""
        from workbench.data.selection import select

        return tuple(select(result.run, result.outcomes) for result in self.runs)

    @property
    def sentence(self) -> str:
        """The answer in one sentence for each size."""
        return " ".join(self._called.result.more.get("sentences", ()))

    def _figure(self) -> Figure | None:
        from workbench.api.figures import ranked_figure

        records = [r for run in self.runs[:1] for r in run.outcomes if isinstance(r, Record)]
        return ranked_figure(records, self.selections[0]) if records else None

    def _table(self) -> tuple[Sequence[str], list[Sequence[str]]]:
        selected = [best.record for best in self.bests]
        return outcome_table(self.records, self.failures, selected)


class TuneResult(SweepResult):
    """Result of tuning a function: a sweep of the given configs, and the winner for a launch."""

    def __init__(self, called: Called, function: TunedFunction) -> None:
        """Take the result of the sweep, and the winner."""
        super().__init__(called)
        self._function = function

    @property
    def config(self) -> Any:
        """The selected one of the given `triton.Config`s."""
        return self._function.config

    @property
    def kwargs(self) -> dict[str, Any]:
        """Keyword arguments of a launch, including `num_warps` and `num_stages`."""
        return dict(self.config.all_kwargs())

    @property
    def kernel(self) -> Path:
        """The one-file kernel that was written of the function, which every command takes."""
        return self._function.kernel

    @property
    def checked(self) -> bool:
        """Whether the outputs were checked: False where nothing on this machine could run it."""
        return self.best.record.checked != "not here"

    def __str__(self) -> str:
        """Return what a sweep prints, and the arguments of a launch with their time."""
        return f"{super().__str__()}\n{self.kwargs}: {time_text(self.best.record)}"


class MeasureResult(TimedResult):
    """Result of a measurement: Impls at their tuned or default configs, beside library baselines,
    over sizes and dtypes."""

    @property
    def best(self) -> BestConfig:
        """The fastest Impl of ours, on cold data. Raises WorkbenchError where none gave a time, or
        where there are several sizes or dtypes."""
        return only(self.bests, self.sentence)

    @property
    def bests(self) -> tuple[BestConfig, ...]:
        """The fastest Impl of ours for each size and dtype."""
        every = [[r for r in _cold(g.records) if not r.case.is_baseline] for g in self._groups()]
        return tuple(BestConfig(min(own, key=lambda r: r.time_s)) for own in every if own)

    @property
    def sentence(self) -> str:
        """The best of each size beside the best baseline, in one sentence."""
        from workbench.reports.measure import sentence

        return sentence(self.run, self._groups())

    def _groups(self) -> list[Group]:
        from workbench.reports.figures.size_groups import groups_of

        return groups_of(self.run, self.outcomes)

    def _figure(self) -> Figure | None:
        from workbench.api.figures import curve_or_times

        return curve_or_times(self.run, self.outcomes)


class BenchResult(MeasureResult):
    """Result of a decorated function: its providers over sizes. The first provider is the one that
    the others are compared with."""

    @property
    def bests(self) -> tuple[BestConfig, ...]:
        """The fastest provider at each size."""
        every = [_cold(group.records) for group in self._groups()]
        return tuple(BestConfig(min(some, key=lambda r: r.time_s)) for some in every if some)

    @property
    def sentence(self) -> str:
        """The fastest provider at how many sizes, in one sentence."""
        return bench_sentence(self.run.kernel, self.bests, self.predicted)


def bench_sentence(name: str, bests: Sequence[BestConfig], predicted: bool) -> str:
    """Return which provider is fastest at how many sizes."""
    if predicted:
        return f"{name}: only roofline bounds; no GPU took part, and nothing was timed."
    if not bests:
        return f"{name}: no provider gave a time."
    won = [best.impl for best in bests]
    first = max(dict.fromkeys(won), key=won.count)
    if len(bests) == 1:
        return f"{name}: {first} is fastest, {time_text(bests[0].record)}."
    return f"{name}: {first} is fastest at {won.count(first)} of {len(bests)} sizes."


class CompareResult(Result):
    """Result of a comparison of two operands, left and right."""

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """Every comparison that was made; empty for stored runs, which are not interleaved."""
        return tuple(c for result in self.runs for c in result.comparisons)

    @property
    def verdict(self) -> Verdict:
        """The verdict. Raises WorkbenchError where an operand gave no time, or where there is only
        a suspicion, as of stored runs; see `word`."""
        verdicts = [c.verdict for c in self.comparisons if c.verdict is not None]
        if not verdicts:
            raise WorkbenchError(f"There is no verdict: {self.sentence}")
        return verdicts[0]

    @property
    def word(self) -> str:
        """`SLOW`, `FAST`, `SAME`, `CLOCK` or `INCONCLUSIVE`: the right operand against the left
        one; of stored runs it is a suspicion, `suspected SLOW`."""
        comparison = self._called.result.more.get("comparison") or {}
        word = str(comparison.get("word", ""))
        return word if word.startswith(SUSPECTED) else self.verdict.word

    @property
    def sentence(self) -> str:
        """The verdict with its reason, in one sentence."""
        for each in self.comparisons:
            if each.verdict is not None:
                word = each.verdict.word
                return f"{word}: {each.right} against {each.left}: {each.verdict.reason}."
        lines = [x for x in str(self).splitlines() if not x.startswith(("report", "events"))]
        return lines[-1] if lines else ""

    def frame(self) -> pandas.DataFrame:
        """Return one row per comparison; docs/api.md lists the columns."""
        from workbench.api.frames import comparisons_frame

        return comparisons_frame(self.comparisons)

    def _figure(self) -> Figure | None:
        from workbench.api.figures import times_figure

        return times_figure(self.records)


def _cold(records: Sequence[Record]) -> list[Record]:
    return [r for r in records if r.phase in ("final", "predict")]
