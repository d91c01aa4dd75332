"""Tune the kernels of a workload, and write a tuned table."""

from __future__ import annotations

from pathlib import Path

from workbench.commands import field
from workbench.commands.field import DEVICE, flag, more, option
from workbench.commands.options import Options


class WorkloadTuneOptions(Options):
    files: tuple[str, ...] = field.workload_files()
    tuned: Path = option(Path("tuned.json"), "The tuned table to write.")
    budget: str = option("10m", "Time for all signatures: 30s, 10m, 2h.")
    cover: float = more(0.95, "Share of the kernels' time that is tuned.")
    device: str | None = option(None, DEVICE)
    dry_run: bool = flag("Print what would be tuned, and stop.", "--dry-run")
    workers: str | None = field.workers()
    widen: bool = more(
        False, "Add configs one step beyond the list if the best is at its end.", "--widen"
    )
    predicted: bool = more(False, "Write predicted entries, which `pin` ignores.", "--predicted")
    trust: bool = more(False, "Import source files that differ from the record.", "--trust")
    out: Path = field.out()
    database: str | None = field.database()
    quiet: bool = field.quiet()
    json: Path | None = field.json()


def run(options: WorkloadTuneOptions) -> int:
    """Run the command. Returns its exit code."""
    from workbench.commands.workload_tuning import tune_workload

    return tune_workload(options)
