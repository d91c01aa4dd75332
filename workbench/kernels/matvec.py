"""Product of a few rows with a weight matrix: y = x @ w^T, as a language model decodes.

Each weight is used once for each row of x. With M rows that is M FLOP a byte in 16 bits:
memory-bound below 200 on an H200, so only the speed at which w arrives counts. 4-bit weights
(`q4_k_matmul`), with 3.55 times fewer bytes, are compared with it.

NaN and infinities of x reach their rows of y, those of w their columns; an infinity times 0 is NaN.
"""

from dataclasses import dataclass, replace

import torch

from workbench.dsl import compile_call, meta, precision_of, strides, tile_count, tl, triton, upcast
from workbench.spec import Spec, Tensor, Work, rms_bounds, stages, threads, tile


def reference(x, w):
    return x @ w.T


matvec = Spec(
    name="matvec",
    inputs={"x": Tensor("M K"), "w": Tensor("N K")},
    outputs={"y": Tensor("M N")},
    reference=reference,
    flops=lambda M, N, K: 2 * M * N * K,
    check=[{"M": 1, "N": 1, "K": 1}, {"M": 3, "N": 17, "K": 131}, {"M": 2, "N": 72, "K": 520}],
    bench=[
        {"M": 1, "N": 14336, "K": 4096},
        {"M": 1, "N": 2560, "K": 2560},
        {"M": 1, "N": 28672, "K": 8192},
        {"M": 4, "N": 14336, "K": 4096},
        {"M": 16, "N": 14336, "K": 4096},
    ],
    # as in a matrix product: rounding inside a sum of K terms is in proportion to its rms
    tolerance=rms_bounds(fp32=5e-5, fp16=1e-4, bf16=1e-4),
)


@triton.jit
def _rows(
    x_ptr, w_ptr, y_ptr, N, K, stride_xm, stride_xk, stride_wn, stride_wk,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN_K: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(N, BLOCK_N)
    n = tl.program_id(0) % blocks * BLOCK_N + tl.arange(0, BLOCK_N)
    m = (tl.program_id(0) // blocks).to(tl.int64)
    k = tl.arange(0, BLOCK_K).to(tl.int64)
    row = tl.minimum(n, N - 1).to(tl.int64)  # a row that is there: no masks
    w_ptrs = w_ptr + row[:, None] * stride_wn + k[None, :] * stride_wk
    x_ptrs = x_ptr + m * stride_xm + k * stride_xk
    acc = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)  # every lane its own sums
    for start in range(0, K, BLOCK_K):
        if EVEN_K:
            w, x = tl.load(w_ptrs), tl.load(x_ptrs)
        else:
            w = tl.load(w_ptrs, (k < K - start)[None, :], other=0.0)
            x = tl.load(x_ptrs, k < K - start, other=0.0)
        acc += w.to(tl.float32) * x.to(tl.float32)[None, :]
        w_ptrs += tl.full((), BLOCK_K, tl.int64) * stride_wk
        x_ptrs += tl.full((), BLOCK_K, tl.int64) * stride_xk
    y = tl.sum(acc, axis=1)
    tl.store(y_ptr + m * N + n, y.to(y_ptr.dtype.element_ty), n < N)


@triton.jit
def _tiles(
    x_ptr, w_ptr, y_ptr, M, N, K, stride_xm, stride_xk, stride_wn, stride_wk,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN_K: tl.constexpr,
    UPCAST: tl.constexpr,
):  # fmt: skip
    tiles_m = tl.cdiv(M, BLOCK_M)
    m = tl.program_id(0) % tiles_m * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(0) // tiles_m * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K).to(tl.int64)
    row = tl.minimum(n, N - 1).to(tl.int64)
    w_ptrs = w_ptr + row[:, None] * stride_wn + k[None, :] * stride_wk
    x_ptrs = x_ptr + m.to(tl.int64)[None, :] * stride_xm + k[:, None] * stride_xk
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for start in range(0, K, BLOCK_K):
        if EVEN_K:
            w, x = tl.load(w_ptrs), tl.load(x_ptrs, m[None, :] < M, other=0.0)
        else:
            w = tl.load(w_ptrs, (k < K - start)[None, :], other=0.0)
            x = tl.load(x_ptrs, (m[None, :] < M) & (k < K - start)[:, None], other=0.0)
        if UPCAST:
            w, x = w.to(tl.float32), x.to(tl.float32)
        acc = tl.dot(w, x, acc, input_precision=precision_of(w.dtype))
        w_ptrs += tl.full((), BLOCK_K, tl.int64) * stride_wk
        x_ptrs += tl.full((), BLOCK_K, tl.int64) * stride_xk
    y_ptrs = y_ptr + m.to(tl.int64)[None, :] * N + n[:, None]
    tl.store(y_ptrs, acc.to(y_ptr.dtype.element_ty), (m[None, :] < M) & (n[:, None] < N))


@dataclass(frozen=True)
class Rows:
    block_n: int = tile(1, 16, default=4)
    block_k: int = tile(256, 2048, default=1024)
    num_warps: int = threads(1, 8, default=4)


@dataclass(frozen=True)
class Tiles:
    block_m: int = tile(16, 64, default=16)
    block_n: int = tile(16, 128, default=64)
    block_k: int = tile(64, 256, default=128)
    num_warps: int = threads(2, 8, default=4)
    num_stages: int = stages(2, 5, default=4)


def refuse_rows(config, limits, *, itemsize, M, N, K):
    threads_ = config.num_warps * limits.warp_size
    held = config.block_n * config.block_k // threads_
    if held > 64:
        return f"each thread would hold {held} sums in registers; 64 is the most"
    if config.block_k * itemsize < 16 * limits.warp_size:
        return f"a warp that loads 16 bytes a lane is longer than {config.block_k} elements"
    return None


def refuse_tiles(config, limits, *, itemsize, M, N, K):
    threads_ = config.num_warps * limits.warp_size
    shared = limits.stages_bytes(config, itemsize)
    sums = config.block_n * config.block_m // threads_
    if not 1 <= sums <= 64:
        return f"each thread would hold {sums} sums; 1 to 64 is what suits it"
    return limits.refuse_shared(shared)


def rows_work(config, limits, *, itemsize, M, N, K):
    return Work(
        tiles=M * -(-N // config.block_n),
        steps=-(-K // config.block_k),
        load_bytes=(config.block_n + 1) * config.block_k * itemsize,
        store_bytes=config.block_n * itemsize,
    )


def tiles_work(config, limits, *, itemsize, M, N, K):
    whole = Work.product(config, itemsize, M=M, N=N, K=K, band=-(-M // config.block_m))
    return replace(whole, dot=(config.block_n, config.block_m, config.block_k))


@matvec.impl(Rows, refuse=refuse_rows, work=rows_work, defaults={"fp32": Rows(4, 512, 4)})
def rows(x, w, *, config):
    """`block_n` rows of w against one row of x on the vector units: one program, one sum each."""
    (M, K), N = x.shape, w.shape[0]
    y = x.new_empty(M, N)
    _rows[(triton.cdiv(N, config.block_n) * M,)](  # a second axis ends at 65535
        x, w, y, N, K, *x.stride(), *w.stride(), EVEN_K=K % config.block_k == 0, **meta(config)
    )
    return y


SMALL = Tiles(16, 64, 64, 4, 4)  # 64 KB of LDS; 99 KB of shared memory on Ada


@matvec.impl(
    Tiles,
    refuse=refuse_tiles,
    work=tiles_work,
    defaults={
        "fp32": Tiles(16, 32, 64, 4, 2),
        "fp32:sm_90": Tiles(16, 64, 64, 4, 4),
        "sm_89 sm_120 gfx90a gfx942 gfx950 gfx1100": SMALL,
    },
)
def tiles(x, w, *, config):
    """Rows of w as the long side of a matrix product: `block_m` rows of x cost what one does."""
    (M, K), N = x.shape, w.shape[0]
    y = x.new_empty(M, N)
    constants = dict(EVEN_K=K % config.block_k == 0, UPCAST=upcast(x))
    grid = (tile_count(config, M=M, N=N),)
    _tiles[grid](x, w, y, M, N, K, *strides(x, w), **constants, **meta(config))
    return y


def linear(x, w):
    """cuBLAS or hipBLAS, which choose between a matrix product and a product with a vector."""
    return torch.nn.functional.linear(x, w)


def vector(x, w):
    """One row at a time: cuBLAS' product with a vector."""
    return torch.stack([torch.mv(w, row) for row in x]) if len(x) > 1 else torch.mv(w, x[0])[None]


matvec.library("torch.linear", linear)
matvec.library("torch.mv", vector)
matvec.library("torch.compile", compile_call(linear))
