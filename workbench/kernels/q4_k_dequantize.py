"""Weights out of GGUF's Q4_K blocks: y[n] = gain[n] * weights of row n.

A block is 144 bytes for 256 weights: two fp16 numbers d and dmin, eight pairs of 6-bit numbers
(scale, minimum) in 12 bytes, and 256 nibbles q; a weight of sub-block j (of 32) is
d * scale_j * q - dmin * minimum_j. Both products are exact in fp32, so with a gain of 1, which
also says what dtype the weights get, y is the exact weight rounded once, fused or not.

It writes 3.6 times as many bytes (fp16) as it reads and does 2 FLOP a weight: memory-bound.

A d or dmin that is infinite or NaN reaches the weights of its block, and a gain those of its row.
"""

from dataclasses import dataclass

import torch

from workbench.dsl import baseline, meta, tl, triton
from workbench.spec import Extent, Spec, Tensor, Work, rms_bounds, threads, tile


def reference(w, gain):
    block = w.reshape(w.shape[0], -1, 144)
    d, dmin = (
        block[..., i : i + 2].contiguous().view(torch.float16).to(gain.dtype) for i in (0, 2)
    )
    first, second, third = (block[..., i : i + 4].int() for i in (4, 8, 12))
    scale = torch.cat([first & 63, third & 15 | first >> 6 << 4], -1)
    minimum = torch.cat([second & 63, third >> 4 | second >> 6 << 4], -1)
    pairs = block[..., 16:].int().unflatten(-1, (4, 1, 32))
    q = torch.cat([pairs & 15, pairs >> 4], -2).flatten(-3, -2)  # [N, K/256, 8, 32]
    weight = (d * scale)[..., None] * q - (dmin * minimum)[..., None]
    return gain[:, None] * weight.flatten(1)


def random_blocks(shape, dtype, device, generator):
    """Blocks of random bytes; d and dmin are such that weights scatter about 0 by about 1/8."""
    N, columns = shape
    w = torch.randint(0, 256, (N, columns // 144, 144), generator=generator, device=device)
    w = w.to(dtype)
    size = torch.rand(N, columns // 144, 2, generator=generator, device=device) + 0.5
    size *= torch.tensor([2.0**-11, 2.0**-8], device=device)
    w[..., :4] = size.half().view(torch.uint8)
    return w.reshape(shape)


q4_k_dequantize = Spec(
    name="q4_k_dequantize",
    inputs={"w": Tensor("N K/256*144", dtype="uint8", make=random_blocks), "gain": Tensor("N")},
    outputs={"y": Tensor("N K")},
    reference=reference,
    flops=lambda N, K: 3 * N * K,
    check=[{"N": 1, "K": 256}, {"N": 3, "K": 768}, {"N": 17, "K": 1280}],
    bench=[{"N": 14336, "K": 4096}, {"N": 2560, "K": 2560}],
    # a difference of two products, each exact, is rounded in proportion to their size
    tolerance=rms_bounds(fp32=1e-6, fp16=1e-6, bf16=1e-6),
    extents={"K": Extent(multiple=256)},
)


@triton.jit
def _scale(block, stride_wk, j, there):
    """Step and minimum of sub-block j of each block, in units of its d and dmin."""
    at = block + (4 + j % 4) * stride_wk
    a = tl.load(at, there, other=0).to(tl.int32)
    b = tl.load(at + 4 * stride_wk, there, other=0).to(tl.int32)
    c = tl.load(at + 8 * stride_wk, there, other=0).to(tl.int32)
    scale = tl.where(j < 4, a & 63, (c & 15) | ((a >> 6) << 4))
    minimum = tl.where(j < 4, b & 63, (c >> 4) | ((b >> 6) << 4))
    return scale.to(tl.float32), minimum.to(tl.float32)


@triton.jit
def _half(at, stride_wk, there):
    low = tl.load(at, there, other=0).to(tl.int16)
    high = tl.load(at + stride_wk, there, other=0).to(tl.int16)
    return (low | (high << 8)).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def _chunks(
    w_ptr, gain_ptr, y_ptr, N, K, stride_wn, stride_wk, stride_g,
    BLOCK_N: tl.constexpr, BLOCK_B: tl.constexpr,
):  # fmt: skip
    n = (tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    c = tl.arange(0, BLOCK_B * 8)  # chunks of 16 bytes: 16 low and 16 high nibbles
    b, g = tl.program_id(1).to(tl.int64) * BLOCK_B + c // 8, c // 2 % 4
    i = tl.arange(0, 16)
    there = (n < N)[:, None] & (b * 256 < K)[None, :]
    block = w_ptr + (n * stride_wn)[:, None] + (b * 144 * stride_wk)[None, :]
    byte = (16 + c % 8 * 16)[None, :, None] + i[None, None, :]
    pairs = tl.load(block[:, :, None] + byte.to(tl.int64) * stride_wk, there[:, :, None], other=0)
    d, dmin = _half(block, stride_wk, there), _half(block + 2 * stride_wk, stride_wk, there)
    gain = tl.load(gain_ptr + n * stride_g, n < N, other=0.0).to(tl.float32)[:, None, None]
    k = b * 256 + g * 64 + c % 2 * 16
    y_ptrs = y_ptr + (n * K)[:, None, None] + (k[:, None] + i[None, :])[None, :, :]
    for half in tl.static_range(2):
        scale, minimum = _scale(block, stride_wk, (2 * g + half)[None, :], there)
        q = ((pairs >> (4 * half)) & 15).to(tl.float32)
        y = gain * ((d * scale)[:, :, None] * q - (dmin * minimum)[:, :, None])
        tl.store(y_ptrs + 32 * half, y.to(y_ptr.dtype.element_ty), there[:, :, None])


@dataclass(frozen=True)
class Chunks:
    block_n: int = tile(1, 16, default=4)
    block_b: int = tile(1, 8, default=4)  # blocks of a row
    num_warps: int = threads(1, 8, default=4)


def refuse_chunks(config, limits, *, itemsize, N, K):
    threads_ = config.num_warps * limits.warp_size
    chunks = config.block_n * config.block_b * 8
    if chunks < threads_:
        return f"{threads_} threads are too many for {chunks} chunks of 16 bytes"
    if chunks > 4 * threads_:
        return f"each thread would hold {chunks // threads_} chunks of 16 bytes; 4 is the most"
    return limits.refuse_grid(-(-K // (256 * config.block_b)))


def chunks_work(config, limits, *, itemsize, N, K):
    blocks = config.block_n * config.block_b
    return Work(
        tiles=-(-N // config.block_n) * -(-K // (256 * config.block_b)),
        steps=1,
        load_bytes=blocks * 144,
        store_bytes=blocks * 256 * itemsize,
    )


WAVE64 = Chunks(block_n=8, block_b=4, num_warps=4)


@q4_k_dequantize.impl(
    Chunks, refuse=refuse_chunks, work=chunks_work, defaults={"gfx90a gfx942": WAVE64}
)
def chunks(w, gain, *, config):
    """16 bytes of nibbles a thread, written as two runs of 16 weights."""
    N, K = w.shape[0], w.shape[1] // 144 * 256
    y = gain.new_empty(N, K)
    grid = triton.cdiv(N, config.block_n), triton.cdiv(K, 256 * config.block_b)
    _chunks[grid](w, gain, y, N, K, *w.stride(), gain.stride(0), **meta(config))
    return y


@baseline(q4_k_dequantize)
def library(w, gain):
    """Sub-block by sub-block, as ggml's loop has it."""
    block = w.unflatten(1, (-1, 144))
    d, dmin = block[..., :4].contiguous().view(torch.float16).float().split(1, -1)
    code, pairs = block[..., 4:16], block[..., 16:].unflatten(-1, (4, 32))
    parts = []
    for j in range(8):
        if j < 4:
            scale, minimum = code[..., j] & 63, code[..., j + 4] & 63
        else:
            scale = (code[..., j + 4] & 15) + (code[..., j - 4] // 64) * 16
            minimum = code[..., j + 4] // 16 + (code[..., j] // 64) * 16
        q = pairs[..., j // 2, :] // 16 if j % 2 else pairs[..., j // 2, :] & 15
        parts.append(d * scale[..., None] * q - dmin * minimum[..., None])
    return (gain.float()[:, None] * torch.stack(parts, 2).flatten(1)).to(gain.dtype)
