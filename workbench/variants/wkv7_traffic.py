"""The memory traffic of `wkv7` without its arithmetic: the loads and stores of `sequential`, with

    y[t, value] = sum over keys of state,
    last[value, key] = state + sum over t of v[t, value] + (r + w + k + kk + a)[t, key]

Grid, tiles and order are those of the whole kernel. An element of v costs one addition to each
element of its row of the state, where the kernel takes nine operations; one of the other inputs
costs a single addition.

`sequential` is examined and not `chunked`, which is faster on long sequences: its two launches pass
each other as much data as the inputs are, so that of neither the arithmetic can be had without
traffic, and what stays resident would depend on the chunk that a config chooses.
"""

from workbench.dsl import meta, strides, tl, triton
from workbench.kernels.wkv6 import refuse_sequential
from workbench.kernels.wkv7 import Sequential, sequential_work, size_stages, wkv7
from workbench.spec import Extent, Spec, Tensor, of_rms


def reference(r, w, k, v, kk, a, state):
    keys, values = (r + w + k + kk + a).sum(1).to(state.dtype), v.sum(1).to(state.dtype)
    y = state.sum(-1).to(v.dtype)[:, None].expand(v.shape).clone()
    return y, state + keys[:, :, None, :] + values[:, :, :, None]


wkv7_traffic = Spec(
    name="wkv7_traffic",
    inputs=wkv7.inputs,
    outputs={"y": Tensor("B T H N"), "last": Tensor("B H N N", dtype="fp32")},
    reference=reference,
    flops=lambda B, T, H, N: 0,  # what the sums take is not work of the kernel that this belongs to
    check=[{"B": 1, "T": 1, "H": 1, "N": 64}, {"B": 2, "T": 19, "H": 1, "N": 64}],
    bench=wkv7.bench,
    # sums of 5 T numbers in fp32, beside which single results may be small
    tolerance=of_rms(fp32=2e-5, fp16=2e-5, bf16=2e-5),
    extents={"N": Extent(among=(64,))},
)


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
    # Zeros, but so the loads lie where the state does: as many as in the kernel, and as wide.
    nothing = (S.to(tl.int32, bitcast=True) & 1) >> 1
    total = tl.max(nothing, axis=0).to(tl.float32)
    y = tl.sum(S, axis=1).to(y_ptr.dtype.element_ty)
    for t in tl.range(T, num_stages=STAGES):
        at = tl.full((), t, tl.int64)
        r, w = tl.load(r_ptrs + at * stride_rt), tl.load(w_ptrs + at * stride_wt)
        k, v = tl.load(k_ptrs + at * stride_kt), tl.load(v_ptrs + at * stride_vt)
        kk, a = tl.load(kk_ptrs + at * stride_ct), tl.load(a_ptrs + at * stride_at)
        total += r.to(tl.float32) + w.to(tl.float32)
        total += k.to(tl.float32) + kk.to(tl.float32)
        total += a.to(tl.float32)
        S += v.to(tl.float32)[:, None]
        tl.store(y_ptrs + at * H * N, y)
    tl.store(last_ptr + head * N * N + rows[:, None] * N + n, S + total[None, :])


@wkv7_traffic.impl(Sequential, resolve=size_stages, refuse=refuse_sequential, work=sequential_work)
def sequential(r, w, k, v, kk, a, state, *, config):
    """Token by token, as `wkv7.sequential` reads and writes."""
    B, T, H, N = r.shape
    y, last = r.new_empty(B, T, H, N), state.new_empty(B, H, N, N)
    inputs = r, w, k, v, kk, a, state
    _sequential[(B * H * (N // config.block_v),)](
        *inputs, y, last, T, H, *strides(*inputs), N=N, STAGES=config.num_stages, **meta(config)
    )
    return y, last
