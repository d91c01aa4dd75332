"""Programs that only begin and end: y[p] = p mod 128, one number a program and nothing else.

What a grid of P programs takes, whatever they do: a kernel cannot be faster than its own grid. One
program alone is the launch, which the kernel `empty` times.
"""

from dataclasses import dataclass

import torch

from workbench.dsl import tl, triton
from workbench.spec import Spec, Tensor, Tolerance, Work, threads


def reference(x):
    return (torch.arange(x.shape[0], device=x.device) % 128).to(x.dtype)


empty_grid = Spec(
    name="empty_grid",
    inputs={"x": Tensor("P")},  # its length alone counts
    outputs={"y": Tensor("P")},
    reference=reference,
    flops=lambda P: 0,
    check=[{"P": 1}, {"P": 37}, {"P": 130}],
    bench=[{"P": 512}, {"P": 1 << 18}],
    tolerance={dtype: Tolerance(relative=0.0) for dtype in ("fp32", "fp16", "bf16")},
)


@triton.jit
def _programs(y_ptr):
    p = tl.program_id(0).to(tl.int64)
    tl.store(y_ptr + p, (p % 128).to(tl.float32).to(y_ptr.dtype.element_ty))


@dataclass(frozen=True)
class Programs:
    num_warps: int = threads(1, 32, default=4)


def work(config, limits, *, itemsize, P):
    return Work(tiles=P, steps=1, load_bytes=0, store_bytes=itemsize)


@empty_grid.impl(Programs, work=work)
def programs(x, *, config):
    """P programs of `num_warps` warps."""
    y = x.new_empty(x.shape[0])
    _programs[(x.shape[0],)](y, num_warps=config.num_warps)
    return y
