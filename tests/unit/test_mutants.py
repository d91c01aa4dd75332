"""The lists of planted bugs fit the code: each can be planted, and none is what it was before."""

import ast
import importlib.util
import sys
from collections import Counter
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


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_it_can_be_planted(mutant, tmp_path: Path) -> None:
    path = tmp_path / mutant.file
    path.parent.mkdir(parents=True)
    text = (ROOT / mutant.file).read_text(encoding="utf-8")
    path.write_text(text, encoding="utf-8")
    mutant.planted(tmp_path)
    planted = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        assert ast.dump(ast.parse(planted)) != syntax_of(mutant.file), "a comment is no bug"
    assert planted != text and mutant.says.endswith(".")
    assert mutant.shown_by in ("cpu", "gpu")
    assert all((ROOT / test.partition("::")[0]).exists() for test in mutant.first)


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
