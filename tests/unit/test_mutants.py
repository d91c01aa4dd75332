"""The lists of planted bugs fit the code: each can be planted, and none is what it was before."""

import ast
import importlib.util
import re
import sys
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_SPEC = importlib.util.spec_from_file_location("mutants_run", ROOT / "tests/mutants/run.py")
assert _SPEC is not None and _SPEC.loader is not None
run = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = run  # dataclasses look their module up
_SPEC.loader.exec_module(run)
MUTANTS = run.mutants()


@cache  # some files have twenty mutants
def syntax_of(file: str) -> str:
    return ast.dump(ast.parse((ROOT / file).read_text(encoding="utf-8")))


def wrong_with(mutant, tree: Path) -> str | None:
    """Return why a mutant cannot be planted in a copy of its file, in a sentence, or None."""
    try:
        planted(mutant, tree)
    except ValueError as error:
        return str(error)
    if code(mutant.old) == code(mutant.new):
        return "a comment is no bug"
    if not mutant.says.endswith(".") or mutant.shown_by not in ("cpu", "gpu"):
        return "it says no sentence, or is shown by something unknown"
    lost = [test for test in mutant.first if not (ROOT / test.partition("::")[0]).exists()]
    return f"there is no {lost[0]}" if lost else None


def planted(mutant, tree: Path) -> str:
    """Return the text of a mutant's file with the mutant in it."""
    path = tree / mutant.file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text((ROOT / mutant.file).read_text(encoding="utf-8"), encoding="utf-8")
    mutant.planted(tree)
    return path.read_text(encoding="utf-8")


def code(passage: str) -> list[str]:
    """Return the words of a passage without its comments."""
    return re.sub(r"#.*", "", passage).split()


def test_each_can_be_planted(tmp_path: Path) -> None:
    reasons = {mutant.name: wrong_with(mutant, tmp_path) for mutant in MUTANTS}
    assert not {name: reason for name, reason in reasons.items() if reason}


@pytest.mark.nightly  # parses a file for each of them, 19 s
def test_each_is_a_program_that_differs(tmp_path: Path) -> None:
    python = [mutant for mutant in MUTANTS if mutant.file.endswith(".py")]
    alike = [
        m.name for m in python if ast.dump(ast.parse(planted(m, tmp_path))) == syntax_of(m.file)
    ]
    assert python and not alike


def test_a_mutant_that_cannot_be_planted_is_noticed(tmp_path: Path) -> None:
    good = next(mutant for mutant in MUTANTS if mutant.file.endswith(".py"))
    assert wrong_with(good, tmp_path) is None
    assert "a comment" in str(wrong_with(replace(good, new=good.old + "  # none"), tmp_path))
    assert "0 times" in str(wrong_with(replace(good, old="no such passage"), tmp_path))
    assert "no tests/none.py" in str(wrong_with(replace(good, first=["tests/none.py"]), tmp_path))


def test_there_are_enough_of_them() -> None:
    shown = Counter((m.suite, m.shown_by) for m in MUTANTS)
    assert shown["kernels", "cpu"] >= 60 and shown["engine", "cpu"] >= 60
    assert shown.total() >= 120
    assert len({m.file for m in MUTANTS if m.suite == "kernels"}) >= 30


def test_old_text_that_is_not_there_once_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\ny = 1\n")
    planted = run.Mutant("twice", "a.py", "= 1", "= 2", "x is 2.", "engine")
    with pytest.raises(ValueError, match=r"twice: its old text stands 2 times in a\.py"):
        planted.planted(tmp_path)
    assert (tmp_path / "a.py").read_text() == "x = 1\ny = 1\n"


def test_a_file_is_put_back_whatever_becomes_of_the_tests(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "workbench/data/stats.py"
    path.parent.mkdir(parents=True)
    path.write_text("x = 1\n")
    mutant = run.Mutant("m", "workbench/data/stats.py", "x = 1", "x = 2", "x is 2.", "engine")
    seen = []

    def failing(step, tree):
        seen.append(path.read_text())
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "first_failure", failing)
    with pytest.raises(KeyboardInterrupt):
        run.killed_by(mutant, tmp_path)
    assert seen == ["x = 2\n"] and path.read_text() == "x = 1\n"


def test_a_test_that_fails_without_a_mutant_kills_none(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "workbench/data/stats.py"
    path.parent.mkdir(parents=True)
    path.write_text("x = 1\n")
    mutant = run.Mutant("m", "workbench/data/stats.py", "x = 1", "x = 2", "x is 2.", "engine")
    monkeypatch.setattr(run, "first_failure", lambda step, tree: "tests/unit/test_a.py::test_b")
    with pytest.raises(run.UnsoundTest, match=r"test_b fails without any mutant"):
        run.killed_by(mutant, tmp_path)
    monkeypatch.setattr(
        run,
        "first_failure",
        lambda step, tree: "t.py::test_b" if path.read_text() == "x = 2\n" else None,
    )
    assert run.killed_by(mutant, tmp_path) == "t.py::test_b"
    monkeypatch.setattr(run, "first_failure", lambda step, tree: None)
    assert run.killed_by(mutant, tmp_path) is None


def test_a_shared_files_mutants_are_sought_by_the_tests_of_both_kernels() -> None:
    mutant = run.Mutant("m", "workbench/kernels/attention.py", "a", "b", "It is.", "kernels")
    first = next(run.steps(mutant))
    assert ("KERNELS", "attention,causal_attention") in first.environment
