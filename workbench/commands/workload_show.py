"""`workbench workload show FILE...`: print the kernels of a workload."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from workbench.commands import field
from workbench.commands.options import Options
from workbench.data.exits import PASSED


@dataclass(frozen=True)
class WorkloadShowOptions(Options):
    """Print the kernels of a workload file, or of several as one."""

    files: tuple[str, ...] = field.workload_files()
    quiet: bool = field.quiet("Print only the table.")
    json: Path | None = field.json()


def run(options: WorkloadShowOptions) -> int:
    """Run the command. Returns its exit code. Raises WorkloadError."""
    from workbench.commands.workload_table import show
    from workbench.workload.file import read_all

    return show(options, read_all(options.files), PASSED)
