"""Other predictors of a product's config, for `predictors.py`: packages, and published formulas.

A package is imported when its predictor is made, and may be missing. The formulas are written anew
from what their authors published; a device's figures are those of `workbench/devices`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from product_tables import DEVICE, GROUP, PICKS, ProductTable, TileConfig

ITEM = 2  # bytes of an element
OFFERED = 64  # configs that a package is asked for; those that split K are passed over
INSTRUCTION = (16, 8, 16)  # that the package itself names for Triton
PRECISION = "TST"  # bf16 with sums in fp32, as the package spells it


class Missing(Exception):
    """A package is not installed; the message names it and says what installs it."""


def warps_of(tile: tuple[int, int], warp_tile: tuple[int, int]) -> int:
    """Return the warps of a tile of which each warp computes a part."""
    return max(1, tile[0] // max(1, warp_tile[0])) * max(1, tile[1] // max(1, warp_tile[1]))


# NVIDIA's nvMatmulHeuristics


class NvidiaHeuristics:
    """The configs that nvMatmulHeuristics names for an H200, and its estimates of a table's."""

    def __init__(self, target: str) -> None:
        try:
            import nvMatmulHeuristics as package  # type: ignore[import-not-found]
        except ImportError:
            raise Missing("nvMatmulHeuristics (pip install nvidia-matmul-heuristics)") from None
        self._package = package
        self._interface = package.NvMatmulHeuristicsInterfaceEx(
            backend=package.NvMatmulHeuristicsTarget[target],
            flags=package.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING,
            gpu=package.NvMatmulHeuristicsNvidiaGpu.H200_SXM,
        )

    def _problem(self, table: ProductTable) -> Any:
        layout = self._package.NvMatmulHeuristicsMatmulLayout.NN_ROW_MAJOR
        make = self._interface.makeNvMatmulHeuristicsProblem
        return make(table.m, table.n, table.k, layout)

    def configs(self, table: ProductTable) -> list[TileConfig]:
        """Return the configs that it names, the best first, without those that split K."""
        offered = self._interface.get(self._problem(table), OFFERED, precision=PRECISION)
        kernels = [one["kernel"] for one in offered if one["kernel"].split_k == 1]
        return [
            TileConfig(
                kernel.cta_tile_m,
                kernel.cta_tile_n,
                kernel.cta_tile_k,
                warps_of(
                    (kernel.cta_tile_m, kernel.cta_tile_n),
                    (kernel.warp_tile_m, kernel.warp_tile_n),
                ),
                kernel.stages,
            )
            for kernel in kernels[:PICKS]
        ]

    def times(self, table: ProductTable) -> list[float]:
        """Return its estimates of all rows, in seconds."""
        from ctypes import byref, c_int

        face, problem = self._interface, self._problem(table)
        self.configs(table)  # loads what it knows of bf16
        launches = [self._launch(row.config) for row in table.rows]
        # the method of this name fails in 0.1.0.27; the library's function does not
        return [
            face.nvMatmulHeuristicsEstimateRuntime(
                face.handle,
                PRECISION.encode(),
                c_int(face.target),
                byref(problem),
                byref(launch),
                face.hardware_descriptor,
            )
            for launch in launches
        ]

    def _launch(self, config: TileConfig) -> Any:
        kernel = self._interface.nvmmhKernelConfiguration()
        warp = warp_tile(config)
        for name, values in (
            ("cta", (*config.tile, config.block_k)),
            ("warp", (*warp, config.block_k)),
            ("instr", INSTRUCTION),
            ("cluster", (1, 1)),
        ):
            for place, value in enumerate(values):
                getattr(kernel, name)[place] = value
        kernel.splitK, kernel.loadStages, kernel.gridSwizzle = 1, config.num_stages, GROUP
        return kernel


def warp_tile(config: TileConfig) -> tuple[int, int]:
    """Return the part of a tile that one warp computes: the longer side is halved until each warp
    has one, or the part is a single instruction's."""
    m, n = config.tile
    for _ in range(int(math.log2(config.num_warps))):
        m, n = (m // 2, n) if m >= n else (m, n // 2)
    return max(m, INSTRUCTION[0]), max(n, INSTRUCTION[1])


# Inductor's tree


class InductorTree:
    """The configs that the tree of torch's Inductor, learnt on an H100, names for a product."""

    CHOICE = re.compile(
        r"BLOCK-M=(?P<block_m>\d+)_BLOCK-K=(?P<block_k>\d+)_BLOCK-N=(?P<block_n>\d+)"
        r"_numstages=(?P<num_stages>\d+)_numwarps=(?P<num_warps>\d+)"
    )

    def __init__(self) -> None:
        try:
            from torch._inductor.autoheuristic import autoheuristic_utils
            from torch._inductor.autoheuristic.artifacts._MMRankingH100 import MMRankingH100
        except ImportError:
            raise Missing("Inductor's tree (pip install torch==2.13.0)") from None
        self._utils, self._tree = autoheuristic_utils, MMRankingH100()

    def configs(self, table: ProductTable) -> list[TileConfig]:
        """Return the configs of the leaf, the likeliest first, without the vendor's library."""
        context = self._utils.AHContext()
        for name, value in (("m", table.m), ("k", table.k), ("n", table.n)):
            context.add_feature(name, value)
        self._utils.context_add_strides(context, "mat1", (table.k, 1))
        self._utils.context_add_strides(context, "mat2", (table.n, 1))
        context.apply_operations(self._utils.mm_operations())
        choices = map(self.CHOICE.search, self._tree.get_decisions_ranked(context) or [])
        named = [match.groupdict() for match in choices if match]
        return [TileConfig(**{k: int(v) for k, v in one.items()}) for one in named[:PICKS]]


# TileLang's carver


class Carver:
    """The configs that TileLang's carver recommends for an H200, whose figures it is told: it would
    ask a GPU for them."""

    def __init__(self) -> None:
        try:
            from tilelang import carver  # type: ignore[import-not-found]
            from tilelang.carver import matmul_analysis  # type: ignore[import-not-found]
            from tvm.target import Target  # type: ignore[import-not-found]
        except ImportError:
            raise Missing("TileLang's carver (pip install tilelang==0.1.15)") from None
        target = Target({"kind": "cuda", "arch": "sm_90a"})
        self._carver, self._arch = carver, object.__new__(carver.CUDA)
        self._arch.__dict__.update(self._figures(target))
        matmul_analysis.get_arch = lambda _: self._arch  # it would look for a GPU a second time

    @staticmethod
    def _figures(target: Any) -> dict[str, Any]:
        limits = DEVICE.limits
        shared = limits.shared_bytes
        return {
            "target": target, "name": DEVICE.title, "device": None, "platform": "CUDA",
            "sm_version": 90, "compute_capability": "90", "compute_max_core": limits.cores,
            "warp_size": limits.warp_size, "smem_cap": shared, "max_smem_usage": 2 * shared,
            "reg_cap": 65536, "sm_partition": 4, "l2_cache_size_bytes": DEVICE.cache.value,
            "transaction_size": [32, 128], "bandwidth": [750, 12080],  # its own, of any GPU
            "available_tensor_instructions": None,
        }  # fmt: skip

    def configs(self, table: ProductTable) -> list[TileConfig]:
        """Return the configs that it recommends, the best first."""
        template = self._carver.MatmulTemplate(
            M=table.m, N=table.n, K=table.k, trans_B=False,
            in_dtype="bfloat16", accum_dtype="float32", out_dtype="bfloat16",
        )  # fmt: skip
        hints = template.with_arch(self._arch).recommend_hints(topk=PICKS) or []
        return [
            TileConfig(m, n, hint.rstep[0], warps_of((m, n), hint.warp), hint.pipeline_stage)
            for hint in hints
            for m, n in [hint.block]
            if hint.use_tc  # the others have no matrix instruction
        ]


# AMD's Origami


@dataclass(frozen=True)
class Origami:
    """The formula of AMD's Origami in the form that was published first (rocm-libraries, 2025), for
    row-major matrices and one device with one cache. It scores tiles alone."""

    warps: int
    stages: int

    LOAD_CYCLES, TRIP_CYCLES = 200, 28
    FILL = 1.5  # loads until the first product
    FULL_CORES, SHARE = 100, 0.008  # of the memory's bandwidth that each core reaches below them
    LINE = 128  # bytes

    def configs(self, table: ProductTable) -> list[TileConfig]:
        """Return the tiles with the least time, of those in the table."""
        every = [(*row.config.tile, row.config.block_k) for row in table.rows]
        tiles = [tile for tile in dict.fromkeys(every) if self._fits(tile)]
        order = sorted(tiles, key=lambda tile: (self.cycles(table, tile), -_intensity(tile)))
        return [TileConfig(*tile, self.warps, self.stages) for tile in order[:PICKS]]

    def _fits(self, tile: tuple[int, int, int]) -> bool:
        """Return whether all stages fit into shared memory, as they have to in Triton. The
        published rule counts one stage; with it the choices are worse."""
        config = TileConfig(*tile, self.warps, self.stages)
        return config.shared_bytes <= DEVICE.limits.shared_bytes

    def cycles(self, table: ProductTable, tile: tuple[int, int, int]) -> float:
        """Return the cycles of a product: those of one tile, times the rounds over the cores."""
        m, n, k = tile
        tiles = math.ceil(table.m / m) * math.ceil(table.n / n)
        cores = DEVICE.limits.cores
        active = min(tiles, cores)
        narrow = (2 if k * ITEM < self.LINE else 1) * (2 if n * ITEM < self.LINE else 1)
        product = 2 * m * n * k / _cycle_rate(DEVICE.peaks["bf16"].value / cores) * narrow
        load = self._load(table, tile, active) * narrow
        trips = max(math.ceil(table.k / k) - 1, 1)
        store = m * n * ITEM * cores / _cycle_rate(_cache_rate())
        one = trips * (max(product, load) + self.TRIP_CYCLES) + self.FILL * load + store + 1
        return one * math.ceil(tiles / cores) * self._factor(table, tile)

    def _load(self, table: ProductTable, tile: tuple[int, int, int], active: int) -> float:
        """Return the cycles until the blocks of one trip have come: from the cache, or what that
        does not hold from memory."""
        m, n, k = tile
        assert DEVICE.dram is not None
        cores = DEVICE.limits.cores
        wanted = (m + n) * k * ITEM * active
        missed = (1 - self._hits(table, tile, active)) * wanted
        if active < cores:
            missed = max(missed, (table.m + table.n) * k * ITEM)
        share = min(1.0, self.SHARE * active) if active < self.FULL_CORES else 1.0
        near = wanted / (_cycle_rate(_cache_rate()) * active / cores)
        return max(near, missed / (_cycle_rate(DEVICE.dram.value) * share) + self.LOAD_CYCLES)

    @staticmethod
    def _hits(table: ProductTable, tile: tuple[int, int, int], active: int) -> float:
        """Return the share of loads that the cache holds: active cores work on a rectangle of
        tiles, whose rows and columns are loaded once."""
        m, n, k = tile
        down_most, across_most = math.ceil(table.m / m), math.ceil(table.n / n)
        down = min(GROUP, down_most)
        across = active // down
        if across > across_most:
            down += (across // across_most - 1) * GROUP
        down, across = max(1, min(down, down_most)), max(1, min(across, across_most))
        while down > 1 and (down * m + across * n) * k * ITEM > DEVICE.cache.value:
            down -= 1
        return 1 - (down * m + across * n) / (down * across * (m + n))

    @staticmethod
    def _factor(table: ProductTable, tile: tuple[int, int, int]) -> float:
        """Return the factor by which it corrects its own times."""
        m, n, k = tile
        trips = math.ceil(table.k / k)
        few = next((f for most, f in ((1, 16), (2, 8), (4, 4), (8, 2)) if trips <= most), 1)
        whole = 0.5 if m == table.m or n == table.n or k == table.k else 1.0
        large = 0.9 if max(m, n) >= 32 else 1.0
        uneven = 2.0 if {m, n} == {16, 256} and k == 128 else 1.0
        return few * whole * large * uneven


def _cycle_rate(rate: float) -> float:
    assert DEVICE.clock_hz is not None
    return rate / DEVICE.clock_hz.value


def _cache_rate() -> float:
    assert DEVICE.cache_bandwidth is not None
    return DEVICE.cache_bandwidth.value


def _intensity(tile: tuple[int, int, int]) -> float:
    m, n, k = tile
    return m * n * k / (m * k + n * k + m * n)


# Triton's old model


class TritonModel:
    """The formula that Triton once shipped as `triton.ops.matmul_perf_model`, with its pruning: of
    each tile two depths of the pipeline stay."""

    HIT, STORE = 0.8, 0.6  # of loads in the cache; of the memory's bandwidth for stores
    FEW, MANY = 32, 108  # programs that reach 95 % and 100 % of the memory's bandwidth
    CACHE = 4  # times the memory's bandwidth
    LOAD_CYCLES = 300

    def times(self, table: ProductTable) -> list[float]:
        """Return its estimates of all rows, in seconds."""
        return [self._time(table, row.config) for row in table.rows]

    def configs(self, table: ProductTable) -> list[TileConfig]:
        """Return the configs with the least estimates that its pruning leaves. Many are equal; they
        stay in the order of the table."""
        pruned = self._prune([row.config for row in table.rows])
        return sorted(pruned, key=lambda config: self._time(table, config))[:PICKS]

    def _time(self, table: ProductTable, config: TileConfig) -> float:
        assert DEVICE.dram is not None
        down = math.ceil(table.m / config.block_m)
        across = math.ceil(table.n / config.block_n)
        programs = down * across
        m, n = max(table.m, config.block_m), max(table.n, config.block_n)
        units = 4 * DEVICE.limits.cores
        share = min(units, programs * min(config.num_warps, 4)) / units
        product = 2 * m * n * table.k / (DEVICE.peaks["bf16"].value * share)
        rest = max(0.0, min(1.0, (programs - self.FEW) / (self.MANY - self.FEW)))
        rate = DEVICE.dram.value * (0.95 * min(1.0, programs / self.FEW) + 0.05 * rest)
        again = m * (across - 1) + n * (down - 1)  # rows and columns that are read once more
        memory = (m + n + (1 - self.HIT) * again) * table.k * ITEM
        cache = self.HIT * again * table.k * ITEM
        load = memory / rate + cache / (self.CACHE * rate)
        return max(product, load) + m * n * ITEM / (self.STORE * rate)

    def _prune(self, configs: Sequence[TileConfig]) -> list[TileConfig]:
        groups: dict[tuple[int, ...], list[TileConfig]] = {}
        for config in configs:
            if config.shared_bytes <= DEVICE.limits.shared_bytes:
                key = (*config.tile, config.block_k, config.num_warps)
                groups.setdefault(key, []).append(config)
        return [one for group in groups.values() for one in sorted(group, key=self._depth)[:2]]

    def _depth(self, config: TileConfig) -> float:
        """Return how far the depth of a pipeline is from that which hides a load; one that is too
        short is worse than all others."""
        products = config.block_m * config.block_n * config.block_k / (16 * 8 * 16)
        best = self.LOAD_CYCLES / (8 * products / min(4, config.num_warps))
        over = config.num_stages - best
        return over if over >= 0 else 10 - over


# Without a model


def usual_config(_: ProductTable) -> list[TileConfig]:
    """Return the config that is most often the fastest in the tables."""
    return [TileConfig(128, 256, 64, 8, 3)]
