"""Record the grid of every config that an autotuner has, and of their neighbours, since a grid that
was launched does not say how it follows from a config."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from workbench.workload.signature import ConfigGrids

MOST_SHAPES = 64  # kept for a signature
MOST_CALLS = 512  # of the grid function, about 1 us each
TILE = re.compile(r"^(?:BLOCK|B[A-Z]$|TILE)", re.IGNORECASE)


def grids_of(
    grid: Any, named: Mapping[str, Any], configs: Sequence[Mapping[str, Any]]
) -> ConfigGrids | None:
    """Return the grids of an autotuner's configs.

    Args:
        grid: as the launch was given it: numbers, or a function of all arguments by name.
        named: the arguments that no config sets.
        configs: the values that each config sets, by name.

    Returns None where the function fails for every config.
    """
    if not callable(grid):
        shape = tuple(grid) if isinstance(grid, (list, tuple)) else (grid,)
        return ConfigGrids((), {(): tuple(map(int, shape))})
    names = [n for n, v in (configs[0] if configs else {}).items() if type(v) is int]
    grids: dict[tuple[int, ...], tuple[int, ...]] = {}
    for values in _points(names, configs):
        if len(grids) >= MOST_CALLS:
            break
        try:
            shape = tuple(int(n) for n in grid({**named, **configs[0], **values}))
        except Exception:  # a function that needs what a launch alone has
            continue
        if 1 <= len(shape) <= 3 and all(n >= 1 for n in shape):
            grids[tuple(values.values())] = shape
    return _fewest_knobs(names, grids)


def _points(names: Sequence[str], configs: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, int]]:
    """Yield the values of each config once, then of its neighbours by one step."""
    own = [{n: c[n] for n in names} for c in configs if all(type(c.get(n)) is int for n in names)]
    seen = set()
    for step in (False, True):
        for values in own:
            choices = [neighbours(n, v) if step else (v,) for n, v in values.items()]
            for point in product(*choices):
                if point not in seen:
                    seen.add(point)
                    yield dict(zip(names, point, strict=True))


def neighbours(name: str, value: int) -> tuple[int, ...]:
    """Return a knob's value with those one step from it; the value alone of a knob that is no
    tile."""
    if not TILE.search(name) or value < 1 or value & (value - 1):
        return (value,)
    return tuple(v for v in (value // 2, value, value * 2) if v >= 1)


def _fewest_knobs(
    names: Sequence[str], grids: Mapping[tuple[int, ...], tuple[int, ...]]
) -> ConfigGrids | None:
    """Return the grids by the fewest knobs that decide them. None where that are too many."""
    if not grids:
        return None
    places = list(range(len(names)))
    for place in reversed(range(len(names))):
        without = [k for k in places if k != place]
        if _project(grids, without) is not None:
            places = without
    shapes = _project(grids, places) or {}
    if len(shapes) > MOST_SHAPES:
        return None
    return ConfigGrids(tuple(names[k] for k in places), shapes)


def _project(
    grids: Mapping[tuple[int, ...], tuple[int, ...]], places: Sequence[int]
) -> dict[tuple[int, ...], tuple[int, ...]] | None:
    """Return the grids by these knobs alone; None where they do not decide them."""
    result: dict[tuple[int, ...], tuple[int, ...]] = {}
    for point, shape in grids.items():
        if result.setdefault(tuple(point[k] for k in places), shape) != shape:
            return None
    return result
