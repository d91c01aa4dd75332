"""Softmax on Metal: memory-bound, so each row is to come from device memory once.

Up to `values` elements of a lane stay in registers between the two passes over a row; a longer row
is read twice (`online`). exp differs in its last bits by MLX's `math_mode`, and the order in which
simd_sum adds is not specified: results are compared with tolerances.
"""

from dataclasses import dataclass

from metal_shim.kernel import metal_kernel
from workbench.kernels.softmax import softmax
from workbench.spec import Work, among, threads

SIMD_ROWS = metal_kernel(
    "softmax_simd_rows",
    inputs="x",
    outputs="y",
    body="""
    constexpr int NSG = TG / 32;
    threadgroup float part[NSG];
    const uint row = threadgroup_position_in_grid.x;
    const uint i0 = thread_index_in_threadgroup;
    const uint lane = thread_index_in_simdgroup, sg = simdgroup_index_in_threadgroup;
    const uint n = x_shape[1];
    const size_t at = size_t(row) * n;
    float held[VALUES];
    float high = -INFINITY;
    for (uint k = 0; k < VALUES; k++) {
        const uint i = i0 + k * TG;
        held[k] = i < n ? float(x[at + i]) : -INFINITY;
        high = max(high, held[k]);
    }
    high = simd_max(high);
    if (lane == 0) part[sg] = high;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    high = simd_max(lane < NSG ? part[lane] : -INFINITY);
    float total = 0;
    for (uint k = 0; k < VALUES; k++) {
        held[k] = exp(held[k] - high);
        total += held[k];
    }
    total = simd_sum(total);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (lane == 0) part[sg] = total;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    total = simd_sum(lane < NSG ? part[lane] : 0.0f);
    for (uint k = 0; k < VALUES; k++) {
        const uint i = i0 + k * TG;
        if (i < n) y[at + i] = T(held[k] / total);
    }
""",
)


@dataclass(frozen=True)
class Rows:
    threads: int = threads(32, 1024, default=256)
    values: int = among(4, 8, 16, 32, default=16)  # of a row that a thread holds


def refuse_rows(config, limits, *, itemsize, M, N):
    held = config.threads * config.values
    return f"{config.threads} threads hold {held} values of a row of {N}" if N > held else None


@softmax.impl(Rows, backend="metal", refuse=refuse_rows)
def simd_rows(x, *, config):
    """One threadgroup a row, in registers: x is read once."""
    T, TG = x.dtype, config.threads
    grid = (TG * x.shape[0], 1, 1)
    return SIMD_ROWS(x, like=x, grid=grid, group=TG, T=T, TG=TG, VALUES=config.values)
