"""1024 fused multiply-adds on each element on Metal: what the vector units give in fp32.

A thread runs `chains` of them that do not wait for each other. They are scalars and not a float4:
one chain of float4 reached 22 % of an M5's peak in a public thread, not measured here. The loop
reads no device memory.
"""

from dataclasses import dataclass

from metal_shim.kernel import metal_kernel
from workbench.kernels.compute_only import compute_only
from workbench.spec import Work, among, threads

# a = 1 - 2^-10 and b = 2^-10 are exact
SCALAR_CHAINS = metal_kernel(
    "compute_only_scalar_chains",
    inputs="x",
    outputs="y",
    body="""
    const uint n = x_shape[0];
    const uint start = threadgroup_position_in_grid.x * TG * CHAINS + thread_index_in_threadgroup;
    float v[CHAINS];
    for (uint c = 0; c < CHAINS; c++) v[c] = start + c * TG < n ? float(x[start + c * TG]) : 0.0f;
    for (int trip = 0; trip < 1024; trip++)
        for (uint c = 0; c < CHAINS; c++) v[c] = fma(0.9990234375f, v[c], 0.0009765625f);
    for (uint c = 0; c < CHAINS; c++)
        if (start + c * TG < n) y[start + c * TG] = T(v[c]);
""",
)


@dataclass(frozen=True)
class ScalarChains:
    threads: int = threads(32, 1024, default=256)
    chains: int = among(1, 2, 4, 8, 16, default=8)  # in each thread


def work(config, limits, *, itemsize, N):
    held = config.threads * config.chains
    moved = held * itemsize
    return Work(tiles=-(-N // held), steps=1, load_bytes=moved, store_bytes=moved)


@compute_only.impl(ScalarChains, backend="metal", work=work)
def scalar_chains(x, *, config):
    """One threadgroup runs `threads * chains` chains, neighbours in neighbouring threads."""
    TG, C = config.threads, config.chains
    grid = (TG * -(-x.shape[0] // (TG * C)), 1, 1)
    return SCALAR_CHAINS(x, like=x, grid=grid, group=TG, T=x.dtype, TG=TG, CHAINS=C)
