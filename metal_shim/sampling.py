"""Source and config that the samplers share: a slice's largest logits, and the draw of a token.

Logits are compared by whole numbers in their order (keys) and masses are whole numbers, as in
`workbench/kernels/sample_topk_topp.py`, so that sums are the same in any order. What is kept ends
at a key that a bisection returns. 64-bit numbers go through the functions of a SIMD-group as two of
32 bits: Metal's take no others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from metal_shim.kernel import MetalKernel, metal_kernel
from metal_shim.msl import BLOCK_REDUCE
from workbench.spec import Limits, Work, among, threads

# Low bits of a key that tell nothing, because the logit was widened from 16 bits
SHIFT: Mapping[torch.dtype, int] = {torch.float32: 0, torch.float16: 13, torch.bfloat16: 16}

_KEYS = """
constant int LEAST = -0x7FFFFFFF; // below the key of every logit
template <int SHIFT> int logit_key(float x) {
    const int bits = as_type<int>(x), key = (bits ^ ((bits >> 31) & 0x7FFFFFFF)) >> SHIFT;
    return key == -1 ? 0 : key; // -0.0 and 0.0 are one value
}
template <int SHIFT> float key_logit(int key) {
    const int bits = int(uint(key) << SHIFT) | (key < 0 ? (1 << SHIFT) - 1 : 0);
    return as_type<float>(bits ^ ((bits >> 31) & 0x7FFFFFFF));
}
inline int upper_middle(int low, int high) { return (low | high) - ((low ^ high) >> 1); }
inline uint votes(bool vote) { return uint(ulong(simd_ballot(vote))); }
inline uint up_to(uint lane) { return 0xFFFFFFFFu >> (31 - lane); }
"""

# A SIMD-group holds a slice in registers, and writes its KEPT largest keys in the order of their
# index. `least` is a logit that no other one of the slice exceeds.
_PARTIALS = """
    const uint lane = thread_index_in_simdgroup, V = x_shape[1];
    const uint s = thread_position_in_grid.x / 32, b = thread_position_in_grid.y;
    const uint begin = s * SLICE, inside = min(uint(SLICE), V - begin);
    const size_t slot = size_t(b) * ((V + SLICE - 1) / SLICE) + s;
    int held[SLICE / 32];
    float highest = -INFINITY;
    int low = 0x7FFFFFFF, high = LEAST;
    for (uint j = 0; j < SLICE / 32; j++) {
        const uint i = begin + j * 32 + lane;
        const float v = i < V ? float(x[size_t(b) * V + i]) : -INFINITY;
        highest = max(highest, isnan(v) ? INFINITY : v);
        held[j] = i < V ? logit_key<SHIFT>(v) : LEAST;
        low = i < V ? min(low, held[j]) : low;
        high = max(high, held[j]);
    }
    highest = simd_max(highest);
    low = simd_min(low);
    high = simd_max(high);
    const uint need = min(uint(KEPT), inside);
    for (uint count = inside; low < high && count != need;) {
        const int middle = upper_middle(low, high);
        uint reached = 0;
        for (uint j = 0; j < SLICE / 32; j++) reached += held[j] >= middle;
        reached = simd_sum(reached);
        low = reached >= need ? middle : low;
        high = reached >= need ? high : middle - 1;
        count = reached >= need ? reached : count;
    }
    uint above = 0;
    for (uint j = 0; j < SLICE / 32; j++) above += held[j] > low;
    uint left = need - simd_sum(above), place = 0;
    for (uint j = 0; j < SLICE / 32; j++) {
        const uint tied = votes(held[j] == low);
        const bool first = held[j] == low && popcount(tied & up_to(lane)) <= left;
        const uint chosen = votes(held[j] > low || first);
        const size_t to = slot * KEPT + place + popcount(chosen & up_to(lane)) - 1;
        if (held[j] > low || first) {
            keys[to] = held[j];
            index[to] = begin + j * 32 + lane;
        }
        left -= min(left, popcount(tied));
        place += popcount(chosen);
    }
    for (uint j = place + lane; j < KEPT; j += 32) {
        keys[slot * KEPT + j] = LEAST;
        index[slot * KEPT + j] = 0;
    }
    if (lane == 0) {
        best[slot] = highest;
        least[slot] = inside > KEPT ? key_logit<SHIFT>(low) : -INFINITY;
    }
"""

# LogitRow: `few` says that candidates stand for the row. Group: a threadgroup's scratch.
_DRAW = """
constant ulong ONE = 0x80000000ul; // a share of 1
constant int NO_TOKEN = 0x7FFFFFFF;
inline uint philox(ulong seed) { // the first 32 bits of Philox4x32-10 at counter 0
    uint c0 = 0, c1 = 0, c2 = 0, c3 = 0, k0 = uint(seed), k1 = uint(seed >> 32);
    for (uint i = 0; i < 10; i++) {
        const uint a = mulhi(c0, 0xD2511F53u), b = mulhi(c2, 0xCD9E8D57u);
        const uint low = c0 * 0xD2511F53u;
        c0 = b ^ c1 ^ k0;
        c1 = c2 * 0xCD9E8D57u;
        c2 = a ^ c3 ^ k1;
        c3 = low;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c0;
}
inline ulong part_of(ulong mass, ulong share) { // floor(mass * share / 2^31)
    return (mass >> 31) * share + (((mass & 0x7FFFFFFF) * share) >> 31);
}
struct Group {
    threadgroup ulong* part;
    threadgroup ulong* ties;
    uint lane, sg;
};
struct Edge {
    int key;
    ulong above; // count or mass of the larger keys
};
template <int SHIFT, typename X, typename L> struct LogitRow {
    X x;
    L keys, index;
    uint count;
    bool few;
    float top, heat;
    int key_at(uint i) const { return few ? keys[i] : logit_key<SHIFT>(float(x[i])); }
    int token_at(uint i) const { return few ? index[i] : int(i); }
    ulong mass_of(int key) const {
        return ulong(exp((key_logit<SHIFT>(key) - top) / heat) * 1073741824.0f + 0.5f);
    }
};
template <int SHIFT, typename X, typename L>
LogitRow<SHIFT, X, L> logit_row(X x, L keys, L index, float top, float heat) {
    return {x, keys, index, 0, false, top, heat};
}
inline ulong lanes_total(ulong v) {
    for (uint d = 16; d > 0; d /= 2) v += as_type<ulong>(simd_shuffle_xor(as_type<uint2>(v), d));
    return v;
}
template <bool COUNT, int NSG, typename R> ulong tally(R row, int least, Group group) {
    ulong sum = 0; // how many keys lie at or above `least`, or their mass
    for (uint i = group.sg * 32 + group.lane; i < row.count; i += NSG * 32) {
        const int key = row.key_at(i);
        if (key >= least) sum += COUNT ? 1 : row.mass_of(key);
    }
    sum = lanes_total(sum);
    if (group.lane == 0) group.part[group.sg] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    sum = 0;
    for (uint s = 0; s < NSG; s++) sum += group.part[s];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return sum;
}
template <bool COUNT, int NSG, typename R>
Edge edge_of(R row, ulong need, int low, int high, Group group) {
    Edge edge = {low, 0}; // the largest key in low..high that `need` lies at or above
    while (edge.key < high) {
        const int middle = upper_middle(edge.key, high);
        const ulong reached = tally<COUNT, NSG>(row, middle, group);
        edge.key = reached >= need ? middle : edge.key;
        edge.above = reached >= need ? edge.above : reached;
        high = reached >= need ? high : middle - 1;
    }
    return edge;
}
// The first kept token whose running mass exceeds `aim`; of keys at the edge `left` are kept. Each
// SIMD-group takes a stretch of the row, and the one whose it is returns it.
template <int NSG, typename R>
int drawn(R row, int edge, ulong left, ulong aim, Group group) {
    const uint stretch = (row.count + NSG - 1) / NSG;
    const uint begin = min(group.sg * stretch, row.count), end = min(begin + stretch, row.count);
    const ulong each = row.mass_of(edge);
    ulong above = 0, same = 0;
    for (uint i = begin + group.lane; i < end; i += 32) {
        const int key = row.key_at(i);
        if (key > edge) above += row.mass_of(key);
        same += key == edge;
    }
    above = lanes_total(above);
    same = lanes_total(same);
    if (group.lane == 0) group.part[group.sg] = above;
    if (group.lane == 0) group.ties[group.sg] = same;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint s = 0; s <= group.sg; s++) {
        const ulong kept = group.part[s] + min(group.ties[s], left) * each;
        if ((aim < kept) != (s == group.sg)) return NO_TOKEN;
        if (s == group.sg) break;
        aim -= kept;
        left -= min(group.ties[s], left);
    }
    for (uint start = begin; start < end; start += 32) {
        const uint i = start + group.lane;
        const int key = i < end ? row.key_at(i) : LEAST;
        const uint tied = votes(key == edge);
        const bool first = key == edge && popcount(tied & up_to(group.lane)) <= left;
        const uint mass = key > edge || first ? uint(row.mass_of(key)) : 0;
        const uint high = simd_prefix_inclusive_sum(mass >> 16);
        const uint low = simd_prefix_inclusive_sum(mass & 0xFFFF);
        const uint passed = votes((ulong(high) << 16) + low > aim);
        if (passed != 0) return row.token_at(start + ctz(passed));
        aim -= (ulong(simd_broadcast(high, 31)) << 16) + simd_broadcast(low, 31);
        left -= min(left, ulong(popcount(tied)));
    }
    return NO_TOKEN;
}
// A row's token under top-k and a share for top-p; V stands for no top-k. `bound`: all logits above
// it are among the `listed` candidates, and so are the KEPT largest.
template <int KEPT, int SHIFT, int NSG, typename R>
int sampled(R row, uint V, uint listed, uint k, ulong share, float bound, ulong seed, Group group) {
    const int lowest = logit_key<SHIFT>(-INFINITY), high = logit_key<SHIFT>(row.top);
    const int listed_above = logit_key<SHIFT>(bound);
    Edge edge = {lowest, 0};
    row.few = k <= KEPT;
    row.count = row.few ? listed : V;
    if (k < V)
        edge = edge_of<true, NSG>(row, k, row.few ? listed_above : lowest, high, group);
    ulong left = k < V ? k - edge.above : 0, each = row.mass_of(edge.key);
    edge.above = tally<false, NSG>(row, edge.key + 1, group);
    ulong kept = edge.above + left * each;
    if (share < ONE) {
        const ulong enough = max(part_of(kept, share), 1ul);
        if (edge.above >= enough) {
            R candidates = row;
            candidates.few = true;
            candidates.count = listed;
            int low = max(edge.key, listed_above) + 1;
            if (row.few || tally<false, NSG>(candidates, low, group) >= enough) row = candidates;
            low = row.few ? low : edge.key + 1;
            edge = edge_of<false, NSG>(row, enough, low, high, group);
            each = row.mass_of(edge.key);
        }
        left = (enough - edge.above + each - 1) / each;
        kept = edge.above + left * each;
    }
    return drawn<NSG>(row, edge.key, left, part_of(kept, philox(seed) >> 1), group);
}
"""
DRAW = BLOCK_REDUCE + _KEYS + _DRAW


@dataclass(frozen=True)
class SlicedLogits:
    """Threads of both launches' threadgroups, logits of a SIMD-group's slice, and how many of them
    are kept as candidates: up to so large a k, and mostly for top-p, the row is read once."""

    merge_threads: int = threads(32, 1024, default=512)
    threads: int = threads(32, 1024, default=128)  # of the first launch
    slice: int = among(256, 512, 1024, default=1024)
    kept: int = among(32, 64, 128, default=64)


_MERGE = """
    constexpr int NSG = TG / 32;
    threadgroup ulong part[NSG], ties[NSG];
    threadgroup float scratch[NSG];
    const uint lane = thread_index_in_simdgroup, sg = simdgroup_index_in_threadgroup;
    const uint b = threadgroup_position_in_grid.x;
    const uint V = x_shape[1], slices = best_shape[1], listed = keys_shape[1];
    float top = -INFINITY, bound = -INFINITY;
    for (uint s = thread_index_in_threadgroup; s < slices; s += TG) {
        top = max(top, best[b * slices + s]);
        bound = max(bound, least[b * slices + s]);
    }
    top = block_max<NSG>(top, scratch, lane, sg);
    bound = block_max<NSG>(bound, scratch, lane, sg);
    if (isinf(top)) {
        if (thread_index_in_threadgroup == 0) token[b] = -1;
        return;
    }
    const bool greedy = temperature[b] <= 0;
    const uint every = EVERY;
    const ulong share = ulong(clamp(p[b], 0.0f, 1.0f) * 2147483648.0f);
    const float heat = greedy ? 1.0f : max(temperature[b], 1e-30f);
    const size_t list = size_t(b) * listed;
    const auto row =
        logit_row<SHIFT>(x + size_t(b) * V, keys + list, index + list, top, heat);
    const Group group = {part, ties, lane, sg};
    const int result = sampled<KEPT, SHIFT, NSG>(
        row, V, listed, greedy ? 1 : every, share, bound, ulong(seed[b]), group);
    if (lane == 0 && result != NO_TOKEN) token[b] = result;
"""


def sampler_kernels(sampler: str, inputs: str, every: str) -> tuple[MetalKernel, MetalKernel]:
    """Return the kernel that writes, for each slice, its largest logit, its candidates' lower end,
    and their keys and indices, and the one that draws one token a row from them. `inputs` are those
    beside logits and candidates, `every` is how many logits of row `b` may be drawn, in Metal
    source."""
    lists, body = "best least keys index", _MERGE.replace("EVERY", every)
    partials = metal_kernel(
        f"{sampler}_partials", inputs="x", outputs=lists, header=_KEYS, body=_PARTIALS
    )
    all_ = f"x {lists} {inputs}"
    merge = metal_kernel(f"{sampler}_merge", inputs=all_, outputs="token", header=DRAW, body=body)
    return partials, merge


def draw_tokens(
    partials: MetalKernel,
    merge: MetalKernel,
    config: SlicedLogits,
    logits: torch.Tensor,
    *more: torch.Tensor,
) -> Any:
    """Launch both kernels and return the tokens; the last of the further inputs is the seeds. The
    first returns two of B x slices in fp32 and two of B x (slices x kept) in int32."""
    (B, V), seed, group = logits.shape, more[-1], config.merge_threads
    slices, values = -(-V // config.slice), dict(KEPT=config.kept, SHIFT=SHIFT[logits.dtype])
    ends = torch.empty(B, slices, dtype=torch.float32, device="meta")
    lists = torch.empty(B, slices * config.kept, dtype=torch.int32, device="meta")
    like, grid = (ends, ends, lists, lists), (32 * slices, B, 1)
    candidates = partials(
        logits, like=like, grid=grid, group=config.threads, SLICE=config.slice, **values
    )
    tokens, grid = seed.new_empty(seed.shape, device="meta"), (group * B, 1, 1)
    inputs = (logits, *candidates, *more)
    return merge(*inputs, like=tokens, grid=grid, group=group, **values, TG=group)


def sliced_work(config: SlicedLogits, limits: Limits, *, itemsize: int, B: int, V: int) -> Work:
    """Return the work of both launches where the candidates suffice: logits are read once, and
    candidates written and read."""
    lists = 8 * config.kept + 8
    load = config.slice * itemsize + lists
    return Work(tiles=B * -(-V // config.slice), steps=1, load_bytes=load, store_bytes=lists)
