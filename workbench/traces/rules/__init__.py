"""The engine of rules: evaluate every rule on a device's timeline, on a kernel's counters or on its
machine code, and rank what holds.

One file of this folder is one rule: `RULE = Rule(...)`, a pure function from the summary of a
device, `RULE = KernelRule(...)`, one from the metrics of a kernel, or `RULE = CodeRule(...)`, one
from facts of its machine code, which needs no GPU. It returns a `Diagnosis`, or None where the rule
does not hold: what the time is lost to, how much could be given back at most, and what to do. A
rule of metrics that only has limits is a table: `RULE = threshold_rule(...)`.
"""

import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from typing import Literal

from workbench.data.code_facts import CodeFacts
from workbench.data.record import Evidence, Kind
from workbench.data.units import percent
from workbench.traces.instruction_class import InstructionClass
from workbench.traces.trace_summary import DeviceSummary

Effort = Literal["small", "medium", "large"]
Values = Mapping[str, float]  # metrics, or thresholds, by name

QUEUE_DELAY_NS = 100_000  # kernels that wait this long stand in a full queue
BUSY = 0.8  # utilisation from which a device counts as busy


@dataclass(frozen=True)
class Diagnosis:
    """A rule that holds: its sentence, the numbers behind it, and what to do."""

    sentence: str
    evidence: tuple[Evidence, ...]
    advice: str
    effort: Effort
    gain_ns: float | None = None  # of the window, at most; None where no bound is known
    places: tuple[str, ...] = ()  # lines of source, `mine.py:12`, the most instructions first
    # of a kernel's counters: whose lines are responsible, where its instructions are known
    instructions: InstructionClass | None = None


@dataclass(frozen=True)
class Rule:
    """One cause of lost time. `order` decides which rule gives the word of a trace: the least."""

    word: str
    order: int
    evaluate: Callable[[DeviceSummary, Values], Diagnosis | None]
    thresholds: Values = field(default_factory=dict)
    is_host_rule: bool = False  # about launches: silent where the queue is full
    yields_to: tuple[str, ...] = ()  # rules that say the same more sharply; silent where one holds
    needs: tuple[str, ...] = ()  # beside a timeline: of TIMELINE_NEEDS
    source: str = ""  # of the rule: a guide, or where its thresholds come from


@dataclass(frozen=True)
class KernelRule:
    """One cause of lost time in a kernel, by its metrics. `needs` are those without which it cannot
    be evaluated. A remark is about the numbers and not about the kernel: it never gives the word.
    """

    word: str
    order: int
    needs: tuple[str, ...]
    evaluate: Callable[[Values, Values], Diagnosis | None]
    thresholds: Values = field(default_factory=dict)
    yields_to: tuple[str, ...] = ()
    source: str = ""
    remark: bool = False
    covers_calls: bool = False  # it holds of a call of several launches as it does of one


@dataclass(frozen=True)
class CodeRule:
    """One cause of lost time in a kernel, by its machine code. `needs` are the fields of CodeFacts
    that may not be None."""

    word: str
    order: int
    needs: tuple[str, ...]
    evaluate: Callable[[CodeFacts, Values], Diagnosis | None]
    thresholds: Values = field(default_factory=dict)
    source: str = ""


AnyRule = Rule | KernelRule | CodeRule
NO_LIMITS: Values = {}
NOT_DERIVED: Mapping[str, Callable[[Values], float]] = {}


class _ShownValue(float):
    """A metric in a sentence: a share in percent, or a number where a format follows its name."""

    def __format__(self, form: str) -> str:
        return super().__format__(form) if form else percent(self)


def threshold_rule(
    word: str,
    order: int,
    sentence: str,
    *,
    evidence: Mapping[str, str],
    advice: str,
    effort: Effort,
    source: str,
    above: Values = NO_LIMITS,
    below: Values = NO_LIMITS,
    derived: Mapping[str, Callable[[Values], float]] = NOT_DERIVED,
    needs: tuple[str, ...] = (),
    gain: str = "",
    instructions: InstructionClass | None = None,
    yields_to: tuple[str, ...] = (),
) -> KernelRule:
    """Return a rule that holds where metrics are at or above some limits, and below others.

    Args:
        sentence: names metrics in braces.
        evidence: the title of each metric that is shown as a share.
        derived: metrics of this rule that follow from others, by name.
        needs: metrics that must be known; those with limits, unless others are named. Any other
            counts as 0 where it is not known.
        gain: the metric that is the share of the duration that could be given back.
    """

    def evaluate(metrics: Values, limits: Values) -> Diagnosis | None:
        values = {name: metrics.get(name, 0.0) for name in (*above, *below, *evidence)}
        values |= {name: compute(metrics) for name, compute in derived.items()}
        if any(values[n] < limits[n] for n in above) or any(values[n] >= limits[n] for n in below):
            return None
        return Diagnosis(
            sentence.format_map({name: _ShownValue(value) for name, value in values.items()}),
            tuple(share(title, values[name]) for name, title in evidence.items()),
            advice,
            effort,
            part_of(metrics, values[gain]) if gain else None,
            instructions=instructions,
        )

    limits = {**above, **below}
    known = needs or tuple(limits)
    return KernelRule(word, order, known, evaluate, limits, yields_to=yields_to, source=source)


@dataclass(frozen=True)
class RuleMatch:
    """A rule that holds, and its name."""

    name: str
    rule: AnyRule
    diagnosis: Diagnosis


@cache
def rules() -> Mapping[str, Rule]:
    """Return the rules of a timeline by the names of their files, in their order."""
    return {name: rule for name, rule in _load_rules().items() if isinstance(rule, Rule)}


@cache
def kernel_rules() -> Mapping[str, KernelRule]:
    """Return the rules of a kernel's counters by the names of their files, in their order."""
    return {name: rule for name, rule in _load_rules().items() if isinstance(rule, KernelRule)}


@cache
def code_rules() -> Mapping[str, CodeRule]:
    """Return the rules of machine code by the names of their files, in their order."""
    return {name: rule for name, rule in _load_rules().items() if isinstance(rule, CodeRule)}


@cache
def _load_rules() -> Mapping[str, AnyRule]:
    names = [info.name for info in pkgutil.iter_modules(__path__)]
    loaded = {name: import_module(f"{__name__}.{name}").RULE for name in names}
    return dict(sorted(loaded.items(), key=lambda each: (each[1].order, each[0])))


def evaluate_device(summary: DeviceSummary) -> list[RuleMatch]:
    """Return the rules that hold on a device: the one that gives the word first, the others by the
    time that they may give back. A rule without a bound comes last. None holds on a device whose
    trace lacks something: what is missing would count as idle time."""
    if summary.lacks:
        return []
    results: list[RuleMatch] = []
    full = queue_is_full(summary)
    for name, rule in rules().items():
        if (rule.is_host_rule and full) or {r.name for r in results} & set(rule.yields_to):
            continue
        if (diagnosis := rule.evaluate(summary, rule.thresholds)) is not None:
            results.append(RuleMatch(name, rule, diagnosis))
    first, rest = results[:1], results[1:]
    return first + sorted(rest, key=lambda each: -(each.diagnosis.gain_ns or 0.0))


def evaluate_kernel(
    metrics: Values, lines: Mapping[str, tuple[str, ...]] | None = None
) -> list[RuleMatch]:
    """Return the rules that hold on a kernel with these metrics (see `data.metric`; stalls are
    shares), the one that gives the word first, the others by the time that they may give back, and
    remarks last. No gain is larger than the time above the nearest roof. `lines` are those that are
    responsible for each class of instructions, by its name."""
    return _evaluate_rules(kernel_rules(), metrics, lines or {})


def evaluate_call(metrics: Values) -> list[RuleMatch]:
    """Return the rules that hold on a call of several launches with these metrics (see
    `data.rule_metrics.call_metrics`), ranked as those of a kernel."""
    return _evaluate_rules(call_rules(), metrics, {})


def call_rules() -> Mapping[str, KernelRule]:
    """Return the rules of counters that hold of calls of several launches, by name."""
    return {name: rule for name, rule in kernel_rules().items() if rule.covers_calls}


def _evaluate_rules(
    rule_table: Mapping[str, KernelRule], metrics: Values, lines: Mapping[str, tuple[str, ...]]
) -> list[RuleMatch]:
    results: list[RuleMatch] = []
    for name, rule in rule_table.items():
        if not set(rule.needs) <= metrics.keys():
            continue
        if {match.name for match in results} & set(rule.yields_to):
            continue
        diagnosis = rule.evaluate(metrics, rule.thresholds)
        if diagnosis is not None:
            named = replace(diagnosis, places=lines.get(diagnosis.instructions or "", ()))
            results.append(RuleMatch(name, rule, _bound_gain(named, metrics)))
    first = [match for match in results if not _is_remark(match)][:1]
    rest = [match for match in results if match not in first]
    return first + sorted(
        rest, key=lambda each: (_is_remark(each), -(each.diagnosis.gain_ns or 0.0))
    )


def word_of(matches: Sequence[RuleMatch]) -> RuleMatch | None:
    """Return the rule that gives the word of a kernel, of `evaluate_kernel`; None where none holds
    but remarks."""
    return None if not matches or _is_remark(matches[0]) else matches[0]


def _is_remark(match: RuleMatch) -> bool:
    return isinstance(match.rule, KernelRule) and match.rule.remark


def evaluate_code(facts: CodeFacts) -> list[RuleMatch]:
    """Return the rules that hold on machine code, in their order: it tells no time, so they have no
    gain."""
    results: list[RuleMatch] = []
    for name, rule in code_rules().items():
        if any(getattr(facts, need) is None for need in rule.needs):
            continue
        if (diagnosis := rule.evaluate(facts, rule.thresholds)) is not None:
            results.append(RuleMatch(name, rule, diagnosis))
    return results


def missing_of_timeline(summary: DeviceSummary) -> dict[str, tuple[str, ...]]:
    """Return what each rule that cannot be evaluated on a device needs, by the rule's name."""
    if summary.lacks:
        return dict.fromkeys(rules(), ("a complete timeline",))
    lacks = {need for need, known in TIMELINE_NEEDS.items() if not known(summary)}
    return _missing(rules(), lambda need: need in lacks)


def missing_of_kernel(metrics: Values) -> dict[str, tuple[str, ...]]:
    """Return the metrics that each rule lacks which cannot be evaluated on a kernel, by the rule's
    name."""
    return _missing(kernel_rules(), lambda need: need not in metrics)


def missing_of_code(facts: CodeFacts) -> dict[str, tuple[str, ...]]:
    """Return the facts that each rule lacks which cannot be evaluated on machine code, by the
    rule's name."""
    return _missing(code_rules(), lambda need: getattr(facts, need) is None)


def _missing(
    rule_table: Mapping[str, AnyRule], is_absent: Callable[[str], bool]
) -> dict[str, tuple[str, ...]]:
    needs = {name: tuple(filter(is_absent, rule.needs)) for name, rule in rule_table.items()}
    return {name: missing for name, missing in needs.items() if missing}


def _bound_gain(diagnosis: Diagnosis, metrics: Values) -> Diagnosis:
    """Return a diagnosis whose gain is at most the time above the nearest roof. What DRAM moves
    beyond the least bytes of the Spec does not bring its roof nearer."""
    if diagnosis.gain_ns is None or "duration" not in metrics:
        return replace(diagnosis, gain_ns=None)
    needed = metrics.get("dram_throughput", 0.0) / max(1.0, metrics.get("traffic_ratio", 1.0))
    nearest = max(needed, metrics.get("compute_throughput", 0.0))
    above = metrics["duration"] * 1e9 * max(0.0, 1 - nearest)
    return replace(diagnosis, gain_ns=min(diagnosis.gain_ns, above))


def part_of(metrics: Values, part: float) -> float | None:
    """Return a share of a kernel's duration in ns; None where that is not known."""
    return metrics["duration"] * 1e9 * part if "duration" in metrics else None


def queue_is_full(summary: DeviceSummary) -> bool:
    """Return whether kernels wait in a full queue of a busy device, so that launches cost nothing:
    the median kernel begins over 100 µs after its launch returned."""
    delay = next((kpi.value for kpi in summary.kpis if kpi.name == "launch delay, median"), None)
    return delay is not None and delay * 1e9 > QUEUE_DELAY_NS and summary.times.utilisation > BUSY


# What a timeline may lack, and whether a device's has it.
TIMELINE_NEEDS: Mapping[str, Callable[[DeviceSummary], bool]] = {
    "launches of the host": lambda summary: bool(summary.times.launches)
}


def share(
    name: str, value: float, target: str = "", met: bool | None = None, kind: Kind = "profiled"
) -> Evidence:
    """Return a share of 1 as evidence, of a profiler unless another kind is named."""
    return Evidence(name, value, "1", kind, target=target, met=met)


def seconds(name: str, ns: float) -> Evidence:
    """Return a time in ns as evidence of a profiler."""
    return Evidence(name, ns / 1e9, "s", "profiled")


def count(name: str, number: float, unit: str = "kernels", kind: Kind = "profiled") -> Evidence:
    """Return a number of things as evidence, of a profiler unless another kind is named."""
    return Evidence(name, float(number), unit, kind)


def instruction_count(name: str, number: float) -> Evidence:
    """Return a number of instructions of machine code as evidence."""
    return count(name, number, "instructions", kind="computed")
