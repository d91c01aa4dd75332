"""Only the update of LoRA: y = SCALE (x A^T) B^T, for x of M x K, A of r x K and B of N x r.

The shapes are those that small fine-tunes meet: 64 rows of fp32, K = N of 512 to 2048, ranks of 4
to 64. All that must move are 0.3 to 1.2 MB, 0.1 to 0.3 us of an H200's memory, and the FLOPs are
less: what counts is how many launches follow each other and how many trips to the cache a program
waits for in a row.

NaN and infinities spread as the products do: from x to their rows of y, from B to their columns.
An infinity times 0 is NaN.
"""

from dataclasses import dataclass, replace

import torch

from workbench.dsl import (
    INTERPRETED,
    baseline,
    launch_pdl,
    meta,
    pad_up,
    strides,
    tile_count,
    tl,
    triton,
    upcast,
)
from workbench.dsl.block_clusters import (
    await_cluster,
    await_sent,
    begin_cluster,
    blocks_apart,
    cluster_number,
    load_fours,
    load_words,
    send_fours,
    store_words,
)
from workbench.dsl.gluon import UNCHECKED, gl, gluon, group_barrier, refuse_hopper
from workbench.spec import AUTO, Spec, Tensor, Tolerance, Work, among, threads, tile, value_or

SCALE = 2.0  # alpha / r


def reference(x, a, b):
    """With SCALE written out: taken from the kernel's own, a wrong one would not show."""
    return 2.0 * (x @ a.T) @ b.T


lora_delta = Spec(
    name="lora_delta",
    inputs={"x": Tensor("M K"), "a": Tensor("r K"), "b": Tensor("N r")},
    outputs={"y": Tensor("M N")},
    reference=reference,
    flops=lambda M, K, r, N: 2 * M * r * (K + N),
    check=[
        {"M": 1, "K": 1, "N": 1, "r": 1},
        {"M": 9, "K": 47, "N": 65, "r": 5},
        {"M": 16, "K": 136, "N": 72, "r": 16},
        {"M": 5, "K": 600, "N": 40, "r": 4},
        {"M": 18, "K": 40, "N": 72, "r": 33},
    ],
    bench=[
        *({"M": 64, "K": d, "N": d, "r": 8} for d in (512, 1024, 2048)),
        *({"M": 64, "K": 1024, "N": 1024, "r": r} for r in (4, 16, 32, 64)),
    ],
    # u stays in fp32 here; a library rounds it, which puts each of r terms off by up to 2^-8 (bf16)
    # or 2^-11 (fp16), in proportion to the rms of y; all errors together by 0.0024 or 0.0003 of it
    tolerance={
        "fp32": Tolerance(relative=1e-5, rms_share=5e-5),
        "fp16": Tolerance(relative=1e-3, rms_share=2e-3, rms=1e-3),
        "bf16": Tolerance(relative=1.6e-2, rms_share=1.6e-2, rms=5e-3),
    },
    refusable=lambda itemsize, r, **at: r > 16,
)


@triton.jit
def _fused(
    x_ptr, a_ptr, b_ptr, y_ptr, M, N, K,
    stride_xm, stride_xk, stride_ar, stride_ak, stride_bn, stride_br,
    SCALE: tl.constexpr, RANK: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    grid_n = tl.cdiv(N, BLOCK_N)
    m = ((tl.program_id(0) // grid_n) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
    n = ((tl.program_id(0) % grid_n) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)[:, None]
    j = tl.arange(0, BLOCK_R).to(tl.int64)
    # on its way while u is computed
    b_ptrs = b_ptr + n * stride_bn + j[None, :] * stride_br
    b = tl.load(b_ptrs, (n < N) & (j[None, :] < RANK), other=0.0)
    sums = tl.zeros((BLOCK_M, BLOCK_R, BLOCK_K // 4), tl.float32)  # each lane its own
    for k0 in range(0, K, BLOCK_K):
        k = (k0 + tl.arange(0, BLOCK_K)).to(tl.int64)[None, :]
        x = tl.load(x_ptr + m * stride_xm + k * stride_xk, (m < M) & (k < K), other=0.0)
        a_ptrs = a_ptr + j[:, None] * stride_ar + k * stride_ak
        a = tl.load(a_ptrs, (j[:, None] < RANK) & (k < K), other=0.0)
        products = x.to(tl.float32)[:, None, :] * a.to(tl.float32)[None, :, :]
        sums += tl.sum(tl.reshape(products, (BLOCK_M, BLOCK_R, 4, BLOCK_K // 4)), axis=2)
    u = tl.sum(sums, axis=2) * SCALE
    u = tl.where((j < RANK)[None, :], u, 0.0)  # an infinite x leaves NaN beside the rank
    # summed along the first axis, which a thread holds whole: each element of y has one thread
    y = tl.sum(tl.trans(u)[:, :, None] * tl.trans(b.to(tl.float32))[:, None, :], axis=0)
    column = tl.trans(n)
    tl.store(y_ptr + m * N + column, y.to(y_ptr.dtype.element_ty), (m < M) & (column < N))


@triton.jit
def _shrink(
    x_ptr, a_ptr, part_ptr, M, K, stride_xm, stride_xk, stride_ar, stride_ak,
    RANK: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
    SPLITS: tl.constexpr, UPCAST: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Sums of x A^T over a part of K."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    split = tl.program_id(0) % SPLITS
    m = ((tl.program_id(0) // SPLITS) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
    j = tl.arange(0, BLOCK_R).to(tl.int64)
    each = tl.cdiv(tl.cdiv(K, BLOCK_K), SPLITS) * BLOCK_K
    acc = tl.zeros((BLOCK_M, BLOCK_R), tl.float32)
    for k0 in range(split * each, tl.minimum(split * each + each, K), BLOCK_K):
        k = (k0 + tl.arange(0, BLOCK_K)).to(tl.int64)
        x_ptrs = x_ptr + m * stride_xm + k[None, :] * stride_xk
        a_ptrs = a_ptr + j[None, :] * stride_ar + k[:, None] * stride_ak
        x = tl.load(x_ptrs, (m < M) & (k[None, :] < K), other=0.0)
        a = tl.load(a_ptrs, (j[None, :] < RANK) & (k[:, None] < K), other=0.0)
        if UPCAST:
            x, a = x.to(tl.float32), a.to(tl.float32)
        acc = tl.dot(x, a, acc, input_precision=PRECISION)
    part_ptrs = part_ptr + (split * M + m) * BLOCK_R + j[None, :]
    tl.store(part_ptrs, acc, m < M)


@triton.jit
def _expand(
    part_ptr, b_ptr, y_ptr, M, N, stride_bn, stride_br,
    SCALE: tl.constexpr, RANK: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SPLITS: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    grid_n = tl.cdiv(N, BLOCK_N)
    m = ((tl.program_id(0) // grid_n) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
    n = ((tl.program_id(0) % grid_n) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)[None, :]
    j = tl.arange(0, BLOCK_R).to(tl.int64)
    b_ptrs = b_ptr + n * stride_bn + j[:, None] * stride_br
    b = tl.load(b_ptrs, (n < N) & (j[:, None] < RANK), other=0.0)
    if PDL:  # so far nothing that the launch before has written
        tl.extra.cuda.gdc_wait()
    used = (m < M) & (j[None, :] < RANK)
    u = tl.zeros((BLOCK_M, BLOCK_R), tl.float32)
    for split in tl.static_range(SPLITS):  # in one order: the same bits every time
        u += tl.load(part_ptr + (split * M + m) * BLOCK_R + j[None, :], used, other=0.0)
    y = tl.dot(u * SCALE, b.to(tl.float32), input_precision=PRECISION)  # nothing is rounded yet
    tl.store(y_ptr + m * N + n, y.to(y_ptr.dtype.element_ty), (m < M) & (n < N))


@gluon.constexpr_function
def _along_k(ctas, ranks, warps):
    """Return the layout of a slice of A, [blocks, r, K]: rows in warps and a few lanes, K in the
    other lanes, of which 8 send each sum to one block each."""
    lanes = max(1, min(4, ranks // warps))
    apart = blocks_apart(ctas, 3)
    return gl.BlockedLayout(
        [1, 1, 4], [1, lanes, 32 // lanes], [1, warps, 1], [2, 1, 0], cga_layout=apart
    )


@gluon.constexpr_function
def _one_each(layout):
    """Return the same layout with one element in a thread along the last axis."""
    return gl.BlockedLayout(
        [1, 1, 1], layout.threads_per_warp, layout.warps_per_cta, [2, 1, 0],
        cga_layout=layout.cga_layout,
    )  # fmt: skip


@gluon.constexpr_function
def _along_n(ctas, columns, ranks, warps):
    """Return the layout of a slice of B, [blocks, N, r]: a row in as few lanes as load it whole."""
    lanes = min(8, ranks // 4)
    each = max(1, min(4, columns * lanes // (32 * warps)))
    apart = blocks_apart(ctas, 3)
    return gl.BlockedLayout(
        [1, each, 4], [1, 32 // lanes, lanes], [1, warps, 1], [2, 1, 0], cga_layout=apart
    )


@gluon.constexpr_function
def _rows_apart(ctas, warps):
    """Return the layout of slices of rows of x, [blocks, M, K]."""
    apart = blocks_apart(ctas, 3)
    return gl.BlockedLayout([1, 1, 4], [1, 4, 8], [1, 2, warps // 2], [2, 1, 0], cga_layout=apart)


@gluon.constexpr_function
def _alike(ctas, warps):
    """Return the layout of numbers that every block holds."""
    bases = [[0] for i in range(ctas.bit_length() - 1)]
    return gl.BlockedLayout([1], [32], [warps], [0], cga_layout=bases)


@gluon.jit
def _slice_of(size, CTAS: gl.constexpr, LAYOUT: gl.constexpr):
    """Return how long a block's slice of an axis is, and where each begins. All but the last few
    are whole loads of 16 bytes in 16 bits."""
    each = gl.cdiv(size, CTAS * 8) * 8
    return each, each * gl.arange(0, CTAS, LAYOUT)


@gluon.jit
def _share_rows(
    x_ptr, m0, M, K, stride_xm, stride_xk,
    CTAS: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_K: gl.constexpr, TO: gl.constexpr,
):  # fmt: skip
    """Put this block's slice of the rows of x into its shared memory, from word TO on."""
    OF_X: gl.constexpr = _rows_apart(CTAS, gl.num_warps())
    each, low = _slice_of(K, CTAS, gl.SliceLayout(1, gl.SliceLayout(2, OF_X)))
    low = low[:, None, None]
    k = gl.arange(0, BLOCK_K, gl.SliceLayout(0, gl.SliceLayout(1, OF_X)))[None, None, :]
    i = gl.arange(0, BLOCK_M, gl.SliceLayout(0, gl.SliceLayout(2, OF_X)))[None, :, None]
    there = (k < gl.minimum(each, K - low)) & (m0 + i < M)
    x_ptrs = x_ptr + (m0 + i).to(gl.int64) * stride_xm + (low + k).to(gl.int64) * stride_xk
    x = gl.load(x_ptrs, there, other=0.0).to(gl.float32)
    store_words(x, (TO + i * BLOCK_K + k).broadcast_to(x.shape))


@gluon.jit
def _row_sums(
    a, FROM: gl.constexpr, CTAS: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_K: gl.constexpr,
    LAYOUT: gl.constexpr,
):  # fmt: skip
    """Return this block's sums of x A^T: a tensor [blocks, r] for each row of x."""
    k = gl.arange(0, BLOCK_K, gl.SliceLayout(0, gl.SliceLayout(1, LAYOUT)))[None, :]
    sums = ()
    for i in gl.static_range(BLOCK_M):
        x = load_fours((FROM + i * BLOCK_K + k).broadcast_to([CTAS, BLOCK_K]))
        sums = sums + (gl.sum(a * x[:, None, :], axis=2),)
    return sums


@gluon.jit
def _send_sums(
    sums, CTAS: gl.constexpr, BLOCK_M: gl.constexpr, BLOCK_R: gl.constexpr, LAYOUT: gl.constexpr
):
    """Send them to all blocks of the cluster, four rows at once, each by a lane of its own."""
    SENT: gl.constexpr = _one_each(LAYOUT)
    SHAPE: gl.constexpr = [CTAS, BLOCK_R, SENT.threads_per_warp[2]]
    block = gl.arange(0, SHAPE[2], gl.SliceLayout(0, gl.SliceLayout(1, SENT)))[None, None, :]
    j = gl.arange(0, BLOCK_R, gl.SliceLayout(0, gl.SliceLayout(2, SENT)))[None, :, None]
    own = gl.arange(0, CTAS, gl.SliceLayout(1, gl.SliceLayout(2, SENT)))[:, None, None]
    block = block.broadcast_to(SHAPE)
    for i in gl.static_range(0, BLOCK_M, 4):
        fours = ()
        for row in gl.static_range(i, i + 4):
            x = gl.convert_layout(sums[row], gl.SliceLayout(2, SENT))[:, :, None]
            fours = fours + (x.broadcast_to(SHAPE),)
        word = ((own * BLOCK_R + j) * BLOCK_M + i).broadcast_to(SHAPE)
        send_fours(fours[0], fours[1], fours[2], fours[3], block, word, CTAS)


@gluon.jit
def _clusters(
    x_ptr, a_ptr, b_ptr, y_ptr, M, N, K,
    stride_xm, stride_xk, stride_ar, stride_ak, stride_bn, stride_br,
    SCALE: gl.constexpr, RANK: gl.constexpr, CTAS: gl.constexpr, BLOCK_M: gl.constexpr,
    BLOCK_R: gl.constexpr, BLOCK_K: gl.constexpr, BLOCK_N: gl.constexpr,
):  # fmt: skip
    SUMS: gl.constexpr = BLOCK_M * BLOCK_R
    # words of shared memory: sums of all blocks, rows of x, u
    ROWS_AT: gl.constexpr = CTAS * SUMS
    U_AT: gl.constexpr = ROWS_AT + BLOCK_M * BLOCK_K
    begin_cluster(CTAS * SUMS, BLOCK_M * BLOCK_K + SUMS)
    WARPS: gl.constexpr = gl.num_warps()
    OF_A: gl.constexpr = _along_k(CTAS, BLOCK_R, WARPS)
    OF_B: gl.constexpr = _along_n(CTAS, BLOCK_N, BLOCK_R, WARPS)
    m0 = cluster_number(CTAS) * BLOCK_M
    # all that is read, on its way at once
    each, low = _slice_of(K, CTAS, gl.SliceLayout(1, gl.SliceLayout(2, OF_A)))
    low = low[:, None, None]
    k = gl.arange(0, BLOCK_K, gl.SliceLayout(0, gl.SliceLayout(1, OF_A)))[None, None, :]
    j = gl.arange(0, BLOCK_R, gl.SliceLayout(0, gl.SliceLayout(2, OF_A)))[None, :, None]
    a_ptrs = a_ptr + j.to(gl.int64) * stride_ar + (low + k).to(gl.int64) * stride_ak
    a = gl.load(a_ptrs, (j < RANK) & (k < gl.minimum(each, K - low)), other=0.0).to(gl.float32)
    each, low = _slice_of(N, CTAS, gl.SliceLayout(1, gl.SliceLayout(2, OF_B)))
    low = low[:, None, None]
    n = gl.arange(0, BLOCK_N, gl.SliceLayout(0, gl.SliceLayout(2, OF_B)))[None, :, None]
    j = gl.arange(0, BLOCK_R, gl.SliceLayout(0, gl.SliceLayout(1, OF_B)))[None, None, :]
    b_ptrs = b_ptr + (low + n).to(gl.int64) * stride_bn + j.to(gl.int64) * stride_br
    # volatile: else ptxas loads B when it is needed, which is too late
    b = gl.load(b_ptrs, (j < RANK) & (n < gl.minimum(each, N - low)), other=0.0, volatile=True)
    b = b.to(gl.float32)
    _share_rows(x_ptr, m0, M, K, stride_xm, stride_xk, CTAS, BLOCK_M, BLOCK_K, ROWS_AT)
    group_barrier()
    sums = _row_sums(a, ROWS_AT, CTAS, BLOCK_M, BLOCK_K, OF_A)
    await_cluster()
    _send_sums(sums, CTAS, BLOCK_M, BLOCK_R, OF_A)
    await_sent()
    FLAT: gl.constexpr = _alike(CTAS, WARPS)
    i = gl.arange(0, SUMS, FLAT)
    u = load_words(i)
    for block in gl.static_range(1, CTAS):  # in one order: the same bits every time
        u += load_words(i + block * SUMS)
    row, rank = i % BLOCK_M, i // BLOCK_M
    u = gl.where(rank < RANK, u * SCALE, 0.0)  # an infinite x leaves NaN beside the rank
    store_words(u, U_AT + row * BLOCK_R + rank)
    group_barrier()
    # y of one row of x at a time
    column = gl.arange(0, BLOCK_N, gl.SliceLayout(0, gl.SliceLayout(2, OF_B)))[None, :]
    each, low = _slice_of(N, CTAS, gl.SliceLayout(1, gl.SliceLayout(2, OF_B)))
    low = low[:, None]
    there = column < gl.minimum(each, N - low)
    column = low + column
    for i in gl.static_range(BLOCK_M):
        m = gl.cast(m0 + i, gl.int64)
        u = load_fours((U_AT + i * BLOCK_R + j).broadcast_to([CTAS, 1, BLOCK_R]))
        y = gl.sum(b * u, axis=2)
        gl.store(y_ptr + m * N + column, y.to(y_ptr.dtype.element_ty), there & (m < M))


@dataclass(frozen=True)
class Fused:
    block_m: int = tile(2, 8, default=4)
    block_n: int = tile(32, 256, default=128)
    block_k: int = tile(512, 1024, default=1024)
    num_warps: int = threads(4, 8, default=8)


@dataclass(frozen=True)
class Clusters:
    """AUTO: what suits the numbers of A and B in a block, see `size_clusters`."""

    block_m: int = tile(4, 16, default=AUTO)  # sums are sent four at a time
    ctas: int = among(4, 8, default=8)  # blocks of a cluster, on as many cores
    num_warps: int = threads(4, 8, default=AUTO)


@dataclass(frozen=True)
class SplitK:
    """AUTO: larger blocks where there are more than 64 rows, see `size_split_k`."""

    block_n: int = tile(16, 64, default=AUTO)
    block_k: int = tile(32, 128, default=AUTO)
    splits: int = among(8, 16, 32, default=16)
    num_warps: int = threads(2, 8, default=AUTO)
    pdl: int = among(0, 1, default=0)  # the second launch begins before the first one has ended
    tf32: int = among(0, 1, default=0)  # products of fp32 as three of tf32, by the matrix unit


def size_split_k(config, limits, *, itemsize, M, N, K, r):
    """Return the config with what is AUTO chosen by the number of rows: on an H100 1866 rows at
    K 10,496, N 5888, r 32 take 1.9 times as long with blocks of 32 and 64 and 4 warps as with
    blocks of 64 and 128 and 2 warps, 82 rows at K 1536, N 9472, r 64 2.7 times."""
    many = M > 64
    return replace(
        config,
        block_n=value_or(config.block_n, 64 if many else 32),
        block_k=value_or(config.block_k, 128 if many else 64),
        num_warps=value_or(config.num_warps, 2 if many else 4),
    )


def columns_of(r):
    """The width that a product of r columns is computed in: 16 at least."""
    return max(16, pad_up(r))


def columns_of_fused(r):
    """The width of a row of B in registers: 2 at least, so that a default tile of B has a number
    for each thread."""
    return max(2, pad_up(r))


def refuse_fused(config, limits, *, itemsize, M, N, K, r):
    """Among others, tiles of which several threads would hold the same numbers: as a tile changes
    its layout, each of them would store its copy to the same place of shared memory."""
    threads_ = config.num_warps * limits.warp_size
    R = columns_of_fused(r)
    tiles = {"y": config.block_m * config.block_n, "B": config.block_n * R}
    tiles["a quarter of K"] = config.block_k // 4
    if scarce := next((n for n, held in tiles.items() if held < threads_), None):
        return f"a tile of {scarce} has {tiles[scarce]} numbers, fewer than {threads_} threads"
    if R > 16:
        return f"at a rank of {r} every program would read too much of A; 16 is the most"
    if (held := R * config.block_k // threads_) > 128:
        return f"each thread would hold {held} elements of A in registers; 128 is the most"
    products = config.block_m * R * max(config.block_k, config.block_n) // threads_
    if products > 512:
        return f"each thread would compute {products} products at once; 512 is the most"
    return None


def refuse_split_k(config, limits, *, itemsize, M, N, K, r):
    if r > 128:
        return f"a rank of {r} is more than one step of a tile; 128 is the most"
    if config.pdl and (reason := limits.refuse_pdl()):
        return reason
    if config.tf32 and not limits.nvidia:
        return "the matrix units of AMD have no tf32 here, and multiply fp32 themselves"
    shared = 2 * (16 + columns_of(r)) * config.block_k * itemsize
    return limits.refuse_shared(shared)


def fused_work(config, limits, *, itemsize, M, N, K, r):
    """Return the work of the launch. Barriers and operations are those of the machine code at ranks
    of 4, 8 and 16 (Triton 3.6, sm_90): every program computes its rows of x A^T again, and x and A
    change their layout by way of shared memory."""
    steps, R = -(-K // config.block_k), columns_of_fused(r)
    products = config.block_m * R * config.block_k
    return Work(
        tiles=tile_count(config, M=M, N=N),
        steps=steps,
        load_bytes=(config.block_m + r) * config.block_k * itemsize,
        store_bytes=config.block_m * config.block_n * itemsize,
        # 152, 256 and 461 operations of each of 256 threads in a trip; 526, 946 and 1,790 behind it
        vector_ops=2 * products + 7 * products // steps,
        barriers=2 * R + 8 + 9 // steps,  # 16, 24 and 40 in a trip; 9, 9 and 15 behind it
    )


def split_k_work(config, limits, *, itemsize, M, N, K, r):
    """Return the work of both launches. Barriers and operations are those of the machine code at
    ranks of 8, 32 and 64 (Triton 3.6, sm_90)."""
    R, threads_ = columns_of(r), config.num_warps * limits.warp_size
    blocks = -(-K // config.block_k)
    splits = min(config.splits, blocks)
    steps = -(-blocks // splits)
    shrink = Work(
        tiles=-(-M // 16) * splits,
        steps=steps,
        load_bytes=(16 + R) * config.block_k * itemsize,
        store_bytes=16 * R * 4,
        dot=(16, R, config.block_k),
        stages=2,
        # 749, 590 and 775 operations of each thread in a trip of 64, most to make three products of
        # tf32; 350 to 450 around the trips
        vector_ops=(11 * config.block_k + 400 // steps) * threads_,
        barriers=2 + 2 // steps,
        passed_bytes=splits * M * R * 4,
    )
    expand = Work(
        tiles=-(-M // 16) * -(-N // config.block_n),
        steps=1,
        load_bytes=splits * 16 * R * 4 + config.block_n * R * itemsize,
        store_bytes=16 * config.block_n * itemsize,
        vector_ops=18 * splits * 16 * R,  # 16, 17.5 and 26 for each part of u
        barriers=2 * splits + 3,  # each part changes its layout
        waits=1 - config.pdl,  # for b, which is on its way before the first launch has ended
        hits=config.pdl,
        passed_bytes=splits * M * R * 4,
        memory_bytes=(N * r + M * N) * itemsize,
    )
    return shrink, expand


# 64 threads a warp
WAVE64 = {"gfx90a gfx942 gfx950": Fused(num_warps=4)}


@lora_delta.impl(Fused, refuse=refuse_fused, work=fused_work, defaults=WAVE64)
def fused(x, a, b, *, config):
    """One launch: every program computes its rows of x A^T again, with all lanes along K."""
    (M, K), (N, r) = x.shape, b.shape
    y = x.new_empty(M, N)
    constants = dict(SCALE=SCALE, RANK=r, BLOCK_R=columns_of_fused(r))
    _fused[(tile_count(config, M=M, N=N),)](
        x, a, b, y, M, N, K, *strides(x, a, b), **constants, **meta(config)
    )
    return y


def columns_of_clusters(r):
    """The width of a rank in registers: 4 at least, so that u is read 16 bytes at a time."""
    return max(4, pad_up(r))


def size_clusters(config, limits, *, itemsize, M, N, K, r):
    """Return the config with what is AUTO chosen by the sizes.

    Of 64 rows, in us on an H200, with 4 and with 8 warps: 1.91 and 2.21 at d = 512, r = 8; 2.57 and
    2.65 at d = 1024, r = 16; but 3.61 and 3.34 at d = 2048, r = 8. Each cluster reads all of A and
    B, and there are more clusters of 4 rows than of 8: 7.82 and 6.46 at d = 2048, r = 64. They are
    faster nevertheless at d = 1024, r = 32 and 64 (3.35 and 3.64, 4.61 and 5.18).
    """
    longest, R = max(slice_block(config, K), slice_block(config, N)), columns_of_clusters(r)
    block_m = value_or(config.block_m, 4 if R >= 16 and longest <= 128 else 8)
    num_warps = value_or(config.num_warps, 8 if longest > 128 and R > 4 else 4)
    return replace(config, block_m=block_m, num_warps=num_warps)


def slice_block(config, size):
    """Return the width of a block's slice of K or N, padded to a power of two."""
    return max(32, pad_up(-(-size // (8 * config.ctas)) * 8))


def refuse_clusters(config, limits, *, itemsize, M, N, K, r):
    if reason := refuse_hopper(limits):
        return reason
    R, threads_ = columns_of_clusters(r), 32 * config.num_warps
    if r > 64:
        return f"a rank of {r} is too many sums to send each block; 64 is the most"
    if config.num_warps > R:
        return f"{config.num_warps} warps are more than {R} rows of A: two would send the same sums"
    for name, size in {"A": K, "B": N}.items():
        if (held := slice_block(config, size) * R // threads_) > 64:
            return f"each thread would hold {held} elements of {name}; 64 is the most"
    if (shared := 4 * shared_words(config, K, R)) > 48_000:
        return f"a block would keep {shared} bytes of sums and rows; 48000 is the most"
    if (blocks := -(-M // config.block_m) * config.ctas) >= 1 << 31:
        return f"a grid has less than 2^31 blocks, not {blocks}"
    return None


def shared_words(config, K, R):
    """Return how many numbers a block keeps: the sums of all blocks, rows of x, and u."""
    return config.block_m * ((config.ctas + 1) * R + slice_block(config, K))


def clusters_work(config, limits, *, itemsize, M, N, K, r):
    R, BM = columns_of_clusters(r), config.block_m
    k, n = slice_block(config, K), slice_block(config, N)
    return Work(
        tiles=-(-M // BM) * config.ctas,
        steps=1,
        load_bytes=(k * (R + BM) + n * R) * itemsize,
        store_bytes=BM * n * itemsize,
        vector_ops=2 * BM * R * (k + n),
        barriers=3,
        # loads, then the exchange: seven times on an H200 were 0.8 to 1.5 us longer with one
        waits=2,
    )


DEFAULTS = {
    "sm_90": SplitK(pdl=1, tf32=1),
    # 64 threads a warp: with fewer warps each thread still loads 128 bits at once
    "gfx90a gfx942 gfx950": SplitK(num_warps=2),
}


@lora_delta.impl(
    Clusters,
    resolve=size_clusters,
    refuse=refuse_clusters,
    work=clusters_work,
    unchecked_reason=UNCHECKED,
)
def clusters(x, a, b, *, config):
    """One launch: each block of a cluster multiplies a slice of K and sends its sums to the others,
    then each multiplies all of them with a slice of B. In Gluon."""
    (M, K), (N, r) = x.shape, b.shape
    y = x.new_empty(M, N)
    constants = dict(SCALE=SCALE, RANK=r, BLOCK_R=columns_of_clusters(r), CTAS=config.ctas)
    constants |= dict(BLOCK_K=slice_block(config, K), BLOCK_N=slice_block(config, N))
    options = dict(BLOCK_M=config.block_m, num_warps=config.num_warps, num_ctas=config.ctas)
    _clusters[(triton.cdiv(M, config.block_m),)](
        x, a, b, y, M, N, K, *strides(x, a, b), **constants, **options
    )
    return y


@lora_delta.impl(
    SplitK, resolve=size_split_k, refuse=refuse_split_k, work=split_k_work, defaults=DEFAULTS
)
def split_k(x, a, b, *, config):
    """Two launches: x A^T once, in parts of K, then their sum times B^T; the same time at any
    rank."""
    (M, K), (N, r) = x.shape, b.shape
    R, BM, SPLITS = columns_of(r), 16, min(config.splits, triton.cdiv(K, config.block_k))
    parts, y = x.new_empty(SPLITS, M, R, dtype=torch.float32), x.new_empty(M, N)
    pdl, precision = bool(config.pdl) and not INTERPRETED, "tf32x3" if config.tf32 else "ieee"
    constants = dict(RANK=r, BLOCK_R=R, BLOCK_M=BM, BLOCK_K=config.block_k, SPLITS=SPLITS)
    constants |= dict(PRECISION=precision, PDL=pdl, UPCAST=upcast(x), num_warps=config.num_warps)
    _shrink[(triton.cdiv(M, BM) * SPLITS,)](
        x, a, parts, M, K, *strides(x, a), **constants, num_stages=2
    )
    constants = dict(SCALE=SCALE, RANK=r, BLOCK_R=R, BLOCK_M=BM, BLOCK_N=config.block_n)
    constants |= dict(SPLITS=SPLITS, PRECISION=precision, PDL=pdl)
    constants |= dict(num_warps=min(8, config.num_warps * R // 32))
    _expand[(triton.cdiv(M, BM) * triton.cdiv(N, config.block_n),)](
        parts, b, y, M, N, *b.stride(), **constants, **launch_pdl(pdl)
    )
    return y


@baseline(lora_delta)
def library(x, a, b):
    """Two products of cuBLAS or hipBLAS."""
    u = torch.nn.functional.linear(x, a)
    return torch.nn.functional.linear(u, b) * SCALE
