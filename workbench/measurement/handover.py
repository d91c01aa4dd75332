"""Run a launcher on inputs that another process made, and hand it the outputs as bytes.

The code under test and the reference never share a process here: this one gets no seed, no
expected output and no tolerance, and the other one compares the bytes that it receives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import torch

from workbench.measurement.correctness import Checked, PreparedProblem, check_outputs, launch
from workbench.measurement.observed import Observed, observing
from workbench.measurement.packed import Packed, Unpackable, packed, unpacked
from workbench.measurement.reference import form_fault
from workbench.spec import Impl, Sizes, Spec


@dataclass(frozen=True)
class Given:
    """Inputs of one call, in the order of the Spec."""

    sizes: Mapping[str, int]
    inputs: tuple[Packed, ...]


@dataclass(frozen=True)
class Returned:
    """Outputs of one call, and what the process that made it saw."""

    outputs: tuple[Packed, ...]
    wrong: str | None = None  # one sentence on the launch, which then has no outputs
    borrowed: str | None = None  # one sentence on memory that the outputs share
    launches: tuple[str, ...] = ()  # names of the device functions, in order
    operators: tuple[str, ...] = ()  # those of torch that compute, by name


def given(spec: Spec, sizes: Sizes, inputs: Sequence[torch.Tensor]) -> Given:
    """Return the inputs of one call as values."""
    return Given(dict(sizes), tuple(packed(x) for x in inputs))


def returned(impl: Impl, config: Any, call: Given) -> Returned:
    """Launch on these inputs, in poisoned memory, and return the outputs as values. Errors of the
    launch are raised."""
    inputs = [unpacked(x) for x in call.inputs]
    seen = Observed()
    launched = launch(impl, config, inputs, observing(seen))
    launches, computing = tuple(seen.launches), seen.computing
    wrong = launched.wrong or form_fault(impl.spec, launched.outputs, torch.device("cpu"))
    if wrong:
        return Returned((), wrong, None, launches, computing)
    outputs = tuple(packed(x) for x in launched.outputs)
    return Returned(outputs, None, launched.borrowed, launches, computing)


def checked(problem: PreparedProblem, answer: Returned) -> Checked:
    """Compare what another process returned with the reference. No part of it is trusted."""
    if answer.wrong:
        return Checked(inf, str(answer.wrong))
    try:
        outputs = [unpacked(x) for x in answer.outputs]
    except Unpackable as error:
        return Checked(inf, f"what the launch returned is no tensor: {error}")
    result = check_outputs(outputs, problem)
    if not result.wrong and answer.borrowed:
        return Checked(inf, str(answer.borrowed))
    if not result.wrong and not answer.launches:
        return Checked(inf, "the launch runs no Triton kernel")
    return result
