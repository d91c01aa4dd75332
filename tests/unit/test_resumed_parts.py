"""What a stored run spares a later one, and the memory traffic of programs that share tiles: each
limit by hand, on stored outcomes and walks of a few numbers."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import synthetic

from workbench.code import code_work
from workbench.data.machine_failure import is_of_machine
from workbench.data.record import Record
from workbench.tuner import resume
from workbench.tuner.space import Earlier
from workbench.tuner.stopped import stop_of, stopped_search

RUN, OUTCOMES = synthetic.matmul()
TIMED = [o for o in OUTCOMES if isinstance(o, Record) and o.phase == "first_pass"][:3]


class Stored:
    """A history of a few outcomes, by key and phase."""

    def __init__(self, outcomes=(), findings=(), runs=(), state="complete", tried=()):
        self.by_key = {(o.key, phase): o for phase, o in outcomes}
        self.stops, self.tried = {f.run: [f] for f in findings}, list(tried)
        self.runs = {r.id: r for r in runs}
        self.state_of = state

    def find(self, keys, phase):
        return {k: self.by_key[k, phase] for k in keys if (k, phase) in self.by_key}

    def findings(self, run):
        return self.stops.get(run, [])

    def stored_run(self, name):
        return self.runs.get(name)

    def state(self, name):
        return self.state_of

    def outcomes(self, name):
        return self.tried


def candidate(of, older=""):
    return SimpleNamespace(key=of.key, older_key=older, case=of.case, default=of.default)


def plan_of(*outcomes, run=None, **changes):
    one = {"baselines": [], "failures": [], "launches": None} | changes
    run = run or replace(RUN, references={})
    return SimpleNamespace(run=run, candidates=[candidate(o) for o in outcomes], **one)


def failed(stage, reason, cause=None, attempts=1):
    return replace(synthetic.failure(RUN, TIMED[0], stage, reason), cause=cause, attempts=attempts)


@pytest.mark.parametrize(
    "failure, lasts",
    (
        (failed("compile", "no registers"), True),
        (failed("check", "wrong"), True),
        (failed("launch", "shared memory"), True),
        (failed("measure", "unsteady"), False),
        (failed("launch", "it took longer than 12.5 s"), False),
        (failed("compile", "its process died"), False),
        (failed("launch", "lost", "killed", 1), False),
        (failed("launch", "lost", "killed", 2), True),
        (failed("measure", "lost", "killed", 3), True),
        # of the machine, however often: a full disk, the system's killer, a hidden module
        (failed("compile", "OSError: [Errno 28] No space left on device"), False),
        (failed("compile", "fatal   : (C9999) no space left on device"), False),
        (failed("check", "OSError: [Errno 122] Disk quota exceeded"), False),
        (failed("launch", "OSError: [Errno 24] Too many open files"), False),
        (failed("compile", "MemoryError"), False),
        (failed("compile", "EOFError: unexpected EOF"), False),
        (failed("compile", "the compile its process died (exit code -9)", "crash", 2), False),
        (failed("compile", "the compile its process died (exit code 1)", "crash", 2), False),
        (failed("compile", "the compile its process died (exit code 255)", "crash", 2), False),
        (failed("compile", "the compile its process died (exit code -11)", "crash", 2), True),
        (failed("compile", "ImportError: cannot import name 'Random' from 'random'"), False),
        (failed("check", "AttributeError: module 'types' has no attribute 'FunctionType'"), False),
        (failed("check", "AttributeError: module 'mine' has no attribute 'helper'"), True),
        (failed("compile", "took longer than 60 s", "timeout", 2), True),
    ),
)
def test_a_failure_is_kept_that_comes_again(failure, lasts):
    plan = plan_of(TIMED[0])
    stored = Stored([("first_pass", replace(failure, key=TIMED[0].key))])
    assert bool(resume.earlier_outcomes(stored, plan).first) is lasts
    finals = Stored([("final", replace(failure, key=TIMED[0].key))])
    plan.run = replace(plan.run, predicted=False)
    is_kept = bool(resume.earlier_outcomes(finals, plan).final)
    assert is_kept is not is_of_machine(failure.reason)


def test_times_are_kept_of_each_phase_and_of_a_key_of_the_first_schema():
    plan = plan_of(*TIMED)
    plan.baselines = [candidate(TIMED[2])]
    plan.candidates[1].older_key = "old"
    plan.candidates[0].older_key = "unused"
    old = replace(TIMED[1], key="old", run="elsewhere")
    stored = Stored(
        [("first_pass", TIMED[0]), ("first_pass", old), ("final", TIMED[2]), ("hot", TIMED[0])]
    )
    stored.by_key["unused", "first_pass"] = replace(TIMED[2], key="unused")
    known = resume.earlier_outcomes(stored, plan)
    assert known.first == {
        TIMED[0].key: TIMED[0],
        TIMED[1].key: replace(old, key=TIMED[1].key, older_key=True),
    }
    assert known.final == {TIMED[2].key: TIMED[2]} and known.hot == {TIMED[0].key: TIMED[0]}
    assert known.chance_left is None


def test_a_predicted_plan_takes_predictions_alone():
    plan = plan_of(*TIMED, run=synthetic.softmax(predicted=True)[0])
    outcomes = [("predict", TIMED[0]), ("first_pass", TIMED[1]), ("final", TIMED[0])]
    known = resume.earlier_outcomes(Stored(outcomes), plan)
    assert known == Earlier({TIMED[0].key: TIMED[0]})


def stop(of, tried=2, chance=0.07):
    return replace(stopped_search(of, tried, chance, 0.03), run=TIMED[0].run)


def test_a_chance_is_left_where_one_run_of_as_many_configs_stopped():
    plan = plan_of(*TIMED)
    outcomes = [("first_pass", o) for o in TIMED[:2]]
    left = resume.earlier_outcomes(Stored(outcomes, [stop(plan)]), plan).chance_left
    assert left == 0.07
    for other in (stop(plan, tried=3), stop(plan_of(*TIMED[:2]))):
        assert resume.earlier_outcomes(Stored(outcomes, [other]), plan).chance_left is None
    two = [outcomes[0], ("first_pass", replace(TIMED[1], run="another"))]
    assert resume.earlier_outcomes(Stored(two, [stop(plan)]), plan).chance_left is None
    assert resume.earlier_outcomes(Stored([], [stop(plan)]), plan).chance_left is None
    assert resume.earlier_outcomes(Stored(outcomes), plan).chance_left is None


def test_a_finding_of_something_else_is_no_stopped_search():
    whole = stop(plan_of(*TIMED))
    assert (stop_of(whole).tries, stop_of(whole).total, stop_of(whole).chance) == (2, 3, 0.07)
    assert stop_of(replace(whole, word="other")) is None
    assert stop_of(replace(whole, experiment="sweep")) is None
    for n in range(3):
        rest = whole.evidence[:n] + whole.evidence[n + 1 :]
        assert stop_of(replace(whole, evidence=rest)) is None


def test_the_sentence_of_a_stopped_search():
    plan = plan_of(*TIMED)
    words = [stopped_search(plan, 2, chance, 0.03).sentence for chance in (0.009, 0.01, 0.5)]
    assert words[0] == (
        "2 of 3 configs tried: the chance that one of the others is over 3 % faster is under 1 %; "
        "--search exhaustive measures all."
    )
    assert "faster is 1 %;" in words[1] and "faster is 50 %;" in words[2]


def test_times_of_gpus_with_other_references_are_left_out():
    run = replace(RUN, references={"copy": 1.0, "matmul": 1.0})
    near = replace(run, id="near", references={"copy": 1.0, "matmul": 1.029})
    far = replace(run, id="far", references={"copy": 1.0, "matmul": 1.04})
    outcomes = [
        ("first_pass", replace(TIMED[0], run="near")),
        ("first_pass", replace(TIMED[1], run="far")),
        ("first_pass", replace(TIMED[2], run="gone")),
        ("final", replace(TIMED[0], run="far")),
        ("hot", replace(TIMED[1], run="near")),
    ]
    known = resume.earlier_outcomes(Stored(outcomes, runs=[near, far]), plan_of(*TIMED, run=run))
    assert set(known.first) == {TIMED[0].key}
    assert not known.final and set(known.hot) == {TIMED[1].key}
    failure = replace(failed("compile", "no"), key=TIMED[1].key, run="far")
    plan = plan_of(TIMED[0], TIMED[1], run=run)
    kept = resume.earlier_outcomes(Stored([outcomes[0], ("first_pass", failure)]), plan)
    assert set(kept.first) == {TIMED[1].key}  # a failure stays, whatever its GPU


def test_a_chance_is_left_only_where_the_first_times_are_of_alike_gpus():
    run = replace(RUN, references={"copy": 1.0})
    plan = plan_of(*TIMED, run=run)
    outcomes = [("first_pass", o) for o in TIMED[:2]]
    for reference, left in ((1.0, 0.07), (1.2, None)):
        stored = replace(run, id=TIMED[0].run, references={"copy": reference})
        history = Stored(outcomes, [stop(plan)], [stored])
        assert resume.earlier_outcomes(history, plan).chance_left == left


def earlier(*outcomes, final=()):
    return Earlier({o.key: o for o in outcomes}, {o.key: o for o in final})


def test_a_run_covers_a_plan_of_exactly_its_configs():
    run = replace(RUN, id=TIMED[0].run)
    history = Stored(runs=[run], tried=TIMED)
    plan = plan_of(*TIMED, run=run)
    assert resume.covering_run(history, plan, earlier(*TIMED)) is run
    assert resume.covering_run(history, plan, earlier(*TIMED[:2])) is None  # it tried another
    history.tried = TIMED[:2]
    assert resume.covering_run(history, plan, earlier(*TIMED[:2])) is run
    plan.failures = [TIMED[2]]
    assert resume.covering_run(history, plan, earlier(*TIMED[:2])) is None
    history.tried = TIMED
    assert resume.covering_run(history, plan, earlier(*TIMED[:2])) is run
    assert resume.covering_run(history, plan, earlier()) is None


@pytest.mark.parametrize(
    "changes",
    (
        {"state": "stopped"},
        {"runs": []},
        {"runs": [replace(RUN, id=TIMED[0].run, tune=not RUN.tune)]},
        {"tried": [replace(TIMED[0], default=not TIMED[0].default), *TIMED[1:]]},
    ),
)
def test_a_run_that_differs_covers_none(changes):
    run = replace(RUN, id=TIMED[0].run)
    history = Stored(**({"runs": [run], "tried": TIMED} | changes))
    assert resume.covering_run(history, plan_of(*TIMED, run=run), earlier(*TIMED)) is None


def test_finals_of_another_run_cover_none_where_times_are_measured():
    run = replace(RUN, id=TIMED[0].run)
    history = Stored(runs=[run], tried=TIMED)
    plan = plan_of(*TIMED, run=run)
    baseline = replace(TIMED[0], key="library", run="another")
    plan.baselines = [candidate(baseline)]
    assert resume.covering_run(history, plan, earlier(*TIMED)) is run
    assert resume.covering_run(history, plan, earlier(*TIMED, final=[baseline])) is None


def test_a_run_covers_launches_of_today_with_one_more_of_an_impl():
    run = replace(RUN, id=TIMED[0].run)
    assert len({o.case.impl for o in TIMED}) == 1
    plan = plan_of(*TIMED[:2], run=run, launches=object())
    history = Stored(runs=[run], tried=TIMED)
    assert resume.covering_run(history, plan, earlier(*TIMED[:2])) is run  # one other launch
    plan = plan_of(TIMED[0], run=run, launches=object())
    assert resume.covering_run(history, plan, earlier(TIMED[0])) is None  # two
    history.tried = TIMED[:1]
    assert resume.covering_run(history, plan, earlier(TIMED[0])) is run  # none
    plan = plan_of(*TIMED[:2], run=run, launches=object())
    assert resume.covering_run(history, plan, earlier(*TIMED[:2])) is None  # one is not its own
    others = replace(run, impls={**run.impls, "other": {}})
    history = Stored(runs=[others], tried=TIMED)
    assert resume.covering_run(history, plan, earlier(*TIMED[:2])) is None


def test_measured_ceilings_are_those_of_the_finals_run_or_of_the_first():
    ceilings = {"dram_measured": {"value": 1}, "dram": {"value": 2}, "l2_measured": {"value": 3}}
    final, first = (replace(RUN, id=n, ceilings=c) for n, c in (("f", ceilings), ("g", {})))
    one = replace(TIMED[0], run="f")
    other = replace(TIMED[1], run="g")
    history = Stored(runs=[final, first])
    assert resume.measured_ceilings(history, earlier(other, final=[one])) == {
        "dram_measured": {"value": 1},
        "l2_measured": {"value": 3},
    }
    assert resume.measured_ceilings(history, earlier(other)) == {}
    assert resume.measured_ceilings(history, earlier()) == {}
    assert resume.measured_ceilings(Stored(), earlier(one)) == {}


# Bytes of programs that share tiles


def walks(runs, sums, programs):
    """Return walks of regions: the executions of each by program, and its sums."""
    tally = {r: SimpleNamespace(sums=s, waits=0, wgmma=0, peak=0) for r, s in sums.items()}
    full = SimpleNamespace(tally=tally, runs={r: np.array(n) for r, n in runs.items()})
    return full, SimpleNamespace(runs=full.runs, programs=programs)


def test_programs_of_unlike_work_run_in_rounds_on_their_places():
    a, b = (1,), (2,)
    sums = {a: {"flops": 2_000.0}, b: {"vector": 3.0}, (): {"flops": 1e9}}
    full, firsts = walks({a: [1, 1, 1, 1], b: [1, 2, 3, 6], (): [1] * 4}, sums, 4)
    # b has more work (3 against 2), so the programs' shares are 1/3, 2/3, 1 and 2 of the mean, 3
    assert code_work._shares(full, firsts) == pytest.approx([1 / 3, 2 / 3, 1, 2])
    assert code_work._rounds(full, firsts, 4, 4) == pytest.approx(
        2
    )  # each has a place: the longest
    # two places: 1/3 then 1 on the first, 2/3 then 2 on the second
    assert code_work._rounds(full, firsts, 4, 2) == pytest.approx(2 / 3 + 2)
    assert code_work._rounds(full, firsts, 4, 1) == pytest.approx(4)
    assert code_work._rounds(full, firsts, 8, 1) == pytest.approx(8)  # the four stand for eight
    # bytes loaded and copied count one for one: a is the loop with most work, all alike
    sums[a] |= {"load_bytes": 1.0, "copy_bytes": 1.0}
    assert code_work._shares(full, firsts) == pytest.approx([1, 1, 1, 1])
    assert code_work._rounds(full, firsts, 4, 2) is None
    alone, begun = walks({(): [1, 2]}, {(): {"flops": 1.0}}, 2)
    assert code_work._rounds(alone, begun, 2, 1) is None  # no loop
    single, begun = walks({a: [5]}, {a: {"flops": 1.0}}, 1)
    assert code_work._rounds(single, begun, 1, 1) is None


def test_regions_have_the_amounts_of_one_execution():
    loop, branch, never = (1,), ("then",), (2,)
    copied = {"flops": 12.0, "copy_bytes": 24.0}
    sums = {loop: copied, branch: {"flops": 5.0}, never: {"flops": 1.0}}
    full, _ = walks({loop: [2, 4], never: [0, 0]}, sums, 2)
    loads = [(8, "load", loop), (9, "load", loop), (10, "store", loop), (11, "load", branch)]
    full.sites = {
        n: SimpleNamespace(what=what, region=region, waits=2 * (what == "load"), executions=ran)
        for (n, what, region), ran in zip(loads, (1.5, 3.0, 6.0, 4.0), strict=True)
    }
    firsts = SimpleNamespace(runs={loop: np.array([8, 10])})
    results = code_work._regions(full, firsts, {8: 0.0, 9: 0.0, 10: 1.0, 11: 0.0})
    # 12 in 3 executions are 4 of one; the first elements say 9 executions; without runs, one
    assert [(r.amounts, r.executions, r.is_loop, r.waits) for r in results] == [
        # a load that every second execution reaches, of data that the cache has
        ({"flops": 4.0, "copy_bytes": 8.0}, 9.0, True, 2 * 0.5 * code_work.HIT),
        ({"flops": 5.0}, 1.0, False, 2.0),
    ]


def tiles(first, each, argument="x", what="load"):
    sizes = np.array(each, float)
    return code_work._Tiles(argument, what, first, first + np.arange(len(sizes)), sizes)


def test_accesses_of_neighbours_are_one_group():
    one = tiles(0, [100, 100])
    assert one.joins(tiles((1 << 24) - 1, [100, 100])) and not one.joins(tiles(1 << 24, [100, 100]))
    assert one.joins(tiles(8, [101, 101])) and not one.joins(tiles(8, [103, 103]))
    assert not one.joins(tiles(8, [100, 100], "y"))
    assert not one.joins(tiles(8, [100, 100], what="store"))


def test_a_further_access_of_the_same_tiles_counts_as_again():
    groups = {}
    for some in (tiles(0, [4, 4]), tiles(0, [1, 1]), tiles(0, [4, 4])):
        code_work._put(groups, some)
    assert [g.again for g in groups.values()] == [10.0]  # 1 + 1, then 4 + 4
    code_work._put(groups, tiles(0, [5, 6]))  # the larger is the first access; the old comes again
    assert [(g.again, g.each.tolist()) for g in groups.values()] == [(18.0, [5, 6])]
    code_work._put(groups, tiles(64, [5, 6]))  # its neighbour joins it
    assert [g.each.tolist() for g in groups.values()] == [[5, 6, 5, 6]]
    assert next(iter(groups.values())).addresses.tolist() == [0, 1, 64, 65]
    code_work._put(groups, tiles(1 << 25, [5, 6]))
    assert len(groups) == 2
