"""F fused multiply-adds on each element of three streams on Metal, as the Triton variant does them.

Device memory limits it while F is small, and the vector units when F is large. A thread runs
`chains` of multiply-adds that do not wait for each other; the loop reads no device memory.
"""

from dataclasses import dataclass

from metal_shim.kernel import metal_kernel
from workbench.spec import Work, among, threads
from workbench.variants.streamed_fma import streamed_fma

# a = 1 - 2^-10 and b = 2^-10 are exact
STREAMS = metal_kernel(
    "streamed_fma_chains",
    inputs="x a b",
    outputs="y",
    body="""
    const uint n = x_shape[0];
    const uint start = threadgroup_position_in_grid.x * TG * CHAINS + thread_index_in_threadgroup;
    float v[CHAINS];
    for (uint c = 0; c < CHAINS; c++) {
        const uint i = start + c * TG;
        v[c] = i < n ? fma(float(a[i]), float(x[i]), float(b[i])) : 0.0f;
    }
    for (int step = 1; step < F; step++)
        for (uint c = 0; c < CHAINS; c++) v[c] = fma(0.9990234375f, v[c], 0.0009765625f);
    for (uint c = 0; c < CHAINS; c++)
        if (start + c * TG < n) y[start + c * TG] = T(v[c]);
""",
)


@dataclass(frozen=True)
class StreamedChains:
    threads: int = threads(32, 1024, default=256)
    chains: int = among(1, 2, 4, 8, 16, default=8)  # in each thread


def work(config, limits, *, itemsize, N, F):
    held = config.threads * config.chains
    moved = held * itemsize
    return Work(tiles=-(-N // held), steps=1, load_bytes=3 * moved, store_bytes=moved)


@streamed_fma.impl(StreamedChains, backend="metal", work=work)
def scalar_chains(x, a, b, steps, *, config):
    """One threadgroup runs `threads * chains` chains, neighbours in neighbouring threads."""
    TG, C, F = config.threads, config.chains, steps.shape[0]
    grid = (TG * -(-x.shape[0] // (TG * C)), 1, 1)
    return STREAMS(x, a, b, like=x, grid=grid, group=TG, T=x.dtype, TG=TG, CHAINS=C, F=F)
