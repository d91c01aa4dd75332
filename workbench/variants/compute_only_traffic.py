"""The memory traffic of `compute_only` without its multiply-adds: y = x.

Its loads and stores, which a compute-bound kernel has nearly nothing of.
"""

from dataclasses import replace

from workbench.dsl import meta, tl, triton
from workbench.kernels import compute_only as whole
from workbench.kernels import copy

compute_only_traffic = replace(
    copy.copy,
    name="compute_only_traffic",
    check=whole.compute_only.check,
    bench=whole.compute_only.bench,
    impls=[],
)


@triton.jit
def _chains(x_ptr, y_ptr, N, stride_x, BLOCK_N: tl.constexpr):
    n = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    x = tl.load(x_ptr + n * stride_x, n < N, other=0.0)
    tl.store(y_ptr + n, x, n < N)


@compute_only_traffic.impl(whole.Chains, refuse=whole.refuse_chains, work=whole.work)
def chains(x, *, config):
    """The loads and stores of `compute_only.chains`."""
    (N,) = x.shape
    y = x.new_empty(N)
    _chains[(triton.cdiv(N, config.block_n),)](x, y, N, *x.stride(), **meta(config))
    return y
