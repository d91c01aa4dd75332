"""Compare a chain of kernels by the CPU's clock and by the GPU's: which waits for which, and how
long.

The kernels are timed twice: as the CPU launches them, by the host's clock from the first call until
the GPU is idle, and as a graph that the GPU replays by itself. The figures derived from the two:

    total time         the host's clock
    GPU time           the graph's time: the kernels, and the GPU's own steps from one to the next
    computing time     GPU time minus the time of as many empty kernels in a graph
    GPU utilisation    GPU time / total time
    launch efficiency  computing time / total time
    mean kernel time   GPU time / kernels
    mean gap           (total time - GPU time) / kernels

No trace is taken, so the time of the kernels alone is between GPU time (too long by the steps) and
computing time (too short, since an empty kernel takes some time, too). The interval of each number
that depends on it covers both, and a target is met or missed only if both agree.
"""

from dataclasses import dataclass

from workbench.data.record import Evidence, Kind, Record
from workbench.experiments import Context, VariantResult
from workbench.experiments.analysis.times import Span, row, span_of
from workbench.reports.findings import KPI

EMPTY = "empty launch"
BUSY, COMPUTING, GAP_S = 0.8, 0.7, 1e-6  # targets
STARVED = 0.3  # below this utilisation launches dominate
MOSTLY = 0.5  # share of the time above which a part is the limit
REMEDY = {
    "launch-bound": "Capture the calls in a graph, fuse them, batch them, or give each more work.",
    "partly launch-bound": "Capture the calls in a graph, or fuse the shortest of them.",
    "transfer-bound": "Keep the data on the GPU, copy it in few large pieces, and wait less often.",
    "inefficient kernels": "Give the kernel more to do at once, look at how it reads memory, or "
    "write another one; the experiment memory_vs_compute says what it waits for.",
    "busy": "Launches cost little here; the rest of the time is in the kernels.",
    "undecided": "The intervals are too wide for a word.",
}


@dataclass(frozen=True)
class Timeline:
    """Figures of the module's docstring for one way to run some kernels, in seconds."""

    total: Span
    gpu: Span
    step: Span | None  # one empty kernel in a graph
    kernels: int

    @property
    def computing(self) -> Span:
        """GPU time without the GPU's own steps from kernel to kernel."""
        if self.step is None:
            return Span(self.gpu.value, 0.0, self.gpu.high)
        return (self.gpu - self.step.times(self.kernels)).clamp(0.0, self.gpu.high)

    @property
    def utilisation(self) -> Span:
        """Share of the time in which the GPU works; its interval includes computing's."""
        least = self.computing / self.total
        return (self.gpu / self.total).extend_down(least).clamp(0.0, 1.0)

    @property
    def efficiency(self) -> Span:
        """Share of the total time spent computing; its interval includes GPU time's share."""
        most = self.gpu / self.total
        return (self.computing / self.total).extend_up(most).clamp(0.0, 1.0)

    @property
    def kernel(self) -> Span:
        """Mean time of a kernel, in seconds."""
        return self.gpu.extend_down(self.computing).times(1 / self.kernels)

    @property
    def gap(self) -> Span:
        """Mean gap between kernels, in seconds."""
        idle = (self.total - self.gpu).extend_up(self.total - self.computing)
        return idle.clamp(0.0, self.total.high).times(1 / self.kernels)

    def evidence(self, group: str) -> list[Evidence]:
        """Return the table of key figures, with their targets."""
        used, efficient = self.utilisation, self.efficiency
        share: tuple[str, Kind, str] = "1", "computed", group
        return [
            row(KPI.total, self.total, "s", "measured", group),
            row(KPI.utilisation, used, *share, "> 80 %", used.is_above(BUSY)),
            row(KPI.efficiency, efficient, *share, "> 70 %", efficient.is_above(COMPUTING)),
            count(self.kernels, group),
            row(KPI.kernel, self.kernel, "s", "computed", group),
            row(KPI.gap, self.gap, "s", "computed", group, "< 1 µs", self.gap.is_below(GAP_S)),
        ]


def word_of(line: Timeline, without: Span | None = None, reach: Span | None = None) -> str:
    """Return the word for these figures. `without` is the total time of the same kernels without
    copies to and from the CPU; `reach` is the share of GPU time that the device would need at its
    peak bandwidth and arithmetic."""
    if without is not None:
        copies = ((line.total - without) / line.total).is_above(MOSTLY)
        if copies is not False:
            return "transfer-bound" if copies else "undecided"
    if line.utilisation.is_below(STARVED):
        return "launch-bound"
    busy = line.utilisation.is_above(BUSY)
    if not busy:  # under 80 %, and perhaps under 30 %
        return "undecided" if busy is None else "partly launch-bound"
    return "inefficient kernels" if reach is not None and reach.is_below(MOSTLY) else "busy"


def count(kernels: int, group: str, kind: Kind = "measured") -> Evidence:
    """Return the kernels of one call as evidence: counted in a graph, or by the compiler."""
    return Evidence(KPI.kernels, float(kernels), "kernels", kind, group=group)


def reach_of(context: Context, result: VariantResult) -> Span | None:
    """Return the least time that this device needs for a variant's bytes and FLOPs, over the
    variant's time; None if bandwidth and peak are unknown."""
    time, record = span_of(result), result.outcome
    if time is None or not isinstance(record, Record):
        return None
    dram, peak = context.device.dram, context.device.peaks.get(result.variant.dtype)
    bounds = [record.bytes / dram.value] if dram else []
    bounds += [record.flops / peak.value] if peak else []
    return Span.exactly(max(bounds)) / time if bounds else None


def waits(result: VariantResult | None) -> str:
    """Return a sentence if a call cannot be timed without the CPU; empty if it can."""
    if result and result.timing and result.timing.method == "host":
        return (
            "The call waits for the GPU itself, or no graph can hold it, so GPU time cannot be "
            "separated from the rest: look for copies to the CPU in it."
        )
    return ""
