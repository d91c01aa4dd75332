"""Compare sampling a token on the GPU, where the logits are, with sampling on the CPU.

Both variants begin with logits on the GPU and end with the token there, and both are timed by the
host's clock: the GPU's launches count, and so does the copy of the logits to the CPU and of the
token back. The GPU's variant is `sample_topk_topp`, and the experiment checks that both of its
kernels really ran; the CPU's variant is a torch sampler that sorts no more than necessary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from workbench.data.record import Chart, Evidence, Kind, Series
from workbench.data.stats import quantile, summary
from workbench.experiments import (
    Analysis,
    Context,
    Experiment,
    ExperimentError,
    Variant,
    VariantResult,
)
from workbench.experiments.analysis.times import Span, launches, reasons, row, span_of
from workbench.reports.findings import GAINS
from workbench.spec import ITEMSIZE

SAMPLER = "sample_logits"
ROWS, VOCABULARIES = (1, 8), (32_000, 128_256)
KERNELS = 2  # partials, then merge_and_sample
PARTIALS = "_group_maxima"  # the launch of more programs, by its name in the kernel's file


def variants(context: Context) -> list[Variant]:
    """Return three variants for each number of rows and size of vocabulary. Raises ExperimentError
    where another kernel is named."""
    if context.kernel not in ("", SAMPLER):
        raise ExperimentError(
            f"cpu_vs_gpu is about {SAMPLER}, not {context.kernel}; leave --kernel out."
        )
    results = []
    for sizes in problems(context):
        cpu, gpu, alone = variant_names(sizes)
        results += [
            Variant(cpu, SAMPLER, "cpu", sizes, context.dtype, clock="host"),
            Variant(gpu, SAMPLER, "partials_and_merge", sizes, context.dtype, clock="host"),
            Variant(alone, SAMPLER, "partials_and_merge", sizes, context.dtype),
        ]
    return results


def problems(context: Context) -> list[dict[str, int]]:
    """Return the sizes that are timed: the user's, or all."""
    if context.sizes is not None:
        return [dict(context.sizes)]
    return [{"B": rows, "V": words} for words in VOCABULARIES for rows in ROWS]


def variant_names(sizes: Mapping[str, int]) -> tuple[str, str, str]:
    """Return the names of the variants: the CPU's, the GPU's, and the GPU's without launches."""
    at = f"{sizes['B']} x {sizes['V']}"
    return f"CPU, {at}", f"GPU, {at}", f"GPU only, {at}"


def analyse(context: Context, results: Mapping[str, VariantResult]) -> list[Analysis]:
    """Return one analysis for each problem."""
    return [
        replace(analysis(context, sizes, *(results[n] for n in variant_names(sizes))), sizes=sizes)
        for sizes in problems(context)
    ]


def analysis(
    context: Context,
    sizes: Mapping[str, int],
    cpu: VariantResult,
    gpu: VariantResult,
    alone: VariantResult,
) -> Analysis:
    """Return the analysis of one problem. Without both times, or if other kernels than the two ran,
    it does not say which is faster."""
    at = f"{sizes['B']} row{'s' * (sizes['B'] != 1)} of {sizes['V']} logits"
    of = {cpu.variant.name: cpu, gpu.variant.name: gpu, alone.variant.name: alone}
    evidence = [*spread(cpu), *spread(gpu), *device_time(alone), *ran(context, gpu, alone)]
    copied = float(sizes["B"] * sizes["V"] * ITEMSIZE[context.dtype])
    evidence.append(Evidence("logits copied to the CPU", copied, "B", "computed"))
    caveats = [
        "The CPU's time is that of torch in one thread, and of copies to memory that is not "
        "pinned.",
        *reasons(of),
    ]
    slow, fast = span_of(cpu), span_of(gpu)
    if context.predicts:
        text = "the time of the CPU, for launches or for samples, is not predicted."
        return Analysis("needs a GPU", f"{at}: {text}", evidence, caveats=caveats)
    if slow is None or fast is None:
        text = "CPU or GPU gave no time, so there is no comparison."
        return Analysis("no verdict", f"{at}: {text}", evidence, caveats=caveats)
    if wrong := other_kernels(gpu):
        return Analysis("other kernels", f"{at}: {wrong}", evidence, caveats=caveats)
    ratio = slow / fast
    evidence.append(row("speed-up of the GPU", ratio, "1", "computed", ""))
    evidence += gain_rows(slow, fast)
    text = f"{at}: {numbers_text(ratio, slow, fast)}"
    return Analysis(word_of(ratio), text, evidence, spread_chart(at, cpu, gpu), caveats)


def word_of(ratio: Span) -> str:
    """Return the word for the interval of the CPU's time over the GPU's."""
    if ratio.low > 1:
        return "GPU faster"
    return "CPU faster" if ratio.high < 1 else "undecided"


def numbers_text(ratio: Span, cpu: Span, gpu: Span) -> str:
    """Return the numbers behind the word as a sentence."""
    times = f"{gpu.value * 1e6:.1f} µs on the GPU, launches counted, and {cpu.value * 1e6:.1f} µs "
    times += "on the CPU, copies counted"
    return f"{times}: {ratio.value:.3g} times ({ratio.low:.3g} to {ratio.high:.3g})."


def spread(result: VariantResult) -> list[Evidence]:
    """Return mean, p50, p95 and standard deviation of the samples in seconds, if there are any."""
    timing, name = result.timing, result.variant.name
    if timing is None or not timing.samples_s:
        return []
    of = summary(timing.samples_s)
    return [
        Evidence("mean", of.mean, "s", "measured", group=name),
        Evidence("p50", timing.median_s, "s", "measured", timing.low_s, timing.high_s, name),
        Evidence("p95", of.p95, "s", "measured", group=name),
        Evidence("standard deviation", of.stddev, "s", "measured", group=name),
    ]


PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)


def spread_chart(at: str, *results: VariantResult) -> list[Chart]:
    """Return a chart of the percentiles of both variants' samples, in microseconds."""
    lines = []
    for result in results:
        if (timing := result.timing) is not None:
            times = tuple(quantile(timing.samples_s, p / 100) * 1e6 for p in PERCENTILES)
            lines.append(Series(result.variant.name, tuple(map(float, PERCENTILES)), times))
    title = f"Samples of {at}, by percentile"
    return [Chart(title, "percentile of samples", "time, µs", tuple(lines), y_log=True)]


def device_time(result: VariantResult) -> list[Evidence]:
    """Return the time of both kernels in a graph, without the CPU: measured, or predicted."""
    one = result.evidence("time without launches by the CPU", group=result.variant.name)
    return [one] if one else []


def ran(context: Context, *gpu_variants: VariantResult) -> list[Evidence]:
    """Return how many kernels a call launched."""
    counts = [count for f in gpu_variants if (count := launches(f)) is not None]
    if not counts:
        return []
    kind: Kind = "computed" if context.predicts else "measured"
    target = f"{KERNELS}: partials, then merge_and_sample"
    name, met = "kernels of a call on the GPU", counts[0] == KERNELS
    return [Evidence(name, float(counts[0]), "kernels", kind, target=target, met=met)]


def other_kernels(gpu: VariantResult) -> str:
    """Return a sentence if other kernels than the two ran, else an empty text. The token, too,
    shows that the second one ran: it was checked, and nothing else writes it."""
    count = launches(gpu)
    if count is not None and count != KERNELS:
        return f"a call launched {count} kernels and not {KERNELS}, so something else was timed."
    compiled = gpu.compilation
    if compiled is not None and compiled.launches == KERNELS and compiled.kernel != PARTIALS:
        return f"the largest launch is {compiled.kernel} and not {PARTIALS}."
    return ""


def gain_rows(cpu: Span, gpu: Span) -> list[Evidence]:
    """Return the share of the CPU's time that the GPU saves, if it does."""
    gain = Span.exactly(1.0) - gpu / cpu
    return [row("sample on the GPU", gain, "1", "computed", GAINS)] if gain.low > 0 else []


EXPERIMENT = Experiment(
    summary="top-k/top-p sampling on the CPU and on the GPU, the copy of the logits counted",
    variants=variants,
    analyse=analyse,
    kernels=(SAMPLER,),
)
