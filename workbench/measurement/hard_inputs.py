"""Make inputs with values that normal ones lack: outliers, exact zeros and subnormals; NaN and
infinities where the Spec says what becomes of them.

A kernel that is wrong beyond four standard deviations, or takes no maximum before it exponentiates,
is right on normal values.
"""

from collections.abc import Sequence
from typing import Any

import torch

from workbench.measurement import inputs as inputs_
from workbench.measurement.correctness import PreparedProblem
from workbench.measurement.reference import output_tuple
from workbench.spec import ITEMSIZE, Sizes, Spec

ROOM = 64  # elements of a tensor from which single values are put into it
SHARE = 0.02  # of the elements, for each kind of value
# Outliers are so many standard deviations: exp(x) of the largest overflows in fp32. Where the
# problem is worse conditioned than its tolerance allows, smaller ones are taken, and none at last.
SCALES = (64.0, 16.0, 4.0)
GENTLE = (4.0,)  # where intermediate values are rounded, an outlier's own is beyond the rms
MARGIN = 2  # how far within the tolerance plain fp32 must lie


def hard_problem(
    spec: Spec, sizes: Sizes, dtype: str, device: str, seed: int = 0
) -> PreparedProblem:
    """Return a problem whose normal inputs hold hard values, too. What a maker made is as it made
    it. Without an input that may hold them, the inputs are the usual ones."""
    usual = inputs_.make(spec, sizes, dtype, device, seed)
    chance = torch.Generator(device=device).manual_seed(seed ^ 0x5EED)
    problem = PreparedProblem.wrap(spec, dtype, usual, sizes)
    if not all(e.is_floating_point() for e in problem.expected_outputs):
        return problem  # a decision may turn on the last bit
    gentle = ITEMSIZE[dtype] == 1 or any(
        spec.tolerance_of(name, dtype).rms is not None for name in spec.outputs
    )
    for scale in GENTLE if gentle else SCALES:
        mixed = tuple(
            _mix_values(x, scale, chance) if tensor.make is None else x
            for tensor, x in zip(spec.inputs.values(), usual, strict=True)
        )
        hard = PreparedProblem.wrap(spec, dtype, mixed, sizes)
        if is_well_conditioned(hard):
            problem = hard
            break
    if spec.nonfinite:
        named = zip(spec.inputs, problem.inputs, strict=True)
        odd = tuple(_add_nonfinite(x, chance) if n in spec.nonfinite else x for n, x in named)
        problem = PreparedProblem.wrap(spec, dtype, odd, sizes)
    return problem


def _mix_values(x: Any, scale: float, chance: torch.Generator) -> Any:
    """Return a copy in which some elements are outliers, zeros or subnormals of its dtype."""
    if not x.is_floating_point():
        return x
    kind = torch.rand(x.shape, generator=chance, device=x.device)
    tiny = torch.finfo(x.dtype).smallest_normal
    values = torch.where(kind < SHARE, x.double() * scale, x.double())
    values = torch.where((kind >= SHARE) & (kind < 2 * SHARE), 0.0, values)
    values = torch.where((kind >= 2 * SHARE) & (kind < 3 * SHARE), values * tiny / 8, values)
    if x.numel() >= ROOM:  # few elements have no outlier by chance, or none whose exp overflows
        at = torch.randperm(x.numel(), generator=chance, device=x.device)[:2]
        values.view(-1)[at] = scale * torch.tensor([2.0, -2.0], device=x.device).double()
    return values.to(x.dtype)


def _add_nonfinite(x: Any, chance: torch.Generator) -> Any:
    """Return a copy with a NaN and both infinities, as far as it has room beside other values."""
    result = x.clone()
    if x.numel() >= ROOM:
        at = torch.randperm(x.numel(), generator=chance, device=x.device)[:3]
        odd = torch.tensor([float("nan"), float("inf"), float("-inf")], device=x.device)
        result.view(-1)[at] = odd.to(x.dtype)
    return result


def is_well_conditioned(problem: PreparedProblem) -> bool:
    """Return whether the reference in fp32 lies well within the tolerance, with subnormals and
    without them, as many GPUs compute. Then a right kernel does, too."""
    flushed = tuple(map(_flush_subnormals, problem.inputs))
    return all(_is_near(problem, inputs) for inputs in (problem.inputs, flushed))


def _flush_subnormals(x: Any) -> Any:
    if not x.is_floating_point() or x.element_size() == 1:
        return x
    return torch.where(x.abs() < torch.finfo(x.dtype).smallest_normal, torch.zeros_like(x), x)


def _is_near(problem: PreparedProblem, inputs: Sequence[Any]) -> bool:
    spec = problem.spec
    narrow = [x.float() if x.is_floating_point() else x for x in inputs]
    try:
        outputs = output_tuple(spec.reference(*narrow))
    except Exception:  # it takes no fp32
        return False
    for name, rough, e in zip(spec.outputs, outputs, problem.expected_outputs, strict=True):
        kind = inputs_.torch_dtype(spec.outputs[name].dtype or problem.dtype)
        if not bool(e.to(kind).isfinite().all()):
            return False
        allowed = spec.tolerance_of(name, problem.dtype)
        scale = e.square().mean().sqrt() if e.numel() else e.sum()
        bound = (allowed.relative * e.abs() + allowed.rms_share * scale) / MARGIN
        least = torch.finfo(kind).smallest_normal
        if bool(((rough.double() - e).abs() > bound + least).any()):
            return False
    return True
