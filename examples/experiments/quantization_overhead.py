"""Measure the cost of unpacking 4-bit weights: a product with fp16 weights (A) against Q4_K (B).

The overhead is (B - A) / A. By bytes alone it is -72 %, as Q4_K takes 4.5 bits of a weight where
fp16 takes 16; the difference is due to unpacking, launches and the cache. A is the fastest
available product with 16-bit weights, the workbench's or the library's, and B the fastest Q4_K
product: a slow A would flatter B. Sizes are one small and one large layer, RWKV's 2560 x 2560 and
Llama's 14336 x 4096, for one row of x (a token).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from workbench import catalog
from workbench.data.record import Evidence, Kind
from workbench.data.units import reading
from workbench.experiments import (
    Analysis,
    Context,
    Experiment,
    ExperimentError,
    Regime,
    Variant,
    VariantResult,
)
from workbench.experiments.analysis.bounds import ceilings
from workbench.experiments.analysis.times import (
    CANNOT_TELL,
    Span,
    kind_of,
    least_of,
    quickest,
    ratio_of,
    reasons,
    row,
    verdict_word,
)
from workbench.spec import Sizes, sizes_text

SHAPES: Sequence[Sizes] = (
    {"M": 1, "N": 2560, "K": 2560},
    {"M": 1, "N": 14336, "K": 4096},
)
REGIMES: tuple[Regime, ...] = ("cold", "hot")
PLAIN, PACKED = "A", "B"  # prefixes of the variants' names


def plain_variants(M: int) -> tuple[tuple[str, str], ...]:
    """Return kernel and Impl of the 16-bit products that suit so many rows of x, including the
    library's: `matvec` reads each weight once for a few rows, `matmul` has the large tiles."""
    ours = ("rows", "tiles") if M <= 4 else ("tiles",)
    vector = (("matvec", "torch.mv"),) if M == 1 else ()
    many = (("matmul", "tiles"), ("matmul", "persistent")) if M > 64 else ()
    return (*(("matvec", name) for name in ours), *many, *vector, ("matvec", "torch.linear"))


def packed_variants(M: int) -> tuple[tuple[str, str], ...]:
    """Return kernel and Impl of the Q4_K products that suit so many rows of x: for a few rows all
    but the one that puts x in order for many."""
    if M <= 4:
        ours = [i.name for i in catalog.spec_of("q4_k_matmul").impls if i.backend == "triton"]
        names = [name for name in ours if name != "ordered"]
    else:
        names = ["slices", "tiles"] if M <= 64 else ["ordered", "unpack_first"]
        names.append("warp_groups")
    return tuple(("q4_k_matmul", name) for name in names)


def plain_metal(M: int, library: str) -> tuple[tuple[str, str], ...]:
    """Return kernel and Impl of the 16-bit Metal products that suit so many rows of x, and the
    library's."""
    kernel = "matvec" if M <= 4 else "matmul"
    own = [i.name for i in catalog.spec_of(kernel).impls if i.backend == "metal"]
    return (*((kernel, name) for name in own), ("matvec", library))


def packed_metal(M: int) -> tuple[tuple[str, str], ...]:
    """Return kernel and Impl of the Q4_K products on Metal."""
    own = [i.name for i in catalog.spec_of("q4_k_matmul").impls if i.backend == "metal"]
    return tuple(("q4_k_matmul", name) for name in own)


Suited = Sequence[tuple[str, Callable[[int], tuple[tuple[str, str], ...]]]]


def variants(context: Context) -> list[Variant]:
    """Return each product, cold and hot. Raises ExperimentError for another kernel or dtype."""
    if context.kernel not in ("", "q4_k_matmul"):
        raise ExperimentError(
            "quantization_overhead compares q4_k_matmul with an fp16 product, and there is "
            "none for "
            f"{context.kernel}; leave --kernel out."
        )
    if context.dtype not in ("fp16", "bf16"):
        raise ExperimentError(
            f"quantization_overhead compares Q4_K with weights of 16 bits, not {context.dtype}; "
            "name --dtype fp16 or bf16."
        )
    suited: Suited = ((PLAIN, plain_variants), (PACKED, packed_variants))
    if context.metal:
        library = "torch.linear" if context.predicts else "mlx"
        suited = ((PLAIN, partial(plain_metal, library=library)), (PACKED, packed_metal))
    return [
        Variant(
            f"{operand} {sizes_text(sizes, ' ')}, {regime}: {kernel}.{impl}",
            kernel,
            impl,
            dict(sizes),
            context.dtype,
            regime=regime,
        )
        for sizes in _shapes(context)
        for operand, of in suited
        for kernel, impl in of(sizes["M"])
        for regime in REGIMES
    ]


def _shapes(context: Context) -> Sequence[Sizes]:
    return (context.sizes,) if context.sizes else SHAPES


def analyse(context: Context, results: Mapping[str, VariantResult]) -> list[Analysis]:
    """Return one analysis for each shape, by its cold calls; hot ones are listed beside them."""
    shapes = _shapes(context)
    return [replace(_analyse(context, s, _results_at(results, s)), sizes=s) for s in shapes]


def _results_at(results: Mapping[str, VariantResult], sizes: Sizes) -> dict[str, VariantResult]:
    return {name: each for name, each in results.items() if dict(each.variant.sizes) == dict(sizes)}


def _analyse(context: Context, sizes: Sizes, results: Mapping[str, VariantResult]) -> Analysis:
    ideal = ideal_share(sizes, context.dtype) - 1
    rows: list[Evidence] = []
    cold: Span | None = None
    kind: Kind = "computed"
    for regime in REGIMES:
        these = [f for f in results.values() if f.variant.regime == regime]
        a, b = (
            quickest([f for f in these if f.variant.name.startswith(operand)])
            for operand in (PLAIN, PACKED)
        )
        if a is None or b is None:
            continue
        ratio = _ratio(these, a, b)
        # predictions whose intervals overlap are not ranked: all are shown
        shown = [a, b] if not context.intervals else [f for f in these if f.time_s is not None]
        rows += _rows(regime, shown, ratio, context.dtype)
        rows.append(Evidence("ideal by bytes", ideal, "%", "computed", group=f"{regime} calls"))
        if regime == "cold":
            cold, kind = ratio, kind_of(a, b)
    caveats = [*_caveats(context, sizes, results), *reasons(results)]
    if cold is None:
        text = "A or B has no cold time; the reasons are listed below."
        return Analysis("no verdict", text, rows, caveats=caveats)
    word, text = verdict_text(cold, kind, context.dtype)
    ideal_text = f"by bytes only it would be {100 * ideal:+.0f} %"
    return Analysis(word, f"{text}; {ideal_text}.", rows, caveats=caveats)


def _ratio(these: Sequence[VariantResult], a: VariantResult, b: VariantResult) -> Span:
    """Return the time of B over that of A: of the fastest ones, or where their predictions are
    intervals, of the least times that the intervals of all allow."""
    if kind_of(a, b) == "predicted":
        least = [least_of([f for f in these if f.variant.name.startswith(o)]) for o in "AB"]
        assert least[0] is not None and least[1] is not None  # both have a time
        return least[1] / least[0]
    ratio = ratio_of(a, b)
    assert ratio is not None  # both have a time
    return ratio


def ideal_share(sizes: Sizes, dtype: str) -> float:
    """Return the least bytes of the Q4_K product over those with weights of `dtype`."""
    plain, packed = catalog.spec_of("matvec"), catalog.spec_of("q4_k_matmul")
    return packed.bytes(sizes, dtype) / plain.bytes(sizes, dtype)


def verdict_text(ratio: Span, kind: Kind, dtype: str) -> tuple[str, str]:
    """Return the word and the beginning of the sentence for B over A."""
    low, middle, high = (100 * (r - 1) for r in (ratio.low, ratio.value, ratio.high))
    if kind == "predicted" and ratio.low < ratio.high:
        text = f"The overhead of Q4_K over {dtype} in cold calls is predicted to lie between "
        text += f"{low:+.0f} and {high:+.0f} %"
        word = "faster" if ratio.high < 1 else "overhead" if ratio.low > 1 else None
        return (verdict_word(word, kind) if word else CANNOT_TELL), text
    if kind == "predicted":
        text = f"The overhead of Q4_K over {dtype} in cold calls is predicted as ~{middle:+.1f} %"
        return verdict_word("faster" if middle < 0 else "overhead", kind), text
    amount = f"{middle:+.1f} % ({low:+.1f} to {high:+.1f} %)"
    if ratio.high < 1:
        return "faster", f"In cold calls the overhead of Q4_K over {dtype} is {amount}, a gain"
    if ratio.low > 1:
        return "overhead", f"In cold calls the overhead of Q4_K over {dtype} is {amount}"
    text = f"The overhead of Q4_K over {dtype} in cold calls, {amount}, may be none"
    return "no difference seen", text


def _rows(regime: str, shown: Sequence[VariantResult], ratio: Span, dtype: str) -> list[Evidence]:
    group, kind = f"{regime} calls", kind_of(*shown)
    titles = {PLAIN: f"A, {dtype}", PACKED: "B, Q4_K"}
    times = [
        each.evidence(
            f"{titles[each.variant.name[0]]}: {each.variant.kernel}.{each.variant.impl}", group
        )
        for each in shown
    ]
    overhead = row("overhead, (B - A) / A", ratio - Span.exactly(1.0), "%", kind, group)
    return [*(t for t in times if t is not None), overhead]


def _caveats(context: Context, sizes: Sizes, results: Mapping[str, VariantResult]) -> list[str]:
    plain = [f for f in results.values() if f.variant.name.startswith(PLAIN)]
    timed = [f.variant for f in plain if f.time_s is not None]
    text = []
    if names := dict.fromkeys(f"{variant.kernel}.{variant.impl}" for variant in timed):
        best = f"A is the fastest of {', '.join(names)} with weights of {context.dtype}"
        none_chosen = "A and B are the least times that the intervals of their products allow."
        text.append(none_chosen if context.intervals else f"{best}: a slow A would flatter Q4_K.")
    cache = context.device.cache.value
    names_of = ("q4_k_matmul", "matvec")
    packed, whole = (catalog.spec_of(name).bytes(sizes, context.dtype) for name in names_of)
    if packed <= cache < whole:
        text.append(
            f"Hot calls are not comparable: the last-level cache of {reading(cache, 'B')} holds "
            f"the {reading(packed, 'B')} of B, and not the {reading(whole, 'B')} of A."
        )
    launch = ceilings(context.device, context.ceilings, context.state).best("launch")
    if launch is not None:
        text.append(
            f"Both times contain a launch, {reading(launch.value, 's')} here, which no packing "
            "makes shorter."
        )
    return text


EXPERIMENT = Experiment(
    "the cost of unpacking: a product with fp16 weights against Q4_K",
    variants,
    analyse,
    kernels=("q4_k_matmul",),
    dtype="fp16",
    is_emulated=True,
)
