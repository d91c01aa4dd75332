"""Launch an operation by the Impl and the config that `tuner.choice` chooses for its inputs."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from workbench.adapted import launch
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
from workbench.spec import Sizes, Spec, sizes_text
from workbench.tuner.choice import LOGGER, LaunchChoice, choices_of, default_of

GRADIENT = "_backward"  # how the names of Specs end that compute gradients

Launcher = Callable[..., Any]


def first_launch(
    spec: Spec, inputs: Sequence[torch.Tensor], more: Mapping[str, Any] | None = None
) -> tuple[Launcher, Any]:
    """Launch by the first Impl that takes these inputs, with `more` keywords. Returns its launcher
    and the output.

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
        return _reference(spec, inputs, sizes)
    if refusal is not None:
        raise OperationError(refusal)
    for choice in _choices(spec, place, dtype, sizes, reasons):
        launcher = partial(choice.impl.launch, config=choice.config, **(more or {}))
        try:
            output = launcher(*inputs)
        except ValueError as error:
            reasons.append(f"{choice.impl.name}: {error}")
            continue
        if not INTERPRETED:
            text = "; ".join([choice.text, *reasons])
            launch.log_choice(choice.impl, choice.config, text)
        return launcher, output
    raise OperationError(
        f"{title(spec)}: no Impl takes {sizes_text(sizes)} in {dtype} ({'; '.join(reasons)}); "
        "choose other sizes or torch's own operation."
    )


def _check_place(spec: Spec, place: str) -> None:
    if place == "cuda" or (INTERPRETED and place == "cpu"):  # torch's name for AMD's, too
        return
    remedy = "set TRITON_INTERPRET=1 before the import to interpret the kernels on the CPU"
    raise OperationError(
        f"{title(spec)} needs an NVIDIA or AMD GPU, but its inputs are on {place}; move them to "
        f"one, or {remedy}."
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


def _reference(spec: Spec, inputs: Sequence[torch.Tensor], sizes: Sizes) -> tuple[Launcher, Any]:
    """Return a launcher of the Spec's reference, which is made of torch's operations, and its
    output."""

    def compute(*inputs: torch.Tensor) -> Any:
        results = spec.reference(*(x.float() if x.is_floating_point() else x for x in inputs))
        several = results if isinstance(results, tuple) else (results,)
        dtypes = output_dtypes(spec, inputs)
        outputs = tuple(y.to(d).contiguous() for y, d in zip(several, dtypes, strict=True))
        return outputs if len(outputs) > 1 else outputs[0]

    if not INTERPRETED:
        LOGGER.info("%s: torch's operations; no Impl takes %s", spec.name, sizes_text(sizes))
    return compute, compute(*inputs)


def _choices(
    spec: Spec, place: torch.device, dtype: str, sizes: Sizes, refused: list[str]
) -> list[LaunchChoice]:
    """Return the Impls that take these sizes, the best first; `refused` gets why the others do not.
    In the interpreter, where no time is known, in the order of the kernel's file."""
    if not INTERPRETED:
        return choices_of(spec, launch.device_of(place), dtype, sizes, refused=refused)
    limits, taken = launch.limits_of(place), []
    for impl in spec.impls:
        if impl.backend != "triton" or impl.unchecked_reason:
            continue
        config, text = default_of(impl, limits, dtype, sizes)
        if (reason := impl.rejection_reason(config, limits, dtype, sizes)) is None:
            taken.append(LaunchChoice(impl, config, text))
        else:
            refused.append(f"{impl.name}: {reason}")
    return taken
