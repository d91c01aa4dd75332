"""Does the calibration of an H100 choose well on an H200? On the exhaustive tables of `matmul`.

    python benchmarks/calibration_elsewhere.py

For each aligned size of the tables in benchmarks/data: the config of `tiles` or `persistent` that a
launch on an H200 takes by the ratios of the H100, and its time over the best of all configs in the
table; nothing where the kernel has gained configs since, and one of these is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from search import lines

from workbench import catalog
from workbench.data.units import console_microseconds
from workbench.device.calibration import SHIPPED, load, plain_numbers
from workbench.device.correction import best_of, calibrated_kernel, is_aligned
from workbench.device.hardware import device_named
from workbench.spec import values

KERNEL, DTYPE, SOURCE, DEVICE = "matmul", "bf16", "h100", "h200"
IMPLS = ("tiles", "persistent")  # of the tables


@dataclass(frozen=True)
class Choice:
    """What a launch takes at certain sizes, in seconds."""

    sizes: Mapping[str, int]
    impl: str
    config: Any
    time_s: float | None  # None where it is not in the table
    best_s: float
    default_s: float | None

    @property
    def regret(self) -> float | None:
        """Its time over the best, less 1."""
        return None if self.time_s is None else self.time_s / self.best_s - 1


def choices() -> Iterator[Choice]:
    """Yield the choice at each aligned size of the tables."""
    spec, device = catalog.spec_of(KERNEL), device_named(DEVICE)
    times = load(SHIPPED / f"{SOURCE}.csv.gz").times_of(KERNEL, DTYPE)
    kernel = calibrated_kernel(times, spec, device_named(SOURCE), aligned=True)
    assert kernel is not None
    for at, rows in lines().items():
        sizes = plain_numbers(at[1])
        if at[0] != KERNEL or not is_aligned(spec, sizes):
            continue
        known = {
            _config_key(row["impl"], plain_numbers(row["config"])): float(row["median_us"]) * 1e-6
            for row in rows
        }
        impls = [catalog.impl_of(spec, name) for name in IMPLS]
        each = [(e, i) for i in impls if (e := best_of(kernel, i, device, DTYPE, sizes))]
        estimate, impl = min(each, key=lambda one: one[0].seconds)
        default = impls[0].default(device.limits, DTYPE, sizes)
        yield Choice(
            sizes,
            impl.name,
            estimate.config,
            known.get(_config_key(impl.name, values(estimate.config))),
            min(known.values()),
            known.get(_config_key(IMPLS[0], values(default))),
        )


def _config_key(impl: str, config: Mapping[str, int]) -> tuple[Any, ...]:
    return impl, tuple(sorted(config.items()))


def main() -> None:
    for one in choices():
        at = ",".join(f"{axis}={extent}" for axis, extent in one.sizes.items())
        loss_text = "not in the table" if one.regret is None else f"{one.regret:+.1%}"
        default = f"{one.default_s / one.best_s - 1:+.1%}" if one.default_s else "not in the table"
        best = console_microseconds(one.best_s)
        print(f"{at}: best {best}; chosen {one.impl} {loss_text}; default {default}")


if __name__ == "__main__":
    main()
