"""RMS norm on Metal: memory-bound, so a row should come from device memory once.

A row stays in registers while a thread holds at most 32 of its values (`simd_rows`); a longer one
is read twice (`looped_rows`). The order in which simd_sum adds is not specified, so results agree
within tolerances, not bit by bit.
"""

from metal_shim.launches import LoopedRows, held_impl, launch_rows, rows_kernel, rows_work
from workbench.kernels.rms_norm import rms_norm

SIMD_ROWS = rows_kernel(
    "rms_norm_simd_rows",
    "x w",
    """
    float held[VALUES];
    float squares = 0;
    for (uint k = 0, i = lid; k < VALUES; k++, i += TG) {
        held[k] = i < n ? float(x[row + i]) : 0.0f;
        squares += held[k] * held[k];
    }
    squares = block_sum<NSG>(squares, part, lane, sg);
    const float scale = precise::rsqrt(squares / float(n) + 1e-6f);
    for (uint k = 0, i = lid; k < VALUES; k++, i += TG)
        if (i < n) y[row + i] = T(held[k] * scale * float(w[i]));
""",
)

LOOPED_ROWS = rows_kernel(
    "rms_norm_looped_rows",
    "x w",
    """
    float squares = 0;
    for (uint i = lid; i < n; i += TG) {
        const float v = float(x[row + i]);
        squares += v * v;
    }
    squares = block_sum<NSG>(squares, part, lane, sg);
    const float scale = precise::rsqrt(squares / float(n) + 1e-6f);
    for (uint i = lid; i < n; i += TG)
        y[row + i] = T(float(x[row + i]) * scale * float(w[i]));
""",
)


@held_impl(rms_norm, reads=2)
def simd_rows(x, w, *, config):
    """One threadgroup per row, held in registers: x is read once, w once for each row."""
    return launch_rows(SIMD_ROWS, config, x, w)


@rms_norm.impl(LoopedRows, backend="metal", work=rows_work(3))
def looped_rows(x, w, *, config):
    """One threadgroup per row of any length: x is read twice."""
    return launch_rows(LOOPED_ROWS, config, x, w)
