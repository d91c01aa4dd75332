"""The one body of all kernel tests: which cases there are, how inputs lie in memory, what is right.

It knows no kernel by name. A new file in `workbench/kernels/` is tested by all of it, interpreted
on the CPU and on a live GPU; what only one operation promises stands in `properties/`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cache
from itertools import chain, combinations
from math import prod
from typing import Any

import torch
from hypothesis import strategies as st
from kernel_rounding import narrowed

from workbench import catalog
from workbench.device.hardware import DEVICES
from workbench.dsl import INTERPRETED
from workbench.measurement import inputs
from workbench.measurement.correctness import (
    Poisoned,
    PreparedProblem,
    check,
    check_outputs,
)
from workbench.measurement.inputs import torch_dtype
from workbench.measurement.reference import output_tuple
from workbench.spec import Extent, Impl, Limits, Sizes, Spec, stages, threads, values

ONLY = set(filter(None, os.environ.get("KERNELS", "").split(",")))
H200 = DEVICES["h200"].limits
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
MARGIN = 64  # elements of NaN before and behind an input: keeps it at a multiple of 16 bytes


def kernels() -> list[str]:
    """The built-in kernels, or those that KERNELS names: `KERNELS=softmax,copy`."""
    return [n for n in catalog.kernel_names() if not ONLY or n in ONLY]


@cache
def triton_impls() -> list[Impl]:
    """Every Triton Impl of every kernel whose file fits the format; that they do is a test. In the
    interpreter those that it cannot run are left out: `tests/unit/test_gluon.py` lists them."""
    specs = []
    for name in kernels():
        with suppress(catalog.CatalogError):
            specs.append(catalog.spec_of(name))
    impls = [impl for spec in specs for impl in spec.impls if impl.backend == "triton"]
    return [impl for impl in impls if not (INTERPRETED and impl.unchecked_reason)]


def applicable(impl: Impl, config: Any, sizes: Sizes, dtype: str, limits: Limits) -> str | None:
    """Why this config cannot run there, in a sentence; None when it can."""
    return impl.rejection_reason(config, limits, dtype, sizes)


# By the Impl's id and the limits; each Impl is held, so that its id stays its own. A dtype that an
# Impl does not take is refused by all of its configs, and several files ask for it.
_DTYPES: dict[tuple[int, Limits], tuple[Impl, list[str]]] = {}


def dtypes_of(impl: Impl, limits: Limits) -> list[str]:
    """Those that the Spec's tolerance names and the Impl takes at some size to check or to time. A
    tolerance may also be there for an output with a dtype of its own."""
    if (known := _DTYPES.get((id(impl), limits))) is None:
        every = (*impl.spec.check, *impl.spec.bench)
        taken = [
            dtype
            for dtype in impl.spec.tolerance
            if any(first_applicable(impl, sizes, dtype, limits) is not None for sizes in every)
        ]
        known = _DTYPES[id(impl), limits] = impl, taken
    return list(known[1])


def turn(of: Impl | Spec, choices: Sequence[Any], step: int = 0) -> Any:
    """One of several, another one for another Impl or Spec, and the same one in every run."""
    name = of.title if isinstance(of, Impl) else of.name
    return choices[(random.Random(name).randrange(1 << 16) + step) % len(choices)]


# Spills

# ptxas of Triton 3.9 takes a slot or two beside fewer registers than there are: 16 bytes of the
# launch for u of lora, which uses 56
SLOTS = 16
# Bytes that a thread of a default spills on an H200, by Impl and dtype, with the reason. In
# test_spills an entry that is not reached fails.
SPILLS = {
    ("attention.tiles", "fp16"): (64, "D = 72: loads of rows of 144 bytes; `overlapped` has none"),
    ("attention.tiles", "bf16"): (64, "D = 72: loads of rows of 144 bytes; `overlapped` has none"),
    ("attention.tiles", "fp32"): (64, "D = 72, and three bf16 parts of each number"),
    **{
        (f"{mask}attention_backward.{impl}", "fp32"): (most, "D = 128: three parts of each number")
        for mask, impl, most in (
            ("", "two_passes", 72),
            ("", "copied", 56),
            ("causal_", "two_passes", 104),
            ("causal_", "copied", 56),
        )
    },
    **{
        (f"{mask}attention_backward.{impl}", dtype): (most, "D = 128: the fastest all the same")
        for mask, impl, most in (
            ("", "two_passes", 56),
            ("", "copied", 40),
            ("causal_", "two_passes", 392),
            ("causal_", "copied", 384),
        )
        for dtype in ("fp16", "bf16")
    },
    **{
        (f"{mask}{kernel}", dtype): (most, reason)
        for mask, kernel, most, reason in (
            ("", "attention.ping_pong", 48, "D = 192 and 256, around the loop"),
            ("causal_", "attention.ping_pong", 80, "D = 192 and 256, around the loop"),
            ("", "attention_backward.warp_groups", 40, "D = 128: the fastest all the same"),
            ("causal_", "attention_backward.warp_groups", 88, "D = 128: the fastest all the same"),
        )
        for dtype in ("fp16", "bf16")
    },
    ("wkv6.chunked", "fp16"): (112, "two warps; four have none and took 1.06 to 1.15 of the time"),
    ("wkv6.chunked", "bf16"): (160, "two warps; four have none and took 1.06 to 1.15 of the time"),
    ("causal_attention.tiles", "fp32"): (
        128,
        "beside the mask; 16 keys spill nothing in 1.6 times the time",
    ),
    ("causal_attention.tiles", "fp16"): (56, "D = 72, as attention.tiles"),
    ("causal_attention.tiles", "bf16"): (56, "D = 72, as attention.tiles"),
    ("decode_attention.splits", "fp16"): (112, "D = 72: loads of rows of 144 bytes"),
    ("decode_attention.splits", "bf16"): (112, "D = 72: loads of rows of 144 bytes"),
    ("layer_norm.rows", "fp32"): (24, "N = 32768: 32 numbers in a thread of 64 registers"),
    ("lora.persistent", "fp32"): (48, "r = 64: three bf16 parts of u and B beside the sums"),
    ("patch_embed.tiles", "fp32"): (32, "K = 588: ragged loads beside three bf16 parts"),
    ("q4_k_matmul.tiles", "fp32"): (
        176,
        "three bf16 parts of weights and x; 92 us at 16x14336x4096, 673 on the vector units",
    ),
    ("q4_k_matmul.slices", "fp16"): (48, "over 8 rows of x: 128 registers, 16 warps to a core"),
    ("q4_k_matmul.slices", "bf16"): (32, "over 8 rows of x: 128 registers, 16 warps to a core"),
    ("softmax.clusters", "fp16"): (
        32,
        "64 registers, half of them x: 8 blocks to a core (3.9)",
    ),
    ("softmax.clusters", "bf16"): (
        32,
        "64 registers, half of them x: 8 blocks to a core (3.9)",
    ),
}


# Configs


def spread(
    impl: Impl,
    at: Sequence[tuple[Sizes, str]],
    limits: Limits,
    *,
    interpreted: bool = False,
    together: int = 1,
) -> list[tuple[Any, Sizes, str]]:
    """The fewest configs, drawn in one fixed order, that have every choice of every knob at least
    once (every pair of choices where `together` is 2), each with the first of the given sizes and
    dtypes that takes it.

    Warps and stages mean nothing to the interpreter: there, configs that differ in these alone
    count as one.
    """
    unseen = {threads.__name__, stages.__name__} if interpreted else set()
    seen = [f.name for f in fields(impl.config) if f.metadata["knob"].__name__ not in unseen]
    every = list({_key(c, seen): c for c in impl.space(impl.config())}.values())
    random.Random(impl.title).shuffle(every)
    chosen, have = [], set()
    for sizes, dtype in at:
        fit = [c for c in every if not applicable(impl, c, sizes, dtype, limits)]
        of = [combined(c, seen, together) for c in fit]
        missing = set().union(*of) - have
        while missing:
            i = max(range(len(fit)), key=lambda i: len(missing & of[i]))
            chosen.append((fit[i], sizes, dtype))
            have |= of[i]
            missing -= of[i]
    return chosen


def combined(config: Any, names: Sequence[str], together: int) -> set[tuple[Any, ...]]:
    """Return the choices of these knobs by so many at a time, each as (name, value)."""
    return set(combinations(_key(config, names), min(together, len(names))))


def _key(config: Any, names: Sequence[str]) -> tuple[tuple[str, int], ...]:
    return tuple((name, getattr(config, name)) for name in names)


def first_applicable(impl: Impl, sizes: Sizes, dtype: str, limits: Limits) -> Any:
    """The default on a device with these limits, or the first config that fits these sizes."""
    default = impl.default(limits, dtype, sizes)
    for config in chain([default], impl.space(impl.config())):  # the space is rarely asked
        if not applicable(impl, config, sizes, dtype, limits):
            return config
    return None


# Sizes

PRIMES = (2, 3, 5, 7, 13, 31, 61, 127, 131, 257, 509, 1021, 2039, 4093)


def middling(spec: Spec) -> Sizes:
    """The third size to check: neither the least nor the most."""
    return spec.check[min(2, len(spec.check) - 1)]


def elements(spec: Spec, sizes: Sizes) -> int:
    """Of all inputs and outputs together."""
    return sum(prod(t.shape(sizes)) for t in (*spec.inputs.values(), *spec.outputs.values()))


def sizes_of(spec: Spec, share: float = 1.0) -> st.SearchStrategy[dict[str, int]]:
    """Any sizes that there can be, no axis longer and no more elements in all (or a share of them)
    than the sizes to check have: so the interpreter is done with them about as soon."""
    most = int(share * max(elements(spec, sizes) for sizes in spec.check))
    drawn = st.fixed_dictionaries({axis: _extent_of(spec, axis) for axis in spec.axes})
    return drawn.map(lambda sizes: bounded(spec, sizes, most)).filter(lambda s: _whole(spec, s))


def _extent_of(spec: Spec, axis: str) -> st.SearchStrategy[int]:
    """Of 1, of the sizes to check, of primes, of multiples of 8, powers of two and beside them."""
    there = [sizes[axis] for sizes in spec.check]
    extent, high = spec.extents.get(axis, Extent()), max(there)
    if extent.choices:
        return st.sampled_from(extent.choices)
    if extent.multiple > 1:
        return st.integers(1, high // extent.multiple).map(lambda n: n * extent.multiple)
    some = st.integers(1, high)
    near = {(1 << e) + d for e in range(high.bit_length()) for d in (-1, 0, 1)}
    of = sorted(n for n in {*near, *PRIMES, *there} if 0 < n <= high)
    eights = some.map(lambda n: min(max(8, n - n % 8), high))
    return st.one_of(st.sampled_from(of), some, eights)


def bounded(spec: Spec, sizes: Sizes, most: int) -> dict[str, int]:
    """These sizes, with the longest free axes halved until there are at most so many elements."""
    now = spec.nearest_sizes(sizes)
    while _whole(spec, now) and elements(spec, now) > most:
        axis = max(
            (a for a in now if not _extent(spec, a).choices), key=now.__getitem__, default=""
        )
        less = {**now, axis: now[axis] // 2} if axis else now
        if spec.nearest_sizes(less) == now:
            break
        now = spec.nearest_sizes(less)
    return now


def _extent(spec: Spec, axis: str) -> Extent:
    return spec.extents.get(axis, Extent())


def _whole(spec: Spec, sizes: Sizes) -> bool:
    try:
        return spec.refuse(sizes) is None and elements(spec, sizes) > 0
    except ValueError:
        return False


def taken(impl: Impl, config: Any, sizes: Sizes, dtype: str, limits: Limits) -> tuple[Any, Sizes]:
    """The config at these sizes, where it applies; else another at them; else some config at
    rounded ones, or at the last resort at sizes that the Spec names."""
    spec = impl.spec
    if not applicable(impl, config, sizes, dtype, limits):
        return config, sizes
    most = max(elements(spec, at) for at in spec.check)
    rounded = [
        spec.nearest_sizes(
            {a: n if _stays(spec, a, n, by) else n + -n % by for a, n in sizes.items()}
        )
        for by in (8, 16, 32)
    ]
    # eight of all of eight axes are more than the interpreter is soon done with
    rounded = [at for at in rounded if _whole(spec, at) and elements(spec, at) <= most]
    named = [middling(spec), *spec.check]
    for other in (sizes, *rounded, *named):
        result = first_applicable(impl, other, dtype, limits) if _whole(spec, other) else None
        if result is not None:
            return result, other
    raise AssertionError(f"{impl.title} takes no size to check in {dtype}")


def _stays(spec: Spec, axis: str, extent: int, by: int) -> bool:
    """Whether an axis is not rounded: it may be one of a few, or it counts heads, say, and no
    bytes of a row."""
    return bool(_extent(spec, axis).choices) or (len(spec.axes) > 3 and extent < by)


def square(
    impl: Impl, extent: int, dtype: str, limits: Limits, *, least: bool = False
) -> tuple[Any, Sizes]:
    """The default config, or the one of the least tiles, and sizes that are about this extent along
    every axis, where they can be; no axis is longer than the sizes to check have it."""
    spec = impl.spec
    sizes = {a: min(extent, max(s[a] for s in spec.check)) for a in spec.axes}
    most = max(elements(spec, s) for s in spec.check)
    sizes = bounded(spec, sizes, most)
    default = impl.default(limits, dtype, sizes)
    config, sizes = taken(impl, default, sizes, dtype, limits)
    every = impl.space(config) if least else ()
    fit = (c for c in every if not applicable(impl, c, sizes, dtype, limits))
    return next(fit, config), sizes


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
        for dtype in dtypes_of(impl, limits)
    )
    return [c for c in every if first_applicable(c.impl, c.sizes, c.dtype, limits) is not None]


def is_one_of_each(impl: Impl) -> bool:
    """Return whether an Impl is the one of its kernel that stands for it in every run."""
    return impl is turn(impl.spec, [i for i in triton_impls() if i.spec is impl.spec])


def is_by_day(case: Case, every: Sequence[Case]) -> bool:
    """Return whether each run has a case: the middling size in all dtypes, another in one of
    them."""
    spec = case.impl.spec
    ours = [c for c in every if c.impl is case.impl and c.sizes == case.sizes]
    return case.sizes == middling(spec) or case is turn(
        case.impl, ours, spec.check.index(case.sizes)
    )


def named(part: Any) -> str:
    """Of an Impl, a property or anything else, for the title of a test."""
    return getattr(part, "title", None) or getattr(part, "__name__", None) or str(part)


# Inputs: their values


def filled(spec: Spec, sizes: Sizes, dtype: str, kind: str, device: str, seed: int) -> list[Any]:
    """Inputs of one kind of value; an input with a maker of its own keeps what that makes."""
    generator = torch.Generator(device=device).manual_seed(seed)
    created = inputs.make(spec, sizes, dtype, device, seed)
    return [
        x if t.make is not None or not x.is_floating_point() else VALUES[kind](x, generator)
        for t, x in zip(spec.inputs.values(), created, strict=True)
    ]


def _grid(x: Any, exponent: int = 0) -> Any:
    # multiples of 1/8 up to 4: few bits, so that sums of products stay exact in fp32
    exact = ((x.double() * 8).round() / 8).clamp(-4, 4)
    room = int(torch.tensor(torch.finfo(x.dtype).max).log2()) - 2  # fp8 ends at 448
    return exact.mul(2.0 ** min(exponent, room)).to(x.dtype)


def _denormal(x: Any, generator: Any) -> Any:
    if INTERPRETED and x.dtype == torch.bfloat16:
        return _grid(x, -10)  # Triton's interpreter (3.6.0, 3.9.0) garbles bf16 denormals
    info = torch.finfo(x.dtype)
    most = round(1 / info.eps) if info.bits == 8 else 100
    steps = torch.randint(-most, most + 1, x.shape, generator=generator, device=x.device)
    return (steps.double() * (info.smallest_normal * info.eps)).to(x.dtype)


VALUES: Mapping[str, Callable[[Any, Any], Any]] = {
    "made": lambda x, g: x,  # standard normal
    "ordinary": lambda x, g: _grid(x),
    "large": lambda x, g: _grid(x, 10),
    "tiny": lambda x, g: _grid(x, -10),
    "denormal": _denormal,
    "zero": lambda x, g: torch.zeros_like(x),
    "constant": lambda x, g: _grid(x).flatten()[0].expand(x.shape).clone(),
}


def well_posed(problem: PreparedProblem) -> bool:
    """Whether plain fp32 arithmetic answers within the tolerance. Where it does not (the scores of
    large attention inputs differ by more than fp32 resolves), nobody's answer says anything."""
    narrow = (x.float() if x.is_floating_point() else x.clone() for x in problem.inputs)
    kinds = [t.dtype or problem.dtype for t in problem.spec.outputs.values()]
    text = output_tuple(problem.spec.reference(*narrow))
    rounded = [x.to(torch_dtype(kind)) for x, kind in zip(text, kinds, strict=True)]
    return check_outputs(rounded, problem).wrong is None


# Inputs: how they lie in memory. Whatever is not part of the input is NaN.


def _within(x: Any, extents: Sequence[int], before: int = MARGIN) -> Any:
    """Fresh memory of these extents, full of NaN, between two margins of NaN."""
    count = prod(extents)
    flat = torch.empty(before + count + MARGIN, dtype=x.dtype, device=x.device)
    flat.fill_(float("nan") if x.is_floating_point() else 0x5A)
    return flat[before : before + count].view(*extents)


def _dense(x: Any) -> Any:
    return _within(x, x.shape).copy_(x)


def _offset(x: Any) -> Any:
    return _within(x, x.shape, MARGIN + 1).copy_(x)


def _transposed(x: Any) -> Any:
    return _within(x, x.shape[::-1]).permute(*reversed(range(x.dim()))).copy_(x)


def _heads_first(x: Any) -> Any:
    if x.dim() < 4:
        return _dense(x)
    return _within(x, x.transpose(1, 2).shape).transpose(1, 2).copy_(x)


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
    "heads_first": _heads_first,  # B S H D in memory as B H S D
    "every_second": _every_second,
    "padded": _padded,
    "expanded": _expanded,  # stride 0
}


# By an Impl's title and an input the layouts that it may refuse: `properties/` enters them. Every
# other layout it must take. Negative strides need no entry: torch itself refuses them.
REFUSED: dict[tuple[str, str], frozenset[str]] = {}


def laid(spec: Spec, compiled: Sequence[Any], layouts: Sequence[str]) -> tuple[Any, ...]:
    """Each input in its layout. Expanding would change the values that a maker means."""
    tensors = zip(spec.inputs.values(), compiled, layouts, strict=True)
    hows = [
        "dense" if how == "expanded" and (t.make is not None or not x.is_floating_point()) else how
        for t, x, how in tensors
    ]
    return tuple(LAYOUTS[how](x) if x.dim() else x for how, x in zip(hows, compiled, strict=True))


def far(x: Any, axis: int) -> Any:
    """A view of the same values whose last one along `axis` lies over 2^31 elements behind the
    first. On a CPU the memory between is asked for and never touched."""
    strides = far_strides(x.shape, axis)
    last = sum(stride * (extent - 1) for stride, extent in zip(strides, x.shape, strict=True))
    flat = torch.empty(last + 1, dtype=x.dtype, device=x.device)
    return flat.as_strided(x.shape, strides).copy_(x)


def far_strides(shape: Sequence[int], axis: int) -> list[int]:
    """Strides of a dense tensor, but with over 2^31 elements between the ends of an axis."""
    others = [i for i in range(len(shape)) if i != axis]
    stride = max(-(-((1 << 31) + 8) // (shape[axis] - 1)), prod(shape[i] for i in others))
    strides, inner = [0] * len(shape), 1
    for i in reversed(others):
        strides[i], inner = inner, inner * shape[i]
    strides[axis] = stride + -stride % 16  # descriptors want multiples of 16 bytes
    return strides


def far_axes(impl: Impl, compiled: Sequence[Any]) -> list[tuple[int, int]]:
    """For each input its first axis and one other along which `far` can stretch it. What a launch
    changes is copied with all that lies between, which would be 4 GB."""
    results = []
    for which, (name, x) in enumerate(zip(impl.spec.inputs, compiled, strict=True)):
        axes = [axis for axis in range(x.dim()) if x.shape[axis] > 1]
        if axes and name not in impl.mutates:
            results += [(which, axis) for axis in {axes[0], turn(impl, axes[1:] or axes, which)}]
    return results


def prepared(spec: Spec, dtype: str, placed: Sequence[Any]) -> PreparedProblem:
    """The problem that inputs pose wherever they lie: the reference sees plain copies."""
    copies = tuple(x.clone() for x in placed)
    return PreparedProblem(
        spec, dtype, tuple(placed), PreparedProblem.wrap(spec, dtype, copies).expected_outputs
    )


# Verdicts


def verify(impl: Impl, configs: Sequence[Any], problem: PreparedProblem) -> None:
    """Every config gives the right answer; the first that does not is named. In the interpreter,
    whose arithmetic is fp32, right is what lies within one rounding."""
    problem = narrowed(impl, problem) if INTERPRETED else problem
    for config in configs:
        wrong = check(impl, config, problem).wrong
        assert wrong is None, f"{impl.title} {values(config)} {problem.dtype}: {wrong}"


def right_or_refused(impl: Impl, config: Any, problem: PreparedProblem) -> str | None:
    """Right, or refused by a ValueError with a sentence, which is returned: never wrong."""
    return refusal_of(impl, lambda: verify(impl, [config], problem))


def refusal_of(impl: Impl, tried: Callable[[], None]) -> str | None:
    """The sentence of the ValueError that a launch raises; None where it raises none."""
    try:
        tried()
    except ValueError as error:
        assert len(str(error).split()) >= 5, f"{impl.title}: {error!r} is no sentence"
        return str(error)
    return None


def right_in_any_layout(
    impl: Impl, config: Any, compiled: Sequence[Any], layout: str, dtype: str
) -> set[str]:
    """All inputs in this layout, and where that is refused, each of them alone: right, or refused
    where `REFUSED` says so. Returns the inputs that are refused so."""
    spec, dense = impl.spec, ["dense"] * len(compiled)
    measure_interleaved = prepared(spec, dtype, laid(spec, compiled, [layout] * len(compiled)))
    refusal = right_or_refused(impl, config, measure_interleaved)
    if refusal is None:
        return set()
    refused = set()
    for which, name in enumerate(spec.inputs):
        alone = laid(spec, compiled, [*dense[:which], layout, *dense[which + 1 :]])
        if right_or_refused(impl, config, prepared(spec, dtype, alone)) is not None:
            refused.add(name)
    text = {name for name in refused if layout in REFUSED.get((impl.title, name), ())}
    assert refused and refused == text, f"{impl.title} must take {layout} inputs: {refusal}"
    return refused


def bits(x: Any) -> Any:
    """The same memory as integers, in which NaN equals NaN and -0.0 is not 0.0."""
    return x.contiguous().view(BITS[x.element_size()])


# Large tensors: a problem repeated along an axis whose indices have nothing to do with each other


def leads(axes: str, axis: str) -> bool:
    """Whether a tensor's first axis is this one, alone."""
    return axes.split()[:1] == [axis]


def parting_axis(
    spec: Spec, problem: Callable[[Sizes], PreparedProblem], sizes: Sizes
) -> tuple[str, int] | None:
    """An axis that leads all outputs and, repeated, repeats them (a batch, rows), and the extent of
    which that takes a multiple. None where there is none, as in a sum over rows."""
    axis = next(iter(spec.outputs.values())).axes.split()[0]
    free = axis in spec.axes and axis not in spec.extents
    if not free or not all(leads(t.axes, axis) for t in spec.outputs.values()):
        return None
    inside = [t for t in spec.inputs.values() if axis in t.axes.split()]
    if not inside or not all(leads(t.axes, axis) and t.axes.count(axis) == 1 for t in inside):
        return None
    for extent, of in ((3, 1), (sizes[axis], sizes[axis])):
        small = problem({**sizes, axis: extent})
        twice = output_tuple(spec.reference(*map(_wide, repeated(spec, small.inputs, axis, 2))))
        if all(map(_alike, twice, (repetition(e, 2) for e in small.expected_outputs))):
            return axis, of
    return None


def repetition(x: Any, times: int) -> Any:
    """A tensor so many times behind itself."""
    return x.repeat(times, *[1] * (x.dim() - 1))


def _alike(x: Any, y: Any) -> bool:
    # an input that counts rows (where groups end, say) is not repeated: fewer rows come out
    return x.shape == y.shape and torch.allclose(x.double(), y.double(), equal_nan=True)


def _wide(x: Any) -> Any:
    return x.double() if x.is_floating_point() else x


def repeated(spec: Spec, compiled: Sequence[Any], axis: str, times: int) -> list[Any]:
    """Inputs that have the axis, so many times one behind the other."""
    return [
        repetition(x, times) if leads(t.axes, axis) else x
        for t, x in zip(spec.inputs.values(), compiled, strict=True)
    ]


def verify_repeated(
    impl: Impl, config: Any, small: PreparedProblem, axis: str, times: int, at_once: int
) -> None:
    """The launch on the problem repeated along an axis: each repetition has the small answer. So
    many of them are compared at once."""
    created = repeated(impl.spec, small.inputs, axis, times)
    with Poisoned() as memory:
        outputs = output_tuple(impl(*created, config=config))
    assert memory.trespass() is None
    extent = small.expected_outputs[0].shape[0]
    for first in range(0, times, at_once):
        count = min(at_once, times - first)
        expected = tuple(repetition(e, count) for e in small.expected_outputs)
        part = [y[first * extent : (first + count) * extent] for y in outputs]
        wrong = check_outputs(part, PreparedProblem(impl.spec, small.dtype, (), expected)).wrong
        assert wrong is None, (
            f"{impl.title} {values(config)} from {axis} = {first * extent}: {wrong}"
        )
