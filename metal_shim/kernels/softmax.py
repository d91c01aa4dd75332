"""Softmax on Metal: memory-bound, so a row should come from device memory once.

A row stays in registers while a thread holds at most 32 of its values (`simd_rows`, `lanes`); a
longer one is read twice (`online`). exp differs in its last bits by MLX's `math_mode`, and the
order in which simd_sum adds is not specified: results agree within tolerances, not bit by bit.
"""

from dataclasses import dataclass, replace

from metal_shim.kernel import metal_kernel
from metal_shim.msl import BLOCK_REDUCE, ROW_PLACE
from metal_shim.rows import HeldRows, LoopedRows, launch_rows, refuse_rows, reject_rows, size_rows
from workbench.kernels.softmax import softmax
from workbench.spec import AUTO, Work, among, given

SIMD_ROWS = metal_kernel(
    "softmax_simd_rows",
    inputs="x",
    outputs="y",
    header=BLOCK_REDUCE,
    body=ROW_PLACE
    + """
    float held[VALUES];
    float high = -INFINITY, total = 0;
    for (uint k = 0; k < VALUES; k++) {
        const uint i = thread_index_in_threadgroup + k * TG;
        held[k] = i < n ? float(x[row + i]) : -INFINITY;
        high = max(high, held[k]);
    }
    high = block_max<NSG>(high, part, lane, sg);
    for (uint k = 0; k < VALUES; k++) {
        held[k] = exp(held[k] - high);
        total += held[k];
    }
    total = block_sum<NSG>(total, part, lane, sg);
    for (uint k = 0; k < VALUES; k++) {
        const uint i = thread_index_in_threadgroup + k * TG;
        if (i < n) y[row + i] = T(held[k] / total);
    }
""",
)

LANES = metal_kernel(
    "softmax_lanes",
    inputs="x",
    outputs="y",
    body="""
    const uint lane = thread_index_in_simdgroup, n = x_shape[1];
    const size_t row = size_t(thread_position_in_grid.x / 32) * n;
    float held[VALUES];
    float high = -INFINITY, total = 0;
    for (uint k = 0; k < VALUES; k++) {
        held[k] = lane + 32 * k < n ? float(x[row + lane + 32 * k]) : -INFINITY;
        high = max(high, held[k]);
    }
    high = simd_max(high);
    for (uint k = 0; k < VALUES; k++) {
        held[k] = exp(held[k] - high);
        total += held[k];
    }
    total = simd_sum(total);
    for (uint k = 0; k < VALUES; k++)
        if (lane + 32 * k < n) y[row + lane + 32 * k] = T(held[k] / total);
""",
)

# The maximum starts at the least finite float: -inf - -inf would be NaN.
ONLINE = metal_kernel(
    "softmax_online",
    inputs="x",
    outputs="y",
    header=BLOCK_REDUCE,
    body=ROW_PLACE
    + """
    float high = -FLT_MAX, total = 0;
    for (uint i = thread_index_in_threadgroup; i < n; i += TG) {
        const float v = float(x[row + i]), higher = max(high, v);
        total = total * exp(high - higher) + exp(v - higher);
        high = higher;
    }
    const float top = block_max<NSG>(high, part, lane, sg);
    total = block_sum<NSG>(total * exp(high - top), part, lane, sg);
    for (uint i = thread_index_in_threadgroup; i < n; i += TG)
        y[row + i] = T(exp(float(x[row + i]) - top) / total);
""",
)


def rows_work(config, limits, *, itemsize, M, N):
    return Work(tiles=M, steps=1, load_bytes=N * itemsize, store_bytes=N * itemsize)


@softmax.impl(HeldRows, backend="metal", resolve=size_rows, refuse=refuse_rows, work=rows_work)
def simd_rows(x, *, config):
    """One threadgroup a row, held in registers: x is read once."""
    return launch_rows(SIMD_ROWS, config, x)


@dataclass(frozen=True)
class Lanes:
    rows: int = among(1, 2, 4, 8, default=4)  # SIMD-groups of a threadgroup
    values: int = among(1, 4, 16, 32, 128, default=AUTO)  # of a row in each lane


def size_lanes(config, limits, *, itemsize, M, N):
    """Return the config with the fewest values that hold a row; beyond 32 registers spill."""
    least = next((v for v in (1, 4, 16, 32) if 32 * v >= N), 128)
    return replace(config, values=given(config.values, least))


def refuse_lanes(config, limits, *, itemsize, M, N):
    return reject_rows(32 * config.values, N)


@softmax.impl(Lanes, backend="metal", resolve=size_lanes, refuse=refuse_lanes, work=rows_work)
def lanes(x, *, config):
    """One SIMD-group a row, without a barrier."""
    M, N = x.shape
    if reason := reject_rows(32 * config.values, N):
        raise ValueError(reason)
    group = 32 * config.rows
    return LANES(x, like=x, grid=(32 * M, 1, 1), group=group, T=x.dtype, VALUES=config.values)


def online_work(config, limits, *, itemsize, M, N):
    return Work(tiles=M, steps=2, load_bytes=N * itemsize, store_bytes=N * itemsize)


@softmax.impl(LoopedRows, backend="metal", work=online_work)
def online(x, *, config):
    """One threadgroup a row of any length, with a running maximum: x is read twice."""
    return launch_rows(ONLINE, config, x)
