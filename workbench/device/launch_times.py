"""Expect the times of a kernel's configs at sizes that were not measured, from many that were.

`calibrations/launches/ARCH/KERNEL.csv.gz` has lines `# field: text` and a table: a line for each
measured size, a column for each config, median microseconds of cold calls in its cells. It is
measured by `benchmarks/launch_times.py`.

Of each config, log(time / fastest time there) is averaged over the measured sizes, weighted by a
Gaussian of their distance (Nadaraya 1964, Watson 1964). Which config is fastest depends on how many
octaves the axes are, on the power of two that the last axis is padded to, and on whether rows begin
at multiples of 16 elements, where loads are wide.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from workbench.device.calibration import SHIPPED, CalibrationError, plain_numbers, read_rows
from workbench.spec import ITEMSIZE, Sizes, short

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LAUNCHES = SHIPPED / "launches"  # a folder for each architecture, a file for each kernel
# The constants were chosen on the sizes of seven kernels, each left out in turn (docs/facts.md).
REACH = 0.5  # octaves over which sizes are alike, or
SPARSE = 0.8  # this share of the distance to the nearest, where few are near
ROWS = 0.6  # an octave of the number of rows counts as this many of their width
APART = 3.0  # octaves between a row of a multiple of 16 elements and another
ALIGNED = 16  # elements
FAR = 2.5  # octaves to the nearest measured size, beyond which nothing is expected
MOST = 0.5  # log of a time over the fastest: how slow a slow config is says nothing more
UNTIMED = 0.15  # the same, expected where a config was not timed


@dataclass(frozen=True)
class ExpectedLaunch:
    """A config of an Impl, and its expected time over that of the fastest one."""

    impl: str
    config: Mapping[str, int]
    ratio: float


@dataclass(frozen=True)
class LaunchTimes:
    """The times of one kernel. `us` (sizes, configs) are microseconds, NaN where a config was not
    timed."""

    metadata: Mapping[str, str]
    configs: Sequence[tuple[str, Mapping[str, int]]]  # the name of the Impl, and its knobs
    sizes: Sequence[Mapping[str, int]]
    dtypes: Sequence[str]
    us: NDArray[np.float64]

    def expect(self, dtype: str, sizes: Sizes) -> list[ExpectedLaunch]:
        """Return the configs, those that are expected to be the fastest first; none where sizes
        like these were not measured in numbers as wide."""
        import numpy as np

        alike = [n for n, one in enumerate(self.dtypes) if ITEMSIZE[one] == ITEMSIZE[dtype]]
        axes = list(self.sizes[0])
        if not alike or set(axes) != sizes.keys():
            return []
        extents = [[self.sizes[n][axis] for axis in axes] for n in alike]
        places = np.array([_place(one) for one in extents])
        # what is longer than all that was measured is like the longest
        here = np.minimum(_place([sizes[axis] for axis in axes]), [*places.max(0)[:-1], APART])
        distance = np.sqrt(((places - here) ** 2).sum(1))
        nearest = np.sort(distance)
        if nearest[0] > FAR:
            return []
        reach = max(REACH, SPARSE * float(nearest[0]))
        weights = np.exp(-((distance / reach) ** 2) / 2) + 1e-9
        us = self.us[alike]
        logs = np.minimum(np.log(us / np.nanmin(us, axis=1, keepdims=True)), MOST)
        expected = weights @ np.where(np.isnan(us), UNTIMED, logs) / weights.sum()
        order = [int(n) for n in np.argsort(expected)]
        return [ExpectedLaunch(*self.configs[n], ratio=math.exp(expected[n])) for n in order]


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
    import numpy as np

    path = LAUNCHES / arch / f"{kernel}.csv.gz"
    if not path.is_file():
        return None
    metadata, rows, _ = read_rows(path)
    lines = list(rows)
    try:
        heads = [head for head in lines[0] if head not in ("sizes", "dtype")]
        cells = [[float(line[head] or "nan") for head in heads] for line in lines]
        sizes = [plain_numbers(line["sizes"]) for line in lines]
        dtypes = [line["dtype"] for line in lines]
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise CalibrationError(
            f"{path} is damaged ({type(error).__name__}: {short(str(error))}); install the "
            "workbench again."
        ) from None
    configs = [(head.partition(" ")[0], plain_numbers(head.partition(" ")[2])) for head in heads]
    return LaunchTimes(metadata, configs, sizes, dtypes, np.array(cells))


@lru_cache(maxsize=256)
def expected_launches(
    arch: str, kernel: str, dtype: str, sizes: tuple[tuple[str, int], ...]
) -> Sequence[ExpectedLaunch]:
    """Return what the times of a kernel say of its configs at sizes, as `LaunchTimes.expect` does;
    kept, for each Impl of the kernel asks. Raises CalibrationError as `launch_times` does."""
    table = launch_times(arch, kernel)
    return table.expect(dtype, dict(sizes)) if table else ()
