"""How near the fastest Impl the model comes before compiling, beside the first Impl of the file.

    python benchmarks/impl_order.py

For each size of the goals at which several Impls were timed, each at its default: the time of the
Impl that `workbench.ops` takes on a GPU without measured times, over that of the fastest one.
"""

from __future__ import annotations

import csv
import gzip
from collections import defaultdict
from collections.abc import Iterator

from bands import DATA, GOALS

from workbench import catalog
from workbench.data.stats import geomean
from workbench.device.calibration import plain_numbers
from workbench.device.cost_model import guess_seconds
from workbench.device.hardware import device_named

NEAR = 1.05


def ratios(device: str) -> Iterator[tuple[str, float, float]]:
    """Yield kernel and sizes, and the time of the model's Impl and of the file's first over the
    best."""
    known = device_named(device)
    times: dict[tuple[str, str, str], dict[str, tuple[float, str]]] = defaultdict(dict)
    with gzip.open(DATA / GOALS[device], "rt") as file:
        for row in csv.DictReader(file):
            at = row["kernel"], row["sizes"], row["dtype"]
            times[at][row["impl"]] = float(row["median_us"]), row["config"]
    for (kernel, sizes, dtype), timed in times.items():
        if len(timed) < 2:
            continue
        spec = catalog.spec_of(kernel)
        expected = {
            impl.name: guess_seconds(
                impl, impl.config(**plain_numbers(timed[impl.name][1])), known, dtype,
                plain_numbers(sizes),
            )
            for impl in spec.impls if impl.name in timed
        }  # fmt: skip
        best = min(us for us, _ in timed.values())
        chosen, first = min(expected, key=expected.__getitem__), next(iter(expected))
        yield f"{kernel} {sizes}", timed[chosen][0] / best, timed[first][0] / best


def main() -> None:
    for device in GOALS:
        rows = list(ratios(device))
        for name, of_model, of_file in rows:
            if max(of_model, of_file) > NEAR:
                print(f"{device} {name:50} model {of_model:.2f}  file's first {of_file:.2f}")
        for title, column in (("model", 1), ("file's first", 2)):
            over = [row[column] for row in rows]
            near = sum(x <= NEAR for x in over)
            print(
                f"{device} {title}: within 5 % at {near} of {len(over)}, geometric mean "
                f"{geomean(over):.3f}, worst {max(over):.2f}"
            )


if __name__ == "__main__":
    main()
