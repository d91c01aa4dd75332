"""Compute the error bands of the analytic model: measured over predicted times, by device.

    python benchmarks/bands.py h200

It prints the `[[bands]]` of `workbench/devices/NAME.toml`, from the tables of that device in
`benchmarks/data`. A band is the range from the 5th to the 95th percentile, and that of all times
where there are fewer than 20. A band with a kind serves kernels that no other band names.
"""

from __future__ import annotations

import csv
import gzip
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from workbench import catalog
from workbench.backend.offline import predicted_time
from workbench.compile import Compiled
from workbench.data import stats
from workbench.device.calibration import each_of, plain_numbers, resources_of
from workbench.device.correction import kernels_for
from workbench.device.cost_model import guess, guess_seconds, predict
from workbench.device.hardware import Device, device_named
from workbench.spec import values

DATA = Path(__file__).parent / "data"
FIRST_PASSES: Mapping[str, tuple[str, ...]] = {"h200": ("h200_bf16_2026-11-21.csv.gz",), "h100": ()}
GOALS: Mapping[str, str] = {
    "h200": "h200_goals_2026-11-26.csv.gz",
    "h100": "h100_goals_2026-11-26.csv.gz",
}
LAUNCHES: Mapping[str, str] = {"h200": "h200_launch_sized.csv"}
CLASSES: Mapping[str, tuple[str, ...]] = {
    "matrix products": ("matmul", "fp8_matmul", "fp8_block_matmul", "patch_embed", "lora"),
    "quantised products": ("q4_k_matmul",),
    "attention": ("attention", "causal_attention", "decode_attention"),
    "recurrences": ("wkv6", "wkv7"),
    "sampling": ("sample_topk_topp", "sample_top_p"),
    "low-rank updates": ("lora_delta",),
    "rows and elements": (
        *("softmax", "rms_norm", "fused_add_rms_norm", "layer_norm", "swiglu", "rope", "copy"),
    ),
}
FEW = 20  # times below which a band is the whole range
LEAST = 4  # times without which a class has no band


@dataclass(frozen=True)
class Pair:
    """A measured time and its prediction, in seconds."""

    kernel: str
    impl: str
    sizes: str
    measured_s: float
    predicted_s: float
    matrix: bool
    table: str
    binary: str = ""

    @property
    def ratio(self) -> float:
        """Return measured over predicted time."""
        return self.measured_s / self.predicted_s


@cache
def pairs_of(name: str, device: str) -> tuple[Pair, ...]:
    """Return the times of a table, each beside what the model predicts from its resources."""
    with gzip.open(DATA / name, "rt") as file:
        rows = list(csv.DictReader(file))
    return tuple(_pair(row, device_named(device), name) for row in rows)


_spec_of = cache(catalog.spec_of)  # it looks a file up and checks it, 3 ms for each of 9,000 times


def _pair(row: Mapping[str, str], device: Device, table: str) -> Pair:
    spec, at, dtype = _spec_of(row["kernel"]), plain_numbers(row["sizes"]), row["dtype"]
    impl, config = catalog.impl_of(spec, row["impl"]), plain_numbers(row["config"])
    created = Compiled(resources_of(row), "", (), int(row.get("launches", 1)), each=each_of(row))
    predicted = predicted_time(
        device, created, impl.work_of(impl.config(**config), device.limits, dtype, at), dtype,
        spec.flops(**at), spec.bytes(at, dtype), config.get("num_stages", 1),
    )  # fmt: skip
    return Pair(
        row["kernel"], row["impl"], row["sizes"], float(row["median_us"]) * 1e-6,
        predicted.predicted_s, bool(row["matrix_unit"]), table, row["binary"],
    )  # fmt: skip


def estimates(name: str, device: str) -> Iterator[Pair]:
    """Yield the times of a table, each beside what `workbench predict` says before compiling."""
    known = device_named(device)
    with gzip.open(DATA / name, "rt") as file:
        for row in csv.DictReader(file):
            spec, at, dtype = _spec_of(row["kernel"]), plain_numbers(row["sizes"]), row["dtype"]
            impl = catalog.impl_of(spec, row["impl"])
            config = impl.config(**plain_numbers(row["config"]))
            kernel = next(kernels_for(spec, known, dtype, at), None)
            if kernel is None:
                predicted_s = guess_seconds(impl, config, known, dtype, at)
            else:
                place = kernel.estimate_resources(impl, config, known, at)
                (predicted_s,) = kernel.seconds([place], known, dtype) if place else (math.inf,)
            if math.isfinite(predicted_s):
                yield Pair(
                    row["kernel"], row["impl"], row["sizes"], float(row["median_us"]) * 1e-6,
                    predicted_s, bool(row["matrix_unit"]), name,
                )  # fmt: skip


def launch_sized(device: str) -> Iterator[Pair]:
    """Yield launch-sized kernels at their defaults, predicted before compiling."""
    if device not in LAUNCHES:
        return
    known = device_named(device)
    with (DATA / LAUNCHES[device]).open() as file:
        for row in csv.DictReader(file):
            spec, at, dtype = (
                catalog.spec_of(row["kernel"]),
                plain_numbers(row["sizes"]),
                row["dtype"],
            )
            impl = spec.impls[0]
            config = impl.default(known.limits, dtype, at)
            knobs = values(config)
            stages = knobs.get("num_stages", 1)
            (work,) = impl.work_of(config, known.limits, dtype, at) or ()
            predicted = predict(
                known, work, guess(known, work, dtype, warps=knobs["num_warps"], stages=stages),
                dtype=dtype, flops=spec.flops(**at), bytes_=spec.bytes(at, dtype), stages=stages,
            )  # fmt: skip
            measured_s = float(row["median_us"]) * 1e-6
            yield Pair(
                row["kernel"], impl.name, row["sizes"], measured_s, predicted.predicted_s, False,
                LAUNCHES[device],
            )  # fmt: skip


@dataclass(frozen=True)
class Computed:
    """An error band."""

    title: str
    kind: str | None
    kernels: tuple[str, ...]
    ratios: tuple[float, ...]
    sources: tuple[str, ...]

    @property
    def ends(self) -> tuple[float, float]:
        """Return the low and the high end, of two decimals."""
        if len(self.ratios) < FEW:
            low, high = min(self.ratios), max(self.ratios)
        else:
            low, high = (stats.quantile(self.ratios, share) for share in (0.05, 0.95))
        return round(low, 2), round(high, 2)

    def toml(self) -> str:
        """Return it as a table of a device's file."""
        low, high = self.ends
        kind = f'kind = "{self.kind}"\n' if self.kind else ""
        return (
            f'[[bands]]\ntitle = "{self.title}"\n{kind}kernels = "{", ".join(self.kernels)}"\n'
            f"low = {low:.2f}\nhigh = {high:.2f}\ntimes = {len(self.ratios)}\n"
            f'source = "{", ".join(self.sources)}"\n'
        )


def bands(device: str) -> list[Computed]:
    """Return the bands of a device: one for each class of kernels with times, and one for each kind
    of kernels that no class names, of the times of all classes."""
    goals, first_pass = pairs_of(GOALS[device], device), list[Pair]()
    for name in FIRST_PASSES[device]:
        first_pass += pairs_of(name, device)
    result = []
    for title, kernels in CLASSES.items():
        ours = [p for p in (*first_pass, *goals) if p.kernel in kernels]
        if len(ours) >= LEAST:
            result.append(_computed_band(title, None, ours))
    kinds = {"product": "other kernels with matrix products", "stream": "other kernels"}
    for kind, title in kinds.items():
        ours = [p for p in goals if p.matrix == (kind == "product")]
        if ours:
            result.append(_computed_band(title, kind, ours))
    if launches := list(launch_sized(device)):
        result.append(_computed_band("other launch-sized kernels", "launch", launches))
    before = list(estimates(GOALS[device], device))
    result.append(_computed_band("configs predicted before compiling", "estimate", before))
    return result


def _computed_band(title: str, kind: str | None, ours: list[Pair]) -> Computed:
    kernels = tuple(dict.fromkeys(p.kernel for p in ours))
    tables = tuple(f"benchmarks/data/{name}" for name in dict.fromkeys(p.table for p in ours))
    return Computed(title, kind, kernels, tuple(p.ratio for p in ours), tables)


def main() -> None:
    for device in sys.argv[1:] or GOALS:
        errors = [abs(1 / p.ratio - 1) for p in pairs_of(GOALS[device], device)]
        print(f"# {device}: median error of {len(errors)} defaults {stats.median(errors):.1%}")
        print("\n".join(band.toml() for band in bands(device)))


if __name__ == "__main__":
    main()
