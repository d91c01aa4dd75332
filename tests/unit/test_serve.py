"""Serving programs: tools as JSON schemas and command lines, and the queue of submissions."""

import json
import threading
import time
from pathlib import Path

import pytest

from workbench import cli
from workbench.commands import serve_jobs, serve_tools
from workbench.commands.options import CommandError, commands
from workbench.commands.serve import ServeOptions
from workbench.data.database import open_history
from workbench.data.submissions import QueuedSubmission, Submissions

pytestmark = pytest.mark.unit


# Tools


def test_a_tool_takes_what_its_command_takes_beside_output():
    schema = serve_tools.input_schema(commands()["code"])
    assert schema["required"] == ["target"] and not schema["additionalProperties"]
    kinds = {n: p["type"] for n, p in schema["properties"].items()}
    assert kinds["target"] == kinds["samples"] == "string" and "json" not in kinds
    tune = serve_tools.input_schema(commands()["tune"])["properties"]
    assert tune["arg"]["type"] == "array" and tune["fresh"]["type"] == "boolean"
    assert "out" not in tune and "quiet" not in tune
    judged = serve_tools.input_schema(commands()["evaluate"])["properties"]["require"]
    assert judged["items"] == {"type": "string", "enum": ("sanitizer",)}
    for name in serve_tools.TOOLS:
        schema = serve_tools.input_schema(commands()[name])
        assert all(p["description"] for p in schema["properties"].values())


def test_arguments_are_the_words_of_a_command_line():
    given = {"kernel": "a b.py", "spec": "-x", "accept_claims": True, "require": ["sanitizer"],
             "dtype": None}  # fmt: skip
    words = serve_tools.words_of(commands()["evaluate"], given)
    assert words == ["evaluate", "--spec=-x", "--require=sanitizer", "--accept-claims", "a b.py"]
    words = serve_tools.words_of(commands()["predict"], {"kernel": "k", "impl": ["a", "b"]})
    assert words == ["predict", "--impl=a", "--impl=b", "k"]
    for name, given, part in (
        ("evaluate", {"kernel": "k", "json": "x"}, "evaluate takes no json"),
        ("evaluate", {"kernel": "--help"}, "kernel begins with a dash"),
        ("code", {}, "code needs target"),
    ):
        with pytest.raises(CommandError, match=part):
            serve_tools.words_of(commands()[name], given)


def test_a_started_command_finds_this_workbench(monkeypatch):
    here = str(Path(cli.__file__).parents[1])
    monkeypatch.setenv("PYTHONPATH", f"/else:{here}")
    assert serve_tools.environment()["PYTHONPATH"] == f"{here}:/else"


def test_nothing_to_serve_is_one_sentence(tmp_path, capsys):
    for words, part in (
        ([], "Name what to serve"),
        (["--mcp", "--jobs", str(tmp_path)], "Name what to serve"),
        (["--jobs", str(tmp_path / "none")], "There is no folder"),
        (["--jobs", str(tmp_path)], "Name who judges"),
    ):
        assert cli.main(["serve", *words]) == 2
        assert part in capsys.readouterr().err


# The queue


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    """A folder of five submissions whose evaluations are stood in for, and what was started."""
    folder, started = tmp_path / "jobs", []
    folder.mkdir()
    (tmp_path / "spec.py").write_text("spec")
    for name in ("crash", "hang", "right", "slow", "wrong"):
        (folder / f"{name}.py").write_text(name)
    (folder / "notes.txt").write_text("no submission")

    def process(queue, words, slot, place):
        name = Path(words[1]).stem
        started.append(name)
        verdicts = {"right": ("correct", None, None), "wrong": ("rejected", "values", "off"),
                    "slow": ("correct", None, None)}  # fmt: skip
        if name in verdicts:
            content = dict(zip(("verdict", "rule", "reason"), verdicts[name], strict=True))
            Path(words[2].removeprefix("--json=")).write_text(json.dumps(content))
            return 0, ""
        return (-1, "it took longer than 5 s") if name == "hang" else (139, "")

    monkeypatch.setattr(serve_jobs._Queue, "_process", process)
    options = ServeOptions(jobs=folder, spec=str(tmp_path / "spec.py"), device="h200",
                           database=f"sqlite:///{tmp_path}/h.db", quiet=True,
                           json=tmp_path / "result.json")  # fmt: skip
    return options, started


def result_of(options):
    return {one["name"]: one for one in json.loads(options.json.read_text())["submissions"]}


def test_a_crash_or_a_hang_costs_one_submission(jobs, capsys):
    options, started = jobs
    assert serve_jobs.run(options) == 3
    assert sorted(started) == ["crash", "crash", "hang", "hang", "right", "slow", "wrong"]
    result = result_of(options)
    assert [result[f"{n}.py"]["verdict"] for n in ("right", "wrong", "slow", "hang", "crash")] == [
        "correct", "rejected", "correct", None, None]  # fmt: skip
    assert result["crash.py"]["reason"] == "exit code 139"
    assert result["hang.py"]["reason"] == "it took longer than 5 s"
    assert result["wrong.py"]["rule"] == "values" and len(result) == 5
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "5 submissions: 2 without a verdict, 2 correct, 1 rejected"
    started.clear()
    assert serve_jobs.run(options) == 3 and started == [], "all is stored"
    (options.jobs / "wrong.py").write_text("another content")
    assert serve_jobs.run(options) == 3 and started == ["wrong"]
    Path(options.spec).write_text("another judge")
    started.clear()
    serve_jobs.run(options)
    assert {*started} == {"crash", "hang", "right", "slow", "wrong"}


def test_after_a_kill_what_ran_is_tried_once_more(jobs):
    options, started = jobs
    serve_jobs.run(options)
    with open_history(options.database) as history:
        stored = Submissions(history)
        queue = serve_jobs._Queue(options, stored)
        keys = {name: queue._key(name, path) for name, path in queue._files()}
        stored.put(QueuedSubmission(keys["right.py"], "right.py", "running", 1))
        stored.put(QueuedSubmission(keys["slow.py"], "slow.py", "running", 2))
    started.clear()
    serve_jobs.run(options)
    assert started == ["right"]
    result = result_of(options)
    assert (result["right.py"]["verdict"], result["right.py"]["tries"]) == ("correct", 2)
    assert result["slow.py"]["reason"] == "the queue was killed while it was judged"


def test_a_row_that_a_submission_writes_is_not_believed_in_the_same_run(jobs, monkeypatch):
    options, _ = jobs
    real = serve_jobs._Queue._process

    def process(queue, words, slot, place):
        if words[1].endswith("wrong.py"):
            key = queue._keys["right.py"]
            queue._stored.put(QueuedSubmission(key, "right.py", "judged", 1, "rejected", "values"))
        return real(queue, words, slot, place)

    monkeypatch.setattr(serve_jobs._Queue, "_process", process)
    serve_jobs.run(options)
    assert result_of(options)["right.py"]["verdict"] == "correct"


def test_a_hang_is_ended_with_what_it_started(tmp_path, monkeypatch):
    monkeypatch.setattr(serve_jobs, "END_S", 0.1)
    options = ServeOptions(jobs=tmp_path, spec="s", limit=0.3)
    queue = serve_jobs._Queue.__new__(serve_jobs._Queue)
    queue._options, queue.is_stopped, queue._lock = options, False, threading.Lock()
    script = tmp_path / "workbench"
    script.write_text("echo begun\ntrap '' TERM\nsleep 60 &\nsleep 60\n")
    real = serve_jobs.subprocess.Popen

    def started(words, **more):
        return real(["/bin/sh", str(script)], **more)

    monkeypatch.setattr(serve_jobs.subprocess, "Popen", started)
    begin = time.monotonic()
    code, last = queue._process(["evaluate"], serve_jobs._Slot(), tmp_path)
    assert (code, last) == (-1, "it took longer than 0.3 s") and time.monotonic() - begin < 5
