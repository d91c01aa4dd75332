"""Softmax on Metal: memory-bound, so a row should come from device memory once.

A row stays in registers while a thread holds at most 32 of its values (`simd_rows`, `lanes`); a
longer one is read twice (`online`). exp differs in its last bits by MLX's `math_mode`, and the
order in which simd_sum adds is not specified: results agree within tolerances, not bit by bit.
"""

from dataclasses import dataclass, replace

from metal_shim.kernel import metal_kernel
from metal_shim.launches import (
    LoopedRows,
    held_impl,
    launch_rows,
    reject_rows,
    rows_kernel,
    rows_work,
)
from metal_shim.msl import BLOCK_REDUCE
from workbench.kernels.softmax import softmax
from workbench.spec import AUTO, among, value_or

_HELD = """
    float held[VALUES];
    float high = -INFINITY, total = 0;
    for (uint k = 0, i = lid; k < VALUES; k++, i += TG) {
        held[k] = i < n ? float(x[row + i]) : -INFINITY;
        high = max(high, held[k]);
    }
    high = block_max<NSG>(high, part, lane, sg);
    for (uint k = 0; k < VALUES; k++) total += held[k] = exp(held[k] - high);
    total = block_sum<NSG>(total, part, lane, sg);
    for (uint k = 0, i = lid; k < VALUES; k++, i += TG)
        if (i < n) y[row + i] = T(held[k] / total);
"""
SIMD_ROWS = rows_kernel("softmax_simd_rows", "x", _HELD)

# Of a single SIMD-group the reductions need neither barrier nor threadgroup memory.
_LANES_PLACE = """
    constexpr int NSG = 1, TG = 32;
    threadgroup float* part = nullptr;
    const uint lid = thread_index_in_simdgroup, lane = lid, sg = 0, n = x_shape[1];
    const size_t row = size_t(thread_position_in_grid.x / 32) * n;"""
LANES = metal_kernel(
    "softmax_lanes", inputs="x", outputs="y", header=BLOCK_REDUCE, body=_LANES_PLACE + _HELD
)

# The maximum starts at the least finite float: -inf - -inf would be NaN.
ONLINE = rows_kernel(
    "softmax_online",
    "x",
    """
    float high = -FLT_MAX, total = 0;
    for (uint i = lid; i < n; i += TG) {
        const float v = float(x[row + i]), higher = max(high, v);
        total = total * exp(high - higher) + exp(v - higher);
        high = higher;
    }
    const float top = block_max<NSG>(high, part, lane, sg);
    total = block_sum<NSG>(total * exp(high - top), part, lane, sg);
    for (uint i = lid; i < n; i += TG)
        y[row + i] = T(exp(float(x[row + i]) - top) / total);
""",
)


@held_impl(softmax, reads=1)
def simd_rows(x, *, config):
    """One threadgroup per row, held in registers: x is read once."""
    return launch_rows(SIMD_ROWS, config, x)


@dataclass(frozen=True)
class Lanes:
    rows: int = among(1, 2, 4, 8, default=4)  # SIMD-groups of a threadgroup
    values: int = among(1, 4, 16, 32, 128, default=AUTO)  # of a row in each lane


def size_lanes(config, limits, *, itemsize, M, N):
    """Return the config with the fewest values that hold a row; beyond 32 registers spill."""
    least = next((v for v in (1, 4, 16, 32) if 32 * v >= N), 128)
    return replace(config, values=value_or(config.values, least))


def refuse_lanes(config, limits, *, itemsize, M, N):
    return reject_rows(32 * config.values, N)


@softmax.impl(Lanes, backend="metal", resolve=size_lanes, refuse=refuse_lanes, work=rows_work(1))
def lanes(x, *, config):
    """One SIMD-group per row, without a barrier."""
    M, N = x.shape
    if reason := reject_rows(32 * config.values, N):
        raise ValueError(reason)
    group = 32 * config.rows
    return LANES(x, like=x, grid=(32 * M, 1, 1), group=group, T=x.dtype, VALUES=config.values)


@softmax.impl(LoopedRows, backend="metal", work=rows_work(1, steps=2))
def online(x, *, config):
    """One threadgroup per row of any length, with a running maximum: x is read twice."""
    return launch_rows(ONLINE, config, x)
