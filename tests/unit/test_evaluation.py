"""What the calls of an evaluation decide, as pure functions, and values that travel."""

import gzip
import random
import sys
from concurrent.futures import Future
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from workbench import catalog
from workbench.backend.checking import CheckCall, CheckRequest, Checks, join
from workbench.backend.sanitizing import (
    call_of,
    sanitize_call,
    sanitized_each,
    sanitizer_refusal,
)
from workbench.data.record import Measured
from workbench.device.hardware import DEVICES
from workbench.evaluation.calls import HIDDEN, calls_at, hidden_sizes
from workbench.evaluation.problem import SpecFacts
from workbench.evaluation.submission import Submission
from workbench.evaluation.times import EvaluatedTimes, measured_times
from workbench.evaluation.verdict import RuleResult, call_results, fail_rules, verdict_of
from workbench.measurement.candidate import Refusal, Timed
from workbench.measurement.correctness import Checked, PreparedProblem
from workbench.measurement.handover import CallResult, Returned, compare
from workbench.measurement.packed import Packed, Unpackable, pack_tensor, unpack_tensor
from workbench.measurement.rules import RULES, Fault
from workbench.traces.profilers.running.machine import Machine

SEEDS = st.integers(0, 2**62)
NAMES = [rule.name for rule in RULES]


# Values


@given(
    st.sampled_from([torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool]),
    st.lists(st.integers(0, 4), max_size=3), st.booleans(), SEEDS,
)  # fmt: skip
def test_a_tensor_is_the_same_after_it_travelled(dtype, shape, turned, seed):
    x = (torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 9).to(dtype)
    x = x.t() if turned and x.dim() == 2 else x
    back = unpack_tensor(pack_tensor(x))
    assert back.dtype == x.dtype and back.shape == x.shape and back.stride() == x.stride()
    assert torch.equal(back, x) and back.data_ptr() % 16 == 0


@given(
    st.text(max_size=12), st.lists(st.integers(-3, 9), max_size=4),
    st.lists(st.integers(-3, 9), max_size=4), st.binary(max_size=64),
)  # fmt: skip
def test_other_values_are_no_tensor_and_no_crash(dtype, shape, strides, data):
    try:
        x = unpack_tensor(Packed(dtype, tuple(shape), tuple(strides), data))
    except Unpackable:
        return
    assert x.numel() * x.element_size() <= max(len(data), 0) or 0 in x.shape or 0 in x.stride()


# One call


SPEC = catalog.spec_of("copy")
PROBLEM = PreparedProblem.make(SPEC, SPEC.check[0], "fp32", "cpu", 3)
RIGHT = Returned(
    tuple(pack_tensor(x.float()) for x in PROBLEM.expected_outputs), launches=("_copy",)
)


def test_right_bytes_are_right_and_all_else_breaks_its_rule():
    assert compare(PROBLEM, RIGHT).wrong is None and compare(PROBLEM, RIGHT).bits
    y = RIGHT.outputs[0]
    zeros = replace(y, data=bytes(len(y.data)))
    cases = {
        "values": replace(RIGHT, outputs=(zeros,)),
        "form": replace(RIGHT, outputs=(replace(y, data=y.data[:-1]),)),
        "launches": replace(RIGHT, launches=()),
        "memory": replace(RIGHT, borrowing_fault=Fault("memory", "it is an input")),
        "guards": Returned((), Fault("guards", "it wrote behind")),
    }
    for rule, result in cases.items():
        verdict = compare(PROBLEM, result)
        assert verdict.rule == rule and verdict.wrong and verdict.error > 1


def test_the_seed_of_a_check_is_another_one_each_time():
    seeds = set()
    for _ in range(3):
        checks = Checks(1)
        seeds.add(checks.seed)
        checks.close()
    assert len(seeds) == 3


# Calls


@pytest.mark.parametrize("kernel", ["softmax", "matmul", "q4_k_matmul", "attention"])
@given(seed=SEEDS)
def test_hidden_sizes_are_allowed_and_not_in_the_file(kernel, seed):
    spec = catalog.spec_of(kernel)
    dtype = next(iter(spec.tolerance))
    hidden = hidden_sizes(spec, dtype, seed)
    named = [dict(sizes) for sizes in (*spec.check, *spec.bench)]
    most = max(spec.bytes(sizes, dtype) for sizes in spec.check)
    assert hidden and len({tuple(s.items()) for s in hidden}) == len(hidden)
    for sizes in hidden:
        assert sizes not in named and spec.refuse(sizes) is None
        assert spec.bytes(sizes, dtype) <= 2 * most
    assert hidden == hidden_sizes(spec, dtype, seed)


@given(SEEDS)
def test_every_size_is_called_on_two_values_and_some_again(seed):
    named, hidden = [{"N": 3}, {"N": 5}], [{"N": 4}]
    calls = calls_at(named, hidden, seed)
    for sizes in (*named, *hidden):
        assert len({call.seed for call in calls if call.sizes == sizes}) == 2
    counts = [calls.count(call) for call in set(calls)]
    assert sorted(counts)[-2:] == [3, 3]


CALLS = calls_at([{"N": 3}, {"N": 5}], [{"N": 4}, {"N": 6}], 1)
FUNCTIONS = {call: ("_f",) for call in CALLS}
GOOD = [CallResult(Checked(0.5, bits=f"{call.seed:x}{call.pairs}"), ("_f",), ()) for call in CALLS]
NAMED = [{"N": 3}, {"N": 5}]


def broken(results):
    return {r.rule for r in call_results(CALLS, results, FUNCTIONS, NAMED) if r.state == "broken"}


def test_good_calls_keep_all_rules_that_a_cpu_decides():
    results = call_results(CALLS, GOOD, FUNCTIONS, NAMED)
    assert {r.rule for r in results} == {rule.name for rule in RULES if not rule.gpu}
    assert all(r.state == "kept" for r in results)
    assert verdict_of(results, 0.5).word == "correct"


@given(st.integers(0, len(CALLS) - 1))
def test_one_bad_call_anywhere_breaks_its_rule(at):
    def changed(**to):
        return [replace(r, **to) if i == at else r for i, r in enumerate(GOOD)]

    named = CALLS[at].sizes in NAMED
    wrong = changed(check=Checked(inf, "y is wrong", "values"))
    assert ("values" if named else "sizes") in broken(wrong)
    assert ("sizes" in broken(wrong)) is not named
    assert broken(changed(operators=("add",))) == {"operators"}
    assert broken(changed(launches=("_g",))) == {"launches"}
    assert broken(changed(launches=())) == {"launches"}
    varied = changed(check=Checked(0.5, bits="other"))
    assert ("repeat" in broken(varied)) == (CALLS.count(CALLS[at]) > 1)


def test_without_hidden_sizes_that_rule_did_not_run():
    calls = calls_at(NAMED, [], 1)
    good = [CallResult(Checked(0.5, bits=str(call)), ("_f",), ()) for call in calls]
    results = {r.rule: r for r in call_results(calls, good, dict.fromkeys(calls, ("_f",)), NAMED)}
    assert results["sizes"].state == "not run" and "no size was found" in results["sizes"].reason
    assert verdict_of(results.values(), 0.5).word == "correct"


def test_a_refusal_breaks_the_rule_that_it_names_or_leaves_all_open():
    lost = fail_rules(Refusal("check", "it took longer than 9 s", cause="timeout"))
    assert [(r.rule, r.state) for r in lost] == [("process", "broken")]
    (static,) = fail_rules(Refusal("compile", "it needs 300000 bytes of shared memory"))
    assert (static.rule, static.state) == ("launches", "broken") and "compile" in static.reason
    unknown = verdict_of(fail_rules(Refusal("check", "inline assembly")))
    assert unknown.word == "undecided" and unknown.broken_rule is None


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(["kept", "broken", "not run"]))))
def test_a_rule_once_broken_stays_broken(pairs):
    results = [RuleResult(rule, state) for rule, state in pairs]
    verdict = verdict_of(results)
    assert [r.rule for r in verdict.rules] == NAMES
    for result in verdict.rules:
        states = {state for rule, state in pairs if rule == result.rule}
        expected = next((s for s in ("broken", "kept") if s in states), "not run")
        assert result.state == expected
    assert (verdict.word == "rejected") == any(state == "broken" for _, state in pairs)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), SEEDS)
def test_several_sizes_have_the_largest_error_and_one_hash(errors, seed):
    calls = tuple(CheckCall.create({"N": i + 1}, seed) for i in range(len(errors)))
    request = CheckRequest("copy", "fp32", calls)
    results = [CallResult(Checked(e, bits=f"{i:016x}"), (), ()) for i, e in enumerate(errors)]
    result = join(request, results)
    assert result.error == max(errors) and len(result.bits) == 16
    at = random.Random(seed).randrange(len(errors))
    other = [replace(r, check=replace(r.check, bits="f" * 16)) if i == at else r
             for i, r in enumerate(results)]  # fmt: skip
    assume(other != results)
    assert join(request, other).bits != result.bits
    bad = [replace(r, check=Checked(2.0, "y is wrong", "values")) if i == at else r
           for i, r in enumerate(results)]  # fmt: skip
    refusal = join(request, bad)
    assert isinstance(refusal, Refusal) and refusal.rule == "values"
    assert f"at N={at + 1} " in refusal.reason


def test_there_are_two_hidden_sizes():
    assert HIDDEN == 2


# On a GPU, with a fake one


class FakeGpu:
    """Gives the results that it was created with."""

    device = DEVICES["h200"]

    def __init__(self, first=None, finals=(), begins=True, second=None):
        self.firsts, self.finals, self.begins = [first, second or first], finals, begins
        self.entrants, self.patience = [], []

    def begin(self, problem, candidates=()):
        assert problem.spec.bytes(problem.sizes, problem.dtype) == FACTS.bytes
        assert problem.spec.flops(**problem.sizes) == FACTS.flops
        if not self.begins:
            raise RuntimeError("the inputs do not fit")

    def time(self, candidate, compiled, best_s, patience=1.0):
        future = Future()
        future.set_result(self.firsts[len(self.patience)])
        self.patience.append(patience)
        return future

    def final(self, candidates, estimates):
        self.entrants = [c.case.impl for c in candidates]
        return list(self.finals)


FACTS = SpecFacts("copy", (), (), {"N": 1 << 20}, 8 << 20, 0)
SUBMISSION = Submission("copy", "mine", {"block_n": 1024}, "", (None,), None, ("torch",))


def time_of(seconds, repeats=True):
    timing = Measured(seconds, seconds, seconds, (seconds,) * 5, "cold", "events", "p4-test")
    return Timed(timing, 0.1, "gpu", "00", 7, repeats)


def on(gpu):
    results, times = measured_times(gpu, SUBMISSION, FACTS, None, "mine.py", "fp32")
    return {r.rule: r for r in results}, times


def test_the_best_library_is_the_fastest_of_several():
    slow, fast, own = (time_of(seconds).timing for seconds in (4e-5, 2e-5, 1e-5))
    times = EvaluatedTimes(own, 5e-6, {"torch": slow, "liger": fast, "fla": slow})
    assert times.best_library == ("liger", 2e-5)
    plain = times.plain()
    speedups = {name: each["speedup"] for name, each in plain["libraries"].items()}
    assert speedups == pytest.approx({"torch": 4.0, "liger": 2.0, "fla": 4.0})
    assert plain["share_of_bound"] == 0.5


def test_a_right_kernel_has_its_time_beside_the_librarys():
    gpu = FakeGpu(time_of(1e-5), [time_of(1e-5), time_of(2e-5)])
    rules, times = on(gpu)
    assert gpu.entrants == ["mine", "torch"]
    assert {name for name, r in rules.items() if r.state == "kept"} >= {"streams", "timed", "floor"}
    assert "sanitizer" not in rules
    plain = times.plain()
    assert plain["kind"] == "measured" and plain["time_s"] == 1e-5
    assert plain["libraries"]["torch"]["speedup"] == 2.0 and times.best_library[0] == "torch"
    assert plain["bound_s"] == pytest.approx(FACTS.bytes / gpu.device.dram.value)


@pytest.mark.parametrize(
    ("gpu", "rule"),
    [
        (FakeGpu(Refusal("check", "another stream", rule="streams")), "streams"),
        (FakeGpu(time_of(1e-5), [Refusal("check", "y is wrong", rule="timed")] * 2), "timed"),
        (FakeGpu(Refusal("measure", "below what can be", rule="floor")), "floor"),
        (FakeGpu(Refusal("measure", "it died", cause="crash")), "process"),
    ],
)
def test_what_breaks_a_rule_on_a_gpu_is_rejected(gpu, rule):
    rules, _ = on(gpu)
    assert rules[rule].state == "broken" and rules[rule].reason
    assert verdict_of(rules.values()).word == "rejected"


@pytest.mark.parametrize("cause", ["crash", "timeout"])
def test_a_process_that_is_lost_once_is_no_verdict(cause):
    lost = Refusal("measure", "took longer than 2 s", cause=cause)
    gpu = FakeGpu(lost, [time_of(1e-5), time_of(2e-5)], second=time_of(1e-5))
    rules, times = on(gpu)
    assert times is not None and rules["timed"].state == "kept"
    assert len(gpu.patience) == 2 and gpu.patience[1] > gpu.patience[0]


def test_bits_that_vary_on_a_gpu_are_a_remark():
    rules, times = on(FakeGpu(time_of(1e-5), [time_of(1e-5, repeats=False), time_of(2e-5)]))
    interpreted = RuleResult("repeat", "kept")
    verdict = verdict_of([interpreted, *rules.values()])
    (repeat,) = (r for r in verdict.rules if r.rule == "repeat")
    assert repeat.state == "kept" and "other bits" in repeat.reason and times is not None


def test_what_does_not_fit_the_gpu_is_undecided():
    rules, times = on(FakeGpu(begins=False))
    assert times is None and verdict_of(rules.values()).word == "undecided"


def test_a_library_that_has_no_time_is_left_out():
    _, times = on(FakeGpu(time_of(1e-5), [time_of(1e-5), Refusal("measure", "no graph")]))
    assert times.libraries == {} and times.best_library is None


# compute-sanitizer, as a small program that writes what the real one wrote

TRACES = Path(__file__).parents[1] / "golden" / "traces" / "h200"
LOGS = {check: (TRACES / f"{check}.log").read_text() for check in ("racecheck", "memcheck")}
OUT_OF_BOUNDS = gzip.decompress((TRACES / "oob.log.gz").read_bytes()).decode()
NO_SUMMARY = "========= COMPUTE-SANITIZER\n"
FAKE = """#!{python} -S
import sys
words = sys.argv[1:]
check = words[words.index("--tool") + 1]
assert "--kernel-name" not in words and open(words[-1]).read().count("config(block_m=3)") == 1
text = {logs!r}[check]
open(words[words.index("--log-file") + 1], "w").write(text)
sys.exit(86 if "Invalid" in text else 0)
"""


@pytest.mark.parametrize(
    ("changed", "state", "words"),
    [
        ({}, "kept", ""),
        ({"memcheck": OUT_OF_BOUNDS}, "broken", "memcheck at N=77: 514 errors; the first is"),
        ({"racecheck": OUT_OF_BOUNDS, "memcheck": ""}, "broken", "racecheck at N=77"),
        ({"memcheck": NO_SUMMARY}, "not run", "memcheck ended without a summary"),
        ({"racecheck": "", "memcheck": ""}, "not run", "compute-sanitizer"),
    ],
)
def test_the_rule_of_the_sanitizer(tmp_path, monkeypatch, changed, state, words):
    program = tmp_path / "compute-sanitizer"
    program.write_text(FAKE.format(python=sys.executable, logs=LOGS | changed))
    program.chmod(0o755)
    machine = Machine(sys.executable, "cuda", {}, {}, {program.name: str(program)})
    monkeypatch.setattr("workbench.backend.sanitizing.machine_here", lambda: machine)
    assert sanitizer_refusal() is None
    result = sanitize_call(
        call_of("softmax", "softmax.rows", "rows", {"block_m": 3}, {"N": 77}, "fp32")
    )
    assert result.state == state and words in result.reason
    verdict = verdict_of([RuleResult("values", "kept"), RuleResult("sanitizer", *result)])
    assert verdict.word == ("rejected" if state == "broken" else "correct")
    assert verdict.state("sanitizer") == state


RUNS = """#!{python} -S
import subprocess, sys
words = sys.argv[1:]
with open({started!r}, "a") as file:
    file.write("process\\n")
assert not subprocess.run([{python!r}, words[-1]]).returncode
text = {logs!r}[words[words.index("--tool") + 1]]
open(words[words.index("--log-file") + 1], "w").write(text)
sys.exit(86 if "Invalid" in text else 0)
"""


@pytest.mark.parametrize(
    ("changed", "script", "state", "processes"),
    [
        ({}, "pass\n", "kept", 2),
        # a call that ends the process early cannot hide those behind it
        ({}, "import os; os._exit(0)\n", "kept", 8),
        ({"memcheck": OUT_OF_BOUNDS}, "pass\n", "broken", 8),
    ],
)
def test_calls_share_a_process_while_nothing_is_detected(
    tmp_path, monkeypatch, changed, script, state, processes
):
    program, started = tmp_path / "compute-sanitizer", tmp_path / "started"
    program.write_text(
        RUNS.format(python=sys.executable, logs=LOGS | changed, started=str(started))
    )
    program.chmod(0o755)
    machine = Machine(sys.executable, "cuda", {}, {}, {program.name: str(program)})
    monkeypatch.setattr("workbench.backend.sanitizing.machine_here", lambda: machine)
    monkeypatch.setattr("workbench.backend.sanitizing.script_of", lambda *_: script)
    calls = [
        call_of("softmax", "softmax.rows", "rows", {"block_m": n}, {"N": 77}, "fp32")
        for n in (1, 2, 3)
    ]
    assert [each.state for each in sanitized_each(calls)] == [state] * 3
    assert len(started.read_text().split()) == processes


def test_a_check_that_cannot_run_is_an_error_of_the_request(capsys):
    from workbench.cli import main

    for words, said in (
        ((), "is not possible here: "),
        (("--device", "h200"), "runs the kernel, "),
    ):
        assert main(["evaluate", "copy", "--require", "sanitizer", *words]) == 2
        out, err = capsys.readouterr()
        assert (
            err.startswith(f"error: --require sanitizer {said}")
            and err.count("\n") == 1
            and not out
        )
