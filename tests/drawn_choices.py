"""Tables of what is selected, searched, planned and evaluated, of times that tie or nearly do."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import synthetic
from table_text import text_of

from workbench.backend.checking import CheckCall
from workbench.catalog import spec_of
from workbench.data.record import Case, Failure, Measured, Outcome, Record, Run
from workbench.data.selection import (
    best_per_group,
    comparable_times,
    members,
    ranking,
    representatives,
    same_bits,
    select,
)
from workbench.data.tuned_cache import Entry
from workbench.device.hardware import find_device
from workbench.evaluation.calls import calls_at, hidden_sizes
from workbench.evaluation.times import EvaluatedTimes
from workbench.measurement.candidate import Candidate
from workbench.reports.selection_sentence import sentence
from workbench.tuner import choice, design, first_pass, search, space, surrogate
from workbench.tuner.tuned import entries_of

Rows = Iterator[str]


# Selections of few configs whose times tie


def drawn_run(dice: random.Random) -> tuple[Run, list[Outcome]]:
    """Return a run of two Impls and a library, with times at the limits of a tie."""
    run, outcomes = synthetic.softmax()
    choices = {"num_warps": (1, 2, 4, 8), "block_n": (64, 128, 256)}
    knobs = {"num_warps": "threads", "block_n": "tile"}
    impls = {name: {"choices": choices, "knobs": knobs} for name in ("rows", "split")}
    run = replace(
        run, impls=impls, sizes={"M": 8192, "N": 256},
        vary=dice.choice(((), ("threads",), ("tile",))), tune=(),
        same_bits_as=dice.choice(("", "", "", "default")),
        previous_best=dice.choice(({}, {}, {"rows": {"num_warps": 2, "block_n": 128}})),
    )  # fmt: skip
    base = next(o for o in outcomes if isinstance(o, Record))
    assert isinstance(base.timing, Measured) and base.resources is not None
    result: list[Outcome] = []
    for impl, backend in (
        ("rows", "triton"),
        ("split", "triton"),
        ("torch", "torch"),
        ("other", "torch"),
    ):
        for n in range(dice.randrange(1, 6) if backend == "triton" else 1):
            config = {
                "num_warps": dice.choice((1, 2, 4, 8)),
                "block_n": dice.choice((64, 128, 256)),
            }
            config = config if backend == "triton" else {}
            case = Case("softmax", impl, backend, config, run.sizes, "bf16", run.device)
            is_default = n == 0 and backend == "triton" and dice.random() < 0.5
            if dice.random() < 0.15:
                stage = dice.choice(("measure", "launch", "check", "compile", "refused"))
                result.append(
                    Failure(
                        case,
                        f"{impl}{n}",
                        run.id,
                        synthetic.AT,
                        stage,
                        f"no {stage}",
                        default=is_default,
                    )
                )
                continue
            time_s = 1e-5 * dice.choice((1.0, 1.0, 1.004, 1.005, 1.006, 1.02, 1.3))
            for phase in dice.choice((("first_pass",), ("first_pass", "final"), ("final",))):
                ends = dice.choice((0.0, 0.0005, 0.003))
                samples = dice.choice(((time_s,) * 3, (time_s, 3 * time_s, 3 * time_s)))
                timing = replace(base.timing, median_s=time_s, low_s=time_s * (1 - ends),
                                 high_s=time_s * (1 + ends), samples_s=samples)  # fmt: skip
                resources = replace(
                    base.resources, binary=dice.choice(("b1", "b2", f"{impl}{n}")),
                    registers=dice.choice((32, 64)), spill_bytes=dice.choice((0, 0, 8)),
                )  # fmt: skip
                result.append(replace(
                    base, case=case, key=f"{impl}{n}", run=run.id, phase=phase, timing=timing,
                    resources=resources if backend == "triton" else None, default=is_default,
                    bits=dice.choice(("x", "x", "y", None)), seed=dice.choice((1, 1, 2)),
                    repeats=dice.choice((None, True, False)) if dice.random() < 0.2 else None,
                    same_as=dice.choice((None, None, config or None)),
                    checked_programs=dice.choice((None, None, 7)),
                    winner_s=1e-5 if impl == "other" and dice.random() < 0.5 else None,
                    flops=dice.choice((base.flops, 9 * base.bytes)),
                ))  # fmt: skip
    return run, result


def selected() -> Rows:
    for seed in range(400):
        dice = random.Random(seed)
        run, outcomes = drawn_run(dice)
        result = select(run, outcomes)
        yield f"{seed}: {sentence(result)}"
        if seed % 4:
            continue
        plain = replace(result, winner=None, fastest=None, default=None, default_failure=None,
                        baselines=(), baseline_failures=(), ties=(), duplicates=(),
                        unsteady=())  # fmt: skip
        yield f"  {text_of(plain)}"
        groups = members(result), result.duplicates, result.unsteady
        yield "  " + " ".join(str([r.key for r in group]) for group in groups)
        yield f"  {[(b.record.key, f'{b.ratio:.4f}', b.phase) for b in result.baselines]}"
        yield f"  {[(o.key, getattr(o, 'phase', o.__class__.__name__)) for o in ranking(outcomes)]}"
        records = [o for o in outcomes if isinstance(o, Record)]
        yield f"  {[r.key for r in representatives(run, records, ['rows1', 'split0'])]}"
        yield f"  {sorted((k[1], v.phase) for k, v in comparable_times(outcomes).items())}"
        yield f"  {[(k, r.key) for k, r in best_per_group(outcomes, ['num_warps']).items()]}"
        yield f"  {[same_bits(records[:n], records[n:]) for n in range(1, min(4, len(records)))]}"
        sources = {"rows": "code", "split": "code2"}
        for entry in entries_of(run, outcomes, sources, {"rows": {"num_warps": 1, "block_n": 64}}):
            yield f"  {text_of(replace(entry, at='', run=''))}"


# Searches


def points(dice: random.Random, many: int, impls: int = 2) -> list[Candidate]:
    """Return candidates in knob space with predictions."""
    result = []
    space_ = itertools.product(range(impls), (64, 128, 256), (1, 2, 4, 8), (2, 3, 4))
    for n, (impl, block, warps, stages) in enumerate(dice.sample(list(space_), many)):
        config = {"block": block, "warps": warps, "stages": stages}
        case = Case("toy", f"impl{impl}", "triton", config, {}, "bf16", "h200")
        predicted = dice.choice((1e-5, 1.1e-5, 2e-5, math.inf)) * (1 + 0.01 * n)
        result.append(Candidate(case, f"p{n:03}", None, None, predicted_s=predicted))  # type: ignore[arg-type]
    return result


def true_time(point: Candidate, dice: random.Random) -> float:
    c = point.case.config
    by = 1 + 0.1 * abs(math.log2(c["block"] / 128)) + 0.2 * abs(c["warps"] - 4) / 4
    return 1e-5 * by * (1.4 if point.case.impl == "impl1" else 1.0) * (1 + 0.002 * dice.random())


def searches() -> Rows:
    for seed, name in itertools.product((0, 3), ("exhaustive", "model", "random")):
        dice = random.Random(seed)
        every = points(dice, 60)
        one = search.search_of(search.Strategy(name), every, seed, predicts=seed == 3)
        ready: list[Candidate] = []
        for turn in range(12):
            ready += one.order(dice.choice((1, 2, 4)))
            for point in ready[-2:]:
                one.revise(
                    point, point.predicted_s * 1.1 if math.isfinite(point.predicted_s) else 1e-5
                )
            chosen = one.ask(ready)
            if chosen is None:
                break
            ready.remove(chosen)
            one.tell(chosen, None if turn % 5 == 4 else true_time(chosen, dice))
            chances = f"{one.chance_left(0.01):.3f} {one.chance_left(0.3):.3f}"
            yield f"{name} {seed} {turn}: {chosen.key} of {len(ready)}; {chances}"
        yield f"  {[p.key for p in one.order(100)]} {one.order(1)}"


def posteriors() -> Rows:
    for seed in range(6):
        dice = random.Random(seed)
        every = points(dice, 24, 1 + seed % 2)
        places = surrogate.places(every, surrogate.IMPL)
        steps = text_of(places.steps.tolist())
        yield f"{seed} {steps} {places.impl.tolist()} {places.shared_memory}"
        prior = surrogate.logs([p.predicted_s for p in every])
        yield f"  {text_of(prior.tolist())}"
        for many in (0, 1, 3, 4, 6, 9):
            seen = {i: math.log(true_time(every[i], dice)) for i in range(many)}
            fit = surrogate.Fit(surrogate.SHAPES, surrogate.FIRST)
            shapes = fit.likely(places, prior, seen)
            yield f"  {many} {text_of(shapes)}"
            found = surrogate.posterior(places, prior, seen, shapes[0])
            yield f"  {text_of(np.round(found.mean, 5).tolist())} {found.likelihood:.4f}"
            yield f"  {text_of(np.round(found.variance, 5).tolist())}"
            belief = surrogate.Belief(
                surrogate.predict_compiled(places, prior, seen, shapes[0]), found, list(seen)
            )
            yield f"  {text_of([round(g, 6) for g in belief.gain])}"
            yield f"  {text_of(np.round(belief.draw([0, 5, 7], 3), 4).tolist())}"
    yield text_of(surrogate.normal_cdf(np.array([-2.0, 0.0, 1.0])).tolist())


def budgets() -> Rows:
    for text in (
        "30s",
        "2m",
        "1h",
        "200",
        "0.5m",
        "0s",
        "0",
        "1.5",
        " 7 ",
        "2.0",
        "x",
        "1e3",
        "-1s",
        "9" * 400,
    ):
        try:
            yield f"{text[:9]}: {search.Budget.parse(text)}"
        except search.SearchError as error:
            yield f"{text[:9]}: {str(error)[:40]}"
    for seconds, configs in ((10.0, math.inf), (math.inf, 3.0), (40.0, 5.0)):
        budget = search.Budget(seconds, configs)
        yield text_of([budget.is_spent(s, n) for s in (9.99, 10.0, 40.0) for n in (2, 3, 5)])
        clock = first_pass.time
        for now in (100.0, 104.99, 105.0, 109.0, 124.9, 125.0, 139.0, 141.0):
            first_pass.time = SimpleNamespace(monotonic=lambda now=now: now)  # type: ignore[assignment]
            plan = first_pass.SearchPlan(budget=budget, start_s=100.0)
            sums = plan.left_s(), plan.libraries_s(), plan.is_spent(2), plan.is_spent(5)
            yield f"  {now} {text_of(sums)} {text_of(plan.share(4).budget)}"
        first_pass.time = clock


def designs() -> Rows:
    for name, device, count in itertools.product(
        ("softmax", "matmul", "copy", "rope"), ("h200", "a100"), (1, 12)
    ):
        spec = spec_of(name)
        for dtype in sorted(spec.tolerance)[:2]:
            extents = design.design(spec, dtype, find_device(device), count)
            yield f"{name} {device} {dtype}: {extents}"
    for extent in (
        0.3,
        1,
        1.5,
        7,
        15.4,
        15.6,
        16,
        17,
        31,
        63,
        63.9,
        64,
        65,
        71,
        72,
        73,
        127,
        1000,
        1536,
        8960,
        14336,
        70_000,
    ):
        yield f"{extent}: {design.round_extent(extent)}"
    yield text_of([design.halton(n, base) for n in (1, 2, 3, 7, 8, 100) for base in (2, 3, 5)])


def thinnings() -> Rows:
    spec = spec_of("softmax")
    impls = [i for i in spec.impls if i.backend == "triton"]
    for seed in range(30):
        dice = random.Random(seed)
        legal = []
        for n in range(dice.randrange(2, 14)):
            impl = dice.choice(impls)
            config = impl.default(find_device("h200").limits, "bf16", spec.bench[0])
            legal.append(
                Candidate(
                    Case("softmax", impl.name, "triton", {}, {}, "bf16", "h200"),
                    f"k{n}",
                    impl,
                    config,
                    default=n == 3,
                    predicted_s=dice.choice((1.0, 2.0, 2.0, 3.0)),
                )
            )
        for most in (0, 1, 3, 5, len(legal)):
            kept = space.thin(legal, most, (), ("k1",))
            yield f"{seed} {len(legal)} {most}: {[c.key for c in kept]}"


# Choices of launches


def entry(impl: str, fastest: bool, at: str, time_s: float, n: int) -> Entry:
    return Entry(
        "softmax",
        impl,
        {},
        {"M": 64, "N": n},
        "bf16",
        "h200",
        "",
        "",
        "",
        False,
        time_s,
        None,
        None,
        "",
        "",
        "",
        at,
        1,
        fastest=fastest,
    )


# stand in for `calibrations/impls`, which each day of measurements changes
ORDERS = [
    choice.MeasuredCase("softmax", {"M": m, "N": n}, dtype, impls.split())
    for m, n, dtype, impls in (
        (8192, 4096, "bf16", "rows clusters looped persistent cooperative split"),
        (2048, 32768, "bf16", "looped rows clusters cooperative split"),
        (1024, 131072, "bf16", "clusters cooperative looped split"),
        (32768, 1024, "bf16", "rows persistent clusters cooperative looped split"),
        (512, 262144, "bf16", "clusters cooperative looped split"),
        (8192, 4096, "fp32", "looped clusters rows persistent cooperative split"),
    )
]


def measured_cases(arch: str, kernel: str) -> list[choice.MeasuredCase]:
    return ORDERS if arch == "sm_90" else []


def orders() -> Rows:
    spec, device = spec_of("softmax"), find_device("h200")
    impls = [i for i in spec.impls if i.backend == "triton"]
    for seed in range(80):
        dice = random.Random(seed)
        sizes = {"M": dice.choice((64, 4096)), "N": dice.choice((1000, 4096))}
        some = []
        for impl in impls:
            config = impl.default(device.limits, "bf16", sizes)
            held = entry(
                impl.name,
                dice.random() < 0.4,
                f"2026-11-0{dice.randrange(1, 9)}",
                dice.choice((1e-5, 2e-5)),
                dice.choice((512, 4096)),
            )
            some.append(
                choice.LaunchChoice(
                    impl,
                    config,
                    "text",
                    held if dice.random() < 0.4 else None,
                    dice.choice((None, 1e-5, 1.1e-5, 3e-5)),
                )
            )
        of = find_device(dice.choice(("h200", "a100", "mi300x")))
        with (
            patch.object(choice, "measured_cases", measured_cases),
            patch.object(choice, "expected_launches", lambda problem: ()),
        ):
            found = choice.order(spec, some, of, "bf16", sizes)
        yield f"{seed} {sizes}: {[(c.impl.name, c.time_s) for c in found]} {found[0].text}"
    case = choice.MeasuredCase("softmax", {"M": 64, "N": 64}, "bf16", ["b", "a"])
    for m, n in ((64, 64), (64, 90), (64, 91), (32, 64), (45, 64), (46, 64), (45, 90)):
        sizes = {"M": m, "N": n}
        near = [choice._is_near(case, dtype, sizes) for dtype in ("bf16", "fp16")]
        yield f"{m} {n} {case.octaves(sizes):.4f} {near[0]} {near[1]}"


# Evaluations


def evaluations() -> Rows:
    for name, seed in itertools.product(("softmax", "matmul", "rope", "copy"), range(3)):
        spec = spec_of(name)
        hidden = hidden_sizes(spec, sorted(spec.tolerance)[0], seed)
        yield f"{name} {seed}: {hidden}"
        calls = calls_at(spec.check[:2], hidden[:2], seed)
        seeds = {s: n for n, s in enumerate(dict.fromkeys(c.seed for c in calls))}
        yield f"  {[(c.pairs, seeds[c.seed], c.hard) for c in calls]}"
    base = synthetic.measured(2e-5)
    for libraries in ({}, {"a": synthetic.measured(3e-5), "b": synthetic.measured(1e-5, seed=2)}):
        for bound in (0.0, 1e-5):
            times = EvaluatedTimes(base, bound, libraries)
            yield f"{text_of(times.plain())} {text_of(times.best_library)}"
    yield text_of(CheckCall.create({"N": 3}, 5).sizes)


TABLES: dict[str, Callable[[], Rows]] = {
    "selected": selected,
    "searches": searches,
    "posteriors": posteriors,
    "budgets": budgets,
    "designs": designs,
    "thinnings": thinnings,
    "orders": orders,
    "evaluations": evaluations,
}
