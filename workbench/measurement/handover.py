"""Run a launcher on inputs that another process made, and hand it the outputs as bytes.

The code under test and the reference never share a process here: this one gets no seed, no
expected output and no tolerance, and the other one compares the bytes that it receives.
"""

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from workbench.measurement.correctness import (
    Checked,
    PreparedProblem,
    check_outputs,
    fault_check,
    launch,
)
from workbench.measurement.observed import Observed, observing
from workbench.measurement.packed import Packed, Unpackable, pack_tensor, unpack_tensor
from workbench.measurement.reference import form_fault
from workbench.measurement.rules import Fault
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
    fault: Fault | None = None  # of the launch, which then has no outputs
    borrowing_fault: Fault | None = None  # of the memory of the outputs
    launches: tuple[str, ...] = ()  # names of the device functions, in order
    operators: tuple[str, ...] = ()  # those of torch that compute, by name


@dataclass(frozen=True)
class CallResult:
    """The check of one call, with what its process says that it did."""

    check: Checked
    launches: tuple[str, ...]
    operators: tuple[str, ...]


def pack(spec: Spec, sizes: Sizes, inputs: Sequence[torch.Tensor]) -> Given:
    """Return the inputs of one call as values."""
    return Given(dict(sizes), tuple(pack_tensor(x) for x in inputs))


def launch_on_inputs(impl: Impl, config: Any, call: Given) -> Returned:
    """Launch on these inputs, in poisoned memory, and return the outputs as values. Errors of the
    launch are raised."""
    inputs = [_place_input(i, unpack_tensor(x)) for i, x in enumerate(call.inputs)]
    observed, before = Observed(), _running()
    launched = launch(impl, config, inputs, observing(observed))
    launches, computing = tuple(observed.launches), observed.computing
    fault = launched.fault or _form(impl, launched.outputs) or _left_behind(before)
    if fault:
        return Returned((), fault, None, launches, computing)
    outputs = tuple(pack_tensor(x) for x in launched.outputs)
    return Returned(outputs, None, launched.borrowing_fault, launches, computing)


_places: dict[Any, torch.Tensor] = {}  # memory of inputs, by place in the Spec and layout


def _place_input(index: int, x: torch.Tensor) -> torch.Tensor:
    """Return an input in the memory of the last one of its layout: a launcher that remembers
    results by address then gives those of other values."""
    layout = (index, x.dtype, tuple(x.shape), tuple(x.stride()))
    if any(s == 0 and n > 1 for n, s in zip(x.shape, x.stride(), strict=True)):
        return x  # elements that share memory cannot be copied into
    place = _places.setdefault(layout, x)
    return place if place is x else place.copy_(x)


def _form(impl: Impl, outputs: Sequence[Any]) -> Fault | None:
    reason = form_fault(impl.spec, outputs, torch.device("cpu"))
    return Fault("form", reason) if reason else None


def _running() -> tuple[int, int]:
    """Return the numbers of Python's threads and of child processes of this process."""
    children = 0
    for task in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            children += len(task.read_text().split())
    return threading.active_count(), children


def _left_behind(before: tuple[int, int]) -> Fault | None:
    for noun, then, now in zip(("thread", "process"), before, _running(), strict=True):
        if now > then:
            return Fault("process", f"the launch leaves a {noun} running when it has returned")
    return None


def compare(problem: PreparedProblem, result: Returned) -> Checked:
    """Compare what another process returned with the reference. No part of it is trusted."""
    if result.fault:
        return fault_check(result.fault)
    try:
        outputs = [unpack_tensor(x) for x in result.outputs]
    except Unpackable as error:
        return fault_check(Fault("form", f"what the launch returned is not a tensor: {error}"))
    verdict = check_outputs(outputs, problem)
    if not verdict.wrong and result.borrowing_fault:
        return fault_check(result.borrowing_fault)
    if not verdict.wrong and not result.launches:
        return fault_check(Fault("launches", "the launch runs no Triton kernel"))
    return verdict
