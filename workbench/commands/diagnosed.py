"""The result of `diagnose`: rules that hold, ranked, and those that could not be evaluated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from workbench.commands.console import say_result
from workbench.data.code_facts import FACTS
from workbench.data.record import Evidence, encode_plain, group_by
from workbench.data.units import amount, duration, percent, reading
from workbench.traces.metric import BY_NAME, LAUNCH, stall_counter
from workbench.traces.rule_metrics import OTHERS
from workbench.traces.rules import Diagnosis, code_rules, kernel_rules, rules

if TYPE_CHECKING:
    from rich.console import Console

FOLDED = 4  # lines on rules that could not be evaluated, without --all
MOST_COUNTERS = 3  # that are named one by one
NAMED = 6  # rules that such a line names
NAME_WIDTH = 80
TRACE_HINT = "`workbench profile --tool trace` records it"
COUNTER_HINT = "`workbench profile KERNEL --tool ncu` collects them"
CODE_HINT = "`workbench diagnose KERNEL` compiles it"
LAUNCHES = "record the host, too: `workbench profile --tool trace`"


@dataclass(frozen=True)
class Diagnosed:
    """A rule that holds on a kernel, a device or machine code."""

    subject: str  # name of the kernel or device; empty where there is one alone
    rule: str
    word: str
    sentence: str
    evidence: tuple[Evidence, ...]
    advice: str
    effort: str
    source: str  # of the evidence: the tool, the run, or the machine code of a target
    places: tuple[str, ...] = ()
    gain_s: float | None = None  # at most; None where no bound is known
    gain_share: float | None = None  # of `gain_of`
    gain_of: str = ""  # "plain time": measured without a profiler; "profiled time"; "window"
    launches: int = 1  # of the kernel on which it holds


@dataclass(frozen=True)
class NotEvaluable:
    """A rule that could not be evaluated: what it needs, and what gives that."""

    rule: str
    needs: tuple[str, ...]
    remedy: str = ""


@dataclass(frozen=True)
class DiagnosisReport:
    """All that one `diagnose` says."""

    title: str
    heads: tuple[str, ...]  # a line for each kernel or device: its word
    results: tuple[Diagnosed, ...]
    missing: tuple[NotEvaluable, ...]
    notes: tuple[str, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)  # for the document

    @property
    def rule_count(self) -> int:
        """Return the number of rules that could be evaluated."""
        return len(rules()) + len(kernel_rules()) + len(code_rules()) - len(self.missing)

    def plain(self) -> dict[str, Any]:
        """Return the report as plain data, without the rules' own words for the terminal."""
        results = [{**vars(each), "evidence": encode_plain(each.evidence)} for each in self.results]
        missing = [vars(each) for each in self.missing]
        return {
            "title": self.title,
            "evaluated": self.rule_count,
            "diagnoses": results,
            "not_evaluable": missing,
            "notes": list(self.notes),
            **self.more,
        }


def diagnosed_of(
    name: str, word: str, diagnosis: Diagnosis, subject: str, source: str
) -> Diagnosed:
    """Return a rule that holds, without a gain."""
    return Diagnosed(
        subject, name, word, diagnosis.sentence, diagnosis.evidence, diagnosis.advice,
        diagnosis.effort, source, diagnosis.places,
    )  # fmt: skip


def rank_diagnoses(results: Iterable[Diagnosed]) -> tuple[Diagnosed, ...]:
    """Return the results by the time that they may give back; those without a bound come last."""
    return tuple(sorted(results, key=lambda each: (each.gain_s is None, -(each.gain_s or 0.0))))


# Rules that could not be evaluated


def missing_timeline() -> Iterator[NotEvaluable]:
    """Yield every rule of a timeline, for what has none."""
    return (NotEvaluable(name, ("a timeline",), TRACE_HINT) for name in rules())


def missing_counters() -> Iterator[NotEvaluable]:
    """Yield every rule of counters, for what has none."""
    return (NotEvaluable(name, ("counters of kernels",), COUNTER_HINT) for name in kernel_rules())


def missing_code() -> Iterator[NotEvaluable]:
    """Yield every rule of machine code, for what has none."""
    return (NotEvaluable(name, ("machine code",), CODE_HINT) for name in code_rules())


def timeline_gaps(missing: Mapping[str, Sequence[str]]) -> Iterator[NotEvaluable]:
    """Yield the rules that a timeline cannot serve."""
    return (NotEvaluable(name, tuple(needs), LAUNCHES) for name, needs in missing.items())


def metric_gaps(missing: Mapping[str, Sequence[str]]) -> Iterator[NotEvaluable]:
    """Yield the rules that lack metrics, with the counters that give these."""
    return (
        NotEvaluable(name, tuple(dict.fromkeys(map(counters_of, needs))), COUNTER_HINT)
        for name, needs in missing.items()
    )


def fact_gaps(missing: Mapping[str, Sequence[str]]) -> Iterator[NotEvaluable]:
    """Yield the rules that lack facts of machine code, with what tells these."""
    return (
        NotEvaluable(name, tuple(dict.fromkeys(FACTS[need] for need in needs)))
        for name, needs in missing.items()
    )


def counters_of(metric: str) -> str:
    """Return the counters of ncu that give a metric of rules, else those of another tool, or what
    else gives it."""
    if metric in LAUNCH:
        return LAUNCH[metric]
    if metric.startswith("stall_"):
        return stall_counter(metric.removeprefix("stall_"))
    if metric in OTHERS:
        return OTHERS[metric].source
    needs = BY_NAME[metric].formulas[0].needs
    if len(needs) > MOST_COUNTERS:
        return f"{needs[0]} and {len(needs) - 1} more counters"
    return " and ".join(needs)


# The terminal


def say_report(console: Console, report: DiagnosisReport, everything: bool) -> None:
    """Print a report: a quiet console prints the rules that hold alone."""
    console.print(report.title, style="bold", soft_wrap=True)
    for line in report.heads:
        console.print(line, soft_wrap=True)
    if not report.rule_count and not report.results:
        say_result(console, "No rule could be evaluated.")
    elif not report.results:
        say_result(console, f"None of {amount(report.rule_count, 'rule')} holds at its threshold.")
    for number, each in enumerate(report.results, 1):
        for line in result_lines(number, each):
            say_result(console, line)
    for line in missing_lines(report.missing, everything):
        console.print(line, soft_wrap=True)
    for note in report.notes:
        console.print(f"note: {note}", soft_wrap=True)


def result_lines(number: int, each: Diagnosed) -> Iterator[str]:
    """Yield the lines of one rule that holds: gain, sentence, evidence, places, advice."""
    launches = f", {each.launches} launches" if each.launches > 1 else ""
    subject = f" [{short(each.subject)}{launches}]" if each.subject else ""
    yield f"{number}. {each.word}{gain_text(each)}{subject}"
    yield f"   {each.sentence}"
    kinds = ", ".join(dict.fromkeys(known.kind for known in each.evidence))
    known = "; ".join(map(evidence_text, each.evidence))
    yield f"   evidence: {known} ({kinds}; {each.source})"
    if each.places:
        yield f"   at {', '.join(each.places)}"
    if each.advice:
        yield f"   {each.advice}"


def gain_text(each: Diagnosed) -> str:
    """Return what a rule may give back as text; empty where no bound is known."""
    if each.gain_s is None:
        return ""
    if each.gain_s <= 0:
        return ": nothing to gain"
    of = "" if each.gain_share is None else f", {percent(each.gain_share)} of the {each.gain_of}"
    return f": at most {duration(each.gain_s)}{of}"


def evidence_text(each: Evidence) -> str:
    """Return a number with its name and unit."""
    name = each.name.removesuffix(", share")
    if each.unit == "1":
        return f"{name} {percent(each.value)}"
    if each.unit == "B":
        return f"{name} {each.value:,.0f} B"
    if each.unit in ("s", "FLOP", "B/s", "FLOP/s", "FLOP/B", "Hz"):
        return f"{name} {reading(each.value, each.unit, 4)}"
    return f"{name} {each.value:,.0f}"


def missing_lines(missing: Sequence[NotEvaluable], everything: bool) -> Iterator[str]:
    """Yield what could not be evaluated: a line a need, or with `everything` a line a rule."""
    if everything:
        for each in missing:
            yield f"not evaluable: {each.rule} needs {_need_text(each)}"
        return
    groups = list(group_by(missing, lambda each: (each.needs, each.remedy)).values())
    for group in groups[:FOLDED]:
        names = [each.rule for each in group]
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        verb = "needs" if len(names) == 1 else "need"
        listed = f"{', '.join(names[:NAMED])}{more}"
        yield f"not evaluable: {listed} {verb} {_need_text(group[0])}"
    if len(groups) > FOLDED:
        rest = sum(len(group) for group in groups[FOLDED:])
        yield f"not evaluable: {amount(rest, 'more rule')}; --all lists them"


def _need_text(each: NotEvaluable) -> str:
    needs = " and ".join(each.needs)
    return f"{needs}; {each.remedy}" if each.remedy else needs


def short(name: str) -> str:
    """Return a name cut to one line."""
    return name if len(name) <= NAME_WIDTH else f"{name[: NAME_WIDTH - 3]}..."
