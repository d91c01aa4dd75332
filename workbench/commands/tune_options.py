"""Options and result of `tune`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from workbench.spec import Tolerance


class TuneOptions(TypedDict, total=False):
    """Optional arguments of `tune`, beyond function, arguments, grid and configs."""

    kwargs: Mapping[str, Any]  # arguments that the launch gives by name
    outputs: Sequence[str]  # names of the tensors that the function writes; else found by running
    inputs: Sequence[str]  # those of them whose values a launch also needs; all others are poisoned
    reference: Callable[..., Any]  # takes the same arguments, floats as float64; gives the outputs
    flops: int  # of one launch; 0 unless named
    tolerance: Tolerance  # for outputs of floats, in place of the usual one of their dtype
    device: str  # compile and predict for this device, as `--device` does
    budget: str  # as `--budget`; all configs unless named
    out: Path  # folder for results
    database: str  # URL of the database
    fresh: bool  # obtain again what the database holds
    quiet: bool  # print only the result and the page's path


@dataclass(frozen=True)
class Best:
    """The winner of a tuning."""

    config: Any  # triton.Config
    seconds: float  # of one launch: measured, or by the model where `predicted`
    predicted: bool
    sentence: str  # the result in one sentence
    page: Path
    kernel: Path  # the one-file kernel: `workbench sweep full --kernel` takes it again
    checked: bool = True  # False: nothing on this machine could run it to check its results

    @property
    def kwargs(self) -> dict[str, Any]:
        """Keyword arguments of a launch, including `num_warps` and `num_stages`."""
        return dict(self.config.all_kwargs())
