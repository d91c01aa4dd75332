"""Tests and benchmarks that need a GPU name nothing that is not there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("tests/gpu", "tests/metal", "benchmarks")


def complaints(*files):
    """What mypy says of names and arguments in these files."""
    words = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "tests/unmeasured.ini")]
    done = subprocess.run(
        [*words, *map(str, files)], cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "MYPYPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"},
    )  # fmt: skip
    assert not done.stderr, done.stderr
    return [line for line in done.stdout.splitlines() if ": error:" in line]


@pytest.mark.nightly
@pytest.mark.parametrize("folder", FOLDERS)
def test_what_needs_a_gpu_calls_what_is_there(folder):
    assert complaints(*sorted((ROOT / folder).glob("*.py"))) == []


@pytest.mark.nightly
def test_a_renamed_option_is_found(tmp_path):
    text = "from workbench.commands.sweep import SweepOptions\n\n"
    file = tmp_path / "test_it.py"
    file.write_text(text + "\ndef test_it():\n    SweepOptions(name='a', metric=3)\n")
    (one,) = complaints(file)
    assert "metric" in one
