"""Matrix products of ragged groups of rows, in one launch: c[r] = a[r] @ b[g] for the rows r of
group g, which end before ends[g] (int32, never falling; the last one is T). A layer of experts, its
T rows sorted by expert, is two or three of these.

Each group is a matmul of its own, limited by the matrix unit where it has some hundred rows: with
128 rows it does 128 FLOP for each byte of its b in bf16, fewer than an H200's 206, and then reading
b once is the limit. Only the device knows how many tiles a group has, so a program finds its
group by counting the tiles before it, and the host waits for nothing.

NaN in b stays in its group, and there in its column.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

import torch

from workbench.dsl import (
    cores,
    describable,
    describe,
    meta,
    precision_of,
    strides,
    tile_count,
    tl,
    triton,
    upcast,
)
from workbench.spec import (
    Spec,
    Tensor,
    Work,
    among,
    rms_bounds,
    stages,
    threads,
    tile,
    unaligned_rows,
)


def reference(a, b, ends):
    bounds = [0, *ends.tolist()]
    parts = [a[low:high] @ b[g] for g, (low, high) in enumerate(pairwise(bounds))]
    return torch.cat(parts)


class Ends(Tensor):
    """A maker is told the shape of what it makes; where groups end depends on T, too."""

    def shape(self, sizes):
        shape = _Shape(super().shape(sizes))
        shape.rows = sizes["T"]
        return shape


class _Shape(tuple):
    rows = 0


def deal_rows(shape, dtype, device, generator):
    """As a router deals rows out: some groups get many times the rows of others, some none."""
    share = torch.rand(shape, generator=generator, device=device, dtype=torch.float64).square()
    ends = (share.cumsum(0) / share.sum() * shape.rows).round()
    ends[-1] = shape.rows
    return ends.to(dtype)


grouped_matmul = Spec(
    name="grouped_matmul",
    inputs={
        "a": Tensor("T K"),
        "b": Tensor("G K N"),
        "ends": Ends("G", dtype="int32", make=deal_rows),
    },
    outputs={"c": Tensor("T N")},
    reference=reference,
    flops=lambda G, T, N, K: 2 * T * N * K,
    check=[
        {"G": 1, "T": 1, "N": 1, "K": 1},
        {"G": 3, "T": 37, "N": 33, "K": 47},
        {"G": 5, "T": 150, "N": 72, "K": 72},
    ],
    bench=[
        {"G": 8, "T": 8192, "N": 14_336, "K": 4096},
        {"G": 64, "T": 16_384, "N": 2816, "K": 2048},
        {"G": 64, "T": 512, "N": 2816, "K": 2048},
    ],
    # as matmul's: rounding inside a sum of K products is in proportion to the rms of the result
    tolerance=rms_bounds(fp32=5e-5, fp16=1e-4, bf16=1e-4),
    refusable=unaligned_rows("K", "N"),
)


@triton.jit
def _tiles_before(ends_ptr, G, BLOCK_M: tl.constexpr, BLOCK_G: tl.constexpr):
    """Of each group: how many rows of tiles the groups up to and with it have."""
    g = tl.arange(0, BLOCK_G)
    end = tl.load(ends_ptr + g, g < G, other=0)
    begin = tl.load(ends_ptr + g - 1, (g > 0) & (g < G), other=0)
    return tl.cumsum((end - begin + BLOCK_M - 1) // BLOCK_M, axis=0)


@triton.jit
def _find(
    ends_ptr, before, tile_id, grid_n, GROUP_M: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_G: tl.constexpr,
):  # fmt: skip
    """The group of a tile, the tile's first row and column of tiles, and the group's last row."""
    group = tl.sum((before * grid_n <= tile_id).to(tl.int32), axis=0)
    g = tl.arange(0, BLOCK_G)
    first = tl.sum(tl.where(g == group - 1, before, 0), axis=0)
    begin = tl.load(ends_ptr + group - 1, group > 0, other=0)
    end = tl.load(ends_ptr + group)
    own = tile_id - first * grid_n
    grid_m = (end - begin + BLOCK_M - 1) // BLOCK_M
    pid_m, pid_n = tl.swizzle2d(own // grid_n, own % grid_n, grid_m, grid_n, GROUP_M)
    return group, begin + pid_m * BLOCK_M, pid_n, end


@triton.jit
def _tiles(
    a_ptr, b_ptr, ends_ptr, c_ptr, G, N, K,
    stride_am, stride_ak, stride_bg, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    BLOCK_G: tl.constexpr, EVEN_K: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    grid_n = tl.cdiv(N, BLOCK_N)
    before = _tiles_before(ends_ptr, G, BLOCK_M, BLOCK_G)
    tile_id = tl.program_id(0)
    if tile_id < tl.max(before, axis=0) * grid_n:  # the grid is what the worst split would need
        group, m, pid_n, end = _find(ends_ptr, before, tile_id, grid_n, GROUP_M, BLOCK_M, BLOCK_G)
        i = (m + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
        j = (pid_n * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)[None, :]
        k = tl.arange(0, BLOCK_K)
        a_ptrs = a_ptr + i * stride_am + k.to(tl.int64)[None, :] * stride_ak
        b_ptrs = b_ptr + k.to(tl.int64)[:, None] * stride_bk + j * stride_bn
        b_ptrs += group.to(tl.int64) * stride_bg
        step = tl.full((), BLOCK_K, tl.int64)
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k0 in range(0, K, BLOCK_K):
            if EVEN_K:
                a = tl.load(a_ptrs, i < end, other=0.0)
                b = tl.load(b_ptrs, j < N, other=0.0)
            else:
                a = tl.load(a_ptrs, (i < end) & (k[None, :] < K - k0), other=0.0)
                b = tl.load(b_ptrs, (k[:, None] < K - k0) & (j < N), other=0.0)
            if UPCAST:
                a, b = a.to(tl.float32), b.to(tl.float32)
            acc = tl.dot(a, b, acc, input_precision=precision_of(a.dtype))
            a_ptrs += step * stride_ak
            b_ptrs += step * stride_bk
        tl.store(c_ptr + i * N + j, acc.to(c_ptr.dtype.element_ty), (i < end) & (j < N))


@triton.jit
def _persistent(
    a, b, ends_ptr, c_ptr, G, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    BLOCK_G: tl.constexpr, PROGRAMS: tl.constexpr, B_T: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    grid_n = tl.cdiv(N, BLOCK_N)
    before = _tiles_before(ends_ptr, G, BLOCK_M, BLOCK_G)
    count = tl.max(before, axis=0) * grid_n
    for tile_id in tl.range(tl.program_id(0), count, PROGRAMS, flatten=True):
        group, m, pid_n, end = _find(ends_ptr, before, tile_id, grid_n, GROUP_M, BLOCK_M, BLOCK_G)
        n = pid_n * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for step in range(tl.cdiv(K, BLOCK_K)):
            k = step * BLOCK_K
            x = a.load([m, k])  # rows behind the group's last are the next group's: not stored
            if B_T:
                y = tl.reshape(b.load([group, n, k]), (BLOCK_N, BLOCK_K)).T
            else:
                y = tl.reshape(b.load([group, k, n]), (BLOCK_K, BLOCK_N))
            if UPCAST:
                x, y = x.to(tl.float32), y.to(tl.float32)
            acc = tl.dot(x, y, acc, input_precision=precision_of(x.dtype))
        # stored in halves, which need half the shared memory
        left, right = tl.split(tl.permute(tl.reshape(acc, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1)))
        i = (m + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
        j = n + tl.arange(0, BLOCK_N // 2)[None, :]
        c_ptrs = c_ptr + i * N + j
        tl.store(c_ptrs, left.to(c_ptr.dtype.element_ty), (i < end) & (j < N))
        mask = (i < end) & (j + BLOCK_N // 2 < N)
        tl.store(c_ptrs + BLOCK_N // 2, right.to(c_ptr.dtype.element_ty), mask)


@dataclass(frozen=True)
class Tiles:
    block_m: int = tile(16, 128, default=128)
    block_n: int = tile(64, 256, default=256)
    block_k: int = tile(32, 64, default=64)
    num_warps: int = threads(4, 8, default=8)
    num_stages: int = stages(2, 4, default=3)


@dataclass(frozen=True)
class Persistent:
    block_m: int = tile(64, 128, default=128)
    block_n: int = tile(64, 256, default=256)
    block_k: int = tile(32, 64, default=64)
    num_warps: int = threads(4, 8, default=8)
    num_stages: int = stages(2, 4, default=4)
    group_m: int = among(4, 8, default=8)


def refuse_tiles(config, limits, *, itemsize, G, **sizes):
    """What both versions ask of registers and shared memory."""
    if G > 1024:
        return f"a program looks at the ends of all groups at once: of 1024 at most, not of {G}"
    threads_ = config.num_warps * limits.warp_size
    held = config.block_m * config.block_n // threads_
    return limits.refuse_sums(held) or limits.refuse_shared(limits.stages_bytes(config, itemsize))


def refuse_persistent(config, limits, *, itemsize, G, T, N, K):
    reason = limits.refuse_rows(itemsize, K=K, N=N)
    return reason or refuse_tiles(config, limits, itemsize=itemsize, G=G)


def most_tiles(config, G, T, N):
    """Every group but those without rows may end in a tile that is not full."""
    return (T // config.block_m + min(G, T)) * triton.cdiv(N, config.block_n)


def work(config, limits, *, itemsize, G, T, N, K):
    whole = Work.product(config, itemsize, M=T, N=N, K=K, band=8)
    lost = min(G, T) // 2 * tile_count(config, N=N)  # half a tile of each group
    return replace(whole, tiles=whole.tiles + lost)


@grouped_matmul.impl(
    Tiles,
    refuse=refuse_tiles,
    work=work,
    defaults={
        "fp32": Tiles(64, 64, 32, 8, 2),
        "fp32:sm_90": Tiles(64, 128, 32, 4, 3),
        "sm_80 sm_89 sm_120": Tiles(128, 128, 32, 4, 3),
        "gfx90a gfx942 gfx950": Tiles(128, 128, 64, 4, 2),
        "gfx1100": Tiles(128, 64, 32, 4, 2),
    },
)
def tiles(a, b, ends, *, config):
    """One program per tile, and as many as the worst split needs; pointers: any size or strides."""
    (T, K), (G, _, N) = a.shape, b.shape
    c = a.new_empty(T, N)
    constants = dict(GROUP_M=8, BLOCK_G=triton.next_power_of_2(G), EVEN_K=K % config.block_k == 0)
    constants |= dict(UPCAST=upcast(a), **meta(config))
    sizes = G, N, K, *strides(a, b)
    _tiles[(most_tiles(config, G, T, N),)](a, b, ends.contiguous(), c, *sizes, **constants)
    return c


@grouped_matmul.impl(
    Persistent,
    refuse=refuse_persistent,
    work=work,
    defaults={
        "fp32": Persistent(64, 64, 32, 8, 2),
        "fp32:sm_90": Persistent(128, 128, 32, 8, 3),
        "sm_80": Persistent(128, 128, 32, 8, 3),
        "sm_89 sm_120": Persistent(128, 128, 32, 8, 2),
        "gfx90a gfx942 gfx950": Persistent(128, 128, 64, 4, 2),
        "gfx1100": Persistent(128, 64, 32, 8, 2),
    },
)
def persistent(a, b, ends, *, config):
    """One program per core, walking tiles of all groups through tensor descriptors: the store of
    one tile overlaps the loads of the next, and no group waits for another's last round."""
    (T, K), (G, _, N) = a.shape, b.shape
    c = a.new_empty(T, N)
    b_t = not describable(b)
    BM, BN, BK = config.block_m, config.block_n, config.block_k
    programs = min(cores(a), most_tiles(config, G, T, N))
    constants = dict(BLOCK_G=triton.next_power_of_2(G), PROGRAMS=programs, B_T=b_t)
    constants |= dict(UPCAST=upcast(a), **meta(config))
    of_a = describe("a", a, [BM, BK])
    of_b = describe("b", b.mT, [1, BN, BK]) if b_t else describe("b", b, [1, BK, BN])
    _persistent[(programs,)](of_a, of_b, ends.contiguous(), c, G, N, K, **constants)
    return c


def library(a, b, ends):
    """CUTLASS, in bf16 on Hopper and Blackwell."""
    return torch._grouped_mm(a, b, offs=ends)


grouped_matmul.library("torch._grouped_mm", library)
