"""Check the database and what this machine can do, and what to install for the rest."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from workbench.commands import field
from workbench.commands.options import Options
from workbench.data.exits import PASSED


class DoctorOptions(Options):
    quiet: bool = field.quiet("Print only what is missing.")
    json: Path | None = field.json("Write the checks to this file; - is standard output.")
    database: str | None = field.database()


def run(options: DoctorOptions) -> int:
    """Run the command. Returns its exit code."""
    from workbench.commands.console import console_for, say_result
    from workbench.commands.doctor_checks import examine, show
    from workbench.commands.result import write_result

    console, checks = console_for(options), examine(options.database)
    show(checks, console)
    for check in checks if options.quiet else ():
        if check.ok is False:
            say_result(console, f"{check.name}: {check.result}; {check.remedy}")
    plain = [{**asdict(check), "state": check.state} for check in checks]
    return write_result(options, "doctor", PASSED, checks=plain)
