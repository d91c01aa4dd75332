"""Run a program, and record which Triton kernels it launches."""

from __future__ import annotations

from pathlib import Path

from workbench.commands import field
from workbench.commands.field import more, option
from workbench.commands.options import Options, TakesProgram


class WorkloadRecordOptions(TakesProgram, Options):
    out: Path = field.file_option(Path("run.workload"), "The workload file.")
    profile_steps: int = more(3, "Steps whose GPU time is recorded; 0 for none.", min=0)
    values: bool = more(False, "Keep the values of small integer tensors.", "--values")
    device: str | None = option(None, "The device that stands in for a missing GPU: h200.")
    quiet: bool = field.quiet("Print only the table.")
    json: Path | None = field.json()
    target: tuple[str, ...] = field.program()


def run(options: WorkloadRecordOptions) -> int:
    """Run a program whose processes record themselves. Returns its exit code."""
    from workbench.commands.workload_recording import record_program

    return record_program(options)
