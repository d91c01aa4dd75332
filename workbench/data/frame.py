"""Tables for pandas, which is imported at the first of them: the events of a file."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.data.events import BadLine, KernelDispatched, OpCompleted, iterate
from workbench.spec import label, sizes_text

if TYPE_CHECKING:
    import pandas

FrameEvent = KernelDispatched | OpCompleted

# Each column of `events_frame`; a cell is empty where the type of event has no such field.
COLUMNS: Mapping[str, Callable[[FrameEvent], Any]] = {
    "at": lambda e: e.at,
    "run": lambda e: e.run,
    "type": lambda e: type(e).__name__,
    "op_path": lambda e: e.op_path,
    "kernel": lambda e: getattr(e, "kernel", None),
    "function": lambda e: getattr(e, "function", None),
    "config": lambda e: label(e.config) if isinstance(e, KernelDispatched) else None,
    "grid": lambda e: getattr(e, "grid", None),
    "blocks": lambda e: prod(e.grid) if isinstance(e, KernelDispatched) else None,
    "threads": lambda e: getattr(e, "threads", None),
    "shared_bytes": lambda e: getattr(e, "shared_bytes", None),
    "registers": lambda e: getattr(e, "registers", None),
    "occupancy": lambda e: getattr(e, "occupancy", None),
    "launches": lambda e: getattr(e, "launches", None),
    "device_us": lambda e: getattr(e, "device_us", None),
    "host_us": lambda e: getattr(e, "host_us", None),
    "predicted_us": lambda e: getattr(e, "predicted_us", None),
    "predicted": lambda e: getattr(e, "predicted", None),
    "method": lambda e: getattr(e, "method", None),
}

_log = logging.getLogger("workbench")


def events_frame(path: Path | str) -> pandas.DataFrame:
    """Return the dispatches and times of an events file as a DataFrame, one row an event, in the
    order of the file.

    Columns are those of `COLUMNS`: times in microseconds of one call, bytes, threads and registers;
    NaN or None where an event has no such field. Damaged lines are left out; the logger `workbench`
    says how many, and `frame.attrs["damaged"]` holds each with its number and reason. Raises
    EventsError where the file cannot be read.
    """
    rows: list[dict[str, Any]] = []
    damaged: list[str] = []
    for event in iterate(path):
        if isinstance(event, BadLine):
            damaged.append(f"line {event.number}: {event.reason}")
        elif isinstance(event, (KernelDispatched, OpCompleted)):
            rows.append({name: cell(event) for name, cell in COLUMNS.items()})
    frame = frame_of(rows, COLUMNS)
    frame.attrs["damaged"] = damaged
    if damaged:
        _log.warning("%s: %d damaged lines left out; %s", path, len(damaged), damaged[0])
    return frame


def frame_of(rows: Iterable[Mapping[str, Any]], columns: Iterable[str]) -> pandas.DataFrame:
    """Return rows as a DataFrame with these columns."""
    import pandas

    return pandas.DataFrame(list(rows), columns=list(columns))


def rows_frame(rows: Iterable[Mapping[str, Any]]) -> pandas.DataFrame:
    """Return the rows of the history: one an outcome, with `kind`."""
    columns = ("at", "kernel", "impl", "config", "sizes", "dtype", "device", "kind", "phase")
    plain = [
        {**row, "config": label(row["config"]) if row["config"] else ""}
        | {"sizes": sizes_text(row["sizes"]), f"{row['kind']}_s": row["time_s"]}
        for row in rows
    ]
    times = ("measured_s", "low_s", "high_s", "predicted_s", "flops", "bytes")
    more = ("registers", "spill_bytes", "stage", "reason", "commit", "dirty", "run")
    return frame_of(plain, (*columns, *times, *more))
