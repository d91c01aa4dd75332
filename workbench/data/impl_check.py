"""What a check of an Impl's results found, before a gate compares its speed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

State = Literal["right", "wrong", "other reference", "unproven", "unchecked"]
WORDS: dict[State, str] = {  # the worst first
    "wrong": "WRONG",
    "other reference": "DIFFERS",  # from the baseline's reference, not from its own
    "unproven": "UNPROVEN",  # the baseline's can be checked, and this cannot
    "unchecked": "unchecked",
    "right": "right",
}


@dataclass(frozen=True)
class ImplCheck:
    """One Impl whose code may not be the baseline's, checked at the Spec's check sizes."""

    title: str
    state: State
    reason: str = ""  # of all but `right`: a sentence

    @property
    def line(self) -> str:
        """Return the check as one line of text."""
        return f"{WORDS[self.state]}  {self.title}: {self.reason}".removesuffix(": ")


def worst_first(checks: Sequence[ImplCheck]) -> list[ImplCheck]:
    """Return the checks in the order of WORDS."""
    order = list(WORDS)
    return sorted(checks, key=lambda check: order.index(check.state))
