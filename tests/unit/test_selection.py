"""The answer of a sweep: who wins, who ties, and what is said when nothing worked."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest
import synthetic
from hypothesis import given
from hypothesis import strategies as st

from workbench.data import stats
from workbench.data.record import (
    BufferCounts,
    CountedTraffic,
    Measured,
    Mode,
    Outcome,
    Predicted,
    Record,
    Run,
)
from workbench.data.selection import (
    best_per_group,
    bit_classes,
    class_interval,
    members,
    ranking,
    rate,
    relevant,
    select,
)
from workbench.reports.selection_sentence import headline, sentence

RUN, OUTCOMES = synthetic.matmul()
SCREENS = [o for o in OUTCOMES if isinstance(o, Record) and o.phase == "first_pass"]


def timed(of: Record, median: float, half: float = 0.0, **changes: object) -> Record:
    """The same record with another median and an interval of twice `half` seconds."""
    assert isinstance(of.timing, Measured)
    timing = replace(
        of.timing, median_s=median, low_s=median - half, high_s=median + half, samples_s=(median,)
    )
    return replace(of, timing=timing, **changes)  # type: ignore[arg-type]


def finals(*medians: float, half: float = 0.0) -> list[Record]:
    """Finals of distinct configs with these medians, in seconds."""
    return [timed(r, m, half, phase="final") for r, m in zip(SCREENS, medians, strict=False)]


def test_the_sentence_says_rate_library_default_ties_and_edge() -> None:
    assert sentence(select(RUN, OUTCOMES)) == (
        "tiles 128x256x64, 8 warps, 3 stages: 717 TFLOP/s, 93 % of cublas, 1.04x torch.compile, "
        "1.18x the default; 2 configs tie within noise; extend block_n beyond 256."
    )


def test_what_launches_took_is_named_as_it_is() -> None:
    run = replace(RUN, launch_kind="tuned config")
    assert "1.18x the tuned config;" in sentence(select(run, OUTCOMES))
    assert headline(select(run, OUTCOMES)).endswith("1.18x as fast as the tuned config")
    assert headline(select(RUN, OUTCOMES)).endswith("1.18x as fast as the default")


def test_a_prediction_says_so_and_claims_no_noise() -> None:
    text = sentence(select(*synthetic.matmul(predicted=True)))
    assert "TFLOP/s predicted" in text and "predicted within 2 %" in text and "noise" not in text


def test_a_memory_bound_kernel_is_judged_in_bytes() -> None:
    for make in (synthetic.copy, synthetic.softmax):
        result = select(*make())
        assert result.winner is not None
        assert rate(result.winner).endswith(" GB/s") and "GB/s" in sentence(result)


def test_nothing_recorded_and_everything_failed_are_answers_too() -> None:
    assert sentence(select(*synthetic.empty())).startswith("No outcome was recorded")
    text = sentence(select(*synthetic.all_failed()))
    start = "None of 12 configs gave a time: 12 did not compile"
    assert text == f"{start} (PassManager::run failed)."


def test_only_a_library_gave_a_time() -> None:
    library = [o for o in OUTCOMES if o.case.is_baseline]
    assert select(RUN, library).winner is None


def test_screens_alone_are_marked_as_such() -> None:
    assert "first-pass times only" in sentence(select(RUN, SCREENS))


def by_turns(of: Record, fast: float, slow: float, share: float) -> Record:
    """A final that takes one of two times."""
    count = round(100 * share)
    samples = (fast,) * count + (slow,) * (100 - count)
    record = timed(of, fast if share > 0.5 else slow, phase="final")
    timing = record.timing
    assert isinstance(timing, Measured)
    modes = (Mode(share, fast), Mode(1 - share, slow))
    return replace(record, timing=replace(timing, samples_s=samples, modes=modes, stable=False))


def test_a_time_with_two_modes_does_not_win_by_its_median() -> None:
    honest = timed(SCREENS[0], 60e-6, phase="final")
    result = select(RUN, [by_turns(SCREENS[1], 40e-6, 125e-6, 0.61), honest])
    assert result.winner is honest
    text = sentence(result)
    assert "is passed over: two modes, 61 % at 40 us, 39 % at 125 us; mean 73.2 us" in text


def test_two_modes_win_where_both_are_fast_or_nothing_else_is_there() -> None:
    slower = timed(SCREENS[0], 200e-6, phase="final")
    fast = by_turns(SCREENS[1], 40e-6, 125e-6, 0.61)
    assert select(RUN, [fast, slower]).winner is fast
    assert select(RUN, [fast]).winner is fast


def test_the_same_bits_as_the_default_restrict_the_winner() -> None:
    default, same, other = (
        replace(r, seed=7, bits=bits)
        for r, bits in zip(finals(90e-6, 80e-6, 60e-6), "AAB", strict=True)
    )
    default = replace(default, default=True)
    strict = replace(RUN, same_bits_as="default")
    assert select(RUN, [default, same, other]).winner is other
    result = select(strict, [default, same, other])
    assert result.winner is same and "1 config with other bits left out" in sentence(result)
    elsewhere = replace(same, seed=8)  # on other inputs, bits say nothing
    assert select(strict, [default, elsewhere, other]).winner is default


def test_classes_of_bits_are_letters_by_their_number() -> None:
    records = [
        replace(r, seed=seed, bits=bits)
        for r, (seed, bits) in zip(
            SCREENS, [(1, "x"), (1, "y"), (1, "y"), (2, "y"), (1, None)], strict=False
        )
    ]
    assert bit_classes(records) == {(1, "y"): "A", (1, "x"): "B", (2, "y"): "C"}
    many = [replace(SCREENS[0], seed=1, bits=f"{n:03}") for n in range(30)]
    assert list(bit_classes(many).values())[25:28] == ["Z", "AA", "AB"]


def test_a_faster_screen_never_beats_a_final() -> None:
    fast_screen = timed(SCREENS[5], 1e-6)
    result = select(RUN, [fast_screen, *finals(200e-6, 210e-6)])
    assert result.winner is not None and result.winner.phase == "final"
    assert result.winner.time_s == 200e-6


def test_a_ratio_needs_one_phase_that_timed_both() -> None:
    final = timed(SCREENS[0], 100e-6, phase="final")
    default = timed(SCREENS[9], 300e-6, default=True)
    assert select(RUN, [final, default]).default is None
    both = select(RUN, [final, timed(SCREENS[0], 150e-6), default]).default
    assert both is not None and both.phase == "first_pass" and both.ratio == pytest.approx(2.0)


def test_a_config_that_failed_later_cannot_win() -> None:
    best = min(SCREENS, key=lambda r: r.time_s)
    wrong = synthetic.failure(RUN, best, "check", "wrong after the last repetition")
    result = select(RUN, [*SCREENS, wrong])
    assert result.winner is not None and result.winner.case != best.case
    assert result.failures == {"check": 1}


def test_inside_a_tie_the_leaner_config_wins_and_the_fastest_is_named() -> None:
    fast, lean = finals(200e-6, 200.4e-6)
    assert fast.resources is not None
    lean = replace(lean, resources=replace(fast.resources, registers=32, binary="lean"))
    fast = replace(fast, resources=replace(fast.resources, registers=200))
    result = select(RUN, [fast, lean])
    assert result.winner is lean and result.fastest is fast and result.ties == (fast,)


def test_overlapping_intervals_tie_and_distant_medians_do_not() -> None:
    assert len(select(RUN, finals(200e-6, 204e-6, half=2.5e-6)).ties) == 1
    assert not select(RUN, finals(200e-6, 204e-6, half=1e-6)).ties


def windowed(of: Record, windows: list[float], **changes: object) -> Record:
    """A final whose samples are two a window, at these seconds."""
    samples = tuple(s for w in windows for s in (w, w))
    low, median_s, high = min(windows), stats.median(windows), max(windows)
    timing = replace(
        of.timing, median_s=median_s, low_s=low, high_s=high, samples_s=samples,
        window_sizes=(2,) * len(windows), rounds=len(windows),
    )  # type: ignore[type-var]  # fmt: skip
    return replace(of, phase="final", timing=timing, **changes)  # type: ignore[arg-type]


@given(
    st.lists(st.floats(0.8, 1.25), min_size=8, max_size=40),
    st.floats(1.01, 1.2),
    st.integers(0, 2**32 - 1),
)
def test_windows_taken_in_turns_see_through_a_wandering_clock(
    clock: list[float], slower: float, seed: int
) -> None:
    """A difference that every window shows is no tie, however wide both intervals are; and one
    that the windows cannot show is, however long it was looked for."""
    base = [200e-6 * c for c in clock]
    one = windowed(SCREENS[0], base)
    other = windowed(SCREENS[1], [slower * s for s in base])
    assert select(RUN, [one, other]).ties == ()
    dice = random.Random(seed)
    noise = [dice.choice((0.99, 1.01)) for _ in base[: len(base) // 2]]
    mixed = [*noise, *(2 - n for n in noise)]  # as often above as below
    same = windowed(SCREENS[1], [m * s for m, s in zip(mixed, base, strict=False)])
    if len(mixed) == len(base):
        assert len(select(RUN, [one, same]).ties) == 1


def test_windows_that_lie_apart_or_were_left_out_are_not_paired() -> None:
    """Then only the intervals are left, and wide ones overlap."""
    base = [200e-6 * c for c in (0.9, 1.0, 1.1, 0.95, 1.05, 0.92, 1.08, 1.0)]
    one, other = windowed(SCREENS[0], base), windowed(SCREENS[1], [1.02 * s for s in base])
    assert isinstance(other.timing, Measured)
    assert select(RUN, [one, other]).ties == ()
    for apart in (
        replace(other, run="another run"),
        replace(other, timing=replace(other.timing, left_out=2)),
        replace(other, timing=replace(other.timing, window_sizes=(16,))),
    ):
        assert len(select(RUN, [one, apart]).ties) == 1


def test_an_incumbent_stays_inside_a_tie_and_not_outside() -> None:
    fast, lean, held = finals(200e-6, 200.3e-6, 200.4e-6)
    assert lean.resources is not None
    lean = replace(lean, resources=replace(lean.resources, registers=16), default=True)
    run = replace(RUN, previous_best={held.case.impl: dict(held.case.config)})
    assert select(RUN, [fast, lean, held]).winner is lean
    assert select(run, [fast, lean, held]).winner is held
    assert select(run, [fast, lean, timed(held, 210e-6)]).winner is lean


def test_configs_of_one_binary_are_twins_and_not_ties() -> None:
    one, other = finals(200e-6, 200e-6)
    other = replace(other, same_as=dict(one.case.config))
    result = select(RUN, [one, other])
    assert not result.ties and len(result.duplicates) == 1


def of_two_impls(phase: str, time_s: float) -> tuple[Record, Record]:
    """Records of one time and one machine code: of the Impl that is listed first, and of the other
    one, which was timed."""
    names = list(RUN.impls)
    first = timed(next(r for r in SCREENS if r.case.impl == names[0]), time_s)
    config = {**first.case.config, "padding": 1}
    case = replace(first.case, impl=names[1], config=config)
    other = replace(first, case=case, key="other", phase=phase, default=False)
    return replace(first, phase=phase, default=False, same_as=config), other


@pytest.mark.parametrize("predicted", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_of_two_impls_with_one_machine_code_the_one_listed_first_wins(predicted, turned):
    """However the two were ordered: which of them was timed is chance."""
    pair = of_two_impls("final", 200e-6)
    if predicted:
        time = Predicted(200e-6, "made up", *[0.0] * 5, "compute")
        pair = tuple(replace(r, phase="predict", timing=time) for r in pair)
    run = replace(RUN, predicted=predicted)
    result = select(run, pair[::-1] if turned else pair)
    assert result.winner is pair[0] and result.duplicates == (pair[1],) and not result.ties
    assert pair[1].resources is not None
    apart = replace(pair[1], resources=replace(pair[1].resources, binary="of another kernel"))
    assert select(run, [pair[0], apart]).ties == (apart,), "the hash tells two Impls apart"
    # a slower one is never chosen for its place, and a faster one never passed over
    later = replace(apart, timing=replace(apart.timing, **faster(predicted)))
    assert select(run, [pair[0], later]).winner is later


def faster(predicted: bool) -> dict[str, object]:
    if predicted:
        return {"predicted_s": 190e-6}
    return {"median_s": 190e-6, "low_s": 190e-6, "high_s": 190e-6, "samples_s": (190e-6,)}


def edge_fields(config: dict[str, int], run: Run = RUN) -> list[str]:
    base = SCREENS[0]
    record = replace(base, case=replace(base.case, config=config), same_as=None)
    return [edge.field for edge in select(run, [record]).edges]


def test_an_edge_is_named_only_where_it_could_be_extended() -> None:
    middle = {"block_m": 128, "block_n": 128, "block_k": 64, "num_warps": 8, "num_stages": 3}
    assert edge_fields(middle) == []  # num_warps has two choices only
    assert edge_fields({**middle, "block_n": 256, "num_stages": 4}) == ["block_n", "num_stages"]
    small = replace(RUN, sizes={"M": 4096, "N": 256, "K": 4096})
    base = SCREENS[0]
    covers = replace(
        base, case=replace(base.case, config={**middle, "block_n": 256}, sizes=small.sizes)
    )
    assert select(small, [covers]).edges == ()  # one block already spans N
    assert edge_fields({**middle, "num_stages": 4}, replace(RUN, tune=())) == []


def test_an_edge_is_said_with_the_way_to_go() -> None:
    config = {"block_m": 128, "block_n": 256, "block_k": 32, "num_warps": 8, "num_stages": 4}
    record = replace(SCREENS[0], case=replace(SCREENS[0].case, config=config), same_as=None)
    text = sentence(select(RUN, [record]))
    assert text.endswith(
        "extend block_n beyond 256, block_k below 32 and num_stages beyond 4."
    )  # in the order of the declaration


def test_other_sizes_and_other_kinds_of_time_are_never_ranked() -> None:
    elsewhere = replace(SCREENS[0], case=replace(SCREENS[0].case, sizes={"M": 8, "N": 8, "K": 8}))
    predicted = synthetic.matmul(predicted=True)[1][0]
    assert relevant(RUN, [elsewhere, predicted]) == []


def test_counts_are_of_configs_and_of_distinct_binaries() -> None:
    result = select(RUN, OUTCOMES)
    assert result.configs == 324 and result.impls == 2
    assert 0 < result.binaries < result.configs
    assert result.failures == {"refused": 54, "compile": 22, "check": 1, "launch": 1, "measure": 2}


def test_a_group_prefers_a_final_to_a_screen_of_the_same_config() -> None:
    final = timed(SCREENS[0], 300e-6, phase="final")
    best = best_per_group([timed(SCREENS[0], 250e-6), final], ["block_m", "block_n"])
    assert [*best.values()] == [final]
    assert best_per_group(OUTCOMES, ["absent"]) == {}


some_outcomes = st.lists(st.sampled_from(OUTCOMES), max_size=40)


@given(some_outcomes)
def test_no_selection_of_outcomes_breaks_the_answer(outcomes: list[Outcome]) -> None:
    result = select(RUN, outcomes)
    assert sentence(result).endswith(".")
    assert (result.winner is None) == all(
        not isinstance(o, Record) or o.case.is_baseline or o.phase == "hot" for o in outcomes
    )
    if result.winner is not None and result.fastest is not None:
        assert not result.winner.case.is_baseline
        assert result.winner.phase == result.fastest.phase
        assert all(t.phase == result.winner.phase for t in result.ties)


@given(st.permutations(OUTCOMES[::9] + OUTCOMES[-12:]))
def test_the_winner_does_not_depend_on_the_order(outcomes: list[Outcome]) -> None:
    one, other = select(RUN, outcomes), select(RUN, sorted(outcomes, key=lambda o: o.key))
    assert sentence(one) == sentence(other)


@given(some_outcomes)
def test_every_config_stands_once_and_failures_stand_last(outcomes: list[Outcome]) -> None:
    stand = ranking(outcomes)
    records = [isinstance(o, Record) for o in stand]
    assert records == sorted(records, reverse=True)
    named = [(o.case.impl, tuple(o.case.config.items())) for o in stand]
    assert len(named) == len(set(named))
    for a, b in itertools.pairwise(o for o in stand if isinstance(o, Record)):
        assert a.phase == "final" or b.phase != "final"
        assert a.phase != b.phase or a.time_s <= b.time_s


@given(st.lists(st.floats(1e-6, 1e-2), min_size=2, max_size=20), st.floats(0.01, 100))
def test_ratios_do_not_depend_on_the_unit(medians: list[float], scale: float) -> None:
    """Multiplying every time by one number changes no winner and no tie."""
    one = select(RUN, finals(*medians))
    other = select(RUN, finals(*(m * scale for m in medians)))
    assert one.winner and other.winner
    close = [m / min(medians) for m in medians]
    if not any(abs(c - 1.005) < 1e-9 for c in close):
        assert one.winner.case == other.winner.case and len(one.ties) == len(other.ties)


@given(st.lists(st.floats(1e-3, 1.05e-3), min_size=1, max_size=8), st.integers(0), st.randoms())
def test_a_default_stays_within_two_percent_of_the_shortest_prediction(
    times: list[float], place: int, dice: random.Random
) -> None:
    outcomes: list[Outcome] = [
        replace(
            r,
            phase="predict",
            timing=Predicted(t, "analytic", *[0.0] * 5, "compute"),
            default=n == place % len(times),
        )
        for n, (r, t) in enumerate(zip(SCREENS, times, strict=False))
    ]
    dice.shuffle(outcomes)
    result = select(PREDICTED, outcomes)
    assert result.winner is not None
    stays = times[place % len(times)] <= min(times) * 1.02
    assert result.winner.default if stays else result.winner.time_s == min(times)
    assert ("(the default)" in sentence(result)) == result.winner.default


# A model that states an interval ranks nothing inside it


def expected_between(times: list[float], **changes: object) -> list[Record]:
    """Predictions of distinct configs with intervals of x0.7 to x2."""
    return [
        replace(
            r,
            phase="predict",
            timing=Predicted(t, "apple-1", None, t, None, 0.0, 0.0, "memory", 0.7 * t, 2 * t),
            **changes,  # type: ignore[arg-type]
        )
        for r, t in zip(SCREENS, times, strict=False)
    ]


PREDICTED = replace(RUN, predicted=True)


@given(st.lists(st.floats(1e-6, 1e-2), min_size=1, max_size=12), st.randoms())
def test_configs_whose_intervals_overlap_with_the_shortest_are_one_class(
    times: list[float], dice: random.Random
) -> None:
    outcomes = expected_between(times)
    dice.shuffle(outcomes)
    result = select(PREDICTED, outcomes)
    alike = {id(r) for r in members(result)}
    assert alike == {id(r) for r in outcomes if 0.7 * r.time_s <= 2 * min(times)}
    assert not result.is_ranked and not result.edges and result.winner is not None
    low, high = class_interval(result)
    assert low == pytest.approx(0.7 * min(times)) and high >= 2 * min(times)
    text = sentence(result)
    assert "predicted to take" in text and "tie" not in text and "x the default" not in text
    assert text.startswith(f"Any of these {len(alike)}") == (len(alike) > 1)


@given(st.lists(st.floats(1e-3, 1.5e-3), min_size=2, max_size=8), st.randoms())
def test_the_order_of_the_outcomes_changes_nothing(times: list[float], dice: random.Random) -> None:
    """A class is listed by name: neither times nor the order of arrival show in it."""
    outcomes = expected_between(times)
    said = sentence(select(PREDICTED, outcomes))
    dice.shuffle(outcomes)
    assert sentence(select(PREDICTED, outcomes)) == said


def test_nothing_separates_configs_that_differ_in_threads_alone() -> None:
    counts = CountedTraffic({"M": 8}, (BufferCounts("x", 32, 0, 32, 0, 1),), 1, 32, 1, 0, 0, 0)
    records = [
        replace(r, case=replace(r.case, impl="online", config={"threads": n}), traffic=counts)
        for r, n in zip(expected_between([1e-3] * 3), (32, 64, 128), strict=True)
    ]
    impls = {"online": {"choices": {"threads": (32, 64, 128)}, "knobs": {"threads": "threads"}}}
    run = replace(PREDICTED, impls=impls)
    assert sentence(select(run, records)).endswith(
        "; nothing separates them without a Mac, as they differ only in their threads and move "
        "equal bytes."
    )
    more = replace(counts, buffers=(replace(counts.buffers[0], sectors=2),), dispatches=0)
    other = [replace(records[0], traffic=more), *records[1:]]
    assert "; nothing separates 2 of them without" in sentence(select(run, other))
    tiles = replace(run, impls={"online": {"choices": {}, "knobs": {"threads": "tile"}}})
    assert "without a Mac" not in sentence(select(tiles, records))
