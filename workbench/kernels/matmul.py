"""Matrix product: c = a @ b, accumulated in fp32.

At M = N = K = 4096 in bf16 it does 1365 FLOP for each byte it must move, so the matrix unit is
the limit, as long as tiles are large enough: a tile of block_m x block_n asks the cache for
2 * block_m * block_n / (block_m + block_n) FLOP's worth of each element that it loads. A few rows
(M = 16) make it memory-bound, and then only b counts.

What else costs: tiles that are not a multiple of the cores (288 on 132 take as long as 396), which
`stream_k` deals out in smaller pieces and `warp_groups` cuts; fewer tiles than cores, which
`split_k` splits along K; and rows between multiples of 16 bytes, which no descriptor describes:
`padded` copies them.

NaN and infinities in a reach their rows of c, and those in b their columns of c. An infinity times
0 is NaN.
"""

from dataclasses import dataclass, replace

import torch

from workbench.dsl import (
    INTERPRETED,
    TensorDescriptor,
    baseline,
    cores,
    describable,
    divisors,
    launch_pdl,
    meta,
    precision_of,
    strides,
    tile_count,
    tl,
    triton,
    upcast,
    widest_block,
)
from workbench.dsl.gluon import (
    UNCHECKED,
    await_launch,
    barriers,
    copy_in,
    copy_out,
    describe_blocks,
    fence_async_shared,
    gl,
    gluon,
    mbarrier,
    next_slot,
    refuse_hopper,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from workbench.spec import (
    AUTO,
    Spec,
    Tensor,
    Work,
    among,
    rms_bounds,
    stages,
    threads,
    tile,
    unaligned_rows,
    value_or,
)


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
        {"M": 72, "N": 264, "K": 136},  # columns, too
    ],
    bench=[
        {"M": 4096, "N": 4096, "K": 4096},
        {"M": 16, "N": 4096, "K": 4096},
        {"M": 8192, "N": 1024, "K": 4096},
        {"M": 1000, "N": 3000, "K": 1500},
        {"M": 3072, "N": 3072, "K": 3072},
        {"M": 64, "N": 4096, "K": 4096},
    ],
    # K products of standard normal values sum to an rms of sqrt(K). Rounding inside the sum adds
    # an error in proportion to that rms, whatever the element itself is: at K = 8192 an H200's
    # matrix unit is off by 1.5e-5 of it at most, cuBLAS alike. tf32 would be off by over 1e-3.
    tolerance=rms_bounds(fp32=5e-5, fp16=1e-4, bf16=1e-4),
    refusable=unaligned_rows("K", "N"),
)


@triton.jit
def _tiles(
    a_ptr, b_ptr, c_ptr, M, N, K, k_each, stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    EVEN_MN: tl.constexpr, EVEN_K: tl.constexpr, UPCAST: tl.constexpr,
    DIV_M: tl.constexpr, DIV_N: tl.constexpr, DIV_K: tl.constexpr,
    DIV_AM: tl.constexpr, DIV_AK: tl.constexpr, DIV_BK: tl.constexpr, DIV_BN: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    # Triton asks of a number only whether it is a multiple of 16; said so, a multiple of 4 or 8
    # is enough for loads of 8 or 16 bytes
    M, N, K = M // DIV_M * DIV_M, N // DIV_N * DIV_N, K // DIV_K * DIV_K
    stride_am, stride_ak = stride_am // DIV_AM * DIV_AM, stride_ak // DIV_AK * DIV_AK
    stride_bk, stride_bn = stride_bk // DIV_BK * DIV_BK, stride_bn // DIV_BN * DIV_BN
    pid, grid_m, grid_n = tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    pid_m, pid_n = tl.swizzle2d(pid // grid_n, pid % grid_n, grid_m, grid_n, GROUP_M)
    m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    n = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    part = tl.program_id(1)
    k_from = part * k_each
    k_to = tl.minimum(k_from + k_each, K)
    k = tl.arange(0, BLOCK_K)
    # int64: an element may lie more than 2^31 elements from the first
    a_ptrs = a_ptr + m.to(tl.int64)[:, None] * stride_am + k.to(tl.int64)[None, :] * stride_ak
    b_ptrs = b_ptr + k.to(tl.int64)[:, None] * stride_bk + n.to(tl.int64)[None, :] * stride_bn
    step = tl.full((), BLOCK_K, tl.int64)
    a_ptrs += step * (k_from // BLOCK_K) * stride_ak
    b_ptrs += step * (k_from // BLOCK_K) * stride_bk
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k0 in range(k_from, k_to, BLOCK_K):
        if EVEN_MN and EVEN_K:  # masks cost 2 to 3 % where they are not needed
            a, b = tl.load(a_ptrs), tl.load(b_ptrs)
        elif EVEN_K:
            a = tl.load(a_ptrs, m[:, None] < M, other=0.0)
            b = tl.load(b_ptrs, n[None, :] < N, other=0.0)
        else:
            a = tl.load(a_ptrs, (m[:, None] < M) & (k[None, :] < K - k0), other=0.0)
            b = tl.load(b_ptrs, (k[:, None] < K - k0) & (n[None, :] < N), other=0.0)
        if UPCAST:
            a, b = a.to(tl.float32), b.to(tl.float32)
        acc = tl.dot(a, b, acc, input_precision=precision_of(a.dtype))
        a_ptrs += step * stride_ak
        b_ptrs += step * stride_bk
    c_ptrs = c_ptr + (part.to(tl.int64) * M + m[:, None]) * N + n[None, :]
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), (m[:, None] < M) & (n[None, :] < N))


@triton.jit
def _add_parts(
    part_ptr, c_ptr, count, PARTS: tl.constexpr, PROGRAMS: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_wait()
    for block in range(tl.program_id(0), tl.cdiv(count, BLOCK), PROGRAMS):
        i = tl.cast(block, tl.int64) * BLOCK + tl.arange(0, BLOCK)
        total = tl.zeros((BLOCK,), tl.float32)
        for part in tl.static_range(PARTS):  # always in the same order: the same bits every time
            total += tl.load(part_ptr + tl.cast(count, tl.int64) * part + i, i < count, other=0.0)
        tl.store(c_ptr + i, total.to(c_ptr.dtype.element_ty), i < count)


@triton.jit
def _multiply(a, b, acc, m, n, k, A_T: tl.constexpr, B_T: tl.constexpr, UPCAST: tl.constexpr):
    x = a.load([k, m]).T if A_T else a.load([m, k])
    y = b.load([n, k]).T if B_T else b.load([k, n])
    if UPCAST:
        x, y = x.to(tl.float32), y.to(tl.float32)
    return tl.dot(x, y, acc, input_precision=precision_of(x.dtype))


@triton.jit
def _described(
    a, b, c_ptr, M, N, K, k_each,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    A_T: tl.constexpr, B_T: tl.constexpr, DIV_N: tl.constexpr, UPCAST: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    N = N // DIV_N * DIV_N
    pid, grid_m, grid_n = tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    pid_m, pid_n = tl.swizzle2d(pid // grid_n, pid % grid_n, grid_m, grid_n, GROUP_M)
    m, n, part = pid_m * BLOCK_M, pid_n * BLOCK_N, tl.program_id(1)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(part * k_each, tl.minimum(part * k_each + k_each, K), BLOCK_K):
        acc = _multiply(a, b, acc, m, n, k, A_T, B_T, UPCAST)
    i, j = m + tl.arange(0, BLOCK_M)[:, None], n + tl.arange(0, BLOCK_N)[None, :]
    c_ptrs = c_ptr + (part.to(tl.int64) * M + i) * N + j
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), (i < M) & (j < N))


@triton.jit
def _put(c, x, m, n, M, N, POINTERS: tl.constexpr, DIV_N: tl.constexpr):
    if POINTERS:
        i = m + tl.arange(0, x.shape[0])[:, None]
        j = n + tl.arange(0, x.shape[1])[None, :]
        N = N // DIV_N * DIV_N
        tl.store(c + i.to(tl.int64) * N + j, x.to(c.dtype.element_ty), (i < M) & (j < N))
    else:
        c.store([m, n], x.to(c.dtype))


# `tiles` is None where the program walks all: then it is not an argument of the compiled kernel.
@triton.jit
def _persistent(
    a, b, c, M, N, K, tiles,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    PROGRAMS: tl.constexpr, A_T: tl.constexpr, B_T: tl.constexpr, UPCAST: tl.constexpr,
    SPLIT_STORE: tl.constexpr = True, POINTERS: tl.constexpr = False, DIV_N: tl.constexpr = 1,
):  # fmt: skip
    grid_m, grid_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    if tiles is None:
        tiles = grid_m * grid_n
    for tile_id in tl.range(tl.program_id(0), tiles, PROGRAMS, flatten=True):
        pid_m, pid_n = tl.swizzle2d(tile_id // grid_n, tile_id % grid_n, grid_m, grid_n, GROUP_M)
        m, n = pid_m * BLOCK_M, pid_n * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for step in range(tl.cdiv(K, BLOCK_K)):
            acc = _multiply(a, b, acc, m, n, step * BLOCK_K, A_T, B_T, UPCAST)
        if SPLIT_STORE:  # half the shared memory for the store leaves room for one more stage
            halves = tl.permute(tl.reshape(acc, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1))
            left, right = tl.split(halves)
            _put(c, left, m, n, M, N, POINTERS, DIV_N)
            _put(c, right, m, n + BLOCK_N // 2, M, N, POINTERS, DIV_N)
        else:
            _put(c, acc, m, n, M, N, POINTERS, DIV_N)


@triton.jit
def _stream(
    a, b, c, part_ptr, M, N, K, whole, each,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    PROGRAMS: tl.constexpr, A_T: tl.constexpr, B_T: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    _persistent(
        a, b, c, M, N, K, whole, BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M, PROGRAMS, A_T, B_T, UPCAST
    )
    pid, steps = tl.program_id(0), tl.cdiv(K, BLOCK_K)
    grid_m, grid_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    first = pid * each
    last = tl.minimum(first + each, (grid_m * grid_n - whole) * steps)
    for piece in range(2):  # no more steps than a tile has, so they lie in two tiles at most
        tile_id = first // steps + piece
        start, stop = tl.maximum(first, tile_id * steps), tl.minimum(last, (tile_id + 1) * steps)
        if start < stop:
            at = whole + tile_id
            pid_m, pid_n = tl.swizzle2d(at // grid_n, at % grid_n, grid_m, grid_n, GROUP_M)
            m, n = pid_m * BLOCK_M, pid_n * BLOCK_N
            acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
            for step in range(start - tile_id * steps, stop - tile_id * steps):
                acc = _multiply(a, b, acc, m, n, step * BLOCK_K, A_T, B_T, UPCAST)
            i, j = tl.arange(0, BLOCK_M)[:, None], tl.arange(0, BLOCK_N)[None, :]
            slot = (2 * pid + piece).to(tl.int64) * BLOCK_M
            tl.store(part_ptr + (slot + i) * BLOCK_N + j, acc)


@triton.jit
def _fix_up(
    part_ptr, c_ptr, M, N, steps, whole, each,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr, ROWS: tl.constexpr,
    PIECES: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    grid_m, grid_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    bands: tl.constexpr = BLOCK_M // ROWS
    for band in range(tl.program_id(0), (grid_m * grid_n - whole) * bands, PROGRAMS):
        tile_id = tl.cast(band // bands, tl.int32)
        i = (band % bands * ROWS + tl.arange(0, ROWS))[:, None]
        j = tl.arange(0, BLOCK_N)[None, :]
        total = tl.zeros((ROWS, BLOCK_N), tl.float32)
        begin, end = tile_id * steps, (tile_id + 1) * steps
        for piece in tl.static_range(PIECES):  # always in the same order: the same bits every time
            p = begin // each + piece
            second = (p * each < begin).to(tl.int64)  # that program began in the tile before
            slot = (2 * p + second) * BLOCK_M + i
            there = j < tl.where(p * each < end, BLOCK_N, 0)
            total += tl.load(part_ptr + slot * BLOCK_N + j, there, other=0.0)
        at = whole + tile_id
        pid_m, pid_n = tl.swizzle2d(at // grid_n, at % grid_n, grid_m, grid_n, GROUP_M)
        m, n = pid_m * BLOCK_M + i, pid_n * BLOCK_N + j
        c_ptrs = c_ptr + m.to(tl.int64) * N + n
        tl.store(c_ptrs, total.to(c_ptr.dtype.element_ty), (m < M) & (n < N))


@triton.jit
def _place(
    x_ptr, y_ptr, M, N, stride_m, stride_n, row,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, DIV_M: tl.constexpr, DIV_N: tl.constexpr,
):  # fmt: skip
    stride_m, N = stride_m // DIV_M * DIV_M, N // DIV_N * DIV_N
    m = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
    n = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]
    mask = (m < M) & (n < N)
    x = tl.load(x_ptr + m * stride_m + n.to(tl.int64) * stride_n, mask)
    tl.store(y_ptr + m * row + n, x, mask)


# One warp loads, two groups of warps multiply: `warp_groups`. A program keeps a core and walks its
# tiles. The copy engine brings a step's blocks of a and b into a slot of a ring; each group of
# warps multiplies its half of the tile's rows, the next step's product queued behind the present
# one. Its sums leave in pieces through two buffers of its own, while the ring fills for the next
# tile. Slots and phases go on from tile to tile. Blocks are powers of two: a tile of 144, 160 or
# 192 columns has a ring, sums and a buffer of their own for those beyond the first 128.
#
# Tiles that would give at most half of the cores work in a last round are cut in halves of columns.
# To deal out parts of K in a round for more than half of them was tried: 10 % slower at 2560^3.
#
# A caller may add one more step, of a second pair of matrices: c = a b + u v. The launch before
# writes u, and may have divided its rows by `units`.
#
# A launch begins before the one before it has ended: barriers and warp groups are ready when it
# has. A program fills a core's shared memory, so that none of the next launch is placed beside one
# that still works. The same in `narrow` cost 5 to 13 %, and why is not known.


def columns_beyond(block_n):
    """Return how many columns of a tile of `warp_groups` lie beyond the first 128, where that is no
    power of two in all."""
    return block_n - 128 if 128 < block_n < 256 else 0


_beyond = gluon.constexpr_function(columns_beyond)


@gluon.jit
def _tile_start(t, problem, SHAPE: gl.constexpr, HALF: gl.constexpr):
    """First row and column of a tile, or of half a tile; rows of tiles are visited in groups."""
    whole, _, grid_m, grid_n, _ = problem
    GROUP_M: gl.constexpr = SHAPE[3]
    tile_id = whole + (t - whole) // 2 if HALF else t
    first = tile_id // (GROUP_M * grid_n) * GROUP_M
    rows = gl.minimum(grid_m - first, GROUP_M)
    inside = tile_id % (GROUP_M * grid_n)
    m, n = (first + inside % rows) * SHAPE[0], inside // rows * SHAPE[1]
    if HALF:
        n += (t - whole) % 2 * (SHAPE[1] // 2)
    return m, n


@gluon.jit
def _first_columns(block, HALF: gl.constexpr, B_T: gl.constexpr):
    """A block of b in shared memory, or the first half of its columns."""
    AXIS: gl.constexpr = 0 if B_T else 1
    return block.slice(0, block.shape[AXIS] // 2, AXIS) if HALF else block


@gluon.jit
def _load_step(
    maps, rings, bars, m, n, k, slot, phase, SHAPE: gl.constexpr, FLIPPED: gl.constexpr,
    HALF: gl.constexpr,
):  # fmt: skip
    full, free, _ = bars
    MORE: gl.constexpr = len(rings) == 3
    A_T: gl.constexpr = FLIPPED[0]
    B_T: gl.constexpr = FLIPPED[1]
    of_a, of_b, of_less = maps
    if HALF:
        of_b = of_less
    BYTES: gl.constexpr = 2 * of_a.block_type.nbytes + of_b.block_type.nbytes
    MORE_BYTES: gl.constexpr = of_less.block_type.nbytes if MORE else 0
    bar = full.index(slot)
    mbarrier.wait(free.index(slot), phase)
    mbarrier.expect(bar, BYTES + MORE_BYTES)
    for w in gl.static_range(2):
        row = m + w * (SHAPE[0] // 2)
        copy_in(of_a, [k, row] if A_T else [row, k], bar, rings[0].index(2 * slot + w))
    block = _first_columns(rings[1].index(slot), HALF, B_T)
    copy_in(of_b, [n, k] if B_T else [k, n], bar, block)
    if MORE:
        further = n + 128
        block = rings[2].index(slot)
        copy_in(of_less, [further, k] if B_T else [k, further], bar, block)
    return next_slot(slot, phase, full.shape[0])


@gluon.jit
def _load_steps(
    maps, rings, bars, m, n, steps, slot, phase, SHAPE: gl.constexpr, FLIPPED: gl.constexpr,
    HALF: gl.constexpr,
):  # fmt: skip
    """Load the blocks of a tile's steps; the last one is of u and v, where there are their maps."""
    UPDATE: gl.constexpr = len(maps) == 8
    for i in range(steps - 1 if UPDATE else steps):
        k = i * SHAPE[2]
        slot, phase = _load_step(maps[:3], rings, bars, m, n, k, slot, phase, SHAPE, FLIPPED, HALF)
    if UPDATE:
        await_launch()
        slot, phase = _load_step(maps[5:], rings, bars, m, n, 0, slot, phase, SHAPE, FLIPPED, HALF)
    return slot, phase


@gluon.jit
def _load_tiles(
    maps, rings, bars, problem, slot, phase, SHAPE: gl.constexpr, FLIPPED: gl.constexpr,
    HALF: gl.constexpr,
):  # fmt: skip
    whole, count, _, _, steps = problem
    programs = gl.num_programs(0)
    first, last = (whole, count) if HALF else (0, whole)
    for t in range(first + gl.program_id(0), last, programs):
        m, n = _tile_start(t, problem, SHAPE, HALF)
        slot, phase = _load_steps(maps, rings, bars, m, n, steps, slot, phase, SHAPE, FLIPPED, HALF)
    return slot, phase


@gluon.jit
def _load_all(
    maps, rings, bars, problem, SHAPE: gl.constexpr, FLIPPED: gl.constexpr, CUT: gl.constexpr
):
    slot, phase = 0, 1
    if len(maps) == 5:  # else u is awaited, and the launch for u has waited for a and b
        await_launch()
    slot, phase = _load_tiles(maps, rings, bars, problem, slot, phase, SHAPE, FLIPPED, False)
    if CUT:
        _load_tiles(maps, rings, bars, problem, slot, phase, SHAPE, FLIPPED, True)


@gluon.constexpr_function
def _sums_layout(width, bits):
    """Layout of a group's sums, so many columns; an instruction takes 256 bits of each row."""
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, width, 256 // bits])


@gluon.jit
def _start_product(
    W: gl.constexpr, rings, slot, acc, more, ADD: gl.constexpr, FLIPPED: gl.constexpr,
    HALF: gl.constexpr,
):  # fmt: skip
    """Queue the product of one step's blocks."""
    B_T: gl.constexpr = FLIPPED[1]
    a, b = rings[0].index(2 * slot + W), _first_columns(rings[1].index(slot), HALF, B_T)
    a, b = a.permute((1, 0)) if FLIPPED[0] else a, b.permute((1, 0)) if B_T else b
    acc = warpgroup_mma(a, b, acc, use_acc=ADD, is_async=True)
    if len(rings) == 3:
        b = rings[2].index(slot)
        b = b.permute((1, 0)) if B_T else b
        more = warpgroup_mma(a, b, more, use_acc=ADD, is_async=True)
    return acc, more


@gluon.jit
def _await_products(acc, more, LEFT: gl.constexpr, MORE: gl.constexpr):
    """Wait until the products of so many steps at most are under way."""
    if MORE:
        acc, more = warpgroup_mma_wait(2 * LEFT, deps=[acc, more])
    else:
        acc = warpgroup_mma_wait(LEFT, deps=[acc])
    return acc, more


@gluon.jit
def _multiply_steps(
    W: gl.constexpr, rings, bars, steps, slot, phase, turn, SHAPE: gl.constexpr,
    FLIPPED: gl.constexpr, LAG: gl.constexpr, HALF: gl.constexpr, begin=None,
):  # fmt: skip
    """Sums of this group's rows of a tile, with slot and phase after its steps. They begin with
    those of `begin`, where it is given."""
    full, free, begun = bars
    MORE: gl.constexpr = len(rings) == 3
    STAGES: gl.constexpr = full.shape[0]
    WIDTH: gl.constexpr = 128 if MORE else SHAPE[1] // 2 if HALF else SHAPE[1]
    BITS: gl.constexpr = rings[0].dtype.primitive_bitwidth
    LAYOUT: gl.constexpr = _sums_layout(WIDTH, BITS)
    MORE_WIDTH: gl.constexpr = _beyond(SHAPE[1])
    MORE_LAYOUT: gl.constexpr = _sums_layout(MORE_WIDTH, BITS)
    ADD: gl.constexpr = begin is not None
    # a first product that does not add takes an operand all the same
    acc = begin if ADD else gl.zeros([SHAPE[0] // 2, WIDTH], gl.float32, LAYOUT)
    more = gl.zeros([SHAPE[0] // 2, MORE_WIDTH], gl.float32, MORE_LAYOUT) if MORE else 0
    if LAG > 0 and W == 1:
        mbarrier.wait(begun, turn)
    mbarrier.wait(full.index(slot), phase)
    acc, more = _start_product(W, rings, slot, acc, more, ADD, FLIPPED, HALF)
    acc, more = _await_products(acc, more, 1, MORE)
    for i in range(1, steps):
        before = slot
        slot, phase = next_slot(slot, phase, STAGES)
        mbarrier.wait(full.index(slot), phase)
        acc, more = _start_product(W, rings, slot, acc, more, True, FLIPPED, HALF)
        acc, more = _await_products(acc, more, 1, MORE)
        mbarrier.arrive(free.index(before))
        if LAG > 0 and W == 0:
            mbarrier.arrive(begun, pred=i == LAG)
    acc, more = _await_products(acc, more, 0, MORE)
    mbarrier.arrive(free.index(slot))
    slot, phase = next_slot(slot, phase, STAGES)
    return acc, more, slot, phase


@gluon.jit
def _divided_by(units, m, sums, DIVIDE: gl.constexpr):
    """Sums with their rows divided by powers of two, or multiplied again: nothing is lost."""
    i = gl.arange(0, sums.shape[0], gl.SliceLayout(1, sums.type.layout))
    unit = gl.load(units + (m + i))
    return sums * (1.0 / unit if DIVIDE else unit)[:, None]


@gluon.jit
def _multiply_tile(
    W: gl.constexpr, rings, bars, units, m, steps, slot, phase, turn, SHAPE: gl.constexpr,
    FLIPPED: gl.constexpr, LAG: gl.constexpr, HALF: gl.constexpr,
):  # fmt: skip
    """As `_multiply_steps`, where rows of the last step's u may have been divided by `units`."""
    if units is None:
        return _multiply_steps(W, rings, bars, steps, slot, phase, turn, SHAPE, FLIPPED, LAG, HALF)
    else:
        full, free, _ = bars
        MORE: gl.constexpr = len(rings) == 3
        acc, more, slot, phase = _multiply_steps(
            W, rings, bars, steps - 1, slot, phase, turn, SHAPE, FLIPPED, LAG, HALF
        )
        mbarrier.wait(full.index(slot), phase)
        await_launch()
        acc = _divided_by(units, m, acc, True)
        more = _divided_by(units, m, more, True) if MORE else more
        acc, more = _start_product(W, rings, slot, acc, more, True, FLIPPED, HALF)
        acc, more = _await_products(acc, more, 0, MORE)
        mbarrier.arrive(free.index(slot))
        acc = _divided_by(units, m, acc, False)
        more = _divided_by(units, m, more, False) if MORE else more
        slot, phase = next_slot(slot, phase, full.shape[0])
        return acc, more, slot, phase


@gluon.jit
def _pieces(sums, WIDTH: gl.constexpr):
    """Sums cut into pieces of so many columns, from left to right: registers are renamed."""
    if sums.shape[1] == WIDTH:
        return (sums,)
    else:
        HALF: gl.constexpr = sums.shape[1] // 2
        left, right = sums.reshape([sums.shape[0], 2, HALF]).permute((0, 2, 1)).split()
        return _pieces(left, WIDTH) + _pieces(right, WIDTH)


@gluon.jit
def _put_piece(c, buffers, sums, m, n, at):
    """Store a piece when the store before the last has left its buffer. Returns the next buffer.
    Sums beyond 128 columns have one buffer, and two stores of others between theirs."""
    tma.store_wait(1)
    buffers.index(at).store(sums.to(c.dtype))
    fence_async_shared()
    copy_out(c, [m, n], buffers.index(at))
    return at ^ 1


@gluon.jit
def _put_sums(c, buffers, sums, m, n, at):
    WIDTH: gl.constexpr = buffers.shape[2]
    pieces = _pieces(sums, WIDTH)
    for i in gl.static_range(len(pieces)):
        at = _put_piece(c, buffers, pieces[i], m, n + i * WIDTH, at)
    return at


@gluon.jit
def _multiply_tiles(
    W: gl.constexpr, maps, rings, buffers, bars, problem, units, state, SHAPE: gl.constexpr,
    FLIPPED: gl.constexpr, LAG: gl.constexpr, HALF: gl.constexpr,
):  # fmt: skip
    whole, count, _, _, steps = problem
    programs = gl.num_programs(0)
    slot, phase, turn, at = state
    first, last = (whole, count) if HALF else (0, whole)
    for t in range(first + gl.program_id(0), last, programs):
        m, n = _tile_start(t, problem, SHAPE, HALF)
        m += W * (SHAPE[0] // 2)
        acc, more, slot, phase = _multiply_tile(
            W, rings, bars, units, m, steps, slot, phase, turn, SHAPE, FLIPPED, LAG, HALF
        )
        turn ^= 1
        at = _put_sums(maps[3], buffers[0], acc, m, n, at)
        if len(rings) == 3:
            _put_piece(maps[4], buffers[1], more, m, n + 128, 0)
    return slot, phase, turn, at


@gluon.jit
def _multiply_all(
    W: gl.constexpr, maps, rings, buffers, bars, problem, units, SHAPE: gl.constexpr,
    FLIPPED: gl.constexpr, LAG: gl.constexpr, CUT: gl.constexpr,
):  # fmt: skip
    slot, phase, turn, at = 0, 0, 0, 0
    state = _multiply_tiles(
        W, maps, rings, buffers, bars, problem, units, (slot, phase, turn, at), SHAPE, FLIPPED,
        LAG, False,
    )  # fmt: skip
    if CUT:
        _multiply_tiles(
            W, maps, rings, buffers, bars, problem, units, state, SHAPE, FLIPPED, LAG, True
        )
    tma.store_wait(0)  # the copy engine reads shared memory, which ends with the program


@gluon.jit
def _ring(descriptor, SLOTS: gl.constexpr):
    """Slots in shared memory for blocks of a descriptor."""
    BLOCK: gl.constexpr = descriptor.block_type.shape
    return gl.allocate_shared_memory(
        descriptor.dtype, [SLOTS, BLOCK[0], BLOCK[1]], descriptor.layout
    )


@gluon.jit
def _rings(a, b, b_less, c_less, STAGES: gl.constexpr):
    """Rings for the blocks of a step: of a, a slot for each group, of b, and of its columns beyond
    128, where sums of them are stored by a descriptor of their own."""
    if c_less is None:
        return (_ring(a, 2 * STAGES), _ring(b, STAGES))
    else:
        return (_ring(a, 2 * STAGES), _ring(b, STAGES), _ring(b_less, STAGES))


@gluon.jit
def _buffers(c, c_less):
    """Shared memory through which a group's sums leave: two buffers, and one for those beyond 128
    columns."""
    if c_less is None:
        return (_ring(c, 2),)
    else:
        return (_ring(c, 2), _ring(c_less, 1))


@gluon.jit(do_not_specialize=["whole", "count", "grid_m", "grid_n", "steps"])
def _warp_groups(
    a, b, b_less, c, c_less, u, v, v_less, units, whole, count, grid_m, grid_n, steps,
    BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr,
    GROUP_M: gl.constexpr, A_T: gl.constexpr, B_T: gl.constexpr, LAG: gl.constexpr,
    CUT: gl.constexpr,
):  # fmt: skip
    SHAPE: gl.constexpr = (BLOCK_M, BLOCK_N, BLOCK_K, GROUP_M)
    FLIPPED: gl.constexpr = (A_T, B_T)
    rings = _rings(a, b, b_less, c_less, STAGES)
    top, bottom = _buffers(c, c_less), _buffers(c, c_less)
    bars = (barriers(STAGES, 1), barriers(STAGES, 2), barriers(1, 1).index(0))
    maps = (a, b, b_less, c, c if c_less is None else c_less)
    problem = (whole, count, grid_m, grid_n, steps)
    if u is not None:  # alone: Triton 3.6's launcher finds no descriptor in a tuple
        maps = maps + (u, v, v_less)
    gl.warp_specialize(
        [
            (_multiply_all,
             (0, maps, rings, top, bars, problem, units, SHAPE, FLIPPED, LAG, CUT)),
            (_multiply_all,
             (1, maps, rings, bottom, bars, problem, units, SHAPE, FLIPPED, LAG, CUT)),
            (_load_all, (maps, rings, bars, problem, SHAPE, FLIPPED, CUT)),
        ],
        [4, 1],
        [232, 40],
    )  # fmt: skip


@dataclass(frozen=True)
class Tiles:
    block_m: int = tile(16, 256, default=128)
    block_n: int = tile(16, 256, default=256)
    block_k: int = tile(32, 128, default=64)
    num_warps: int = threads(1, 16, default=8)
    num_stages: int = stages(2, 4, default=3)
    group_m: int = among(1, 4, 8, 16, default=8)


@dataclass(frozen=True)
class Narrow:
    block_m: int = among(16, 64, default=64, knob=tile)
    block_n: int = tile(32, 128, default=AUTO)  # the widest that gives 3 of 4 cores a tile
    block_k: int = tile(64, 128, default=128)
    num_warps: int = threads(2, 8, default=4)
    buffers_kb: int = among(48, 96, 192, default=192)  # shared memory, which sets the stages
    descriptors: int = among(0, 1, default=0)  # where rows suit them and fill a tile


@dataclass(frozen=True)
class SplitK:
    block_m: int = among(16, 64, 128, default=64, knob=tile)
    block_n: int = tile(64, 128, default=128)
    block_k: int = tile(64, 128, default=128)
    num_warps: int = threads(4, 8, default=8)
    num_stages: int = stages(3, 4, default=4)
    split: int = among(1, 2, 4, 8, default=AUTO)  # parts of K: as many as fill the cores
    descriptors: int = among(0, 1, default=0)  # where rows suit them and fill a tile
    pdl: int = among(0, 1, default=0)  # the second launch begins before the first one has ended


@dataclass(frozen=True)
class Persistent:
    block_m: int = tile(64, 256, default=128)
    block_n: int = tile(64, 256, default=256)
    block_k: int = tile(32, 128, default=64)
    num_warps: int = threads(4, 8, default=8)
    num_stages: int = stages(2, 4, default=4)
    group_m: int = among(1, 4, 8, 16, default=8)
    split_store: int = among(0, 1, default=1)


@dataclass(frozen=True)
class Padded:
    block_m: int = tile(64, 128, default=128)
    block_n: int = tile(64, 256, default=256)
    block_k: int = tile(32, 64, default=64)
    num_warps: int = threads(4, 8, default=8)
    num_stages: int = stages(2, 4, default=4)


@dataclass(frozen=True)
class StreamK:
    block_m: int = tile(64, 128, default=128)
    block_n: int = tile(64, 256, default=256)
    block_k: int = tile(32, 64, default=64)
    num_warps: int = threads(4, 8, default=8)
    num_stages: int = stages(2, 4, default=4)
    # percent of the cores that the last round may occupy to be streamed
    stream_below: int = among(50, 75, 100, default=50)


@dataclass(frozen=True)
class WarpGroups:
    block_m: int = among(128, 256, default=AUTO, knob=tile)  # by the rounds of tiles
    block_n: int = among(128, 144, 160, 192, 256, default=AUTO, knob=tile)
    block_k: int = among(64, default=64, knob=tile)  # 128 bytes, what the copy engine swizzles
    num_stages: int = stages(3, 6, default=AUTO)  # see `depth_of`
    group_m: int = among(1, 4, 8, 16, default=8)
    halves: int = among(0, 1, default=1)  # of tiles, in a last round for half the cores at most
    lag: int = among(0, 1, 2, default=0)  # steps by which the second group of warps is behind


def refuse_tiles(config, limits, *, itemsize, **sizes):
    """What all versions ask of registers and shared memory."""
    threads_ = config.num_warps * limits.warp_size
    held = config.block_m * config.block_n // threads_
    shared = limits.stages_bytes(config, itemsize)
    if reason := limits.refuse_sums(held):
        return reason
    if held > 64 and threads_ >= 512:
        return f"{threads_} threads leave each 128 registers, too few for {held} sums"
    if held < 8 and config.num_warps > 1:
        return f"{config.num_warps} warps are too many for {config.block_m}x{config.block_n} sums"
    if itemsize > 2 and limits.fp32_in_parts:  # three bf16 parts of b in place of a stage
        stages = (config.num_stages - 1) * (config.block_m + config.block_n) * config.block_k
        shared = max(shared, 4 * stages + 6 * config.block_n * config.block_k)
    return limits.refuse_shared(shared)


def refuse_padded(config, limits, *, itemsize, **sizes):
    """The same of what stores a tile, or half of it, while the stages of the next are loaded."""
    if not limits.nvidia:  # elsewhere nothing is on its way then
        return refuse_tiles(config, limits, itemsize=itemsize)
    stage = (config.block_m + config.block_n) * config.block_k * itemsize
    # fp32 is multiplied from registers, so that one stage less has to lie there
    stages_bytes = (config.num_stages - (itemsize > 2)) * stage
    parts = 1 + getattr(config, "split_store", 1)
    shared = stages_bytes + config.block_m * config.block_n * itemsize // parts
    reason = limits.refuse_shared(shared, "stages and what is stored meanwhile")
    return reason or refuse_tiles(config, limits, itemsize=itemsize)


def refuse_placed(config, limits, *, itemsize, M, N, K):
    """The same, and of a copy's grid, whose second axis has a program for 256 of a row. Sizes that
    need no copy are not refused: rows of a view may, and sizes do not tell of them."""
    copied = max((n for n in (N, K) if n * itemsize % 16), default=1)
    reason = limits.refuse_grid(-(-copied // 256))
    return reason or refuse_padded(config, limits, itemsize=itemsize)


def refuse_narrow(config, limits, *, itemsize, M, N, K):
    return refuse_tiles(tiles_of(config, itemsize), limits, itemsize=itemsize)


def narrow_work(config, limits, *, itemsize, M, N, K):
    tiles = tiles_of(config, itemsize)
    whole = work(tiles, limits, itemsize=itemsize, M=M, N=N, K=K)
    return replace(whole, stages=tiles.num_stages, by_element=bool(K % 16 or N % 16))


def size_width(config, limits, *, itemsize, M, N, K):
    """Return the config of `narrow` with the widest tile that gives 3 of 4 cores one."""
    wide = widest_block(limits, -(-M // config.block_m), N, (128, 64, 32))
    return replace(config, block_n=value_or(config.block_n, wide))


def tiles_of(config, itemsize):
    """Return the tiles of a config of `narrow`, with as many stages as its buffers hold."""
    stage = (config.block_m + config.block_n) * config.block_k * itemsize
    depth = max(2, min(8, 1024 * config.buffers_kb // stage))
    return Tiles(config.block_m, config.block_n, config.block_k, config.num_warps, depth, 8)


def refuse_split_k(config, limits, *, itemsize, M, N, K):
    parts, _ = parts_of(config, M, N, K)
    if parts > 1 and parts * M * N > 1 << 30:
        sums = f"{parts} parts of {M}x{N} fp32 sums"
        return f"{sums} would need over 4 GiB of memory beside the output"
    if config.pdl and (reason := limits.refuse_pdl()):
        return reason
    return refuse_tiles(config, limits, itemsize=itemsize)


def refuse_described(config, limits, *, itemsize, M, N, K):
    reason = limits.refuse_rows(itemsize, K=K, N=N)
    return reason or refuse_padded(config, limits, itemsize=itemsize)


# Tiles of `warp_groups`, and the time that each takes for its area, of that of the first, on an
# H200. Columns beyond 128 are a product of their own, which reads a from shared memory again: 16
# of them cost more than their share. 128x128 takes 0.97 to 1.02 where many launches follow one
# another, at the clock that 700 W allow, and 1.04 to 1.06 in bursts of 0.2 ms. Of the six tiles at
# 23 sizes from 512 rows on, b by rows and by columns, in many launches, the default takes 3 % more
# than the fastest at most, 0.4 % on average. Half of a tile is a smaller one, in slots of which
# half are empty.
PACES = {
    (128, 256): 1.0, (256, 128): 1.01, (128, 192): 1.02, (128, 160): 1.1, (128, 144): 1.15,
    (128, 128): 1.03,
}  # fmt: skip
HALF_PACES = {(128, 256): 1.25, (256, 128): 1.5, (128, 128): 1.1}
BUFFERS = 32 * 1024  # bytes of shared memory through which sums of `warp_groups` leave


def size_warp_groups(config, limits, *, itemsize, M, N, K, paces=PACES):
    """Return the config with the tile whose rounds over the cores take the least time, and with as
    many stages as fit, but for two tiles no more than are faster: see `depth_of`."""

    def fit(shape):
        return all(value_or(x, edge) == edge for x, edge in zip(requested, shape, strict=True))

    def time(shape):
        BM, BN = shape
        tiles = -(-M // BM) * -(-N // BN)
        cut = replace(config, block_m=BM, block_n=BN)
        programs, whole, count = rounds_of(cut, limits.cores, tiles)
        rounds = -(-whole // programs) * paces[shape]
        if count > whole:
            rounds += HALF_PACES[shape] / 2
        return rounds * BM * BN

    requested = (config.block_m, config.block_n)
    BM, BN = min(filter(fit, paces), key=time, default=requested)
    stage = (BM + BN) * config.block_k * itemsize
    room = (limits.shared_bytes - buffers_bytes(BM, BN) - 1024) // stage
    config = replace(config, block_m=BM, block_n=BN)
    _, whole, count = rounds_of(config, limits.cores, -(-M // BM) * -(-N // BN))
    depth = max(3, min(depth_of(BM, BN, count > whole), room))
    return replace(config, num_stages=value_or(config.num_stages, depth))


def depth_of(BM, BN, halves):
    """Return the most stages that pay. On an H100, b by rows and by columns, in random order: tiles
    of 128x144 take 0.93 and 0.97 of the time of 5 stages with 4, and whole ones of 128x128 0.96 to
    1.00 of that of 6 with 5 at six sizes (1.01 at 1024^3). Where halves of these follow, whose
    slots are half empty, 6 are faster at some sizes, by up to 5 %, and slower at others, by up to
    3 %."""
    if BN == 144:
        return 4
    return 5 if (BM, BN) == (128, 128) and not halves else 6


def buffers_bytes(BM, BN):
    """Return the bytes of shared memory through which sums of a tile leave."""
    return BUFFERS + 2 * BM * columns_beyond(BN)


def rounds_of(config, cores, tiles):
    """Return the programs of `warp_groups`, the tiles that they multiply whole, and the count of
    these and of the halves that follow."""
    rest = tiles % cores
    if config.halves and config.block_n in (128, 256) and 0 < 2 * rest <= cores:
        return min(cores, tiles + rest), tiles - rest, tiles + rest
    return min(cores, tiles), tiles, tiles


def refuse_warp_groups(config, limits, *, itemsize, M, N, K, beside=0):
    """Return why a pipeline of warp groups does not fit, with `beside` bytes more in shared
    memory."""
    if reason := refuse_hopper(limits):
        return reason
    if itemsize != 2:
        return "its products are of 16-bit inputs"
    reason = limits.refuse_rows(itemsize, K=K, N=N)
    return reason or refuse_ring(config, limits, itemsize, beside)


def refuse_ring(config, limits, itemsize, beside):
    """Return why the sums do not fit in registers, or the ring in shared memory."""
    if reason := limits.refuse_sums(config.block_m * config.block_n // 256):
        return reason
    buffers = buffers_bytes(config.block_m, config.block_n)
    needed = limits.stages_bytes(config, itemsize) + buffers + beside + 1024
    return limits.refuse_shared(needed, "stages and what is stored meanwhile")


def size_split(config, limits, *, itemsize, M, N, K):
    """Return the config of `split_k` with as many parts as fill the cores, of four steps each at
    least: fewer would not fill the pipeline."""
    steps = -(-K // config.block_k)
    fill = max(1, min(limits.cores // tile_count(config, M=M, N=N), steps // 4))
    return replace(config, split=value_or(config.split, fill))


def parts_of(config, M, N, K):
    """Into how many parts K is split, and how long each is: a multiple of block_k."""
    steps = triton.cdiv(K, config.block_k)
    each = triton.cdiv(steps, min(config.split, steps)) * config.block_k
    return triton.cdiv(K, each), each


def work(config, limits, *, itemsize, M, N, K):
    band = getattr(config, "group_m", 8)
    return Work.product(config, itemsize, M=M, N=N, K=K, band=band)


def tiles_work(config, limits, *, itemsize, M, N, K):
    whole = work(config, limits, itemsize=itemsize, M=M, N=N, K=K)
    return replace(whole, by_element=bool(K % 16 or N % 16))


def split_k_work(config, limits, *, itemsize, M, N, K):
    parts, each = parts_of(config, M, N, K)
    whole = work(config, limits, itemsize=itemsize, M=M, N=N, K=each)
    if parts == 1:
        return whole
    sums = 4 * config.block_m * config.block_n
    return replace(whole, tiles=parts * whole.tiles, store_bytes=sums)


def launch_tiles(a, b, c, config, parts, each, group_m, descriptors=False, pdl=False):
    """c = a @ b, or the `parts` partial sums of it that c has room for."""
    (M, K), (_, N) = a.shape, b.shape
    # the copy engine takes as long to fill a tile with zeros as with numbers
    whole = descriptors and config.block_m <= M
    of_a, of_b = (rows_of(a), rows_of(b)) if whole else (None, None)
    BM, BN, BK = config.block_m, config.block_n, config.block_k
    grid = tile_count(config, M=M, N=N), parts
    constants = {**meta(config), "GROUP_M": group_m, "UPCAST": upcast(a), "PDL": pdl}
    if of_a and of_b:
        flipped = {"A_T": of_a[1], "B_T": of_b[1]}
        of_a, of_b = descriptor(*of_a, [BM, BK]), descriptor(*of_b, [BK, BN])
        _described[grid](of_a, of_b, c, M, N, K, each, **flipped, **divisors(N=N), **constants)
        return
    constants |= evenness(a, b, config)
    _tiles[grid](a, b, c, M, N, K, each, *strides(a, b), **constants)


def evenness(a, b, config):
    """Return what `_tiles` is told of its sizes and strides: whether tiles fill the matrices, and
    powers of two to round by."""
    (M, K), (_, N), (AM, AK), (BK, BN) = a.shape, b.shape, a.stride(), b.stride()
    even = dict(EVEN_MN=M % config.block_m == 0 and N % config.block_n == 0)
    even |= dict(EVEN_K=K % config.block_k == 0, **divisors(AM=AM, AK=AK, BK=BK, BN=BN))
    # rows vary from call to call, and matter to the loads of a transposed a alone
    return even | divisors(M=M if AM == 1 else 1, N=N, K=K)


# 64 KB of LDS and 64 threads a warp on CDNA; 99 KB of shared memory on consumer Blackwell and Ada
SMALL = Tiles(block_m=128, block_n=128, block_k=32, num_warps=4, num_stages=3)
CDNA = Tiles(block_m=128, block_n=128, block_k=64, num_warps=4, num_stages=2)
RDNA = Tiles(block_m=128, block_n=64, block_k=32, num_warps=4, num_stages=2)


@matmul.impl(
    Tiles,
    refuse=refuse_tiles,
    work=tiles_work,
    defaults={
        "fp32": Tiles(64, 64, 32, 8, 2),  # on the vector units, and twice the bytes to hold
        "fp32:sm_90": Tiles(128, 64, 32, 8, 3),
        "sm_80 sm_89 sm_120": SMALL,
        "gfx90a gfx942 gfx950": CDNA,
        "gfx1100": RDNA,
    },
)
def tiles(a, b, *, config):
    """One program per tile, pointers into a and b: takes any size and any strides."""
    (M, K), (_, N) = a.shape, b.shape
    c = a.new_empty(M, N)
    launch_tiles(a, b, c, config, 1, K + -K % config.block_k, config.group_m)
    return c


@matmul.impl(
    Narrow,
    resolve=size_width,
    refuse=refuse_narrow,
    work=narrow_work,
    defaults={
        "fp32": Narrow(64, 64, 64, 8, 96),
        "fp32:sm_90": Narrow(64, AUTO, 32, 4, 96),
        "sm_90 sm_100": Narrow(descriptors=1),
        "sm_80": Narrow(64, AUTO, 64, 4, 96),
        "sm_89 sm_120 gfx90a gfx942 gfx950": Narrow(64, AUTO, 64, 4, 48),
        "gfx1100": Narrow(64, 64, 64, 4, 48),
    },
)
def narrow(a, b, *, config):
    """As tiles, so narrow that each core has one, and a deep pipeline: with few rows the bytes of b
    on their way count, and 4.2 TB/s for 0.76 us on an H200 are 24 KB a core. Descriptors take the
    addresses of so many loads off the warps."""
    (M, K), (_, N) = a.shape, b.shape
    c = a.new_empty(M, N)
    tiled = tiles_of(config, a.element_size())
    launch_tiles(a, b, c, tiled, 1, K + -K % config.block_k, 8, bool(config.descriptors))
    return c


@matmul.impl(
    SplitK,
    resolve=size_split,
    refuse=refuse_split_k,
    work=split_k_work,
    defaults={
        "fp32": SplitK(64, 64, 64, 8, 3),
        "fp32:sm_90": SplitK(64, 128, 32, 4, 3),
        "sm_90": SplitK(num_warps=4, descriptors=1, pdl=1),
        "sm_80 sm_89 sm_120 gfx90a gfx942 gfx950 gfx1100": SplitK(64, 128, 64, 4, 3),
    },
)
def split_k(a, b, *, config):
    """K in parts, one program per tile and part, whose fp32 sums a second launch adds: fills the
    cores if the output has fewer tiles than cores, as with few rows."""
    (M, K), (_, N) = a.shape, b.shape
    c = a.new_empty(M, N)
    parts, each = parts_of(config, M, N, K)
    descriptors = bool(config.descriptors)
    if parts == 1:
        launch_tiles(a, b, c, config, 1, each, 8, descriptors)
        return c
    pdl = bool(config.pdl) and not INTERPRETED
    sums = a.new_empty(parts, M, N, dtype=torch.float32)
    launch_tiles(a, b, sums, config, parts, each, 8, descriptors, pdl)
    programs = min(triton.cdiv(M * N, 2048), parts * tile_count(config, M=M, N=N))
    constants = dict(PARTS=parts, PROGRAMS=programs, BLOCK=2048, PDL=pdl, num_warps=8)
    _add_parts[(programs,)](sums, c, M * N, **constants, **launch_pdl(pdl))
    return c


def rows_of(x):
    """x, and False, or x transposed, and True: whichever has rows that a descriptor can describe.
    None where neither has."""
    return next(((y, y is not x) for y in (x, x.T) if describable(y)), None)


def describe_tensors(named):
    """Each tensor's rows and whether they are those of its transpose. Raises ValueError."""
    hits = {name: rows_of(x) for name, x in named.items()}
    if odd := [name for name, rows in hits.items() if rows is None]:
        raise ValueError(
            f"{odd[0]} must have dense rows or columns that start at multiples of 16 bytes"
        )
    return hits.values()


def descriptor(rows, flipped, block):
    return TensorDescriptor.from_tensor(rows, block[::-1] if flipped else block)


def tile_defaults(kind, *rdna):
    """Return the defaults of a scheme through descriptors; `rdna` is its tile on gfx1100."""
    return {
        "fp32": kind(64, 64, 32, 8, 2),
        "fp32:sm_90": kind(128, 128, 32, 8, 3),
        "sm_80": kind(128, 128, 32, 8, 3),
        "sm_89 sm_120": kind(128, 128, 32, 8, 2),
        "gfx90a gfx942 gfx950": kind(128, 128, 64, 4, 2),
        "gfx1100": kind(*(rdna or (128, 64)), 32, 8, 2),
    }


@matmul.impl(Persistent, refuse=refuse_described, work=work, defaults=tile_defaults(Persistent))
def persistent(a, b, *, config):
    """One program per core, which walks its tiles through tensor descriptors: the copy engine
    computes the addresses, and the store of one tile overlaps the loads of the next."""
    c = a.new_empty(a.shape[0], b.shape[1])
    of_a, of_b, _ = describe_tensors({"a": a, "b": b, "c": c})
    launch_persistent(of_a, of_b, c, config, config.group_m, bool(config.split_store))
    return c


def launch_persistent(of_a, of_b, c, config, group_m, split_store):
    """Through descriptors, but into c by pointers where its rows suit no descriptor."""
    (a, a_t), (b, b_t), (M, N) = of_a, of_b, c.shape
    BM, BN, BK = config.block_m, config.block_n, config.block_k
    programs = min(cores(a), tile_count(config, M=M, N=N))
    pointers = rows_of(c) is None
    c_block = [BM, BN // 2 if split_store else BN]
    of_c = c if pointers else TensorDescriptor.from_tensor(c, c_block)
    K = a.shape[0] if a_t else a.shape[1]
    constants = {**meta(config), "GROUP_M": group_m, "PROGRAMS": programs, "UPCAST": upcast(a)}
    constants |= dict(SPLIT_STORE=split_store, A_T=a_t, B_T=b_t, POINTERS=pointers)
    constants |= divisors(N=N if pointers else 1)
    of_a, of_b = descriptor(a, a_t, [BM, BK]), descriptor(b, b_t, [BK, BN])
    _persistent[(programs,)](of_a, of_b, of_c, M, N, K, None, **constants)


@matmul.impl(Padded, refuse=refuse_placed, work=work, defaults=tile_defaults(Padded))
def padded(a, b, *, config):
    """As persistent, after copying an input whose rows start between multiples of 16 bytes into
    rows that do not: a copy costs its bytes twice, narrow loads cost each tile that needs them."""
    c = a.new_empty(a.shape[0], b.shape[1])
    launch_persistent(rows_of(a) or place_rows(a), rows_of(b) or place_rows(b), c, config, 8, True)
    return c


def place_rows(x):
    """A copy with rows for a descriptor, and whether they are those of x transposed."""
    flipped = x.stride(0) == 1 and x.stride(1) != 1
    x = x.T if flipped else x
    M, N = x.shape
    row = N + -N % (16 // x.element_size())
    y = x.new_empty(M, row)[:, :N]  # the descriptor reads zeros behind N
    constants = dict(BLOCK_M=16, BLOCK_N=256, **divisors(M=x.stride(0), N=N))
    grid = triton.cdiv(M, 16), triton.cdiv(N, 256)
    _place[grid](x, y, M, N, *x.stride(), row, **constants, num_warps=4)
    return y, flipped


@matmul.impl(StreamK, refuse=refuse_described, work=work, defaults=tile_defaults(StreamK, 64, 128))
def stream_k(a, b, *, config):
    """As persistent, but a last round that would leave most cores idle is dealt out in steps of
    K, the same number to each core; a second launch adds the pieces of a tile."""
    (M, K), (_, N) = a.shape, b.shape
    c = a.new_empty(M, N)
    (rows_a, a_t), (rows_b, b_t), _ = describe_tensors({"a": a, "b": b, "c": c})
    BM, BN, BK = config.block_m, config.block_n, config.block_k
    programs, count, steps = cores(a), tile_count(config, M=M, N=N), triton.cdiv(K, BK)
    rest = count % programs
    if 100 * rest > config.stream_below * programs:
        rest = 0  # the pieces would cost more than the idle cores
    # 17 pieces a tile at most, for their sum is written out
    each = max(1, triton.cdiv(rest * steps, programs), triton.cdiv(steps, 16))
    programs = programs if count >= programs else triton.cdiv(rest * steps, each) or count
    sums = a.new_empty(2 * programs if rest else 0, BM, BN, dtype=torch.float32)
    constants = dict(GROUP_M=8, PROGRAMS=programs, A_T=a_t, B_T=b_t, UPCAST=upcast(a))
    constants |= meta(config)
    of_a, of_b = descriptor(rows_a, a_t, [BM, BK]), descriptor(rows_b, b_t, [BK, BN])
    of_c, whole = TensorDescriptor.from_tensor(c, [BM, BN // 2]), count - rest
    _stream[(programs,)](of_a, of_b, of_c, sums, M, N, K, whole, each, **constants)
    if rest:
        programs = min(programs, rest * BM // 16)
        constants = dict(BLOCK_M=BM, BLOCK_N=BN, GROUP_M=8, ROWS=16)
        constants |= dict(PIECES=min(triton.cdiv(steps, each) + 1, steps), PROGRAMS=programs)
        _fix_up[(programs,)](sums, c, M, N, steps, whole, each, **constants, num_warps=8)
    return c


@matmul.impl(
    WarpGroups,
    resolve=size_warp_groups,
    refuse=refuse_warp_groups,
    work=work,
    unchecked_reason=UNCHECKED,
)
def warp_groups(a, b, *, config):
    """One program per core: a warp loads by descriptors, two groups of warps multiply half of a
    tile's rows each, and a tile's sums are stored while the next one's blocks arrive. In Gluon."""
    c = a.new_empty(a.shape[0], b.shape[1])
    of_a, of_b, _ = describe_tensors({"a": a, "b": b, "c": c})
    launch_warp_groups(("a", *of_a), ("b", *of_b), c, config)
    return c


def launch_warp_groups(of_a, of_b, c, config, second=(), units=None):
    """Launch c = a b, each operand given as its name, its rows, and whether they are those of its
    transpose. With `second`, u and v in the same way, c = a b + u v: they lie as a and b do, and u
    is not wider than a step. Sums of u v are multiplied by `units`, a number for each row of whole
    tiles."""
    (_, rows_a, a_t), (_, _, b_t), (M, N) = of_a, of_b, c.shape
    BM, BN, BK = config.block_m, config.block_n, config.block_k
    tiles, steps = tile_count(config, M=M, N=N), triton.cdiv(rows_a.shape[0 if a_t else 1], BK)
    programs, whole, count = rounds_of(config, cores(c), tiles)
    lag = lag_of(config, steps)
    maps = *described_step(of_a, of_b, config), *described_sums("the output", c, config)
    maps += described_step(*second, config) if second else (None, None, None)
    constants = dict(BLOCK_M=BM, BLOCK_N=BN, BLOCK_K=BK, STAGES=config.num_stages)
    constants |= dict(GROUP_M=config.group_m, A_T=a_t, B_T=b_t, LAG=lag, CUT=count > whole)
    numbers = whole, count, triton.cdiv(M, BM), triton.cdiv(N, BN), steps + bool(second)
    constants |= launch_pdl(True)
    _warp_groups[(programs,)](*maps, units, *numbers, **constants, num_warps=4)


def lag_of(config, steps):
    """Return the steps by which the second group of warps is behind. One that is a whole ring
    behind would miss a phase of the other's barrier."""
    return config.lag if steps >= config.num_stages > config.lag else 0


def described_step(of_a, of_b, config):
    """Return descriptors of the blocks of one step: of a, of b, and of fewer columns of b: those
    beyond the first 128, or of half a tile."""
    BM, BN, BK = config.block_m, config.block_n, config.block_k
    wide, less = (128, columns_beyond(BN)) if columns_beyond(BN) else (BN, BN // 2)
    blocks = (described_blocks(*of_b, [BK, n]) for n in (wide, less))
    return described_blocks(*of_a, [BM // 2, BK]), *blocks


def described_sums(name, c, config):
    """Return descriptors of the blocks in which sums of a group's rows are stored: of the first 128
    columns or all, and of those beyond, or None."""
    ROWS, less = config.block_m // 2, columns_beyond(config.block_n)
    of_c = describe_blocks(name, c, [ROWS, BUFFERS // 8 // ROWS])
    return of_c, describe_blocks(name, c, [ROWS, less]) if less else None


def described_blocks(name, rows, flipped, block):
    """Return a descriptor for a kernel in Gluon of blocks of a tensor's rows, or of its
    transpose's."""
    return describe_blocks(name, rows, block[::-1] if flipped else block)


@baseline(matmul)
def library(a, b):
    """cuBLAS or hipBLAS."""
    return torch.mm(a, b)
