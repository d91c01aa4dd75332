"""Samples for continuous integration: of several cases, each on several devices, in several colours
or widths, it runs each case once, and the same ones in every run. A local run has them all."""

import os
from collections.abc import Iterable, Sequence
from typing import Any

CI = bool(os.environ.get("CI"))


def by_turns(cases: Iterable[Any], choices: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Return every case with every choice; in continuous integration with one of them, the first
    case with the first choice, the second with the second, and so on."""
    if CI:
        return [(case, choices[place % len(choices)]) for place, case in enumerate(cases)]
    return [(case, choice) for choice in choices for case in cases]
