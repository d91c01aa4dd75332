"""Gradients of attention: from q, k, v, the forward pass' o and lse, and do = dL/do to dq, dk and
dv, for each head, over all keys.

With p = exp(q k^T / sqrt(D) - lse), the weights again, and ds = p (do v^T - sum(o do)) they are
dv = p^T do, dk = ds^T q / sqrt(D) and dq = ds k / sqrt(D); G query heads share a head of k and v
and add to the same dk and dv. These are five products of 2 * S * T * D FLOP a head, two and a half
times the forward pass. A sum over queries and one over keys cannot both stay with one program, and
sums that programs add up in memory as they come have other bits each time. So there are two
launches, each with its own sums: the first, one program for some queries, computes dq; the second,
one program for some keys, dk and dv. Both compute the scores and do v^T: seven products. The matrix
unit is the limit.

The first launch also writes what the second needs of each query, sum(o do) and lse in base 2.

A NaN in a key, or in v, makes NaN of its own dk and of every dq of its heads; a NaN in a query, or
in its o, lse or do, of its own dq and of every dk of its heads.
"""

from dataclasses import dataclass, fields, replace

import torch

from workbench.dsl import (
    TensorDescriptor,
    block_strides,
    cores,
    normal,
    precision_of,
    strides,
    tl,
    triton,
)
from workbench.dsl.gluon import (
    UNCHECKED,
    barriers,
    copy_out,
    describe_blocks,
    fence_async_shared,
    fetch,
    gl,
    gluon,
    mbarrier,
    next_slot,
    refuse_hopper,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from workbench.kernels import attention as forward
from workbench.spec import AUTO, Spec, Tensor, Tolerance, Work, stages, threads, tile, value_or

LOG2E = 1.4426950408889634
# of the forward pass' warp groups
GROUP_ROWS, ROWS, TILE_ROWS = forward.GROUP_ROWS, forward.ROWS, forward.TILE_ROWS
locate_tile, as_matrix, schedule = forward.locate_tile, forward.as_matrix, forward.schedule
_load = forward._load


def reference(q, k, v, o, lse, do, causal=False):
    dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
    wide, scale = q.shape[2] // k.shape[2], q.shape[-1] ** -0.5
    at = torch.arange(k.shape[1], device=q.device)
    for h in range(q.shape[2]):  # and 2048 queries at a time: 8192 x 8192 scores take 0.5 GB
        g = h // wide
        for rows in (slice(m, m + 2048) for m in range(0, q.shape[1], 2048)):
            seen = slice(0, rows.stop if causal else None)
            keys, values = k[:, seen, g], v[:, seen, g]
            queries, upstream = q[:, rows, h], do[:, rows, h]
            p = torch.exp(queries @ keys.mT * scale - lse[:, h, rows, None])
            along = (o[:, rows, h] * upstream).sum(-1, keepdim=True)
            ds = p * (upstream @ values.mT - along) * scale
            if causal:
                unseen = at[seen] > at[rows, None]
                p, ds = p.masked_fill(unseen, 0.0), ds.masked_fill(unseen, 0.0)
            dq[:, rows, h] = ds @ keys
            dk[:, seen, g] += ds.mT @ queries
            dv[:, seen, g] += p.mT @ upstream
    return dq, dk, dv


def logs(shape, dtype, device, generator):
    """About log(T) + 1/2, which the scores of standard normal inputs sum to, for T of some
    thousands."""
    return 8 + torch.randn(shape, generator=generator, device=device).to(dtype)


attention_backward = Spec(
    name="attention_backward",
    # All are normal: lse is not that of other scores, whose weights fp16 would not hold, and of
    # small v and do ds is below what it can tell.
    inputs={
        "q": Tensor("B S Hkv*G D", make=normal),
        "k": Tensor("B T Hkv D", make=normal),
        "v": Tensor("B T Hkv D", make=normal),
        "o": Tensor("B S Hkv*G D", make=normal),
        "lse": Tensor("B Hkv*G S", dtype="fp32", make=logs),
        "do": Tensor("B S Hkv*G D", make=normal),
    },
    outputs={
        "dq": Tensor("B S Hkv*G D"),
        "dk": Tensor("B T Hkv D"),
        "dv": Tensor("B T Hkv D"),
    },
    reference=reference,
    flops=lambda B, S, Hkv, G, D, T: 10 * B * Hkv * G * S * T * D,
    check=[
        {"B": 1, "S": 1, "Hkv": 1, "G": 1, "D": 64, "T": 1},
        {"B": 2, "S": 37, "Hkv": 1, "G": 2, "D": 72, "T": 141},
        {"B": 1, "S": 96, "Hkv": 2, "G": 1, "D": 96, "T": 80},
        {"B": 1, "S": 131, "Hkv": 1, "G": 1, "D": 128, "T": 128},
        {"B": 2, "S": 33, "Hkv": 1, "G": 1, "D": 64, "T": 40},
    ],
    bench=[
        {"B": 2, "S": 4096, "Hkv": 16, "G": 1, "D": 128, "T": 4096},
        {"B": 2, "S": 4096, "Hkv": 16, "G": 1, "D": 64, "T": 4096},
        {"B": 4, "S": 2048, "Hkv": 16, "G": 1, "D": 128, "T": 2048},
        {"B": 2, "S": 4096, "Hkv": 8, "G": 4, "D": 128, "T": 4096},
    ],
    extents=forward.attention.extents,
    refusable=lambda itemsize, D, **at: itemsize > 2 and D > 128,
    # p and ds are rounded before their products, each by up to 2^-12 (fp16) or 2^-9 (bf16) of
    # itself, so a sum is off in proportion to its rms, as in the forward pass. All errors together
    # are those of these roundings and of the output's: twice that and more is allowed. Rows whose
    # weights lie on few keys have gradients far above the rms: of 1.7e7 elements the worst was off
    # by 7.7 % of the rms in bf16 (torch's own kernel; 5.4 % ours, an H200).
    tolerance={
        "fp32": Tolerance(relative=1e-5, rms_share=5e-5),
        "fp16": Tolerance(relative=1e-3, rms_share=1.2e-2, rms=1e-3),
        "bf16": Tolerance(relative=8e-3, rms_share=1e-1, rms=6e-3),
    },
)


@triton.jit
def _dot(a, b, acc):
    # three parts of 256 columns spill 1 KB a thread and more
    WIDE: tl.constexpr = max(a.shape[1], b.shape[1]) > 128
    PRECISION: tl.constexpr = "ieee" if WIDE else precision_of(a.dtype)
    return tl.dot(a, b, acc, input_precision=PRECISION)


@triton.jit
def _locate(extent, HEADS, BLOCK: tl.constexpr, GROUP: tl.constexpr, CAUSAL: tl.constexpr):
    """Head and block of a program; with the mask GROUP heads at a time, whose rows meet in the
    cache, and among them the first blocks first."""
    at, blocks = tl.program_id(0), tl.cdiv(extent, BLOCK)
    if CAUSAL:
        first = at // (GROUP * blocks) * GROUP
        heads = min(HEADS - first, GROUP)
        inside = at - first * blocks
        head, block = first + inside % heads, inside // heads
    else:
        head, block = at // blocks, at % blocks
    return head, block


@triton.jit
def _walk(
    x, b, row, head, rows, columns, stride_row, stride_column, R, C,
    EVEN: tl.constexpr, CUT: tl.constexpr, COPIED: tl.constexpr,
):  # fmt: skip
    """A block of a loop's trip: rows from `row` on of one head, from a descriptor or a pointer."""
    if COPIED:
        block = x.load([b, row, head, 0]).reshape(rows.shape[0], columns.shape[0])
    else:
        x += row.to(tl.int64) * stride_row
        block = _load(x, rows, columns, stride_row, stride_column, R - row, C, EVEN, CUT)
    return block


# x is a descriptor, or a pointer to the first row of the head
@triton.jit
def _head(x, b, h, stride_b, stride_h, COPIED: tl.constexpr):
    return x if COPIED else x + b.to(tl.int64) * stride_b + h.to(tl.int64) * stride_h


# T is the number of keys, and None with the mask, where there are S. What is None is not an
# argument of the compiled kernel.
@triton.jit
def _queries(
    q_ptr, k, v, o_ptr, lse_ptr, do_ptr, dq_ptr, rows_ptr, S, T, HEADS, H, G, scale,
    q_b, q_s, q_h, q_d, k_b, k_t, k_h, k_d, v_b, v_t, v_h, v_d, o_b, o_s, o_h, o_d, l_b, l_h, l_s,
    do_b, do_s, do_h, do_d,
    D: tl.constexpr, WIDTH: tl.constexpr, CAUSAL: tl.constexpr, GROUP: tl.constexpr,
    COPIED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    EVEN_M: tl.constexpr, EVEN_N: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    head, block = _locate(S, HEADS, BLOCK_M, GROUP, CAUSAL)
    if CAUSAL:  # the last queries have the most keys
        block = tl.cdiv(S, BLOCK_M) - 1 - block
    m0 = block * BLOCK_M
    b, h = head // H, head % H
    m, n, d = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, WIDTH)
    CUT: tl.constexpr = WIDTH > D  # columns of zeros: tl.dot takes powers of two
    if WIDE:  # offsets within a block of rows may exceed 2^31
        m, n, d = m.to(tl.int64), n.to(tl.int64), d.to(tl.int64)
    q_ptr = _head(q_ptr, b, h, q_b, q_h, False) + m0.to(tl.int64) * q_s
    o_ptr = _head(o_ptr, b, h, o_b, o_h, False) + m0.to(tl.int64) * o_s
    do_ptr = _head(do_ptr, b, h, do_b, do_h, False) + m0.to(tl.int64) * do_s
    q = _load(q_ptr, m, d, q_s, q_d, S - m0, D, EVEN_M, CUT)
    do = _load(do_ptr, m, d, do_s, do_d, S - m0, D, EVEN_M, CUT)
    o = _load(o_ptr, m, d, o_s, o_d, S - m0, D, EVEN_M, CUT)
    along = tl.sum(o.to(tl.float32) * do.to(tl.float32), axis=1)
    inside, at = m < S - m0, (m0 + m).to(tl.int64)
    lse = tl.load(_head(lse_ptr, b, h, l_b, l_h, False) + at * l_s, inside, other=float("inf"))
    lse *= 1.4426950408889634
    rows_ptr += head.to(tl.int64) * 2 * S
    tl.store(rows_ptr + at, lse, inside)
    tl.store(rows_ptr + S + at, along, inside)
    g = h // G
    k, v = _head(k, b, g, k_b, k_h, COPIED), _head(v, b, g, v_b, v_h, COPIED)
    dq = tl.zeros((BLOCK_M, WIDTH), tl.float32)
    keys = S if CAUSAL else T
    # keys in blocks that every query sees whole
    whole = m0 // BLOCK_N * BLOCK_N if CAUSAL else T // BLOCK_N * BLOCK_N
    for n0 in range(0, whole, BLOCK_N):
        x = _walk(k, b, n0, g, n, d, k_t, k_d, keys, D, True, CUT, COPIED)
        y = _walk(v, b, n0, g, n, d, v_t, v_d, keys, D, True, CUT, COPIED)
        s, dp = _dot(q, tl.trans(x), None), _dot(do, tl.trans(y), None)
        ds = tl.exp2(s * scale - lse[:, None]) * (dp - along[:, None])
        dq = _dot(ds.to(x.dtype), x, dq)
    # those that the diagonal crosses, or a ragged one
    last = min(m0 + BLOCK_M, S) if CAUSAL else T
    if CAUSAL or not EVEN_N:
        for n0 in range(whole, last, BLOCK_N):
            x = _walk(k, b, n0, g, n, d, k_t, k_d, keys, D, EVEN_N, CUT, COPIED)
            y = _walk(v, b, n0, g, n, d, v_t, v_d, keys, D, EVEN_N, CUT, COPIED)
            s, dp = _dot(q, tl.trans(x), None), _dot(do, tl.trans(y), None)
            ds = tl.exp2(s * scale - lse[:, None]) * (dp - along[:, None])
            unseen = n[None, :] - m[:, None] > m0 - n0 if CAUSAL else n[None, :] >= T - n0
            dq = _dot(tl.where(unseen, 0.0, ds).to(x.dtype), x, dq)
    dq *= scale * 0.6931471805599453
    dq_ptrs = dq_ptr + ((b.to(tl.int64) * S + m0) * H + h) * D + m.to(tl.int64)[:, None] * H * D
    mask = inside[:, None] & (d[None, :] < D)
    tl.store(dq_ptrs + d[None, :], dq.to(dq_ptr.dtype.element_ty), mask)


@triton.jit
def _add_queries(dk, dv, k, v, q, do, rows_ptr, m, S, m0, unseen, crossed, scale):
    """dk and dv with what one block of queries adds to them; where the diagonal crosses the block,
    nothing of what is `unseen`. Queries from S on have an infinite lse, and so no weight."""
    lse = tl.load(rows_ptr + m0 + m, m < S - m0, other=float("inf"))
    along = tl.load(rows_ptr + S + m0 + m, m < S - m0, other=0.0)
    s, dp = _dot(k, tl.trans(q), None), _dot(v, tl.trans(do), None)
    p, change = tl.exp2(s * scale - lse[None, :]), dp - along[None, :]
    if crossed:
        p = tl.where(unseen, 0.0, p)
        change = tl.where(unseen, 0.0, change)  # 0 times what is not finite
    dv = _dot(p.to(do.dtype), do, dv)
    return _dot((p * change).to(q.dtype), q, dk), dv


@triton.jit
def _keys(
    q, k_ptr, v_ptr, do, dk_ptr, dv_ptr, rows_ptr, S, T, HEADS, H, G, scale,
    q_b, q_s, q_h, q_d, k_b, k_t, k_h, k_d, v_b, v_t, v_h, v_d, do_b, do_s, do_h, do_d,
    D: tl.constexpr, WIDTH: tl.constexpr, CAUSAL: tl.constexpr, GROUP: tl.constexpr,
    COPIED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    EVEN_M: tl.constexpr, EVEN_N: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    keys = S if CAUSAL else T
    head, block = _locate(keys, HEADS, BLOCK_N, GROUP, CAUSAL)  # the first keys have most queries
    n0 = block * BLOCK_N
    b, g = head // H, head % H
    m, n, d = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, WIDTH)
    CUT: tl.constexpr = WIDTH > D
    if WIDE:
        m, n, d = m.to(tl.int64), n.to(tl.int64), d.to(tl.int64)
    k_ptr = _head(k_ptr, b, g, k_b, k_h, False) + n0.to(tl.int64) * k_t
    v_ptr = _head(v_ptr, b, g, v_b, v_h, False) + n0.to(tl.int64) * v_t
    k = _load(k_ptr, n, d, k_t, k_d, keys - n0, D, EVEN_N, CUT)
    v = _load(v_ptr, n, d, v_t, v_d, keys - n0, D, EVEN_N, CUT)
    dk, dv = tl.zeros((BLOCK_N, WIDTH), tl.float32), tl.zeros((BLOCK_N, WIDTH), tl.float32)
    # One loop for blocks that the diagonal crosses and for others: of two that share dk and dv,
    # ptxas waits for each product (C7515), which takes 1.3 times as long.
    first = n0 // BLOCK_M * BLOCK_M if CAUSAL else 0
    for i in range(G):
        h = g * G + i
        of_q, of_do = _head(q, b, h, q_b, q_h, COPIED), _head(do, b, h, do_b, do_h, COPIED)
        of_rows = rows_ptr + (head * G + i).to(tl.int64) * 2 * S
        for m0 in range(first, S, BLOCK_M):
            x = _walk(of_q, b, m0, h, m, d, q_s, q_d, S, D, EVEN_M, CUT, COPIED)
            y = _walk(of_do, b, m0, h, m, d, do_s, do_d, S, D, EVEN_M, CUT, COPIED)
            unseen = n[:, None] - m[None, :] > m0 - n0
            crossed = m0 < n0 + BLOCK_N if CAUSAL else False
            dk, dv = _add_queries(dk, dv, k, v, x, y, of_rows, m, S, m0, unseen, crossed, scale)
    dk *= scale * 0.6931471805599453
    to = ((b.to(tl.int64) * keys + n0) * H + g) * D + n.to(tl.int64)[:, None] * H * D + d[None, :]
    inside = (n[:, None] < keys - n0) & (d[None, :] < D)
    tl.store(dk_ptr + to, dk.to(dk_ptr.dtype.element_ty), inside)
    tl.store(dv_ptr + to, dv.to(dv_ptr.dtype.element_ty), inside)


# dq by two warp groups: `warp_groups`. As in the forward pass' `ping_pong` a program keeps a core
# and works off a column of a table of tiles, one warp fetches, and blocks of keys go from the last
# to the first, so that a group's first block alone is masked. The product for dq of one block runs
# while the scores of the next are computed.

KEYS = gl.constexpr(64)  # of a trip
KEY_SLOTS, VALUE_SLOTS = gl.constexpr(3), gl.constexpr(2)  # a block of keys is used for longer


@gluon.jit
def _fetch_tiles(maps, rings, full, free, problem, G: gl.constexpr, CAUSAL: gl.constexpr):
    qi, q_phase, ki, k_phase, vi, v_phase = 0, 1, 0, 1, 0, 1
    table, T, H, grid_m = problem
    table += gl.program_id(0)
    t = gl.load(table)
    while t >= 0:
        table += gl.num_programs(0)
        following = gl.load(table)  # early, for its latency
        b, h, m0, blocks = locate_tile(t, grid_m, H, T, KEYS, CAUSAL)
        for w in gl.static_range(2):
            at = [b, m0 + w * ROWS, h, 0]
            fetch(maps[0], at, rings[0], full[0], free[0], 2 * qi + w, q_phase)
            fetch(maps[1], at, rings[1], full[1], free[0], 2 * qi + w, q_phase)
        qi, q_phase = next_slot(qi, q_phase, 2)
        for i in range(blocks):
            at = [b, (blocks - 1 - i) * KEYS, h // G, 0]
            fetch(maps[2], at, rings[2], full[2], free[1], ki, k_phase)
            fetch(maps[3], at, rings[3], full[3], free[2], vi, v_phase)
            ki, k_phase = next_slot(ki, k_phase, KEY_SLOTS)
            vi, v_phase = next_slot(vi, v_phase, VALUE_SLOTS)
        t = following


@gluon.jit
def _read_rows(do_s, ends, b, h, first, S, H, row_layout: gl.constexpr):
    """lse in base 2 and sum(o do) of a warp group's queries, which it also writes."""
    o_ptr, lse_ptr, rows_ptr, _, D, o_b, o_s, o_h, o_d, l_b, l_h, l_s = ends
    WIDTH: gl.constexpr = do_s.shape[1]
    L: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    m, d = gl.arange(0, ROWS, gl.SliceLayout(1, L)), gl.arange(0, WIDTH, gl.SliceLayout(0, L))
    base = o_ptr + b.to(gl.int64) * o_b + h.to(gl.int64) * o_h
    at = (first + m).to(gl.int64)[:, None] * o_s + d[None, :] * o_d
    o = gl.load(base + at, (first + m < S)[:, None] & (d < D)[None, :], other=0.0)
    sums = gl.sum(o.to(gl.float32) * do_s.load(L).to(gl.float32), 1)
    along = gl.convert_layout(sums, row_layout)
    rows = first + gl.arange(0, ROWS, row_layout)
    logs = lse_ptr + b.to(gl.int64) * l_b + h * l_h
    lse = gl.load(logs + rows.to(gl.int64) * l_s, rows < S, other=float("inf"))
    lse *= 1.4426950408889634
    to = rows_ptr + (b.to(gl.int64) * H + h) * 2 * S + rows
    gl.store(to, lse, rows < S)
    gl.store(to + S, along, rows < S)
    return lse, along


@gluon.jit
def _differentiate(
    W: gl.constexpr, maps, rings, full, free, problem, S, ends, CAUSAL: gl.constexpr,
):  # fmt: skip
    q_s, do_s, k_s, v_s = rings
    q_full, do_full, k_full, v_full = full
    q_free, k_free, v_free = free
    table, T, H, grid_m = problem
    scale = ends[3]
    WIDTH: gl.constexpr = k_s.shape[4]
    DTYPE: gl.constexpr = k_s.dtype
    S_L: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 16])
    O_L: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    P_L: gl.constexpr = gl.DotOperandLayout(0, O_L, 2)
    R_L: gl.constexpr = gl.SliceLayout(1, S_L)
    # the last block of a tile's keys is beyond the first group's queries
    PASSES: gl.constexpr = CAUSAL and W == 0
    qi, q_phase, ki, k_phase, vi, v_phase = 0, 0, 0, 0, 0, 0
    zero = gl.zeros([ROWS, KEYS], gl.float32, S_L)  # use_acc=False needs an operand all the same
    n = gl.arange(0, KEYS, gl.SliceLayout(0, S_L))
    m = W * ROWS + gl.arange(0, ROWS, R_L)
    table += gl.program_id(0)
    t = gl.load(table)
    while t >= 0:
        table += gl.num_programs(0)
        following = gl.load(table)
        b, h, m0, blocks = locate_tile(t, grid_m, H, T, KEYS, CAUSAL)
        mine = 2 * qi + W
        mbarrier.wait(q_full.index(mine), q_phase)
        mbarrier.wait(do_full.index(mine), q_phase)
        q, do = as_matrix(q_s.index(mine)), as_matrix(do_s.index(mine))
        lse, along = _read_rows(do, ends, b, h, m0 + W * ROWS, S, H, R_L)
        if PASSES:
            mbarrier.wait(k_full.index(ki), k_phase)
            mbarrier.arrive(k_free.index(ki))
            ki, k_phase = next_slot(ki, k_phase, KEY_SLOTS)
            mbarrier.wait(v_full.index(vi), v_phase)
            mbarrier.arrive(v_free.index(vi))
            vi, v_phase = next_slot(vi, v_phase, VALUE_SLOTS)
            blocks -= 1
        mbarrier.wait(k_full.index(ki), k_phase)
        keys = as_matrix(k_s.index(ki))
        s = warpgroup_mma(q, keys.permute((1, 0)), zero, use_acc=False, is_async=True)
        mbarrier.wait(v_full.index(vi), v_phase)
        values = as_matrix(v_s.index(vi)).permute((1, 0))
        dp = warpgroup_mma(do, values, zero, use_acc=False, is_async=True)
        s = warpgroup_mma_wait(1, deps=[s])
        n0 = (blocks - 1) * KEYS
        last = m0 + m[:, None] - n0 if CAUSAL else T - 1 - n0
        p = gl.where(n[None, :] <= last, gl.exp2(s * scale - lse[:, None]), 0.0)
        dp = warpgroup_mma_wait(0, deps=[dp])
        mbarrier.arrive(v_free.index(vi))
        vi, v_phase = next_slot(vi, v_phase, VALUE_SLOTS)
        change = gl.where(n[None, :] <= last, dp - along[:, None], 0.0)
        ds = gl.convert_layout((p * change).to(DTYPE), P_L)  # moves nothing
        dq = gl.zeros([ROWS, WIDTH], gl.float32, O_L)
        dq = warpgroup_mma(ds, keys, dq, is_async=True)
        used = ki
        ki, k_phase = next_slot(ki, k_phase, KEY_SLOTS)
        for _ in range(1, blocks):
            mbarrier.wait(k_full.index(ki), k_phase)
            keys = as_matrix(k_s.index(ki))
            s = warpgroup_mma(q, keys.permute((1, 0)), zero, use_acc=False, is_async=True)
            mbarrier.wait(v_full.index(vi), v_phase)
            values = as_matrix(v_s.index(vi)).permute((1, 0))
            dp = warpgroup_mma(do, values, zero, use_acc=False, is_async=True)
            # `ds` is waited for too: the product reads it from registers until then
            dq, ds, s = warpgroup_mma_wait(1, deps=[dq, ds, s])
            mbarrier.arrive(k_free.index(used))
            p = gl.exp2(s * scale - lse[:, None])
            dp = warpgroup_mma_wait(0, deps=[dp])
            mbarrier.arrive(v_free.index(vi))
            vi, v_phase = next_slot(vi, v_phase, VALUE_SLOTS)
            ds = gl.convert_layout((p * (dp - along[:, None])).to(DTYPE), P_L)
            dq = warpgroup_mma(ds, keys, dq, is_async=True)
            used = ki
            ki, k_phase = next_slot(ki, k_phase, KEY_SLOTS)
        dq, ds = warpgroup_mma_wait(0, deps=[dq, ds])
        mbarrier.arrive(k_free.index(used))
        q.store((dq * (scale * 0.6931471805599453)).to(DTYPE))  # in the place of the queries
        fence_async_shared()
        copy_out(maps[4], [b, m0 + W * ROWS, h, 0], q_s.index(mine))
        tma.store_wait(0)
        mbarrier.arrive(q_free.index(mine))
        qi, q_phase = next_slot(qi, q_phase, 2)
        t = following


@gluon.jit(do_not_specialize=["S", "T", "H", "grid_m"])
def _query_groups(
    q, do, k, v, dq, o_ptr, lse_ptr, rows_ptr, table, S, T, H, grid_m, scale, D,
    o_b, o_s, o_h, o_d, l_b, l_h, l_s, G: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    WIDTH: gl.constexpr = k.block_type.shape[3]
    # queries of this tile and of the next, for two warp groups each; dq leaves from there
    rings = (
        gl.allocate_shared_memory(q.dtype, [4, 1, ROWS, 1, WIDTH], q.layout),
        gl.allocate_shared_memory(do.dtype, [4, 1, ROWS, 1, WIDTH], do.layout),
        gl.allocate_shared_memory(k.dtype, [KEY_SLOTS, 1, KEYS, 1, WIDTH], k.layout),
        gl.allocate_shared_memory(v.dtype, [VALUE_SLOTS, 1, KEYS, 1, WIDTH], v.layout),
    )
    maps = (q, do, k, v, dq)
    full = (barriers(4, 1), barriers(4, 1), barriers(KEY_SLOTS, 1), barriers(VALUE_SLOTS, 1))
    free = (barriers(4, 1), barriers(KEY_SLOTS, 2), barriers(VALUE_SLOTS, 2))
    problem = (table, T, H, grid_m)
    ends = (o_ptr, lse_ptr, rows_ptr, scale, D, o_b, o_s, o_h, o_d, l_b, l_h, l_s)
    gl.warp_specialize(
        [
            (_differentiate, (0, maps, rings, full, free, problem, S, ends, CAUSAL)),
            (_differentiate, (1, maps, rings, full, free, problem, S, ends, CAUSAL)),
            (_fetch_tiles, (maps, rings, full, free, problem, G, CAUSAL)),
        ],
        [4, 1],
        [240, 24],  # the default partition gets the registers that are left: 240 too
    )


@dataclass(frozen=True)
class WarpGroups:
    """The blocks, warps and stages of the launch for dk and dv; that for dq has fixed ones. Their
    defaults are those of the device and of the width of a head."""

    block_n: int = tile(16, 128, default=AUTO)  # keys of a program
    block_m: int = tile(16, 128, default=AUTO)  # queries of a trip
    num_warps: int = threads(4, 8, default=AUTO)
    num_stages: int = stages(1, 3, default=AUTO)


@dataclass(frozen=True)
class TwoPasses(WarpGroups):
    """Those of the launch for dq, too."""

    queries: int = tile(16, 128, default=AUTO)  # of a program
    keys: int = tile(16, 128, default=AUTO)  # of a trip
    query_warps: int = threads(4, 8, default=AUTO)
    query_stages: int = stages(1, 3, default=AUTO)


# The defaults, in the order of the fields, by the columns of a head and the bytes of a number. On
# sm_90 in 16 bits they are the fastest of two dozen on an H200; all others were never timed, and
# are the largest blocks of which the compiler spills nothing.
CDNA = {
    (64, 2): (64, 64, 4, 1, 128, 64, 4, 1),
    (128, 2): (64, 64, 4, 1, 128, 64, 4, 1),
    (256, 2): (64, 16, 4, 1, 64, 32, 4, 1),
    (64, 4): (32, 16, 8, 1, 32, 16, 8, 1),
    (128, 4): (32, 16, 8, 1, 32, 16, 8, 1),
    (256, 4): (32, 16, 4, 1, 32, 16, 4, 1),
}
ADA = {
    (64, 2): (64, 32, 4, 2, 64, 32, 4, 2),
    (128, 2): (64, 32, 4, 1, 64, 32, 8, 1),
    (256, 2): (32, 16, 8, 1, 32, 32, 8, 1),
    (64, 4): (32, 16, 8, 1, 32, 16, 8, 1),
    (128, 4): (16, 16, 8, 1, 16, 16, 8, 1),
}
POINTED = {
    "sm_80": {
        (64, 2): (64, 32, 4, 2, 64, 64, 4, 2),
        (128, 2): (64, 32, 4, 2, 64, 64, 4, 2),
        (256, 2): (32, 32, 8, 1, 64, 32, 8, 1),
        (64, 4): (32, 16, 8, 1, 32, 16, 8, 1),
        (128, 4): (16, 16, 8, 1, 16, 16, 8, 1),
    },
    "sm_90": {
        (64, 2): (64, 64, 4, 3, 64, 64, 4, 3),
        (128, 2): (128, 64, 8, 3, 128, 64, 8, 3),
        (256, 2): (32, 32, 8, 2, 64, 32, 8, 2),
        (64, 4): (32, 16, 8, 2, 64, 32, 8, 2),
        (128, 4): (16, 16, 8, 1, 16, 16, 8, 1),
    },
    "sm_100": {
        (64, 2): (64, 64, 4, 2, 64, 64, 4, 2),
        (128, 2): (64, 64, 8, 2, 128, 64, 8, 2),
        (256, 2): (32, 32, 8, 2, 64, 64, 4, 2),
        (64, 4): (32, 32, 8, 1, 32, 32, 8, 1),
        (128, 4): (16, 16, 8, 1, 16, 16, 8, 1),
    },
    "sm_89": ADA,
    "sm_120": ADA,
    "gfx90a": CDNA,
    "gfx942": CDNA,
    "gfx950": CDNA,
    "gfx1100": {
        (64, 2): (16, 16, 8, 1, 32, 16, 8, 1),
        (128, 2): (16, 16, 4, 1, 16, 16, 4, 1),
        (64, 4): (16, 16, 8, 1, 16, 16, 8, 1),
    },
}
COPIED = POINTED | {
    "sm_90": {
        **POINTED["sm_90"],
        (64, 2): (64, 64, 4, 3, 128, 64, 4, 3),
        (128, 2): (64, 64, 4, 2, 128, 64, 8, 3),
    },
}


def size_pointed(config, limits, *, itemsize, D, table=POINTED, **sizes):
    columns = D if D & (D - 1) == 0 else 256
    return fill(config, table, limits, columns, itemsize)


def size_copied(config, limits, *, itemsize, D, **sizes):
    return fill(config, COPIED, limits, D, itemsize)


def fill(config, table, limits, columns, itemsize):
    """Return the config with the numbers of a table in place of every AUTO; those of sm_80 for a
    device that has none of its own."""
    names = [f.name for f in fields(TwoPasses)]
    known = table.get(limits.arch, table["sm_80"])
    width = max(64, triton.next_power_of_2(columns))
    numbers = known.get((width, itemsize), (16, 16, 8, 1) * 2)
    chosen = dict(zip(names, numbers, strict=True))
    own = [f.name for f in fields(config) if f.name in chosen]
    return replace(config, **{n: value_or(getattr(config, n), chosen[n]) for n in own})


def refuse_two_passes(config, limits, *, itemsize, D, **sizes):
    width, Q, K = triton.next_power_of_2(D), config.queries, config.keys
    held = Q * (width + 2 * K) // (config.query_warps * limits.warp_size)
    reason = refuse_keys(config, limits, itemsize, D)
    reason = reason or limits.refuse_held(held, 224, "numbers in registers")
    blocks = (Q if limits.nvidia else 0), K, config.query_stages
    return reason or refuse_blocks(*blocks, limits, width * itemsize)


def refuse_keys(config, limits, itemsize, D):
    """Return why a device cannot run the pass for dk and dv with this config, or None."""
    width, BN, BM = triton.next_power_of_2(D), config.block_n, config.block_m
    if itemsize > 2 and width > 128 and limits.warp_size == 32:
        return f"in fp32 {width} columns spill, 128 do not"
    if limits.arch == "gfx1100" and width * itemsize > 256:
        return f"{width * itemsize} bytes of a head spill there, 256 do not"
    held = 2 * BN * (width + BM) // (config.num_warps * limits.warp_size)
    reason = limits.refuse_held(held, 224, "numbers in registers")
    blocks = (BN if limits.nvidia else 0), BM, config.num_stages
    return reason or refuse_blocks(*blocks, limits, width * itemsize)


def refuse_blocks(own, walked, depth, limits, row_bytes):
    """Return why shared memory has no room for a pass' own rows of two tensors and the rings of
    those that it walks, or None."""
    rows = 2 * (own + max(1, limits.buffers(depth)) * walked)
    return limits.refuse_shared(rows * row_bytes, "blocks")


def work(config, limits, *, itemsize, B, S, Hkv, G, D, T):
    width = triton.next_power_of_2(D)
    rows = B * Hkv * G * S * 8
    BN, BM, Q, K = config.block_n, config.block_m, config.queries, config.keys
    for_dq = Work(
        tiles=B * Hkv * G * -(-S // Q),
        steps=-(-T // K),
        load_bytes=2 * K * D * itemsize,
        store_bytes=Q * D * itemsize,
        dot=(Q, K, width),
        products=3,
        vector_ops=4 * Q * K,
        special_ops=Q * K,
        stages=config.query_stages,
        passed_bytes=rows,
    )
    for_keys = Work(
        tiles=B * Hkv * -(-T // BN),
        steps=G * -(-S // BM),
        load_bytes=2 * BM * D * itemsize,
        store_bytes=2 * BN * D * itemsize,
        dot=(BN, BM, width),
        products=4,
        vector_ops=5 * BN * BM,
        special_ops=BN * BM,
        passed_bytes=rows,
        memory_bytes=2 * B * T * Hkv * D * itemsize,
    )
    return for_dq, for_keys


@attention_backward.impl(TwoPasses, resolve=size_pointed, refuse=refuse_two_passes, work=work)
def two_passes(q, k, v, o, lse, do, *, config):
    """One launch of programs for `queries` queries, which compute dq, and one of programs for
    block_n keys, which compute dk and dv. Pointers: takes any strides."""
    return launch(q, k, v, o, lse, do, config)


def launch(q, k, v, o, lse, do, config, causal=False, copied=False):
    (B, S, H, D), (_, T, Hkv, _) = q.shape, k.shape
    dq, dk, dv = q.new_empty(B, S, H, D), k.new_empty(B, T, Hkv, D), v.new_empty(B, T, Hkv, D)
    rows = q.new_empty(B * H, 2, S, dtype=torch.float32)
    launch_queries(q, k, v, o, lse, do, dq, rows, config, causal, copied)
    launch_keys(q, k, v, do, dk, dv, rows, config, causal, copied)
    return dq, dk, dv


def launch_queries(q, k, v, o, lse, do, dq, rows, config, causal, copied):
    """Launch the pass for dq; it also fills `rows`."""
    (B, S, H, D), (_, T, Hkv, _) = q.shape, k.shape
    constants = constants_of((q, k, v, o, do), S, T, config.queries, config.keys, config, causal)
    sizes = (S, None if causal else T, B * H, H, H // Hkv, LOG2E * D**-0.5)
    (x, y), of_kv = walk_arguments(("k", k), ("v", v), rows=config.keys, copied=copied)
    options = dict(num_warps=config.query_warps, num_stages=config.query_stages)
    spread = (*q.stride(), *of_kv, *strides(o, lse, do))
    grid = (triton.cdiv(S, config.queries) * B * H,)
    _queries[grid](
        q, x, y, o, lse, do, dq, rows, *sizes, *spread, **constants, COPIED=copied, **options
    )


def launch_keys(q, k, v, do, dk, dv, rows, config, causal, copied):
    """Launch the pass for dk and dv, which reads `rows`."""
    (B, S, H, D), (_, T, Hkv, _) = q.shape, k.shape
    constants = constants_of((q, k, v, do), S, T, config.block_m, config.block_n, config, causal)
    sizes = (S, None if causal else T, B * Hkv, Hkv, H // Hkv, LOG2E * D**-0.5)
    (x, y), of_q = walk_arguments(("q", q), ("do", do), rows=config.block_m, copied=copied)
    options = dict(num_warps=config.num_warps, num_stages=config.num_stages)
    spread = (*of_q[:4], *strides(k, v), *of_q[4:])
    grid = (triton.cdiv(T, config.block_n) * B * Hkv,)
    _keys[grid](x, k, v, y, dk, dv, rows, *sizes, *spread, **constants, COPIED=copied, **options)


def walk_arguments(*named, rows, copied):
    """Return the arguments of tensors whose blocks a loop walks, and their strides, which a
    descriptor has inside."""
    if not copied:
        return [x for _, x in named], strides(*(x for _, x in named))
    width = triton.next_power_of_2(named[0][1].shape[-1])
    maps = [
        TensorDescriptor(x, list(x.shape), block_strides(name, x), [1, rows, 1, width])
        for name, x in named
    ]
    return maps, (None,) * 8


def constants_of(tensors, S, T, rows_m, rows_n, config, causal):
    """Return the constants of a launch with these blocks of queries and keys."""
    D = tensors[0].shape[-1]
    width = triton.next_power_of_2(D)
    spans = [max(rows_m, rows_n) * x.stride(1) + width * x.stride(3) for x in tensors]
    constants = dict(D=D, WIDTH=width, CAUSAL=causal, GROUP=config.group if causal else 1)
    constants |= dict(BLOCK_M=rows_m, BLOCK_N=rows_n, WIDE=max(spans) >= 2**31)
    return constants | dict(EVEN_M=S % rows_m == 0, EVEN_N=T % rows_n == 0)


def refuse_copied(config, limits, **at):
    if not limits.nvidia or limits.arch in ("sm_80", "sm_86", "sm_89"):
        return "only GPUs of NVIDIA's from Hopper on have an engine that copies blocks"
    return refuse_two_passes(config, limits, **at)


@attention_backward.impl(TwoPasses, resolve=size_copied, refuse=refuse_copied, work=work)
def copied(q, k, v, o, lse, do, *, config):
    """The same launches; the copy engine fetches the blocks that their loops walk, which takes no
    registers for addresses."""
    return launch(q, k, v, o, lse, do, config, copied=True)


def refuse_warp_groups(config, limits, *, itemsize, D, **at):
    if reason := refuse_hopper(limits):
        return reason
    if itemsize != 2 or D > 128:
        return "its products are of 16-bit inputs, of at most 128 columns"
    return refuse_keys(config, limits, itemsize, D)


def groups_work(config, limits, **sizes):
    """Return the work of both launches, the first one by warp groups."""
    plain = TwoPasses(**{f.name: getattr(config, f.name) for f in fields(WarpGroups)})
    filled = replace(plain, queries=TILE_ROWS, keys=KEYS.value, query_stages=VALUE_SLOTS.value)
    for_dq, for_keys = work(filled, limits, **sizes)
    return replace(for_dq, overlapped=True), for_keys


@attention_backward.impl(
    WarpGroups,
    resolve=size_copied,
    refuse=refuse_warp_groups,
    work=groups_work,
    unchecked_reason=UNCHECKED,
)
def warp_groups(q, k, v, o, lse, do, *, config):
    """dq by persistent programs of two warp groups in Gluon; dk and dv as `copied` has them."""
    return launch_warp_groups(q, k, v, o, lse, do, config)


def launch_warp_groups(q, k, v, o, lse, do, config, causal=False):
    (B, S, H, D), (_, T, Hkv, _) = q.shape, k.shape
    dq, dk, dv = q.new_empty(B, S, H, D), k.new_empty(B, T, Hkv, D), v.new_empty(B, T, Hkv, D)
    rows = q.new_empty(B * H, 2, S, dtype=torch.float32)
    width, keys = max(64, triton.next_power_of_2(D)), KEYS.value
    blocks = {"q": (q, GROUP_ROWS), "do": (do, GROUP_ROWS), "k": (k, keys), "v": (v, keys)}
    blocks["dq"] = (dq, GROUP_ROWS)
    maps = [describe_blocks(name, x, [1, n, 1, width]) for name, (x, n) in blocks.items()]
    grid_m = triton.cdiv(S, TILE_ROWS)
    grid = min(cores(q), B * H * grid_m)
    table = schedule(q.device, B * H, grid_m, grid, config.group if causal else 0)
    sizes = (S, T, H, grid_m, LOG2E * D**-0.5, D, *strides(o, lse))
    constants = dict(G=H // Hkv, CAUSAL=causal, num_warps=4)
    _query_groups[(grid,)](*maps, o, lse, rows, table, *sizes, **constants)
    launch_keys(q, k, v, do, dk, dv, rows, config, causal, copied=True)
    return dq, dk, dv


# Libraries. They take o and lse, as ours do, so that nothing of the forward pass runs again.


def call_efficient(do, q, k, v, o, lse, causal, sizes):
    """Return the gradients by torch's memory-efficient kernel, or on a CPU its flash attention. For
    it each query head has keys of its own, and a head's logs lie at a multiple of 32."""
    G = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(G, 1) for x in (k, v))
    if q.is_cpu:
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        gradients = flash(do, q, k, v, o, lse, 0.0, causal)
    else:
        lse = torch.nn.functional.pad(lse, (0, -lse.shape[-1] % 32), value=float("inf"))
        efficient = torch.ops.aten._scaled_dot_product_efficient_attention_backward
        wanted = [True, True, True, False]
        gradients = efficient(do, q, k, v, None, o, lse, *unused_dropout(q), 0.0, wanted, causal)
    dq, dk, dv, *_ = gradients
    return dq, *(d.unflatten(1, (-1, G)).sum(2) if G > 1 else d for d in (dk, dv))


def call_flash(do, q, k, v, o, lse, causal, sizes):
    flash = torch.ops.aten._scaled_dot_product_flash_attention_backward
    return flash(do, q, k, v, o, lse, None, None, *sizes, 0.0, causal, *unused_dropout(q))


def call_cudnn(do, q, k, v, o, lse, causal, sizes):
    cudnn = torch.ops.aten._scaled_dot_product_cudnn_attention_backward
    at = (lse[..., None], *unused_dropout(q), None, None, None, *sizes)
    return cudnn(do, q, k, v, o, *at, 0.0, causal)


def unused_dropout(q):
    """Return the seed and offset of a dropout that nothing drops."""
    return [torch.zeros(2, dtype=torch.int64, device=q.device) for _ in range(2)]


def gradients_of(call, causal):
    """Return a library's version that takes heads before positions."""

    def call_torch(q, k, v, o, lse, do):
        moved = (x.transpose(1, 2) for x in (do, q, k, v, o))
        gradients = call(*moved, lse, causal, (q.shape[1], k.shape[1]))
        return tuple(d.transpose(1, 2) for d in gradients)

    return call_torch


def torch_gradients(q, k, v, o, lse, do, causal):
    """Return dq, dk and dv by torch's memory-efficient kernel."""
    return gradients_of(call_efficient, causal)(q, k, v, o, lse, do)


def refuse_library(config, limits, *, itemsize, **at):
    return "the library has it for 16 bits only" if itemsize != 2 else None


def add_libraries(spec, causal):
    """Enter torch's versions of this Spec."""
    efficient = gradients_of(call_efficient, causal)
    efficient.__doc__ = "Torch's memory-efficient kernel, which takes fp32, too."
    spec.library("torch", efficient)
    spec.library("flash", gradients_of(call_flash, causal), refuse=refuse_library)
    spec.library("cudnn", gradients_of(call_cudnn, causal), refuse=refuse_library)


add_libraries(attention_backward, causal=False)
