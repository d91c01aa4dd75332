"""Searches: one interface, and replayed on exhaustive tables of one H200."""

from __future__ import annotations

import importlib
import math
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.search import Replay, Shown, budgets, fresh, table, tables
from workbench.data.stats import quantile
from workbench.measurement.candidate import Candidate
from workbench.tuner.search import LARGEST, Budget, SearchError, Strategy, search_of

pytestmark = pytest.mark.unit

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PREDICTED = st.one_of(st.floats(1e-6, 1e-3), st.just(math.inf))
SPACES = st.lists(
    st.tuples(
        st.sampled_from(["tiles", "split"]), st.sampled_from([16, 32, 64]), st.sampled_from([2, 4])
    ),
    min_size=1, max_size=12, unique=True,
)  # fmt: skip


def point(key, impl, knobs, predicted_s):
    return replace(Candidate.create(impl, dict(knobs)), key=key, predicted_s=predicted_s)


KINDS = pytest.mark.parametrize("strategy", Strategy)


@st.composite
def points(draw):
    return [
        point(f"k{i}", impl, (("block_m", m), ("num_warps", w)), draw(PREDICTED))
        for i, (impl, m, w) in enumerate(draw(SPACES))
    ]


@KINDS
@given(given_points=points(), data=st.data())
def test_every_point_is_compiled_once_and_measured_once(strategy, given_points, data):
    """Whatever fails, is a duplicate, or is revised on the way."""
    search = search_of(strategy, given_points, seed=1)
    ordered, wanted, ready = [], [], []
    while new := search.order(data.draw(st.integers(1, 4))):
        ordered += new
        for point in new:
            if data.draw(st.booleans()):
                search.tell(point, None)  # did not compile
                continue
            search.revise(point, data.draw(PREDICTED))
            ready.append(point)
        if (point := search.ask(ready)) is not None:
            assert point in ready
            ready.remove(point)
            wanted.append(point)
            search.tell(point, data.draw(st.one_of(st.none(), st.floats(1e-6, 1e-3))))
    assert sorted(p.key for p in ordered) == sorted(p.key for p in given_points)
    assert len(wanted) == len({p.key for p in wanted})
    assert search.ask([]) is None
    assert search.order(1) == []


@KINDS
def test_equal_seeds_give_equal_searches(strategy):
    rows = table("rms_norm", "M=8192 N=8192")

    def measured():
        return Replay(rows, strategy, Shown.FULL, seed=5).regrets(range(1, 12))

    assert measured() == measured()


def test_exhaustive_goes_by_the_prediction_and_random_by_the_seed():
    space = [point(f"k{i}", "tiles", (("block_m", i),), 1e-6 * (i * 7 % 20)) for i in range(20)]
    by_model = search_of(Strategy.EXHAUSTIVE, space).order(20)
    assert [p.predicted_s for p in by_model] == sorted(p.predicted_s for p in space)
    orders = {
        tuple(p.key for p in search_of(Strategy.RANDOM, space, seed).order(20)) for seed in range(8)
    }
    assert len(orders) == 8


@pytest.mark.parametrize("seed", range(5))
def test_the_model_turns_from_a_prediction_that_measuring_refutes(seed):
    """Predicted the faster the larger the tile is, measured the other way round."""
    space = [
        point(f"k{m}-{n}", "tiles", (("block_m", m), ("block_n", n)), 1e-4 * 0.9 ** (m + n))
        for m in range(6)
        for n in range(6)
    ]
    search = search_of(Strategy.MODEL, space, seed)
    ready = search.order(len(space))
    wanted = []
    while len(wanted) < 18:  # by the prediction it would be the last of 36
        wanted.append(search.ask(ready))
        ready.remove(wanted[-1])
        search.tell(wanted[-1], 1e-4 * 1.1 ** sum(wanted[-1].case.config.values()))
    assert wanted[0].key == "k5-5"
    assert "k0-0" in [p.key for p in wanted]


def test_what_compiling_shows_is_carried_to_neighbours():
    """All are guessed alike; the small ones spill and the ninth does not."""
    space = [point(f"k{m}", "tiles", (("block_m", m),), 1e-5) for m in range(12)]
    search = search_of(Strategy.MODEL, space)
    for m, seconds in ((0, 2e-4), (1, 2e-4), (2, 2e-4), (3, 2e-4), (8, 1e-5)):
        search.revise(space[m], seconds)
        search.tell(space[m], seconds)
    assert {p.key for p in search.order(3)} <= {"k6", "k7", "k9", "k10", "k11"}


def test_the_top_config_of_predictions_is_among_the_first_that_are_tried(monkeypatch):
    """As docs/commands.md says. Predictions held down to three times the best, as measured times
    are, led the search to configs of ten times the best first."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    first = importlib.import_module("first_recommendation")
    known = [
        first.known_after(first.candidates(kernel, rows), rows, Strategy.MODEL)
        for (kernel, _), rows in tables().items()
    ]
    assert len(known) == 17 and max(known) <= 20 and sum(n <= 16 for n in known) >= 16


def test_a_space_larger_than_the_surrogate_is_still_gone_through():
    space = [point(f"k{i}", "tiles", (("block_m", i),), 1e-6 * (i + 1)) for i in range(LARGEST + 9)]
    search = search_of(Strategy.MODEL, space)
    search.order(LARGEST)
    tail = search.order(100)
    assert [p.key for p in tail] == [f"k{i}" for i in range(LARGEST, LARGEST + 9)]
    assert search.ask(tail) == tail[0]
    search.tell(tail[0], 1e-6)
    assert search.ask(tail[1:]) == tail[1]


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("30s", Budget(seconds=30)), ("2m", Budget(seconds=120)), ("1.5h", Budget(seconds=5400)),
        ("0.5s", Budget(seconds=0.5)), (" 90s ", Budget(seconds=90)), ("200", Budget(configs=200)),
        ("2.0", Budget(configs=2)),
    ],
)  # fmt: skip
def test_a_budget_is_a_time_or_a_number(text, budget):
    assert Budget.parse(text) == budget


@pytest.mark.parametrize("text", ["", "0", "0s", "-1", "2.5", "1d", "s", "1e3s", "nan", "30 s x"])
def test_what_is_no_budget_is_one_sentence(text):
    with pytest.raises(SearchError, match="cannot be read; write seconds, minutes or hours"):
        Budget.parse(text)


@given(most=st.integers(1, 99), measured=st.integers(0, 99), elapsed=st.floats(0, 99))
def test_a_budget_is_spent_when_it_is_reached(most, measured, elapsed):
    assert Budget(configs=most).is_spent(1e9, measured) == (measured >= most)
    assert Budget(seconds=most).is_spent(elapsed, 10**9) == (elapsed >= most)
    assert not Budget().is_spent(elapsed, measured)


# The ten seeds differ in noise and ties alone, for the predictions are fixed: matmul, where a
# replay takes half a second, has two of them here and all ten in `benchmarks/search.py`.
SEEDS = {"matmul": range(100, 102)}


@pytest.mark.nightly
def test_a_quarter_of_the_measurements_finds_the_best():
    """The model's constants and the search's were chosen with most of these tables in view. Of the
    fresh ones, for which only the whole is judged, `transpose` is 3 % off: the model orders it no
    better than chance."""
    regrets = {
        (kernel, sizes): [
            Replay(rows, Strategy.MODEL, Shown.FULL, seed).regrets(budgets(rows, [0.25]))[0]
            for seed in SEEDS.get(kernel, range(100, 110))
        ]
        for (kernel, sizes), rows in tables().items()
    }
    assert len(regrets) == 17 and len(fresh()) == 3
    for one, result in regrets.items():
        if one not in fresh():
            assert quantile(result, 0.5) <= 0.01, one
            assert quantile(result, 0.9) < 0.02, one
    # each kernel counts alike, and of each table as many seeds
    by_kernel = defaultdict(list)
    for (kernel, _), result in regrets.items():
        by_kernel[kernel] += result
    means = {kernel: sum(result) / len(result) for kernel, result in by_kernel.items()}
    assert sum(means.values()) / len(means) < 0.01
    assert sum(mean < 0.01 for mean in means.values()) >= 5
