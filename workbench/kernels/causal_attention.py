"""Causal attention: o = softmax(q k^T / sqrt(D)) v for each head, query i over keys 0 to i.

G query heads share one head of k and v. It is half of what the kernel without the mask does, as
long as no block above the diagonal is touched: block_m queries from m0 on take whole blocks of
keys up to m0 without a mask, then those that the diagonal crosses. What limits it is the same, the
matrix unit and beside it the exponentials. New is that the last queries have S / block_m times the
work of the first, so the long ones come first and the short ones fill the gaps at the end.

A NaN in a key makes NaN of its heads' queries from its own position on; earlier ones, and other
heads and sequences, do not see it.
"""

from dataclasses import dataclass

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from workbench.dsl import INTERPRETED, TensorDescriptor, cores, tl, triton
from workbench.spec import Extent, Spec, Tensor, Tolerance, Work, among, stages, threads, tile

LOG2E = 1.4426950408889634


def reference(q, k, v):
    (_, S, heads, D), wide = q.shape, q.shape[2] // k.shape[2]
    o, at = q.new_empty(q.shape), torch.arange(S, device=q.device)
    for h in range(heads):  # and 2048 queries at a time: 8192 x 8192 scores take 0.5 GB
        keys, values = k[:, :, h // wide], v[:, :, h // wide]
        for m in range(0, S, 2048):
            scores = q[:, m : m + 2048, h] @ keys.mT * D**-0.5
            scores.masked_fill_(at > at[m : m + 2048, None], -float("inf"))
            o[:, m : m + 2048, h] = torch.softmax(scores, dim=-1) @ values
    return o


causal_attention = Spec(
    name="causal_attention",
    inputs={"q": Tensor("B S Hkv*G D"), "k": Tensor("B S Hkv D"), "v": Tensor("B S Hkv D")},
    outputs={"o": Tensor("B S Hkv*G D")},
    reference=reference,
    flops=lambda B, S, Hkv, G, D: 2 * B * Hkv * G * S * (S + 1) * D,
    check=[
        {"B": 1, "S": 1, "Hkv": 1, "G": 1, "D": 64},
        {"B": 1, "S": 141, "Hkv": 1, "G": 2, "D": 72},
        {"B": 1, "S": 96, "Hkv": 2, "G": 1, "D": 96},
        {"B": 1, "S": 65, "Hkv": 1, "G": 1, "D": 128},
        {"B": 2, "S": 128, "Hkv": 1, "G": 1, "D": 64},
        {"B": 2, "S": 33, "Hkv": 1, "G": 1, "D": 64},
    ],
    bench=[
        {"B": 2, "S": 8192, "Hkv": 16, "G": 1, "D": 128},
        {"B": 2, "S": 8192, "Hkv": 16, "G": 1, "D": 64},
        {"B": 8, "S": 2048, "Hkv": 16, "G": 1, "D": 128},
        {"B": 2, "S": 8192, "Hkv": 8, "G": 4, "D": 128},
    ],
    extents={"D": Extent(among=(64, 72, 80, 96, 128, 256))},
    # The weights are rounded before they meet v, each by up to 2^-12 (fp16) or 2^-9 (bf16) of
    # itself. For the first queries that is of a few values of size 1, which may cancel, while all
    # outputs together have an rms of 0.05 at S = 8192: bf16 was off by 0.053 of it there, on a CPU.
    tolerance={
        "fp32": Tolerance(relative=1e-5, of_rms=1e-4),
        "fp16": Tolerance(relative=1e-3, of_rms=1e-2),
        "bf16": Tolerance(relative=8e-3, of_rms=1e-1),
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
def _place(at, S, HEADS, BLOCK_M: tl.constexpr, GROUP: tl.constexpr):
    """Head and first query of a block: GROUP heads at a time, whose keys meet in the cache, and
    among them the last queries first, because they have the most keys."""
    grid_m = tl.cdiv(S, BLOCK_M)
    first = at // (GROUP * grid_m) * GROUP
    heads = min(HEADS - first, GROUP)
    inside = at - first * grid_m
    return first + inside % heads, (grid_m - 1 - inside // heads) * BLOCK_M


@triton.jit
def _tiles(
    q_ptr, k_ptr, v_ptr, o_ptr, S, HEADS, H, G, scale,
    q_b, q_s, q_h, q_d, k_b, k_t, k_h, k_d, v_b, v_t, v_h, v_d,
    D: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr,
    EVEN_M: tl.constexpr, EVEN_N: tl.constexpr, WIDE: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    head, m0 = _place(tl.program_id(0), S, HEADS, BLOCK_M, GROUP)
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
    whole = m0 // BLOCK_N * BLOCK_N  # keys that every query of the block sees
    for _ in range(0, whole, BLOCK_N):
        k = _load(k_ptr, n, d, k_t, k_d, S, D, True, CUT)
        p, keep, high, total = _weigh(
            high, total, q, q, k, k, None, scale, False, False, UPCAST,
        )  # fmt: skip
        v = _load(v_ptr, n, d, v_t, v_d, S, D, True, CUT)
        acc = _add(acc, p, keep, v, UPCAST)
        k_ptr += tl.full((), BLOCK_N, tl.int64) * k_t
        v_ptr += tl.full((), BLOCK_N, tl.int64) * v_t
    for n0 in range(whole, min(m0 + BLOCK_M, S), BLOCK_N):
        k = _load(k_ptr, n, d, k_t, k_d, S - n0, D, EVEN_N, CUT)
        unseen = n[None, :] - m[:, None] > m0 - n0
        p, keep, high, total = _weigh(
            high, total, q, q, k, k, unseen, scale, True, False, UPCAST,
        )  # fmt: skip
        v = _load(v_ptr, n, d, v_t, v_d, S - n0, D, EVEN_N, CUT)
        acc = _add(acc, p, keep, v, UPCAST)
        k_ptr += tl.full((), BLOCK_N, tl.int64) * k_t
        v_ptr += tl.full((), BLOCK_N, tl.int64) * v_t
    o_ptr += ((b * S + m0) * H + h) * D
    o_ptrs = o_ptr + m.to(tl.int64)[:, None] * H * D
    y = (acc / total[:, None]).to(o_ptr.dtype.element_ty)
    tl.store(o_ptrs + d[None, :], y, (m[:, None] < S - m0) & (d[None, :] < D))


@triton.jit
def _part(descriptor, b, h, row, column, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    return descriptor.load([b, h, row, column]).reshape(ROWS, COLUMNS)


@triton.jit
def _descriptors(
    q_ptr, k, k_tail, v, v_tail, o_ptr, S, HEADS, H, G, scale, q_b, q_s, q_h,
    D: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr,
    SPECIALIZE: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    head, m0 = _place(tl.program_id(0), S, HEADS, BLOCK_M, GROUP)
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
    m, n = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    # Two loops cannot both be specialised: then the one loop masks every block
    whole = 0 if SPECIALIZE else m0 // BLOCK_N * BLOCK_N
    for n0 in range(0, whole, BLOCK_N):
        x = _part(k, b, g, n0, 0, BLOCK_N, MAIN)
        x_rest = _part(k_tail, b, g, n0, MAIN, BLOCK_N, TAIL) if REST else x
        p, keep, high, total = _weigh(
            high, total, q, q_rest, x, x_rest, None, scale, False, REST > 0, UPCAST,
        )  # fmt: skip
        y = _part(v, b, g, n0, 0, BLOCK_N, MAIN)
        acc = _add(acc, p, keep, y, UPCAST)
        if REST:
            y_rest = _part(v_tail, b, g, n0, MAIN, BLOCK_N, TAIL)
            rest = _add(rest, p, keep, y_rest, UPCAST)
    for n0 in tl.range(whole, min(m0 + BLOCK_M, S), BLOCK_N, warp_specialize=SPECIALIZE):
        x = _part(k, b, g, n0, 0, BLOCK_N, MAIN)
        x_rest = _part(k_tail, b, g, n0, MAIN, BLOCK_N, TAIL) if REST else x
        unseen = n[None, :] + n0 > m[:, None] + m0
        p, keep, high, total = _weigh(
            high, total, q, q_rest, x, x_rest, unseen, scale, True, REST > 0, UPCAST,
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
    q_ptr, k, v, o_ptr, S, HEADS, H, G, scale, q_s, q_h, down, q_right, o_right, PROGRAMS,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr,
    SPECIALIZE: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    m, n = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    blocks = HEADS * tl.cdiv(S, BLOCK_M)
    # one descriptor for all heads: sequences lie `down` rows below one another, or else `right`
    last = HEADS // H - 1
    rows = last * down + S
    qs = tl.make_tensor_descriptor(
        q_ptr, [rows, last * q_right + (H - 1) * q_h + D], [q_s, 1], [BLOCK_M, D]
    )
    os = tl.make_tensor_descriptor(o_ptr, [rows, last * o_right + H * D], [H * D, 1], [BLOCK_M, D])
    for at in tl.range(tl.program_id(0), blocks, PROGRAMS, warp_specialize=SPECIALIZE):
        # every second round backwards, so that who had the longest block gets the shortest
        begun = at - tl.program_id(0)
        back = begun + min(PROGRAMS, blocks - begun) - 1 - tl.program_id(0)
        turn = tl.where(begun // PROGRAMS % 2 == 0, at, back)
        head, m0 = _place(turn, S, HEADS, BLOCK_M, GROUP)
        b, h = head // H, head % H
        q = qs.load([b * down + m0, b * q_right + h * q_h])
        acc = tl.zeros((BLOCK_M, D), tl.float32)
        high = tl.full((BLOCK_M,), -float("inf"), tl.float32)
        total = tl.zeros((BLOCK_M,), tl.float32)
        for n0 in range(0, min(m0 + BLOCK_M, S), BLOCK_N):
            x = _part(k, b, h // G, n0, 0, BLOCK_N, D)
            unseen = n[None, :] + n0 > m[:, None] + m0
            p, keep, high, total = _weigh(
                high, total, q, q, x, x, unseen, scale, True, False, UPCAST,
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
    group: int = among(1, 4, 16, default=4)  # heads visited together


@dataclass(frozen=True)
class Descriptors:
    block_m: int = tile(64, 128, default=128)
    block_n: int = tile(16, 128, default=128)
    num_warps: int = threads(4, 8, default=4)
    num_stages: int = stages(1, 3, default=2)
    specialize: int = among(0, 1, default=1)
    group: int = among(4, 16, default=4)  # heads visited together


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


def refuse_tiles(config, limits, *, itemsize, B, S, Hkv, G, D):
    return unfit(config, limits, itemsize, 1 << (D - 1).bit_length())  # padded


def refuse_descriptors(config, limits, *, itemsize, B, S, Hkv, G, D):
    return unfit_descriptors(config, limits, itemsize, D, blocks_of_queries=2)  # q and o


def unfit_descriptors(config, limits, itemsize, D, blocks_of_queries):
    if D > 64 and (itemsize == 4 or limits.arch.startswith("gfx1")):
        return f"what descriptors load lies in registers there: {D} columns spill, 64 do not"
    if not config.specialize:
        return unfit(config, limits, itemsize, D)
    if limits.arch != "sm_90":
        return "warps are specialised on Hopper only: elsewhere the compiler makes less of it"
    if config.num_warps != 4 or config.num_stages == 1:
        return "a specialised warp group is of 4 warps, and needs 2 stages to run ahead"
    return unfit(config, limits, itemsize, D, blocks_of_queries)


def refuse_persistent(config, limits, *, itemsize, B, S, Hkv, G, D):
    if S == 1:  # with nothing to loop over Triton 3.6 cannot specialise the loop
        return "a single query is one block, which has no next one to load for"
    if limits.arch != "sm_90":
        return "only on Hopper can a warp group load for the next block while others compute"
    if D & (D - 1):
        return f"its blocks are whole heads of a power of two of columns, which {D} is not"
    return unfit_descriptors(config, limits, itemsize, D, blocks_of_queries=config.num_stages + 1)


def work(config, limits, *, itemsize, B, S, Hkv, G, D):
    return Work(
        tiles=B * Hkv * G * -(-S // config.block_m),
        steps=-(-(S + config.block_m) // (2 * config.block_n)),  # of a tile in the middle
        load_bytes=2 * config.block_n * D * itemsize,
        store_bytes=config.block_m * D * itemsize,
        dot=(config.block_m, config.block_n, 2 * D),
        band=config.group,
    )


@causal_attention.impl(
    Tiles,
    refuse=refuse_tiles,
    work=work,
    defaults={
        "fp32": Tiles(64, 16, 8, 2),  # on the vector units
        "sm_80": Tiles(128, 64, 8, 2), "sm_89": Tiles(128, 32, 8, 2),
        "sm_100": Tiles(128, 64, 8, 3), "sm_120": Tiles(128, 32, 8, 2),
        # one stage: of two, Triton 3.6 cannot make code for the targets with buffer loads
        "gfx90a": Tiles(128, 64, 4, 1),
        "gfx942": Tiles(128, 64, 4, 1), "gfx950": Tiles(128, 64, 4, 1),
        "gfx1100": Tiles(64, 16, 8, 1),
    },
)  # fmt: skip
def tiles(q, k, v, *, config):
    """One program for block_m queries of a head, pointers into k and v: takes any strides."""
    (B, S, H, D), Hkv = q.shape, k.shape[2]
    o = q.new_empty(B, S, H, D)
    width = triton.next_power_of_2(D)
    BM, BN = config.block_m, config.block_n
    spans = [max(BM, BN) * x.stride(1) + width * x.stride(3) for x in (q, k, v)]
    _tiles[(triton.cdiv(S, BM) * B * H,)](
        q, k, v, o, S, B * H, H, H // Hkv, LOG2E * D**-0.5,
        *q.stride(), *k.stride(), *v.stride(),
        D=D, WIDTH=width, BLOCK_M=BM, BLOCK_N=BN, GROUP=config.group,
        EVEN_M=S % BM == 0, EVEN_N=S % BN == 0, WIDE=max(spans) >= 2**31,
        UPCAST=INTERPRETED and q.dtype == torch.bfloat16,
        num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
    return o


@causal_attention.impl(
    Descriptors,
    refuse=refuse_descriptors,
    work=work,
    defaults={
        "fp32": Descriptors(64, 16, 8, 1, 0),
        "sm_80": Descriptors(64, 32, 8, 2, 0), "sm_89": Descriptors(64, 32, 8, 2, 0),
        "sm_100": Descriptors(128, 128, 8, 2, 0), "sm_120": Descriptors(64, 32, 8, 2, 0),
        "gfx90a": Descriptors(128, 64, 4, 2, 0), "gfx942": Descriptors(128, 64, 4, 2, 0),
        "gfx950": Descriptors(128, 64, 4, 2, 0), "gfx1100": Descriptors(64, 32, 8, 1, 0),
    },
)  # fmt: skip
def descriptors(q, k, v, *, config):
    """The copy engine loads k and v; with `specialize` one warp group only asks it for blocks,
    and the two that compute drift apart: one's exponentials run beside the other's products."""
    (B, S, H, D), Hkv = q.shape, k.shape[2]
    o = q.new_empty(B, S, H, D)
    main, rest = split(D)
    BM, BN = config.block_m, config.block_n
    strides = {name: dense_strides(name, x) for name, x in (("q", q), ("k", k), ("v", v))}
    maps = []
    for x, (b, t, h, d) in ((k, strides["k"]), (v, strides["v"])):
        for columns in (main, rest or 16):
            block = [1, 1, BN, columns]
            maps.append(TensorDescriptor(x, [B, Hkv, S, D], [b, h, t, d], block))
    triton.set_allocator(lambda size, *_: torch.empty(size, dtype=torch.int8, device=q.device))
    _descriptors[(triton.cdiv(S, BM) * B * H,)](
        q, *maps, o, S, B * H, H, H // Hkv, LOG2E * D**-0.5, *strides["q"][:3],
        D=D, MAIN=main, REST=rest, BLOCK_M=BM, BLOCK_N=BN, GROUP=config.group,
        SPECIALIZE=bool(config.specialize),
        UPCAST=INTERPRETED and q.dtype == torch.bfloat16,
        num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
    return o


@causal_attention.impl(
    Descriptors,
    refuse=refuse_persistent,
    work=work,
    defaults={"fp32": Descriptors(64, 16, 8, 1, 0), "sm_90": Descriptors(group=16)},
)
def persistent(q, k, v, *, config):
    """As `descriptors`, but one program a core walks many blocks of queries, and the warp group
    that loads is ahead by a block: its first keys arrive while the last output leaves."""
    (B, S, H, D), Hkv = q.shape, k.shape[2]
    o = q.new_empty(B, S, H, D)
    BM, BN = config.block_m, config.block_n
    (q_b, q_s, q_h, _), *strides = (dense_strides(n, x) for n, x in (("q", q), ("k", k), ("v", v)))
    if max(B * q_b + H * q_h, o.numel()) >= 2**31:
        raise ValueError("q and o must end within 2^31 elements, as far as a coordinate reaches")
    # whole blocks may go on into the next sequence's rows; others must end where theirs does
    below = S % BM == 0 and q_b == S * q_s
    down, q_right, o_right = (S, 0, 0) if below else (0, q_b, S * H * D)
    maps = [
        TensorDescriptor(x, [B, Hkv, S, D], [b, h, t, d], [1, 1, BN, D])
        for x, (b, t, h, d) in zip((k, v), strides, strict=True)
    ]
    triton.set_allocator(lambda size, *_: torch.empty(size, dtype=torch.int8, device=q.device))
    programs = min(cores(q), triton.cdiv(S, BM) * B * H)
    _persistent[(programs,)](
        q, *maps, o, S, B * H, H, H // Hkv, LOG2E * D**-0.5,
        q_s, q_h, down, q_right, o_right, programs,
        D=D, BLOCK_M=BM, BLOCK_N=BN, GROUP=config.group, SPECIALIZE=bool(config.specialize),
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
    o = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=grouped
    )
    return o.transpose(1, 2)


@causal_attention.impl(backend="torch", name="torch")
def library(q, k, v):
    """What torch chooses."""
    return scaled_dot_product(q, k, v)


@causal_attention.impl(backend="torch", name="flash", refuse=for_16_bits)
def flash(q, k, v):
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return scaled_dot_product(q, k, v)


@causal_attention.impl(backend="torch", name="cudnn", refuse=for_16_bits)
def cudnn(q, k, v):
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return scaled_dot_product(q, k, v)
