"""Each deception that a CPU can show is rejected by its rule, honest kernels are correct, and the
command says so to people and to programs."""

import json
import re

import pytest
from cheats import CHEATS, SPEC, Cheat
from nightly import at_night

from workbench import cli
from workbench.device.hardware import DEVICES
from workbench.evaluation.evaluator import Evaluator, Processes
from workbench.evaluation.submission import Wanted
from workbench.evaluation.verdict import fail_rules, verdict_of
from workbench.measurement.candidate import Refusal
from workbench.measurement.rules import RULES

H200 = DEVICES["h200"]
ON_CPU = [cheat for cheat in CHEATS if not cheat.gpu]
# By day one for each rule that it breaks; test_strict has plans of the same deceptions.
FIRST = {cheat.rules: cheat for cheat in reversed(ON_CPU)}
LOOP_S = 10.0  # which the endless loop costs


@pytest.fixture(scope="module")
def processes():
    running = Processes()
    yield running
    running.close()


def verdict(processes, cheat, folder, seed=11):
    """The verdict of the rules that need no GPU."""
    path = cheat.write(folder)
    processes.checks.restart(checker=cheat.own)  # the last file may have spoiled its process
    processes.recorders.restart()
    trusted = str(path) if cheat.own else str(SPEC)
    wanted = Wanted(str(path), None, {}, "fp32")
    limit_s = LOOP_S if "loop" in cheat.name else 120.0
    evaluator = Evaluator(processes, wanted, trusted, H200, seed, limit_s)
    facts = evaluator.facts(None)
    submission = evaluator.describe(facts)
    if isinstance(submission, Refusal):
        return verdict_of(fail_rules(submission))
    checked = evaluator.check(submission, facts)
    if cheat.own:
        processes.checks.restart()
    return verdict_of(checked.results, checked.error)


@pytest.mark.newest
@pytest.mark.parametrize(
    "cheat", at_night(ON_CPU, lambda c: FIRST[c.rules] is c), ids=lambda c: c.name
)
def test_a_deception_is_rejected_by_its_rule(cheat, processes, tmp_path):
    result = verdict(processes, cheat, tmp_path)
    broken = {r.rule: r.reason for r in result.rules if r.state == "broken"}
    assert result.word == "rejected" and broken.keys() & set(cheat.rules), broken
    assert all(reason and "\n" not in reason for reason in broken.values())


@pytest.mark.parametrize("own", [False, True])
def test_the_honest_kernel_is_correct(own, processes, tmp_path):
    result = verdict(processes, Cheat("honest", (), {}, own=own), tmp_path)
    assert result.word == "correct" and result.error <= 1, result
    assert {r.rule for r in result.rules if r.state == "kept"} == {
        rule.name for rule in RULES if not rule.gpu
    }


def test_there_are_at_least_34_and_each_breaks_known_rules():
    assert len(CHEATS) >= 34 and len({cheat.name for cheat in CHEATS}) == len(CHEATS)
    known = {rule.name: rule for rule in RULES}
    for cheat in CHEATS:
        assert cheat.rules and set(cheat.rules) <= known.keys()
        assert cheat.gpu or any(not known[rule].gpu for rule in cheat.rules)
    proven = {rule for cheat in CHEATS for rule in cheat.rules}
    assert set(known) - proven == {"sanitizer"}


def test_the_command_says_it_to_people_and_programs(tmp_path, capsys):
    path = Cheat("honest", (), {}).write(tmp_path)
    file = tmp_path / "verdict.json"
    words = ["evaluate", str(path), "--spec", str(SPEC), "--device", "h200", "--json", str(file)]
    assert cli.main([*words, "--dtype", "fp32"]) == 0
    printed = capsys.readouterr()
    assert printed.err == "" and "~" in printed.out and "us predicted" in printed.out
    assert re.search(r"~[0-9.]+ us predicted, ~\d+ % of the bound", printed.out)
    rules = re.findall(r"^(streams|timed|floor) +not run +(\S.*)$", printed.out, re.M)
    assert len(rules) == 3, "each has its reason"
    assert printed.out.rstrip().splitlines()[-1].startswith("correct; not run: streams, ")
    result = json.loads(file.read_text())
    assert result["verdict"] == "correct" and result["rule"] is None
    assert result["impl"] == "mine" and result["kernel"] == "scaled_rows"
    assert result["times"]["kind"] == "predicted" and result["times"]["bound_s"] > 0
    assert result["resources"]["registers"] > 0 and len(result["hidden_sizes"]) == 2


@pytest.mark.newest
def test_a_rejected_kernel_has_no_time_and_exit_code_1(tmp_path, capsys):
    path = next(c for c in CHEATS if c.title == "one NaN").write(tmp_path)
    file = tmp_path / "verdict.json"
    words = ["evaluate", str(path), "--spec", str(SPEC), "--device", "h200", "--json", str(file)]
    assert cli.main([*words, "--dtype", "fp32"]) == 1
    out = capsys.readouterr().out
    assert "No time is given" in out and out.rstrip().endswith("rejected: values")
    result = json.loads(file.read_text())
    assert (result["verdict"], result["rule"], result["times"]) == ("rejected", "values", None)


@pytest.mark.newest
@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["missing.py"], "There is no kernel file missing.py"),
        (["softmax", "--dtype", "fp7"], "There is no dtype 'fp7'"),
        (["softmax", "--sizes", "M=3"], "lack N"),
        (["softmax", "--sizes", "M=x,N=3"], "M=x is not a positive whole number"),
        (["softmax", "--impl", "colums"], "There is no impl of softmax 'colums'"),
        (["softmax", "--impl", "rows:block_q=3"], "There is no knob of softmax.rows 'block_q'"),
        (["fp8_matmul", "--dtype", "bf16"], "fp8_matmul.tiles cannot take M=4096,N=4096,K=4096"),
        (["softmax", "--spec", "nothing"], "There is no kernel 'nothing'"),
        (["softmax", "--device", "h2000"], "h2000"),
    ],
)
def test_mistakes_are_one_sentence(words, part, capsys):
    assert cli.main(["evaluate", *words]) == 2
    err = capsys.readouterr().err
    assert part in err and "Traceback" not in err and len(err.strip().splitlines()) == 1
