"""Attention: o = softmax(q k^T / sqrt(D)) v, for each head, over all keys.

G query heads share one head of k and v. At S = T = 8192 it does about S / 2 = 4096 FLOP for each
byte that it must move, as long as the S x T scores never leave the core, so the matrix unit is
the limit, and beside it the exponentials: an H100 multiplies 256 times as many FLOP a second as
it takes exponentials, and a score costs 4 * D FLOP, so at D = 128 they take half as long as the
products, and at D = 64 as long. What counts is that one block's products run beside another's
exponentials. A block of block_m queries asks the cache for 2 * block_m FLOP's worth of each
16-bit element of k and v.

A NaN in a key makes NaN of every query of its heads, an infinity in v of its column there: infinite
or NaN. Other heads and sequences do not see them.
"""

from dataclasses import dataclass

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from workbench.dsl import INTERPRETED, TensorDescriptor, cores, tl, triton
from workbench.spec import Extent, Spec, Tensor, Tolerance, Work, among, stages, threads, tile

LOG2E = 1.4426950408889634


def reference(q, k, v):
    heads, wide = q.shape[2], q.shape[2] // k.shape[2]
    o = q.new_empty(q.shape)
    for h in range(heads):  # and 2048 queries at a time: 8192 x 8192 scores take 0.5 GB
        keys, values = k[:, :, h // wide], v[:, :, h // wide]
        for rows in (slice(m, m + 2048) for m in range(0, q.shape[1], 2048)):
            scores = q[:, rows, h] @ keys.mT * q.shape[-1] ** -0.5
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
    ],
    bench=[
        {"B": 2, "S": 8192, "Hkv": 16, "G": 1, "D": 128, "T": 8192},
        {"B": 2, "S": 8192, "Hkv": 16, "G": 1, "D": 64, "T": 8192},
        {"B": 8, "S": 2048, "Hkv": 16, "G": 1, "D": 128, "T": 2048},
        {"B": 16, "S": 1024, "Hkv": 16, "G": 1, "D": 72, "T": 1024},
        {"B": 2, "S": 8192, "Hkv": 8, "G": 4, "D": 128, "T": 8192},
    ],
    extents={"D": Extent(among=(64, 72, 80, 96, 128, 256))},
    # The weights are rounded before they meet v, each by up to 2^-12 (fp16) or 2^-9 (bf16) of
    # itself, so their sum is off in proportion to its rms, whatever the element itself is: at
    # T = 8192 by 0.0009 and 0.0065 of it at most in 262 144 elements on a CPU.
    tolerance={
        "fp32": Tolerance(relative=1e-5, of_rms=2e-5),
        "fp16": Tolerance(relative=1e-3, of_rms=2e-3),
        "bf16": Tolerance(relative=8e-3, of_rms=1.5e-2),
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
def _weigh(
    high, total, q, q_rest, k, k_rest, unseen, scale,
    MASKED: tl.constexpr, REST: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Weights of one block of keys, and what they do to each query's running maximum and sum; what
    came before counts `keep` times from now on."""
    if UPCAST:
        q, k, q_rest, k_rest = (
            q.to(tl.float32), k.to(tl.float32), q_rest.to(tl.float32), k_rest.to(tl.float32)
        )  # fmt: skip
    s = tl.dot(q, tl.trans(k), input_precision="ieee")
    if REST:
        s = tl.dot(q_rest, tl.trans(k_rest), s, input_precision="ieee")
    if MASKED:
        s = tl.where(unseen, -float("inf"), s)
    higher = tl.maximum(high, tl.max(s, axis=1) * scale)
    p = tl.exp2(s * scale - higher[:, None])
    keep = tl.exp2(high - higher)
    return p, keep, higher, total * keep + tl.sum(p, axis=1)


@triton.jit
def _add(acc, p, keep, v, UPCAST: tl.constexpr):
    if UPCAST:
        v = v.to(tl.float32)
    return tl.dot(p.to(v.dtype), v, acc * keep[:, None], input_precision="ieee")


@triton.jit
def _tiles(
    q_ptr, k_ptr, v_ptr, o_ptr, S, T, H, G, scale,
    q_b, q_s, q_h, q_d, k_b, k_t, k_h, k_d, v_b, v_t, v_h, v_d,
    D: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    EVEN_M: tl.constexpr, EVEN_N: tl.constexpr, WIDE: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    grid_m = tl.cdiv(S, BLOCK_M)
    head, m0 = tl.program_id(0) // grid_m, tl.program_id(0) % grid_m * BLOCK_M
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
    for _ in range(0, T // BLOCK_N * BLOCK_N, BLOCK_N):
        k = _load(k_ptr, n, d, k_t, k_d, T, D, True, CUT)
        p, keep, high, total = _weigh(
            high, total, q, q, k, k, None, scale, False, False, UPCAST,
        )  # fmt: skip
        v = _load(v_ptr, n, d, v_t, v_d, T, D, True, CUT)
        acc = _add(acc, p, keep, v, UPCAST)
        k_ptr += tl.full((), BLOCK_N, tl.int64) * k_t
        v_ptr += tl.full((), BLOCK_N, tl.int64) * v_t
    if not EVEN_N:
        left = T % BLOCK_N
        k = _load(k_ptr, n, d, k_t, k_d, left, D, False, CUT)
        p, keep, high, total = _weigh(
            high, total, q, q, k, k, n[None, :] >= left, scale, True, False, UPCAST,
        )  # fmt: skip
        v = _load(v_ptr, n, d, v_t, v_d, left, D, False, CUT)
        acc = _add(acc, p, keep, v, UPCAST)
    o_ptr += ((b * S + m0) * H + h) * D
    o_ptrs = o_ptr + m.to(tl.int64)[:, None] * H * D
    y = (acc / total[:, None]).to(o_ptr.dtype.element_ty)
    tl.store(o_ptrs + d[None, :], y, (m[:, None] < S - m0) & (d[None, :] < D))


@triton.jit
def _part(descriptor, b, h, row, column, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    return descriptor.load([b, h, row, column]).reshape(ROWS, COLUMNS)


@triton.jit
def _descriptors(
    q_ptr, k, k_tail, v, v_tail, o_ptr, S, T, H, G, scale, q_b, q_s, q_h,
    D: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, EVEN_N: tl.constexpr,
    SPECIALIZE: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    grid_m = tl.cdiv(S, BLOCK_M)
    head, m0 = tl.program_id(0) // grid_m, tl.program_id(0) % grid_m * BLOCK_M
    b, h = head // H, head % H
    g = h // G
    TAIL: tl.constexpr = REST if REST > 0 else 16
    # q and o through descriptors of this one head, made here: warp specialisation halves their
    # block between its consumers, which it cannot do to one that the host made
    q_ptr += b.to(tl.int64) * q_b + h.to(tl.int64) * q_h
    q = tl.make_tensor_descriptor(q_ptr, [S, D], [q_s, 1], [BLOCK_M, MAIN]).load([m0, 0])
    q_rest = q
    if REST:
        q_tail = tl.make_tensor_descriptor(q_ptr, [S, D], [q_s, 1], [BLOCK_M, TAIL])
        q_rest = q_tail.load([m0, MAIN])
    acc = tl.zeros((BLOCK_M, MAIN), tl.float32)
    rest = tl.zeros((BLOCK_M, TAIL), tl.float32)
    high = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    n = tl.arange(0, BLOCK_N)
    for n0 in tl.range(0, T, BLOCK_N, warp_specialize=SPECIALIZE):
        x = _part(k, b, g, n0, 0, BLOCK_N, MAIN)
        x_rest = _part(k_tail, b, g, n0, MAIN, BLOCK_N, TAIL) if REST else x
        p, keep, high, total = _weigh(
            high, total, q, q_rest, x, x_rest, n[None, :] >= T - n0, scale,
            not EVEN_N, REST > 0, UPCAST,
        )  # fmt: skip
        y = _part(v, b, g, n0, 0, BLOCK_N, MAIN)
        acc = _add(acc, p, keep, y, UPCAST)
        if REST:
            y_rest = _part(v_tail, b, g, n0, MAIN, BLOCK_N, TAIL)
            rest = _add(rest, p, keep, y_rest, UPCAST)
    o_ptr += (b.to(tl.int64) * S * H + h) * D
    o = tl.make_tensor_descriptor(o_ptr, [S, D], [H * D, 1], [BLOCK_M, MAIN])
    o.store([m0, 0], (acc / total[:, None]).to(o_ptr.dtype.element_ty))
    if REST:
        o_tail = tl.make_tensor_descriptor(o_ptr, [S, D], [H * D, 1], [BLOCK_M, TAIL])
        o_tail.store([m0, MAIN], (rest / total[:, None]).to(o_ptr.dtype.element_ty))


@triton.jit
def _persistent(
    q_ptr, k, v, o_ptr, B, S, T, H, G, scale, q_s, q_h, down, q_right, o_right, PROGRAMS,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, EVEN_N: tl.constexpr,
    SPECIALIZE: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    grid_m, n = tl.cdiv(S, BLOCK_M), tl.arange(0, BLOCK_N)
    # one descriptor for all heads: sequences lie `down` rows below one another, or else `right`
    last = B - 1
    rows = last * down + S
    qs = tl.make_tensor_descriptor(
        q_ptr, [rows, last * q_right + (H - 1) * q_h + D], [q_s, 1], [BLOCK_M, D]
    )
    os = tl.make_tensor_descriptor(o_ptr, [rows, last * o_right + H * D], [H * D, 1], [BLOCK_M, D])
    for at in tl.range(tl.program_id(0), B * H * grid_m, PROGRAMS, warp_specialize=SPECIALIZE):
        b, h, m0 = at // grid_m // H, at // grid_m % H, at % grid_m * BLOCK_M
        q = qs.load([b * down + m0, b * q_right + h * q_h])
        acc = tl.zeros((BLOCK_M, D), tl.float32)
        high = tl.full((BLOCK_M,), -float("inf"), tl.float32)
        total = tl.zeros((BLOCK_M,), tl.float32)
        for n0 in range(0, T, BLOCK_N):
            x = _part(k, b, h // G, n0, 0, BLOCK_N, D)
            p, keep, high, total = _weigh(
                high, total, q, q, x, x, n[None, :] >= T - n0, scale, not EVEN_N, False, UPCAST,
            )  # fmt: skip
            y = _part(v, b, h // G, n0, 0, BLOCK_N, D)
            acc = _add(acc, p, keep, y, UPCAST)
        y = (acc / total[:, None]).to(o_ptr.dtype.element_ty)
        os.store([b * down + m0, b * o_right + h * D], y)


@dataclass(frozen=True)
class Tiles:
    block_m: int = tile(64, 128, default=128)
    block_n: int = tile(16, 128, default=128)
    num_warps: int = threads(4, 8, default=8)
    num_stages: int = stages(1, 4, default=2)


@dataclass(frozen=True)
class Descriptors:
    block_m: int = tile(64, 256, default=128)
    block_n: int = tile(16, 128, default=128)
    num_warps: int = threads(4, 8, default=4)
    num_stages: int = stages(1, 3, default=2)
    specialize: int = among(0, 1, default=1)


def split(D):
    """D as a power of two and what is left, which tl.dot takes from 16 on: 72 is 64 + 16."""
    main = 1 << (D.bit_length() - 1)
    return main, (max(16, 1 << (D - main - 1).bit_length()) if main < D else 0)


def unfit(config, limits, itemsize, D, blocks_of_queries=1):
    """What all versions ask of registers and shared memory."""
    threads_ = config.num_warps * limits.warp_size
    consumers = 2 if blocks_of_queries > 1 and config.block_m > 64 else 1
    held = config.block_m * (sum(split(D)) + config.block_n) // (threads_ * consumers)
    # without a pipeline, and where it holds its newest stage in registers, k and v take turns
    nvidia = limits.arch.startswith("sm_")
    blocks = 2 * (config.num_stages if nvidia else config.num_stages - 1) or 1
    queries = config.block_m * blocks_of_queries if nvidia else 0
    shared = (queries + max(1, blocks) * config.block_n) * sum(split(D)) * itemsize
    if threads_ > limits.threads_per_block:
        return f"{threads_} threads are more than one block may have here"
    if held > 192:
        return f"each thread would hold {held} scores and sums in registers; 192 is the most"
    if shared > limits.shared_bytes:
        return f"the blocks need {shared} bytes of shared memory; a block has {limits.shared_bytes}"
    return None


def refuse_tiles(config, limits, *, itemsize, B, S, Hkv, G, D, T):
    return unfit(config, limits, itemsize, 1 << (D - 1).bit_length())  # padded


def refuse_descriptors(config, limits, *, itemsize, B, S, Hkv, G, D, T):
    return unfit_descriptors(config, limits, itemsize, D, blocks_of_queries=2)  # q and o


def unfit_descriptors(config, limits, itemsize, D, blocks_of_queries):
    if D > 64 and itemsize == 4:
        return f"what descriptors load lies in registers there: {D} columns spill, 64 do not"
    if not config.specialize:
        return unfit(config, limits, itemsize, D)
    if limits.arch != "sm_90":
        return "warps are specialised on Hopper only: elsewhere the compiler makes less of it"
    if config.num_warps != 4 or config.num_stages == 1:
        return "a specialised warp group is of 4 warps, and needs 2 stages to run ahead"
    return unfit(config, limits, itemsize, D, blocks_of_queries)


def refuse_persistent(config, limits, *, itemsize, B, S, Hkv, G, D, T):
    if S == 1:  # with nothing to loop over Triton 3.6 cannot specialise the loop
        return "a single query is one block, which has no next one to load for"
    if limits.arch != "sm_90":
        return "only on Hopper can a warp group load for the next block while others compute"
    if D & (D - 1):
        return f"its blocks are whole heads of a power of two of columns, which {D} is not"
    return unfit_descriptors(config, limits, itemsize, D, blocks_of_queries=config.num_stages + 1)


def work(config, limits, *, itemsize, B, S, Hkv, G, D, T):
    return Work(
        tiles=B * Hkv * G * -(-S // config.block_m),
        steps=-(-T // config.block_n),
        load_bytes=2 * config.block_n * D * itemsize,
        store_bytes=config.block_m * D * itemsize,
        dot=(config.block_m, config.block_n, 2 * D),
    )


@attention.impl(
    Tiles,
    refuse=refuse_tiles,
    work=work,
    defaults={
        "fp32": Tiles(64, 32, 8, 2),  # on the vector units
        "sm_80": Tiles(128, 64, 8, 2), "sm_89": Tiles(128, 32, 8, 2),
        "sm_120": Tiles(128, 32, 8, 2), "gfx90a": Tiles(128, 64, 4, 2),
        "gfx942": Tiles(128, 64, 4, 2), "gfx950": Tiles(128, 64, 4, 2),
        "gfx1100": Tiles(64, 32, 8, 1),
    },
)  # fmt: skip
def tiles(q, k, v, *, config):
    """One program for block_m queries of a head, pointers into k and v: takes any strides."""
    (B, S, H, D), (_, T, Hkv, _) = q.shape, k.shape
    o = q.new_empty(B, S, H, D)
    width = triton.next_power_of_2(D)
    BM, BN = config.block_m, config.block_n
    spans = [max(BM, BN) * x.stride(1) + width * x.stride(3) for x in (q, k, v)]
    _tiles[(triton.cdiv(S, BM) * B * H,)](
        q, k, v, o, S, T, H, H // Hkv, LOG2E * D**-0.5,
        *q.stride(), *k.stride(), *v.stride(),
        D=D, WIDTH=width, BLOCK_M=BM, BLOCK_N=BN,
        EVEN_M=S % BM == 0, EVEN_N=T % BN == 0, WIDE=max(spans) >= 2**31,
        UPCAST=INTERPRETED and q.dtype == torch.bfloat16,
        num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
    return o


@attention.impl(
    Descriptors,
    refuse=refuse_descriptors,
    work=work,
    defaults={
        "fp32": Descriptors(64, 16, 8, 1, 0),
        "sm_80": Descriptors(64, 32, 8, 2, 0), "sm_89": Descriptors(64, 32, 8, 2, 0),
        "sm_100": Descriptors(128, 128, 8, 2, 0), "sm_120": Descriptors(64, 32, 8, 2, 0),
        "gfx90a": Descriptors(128, 64, 4, 2, 0), "gfx942": Descriptors(128, 64, 4, 2, 0),
        "gfx950": Descriptors(128, 64, 4, 2, 0), "gfx1100": Descriptors(64, 16, 8, 1, 0),
    },
)  # fmt: skip
def descriptors(q, k, v, *, config):
    """The copy engine loads k and v; with `specialize` one warp group only asks it for blocks,
    and the two that compute drift apart: one's exponentials run beside the other's products."""
    (B, S, H, D), (_, T, Hkv, _) = q.shape, k.shape
    o = q.new_empty(B, S, H, D)
    main, rest = split(D)
    BM, BN = config.block_m, config.block_n
    strides = {name: dense_strides(name, x) for name, x in (("q", q), ("k", k), ("v", v))}
    maps = []
    for x, (b, t, h, d) in ((k, strides["k"]), (v, strides["v"])):
        for columns in (main, rest or 16):
            block = [1, 1, BN, columns]
            maps.append(TensorDescriptor(x, [B, Hkv, T, D], [b, h, t, d], block))
    triton.set_allocator(lambda size, *_: torch.empty(size, dtype=torch.int8, device=q.device))
    _descriptors[(triton.cdiv(S, BM) * B * H,)](
        q, *maps, o, S, T, H, H // Hkv, LOG2E * D**-0.5, *strides["q"][:3],
        D=D, MAIN=main, REST=rest, BLOCK_M=BM, BLOCK_N=BN, EVEN_N=T % BN == 0,
        SPECIALIZE=bool(config.specialize),
        UPCAST=INTERPRETED and q.dtype == torch.bfloat16,
        num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
    return o


@attention.impl(
    Descriptors,
    refuse=refuse_persistent,
    work=work,
    defaults={"fp32": Descriptors(64, 16, 8, 1, 0)},
)
def persistent(q, k, v, *, config):
    """As `descriptors`, but one program a core walks many blocks of queries, and the warp group
    that loads is ahead by a block: its first keys arrive while the last output leaves."""
    (B, S, H, D), (_, T, Hkv, _) = q.shape, k.shape
    o = q.new_empty(B, S, H, D)
    BM, BN = config.block_m, config.block_n
    (q_b, q_s, q_h, _), *strides = (dense_strides(n, x) for n, x in (("q", q), ("k", k), ("v", v)))
    if max(B * q_b + H * q_h, o.numel()) >= 2**31:
        raise ValueError("q and o must end within 2^31 elements, as far as a coordinate reaches")
    # whole blocks may go on into the next sequence's rows; others must end where theirs does
    below = S % BM == 0 and q_b == S * q_s
    down, q_right, o_right = (S, 0, 0) if below else (0, q_b, S * H * D)
    maps = [
        TensorDescriptor(x, [B, Hkv, T, D], [b, h, t, d], [1, 1, BN, D])
        for x, (b, t, h, d) in zip((k, v), strides, strict=True)
    ]
    triton.set_allocator(lambda size, *_: torch.empty(size, dtype=torch.int8, device=q.device))
    programs = min(cores(q), triton.cdiv(S, BM) * B * H)
    _persistent[(programs,)](
        q, *maps, o, B, S, T, H, H // Hkv, LOG2E * D**-0.5,
        q_s, q_h, down, q_right, o_right, programs,
        D=D, BLOCK_M=BM, BLOCK_N=BN, EVEN_N=T % BN == 0, SPECIALIZE=bool(config.specialize),
        UPCAST=INTERPRETED and q.dtype == torch.bfloat16,
        num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
    return o


def dense_strides(name, x):
    """Strides that a descriptor takes; those of axes of extent 1 mean nothing and are D."""
    D, size = x.shape[3], x.element_size()
    strides = [s if n > 1 else D for s, n in zip(x.stride()[:3], x.shape[:3], strict=True)]
    if x.stride(3) != 1 or x.data_ptr() % 16 or any(s < D or s * size % 16 for s in strides):
        raise ValueError(f"{name} must have dense rows that start at multiples of 16 bytes")
    return [*strides, 1]


def for_16_bits(config, limits, *, itemsize, **at):
    return "the library has it for 16 bits only" if itemsize != 2 else None


def scaled_dot_product(q, k, v):
    grouped = q.shape[2] != k.shape[2]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    o = torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=grouped)
    return o.transpose(1, 2)


@attention.impl(backend="torch", name="torch")
def library(q, k, v):
    """What torch chooses."""
    return scaled_dot_product(q, k, v)


@attention.impl(backend="torch", name="flash", refuse=for_16_bits)
def flash(q, k, v):
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return scaled_dot_product(q, k, v)


@attention.impl(backend="torch", name="cudnn", refuse=for_16_bits)
def cudnn(q, k, v):
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return scaled_dot_product(q, k, v)
