"""Exhaustive times of matrix products on an H200, as the predictors of `predictors.py` see them.

Twelve tables are of `matmul.tiles`, with 715 configs each; five are of the plain product of
`plain_product.py`, with 304. A predictor orders the rows of a table, or names configs, which are
mapped to the nearest rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from plain_product import KNOBS, timed_resources, timed_rows
from search import NOT_FITTED, fresh, lines

from workbench.data.record import Resources
from workbench.device.calibration import plain_numbers, resources_of
from workbench.device.hardware import device_named

DEVICE = device_named("h200")
TILES, PLAIN = "matmul.tiles", "plain product"
GROUP = 8  # rows of tiles that are visited together, in all tables
PICKS = 5  # configs of a predictor that count
WEIGHTS = (4.0, 4.0, 2.0, 1.0)  # of an octave of the tile's M, N and K, and of the warps
STAGE_WEIGHT = 0.5  # of one stage


@dataclass(frozen=True)
class TileConfig:
    """What a predictor of products answers."""

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int

    @property
    def tile(self) -> tuple[int, int]:
        """Return the extents of the tile of the product."""
        return self.block_m, self.block_n

    @property
    def shared_bytes(self) -> int:
        """Return the bytes of all stages in bf16."""
        return 2 * (self.block_m + self.block_n) * self.block_k * self.num_stages


@dataclass(frozen=True)
class TimedConfig:
    """A row of a table."""

    config: TileConfig
    time_s: float
    resources: Resources
    line: Mapping[str, str]  # of the file


@dataclass(frozen=True)
class ProductTable:
    """All configs of one kernel at one size; the rows are in the order of the file."""

    kernel: str
    m: int
    n: int
    k: int
    rows: tuple[TimedConfig, ...]
    is_fitted: bool  # whether constants of the analytic model were fitted to it

    @property
    def title(self) -> str:
        """Return the kernel and the sizes."""
        return f"{self.kernel} {self.m}x{self.n}x{self.k}"

    @property
    def sizes(self) -> dict[str, int]:
        """Return the sizes by axis."""
        return {"M": self.m, "N": self.n, "K": self.k}

    @property
    def best_s(self) -> float:
        """Return the seconds of the fastest config."""
        return min(row.time_s for row in self.rows)

    def nearest(self, config: TileConfig) -> int:
        """Return the place of the row nearest to a config; of equally near ones, of the fastest."""
        distances = [(distance(row.config, config), row.time_s) for row in self.rows]
        return min(range(len(self.rows)), key=distances.__getitem__)


def distance(one: TileConfig, other: TileConfig) -> float:
    """Return how far apart two configs are: the weighted octaves between tiles and warps, and half
    of the stages between them."""
    pairs = (
        (one.block_m, other.block_m),
        (one.block_n, other.block_n),
        (one.block_k, other.block_k),
        (one.num_warps, other.num_warps),
    )
    octaves = [abs(math.log2(a / b)) for a, b in pairs]
    apart = sum(weight * octave for weight, octave in zip(WEIGHTS, octaves, strict=True))
    return apart + STAGE_WEIGHT * abs(one.num_stages - other.num_stages)


@cache
def tables() -> tuple[ProductTable, ...]:
    """Return all tables, those of `matmul.tiles` first."""
    return (*_tile_tables(), *_plain_tables())


def _tile_tables() -> Sequence[ProductTable]:
    results = []
    for (kernel, sizes), rows in lines().items():
        if kernel != "matmul":
            continue
        at = plain_numbers(sizes)
        timed = [_tile_row(row) for row in rows if row["impl"] == "tiles"]
        fitted = sizes not in NOT_FITTED and (kernel, sizes) not in fresh()
        results.append(_table(TILES, (at["M"], at["N"], at["K"]), timed, fitted))
    return results


def _tile_row(row: Mapping[str, str]) -> TimedConfig:
    knobs = plain_numbers(row["config"])
    knobs.pop("group_m")
    time_s = float(row["median_us"]) * 1e-6
    return TimedConfig(TileConfig(**knobs), time_s, resources_of(row), row)


def _plain_tables() -> Sequence[ProductTable]:
    sizes = dict.fromkeys(tuple(int(row[axis]) for axis in "MNK") for row in timed_rows())
    results = []
    for m, n, k in sizes:
        at = [str(m), str(n), str(k)]
        rows = [_plain_row(row) for row in timed_rows() if [row[axis] for axis in "MNK"] == at]
        results.append(_table(PLAIN, (m, n, k), rows, False))
    return results


def _plain_row(row: Mapping[str, str]) -> TimedConfig:
    config = TileConfig(*(int(row[knob]) for knob in KNOBS))
    return TimedConfig(config, float(row["us"]) * 1e-6, timed_resources(row), row)


def _table(
    kernel: str, sizes: tuple[int, int, int], rows: Iterable[TimedConfig], fitted: bool
) -> ProductTable:
    return ProductTable(kernel, *sizes, tuple(rows), fitted)
