"""Triton's hash of its own files is remembered between processes, for these files alone."""

import os
from pathlib import Path

import pytest
from triton.runtime import cache

from workbench.data import triton_key as remembered

pytestmark = pytest.mark.compile


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A Triton of five files, and an empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    triton = tmp_path / "triton"
    for name in ("_C/libtriton.so", "compiler/code.py", "language/core.py", "backends/nvidia/a.py"):
        (triton / name).parent.mkdir(parents=True, exist_ok=True)
        (triton / name).write_text("1")
    (triton / "runtime").mkdir()
    (triton / "runtime" / "cache.py").write_text("1")
    monkeypatch.setattr(cache, "__file__", str(triton / "runtime" / "cache.py"))
    return triton


def asked(monkeypatch, key) -> str:
    """Return the key of a new process, whose Triton would hash its files to `key`."""
    monkeypatch.setattr(cache, "triton_key", lambda: key)
    return remembered.key_of_triton()


def test_it_is_the_key_of_triton_itself(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cache, "triton_key", cache.triton_key)
    real = cache.triton_key()
    assert asked(monkeypatch, real) == real == asked(monkeypatch, "not asked")


@pytest.mark.parametrize("name", ["_C/libtriton.so", "compiler/code.py", "language/core.py"])
def test_a_changed_file_has_another_key(folder, monkeypatch, name):
    assert asked(monkeypatch, "first") == "first" == asked(monkeypatch, "second")
    (folder / name).write_text("22")
    assert asked(monkeypatch, "second") == "second"
    os.utime(folder / name, ns=(1, 1))
    assert asked(monkeypatch, "third") == "third" == asked(monkeypatch, "fourth")
    (folder / "backends" / "amd.py").write_text("1")
    assert asked(monkeypatch, "fifth") == "fifth"


def test_another_place_has_another_key(folder, monkeypatch):
    asked(monkeypatch, "first")
    other = folder.rename(folder.with_name("other"))
    monkeypatch.setattr(cache, "__file__", str(other / "runtime" / "cache.py"))
    assert asked(monkeypatch, "second") == "second"


def test_a_folder_that_cannot_be_written_costs_only_the_time(folder, monkeypatch, tmp_path):
    (tmp_path / "cache").write_text("a file")
    assert asked(monkeypatch, "first") == "first"
    assert asked(monkeypatch, "second") == "second"


def test_an_empty_file_is_no_key(folder, monkeypatch, tmp_path):
    asked(monkeypatch, "first")
    (kept,) = (path for path in Path(tmp_path, "cache").rglob("*") if path.is_file())
    kept.write_text("")
    assert asked(monkeypatch, "second") == "second"
