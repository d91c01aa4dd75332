"""The arithmetic of `wkv7` without its memory traffic: `sequential` on one token that stays in
registers.

The token of each head is loaded before the loop. In it all its numbers, r, w, k, v, kk and a, are
multiplied by 1 - (t % 16) / 64, one product in the place of each conversion to fp32, so that no
work can be taken out of the loop. y is computed for each token and stored for the last one alone:
inside the loop its store has a mask that allows no row when it is launched, which the compiler does
not know.
"""

import torch

from workbench.dsl import meta, normal, strides, tl, triton
from workbench.kernels import wkv7 as whole
from workbench.spec import Extent, Spec, Tensor, Tolerance, Work


def reference(r, w, k, v, kk, a, state, like):
    part = 1 - (torch.arange(like.shape[0], device=r.device) % 16).to(r.dtype) / 64
    tokens = (x[:, None] * part[None, :, None, None] for x in (r, w, k, v, kk, a))
    y, last = whole.reference(*tokens, state.to(r.dtype))
    return y[:, -1], last.to(state.dtype)


wkv7_arithmetic = Spec(
    name="wkv7_arithmetic",
    inputs={
        "r": Tensor("B H N", make=normal),
        "w": Tensor("B H N", make=whole.log_decays),
        "k": Tensor("B H N", make=normal),
        "v": Tensor("B H N", make=normal),
        "kk": Tensor("B H N", make=whole.unit_vectors),
        "a": Tensor("B H N", make=whole.rates),
        "state": Tensor("B H N N", dtype="fp32", make=normal),
        "like": Tensor("T"),  # its length alone counts
    },
    outputs={"y": Tensor("B H N"), "last": Tensor("B H N N", dtype="fp32")},
    reference=reference,
    flops=lambda B, T, H, N: 10 * B * T * H * N * N,
    check=[{"B": 1, "T": 1, "H": 1, "N": 64}, {"B": 2, "T": 19, "H": 1, "N": 64}],
    bench=whole.wkv7.bench,
    # sums of 64 products in fp32, of a state that forgets within some tens of tokens
    tolerance={
        "fp32": Tolerance(relative=1e-4, of_rms=1e-4),
        "fp16": Tolerance(relative=1e-3, of_rms=1e-4),
        "bf16": Tolerance(relative=8e-3, of_rms=1e-4),
    },
    extents={"N": Extent(among=(64,))},
)


@triton.jit
def _sequential(
    r_ptr, w_ptr, k_ptr, v_ptr, kk_ptr, a_ptr, state_ptr, y_ptr, last_ptr, T, H, stored,
    stride_rb, stride_rh, stride_rn, stride_wb, stride_wh, stride_wn,
    stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_cb, stride_ch, stride_cn, stride_ab, stride_ah, stride_an,
    stride_sb, stride_sh, stride_sv, stride_sk, N: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    head = (tl.program_id(0) // (N // BLOCK_V)).to(tl.int64)
    b, h = head // H, head % H
    n = tl.arange(0, N).to(tl.int64)
    rows = (tl.program_id(0) % (N // BLOCK_V) * BLOCK_V + tl.arange(0, BLOCK_V)).to(tl.int64)
    S = tl.load(
        state_ptr + b * stride_sb + h * stride_sh + rows[:, None] * stride_sv + n * stride_sk
    )
    r0 = tl.load(r_ptr + b * stride_rb + h * stride_rh + n * stride_rn).to(tl.float32)
    w0 = tl.load(w_ptr + b * stride_wb + h * stride_wh + n * stride_wn).to(tl.float32)
    k0 = tl.load(k_ptr + b * stride_kb + h * stride_kh + n * stride_kn).to(tl.float32)
    v0 = tl.load(v_ptr + b * stride_vb + h * stride_vh + rows * stride_vn).to(tl.float32)
    kk0 = tl.load(kk_ptr + b * stride_cb + h * stride_ch + n * stride_cn).to(tl.float32)
    a0 = tl.load(a_ptr + b * stride_ab + h * stride_ah + n * stride_an).to(tl.float32)
    y_ptrs = y_ptr + head * N + rows
    y = tl.zeros((BLOCK_V,), tl.float32)
    for t in range(T):
        part = 1.0 - (tl.full((), t, tl.int32) % 16).to(tl.float32) * 0.015625
        r, w, k, v, kk, a = r0 * part, w0 * part, k0 * part, v0 * part, kk0 * part, a0 * part
        removed = tl.sum(S * kk[None, :], axis=1)
        S = S * tl.exp(w)[None, :]
        S -= removed[:, None] * (kk * a)[None, :]
        S += v[:, None] * k[None, :]
        y = tl.sum(S * r[None, :], axis=1)
        tl.store(y_ptrs, y.to(y_ptr.dtype.element_ty), rows < stored)
    tl.store(y_ptrs, y.to(y_ptr.dtype.element_ty))
    tl.store(last_ptr + head * N * N + rows[:, None] * N + n, S)


def sequential_work(config, limits, *, itemsize, B, T, H, N):
    state = config.block_v * N * 4
    return Work(
        tiles=B * H * N // config.block_v,
        steps=1,
        load_bytes=(5 * N + config.block_v) * itemsize + state,
        store_bytes=config.block_v * itemsize + state,
    )


@wkv7_arithmetic.impl(
    whole.Sequential,
    resolve=whole.size_stages,
    refuse=whole.sequential.refuse,
    work=sequential_work,
)
def sequential(r, w, k, v, kk, a, state, like, *, config):
    """As many tokens, one behind the other, as `wkv7.sequential` takes."""
    (B, H, N), T = r.shape, like.shape[0]
    y, last = r.new_empty(B, H, N), state.new_empty(B, H, N, N)
    inputs = r, w, k, v, kk, a, state
    _sequential[(B * H * (N // config.block_v),)](
        *inputs, y, last, T, H, 0, *strides(*inputs), N=N, **meta(config)
    )
    return y, last
