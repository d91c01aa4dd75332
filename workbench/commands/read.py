"""The `read` command: KPIs, kernels and checker records of the files of any profiler."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.commands.console import aloud, console_for
from workbench.commands.options import ReadOptions
from workbench.data.files import write_files
from workbench.data.intervals import Intervals
from workbench.data.metric import MetricValue, exact_counters, metric_values, stall_shares
from workbench.data.timeline import (
    DeviceTimes,
    KernelRow,
    device_times,
    devices,
    kernel_rows,
    named_ranges,
)
from workbench.data.trace import ActivityKind, Dispatch, Trace
from workbench.data.trace_export import as_json, json_text, kernels_csv, perfetto
from workbench.data.trace_kpis import TraceKpi, summed_kpis, timeline_kpis
from workbench.data.units import counted, percent, reading
from workbench.readers import read
from workbench.readers.inputs.source import ReadError

TOP = 20  # rows of a table
NAME_WIDTH = 60


@dataclass
class TraceSummary:
    """All that is printed and written of a trace."""

    trace: Trace
    launches: array[int]
    times: list[DeviceTimes] = field(default_factory=list)
    rows: list[KernelRow] = field(default_factory=list)
    kpis: dict[str, list[TraceKpi]] = field(default_factory=dict)


def run(options: ReadOptions) -> int:
    """Run the command. Returns its exit code. Raises ReadError where nothing can be read."""
    trace = read(options.files, range_name=options.range)
    summary = summarise(trace, options.range)
    files: list[tuple[Path, str | bytes]] = []
    if options.perfetto is not None:
        if not summary.times:
            raise ReadError(
                f"{trace.files[0].name} has no timeline, which --perfetto needs; leave it out."
            )
        files.append((options.perfetto, perfetto(trace, summary.times, summary.launches)))
    if options.csv is not None:
        files.append((options.csv, kernels_csv(trace, summary.rows)))
    if options.json is not None:
        files.append((options.json, json_text(as_json(trace, summary.kpis, summary.rows))))
    _print(summary, options)
    write_files(files)
    return 0


def summarise(trace: Trace, range_name: str | None = None) -> TraceSummary:
    """Return the KPIs and kernels of a trace, of a named range alone if one is given. Raises
    ReadError where the file has no such range, or no work in it."""
    within = None if range_name is None else _range(trace, range_name)
    summary = TraceSummary(trace, trace.activities.launches())
    for device in devices(trace):
        try:
            times = device_times(trace, device, within=within, launches=summary.launches)
        except ValueError:  # no work of this device in the range
            continue
        summary.times.append(times)
        summary.kpis[device] = timeline_kpis(trace, times, summary.launches)
        if times.left_out:
            trace.notes.append(
                f"device {device}: {counted(times.left_out, 'activity')} without a launch in the "
                "file lies outside of the window".replace("activitys", "activities")
            )
        elif not times.launched and times.kernel_count:
            trace.notes.append(
                f"device {device}: no launch is in the file; the window is of all its work"
            )
    if within is not None and not summary.times:
        raise ReadError(f"no work was launched in the range {range_name}; name another one.")
    summary.rows = kernel_rows(trace, summary.times)
    if not summary.times and summary.rows:
        summary.kpis["all"] = summed_kpis(summary.rows)
    return summary


def _range(trace: Trace, name: str) -> Intervals:
    within = named_ranges(trace, name)
    if not within.starts:
        table = trace.activities
        numbers = {table.name_numbers[i] for i in table.of_kind(ActivityKind.RANGE)}
        names = sorted(table.names.known[n] for n in numbers)[:10]
        known = f"its ranges are {', '.join(names)}" if names else "it has none"
        raise ReadError(f"{trace.files[0].name} has no range {name}; {known}.")
    return within


def _print(summary: TraceSummary, options: ReadOptions) -> None:
    console = console_for(options)
    trace = summary.trace
    names = ", ".join(file.name for file in trace.files[:5])
    more = f" and {len(trace.files) - 5} more" if len(trace.files) > 5 else ""
    console.print(f"{trace.title}: {names}{more}", style="bold", soft_wrap=True)
    for line in _devices(trace):
        console.print(line, soft_wrap=True)
    if summary.kpis:
        with aloud(console):
            console.print(_kpi_table(summary.kpis))
    counted_dispatches = [d for d in trace.dispatches if d.counters]
    if counted_dispatches and not summary.times:
        console.print(_dispatch_table(counted_dispatches, trace.tool))
    elif summary.rows:
        console.print(_kernel_table(summary.rows))
    elif totals := [t for t in trace.totals if t.kind != ActivityKind.KERNEL]:
        rows = [KernelRow(t.name, t.device, t.count, t.total_ns, t.low_ns, t.high_ns)
                for t in totals]  # fmt: skip
        console.print(_kernel_table(sorted(rows, key=lambda row: -row.total_ns), "name"))
    elif trace.activities:
        console.print(f"{len(trace.activities):,} activities of the host, none of a device")
    for line in _checker(trace):
        console.print(line, soft_wrap=True)
    for name, value in trace.tables.items():
        console.print(f"{name}: {value}"[:400], soft_wrap=True)
    for note in trace.notes:
        console.print(f"note: {note}", soft_wrap=True)
    for path in (options.json, options.csv, options.perfetto):
        if path is not None:
            console.print(f"written  {path}", soft_wrap=True)


def _devices(trace: Trace) -> Iterator[str]:
    for name, facts in trace.devices.items():
        if title := facts.get("name") or facts.get("product_name") or facts.get("arch"):
            yield f"device {name}: {title}"


def _table(*heads: str) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for number, head in enumerate(heads):
        table.add_column(head, justify="left" if number == 0 else "right", overflow="fold")
    return table


def shown(value: float | None, unit: str) -> str:
    """Return a value of a KPI with its unit; a dash where the file does not tell."""
    if value is None:
        return "-"
    if unit == "1":
        return f"{100 * value:.2f} %"
    if unit in ("kernels", "copies"):
        return f"{value:,.0f}"
    if unit == "cycle":
        return f"{value:.2f} cycles"
    return reading(value, unit, 4)


def _kpi_table(kpis: dict[str, list[TraceKpi]]) -> Any:
    """Return a table with a row for each KPI and a column for each device."""
    several = len(kpis) > 1
    heads = [f"device {device}" if several else "value" for device in kpis]
    table = _table("KPI", *heads, "target", "met", "")
    names = list(dict.fromkeys(kpi.name for known in kpis.values() for kpi in known))
    by_device = [{kpi.name: kpi for kpi in known} for known in kpis.values()]
    for name in names:
        known_of = [known.get(name) for known in by_device]
        first = next(kpi for kpi in known_of if kpi is not None)
        values = [shown(kpi.value, kpi.unit) if kpi else "-" for kpi in known_of]
        met = "/".join(dict.fromkeys(kpi.met for kpi in known_of if kpi and kpi.met))
        table.add_row(name, *values, first.target, met, first.note)
    return table


def _short(name: str) -> str:
    return name if len(name) <= NAME_WIDTH else f"{name[: NAME_WIDTH - 3]}..."


def _kernel_table(rows: Sequence[KernelRow], head: str = "kernel") -> Any:
    table = _table(head, "device", "count", "total", "share", "mean", "least", "most")
    whole = sum(row.total_ns for row in rows) or 1.0
    for row in rows[:TOP]:
        bounds = [shown(None if v is None else v / 1e9, "s") for v in (row.low_ns, row.high_ns)]
        table.add_row(
            _short(row.name), row.device, f"{row.count:,}", shown(row.total_ns / 1e9, "s"),
            percent(row.total_ns / whole), shown(row.mean_ns / 1e9, "s"), *bounds,
        )  # fmt: skip
    if len(rows) > TOP:
        rest = sum(row.total_ns for row in rows[TOP:])
        table.add_row(f"{len(rows) - TOP} more", "", f"{sum(r.count for r in rows[TOP:]):,}",
                      shown(rest / 1e9, "s"), percent(rest / whole), "", "", "")  # fmt: skip
    return table


COLUMNS = (
    ("compute_throughput", "compute"),
    ("memory_throughput", "memory"),
    ("dram_throughput", "DRAM"),
    ("dram_bytes", "DRAM bytes"),
    ("l2_hit", "L2 hit"),
    ("occupancy", "occupancy"),
    ("spill_share", "spills"),
)


def _dispatch_table(dispatches: Sequence[Dispatch], tool: str) -> Any:
    """Return one row a dispatch, the longest first, with the metrics that its counters give; where
    they give none, the first counters."""
    ordered = sorted(dispatches, key=lambda d: -(d.duration_ns or 0.0))[:TOP]
    values = [metric_values(d, tool) for d in ordered]
    chosen = [(name, head) for name, head in COLUMNS if any(name in known for known in values)]
    table = _table("kernel", "grid", "duration", *(head for _, head in chosen), "")
    for dispatch, known in zip(ordered, values, strict=True):
        grid = "x".join(map(str, dispatch.geometry.grid)) if dispatch.geometry.grid else "-"
        spent = None if dispatch.duration_ns is None else dispatch.duration_ns / 1e9
        cells = [_metric(known.get(name)) for name, _ in chosen]
        table.add_row(
            _short(dispatch.name), grid, shown(spent, "s"), *cells, _most(dispatch, known)
        )
    if len(dispatches) > TOP:
        table.add_row(f"{len(dispatches) - TOP} more", *[""] * (len(chosen) + 3))
    return table


def _metric(value: MetricValue | None) -> str:
    return "-" if value is None else shown(value.value, value.metric.unit)


def _most(dispatch: Dispatch, known: dict[str, MetricValue]) -> str:
    """Return the largest reason to stall, or else the first counters."""
    counters = exact_counters(dispatch)
    shares = stall_shares(counters)
    if shares:
        reason = max(shares, key=lambda name: shares[name])
        return f"stall {reason} {percent(shares[reason])}"
    if known:
        return ""
    first = [f"{c.name} {c.text}" for c in list(dispatch.counters.values())[:4]]
    return ", ".join(first)


def _checker(trace: Trace) -> Iterator[str]:
    """Yield the verdict of a checker and its first records."""
    result = trace.checker
    if result is None:
        return
    errors = "no summary line" if result.errors is None else counted(result.errors, "error")
    yield f"{result.tool or 'checker'}: {result.verdict} ({errors})"
    for record in result.records[:10]:
        place = f" at {record.kernel}" if record.kernel else ""
        place += f"+{record.offset:#x}" if record.offset is not None else ""
        place += f" in {record.file}:{record.line}" if record.file else ""
        yield f"  {record.level}: {record.text}{place}"
    if len(result.records) > 10:
        yield f"  and {len(result.records) - 10} more"
