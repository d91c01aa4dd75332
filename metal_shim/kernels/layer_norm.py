"""Layer norm on Metal: memory-bound, so a row should come from device memory once.

A row stays in registers while a thread holds at most 32 of its values (`simd_rows`): mean, then
centred squares, without the cancellation of E[x^2] - E[x]^2. A longer row is read twice
(`welford`): each thread has a running mean and sum of squares, joined over the lanes by Chan's
rule. The order of sums is not specified, so results agree within tolerances, not bit by bit.
"""

from metal_shim.launches import LoopedRows, held_impl, launch_rows, rows_kernel
from workbench.kernels.layer_norm import layer_norm
from workbench.spec import Work

SIMD_ROWS = rows_kernel(
    "layer_norm_simd_rows",
    "x w b",
    """
    float held[VALUES];
    float sum = 0, squares = 0;
    for (uint k = 0, i = lid; k < VALUES; k++, i += TG) {
        held[k] = i < n ? float(x[row + i]) : 0.0f;
        sum += held[k];
    }
    const float mean = block_sum<NSG>(sum, part, lane, sg) / float(n);
    for (uint k = 0, i = lid; k < VALUES; k++, i += TG) {
        held[k] = i < n ? held[k] - mean : 0.0f;
        squares += held[k] * held[k];
    }
    squares = block_sum<NSG>(squares, part, lane, sg);
    const float scale = precise::rsqrt(squares / float(n) + 1e-5f);
    for (uint k = 0, i = lid; k < VALUES; k++, i += TG)
        if (i < n) y[row + i] = T(held[k] * scale * float(w[i]) + float(b[i]));
""",
)

# The total of the squares is the sum of each thread's own and of count * (mean - total mean)^2. All
# is counted from the row's first element, so that a common level leaves no trace.
WELFORD = rows_kernel(
    "layer_norm_welford",
    "x w b",
    """
    const float origin = float(x[row]);
    float count = 0, own = 0, squares = 0;
    for (uint i = lid; i < n; i += TG) {
        const float v = float(x[row + i]) - origin, before = v - own;
        count += 1;
        own += before / count;
        squares += before * (v - own);
    }
    const float mean = block_sum<NSG>(count * own, part, lane, sg) / float(n);
    squares += count * (own - mean) * (own - mean);
    squares = block_sum<NSG>(squares, part, lane, sg);
    const float scale = precise::rsqrt(squares / float(n) + 1e-5f);
    for (uint i = lid; i < n; i += TG)
        y[row + i] = T((float(x[row + i]) - origin - mean) * scale * float(w[i]) + float(b[i]));
""",
)


@held_impl(layer_norm, reads=3)
def simd_rows(x, w, b, *, config):
    """One threadgroup per row, held in registers: x is read once, w and b once for each row."""
    return launch_rows(SIMD_ROWS, config, x, w, b)


def welford_work(config, limits, *, itemsize, M, N):
    load = (4 * N + config.threads) * itemsize  # each thread reads the first element
    return Work(tiles=M, steps=1, load_bytes=load, store_bytes=N * itemsize)


@layer_norm.impl(LoopedRows, backend="metal", work=welford_work)
def welford(x, w, b, *, config):
    """One threadgroup per row of any length: x is read twice."""
    return launch_rows(WELFORD, config, x, w, b)
