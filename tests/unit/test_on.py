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
    assert {"workbench/experiments/lora_rank.py", "workbench/traces/readers/xctrace.py"} <= {*names}
    assert not [name for name in names if "__pycache__" in name] and len(digest) == 16
    (record,) = [name for name in names if name.endswith(".dist-info/RECORD")]
    listed = zipfile.ZipFile(io.BytesIO(content)).read(record).decode().splitlines()
    assert len(listed) == len(names)


def test_a_host_has_a_name_and_perhaps_a_python():
    assert on.RemoteHost.parse("me@gpu") == on.RemoteHost("me@gpu", "python3")
    assert on.RemoteHost.parse("me@gpu:/opt/bin/python") == on.RemoteHost(
        "me@gpu", "/opt/bin/python"
    )


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
def work(tmp_path, monkeypatch):
    """The folder of a command on another machine, which this one plays, with what it wrote."""
    here, work = tmp_path / "here", tmp_path / "work"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for folder in (here, work / "results", work / ".data" / "kernel-workbench"):
        folder.mkdir(parents=True)
    (work / "sent.py").touch()
    (work / ".sent").touch()
    for name in ("results/report.html", ".data/kernel-workbench/history.db"):
        (work / name).write_text("new")
        os.utime(work / name, (time.time() + 9,) * 2)
    monkeypatch.chdir(here)
    return work


def shell(tmp_path, monkeypatch, **programs):
    """A connection whose lines this machine's shell runs, with these programs before its own."""
    place = tmp_path / "bin"
    place.mkdir()
    for name, text in programs.items():
        (place / name).write_text(f"#!/bin/sh\n{text}\n")
        (place / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}{os.pathsep}{os.environ['PATH']}")
    return on.RemoteShell(on.RemoteHost.parse("gpu"), ("sh", "-c"))


def test_results_come_back_and_leave_the_other_machine(work, tmp_path, monkeypatch, capsys):
    on.bring_back(shell(tmp_path, monkeypatch), str(work))
    files = [p.relative_to(Path.cwd()).as_posix() for p in Path.cwd().rglob("*") if p.is_file()]
    assert files == ["results/report.html"] and not work.exists()
    assert capsys.readouterr().out.split() == ["came", "back", "1", "file", *files]


def test_results_that_cannot_be_read_stay_where_they_are(work, tmp_path, monkeypatch):
    full = "echo 'tar: write error: No space left on device' >&2; exit 2"
    ssh = shell(tmp_path, monkeypatch, tar=full)
    left = f"exit code 2.*look for results in {work} on gpu"
    with pytest.raises(CommandError, match=left), on.name_results(ssh.host, str(work)):
        on.bring_back(ssh, str(work))
    assert (work / "results" / "report.html").read_text() == "new"


def test_results_that_cannot_be_written_here_stay_there(work, tmp_path, monkeypatch):
    Path("results").write_text("a file where a folder has to be")
    ssh = shell(tmp_path, monkeypatch)
    left = f"written here .*look for results in {work} on gpu"
    with pytest.raises(CommandError, match=left), on.name_results(ssh.host, str(work)):
        on.bring_back(ssh, str(work))
    assert (work / "results" / "report.html").read_text() == "new"


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
