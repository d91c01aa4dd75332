"""1024 fused multiply-adds on each element on Metal: what the vector units give in fp32.

A thread runs `chains` of them that do not wait for each other. They are scalars and not a float4:
one chain of float4 reached 22 % of an M5's peak in a public thread, not measured here. The loop
reads no device memory.
"""

from metal_shim.launches import ScalarChains, chains_kernel, chains_work, launch_chains
from workbench.kernels.compute_only import compute_only

SCALAR_CHAINS = chains_kernel(
    "compute_only_scalar_chains", "x", "float(x[i])", "int trip = 0; trip < 1024; trip++"
)


@compute_only.impl(ScalarChains, backend="metal", work=chains_work(reads=1))
def scalar_chains(x, *, config):
    """One threadgroup runs `threads * chains` chains, neighbours in neighbouring threads."""
    return launch_chains(SCALAR_CHAINS, config, x)
