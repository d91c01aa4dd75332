"""Measure whether the rank of a LoRA update costs time: ranks of 4 to 64 at three sizes of layer.

`lora_delta` is the update alone, `lora` the whole layer, both for 64 rows of x in fp32. Neither the
bytes nor the FLOPs of the update come near a microsecond at these sizes, so a good implementation
takes as long at rank 64 as at 4. At each rank the fastest of the workbench's Impls is taken; the
library's products are listed beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workbench import catalog
from workbench.data.record import Chart, Evidence, Kind
from workbench.data.units import reading, unit_of
from workbench.experiments import (
    Analysis,
    Context,
    Experiment,
    ExperimentError,
    Variant,
    VariantResult,
)
from workbench.experiments.analysis.bounds import bound, ceiling_row, ceilings
from workbench.experiments.analysis.times import (
    CANNOT_TELL,
    Span,
    kind_of,
    line,
    mark,
    quickest,
    ratio_of,
    reasons,
    row,
    span_of,
    verdict_word,
)
from workbench.spec import Sizes, Spec, sizes_text

RANKS = (4, 8, 16, 32, 64)
ROWS = 64  # 4 x 16 or 2 x 32 rows of x, as in metal-candle's benches/training.rs
EXTENTS = (512, 1024, 2048)
LIBRARIES = ("torch", "mlx")  # names of a library's products
FLAT = 1.15  # largest over least time: the target of this project at these sizes
# At 64 rows; a persistent product needs many more tiles than these sizes have.
IMPLS: Mapping[str, Sequence[str]] = {
    "lora_delta": ("fused", "split_k"),
    "lora": ("tiles", "split_k"),
}


def variants(context: Context) -> list[Variant]:
    """Return each Impl at each rank and size, and the library's products."""
    spec = _spec(context)
    triton = [i.name for i in spec.impls if i.backend == "triton"]
    ours = IMPLS.get(context.kernel) or triton
    if context.metal:  # without a Metal Impl those of Triton are listed, with the reason
        ours = [impl.name for impl in context.own(spec)] or ours
    library = [i.name for i in context.libraries(spec) if i.name in LIBRARIES]
    return [
        Variant(f"{impl}, {sizes_text(at, ' ')}", context.kernel, impl, at, context.dtype)
        for sizes in _layers(context)
        for rank in RANKS
        for at in [{**sizes, "r": rank}]
        for impl in (*_accepting_impls(spec, ours, at, context), *library)
    ]


def _spec(context: Context) -> Spec:
    spec = catalog.spec_of(context.kernel) if context.kernel else None
    if spec is None or set(spec.axes) != {"M", "K", "N", "r"}:
        raise ExperimentError(
            f"lora_rank varies the axis r of kernels of M, N, K and r, and {context.kernel!r} is "
            "none; name --kernel lora or lora_delta."
        )
    return spec


def _layers(context: Context) -> list[Sizes]:
    """Return the sizes without their rank."""
    if context.sizes:
        return [{axis: n for axis, n in context.sizes.items() if axis != "r"}]
    return [{"M": ROWS, "K": extent, "N": extent} for extent in EXTENTS]


def _accepting_impls(spec: Spec, ours: Sequence[str], at: Sizes, context: Context) -> list[str]:
    """Return the Impls that accept these sizes at their default: one for small ranks refuses large
    ones. If none does, all of them, so that their refusals are reported."""
    limits, taken = context.device.limits, []
    for name in ours:
        impl = catalog.impl_of(spec, name)
        default = impl.default(limits, context.dtype, at)
        if not impl.rejection_reason(default, limits, context.dtype, at):
            taken.append(name)
    return taken or list(ours)


@dataclass(frozen=True)
class Layer:
    """One size over all ranks: the fastest of the workbench's Impls at each, and the library's."""

    sizes: Sizes
    ours: Mapping[int, VariantResult]
    library: Mapping[int, VariantResult]

    @property
    def name(self) -> str:
        """Sizes as text: `M=64 K=512 N=512`."""
        return sizes_text(self.sizes, " ")

    @property
    def spread(self) -> Span | None:
        """Largest time over the least; None with fewer than two ranks."""
        if len(self.ours) < 2:
            return None
        ordered = sorted(self.ours.values(), key=lambda each: each.time_s or 0.0)
        ratio = ratio_of(ordered[0], ordered[-1])
        if ratio is None or kind_of(*ordered) == "measured":
            return ratio
        spans = [span for each in ordered if (span := span_of(each)) is not None]
        # any two ranks may be the ones that differ most
        low = max(s.low for s in spans) / min(s.high for s in spans)
        high = max(s.high for s in spans) / min(s.low for s in spans)
        return Span(ratio.value, max(1.0, low), high)


def layer(sizes: Sizes, results: Mapping[str, VariantResult]) -> Layer:
    """Return the results of one size."""

    def quickest_of(library: bool) -> dict[int, VariantResult]:
        mine = [f for f in results.values() if (f.variant.impl in LIBRARIES) == library]
        at = {r: [f for f in mine if dict(f.variant.sizes) == {**sizes, "r": r}] for r in RANKS}
        return {r: best for r, each in at.items() if (best := quickest(each)) is not None}

    return Layer(sizes, quickest_of(library=False), quickest_of(library=True))


def shape_of(spread: Span | None, kind: Kind) -> str:
    """Return `flat`, `grows`, or `undecided` if the interval allows both."""
    if spread is None:
        return "undecided"
    grows = spread.is_above(FLAT)
    return "undecided" if grows is None else "grows" if grows else "flat"


_WORDS = {"flat": "flat in rank", "grows": "the rank costs time", "undecided": "not decided"}


def analyse(context: Context, results: Mapping[str, VariantResult]) -> list[Analysis]:
    """Return one analysis: flat if at every size the most time is at most 1.15 times the least."""
    spec = _spec(context)
    layers = [layer(sizes, results) for sizes in _layers(context)]
    kinds = {each.name: kind_of(*each.ours.values()) for each in layers}
    shapes = [shape_of(each.spread, kinds[each.name]) for each in layers]
    overall = next((s for s in ("grows", "undecided") if s in shapes), "flat")
    rows = [e for each in layers for e in _evidence(spec, context, each, kinds[each.name])]
    charts = [_chart(layers, kinds)] if any(each.ours for each in layers) else []
    caveats = [*_caveats(layers), *reasons(results)]
    text = "; ".join(_text(each, kinds[each.name]) for each in layers)
    kind: Kind = "predicted" if "predicted" in kinds.values() else "measured"
    word = verdict_word(_WORDS[overall], kind)
    # An H200 took 2.4 to 5.3 times as long at rank 64 as at 4 where the model predicted the same.
    if kind == "predicted":
        word = CANNOT_TELL
    if context.metal and not any(each.ours for each in layers):
        word = "no verdict"
    return [Analysis(word, f"Largest over least time: {text}.", rows, charts, caveats)]


def _text(each: Layer, kind: Kind) -> str:
    spread = each.spread
    if spread is None:
        return f"{each.name} has fewer than two ranks with a time"
    tilde = mark(kind)
    between = f" ({spread.low:.2f} to {spread.high:.2f})" if spread.low < spread.high else ""
    if kind == "predicted" and spread.low < spread.high:
        ends = [end for result in each.ours.values() for end in result.interval_s or ()]
        within = f"{reading(min(ends), 's')} to {reading(max(ends), 's')}"
        return f"{each.name} {tilde}{spread.value:.2f}{between}, all ranks within {within}"
    ordered = sorted(each.ours, key=lambda r: each.ours[r].time_s or 0.0)
    least, most = (reading(each.ours[ordered[n]].time_s or 0.0, "s") for n in (0, -1))
    times = f"{tilde}{least} at rank {ordered[0]} to {tilde}{most} at {ordered[-1]}"
    return f"{each.name} {tilde}{spread.value:.2f}{between}, {times}"


def _evidence(spec: Spec, context: Context, each: Layer, kind: Kind) -> list[Evidence]:
    at = ceilings(context.device, context.ceilings, context.state)
    rows: list[Evidence | None] = []
    for rank, results in each.ours.items():
        rows.append(results.evidence(f"rank {rank}: {results.variant.impl}", each.name))
        library = each.library.get(rank)
        if library is not None and (ratio := ratio_of(library, results)) is not None:
            name = f"rank {rank}: over the library's time"
            rows.append(row(name, ratio, "1", kind, each.name))
        least = bound(spec, {**each.sizes, "r": rank}, context.dtype, at)
        if least.least_s is not None and rank in (min(each.ours), max(each.ours)):
            name = f"rank {rank}: bound by {least.bound}"
            rows.append(Evidence(name, least.least_s, "s", "computed", group=each.name))
    spread = each.spread
    if spread is not None:
        shape = shape_of(spread, kind)
        met = None if shape == "undecided" or kind == "predicted" else shape == "flat"
        rows.append(row("largest over least time", spread, "1", kind, each.name, f"<= {FLAT}", met))
    if (launch := at.best("launch")) is not None:
        rows.append(ceiling_row(launch, each.name, "one launch"))
    return [each for each in rows if each is not None]


def _caveats(layers: Sequence[Layer]) -> list[str]:
    missing = {each.name: [str(r) for r in RANKS if r not in each.ours] for each in layers}
    return [f"{name} has no time at rank {', '.join(r)}." for name, r in missing.items() if r]


def _chart(layers: Sequence[Layer], kinds: Mapping[str, Kind]) -> Chart:
    layers = [each for each in layers if each.ours]
    least = min(results.time_s or 0.0 for each in layers for results in each.ours.values())
    scale, unit = unit_of(least)
    series = tuple(line(each.name, each.ours, scale, kinds[each.name]) for each in layers)
    return Chart("Time against rank", "rank", f"time of one call, {unit}", series, x_log=True)


EXPERIMENT = Experiment(
    "LoRA forward at ranks of 4 to 64: does the rank cost time?",
    variants,
    analyse,
    kernels=("lora_delta", "lora"),
    dtype="fp32",
    is_emulated=True,
)
