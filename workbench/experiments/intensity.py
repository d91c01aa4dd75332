"""Measure the roofline: from how many FLOPs a byte on arithmetic limits this device.

One kernel moves the same bytes every time and does more multiply-adds on them from variant to
variant, from 1/8 to 128 FLOP a byte in fp32. While memory is the limit, the time is constant and
the rate rises with the intensity; when the FP32 units are, the rate is constant. The intersection
of the two parts is the knee, which is compared with the ridge of the ceilings: peak over bandwidth
(Williams, Waterman and Patterson, CACM 52(4), 2009). The sweep is that of mixbench (Konstantinidis
and Cotronis, JPDC 107, 2017).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workbench import catalog
from workbench.data import stats
from workbench.data.record import Chart, Evidence, Kind, Record, Series
from workbench.data.units import reading
from workbench.device.ceilings import Ceiling, CeilingSet
from workbench.experiments import (
    Analysis,
    Context,
    Experiment,
    ExperimentError,
    Variant,
    VariantResult,
)
from workbench.experiments.analysis.bounds import ceiling_row, ceilings, split
from workbench.experiments.analysis.times import (
    CANNOT_TELL,
    Span,
    kind_of,
    mark,
    reasons,
    row,
    span_of,
)
from workbench.spec import ITEMSIZE

KERNEL, TENSORS = "streamed_fma", 4  # three streams read, one written
# 0.5 GB in fp32: beyond every cache in `hardware.py`, and 15 blocks for each place of an H200
ELEMENTS = 1 << 25
INTENSITIES = tuple(2.0**e for e in range(-3, 8))  # FLOP a byte
# A point belongs to the slope or to the plateau if it is at least this factor away from the knee;
# nearer to it both limits slow it down.
APART = 2.0
TERA = 1e12


@dataclass(frozen=True)
class IntensityPoint:
    """One variant: FLOP/B, FLOP/s and bytes/s."""

    intensity: float
    rate: Span
    bandwidth: Span


@dataclass(frozen=True)
class Bend:
    """Both parts of a roofline: the median of the points of each, and their intervals' range."""

    slope: Span  # bytes/s
    plateau: Span  # FLOP/s

    @property
    def knee(self) -> Span:
        """Intersection of the two parts, in FLOP a byte."""
        return self.plateau / self.slope


def point(result: VariantResult) -> IntensityPoint | None:
    """Return a variant as a point of the roofline; None if it has no time."""
    record, time = result.outcome, span_of(result)
    if not isinstance(record, Record) or time is None:
        return None
    flops, moved = Span.exactly(record.flops), Span.exactly(record.bytes)
    return IntensityPoint(record.flops / record.bytes, flops / time, moved / time)


def bend(points: Sequence[IntensityPoint]) -> Bend | None:
    """Return the slope through the points well below the knee and the plateau through those well
    above.

    The knee decides which points are which and follows from them, so it is iterated from the best
    bandwidth and the best rate until both parts stay the same. None if a part has fewer than two
    points.
    """
    if not points:
        return None
    knee = max(p.rate.value for p in points) / max(p.bandwidth.value for p in points)
    results: Bend | None = None
    for _ in range(len(points)):
        slope = [p.bandwidth for p in points if p.intensity <= knee / APART]
        plateau = [p.rate for p in points if p.intensity >= knee * APART]
        if len(slope) < 2 or len(plateau) < 2:
            return None
        now = Bend(_join_spans(slope), _join_spans(plateau))
        if results == now:
            break
        results, knee = now, now.knee.value
    return results


def _join_spans(spans: Sequence[Span]) -> Span:
    middle = stats.median([each.value for each in spans])
    if all(each.low == each.high for each in spans):  # of predictions without intervals
        return Span.exactly(middle)
    return Span(middle, min(each.low for each in spans), max(each.high for each in spans))


def variants(context: Context) -> list[Variant]:
    """Return a variant for each intensity that a whole number of multiply-adds gives. Raises
    ExperimentError where a kernel is named or the dtype is not supported."""
    if context.kernel:
        raise ExperimentError(
            f"intensity times a kernel of its own and says nothing of {context.kernel}; leave "
            "--kernel out."
        )
    if context.dtype not in ("fp32", "fp16", "bf16"):
        raise ExperimentError(
            f"intensity moves fp32, fp16 or bf16, not {context.dtype}; name one of them."
        )
    moved = TENSORS * ITEMSIZE[context.dtype]
    steps = [i * moved / 2 for i in _intensities(context)]  # a multiply-add is two FLOPs
    named = {f"{2 * f / moved:g} FLOP/B": {"N": ELEMENTS, "F": int(f)} for f in steps if f >= 1}
    impl = context.own(catalog.spec_of(KERNEL))[0].name
    return [Variant(n, KERNEL, impl, sizes, context.dtype) for n, sizes in named.items()]


def _intensities(context: Context) -> list[float]:
    """Return INTENSITIES, and higher ones where fewer than two of them would lie well above the
    stated ridge, so that a plateau can be seen."""
    pair = _ridge(ceilings(context.device, {}, context.state))
    least = 2 * APART * pair[1].value / pair[0].value if pair else 0.0
    result = list(INTENSITIES)
    while result[-1] < least:
        result.append(2 * result[-1])
    return result


def analyse(context: Context, results: Mapping[str, VariantResult]) -> list[Analysis]:
    """Return the knee, with its interval, and the ridge of the ceilings."""
    timed = [each for each in results.values() if each.time_s is not None]
    points = sorted((p for p in map(point, timed) if p), key=lambda p: p.intensity)
    kind = kind_of(*timed)
    # the FP32 units do the arithmetic, whatever the dtype in memory
    measured, stated = split(ceilings(context.device, context.ceilings, context.state))
    curve = [row(f"at {p.intensity:.3g} FLOP/B", p.rate, "FLOP/s", kind, "rate") for p in points]
    charts = [_chart(points, kind, measured, stated)] if points else []
    caveats = [*reasons(results), *_missing_work(timed), _counting_note(context)]
    bent = bend(points)
    if bent is None:
        text = f"{len(points)} of {len(results)} intensities have a time, too few on one "
        return [Analysis("no knee", f"{text}side of a knee to find it.", curve, charts, caveats)]
    rows = [*_evidence(bent, points, kind), *_ridges(bent, kind, measured, stated), *curve]
    at = measured if _ridge(measured) else stated
    if kind == "predicted" and bent.knee.low < bent.knee.high:
        return [Analysis(CANNOT_TELL, _knee_sentence(bent.knee, at), rows, charts, caveats)]
    word = f"knee at {_text(bent.knee.value, kind)} FLOP/B"
    sentence = _sentence(bent, kind, at)
    return [Analysis(word, sentence, rows, charts, caveats)]


def _text(value: float, kind: Kind) -> str:
    return f"{mark(kind)}{value:.3g}"


def _counting_note(context: Context) -> str:
    return (
        f"Bytes are those of four streams of {context.dtype}, each moved once; a multiply-add is "
        "two FLOPs, done in fp32. The slope is the median over the points at no more than half of "
        "the knee, the plateau over those from twice the knee on; intervals span all of their "
        "points."
    )


# The machine code of these has one instruction for one multiply-add of a thread; that of newer ones
# and of CDNA may do two at once.
_SINGLE = ("sm_80", "sm_86", "sm_89", "sm_90")


def complete(result: VariantResult) -> bool | None:
    """Return whether the machine code has the multiply-adds that the sizes require: those outside
    its loop once, those inside a whole number of times. None if the code does not show it."""
    record, created = result.outcome, result.compilation
    if not isinstance(record, Record) or created is None or record.case.dtype != "fp32":
        return None
    code = created.code[0] if len(created.code) == 1 else None
    block = record.case.config.get("block_n", 0)
    resources = created.resources
    if code is None or not code.readable or code.arch not in _SINGLE or not block:
        return None
    assert resources is not None  # there is machine code
    context = result.variant.sizes["F"] * block // resources.threads
    inside = code.loop_counts.vector
    rest = context - (code.whole.vector - inside)
    return rest == 0 if not inside else rest > 0 and rest % inside == 0


def _missing_work(timed: Sequence[VariantResult]) -> list[str]:
    names = [each.variant.name for each in timed if complete(each) is False]
    if not names:
        return []
    return [
        f"The machine code at {', '.join(names)} does not have the declared multiply-adds: its "
        "rate is not what it says."
    ]


def _evidence(bent: Bend, points: Sequence[IntensityPoint], kind: Kind) -> list[Evidence]:
    group, knee = "results of the curve", bent.knee
    nearest = min(points, key=lambda p: max(p.intensity / knee.value, knee.value / p.intensity))
    ideal = min(bent.slope.value * nearest.intensity, bent.plateau.value)
    name = f"rate at {nearest.intensity:.3g} FLOP/B, next to the knee, over slope or plateau"
    return [
        row("knee", knee, "FLOP/B", kind, group),
        row("bandwidth of the slope", bent.slope, "B/s", kind, group),
        row("rate of the plateau", bent.plateau, "FLOP/s", kind, group),
        Evidence(name, nearest.rate.value / ideal, "1", kind, group=group),
    ]


def _ridge(at: CeilingSet) -> tuple[Ceiling, Ceiling] | None:
    """Return the memory and fp32 ceilings of one origin; None if one is unknown."""
    memory, compute = at.best("dram"), at.best("compute", "fp32")
    return (memory, compute) if memory and compute else None


def _ridges(bent: Bend, kind: Kind, measured: CeilingSet, stated: CeilingSet) -> list[Evidence]:
    rows = []
    for name, (memory, compute) in _pairs(measured, stated).items():
        ridge = compute.value / memory.value
        rows += [
            ceiling_row(memory, name),
            ceiling_row(compute, name),
            Evidence("ridge", ridge, "FLOP/B", "computed", group=name),
            row("knee over the ridge", bent.knee.times(1 / ridge), "1", kind, name),
        ]
    return rows


def _pairs(measured: CeilingSet, stated: CeilingSet) -> dict[str, tuple[Ceiling, Ceiling]]:
    """Return the memory and fp32 ceilings of each origin that has both, by its name."""
    pairs = {"measured ceilings": _ridge(measured), "stated ceilings": _ridge(stated)}
    return {name: pair for name, pair in pairs.items() if pair is not None}


def _knee_sentence(knee: Span, at: CeilingSet) -> str:
    """Return the sentence on a knee of predicted intervals."""
    text = f"The intervals allow a knee between {knee.low:.3g} and {knee.high:.3g} FLOP/B"
    pair = _ridge(at)
    if pair is None:
        return f"{text}."
    memory, compute = pair
    ridge = f"{compute.value / memory.value:.3g}"
    return (
        f"{text}; the model starts from the stated ceilings, which meet at {ridge}, so only a Mac "
        "shows where the knee is."
    )


def _sentence(bent: Bend, kind: Kind, at: CeilingSet) -> str:
    knee, tilde = bent.knee, mark(kind)
    between = f" ({knee.low:.3g} to {knee.high:.3g})" if kind == "measured" else ""
    text = (
        f"The rate rises with {tilde}{reading(bent.slope.value, 'B/s')} and ends at "
        f"{tilde}{reading(bent.plateau.value, 'FLOP/s')}; the two meet at "
        f"{_text(knee.value, kind)} FLOP/B{between}"
    )
    pair = _ridge(at)
    if pair is None:
        return f"{text}. No bandwidth and fp32 peak of this device are known to compare it with."
    memory, compute = pair
    ridge = compute.value / memory.value
    origin = "measured" if memory.is_measured else "stated"
    if kind == "predicted":
        return f"{text}, where the {origin} ceilings have their ridge at {ridge:.3g}."
    if knee.low <= ridge <= knee.high:
        return f"{text}, as the {origin} ceilings do at {ridge:.3g}."
    operand = "beyond" if knee.low > ridge else "short of"
    return f"{text}, {operand} the ridge of the {origin} ceilings at {ridge:.3g}."


def _chart(
    points: Sequence[IntensityPoint], kind: Kind, measured: CeilingSet, stated: CeilingSet
) -> Chart:
    xs = tuple(float(f"{p.intensity:.3g}") for p in points)
    rates = [p.rate.times(1 / TERA) for p in points]
    shown = rates if any(r.low < r.high for r in rates) else []
    low, high = (tuple(r.low for r in shown), tuple(r.high for r in shown))
    series = [Series(f"{kind} rate", xs, tuple(r.value for r in rates), low, high, kind)]
    for name, (memory, compute) in _pairs(measured, stated).items():
        bends = sorted({*xs, float(f"{compute.value / memory.value:.3g}")})
        ys = tuple(min(memory.value * x, compute.value) / TERA for x in bends)
        series.append(Series(name, tuple(bends), ys, kind="computed"))
    axes = "FLOP per byte", "TFLOP/s, fp32"
    return Chart("Rate against intensity", *axes, tuple(series), x_log=True, y_log=True)


EXPERIMENT = Experiment(
    "the roofline, measured: FLOPs a byte from 1/8 to 128 at fixed traffic",
    variants,
    analyse,
    dtype="fp32",
    is_emulated=True,
)
