"""Expect the times of a kernel's configs at sizes that were not measured, from many that were.

`calibrations/launches/ARCH/KERNEL.csv.gz` has lines `# field: text` and a table: a line for each
measured size, a column for each config, median microseconds of cold calls in its cells. It is
measured by `benchmarks/launch_times.py`.

Of each config, log(time / fastest time there) is averaged over the measured sizes, weighted by a
Gaussian of their distance (Nadaraya 1964, Watson 1964). Which config is fastest depends on how many
octaves the axes are, on the power of two that the last axis is padded to, and on whether rows begin
at multiples of 16 elements, where loads are wide.

Measured sizes of products lie far apart, and the order of configs changes between them: one more
tile can need one more round of the cores. Boosted trees of `calibrations/trees` (`launch_trees`)
say what a config takes there, from what the analytic model says of its launches. A kernel has trees
where they choose better configs at sizes that are left out (`benchmarks/launch_trees.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.device.calibration import SHIPPED, plain_numbers, read_rows, shipped_damage
from workbench.device.launch_trees import (
    ALIGNED,
    MEAN,
    NEAR,
    LaunchTrees,
    parse_trees,
    relate,
)
from workbench.spec import ITEMSIZE, Sizes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LAUNCHES = SHIPPED / "launches"  # a folder for each architecture, a file for each kernel
TREES = SHIPPED / "trees"  # the same
# The constants were chosen on the sizes of seven row kernels, each left out in turn (docs/facts.md)
REACH = 0.5  # octaves over which sizes are alike, or
SPARSE = 0.8  # this share of the distance to the nearest, where few are near
ROWS = 0.6  # an octave of the number of rows counts as this many of their width
APART = 3.0  # octaves between a row of a multiple of 16 elements and another
FAR = 2.5  # octaves to the nearest measured size, beyond which nothing is expected
PRODUCTS_FAR = 4.0  # the same of trees of products, whose sizes lie far apart
MOST = 0.5  # log of a time over the fastest: how slow a slow config is says nothing more
UNTIMED = 0.15  # the same, expected where a config was not timed

# Returns the features of an Impl's launch with a config; None where the model cannot predict it
Describe = Callable[[str, Mapping[str, int]], dict[str, float] | None]


@dataclass(frozen=True)
class ExpectedLaunch:
    """A config of an Impl, and its expected time over that of the fastest one."""

    impl: str
    config: Mapping[str, int]
    ratio: float
    has_defaults: bool = False  # that were timed are among the table's configs


@dataclass(frozen=True)
class LaunchTimes:
    """The times of one kernel. `us` (sizes, configs) are microseconds, NaN where a config was not
    timed; `trees` say what the configs take at other sizes, None of a kernel without them. Where
    the metadata say `defaults: kept`, each default that was timed is among the configs."""

    metadata: Mapping[str, str]
    configs: Sequence[tuple[str, Mapping[str, int]]]  # the name of the Impl, and its knobs
    sizes: Sequence[Mapping[str, int]]
    dtypes: Sequence[str]
    us: NDArray[np.float64]
    trees: LaunchTrees | None = None

    def expect(self, dtype: str, sizes: Sizes, describe: Describe) -> list[ExpectedLaunch]:
        """Return the configs, those that are expected to be the fastest first; none where sizes
        like these were not measured in numbers as wide, and of trees none that the model cannot
        predict. Where it predicts none, as on a device that lacks a figure, kernels of rows have
        the order of the mean."""
        import numpy as np

        mean, octaves = self.mean(dtype, sizes)
        is_product = self.trees is not None and len(self.sizes[0]) > 2
        if octaves > (PRODUCTS_FAR if is_product else FAR):
            return []
        expected = mean
        if self.trees is not None:
            expected = expect_by_trees(self.trees, self.describe_launches(describe, mean, octaves))
            if not (is_product or np.isfinite(expected).any()):
                expected = mean
        has_defaults = self.metadata.get("defaults") == "kept"
        return [
            ExpectedLaunch(*self.configs[n], math.exp(expected[n]), has_defaults)
            for n in map(int, np.argsort(expected))
            if math.isfinite(expected[n])
        ]

    def mean(
        self, dtype: str, sizes: Sizes, without: Collection[int] = ()
    ) -> tuple[NDArray[np.float64], float]:
        """Return the mean of log(time / fastest time) of each config over the measured sizes, and
        the octaves to the nearest of them; near ones count most. Sizes whose numbers are in
        `without` are left out. Infinity where sizes like these were not measured in numbers as
        wide."""
        import numpy as np

        alike = [
            n
            for n, one in enumerate(self.dtypes)
            if ITEMSIZE[one] == ITEMSIZE[dtype] and n not in without
        ]
        if not alike or set(self.sizes[0]) != sizes.keys():
            return np.full(len(self.configs), np.inf), math.inf
        places = self._places[alike]
        # what is longer than all that was measured is like the longest
        place = _place([sizes[axis] for axis in self.sizes[0]])
        here = np.minimum(place, [*places.max(0)[:-1], APART])
        distance = np.sqrt(((places - here) ** 2).sum(1))
        octaves = float(distance.min())
        weights = np.exp(-((distance / max(REACH, SPARSE * octaves)) ** 2) / 2) + 1e-9
        return weights @ self._logs[alike] / weights.sum(), octaves

    @cached_property
    def _places(self) -> NDArray[np.float64]:
        import numpy as np

        return np.array([_place([one[axis] for axis in self.sizes[0]]) for one in self.sizes])

    @cached_property
    def _logs(self) -> NDArray[np.float64]:
        """Log(time / fastest time there) of each config at the measured sizes."""
        import numpy as np

        logs = np.log(self.us / np.nanmin(self.us, axis=1, keepdims=True))
        return np.where(np.isnan(logs), UNTIMED, np.minimum(logs, MOST))

    def describe_launches(
        self, describe: Describe, mean: NDArray[np.float64], octaves: float
    ) -> list[dict[str, float] | None]:
        """Return the features of each config's launch, for trees; None where the model cannot
        predict it."""
        launches = [describe(name, knobs) for name, knobs in self.configs]
        for launch, log in zip(launches, mean.tolist(), strict=True):
            if launch is not None:
                launch |= {MEAN: log, NEAR[-1]: octaves}
        relate([one for one in launches if one is not None])
        return launches


def expect_by_trees(
    trees: LaunchTrees, described: Sequence[dict[str, float] | None]
) -> NDArray[np.float64]:
    """Return log(time / fastest time) of each config; infinity where the model says nothing."""
    import numpy as np

    known = [n for n, one in enumerate(described) if one is not None]
    launches = [one for one in described if one is not None]
    expected = np.full(len(described), np.inf)
    if launches:
        expected[known] = trees.expect(launches)
    return expected


def _place(extents: Sequence[int]) -> list[float]:
    """Return the axes in octaves, the power of two that the last is padded to, and its alignment:
    the coordinates in which sizes are near or far."""
    *others, last = [math.log2(max(extent, 1)) for extent in extents]
    share = ROWS if len(others) == 1 else 1.0
    aligned = extents[-1] % ALIGNED == 0
    return [*(share * octaves for octaves in others), last, math.ceil(last), APART * aligned]


@lru_cache(maxsize=64)
def launch_times(arch: str, kernel: str) -> LaunchTimes | None:
    """Return the times of a kernel on devices of an architecture, or None where there are none.
    Raises CalibrationError where the file, which comes with the workbench, is damaged."""
    path, grown = (folder / arch / f"{kernel}.csv.gz" for folder in (LAUNCHES, TREES))
    if not path.is_file():
        return None
    table = parse_table(path)
    return replace(table, trees=parse_trees(grown)) if grown.is_file() else table


def parse_table(path: Path) -> LaunchTimes:
    """Return the times of a file. Raises CalibrationError where it is damaged."""
    import numpy as np

    metadata, rows, _ = read_rows(path)
    lines = list(rows)
    try:
        heads = [head for head in lines[0] if head not in ("sizes", "dtype")]
        us = [[float(line[head] or "nan") for head in heads] for line in lines]
        sizes = [plain_numbers(line["sizes"]) for line in lines]
        dtypes = [line["dtype"] for line in lines]
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise shipped_damage(path, error) from None
    configs = [(head.partition(" ")[0], plain_numbers(head.partition(" ")[2])) for head in heads]
    return LaunchTimes(metadata, configs, sizes, dtypes, np.array(us))


@dataclass(frozen=True)
class LaunchProblem:
    """A launch that needs a config. `describe` belongs to this kernel, device and sizes, so equal
    problems have the same one."""

    device: str
    arch: str
    kernel: str
    dtype: str
    sizes: tuple[tuple[str, int], ...]
    describe: Describe = field(compare=False)


@lru_cache(maxsize=256)
def expected_launches(problem: LaunchProblem) -> Sequence[ExpectedLaunch]:
    """Return what the times of a kernel say of its configs at sizes, as `LaunchTimes.expect` does;
    kept, for each Impl of the kernel asks. Raises CalibrationError as `launch_times` does."""
    table = launch_times(problem.arch, problem.kernel)
    return table.expect(problem.dtype, dict(problem.sizes), problem.describe) if table else ()
