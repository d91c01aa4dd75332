"""Decide from the calls of a kernel which rules it keeps. Pure functions of values."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from workbench.backend.checking import CheckCall
from workbench.measurement.candidate import Refusal
from workbench.measurement.handover import CallResult
from workbench.measurement.rules import RULES, RuleName
from workbench.spec import Sizes, sizes_text

State = Literal["kept", "broken", "not run"]
# "evidence": no code under test ran in the process that decided it; "claim": it did
Shown = Literal["evidence", "claim", ""]
Word = Literal["correct", "plausible", "rejected", "undecided"]

# Rules that calls in the interpreter decide; the others need a GPU.
INTERPRETED: tuple[RuleName, ...] = tuple(rule.name for rule in RULES if not rule.gpu)


@dataclass(frozen=True)
class RuleResult:
    """Whether one rule was kept; `reason` says why not, why it did not run, or adds a remark."""

    rule: RuleName
    state: State
    reason: str = ""
    shown: Shown = ""  # by what a rule is kept, in a strict evaluation


@dataclass(frozen=True)
class RulesVerdict:
    """The result of all rules, in their order."""

    rules: tuple[RuleResult, ...]
    error: float | None = None  # largest, in tolerances; None where no result was right
    strict: bool = False  # the Spec is trusted, and the file under test is not

    @property
    def word(self) -> Word:
        """Return "rejected" if a rule is broken, "undecided" if no result was checked, "plausible"
        if a strict evaluation has only the file's word for a rule, or "correct"."""
        if self.broken_rule is not None:
            return "rejected"
        needed = ("values", "sizes") if self.strict else ("values",)
        if any(self.state(rule) != "kept" for rule in needed):
            return "undecided"
        return "plausible" if self.strict and self.claims else "correct"

    @property
    def claims(self) -> tuple[RuleName, ...]:
        """Return the rules that are kept by the word of the file under test."""
        return tuple(r.rule for r in self.rules if r.state == "kept" and r.shown == "claim")

    def state(self, rule: RuleName) -> State:
        """Return whether a rule was kept, broken or not run."""
        return next(result.state for result in self.rules if result.rule == rule)

    @property
    def broken_rule(self) -> RuleResult | None:
        """Return the first rule that is broken, or None."""
        return next((result for result in self.rules if result.state == "broken"), None)


def verdict_of(
    results: Iterable[RuleResult], error: float | None = None, strict: bool = False
) -> RulesVerdict:
    """Return the verdict of these results; later ones of a rule count only where earlier ones did
    not run. Rules without a result did not run."""
    known: dict[RuleName, RuleResult] = {}
    for result in results:
        before = known.get(result.rule)
        noted = before is not None and before.state == result.state and result.reason
        if before is None or before.state == "not run" or result.state == "broken" or noted:
            known[result.rule] = result
    missing = {rule.name: "it needs a GPU" if rule.gpu else "" for rule in RULES}
    missing["sanitizer"] = "--require sanitizer asks for it, on an NVIDIA GPU"
    every = (known.get(rule.name) or _not_run(rule.name, missing[rule.name]) for rule in RULES)
    return RulesVerdict(tuple(every), error, strict)


def shown_by(results: Iterable[RuleResult], shown: Shown) -> list[RuleResult]:
    """Return results with what shows them, where they are kept and do not say it already."""
    return [replace(r, shown=r.shown or shown) if r.state == "kept" else r for r in results]


def _not_run(rule: RuleName, reason: str) -> RuleResult:
    return RuleResult(rule, "not run", reason)


def fail_rules(refusal: Refusal) -> list[RuleResult]:
    """Return the result of a config that failed as a whole: the rule that it broke, if that is
    known, and no others. What does not compile cannot launch."""
    if refusal.rule is not None or refusal.cause is not None:
        return [RuleResult(refusal.rule or "process", "broken", refusal.reason)]
    if refusal.stage == "compile":
        return [RuleResult("launches", "broken", f"it does not compile: {refusal.reason}")]
    return [_not_run(name, refusal.reason) for name in INTERPRETED]


def call_results(
    calls: Sequence[CheckCall],
    results: Sequence[CallResult],
    functions: Mapping[CheckCall, tuple[str, ...]],
    named: Sequence[Sizes],
) -> list[RuleResult]:
    """Return the results of the rules that calls in the interpreter decide. `functions` are those
    that a call launches when it is compiled; `named` are the sizes that the kernel's file names."""
    pairs = list(zip(calls, results, strict=True))
    broken: dict[RuleName, str] = {}
    hidden_right, named_wrong = 0, False
    for call, result in pairs:
        known = call.sizes in [dict(sizes) for sizes in named]
        if result.check.wrong:
            named_wrong |= known
            rule = result.check.rule or "values"
            broken.setdefault(rule if known else "sizes", _call_text(call, result.check.wrong))
        elif not known:
            hidden_right += 1
        if result.operators:
            names = ", ".join(result.operators[:4])
            reason = f"torch computes in the launch ({names}); compute it in the kernel"
            broken.setdefault("operators", _call_text(call, reason))
        if result.launches != functions[call]:
            launched, compiled = ", ".join(result.launches), ", ".join(functions[call])
            reason = f"a call launches {launched or 'nothing'}, and {compiled} was compiled"
            broken.setdefault("launches", _call_text(call, reason))
    if named_wrong:  # wrong results at other sizes say no more
        broken.pop("sizes", None)
    if reason := _unequal(pairs):
        broken["repeat"] = reason
    kept: list[RuleName] = [rule for rule in INTERPRETED if rule not in broken]
    none = "no size was found that the Spec does not name and the config takes"
    return [
        *(RuleResult(rule, "broken", reason) for rule, reason in broken.items()),
        *(
            _not_run(rule, none if not named_wrong else "results are wrong at the sizes it knows")
            if rule == "sizes" and not hidden_right
            else RuleResult(rule, "kept")
            for rule in kept
        ),
    ]


def _call_text(call: CheckCall, reason: str) -> str:
    values = " on hard values" if call.hard else ""
    return f"at {sizes_text(call.sizes)}{values} {reason}"


def _unequal(pairs: Sequence[tuple[CheckCall, CallResult]]) -> str | None:
    """Return why calls on equal inputs disagree, or None."""
    bits: dict[CheckCall, set[str]] = defaultdict(set)
    counts: dict[CheckCall, int] = defaultdict(int)
    for call, result in pairs:
        bits[call].add("wrong" if result.check.wrong else result.check.bits)
        counts[call] += 1
    for call, different in bits.items():
        if len(different) > 1:
            return _call_text(
                call, f"{counts[call]} calls on equal inputs give {len(different)} results"
            )
    return None
