"""What a comparison found, of times, stored runs, traces, machine code, predictions or programs.

Its exit code, its JSON and annotations follow from this alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from workbench.data.record import (
    Case,
    Evidence,
    Measured,
    Outcome,
    Ratio,
    Record,
    Verdict,
    encode_plain,
)
from workbench.data.verdict import NO_VERDICT, WORST, exit_code

Kind = Literal["times", "stored times", "predicted times", "traces", "machine code", "programs"]


@dataclass(frozen=True)
class EvidenceChange:
    """One number of both sides."""

    name: str
    before: Evidence
    after: Evidence
    interval: Ratio | None = None  # of the ratio, where it is known

    @property
    def ratio(self) -> float | None:
        """After over before; None where it was 0."""
        return self.after.value / self.before.value if self.before.value else None

    def plain(self) -> dict[str, Any]:
        """Return the change as plain data."""
        both = {"before": encode_plain(self.before), "after": encode_plain(self.after)}
        return {
            "name": self.name,
            **both,
            "ratio": self.ratio,
            "interval": encode_plain(self.interval),
        }


@dataclass(frozen=True)
class ComparedPart:
    """One part of a comparison: a kernel at its sizes, all of two traces, or a program."""

    name: str
    word: str  # see `verdict.EXIT`
    reason: str = ""
    outcomes: tuple[Outcome | None, Outcome | None] = (None, None)
    verdict: Verdict | None = None  # of times
    evidence: tuple[EvidenceChange, ...] = ()
    more: Mapping[str, Any] = field(default_factory=dict)  # of this kind, plain

    @property
    def case(self) -> Case | None:
        """The config after, or else the one before."""
        return next((o.case for o in reversed(self.outcomes) if o is not None), None)

    def plain(self) -> dict[str, Any]:
        """Return the part as plain data. Outcomes are named by their keys."""
        before, after = (o.key if o else None for o in self.outcomes)
        return {
            "name": self.name,
            "word": self.word,
            "exit_code": exit_code([self.word]),
            "reason": self.reason,
            "case": encode_plain(self.case),
            "before": before,
            "after": after,
            "verdict": encode_plain(self.verdict),
            "evidence": [each.plain() for each in self.evidence],
            **self.more,
        }


@dataclass(frozen=True)
class ComparisonResult:
    """All parts of one comparison of `before` and `after`, and what is said of them."""

    kind: Kind
    before: str
    after: str
    sentence: str
    parts: Sequence[ComparedPart]
    words: Sequence[str] = ()  # what else decides: of checks, failures, an end before its time
    more: Mapping[str, Any] = field(default_factory=dict)  # of this kind, plain

    @property
    def all_words(self) -> list[str]:
        """The words that decide, the worst first."""
        words = [*self.words, *(part.word for part in self.parts)]
        return sorted(words or [NO_VERDICT], key=lambda word: WORST.index(exit_code([word])))

    @property
    def exit_code(self) -> int:
        """The exit code of the worst word."""
        return exit_code(self.all_words)

    def plain(self) -> dict[str, Any]:
        """Return the comparison as plain data: the key `comparison` of the JSON document."""
        return {
            "kind": self.kind,
            "before": self.before,
            "after": self.after,
            "word": self.all_words[0],
            "sentence": self.sentence,
            "parts": [part.plain() for part in self.parts],
            **self.more,
        }


def time_changes(
    before: Outcome | None, after: Outcome | None, interval: Ratio | None = None
) -> tuple[EvidenceChange, ...]:
    """Return the times of two outcomes as one change; nothing where one of them has no time."""
    if not (isinstance(before, Record) and isinstance(after, Record)):
        return ()
    return (EvidenceChange("time", _time(before), _time(after), interval),)


def _time(record: Record) -> Evidence:
    timing = record.timing
    if isinstance(timing, Measured):
        return Evidence("time", record.time_s, "s", "measured", timing.low_s, timing.high_s)
    return Evidence("time", record.time_s, "s", "predicted", timing.shortest_s, timing.longest_s)
