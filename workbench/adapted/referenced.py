"""Compute the expected outputs with the user's own reference."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench.adapted.autotuned import Arguments
from workbench.adapted.call import EXPECTED, MOVED_ARGS, MOVED_EXPECTED, Call, Initial
from workbench.adapted.discover import POISON, Discovered, byte_tensor, filled_like, same_bits
from workbench.adapted.moved import substitute_memory, worse
from workbench.adapted.travel import AdaptedError
from workbench.measurement.inputs import torch_dtype


def expected_of(reference: Callable[..., Any], arguments: Arguments, call: Call) -> dict[str, Any]:
    """Return the outputs of the user's reference, by name. It gets copies, floats as float64.
    Raises AdaptedError where it fails or its outputs are not those of the call."""
    args, kwargs = arguments
    try:
        returned = reference(*map(_widen, args), **{k: _widen(v) for k, v in kwargs.items()})
    except Exception as error:
        raise AdaptedError(
            f"The reference fails ({type(error).__name__}: {error}); it is called with the "
            "arguments of the launch, floats as float64, and returns the outputs."
        ) from error
    outputs = tuple(returned) if isinstance(returned, (tuple, list)) else (returned,)
    shapes = {n: call.compared_shape(n) for n in call.outputs}
    if [tuple(getattr(o, "shape", ())) for o in outputs] != list(shapes.values()):
        text = ", ".join(f"{n} {shape}" for n, shape in shapes.items())
        raise AdaptedError(f"The reference does not return {text}, in this order.")
    for name, output in zip(shapes, outputs, strict=True):
        ours = torch_dtype(call.tensors[name].dtype)
        if output.is_floating_point() and not ours.is_floating_point:
            raise AdaptedError(
                f"The reference returns {name} as {output.dtype}, and the launch writes {ours}, "
                f"which must be exact; return whole numbers: {name}.to({ours})."
            )
    return {n: _widen(o).cpu() for n, o in zip(shapes, outputs, strict=True)}


def reads(
    reference: Callable[..., Any],
    arguments: Arguments,
    call: Call,
    memory: Mapping[str, Any],
    name: str,
) -> bool:
    """Return whether the reference's outputs depend on what a tensor holds: it fails, or gives
    others, where the tensor holds poison."""
    expected = expected_of(reference, arguments, call)
    poison = {name: filled_like(memory[name], POISON)}
    try:
        poisoned = expected_of(reference, substitute_memory(arguments, call, poison), call)
    except AdaptedError:
        return True
    return any(not same_bits(poisoned[n], expected[n]) for n in expected)


def keep_read_outputs(
    reference: Callable[..., Any],
    arguments: Arguments,
    call: Call,
    memory: Mapping[str, Any],
    result: Discovered,
) -> Discovered:
    """Return `result` with the outputs that the reference reads as inputs, too; the others are
    poisoned before each check."""
    read = {n for n in result.odd if reads(reference, arguments, call, memory, n)}
    values: dict[str, Initial] = {
        n: "values" if bool(byte_tensor(memory[n]).any()) else "zeros" for n in read
    }
    odd = {n: use for n, use in result.odd.items() if n not in read}
    return replace(result, initial={**result.initial, **values}, odd=odd)


def expected_again(
    stage: Path, reference: Callable[..., Any], arguments: Arguments, call: Call, result: Discovered
) -> Discovered:
    """Save the reference's outputs for the values of the second check, or drop these values where
    it fails or is not finite. Returns `result` with the reason in `repeat_reason`."""
    import torch

    if result.repeat_reason:
        return result
    other = torch.load(stage / MOVED_ARGS, weights_only=True)
    try:
        expected = expected_of(reference, substitute_memory(arguments, call, other), call)
    except AdaptedError as error:
        reason: str | None = str(error)
    else:
        reason = worse(expected, torch.load(stage / EXPECTED, weights_only=True))
        torch.save(expected, stage / MOVED_EXPECTED)
    if reason:
        (stage / MOVED_ARGS).unlink()
    return replace(result, repeat_reason=reason)


def _widen(value: Any) -> Any:
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    copy = value.detach().clone()
    return copy.double() if copy.is_floating_point() else copy
