"""Write the times of `kernels_*.json` beside the resources of their configs, as one table.

The configs are compiled offline for the device that they were measured on. `bands.py` computes the
error bands of the model from these tables; see `benchmarks/data/README.md`.

    python benchmarks/goal_table.py benchmarks/data/kernels_h200.json h200 OUT.csv.gz
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from kernels import GOALS
from tables import HEADS, RESOURCES

from workbench import catalog
from workbench.backend.workers import cpu_count
from workbench.compile import CompileError, compile_config
from workbench.device.calibration import each_text
from workbench.device.hardware import device_named
from workbench.spec import sizes_text

Row = tuple[str, dict[str, int], str, str, dict[str, Any], float]


def measured_rows(cases: Mapping[str, Any]) -> Iterator[Row]:
    """Yield kernel, sizes, dtype, Impl, config and microseconds of each time in a final."""
    for goal in GOALS:
        final = cases.get(goal.name, {"final": {}})["final"]
        names = {i.name for i in catalog.spec_of(goal.kernel).impls if i.backend == "triton"}
        for name, one in final.items():
            if name in names and one["method"] == "graph":
                yield goal.kernel, dict(goal.sizes), goal.dtype, name, one["config"], one["us"]


def compile_row(row: Row, device: str) -> list[Any] | str:
    """Return the line of a time; a sentence where its config no longer compiles."""
    kernel, sizes, dtype, name, config, us = row
    impl = catalog.impl_of(catalog.spec_of(kernel), name)
    at = sizes_text(sizes).replace(",", " ")
    try:
        result = compile_config(impl, impl.config(**config), sizes, dtype, device_named(device))
    except (CompileError, TypeError, ValueError) as error:
        return f"{kernel}.{name} {at}: {error}"
    created = result.resources
    assert created is not None
    text = " ".join(f"{k}={v}" for k, v in config.items())
    each = result.each if len(result.each) > 1 else ()
    return [
        kernel, at, dtype, name, text, *(getattr(created, n) for n in RESOURCES),
        int(created.copy_engine), created.matrix_unit or "", created.binary[:8], f"{us:.3f}",
        result.launches, each_text(each),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("measured", type=Path)
    parser.add_argument("device")
    parser.add_argument("out", type=Path)
    wanted = parser.parse_args()
    rows = list(measured_rows(json.loads(wanted.measured.read_text())["cases"]))
    with ProcessPoolExecutor(cpu_count(), get_context("spawn")) as pool:
        lines = list(pool.map(compile_row, rows, [wanted.device] * len(rows)))
    for failure in (line for line in lines if isinstance(line, str)):
        print(f"left out: {failure}")
    with gzip.open(wanted.out, "wt", newline="") as file:
        table = csv.writer(file)
        table.writerow((*HEADS, "launches", "each"))
        table.writerows(line for line in lines if not isinstance(line, str))
    print(f"{sum(not isinstance(line, str) for line in lines)} of {len(rows)} times: {wanted.out}")


if __name__ == "__main__":
    main()
