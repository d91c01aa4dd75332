"""Choose sizes that fill the space of a kernel's sizes, for a calibration.

The space is the box around the sizes that the kernel's file names to time, in octaves of each axis,
and one octave more where an axis is long.
Points of a Halton sequence (Halton 1960), which covers a box evenly however many are taken, are
rounded to extents as users have them; those that the kernel refuses, or that would take too long or
too little, are left out.
"""

import math
from collections.abc import Iterator

from workbench.device.bounds import bound_s
from workbench.device.correction import is_aligned
from workbench.device.hardware import Device
from workbench.spec import Sizes, Spec

PRIMES = (2, 3, 5, 7, 11, 13, 17, 19)
FIGURES = 4  # bits of an extent that are kept: 1536 and 14336 have that few
ALIGNED = 16  # larger extents are multiples of it
LEAST_S, MOST_S = 2e-7, 2e-3  # of the roofline bound of a call
MOST_BYTES = 4 << 30  # inputs rotate through three times the cache
LONG = 10  # octaves: an axis of 1024
TRIES = 4096  # points of the sequence


def design(spec: Spec, dtype: str, device: Device, count: int) -> list[dict[str, int]]:
    """Return at most `count` different sizes. Equal arguments give equal sizes, and fewer of them
    are the first of more."""
    sizes: dict[tuple[int, ...], dict[str, int]] = {}
    for point in _points(spec):
        if len(sizes) == count:
            break
        if _is_fit(spec, dtype, device, point):
            sizes.setdefault(tuple(point.values()), point)
    return list(sizes.values())


def _points(spec: Spec) -> Iterator[dict[str, int]]:
    """Yield sizes inside of the box around those that the Spec times."""
    axes = list(spec.bench[0])
    low = {a: math.log2(min(s[a] for s in spec.bench)) for a in axes}
    high = {a: math.log2(max(s[a] for s in spec.bench)) for a in axes}
    high = {a: x + (x >= LONG and x > low[a]) for a, x in high.items()}
    free = [a for a in axes if high[a] > low[a]]
    for i in range(1, TRIES):
        at = {a: halton(i, PRIMES[free.index(a) % len(PRIMES)]) for a in free}
        exact = {a: 2 ** (low[a] + at.get(a, 0.0) * (high[a] - low[a])) for a in axes}
        yield spec.nearest_sizes({a: round_extent(x) for a, x in exact.items()})


def halton(i: int, base: int) -> float:
    """Return the i-th number of van der Corput's sequence in a base: its digits, mirrored at the
    point."""
    result, share = 0.0, 1.0
    while i:
        share /= base
        i, digit = divmod(i, base)
        result += share * digit
    return result


def round_extent(extent: float) -> int:
    """Return the nearest extent of four binary figures; from 64 on a multiple of 16."""
    step = 2.0 ** max(0, math.floor(math.log2(extent)) - FIGURES + 1)
    if extent >= 64:
        step = max(step, ALIGNED)
    return max(1, round(extent / step) * int(step))


def _is_fit(spec: Spec, dtype: str, device: Device, sizes: Sizes) -> bool:
    """Return whether the kernel takes these sizes, and one of its Triton kernels at its default,
    their rows are aligned, and a call is neither too long nor too short to time many configs."""
    if spec.refuse(sizes) is not None:
        return False
    try:
        moved, flops = spec.bytes(sizes, dtype), spec.flops(**sizes)
        if not is_aligned(spec, sizes):
            return False
    except ValueError:  # an axis is not a whole number there
        return False
    least_s = bound_s(device, moved, flops, dtype)
    if spec.held_bytes(sizes, dtype) > MOST_BYTES or not (LEAST_S <= least_s <= MOST_S):
        return False
    own = (impl for impl in spec.impls if impl.backend == "triton")
    defaults = ((impl, impl.default(device.limits, dtype, sizes)) for impl in own)
    return any(i.rejection_reason(c, device.limits, dtype, sizes) is None for i, c in defaults)
