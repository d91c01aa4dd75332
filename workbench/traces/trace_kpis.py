"""The KPIs of a timeline, with their targets. Each is of one device; devices are never summed."""

from __future__ import annotations

import statistics
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace

from workbench.data.units import duration
from workbench.traces.kernel_class import GEMM, ClassRow
from workbench.traces.shortfall import Shortfall
from workbench.traces.timeline import SHORT_NS, DeviceTimes, KernelRow
from workbench.traces.trace import ActivityKind, Trace

BASELINE = "a baseline's"


@dataclass(frozen=True)
class TraceKpi:
    """One KPI: its value in `unit` (s, B, B/s, kernels, 1 for a share), None where the file does
    not tell, and the target that it is held to."""

    name: str
    value: float | None
    unit: str
    target: str = ""
    met: str = ""  # yes, no, bad, or empty without a target
    note: str = ""


def timeline_kpis(
    trace: Trace,
    times: DeviceTimes,
    launches: array[int],
    classes: Sequence[ClassRow],
    lacks: Sequence[Shortfall] = (),
) -> list[TraceKpi]:
    """Return the KPIs of a device's timeline; `classes` are those of its kernels. None is rated
    where the trace lacks something, and where work is missing only counts have a value."""
    kpis = _all_kpis(trace, times, launches, classes)
    if not lacks:
        return kpis
    if not any(each.hides_work for each in lacks):
        return [replace(kpi, met="", note="not rated" if kpi.met else kpi.note) for kpi in kpis]
    return [
        replace(kpi, met="") if kpi.name in COUNTS
        else replace(kpi, value=None, met="", note="not known: work is missing")
        for kpi in kpis
    ]  # fmt: skip


COUNTS = ("total time", "kernel count", "mean kernel time", "copies", "bytes copied")


def _all_kpis(
    trace: Trace, times: DeviceTimes, launches: array[int], classes: Sequence[ClassRow]
) -> list[TraceKpi]:
    mean = times.kernel_sum / times.kernel_count / 1e9 if times.kernel_count else None
    return [
        TraceKpi("total time", times.window / 1e9, "s", BASELINE),
        TraceKpi("kernel count", times.kernel_count, "kernels", BASELINE),
        TraceKpi("mean kernel time", mean, "s", BASELINE),
        _utilisation(times),
        *_gap_kpis(times),
        _launch_efficiency(times),
        *_idle_kpis(times),
        *_sync_kpis(trace, times),
        *_copy_kpis(times),
        *_launch_kpis(trace, times, launches),
        *_gemm_share(times, classes),
    ]


def _launch_efficiency(times: DeviceTimes) -> TraceKpi:
    share, note = times.launch_efficiency, "share of the window in which a kernel ran"
    return TraceKpi("launch efficiency", share, "1", "> 70 %", _yes_no(share > 0.7), note)


def _gemm_share(times: DeviceTimes, classes: Sequence[ClassRow]) -> list[TraceKpi]:
    """Return the share of kernel time that matrix products take, sums over all streams."""
    spent = sum(row.total_ns for row in classes if row.name == GEMM)
    if not times.kernel_sum:
        return []
    share = spent / times.kernel_sum
    return [TraceKpi("GEMM share", share, "1", "< 60 %", _yes_no(share < 0.6), "of kernel time")]


def _yes_no(holds: bool) -> str:
    return "yes" if holds else "no"


def _utilisation(times: DeviceTimes) -> TraceKpi:
    share = times.utilisation
    met = "bad" if share < 0.3 else _yes_no(share > 0.8)
    return TraceKpi("GPU utilisation", share, "1", "> 80 %", met)


def _gap_kpis(times: DeviceTimes) -> list[TraceKpi]:
    """Return mean, median and 95th percentile of the gaps. A mean below the clock's step says no
    more than that."""
    statistics_of = times.gap_statistics()
    if statistics_of is None:
        return [TraceKpi("mean gap", None, "s", "< 1 µs", "yes", "no gap")]
    mean, median, high = statistics_of
    step = times.step or 0
    note = f"below the clock step of {step} ns" if mean < step else ""
    held = _yes_no(mean < max(SHORT_NS, step))
    return [
        TraceKpi("mean gap", mean / 1e9, "s", "< 1 µs", held, note),
        TraceKpi("median gap", median / 1e9, "s"),
        TraceKpi("95 % of gaps below", high / 1e9, "s"),
    ]


def _idle_kpis(times: DeviceTimes) -> list[TraceKpi]:
    names = {
        "host wait": "launched after the gap began",
        "step": "from one kernel to the next",
        "dependency": "launched before, and waited for something else",
        "unknown": "the launch is not in the file",
    }
    if times.launches == 0:
        idle, note = sum(times.idle().values()) / 1e9, "cause unknown: no launch is in the file"
        return [TraceKpi("idle", idle, "s", note=note)]
    return [
        TraceKpi(f"idle: {cause}", spent / 1e9, "s", note=names[cause])
        for cause, spent in times.idle().items()
    ]


def _sync_kpis(trace: Trace, times: DeviceTimes) -> list[TraceKpi]:
    """Return wall and exposed synchronisation as shares of the window."""
    if not any(True for _ in trace.activities.select(ActivityKind.CALL, ActivityKind.SYNC)):
        note = "the file has no call of the runtime"
        return [TraceKpi("synchronisation", None, "1", "< 5 %", "", note)]
    window = times.window or 1
    wall, exposed = times.sync.length / window, times.sync_exposed.length / window
    steps = times.sync_exposed.length - times.sync_unqueued.length
    note = f"{duration(steps / 1e9)} of it between queued kernels" if steps else ""
    return [
        TraceKpi("synchronisation, wall", wall, "1", "< 5 %", _yes_no(wall < 0.05)),
        TraceKpi("synchronisation, exposed", exposed, "1", "< 5 %", _yes_no(exposed < 0.05), note),
    ]


def _copy_kpis(times: DeviceTimes) -> list[TraceKpi]:
    if not times.copy_count:
        return []
    result = [TraceKpi("copies", times.copy_count, "copies")]
    if times.copied_bytes is not None:
        spent = times.copies.length / 1e9
        rate = times.copied_bytes / spent if spent else None
        result += [
            TraceKpi("bytes copied", times.copied_bytes, "B"),
            TraceKpi("bandwidth of copies", rate, "B/s"),
        ]
    share = times.copies_exposed.length / (times.window or 1)
    return [*result, TraceKpi("copies, exposed", share, "1", "< 5 %", _yes_no(share < 0.05))]


def _launch_kpis(trace: Trace, times: DeviceTimes, launches: array[int]) -> list[TraceKpi]:
    """Return medians of the call that launched a kernel, and from its end to the kernel's start."""
    table = trace.activities
    pairs = [
        (launches[i], i)
        for i in times.order
        if launches[i] >= 0 and table.kinds[i] == ActivityKind.KERNEL
    ]
    if not pairs:
        return []
    calls = statistics.median(table.ends[call] - table.starts[call] for call, _ in pairs)
    delay = statistics.median(table.starts[kernel] - table.ends[call] for call, kernel in pairs)
    return [
        TraceKpi("launch call, median", calls / 1e9, "s"),
        TraceKpi("launch delay, median", delay / 1e9, "s", note="end of the call to the kernel"),
    ]


def summed_kpis(rows: Sequence[KernelRow]) -> list[TraceKpi]:
    """Return the KPIs that sums alone give."""
    count = sum(row.count for row in rows)
    total = sum(row.total_ns for row in rows) / 1e9
    note = "sum of kernels; the file has no timeline"
    return [
        TraceKpi("total time", total, "s", BASELINE, note=note),
        TraceKpi("kernel count", count, "kernels", BASELINE),
        TraceKpi("mean kernel time", total / count if count else None, "s", BASELINE),
        TraceKpi("GPU utilisation", None, "1", "> 80 %", note="needs a timeline"),
    ]
