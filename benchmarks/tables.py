"""Tables of `exhaustive.py` as one file of comma-separated values, for `benchmarks/data/`.

python benchmarks/tables.py data/h200_bf16_fresh_2026-11-21.csv.gz MATMUL.json SWIGLU.json
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from workbench.device.calibration import RESOURCES

HEADS = (
    "kernel", "sizes", "dtype", "impl", "config", *RESOURCES, "copy_engine", "matrix_unit",
    "binary", "median_us",
)  # fmt: skip


def rows_of(result: Mapping[str, Any]) -> Iterator[list[Any]]:
    """One line a config that was timed."""
    for table in result["tables"]:
        sizes = " ".join(f"{axis}={n}" for axis, n in table["sizes"].items())
        for row in table["rows"]:
            if not row.get("median_s"):
                continue
            created, config = (
                row["resources"],
                " ".join(f"{k}={v}" for k, v in row["config"].items()),
            )
            yield [
                result["kernel"], sizes, table["dtype"], row["impl"], config,
                *(created[name] for name in RESOURCES), int(created["copy_engine"]),
                created["matrix_unit"] or "", created["binary"][:8], f"{row['median_s'] * 1e6:.3f}",
            ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("tables", nargs="+", type=Path)
    wanted = parser.parse_args()
    with gzip.open(wanted.out, "wt", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(HEADS)
        for path in wanted.tables:
            lines.writerows(rows_of(json.loads(path.read_text())))


if __name__ == "__main__":
    main()
