"""Files are replaced whole, and only where they are regular files."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import synthetic

from workbench import cli
from workbench.data import files
from workbench.data.database import open_history
from workbench.data.events import EventLog, read
from workbench.data.files import FileError, real_path, write_file, write_files
from workbench.data.tuned_cache import TunedError, changing

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
RUN, OUTCOMES = synthetic.softmax()


@pytest.fixture
def fifo(tmp_path):
    """A FIFO, and a function that gives what was written to it."""
    path, got = tmp_path / "fifo", []
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: got.append(path.read_bytes()), daemon=True)
    reader.start()

    def taken():
        reader.join(20)
        assert stat.S_ISFIFO(path.stat().st_mode), "it is still one"
        return got[0]

    return path, taken


@pytest.fixture
def stored(tmp_path):
    url = f"sqlite:///{tmp_path / 'h.db'}"
    with open_history(url) as history:
        history.add_run(RUN)
        for outcome in OUTCOMES:
            history.add(outcome)
    return url


def test_a_file_is_replaced_whole_and_keeps_its_rights(tmp_path):
    path = tmp_path / "page.html"
    path.write_text("old")
    path.chmod(0o640)
    os.link(path, tmp_path / "old")
    write_file(path, "new")
    assert path.read_text() == "new" and stat.S_IMODE(path.stat().st_mode) == 0o640
    assert (tmp_path / "old").read_text() == "old", "another file took the name"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["old", "page.html"]


def test_a_link_stays_a_link_and_its_target_is_written(tmp_path):
    link, target = tmp_path / "link", tmp_path / "folder" / "real"
    target.parent.mkdir()
    link.symlink_to(target)
    write_file(link, "text")
    assert link.is_symlink() and target.read_text() == "text"


def test_a_fifo_and_a_link_to_it_are_written_through(fifo, tmp_path):
    path, taken = fifo
    (tmp_path / "link").symlink_to(path)
    write_file(tmp_path / "link", "text")
    assert taken() == b"text" and (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("text", [b"", b"{", b"line\n" * 100_000])
def test_a_fifo_is_read_to_its_end(text, tmp_path):
    """Whether its writer comes first or later, and writes more than a pipe holds."""
    os.mkfifo(path := tmp_path / "fifo")
    writer = threading.Thread(target=lambda: path.write_bytes(text), daemon=True)
    if text:
        threading.Timer(0.1, writer.start).start()
        with files.open_to_read(path) as file:
            assert file.read() == text
    else:
        held = os.open(path, os.O_RDWR)  # a writer that has written nothing yet
        threading.Timer(0.2, os.close, [held]).start()
        with files.open_to_read(path) as file:
            assert file.read() == b""


def test_a_fifo_without_another_end_is_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(files, "OTHER_END_S", 0.1)
    os.mkfifo(path := tmp_path / "fifo")
    with pytest.raises(FileError, match="no process reads from it"):
        write_file(path, "text")
    url = ["--database", f"sqlite:///{tmp_path / 'h.db'}"]
    for words in (["history", "--load", str(path), *url], ["tuned", "--import", str(path)]):
        assert cli.main(words) == 2
        assert "no process writes to it" in capsys.readouterr().err


def test_a_device_stays_one(tmp_path):
    (tmp_path / "link").symlink_to("/dev/null")
    for path in (Path("/dev/null"), tmp_path / "link"):
        write_file(path, "text")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode) and (tmp_path / "link").is_symlink()


def test_all_of_several_files_or_none(tmp_path):
    good = tmp_path / "good"
    good.write_text("old")
    for bad in (Path("/dev/full"), tmp_path, tmp_path / "absent" / "file"):
        with pytest.raises(FileError) as error:
            write_files([(good, "new"), (bad, "new")])
        assert error.value.path == bad and "\n" not in str(error.value)
        assert good.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["good"]


@pytest.mark.parametrize("name", ["loop", "nul\0", "x" * 300, "half \ud800"])
def test_a_name_that_cannot_be_is_one_sentence(tmp_path, name):
    if name == "loop":
        (tmp_path / name).symlink_to(tmp_path / name)
    with pytest.raises(FileError, match="cannot be written"):
        write_file(tmp_path / name, "text")


def test_a_file_that_may_not_be_written_is_not_replaced(tmp_path, monkeypatch):
    """Permission bits do not bind root, so the system's word is put in its place."""
    path = tmp_path / "mine"
    path.write_text("old")
    monkeypatch.setattr(files.os, "access", lambda *_: False)
    with pytest.raises(FileError, match="permission denied"):
        write_file(path, "new")
    assert path.read_text() == "old"


def test_a_name_as_long_as_the_system_takes(tmp_path):
    write_file(tmp_path / ("ä" * 127), "text")
    assert (tmp_path / ("ä" * 127)).read_text() == "text"


# As programs


def program(*words, **more):
    return subprocess.run(
        [sys.executable, "-m", "workbench", *map(str, words)], cwd=ROOT, check=False,
        stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}, **more,
    )  # fmt: skip


ENTRY = {
    "kernel": "copy", "impl": "blocks", "config": {"block_n": 8}, "sizes": {"N": 8},
    "dtype": "bf16", "device": "h200", "torch": "1", "triton": "1", "source": "s",
    "predicted": False, "time_s": 1.0, "low_s": None, "high_s": None, "regime": "cold",
    "protocol": "p", "run": "r", "at": "2026-11-21", "configs": 1,
}  # fmt: skip


@pytest.fixture
def tuned(tmp_path):
    import json

    path = tmp_path / "t.json"
    path.write_text(json.dumps({"tuned": 1, "entries": [ENTRY]}))
    return path


def test_standard_output_holds_the_export_alone(tuned, tmp_path):
    import json

    words = ("tuned", "--file", tuned, "--export", "/dev/stdout")
    piped = program(*words, stdout=subprocess.PIPE)
    assert (piped.returncode, piped.stderr) == (0, b"") and json.loads(piped.stdout)["entries"]
    with open(tmp_path / "redirected", "wb") as file:
        file.write(b"before\n")
        file.flush()
        assert program(*words, stdout=file).returncode == 0
    assert (tmp_path / "redirected").read_bytes() == b"before\n" + piped.stdout


@pytest.mark.parametrize("option", ["--out", "--csv", "--json"])
def test_each_file_of_a_report_can_be_a_fifo(option, fifo, stored, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path, taken = fifo
    words = ["report", "roofline", RUN.id, "--database", stored, "--out", str(tmp_path / "o.html")]
    assert cli.main([*words, option, str(path)]) == 0
    assert len(taken()) > 100


@pytest.mark.parametrize("place", ["/dev/full", "/dev/null/x", "/proc/no/such"])
def test_a_page_that_cannot_be_written_is_exit_code_2(place, stored, capsys):
    assert cli.main(["report", "sweep", RUN.id, "--database", stored, "--out", place]) == 2
    text = capsys.readouterr().err
    assert text.startswith("error: ") and text.count("\n") == 1


def test_events_go_into_a_fifo(fifo, tmp_path):
    path, taken = fifo
    with EventLog(path) as log:
        log.write(RUN)
    (tmp_path / "copy.jsonl").write_bytes(taken())
    assert read(tmp_path / "copy.jsonl").events == [RUN]


def test_the_tuned_cache_is_a_regular_file():
    with pytest.raises(TunedError, match="not a regular file"), changing(Path("/dev/null")):
        pass
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize(
    "words",
    [
        ("tuned", "--export", "LOOP"),
        ("sweep", "tile_size", "--device", "h200", "--events-file", "LOOP", "--json", "x.json"),
        ("report", "roofline", "last", "--csv", "LOOP"),
    ],
)
def test_links_that_lead_to_themselves_end_in_a_sentence(tmp_path, monkeypatch, capfd, words):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert cli.main([str(loop) if word == "LOOP" else word for word in words]) == 2
    assert capfd.readouterr().err.startswith("error: ")
    assert real_path(loop) == loop
