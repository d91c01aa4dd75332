"""Token shift of RWKV: y[i, t] = x[t] + (x[t - 1] - x[t]) * mix[i], one mix for each projection.

Before its first token a sequence has `last`, the last token of what came before it. RWKV-7 mixes
X = 6 ways ahead of its attention (r, w, k, v, a, g) and one way ahead of its feed-forward part.
3 FLOP for each element written: memory-bound everywhere, and the X writes are most of the bytes,
so x is read once for all of them.

NaN and infinities reach their own token and the next one, in all mixtures.
"""

from dataclasses import dataclass

import torch

from workbench.dsl import baseline, meta, strides, tile_count, tl, triton
from workbench.spec import Spec, Tensor, Work, threads, tile


def reference(x, last, mix):
    before = x.roll(1, dims=1)
    before[:, 0] = last
    return x + (before - x) * mix[:, None, None]


def fractions(shape, dtype, device, generator):
    return torch.rand(shape, generator=generator, device=device).to(dtype)


token_shift = Spec(
    name="token_shift",
    inputs={"x": Tensor("B T D"), "last": Tensor("B D"), "mix": Tensor("X D", make=fractions)},
    outputs={"y": Tensor("X B T D")},
    reference=reference,
    flops=lambda B, T, D, X: 3 * B * T * D * X,
    nonfinite=("x",),
    check=[
        {"B": 1, "T": 1, "D": 1, "X": 1},
        {"B": 3, "T": 5, "D": 130, "X": 1},
        {"B": 2, "T": 9, "D": 72, "X": 6},
    ],
    bench=[
        {"B": 8, "T": 4096, "D": 2560, "X": 6},
        {"B": 8, "T": 4096, "D": 2560, "X": 1},
        {"B": 64, "T": 1, "D": 2560, "X": 6},
    ],
)


@triton.jit
def _tiles(
    x_ptr, last_ptr, mix_ptr, y_ptr, B, T, D, X,
    stride_xb, stride_xt, stride_xd, stride_lb, stride_ld, stride_mx, stride_md,
    BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(D, BLOCK_D)
    token = (tl.program_id(0) // blocks).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    b, t = (token // T)[:, None], (token % T)[:, None]
    d = (tl.program_id(0) % blocks) * BLOCK_D + tl.arange(0, BLOCK_D)[None, :]
    far = d.to(tl.int64)
    mask = (token < B * tl.cast(T, tl.int64))[:, None] & (d < D)
    x_ptrs = x_ptr + b * stride_xb + t * stride_xt + far * stride_xd
    x = tl.load(x_ptrs, mask, other=0.0).to(tl.float32)
    # Two loads, of which every row makes one: the neighbour's is in the cache already.
    before = tl.load(x_ptrs - stride_xt, mask & (t > 0), other=0.0).to(tl.float32)
    first = tl.load(last_ptr + b * stride_lb + far * stride_ld, mask & (t == 0), other=0.0)
    step = tl.where(t == 0, first.to(tl.float32), before) - x
    y_ptrs = y_ptr + token[:, None] * D + d
    size = B * tl.cast(T, tl.int64) * D
    for i in range(X):
        mix = tl.load(mix_ptr + tl.full((), i, tl.int64) * stride_mx + far * stride_md, d < D)
        y = x + step * mix.to(tl.float32)
        tl.store(y_ptrs, y.to(y_ptr.dtype.element_ty), mask)
        y_ptrs += size


@dataclass(frozen=True)
class Tiles:
    block_t: int = tile(1, 16, default=4)
    block_d: int = tile(128, 2048, default=512)
    num_warps: int = threads(1, 8, default=4)


def refuse_tiles(config, limits, *, itemsize, B, T, D, X):
    held = config.block_t * config.block_d // (config.num_warps * limits.warp_size)
    if held > 64:
        return f"each thread would hold {held} elements in registers; 64 is the most"
    if held < 4:
        return f"{config.num_warps} warps leave each thread {held} elements, less than one load"
    return None


def work(config, limits, *, itemsize, B, T, D, X):
    moved = config.block_t * config.block_d * itemsize
    return Work(
        tiles=-(-B * T // config.block_t) * -(-D // config.block_d),
        steps=1,
        load_bytes=2 * moved + X * config.block_d * itemsize,
        store_bytes=X * moved,
    )


@token_shift.impl(Tiles, refuse=refuse_tiles, work=work)
def tiles(x, last, mix, *, config):
    """One tile of tokens and channels, written once for each mixture: x is read once."""
    (B, T, D), (X, _) = x.shape, mix.shape
    y = x.new_empty(X, B, T, D)
    grid = (tile_count(config, T=B * T, D=D),)
    _tiles[grid](x, last, mix, y, B, T, D, X, *strides(x, last, mix), **meta(config))
    return y


@baseline(token_shift)
def library(x, last, mix):
    before = torch.cat([last[:, None], x[:, :-1]], dim=1)
    return torch.addcmul(x, before - x, mix[:, None, None])
