"""Softmax over the last axis: y = exp(x - max(x)) / sum(exp(x - max(x))).

At 5 FLOP for two elements moved it is memory-bound on every GPU in `devices/`, so what counts is
how often a row comes from memory: once while it fits into the registers of one program (`rows`,
`persistent`) or of a cluster of them (`clusters`). All others read it twice. The second reading
finds it in the first-level cache where one program walks a row of up to some 64 KB in blocks
(`looped`), in the first or the last level where programs on several cores tell each other their
maxima and sums (`cooperative`), and in the last level where a second launch goes over a few MB
again (`split`).

A row with NaN or +inf, or with nothing but -inf, is NaN; any other -inf becomes 0. Other rows do
not see them.
"""

from dataclasses import dataclass, replace

import torch

from workbench.dsl import (
    INTERPRETED,
    LIGER,
    baseline,
    cores,
    meta,
    pad_up,
    policies,
    row_schemes,
    tile_count,
    tl,
    triton,
)
from workbench.dsl.block_clusters import (
    await_cluster,
    await_sent,
    begin_cluster,
    blocks_apart,
    cluster_number,
    load_words,
    send,
)
from workbench.dsl.gluon import UNCHECKED, gl, gluon, unwidened
from workbench.spec import AUTO, Spec, Tensor, Tolerance, Work, among, threads, tile, value_or


def reference(x):
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


softmax = Spec(
    name="softmax",
    inputs={"x": Tensor("M N")},
    outputs={"y": Tensor("M N")},
    reference=reference,
    flops=lambda M, N: 5 * M * N,
    nonfinite=("x",),
    check=[{"M": 1, "N": 1}, {"M": 5, "N": 127}, {"M": 13, "N": 781}, {"M": 4, "N": 4096}],
    bench=[
        {"M": 8192, "N": 4096},
        {"M": 2048, "N": 32_768},
        {"M": 1024, "N": 131_072},
        {"M": 32_768, "N": 1024},
        {"M": 512, "N": 262_144},
    ],
    tolerance={
        # fp32: x * log2(e) is rounded before the exponential, 1.4e-5 at x - max = -100
        "fp32": Tolerance(relative=2e-5, rms_share=1e-6),
        "fp16": Tolerance(relative=1e-3, rms_share=1e-4),  # 6e-8 is fp16's least step above zero
        "bf16": Tolerance(relative=8e-3, rms_share=1e-6),
    },
)


LOG2_E = tl.constexpr(1.4426950408889634)
LEAST = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def _rows(
    x_ptr, y_ptr, M, N, stride_m, stride_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ONCE: tl.constexpr,
):  # fmt: skip
    m = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
    n = tl.arange(0, BLOCK_N)[None, :]
    mask = (m < M) & (n < N)
    x_ptrs = x_ptr + m * stride_m + n.to(tl.int64) * stride_n
    x = tl.load(x_ptrs, mask, other=-float("inf"), eviction_policy=ONCE).to(tl.float32)
    e = tl.exp2((x - tl.max(x, axis=1, keep_dims=True)) * LOG2_E)
    y = e * (1.0 / tl.sum(e, axis=1, keep_dims=True))
    tl.store(y_ptr + m * N + n, y.to(y_ptr.dtype.element_ty), mask)


@triton.jit
def _persistent(
    x_ptr, y_ptr, M, N, stride_m, stride_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    n = tl.arange(0, BLOCK_N)[None, :]
    x_ptrs = x_ptr + n.to(tl.int64) * stride_n
    blocks = tl.cdiv(M, BLOCK_M)
    for block in tl.range(tl.program_id(0), blocks, tl.num_programs(0), num_stages=STAGES):
        m = (block * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
        mask = (m < M) & (n < N)
        x = tl.load(x_ptrs + m * stride_m, mask, other=-float("inf"))  # copied past the L1 cache
        x = x.to(tl.float32)
        e = tl.exp2((x - tl.max(x, axis=1, keep_dims=True)) * LOG2_E)
        y = e * (1.0 / tl.sum(e, axis=1, keep_dims=True))
        tl.store(y_ptr + m * N + n, y.to(y_ptr.dtype.element_ty), mask)


@triton.jit
def _looped(
    x_ptr, y_ptr, M, N, stride_m, stride_n,
    BLOCK_N: tl.constexpr, ONCE: tl.constexpr, KEPT: tl.constexpr,
):  # fmt: skip
    # 8 neighbours are a group with one running maximum and sum: a thread's widest load of 16 bits
    m = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, BLOCK_N // 8)[:, None] * 8 + tl.arange(0, 8)[None, :]
    x_ptrs = x_ptr + m * stride_m + n.to(tl.int64) * stride_n
    high = tl.full((BLOCK_N // 8,), LEAST, tl.float32)  # no -inf: -inf - -inf would be NaN
    total = tl.zeros((BLOCK_N // 8,), tl.float32)
    for start in range(0, N, BLOCK_N):
        x_now = x_ptrs + tl.cast(start, tl.int64) * stride_n
        x = tl.load(x_now, n < N - start, other=-float("inf"), eviction_policy=KEPT).to(tl.float32)
        higher = tl.maximum(high, tl.max(x, axis=1))
        total *= tl.exp2((high - higher) * LOG2_E)
        total += tl.sum(tl.exp2((x - higher[:, None]) * LOG2_E), axis=1)
        high = higher
    top = tl.max(high, axis=0)
    shrink = tl.log2(tl.sum(total * tl.exp2((high - top) * LOG2_E), axis=0))
    last = (N - 1) // BLOCK_N * BLOCK_N
    for back in range(0, N, BLOCK_N):  # backwards: what was read last is still in the caches
        start = last - back
        x_now = x_ptrs + tl.cast(start, tl.int64) * stride_n
        x = tl.load(x_now, n < N - start, other=-float("inf"), eviction_policy=ONCE).to(tl.float32)
        y = tl.exp2((x - top) * LOG2_E - shrink).to(y_ptr.dtype.element_ty)
        tl.store(y_ptr + m * N + start + n, y, n < N - start)


@triton.jit
def _load_slice(
    x_ptrs, unit, M, N, stride_m, stride_n,
    SLICES: tl.constexpr, BLOCK_N: tl.constexpr, POLICY: tl.constexpr,
):  # fmt: skip
    m, low = tl.cast(unit // SLICES, tl.int64), unit % SLICES * BLOCK_N
    here = x_ptrs + (m * stride_m + tl.cast(low, tl.int64) * stride_n)
    there = tl.arange(0, BLOCK_N) < tl.where(m < M, N - low, 0)
    return tl.load(here, there, other=-float("inf"), eviction_policy=POLICY)


@triton.jit
def _tell(x, words_ptr, unit, units):
    x = x.to(tl.float32)
    top = tl.max(x, axis=0)
    base = tl.where(top == -float("inf"), 0.0, top)
    total = tl.sum(tl.exp2((x - base) * LOG2_E), axis=0)
    word = top.to(tl.uint32, bitcast=True).to(tl.uint64) << 32
    word |= total.to(tl.uint32, bitcast=True).to(tl.uint64)
    word = word.to(tl.int64, bitcast=True)
    tl.atomic_xchg(words_ptr + unit, word, unit < units, sem="relaxed")


@triton.jit
def _slices(
    x_ptr, y_ptr, words_ptr, M, N, stride_m, stride_n,
    SLICES: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_S: tl.constexpr,
    TELL: tl.constexpr, HEAR: tl.constexpr,
):  # fmt: skip
    # `unit` counts the slices of all rows, one row after the other. What a slice tells the others
    # of its row is one word of 64 bits, its maximum above its sum: a word arrives whole, so no
    # order of memory is needed. Zero means "not yet": a sum is at least 1 unless the maximum is
    # -inf, whose bits are not zero. Before a program asks for a row's words it works on its next
    # slice: nobody waits for a word that takes a microsecond. There are registers for one slice
    # and the next, so the one whose words have come is read again.
    lane, s = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_S)
    first, step, units = tl.program_id(0), tl.num_programs(0), M * SLICES
    x_ptrs = x_ptr + lane.to(tl.int64) * stride_n
    x = _load_slice(x_ptrs, first, M, N, stride_m, stride_n, SLICES, BLOCK_N, "")
    if TELL:
        _tell(x, words_ptr, first, units)
    x = _load_slice(x_ptrs, first + step, M, N, stride_m, stride_n, SLICES, BLOCK_N, "")
    for unit in range(first, units, step):
        m, low = tl.cast(unit // SLICES, tl.int64), unit % SLICES * BLOCK_N
        words_ptrs = words_ptr + m * SLICES + s
        if HEAR:
            words = tl.load(words_ptrs, s < SLICES, other=1, volatile=True)
        if TELL:
            _tell(x, words_ptr, unit + step, units)
        x = _load_slice(x_ptrs, unit + 2 * step, M, N, stride_m, stride_n, SLICES, BLOCK_N, "")
        again = _load_slice(x_ptrs, unit, M, N, stride_m, stride_n, SLICES, BLOCK_N, "evict_first")
        if HEAR:
            while tl.min((words != 0).to(tl.int32), axis=0) == 0:
                words = tl.load(words_ptrs, s < SLICES, other=1, volatile=True)
            tops = (words >> 32).to(tl.int32).to(tl.float32, bitcast=True)
            tops = tl.where(s < SLICES, tops, -float("inf"))
            totals = tl.where(s < SLICES, words.to(tl.int32).to(tl.float32, bitcast=True), 0.0)
            top = tl.max(tops, axis=0)
            base = tl.where(top == -float("inf"), 0.0, top)
            shrink = tl.log2(tl.sum(totals * tl.exp2((tops - base) * LOG2_E), axis=0))
            # exp once more, and not a factor to the slice's own: equal x give equal y everywhere
            y = tl.exp2((again.to(tl.float32) - base) * LOG2_E - shrink).to(y_ptr.dtype.element_ty)
            tl.store(y_ptr + (m * N + low) + lane, y, lane < N - low)


@gluon.constexpr_function
def _across(ctas, size, lanes, warps):
    """Return the layout of a row for each block of a cluster: `size` neighbours in a thread, and
    `lanes` threads of a warp side by side."""
    apart = blocks_apart(ctas, 2)
    return gl.BlockedLayout([1, size], [32 // lanes, lanes], [1, warps], [1, 0], cga_layout=apart)


@gluon.jit
def _exchange(tops, totals, CTAS: gl.constexpr):
    """Send each block's maximum and sum to all blocks of its cluster. Returns those of all blocks,
    [blocks, blocks]."""
    ALL: gl.constexpr = _across(CTAS, 1, CTAS, gl.num_warps())
    block = gl.arange(0, CTAS, gl.SliceLayout(0, ALL))[None, :].broadcast_to([CTAS, CTAS])
    own = gl.arange(0, CTAS, gl.SliceLayout(1, ALL))[:, None].broadcast_to([CTAS, CTAS])
    tops = gl.convert_layout(tops, gl.SliceLayout(1, ALL))[:, None].broadcast_to([CTAS, CTAS])
    totals = gl.convert_layout(totals, gl.SliceLayout(1, ALL))[:, None].broadcast_to([CTAS, CTAS])
    await_cluster()
    send(tops, block, own, CTAS, CTAS)
    send(totals, block, CTAS + own, CTAS, CTAS)
    await_sent()
    return load_words(block), load_words(CTAS + block)


@gluon.jit
def _clusters(
    x_ptr, y_ptr, N, stride_m, stride_n,
    CTAS: gl.constexpr, BLOCK_N: gl.constexpr, ONCE: gl.constexpr,
):  # fmt: skip
    # Row i of every tensor lies in block i of the cluster, which reduces its own and no other
    begin_cluster(2 * CTAS)
    VEC: gl.constexpr = 128 // x_ptr.dtype.element_ty.primitive_bitwidth
    SLICES: gl.constexpr = _across(CTAS, VEC, 32, gl.num_warps())
    m = cluster_number(CTAS).to(gl.int64)
    lane = gl.arange(0, BLOCK_N, gl.SliceLayout(0, SLICES))[None, :]
    each = gl.cdiv(N, CTAS * VEC) * VEC  # as even as can be: else the last blocks might have none
    low = each * gl.arange(0, CTAS, gl.SliceLayout(1, SLICES))[:, None]
    there = lane < gl.minimum(each, N - low)
    low = low.to(gl.int64)
    x_ptrs = x_ptr + (m * stride_m + low * stride_n) + lane.to(gl.int64) * stride_n
    x = gl.load(x_ptrs, there, other=-float("inf"), eviction_policy=ONCE)
    top = gl.max(x.to(gl.float32), axis=1)
    base = gl.where(top == -float("inf"), 0.0, top)
    x = unwidened(x)
    total = gl.sum(gl.exp2((x.to(gl.float32) - base[:, None]) * LOG2_E), axis=1)
    tops, totals = _exchange(top, total, CTAS)
    top = gl.max(tops, axis=1)
    base = gl.where(top == -float("inf"), 0.0, top)
    shrink = gl.log2(gl.sum(totals * gl.exp2((tops - base[:, None]) * LOG2_E), axis=1))
    base = gl.convert_layout(base, gl.SliceLayout(1, SLICES))[:, None]
    shrink = gl.convert_layout(shrink, gl.SliceLayout(1, SLICES))[:, None]
    x = unwidened(x)
    y = gl.exp2((x.to(gl.float32) - base) * LOG2_E - shrink).to(y_ptr.dtype.element_ty)
    gl.store(y_ptr + (m * N + low) + lane, y, there)


@softmax.impl(
    row_schemes.Rows,
    resolve=row_schemes.size_rows,
    refuse=row_schemes.refuse_rows,
    work=row_schemes.rows_work(),
)
def rows(x, *, config):
    """`block_m` whole rows in registers: x is read once."""
    M, N = x.shape
    y = x.new_empty(M, N)
    once, _ = policies(config.hints)
    constants = dict(BLOCK_N=pad_up(N), ONCE=once, **meta(config))
    _rows[(tile_count(config, M=M),)](x, y, M, N, *x.stride(), **constants)
    return y


@softmax.impl(
    row_schemes.Persistent,
    refuse=row_schemes.refuse_persistent(rows=1, most=64),
    work=row_schemes.rows_work(),
)
def persistent(x, *, config):
    """Each program walks many rows, and the next ones are on their way while one is worked on."""
    M, N = x.shape
    y = x.new_empty(M, N)
    grid, constants = row_schemes.persistent_launch(x, config)
    _persistent[grid](x, y, M, N, *x.stride(), **constants)
    return y


# Two programs of 32 warps fill a core, and their rows lie in its first-level cache when they are
# read again. With two loads of each thread on their way 2048 rows of 32768 take 71.1 us on an H200,
# 80.0 with one; four programs of 16 warps, whose rows overflow that cache, 79.2.
@softmax.impl(
    row_schemes.Looped,
    resolve=row_schemes.size_blocks(long=16_384),
    refuse=row_schemes.refuse_looped,
    work=row_schemes.looped_work(),
    defaults=row_schemes.CDNA,
)
def looped(x, *, config):
    """One row in blocks, with a running maximum: any length, but x is read twice."""
    M, N = x.shape
    y = x.new_empty(M, N)
    once, kept = policies(config.hints)
    _looped[(M,)](x, y, M, N, *x.stride(), ONCE=once, KEPT=kept, **meta(config))
    return y


@dataclass(frozen=True)
class Cooperative:
    """Many small programs: 512 rows of 262144 take 156 us on an H200 with six of 4096 elements to a
    core, 161 with three of 8192 and 184 with two of 16384."""

    block_n: int = tile(1024, 16_384, default=4096)
    num_warps: int = threads(4, 16, default=4)
    per_core: int = among(1, 2, 3, 4, 6, default=6)  # programs on one core, all of them at once


def refuse_cooperative(config, limits, *, itemsize, M, N):
    threads_ = config.num_warps * limits.warp_size
    held = config.block_n // threads_
    # in fp32 while it is worked on, and the next slice as it comes: 80 compiled for 32 of bf16
    registers = max(40, 16 + held + held * itemsize // 2)
    slices = -(-N // config.block_n)
    if not 4 <= held <= 64:
        return f"each thread would hold {held} elements; 4 to 64 are sensible"
    if config.per_core * threads_ > 1536:
        return f"{config.per_core} programs of {threads_} threads are more than any core holds"
    core = 65_536 if limits.nvidia else 131_072
    if config.per_core * threads_ * registers > core:
        each = f"{threads_} threads, {registers} registers each"
        return f"{config.per_core} programs of {each}, do not fit one core at once"
    if slices > config.per_core * limits.cores:
        return f"a row's {slices} slices are more than the programs that run at once"
    return None


def slices_work(config, limits, *, itemsize, M, N):
    moved = config.block_n * itemsize
    return Work(tiles=M * -(-N // config.block_n), steps=1, load_bytes=moved, store_bytes=moved)


def bound(config):
    """Registers a thread may have so that `per_core` programs fit an NVIDIA core for sure: how
    many the compiler would take differs by some ten between versions of Triton."""
    if INTERPRETED or triton.runtime.driver.active.get_current_target().backend != "cuda":
        return {}
    fair = 65_536 // (32 * config.num_warps * config.per_core)
    return {"maxnreg": min(255, fair // 8 * 8)}


@softmax.impl(
    Cooperative,
    refuse=refuse_cooperative,
    work=slices_work,
    defaults={"fp32 sm_80": Cooperative(per_core=4)},
)
def cooperative(x, *, config):
    """Each row in slices on several cores, which wait for each other's maximum and sum: x comes
    from memory once whatever a row's length. Triton's interpreter runs one program after the other,
    so it gets two launches, and the second finds all words written."""
    M, N = x.shape
    slices = triton.cdiv(N, config.block_n)
    programs = min(cores(x) * config.per_core, M * slices)
    if programs < slices and not INTERPRETED:
        many = f"a row's {slices} slices"
        raise ValueError(f"{many} would wait for each other on {programs} programs")
    y, words = x.new_empty(M, N), x.new_zeros(M, slices, dtype=torch.int64)
    alike = {"launch_cooperative_grid": True, **bound(config)}
    for tell, hear in ((True, False), (False, True)) if INTERPRETED else ((True, True),):
        constants = dict(SLICES=slices, BLOCK_S=pad_up(slices), TELL=tell, HEAR=hear)
        _slices[(programs,)](x, y, words, M, N, *x.stride(), **constants, **alike, **meta(config))
    return y


@dataclass(frozen=True)
class Clusters:
    """AUTO: what suits the length and the number of the rows, see `size_clusters`."""

    ctas: int = among(2, 4, 8, default=AUTO)  # blocks of a cluster, on as many cores
    num_warps: int = threads(4, 32, default=AUTO)
    hints: int = among(0, 1, default=0)  # x passes through the caches


def size_clusters(config, limits, *, itemsize, M, N):
    """Return the config with what is AUTO chosen by the sizes.

    A block takes 16 KB of a row, or more where eight are not enough, and a thread 256 bytes of it:
    what counts is that several blocks share a core, so that some load and store while others wait.
    On an H200 1024 rows of 131072 in bf16 take 132.4 us with 4 warps of 8 blocks, 133.1 with 8 and
    173.6 with 16; 512 of 262144 138.1 with 8 and 158.2 with 16; 2048 of 32768 67.4 in blocks of
    16 KB and 68.0 of 32 KB; 4096 of 16384 67.2 in two blocks and 68.3 in four. Few rows take as
    many blocks as they can.
    """
    row, ctas = N * itemsize, config.ctas
    if ctas == AUTO:
        enough = (c for c in (2, 4) if row <= c << 14 and M * c >= 2 * limits.cores)
        ctas = next(enough, 8)
    suited = max(4, min(32, pad_up(-(-row // ctas)) >> 13))
    return replace(config, ctas=ctas, num_warps=value_or(config.num_warps, suited))


def slice_block(config, itemsize, N):
    """Return how many elements a block has place for: a slice, and no less than a widest load for
    each of its threads."""
    return max(pad_up(-(-N // config.ctas)), 32 * config.num_warps * 16 // itemsize)


def registers_each(config, itemsize, N):
    """Return the registers of a thread that its elements take."""
    return slice_block(config, itemsize, N) * itemsize // (4 * 32 * config.num_warps)


def refuse_clusters(config, limits, *, itemsize, M, N):
    if limits.arch != "sm_90":
        return f"it is written for the clusters of Hopper (sm_90), not {limits.arch}"
    held, threads_ = registers_each(config, itemsize, N), 32 * config.num_warps
    most = 32 if threads_ == 1024 else 64  # 1024 threads have 64 registers each
    if held > most:
        each = f"each of {config.ctas} x {threads_} threads"
        return f"{each} would hold {4 * held} bytes of a row; {4 * most} is the most"
    if M * config.ctas >= 1 << 31:
        return f"a grid has less than 2^31 blocks, not {config.ctas} for each of {M} rows"
    return None


def clusters_work(config, limits, *, itemsize, M, N):
    moved = -(-N // config.ctas) * itemsize
    return Work(tiles=M * config.ctas, steps=1, load_bytes=moved, store_bytes=moved)


@softmax.impl(
    Clusters,
    resolve=size_clusters,
    refuse=refuse_clusters,
    work=clusters_work,
    unchecked_reason=UNCHECKED,
)
def clusters(x, *, config):
    """One row in the registers of a cluster of blocks on neighbouring cores, which write maximum
    and sum into each other's shared memory: x is read once. In Gluon."""
    M, N = x.shape
    y = x.new_empty(M, N)
    once, _ = policies(config.hints)
    block = slice_block(config, x.element_size(), N)
    constants = dict(CTAS=config.ctas, BLOCK_N=block, ONCE=once)
    options = dict(num_ctas=config.ctas, maxnreg=most_registers(config, x), **meta(config))
    _clusters[(M,)](x, y, N, *x.stride(), **constants, **options)
    return y


def most_registers(config, x):
    """Return the registers that a thread may have: two for each that it holds, so that threads with
    half of a core's registers full of x fit it. Elements of 16 bits that are loaded one by one take
    one each as they come."""
    held = registers_each(config, x.element_size(), x.shape[1])
    vectors = x.stride(1) == 1 and x.stride(0) % 16 == x.shape[1] % 16 == 0
    suited = 64 if held <= 32 else 128
    if not vectors and x.element_size() == 2:
        suited = 168
    return min(suited, 65_536 // (32 * config.num_warps) // 8 * 8)


@dataclass(frozen=True)
class Split:
    block_n: int = tile(1024, 16_384, default=4096)
    num_warps: int = threads(1, 16, default=4)
    batch_mb: int = among(4, 8, 16, 32, default=16)  # rows of so much between two launches


def refuse_split(config, limits, *, itemsize, M, N):
    held = config.block_n // (config.num_warps * limits.warp_size)
    if not 4 <= held <= 64:
        return f"each thread would hold {held} elements; 4 to 64 are sensible"
    return None


@softmax.impl(Split, refuse=refuse_split, work=slices_work)
def split(x, *, config):
    """Each row in slices on several cores: one launch for their maxima and sums, one that reads x
    again, from the last-level cache as long as a batch of rows fits there."""
    M, N = x.shape
    slices = triton.cdiv(N, config.block_n)
    y, words = x.new_empty(M, N), x.new_empty(M, slices, dtype=torch.int64)
    batch = max(1, (config.batch_mb << 20) // (N * x.element_size()))
    for low in range(0, M, batch):
        some = min(batch, M - low)
        for tell in (True, False):
            constants = dict(SLICES=slices, BLOCK_S=pad_up(slices), TELL=tell, HEAR=not tell)
            _slices[(some * slices,)](
                x[low:], y[low:], words[low:], some, N, *x.stride(), **constants, **meta(config)
            )
    return y


@baseline(softmax)
def library(x):
    return torch.softmax(x, dim=-1)


@softmax.library("liger", refuse=LIGER.refuse_rows(N=65_536))
def liger(x):
    return LIGER("ops:LigerSoftmaxFunction.apply")(x)
