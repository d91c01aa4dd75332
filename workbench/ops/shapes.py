"""Shapes and dtypes of an operation's tensors, from its Spec, also where extents are symbols."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from workbench.measurement.inputs import torch_dtype
from workbench.spec import Spec, Tensor, WorkbenchError, sizes_text

Extents = dict[str, Any]  # of the axes, by name: int, or torch.SymInt while torch traces

_PART = re.compile(r"([*/]?)(\w+)")


class OperationError(WorkbenchError, ValueError):
    """An operation cannot take these tensors; the message is one sentence."""


def title(spec: Spec) -> str:
    """Return the name of an operation in messages."""
    return f"workbench.ops.{spec.name}"


def check_inputs(spec: Spec, inputs: Sequence[torch.Tensor]) -> torch.dtype:
    """Return the dtype under test. Raises OperationError where a tensor has another number of axes
    than the Spec, another dtype, or lies on another device than the first."""
    dtype = dtype_under_test(spec, inputs)
    for (name, tensor), x in zip(spec.inputs.items(), inputs, strict=True):
        wanted = torch_dtype(tensor.dtype) if tensor.dtype else dtype
        if x.dim() != len(tensor.axes.split()):
            raise OperationError(
                f"{title(spec)}: {name} is `{tensor.axes}`, and this one has {x.dim()} axes; "
                "reshape it."
            )
        if x.dtype != wanted:
            raise OperationError(
                f"{title(spec)}: {name} is {_short(x.dtype)}, and {_short(wanted)} is wanted here; "
                "convert it."
            )
        if x.device != inputs[0].device:
            first = f"{next(iter(spec.inputs))} on {inputs[0].device}"
            raise OperationError(
                f"{title(spec)}: {name} lies on {x.device}, and {first}; move it there."
            )
    return dtype


def dtype_under_test(spec: Spec, inputs: Sequence[torch.Tensor]) -> torch.dtype:
    """Return the dtype that the inputs without one of their own share: that of the first of them.
    Raises OperationError where the operation has no kernel for it."""
    names = {torch_dtype(name): name for name in spec.tolerance}
    each = zip(spec.inputs.items(), inputs, strict=True)
    name, dtype = next((n, x.dtype) for (n, tensor), x in each if tensor.dtype is None)
    if dtype not in names:
        raise OperationError(
            f"{title(spec)}: {name} is {_short(dtype)}; convert it to one of "
            f"{', '.join(map(_short, names))}."
        )
    return dtype


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def extents_of(spec: Spec, inputs: Sequence[torch.Tensor]) -> Extents:
    """Return the extent of each axis. Raises OperationError where the shapes contradict the Spec;
    while torch traces with symbols, equal extents are assumed, and the launch checks them."""
    extents: Extents = {}
    for _ in range(2):  # an axis may be a product whose factors later inputs determine
        for tensor, x in zip(spec.inputs.values(), inputs, strict=True):
            for axis, extent in zip(tensor.axes.split(), x.shape, strict=True):
                extents |= _solve_extent(axis, extent, extents)
    for tensor, x in zip(spec.inputs.values(), inputs, strict=True):
        for extent, wanted in zip(x.shape, shape_of(tensor, extents), strict=True):
            if isinstance(extent, int) and isinstance(wanted, int) and extent != wanted:
                raise OperationError(misfit_text(spec, inputs))
    return extents


def misfit_text(spec: Spec, inputs: Sequence[torch.Tensor]) -> str:
    """Return one sentence on inputs whose shapes contradict the Spec."""
    each = zip(spec.inputs.items(), inputs, strict=True)
    parts = (
        f"{name} `{tensor.axes}` is {'x'.join(map(str, x.shape))}" for (name, tensor), x in each
    )
    return f"{title(spec)}: the shapes contradict each other: {', '.join(parts)}; correct one."


def refusal_text(spec: Spec, extents: Mapping[str, int]) -> str | None:
    """Return in one sentence why the operation does not take these extents, or None if it does."""
    reason = spec.refuse(extents)
    return reason and f"workbench.ops.{reason}; at {sizes_text(extents)} it has no kernel."


def outputs_of(spec: Spec, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Return new outputs of the right shape, dtype and device, with nothing written to them. Raises
    OperationError where the inputs do not fit the Spec."""
    check_inputs(spec, inputs)
    extents = extents_of(spec, inputs)
    each = zip(spec.outputs.values(), output_dtypes(spec, inputs), strict=True)
    return tuple(inputs[0].new_empty(shape_of(t, extents), dtype=dtype) for t, dtype in each)


def output_dtypes(spec: Spec, inputs: Sequence[torch.Tensor]) -> list[torch.dtype]:
    """Return the dtype of each output."""
    dtype = dtype_under_test(spec, inputs)
    return [torch_dtype(t.dtype) if t.dtype else dtype for t in spec.outputs.values()]


def shape_of(tensor: Tensor, extents: Extents) -> tuple[Any, ...]:
    """Return the shape of a tensor of the Spec, rounded down where an axis is not a whole
    number."""
    return tuple(_value(axis, extents) for axis in tensor.axes.split())


def _value(axis: str, extents: Extents) -> Any:
    above, below = _factors(_PART.findall(axis), extents)
    return above // below if below != 1 else above


def _solve_extent(axis: str, extent: Any, extents: Extents) -> Extents:
    """Return the one unknown extent that an axis determines; nothing if none or several are."""
    parts = _PART.findall(axis)
    unknown = [(sign, p) for sign, p in parts if not p.isdigit() and p not in extents]
    if len(unknown) != 1 or unknown[0][0] == "/":
        return {}
    above, below = _factors([p for p in parts if p != unknown[0]], extents)
    value = extent if below == 1 else extent * below
    return {unknown[0][1]: value if above == 1 else value // above}


def _factors(parts: Sequence[tuple[str, str]], extents: Extents) -> tuple[Any, Any]:
    """Return the products of what is multiplied by and of what is divided by."""
    above: Any = 1
    below: Any = 1
    for sign, part in parts:
        value = int(part) if part.isdigit() else extents[part]
        if sign == "/":
            below = below * value
        else:
            above = value if isinstance(above, int) and above == 1 else above * value
    return above, below
