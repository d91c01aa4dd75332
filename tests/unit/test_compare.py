"""A verdict follows from two intervals and a threshold, and from nothing else."""

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from workbench.data import verdict as compare
from workbench.data.record import Measured, Ratio
from workbench.data.verdict import (
    SUSPECTED,
    Incomparable,
    holm,
    p_value,
    sentence,
    suspicion,
    verdict,
)

pytestmark = pytest.mark.unit

LOOKS = 3


@st.composite
def ratios(draw):
    a, b, c = sorted(draw(st.tuples(*[st.floats(0.8, 1.25)] * 3)))
    return Ratio(b, a, c)


thresholds = st.floats(0.001, 0.1)
maybe = st.none() | ratios()


def around(middle, half=0.002):
    return Ratio(middle, middle - half, middle + half)


@given(st.lists(st.floats(1e-7, 1.0), min_size=4, max_size=4), st.booleans())
def test_predictions_are_decided_by_intervals_that_do_not_overlap(ends, same_launches):
    """Turning the operands turns FAST and SLOW; the same launches are SAME."""
    spans = [sorted(ends[:2]), sorted(ends[2:])]
    left, right = (
        SimpleNamespace(timing=SimpleNamespace(shortest_s=a, longest_s=b)) for a, b in spans
    )
    there, back = (
        compare.compare_predictions(*both, same_launches) for both in ((left, right), (right, left))
    )
    apart = spans[0][1] < spans[1][0] or spans[1][1] < spans[0][0]
    swapped = {"FAST": "SLOW", "SLOW": "FAST"}
    assert back == swapped.get(there, there)
    assert (there == "SAME") is same_launches
    assert same_launches or (there in swapped) is apart


def turned(ratio):
    return Ratio(1 / ratio.middle, 1 / ratio.high, 1 / ratio.low) if ratio else None


def word(time, cycles=None, context=0.01, noise=0.0):
    return verdict(time, cycles, context, noise, 48).word


@given(ratios(), maybe, thresholds, thresholds)
def test_slow_and_fast_need_time_and_cycles_wholly_beyond(time, cycles, context, noise):
    limit = 1 + max(context, noise)
    result = verdict(time, cycles, context, noise, 48)
    both = [time] + ([cycles] if cycles else [])
    assert (result.word == "SLOW") == all(r.low > limit for r in both)
    assert (result.word == "FAST") == all(r.high < 1 / limit for r in both)
    assert (result.word == "SAME") == (time.low >= 1 / limit and time.high <= limit)
    assert result.threshold == max(context, noise)


@given(ratios(), ratios(), thresholds)
def test_clock_is_a_time_that_the_cycles_do_not_bear_out_at_all(time, cycles, context):
    limit = 1 + context
    slower = time.low > limit and cycles.high <= limit
    faster = time.high < 1 / limit and cycles.low >= 1 / limit
    assert (word(time, cycles, context) == "CLOCK") == (slower or faster)


@given(ratios(), maybe, thresholds)
def test_a_verdict_turns_over_with_its_sides(time, cycles, context):
    ends = [e for r in (time, cycles) if r for e in (r.low, r.high)]
    assume(all(abs(abs(math.log(e)) - math.log1p(context)) > 1e-9 for e in ends))
    other = {"SLOW": "FAST", "FAST": "SLOW"}
    there = word(time, cycles, context)
    assert word(turned(time), turned(cycles), context) == other.get(there, there)


@given(ratios(), maybe, thresholds, thresholds)
def test_noise_can_only_take_back_a_slow_or_a_fast(time, cycles, context, noise):
    with_noise = word(time, cycles, context, noise)
    if with_noise in ("SLOW", "FAST"):
        assert word(time, cycles, context) == with_noise


def test_cycles_that_may_or_may_not_be_slower_leave_it_open():
    assert word(around(1.03), around(1.03)) == "SLOW"
    assert word(around(1.03), around(1.01)) == "INCONCLUSIVE"
    assert word(around(1.03), around(1.00)) == "CLOCK"


@given(ratios())
def test_noise_is_the_far_end_of_what_the_same_code_differs_by(again):
    noise = compare.noise_of(again)
    assert noise >= abs(again.middle - 1) * (1 - 1e-9) or again.middle < 1
    assert noise == pytest.approx(compare.noise_of(turned(again)))
    assert word(again, context=0.0, noise=noise * (1 + 1e-9) + 1e-12) == "SAME" or noise < 0


@given(st.integers(1, 10), st.sampled_from([0.9, 0.95, 0.99]))
def test_all_looks_together_miss_no_more_than_one_would(looks, confidence):
    each = compare.confidence_of(looks, confidence)
    assert looks * (1 - each) == pytest.approx(1 - confidence)


# Words for people


@given(ratios(), maybe, thresholds, thresholds)
def test_a_sentence_names_both_sides_and_says_it_once(time, cycles, context, noise):
    result = verdict(time, cycles, context, noise, 48)
    text = sentence(result, "tiles of old", "tiles of new")
    assert "tiles of old" in text and "tiles of new" in text and text.endswith(".")
    assert "nan" not in text and "\n" not in text and "nan" not in result.reason
    assert ("noise" in result.reason) == (noise > context)
    for word, side in (("SLOW", "slower"), ("FAST", "faster")):
        assert (f"wholly {side}, beyond the threshold" in result.reason) == (result.word == word)


def test_sentences():
    slow = verdict(around(1.02), around(1.02), 0.01, 0.001, 48)
    assert sentence(slow, "old", "new") == (
        "new is 2.0 % slower (1.8 to 2.2 %) than old, beyond the threshold of 1 %."
    )
    fast = verdict(turned(around(1.02)), None, 0.01, 0.001, 48)
    assert "new is 2.0 % faster (1.8 to 2.2 %) than old" in sentence(fast, "old", "new")
    assert "the clock unknown" in fast.reason
    twice = verdict(Ratio(0.5, 0.4, 0.8), None, 0.01, 0.001, 48)
    assert "new is 100.0 % faster (25.0 to 150.0 %) than old" in sentence(twice, "old", "new")
    half = verdict(Ratio(2.0, 1.25, 2.5), None, 0.01, 0.001, 48)
    assert "new is 100.0 % slower (25.0 to 150.0 %) than old" in sentence(half, "old", "new")
    same = verdict(around(1.0), None, 0.01, 0.015, 48)
    text = "new and old take the same time within 1.5 % (its noise here): +0.0 % (-0.2 to +0.2 %)."
    assert sentence(same, "old", "new") == text
    clock = verdict(around(1.05), around(1.0), 0.01, 0.001, 48)
    assert "in time, but not in clock cycles" in sentence(clock, "old", "new")
    opened = verdict(around(1.01), None, 0.01, 0.001, 192)
    assert "could not be decided at 1 % in 192 rounds" in sentence(opened, "old", "new")


def test_exit_codes_and_the_worst_of_a_suite():
    by_word = {
        "SLOW": verdict(around(1.03), None, 0.01, 0, 48),
        "FAST": verdict(around(0.97), None, 0.01, 0, 48),
        "SAME": verdict(around(1.0), None, 0.01, 0, 48),
        "CLOCK": verdict(around(1.03), around(1.0), 0.01, 0, 48),
        "INCONCLUSIVE": verdict(around(1.01), None, 0.01, 0, 48),
    }
    assert {w: v.word for w, v in by_word.items()} == {w: w for w in by_word}
    codes = {w: compare.exit_code([v.word]) for w, v in by_word.items()}
    assert codes == {"SLOW": 1, "FAST": 0, "SAME": 0, "CLOCK": 0, "INCONCLUSIVE": 3}
    assert compare.exit_code([compare.NO_VERDICT]) == 2 and compare.exit_code([]) == 2
    alone = [*codes.items(), ("", 2)]
    for several in itertools.chain.from_iterable(
        itertools.product(alone, repeat=length) for length in (1, 2, 3)
    ):
        worst = next(code for code in (1, 2, 3, 0) if code in [code for _, code in several])
        assert compare.exit_code(word for word, _ in several) == worst


# Stored runs


def measured(median_s, half=0.001, mhz=1500.0, **also):
    low, high = median_s * (1 - half), median_s * (1 + half)
    also = {"regime": "cold", "method": "events", "protocol": "p2-x", "rounds": 24} | also
    return Measured(median_s, low, high, (median_s,), sm_mhz=mhz, **also)


def test_stored_runs_are_at_best_suspected():
    result = suspicion(measured(1.0), measured(1.03), 0.01)
    assert result.word == "SLOW"
    assert compare.exit_code([f"{SUSPECTED}{result.word}"]) == 3, "not decided"
    assert "suspicion" in result.reason
    faster = suspicion(measured(1.03), measured(1.0), 0.01)
    assert compare.exit_code([f"{SUSPECTED}{faster.word}"]) == 0
    assert suspicion(measured(1.0), measured(1.0), 0.01).word == "SAME"
    slower_clock = suspicion(measured(1.0), measured(1.03, mhz=1500 / 1.03), 0.01)
    assert slower_clock.word == "CLOCK"
    assert suspicion(measured(1.0), measured(1.03, mhz=None), 0.01).cycles is None


@given(st.floats(0.5, 2), st.floats(0, 0.05), st.floats(0, 0.05))
def test_a_suspected_ratio_spans_both_intervals(factor, half, other):
    result = suspicion(measured(1.0, half), measured(factor, other), 0.01).time
    assert result.low == pytest.approx(factor * (1 - other) / (1 + half))
    assert result.high == pytest.approx(factor * (1 + other) / (1 - half))


@pytest.mark.parametrize(
    "other", [{"protocol": "p2-y"}, {"regime": "hot"}, {"state": "sustained"}, {"method": "graph"}]
)
def test_results_of_unlike_measurements_say_nothing_about_each_other(other):
    with pytest.raises(Incomparable, match=next(iter(other))):
        suspicion(measured(1.0), measured(1.0, **other), 0.01)


# Suites


@given(st.lists(st.tuples(ratios(), maybe, thresholds), max_size=8))
def test_holm_only_ever_takes_back_a_slow_or_a_fast(context):
    before = [verdict(t, c, a, 0.0, 48) for t, c, a in context]
    after = holm(before, LOOKS)
    for one, other in zip(before, after, strict=True):
        if one != other:
            assert one.word in ("SLOW", "FAST") and other.word == "INCONCLUSIVE"
            assert replace(other, word=one.word, reason=one.reason) == one
            assert f"among {len(before)} comparisons" in other.reason


def test_a_close_call_alone_stands_and_among_twenty_does_not():
    close = verdict(Ratio(1.02, 1.0101, 1.0301), None, 0.01, 0.0, 48)
    clear = verdict(around(1.03), None, 0.01, 0.0, 48)
    same = verdict(around(1.0), None, 0.01, 0.0, 48)
    assert [v.word for v in holm([close], LOOKS)] == ["SLOW"]
    words = [v.word for v in holm([close, clear] + [same] * 18, LOOKS)]
    assert words == ["INCONCLUSIVE", "SLOW"] + ["SAME"] * 18


def test_a_ratio_on_the_threshold_without_any_spread_is_no_claim():
    exact = Ratio(1.0, 1.0, 1.0)
    assert p_value(verdict(exact, None, 0.0, 0.0, 48), LOOKS) == 1
    assert p_value(verdict(Ratio(1.5, 1.5, 1.5), None, 0.0, 0.0, 48), LOOKS) == 0


@given(ratios(), maybe, thresholds)
def test_a_claim_alone_has_the_p_value_of_its_interval(time, cycles, context):
    """Log-symmetric intervals: beyond the threshold at their level is p under it, and back."""
    even = [r and symmetric(r) for r in (time, cycles)]
    ends = [e for r in even if r for e in (r.low, r.high)]
    assume(all(abs(abs(math.log(e)) - math.log1p(context)) > 1e-6 for e in ends))
    result = verdict(*even, context, 0.0, 48)
    assert (p_value(result, LOOKS) < 0.05) == (result.word in ("SLOW", "FAST"))


def symmetric(ratio):
    middle = math.sqrt(ratio.low * ratio.high)
    return Ratio(middle, ratio.low, ratio.high)
