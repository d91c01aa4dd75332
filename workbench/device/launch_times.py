"""Expect the times of a kernel's configs at sizes that were not measured, from many that were.

`calibrations/launches/ARCH/KERNEL.csv.gz` has lines `# field: text` and a table: a line for each
measured size, a column for each config, median microseconds of cold calls in its cells. It is
measured by `benchmarks/launch_times.py`.

Of each config, log(time / fastest time there) is averaged over the measured sizes, weighted by a
Gaussian of their distance (Nadaraya 1964, Watson 1964). Which config is fastest depends on how many
octaves the axes are, on the power of two that the last axis is padded to, and on whether rows begin
at multiples of 16 elements, where loads are wide.

Measured sizes of three axes or more lie far apart, and the order of configs changes between them:
one more tile can need one more round of the cores. There a cell also has the predicted time.
log(measured / predicted) is averaged in the same way and corrects the prediction at the new sizes;
the mean of both estimates counts. A table has predictions where they choose better configs at sizes
that are left out (`benchmarks/launch_times.py --predict`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.device.calibration import SHIPPED, CalibrationError, plain_numbers, read_rows
from workbench.spec import ITEMSIZE, Sizes, short

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LAUNCHES = SHIPPED / "launches"  # a folder for each architecture, a file for each kernel
# The constants were chosen on the sizes of seven row kernels, and of five others for tables with
# predictions, each size left out in turn (docs/facts.md).
REACH = 0.5  # octaves over which sizes are alike, or
SPARSE = 0.8  # this share of the distance to the nearest, where few are near
CORRECTED_REACH, CORRECTED_SPARSE = 0.25, 1.2  # the same two of a table with predictions
ROWS = 0.6  # an octave of the number of rows counts as this many of their width
APART = 3.0  # octaves between a row of a multiple of 16 elements and another
ALIGNED = 16  # elements
FAR = 2.5  # octaves to the nearest measured size, beyond which nothing is expected
CORRECTED_FAR = 4.0  # the same of a table with predictions
MOST = 0.5  # log of a time over the fastest: how slow a slow config is says nothing more
UNTIMED = 0.15  # the same, expected where a config was not timed

# Returns the seconds that the model predicts of an Impl's config; infinity where it cannot
Predict = Callable[[str, Mapping[str, int]], float]


@dataclass(frozen=True)
class ExpectedLaunch:
    """A config of an Impl, and its expected time over that of the fastest one."""

    impl: str
    config: Mapping[str, int]
    ratio: float
    is_corrected: bool = False  # from a table with predictions: it has each default that was timed


@dataclass(frozen=True)
class LaunchTimes:
    """The times of one kernel. `us` (sizes, configs) are microseconds, NaN where a config was not
    timed; `predicted_us` are those of the model, None of a table without predictions."""

    metadata: Mapping[str, str]
    configs: Sequence[tuple[str, Mapping[str, int]]]  # the name of the Impl, and its knobs
    sizes: Sequence[Mapping[str, int]]
    dtypes: Sequence[str]
    us: NDArray[np.float64]
    predicted_us: NDArray[np.float64] | None = None

    def expect(
        self, dtype: str, sizes: Sizes, predict: Predict | None = None
    ) -> list[ExpectedLaunch]:
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
        least, share, far = REACH, SPARSE, FAR
        if self.predicted_us is not None:
            least, share, far = CORRECTED_REACH, CORRECTED_SPARSE, CORRECTED_FAR
        if nearest[0] > far:
            return []
        reach = max(least, share * float(nearest[0]))
        weights = np.exp(-((distance / reach) ** 2) / 2) + 1e-9
        us = self.us[alike]
        logs = np.minimum(np.log(us / np.nanmin(us, axis=1, keepdims=True)), MOST)
        expected = weights @ np.where(np.isnan(us), UNTIMED, logs) / weights.sum()
        if self.predicted_us is not None and predict is not None:
            corrected = self._correct(us, self.predicted_us[alike], weights, predict)
            expected = (expected + corrected) / 2
        is_corrected = self.predicted_us is not None
        return [
            ExpectedLaunch(*self.configs[n], math.exp(expected[n]), is_corrected)
            for n in map(int, np.argsort(expected))
        ]

    def _correct(
        self, us: NDArray[np.float64], predicted_us: NDArray[np.float64],
        weights: NDArray[np.float64], predict: Predict,
    ) -> NDArray[np.float64]:  # fmt: skip
        """Return log(predicted time / the least) of each config, corrected by what was measured
        over what was predicted at the sizes that have these weights."""
        import numpy as np

        here = np.log([predict(name, config) for name, config in self.configs])
        known = np.isfinite(us) & np.isfinite(predicted_us)
        ratios = np.log(np.where(known, us / predicted_us, 1.0))
        shares = weights @ known / weights.sum()
        mean = weights @ ratios / weights.sum() / np.maximum(shares, 1e-12)
        logs = np.where(shares > 0, here + mean + MOST * (1 - shares), np.inf)
        least = np.min(logs)
        return logs - least if np.isfinite(least) else np.zeros_like(logs)


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
    path = LAUNCHES / arch / f"{kernel}.csv.gz"
    return parse_table(path) if path.is_file() else None


def parse_table(path: Path) -> LaunchTimes:
    """Return the times of a file. Raises CalibrationError where it is damaged."""
    import numpy as np

    metadata, rows, _ = read_rows(path)
    lines = list(rows)
    try:
        heads = [head for head in lines[0] if head not in ("sizes", "dtype")]
        cells = [[_read_cell(line[head]) for head in heads] for line in lines]
        sizes = [plain_numbers(line["sizes"]) for line in lines]
        dtypes = [line["dtype"] for line in lines]
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise CalibrationError(
            f"{path} is damaged ({type(error).__name__}: {short(str(error))}); install the "
            "workbench again."
        ) from None
    configs = [(head.partition(" ")[0], plain_numbers(head.partition(" ")[2])) for head in heads]
    us, predicted_us = np.moveaxis(np.array(cells).reshape(len(lines), len(heads), 2), 2, 0)
    return LaunchTimes(
        metadata, configs, sizes, dtypes, us, predicted_us if "predicted" in metadata else None
    )


def _read_cell(text: str) -> tuple[float, float]:
    """Return the measured and the predicted microseconds of a cell; NaN for what it lacks."""
    measured, _, predicted = text.partition(" ")
    return float(measured or "nan"), float(predicted or "nan")


@dataclass(frozen=True)
class LaunchProblem:
    """A launch that needs a config. `predict` belongs to this kernel, device and sizes, so equal
    problems have the same one."""

    device: str
    arch: str
    kernel: str
    dtype: str
    sizes: tuple[tuple[str, int], ...]
    predict: Predict = field(compare=False)


@lru_cache(maxsize=256)
def expected_launches(problem: LaunchProblem) -> Sequence[ExpectedLaunch]:
    """Return what the times of a kernel say of its configs at sizes, as `LaunchTimes.expect` does;
    kept, for each Impl of the kernel asks. Raises CalibrationError as `launch_times` does."""
    table = launch_times(problem.arch, problem.kernel)
    return table.expect(problem.dtype, dict(problem.sizes), problem.predict) if table else ()
