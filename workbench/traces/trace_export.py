"""A trace as JSON, as CSV, and as Chrome JSON for Perfetto. Names are text: nothing in them is
obeyed by a terminal, a spreadsheet or a page."""

from __future__ import annotations

import csv
import io
import json
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from workbench.data.files import finite_numbers
from workbench.data.record import Finding
from workbench.traces.metric import exact_counters as counters_of
from workbench.traces.metric import metric_values, stall_shares
from workbench.traces.timeline import DeviceTimes, KernelRow
from workbench.traces.trace import ActivityKind, Dispatch, Trace
from workbench.traces.trace_summary import DeviceSummary, TraceSummary

FORMULAS = ("=", "+", "@", "-", "\t")  # a spreadsheet computes a cell that begins so


def cell(text: str) -> str:
    """Return a text that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(FORMULAS) else text


def kernels_csv(trace: Trace, rows: Sequence[KernelRow]) -> str:
    """Return one row per kernel, times in ns; and where the file has counters, one row a dispatch
    with the metrics that they give, in the units of the heads."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    counted = [d for d in trace.dispatches if d.counters]
    if not counted:
        writer.writerow(["kernel", "device", "count", "total_ns", "mean_ns", "min_ns", "max_ns"])
        for row in rows:
            least, most = ("" if v is None else f"{v:g}" for v in (row.low_ns, row.high_ns))
            times = f"{row.total_ns:.15g}", f"{row.mean_ns:.15g}", least, most
            writer.writerow([cell(row.name), cell(row.device), row.count, *times])
        return out.getvalue()
    values = [metric_values(d, trace.tool) for d in counted]
    names = list(dict.fromkeys(name for metrics in values for name in metrics))
    units = {name: metrics[name].metric.unit for metrics in values for name in metrics}
    others = [] if names else list(dict.fromkeys(name for d in counted for name in d.counters))
    heads = [f"{name} ({units[name]})" for name in names] + [cell(name) for name in others]
    writer.writerow(["kernel", "id", "device", "grid", "block", "duration_ns", *heads])
    for dispatch, metrics in zip(counted, values, strict=True):
        counters = counters_of(dispatch)
        cells = [f"{metrics[name].value:.9g}" if name in metrics else "" for name in names]
        cells += [f"{counters[name]:.9g}" if name in counters else "" for name in others]
        writer.writerow([*_launch(dispatch), *cells])
    return out.getvalue()


def _launch(dispatch: Dispatch) -> list[str]:
    sizes = dispatch.geometry.grid, dispatch.geometry.block
    texts = ["x".join(map(str, size)) if size else "" for size in sizes]
    spent = "" if dispatch.duration_ns is None else f"{dispatch.duration_ns:.15g}"
    return [cell(dispatch.name), cell(dispatch.id), cell(dispatch.device), *texts, spent]


def summary_json(summary: TraceSummary) -> dict[str, Any]:
    """Return a trace as plain data: files, devices, KPIs by device, kernels, classes, repeated
    sequences, ranges, longest gaps, dispatches with metrics and counters, totals, the checker's
    result, and notes. Times are in ns where a name ends so, else in the unit beside them."""
    trace, checker = summary.trace, summary.trace.checker
    return {
        "tool": trace.tool,
        "version": trace.version,
        "format": trace.title,
        "kind": "profiled",
        "files": [asdict(file) for file in trace.files],
        "vendor": trace.vendor,
        "devices": trace.devices,
        "kpis": {device: [asdict(kpi) for kpi in kpis] for device, kpis in summary.kpis.items()},
        "kernels": [asdict(row) for row in summary.rows],
        "timelines": {each.device: _timeline(each) for each in summary.devices},
        "operations": [asdict(row) for row in summary.operations],
        "dispatches": [_dispatch(d, trace.tool) for d in trace.dispatches if d.counters],
        "totals": [asdict(total) | {"kind": total.kind.name.lower()} for total in trace.totals],
        "checker": checker and asdict(checker) | {"verdict": checker.verdict},
        "tables": trace.tables,
        "incomplete": [each.sentence for each in summary.lacks],
        "notes": trace.notes,
    }


def _timeline(summary: DeviceSummary) -> dict[str, Any]:
    return {
        "classes": [asdict(row) for row in summary.classes],
        "sequences": [asdict(row) for row in summary.repeats],
        "ranges": [asdict(row) for row in summary.ranges],
        "gaps": [
            {
                "start_ns": each.gap.start - summary.times.start,
                "length_ns": each.gap.duration,
                "cause": each.gap.cause,
                "host": each.host,
                "host_share": each.host_share,
                "launch": each.launch,
                "next": each.next,
            }
            for each in summary.gaps
        ],
    }


def _dispatch(dispatch: Dispatch, tool: str) -> dict[str, Any]:
    metrics = metric_values(dispatch, tool)
    table = dispatch.instructions
    return {
        "name": dispatch.name,
        "id": dispatch.id,
        "device": dispatch.device,
        "geometry": dispatch.geometry._asdict(),
        "duration_ns": dispatch.duration_ns,
        "metrics": {
            name: {"value": known.value, "unit": known.metric.unit, "source": known.source}
            for name, known in metrics.items()
        },
        "stall_shares": stall_shares(counters_of(dispatch)),
        "counters": {
            name: {"value": c.exact, "unit": c.unit, "text": c.text, "state": c.state}
            for name, c in dispatch.counters.items()
        },
        "instructions": 0 if table is None else len(table.texts),
        "notes": dispatch.notes,
    }


def json_text(value: Any) -> str:
    """Return plain data as JSON text; numbers that are not finite are null."""
    return json.dumps(finite_numbers(value), ensure_ascii=False, indent=1) + "\n"


def perfetto(summary: TraceSummary, findings: Sequence[Finding] = ()) -> str:
    """Return Chrome JSON for Perfetto and chrome://tracing: kernels, copies and sets by stream,
    gaps by cause, the calls that launched or waited, arrows from a launch to its kernel, and a lane
    of findings over the whole window."""
    trace, chosen = summary.trace, summary.times
    lines = ",\n".join(
        json.dumps(event, ensure_ascii=False, separators=(",", ":"))
        for events in (_events(trace, chosen, summary.launches), _findings(chosen, findings))
        for event in events
    )
    return f'{{"displayTimeUnit":"ns","traceEvents":[\n{lines}\n]}}\n'


HOST = 0  # process of the host; devices follow


def _events(
    trace: Trace, chosen: Sequence[DeviceTimes], launches: array[int]
) -> Iterator[dict[str, Any]]:
    table = trace.activities
    base = min((times.start for times in chosen), default=0)
    lanes: dict[tuple[int, str], int] = {}

    def lane(process: int, name: str) -> Iterator[dict[str, Any]]:
        if (process, name) not in lanes:
            lanes[process, name] = len(lanes) + 1
            yield _name_event("thread_name", process, lanes[process, name], name)

    def place(process: int, name: str) -> dict[str, int]:
        return {"pid": process, "tid": lanes[process, name]}

    yield _name_event("process_name", HOST, 0, "host")
    shown: set[int] = set()
    for process, times in enumerate(chosen, 1):
        yield _name_event("process_name", process, 0, f"device {times.device}")
        yield from lane(process, "idle by cause")
        for gap in times.gaps:
            where = place(process, "idle by cause")
            yield _box(gap.cause, where, gap.start - base, gap.duration, {})
        for index in times.order:
            activity = table[index]
            stream = f"stream {activity.lane}"
            yield from lane(process, stream)
            where, start = place(process, stream), activity.start - base
            facts = _arguments(activity.geometry._asdict(), activity.bytes)
            yield _box(activity.name, where, start, activity.duration, facts)
            if (call := launches[index]) >= 0:
                shown.add(call)
                host = f"thread {table[call].lane}"
                yield from lane(HOST, host)
                launched = (table.starts[call] - base) / 1000
                arrow = {"name": "launch", "cat": "launch", "id": index}
                yield {**arrow, "ph": "s", **place(HOST, host), "ts": launched}
                yield {**arrow, "ph": "f", "bp": "e", **where, "ts": start / 1000}
    for index in sorted(shown | set(table.select(ActivityKind.SYNC))):
        activity = table[index]
        host = f"thread {activity.lane}"
        yield from lane(HOST, host)
        start = activity.start - base
        yield _box(activity.name, place(HOST, host), start, activity.duration, {})


def _findings(
    chosen: Sequence[DeviceTimes], findings: Sequence[Finding]
) -> Iterator[dict[str, Any]]:
    """Yield a lane for each finding, below the devices."""
    process = len(chosen) + 1
    length = max((times.window for times in chosen), default=0)
    if findings:
        yield _name_event("process_name", process, 0, "findings")
    for lane, finding in enumerate(findings, 1):
        yield _name_event("thread_name", process, lane, finding.rule or "result")
        facts = {"sentence": finding.sentence, "advice": finding.advice}
        yield _box(finding.word, {"pid": process, "tid": lane}, 0, length, facts)


def _name_event(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _box(
    name: str, where: dict[str, int], start: int, length: int, facts: dict[str, Any]
) -> dict[str, Any]:
    times = {"ts": start / 1000, "dur": length / 1000}
    return {"ph": "X", "name": name, **where, **times, "args": facts}


def _arguments(geometry: dict[str, Any], moved: int) -> dict[str, Any]:
    facts = {key: value for key, value in geometry.items() if value is not None}
    return facts if moved < 0 else {**facts, "bytes": moved}
