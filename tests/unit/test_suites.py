"""`make test` and `make test-all` are chosen by markers alone, the same on every machine."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
_SPEC = importlib.util.spec_from_file_location("run_tests", ROOT / "tests/run.py")
assert _SPEC is not None and _SPEC.loader is not None
run = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = run  # dataclasses look their module up
_SPEC.loader.exec_module(run)

NIGHT = "--hypothesis-profile=night"


@pytest.mark.parametrize(
    ("everything", "older", "kernels", "options"),
    [
        (False, False, "", ("-m", "not nightly")),
        (False, True, "", ("-m", "not nightly and smoke")),
        (False, True, "copy", ("-m", "not nightly and not newest")),
        (True, False, "", (NIGHT,)),
        (True, True, "", ("-m", "not newest", NIGHT)),
    ],
)
def test_markers_choose_the_tests(monkeypatch, everything, older, kernels, options):
    monkeypatch.setenv("KERNELS", kernels)
    assert run.chosen(everything, older) == options


def test_the_older_triton_runs_the_smoke_set(monkeypatch):
    monkeypatch.delenv("KERNELS", raising=False)
    monkeypatch.setattr(run, "obstacle", lambda group: None)
    monkeypatch.setattr(run, "triton_path", lambda minor: "" if minor == "3.9" else "/older")
    older, newer = run.jobs("interpret")
    assert older.options[-1] == "not nightly and smoke" and newer.options[-1] == "not nightly"
    assert older.environment == {"TRITON_INTERPRET": "1", "PYTHONPATH": "/older"}
    assert newer.environment == {"TRITON_INTERPRET": "1"}
    assert run.main(["--all", "no_group"]) == 2


def test_no_test_asks_whether_it_runs_in_continuous_integration():
    asked = re.compile(r"""environ(\.get\(|\[)["']CI["']""")
    files = [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    assert files and not [str(p) for p in files if asked.search(p.read_text(encoding="utf-8"))]
    assert asked.search('os.environ.get("CI")') and asked.search("os.environ['CI']")


def test_the_nightly_workflow_runs_targets_of_make_and_opens_an_issue():
    text = (ROOT / ".github/workflows/nightly.yml").read_text(encoding="utf-8")
    jobs = yaml.safe_load(text)["jobs"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = jobs["night"]["strategy"]["matrix"]["what"]
    assert {"test-all", "mutants"} < set(targets) and "mutants SEED={0} N=100" in text
    assert all(f"\n{target}:" in makefile for target in ("test-all", "mutants"))
    assert jobs["issue"]["needs"] == ["night", "oldest"] and jobs["issue"]["if"] == "failure()"
    assert jobs["issue"]["permissions"] == {"issues": "write"}
    assert "gh issue create" in jobs["issue"]["steps"][0]["run"]


def test_a_linter_that_fails_is_a_failure(monkeypatch):
    monkeypatch.setattr(run, "printed", lambda title, command, environment: "mypy" in command)
    assert run.linted() == {"passed": 3, "failed": 1, "skipped": 0}
    assert run.main(["lint"]) == 1
