"""The sweep itself: what is planned, what is left out, and the order of what comes."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from null_backend import ENVIRONMENT, Fate, Null
from nullside import CONFIGS, kernel_in

from workbench import catalog
from workbench.backend.protocol import Problem
from workbench.data.record import Failure, Record, Run
from workbench.device.hardware import device_named
from workbench.measurement.protocol import Protocol
from workbench.spec import Work, among, stages, threads, tile
from workbench.sweeps import Sweep
from workbench.tuner.engine import Engine, TimeBreakdown, run
from workbench.tuner.finals import Step
from workbench.tuner.first_pass import SearchPlan
from workbench.tuner.resume import _lasting
from workbench.tuner.search import Budget, Fixed, Strategy
from workbench.tuner.space import Earlier, NothingToSweep, group_of, plan_sweep, thin

H200 = device_named("h200")
RUN = Run(
    id="r",
    engine="sweep",
    name="tile_size",
    command="",
    started="2026-11-21T09:30:00+00:00",
    kernel="toy",
    sizes={"N": 1024},
    dtype="bf16",
    device="h200",
    predicted=False,
    vary=(),
    tune=(),
    impls={},
    ceilings={},
    environment=ENVIRONMENT,
)
TILES = Sweep(vary=[tile], tune=[threads])


@pytest.fixture
def problem(tmp_path):
    kernel = str(kernel_in(tmp_path))
    return Problem(kernel, catalog.spec_of(kernel), {"N": 1024}, "bf16")


def planned(problem, sweep=TILES, **more):
    impls = [i for i in problem.spec.impls if i.backend == "triton"]
    return plan_sweep(RUN, problem, sweep, impls, H200, "p1", **more)


def points(candidates):
    return [(c.config.block_n, c.config.num_warps) for c in candidates]


def test_a_plan_holds_all_that_is_legal_and_why_the_rest_is_not(problem):
    created = planned(problem)
    assert len(created.candidates) == CONFIGS and created.left_out == 0
    assert [f.reason for f in created.failures] == ["128 elements are too many for one warp"]
    assert [b.case.impl for b in created.baselines] == ["torch"]
    assert points(c for c in created.candidates if c.default) == [(32, 2)]
    assert len({c.key for c in created.candidates}) == CONFIGS


def test_only_holds_what_would_be_tuned(problem):
    created = planned(problem, only=True)
    assert points(created.candidates) == [(n, 2) for n in (16, 32, 64, 128)]


def test_the_default_is_tried_even_where_the_space_lacks_it(problem):
    """An Impl may have another default on this device, outside of what its knobs declare."""
    (impl,) = (i for i in problem.spec.impls if i.backend == "triton")
    other = replace(impl, defaults={H200.limits.arch: impl.config(block_n=48, num_warps=2)})
    created = plan_sweep(RUN, problem, TILES, [other], H200, "p1")
    assert points(c for c in created.candidates if c.default) == [(48, 2)]
    assert len(created.candidates) == CONFIGS + 1


def test_a_sweep_of_knobs_that_nobody_declared_keeps_the_default(problem):
    created = planned(problem, Sweep(vary=[stages]))
    assert points(created.candidates) == [(32, 2)]


def test_sizes_that_no_config_takes_are_refused_in_a_sentence(problem):
    odd = replace(problem, sizes={"N": 1000})
    with pytest.raises(NothingToSweep) as text:
        planned(odd)
    assert "can take N=1000 in bf16 on h200: N must be a multiple of 16; name other" in str(
        text.value
    )


def test_a_refuse_that_fails_is_a_reason(problem):
    (impl,) = (i for i in problem.spec.impls if i.backend == "triton")

    def refuse(config, limits, *, itemsize, N):
        return {}[N] if config.block_n == 16 else None

    created = plan_sweep(RUN, problem, TILES, [replace(impl, refuse=refuse)], H200, "p1")
    assert {f.reason for f in created.failures} == {
        "`refuse` of toy.blocks failed (KeyError: 1024)"
    }
    assert len(created.candidates) == 9


# Thinned


@pytest.fixture
def modelled(problem):
    """The kernel with a model that favours few warps, so that the ranking is known."""
    (impl,) = (i for i in problem.spec.impls if i.backend == "triton")

    def work(config, limits, *, itemsize, N):
        if config.block_n == 64:
            raise ZeroDivisionError("a model that fails")
        moved = config.block_n * itemsize * config.num_warps
        return Work(tiles=N // config.block_n, steps=1, load_bytes=moved, store_bytes=moved)

    impl = replace(impl, work=work)
    created = plan_sweep(RUN, problem, TILES, [impl], H200, "p1")
    return created.candidates


@pytest.mark.parametrize("most", range(5, CONFIGS + 2))
def test_every_value_of_the_varied_knobs_and_the_default_stay(modelled, most):
    kept = thin(modelled, most, [tile])
    assert len(kept) == min(most, CONFIGS)
    assert {c.config.block_n for c in kept} == {16, 32, 64, 128}
    assert any(c.default for c in kept)
    assert kept == [c for c in modelled if c in kept], "in the order of the plan"


def test_no_limit_keeps_all(modelled):
    assert thin(modelled, 0, [tile]) == modelled
    assert thin(modelled, math.inf, [tile]) == modelled


def test_the_default_stays_when_one_is_asked_for(modelled):
    assert points(thin(modelled, 1, [tile])) == [(32, 2)]


def test_what_was_left_out_is_counted(problem):
    created = planned(problem, most=5)
    assert len(created.candidates) == 5 and created.left_out == CONFIGS - 5


def test_a_group_is_the_values_of_the_varied_knobs(problem):
    one = planned(problem).candidates[0]
    n, w = one.config.block_n, one.config.num_warps
    assert group_of(one, [tile]) == ("blocks", n)
    assert group_of(one, [tile, threads]) == ("blocks", n, w)
    assert group_of(one, [among]) == ("blocks",)


# Run


def kinds(result):
    return [type(f).__name__ for f in result]


def test_what_is_known_comes_first_and_is_not_obtained(problem):
    created, null = planned(problem), Null(predicts=True)
    first = [o for o in run(created, null, Earlier()) if isinstance(o, Record)]
    known = {o.key: replace(o, run="old") for o in first[:4]}
    later = Null(predicts=True)
    result = list(run(created, later, Earlier(first=known)))
    assert kinds(result[:5]) == ["Failure"] + ["Record"] * 4
    assert all(o.run == "r" for o in result if isinstance(o, Record))
    assert len([w for w, _ in later.requests if w == "time"]) == CONFIGS - 4


@pytest.mark.parametrize("predicts", [True, False])
@given(
    fates=st.dictionaries(
        st.sampled_from([16, 32, 64, 128]),
        st.lists(st.sampled_from(["crash", "timeout"]), min_size=1, max_size=2),
    )
)
@settings(
    deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_lost_process_is_tried_once_more_alone_and_two_equal_losses_stand(
    problem, predicts, fates
):
    created = planned(problem)
    lost = lambda c: Fate(lost=tuple(fates.get(c.case.config.get("block_n"), ())))  # noqa: E731
    null = Null(lost, predicts=predicts)
    result = list(run(created, null, Earlier()))
    again = [label for word, label in null.requests if word == "time again"]
    wanted = [c.case.label for c in created.candidates if c.config.block_n in fates]
    assert sorted(again) == sorted(wanted)
    last = max((i for i, (word, _) in enumerate(null.requests) if word == "time"), default=0)
    assert all(i > last for i, (word, _) in enumerate(null.requests) if word == "time again")
    outcomes = {
        o.key: o for o in result if getattr(o, "phase", "") in ("", "first_pass", "predict")
        and hasattr(o, "key")
    }  # fmt: skip
    for c in created.candidates:
        causes, outcome = fates.get(c.config.block_n, []), outcomes[c.key]
        if len(causes) < 2:
            assert isinstance(outcome, Record)
            continue
        assert outcome.cause == causes[1]
        assert outcome.attempts == (2 if causes[0] == causes[1] else 1)
        assert _lasting(outcome) == (causes[0] == causes[1])


KINDS = st.sampled_from(["good", "good", "wrong", "differs", "lost", "lost for good"])


def fate_of(kind, binary):
    return {
        "good": Fate(binary=binary),
        "wrong": Fate(binary=binary, wrong="y is wrong"),
        "differs": Fate(binary=binary, differs=True),
        "lost": Fate(binary=binary, lost=("crash",)),
        "lost for good": Fate(binary=binary, lost=("crash", "crash")),
    }[kind]


@pytest.mark.parametrize("predicts", [True, False])
@given(
    kinds=st.lists(KINDS, min_size=CONFIGS, max_size=CONFIGS),
    binaries=st.lists(st.sampled_from("abc"), min_size=CONFIGS, max_size=CONFIGS),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_each_config_has_one_outcome_of_its_own_whatever_its_duplicates_do(
    problem, predicts, kinds, binaries
):
    """Host code may differ where machine code is equal: nobody's failure is another's."""
    created = planned(problem)
    fates = {
        c.key: fate_of(kind, binary)
        for c, kind, binary in zip(created.candidates, kinds, binaries, strict=True)
    }
    null = Null(lambda c: fates.get(c.key, Fate()), predicts=predicts)
    first = [
        o
        for o in run(created, null, Earlier())
        if isinstance(o, (Record, Failure)) and o.key in fates
        and getattr(o, "phase", "first_pass") in ("first_pass", "predict")
    ]  # fmt: skip
    assert sorted(o.key for o in first) == sorted(fates)
    by_key = {o.key: o for o in first}
    for key, kind in zip(fates, kinds, strict=True):
        bad = kind in ("wrong", "lost for good")
        assert isinstance(by_key[key], Failure if bad else Record)
        if kind == "differs":
            assert by_key[key].same_as is None
    timed = [o for o in first if isinstance(o, Record) and o.same_as is None]
    alike = [o for o in first if isinstance(o, Record) and o.same_as is not None]
    for outcome in alike:
        (leader,) = (o for o in timed if dict(o.case.config) == dict(outcome.same_as))
        assert leader.resources.binary == outcome.resources.binary
        assert leader.timing == outcome.timing


LATER = """

@toy.impl(Blocks, refuse=refuse)
def blocks_again(x, *, config):
    raise NotImplementedError
"""


@given(order=st.permutations(range(2 * CONFIGS)))
@settings(
    deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_final_is_of_the_impl_listed_first_whichever_was_timed(tmp_path, order):
    """Two Impls with the same machine code: which of them is compiled first is chance."""
    kernel = kernel_in(tmp_path)
    kernel.write_text(kernel.read_text() + LATER)
    spec = catalog.spec_of(str(kernel))
    impls = [i for i in spec.impls if i.backend == "triton"]
    own = replace(RUN, impls={i.name: {} for i in impls})
    problem = Problem(str(kernel), spec, {"N": 1024}, "bf16")
    created = plan_sweep(own, problem, TILES, impls, H200, "p1")
    assert len(created.candidates) == len(order)
    created = replace(created, candidates=[created.candidates[i] for i in order])
    null = Null(lambda c: Fate(binary=str(c.case.config), time_s=1e-6 * len(str(c.case.config))))
    result = [f for f in run(created, null, Earlier()) if isinstance(f, Record)]
    finals = [f for f in result if f.phase in ("final", "hot") and f.case.impl != "torch"]
    assert finals and {f.case.impl for f in finals} == {"blocks"}
    assert {f.case.impl for f in first_pass(result) if f.same_as} <= {"blocks", "blocks_again"}


def test_one_that_hangs_keeps_nobody_waiting(problem):
    created = planned(problem)
    null = Null(lambda c: Fate(hangs=c.config.block_n == 16 and c.config.num_warps == 1),
                predicts=True)  # fmt: skip
    outcomes, stream = [], run(created, null, Earlier())
    while len(outcomes) < CONFIGS:  # one is refused, and all but one are done
        result = next(stream)
        if not isinstance(result, tuple):
            outcomes.append(result)
    assert (16, 1) not in [(o.case.config["block_n"], o.case.config["num_warps"]) for o in outcomes]
    null.release()
    assert len(list(stream)) == 1


def test_duplicates_of_one_that_hangs_wait_for_it_alone(problem):
    created = planned(problem)
    null = Null(lambda c: Fate(hangs=c.config.block_n == 16, binary=str(c.config.block_n)),
                predicts=True)  # fmt: skip
    stream = run(created, null, Earlier())
    seen = [f for f in (next(stream) for _ in range(1 + CONFIGS + 8)) if isinstance(f, Record)]
    assert len(seen) == 8 and all(o.case.config["block_n"] != 16 for o in seen)
    null.release()
    assert [o.same_as is None for o in stream] == [True, False, False]


def test_the_steps_of_a_measured_sweep_are_told(problem):
    rules = Protocol(halve=4, finalists=2)
    null = Null(lambda c: Fate(time_s=1e-6 * getattr(c.config, "block_n", 1)), rules=rules)
    result = list(run(planned(problem), null, Earlier()))
    assert [f for f in result if isinstance(f, Step)] == [
        Step("halving", 4), Step("final", 4), Step("hot", 1),
    ]  # fmt: skip
    finals = [f.case.config.get("block_n") for f in result if getattr(f, "phase", "") == "final"]
    assert finals[:2] == [16, 16] and finals[2:] == [32, None], "then the default and the baseline"
    assert result[-1].phase == "hot"


def test_finalists_are_the_best_of_the_race_and_not_of_the_screen(problem):
    """The race turns the order of the screen over: its windows were taken in turns."""
    created = planned(problem)
    wanted = []

    def fate(candidate):
        place = created.candidates.index(candidate) if candidate in created.candidates else CONFIGS
        halved = any(what == "halve" for what, _ in wanted)
        return Fate(time_s=1e-4 * (1.01 ** (CONFIGS - place if halved else place)))

    null = Null(fate, rules=Protocol(halve=6, finalists=2))
    null.requests = wanted
    result = list(run(created, null, Earlier()))
    finals = [f.key for f in result if getattr(f, "phase", "") == "final"]
    halved = [c.key for c in created.candidates[:6]]
    default = next(c.key for c in created.candidates if c.default)
    assert len(halved) == 6 and default in {*halved, *finals}
    assert finals[:2] == [halved[5], halved[4]], "the two that were fastest in turns"


@pytest.mark.parametrize("who", ["default", "incumbent", "all"])
def test_what_fails_in_the_race_is_in_no_final(problem, who):
    """Though the default and the incumbent are set against the best wherever they have a time."""
    created = planned(problem)
    lost = {
        "default": [c for c in created.candidates if c.default],
        "incumbent": created.candidates[3:4],
        "all": created.candidates,
    }[who]
    null = Null(lambda c: Fate(halve="it drifted" if c in lost else None))
    previous_best = frozenset({created.candidates[3].key})
    result = list(run(created, null, Earlier(previous_best=previous_best)))
    failed = {f.key for f in result if isinstance(f, Failure) and f.reason == "it drifted"}
    assert failed == {c.key for c in lost}
    finals = {f.key for f in result if getattr(f, "phase", "") == "final"}
    assert finals and not finals & failed


def test_a_final_that_knew_all_of_the_screen_stands(problem):
    """Also where the race dropped the screen's best; not where a config came later."""
    created = planned(problem)
    fate = lambda c: Fate(time_s=1e-6 * getattr(c.config, "block_n", 1))  # noqa: E731
    first = [o for o in run(created, Null(fate), Earlier()) if isinstance(o, Record)]
    screens = {o.key: o for o in first if o.phase == "first_pass"}
    finals = {o.key: o for o in first if o.phase == "final"}
    best = min(screens.values(), key=lambda o: o.time_s)
    assert not best.default
    again = Null(fate)
    list(run(created, again, Earlier(screens, finals)))
    assert again.requests == []
    del finals[best.key]
    list(run(created, again, Earlier(screens, finals)))
    assert again.requests == [], "the same run held the race"
    later = {**screens, best.key: replace(best, run="later")}
    list(run(created, again, Earlier(later, finals)))
    assert "final" in {what for what, _ in again.requests}


def test_finals_of_two_runs_do_not_stand_together(problem):
    created = planned(problem)
    first = [o for o in run(created, Null(), Earlier()) if isinstance(o, Record)]
    finals = {o.key: o for o in first if o.phase == "final"}
    baseline = created.baselines[0].key
    finals[baseline] = replace(finals[baseline], run="older")
    again = Null()
    list(run(created, again, Earlier({o.key: o for o in first if o.phase == "first_pass"}, finals)))
    assert "final" in {what for what, _ in again.requests}


def test_a_failure_has_no_final(problem):
    null = Null(lambda c: Fate(wrong="NaN" if c.case.config.get("block_n") == 32 else None))
    result = list(run(planned(problem), null, Earlier()))
    wrong = [f for f in result if isinstance(f, Failure) and f.stage == "check"]
    assert len(wrong) == 3 and not any(
        f.case.config.get("block_n") == 32 for f in result if getattr(f, "phase", "") == "final"
    )


# Hunts


def first_pass(result):
    return [f for f in result if isinstance(f, Record) and f.phase == "first_pass"]


@pytest.mark.parametrize("strategy", Strategy)
def test_every_strategy_tries_all_where_nothing_stops_it(problem, strategy):
    if strategy is Strategy.TPE:
        pytest.importorskip("optuna")
    result = list(run(planned(problem), Null(), Earlier(), SearchPlan(strategy)))
    assert len(first_pass(result)) == CONFIGS


@pytest.mark.parametrize("most", [1, 3, 7])
def test_a_budget_of_configs_is_kept_and_duplicates_are_free(problem, most):
    null = Null(lambda c: Fate(binary=f"of {getattr(c.config, 'block_n', 0)}"))
    search = SearchPlan(Strategy.MODEL, Budget(configs=most))
    result = list(run(planned(problem), null, Earlier(), search))
    timed = [label for what, label in null.requests if what == "time"]
    assert len(timed) == min(most, 4), "four binaries in all"
    assert any(isinstance(f, Record) and f.phase == "final" for f in result), "and then the final"


def test_a_budget_that_was_spent_is_spent(problem):
    created, search = planned(problem), SearchPlan(Strategy.MODEL, Budget(configs=3))
    first = [o for o in run(created, Null(), Earlier(), search) if isinstance(o, Record)]
    screens = {o.key: o for o in first if o.phase == "first_pass"}
    finals = {o.key: o for o in first if o.phase == "final"}
    again = Null()
    assert Engine(created, again, Earlier(screens, finals), search).is_finished
    list(run(created, again, Earlier(screens, finals), search))
    assert not [what for what, _ in again.requests if what in ("compile", "time")]


@pytest.mark.parametrize("more", [1, 2])
def test_duplicates_that_are_known_count_for_no_measurement(problem, more):
    """Two binaries were measured, and six configs are known: a budget of two is spent, and what
    is asked beyond it is measured."""
    created = planned(problem)
    fate = lambda c: Fate(binary=f"of {getattr(c.config, 'block_n', 0)}")  # noqa: E731
    first = first_pass(run(created, Null(fate), Earlier()))
    known = {r.key: r for r in first if r.case.config["block_n"] in (16, 32)}
    assert len(known) == 6 and sum(r.same_as is None for r in known.values()) == 2
    again = Null(fate)
    search = SearchPlan(Strategy.MODEL, Budget(configs=2 + more))
    list(run(created, again, Earlier(first=known), search))
    assert len([what for what, _ in again.requests if what == "time"]) == more
    spent = Null(fate)
    list(run(created, spent, Earlier(first=known), SearchPlan(Strategy.MODEL, Budget(configs=2))))
    assert not [what for what, _ in spent.requests if what in ("time", "compile")]


def test_a_budget_of_seconds_ends_the_screen_and_not_the_final(problem):
    null = Null(lambda c: Fate(takes_s=0.05))
    search = SearchPlan(budget=Budget(seconds=0.4), final_s=0.2)
    result = list(run(planned(problem), null, Earlier(), search))
    assert 1 <= len(first_pass(result)) < CONFIGS
    assert any(isinstance(f, Record) and f.phase == "final" for f in result)


def test_a_search_is_told_all_that_is_known(problem, monkeypatch):
    """Times, also those of duplicates, and that a config failed."""
    created, text = planned(problem), {}
    fate = lambda c: Fate(  # noqa: E731
        binary=f"of {getattr(c.config, 'block_n', 0)}",
        wrong="NaN" if getattr(c.config, "block_n", 0) == 64 else None,
    )
    first = [o for o in run(created, Null(fate), Earlier()) if o.__class__ in (Record, Failure)]
    keys = {c.key for c in created.candidates}
    known = {
        o.key: o
        for o in first
        if o.key in keys and getattr(o, "phase", "first_pass") == "first_pass"
    }
    assert len(known) == CONFIGS and any(isinstance(o, Failure) for o in known.values())

    class Noting(Fixed):
        def tell(self, point, time_s):
            text[point.key] = time_s

    monkeypatch.setattr(
        "workbench.tuner.first_pass.search_of", lambda strategy, points, **_: Noting(points)
    )
    Engine(created, Null(), Earlier(first=known), SearchPlan(Strategy.MODEL))
    assert text == {k: o.time_s if isinstance(o, Record) else None for k, o in known.items()}


@given(
    seconds=st.floats(1.0, 1e4), final_s=st.floats(0.0, 60.0), spent=st.floats(0.0, 2e4),
)  # fmt: skip
def test_the_race_and_the_final_have_their_share_of_the_seconds(seconds, final_s, spent):
    """Configs are tried for what the final leaves, and for half of the whole at least."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "workbench.tuner.first_pass.time", SimpleNamespace(monotonic=lambda: 50.0 + spent)
        )
        search = SearchPlan(budget=Budget(seconds=seconds), start_s=50.0, final_s=final_s)
        left = seconds - final_s if final_s <= seconds / 2 else seconds / 2
        assert search.left_s() == pytest.approx(left - spent, abs=1e-6)
        assert search.is_spent(0) == (search.left_s() <= 0)


def test_problems_share_what_is_left_of_the_seconds():
    search = SearchPlan(budget=Budget(seconds=90.0))
    shares = [search.share(many).budget.seconds for many in (3, 2, 1)]
    assert shares == pytest.approx([30, 45, 90], rel=0.01)
    assert SearchPlan().share(3).budget.seconds == math.inf


def test_what_another_run_measured_leads_the_search_and_is_not_measured_as_a_duplicate(problem):
    """A new config with the machine code of a known one takes its time."""
    created = planned(problem)
    fate = lambda c: Fate(binary=f"of {getattr(c.config, 'block_n', 0)}")  # noqa: E731
    first = first_pass(run(created, Null(fate), Earlier()))
    known = {r.key: r for r in first if r.case.config["num_warps"] == 1 and r.same_as is None}
    assert known
    again = Null(fate)
    later = first_pass(run(created, again, Earlier(first=known)))
    timed = {label for what, label in again.requests if what == "time"}
    blocks = {r.case.config["block_n"] for r in known.values()}
    assert len(later) == CONFIGS and not any(f"block_n {n}," in t for t in timed for n in blocks)


def test_an_engine_is_finished_when_nothing_is_left(problem):
    created = planned(problem)
    first = [o for o in run(created, Null(), Earlier()) if isinstance(o, Record)]
    earlier = Earlier(
        {o.key: o for o in first if o.phase == "first_pass"},
        {o.key: o for o in first if o.phase == "final"},
    )
    assert not Engine(created, Null(), Earlier(), SearchPlan()).is_finished
    assert not Engine(created, Null(), replace(earlier, final={}), SearchPlan()).is_finished
    assert Engine(created, Null(), earlier, SearchPlan()).is_finished


def test_the_hot_time_is_of_the_config_that_the_sweep_names(problem):
    """Inside a tie that is the default, not whoever was faster by a hair."""
    null = Null(lambda c: Fate(time_s=1e-6 if c.default else 0.9999e-6, noise=0.001))
    result = list(run(planned(problem), null, Earlier()))
    (hot,) = (f for f in result if getattr(f, "phase", "") == "hot")
    assert hot.default


def test_an_incumbent_is_in_the_final_though_it_is_slow(problem):
    created = planned(problem)
    slow = max(created.candidates, key=lambda c: (c.config.block_n, c.config.num_warps))
    null = Null(lambda c: Fate(time_s=1e-6 * getattr(c.config, "block_n", 1)),
                rules=Protocol(halve=4, finalists=2))  # fmt: skip
    result = list(run(created, null, Earlier(previous_best=frozenset({slow.key}))))
    assert slow.key in {f.key for f in result if getattr(f, "phase", "") == "final"}


def test_a_split_adds_up_to_the_whole():
    split, backend = TimeBreakdown(), Null()
    split.begin(backend)
    split.table({"measured": 30, "failed": 2, "compiled": 32}, 0.0)
    split.end(backend, 0.5, split._start_s - 2.0)
    assert split.seconds["start"] == pytest.approx(2.0) and split.seconds["wait"] == 0.5
    assert sum(split.seconds.values()) == pytest.approx(2.5, abs=0.1)
    assert split.configs_per_minute is not None
