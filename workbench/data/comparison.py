"""What a comparison found, of times, stored runs, traces, machine code, predictions or programs.

Its exit code, its JSON and annotations follow from this alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from workbench.data.record import Evidence, Outcome, encode_plain
from workbench.data.verdict import EXIT, NO_VERDICT, exit_code

Kind = Literal["times", "stored times", "predicted times", "traces", "machine code", "programs"]
Part = Mapping[str, Any]  # of `compared_part`


@dataclass(frozen=True)
class EvidenceChange:
    """One number of both sides."""

    name: str
    before: Evidence
    after: Evidence

    @property
    def ratio(self) -> float | None:
        """After over before; None where it was 0."""
        return self.after.value / self.before.value if self.before.value else None

    def plain(self) -> dict[str, Any]:
        """Return the change as plain data."""
        return {**asdict(self), "ratio": self.ratio}


def compared_part(
    name: str,
    word: str,
    reason: str,
    both: Sequence[Outcome | None] = (None, None),
    **evidence: Any,
) -> Part:
    """Return one part of a comparison as plain data: a kernel at its sizes, two traces, a program.
    `word` is one of `verdict.EXIT`. Outcomes are named by their keys; the run holds them."""
    before, after = (o.key if o else None for o in both)
    case = next((encode_plain(o.case) for o in reversed(both) if o is not None), None)
    about = {"name": name, "word": word, "exit_code": EXIT[word], "reason": reason}
    return {**about, "case": case, "before": before, "after": after, **evidence}


@dataclass(frozen=True)
class ComparisonResult:
    """All parts of one comparison of `before` and `after`, and what is said of them."""

    kind: Kind
    before: str
    after: str
    sentence: str
    parts: Sequence[Part]
    words: Sequence[str] = ()  # what else decides: of checks, failures, an end before its time
    evidence: Mapping[str, Any] = field(default_factory=dict)  # of all parts, plain

    @property
    def exit_code(self) -> int:
        """The exit code of the worst word."""
        return exit_code(self._all_words)

    @property
    def _all_words(self) -> list[str]:
        return [*self.words, *(str(part["word"]) for part in self.parts)]

    def plain(self) -> dict[str, Any]:
        """Return the comparison as plain data: the key `comparison` of the JSON document."""
        both = {"kind": self.kind, "before": self.before, "after": self.after}
        worst = next((w for w in self._all_words if EXIT[w] == self.exit_code), NO_VERDICT)
        about = {"word": worst, "sentence": self.sentence, "parts": list(self.parts)}
        return {**both, **about, **self.evidence}
