"""Top-k and top-p sampling on Metal: memory-bound by the first launch, then by latency.

`partials`: a SIMD-group holds a slice of a row and writes its largest logits, chosen by bisection
without a barrier. `merge`: a threadgroup a row takes k from the candidates of all slices, sums
masses as whole numbers, cuts at p and draws by Philox. Where k is larger than the candidates of a
slice, or candidates do not reach p, the row itself is read for each step of a bisection, which is
slow and exact. Tokens equal the Spec's bit by bit except where exp rounds a mass.
"""

from metal_shim.kernel import metal_kernel
from metal_shim.sampling import (
    DRAW,
    SlicedLogits,
    merge_values,
    partials_kernel,
    sliced,
    sliced_work,
)
from workbench.kernels.sample_topk_topp import sample_topk_topp

PARTIALS = partials_kernel("sample_topk_topp")

MERGE = metal_kernel(
    "sample_topk_topp_merge",
    inputs="x best least keys index k p temperature seed",
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
    const uint every = k[b] < 1 || uint(k[b]) > V ? V : uint(k[b]);
    const ulong share = ulong(clamp(p[b], 0.0f, 1.0f) * 2147483648.0f);
    const float heat = greedy ? 1.0f : max(temperature[b], 1e-30f);
    const size_t list = size_t(b) * listed;
    const auto row =
        logit_row<SHIFT>(x + size_t(b) * V, keys + list, index + list, top, heat);
    const Group group = {part, ties, lane, sg};
    const int result = sampled<KEPT, SHIFT, NSG>(
        row, V, listed, greedy ? 1 : every, share, bound, ulong(seed[b]), group);
    if (lane == 0 && result != NO_TOKEN) token[b] = result;
""",
)


@sample_topk_topp.impl(SlicedLogits, backend="metal", work=sliced_work)
def partials_and_merge(logits, k, p, temperature, seed, *, config):
    """The largest logits of each slice, then one token from those of a row."""
    lists = sliced(PARTIALS, logits, config)
    grid = (config.merge_threads * logits.shape[0], 1, 1)
    values = merge_values(logits, config)
    token, inputs = seed.new_empty(seed.shape, device="meta"), (k, p, temperature, seed)
    group = config.merge_threads
    return MERGE(logits, *lists, *inputs, like=token, grid=grid, group=group, **values)
