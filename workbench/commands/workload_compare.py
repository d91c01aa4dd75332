"""Compare a program's step time with and without a tuned table."""

from __future__ import annotations

from pathlib import Path

from workbench.commands import field
from workbench.commands.field import argument, more
from workbench.commands.options import Options, TakesProgram


class WorkloadCompareOptions(TakesProgram, Options):
    table: Path = argument("The tuned table.", metavar="TABLE")
    policy: str = field.policy()
    verify: bool = field.verify()
    rounds: int = more(6, "Runs with and without the table, each; 6 can decide.", min=2)
    at_once: int = more(1, "Runs that import at once, then take turns.", min=1)
    step_mark: str | None = more(None, "KERNEL or KERNEL:N: every N-th launch ends a step.")
    threshold: float = field.threshold()
    out: Path = field.out("Folder for the page and the runs.")
    quiet: bool = field.quiet()
    json: Path | None = field.json()
    target: tuple[str, ...] = field.program()


def run(options: WorkloadCompareOptions) -> int:
    """Run the command. Returns its exit code."""
    from workbench.commands.workload_comparison import compare_programs

    return compare_programs(options)
