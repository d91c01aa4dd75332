"""A step of a small model: how much of its latency is products, launches and waiting?

The step is four transformer layers of width 1024 over 512 tokens, made of the workbench's kernels
and torch's products. It is timed as the CPU launches it, by the host's clock until the GPU is
silent, and in a graph; torch's own version of the step stands beside it. Beside these are timed:

    products       each of a layer's four, alone and cold: their sum times the layers, over the
                   step in a graph, is their share (in the step their inputs may lie in the cache)
    wait           launching one empty kernel and waiting for it: what waiting once for the GPU
                   costs at most, launch and all; an eager step waits once
    empty launch   one empty kernel in a graph: what a step of the GPU from one kernel to the next
                   costs at most

Without a GPU the kernels of a layer are predicted one by one, and their sum stands for the graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from workbench.data.record import Evidence, Kind, Record
from workbench.experiments import (
    Analysis,
    Context,
    Experiment,
    ExperimentError,
    Variant,
    VariantResult,
)
from workbench.experiments.analysis.products import product_for
from workbench.experiments.analysis.timeline import (
    BUSY,
    EMPTY,
    GAP_S,
    REMEDY,
    Timeline,
    count,
    waits,
    word_of,
)
from workbench.experiments.analysis.times import Span, launches, reasons, row, span_of
from workbench.reports.findings import GAINS, IMPACT, KPI
from workbench.spec import Sizes

STEP = str(Path(__file__).parent / "kernels" / "model_step.py")
USUAL = {"S": 512, "H": 16, "L": 4, "F": 2816}
WAIT = "wait"
GEMM, SYNC = 0.6, 0.05  # targets
HEAD = 64
EAGER, GRAPH, TORCH = "eager", "in a graph", "torch, eager"


@dataclass(frozen=True)
class Piece:
    """A kernel of the step and how often the step calls it."""

    name: str
    kernel: str
    impl: str
    sizes: Sizes
    calls: int
    product: bool = False


def pieces(sizes: Sizes) -> list[Piece]:
    """All that the step calls, at these sizes."""
    S, H, L, F = (sizes[axis] for axis in "SHLF")
    W = HEAD * H
    heads = {"B": 1, "S": S, "Hkv": H, "G": 1, "D": HEAD}

    def product(name: str, N: int, K: int) -> Piece:
        return Piece(f"product {name}", *product_for(S, N), {"M": S, "N": N, "K": K}, L, True)

    return [
        product("to queries, keys, values", 3 * W, W),
        product("behind attention", W, W),
        product("to both halves of SwiGLU", 2 * F, W),
        product("behind SwiGLU", W, F),
        Piece("RMS norm", "rms_norm", "rows", {"M": S, "N": W}, 1),
        Piece("addition and RMS norm", "fused_add_rms_norm", "rows", {"M": S, "N": W}, 2 * L),
        Piece("causal attention", "causal_attention", "tiles", heads, L),
        Piece("SwiGLU", "swiglu", "blocks", {"M": S, "N": F}, L),
    ]


def variants(context: Context) -> list[Variant]:
    """The step, its products, and what a launch costs. Raises ExperimentError."""
    if context.kernel not in ("", STEP):
        raise ExperimentError(
            f"e2e is about a model_step of its own, not {context.kernel}; leave --kernel out."
        )
    sizes = context.sizes or USUAL
    listed = [
        Variant(EAGER, STEP, "step", sizes, context.dtype, clock="host"),
        Variant(GRAPH, STEP, "step", sizes, context.dtype),
        Variant(TORCH, STEP, "torch", sizes, context.dtype, clock="host"),
        Variant(WAIT, "empty", "once", {}, "fp32", clock="host"),
        Variant(EMPTY, "empty", "once", {}, "fp32"),
    ]
    for piece in pieces(sizes):
        if piece.product or context.predicts:
            impl = "torch" if piece.product and not context.predicts else piece.impl
            listed.append(Variant(piece.name, piece.kernel, impl, piece.sizes, context.dtype))
    return listed


def analyse(context: Context, results: Mapping[str, VariantResult]) -> list[Analysis]:
    """One word for the step."""
    sizes = context.sizes or USUAL
    return [
        predicted_analysis(sizes, results)
        if context.predicts
        else measured_analysis(sizes, results)
    ]


# Measured


def measured_analysis(sizes: Sizes, results: Mapping[str, VariantResult]) -> Analysis:
    """The table, and the word for the step as it is launched by the CPU."""
    text = describe_sizes(sizes)
    eager, graph = span_of(results[EAGER]), span_of(results[GRAPH])
    kernels = launches(results[GRAPH]) or launches(results[EAGER])
    caveats = [*notes(), *reasons(results)]
    waiting = waits(results[GRAPH])
    if eager is None or graph is None or kernels is None or waiting:
        reason = waiting or "The step has no time on one of its two sides."
        evidence = [e for name in (EAGER, TORCH) for e in plain_rows(results[name])]
        return Analysis("no verdict", f"{text} {reason}", evidence, caveats=caveats)
    line = Timeline(eager, graph, span_of(results[EMPTY]), kernels)
    word = word_of(line)
    evidence = [
        *eager_rows(line, results),
        *graph_rows(line, sizes, results),
        *plain_rows(results[TORCH]),
        row(
            "time in which the GPU waits",
            Span.exactly(1.0) - line.utilisation,
            "1",
            "computed",
            IMPACT,
        ),
        *gains(eager, graph),
    ]
    faster = eager / graph
    sentence = (
        f"{text} It takes {eager.value * 1e6:.0f} µs as the CPU launches it and "
        f"{graph.value * 1e6:.0f} µs in a graph, {faster.value:.2f} times "
        f"({faster.low:.2f} to {faster.high:.2f}). {REMEDY[word]}"
    )
    return Analysis(word, sentence, evidence, caveats=caveats)


def eager_rows(line: Timeline, results: Mapping[str, VariantResult]) -> list[Evidence]:
    """The step as the CPU launches it."""
    launching = (line.total - line.gpu).clamp(0.0, line.total.high) / line.total
    wait = span_of(results[WAIT])
    rows = [
        row(KPI.total, line.total, "s", "measured", EAGER),
        row(
            KPI.utilisation,
            line.utilisation,
            "1",
            "computed",
            EAGER,
            "> 80 %",
            line.utilisation.is_above(BUSY),
        ),
        count(line.kernels, EAGER),
        row(KPI.kernel, line.kernel, "s", "computed", EAGER),
        row(KPI.gap, line.gap, "s", "computed", EAGER, "< 1 µs", line.gap.is_below(GAP_S)),
        row("launch overhead, share", launching.clamp(0.0, 1.0), "1", "computed", EAGER),
    ]
    if wait is not None:
        share = (wait / line.total).clamp(0.0, 1.0)
        sync = Span(share.value, 0.0, share.high)  # the launch is in it
        rows.append(
            row(
                "waiting for the GPU, share at most",
                sync,
                "1",
                "computed",
                EAGER,
                "< 5 %",
                sync.is_below(SYNC),
            )
        )
    return rows + memory_and_accuracy(results[EAGER], EAGER)


def graph_rows(
    line: Timeline, sizes: Sizes, results: Mapping[str, VariantResult]
) -> list[Evidence]:
    """The same kernels in a graph, set against the eager step."""
    shorter = (line.total - line.gpu).is_above(0.0)
    rows = [row(KPI.total, line.gpu, "s", "measured", GRAPH, "decreasing", shorter)]
    others = launches(results[TORCH])
    own = count(line.kernels, GRAPH)
    if others is not None:
        fewer = line.kernels < others
        own = replace(own, target=f"decreasing (torch: {others})", met=fewer)
    rows.append(own)
    if line.step is not None:
        steps = (line.step.times(line.kernels) / line.gpu).clamp(0.0, 1.0)
        rows.append(
            row(
                "launch overhead, share at most",
                Span(steps.value, 0.0, steps.high),
                "1",
                "computed",
                GRAPH,
                "near zero",
            )
        )
    products = product_time(sizes, results)
    if products is not None:
        share = products / line.gpu
        rows.append(
            row("products, share", share, "1", "computed", GRAPH, "< 60 %", share.is_below(GEMM))
        )
    return rows + memory_and_accuracy(results[GRAPH], GRAPH, results[TORCH].peak_bytes)


def product_time(sizes: Sizes, results: Mapping[str, VariantResult]) -> Span | None:
    """Seconds of all products of a step, each timed alone; None where one was not."""
    total = Span.exactly(0.0)
    for piece in (p for p in pieces(sizes) if p.product):
        time = span_of(results.get(piece.name))
        if time is None:
            return None
        total = total + time.times(piece.calls)
    return total


def memory_and_accuracy(
    result: VariantResult, group: str, others: int | None = None
) -> list[Evidence]:
    """What a call takes of the memory beyond its inputs, and how far its answer is off."""
    rows = []
    if result.peak_bytes is not None:
        met = None if others is None else result.peak_bytes <= others
        target = "" if others is None else "stable: no more than torch's"
        rows.append(
            Evidence(
                "peak memory without inputs",
                float(result.peak_bytes),
                "B",
                "measured",
                group=group,
                target=target,
                met=met,
            )
        )
    if isinstance(result.outcome, Record) and result.outcome.error is not None:
        error = result.outcome.error
        rows.append(
            Evidence(
                "largest error, in tolerances",
                error,
                "1",
                "measured",
                group=group,
                target="at most 1",
                met=error <= 1,
            )
        )
    return rows


def plain_rows(result: VariantResult) -> list[Evidence]:
    """A side of which no more is known than its time, its kernels, memory and accuracy."""
    time, kernels, group = span_of(result), launches(result), result.variant.name
    rows = [row(KPI.total, time, "s", "measured", group)] if time else []
    rows += [count(kernels, group)] if time and kernels else []
    return rows + memory_and_accuracy(result, group)


def gains(eager: Span, graph: Span) -> list[Evidence]:
    """What the graph saves of the eager step's time."""
    gain = Span.exactly(1.0) - graph / eager
    what = "capture the step in a graph"
    return [row(what, gain, "1", "computed", GAINS)] if gain.low > 0 else []


def describe_sizes(sizes: Sizes) -> str:
    return (
        f"{sizes['L']} layers of width {HEAD * sizes['H']} over {sizes['S']} tokens, "
        f"{sizes['F']} wide between the products."
    )


def notes() -> list[str]:
    """What the numbers are not."""
    return [
        "Peak memory is that of an eager call. Accuracy is the largest error against the float64 "
        "reference over what the kernel's tolerance allows there.",
        "Products are timed by themselves on cold inputs. In the step these may lie in the cache, "
        "so the share is an upper estimate.",
        "No trace was taken: GPU time is that of the same calls in a graph.",
    ]


# Predicted


def predicted_analysis(sizes: Sizes, results: Mapping[str, VariantResult]) -> Analysis:
    """The model's time of each kernel and of all; nothing of the CPU."""
    kind: Kind = "predicted"
    rows, total, products, calls = [], 0.0, 0.0, 0
    missing = []
    for piece in pieces(sizes):
        time = span_of(results.get(piece.name))
        if time is None:
            missing.append(piece.name)
            continue
        whole = piece.calls * time.value
        rows.append(Evidence(f"{piece.calls} x {piece.name}", whole, "s", kind, group="step"))
        total, products = total + whole, products + whole * piece.product
        calls += piece.calls
    text, hosts = describe_sizes(sizes), [EAGER, TORCH, WAIT]
    caveats = reasons({n: f for n, f in results.items() if n not in (GRAPH, *hosts)})
    caveats.append("The time of the CPU and the waiting for it are not predicted.")
    if missing:
        sentence = f"{text} There is no sum: the model does not predict {missing[0]}."
        return Analysis("needs a GPU", sentence, rows, caveats=caveats)
    rows += whole_step(total, products, calls)
    sentence = (
        f"{text} The model gives its {calls} kernels ~{total * 1e6:.0f} µs in a graph, "
        f"~{100 * products / total:.0f} % of it products; the time that the CPU adds is only "
        "known on a GPU."
    )
    return Analysis("needs a GPU", sentence, rows, caveats=caveats)


def whole_step(total: float, products: float, calls: int) -> Sequence[Evidence]:
    """The sum of the predictions."""
    group = "step in a graph"
    share = products / total
    return [
        Evidence(KPI.total, total, "s", "predicted", group=group),
        count(calls, group, "computed"),
        Evidence(
            "products, share",
            share,
            "1",
            "predicted",
            group=group,
            target="< 60 %",
            met=share < GEMM,
        ),
    ]


EXPERIMENT = Experiment(
    summary="a step of a small model: products, launches, waiting, memory and accuracy",
    variants=variants,
    analyse=analyse,
    kernels=(STEP,),
)
