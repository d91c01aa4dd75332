"""`workbench profile` the whole way, on the CPU: record, read back, tables, exit codes.

Three recordings of some 3 s each, as each imports torch; the tests share them.
"""

import csv
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from null_backend import Null

from workbench.cli import main
from workbench.commands.operators import operator_table, read_operators, write_operators
from workbench.commands.options import OptionError
from workbench.commands.profile import ProfileOptions
from workbench.commands.profile_command import check_options
from workbench.traces.readers import read

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
STEP = """
import sys
import torch
import workbench

x = torch.randn(64, 64)
print("words", sys.argv[1:])
for step in range(6):
    y = torch.softmax(x @ x, -1)
    workbench.step()
sys.exit(3)
"""
LOOP = """
import torch
x = torch.ones(8, 8)
print("ready", flush=True)
while True:
    x = (x @ x) * 1e-3
"""


class Recorded:
    """One run of the command, in a process of its own as users start it."""

    def __init__(self, folder, text, *words, program=("python", "step.py")):
        (folder / "step.py").write_text(text)
        variables = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
        variables["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "workbench", "profile", *words, "--", *program], cwd=folder,
            env=variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
        self.folder = folder

    def end(self):
        self.out, self.err = self.process.communicate(timeout=120)
        self.code = self.process.returncode
        (self.files,) = self.folder.glob("results/*/")
        return self


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    """Steps 2 and 3 of six, with shapes, of a program that ends with exit code 3."""
    folder = tmp_path_factory.mktemp("steps")
    options = ("--steps", "1,1,2", "--with", "shapes")
    return Recorded(folder, STEP, *options, program=("python", "step.py", "--tool", "x")).end()


@pytest.mark.nightly
def test_the_program_runs_as_the_user_wrote_it(steps):
    assert steps.out.startswith("words ['--tool', 'x']\n")
    assert steps.code == 3
    (line,) = steps.err.splitlines()
    assert line.startswith("error: step.py ended with exit code 3; its trace up to there is in ")


def test_the_trace_is_read_back(steps):
    trace = read([steps.files / "torch.pt.trace.json"], range_name="aten::mm")
    counts = {}
    for activity in trace.activities:
        counts[activity.name] = counts.get(activity.name, 0) + 1
    assert {name: n for name, n in counts.items() if name.startswith("Profiler")} == {
        "ProfilerStep#2": 1,
        "ProfilerStep#3": 1,
    }
    assert counts["aten::mm"] == 2
    assert "recorded: steps 2 to 3 of 6" in steps.out
    slowed = r"a recorded step took [\d.]+ .s and one without the profiler [\d.]+ .s"
    assert re.search(slowed + r", by the host's clock \(medians of 2 and 2\)", steps.out)
    assert "the profiler recorded only the host" in steps.out


def test_operators_are_shown_and_written(steps):
    lines = [line for line in steps.out.splitlines() if line.startswith("aten::")]
    assert any(line.startswith("aten::mm ") and "[[64, 64], [64, 64]]" in line for line in lines)
    with (steps.files / "operators.csv").open() as file:
        rows = {row["name"]: row for row in csv.DictReader(file)}
    known = {row["name"]: row for row in json.loads((steps.files / "operators.json").read_text())}
    assert rows.keys() == known.keys() and known["aten::mm"]["calls"] == 2
    for name, row in rows.items():
        assert float(row["self_cpu_s"]) == pytest.approx(known[name]["self_cpu_s"], rel=1e-6)
    assert f"written  {Path('results') / steps.files.name / 'operators.csv'}" in steps.out
    left = {path.name for path in steps.files.iterdir()}
    tables = {"torch.pt.trace.json", "operators.json", "operators.csv"}
    assert left == tables | {"events.jsonl", "report.html"}


@pytest.mark.nightly
def test_ctrl_c_leaves_the_trace(tmp_path):
    running = Recorded(tmp_path, LOOP)
    assert running.process.stdout.readline() == "ready\n"
    os.killpg(running.process.pid, signal.SIGINT)
    running.end()
    assert running.code == 130 and "recorded: step.py until it was stopped" in running.out
    assert "KeyboardInterrupt" in running.err and "workbench" not in running.err
    assert read([running.files / "torch.pt.trace.json"]).activities


@pytest.mark.nightly
def test_a_kernel_is_checked_and_its_reference_recorded(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(
        "workbench.commands.profiled_kernel.backend_for", lambda *_: Null(predicts=True)
    )
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    url = f"sqlite:///{tmp_path / 'h.db'}"
    assert main(["profile", "softmax", "--calls", "3", "--dtype", "fp32", "--database", url]) == 0
    out, err = capfd.readouterr()
    assert not err and "softmax.reference is recorded on the CPU" in out
    assert "in place of softmax.rows" in out
    assert re.search(r"right, ~[\d.]+ \S+ predicted for h200 \(measured times are [\d.]+ to ", out)
    (files,) = tmp_path.glob("results/*/")
    names = {path.name for path in files.iterdir()}
    assert names >= {"events.jsonl", "call.py", "torch.pt.trace.json", "operators.csv"}
    ranges = [a.name for a in read([files / "torch.pt.trace.json"]).activities]
    assert ranges.count("wb") == 3
    calls = {row["name"]: row["calls"] for row in read_operators(files / "operators.json")}
    assert calls["aten::exp"] == 3


# Without a recording


def sentence(capsys, *words):
    """Run a command that must fail; gives what it says."""
    assert main(list(words)) == 2
    out, err = capsys.readouterr()
    assert err.startswith("error: ") and err.count("\n") == 1 and not out, (out, err)
    return err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "Nothing is named"),
        (("--",), "Nothing is named"),
        (("--", ""), "has no name"),
        (("softmax", "--", "python", "step.py"), "name one of them"),
        (("softmax", "more"), "one word too many"),
        (("--tool", "nccu", "--", "python", "x.py"), "There is no tool 'nccu'"),
        (("--", "python", "x.py"), "There is no script x.py"),
        (("--sizes", "M=1", "--", "python", "x.py"), "--sizes is of a kernel"),
        (("--calls", "2", "--", "python", "x.py"), "--calls is of a kernel"),
        (("--steps", "0,1,2", "softmax"), "--steps counts the steps of a program"),
        (("--tool-option", "data=tree", "softmax"), "--tool-option data=tree is of proton"),
        (("--tool", "proton", "--with", "shapes", "softmax"), "--with is of torch.profiler"),
        (
            ("--tool", "proton", "--tool-option", "data=flat", "softmax"),
            "--tool-option data takes tree, trace or inside, not 'flat'.",
        ),
        (("--tool-option", "dat=tree", "softmax"), "There is no tool option 'dat'; did you mean"),
        (("softmax", "--impl", "rows:block_m=1024"), "cannot run"),
    ],
)
def test_what_cannot_be_profiled_is_one_sentence(capsys, monkeypatch, tmp_path, words, said):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "workbench.commands.profiled_kernel.backend_for", lambda *_: Null(predicts=True)
    )
    assert said in sentence(capsys, "profile", *words)
    assert not list(tmp_path.glob("results/*"))


def test_a_dry_run_shows_every_tool(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "step.py").write_text("")
    assert main(["profile", "--dry-run", "--", "python", "step.py", "--help"]) == 0
    out, _ = capsys.readouterr()
    assert "torch --folder results/RUN -- step.py --help" in out
    assert "reads  results/RUN/proton.hatchet" in out
    assert main(["profile", "--dry-run", "--tool", "trace", "softmax"]) == 0
    out, _ = capsys.readouterr()
    assert "results/RUN/call.py" in out and "catalog.spec_of('softmax')" in out
    assert "proton" not in out and not list(tmp_path.glob("results"))


def test_a_wrong_kernel_is_not_profiled(capsys, monkeypatch, tmp_path):
    from null_backend import Fate

    null = Null(lambda config: Fate(wrong="wrong at 3"), predicts=True)
    monkeypatch.setattr("workbench.commands.profiled_kernel.backend_for", lambda *_: null)
    monkeypatch.chdir(tmp_path)
    url = f"sqlite:///{tmp_path / 'h.db'}"
    assert main(["profile", "softmax", "--database", url]) == 2
    assert "softmax.rows fails without a profiler" in capsys.readouterr().err
    assert not list(tmp_path.glob("results/*/call.py"))


def test_the_stored_command_repeats_a_run():
    words = ("--", "python", "step.py", "a b")
    options = ProfileOptions(tool="trace", with_="shapes", target=words)
    assert options.command == (
        "workbench profile --tool trace --with shapes -- python step.py 'a b'"
    )
    assert options.program == ("python", "step.py", "a b") and options.kernel is None
    check_options(options)
    with pytest.raises(OptionError, match="leave it out"):
        check_options(ProfileOptions(tool="proton", with_="memory", target=words))


def row(name, **more):
    numbers = {"calls": 1, "cpu_s": 2e-3, "self_cpu_s": 1e-3, "device_s": 0.0}
    rest = {"self_device_s": 0.0, "self_cpu_bytes": 0, "self_device_bytes": 0}
    return {"name": name, "device": "cpu", "is_range": False, **numbers, **rest, **more}


def heads(table):
    return [column.header for column in table.columns]


def test_operators_of_a_gpu_are_ordered_by_its_time(tmp_path):
    on_gpu = row("b", self_device_s=1e-6, self_device_bytes=2048)
    kernel = row("kernel", device="cuda", self_device_s=1.0)
    rows = [row("a"), on_gpu, row("step", is_range=True), kernel, row("=f()")]
    table = operator_table(rows)
    assert heads(table)[2:5] == ["GPU itself", "share", "GPU total"]
    names = list(table.columns[0].cells)
    assert names == ["b", "=f()", "a"] and next(iter(table.columns[3].cells)) == "100 %"
    assert heads(operator_table(rows[:1])) == ["operator", "calls", "CPU itself", "share",
                                              "CPU total"]  # fmt: skip
    written = write_operators(tmp_path / "o.json", rows).read_text()
    assert "'=f()" in written and written.count("\n") == 6


def test_damaged_rows_are_no_rows(tmp_path):
    for text in ("", "{", "[1]", '[{"name": "x"}]', "null"):
        (tmp_path / "o.json").write_text(text)
        assert read_operators(tmp_path / "o.json") == []
