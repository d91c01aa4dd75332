"""Make other values for a second check of a user's kernel: its own floats in another order, which
keeps their distribution, and infinities and NaN among them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from workbench.adapted.autotuned import Arguments
from workbench.adapted.call import Argument, Call, Layout

SEED = 1


def shuffle_memory(memory: Any, layout: Layout) -> Any:
    """Return a copy of the memory of a tensor with its elements shuffled; integers are copied
    unchanged, as are elements that share memory and gaps between elements."""
    import torch

    other = memory.clone()
    shared = any(n > 1 and s == 0 for n, s in zip(layout.shape, layout.stride, strict=True))
    if not memory.is_floating_point() or shared:
        return other
    view = layout.view(other)
    dice = torch.Generator(view.device).manual_seed(SEED)  # on a GPU 30 million take 2 s less
    order = torch.randperm(view.numel(), generator=dice, device=view.device)
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[view.element_size()]
    dense = view.contiguous().view(whole).reshape(-1)  # no arithmetic: NaN keeps its bits
    view.copy_(dense[order].view(view.dtype).reshape(view.shape))
    return other


def worse(result: Mapping[str, Any], known: Mapping[str, Any]) -> str | None:
    """Return why these outputs cannot be compared with, or None: more of them than of the outputs
    for the user's own values are not finite."""
    for name, x in result.items():
        if x.is_floating_point() and _odd(x) > _odd(known[name]):
            return f"{name} gets NaN or infinities from the same values in another order"
    return None


def _odd(x: Any) -> int:
    return int((~x.double().isfinite()).sum())


def equal(wide: Any, saved: Any) -> bool:
    """Return whether a tensor in float64 holds the saved values; NaN equals NaN."""
    same = saved.to(wide.device).to(wide.dtype)
    return bool(((wide == same) | (wide.isnan() & same.isnan())).all())


def substitute_memory(given: Arguments, call: Call, other: Mapping[str, Any]) -> Arguments:
    """Return the user's arguments with these memories, by tensor name, in place of their own."""

    def put(argument: Argument, value: Any) -> Any:
        if argument.tensor is None or argument.tensor not in other:
            return value
        mine = value if argument.descriptor is None else value.base
        view = call.tensors[argument.tensor].view(other[argument.tensor]).to(mine.device)
        return view if argument.descriptor is None else replace(value, base=view)

    args, kwargs = given
    by_name = {a.name: a for a in call.arguments}
    positional = [a for a in call.arguments if a.positional]
    return (
        tuple(put(a, value) for a, value in zip(positional, args, strict=True)),
        {name: put(by_name[name], value) for name, value in kwargs.items()},
    )
