"""List the tuned configs, which launches without a config use."""

from __future__ import annotations

from pathlib import Path

from workbench.commands import field
from workbench.commands.field import argument, flag, option
from workbench.commands.options import Options
from workbench.data.exits import PASSED


class TunedOptions(Options):
    kernel: str | None = argument("This kernel only: its name, or path/to/mine.py.", None)
    impl: str | None = option(None, "This Impl only.")
    device: str | None = option(None, "This device only.")
    file: Path | None = option(None, "Tuned cache; in the user's data folder by default.")
    export: Path | None = option(None, "Write what is listed to this file.")
    load: Path | None = option(None, "Import this file; equal keys: the newer is kept.", "--import")
    code: bool = flag("Print triton.Config lists to paste.", "--code")
    forget: bool = flag("Drop the kernel's entries.", "--forget")
    quiet: bool = field.quiet("Print only the entries.")
    json: Path | None = field.json("Write what is listed to this file; - is standard output.")


def run(options: TunedOptions) -> int:
    """Run the command. Returns its exit code."""
    from workbench.commands.console import console_for
    from workbench.commands.result import write_result
    from workbench.commands.tuned_entries import use

    return write_result(options, "tuned", PASSED, **use(options, console_for(options)))
