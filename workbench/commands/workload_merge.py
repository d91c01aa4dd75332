"""`workbench workload merge FILE... --out FILE`: write several workloads as one."""

from __future__ import annotations

from workbench.commands.options import WorkloadMergeOptions
from workbench.commands.workload_show import show
from workbench.data.exits import PASSED
from workbench.workload.file import read_all, write


def run(options: WorkloadMergeOptions) -> int:
    """Run the command. Returns its exit code. Raises WorkloadError."""
    workload = read_all(options.files)
    write(options.out, workload)
    return show(options, workload, PASSED)
