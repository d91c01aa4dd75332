"""What a sweep says on the terminal: a bar with counts where one looks, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.record import Outcome, Record, Run
from workbench.spec import label

if TYPE_CHECKING:
    from workbench.sweep import Plan


class Terminal:
    """Draws to a Rich console; `quiet` says the answer and the page's path, nothing else."""

    def __init__(self, quiet: bool) -> None:
        from rich.console import Console

        self.console = Console(highlight=False, soft_wrap=True)
        self.quiet = quiet
        self._bar: Any = None
        self._task: Any = None
        self._best: Record | None = None

    def begin(self, run: Run, plan: Plan, earlier: int) -> None:
        """Say what was asked and on what, then start the bar."""
        if self.quiet:
            return
        where = plan_line(run)
        style = "bold yellow" if run.predicted else "bold"
        self.console.print(where, style=style)
        sizes = ", ".join(f"{k} = {v}" for k, v in run.sizes.items())
        self.console.print(f"{run.kernel}, {sizes}, {run.dtype}; sweep {run.name}")
        counts = f"{len(plan.candidates)} configs to try"
        if plan.left_out:
            counts += f" (the model's best of {len(plan.candidates) + plan.left_out})"
        if plan.refused:
            counts += f", {len(plan.refused)} refused beforehand"
        if earlier:
            counts += f", {earlier} known from earlier runs"
        self.console.print(counts)
        if self.console.is_terminal:
            self._start(len(plan.candidates) - earlier)

    def _start(self, total: int) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._bar = Progress(
            BarColumn(bar_width=24), TextColumn("{task.completed}/{task.total}"),
            TextColumn("{task.fields[counts]}"), TextColumn("{task.fields[best]}"),
            TimeRemainingColumn(), console=self.console, transient=True,
        )  # fmt: skip
        self._task = self._bar.add_task("", total=total, counts="starting workers", best="")
        self._bar.start()

    def counted(self, counts: Mapping[str, int]) -> None:
        """The counts have changed."""
        if self._bar is not None:
            words = ("compiled", "duplicate", "wrong", "failed", "measured", "predicted")
            text = ", ".join(f"{counts[w]} {w}" for w in words if counts.get(w))
            self._bar.update(self._task, counts=text)

    def saw(self, outcome: Outcome, counts: Mapping[str, int]) -> None:
        """One more outcome."""
        if isinstance(outcome, Record) and not outcome.case.is_baseline:
            if self._best is None or (outcome.phase, -outcome.time_s) >= (
                self._best.phase, -self._best.time_s
            ) and outcome.phase != "hot":  # fmt: skip
                self._best = outcome
        if self._bar is None:
            return
        self.counted(counts)
        best = ""
        if self._best is not None:
            sign = "" if self._best.measured else "~"
            words = label(self._best.case.config)
            best = f"best {sign}{self._best.time_s * 1e6:.1f} us ({words})"
        done = sum(counts.get(k, 0) for k in ("measured", "predicted", "wrong", "failed"))
        self._bar.update(self._task, completed=done, best=best)

    def end(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def conclude(
        self, said: str, counts: Mapping[str, int], page: Path, events: Path | None
    ) -> None:
        """The answer, and where it lies."""
        if not self.quiet:
            words = ("measured", "predicted", "duplicate", "wrong", "failed", "refused")
            self.console.print(", ".join(f"{counts[w]} {w}" for w in words if counts.get(w)))
        self.console.print(said, style="bold")
        if not self.quiet and events is not None:
            self.console.print(f"events  {events}")
        self.console.print(f"report  {page.resolve()}")


def plan_line(run: Run) -> str:
    """The first line: measured here, or predicted for a device that is not."""
    if run.predicted:
        return (
            f"Times are predicted: no GPU took part. Compiled for {run.device}, checked in Triton's "
            "interpreter, timed by the analytic model."
        )
    return f"Times are measured on {run.environment.gpu or run.device}."
