"""A program with all three sources of launches; `python workload_program.py STEPS [END]`. With an
END it leaves Inductor out, whose import takes seconds."""

import importlib.machinery
import importlib.util
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
import triton
import triton.language as tl

GOLDEN = Path(__file__).parent / "golden" / "workload" / "inductor_gelu.py.txt"
SCALE: tl.constexpr = tl.constexpr(2)


@triton.jit
def doubled(x):
    return x * SCALE


@triton.jit
def plain(x, y, n, eps, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, doubled(tl.load(x + i, i < n)) + eps, i < n)


@triton.autotune(
    [triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128}, num_warps=8)], key=["n"]
)
@triton.jit
def tuned(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, i < n), i < n)


@triton.heuristics({"BLOCK": lambda a: triton.next_power_of_2(a["n"])})
@triton.jit
def guessed(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, i < n), i < n)


def of_inductor():
    """Inductor's kernel of the golden file, with a launcher that launches nothing."""
    loader = importlib.machinery.SourceFileLoader("inductor_gelu", str(GOLDEN))
    spec = importlib.util.spec_from_loader("inductor_gelu", loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    kernel = module.triton_poi_fused_add_gelu_mul_0
    calls = []

    def launcher(*args, stream):
        calls.append(args)

    config = kernel.configs[0]
    more = SimpleNamespace(config=config, store_cubin=False, cache_hash="0")
    launcher.__dict__.update(vars(more))
    kernel.launchers = [launcher]
    return kernel, calls


def main(steps, end=""):
    kernel, calls = of_inductor() if not end else (None, [])
    for _ in range(steps):
        for n in (100, 1000):
            x, y = torch.ones(n), torch.empty(n)
            plain[(triton.cdiv(n, 64),)](x, y, n, 1e-5, BLOCK=64)
            tuned[lambda m, n=n: (triton.cdiv(n, m["BLOCK"]),)](x, y, n)
            guessed[(1,)](x, x, n)
        if kernel is not None:
            big = torch.empty(64, 128)
            kernel.run(big, big, torch.empty(64, 128), 8192, stream=0)
    assert len(calls) == (0 if end else steps)
    if end == "raise":
        raise ValueError("the program fails")
    if end == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)
    if end == "exit":
        os._exit(5)
    if end == "kill":
        import time

        time.sleep(2)  # the file is written once a second
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
