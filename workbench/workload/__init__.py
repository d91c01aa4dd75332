"""Record the Triton kernels that a program launches, as `workbench workload record` does, pin tuned
configs, and name outputs to compare.

import workbench.workload

with workbench.workload.record("run.workload"):
    train()
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workbench.workload.pinned import MissPolicy, PinnedTable


@contextmanager
def record(file: str | Path, *, profile_steps: int = 3, values: bool = False) -> Iterator[None]:
    """Return a context manager that records every Triton launch of this process into a file.

    Args:
        file: the workload file. In a process of torch.distributed the rank is put into its name,
            `run.rank0.workload`, so that no two processes write one file.
        profile_steps: steps whose GPU time is recorded by torch.profiler; 0 for none.
        values: keep the values of small integer tensors.

    Without a GPU launches are recorded and not run. Raises WorkloadError where the file cannot be
    written, Triton is missing, or a recording is running already.
    """
    from workbench.workload.recorder import LaunchRecorder, RecordOptions

    options = RecordOptions(profile_steps, values)
    with LaunchRecorder(rank_file(Path(file), os.environ.get("RANK")), options):
        yield


def pin(
    table: str | Path, policy: MissPolicy = "tune", *, arch: str | None = None, verify: bool = False
) -> PinnedTable:
    """Pin the configs of a tuned table in this process, and return it; `remove`, or the end of a
    `with` block, ends it.

    Args:
        table: the file.
        policy: what a function gets whose key is not in the table. `nearest`: the nearest key of a
            family that was measured, or else the first config; `first`: the first config of its
            list; `tune`: Triton times all configs; `error`: PinError.
        arch: `sm_90`, `gfx942`; that of the current GPU by default.
        verify: compare the choices of all ranks of torch.distributed at `workbench.step()` 1, 2, 4,
            8 and so on, and before the process group is destroyed; ranks that differ get PinError.

    Raises WorkloadError, and TunedError where the table cannot be read.
    """
    from workbench.workload.pinned import pin_table

    pinned = pin_table(table, policy, arch)
    if verify:
        from workbench.workload.ranks import verify_often

        verify_often(pinned)
    return pinned


def output(name: str, value: Any) -> None:
    """Hand a tensor or a number, such as a loss, to `workbench workload compare`, which reports how
    much it differs between runs with and without the table; elsewhere nothing happens. Calls with
    one name are compared in their order."""
    import sys

    marks = sys.modules.get("workbench.workload.step_marks")
    if marks is not None and marks.StepMarks.active is not None:
        marks.StepMarks.active.output(name, value)


def rank_file(file: Path, rank: str | None) -> Path:
    """Return the name of a rank's own file: `run.rank0.workload` of `run.workload`."""
    if rank is None or not rank.isdecimal():
        return file
    return file.with_name(f"{file.stem}.rank{rank}{file.suffix}")
