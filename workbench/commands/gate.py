"""Compare every kernel of a suite with a baseline; the worst verdict gives the exit code."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from workbench.commands import field
from workbench.commands.field import DTYPE, argument, option
from workbench.commands.options import Options


class GateOptions(field.RunOutput, Options):
    IMPORTS_HERE: ClassVar[bool] = False  # it decides on what lies there

    baseline: str = argument("A git revision to compare the files with.")
    kernel: tuple[str, ...] = option((), "This kernel; may be repeated. Default: changed kernels.")
    device: tuple[str, ...] = option(
        (), "Compile for this device, or all, and run nothing; may be repeated."
    )
    dtype: str = option("bf16", DTYPE)
    threshold: float = field.threshold()
    require: tuple[field.Idle, ...] = field.require_idle()
    markdown: Path | None = option(
        None, "Write the result as Markdown, for a comment on a pull request.", stored=False
    )
    annotate: bool = field.annotate()
    sarif: Path | None = field.sarif()


def run(options: GateOptions) -> int:
    """Run the command. Returns its exit code."""
    from workbench.commands.console import console_for
    from workbench.commands.gate_command import GateCommand

    return GateCommand(options, console_for(options), is_apart=True).go()
