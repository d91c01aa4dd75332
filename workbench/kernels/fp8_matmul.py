"""Matrix product of 8-bit floats with a scale for each row of a and of b: a linear layer,
c[m, n] = scale_a[m] * scale_b[n] * sum over k of a[m, k] * b[n, k], written in bf16.

At M = N = K = 4096 it does 2048 FLOP for each byte it must move, so the matrix unit is the limit,
at twice the rate of bf16. Hopper's wgmma takes 8-bit operands only with k innermost, which is how
a layer's activations and weights (N rows of K) lie anyway.

Numbers are e4m3fn, the dtype `fp8`; the e4m3fnuz of gfx940 to gfx942 is another format and refused
there. A scale for the whole of a or b is the same number in every row.

NaN in a or in its scales reaches its row of c, in b or in its scales its column; e4m3fn has no
infinities.
"""

from dataclasses import dataclass, replace

import torch

from workbench.dsl import (
    INTERPRETED,
    cores,
    describe,
    divisors,
    launch_pdl,
    meta,
    strides,
    tile_count,
    tl,
    triton,
)
from workbench.dsl.gluon import (
    UNCHECKED,
    await_launch,
    barriers,
    gl,
    gluon,
    mbarrier,
    next_slot,
    refuse_hopper,
    tma,
)
from workbench.kernels import matmul
from workbench.spec import (
    Spec,
    Tensor,
    Tolerance,
    Work,
    among,
    stages,
    threads,
    tile,
    unaligned_rows,
    value_or,
)


def reference(a, b, scale_a, scale_b):
    return (a @ b.T) * scale_a[:, None] * scale_b


def scales(shape, dtype, device, generator):
    """As a quantiser gives them: a row's largest magnitude over 448, here 1/256 to 1/64."""
    return torch.rand(shape, generator=generator, device=device, dtype=dtype) * 0.0117 + 0.0039


fp8_matmul = Spec(
    name="fp8_matmul",
    inputs={
        "a": Tensor("M K"),
        "b": Tensor("N K"),
        "scale_a": Tensor("M", dtype="fp32", make=scales),
        "scale_b": Tensor("N", dtype="fp32", make=scales),
    },
    outputs={"c": Tensor("M N", dtype="bf16")},
    reference=reference,
    flops=lambda M, N, K: 2 * M * N * K,
    check=[
        {"M": 1, "N": 1, "K": 1},
        {"M": 33, "N": 65, "K": 47},
        {"M": 65, "N": 136, "K": 80},  # rows of 16 bytes' multiples: descriptors take it
        {"M": 131, "N": 144, "K": 272},
    ],
    bench=[
        {"M": 4096, "N": 4096, "K": 4096},
        {"M": 8192, "N": 8192, "K": 8192},
        {"M": 128, "N": 8192, "K": 8192},
        {"M": 8192, "N": 1024, "K": 4096},
    ],
    # Hopper's matrix unit keeps 13 bits behind the point while it adds 8-bit products and cuts the
    # rest off: each of the K / 32 additions loses up to 2^-13 of the sum so far, half of that on
    # average, which is 0.8 % of the result at K = 4096 and 1.6 % at 8192, cuBLAS alike. Small
    # products lose more beside a large sum. With `promote` each step's sum starts anew.
    # All errors together are one rounding of the output, 0.0017 of the rms, and 2^-14 for each
    # addition: twice both is allowed, 0.6 % at K = 272 and 3.5 % at 8192.
    tolerance=dict.fromkeys(
        ("fp8", "bf16"),  # bf16 of the output
        Tolerance(relative=3e-2, rms_share=3e-2, rms=lambda K, **_: 4e-3 + K / 32 * 2.0**-13),
    ),
    refusable=unaligned_rows("K", "N"),
)


@triton.jit
def _dot(x, y, acc, PROMOTE: tl.constexpr):
    if PROMOTE:  # each step's sum is added in fp32, outside the matrix unit
        return tl.dot(x, y, acc, max_num_imprecise_acc=x.shape[1])
    else:
        return tl.dot(x, y, acc)


@triton.jit
def _tiles(
    a_ptr, b_ptr, scale_a_ptr, scale_b_ptr, c_ptr, M, N, K,
    stride_am, stride_ak, stride_bn, stride_bk, stride_sa, stride_sb,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    EVEN_MN: tl.constexpr, EVEN_K: tl.constexpr, PROMOTE: tl.constexpr,
    DIV_K: tl.constexpr, DIV_A: tl.constexpr, DIV_B: tl.constexpr,
):  # fmt: skip
    # Triton asks of a number only whether it is a multiple of 16; said so, 4 or 8 help too
    K = K // DIV_K * DIV_K
    stride_am, stride_bn = stride_am // DIV_A * DIV_A, stride_bn // DIV_B * DIV_B
    pid, grid_m, grid_n = tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    pid_m, pid_n = tl.swizzle2d(pid // grid_n, pid % grid_n, grid_m, grid_n, GROUP_M)
    m = (pid_m * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    n = (pid_n * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + m[:, None] * stride_am + k.to(tl.int64)[None, :] * stride_ak
    b_ptrs = b_ptr + k.to(tl.int64)[:, None] * stride_bk + n[None, :] * stride_bn
    step = tl.full((), BLOCK_K, tl.int64)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k0 in range(0, K, BLOCK_K):
        if EVEN_MN and EVEN_K:
            a, b = tl.load(a_ptrs), tl.load(b_ptrs)
        else:
            a = tl.load(a_ptrs, (m[:, None] < M) & (k[None, :] < K - k0), other=0.0)
            b = tl.load(b_ptrs, (k[:, None] < K - k0) & (n[None, :] < N), other=0.0)
        acc = _dot(a, b, acc, PROMOTE)
        a_ptrs += step * stride_ak
        b_ptrs += step * stride_bk
    scale_a = tl.load(scale_a_ptr + m * stride_sa, m < M, other=0.0)
    scale_b = tl.load(scale_b_ptr + n * stride_sb, n < N, other=0.0)
    c = acc * scale_a[:, None] * scale_b[None, :]
    c_ptrs = c_ptr + m[:, None] * N + n[None, :]
    tl.store(c_ptrs, c.to(c_ptr.dtype.element_ty), (m[:, None] < M) & (n[None, :] < N))


@triton.jit
def _persistent(
    a, b, scale_a_ptr, scale_b_ptr, c, M, N, K, stride_sa, stride_sb,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    PROGRAMS: tl.constexpr, PROMOTE: tl.constexpr, FLATTEN: tl.constexpr,
):  # fmt: skip
    grid_m, grid_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    for tile_id in tl.range(tl.program_id(0), grid_m * grid_n, PROGRAMS, flatten=FLATTEN):
        pid_m, pid_n = tl.swizzle2d(tile_id // grid_n, tile_id % grid_n, grid_m, grid_n, GROUP_M)
        m, n = pid_m * BLOCK_M, pid_n * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for step in range(tl.cdiv(K, BLOCK_K)):
            x, y = a.load([m, step * BLOCK_K]), b.load([n, step * BLOCK_K])
            acc = _dot(x, y.T, acc, PROMOTE)
        i, j = m + tl.arange(0, BLOCK_M), n + tl.arange(0, BLOCK_N)
        scale_a = tl.load(scale_a_ptr + i.to(tl.int64) * stride_sa, i < M, other=0.0)
        scale_b = tl.load(scale_b_ptr + j.to(tl.int64) * stride_sb, j < N, other=0.0)
        scaled = acc * scale_a[:, None] * scale_b[None, :]
        # stored in halves: what they save in shared memory is another stage
        left, right = tl.split(
            tl.permute(tl.reshape(scaled, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1))
        )
        c.store([m, n], left.to(c.dtype))
        c.store([m, n + BLOCK_N // 2], right.to(c.dtype))


# The pipeline of `matmul.warp_groups` with steps of twice as many numbers: `warp_groups`. A tile's
# scales are loaded before its products and are there when these end. Those of a group's rows stay
# in registers, two a thread. Those of the columns lie one or two in each thread, 64 to a thread
# would be too many, and go through shared memory to all.


@gluon.jit
def _scales_of(scale_ptr, first, count, stride, EXTENT: gl.constexpr, LAYOUT: gl.constexpr):
    i = first + gl.arange(0, EXTENT, LAYOUT)
    return gl.load(scale_ptr + i.to(gl.int64) * stride, i < count, other=0.0)


@gluon.jit
def _promoted_steps(
    W: gl.constexpr, rings, bars, steps, slot, phase, FLIPPED: gl.constexpr, HALF: gl.constexpr,
    LAYOUT: gl.constexpr, ROWS: gl.constexpr, WIDTH: gl.constexpr,
):  # fmt: skip
    """As `matmul._multiply_steps`, but each step's sum starts anew and is added in fp32, outside
    the matrix unit, which works for the other group meanwhile."""
    full, free, _ = bars
    none = gl.zeros([ROWS, WIDTH], gl.float32, LAYOUT)
    total = none
    for _step in range(steps):
        mbarrier.wait(full.index(slot), phase)
        acc, more = matmul._start_product(W, rings, slot, none, 0, False, FLIPPED, HALF)
        acc, more = matmul._await_products(acc, more, 0, False)
        mbarrier.arrive(free.index(slot))
        total += acc
        slot, phase = next_slot(slot, phase, full.shape[0])
    return total, 0, slot, phase


@gluon.jit
def _scaled_columns(sums, columns):
    return sums * columns.load(gl.SliceLayout(0, sums.type.layout))[None, :]


@gluon.jit
def _put_scaled(c, buffers, sums, rows, columns, m, n, at):
    """Store sums times the scales of their rows and columns. Returns the next buffer."""
    WIDTH: gl.constexpr = buffers.shape[2]
    pieces = matmul._pieces(sums * rows[:, None], WIDTH)
    for i in gl.static_range(len(pieces)):
        scaled = _scaled_columns(pieces[i], columns.slice(i * WIDTH, WIDTH))
        at = matmul._put_piece(c, buffers, scaled, m, n + i * WIDTH, at)
    return at


@gluon.jit
def _scaled_tiles(
    W: gl.constexpr, maps, rings, buffers, columns, bars, problem, scales, state,
    SHAPE: gl.constexpr, LAG: gl.constexpr, PROMOTE: gl.constexpr, HALF: gl.constexpr,
):  # fmt: skip
    FLIPPED: gl.constexpr = (False, True)
    ROWS: gl.constexpr = SHAPE[0] // 2
    MORE: gl.constexpr = len(rings) == 3
    WIDTH: gl.constexpr = 128 if MORE else SHAPE[1] // 2 if HALF else SHAPE[1]
    LAYOUT: gl.constexpr = matmul._sums_layout(WIDTH, 8)
    EXTENT: gl.constexpr = SHAPE[1] // 2 if HALF else columns.shape[0]
    LINE: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    scale_a, scale_b, M, N, stride_sa, stride_sb = scales
    whole, count, _, _, steps = problem
    slot, phase, turn, at = state
    first, last = (whole, count) if HALF else (0, whole)
    for t in range(first + gl.program_id(0), last, gl.num_programs(0)):
        m, n = matmul._tile_start(t, problem, SHAPE, HALF)
        m += W * ROWS
        down = _scales_of(scale_a, m, M, stride_sa, ROWS, gl.SliceLayout(1, LAYOUT))
        across = _scales_of(scale_b, n, N, stride_sb, EXTENT, LINE)
        if PROMOTE:
            acc, more, slot, phase = _promoted_steps(
                W, rings, bars, steps, slot, phase, FLIPPED, HALF, LAYOUT, ROWS, WIDTH
            )
        else:
            acc, more, slot, phase = matmul._multiply_steps(
                W, rings, bars, steps, slot, phase, turn, SHAPE, FLIPPED, LAG, HALF
            )
        turn ^= 1
        columns.slice(0, EXTENT).store(across)
        at = _put_scaled(maps[3], buffers[0], acc, down, columns, m, n, at)
        if MORE:
            further = columns.slice(128, buffers[1].shape[2])
            # in a layout of their own, with the same rows in a thread
            down = gl.convert_layout(down, gl.SliceLayout(1, more.type.layout), assert_trivial=True)
            scaled = _scaled_columns(more * down[:, None], further)
            matmul._put_piece(maps[4], buffers[1], scaled, m, n + 128, 0)
    return slot, phase, turn, at


@gluon.jit
def _scaled_all(
    W: gl.constexpr, maps, rings, buffers, columns, bars, problem, scales, SHAPE: gl.constexpr,
    LAG: gl.constexpr, PROMOTE: gl.constexpr, CUT: gl.constexpr,
):  # fmt: skip
    await_launch()  # for the scales; the warp that loads waits for itself
    slot, phase, turn, at = 0, 0, 0, 0
    state = _scaled_tiles(
        W, maps, rings, buffers, columns, bars, problem, scales, (slot, phase, turn, at), SHAPE,
        LAG, PROMOTE, False,
    )  # fmt: skip
    if CUT:
        _scaled_tiles(
            W, maps, rings, buffers, columns, bars, problem, scales, state, SHAPE, LAG, PROMOTE,
            True,
        )  # fmt: skip
    tma.store_wait(0)  # the copy engine reads shared memory, which ends with the program


@gluon.jit
def _row_of_scales(BLOCK_N: gl.constexpr):
    """Shared memory for the scales of a tile's columns."""
    EXTENT: gl.constexpr = 256 if BLOCK_N > 128 else BLOCK_N
    return gl.allocate_shared_memory(gl.float32, [EXTENT], gl.SwizzledSharedLayout(1, 1, 1, [0]))


@gluon.jit(do_not_specialize=["M", "N", "whole", "count", "grid_m", "grid_n", "steps"])
def _warp_groups(
    a, b, b_less, c, c_less, scale_a, scale_b, M, N, stride_sa, stride_sb,
    whole, count, grid_m, grid_n, steps,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
    GROUP_M: gl.constexpr, LAG: gl.constexpr, PROMOTE: gl.constexpr, CUT: gl.constexpr,
):  # fmt: skip
    SHAPE: gl.constexpr = (BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M)
    FLIPPED: gl.constexpr = (False, True)
    rings = matmul._rings(a, b, b_less, c_less, STAGES)
    top, bottom = matmul._buffers(c, c_less), matmul._buffers(c, c_less)
    across = (_row_of_scales(BLOCK_N), _row_of_scales(BLOCK_N))
    bars = (barriers(STAGES, 1), barriers(STAGES, 2), barriers(1, 1).index(0))
    maps = (a, b, b_less, c, c if c_less is None else c_less)
    problem = (whole, count, grid_m, grid_n, steps)
    scales = (scale_a, scale_b, M, N, stride_sa, stride_sb)
    gl.warp_specialize(
        [
            (_scaled_all,
             (0, maps, rings, top, across[0], bars, problem, scales, SHAPE, LAG, PROMOTE, CUT)),
            (_scaled_all,
             (1, maps, rings, bottom, across[1], bars, problem, scales, SHAPE, LAG, PROMOTE, CUT)),
            (matmul._load_all, (maps, rings, bars, problem, SHAPE, FLIPPED, CUT)),
        ],
        [4, 1],
        [232, 40],
    )  # fmt: skip


@dataclass(frozen=True)
class Tiles:
    block_m: int = tile(64, 128, default=128)
    block_n: int = tile(64, 256, default=256)
    block_k: int = tile(64, 128, default=128)
    num_warps: int = threads(4, 8, default=8)
    num_stages: int = stages(2, 4, default=3)
    promote: int = among(0, 1, default=0)


@dataclass(frozen=True)
class Persistent:
    block_m: int = tile(64, 256, default=128)
    block_n: int = tile(64, 256, default=256)
    block_k: int = tile(64, 128, default=128)
    num_warps: int = threads(4, 8, default=8)
    num_stages: int = stages(2, 4, default=4)
    promote: int = among(0, 1, default=0)
    group_m: int = among(4, 8, 16, default=8)
    flatten: int = among(0, 1, default=1)  # one loop over all tiles' steps: loads cross tiles


@dataclass(frozen=True)
class WarpGroups(matmul.WarpGroups):
    block_k: int = among(128, default=128, knob=tile)  # 128 bytes, what the copy engine swizzles
    promote: int = among(0, 1, default=0)


def refuse_numbers(limits, itemsize):
    if itemsize != 1:
        return f"fp8_matmul multiplies numbers of one byte; those of {itemsize} are for matmul"
    return limits.refuse_fp8()


def refuse_rows(N, K):
    """Return why no descriptor can describe rows of a and b, or of c."""
    if K % 16:
        return f"a descriptor needs rows of a multiple of 16 bytes; K = {K} gives {K}"
    if N % 8:
        return f"a descriptor needs rows of a multiple of 16 bytes; N = {N} gives {2 * N} of c"
    return None


def refuse_tiles(config, limits, *, itemsize, M, N, K):
    if reason := refuse_numbers(limits, itemsize):
        return reason
    threads_ = config.num_warps * limits.warp_size
    held = config.block_m * config.block_n // threads_ * (1 + config.promote)
    return limits.refuse_sums(held) or limits.refuse_shared(limits.stages_bytes(config, itemsize))


def refuse_persistent(config, limits, *, itemsize, M, N, K):
    return refuse_rows(N, K) or refuse_tiles(config, limits, itemsize=itemsize, M=M, N=N, K=K)


# 8192^3 takes 853 us in tiles of 128x128 and 861 in those of 128x256 (H200, in turns)
PACES = {**matmul.PACES, (128, 128): 1.0}


def size_warp_groups(config, limits, **at):
    """Return the config with tiles by their rounds, of those that leave room for a second sum with
    `promote`."""
    if config.promote:
        square = value_or(config.block_m, 128), value_or(config.block_n, 128)
        config = replace(config, block_m=square[0], block_n=square[1])
    return matmul.size_warp_groups(config, limits, **at, paces=PACES)


def refuse_warp_groups(config, limits, *, itemsize, M, N, K):
    reason = refuse_hopper(limits) or refuse_numbers(limits, itemsize) or refuse_rows(N, K)
    if reason:
        return reason
    if config.promote and (config.block_m, config.block_n) != (128, 128):
        edges = f"{config.block_m}x{config.block_n}"
        return f"promote keeps two sums a number of c in registers: tiles are 128x128, not {edges}"
    if config.promote and config.lag:
        return f"promote waits for the product of each step; lag is 0 there, not {config.lag}"
    scales = 2 * 4 * (256 if config.block_n > 128 else config.block_n)
    return matmul.refuse_ring(config, limits, itemsize, scales)


def work(config, limits, *, itemsize, M, N, K, band=8):
    whole = Work.product(config, 1, M=M, N=N, K=K, band=band)
    return replace(whole, store_bytes=2 * config.block_m * config.block_n)


def warp_groups_work(config, limits, **at):
    return work(config, limits, **at, band=config.group_m)


@fp8_matmul.impl(
    Tiles, refuse=refuse_tiles, work=work, defaults={"sm_89 sm_120": Tiles(128, 128, 64, 8, 3)}
)
def tiles(a, b, scale_a, scale_b, *, config):
    """One program per tile, pointers into a and b: takes any size and any strides."""
    (M, K), (N, _) = a.shape, b.shape
    c = a.new_empty(M, N, dtype=torch.bfloat16)
    # the interpreter sums in fp32 anyway
    constants = dict(GROUP_M=8, PROMOTE=bool(config.promote) and not INTERPRETED, **meta(config))
    constants |= dict(EVEN_MN=M % config.block_m == 0 and N % config.block_n == 0)
    constants |= dict(EVEN_K=K % config.block_k == 0, **divisors(K=K, A=a.stride(0), B=b.stride(0)))
    sizes = M, N, K, *strides(a, b, scale_a, scale_b)
    _tiles[(tile_count(config, M=M, N=N),)](a, b, scale_a, scale_b, c, *sizes, **constants)
    return c


@fp8_matmul.impl(
    Persistent,
    refuse=refuse_persistent,
    work=work,
    defaults={
        "sm_89 sm_120": Persistent(128, 128, 64, 8, 3),
        "sm_100": Persistent(128, 256, 128, 8, 3),
    },
)
def persistent(a, b, scale_a, scale_b, *, config):
    """One program per core, which walks its tiles through tensor descriptors: the store of one tile
    overlaps the loads of the next."""
    (M, K), (N, _) = a.shape, b.shape
    c = a.new_empty(M, N, dtype=torch.bfloat16)
    BM, BN, BK = config.block_m, config.block_n, config.block_k
    programs = min(cores(a), tile_count(config, M=M, N=N))
    constants = dict(PROGRAMS=programs, PROMOTE=bool(config.promote) and not INTERPRETED)
    constants |= dict(FLATTEN=bool(config.flatten), **meta(config))
    of_a, of_b = describe("a", a, [BM, BK]), describe("b", b, [BN, BK])
    of_c, sizes = describe("c", c, [BM, BN // 2]), (M, N, K, *strides(scale_a, scale_b))
    _persistent[(programs,)](of_a, of_b, scale_a, scale_b, of_c, *sizes, **constants)
    return c


@fp8_matmul.impl(
    WarpGroups,
    resolve=size_warp_groups,
    refuse=refuse_warp_groups,
    work=warp_groups_work,
    unchecked_reason=UNCHECKED,
)
def warp_groups(a, b, scale_a, scale_b, *, config):
    """The pipeline of `matmul.warp_groups`: a warp loads, two groups of warps multiply, and scales
    are loaded while they do. In Gluon."""
    (M, K), (N, _) = a.shape, b.shape
    c = a.new_empty(M, N, dtype=torch.bfloat16)
    BM, BN, BK = config.block_m, config.block_n, config.block_k
    tiles, steps = tile_count(config, M=M, N=N), triton.cdiv(K, BK)
    programs, whole, count = matmul.rounds_of(config, cores(a), tiles)
    lag = matmul.lag_of(config, steps)
    maps = matmul.described_step(("a", a, False), ("b", b, True), config)
    of_c = matmul.described_sums("c", c, config)
    constants = dict(BLOCK_M=BM, BLOCK_N=BN, BLOCK_K=BK, STAGES=config.num_stages, LAG=lag)
    constants |= dict(GROUP_M=config.group_m, PROMOTE=bool(config.promote), CUT=count > whole)
    sizes = M, N, *strides(scale_a, scale_b)
    numbers = whole, count, triton.cdiv(M, BM), triton.cdiv(N, BN), steps
    constants |= dict(num_warps=4, **launch_pdl(True))
    _warp_groups[(programs,)](*maps, *of_c, scale_a, scale_b, *sizes, *numbers, **constants)
    return c


def library(a, b, scale_a, scale_b):
    """cuBLAS, which adds in the matrix unit as we do by default."""
    return torch._scaled_mm(
        a, b.T, scale_a[:, None], scale_b[None, :], out_dtype=torch.bfloat16, use_fast_accum=True
    )


def call_in_bf16(a, b, scale_a, scale_b):
    """cuBLAS in bf16, both matrices widened in every call: where 8-bit products are missing."""
    c = torch.mm(a.to(torch.bfloat16), b.to(torch.bfloat16).T)
    return (c * scale_a[:, None] * scale_b).to(torch.bfloat16)


fp8_matmul.library("torch._scaled_mm", library)
fp8_matmul.library("torch.bf16", call_in_bf16)
