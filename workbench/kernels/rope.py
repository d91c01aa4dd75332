"""Rotary position embedding of queries and keys in one launch, halves paired as in GPT-NeoX:
with x = [a | b] along D, y = [a cos - b sin | b cos + a sin], the angles by the token's position.

At 6 FLOP for four elements moved it is memory-bound on every GPU in `devices/`. The tables of
cosines and sines are read once for all heads of a token: at 40 heads of 128 they are 1.3 % of the
bytes, and rows of the table that several tokens share come from the cache.

NaN and infinities reach the pair that they are in, of one head of one token.
"""

from dataclasses import dataclass

import torch

from workbench.dsl import baseline, meta, pad_up, strides, tile_count, tl, triton
from workbench.spec import Extent, Spec, Tensor, Work, rms_bounds, threads, tile

THETA = 10_000.0  # base of the geometric row of frequencies


def reference(q, k, cos, sin, position):
    c, s = cos[position.long()][:, None], sin[position.long()][:, None]
    return rotate(q, c, s), rotate(k, c, s)


def rotate(x, c, s):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * c - b * s, b * c + a * s), dim=-1)


def angles(shape, device):
    S, half = shape
    frequency = THETA ** (-torch.arange(half, device=device, dtype=torch.float64) / half)
    return torch.arange(S, device=device, dtype=torch.float64)[:, None] * frequency


def cosines(shape, dtype, device, generator):
    return angles(shape, device).cos().to(dtype)


def sines(shape, dtype, device, generator):
    return angles(shape, device).sin().to(dtype)


def positions(shape, dtype, device, generator):
    return torch.randint(shape[0], shape, generator=generator, device=device, dtype=dtype)


rope = Spec(
    name="rope",
    inputs={
        "q": Tensor("S Hq D"),
        "k": Tensor("S Hkv D"),
        "cos": Tensor("S D/2", make=cosines),
        "sin": Tensor("S D/2", make=sines),
        "position": Tensor("S", dtype="int32", make=positions),
    },
    outputs={"q_rotated": Tensor("S Hq D"), "k_rotated": Tensor("S Hkv D")},
    reference=reference,
    flops=lambda S, Hq, D, Hkv: 3 * S * (Hq + Hkv) * D,
    nonfinite=("q", "k"),
    check=[
        {"S": 1, "Hq": 1, "Hkv": 1, "D": 2},
        {"S": 5, "Hq": 3, "Hkv": 1, "D": 96},
        {"S": 19, "Hq": 5, "Hkv": 2, "D": 34},
        {"S": 9, "Hq": 8, "Hkv": 2, "D": 128},
    ],
    bench=[
        {"S": 8192, "Hq": 32, "Hkv": 8, "D": 128},
        {"S": 64, "Hq": 32, "Hkv": 8, "D": 128},
        {"S": 8192, "Hq": 16, "Hkv": 16, "D": 64},
    ],
    extents={"D": Extent(multiple=2)},
    # Where the two products nearly cancel, what is left carries the fp32 rounding of both:
    # 2^-24 of |a| + |b|, some 1e-6 of the rms for the largest of a million normal values.
    tolerance=rms_bounds(fp32=2e-6, fp16=2e-6, bf16=2e-6),
)


@triton.jit
def _halves(x_ptr, t, h, d, stride_t, stride_h, stride_d, mask, HALF: tl.constexpr):
    pointers = x_ptr + t * stride_t + h * stride_h + d * stride_d
    a = tl.load(pointers, mask, other=0.0)
    b = tl.load(pointers + tl.full((), HALF, tl.int64) * stride_d, mask, other=0.0)
    return a.to(tl.float32), b.to(tl.float32)


@triton.jit
def _rotate(y_ptr, a, b, c, s, t, h, d, mask, HEADS: tl.constexpr, HALF: tl.constexpr):
    pointers = y_ptr + (t * HEADS + h) * (2 * HALF) + d  # the output is dense
    tl.store(pointers, (a * c - b * s).to(y_ptr.dtype.element_ty), mask)
    tl.store(pointers + HALF, (b * c + a * s).to(y_ptr.dtype.element_ty), mask)


@triton.jit
def _tokens(
    q_ptr, k_ptr, cos_ptr, sin_ptr, position_ptr, q_out, k_out, S,
    stride_qt, stride_qh, stride_qd, stride_kt, stride_kh, stride_kd,
    stride_ct, stride_cd, stride_st, stride_sd, stride_p,
    HQ: tl.constexpr, HKV: tl.constexpr, HALF: tl.constexpr, BLOCK_S: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0).to(tl.int64) * BLOCK_S
    d = tl.arange(0, BLOCK_D).to(tl.int64)[None, :]
    # a row of a block is one head of one token
    rows_q, rows_k = tl.arange(0, BLOCK_S * BLOCK_Q), tl.arange(0, BLOCK_S * BLOCK_K)
    tq, hq = (first + rows_q // BLOCK_Q)[:, None], (rows_q % BLOCK_Q).to(tl.int64)[:, None]
    tk, hk = (first + rows_k // BLOCK_K)[:, None], (rows_k % BLOCK_K).to(tl.int64)[:, None]
    mask_q = (tq < S) & (hq < HQ) & (d < HALF)
    mask_k = (tk < S) & (hk < HKV) & (d < HALF)
    # all four before the first store, behind which no load may move
    q_a, q_b = _halves(q_ptr, tq, hq, d, stride_qt, stride_qh, stride_qd, mask_q, HALF)
    k_a, k_b = _halves(k_ptr, tk, hk, d, stride_kt, stride_kh, stride_kd, mask_k, HALF)
    pq = tl.load(position_ptr + tq * stride_p, tq < S, other=0).to(tl.int64)
    pk = tl.load(position_ptr + tk * stride_p, tk < S, other=0).to(tl.int64)
    row_q, row_k = (tq < S) & (d < HALF), (tk < S) & (d < HALF)
    q_c = tl.load(cos_ptr + pq * stride_ct + d * stride_cd, row_q, other=0.0).to(tl.float32)
    q_s = tl.load(sin_ptr + pq * stride_st + d * stride_sd, row_q, other=0.0).to(tl.float32)
    k_c = tl.load(cos_ptr + pk * stride_ct + d * stride_cd, row_k, other=0.0).to(tl.float32)
    k_s = tl.load(sin_ptr + pk * stride_st + d * stride_sd, row_k, other=0.0).to(tl.float32)
    _rotate(q_out, q_a, q_b, q_c, q_s, tq, hq, d, mask_q, HQ, HALF)
    _rotate(k_out, k_a, k_b, k_c, k_s, tk, hk, d, mask_k, HKV, HALF)


@dataclass(frozen=True)
class Tokens:
    block_s: int = tile(1, 8, default=1)
    num_warps: int = threads(1, 16, default=4)


def refuse_tokens(config, limits, *, itemsize, S, Hq, Hkv, D):
    if D % 2:
        return f"a head of {D} has no halves"
    heads = pad_up(Hq) + pad_up(Hkv)
    held = config.block_s * heads * pad_up(D) / (config.num_warps * limits.warp_size)
    if held > 160:
        return f"each thread would hold {held:g} elements in registers; 160 is the most"
    return None


def work(config, limits, *, itemsize, S, Hq, Hkv, D):
    moved = config.block_s * (Hq + Hkv) * D * itemsize
    loaded = moved + config.block_s * D * itemsize  # and the tables
    return Work(tiles=tile_count(config, S=S), steps=1, load_bytes=loaded, store_bytes=moved)


@rope.impl(Tokens, refuse=refuse_tokens, work=work)
def tokens(q, k, cos, sin, position, *, config):
    """All heads of `block_s` tokens: their angles are read once."""
    (S, Hq, D), Hkv = q.shape, k.shape[1]
    if D % 2:
        raise ValueError(f"a head must have two halves, and {D} is odd")
    q_out, k_out = q.new_empty(S, Hq, D), k.new_empty(S, Hkv, D)
    constants = dict(HQ=Hq, HKV=Hkv, HALF=D // 2, BLOCK_Q=pad_up(Hq))
    constants |= dict(BLOCK_K=pad_up(Hkv), BLOCK_D=pad_up(D // 2), **meta(config))
    inputs, grid = (q, k, cos, sin, position), (tile_count(config, S=S),)
    _tokens[grid](*inputs, q_out, k_out, S, *strides(*inputs), **constants)
    return q_out, k_out


@baseline(rope)
def library(q, k, cos, sin, position):
    c, s = cos[position][:, None].float(), sin[position][:, None].float()
    return rotate(q.float(), c, s).to(q.dtype), rotate(k.float(), c, s).to(k.dtype)
