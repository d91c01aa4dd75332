"""Page of a calibration: how near the best known config a launch comes at sizes held back.

Everything here is a pure function of a calibration, and runs without a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from workbench import catalog
from workbench.data.units import duration, three_digits
from workbench.device.calibration import Calibration, sizes_in
from workbench.device.hardware import Device
from workbench.reports import render
from workbench.reports.figures.calibration import regrets
from workbench.reports.tables import Columns, table, text_table
from workbench.spec import sizes_text
from workbench.tuner.held_back import ErrorRange, HeldSize, error_range, held_sizes, summary_of

if TYPE_CHECKING:
    from rich.console import Console


@dataclass(frozen=True)
class CalibratedPart:
    """A kernel of a calibration at one dtype, and what it gives at the sizes held back."""

    kernel: str
    dtype: str
    measured_sizes: int  # sizes that correct the model
    times: int
    errors: ErrorRange | None
    held_sizes: Sequence[HeldSize]

    @property
    def title(self) -> str:
        """Name of the part: `matmul in bf16`."""
        return f"{self.kernel} in {self.dtype}"

    @property
    def plain(self) -> dict[str, Any]:
        """The part as plain data: shares and ratios."""
        figures = summary_of(self.held_sizes) if self.held_sizes else {}
        numbers = {name: x for name, x in figures.items() if not math.isnan(x)}
        errors = [self.errors.low, self.errors.high] if self.errors else None
        about = {"kernel": self.kernel, "dtype": self.dtype, "measured_sizes": self.measured_sizes}
        return {**about, "times": self.times, "errors": errors, "held_back": numbers}


def part_of(calibration: Calibration, kernel: str, dtype: str, device: Device) -> CalibratedPart:
    """Return a kernel of a calibration, checked at the sizes that it holds back."""
    times = calibration.times_of(kernel, dtype)
    spec, used = catalog.spec_of(kernel), [t for t in times if not t.is_check]
    sizes, errors = held_sizes(spec, dtype, device, times), error_range(spec, device, times)
    return CalibratedPart(kernel, dtype, len(sizes_in(used)), len(used), errors, sizes)


def _slowdown_text(regret: float | None) -> str:
    """Return how much slower than the best known a time is: `+3.1 %`."""
    if regret is None or math.isnan(regret):
        return "not measured"
    return f"+{100 * regret:.1f} %"


def _held_figure(
    name: str, write: Callable[[float], str] = _slowdown_text
) -> Callable[[CalibratedPart], str]:
    """Return the cell of a figure over the sizes held back, empty where there are none."""
    return lambda part: write(summary_of(part.held_sizes)[name]) if part.held_sizes else ""


def _excess_cell(name: str) -> Callable[[HeldSize], str]:
    def cell(size: HeldSize) -> str:
        seconds = getattr(size, name)
        return _slowdown_text(seconds / size.best_s - 1 if seconds else None)

    return cell


def _share_text(part: CalibratedPart) -> str:
    many = len(part.held_sizes)
    return _held_figure("chosen_within_5", lambda share: f"{round(share * many)} of {many}")(part)


def _rank_figure(rank: float) -> str:
    return "" if math.isnan(rank) else f"{rank:.2f}"


def _range_text(part: CalibratedPart) -> str:
    errors = part.errors
    return f"{errors.low:.2f} to {errors.high:.2f}" if errors else "too few sizes"


def _rank_text(size: HeldSize) -> str:
    """Return the rank correlation, or that it means nothing."""
    if size.spread <= 1.1:
        return f"all within {size.spread - 1:.0%}"
    return "too few" if math.isnan(size.rank) else f"{size.rank:.2f}"


KERNELS: Columns = (
    ("kernel", lambda part: part.title),
    ("sizes", lambda part: str(part.measured_sizes)),
    ("held back", lambda part: str(len(part.held_sizes))),
    ("chosen within 5 %", _share_text),
    ("chosen, worst", _held_figure("chosen_worst")),
    ("default, worst", _held_figure("default_worst")),
    ("first predicted, median", _held_figure("first_median")),
    ("first, worst", _held_figure("first_worst")),
    ("best of five, worst", _held_figure("five_worst")),
    ("rank, least", _held_figure("rank_least", _rank_figure)),
    ("error, median", _held_figure("error_median", "{:.0%}".format)),
    ("measured / predicted", _range_text),
)
SIZES: Columns = (
    ("sizes", lambda size: sizes_text(size.sizes)),
    ("best known", lambda size: duration(size.best_s)),
    ("launch takes", lambda size: size.choice),
    ("its time", lambda size: duration(size.chosen_s) if size.chosen_s else "not measured"),
    ("over the best", lambda size: _slowdown_text(size.regret)),
    ("default", _excess_cell("default_s")),
    ("first predicted", _excess_cell("first_s")),
    ("best of five", _excess_cell("five_s")),
    ("rank", _rank_text),
)


def sentence(calibration: Calibration, parts: Sequence[CalibratedPart]) -> str:
    """Return what the calibration gives in one or two sentences."""
    sizes = [h for part in parts for h in part.held_sizes]
    kernels = f"{len(parts)} kernel{'s' * (len(parts) != 1)}"
    begin = f"The {calibration.title} has {len(calibration.times):,} times of {kernels}."
    if not sizes:
        return f"{begin} It holds no sizes back, so nothing checks it."
    regrets_ = [r for h in sizes if (r := h.regret) is not None]
    near = sum(r <= 0.05 for r in regrets_)
    left = len(sizes) - len(regrets_)
    more = f" At {left} more, what it takes was not timed." if left else ""
    return (
        f"{begin} At {near} of {len(regrets_)} sizes that it holds back, a launch without a config "
        f"takes at most 5 % longer than the best known config; at the worst it takes "
        f"{three_digits(100 * max(regrets_, default=math.nan))} % longer.{more}"
    )


def show(console: Console, parts: Sequence[CalibratedPart]) -> None:
    """Print the table of kernels."""
    shown = table(KERNELS, parts)
    console.print(text_table(shown["heads"], (cells for cells, _ in shown["rows"])))


def page(calibration: Calibration, parts: Sequence[CalibratedPart], device: Device) -> str:
    """Return the page as HTML."""
    return render(
        "calibration.html.j2",
        run=SimpleNamespace(
            kernel="calibration", engine="held-back sizes", device=device.title, predicted=False
        ),
        about=calibration.metadata,
        sentence=sentence(calibration, parts),
        kernels=table(KERNELS, parts),
        sizes=[(p.title, table(SIZES, p.held_sizes, text=(2,))) for p in parts if p.held_sizes],
        figure=regrets(
            [
                (p.title, ratios(p.held_sizes, "chosen_s"), ratios(p.held_sizes, "default_s"))
                for p in parts
                if p.held_sizes
            ],
            "calibration",
        ),
    )


def ratios(sizes: Sequence[HeldSize], name: str) -> list[float]:
    """Return times over the best known at the sizes where this one was measured."""
    return [seconds / h.best_s for h in sizes if (seconds := getattr(h, name))]
