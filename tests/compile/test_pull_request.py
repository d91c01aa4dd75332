"""The action for pull requests: its steps in a scratch repository with planted changes, and `gh`
replaced by a program that keeps comments in a file. Nothing is installed and no GPU is needed."""

import base64
import gzip
import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.newest  # about the action and not about the compiler
ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
WRITES = yaml.safe_load((ROOT / "comment" / "action.yml").read_text())
STEPS = {step["name"]: step for a in (ACTION, WRITES) for step in a["runs"]["steps"]}
INSTALL, COMPARE, COMMENT = STEPS

# `gh api`: GET with --jq, POST and PATCH, on a file of comments
GH = """\
import json, os, re, sys
from pathlib import Path
file = Path(os.environ["COMMENTS"])
words = sys.argv[1:]
if not file.exists():
    sys.exit("gh: Resource not accessible by integration (HTTP 403)")
comments = json.loads(file.read_text())
assert words.pop(0) == "api" and os.environ["GH_TOKEN"] == "secret"
if "--jq" in words:
    asked = words[words.index("--jq") + 1]
    prefix = re.search(r'startswith\\("(.*?)"\\)', asked)[1]
    assert asked.startswith(".[] | select(.user.login == env.AUTHOR and (.body | startswith(")
    mine = [c for c in comments if c["user"]["login"] == os.environ["AUTHOR"]]
    print(*[c["id"] for c in mine if c["body"].startswith(prefix)], sep="\\n")
    sys.exit()
method, url = words[words.index("--method") + 1], next(w for w in words if w.startswith("repos/"))
kind, _, path = words[words.index("-F") + 1].partition("=@")
body = Path(path).read_text()
assert kind == "body" and len(body) < 65536
if method == "POST":
    assert url == "repos/o/r/issues/7/comments"
    user = {"login": os.environ["AUTHOR"]}
    comments.append({"id": 100 + len(comments), "user": user, "body": body})
else:
    (one,) = [c for c in comments if url == f"repos/o/r/issues/comments/{c['id']}"]
    one["body"] = body
file.write_text(json.dumps(comments))
"""

# Python, which does not install: it keeps the words of pip
PYTHON = """\
#!/bin/sh
[ "$1" = -P ] || exit 97  # a module of the checkout would be imported
if [ "$2 $3 $4" = "-m pip install" ]; then echo "$@" > "$RUNNER_TEMP/pip.txt"; exit; fi
exec {python} "$@"
"""

COPY = (ROOT / "workbench" / "kernels" / "copy.py").read_text()
LOAD, BENCH = "tl.load(x_ptr + n * stride_x, n < N)", 'bench=[{"N": 1 << 28}, {"N": 1 << 24}]'
HELPER = "from workbench.dsl import tl, triton\n\n@triton.jit\ndef body(n):\n    return n\n"


def kernel(name, **changes):
    """Source of `copy` by another name, with passages replaced."""
    every = {'name="copy"': f'name="{name}"', BENCH: 'bench=[{"N": 1 << 24}]', **changes}
    text = COPY
    for old, new in every.items():
        assert old in text
        text = text.replace(old, new)
    return text


FAT = {  # a thread holds 512 elements
    "default=1024": "default=16_384",
    "threads(1, 16, default=4)": "threads(1, 16, default=1)",
    "refuse_held(held, 128)": "refuse_held(held, 1024)",
}
BEFORE = {
    "narrow.py": kernel("narrow"),
    "spills.py": kernel("spills", **{"refuse_held(held, 128)": "refuse_held(held, 1024)"}),
    "same.py": kernel("same"),
    "comment.py": kernel("comment"),
    "gone.py": kernel("gone"),
    "untouched.py": kernel("untouched"),
    "helper.py": HELPER,
    "behind.py": kernel("behind", **{
        "import torch\n": "import torch\nfrom helper import body\n",
        "    tl.store": "    n = body(n)\n    tl.store",
    }),
}  # fmt: skip
AFTER = {
    "narrow.py": kernel("narrow", **{"    tl.store": "    n = n ^ 1\n    tl.store"}),
    "spills.py": kernel("spills", **FAT),
    "same.py": kernel("same", **{"    tl.store": "    unused = n + 1  # noqa\n    tl.store"}),
    "comment.py": kernel("comment", **{"# int64": "# other words; int64"}),
    "new.py": kernel("new"),
    "helper.py": HELPER.replace("return n", "return n ^ 3"),
}


def git(folder, *words):
    name = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    done = subprocess.run(["git", "-C", str(folder), *name, *words], check=True, text=True,
                          capture_output=True)  # fmt: skip
    return done.stdout.strip()


def write(folder, files):
    for name, text in files.items():
        (folder / name).write_text(text)


class Runner:
    """What a runner gives the steps of a composite action: variables, files and expressions."""

    def __init__(self, folder, **inputs):
        self.repository, self.temp, programs = (folder / n for n in ("repo", "temp", "bin"))
        for each in (self.repository, self.temp, programs):
            each.mkdir()
        self.comments = folder / "comments.json"
        (programs / "gh").write_text(f"#!{sys.executable}\n{GH}")
        (programs / "py").write_text(PYTHON.format(python=sys.executable))
        for program in programs.iterdir():
            program.chmod(program.stat().st_mode | stat.S_IXUSR)
        given = {"python": "py", "devices": "h200", "token": "secret", "text": "", **inputs}
        every = ACTION["inputs"] | WRITES["inputs"]
        assert given.keys() <= every.keys()
        self.values = {
            f"inputs.{k}": given[k] if k in given else v["default"] for k, v in every.items()
        }
        self.values |= {"inputs.install || github.action_path": str(ROOT),
                        "github.repository": "o/r",
                        "github.event.pull_request.number": "7"}  # fmt: skip
        self.path = f"{programs}{os.pathsep}{os.environ['PATH']}"

    def step(self, name):
        """Run a step as a runner does. Returns the finished process."""
        step = STEPS[name]
        files = {f"GITHUB_{n}": str(self.temp / n) for n in ("OUTPUT", "STEP_SUMMARY")}
        env = {**os.environ, **files, "PATH": self.path, "PYTHONPATH": str(ROOT),
               "RUNNER_TEMP": str(self.temp), "COMMENTS": str(self.comments),
               "GITHUB_SHA": git(self.repository, "rev-parse", "HEAD"),
               "GITHUB_EVENT_NAME": "pull_request"}  # fmt: skip
        expression = re.compile(r"\$\{\{ (.*?) \}\}")
        env |= {k: expression.sub(lambda m: self.values[m[1]], v) for k, v in step["env"].items()}
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        done = subprocess.run(command, cwd=self.repository, env=env, text=True, check=False,
                              capture_output=True)  # fmt: skip
        for line in Path(files["GITHUB_OUTPUT"]).read_text().splitlines() if step.get("id") else ():
            key, _, value = line.partition("=")
            self.values[f"steps.gate.outputs.{key}"] = value
            if key == "comment":  # as the workflow hands it to the other job
                self.values["inputs.text"] = value
        return done

    @property
    def bodies(self):
        return [c["body"] for c in json.loads(self.comments.read_text())]


@pytest.fixture
def runner(tmp_path):
    """A checkout as `actions/checkout` leaves it: the merge of a branch into its base, one deep."""
    origin = tmp_path / "origin"
    origin.mkdir()
    git(origin, "init", "-q", "-b", "main")
    write(origin, BEFORE)
    git(origin, "add", ".")
    git(origin, "commit", "-q", "-m", "before")
    git(origin, "checkout", "-q", "-b", "topic")
    write(origin, AFTER)
    git(origin, "rm", "-q", "gone.py")
    git(origin, "add", ".")
    git(origin, "commit", "-q", "-m", "after")
    git(origin, "checkout", "-q", "main")
    git(origin, "merge", "-q", "--no-ff", "topic", "-m", "merge")
    git(origin, "config", "uploadpack.allowAnySHA1InWant", "true")
    (tmp_path / "run").mkdir()
    runner = Runner(tmp_path / "run")
    git(tmp_path, "clone", "-q", "--depth=1", origin.as_uri(), str(runner.repository))
    runner.values["github.event.pull_request.base.sha || github.event.before"] = ""
    return runner


def test_no_expression_is_part_of_a_script():
    """An input that holds a command must stay text."""
    assert not any("${{" in step["run"] for step in STEPS.values())


def test_the_installation_holds_torch_and_triton(runner):
    done = runner.step(INSTALL)
    assert done.returncode == 0, done.stderr
    held = (runner.temp / "workbench-held.txt").read_text()
    assert re.search(r"^torch==\d", held, re.M) and re.search(r"^triton==\d", held, re.M)
    words = (runner.temp / "pip.txt").read_text().split()
    assert words[-3:] == ["-c", str(runner.temp / "workbench-held.txt"), str(ROOT)]


@pytest.mark.nightly
def test_planted_changes_are_told_apart_and_the_comment_is_written_once(runner):
    body = "<!-- kernel-workbench gate -->\nnothing got slower"
    others = {"id": 1, "user": {"login": "somebody"}, "body": body}
    runner.comments.write_text(json.dumps([others]))
    done = runner.step(COMPARE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "::warning" in done.stdout
    document = json.loads(Path(runner.values["steps.gate.outputs.json"]).read_text())
    pairs = {p["case"]["kernel"]: p for p in document["comparison"]["parts"]}
    assert {name: pair["word"] for name, pair in pairs.items()} == {
        "narrow": "WORSE", "spills": "WORSE", "same": "SAME", "behind": "WORSE",
    }  # fmt: skip
    assert document["unchanged"] == 1, "comment.py; untouched.py was not looked at"
    left_out = {left["what"]: left["reason"].split(" since ")[0] for left in document["left_out"]}
    assert left_out == {"new": "new", "gone.py": "removed"}
    reasons = " ".join(pairs["spills"]["worse"])
    assert "scratch 0 to" in reasons and "registers" in reasons
    assert any(r.startswith("load width 128 bits") for r in pairs["narrow"]["worse"])
    assert runner.values["steps.gate.outputs.exit-code"] == "3"

    assert runner.step(COMMENT).returncode == 0
    other, body = runner.bodies
    assert other == others["body"]
    assert "suspected to be slower" in body and "3 WORSE, 1 SAME" in body
    assert re.search(r"^\| WORSE \| spills\.blocks .*scratch 0 to \d+ B", body, re.M)
    assert "- gone.py: removed" in body and "- new: new since" in body
    assert (runner.temp / "STEP_SUMMARY").read_text() == body
    assert str(runner.repository.parent) not in body
    runner.values["inputs.fail-on-suspicion"] = "true"
    assert runner.step(COMPARE).returncode == 3

    runner.values["inputs.measure"] = "never"
    write(runner.repository, {**BEFORE, "same.py": kernel("same", **{LOAD: "nothing"})})
    assert runner.step(COMPARE).returncode == 1 and runner.step(COMMENT).returncode == 0
    _, body = runner.bodies
    assert "1 FAILS" in body and "nothing is not defined" in body
    assert "\n- WRONG same.blocks: the interpreter stopped" in body and "WORSE" not in body


def test_without_a_kernel_there_is_a_comment_too_and_a_read_only_token_is_no_failure(runner):
    runner.values["inputs.baseline"], runner.values["inputs.measure"] = "HEAD", "never"
    assert runner.step(COMPARE).returncode == 0
    done = runner.step(COMMENT)
    assert done.returncode == 0 and "::warning" in done.stdout and "403" in done.stderr
    assert "nothing to compare" in (runner.temp / "STEP_SUMMARY").read_text()

    runner.values["inputs.baseline"] = "HEAD~~~; touch planted"
    assert runner.step(COMPARE).returncode == 2
    assert not (runner.repository / "planted").exists()
    shown = Path(runner.values["steps.gate.outputs.markdown"]).read_text()
    assert "could not run" in shown and "names no commit" in shown
    assert str(runner.repository.parent) not in shown


def test_a_comment_is_the_gates_own_by_its_author_and_its_marker(runner):
    """One that somebody else began in the same way is left; a text that is none is replaced."""
    marker = "<!-- kernel-workbench gate -->"
    bot = {"login": "github-actions[bot]"}
    written = [
        {"id": 1, "user": {"login": "somebody"}, "body": f"{marker}\nfine"},
        {"id": 2, "user": bot, "body": f"a quote of {marker}"},
        {"id": 3, "user": bot, "body": f"{marker}\nof the run before"},
    ]
    runner.comments.write_text(json.dumps(written))
    for text in ("", "$(touch planted)", base64.b64encode(gzip.compress(b"@all")).decode()):
        runner.values["inputs.text"] = text
        assert runner.step(COMMENT).returncode == 0
        first, second, third = runner.bodies
        assert (first, second) == (written[0]["body"], written[1]["body"])
        assert third.startswith(f"{marker}\n\n### Kernel Workbench: could not run")
    text = f"{marker}\n\n" + "\u00b5" * 65_535
    runner.values["inputs.text"] = base64.b64encode(gzip.compress(text.encode())).decode()
    assert runner.step(COMMENT).returncode == 0
    assert runner.bodies[2].startswith(f"{marker}\n\n\u00b5") and len(runner.bodies) == 3
    assert not (runner.repository / "planted").exists()


def test_no_step_with_a_token_follows_code_of_the_pull_request():
    """One action runs the kernels and has no token; the other one has it, and runs none."""
    assert "token" not in str(ACTION["inputs"]) and "GH_TOKEN" not in str(ACTION["runs"])
    assert [step["name"] for step in ACTION["runs"]["steps"]][-1] == COMPARE
    assert not re.search(r"-m workbench|python|git ", STEPS[COMMENT]["run"], re.I)
    for name in ("ENV", "OUTPUT", "PATH", "STEP_SUMMARY", "STATE"):
        assert f"-u GITHUB_{name}" in STEPS[COMPARE]["run"]
