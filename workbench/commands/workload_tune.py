"""`workbench workload tune FILE...`: tune the kernels of a recorded program, the longest first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from workbench.commands import field
from workbench.commands.field import DEVICE, flag, more, option
from workbench.commands.options import Options


@dataclass(frozen=True)
class WorkloadTuneOptions(Options):
    """Tune the kernels of a workload, and write a tuned table."""

    files: tuple[str, ...] = field.workload_files()
    tuned: Path = option(Path("tuned.json"), "The tuned table to write.")
    budget: str = option("10m", "Time for all signatures: 30s, 10m, 2h.")
    cover: float = more(0.95, "Share of the kernels' time that is tuned.")
    device: str | None = option(None, DEVICE)
    dry_run: bool = flag("Print what would be tuned, and stop.", "--dry-run")
    workers: str | None = field.workers()
    widen: bool = more(
        False, "Add configs one step beyond, where the best is at an end.", "--widen"
    )
    predicted: bool = more(False, "Write predicted entries, which no pin uses.", "--predicted")
    trust: bool = more(False, "Import source files that differ from the record.", "--trust")
    out: Path = field.out()
    database: str | None = field.database()
    quiet: bool = field.quiet()
    json: Path | None = field.json()


def run(options: WorkloadTuneOptions) -> int:
    """Run the command. Returns its exit code."""
    from workbench.commands.workload_tuning import tune_workload

    return tune_workload(options)
