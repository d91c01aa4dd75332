"""Hold a Spec's reference to what the Spec declares, before any kernel is compared with it.

A reference that raises, or gives other outputs than declared, is the fault of the Spec: SpecFault
says so, and no kernel is blamed.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch

from workbench.data.errors import first_sentence
from workbench.data.user_code import user_code
from workbench.measurement.reads import Reads
from workbench.spec import (
    Sizes,
    Spec,
    SpecFault,
    Tensor,
    WorkbenchError,
    short,
    sizes_text,
    solve_sizes,
)

WIDE = torch.float64  # of every reference


def output_tuple(value: Any) -> tuple[Any, ...]:
    """Return a launcher's outputs, one tensor or several, as a tuple."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def reference_outputs(
    spec: Spec, inputs: Sequence[Any], sizes: Sizes | None = None, reads: Reads | None = None
) -> tuple[torch.Tensor, ...]:
    """Return the float64 reference of these inputs; `reads` notes what it reads of them. Without
    `sizes` they are taken from the shapes of the inputs, as far as those determine them.

    Raises SpecFault where the reference raises, changes an input, or gives outputs of another
    number, type, shape, dtype or device than the Spec declares.
    """
    sizes = solve_sizes(spec.inputs, inputs) if sizes is None else sizes
    where = f"the reference of the Spec {spec.name} " + (
        f"at {sizes_text(sizes)} " if sizes else ""
    )
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    before = [x._version for x in wide]
    try:
        with user_code(where.strip()), reads.watch(spec, wide) if reads else nullcontext():
            outputs = output_tuple(spec.reference(*wide))
    except (torch.OutOfMemoryError, WorkbenchError):
        raise
    except Exception as error:
        raise SpecFault(
            f"{_capitalise(where)}fails ({first_sentence(error)}); correct the reference: "
            "no kernel was tried."
        ) from error
    changed = [n for n, x, v in zip(spec.inputs, wide, before, strict=True) if x._version != v]
    fault = f"changes its input {changed[0]} in place" if changed else None
    fault = fault or _count_fault(spec, outputs) or _output_fault(spec, outputs, sizes, wide)
    if fault:
        raise SpecFault(f"{_capitalise(where)}{fault}; correct the Spec: no kernel was tried.")
    if reads is not None:
        reads.end(spec, outputs)
    # a launch may change what it is given, so nothing expected may lie in the same memory
    storages = {x.untyped_storage().data_ptr() for x in inputs}
    own = (o.clone() if o.untyped_storage().data_ptr() in storages else o for o in outputs)
    return tuple(o.detach() for o in own)


def returned_fault(spec: Spec, outputs: Sequence[Any], exact: Sequence[torch.Tensor]) -> str | None:
    """Return in one sentence how the outputs of a launch differ from those that the Spec declares
    in number, type, shape or device, or None."""
    if fault := _count_fault(spec, outputs):
        return f"the launch {fault}"
    for (name, tensor), actual, right in zip(spec.outputs.items(), outputs, exact, strict=True):
        if actual.shape != right.shape:
            return (
                f"{name} has shape {tuple(actual.shape)} where {tuple(right.shape)} was expected "
                f"(the Spec's axes {short(tensor.axes)})"
            )
    return form_fault(spec, outputs, exact[0].device) if exact else None


def form_fault(spec: Spec, outputs: Sequence[Any], device: torch.device) -> str | None:
    """Return in one sentence why the outputs of a launch are not as many dense tensors on this
    device as the Spec declares, or None."""
    if fault := _count_fault(spec, outputs):
        return f"the launch {fault}"
    for name, actual in zip(spec.outputs, outputs, strict=True):
        if actual.device != device:
            return f"{name} is on {actual.device} where the inputs are on {device}"
        if actual.layout is not torch.strided:
            return f"{name} is not dense: its layout is {actual.layout}"
    return None


def _capitalise(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _count_fault(spec: Spec, outputs: Sequence[Any]) -> str | None:
    names = ", ".join(spec.outputs)
    if len(outputs) == len(spec.outputs):
        odd = [o for o in outputs if not isinstance(o, torch.Tensor)]
        what = short(odd[0]) if odd and not isinstance(odd[0], (tuple, list, dict)) else "no tensor"
        return f"returned {what} where the Spec declares {names}; return tensors" if odd else None
    return (
        f"returned {len(outputs)} outputs where {len(spec.outputs)} were expected "
        f"(the Spec declares {names})"
    )


def _output_fault(
    spec: Spec, outputs: Sequence[Any], sizes: Sizes, inputs: Sequence[Any]
) -> str | None:
    for (name, tensor), output in zip(spec.outputs.items(), outputs, strict=True):
        shape, real = _shape(tensor, sizes), tuple(output.shape)
        if shape is not None and real != shape:
            return (
                f"gives {name} the shape {real}, where its axes {short(tensor.axes)} say {shape}; "
                f"return {shape}, or write the axes of {real} in `outputs`"
            )
        if output.is_complex() or output.layout is not torch.strided:
            return f"gives {name} as {output.dtype} in the layout {output.layout}, not as numbers"
        if output.is_floating_point() and output.dtype != WIDE:
            return (
                f"gives {name} in {output.dtype}, no more exact than a kernel; compute in the "
                "dtype of the inputs, which is float64, and cast nothing"
            )
        if inputs and output.device != inputs[0].device:
            return f"gives {name} on {output.device}, while its inputs are on {inputs[0].device}"
    return None


def _shape(tensor: Tensor, sizes: Sizes) -> tuple[int, ...] | None:
    try:
        return tensor.shape(sizes)
    except (KeyError, ValueError):  # the inputs alone do not determine it
        return None
