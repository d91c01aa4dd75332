"""Compare times that are predicted from code alone with measured ones of plain Triton kernels.

    python benchmarks/code_model.py [half | h200 | rows | KERNEL ...]

`data/h100_plain_2026-11-26.json.xz` holds 41 problems of 17 kernels that declare nothing: the times
of an H100 with their launches, their TTGIR and resources as compiled for sm_90, and, of kernels
without products, what a warp issues. `data/h200_plain_2026-11-28.json.xz` holds 20 problems of ten
other kernels with times of an H200: `h200`. `data/h200_rows_2026-11-28.json.xz` holds six of the
library's kernels at 54 drawn sizes, with 563 times of an H200: `rows`; what they declare is not
used, and the sizes were drawn when the model was finished. `half` prints the kernels of the first
two files to which constants were fitted, and the others, apart. The others were looked at while the
model was written, so their figures are not blind.
"""

from __future__ import annotations

import json
import lzma
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from workbench.code.code_work import launch_work
from workbench.code.program_values import LaunchArguments
from workbench.data.record import Resources
from workbench.device.code_model import predict_launch
from workbench.device.hardware import Device, device_named
from workbench.device.occupancy import occupancy
from workbench.device.warp_timeline import Issued, IssuedCode, IssuedLoop

DATA = Path(__file__).parent / "data"
FILE, SECOND = DATA / "h100_plain_2026-11-26.json.xz", DATA / "h200_plain_2026-11-28.json.xz"
ROWS = DATA / "h200_rows_2026-11-28.json.xz"
PRODUCTS = ("mm", "fp8mm", "w8mm", "splitk", "moe", "attn", "decode", "gated", "bmm")
DEVELOPED = (
    *("mm", "splitk", "lnbwd", "rope", "decode", "moe", "xent", "scan"),
    *("gemv", "bag", "adam", "groupnorm", "colsum"),
)
FILES = {"h200": (SECOND,), "rows": (ROWS,)}
FLAT = 1.3  # slowest over fastest config, below which the order is noise


@dataclass(frozen=True)
class Score:
    """How well the configs of one problem are ordered, and how far their times are off."""

    name: str
    kernel: str
    ratios: tuple[float, ...]  # measured over predicted
    rank: float  # Spearman's coefficient
    first: float  # by how much the first choice is slower than the best
    best_of_five: float
    spread: float  # slowest over fastest

    @property
    def error(self) -> float:
        """Return the median error of the predicted times."""
        return float(np.exp(np.median(np.abs(np.log(self.ratios))))) - 1


@cache
def stored_data(file: Path = FILE) -> Mapping[str, Any]:
    """Return the launches, code and times of a file."""
    result: Mapping[str, Any] = json.loads(lzma.decompress(file.read_bytes()))
    return result


def predicted_s(row: Mapping[str, Any], file: Path = FILE) -> float:
    """Return the seconds that are predicted of a stored launch."""
    known, device = stored_data(file), device_named(stored_data(file)["device"])
    contents = {name: _integers(i, file) for name, i in row["contents"].items()}
    given = LaunchArguments(row["scalars"], row["tensors"], contents)
    resources = _resources(row, device)
    text, issued = known["ttgir"][row["ttgir"]], _issued_code(row["ttgir"], file)
    work = launch_work(text, row["grid"], given, device, resources, row["stages"], issued)
    return predict_launch(device, work, resources).predicted_s


@cache
def _integers(number: int, file: Path) -> Any:
    return np.array(stored_data(file)["contents"][number], dtype=np.int64)


@cache
def _issued_code(number: int, file: Path) -> Issued | None:
    """Return what a warp of a stored code issues; None of products."""

    def code(parts: Sequence[Any]) -> IssuedCode:
        kinds, *numbers = parts
        return IssuedCode(kinds, *map(tuple, numbers))

    one = stored_data(file)["issued"][number]
    if one is None:
        return None
    loops = [
        IssuedLoop(n, code(trip), code(rest) if rest else None) for n, trip, rest in one["loops"]
    ]
    return Issued(code(one["straight"]), tuple(loops))


def _resources(row: Mapping[str, Any], device: Device) -> Resources:
    threads = 32 * row["warps"]
    held = {"registers": max(16, row["registers"]), "shared_bytes": row["shared_bytes"]}
    fit = occupancy(device, threads=threads, **held)
    return Resources(
        binary="",
        registers=row["registers"],
        spill_bytes=row["spill_bytes"],
        shared_bytes=row["shared_bytes"],
        threads=threads,
        blocks_per_core=max(1, fit.blocks_per_core),
        occupancy=fit.fraction,
        limiter=fit.limiter,
        programs=math.prod(row["grid"]),
        waves=0.0,
        tail=0.0,
        load_bits=128,
        matrix_unit=None,
        compile_s=0.0,
    )


def scores(kernels: Sequence[str] = (), file: Path = FILE) -> Iterator[Score]:
    """Yield the score of each problem of a file, of these kernels or of all."""
    tables: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in stored_data(file)["rows"]:
        if not kernels or row["kernel"] in kernels:
            name = "x".join(map(str, row["sizes"].values()))
            tables[f"{row['kernel']} {name}"].append(row)
    for name, rows in tables.items():
        measured = np.array([row["us"] * 1e-6 for row in rows])
        yield _score(
            name, rows[0]["kernel"], measured, np.array([predicted_s(row, file) for row in rows])
        )


def _score(name: str, kernel: str, measured: Any, predicted: Any) -> Score:
    order = np.argsort(predicted, kind="stable")
    best = measured.min()
    ranks = [np.argsort(np.argsort(times)) for times in (measured, predicted)]
    return Score(
        name,
        kernel,
        tuple(measured / predicted),
        float(np.corrcoef(*ranks)[0, 1]),
        float(measured[order[0]] / best - 1),
        float(measured[order[:5]].min() / best - 1),
        float(measured.max() / best),
    )


def geometric_mean(shares: Sequence[float]) -> float:
    """Return the geometric mean of 1 + share, less 1."""
    return float(np.exp(np.mean(np.log1p(shares)))) - 1


def summary(some: Sequence[Score]) -> str:
    """Return the figures of several problems in one line."""
    ratios = np.concatenate([s.ratios for s in some])
    ranked = [s.rank for s in some if s.spread > FLAT]
    low, high = np.percentile(ratios, [5, 95])
    return (
        f"{len(some)} problems, {len(ratios)} times: rank {np.mean(ranked):.2f}, first choice "
        f"{geometric_mean([s.first for s in some]):.1%} off, best of five "
        f"{geometric_mean([s.best_of_five for s in some]):.1%}, median error "
        f"{np.median([s.error for s in some]):.0%}, measured over predicted {low:.2f} to {high:.2f}"
    )


def main(words: Sequence[str]) -> None:
    """Print the score of each problem, and of all."""
    by_half, files = list(words) == ["half"], FILES.get(" ".join(words))
    names = () if by_half or files else words
    some = [s for file in files or (FILE, SECOND) for s in scores(names, file)]
    for s in some:
        figures = f"{s.rank:5.2f} {s.first:7.1%} {s.best_of_five:7.1%} {s.error:5.0%}"
        print(f"{s.name:32} {len(s.ratios):3} {s.spread:6.1f}x {figures}")
    if by_half:
        print("developed on:", summary([s for s in some if s.kernel in DEVELOPED]))
        print("others:      ", summary([s for s in some if s.kernel not in DEVELOPED]))
    for title, kind in (("products:    ", True), ("no products: ", False)):
        if alike := [s for s in some if (s.kernel in PRODUCTS) is kind]:
            print(title, summary(alike))
    print("all:         ", summary(some))


if __name__ == "__main__":
    main(sys.argv[1:])
