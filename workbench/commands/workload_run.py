"""Run a program with the configs of a tuned table."""

from __future__ import annotations

from dataclasses import MISSING
from pathlib import Path

from workbench.commands import field
from workbench.commands.field import option
from workbench.commands.options import Options, TakesProgram


class WorkloadRunOptions(TakesProgram, Options):
    tuned: Path = option(MISSING, "The tuned table.")
    policy: str = field.policy()
    verify: bool = field.verify()
    quiet: bool = field.quiet()
    json: Path | None = field.json()
    target: tuple[str, ...] = field.program()


def run(options: WorkloadRunOptions) -> int:
    """Run the program. Returns its exit code; 2 where its processes chose differently."""
    from workbench.commands.workload_deployment import run_program

    return run_program(options)
