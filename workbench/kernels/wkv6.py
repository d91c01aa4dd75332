"""The recurrence of RWKV-6. Each head keeps a state S of N keys by N values; for each token

y = r (S + diag(u) k^T v),    S <- diag(exp(w)) S + k^T v

where w < 0 is the logarithm of the decay, any finite number for each key and token.

Token by token it is 7 N^2 FLOP for 10 N bytes in bf16: 45 FLOP a byte at N = 64, on the vector
units, one token behind the other (`sequential`: best for a single token, where the state is all
that moves). `chunked` takes 16 to 64 tokens at a time as matrix products. A later token i sees an
earlier one j with the factor exp(w[j + 1] + ... + w[i - 1]). To be a product of rows and columns it
must be split at some token between the two: split at the chunk's start, one of the parts would
overflow.
So the chunk is halved, and its halves again, down to single tokens: at each of these levels, pairs
that lie in two sister halves are split at the border between them, where no exponent is positive.

A NaN stays in its sequence and head, where it reaches its token and all later ones, and in
`chunked` also earlier ones of its chunk.
"""

from dataclasses import dataclass, replace

import torch

from workbench.dsl import FLA, INTERPRETED, meta, normal, strides, tl, triton
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


def reference(r, w, k, v, u, state):
    decay, ys = w.exp(), []
    for t in range(r.shape[1]):
        kv = k[:, t, :, :, None] * v[:, t, :, None, :]
        ys.append((r[:, t, :, None, :] @ (state + u[..., None] * kv))[..., 0, :])
        state = decay[:, t, :, :, None] * state + kv
    return torch.stack(ys, dim=1), state


def log_decays(shape, dtype, device, generator):
    x = torch.randn(shape, generator=generator, device=device)
    return (-torch.exp(1.5 * x - 2)).to(dtype)  # -0.13 at the median, -40 at the strongest


ROUNDED = Tolerance(relative=2e-2, rms_share=4e-2, rms=6e-3)  # operands of products in bf16


wkv6 = Spec(
    name="wkv6",
    inputs={
        "r": Tensor("B T H N", make=normal),
        "w": Tensor("B T H N", make=log_decays),
        "k": Tensor("B T H N", make=normal),
        "v": Tensor("B T H N", make=normal),
        "u": Tensor("H N", make=normal),
        "state": Tensor("B H N N", dtype="fp32", make=normal),
    },
    outputs={"y": Tensor("B T H N"), "last": Tensor("B H N N", dtype="fp32")},
    reference=reference,
    flops=lambda B, T, H, N: 7 * B * T * H * N * N,
    check=[
        {"B": 1, "T": 1, "H": 1, "N": 64},
        {"B": 2, "T": 17, "H": 1, "N": 64},
        {"B": 1, "T": 66, "H": 1, "N": 64},
    ],
    bench=[
        {"B": 8, "T": 4096, "H": 40, "N": 64},
        {"B": 1, "T": 4096, "H": 40, "N": 64},
        {"B": 64, "T": 1, "H": 40, "N": 64},
    ],
    extents={"N": Extent(choices=(64,))},
    # In 16 bits `chunked` rounds the operands of its products to bf16, which leaves errors of about
    # 0.3 % of the rms in y and in the state, and many times that in the worst of millions: all
    # together may be twice that. In fp32 each product is of six of bf16, which leaves 2^-22, and of
    # sums of decays three; a token passes on what was lost before it.
    tolerance={
        "fp32": Tolerance(relative=1e-4, rms_share=1e-3, rms=1e-4),
        "fp16": ROUNDED,
        "bf16": ROUNDED,
    },
    fp32_outputs={"fp16": ROUNDED, "bf16": ROUNDED},
)


@triton.jit
def _sequential(
    r_ptr, w_ptr, k_ptr, v_ptr, u_ptr, state_ptr, y_ptr, last_ptr, T, H,
    stride_rb, stride_rt, stride_rh, stride_rn, stride_wb, stride_wt, stride_wh, stride_wn,
    stride_kb, stride_kt, stride_kh, stride_kn, stride_vb, stride_vt, stride_vh, stride_vn,
    stride_uh, stride_un, stride_sb, stride_sh, stride_sk, stride_sv,
    N: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    head = (tl.program_id(0) // (N // BLOCK_V)).to(tl.int64)
    b, h = head // H, head % H
    n = tl.arange(0, N).to(tl.int64)
    values = (tl.program_id(0) % (N // BLOCK_V) * BLOCK_V + tl.arange(0, BLOCK_V)).to(tl.int64)
    state_ptr += b * stride_sb + h * stride_sh
    S = tl.load(state_ptr + n[:, None] * stride_sk + values[None, :] * stride_sv)
    u = tl.load(u_ptr + h * stride_uh + n * stride_un).to(tl.float32)
    r_ptrs = r_ptr + b * stride_rb + h * stride_rh + n * stride_rn
    w_ptrs = w_ptr + b * stride_wb + h * stride_wh + n * stride_wn
    k_ptrs = k_ptr + b * stride_kb + h * stride_kh + n * stride_kn
    v_ptrs = v_ptr + b * stride_vb + h * stride_vh + values * stride_vn
    y_ptrs = y_ptr + (b * T * H + h) * N + values
    for t in range(T):
        at = tl.full((), t, tl.int64)
        r, w = tl.load(r_ptrs + at * stride_rt), tl.load(w_ptrs + at * stride_wt)
        k, v = tl.load(k_ptrs + at * stride_kt), tl.load(v_ptrs + at * stride_vt)
        kv = k.to(tl.float32)[:, None] * v.to(tl.float32)[None, :]
        y = tl.sum(r.to(tl.float32)[:, None] * (S + u[:, None] * kv), axis=0)
        S = S * tl.exp(w.to(tl.float32))[:, None] + kv
        tl.store(y_ptrs + at * H * N, y.to(y_ptr.dtype.element_ty))
    tl.store(last_ptr + head * N * N + n[:, None] * N + values[None, :], S)


@triton.jit
def _chunk_inputs(ptr, b, t, h, n, T, stride_b, stride_t, stride_h, stride_n):
    ptrs = ptr + b * stride_b + h * stride_h + t[:, None] * stride_t + n[None, :] * stride_n
    return tl.load(ptrs, (t < T)[:, None], other=0.0)


@triton.jit
def _decay(which, w, PRECISION: tl.constexpr):
    """What is left after the tokens that each row names by ones. As products with ones the sums of
    16-bit decays are exact, and need no scan across threads; `exp2` takes one instruction, `exp`
    five."""
    return tl.exp2(tl.dot(which, w, input_precision=PRECISION) * 1.4426950408889634)


@triton.jit
def _sisters(
    r, w, k, level, C: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
    PRECISION_OF_SUMS: tl.constexpr,
):  # fmt: skip
    """r[i] k[j] exp(w between them) for i in an odd block of 2^level tokens and j in the one before
    it."""
    i = tl.arange(0, C)
    half = i >> level
    odd = (half & 1) == 1
    # from the border up to a token of the odd half, or from one of the even half to the border
    first = tl.where(odd, half << level, i + 1)[:, None]
    end = tl.where(odd, i, (half + 1) << level)[:, None]
    between = tl.where((i[None, :] >= first) & (i[None, :] < end), 1.0, 0.0).to(w.dtype)
    E = _decay(between, w, PRECISION_OF_SUMS).to(DOT)
    A = tl.dot(r * E, tl.trans(k * E), input_precision=PRECISION)
    sister = tl.where(odd, half - 1, C)
    return tl.where(sister[:, None] == half[None, :], A, 0.0)


@triton.jit
def _chunks(
    r_ptr, w_ptr, k_ptr, v_ptr, u_ptr, y_ptr, q_ptr, s_ptr, g_ptr, T, H,
    stride_rb, stride_rt, stride_rh, stride_rn, stride_wb, stride_wt, stride_wh, stride_wn,
    stride_kb, stride_kt, stride_kh, stride_kn, stride_vb, stride_vt, stride_vh, stride_vn,
    stride_uh, stride_un, N: tl.constexpr, C: tl.constexpr, UNROLLED: tl.constexpr,
    DOT: tl.constexpr, SUM: tl.constexpr, PRECISION: tl.constexpr, PRECISION_OF_SUMS: tl.constexpr,
):  # fmt: skip
    """What a chunk does whatever the state S before it is: y = O + Q S and S <- exp(g) S + U.
    O goes to y."""
    chunk, count = tl.program_id(0).to(tl.int64), tl.cdiv(T, C)
    head = chunk // count
    b, h = head // H, head % H
    i, n = tl.arange(0, C), tl.arange(0, N).to(tl.int64)
    row, column = i[:, None], i[None, :]
    t = chunk % count * C + i
    r = _chunk_inputs(r_ptr, b, t, h, n, T, stride_rb, stride_rt, stride_rh, stride_rn)
    k = _chunk_inputs(k_ptr, b, t, h, n, T, stride_kb, stride_kt, stride_kh, stride_kn)
    w = _chunk_inputs(w_ptr, b, t, h, n, T, stride_wb, stride_wt, stride_wh, stride_wn)
    u = tl.load(u_ptr + h * stride_uh + n * stride_un).to(tl.float32)
    w_sum = w.to(SUM)
    tl.store(g_ptr + chunk * N + n, tl.sum(w.to(tl.float32), axis=0))
    # A: how much of v[j] comes to y[i]. Sisters of one token have nothing between them.
    own = tl.sum(r.to(tl.float32) * k.to(tl.float32) * u[None, :], axis=1)
    r, k = r.to(DOT), k.to(DOT)
    A = tl.dot(r, tl.trans(k), input_precision=PRECISION)
    A = tl.where(((row & 1) == 1) & (column == row - 1), A, 0.0)
    A += tl.where(row == column, own[:, None], 0.0)
    LEVELS: tl.constexpr = 6 if C == 64 else (5 if C == 32 else 4)
    if UNROLLED:
        for level in tl.static_range(1, LEVELS):
            A += _sisters(r, w_sum, k, level, C, DOT, PRECISION, PRECISION_OF_SUMS)
    else:
        for level in range(1, LEVELS):
            A += _sisters(r, w_sum, k, level, C, DOT, PRECISION, PRECISION_OF_SUMS)
    v = _chunk_inputs(v_ptr, b, t, h, n, T, stride_vb, stride_vt, stride_vh, stride_vn).to(DOT)
    O = tl.dot(A.to(DOT), v, input_precision=PRECISION)
    y_ptrs = y_ptr + ((b * T + t) * H + h)[:, None] * N + n[None, :]
    tl.store(y_ptrs, O.to(y_ptr.dtype.element_ty), (t < T)[:, None])
    before = tl.where(column < row, 1.0, 0.0).to(SUM)
    Q = r.to(tl.float32) * _decay(before, w_sum, PRECISION_OF_SUMS)
    q_ptrs = q_ptr + chunk * C * N + i[:, None] * N + n[None, :]
    tl.store(q_ptrs, Q.to(q_ptr.dtype.element_ty))
    behind = tl.where(column > row, 1.0, 0.0).to(SUM)
    K = (k.to(tl.float32) * _decay(behind, w_sum, PRECISION_OF_SUMS)).to(DOT)
    U = tl.dot(tl.trans(K), v, input_precision=PRECISION)
    tl.store(s_ptr + chunk * N * N + n[:, None] * N + n[None, :], U.to(s_ptr.dtype.element_ty))


@triton.jit
def _states(
    y_ptr, q_ptr, s_ptr, g_ptr, state_ptr, last_ptr, T, H,
    stride_sb, stride_sh, stride_sk, stride_sv,
    N: tl.constexpr, C: tl.constexpr, BLOCK_V: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The chunks of one head, one behind the other, for some of its values: values are apart."""
    head = (tl.program_id(0) // (N // BLOCK_V)).to(tl.int64)
    b, h = head // H, head % H
    i, n = tl.arange(0, C).to(tl.int64), tl.arange(0, N).to(tl.int64)
    v = (tl.program_id(0) % (N // BLOCK_V) * BLOCK_V + tl.arange(0, BLOCK_V)).to(tl.int64)
    state_ptr += b * stride_sb + h * stride_sh
    S = tl.load(state_ptr + n[:, None] * stride_sk + v[None, :] * stride_sv)
    count = tl.cdiv(T, C)
    chunk = head * count
    q_ptrs = q_ptr + chunk * C * N + i[:, None] * N + n[None, :]
    s_ptrs = s_ptr + chunk * N * N + n[:, None] * N + v[None, :]
    g_ptrs = g_ptr + chunk * N + n
    y_ptrs = y_ptr + ((b * T + i) * H + h)[:, None] * N + v[None, :]
    for c in tl.range(count, num_stages=STAGES):  # said here, it pipelines all loads
        Q, U, g = tl.load(q_ptrs), tl.load(s_ptrs), tl.load(g_ptrs)
        inside = (c * C + i < T)[:, None]
        O = tl.load(y_ptrs, inside, other=0.0).to(tl.float32)
        y = tl.dot(Q.to(DOT), S.to(DOT), O, input_precision=PRECISION)
        S = S * tl.exp(g)[:, None] + U.to(tl.float32)
        tl.store(y_ptrs, y.to(y_ptr.dtype.element_ty), inside)
        q_ptrs += C * N
        s_ptrs += N * N
        g_ptrs += N
        y_ptrs += tl.full((), C, tl.int64) * H * N
    tl.store(last_ptr + head * N * N + n[:, None] * N + v[None, :], S)


@dataclass(frozen=True)
class Sequential:
    block_v: int = tile(16, 64, default=AUTO)  # see `split_values`
    num_warps: int = threads(1, 8, default=4)


def split_values(config, limits, *, itemsize, B, T, H, N):
    """Return the config with its block of values chosen by the number of heads: a quarter of them
    where the heads alone give each core less than one and a half, else half. At 1 to 12 tokens a
    quarter took 0.83 to 0.97 of the time of half with up to 128 heads, and 1.13 with 256 (H200)."""
    block_v = 16 if 3 * limits.cores > 2 * B * H else 32
    return replace(config, block_v=value_or(config.block_v, block_v))


def refuse_sequential(config, limits, *, itemsize, B, T, H, N):
    held = config.block_v * N // (config.num_warps * limits.warp_size)
    if held > 64:
        return f"each thread would hold {held} elements of the state; 64 is the most"
    if held < 4:
        return f"{config.num_warps} warps leave each thread {held} elements, less than one load"
    return None


def sequential_work(config, limits, *, itemsize, B, T, H, N, by_key=3):
    """Return the work of a recurrence with so many inputs by key: r, w and k."""
    state = config.block_v * N * 4
    return Work(
        tiles=B * H * N // config.block_v,
        steps=T,
        load_bytes=(by_key * N + config.block_v) * itemsize + state // T,
        store_bytes=T * config.block_v * itemsize + state,
    )


@wkv6.impl(Sequential, resolve=split_values, refuse=refuse_sequential, work=sequential_work)
def sequential(r, w, k, v, u, state, *, config):
    """Token by token, the state in registers: nothing but inputs, outputs and states moves."""
    B, T, H, N = r.shape
    y, last = r.new_empty(B, T, H, N), state.new_empty(B, H, N, N)
    _sequential[(B * H * (N // config.block_v),)](
        r, w, k, v, u, state, y, last, T, H, *strides(r, w, k, v, u, state), N=N, **meta(config)
    )
    return y, last


@dataclass(frozen=True)
class Chunked:
    chunk: int = tile(16, 64, default=AUTO)  # see `size_values`, as of the two others
    unrolled: int = among(0, 1, default=0)  # the levels: fewer registers, but not for 64 tokens
    num_warps: int = threads(2, 8, default=AUTO)
    block_v: int = tile(16, 64, default=AUTO)
    num_stages: int = stages(1, 3, default=3)


def size_values(config, limits, *, itemsize, B, T, H, N):
    """Return the config with its block of values chosen by the number of heads: all values of a
    head where the heads alone give each core two, a quarter of them where even so no core has two,
    else half. The fewer, the more often the same chunks are read. Unrolled, 2 warps take 0.87 to
    0.94 of the time of 4 from 416 tokens on, and more below 64 (an H200, nine sizes)."""
    heads = B * H
    block_v = 64 if heads >= 2 * limits.cores else 16 if 4 * heads <= limits.cores else 32
    chunk, warps = (64, 4) if not config.unrolled else (32, 2) if T >= 64 else (16, 4)
    return replace(
        config,
        chunk=value_or(config.chunk, chunk),
        num_warps=value_or(config.num_warps, warps),
        block_v=value_or(config.block_v, block_v),
    )


def refuse_chunked(config, limits, *, itemsize, B, T, H, N, fit=32, squares=0):
    """Return why chunks do not fit, or None; they pass on `squares` matrices of N x N besides U."""
    if itemsize == 4 and config.chunk > 32:
        return f"in fp32 products of {config.chunk} tokens do not fit the registers; {fit} do"
    if config.unrolled and config.chunk > 32 and limits.nvidia:
        return f"unrolled, the levels of {config.chunk} tokens do not fit the registers"
    C, threads_ = config.chunk, config.num_warps * limits.warp_size
    if threads_ > 512 or 4 * threads_ > C * N:
        return f"{config.num_warps} warps are too many for products of {C} tokens"
    if 32 * threads_ < C * N:
        return f"{config.num_warps} warps are too few for products of {C} tokens"
    block_v = config.block_v
    buffers = config.num_stages - limits.arch.startswith("gfx")
    kept = itemsize * ((C + squares * N) * N + (C + N) * block_v)
    shared = buffers * kept + itemsize * N * block_v
    return limits.refuse_shared(shared)


def chunked_work(config, limits, *, itemsize, B, T, H, N):
    """Return the work of both launches. Barriers and operations are those of the default's machine
    code (Triton 3.6, sm_90), divided by its products or by what they make."""
    C, V, chunks = config.chunk, config.block_v, B * H * -(-T // config.chunk)
    levels = C.bit_length() - 2  # in a level two products, and a decay of each key and token
    products, decays = 2 * levels + 5, levels + 2
    # 52 barriers with 32 tokens and 43 with 64; 2,462 and 8,724 operations of each of 128 threads
    barriers, operations = (4, 12) if C < 64 else (3, 18)
    passed = chunks * ((2 * C + N) * N * itemsize + 4 * N)  # Q and U; O in the place of y; g
    own = Work(
        tiles=chunks,
        steps=1,
        load_bytes=4 * C * N * itemsize,
        store_bytes=(2 * C + N) * N * itemsize,
        dot=(C, C, N),
        stages=1,
        products=products - 1 + N // C,  # U, of N keys in place of C tokens, as so many
        barriers=barriers * products,
        vector_ops=operations * products * C * N,
        special_ops=decays * C * N,
        passed_bytes=passed,
    )
    states = Work(
        tiles=B * H * N // V,
        steps=-(-T // C),
        load_bytes=((C + V) * N + 2 * C * V) * itemsize + 4 * N,  # with the stores of a trip
        store_bytes=4 * N * V,
        dot=(C, V, N),
        barriers=5,  # 4 with half of the values, 6 with all
        vector_ops=15 * N * V,  # 271 and 461 operations of each of 128 threads in a trip
        special_ops=4 * N,  # each of 4 warps has all of exp(g)
        passed_bytes=passed,
        memory_bytes=B * T * H * N * itemsize + 8 * B * H * N * N,
    )
    return own, states


# Registers are what limits a chunk on Ampere and RDNA, whose products have 16 rows.
CDNA = Chunked(chunk=64, num_warps=4, block_v=32, num_stages=2)
SMALL = Chunked(chunk=32, num_warps=4, block_v=32, num_stages=2)
HOPPER = Chunked(unrolled=1)  # a core holds four blocks of 32 tokens, of 64 two
RDNA = Chunked(chunk=16, unrolled=1, num_warps=4, block_v=32, num_stages=2)


@wkv6.impl(
    Chunked,
    resolve=size_values,
    refuse=refuse_chunked,
    work=chunked_work,
    defaults={
        "fp32": Chunked(16, 1, 4, 16, 1),
        "sm_90": HOPPER,
        "sm_80 sm_86 sm_89 sm_120": SMALL,
        "gfx90a gfx942 gfx950": CDNA,
        "gfx1100": RDNA,
    },
)
def chunked(r, w, k, v, u, state, *, config):
    """Chunks of 16 to 64 tokens on the matrix unit: what does not need the state is computed for
    all chunks at once, and the walk over the chunks has one product left to do in each."""
    B, T, H, N = r.shape
    C, wide = config.chunk, r.dtype == torch.float32
    chunks, narrow = B * H * triton.cdiv(T, C), not wide and not INTERPRETED
    kept, dot = (torch.bfloat16, tl.bfloat16) if narrow else (torch.float32, tl.float32)
    y, last = r.new_empty(B, T, H, N), state.new_empty(B, H, N, N)
    q, s = r.new_empty(chunks, C, N, dtype=kept), r.new_empty(chunks, N, N, dtype=kept)
    g = state.new_empty(chunks, N)
    # bf16x6: six products of bf16 parts, which make fp32 on the matrix unit. For sums of decays,
    # three do: exp(w) w 2^-17 is at most 3e-6.
    split = wide and not INTERPRETED
    precision, sums = ("bf16x6", "bf16x3") if split else ("ieee", "ieee")
    exact = tl.float16 if r.dtype == torch.float16 else dot  # of sums of decays
    constants = dict(N=N, C=C, UNROLLED=config.unrolled, DOT=dot, SUM=exact, PRECISION=precision)
    constants |= dict(PRECISION_OF_SUMS=sums, num_warps=config.num_warps, num_stages=1)
    _chunks[(chunks,)](r, w, k, v, u, y, q, s, g, T, H, *strides(r, w, k, v, u), **constants)
    block_v = config.block_v
    constants = dict(N=N, C=C, BLOCK_V=block_v, DOT=dot, PRECISION=precision)
    constants |= dict(STAGES=config.num_stages, num_warps=4)
    _states[(B * H * (N // block_v),)](y, q, s, g, state, last, T, H, *state.stride(), **constants)
    return y, last


def refuse_chunk(*, itemsize, **at):
    # On an H100, fla-core 0.6.0: 15 % of y, by up to 8 tolerances; 2026-11-27
    return "its fp32 is less exact than the tolerance" if itemsize == 4 else None


def fla_chunk(r, w, k, v, u, state):
    """64 tokens at a time. Its first call on a device tries some 140 configs: minutes."""
    run = FLA("ops.rwkv6:chunk_rwkv6")
    return run(r, k, v, w, u, scale=1.0, initial_state=state, output_final_state=True)


def fla_recurrent(r, w, k, v, u, state):
    """Token by token."""
    run = FLA("ops.rwkv6:fused_recurrent_rwkv6")
    return run(r, k, v, w, u, scale=1.0, initial_state=state, output_final_state=True)


wkv6.library("fla.chunk", fla_chunk, refuse=FLA.refuse(refuse_chunk))
wkv6.library("fla.recurrent", fla_recurrent, refuse=FLA.refuse())
