"""Commands on another machine: here this one, through a real ssh server of a test."""

import io
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from workbench.cli import main
from workbench.commands import on
from workbench.commands.options import CommandError
from workbench.data.database import open_history

pytestmark = pytest.mark.unit
ROOT = Path(__file__).parents[2]


def test_local_files_go_with_those_beside_a_kernel(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    for name in ("a/mine.py", "a/helper.py", "trace.json"):
        (tmp_path / name).touch()
    files, words = on.sent_files(
        ["sweep", "a/mine.py", "--budget", "8", "--json", "out.json", "--arg", "n=4"]
    )
    assert words[1] == "a/mine.py" and sorted(name for _, name in files) == [
        "a/helper.py", "a/mine.py"
    ]  # fmt: skip
    elsewhere = tmp_path / "a"
    (tmp_path / "b").mkdir()
    monkeypatch.chdir(tmp_path / "b")
    files, words = on.sent_files(["tune", f"{elsewhere}/mine.py:gelu"])
    assert words == ["tune", "mine.py:gelu"]
    assert {name for _, name in files} == {"mine.py", "helper.py"}


@pytest.mark.parametrize("place", ["/tmp/x.json", "../x.json"])
def test_an_output_that_could_not_come_back_is_refused(place):
    with pytest.raises(CommandError, match="outside the current folder"):
        on.sent_files(["sweep", "softmax", "--json", place])


def test_the_wheel_holds_the_package_and_its_hash_is_of_its_files():
    content, digest = on.package()
    names = zipfile.ZipFile(io.BytesIO(content)).namelist()
    assert {"workbench/cli.py", "workbench/devices/h200.toml", "metal_shim/check.py"} <= {*names}
    assert not [name for name in names if "__pycache__" in name] and len(digest) == 16
    (record,) = [name for name in names if name.endswith(".dist-info/RECORD")]
    listed = zipfile.ZipFile(io.BytesIO(content)).read(record).decode().splitlines()
    assert len(listed) == len(names)


def test_a_host_has_a_name_and_perhaps_a_python():
    assert on.RemoteHost.of("me@gpu") == on.RemoteHost("me@gpu", "python3")
    assert on.RemoteHost.of("me@gpu:/opt/bin/python") == on.RemoteHost("me@gpu", "/opt/bin/python")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--on", "gpu", "gate", "HEAD"), "gate needs the whole repository"),
        (("sweep", "softmax", "--on", "-oProxyCommand=x"), "names no host"),
        (("sweep", "--on="), "names no host"),
        (("--on", "gpu"), "Name the command to run there"),
    ],
)
def test_what_cannot_run_there_is_said_in_a_sentence(words, sentence, capsys):
    assert main(words) == 2
    assert sentence in capsys.readouterr().err


@pytest.fixture
def gpu_host(tmp_path, monkeypatch):
    """A host `gpu`, which `ssh` reaches; its home is a folder of the test."""
    pytest.importorskip("asyncssh")
    place = tmp_path / "server"
    place.mkdir()
    home = tmp_path / "home"
    home.mkdir()
    there = {**os.environ, "HOME": str(home)}
    server = subprocess.Popen([sys.executable, ROOT / "tests" / "ssh_host.py", place], env=there)
    while not (place / "ready").exists():
        assert server.poll() is None
        time.sleep(0.05)
    programs = tmp_path / "programs"
    programs.mkdir()
    real = on.shutil.which("ssh")
    (programs / "ssh").write_text(f'#!/bin/sh\nexec {real} -F {place}/config "$@"\n')
    (programs / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    yield home
    server.kill()
    server.wait()


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_sweep_runs_there_and_its_results_come_back(gpu_host, tmp_path, monkeypatch, capfd):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert main(["new-kernel", "mine", "--like", "elements"]) == 0
    words = ["sweep", "mine.py", "--budget", "3", "--json", "r.json", "--device", "h200"]
    assert main([*words, "--on", f"gpu:{sys.executable}"]) == 0
    said = capfd.readouterr()
    assert "came back" in said.out and "predicted" in said.out
    (page,) = here.glob("results/*/report.html")
    assert "predicted" in page.read_text() and (here / "r.json").is_file()
    with open_history(None) as history:
        assert [row.kernel for row in history.search()].count("mine") >= 3
    installed = list((gpu_host / ".cache" / "kernel-workbench").glob("*/ready"))
    assert len(installed) == 1
    assert main(["sweep", "no_such", "--on", f"gpu:{sys.executable}"]) == 2
    assert "There is no sweep or kernel 'no_such'" in capfd.readouterr().err
    assert list((gpu_host / ".cache" / "kernel-workbench").glob("*/ready")) == installed
