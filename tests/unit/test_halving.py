"""The race: who is surely slower goes, who stays gets more time, and nobody loses a window."""

import random

import pytest
from fake_gpu import FakeArm, FakeGpu, Weather
from hypothesis import given
from hypothesis import strategies as st

from workbench.measure.halving import halve, survivors
from workbench.measure.protocol import Protocol
from workbench.measure.rounds import Window

RULES = Protocol()


def raced(seed, times, keep=4, weather=None):
    gpu = FakeGpu(seed, weather or Weather.calm(noise=0.002))
    return halve({i: FakeArm(gpu, t) for i, t in enumerate(times)}, RULES, keep)


@given(count=st.integers(0, 40), keep=st.integers(1, 8), seed=st.integers(0, 99))
def test_everybody_runs_and_the_fastest_runs_longest(count, keep, seed):
    times = [1e-4 * (1 + 0.05 * i) for i in range(count)]
    random.Random(seed).shuffle(times)
    windows = raced(seed, times, keep)
    assert set(windows) == set(range(count))
    assert all(len(w) >= RULES.race_turns for w in windows.values())
    if count:
        fastest = min(range(count), key=times.__getitem__)
        assert len(windows[fastest]) == max(map(len, windows.values()))
    if count > keep:
        longest = max(map(len, windows.values()))
        assert sum(len(w) == longest for w in windows.values()) <= max(keep, count // 2)


@pytest.mark.parametrize("seed", range(10))
def test_the_best_of_many_survives_a_wandering_clock(seed):
    times = [1e-4 * (1 + 0.01 * i) for i in range(32)]
    windows = raced(seed, times, 8, Weather())
    longest = max(map(len, windows.values()))
    assert len(windows[0]) == longest


def test_whoever_is_wholly_slower_goes_though_there_is_room():
    def taken(middle):
        return [Window(tuple(middle * (1 + 0.001 * i) for i in range(9)))] * 4

    windows = {"a": taken(1.0), "b": taken(1.002), "c": taken(1.5)}
    assert survivors(["c", "b", "a"], windows, 3) == ["b", "a"]
