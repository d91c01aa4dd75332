"""One config under consideration, and the two results that measuring it can have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workbench.data.record import Case, Cause, Checked, Measured, Predicted, Stage
from workbench.measurement.rules import RuleName
from workbench.spec import Impl


@dataclass(frozen=True)
class Candidate:
    """One config under consideration.

    Impls hold functions, which do not travel: a pickled candidate arrives without `impl` and
    `config`, and the receiver finds both by the names in `case`.
    """

    case: Case
    key: str
    impl: Impl
    config: Any
    default: bool = False
    code: str = ""  # hash of the Impl's code, with which the worker's own must agree
    older_key: str = ""  # the key that schema 1 gave the same config
    version: str | None = None  # path of the kernel's file where it is not the problem's own
    predicted_s: float = math.inf  # before compiling; infinite if the model has no prediction

    @classmethod
    def create(cls, impl: str, config: Mapping[str, int], version: str | None = None) -> Candidate:
        """Return a candidate as a worker receives it: only the names of Impl and config."""
        case = Case("", impl, "", dict(config), {}, "", "")
        return cls(case, "", None, None, version=version)  # type: ignore[arg-type]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "impl": None, "config": None}


class Untimed(Exception):
    """A call that cannot be timed; the message is a sentence about its launch."""


WHOLE = 0.97  # share of the bytes of all tensors, from which a call moves all of them


@dataclass(frozen=True)
class Timed:
    """The time of a config that passed its check."""

    timing: Measured | Predicted | None  # None of a duplicate, whose time is that of its leader
    error: float | None  # largest error over its tolerance: at most 1; None if not checked here
    check: Checked
    bits: str | None = None  # see `Record.bits`
    seed: int | None = None
    repeats: bool | None = None
    programs: int | None = None  # see `Record.checked_programs`
    moved_bytes: int | None = None  # of a call whose reference moves clearly less than its Spec


@dataclass(frozen=True)
class Refusal:
    """The reason why a config has no time; becomes a Failure."""

    stage: Stage
    reason: str
    own: bool = True  # the config caused it; else it took part when something else failed
    is_poisoned: bool = False  # the process that measured it can measure nothing any more
    cause: Cause | None = None  # see `Failure.cause`
    attempts: int = 1
    rule: RuleName | None = None  # that the config breaks, where it is known
