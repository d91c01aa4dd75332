"""RMS norm on Metal: memory-bound, so a row should come from device memory once.

A row stays in registers while a thread holds at most 32 of its values (`simd_rows`); a longer one
is read twice (`looped_rows`). The order in which simd_sum adds is not specified, so results agree
within tolerances, not bit by bit.
"""

from dataclasses import dataclass

from metal_shim.kernel import metal_kernel
from metal_shim.msl import BLOCK_REDUCE
from metal_shim.rows import HeldRows, checked_rows, refuse_rows, size_rows
from workbench.kernels.rms_norm import rms_norm
from workbench.spec import Work, threads

SIMD_ROWS = metal_kernel(
    "rms_norm_simd_rows",
    inputs="x w",
    outputs="y",
    header=BLOCK_REDUCE,
    body="""
    constexpr int NSG = TG / 32;
    threadgroup float part[NSG];
    const uint lane = thread_index_in_simdgroup, sg = simdgroup_index_in_threadgroup;
    const uint n = x_shape[1];
    const size_t row = size_t(threadgroup_position_in_grid.x) * n;
    float held[VALUES];
    float squares = 0;
    for (uint k = 0; k < VALUES; k++) {
        const uint i = thread_index_in_threadgroup + k * TG;
        held[k] = i < n ? float(x[row + i]) : 0.0f;
        squares += held[k] * held[k];
    }
    squares = block_sum<NSG>(squares, part, lane, sg);
    const float scale = precise::rsqrt(squares / float(n) + 1e-6f);
    for (uint k = 0; k < VALUES; k++) {
        const uint i = thread_index_in_threadgroup + k * TG;
        if (i < n) y[row + i] = T(held[k] * scale * float(w[i]));
    }
""",
)

LOOPED_ROWS = metal_kernel(
    "rms_norm_looped_rows",
    inputs="x w",
    outputs="y",
    header=BLOCK_REDUCE,
    body="""
    constexpr int NSG = TG / 32;
    threadgroup float part[NSG];
    const uint lane = thread_index_in_simdgroup, sg = simdgroup_index_in_threadgroup;
    const uint n = x_shape[1];
    const size_t row = size_t(threadgroup_position_in_grid.x) * n;
    float squares = 0;
    for (uint i = thread_index_in_threadgroup; i < n; i += TG) {
        const float v = float(x[row + i]);
        squares += v * v;
    }
    squares = block_sum<NSG>(squares, part, lane, sg);
    const float scale = precise::rsqrt(squares / float(n) + 1e-6f);
    for (uint i = thread_index_in_threadgroup; i < n; i += TG)
        y[row + i] = T(float(x[row + i]) * scale * float(w[i]));
""",
)


def simd_rows_work(config, limits, *, itemsize, M, N):
    return Work(tiles=M, steps=1, load_bytes=2 * N * itemsize, store_bytes=N * itemsize)


@rms_norm.impl(
    HeldRows, backend="metal", resolve=size_rows, refuse=refuse_rows, work=simd_rows_work
)
def simd_rows(x, w, *, config):
    """One threadgroup a row, held in registers: x is read once, w once for each row."""
    M, N = x.shape
    values, grid = checked_rows(config, N), (config.threads * M, 1, 1)
    return SIMD_ROWS(x, w, like=x, grid=grid, group=config.threads, T=x.dtype, **values)


@dataclass(frozen=True)
class LoopedRows:
    threads: int = threads(32, 1024, default=256)


def looped_rows_work(config, limits, *, itemsize, M, N):
    return Work(tiles=M, steps=1, load_bytes=3 * N * itemsize, store_bytes=N * itemsize)


@rms_norm.impl(LoopedRows, backend="metal", work=looped_rows_work)
def looped_rows(x, w, *, config):
    """One threadgroup a row of any length: x is read twice."""
    T, TG = x.dtype, config.threads
    return LOOPED_ROWS(x, w, like=x, grid=(TG * x.shape[0], 1, 1), group=TG, T=T, TG=TG)
