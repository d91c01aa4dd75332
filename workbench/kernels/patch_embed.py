"""Patch embedding of a vision transformer: y = x W^T + bias + position, the two additions fused.

x holds one patch per row, as im2col lays it out, image after image; row m is patch m % P of its
image and gets row m % P of the position table. W is the convolution's weight, a row per channel.

At 928256 x 768 x 768 in bf16 the product does 384 FLOP for each byte it must move, so the matrix
unit is the limit on an H200 (206 FLOP a byte); but K = 768 is short. A tile of 128 x 256 is done
in some 8 us; an addition that waits for the cache at the end costs a tenth of it, and an
addition in a launch of its own would move 2.9 GB more: half the product's time again.

A NaN or an infinity reaches the sums that it is part of: in x or in a position, its row of y; in W
or in the bias, its column.
"""

import math
from dataclasses import dataclass

import torch

from workbench.dsl import (
    compile_call,
    cores,
    describe,
    meta,
    precision_of,
    strides,
    tile_count,
    tl,
    triton,
    upcast,
)
from workbench.dsl.gluon import (
    UNCHECKED,
    barriers,
    describe_blocks,
    gl,
    gluon,
    group_barrier,
    tma,
)
from workbench.kernels import matmul
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


def reference(x, w, bias, position):
    M, P = len(x), len(position)
    patch = torch.arange(M, device=x.device) % P
    return x @ w.T + bias + position[patch]


patch_embed = Spec(
    name="patch_embed",
    inputs={"x": Tensor("M K"), "w": Tensor("N K"), "bias": Tensor("N"), "position": Tensor("P N")},
    outputs={"y": Tensor("M N")},
    reference=reference,
    flops=lambda M, K, N, P: 2 * M * N * K,
    check=[
        {"M": 1, "N": 1, "K": 1, "P": 1},
        {"M": 33, "N": 65, "K": 47, "P": 7},
        {"M": 98, "N": 144, "K": 72, "P": 49},  # rows of 16 bytes' multiples: descriptors take it
        {"M": 131, "N": 72, "K": 72, "P": 196},
        {"M": 20, "N": 72, "K": 36, "P": 9},  # rows of 8 bytes' multiples
    ],
    bench=[
        {"M": 928_256, "N": 768, "K": 768, "P": 196},  # 4736 images of 14 x 14 patches
        {"M": 50_176, "N": 768, "K": 768, "P": 196},
        {"M": 46_656, "N": 1152, "K": 588, "P": 729},  # patches of 14 x 14 x 3: rows of 1176 bytes
    ],
    # K products of standard normal values sum to an rms of sqrt(K), in which fp32 errors are lost.
    # A library rounds the product before it adds a position of up to 5: where the two cancel, 2^-8
    # (bf16) or 2^-11 (fp16) of that is left.
    tolerance=rms_bounds(fp32=5e-5, fp16=5e-4, bf16=4e-3),
    refusable=unaligned_rows("K", "N"),
)


@triton.jit
def _addends(table, m, n, EVEN_N: tl.constexpr, WIDE: tl.constexpr):
    """What the rows m and columns n get beside the product. Rows beyond M get something, too."""
    bias_ptr, position_ptr, N, P, stride_b, stride_pp, stride_pn = table
    p, biases = m % P, bias_ptr + n.to(tl.int64) * stride_b
    if WIDE:  # offsets of 64 bits cost registers, which are short here
        p, n = p.to(tl.int64), n.to(tl.int64)
    pointers = position_ptr + (p[:, None] * stride_pp + n[None, :] * stride_pn)
    if EVEN_N:
        return tl.load(biases), tl.load(pointers)
    bias = tl.load(biases, n < N, other=0.0)
    return bias, tl.load(pointers, n[None, :] < N, other=0.0)


@triton.jit
def _tiles(
    x_ptr, w_ptr, bias_ptr, position_ptr, y_ptr, M, N, K, P,
    stride_xm, stride_xk, stride_wn, stride_wk, stride_b, stride_pp, stride_pn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    UNIT: tl.constexpr, EVEN_MN: tl.constexpr, EVEN_K: tl.constexpr,
    WIDE: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    table = (bias_ptr, position_ptr, N, P, stride_b, stride_pp, stride_pn)
    pid, grid_n = tl.program_id(0), tl.cdiv(N, BLOCK_N)
    m = (pid // grid_n) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = (pid % grid_n) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    # on their way while the product is computed
    bias, position = _addends(table, m, n, EVEN_MN, WIDE)
    # K and the strides of rows came divided by UNIT, so that the compiler knows the alignment
    K, stride_xm, stride_wn = K * UNIT, stride_xm * UNIT, stride_wn * UNIT
    x_ptrs = x_ptr + m.to(tl.int64)[:, None] * stride_xm + k.to(tl.int64)[None, :] * stride_xk
    w_ptrs = w_ptr + n.to(tl.int64)[None, :] * stride_wn + k.to(tl.int64)[:, None] * stride_wk
    step = tl.full((), BLOCK_K, tl.int64)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k0 in range(0, K, BLOCK_K):
        if EVEN_MN and EVEN_K:
            x, w = tl.load(x_ptrs), tl.load(w_ptrs)
        else:
            x = tl.load(x_ptrs, (m[:, None] < M) & (k[None, :] < K - k0), other=0.0)
            w = tl.load(w_ptrs, (k[:, None] < K - k0) & (n[None, :] < N), other=0.0)
        if UPCAST:
            x, w = x.to(tl.float32), w.to(tl.float32)
        acc = tl.dot(x, w, acc, input_precision=precision_of(x.dtype))
        x_ptrs += step * stride_xk
        w_ptrs += step * stride_wk
    acc += position.to(tl.float32) + bias.to(tl.float32)[None, :]
    y_ptrs = y_ptr + m.to(tl.int64)[:, None] * N + n[None, :]
    tl.store(y_ptrs, acc.to(y_ptr.dtype.element_ty), (m[:, None] < M) & (n[None, :] < N))


@triton.jit
def _product(
    x, w, m, n, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    UPCAST: tl.constexpr,
):  # fmt: skip
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(tl.cdiv(K, BLOCK_K)):
        a, b = x.load([m, step * BLOCK_K]), w.load([n, step * BLOCK_K])
        if UPCAST:
            a, b = a.to(tl.float32), b.to(tl.float32)
        acc = tl.dot(a, b.T, acc, input_precision=precision_of(a.dtype))
    return acc


@triton.jit
def _described(
    x, w, bias_ptr, position_ptr, y, N, K, P, stride_b, stride_pp, stride_pn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    EVEN_N: tl.constexpr, WIDE: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    table = (bias_ptr, position_ptr, N, P, stride_b, stride_pp, stride_pn)
    pid, grid_n = tl.program_id(0), tl.cdiv(N, BLOCK_N)
    # the tiles of some rows run at the same time, so that x is read from memory once
    m, n = (pid // grid_n) * BLOCK_M, (pid % grid_n) * BLOCK_N
    # on their way while the product is computed
    rows, columns = m + tl.arange(0, BLOCK_M), n + tl.arange(0, BLOCK_N)
    bias, position = _addends(table, rows, columns, EVEN_N, WIDE)
    acc = _product(x, w, m, n, K, BLOCK_M, BLOCK_N, BLOCK_K, UPCAST)
    acc += position.to(tl.float32) + bias.to(tl.float32)[None, :]
    y.store([m, n], acc.to(y.dtype))


@triton.jit
def _persistent(
    x, w, bias_ptr, position_ptr, y, M, N, K, P, stride_b, stride_pp, stride_pn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    PROGRAMS: tl.constexpr, EVEN_N: tl.constexpr, WIDE: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    table = (bias_ptr, position_ptr, N, P, stride_b, stride_pp, stride_pn)
    HALF: tl.constexpr = BLOCK_N // 2  # the store needs shared memory for one half at a time
    grid_n = tl.cdiv(N, BLOCK_N)
    tiles = tl.cdiv(M, BLOCK_M) * grid_n
    for tile_id in tl.range(tl.program_id(0), tiles, PROGRAMS, flatten=True):
        m, n = (tile_id // grid_n) * BLOCK_M, (tile_id % grid_n) * BLOCK_N
        acc = _product(x, w, m, n, K, BLOCK_M, BLOCK_N, BLOCK_K, UPCAST)
        rows, columns = m + tl.arange(0, BLOCK_M), n + tl.arange(0, HALF)
        halves = tl.permute(tl.reshape(acc, (BLOCK_M, 2, HALF)), (0, 2, 1))
        left, right = tl.split(halves)
        bias, position = _addends(table, rows, columns, EVEN_N, WIDE)
        left += position.to(tl.float32) + bias.to(tl.float32)[None, :]
        y.store([m, n], left.to(y.dtype))
        bias, position = _addends(table, rows, columns + HALF, EVEN_N, WIDE)
        right += position.to(tl.float32) + bias.to(tl.float32)[None, :]
        y.store([m, n + HALF], right.to(y.dtype))


@triton.jit
def _nth(at, grid_m, period):
    """Of rows of tiles sorted by the positions that they need: which positions, and which row."""
    times, more = grid_m // period, grid_m % period  # so many positions are met once more
    behind = at - more * (times + 1)
    which = tl.where(behind < 0, at // (times + 1), more + behind // times)
    step = tl.where(behind < 0, at % (times + 1), behind % times)
    return which, which + period * step


@triton.jit
def _recurring(
    x, w, bias_ptr, position_ptr, y, M, N, K, P, period, groups, stride_b, stride_pp, stride_pn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    FLATTEN: tl.constexpr, EVEN_N: tl.constexpr, WIDE: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    table = (bias_ptr, position_ptr, N, P, stride_b, stride_pp, stride_pn)
    HALF: tl.constexpr = BLOCK_N // 2  # the store needs shared memory for one half at a time
    grid_m, grid_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    # programs that run at the same time share their rows, so that x is read from memory once
    n, group = (tl.program_id(0) % grid_n) * BLOCK_N, tl.program_id(0) // grid_n
    rows, columns = tl.arange(0, BLOCK_M), n + tl.arange(0, HALF)
    each = tl.cdiv(grid_m, groups)
    first = group * each
    which = _nth(first, grid_m, period)[0]
    met = which * BLOCK_M + rows
    left_bias, left_position = _addends(table, met, columns, EVEN_N, WIDE)
    right_bias, right_position = _addends(table, met, columns + HALF, EVEN_N, WIDE)
    for at in tl.range(first, tl.minimum(first + each, grid_m), flatten=FLATTEN):
        m = _nth(at, grid_m, period)[1] * BLOCK_M
        acc = _product(x, w, m, n, K, BLOCK_M, BLOCK_N, BLOCK_K, UPCAST)
        left, right = tl.split(tl.permute(tl.reshape(acc, (BLOCK_M, 2, HALF)), (0, 2, 1)))
        left += left_position.to(tl.float32) + left_bias.to(tl.float32)[None, :]
        y.store([m, n], left.to(y.dtype))
        right += right_position.to(tl.float32) + right_bias.to(tl.float32)[None, :]
        y.store([m, n + HALF], right.to(y.dtype))
        following = _nth(at + 1, grid_m, period)[0]
        if following != which:
            which = following
            there = which * BLOCK_M + rows
            left_position = _addends(table, there, columns, EVEN_N, WIDE)[1]
            right_position = _addends(table, there, columns + HALF, EVEN_N, WIDE)[1]


# The pipeline of `matmul.warp_groups` over the tiles of `recurring`: `warp_groups`. A program's
# tiles have the same columns, and those of the same positions follow each other. A group of warps
# keeps its positions in registers, two in one: 64 a thread beside 128 sums of 64 x 256. Biases lie
# in shared memory. A tile's sums begin with both, so that the matrix unit adds them.


@gluon.jit
def _next_row(which, row, grid_m, period):
    """The next row of tiles with the same positions, or the first one with the following ones."""
    row += period
    if row >= grid_m:
        which += 1
        row = which
    return which, row


@gluon.jit
def _load_rows(maps, rings, bars, walk, SHAPE: gl.constexpr, FLIPPED: gl.constexpr):
    first, last, grid_m, period, n, steps = walk
    which, row = _nth(first, grid_m, period)
    slot, phase = 0, 1
    for _ in range(first, last):
        m = row * SHAPE[0]
        slot, phase = matmul._load_steps(
            maps, rings, bars, m, n, steps, slot, phase, SHAPE, FLIPPED, False
        )
        which, row = _next_row(which, row, grid_m, period)


@gluon.jit
def _pairs(table, m, n, LAYOUT: gl.constexpr, SHAPE: gl.constexpr, EVEN_N: gl.constexpr):
    """Positions of a group's rows from m and the columns from n, two in an integer."""
    position_ptr, N, P, stride_pp, stride_pn = table
    ROWS: gl.constexpr = SHAPE[0] // 2
    p = (m + gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))) % P
    columns = n + gl.arange(0, SHAPE[1], gl.SliceLayout(0, LAYOUT))
    offsets = p.to(gl.int64)[:, None] * stride_pp + columns.to(gl.int64)[None, :] * stride_pn
    if EVEN_N:
        positions = gl.load(position_ptr + offsets)
    else:
        positions = gl.load(position_ptr + offsets, columns[None, :] < N, other=0.0)
    bits = positions.to(gl.uint16, bitcast=True).to(gl.uint32)
    low, high = bits.reshape([ROWS, SHAPE[1] // 2, 2]).split()
    return low | (high << 16)


@gluon.jit
def _unpacked(pairs, DTYPE: gl.constexpr, LAYOUT: gl.constexpr):
    low = (pairs & 0xFFFF).to(gl.uint16).to(DTYPE, bitcast=True).to(gl.float32)
    high = (pairs >> 16).to(gl.uint16).to(DTYPE, bitcast=True).to(gl.float32)
    both = gl.join(low, high).reshape([pairs.shape[0], 2 * pairs.shape[1]])
    return gl.convert_layout(both, LAYOUT, assert_trivial=True)


@gluon.jit
def _embed_rows(
    W: gl.constexpr, maps, rings, buffers, bars, biases, walk, table, SHAPE: gl.constexpr,
    FLIPPED: gl.constexpr, LAG: gl.constexpr, EVEN_N: gl.constexpr,
):  # fmt: skip
    LAYOUT: gl.constexpr = matmul._sums_layout(SHAPE[1], 16)
    DTYPE: gl.constexpr = maps[0].dtype
    first, last, grid_m, period, n, steps = walk
    top = W * (SHAPE[0] // 2)
    which, row = _nth(first, grid_m, period)
    pairs = _pairs(table, which * SHAPE[0] + top, n, LAYOUT, SHAPE, EVEN_N)
    slot, phase, turn, at = 0, 0, 0, 0
    for _ in range(first, last):
        bias = biases.load(gl.SliceLayout(0, LAYOUT))
        begin = _unpacked(pairs, DTYPE, LAYOUT) + bias[None, :]
        acc, _, slot, phase = matmul._multiply_steps(
            W, rings, bars, steps, slot, phase, turn, SHAPE, FLIPPED, LAG, False, begin
        )
        turn ^= 1
        at = matmul._put_sums(maps[3], buffers, acc, row * SHAPE[0] + top, n, at)
        before = which
        which, row = _next_row(which, row, grid_m, period)
        if which != before:
            pairs = _pairs(table, which * SHAPE[0] + top, n, LAYOUT, SHAPE, EVEN_N)
    tma.store_wait(0)  # the copy engine reads shared memory, which ends with the program


@gluon.jit
def _columns_of(bias_ptr, n, N, stride_b, BLOCK_N: gl.constexpr):
    """Biases of a program's columns in shared memory."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    SHARED: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    columns = n + gl.arange(0, BLOCK_N, LAYOUT)
    bias = gl.load(bias_ptr + columns.to(gl.int64) * stride_b, columns < N, other=0.0)
    biases = gl.allocate_shared_memory(gl.float32, [BLOCK_N], SHARED, bias.to(gl.float32))
    group_barrier()
    return biases


@gluon.jit(do_not_specialize=["P", "grid_m", "grid_n", "period", "each", "steps"])
def _warp_groups(
    x, w, bias_ptr, position_ptr, y, N, P, grid_m, grid_n, period, each, steps,
    stride_b, stride_pp, stride_pn,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
    LAG: gl.constexpr, EVEN_N: gl.constexpr,
):  # fmt: skip
    SHAPE: gl.constexpr = (BLOCK_M, BLOCK_N, BLOCK_K)
    FLIPPED: gl.constexpr = (False, True)
    # programs that run at the same time share their rows, so that x is read from memory once
    n, first = gl.program_id(0) % grid_n * BLOCK_N, gl.program_id(0) // grid_n * each
    biases = _columns_of(bias_ptr, n, N, stride_b, BLOCK_N)
    rings = (matmul._ring(x, 2 * STAGES), matmul._ring(w, STAGES))
    top, bottom = matmul._ring(y, 2), matmul._ring(y, 2)
    bars = (barriers(STAGES, 1), barriers(STAGES, 2), barriers(1, 1).index(0))
    maps, table = (x, w, w, y), (position_ptr, N, P, stride_pp, stride_pn)
    walk = (first, gl.minimum(first + each, grid_m), grid_m, period, n, steps)
    gl.warp_specialize(
        [
            (_embed_rows,
             (0, maps, rings, top, bars, biases, walk, table, SHAPE, FLIPPED, LAG, EVEN_N)),
            (_embed_rows,
             (1, maps, rings, bottom, bars, biases, walk, table, SHAPE, FLIPPED, LAG, EVEN_N)),
            (_load_rows, (maps, rings, bars, walk, SHAPE, FLIPPED)),
        ],
        [4, 1],
        [232, 40],
    )  # fmt: skip


@dataclass(frozen=True)
class Tiles:
    block_m: int = among(64, 128, default=128, knob=tile)
    block_n: int = tile(64, 256, default=128)
    block_k: int = among(32, 64, default=32, knob=tile)
    num_warps: int = threads(4, 8, default=4)
    num_stages: int = stages(2, 4, default=4)


@dataclass(frozen=True)
class Persistent:
    block_m: int = among(64, 128, default=128, knob=tile)
    block_n: int = tile(64, 256, default=256)
    block_k: int = among(32, 64, default=64, knob=tile)
    num_warps: int = threads(4, 8, default=8)
    num_stages: int = stages(2, 4, default=3)


@dataclass(frozen=True)
class Recurring(Persistent):
    block_m: int = among(32, 64, 128, default=128, knob=tile)


@dataclass(frozen=True)
class WarpGroups:
    block_m: int = among(128, default=128, knob=tile)  # 64 rows for each group of warps
    block_n: int = among(128, 256, default=256, knob=tile)
    block_k: int = among(64, default=64, knob=tile)  # 128 bytes, what the copy engine swizzles
    num_stages: int = stages(3, 6, default=4)
    lag: int = among(0, 1, 2, default=1)  # steps by which the second group of warps is behind


def refuse_tiles(config, limits, *, itemsize, N, **sizes):
    """What all versions ask of registers and shared memory."""
    threads_ = config.num_warps * limits.warp_size
    held = config.block_m * config.block_n // threads_
    shared = limits.stages_bytes(config, itemsize)
    last = config.block_m * config.block_n * itemsize  # half addends, half sums to be stored
    if N % 16:  # addends that are not loaded 128 bits wide change their layout on the way
        last += last // 2
    # there the next tile's stages are already on their way
    early = limits.nvidia and isinstance(config, Persistent)
    shared = shared + last if early else max(shared, last)
    if reason := limits.refuse_sums(held):
        return reason
    if held < 8:
        return f"{config.num_warps} warps are too many for {config.block_m}x{config.block_n} sums"
    return limits.refuse_shared(shared)


def refuse_described(config, limits, *, itemsize, M, N, K, P):
    reason = limits.refuse_rows(itemsize, K=K, N=N)
    return reason or refuse_tiles(config, limits, itemsize=itemsize, N=N)


def refuse_warp_groups(config, limits, *, itemsize, M, N, K, P):
    biases = 4 * config.block_n
    return matmul.refuse_warp_groups(
        config, limits, itemsize=itemsize, M=M, N=N, K=K, beside=biases
    )


def work(config, limits, *, itemsize, M, N, K, P):
    return Work.product(config, itemsize, M=M, N=N, K=K)


def unit(x, w):
    """The largest power of two up to 16 that K and the strides of rows are multiples of."""
    return math.gcd(16, x.shape[1], x.stride(0), w.stride(0))


def wide(position, config):
    """Whether offsets into the position table, tails of tiles included, need 64 bits."""
    (P, N), (row, column) = position.shape, position.stride()
    return P * row + (N + config.block_n) * column >= 1 << 31


# 64 KB of LDS and 64 threads a warp on CDNA; 99 KB of shared memory on consumer Blackwell and Ada
SMALL = Tiles(128, 128, 32, 8, 3)
CDNA = Tiles(128, 128, 64, 4, 2)


@patch_embed.impl(
    Tiles,
    refuse=refuse_tiles,
    work=work,
    defaults={
        "fp32": Tiles(64, 64, 32, 8, 2),  # on the vector units, and twice the bytes to hold
        "fp32:sm_90": Tiles(128, 128, 32, 8, 3),
        "sm_80 sm_89 sm_120": SMALL,
        "sm_100": Tiles(128, 128, 64, 8, 3),
        "gfx90a gfx942 gfx950": CDNA,
        "gfx1100": Tiles(128, 64, 32, 4, 2),
    },
)
def tiles(x, w, bias, position, *, config):
    """One program per tile, pointers into x and w: any size or strides, even rows of 1176 bytes."""
    (M, K), N, P = x.shape, len(w), len(position)
    y, UNIT = x.new_empty(M, N), unit(x, w)
    constants = dict(UNIT=UNIT, EVEN_MN=M % config.block_m == 0 and N % config.block_n == 0)
    constants |= dict(EVEN_K=K % config.block_k == 0, WIDE=wide(position, config), UPCAST=upcast(x))
    row_strides = x.stride(0) // UNIT, x.stride(1), w.stride(0) // UNIT, w.stride(1)
    sizes = M, N, K // UNIT, P, *row_strides, *strides(bias, position)
    _tiles[(tile_count(config, M=M, N=N),)](
        x, w, bias, position, y, *sizes, **constants, **meta(config)
    )
    return y


def described_tensors(x, w, config):
    """Descriptors of x, w and y, and y. Raises ValueError where there can be none."""
    y = x.new_empty(len(x), len(w))
    BM, BN, BK = config.block_m, config.block_n, config.block_k
    halved = BN // 2 if isinstance(config, Persistent) else BN
    X, W, Y = describe("x", x, [BM, BK]), describe("w", w, [BN, BK]), describe("y", y, [BM, halved])
    return X, W, Y, y


@patch_embed.impl(
    Tiles,
    name="described",
    refuse=refuse_described,
    work=work,
    defaults={
        "fp32": Tiles(64, 64, 32, 8, 2),
        "fp32:sm_90": Tiles(128, 128, 32, 8, 3),
        "sm_80 sm_89": Tiles(64, 128, 32, 4, 3),
        "sm_90": Tiles(128, 128, 64, 4, 3),
        "sm_100": Tiles(128, 128, 64, 8, 3),
        "sm_120": SMALL,
        "gfx90a gfx942 gfx950": CDNA,
        "gfx1100": Tiles(128, 64, 32, 4, 2),
    },
)
def described(x, w, bias, position, *, config):
    """One program per tile through tensor descriptors, two a core: one computes while the other
    stores."""
    (M, K), N, P = x.shape, len(w), len(position)
    X, W, Y, y = described_tensors(x, w, config)
    constants = dict(EVEN_N=N % config.block_n == 0, WIDE=wide(position, config), UPCAST=upcast(x))
    sizes = N, K, P, *strides(bias, position)
    _described[(tile_count(config, M=M, N=N),)](
        X, W, bias, position, Y, *sizes, **constants, **meta(config)
    )
    return y


@patch_embed.impl(
    Persistent,
    refuse=refuse_described,
    work=work,
    defaults={
        "fp32": Persistent(64, 64, 32, 8, 2),
        "fp32:sm_90": Persistent(128, 128, 32, 8, 3),
        "sm_80": Persistent(128, 128, 32, 8, 3),
        "sm_89 sm_120": Persistent(128, 128, 32, 8, 2),
        "sm_100": Persistent(128, 128, 64, 8, 4),
        "gfx90a gfx942 gfx950": Persistent(128, 64, 64, 4, 2),
        "gfx1100": Persistent(128, 64, 32, 8, 2),
    },
)
def persistent(x, w, bias, position, *, config):
    """One program per core, walking its tiles through tensor descriptors: loads of the next tile
    overlap the additions and the store of this one."""
    (M, K), N, P = x.shape, len(w), len(position)
    X, W, Y, y = described_tensors(x, w, config)
    programs = min(cores(x), tile_count(config, M=M, N=N))
    constants = dict(PROGRAMS=programs, EVEN_N=N % config.block_n == 0, WIDE=wide(position, config))
    constants |= dict(UPCAST=upcast(x), **meta(config))
    _persistent[(programs,)](
        X, W, bias, position, Y, M, N, K, P, bias.stride(0), *position.stride(), **constants
    )
    return y


def recurrence(config, cores, *, M, N, P):
    """Return the rows and columns of tiles, into how many groups of programs the rows are dealt
    out, and after how many of them the same positions follow."""
    grid_m, grid_n = triton.cdiv(M, config.block_m), triton.cdiv(N, config.block_n)
    groups = max(1, min(cores // grid_n, grid_m))
    return grid_m, grid_n, groups, min(P // math.gcd(P, config.block_m), grid_m)


@patch_embed.impl(
    Recurring,
    name="recurring",
    refuse=refuse_described,
    work=work,
    defaults={
        "fp32": Recurring(32, 64, 32, 8, 2),
        "fp32:sm_90": Recurring(128, 128, 32, 8, 3),
        "sm_80": Recurring(64, 128, 32, 8, 3),
        "sm_89 sm_120": Recurring(64, 128, 32, 8, 2),
        "sm_100": Recurring(128, 128, 64, 8, 4),
        "gfx90a gfx942 gfx950": Recurring(128, 64, 64, 4, 2),
        "gfx1100": Recurring(128, 64, 32, 8, 2),
    },
)
def recurring(x, w, bias, position, *, config):
    """As persistent, but a program's tiles follow each other by their positions, which then stay in
    registers over many tiles."""
    (M, K), N, P = x.shape, len(w), len(position)
    X, W, Y, y = described_tensors(x, w, config)
    _, grid_n, groups, period = recurrence(config, cores(x), M=M, N=N, P=P)
    # registers are short where sums and positions are fp32
    constants = dict(FLATTEN=x.element_size() < 4, EVEN_N=N % config.block_n == 0)
    constants |= dict(WIDE=wide(position, config), UPCAST=upcast(x), **meta(config))
    sizes = M, N, K, P, period, groups, *strides(bias, position)
    _recurring[(groups * grid_n,)](X, W, bias, position, Y, *sizes, **constants)
    return y


@patch_embed.impl(
    WarpGroups, name="warp_groups", refuse=refuse_warp_groups, work=work, unchecked_reason=UNCHECKED
)
def warp_groups(x, w, bias, position, *, config):
    """The tiles of recurring in the pipeline of `matmul.warp_groups`: a warp loads, two groups of
    warps multiply, and sums begin with bias and position. In Gluon."""
    (M, K), N, P = x.shape, len(w), len(position)
    y, BM, BN, BK = x.new_empty(M, N), config.block_m, config.block_n, config.block_k
    X, W = describe_blocks("x", x, [BM // 2, BK]), describe_blocks("w", w, [BN, BK])
    Y = describe_blocks("y", y, [BM // 2, matmul.BUFFERS // 4 // BM])
    grid_m, grid_n, groups, period = recurrence(config, cores(x), M=M, N=N, P=P)
    each, steps = triton.cdiv(grid_m, groups), triton.cdiv(K, BK)
    lag = matmul.lag_of(config, steps)
    constants = dict(BLOCK_M=BM, BLOCK_N=BN, BLOCK_K=BK, STAGES=config.num_stages, LAG=lag)
    sizes = N, P, grid_m, grid_n, period, each, steps, *strides(bias, position)
    _warp_groups[(groups * grid_n,)](
        X, W, bias, position, Y, *sizes, **constants, EVEN_N=N % BN == 0, num_warps=4
    )
    return y


def images(y, position):
    """Rows by patch of their image; None where the last image is cut off."""
    M, P = len(y), len(position)
    return y.view(M // P, P, -1) if M % P == 0 else None


def product(x, w, bias, position):
    """cuBLAS or hipBLAS with its own bias; the position is added afterwards, in place."""
    y = torch.addmm(bias, x, w.T)
    if (by_patch := images(y, position)) is not None:
        by_patch += position
        return y
    return y.add_(position[torch.arange(len(y), device=y.device) % len(position)])


def library(x, w, bias, position):
    y = torch.nn.functional.linear(x, w, bias)
    if (by_patch := images(y, position)) is not None:
        return (by_patch + position).view(y.shape)
    return y + position[torch.arange(len(y), device=y.device) % len(position)]


patch_embed.library("addmm_add", product)
patch_embed.library("torch", library)
patch_embed.library("torch.compile", compile_call(library))
