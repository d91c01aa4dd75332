"""Print the kernels of a workload file, or of several as one."""

from __future__ import annotations

from pathlib import Path

from workbench.commands import field
from workbench.commands.options import Options
from workbench.data.exits import PASSED


class WorkloadShowOptions(Options):
    files: tuple[str, ...] = field.workload_files()
    quiet: bool = field.quiet("Print only the table.")
    json: Path | None = field.json()


def run(options: WorkloadShowOptions) -> int:
    """Run the command. Returns its exit code. Raises WorkloadError."""
    from workbench.commands.workload_table import show
    from workbench.workload.file import read_all

    return show(options, read_all(options.files), PASSED)
