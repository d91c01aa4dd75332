"""Programs whose bottleneck is known, traced by both tools on the GPU that is here.

`pytest -s tests/gpu/test_traces.py` prints the figures, beside those that the programs print of
themselves without a profiler. On an H200 docs/facts.md has them.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.device import hardware
from workbench.traces.readers import read
from workbench.traces.rules import evaluate_device
from workbench.traces.trace_summary import summarise

if hardware.live() is None:
    pytest.skip("torch sees no GPU here", allow_module_level=True)

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
LINKS, CHAINS, STEPS = 64, 5, 12
AGREE = 0.1  # share by which a figure may differ from that without a profiler
CHAIN = f"""
import statistics, sys, time
import torch, workbench
from workbench.measurement import inputs
from workbench.variants import norm_chain as chains

x, w = inputs.make(
    chains.norm_chain, {{"M": 64, "N": 1024, "L": {LINKS}}}, "fp32", "cuda", seed=0
)
config = chains.Warps()

def waiting():
    y, each = x, chains.whole_rows(config)
    for i in range({LINKS}):
        y = chains.rms_norm.rows(y, w[i], config=each)
        torch.cuda.synchronize()

ways = {{
    "eager": lambda: chains.eager(x, w, config=config),
    "copy": lambda: chains.read_back(x, w, config=config),
    "sync": waiting,
}}
call = ways.get(sys.argv[1])
if call is None:
    for _ in range(3):
        ways["eager"]()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ways["eager"]()
    call = graph.replay
for _ in range(20):
    call()
torch.cuda.synchronize()
times = []
for _ in range({STEPS}):
    began = time.perf_counter()
    for _ in range({CHAINS}):
        call()
    torch.cuda.synchronize()
    times.append((time.perf_counter() - began) / {CHAINS})
    workbench.step()
print("median", statistics.median(times))
"""
FIRST = {
    "eager": "launch-bound",
    "graph": "short kernels",
    "sync": "launch-bound",
    "copy": "transfer-bound",
}


@pytest.fixture
def place(tmp_path):
    (tmp_path / "chain.py").write_text(CHAIN)
    return tmp_path


def ran(folder, *words):
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, timeout=120,
        cwd=folder, env=ENVIRONMENT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def traced(folder, way, *words):
    """The summary of a trace of the program."""
    line = ("-m", "workbench", "profile", *words, "--", sys.executable, "chain.py", way)
    ran(folder, *line)
    (file,) = [*folder.glob("results/*/torch.pt.trace.json"), *folder.glob("results/*/proton.*")]
    (device,) = summarise(read([file])).devices
    return device


def mean_of(summary):
    """The mean time in seconds of the norm."""
    (row,) = (r for r in summary.rows if r.name.startswith("_rows"))
    return row.mean_ns / 1e9


@pytest.mark.alone
@pytest.mark.parametrize("way", FIRST)
def test_both_tools_see_what_the_program_does(place, way):
    alone_s = float(re.search(r"median (\S+)", ran(place, "chain.py", way))[1])
    steps = ("--steps", "4,2,4")
    torch_folder, proton_folder = place / "torch", place / "proton"
    for folder in (torch_folder, proton_folder):
        folder.mkdir()
        (folder / "chain.py").write_text(CHAIN)
    by_torch = traced(torch_folder, way, "--tool", "trace", *steps)
    by_proton = traced(proton_folder, way, "--tool", "proton", "--tool-option", "data=trace")
    window_s = by_torch.times.window / 1e9 / (4 * CHAINS)
    print(f"{way}: {alone_s * 1e6:.1f} us a chain alone, {window_s * 1e6:.1f} traced, kernels")
    print(f"  {mean_of(by_torch) * 1e6:.3f} us by torch, {mean_of(by_proton) * 1e6:.3f} by Proton")
    assert by_torch.times.kernel_count == 4 * CHAINS * LINKS
    assert next(match.rule.word for match in evaluate_device(by_torch)) == FIRST[way]
    assert mean_of(by_torch) == pytest.approx(mean_of(by_proton), rel=AGREE)
    if way == "graph":  # the host's own time differs by up to 1.8 from process to process
        assert window_s >= (1 - AGREE) * alone_s


INSIDE = """
import torch, triton
import triton.language as tl
import triton.profiler.language as pl

pl.enable_semantic("triton")

@triton.jit
def doubled(x, y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    with pl.scope("load"):
        value = tl.load(x + at)
    with pl.scope("store"):
        tl.store(y + at, 2 * value)

x = torch.ones(1 << 16, device="cuda")
y = torch.empty_like(x)
doubled[(64,)](x, y, BLOCK=1024)
torch.cuda.synchronize()
assert (y == 2).all()
"""


@pytest.mark.alone
def test_proton_records_scopes_inside_of_a_kernel(tmp_path):
    (tmp_path / "inside.py").write_text(INSIDE)
    words = ("--tool", "proton", "--tool-option", "data=inside", "--", sys.executable, "inside.py")
    ran(tmp_path, "-m", "workbench", "profile", *words)
    (file,) = tmp_path.glob("results/*/proton.chrome_trace")
    names = {activity.name for activity in read([file]).activities}
    assert {"load", "store"} <= names
