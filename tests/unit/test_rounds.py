"""Finals and verdicts on a GPU that boosts, falls, wanders, is throttled and has outliers."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from fake_gpu import FakeGpu, FakeVariant, Weather
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import at_night

from workbench.data import stats, verdict
from workbench.measurement.protocol import BOOST, Protocol
from workbench.measurement.rounds import (
    ORDERS,
    Window,
    clean,
    compare,
    decide,
    play,
    rested_windows,
    settle,
    stable,
    stream,
)

pytestmark = pytest.mark.unit

RULES = Protocol()
TIMES = {"best": 1.00e-4, "close": 1.02e-4, "third": 1.03e-4, "slow": 1.05e-4}
WORST_ORDER = ("close", "third", "slow", "best")  # the winner last, when the clock has fallen


def arms_on(gpu, **but):
    return {name: FakeVariant(gpu, TIMES[name], **but) for name in WORST_ORDER}


def medians(windows):
    return {k: stats.median([s for w in v for s in w.samples_s]) for k, v in windows.items()}


# The final


def final(seed, weather=None, rules=RULES):
    gpu = FakeGpu(seed, weather)
    variants = arms_on(gpu)
    settle(variants["best"], rules, gpu.now)
    return play(variants, rules, now=gpu.now)


def one_after_the_other(seed, figure, pause_s):
    """As do_bench and triton.autotune do: 25 ms of warm-up, then 100 ms, one config at a time."""
    gpu = FakeGpu(seed)
    results = {}
    for name, variant in arms_on(gpu).items():
        gpu.idle(pause_s)
        variant.window(0.025)
        results[name] = figure(variant.window(0.1).samples_s)
    return results


def winner(times):
    return min(times, key=times.get)


def test_a_final_finds_the_planted_winner_where_naive_harnesses_err():
    seeds = range(20)
    assert all(winner(medians(final(seed))) == "best" for seed in seeds)
    for figure, pause_s in ((np.mean, 0.05), (np.median, 0.0), (min, 0.0)):
        right = sum(winner(one_after_the_other(s, figure, pause_s)) == "best" for s in seeds)
        assert right <= 10, f"{figure.__name__} was right in {right} of 20"


def test_a_final_gives_each_arm_the_same_rounds_in_reversed_order():
    order, rounds = [], []
    gpu = FakeGpu(0)

    class Noting(FakeVariant):
        def window(self, seconds, least=1):
            order.append(self.seconds)
            return super().window(seconds, least)

    variants = {name: Noting(gpu, TIMES[name]) for name in WORST_ORDER}
    windows = play(variants, RULES, after_round=lambda: rounds.append(len(order)), now=gpu.now)
    done = {len(w) for w in windows.values()}
    assert len(done) == 1 and done.pop() == len(rounds)
    assert len(rounds) >= RULES.rounds and len(rounds) % 2 == 0
    assert rounds == list(range(5, len(order) + 1, 4)), "after each round, while the next one runs"
    turns = [order[i : i + 4] for i in range(0, len(order), 4)]
    assert turns[0] == [TIMES[name] for name in WORST_ORDER]
    assert all(back == there[::-1] for there, back in zip(turns[::2], turns[1::2], strict=False))
    assert len({tuple(turn) for turn in turns}) > 6, "no arm always follows the same one"


def test_a_final_stops_as_soon_as_all_are_precise():
    windows = final(0, Weather.wait_idle(noise=0.002, correlation=0.0))
    assert {len(w) for w in windows.values()} == {RULES.rounds}
    assert all(stable(w, RULES) for w in windows.values())


def test_one_unsteady_arm_keeps_all_of_them_running():
    wait_idle, wild = FakeGpu(0, Weather.wait_idle()), FakeGpu(1, Weather(wander=0.1))
    variants = {"calm": FakeVariant(wait_idle, 1e-4), "wild": FakeVariant(wild, 1e-4)}
    windows = play(variants, RULES, now=lambda: wait_idle.now() + wild.now())
    assert len(windows["calm"]) == len(windows["wild"]) == RULES.most_rounds
    assert stable(windows["calm"], RULES) and not stable(windows["wild"], RULES)


@pytest.mark.parametrize(("seconds", "least"), [(0.05, 4), (0.4, 6)])
def test_a_final_ends_when_its_time_is_spent(seconds, least):
    rules = replace(RULES, final_s=seconds)
    windows = final(0, Weather(wander=0.05), rules)
    done = len(windows["best"])
    assert least <= done < RULES.rounds and done % 2 == 0
    assert not stable(windows["best"], rules)


@settings(max_examples=12)
@given(seconds=st.floats(0.02, 0.6), variants=st.integers(1, 3), least=st.integers(1, 9))
def test_however_a_final_ends_its_rounds_are_pairs(seconds, variants, least):
    """A round that lacks its reverse would leave a drift in."""
    gpu = FakeGpu(0, Weather(wander=0.05))
    rules = replace(RULES, final_s=seconds, least_rounds=least, most_rounds=33)
    windows = play({n: FakeVariant(gpu, 1e-4) for n in range(variants)}, rules, now=gpu.now)
    (done,) = {len(w) for w in windows.values()}
    assert done % 2 == 0 and least <= done <= 34


def test_nothing_to_play_is_no_work():
    assert play({}, RULES, now=lambda: 0.0) == {}


def test_stable_asks_for_samples_for_time_and_for_a_narrow_interval():
    window = Window((1e-3, 1.001e-3) * 5)
    assert stable([window] * 12, RULES)
    assert not stable([window] * 2, RULES), "too few samples"
    short = Window((1e-6, 1.001e-6) * 5)
    assert not stable([short] * 12, RULES), "0.1 ms in all"
    assert stable([replace(short, lasted_s=0.01)] * 12, RULES), "many calls make one sample"
    assert not stable([Window((1e-3 * (1 + 0.05 * (i % 3)),) * 5) for i in range(12)], RULES)
    assert not stable([], RULES)


@pytest.mark.parametrize(("half", "narrow"), [(0.0024, True), (0.0026, False), (0.006, False)])
def test_stable_is_as_narrow_as_the_protocol_says(half, narrow):
    """Times in turn above and below the middle: their interval is just that wide."""
    windows = [Window((1e-3 * (1 + half * (-1) ** i),) * 4) for i in range(41)]
    assert RULES.precise == 0.0025 and stable(windows, RULES) == narrow


def test_the_interval_of_a_final_holds_the_true_median():
    """The clock forgets in 0.07 s, windows come every 0.02 s: no order statistics of all samples
    would do."""
    weather = Weather(capped=1.0, drift=0.0, throttle_s=0.0, outliers=0.0)
    hits = naive = 0
    for seed in range(40):
        gpu = FakeGpu(seed, weather)
        windows = play({i: FakeVariant(gpu, 1e-4) for i in range(2)}, RULES, now=gpu.now)[0]
        samples = [w.samples_s for w in windows]
        low, high = stats.windowed_interval(samples)
        hits += low <= 1e-4 <= high
        low, high = stats.median_interval([s for w in samples for s in w])
        naive += low <= 1e-4 <= high
    assert hits >= 36 and naive <= 20


@given(st.integers(0, 1000), st.integers(1, 16))
@settings(max_examples=20)
def test_rested_windows_are_at_the_boost_clock_where_a_final_is_under_the_cap(seed, count):
    gpu = FakeGpu(seed, Weather.wait_idle(capped=0.78))
    variants = {n: FakeVariant(gpu, 1e-4 * (n + 1)) for n in range(count)}
    settle(variants[0], RULES, gpu.now)
    windows = rested_windows(variants, BOOST, gpu.idle)
    clocks = [w.sm_mhz / 1980 for each in windows.values() for w in each]
    assert min(clocks) > 0.95 and len(clocks) == BOOST.rounds * count
    assert all(len(each) == BOOST.rounds for each in windows.values())
    settle(variants[0], RULES, gpu.now)
    final = play(variants, replace(RULES, most_rounds=4), now=gpu.now)
    assert stats.median([w.sm_mhz / 1980 for each in final.values() for w in each]) < 0.80
    assert rested_windows({}, BOOST, gpu.idle) == {}


def test_settling_waits_until_the_boost_is_over():
    gpu = FakeGpu(0, Weather.wait_idle(capped=0.78))
    assert settle(FakeVariant(gpu, 1e-4), RULES, gpu.now)
    assert gpu.clock() == pytest.approx(0.78, rel=0.02)
    gpu = FakeGpu(0, Weather(wander=0.3))
    assert not settle(FakeVariant(gpu, 1e-4), replace(RULES, settled=1e-6), gpu.now)
    assert RULES.settle_s <= gpu.now() < RULES.settle_s + 0.4


def test_each_arm_begins_while_the_one_before_it_runs_and_windows_know_how_long_they_lasted():
    text, clock = [], [0.0]

    class Graph:
        """Ten calls of 1 us make one sample."""

        def __init__(self, name):
            self.name = name

        def begin(self, seconds, least=1):
            text.append(f"begin {self.name}")
            return self

        def window(self):
            text.append(f"end {self.name}")
            clock[0] += 10e-6
            return Window((1e-6,))

    variants = [(name, Graph(name)) for name in "abc"]
    result = list(stream(variants, 1e-5, lambda: clock[0]))
    assert text == ["begin a", "begin b", "end a", "begin c", "end b", "end c"]
    assert [key for key, _ in result] == ["a", "b", "c"]
    assert [w.lasted_s for _, w in result] == pytest.approx([10e-6] * 3)


# Windows at a lowered clock

clocks = st.none() | st.floats(300, 2000)
taken = st.lists(st.tuples(clocks, st.integers(1, 5)), max_size=30)


@given(taken, st.floats(0.1, 1))
def test_only_windows_far_below_the_runs_own_clock_are_left_out(pairs, share):
    windows = [Window((1.0,) * n, mhz) for mhz, n in pairs]
    kept, left_out = clean(windows, share)
    known = [mhz for mhz, _ in pairs if mhz is not None]
    least = share * np.median(known) if known else 0
    fine = [w for w in windows if w.sm_mhz is None or w.sm_mhz >= least * (1 - 1e-12)]
    assert kept == fine or any(abs(mhz - least) < 1e-6 for mhz in known)
    samples = [sum(len(w.samples_s) for w in some) for some in (windows, kept)]
    assert samples[0] == samples[1] + left_out
    assert bool(kept) == bool(windows)


def test_outliers_stay():
    windows = [Window((1.0, 1.0, 100.0), 1500.0)] * 3
    assert clean(windows) == (windows, 0)


# The contest


def compared(seed, ratio=1.0, seconds=1e-4, weather=None, rules=RULES, context=None, **right):
    gpu = FakeGpu(seed, weather)
    both = {k: v for k, v in right.items() if k in ("memory", "sensor")}
    left, again = FakeVariant(gpu, seconds, **both), FakeVariant(gpu, seconds, **both)
    result = compare(
        left, again, FakeVariant(gpu, seconds * ratio, **right), rules, context, gpu.now
    )
    return result, gpu.now()


def words(count, **wanted):
    """How often each word is said, and the longest that one comparison took."""
    results = [compared(seed, **wanted) for seed in range(count)]
    return Counter(f.verdict.word for f, _ in results), max(seconds for _, seconds in results)


ROUGH = Weather(drift=0.1, drift_s=3.0, outliers=0.02, noise=0.01, throttle_every_s=0.5)


@pytest.mark.parametrize(
    "weather", [pytest.param(Weather(), marks=pytest.mark.nightly), ROUGH], ids=["usual", "rough"]
)
def test_the_same_code_is_called_slow_or_fast_at_most_once_in_a_hundred(weather):
    text, longest_s = words(100, weather=weather)
    assert text["SLOW"] + text["FAST"] + text["CLOCK"] <= 1
    assert text["SAME"] >= 95 and longest_s < 10


DRAWN = [(seconds, memory) for seconds in (1e-5, 1e-4, 3e-4) for memory in (0.0, 0.9)]


@pytest.mark.parametrize("case", at_night(DRAWN, lambda case: case == (1e-5, 0.0)))
def test_two_percent_are_found_in_95_of_100_within_ten_seconds(case):
    seconds, memory = case
    count = 100 if seconds == 1e-4 else 10
    text, longest_s = words(count, ratio=1.02, seconds=seconds, memory=memory)
    assert text["SLOW"] >= 0.95 * count and longest_s < 10
    text, _ = words(10, ratio=1 / 1.02, seconds=seconds, memory=memory)
    assert text["FAST"] == 10


def test_one_side_after_the_other_would_have_erred():
    """The right side after the left: boost against cap says SLOW of the same code."""
    wrong = 0
    for seed in range(20):
        gpu = FakeGpu(seed)
        left, right = (FakeVariant(gpu, 1e-4).window(0.1).samples_s for _ in range(2))
        wrong += stats.median_interval(right)[0] > 1.01 * stats.median_interval(left)[1]
    assert wrong >= 15


def test_one_minimum_each_hides_two_percent_or_invents_them():
    """As triton.autotune ranks: the smallest of a few samples, taken at whatever clock there is."""
    right = 0
    for seed in range(40):
        gpu = FakeGpu(seed)
        FakeVariant(gpu, 1e-4).window(1.0)  # settled, and still the clock wanders
        left = min(FakeVariant(gpu, 1e-4).window(0.05).samples_s)
        ratio = min(FakeVariant(gpu, 1.02e-4).window(0.05).samples_s) / left
        right += 1.01 < ratio < 1.03
    assert right <= 24


@pytest.mark.parametrize("count", at_night((5, 20), {5}.__contains__))
def test_a_side_at_a_lower_clock_is_not_slower_code(count):
    assert words(count, pinned=0.95)[0] == {"CLOCK": count}
    assert words(count, pinned=1.05)[0] == {"CLOCK": count}
    assert words(count, pinned=0.95, ratio=1.05)[0]["SLOW"] == count
    unseen = words(count, pinned=0.95, sensor=False)[0]
    assert unseen == {"SLOW": count}, "without a clock, time is all there is"


def test_what_lies_on_the_threshold_is_not_decided():
    text, longest_s = words(10, ratio=1.01)
    assert text["INCONCLUSIVE"] >= 9 and longest_s < 10
    result, _ = compared(0, ratio=1.01)
    assert result.verdict.rounds == RULES.compare_rounds * 2**RULES.doublings


def test_the_threshold_is_what_was_asked_or_the_noise():
    result, _ = compared(0, ratio=1.02, context=0.05)
    assert (result.verdict.word, result.verdict.threshold) == ("SAME", 0.05)
    result, _ = compared(0, ratio=1.02, context=0.0001, weather=ROUGH)
    assert result.verdict.threshold == result.verdict.noise > 0.0001


def test_rounds_pair_a_window_of_each_and_stop_at_the_looks():
    for seed in range(5):
        result, _ = compared(seed, ratio=1.005)
        rounds = result.verdict.rounds
        assert len(result.left) == len(result.again) == len(result.right) == rounds
        assert rounds in [RULES.compare_rounds * 2**i for i in range(RULES.looks)]


def test_slow_kernels_get_the_rounds_that_an_interval_needs():
    wait_idle = Weather.wait_idle(noise=0.001)
    result, _ = compared(0, ratio=1.1, seconds=1.0, weather=wait_idle)
    fewest = 2 * stats.least_for(verdict.confidence_of(RULES.looks))
    assert (result.verdict.word, result.verdict.rounds) == ("SLOW", fewest)


def test_orders_are_balanced():
    """Each arm in each place, and after each other arm, equally often; reverses in pairs."""
    assert all(set(Counter(place).values()) == {2} for place in zip(*ORDERS, strict=True))
    after = Counter(pair for o in ORDERS for pair in pairwise(o))
    assert len(after) == 6 and set(after.values()) == {2}
    assert all(b == a[::-1] for a, b in zip(ORDERS[::2], ORDERS[1::2], strict=True))


def test_a_steady_drift_cancels():
    """Every window finds the clock 0.05 % slower than the one before."""
    turn = iter(range(10**6))

    class Sinking:
        def __init__(self, seconds):
            self.seconds = seconds

        def begin(self, seconds, least=1):
            slower = 1.0005 ** next(turn)
            taken = Window((self.seconds * slower,) * 5, 1500 / slower)
            return SimpleNamespace(window=lambda: taken)

    result = compare(Sinking(1.0), Sinking(1.0), Sinking(1.02), RULES, now=lambda: 0.0).verdict
    assert result.time.middle == pytest.approx(1.02, rel=1e-9)
    assert result.time.high / result.time.low == pytest.approx(1, rel=1e-9)


def test_throttled_rounds_are_left_out_and_too_many_of_them_decide_nothing():
    fine, low = Window((1.0,) * 5, 1500.0), Window((2.0,) * 5, 750.0)
    slower = Window((1.1,) * 5, 1500.0)
    right = ([low] * 4 + [slower] * 10) * 3
    result = decide([fine] * 42, [fine] * 42, right, RULES, 0.01)
    assert result.word == "SLOW" and result.time.high == pytest.approx(1.1)
    often = ([low] + [slower] * 2) * 12
    result = decide([fine] * 36, [fine] * 36, often, RULES, 0.01)
    assert result.word == "INCONCLUSIVE" and "throttled" in result.reason


def test_all_looks_together_keep_their_confidence():
    """Independent windows, ratio exactly 1: how often any of three looks excludes the truth."""
    rng = np.random.default_rng(11)
    missed = 0
    for _ in range(400):
        operands = [
            [Window((t,)) for t in np.exp(0.01 * rng.standard_normal(96))] for _ in range(3)
        ]
        looks = [
            decide(*(operand[: 24 * 2**look] for operand in operands), RULES, 0.01).time
            for look in range(RULES.looks)
        ]
        missed += any(not r.low <= 1 <= r.high for r in looks)
    assert missed / 400 <= 0.05 + 0.02
