"""Product with 4-bit weights: y = x @ w^T, where w lies as GGUF's Q4_K blocks, read as they are.

A block is 144 bytes for 256 weights of a row: two fp16 numbers d and dmin, eight pairs of 6-bit
numbers (scale, minimum) in 12 bytes, and 256 nibbles q. With sub-block j of 32 weights,

    weight = d * scale_j * q - dmin * minimum_j

which is 4.5 bits a weight. With one row of x (a token) that is 3.6 FLOP a byte: memory-bound, 3.55
times less to read than fp16 weights, if unpacking keeps up. An H200 that reads 4.2 TB/s takes in
28 weights a clock and multiprocessor, whose 128 lanes have then 4.5 instructions for each. Hence
all Impls read nibbles 16 bytes at a time and turn them into numbers without a conversion: or-ed
into the mantissa of 1024 (fp16) or of 1 (fp32) they are already 1024 + q and 1 + q / 16.

NaN and infinities of x reach their rows of y, those of a block's d or dmin its column.
"""

from dataclasses import dataclass
from functools import cache

import torch

from workbench.dsl import INTERPRETED, tl, triton
from workbench.spec import Extent, Spec, Tensor, Tolerance, Work, among, stages, threads, tile


def unpacked(w):
    """All weights of Q4_K blocks [N, K/256*144] as float64 [N, K], plainly."""
    block = w.reshape(w.shape[0], -1, 144)
    d, dmin = (block[..., i : i + 2].contiguous().view(torch.float16).double() for i in (0, 2))
    first, second, third = (block[..., i : i + 4].int() for i in (4, 8, 12))
    scale = torch.cat([first & 63, third & 15 | first >> 6 << 4], -1)
    minimum = torch.cat([second & 63, third >> 4 | second >> 6 << 4], -1)
    pairs = block[..., 16:].int().unflatten(-1, (4, 1, 32))
    q = torch.cat([pairs & 15, pairs >> 4], -2).flatten(-3, -2)  # [N, K/256, 8, 32]
    weight = (d * scale)[..., None] * q - (dmin * minimum)[..., None]
    return weight.flatten(1)


def reference(x, w):
    return x @ unpacked(w).to(x.dtype).T


def random_blocks(shape, dtype, device, generator):
    """Blocks of random bytes; d and dmin are such that weights scatter about 0 by about 1/8."""
    N, columns = shape
    w = torch.randint(0, 256, (N, columns // 144, 144), generator=generator, device=device)
    w = w.to(dtype)
    size = torch.rand(N, columns // 144, 2, generator=generator, device=device) + 0.5
    size *= torch.tensor([2.0**-11, 2.0**-8], device=device)
    w[..., :4] = size.half().view(torch.uint8)
    return w.reshape(shape)


q4_k_matmul = Spec(
    name="q4_k_matmul",
    inputs={"x": Tensor("M K"), "w": Tensor("N K/256*144", dtype="uint8", make=random_blocks)},
    outputs={"y": Tensor("M N")},
    reference=reference,
    flops=lambda M, N, K: 2 * M * N * K,
    check=[
        {"M": 1, "N": 1, "K": 256},
        {"M": 3, "N": 9, "K": 512},
        {"M": 2, "N": 40, "K": 768},
        {"M": 17, "N": 65, "K": 256},
    ],
    bench=[
        {"M": 1, "N": 14336, "K": 4096},
        {"M": 1, "N": 2560, "K": 2560},
        {"M": 1, "N": 28672, "K": 8192},
        {"M": 4, "N": 14336, "K": 4096},
        {"M": 16, "N": 14336, "K": 4096},
        {"M": 64, "N": 14336, "K": 4096},
        {"M": 512, "N": 14336, "K": 4096},
    ],
    # Sums of K products, as in a matrix product, and weights that a matrix unit takes rounded to
    # the dtype of x: off by half a unit in the last place each, and their scale and minimum as
    # much, in proportion to the rms of the sum.
    tolerance={
        "fp32": Tolerance(relative=1e-5, of_rms=5e-5),
        "fp16": Tolerance(relative=1e-3, of_rms=2e-3),
        "bf16": Tolerance(relative=8e-3, of_rms=1e-2),
    },
    extents={"K": Extent(multiple=256)},
)


@triton.jit
def _half(word, SHIFT: tl.constexpr):
    """The fp16 number in bits SHIFT to SHIFT + 15, as fp32."""
    return (word >> SHIFT).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _codes(first, second, third, g):
    """6-bit scales of sub-blocks 2g and 2g + 1 in bits 0 to 5 and 8 to 13, and minima likewise,
    from words 1 to 3 of a block."""
    at = 16 * (g & 1)
    a, b, c = first >> at, second >> at, third >> at
    scale = tl.where(g < 2, a & 0x3F3F, (c & 0x0F0F) | ((a >> 2) & 0x3030))
    minimum = tl.where(g < 2, b & 0x3F3F, ((c >> 4) & 0x0F0F) | ((b >> 2) & 0x3030))
    return scale, minimum


@triton.jit
def _numbers(head, first, second, third, g):
    """Steps and minima of sub-blocks 2g and 2g + 1 from the first four words of a block."""
    d, dmin = _half(head, 0), _half(head, 16)
    scale, minimum = _codes(first, second, third, g)
    low, high = d * (scale & 0xFF).to(tl.float32), d * (scale >> 8).to(tl.float32)
    under, over = dmin * (minimum & 0xFF).to(tl.float32), dmin * (minimum >> 8).to(tl.float32)
    return low, high, under, over


@triton.jit
def _fp16(pairs):
    """Two fp16 numbers in each int32, as a last axis: low half, high half."""
    low = pairs.to(tl.int16).to(tl.float16, bitcast=True)
    high = (pairs >> 16).to(tl.int16).to(tl.float16, bitcast=True)
    return tl.join(low, high)


@triton.jit
def _pairs(q, one):
    """Words of nibbles [..] as fp16 [.., byte / 2, byte % 2, low or high], two at a time: q / 2
    from 1024 + q, and q from 1024 + 16 q, which the next four bits of the mantissa make."""
    r = q >> 8
    a = _fp16((q & 0x000F000F) | one) * 0.5 - 512
    b = _fp16((r & 0x000F000F) | one) * 0.5 - 512
    c = _fp16((q & 0x00F000F0) | one) * 0.0625 - 64
    d = _fp16((r & 0x00F000F0) | one) * 0.0625 - 64
    return tl.join(tl.join(a, b), tl.join(c, d))


@triton.jit
def _singles(q, one):
    """The same as fp32 numbers 1 + q / 16."""
    a = tl.join((q << 19) & 0x780000 | one, (q << 3) & 0x780000 | one)
    b = tl.join((q << 11) & 0x780000 | one, (q >> 5) & 0x780000 | one)
    c = tl.join((q << 15) & 0x780000 | one, (q >> 1) & 0x780000 | one)
    d = tl.join((q << 7) & 0x780000 | one, (q >> 9) & 0x780000 | one)
    return tl.join(tl.join(a, b), tl.join(c, d)).to(tl.float32, bitcast=True)


@triton.jit
def _weights(
    words, one, head, first, second, third, g,
    BLOCK_N: tl.constexpr, WARPS: tl.constexpr, FP16: tl.constexpr,
):  # fmt: skip
    """Half a block of each row, [BLOCK_N, 128], where the matrix unit wants it.

    `words` is loaded 16 bytes a lane and 4 lanes a row. The unit's lanes take rows and columns
    from the very same places when columns are in the order

        word (4 of a lane), low or high nibble, byte % 2, group of 64, half of the group, byte / 2

    and rows in the order of `_row_of`; then nothing passes through shared memory.
    """
    low, high, under, over = _numbers(head, first, second, third, g)
    q = tl.permute(tl.reshape(words, (BLOCK_N, 2, 2, 2, 2)), (0, 3, 4, 1, 2))
    if FP16:
        w = _pairs(q, one)
        step, least = tl.join(2 * low, high), tl.join(under, over)
    else:
        w = _singles(q, one)
        step, least = tl.join(16 * low, 16 * high), tl.join(16 * low + under, 16 * high + over)
    step = tl.reshape(tl.permute(step, (0, 2, 1)), (BLOCK_N, 1, 1, 2, 1, 2, 1, 1)).to(w.dtype)
    least = tl.reshape(tl.permute(least, (0, 2, 1)), (BLOCK_N, 1, 1, 2, 1, 2, 1, 1)).to(w.dtype)
    w = tl.permute(w, (0, 1, 2, 7, 6, 3, 4, 5)) * step - least
    w = tl.reshape(w, (BLOCK_N // (16 * WARPS), 2, WARPS, 8, 128))
    return tl.reshape(tl.permute(w, (0, 2, 1, 3, 4)), (BLOCK_N, 128))


@triton.jit
def _row_of(i, WARPS: tl.constexpr):
    """Which row of a tile is loaded i-th: a load deals 8 rows to each warp, the matrix unit 16."""
    return i // (16 * WARPS) * (16 * WARPS) + i // 8 % WARPS * 16 + i // (8 * WARPS) % 2 * 8 + i % 8


@triton.jit
def _ordered(x, BLOCK_M: tl.constexpr):
    """Half a block's columns of x in the order of `_weights`."""
    x = tl.reshape(x, (BLOCK_M, 2, 2, 2, 2, 2, 2, 2))
    return tl.reshape(tl.permute(x, (0, 4, 5, 2, 7, 1, 3, 6)), (BLOCK_M, 128))


@triton.jit
def _tiles(
    x_ptr, w_ptr, y_ptr, M, N, blocks, span, one, stride_xm, stride_xk, stride_wn, stride_ys,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WARPS: tl.constexpr, UNIT: tl.constexpr,
    STAGES: tl.constexpr, ORDERED: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    FP16: tl.constexpr = x_ptr.dtype.element_ty == tl.float16
    tiles_m = tl.cdiv(M, BLOCK_M)
    m = tl.program_id(0) % tiles_m * BLOCK_M + tl.arange(0, BLOCK_M)
    first_n = tl.program_id(0) // tiles_m * BLOCK_N
    n = first_n + _row_of(tl.arange(0, BLOCK_N), WARPS)
    row = tl.minimum(n, N - 1).to(tl.int64) * stride_wn * UNIT  # a row that is there: no masks
    k = tl.arange(0, 128)
    x_ptrs = x_ptr + m.to(tl.int64)[:, None] * stride_xm + k.to(tl.int64)[None, :] * stride_xk
    step = tl.full((), 128, tl.int64) * stride_xk
    there = m[:, None] < M
    g = tl.arange(0, 2)[None, :]
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    start = tl.program_id(1) * span
    for b in tl.range(start, tl.minimum(start + span, blocks), num_stages=STAGES):
        block = w_ptr + row + b * 36
        words = block[:, None] + 4 + tl.arange(0, 16)[None, :]
        left, right = tl.load(words), tl.load(words + 16)
        head, first = tl.load(block)[:, None], tl.load(block + 1)[:, None]
        second, third = tl.load(block + 2)[:, None], tl.load(block + 3)[:, None]
        at = x_ptrs + b * (2 * step)
        x, z = tl.load(at, there, other=0.0), tl.load(at + step, there, other=0.0)
        if not ORDERED:
            x, z = _ordered(x, BLOCK_M), _ordered(z, BLOCK_M)
        if UPCAST:  # weights too: the interpreter would cut them off where a GPU rounds them
            x, z = x.to(tl.float32), z.to(tl.float32)
        w = _weights(left, one, head, first, second, third, g, BLOCK_N, WARPS, FP16)
        acc = tl.dot(w.to(x.dtype), tl.trans(x), acc, input_precision="ieee")
        w = _weights(right, one, head, first, second, third, g + 2, BLOCK_N, WARPS, FP16)
        acc = tl.dot(w.to(z.dtype), tl.trans(z), acc, input_precision="ieee")
    n = first_n + tl.arange(0, BLOCK_N)
    y_ptrs = y_ptr + tl.program_id(1).to(tl.int64) * stride_ys
    y_ptrs += m.to(tl.int64)[None, :] * N + n[:, None]
    tl.store(y_ptrs, acc.to(y_ptr.dtype.element_ty), (m[None, :] < M) & (n[:, None] < N))


@triton.jit
def _reorder(x_ptr, y_ptr, M, K, stride_xm, stride_xk, BLOCK_M: tl.constexpr):
    m = (tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
    k = (tl.program_id(0) * 128 + tl.arange(0, 128)).to(tl.int64)[None, :]
    x = tl.load(x_ptr + m * stride_xm + k * stride_xk, m < M, other=0.0)
    tl.store(y_ptr + m * K + k, _ordered(x, BLOCK_M), m < M)


@triton.jit
def _rows(
    x_ptr, w_ptr, y_ptr, M, N, blocks, one, stride_xm, stride_xk, stride_wn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_B: tl.constexpr, UNIT: tl.constexpr,
    STAGES: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    CHUNKS: tl.constexpr = BLOCK_B * 8  # of 16 bytes: 16 low and 16 high nibbles
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    row = tl.minimum(n, N - 1).to(tl.int64) * stride_wn * UNIT  # a row that is there: no masks
    c, i = tl.arange(0, CHUNKS), tl.arange(0, CHUNKS * 4)
    j = tl.arange(0, 32)  # column of x in a chunk: 16 of one sub-block, 16 of the next
    words = row[:, None] + (i // 32 * 36 + 4 + i % 32)[None, :]
    heads = row[:, None] + (c // 8 * 36)[None, :]
    k = (c // 2 * 64 + c % 2 * 16)[:, None] + (j // 16 * 32 + j % 16)[None, :]
    line = tl.minimum(m, M - 1).to(tl.int64) * stride_xm
    x_at = line[:, None, None] + (k.to(tl.int64) * stride_xk)[None, :, :]
    step_x = tl.full((), 256, tl.int64) * stride_xk
    acc = tl.zeros((BLOCK_N, BLOCK_M, CHUNKS, 2), tl.float32)
    for b in tl.range(0, blocks, BLOCK_B, num_stages=STAGES):
        blocks_ptr, x_b = w_ptr + b * 36, x_ptr + b * step_x
        # The words come last: of several layouts the compiler keeps that of the last load, and
        # moves the others' values through shared memory.
        if EVEN:
            x = tl.load(x_b + x_at)
            head, first = tl.load(blocks_ptr + heads), tl.load(blocks_ptr + heads + 1)
            second, third = tl.load(blocks_ptr + heads + 2), tl.load(blocks_ptr + heads + 3)
            q = tl.load(blocks_ptr + words)
        else:
            there = b + c // 8 < blocks
            x = tl.load(x_b + x_at, there[None, :, None], other=0.0)
            head = tl.load(blocks_ptr + heads, there[None, :], other=0)
            first = tl.load(blocks_ptr + heads + 1, there[None, :], other=0)
            second = tl.load(blocks_ptr + heads + 2, there[None, :], other=0)
            third = tl.load(blocks_ptr + heads + 3, there[None, :], other=0)
            q = tl.load(blocks_ptr + words, (b + i // 32 < blocks)[None, :], other=0)
        low, high, under, over = _numbers(head, first, second, third, (c // 2 % 4)[None, :])
        w = _singles(tl.reshape(q, (BLOCK_N, CHUNKS, 4)), one)
        w = tl.reshape(tl.permute(w, (0, 1, 5, 2, 3, 4)), (BLOCK_N, 1, CHUNKS, 2, 16))
        x = tl.reshape(x.to(tl.float32), (1, BLOCK_M, CHUNKS, 2, 16))
        step = tl.join(16 * low, 16 * high)[:, None, :, :]
        least = tl.join(16 * low + under, 16 * high + over)[:, None, :, :]
        acc += step * tl.sum(w * x, axis=4) - least * tl.sum(x, axis=4)
    y = tl.sum(tl.sum(acc, axis=3), axis=2)
    y_ptrs = y_ptr + m.to(tl.int64)[None, :] * N + n[:, None]
    tl.store(y_ptrs, y.to(y_ptr.dtype.element_ty), (n[:, None] < N) & (m[None, :] < M))


@triton.jit
def _sum_parts(parts_ptr, y_ptr, count, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for part in tl.static_range(SPLITS):
        total += tl.load(parts_ptr + part * tl.cast(count, tl.int64) + i, i < count, other=0.0)
    tl.store(y_ptr + i, total.to(y_ptr.dtype.element_ty), i < count)


@dataclass(frozen=True)
class Rows:
    block_n: int = tile(2, 16, default=8)
    block_b: int = tile(2, 8, default=4)  # blocks of a row in one step
    num_warps: int = threads(2, 8, default=4)
    num_stages: int = stages(2, 4, default=3)


@dataclass(frozen=True)
class Tiles:
    block_m: int = tile(16, 128, default=16)
    block_n: int = tile(32, 128, default=64)
    num_warps: int = threads(4, 8, default=4)
    num_stages: int = stages(2, 4, default=4)


@dataclass(frozen=True)
class SplitK:
    block_m: int = tile(16, 64, default=16)
    block_n: int = tile(32, 128, default=64)
    splits: int = among(2, 4, 8, default=4)
    num_warps: int = threads(4, 8, default=4)
    num_stages: int = stages(2, 4, default=4)


def rows_at_once(M):
    """How many rows of x one program of `rows` multiplies."""
    return M if M <= 2 else 4


def refuse_rows(config, limits, *, itemsize, M, N, K):
    threads_ = config.num_warps * limits.warp_size
    if M > 16:
        return f"the weights would be unpacked {-(-M // 4)} times for {M} rows of x; 4 is the most"
    if threads_ > limits.threads_per_block:
        return f"{threads_} threads are more than one block may have here"
    chunks = config.block_n * config.block_b * 8
    if chunks < threads_:
        return f"{threads_} threads are too many for {chunks} chunks of 16 bytes"
    # A chunk is 32 weights, for which a thread holds as many elements of each row of x. With 8 of
    # such rows defaults spilled where a thread has up to 256 registers (8 bytes on sm_90, fp16,
    # 464 to 576 on gfx1100, Triton 3.9); with 4 they take 71 to 219, on gfx942 up to 306 of 512.
    held, most = chunks // threads_ * rows_at_once(M), -(-limits.registers_per_thread // 64)
    if held > most:
        return (
            f"each thread would multiply {chunks // threads_} chunks of 16 bytes by "
            f"{rows_at_once(M)} rows of x, and has registers for {most} products of the two"
        )
    return None


def refuse_tiles(config, limits, *, itemsize, M, N, K):
    threads_ = config.num_warps * limits.warp_size
    held = config.block_n * 256 // threads_
    sums = config.block_n * config.block_m // threads_
    buffers = config.num_stages if limits.arch.startswith("sm_") else 1
    shared = config.block_m * 256 * itemsize * buffers + config.block_n * 144 * (buffers - 1)
    if buffers == 1 or limits.arch == "sm_100":  # weights pass through it as well
        shared += config.block_n * 256 * itemsize
    if threads_ > limits.threads_per_block:
        return f"{threads_} threads are more than one block may have here"
    if held > 256:
        return f"each thread would hold {held} weights in registers; 256 is the most"
    if sums > 64 or sums + held // 2 > 160:
        return f"{sums} sums and {held} weights, two a register, are too many for one thread"
    if shared > limits.shared_bytes:
        return f"the stages need {shared} bytes of shared memory; a block has {limits.shared_bytes}"
    return None


def rows_work(config, limits, *, itemsize, M, N, K):
    return Work(
        tiles=-(-M // rows_at_once(M)) * -(-N // config.block_n),
        steps=-(-K // (256 * config.block_b)),
        load_bytes=config.block_b * (config.block_n * 144 + min(M, 4) * 256 * itemsize),
        store_bytes=config.block_n * itemsize,
    )


def tiles_work(config, limits, *, itemsize, M, N, K):
    return Work(
        tiles=-(-M // config.block_m) * -(-N // config.block_n),
        steps=K // 256,
        load_bytes=config.block_n * 144 + config.block_m * 256 * itemsize,
        store_bytes=config.block_n * config.block_m * itemsize,
        dot=(config.block_n, config.block_m, 256),
        band=-(-M // config.block_m),
    )


def split_work(config, limits, *, itemsize, M, N, K):
    return Work(
        tiles=-(-M // config.block_m) * -(-N // config.block_n) * config.splits,
        steps=-(-K // 256 // config.splits),
        load_bytes=config.block_n * 144 + config.block_m * 256 * itemsize,
        store_bytes=config.block_n * config.block_m * 4,
        dot=(config.block_n, config.block_m, 256),
        band=-(-M // config.block_m),
    )


def as_words(x, w):
    """The blocks as int32, the distance of their rows, and its unit, a number of words."""
    if w.shape[1] * 256 != x.shape[1] * 144:
        raise ValueError(f"w must have 144 bytes for 256 columns of x, not {w.shape[1]} in all")
    if w.stride(1) != 1 or w.stride(0) % 4 or w.data_ptr() % 4:
        raise ValueError("w must have dense rows of bytes that start at multiples of 4")
    words = w.view(torch.int32)
    unit = 4 if words.stride(0) % 4 == 0 else 1  # 16 bytes, so that it shows in the address
    return words, words.stride(0) // unit, unit


# As many chunks of 16 bytes as threads, which leaves room for 4 rows of x. With warps of 64 the
# default of Rows does so too; sm_90 keeps that one, which was timed there, for 1 and 2 rows.
NARROW = Rows(8, 2, 4, 3)


@q4_k_matmul.impl(
    Rows,
    refuse=refuse_rows,
    work=rows_work,
    defaults=dict.fromkeys(("sm_80", "sm_86", "sm_89", "sm_100", "sm_120", "gfx1100"), NARROW),
)
def rows(x, w, *, config):
    """`block_n` rows of w against one row of x on the vector units: one launch, small programs, and
    each lane sums what it unpacks."""
    (M, K), N = x.shape, w.shape[0]
    words, stride, unit = as_words(x, w)
    y = x.new_empty(M, N)
    block_m = rows_at_once(M)
    _rows[(triton.cdiv(N, config.block_n), triton.cdiv(M, block_m))](
        x, words, y, M, N, K // 256, 0x3F800000, x.stride(0), x.stride(1), stride,
        BLOCK_M=block_m, BLOCK_N=config.block_n, BLOCK_B=config.block_b, UNIT=unit,
        STAGES=config.num_stages, EVEN=K // 256 % config.block_b == 0, num_warps=config.num_warps,
    )  # fmt: skip
    return y


@q4_k_matmul.impl(
    Tiles, refuse=refuse_tiles, work=tiles_work, defaults={"fp32": Tiles(16, 32, 8, 2)}
)
def tiles(x, w, *, config):
    """Rows of w as the long side of a matrix product: `block_m` rows of x cost what one does."""
    return _product(x, w, config)


@q4_k_matmul.impl(
    SplitK, refuse=refuse_tiles, work=split_work, defaults={"fp32": SplitK(16, 32, 4, 8, 2)}
)
def split_k(x, w, *, config):
    """`splits` programs share a tile's columns, so that few rows of w still fill the device."""
    return _product(x, w, config, splits=config.splits)


# 99 KB of shared memory on Ada and consumer Blackwell, 64 KB of LDS
LOW = Tiles(32, 64, 4, 2)


@q4_k_matmul.impl(
    Tiles,
    refuse=refuse_tiles,
    work=tiles_work,
    defaults={
        "sm_90": Tiles(64, 64, 4, 2), "sm_80": Tiles(64, 64, 4, 2), "sm_100": Tiles(64, 64, 4, 2),
        "fp32": Tiles(16, 32, 8, 2), "sm_89": LOW, "sm_120": LOW, "gfx90a": LOW, "gfx942": LOW,
        "gfx950": LOW, "gfx1100": Tiles(16, 64, 8, 2),
    },
)  # fmt: skip
def ordered(x, w, *, config):
    """As tiles, after x is put once in the order of the matrix unit: so that its tiles, of which
    large ones would take longer than the weights, pass by the registers."""
    M, K = x.shape
    z = x.new_empty(M, K)
    _reorder[(K // 128, triton.cdiv(M, 16))](
        x, z, M, K, x.stride(0), x.stride(1), BLOCK_M=16, num_warps=4
    )
    return _product(z, w, config, ordered=True)


def _product(x, w, config, splits=1, ordered=False):
    (M, K), N = x.shape, w.shape[0]
    words, stride, unit = as_words(x, w)
    y = x.new_empty(M, N)
    out = y if splits == 1 else torch.empty(splits, M, N, dtype=torch.float32, device=x.device)
    programs = triton.cdiv(N, config.block_n) * triton.cdiv(M, config.block_m)
    _tiles[(programs, splits)](
        x, words, out, M, N, K // 256, triton.cdiv(K // 256, splits), _one(x),
        x.stride(0), x.stride(1), stride, M * N,
        BLOCK_M=config.block_m, BLOCK_N=config.block_n,
        WARPS=min(config.num_warps, config.block_n // 16), UNIT=unit, STAGES=config.num_stages,
        ORDERED=ordered, UPCAST=INTERPRETED and x.dtype == torch.bfloat16,
        num_warps=config.num_warps,
    )  # fmt: skip
    if splits > 1:
        _sum_parts[(triton.cdiv(M * N, 1024),)](out, y, M * N, SPLITS=splits, BLOCK=1024)
    return y


def _one(x):
    """Twice 1024 in fp16, or 1 in fp32: the bits that nibbles are or-ed into. An argument and no
    constant, so that it lies in a register and "and" and "or" become one instruction."""
    return 0x64006400 if x.dtype == torch.float16 else 0x3F800000


@q4_k_matmul.impl(backend="torch", name="torch")
def library(x, w):
    """The weights unpacked to the dtype of x by some thirty launches, then cuBLAS or hipBLAS."""
    return torch.mm(x, unpacked(w).to(x.dtype).T)


@q4_k_matmul.impl(backend="torch", name="torch.compile")
def compiled(x, w):
    return _compiled()(x, w)


@cache
def _compiled():
    return torch.compile(library.launch, dynamic=False)
