"""The recurrence of RWKV-7. Each head keeps a state S of N values by N keys; for each token

S <- S diag(exp(w)) - (S kk) (kk * a)^T + v k^T,    y = S r

where w is the logarithm of the decay, in (-exp(-0.5), 0), kk is a unit vector and a lies in [0, 1].

Token by token it is 10 N^2 FLOP for 14 N bytes in bf16: 45 FLOP a byte at N = 64, on the vector
units, one token behind the other (`sequential`: best for a single token, where the state is all
that moves). `chunked` takes 64 tokens at a time as matrix products. With G the decay summed from
the chunk's start, the part of each product that a later token sees has the factor exp(G[i] - G[j]),
which is split into exp(G[i]) and exp(-G[j]): 64 tokens bound G by -39, so that both fit bf16 and
fp32, but not fp16. What a chunk removes from the state depends on what its earlier tokens removed,
a unit triangular system that is solved by blocks (as in the WY form of Householder products).

A NaN stays in its sequence and head, where it reaches its token and all later ones, and in
`chunked` also earlier ones of its chunk.
"""

import math
from dataclasses import dataclass, replace

import torch

from workbench.dsl import FLA, INTERPRETED, meta, normal, strides, tl, triton
from workbench.kernels import wkv6
from workbench.spec import AUTO, Spec, Tensor, Work, stages, value_or


def reference(r, w, k, v, kk, a, state):
    decay, back, ys = w.exp(), kk * a, []
    for t in range(r.shape[1]):
        removed = (state @ kk[:, t, :, :, None]) * back[:, t, :, None, :]
        state = state * decay[:, t, :, None, :] - removed
        state = state + v[:, t, :, :, None] * k[:, t, :, None, :]
        ys.append((state @ r[:, t, :, :, None])[..., 0])
    return torch.stack(ys, dim=1), state


def log_decays(shape, dtype, device, generator):
    x = torch.randn(shape, generator=generator, device=device)
    return (-math.exp(-0.5) * torch.sigmoid(x)).to(dtype)


def unit_vectors(shape, dtype, device, generator):
    x = torch.randn(shape, generator=generator, device=device)
    return torch.nn.functional.normalize(x, dim=-1).to(dtype)


def rates(shape, dtype, device, generator):
    return torch.rand(shape, generator=generator, device=device).to(dtype)


wkv7 = Spec(
    name="wkv7",
    inputs={
        "r": Tensor("B T H N", make=normal),
        "w": Tensor("B T H N", make=log_decays),
        "k": Tensor("B T H N", make=normal),
        "v": Tensor("B T H N", make=normal),
        "kk": Tensor("B T H N", make=unit_vectors),
        "a": Tensor("B T H N", make=rates),
        "state": Tensor("B H N N", dtype="fp32", make=normal),
    },
    outputs={"y": Tensor("B T H N"), "last": Tensor("B H N N", dtype="fp32")},
    reference=reference,
    flops=lambda B, T, H, N: 10 * B * T * H * N * N,
    check=wkv6.wkv6.check,
    bench=wkv6.wkv6.bench,
    extents=wkv6.wkv6.extents,
    tolerance=wkv6.wkv6.tolerance,
    fp32_outputs=wkv6.wkv6.fp32_outputs,
)


LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _sequential(
    r_ptr, w_ptr, k_ptr, v_ptr, kk_ptr, a_ptr, state_ptr, y_ptr, last_ptr, T, H,
    stride_rb, stride_rt, stride_rh, stride_rn, stride_wb, stride_wt, stride_wh, stride_wn,
    stride_kb, stride_kt, stride_kh, stride_kn, stride_vb, stride_vt, stride_vh, stride_vn,
    stride_cb, stride_ct, stride_ch, stride_cn, stride_ab, stride_at, stride_ah, stride_an,
    stride_sb, stride_sh, stride_sv, stride_sk,
    N: tl.constexpr, BLOCK_V: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    head = (tl.program_id(0) // (N // BLOCK_V)).to(tl.int64)
    b, h = head // H, head % H
    n = tl.arange(0, N).to(tl.int64)
    rows = (tl.program_id(0) % (N // BLOCK_V) * BLOCK_V + tl.arange(0, BLOCK_V)).to(tl.int64)
    S = tl.load(
        state_ptr + b * stride_sb + h * stride_sh + rows[:, None] * stride_sv + n * stride_sk
    )
    r_ptrs = r_ptr + b * stride_rb + h * stride_rh + n * stride_rn
    w_ptrs = w_ptr + b * stride_wb + h * stride_wh + n * stride_wn
    k_ptrs = k_ptr + b * stride_kb + h * stride_kh + n * stride_kn
    v_ptrs = v_ptr + b * stride_vb + h * stride_vh + rows * stride_vn
    kk_ptrs = kk_ptr + b * stride_cb + h * stride_ch + n * stride_cn
    a_ptrs = a_ptr + b * stride_ab + h * stride_ah + n * stride_an
    y_ptrs = y_ptr + (b * T * H + h) * N + rows
    for t in tl.range(T, num_stages=STAGES):
        at = tl.full((), t, tl.int64)
        r, w = tl.load(r_ptrs + at * stride_rt), tl.load(w_ptrs + at * stride_wt)
        k, v = tl.load(k_ptrs + at * stride_kt), tl.load(v_ptrs + at * stride_vt)
        kk, a = tl.load(kk_ptrs + at * stride_ct), tl.load(a_ptrs + at * stride_at)
        kk = kk.to(tl.float32)
        removed = tl.sum(S * kk[None, :], axis=1)
        S = S * tl.exp(w.to(tl.float32))[None, :]
        S -= removed[:, None] * (kk * a.to(tl.float32))[None, :]
        S += v.to(tl.float32)[:, None] * k.to(tl.float32)[None, :]
        y = tl.sum(S * r.to(tl.float32)[None, :], axis=1)
        tl.store(y_ptrs + at * H * N, y.to(y_ptr.dtype.element_ty))
    tl.store(last_ptr + head * N * N + rows[:, None] * N + n, S)


@triton.jit
def _doubled(A, X, level, C: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr):
    i = tl.arange(0, C)
    block = i >> level
    left = tl.where((block & 1) == 1, block - 1, C)  # the block beside it, which odd ones have
    lower = tl.where(left[:, None] == block[None, :], A, 0.0)
    right = tl.dot(lower, X.to(DOT), input_precision=PRECISION).to(DOT)
    return tl.dot(X.to(DOT), right, X, input_precision=PRECISION)


@triton.jit
def _inverse(
    A, C: tl.constexpr, UNROLLED: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr
):  # fmt: skip
    """(I - A)^-1 for strictly lower A, from diagonal blocks of 1, 2, 4, ... rows: two inverses
    beside each other and the block below their corner, T2 A21 T1, make one of twice the size.
    Powers of A would do in as few products, but for equal keys they grow like binomials."""
    i, j = tl.arange(0, C), tl.arange(0, C)
    X = tl.where(i[:, None] == j[None, :], 1.0, 0.0)
    X += tl.where((i | 1)[:, None] == ((j | 1) + (j & 1) * C)[None, :], A.to(tl.float32), 0.0)
    LEVELS: tl.constexpr = 6 if C == 64 else (5 if C == 32 else 4)
    if UNROLLED:
        for level in tl.static_range(1, LEVELS):
            X = _doubled(A, X, level, C, DOT, PRECISION)
    else:
        for level in range(1, LEVELS):
            X = _doubled(A, X, level, C, DOT, PRECISION)
    return X.to(DOT)


@triton.jit
def _summed(w, C: tl.constexpr, SUM: tl.constexpr, PRECISION: tl.constexpr):
    """Running sums along the tokens, in powers of 2: `exp2` takes one instruction, `exp` five. As a
    product with ones they are exact for 16-bit decays, and need no scan across threads."""
    i = tl.arange(0, C)
    until = tl.where(i[:, None] >= i[None, :], 1.0, 0.0).to(SUM)
    return tl.dot(until, w.to(SUM), input_precision=PRECISION) * LOG2_E


@triton.jit
def _chunks(
    r_ptr, w_ptr, k_ptr, v_ptr, kk_ptr, a_ptr, y_ptr, q_ptr, m_ptr, u_ptr, g_ptr, T, H,
    stride_rb, stride_rt, stride_rh, stride_rn, stride_wb, stride_wt, stride_wh, stride_wn,
    stride_kb, stride_kt, stride_kh, stride_kn, stride_vb, stride_vt, stride_vh, stride_vn,
    stride_cb, stride_ct, stride_ch, stride_cn, stride_ab, stride_at, stride_ah, stride_an,
    N: tl.constexpr, C: tl.constexpr, UNROLLED: tl.constexpr,
    DOT: tl.constexpr, SUM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """What a chunk does whatever the state S before it is: y = O + Q S and S <- exp(g) S + M S + U,
    with S as keys by values. O goes to y."""
    chunk, count = tl.program_id(0).to(tl.int64), tl.cdiv(T, C)
    head = chunk // count
    b, h = head // H, head % H
    i, n = tl.arange(0, C), tl.arange(0, N).to(tl.int64)
    t = chunk % count * C + i
    # What is removed: a removal sees those before it, which (I - A)^-1 resolves.
    w = wkv6._chunk_inputs(w_ptr, b, t, h, n, T, stride_wb, stride_wt, stride_wh, stride_wn)
    kk = wkv6._chunk_inputs(kk_ptr, b, t, h, n, T, stride_cb, stride_ct, stride_ch, stride_cn)
    a = wkv6._chunk_inputs(a_ptr, b, t, h, n, T, stride_ab, stride_at, stride_ah, stride_an)
    G, kk = _summed(w, C, SUM, PRECISION), kk.to(tl.float32)
    aE = (-kk * tl.exp2(G - w.to(tl.float32) * LOG2_E)).to(DOT)
    bE = (kk * a.to(tl.float32) * tl.exp2(-G)).to(DOT)
    g = tl.sum(w.to(tl.float32), axis=0)
    tl.store(g_ptr + chunk * N + n, g)
    low = tl.exp(g)[:, None]
    below = i[:, None] > i[None, :]
    A = tl.where(below, tl.dot(aE, tl.trans(bE), input_precision=PRECISION), 0.0).to(DOT)
    X = _inverse(A, C, UNROLLED, DOT, PRECISION)
    W = tl.dot(X, aE, input_precision=PRECISION).to(DOT)
    M = low * tl.dot(tl.trans(bE), W, input_precision=PRECISION)
    square = chunk * N * N + n[:, None] * N + n[None, :]
    tl.store(m_ptr + square, M.to(m_ptr.dtype.element_ty))
    # What is added. The decays are summed once more: kept, they would not fit the registers.
    w = wkv6._chunk_inputs(w_ptr, b, t, h, n, T, stride_wb, stride_wt, stride_wh, stride_wn)
    k = wkv6._chunk_inputs(k_ptr, b, t, h, n, T, stride_kb, stride_kt, stride_kh, stride_kn)
    v = wkv6._chunk_inputs(v_ptr, b, t, h, n, T, stride_vb, stride_vt, stride_vh, stride_vn).to(DOT)
    r = wkv6._chunk_inputs(r_ptr, b, t, h, n, T, stride_rb, stride_rt, stride_rh, stride_rn)
    G = _summed(w, C, SUM, PRECISION)
    kE = (k.to(tl.float32) * tl.exp2(-G)).to(DOT)
    qE = (r.to(tl.float32) * tl.exp2(G)).to(DOT)
    A = tl.where(below, tl.dot(aE, tl.trans(kE), input_precision=PRECISION), 0.0).to(DOT)
    u = tl.dot(A, v, input_precision=PRECISION).to(DOT)
    u = tl.dot(X, u, input_precision=PRECISION).to(DOT)
    U = tl.dot(tl.trans(kE), v, input_precision=PRECISION)
    U = low * tl.dot(tl.trans(bE), u, U, input_precision=PRECISION)
    tl.store(u_ptr + square, U.to(u_ptr.dtype.element_ty))
    # What is read.
    upto = i[:, None] >= i[None, :]
    A = tl.where(upto, tl.dot(qE, tl.trans(kE), input_precision=PRECISION), 0.0).to(DOT)
    O = tl.dot(A, v, input_precision=PRECISION)
    A = tl.where(upto, tl.dot(qE, tl.trans(bE), input_precision=PRECISION), 0.0).to(DOT)
    O = tl.dot(A, u, O, input_precision=PRECISION)
    y_ptrs = y_ptr + ((b * T + t) * H + h)[:, None] * N + n[None, :]
    tl.store(y_ptrs, O.to(y_ptr.dtype.element_ty), (t < T)[:, None])
    Q = tl.dot(A, W, qE.to(tl.float32), input_precision=PRECISION)
    q_ptrs = q_ptr + chunk * C * N + i[:, None] * N + n[None, :]
    tl.store(q_ptrs, Q.to(q_ptr.dtype.element_ty))


@triton.jit
def _states(
    y_ptr, q_ptr, m_ptr, u_ptr, g_ptr, state_ptr, last_ptr, T, H,
    stride_sb, stride_sh, stride_sv, stride_sk,
    N: tl.constexpr, C: tl.constexpr, BLOCK_V: tl.constexpr, DOT: tl.constexpr,
    PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The chunks of one head, one behind the other, for some of its values: values are apart."""
    head = (tl.program_id(0) // (N // BLOCK_V)).to(tl.int64)
    b, h = head // H, head % H
    i, n = tl.arange(0, C).to(tl.int64), tl.arange(0, N).to(tl.int64)
    v = (tl.program_id(0) % (N // BLOCK_V) * BLOCK_V + tl.arange(0, BLOCK_V)).to(tl.int64)
    state_ptr += b * stride_sb + h * stride_sh
    S = tl.load(state_ptr + v[None, :] * stride_sv + n[:, None] * stride_sk)
    count = tl.cdiv(T, C)
    chunk = head * count
    q_ptrs = q_ptr + chunk * C * N + i[:, None] * N + n[None, :]
    m_ptrs = m_ptr + chunk * N * N + n[:, None] * N + n[None, :]
    u_ptrs = u_ptr + chunk * N * N + n[:, None] * N + v[None, :]
    g_ptrs = g_ptr + chunk * N + n
    y_ptrs = y_ptr + ((b * T + i) * H + h)[:, None] * N + v[None, :]
    for c in tl.range(count, num_stages=STAGES):  # said here, it pipelines all loads
        M, U, g = tl.load(m_ptrs), tl.load(u_ptrs), tl.load(g_ptrs)
        before = S.to(DOT)
        S = S * tl.exp(g)[:, None] + U.to(tl.float32)
        S = tl.dot(M.to(DOT), before, S, input_precision=PRECISION)
        inside = (c * C + i < T)[:, None]
        Q, O = tl.load(q_ptrs), tl.load(y_ptrs, inside, other=0.0).to(tl.float32)
        y = tl.dot(Q.to(DOT), before, O, input_precision=PRECISION)
        tl.store(y_ptrs, y.to(y_ptr.dtype.element_ty), inside)
        q_ptrs += C * N
        m_ptrs += N * N
        u_ptrs += N * N
        g_ptrs += N
        y_ptrs += tl.full((), C, tl.int64) * H * N
    tl.store(last_ptr + head * N * N + v[None, :] * N + n[:, None], S)


@dataclass(frozen=True)
class Sequential(wkv6.Sequential):
    num_stages: int = stages(1, 4, default=AUTO)  # see `size_stages`


FEW = 6  # programs a core up to which loads are fetched ahead; with 10 it costs 1 to 5 %


def size_stages(config, limits, *, itemsize, B, T, H, N):
    """Return the config with its stages chosen by the programs of a core: many hide the waits of
    one another, few need the loads of two tokens ahead (H200: 4.39 ms in place of 5.36 at 5 a
    core). Its block of values is chosen as in `wkv6`."""
    config = wkv6.split_values(config, limits, itemsize=itemsize, B=B, T=T, H=H, N=N)
    few = B * H * (N // config.block_v) < FEW * limits.cores
    return replace(config, num_stages=value_or(config.num_stages, 3 if few else 1))


def sequential_work(config, limits, **at):
    return wkv6.sequential_work(config, limits, **at, by_key=5)


@wkv7.impl(Sequential, resolve=size_stages, refuse=wkv6.refuse_sequential, work=sequential_work)
def sequential(r, w, k, v, kk, a, state, *, config):
    """Token by token, the state in registers: nothing but inputs, outputs and states moves."""
    B, T, H, N = r.shape
    y, last = r.new_empty(B, T, H, N), state.new_empty(B, H, N, N)
    constants = dict(N=N, STAGES=config.num_stages, **meta(config))
    _sequential[(B * H * (N // config.block_v),)](
        r, w, k, v, kk, a, state, y, last, T, H, *strides(r, w, k, v, kk, a, state), **constants
    )
    return y, last


def refuse_chunked(config, limits, **at):
    return wkv6.refuse_chunked(config, limits, **at, fit=16, squares=1)


def chunked_work(config, limits, *, itemsize, B, T, H, N):
    """Return the work of both launches. Barriers and operations are those of the default's machine
    code (Triton 3.6, sm_90), divided by its products or by what they make."""
    C, V, chunks = config.chunk, config.block_v, B * H * -(-T // config.chunk)
    levels = C.bit_length() - 2
    # 54 barriers with 64 tokens and 68 with 32; 6,647 and 3,357 operations of each of 128 threads
    barriers, operations = (3, 9) if C < 64 else (2, 8)
    products = 2 * levels + 15  # of C or N rows, whose sizes are the same at C = N
    passed = chunks * (2 * (C + N) * N * itemsize + 4 * N)  # Q, M and U; O in the place of y; g
    own = Work(
        tiles=chunks,
        steps=1,
        load_bytes=7 * C * N * itemsize,  # w twice
        store_bytes=2 * (C + N) * N * itemsize,
        dot=(C, C, N),
        stages=1,
        # Of all products three make N rows in place of C, and those of a level C columns of N.
        products=12 + 3 * N // C + 2 * levels * C // N,
        barriers=barriers * products,
        waits=2,  # w, kk and a; what is added is loaded when what is removed is known
        vector_ops=operations * products * C * N,
        special_ops=4 * C * N,
        passed_bytes=passed,
    )
    states = Work(
        tiles=B * H * N // V,
        steps=-(-T // C),
        load_bytes=((C + N + V) * N + 2 * C * V) * itemsize + 4 * N,  # with the stores of a trip
        store_bytes=4 * N * V,
        dot=(C + N, V, N),  # both products have the state on their right side
        barriers=4,
        vector_ops=22 * N * V,  # 406 and 640 operations of each of 128 threads in a trip
        special_ops=4 * N,  # each of 4 warps has all of exp(g)
        passed_bytes=passed,
        memory_bytes=B * T * H * N * itemsize + 8 * B * H * N * N,
    )
    return own, states


# Registers are what limits a chunk: 64 threads a warp with their own matrix registers on CDNA,
# 16-row products on Ampere and RDNA.
SMALL = wkv6.Chunked(chunk=32, unrolled=1, num_warps=4, block_v=32, num_stages=2)
RDNA = wkv6.Chunked(chunk=16, unrolled=1, num_warps=4, block_v=16, num_stages=2)


@wkv7.impl(
    wkv6.Chunked,
    resolve=wkv6.size_values,
    refuse=refuse_chunked,
    work=chunked_work,
    defaults={
        "fp32": wkv6.Chunked(16, 1, 4, 16, 1),
        "sm_80 sm_86 sm_89 sm_120 gfx90a gfx942 gfx950": SMALL,
        "gfx1100": RDNA,
    },
)
def chunked(r, w, k, v, kk, a, state, *, config):
    """64 tokens at a time on the matrix unit: what does not need the state is computed for all
    chunks at once, and the walk over the chunks has two products left to do in each."""
    B, T, H, N = r.shape
    C, wide = config.chunk, r.dtype == torch.float32
    chunks, narrow = B * H * triton.cdiv(T, C), not wide and not INTERPRETED
    kept, dot = (torch.bfloat16, tl.bfloat16) if narrow else (torch.float32, tl.float32)
    y, last = r.new_empty(B, T, H, N), state.new_empty(B, H, N, N)
    q, g = r.new_empty(chunks, C, N, dtype=kept), state.new_empty(chunks, N)
    m, u = (r.new_empty(chunks, N, N, dtype=kept) for _ in range(2))
    # bf16x6: six products of bf16 parts, which make fp32 on the matrix unit
    precision = "bf16x6" if wide and not INTERPRETED else "ieee"
    exact = tl.float16 if r.dtype == torch.float16 else dot  # of sums of decays
    constants = dict(N=N, C=C, UNROLLED=config.unrolled, DOT=dot, SUM=exact, PRECISION=precision)
    constants |= dict(num_warps=config.num_warps, num_stages=1)
    _chunks[(chunks,)](
        r, w, k, v, kk, a, y, q, m, u, g, T, H, *strides(r, w, k, v, kk, a), **constants
    )
    block_v = config.block_v
    constants = dict(N=N, C=C, BLOCK_V=block_v, DOT=dot, PRECISION=precision)
    constants |= dict(STAGES=config.num_stages, num_warps=8 if wide else 4)
    _states[(B * H * (N // block_v),)](
        y, q, m, u, g, state, last, T, H, *state.stride(), **constants
    )
    return y, last


def refuse_fla(*, itemsize, T, **at):
    if itemsize == 4:
        return "fla promises it for 16 bits only"
    if T < 1024:  # 8 N^2 bytes a head beside 14 N T of inputs and outputs: 4 % at T = 1024
        return "fla keeps states as keys by values, and turning ours round would count"
    return None


def fla_chunk(r, w, k, v, kk, a, state):
    """64 tokens at a time, which its `safe_gate` allows for decays above -5; -kk and kk * a are
    made in each call. Its first call on a device tries some 100 configs: minutes."""
    run = FLA("ops.rwkv7:chunk_rwkv7")
    options = dict(scale=1.0, initial_state=state.mT, output_final_state=True)
    y, last = run(r, w, k, v, -kk, kk * a, **options, safe_gate=True, chunk_size=64)
    return y, last.mT


wkv7.library("fla.chunk", fla_chunk, refuse=FLA.refuse(refuse_fla))
