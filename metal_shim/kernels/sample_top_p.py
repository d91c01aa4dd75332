"""Top-p sampling on Metal: memory-bound, a row is read once for candidates and once for its mass.

`partials`: a SIMD-group holds a slice of a row and writes its largest logits, chosen by bisection
without a barrier. `merge`: a threadgroup a row sums all masses as whole numbers, cuts the
candidates of all slices at p and draws by Philox. Where the candidates do not reach p, as in
flat rows, the row itself is read for each step of a bisection, which is slow and exact; p from 1 on
needs no cut.
Tokens equal the Spec's bit by bit except where exp rounds a mass.
"""

from dataclasses import replace

from metal_shim import sampling
from workbench.kernels.sample_top_p import sample_top_p

PARTIALS, MERGE = sampling.sampler_kernels("sample_top_p", "p temperature seed", every="V")


def masses_work(config, limits, *, itemsize, B, V):
    whole = sampling.sliced_work(config, limits, itemsize=itemsize, B=B, V=V)
    # each logit is read again for the mass of all
    return replace(whole, load_bytes=whole.load_bytes + config.slice * itemsize)


@sample_top_p.impl(sampling.SlicedLogits, backend="metal", work=masses_work)
def partials_and_merge(logits, p, temperature, seed, *, config):
    """The largest logits of each slice, then one token from those of a row."""
    return sampling.draw_tokens(PARTIALS, MERGE, config, logits, p, temperature, seed)
