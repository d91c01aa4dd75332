"""Measure what this GPU reaches: bandwidths, rates, launches, copies; each checked against a
library."""

from __future__ import annotations

from workbench.commands import field
from workbench.commands.field import option
from workbench.commands.options import Options


class CeilingsOptions(field.RunOutput, Options):
    device: str | None = option(None, "Print the stated ceilings of this device; measure nothing.")
    require: tuple[field.Idle, ...] = field.require_idle()


def run(options: CeilingsOptions) -> int:
    """Run the command. Returns its exit code."""
    from workbench.commands.ceilings_command import CeilingsCommand
    from workbench.commands.console import console_for

    return CeilingsCommand(options, console_for(options)).go()
