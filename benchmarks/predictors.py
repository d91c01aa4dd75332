"""Compare predictors of a matrix product's config, without a GPU, on exhaustive tables of an H200.

    python benchmarks/predictors.py [--json FILE] [--only WORD ...]

Each predictor names configs for the sizes of a table, or predicts a time for each of its rows. What
it names first, and the best of its first five, are held against the fastest row. Rivals that are
not installed are left out; the script says what installs them. docs/predictors.md has the table.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from baseline_predictors import (
    Carver,
    InductorTree,
    Missing,
    NvidiaHeuristics,
    Origami,
    TritonModel,
)
from code_model import geometric_mean
from plain_product import predicted_s
from product_tables import DEVICE, GROUP, PICKS, PLAIN, TILES, ProductTable, TileConfig, tables
from runs import show

from workbench import catalog
from workbench.data.stats import spearman
from workbench.device.cost_model import guess_seconds, predict
from workbench.spec import Impl
from workbench.tuner.prediction import rank_configs

NEAR = 0.05  # regret of a good choice
DTYPE = "bf16"


@dataclass(frozen=True)
class Predictor:
    """A predictor by its two abilities, of which one may be missing."""

    configs: Callable[[ProductTable], Sequence[TileConfig]] | None = None  # the best first
    times: Callable[[ProductTable], Sequence[float]] | None = None  # of all rows
    kernels: tuple[str, ...] = (TILES, PLAIN)


@dataclass(frozen=True)
class TableScore:
    """How good the choices of a predictor are on one table. A regret is the time over that of the
    fastest row, less 1."""

    table: str
    kernel: str
    is_fitted: bool
    first: float
    best_of_five: float
    tile_first: float  # of the fastest row with the tile of the first choice
    tile_best_of_five: float
    rank: float | None  # Spearman's coefficient over all rows
    seconds: float  # of one answer


def regrets(table: ProductTable) -> list[float]:
    """Return the regret of each row."""
    return [row.time_s / table.best_s - 1 for row in table.rows]


def tile_regret(table: ProductTable, tile: tuple[int, int]) -> float:
    """Return the regret of the fastest row with a tile, all else free."""
    times = [row.time_s for row in table.rows if row.config.tile == tile]
    return min(times) / table.best_s - 1


def score(
    table: ProductTable, places: Sequence[int], rank: float | None, seconds: float
) -> TableScore:
    """Return the score of chosen rows, the first choice first."""
    each, first = regrets(table), list(places[:PICKS])
    tiles = [tile_regret(table, table.rows[place].config.tile) for place in first]
    return TableScore(
        table.title,
        table.kernel,
        table.is_fitted,
        each[first[0]],
        min(each[place] for place in first),
        tiles[0],
        min(tiles),
        rank,
        seconds,
    )


def answer(predictor: Predictor, table: ProductTable) -> TableScore | None:
    """Return the score of a predictor on a table; None where it names nothing."""
    began, rank = time.perf_counter(), None
    if predictor.configs is not None:
        named = predictor.configs(table)
        seconds = time.perf_counter() - began
        places = [table.nearest(config) for config in named]
    if predictor.times is not None:
        predicted = predictor.times(table)
        if predictor.configs is None:
            seconds = time.perf_counter() - began
            places = sorted(range(len(predicted)), key=predicted.__getitem__)
        rank = spearman(predicted, [row.time_s for row in table.rows])
    return score(table, places, rank, seconds) if places else None


# Ours


@cache
def tiles() -> Impl:
    """Return the Impl of the tables, `matmul.tiles`."""
    return catalog.impl_of(catalog.spec_of("matmul"), "tiles")


def _config(config: TileConfig) -> Any:
    return tiles().config(**asdict(config), group_m=GROUP)


def compiled_times(table: ProductTable) -> list[float]:
    """Return the times of the analytic model from the resources of the table."""
    spec, limits = tiles().spec, DEVICE.limits
    flops, bytes_ = spec.flops(**table.sizes), spec.bytes(table.sizes, DTYPE)
    results = []
    for row in table.rows:
        (work,) = tiles().work_of(_config(row.config), limits, DTYPE, table.sizes) or ()
        predicted = predict(
            DEVICE, work, row.resources, dtype=DTYPE, flops=flops, bytes_=bytes_,
            stages=row.config.num_stages,
        )  # fmt: skip
        results.append(predicted.predicted_s)
    return results


def guessed_times(table: ProductTable) -> list[float]:
    """Return the times of the analytic model before compiling."""
    configs = (_config(row.config) for row in table.rows)
    return [guess_seconds(tiles(), config, DEVICE, DTYPE, table.sizes) for config in configs]


def code_times(table: ProductTable) -> list[float]:
    """Return the times by the code of the plain product, with nothing declared."""
    return [predicted_s(row.line) for row in table.rows]


def command_configs(table: ProductTable) -> list[TileConfig]:
    """Return the configs that `workbench predict matmul --impl tiles` names."""
    ranking = rank_configs(tiles().spec, [tiles()], DEVICE, DTYPE, table.sizes)
    names = [field.name for field in fields(TileConfig)]
    return [TileConfig(*(one.config[name] for name in names)) for one in ranking.configs]


# Without a model


def usual_config(table: ProductTable) -> list[TileConfig]:
    """Return the config that is the fastest in most tables, whatever the table."""
    return [TileConfig(128, 256, 64, 8, 3)]


def median_config(table: ProductTable) -> list[TileConfig]:
    """Return the config in the middle of all by time."""
    ordered = sorted(table.rows, key=lambda row: row.time_s)
    return [ordered[len(ordered) // 2].config]


# All

# Made when they are needed: a package that is missing raises Missing then.
PREDICTORS: Mapping[str, Callable[[], Predictor]] = {
    "ours, compiled": lambda: Predictor(times=compiled_times),
    "ours, compiled, from code alone": lambda: Predictor(times=code_times, kernels=(PLAIN,)),
    "ours, workbench predict": lambda: Predictor(command_configs),
    "ours, the model before compiling": lambda: Predictor(times=guessed_times),
    "Origami's first formula, 3 stages": lambda: Predictor(Origami(8, 3).configs),
    "Origami's first formula, 2 stages": lambda: Predictor(Origami(8, 2).configs),
    "Inductor AutoHeuristic, H100": lambda: Predictor(InductorTree().configs),
    **{
        f"nvMatmulHeuristics, {target}": partial(
            lambda name: Predictor(NvidiaHeuristics(name).configs), target
        )
        for target in ("CUTLASS3", "TRITON", "GENERIC")
    },
    "nvMatmulHeuristics, estimates": lambda: Predictor(times=NvidiaHeuristics("TRITON").times),
    "Triton's matmul_perf_model": lambda: Predictor(TritonModel().configs, TritonModel().times),
    "TileLang carver": lambda: Predictor(Carver().configs),
    "128x256x64, 8 warps, 3 stages": lambda: Predictor(usual_config),
    "median config": lambda: Predictor(median_config),
}


def predictors(words: Sequence[str] = ()) -> tuple[dict[str, Predictor], list[str]]:
    """Return the predictors that are installed by name, of those whose names have one of the words,
    and what installs the others."""
    results, missing = dict[str, Predictor](), list[str]()
    for name, make in PREDICTORS.items():
        if words and not any(word.lower() in name.lower() for word in words):
            continue
        try:
            results[name] = make()
        except Missing as error:
            missing.append(str(error))
    return results, list(dict.fromkeys(missing))


def scores(predictor: Predictor) -> list[TableScore]:
    """Return the score of each table that a predictor serves. A first answer is not timed."""
    mine = [table for table in tables() if table.kernel in predictor.kernels]
    answer(predictor, mine[0])
    return [one for table in mine if (one := answer(predictor, table)) is not None]


SETS: Mapping[str, Callable[[TableScore], bool]] = {
    "tiles": lambda one: one.kernel == TILES,
    "not fitted": lambda one: one.kernel == TILES and not one.is_fitted,
    "plain": lambda one: one.kernel == PLAIN,
}
HEADS = (
    "predictor", "tables", "first, %", "within 5 %", "worst, %", "of five, %", "within 5 %",
    "tile alone, %", *(f"{name}, %" for name in SETS), "rank", "ms",
)  # fmt: skip


def line(name: str, some: Sequence[TableScore]) -> list[Any]:
    """Return a line of the table."""
    first, best_of_five = [s.first for s in some], [s.best_of_five for s in some]
    ranks = [s.rank for s in some if s.rank is not None]
    by_set = [[s for s in some if belongs(s)] for belongs in SETS.values()]
    return [
        name,
        len(some),
        percent(first),
        sum(r <= NEAR for r in first),
        f"{100 * max(first):.0f}",
        percent(best_of_five),
        sum(r <= NEAR for r in best_of_five),
        _pair(some, "tile_first", "tile_best_of_five"),
        *(_pair(part, "first", "best_of_five") for part in by_set),
        f"{statistics.mean(ranks):.2f}" if ranks else None,
        f"{1000 * statistics.median(s.seconds for s in some):.2g}",
    ]


def percent(shares: Sequence[float]) -> str:
    """Return the geometric mean of regrets in percent."""
    return f"{100 * geometric_mean(shares):.1f}"


def _pair(some: Sequence[TableScore], *names: str) -> str | None:
    if not some:
        return None
    return " / ".join(percent([getattr(s, name) for s in some]) for name in names)


def versions() -> Iterator[str]:
    """Yield the versions of what takes part."""
    for name in ("torch", "triton", "nvidia-matmul-heuristics", "tilelang"):
        try:
            yield f"{name} {version(name)}"
        except PackageNotFoundError:
            continue


def main() -> None:
    """Print the table, and write it as JSON where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="JSON file to write")
    parser.add_argument("--only", nargs="+", default=[], help="words in the predictors' names")
    options = parser.parse_args()
    chosen, missing = predictors(options.only)
    each = {name: scores(predictor) for name, predictor in chosen.items()}
    show(HEADS, [line(name, some) for name, some in each.items() if some])
    print(f"\n{len(tables())} tables; {', '.join(versions())}.")
    if missing:
        print(f"Left out, as they are not installed: {', '.join(missing)}.")
    if options.json:
        by_name = {name: [asdict(one) for one in some] for name, some in each.items()}
        result = {"versions": list(versions()), "missing": missing, "scores": by_name}
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
