"""The smallest portfolio, against brute force."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.tuner.portfolio import PortfolioError, portfolio

pytestmark = pytest.mark.unit

KEYS = "abcdefg"
SECONDS = st.one_of(st.floats(1.0, 1.1), st.just(math.inf), st.just(math.nan))
TIMES = st.dictionaries(
    st.sampled_from(["s1", "s2", "s3", "s4", "s5"]),
    st.dictionaries(st.sampled_from(KEYS), SECONDS, min_size=1).filter(
        lambda its: any(math.isfinite(t) for t in its.values())
    ),
    min_size=1,
)


def ratios(times, members):
    """By size, the best of the members over the best of all; infinite where none runs."""
    for its in times.values():
        ran = {k: t for k, t in its.items() if math.isfinite(t)}
        mine = [t for k, t in ran.items() if k in members]
        yield min(mine, default=math.inf) / min(ran.values())


def smallest(times, within):
    """Number of members and least sum of the logarithms of ratios, of all subsets."""
    for n in range(1, len(KEYS) + 1):
        fits = [list(ratios(times, c)) for c in combinations(KEYS, n)]
        sums = [sum(map(math.log, r)) for r in fits if max(r) <= 1 + within]
        if sums:
            return n, min(sums)
    raise AssertionError("all configs together serve every size")


@given(TIMES, st.sampled_from([0.0, 0.01, 0.03]))
def test_no_smaller_and_no_better_set_serves_all_sizes(times, within):
    result = portfolio(times, within)
    n, least = smallest(times, within)
    assert result.exact
    assert len(result.members) == n
    assert math.log(result.geomean_ratio) * len(times) == pytest.approx(least, abs=1e-9)


@given(TIMES)
def test_each_size_is_served_by_its_fastest_member(times):
    result = portfolio(times)
    assert result.served.keys() == times.keys()
    for (size, served), ratio in zip(
        ((s, result.served[s]) for s in times), ratios(times, result.members), strict=True
    ):
        assert served.member in result.members
        assert served.ratio == pytest.approx(ratio)
        assert 1 <= served.ratio <= 1 + result.within
        best = min(t for t in times[size].values() if math.isfinite(t))
        assert times[size][served.member] == pytest.approx(served.ratio * best)


@given(TIMES, st.randoms(use_true_random=False))
def test_the_order_of_the_input_does_not_matter(times, shuffle):
    def shuffled(mapping):
        return dict(shuffle.sample(list(mapping.items()), len(mapping)))

    again = portfolio(shuffled({s: shuffled(its) for s, its in times.items()}))
    assert again.members == portfolio(times).members


@given(TIMES, st.integers(0, 3))
def test_a_search_cut_short_still_serves_and_claims_no_more_than_it_proved(times, most_nodes):
    result = portfolio(times, most_nodes=most_nodes)
    assert max(ratios(times, result.members)) <= 1.03
    n, _ = smallest(times, 0.03)
    assert len(result.members) == n if result.exact else len(result.members) >= n


def test_greedy_takes_three_where_two_do_and_says_that_it_is_not_exact():
    """Six sizes: two configs serve three each; a third serves the first two of both."""
    serves = {"odd": {0, 1, 2}, "even": {3, 4, 5}, "trap": {0, 1, 3, 4}}
    times = {f"s{i}": {k: 1.0 if i in its else 2.0 for k, its in serves.items()} for i in range(6)}
    cut, full = portfolio(times, most_nodes=0), portfolio(times)
    assert (len(cut.members), cut.exact) == (3, False)
    assert (full.members, full.exact) == (("even", "odd"), True)


def test_without_sizes_or_without_times_there_is_nothing_to_serve():
    with pytest.raises(PortfolioError, match="no sizes"):
        portfolio({})
    with pytest.raises(PortfolioError, match="s2"):
        portfolio({"s1": {"a": 1.0}, "s2": {"a": math.inf}})
