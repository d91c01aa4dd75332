"""How much of the time does the GPU wait for the CPU to launch the next kernel?

A chain of small kernels is timed as the CPU launches it, by the host's clock from the first call
until the GPU is silent, and as a graph that the GPU walks by itself. What follows from the two:

    total time         the host's clock
    GPU time           the graph's time: the kernels, and the GPU's own steps from one to the next
    computing time     GPU time less what as many empty kernels take in a graph
    GPU utilisation    GPU time / total time
    launch efficiency  computing time / total time
    mean kernel time   GPU time / kernels
    mean gap           (total time - GPU time) / kernels

No trace is taken, so the time of the kernels alone lies somewhere between GPU time (too long by the
steps) and computing time (too short, since an empty kernel takes some time, too). The interval of
each number that depends on it covers both, and a target is met or missed only where both say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from workbench import catalog
from workbench.experiment import Arm, Asked, Experiment, ExperimentError, Found, Judgement
from workbench.record import Evidence, Kind, Measured, Record
from workbench.reports.findings import GAINS, IMPACT, KPI
from workbench.spec import Spec, sizes_text

CHAIN = "norm_chain"
EMPTY = "empty launch"
BUSY, COMPUTING, GAP_S = 0.8, 0.7, 1e-6  # targets
STARVED = 0.3  # below this utilisation launches dominate
MOSTLY = 0.5  # of the time: what takes more is what limits
REMEDY = {
    "launch-bound": "Capture the calls in a graph, fuse them, batch them, or give each more work.",
    "partly launch-bound": "Capture the calls in a graph, or fuse the shortest of them.",
    "transfer-bound": "Keep the data on the GPU, copy it in few large pieces, and wait less often.",
    "inefficient kernels": "Give the kernel more to do at once, look at how it reads memory, or "
    "write another one; the experiment memory_vs_compute says what it waits for.",
    "busy": "Launches cost little here; what is left lies in the kernels.",
    "undecided": "The intervals are too wide for a word.",
}


@dataclass(frozen=True)
class Span:
    """A number and what it may be: its 95 % interval, or bounds. Of operations, the widest."""

    value: float
    low: float
    high: float

    def __add__(self, other: Span) -> Span:
        return Span(self.value + other.value, self.low + other.low, self.high + other.high)

    def __sub__(self, other: Span) -> Span:
        return Span(self.value - other.value, self.low - other.high, self.high - other.low)

    def __truediv__(self, other: Span) -> Span:
        """Of numbers that are not negative by positive ones."""
        return Span(self.value / other.value, self.low / other.high, self.high / other.low)

    def times(self, factor: float) -> Span:
        return Span(self.value * factor, self.low * factor, self.high * factor)

    def within(self, low: float, high: float) -> Span:
        """No part of it outside these bounds."""
        return Span(*(min(max(x, low), high) for x in (self.value, self.low, self.high)))

    def down_to(self, other: Span) -> Span:
        """The same number, which may also be as small as another."""
        return Span(self.value, min(self.low, other.low), self.high)

    def up_to(self, other: Span) -> Span:
        """The same number, which may also be as large as another."""
        return Span(self.value, self.low, max(self.high, other.high))

    def above(self, bound: float) -> bool | None:
        """Whether it exceeds the bound; None where the interval does not say."""
        return True if self.low > bound else False if self.high <= bound else None

    def below(self, bound: float) -> bool | None:
        """Whether it is less than the bound; None where the interval does not say."""
        return True if self.high < bound else False if self.low >= bound else None


def span_of(found: Found | None) -> Span | None:
    """The time of an arm, seconds; None where it has none. A prediction has no interval."""
    if found is None or found.time_s is None:
        return None
    return Span(found.time_s, *(found.interval_s or (found.time_s, found.time_s)))


def row(
    name: str, found: Span, unit: str, kind: Kind, group: str, target: str = "",
    met: bool | None = None,
) -> Evidence:  # fmt: skip
    """A number as evidence."""
    return Evidence(name, found.value, unit, kind, found.low, found.high, group, target, met)


def count(kernels: int, group: str, kind: Kind = "measured") -> Evidence:
    """Kernels of one call, as evidence: counted in a graph, or where the compiler caught them."""
    return Evidence(KPI.kernels, float(kernels), "kernels", kind, group=group)


def refused(found: Mapping[str, Found]) -> list[str]:
    """A sentence for each arm without a time."""
    return [f"{name}: {f.why_not.rstrip('.')}." for name, f in found.items() if f.why_not]


@dataclass(frozen=True)
class Timeline:
    """What the module's docstring derives, of one way to run some kernels. Seconds."""

    total: Span
    gpu: Span
    step: Span | None  # one empty kernel in a graph
    kernels: int

    @property
    def computing(self) -> Span:
        """GPU time without the GPU's own steps from kernel to kernel."""
        if self.step is None:
            return Span(self.gpu.value, 0.0, self.gpu.high)
        return (self.gpu - self.step.times(self.kernels)).within(0.0, self.gpu.high)

    @property
    def utilisation(self) -> Span:
        """A share of the total time, at least computing time's."""
        least = self.computing / self.total
        return (self.gpu / self.total).down_to(least).within(0.0, 1.0)

    @property
    def efficiency(self) -> Span:
        """A share of the total time, at most GPU time's."""
        most = self.gpu / self.total
        return (self.computing / self.total).up_to(most).within(0.0, 1.0)

    @property
    def kernel(self) -> Span:
        """Mean, seconds."""
        return self.gpu.down_to(self.computing).times(1 / self.kernels)

    @property
    def gap(self) -> Span:
        """Mean, seconds."""
        idle = (self.total - self.gpu).up_to(self.total - self.computing)
        return idle.within(0.0, self.total.high).times(1 / self.kernels)

    def evidence(self, group: str) -> list[Evidence]:
        """The table of key figures, with the targets that they have."""
        return [
            row(KPI.total, self.total, "s", "measured", group),
            row(KPI.utilisation, self.utilisation, "1", "computed", group, "> 80 %",
                self.utilisation.above(BUSY)),
            row(KPI.efficiency, self.efficiency, "1", "computed", group, "> 70 %",
                self.efficiency.above(COMPUTING)),
            count(self.kernels, group),
            row(KPI.kernel, self.kernel, "s", "computed", group),
            row(KPI.gap, self.gap, "s", "computed", group, "< 1 µs", self.gap.below(GAP_S)),
        ]  # fmt: skip


def word_of(line: Timeline, without: Span | None = None, reach: Span | None = None) -> str:
    """Which scenario the numbers are. `without` is the total time of the same kernels without
    copies to and from the CPU; `reach` is the share of GPU time that the device would need at its
    peak bandwidth and arithmetic."""
    if without is not None:
        copies = ((line.total - without) / line.total).above(MOSTLY)
        if copies is not False:
            return "transfer-bound" if copies else "undecided"
    if line.utilisation.below(STARVED):
        return "launch-bound"
    busy = line.utilisation.above(BUSY)
    if not busy:  # under 80 %, and perhaps under 30 %
        return "undecided" if busy is None else "partly launch-bound"
    return "inefficient kernels" if reach is not None and reach.below(MOSTLY) else "busy"


def reach_of(asked: Asked, found: Found) -> Span | None:
    """The least time that this device needs for an arm's bytes and FLOPs, over the arm's time;
    None where bandwidth and peak are unknown."""
    time, record = span_of(found), found.outcome
    if time is None or not isinstance(record, Record):
        return None
    dram, peak = asked.device.dram, asked.device.peaks.get(found.arm.dtype)
    floors = [record.bytes / dram.value] if dram else []
    floors += [record.flops / peak.value] if peak else []
    return Span(*[max(floors)] * 3) / time if floors else None


# What is timed


def arms(asked: Asked) -> list[Arm]:
    """The chain's, or those of one kernel that the user names. Raises ExperimentError."""
    spec = suited(asked.kernel, asked.dtype)
    sizes = asked.sizes or spec.bench[0]
    empty = Arm(EMPTY, "empty", "once", {}, "fp32")
    if asked.kernel != CHAIN:
        impl = next(i.name for i in spec.impls if i.backend == "triton")
        one = (asked.kernel, impl, sizes, asked.dtype)
        return [Arm("eager", *one, clock="host"), Arm("in a graph", *one), empty]

    def link(name: str, impl: str, host: bool) -> Arm:
        return Arm(name, CHAIN, impl, sizes, asked.dtype, clock="host" if host else "device")

    return [
        link("eager", "eager", True),
        link("in a graph", "eager", False),
        link("torch, eager", "torch", True),
        link("torch, in a graph", "torch", False),
        link("copied to the CPU and back", "read_back", True),
        link("fused, launched", "fused", True),
        link("fused", "fused", False),
        empty,
    ]


def suited(kernel: str, dtype: str) -> Spec:
    """The kernel's Spec. Raises ExperimentError where it is not for that dtype."""
    spec = catalog.spec_of(kernel)
    if dtype not in spec.tolerance:
        known = ", ".join(spec.tolerance)
        raise ExperimentError(f"{spec.name} is not for {dtype}; name one of {known} with --dtype.")
    return spec


# What it means


class Way(NamedTuple):
    """A way to run the kernels: its arm by the host's clock, and the one that tells GPU time."""

    told: str  # in a sentence
    total: str
    gpu: str
    without: str = ""  # the same kernels without copies
    better: tuple[tuple[str, str], ...] = ()  # what to do, and the arm that did it


WAYS = (
    Way("Launched one by one", "eager", "in a graph", better=(
        ("capture the calls in a graph", "in a graph"),
        ("fuse them into one kernel", "fused, launched"),
    )),
    Way("Launched one by one by torch", "torch, eager", "torch, in a graph", better=(
        ("capture the calls in a graph", "torch, in a graph"),
    )),
    Way("With the data copied to the CPU and back behind each kernel",
        "copied to the CPU and back", "in a graph", "eager",
        better=(("keep the data on the GPU", "eager"),)),
    Way("Fused into one kernel", "fused, launched", "fused",
        better=(("launch it from a graph", "fused"),)),
)  # fmt: skip


def judge(asked: Asked, found: Mapping[str, Found]) -> list[Judgement]:
    """A word for each way to run the kernels."""
    if asked.predicts:
        return [predicted(found)]
    return [judged(way, asked, found) for way in WAYS if way.total in found]


def judged(way: Way, asked: Asked, found: Mapping[str, Found]) -> Judgement:
    """One way by what was measured; where an arm gave no time, what that leaves open."""
    total, gpu = span_of(found[way.total]), span_of(found.get(way.gpu))
    kernels = launches(found[way.total]) or launches(found.get(way.gpu))
    without = span_of(found.get(way.without)) if way.without else None
    at = f" ({sizes_text(found[way.total].arm.sizes, ' ')})"
    used = {n: found[n] for n in (way.total, way.gpu, way.without, EMPTY) if n in found}
    waiting = waits(found.get(way.gpu))
    if total is None or gpu is None or not kernels or waiting or (way.without and without is None):
        why = waiting or "Some of what it takes was not measured, so there is no word."
        rows = [row(KPI.total, total, "s", "measured", way.total)] if total else []
        return Judgement("no verdict", f"{way.told}{at}: {lower(why)}", rows, caveats=refused(used))
    line = Timeline(total, gpu, span_of(found.get(EMPTY)), kernels)
    word = word_of(line, without, reach_of(asked, found[way.gpu]))
    evidence = [*line.evidence(way.total), *speed(found[way.total], total)]
    evidence += graphed(way.gpu, line) if way.total == "eager" else []
    evidence += lost(line, without) + gains(way, total, found)
    return Judgement(
        word, f"{way.told}{at}, {said(word, line, without)} {REMEDY[word]}", evidence,
        caveats=[*caveats(line), *refused(used)],
    )  # fmt: skip


def said(word: str, line: Timeline, without: Span | None) -> str:
    """The numbers that carry the word, in a clause."""
    if word == "transfer-bound" and without is not None:
        share = (line.total - without) / line.total
        return f"copies and waiting for them take {100 * share.value:.0f} % of the time."
    each = f"{line.kernel.value * 1e6:.1f} µs a kernel and {line.gap.value * 1e6:.1f} µs a gap"
    return f"the GPU is at work {100 * line.utilisation.value:.0f} % of the time, at most: {each}."


def speed(found: Found, total: Span) -> list[Evidence]:
    """Calls a second, and the bytes a second of what must move at least."""
    record = found.outcome
    assert isinstance(record, Record)
    one, least = Span(1.0, 1.0, 1.0), Span(*[float(record.bytes)] * 3)
    return [
        row("throughput", one / total, "calls/s", "computed", found.arm.name),
        row("least bytes over total time", least / total, "B/s", "computed", found.arm.name),
    ]


def graphed(group: str, line: Timeline) -> list[Evidence]:
    """The same kernels in a graph, where the GPU waits for nobody but itself: its utilisation is 1
    by the way it is told here, which is no finding. A gap is at most an empty kernel."""
    graph = Timeline(line.gpu, line.gpu, line.step, line.kernels)
    shown = (KPI.total, KPI.efficiency, KPI.kernels)
    rows = [e for e in graph.evidence(group) if e.name in shown]
    if line.step is not None:
        gap = Span(line.step.value, 0.0, line.step.high)
        name = f"{KPI.gap}, at most"
        rows.append(row(name, gap, "s", "measured", group, "< 1 µs", gap.below(GAP_S)))
    return rows


def lost(line: Timeline, without: Span | None) -> list[Evidence]:
    """What the bottleneck takes of the total time."""
    if without is not None:
        share = ((line.total - without) / line.total).within(0.0, 1.0)
        return [row("time for copies and waiting for them", share, "1", "computed", IMPACT)]
    idle = Span(1.0, 1.0, 1.0) - line.utilisation
    return [row("time in which the GPU waits", idle, "1", "computed", IMPACT)]


def gains(way: Way, total: Span, found: Mapping[str, Found]) -> list[Evidence]:
    """By how much the time shrinks, where another arm was measured that does better."""
    rows = []
    for what, arm in way.better:
        other = span_of(found.get(arm))
        gain = Span(1.0, 1.0, 1.0) - other / total if other else None
        if gain is not None and gain.low > 0:
            rows.append(row(what, gain, "1", "computed", GAINS))
    return rows


def caveats(line: Timeline) -> list[str]:
    """What the numbers are not."""
    told = [
        "No trace was taken: GPU time is that of the same calls in a graph. Steps from kernel to "
        "kernel are part of it, and intervals span what an empty kernel takes there."
        if line.step is not None
        else "What an empty kernel takes in a graph is unknown, so computing time is only known to "
        "be at most GPU time."
    ]
    return [*told, "A graph of these times holds many calls, which share its own launch."]


def launches(found: Found | None) -> int | None:
    """Kernels of one call: as a graph counted them, else as the compiler caught them."""
    if found is None:
        return None
    if found.kernels is not None:
        return found.kernels
    return found.compiled.launches if found.compiled else None


def waits(found: Found | None) -> str:
    """A sentence where a call cannot be timed without the CPU; empty where it can."""
    timing = found.outcome.timing if found and isinstance(found.outcome, Record) else None
    if isinstance(timing, Measured) and timing.method == "host":
        return (
            "The call waits for the GPU itself, or no graph can hold it, so GPU time cannot be "
            "told from the rest: look for copies to the CPU in it."
        )
    return ""


def lower(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]


def predicted(found: Mapping[str, Found]) -> Judgement:
    """What the model says of the GPU's side; how long the CPU takes to launch, it does not."""
    rows = []
    for name, each in found.items():
        time, kernels = span_of(each), launches(each)
        if time is None:
            continue
        rows.append(Evidence(KPI.total, time.value, "s", "predicted", group=name))
        rows += [count(kernels, name, "computed")] if kernels else []
    return Judgement(
        "needs a GPU",
        "How long the CPU takes to launch is not predicted, so nothing is said of utilisation and "
        "gaps. The times in a graph are the model's.",
        rows, caveats=refused(found),
    )  # fmt: skip


EXPERIMENT = Experiment(
    summary="a chain of small kernels: how long does the GPU wait for launches?",
    arms=arms, judge=judge, kernels=(CHAIN,), dtype="fp32",
)  # fmt: skip
