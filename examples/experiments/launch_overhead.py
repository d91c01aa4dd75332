"""Measure how long the GPU waits for the CPU to launch the next kernel.

A chain of small kernels is launched by the CPU one by one, replayed by the GPU as a graph, launched
by torch, fused into one kernel, and copied to the CPU and back after each. `analysis.timeline`
documents what is derived from the times, and with which uncertainty.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from workbench import catalog
from workbench.data.record import Evidence, Record
from workbench.experiments import Analysis, Context, Experiment, Variant, VariantResult
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


# Variants


def variants(context: Context) -> list[Variant]:
    """Return the variants of the chain, or those of one kernel that the user names."""
    spec = catalog.spec_of(context.kernel)
    sizes = context.sizes or spec.bench[0]
    empty = Variant(EMPTY, "empty", "once", {}, "fp32")
    if context.kernel != CHAIN:
        impl = next((i.name for i in spec.impls if i.backend == "triton"), spec.impls[0].name)
        one = (context.kernel, impl, sizes, context.dtype)
        return [Variant("eager", *one, clock="host"), Variant("in a graph", *one), empty]

    def link(name: str, impl: str, host: bool) -> Variant:
        return Variant(name, CHAIN, impl, sizes, context.dtype, clock="host" if host else "device")

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


# Analysis


class Way(NamedTuple):
    """A way to run kernels: its variant by the host's clock, and that of the GPU time."""

    text: str  # in a sentence
    total: str
    gpu: str
    baseline: str = ""  # the same kernels without copies
    better: Mapping[str, str] = {}  # what to do, and the variant that did it


# What to do about each way, and the variant that did it.
_CAPTURE = "capture the calls in a graph"
_EAGER = {_CAPTURE: "in a graph", "fuse them into one kernel": "fused, launched"}
_TORCH = {_CAPTURE: "torch, in a graph"}
_COPIED = {"keep the data on the GPU": "eager"}
_FUSED = {"launch it from a graph": "fused"}
_COPIES = "With the data copied to the CPU and back after each kernel"
WAYS = (
    Way("Launched one by one", "eager", "in a graph", better=_EAGER),
    Way("Launched one by one by torch", "torch, eager", "torch, in a graph", better=_TORCH),
    Way(_COPIES, "copied to the CPU and back", "in a graph", "eager", better=_COPIED),
    Way("Fused into one kernel", "fused, launched", "fused", better=_FUSED),
)


def analyse(context: Context, results: Mapping[str, VariantResult]) -> list[Analysis]:
    """Return one analysis for each way to run the kernels."""
    if context.predicts:
        return [predicted_analysis(results)]
    return [analyse_way(way, context, results) for way in WAYS if way.total in results]


def analyse_way(way: Way, context: Context, results: Mapping[str, VariantResult]) -> Analysis:
    """Return the analysis of one way; there is no verdict if a variant has no time."""
    total, gpu = span_of(results[way.total]), span_of(results.get(way.gpu))
    kernels = launches(results[way.total]) or launches(results.get(way.gpu))
    without = span_of(results.get(way.baseline)) if way.baseline else None
    at = f" ({sizes_text(results[way.total].variant.sizes, ' ')})"
    used = {n: results[n] for n in (way.total, way.gpu, way.baseline, EMPTY) if n in results}
    waiting = waits(results.get(way.gpu))
    if total is None or gpu is None or not kernels or waiting or (way.baseline and without is None):
        reason = (
            waiting or "Some of the times that it needs were not measured, so there is no verdict."
        )
        rows = [row(KPI.total, total, "s", "measured", way.total)] if total else []
        text = f"{way.text}{at}: {lower(reason)}"
        return Analysis("no verdict", text, rows, caveats=reasons(used))
    line = Timeline(total, gpu, span_of(results.get(EMPTY)), kernels)
    word = word_of(line, without, reach_of(context, results[way.gpu]))
    evidence = [*line.evidence(way.total), *speed(results[way.total], total)]
    evidence += graph_rows(way.gpu, line) if way.total == "eager" else []
    evidence += loss_rows(line, without) + gains(way, total, results)
    text = f"{way.text}{at}, {numbers_text(word, line, without)} {REMEDY[word]}"
    return Analysis(word, text, evidence, caveats=[*caveats(line), *reasons(used)])


def numbers_text(word: str, line: Timeline, without: Span | None) -> str:
    """Return the numbers behind the word, as a clause."""
    if word == "transfer-bound" and without is not None:
        share = (line.total - without) / line.total
        return f"copies and waiting for them take {100 * share.value:.0f} % of the time."
    each = f"{line.kernel.value * 1e6:.1f} µs a kernel and {line.gap.value * 1e6:.1f} µs a gap"
    return f"the GPU is at work {100 * line.utilisation.value:.0f} % of the time, at most: {each}."


def speed(result: VariantResult, total: Span) -> list[Evidence]:
    """Return the calls a second, and the least bytes a second."""
    record = result.outcome
    assert isinstance(record, Record)
    one, least = Span.exactly(1.0), Span.exactly(float(record.bytes))
    return [
        row("throughput", one / total, "calls/s", "computed", result.variant.name),
        row("least bytes over total time", least / total, "B/s", "computed", result.variant.name),
    ]


def graph_rows(group: str, line: Timeline) -> list[Evidence]:
    """Return the figures of the same kernels in a graph, where the GPU does not wait for the CPU:
    its utilisation is 1 by definition here, so it is left out. A gap is at most an empty kernel."""
    graph = Timeline(line.gpu, line.gpu, line.step, line.kernels)
    shown = (KPI.total, KPI.efficiency, KPI.kernels)
    rows = [e for e in graph.evidence(group) if e.name in shown]
    if line.step is not None:
        gap = Span(line.step.value, 0.0, line.step.high)
        name = f"{KPI.gap}, at most"
        rows.append(row(name, gap, "s", "measured", group, "< 1 µs", gap.is_below(GAP_S)))
    return rows


def loss_rows(line: Timeline, without: Span | None) -> list[Evidence]:
    """Return the share of the total time that the bottleneck takes."""
    if without is not None:
        share = ((line.total - without) / line.total).clamp(0.0, 1.0)
        return [row("time for copies and waiting for them", share, "1", "computed", IMPACT)]
    idle = Span.exactly(1.0) - line.utilisation
    return [row("time in which the GPU waits", idle, "1", "computed", IMPACT)]


def gains(way: Way, total: Span, results: Mapping[str, VariantResult]) -> list[Evidence]:
    """Return the share of the time that each faster variant saves."""
    rows = []
    for what, variant in way.better.items():
        other = span_of(results.get(variant))
        gain = Span.exactly(1.0) - other / total if other else None
        if gain is not None and gain.low > 0:
            rows.append(row(what, gain, "1", "computed", GAINS))
    return rows


def caveats(line: Timeline) -> list[str]:
    """Return the limits of what these numbers show."""
    text = [
        "No trace was taken: GPU time is that of the same calls in a graph. Steps from kernel to "
        "kernel are part of it, and intervals span what an empty kernel takes there."
        if line.step is not None
        else "The time of an empty kernel in a graph is unknown, so computing time is only known "
        "to be at most GPU time."
    ]
    return [*text, "A graph of these times holds many calls, which share its own launch."]


def lower(sentence: str) -> str:
    """Return a sentence with its first letter in lower case."""
    return sentence[0].lower() + sentence[1:]


def predicted_analysis(results: Mapping[str, VariantResult]) -> Analysis:
    """Return the predicted times of the GPU; the launch times of the CPU are not predicted."""
    rows = []
    for name, each in results.items():
        time, kernels = span_of(each), launches(each)
        if time is None:
            continue
        rows.append(Evidence(KPI.total, time.value, "s", "predicted", group=name))
        rows += [count(kernels, name, "computed")] if kernels else []
    text = "How long the CPU takes to launch is not predicted, so nothing is said of utilisation "
    text += "and gaps. The times in a graph are the model's."
    return Analysis("needs a GPU", text, rows, caveats=reasons(results))


EXPERIMENT = Experiment(
    summary="a chain of small kernels: how long does the GPU wait for launches?",
    variants=variants,
    analyse=analyse,
    kernels=(CHAIN,),
    dtype="fp32",
)
