"""Choose the Impl and the config of an operation by the sizes of its inputs.

Impls are tried in this order, each with the config that it would be launched with alone (see
`adapted/launch.py`), and the first that takes the inputs stays chosen for them:

1. those with a tuned entry for these sizes, by the time that was measured with it;
2. on a GPU of the architecture that `measured.json` was measured on, by their times at sizes within
   half an octave; else, if the calibration of the GPU or of one of its architecture has all Impls
   that take the inputs, by the times that it expects; else by the times at the nearest measured
   sizes; else by the analytic model, before compiling;
3. where it lacks a figure of the GPU or of an Impl, in the order of the kernel's file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from workbench.adapted import launch
from workbench.device.correction import CLEAR
from workbench.device.cost_model import guessed
from workbench.dsl import INTERPRETED
from workbench.ops.shapes import (
    OperationError,
    check_inputs,
    misfit_text,
    output_dtypes,
    outputs_of,
    refusal_text,
    title,
)
from workbench.spec import ITEMSIZE, Impl, Sizes, Spec, sizes_text

MEASURED = Path(__file__).with_name("measured.json")  # written by docs/generate.py
NEAR = 0.5  # octaves over all axes
GRADIENT = "_backward"  # how the names of Specs end that compute gradients

Launcher = Callable[..., Any]


@dataclass(frozen=True)
class LaunchChoice:
    """An Impl that takes inputs of certain sizes, and its config."""

    impl: Impl
    config: Any
    text: str
    tuned_s: float | None = None
    expected_s: float | None = None  # by the calibration of the GPU

    @property
    def launcher(self) -> Launcher:
        """Function of the inputs alone."""
        return partial(self.impl.launch, config=self.config)


def first_launch(spec: Spec, inputs: Sequence[torch.Tensor]) -> tuple[Launcher, Any]:
    """Launch by the first Impl that takes these inputs. Returns its launcher and the output.

    A launcher may refuse inputs for what sizes do not tell (by a ValueError: a tensor descriptor
    needs dense rows); the next Impl is then tried, and the log has the reason. Raises
    OperationError where the inputs do not fit the Spec, lie where no kernel of Triton runs, or are
    refused by every Impl. Where all refuse a gradient, of sizes that a forward pass may have taken,
    the Spec's reference computes it in fp32.
    """
    place = inputs[0].device
    _check_place(spec, place.type)
    check_inputs(spec, inputs)
    dtype, sizes = launch.dtype_of(spec, inputs), launch.sizes_of(spec, inputs)
    if dtype is None or sizes is None:
        raise OperationError(misfit_text(spec, inputs))
    if not min(sizes.values(), default=1):
        return _nothing(spec, inputs, sizes)
    refusal, reasons = refusal_text(spec, sizes), list[str]()
    if spec.name.endswith(GRADIENT) and (refusal or not _choices(spec, place, dtype, sizes, [])):
        return _by_reference(spec, inputs, sizes)
    if refusal is not None:
        raise OperationError(refusal)
    for choice in _choices(spec, place, dtype, sizes, reasons):
        try:
            output = choice.launcher(*inputs)
        except ValueError as error:
            reasons.append(f"{choice.impl.name}: {error}")
            continue
        if not INTERPRETED:
            text = "; ".join([choice.text, *reasons])
            launch.log_choice(choice.impl, choice.config, text)
        return choice.launcher, output
    raise OperationError(
        f"{title(spec)}: no Impl takes {sizes_text(sizes)} in {dtype} ({'; '.join(reasons)}); "
        "choose other sizes or torch's own operation."
    )


def _check_place(spec: Spec, place: str) -> None:
    if place == "cuda" or (INTERPRETED and place == "cpu"):  # torch's name for AMD's, too
        return
    remedy = "set TRITON_INTERPRET=1 before the import to interpret the kernels on the CPU"
    raise OperationError(
        f"{title(spec)} runs on a GPU of NVIDIA's or AMD's, and its inputs lie on {place}; move "
        f"them there, or {remedy}."
    )


def _nothing(
    spec: Spec, inputs: Sequence[torch.Tensor], sizes: Sizes
) -> tuple[Launcher, tuple[torch.Tensor, ...]]:
    """Return a launcher of outputs without elements: there is nothing to launch."""
    outputs = outputs_of(spec, inputs)
    if any(y.numel() for y in outputs):
        at = sizes_text(sizes)
        raise OperationError(f"{title(spec)}: at {at} there is nothing to compute from.")

    def empty(*inputs: torch.Tensor) -> Any:
        created = outputs_of(spec, inputs)
        return created if len(created) > 1 else created[0]

    return empty, empty(*inputs)


def _by_reference(spec: Spec, inputs: Sequence[torch.Tensor], sizes: Sizes) -> tuple[Launcher, Any]:
    """Return a launcher of the Spec's reference, which is made of torch's operations, and its
    output."""

    def computed(*inputs: torch.Tensor) -> Any:
        results = spec.reference(*(x.float() if x.is_floating_point() else x for x in inputs))
        several = results if isinstance(results, tuple) else (results,)
        dtypes = output_dtypes(spec, inputs)
        outputs = tuple(y.to(d).contiguous() for y, d in zip(several, dtypes, strict=True))
        return outputs if len(outputs) > 1 else outputs[0]

    if not INTERPRETED:
        launch.LOGGER.info("%s: torch's operations; no Impl takes %s", spec.name, sizes_text(sizes))
    return computed, computed(*inputs)


def _choices(
    spec: Spec, place: torch.device, dtype: str, sizes: Sizes, reasons: list[str]
) -> list[LaunchChoice]:
    """Return the Impls that take these sizes, the best first; `reasons` gets those of the
    others."""
    choices = [
        choice
        for impl in spec.impls
        if impl.backend == "triton"
        and (choice := _taken(impl, place, dtype, sizes, reasons)) is not None
    ]
    ranks, source = _ranking(spec, place, dtype, sizes, choices)
    every = sorted(zip(ranks, choices, strict=True), key=lambda one: (_tuned_s(one[1]), one[0]))
    more = f"; Impls are ordered by {source}" if len(choices) > 1 else ""
    return [replace(choice, text=f"{choice.text}{more}") for _, choice in every]


def _tuned_s(choice: LaunchChoice) -> float:
    return choice.tuned_s or math.inf


def _ranking(
    spec: Spec, place: torch.device, dtype: str, sizes: Sizes, choices: Sequence[LaunchChoice]
) -> tuple[list[float], str]:
    """Return a number for each choice, the least of the best, and what it is from."""
    expected = all(choice.expected_s or choice.tuned_s for choice in choices)
    case = _nearest(spec, place, dtype, sizes)
    if expected and not (case and case.is_near(dtype, sizes)):
        return [choice.expected_s or math.inf for choice in choices], "expected times"
    if case:
        return _measured_order(case, choices), "the times measured at the nearest sizes"
    if not INTERPRETED:
        device = launch.device_of(place)
        guesses = [guessed(c.impl, c.config, device, dtype, sizes) for c in choices]
        if all(map(math.isfinite, guesses)):
            return guesses, f"the analytic model, without a time on {device.name}"
    return [0.0] * len(choices), "the kernel's file"


def _taken(
    impl: Impl, place: torch.device, dtype: str, sizes: Sizes, reasons: list[str]
) -> LaunchChoice | None:
    if INTERPRETED and impl.unchecked:
        return None
    limits = launch.limits_of(place)
    if INTERPRETED:
        config, text = launch.tuned_or_default(impl, limits, dtype, sizes)
        result = LaunchChoice(impl, config, text)
    else:
        choice = launch.config_at(impl, launch.device_of(place), dtype, sizes)
        result = LaunchChoice(impl, choice.config, choice.text, choice.tuned_s, choice.expected_s)
    reason = impl.rejection_reason(result.config, limits, dtype, sizes)
    if reason is not None:
        reasons.append(f"{impl.name}: {reason}")
    return result if reason is None else None


# What was measured


@dataclass(frozen=True)
class MeasuredCase:
    """The Impls of a kernel at one size, the fastest first."""

    kernel: str
    sizes: Mapping[str, int]
    dtype: str
    impls: Sequence[str]

    def octaves(self, sizes: Sizes) -> float:
        """Return how far these sizes are, over all axes."""
        return sum(abs(math.log2(self.sizes[axis] / sizes[axis])) for axis in sizes)

    def is_near(self, dtype: str, sizes: Sizes) -> bool:
        """Return whether what was measured counts more than what a calibration expects."""
        return dtype == self.dtype and self.octaves(sizes) <= NEAR


def _nearest(spec: Spec, place: torch.device, dtype: str, sizes: Sizes) -> MeasuredCase | None:
    """Return the measured case nearest to these sizes in ratio, of this dtype if there are any,
    else of one as wide: what is fast in 16 bits may be the slowest in fp32. None where there are
    neither, and on a device of another architecture."""
    arch, cases = _measured()
    if INTERPRETED or launch.limits_of(place).arch != arch:
        return None

    def distance(case: MeasuredCase) -> tuple[bool, float]:
        return case.dtype != dtype, case.octaves(sizes)

    def suits(case: MeasuredCase) -> bool:
        same = case.kernel == spec.name and case.sizes.keys() == sizes.keys()
        return same and ITEMSIZE[case.dtype] == ITEMSIZE[dtype]

    cases = [case for case in cases if suits(case)]
    return min(cases, key=distance, default=None)


def _measured_order(case: MeasuredCase, choices: Sequence[LaunchChoice]) -> list[float]:
    """Return a number for each choice: its rank in the case. One that was not timed there comes
    first where it is expected to be clearly faster than the first that was, else last."""
    timed = {choice.impl.name: choice for choice in choices if choice.impl.name in case.impls}
    first = next((timed[name] for name in case.impls if name in timed), None)

    def rank(choice: LaunchChoice) -> float:
        if choice.impl.name in timed:
            return float(case.impls.index(choice.impl.name))
        least_s = (first.expected_s if first else None) or 0.0
        clear = choice.expected_s is not None and choice.expected_s < least_s / (1 + CLEAR)
        return -1 / choice.expected_s if clear and choice.expected_s else math.inf

    return [rank(choice) for choice in choices]


@cache
def _measured() -> tuple[str, list[MeasuredCase]]:
    plain = json.loads(MEASURED.read_text(encoding="utf-8"))
    return plain["arch"], [MeasuredCase(**case) for case in plain["cases"]]
