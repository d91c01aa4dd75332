"""The race: who is surely slower goes, who stays gets more time, and nobody loses a window."""

import random

import pytest
from fake_gpu import FakeGpu, FakeVariant, Weather
from hypothesis import given
from hypothesis import strategies as st

from workbench.measurement.halving import halve, survivors
from workbench.measurement.protocol import Protocol
from workbench.measurement.rounds import Window

RULES = Protocol()


def halved(seed, times, keep=4, weather=None):
    gpu = FakeGpu(seed, weather or Weather.wait_idle(noise=0.002))
    return halve({i: FakeVariant(gpu, t) for i, t in enumerate(times)}, RULES, keep)


@given(count=st.integers(0, 40), keep=st.integers(1, 8), seed=st.integers(0, 99))
def test_everybody_runs_and_the_fastest_runs_longest(count, keep, seed):
    times = [1e-4 * (1 + 0.05 * i) for i in range(count)]
    random.Random(seed).shuffle(times)
    windows = halved(seed, times, keep)
    assert set(windows) == set(range(count))
    assert all(len(w) >= RULES.halving_turns for w in windows.values())
    if count:
        fastest = min(range(count), key=times.__getitem__)
        assert len(windows[fastest]) == max(map(len, windows.values()))
    turns = RULES.halving_turns
    stages = {turns * (2**stage - 1) for stage in range(1, 8)}  # 2, then 4 more, then 8 more
    assert {len(w) for w in windows.values()} <= stages
    if count > keep:
        longest = max(map(len, windows.values()))
        assert sum(len(w) == longest for w in windows.values()) <= max(keep, count // 2)


@pytest.mark.parametrize("seed", range(10))
def test_the_best_of_many_survives_a_wandering_clock(seed):
    times = [1e-4 * (1 + 0.01 * i) for i in range(32)]
    windows = halved(seed, times, 8, Weather())
    longest = max(map(len, windows.values()))
    assert len(windows[0]) == longest


def test_whoever_is_wholly_slower_goes_though_there_is_room():
    def taken(middle):
        return [Window(tuple(middle * (1 + 0.001 * i) for i in range(9)))] * 4

    windows = {"a": taken(1.0), "b": taken(1.002), "c": taken(1.5)}
    assert survivors(["c", "b", "a"], windows, 3) == ["b", "a"]


def test_each_stage_takes_twice_the_turns_of_the_one_before():
    windows = halved(0, [1e-4 * (1 + 0.3 * i) for i in range(16)], keep=2)
    taken = sorted((len(w) for w in windows.values()), reverse=True)
    assert taken[0] == max(taken) > RULES.halving_turns
    assert len(windows[0]) == taken[0] in (2 + 4, 2 + 4 + 8, 2 + 4 + 8 + 16)


def test_the_order_of_a_turn_is_the_reverse_of_the_one_before():
    order = []

    class Noted(FakeVariant):
        def begin(self, seconds, least=1):
            order.append(self.name)
            return super().begin(seconds, least)

    gpu = FakeGpu(1, Weather.wait_idle(noise=0.002))
    variants = {name: Noted(gpu, 1e-4) for name in "abc"}
    for name, variant in variants.items():
        variant.name = name
    halve(variants, RULES, keep=3)
    assert order == list("abccba")
