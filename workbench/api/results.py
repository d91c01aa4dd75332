"""The result of each command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workbench.api.result import BestConfig, Result, only, record_table, time_text
from workbench.data.record import Comparison, Finding, Profile, Record, Verdict
from workbench.data.units import quantity, reading
from workbench.spec import WorkbenchError, brief, sizes_text

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from workbench.reports.figures.size_groups import Group
    from workbench.tuner.selection import Selection

Table = tuple[Sequence[str], list[Sequence[str]]]


class SweepResult(Result):
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
        from workbench.tuner.selection import select

        return tuple(select(result.run, result.outcomes) for result in self.runs)

    @property
    def sentence(self) -> str:
        """The answer in one sentence for each size."""
        return " ".join(self._called.result.more.get("sentences", ()))

    def _figure(self) -> Figure | None:
        from workbench.api.figures import ranked_figure

        (first, *_) = self.selections or (None,)
        records = [r for r in self.runs[0].outcomes if isinstance(r, Record)] if self.runs else []
        return ranked_figure(records, first.winner if first else None)


class MeasureResult(Result):
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
        return f"{name}: roofline bounds alone; no GPU took part, and nothing was timed."
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
        suspected = self._called.result.more.get("suspected")
        return f"suspected {suspected['suspected']}" if suspected else self.verdict.word

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
        """Return one row a comparison; docs/api.md lists the columns."""
        from workbench.api.frames import comparisons_frame

        return comparisons_frame(self.comparisons)

    def _figure(self) -> Figure | None:
        from workbench.api.figures import times_figure

        return times_figure(self.records)


class ExperimentResult(Result):
    """Result of an experiment: findings, each with the numbers that it rests on."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """A finding for each kernel that was examined."""
        return tuple(finding for result in self.runs for finding in result.findings)

    @property
    def sentence(self) -> str:
        """Every finding: its word and its sentence."""
        return " ".join(f"{f.kernel}: {f.word}. {f.sentence}".lstrip(": ") for f in self.findings)

    def frame(self) -> pandas.DataFrame:
        """Return the numbers of all findings, one row each. `times` has the variants' times."""
        from workbench.api.frames import evidence_frame

        return evidence_frame(self.findings)

    def times(self) -> pandas.DataFrame:
        """Return the outcomes of the variants, one row each."""
        return super().frame()

    def _figure(self) -> Figure | None:
        from workbench.api.figures import finding_figure

        return finding_figure(self.findings, self.records)

    def _table(self) -> Table:
        heads = ("kernel", "word", "number", "value", "kind")
        rows = [
            (f.kernel, f.word, e.name, reading(e.value, e.unit), e.kind)
            for f in self.findings
            for e in f.evidence
        ]
        return heads, list(rows)


class CeilingsResult(Result):
    """Ceilings of a device: measured on the GPU that is here, or stated of a named one."""

    @property
    def ceilings(self) -> Mapping[str, Mapping[str, Any]]:
        """Ceilings by name, each with value, unit, kind and source."""
        return self.run.ceilings

    @property
    def sentence(self) -> str:
        """The device, and whether its ceilings were measured."""
        many, how = len(self.ceilings), "stated" if self.predicted else "measured and stated"
        return f"{many} ceilings of {self.run.device}, {how}."

    @property
    def _kind(self) -> str:
        stated = f"stated of {self.run.device}: nothing was measured"
        return stated if self.predicted else super()._kind

    def frame(self) -> pandas.DataFrame:
        """Return one row a ceiling."""
        from workbench.api.frames import ceilings_frame

        return ceilings_frame(self.ceilings)

    def _figure(self) -> Figure | None:
        from workbench.api.figures import ceilings_figure

        return ceilings_figure(self.ceilings)

    def _table(self) -> Table:
        known = [(name, c) for name, c in self.ceilings.items() if c.get("value")]
        rows = [
            (name, quantity(c["value"], c["unit"]), c.get("kind", ""), c.get("source", ""))
            for name, c in known
        ]
        return ("ceiling", "value", "kind", "source"), list(rows)


class ProfileResult(Result):
    """Result of a profiler: a row for each kernel that it saw."""

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """Kernels with their times and counters."""
        return tuple(profile for result in self.runs for profile in result.profiles)

    @property
    def sentence(self) -> str:
        """How many kernels the tool saw, and which takes longest."""
        timed = [p for p in self.profiles if p.total_s]
        if not timed:
            return "The tool timed no kernel; print() shows what it recorded."
        longest = max(timed, key=lambda p: p.total_s or 0.0)
        tool, total = longest.tool, reading(longest.total_s or 0.0, "s")
        return f"{len(self.profiles)} kernels by {tool}; {longest.name} takes longest, {total}."

    def frame(self) -> pandas.DataFrame:
        """Return one row a kernel."""
        from workbench.api.frames import profiles_frame

        return profiles_frame(self.profiles)

    def _figure(self) -> Figure | None:
        from workbench.api.figures import profiles_figure

        return profiles_figure(self.profiles)

    def _table(self) -> Table:
        rows = [
            (p.name, str(p.count), reading(p.total_s, "s") if p.total_s else "", p.tool)
            for p in sorted(self.profiles, key=lambda p: -(p.total_s or 0.0))
        ]
        return ("kernel", "launches", "total time", "tool"), list(rows)


class HistoryResult(Result):
    """Outcomes of earlier runs, the newest first."""

    @property
    def rows(self) -> tuple[Mapping[str, Any], ...]:
        """Stored outcomes; `kind` is measured, predicted or failure."""
        return tuple(sorted(self._rows(), key=lambda row: row["at"], reverse=True))

    def _rows(self) -> Iterator[Mapping[str, Any]]:
        names = {"measured": "measured", "predicted": "predicted", "failures": "failure"}
        for name, kind in names.items():
            for row in self._called.result.more.get(name, ()):
                yield {**row, "kind": kind}

    @property
    def predicted(self) -> bool:
        """Whether any of the times is predicted."""
        return any(row["kind"] == "predicted" for row in self.rows)

    @property
    def sentence(self) -> str:
        """How many outcomes there are of each kind."""
        kinds = [row["kind"] for row in self.rows]
        parts = [f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)]
        return f"{len(kinds)} outcomes: {', '.join(parts)}." if kinds else str(self)

    def frame(self) -> pandas.DataFrame:
        """Return one row an outcome."""
        from workbench.api.frames import rows_frame

        return rows_frame(self.rows)

    def _figure(self) -> Figure | None:
        from workbench.api.figures import history_figure

        return history_figure(self.rows)

    def _table(self) -> Table:
        heads = ("at", "kernel", "impl and config", "sizes", "device", "time")
        return heads, [_history_cells(row) for row in self.rows]


def _history_cells(row: Mapping[str, Any]) -> Sequence[str]:
    time = row["reason"] or ""
    if row["time_s"] is not None:
        tilde = "~" if row["kind"] == "predicted" else ""
        time = f"{tilde}{reading(row['time_s'], 's')} {row['kind']}"
    name = f"{row['impl']} {brief(row['config'])}" if row["config"] else row["impl"]
    at = row["at"][:16].replace("T", " ")
    return at, row["kernel"], name, sizes_text(row["sizes"], " "), row["device"], time


def _cold(records: Sequence[Record]) -> list[Record]:
    return [r for r in records if r.phase in ("final", "predict")]


__all__ = [
    "BenchResult",
    "CeilingsResult",
    "CompareResult",
    "ExperimentResult",
    "HistoryResult",
    "MeasureResult",
    "ProfileResult",
    "SweepResult",
    "record_table",
]
