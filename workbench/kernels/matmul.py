"""Matrix product: c = a @ b, accumulated in fp32.

At M = N = K = 4096 in bf16 it does 1365 FLOP for each byte it must move, so the matrix unit is
the limit, as long as tiles are large enough: a tile of block_m x block_n asks the cache for
2 * block_m * block_n / (block_m + block_n) FLOP's worth of each element that it loads. A few rows
(M = 16) make it memory-bound, and then it is b that counts.
"""

from dataclasses import dataclass
from functools import cache

import torch

from workbench.dsl import INTERPRETED, TensorDescriptor, cores, tl, triton
from workbench.spec import Spec, Tensor, Tolerance, Work, among, stages, threads, tile


def reference(a, b):
    return a @ b


matmul = Spec(
    name="matmul",
    inputs={"a": Tensor("M K"), "b": Tensor("K N")},
    outputs={"c": Tensor("M N")},
    reference=reference,
    flops=lambda M, N, K: 2 * M * N * K,
    check=[
        {"M": 1, "N": 1, "K": 1},
        {"M": 33, "N": 65, "K": 47},
        {"M": 65, "N": 136, "K": 72},  # rows of 16 bytes' multiples: descriptors take it
        {"M": 131, "N": 264, "K": 136},
    ],
    bench=[
        {"M": 4096, "N": 4096, "K": 4096},
        {"M": 16, "N": 4096, "K": 4096},
        {"M": 8192, "N": 1024, "K": 4096},
        {"M": 1000, "N": 3000, "K": 1500},
    ],
    # K products of standard normal values sum to an rms of sqrt(K). Rounding inside the sum adds
    # an error in proportion to that rms, whatever the element itself is: at K = 8192 an H200's
    # matrix unit is off by 1.5e-5 of it at most, cuBLAS alike. tf32 would be off by over 1e-3.
    tolerance={
        "fp32": Tolerance(relative=1e-5, of_rms=5e-5),
        "fp16": Tolerance(relative=1e-3, of_rms=1e-4),
        "bf16": Tolerance(relative=8e-3, of_rms=1e-4),
    },
)


@triton.jit
def _tiles(
    a_ptr, b_ptr, c_ptr, M, N, K,
    stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    EVEN_MN: tl.constexpr, EVEN_K: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    pid, grid_m, grid_n = tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    pid_m, pid_n = tl.swizzle2d(pid // grid_n, pid % grid_n, grid_m, grid_n, GROUP_M)
    m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    n = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    # int64: an element may lie more than 2^31 elements from the first
    a_ptrs = a_ptr + m.to(tl.int64)[:, None] * stride_am + k.to(tl.int64)[None, :] * stride_ak
    b_ptrs = b_ptr + k.to(tl.int64)[:, None] * stride_bk + n.to(tl.int64)[None, :] * stride_bn
    step = tl.full((), BLOCK_K, tl.int64)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k0 in range(0, K, BLOCK_K):
        if EVEN_MN and EVEN_K:  # masks cost 2 to 3 % where they are not needed
            a, b = tl.load(a_ptrs), tl.load(b_ptrs)
        else:
            a = tl.load(a_ptrs, (m[:, None] < M) & (k[None, :] < K - k0), other=0.0)
            b = tl.load(b_ptrs, (k[:, None] < K - k0) & (n[None, :] < N), other=0.0)
        if UPCAST:
            a, b = a.to(tl.float32), b.to(tl.float32)
        acc = tl.dot(a, b, acc, input_precision="ieee")
        a_ptrs += step * stride_ak
        b_ptrs += step * stride_bk
    c_ptrs = c_ptr + m.to(tl.int64)[:, None] * N + n[None, :]
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), (m[:, None] < M) & (n[None, :] < N))


@triton.jit
def _persistent(
    a, b, c, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    PROGRAMS: tl.constexpr, SPLIT_STORE: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    grid_m, grid_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    for tile_id in tl.range(tl.program_id(0), grid_m * grid_n, PROGRAMS, flatten=True):
        pid_m, pid_n = tl.swizzle2d(tile_id // grid_n, tile_id % grid_n, grid_m, grid_n, GROUP_M)
        m, n = pid_m * BLOCK_M, pid_n * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for step in range(tl.cdiv(K, BLOCK_K)):
            x, y = a.load([m, step * BLOCK_K]), b.load([step * BLOCK_K, n])
            if UPCAST:
                x, y = x.to(tl.float32), y.to(tl.float32)
            acc = tl.dot(x, y, acc, input_precision="ieee")
        if SPLIT_STORE:  # half the shared memory for the store leaves room for one more stage
            halves = tl.permute(tl.reshape(acc, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1))
            left, right = tl.split(halves)
            c.store([m, n], left.to(c.dtype))
            c.store([m, n + BLOCK_N // 2], right.to(c.dtype))
        else:
            c.store([m, n], acc.to(c.dtype))


@dataclass(frozen=True)
class Tiles:
    block_m: int = tile(16, 256, default=128)
    block_n: int = tile(16, 256, default=256)
    block_k: int = tile(32, 128, default=64)
    num_warps: int = threads(1, 16, default=8)
    num_stages: int = stages(2, 4, default=3)
    group_m: int = among(1, 4, 8, 16, default=8)


@dataclass(frozen=True)
class Persistent:
    block_m: int = tile(64, 256, default=128)
    block_n: int = tile(64, 256, default=256)
    block_k: int = tile(32, 128, default=64)
    num_warps: int = threads(4, 8, default=8)
    num_stages: int = stages(2, 4, default=4)
    group_m: int = among(1, 4, 8, 16, default=8)
    split_store: int = among(0, 1, default=1)


def unfit(config, limits, itemsize):
    """What both versions ask of registers and shared memory."""
    threads_ = config.num_warps * limits.warp_size
    held = config.block_m * config.block_n // threads_
    buffers = config.num_stages if limits.arch.startswith("sm_") else config.num_stages - 1
    shared = buffers * (config.block_m + config.block_n) * config.block_k * itemsize
    if threads_ > limits.threads_per_block:
        return f"{threads_} threads are more than one block may have here"
    if held > 128:
        return f"each thread would hold {held} sums in registers; 128 is the most without spills"
    if held > 64 and threads_ >= 512:
        return f"{threads_} threads leave each 128 registers, too few for {held} sums"
    if held < 8 and config.num_warps > 1:
        return f"{config.num_warps} warps are too many for {config.block_m}x{config.block_n} sums"
    if shared > limits.shared_bytes:
        return f"the stages need {shared} bytes of shared memory; a block has {limits.shared_bytes}"
    return None


def refuse_tiles(config, limits, *, itemsize, M, N, K):
    return unfit(config, limits, itemsize)


def refuse_persistent(config, limits, *, itemsize, M, N, K):
    for axis, extent in (("K", K), ("N", N)):
        if extent * itemsize % 16:
            row = f"{axis} = {extent} gives {extent * itemsize}"
            return f"a descriptor needs rows of a multiple of 16 bytes; {row}"
    return unfit(config, limits, itemsize)


def work(config, limits, *, itemsize, M, N, K):
    return Work(
        tiles=-(-M // config.block_m) * -(-N // config.block_n),
        steps=-(-K // config.block_k),
        load_bytes=(config.block_m + config.block_n) * config.block_k * itemsize,
        store_bytes=config.block_m * config.block_n * itemsize,
        dot=(config.block_m, config.block_n, config.block_k),
        band=config.group_m,
    )


# 64 KB of LDS and 64 threads a warp on CDNA; 99 KB of shared memory on consumer Blackwell and Ada
SMALL = Tiles(block_m=128, block_n=128, block_k=32, num_warps=4, num_stages=3)
CDNA = Tiles(block_m=128, block_n=128, block_k=64, num_warps=4, num_stages=2)
RDNA = Tiles(block_m=128, block_n=64, block_k=32, num_warps=4, num_stages=2)


@matmul.impl(
    Tiles,
    refuse=refuse_tiles,
    work=work,
    defaults={
        "fp32": Tiles(64, 64, 32, 8, 2),  # on the vector units, and twice the bytes to hold
        "sm_80": SMALL, "sm_89": SMALL, "sm_120": SMALL, "gfx90a": CDNA, "gfx942": CDNA,
        "gfx950": CDNA, "gfx1100": RDNA,
    },
)  # fmt: skip
def tiles(a, b, *, config):
    """One program a tile, pointers into a and b: takes any size and any strides."""
    (M, K), (_, N) = a.shape, b.shape
    c = a.new_empty(M, N)
    _tiles[(triton.cdiv(M, config.block_m) * triton.cdiv(N, config.block_n),)](
        a, b, c, M, N, K, a.stride(0), a.stride(1), b.stride(0), b.stride(1),
        BLOCK_M=config.block_m, BLOCK_N=config.block_n, BLOCK_K=config.block_k,
        GROUP_M=config.group_m,
        EVEN_MN=M % config.block_m == 0 and N % config.block_n == 0, EVEN_K=K % config.block_k == 0,
        UPCAST=INTERPRETED and a.dtype == torch.bfloat16,
        num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
    return c


@matmul.impl(
    Persistent,
    refuse=refuse_persistent,
    work=work,
    defaults={
        "fp32": Persistent(64, 64, 32, 8, 2),
        "sm_80": Persistent(128, 128, 32, 8, 3), "sm_89": Persistent(128, 128, 32, 8, 2),
        "sm_120": Persistent(128, 128, 32, 8, 2), "gfx90a": Persistent(128, 128, 64, 4, 2),
        "gfx942": Persistent(128, 128, 64, 4, 2), "gfx950": Persistent(128, 128, 64, 4, 2),
        "gfx1100": Persistent(128, 64, 32, 8, 2),
    },
)  # fmt: skip
def persistent(a, b, *, config):
    """One program a core, which walks its tiles through tensor descriptors: the copy engine
    computes the addresses, and the store of one tile overlaps the loads of the next."""
    (M, K), (_, N) = a.shape, b.shape
    c = a.new_empty(M, N)
    for name, x in (("a", a), ("b", b), ("c", c)):
        dense = x.stride(1) == 1 and x.stride(0) >= x.shape[1]  # a tensor map has no overlap
        if not dense or x.stride(0) * x.element_size() % 16 or x.data_ptr() % 16:
            raise ValueError(f"{name} must have dense rows that start at multiples of 16 bytes")
    BM, BN, BK = config.block_m, config.block_n, config.block_k
    programs = min(cores(a), triton.cdiv(M, BM) * triton.cdiv(N, BN))
    _persistent[(programs,)](
        TensorDescriptor.from_tensor(a, [BM, BK]), TensorDescriptor.from_tensor(b, [BK, BN]),
        TensorDescriptor.from_tensor(c, [BM, BN // 2 if config.split_store else BN]), M, N, K,
        BLOCK_M=BM, BLOCK_N=BN, BLOCK_K=BK, GROUP_M=config.group_m, PROGRAMS=programs,
        SPLIT_STORE=bool(config.split_store), UPCAST=INTERPRETED and a.dtype == torch.bfloat16,
        num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
    return c


@matmul.impl(backend="torch", name="torch")
def library(a, b):
    """cuBLAS or hipBLAS."""
    return torch.mm(a, b)


@matmul.impl(backend="torch", name="torch.compile")
def compiled(a, b):
    return _compiled()(a, b)


@cache
def _compiled():
    return torch.compile(reference, dynamic=False)
