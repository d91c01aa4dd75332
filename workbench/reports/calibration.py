"""Page of a calibration: how near the best known config a launch comes at sizes held back.

Everything here is a pure function of a calibration, and runs without a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from workbench import catalog
from workbench.data.units import duration, three_digits
from workbench.device.calibration import Calibration, sizes_in
from workbench.device.hardware import Device
from workbench.reports import render
from workbench.reports.figures.calibration import HeldPoint, regrets
from workbench.spec import sizes_text
from workbench.tuner.held_back import ErrorRange, HeldSize, error_range, held_sizes, summary_of

if TYPE_CHECKING:
    from rich.console import Console

HEADS = (
    "kernel", "sizes", "held back", "chosen within 5 %", "chosen, worst", "default, worst",
    "first predicted, median", "first, worst", "best of five, worst", "rank, least",
    "error, median", "measured / predicted",
)  # fmt: skip
SIZE_HEADS = (
    "sizes", "best known", "launch takes", "its time", "over the best", "default",
    "first predicted", "best of five", "rank",
)  # fmt: skip


@dataclass(frozen=True)
class CalibratedPart:
    """A kernel of a calibration at one dtype, and what it gives at the sizes held back."""

    kernel: str
    dtype: str
    measured: int  # sizes that correct the model
    times: int
    errors: ErrorRange | None
    held: Sequence[HeldSize]

    @property
    def title(self) -> str:
        """Name of the part: `matmul in bf16`."""
        return f"{self.kernel} in {self.dtype}"

    @property
    def plain(self) -> dict[str, Any]:
        """The part as plain data: shares and ratios."""
        figures = summary_of(self.held) if self.held else {}
        known = {name: x for name, x in figures.items() if not math.isnan(x)}
        errors = [self.errors.low, self.errors.high] if self.errors else None
        about = {"kernel": self.kernel, "dtype": self.dtype, "measured_sizes": self.measured}
        return {**about, "times": self.times, "errors": errors, "held_back": known}


def part_of(known: Calibration, kernel: str, dtype: str, device: Device) -> CalibratedPart:
    """Return a kernel of a calibration, checked at the sizes that it holds back."""
    times = known.times_of(kernel, dtype)
    spec, used = catalog.spec_of(kernel), [t for t in times if not t.held]
    held, errors = held_sizes(spec, dtype, device, times), error_range(spec, device, times)
    return CalibratedPart(kernel, dtype, len(sizes_in(used)), len(used), errors, held)


def cells(part: CalibratedPart) -> list[str]:
    """Return the cells under HEADS."""
    known = part.errors
    errors = f"{known.low:.2f} to {known.high:.2f}" if known else "too few sizes"
    begin = [part.title, str(part.measured), str(len(part.held))]
    if not part.held:
        return [*begin, *[""] * 8, errors]
    s = summary_of(part.held)
    within = f"{round(s['chosen_within_5'] * s['sizes'])} of {len(part.held)}"
    shares = (*("chosen_worst", "default_worst", "first_median", "first_worst", "five_worst"),)
    rank = "" if math.isnan(s["rank_least"]) else f"{s['rank_least']:.2f}"
    return [
        *begin,
        within,
        *(_slowdown_text(s[n]) for n in shares),
        rank,
        f"{s['error_median']:.0%}",
        errors,
    ]


def _slowdown_text(regret: float | None) -> str:
    """Return how much slower than the best known a time is: `+3.1 %`."""
    if regret is None or math.isnan(regret):
        return "not measured"
    return f"+{100 * regret:.1f} %"


def size_cells(held: HeldSize) -> list[str]:
    """Return the cells under SIZE_HEADS."""
    shares = (held.default_s, held.first_s, held.five_s)
    chosen = duration(held.chosen_s) if held.chosen_s else "not measured"
    return [
        sizes_text(held.sizes),
        duration(held.best_s),
        held.chosen,
        chosen,
        _slowdown_text(held.regret),
        *(_slowdown_text(s / held.best_s - 1 if s else None) for s in shares),
        _rank_text(held),
    ]


def _rank_text(held: HeldSize) -> str:
    """Return the rank correlation, or that it means nothing."""
    if held.spread <= 1.1:
        return f"all within {held.spread - 1:.0%}"
    return "too few" if math.isnan(held.rank) else f"{held.rank:.2f}"


def sentence(known: Calibration, parts: Sequence[CalibratedPart]) -> str:
    """Return what the calibration gives in one or two sentences."""
    held = [h for part in parts for h in part.held]
    kernels = f"{len(parts)} kernel{'s' * (len(parts) != 1)}"
    begin = f"The {known.title} has {len(known.times):,} times of {kernels}."
    if not held:
        return f"{begin} It holds no sizes back, so nothing checks it."
    regrets_ = [r for h in held if (r := h.regret) is not None]
    near = sum(r <= 0.05 for r in regrets_)
    left = len(held) - len(regrets_)
    more = f" At {left} more, what it takes was not timed." if left else ""
    return (
        f"{begin} At {near} of {len(regrets_)} sizes that it holds back, a launch without a config "
        f"takes at most 5 % longer than the best known config; at the worst it takes "
        f"{three_digits(100 * max(regrets_, default=math.nan))} % longer.{more}"
    )


def show(console: Console, parts: Sequence[CalibratedPart]) -> None:
    """Print the table of kernels."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for n, head in enumerate(HEADS):
        table.add_column(head, justify="left" if n == 0 else "right")
    for part in parts:
        table.add_row(*map(Text, cells(part)))
    console.print(table)


def page(known: Calibration, parts: Sequence[CalibratedPart], device: Device) -> str:
    """Return the page as HTML."""
    return render(
        "calibration.html.j2",
        run=SimpleNamespace(
            kernel="calibration", engine="held-back sizes", device=device.title, predicted=False
        ),
        about=known.about,
        sentence=sentence(known, parts),
        heads=HEADS,
        rows=[cells(part) for part in parts],
        size_heads=SIZE_HEADS,
        sizes=[(p.title, [size_cells(h) for h in p.held]) for p in parts if p.held],
        figure=regrets([(p.title, points(p.held)) for p in parts if p.held], "calibration"),
    )


def points(held: Sequence[HeldSize]) -> list[HeldPoint]:
    """Return what the figure draws of each size: times over the best known."""
    return [
        HeldPoint(
            sizes_text(h.sizes),
            h.chosen_s / h.best_s if h.chosen_s else None,
            h.default_s / h.best_s if h.default_s else None,
        )
        for h in held
    ]
