"""The time of one warp's instructions: what waits and what overlaps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.device.warp_timeline import (
    BARRIER,
    COMMIT,
    COPY,
    DRAIN,
    LOAD,
    OTHER,
    IssuedCode,
    WarpLatencies,
)

MEMORY, CACHE = 800.0, 300.0
LATENCIES = WarpLatencies(MEMORY, CACHE)
NONE = 7  # the number of no barrier


def control(stall=1, result=NONE, read=NONE, waits=()):
    return stall | 1 << 4 | result << 5 | read << 8 | sum(1 << b for b in waits) << 11


def cycles(kinds, controls, *, sites=(), pending=(), fresh=None, in_loop=False):
    code = IssuedCode(kinds, tuple(controls), tuple(sites), tuple(pending))
    return code.cycles(LATENCIES, fresh or {}, in_loop=in_loop)


@given(count=st.integers(1, 6), stall=st.integers(1, 15))
def test_loads_that_nothing_waits_for_overlap_and_others_add_up(count, stall):
    apart = [control(stall, result=n) for n in range(count)]
    last = control(waits=range(count))
    together = cycles(LOAD * count + OTHER, [*apart, last], sites=[1] * count)
    assert together == pytest.approx((count - 1) * stall + MEMORY + 1)
    pairs = [control(stall, result=0), control(waits=[0])] * count
    in_turn = cycles((LOAD + OTHER) * count, pairs, sites=[1] * count)
    assert in_turn == pytest.approx(count * (MEMORY + 1))


@given(share=st.floats(0, 1))
def test_a_load_takes_between_the_cache_and_memory(share):
    taken = cycles(
        LOAD + OTHER, [control(result=2), control(waits=[2])], sites=[5], fresh={5: share}
    )
    assert taken == pytest.approx(CACHE + share * (MEMORY - CACHE) + 1)


def test_a_loop_counts_one_trip_of_many():
    body = [control(result=0), control(waits=[0])]
    once = cycles(LOAD + OTHER, body, sites=[1])
    assert cycles(LOAD + OTHER, body, sites=[1], in_loop=True) == pytest.approx(once)
    ahead = [control(waits=[0]), control(result=0)]  # the trip before has begun the load
    assert cycles(OTHER + LOAD, ahead, sites=[1], in_loop=True) == pytest.approx(MEMORY + 1)


def test_groups_of_copies_are_waited_for_when_they_are_drained():
    words = [control()] * 5
    kinds = COPY + COMMIT + COPY + COMMIT + DRAIN
    all_of_them = cycles(kinds, words, sites=[1, 1], pending=[0], in_loop=True)
    all_but_one = cycles(kinds, words, sites=[1, 1], pending=[1], in_loop=True)
    assert all_of_them > MEMORY > all_but_one / 1.01


@given(st.lists(st.integers(1, 15), min_size=1, max_size=30))
def test_stalls_and_barriers_of_the_program_add_up(stalls):
    words = [control(stall) for stall in stalls]
    assert cycles(OTHER * len(stalls), words) == sum(stalls)
    more = cycles(BARRIER + OTHER * (len(stalls) - 1), words)
    assert more == sum(stalls) + LATENCIES.barrier
