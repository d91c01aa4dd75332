"""Matrix product: c = a @ b, accumulated in fp32.

At M = N = K = 4096 in bf16 it does 1365 FLOP for each byte it must move, so the matrix unit is
the limit, as long as tiles are large enough: a tile of block_m x block_n asks the cache for
2 * block_m * block_n / (block_m + block_n) FLOP's worth of each element that it loads. A few rows
(M = 16) make it memory-bound, and then it is b that counts.

What else costs: tiles that are no multiple of the cores (288 on 132 take as long as 396), which
`stream_k` deals out in smaller pieces; fewer tiles than cores, which `split_k` splits along K; and
rows between multiples of 16 bytes, which no descriptor describes: `padded` copies them.

NaN and infinities of a reach their rows of c, those of b their columns; an infinity times 0 is NaN.
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
    strides,
    tile_count,
    tl,
    triton,
    upcast,
    widest_block,
)
from workbench.spec import AUTO, Spec, Tensor, Work, among, given, of_rms, stages, threads, tile


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
    tolerance=of_rms(fp32=5e-5, fp16=1e-4, bf16=1e-4),
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
        acc = tl.dot(a, b, acc, input_precision="ieee")
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
    return tl.dot(x, y, acc, input_precision="ieee")


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


# `tiles` is None where the program walks all: then it is no argument of the compiled kernel.
@triton.jit
def _persistent(
    a, b, c, M, N, K, tiles,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    PROGRAMS: tl.constexpr, SPLIT_STORE: tl.constexpr, A_T: tl.constexpr, B_T: tl.constexpr,
    POINTERS: tl.constexpr, DIV_N: tl.constexpr, UPCAST: tl.constexpr,
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
    PROGRAMS: tl.constexpr, SPLIT_STORE: tl.constexpr, A_T: tl.constexpr, B_T: tl.constexpr,
    UPCAST: tl.constexpr,
):  # fmt: skip
    _persistent(
        a,
        b,
        c,
        M,
        N,
        K,
        whole,
        BLOCK_M,
        BLOCK_N,
        BLOCK_K,
        GROUP_M,
        PROGRAMS,
        SPLIT_STORE,
        A_T,
        B_T,
        False,
        1,
        UPCAST,
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
    """The same, and of a copy's grid, whose second axis has a program for 256 of a row."""
    copied = max((n for n in (N, K) if n * itemsize % 16), default=1)
    reason = limits.refuse_grid(-(-copied // 256))
    return reason or refuse_padded(config, limits, itemsize=itemsize)


def refuse_narrow(config, limits, *, itemsize, M, N, K):
    return refuse_tiles(tiles_of(config, itemsize), limits, itemsize=itemsize)


def narrow_work(config, limits, *, itemsize, M, N, K):
    tiles = tiles_of(config, itemsize)
    whole = work(tiles, limits, itemsize=itemsize, M=M, N=N, K=K)
    return replace(whole, stages=tiles.num_stages)


def size_width(config, limits, *, itemsize, M, N, K):
    """Return the config of `narrow` with the widest tile that gives 3 of 4 cores one."""
    wide = widest_block(limits, -(-M // config.block_m), N, (128, 64, 32))
    return replace(config, block_n=given(config.block_n, wide))


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


def size_split(config, limits, *, itemsize, M, N, K):
    """Return the config of `split_k` with as many parts as fill the cores, of four steps each at
    least: fewer would not fill the pipeline."""
    steps = -(-K // config.block_k)
    fill = max(1, min(limits.cores // tile_count(config, M=M, N=N), steps // 4))
    return replace(config, split=given(config.split, fill))


def parts_of(config, M, N, K):
    """Into how many parts K is split, and how long each is: a multiple of block_k."""
    steps = triton.cdiv(K, config.block_k)
    each = triton.cdiv(steps, min(config.split, steps)) * config.block_k
    return triton.cdiv(K, each), each


def work(config, limits, *, itemsize, M, N, K):
    band = getattr(config, "group_m", 8)
    return Work.of_product(config, itemsize, M=M, N=N, K=K, band=band)


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
    work=work,
    defaults={
        "fp32": Tiles(64, 64, 32, 8, 2),  # on the vector units, and twice the bytes to hold
        "sm_80 sm_89 sm_120": SMALL,
        "gfx90a gfx942 gfx950": CDNA,
        "gfx1100": RDNA,
    },
)
def tiles(a, b, *, config):
    """One program a tile, pointers into a and b: takes any size and any strides."""
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
        "sm_90": SplitK(num_warps=4, descriptors=1, pdl=1),
        "sm_80 sm_89 sm_120 gfx90a gfx942 gfx950 gfx1100": SplitK(64, 128, 64, 4, 3),
    },
)
def split_k(a, b, *, config):
    """K in parts, one program a tile and part, whose fp32 sums a second launch adds: fills the
    cores where the output has fewer tiles than they are, as it has with few rows."""
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


def described(named):
    """Each tensor's rows and whether they are those of its transpose. Raises ValueError."""
    hits = {name: rows_of(x) for name, x in named.items()}
    if odd := [name for name, rows in hits.items() if rows is None]:
        raise ValueError(
            f"{odd[0]} must have dense rows or columns that start at multiples of 16 bytes"
        )
    return hits.values()


def descriptor(rows, flipped, block):
    return TensorDescriptor.from_tensor(rows, block[::-1] if flipped else block)


def by_target(kind, *rdna):
    """Return the defaults of a scheme through descriptors; `rdna` is its tile on gfx1100."""
    return {
        "fp32": kind(64, 64, 32, 8, 2),
        "sm_80": kind(128, 128, 32, 8, 3),
        "sm_89 sm_120": kind(128, 128, 32, 8, 2),
        "gfx90a gfx942 gfx950": kind(128, 128, 64, 4, 2),
        "gfx1100": kind(*(rdna or (128, 64)), 32, 8, 2),
    }


@matmul.impl(Persistent, refuse=refuse_described, work=work, defaults=by_target(Persistent))
def persistent(a, b, *, config):
    """One program a core, which walks its tiles through tensor descriptors: the copy engine
    computes the addresses, and the store of one tile overlaps the loads of the next."""
    c = a.new_empty(a.shape[0], b.shape[1])
    of_a, of_b, _ = described({"a": a, "b": b, "c": c})
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


@matmul.impl(Padded, refuse=refuse_placed, work=work, defaults=by_target(Padded))
def padded(a, b, *, config):
    """As persistent, after copying an input whose rows start between multiples of 16 bytes into
    rows that do not: a copy costs its bytes twice, narrow loads cost each tile that needs them."""
    c = a.new_empty(a.shape[0], b.shape[1])
    launch_persistent(rows_of(a) or placed(a), rows_of(b) or placed(b), c, config, 8, True)
    return c


def placed(x):
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


@matmul.impl(StreamK, refuse=refuse_described, work=work, defaults=by_target(StreamK, 64, 128))
def stream_k(a, b, *, config):
    """As persistent, but a last round that would leave most cores idle is dealt out in steps of
    K, the same number to each core; a second launch adds the pieces of a tile."""
    (M, K), (_, N) = a.shape, b.shape
    c = a.new_empty(M, N)
    (rows_a, a_t), (rows_b, b_t), _ = described({"a": a, "b": b, "c": c})
    BM, BN, BK = config.block_m, config.block_n, config.block_k
    programs, count, steps = cores(a), tile_count(config, M=M, N=N), triton.cdiv(K, BK)
    rest = count % programs
    if 100 * rest > config.stream_below * programs:
        rest = 0  # the pieces would cost more than the idle cores
    # 17 pieces a tile at most, for their sum is written out
    each = max(1, triton.cdiv(rest * steps, programs), triton.cdiv(steps, 16))
    programs = programs if count >= programs else triton.cdiv(rest * steps, each) or count
    sums = a.new_empty(2 * programs if rest else 0, BM, BN, dtype=torch.float32)
    constants = dict(GROUP_M=8, PROGRAMS=programs, SPLIT_STORE=True, A_T=a_t, B_T=b_t)
    constants |= dict(UPCAST=upcast(a), **meta(config))
    of_a, of_b = descriptor(rows_a, a_t, [BM, BK]), descriptor(rows_b, b_t, [BK, BN])
    of_c, whole = TensorDescriptor.from_tensor(c, [BM, BN // 2]), count - rest
    _stream[(programs,)](of_a, of_b, of_c, sums, M, N, K, whole, each, **constants)
    if rest:
        programs = min(programs, rest * BM // 16)
        constants = dict(BLOCK_M=BM, BLOCK_N=BN, GROUP_M=8, ROWS=16)
        constants |= dict(PIECES=min(triton.cdiv(steps, each) + 1, steps), PROGRAMS=programs)
        _fix_up[(programs,)](sums, c, M, N, steps, whole, each, **constants, num_warps=8)
    return c


@baseline(matmul)
def library(a, b):
    """cuBLAS or hipBLAS."""
    return torch.mm(a, b)
