"""Attention of one new token a sequence: o = softmax(q k^T / sqrt(D)) v over the keys so far.

Sequence b has lens[b] keys in a cache of T (a greater number counts as T; with none, o is zero).
All of k and v is read for 4 * G FLOP a key and column, G query heads to one head of k and v: G
FLOP for each byte at 16 bits, so the memory is the limit. Then enough of it must be
requested at once, however few sequences there are: the keys of each sequence are split among
several programs, and a second launch merges their outputs by their logarithmic sums (LSE):
o = sum_i 2^(lse_i - L) o_i, with L the logarithm of the sum of 2^lse_i.

A NaN in a key makes NaN of all queries of its heads, unless it lies at or behind lens[b]: what is
there does not exist, whatever it holds.
"""

from dataclasses import dataclass, replace

import torch

from workbench.dsl import (
    INTERPRETED,
    attention_backend,
    cores,
    launch_pdl,
    meta,
    pad_up,
    strides,
    tl,
    triton,
    upcast,
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


def reference(q, k, v, lens):
    (B, H, D), (_, T, Hkv, _) = q.shape, k.shape
    o = q.new_zeros(q.shape)
    for b in range(B):
        n = min(int(lens[b]), T)
        if n > 0:
            keys, values = k[b, :n].transpose(0, 1), v[b, :n].transpose(0, 1)
            scores = q[b].reshape(Hkv, H // Hkv, D) @ keys.mT * D**-0.5
            o[b] = (torch.softmax(scores, dim=-1) @ values).reshape(H, D)
    return o


def is_ragged(B):
    """Whether a batch of this size gets lengths of its own: small ones do, as checks have them.
    One sequence and large batches, as are timed, fill their caches."""
    return 1 < B < 8


def lengths(shape, dtype, device, generator):
    if not is_ragged(shape[0]):
        return torch.full(shape, 2**31 - 1, dtype=dtype, device=device)
    return torch.randint(0, 150, shape, generator=generator, dtype=dtype, device=device)


decode_attention = Spec(
    name="decode_attention",
    inputs={
        "q": Tensor("B Hkv*G D"),
        "k": Tensor("B T Hkv D"),
        "v": Tensor("B T Hkv D"),
        "lens": Tensor("B", dtype="int32", make=lengths),
    },
    outputs={"o": Tensor("B Hkv*G D")},
    reference=reference,
    flops=lambda B, Hkv, G, D, T: 4 * B * Hkv * G * T * D,
    check=[
        {"B": 1, "Hkv": 1, "G": 1, "D": 64, "T": 1},
        {"B": 3, "Hkv": 2, "G": 3, "D": 72, "T": 141},
        {"B": 2, "Hkv": 2, "G": 4, "D": 128, "T": 136},
        {"B": 1, "Hkv": 1, "G": 1, "D": 80, "T": 333},
    ],
    bench=[
        {"B": 64, "Hkv": 8, "G": 4, "D": 128, "T": 8192},
        {"B": 8, "Hkv": 8, "G": 4, "D": 128, "T": 8192},
        {"B": 1, "Hkv": 8, "G": 4, "D": 128, "T": 131_072},
        {"B": 64, "Hkv": 8, "G": 8, "D": 64, "T": 4096},
    ],
    extents={"D": Extent(choices=(64, 72, 80, 96, 128, 256))},
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
    refusable=lambda itemsize, D, **at: D > 128,
)


@triton.jit
def _load(
    ptr, rows, columns, stride_row, stride_column, R, C, MASK_C: tl.constexpr
):  # fmt: skip
    """Rows of one head; those from R on and columns from C on are zero."""
    ptrs = ptr + rows[:, None] * stride_row + columns[None, :] * stride_column
    if MASK_C:
        return tl.load(ptrs, (rows[:, None] < R) & (columns[None, :] < C), other=0.0)
    return tl.load(ptrs, rows[:, None] < R, other=0.0)


@triton.jit
def _weigh(
    high, total, q, q_rest, k, k_rest, seen, scale,
    REST: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Weights of one block of keys, and what they do to each query's running maximum and sum; what
    came before counts `keep` times from now on."""
    if UPCAST:
        q, k = q.to(tl.float32), k.to(tl.float32)
        q_rest, k_rest = q_rest.to(tl.float32), k_rest.to(tl.float32)
    s = tl.dot(q, tl.trans(k), input_precision="ieee")
    if REST:
        s = tl.dot(q_rest, tl.trans(k_rest), s, input_precision="ieee")
    s = tl.where(seen, s, -float("inf"))
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
def _splits(
    q_ptr, k_ptr, v_ptr, lens_ptr, o_ptr, lse_ptr, T, HKV, G, SPLITS, scale,
    q_b, q_h, q_d, k_b, k_t, k_h, k_d, v_b, v_t, v_h, v_d, lens_b,
    D: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr, MERGED: tl.constexpr, WIDE: tl.constexpr, UPCAST: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    # heads first: the rows of all of them lie beside each other in memory
    g, split = tl.program_id(0) % HKV, tl.program_id(0) // HKV % SPLITS
    b = (tl.program_id(0) // HKV // SPLITS).to(tl.int64)
    length = tl.minimum(tl.load(lens_ptr + b * lens_b), T)
    share = tl.cdiv(tl.cdiv(length, BLOCK_N), SPLITS) * BLOCK_N
    first = split * share
    last = tl.minimum(first + share, length)
    row, n, d = tl.arange(0, ROWS), tl.arange(0, BLOCK_N), tl.arange(0, MAIN)
    TAIL: tl.constexpr = REST if REST > 0 else 16
    CUT: tl.constexpr = MAIN + REST > D
    e = MAIN + tl.arange(0, TAIL)
    if WIDE:  # offsets within a block of rows may exceed 2^31
        row, n, d, e = row.to(tl.int64), n.to(tl.int64), d.to(tl.int64), e.to(tl.int64)
    q_ptr += b * q_b + (g * G).to(tl.int64) * q_h
    k_ptr += b * k_b + g.to(tl.int64) * k_h + first.to(tl.int64) * k_t
    v_ptr += b * v_b + g.to(tl.int64) * v_h + first.to(tl.int64) * v_t
    q = _load(q_ptr, row, d, q_h, q_d, G, D, False)
    q_rest = _load(q_ptr, row, e, q_h, q_d, G, D, CUT) if REST else q
    acc = tl.zeros((ROWS, MAIN), tl.float32)
    rest = tl.zeros((ROWS, TAIL), tl.float32)
    high = tl.full((ROWS,), -float("inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    for n0 in range(first, last, BLOCK_N):
        k = _load(k_ptr, n, d, k_t, k_d, last - n0, D, False)
        k_rest = _load(k_ptr, n, e, k_t, k_d, last - n0, D, CUT) if REST else k
        p, keep, high, total = _weigh(
            high, total, q, q_rest, k, k_rest, n[None, :] < last - n0, scale, REST > 0, UPCAST
        )
        v = _load(v_ptr, n, d, v_t, v_d, last - n0, D, False)
        acc = _add(acc, p, keep, v, UPCAST)
        if REST:
            v_rest = _load(v_ptr, n, e, v_t, v_d, last - n0, D, CUT)
            rest = _add(rest, p, keep, v_rest, UPCAST)
        k_ptr += tl.full((), BLOCK_N, tl.int64) * k_t
        v_ptr += tl.full((), BLOCK_N, tl.int64) * v_t
    sums = tl.where(total > 0, total, 1.0)  # a share without keys weighs nothing
    at = (b * HKV + g) * G + tl.arange(0, ROWS)
    if MERGED:
        at = at * SPLITS + split
        tl.store(lse_ptr + at, high + tl.log2(sums), row < G)
    o_ptrs = o_ptr + at[:, None] * D
    y = (acc / sums[:, None]).to(o_ptr.dtype.element_ty)
    tl.store(o_ptrs + d[None, :], y, row[:, None] < G)
    if REST:
        y = (rest / sums[:, None]).to(o_ptr.dtype.element_ty)
        tl.store(o_ptrs + e[None, :], y, (row[:, None] < G) & (e[None, :] < D))


@triton.jit
def _merge(
    part_ptr, lse_ptr, o_ptr, SPLITS,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr, ALL: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    if PDL:
        tl.extra.cuda.gdc_wait()
    head = tl.program_id(0).to(tl.int64)
    s, d = tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_D)
    every = tl.arange(0, ALL)
    lse_ptr += head * SPLITS
    part_ptr += head * SPLITS * D
    lse = tl.load(lse_ptr + every, every < SPLITS, other=-float("inf"))
    top = tl.max(lse, axis=0)
    top = tl.where(top == -float("inf"), 0.0, top)  # no keys: -inf - -inf would be NaN
    total = tl.sum(tl.exp2(lse - top), axis=0)
    acc = tl.zeros((BLOCK_S, BLOCK_D), tl.float32)
    for s0 in range(0, SPLITS, BLOCK_S):
        i = s0 + s
        weight = tl.exp2(tl.load(lse_ptr + i, i < SPLITS, other=-float("inf")) - top)
        mask = (i[:, None] < SPLITS) & (d[None, :] < D)
        part = tl.load(part_ptr + i[:, None] * D + d[None, :], mask, other=0.0)
        acc += weight[:, None] * part
    y = tl.sum(acc, axis=0) / tl.where(total > 0, total, 1.0)
    tl.store(o_ptr + head * D + d, y.to(o_ptr.dtype.element_ty), d < D)


@dataclass(frozen=True)
class Splits:
    """AUTO: what suits the device and the sizes, see `size_splits`."""

    block_n: int = tile(32, 128, default=AUTO)
    num_warps: int = threads(1, 8, default=AUTO)
    num_stages: int = stages(1, 4, default=AUTO)
    programs_per_core: int = among(1, 2, 4, 8, 12, 16, 32, default=AUTO)
    pdl: int = among(0, 1, default=0)  # the second launch begins before the first one has ended


def split(D):
    """D as a power of two and what is left, which tl.dot takes from 16 on: 72 is 64 + 16."""
    main = 1 << (D.bit_length() - 1)
    return main, (max(16, 1 << (D - main - 1).bit_length()) if main < D else 0)


def queries(G):
    """Rows of the product: the G heads that share keys, and 16 at least."""
    return max(16, triton.next_power_of_2(G))


def shares(config, cores_, B, Hkv, T):
    """Into how many the keys of a sequence are split: as many as keep all programs within whole
    rounds of the cores. A few more would wait for a round of their own."""
    wanted = cores_ * config.programs_per_core // (B * Hkv)
    return max(1, min(wanted, -(-T // config.block_n)))


def size_splits(config, limits, *, itemsize, B, Hkv, G, D, T):
    """Return the config with what is AUTO chosen by the device and the sizes.

    On Hopper in 16 bits a core keeps one program with 128 to 192 KB on their way, or a few of one
    warp where heads are narrow. In us on an H200, beside cuDNN in turns and 12 programs a core of
    64 keys and 3 stages, 8 heads of k and v for 32 queries, 128 columns: 64 sequences of 8192 keys
    470.1, 471.5, 484.9; 16 of 32768 465.0, 463.6, 484.0; one of 131072 124.7, 125.5, 148.2; 8 of
    8192 67.2, 66.9, 73.4. The same of 64 queries, 64 columns, 64 of 4096: 122.1, 123.3, 138.9.
    """
    block_n, num_warps, num_stages, per_core = 64, 4, 3, 12
    if itemsize > 2 and D in (96, 256):
        num_warps = 8  # with 4 fp32 spills 24 bytes a thread of 96 columns and 6.6 KB of 256
    if limits.arch == "sm_90" and itemsize == 2:
        if D == 64 and G <= 16:
            block_n, num_warps, num_stages, per_core = 32, 1, 4, 2
        elif D == 72:  # rows of 144 bytes, which are loaded into registers
            block_n = 32
        elif B * Hkv >= 2 * limits.cores and D != 80:  # 80 is 64 + 16: 128 keys spill 200 bytes
            block_n, per_core = (64 if D == 256 else 128), 1
        else:
            block_n, num_stages, per_core = (32 if D == 256 else 64), 4, 1
    return replace(
        config,
        block_n=value_or(config.block_n, block_n),
        num_warps=value_or(config.num_warps, num_warps),
        num_stages=value_or(config.num_stages, num_stages),
        programs_per_core=value_or(config.programs_per_core, per_core),
    )


def refuse_splits(config, limits, *, itemsize, B, Hkv, G, D, T):
    if config.pdl and (reason := limits.refuse_pdl()):
        return reason
    threads_ = config.num_warps * limits.warp_size
    rows = max(16, 1 << (G - 1).bit_length())
    held = rows * (sum(split(D)) + config.block_n) // threads_
    nvidia = limits.nvidia
    buffers = config.num_stages if nvidia else max(1, config.num_stages - 1)
    shared = (2 * buffers * config.block_n + rows) * sum(split(D)) * itemsize
    reason = limits.refuse_held(held, 128, "scores and sums in registers")
    return reason or limits.refuse_shared(shared)


def splits_work(config, limits, *, itemsize, B, Hkv, G, D, T):
    """Return the work of the one launch, or of both where the keys are split."""
    parts = shares(config, limits.cores, B, Hkv, T)
    passed = B * Hkv * G * parts * (D + 1) * 4 if parts > 1 else 0
    whole = Work(
        tiles=B * Hkv * parts,
        steps=-(-T // (parts * config.block_n)),
        load_bytes=2 * config.block_n * D * itemsize,
        store_bytes=G * D * (4 if parts > 1 else itemsize),
        passed_bytes=passed,
    )
    at_once = min(32, pad_up(parts))
    merge = Work(
        tiles=B * Hkv * G,
        steps=-(-parts // at_once),
        load_bytes=at_once * (D + 1) * 4,
        store_bytes=D * itemsize,
        # SASS of sm_90: of each of 64 threads 94 in a trip of 8 parts of 128, and 233 around them
        vector_ops=6 * at_once * D + 64 * 233 // -(-parts // at_once),
        barriers=4 // -(-parts // at_once),
        waits=0,
        hits=1,
        passed_bytes=passed,
        memory_bytes=B * Hkv * G * D * itemsize,
    )
    return (whole, merge) if parts > 1 else whole


@decode_attention.impl(
    Splits,
    refuse=refuse_splits,
    work=splits_work,
    resolve=size_splits,
    defaults={
        "fp32": Splits(32, AUTO, 2),
        "sm_90": Splits(pdl=1),
        "sm_89 sm_120 gfx90a gfx942 gfx950": Splits(64, 4, 2),
        "gfx1100": Splits(32, 4, 1),
    },
)
def splits(q, k, v, lens, *, config):
    """The keys of a sequence are split among programs, and the heads that share them are rows of
    one product: every key is read once, by as many cores as there are."""
    (B, H, D), (_, T, Hkv, _) = q.shape, k.shape
    G, (main, rest), BN = H // Hkv, split(D), config.block_n
    o, parts = q.new_empty(B, H, D), shares(config, cores(q), B, Hkv, T)
    merged = parts > 1
    part = torch.empty(B, H, parts, D, dtype=torch.float32, device=q.device) if merged else o
    lse = torch.empty(B, H, parts, dtype=torch.float32, device=q.device) if merged else o
    spans = [max(BN, queries(G)) * x.stride(-2 if x is q else 1) for x in (q, k, v)]
    columns = [(main + rest) * x.stride(-1) for x in (q, k, v)]
    scale = LOG2E * D**-0.5
    constants = dict(D=D, MAIN=main, REST=rest, ROWS=queries(G), MERGED=merged)
    pdl = merged and bool(config.pdl) and not INTERPRETED
    constants |= dict(WIDE=max(spans) + max(columns) >= 2**31, UPCAST=upcast(q), **meta(config))
    constants |= dict(PDL=pdl)
    _splits[(B * Hkv * parts,)](
        q, k, v, lens, part, lse, T, Hkv, G, parts, scale, *strides(q, k, v, lens), **constants
    )
    if merged:
        at_once = min(32, pad_up(parts))
        constants = dict(D=D, BLOCK_D=pad_up(D), BLOCK_S=at_once, ALL=pad_up(parts), PDL=pdl)
        constants |= dict(num_warps=max(2, at_once // 8), **launch_pdl(pdl))
        _merge[(B * H,)](part, lse, o, parts, **constants)
    return o


def scaled_dot_product(q, k, v, mask=None):
    """Over all T keys, or those that the mask names."""
    q, k, v = q.unsqueeze(2), k.transpose(1, 2), v.transpose(1, 2)
    o = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1]
    )
    return o.squeeze(2)


def refuse_sdpa(config, limits, *, itemsize, B, **at):
    if itemsize != 2:
        return "the library has it for 16 bits only"
    return "without lengths it needs full caches" if is_ragged(B) else None


def library(q, k, v, lens):
    """What torch chooses for a mask, which is how its call takes lengths."""
    at = torch.arange(k.shape[1], device=q.device)
    seen = (at < lens[:, None])[:, None, None]
    o = scaled_dot_product(q, k, v, seen)
    return o.masked_fill((lens <= 0)[:, None, None], 0.0)


def uniform_call(backend):
    def call(q, k, v, lens):
        with attention_backend(backend):
            return scaled_dot_product(q, k, v)

    return call


decode_attention.library("torch", library)
for _name in ("flash", "cudnn"):
    decode_attention.library(_name, uniform_call(_name), refuse=refuse_sdpa)
