"""Print what was read of a profiler: KPIs, findings, kernels, classes, ranges and checkers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workbench.commands.console import aloud
from workbench.data.record import Finding
from workbench.data.units import amount, duration, percent, reading
from workbench.reports.tables import text_table
from workbench.traces.host_work import OperationRow, RangeRow
from workbench.traces.metric import MetricValue, metric_values
from workbench.traces.rule_metrics import dispatch_stalls
from workbench.traces.timeline import KernelRow
from workbench.traces.trace import ActivityKind, Dispatch, Trace
from workbench.traces.trace_kpis import TraceKpi
from workbench.traces.trace_summary import DeviceSummary, TraceSummary

if TYPE_CHECKING:
    from rich.console import Console

TOP = 20  # rows of a table
FEW = 10  # rows of a table beside the kernels
FINDINGS = 3
NAME_WIDTH = 60


def print_trace(console: Console, summary: TraceSummary, findings: Sequence[Finding]) -> None:
    """Print a trace: its files and devices, KPIs with targets, findings, kernels, and notes. A
    quiet console shows KPIs and findings alone."""
    trace = summary.trace
    names = ", ".join(file.name for file in trace.files[:5])
    more = f" and {len(trace.files) - 5} more" if len(trace.files) > 5 else ""
    console.print(f"{trace.title}: {names}{more}", style="bold", soft_wrap=True)
    for line in _devices(trace):
        console.print(line, soft_wrap=True)
    with aloud(console):
        if summary.kpis:
            console.print(_kpi_table(summary.kpis))
        _print_findings(console, findings)
    _print_kernels(console, summary)
    for each in [] if any(d.counters for d in trace.dispatches) else summary.devices:
        _print_device(console, each, len(summary.devices) > 1)
    if not summary.devices and summary.host_ranges:
        console.print(_range_table(summary.host_ranges, device=False))
    for line in _checker(trace):
        console.print(line, soft_wrap=True)
    for name, value in trace.tables.items():
        console.print(f"{name}: {value}"[:400], soft_wrap=True)
    for note in trace.notes:
        console.print(f"note: {note}", soft_wrap=True)


def _print_findings(console: Console, findings: Sequence[Finding]) -> None:
    """Print the word of each device, and the first rules that hold with what they may give back."""
    for finding in findings:
        if not finding.rule and finding.word not in ("no timeline", "host only"):
            console.print(f"{finding.word}. {finding.sentence}", style="bold", soft_wrap=True)
    ruled = [finding for finding in findings if finding.rule]
    for finding in ruled[:FINDINGS]:
        gain = "" if not finding.gain_s else f", at most {duration(finding.gain_s)}"
        about = f"{short(finding.kernel)}: " if finding.kernel else ""
        at = f" At {', '.join(finding.where)}." if finding.where else ""
        console.print(f"  {about}{finding.word}{gain}: {finding.advice}{at}", soft_wrap=True)
    if len(ruled) > FINDINGS:
        console.print(f"  {len(ruled) - FINDINGS} more on the page")


def _print_kernels(console: Console, summary: TraceSummary) -> None:
    trace = summary.trace
    dispatches = [d for d in trace.dispatches if d.is_counted]
    if dispatches:
        console.print(_dispatch_table(dispatches, trace.tool))
    elif summary.rows:
        console.print(_kernel_table(summary.rows))
    elif summary.operations:
        console.print(_operation_table(summary.operations))
    elif totals := [t for t in trace.totals if t.kind != ActivityKind.KERNEL]:
        rows = [
            KernelRow(t.name, t.device, t.count, t.total_ns, t.low_ns, t.high_ns) for t in totals
        ]
        console.print(_kernel_table(sorted(rows, key=lambda row: -row.total_ns), "name"))
    elif trace.activities:
        console.print(f"{len(trace.activities):,} activities of the host, none of a device")


def _print_device(console: Console, summary: DeviceSummary, several: bool) -> None:
    """Print the classes, repeated sequences and ranges of a device."""
    title = f"device {summary.device}, " if several else ""
    whole = summary.times.kernel_sum or 1
    classes = ", ".join(
        f"{row.name} {percent(row.total_ns / whole)} ({row.count})" for row in summary.classes
    )
    if classes:
        console.print(f"{title}classes of kernel time: {classes}", soft_wrap=True)
    for repeat in summary.repeats[:FINDINGS]:
        console.print(
            f"{title}sequence of {amount(repeat.kernels, 'kernel')}, {repeat.count} times in a "
            f"row: {duration(repeat.kernel_ns / 1e9)} of kernels, "
            f"{duration(repeat.gap_ns / 1e9)} between them",
            soft_wrap=True,
        )
    if summary.ranges:
        console.print(_range_table(summary.ranges, hides_work=summary.hides_work))


def _devices(trace: Trace) -> Iterator[str]:
    for name, facts in trace.devices.items():
        if title := facts.get("name") or facts.get("product_name") or facts.get("arch"):
            yield f"device {name}: {title}"


def kpi_text(value: float | None, unit: str) -> str:
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


def _kpi_table(kpis: Mapping[str, Sequence[TraceKpi]]) -> Any:
    """Return a table with a row for each KPI and a column for each device."""
    several = len(kpis) > 1
    heads = [f"device {device}" if several else "value" for device in kpis]
    table = text_table(("KPI", *heads, "target", "met", ""))
    names = list(dict.fromkeys(kpi.name for row in kpis.values() for kpi in row))
    by_device = [{kpi.name: kpi for kpi in row} for row in kpis.values()]
    for name in names:
        known_of = [row.get(name) for row in by_device]
        first = next(kpi for kpi in known_of if kpi is not None)
        values = [kpi_text(kpi.value, kpi.unit) if kpi else "-" for kpi in known_of]
        met = "/".join(dict.fromkeys(kpi.met for kpi in known_of if kpi and kpi.met))
        table.add_row(name, *values, first.target, met, first.note)
    return table


def short(name: str) -> str:
    """Return a name cut to the width of a table."""
    return name if len(name) <= NAME_WIDTH else f"{name[: NAME_WIDTH - 3]}..."


def _kernel_table(rows: Sequence[KernelRow], head: str = "kernel") -> Any:
    table = text_table((head, "device", "count", "total", "share", "mean", "least", "most"))
    whole = sum(row.total_ns for row in rows) or 1.0
    for row in rows[:TOP]:
        bounds = [kpi_text(None if v is None else v / 1e9, "s") for v in (row.low_ns, row.high_ns)]
        table.add_row(
            short(row.name), row.device, f"{row.count:,}", kpi_text(row.total_ns / 1e9, "s"),
            percent(row.total_ns / whole), kpi_text(row.mean_ns / 1e9, "s"), *bounds,
        )  # fmt: skip
    if len(rows) > TOP:
        rest = sum(row.total_ns for row in rows[TOP:])
        table.add_row(f"{len(rows) - TOP} more", "", f"{sum(r.count for r in rows[TOP:]):,}",
                      kpi_text(rest / 1e9, "s"), percent(rest / whole), "", "", "")  # fmt: skip
    return table


def _operation_table(rows: Sequence[OperationRow]) -> Any:
    """Return the host operations of a trace in which no device had work, by their own time."""
    table = text_table(("host operation", "count", "own time", "share", "total"))
    whole = sum(row.own_ns for row in rows) or 1
    for row in rows[:TOP]:
        table.add_row(
            short(row.name), f"{row.count:,}", kpi_text(row.own_ns / 1e9, "s"),
            percent(row.own_ns / whole), kpi_text(row.total_ns / 1e9, "s"),
        )  # fmt: skip
    if len(rows) > TOP:
        table.add_row(f"{len(rows) - TOP} more", "", "", "", "")
    return table


def _range_table(rows: Sequence[RangeRow], device: bool = True, hides_work: bool = False) -> Any:
    """Return the host ranges by name; busy time is the device's, of the work launched in them, and
    no utilisation where work is missing."""
    heads = ("kernels in one", "busy in one", "utilisation") if device else ()
    table = text_table(("range", "count", "median", "least", "most", *heads))
    for row in rows[:FEW]:
        cells = [
            f"{row.kernels / row.count:.4g}",
            kpi_text(row.busy_ns / row.count / 1e9, "s"),
            kpi_text(row.busy_ns / row.window_ns, "1") if row.window_ns and not hides_work else "-",
        ]
        table.add_row(
            short(row.name), f"{row.count:,}",
            *(kpi_text(v / 1e9, "s") for v in (row.median_ns, row.low_ns, row.high_ns)),
            *(cells if device else ()),
        )  # fmt: skip
    if len(rows) > FEW:
        table.add_row(f"{len(rows) - FEW} more", *[""] * (4 + len(heads)))
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
    """Return a row per dispatch, the longest first, with the metrics that its counters give; where
    they give none, the first counters."""
    ordered = sorted(dispatches, key=lambda d: -(d.duration_ns or 0.0))[:TOP]
    values = [metric_values(d, tool) for d in ordered]
    columns = [(name, head) for name, head in COLUMNS if any(name in metrics for metrics in values)]
    table = text_table(("kernel", "grid", "duration", *(head for _, head in columns), ""))
    for dispatch, metrics in zip(ordered, values, strict=True):
        grid = "x".join(map(str, dispatch.geometry.grid)) if dispatch.geometry.grid else "-"
        spent = None if dispatch.duration_ns is None else dispatch.duration_ns / 1e9
        cells = [_metric(metrics.get(name)) for name, _ in columns]
        table.add_row(
            short(dispatch.name), grid, kpi_text(spent, "s"), *cells, most(dispatch, metrics)
        )
    if len(dispatches) > TOP:
        table.add_row(f"{len(dispatches) - TOP} more", *[""] * (len(columns) + 3))
    return table


def _metric(value: MetricValue | None) -> str:
    return "-" if value is None else kpi_text(value.value, value.metric.unit)


def most(dispatch: Dispatch, metrics: Mapping[str, MetricValue]) -> str:
    """Return the largest reason to stall, or else the first counters."""
    shares = dispatch_stalls(dispatch)
    if shares:
        reason = max(shares, key=lambda name: shares[name])
        few = f" of {len(shares)} reasons" if len(shares) < 10 else ""
        return f"stall {reason} {percent(shares[reason])}{few}"
    if metrics:
        return ""
    first = [f"{c.name} {c.text}" for c in list(dispatch.counters.values())[:4]]
    return ", ".join(first)


def _checker(trace: Trace) -> Iterator[str]:
    """Yield the verdict of a checker and its first records."""
    result = trace.checker
    if result is None:
        return
    yield f"{result.tool or 'checker'}: {result.verdict} ({result.counts_text})"
    for record in result.records[:10]:
        place = f" at {record.kernel}" if record.kernel else ""
        place += f"+{record.offset:#x}" if record.offset is not None else ""
        place += f" in {record.file}:{record.line}" if record.file else ""
        yield f"  {record.level}: {record.text}{place}"
    if len(result.records) > 10:
        yield f"  and {len(result.records) - 10} more"
