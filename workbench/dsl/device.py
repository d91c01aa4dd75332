"""Device code that several kernels share."""

from workbench.dsl import INTERPRETED, tl, triton

_APART = tl.constexpr(INTERPRETED)  # the interpreter reduces pairs element by element


@triton.jit
def _add_pairs(a, b, c, d):
    return a + c, b + d


@triton.jit
def sum_pairs(a, b):
    """Return the sums of the rows of two blocks, both in one round through shared memory."""
    if _APART:
        return tl.sum(a, axis=1, keep_dims=True), tl.sum(b, axis=1, keep_dims=True)
    else:
        return tl.reduce((a, b), 1, _add_pairs, keep_dims=True)
