"""Weights into GGUF's Q4_K blocks: 4.5 bits a weight, in blocks of 256 along a row.

Sub-block j of 32 weights gets the step (high - low) / 15 and the minimum -low, where low is at
most 0 and high at least 0. The eight steps and minima are kept as 6-bit multiples of d and dmin,
which are fp16 numbers, the largest of them over 63. A weight becomes the multiple q of d * scale_j,
0 to 15, nearest to x + dmin * minimum_j. With steps and minima rounded to nearest, and d and dmin
by at most half a unit u in the last place of fp16, a weight that lies on

    |x - (d * scale_j * q - dmin * minimum_j)| <= step / 2 + 7.5 d + dmin / 2 + u (15 d + dmin) 63

It reads 3.6 times as many bytes (fp16) as it writes and does about 10 FLOP a weight: memory-bound.
Every operation is one that IEEE 754 rounds in one way only, products that a sum might be fused
with are exact, and so all devices give the same bytes.

What a block with NaN or an infinity becomes is not defined; other blocks do not see it.
"""

from dataclasses import dataclass

import torch

from workbench.dsl import compile_call, meta, tl, triton
from workbench.spec import Extent, Spec, Tensor, Work, threads, tile


def reference(x):
    """In fp32 whatever comes in: in fp64 a weight in the middle between two steps could fall to
    the other side."""
    N = x.shape[0]
    x = x.float().reshape(N, -1, 8, 32)
    drop, high = 0.0 - x.amin(-1).clamp(max=0.0), x.amax(-1).clamp(min=0.0)  # no -0.0
    fifteen, most = (x.new_full((), number) for number in (15.0, 63.0))
    step = (high + drop) / fifteen  # by a plain number torch on a GPU takes its reciprocal, rounded
    d, dmin = (e.amax(-1, keepdim=True) / most for e in (step, drop))
    d, dmin = d.half(), dmin.half()
    scale, minimum = _multiple(step, d.float(), 63), _multiple(drop, dmin.float(), 63)
    lifted = x + (dmin.float() * minimum)[..., None]
    q = _multiple(lifted, (d.float() * scale)[..., None], 15).to(torch.uint8)
    scale, minimum = scale.to(torch.uint8), minimum.to(torch.uint8)
    s, t, m, n = *scale.split(4, -1), *minimum.split(4, -1)
    packed = [s | t >> 4 << 6, m | n >> 4 << 6, t & 15 | n << 4]
    pairs = q.unflatten(-2, (4, 2))
    nibbles = (pairs[..., 0, :] | pairs[..., 1, :] << 4).flatten(-2)
    numbers = torch.cat([d, dmin], -1).view(torch.uint8)
    return torch.cat([numbers, *packed, nibbles], -1).flatten(1)


def _multiple(x, unit, most):
    nearest = torch.floor(x / torch.where(unit > 0, unit, 1.0) + 0.5).clamp(0, most)
    return torch.where(unit > 0, nearest, 0.0)


q4_k_quantize = Spec(
    name="q4_k_quantize",
    inputs={"x": Tensor("N K")},
    outputs={"w": Tensor("N K/256*144", dtype="uint8")},
    reference=reference,
    flops=lambda N, K: 10 * N * K,
    check=[{"N": 1, "K": 256}, {"N": 3, "K": 768}, {"N": 17, "K": 1280}],
    bench=[{"N": 14336, "K": 4096}, {"N": 2560, "K": 2560}],
    extents={"K": Extent(multiple=256)},
)


@triton.jit
def _nearest(x, unit, MOST: tl.constexpr):
    """The multiple of `unit` nearest to x, 0 to MOST; 0 where the unit is 0."""
    there = unit > 0
    x, unit = tl.broadcast(x, tl.where(there, unit, 1.0))
    q = tl.floor(tl.div_rn(x, unit) + 0.5)
    return tl.where(there, tl.minimum(tl.maximum(q, 0.0), MOST), 0.0)


@triton.jit
def _blocks(x_ptr, w_ptr, count, K, stride_xn, stride_xk, BLOCK_R: tl.constexpr):
    r = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    n, start = r // (K // 256), r % (K // 256) * 256
    k = start[:, None] + tl.arange(0, 256)[None, :]
    there = (r < count)[:, None]
    x_ptrs = x_ptr + (n * stride_xn)[:, None] + k * stride_xk
    x = tl.reshape(tl.load(x_ptrs, there, other=0.0), (BLOCK_R, 8, 32)).to(tl.float32)
    drop, high = 0.0 - tl.minimum(tl.min(x, axis=2), 0.0), tl.maximum(tl.max(x, axis=2), 0.0)
    fifteen, most = tl.full((BLOCK_R, 8), 15.0, tl.float32), tl.full((BLOCK_R,), 63.0, tl.float32)
    step = tl.div_rn(high + drop, fifteen)
    d = tl.div_rn(tl.max(step, axis=1), most).to(tl.float16)
    dmin = tl.div_rn(tl.max(drop, axis=1), most).to(tl.float16)
    d_, dmin_ = d.to(tl.float32)[:, None], dmin.to(tl.float32)[:, None]
    scale, minimum = _nearest(step, d_, 63), _nearest(drop, dmin_, 63)
    q = _nearest(x + (dmin_ * minimum)[:, :, None], (d_ * scale)[:, :, None], 15)
    q = tl.permute(tl.reshape(q.to(tl.uint8), (BLOCK_R, 4, 2, 32)), (0, 1, 3, 2))
    even, odd = tl.split(q)
    w_ptrs = w_ptr + (r * 144)[:, None]
    at = 16 + tl.arange(0, 128)[None, :]
    tl.store(w_ptrs + at, tl.reshape(even | (odd << 4), (BLOCK_R, 128)), there)
    scale, minimum = scale.to(tl.uint8), minimum.to(tl.uint8)
    s, t = tl.split(tl.permute(tl.reshape(scale, (BLOCK_R, 2, 4)), (0, 2, 1)))
    m, o = tl.split(tl.permute(tl.reshape(minimum, (BLOCK_R, 2, 4)), (0, 2, 1)))
    at = 4 + tl.arange(0, 4)[None, :]
    tl.store(w_ptrs + at, s | ((t >> 4) << 6), there)
    tl.store(w_ptrs + at + 4, m | ((o >> 4) << 6), there)
    tl.store(w_ptrs + at + 8, (t & 15) | (o << 4), there)
    bits = d.to(tl.uint16, bitcast=True).to(tl.int32)
    bits |= dmin.to(tl.uint16, bitcast=True).to(tl.int32) << 16
    at = tl.arange(0, 4)[None, :]
    tl.store(w_ptrs + at, (bits[:, None] >> (8 * at)).to(tl.uint8), there)


@dataclass(frozen=True)
class Blocks:
    block_r: int = tile(1, 32, default=8)
    num_warps: int = threads(1, 8, default=4)


def refuse_blocks(config, limits, *, itemsize, N, K):
    threads_ = config.num_warps * limits.warp_size
    held = config.block_r * 256 // threads_
    if held < 4:
        return f"{threads_} threads are too many for {config.block_r} blocks of 256 weights"
    return limits.refuse_held(held, 32, "weights in registers")


def blocks_work(config, limits, *, itemsize, N, K):
    return Work(
        tiles=-(-N * K // 256 // config.block_r),
        steps=1,
        load_bytes=config.block_r * 256 * itemsize,
        store_bytes=config.block_r * 144,
    )


@q4_k_quantize.impl(Blocks, refuse=refuse_blocks, work=blocks_work)
def blocks(x, *, config):
    """`block_r` blocks of 256 weights in registers: x is read once."""
    N, K = x.shape
    w = torch.empty(N, K // 256 * 144, dtype=torch.uint8, device=x.device)
    count = N * (K // 256)
    _blocks[(triton.cdiv(count, config.block_r),)](x, w, count, K, *x.stride(), **meta(config))
    return w


q4_k_quantize.library("torch", lambda x: reference(x))
q4_k_quantize.library("torch.compile", compile_call(reference))
