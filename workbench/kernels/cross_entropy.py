"""Cross entropy of each row of logits with one target: loss = lse - logits[target], where
lse = log(sum(exp(logits))), in fp32 whatever the dtype of the logits. Both are returned: the
gradient is cheap to get from lse. A target outside 0..V-1 (-100, say) is ignored: its loss is 0.

Read once and never written, logits of 16 bits cost 2 bytes an element for some 5 FLOP and one
exponential, so it is memory-bound on every GPU in `devices/`; but only with one exponential.
A running maximum in each lane would need two, and the 16 special-function lanes of an H200's core
then take longer (0.28 ms at 4096 x 128256) than its memory (0.24 ms).

NaN in a row makes its lse NaN, +inf makes it +inf, and -inf adds nothing to it; other rows do not
see them.
"""

from dataclasses import dataclass, replace

import torch

from workbench.dsl import FLA, baseline, meta, strides, tl, triton
from workbench.spec import AUTO, Spec, Tensor, Tolerance, Work, among, threads, tile, value_or


def reference(logits, target):
    V = logits.shape[1]
    lse = torch.logsumexp(logits, dim=-1)
    ignored = (target < 0) | (target >= V)
    picked = logits.gather(1, target.masked_fill(ignored, 0)[:, None])[:, 0]
    return torch.where(ignored, 0.0, lse - picked), lse


def ids(shape, dtype, device, generator):
    """Token ids as Zipf's law has them: spread evenly over the logarithm, up to 2^17 = 131072; one
    in eight is -100, which asks to be ignored."""
    even = torch.rand(shape, generator=generator, device=device, dtype=torch.float64)
    token = torch.exp2(17 * (even * 8 % 1)).to(dtype) - 1
    return torch.where(even < 0.125, -100, token)


cross_entropy = Spec(
    name="cross_entropy",
    inputs={"logits": Tensor("M V"), "target": Tensor("M", dtype="int64", make=ids)},
    outputs={"loss": Tensor("M", dtype="fp32"), "lse": Tensor("M", dtype="fp32")},
    reference=reference,
    flops=lambda M, V: 5 * M * V,
    nonfinite=("logits",),
    check=[{"M": 1, "V": 1}, {"M": 9, "V": 127}, {"M": 5, "V": 1781}, {"M": 2, "V": 8192}],
    bench=[{"M": 4096, "V": 128_256}, {"M": 16, "V": 128_256}, {"M": 8192, "V": 32_000}],
    # Outputs are fp32. x * log2(e) is rounded before the exponential, but far from the maximum it
    # weighs nothing: what is left is the rounding of sums and of lse - x, where both may be large
    # beside their difference.
    tolerance={d: Tolerance(relative=1e-5, rms_share=1e-5) for d in ("fp32", "fp16", "bf16")},
)


@triton.jit
def _base(top):
    """What to subtract before the exponential: never infinite, inf - inf would be NaN."""
    return tl.where((top == float("inf")) | (top == -float("inf")), 0.0, top)


@triton.jit
def _walked(x_ptr, low, high, stride, BLOCK_V: tl.constexpr):
    """The maximum of elements low..high and, in each lane, its sum of exp(x - base(maximum))."""
    lane = tl.arange(0, BLOCK_V).to(tl.int64)  # a row may be as long as offsets allow
    top = -float("inf")
    total = tl.zeros((BLOCK_V,), tl.float32)
    v = low + lane
    loaded = tl.load(x_ptr + v * stride, v < high, other=-float("inf"))
    for _ in range(low, high, BLOCK_V):
        x = loaded.to(tl.float32)
        v += BLOCK_V  # the next block is on its way while this one is summed
        loaded = tl.load(x_ptr + v * stride, v < high, other=-float("inf"))
        higher = tl.maximum(top, tl.max(x, axis=0))
        base = _base(higher)
        # bases only grow, except to the 0 that stands for an infinite one
        total = total * tl.exp(tl.minimum(_base(top) - base, 0.0)) + tl.exp(x - base)
        top = higher
    return top, total


@triton.jit
def _finish(x_ptr, target_ptr, loss_ptr, lse_ptr, m, V, lse, stride_v, stride_t):
    target = tl.load(target_ptr + m * stride_t)
    valid = (target >= 0) & (target < V)
    x = tl.load(x_ptr + target * stride_v, valid, other=0.0).to(tl.float32)
    tl.store(loss_ptr + m, tl.where(valid, lse - x, 0.0))
    tl.store(lse_ptr + m, lse)


@triton.jit
def _looped(
    x_ptr, target_ptr, loss_ptr, lse_ptr, V, stride_m, stride_v, stride_t, BLOCK_V: tl.constexpr
):
    m = tl.program_id(0).to(tl.int64)
    row = x_ptr + m * stride_m
    top, total = _walked(row, 0, V, stride_v, BLOCK_V)
    lse = _base(top) + tl.log(tl.sum(total, axis=0))
    _finish(row, target_ptr, loss_ptr, lse_ptr, m, V, lse, stride_v, stride_t)


@triton.jit
def _parts(
    x_ptr, top_ptr, total_ptr, V, stride_m, stride_v,
    SPLITS: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    m, split = (pid // SPLITS).to(tl.int64), pid % SPLITS
    each = tl.cdiv(tl.cdiv(V, BLOCK_V), SPLITS) * BLOCK_V
    low = split * each
    high = tl.minimum(low + each, V)
    top, total = _walked(x_ptr + m * stride_m, low, high, stride_v, BLOCK_V)
    tl.store(top_ptr + pid, top)
    tl.store(total_ptr + pid, tl.sum(total, axis=0))


@triton.jit
def _joined(
    x_ptr, target_ptr, loss_ptr, lse_ptr, top_ptr, total_ptr, V, stride_m, stride_v, stride_t,
    SPLITS: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0).to(tl.int64)
    part = m * SPLITS + tl.arange(0, SPLITS)
    tops, totals = tl.load(top_ptr + part), tl.load(total_ptr + part)
    base = _base(tl.max(tops, axis=0))
    # a part's base may exceed the common one only where that stands for an infinite maximum
    weight = tl.exp(tl.minimum(_base(tops) - base, 0.0))
    weight = tl.where(tops == -float("inf"), 0.0, weight)
    lse = base + tl.log(tl.sum(totals * weight, axis=0))
    _finish(x_ptr + m * stride_m, target_ptr, loss_ptr, lse_ptr, m, V, lse, stride_v, stride_t)


@dataclass(frozen=True)
class Looped:
    """AUTO: short blocks of short rows, see `size_looped`."""

    block_v: int = tile(1024, 16_384, default=AUTO)
    num_warps: int = threads(2, 16, default=AUTO)


def size_looped(config, limits, *, itemsize, M, V):
    """Return the config with what is AUTO chosen by the sizes.

    On an H100 534 rows of 440 take 2.4 us with blocks of 1024 and 4.6 with blocks of 4096; 15,635
    rows of 3072 take 1.55 times as long with 4096 and 4 warps as with 1024 and 2.
    """
    short = V <= 4096
    block_v = value_or(config.block_v, 1024 if short else 4096)
    suited = 2 if short and 8 * limits.cores < M else 4
    return replace(config, block_v=block_v, num_warps=value_or(config.num_warps, suited))


@dataclass(frozen=True)
class SplitRow:
    block_v: int = tile(512, 8192, default=4096)
    splits: int = among(4, 8, 16, default=16)
    num_warps: int = threads(2, 8, default=4)


def refuse_blocks(config, limits, *, itemsize, M, V):
    threads_ = config.num_warps * limits.warp_size
    if config.block_v // threads_ > 64:
        return f"each thread would hold {config.block_v // threads_} elements; 64 is the most"
    return None


def looped_work(config, limits, *, itemsize, M, V):
    steps = -(-V // config.block_v)
    return Work(tiles=M, steps=steps, load_bytes=config.block_v * itemsize, store_bytes=8)


def split_work(config, limits, *, itemsize, M, V):
    steps, moved = -(-V // (config.block_v * config.splits)), config.block_v * itemsize
    return Work(tiles=M * config.splits, steps=steps, load_bytes=moved, store_bytes=8)


def outputs(logits):
    M = logits.shape[0]
    return logits.new_empty(M, dtype=torch.float32), logits.new_empty(M, dtype=torch.float32)


@cross_entropy.impl(Looped, resolve=size_looped, refuse=refuse_blocks, work=looped_work)
def looped(logits, target, *, config):
    """One program per row, with one running maximum for all lanes: one exponential an element."""
    (M, V), (loss, lse) = logits.shape, outputs(logits)
    _looped[(M,)](logits, target, loss, lse, V, *logits.stride(), target.stride(0), **meta(config))
    return loss, lse


@cross_entropy.impl(SplitRow, refuse=refuse_blocks, work=split_work)
def split_row(logits, target, *, config):
    """`splits` programs a row and a second launch that joins them: few rows use all cores."""
    (M, V), (loss, lse) = logits.shape, outputs(logits)
    splits = min(config.splits, triton.next_power_of_2(triton.cdiv(V, config.block_v)))
    top, total = (logits.new_empty(M * splits, dtype=torch.float32) for _ in range(2))
    _parts[(M * splits,)](logits, top, total, V, *logits.stride(), SPLITS=splits, **meta(config))
    outs, at = (loss, lse, top, total, V), strides(logits, target)
    _joined[(M,)](logits, target, *outs, *at, SPLITS=splits, num_warps=1)
    return loss, lse


@baseline(cross_entropy)
def library(logits, target):
    wide = logits.float()
    valid = (target >= 0) & (target < logits.shape[1])
    kept = torch.where(valid, target, -100)
    loss = torch.nn.functional.cross_entropy(wide, kept, reduction="none")
    return loss, torch.logsumexp(wide, dim=-1)


def refuse_fla(*, M, **at):
    return "with few rows, dropping targets beyond V would count" if M < 1024 else None


def fla(logits, target):
    """Two small launches ahead of it drop targets beyond V; negative ones must be -100."""
    forward = FLA("modules.fused_cross_entropy.ops:cross_entropy_fwd")
    loss, _, lse, *_ = forward(logits, torch.where(target < logits.shape[1], target, -100))
    return loss, lse


cross_entropy.library("fla", fla, refuse=FLA.refuse(refuse_fla))
