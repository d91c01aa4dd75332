"""Options and result of `tune`."""

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
    partial: Sequence[str]  # outputs that hold as many partial results, along their first axis, as
    # the config writes; they begin as zeros, and their sum is compared
    reference: Callable[..., Any]  # takes the same arguments, floats as float64; gives the outputs
    flops: int  # of one launch; 0 unless named
    tolerance: Tolerance  # for outputs of floats, in place of the usual one of their dtype
    device: str  # compile and predict for this device, as `--device` does
    budget: str  # as `--budget`; all configs unless named
    out: Path  # folder for results
    database: str  # URL of the database
    fresh: bool  # obtain again what the database holds
    quiet: bool  # the text of the result is only the winner and the page's path
    progress: bool | None  # of the API: False for no display


@dataclass(frozen=True)
class TunedFunction:
    """The winner of a tuning, beside the result of its sweep."""

    config: Any  # triton.Config
    kernel: Path  # the one-file kernel: `workbench sweep full --kernel KERNEL` takes it again
