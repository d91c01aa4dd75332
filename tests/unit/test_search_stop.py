"""The default search stops when going on cannot pay, says so, and goes on where all is wanted."""

from __future__ import annotations

import itertools
import json
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from null_backend import ENVIRONMENT, Fate, Null
from nullside import LIBRARY, SPEC, Place

from workbench import catalog
from workbench.backend.protocol import Problem
from workbench.commands.problem import default_search, search_plan_of
from workbench.commands.report import draw
from workbench.commands.sweep import SweepOptions
from workbench.data.database import open_history
from workbench.data.record import Failure, Finding, Record, Run
from workbench.device.hardware import device_named
from workbench.measurement.candidate import Candidate
from workbench.spec import stages, threads, tile
from workbench.sweeps import Sweep
from workbench.tuner.engine import Engine, run
from workbench.tuner.first_pass import SearchPlan
from workbench.tuner.search import LARGEST, Fixed, ModelSearch, StopRule, Strategy
from workbench.tuner.space import Earlier, plan_sweep
from workbench.tuner.stopped import stop_of, stopped_search

pytestmark = pytest.mark.unit

KERNEL = f'''"""A kernel of two Impls with 180 configs, which nothing runs."""

from dataclasses import dataclass

from workbench.spec import Spec, Tensor, stages, threads, tile

{SPEC}

@dataclass(frozen=True)
class Tiles:
    block_m: int = tile(16, 256, default=16)
    block_n: int = tile(16, 64, default=16)
    num_warps: int = threads(1, 4, default=1)
    num_stages: int = stages(2, 3, default=2)


@toy.impl(Tiles)
def plain(x, *, config):
    raise NotImplementedError


@toy.impl(Tiles)
def second(x, *, config):
    raise NotImplementedError


{LIBRARY}'''
CONFIGS = 180
TILES = Sweep(vary=[tile], tune=[threads, stages])
RUN = Run(
    id="r",
    engine="sweep",
    name="tile_size",
    command="",
    started="2026-11-26T09:30:00+00:00",
    kernel="toy",
    sizes={"N": 1024},
    dtype="bf16",
    device="h200",
    predicted=False,
    vary=(),
    tune=(),
    impls={},
    ceilings={},
    environment=ENVIRONMENT,
)
STOP = SearchPlan(Strategy.MODEL, stop_rule=StopRule())
BEST = {"block_m": 64, "block_n": 32, "num_warps": 4, "num_stages": 3}


def time_s(candidate: Candidate) -> float:
    """A bowl around BEST; the second Impl is 1.8 times as fast, which nothing predicts."""
    knobs = candidate.case.config
    away = sum(math.log2(knobs[k] / BEST[k]) ** 2 for k in BEST if k in knobs)
    return 1e-4 * (1 + 0.1 * away) / (1.8 if candidate.case.impl == "second" else 1.0)


def fate(candidate: Candidate) -> Fate:
    return Fate(time_s(candidate))


@pytest.fixture
def plan(tmp_path):
    return planned(tmp_path)


def planned(folder):
    kernel = folder / "toy.py"
    kernel.write_text(KERNEL)
    problem = Problem(str(kernel), catalog.spec_of(str(kernel)), {"N": 1024}, "bf16")
    impls = [i for i in problem.spec.impls if i.backend == "triton"]
    return plan_sweep(RUN, problem, TILES, impls, device_named("h200"), "p1")


@pytest.fixture
def place(tmp_path):
    result = Place(tmp_path)
    result.kernel.write_text(KERNEL)
    return result


def first_pass(result):
    return [o for o in result if isinstance(o, Record) and o.phase == "first_pass"]


# The chance


KNOBS = list(itertools.product(("plain", "split"), (16, 32, 64), (16, 32), (2, 4)))


@st.composite
def searches(draw):
    """Points with predictions, some of them compiled, and some of those timed or failed."""
    knobs = draw(st.lists(st.sampled_from(KNOBS), min_size=1, max_size=24, unique=True))
    points = [
        replace(
            Candidate.create(impl, {"block_m": m, "block_n": n, "num_warps": w}),
            key=f"{impl}-{m}-{n}-{w}",
            predicted_s=draw(st.one_of(st.floats(1e-5, 1e-4), st.just(math.inf))),
        )
        for impl, m, n, w in knobs
    ]
    fates = draw(st.lists(
        st.one_of(st.sampled_from(["untried", "failed"]), st.floats(1e-5, 1e-4)),
        min_size=len(points), max_size=len(points),
    ))  # fmt: skip
    return points, fates


def told(points, fates, order=None):
    """The search of these points, given in this order, after all that happened to them."""
    search = ModelSearch([points[i] for i in order or range(len(points))], 0)
    for point, happened in zip(points, fates, strict=True):
        if happened == "untried":
            continue
        search.revise(point, point.predicted_s)
        search.tell(point, None if happened == "failed" else happened)
    return search


@given(space=searches(), data=st.data())
def test_the_chance_is_a_probability_whatever_the_order_of_the_points(space, data):
    points, fates = space
    chance = told(points, fates).chance_left()
    assert 0 <= chance <= 1
    if "untried" not in fates:
        assert chance == 0
    other = told(points, fates, data.draw(st.permutations(range(len(points)))))
    assert other.chance_left() == pytest.approx(chance, abs=0.01)


@given(space=searches(), shares=st.lists(st.floats(0.001, 0.5), min_size=2, max_size=2))
def test_a_larger_gain_is_less_likely(space, shares):
    search = told(*space)
    low, high = sorted(shares)
    assert search.chance_left(high) <= search.chance_left(low) + 0.01


@given(space=searches())
def test_nothing_is_known_of_an_impl_that_was_not_tried(space):
    points, fates = space
    tried = {p.case.impl for p, f in zip(points, fates, strict=True) if f != "untried"}
    timed = any(isinstance(f, float) for f in fates)
    if "untried" in fates and (tried != {p.case.impl for p in points} or not timed):
        assert told(points, fates).chance_left() == 1


def line_of_points(n, last_s=1e-5):
    """Points whose predictions grow slowly along a knob, but for the last one's."""
    times = [1e-5 * (1 + m / n) for m in range(n - 1)] + [last_s]
    return [
        replace(Candidate.create("tiles", {"block_m": m}), key=f"k{m:04d}", predicted_s=seconds)
        for m, seconds in enumerate(times)
    ]


def test_what_the_model_puts_far_behind_is_left_out_and_what_it_puts_before_is_not():
    """All but one are as predicted. Of that one the chance is what its prediction says."""
    for last_s, low, high in ((3e-5, 0.0, 0.05), (0.5e-5, 0.9, 1.0)):
        points = line_of_points(60, last_s)
        fates = [p.predicted_s for p in points[:-1]] + ["untried"]
        assert low <= told(points, fates).chance_left() <= high


def test_beyond_the_surrogate_and_for_other_strategies_nothing_is_known():
    points = line_of_points(LARGEST + 1)
    assert told(points[:3], [1e-5, 1e-5, "untried"]).chance_left() < 1
    many = ModelSearch(points, 0)
    for point in points[:3]:
        many.revise(point, 1e-5)
        many.tell(point, 1e-5)
    assert many.chance_left() == 1
    assert Fixed(points).chance_left(0.01) == 1


# The rule


def test_the_search_stops_early_with_the_best_and_names_what_it_left_out(plan):
    assert len(plan.candidates) == CONFIGS
    null = Null(fate)
    result = list(run(plan, null, Earlier(), STOP))
    measured = first_pass(result)
    assert StopRule.least <= len(measured) < CONFIGS * 0.8
    best = min(plan.candidates, key=time_s)
    assert best.key in {r.key for r in result if isinstance(r, Record) and r.phase == "final"}
    assert {r.case.impl for r in measured} == {"plain", "second"}
    assert any(r.default for r in measured)
    (finding,) = [f for f in result if isinstance(f, Finding)]
    stop = stop_of(finding)
    assert (stop.tries, stop.total) == (len(measured), CONFIGS) and stop.chance <= StopRule.chance
    assert f"{len(measured)} of {CONFIGS} configs tried" in finding.sentence
    assert "--search exhaustive" in finding.sentence
    compiled = [name for what, name in null.requests if what == "compile"]
    assert len(compiled) < CONFIGS, "what is in the pool beyond need is not compiled"


def test_times_that_the_search_refutes_are_measured_further(plan):
    """Where neighbours differ at random more is measured than where they are alike."""
    source = random.Random(1)
    times = {c.key: 1e-4 * math.exp(source.gauss(0, 0.1)) for c in plan.candidates}
    at_random = run(plan, Null(lambda c: Fate(times.get(c.key, 1e-4))), Earlier(), STOP)
    assert len(first_pass(at_random)) > len(first_pass(run(plan, Null(fate), Earlier(), STOP)))


@settings(deadline=None, max_examples=5)
@given(seed=st.integers(0, 10**6), least=st.integers(1, 30))
def test_the_rule_never_stops_before_every_impl_and_the_default_were_tried(
    tmp_path_factory, seed, least
):
    folder = tmp_path_factory.mktemp("rule")
    (folder / "toy.py").write_text(KERNEL)
    problem = Problem(
        str(folder / "toy.py"), catalog.spec_of(str(folder / "toy.py")), {"N": 1024}, "bf16"
    )
    impls = [i for i in problem.spec.impls if i.backend == "triton"]
    created = plan_sweep(RUN, problem, TILES, impls, device_named("h200"), "p1")
    source = random.Random(seed)
    wrong = {c.key for c in created.candidates if source.random() < 0.2}
    null = Null(lambda c: Fate(time_s(c), wrong="NaN" if c.key in wrong else None))
    result = list(
        run(created, null, Earlier(), replace(STOP, stop_rule=StopRule(0.999, least=least)))
    )
    tried = {o.key for o in result if isinstance(o, (Record, Failure))}
    assert {c.case.impl for c in created.candidates if c.key in tried} == {"plain", "second"}
    assert all(c.key in tried for c in created.candidates if c.default)
    assert len(first_pass(result)) >= min(least, CONFIGS) - len(wrong)


def test_the_previous_best_is_tried_however_slow_it_is(plan):
    worst = max(plan.candidates, key=time_s)
    run_ = replace(plan.run, previous_best={worst.case.impl: dict(worst.case.config)})
    result = first_pass(run(replace(plan, run=run_), Null(fate), Earlier(), STOP))
    assert worst.key in {r.key for r in result} and len(result) < CONFIGS


def test_a_duplicate_whose_check_was_lost_does_not_keep_a_search_from_its_end(plan):
    """The previous best, a duplicate of the default: each run must try it, and once did not end."""
    default = next(c for c in plan.candidates if c.default)
    twin = min((c for c in plan.candidates if c.case.impl == default.case.impl), key=time_s)
    run_ = replace(plan.run, previous_best={twin.case.impl: dict(twin.case.config)})

    def of(candidate):
        binary = "one" if candidate.key in (default.key, twin.key) else None
        lost = ("crash",) if candidate.key == twin.key else ()
        return Fate(time_s(candidate), binary=binary, lost=lost)

    null = Null(of)
    result = first_pass(run(replace(plan, run=run_), null, Earlier(), STOP))
    assert ("time again", twin.case.label) in null.requests
    assert twin.key in {r.key for r in result} and len(result) < CONFIGS


def test_a_process_that_was_lost_is_tried_once_more_before_the_halving(plan):
    default = next(c.key for c in plan.candidates if c.default)
    null = Null(lambda c: Fate(time_s(c), lost=("crash",) if c.key == default else ()))
    result = list(run(plan, null, Earlier(), STOP))
    assert default in {r.key for r in first_pass(result)}
    assert any(isinstance(f, Finding) for f in result)


# What is searched by default


def test_small_spaces_are_measured_whole_and_predicted_ones_never_stop(plan):
    small = replace(plan, candidates=plan.candidates[: StopRule.least])
    assert default_search(small, Null()) == replace(SearchPlan(), start_s=pytest.approx(0, abs=1e9))
    assert default_search(plan, Null()).stop_rule == StopRule()
    assert default_search(plan, Null(predicts=True)).stop_rule is None
    bits = replace(plan, run=replace(plan.run, same_bits_as="default"))
    assert default_search(bits, Null()).stop_rule is None


@pytest.mark.parametrize(
    "words", [{"search": "model"}, {"search": "exhaustive"}, {"budget": "200"}]
)
def test_a_search_that_was_requested_is_not_cut_short(words):
    assert search_plan_of(SweepOptions("tile_size", "toy", **words), 0.0).stop_rule is None


# From the command to the page


@pytest.mark.nightly
def test_the_console_the_page_and_the_page_redrawn_say_what_was_left_out(place, tmp_path):
    outcomes = place.sweep(fate)
    tried = len(first_pass(outcomes))
    assert tried < CONFIGS
    words = f"{tried} of {CONFIGS} configs tried: the chance that one of the others is over 1 %"
    (said,) = place.session.sentences
    assert words in said
    assert words in spaced(place.session.page)
    again = draw("sweep", place.session.run.id, tmp_path / "again.html", place.url)
    assert words in spaced(again)
    from_file = draw("sweep", str(place.session.results[0].events), tmp_path / "file.html", None)
    assert words in spaced(from_file)


def spaced(page):
    """The text of a page, whose numbers do not break from their units, with plain spaces."""
    return page.read_text().replace("\xa0", " ")


@pytest.mark.nightly
def test_a_second_command_is_finished_and_exhaustive_measures_the_rest(place):
    outcomes = place.sweep(fate)
    tried, said = len(first_pass(outcomes)), place.session.sentences
    place.sweep(fate)
    assert place.null.requests == [] and place.session.sentences == said
    outcomes = place.sweep(fate, search="exhaustive")
    assert len(place.labels("time")) == CONFIGS - tried
    assert len(first_pass(outcomes)) == CONFIGS
    assert "configs tried" not in place.session.sentences[0]
    place.sweep(fate)
    assert place.null.requests == [], "all is known"


def test_a_search_that_was_interrupted_goes_on_and_stops(place):
    count = iter(range(10**6))
    interrupted = lambda c: Fate(  # noqa: E731
        time_s(c), raises=KeyboardInterrupt() if next(count) > 120 else None
    )
    place.sweep(interrupted)
    known = {o.key for o in place.stored()}
    place.sweep(fate)
    with open_history(place.url) as history:
        (finding,) = history.findings(place.session.run.id)
    assert stop_of(finding).tries == len(first_pass(place.session.outcomes))
    assert known <= {o.key for o in place.session.outcomes}


@pytest.mark.nightly
def test_the_document_holds_the_finding(place, tmp_path):
    place.sweep(fate, json=tmp_path / "out.json")
    (stored,) = json.loads((tmp_path / "out.json").read_text())["runs"]
    (finding,) = stored["findings"]
    assert finding["word"] == "stopped" and finding["experiment"] == "search"


@given(tried=st.integers(1, 999), chance=st.floats(0, 0.05))
def test_a_stopped_search_is_read_from_its_finding(tried, chance):
    class Planned:
        run, candidates = RUN, range(1000)

    finding = stopped_search(Planned, tried, chance, 0.01)
    stop = stop_of(finding)
    assert (stop.tries, stop.total, stop.chance) == (tried, 1000, chance)
    assert stop_of(replace(finding, experiment="other")) is None


def test_a_plan_of_other_candidates_is_not_finished(plan):
    """A finding counts for the space that it was made for."""
    result = [o for o in run(plan, Null(fate), Earlier(), STOP)]
    known = {o.key: o for o in first_pass(result)}
    finals = {o.key: o for o in result if isinstance(o, Record) and o.phase == "final"}
    assert Engine(plan, Null(fate), Earlier(known, finals, chance_left=0.02), STOP).is_finished
    assert not Engine(plan, Null(fate), Earlier(known, finals), STOP).is_finished
    whole = SearchPlan()
    assert not Engine(plan, Null(fate), Earlier(known, finals, chance_left=0.02), whole).is_finished
