"""The terminal of a command that shares its problems among several GPUs."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.commands.console import ProgressLine, SweepConsole, plain_console, start_live
from workbench.data.record import Run
from workbench.data.units import amount

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from workbench.tuner.engine import TimeBreakdown
    from workbench.tuner.space import Plan


class GpuLines:
    """The terminal of a command on several GPUs: a live line for each, and lines above them."""

    def __init__(self, quiet: bool, stderr: bool = False, console: Console | None = None) -> None:
        self.console = console or plain_console(stderr)
        self.console.soft_wrap = not self.console.is_terminal
        self.quiet = quiet
        self.lock = threading.RLock()
        self._lines: dict[str, tuple[str, ProgressLine]] = {}
        self._live: Any = None

    def say(self, text: str) -> None:
        """Print a line, unless quiet."""
        if not self.quiet:
            self.console.print(text)

    def show(self, gpu: str, problem: str, line: ProgressLine) -> None:
        """Show the progress of a problem on a GPU."""
        with self.lock:
            self._lines[gpu] = problem, line
            wanted = self.console.is_terminal and not self.console.is_dumb_terminal
            if self._live is None and wanted and not self.quiet:
                self._live = start_live(self.console, self._draw)

    def drop(self, gpu: str) -> None:
        """Show a GPU no longer."""
        with self.lock:
            self._lines.pop(gpu, None)

    def end(self) -> None:
        """Remove the live lines."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _draw(self) -> Text:
        from rich.text import Text

        unicode = self.console.encoding.startswith("utf")
        with self.lock:
            shown = sorted(self._lines.items())
        text = Text("\n", no_wrap=True, end="").join(
            Text(f"{gpu}: {problem}  ").append_text(
                line.draw(max(20, self.console.width - len(gpu) - len(problem) - 5),
                          "━─" if unicode else "#-")
            )
            for gpu, (problem, line) in shown
        )  # fmt: skip
        return text


class ProblemConsole(SweepConsole):
    """The output of one problem of several: its lines name the problem and its GPU."""

    def __init__(self, lines: GpuLines, problem: str, gpu: str) -> None:
        self.console, self.quiet = lines.console, lines.quiet
        self._gpus, self._problem, self._gpu = lines, problem, gpu
        self._live = self._lines = self._redirection = None  # GpuLines shows the progress
        self._line = ProgressLine()

    def begin(self, run: Run, plan: Plan, earlier: int, failed: int = 0) -> None:
        """Print which problem begins on which GPU, and show its progress."""
        known = f", {earlier} known from earlier runs" if earlier else ""
        many = f"{amount(len(plan.candidates), 'config')} to try{known}"
        self._gpus.say(f"{self._problem} on {self._gpu}: {many}")
        self._line = ProgressLine(len(plan.candidates), earlier)
        self._gpus.show(self._gpu, self._problem, self._line)

    def end(self) -> None:
        """Show the progress no longer."""
        self._gpus.drop(self._gpu)

    def conclude(
        self,
        sentence: str,
        counts: Mapping[str, int],
        breakdown: TimeBreakdown,
        page: Path,
        events: Path | None,
    ) -> None:
        """Print the result of the problem, its lines together."""
        with self._gpus.lock:
            self.console.print(f"{self._problem} on {self._gpu}:")
            super().conclude(sentence, counts, breakdown, page, events)
