"""Matrix product of 8-bit floats with a scale for every 128 numbers of a row of a and for every
128 x 128 block of b: c[m, n] = sum over blocks s of K of scale_a[m, s] * scale_b[n / 128, s] *
sum over k in s of a[m, k] * b[n, k], written in bf16.

At M = N = K = 4096 it does 2030 FLOP for each byte it must move. Every 128 numbers along K the sums
leave the matrix unit, are scaled and added in fp32: one multiply-add of the vector units for every
128 of the matrix unit, which on an H200 (1024 and 32 of them a cycle and quarter of a core) is a
quarter of the time unless other warps' products run meanwhile. Sums and their scaled total are both
held in registers, so a tile has half the size of one without scales, and asks the cache for 1.3
times the bytes. No sum exceeds 128 terms inside the matrix unit, whose 13 bits then suffice.

Numbers are e4m3fn, the dtype `fp8`; the e4m3fnuz of gfx940 to gfx942 is another format and refused
there.

NaN in a or in its scales reaches its row of c, in b or in its scales the columns that they are for;
e4m3fn has no infinities.
"""

from dataclasses import dataclass

import torch

from workbench.dsl import cores, describe, meta, strides, tile_count, tl, triton
from workbench.spec import Extent, Spec, Tensor, Tolerance, Work, among, stages, threads, tile

BLOCK = 128  # numbers that share a scale, along K and along N


def reference(a, b, scale_a, scale_b):
    scale_a = scale_a.repeat_interleave(BLOCK, 1)
    scale_b = scale_b.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    return (a * scale_a) @ (b * scale_b).T


def scales(shape, dtype, device, generator):
    """As a quantiser gives them: the largest magnitude of a block over 448, 1/256 to 1/64."""
    return torch.rand(shape, generator=generator, device=device, dtype=dtype) * 0.0117 + 0.0039


fp8_block_matmul = Spec(
    name="fp8_block_matmul",
    inputs={
        "a": Tensor("M K"),
        "b": Tensor("N K"),
        "scale_a": Tensor("M K/128", dtype="fp32", make=scales),
        "scale_b": Tensor("N/128 K/128", dtype="fp32", make=scales),
    },
    outputs={"c": Tensor("M N", dtype="bf16")},
    reference=reference,
    flops=lambda M, N, K: 2 * M * N * K,
    check=[
        {"M": 1, "N": 128, "K": 128},
        {"M": 33, "N": 128, "K": 256},
        {"M": 65, "N": 256, "K": 384},
    ],
    bench=[
        {"M": 4096, "N": 4096, "K": 4096},
        {"M": 8192, "N": 8192, "K": 8192},
        {"M": 4096, "N": 7168, "K": 2048},
        {"M": 128, "N": 7168, "K": 4096},
    ],
    # Hopper's matrix unit cuts off behind 13 bits while it adds: 4 additions for 128 terms, each
    # off by up to 2^-13 of a block's sum, 5e-4 together, and more where products are small beside
    # the sum.
    tolerance={
        "fp8": Tolerance(relative=1e-2, rms_share=5e-3),
        "bf16": Tolerance(relative=1e-2, rms_share=5e-3),  # of the output
    },
    extents={"N": Extent(multiple=BLOCK), "K": Extent(multiple=BLOCK)},
)


@triton.jit
def _tiles(
    a_ptr, b_ptr, scale_a_ptr, scale_b_ptr, c_ptr, M, N, K,
    stride_am, stride_ak, stride_bn, stride_bk, stride_sam, stride_sak, stride_sbn, stride_sbk,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    EVEN_M: tl.constexpr,
):  # fmt: skip
    pid, grid_m, grid_n = tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    pid_m, pid_n = tl.swizzle2d(pid // grid_n, pid % grid_n, grid_m, grid_n, GROUP_M)
    m = (pid_m * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    n = (pid_n * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    k = tl.arange(0, BLOCK_K).to(tl.int64)
    a_ptrs = a_ptr + m[:, None] * stride_am + k[None, :] * stride_ak
    b_ptrs = b_ptr + k[:, None] * stride_bk + n[None, :] * stride_bn
    scale_a_ptrs = scale_a_ptr + m * stride_sam
    scale_b_ptr += (pid_n * BLOCK_N // BLOCK_K).to(tl.int64) * stride_sbn
    step = tl.full((), BLOCK_K, tl.int64)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for _ in range(0, K, BLOCK_K):
        scale = tl.load(scale_a_ptrs, m < M, other=0.0) * tl.load(scale_b_ptr)
        if EVEN_M:
            a, b = tl.load(a_ptrs), tl.load(b_ptrs)
        else:
            a, b = tl.load(a_ptrs, m[:, None] < M, other=0.0), tl.load(b_ptrs)
        acc += tl.dot(a, b) * scale[:, None]
        a_ptrs += step * stride_ak
        b_ptrs += step * stride_bk
        scale_a_ptrs += stride_sak
        scale_b_ptr += stride_sbk
    c_ptrs = c_ptr + m[:, None] * N + n[None, :]
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), m[:, None] < M)


@triton.jit
def _persistent(
    a, b, scale_a_ptr, scale_b_ptr, c, M, N, K, stride_sam, stride_sak, stride_sbn, stride_sbk,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    PROGRAMS: tl.constexpr,
):  # fmt: skip
    grid_m, grid_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    for tile_id in tl.range(tl.program_id(0), grid_m * grid_n, PROGRAMS, flatten=True):
        pid_m, pid_n = tl.swizzle2d(tile_id // grid_n, tile_id % grid_n, grid_m, grid_n, GROUP_M)
        m, n = pid_m * BLOCK_M, pid_n * BLOCK_N
        i = m + tl.arange(0, BLOCK_M)
        scale_a_ptrs = scale_a_ptr + i.to(tl.int64) * stride_sam
        of_n = scale_b_ptr + (n // BLOCK_K).to(tl.int64) * stride_sbn
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for step in range(K // BLOCK_K):
            at = tl.cast(step, tl.int64)
            scale = tl.load(scale_a_ptrs + at * stride_sak, i < M, other=0.0)
            scale *= tl.load(of_n + at * stride_sbk)
            x, y = a.load([m, step * BLOCK_K]), b.load([n, step * BLOCK_K])
            acc += tl.dot(x, y.T) * scale[:, None]
        c.store([m, n], acc.to(c.dtype))


@dataclass(frozen=True)
class Blocks:
    """A tile is as deep as a scale reaches and no wider."""

    block_m: int = tile(64, 128, default=128)
    block_n: int = tile(64, 128, default=128)
    num_warps: int = threads(4, 8, default=8)
    num_stages: int = stages(2, 4, default=3)
    group_m: int = among(1, 4, 8, 16, default=8)


@dataclass(frozen=True)
class Persistent:
    block_m: int = tile(64, 128, default=128)
    block_n: int = tile(64, 128, default=128)
    num_warps: int = threads(4, 8, default=8)
    num_stages: int = stages(2, 5, default=4)
    group_m: int = among(4, 8, default=8)
    per_core: int = among(1, 2, 3, default=1)  # programs


def refuse_tiles(config, limits, *, itemsize, M, N, K):
    if itemsize != 1:
        return f"it multiplies numbers of one byte; those of {itemsize} bytes are for matmul"
    if reason := limits.refuse_fp8():
        return reason
    threads_ = config.num_warps * limits.warp_size
    held = 2 * config.block_m * config.block_n // threads_
    buffers = limits.buffers(config.num_stages)
    shared = buffers * (config.block_m + config.block_n) * BLOCK
    return limits.refuse_sums(held) or limits.refuse_shared(shared)


def work(config, limits, *, itemsize, M, N, K):
    return Work(
        tiles=tile_count(config, M=M, N=N),
        steps=K // BLOCK,
        load_bytes=(config.block_m + config.block_n) * BLOCK,
        store_bytes=2 * config.block_m * config.block_n,
        dot=(config.block_m, config.block_n, BLOCK),
        band=config.group_m,
    )


@fp8_block_matmul.impl(
    Blocks, refuse=refuse_tiles, work=work, defaults={"sm_89 sm_120": Blocks(128, 64, 8, 3)}
)
def tiles(a, b, scale_a, scale_b, *, config):
    """One program per tile, pointers into a and b: takes any strides."""
    (M, K), (N, _) = a.shape, b.shape
    c = a.new_empty(M, N, dtype=torch.bfloat16)
    constants = dict(BLOCK_K=BLOCK, EVEN_M=M % config.block_m == 0, **meta(config))
    _tiles[(tile_count(config, M=M, N=N),)](
        a, b, scale_a, scale_b, c, M, N, K, *strides(a, b, scale_a, scale_b), **constants
    )
    return c


@fp8_block_matmul.impl(
    Persistent,
    refuse=refuse_tiles,
    work=work,
    defaults={
        "sm_89 sm_120": Persistent(128, 64, 8, 2),
        "sm_90": Persistent(64, 128, 4, 3, per_core=2),  # one scales its sums, the other multiplies
    },
)
def persistent(a, b, scale_a, scale_b, *, config):
    """A program walks its tiles through tensor descriptors: threads compute no addresses, and the
    store of one tile overlaps the loads of the next."""
    (M, K), (N, _) = a.shape, b.shape
    c = a.new_empty(M, N, dtype=torch.bfloat16)
    BM, BN = config.block_m, config.block_n
    programs = min(config.per_core * cores(a), triton.cdiv(M, BM) * triton.cdiv(N, BN))
    constants = dict(BLOCK_K=BLOCK, PROGRAMS=programs, **meta(config))
    of_a, of_b = describe("a", a, [BM, BLOCK]), describe("b", b, [BN, BLOCK])
    of_c, sizes = describe("c", c, [BM, BN]), (M, N, K, *strides(scale_a, scale_b))
    _persistent[(programs,)](of_a, of_b, scale_a, scale_b, of_c, *sizes, **constants)
    return c


def refuse_library(config, limits, *, itemsize, M, N, K):
    if limits.arch != "sm_90":
        return "cuBLAS has this scaling on Hopper alone"
    return (
        "cuBLAS needs rows of scales whose bytes are a multiple of 16" if M % 4 or K % 512 else None
    )


def library(a, b, scale_a, scale_b):
    """cuBLAS of CUDA 12.9 and later. A launch turns the scales of a, which it wants by columns."""
    columns = scale_a.T.contiguous().T
    return torch._scaled_mm(a, b.T, columns, scale_b.T, out_dtype=torch.bfloat16)


def call_in_bf16(a, b, scale_a, scale_b):
    """cuBLAS in bf16, both matrices dequantised in every call."""
    wide_a = a.to(torch.bfloat16) * scale_a.repeat_interleave(BLOCK, 1)
    wide_b = b.to(torch.bfloat16) * scale_b.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    return torch.mm(wide_a.to(torch.bfloat16), wide_b.to(torch.bfloat16).T)


fp8_block_matmul.library("torch._scaled_mm", library, refuse=refuse_library)
fp8_block_matmul.library("torch.bf16", call_in_bf16)
