"""`workbench profile` on the GPU that is here: exactly the launches of the kernel come back.

Each test runs the command in a process of its own, since a process has one collector.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.commands.profile import ProfileOptions
from workbench.device import hardware
from workbench.traces.readers import read
from workbench.traces.trace import ActivityKind
from workbench.traces.trace_summary import summarise

if hardware.live() is None:
    pytest.skip("torch sees no GPU here", allow_module_level=True)

# a checkout that is not installed has to be found, too
ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
SOFTMAX = ("softmax", "--impl", "rows", "--sizes", "M=1024,N=4096")
CALLS = 7
PROGRAM = """
import torch
import workbench

x = torch.randn(1024, 1024, device="cuda")
for _ in range(8):
    x = torch.softmax(x @ x, -1)
    workbench.step()
"""


def profiled(folder, *words):
    """Run the command; gives its output and the run's folder."""
    url = f"sqlite:///{folder / 'h.db'}"
    line = [sys.executable, "-m", "workbench", "profile", "--out", str(folder / "out")]
    if "--" not in words:
        line += ["--database", url]
    done = subprocess.run(
        [*line, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        cwd=folder,
        env=ENVIRONMENT,
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stderr
    (run,) = (path for path in (folder / "out").iterdir() if path.is_dir())
    return done.stdout, run


def rows_of(trace):
    """Rows of the kernels of all devices."""
    return summarise(trace).rows


@pytest.mark.alone
def test_torch_profiler_records_each_launch_of_a_kernel(tmp_path):
    out, run = profiled(tmp_path, "--tool", "trace", *SOFTMAX, "--calls", str(CALLS))
    assert f"recorded: {CALLS} calls of softmax.rows" in out and "without a profiler" in out
    trace = read([run / "torch.pt.trace.json"])
    names = [a.name for a in trace.activities if a.kind == ActivityKind.RANGE]
    assert names.count("wb") == CALLS
    (kernels,) = [r for r in rows_of(trace) if r.name.startswith("_rows")]
    assert kernels.count == CALLS
    assert (run / "call.py").exists() and (run / "events.jsonl").exists()


@pytest.mark.alone
@pytest.mark.parametrize(("data", "file"), [("tree", "hatchet"), ("trace", "chrome_trace")])
def test_proton_records_each_launch_of_a_kernel(tmp_path, data, file):
    words = ("--tool", "proton", "--tool-option", f"data={data}", *SOFTMAX, "--calls", str(CALLS))
    out, run = profiled(tmp_path, *words)
    assert f"recorded: {CALLS} calls of softmax.rows" in out
    (kernels,) = [r for r in rows_of(read([run / f"proton.{file}"])) if "rows" in r.name]
    assert kernels.count == CALLS


@pytest.mark.alone
@pytest.mark.parametrize("tool", ["trace", "proton"])
def test_a_library_is_recorded_too(tmp_path, tool):
    options = ProfileOptions(tool=tool, target=("softmax",), impl="torch", calls=2)
    _, run = profiled(tmp_path, *options.command.split()[2:])
    assert (run / "call.py").exists()


@pytest.mark.alone
def test_steps_of_a_program_are_recorded(tmp_path):
    (tmp_path / "step.py").write_text(PROGRAM)
    steps = ("--steps", "2,1,3")
    out, run = profiled(tmp_path, *steps, "--", sys.executable, str(Path("step.py")))
    assert "recorded: steps 3 to 5 of 8" in out and "GPU itself" in out
    trace = read([run / "torch.pt.trace.json"])
    assert sum(r.count for r in rows_of(trace) if "softmax" in r.name.lower()) == 3


@pytest.mark.alone
def test_a_program_under_proton(tmp_path):
    (tmp_path / "step.py").write_text(PROGRAM)
    out, run = profiled(tmp_path, "--tool", "proton", "--", sys.executable, "step.py")
    assert "recorded: the whole of step.py" in out
    rows = rows_of(read([run / "proton.hatchet"]))
    assert sum(r.count for r in rows if "softmax" in r.name.lower()) == 8
