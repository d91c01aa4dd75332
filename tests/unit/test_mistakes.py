"""Ordinary mistakes in a kernel's file end in one sentence and exit code 2, and in no traceback."""

import contextlib
import io
import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from mistaken_kernels import LOADED, NAME, PLANNED, RETURN, text_of, write

from workbench import catalog, cli
from workbench.catalog import CatalogError
from workbench.commands.console import clean
from workbench.data.exits import COULD_NOT_RUN
from workbench.data.temporary import LOCK, PREFIX, processes_in_a_folder, temporary_folder
from workbench.spec import Work

ROOT = Path(__file__).parents[2]


@pytest.fixture
def said(tmp_path, monkeypatch):
    """Run a command in this process; returns its exit code and what it wrote."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))

    def run(*words):
        written = io.StringIO()
        with contextlib.redirect_stdout(written), contextlib.redirect_stderr(written):
            code = cli.main(words)
        return code, written.getvalue()

    return run


def is_one_sentence(text):
    """Whether a command wrote one line that a terminal may show, and no traceback."""
    (line,) = text.strip().splitlines()
    return line.startswith("error: ") and line.endswith(".") and clean(line) == line


def test_the_starter_itself_loads(tmp_path):
    assert catalog.spec_of(str(write(tmp_path, {}))).name == NAME


@pytest.mark.parametrize("mistake", LOADED)
def test_a_mistake_is_named_when_the_file_is_loaded(mistake, tmp_path):
    changes, part = LOADED[mistake]
    with pytest.raises(CatalogError) as caught:
        catalog.spec_of(str(write(tmp_path, changes)))
    sentence = str(caught.value)
    assert part in sentence
    assert sentence.endswith(".") and "\n" not in sentence and clean(sentence) == sentence
    assert len(sentence) < 600 + len(str(tmp_path)), "long values are shortened"


@pytest.mark.parametrize("mistake", PLANNED)
def test_a_mistake_is_named_when_a_sweep_is_planned(mistake, tmp_path, said):
    changes, part = PLANNED[mistake]
    path = write(tmp_path, changes)
    out = ("--out", str(tmp_path / "out"), "--database", f"sqlite:///{tmp_path}/db.sqlite")
    code, text = said("sweep", "tile_size", "--kernel", str(path), "--device", "h200", *out)
    assert code == COULD_NOT_RUN and is_one_sentence(text)
    assert part in text and "name other sizes" not in text


@pytest.mark.parametrize("command", ["sweep", "measure", "compare"])
@pytest.mark.parametrize("mistake", ["a knob without a word", "a name that a terminal obeys"])
def test_every_command_says_it(command, mistake, tmp_path, said):
    changes, part = LOADED[mistake]
    path = str(write(tmp_path, changes))
    words = {
        "sweep": ("tile_size", "--kernel", path, "--device", "h200"),
        "measure": (path, "--device", "h200"),
        "compare": ("blocks", "blocks", "--kernel", path),
    }[command]
    code, text = said(command, *words)
    assert code == COULD_NOT_RUN and is_one_sentence(text) and part in text


@pytest.mark.parametrize(
    ("sizes", "part"),
    [
        ("N=1,N=2", "names N twice"),
        ("N=3", "N/2 is not a whole number at N=3"),
        ("N=1" + 30 * "0", "need terabytes"),
        ("N=8", "gives 0.5 at N=8"),
    ],
)
def test_sizes_of_the_command_line(sizes, part, tmp_path, said):
    changes = {
        'outputs={"y": Tensor("N")}': 'outputs={"y": Tensor("N/2")}',
        "lambda N: 4 * N": "lambda N: N if N > 8 or N == 2 else 0.5",
        'check=[{"N": 1}, {"N": 127}, {"N": 5000}]': 'check=[{"N": 2}]',
    }
    path = write(tmp_path, changes)
    code, text = said("sweep", "full", "--kernel", str(path), "--device", "h200", "--sizes", sizes)
    assert code == COULD_NOT_RUN and is_one_sentence(text) and part in text


@pytest.mark.parametrize(
    "odd",
    [
        *(None, 3, (), (3,), [Work(1, 1, 1, 1)], (Work(1, 1, 1, 1), Work(1, 1, 1, 1, barriers=-1))),
        *(Work(0, 1, 1, 1), Work(1, 1, float("nan"), 1), Work(1, 1, 1, 1, (1, 2))),
    ],
)
def test_a_work_that_describes_no_launch(odd, tmp_path):
    from workbench.device.hardware import DEVICES
    from workbench.spec import WorkError

    spec = catalog.spec_of(str(write(tmp_path, {})))
    impl = spec.impls[0]
    object.__setattr__(impl, "work", lambda config, limits, **at: odd)
    with pytest.raises(WorkError, match=r"^`work` of mine\.blocks returned .*\.$"):
        impl.work_of(impl.config(), DEVICES["h200"].limits, "fp32", {"N": 64})


# Libraries' versions, which may be anything that can be called


@pytest.mark.parametrize("call", ["torch.relu", "__import__('functools').partial(torch.relu)"])
def test_a_library_may_be_a_builtin_function(call, tmp_path):
    from workbench.catalog.source import load_kernel

    changes = {"@baseline(mine)": f"mine.library('relu', {call})\n\n\n@baseline(mine)"}
    known = load_kernel(str(write(tmp_path, changes)))
    assert known.impl("relu", "").backend == "torch"


# Terminals


@pytest.mark.nightly
@pytest.mark.parametrize(
    "setting",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"COLUMNS": "20", "NO_COLOR": "1", "FORCE_COLOR": "1"},
    ],
    ids=["ascii", "C", "narrow"],
)
def test_text_beyond_ascii_still_prints(setting, tmp_path):
    home = tmp_path / "größe"
    home.mkdir()
    path = write(home, {'name="mine"': 'name="größe"'})
    for words in (["measure", str(path)], ["devices"], ["--help"]):
        done = subprocess.run(
            [sys.executable, "-m", "workbench", *words],
            env={**os.environ, "PYTHONPATH": str(ROOT), **setting},
            cwd=ROOT,
            capture_output=True,
            check=False,
        )
        text = (done.stdout + done.stderr).decode()
        assert "Traceback" not in text and "Error" not in text, text
        assert done.returncode == (COULD_NOT_RUN if words[0] == "measure" else 0)


def test_what_an_encoding_lacks_is_like_it_or_a_question_mark(said):
    said("devices")
    assert "64 µs × 2… größe \U0001f600".encode("ascii", "workbench") == b"64 us x 2... gr??e ?"


# Temporary folders


def test_a_folder_lives_as_long_as_its_block(tmp_path):
    with temporary_folder(tmp_path) as folder:
        assert folder.parent == tmp_path and (folder / LOCK).exists()
    assert not list(tmp_path.iterdir())


def test_folders_of_killed_processes_are_removed_and_those_of_live_ones_are_not(tmp_path):
    code = (
        "import os, sys, pathlib\n"
        "from workbench.data.temporary import temporary_folder\n"
        "with temporary_folder(pathlib.Path(sys.argv[1])) as folder:\n"
        "    print(folder, flush=True)\n"
        "    sys.stdin.read()\n"
    )

    def started():
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return process, Path(process.stdout.readline().strip())

    (live, kept), (dead, left) = started(), started()
    foreign = tmp_path / f"{PREFIX}without-a-lock"
    foreign.mkdir()
    try:
        dead.kill()
        dead.wait()
        assert left.exists(), "nobody could remove it"
        third, own = started()
        third.communicate("")
        assert not left.exists() and kept.exists() and foreign.exists() and not own.exists()
    finally:
        live.communicate("")
    assert not kept.exists()


def test_what_a_worker_leaves_that_outlived_its_command_is_removed_too(tmp_path, monkeypatch):
    """Its lock is held when the next command begins, and free when that ends."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    before = multiprocessing.current_process()._config.get("tempdir")
    left = tmp_path / f"{PREFIX}of-a-worker"
    try:
        with processes_in_a_folder():
            left.mkdir()
            (left / LOCK).touch()
            assert left.exists()
    finally:
        multiprocessing.current_process()._config["tempdir"] = before
    assert not list(tmp_path.iterdir())


def test_the_table_changes_what_it_names():
    assert text_of({RETURN: ""}) != text_of({})
