"""Where does the time of an RWKV-7 layer go, and where is most to gain?

The layer of the model with 2.9 billion parameters (2560 channels, 40 heads of 64) is taken apart
into attention_linear, wkv, attention_output and ffn. Each part is timed by itself and set against
its own floor, the larger of least bytes / bandwidth and FLOPs / peak; what lies between is to gain.
The whole layer is timed beside them: where its time is not about that of the parts together, they
leave something out, or disturb each other. Prefill takes 1024 tokens of one sequence, decoding one
token of 1 and of 64 sequences.

The library's products have no prediction. Without a GPU each call of a part is predicted by itself,
with the workbench's own products in their place, and the part is the sum of its calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from pathlib import Path

from workbench import catalog
from workbench.data.record import Evidence, Kind
from workbench.data.units import reading
from workbench.device.ceilings import CeilingSet
from workbench.experiments import (
    Analysis,
    Context,
    Experiment,
    ExperimentError,
    Variant,
    VariantResult,
)
from workbench.experiments.analysis.bounds import Bound, bound, ceilings
from workbench.experiments.analysis.products import product_for
from workbench.experiments.analysis.times import Span, mark, row, span_of, verdict_word
from workbench.spec import Sizes, sizes_text, values

KERNELS = Path(__file__).parent / "kernels"
LAYER = str(KERNELS / "rwkv7_layer.py")
TOTAL = "total"
N = 64  # channels of a head
NARROW = (3, 3, 2, 10)  # widths of the narrow matrices over P, as rwkv7_attention_linear has them
CASES: Mapping[str, Sizes] = {
    "prefill": {"B": 1, "T": 1024, "H": 40, "P": 32},
    "decode, 1 sequence": {"B": 1, "T": 1, "H": 40, "P": 32},
    "decode, 64 sequences": {"B": 64, "T": 1, "H": 40, "P": 32},
}
SHORT = 16  # tokens below which the recurrence goes token by token
ALIKE = 0.1  # by how much the parts together may differ from the whole
FIRST = 3  # bottlenecks that are named


@dataclass(frozen=True)
class KernelCall:
    """One kernel at its sizes, and how often a part calls it."""

    kernel: str  # a name, or the path of a file
    impl: str
    sizes: Sizes
    times: int = 1

    @property
    def text(self) -> str:
        """`matmul.tiles M=1024 N=2560 K=2560`."""
        return f"{Path(self.kernel).stem}.{self.impl} {sizes_text(self.sizes, ' ')}"


@dataclass(frozen=True)
class LayerPart:
    """What is timed under one name, and the calls that stand for it where nothing can be timed."""

    name: str
    whole: KernelCall
    calls: tuple[KernelCall, ...]


def own(name: str) -> str:
    """The kernel of that name beside this file."""
    return str(KERNELS / f"{name}.py")


def recurrence(T: int) -> str:
    """The Impl of wkv7 that suits so many tokens."""
    return "sequential" if T < SHORT else "chunked"


def product(M: int, rows: int, columns: int, times: int = 1) -> KernelCall:
    """M rows of x with a matrix of so many rows and columns."""
    return KernelCall(*product_for(M, rows), {"M": M, "N": rows, "K": columns}, times)


def kernel_call(name: str, sizes: Sizes) -> KernelCall:
    """A part of the layer, called as one kernel."""
    return KernelCall(own(name), "parts", dict(sizes))


def parts_of(sizes: Sizes) -> list[LayerPart]:
    """The parts of a layer, in the order in which they run."""
    B, T, H, P = (sizes[axis] for axis in "BTHP")
    M, C = B * T, N * H
    norm = KernelCall("layer_norm", "rows", {"M": M, "N": C})
    wkv = KernelCall("wkv7", recurrence(T), {"B": B, "T": T, "H": H, "N": N})
    narrow = [(width * P, NARROW.count(width)) for width in dict.fromkeys(NARROW)]
    linear = (
        norm,
        KernelCall("token_shift", "tiles", {"B": B, "T": T, "D": C, "X": 6}),
        product(M, C, C, times=3),
        *(product(M, width, C, times) for width, times in narrow),
        *(product(M, C, width, times) for width, times in narrow),
        KernelCall(own("rwkv7_gates"), "heads", {"M": M, "H": H, "N": N}),
    )
    output = (KernelCall("group_norm", "heads", {"M": M, "H": H, "N": N}), product(M, C, C))
    ffn = (
        norm,
        KernelCall("token_shift", "tiles", {"B": B, "T": T, "D": C, "X": 1}),
        product(M, 4 * C, C),
        KernelCall("channel_mix", "tiles", {"M": M, "F": 4 * C}),
        product(M, C, 4 * C),
    )
    return [
        LayerPart("attention_linear", kernel_call("rwkv7_attention_linear", sizes), linear),
        LayerPart("wkv", wkv, (wkv,)),
        LayerPart(
            "attention_output", kernel_call("rwkv7_attention_output", {"M": M, "H": H}), output
        ),
        LayerPart("ffn", kernel_call("rwkv7_ffn", {"B": B, "T": T, "H": H}), ffn),
    ]


def cases(context: Context) -> Mapping[str, Sizes]:
    """Prefill and decoding, or the one size that the user names."""
    return {sizes_text(context.sizes, " "): context.sizes} if context.sizes else CASES


def variants(context: Context) -> list[Variant]:
    """The parts of each case and the whole layer; where nothing is timed, the calls instead."""
    if context.kernel not in ("", LAYER):
        raise ExperimentError(
            f"layer_breakdown takes an RWKV-7 layer apart, and knows no parts of {context.kernel}; "
            "leave --kernel out."
        )
    created: dict[str, Variant] = {}
    for case, sizes in cases(context).items():
        for call in calls_of(sizes, context.predicts):
            name = f"{case}: {call.text}"
            config = default_of(call, context) if call.kernel in (LAYER, "wkv7") else None
            created[name] = Variant(name, call.kernel, call.impl, call.sizes, context.dtype, config)
    return list(created.values())


def calls_of(sizes: Sizes, predicts: bool) -> list[KernelCall]:
    """What stands for the layer: its parts and itself, or where times are predicted, calls."""
    parts = parts_of(sizes)
    if predicts:
        return [call for part in parts for call in part.calls]
    return [*(part.whole for part in parts), KernelCall(LAYER, recurrence(sizes["T"]), dict(sizes))]


def default_of(call: KernelCall, context: Context) -> dict[str, int]:
    """The default config: wkv7 has the same one in the layer and by itself, whatever was tuned."""
    impl = catalog.impl_of(catalog.spec_of(call.kernel), call.impl)
    return values(impl.default(context.device.limits, context.dtype, call.sizes))


@dataclass(frozen=True)
class TimedPart:
    """A part, or the whole layer, with its time and the floor below it."""

    name: str
    span: Span | None  # None: there is no time
    bound: Bound
    bytes: int
    flops: int
    failure: str = ""
    kernels: int | None = None

    @property
    def gain(self) -> Span | None:
        """Seconds between the time and the floor, at least 0."""
        least = self.bound.least_s
        if self.span is None or least is None:
            return None
        return self.span.less(Span.exactly(least))

    @property
    def floor_ratio(self) -> Span | None:
        """The time over the floor."""
        least = self.bound.least_s
        if self.span is None or not least:
            return None
        return self.span.times(1 / least)


def analyse(context: Context, results: Mapping[str, VariantResult]) -> list[Analysis]:
    """One judgement for each case."""
    at = ceilings(context.device, context.ceilings)
    analysed = []
    for case, sizes in cases(context).items():
        start = f"{case}: "
        here = {n.removeprefix(start): f for n, f in results.items() if n.startswith(start)}
        parts = [
            time_part(
                part.name,
                part.whole,
                part.calls if context.predicts else (part.whole,),
                here,
                context.dtype,
                at,
            )
            for part in parts_of(sizes)
        ]
        layer = KernelCall(LAYER, recurrence(sizes["T"]), dict(sizes))
        whole = time_part(
            TOTAL, layer, () if context.predicts else (layer,), here, context.dtype, at
        )
        text = breakdown(case, parts, whole, "predicted" if context.predicts else "measured")
        analysed.append(replace(text, sizes=sizes))
    return analysed


def time_part(
    name: str,
    whole: KernelCall,
    calls: Sequence[KernelCall],
    results: Mapping[str, VariantResult],
    dtype: str,
    at: CeilingSet,
) -> TimedPart:
    """The time of these calls together, and the floor of what they stand for."""
    spec = catalog.spec_of(whole.kernel)
    under = bound(spec, whole.sizes, dtype, at)
    moved, flops = spec.bytes(whole.sizes, dtype), spec.flops(**whole.sizes)
    met = [(call, results.get(call.text)) for call in calls]
    cause = next((reason(call, f) for call, f in met if f is None or f.time_s is None), "")
    if cause or not met:
        return TimedPart(name, None, under, moved, flops, cause)
    spans = [s.times(call.times) for call, f in met if (s := span_of(f)) is not None]
    counts = [f.kernels * call.times for call, f in met if f is not None and f.kernels is not None]
    kernels = sum(counts) if len(counts) == len(met) else None
    return TimedPart(name, reduce(add, spans), under, moved, flops, kernels=kernels)


def reason(call: KernelCall, result: VariantResult | None) -> str:
    """Why a call has no time."""
    cause = result.failure.rstrip(".") if result is not None else "it was not timed"
    return f"{call.text}: {cause}"


def breakdown(case: str, parts: Sequence[TimedPart], whole: TimedPart, kind: Kind) -> Analysis:
    """What the times of the parts and of the whole layer say: shares, gains, and the bottlenecks.

    The word is the part with the most to gain; two words where their intervals overlap.
    """
    total = sum_of(parts)
    rows = [*tables(parts, whole, kind), *check_rows(total, whole, kind)]
    caveats = [*missing(parts, whole), *doubts(total, whole, parts, kind)]
    if names := [part.name for part in parts if part.span is None]:
        text = f"{case}: no time of {', '.join(names)}, so that no bottleneck can be named."
        return Analysis("incomplete", text, rows, caveats=caveats)
    assert total is not None
    ranked = bottlenecks(parts)
    if not ranked:
        text = (
            f"{case}: the parts take {mark(kind)}{reading(total.value, 's')}; no ceiling of "
            "this device is known, so there is no bound: `workbench ceilings` measures them."
        )
        return Analysis("no floor", text, rows, caveats=caveats)
    word = verdict_word(first_word(ranked), kind)
    return Analysis(word, sentence(case, ranked, total, whole, kind), rows, caveats=caveats)


def bottlenecks(parts: Sequence[TimedPart]) -> list[TimedPart]:
    """The parts with something to gain, the most first; parts without a floor are left out."""
    gains = [(part.gain.value, part) for part in parts if part.gain is not None]
    ranked = sorted(gains, key=lambda gain: -gain[0])
    return [part for gain, part in ranked if gain > 0] or [part for _, part in ranked[:1]]


def first_word(ranked: Sequence[TimedPart]) -> str:
    """The first bottleneck, and those whose gain may be as large."""
    first = ranked[0]
    assert first.gain is not None
    equal = [p.name for p in ranked[1:] if p.gain is not None and p.gain.high >= first.gain.low]
    return " or ".join([first.name, *equal])


def sentence(
    case: str, ranked: Sequence[TimedPart], total: Span, whole: TimedPart, kind: Kind
) -> str:
    """Which parts have the most to gain, and whether the parts make the whole."""
    named = []
    for part in ranked[:FIRST]:
        assert part.gain is not None
        assert part.span is not None
        share = 100 * part.gain.value / part.span.value
        gain = f"{mark(kind)}{reading(part.gain.value, 's')}"
        named.append(f"{part.name} ({gain}, {share:.0f} % of its time)")
    time = f"{mark(kind)}{reading(total.value, 's')}"
    text = f"{case}: the parts take {time}, and most is to gain in {', then '.join(named)}."
    if whole.span is not None:
        over = total.value / whole.span.value
        text += (
            f" Together they take {over:.3g} times the layer's {reading(whole.span.value, 's')}."
        )
    return text


def tables(parts: Sequence[TimedPart], whole: TimedPart, kind: Kind) -> list[Evidence]:
    """A table for each quantity, with a row for each part and for the whole layer. What has no time
    has no rows of time."""
    every = [*parts, whole]
    there = [(p.name, p.span) for p in every if p.span is not None]
    total = sum_of(parts)
    rows = [row(name, span, "s", kind, "time") for name, span in there]
    if total is not None:
        rows.append(row("the parts together", total, "s", kind, "time"))
        rows += [
            Evidence(name, span.value / total.value, "1", kind, group="share of the parts")
            for name, span in there
            if name != TOTAL
        ]
    for part in every:
        if part.bound.least_s is not None:
            name = f"{part.name}, set by {part.bound.bound}"
            rows.append(Evidence(name, part.bound.least_s, "s", "computed", group="floor"))
    for part in every:
        if part.floor_ratio is not None:
            rows.append(row(part.name, part.floor_ratio, "1", kind, "time over its floor"))
    for part in every:
        if part.gain is not None:
            rows.append(row(part.name, part.gain, "s", kind, "to gain"))
    rows += [Evidence(p.name, p.bytes, "B", "computed", group="least bytes") for p in every]
    rows += [Evidence(p.name, p.flops, "FLOP", "computed", group="FLOPs") for p in every]
    counted: Kind = "computed" if kind == "predicted" else kind  # the compiler caught each launch
    return rows + [
        Evidence(p.name, p.kernels, "kernels", counted, group="launches")
        for p in every
        if p.kernels is not None
    ]


def sum_of(parts: Sequence[TimedPart]) -> Span | None:
    """The times that there are, added up."""
    there = [part.span for part in parts if part.span is not None]
    return reduce(add, there) if there else None


def check_rows(total: Span | None, whole: TimedPart, kind: Kind) -> list[Evidence]:
    """Whether the parts make the whole."""
    if total is None or whole.span is None:
        return []
    over = total / whole.span
    met = abs(over.value - 1) <= ALIKE
    target = f"{1 - ALIKE:.2g} to {1 + ALIKE:.2g}"
    group = "the parts and the whole"
    return [row("parts together over the layer", over, "1", kind, group, target, met)]


def missing(parts: Sequence[TimedPart], whole: TimedPart) -> list[str]:
    """A sentence for each time that is not there."""
    return [f"No time of {p.name}: {p.failure}." for p in [*parts, whole] if p.failure]


def doubts(
    total: Span | None, whole: TimedPart, parts: Sequence[TimedPart], kind: Kind
) -> list[str]:
    """What the numbers do not say."""
    text = [
        "A floor counts the inputs, the weights and the outputs of a part, each moved once. It "
        "leaves out the data that its own calls pass to each other."
    ]
    if kind == "predicted":
        text.append(
            "Each part is the sum of its calls, with the workbench's own products; the two "
            "activations, the sums with the residual stream and the layer as one are not predicted."
        )
        return text
    text.append(
        "Each part is timed on cold inputs. In the layer they come from the part before, mostly "
        "through the last-level cache, so that the parts together may take longer than the layer."
    )
    complete = total is not None and all(part.span is not None for part in parts)
    if complete and total is not None and whole.span is not None:
        over = total.value / whole.span.value
        if abs(over - 1) > ALIKE:
            text.append(
                f"The parts together take {over:.3g} times the layer: shares of the parts are not "
                "those of the layer."
            )
    return text


EXPERIMENT = Experiment(
    "where the time of an RWKV-7 layer goes, and where most is to gain",
    variants,
    analyse,
    kernels=(LAYER,),
)
