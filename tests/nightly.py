"""Which parameters of a test every run has, and which `make test-all` alone: marked `nightly`."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

nightly = pytest.mark.nightly


def at_night(cases: Iterable[Any], by_day: Callable[[Any], bool]) -> list[Any]:
    """Return every case as a parameter, nightly but for those that `by_day` takes."""
    return [pytest.param(case, marks=() if by_day(case) else nightly) for case in cases]


def by_turns(cases: Iterable[Any], choices: Sequence[Any]) -> list[Any]:
    """Return every case with every choice. By day the first case has the first choice, the second
    the second, and so on."""
    return [
        pytest.param(case, choice, marks=() if place % len(choices) == number else nightly)
        for place, case in enumerate(cases)
        for number, choice in enumerate(choices)
    ]
