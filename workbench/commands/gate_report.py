"""What a gate found beside its comparison, and how it ends: sentence, comment, document, code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.commands.console import say_result
from workbench.commands.result import RunResult, write_comparison
from workbench.data.comparison import ComparisonResult, Kind
from workbench.data.files import write_files
from workbench.data.impl_check import ImplCheck
from workbench.data.verdict import EXIT
from workbench.revisions.changed_kernels import LeftOut, leave
from workbench.revisions.worktree import WORKING

if TYPE_CHECKING:
    from rich.console import Console

    from workbench.commands.gate import GateOptions


@dataclass
class GateReport:
    """The checks of results, and what was left out."""

    options: GateOptions
    console: Console
    left_out: list[LeftOut] = field(default_factory=list)
    checks: list[ImplCheck] = field(default_factory=list)  # of results, before any comparison
    files: Sequence[Path] = ()  # of the kernels
    unchanged_configs: int = 0  # configs of files that are the baseline's: not compiled

    @property
    def words(self) -> list[str]:
        """The words that decide beside those of the comparison."""
        broken = ["FAILS" for left in self.left_out if left.broken]
        bad = [check.state for check in self.checks if EXIT[check.state]]
        return [*broken, *bad]

    def leave(self, what: str, reason: str, broken: bool = False) -> None:
        """Add what is not compared, once for each reason."""
        leave(self.left_out, what, reason, broken)

    def say_left_out(self) -> None:
        """Print what was left out."""
        for left in self.left_out:
            self.console.print(f"left out  {left.what}: {left.reason}", soft_wrap=True)

    def end_without_pairs(self, kind: Kind, sentence: str, nothing: str) -> int:
        """Report that there is nothing to compare. Returns 0, or the code of what is wrong or
        broken. `nothing` is the reason in the comment."""
        self.say_left_out()
        say_result(self.console, sentence, whole=False)
        names, words = (self.options.baseline, WORKING), ["SAME", *self.words]
        result = ComparisonResult(kind, *names, sentence, (), words)
        return self.end(result, (), nothing=nothing)

    def end(self, result: ComparisonResult, runs: Sequence[RunResult], **comment: Any) -> int:
        """Write the comment and the document. Returns the exit code. `comment` are the fields of a
        GateResult that say what was compared. Raises FileError where a file cannot be written."""
        options = self.options
        if options.markdown is not None:
            from workbench.reports.pull_request import GateResult, markdown

            listed = [(left.what, left.reason) for left in self.left_out]
            about = options.baseline, result.exit_code, options.command, listed, result.sentence
            text = markdown(GateResult(*about, checks=self.checks, **comment))
            write_files([(options.markdown, text)], make_folders=True)
        more = {
            "baseline": options.baseline,
            "threshold": options.threshold,
            "unchanged": self.unchanged_configs,
            "checks": [asdict(check) for check in self.checks],
            "files": [str(file) for file in self.files],
            "left_out": [asdict(left) for left in self.left_out],
        }
        return write_comparison(options, "gate", result, runs, **more)
