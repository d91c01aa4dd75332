"""Matrix product of fp32 numbers through the matrix unit's tf32: c = a b^T, for a of M x K and b of
N x K. It is there for what cuBLAS reaches when it is allowed tf32: the library reference of the
ceiling.

tf32 keeps 11 bits of each factor, so a sum of K products is off by about 2^-12 of its rms.
"""

from dataclasses import dataclass

import torch

from workbench.dsl import meta, strides, tile_count, tl, triton
from workbench.spec import Spec, Tensor, Tolerance, Work, threads, tile


def reference(a, b):
    return a @ b.T


library_tf32 = Spec(
    name="library_tf32",
    inputs={"a": Tensor("M K"), "b": Tensor("N K")},
    outputs={"c": Tensor("M N")},
    reference=reference,
    flops=lambda M, K, N: 2 * M * N * K,
    check=[
        {"M": 1, "K": 1, "N": 1},
        {"M": 33, "K": 47, "N": 65},
        {"M": 64, "K": 64, "N": 128},
        {"M": 130, "K": 80, "N": 100},
    ],
    bench=[{"M": 8192, "K": 8192, "N": 8192}, {"M": 4096, "K": 4096, "N": 4096}],
    tolerance={"fp32": Tolerance(relative=2e-3, rms_share=4e-3)},
)


@triton.jit
def _tiles(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bn, stride_bk,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, SUM: tl.constexpr,
):  # fmt: skip
    m = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    n = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    lane = tl.arange(0, BLOCK_K).to(tl.int64)
    acc = tl.zeros((BLOCK_M, BLOCK_N), SUM)
    for start in range(0, K, BLOCK_K):
        k = start + lane
        a_ptrs = a_ptr + m[:, None] * stride_am + k[None, :] * stride_ak
        a = tl.load(a_ptrs, (m < M)[:, None] & (k < K)[None, :], other=0)
        b_ptrs = b_ptr + k[:, None] * stride_bk + n[None, :] * stride_bn
        b = tl.load(b_ptrs, (k < K)[:, None] & (n < N)[None, :], other=0)
        acc = tl.dot(a, b, acc, out_dtype=SUM)
    tl.store(c_ptr + m[:, None] * N + n[None, :], acc, (m < M)[:, None] & (n < N)[None, :])


@dataclass(frozen=True)
class Tiles:
    block_m: int = tile(64, 128, default=128)
    block_n: int = tile(64, 128, default=128)
    num_warps: int = threads(4, 8, default=8)


def refuse_tiles(config, limits, *, itemsize, M, K, N):
    held = config.block_m * config.block_n // (config.num_warps * limits.warp_size)
    if held > 64:
        return f"each thread would hold {held} sums in registers; 64 is the most here"
    return None


def work(config, limits, *, itemsize, M, K, N):
    """Return the work of tiles with steps of 32 numbers of four bytes, or 64 of one."""
    BM, BN, BK = config.block_m, config.block_n, 64 if itemsize == 1 else 32
    return Work(
        tiles=tile_count(config, M=M, N=N),
        steps=-(-K // BK),
        load_bytes=(BM + BN) * BK * itemsize,
        store_bytes=4 * BM * BN,
        dot=(BM, BN, BK),
    )


@library_tf32.impl(Tiles, refuse=refuse_tiles, work=work, defaults={"gfx1100": Tiles(64, 64, 8)})
def tiles(a, b, *, config):
    """One program a tile."""
    return launch_tiles(a, b, a.new_empty(len(a), len(b)), config, 32, tl.float32)


def launch_tiles(a, b, c, config, block_k, sums):
    """c = a b^T in steps of `block_k`, summed in this dtype."""
    (M, K), (N, _) = a.shape, b.shape
    grid = triton.cdiv(M, config.block_m), triton.cdiv(N, config.block_n)
    constants = dict(BLOCK_K=block_k, SUM=sums, num_stages=2, **meta(config))
    _tiles[grid](a, b, c, M, N, K, *strides(a, b), **constants)
    return c


@library_tf32.impl(backend="torch", name="torch.mm")
def library(a, b):
    """cuBLAS, allowed to use tf32 for this call alone."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        return torch.mm(a, b.T)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
