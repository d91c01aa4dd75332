"""Steps of a series: what is located, what raises no alarm, and what the package's absence says."""

import math
import sys

import numpy as np
import pytest

from workbench.revisions import change_points
from workbench.revisions.change_points import (
    LEAST_POINTS,
    SiteMissing,
    episodes,
    levels,
    noise_of,
    steps,
)

pytestmark = pytest.mark.unit

COMMITS, NOISE = 60, 0.01


def history(dice, place=None, share=0.03, many=COMMITS, noise=NOISE):
    """Times with a step of this share before this place."""
    logs = noise * dice.standard_normal(many)
    if place is not None:
        logs[place:] += math.log1p(share)
    return (1e-4 * np.exp(logs)).tolist()


def test_the_noise_about_two_levels_is_that_of_the_points_and_not_of_their_number():
    """Eight points half a unit off two levels: two of their squares are left for six freedoms."""
    series = np.array([0.0, 1.0, 0.0, 1.0, 5.0, 6.0, 5.0, 6.0])
    assert change_points._noise(series, [4]).sigma == pytest.approx(math.sqrt(2 / 6))
    assert change_points._noise(series[:4], []).sigma == pytest.approx(math.sqrt(1 / 3))


@pytest.mark.nightly
def test_steps_of_3_percent_are_located_in_19_of_20_histories():
    """The seed is fixed; benchmarks/history_site.py counts 2,000 histories of each kind."""
    dice = np.random.default_rng(3)
    located = near = 0
    for _ in range(60):
        place = int(dice.integers(10, COMMITS - 9))
        results = steps(history(dice, place))
        located += bool(results)
        near += any(abs(step.index - place) <= 1 for step in results)
    assert located >= 57 and near >= 54


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["Gaussian", "heavy tails", "autocorrelated"])
def test_histories_without_a_step_raise_no_alarm(kind):
    dice = np.random.default_rng(4)
    alarms = 0
    for _ in range(500):
        noise = dice.standard_normal(COMMITS)
        if kind == "heavy tails":
            noise = dice.standard_t(3, COMMITS) / math.sqrt(3)
        if kind == "autocorrelated":
            for n in range(1, COMMITS):
                noise[n] = 0.2 * noise[n - 1] + math.sqrt(1 - 0.04) * noise[n]
        alarms += bool(steps(np.exp(NOISE * noise).tolist()))
    assert alarms <= 5, "1 %"


@pytest.mark.parametrize("share", [0.05, -0.05])
def test_the_ratio_and_its_interval_hold_the_planted_step(share):
    dice = np.random.default_rng(5)
    inside = 0
    for _ in range(40):
        (step,) = steps(history(dice, 30, share))
        assert abs(step.ratio.middle - (1 + share)) < 0.02 and step.p <= change_points.LARGEST_P
        inside += step.ratio.low <= 1 + share <= step.ratio.high
    assert inside >= 36


def test_several_steps_are_located_each():
    dice = np.random.default_rng(6)
    logs = NOISE * dice.standard_normal(90)
    logs[30:60] += 0.06
    results = steps(np.exp(logs).tolist())
    assert [round(step.index / 10) for step in results] == [3, 6]
    assert results[0].ratio.middle > 1.04 and results[1].ratio.middle < 0.96


def test_one_slow_commit_is_no_step():
    values = history(np.random.default_rng(7))
    values[30] *= 1.5
    assert steps(values) == []


def test_a_step_below_the_least_effect_is_none():
    dice = np.random.default_rng(8)
    values = history(dice, 30, 0.006, noise=0.0005)
    assert steps(values) == [] and len(steps(values, least_effect=0.003)) == 1


def test_constant_and_short_series_have_no_steps():
    assert steps([1e-4] * 60) == [] and steps([]) == [] and steps([1e-4]) == []
    assert steps([1.0] * LEAST_POINTS + [2.0] * (LEAST_POINTS - 1)) == []


def test_a_clean_step_with_the_fewest_points_is_located():
    (step,) = steps([1.0] * 20 + [1.1] * LEAST_POINTS)
    assert step.index == 20 and step.ratio.middle == pytest.approx(1.1)


def test_the_same_series_has_the_same_steps():
    values = history(np.random.default_rng(9), 25)
    assert steps(values) == steps(values)


def test_the_unit_of_the_times_changes_nothing():
    values = history(np.random.default_rng(10), 40)
    scaled = [1e6 * v for v in values]
    assert [s.index for s in steps(values)] == [s.index for s in steps(scaled)] == [40]


def test_levels_are_medians_between_steps():
    assert levels([1, 2, 9, 5, 5, 6], [3]) == [2, 5]


def test_the_noise_ignores_steps():
    dice = np.random.default_rng(11)
    assert noise_of(history(dice, 30, 0.5, many=400)) == pytest.approx(NOISE, rel=0.2)
    assert noise_of([1.0, 2.0]) == 0


def test_without_ruptures_one_sentence_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ruptures", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SiteMissing, match=r"pip install 'kernel-workbench\[site\]'"):
        steps([1.0] * 20)


@pytest.mark.parametrize("many", [1, 2, 3, 4])
def test_a_few_slow_commits_are_an_episode_and_no_step(many):
    """Three or four commits that are 50 % slower were told as a step of 2.7 %."""
    dice = np.random.default_rng(8)
    for _ in range(30):
        place = int(dice.integers(10, 46))
        values = np.array(history(dice))
        values[place : place + many] *= 1.5
        assert steps(values.tolist()) == []
        found = episodes(values.tolist())
        assert [(e.index, e.end, e.kind) for e in found] == (
            [(place, place + many, "episode")] if many >= 3 else []
        )
        assert all(abs(e.ratio.middle - 1.5) < 0.03 for e in found)


def test_a_drift_is_told_as_a_drift():
    """A drift of 12 % was three regressions with innocent commits (asv issue 444)."""
    dice = np.random.default_rng(9)
    drifts = 0
    for _ in range(40):
        logs = NOISE * dice.standard_normal(COMMITS) + math.log(1.12) * np.linspace(0, 1, COMMITS)
        kinds = [step.kind for step in steps(np.exp(logs).tolist())]
        drifts += kinds == ["drift"]
    assert drifts >= 36


def test_true_steps_are_no_drift():
    dice = np.random.default_rng(10)
    for _ in range(40):
        (step,) = steps(history(dice, 30, 0.05))
        assert step.kind == "step"
    logs = NOISE * dice.standard_normal(90)
    logs[30:] += 0.05
    logs[60:] += 0.05
    assert [step.kind for step in steps(np.exp(logs).tolist())] == ["step", "step"]
