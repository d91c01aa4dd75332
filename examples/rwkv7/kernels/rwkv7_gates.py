"""What RWKV-7 makes of its projections before the recurrence, element by element and head by head.

    w  = -exp(-1/2) sigmoid(w0 + decay)         the logarithm of the decay
    a  = sigmoid(a0 + rate)
    v  = v + (first - v) sigmoid(v0 + value)    first: the values of the first layer
    kk = normalise(k * k_k)                     to length 1 in each head
    k  = k * (1 + (a - 1) * k_a)

`vectors` are w0, a0, v0, k_k and k_a. About 30 FLOP for eleven elements moved: memory-bound
everywhere, so all five results come from one pass over the six inputs.
"""

import math
from dataclasses import dataclass

import torch

from workbench.dsl import tl, triton
from workbench.spec import Extent, Spec, Tensor, Tolerance, Work, threads, tile

RATE = -math.exp(-0.5)
TINY = 1e-12  # least length to divide by, as torch's normalize has it


def reference(decay, rate, value, k, v, first, vectors):
    w0, a0, v0, k_k, k_a = vectors
    w, a = RATE * torch.sigmoid(w0 + decay), torch.sigmoid(a0 + rate)
    v = v + (first - v) * torch.sigmoid(v0 + value)
    kk = torch.nn.functional.normalize(k * k_k, dim=-1, eps=TINY)
    return w, k * (1 + (a - 1) * k_a), v, kk, a


rwkv7_gates = Spec(
    name="rwkv7_gates",
    inputs={
        "decay": Tensor("M H N"),
        "rate": Tensor("M H N"),
        "value": Tensor("M H N"),
        "k": Tensor("M H N"),
        "v": Tensor("M H N"),
        "first": Tensor("M H N"),
        "vectors": Tensor("5 H N"),
    },
    outputs={
        "w": Tensor("M H N"),
        "kept": Tensor("M H N"),
        "mixed": Tensor("M H N"),
        "kk": Tensor("M H N"),
        "a": Tensor("M H N"),
    },
    reference=reference,
    flops=lambda M, H, N: 30 * M * H * N,
    check=[{"M": 1, "H": 1, "N": 64}, {"M": 7, "H": 5, "N": 64}, {"M": 3, "H": 3, "N": 32}],
    bench=[{"M": 1024, "H": 40, "N": 64}, {"M": 64, "H": 40, "N": 64}],
    # sums and differences may cancel: what rounding leaves is in proportion to their parts
    tolerance={
        "fp32": Tolerance(relative=1e-5, rms_share=1e-5),
        "fp16": Tolerance(relative=1e-3, rms_share=1e-5),
        "bf16": Tolerance(relative=8e-3, rms_share=1e-5),
    },
    extents={"N": Extent(choices=(32, 64, 128))},
)


@triton.jit
def _heads(
    decay_ptr, rate_ptr, value_ptr, k_ptr, v_ptr, first_ptr, vectors_ptr,
    w_ptr, kept_ptr, mixed_ptr, kk_ptr, a_ptr, M, H,
    stride_dm, stride_dh, stride_dn, stride_rm, stride_rh, stride_rn,
    stride_um, stride_uh, stride_un, stride_km, stride_kh, stride_kn,
    stride_vm, stride_vh, stride_vn, stride_fm, stride_fh, stride_fn,
    stride_w, stride_wh, stride_wn,
    RATE: tl.constexpr, TINY: tl.constexpr, N: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0).to(tl.int64) * BLOCK_H + tl.arange(0, BLOCK_H)[:, None]
    m, h = head // H, head % H
    n = tl.arange(0, N)[None, :].to(tl.int64)
    mask = head < tl.cast(M, tl.int64) * H
    decay = tl.load(decay_ptr + m * stride_dm + h * stride_dh + n * stride_dn, mask, other=0.0)
    rate = tl.load(rate_ptr + m * stride_rm + h * stride_rh + n * stride_rn, mask, other=0.0)
    value = tl.load(value_ptr + m * stride_um + h * stride_uh + n * stride_un, mask, other=0.0)
    k = tl.load(k_ptr + m * stride_km + h * stride_kh + n * stride_kn, mask, other=0.0)
    v = tl.load(v_ptr + m * stride_vm + h * stride_vh + n * stride_vn, mask, other=0.0)
    first = tl.load(first_ptr + m * stride_fm + h * stride_fh + n * stride_fn, mask, other=0.0)
    vector, step = vectors_ptr + h * stride_wh + n * stride_wn, tl.full((), 1, tl.int64) * stride_w
    w0, a0 = tl.load(vector).to(tl.float32), tl.load(vector + step).to(tl.float32)
    v0, k_k = tl.load(vector + 2 * step).to(tl.float32), tl.load(vector + 3 * step).to(tl.float32)
    k_a = tl.load(vector + 4 * step).to(tl.float32)
    k, v = k.to(tl.float32), v.to(tl.float32)
    w = RATE * tl.sigmoid(w0 + decay.to(tl.float32))
    a = tl.sigmoid(a0 + rate.to(tl.float32))
    mixed = v + (first.to(tl.float32) - v) * tl.sigmoid(v0 + value.to(tl.float32))
    kk = k * k_k
    length = tl.sqrt(tl.sum(kk * kk, axis=1, keep_dims=True))
    kk = kk / tl.where(length < TINY, TINY, length)  # a maximum would lose NaN
    kept = k * (1.0 + (a - 1.0) * k_a)
    out = head * N + n
    tl.store(w_ptr + out, w.to(w_ptr.dtype.element_ty), mask)
    tl.store(kept_ptr + out, kept.to(kept_ptr.dtype.element_ty), mask)
    tl.store(mixed_ptr + out, mixed.to(mixed_ptr.dtype.element_ty), mask)
    tl.store(kk_ptr + out, kk.to(kk_ptr.dtype.element_ty), mask)
    tl.store(a_ptr + out, a.to(a_ptr.dtype.element_ty), mask)


@dataclass(frozen=True)
class Heads:
    block_h: int = tile(4, 64, default=16)
    num_warps: int = threads(1, 8, default=4)


def refuse_heads(config, limits, *, itemsize, M, H, N):
    held = config.block_h * N // (config.num_warps * limits.warp_size)
    if held > 16:
        return f"each thread would hold {held} elements of each of eleven tensors; 16 is the most"
    if held < 4:
        return f"{config.num_warps} warps leave each thread {held} elements, less than one load"
    return None


def work(config, limits, *, itemsize, M, H, N):
    moved = config.block_h * N * itemsize
    return Work(
        tiles=-(-M * H // config.block_h), steps=1, load_bytes=6 * moved, store_bytes=5 * moved
    )


@rwkv7_gates.impl(Heads, refuse=refuse_heads, work=work)
def heads(decay, rate, value, k, v, first, vectors, *, config):
    """`block_h` heads in registers: each input is read once."""
    M, H, N = k.shape
    w, kept, mixed, kk, a = (k.new_empty(M, H, N) for _ in range(5))
    _heads[(triton.cdiv(M * H, config.block_h),)](
        decay,
        rate,
        value,
        k,
        v,
        first,
        vectors,
        w,
        kept,
        mixed,
        kk,
        a,
        M,
        H,
        *decay.stride(),
        *rate.stride(),
        *value.stride(),
        *k.stride(),
        *v.stride(),
        *first.stride(),
        *vectors.stride(),
        RATE=RATE,
        TINY=TINY,
        N=N,
        BLOCK_H=config.block_h,
        num_warps=config.num_warps,
    )
    return w, kept, mixed, kk, a
