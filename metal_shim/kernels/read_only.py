"""The largest element of every 4096 on Metal: what memory gives when nothing is written.

A thread takes four neighbours at once, so a SIMD-group asks for 512 bytes of fp32 in one
instruction. Metal's max returns the operand that is a number, so NaN is never the largest.
"""

from dataclasses import dataclass

from metal_shim.kernel import metal_kernel
from metal_shim.msl import BLOCK_REDUCE, LOAD4
from workbench.kernels.read_only import CHUNK, read_only
from workbench.spec import Work, threads

SIMD_CHUNKS = metal_kernel(
    "read_only_simd_chunks",
    inputs="x",
    outputs="y",
    header=BLOCK_REDUCE + LOAD4,
    body="""
    constexpr int NSG = TG / 32;
    threadgroup float part[NSG];
    const uint chunk = threadgroup_position_in_grid.x;
    const size_t start = size_t(chunk) * CHUNK;
    float high = -INFINITY;
    for (uint i = 4 * thread_index_in_threadgroup; i < CHUNK; i += 4 * TG) {
        const vec<T, 4> v = load4(x + start + i);
        high = max(high, max(max(float(v.x), float(v.y)), max(float(v.z), float(v.w))));
    }
    high = block_max<NSG>(high, part, thread_index_in_simdgroup, simdgroup_index_in_threadgroup);
    if (thread_index_in_threadgroup == 0) y[chunk] = T(high);
""",
)


@dataclass(frozen=True)
class SimdChunks:
    threads: int = threads(32, 1024, default=256)


def work(config, limits, *, itemsize, N):
    return Work(tiles=N // CHUNK, steps=1, load_bytes=CHUNK * itemsize, store_bytes=itemsize)


@read_only.impl(SimdChunks, backend="metal", work=work)
def simd_chunks(x, *, config):
    """One threadgroup a chunk."""
    C, TG = x.shape[0] // CHUNK, config.threads
    y = x.new_empty(C, device="meta")
    return SIMD_CHUNKS(x, like=y, grid=(TG * C, 1, 1), group=TG, T=x.dtype, TG=TG, CHUNK=CHUNK)
