"""Derivatives of operations: what a forward pass keeps, and the gradients of its inputs.

A gradient is computed by a kernel of the workbench where one fits, through its operator, and by
operations of torch otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Tensors = Sequence[torch.Tensor]
Gradients = Sequence[torch.Tensor | None]

ops: Any = torch.ops.workbench


@dataclass(frozen=True)
class Derivative:
    """The backward of one operation.

    `keep(inputs, outputs)` returns the tensors that the backward needs. `formula(needed, kept,
    gradients)` returns a gradient for each input, or None where it needs none; a gradient of an
    output is None where nothing depends on it, but not all of them are. `constant` names inputs
    that have no gradient.
    """

    keep: Callable[[Tensors, Tensors], Tensors]
    formula: Callable[[Sequence[bool], Tensors, Gradients], Gradients]
    constant: tuple[str, ...] = ()


DERIVATIVES: dict[str, Derivative] = {}


def derivative(
    keep: Callable[[Tensors, Tensors], Tensors], constant: tuple[str, ...] = ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator of the formula of the operation that the function is named after."""

    def add(formula: Callable[..., Any]) -> Callable[..., Any]:
        DERIVATIVES[formula.__name__] = Derivative(keep, formula, constant)
        return formula

    return add


def inputs_alone(inputs: Tensors, outputs: Tensors) -> Tensors:
    """Return the inputs: all that most formulas keep."""
    return inputs


@derivative(lambda inputs, outputs: outputs)
def softmax(needed: Sequence[bool], kept: Tensors, gradients: Gradients) -> Gradients:
    """Return dx = y (g - sum(g y)), by torch's own kernel."""
    (y,), (g,) = kept, gradients
    return (torch.ops.aten._softmax_backward_data(g, y, -1, y.dtype),)
