"""All that pages, terminals, rules and comparisons use of a trace, computed once."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from workbench.data.intervals import Intervals
from workbench.data.units import amount
from workbench.traces.host_work import (
    ExplainedGap,
    OperationRow,
    RangeRow,
    copy_waits,
    longest_gaps,
    operation_rows,
    range_rows,
)
from workbench.traces.kernel_class import ClassRow, class_rows
from workbench.traces.repeats import Repeat, repeats
from workbench.traces.shortfall import Shortfall, lone_kernel, shortfalls
from workbench.traces.timeline import DeviceTimes, KernelRow, device_times, devices, kernel_rows
from workbench.traces.trace import Trace
from workbench.traces.trace_kpis import TraceKpi, summed_kpis, timeline_kpis


@dataclass
class DeviceSummary:
    """The timeline of one device and what follows from it."""

    trace: Trace
    times: DeviceTimes
    launches: array[int]  # of `trace.activities.launches()`
    lacks: Sequence[Shortfall] = ()  # of the trace; no rule is evaluated where there is one

    @property
    def hides_work(self) -> bool:
        """Whether work of the device is missing, so that its idle time says nothing."""
        return any(each.hides_work for each in self.lacks)

    @property
    def device(self) -> str:
        """Name of the device in the file."""
        return self.times.device

    @cached_property
    def classes(self) -> list[ClassRow]:
        """Classes of its kernels, the longest total first."""
        return class_rows(self.trace, self.times, self.launches)

    @cached_property
    def copying_idle(self) -> int:
        """Time in ns in which the device has no work because of copies: see `copy_waits`."""
        return copy_waits(self.trace, self.times, self.launches).length

    @property
    def launch_wait(self) -> int:
        """Time in ns in which the device waited for a launch, and not because of a copy."""
        return max(0, self.times.idle()["host wait"] - self.copying_idle)

    @cached_property
    def kpis(self) -> list[TraceKpi]:
        """KPIs with their targets."""
        kpis = timeline_kpis(self.trace, self.times, self.launches, self.classes, self.lacks)
        if any(d.is_counted for d in self.trace.dispatches):  # kernels were run one by one
            return [replace(kpi, met="") for kpi in kpis]
        return kpis

    @cached_property
    def rows(self) -> list[KernelRow]:
        """One row a kernel, the longest total first."""
        return kernel_rows(self.trace, [self.times])

    @cached_property
    def gaps(self) -> list[ExplainedGap]:
        """The longest gaps, the longest first."""
        return longest_gaps(self.trace, self.times, self.launches)

    @cached_property
    def repeats(self) -> list[Repeat]:
        """Sequences of kernels that follow one another at least five times."""
        return repeats(self.trace, self.times)

    @cached_property
    def ranges(self) -> list[RangeRow]:
        """Host ranges by name, with the work that was launched in them."""
        return range_rows(self.trace, self.times, self.launches)


@dataclass
class TraceSummary:
    """A trace, with a summary of each of its devices."""

    trace: Trace
    launches: array[int]
    devices: list[DeviceSummary] = field(default_factory=list)
    lacks: list[Shortfall] = field(default_factory=list)

    @property
    def times(self) -> list[DeviceTimes]:
        """Timelines of the devices."""
        return [each.times for each in self.devices]

    @cached_property
    def rows(self) -> list[KernelRow]:
        """One row for each kernel and device, the longest total first."""
        return kernel_rows(self.trace, self.times)

    @cached_property
    def kpis(self) -> dict[str, list[TraceKpi]]:
        """KPIs by device; `all` where the file has sums alone."""
        if self.devices:
            return {each.device: each.kpis for each in self.devices}
        return {"all": summed_kpis(self.rows)} if self.rows else {}

    @cached_property
    def operations(self) -> list[OperationRow]:
        """Host operations by name, the most time of their own first."""
        return operation_rows(self.trace)

    @cached_property
    def host_ranges(self) -> list[RangeRow]:
        """Host ranges by name of a trace in which no device had work."""
        return [] if self.devices else range_rows(self.trace, None, self.launches)


def summarise(trace: Trace, within: Intervals | None = None) -> TraceSummary:
    """Return the summary of a trace, of the work that was launched in host ranges alone if they are
    given. What was left out or assumed is added to the notes of the trace."""
    launches = trace.activities.launches()
    summary = TraceSummary(trace, launches, lacks=shortfalls(trace, launches))
    for device in devices(trace):
        try:
            times = device_times(trace, device, within=within, launches=summary.launches)
        except ValueError:  # no work of this device in the range
            continue
        summary.devices.append(DeviceSummary(trace, times, summary.launches, summary.lacks))
        kernels = trace.activities.kernels(times.order)
        if (lone := lone_kernel(trace.activities, kernels)) != "":
            trace.notes.append(lone)
        if times.left_out:
            trace.notes.append(
                f"device {device}: {amount(times.left_out, 'activity')} before the first launch "
                "in the file, outside of the window".replace("activitys", "activities")
            )
        elif not times.launches and times.kernel_count:
            trace.notes.append(
                f"device {device}: no launch is in the file; the window is of all its work"
            )
    return summary
