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

from dataclasses import dataclass, replace

import torch

from workbench.dsl import (
    INTERPRETED,
    baseline,
    cores,
    launch_pdl,
    meta,
    precision_of,
    tile_count,
    tl,
    triton,
    upcast,
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
    group_barrier,
    mbarrier,
    next_slot,
    refuse_hopper,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from workbench.kernels import matmul
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


def unpack(w):
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
    return x @ unpack(w).to(x.dtype).T


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
        {"M": 1, "N": 8, "K": 256},  # one product may cancel, and its rounding would count
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
    # much, in proportion to the rms of the sum. All errors together are those of up to four such
    # roundings, twice 0.0017 (bf16) or 0.0002 (fp16) of the rms.
    tolerance={
        "fp32": Tolerance(relative=1e-5, rms_share=5e-5),
        "fp16": Tolerance(relative=1e-3, rms_share=2e-3, rms=1e-3),
        "bf16": Tolerance(relative=8e-3, rms_share=1e-2, rms=5e-3),
    },
    extents={"K": Extent(multiple=256)},
    refusable=lambda itemsize, M, **at: M > 2,
)


# The format: blocks as words, their numbers, nibbles as floating-point numbers


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
def _halves(pairs, DTYPE: tl.constexpr):
    """Two 16-bit numbers in each int32, as a last axis: low half, high half."""
    low = pairs.to(tl.int16).to(DTYPE, bitcast=True)
    high = (pairs >> 16).to(tl.int16).to(DTYPE, bitcast=True)
    return tl.join(low, high)


@triton.jit
def _pairs(q, one):
    """Words of nibbles [..] as fp16 [.., byte / 2, byte % 2, low or high], two at a time:
    (q - 8) / 2 from 1024 + q, and q - 8 from 1024 + 16 q, which the next four bits of the mantissa
    make. About 0 what is rounded in a weight is half as large as about 8."""
    r = q >> 8
    a = _halves((q & 0x000F000F) | one, tl.float16) * 0.5 - 516
    b = _halves((r & 0x000F000F) | one, tl.float16) * 0.5 - 516
    c = _halves((q & 0x00F000F0) | one, tl.float16) * 0.0625 - 72
    d = _halves((r & 0x00F000F0) | one, tl.float16) * 0.0625 - 72
    return tl.join(tl.join(a, b), tl.join(c, d))


@triton.jit
def _singles(q, one):
    """The same as fp32 numbers 1 + q / 16, of q and not of q - 8."""
    a = tl.join((q << 19) & 0x780000 | one, (q << 3) & 0x780000 | one)
    b = tl.join((q << 11) & 0x780000 | one, (q >> 5) & 0x780000 | one)
    c = tl.join((q << 15) & 0x780000 | one, (q >> 1) & 0x780000 | one)
    d = tl.join((q << 7) & 0x780000 | one, (q >> 9) & 0x780000 | one)
    return tl.join(tl.join(a, b), tl.join(c, d)).to(tl.float32, bitcast=True)


@triton.jit
def _lifted(q, one, HIGH: tl.constexpr, FP16: tl.constexpr):
    """Low or high nibbles of words [V, 16] as [V, 16, byte % 2, byte / 2]: 1024 + q in fp16, where
    high ones are 1024 + 16 q; 128 + q in bf16."""
    if FP16:
        even, odd = q & (0x000F000F << (4 * HIGH)), (q >> 8) & (0x000F000F << (4 * HIGH))
    else:
        even, odd = (q >> (4 * HIGH)) & 0x000F000F, (q >> (8 + 4 * HIGH)) & 0x000F000F
    return _halves(tl.join(even | one, odd | one), tl.float16 if FP16 else tl.bfloat16)


@triton.jit
def _small(q, step, least, one, HIGH: tl.constexpr, FP16: tl.constexpr):
    """The same nibbles as numbers about 0 (fp16) or 1 (fp32), and the steps and minima of such."""
    if FP16:
        w = _lifted(q, one, HIGH, FP16)
        w = w * 0.0625 - 72 if HIGH else w * 0.5 - 516
        least -= 8 * step
        step *= 1 if HIGH else 2
    else:  # one + nibble / 16 in fp32
        if HIGH:
            low = tl.join((q << 15) & 0x780000 | one, (q << 7) & 0x780000 | one)
            high = tl.join((q >> 1) & 0x780000 | one, (q >> 9) & 0x780000 | one)
        else:
            low = tl.join((q << 19) & 0x780000 | one, (q << 11) & 0x780000 | one)
            high = tl.join((q << 3) & 0x780000 | one, (q >> 5) & 0x780000 | one)
        w = tl.join(low, high).to(tl.float32, bitcast=True)
        step *= 16
        least += step
    return w, step, least


@triton.jit
def _exact(q, step, least, one, HIGH: tl.constexpr, FP16: tl.constexpr):
    """The same nibbles as weights, given their steps and minima [V, 4]."""
    w, step, least = _small(q, step, least, one, HIGH, FP16)
    V: tl.constexpr = q.shape[0]
    w = tl.reshape(w, (V, 4, 4, 2, 2)) * tl.reshape(step.to(w.dtype), (V, 4, 1, 1, 1))
    return w - tl.reshape(least.to(w.dtype), (V, 4, 1, 1, 1))


def view_words(x, w):
    """The blocks as int32, the distance of their rows, and its unit, a number of words."""
    if w.shape[1] * 256 != x.shape[1] * 144:
        raise ValueError(f"w must have 144 bytes for 256 columns of x, not {w.shape[1]} in all")
    if w.stride(1) != 1 or w.stride(0) % 4 or w.data_ptr() % 4:
        raise ValueError("w must have dense rows of bytes that start at multiples of 4")
    words = w.view(torch.int32)
    unit = 4 if words.stride(0) % 4 == 0 else 1  # 16 bytes, so that it shows in the address
    return words, words.stride(0) // unit, unit


def _one(x):
    """Twice 1024 in fp16, or 1 in fp32: the bits that nibbles are or-ed into. An argument and no
    constant, so that it lies in a register and "and" and "or" become one instruction."""
    return 0x64006400 if x.dtype == torch.float16 else 0x3F800000


# Scheme 1, `rows`: on the vector units, for a row of x or a few


@triton.jit
def _quarters(v):
    """[A, B, C, D, 16] as four [A, B, C, D, 4]."""
    A: tl.constexpr = v.shape[0]
    B: tl.constexpr = v.shape[1]
    C: tl.constexpr = v.shape[2]
    D: tl.constexpr = v.shape[3]
    even, odd = tl.split(tl.reshape(v, (A, B, C, D, 4, 2, 2)))
    v0, v2 = tl.split(even)
    v1, v3 = tl.split(odd)
    return v0, v1, v2, v3


@triton.jit
def _dot16(w, x):
    """Sum of w * x over the last axis, with fma in a stated order. Of a * b + c * d the compiler
    rounds one product, and not the same one for each row of x: the bits of a row would depend on
    its place (Triton 3.6 and 3.9, sm_90)."""
    w0, w1, w2, w3 = _quarters(w)
    x0, x1, x2, x3 = _quarters(x)
    return tl.sum(tl.fma(w0, x0, tl.fma(w1, x1, tl.fma(w2, x2, w3 * x3))), axis=4)


@triton.jit
def _rows(
    x_ptr, w_ptr, y_ptr, M, N, blocks, one, stride_xm, stride_xk, stride_wn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_B: tl.constexpr, UNIT: tl.constexpr,
    STAGES: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    CHUNKS: tl.constexpr = BLOCK_B * 8  # of 16 bytes: 16 low and 16 high nibbles
    programs_m = tl.cdiv(M, BLOCK_M)
    n = tl.program_id(0) // programs_m * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(0) % programs_m * BLOCK_M + tl.arange(0, BLOCK_M)
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
        acc += tl.fma(step, _dot16(w, x), -least * tl.sum(x, axis=4))
    y = tl.sum(tl.sum(acc, axis=3), axis=2)
    y_ptrs = y_ptr + m.to(tl.int64)[None, :] * N + n[:, None]
    tl.store(y_ptrs, y.to(y_ptr.dtype.element_ty), (n[:, None] < N) & (m[None, :] < M))


@dataclass(frozen=True)
class Rows:
    block_n: int = tile(2, 16, default=8)
    block_b: int = tile(2, 8, default=AUTO)  # blocks of a row in one step
    num_warps: int = threads(2, 8, default=4)
    # Staged through shared memory, headers and x are read back with bank conflicts: 74.8 us with 3
    # stages, 23.3 with 1 (H200, 1x14336x4096, bf16; docs/profiling_story.md)
    num_stages: int = stages(1, 4, default=1)


def rows_at_once(M):
    """How many rows of x one program of `rows` multiplies."""
    return M if M <= 2 else 4


def size_rows(config, limits, *, itemsize, M, N, K):
    """Return the config with 4 blocks a step for 1 or 2 rows of x, and for more, where a thread of
    warps of 32 has no registers for so many, with 2."""
    many = M > 2 and limits.warp_size == 32
    return replace(config, block_b=value_or(config.block_b, 2 if many else 4))


def refuse_rows(config, limits, *, itemsize, M, N, K):
    threads_ = config.num_warps * limits.warp_size
    if M > 16:
        return f"the weights would be unpacked {-(-M // 4)} times for {M} rows of x; 4 is the most"
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


def rows_work(config, limits, *, itemsize, M, N, K):
    return Work(
        tiles=-(-M // rows_at_once(M)) * -(-N // config.block_n),
        steps=-(-K // (256 * config.block_b)),
        load_bytes=config.block_b * (config.block_n * 144 + min(M, 4) * 256 * itemsize),
        store_bytes=config.block_n * itemsize,
    )


NARROW = Rows(8, 2, 4, 1)  # as many chunks of 16 bytes as threads


@q4_k_matmul.impl(
    Rows,
    resolve=size_rows,
    refuse=refuse_rows,
    work=rows_work,
    defaults={"sm_80 sm_86 sm_89 sm_100 sm_120 gfx1100": NARROW},
)
def rows(x, w, *, config):
    """`block_n` rows of w against one row of x, or four, on the vector units: one launch, small
    programs, and each lane sums what it unpacks. The fastest for up to 4 rows of fp32."""
    (M, K), N = x.shape, w.shape[0]
    words, stride, unit = view_words(x, w)
    y = x.new_empty(M, N)
    block_m = rows_at_once(M)
    constants = dict(BLOCK_M=block_m, BLOCK_N=config.block_n, BLOCK_B=config.block_b, UNIT=unit)
    constants |= dict(STAGES=config.num_stages, EVEN=K // 256 % config.block_b == 0)
    sizes = M, N, K // 256, 0x3F800000, *x.stride(), stride
    _rows[(triton.cdiv(N, config.block_n) * triton.cdiv(M, block_m),)](
        x, words, y, *sizes, **constants, num_warps=config.num_warps
    )
    return y


# Scheme 2, `slices`: each warp by itself on the matrix unit, for few rows of x


@triton.jit
def _first_operand(w, WARPS: tl.constexpr, ROWS: tl.constexpr):
    """Numbers [V, 4 lanes, 4 words, byte % 2, byte / 2] where the unit wants a long side."""
    w = tl.reshape(w, (ROWS // 8, WARPS, 8, 4, 4, 2, 2))
    return tl.reshape(tl.permute(w, (1, 0, 2, 4, 3, 5, 6)), (WARPS, ROWS, 64))


@triton.jit
def _added(
    total, acc, sums, even, odd, under, over, WARPS: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """`total` and sums [WARPS, ROWS, 8] by their steps, less those of x by their minima; both are
    numbers [V, 4] for the even and the odd column of a lane."""
    step, least = tl.join(even, odd), tl.join(under, over)
    step = tl.permute(tl.reshape(step, (ROWS // 8, WARPS, 8, 4, 2)), (1, 0, 2, 3, 4))
    least = tl.permute(tl.reshape(least, (ROWS // 8, WARPS, 8, 4, 2)), (1, 0, 2, 3, 4))
    sums = tl.broadcast_to(sums[:, None, :, :], (WARPS, ROWS // 16, 16, 8))
    total += acc * tl.reshape(step, (WARPS, ROWS, 8))
    return total - tl.reshape(sums, (WARPS, ROWS, 8)) * tl.reshape(least, (WARPS, ROWS, 8))


@triton.jit
def _step(scale, minimum, d, dmin, HIGH: tl.constexpr, FP16: tl.constexpr):
    """The step for sums over lifted nibbles, and the minimum for sums of x."""
    step = d * scale.to(tl.float32)
    least = dmin * minimum.to(tl.float32)
    if not FP16:
        return step, 128 * step + least
    if HIGH:
        return step * 0.0625, 64 * step + least
    return step, 1024 * step + least


@triton.jit
def _load_x(at, there, stride_xk, ORDER: tl.constexpr):
    """16 columns of x for each lane, [V, 32] pointers of 8 columns to [V, 32 pairs, 2]."""
    x = tl.load(at, there, other=0.0)
    x = tl.join(x, tl.load(at + (256 if ORDER else 8) * stride_xk, there, other=0.0))
    V: tl.constexpr = at.shape[0]
    # lane, word % 2, byte / 2, byte % 2, word / 2; in order byte % 2, word % 2, byte / 2 instead
    x = tl.reshape(x, (V, 4, 2, 2, 2, 2))
    x = tl.permute(x, (0, 1, 5, 3, 2, 4) if ORDER else (0, 1, 5, 2, 4, 3))
    return tl.reshape(x, (V, 32, 2))


@triton.jit
def _second_operand(x, WARPS: tl.constexpr, COLUMNS: tl.constexpr):
    x = tl.reshape(x, (COLUMNS // 8, WARPS, 8, 4, 2, 2, 2, 2))
    return tl.reshape(tl.permute(x, (1, 4, 5, 3, 6, 7, 0, 2)), (WARPS, 64, COLUMNS))


@triton.jit
def _dot(w, x, WARPS: tl.constexpr, ROWS: tl.constexpr, UPCAST: tl.constexpr):
    w = _first_operand(w, WARPS, ROWS)
    if UPCAST:
        w, x = w.to(tl.float32), x.to(tl.float32)
    return tl.dot(w, x, input_precision="ieee")


@triton.jit
def _sums(x, WARPS: tl.constexpr, UPCAST: tl.constexpr):
    """Sums of the columns of x, in each of 16 rows."""
    ones = tl.full((WARPS, 16, 64), 1.0, tl.float32).to(x.dtype)
    if UPCAST:
        ones, x = ones.to(tl.float32), x.to(tl.float32)
    return tl.dot(ones, x, input_precision="ieee")


@triton.jit
def _by_columns(
    total, left, right, head, first, second, third, at, here, stride_xk, one,
    WARPS: tl.constexpr, ROWS: tl.constexpr, FP16: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """One row of x, a sub-block a column. All columns are multiplied by all sub-blocks, and of each
    product only the columns are kept that are its own."""
    x = _second_operand(_load_x(at, here, stride_xk, 0), WARPS, 8)
    column = tl.arange(0, 8)[None, None, :]
    low = tl.where(
        column // 4 == 0,
        _dot(_lifted(left, one, 0, FP16), x, WARPS, ROWS, UPCAST),
        _dot(_lifted(right, one, 0, FP16), x, WARPS, ROWS, UPCAST),
    )
    high = tl.where(
        column // 4 == 0,
        _dot(_lifted(left, one, 1, FP16), x, WARPS, ROWS, UPCAST),
        _dot(_lifted(right, one, 1, FP16), x, WARPS, ROWS, UPCAST),
    )
    acc, sums = tl.where(column % 2 == 0, low, high), _sums(x, WARPS, UPCAST)
    d, dmin = _half(head, 0), _half(head, 16)
    scale, minimum = _codes(first, second, third, tl.arange(0, 4)[None, :])
    even, under = _step(scale & 0xFF, minimum & 0xFF, d, dmin, 0, FP16)
    odd, over = _step(scale >> 8, minimum >> 8, d, dmin, 1, FP16)
    return _added(total, acc, sums, even, odd, under, over, WARPS, ROWS)


@triton.jit
def _by_halves(
    total, q, head, first, second, third, g, at, here, stride_xk, one, WARPS: tl.constexpr,
    ROWS: tl.constexpr, SHARE: tl.constexpr, FP16: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Half a block and two rows of x, a sub-block a column as above; or four, where columns part
    only the two sub-blocks that low nibbles lie in, or high ones."""
    d, dmin = _half(head, 0), _half(head, 16)
    scale, minimum = _codes(first, second, third, g)
    low, under = _step(scale & 0xFF, minimum & 0xFF, d, dmin, 0, FP16)
    high, over = _step(scale >> 8, minimum >> 8, d, dmin, 1, FP16)
    x = _second_operand(_load_x(at, here, stride_xk, 0), WARPS, 8)
    acc, sums = _dot(_lifted(q, one, 0, FP16), x, WARPS, ROWS, UPCAST), _sums(x, WARPS, UPCAST)
    if SHARE == 4:
        odd = tl.arange(0, 4)[None, :] % 2 == 1
        low, under = tl.where(odd, high, low), tl.where(odd, over, under)
        other = _dot(_lifted(q, one, 1, FP16), x, WARPS, ROWS, UPCAST)
        acc = tl.where(tl.arange(0, 8)[None, None, :] // 2 % 2 == 0, acc, other)
    total = _added(total, acc, sums, low, low, under, under, WARPS, ROWS)
    if SHARE == 2:
        x = _second_operand(_load_x(at + 32 * stride_xk, here, stride_xk, 0), WARPS, 8)
        acc, sums = _dot(_lifted(q, one, 1, FP16), x, WARPS, ROWS, UPCAST), _sums(x, WARPS, UPCAST)
        total = _added(total, acc, sums, high, high, over, over, WARPS, ROWS)
    return total


@triton.jit
def _by_weights(
    total, q, head, first, second, third, g, at, here, stride_xk, one, WARPS: tl.constexpr,
    ROWS: tl.constexpr, FP16: tl.constexpr, UPCAST: tl.constexpr, ORDER: tl.constexpr,
):  # fmt: skip
    """Half a block and as many rows of x as columns."""
    COLUMNS: tl.constexpr = total.shape[2]
    low, high, under, over = _numbers(head, first, second, third, g)
    for nibble in tl.static_range(2):
        x = _load_x(at + (512 if ORDER else 32) * nibble * stride_xk, here, stride_xk, ORDER)
        x = _second_operand(x, WARPS, COLUMNS)
        step, least = (high, over) if nibble else (low, under)
        if UPCAST:  # weights too: the interpreter would cut them off where a GPU rounds them
            x = x.to(tl.float32)
        w = _first_operand(_exact(q, step, least, one, nibble, FP16).to(x.dtype), WARPS, ROWS)
        total = tl.dot(w, x, total, input_precision="ieee")
    return total


@triton.jit
def _block_of(at, block, blocks, there, EVEN: tl.constexpr):
    """Words 0 to 3 of a block of each row, once a lane, and its two halves of nibbles."""
    if not EVEN:
        block = tl.minimum(block, blocks - 1)
    at, j = (at + block * 36)[:, None], tl.arange(0, 16)[None, :]
    return tl.load(at + j % 4, there), tl.load(at + 4 + j, there), tl.load(at + 20 + j, there)


ON_GPU = tl.constexpr(not INTERPRETED)  # the interpreter has no inline PTX


@triton.jit
def _keep_order():
    """Hold ptxas to the order of the loads before this and those behind it, at no cost. Else it
    puts loads for the next step at the end of this one, where registers are free (sm_90)."""
    if ON_GPU:
        tl.inline_asm_elementwise(
            "bar.warp.sync 0xffffffff; // $0", "=r", [], dtype=tl.int32, is_pure=False, pack=1
        )


@triton.jit
def _slices(
    x_ptr, w_ptr, y_ptr, M, N, blocks, one, stride_xm, stride_xk, stride_wn,
    BLOCK_M: tl.constexpr, TILES: tl.constexpr, SLICES: tl.constexpr, WARPS: tl.constexpr,
    UNIT: tl.constexpr, EVEN: tl.constexpr, EARLY: tl.constexpr, ORDER: tl.constexpr,
    UPCAST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL and ORDER == 0:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    FP16: tl.constexpr = x_ptr.dtype.element_ty == tl.float16
    ROWS: tl.constexpr = 16 * TILES
    GROUPS: tl.constexpr = WARPS // SLICES
    COLUMNS: tl.constexpr = 8 if BLOCK_M < 8 else BLOCK_M
    SHARE: tl.constexpr = COLUMNS // BLOCK_M  # columns for one row of x: see `slices`
    program_n = tl.program_id(0) // tl.cdiv(M, BLOCK_M) * (ROWS * GROUPS)
    program_m = tl.program_id(0) % tl.cdiv(M, BLOCK_M) * BLOCK_M
    i, t = tl.arange(0, ROWS * WARPS), tl.arange(0, 4)[None, :]
    warp = i // 8 % WARPS
    slice_w = warp % SLICES
    n = program_n + warp // SLICES * ROWS + i // (8 * WARPS) * 8 + i % 8
    row = tl.minimum(n, N - 1).to(tl.int64) * stride_wn * UNIT  # a row that is there: no masks
    i, e = tl.arange(0, COLUMNS * WARPS), tl.arange(0, 32)
    slice_x, column, lane = i // 8 % WARPS % SLICES, i // (8 * WARPS) * 8 + i % 8, e // 8
    m = tl.minimum(program_m + column % BLOCK_M, M - 1)
    k = (lane // 2 * 64 + lane % 2 * 16 + e % 8)[None, :]
    # a lane's 16 bytes have low nibbles of one sub-block and high ones of the next
    own = (column // BLOCK_M)[:, None]  # the sub-block, of as many as share a row of x
    if SHARE == 8:
        k += own // 4 * 128 + own % 2 * 32
        there = own // 2 % 2 == lane // 2
    elif SHARE == 4:
        k += own % 2 * 32
        there = own // 2 == lane // 2
    elif SHARE == 2:
        there = own == lane // 2
    else:
        there = own == 0
    if ORDER:  # see `_reorder`
        x_ptrs = x_ptr + (m // 8 * 8).to(tl.int64)[:, None] * stride_xm
        x_ptrs += (m % 8 * 32)[:, None] + e[None, :]
    else:
        x_ptrs = x_ptr + (m.to(tl.int64) * stride_xm)[:, None] + k.to(tl.int64) * stride_xk
    half_x = tl.full((), 1024 if ORDER else 128, tl.int64) * stride_xk
    total = tl.zeros((WARPS, ROWS, COLUMNS), tl.float32)
    at_w = w_ptr + row
    if EARLY:
        following = _block_of(at_w, slice_w, blocks, True, EVEN)
    for b in tl.range(0, blocks, SLICES, num_stages=1):
        if EARLY:  # the next block is on its way while this one is unpacked
            head, left, right = following
            more = b + SLICES < blocks
            following = _block_of(at_w, b + SLICES + slice_w, blocks, more, EVEN)
            _keep_order()
        else:
            head, left, right = _block_of(at_w, b + slice_w, blocks, True, EVEN)
        if ORDER == 2:  # the launch that puts x in order; no wait from the second time on
            tl.extra.cuda.gdc_wait()
        block = b + slice_x
        at, here = x_ptrs + (block * (2 * half_x))[:, None], there
        if not EVEN:
            here = (block < blocks)[:, None] & there
        even, odd = tl.split(tl.reshape(head, (ROWS * WARPS, 4, 2, 2)))
        zeroth, second = tl.split(even)
        first, third = tl.split(odd)
        words = (zeroth, first, second, third)
        if SHARE == 8:
            x = (at, here, stride_xk)
            total = _by_columns(total, left, right, *words, *x, one, WARPS, ROWS, FP16, UPCAST)
        else:
            for half in tl.static_range(2):
                q, g, x = left if half == 0 else right, 2 * half + t // 2, (at, here, stride_xk)
                if SHARE == 1:
                    total = _by_weights(
                        total, q, *words, g, *x, one, WARPS, ROWS, FP16, UPCAST, ORDER
                    )
                else:
                    total = _by_halves(
                        total, q, *words, g, *x, one, WARPS, ROWS, SHARE, FP16, UPCAST
                    )
                at += half_x
    y = tl.reshape(total, (GROUPS, SLICES, ROWS, SHARE, BLOCK_M))
    y = tl.reshape(tl.sum(tl.sum(y, axis=3), axis=1), (GROUPS * ROWS, BLOCK_M))
    n = program_n + tl.arange(0, GROUPS * ROWS)
    m = program_m + tl.arange(0, BLOCK_M)
    y_ptrs = y_ptr + m.to(tl.int64)[None, :] * N + n[:, None]
    tl.store(y_ptrs, y.to(y_ptr.dtype.element_ty), (n[:, None] < N) & (m[None, :] < M))


@dataclass(frozen=True)
class Slices:
    tiles: int = among(1, 2, 4, default=AUTO)  # of 16 rows of w, a warp
    slices: int = tile(1, 16, default=AUTO)  # warps that share rows of w; see `size_slices`
    num_warps: int = threads(1, 16, default=AUTO)
    # 1: x is put in the order of lanes by a launch before; 2: which begins while that one runs
    order: int = among(0, 1, 2, default=AUTO)
    pdl: int = among(0, 1, default=AUTO)  # up to 4 rows begin before the launch before has ended


def columns_at_once(M, itemsize):
    """How many rows of x one program of `slices` multiplies."""
    return min(1 << max(M - 1, 0).bit_length(), 32) if itemsize == 2 else max(8, min(M, 8))


def warps_at_once(M):
    """Return for how many warps a core has room: of 70 registers for up to 2 rows of x."""
    return 28 if M <= 2 else 16


def warps_of_rows(M, blocks):
    """Return how many warps a core shall have at most for more than 4 rows of x.

    16 have 128 registers each, of which 17 rows and more spill; 12 have 152. In turns on an H100,
    32 rows at 8192x8192 take 0.91 of the time with 12 at most, 64 rows at 4096x4096 0.97, but 1.13
    at 4096x14336, where a warp has many blocks.
    """
    return 12 if M > 16 and (M <= 32 or blocks <= 16) else 16


def begins_early(limits, M, programs, warps):
    """Return whether a launch of up to 4 rows of x begins while the one before it ends.

    What begins early is placed where there is room, and where that is room for some programs
    alone, a core gets more of them than its share. So all of them must fit beside the launch
    before, or none, or cores have unequal numbers anyway. At 33 of 48 sizes on an H100 it
    is so, and launches that follow one another take 0.91 to 0.995 of the time of those that wait;
    at the other 15 they would take 1.01 to 1.16 (benchmarks/data/h100_early_launches.csv).
    """
    each, places = -(-programs // limits.cores), warps_at_once(M) // warps
    return 2 * each <= places or each >= places or programs < 0.8 * each * limits.cores


def shared_by(limits, M, groups, blocks):
    """Return how many warps share rows of w, of so many groups of 16 rows and blocks of a row.

    As many as leave all programs running at once: where a few of them need a round of their own,
    the most that does not.
    On an H200, 1 row: 4096x4096 5.4 us with 8 warps, 6.5 with 4; 28672x8192 36.8 with 4, which fill
    two rounds, 39.2 with 2. On an H100 16384x4608, where 4 need a second round for an eighth of
    all, 18.7 us with 2 and 22.4 with 4.
    """
    if M > 4:
        programs = groups * -(-M // 32)
        most = min(warps_of_rows(M, blocks) // -(-programs // limits.cores), blocks, 4)
        many = min(4 if M <= 16 else 2, 1 << blocks.bit_length() - 1)  # where there are rounds
        return 1 << most.bit_length() - 1 if most > 1 else many
    room = warps_at_once(M)
    for warps in (8, 4, 2):
        rounds = groups / (limits.cores * (room // warps))
        if warps == 8 and (rounds > 1 or (M > 1 and blocks % 8) or blocks < 8):
            continue  # of 10 blocks 8 warps take two steps, the second for two of them
        if rounds <= 1 or rounds >= 0.8 * -(-rounds // 1):
            return min(warps, 1 << blocks.bit_length() - 1)
    return min(4, 1 << blocks.bit_length() - 1)


def size_slices(config, limits, *, itemsize, M, N, K):
    """Return the config with what is AUTO chosen by the sizes; see `shared_by`. Configs older than
    `order` have tiles: it is 0 then."""
    tiles = value_or(config.tiles, 1)
    groups = -(-N // (16 * tiles))
    slices = value_or(config.slices, shared_by(limits, M, groups, K // 256))
    wide = config.tiles == AUTO and itemsize == 2 and M > 4
    order = value_or(config.order, wide * (1 if limits.refuse_pdl() else 2))
    num_warps = value_or(config.num_warps, slices)
    programs = -(-groups * slices // num_warps)
    early = M <= 4 and begins_early(limits, M, programs, num_warps) and not limits.refuse_pdl()
    pdl = value_or(config.pdl, int(early))
    return replace(config, tiles=tiles, slices=slices, num_warps=num_warps, order=order, pdl=pdl)


def refuse_slices(config, limits, *, itemsize, M, N, K):
    sums = config.tiles * max(columns_at_once(M, itemsize), 8) // 2
    # products of fp32 are made on the vector units, from shared memory
    shared = config.num_warps * (config.tiles * 4096 + 2048) if itemsize == 4 else 0
    if not limits.nvidia:
        return "the matrix unit there has no products with 8 columns"
    if config.order and (itemsize == 4 or M <= 4 or config.tiles == 4):
        return "ordering x needs more than 4 rows, 16-bit numbers, and at most 2 tiles a warp"
    if config.pdl == 1 and M > 4:
        return "launches of more than 4 rows of x do not begin early: programs would share a core"
    if (config.order == 2 or config.pdl == 1) and (reason := limits.refuse_pdl()):
        return reason
    if M > 64:
        return f"the weights would be unpacked {-(-M // 32)} times for {M} rows of x; 2 is the most"
    if config.slices > config.num_warps:
        return f"{config.num_warps} warps are too few for {config.slices} slices"
    if sums > 32:
        return f"{sums} sums and what they need are too many for one thread"
    return limits.refuse_shared(shared, "weights")


def slices_work(config, limits, *, itemsize, M, N, K):
    columns = columns_at_once(M, itemsize)
    n = 16 * config.tiles * config.num_warps // config.slices
    product = Work(
        tiles=-(-M // columns) * -(-N // n),
        steps=-(-K // 256 // config.slices),
        load_bytes=config.slices * (n * 144 + min(M, columns) * 256 * itemsize),
        store_bytes=n * min(M, columns) * itemsize,
        dot=(n, max(columns, 8), 256 * config.slices),
        # 3.0, 4.7 and 6.0 instructions a weight for 1, 4 and 16 rows of x, in the PTX of sm_90; in
        # fp32, whose operands come from shared memory one by one, by the time of 1 to 64 rows
        vector_ops=(200 if itemsize == 4 else 5 + min(M, 7)) * n * 256 * config.slices // 2,
    )
    if config.order < 1:  # stored configs are without one
        return product
    passed, memory = M * K * itemsize, N * K // 256 * 144 + M * N * itemsize
    product = replace(product, passed_bytes=passed, memory_bytes=memory)
    return reorder_work(itemsize, M, K), product


# of fp32 four warps spill 8 bytes on sm_80, and on sm_90 with one row of x (Triton 3.6)
@q4_k_matmul.impl(
    Slices,
    resolve=size_slices,
    refuse=refuse_slices,
    work=slices_work,
    defaults={"fp32": Slices(slices=8, num_warps=8)},
)
def slices(x, w, *, config):
    """Warps that take turns at the blocks of 16 rows, each by itself on the matrix unit, whose
    product has 8 columns: up to 4 rows of x take several each, one for every sub-block, so that no
    weight is ever made, only sums of nibbles that their steps multiply. 218 instructions, of which
    84 unpack, are then enough for 128 weights a lane (1 row, fp16, sm_90, Triton 3.6); 321 for 4
    rows, and 418 for 16, of which 40 load the next block early."""
    (M, K), N = x.shape, w.shape[0]
    words, stride, unit = view_words(x, w)
    y = x.new_empty(M, N)
    block_m = columns_at_once(M, x.element_size())
    half = x.dtype == torch.float16
    one = 0x64006400 if half else 0x43004300 if block_m < 8 else 0x3F800000
    rows_ = 16 * config.tiles * config.num_warps // config.slices
    # up to 4 rows of x it costs more registers than it hides: 14.3 us in place of 11.6 for one
    early = config.order > 0 and config.slices < K // 256
    constants = dict(BLOCK_M=block_m, TILES=config.tiles, SLICES=config.slices)
    constants |= dict(WARPS=config.num_warps, UNIT=unit, EVEN=K // 256 % config.slices == 0)
    order = min(config.order, 1 if INTERPRETED else 2)
    pdl = order == 2 or (config.pdl == 1 and not INTERPRETED)
    constants |= dict(EARLY=early, ORDER=order, UPCAST=upcast(x), PDL=pdl)
    if order:
        x = reorder(x, eights=True, pdl=order == 2)
    programs = triton.cdiv(N, rows_) * triton.cdiv(M, block_m)
    warps = triton.cdiv(programs, cores(x)) * config.num_warps
    registers = few_registers(block_m, warps) if early and not INTERPRETED else {}
    _slices[(programs,)](
        x, words, y, M, N, K // 256, one, *x.stride(), stride, **constants,
        num_warps=config.num_warps, **launch_pdl(pdl), **registers,
    )  # fmt: skip
    return y


def few_registers(block_m, warps):
    """Return the launch option by which so many warps fit a core.

    With the 140 registers that ptxas takes for 16 rows of x, 14336x4096 takes 25.6 us on an H200,
    and 19.2 with 128, which let 16 warps work. Where a core has no more than 12, they have 152:
    16 rows take 0.93 to 0.99 of the time then and 32 rows 0.74 to 0.88, at seven sizes on an H100.
    8 rows spill nothing."""
    return {"maxnreg": 152 if block_m > 8 and warps <= 12 else 128}


# Scheme 3, `tiles` and `ordered`: rows of w as the long side of a matrix product


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
        step, least = tl.join(2 * low, high), tl.join(under - 8 * low, over - 8 * high)
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
    STAGES: tl.constexpr, UPCAST: tl.constexpr,
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
        x, z = _ordered(x, BLOCK_M), _ordered(z, BLOCK_M)
        if UPCAST:  # weights too: the interpreter would cut them off where a GPU rounds them
            x, z = x.to(tl.float32), z.to(tl.float32)
        w = _weights(left, one, head, first, second, third, g, BLOCK_N, WARPS, FP16)
        acc = tl.dot(w.to(x.dtype), tl.trans(x), acc, input_precision=precision_of(x.dtype))
        w = _weights(right, one, head, first, second, third, g + 2, BLOCK_N, WARPS, FP16)
        acc = tl.dot(w.to(z.dtype), tl.trans(z), acc, input_precision=precision_of(z.dtype))
    n = first_n + tl.arange(0, BLOCK_N)
    y_ptrs = y_ptr + tl.program_id(1).to(tl.int64) * stride_ys
    y_ptrs += m.to(tl.int64)[None, :] * N + n[:, None]
    tl.store(y_ptrs, acc.to(y_ptr.dtype.element_ty), (m[None, :] < M) & (n[:, None] < N))


@triton.jit
def _sum_parts(parts_ptr, y_ptr, count, each, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for part in tl.static_range(SPLITS):
        total += tl.load(parts_ptr + part * tl.cast(each, tl.int64) + i, i < count, other=0.0)
    tl.store(y_ptr + i, total.to(y_ptr.dtype.element_ty), i < count)


@dataclass(frozen=True)
class Tiles:
    block_m: int = tile(16, 128, default=16)
    block_n: int = tile(32, 128, default=64)
    num_warps: int = threads(4, 8, default=4)
    num_stages: int = stages(2, 4, default=4)
    splits: int = among(1, 2, 4, 8, default=AUTO)  # parts of K, each a program's


def size_tiles(config, limits, *, itemsize, M, N, K):
    """Return the config with as many parts of K as leave two programs a core, four at most.

    On an H100, fp16: with 4 parts 1x4096x4096 takes 0.70 of the time and 16x4096x14336 0.49, with 2
    parts 32x4096x14336 0.80, but 64x4096x4096, of 256 tiles, 1.19.
    """
    most = min(2 * limits.cores // tile_count(config, M=M, N=N), K // 256, 4)
    return replace(config, splits=value_or(config.splits, 1 << max(most, 1).bit_length() - 1))


def refuse_tiles(config, limits, *, itemsize, M, N, K):
    threads_ = config.num_warps * limits.warp_size
    held = config.block_n * 256 // threads_
    sums = config.block_n * config.block_m // threads_
    buffers = config.num_stages if limits.nvidia else 1
    shared = config.block_m * 256 * itemsize * buffers + config.block_n * 144 * (buffers - 1)
    if buffers == 1 or limits.arch == "sm_100":  # weights pass through it as well
        shared += config.block_n * 256 * itemsize
    elif itemsize == 4:  # in halves
        shared += config.block_n * 128 * itemsize
    if held > 256:
        return f"each thread would hold {held} weights in registers; 256 is the most"
    if sums > 64 or sums + held // 2 > 160:
        return f"{sums} sums and {held} weights, two a register, are too many for one thread"
    return limits.refuse_shared(shared)


UNPACK = 7  # instructions a weight: counted in the PTX of sm_90 as 6.3, with those of addresses


def one_launch_work(config, limits, *, itemsize, M, N, K):
    """Return the work of tiles of which each is one program's."""
    return Work(
        tiles=tile_count(config, M=M, N=N),
        steps=K // 256,
        load_bytes=config.block_n * 144 + config.block_m * 256 * itemsize,
        store_bytes=config.block_n * config.block_m * itemsize,
        dot=(config.block_n, config.block_m, 256),
        band=-(-M // config.block_m),
        vector_ops=UNPACK * config.block_n * 256,
    )


def tiles_work(config, limits, *, itemsize, M, N, K):
    """Return the work of the product, and where K has parts of the launch that adds them, too."""
    whole = one_launch_work(config, limits, itemsize=itemsize, M=M, N=N, K=K)
    if config.splits <= 1:  # stored configs are without any
        return whole
    steps, sums = -(-K // 256 // config.splits), config.block_n * config.block_m * 4
    tiles, passed = whole.tiles * config.splits, config.splits * M * N * 4
    parts = replace(whole, tiles=tiles, steps=steps, store_bytes=sums, passed_bytes=passed)
    added = Work(
        tiles=-(-M * N // 1024),
        steps=1,
        load_bytes=config.splits * 1024 * 4,
        store_bytes=1024 * itemsize,
        vector_ops=15 * 1024,  # SASS of sm_90: 118 of each of 128 threads
        waits=0,
        hits=1,
        passed_bytes=passed,
        memory_bytes=M * N * itemsize,
    )
    return parts, added


@q4_k_matmul.impl(
    Tiles,
    resolve=size_tiles,
    refuse=refuse_tiles,
    work=tiles_work,
    defaults={
        "fp32": Tiles(16, 32, 8, 2),
        "fp32:sm_90": Tiles(16, 64, 4, 2),
        # two stages: of four, Triton 3.6 makes no code for AMD's targets
        "gfx90a gfx942 gfx950": Tiles(16, 64, 4, 2),
        "gfx1100": Tiles(16, 32, 4, 2),
    },
)
def tiles(x, w, *, config):
    """Rows of w as the long side of a matrix product: `block_m` rows of x cost what one does. A
    few tiles share the device in parts of K, whose sums are added in a launch of their own."""
    (M, K), N = x.shape, w.shape[0]
    words, stride, unit = view_words(x, w)
    y, splits = x.new_empty(M, N), config.splits
    if x.stride(1) != 1:
        x = x.contiguous()  # of other rows Triton 3.6 fails to put tiles in order
    out = y if splits == 1 else torch.empty(splits, M, N, dtype=torch.float32, device=x.device)
    constants = dict(BLOCK_M=config.block_m, BLOCK_N=config.block_n)
    constants |= dict(WARPS=min(config.num_warps, config.block_n // 16), UNIT=unit)
    constants |= dict(STAGES=config.num_stages, UPCAST=upcast(x), num_warps=config.num_warps)
    sizes = M, N, K // 256, triton.cdiv(K // 256, splits), _one(x), *x.stride(), stride, M * N
    _tiles[(tile_count(config, N=N, M=M), splits)](x, words, out, *sizes, **constants)
    if splits > 1:
        add_parts(out, y)
    return y


def add_parts(parts, y):
    """Add partial sums in fp32, of which each has as many rows as y or more."""
    constants = dict(SPLITS=len(parts), BLOCK=1024)
    _sum_parts[(triton.cdiv(y.numel(), 1024),)](parts, y, y.numel(), parts.stride(0), **constants)


@triton.jit
def _long_operand(w, WARPS: tl.constexpr):
    V: tl.constexpr = w.shape[0]
    w = tl.reshape(w, (V // (16 * WARPS), 2, WARPS, 8, 4, 4, 2, 2))
    return tl.reshape(tl.permute(w, (0, 2, 1, 3, 5, 6, 4, 7)), (V, 64))


@triton.jit
def _ordered_tiles(
    x_ptr, w_ptr, y_ptr, M, N, blocks, one, stride_wn, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, WARPS: tl.constexpr, UNIT: tl.constexpr, STAGES: tl.constexpr,
    UPCAST: tl.constexpr,
):  # fmt: skip
    FP16: tl.constexpr = x_ptr.dtype.element_ty == tl.float16
    tiles_m = tl.cdiv(M, BLOCK_M)
    m = tl.program_id(0) % tiles_m * BLOCK_M + tl.arange(0, BLOCK_M)
    first_n = tl.program_id(0) // tiles_m * BLOCK_N
    n = first_n + _row_of(tl.arange(0, BLOCK_N), WARPS)
    row = tl.minimum(n, N - 1).to(tl.int64) * stride_wn * UNIT  # a row that is there: no masks
    line = tl.minimum(m, M - 1).to(tl.int64) * blocks * 256
    x_ptrs = x_ptr + line[:, None] + tl.arange(0, 64)[None, :]
    t = tl.arange(0, 4)[None, :]
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for i in tl.range(0, 2 * blocks, num_stages=STAGES):
        block = w_ptr + row + i // 2 * 36
        q = tl.load((block + 4 + i % 2 * 16)[:, None] + tl.arange(0, 16)[None, :])
        head, first = tl.load(block)[:, None], tl.load(block + 1)[:, None]
        second, third = tl.load(block + 2)[:, None], tl.load(block + 3)[:, None]
        x, z = tl.load(x_ptrs), tl.load(x_ptrs + 64)
        x_ptrs += 128
        if UPCAST:  # weights too: the interpreter would cut them off where a GPU rounds them
            x, z = x.to(tl.float32), z.to(tl.float32)
        low, high, under, over = _numbers(head, first, second, third, i % 2 * 2 + t // 2)
        w = _long_operand(_exact(q, low, under, one, 0, FP16).to(x.dtype), WARPS)
        acc = tl.dot(w, tl.trans(x), acc, input_precision=precision_of(x.dtype))
        w = _long_operand(_exact(q, high, over, one, 1, FP16).to(x.dtype), WARPS)
        acc = tl.dot(w, tl.trans(z), acc, input_precision=precision_of(z.dtype))
    n = first_n + tl.arange(0, BLOCK_N)
    y_ptrs = y_ptr + m.to(tl.int64)[None, :] * N + n[:, None]
    tl.store(y_ptrs, acc.to(y_ptr.dtype.element_ty), (m[None, :] < M) & (n[:, None] < N))


@triton.jit
def _reorder(
    x_ptr, y_ptr, M, K, stride_xm, stride_xk,
    BLOCK_M: tl.constexpr, EIGHTS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    m = (tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    k = (tl.program_id(1) * 128 + tl.arange(0, 128)).to(tl.int64)[None, :]
    x = tl.load(x_ptr + m * stride_xm + k * stride_xk, m < M, other=0.0)
    x = tl.reshape(x, (BLOCK_M, 2, 2, 2, 2, 2, 2, 2))
    x = tl.permute(x, (0, 2, 4, 1, 3, 7, 5, 6) if EIGHTS else (0, 2, 4, 5, 7, 1, 3, 6))
    at = m * K + k
    if EIGHTS:  # 32 columns of 8 rows side by side: the 512 bytes that a warp of `slices` loads
        at = m // 8 * 8 * K + k // 32 * 256 + m % 8 * 32 + k % 32
    tl.store(y_ptr + at, tl.reshape(x, (BLOCK_M, 128)), m < M)


@dataclass(frozen=True)
class Ordered:
    block_m: int = tile(16, 256, default=64)
    block_n: int = tile(32, 256, default=AUTO)
    num_warps: int = threads(4, 16, default=AUTO)
    num_stages: int = stages(2, 4, default=3)


def size_ordered(config, limits, *, itemsize, M, N, K):
    """Return the config with what is AUTO chosen by the rows of x.

    More than one tile of x is read once for 128 rows of w, or else would take longer to come from
    the cache than to be multiplied. A warp has 16 rows of w."""
    block_n = value_or(config.block_n, 64 if M <= 64 else 128)
    num_warps = value_or(config.num_warps, max(4, block_n // 16))
    return replace(config, block_n=block_n, num_warps=num_warps)


def refuse_ordered(config, limits, *, itemsize, M, N, K):
    threads_ = config.num_warps * limits.warp_size
    nvidia = limits.nvidia
    buffers = config.num_stages if nvidia else 1
    sums, held = config.block_n * config.block_m // threads_, config.block_n * 64 // threads_
    room = min(limits.registers_per_thread, 65536 // threads_ if nvidia else 256) - 64
    shared = config.block_m * 128 * itemsize * buffers + config.block_n * 80 * (buffers - 1)
    if not nvidia or limits.arch == "sm_100" or itemsize == 4:  # weights pass through it as well
        shared += config.block_n * 128 * itemsize
    if sums + held * itemsize // 2 > room:
        return f"{sums} sums and {held} weights are too many for one thread: it has room for {room}"
    return limits.refuse_grid(K // 128) or limits.refuse_shared(shared)


def reorder_work(itemsize, M, K):
    """Return the work of the launch that puts x in order."""
    return Work(
        tiles=-(-M // 16) * (K // 128),
        steps=1,
        load_bytes=16 * 128 * itemsize,
        store_bytes=16 * 128 * itemsize,
        vector_ops=11 * 16 * 128,  # SASS of sm_90: 179 of each of 128 threads
        passed_bytes=M * K * itemsize,
    )


def ordered_work(config, limits, *, itemsize, M, N, K):
    """Return the work of both launches; the second is as `one_launch_work`, by halves of blocks."""
    whole = one_launch_work(config, limits, itemsize=itemsize, M=M, N=N, K=K)
    BM, BN, passed = config.block_m, config.block_n, M * K * itemsize
    product = replace(
        whole,
        steps=K // 128,
        load_bytes=BN * 80 + BM * 128 * itemsize,
        dot=(BN, BM, 128),
        vector_ops=UNPACK * BN * 128,
        passed_bytes=passed,
        memory_bytes=N * K // 256 * 144 + M * N * itemsize,
    )
    return reorder_work(itemsize, M, K), product


# 99 KB of shared memory on Ada and consumer Blackwell, 64 KB of LDS; on sm_80 64 rows of x spill
LOW = Ordered(32, 64, 4, 2)


@q4_k_matmul.impl(
    Ordered,
    resolve=size_ordered,
    refuse=refuse_ordered,
    work=ordered_work,
    defaults={
        "fp32": Ordered(16, 32, 8, 2),
        "fp32:sm_90": Ordered(64, 128, 8, 2),
        "gfx1100": Ordered(16, 64, 8, 2),
        "sm_80 sm_86 sm_89 sm_120 gfx90a gfx942 gfx950": LOW,
    },
)
def ordered(x, w, *, config):
    """As tiles, after x is put once in the order of the matrix unit: so its tiles bypass the
    registers, where large ones would take longer than the weights."""
    (M, K), N = x.shape, w.shape[0]
    words, stride, unit = view_words(x, w)
    y, z = x.new_empty(M, N), reorder(x)
    constants = dict(WARPS=min(config.num_warps, config.block_n // 16), UNIT=unit)
    constants |= dict(STAGES=config.num_stages, UPCAST=upcast(x))
    _ordered_tiles[(tile_count(config, N=N, M=M),)](
        z, words, y, M, N, K // 256, _one(x), stride, **constants, **meta(config)
    )
    return y


def reorder(x, pdl=False, eights=False):
    """Return a copy of x in the order of the matrix unit, by rows or by eight rows."""
    M, K = x.shape
    z = torch.empty(-(-M // 8) * 8 if eights else M, K, dtype=x.dtype, device=x.device)
    constants = dict(BLOCK_M=16, EIGHTS=eights, PDL=pdl, num_warps=4)
    _reorder[(triton.cdiv(M, 16), K // 128)](x, z, M, K, *x.stride(), **constants)
    return z


# Scheme 4, `warp_groups`: one warp loads, two groups of warps unpack and multiply. A program keeps
# a core and walks tiles of 128 rows of w, or parts of K of these. The copy engine brings a block of
# each row into a slot, its 32 words of nibbles and its 4 words of numbers, and the columns of x, in
# the order of `_reorder`, into a ring of their own, PARTS quarters of a block at a time. Each group
# of warps takes 64 rows into registers, and makes the weights of one step while the product of the
# step before runs.
#
# No product with weights in registers may be under way where a loop begins anew: ptxas 12.8 then
# serializes all of them.


@gluon.constexpr_function
def _words_of():
    """Layout of 64 rows of 32 words of nibbles: 16 bytes a lane, 4 lanes a row, twice."""
    lanes, warps = [[0, 4], [0, 8], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]]
    return gl.DistributedLinearLayout([[0, 1], [0, 2], [0, 16], [8, 0]], lanes, warps, [], [64, 32])


@gluon.constexpr_function
def _heads_of():
    """Layout of the first 4 words of 64 blocks: those of a row in each of its 4 lanes."""
    lanes, warps = [[0, 0], [0, 0], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]]
    return gl.DistributedLinearLayout([[0, 1], [0, 2], [8, 0]], lanes, warps, [], [64, 4])


@gluon.constexpr_function
def _lanes_of():
    """Layout of one number for each lane of 64 rows."""
    lanes, warps = [[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]]
    return gl.DistributedLinearLayout([[8, 0]], lanes, warps, [], [64, 4])


@gluon.jit
def _tile_of(t, problem, BLOCK_M: gl.constexpr):
    """First rows of x and of w of a tile, its split, and that one's first and last block."""
    _, grid_m, blocks, splits, each = problem
    tile, split = t // splits, t % splits
    first = split * each
    return (
        tile % grid_m * BLOCK_M,
        tile // grid_m * 128,
        split,
        first,
        gl.minimum(first + each, blocks),
    )


@gluon.jit
def _load_block(maps, rings, bars, n, word, j, phase):
    """Begin to load a block of 128 rows of w. Returns the next slot and its phase."""
    _, of_codes, of_heads, _ = maps
    full, free = bars[2], bars[3]
    bar = full.index(j)
    mbarrier.wait(free.index(j), phase)
    mbarrier.expect(bar, of_codes.block_type.nbytes + of_heads.block_type.nbytes)
    copy_in(of_codes, [n, word + 4], bar, rings[1].index(j))
    copy_in(of_heads, [n, word], bar, rings[2].index(j))
    return next_slot(j, phase, full.shape[0])


@gluon.jit
def _load_blocks(maps, rings, bars, problem, PARTS: gl.constexpr):
    of_x, full, free = maps[0], bars[0], bars[1]
    STEPS: gl.constexpr = 4 // PARTS
    i, phase, j, w_phase = 0, 1, gl.to_tensor(0), gl.to_tensor(1)
    for t in range(gl.program_id(0), problem[0], gl.num_programs(0)):
        m, n, _, first, last = _tile_of(t, problem, of_x.block_type.shape[0])
        for step in range(STEPS * first, STEPS * last):
            if step % STEPS == 0:
                j, w_phase = _load_block(maps, rings, bars, n, step // STEPS * 36, j, w_phase)
                await_launch()  # for x; at once after the first time
            bar = full.index(i)
            mbarrier.wait(free.index(i), phase)
            mbarrier.expect(bar, PARTS * of_x.block_type.nbytes)
            for part in gl.static_range(PARTS):
                k = (step * PARTS + part) * 64
                copy_in(of_x, [m, k], bar, rings[0].index(i * PARTS + part))
            i, phase = next_slot(i, phase, full.shape[0])
    _load_block(maps, rings, bars, 0, 0, j, w_phase)  # one more, which the groups take and not use


@gluon.jit
def _block_words(heads):
    """The four words that a block begins with, of 64 rows."""
    L: gl.constexpr = gl.SliceLayout(1, _lanes_of())
    even, odd = heads.reshape([64, 2, 2]).split()
    head, second = even.split()
    first, third = odd.split()
    head, first = gl.convert_layout(head, L)[:, None], gl.convert_layout(first, L)[:, None]
    return head, first, gl.convert_layout(second, L)[:, None], gl.convert_layout(third, L)[:, None]


@gluon.jit
def _for_each(x, w):
    """Numbers [64, 4] as those of weights [64, 4, 4, 2, 2]."""
    INNER: gl.constexpr = gl.SliceLayout(3, gl.SliceLayout(4, w.type.layout))
    x = gl.convert_layout(x, gl.SliceLayout(2, INNER), assert_trivial=True)
    return x[:, :, None][:, :, :, None][:, :, :, :, None]


@gluon.jit
def _take_block(W: gl.constexpr, rings, bars, j, phase):
    """A block of 64 rows in registers: words of nibbles, the four words that it begins with, and
    the next slot and its phase."""
    _, codes, heads = rings
    full, free = bars[2], bars[3]
    mbarrier.wait(full.index(j), phase)
    words = codes.index(j).slice(64 * W, 64).load(_words_of())
    numbers = _block_words(heads.index(j).slice(64 * W, 64).load(_heads_of()))
    group_barrier()  # all warps have read it
    mbarrier.arrive(free.index(j))
    j, phase = next_slot(j, phase, full.shape[0])
    return words, numbers, j, phase


@gluon.jit
def _part(words, numbers, one, PART: gl.constexpr, FP16: gl.constexpr, LAYOUT: gl.constexpr):
    """The weights of 64 rows and a quarter of a block, where the unit wants the first operand."""
    HIGH: gl.constexpr = PART % 2
    left, right = words.reshape([64, 2, 16]).permute((0, 2, 1)).split()
    q = left if PART < 2 else right
    g = PART // 2 * 2 + gl.arange(0, 4, gl.SliceLayout(0, _lanes_of()))[None, :] // 2
    low, high, under, over = _numbers(*numbers, g)
    step, least = (high, over) if HIGH else (low, under)
    w, step, least = _small(q, step, least, one, HIGH, FP16)
    w = w.reshape([64, 4, 4, 2, 2])
    w = w * _for_each(step.to(w.dtype), w) - _for_each(least.to(w.dtype), w)
    w = w.to(gl.float16 if FP16 else gl.bfloat16).permute((0, 2, 3, 1, 4)).reshape([64, 64])
    return gl.convert_layout(w, LAYOUT, assert_trivial=True)


@gluon.jit
def _parts(
    words, numbers, one, FIRST: gl.constexpr, COUNT: gl.constexpr, FP16: gl.constexpr,
    LAYOUT: gl.constexpr,
):  # fmt: skip
    """The weights of COUNT quarters of a block."""
    first = (_part(words, numbers, one, FIRST, FP16, LAYOUT),)
    if COUNT == 1:
        return first
    else:
        return first + _parts(words, numbers, one, FIRST + 1, COUNT - 1, FP16, LAYOUT)


@gluon.jit
def _multiply_blocks(
    W: gl.constexpr, maps, rings, buffers, bars, problem, one, PARTS: gl.constexpr,
    FP16: gl.constexpr,
):  # fmt: skip
    xs, full, free = rings[0], bars[0], bars[1]
    BLOCK_M: gl.constexpr = xs.shape[1]
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    OPERAND: gl.constexpr = gl.DotOperandLayout(0, LAYOUT, 2)
    i, phase, at, j, w_phase = 0, 0, 0, gl.to_tensor(0), gl.to_tensor(0)
    words, numbers, j, w_phase = _take_block(W, rings, bars, j, w_phase)
    w = _parts(words, numbers, one, 0, PARTS, FP16, OPERAND)
    for t in range(gl.program_id(0), problem[0], gl.num_programs(0)):
        m, n, split, begin, end = _tile_of(t, problem, BLOCK_M)
        acc = gl.zeros([64, BLOCK_M], gl.float32, LAYOUT)
        for _block in range(begin, end):
            for first in gl.static_range(0, 4, PARTS):
                mbarrier.wait(full.index(i), phase)
                product = acc
                for part in gl.static_range(PARTS):
                    x = xs.index(i * PARTS + part).permute((1, 0))
                    product = warpgroup_mma(w[part], x, product, is_async=True)
                if first + PARTS == 4:
                    words, numbers, j, w_phase = _take_block(W, rings, bars, j, w_phase)
                following = _parts(words, numbers, one, (first + PARTS) % 4, PARTS, FP16, OPERAND)
                # w is waited for too: the products read it from registers until then
                acc = warpgroup_mma_wait(0, deps=(product,) + w)[0]
                mbarrier.arrive(free.index(i))
                i, phase = next_slot(i, phase, full.shape[0])
                w = following
        m += split * (problem[1] * BLOCK_M)
        at = _put_columns(maps[3], buffers, acc, m, n + 64 * W, at)
    tma.store_wait(0)


@gluon.jit
def _put_columns(y, buffers, sums, m, n, at):
    """Store sums [64 rows of w, rows of x], some rows of x at a time."""
    WIDTH: gl.constexpr = buffers.shape[1]
    pieces = matmul._pieces(sums, WIDTH)
    for i in gl.static_range(len(pieces)):
        tma.store_wait(1)
        buffers.index(at).permute((1, 0)).store(pieces[i].to(y.dtype))
        fence_async_shared()
        copy_out(y, [m + i * WIDTH, n], buffers.index(at))
        at ^= 1
    return at


@gluon.jit(do_not_specialize=["tiles", "grid_m", "blocks", "splits", "each", "one"])
def _warp_groups(
    x, codes, heads, y, tiles, grid_m, blocks, splits, each, one,
    STAGES: gl.constexpr, BLOCKS: gl.constexpr, PARTS: gl.constexpr,
):  # fmt: skip
    BLOCK_M: gl.constexpr = x.block_type.shape[0]
    BUFFER: gl.constexpr = [2, y.block_type.shape[0], 64]
    xs = gl.allocate_shared_memory(x.dtype, [STAGES * PARTS, BLOCK_M, 64], x.layout)
    of_codes = gl.allocate_shared_memory(codes.dtype, [BLOCKS, 128, 32], codes.layout)
    of_heads = gl.allocate_shared_memory(heads.dtype, [BLOCKS, 128, 4], heads.layout)
    top = gl.allocate_shared_memory(y.dtype, BUFFER, y.layout)
    bottom = gl.allocate_shared_memory(y.dtype, BUFFER, y.layout)
    bars = (barriers(STAGES, 1), barriers(STAGES, 2), barriers(BLOCKS, 1), barriers(BLOCKS, 2))
    maps, rings = (x, codes, heads, y), (xs, of_codes, of_heads)
    problem = (tiles, grid_m, blocks, splits, each)
    FP16: gl.constexpr = x.dtype == gl.float16
    gl.warp_specialize(
        [
            (_multiply_blocks, (0, maps, rings, top, bars, problem, one, PARTS, FP16)),
            (_multiply_blocks, (1, maps, rings, bottom, bars, problem, one, PARTS, FP16)),
            (_load_blocks, (maps, rings, bars, problem, PARTS)),
        ],
        [4, 1],
        [232, 40],
    )


@dataclass(frozen=True)
class WarpGroups:
    block_m: int = tile(16, 256, default=AUTO)  # by the rounds of tiles
    quarters: int = among(1, 2, 4, default=AUTO)  # of a block, in one step
    num_stages: int = stages(2, 16, default=AUTO)  # steps of x: as many as fit
    blocks: int = among(2, 3, 4, default=AUTO)  # of a row of w
    splits: int = among(1, 2, 4, 8, default=AUTO)  # of K: as many as fill the cores


# Microseconds that a program takes for a block of 128 rows of w, by its rows of x (H100, fp16)
PACES = {16: 0.87, 32: 0.87, 64: 1.06, 128: 1.8, 256: 2.85}


def size_warp_groups(config, limits, *, itemsize, M, N, K):
    """Return the config with the tile whose rounds take the least time, the longest steps for which
    registers suffice, as many stages as fit, and K in as many parts of four blocks or more as fill
    the cores."""

    def tiles(block_m):
        return -(-N // 128) * -(-M // block_m)

    def time(block_m):
        return -(-tiles(block_m) // limits.cores) * PACES[block_m]

    block_m = value_or(config.block_m, min(PACES, key=time))
    quarters = value_or(config.quarters, max(1, min(4, 256 // block_m)))
    blocks = value_or(config.blocks, 3 if block_m == 256 else 4)
    fill = max(1, min(8, limits.cores // tiles(block_m), K // 256 // 4))
    splits = value_or(config.splits, 1 << fill.bit_length() - 1)
    room = limits.shared_bytes - warp_groups_bytes(block_m, quarters, blocks, 0)
    num_stages = value_or(config.num_stages, max(2, min(16, room // (block_m * quarters * 128))))
    chosen = dict(block_m=block_m, quarters=quarters, num_stages=num_stages)
    return replace(config, **chosen, blocks=blocks, splits=splits)


def warp_groups_bytes(block_m, quarters, blocks, num_stages):
    """Return the bytes of shared memory: blocks of w, steps of x, buffers of y and barriers."""
    moved = blocks * 128 * 144 + num_stages * block_m * quarters * 128
    return moved + 4 * 64 * 4 * 16 + 1024


def refuse_warp_groups(config, limits, *, itemsize, M, N, K):
    if reason := refuse_hopper(limits):
        return reason
    if itemsize != 2:
        return "its products are of 16-bit inputs"
    if reason := limits.refuse_rows(itemsize, N=N):
        return reason
    needed = warp_groups_bytes(config.block_m, config.quarters, config.blocks, config.num_stages)
    return limits.refuse_grid(K // 128) or limits.refuse_shared(needed)


def warp_groups_work(config, limits, *, itemsize, M, N, K):
    """Return the work of two launches, or of three where K is in parts."""
    tiles = Ordered(config.block_m, 128, 8, config.num_stages)
    reordered, product = ordered_work(tiles, limits, itemsize=itemsize, M=M, N=N, K=K)
    parts = replace(
        product,
        steps=K // 256,
        load_bytes=128 * 144 + config.block_m * 256 * itemsize,
        dot=(128, config.block_m, 256),
        vector_ops=4 * 128 * 256,  # SASS of sm_90, fp16: 400 instructions for 128 weights a thread
        overlapped=True,
        stages=config.blocks,
    )
    if config.splits == 1:
        return reordered, parts
    at = Tiles(config.block_m, 128, 8, splits=config.splits)
    split, added = tiles_work(at, limits, itemsize=itemsize, M=M, N=N, K=K)
    sums = dict(tiles=split.tiles, steps=split.steps, store_bytes=split.store_bytes)
    sums |= dict(passed_bytes=split.passed_bytes + parts.passed_bytes)
    return reordered, replace(parts, **sums), added


@q4_k_matmul.impl(
    WarpGroups,
    resolve=size_warp_groups,
    refuse=refuse_warp_groups,
    work=warp_groups_work,
    unchecked_reason=UNCHECKED,
)
def warp_groups(x, w, *, config):
    """One program per core: a warp loads through descriptors, two groups of warps turn 64 rows of w
    each into weights in registers, and the product of one part runs while those of the next are
    made. In Gluon."""
    (M, K), N, BM = x.shape, w.shape[0], config.block_m
    words, _, _ = view_words(x, w)
    y, z = x.new_empty(M, N), reorder(x, pdl=True)
    grid_m, blocks = triton.cdiv(M, BM), K // 256
    splits = min(config.splits, blocks)
    each = triton.cdiv(blocks, splits)
    splits = triton.cdiv(blocks, each)
    shape = splits, grid_m * BM, N
    out = y if splits == 1 else torch.empty(shape, dtype=torch.float32, device=x.device)
    of_x, (codes, heads) = describe_blocks("x", z, [BM, 64]), described_blocks(words)
    rows_ = 32 if splits == 1 and BM > 16 else 16  # that leave at once
    of_y = describe_blocks("y", out.view(-1, N), [rows_, 64])
    tiles = triton.cdiv(N, 128) * grid_m * splits
    numbers = tiles, grid_m, blocks, splits, each, _one(x)
    constants = dict(STAGES=config.num_stages, BLOCKS=config.blocks, PARTS=config.quarters)
    _warp_groups[(min(cores(x), tiles),)](
        of_x, codes, heads, of_y, *numbers, **constants, num_warps=4, **launch_pdl(True)
    )
    if splits > 1:
        add_parts(out, y)
    return y


def described_blocks(words):
    """Return descriptors of the nibbles and of the numbers of one block of 128 rows."""
    return (describe_blocks("w", words, [128, n]) for n in (32, 4))


# Scheme 5, `unpack_first`: all weights at once, then a product of two 16-bit matrices


@triton.jit
def _unpack(w_ptr, y_ptr, N, blocks, stride_wn, BLOCK_N: tl.constexpr, UNIT: tl.constexpr):
    """One block of each of BLOCK_N rows, four groups of 32 bytes: their low nibbles are 32 weights,
    the high ones the next 32."""
    n, g = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, 4)[None, :]
    there = n[:, None, None] < N
    row = tl.minimum(n, N - 1).to(tl.int64) * stride_wn * UNIT
    block = w_ptr + row + tl.program_id(1) * 36
    q = tl.load(block[:, None] + 4 + tl.arange(0, 32)[None, :])
    head, first = tl.load(block)[:, None], tl.load(block + 1)[:, None]
    second, third = tl.load(block + 2)[:, None], tl.load(block + 3)[:, None]
    low, high, under, over = _numbers(head, first, second, third, g)
    at = (n.to(tl.int64) * blocks + tl.program_id(1)) * 256
    y_ptrs = y_ptr + (at[:, None] + 64 * g)[:, :, None] + tl.arange(0, 32)
    y = _group(q) * low[:, :, None] - under[:, :, None]
    tl.store(y_ptrs, y.to(y_ptr.dtype.element_ty), there)
    y = _group(q >> 4) * high[:, :, None] - over[:, :, None]
    tl.store(y_ptrs + 32, y.to(y_ptr.dtype.element_ty), there)


@triton.jit
def _group(q):
    """The low nibble of each byte of 32 words, as four groups of 32."""
    even, odd = tl.join(q & 15, (q >> 16) & 15), tl.join((q >> 8) & 15, (q >> 24) & 15)
    return tl.reshape(tl.join(even, odd), (q.shape[0], 4, 32)).to(tl.float32)


def refuse_unpack_first(config, limits, *, itemsize, M, N, K):
    """As `matmul.persistent`. The weights lie along K, so those of fp32 are transposed in shared
    memory and need a buffer for each stage, x one less."""
    if itemsize > 2 and limits.nvidia:
        BM, BN, BK, deep = config.block_m, config.block_n, config.block_k, config.num_stages
        stored = BM * BN // (1 + config.split_store)
        shared = ((deep * BN + (deep - 1) * BM) * BK + stored) * itemsize
        if reason := limits.refuse_shared(shared, "stages and what is stored meanwhile"):
            return reason
    return limits.refuse_grid(K // 256) or matmul.refuse_padded(config, limits, itemsize=itemsize)


def unpack_first_work(config, limits, *, itemsize, M, N, K):
    """Return the work of both launches."""
    passed = N * K * itemsize
    unpacked = Work(
        tiles=-(-N // 16) * (K // 256),
        steps=1,
        load_bytes=16 * 144,
        store_bytes=16 * 256 * itemsize,
        vector_ops=14 * 16 * 256,  # SASS of sm_90: 456 of each of 128 threads
        barriers=3,
        passed_bytes=passed,
    )
    whole = matmul.work(config, limits, itemsize=itemsize, M=M, N=N, K=K)
    product = replace(whole, passed_bytes=passed, memory_bytes=(K + N) * M * itemsize)
    return unpacked, product


@q4_k_matmul.impl(
    matmul.Persistent,
    refuse=refuse_unpack_first,
    work=unpack_first_work,
    defaults=matmul.tile_defaults(matmul.Persistent),
)
def unpack_first(x, w, *, config):
    """All weights unpacked to the dtype of x in a launch of their own, 2 N K bytes of memory; then
    a product. For so many rows of x that each weight is used often: 512 and more."""
    (M, K), N = x.shape, w.shape[0]
    words, stride, unit = view_words(x, w)
    y, weights = x.new_empty(M, N), x.new_empty(N, K)
    grid = triton.cdiv(N, 16), K // 256
    _unpack[grid](words, weights, N, K // 256, stride, BLOCK_N=16, UNIT=unit, num_warps=4)
    of_x = matmul.rows_of(x) or matmul.place_rows(x)
    launch = config, config.group_m, bool(config.split_store)
    matmul.launch_persistent(of_x, (weights, True), y, *launch)
    return y


# Libraries


@baseline(q4_k_matmul)
def library(x, w):
    """The weights unpacked to the dtype of x by some thirty launches, then cuBLAS or hipBLAS."""
    return torch.mm(x, unpack(w).to(x.dtype).T)
