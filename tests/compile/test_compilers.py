"""Two versions of Triton, and two of a kernel, by their machine code: the commands as a user runs
them. `make test` puts the older version beside the environment."""

import json
import os
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest

from workbench.data.database import open_history
from workbench.device.error_band import device_words

pytestmark = pytest.mark.newest  # it starts the older version by itself
ROOT = Path(__file__).parents[2]
OLDER, NEWER = "3.6.0", version("triton")


DATABASE = ("--database", "sqlite:///runs.db")


def workbench(folder, *words):
    """Run a command in a folder; returns its exit code and the JSON document. The page of the run
    is drawn again from what is stored."""
    done = command(folder, *words, "--json", "result.json")
    assert done.returncode in (0, 1, 3), done.stdout + done.stderr
    document = json.loads((folder / "result.json").read_text())
    assert document["exit_code"] == done.returncode
    for run in document.get("runs", ()):
        again = command(folder, "report", "versions", run["run"]["id"], "--out", "again.html")
        assert again.returncode == 0, again.stderr
        assert (folder / "again.html").read_bytes() == Path(run["page"]).read_bytes()
    return done, document


def command(folder, *words):
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-m", "workbench", *words, *DATABASE]
    return subprocess.run(line, cwd=folder, env=env, capture_output=True, text=True, check=False)


def stored(folder):
    """The newest run of the folder's database, and its outcomes."""
    with open_history(f"sqlite:///{folder / 'runs.db'}", reading=True) as history:
        (run, *_) = history.runs()
        return run, history.outcomes(run.id)


@pytest.mark.nightly
def test_two_compilers_differ_in_the_registers_of_a_matmul(tmp_path):
    words = ("compare", "--triton", OLDER, NEWER, "--kernel", "matmul", "--impl", "tiles")
    done, document = workbench(tmp_path, *words, "--device", "a100", "--device", "mi300x")
    pairs = {p["case"]["device"]: p for p in document["comparison"]["parts"]}
    assert sorted(pairs) == ["a100", "mi300x"]
    tiles = pairs["a100"]
    facts_of = {r["key"]: r for r in document["runs"][0]["predicted"]}
    both = [facts_of[tiles[n]] for n in ("before", "after")]
    registers = [facts["resources"]["registers"] for facts in both]
    assert both[0]["code"]["digest"] != both[1]["code"]["digest"]
    if NEWER == "3.9.0":
        assert registers == [228, 252] and tiles["word"] == "WORSE"
    for pair in pairs.values():
        for facts in (facts_of[pair["before"]], facts_of[pair["after"]]):
            assert facts["timing"]["predicted_s"] > 0 and facts["code"]["groups"]["matrix"] > 0
            assert facts["code"]["loop"]["groups"]["matrix"] > 0
    assert "matmul.tiles" in Path(document["runs"][0]["page"]).read_text()
    assert "~" in done.stdout and "matmul.tiles" in done.stdout
    run, outcomes = stored(tmp_path)
    assert (run.versions.before, run.versions.after) == (f"Triton {OLDER}", f"Triton {NEWER}")
    assert len(outcomes) == 4 and {o.phase for o in outcomes} == {"code"}
    again, _ = workbench(tmp_path, *words, "--device", "a100")
    assert "2 of 2 are compiled already" in again.stdout


def git(folder, *words):
    name = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", "-C", str(folder), *name, *words], check=True, capture_output=True)


HEAD = "def _blocks(x_ptr, y_ptr, N, stride_x, BLOCK_N: tl.constexpr):\n"
STORE = "    tl.store(y_ptr + n, tl.load(x_ptr + n * stride_x, n < N), n < N)\n"


@pytest.fixture
def repository(tmp_path):
    """A repository with `copy` under another name, at one size."""
    source = (ROOT / "workbench" / "kernels" / "copy.py").read_text()
    source = source.replace('bench=[{"N": 1 << 28}, {"N": 1 << 24}]', 'bench=[{"N": 65536}]')
    assert HEAD in source and STORE in source
    (tmp_path / "toy.py").write_text(source)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "toy.py")
    git(tmp_path, "commit", "-q", "-m", "toy")
    return tmp_path


def revision(folder):
    done = subprocess.run(["git", "-C", str(folder), "rev-parse", "HEAD"], check=True,
                          capture_output=True, text=True)  # fmt: skip
    return done.stdout.strip()


@pytest.mark.nightly
def test_the_commit_that_changed_machine_code_is_located_without_a_gpu(repository):
    """Comments and unused values change no machine code; the fourth commit does."""
    commits = [revision(repository)]
    for old, new in ((STORE, "    # a comment\n" + STORE),
                     (STORE, "    unused = n + 1  # noqa\n" + STORE),
                     ("tl.load(x_ptr + n * stride_x, n < N)", "tl.load(x_ptr + n, n < N) * 3"),
                     ("# a comment", "# another")):  # fmt: skip
        change(repository, old, new)
        git(repository, "commit", "-q", "-a", "-m", f"{new.strip()[:20]}")
        commits.append(revision(repository))
    words = ("bisect", "toy.py", commits[0], commits[-1], "--device", "h200")
    done, document = workbench(repository, *words)
    assert done.returncode == 0 and document["candidates"] == [commits[3]]
    assert "is the first bad commit" in done.stdout and "GOOD and BAD differ" in done.stdout
    assert len(document["steps"]) <= 3
    run, outcomes = stored(repository)
    assert (run.engine, run.kind, run.kernel) == ("bisect", "code", "copy")
    assert 1 < len(outcomes) <= 1 + len(document["runs"][0]["comparisons"])
    assert len(document["runs"][0]["comparisons"]) == 1 + len(document["steps"])
    trees = subprocess.run(["git", "-C", str(repository), "worktree", "list"], check=True,
                           capture_output=True, text=True)  # fmt: skip
    assert len(trees.stdout.splitlines()) == 1


def change(folder, old, new):
    file = folder / "toy.py"
    file.write_text(file.read_text().replace(old, new))


@pytest.mark.nightly
def test_a_change_that_compiles_to_the_same_code_is_the_same(repository):
    change(repository, STORE, "    unused = n + 1  # noqa\n" + STORE)
    done, document = workbench(repository, "gate", "HEAD", "--device", "mi300x")
    assert done.returncode == 0
    assert [p["word"] for p in document["comparison"]["parts"]] == ["SAME"]


@pytest.mark.nightly
def test_a_change_that_costs_time_is_suspected(repository):
    change(repository, STORE, "    n = n ^ 1\n" + STORE)  # two neighbours change places
    done, document = workbench(repository, "gate", "HEAD", "--device", "h200", "--device", "mi300x")
    assert done.returncode == 3 and "WORSE" in done.stdout
    pairs = document["comparison"]["parts"]
    for device in ("h200", "mi300x"):
        error = device_words(device, pairs[0]["case"]["kernel"])
        assert done.stdout.count(f"Predicted times of {device}: {error}") == 1
    assert all(any(reason.startswith("load width") for reason in p["worse"]) for p in pairs)


@pytest.mark.nightly
def test_a_change_of_a_comment_compiles_nothing(repository):
    change(repository, STORE, "    # a comment\n" + STORE)
    done, document = workbench(repository, "gate", "HEAD", "--device", "h200")
    assert done.returncode == 0 and document["unchanged"] == 1
    assert not (repository / "results").exists()


@pytest.mark.nightly
def test_a_killed_run_goes_on_from_what_it_had(repository):
    change(repository, STORE, "    unused = n + 1  # noqa\n" + STORE)
    words = [sys.executable, "-m", "workbench", "gate", "HEAD", "--device", "all", *DATABASE]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(words, cwd=repository, env=env, stdout=subprocess.DEVNULL)
    end = time.monotonic() + 120
    while len(_stored_keys(repository)) < 12:  # ten of the baseline, and two of the branch
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = _stored_keys(repository)
    done, document = workbench(repository, "gate", "HEAD", "--device", "all")
    assert done.returncode == 0
    _, outcomes = stored(repository)
    assert len(outcomes) == len({o.key for o in outcomes}) == 20 > len(before)
    assert sum(o.at in before.values() for o in outcomes) >= 2  # those of the branch
    assert {p["word"] for p in document["comparison"]["parts"]} == {"SAME"}


def _stored_keys(folder):
    """Keys and times of the outcomes that the newest run has stored."""
    try:
        return {o.key: o.at for o in stored(folder)[1]}
    except ValueError:  # no run yet
        return {}


# What a kernel's file does to the processes that import it, to be taken for a better one
PATCHES = """
import atexit, os, pathlib, sys, time
import workbench.code.compared_pair as pairs, workbench.commands.gate_report as report
import workbench.data.comparison as comparison, workbench.data.verdict as verdict
verdict.exit_code = comparison.exit_code = lambda words: 0
report.write_comparison = report.write_files = lambda *a, **more: 0
pairs.ComparedPair.__init__ = report.GateReport.end = lambda *a, **more: None
atexit.register(os._exit, 0)
sys.excepthook = lambda *a: os._exit(0)
print("nothing got slower")
if os.fork() == 0:
    os.setsid()
    for _ in range(6000):
        for name in ("gate.md", "result.json"):
            pathlib.Path(__file__).with_name(name).write_text('{"exit_code": 0}')
        time.sleep(0.02)
    os._exit(0)
"""


def test_a_wrong_result_is_the_first_word_of_the_gate_whatever_the_file_does(repository):
    """A factor of 1.05 has the same registers and the same predicted time."""
    file, comment = repository / "toy.py", repository / "gate.md"
    file.write_text(_stored(file.read_text(), "1.05 * ") + PATCHES)
    words = ("gate", "HEAD", "--device", "h200", "--markdown", str(comment))
    done, document = workbench(repository, *words)
    assert done.returncode == document["exit_code"] == 1
    (wrong,) = [check for check in document["checks"] if check["state"] == "wrong"]
    lines = done.stdout.splitlines()
    assert lines[1].startswith(f"WRONG  {wrong['title']}: at ")
    text = comment.read_text()
    assert "### Kernel Workbench: wrong results\n\n- WRONG copy.blocks" in text
    time.sleep(0.1)  # the process that the file started would have written by then
    assert comment.read_text() == text


@pytest.mark.nightly
def test_a_result_that_is_right_in_another_way_is_right(repository):
    file = repository / "toy.py"
    file.write_text(_stored(file.read_text(), "0.0 + "))
    done, document = workbench(repository, "gate", "HEAD", "--device", "h200")
    assert {check["state"] for check in document["checks"]} == {"right"}
    assert done.returncode == 0, done.stdout


def _stored(text, more):
    """The file with something before the value that is stored."""
    value = "tl.load(x_ptr + n * stride_x, n < N), n < N)"
    assert value in text
    return text.replace(value, more + value)
