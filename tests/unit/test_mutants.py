"""The lists of planted bugs fit the code: each can be planted, and none is what it was before."""

import ast
import os
import re
import sys
import time
import tomllib
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "mutants"))  # they import one another as programs do

import draw  # noqa: E402
import forked  # noqa: E402
import run  # noqa: E402
import seeds  # noqa: E402

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


def test_a_shared_files_mutants_are_sought_by_the_tests_of_all_its_kernels() -> None:
    mutant = run.Mutant("m", "workbench/kernels/attention.py", "a", "b", "It is.", "kernels")
    first = next(run.steps(mutant))
    assert ("KERNELS", "attention,attention_backward,causal_attention") in first.environment


# Changes that a seed draws


SOURCE = '''
def f(x: int = 1, *, y=True):
    """Return 2 + 2."""
    for n in range(3):
        if x < n and min(x, n):
            continue
        x += n
        print(x)
    if x == 1: raise ValueError(f"{x + 1}")
    return "a" + "b" if y else x - 1

@triton.jit
def g(x):
    return x + 1

def h():
    @cache
    def inner():
        pass
    return 0.0
'''


def test_each_operator_finds_its_places():
    changes = list(draw.changes_of("a.py", SOURCE))
    assert {(c.line, c.old, c.new) for c in changes} == {
        (4, "3", "4"), (5, "<", "<="), (5, "and", "or"), (5, "min", "max"),
        (5, "x < n and min(x, n)", "not (x < n and min(x, n))"), (6, "continue", "break"),
        (7, "+=", "="), (8, "print(x)", "pass"), (9, "==", "!="), (9, "1", "2"),
        (9, "x == 1", "not (x == 1)"), (10, "-", "+"), (10, "1", "2"),
        (10, '"a" + "b" if y else x - 1', 'x - 1 if y else "a" + "b"'), (20, "0.0", "1.0"),
    }  # fmt: skip
    assert {c.function for c in changes} == {("f", 4), ("h", 17)}  # above the decorator


@pytest.mark.nightly
def test_a_draw_is_the_same_for_a_seed_and_each_change_is_a_program(tmp_path: Path) -> None:
    changes = draw.drawn(7, 150)
    assert changes == draw.drawn(7, 150) != draw.drawn(8, 150)
    assert all(c.new != c.old for c in changes)
    assert len({c.name for c in changes}) == len(changes) == 150
    counts = Counter(draw.subsystem_of(c.file) for c in changes)
    assert set(counts) == {*draw.SUBSYSTEMS, "foundation", "metal"}
    assert min(counts.values()) >= draw.LEAST
    for change in changes:
        path = tmp_path / change.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text((ROOT / change.file).read_text(encoding="utf-8"), encoding="utf-8")
        change.planted(tmp_path)
        ast.parse(path.read_text(encoding="utf-8"))


def test_equivalent_changes_are_places_of_the_tree() -> None:
    text = (ROOT / "tests/mutants/equivalent.toml").read_text(encoding="utf-8")
    for known in tomllib.loads(text).get("mutant", []):
        lines = (ROOT / known["file"]).read_text(encoding="utf-8").splitlines()
        assert known["line"] in [line.strip() for line in lines], known
        assert known["new"] and known["reason"].endswith(".")


def test_a_change_meets_the_tests_that_execute_it_then_those_beside_them(monkeypatch) -> None:
    monkeypatch.setattr(seeds, "SECONDS", 4.0)
    times = ("2.5\tx::b\tt", "0.5\tx::a\tt", "9\tx::c\tt", "0.25\tx::d\tt", "0.1\ty::e\tt")
    lines = [*times, "0\tx::b", "0\tx::a", "0\tx::b", "0\tx::c", "1\tx::c", "2\tfailed"]
    monkeypatch.setattr(seeds, "MOST", 4)
    assert seeds.by_number(lines) == {0: {"x::a": 0.5, "x::b": 2.5}, 1: {"x::c": 9.0}}
    monkeypatch.setattr(seeds, "SECONDS", 12.5)
    tests = seeds.by_number(lines)
    assert list(tests[0]) == ["x::a", "x::b", "x::c", "x::d"]
    assert list(tests[1]) == ["x::c", "x::d", "x::a", "x::b"]


def test_a_change_meets_groups_until_one_kills_it_and_is_not_tried_twice() -> None:
    tests = {
        0: {"tests/unit/a.py::a": 1.0, "tests/web/b.py::b": 2.0},
        1: {"tests/web/b.py::b": 2.0},
    }
    rows: dict = {}

    def jobs(group: str) -> list[tuple[str, list[str], float]]:
        return [(job["change"]["new"], job["tests"], job["seconds"])
                for job in seeds.jobs_of(group, CHANGES, tests, rows)]  # fmt: skip

    def told(number: int, group: str, killed_by: str | None) -> None:
        row = {"killed_by": killed_by, "seconds": 1.5, "unsound": None}
        rows[CHANGES[number].name, group] = row

    assert jobs("unit") == [("<=", ["tests/unit/a.py::a"], 1.0)]
    told(0, "unit", None)
    assert jobs("unit") == [] and [new for new, *_ in jobs("web")] == ["<=", ">"]
    told(0, "unit", "a - KeyError: 3")
    told(1, "web", None)
    assert jobs("web") == []
    verdicts = [seeds.verdict_of(change, rows) for change in CHANGES]
    assert [(v.killed_by, v.seconds) for v in verdicts] == [("a - KeyError: 3", 1.5), (None, 1.5)]


CHANGES = [
    draw.Change("workbench/a.py", 2, 13, 14, "<", new, "<", ("f", 2), "    return x < 1")
    for new in ("<=", ">")
]


def test_a_fork_has_the_change_and_the_parent_has_not(tmp_path: Path) -> None:
    """A name that the change replaces is looked up in a loaded function and on the disk."""
    path = tmp_path / "workbench" / "a.py"
    path.parent.mkdir()
    path.write_text("def f(x):\n    return x < 1\n", encoding="utf-8")
    space: dict = {}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), space)
    forked.loaded.cache_clear()
    before = path.stat().st_mtime_ns

    listeners: list = []

    def protocol(item, nextitem) -> None:
        same = not space["f"](1) and "<=" not in path.read_text(encoding="utf-8")
        crash = SimpleNamespace(message="assert 1 == 2\nmore")
        report = SimpleNamespace(failed=not same, nodeid=item.nodeid)
        report.longrepr = SimpleNamespace(reprcrash=crash)
        listeners[-1].pytest_runtest_logreport(report)

    hook = SimpleNamespace(pytest_runtest_protocol=protocol)
    plugins = SimpleNamespace(register=listeners.append)
    config = SimpleNamespace(hook=hook, pluginmanager=plugins)
    item = SimpleNamespace(nodeid="a.py::test", config=config)

    assert forked.tried(CHANGES[0], tmp_path, [item], 60.0) == "a.py::test - assert 1 == 2"
    assert forked.tried(CHANGES[0], tmp_path, [], 60.0) is None
    assert forked.forked([item], 60.0) is None and space["f"](0) and not space["f"](1)
    assert path.stat().st_mtime_ns == before


def test_a_fork_that_dies_or_does_not_end_is_seen() -> None:
    assert forked.forked([], 60.0, lambda: os._exit(3)) == "the process ended"
    assert forked.forked([], 0.1, lambda: time.sleep(60)) == "no end within 0 s"


def test_a_change_that_only_raises_is_in_no_rate(capsys) -> None:
    def verdict(file: str, killed_by: str | None):
        change = draw.Change(file, 1, 0, 1, "<", "<=", "<", ("f", 2), "")
        return run.Verdict(change, killed_by, 1.0)

    good = [verdict("workbench/data/a.py", "t.py::t - assert 1 == 2")] * 9
    raised = verdict("workbench/data/a.py", "t.py::t - TypeError: no")
    assert seeds.summary([*good, raised]) == 0
    assert "1 only raised" in capsys.readouterr().out
    assert seeds.summary([*good, verdict("workbench/ops/a.py", None)]) == 1
    printed = capsys.readouterr().out
    assert "survived: workbench/ops/a.py:1" in printed and "9 of  10     90%" in printed
