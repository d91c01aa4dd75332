"""Write several workload files as one."""

from __future__ import annotations

from pathlib import Path

from workbench.commands import field
from workbench.commands.options import Options
from workbench.data.exits import PASSED


class WorkloadMergeOptions(Options):
    files: tuple[str, ...] = field.workload_files()
    out: Path = field.file_option(Path("run.workload"), "The workload file to write.")
    quiet: bool = field.quiet("Print only the table.")
    json: Path | None = field.json()


def run(options: WorkloadMergeOptions) -> int:
    """Run the command. Returns its exit code. Raises WorkloadError."""
    from workbench.commands.workload_show import show
    from workbench.workload.file import read_all, write

    workload = read_all(options.files)
    write(options.out, workload)
    return show(options, workload, PASSED)
