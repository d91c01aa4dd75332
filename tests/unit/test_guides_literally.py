"""docs/guides.md, literally: each command that the page names is run, and prints what its row says.

A placeholder of the page stands for a file of the folder in which the commands run: FILES.
"""

import gzip
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from metal_shim.compiler import CompilerMissing, find_compiler
from workbench.cli import main

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"
TRACES = GOLDEN / "traces"
pytestmark = pytest.mark.unit

FILES = {
    "before.csv": TRACES / "h200" / "raw_base.csv.gz",
    "after.csv": TRACES / "h200" / "raw_base.csv.gz",
    "kernel.csv": TRACES / "h200" / "raw_base.csv.gz",
    "source.csv": TRACES / "h200" / "source_cuda_sass.csv.gz",
    "memcheck.log": TRACES / "h200" / "oob.log.gz",
    "kernel_trace.csv": TRACES / "rocprofv3" / "sdk2025_kernel_trace.csv",
    "stats.csv": TRACES / "rocprofv3" / "sdk2025_hip_api_stats.csv",
    "trace.sqlite": TRACES / "nsys" / "healthy_1pct_minimal.sqlite.gz",
    "eager.json": TRACES / "h200" / "chain_eager.json.gz",
    "graph.json": TRACES / "h200" / "chain_graph.json.gz",
    "kernel.cubin": GOLDEN / "matmul.sm_90.cubin",
}
STEP = """\
import torch, workbench

x = torch.randn(64, 64)
for _ in range(12):
    with torch.profiler.record_function("layer"):
        x = (x @ x).softmax(-1)
    workbench.step()
"""
PREDICTED = "Times are predicted: no GPU took part"

# What a command prints, as a pattern; by the command as the page names it. A second entry is the
# command that is run: with its operands, or `--dry-run` where it drives another machine's tool.
PROMISES = {
    "workbench code": None,  # rows name what it is run with elsewhere
    "workbench compare": None,
    "workbench measure": None,
    "workbench profile": None,
    "workbench code kernel.cubin": r"machine code for sm_90(.|\n)*4 HGMMA",
    "workbench code matmul --device b200 --find tcgen05.ld": r"tcgen05.ld: 1 instruction\n.*LDTM",
    "workbench code matmul --impl warp_groups": r"partition +role(.|\n)*No two partitions share",
    "workbench code softmax": r"mix +2 global loads",
    "workbench code softmax --against FILE": (
        r"(?s)Resources.*Mix", "workbench code softmax --against kernel.cubin"),
    "workbench code softmax --device b200": r"Target sm_100",
    "workbench code softmax --device b200 --text": r"STG\.E",
    "workbench code softmax --dot FILE": (
        r"written +flow.dot", "workbench code softmax --dot flow.dot"),
    "workbench code softmax --find cp.async.bulk.tensor": r"tensor: 0 instructions",
    "workbench code softmax --samples FILE": (
        r"are of other code", "workbench code softmax --samples source.csv"),
    "workbench code softmax --text": r"\d+ 00000 +\d+ +",
    "workbench code source.csv": r"long_scoreboard 96 %",
    "workbench compare BEFORE AFTER": (
        r"(?s)kernel count.*launch efficiency.*_rows", "workbench compare eager.json graph.json"),
    "workbench compare LEFT RIGHT": (
        r"needs a GPU that torch sees", "workbench compare rows looped --kernel softmax"),
    "workbench compare before.csv after.csv": r"SAME: the total time is 1949.1",
    "workbench compare before.csv after.csv --expect direct_store": r"not met: more lanes are on",
    "workbench compare before.csv after.csv --expect mbarrier": r"not met: stalls by barrier",
    "workbench compare before.csv after.csv --expect prefetch": r"not met: global loads fall",
    "workbench compare before.csv after.csv --expect tmem_ahead": r"not met: stalls by long score",
    "workbench diagnose kernel.cubin": r"None of \d+ rules holds",
    "workbench diagnose last": r"(?s)ceiling predicted|rule",
    "workbench doctor": r"(?s)Triton.*xctrace.*MLX",
    "workbench experiment --events-file FILE": (
        r"needs a GPU", "workbench experiment cpu_vs_gpu --events-file all.jsonl"),
    "workbench experiment --quiet": (
        r"^q4_k_matmul: at least 9.24", "workbench experiment expected --quiet --device m2max "
        "--sizes M=1,N=2560,K=2560"),
    "workbench experiment block_size": r"512 threads over 256 threads",
    "workbench experiment cpu_vs_gpu": r"GPU only, 8 x 128256",
    "workbench experiment cpu_vs_gpu --json -": r'"findings"',
    "workbench experiment examples/rwkv7/e2e.py": r"(?s)kernel count.*products, share",
    "workbench experiment examples/rwkv7/layer_breakdown.py": r"(?s)attention_linear.*wkv.*ffn",
    "workbench experiment expected --device m2max": r"400 GB/s(.|\n)*13.6 TFLOP/s",
    "workbench experiment expected --device m2max --sizes M=1,N=2560,K=2560": (
        r"3.7 MB(.|\n)*13.1 MFLOP"),
    "workbench experiment expected --time 0.5ms": r"500.* µs",
    "workbench experiment launch_overhead": r"(?s)kernel count +64.*fused",
    "workbench experiment lora_rank": r"rank 64",
    "workbench experiment memory_vs_compute": r"(?s)memory traffic.*arithmetic",
    "workbench experiment quantization_overhead": r"overhead, \(B - A\) / A",
    "workbench experiment tile_size": r"256, limited by registers",
    "workbench history": r"(?s)kernel.*predicted",
    "workbench measure layer_norm": PREDICTED,
    "workbench measure patch_embed": PREDICTED,
    "workbench measure sample_topk_topp": PREDICTED,
    "workbench measure softmax": PREDICTED,
    "workbench measure softmax --json -": r'"predicted_s"',
    "workbench profile -- python step.py": r"(?s)aten::.*report",
    "workbench profile --steps 0,1,5 -- python step.py": r"ProfilerStep# +5 ",
    "workbench profile --with memory -- python step.py": r"(?s)report",
    "workbench profile --with shapes,memory,stacks -- python step.py": r"(?s)report",
    "workbench profile --tool xctrace --tool-option \"instrument=Time Profiler\" -- ./app": (
        r"--instrument 'Time Profiler'",
        "workbench profile --tool xctrace --tool-option \"instrument=Time Profiler\" --dry-run "
        "-- ./app"),
    "workbench profile --tool xctrace --tool-option instrument=Allocations -- ./app": (
        r"--instrument Allocations",
        "workbench profile --tool xctrace --tool-option instrument=Allocations --dry-run -- ./app"),
    "workbench profile --tool xctrace -- ./app": (
        r"Metal System Trace", "workbench profile --tool xctrace --dry-run -- ./app"),
    "workbench profile --steps 2,3,5 -- python step.py": r"ProfilerStep# +5 ",
    "workbench profile sample_topk_topp --dry-run": r"catalog.spec_of\('sample_topk_topp'\)",
    "workbench profile sample_topk_topp --tool gputrace": (
        r"MTL_CAPTURE_ENABLED", "workbench profile sample_topk_topp --tool gputrace --dry-run"),
    "workbench profile softmax --tool gputrace": (
        r"MTL_DEBUG_LAYER", "workbench profile softmax --tool gputrace --dry-run"),
    "workbench profile softmax --tool ncu": (
        r"runs +ncu ", "workbench profile softmax --tool ncu --dry-run"),
    "workbench profile softmax --tool rocprofv3": (
        r"rocprofv3 ", "workbench profile softmax --tool rocprofv3 --dry-run"),
    "workbench profile softmax --tool sanitizer": (
        r"(?s)synccheck.*racecheck.*memcheck.*initcheck",
        "workbench profile softmax --tool sanitizer --dry-run"),
    "workbench read": (r"(?s)GPU utilisation.*idle", "workbench read eager.json"),
    "workbench read --json FILE": (
        r"written +all.json", "workbench read --json all.json eager.json"),
    "workbench read --range NAME": (
        r"GPU utilisation", "workbench read --range ProfilerStep# eager.json"),
    "workbench read --range ProfilerStep#": (
        r"kernels in one", "workbench read --range ProfilerStep# eager.json"),
    "workbench read FILE": (r"kernel count", "workbench read kernel.csv"),
    "workbench read TRACE": (r"(?s)gaps", "workbench read graph.json"),
    "workbench read TRACE --perfetto FILE": (
        r"written +for.perfetto", "workbench read graph.json --perfetto for.perfetto"),
    "workbench read kernel.csv": r"(?s)stall lg_throttle 56 %.*stall barrier 26 %",
    "workbench read kernel_trace.csv": r"(?s)kernel +device +count +total.*addition_kernel",
    "workbench read memcheck.log": r"memcheck: fail \(514 errors\)",
    "workbench read stats.csv": r"hipLaunchKernel +16",
    "workbench read trace.sqlite": r"(?s)launch call, median.*GEMM share",
    "workbench report findings": r"report .*FINDINGS.md",
    "workbench report findings --out PROFILING_RESULTS.md": r"PROFILING_RESULTS.md",
    "workbench report roofline": r"report .*html",
    "workbench sweep --events": (
        r"report", "workbench sweep block_size --kernel softmax --budget 3 --events"),
    "workbench sweep block_size": r"(?s)Times are predicted.*report",
    "workbench sweep threadgroup --device m2max --dtype fp16": r"Begin with .* on the Pareto front",
    "workbench sweep tile_size": r"(?s)Times are predicted.*report",
    "workbench sweep tile_size --device b200": r"(?s)predicted.*b200.*report",
    "workbench sweep tile_size --device m2max --dtype fp16": r"Begin with .* on the Pareto front",
    "python examples/ops/sampler.py": (
        r"^\d+ \d+$", "python examples/ops/sampler.py --tokens 2"),
    "python -m metal_shim.check sample_topk_topp": r"(?i)0 findings|no finding",
    "python -m metal_shim.check softmax": r"(?i)0 findings|no finding",
    "python -m metal_shim.bring_back": None,  # on a Mac
    "python benchmarks/experiments.py --only suite": None,  # minutes; it runs those above
}  # fmt: skip
# Exit codes other than 0: something is not met or found, or a GPU or other samples are needed.
CODES = {
    **{f"workbench compare before.csv after.csv --expect {change}": 1
       for change in ("direct_store", "mbarrier", "prefetch", "tmem_ahead")},
    "workbench read memcheck.log": 1,
    "workbench code softmax --samples FILE": 2,
    "workbench compare LEFT RIGHT": 2,
}  # fmt: skip
# What others need before them: times, a trace and a profile of the history.
FIRST = ("workbench measure softmax", "workbench read", "workbench profile -- python step.py")
BY_DAY = (
    "workbench read memcheck.log",
    "workbench read kernel.csv",
    "workbench compare before.csv after.csv --expect mbarrier",
)


def named():
    """Every command of the page, in its order."""
    page = (ROOT / "docs" / "guides.md").read_text(encoding="utf-8")
    cells = [row.split(" | ")[1] for row in re.findall(r"^\| \d\.\d+ \| (.*) \|$", page, re.M)]
    codes = [c for cell in cells for c in re.findall(r"`((?:workbench|python) [^`]+)`", cell)]
    return list(dict.fromkeys(codes))


def runs():
    """The commands to run with what each is to print, once each."""
    entries = {c: p if isinstance(p, tuple) else (p, c) for c, p in PROMISES.items() if p}
    order = sorted(entries, key=lambda c: FIRST.index(c) if c in FIRST else len(FIRST))
    return {command: entries[command] for command in order}


def has_clang():
    """Return whether Metal kernels can be emulated here, by clang's own name or by clang++-19."""
    try:
        return bool(find_compiler())
    except CompilerMissing:
        return False


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with all that the page's commands name, and no GPU in sight."""
    for name, source in FILES.items():
        content = source.read_bytes()
        content = gzip.decompress(content) if source.suffix == ".gz" else content
        (tmp_path / name).write_bytes(content)
    (tmp_path / "step.py").write_text(STEP)
    (tmp_path / "app").write_text("#!/bin/sh\n")
    (tmp_path / "app").chmod(0o755)
    for name in ("examples", "benchmarks"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def test_every_command_of_the_page_has_what_it_is_to_print():
    assert set(named()) == set(PROMISES)


@pytest.mark.parametrize("command", BY_DAY)
def test_a_command_of_the_page_prints_what_its_row_says(command, folder, capfd):
    pattern, words = runs()[command]
    assert main(shlex.split(words)[1:]) == CODES.get(command, 0)
    assert re.search(pattern, capfd.readouterr().out, flags=re.MULTILINE)


@pytest.mark.nightly
@pytest.mark.timeout(5400)
def test_each_command_of_the_page_prints_what_its_row_says(folder):
    """As a user would: each in a process of its own, in one folder, one after the other."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    place = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    lacks_clang = not has_clang()
    wrong = []
    for command, (pattern, words) in runs().items():
        if lacks_clang and ("metal_shim" in words or "m2max --dtype" in words):
            continue
        python, rest = [sys.executable], shlex.split(words)
        line = [*python, "-m", *rest] if rest[0] == "workbench" else [*python, *rest[1:]]
        done = subprocess.run(line, env=place, capture_output=True, text=True, timeout=1200)
        said = done.stdout + done.stderr
        fits = re.search(pattern, said, flags=re.MULTILINE)
        if done.returncode != CODES.get(command, 0) or not fits:
            wrong.append(f"{command}: {done.returncode}, no {pattern!r} in\n{said[-1500:]}")
    assert not wrong, "\n\n".join(wrong)
