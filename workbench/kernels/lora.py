"""LoRA, a linear layer with a low-rank update: y = x W^T + SCALE (x A^T) B^T.

x is M x K, W is N x K, A is r x K and B is N x r, as layers keep them. For the matrix unit
u = SCALE x A^T is rounded to the dtype of x, as it is wherever the products are called one by one,
but in fp16 its rows are divided by powers of two first: unlike there, none can overflow.

At M = 8192, K = N = 4096 in bf16 the product with W does 2048 FLOP for each byte it must move, and
the update adds r / K + r / N of that: below 1 % up to r = 16. What costs is how it is brought in.
Added by a product of its own, y is read and written once more; here u is r more columns of x, and
B r more columns of W: one more step of a tile's main loop (`tiles`, `persistent`, `warp_groups`). A
few rows (M = 16) are memory-bound, it is W that counts, and A is so many more rows of it
(`split_k`).

NaN and infinities spread as the products do: from x to their rows of y, from W and B to their
columns. An infinity times 0 is NaN.
"""

from dataclasses import dataclass, replace

import torch

from workbench.dsl import (
    INTERPRETED,
    baseline,
    cores,
    describe,
    launch_pdl,
    meta,
    pad_up,
    precision_of,
    strides,
    tile_count,
    tl,
    triton,
    upcast,
    widest_block,
)
from workbench.dsl.gluon import UNCHECKED
from workbench.kernels import matmul
from workbench.spec import (
    AUTO,
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

SCALE = 2.0  # alpha / r


def reference(x, w, a, b):
    """With SCALE written out: taken from the kernel's own, a wrong one would not show."""
    return x @ w.T + 2.0 * (x @ a.T) @ b.T


lora = Spec(
    name="lora",
    inputs={"x": Tensor("M K"), "w": Tensor("N K"), "a": Tensor("r K"), "b": Tensor("N r")},
    outputs={"y": Tensor("M N")},
    reference=reference,
    flops=lambda M, K, N, r: 2 * M * N * K + 2 * M * r * (K + N),
    check=[
        {"M": 1, "N": 1, "K": 1, "r": 1},
        {"M": 33, "N": 65, "K": 47, "r": 5},
        {"M": 65, "N": 136, "K": 72, "r": 16},  # rows of 16 bytes' multiples: descriptors take it
        {"M": 20, "N": 136, "K": 136, "r": 4},
    ],
    bench=[
        {"M": 8192, "N": 4096, "K": 4096, "r": 16},
        {"M": 16, "N": 4096, "K": 4096, "r": 16},
        {"M": 8192, "N": 4096, "K": 4096, "r": 64},
        {"M": 16, "N": 4096, "K": 4096, "r": 64},
    ],
    # On standard normal inputs the update is the larger part of y. Rounding u puts each of its r
    # terms off by up to 2^-8 (bf16) or 2^-11 (fp16): on average at most 1 / sqrt(3) of that, in
    # proportion to the rms of y, and 5.5 times the average for the worst of 33 million elements.
    # All errors together are those of the output, of u, and in a library of x w: sqrt(3) times
    # 0.0017 (bf16) or 0.0002 (fp16) of the rms.
    tolerance={
        "fp32": Tolerance(relative=1e-5, rms_share=5e-5),
        "fp16": Tolerance(relative=1e-3, rms_share=2e-3, rms=1e-3),
        "bf16": Tolerance(relative=1.6e-2, rms_share=1.6e-2, rms=5e-3),
    },
    refusable=unaligned_rows("K", "N"),
)


@triton.jit
def _shrink(
    x_ptr, a_ptr, u_ptr, unit_ptr, M, K, stride_xm, stride_xk, stride_ar, stride_ak,
    SCALE: tl.constexpr, RANK: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_K: tl.constexpr, PROGRAMS: tl.constexpr, EVEN: tl.constexpr, UPCAST: tl.constexpr,
    UNITS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """u = SCALE x A^T, dense, BLOCK_R columns: those beyond the rank are never used. With UNITS a
    row is divided by a power of two that keeps it below 2^15: fp16 ends at 2^16."""
    if PDL:  # x is there, also for the launch that begins now
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    j, k = tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_K)
    step = tl.full((), BLOCK_K, tl.int64)
    for block in range(tl.program_id(0), tl.cdiv(M, BLOCK_M), PROGRAMS):
        m = (block * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
        x_ptrs = x_ptr + m * stride_xm + k.to(tl.int64)[None, :] * stride_xk
        a_ptrs = a_ptr + j.to(tl.int64)[None, :] * stride_ar + k.to(tl.int64)[:, None] * stride_ak
        acc = tl.zeros((BLOCK_M, BLOCK_R), tl.float32)
        for k0 in range(0, K, BLOCK_K):
            if EVEN:
                x, a = tl.load(x_ptrs), tl.load(a_ptrs)
            else:
                x = tl.load(x_ptrs, (m < M) & (k[None, :] < K - k0), other=0.0)
                a = tl.load(a_ptrs, (k[:, None] < K - k0) & (j[None, :] < RANK), other=0.0)
            if UPCAST:
                x, a = x.to(tl.float32), a.to(tl.float32)
            acc = tl.dot(x, a, acc, input_precision=precision_of(x.dtype))
            x_ptrs += step * stride_xk
            a_ptrs += step * stride_ak
        u = acc * SCALE
        if UNITS:
            top = tl.max(tl.abs(u), axis=1, keep_dims=True)
            power = (top.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
            unit = tl.where(top < float("inf"), tl.maximum(power * 2.0**-14, 1.0), 1.0)
            tl.store(unit_ptr + m, unit, m < M)
            u = u / unit
        tl.store(u_ptr + m * BLOCK_R + j[None, :], u.to(u_ptr.dtype.element_ty), m < M)


@triton.jit
def _update(
    u_ptr, b_ptr, m, n, M, N, stride_bn, stride_br, RANK: tl.constexpr, BLOCK_R: tl.constexpr
):
    """The columns that u adds to x and B to W."""
    j = tl.arange(0, BLOCK_R)
    used = j < RANK  # beyond it u may hold NaN, where x is infinite
    u_ptrs = u_ptr + m.to(tl.int64)[:, None] * BLOCK_R + j[None, :]
    b_ptrs = b_ptr + n.to(tl.int64)[None, :] * stride_bn + j.to(tl.int64)[:, None] * stride_br
    u = tl.load(u_ptrs, (m[:, None] < M) & used[None, :], other=0.0)
    return u, tl.load(b_ptrs, (n[None, :] < N) & used[:, None], other=0.0)


@triton.jit
def _updated(acc, u, b, unit_ptr, m, M, UNITS: tl.constexpr, UPCAST: tl.constexpr):
    """The sums after one more step, with the columns that u adds to x and B to W."""
    if UPCAST:
        u, b = u.to(tl.float32), b.to(tl.float32)
    if UNITS:  # powers of two: nothing is lost
        unit = tl.load(unit_ptr + m, m < M, other=1.0)[:, None]
        return tl.dot(u, b, acc / unit, input_precision="ieee") * unit
    return tl.dot(u, b, acc, input_precision=precision_of(u.dtype))


@triton.jit
def _tiles(
    x_ptr, w_ptr, u_ptr, unit_ptr, b_ptr, y_ptr, M, N, K,
    stride_xm, stride_xk, stride_wn, stride_wk, stride_bn, stride_br,
    RANK: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    EVEN_MN: tl.constexpr, EVEN_K: tl.constexpr, UNITS: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    pid, grid_m, grid_n = tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    pid_m, pid_n = tl.swizzle2d(pid // grid_n, pid % grid_n, grid_m, grid_n, GROUP_M)
    m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    n = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
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
    u, b = _update(u_ptr, b_ptr, m, n, M, N, stride_bn, stride_br, RANK, BLOCK_R)
    acc = _updated(acc, u, b, unit_ptr, m, M, UNITS, UPCAST)
    y_ptrs = y_ptr + m.to(tl.int64)[:, None] * N + n[None, :]
    tl.store(y_ptrs, acc.to(y_ptr.dtype.element_ty), (m[:, None] < M) & (n[None, :] < N))


@triton.jit
def _persistent(
    x, w, u_ptr, unit_ptr, b_ptr, y, M, N, K, stride_bn, stride_br,
    RANK: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    PROGRAMS: tl.constexpr, EARLY: tl.constexpr, UNITS: tl.constexpr, UPCAST: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    grid_m, grid_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    for tile_id in range(tl.program_id(0), grid_m * grid_n, PROGRAMS):
        pid_m, pid_n = tl.swizzle2d(tile_id // grid_n, tile_id % grid_n, grid_m, grid_n, GROUP_M)
        m, n = pid_m * BLOCK_M, pid_n * BLOCK_N
        rows, columns = m + tl.arange(0, BLOCK_M), n + tl.arange(0, BLOCK_N)
        if EARLY:  # on their way while the product with W is computed, but in registers
            u, b = _update(u_ptr, b_ptr, rows, columns, M, N, stride_bn, stride_br, RANK, BLOCK_R)
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for step in range(tl.cdiv(K, BLOCK_K)):
            xs, ws = x.load([m, step * BLOCK_K]), w.load([n, step * BLOCK_K])
            if UPCAST:
                xs, ws = xs.to(tl.float32), ws.to(tl.float32)
            acc = tl.dot(xs, ws.T, acc, input_precision=precision_of(xs.dtype))
        if PDL:  # u is computed meanwhile
            tl.extra.cuda.gdc_wait()
        if not EARLY:
            u, b = _update(u_ptr, b_ptr, rows, columns, M, N, stride_bn, stride_br, RANK, BLOCK_R)
        acc = _updated(acc, u, b, unit_ptr, rows, M, UNITS, UPCAST)
        # half the shared memory for the store leaves room for one more stage
        halves = tl.permute(tl.reshape(acc, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1))
        left, right = tl.split(halves)
        y.store([m, n], left.to(y.dtype))
        y.store([m, n + BLOCK_N // 2], right.to(y.dtype))


@triton.jit
def _parts(
    x_ptr, w_ptr, a_ptr, part_ptr, M, N, K,
    stride_xm, stride_xk, stride_wn, stride_wk, stride_ar, stride_ak,
    RANK: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    SPLITS: tl.constexpr, EVEN: tl.constexpr, UPCAST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Sums over a part of K of x [W; A]^T, transposed: rows of W fill the matrix unit, those of x
    need not. A's rows are the last tile of each part."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    grid_n = tl.cdiv(N, BLOCK_N) + 1
    pid = tl.program_id(0)
    split, pid_n, pid_m = pid % SPLITS, pid // SPLITS % grid_n, pid // SPLITS // grid_n
    of_w = pid_n < grid_n - 1
    rows = tl.where(of_w, N, RANK)  # of the matrix that this tile belongs to
    first = tl.where(of_w, pid_n * BLOCK_N, 0)
    each = tl.cdiv(tl.cdiv(K, BLOCK_K), SPLITS) * BLOCK_K
    low = split * each
    n, k = tl.arange(0, BLOCK_N), low + tl.arange(0, BLOCK_K)
    m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    base = tl.where(of_w, w_ptr, a_ptr)
    stride_n = tl.where(of_w, stride_wn, stride_ar)
    stride_k = tl.where(of_w, stride_wk, stride_ak)
    row, column = (first + n).to(tl.int64)[:, None], k.to(tl.int64)
    w_ptrs = base + row * stride_n + column[None, :] * stride_k
    x_ptrs = x_ptr + m.to(tl.int64)[None, :] * stride_xm + column[:, None] * stride_xk
    step = tl.full((), BLOCK_K, tl.int64)
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for k0 in range(low, tl.minimum(low + each, K), BLOCK_K):
        if EVEN:
            w = tl.load(w_ptrs, (first + n < rows)[:, None], other=0.0)
            x = tl.load(x_ptrs, m[None, :] < M, other=0.0)
        else:
            inside = k0 - low + k < K
            w = tl.load(w_ptrs, (first + n < rows)[:, None] & inside[None, :], other=0.0)
            x = tl.load(x_ptrs, inside[:, None] & (m[None, :] < M), other=0.0)
        if UPCAST:
            w, x = w.to(tl.float32), x.to(tl.float32)
        acc = tl.dot(w, x, acc, input_precision=precision_of(w.dtype))
        w_ptrs += step * stride_k
        x_ptrs += step * stride_xk
    columns = tl.where(of_w, pid_n * BLOCK_N, N) + n  # of the parts: first y's, then u's
    part_ptrs = part_ptr + (split * M + m).to(tl.int64)[None, :] * (N + RANK) + columns[:, None]
    tl.store(part_ptrs, acc, (m < M)[None, :] & (first + n < rows)[:, None])


@triton.jit
def _join(
    part_ptr, b_ptr, y_ptr, M, N, stride_bn, stride_br,
    SCALE: tl.constexpr, RANK: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, SPLITS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    grid_n = tl.cdiv(N, BLOCK_N)
    m = (tl.program_id(0) // grid_n) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = (tl.program_id(0) % grid_n) * BLOCK_N + tl.arange(0, BLOCK_N)
    j = tl.arange(0, BLOCK_R)
    b_ptrs = b_ptr + n.to(tl.int64)[None, :] * stride_bn + j.to(tl.int64)[:, None] * stride_br
    b = tl.load(b_ptrs, (n < N)[None, :] & (j < RANK)[:, None], other=0.0)
    if PDL:  # so far nothing that the launch before has written
        tl.extra.cuda.gdc_wait()
    y = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    u = tl.zeros((BLOCK_M, BLOCK_R), tl.float32)
    for split in tl.static_range(SPLITS):  # in one order: the same bits every time
        row = part_ptr + (split * M + m).to(tl.int64)[:, None] * (N + RANK)
        y += tl.load(row + n[None, :], (m < M)[:, None] & (n < N)[None, :], other=0.0)
        u += tl.load(row + N + j[None, :], (m < M)[:, None] & (j < RANK)[None, :], other=0.0)
    y = tl.dot(u * SCALE, b.to(tl.float32), y, input_precision="ieee")  # nothing rounded yet
    y_ptrs = y_ptr + m.to(tl.int64)[:, None] * N + n[None, :]
    tl.store(y_ptrs, y.to(y_ptr.dtype.element_ty), (m < M)[:, None] & (n < N)[None, :])


@dataclass(frozen=True)
class Tiles:
    block_m: int = among(64, 128, default=128, knob=tile)
    block_n: int = tile(64, 256, default=256)
    block_k: int = among(32, 64, default=64, knob=tile)
    num_warps: int = threads(4, 8, default=8)
    num_stages: int = stages(2, 4, default=3)
    group_m: int = among(1, 8, default=8)


@dataclass(frozen=True)
class Persistent:
    block_m: int = among(64, 128, default=128, knob=tile)
    block_n: int = tile(64, 256, default=AUTO)  # the widest that gives 3 of 4 cores a tile
    block_k: int = among(32, 64, default=64, knob=tile)
    num_warps: int = threads(4, 8, default=8)
    num_stages: int = stages(2, 4, default=AUTO)  # 3 of tiles that are 256 wide, 4 of others
    early: int = among(0, 1, default=0)  # load u and b before the product with W, not after it
    pdl: int = among(0, 1, default=0)  # the product with W begins while u is computed


@dataclass(frozen=True)
class SplitK:
    block_n: int = tile(64, 128, default=128)
    block_k: int = tile(64, 256, default=128)
    splits: int = among(2, 4, 8, default=4)
    num_warps: int = threads(4, 8, default=4)
    num_stages: int = stages(2, 4, default=4)
    pdl: int = among(0, 1, default=0)  # the second launch begins before the first one has ended


def columns_of(r):
    """The width that a product of r columns is computed in: a matrix unit takes 16 at least."""
    return max(16, pad_up(r))


def refuse_crowded(limits, warps, sums, shared):
    """Why so many warps, sums and bytes of shared memory do not fit, or None."""
    threads_ = warps * limits.warp_size
    if reason := limits.refuse_held(sums // threads_, 128, "sums in registers"):
        return reason
    if sums // threads_ < 8:
        return f"{warps} warps are too many for {sums} sums"
    return limits.refuse_shared(shared)


def refuse_tiles(config, limits, *, itemsize, M, N, K, r):
    edges = config.block_m + config.block_n
    if r > 128:
        return f"a rank of {r} is more than one step of a tile; 128 is the most"
    shared = max(limits.stages_bytes(config, itemsize), edges * columns_of(r) * itemsize)
    return refuse_crowded(limits, config.num_warps, config.block_m * config.block_n, shared)


def size_width(config, limits, *, itemsize, M, N, K, r):
    """Return the config of `persistent` with the widest tile that gives 3 of 4 cores one."""
    wide = widest_block(limits, -(-M // config.block_m), N, (256, 128, 64))
    block_n = value_or(config.block_n, wide)
    num_stages = value_or(config.num_stages, 3 if block_n > 128 else 4)
    return replace(config, block_n=block_n, num_stages=num_stages)


def refuse_persistent(config, limits, *, itemsize, M, N, K, r):
    if reason := limits.refuse_rows(itemsize, K=K, N=N):
        return reason
    if r > 128:
        return f"a rank of {r} is more than one step of a tile; 128 is the most"
    if config.pdl:
        if reason := limits.refuse_pdl():
            return reason
        BM, BK, deep = shrink_blocks(M, r, itemsize, True)
        beside = deep * (BM + columns_of(r)) * BK * itemsize
        if config.early:
            return "with pdl the product with W comes first: u is not there before it"
        if beside > limits.shared_bytes:
            return f"the launch for u needs {beside} bytes of shared memory, too many for a block"
    # half a tile is stored while the next one's stages are on their way; u and b lie where the
    # stages were, unless they are loaded before
    edges = config.block_m + config.block_n
    deep = limits.buffers(config.num_stages)
    staged, last = deep * config.block_k, columns_of(r)
    columns = staged + last if config.early else max(staged, last)
    shared = (edges * columns + config.block_m * config.block_n // 2) * itemsize
    if not limits.nvidia:
        shared = edges * max(staged, last) * itemsize  # nothing is on its way there
    return refuse_crowded(limits, config.num_warps, config.block_m * config.block_n, shared)


def size_warp_groups(config, limits, *, r, **at):
    return matmul.size_warp_groups(config, limits, **at)


def refuse_warp_groups(config, limits, *, r, itemsize, **at):
    if reason := matmul.refuse_warp_groups(config, limits, itemsize=itemsize, **at):
        return reason
    if r > config.block_k:
        return f"a rank of {r} is more than one step of a tile; {config.block_k} is the most"
    return limits.refuse_rows(itemsize, r=r)


def rows_at_once(M):
    return min(64, max(16, 1 << (M - 1).bit_length()))


def rows_joined(M, r):
    """Rows of a program that adds the parts: no more than 1024 sums of x A^T where that can be, for
    4096 in 4 warps spill 5 KB a thread on sm_90."""
    return min(rows_at_once(M), max(16, 1024 // columns_of(r)))


def refuse_split_k(config, limits, *, itemsize, M, N, K, r):
    if r > config.block_n:
        return f"a rank of {r} is more than the {config.block_n} rows of a tile"
    if config.pdl and (reason := limits.refuse_pdl()):
        return reason
    BM = rows_at_once(M)
    shared = limits.buffers(config.num_stages) * (BM + config.block_n) * config.block_k * itemsize
    return refuse_crowded(limits, config.num_warps, BM * config.block_n, shared)


def work(config, limits, *, itemsize, M, N, K, r, band=8):
    whole = Work.product(config, itemsize, M=M, N=N, K=K, band=band)
    return replace(whole, steps=whole.steps + 1)


def warp_groups_work(config, limits, **at):
    return work(config, limits, **at, band=config.group_m)


def tiles_work(config, limits, *, itemsize, M, N, K, r):
    """Return the work of both launches, of which each reads x."""
    BM, BK, deep = shrink_blocks(M, r, itemsize, False)
    R, passed = columns_of(r), M * columns_of(r) * itemsize
    shrink = Work(
        tiles=-(-M // BM),
        steps=-(-K // BK),
        load_bytes=(BM + R) * BK * itemsize,
        store_bytes=BM * R * itemsize,
        dot=(BM, R, BK),
        stages=deep,
        passed_bytes=passed,
    )
    product = replace(
        work(config, limits, itemsize=itemsize, M=M, N=N, K=K, r=r),
        passed_bytes=passed + M * K * itemsize,
        memory_bytes=(N * K + M * N + N * r) * itemsize,
    )
    return shrink, product


def split_k_work(config, limits, *, itemsize, M, N, K, r):
    """Return the work of both launches."""
    BM, R, steps = rows_at_once(M), columns_of(r), -(-K // config.block_k)
    rows = rows_joined(M, r)
    splits = min(config.splits, steps)
    passed = splits * M * (N + r) * 4
    parts = Work(
        tiles=-(-M // BM) * (-(-N // config.block_n) + 1) * splits,
        steps=-(-steps // splits),
        load_bytes=(BM + config.block_n) * config.block_k * itemsize,
        store_bytes=BM * config.block_n * 4,
        dot=(config.block_n, BM, config.block_k),
        passed_bytes=passed,
    )
    join = Work(
        tiles=-(-M // rows) * -(-N // 32),
        steps=1,
        load_bytes=splits * rows * (32 + R) * 4 + 32 * R * itemsize,
        store_bytes=rows * 32 * itemsize,
        vector_ops=18 * splits * rows * (32 + R),  # SASS of sm_90: 435 of each of 128 threads
        barriers=1,
        waits=1 - config.pdl,  # for b, which is on its way before the first launch has ended
        hits=config.pdl,
        passed_bytes=passed,
        memory_bytes=(M * N + N * r) * itemsize,
    )
    return parts, join


def shrink_blocks(M, r, itemsize, pdl):
    """Rows, columns and stages of a program that computes u."""
    R, deep = columns_of(r), 256 // itemsize
    # as much on its way as a core can have; of 512 rows, r = 64, 8 programs took 45.7 us on an H100
    # and 32 take 37.8
    if pdl:
        rows = max(16, min(128, pad_up(-(-M // 32))))
        return rows, deep // (2 if R > 64 else 1), (3 if R > 32 else 4)
    return (64 if M > 2048 else 16), deep // (2 if R > 64 else 1), (4 if R == 16 else 3)


def shrunk(x, a, programs=None, rows=None):
    """Return u = SCALE x A^T for the versions that add it in a second launch, and what its rows
    were divided by (with room for whole tiles; u itself, and unused, in other dtypes than fp16). x
    is read once, by about as many programs as cores, or by `programs`, beside which the next launch
    may begin and of which each takes `rows` at once."""
    (M, K), r = x.shape, len(a)
    R, UNITS = columns_of(r), x.dtype == torch.float16
    BM, BK, num_stages = shrink_blocks(M, r, x.element_size(), programs is not None)
    BM = rows or BM
    u = x.new_empty(M, R)
    unit = x.new_empty(M + -M % 256, dtype=torch.float32) if UNITS else u
    blocks = triton.cdiv(M, BM)
    grid = min(blocks, programs or blocks)
    constants = dict(SCALE=SCALE, RANK=r, BLOCK_M=BM, BLOCK_R=R, BLOCK_K=BK, PROGRAMS=grid)
    constants |= dict(EVEN=M % BM == 0 and K % BK == 0 and r == R, UPCAST=upcast(x), UNITS=UNITS)
    pdl = programs is not None
    constants |= dict(PDL=pdl, num_stages=num_stages, **launch_pdl(pdl))
    # with 4 warps 128 ragged rows spill; `persistent` gives no rows, and was measured with 4
    constants |= dict(num_warps=8 if rows == 128 else 4)
    _shrink[(grid,)](x, a, u, unit, M, K, *strides(x, a), **constants)
    return u, unit


SMALL = Tiles(128, 128, 32, 8, 3)
CDNA = Tiles(128, 128, 64, 4, 2)


@lora.impl(
    Tiles,
    refuse=refuse_tiles,
    work=tiles_work,
    defaults={
        "fp32": Tiles(128, 64, 32, 8, 2),  # on the vector units, and twice the bytes to hold
        "fp32:sm_90": Tiles(128, 128, 32, 8, 3),
        "sm_80 sm_89 sm_120": SMALL,
        "gfx90a gfx942 gfx950": CDNA,
        "gfx1100": Tiles(128, 64, 32, 4, 2),
    },
)
def tiles(x, w, a, b, *, config):
    """u first; then r more columns of x and W, pointers into all: any size and any strides."""
    (M, K), (N, r) = x.shape, b.shape
    BM, BN, BK = config.block_m, config.block_n, config.block_k
    (u, unit), y = shrunk(x, a), x.new_empty(M, N)
    constants = dict(RANK=r, BLOCK_R=columns_of(r), EVEN_MN=M % BM == 0 and N % BN == 0)
    constants |= dict(EVEN_K=K % BK == 0, UNITS=x.dtype == torch.float16, UPCAST=upcast(x))
    _tiles[(triton.cdiv(M, BM) * triton.cdiv(N, BN),)](
        x, w, u, unit, b, y, M, N, K, *strides(x, w, b), **constants, **meta(config)
    )
    return y


@lora.impl(
    Persistent,
    resolve=size_width,
    refuse=refuse_persistent,
    work=work,  # alone: with pdl the launch for u does not come first, it runs beside
    defaults={
        "fp32": Persistent(64, 64, 32, 8, 2),
        "fp32:sm_90": Persistent(128, 128, 32, 8, 3),
        "sm_80": Persistent(64, 128, 32, 8, 3),
        "sm_89 sm_120": Persistent(64, 128, 32, 8, 2),
        "sm_90": Persistent(pdl=1),
        "sm_100": Persistent(128, 256, 64, 8, 3, 1),
        "gfx90a gfx942 gfx950": Persistent(128, 128, 64, 4, 2),
        "gfx1100": Persistent(128, 64, 32, 8, 2),
    },
)
def persistent(x, w, a, b, *, config):
    """One program per core, which walks its tiles through tensor descriptors. With pdl a few cores
    compute u meanwhile, which a tile needs only at its end."""
    (M, K), (N, r) = x.shape, b.shape
    y = x.new_empty(M, N)
    BM, BN, BK = config.block_m, config.block_n, config.block_k
    of_x, of_w = describe("x", x, [BM, BK]), describe("w", w, [BN, BK])
    of_y = describe("y", y, [BM, BN // 2])
    count = triton.cdiv(M, BM) * triton.cdiv(N, BN)
    programs = min(cores(x), count)
    pdl = bool(config.pdl) and not INTERPRETED
    # u is for the cores that would have no tile in the last round: they begin with their tiles
    # when it is done, the others at once
    idle = -count % cores(x)
    u, unit = shrunk(x, a, max(idle, cores(x) // 4) if pdl else None)
    constants = dict(RANK=r, BLOCK_R=columns_of(r), GROUP_M=8, PROGRAMS=programs)
    constants |= dict(EARLY=bool(config.early), UNITS=x.dtype == torch.float16, UPCAST=upcast(x))
    constants |= dict(PDL=pdl, **launch_pdl(pdl), **meta(config))
    _persistent[(programs,)](of_x, of_w, u, unit, b, of_y, M, N, K, *b.stride(), **constants)
    return y


def shrink_beside(config, cores_, M, N, r):
    """Return how many programs compute u beside the product of `warp_groups`, and the rows that
    each takes at once. Cores without a tile in the last round are free for u, if its blocks ask the
    cache for no more bytes in a step of the product than a tile does."""
    _, whole, count = matmul.rounds_of(config, cores_, tile_count(config, M=M, N=N))
    idle = -count % cores_
    edges = config.block_m + config.block_n // (2 if count > whole else 1)
    if idle:
        rows = max(16, min(128, pad_up(-(-M // idle))))
        if -(-M // (rows * idle)) * (rows + columns_of(r)) <= edges:
            return idle, rows
    return max(idle, cores_ // 4, 1), shrink_blocks(M, r, 2, True)[0]


@lora.impl(
    matmul.WarpGroups,
    resolve=size_warp_groups,
    refuse=refuse_warp_groups,
    work=warp_groups_work,  # alone: the launch for u does not come first, it runs beside
    unchecked_reason=UNCHECKED,
)
def warp_groups(x, w, a, b, *, config):
    """One program per core: a warp loads through descriptors, u and B in the last step, and two
    groups of warps multiply half of a tile's rows each. Other cores compute u meanwhile. In
    Gluon."""
    (M, N), r = (len(x), len(w)), len(a)
    y = x.new_empty(M, N)
    u, unit = shrunk(x, a, *shrink_beside(config, cores(x), M, N, r))
    # beyond the rank u may hold NaN, where x is infinite
    update = ("u", u[:, :r], False), ("b", b, True)
    units = unit if x.dtype == torch.float16 else None
    of_x, of_w = ("x", x, False), ("w", w, True)
    matmul.launch_warp_groups(of_x, of_w, y, config, update, units)
    return y


@lora.impl(
    SplitK,
    refuse=refuse_split_k,
    work=split_k_work,
    defaults={
        "fp32": SplitK(64, 64, 4, 8, 3),
        "fp32:sm_90": SplitK(64, 64, 4, 4, 3),
        "sm_80": SplitK(num_stages=3),
        "sm_90": SplitK(pdl=1),
        "sm_89 sm_120": SplitK(64, 128, 4, 4, 3),
        "gfx90a gfx942 gfx950 gfx1100": SplitK(64, 128, 8, 4, 2),
    },
)
def split_k(x, w, a, b, *, config):
    """For a few rows: W and A are read once, by all cores, each a part of K; a second launch adds
    the parts and the update."""
    (M, K), (N, r) = x.shape, b.shape
    BM, BN, BK = rows_at_once(M), config.block_n, config.block_k
    SPLITS = min(config.splits, triton.cdiv(K, BK))
    parts, y = x.new_empty(SPLITS, M, N + r, dtype=torch.float32), x.new_empty(M, N)
    pdl = bool(config.pdl) and not INTERPRETED
    constants = dict(RANK=r, BLOCK_R=columns_of(r), BLOCK_M=BM, SPLITS=SPLITS)
    constants |= dict(EVEN=K % (BK * SPLITS) == 0, UPCAST=upcast(x), PDL=pdl)
    _parts[(triton.cdiv(M, BM) * (triton.cdiv(N, BN) + 1) * SPLITS,)](
        x, w, a, parts, M, N, K, *strides(x, w, a), **constants, **meta(config)
    )
    constants = dict(SCALE=SCALE, RANK=r, BLOCK_R=columns_of(r), BLOCK_M=rows_joined(M, r))
    constants |= dict(BLOCK_N=32, SPLITS=SPLITS, PDL=pdl, num_warps=4)
    _join[(triton.cdiv(M, constants["BLOCK_M"]) * triton.cdiv(N, 32),)](
        parts, b, y, M, N, *b.stride(), **constants, **launch_pdl(pdl)
    )
    return y


@baseline(lora)
def library(x, w, a, b):
    """The products one by one: cuBLAS or hipBLAS."""
    y, u = torch.nn.functional.linear(x, w), torch.nn.functional.linear(x, a)
    return y.addmm_(u, b.T, alpha=SCALE)
