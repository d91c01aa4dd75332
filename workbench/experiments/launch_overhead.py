"""How much of the time does the GPU wait for the CPU to launch the next kernel?

A chain of small kernels is launched by the CPU one by one, walked by the GPU as a graph, launched
by torch, fused into one kernel, and copied to the CPU and back after each. What the times say of
who waits for whom, and how sure that is, stands in `judging.timeline`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from workbench import catalog
from workbench.data.record import Evidence, Record
from workbench.experiments import Arm, Asked, Experiment, Found, Judgement
from workbench.experiments.analysis.timeline import (
    EMPTY,
    GAP_S,
    REMEDY,
    Timeline,
    count,
    reach_of,
    waits,
    word_of,
)
from workbench.experiments.analysis.times import Span, launches, reasons, row, span_of
from workbench.reports.findings import GAINS, IMPACT, KPI
from workbench.spec import sizes_text

CHAIN = "norm_chain"


# What is timed


def arms(asked: Asked) -> list[Arm]:
    """The chain's, or those of one kernel that the user names."""
    spec = catalog.spec_of(asked.kernel)
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
        return Judgement("no verdict", f"{way.told}{at}: {lower(why)}", rows, caveats=reasons(used))
    line = Timeline(total, gpu, span_of(found.get(EMPTY)), kernels)
    word = word_of(line, without, reach_of(asked, found[way.gpu]))
    evidence = [*line.evidence(way.total), *speed(found[way.total], total)]
    evidence += graphed(way.gpu, line) if way.total == "eager" else []
    evidence += lost(line, without) + gains(way, total, found)
    return Judgement(
        word, f"{way.told}{at}, {said(word, line, without)} {REMEDY[word]}", evidence,
        caveats=[*caveats(line), *reasons(used)],
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
    one, least = Span.exactly(1.0), Span.exactly(float(record.bytes))
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
    idle = Span.exactly(1.0) - line.utilisation
    return [row("time in which the GPU waits", idle, "1", "computed", IMPACT)]


def gains(way: Way, total: Span, found: Mapping[str, Found]) -> list[Evidence]:
    """By how much the time shrinks, where another arm was measured that does better."""
    rows = []
    for what, arm in way.better:
        other = span_of(found.get(arm))
        gain = Span.exactly(1.0) - other / total if other else None
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
        rows, caveats=reasons(found),
    )  # fmt: skip


EXPERIMENT = Experiment(
    summary="a chain of small kernels: how long does the GPU wait for launches?",
    arms=arms, judge=judge, kernels=(CHAIN,), dtype="fp32",
)  # fmt: skip
