"""Find whether memory or arithmetic limits a kernel, by timing its parts.

Three variants on one grid, with one config, are interleaved: A is the kernel's memory traffic
without its arithmetic, B its arithmetic without its traffic, C the whole. The launch of one empty
program is subtracted from each. Both parts are lower bounds of the whole, so a = A/C and b = B/C
are the shares of its time that each would need alone, and the overlap (A + B - C) / min(A, B) is
the share of the shorter that is hidden behind the longer: 1 where C = max(A, B), 0 where C = A + B.

The variants are files beside the kernel, NAME_traffic and NAME_arithmetic. Their machine code must
prove that they are such parts, or there is no verdict: A has no matrix instruction and the loads of
C, B the arithmetic of C and no global load inside its loop. Neither may be slower than C, nor
faster than the ceilings allow.
"""

import importlib.util
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from workbench import catalog
from workbench.code.loops import Code
from workbench.compile.proof import dishonest, loads_of, loads_text, sum_codes
from workbench.data.record import Evidence, Predicted, Record, Resources
from workbench.data.units import reading
from workbench.device import apple_model
from workbench.device.ceilings import diagnose
from workbench.experiments import (
    Analysis,
    Context,
    Experiment,
    ExperimentError,
    Variant,
    VariantResult,
)
from workbench.experiments.analysis.bounds import ceiling_row, ceilings
from workbench.experiments.analysis.times import (
    CANNOT_TELL,
    Span,
    quotient,
    reasons,
    row,
    span_of,
    verdict_word,
)
from workbench.reports.figures.roofline_points import load_of
from workbench.spec import ITEMSIZE, Impl, Sizes, Spec, sizes_text, values

PARTS = ("traffic", "arithmetic")
WHOLE = "whole: "  # before the name of each Metal Impl
NEAR = 0.8  # share of the whole from which a part explains its time
LAUNCH = 0.5  # share of the launch in a call from which nothing else matters
STARTED = 0.1  # share of the whole from which its programs' start is reported
SLOWER = 1.02  # factor by which a part may be slower than the whole, as its clock may differ
FASTER = 1.02  # factor by which a part may be faster than a ceiling
GUIDE = (
    'A common rule is: "If A >> C: Memory-bound, optimize memory access. If B >> C: '
    'Compute-bound, optimize ALU usage. If A + B = C: Balanced, optimize both". It is not used '
    "here: A and B do parts of what C does, so neither can take much longer than C, and "
    "where A + B = C nothing overlaps, which is serialised and not balanced."
)
TERMS = (
    "The verdict follows from the model's terms of the whole kernel and not from the variants' own "
    "predicted times, as the model was fitted to kernels and not to parts of them."
)
METAL_TERMS = (
    "The verdict compares the terms of the model, each with the interval that its assumptions "
    "allow: parts of a kernel have no Metal Impl."
)
METAL_CEILINGS = (
    "The verdict compares the time with the device's ceilings of memory and arithmetic, each "
    "measured by a kernel that does nothing else: parts of a kernel have no Metal Impl."
)
METAL_WORDS = {
    "memory traffic": "memory-bound",
    "arithmetic": "compute-bound",
    "launch and waves": "latency-bound",
}
ADVICE = {
    "memory-bound": "Fewer bytes would make it faster, less arithmetic would not.",
    "compute-bound": "Less arithmetic would make it faster, fewer bytes would not.",
    "balanced": "Both are near their limit and overlap, so only less of both would make it faster.",
    "serialised": "They wait for each other: a deeper pipeline or more programs on a core would "
    "make it faster.",
    "latency-bound": "Neither traffic nor arithmetic explains the time, but what a launch, a start "
    "or a wait takes: more work at once or fewer launches would make it faster.",
}


# The verdict: pure arithmetic on intervals


@dataclass(frozen=True)
class Times:
    """Seconds of the variants as measured, nothing subtracted. `grid` is a grid of as many empty
    programs as the whole has; None if it was not timed."""

    traffic: Span
    arithmetic: Span
    whole: Span
    launch: Span
    grid: Span | None = None


@dataclass(frozen=True)
class Shares:
    """Shares of the whole's time: 1 is all of it. `traffic`, `arithmetic` and `overlap` are without
    the launch, `launch` and `grid` with it."""

    traffic: Span
    arithmetic: Span
    overlap: Span
    launch: Span
    grid: Span


def shares_of(times: Times) -> Shares:
    """Return the shares of the variants in the whole's time. Intervals are those of the worst case:
    both ends of each time with both of the others."""
    alone = times.whole.less(times.launch)
    a = times.traffic.less(times.launch) / alone
    b = times.arithmetic.less(times.launch) / alone
    hidden = Span(overlap(a.value, b.value), overlap(a.low, b.low), overlap(a.high, b.high))
    grid = times.grid / times.whole if times.grid else Span.exactly(0.0)
    return Shares(a, b, hidden, times.launch / times.whole, grid)


def overlap(traffic: float, arithmetic: float) -> float:
    """Return the share of the shorter part that is hidden behind the longer, 0 to 1, from their
    shares of the whole. Increases with either share."""
    both, shorter = traffic + arithmetic - 1, min(traffic, arithmetic)
    if shorter <= 0 or math.isinf(both):
        return 1.0 if both >= 0 else 0.0
    return min(1.0, max(0.0, both / shorter))


def word_at(traffic: float, arithmetic: float, launch: float, grid: float) -> str:
    """Return the verdict for shares that are known exactly."""
    if launch >= LAUNCH or grid >= NEAR:
        return "latency-bound"
    if traffic >= NEAR and arithmetic >= NEAR:
        return "balanced"
    if traffic >= NEAR or arithmetic >= NEAR:
        return "memory-bound" if traffic >= NEAR else "compute-bound"
    return "serialised" if traffic + arithmetic >= NEAR else "latency-bound"


def words_of(shares: Shares) -> list[str]:
    """Return the verdicts that the intervals allow, that of the middle first."""
    every = (shares.traffic, shares.arithmetic, shares.launch, shares.grid)
    middle = word_at(*(each.value for each in every))
    results = {word_at(*at) for at in product(*map(_telling, every))}
    return [middle, *sorted(results - {middle})]


def _telling(share: Span) -> set[float]:
    """Return values of an interval that give every verdict which any of its values gives: its ends,
    and the largest one below the threshold, where the other part's share may still decide."""
    below = math.nextafter(NEAR, 0.0)
    return {share.low, share.high} | ({below} if share.low < below < share.high else set())


def impossible(times: Times) -> list[str]:
    """Return why these cannot be times of a whole and its parts: one sentence each."""
    whole, parts = times.whole, {"traffic": times.traffic, "arithmetic": times.arithmetic}
    return [
        f"The {name} alone took {reading(part.value, 's')}, longer than the whole, "
        f"{reading(whole.value, 's')}: it is not part of it"
        for name, part in parts.items()
        if part.low > whole.high * SLOWER
    ]


# The variants


def variants(context: Context) -> list[Variant]:
    """Return the whole, its two parts, an empty program, and as many empty programs as the whole
    has.

    Raises ExperimentError where the kernel has no such variants or they do not fit it.
    """
    spec = catalog.spec_of(context.kernel)
    sizes = dict(context.sizes or spec.bench[0])
    if context.metal:
        return metal_variants(context, spec, sizes)
    named = {part: part_name(context.kernel, part) for part in PARTS}
    specs = {part: part_spec(context.kernel, name) for part, name in named.items()}
    for part, its in specs.items():
        if set(its.axes) != set(spec.axes):
            raise ExperimentError(
                f"{named[part]} has the axes {' '.join(its.axes) or 'of one number'} and "
                f"{context.kernel} {' '.join(spec.axes)}; give it tensors with the same."
            )
    impl, config = impl_of(spec, specs.values(), sizes, context)
    at: tuple[Sizes, str, dict[str, int]] = sizes, context.dtype, values(config)
    plain = context.dtype if context.dtype in ("fp32", "fp16", "bf16") else "fp32"
    results = [Variant("whole", context.kernel, impl.name, *at)]
    results += [Variant(part, named[part], impl.name, *at) for part in PARTS]
    results.append(Variant("launch", "empty", "once", {}, plain))
    if programs := _programs(impl, config, sizes, context):
        warps = {"num_warps": getattr(config, "num_warps", 4)}
        results.append(Variant("grid", "empty_grid", "programs", {"P": programs}, plain, warps))
    return results


def metal_variants(context: Context, spec: Spec, sizes: Sizes) -> list[Variant]:
    """Return the Metal Impls of a kernel, each a whole, and its parts. Parts have no Metal Impl:
    they are listed with that reason, and the model's terms take their place, or on a Mac the
    device's ceilings."""
    impls = context.own(spec) or spec.impls[:1]
    at: tuple[Sizes, str] = sizes, context.dtype
    results = [Variant(f"{WHOLE}{i.name}", context.kernel, i.name, *at) for i in impls]
    for part in PARTS:
        if _exists(name := part_name(context.kernel, part)):
            impl = part_spec(context.kernel, name).impls[0]
            results.append(Variant(part, name, impl.name, *at))
    return results


def part_name(kernel: str, part: str) -> str:
    """Return the name of a part: `matmul_traffic`, `package.mine_traffic`, `mine_traffic.py`."""
    if kernel.endswith(".py"):
        path = Path(kernel)
        return str(path.with_name(f"{path.stem}_{part}.py"))
    return f"{kernel}_{part}"


def part_spec(kernel: str, name: str) -> Spec:
    """Return the Spec of a part. Raises ExperimentError where there is none, CatalogError where its
    file does not fit the format."""
    if not _exists(name):
        where = name if name.endswith(".py") else f"{name}.py"
        raise ExperimentError(
            f"{kernel} has no variant {where}; write {part_name(kernel, 'traffic')} (its loads and "
            "stores, each value folded into what is stored) and "
            f"{part_name(kernel, 'arithmetic')} (its arithmetic on data loaded once before the "
            "loop), each a kernel with the same axes, Impl name and config fields, as "
            "matmul_traffic.py and matmul_arithmetic.py in workbench/variants/ are."
        )
    return catalog.spec_of(name)


def _exists(name: str) -> bool:
    if name.endswith(".py") or "/" in name:
        return Path(name).is_file()
    if "." in name:
        try:
            return importlib.util.find_spec(name) is not None
        except ModuleNotFoundError:
            return False
    return name in catalog.names_in(catalog.VARIANTS) or name in catalog.kernel_names()


def impl_of(spec: Spec, parts: Iterable[Spec], sizes: Sizes, context: Context) -> tuple[Impl, Any]:
    """Return the kernel's first Triton Impl that both parts have under the same name and whose
    config runs at these sizes, and that config. Raises ExperimentError where there is none."""
    duplicates = [{impl.name: impl for impl in part.impls} for part in parts]
    reason = "none of its Triton Impls has a namesake with the same config fields in both variants"
    for impl in spec.impls:
        named = [its[impl.name] for its in duplicates if impl.name in its]
        alike = [i for i in named if i.choices().keys() == impl.choices().keys()]
        if impl.backend != "triton" or len(alike) < len(duplicates):
            continue
        config = _config(impl, sizes, context)
        at = config, context.device.limits, context.dtype, sizes
        refusals = (i.rejection_reason(*at) for i in (impl, *alike))
        if not (refused := next(filter(None, refusals), "")):
            return impl, config
        reason = f"{impl.title} refuses its config: {refused}"
    raise ExperimentError(
        f"{spec.name} cannot be examined at {sizes_text(sizes)} in {context.dtype}: {reason}."
    )


def _config(impl: Impl, sizes: Sizes, context: Context) -> Any:
    """Return the config tuned for this device, else the default; it is set for all variants."""
    limits = context.device.limits
    default = impl.default(limits, context.dtype, sizes)
    if context.predicts:
        return default
    from workbench.data.environment import fingerprint
    from workbench.data.tuned_cache import Tuned, default_path
    from workbench.tuner.choice import fitting, tuned_entry

    at = impl, context.device, context.dtype, sizes, fingerprint(None, None).versions
    entry = tuned_entry(Tuned.load(default_path()), *at)
    config = fitting(impl, entry, limits, sizes)[0] if entry is not None else None
    return config or default


def _programs(impl: Impl, config: Any, sizes: Sizes, context: Context) -> int | None:
    """Return the number of programs of the whole if each computes one tile; None if unknown."""
    works = impl.work_of(config, context.device.limits, context.dtype, sizes)
    return None if works is None else max(work.tiles for work in works)


# Analysis


def analyse(context: Context, results: Mapping[str, VariantResult]) -> list[Analysis]:
    """Return one verdict, or the reasons why there is none; on an Apple GPU one for each Impl."""
    if context.metal:
        return analyse_metal(context, results)
    missing = [
        f"No time of the {name}: {results[name].failure.rstrip('.')}"
        for name in ("whole", *PARTS, "launch")
        if results[name].failure
    ]
    rows = _rows(results)
    if missing:
        return [_refusal(missing, rows)]
    codes = {name: results[name].compilation for name in ("whole", *PARTS)}
    read = {name: each.code if each is not None else () for name, each in codes.items()}
    wrong = dishonest(read["whole"], read["traffic"], read["arithmetic"])
    if not wrong:
        rows += _proof(read)
        wrong += _spilling_parts(results)
    whole = results["whole"].outcome
    assert isinstance(whole, Record)
    if isinstance(whole.timing, Predicted):
        return [_refusal(wrong, rows) if wrong else _model_verdict(whole.timing, rows)]
    times = times_of(results)
    fast = _rates(whole, times, _limits(context, sum_codes(read["whole"]).whole.matrix > 0))
    rows += [each for each, _ in fast]
    wrong += [*impossible(times), *(reason for _, reason in fast if reason)]
    return [_refusal(wrong, rows) if wrong else _verdict(times, rows, _caveats(results, read))]


def analyse_metal(context: Context, results: Mapping[str, VariantResult]) -> list[Analysis]:
    """Return a verdict for each Metal Impl that has a time: of a predicted one from the intervals
    of the model's terms, of a measured one from the device's ceilings."""
    caveats = [METAL_TERMS if context.predicts else METAL_CEILINGS, *reasons(results)]
    wholes = {name: each for name, each in results.items() if name.startswith(WHOLE)}
    verdict = _expected_metal if context.predicts else _ceiling_verdict
    given = [verdict(context, each, caveats) for each in wholes.values() if not each.failure]
    text = "No Metal Impl has a time; the reasons are listed below."
    return given or [Analysis("no verdict", text, caveats=reasons(results))]


def _ceiling_verdict(context: Context, whole: VariantResult, caveats: Sequence[str]) -> Analysis:
    """Return the verdict on a measured Metal Impl: which ceiling of the device it is near, and what
    its least bytes and its FLOPs alone would take there."""
    record, impl = whole.outcome, whole.variant.impl
    assert isinstance(record, Record)
    at, load = ceilings(context.device, context.ceilings, context.state), load_of(record)
    held = diagnose(load, at)
    group = f"{impl}, least times"
    amounts = ("memory traffic", load.bytes, at.best("dram")), (
        "arithmetic", load.flops, at.best("compute", load.dtype),
    )  # fmt: skip
    rows = [whole.evidence(impl, "times")]
    for name, amount, ceiling in amounts:
        if ceiling is not None and amount:
            least_s = amount / ceiling.value
            rows.append(Evidence(f"{name}, at its ceiling", least_s, "s", "computed", group=group))
            rows.append(ceiling_row(ceiling, group))
    if not any(c.is_measured for c in at.ceilings):
        caveats = ["No ceiling was measured on this Mac: workbench ceilings does.", *caveats]
    shown = [each for each in rows if each is not None]
    return Analysis(held.word, f"{impl}: {held.sentence}", shown, (), caveats)


def _expected_metal(context: Context, whole: VariantResult, caveats: Sequence[str]) -> Analysis:
    record, impl = whole.outcome, whole.variant.impl
    assert isinstance(record, Record) and isinstance(record.timing, Predicted)
    terms = apple_model.term_intervals(context.device, record.timing, record.bytes)
    word = CANNOT_TELL
    for name, (_, low, _) in terms.items():
        if low > max(high for other, (*_, high) in terms.items() if other != name):
            word = verdict_word(METAL_WORDS[name], "predicted")
    parts = [
        f"{n} {reading(low, 's')} to {reading(high, 's')}" for n, (_, low, high) in terms.items()
    ]
    if "arithmetic" not in terms:
        peak = f"the {record.case.dtype} peak of {context.device.title}"
        caveats = [f"{peak} is unknown: arithmetic is left out.", *caveats]
    last = "the intervals overlap, so only a Mac decides"
    if word != CANNOT_TELL:
        last = "the interval of the longest lies above the others"
    rows = [
        Evidence(f"{n}, by itself", value, "s", "predicted", low, high, f"{impl}, terms")
        for n, (value, low, high) in terms.items()
    ]
    timed = whole.evidence(impl, "times")
    rows = [timed, *rows] if timed is not None else rows
    return Analysis(word, f"{impl}: {', '.join(parts)}; {last}.", rows, (), caveats)


def times_of(results: Mapping[str, VariantResult]) -> Times:
    """Return the seconds of the variants; without the grid if the whole has other programs."""
    spans = {name: span for name, each in results.items() if (span := span_of(each)) is not None}
    compiled, grid = results["whole"].compilation, results.get("grid")
    known = compiled.resources if compiled is not None else None
    programs = known.programs if known is not None else None
    if grid is not None and programs != grid.variant.sizes["P"]:
        spans.pop("grid", None)
    return Times(**spans)


def _refusal(reasons: Sequence[str], rows: Sequence[Evidence]) -> Analysis:
    return Analysis("refused", f"There is no verdict. {'. '.join(reasons)}.", rows, (), (GUIDE,))


def _verdict(times: Times, rows: Sequence[Evidence], caveats: Sequence[str]) -> Analysis:
    shares = shares_of(times)
    word, *others = words_of(shares)
    if shares.grid.value >= STARTED:  # both parts hold the start of the programs
        start = (
            f"Starting as many programs that do nothing takes {_percent(shares.grid)} of its time"
        )
        rest = "which both parts hold: so much of them is neither traffic nor arithmetic."
        caveats = [f"{start}, {rest}", *caveats]
    text = f"Its memory traffic alone takes {_percent(shares.traffic)} of its time, its arithmetic "
    text += f"alone {_percent(shares.arithmetic)}"
    if shares.launch.value >= LAUNCH or shares.grid.value >= NEAR:
        text = f"Its launch alone takes {_percent(shares.launch)} of its time"
        if shares.grid.value:
            text += f", as many programs that do nothing {_percent(shares.grid)}"
    elif min(shares.traffic.value, shares.arithmetic.value) > 0.05:
        text += f", and {_percent(shares.overlap)} of the shorter is hidden behind the longer"
    last = ADVICE[word]
    if others:
        last = f"It lies between {' and '.join([word, *others])}: the intervals allow each."
        word = "undecided"
    rows = [*rows, *_share_rows(shares, times)]
    return Analysis(word, f"{text}. {last}", rows, (), (*caveats, GUIDE))


def _percent(span: Span) -> str:
    return f"{100 * span.value:.0f} %" if math.isfinite(span.value) else "all"


def _model_verdict(timing: Predicted, rows: Sequence[Evidence]) -> Analysis:
    """Return the verdict of the model on the whole. Its terms replace the variants, and the largest
    of them the time: the model's own time is longer, as its terms never overlap completely."""
    terms = {
        "memory traffic": max(timing.dram_s, timing.cache_s or 0.0),
        "arithmetic": timing.compute_s or 0.0,
        "waiting": timing.latency_s,
        "launch": timing.launch_s,
    }
    traffic, arithmetic, waiting, _ = terms.values()
    most = max(traffic, arithmetic, waiting)
    a, b = quotient(traffic, most), quotient(arithmetic, most)
    word = word_at(a, b, timing.launch_s / timing.predicted_s, 0.0)
    group = "the model's terms of C"
    rows = [
        *rows,
        *(Evidence(f"{n}, by itself", t, "s", "predicted", group=group) for n, t in terms.items()),
        Evidence("traffic over the largest term", a, "1", "predicted", group="shares"),
        Evidence("arithmetic over the largest term", b, "1", "predicted", group="shares"),
    ]
    text = {name: f"~{reading(t, 's')}" for name, t in terms.items()}
    words = (
        f"The model expects {text['memory traffic']} of memory traffic, {text['arithmetic']} of "
        f"arithmetic and {text['waiting']} of waiting, were each alone, in "
        f"~{reading(timing.predicted_s, 's')}; nothing was measured. {ADVICE[word]}"
    )
    return Analysis(verdict_word(word, "predicted"), words, rows, (), (TERMS, GUIDE))


# Evidence


def _rows(results: Mapping[str, VariantResult]) -> list[Evidence]:
    named = {
        "whole": "C, the whole",
        "traffic": "A, its memory traffic",
        "arithmetic": "B, its arithmetic",
        "launch": "launch of one empty program",
        "grid": "as many programs that do nothing",
    }
    every = ((results[name], text) for name, text in named.items() if name in results)
    return [row for each, text in every if (row := each.evidence(text, "times")) is not None]


def _proof(codes: Mapping[str, Sequence[Code]]) -> list[Evidence]:
    whole, traffic, arithmetic = (sum_codes(codes[name]) for name in ("whole", *PARTS))
    place, theirs, its = loads_of(whole, traffic)
    inside, loads = arithmetic.loop_counts, f"the kernel's: {loads_text(theirs)}"
    rows = [
        ("matrix instructions of the traffic variant", traffic.whole.matrix, "none"),
        (f"global loads of the traffic variant {place}", sum(its.values()), loads),
        ("global loads of the arithmetic variant inside its loop", inside.global_loads, "none"),
    ]
    if whole.whole.matrix:
        name = "matrix instructions of the arithmetic variant inside its loop"
        rows.append((name, inside.matrix, f"at least the kernel's {whole.loop_counts.matrix}"))
    return [
        Evidence(name, float(count), "1", "computed", group="machine code", target=text, met=True)
        for name, count, text in rows
    ]


def _rates(
    whole: Record, times: Times, most_rates: tuple[float, float]
) -> list[tuple[Evidence, str]]:
    """Return the rates that the variants reached, each with why it is impossible, or nothing."""
    dram, peak = most_rates
    asks = (
        ("least bytes over A", "B/s", whole.bytes, times.traffic, dram, "the bandwidth of"),
        ("FLOPs over B", "FLOP/s", whole.flops, times.arithmetic, peak, "the peak of"),
    )
    results = []
    for name, unit, amount, span, most, whose in asks:
        alone = span.less(times.launch)
        if not amount or alone.low <= 0:
            continue
        rate = Span.exactly(float(amount)) / alone
        fits = not most or rate.low <= FASTER * most
        target = f"at most {100 * FASTER:.0f} % of {reading(most, unit)}" if most else ""
        reason = f"The {name} are {reading(rate.value, unit)}, above {whose} {reading(most, unit)}"
        shown = row(name, rate, unit, "measured", "rates", target, fits if most else None)
        results.append((shown, "" if fits else reason))
    return results


def _limits(context: Context, matrix: bool) -> tuple[float, float]:
    """Return the B/s and FLOP/s that no variant can exceed; 0 if unknown. Without the matrix unit,
    16 bits have twice the rate of fp32, two numbers in one instruction."""
    known = ceilings(context.device, context.ceilings).ceilings
    dram = [c for c in known if c.level == "dram"]
    measured = [c for c in dram if c.is_measured]
    # reads, writes and their mixes have a ceiling each: if only one was measured, another may be
    # higher
    best = measured if len(measured) > 1 else dram
    dtypes = (context.dtype, "tf32") if context.dtype == "fp32" else (context.dtype,)
    dtypes, packed = (dtypes, 1) if matrix else (("fp32",), 4 // ITEMSIZE[context.dtype])
    # stated peaks and both states: a variant may run at a higher clock than the measurement did
    peaks = [c.value for c in known if c.level == "compute" and c.dtype in dtypes]
    return max((c.value for c in best), default=0.0), packed * max(peaks, default=0.0)


def _share_rows(shares: Shares, times: Times) -> list[Evidence]:
    longer = max(times.traffic, times.arithmetic, key=lambda part: part.value)
    slack = times.whole.less(longer)
    rows = [
        ("a = A / C, launch taken off", shares.traffic, "1"),
        ("b = B / C, launch taken off", shares.arithmetic, "1"),
        ("overlap = (A + B - C) / min(A, B)", shares.overlap, "1"),
        ("slack = C - max(A, B)", slack, "s"),
        ("launch over C", shares.launch, "1"),
        ("grid over C", shares.grid, "1"),
    ]
    return [
        row(name, span, unit, "measured", "shares")
        for name, span, unit in rows
        if math.isfinite(span.high) and (span.value or not name.startswith("grid"))
    ]


def _resources(results: Mapping[str, VariantResult]) -> dict[str, Resources]:
    """Return the resources of the whole and its parts, if they were compiled."""
    every = {name: results[name].compilation for name in ("whole", *PARTS)}
    return {name: each.resources for name, each in every.items() if each and each.resources}


def _spilling_parts(results: Mapping[str, VariantResult]) -> list[str]:
    """Return the parts that spill more registers than the whole: spills are traffic, too."""
    spills = {name: each.spill_bytes for name, each in _resources(results).items()}
    return [
        f"A thread of the {part} variant spills {spills[part]} bytes, one of the whole "
        f"{spills['whole']}"
        for part in PARTS
        if spills.get(part, 0) > spills.get("whole", 0)
    ]


def _caveats(
    results: Mapping[str, VariantResult], codes: Mapping[str, Sequence[Code]]
) -> list[str]:
    """Return the parts whose occupancy differs from the whole's, and what is unknown of the machine
    code."""
    blocks = {name: each.blocks_per_core for name, each in _resources(results).items()}
    text = [
        f"{blocks[part]} blocks of the {part} variant fit a core and {blocks['whole']} of the "
        f"whole, so it hides {'more' if blocks[part] > blocks['whole'] else 'less'} of its waiting."
        for part in PARTS
        if part in blocks and blocks[part] != blocks["whole"]
    ]
    unknown = dict.fromkeys(
        message for name in ("whole", *PARTS) for code in codes[name] for message in code.unknown
    )
    return [*text, *(f"Of the machine code: {each}." for each in unknown)]


EXPERIMENT = Experiment(
    summary="the limit of a kernel: its memory traffic, its arithmetic, or neither",
    variants=variants,
    analyse=analyse,
    kernels=("matmul", "softmax", "q4_k_matmul"),
    is_emulated=True,
)
