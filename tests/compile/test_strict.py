"""No deception is correct on evidence, and honest kernels are."""

import json
import re
import tempfile
from pathlib import Path

import pytest
from cheats import CHEATS, SPEC, Cheat
from strict_cheats import STRICT

from workbench import cli
from workbench.device.hardware import DEVICES
from workbench.evaluation.evaluator import Evaluator
from workbench.evaluation.plan_evaluator import PlanEvaluator, add_claims, sources_of
from workbench.evaluation.processes import Processes
from workbench.evaluation.submission import Wanted
from workbench.evaluation.verdict import fail_rules, verdict_of
from workbench.measurement.candidate import Refusal

H200 = DEVICES["h200"]
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def processes():
    running = Processes(sources_of(str(SPEC)))
    yield running
    running.close()


def strict(processes, path):
    """Return the strict verdict on a file without a GPU, with what needs the file's word."""
    for each in (processes.checks._runners, processes.recorders, processes.compilers):
        each.restart()  # the last file may have spoiled its processes
    wanted = Wanted(str(path), None, {}, "fp32")
    given = processes, wanted, str(SPEC), H200, 11
    evaluator = Evaluator(*given, LIMIT_S)
    facts = evaluator.facts(None)
    submission = evaluator.describe(facts)
    if isinstance(submission, Refusal):
        return verdict_of(fail_rules(submission), strict=True), ""
    with tempfile.TemporaryDirectory() as folder:
        by_plan = PlanEvaluator(*given, Path(folder), sources_of(str(path)), LIMIT_S)
        planned = by_plan.evaluate(submission, facts, timed_here=False)
        planned = add_claims(planned, evaluator, submission, facts, strict=True)
    return verdict_of(planned.results, planned.error, strict=True), planned.claim


def titled(title):
    return next(each.cheat for each in STRICT if each.cheat.title == title)


def test_an_honest_kernel_is_correct_on_evidence(processes, tmp_path):
    result, claim = strict(processes, Cheat("honest", (), {}).write(tmp_path))
    assert (result.word, claim) == ("correct", "") and result.error <= 1
    shown = {r.rule: r.shown for r in result.rules if r.state == "kept"}
    assert set(shown.values()) == {"evidence"} and len(shown) == 11
    sizes = next(r.reason for r in result.rules if r.rule == "sizes")
    assert re.fullmatch(r"\d+ of \d+ programs at M=\d{3,},N=\d{3,} are right", sizes)


@pytest.mark.parametrize(("title", "rule"), [
    ("nothing for many rows", "sizes"),
    pytest.param("a float beyond all integers", "values", marks=pytest.mark.nightly),
])  # fmt: skip
def test_what_only_a_plan_shows_is_rejected(title, rule, processes, tmp_path):
    result, _ = strict(processes, titled(title).write(tmp_path))
    assert result.word == "rejected" and result.broken_rule.rule == rule, result


@pytest.mark.nightly
@pytest.mark.parametrize("each", STRICT, ids=lambda each: each.cheat.name)
def test_no_deception_is_correct(each, processes, tmp_path):
    result, claim = strict(processes, each.cheat.write(tmp_path))
    assert result.word in ("rejected", "undecided", "plausible"), result
    assert result.word != "plausible" or claim


@pytest.mark.nightly
@pytest.mark.parametrize("cheat", [c for c in CHEATS if not c.own and "loop" not in c.title],
                         ids=lambda c: c.name)  # fmt: skip
def test_older_deceptions_are_not_correct_either(cheat, processes, tmp_path):
    result, _ = strict(processes, cheat.write(tmp_path))
    assert result.word in ("rejected", "plausible" if cheat.gpu else "rejected"), result


DECLARED = '@scaled_rows.impl(Rows, refuse=refuse, name="mine"'


@pytest.mark.nightly
@pytest.mark.parametrize(("old", "new", "word", "rule"), [
    (DECLARED, f'{DECLARED}, mutates=("x",)', "rejected", "inputs"),
    ("refuse=refuse", "refuse=lambda c, limits, *, itemsize, M, N: None if (M, N) in "
     "((4, 64), (8192, 4096)) else 'no'", "undecided", "sizes"),
])  # fmt: skip
def test_the_spec_says_which_rules_count(old, new, word, rule, processes, tmp_path):
    path = Cheat("honest", (), {}).write(tmp_path)
    path.write_text(path.read_text().replace(old, new))
    result, _ = strict(processes, path)
    assert result.word == word and result.state(rule) != "kept", result


@pytest.mark.nightly
def test_another_file_under_the_name_of_the_spec_is_a_claim(processes, tmp_path):
    path = Cheat("honest", (), {}).write(tmp_path)
    (tmp_path / "scaled_rows.py").write_text(SPEC.read_text() + "\nimport os\n")
    result, claim = strict(processes, path)
    assert result.word == "plausible" and "scaled_rows.py, which is not a file of the Spec" in claim


@pytest.mark.nightly
def test_a_verdict_is_verified_and_its_forgery_is_not(tmp_path, capsys):
    path, stored = Cheat("honest", (), {}).write(tmp_path), tmp_path / "v.json"
    words = ["evaluate", str(path), "--spec", str(SPEC), "--dtype", "fp32", "--device", "h200"]
    assert cli.main([*words, "--json", str(stored)]) == 0
    content = json.loads(stored.read_text())
    assert content["verdict"] == "correct" and len(content["digests"]["plan"]) == 64
    capsys.readouterr()
    assert cli.main(["evaluate", "--verify", str(stored)]) == 0
    assert capsys.readouterr().out.rstrip().endswith("verified")
    path.write_text(path.read_text().replace("y = x * w\n", "y = x + w\n"))
    assert cli.main(["evaluate", "--verify", str(stored)]) == 1
    assert "not verified: other verdict, rule" in capsys.readouterr().out
