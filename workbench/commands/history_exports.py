"""Write the history in formats of others: Parquet, github-action-benchmark and Bencher."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.commands.options import CommandError
from workbench.commands.result import json_text
from workbench.commands.run import check_files
from workbench.data.database import Row
from workbench.data.files import write_files
from workbench.data.units import amount
from workbench.spec import label, sizes_text

if TYPE_CHECKING:
    from rich.console import Console

    from workbench.commands.history import HistoryOptions

FORMATS = ("parquet", "benchmark-json", "bencher")


def export_files(options: HistoryOptions) -> dict[str, Path]:
    """Return the files that `--export` names, by format. Raises CommandError for another format,
    and for one that is named twice."""
    files: dict[str, Path] = {}
    for text in options.export:
        name, _, file = text.partition("=")
        if name not in FORMATS or not file or name in files:
            raise CommandError(
                f"--export takes {' or '.join(f'{each}=FILE' for each in FORMATS)}, each once, and "
                f"not {text}."
            )
        files[name] = Path(file)
    return files


def check_exports(options: HistoryOptions) -> None:
    """Raise CommandError where a file cannot be written, two options name the same one, or a
    package is missing."""
    files = export_files(options)
    check_files(None, options.json, {f"--export {name}": file for name, file in files.items()})
    if "parquet" in files:
        try:
            import pyarrow  # noqa: F401
        except ImportError:
            raise CommandError(
                "--export parquet needs pyarrow, which is not installed: pip install "
                "'kernel-workbench[parquet]'."
            ) from None


def write_exports(options: HistoryOptions, rows: Sequence[Row], console: Console) -> None:
    """Write the files that the options name. Raises FileError where one cannot be written."""
    newest, files = newest_times(rows), export_files(options)
    contents: dict[str, Callable[[], str | bytes]] = {
        "parquet": lambda: parquet(rows),
        "benchmark-json": lambda: json_text(smaller_is_better(newest)),
        "bencher": lambda: json_text(bencher_metrics(newest)),
    }
    write_files([(path, contents[name]()) for name, path in files.items()], make_folders=True)
    many = amount(len(newest), "time")
    for name, path in files.items():
        what = amount(len(rows), "outcome") if name == "parquet" else f"the newest {many}"
        console.print(f"written  {path}: {what}", soft_wrap=True)


def parquet(rows: Iterable[Row]) -> bytes:
    """Return the outcomes as a Parquet file, with the columns of `workbench.history().frame()`."""
    from workbench.data.frame import rows_frame

    frame = rows_frame([{**asdict(row), "kind": _kind(row)} for row in rows])
    file = BytesIO()
    frame.to_parquet(file, engine="pyarrow", index=False)
    return file.getvalue()


def _kind(row: Row) -> str:
    if row.time_s is None:
        return "failure"
    return "predicted" if row.predicted else "measured"


def newest_times(rows: Iterable[Row]) -> dict[str, Row]:
    """Return the newest time of each config at each size and device, by a name that says whether it
    is predicted. The rows come the newest first."""
    times: dict[str, Row] = {}
    for row in rows:
        if row.time_s is not None:
            times.setdefault(_name(row), row)
    return times


def _name(row: Row) -> str:
    config = f" {label(row.config)}" if row.config else ""
    predicted = " (predicted)" if row.predicted else ""
    at = f"{sizes_text(row.sizes)}, {row.dtype}, {row.device}"
    return f"{row.kernel}.{row.impl}{config} at {at}{predicted}"


def smaller_is_better(times: Mapping[str, Row]) -> list[dict[str, Any]]:
    """Return times in the format customSmallerIsBetter of github-action-benchmark, in us."""
    return [
        {"name": name, "unit": "us", "value": 1e6 * (row.time_s or 0.0), **_range(row)}
        | {"extra": f"run {row.run}" + (f"\ncommit {row.commit}" if row.commit else "")}
        for name, row in times.items()
    ]


def _range(row: Row) -> dict[str, str]:
    if row.low_s is None or row.high_s is None:
        return {}
    return {"range": f"{1e6 * row.low_s:.4g} to {1e6 * row.high_s:.4g}"}


def bencher_metrics(times: Mapping[str, Row]) -> dict[str, Any]:
    """Return times in Bencher Metric Format: `latency`, in ns, with the ends of its interval."""
    metrics: dict[str, Any] = {}
    for name, row in times.items():
        ends = {"lower_value": row.low_s, "upper_value": row.high_s}
        known = {"value": row.time_s, **ends}
        latency = {key: 1e9 * value for key, value in known.items() if value is not None}
        metrics[name] = {"latency": latency}
    return metrics
