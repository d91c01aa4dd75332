"""One token for each row of logits: temperature, then top-k, then top-p, then one draw.

The k largest logits of a row stay (of equal ones the lower index is the larger), then the fewest of
them, from the largest on, whose share of what top-k left reaches p; one of these is drawn with its
softmax probability at that temperature. k below 1 or from V on means no top-k, p from 1 on no
top-p, and a temperature of 0 the largest logit. A row without a distribution (NaN, +inf, or nothing
but -inf) gives -1.

Exact and independent of how a row is split: a logit's mass is the whole number
round(2^30 * exp((x - max) / temperature)), so that sums are the same in any order, and the draw
is the first kept token, by index, whose running mass exceeds u * (kept mass), with u the upper 31
bits of Philox4x32-10 at counter 0 under the row's seed. A row's token is a function of that row and
its seed only. Reference and kernel differ only where the masses' rounding (1e-6 of one) decides:
about once in a million rows. Tokens below 2^-31 of the largest's probability are never drawn.

At 4 FLOP for each logit read the first launch is memory-bound; the second, one program a row, is
bound by the latency of some fifty steps that each reduce a few thousand numbers to one.
"""

from dataclasses import dataclass

import torch

from workbench.dsl import INTERPRETED, baseline, launch_pdl, strides, tl, triton
from workbench.spec import Spec, Tensor, Work, among, threads, tile

# What it means, in torch


def philox(seed):
    """The first 32 bits of Philox4x32-10 at counter 0 under these seeds, as int64."""
    low = 0xFFFFFFFF
    keys = [seed & low, (seed >> 32) & low]
    c0 = c1 = c2 = c3 = torch.zeros_like(seed)
    for _ in range(10):
        # The product wraps beyond 2^63, which leaves its 64 bits right.
        a, b = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1 = ((b >> 32) & low) ^ c1 ^ keys[0], b & low
        c2, c3 = ((a >> 32) & low) ^ c3 ^ keys[1], a & low
        keys = [(keys[0] + 0x9E3779B9) & low, (keys[1] + 0xBB67AE85) & low]
    return c0


def part(mass, share):
    """floor(mass * share / 2^31), whose product would not fit 64 bits."""
    high, low = mass >> 31, mass & 0x7FFFFFFF
    return high * share + ((low * share) >> 31)


def reference(logits, k, p, temperature, seed):
    V = logits.shape[1]
    top = logits.amax(1, keepdim=True)
    lost = ~top.isfinite()
    greedy = temperature[:, None] <= 0
    heat = torch.where(greedy, 1, temperature[:, None]).clamp(min=1e-30)
    x = torch.where(lost, 0, logits)
    mass = (torch.exp((x - torch.where(lost, 0, top)) / heat) * 2.0**30 + 0.5).floor().long()
    k = torch.where((k[:, None] < 1) | (k[:, None] > V), V, k[:, None])
    k = torch.where(greedy, 1, k)
    order = torch.sort(x, dim=1, descending=True, stable=True).indices
    ranked = mass.gather(1, order)
    ranked = torch.where(torch.arange(V, device=x.device) < k, ranked, 0)
    share = (p.double().clamp(0, 1)[:, None] * 2.0**31).long()
    enough = part(ranked.sum(1, keepdim=True), share).clamp(min=1)
    ranked = torch.where(ranked.cumsum(1) - ranked < enough, ranked, 0)
    running = torch.zeros_like(mass).scatter_(1, order, ranked).cumsum(1)
    aim = part(running[:, -1:], philox(seed)[:, None] >> 1)
    return torch.where(lost, -1, (running <= aim).sum(1, keepdim=True))[:, 0]


# A batch of a power of two rows, as they are timed, is a plain one; any other mixes all kinds.


def cycle_kinds(*kinds):
    """A maker: the first kind for each row of a plain batch, else all in turn from any on."""

    def make(shape, dtype, device, generator):
        B = shape[0]
        first = torch.randint(len(kinds), (1,), generator=generator, device=device)
        rows = (first + torch.arange(B, device=device)) * bool(B & (B - 1))
        return torch.tensor(kinds, device=device)[rows % len(kinds)].to(dtype)

    return make


def any_seed(shape, dtype, device, generator):
    return torch.randint(-(1 << 62), 1 << 62, shape, generator=generator, device=device)


sample_topk_topp = Spec(
    name="sample_topk_topp",
    inputs={
        "logits": Tensor("B V"),
        "k": Tensor("B", dtype="int32", make=cycle_kinds(50, 1, 3, 0, 40, 2000, 64)),
        "p": Tensor("B", dtype="fp32", make=cycle_kinds(0.9, 0.5, 1.0, 0.7, 0.0)),
        "temperature": Tensor("B", dtype="fp32", make=cycle_kinds(1.0, 0.7, 1.5, 0.0)),
        "seed": Tensor("B", dtype="int64", make=any_seed),
    },
    outputs={"token": Tensor("B", dtype="int64")},
    reference=reference,
    flops=lambda B, V: 4 * B * V,
    check=[
        {"B": 1, "V": 1},
        {"B": 3, "V": 127},
        {"B": 3, "V": 2781},  # more groups than are kept
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

LOG2_E = tl.constexpr(1.4426950408889634)
FULL = tl.constexpr(1 << 62)  # above every mass
NOWHERE = tl.constexpr(0x7FFFFFFF)  # behind every token
LEAST = tl.constexpr(-0x7FFFFFFF)  # below every logit's key


@triton.jit
def _group_maxima(
    x_ptr, best_ptr, V, groups, stride_b, stride_v, BLOCK: tl.constexpr, GROUP: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """The largest logit of each `GROUP` neighbours; +inf where one of them is NaN."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
    blocks = tl.cdiv(V, BLOCK)
    row, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    n = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride_b + n.to(tl.int64) * stride_v, n < V, other=-float("inf"))
    x = x.to(tl.float32)
    x = tl.where(x == x, x, float("inf"))
    best = tl.max(tl.reshape(x, (BLOCK // GROUP, GROUP)), axis=1)
    g = block * (BLOCK // GROUP) + tl.arange(0, BLOCK // GROUP)
    tl.store(best_ptr + row * groups + g, best.to(best_ptr.dtype.element_ty), g < groups)


@triton.jit
def _key(x, SHIFT: tl.constexpr):
    """Whole numbers in the order of these logits, with -0.0 and 0.0 the same; SHIFT bits of them
    tell nothing, because the logits were widened from 16 bits."""
    bits = x.to(tl.int32, bitcast=True)
    key = (bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> SHIFT
    return tl.where(key == -1, 0, key)


@triton.jit
def _logit(key, SHIFT: tl.constexpr):
    """The logit with this key."""
    bits = (key << SHIFT) | tl.where(key < 0, (1 << SHIFT) - 1, 0)
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _mass(x, top, scale):
    return (tl.exp2((x - top) * scale) * 1073741824.0 + 0.5).to(tl.int32).to(tl.int64)


@triton.jit
def _part(mass, share):
    """floor(mass * share / 2^31)"""
    return (mass >> 31) * share + (((mass & 0x7FFFFFFF) * share) >> 31)


@triton.jit
def _edge(keys, need, count, low, high):
    """A key in low..high that `need` keys lie at or above: the largest, or one that it takes no
    ties to tell the first `need` keys by. `count` is how many there are in all."""
    count += low * 0  # where it is 1, Triton took it for a constant, which no loop may change
    while (low < high) & (count != need):
        middle = (low | high) - ((low ^ high) >> 1)  # (low + high + 1) // 2 may not fit 32 bits
        count = tl.sum((keys >= middle).to(tl.int32), axis=0)
        low = tl.where(count >= need, middle, low)
        high = tl.where(count >= need, high, middle - 1)
    return low


@triton.jit
def _first(keys, edge, need):
    """Which are the `need` largest, of equal ones the first, and their places in a list."""
    above, ties = keys > edge, keys == edge
    surplus = need - tl.sum(above.to(tl.int32), axis=0)
    # Both ranks by one scan: there are fewer than 2^15 keys.
    ranks = tl.cumsum(above.to(tl.int32) + (ties.to(tl.int32) << 16), axis=0)
    tied = ranks >> 16
    return above | (ties & (tied <= surplus)), (ranks & 0xFFFF) + tl.minimum(tied, surplus) - 1


@triton.jit
def _best_groups(best, g, list_ptr, groups, need, high, KEPT: tl.constexpr, SHIFT: tl.constexpr):
    """The `need` groups with the largest maxima, by index; of equal maxima the first. They hold
    the `need` largest logits: any other group's are beaten by that many maxima."""
    keys = tl.where(g < groups, _key(best, SHIFT), LEAST)
    low = tl.min(tl.where(g < groups, keys, high), axis=0)
    edge = _edge(keys, need, groups, low, high)
    chosen, place = _first(keys, edge, need)
    tl.store(list_ptr + place, g, chosen)
    tl.debug_barrier()
    j = tl.arange(0, KEPT)
    return edge, tl.load(list_ptr + j, j < need, other=0, cache_modifier=".cg")


@triton.jit
def _listed(keys, index, list_ptr, edge, k, KEPT: tl.constexpr):
    """The k largest, by index, as (key, index)."""
    chosen, place = _first(keys, edge, k)
    tl.store(list_ptr + place, keys, chosen)
    tl.store(list_ptr + KEPT + place, index, chosen)
    tl.debug_barrier()
    j = tl.arange(0, KEPT)
    keys = tl.load(list_ptr + j, j < k, other=edge, cache_modifier=".cg")
    return keys, tl.load(list_ptr + KEPT + j, j < k, other=NOWHERE, cache_modifier=".cg")


@triton.jit
def _draw(keys, index, k, share, uniform, top, scale, KEPT: tl.constexpr, SHIFT: tl.constexpr):
    """One of the k candidates, which stand in the order of their indices: all pairs are compared,
    which for 64 of them takes less time than to sort."""
    j = tl.arange(0, KEPT)
    mass = tl.where(j < k, _mass(_logit(keys, SHIFT), top, scale), 0)
    enough = tl.maximum(_part(tl.sum(mass, axis=0), share), 1)
    tied = (keys[None, :] == keys[:, None]) & (j[None, :] < j[:, None])
    larger = (keys[None, :] > keys[:, None]) | tied
    before = tl.sum(tl.where(larger, mass[None, :], 0), axis=1)
    running = tl.cumsum(tl.where(before < enough, mass, 0), axis=0)
    aim = _part(tl.max(running, axis=0), uniform)
    return tl.min(tl.where(running > aim, index, NOWHERE), axis=0)


@triton.jit
def _tally(
    x_ptr, V, stride_v, key, top, scale, COUNT: tl.constexpr, BLOCK: tl.constexpr,
    SHIFT: tl.constexpr,
):  # fmt: skip
    """How many logits of a row lie at or above a key, or their mass."""
    total = tl.full((BLOCK,), 0, tl.int64)
    for start in range(0, V, BLOCK):
        n = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + n.to(tl.int64) * stride_v, n < V, other=-float("inf")).to(tl.float32)
        reached = (_key(x, SHIFT) >= key) & (n < V)
        if COUNT:
            total += reached.to(tl.int64)
        else:
            total += tl.where(reached, _mass(x, top, scale), 0)
    return tl.sum(total, axis=0)


@triton.jit
def _far_edge(
    x_ptr, V, stride_v, need, low, high, top, scale, COUNT: tl.constexpr, BLOCK: tl.constexpr,
    SHIFT: tl.constexpr,
):  # fmt: skip
    """The largest key in low..high that this count or mass lies at or above, the row being walked
    once for each bit; and what lies above it."""
    above = need * 0
    while low < high:
        middle = (low | high) - ((low ^ high) >> 1)
        hits = _tally(x_ptr, V, stride_v, middle, top, scale, COUNT, BLOCK, SHIFT)
        low = tl.where(hits >= need, middle, low)
        high = tl.where(hits >= need, high, middle - 1)
        above = tl.where(hits >= need, above, hits)
    return low, above


@triton.jit
def _sample_many(
    x_ptr, V, stride_v, k, share, uniform, top, scale, BLOCK: tl.constexpr, SHIFT: tl.constexpr
):
    """The token where k is large: exact for any k, but slow, and the row stays in the cache."""
    high = _key(top, SHIFT)
    edge = _key(tl.full((), -float("inf"), tl.float32), SHIFT)
    surplus = tl.full((), 0, tl.int64)  # of -inf, whose mass is 0
    if k < V:
        edge, above = _far_edge(
            x_ptr, V, stride_v, k.to(tl.int64), edge, high, top, scale, True, BLOCK, SHIFT
        )
        surplus = k - above
    above = _tally(x_ptr, V, stride_v, edge + 1, top, scale, False, BLOCK, SHIFT)
    each = _mass(_logit(edge, SHIFT), top, scale)
    enough = tl.maximum(_part(above + surplus * each, share), 1)
    if above >= enough:
        edge, above = _far_edge(
            x_ptr, V, stride_v, enough, edge + 1, high, top, scale, False, BLOCK, SHIFT
        )
        each = _mass(_logit(edge, SHIFT), top, scale)
    surplus = (enough - above + each - 1) // each
    aim = _part(above + surplus * each, uniform)
    return _walk(x_ptr, V, stride_v, edge, surplus, aim, top, scale, BLOCK, SHIFT)


@triton.jit
def _walk(
    x_ptr, V, stride_v, edge, surplus, aim, top, scale, BLOCK: tl.constexpr, SHIFT: tl.constexpr
):
    """The first kept token whose running mass exceeds the aim; of logits at the edge itself
    `surplus` are kept."""
    token = edge * 0 + NOWHERE
    for start in range(0, V, BLOCK):
        n = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + n.to(tl.int64) * stride_v, n < V, other=-float("inf")).to(tl.float32)
        keys = tl.where(n < V, _key(x, SHIFT), LEAST)
        ties = tl.cumsum((keys == edge).to(tl.int32), axis=0)
        kept = (keys > edge) | ((keys == edge) & (ties <= surplus))
        running = tl.cumsum(tl.where(kept, _mass(x, top, scale), 0), axis=0)
        here = tl.min(tl.where(running > aim, n, NOWHERE), axis=0)
        token = tl.minimum(token, here)
        aim = tl.where(here < NOWHERE, FULL, aim - tl.max(running, axis=0))
        surplus -= tl.max(ties, axis=0)
    return token


@triton.jit
def _merge_and_sample(
    x_ptr, best_ptr, list_ptr, k_ptr, p_ptr, heat_ptr, seed_ptr, token_ptr, V, groups,
    stride_b, stride_v, stride_k, stride_p, stride_heat, stride_seed,
    GROUPS: tl.constexpr, GROUP: tl.constexpr, KEPT: tl.constexpr, BLOCK: tl.constexpr,
    SHIFT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * stride_b
    list_ptr += row * (3 * KEPT)
    k, p = tl.load(k_ptr + row * stride_k), tl.load(p_ptr + row * stride_p)
    heat = tl.load(heat_ptr + row * stride_heat)
    bits = tl.randint(tl.load(seed_ptr + row * stride_seed), tl.full((), 0, tl.int32))
    uniform = ((bits.to(tl.int32, bitcast=True) >> 1) & 0x7FFFFFFF).to(tl.int64)
    share = (tl.minimum(tl.maximum(p, 0.0), 1.0) * 2147483648.0).to(tl.int64)
    k = tl.where((k < 1) | (k > V), V, k)
    k = tl.where(heat <= 0, 1, k)
    scale = LOG2_E / tl.maximum(tl.where(heat <= 0, 1.0, heat), 1e-30)
    if PDL:  # so far nothing that the launch before has written
        tl.extra.cuda.gdc_wait()
    g = tl.arange(0, GROUPS)
    best = tl.load(best_ptr + row * groups + g, g < groups, other=-float("inf")).to(tl.float32)
    top = tl.max(best, axis=0)
    token = tl.full((), -1, tl.int32)
    if (top > -float("inf")) & (top < float("inf")):
        if k <= KEPT:
            high = _key(top, SHIFT)
            need, low, chosen = groups, high, tl.arange(0, KEPT)
            if GROUPS > KEPT:
                need = tl.minimum(k, groups)
                low, chosen = _best_groups(best, g, list_ptr, groups, need, high, KEPT, SHIFT)
            index = chosen[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
            inside = (tl.arange(0, KEPT) < need)[:, None] & (index < V)
            x = tl.load(x_ptr + index.to(tl.int64) * stride_v, inside, other=-float("inf"))
            keys = tl.where(inside, _key(x.to(tl.float32), SHIFT), LEAST)
            keys, index = tl.reshape(keys, KEPT * GROUP), tl.reshape(index, KEPT * GROUP)
            if GROUPS <= KEPT:
                low = tl.min(tl.where(keys == LEAST, high, keys), axis=0)
            edge = _edge(keys, k, V, low, high)
            keys, index = _listed(keys, index, list_ptr + KEPT, edge, k, KEPT)
            token = _draw(keys, index, k, share, uniform, top, scale, KEPT, SHIFT)
        else:
            token = _sample_many(x_ptr, V, stride_v, k, share, uniform, top, scale, BLOCK, SHIFT)
    tl.store(token_ptr + row, token.to(tl.int64))


@dataclass(frozen=True)
class GroupMaxima:
    block_v: int = tile(1024, 8192, default=2048)
    group: int = tile(16, 64, default=32)
    kept: int = among(64, 256, default=64)  # the largest k without walking the row
    num_warps: int = threads(4, 8, default=4)
    merge_warps: int = threads(4, 16, default=8)
    pdl: int = among(0, 1, default=0)  # the second launch begins before the first one has ended


def refuse_group_maxima(config, limits, *, itemsize, B, V):
    groups = 1 << (-(-V // config.group) - 1).bit_length()
    held = config.block_v // (config.num_warps * limits.warp_size)
    if config.pdl and (reason := limits.refuse_pdl()):
        return reason
    merged = max(groups, config.kept * config.group) // (config.merge_warps * limits.warp_size)
    if config.merge_warps * limits.warp_size > limits.threads_per_block:
        return f"{config.merge_warps} warps are more than one block may have here"
    reason = limits.refuse_held(held, 64, "logits in registers")
    return reason or limits.refuse_held(merged, 32, "candidates in registers")


def work(config, limits, *, itemsize, B, V):
    """Return the work of both launches, for k up to `kept`. Barriers and operations are those of
    the default's machine code (Triton 3.6, sm_90)."""
    blocks, groups = -(-V // config.block_v), -(-V // config.group)
    moved, candidates = config.block_v * itemsize, config.kept * config.group
    padded_groups = 1 << (groups - 1).bit_length()
    # Each halving of a range of keys. The k largest of normal logits lie within two octaves, of 2^7
    # keys in bf16 and 2^23 in fp32.
    rounds = 8 if itemsize == 2 else 24
    maxima = Work(
        tiles=B * blocks,
        steps=1,
        load_bytes=moved,
        store_bytes=moved // config.group,
        vector_ops=18 * config.block_v,  # 284 operations of each of 128 threads
        barriers=1,
        passed_bytes=B * groups * itemsize,
    )
    merge = Work(
        tiles=B,
        steps=1,
        load_bytes=(groups + candidates) * itemsize + 24 * config.kept,
        store_bytes=8,
        # Of each of 256 threads 1,914 operations for 4,096 groups, 4,166 for 2,048 candidates and
        # the draw; 154 and 100 in each round.
        vector_ops=(120 + 10 * rounds) * padded_groups + (520 + 12 * rounds) * candidates,
        barriers=38 + 2 * 3 * rounds,
        hits=4,  # maxima, the groups that were chosen, their logits, the list of the k largest
        passed_bytes=B * groups * itemsize,
    )
    return maxima, merge


LATER = GroupMaxima(pdl=1)


@sample_topk_topp.impl(
    GroupMaxima, refuse=refuse_group_maxima, work=work, defaults={"sm_90 sm_100 sm_120": LATER}
)
def group_maxima(logits, k, p, temperature, seed, *, config):
    """One maximum for each `group` logits, read once at memory speed; the k largest maxima name
    the groups that hold the k largest logits, so that one program per row need not read others."""
    B, V = logits.shape
    groups = triton.cdiv(V, config.group)
    best = logits.new_empty(B, groups)
    lists = torch.empty(B, 3, config.kept, dtype=torch.int32, device=logits.device)
    token = torch.empty(B, dtype=torch.int64, device=logits.device)
    pdl = bool(config.pdl) and not INTERPRETED
    constants = dict(BLOCK=config.block_v, GROUP=config.group, PDL=pdl, num_warps=config.num_warps)
    _group_maxima[(B * triton.cdiv(V, config.block_v),)](
        logits, best, V, groups, *logits.stride(), **constants
    )
    constants = dict(GROUPS=triton.next_power_of_2(groups), GROUP=config.group, KEPT=config.kept)
    constants |= dict(BLOCK=2048, SHIFT=shift_of(logits), PDL=pdl, num_warps=config.merge_warps)
    after = launch_pdl(pdl)
    inputs = k, p, temperature, seed
    at = V, groups, *strides(logits, *inputs)
    _merge_and_sample[(B,)](logits, best, lists, *inputs, token, *at, **constants, **after)
    return token


def shift_of(logits):
    """Return how many of the lowest bits of fp32 these logits do not have."""
    return {torch.float16: 13, torch.bfloat16: 16}.get(logits.dtype, 0)


@baseline(sample_topk_topp)
def sorting(logits, k, p, temperature, seed):
    """A sort of each row."""
    return reference(logits.float(), k, p, temperature, seed)
