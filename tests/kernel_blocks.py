"""Sizes at which a block of each length is met again: the second trip of a loop, a ragged last one.

The sizes to check are short, so that a block of 16384 there is the whole of every axis.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

from kernel_cases import applicable, elements

from workbench.spec import Extent, Impl, Limits, Sizes, tile

SHORT = 1024  # up to here three blocks, of which the third carries what two have left
TRIPS = (1, 2, 4, 8)  # of as many blocks, where a loop of several programs shares them
MOST = 4  # times the elements that the largest size to check has


def met_again(
    impl: Impl, dtypes: Sequence[str], limits: Limits
) -> Iterator[tuple[Any, dict[str, int], str]]:
    """For each length of each block a config, sizes and a dtype, in turn, that take it twice and
    a ragged part; nothing for a length that no sizes take, as a whole row in registers."""
    every = list(impl.space(impl.config()))
    random.Random(impl.title).shuffle(every)
    knobs = [f.name for f in fields(impl.config) if f.metadata["knob"] is tile]
    turn = 0
    for name in knobs:
        for value in sorted({getattr(c, name) for c in every} - {0}):
            some = [c for c in every if getattr(c, name) == value]
            for axis in axes_of(impl, name):
                dtype = dtypes[turn % len(dtypes)]
                result = first_met_again(impl, some, value, axis, dtype, limits, odd=turn % 2)
                if result:
                    turn += 1
                    yield *result, dtype


def axes_of(impl: Impl, knob: str) -> list[str]:
    """The axis that a block is named after; or else all that may have any length."""
    spec = impl.spec
    free = [axis for axis in spec.axes if not spec.extents.get(axis, Extent()).choices]
    named = [axis for axis in free if axis.lower() == knob.rpartition("_")[2]]
    return named or free


def first_met_again(
    impl: Impl,
    configs: Sequence[Any],
    value: int,
    axis: str,
    dtype: str,
    limits: Limits,
    *,
    odd: int,
) -> tuple[Any, dict[str, int]] | None:
    """The first of these configs and the shortest axis at which the launch does more than for a
    single block."""
    spec = impl.spec
    most = MOST * max(elements(spec, sizes) for sizes in spec.check)
    for trips in TRIPS:
        # half a block more; 3 elements beyond it, too, where a row may end anywhere
        length = value * (trips + (value <= SHORT)) + value // 2
        eights = {a: n + -n % 16 for a, n in least(impl).items()}  # where a descriptor is needed
        for others, extent in (
            (least(impl), length + 3 * odd),
            (least(impl), length),
            (eights, length),
        ):
            sizes = spec.nearest_sizes({**others, axis: extent})
            if spec.refuse(sizes) or elements(spec, sizes) > most:
                continue
            fit = (c for c in configs if not applicable(impl, c, sizes, dtype, limits))
            config = next(fit, None)
            if config is not None and several(impl, config, sizes, axis, value, dtype, limits):
                around = {**sizes, **blocks(config, sizes, axis)}
                fits = not odd and elements(spec, around) <= most and not spec.refuse(around)
                if fits and not applicable(impl, config, around, dtype, limits):
                    return config, around
                return config, sizes
    return None


def blocks(config: Any, sizes: Sizes, axis: str) -> dict[str, int]:
    """Along each other axis one whole block: only there are masks left out, along this one too
    where it is taken for whole."""
    edges = {a: getattr(config, f"block_{a.lower()}", 0) for a in sizes if a != axis}
    return {a: edge for a, edge in edges.items() if edge}


def least(impl: Impl) -> Sizes:
    """The fewest elements that are checked, but for the very least sizes."""
    spec = impl.spec
    return min(spec.check[1:] or spec.check, key=lambda sizes: elements(spec, sizes))


def several(
    impl: Impl, config: Any, sizes: Sizes, axis: str, value: int, dtype: str, limits: Limits
) -> bool:
    """Whether there are more trips, or more tiles, than along an axis of one block. Where the Impl
    does not say, the sizes are taken at their word."""
    if impl.work is None:
        return True
    here = replace(limits, cores=3)  # as many as launchers see where there is no GPU
    one = impl.spec.nearest_sizes({**sizes, axis: value})
    more, once = (impl.work_of(config, here, dtype, at) for at in (sizes, one))
    pairs = zip(more, once, strict=False)
    return len(more) > len(once) or any(m.steps > o.steps or m.tiles > o.tiles for m, o in pairs)
