"""Parts of an evaluation and of a final benchmark with fakes that record calls, by hand."""

import json
import math
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import synthetic

from workbench import cli
from workbench.backend import sanitizing
from workbench.backend.workers import LOST
from workbench.catalog import spec_of
from workbench.commands import evaluate_kernel as command
from workbench.commands.evaluate import EvaluateOptions
from workbench.commands.options import CommandError
from workbench.data.record import Energy, Record
from workbench.device.hardware import find_device
from workbench.evaluation import evaluator, plan_evaluator, problem, submission
from workbench.evaluation.digests import files_digests
from workbench.evaluation.plan_evaluator import PlanEvaluation, sources_of
from workbench.evaluation.submission import Submission, Wanted
from workbench.evaluation.verdict import RuleResult, verdict_of
from workbench.measurement.candidate import Refusal, Timed
from workbench.spec import sizes_text
from workbench.tuner import choice, energy, finals, held_back
from workbench.tuner.held_back import HeldSize
from workbench.tuner.portfolio import PortfolioError, portfolio

pytestmark = pytest.mark.unit

H100 = find_device("h100")
FACTS = problem.SpecFacts("softmax", ({"N": 4}, {"N": 8}), ({"N": 5}, {"N": 6}, {"N": 7}),
                          {"N": 64}, 100, 200)  # fmt: skip


def answered(value):
    """Return a future with a value or an error."""
    result = Future()
    if isinstance(value, BaseException):
        result.set_exception(value)
    else:
        result.set_result(value)
    return result


def submitted(rejected=(None,) * 6):
    return Submission("softmax", "rows", {"num_warps": 4}, "c", rejected, (), ("torch",))


class Fakes:
    """The processes of an evaluation: what they are asked, and what they answer."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []
        self.checks = self.compilers = self.recorders = self

    def ask(self, *words, **more):
        self.asked.append((*words, more))
        return answered(self.answers.pop(0))

    run = submit = calls = ask


def evaluation(*answers):
    fakes = Fakes(*answers)
    wanted = Wanted("mine.py", None, {}, "bf16")
    return evaluator.Evaluator(fakes, wanted, "softmax", H100, 7, 33.0), fakes


# An evaluation


def test_sizes_that_the_config_takes_are_two_hidden_ones_at_most():
    assert evaluator._accepted_sizes(submitted(), FACTS) == (
        [{"N": 4}, {"N": 8}],
        [{"N": 5}, {"N": 6}],
    )
    some = submitted((None, "odd", None, "odd", None, None))
    assert evaluator._accepted_sizes(some, FACTS) == ([{"N": 8}], [{"N": 6}, {"N": 7}])
    none = submitted((None, *["odd"] * 5))
    assert evaluator._accepted_sizes(none, FACTS) == ([], [])
    one, fakes = evaluation()
    checked = one.check(none, FACTS)
    assert {r.reason for r in checked.results} == {"the config takes none of the sizes to check"}
    assert fakes.asked == [] and checked.hidden_sizes == ()


def test_facts_come_from_the_process_of_the_reference():
    one, fakes = evaluation(FACTS)
    assert one.facts({"N": 64}) is FACTS
    assert fakes.asked[0][1:5] == ("softmax", "bf16", {"N": 64}, 7)
    one, _ = evaluation(LOST[0]("died"))
    with pytest.raises(problem.SpecError, match="imports the Spec of softmax died; correct that"):
        one.facts(None)


def test_a_submission_is_described_at_all_sizes_and_must_take_those_to_time():
    one, fakes = evaluation(submitted())
    assert one.describe(FACTS) == submitted()
    assert [s["N"] for s in fakes.asked[0][3]] == [64, 4, 8, 5, 6, 7]
    rejected = submitted(("too long", *[None] * 5))
    with pytest.raises(submission.SubmissionError, match=r"softmax\.rows cannot take N=64 in bf16"):
        evaluation(rejected)[0].describe(FACTS)
    later = submitted((None, "too long", *[None] * 4))
    assert evaluation(later)[0].describe(FACTS) == later
    lost = evaluation(LOST[0]("died"))[0].describe(FACTS)
    assert (lost.stage, lost.rule, lost.reason) == (
        "check",
        "process",
        "the import of the file: died",
    )


def test_calls_are_checked_with_the_functions_of_their_sizes():
    def result(error, wrong=""):
        checked = SimpleNamespace(wrong=wrong, rule=None, bits="a", error=error)
        return SimpleNamespace(check=checked, operators=(), launches=("f",))

    names = [("f",)] * 4
    results = [result(0.5), result(0.75), result(9.0, "off"), *[result(0.25)] * 11]
    one, fakes = evaluation(names, results)
    checked = one.check(submitted(), FACTS)
    assert checked.error == 0.75 and checked.hidden_sizes == [{"N": 5}, {"N": 6}]
    assert fakes.asked[0][-1] == {"timeout_s": evaluator.COMPILE_TIMEOUT_S * 4}
    request, kernel, _, limit_s, _ = fakes.asked[1]
    assert (request.kernel, kernel, limit_s) == ("softmax", "mine.py", 33.0)
    assert len(request.calls) == 14 and sum(c.hard for c in request.calls) == 2
    wrong = evaluation(names, [result(1.0, "off")] * 14)[0].check(submitted(), FACTS)
    assert wrong.error is None and any(r.state == "broken" for r in wrong.results)
    for answers in ((Refusal("compile", "bad"),), (names, Refusal("check", "bad", cause="died"))):
        lost, _ = evaluation(*answers)
        checked = lost.check(submitted(), FACTS)
        assert checked.hidden_sizes == [{"N": 5}, {"N": 6}] and len(checked.results) == 1


def test_all_processes_end():
    ended = []
    one = evaluator.Processes.__new__(evaluator.Processes)
    names = ("builders", "checks", "compilers", "recorders", "trusted")
    for name in names:
        setattr(one, name, SimpleNamespace(close=lambda name=name: ended.append(name)))
    one.close()
    assert sorted(ended) == [*names]


def test_facts_of_a_spec_are_of_the_sizes_that_are_timed():
    spec = spec_of("softmax")
    facts = problem.spec_facts("softmax", "bf16", None, 3)
    assert facts.timed_sizes == dict(spec.bench[0]) and facts.bytes == spec.bytes(
        spec.bench[0], "bf16"
    )
    own = dict(spec.check[0])
    facts = problem.spec_facts("softmax", "bf16", own, 3)
    assert facts.timed_sizes == own and facts.flops == spec.flops(**own)
    assert [dict(s) for s in facts.named_sizes] == [dict(s) for s in spec.check]
    known = problem.KnownCosts.make(facts)
    assert known.bytes({}, "any") == facts.bytes and known.flops(**own) == facts.flops
    with pytest.raises(problem.SpecError, match="dtype"):
        problem.spec_facts("softmax", "int3", None, 3)
    example = sizes_text(spec.bench[0])
    with pytest.raises(problem.SpecError, match=f"write --sizes {example}"):
        problem.spec_facts("softmax", "bf16", {next(iter(own)): 4}, 3)


def test_a_config_is_described_at_each_size():
    spec, wanted = spec_of("softmax"), Wanted("softmax", None, {"num_warps": 8}, "bf16")
    sizes = [dict(spec.bench[0]), dict(spec.check[0])]
    one = submission.describe(wanted, H100.limits, sizes)
    first = next(i for i in spec.impls if i.backend == "triton")
    assert (one.kernel, one.impl, one.config["num_warps"]) == ("softmax", first.name, 8)
    assert one.rejections == (None, None) and one.works is not None
    torch = [i.name for i in spec.impls if i.backend == "torch"]
    assert list(one.libraries) == torch
    last = [i for i in spec.impls if i.backend == "triton"][-1]
    named = submission.describe(replace(wanted, impl=last.name), H100.limits, sizes)
    assert named.impl == last.name
    with pytest.raises(submission.SubmissionError, match="odd"):
        submission.describe(replace(wanted, knobs={"num_warps": 8, "odd": 1}), H100.limits, sizes)
    elsewhere = submission._impl(spec, wanted, "another.module")
    assert elsewhere is first
    with pytest.raises(submission.catalog.CatalogError, match="has only Metal kernels"):
        submission._impl(replace(spec, impls=spec.impls[:0]), wanted, "m")
    own = replace(spec, impls=tuple(SimpleNamespace(backend=b, name=n, launch=SimpleNamespace(
        __module__=m)) for b, n, m in (("torch", "t", "mine"), ("triton", "a", "x"), ("triton", "b",
        "mine"), ("triton", "c", "mine"))))  # fmt: skip
    assert submission._impl(own, wanted, "mine").name == "b"
    assert submission._impl(own, wanted, "y").name == "a"


# Held-back sizes of a calibration


def held(best, chosen, default, first, five, rank, spread, errors):
    return HeldSize({}, best, "a", chosen, default, first, five, rank, spread, errors)


def test_the_figures_of_held_back_sizes_are_of_all_of_them():
    nan = math.nan
    some = [held(1.0, 1.04, 2.0, 1.5, 1.25, 0.5, 2.0, [0.1, 0.2]),
            held(2.0, 2.5, None, 2.5, 2.0, 0.25, 1.5, [0.3]),
            held(1.0, None, 1.5, 1.0, 1.0, 0.125, 1.1, [0.4, 0.5]),
            held(1.0, 1.0, 0.0, 4.0, 3.0, nan, 3.0, [])]  # fmt: skip
    found = held_back.summary_of(some)
    assert {n: pytest.approx(v) for n, v in found.items()} == {
        "sizes": 4.0, "chosen_within_5": 0.5,
        "chosen_worst": 0.25, "default_worst": 1.0, "first_median": 0.375, "first_worst": 3.0,
        "five_worst": 2.0, "rank_least": 0.25, "error_median": 0.3}  # fmt: skip
    exact = held(1.0, 1.0 + 2**-5, None, 1.0, 1.0, nan, 1.0, [0.0])
    found = held_back.summary_of([exact, replace(exact, chosen_s=1.0 + 2**-4)])
    assert found["chosen_within_5"] == 0.5 and math.isnan(found["rank_least"])
    assert math.isnan(found["default_worst"])


def test_the_range_of_errors_is_of_all_up_to_twenty_and_of_ninety_percent_from_then_on(monkeypatch):
    ratios = {True: [], False: []}
    monkeypatch.setattr(held_back, "calibrated_kernel", lambda t, s, d, aligned: aligned)
    monkeypatch.setattr(held_back, "left_out", lambda aligned: ratios[aligned])
    monkeypatch.setattr(held_back, "quantile", lambda all_, share: (len(all_), share))
    assert held_back.error_range(None, None, []) is None
    ratios[True], ratios[False] = [1.5] * 10, [0.5, *[1.0] * 8]
    assert held_back.error_range(None, None, []) == held_back.ErrorRange(0.5, 1.5)
    ratios[True].append(9.0)
    assert held_back.error_range(None, None, []) == held_back.ErrorRange((20, 0.05), (20, 0.95))


def test_a_calibrated_launch_is_the_fastest_expected(monkeypatch):
    seconds = {"a": 2.0, "b": 1.0, "c": None, "d": 0.5}

    def best_of(kernel, impl, *_):
        own = seconds[impl.name]
        return own and SimpleNamespace(seconds=own, config=impl.name * 2)

    monkeypatch.setattr(held_back, "best_of", best_of)
    impls = [SimpleNamespace(name=n) for n in "abcd"]
    kernel = SimpleNamespace(spec=SimpleNamespace(impls=impls), impls={"a": 1, "b": 1, "c": 1})
    assert held_back.chosen_launch(kernel, None, "bf16", {}) == (impls[1], "bb")
    seconds |= {"a": None, "b": None}
    assert held_back.chosen_launch(kernel, None, "bf16", {}) is None


# Energies, finals, sets of configs, the order of Impls


TIMED = [Timed(o.timing, 0.1, "here") for o in synthetic.matmul()[1]
         if isinstance(o, Record) and o.phase == "final"][:3]  # fmt: skip
JOULES = synthetic.energy_of(1e-3, 500.0)


def test_energies_go_to_the_times_that_they_are_of():
    asked = []

    def measured(some, windows):
        asked.append((some, windows))
        return [JOULES, "the sensor is gone"]

    backend = SimpleNamespace(energy=measured)
    lost = Refusal("measure", "lost")
    results = energy.add_energies(backend, "abc", [TIMED[0], lost, TIMED[1]], 5)
    assert asked == [(["a", "c"], 5)] and results[1] is lost
    assert isinstance(results[0].timing.energy, Energy) and results[0].timing.energy is JOULES
    assert (results[2].timing.energy, results[2].timing.no_energy) == (None, "the sensor is gone")
    assert energy.add_energies(backend, "a", [lost]) == [lost] and len(asked) == 1


def candidate(key, impl="i", imports=False, default=False):
    return SimpleNamespace(
        key=key, default=default, impl=SimpleNamespace(name=impl, imports=imports)
    )


def final_of(monkeypatch, times, **plan):
    """A final benchmark of these first-pass times by key."""
    one = finals.Finals.__new__(finals.Finals)
    given = {
        "candidates": [candidate(k) for k in times],
        "baselines": [],
        "launches": [],
        "run": None,
    }
    one._plan = SimpleNamespace(**given | plan)
    one._by_key = {c.key: c for c in one._plan.candidates}
    one._times, one._ranking = dict(times), sorted(times, key=times.__getitem__)
    one._allowed_keys, one._codes, one._previous_best = frozenset(times), {}, set()
    one._energy = one._sanitize = False
    one._libraries_s = lambda: 3.0
    one._factory = SimpleNamespace(
        outcome=lambda c, r, phase, compiled, **more: (c.key, r, phase, more),
        failure=lambda c, why, compiled: (c.key, "failed", why),
    )
    return one


def test_the_halving_orders_by_its_own_times_and_drops_what_failed(monkeypatch):
    one = final_of(monkeypatch, {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0})
    asked = []
    own, gone = Refusal("launch", "odd"), Refusal("measure", "gone", own=False)
    answers = [[4.0, own, 2.0], [gone, gone, gone]]

    def halve(*words):
        asked.append(words)
        return [Timed(a, 0.1, "x") if isinstance(a, float) else a for a in answers.pop(0)]

    one._backend = SimpleNamespace(rules=SimpleNamespace(halve=3, finalists=2), halve=halve)
    monkeypatch.setattr(finals, "seconds_of", lambda timed: timed.timing)
    step, failed = one._halving()
    assert (step.name, step.total) == ("halving", 3) and failed == ("b", "failed", own)
    assert asked[0][1:] == ([1.0, 2.0, 3.0], 2) and one._ranking == ["c", "a"]
    assert one._times == {"a": 4.0, "c": 2.0, "d": 4.0}
    assert [c.key for c in one._finalists()] == ["c", "a"]
    again = final_of(monkeypatch, {"a": 1.0, "b": 2.0, "c": 3.0})
    again._backend = one._backend
    assert len(list(again._halving())) == 1 and again._ranking == ["a", "b", "c"]


def test_finalists_are_the_best_each_impls_best_todays_and_quick_libraries(monkeypatch):
    some = [*map(candidate, "abc"), candidate("d", "j"), candidate("e", "j"),
            candidate("f", default=True), *map(candidate, "gh"),
            candidate("lost", default=True)]  # fmt: skip
    libraries = [candidate("quick"), candidate("slow", imports=True)]
    times = {c.key: n + 1.0 for n, c in enumerate(some) if c.key != "lost"}
    one = final_of(monkeypatch, times, candidates=some, baselines=libraries, launches=["g"])
    one._previous_best = {"h"}
    one._backend = SimpleNamespace(rules=SimpleNamespace(finalists=2))
    assert [c.key for c in one._finalists()] == ["a", "b", "d", "f", "g", "h", "quick"]


def test_a_finalist_that_the_sanitizer_refuses_is_a_failure(monkeypatch):
    one = final_of(monkeypatch, {"a": 1.0, "b": 2.0})
    one._backend = SimpleNamespace(sanitize=lambda some: [None, "a race"])
    steps = one._refuse_racy([candidate("a"), candidate("b")])
    assert (first := next(steps)).name == "sanitize" and first.total == 2
    assert next(steps) == ("b", "failed", "a race")
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert end.value.value == {"b"}


@pytest.mark.parametrize(("won", "slow", "some"), [("a", True, True), (None, True, False),
                                                   ("a", False, False)])  # fmt: skip
def test_slow_libraries_are_timed_beside_the_winner(monkeypatch, won, slow, some):
    libraries = [candidate("quick"), *([candidate("slow", imports=True)] if slow else [])]
    one = final_of(monkeypatch, {"a": 1.0}, baselines=libraries)
    winner = None if won is None else SimpleNamespace(key=won)
    monkeypatch.setattr(finals, "select", lambda *_: SimpleNamespace(winner=winner))
    asked = []
    one._backend = SimpleNamespace(
        libraries=lambda *words: asked.append(words) or [(TIMED[0], 2.0)]
    )
    found = list(one._libraries([]))
    assert bool(found) is bool(asked) is some
    if some:
        assert (found[0].name, found[0].total) == ("libraries", 1)
        assert found[1] == ("slow", TIMED[0], "final", {"winner_s": 2.0})
        assert asked == [(one._by_key["a"], [libraries[1]], 3.0)]


def test_times_of_a_portfolio_are_finite_and_above_zero():
    found = portfolio(
        {"s": {"a": 0.0, "b": 2.0, "c": math.inf, "d": 3.0}, "t": {"b": 4.0, "d": 1.0}}
    )
    assert found.members == ("b", "d") and found.exact
    one = portfolio({"s": {"a": 1.0, "b": 1.02}, "t": {"b": 1.0, "a": 1.03}, "u": {"b": 1.0}})
    assert one.members == ("b",) and one.served["s"].ratio == 1.02
    assert one.geomean_ratio == pytest.approx(1.02 ** (1 / 3))
    edge = portfolio({"s": {"a": 1.0, "b": 1.5}, "t": {"b": 1.0}}, within=0.5)
    assert edge.members == ("b",)
    for times in ({}, {"s": {"a": 0.0}}, {"s": {"a": math.nan}}):
        with pytest.raises(PortfolioError):
            portfolio(times)


def test_impls_that_were_not_timed_come_first_where_they_are_clearly_faster(monkeypatch):
    monkeypatch.setattr(choice, "NEAR", 2)
    case = choice.MeasuredCase("k", {"M": 64, "N": 8}, "bf16", ["x", "a", "b"])
    assert case.octaves({"M": 16, "N": 16}) == 3.0 and case.octaves({"M": 64, "N": 8}) == 0.0
    far = {"M": 64, "N": 32}
    assert choice._is_near(case, "bf16", far) and not choice._is_near(case, "fp16", far)
    assert not choice._is_near(case, "bf16", far | {"M": 32})

    def launch(name, expected_s=None):
        return SimpleNamespace(impl=SimpleNamespace(name=name), expected_s=expected_s)

    limit = 2.0 / (1 + choice.CLEAR)
    some = [launch("b", 9.0), launch("a", 2.0), launch("new", limit), launch("fast", limit * 0.99),
            launch("odd")]  # fmt: skip
    order = choice._measured_order(case, some)
    assert order == [2.0, 1.0, math.inf, -1 / (limit * 0.99), math.inf]
    assert choice._measured_order(case, [launch("new", 1.0)]) == [math.inf]


# The command


def options(**more):
    return EvaluateOptions(kernel="mine.py", spec="softmax", dtype="bf16", quiet=True, **more)


def evaluated(word="correct"):
    state = "kept" if word == "correct" else "broken"
    rules = [RuleResult(n, state, "", "evidence") for n in ("values", "sizes")]
    known = {"digests": {"plan": "a"}, "spec": "softmax", "seed": 9, "is_predicted": True}
    wanted = Wanted("mine.py", None, {}, "bf16")
    return command.Evaluation(wanted, H100, facts=FACTS, verdict=verdict_of(rules, 0.5, True),
                              submission=submitted(), **known)  # fmt: skip


def test_a_plan_is_sanitized_and_not_the_file(monkeypatch):
    asked = []
    monkeypatch.setattr(command, "add_claims", lambda planned, *_: planned)
    monkeypatch.setattr(command, "measured_times", lambda *_: ([], None))
    monkeypatch.setattr(sanitizing, "call_of", lambda *words: asked.append(words))
    monkeypatch.setattr(sanitizing, "sanitize_call", lambda call: ("kept", ""))
    rules = [RuleResult(n, "kept", "", "evidence") for n in ("values", "sizes")]
    compiled = SimpleNamespace(binary="b", resources=None)
    planned = PlanEvaluation(rules, "", 0.5, ({"N": 5}, {"N": 6}), compiled, "/t/plan.py",
                             submitted(), "digest")  # fmt: skip
    known = {"request": Wanted("mine.py", None, {}, "bf16"), "facts": FACTS, "device": H100,
             "is_predicted": False, "digests": {}}  # fmt: skip
    result = command._decide(
        options(require=("sanitizer",)), None, submitted(), planned, object(), known
    )
    assert asked[0][0] == "/t/plan.py" and asked[0][4] == {"N": 6}
    shown = next(r for r in result.verdict.rules if r.rule == "sanitizer")
    assert (shown.state, shown.shown) == ("kept", "evidence")


def stored_verdict(folder, monkeypatch):
    path = folder / "v.json"
    monkeypatch.setattr(command, "require_triton", lambda: None)
    monkeypatch.setattr(command, "_evaluate_task", lambda *_, **more: evaluated())
    assert command.evaluate(options(device="h100", json=path)) == 0
    return path


def test_a_stored_verdict_is_verified_by_the_same_seed(tmp_path, monkeypatch, capsys):
    path, seeds = stored_verdict(tmp_path, monkeypatch), []
    again = {"kept": evaluated(), "broken": evaluated("rejected")}
    for state, code in (("kept", 0), ("broken", 1)):
        monkeypatch.setattr(command, "_evaluate_task", lambda options, opened, seed, s=state: (
            seeds.append((seed, options.kernel, options.spec)) or again[s]))  # fmt: skip
        assert command.evaluate(EvaluateOptions(verify=path, quiet=True)) == code
    assert seeds == [(9, "mine.py", "softmax")] * 2
    assert "not verified: other verdict, rule" in capsys.readouterr().out


def test_a_stopped_verification_and_a_full_disk_say_so_and_leave_the_verdict(
    tmp_path, monkeypatch, capsys
):
    path = stored_verdict(tmp_path, monkeypatch)
    before = path.read_bytes()

    def stopped(*_, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_evaluate_task", stopped)
    assert cli.main(["evaluate", "--verify", str(path), "--json", str(path)]) == 130
    assert path.read_bytes() == before
    monkeypatch.setattr(command, "_evaluate_task", lambda *_, **more: evaluated())
    assert cli.main(["evaluate", "--verify", str(path), "--json", "/dev/full"]) == 2
    assert "no space left on device" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_a_verdict_is_given_again_at_once_for_the_same_contents_request_and_gpu(
    tmp_path, monkeypatch, capsys
):
    kernel, path, judged = tmp_path / "mine.py", tmp_path / "v.json", []
    kernel.write_text("x = 1\n")
    gpu = [H100]

    def judge(options, opened):
        digests = files_digests({}, sources_of(str(kernel)))
        judged.append(options.sizes)
        return replace(evaluated("rejected"), digests=digests, is_predicted=False)

    def code_of(**more):
        asked = {"kernel": str(kernel), "spec": "softmax", "json": path, "reuse": path, **more}
        return command.evaluate(EvaluateOptions(**asked))

    monkeypatch.setattr(command, "require_triton", lambda: None)
    monkeypatch.setattr(command, "_evaluate_task", judge)
    monkeypatch.setattr(command, "gpu_present", lambda: True)
    monkeypatch.setattr(command.hardware, "live", lambda: gpu[0])
    assert code_of() == 1 and len(judged) == 1, "there was no file"
    first = json.loads(path.read_text())
    capsys.readouterr()
    assert code_of() == 1 and len(judged) == 1
    said = capsys.readouterr().out
    assert "rejected (values" in said and "nothing was run" in said
    assert json.loads(path.read_text()) == first
    gpu[0] = find_device("h200")
    assert code_of() == 1 and len(judged) == 2, "another GPU"
    gpu[0] = H100
    assert code_of(sizes="N=4") == 1 and len(judged) == 3, "another request"
    assert code_of() == 1 and len(judged) == 4, "which the file is of now"
    kernel.write_text("x = 2\n")
    assert code_of() == 1 and len(judged) == 5, "another content"
    assert code_of() == 1 and len(judged) == 5
    with pytest.raises(CommandError, match="--verify judges again, and --reuse does not"):
        code_of(verify=path)


def replayed(monkeypatch, *compiled):
    """A plan of right calls, whose compile gives these results, and the limits it was given."""
    limits, answers = [], list(compiled)

    def submit(task, job, timeout_s):
        limits.append(timeout_s)
        return answered(answers.pop(0))

    processes = SimpleNamespace(
        builders=SimpleNamespace(submit=submit),
        trusted=SimpleNamespace(calls=lambda *_: answered([])),
    )
    judge = SimpleNamespace(
        _processes=processes, _limit_s=9.0, _wanted=Wanted("m.py", None, {}, "bf16"), _device=H100
    )
    kept = [RuleResult(n, "kept") for n in ("values", "sizes", "process")]
    monkeypatch.setattr(plan_evaluator, "call_results", lambda *_: list(kept))
    plan = SimpleNamespace(digest="d")
    sizes = plan_evaluator._Sizes([{"N": 4}], [{"N": 5}], [], [])
    request = SimpleNamespace(calls=())
    one = plan_evaluator._Replayed(judge, plan, (), sizes, (Path("p.py"), ()), FACTS, request)
    return one.evaluate(submitted(), [], None, True), limits


def test_a_compile_that_is_late_is_tried_again_and_is_no_fault_of_the_kernel(monkeypatch):
    late = TimeoutError("took longer than 60 s")
    result, limits = replayed(monkeypatch, late, late)
    assert limits == [60.0, 240.0] and result.compilation is None
    verdict = verdict_of(result.results, 0.5, True)
    assert verdict.word == "undecided" and verdict.state("process") == "kept"
    reason = next(r.reason for r in verdict.rules if r.rule == "sizes")
    assert reason == "its machine code was not there after 240 s; try again without load"
    result, limits = replayed(monkeypatch, late, "compiled")
    assert result.compilation == "compiled" and len(limits) == 2
    result, limits = replayed(monkeypatch, ChildProcessError("its process died"))
    assert verdict_of(result.results, 0.5, True).broken_rule.rule == "process" and len(limits) == 1
