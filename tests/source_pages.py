"""Source pages of ncu, written by tests: instructions with executions, lanes and samples."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

SHORT = {"long_scoreboard": "long_sb", "short_scoreboard": "short_sb", "lg_throttle": "lg"}
REASONS = ("barrier", "lg_throttle", "long_scoreboard", "membar", "not_selected", "selected",
           "short_scoreboard", "wait")  # fmt: skip
HEADS = (
    "Address", "Source", "# Samples", "Instructions Executed", "Thread Instructions Executed",
    "Predicated-On Thread Instructions Executed", "L2 Theoretical Sectors Global Excessive",
    "L2 Theoretical Sectors Global Ideal",
)  # fmt: skip


@dataclass(frozen=True)
class PageRow:
    """One instruction: how often warps executed it, with how many lanes on, and its samples."""

    text: str
    executed: int = 1000
    lanes: float = 32.0
    samples: Mapping[str, int] = field(default_factory=dict)

    @property
    def cells(self) -> list[str]:
        """The row without its address, as ncu prints it."""
        of = [str(self.samples.get(reason, 0)) for reason in REASONS]
        threads = [str(32 * self.executed), str(int(self.lanes * self.executed))]
        return [self.text, str(sum(self.samples.values())), str(self.executed), *threads,
                "0", "0", *of]  # fmt: skip


def source_page(*kernels: tuple[str, Sequence[PageRow]], without: str = "") -> str:
    """The CSV of a source page; `without` leaves out the columns whose head begins with it."""
    lines: list[list[str]] = []
    for name, rows in kernels:
        heads = [*HEADS, *(f"stall_{SHORT.get(reason, reason)}" for reason in REASONS)]
        kept = [i for i, head in enumerate(heads) if not (without and head.startswith(without))]
        lines += [["Kernel Name", name, ""], [heads[i] for i in kept]]
        for number, row in enumerate(rows):
            cells = [f"{0x7F00 + 16 * number:#x}", *row.cells]
            lines.append([cells[i] for i in kept])
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(lines)
    return out.getvalue()


def sampled(reason: str, number: int) -> dict[str, int]:
    """Samples of one reason."""
    return {reason: number}
