"""Top-k and top-p sampling on Metal: memory-bound by the first launch, then by latency.

`partials`: a SIMD-group holds a slice of a row and writes its largest logits, chosen by bisection
without a barrier. `merge`: a threadgroup a row takes k from the candidates of all slices, sums
masses as whole numbers, cuts at p and draws by Philox. Where k is larger than the candidates of a
slice, or candidates do not reach p, the row itself is read for each step of a bisection, which is
slow and exact. Tokens equal the Spec's bit by bit except where exp rounds a mass.
"""

from metal_shim import sampling
from workbench.kernels.sample_topk_topp import sample_topk_topp

PARTIALS, MERGE = sampling.sampler_kernels(
    "sample_topk_topp", "k p temperature seed", every="k[b] < 1 || uint(k[b]) > V ? V : uint(k[b])"
)


@sample_topk_topp.impl(sampling.SlicedLogits, backend="metal", work=sampling.sliced_work)
def partials_and_merge(logits, k, p, temperature, seed, *, config):
    """The largest logits of each slice, then one token from those of a row."""
    return sampling.draw_tokens(PARTIALS, MERGE, config, logits, k, p, temperature, seed)
