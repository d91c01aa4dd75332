"""The products of `matmul` without its memory traffic: `tiles`, whose tiles are loaded once.

c[m, n] = sum_k a[m, k mod 32] b[k mod 32, n]: a and b are so narrow that a program loads all that
it needs of them before its loop, 1 to 4 times side by side, as block_k has room for. The loop does
the products of `tiles` on that, as many as there, and adds each to the same sums; what block_k
leaves of K is one product behind the loop. Data are random: on zeros an H200's matrix unit is 13 %
faster.

Of c one element a row is stored, in column floor(h N) with h = frac(0.618 m), so that nearly every
tile holds some, and the compiler cannot know which: y[m] = c[m, floor(h N)].
"""

from dataclasses import replace

import torch

from workbench.dsl import meta, precision_of, strides, tile_count, tl, triton, upcast
from workbench.kernels import matmul as whole
from workbench.spec import Spec, Tensor, Tolerance, Work

DISTINCT = 32  # columns of a and rows of b: the least block_k
STEP = 40_503  # 0.618 of 2^16: neighbours in m lie far apart in n, and no two tiles alike


def stored_column(m, N):
    """The column of row m that is stored."""
    return (m * STEP % (1 << 16)) * N >> 16


def reference(a, b, k):
    (M, _), (_, N), (K,) = a.shape, b.shape, k.shape
    products = a * b[:, stored_column(torch.arange(M, device=b.device), N)].T
    rounds, rest = divmod(K, DISTINCT)
    return rounds * products.sum(1) + products[:, :rest].sum(1)


matmul_arithmetic = Spec(
    name="matmul_arithmetic",
    inputs={
        "a": Tensor("M 32"),
        "b": Tensor("32 N"),
        "k": Tensor("K"),  # its length alone counts
    },
    outputs={"y": Tensor("M")},
    reference=reference,
    flops=lambda M, N, K: 2 * M * N * K,
    check=[
        {"M": 1, "N": 1, "K": 1},
        {"M": 33, "N": 65, "K": 47},
        {"M": 65, "N": 136, "K": 72},
        {"M": 67, "N": 264, "K": 136},
    ],
    bench=whole.matmul.bench,
    # The same products are added K / 32 times, so roundings to fp32 need not cancel: after n
    # additions a sum is off by n 2^-25 of the largest sum at most, 1.2e-4 at n = 4096
    tolerance={
        "fp32": Tolerance(relative=1.2e-4, rms_share=1.2e-4),
        "fp16": Tolerance(relative=1e-3, rms_share=1.2e-4),
        "bf16": Tolerance(relative=8e-3, rms_share=1.2e-4),
    },
)


@triton.jit
def _tiles(
    a_ptr, b_ptr, y_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    EVEN_K: tl.constexpr, UPCAST: tl.constexpr, DISTINCT: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    pid, grid_m, grid_n = tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    pid_m, pid_n = tl.swizzle2d(pid // grid_n, pid % grid_n, grid_m, grid_n, GROUP_M)
    m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    n = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K) % DISTINCT
    a_ptrs = a_ptr + m.to(tl.int64)[:, None] * stride_am + k.to(tl.int64)[None, :] * stride_ak
    b_ptrs = b_ptr + k.to(tl.int64)[:, None] * stride_bk + n.to(tl.int64)[None, :] * stride_bn
    a = tl.load(a_ptrs, m[:, None] < M, other=0.0)
    b = tl.load(b_ptrs, n[None, :] < N, other=0.0)
    if UPCAST:
        a, b = a.to(tl.float32), b.to(tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for _ in range(K // BLOCK_K):
        acc = tl.dot(a, b, acc, input_precision=precision_of(a.dtype))
    if not EVEN_K:
        there = tl.arange(0, BLOCK_K)[None, :] < K % BLOCK_K
        a = tl.where(there, a, 0.0).to(a.dtype)
        acc = tl.dot(a, b, acc, input_precision=precision_of(a.dtype))
    column = ((m.to(tl.int64) * STEP % 65536) * N) >> 16
    y = tl.sum(tl.where(n[None, :] == column[:, None], acc, 0.0), axis=1)
    mine = (column >= pid_n * BLOCK_N) & (column < pid_n * BLOCK_N + BLOCK_N)
    tl.store(y_ptr + m, y.to(y_ptr.dtype.element_ty), (m < M) & mine)


def work(config, limits, *, itemsize, M, N, K):
    product = Work.product(config, itemsize, M=M, N=N, K=K)
    return replace(product, load_bytes=0, store_bytes=config.block_m * itemsize)


@matmul_arithmetic.impl(
    whole.Tiles, refuse=whole.refuse_tiles, work=work, defaults=whole.tiles.defaults
)
def tiles(a, b, k, *, config):
    """The products of `matmul.tiles` on one tile of a and one of b, over and over."""
    (M, _), (_, N), (K,) = a.shape, b.shape, k.shape
    y = a.new_empty(M)
    constants = dict(EVEN_K=K % config.block_k == 0, UPCAST=upcast(a), DISTINCT=DISTINCT, STEP=STEP)
    grid = tile_count(config, M=M, N=N), 1
    _tiles[grid](a, b, y, M, N, K, *strides(a, b), **constants, **meta(config))
    return y
