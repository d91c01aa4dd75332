"""The process that reads a report of ncu with NVIDIA's package, and prints what it holds as JSON.

The package is native code: where it crashes, only this process ends.
"""

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

SAMPLES = "smsp__pcsamp_warps_issue_stalled_"
NOT_ISSUED = "_not_issued"
OPCODES = "sass__inst_executed_per_opcode"
# Columns by instruction that not every kernel has, under the heads of ncu's own page.
COLUMNS = {
    "thread_inst_executed": "Thread Instructions Executed",
    "derived__memory_l2_theoretical_sectors_global_excessive": "L2 Theoretical Sectors Global "
    "Excessive",
    "memory_l2_theoretical_sectors_global_ideal": "L2 Theoretical Sectors Global Ideal",
    "memory_l2_theoretical_sectors_local": "L2 Theoretical Sectors Local",
    "derived__memory_l1_wavefronts_shared_excessive": "L1 Wavefronts Shared Excessive",
}
STEP = 16  # bytes of an instruction
LONGEST = 1 << 20  # instructions of a kernel


def launches(path: str) -> Iterator[dict[str, Any]]:
    """Yield each launch of a report: name, grid, block, metrics and instructions."""
    import ncu_report

    context = ncu_report.load_report(path)
    number = 0
    for group in context:
        for action in group:
            metrics = {name: _value(action.metric_by_name(name)) for name in action.metric_names()}
            yield {
                "id": number,
                "name": action.name(),
                "device": _plain(metrics, "launch__device_id", 0),
                "grid": _three(metrics, "launch__grid_dim_"),
                "block": _three(metrics, "launch__block_dim_"),
                "metrics": metrics,
                "opcodes": _instances(action, OPCODES, str),
                "stalls": list(reasons := _reasons(action)),
                "columns": list(columns := _columns(action)),
                "instructions": list(_instructions(action, (*reasons.values(), *columns.values()))),
                "sources": _sources(action),
            }
            number += 1


def _value(metric: Any) -> tuple[Any, str]:
    value = metric.value() if metric is not None and metric.has_value() else None
    if isinstance(value, float) and not math.isfinite(value):
        value = None
    if value is not None and not isinstance(value, int | float | str):
        value = str(value)
    return value, metric.unit() if metric is not None else ""


def _plain(metrics: dict[str, tuple[Any, str]], name: str, default: int) -> int:
    value = metrics.get(name, (None, ""))[0]
    return int(value) if isinstance(value, int | float) else default


def _three(metrics: dict[str, tuple[Any, str]], start: str) -> list[int] | None:
    values = [metrics.get(f"{start}{axis}", (None, ""))[0] for axis in "xyz"]
    return [int(v) for v in values] if all(isinstance(v, int | float) for v in values) else None


def _instances(action: Any, name: str, key: Callable[[Any], Any] = int) -> dict[Any, float]:
    """Return the instances of a metric by what they correlate with: addresses, or opcodes without
    their modifiers."""
    metric = action.metric_by_name(name)
    if metric is None or not metric.has_correlation_ids():
        return {}
    ids = metric.correlation_ids()
    return {key(ids.value(i)): float(metric.value(i)) for i in range(metric.num_instances())}


def _reasons(action: Any) -> dict[str, dict[int, float]]:
    """Return the samples by address of each reason to stall."""
    names = [n for n in action.metric_names() if n.startswith(SAMPLES) and NOT_ISSUED not in n]
    return {name.removeprefix(SAMPLES): _instances(action, name) for name in names}


def _columns(action: Any) -> dict[str, dict[int, float]]:
    """Return the other values by address, by the head of their column."""
    tables = {head: _instances(action, name) for name, head in COLUMNS.items()}
    return {head: table for head, table in tables.items() if table}


def _sources(action: Any) -> dict[str, str]:
    """Return the text of each source file that the report holds, by its base name; two files of
    one name are left out."""
    texts: dict[str, list[str]] = {}
    for file, text in action.source_files().items():
        if text:
            texts.setdefault(str(file).rsplit("/", 1)[-1], []).append(str(text))
    return {file: contents[0] for file, contents in texts.items() if len(contents) == 1}


def _instructions(
    action: Any, others: Sequence[dict[int, float]]
) -> Iterator[tuple[int, str, str, tuple[float, ...]]]:
    """Yield address, text, place and values of each instruction: samples, those not issued,
    executions, lanes, and those of the other tables."""
    executed = _instances(action, "inst_executed")
    lanes = _instances(action, "thread_inst_executed_true")
    sampled: dict[bool, dict[int, float]] = {False: {}, True: {}}
    for name in action.metric_names():
        if name.startswith(SAMPLES):
            table = sampled[name.endswith(NOT_ISSUED)]
            for address, value in _instances(action, name).items():
                table[address] = table.get(address, 0.0) + value
    addresses = sorted({*executed, *sampled[False]})
    if not addresses:
        return
    first = addresses[0]
    while action.sass_by_pc(first - STEP):
        first -= STEP
    for number in range(LONGEST):
        address = first + number * STEP
        text = action.sass_by_pc(address)
        if not text:
            return
        info = action.source_info(address)
        place = f"{info.file_name().rsplit('/', 1)[-1]}:{info.line()}" if info else ""
        tables = sampled[False], sampled[True], executed, lanes, *others
        yield address, text.strip(), place, tuple(table.get(address, 0.0) for table in tables)


if __name__ == "__main__":
    json.dump(list(launches(sys.argv[1])), sys.stdout)
