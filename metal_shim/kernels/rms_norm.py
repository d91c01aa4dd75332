"""RMS norm on Metal: memory-bound, so a row should come from device memory once.

A row stays in registers while a thread holds at most 32 of its values (`simd_rows`); a longer one
is read twice (`looped_rows`). The order in which simd_sum adds is not specified, so results agree
within tolerances, not bit by bit.
"""

from metal_shim.kernel import metal_kernel
from metal_shim.msl import BLOCK_REDUCE, ROW_PLACE
from metal_shim.rows import HeldRows, LoopedRows, launch_rows, refuse_rows, size_rows
from workbench.kernels.rms_norm import rms_norm
from workbench.spec import Work

SIMD_ROWS = metal_kernel(
    "rms_norm_simd_rows",
    inputs="x w",
    outputs="y",
    header=BLOCK_REDUCE,
    body=ROW_PLACE
    + """
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
    body=ROW_PLACE
    + """
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
    return launch_rows(SIMD_ROWS, config, x, w)


def looped_rows_work(config, limits, *, itemsize, M, N):
    return Work(tiles=M, steps=1, load_bytes=3 * N * itemsize, store_bytes=N * itemsize)


@rms_norm.impl(LoopedRows, backend="metal", work=looped_rows_work)
def looped_rows(x, w, *, config):
    """One threadgroup a row of any length: x is read twice."""
    return launch_rows(LOOPED_ROWS, config, x, w)
