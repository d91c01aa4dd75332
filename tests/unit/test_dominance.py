"""Configs by counted quantities: the front, and what a sweep without times says of it."""

from dataclasses import replace

import pytest
import synthetic
from hypothesis import given
from hypothesis import strategies as st

from workbench.data.dominance import (
    QUANTITIES,
    counts_of,
    dominates,
    first_of,
    front_of,
    rounded_counts,
)
from workbench.data.record import BufferCounts, CountedTraffic, Failure, Record
from workbench.data.selection import select
from workbench.reports.selection_sentence import sentence

RUN, OUTCOMES = synthetic.matmul()
SCREENS = [o for o in OUTCOMES if isinstance(o, Record) and o.phase == "first_pass"]
PREDICTED = replace(RUN, predicted=True)


def traffic(sectors=100, accesses=0, rounds=0, barriers=0, dispatches=1, edges=0):
    buffers = (BufferCounts("x", 0, 0, 0, 0, sectors),)
    return CountedTraffic(
        {"M": 8}, buffers, dispatches, 32, 1, 0, 0, 0, barriers, accesses, rounds, edges
    )


def emulated(tile, impl="tiled", default=False, stage="measure", **counts):
    """An outcome without a time: the peak of its dtype is unknown."""
    case = replace(SCREENS[0].case, impl=impl, config={"tile": tile}, backend="metal")
    return Failure(
        case, f"{impl}{tile}", "run", "now", stage, "the bf16 peak is unknown", default=default,
        traffic=traffic(**counts),
    )  # fmt: skip


def test_each_quantity_alone_dominates():
    named = ("sectors", "accesses", "rounds", "barriers", "dispatches", "edges")
    plain = dict.fromkeys(named, 100)
    one = emulated(8, **plain)
    assert dict(counts_of(one)) == dict.fromkeys(QUANTITIES, 100)
    for name in named:
        less = emulated(16, **{**plain, name: 90})
        assert dominates(less, one) and not dominates(one, less), name
        assert front_of([one, less]) == [less]


def test_a_trade_and_another_kernel_dominate_nothing():
    one, other = emulated(8, sectors=100, barriers=50), emulated(16, sectors=50, barriers=100)
    assert front_of([one, other]) == [one, other]
    foreign = emulated(8, impl="simdgroup", sectors=10, barriers=10)
    assert front_of([one, foreign]) == [one, foreign]
    assert first_of([one, other, foreign]) is foreign


def test_counts_that_agree_in_two_digits_are_equal():
    """They are carried over from a smaller size: 1014 and 1003 sectors are no difference."""
    one, other = emulated(8, sectors=1014), emulated(16, sectors=1003, default=True)
    assert rounded_counts(one) == rounded_counts(other) and front_of([one, other]) == [one, other]
    assert first_of([one, other]) is other  # of equals the default


@given(st.lists(st.tuples(*[st.integers(0, 999)] * 4), min_size=1, max_size=8))
def test_the_front_is_not_empty_and_each_other_config_is_dominated_by_one_of_it(drawn):
    names = ("sectors", "accesses", "rounds", "barriers")
    every = [
        emulated(n, **dict(zip(names, each, strict=True)))
        for n, each in enumerate(drawn, 1)
    ]  # fmt: skip
    front = front_of(every)
    assert front
    for other in every:
        assert other in front or any(dominates(one, other) for one in front)


def test_a_sweep_without_any_time_has_an_answer():
    every = [
        emulated(8, sectors=400, barriers=10, default=True),
        emulated(16, sectors=200, barriers=10),
        emulated(32, sectors=100, barriers=20),
        emulated(64, sectors=1, stage="check"),  # a wrong result is on no front
    ]
    run = replace(PREDICTED, impls={})
    result = select(run, [replace(o, case=replace(o.case, sizes=run.sizes)) for o in every])
    assert result.winner is None and len(result.front) == 2 and result.emulated_configs == 3
    assert sentence(result) == (
        "Begin with tile 32: 3.2 kB in sectors, no predicted time (the bf16 peak is unknown); 2 "
        "of 3 configs are on the Pareto front of the counts: this one, tile 16; tile 16 dominates "
        "the default."
    )


def test_another_kernel_that_moves_more_is_named():
    every = [emulated(8, sectors=100), emulated(8, impl="online", sectors=150)]
    run = replace(PREDICTED, impls={})
    result = select(run, [replace(o, case=replace(o.case, sizes=run.sizes)) for o in every])
    assert "; online moves 1.5x as many bytes or more" in sentence(result)


def test_measured_times_have_no_front():
    records = [replace(r, traffic=traffic()) for r in SCREENS[:3]]
    assert select(RUN, records).front == ()


@pytest.mark.parametrize("records", [[], SCREENS[:2]])
def test_what_was_not_counted_has_no_front(records):
    assert front_of(records) == [] and first_of([]) is None
