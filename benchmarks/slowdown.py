"""y = x, with a slowdown to order: more trips of a loop, or more bytes moved. For verdicts.py.

`compute` runs a loop whose result is never used but cannot be foreseen; 32 trips more in 1600 are
2 %. `memory` copies the first few percent of its blocks once more at its end.
"""

from dataclasses import dataclass

from workbench.dsl import tl, triton
from workbench.spec import Spec, Tensor, Tolerance, among


def reference(x):
    return x.clone()


slowdown = Spec(
    name="slowdown",
    inputs={"x": Tensor("N")},
    outputs={"y": Tensor("N")},
    reference=reference,
    flops=lambda N: 0,
    check=[{"N": 1000}, {"N": 4096}],
    bench=[{"N": 1 << 21}, {"N": 1 << 27}],
    tolerance={dtype: Tolerance(relative=0.0) for dtype in ("fp32", "fp16", "bf16")},
)

BLOCK = 1024


@triton.jit
def _loop(x_ptr, y_ptr, N, trips, BLOCK: tl.constexpr):
    n = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + n, n < N, other=0.0)
    wide = x.to(tl.float32)
    total = wide * wide
    for _ in range(trips):
        total = total * 0.999 + wide * wide
    # never below zero, which only whoever wrote the loop knows
    tl.store(y_ptr + n, (wide + tl.minimum(total, 0.0)).to(x.dtype), n < N)


@triton.jit
def _copy(x_ptr, y_ptr, N, blocks, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    pid = tl.where(pid < blocks, pid, pid - blocks)  # what comes after the last is done twice
    n = pid.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + n, tl.load(x_ptr + n, n < N), n < N)


@dataclass(frozen=True)
class Loop:
    trips: int = among(1568, 1600, 1616, 1632, 1664, default=1600)  # all are multiples of 16


@dataclass(frozen=True)
class Copy:
    percent: int = among(0, 1, 2, 4, default=0)


@slowdown.impl(Loop)
def compute(x, *, config):
    (N,) = x.shape
    y = x.new_empty(N)
    _loop[(triton.cdiv(N, BLOCK),)](x, y, N, config.trips, BLOCK=BLOCK)
    return y


@slowdown.impl(Copy)
def memory(x, *, config):
    (N,) = x.shape
    y = x.new_empty(N)
    blocks = triton.cdiv(N, BLOCK)
    more = blocks * config.percent // 100
    _copy[(blocks + more,)](x, y, N, blocks, BLOCK=BLOCK)
    return y
