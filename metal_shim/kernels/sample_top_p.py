"""Top-p sampling on Metal: memory-bound, a row is read once for candidates and once for its mass.

`partials`: a SIMD-group holds a slice of a row and writes its largest logits, chosen by bisection
without a barrier. `merge`: a threadgroup a row sums all masses as whole numbers, cuts the
candidates of all slices at p and draws by Philox. Where the candidates do not reach p, as in
flat rows, the row itself is read for each step of a bisection, which is slow and exact; p from 1 on
needs no cut.
Tokens equal the Spec's bit by bit except where exp rounds a mass.
"""

from dataclasses import replace

from metal_shim.kernel import metal_kernel
from metal_shim.sampling import (
    DRAW,
    SlicedLogits,
    merge_values,
    partials_kernel,
    sliced,
    sliced_work,
)
from workbench.kernels.sample_top_p import sample_top_p

PARTIALS = partials_kernel("sample_top_p")

MERGE = metal_kernel(
    "sample_top_p_merge",
    inputs="x best least keys index p temperature seed",
    outputs="token",
    header=DRAW,
    body="""
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
    const ulong share = ulong(clamp(p[b], 0.0f, 1.0f) * 2147483648.0f);
    const float heat = greedy ? 1.0f : max(temperature[b], 1e-30f);
    const size_t list = size_t(b) * listed;
    const auto row =
        logit_row<SHIFT>(x + size_t(b) * V, keys + list, index + list, top, heat);
    const Group group = {part, ties, lane, sg};
    const int result = sampled<KEPT, SHIFT, NSG>(
        row, V, listed, greedy ? 1 : V, share, bound, ulong(seed[b]), group);
    if (lane == 0 && result != NO_TOKEN) token[b] = result;
""",
)


def masses_work(config, limits, *, itemsize, B, V):
    whole = sliced_work(config, limits, itemsize=itemsize, B=B, V=V)
    # each logit is read again for the mass of all
    return replace(whole, load_bytes=whole.load_bytes + config.slice * itemsize)


@sample_top_p.impl(SlicedLogits, backend="metal", work=masses_work)
def partials_and_merge(logits, p, temperature, seed, *, config):
    """The largest logits of each slice, then one token from those of a row."""
    lists = sliced(PARTIALS, logits, config)
    grid = (config.merge_threads * logits.shape[0], 1, 1)
    values = merge_values(logits, config)
    token, inputs = seed.new_empty(seed.shape, device="meta"), (p, temperature, seed)
    group = config.merge_threads
    return MERGE(logits, *lists, *inputs, like=token, grid=grid, group=group, **values)
