"""Matrix product of whole numbers of 8 bits: c = a b^T, exactly, for a of M x K and b of N x K. It
is there for what cuBLAS reaches through torch._int_mm: the library reference of the ceiling.
"""

import torch

from workbench.dsl import meta, strides, tile_count, tl, triton
from workbench.spec import Spec, Tensor, Tolerance, Work
from workbench.variants import library_tf32 as floats


def reference(a, b):
    # a float64 holds each of these sums exactly, and torch multiplies no integers on a GPU
    return (a.double() @ b.double().T).long()


def bytes_(shape, dtype, device, generator):
    """All 8 bits in use."""
    return torch.randint(-128, 128, shape, generator=generator, device=device, dtype=dtype)


library_int8 = Spec(
    name="library_int8",
    inputs={
        "a": Tensor("M K", dtype="int8", make=bytes_),
        "b": Tensor("N K", dtype="int8", make=bytes_),
    },
    outputs={"c": Tensor("M N", dtype="int32")},
    reference=reference,
    flops=lambda M, K, N: 2 * M * N * K,
    check=floats.library_tf32.check,
    bench=floats.library_tf32.bench,
    tolerance={"int8": Tolerance(relative=0.0)},
)


@triton.jit
def _tiles(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bn, stride_bk,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    m = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    n = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    lane = tl.arange(0, BLOCK_K).to(tl.int64)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.int32)
    for start in range(0, K, BLOCK_K):
        k = start + lane
        a_ptrs = a_ptr + m[:, None] * stride_am + k[None, :] * stride_ak
        a = tl.load(a_ptrs, (m < M)[:, None] & (k < K)[None, :], other=0)
        b_ptrs = b_ptr + k[:, None] * stride_bk + n[None, :] * stride_bn
        b = tl.load(b_ptrs, (k < K)[:, None] & (n < N)[None, :], other=0)
        acc = tl.dot(a, b, acc, out_dtype=tl.int32)
    tl.store(c_ptr + m[:, None] * N + n[None, :], acc, (m < M)[:, None] & (n < N)[None, :])


def work(config, limits, *, itemsize, M, K, N):
    return Work(
        tiles=tile_count(config, M=M, N=N),
        steps=-(-K // 64),
        load_bytes=(config.block_m + config.block_n) * 64,
        store_bytes=4 * config.block_m * config.block_n,
        dot=(config.block_m, config.block_n, 64),
    )


@library_int8.impl(floats.Tiles, refuse=floats.refuse_tiles, work=work)
def tiles(a, b, *, config):
    """One program a tile."""
    (M, K), (N, _) = a.shape, b.shape
    c = a.new_empty(M, N, dtype=torch.int32)
    grid = triton.cdiv(M, config.block_m), triton.cdiv(N, config.block_n)
    constants = dict(BLOCK_K=64, num_stages=2, **meta(config))
    _tiles[grid](a, b, c, M, N, K, *strides(a, b), **constants)
    return c


@library_int8.impl(backend="torch", name="torch._int_mm")
def library(a, b):
    """cuBLAS."""
    return torch._int_mm(a, b.T)
