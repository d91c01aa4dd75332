"""Check a calibration at the sizes that it holds back: how near the best known config is the one
that it chooses, and how well do its predictions rank?"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.data.stats import median, quantile, spearman
from workbench.device.calibration import CalibrationTime, sizes_in, times_not_held_back
from workbench.device.correction import (
    CalibratedKernel,
    best_of,
    calibrated_kernel,
    is_aligned,
    left_out,
    measured_config,
)
from workbench.device.hardware import Device
from workbench.spec import Impl, Spec

FEW = 20
FIRST = 5  # configs of the best predicted whose best counts


@dataclass(frozen=True)
class HeldSize:
    """What a calibration says at one size that it holds back, beside what was measured there. Times
    are in seconds, and None where the config was not measured there."""

    sizes: Mapping[str, int]
    best_s: float  # of all configs that were measured
    choice: str  # Impl that a launch without one takes
    chosen_s: float | None
    default_s: float | None  # of the file's first Impl at its default
    first_s: float  # of the config that is predicted the fastest, once it is compiled
    five_s: float  # the least of the five that are
    rank: float  # Spearman's correlation of predicted and measured times; nan of fewer than three
    spread: float  # slowest over fastest measured time
    errors: Sequence[float]  # |predicted / measured - 1| of each config

    @property
    def regret(self) -> float | None:
        """Time of the chosen config over the best known, less 1."""
        return None if self.chosen_s is None else self.chosen_s / self.best_s - 1


def held_sizes(
    spec: Spec, dtype: str, device: Device, times: Sequence[CalibrationTime]
) -> list[HeldSize]:
    """Return each held-back size of a kernel at which its other times correct the model."""
    held = [t for t in times if t.is_check and measured_config(spec, t) is not None]
    results = []
    for sizes in sizes_in(held):
        here = [t for t in held if dict(t.sizes) == sizes]
        if (result := _held_size(spec, dtype, device, times, here)) is not None:
            results.append(result)
    return results


def _held_size(
    spec: Spec,
    dtype: str,
    device: Device,
    times: Sequence[CalibrationTime],
    here: Sequence[CalibrationTime],
) -> HeldSize | None:
    sizes = here[0].sizes
    aligned = is_aligned(spec, sizes)
    kernel = calibrated_kernel(times_not_held_back(times), spec, device, aligned)
    if kernel is None:
        return None
    measured = {_config_key(t.impl, t.config): t.median_s for t in here}
    chosen = chosen_launch(kernel, device, dtype, sizes)
    ranked = _rank_times(kernel, device, [t for t in here if t.impl in kernel.impls])
    if chosen is None or not ranked:
        return None
    first = spec.impls[0]
    default = first.default(device.limits, dtype, sizes)
    predicted, actual = zip(*ranked, strict=True)
    return HeldSize(
        dict(sizes),
        min(measured.values()),
        chosen[0].name,
        measured.get(_config_key(chosen[0].name, vars(chosen[1]))),
        measured.get(_config_key(first.name, vars(default))),
        actual[0],
        min(actual[:FIRST]),
        spearman(predicted, actual) if len(ranked) > 2 else math.nan,
        max(actual) / min(actual),
        [abs(p / s - 1) for p, s in ranked],
    )


def _config_key(impl: str, config: Mapping[str, int]) -> tuple[Any, ...]:
    return impl, tuple(sorted(config.items()))


def chosen_launch(
    kernel: CalibratedKernel, device: Device, dtype: str, sizes: Mapping[str, int]
) -> tuple[Impl, Any] | None:
    """Return the Impl and config that a launch takes which names neither; None where none of the
    calibrated Impls takes these sizes."""
    each = [
        (estimate, impl)
        for impl in kernel.spec.impls
        if impl.name in kernel.impls
        and (estimate := best_of(kernel, impl, device, dtype, sizes)) is not None
    ]
    if not each:
        return None
    estimate, impl = min(each, key=lambda one: one[0].seconds)
    return impl, estimate.config


def _rank_times(
    kernel: CalibratedKernel, device: Device, here: Sequence[CalibrationTime]
) -> list[tuple[float, float]]:
    """Return predicted and measured seconds, the fastest predicted first."""
    each = [(p, t.median_s) for t in here if (p := measured_config(kernel.spec, t)) is not None]
    predicted = kernel.seconds([place for place, _ in each], device, kernel.dtype)
    pairs = zip(predicted, (measured_s for _, measured_s in each), strict=True)
    return sorted(pair for pair in pairs if math.isfinite(pair[0]))


@dataclass(frozen=True)
class ErrorRange:
    """Measured over corrected time of a kernel, each size corrected by the times at the others:
    from the 5th to the 95th percentile, of all where there are fewer than 20."""

    low: float
    high: float


def error_range(spec: Spec, device: Device, times: Sequence[CalibrationTime]) -> ErrorRange | None:
    """Return the range of errors of a kernel's times; None where they correct nothing."""
    ratios: list[float] = []
    for aligned in (True, False):
        kernel = calibrated_kernel(times, spec, device, aligned)
        ratios += left_out(kernel) if kernel is not None else []
    if not ratios:
        return None
    if len(ratios) < FEW:
        return ErrorRange(min(ratios), max(ratios))
    return ErrorRange(*(quantile(ratios, share) for share in (0.05, 0.95)))


def summary_of(held: Sequence[HeldSize]) -> dict[str, float]:
    """Return the figures of all held-back sizes of a kernel: shares and ratios, not times."""
    regrets = [r for h in held if (r := h.regret) is not None]
    spread = [h.rank for h in held if h.spread > 1.1 and not math.isnan(h.rank)]
    result = {
        "sizes": float(len(held)),
        "chosen_within_5": sum(r <= 0.05 for r in regrets) / len(held),
        "chosen_worst": max(regrets, default=math.nan),
        "default_worst": max(
            (h.default_s / h.best_s - 1 for h in held if h.default_s), default=math.nan
        ),
        "first_median": median([h.first_s / h.best_s - 1 for h in held]),
        "first_worst": max(h.first_s / h.best_s - 1 for h in held),
        "five_worst": max(h.five_s / h.best_s - 1 for h in held),
        "rank_least": min(spread, default=math.nan),
        "error_median": median([e for h in held for e in h.errors]),
    }
    return result
