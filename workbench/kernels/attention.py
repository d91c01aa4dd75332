"""Attention: o = softmax(q k^T / sqrt(D)) v, for each head, over all keys.

G query heads share one head of k and v. At S = T = 8192 it does about S / 2 = 4096 FLOP for each
byte that it must move, as long as the S x T scores never leave the core, so the matrix unit is
the limit, and with it the exponentials: an H100 multiplies 256 times as many FLOP a second as
it takes exponentials, and a score costs 4 * D FLOP, so at D = 128 they take half as long as the
products, and at D = 64 as long. So one block's products should overlap another's
exponentials. A block of block_m queries asks the cache for 2 * block_m FLOP's worth of each
16-bit element of k and v.

A NaN in a key makes NaN of every query of its heads, an infinity in v of its column there: infinite
or NaN. Other heads and sequences do not see them.
"""

import functools
import heapq
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch

from workbench.dsl import (
    TensorDescriptor,
    attention_backend,
    block_strides,
    cores,
    meta,
    precision_of,
    strides,
    tl,
    triton,
    upcast,
)
from workbench.dsl.gluon import (
    UNCHECKED,
    barriers,
    copy_out,
    describe_blocks,
    fence_async_shared,
    fetch_parts,
    gl,
    gluon,
    mbarrier,
    named_barrier,
    next_slot,
    refuse_hopper,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from workbench.spec import (
    AUTO,
    Extent,
    Spec,
    Tensor,
    Tolerance,
    Work,
    among,
    stages,
    threads,
    tile,
    value_or,
)

LOG2E = 1.4426950408889634


def reference(q, k, v, causal=False):
    heads, wide = q.shape[2], q.shape[2] // k.shape[2]
    o, at = q.new_empty(q.shape), torch.arange(k.shape[1], device=q.device)
    for h in range(heads):  # and 2048 queries at a time: 8192 x 8192 scores take 0.5 GB
        keys, values = k[:, :, h // wide], v[:, :, h // wide]
        for rows in (slice(m, m + 2048) for m in range(0, q.shape[1], 2048)):
            scores = q[:, rows, h] @ keys.mT * q.shape[-1] ** -0.5
            if causal:
                scores.masked_fill_(at > at[rows, None], -float("inf"))
            o[:, rows, h] = torch.softmax(scores, dim=-1) @ values
    return o


attention = Spec(
    name="attention",
    inputs={"q": Tensor("B S Hkv*G D"), "k": Tensor("B T Hkv D"), "v": Tensor("B T Hkv D")},
    outputs={"o": Tensor("B S Hkv*G D")},
    reference=reference,
    flops=lambda B, S, Hkv, G, D, T: 4 * B * Hkv * G * S * T * D,
    check=[
        {"B": 1, "S": 1, "Hkv": 1, "G": 1, "D": 64, "T": 1},
        {"B": 2, "S": 37, "Hkv": 1, "G": 2, "D": 72, "T": 141},
        {"B": 1, "S": 96, "Hkv": 2, "G": 1, "D": 96, "T": 80},
        {"B": 1, "S": 131, "Hkv": 1, "G": 1, "D": 128, "T": 128},
        {"B": 2, "S": 33, "Hkv": 1, "G": 1, "D": 64, "T": 40},
        {"B": 1, "S": 130, "Hkv": 1, "G": 2, "D": 192, "T": 65},
        {"B": 1, "S": 66, "Hkv": 1, "G": 1, "D": 256, "T": 129},
    ],
    bench=[
        {"B": 2, "S": 8192, "Hkv": 16, "G": 1, "D": 128, "T": 8192},
        {"B": 2, "S": 8192, "Hkv": 16, "G": 1, "D": 64, "T": 8192},
        {"B": 8, "S": 2048, "Hkv": 16, "G": 1, "D": 128, "T": 2048},
        {"B": 16, "S": 1024, "Hkv": 16, "G": 1, "D": 72, "T": 1024},
        {"B": 2, "S": 8192, "Hkv": 8, "G": 4, "D": 128, "T": 8192},
    ],
    extents={"D": Extent(choices=(64, 72, 80, 96, 128, 192, 256))},
    refusable=lambda itemsize, D, **at: D > 128 or (itemsize > 2 and D > 64),
    # The weights are rounded before they meet v, each by up to 2^-12 (fp16) or 2^-9 (bf16) of
    # itself, so their sum is off in proportion to its rms, whatever the element itself is: at
    # T = 8192 by 0.0009 and 0.0065 of it at most in 262 144 elements on a CPU.
    # All errors together are those of two roundings, of the weights and of the output: 0.0003 and
    # 0.0024 of the rms; twice that and more is allowed.
    tolerance={
        "fp32": Tolerance(relative=1e-5, rms_share=2e-5),
        "fp16": Tolerance(relative=1e-3, rms_share=2e-3, rms=1e-3),
        "bf16": Tolerance(relative=8e-3, rms_share=1.5e-2, rms=5e-3),
    },
)


@triton.jit
def _load(
    ptr, rows, columns, stride_row, stride_column, R, C,
    EVEN: tl.constexpr, MASK_C: tl.constexpr,
):  # fmt: skip
    """Rows of one head; those beyond R and columns beyond C are zero."""
    ptrs = ptr + rows[:, None] * stride_row + columns[None, :] * stride_column
    if EVEN and not MASK_C:
        return tl.load(ptrs)
    if EVEN:
        return tl.load(ptrs, columns[None, :] < C, other=0.0)
    if not MASK_C:
        return tl.load(ptrs, rows[:, None] < R, other=0.0)
    return tl.load(ptrs, (rows[:, None] < R) & (columns[None, :] < C), other=0.0)


@triton.jit
def _score(q, k, UPCAST: tl.constexpr):
    if UPCAST:
        q, k = q.to(tl.float32), k.to(tl.float32)
    # three parts of 256 columns spill 1 KB a thread and more
    PRECISION: tl.constexpr = "ieee" if q.shape[1] > 128 else precision_of(q.dtype)
    return tl.dot(q, tl.trans(k), input_precision=PRECISION)


@triton.jit
def _weigh(high, total, s, scale):
    """Weights of one block of keys, and what they do to each query's running maximum and sum; what
    came before counts `keep` times from now on."""
    higher = tl.maximum(high, tl.max(s, axis=1) * scale)
    p = tl.exp2(s * scale - higher[:, None])
    keep = tl.exp2(high - higher)
    return p, keep, higher, total * keep + tl.sum(p, axis=1)


@triton.jit
def _add(acc, p, keep, v, UPCAST: tl.constexpr):
    p = p.to(v.dtype)
    if UPCAST:
        p, v = p.to(tl.float32), v.to(tl.float32)
    PRECISION: tl.constexpr = "ieee" if v.shape[1] > 128 else precision_of(v.dtype)
    return tl.dot(p, v, acc * keep[:, None], input_precision=PRECISION)


@triton.jit
def _place(S, HEADS, BLOCK_M: tl.constexpr, GROUP: tl.constexpr, CAUSAL: tl.constexpr):
    """Head and first query of a program's block. With the mask GROUP heads at a time, whose keys
    meet in the cache, and among them the last queries first, because they have the most keys."""
    if CAUSAL:
        at = tl.program_id(0)
        grid_m = tl.cdiv(S, BLOCK_M)
        first = at // (GROUP * grid_m) * GROUP
        heads = min(HEADS - first, GROUP)
        inside = at - first * grid_m
        head, m0 = first + inside % heads, (grid_m - 1 - inside // heads) * BLOCK_M
    else:
        grid_m = tl.cdiv(S, BLOCK_M)
        head, m0 = tl.program_id(0) // grid_m, tl.program_id(0) % grid_m * BLOCK_M
    return head, m0


@triton.jit
def _keep_logs(lse_ptr, b, h, H, S, m0, m, high, total):
    """Store the log of the sum of each query's exponentials, [B, H, S], for the gradients."""
    lse = (high + tl.log2(total)) * 0.6931471805599453
    lse_ptr += (b.to(tl.int64) * H + h) * S + m0
    tl.store(lse_ptr + m, lse, m < S - m0)


# T is the number of keys, and None with the mask, where there are S; HEADS, of all sequences
# together, is None without it; lse_ptr is None where nobody needs the logs. What is None is not an
# argument of the compiled kernel.
@triton.jit
def _tiles(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, S, T, HEADS, H, G, scale,
    q_b, q_s, q_h, q_d, k_b, k_t, k_h, k_d, v_b, v_t, v_h, v_d,
    D: tl.constexpr, WIDTH: tl.constexpr, CAUSAL: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr,
    EVEN_M: tl.constexpr, EVEN_N: tl.constexpr, WIDE: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    head, m0 = _place(S, HEADS, BLOCK_M, GROUP, CAUSAL)
    b, h = (head // H).to(tl.int64), head % H
    q_ptr += b * q_b + h.to(tl.int64) * q_h + m0.to(tl.int64) * q_s
    k_ptr += b * k_b + (h // G).to(tl.int64) * k_h
    v_ptr += b * v_b + (h // G).to(tl.int64) * v_h
    m, n, d = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, WIDTH)
    CUT: tl.constexpr = WIDTH > D  # columns of zeros: tl.dot takes powers of two
    if WIDE:  # offsets within a block of rows may exceed 2^31
        m, n, d = m.to(tl.int64), n.to(tl.int64), d.to(tl.int64)
    q = _load(q_ptr, m, d, q_s, q_d, S - m0, D, EVEN_M, CUT)
    acc = tl.zeros((BLOCK_M, WIDTH), tl.float32)
    high = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    # keys in blocks that every query sees whole
    whole = m0 // BLOCK_N * BLOCK_N if CAUSAL else T // BLOCK_N * BLOCK_N
    for _ in range(0, whole, BLOCK_N):
        k = _load(k_ptr, n, d, k_t, k_d, S, D, True, CUT)
        s = _score(q, k, UPCAST)
        p, keep, high, total = _weigh(high, total, s, scale)
        v = _load(v_ptr, n, d, v_t, v_d, S, D, True, CUT)
        acc = _add(acc, p, keep, v, UPCAST)
        k_ptr += tl.full((), BLOCK_N, tl.int64) * k_t
        v_ptr += tl.full((), BLOCK_N, tl.int64) * v_t
    if CAUSAL:
        for n0 in range(whole, min(m0 + BLOCK_M, S), BLOCK_N):  # those that the diagonal crosses
            k = _load(k_ptr, n, d, k_t, k_d, S - n0, D, EVEN_N, CUT)
            unseen = n[None, :] - m[:, None] > m0 - n0
            s = tl.where(unseen, -float("inf"), _score(q, k, UPCAST))
            p, keep, high, total = _weigh(high, total, s, scale)
            v = _load(v_ptr, n, d, v_t, v_d, S - n0, D, EVEN_N, CUT)
            acc = _add(acc, p, keep, v, UPCAST)
            k_ptr += tl.full((), BLOCK_N, tl.int64) * k_t
            v_ptr += tl.full((), BLOCK_N, tl.int64) * v_t
    elif not EVEN_N:
        left = T % BLOCK_N
        k = _load(k_ptr, n, d, k_t, k_d, left, D, False, CUT)
        s = _score(q, k, UPCAST)
        s = tl.where(n[None, :] >= left, -float("inf"), s)
        p, keep, high, total = _weigh(high, total, s, scale)
        v = _load(v_ptr, n, d, v_t, v_d, left, D, False, CUT)
        acc = _add(acc, p, keep, v, UPCAST)
    o_ptr += ((b * S + m0) * H + h) * D
    o_ptrs = o_ptr + m.to(tl.int64)[:, None] * H * D
    y = (acc / total[:, None]).to(o_ptr.dtype.element_ty)
    tl.store(o_ptrs + d[None, :], y, (m[:, None] < S - m0) & (d[None, :] < D))
    if lse_ptr is not None:
        _keep_logs(lse_ptr, b, h, H, S, m0, m, high, total)


@triton.jit
def _part(descriptor, b, h, row, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Rows of one head; what lies outside is zero."""
    return descriptor.load([b, row, h, 0]).reshape(ROWS, COLUMNS)


@triton.jit
def _put(descriptor, b, h, row, acc, total):
    y = (acc / total[:, None]).to(descriptor.dtype)
    descriptor.store([b, row, h, 0], y[None, :, None, :])


@triton.jit
def _overlapped(
    q, q_ptr, q_b, q_s, q_h, k, v, o, lse_ptr, S, T, HEADS, H, G, scale, D: tl.constexpr,
    WIDTH: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    GROUP: tl.constexpr, EVEN_N: tl.constexpr, HOLD: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    head, m0 = _place(S, HEADS, BLOCK_M, GROUP, CAUSAL)
    b, h = head // H, head % H
    g = h // G
    if HOLD:  # a block that is reshaped lies in registers
        w = _part(q, b, h, m0, BLOCK_M, WIDTH)
    else:
        q_ptr += b.to(tl.int64) * q_b + h.to(tl.int64) * q_h + m0.to(tl.int64) * q_s
        rows, d = tl.arange(0, BLOCK_M).to(tl.int64), tl.arange(0, WIDTH)
        w = _load(q_ptr, rows, d, q_s, 1, S - m0, D, False, WIDTH > D)
    m, n = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, WIDTH), tl.float32)
    # with the mask the least number, not minus infinity: the first queries see nothing of the
    # first block
    LEAST: tl.constexpr = -3.4028234663852886e38 if CAUSAL else -float("inf")
    high = tl.full((BLOCK_M,), LEAST, tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    # from the last keys to the first: those that the diagonal crosses or a ragged block, then
    # whole blocks
    if CAUSAL:
        last = m0 // BLOCK_N * BLOCK_N
        CROSSED: tl.constexpr = (BLOCK_M + BLOCK_N - 1) // BLOCK_N
        p, keep = tl.zeros((BLOCK_M, BLOCK_N), k.dtype), total
        for i in tl.static_range(CROSSED):
            n0 = last + (CROSSED - 1 - i) * BLOCK_N
            x = _part(k, b, g, n0, BLOCK_N, WIDTH)
            unseen = n[None, :] - m[:, None] > m0 - n0
            s = tl.where(unseen, -float("inf"), _score(w, x, UPCAST))
            if i > 0:
                y = _part(v, b, g, n0 + BLOCK_N, BLOCK_N, WIDTH)
                acc = _add(acc, p, keep, y, UPCAST)
            p, keep, high, total = _weigh(high, total, s, scale)
            p = p.to(k.dtype)
    else:
        last = (T - 1) // BLOCK_N * BLOCK_N
        x = _part(k, b, g, last, BLOCK_N, WIDTH)
        s = _score(w, x, UPCAST)
        if not EVEN_N:
            s = tl.where(n[None, :] >= T - last, -float("inf"), s)
        p, keep, high, total = _weigh(high, total, s, scale)
        p = p.to(k.dtype)
    # p as a number of the trip before goes through shared memory. From registers its product is
    # not safe: Triton 3.6 writes the next weights there before the product has read these.
    for i in range(0, last, BLOCK_N):
        n0 = last - BLOCK_N - i
        x = _part(k, b, g, n0, BLOCK_N, WIDTH)
        s = _score(w, x, UPCAST)
        y = _part(v, b, g, n0 + BLOCK_N, BLOCK_N, WIDTH)
        acc = _add(acc, p, keep, y, UPCAST)
        p, keep, high, total = _weigh(high, total, s, scale)
        p = p.to(k.dtype)
    y = _part(v, b, g, 0, BLOCK_N, WIDTH)
    acc = _add(acc, p, keep, y, UPCAST)
    _put(o, b, h, m0, acc, total)
    if lse_ptr is not None:
        _keep_logs(lse_ptr, b, h, H, S, m0, m, high, total)


# Two warp groups that take turns: `ping_pong`. A program keeps a core and works off a column of a
# table of tiles. One warp fetches blocks of q, k and v into rings; two warp groups multiply, each
# with the queries of its half of a tile. A group starts the scores of the next block of keys
# together with the product of the present block's weights and v, and while its products run the
# other group takes exponentials. Weights stay in registers. Blocks go from the last to the first,
# so only a group's first block, which stands before the loop, is ever masked: with the mask and 64
# keys the last block of a tile belongs to the second group, and the first one passes over it.
#
# Heads of more than 128 columns lie in two parts, of 128 and of 64 or 128 columns, since blocks are
# powers of two: rings and descriptors are pairs of those of each part.

GROUP_ROWS, TILE_ROWS = 64, 128  # queries of a warp group, the rows of its product, and of a tile
ROWS, TILE = gl.constexpr(GROUP_ROWS), gl.constexpr(TILE_ROWS)


@gluon.jit
def locate_tile(t, grid_m, H, T, BLOCK_N: gl.constexpr, CAUSAL: gl.constexpr):
    """Sequence, head and first query of a tile, and how many blocks of keys it meets."""
    head, m0 = t // grid_m, t % grid_m * TILE
    seen = m0 + TILE if CAUSAL else T
    return head // H, head % H, m0, gl.cdiv(seen, BLOCK_N)


@gluon.jit
def _fetch_tiles(
    maps, rings, full, free, problem, G: gl.constexpr, BLOCK_N: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    QUERIES: gl.constexpr = rings[0][0].shape[0] // 2
    STAGES: gl.constexpr = rings[1][0].shape[0]
    qi, q_phase, ki, k_phase, vi, v_phase = 0, 1, 0, 1, 0, 1
    table, T, H, grid_m = problem
    table += gl.program_id(0)
    t = gl.load(table)
    while t >= 0:
        table += gl.num_programs(0)
        following = gl.load(table)  # early, for its latency
        b, h, m0, blocks = locate_tile(t, grid_m, H, T, BLOCK_N, CAUSAL)
        for w in gl.static_range(2):
            at = [b, m0 + w * ROWS, h, 0]
            fetch_parts(maps[0], at, rings[0], full[0], free[0], 2 * qi + w, q_phase)
        qi, q_phase = next_slot(qi, q_phase, QUERIES)
        for i in range(blocks + 1):  # in the order of use: v one block after k
            if i < blocks:
                at = [b, (blocks - 1 - i) * BLOCK_N, h // G, 0]
                fetch_parts(maps[1], at, rings[1], full[1], free[1], ki, k_phase)
                ki, k_phase = next_slot(ki, k_phase, STAGES)
            if i > 0:
                at = [b, (blocks - i) * BLOCK_N, h // G, 0]
                fetch_parts(maps[2], at, rings[2], full[2], free[2], vi, v_phase)
                vi, v_phase = next_slot(vi, v_phase, STAGES)
        t = following


@gluon.jit
def as_matrix(block):
    """A block of one head in shared memory as a matrix; the copy engine's has four axes."""
    return block.reshape([block.shape[1], block.shape[3]])


@gluon.jit
def _lane_sums(p):
    """Sums of the columns that a thread holds, two for each row; only a tile's end adds across
    threads."""
    return gl.sum(p.reshape([ROWS, p.shape[1] // 8, 4, 2]), 1)


@gluon.jit
def _as_lane_sums(x, sums):
    L: gl.constexpr = sums.type.layout
    return gl.convert_layout(x, gl.SliceLayout(1, gl.SliceLayout(2, L)))[:, None][:, :, None]


@gluon.jit
def _attend(
    W: gl.constexpr, maps, rings, full, free, problem, ends, BLOCK_N: gl.constexpr,
    CAUSAL: gl.constexpr, TURNS: gl.constexpr, HOLD: gl.constexpr,
):  # fmt: skip
    q_s, k_s, v_s = rings
    table, T, H, grid_m = problem
    scale, lse_ptr, S = ends
    q_full, k_full, v_full = full
    q_free, k_free, v_free = free
    QUERIES: gl.constexpr = q_s[0].shape[0] // 2
    STAGES: gl.constexpr = k_s[0].shape[0]
    WIDTH: gl.constexpr = k_s[0].shape[4]
    WIDE: gl.constexpr = maps[1][1] is not None
    REST: gl.constexpr = k_s[1].shape[4]
    DTYPE: gl.constexpr = k_s[0].dtype
    S_L: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    O_L: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    R_L: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, REST, 16])
    P_L: gl.constexpr = gl.DotOperandLayout(0, O_L, 2)
    R_P_L: gl.constexpr = gl.DotOperandLayout(0, R_L, 2)
    MINE: gl.constexpr = 8 + W  # the named barrier on which this warp group waits for its turn
    OTHER: gl.constexpr = 9 - W
    PASSES: gl.constexpr = CAUSAL and BLOCK_N == ROWS and W == 0
    qi, q_phase, ki, k_phase, vi, v_phase = 0, 0, 0, 0, 0, 0
    if TURNS and W == 1:
        named_barrier("bar.arrive", OTHER, T)  # the other one begins
    zero = gl.zeros([ROWS, BLOCK_N], gl.float32, S_L)  # use_acc=False needs an operand all the same
    n = gl.arange(0, BLOCK_N, gl.SliceLayout(0, S_L))
    m = W * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, S_L))
    table += gl.program_id(0)
    t = gl.load(table)
    while t >= 0:
        table += gl.num_programs(0)
        following = gl.load(table)
        b, h, m0, blocks = locate_tile(t, grid_m, H, T, BLOCK_N, CAUSAL)
        mine = 2 * qi + W
        mbarrier.wait(q_full.index(mine), q_phase)
        queries = as_matrix(q_s[0].index(mine))
        q = queries.load(gl.DotOperandLayout(0, S_L, 2)) if HOLD else queries
        if PASSES:
            mbarrier.wait(k_full.index(ki), k_phase)
            mbarrier.arrive(k_free.index(ki))
            ki, k_phase = next_slot(ki, k_phase, STAGES)
            mbarrier.wait(v_full.index(vi), v_phase)
            mbarrier.arrive(v_free.index(vi))
            vi, v_phase = next_slot(vi, v_phase, STAGES)
            blocks -= 1
            if TURNS:
                named_barrier("bar.sync", MINE, blocks)
                named_barrier("bar.arrive", OTHER, blocks)
        mbarrier.wait(k_full.index(ki), k_phase)
        keys = as_matrix(k_s[0].index(ki)).permute((1, 0))
        s = warpgroup_mma(q, keys, zero, use_acc=False, is_async=True)
        if WIDE:
            keys = as_matrix(k_s[1].index(ki)).permute((1, 0))
            s = warpgroup_mma(as_matrix(q_s[1].index(mine)), keys, s, is_async=True)
        s = warpgroup_mma_wait(0, deps=[s])
        mbarrier.arrive(k_free.index(ki))
        ki, k_phase = next_slot(ki, k_phase, STAGES)
        n0 = (blocks - 1) * BLOCK_N
        last = m0 + m[:, None] - n0 if CAUSAL else T - 1 - n0
        s = gl.where(n[None, :] <= last, s, float("-inf"))
        high = gl.max(s, 1) * scale
        p = gl.exp2(s * scale - high[:, None])
        total = _lane_sums(p)
        weights = gl.convert_layout(p.to(DTYPE), P_L)  # moves nothing
        acc = gl.zeros([ROWS, WIDTH], gl.float32, O_L)
        rest = gl.zeros([ROWS, REST], gl.float32, R_L) if WIDE else acc
        for i in range(1, blocks):
            mbarrier.wait(k_full.index(ki), k_phase)
            if TURNS:
                named_barrier("bar.sync", MINE, i)
            keys = as_matrix(k_s[0].index(ki)).permute((1, 0))
            s = warpgroup_mma(q, keys, zero, use_acc=False, is_async=True)
            if WIDE:
                keys = as_matrix(k_s[1].index(ki)).permute((1, 0))
                s = warpgroup_mma(as_matrix(q_s[1].index(mine)), keys, s, is_async=True)
            mbarrier.wait(v_full.index(vi), v_phase)
            acc = warpgroup_mma(weights, as_matrix(v_s[0].index(vi)), acc, is_async=True)
            if WIDE:
                same = gl.convert_layout(weights, R_P_L)
                rest = warpgroup_mma(same, as_matrix(v_s[1].index(vi)), rest, is_async=True)
            if TURNS:
                named_barrier("bar.arrive", OTHER, i)
            s = warpgroup_mma_wait(2 if WIDE else 1, deps=[s])
            mbarrier.arrive(k_free.index(ki))
            ki, k_phase = next_slot(ki, k_phase, STAGES)
            higher = gl.maximum(high, gl.max(s, 1) * scale)
            keep = gl.exp2(high - higher)
            high = higher
            p = gl.exp2(s * scale - high[:, None])
            sums = _lane_sums(p)
            total = total * _as_lane_sums(keep, sums) + sums
            # `weights` is waited for too: the product reads it from registers until then
            if WIDE:
                acc, rest, weights = warpgroup_mma_wait(0, deps=[acc, rest, weights])
            else:
                acc, weights = warpgroup_mma_wait(0, deps=[acc, weights])
            mbarrier.arrive(v_free.index(vi))
            vi, v_phase = next_slot(vi, v_phase, STAGES)
            acc = acc * gl.convert_layout(keep, gl.SliceLayout(1, O_L))[:, None]
            if WIDE:
                rest = rest * gl.convert_layout(keep, gl.SliceLayout(1, R_L))[:, None]
            weights = gl.convert_layout(p.to(DTYPE), P_L)
        mbarrier.wait(v_full.index(vi), v_phase)
        acc = warpgroup_mma(weights, as_matrix(v_s[0].index(vi)), acc, is_async=True)
        if WIDE:
            same = gl.convert_layout(weights, R_P_L)
            rest = warpgroup_mma(same, as_matrix(v_s[1].index(vi)), rest, is_async=True)
            acc, rest = warpgroup_mma_wait(0, deps=[acc, rest])
        else:
            acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(v_free.index(vi))
        vi, v_phase = next_slot(vi, v_phase, STAGES)
        whole = gl.convert_layout(gl.sum(gl.sum(total, 2), 1), gl.SliceLayout(1, O_L))
        queries.store((acc * (1.0 / whole)[:, None]).to(DTYPE))  # in the place of the queries
        if WIDE:
            wide = gl.convert_layout(1.0 / whole, gl.SliceLayout(1, R_L))
            as_matrix(q_s[1].index(mine)).store((rest * wide[:, None]).to(DTYPE))
        fence_async_shared()
        copy_out(maps[3][0], [b, m0 + W * ROWS, h, 0], q_s[0].index(mine))
        if WIDE:
            copy_out(maps[3][1], [b, m0 + W * ROWS, h, WIDTH], q_s[1].index(mine))
        tma.store_wait(0)
        mbarrier.arrive(q_free.index(mine))
        qi, q_phase = next_slot(qi, q_phase, QUERIES)
        if lse_ptr is not None:
            lse = gl.convert_layout(high, gl.SliceLayout(1, O_L)) + gl.log2(whole)
            rows = m0 + W * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, O_L))
            at = (b.to(gl.int64) * H + h) * S + rows
            gl.store(lse_ptr + at, lse * 0.6931471805599453, rows < S)
        t = following


@gluon.jit
def _rings(first, rest, SLOTS: gl.constexpr):
    """Rings of blocks of both parts of the columns; where there is one part, its ring twice."""
    SHAPE: gl.constexpr = first.block_type.shape
    ring = gl.allocate_shared_memory(first.dtype, [SLOTS] + SHAPE, first.layout)
    beyond = ring
    if rest is not None:
        BEYOND: gl.constexpr = rest.block_type.shape
        beyond = gl.allocate_shared_memory(rest.dtype, [SLOTS] + BEYOND, rest.layout)
    return ring, beyond


@gluon.jit(do_not_specialize=["S", "T", "H", "grid_m"])
def _ping_pong(
    q, k, v, o, q_rest, k_rest, v_rest, o_rest, lse_ptr, S, table, T, H, grid_m, scale,
    G: gl.constexpr, BLOCK_N: gl.constexpr, CAUSAL: gl.constexpr, QUERIES: gl.constexpr,
    STAGES: gl.constexpr, TURNS: gl.constexpr, HOLD: gl.constexpr,
):  # fmt: skip
    # queries of QUERIES tiles, for two warp groups each; the output leaves from there
    rings = (
        _rings(q, q_rest, 2 * QUERIES),
        _rings(k, k_rest, STAGES),
        _rings(v, v_rest, STAGES),
    )
    maps = ((q, q_rest), (k, k_rest), (v, v_rest), (o, o_rest))
    full = (barriers(2 * QUERIES, 1), barriers(STAGES, 1), barriers(STAGES, 1))
    free = (barriers(2 * QUERIES, 1), barriers(STAGES, 2), barriers(STAGES, 2))
    problem = (table, T, H, grid_m)
    ends = (scale, lse_ptr, S)
    gl.warp_specialize(
        [
            (_attend, (0, maps, rings, full, free, problem, ends, BLOCK_N, CAUSAL, TURNS, HOLD)),
            (_attend, (1, maps, rings, full, free, problem, ends, BLOCK_N, CAUSAL, TURNS, HOLD)),
            (_fetch_tiles, (maps, rings, full, free, problem, G, BLOCK_N, CAUSAL)),
        ],
        [4, 1],
        # The default partition gets the registers that are left: 240 too. Of heads of 256 columns
        # Triton 3.9 spills 48 to 80 bytes a thread around the loop; of 232 registers twice that.
        [240, 24],
    )


@dataclass(frozen=True)
class Tiles:
    block_m: int = tile(64, 128, default=128)
    block_n: int = tile(16, 128, default=AUTO)  # by the width of a head
    num_warps: int = threads(4, 8, default=8)
    num_stages: int = stages(1, 4, default=2)


@dataclass(frozen=True)
class Overlapped:
    block_m: int = tile(32, 128, default=128)
    block_n: int = tile(32, 128, default=AUTO)  # by the width of a head
    num_warps: int = threads(4, 8, default=8)
    num_stages: int = stages(2, 3, default=3)
    hold: int = among(0, 1, default=1)  # queries in registers, or in shared memory


@dataclass(frozen=True)
class PingPong:
    block_n: int = tile(64, 128, default=AUTO)  # by the width of a head
    num_stages: int = stages(2, 3, default=2)
    turns: int = among(0, 1, default=1)  # the warp groups multiply one after the other


def size_pointed(config, limits, *, itemsize, D, **axes):
    """Return the config with its blocks chosen by the width of a head: half as many keys of 256
    columns, and in fp32 half as many queries. In fp32 on sm_90 32 of those keys spill 3.3 KB a
    thread, 16 nothing; in bf16 on gfx942 64 spill 228 bytes, 32 nothing."""
    keys = 32 if itemsize > 2 else 128 if limits.nvidia else 64
    block_m = value_or(config.block_m, 64 if itemsize > 2 and D > 128 else 128)
    block_n = value_or(config.block_n, keys // 2 if D > 128 else keys)
    return replace(config, block_m=block_m, block_n=block_n)


def size_keys(config, limits, *, itemsize, D, **axes):
    """Return the config with its block of keys chosen by the width of a head.

    At 128 columns one program fills a core's shared memory with long blocks; at 64 two programs
    share it, and one multiplies while the other waits."""
    keys = {64: 64, 128: 128, 256: 32}[1 << (D - 1).bit_length()]
    return replace(config, block_n=value_or(config.block_n, keys))


def holds(config, width):
    """Return whether registers hold the queries: of wider heads they cannot."""
    return config.hold and width <= 128


def refuse_tiles(config, limits, *, itemsize, D, **sizes):
    width = 1 << (D - 1).bit_length()  # padded
    threads_ = config.num_warps * limits.warp_size
    held = config.block_m * (width + config.block_n) // threads_
    # without a pipeline, and where it holds its newest stage in registers, k and v take turns
    nvidia = limits.nvidia
    blocks = 2 * (config.num_stages if nvidia else config.num_stages - 1) or 1
    queries = config.block_m if nvidia else 0
    shared = (queries + max(1, blocks) * config.block_n) * width * itemsize
    return refuse_crowded(held, shared, limits)


def refuse_overlapped(config, limits, *, itemsize, D, **sizes):
    if limits.arch not in ("sm_90", "sm_100", "sm_103"):
        return "elsewhere a warp waits for its products, and nothing can run beside them"
    width = 1 << (D - 1).bit_length()  # padded
    BM, BN, hold = config.block_m, config.block_n, holds(config, width)
    if itemsize > 2 and width > 64:
        return f"in fp32 {width} columns spill, 64 do not"
    if itemsize == 2 and BM < 64:
        return "a warp group multiplies 64 rows; fewer do not overlap other instructions"
    held = BM * (width + BN + hold * width // 2) // (config.num_warps * limits.warp_size)
    blocks = (not hold) * BM * width + 2 * config.num_stages * BN * width
    return refuse_crowded(held, (blocks + BM * BN) * itemsize, limits)


def refuse_ping_pong(config, limits, *, itemsize, D, **sizes):
    if reason := refuse_hopper(limits):
        return reason
    if itemsize != 2:
        return "its products are of 16-bit inputs"
    if D > 256:
        return f"each thread would hold {D // 2} numbers of the output, and they spill"
    blocks = TILE_ROWS + 2 * config.num_stages * config.block_n
    return limits.refuse_shared(blocks * sum(parts(D)) * itemsize + 1024, "blocks")


def parts(D):
    """Return the columns of the parts of a head, powers of two of at least 64; what they are more
    than D is zeros."""
    if D <= 128:
        return (64 if D <= 64 else 128,)
    return 128, 64 if D <= 192 else 128


def query_slots(config, D):
    """Return for how many tiles of queries a core's 227 KB have room beside keys and values."""
    blocks = 2 * TILE_ROWS + 2 * config.num_stages * config.block_n
    return 2 if blocks * sum(parts(D)) * 2 + 1024 <= 227 * 1024 else 1


def refuse_crowded(held, shared, limits):
    reason = limits.refuse_held(held, 192, "numbers in registers")
    return reason or limits.refuse_shared(shared, "blocks")


def work(config, limits, *, itemsize, B, S, Hkv, G, D, T):
    width = 1 << (D - 1).bit_length()  # padded
    return Work(
        tiles=B * Hkv * G * -(-S // config.block_m),
        steps=-(-T // config.block_n),
        load_bytes=2 * config.block_n * D * itemsize,
        store_bytes=config.block_m * D * itemsize,
        dot=(config.block_m, config.block_n, 2 * width),
        **softmax_ops(config.block_m, config.block_n, width),
    )


def softmax_ops(rows, columns, width):
    """Return the operations beside the products: of each score a scale, a maximum, a difference, a
    sum, a conversion and an exponential; of each sum a scale."""
    scores = rows * columns
    return dict(vector_ops=5 * scores + rows * width, special_ops=scores)


def ping_pong_work(config, limits, *, itemsize, B, S, Hkv, G, D, T):
    width = sum(parts(D))  # padded
    return Work(
        tiles=B * Hkv * G * -(-S // TILE_ROWS),
        steps=-(-T // config.block_n),
        load_bytes=2 * config.block_n * D * itemsize,
        store_bytes=TILE_ROWS * D * itemsize,
        dot=(TILE_ROWS, config.block_n, 2 * width),
        **softmax_ops(TILE_ROWS, config.block_n, width),
        overlapped=True,  # two groups of warps take turns, and a third loads
        stages=config.num_stages + 1,
    )


@attention.impl(
    Tiles,
    resolve=size_pointed,
    refuse=refuse_tiles,
    work=work,
    defaults={
        "fp32": Tiles(64, AUTO, 8, 2),  # on the vector units
        "fp32:sm_90": Tiles(AUTO, AUTO, 8, 3),
        "sm_80": Tiles(128, 64, 8, 2),
        "sm_89 sm_120": Tiles(128, 32, 8, 2),
        "gfx90a gfx942 gfx950": Tiles(128, AUTO, 4, 2),
        "gfx1100": Tiles(64, 32, 8, 1),
    },
)
def tiles(q, k, v, *, config, lse=False):
    """One program for block_m queries of a head, pointers into k and v: takes any strides."""
    return launch_tiles(q, k, v, config, lse)


def launch_tiles(q, k, v, config, lse, causal=False):
    (B, S, H, D), T = q.shape, k.shape[1]
    o, logs = q.new_empty(B, S, H, D), q.new_empty(B, H, S, dtype=torch.float32) if lse else None
    width = triton.next_power_of_2(D)
    BM, BN = config.block_m, config.block_n
    spans = [max(BM, BN) * x.stride(1) + width * x.stride(3) for x in (q, k, v)]
    constants = dict(D=D, WIDTH=width, EVEN_M=S % BM == 0, EVEN_N=T % BN == 0)
    constants |= dict(WIDE=max(spans) >= 2**31, UPCAST=upcast(q), **meta(config))
    sizes, masked = sizes_of(q, k, config, causal)
    _tiles[(triton.cdiv(S, BM) * B * H,)](
        q, k, v, o, logs, *sizes, *strides(q, k, v), **masked, **constants
    )
    return (o, logs) if lse else o


def sizes_of(q, k, config, causal):
    """Return the numbers that both kernels take and the constants of the mask."""
    (B, S, H, D), (_, T, Hkv, _) = q.shape, k.shape
    masked = {"CAUSAL": causal, "GROUP": config.group if causal else 1}
    extents = (S, None, B * H) if causal else (S, T, None)
    return (*extents, H, H // Hkv, LOG2E * D**-0.5), masked


@attention.impl(
    Overlapped,
    resolve=size_keys,
    refuse=refuse_overlapped,
    work=work,
    defaults={"fp32": Overlapped(32, 32, 8, 2), "fp32:sm_90": Overlapped(128, 32, 8, 3)},
)
def overlapped(q, k, v, *, config, lse=False):
    """A block's weights wait one trip for their product with v, which then overlaps the
    exponentials of the next block."""
    return launch_overlapped(q, k, v, config, lse)


def launch_overlapped(q, k, v, config, lse, causal=False):
    (B, S, H, D), T = q.shape, k.shape[1]
    o, logs = q.new_empty(B, S, H, D), q.new_empty(B, H, S, dtype=torch.float32) if lse else None
    width = triton.next_power_of_2(D)
    BM, BN, hold = config.block_m, config.block_n, holds(config, width)
    blocks = (("q", q, BM), ("k", k, BN), ("v", v, BN), ("o", o, BM))
    of_q, *maps = [head_descriptor(name, x, rows, width) for name, x, rows in blocks]
    # with the mask keys beyond the last count as those that the diagonal hides
    constants = dict(D=D, WIDTH=width, EVEN_N=causal or T % BN == 0, HOLD=hold, UPCAST=upcast(q))
    sizes, masked = sizes_of(q, k, config, causal)
    _overlapped[(triton.cdiv(S, BM) * B * H,)](
        of_q, q, *q.stride()[:3], *maps, logs, *sizes, **masked, **constants, **meta(config)
    )
    return (o, logs) if lse else o


def head_descriptor(name, x, rows, columns):
    """A descriptor of blocks of one head."""
    return TensorDescriptor(x, list(x.shape), block_strides(name, x), [1, rows, 1, columns])


def size_blocks(config, limits, *, D, **axes):
    """Return the config with its block of keys chosen by the width of a head, by shared memory."""
    return replace(config, block_n=value_or(config.block_n, 64 if D > 128 else 128))


@attention.impl(
    PingPong,
    resolve=size_blocks,
    refuse=refuse_ping_pong,
    work=ping_pong_work,
    unchecked_reason=UNCHECKED,
)
def ping_pong(q, k, v, *, config, lse=False):
    """Two warp groups take turns: one multiplies while the other takes exponentials. Persistent
    programs, in Gluon."""
    return launch_ping_pong(q, k, v, config, lse)


def launch_ping_pong(q, k, v, config, lse, causal=False):
    (B, S, H, D), T = q.shape, k.shape[1]
    o, logs = q.new_empty(B, S, H, D), q.new_empty(B, H, S, dtype=torch.float32) if lse else None
    width, *rest = parts(D)
    keys = config.block_n
    rows = {"q": (q, GROUP_ROWS), "k": (k, keys), "v": (v, keys), "o": (o, GROUP_ROWS)}
    maps = [describe_blocks(name, x, [1, n, 1, width]) for name, (x, n) in rows.items()]
    for name, (x, n) in rows.items():
        maps.append(describe_blocks(name, x, [1, n, 1, rest[0]]) if rest else None)
    grid_m = triton.cdiv(S, TILE_ROWS)
    grid = min(cores(q), B * H * grid_m)
    group = config.group if causal else 0
    table = schedule(q.device, B * H, grid_m, grid, group)
    constants = dict(G=H // k.shape[2], BLOCK_N=keys, CAUSAL=causal, QUERIES=query_slots(config, D))
    constants |= dict(STAGES=config.num_stages, TURNS=bool(config.turns), HOLD=D <= 64)
    scale = LOG2E * D**-0.5
    sizes = (S if lse else None, table, T, H, grid_m, scale)
    _ping_pong[(grid,)](*maps, logs, *sizes, **constants, num_warps=4)
    return (o, logs) if lse else o


@functools.lru_cache(maxsize=256)
def schedule(device, heads, grid_m, programs, group):
    """Return the tiles of each program as a column of a table that -1 closes.

    Each tile goes to the program with the least work so far. With the mask (`group` heads together)
    the long tiles of a group of heads come first. Made once for each problem: 2048 tiles take 3 ms.
    """
    tiles = range(heads * grid_m)
    if group:
        firsts = range(0, heads, group)
        order = ((first, m) for first in firsts for m in reversed(range(grid_m)))
        tiles = [
            h * grid_m + m for first, m in order for h in range(first, min(first + group, heads))
        ]
    columns, least = [[] for _ in range(programs)], [(0.0, at) for at in range(programs)]
    for t in tiles:
        work, at = heapq.heappop(least)
        columns[at].append(t)
        # a tile's ends take as long as 0.7 of a block of keys
        heapq.heappush(least, (work + (t % grid_m + 1.7 if group else 1.0), at))
    rows = 1 + max(map(len, columns))
    closed = [column + [-1] * (rows - len(column)) for column in columns]
    return torch.tensor(closed, dtype=torch.int32).T.contiguous().to(device)


def refuse_sdpa(config, limits, *, itemsize, **at):
    return "the library has it for 16 bits only" if itemsize != 2 else None


def scaled_dot_product(backend="", causal=False):
    """Return torch's own call, by one of its backends or what torch chooses."""

    def call(q, k, v):
        grouped = q.shape[2] != k.shape[2]
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        with attention_backend(backend) if backend else nullcontext():
            o = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=causal, enable_gqa=grouped
            )
        return o.transpose(1, 2)

    return call


def add_libraries(spec, causal):
    """Enter torch's versions of this Spec."""
    chosen = scaled_dot_product(causal=causal)
    chosen.__doc__ = "What torch chooses."
    spec.library("torch", chosen)
    for name in ("flash", "cudnn"):
        spec.library(name, scaled_dot_product(name, causal=causal), refuse=refuse_sdpa)


add_libraries(attention, causal=False)
