"""Results of experiments, ceilings, profilers and the history."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from workbench.api.result import Result
from workbench.data.record import Finding, Profile
from workbench.data.units import quantity, reading, rough
from workbench.spec import label, sizes_text
from workbench.tuner.prediction import PredictedConfig

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


Table = tuple[Sequence[str], list[Sequence[str]]]


class EvaluateResult(Result):
    """The verdict on one kernel; `plain()` has what `workbench evaluate --json` writes."""

    @property
    def verdict(self) -> str:
        """The word: `correct`, `plausible`, `rejected` or `undecided`."""
        return str(self._content["verdict"])

    @property
    def rule(self) -> str | None:
        """The first rule that is broken, or None."""
        return self._content["rule"]

    @property
    def reason(self) -> str | None:
        """How the first broken rule is broken, or None."""
        return self._content["reason"]

    @property
    def rules(self) -> tuple[Mapping[str, str], ...]:
        """Every rule with its `state`, its `reason` and, in a strict evaluation, what shows it."""
        return tuple(self._content["rules"])

    @property
    def claims(self) -> tuple[str, ...]:
        """Rules that are kept by the word of the file under test; all are shown by evidence where
        it is empty and `spec` was named."""
        return tuple(r["rule"] for r in self.rules if r["shown"] == "claim")

    @property
    def error_in_tolerances(self) -> float | None:
        """The largest error over its tolerance; None where no result was right."""
        return self._content["error_in_tolerances"]

    @property
    def times(self) -> Mapping[str, Any] | None:
        """The time with its interval and bound; None for a kernel that is not correct."""
        return self._content["times"]

    @property
    def time_s(self) -> float | None:
        """Seconds of one call, measured or `predicted`; None for a kernel that is not correct."""
        return self.times["time_s"] if self.times else None

    @property
    def predicted(self) -> bool:
        """Whether no GPU took part."""
        return bool(self._content["predicted"])

    @property
    def sentence(self) -> str:
        """The kernel with its verdict, the broken rule or the time."""
        name = ".".join(filter(None, (self._content["kernel"], self._content["impl"])))
        if self.rule is not None:
            return f"{name} is {self.verdict} by the rule {self.rule}: {self.reason}"
        tilde, kind = ("~", "predicted") if self.predicted else ("", "measured")
        time = f", {tilde}{reading(self.time_s, 's')} {kind}" if self.time_s else ""
        claims = f" (by the file's word: {', '.join(self.claims)})" if self.claims else ""
        return f"{name} is {self.verdict}{claims}{time}."

    def frame(self) -> pandas.DataFrame:
        """Return one row per rule."""
        import pandas

        return pandas.DataFrame(list(self.rules))

    @property
    def _content(self) -> Mapping[str, Any]:
        return self._called.result.more

    @property
    def _kind(self) -> str:
        device = self._content["device"]
        text = f"judged for {device}: no GPU took part"
        return text if self.predicted else f"judged on {device}"

    def _table(self) -> Table:
        heads = ("rule", "state", "shown by", "reason")
        rows = [(r["rule"], r["state"], r["shown"], r["reason"]) for r in self.rules]
        first = {"broken": 0, "kept": 1}
        return heads, list(sorted(rows, key=lambda row: first.get(row[1], 2)))


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
        """Return one row per ceiling."""
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


class PredictedChoice(PredictedConfig):
    """A config with its predicted time, which shows itself in a notebook."""

    def _repr_html_(self) -> str:
        from workbench.api.notebook import card

        row = f"~{rough(self.time_s)}", self.bound, _config_words(self)
        sentence = f"{row[2]}: {row[0]} predicted, limited by {self.bound}."
        return card("predicted: nothing was run or checked", True, sentence, (PREDICTED, [row]))


PREDICTED = ("predicted time", "limit", "config")


def _config_words(one: PredictedConfig) -> str:
    return f"{one.impl} {label(one.config)}".lstrip()


class PredictResult(Result):
    """The fastest configs of a kernel by predicted time."""

    @property
    def configs(self) -> tuple[PredictedChoice, ...]:
        """Up to five configs, the fastest first."""
        return tuple(PredictedChoice(**one) for one in self._called.result.more["predictions"])

    @property
    def best(self) -> PredictedChoice:
        """The config with the shortest predicted time."""
        return self.configs[0]

    @property
    def predicted(self) -> bool:
        """Whether times are predicted: always."""
        return True

    @property
    def _kind(self) -> str:
        device = getattr(self._called.options, "device", None)
        return f"predicted{f' for {device}' if device else ''}: nothing was run or checked"

    @property
    def sentence(self) -> str:
        """The best config with its time and what limits it."""
        one = self.best
        return f"{_config_words(one)}: ~{rough(one.time_s)} predicted, limited by {one.bound}."

    def frame(self) -> pandas.DataFrame:
        """Return one row per config."""
        import pandas

        return pandas.DataFrame([asdict(one) for one in self.configs])

    def _table(self) -> Table:
        rows = [(f"~{rough(one.time_s)}", one.bound, _config_words(one)) for one in self.configs]
        return PREDICTED, list(rows)


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
        """Return one row per kernel."""
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
        from workbench.data.frame import rows_frame

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
    name = f"{row['impl']} {label(row['config'])}" if row["config"] else row["impl"]
    at = row["at"][:16].replace("T", " ")
    return at, row["kernel"], name, sizes_text(row["sizes"], " "), row["device"], time
