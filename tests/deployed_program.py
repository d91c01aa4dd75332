"""A program with an autotuned kernel, for pinned configs; `python deployed_program.py N... [END]`.
Under `TRITON_INTERPRET=1` it runs on the CPU."""

import os
import sys

import torch
import triton
import triton.language as tl

import workbench
from workbench.workload.identity import function_of
from workbench.workload.tuned_table import MeasuredTime, PinnedEntry

CONFIGS = [triton.Config({"BLOCK": b}, num_warps=w) for b in (64, 128) for w in (4, 8)]


@triton.autotune(CONFIGS, key=["n"], cache_results=True)
@triton.jit
def scaled(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, i < n) + BLOCK, i < n)


def entry(n, block, warps=8, **changes):
    """An entry for `scaled` at a size, for a machine without a GPU."""
    time = MeasuredTime(1e-6, 1e-6, 1e-6)
    function = function_of(scaled)
    values = {
        "arch": "", "device": "NVIDIA H200", "triton": triton.__version__, "torch": "",
        "module": "__main__", "function": function.name, "text_hash": function.text_hash,
        "key": (str(n), "torch.float32", "torch.float32"),
        "config": {"BLOCK": block, "num_warps": warps},
        "before_s": time, "after_s": time, "family": None, "protocol": "p4", "at": "2026",
    }  # fmt: skip
    return PinnedEntry(**{**values, **changes})


def launch(n):
    """The block size that a launch had: the kernel adds it."""
    x, y = torch.zeros(n), torch.empty(n)
    scaled[lambda m: (triton.cdiv(n, m["BLOCK"]),)](x, y, n)
    return int(y[0])


def rank(table_of_rank):
    """A rank of two that pins a table of its own."""
    import torch.distributed as dist

    from workbench.workload.ranks import PinError

    dist.init_process_group("gloo")
    table = workbench.workload.pin(table_of_rank, "first", verify=True)
    launch(100)
    assert table.verify() == 2
    launch(200 if dist.get_rank() else 300)  # each its own stage: no difference
    workbench.step()
    launch(400)
    try:
        dist.destroy_process_group()
    except PinError as error:
        sys.exit(f"{error}")


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        rank(sys.argv[2 + int(os.environ["RANK"])])
    else:
        words = sys.argv[1:]
        print(*(launch(int(n)) for n in words if n.isdecimal()))
        if words[-1] == "fail":
            sys.exit(7)
