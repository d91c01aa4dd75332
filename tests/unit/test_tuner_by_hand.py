"""The search's distribution, sizes that fill a space, verdicts and times of an evaluation, and what
an earlier run left: against formulas written out, and counts by hand."""

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import synthetic

from workbench.backend.checking import CheckCall
from workbench.catalog import spec_of
from workbench.data.record import Failure, Predicted, Record
from workbench.device.hardware import find_device
from workbench.evaluation import times, verdict
from workbench.evaluation.calls import calls_at, hidden_sizes
from workbench.measurement.candidate import Refusal
from workbench.measurement.rules import RULES
from workbench.tuner import design, held_back, resume, surrogate
from workbench.tuner.search import Budget, Fixed, Strategy, search_of
from workbench.tuner.surrogate import Belief, Fit, Places, Shape

pytestmark = pytest.mark.unit


def point(impl, **config):
    case = SimpleNamespace(impl=impl, config=config)
    return SimpleNamespace(case=case, key=f"{impl} {config}", predicted_s=1.0)


# The search's distribution


def test_places_are_steps_of_knobs_and_of_impls():
    some = [point("b", x=64, y=1), point("a", x=16), point("a", x=32, y=2)]
    found = surrogate.places(some, 0.5)
    half = math.sqrt(0.5)
    assert found.steps.tolist() == [[0, half, 2, 0], [half, 0, 0, 0], [half, 0, 1, 1]]
    assert found.impl.tolist() == [1, 0, 0] and found.shared_memory == 0.5
    assert surrogate.places(some[1:], 0.5).shared_memory == 0.0
    part = found.select([2, 0])
    assert part.steps.tolist() == [[half, 0, 1, 1], [0, half, 2, 0]] and part.impl.tolist() == [
        0,
        1,
    ]
    assert part.shared_memory == 0.5


STEPS = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0], [3.0, 1.0]])
PLACES = Places(STEPS, np.array([0, 0, 1, 1]), 0.7)
PRIOR = np.array([1.0, 1.5, 0.5, 2.0])
SHAPE = Shape(0.3, 2.0, 0.4)


def covariance():
    """The prior covariance, element by element."""
    centred = PRIOR - PRIOR.mean()
    result = np.zeros((4, 4))
    for i, j in itertools.product(range(4), repeat=2):
        far = math.sqrt(3) * math.dist(STEPS[i], STEPS[j]) / 2.0
        result[i, j] = (1.0 + 0.49 * (PLACES.impl[i] == PLACES.impl[j])
                        + 0.16 * centred[i] * centred[j]
                        + 0.09 * (1 + far) * math.exp(-far))  # fmt: skip
    return result


def test_the_posterior_is_that_of_the_written_out_formula():
    whole, seen = covariance(), {1: 1.9, 2: 0.6}
    at = list(seen)
    residual = np.array([1.9, 0.6]) - PRIOR[at]
    shift = residual.mean()
    inverse = np.linalg.inv(whole[np.ix_(at, at)] + 0.015**2 * np.eye(2))
    gain = whole[:, at] @ inverse
    found = surrogate.posterior(PLACES, PRIOR, seen, SHAPE)
    assert found.mean == pytest.approx(PRIOR + shift + gain @ (residual - shift))
    left = whole - gain @ whole[at]
    assert found.variance == pytest.approx(np.diag(left))
    assert found.covariance([0, 3]) == pytest.approx(left[np.ix_([0, 3], [0, 3])])
    sign, size = np.linalg.slogdet(np.linalg.inv(inverse))
    off = residual - shift
    assert sign == 1 and found.likelihood == pytest.approx(-0.5 * off @ inverse @ off - 0.5 * size)
    none = surrogate.posterior(PLACES, PRIOR, {}, SHAPE)
    assert none.variance == pytest.approx(np.diag(whole)) and none.likelihood == 0.0
    assert none.mean is PRIOR and none.covariance([0, 2]) == pytest.approx(whole[::2, ::2][:2, :2])


def test_what_was_compiled_is_certain_and_without_any_all_is():
    none = surrogate.predict_compiled(PLACES, PRIOR, {}, SHAPE)
    assert none.variance.tolist() == [0.0] * 4
    found = surrogate.predict_compiled(PLACES, PRIOR, {0: 3.0, 3: 4.0}, SHAPE)
    assert found.mean[[0, 3]].tolist() == [3.0, 4.0] and found.variance[[0, 3]].tolist() == [0, 0]
    assert (found.variance[[1, 2]] > 0).all()
    between = found.covariance([0, 1])
    assert between[0].tolist() == [0, 0] and between[1, 0] == 0 and between[1, 1] > 0


def test_shapes_that_are_less_likely_by_two_are_left_out():
    seen = {0: 1.1, 1: 1.4, 2: 0.9, 3: 2.4}
    shapes = [Shape(own, 2.0) for own in (0.001, 0.02, 0.1, 0.3, 3.0)]
    by = {s: surrogate.posterior(PLACES, PRIOR, seen, s).likelihood for s in shapes}
    kept = sorted((s for s in shapes if by[s] > max(by.values()) - 2), key=lambda s: -by[s])
    assert surrogate.likeliest(shapes, PLACES, PRIOR, seen) == kept
    assert 1 <= len(kept) < len(shapes)


def test_shapes_are_chosen_anew_from_four_observations_on_and_at_half_as_many_more(monkeypatch):
    asked = []
    monkeypatch.setattr(
        surrogate, "likeliest", lambda *words: asked.append(len(words[3])) or ["new"]
    )
    fit = Fit(["any"], "first")
    assert fit.likely(PLACES, PRIOR, dict.fromkeys(range(3))) == ["first"]
    for n in (4, 5, 6, 8, 9, 13, 14):
        assert fit.likely(PLACES, PRIOR, dict.fromkeys(range(n))) == ["new"]
    assert asked == [4, 6, 9, 14]


def test_the_gain_is_the_expected_improvement_on_the_best_measured_mean():
    mean, deviation = np.array([1.0, 0.8, 1.4]), np.array([0.2, 0.1, 0.3])
    drawn = np.random.default_rng(3).standard_normal(400_000)
    exact = [
        np.maximum(0.9 - (m + d * drawn), 0).mean() for m, d in zip(mean, deviation, strict=True)
    ]
    assert surrogate.improvement(0.9, mean, deviation) == pytest.approx(np.array(exact), abs=2e-3)
    assert surrogate.normal_cdf(np.array([0.0, 1.0, -1.96])) == pytest.approx(
        [0.5, 0.841345, 0.024998], abs=1e-5
    )
    parts = [SimpleNamespace(mean=mean, variance=np.array(v)) for v in ((0.03, 0.0, 0.09), (0.01,
             0.01, 0.0))]  # fmt: skip
    belief = Belief(parts[1], parts[0], [0, 2])
    assert belief.deviation == pytest.approx(deviation)
    assert belief.gain == pytest.approx(surrogate.improvement(1.0, mean, deviation).tolist())
    assert replace(belief, timed_configs=[]).gain == pytest.approx(
        surrogate.improvement(0.8, mean, deviation).tolist()
    )


def test_draws_have_the_mean_and_the_covariance_of_both_parts():
    seen = {1: 1.9}
    part = surrogate.posterior(PLACES, PRIOR, seen, SHAPE)
    belief = Belief(part, part, [1])
    drawn = belief.draw([0, 3], 100_000)
    assert drawn.mean(axis=0) == pytest.approx(part.mean[[0, 3]], abs=0.02)
    assert np.cov(drawn.T) == pytest.approx(2 * part.covariance([0, 3]), abs=0.05)


def test_logarithms_without_a_prediction_are_the_median():
    found = surrogate.logs([math.e, math.inf, math.e**3, math.e**2])
    assert found == pytest.approx([1, 2, 3, 2]) and surrogate.logs([math.inf]).tolist() == [0.0]


# Strategies and budgets


@pytest.mark.parametrize(
    ("text", "seconds", "configs"),
    [("30s", 30, None), ("2m", 120, None), ("1.5h", 5400, None), ("200", None, 200),
     (" 7 ", None, 7)],
)  # fmt: skip
def test_budgets_are_seconds_or_configs(text, seconds, configs):
    budget = Budget.parse(text)
    assert budget == Budget(seconds or math.inf, configs or math.inf)
    assert budget.is_spent(seconds or 0.0, configs or 0) and not budget.is_spent(
        (seconds or 1.0) * 0.99, (configs or 1) - 1
    )


@pytest.mark.parametrize("text", ["0", "0s", "-1", "1.5", "1d", "", "s", "9" * 400])
def test_other_budgets_are_refused(text):
    with pytest.raises(ValueError, match="cannot be read"):
        Budget.parse(text)


def test_a_fixed_order_gives_each_point_once():
    points = [point("a", x=n) for n in range(5)]
    one = Fixed(points)
    assert one.order(2) == points[:2] and one.order(0) == one.order(-1) == []
    assert one.order(2) == points[2:4] and one.order(9) == points[4:] and one.order(1) == []
    assert one.ask([points[3], points[1], points[4]]) is points[1] and one.ask([]) is None
    assert one.chance_left(0.01) == 1.0
    for n, each in enumerate(points):
        each.predicted_s = float(-n)
    assert search_of(Strategy.EXHAUSTIVE, points).order(5) == points[::-1]
    drawn = search_of(Strategy.RANDOM, points, 3).order(5)
    assert drawn == search_of(Strategy.RANDOM, points, 3).order(5) != points
    assert {p.key for p in drawn} == {p.key for p in points}


# Sizes that fill a space


def test_van_der_corput_mirrors_digits():
    assert [design.halton(i, 2) for i in range(1, 8)] == [
        *(0.5, 0.25, 0.75, 0.125, 0.625, 0.375, 0.875)
    ]
    assert [design.halton(i, 3) for i in (1, 2, 3, 4, 9)] == pytest.approx(
        [1 / 3, 2 / 3, 1 / 9, 4 / 9, 1 / 27]
    )


def test_extents_have_four_binary_figures():
    table = {1.0: 1, 1.4: 1, 1.6: 2, 15.4: 15, 15.6: 16, 17.1: 18, 33.0: 32, 34.1: 36, 63.0: 64,
             63.9: 64, 64.0: 64, 73.0: 80, 100.0: 96, 280.0: 288, 1500.0: 1536}  # fmt: skip
    assert {x: design.round_extent(x) for x in table} == table


def spec_at(*bench, **more):
    given = {"bench": bench, "nearest_sizes": dict, "refuse": lambda s: None,
             "flops": lambda **s: 1}  # fmt: skip
    given |= dict.fromkeys(("bytes", "held_bytes"), lambda s, d: 4 << 20)
    return SimpleNamespace(**given | more)


def test_points_lie_in_the_box_and_an_octave_beyond_a_long_axis():
    spec = spec_at({"M": 64, "N": 1024, "K": 8}, {"M": 512, "N": 4096, "K": 8})
    some = list(itertools.islice(design._points(spec), 3))
    # 64 * 2^(3/2), 1024 * 2^(3 * 1/3), and so on, in four figures
    assert some == [{"M": 176, "N": 2048, "K": 8}, {"M": 112, "N": 4096, "K": 8},
                    {"M": 320, "N": 1280, "K": 8}]  # fmt: skip
    assert sum(1 for _ in design._points(spec)) == 4095
    short = spec_at({"M": 512}, {"M": 1023})
    assert max(s["M"] for s in itertools.islice(design._points(short), 200)) <= 1024
    long = spec_at({"M": 512}, {"M": 1024})
    assert max(s["M"] for s in itertools.islice(design._points(long), 200)) > 1024


def test_sizes_that_do_not_fit_are_left_out(monkeypatch):
    reason = []
    impl = SimpleNamespace(backend="triton", default=lambda *_: "c",
                           rejection_reason=lambda *_: reason[0] if reason else None)  # fmt: skip
    device = find_device("h100")
    bound = [1e-5]
    monkeypatch.setattr(design, "bound_s", lambda *_: bound[0])
    monkeypatch.setattr(design, "is_aligned", lambda spec, sizes: sizes["M"] != 7)

    def fit(m=8, **more):
        return design._is_fit(spec_at(impls=[impl], **more), "bf16", device, {"M": m})

    assert fit() and not fit(7) and not fit(refuse=lambda s: "odd")
    assert fit(held_bytes=lambda s, d: 4 << 30)
    assert not fit(held_bytes=lambda s, d: (4 << 30) + 1)
    for seconds, fits in ((2e-7, True), (1.9e-7, False), (2e-3, True), (2.1e-3, False)):
        bound[0] = seconds
        assert fit() is fits
    bound[0] = 1e-5

    def fails(**sizes):
        raise ValueError

    assert not fit(flops=fails)
    reason.append("too large")
    assert not fit()
    reason.clear()
    impl.backend = "metal"
    assert not fit()
    monkeypatch.setattr(design, "_points", lambda spec: [{"M": m} for m in (1, 2, 1, 3, 4)])
    monkeypatch.setattr(design, "_is_fit", lambda spec, dtype, device, at: at["M"] != 2)
    assert design.design(None, "bf16", device, 2) == [{"M": 1}, {"M": 3}]
    points = iter([{"M": 1}, {"M": 3}, {"M": 4}, {"M": 5}])
    with monkeypatch.context() as patched:
        patched.setattr(design, "_points", lambda spec: points)
        design.design(None, "bf16", device, 2)
    assert next(points) == {"M": 5}, "no further point is tried"
    assert design.design(None, "bf16", device, 9) == [{"M": 1}, {"M": 3}, {"M": 4}]


# An evaluation


def test_the_best_library_and_the_numbers_of_a_time():
    record = next(o for o in synthetic.matmul()[1] if isinstance(o, Record) and o.phase == "final")
    own = replace(record.timing, median_s=2.0)
    libraries = {n: replace(own, median_s=t, low_s=t - 1, high_s=t + 1) for n, t in (("a", 5.0),
                 ("b", 4.0))}  # fmt: skip
    result = times.EvaluatedTimes(own, 0.5, libraries)
    assert result.best_library == ("b", 4.0) and result.seconds == 2.0
    plain = result.plain()
    assert (plain["kind"], plain["time_s"], plain["bound_s"], plain["share_of_bound"]) == (
        "measured", 2.0, 0.5, 0.25)  # fmt: skip
    assert plain["libraries"]["a"] == {"time_s": 5.0, "low_s": 4.0, "high_s": 6.0, "speedup": 2.5}
    predicted = times.EvaluatedTimes(Predicted(3.0, "model", 1.0, 2.0, 0.5, 0.1, 1e-6, "dram"), 0.0)
    assert predicted.best_library is None and predicted.seconds == 3.0
    plain = predicted.plain()
    assert (plain["kind"], plain["bound_s"], plain["share_of_bound"], plain["low_s"]) == (
        "predicted", None, None, None)  # fmt: skip


def test_a_verdict_has_the_first_result_of_each_rule_that_ran():
    R = verdict.RuleResult
    one = verdict.verdict_of([R("values", "not run", "x"), R("values", "kept"), R("repeat", "kept"),
                              R("repeat", "kept", "a remark"), R("launches", "kept"),
                              R("launches", "broken", "odd"), R("sizes", "kept", "first"),
                              R("sizes", "not run", "late")], 0.5)  # fmt: skip
    by = {r.rule: r for r in one.rules}
    assert [r.rule for r in one.rules] == [rule.name for rule in RULES]
    assert by["values"] == R("values", "kept") and by["repeat"].reason == "a remark"
    assert by["launches"].state == "broken" and by["sizes"] == R("sizes", "kept", "first")
    assert by["sanitizer"].reason == "--require sanitizer asks for it, on an NVIDIA GPU"
    for rule in RULES:
        if rule.name not in (*("values", "repeat", "launches", "sizes"), "sanitizer"):
            assert by[rule.name] == R(rule.name, "not run", "it needs a GPU" if rule.gpu else "")
    assert (one.word, one.broken_rule.rule, one.error) == ("rejected", "launches", 0.5)
    assert one.state("values") == "kept" and one.state("sanitizer") == "not run"
    assert verdict.verdict_of([R("values", "kept")]).word == "correct"
    assert verdict.verdict_of([]).word == "undecided" and verdict.verdict_of([]).broken_rule is None


def test_a_config_that_failed_breaks_a_rule_or_none_ran():
    def rules(*words, **more):
        return [(r.rule, r.state, r.reason) for r in verdict.fail_rules(Refusal(*words, **more))]

    assert rules("check", "odd", rule="repeat") == [("repeat", "broken", "odd")]
    assert rules("measure", "lost", cause="died") == [("process", "broken", "lost")]
    assert rules("compile", "bad") == [("launches", "broken", "it does not compile: bad")]
    assert rules("launch", "no") == [(n, "not run", "no") for n in verdict.INTERPRETED]


def test_calls_decide_the_rules_of_the_interpreter():
    def result(wrong="", bits="a", rule=None, operators=(), launches=("f",)):
        checked = SimpleNamespace(wrong=wrong, rule=rule, bits=bits)
        return SimpleNamespace(check=checked, operators=operators, launches=launches)

    named, hidden = CheckCall.create({"N": 4}, 1), CheckCall.create({"N": 5}, 1)

    def states(*pairs, named_sizes=({"N": 4},)):
        calls = [call for call, _ in pairs]
        found = verdict.call_results(
            calls, [r for _, r in pairs], {c: ("f",) for c in calls}, named_sizes
        )
        return {r.rule: (r.state, r.reason) for r in found}

    right = dict.fromkeys(verdict.INTERPRETED, ("kept", ""))
    assert states((named, result()), (hidden, result())) == right
    alone = states((named, result()))
    assert alone["sizes"][0] == "not run" and alone["sizes"][1].startswith("no size was found that")
    wrong = states((named, result()), (hidden, result("off")))
    assert wrong["sizes"] == ("broken", "at N=5 off") and wrong["values"] == ("kept", "")
    both = states((hidden, result("off")), (named, result("bad")), (named, result("bad")))
    assert both["values"] == ("broken", "at N=4 bad")
    assert both["sizes"] == ("not run", "results are wrong at the sizes it knows")
    ruled = states((named, result("moved", rule="inputs" if "inputs" in right else "values")))
    assert [s for s, _ in ruled.values()].count("broken") == 1
    torch = states((hidden, result(operators=("a", "b", "c", "d", "e"))))
    assert torch["operators"][0] == "broken"
    assert "at N=5 torch computes in the launch (a, b, c, d); c" in torch["operators"][1]
    other = states((named, result(launches=())), (hidden, result(launches=("g", "h"))))
    assert other["launches"] == (
        "broken", "at N=4 a call launches nothing, and f was compiled")  # fmt: skip
    twice = states((named, result()), (named, result(bits="b")), (named, result("x")))
    assert twice["repeat"] == ("broken", "at N=4 3 calls on equal inputs give 3 results")


def test_calls_of_an_evaluation_are_by_size_seed_and_repeat():
    named, hidden = [{"N": 4}, {"N": 8}], [{"N": 5}]
    calls = calls_at(named, hidden, 7)
    counts = {
        n: sorted(calls.count(c) for c in set(calls) if dict(c.sizes)["N"] == n) for n in (4, 8, 5)
    }
    assert counts == {4: [1, 3], 8: [1, 1, 1], 5: [1, 1, 3]} and len(calls) == 12
    assert sorted(c.sizes["N"] for c in calls if c.hard) == [5, 8]
    assert calls == calls_at(named, hidden, 7) != calls_at(named, hidden, 8)
    spec = spec_of("softmax")
    found = hidden_sizes(spec, "fp32", 3)
    most = 2 * max(spec.bytes(s, "fp32") for s in spec.check)
    assert len(found) == 12 == len({tuple(s.items()) for s in found})
    assert all(spec.bytes(s, "fp32") <= most for s in found)
    assert not any(s in [dict(t) for t in (*spec.check, *spec.bench)] for s in found)


# What an earlier run left


def test_failures_that_would_come_again_are_lasting():
    failure = next(o for o in synthetic.matmul()[1] if isinstance(o, Failure))

    def lasting(stage, reason="x", **more):
        return resume._lasting(replace(failure, stage=stage, reason=reason, **more))

    lost = {s: lasting(s) for s in ("compile", "check", "launch", "measure", "refused")}
    assert [s for s, lasts in lost.items() if lasts] == ["compile", "check", "launch"]
    assert not lasting("launch", "it took longer than 3.5 s") and not lasting(
        "check", "its process died"
    )
    assert [lasting("measure", cause="died", attempts=n) for n in (1, 2)] == [False, True]


def test_a_stop_is_taken_from_the_one_run_of_all_that_is_known(monkeypatch):
    monkeypatch.setattr(resume, "stop_of", lambda finding: finding)

    def stop(chance, tried, of):
        return SimpleNamespace(chance=chance, tries=tried, total=of)

    findings = [None, stop(0.1, 2, 8), stop(0.2, 3, 9), stop(0.3, 2, 9), stop(0.4, 2, 9)]
    history = SimpleNamespace(findings=lambda run: findings if run == "r" else [])
    plan = SimpleNamespace(candidates=[None] * 9)
    known = {k: SimpleNamespace(run="r") for k in "ab"}
    assert resume._chance_left(history, plan, known) == 0.3
    assert resume._chance_left(history, plan, known | {"c": SimpleNamespace(run="r")}) == 0.2
    assert resume._chance_left(history, plan, known | {"c": SimpleNamespace(run="s")}) is None
    assert resume._chance_left(history, plan, {}) is None


def test_the_regret_is_the_chosen_time_over_the_best():
    held = held_back.HeldSize({}, 2.0, "a", 3.0, None, 2.5, 2.0, math.nan, 4.0, [0.1])
    assert held.regret == 0.5 and replace(held, chosen_s=None).regret is None
