"""Tests that run in forks: each result arrives once, and a process that ends costs its test."""

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import SimpleNamespace

import forks
import pytest

TESTS = Path(__file__).parents[1]
SUITE = """
import os, sys, time
import pytest

MADE = os.getpid()

@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return tmp_path_factory.mktemp("made")

@pytest.mark.parametrize("n", range(40))
def test_passes(n, made, tmp_path):
    assert made.is_dir() and os.getpid() != MADE == os.getppid()
    print("seen", os.environ["XDG_DATA_HOME"])
    time.sleep(0.01)

def test_fails():
    print("words of the one that fails")
    assert 1 == 2

def test_is_skipped():
    pytest.skip("for a reason")

def test_ends_its_process():
    os._exit(7)

@pytest.fixture
def broken():
    yield
    raise ValueError("at its end")

def test_with_a_broken_end(broken):
    pass
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, list[str]]]:
    """Return what pytest printed of the suite, and the outcomes of each test."""
    folder = tmp_path_factory.mktemp("suite")
    (folder / "conftest.py").write_text("from forks import pytest_addoption, pytest_runtestloop\n")
    (folder / "test_some.py").write_text(SUITE)
    words = ["-q", "--forks", "2", "-p", "no:cacheprovider", "--junitxml=report.xml"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, "--rootdir", str(folder), str(folder)],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(TESTS)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    outcomes: dict[str, list[str]] = {}
    for case in ElementTree.parse(folder / "report.xml").getroot().iter("testcase"):
        outcomes.setdefault(case.get("name", ""), []).extend(c.tag for c in case)
    return done.stdout, outcomes


def test_each_test_has_its_result_once(results) -> None:
    text, outcomes = results
    assert "2 failed, 41 passed, 1 skipped, 1 error" in text
    assert [outcomes[f"test_passes[{n}]"] for n in range(40)] == [[]] * 40
    assert outcomes["test_is_skipped"] == ["skipped"]
    assert outcomes["test_with_a_broken_end"] == ["error"]


def test_a_failure_shows_what_its_test_printed_and_no_other(results) -> None:
    text, _ = results
    assert "words of the one that fails" in text and "assert 1 == 2" in text
    assert "seen " not in text


def test_a_process_that_ends_costs_the_test_that_it_ran(results) -> None:
    text, outcomes = results
    assert outcomes["test_ends_its_process"] == ["failure"]
    assert "the process of this test ended with 7" in text


def test_fewer_tests_are_taken_towards_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = object.__new__(forks.Pool)
    pool._many, pool._waiting = 2, forks.deque(range(100))
    pool._session = SimpleNamespace(shouldfail=False, shouldstop=False, items=list(range(100)))
    monkeypatch.setattr(forks, "share", lambda one, other: 50 <= one < other < 60)
    taken = []
    while some := pool._next():
        taken.append(some)
    assert [n for some in taken for n in some] == list(range(100))
    assert len(taken[0]) == 13 and len(taken[-1]) == 1
    assert any(set(range(50, 60)) <= set(some) for some in taken), "they share a fixture"
    pool._waiting, pool._session.shouldstop = forks.deque([1]), True
    assert pool._next() == []
