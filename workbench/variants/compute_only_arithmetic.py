"""The multiply-adds of `compute_only` without its memory traffic.

Every program takes the first block_n elements of x, which lie in the caches, and runs its chains on
them. The first 256 results are stored, by every program the same; the compiler does not know how
many will be, so all chains stay. A kernel whose limit is known: `memory_vs_compute` must call
`compute_only` compute-bound.
"""

import torch

from workbench.dsl import meta, tl, triton
from workbench.kernels import compute_only as whole
from workbench.spec import Spec, Tensor, Work

KEPT = 256  # the least block_n


def reference(x):
    first = torch.zeros(KEPT, dtype=x.dtype, device=x.device)
    first[: x.shape[0]] = x[:KEPT]
    return whole.reference(first)


compute_only_arithmetic = Spec(
    name="compute_only_arithmetic",
    inputs={"x": Tensor("N")},
    outputs={"y": Tensor("256")},
    reference=reference,
    flops=whole.compute_only.flops,
    check=[{"N": 1}, {"N": 127}, {"N": 1500}],  # each program runs all its chains whatever N is
    bench=whole.compute_only.bench,
    tolerance=whole.compute_only.tolerance,
)


@triton.jit
def _chains(
    x_ptr, y_ptr, N, kept, stride_x, A: tl.constexpr, B: tl.constexpr,
    TRIPS: tl.constexpr, UNROLLED: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    i = tl.arange(0, BLOCK_N).to(tl.int64)
    x = tl.load(x_ptr + i * stride_x, i < N, other=0.0).to(tl.float32)
    a = tl.full((BLOCK_N,), A, tl.float32)
    b = tl.full((BLOCK_N,), B, tl.float32)
    for _ in range(TRIPS):
        for _ in tl.static_range(UNROLLED):
            x = tl.fma(a, x, b)
    tl.store(y_ptr + i, x.to(y_ptr.dtype.element_ty), i < kept)


def work(config, limits, *, itemsize, N):
    return Work(tiles=-(-N // config.block_n), steps=1, load_bytes=0, store_bytes=KEPT * itemsize)


@compute_only_arithmetic.impl(whole.Chains, refuse=whole.refuse_chains, work=work)
def chains(x, *, config):
    """The chains of `compute_only.chains`, as many programs of them."""
    (N,) = x.shape
    y = x.new_empty(KEPT)
    chain = whole.A, whole.B, whole.TRIPS, whole.UNROLLED
    _chains[(triton.cdiv(N, config.block_n),)](x, y, N, KEPT, *x.stride(), *chain, **meta(config))
    return y
