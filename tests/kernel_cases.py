"""The one body of all kernel tests: which cases there are, how inputs lie in memory, what is right.

It knows no kernel by name. A new file in `workbench/kernels/` is tested by all of it, interpreted
on the CPU and on a live GPU; what only one operation promises stands in `kernel_properties.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from workbench import catalog, inputs
from workbench.check import Poisoned, Posed, as_tuple, check, judge
from workbench.hardware import DEVICES
from workbench.spec import (
    ITEMSIZE,
    TOLERANCE,
    Impl,
    Limits,
    Sizes,
    Spec,
    Tensor,
    stages,
    threads,
    values,
)

DTYPES = tuple(TOLERANCE)
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
MARGIN = 64  # elements of NaN before and behind an input: keeps it at a multiple of 16 bytes


def triton_impls() -> list[Impl]:
    """Every Triton Impl of every built-in kernel."""
    specs = map(catalog.spec_of, catalog.kernel_names())
    return [impl for spec in specs for impl in spec.impls if impl.backend == "triton"]


def applicable(impl: Impl, config: Any, sizes: Sizes, dtype: str, limits: Limits) -> str | None:
    """Why this config cannot run there, in a sentence; None when it can."""
    return impl.refuse(config, limits, itemsize=ITEMSIZE[dtype], **sizes)


# Configs


def spread(
    impl: Impl, sizes: Sizes, dtype: str, limits: Limits, *, interpreted: bool = False
) -> list[Any]:
    """The default of each architecture, then the fewest configs, drawn in one fixed order, that
    have every choice of every knob at least once; all of them applicable.

    Warps and stages mean nothing to the interpreter: there, configs that differ in these alone
    count as one.
    """
    unseen = {threads.__name__, stages.__name__} if interpreted else set()
    seen = [f.name for f in fields(impl.config) if f.metadata["knob"].__name__ not in unseen]
    defaults = [impl.config(), *impl.defaults.values()]
    chosen = {_key(c, seen): c for c in defaults if not applicable(impl, c, sizes, dtype, limits)}
    others = [c for c in impl.space(impl.config()) if not applicable(impl, c, sizes, dtype, limits)]
    random.Random(impl.title).shuffle(others)
    missing = {pair for c in others for pair in _key(c, seen)}
    missing -= {pair for key in chosen for pair in key}
    while missing:
        best = max(others, key=lambda c: len(missing.intersection(_key(c, seen))))
        chosen[_key(best, seen)] = best
        missing -= set(_key(best, seen))
    return list(chosen.values())


def _key(config: Any, names: Sequence[str]) -> tuple[tuple[str, int], ...]:
    return tuple((name, getattr(config, name)) for name in names)


def first_applicable(impl: Impl, sizes: Sizes, dtype: str, limits: Limits) -> Any:
    """The default on a device with these limits, or the first config that fits these sizes."""
    for config in (impl.default(limits, dtype), *impl.space(impl.config())):
        if not applicable(impl, config, sizes, dtype, limits):
            return config
    return None


# Cases


@dataclass(frozen=True)
class Case:
    """One Impl at one size in one dtype."""

    impl: Impl
    sizes: Sizes
    dtype: str

    def __str__(self) -> str:
        extents = "-".join(f"{axis}{extent}" for axis, extent in self.sizes.items())
        return f"{self.impl.title}-{extents}-{self.dtype}"


def cases(limits: Limits, sizes: Callable[[Spec], Sequence[Sizes]]) -> list[Case]:
    """Every Triton Impl x the sizes that its Spec names x every dtype, where a config applies."""
    every = (
        Case(impl, at, dtype)
        for impl in triton_impls()
        for at in sizes(impl.spec)
        for dtype in DTYPES
    )
    return [c for c in every if first_applicable(c.impl, c.sizes, c.dtype, limits) is not None]


# Inputs: their values


def filled(spec: Spec, sizes: Sizes, dtype: str, kind: str, device: str, seed: int) -> list[Any]:
    """Inputs of one kind of value; an input with a maker of its own keeps what that makes."""
    generator = torch.Generator(device=device).manual_seed(seed)
    made = inputs.make(spec, sizes, dtype, device, seed)
    return [
        x if t.make is not None else VALUES[kind](x, generator)
        for t, x in zip(spec.inputs.values(), made, strict=True)
    ]


def _grid(x: Any, exponent: int = 0) -> Any:
    # multiples of 1/8 up to 4: few bits, so that sums of products stay exact in fp32
    return ((x.double() * 8).round() / 8).clamp(-4, 4).mul(2.0**exponent).to(x.dtype)


def _denormal(x: Any, generator: Any) -> Any:
    info = torch.finfo(x.dtype)
    steps = torch.randint(-100, 101, x.shape, generator=generator, device=x.device)
    return (steps.double() * (info.smallest_normal * info.eps)).to(x.dtype)


VALUES: Mapping[str, Callable[[Any, Any], Any]] = {
    "ordinary": lambda x, g: _grid(x),
    "large": lambda x, g: _grid(x, 10),
    "tiny": lambda x, g: _grid(x, -10),
    "denormal": _denormal,
    "zero": lambda x, g: torch.zeros_like(x),
    "constant": lambda x, g: _grid(x).flatten()[0].expand(x.shape).clone(),
}


# Inputs: how they lie in memory. Whatever is not part of the input is NaN.


def _within(x: Any, extents: Sequence[int], before: int = MARGIN) -> Any:
    """Fresh memory of these extents, full of NaN, between two margins of NaN."""
    count = 1
    for extent in extents:
        count *= extent
    flat = torch.empty(before + count + MARGIN, dtype=x.dtype, device=x.device)
    flat.fill_(float("nan") if x.is_floating_point() else 0x5A)
    return flat[before : before + count].view(*extents)


def _dense(x: Any) -> Any:
    return _within(x, x.shape).copy_(x)


def _offset(x: Any) -> Any:
    return _within(x, x.shape, MARGIN + 1).copy_(x)


def _transposed(x: Any) -> Any:
    return _within(x, x.shape[::-1]).permute(*reversed(range(x.dim()))).copy_(x)


def _every_second(x: Any) -> Any:
    return _within(x, (*x.shape[:-1], 2 * x.shape[-1]))[..., ::2].copy_(x)


def _padded(x: Any) -> Any:
    last = x.shape[-1]
    return _within(x, (*x.shape[:-1], last + 16 - last % 8))[..., :last].copy_(x)


def _expanded(x: Any) -> Any:
    return _dense(x[:1]).expand(x.shape)


LAYOUTS: Mapping[str, Callable[[Any], Any]] = {
    "dense": _dense,
    "offset": _offset,  # by one element, so that no address is a multiple of 16 bytes
    "transposed": _transposed,
    "every_second": _every_second,
    "padded": _padded,
    "expanded": _expanded,  # stride 0
}


def far(x: Any, axis: int) -> Any:
    """A view of the same values whose last one along `axis` lies over 2^31 elements behind the
    first. On a CPU the memory between is asked for and never touched."""
    others = [extent for i, extent in enumerate(x.shape) if i != axis]
    count = 1
    for extent in others:
        count *= extent
    stride = max(-(-((1 << 31) + 8) // (x.shape[axis] - 1)), count)
    stride += -stride % 8  # descriptors want multiples of 16 bytes
    strides, inner = [0] * x.dim(), 1
    for i in reversed([i for i in range(x.dim()) if i != axis]):
        strides[i], inner = inner, inner * x.shape[i]
    strides[axis] = stride
    flat = torch.empty(stride * (x.shape[axis] - 1) + count, dtype=x.dtype, device=x.device)
    return flat.as_strided(x.shape, strides).copy_(x)


# Verdicts


def verify(impl: Impl, configs: Sequence[Any], problem: Posed) -> None:
    """Every config gives the right answer; the first that does not is named."""
    for config in configs:
        wrong = check(impl, config, problem).wrong
        assert wrong is None, f"{impl.title} {values(config)} {problem.dtype}: {wrong}"


def right_or_refused(impl: Impl, config: Any, problem: Posed) -> str | None:
    """Right, or refused by a ValueError with a sentence, which is returned: never wrong."""
    try:
        verify(impl, [config], problem)
    except ValueError as error:
        assert len(str(error).split()) >= 5, f"{impl.title}: {error!r} is no sentence"
        return str(error)
    return None


def verify_in_parts(impl: Impl, config: Any, spec: Spec, made: Sequence[Any], dtype: str) -> None:
    """As `verify`, for tensors too large to widen at once: the reference is computed for some of
    the first axis at a time, which must not be one that the operation sums over."""
    axis = next(iter(spec.outputs.values())).axes.split()[0]
    with Poisoned() as memory:
        outputs = as_tuple(impl(*made, config=config))
    assert memory.trespass() is None
    for low, high in _parts(spec, axis, made):
        tensors = [*spec.inputs.values()], [*spec.outputs.values()]
        some = [[_part(t, x, axis, low, high) for t, x in zip(ts, xs, strict=True)]
                for ts, xs in zip(tensors, (made, outputs), strict=True)]  # fmt: skip
        wrong = judge(some[1], Posed.given(spec, dtype, tuple(some[0]))).wrong
        assert wrong is None, f"{impl.title} {values(config)} from {axis} = {low}: {wrong}"


def _parts(spec: Spec, axis: str, made: Sequence[Any]) -> Iterator[tuple[int, int]]:
    held = [x for t, x in zip(spec.inputs.values(), made, strict=True) if _leads(t, axis)]
    extent, widest = held[0].shape[0], max(x[0].numel() for x in held)
    step = max(1, (1 << 27) // widest)
    return ((low, min(low + step, extent)) for low in range(0, extent, step))


def _leads(tensor: Tensor, axis: str) -> bool:
    return tensor.axes.split()[0] == axis


def _part(tensor: Tensor, x: Any, axis: str, low: int, high: int) -> Any:
    return x[low:high] if _leads(tensor, axis) else x


def bits(x: Any) -> Any:
    """The same memory as integers, in which NaN equals NaN and -0.0 is not 0.0."""
    return x.contiguous().view(BITS[x.element_size()])


H200 = DEVICES["h200"].limits
