"""Count what a reader could not use: records that are damaged or impossible, and records that it
does not know and that may be work of a device.

One policy holds for all formats. A bad record is left out and counted. Above `RATED` of the records
of a kind no KPI is rated; above `REFUSED` the file is refused.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

RATED, REFUSED = 0.01, 0.25  # shares of the records of a kind

DEVICE, HOST = "device activities", "host events"  # kinds of records on a timeline
UNREADABLE = "left out, as a value in them cannot be read"
MISSING = "left out, as a value in them is missing"

BAD_VALUE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


@dataclass
class RecordTally:
    """Counts of the records of one trace. A kind is a plural noun; a reason says what was done to
    the record and why."""

    totals: Counter[str] = field(default_factory=Counter)  # records by kind, the bad ones too
    bad: Counter[tuple[str, str]] = field(default_factory=Counter)  # by kind and reason
    unread: Counter[str] = field(default_factory=Counter)  # that may be device work, by name
    remedies: dict[str, str] = field(default_factory=dict)  # by the same names
    lost_work: set[tuple[str, int]] = field(default_factory=set)  # process, correlation of bad work
    examples: dict[tuple[str, str], str] = field(default_factory=dict)
    _now: tuple[str, tuple[str, Any] | None] = ("", None)

    def record(self, kind: str, key: tuple[str, Any] | None = None) -> RecordTally:
        """Count a record and return a context in which a bad value drops this record only. `key`
        is its process and its correlation id, which may be bad as well."""
        self.totals[kind] += 1
        self._now = kind, key
        return self

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> bool:
        if not isinstance(error, BAD_VALUE):
            return False
        self.drop(self._now[0], *_reason(error), self._now[1])
        return True

    def drop(
        self, kind: str, reason: str, example: str = "", key: tuple[str, Any] | None = None
    ) -> None:
        """Count a bad record that `seen` holds already; the first `example` of a reason stays."""
        self.bad[kind, reason] += 1
        if example:
            self.examples.setdefault((kind, reason), example)
        if key is not None and isinstance(key[1], int):
            self.lost_work.add((key[0], key[1]))

    def add_unread(self, name: str, records: int, remedy: str) -> None:
        """Count records of a table or category that may be work of a device."""
        self.unread[name] += records
        self.remedies[name] = remedy

    def shares(self) -> dict[str, float]:
        """Return the share of bad records of each kind that has some."""
        sums: Counter[str] = Counter()
        for (kind, _), count in self.bad.items():
            sums[kind] += count
        return {kind: count / max(count, self.totals[kind]) for kind, count in sums.items()}

    def sentences(self, kind: str | None = None) -> list[str]:
        """Return what became of the bad records, one clause a reason: `3 of 13 device activities
        left out, as ...`."""
        return [
            f"{count:,} of {max(count, self.totals[of]):,} {of} {reason}"
            + (f" ({example})" if (example := self.examples.get((of, reason))) else "")
            for (of, reason), count in self.bad.items()
            if kind in (None, of)
        ]

    def join(self, other: RecordTally) -> None:
        """Add the counts of another file of the same run."""
        self.totals.update(other.totals)
        self.bad.update(other.bad)
        self.unread.update(other.unread)
        self.remedies |= other.remedies
        self.lost_work |= other.lost_work
        self.examples = other.examples | self.examples


def _reason(error: BaseException) -> tuple[str, str]:
    """Return what an error of a record means, and its words where they say more."""
    text = " ".join(str(error).split())[:100]
    if "NoneType" in text or (isinstance(error, KeyError) and text.startswith("'there is no")):
        return MISSING, ""
    if isinstance(error, KeyError):
        return MISSING, text.strip("'\"")
    return UNREADABLE, text if isinstance(error, ValueError) else ""
