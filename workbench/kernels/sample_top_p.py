"""One token for each row of logits: temperature, then only top-p, then one draw.

The fewest tokens of a row, from the largest logit on (of equal ones the lower index is the larger),
whose share of all probability reaches p stay; one of these is drawn with its softmax probability at
that temperature. p from 1 on keeps all; a temperature of 0 means the largest logit. A row without a
distribution (NaN, +inf, or nothing but -inf) gives -1.

Exact and independent of how a row is split: a logit's mass is the whole number
round(2^30 * exp((x - max) / temperature)), so that sums are the same in any order, and the draw
is the first kept token, by index, whose running mass exceeds u * (kept mass), with u the upper 31
bits of Philox4x32-10 at counter 0 under the row's seed. A row's token is a function of that row and
its seed only. Reference and kernel differ only where the masses' rounding (1e-6 of one) decides:
about once in a million rows. Tokens below 2^-31 of the largest's probability are never drawn.

The threshold needs all masses and these need the maximum, so a row is read three times, of which
two find it in the cache (16 MB for 64 rows of 128256 in 16 bits). A few rows are bound by the
latency of four launches, many by instructions: about a hundred for each logit, most of them to
count.
"""

from dataclasses import dataclass

import torch

from workbench.dsl import INTERPRETED, baseline, launch_pdl, tl, triton
from workbench.kernels import sample_topk_topp as topk
from workbench.spec import Spec, Tensor, Work, among, threads, tile


def reference(logits, p, temperature, seed):
    every = torch.zeros(len(logits), dtype=torch.int32, device=logits.device)  # no top-k
    return topk.reference(logits, every, p, temperature, seed)


sample_top_p = Spec(
    name="sample_top_p",
    inputs={
        "logits": Tensor("B V"),
        "p": Tensor("B", dtype="fp32", make=topk.cycle_kinds(0.9, 0.5, 1.0, 0.7, 0.0)),
        "temperature": Tensor("B", dtype="fp32", make=topk.cycle_kinds(1.0, 0.7, 1.5, 0.0)),
        "seed": Tensor("B", dtype="int64", make=topk.any_seed),
    },
    outputs={"token": Tensor("B", dtype="int64")},
    reference=reference,
    flops=lambda B, V: 4 * B * V,
    check=[
        {"B": 1, "V": 1},
        {"B": 3, "V": 127},
        {"B": 3, "V": 2781},  # two blocks
        {"B": 2, "V": 5000},
    ],
    bench=[
        {"B": 1, "V": 128_256},
        {"B": 8, "V": 128_256},
        {"B": 64, "V": 128_256},
        {"B": 256, "V": 128_256},
    ],
)


# Device code

# As in `sample_topk_topp`: keys in the order of logits, and parts of a mass
_key, _logit, _part = topk._key, topk._logit, topk._part
LOG2_E, FULL, NOWHERE, LEAST = topk.LOG2_E, topk.FULL, topk.NOWHERE, topk.LEAST


@triton.jit
def _mass(x, top, scale):
    return (tl.exp2((x - top) * scale) * 1073741824.0 + 0.5).to(tl.int32)


@triton.jit
def _maxima(
    x_ptr, best_ptr, count_ptr, V, blocks, stride_b, stride_v,
    BLOCK: tl.constexpr, BINS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The largest logit of each block, +inf where one is NaN; and counts of 0 for `_counted`."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    row, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    n = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride_b + n.to(tl.int64) * stride_v, n < V, other=-float("inf"))
    x = x.to(tl.float32)
    x = tl.where(x == x, x, float("inf"))
    tl.store(best_ptr + row * blocks + block, tl.max(x, axis=0))
    if block == 0:
        tl.store(count_ptr + row * BINS + tl.arange(0, BINS), tl.full((BINS,), 0, tl.int32))


@triton.jit
def _row(best_ptr, p_ptr, heat_ptr, row, V, blocks, stride_p, stride_heat, BLOCKS: tl.constexpr):
    """Maximum, octaves of probability for each unit of logit, and p as 31 bits, of a row."""
    s = tl.arange(0, BLOCKS)
    best = tl.load(best_ptr + row * blocks + s, s < blocks, other=-float("inf"))
    p, heat = tl.load(p_ptr + row * stride_p), tl.load(heat_ptr + row * stride_heat)
    share = (tl.minimum(tl.maximum(p, 0.0), 1.0) * 2147483648.0).to(tl.int64)
    share = tl.where(heat <= 0, 0, share)
    scale = LOG2_E / tl.maximum(tl.where(heat <= 0, 1.0, heat), 1e-30)
    return tl.max(best, axis=0), scale, share


@triton.jit
def _fine(share, V, BINS: tl.constexpr):
    """Bins an octave. The last begins where logits are so improbable that they cannot fill the rest
    of 1 - p together."""
    rest = tl.maximum(1.0 - share.to(tl.float32) / 2147483648.0, 2.0**-24)
    return BINS / tl.minimum(tl.log2(V / rest) + 1.0, 32.0)


@triton.jit
def _counted(
    x_ptr, best_ptr, count_ptr, p_ptr, heat_ptr, V, blocks, stride_b, stride_v, stride_p,
    stride_heat, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, BINS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """How many logits of a row lie in each of equal parts of an octave, from the maximum down."""
    row, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    n = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride_b + n.to(tl.int64) * stride_v, n < V, other=-float("inf"))
    if PDL:  # so far nothing that the launch before has written
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    top, scale, share = _row(
        best_ptr, p_ptr, heat_ptr, row, V, blocks, stride_p, stride_heat, BLOCKS
    )
    if (top > -float("inf")) & (top < float("inf")):
        fine = _fine(share, V, BINS)
        which = tl.minimum((top - x.to(tl.float32)) * (scale * fine), BINS - 1.0)
        hits = tl.histogram(which.to(tl.int32), BINS)
        tl.atomic_add(count_ptr + row * BINS + tl.arange(0, BINS), hits, hits > 0, sem="relaxed")


@triton.jit
def _share_of(part, whole):
    return tl.minimum(tl.maximum(part / tl.maximum(whole, 1e-30), 0.0), 1.0)


@triton.jit
def _bracket(
    counts, top, scale, share, V,
    BLOCK: tl.constexpr, BINS: tl.constexpr, LIST: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    """The lowest and highest key between which the edge is expected: those of so many logits on
    either side of the rank at which the estimated mass, that of the bins' middles, reaches p, that
    evenly spread they would fill a quarter of the lists; or LIST keys where that is more. Within a
    bin ranks are taken to be evenly spread. The last bin, where the edge is never, stays outside.
    """
    fine = _fine(share, V, BINS)
    counts = counts.to(tl.float32)
    mass = counts * tl.exp2((tl.arange(0, BINS) + 0.5) / -fine)
    reached = tl.cumsum(mass, axis=0)
    need = tl.max(reached, axis=0) * (share.to(tl.float32) / 2147483648.0)
    rank = tl.sum(counts * _share_of(need - (reached - mass), mass), axis=0)
    margin = tl.minimum(V * (LIST / (8 * BLOCK)) + 8, rank / 2 + 16)
    before = tl.cumsum(counts, axis=0) - counts
    first = tl.sum(_share_of(rank - margin - before, counts), axis=0)
    last = tl.sum(_share_of(rank + margin - before, counts), axis=0)
    high = _key(top - first / (scale * fine), SHIFT)
    low = _key(top - tl.minimum(last, BINS - 1.0) / (scale * fine), SHIFT)
    few = high.to(tl.int64) - low < LIST
    low = tl.where(few, ((low ^ high) >> 1) + (low & high) - LIST // 2, low)
    return low, tl.where(few, low + (LIST - 1), high)


@triton.jit
def _listed(
    x_ptr, best_ptr, count_ptr, bracket_ptr, mass_ptr, size_ptr, list_ptr, p_ptr, heat_ptr,
    V, blocks, stride_b, stride_v, stride_p, stride_heat,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr, BINS: tl.constexpr, LIST: tl.constexpr,
    SHIFT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A block's logits in the bracket, its mass above the bracket, and all its mass. Of a bracket
    of LIST keys it is told how often each occurs, otherwise the keys are listed."""
    row, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    slot = row * blocks + block
    n = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride_b + n.to(tl.int64) * stride_v, n < V, other=-float("inf"))
    x = x.to(tl.float32)
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    top, scale, share = _row(
        best_ptr, p_ptr, heat_ptr, row, V, blocks, stride_p, stride_heat, BLOCKS
    )
    if (top > -float("inf")) & (top < float("inf")):
        counts = tl.load(count_ptr + row * BINS + tl.arange(0, BINS))
        low, high = _bracket(counts, top, scale, share, V, BLOCK, BINS, LIST, SHIFT)
        if block == 0:
            tl.store(bracket_ptr + 2 * row, low)
            tl.store(bracket_ptr + 2 * row + 1, high)
        keys = tl.where(n < V, _key(x, SHIFT), LEAST)
        mass = _mass(x, top, scale).to(tl.int64)
        tl.store(mass_ptr + 2 * slot, tl.sum(tl.where(keys > high, mass, 0), axis=0))
        tl.store(mass_ptr + 2 * slot + 1, tl.sum(mass, axis=0))
        within = (keys >= low) & (keys <= high)
        if high.to(tl.int64) - low < LIST:
            each = tl.histogram(tl.where(within, high - keys, 0), LIST, mask=within)
            tl.store(list_ptr + slot * LIST + tl.arange(0, LIST), each)
        else:
            place = tl.cumsum(within.to(tl.int32), axis=0) - 1
            tl.store(list_ptr + slot * LIST + place, keys, within & (place < LIST))
            tl.store(size_ptr + slot, tl.max(place, axis=0) + 1)


@triton.jit
def _edge(keys, mass, need, low, high):
    """The largest key in low..high at or above which lies that much mass."""
    while low < high:
        middle = (low | high) - ((low ^ high) >> 1)  # (low + high + 1) // 2 may not fit 32 bits
        enough = tl.sum(tl.where(keys >= middle, mass, 0).to(tl.int64), axis=0) >= need
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle - 1)
    return low


@triton.jit
def _tally(x_ptr, V, stride_v, key, top, scale, BLOCK: tl.constexpr, SHIFT: tl.constexpr):
    """The mass of a row's logits at or above a key."""
    total = tl.full((BLOCK,), 0, tl.int64)
    for start in range(0, V, BLOCK):
        n = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + n.to(tl.int64) * stride_v, n < V, other=-float("inf")).to(tl.float32)
        reached = (_key(x, SHIFT) >= key) & (n < V)
        total += tl.where(reached, _mass(x, top, scale), 0).to(tl.int64)
    return tl.sum(total, axis=0)


@triton.jit
def _far_edge(
    x_ptr, V, stride_v, need, low, high, top, scale,
    BLOCK: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    """The largest key in low..high that this mass lies at or above, the row being walked
    once for each bit; and what lies above it."""
    above = need * 0
    while low < high:
        middle = (low | high) - ((low ^ high) >> 1)
        hits = _tally(x_ptr, V, stride_v, middle, top, scale, BLOCK, SHIFT)
        low = tl.where(hits >= need, middle, low)
        high = tl.where(hits >= need, high, middle - 1)
        above = tl.where(hits >= need, above, hits)
    return low, above


@triton.jit
def _walk(
    x_ptr, first, last, stride_v, edge, surplus, aim, top, scale,
    BLOCK: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    """The first kept token of first..last whose running mass exceeds the aim; of those at
    the edge itself `surplus` are kept."""
    token = edge * 0 + NOWHERE
    for start in range(first, last, BLOCK):
        n = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + n.to(tl.int64) * stride_v, n < last, other=-float("inf")).to(tl.float32)
        keys = tl.where(n < last, _key(x, SHIFT), LEAST)
        ties = tl.cumsum((keys == edge).to(tl.int32), axis=0)
        kept = (keys > edge) | ((keys == edge) & (ties <= surplus))
        running = tl.cumsum(tl.where(kept, _mass(x, top, scale), 0).to(tl.int64), axis=0)
        here = tl.min(tl.where(running > aim, n, NOWHERE), axis=0)
        token = tl.minimum(token, here)
        aim = tl.where(here < NOWHERE, FULL, aim - tl.max(running, axis=0))
        surplus -= tl.max(ties, axis=0)
    return token


@triton.jit
def _sought(x_ptr, V, stride_v, share, top, scale, BLOCK: tl.constexpr, SHIFT: tl.constexpr):
    """The edge, how many logits at it are kept, and all kept mass, from the row itself: exact
    whatever its values are, but it walks the row once for each bit of a key."""
    low, high = _key(tl.full((), -float("inf"), tl.float32), SHIFT), _key(top, SHIFT)
    whole = _tally(x_ptr, V, stride_v, low, top, scale, BLOCK, SHIFT)
    enough = tl.maximum(_part(whole, share), 1)
    edge, above = _far_edge(x_ptr, V, stride_v, enough, low, high, top, scale, BLOCK, SHIFT)
    each = _mass(_logit(edge, SHIFT), top, scale).to(tl.int64)
    surplus = (enough - above + each - 1) // each
    return edge, surplus, above + surplus * each


@triton.jit
def _from_counts(
    list_ptr, above, enough, high, top, scale,
    blocks, BLOCKS: tl.constexpr, LIST: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    """The mass at and above the lowest key; the edge and the mass of a logit there; of each block
    the mass above the edge and the mass at it."""
    j = tl.arange(0, LIST)
    at = tl.arange(0, BLOCKS)[:, None] * LIST + j[None, :]
    counts = tl.load(list_ptr + at, (tl.arange(0, BLOCKS) < blocks)[:, None], other=0)
    mass = _mass(_logit(tl.minimum(high - j, _key(top, SHIFT)), SHIFT), top, scale).to(tl.int64)
    reached = tl.cumsum(tl.sum(counts, axis=0) * mass, axis=0) + tl.sum(above, axis=0)
    edge = tl.sum((reached < enough).to(tl.int32), axis=0)
    each = tl.maximum(tl.sum(tl.where(j == edge, mass, 0), axis=0), 1)
    larger = tl.where(j < edge, mass, 0)
    over = above + tl.sum(counts * larger[None, :], axis=1)
    ties = tl.sum(tl.where((j == edge)[None, :], counts, 0), axis=1) * each
    return tl.max(reached, axis=0), high - edge, each, over, ties


@triton.jit
def _from_lists(
    list_ptr, size, above, enough, top, scale,
    BLOCKS: tl.constexpr, LIST: tl.constexpr, SHIFT: tl.constexpr,
):  # fmt: skip
    """The same from the keys themselves; 0 as the first where a list is not whole."""
    high = _key(top, SHIFT)
    at = tl.arange(0, BLOCKS)[:, None] * LIST + tl.arange(0, LIST)[None, :]
    inside = tl.arange(0, LIST)[None, :] < size[:, None]
    keys = tl.load(list_ptr + at, inside, other=LEAST)
    mass = tl.where(inside, _mass(_logit(tl.where(inside, keys, high), SHIFT), top, scale), 0)
    flat = tl.reshape(keys, BLOCKS * LIST)
    known = tl.sum(above, axis=0)
    listed = tl.reshape(mass, BLOCKS * LIST)
    reached = known + tl.sum(listed.to(tl.int64), axis=0)
    reached = tl.where(tl.max(size, axis=0) <= LIST, reached, 0)
    low = tl.min(tl.where(flat == LEAST, high, flat), axis=0)
    high = tl.where(reached >= enough, tl.max(flat, axis=0), low)
    edge = _edge(flat, listed, enough - known, low, high)
    each = tl.maximum(_mass(_logit(edge, SHIFT), top, scale).to(tl.int64), 1)
    over = above + tl.sum(tl.where(keys > edge, mass, 0).to(tl.int64), axis=1)
    ties = tl.sum(tl.where(keys == edge, mass, 0).to(tl.int64), axis=1)
    return reached, edge, each, over, ties


@triton.jit
def _sample(
    x_ptr, best_ptr, bracket_ptr, mass_ptr, size_ptr, list_ptr, p_ptr, heat_ptr, seed_ptr,
    token_ptr, V, blocks, stride_b, stride_v, stride_p, stride_heat, stride_seed,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr, LIST: tl.constexpr, SHIFT: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * stride_b
    bits = tl.randint(tl.load(seed_ptr + row * stride_seed), tl.full((), 0, tl.int32))
    uniform = ((bits.to(tl.int32, bitcast=True) >> 1) & 0x7FFFFFFF).to(tl.int64)
    if PDL:
        tl.extra.cuda.gdc_wait()
    top, scale, share = _row(
        best_ptr, p_ptr, heat_ptr, row, V, blocks, stride_p, stride_heat, BLOCKS
    )
    token = tl.full((), -1, tl.int32)
    if (top > -float("inf")) & (top < float("inf")):
        s = tl.arange(0, BLOCKS)
        slot = row * blocks + s
        above = tl.load(mass_ptr + 2 * slot, s < blocks, other=0)
        whole = tl.load(mass_ptr + 2 * slot + 1, s < blocks, other=0)
        enough = tl.maximum(_part(tl.sum(whole, axis=0), share), 1)
        low, high = tl.load(bracket_ptr + 2 * row), tl.load(bracket_ptr + 2 * row + 1)
        list_ptr += row * blocks * LIST
        if high.to(tl.int64) - low < LIST:
            reached, edge, each, over, ties = _from_counts(
                list_ptr, above, enough, high, top, scale, blocks, BLOCKS, LIST, SHIFT
            )
        else:
            size = tl.load(size_ptr + slot, s < blocks, other=0)
            reached, edge, each, over, ties = _from_lists(
                list_ptr, size, above, enough, top, scale, BLOCKS, LIST, SHIFT
            )
        hits = (tl.sum(above, axis=0) < enough) & (reached >= enough)
        surplus = (enough - tl.sum(over, axis=0) + each - 1) // each
        left = tl.maximum(surplus * each - (tl.cumsum(ties, axis=0) - ties), 0)
        kept = over + tl.minimum(ties, left)
        if share == 2147483648:  # p = 1 keeps all
            hits, edge, kept = share > 0, LEAST + edge * 0, whole
        first = tl.full((), 0, tl.int32)
        last = first + V
        if hits:
            running = tl.cumsum(kept, axis=0)
            aim = _part(tl.max(running, axis=0), uniform)
            passed = running <= aim
            aim -= tl.sum(tl.where(passed, kept, 0), axis=0)
            surplus -= tl.sum(tl.where(passed, ties, 0), axis=0) // each
            first = tl.sum(passed.to(tl.int32), axis=0) * BLOCK
            last = tl.minimum(first + BLOCK, V)
        else:
            edge, surplus, mass = _sought(x_ptr, V, stride_v, share, top, scale, BLOCK, SHIFT)
            aim = _part(mass, uniform)
        token = _walk(x_ptr, first, last, stride_v, edge, surplus, aim, top, scale, BLOCK, SHIFT)
    tl.store(token_ptr + row, token.to(tl.int64))


@dataclass(frozen=True)
class Bracketed:
    block_v: int = tile(1024, 4096, default=2048)
    bins: int = among(128, 256, default=128)
    list_len: int = among(64, 128, default=64)  # candidates a block may have
    num_warps: int = threads(4, 8, default=4)
    sample_warps: int = threads(8, 16, default=8)
    pdl: int = among(0, 1, default=0)  # a launch begins before the one before it has ended
    maxnreg: int = among(0, 96, default=0)  # of a thread that lists, for more blocks at a time


def refuse_bracketed(config, limits, *, itemsize, B, V):
    drawing = config.sample_warps * limits.warp_size
    blocks = 1 << (-(-V // config.block_v) - 1).bit_length()
    held = config.block_v // (config.num_warps * limits.warp_size)
    merged = blocks * config.list_len // drawing
    if config.pdl and (reason := limits.refuse_pdl()):
        return reason
    if config.maxnreg and not limits.nvidia:
        return "only NVIDIA's compiler can be told how many registers a thread may have"
    if drawing > limits.threads_per_block:
        return f"{drawing} threads are more than one block may have here"
    reason = limits.refuse_held(held, 32, "logits in registers")
    return reason or limits.refuse_held(merged, 32, "candidates in registers")


def work(config, limits, *, itemsize, B, V):
    """Return the work of the four launches, where the counts judge right. Barriers and operations
    are those of the default's machine code (Triton 3.6, sm_90)."""
    blocks, length, moved = -(-V // config.block_v), config.list_len, config.block_v * itemsize
    every, listed = dict(tiles=B * blocks, steps=1), (1 << (blocks - 1).bit_length()) * length
    # Few keys are counted by value; many, as in fp32, are listed, and their range is halved.
    few, rounds = itemsize == 2, 0 if itemsize == 2 else 24
    again = dict(waits=0, passed_bytes=B * V * itemsize)  # the logits, which were read before
    maxima = Work(
        **every, load_bytes=moved, store_bytes=4, barriers=2,
        vector_ops=19 * config.block_v,  # 304 operations of each of 128 threads
    )  # fmt: skip
    counted = Work(
        **every, **again, load_bytes=moved + 4 * blocks, store_bytes=4 * config.bins, hits=2,
        barriers=5, vector_ops=121 * config.block_v,  # 1,933; 112 votes of a warp count them
    )  # fmt: skip
    each_list = Work(
        **every, **again, load_bytes=moved + 4 * (blocks + config.bins), store_bytes=4 * length,
        hits=3,  # logits, maxima, counts
        barriers=29 if few else 35,
        vector_ops=(193 if few else 234) * config.block_v,  # 3,090 and 3,747
        special_ops=config.block_v + 8 * config.bins,  # a mass of each logit, and of each bin
    )  # fmt: skip
    sample = Work(
        tiles=B, steps=1, load_bytes=moved + 4 * listed + 24 * blocks, store_bytes=8,
        hits=4,  # maxima, masses, what was counted or listed, one block of logits
        barriers=56 + 3 * rounds,
        # Of each of 256 threads 1,094 operations for one block of logits, 1,025 for what was
        # counted, 1,418 beside; 16 for each key and round where keys are listed.
        vector_ops=137 * config.block_v + (64 + 16 * rounds) * listed + 363_000,
        special_ops=config.block_v + listed // blocks,
    )  # fmt: skip
    return maxima, counted, each_list, sample


# Other values lie closer to each other than those of bf16, so that few are counted and many listed.
FINER = Bracketed(bins=256, list_len=128, sample_warps=16)
HOPPER = Bracketed(pdl=1, maxnreg=96)


@sample_top_p.impl(
    Bracketed,
    refuse=refuse_bracketed,
    work=work,
    defaults={"fp32 fp16": FINER, "sm_90": HOPPER, "sm_100 sm_120": Bracketed(pdl=1)},
)
def bracketed(logits, p, temperature, seed, *, config):
    """Counts by probability tell within a few thousand logits where the nucleus ends, so one
    program per row finds the exact edge among only those, counted by value where few values lie
    there; what the counts misjudge it seeks in the whole row."""
    B, V = logits.shape
    blocks = triton.cdiv(V, config.block_v)
    device = logits.device
    best = torch.empty(B, blocks, dtype=torch.float32, device=device)
    counts = torch.empty(B, config.bins, dtype=torch.int32, device=device)
    masses = torch.empty(B, blocks, 2, dtype=torch.int64, device=device)
    sizes = torch.empty(B, blocks, dtype=torch.int32, device=device)
    bracket = torch.empty(B, 2, dtype=torch.int32, device=device)
    lists = torch.empty(B, blocks, config.list_len, dtype=torch.int32, device=device)
    token = torch.empty(B, dtype=torch.int64, device=device)
    at = V, blocks, *logits.stride()
    of_row = *at, p.stride(0), temperature.stride(0)
    pdl = bool(config.pdl) and not INTERPRETED
    after = launch_pdl(pdl)
    small = dict(BLOCK=config.block_v, BLOCKS=triton.next_power_of_2(blocks), PDL=pdl)
    binned = dict(**small, BINS=config.bins, num_warps=config.num_warps)
    listed = dict(LIST=config.list_len, SHIFT=topk.shift_of(logits))
    registers = {"maxnreg": config.maxnreg} if config.maxnreg else {}
    lengths = dict(BLOCK=config.block_v, BINS=config.bins, PDL=pdl, num_warps=config.num_warps)
    _maxima[(B * blocks,)](logits, best, counts, *at, **lengths)
    _counted[(B * blocks,)](logits, best, counts, p, temperature, *of_row, **binned, **after)
    tables = bracket, masses, sizes, lists
    heats = p, temperature
    _listed[(B * blocks,)](
        logits, best, counts, *tables, *heats, *of_row, **binned, **listed, **after, **registers
    )
    drawn = dict(num_warps=config.sample_warps, **small, **listed, **after)
    _sample[(B,)](logits, best, *tables, *heats, seed, token, *of_row, seed.stride(0), **drawn)
    return token


@baseline(sample_top_p)
def sorting(logits, p, temperature, seed):
    """A sort of each row."""
    return reference(logits.float(), p, temperature, seed)
