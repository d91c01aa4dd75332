"""Problems of more than 2^31 elements, and the few indices of them that are compared.

A reference of all of it would not fit. But along some axes a part of the inputs gives a part of the
outputs (rows of a norm, rows and columns of a product): windows of a few indices at the start of
such axes, around element 2^31 of the largest tensor, and at their ends. Which axes part is decided
by the reference itself, at small sizes.
"""

import re
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import prod

import torch
from kernel_cases import first_applicable, middling

from workbench import catalog
from workbench.dsl import normal
from workbench.measurement import inputs
from workbench.measurement.correctness import Poisoned, PreparedProblem, check_outputs
from workbench.measurement.inputs import torch_dtype
from workbench.measurement.reference import output_tuple, reference_outputs
from workbench.spec import ITEMSIZE, Extent, Tolerance, sizes_text

BEYOND = (1 << 31) + (1 << 20)  # elements
FLOPS = 2e14  # of a launch: half a second of an H100's bf16
WINDOW_FLOPS = 2e10  # of a window's reference, in float64
WIDE = 150_000_000  # elements of a window in float64: 1.2 GB
INDICES = 4  # of an axis in a window
# Sums over a longer axis round more often; what reads or writes another place is off by the rms.
LAX = {dtype: Tolerance(relative=2e-2, rms_share=2e-2) for dtype in ITEMSIZE}
# Inputs that hold indices of an axis: those of a part begin at its first one.
SHIFTED = {("grouped_matmul", "ends", "T"): lambda x, low, high: (x - low).clamp(0, high - low)}
# Inputs that a part needs whole: rows that others look up.
WHOLE = {("rope", "cos", "S"), ("rope", "sin", "S")}
# What is not lengthened along an axis along which no window parts it, and the reason.
LEFT_OUT = {
    ("wkv6", "T"): "its reference is a loop over T in Python",
    ("wkv7", "T"): "its reference is a loop over T in Python",
    ("sample_top_p", "V"): "sums of so many probabilities in fp32 decide for other tokens",
    ("sample_topk_topp", "V"): "sums of so many probabilities in fp32 decide for other tokens",
}


def names(axis):
    return re.findall(r"[A-Za-z_]\w*", axis)


def unit(spec, axis):
    return spec.extents.get(axis, Extent()).multiple


def tensors(spec):
    return {**spec.inputs, **spec.outputs}


def long_axes(spec):
    """Axes of any length, those of the first output first."""
    axes = [a for a in spec.axes if not spec.extents.get(a, Extent()).choices]
    first = names(next(iter(spec.outputs.values())).axes)
    return sorted(axes, key=lambda a: first.index(a) if a in first else len(first))


# Parts of tensors


def part(tensor, x, window, sizes):
    """A view of a tensor: these indices `(low, high)` of each axis of the window."""
    for dim, text in enumerate(tensor.axes.split()):
        for axis in set(names(text)) & set(window):
            # products are evaluated with the extent of this axis replaced
            low, high = (tensor.shape({**sizes, axis: n})[dim] for n in window[axis])
            x = x.narrow(dim, low, high - low)
    return x


def parts(spec, xs, window, sizes):
    """The inputs' parts."""
    results = []
    for (name, tensor), x in zip(spec.inputs.items(), xs, strict=True):
        cut = {a: at for a, at in window.items() if (spec.name, name, a) not in WHOLE}
        x = part(tensor, x, cut, sizes)
        for axis, (low, high) in window.items():
            if shift := SHIFTED.get((spec.name, name, axis)):
                x = shift(x, low, high)
        results.append(x)
    return results


@cache
def parted(name, axis):
    """The axis of whose extent windows are multiples (itself: of its unit), and the outputs that
    they part; None where no part of the inputs gives a part of an output."""
    spec = catalog.spec_of(name)
    base = middling(spec)
    for of in (axis, *(a for a in base if a != axis)):
        step = step_of(spec, axis, of, base)
        sizes = {**base, axis: 3 * step}
        if step % unit(spec, axis) or spec.refuse(sizes):
            continue
        right = [agree(spec, sizes, axis, low, low + step) for low in (0, step, 2 * step)]
        outputs = tuple(n for n in spec.outputs if all(n in one for one in right))
        if outputs:
            return of, outputs
    return None


def step_of(spec, axis, of, sizes):
    """The indices of which windows along an axis are multiples."""
    return unit(spec, axis) if of == axis else sizes[of]


def agree(spec, sizes, axis, low, high):
    """The outputs of which a window along an axis is the reference of the inputs' window."""
    xs, window = inputs.make(spec, sizes, next(iter(spec.tolerance)), "cpu", seed=7), {}
    window[axis] = low, high
    try:
        whole = reference_outputs(spec, xs)
        alone = output_tuple(spec.reference(*map(wide, parts(spec, xs, window, sizes))))
        cut = [part(t, y, window, sizes) for t, y in zip(spec.outputs.values(), whole, strict=True)]
    except (ValueError, RuntimeError, IndexError):  # no such part
        return set()
    return {
        name
        for (name, tensor), a, b in zip(spec.outputs.items(), cut, alone, strict=True)
        if axis in names(tensor.axes) and a.shape == b.shape and same(a, b)
    }


def wide(x):
    return x.double().clone() if x.is_floating_point() else x.clone()


def same(a, b):
    return torch.allclose(a.double(), b.double(), rtol=1e-9, atol=1e-12, equal_nan=True)


def laxer(one, other):
    """The larger part of each of two tolerances."""
    at = ("relative", "rms_share")
    return replace(one, **{name: max(getattr(one, name), getattr(other, name)) for name in at})


# Problems


@dataclass(frozen=True)
class Large:
    """An Impl at sizes of which a tensor has over 2^31 elements, and the axes that part it."""

    impl: object
    config: object
    sizes: dict
    dtype: str
    windows: dict  # (low, high) of each of these axes, by place
    outputs: tuple  # those that are compared
    lax: bool  # a sum runs along the lengthened axis

    @property
    def bytes(self):
        """Of the tensors, of what a maker needs beside one (10 bytes an element), of partial
        sums of the outputs in fp32, and of the windows' references."""
        spec, at = self.impl.spec, self.sizes
        own = [prod(t.shape(at)) for t in spec.inputs.values() if t.make not in (None, normal)]
        sums = sum(prod(t.shape(at)) for t in spec.outputs.values())
        return spec.bytes(at, self.dtype) + max([10 * n for n in own] + [4 * sums]) + (6 << 30)


def made(spec, sizes, dtype, device):
    """Inputs as `inputs.make` has them, but normal values in place: without a copy in fp32."""
    generator = torch.Generator(device=device).manual_seed(8)
    results = []
    for tensor in spec.inputs.values():
        shape, kind = tensor.shape(sizes), torch_dtype(tensor.dtype or dtype)
        if tensor.make not in (None, normal):
            results.append(tensor.make(shape, kind, device, generator))
        elif kind.itemsize > 1:
            empty = torch.empty(shape, dtype=kind, device=device)
            results.append(empty.normal_(generator=generator))
        else:
            x = torch.empty(shape, dtype=torch.bfloat16, device=device)
            results.append(x.normal_(generator=generator).to(kind))
    return results


def enlarged(impl, axis, dtype, limits, beyond=BEYOND, bases=None, most=60e9):
    """The problem at one of these sizes, those to time and to check, with the axis lengthened; or a
    sentence that says why there is none."""
    spec = impl.spec
    own = parted(spec.name, axis)
    if own is None and (reason := LEFT_OUT.get((spec.name, axis))):
        return reason
    found = {a: p for a in (axis, *long_axes(spec)) if (p := parted(spec.name, a))}
    if not found:
        return f"no axis parts {spec.name}"
    outputs = next(iter(found.values()))[1]
    parting = {a: of for a, (of, some) in found.items() if set(outputs) <= set(some)}
    reasons = []
    for base, multiple in product(bases or (*spec.bench, *reversed(spec.check)), (1, 64)):
        sizes = lengthened(spec, base, axis, parting, beyond, multiple)
        if sizes is None or spec.flops(**sizes) > FLOPS:
            continue
        steps = {a: step_of(spec, a, of, sizes) for a, of in parting.items()}
        wide_enough = {a: step for a, step in steps.items() if sizes[a] >= 3 * step}
        windows = windows_of(spec, sizes, wide_enough, beyond)
        config = first_applicable(impl, sizes, dtype, limits)
        large = Large(impl, config, sizes, dtype, windows, outputs, own is None)
        reason = refused(large, limits, most)
        if reason is None:
            return large
        reasons.append(reason)
    return next(iter(reasons), f"{spec.name} has no sizes that suit a longer {axis}")


def refused(large, limits, most):
    """Why a problem cannot be checked, in a sentence; None where it can."""
    impl, spec, sizes = large.impl, large.impl.spec, large.sizes
    if large.config is None:
        default = impl.default(limits, large.dtype, sizes)
        return str(impl.rejection_reason(default, limits, large.dtype, sizes))
    cut = {**sizes, **{a: high - low for a, (low, high) in large.windows["start"].items()}}
    if elements(spec, cut) > WIDE or spec.flops(**cut) > WINDOW_FLOPS:
        return f"a window of {spec.name} at {sizes_text(sizes)} has too large a reference"
    if large.bytes > most:
        return f"{spec.name} at {sizes_text(sizes)} takes {large.bytes / 1e9:.0f} GB"
    return None


def elements(spec, sizes):
    return sum(prod(t.shape(sizes)) for t in tensors(spec).values())


def lengthened(spec, base, axis, parting, beyond, multiple):
    """These sizes with an axis so long, in multiples, that a tensor has more than `beyond`
    elements; where the axis does not part, the first that does is so long that a window has a small
    share of each tensor. None where the Spec has no such sizes."""
    sizes = dict(base)
    if axis not in parting:
        first = next(iter(parting))
        sizes[first] = max(sizes[first], 64 * unit(spec, first))
    step = step_of(spec, axis, parting.get(axis, axis), sizes)
    try:
        short, long = ({**sizes, axis: n * step} for n in (1, 2))
        each = [prod(t.shape(long)) - prod(t.shape(short)) for t in tensors(spec).values()]
    except ValueError:
        return None
    steps_needed = beyond // max(1, max(each)) + 1
    sizes[axis] = max(sizes[axis], (steps_needed + -steps_needed % multiple) * step)
    sizes = spec.nearest_sizes(sizes)
    return sizes if spec.refuse(sizes) is None and sizes[axis] <= spec.longest else None


def windows_of(spec, sizes, steps, beyond):
    """`(low, high)` of each of these axes: at the start, around element 2^31, and at the end."""
    largest = max(tensors(spec).values(), key=lambda t: prod(t.shape(sizes)))
    rest, middle = min(beyond, 1 << 31), {}
    for text, extent in reversed(
        list(zip(largest.axes.split(), largest.shape(sizes), strict=True))
    ):
        rest, index = divmod(rest, extent)
        for axis in names(text):
            middle[axis] = index * sizes[axis] // extent
    results = {"start": {}, "middle": {}, "end": {}}
    for axis, step in steps.items():
        many = min(max(1, INDICES // step), sizes[axis] // step) * step
        last = (sizes[axis] - many) // step * step
        around = max(0, min(middle.get(axis, last // 2) - many // 2, last)) // step * step
        for place, low in (("start", 0), ("middle", around), ("end", last)):
            results[place][axis] = low, low + many
    return results


def verify_windows(large, device):
    """Launch once; each window is right, and nothing was written outside the outputs."""
    impl, spec, sizes = large.impl, large.impl.spec, large.sizes
    kept = {n: spec.outputs[n] for n in large.outputs}
    tolerance = {d: laxer(t, LAX[d]) for d, t in spec.tolerance.items()}
    of_kept = replace(spec, outputs=kept, tolerance=tolerance if large.lax else spec.tolerance)
    xs, wanted, memory = made(spec, sizes, large.dtype, device), {}, Poisoned()
    for place, window in large.windows.items():  # before the launch, which may change an input
        whole = output_tuple(spec.reference(*map(wide, parts(spec, xs, window, sizes))))
        named = dict(zip(spec.outputs, whole, strict=True))
        wanted[place] = tuple(named[n].clone() for n in kept)
    with memory:
        outputs = output_tuple(impl(*xs, config=large.config))
    outputs = dict(zip(spec.outputs, outputs, strict=True))
    for place, window in large.windows.items():
        cut = [part(tensor, outputs[n], window, sizes) for n, tensor in kept.items()]
        problem = PreparedProblem(of_kept, large.dtype, (), wanted[place])
        wrong = check_outputs(cut, problem).wrong
        at = f"{impl.title} {large.config} at {sizes_text(sizes)}, {place} {window}"
        assert wrong is None, f"{at}: {wrong}"
    assert memory.trespass() is None
