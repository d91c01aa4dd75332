"""How long a user waits for an answer, and whether what a sweep found is what a launch runs.

A row for each kernel: `sweep tile_size` in a new HOME with empty compile caches, then a launch by
`workbench.ops` in another process; with `--warm` the same sweep once more with `--fresh`. Then
`wb.tune` and `triton.autotune` over one list of 72 configs, each in a process of its own, in turns.

    python benchmarks/main_loop.py --out main_loop.json
    python benchmarks/main_loop.py --out main_loop.json --only softmax matmul --warm --turns 2
    python benchmarks/main_loop.py --out main_loop.json --only none --commands
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runs import HERE, run_command, save, say, show

LIMIT_S = 240.0
ROW, COMPUTE = 15, 25  # seconds asked: kernels of rows, and products
# kernel, sizes, seconds asked
CASES = (
    ("matmul", "M=4096,N=4096,K=4096", COMPUTE),
    ("softmax", "M=8192,N=4096", ROW),
    ("softmax", "M=3,N=200003", ROW),
    ("rms_norm", "M=6144,N=5120", ROW),
    ("layer_norm", "M=12288,N=2048", ROW),
    ("swiglu", "M=3000,N=11008", ROW),
    ("causal_attention", "B=1,S=12288,Hkv=8,G=1,D=256", 20),
    ("lora", "M=64,N=8192,K=8192,r=16", COMPUTE),
    ("matmul", "M=96,N=6144,K=4096", COMPUTE),
    ("copy", "N=268435456", ROW),
    ("cross_entropy", "M=4096,V=128256", ROW),
    ("q4_k_matmul", "M=1,N=11008,K=4096", 20),
)
# arguments of `workbench`, seconds asked
COMMANDS = (
    ("measure softmax", 35),
    ("ceilings", 30),
    ("profile softmax", 18),
    ("doctor", 1.5),
)
# Launches through the operator, which logs what it chose.
LAUNCH = """
import logging, sys
logging.basicConfig(level=logging.INFO, format="%(message)s")
import torch
from workbench import catalog, ops
from workbench.measurement import inputs
name, pairs = sys.argv[1], (pair.split("=") for pair in sys.argv[2].split(","))
sizes = {axis: int(extent) for axis, extent in pairs}
getattr(ops, name)(*inputs.make(catalog.spec_of(name), sizes, "bf16", "cuda"))
torch.cuda.synchronize()
"""
TUNE = """
import sys, time
import torch, triton
from listed_gelu import SIZES, configs, gelu_bias
M, N = SIZES.values()
x = torch.randn(M, N, device="cuda", dtype=torch.bfloat16)
b, y = torch.randn(N, device="cuda", dtype=torch.bfloat16), torch.empty_like(x)
grid = lambda c: (triton.cdiv(M, c["BM"]), triton.cdiv(N, c["BN"]))
torch.cuda.synchronize()
started = time.time()
if sys.argv[1] == "triton.autotune":
    tuned = triton.autotune(configs, key=["N"])(gelu_bias)
    tuned[grid](x, b, y, M, N)
    torch.cuda.synchronize()
    best = tuned.best_config.all_kwargs()
else:
    import workbench as wb
    best = wb.tune(gelu_bias, (x, b, y, M, N), grid=grid, configs=configs).kwargs
print("took", time.time() - started, {k: v for k, v in best.items() if v is not None})
"""


def time_sweep(kernel: str, sizes: str, home: Path, *more: str) -> dict[str, Any]:
    """Sweep as a user does. Returns the wall time, when the first config was named, and the
    answer."""
    command = [sys.executable, "-m", "workbench.sweep", "tile_size", "--kernel", kernel]
    with tempfile.TemporaryDirectory() as out:
        ended = run_command(
            [*command, "--sizes", sizes, "--out", out, *more], LIMIT_S, **cold(home)
        )
    lines = ended.text.strip().splitlines()
    at = next((i for i, line in enumerate(lines) if line.startswith("events ")), 0)
    return {
        "wall_s": ended.wall_s,
        "answer": lines[at - 1] if at else ended.reason,
        "parts": next((line for line in lines if " s: start" in line), ""),
        "notes": [line for line in lines if line.startswith("note:")],
        "code": ended.code,
    }


def cold(home: Path) -> dict[str, str]:
    """Return the environment of a user whose home is this folder, with caches of its own."""
    return {"HOME": str(home), "TORCHINDUCTOR_CACHE_DIR": str(home / "inductor")}


def launched_config(kernel: str, sizes: str, home: Path) -> str:
    """Return what a launch without a config chose, as its log says."""
    ended = run_command([sys.executable, "-c", LAUNCH, kernel, sizes], LIMIT_S, **cold(home))
    return next((x for x in ended.text.splitlines() if x.startswith(kernel + ".")), ended.reason)


def is_kept(answer: str, chosen: str) -> bool:
    """Return whether the launch has the answer's Impl and config."""
    label = re.sub(r" \(the default\)$", "", answer.partition(":")[0])
    first, *rest = (word.strip() for word in label.split(","))
    words = chosen.partition(";")[0].replace(".", " ").replace(":", " ").replace(",", " ").split()
    return all(part in chosen for part in rest) and all(w in words for w in first.split())


def row(kernel: str, sizes: str, goal_s: float, warm: bool) -> dict[str, Any]:
    """Return the row of one kernel."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        result = {"kernel": kernel, "sizes": sizes, "asked_s": goal_s}
        result |= time_sweep(kernel, sizes, home)
        result["launch"] = launched_config(kernel, sizes, home)
        result["kept"] = is_kept(result["answer"], result["launch"])
        if warm:
            result["warm_s"] = time_sweep(kernel, sizes, home, "--fresh")["wall_s"]
    say(f"{kernel} {sizes}: {result['wall_s']:.1f} s, kept {result['kept']}: {result['answer']}")
    say(f"    {result['parts']}\n    {result['launch'][:160]}")
    return result


def time_tuning(by: str) -> dict[str, Any]:
    """Return what one side needs for the list, in a new home."""
    with tempfile.TemporaryDirectory() as home:
        path = os.pathsep.join([str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH", "")])
        there = {**cold(Path(home)), "PYTHONPATH": path}
        ended = run_command([sys.executable, "-c", TUNE, by], LIMIT_S, **there)
    matched = re.search(r"^took ([\d.]+) (.+)$", ended.text, re.M)
    say(f"{by}: {matched[0] if matched else ended.reason}")
    return {
        "by": by,
        "s": float(matched[1]) if matched else None,
        "best": matched[2] if matched else "",
    }


def time_command(words: str, goal_s: float) -> dict[str, Any]:
    """Return the wall time of a command, its caches warm by a first call."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        command = [sys.executable, "-m", "workbench", *words.split()]
        if words != "doctor":
            command += ["--out", folder]
        ended = run_command(command, LIMIT_S, **cold(home))
    say(f"{words}: {ended.wall_s:.1f} s, exit {ended.code}")
    return {"command": words, "wall_s": ended.wall_s, "asked_s": goal_s, "code": ended.code}


def main(given: Sequence[str] | None = None) -> int:
    """Print the table and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("main_loop.json"))
    parser.add_argument("--only", nargs="*", default=[], help="these kernels; `none`: no sweep")
    parser.add_argument("--warm", action="store_true", help="sweep each once more, caches warm")
    parser.add_argument("--turns", type=int, default=1, help="of wb.tune and triton.autotune")
    parser.add_argument("--commands", action="store_true", help="time other commands, too")
    options = parser.parse_args(given)
    rows = [
        row(*case, options.warm) for case in CASES if not options.only or case[0] in options.only
    ]
    tunings = [
        time_tuning(by) for _ in range(options.turns) for by in ("triton.autotune", "wb.tune")
    ]
    commands = [time_command(*one) for one in COMMANDS] if options.commands else []
    save(str(options.out), {"rows": rows, "tune": tunings, "commands": commands})
    if rows:
        show(("kernel", "sizes", "asked, s", "cold, s", "warm, s", "kept"), list(map(cells, rows)))
    return 0


def cells(one: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return a row as it is printed."""
    times = one["asked_s"], one["wall_s"], one.get("warm_s")
    return one["kernel"], one["sizes"], *times, "yes" if one["kept"] else "no"


if __name__ == "__main__":
    sys.exit(main())
