"""The memory traffic of `copy`, which is all that it does: y = x.

A kernel whose limit is known: the experiment `memory_vs_compute` must call it memory-bound.
"""

from workbench.dsl import meta, tl, triton
from workbench.kernels import copy as whole
from workbench.spec import Spec, Tensor


def reference(x):
    return x.clone()


copy_traffic = Spec(
    name="copy_traffic",
    inputs={"x": Tensor("N")},
    outputs={"y": Tensor("N")},
    reference=reference,
    flops=lambda N: 0,
    check=whole.copy.check,
    bench=whole.copy.bench,
    tolerance=whole.copy.tolerance,
)


@triton.jit
def _blocks(x_ptr, y_ptr, N, stride_x, BLOCK_N: tl.constexpr):
    n = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    tl.store(y_ptr + n, tl.load(x_ptr + n * stride_x, n < N), n < N)


@copy_traffic.impl(
    whole.Blocks, refuse=whole.refuse_blocks, work=whole.work, defaults=whole.blocks.defaults
)
def blocks(x, *, config):
    """The loads and stores of `copy.blocks`."""
    (N,) = x.shape
    y = x.new_empty(N)
    _blocks[(triton.cdiv(N, config.block_n),)](x, y, N, *x.stride(), **meta(config))
    return y
