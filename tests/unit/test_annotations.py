"""Findings at lines of source: GitHub's workflow commands, and SARIF."""

import json
from pathlib import Path

import pytest

from workbench.commands.annotations import Annotation, annotations_of, sarif, workflow_command
from workbench.commands.diagnose import DiagnoseOptions
from workbench.commands.result import write_result

pytestmark = pytest.mark.unit
KERNEL = """\
toy = Spec("toy", ...)


@toy.impl(Blocks)
def blocks(x): ...
"""
DIAGNOSIS = {"rule": "integer_division", "sentence": "It divides.", "advice": "Shift."}


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(KERNEL)
    return tmp_path / "mine.py"


def gate(file, times=(), code=(), **more):
    kind, parts = ("machine code", code) if code else ("times", times)
    comparison = {"kind": kind, "parts": list(parts)}
    return {"command": "gate", "files": [str(file)], "comparison": comparison, **more}


def seen(document):
    return [(a.level, a.rule, a.message, a.file, a.line) for a in annotations_of(document)]


def test_a_wrong_result_is_an_error_at_the_line_of_its_impl(file):
    checks = [
        {"title": "toy.blocks", "state": "wrong", "reason": "y is off"},
        {"title": "toy.blocks", "state": "right", "reason": ""},
    ]
    assert seen(gate(file, checks=checks)) == [
        ("error", "gate/wrong", "WRONG toy.blocks: y is off", file, 5)
    ]


def test_comparisons_and_machine_code_have_their_levels(file):
    def compared(word):
        verdict = {"word": word, "reason": f"{word} by 3 %"} if word else None
        reason = verdict["reason"] if verdict else "it hangs"
        return {"case": case, "word": word or "", "reason": reason}

    words = ("SLOW", "FAST", "SAME", "INCONCLUSIVE", None)
    case = {"kernel": "toy", "impl": "blocks", "device": "h200"}
    pairs = [
        {"case": case, "word": word, "reason": "28 > 37 registers"} for word in ("WORSE", "CHANGED")
    ]
    left = [{"what": "toy.blocks", "reason": "new since main", "broken": False},
            {"what": "mine.py", "reason": "it cannot be imported", "broken": True}]  # fmt: skip
    times, code = gate(file, map(compared, words)), gate(file, code=pairs, left_out=left)
    assert [(level, text) for level, _, text, _, _ in (*seen(times), *seen(code))] == [
        ("error", "SLOW toy.blocks: SLOW by 3 %"),
        ("warning", "INCONCLUSIVE toy.blocks: INCONCLUSIVE by 3 %"),
        ("error", "FAILS toy.blocks: it hangs"),
        ("warning", "WORSE toy.blocks: h200: 28 > 37 registers"),
        ("error", "FAILS mine.py: it cannot be imported"),
    ]


def test_a_rejected_kernel_names_its_rule(file):
    document = {"command": "evaluate", "verdict": "rejected", "rule": "correct", "kernel": "toy",
                "impl": "blocks", "file": "mine.py", "rules": [], "claim": None,
                "reason": "y is wrong"}  # fmt: skip
    (found,) = annotations_of(document)
    assert (found.level, found.rule, found.line) == ("error", "evaluate/correct", 5)
    assert found.message == "rejected: correct: y is wrong"
    assert annotations_of({**document, "verdict": "correct"}) == []


def test_a_diagnosis_is_at_the_first_of_its_places(file):
    document = {"command": "diagnose", "kernel": "mine.py",
                "diagnoses": [DIAGNOSIS | {"places": ("mine.py:4", "mine.py:9")},
                              DIAGNOSIS | {"places": ()}]}  # fmt: skip
    first, second = annotations_of(document)
    assert (first.file.resolve(), first.line) == (file, 4) and second.line == 1
    assert first.message == "It divides. Shift." and first.level == "warning"


def test_a_workflow_command_is_one_line_whatever_the_message_holds(file):
    message = "100 % wrong\n::set-output name=x::1"
    line = workflow_command(Annotation("error", "gate/wrong", message, file, 5))
    assert line == (
        "::error file=mine.py,line=5,title=Kernel Workbench%2C gate/wrong"
        "::100 %25 wrong%0A::set-output name=x::1"
    )
    odd = workflow_command(Annotation("note", "a:b", "x", Path("a,b.py"), 1))
    assert odd.startswith("::notice file=a%2Cb.py,line=1,")
    assert workflow_command(Annotation("note", "r", "x")).startswith("::notice title=")


def test_sarif_has_what_the_standard_requires(file):
    log = sarif([Annotation("error", "gate/wrong", "m", file, 5), Annotation("note", "r", "n")])
    (run,) = log["runs"]
    assert log["version"] == "2.1.0" and run["tool"]["driver"]["name"] == "Kernel Workbench"
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["gate/wrong", "r"]
    first, second = run["results"]
    assert first["level"] == "error" and first["message"] == {"text": "m"}
    (place,) = first["locations"]
    assert place["physicalLocation"] == {
        "artifactLocation": {"uri": "mine.py"}, "region": {"startLine": 5}
    }  # fmt: skip
    assert "locations" not in second


def test_a_command_prints_and_writes_them(file, capsys):
    options = DiagnoseOptions(annotate=True, sarif=Path("found.sarif"))
    found = [DIAGNOSIS | {"places": ("mine.py:4",)}]
    assert write_result(options, "diagnose", 0, kernel="mine.py", diagnoses=found) == 0
    assert capsys.readouterr().out.startswith("::warning file=mine.py,line=4,")
    log = json.loads(Path("found.sarif").read_text())
    assert log["runs"][0]["results"][0]["ruleId"] == "diagnose/integer_division"
