"""Tools of NVIDIA on the GPU that is here: what must come back does, or the reason is a sentence.

ncu and compute-sanitizer were run on an H200; nsys was not there.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.device import hardware
from workbench.traces.profilers.running.permission import counter_permission

if hardware.live() is None:
    pytest.skip("torch sees no GPU here", allow_module_level=True)

# a checkout that is not installed has to be found, too
ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
SOFTMAX = ("softmax", "--impl", "rows", "--sizes", "M=1024,N=4096")


def profiled(folder, *words):
    """Run the command; gives its exit code, output, errors, and the names of the run's files."""
    url = f"sqlite:///{folder / 'h.db'}"
    line = [sys.executable, "-m", "workbench", "profile", "--out", str(folder / "out")]
    done = subprocess.run(
        [*line, "--database", url, *words], capture_output=True, text=True, check=False,
        timeout=280, cwd=folder, env=ENVIRONMENT,
    )  # fmt: skip
    print(done.stdout, done.stderr)
    names = {path.name for path in folder.glob("out/*/*")}
    return done.returncode, done.stdout, done.stderr, names


def needs(program):
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not here")


PERMITTED = counter_permission().is_allowed is not False


@pytest.mark.alone
@needs("ncu")
@pytest.mark.skipif(not PERMITTED, reason="counters are forbidden here")
def test_ncu_takes_the_marked_call_alone(tmp_path):
    named = ("--metrics", "smsp__warps_issue_stalled_barrier.sum")
    code, out, _, names = profiled(tmp_path, "--tool", "ncu", *named, *SOFTMAX)
    assert code == 0 and "recorded: 1 call of softmax.rows" in out
    assert names >= {"ncu.ncu-rep", "ncu.log", "call.py", "report.html"}


@pytest.mark.alone
@needs("ncu")
@pytest.mark.skipif(PERMITTED, reason="counters are permitted here")
def test_without_rights_trace_is_the_tool(tmp_path):
    code, out, _, names = profiled(tmp_path, *SOFTMAX)
    assert code == 0 and "without counters: ncu cannot read counters" in out
    assert "torch.pt.trace.json" in names


@pytest.mark.alone
@needs("compute-sanitizer")
def test_a_right_kernel_passes_all_checks(tmp_path):
    code, out, _, names = profiled(tmp_path, "--tool", "sanitizer", *SOFTMAX)
    assert code == 0 and out.count("pass") >= 4
    assert names >= {"synccheck.log", "racecheck.log", "memcheck.log", "initcheck.log"}


@pytest.mark.alone
@needs("nsys")
def test_nsys_leaves_a_timeline_or_says_why_not(tmp_path):
    code, _, err, names = profiled(tmp_path, "--tool", "nsys", *SOFTMAX)
    assert (code == 0 and "nsys.sqlite" in names) or (code == 2 and "install NVIDIA" in err)
