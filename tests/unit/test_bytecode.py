"""Bytecode is compiled where Python keeps none, by processes that end with the command."""

import os
import subprocess
import sys
import time
from importlib.util import cache_from_source

import pytest

from workbench.data import bytecode

pytestmark = pytest.mark.unit


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The files of a package that is to be compiled; the last is of its tests."""
    folder = tmp_path / "installed" / "prewarmed_package"
    files = [folder / "__init__.py", folder / "inner" / "deep.py", folder / "tests" / "one.py"]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path / "installed")
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "bytecode"))
    monkeypatch.setattr(bytecode, "PREWARMED", ("missing_package", "prewarmed_package"))
    monkeypatch.setattr(bytecode, "_torch", lambda: str(files[0]))
    monkeypatch.setattr(os, "cpu_count", lambda: bytecode.LEAST_CPUS)
    return files


def compiled(files):
    return [os.path.exists(cache_from_source(str(file))) for file in files]


def test_all_files_but_those_of_tests_are_compiled(package):
    with bytecode.prewarm_bytecode():
        end = time.monotonic() + 60
        while not all(compiled(package[:2])) and time.monotonic() < end:
            time.sleep(0.05)
    assert compiled(package) == [True, True, False]
    assert compiled([__file__]) == [False], "with the prefix, not beside the source"


@pytest.mark.parametrize("reason", ["few CPUs", "kept by Python", "there", "no torch"])
def test_nothing_is_started_without_need(package, monkeypatch, reason):
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("started"))
    if reason == "few CPUs":
        monkeypatch.setattr(os, "cpu_count", lambda: bytecode.LEAST_CPUS - 1)
    elif reason == "kept by Python":
        monkeypatch.setattr(sys, "pycache_prefix", None)
    elif reason == "there":
        path = cache_from_source(str(package[0]))
        os.makedirs(os.path.dirname(path))
        open(path, "w").close()
    else:
        monkeypatch.setattr(bytecode, "_torch", lambda: None)
    with bytecode.prewarm_bytecode():
        pass


def test_the_processes_end_with_the_command(package, monkeypatch):
    started = []
    real = subprocess.Popen

    def begin(command, **options):
        forever = [command[0], "-c", "import time; time.sleep(600)"]
        started.append(real(forever, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", begin)
    with bytecode.prewarm_bytecode():
        assert started[0].poll() is None
    assert started[0].poll() is not None


TOLD = """
import sys
from pathlib import Path
from workbench import catalog
from workbench.data import bytecode
bytecode._torch = lambda: "there.py"
bytecode.Path = lambda text: Path(__file__ if "there" in text else text)  # torch has bytecode
before = sys.dont_write_bytecode
bytecode.keep_bytecode()
sys.path[:0] = ["installed"]
import library
catalog.module_at(Path("mine.py"))
print(before, sys.dont_write_bytecode)
"""


@pytest.mark.parametrize("told", [True, False])
def test_what_is_installed_without_bytecode_gets_it_and_the_users_files_as_python_is_told(
    tmp_path, told
):
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed" / "library.py").write_text("x = 1\n")
    (tmp_path / "beside.py").write_text("x = 2\n")
    (tmp_path / "mine.py").write_text("import beside\n")
    (tmp_path / "told.py").write_text(TOLD)
    variables = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    variables |= {"PYTHONDONTWRITEBYTECODE": "1" if told else ""}
    done = subprocess.run([sys.executable, "told.py"], cwd=tmp_path, env=variables,
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert (done.stderr, done.stdout) == ("", f"{told} False\n")
    assert list((tmp_path / "installed" / "__pycache__").iterdir())
    assert (tmp_path / "__pycache__").exists() is not told
