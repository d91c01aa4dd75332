"""Find the best value of a knob. Each value is represented by the fastest of the few configs with
it that the model ranks best, since the best value depends on the other knobs."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench import catalog
from workbench.backend.protocol import Problem
from workbench.data.record import Case, Chart, Evidence, Kind, group_by
from workbench.data.selection import MODEL_SHARE, TIE_SHARE
from workbench.data.units import reading, unit_of
from workbench.experiments import (
    Analysis,
    Context,
    Experiment,
    ExperimentError,
    Variant,
    VariantResult,
)
from workbench.experiments.analysis.times import (
    Span,
    kind_of,
    line,
    mark,
    quickest,
    ratio_of,
    reasons,
    row,
    verdict_word,
)
from workbench.measurement.candidate import Candidate
from workbench.spec import Impl, Knob, Sizes, label, sizes_text, stages, threads, tile, values
from workbench.tuner import space

# Configs tried for each value, in the order of the model. It ranks the best of a matmul sweep among
# its first few (docs/facts.md); three are tried, so that one wrong guess does not decide a value.
TRIED = 3
_GIVEN = (
    f"Each value is represented by the fastest of the up to {TRIED} configs that the model "
    "ranks best; the others are not tried. A sweep tries all."
)
DEPTH = "block_k"  # of a step: a tile knob, but no edge of a program's tile

Config = Mapping[str, int]


@dataclass(frozen=True)
class Varied:
    """The number of each config that an experiment varies, and its name in texts."""

    noun: str  # "edge of the tile"
    unit: str  # after a value: " threads"
    knob: Knob
    number: Callable[[Impl, Config, Context], int]

    def text(self, value: int) -> str:
        """Return a value with its unit: `256 threads`."""
        unit = self.unit.removesuffix("s") if value == 1 else self.unit
        return f"{value}{unit}"


def experiment_of(varied: Varied, summary: str) -> Experiment:
    """Return the experiment that finds the best value of a knob."""
    return Experiment(
        summary,
        variants=lambda context: variants_of(context, varied),
        analyse=lambda context, results: analyse_knob(context, results, varied),
        kernels=("matmul",),
    )


def swept_impl(context: Context, varied: Varied) -> Impl:
    """Return the first Triton Impl of the kernel with more than one choice to vary. Raises
    ExperimentError where there is none."""
    spec = catalog.spec_of(context.kernel)
    for impl in spec.impls:
        fields = [f for f, knob in impl.knobs().items() if knob == varied.knob.__name__]
        fields = [f for f in fields if f != DEPTH] or fields
        if impl.backend == "triton" and any(len(impl.choices()[f]) > 1 for f in fields):
            return impl
    raise ExperimentError(
        f"{context.kernel} has no Impl with a choice of the {varied.noun}; name another kernel "
        "with --kernel."
    )


def sizes_of(context: Context) -> Sizes:
    """Return the requested sizes, or the kernel's first to time."""
    return context.sizes or catalog.spec_of(context.kernel).bench[0]


def variants_of(context: Context, varied: Varied) -> list[Variant]:
    """Return for each value the configs that the model ranks best, and the default. A value without
    a legal config keeps one variant, so that its refusal is reported."""
    impl, sizes = swept_impl(context, varied), sizes_of(context)
    limits = context.device.limits
    default = impl.default(limits, context.dtype, sizes)
    every = dict.fromkeys((*impl.space(default, (tile, threads, stages)), default))
    by_value = group_by(every, lambda config: varied.number(impl, values(config), context))
    order = _order(context, impl, sizes, default)
    chosen: list[Any] = []
    for _, same in sorted(by_value.items()):
        legal = [c for c in same if not impl.rejection_reason(c, limits, context.dtype, sizes)]
        ranked = sorted(legal, key=order)
        chosen += ranked[:TRIED] or same[:1]
        chosen += [config for config in ranked[TRIED:] if config == default]
    at = context.kernel, impl.name, dict(sizes), context.dtype
    return [Variant(f"{impl.name} {label(c)}", *at, c) for c in map(values, chosen)]


def _order(
    context: Context, impl: Impl, sizes: Sizes, default: Any
) -> Callable[[Any], tuple[float, int]]:
    """Return a sort key: the time that the model expects, else the distance from the default."""
    problem = Problem(context.kernel, impl.spec, dict(sizes), context.dtype)
    usual = values(default)

    def rank(config: Any) -> tuple[float, int]:
        own = values(config)
        at = dict(sizes), context.dtype, context.device.name
        case = Case(impl.spec.name, impl.name, impl.backend, own, *at)
        candidate = Candidate(case, "", impl, config, config == default)
        away = sum(own[name] != usual[name] for name in own)
        return space.expected_s(candidate, problem, context.device), away

    return rank


@dataclass(frozen=True)
class Ranking:
    """The fastest variant of each value, and its ratio to the fastest of all."""

    best: Mapping[int, VariantResult]  # by value, ascending
    winner: int | None = None
    ratios: Mapping[int, Span] = field(default_factory=dict)  # of time, over the winner's
    ties: tuple[int, ...] = ()  # other values that tie with the winner
    missing: tuple[int, ...] = ()  # values without any time


def ranking(by_value: Mapping[int, Sequence[VariantResult]]) -> Ranking:
    """Return the ranking of the values. A value ties if its interval reaches the winner, or if its
    time is within 0.5 % of it, for a prediction 2 %: as in the verdict of a sweep."""
    best = {v: b for v, results in sorted(by_value.items()) if (b := quickest(results)) is not None}
    missing = tuple(sorted(v for v in by_value if v not in best))
    if not best:
        return Ranking(best, missing=missing)
    winner = min(best, key=lambda v: best[v].time_s or math.inf)
    ratios = {v: r for v, f in best.items() if (r := ratio_of(best[winner], f)) is not None}
    share = TIE_SHARE if kind_of(*best.values()) == "measured" else MODEL_SHARE
    ties = tuple(
        v for v, r in ratios.items() if v != winner and (r.low <= 1 or r.value <= 1 + share)
    )
    return Ranking(best, winner, ratios, ties, missing)


def analyse_knob(
    context: Context, results: Mapping[str, VariantResult], varied: Varied
) -> list[Analysis]:
    """Return which value is best, which others tie, and how much the choice matters."""
    impl = swept_impl(context, varied)

    def number(each: VariantResult) -> int:
        return varied.number(impl, each.variant.config or {}, context)

    by_value = group_by(results.values(), number)
    ranked = ranking(by_value)
    caveats = [_GIVEN, *_others(impl), *reasons(results)]
    if ranked.winner is None:
        text = f"No config of {impl.title} gave a time; the reasons are listed below."
        return [Analysis("no verdict", text, caveats=caveats)]
    kind = kind_of(*ranked.best.values())
    usual = values(impl.default(context.device.limits, context.dtype, sizes_of(context)))
    rows = [*_times(ranked, usual, results, varied, kind), *_resources(ranked, varied)]
    if len(by_value) == 1:
        caveats.insert(0, f"{impl.title} has no other {varied.noun} at these sizes.")
    word, sentence = _verdict(ranked, impl, varied, kind, _ends(impl, context, varied))
    return [Analysis(word, sentence, rows, [_chart(ranked, varied, kind)], caveats)]


def _others(impl: Impl) -> list[str]:
    names = [i.name for i in impl.spec.impls if i.backend == "triton" and i.name != impl.name]
    if not names:
        return []
    return [f"This is the Impl {impl.name}; {', '.join(names)} may want another value."]


def _ends(impl: Impl, context: Context, varied: Varied) -> tuple[int, int]:
    """Return the least and the largest value that the kernel declares, legal here or not."""
    default = impl.default(context.device.limits, context.dtype, sizes_of(context))
    results = [varied.number(impl, values(c), context) for c in impl.space(default, (varied.knob,))]
    return min(results), max(results)


def _verdict(
    ranked: Ranking, impl: Impl, varied: Varied, kind: Kind, ends: tuple[int, int]
) -> tuple[str, str]:
    winner = ranked.winner
    assert winner is not None
    tilde = mark(kind)
    time_s = ranked.best[winner].time_s or 0.0
    config = label(ranked.best[winner].variant.config or {})
    best = varied.text(winner)
    at = sizes_text(ranked.best[winner].variant.sizes, " ")
    text = f"The best {varied.noun} for {impl.title} at {at} is {best} ({config}), "
    text += f"{tilde}{reading(time_s, 's')}"
    word = best
    others = [v for v in ranked.ratios if v != winner]
    if others and len(ranked.ties) == len(others):
        word = "all tie"
        text += "; tied with it: all others"
    elif ranked.ties:
        *tied, last = map(str, sorted([winner, *ranked.ties]))
        word = f"tie of {', '.join(tied)} and {last}{varied.unit}"
        rest = ", ".join(varied.text(v) for v in sorted(ranked.ties))
        text += f"; tied with it: {rest}"
    if len(others) > len(ranked.ties):
        worst = max(others, key=lambda v: ranked.ratios[v].value)
        r = ranked.ratios[worst]
        between = f" ({r.low:.3g} to {r.high:.3g})" if kind == "measured" else ""
        text += f". The worst, {varied.text(worst)}, takes {tilde}{r.value:.3g} times as long"
        text += between
    text += "."
    if others and not ranked.ties and winner in ends:
        operand = "smallest" if winner == ends[0] else "largest"
        word += ", at the edge"
        text += f" It is the {operand} that the kernel declares: a better one may lie beyond."
    if ranked.missing:
        text += f" No time of {', '.join(varied.text(v) for v in ranked.missing)}."
    return verdict_word(word, kind), text


def _times(
    ranked: Ranking, usual: Config, results: Mapping[str, VariantResult], varied: Varied, kind: Kind
) -> list[Evidence]:
    rows = []
    for value, each in ranked.best.items():
        name = f"{varied.text(value)}: {label(each.variant.config or {})}"
        rows.append(each.evidence(name, f"fastest by {varied.noun}"))
    assert ranked.winner is not None
    fastest = ranked.best[ranked.winner]
    group, best = "how much it matters", varied.text(ranked.winner)
    rows += [
        row(f"{varied.text(v)} over {best}", r, "1", kind, group)
        for v, r in ranked.ratios.items()
        if v != ranked.winner
    ]
    for each in results.values():
        if dict(each.variant.config or {}) == usual and (r := ratio_of(fastest, each)) is not None:
            name = f"the default ({label(usual)}) over the best"
            rows.append(row(name, r, "1", kind, group))
    return [each for each in rows if each is not None]


def _resources(ranked: Ranking, varied: Varied) -> list[Evidence]:
    """Return occupancy and spills of the fastest variant of each value."""
    occupied, spilled = [], []
    for value, each in ranked.best.items():
        if each.compilation is None or each.compilation.resources is None:
            continue
        created, name = each.compilation.resources, varied.text(value)
        limited, spills = f"{name}, limited by {created.limiter}", created.spill_bytes
        group = "resident warps over the most that fit"
        occupied.append(Evidence(limited, created.occupancy, "1", "computed", group=group))
        group = "registers spilled by each thread"
        spilled += [Evidence(name, spills, "B", "computed", group=group)] if spills else []
    return [*occupied, *spilled]


def _chart(ranked: Ranking, varied: Varied, kind: Kind) -> Chart:
    times = [each.time_s or 0.0 for each in ranked.best.values()]
    scale, unit = unit_of(min(times))
    fastest = line("fastest of its value", ranked.best, scale, kind)
    label = f"time of one call, {unit}"
    wide = max(times) > 10 * min(times)  # a linear axis shows less than a decade best
    across = f"{varied.noun},{varied.unit}" if varied.unit else varied.noun
    return Chart(f"Time by {varied.noun}", across, label, (fastest,), True, wide)
