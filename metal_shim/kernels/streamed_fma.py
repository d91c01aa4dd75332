"""F fused multiply-adds on each element of three streams on Metal, as the Triton variant does them.

Device memory limits it while F is small, and the vector units when F is large. A thread runs
`chains` of multiply-adds that do not wait for each other; the loop reads no device memory.
"""

from metal_shim.launches import ScalarChains, chains_kernel, chains_work, launch_chains
from workbench.variants.streamed_fma import streamed_fma

STREAMS = chains_kernel(
    "streamed_fma_chains",
    "x a b",
    "fma(float(a[i]), float(x[i]), float(b[i]))",
    "int step = 1; step < F; step++",
)


@streamed_fma.impl(ScalarChains, backend="metal", work=chains_work(reads=3))
def scalar_chains(x, a, b, steps, *, config):
    """One threadgroup runs `threads * chains` chains, neighbours in neighbouring threads."""
    return launch_chains(STREAMS, config, x, a, b, F=steps.shape[0])
