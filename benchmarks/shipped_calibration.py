"""Write the calibration of `matmul` that comes with the workbench, from exhaustive tables.

    python benchmarks/shipped_calibration.py workbench/device/calibrations/h200.csv.gz

Of each size the file holds the 24 configs that a search with the model measures first, with the
table's times. Sizes to which no constant of the model was fitted are held back: the lines that are
printed are of these. Ragged sizes are left out, as there are two only.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from search import NOT_FITTED, Replay, Shown, fresh, lines, table

from workbench import catalog
from workbench.device.calibration import (
    Calibration,
    CalibrationTime,
    numbers_text,
    plain_numbers,
    resources_of,
    save,
    sizes_in,
)
from workbench.device.correction import calibrated_kernel, guessed_by_row, is_aligned
from workbench.device.hardware import device_named
from workbench.reports.calibration import held_lines
from workbench.tuner.held_back import chosen_launch, error_range, held_sizes
from workbench.tuner.search import Strategy

KERNEL, DTYPE, DEVICE = "matmul", "bf16", "h200"
CONFIGS = 24
ABOUT = {
    "device": DEVICE,
    "gpu": "NVIDIA H200",
    "date": "2026-11-21",
    "versions": "torch 2.11.0, triton 3.6.0, driver 580.159",
    "protocol": "cold first pass of exhaustive sweeps",
    "source": "benchmarks/data/h200_bf16_2026-11-21.csv.gz, h200_bf16_fresh_2026-11-21.csv.gz",
}


def time_of(row: Mapping[str, str], held: bool) -> CalibrationTime:
    """The time of a line of a table."""
    return CalibrationTime(
        row["kernel"], plain_numbers(row["sizes"]), row["dtype"], row["impl"],
        plain_numbers(row["config"]), resources_of(row), float(row["median_us"]) * 1e-6, held=held,
    )  # fmt: skip


def rows_with(
    at: tuple[str, str], impl: str, config: Mapping[str, int], known: Sequence[Mapping[str, str]]
) -> list[Mapping[str, str]]:
    """The row of a config, unless it is among the known ones."""
    wanted = [
        row
        for row in lines()[at]
        if row["impl"] == impl and plain_numbers(row["config"]) == dict(config)
    ]
    return [row for row in wanted if row not in known]


def calibration() -> Calibration:
    """The calibration. Each size also has the default of the first Impl, and a
    held-back one what a launch would take there."""
    spec, device = catalog.spec_of(KERNEL), device_named(DEVICE)
    times: list[CalibrationTime] = []
    aligned = [at for at in lines() if at[0] == KERNEL and is_aligned(spec, plain_numbers(at[1]))]
    for at in aligned:
        held = at[1] in NOT_FITTED or at in fresh()
        first = Replay(table(*at), Strategy.MODEL, Shown.FULL, seed=0).first(CONFIGS)
        rows = [lines()[at][i] for i in first]
        default = vars(spec.impls[0].default(device.limits, DTYPE, plain_numbers(at[1])))
        rows += rows_with(at, spec.impls[0].name, default, rows)
        times += [time_of(row, held) for row in rows]
    kernel = calibrated_kernel(times, spec, device, True, guessed_by_row)
    assert kernel is not None
    for sizes in sizes_in([t for t in times if t.held]):
        chosen = chosen_launch(kernel, device, DTYPE, sizes)
        assert chosen is not None
        at = (KERNEL, numbers_text(sizes))
        there = [row for row in lines()[at] if time_of(row, True) in times]
        more = rows_with(at, chosen[0].name, vars(chosen[1]), there)
        times += [time_of(row, True) for row in more]
    return Calibration(ABOUT, tuple(times))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    wanted = parser.parse_args()
    result = calibration()
    save(result, wanted.out)
    held = held_sizes(catalog.spec_of(KERNEL), DTYPE, device_named(DEVICE), result.times)
    for line in held_lines(held):
        print(line)
    errors = error_range(catalog.spec_of(KERNEL), device_named(DEVICE), result.times)
    print(f"{len(result.times)} times, {wanted.out.stat().st_size} bytes, {errors}")


if __name__ == "__main__":
    main()
