"""Product of a few rows with a weight matrix on Metal: memory-bound by the weights.

A SIMD-group owns `rows` rows of w and takes four neighbours of each at a time. `batch` rows of x
share them, so that w is read once for each `batch` rows. simd_sum's order is not specified, so
results agree within tolerances, not bit by bit.
"""

from dataclasses import dataclass

from metal_shim.kernel import metal_kernel
from metal_shim.msl import LOAD4
from workbench.kernels.matvec import matvec
from workbench.spec import Work, among, threads

# FOUR: K is a multiple of 4, so that four neighbours lie at a multiple of their size; otherwise
# they are loaded one by one and added in the same order. Past the last row that one is read
# again, and not stored.
LANES = metal_kernel(
    "matvec_lanes",
    inputs="x w",
    outputs="y",
    header=LOAD4,
    body="""
    const uint lane = thread_index_in_simdgroup;
    const uint M = x_shape[0], N = w_shape[0], K = x_shape[1];
    const uint n0 = (thread_position_in_grid.x / 32) * ROWS;
    const uint m0 = thread_position_in_grid.y * BATCH;
    float sum[ROWS][BATCH];
    for (uint r = 0; r < ROWS; r++)
        for (uint b = 0; b < BATCH; b++) sum[r][b] = 0;
    for (uint k = lane * 4; k < K; k += 128) {
        float4 own[BATCH];
        for (uint b = 0; b < BATCH; b++) {
            const size_t at = size_t(min(m0 + b, M - 1)) * K + k;
            own[b] = FOUR ? widened<T>(load4(x + at)) : part4(x + at, K - k);
        }
        for (uint r = 0; r < ROWS; r++) {
            const size_t at = size_t(min(n0 + r, N - 1)) * K + k;
            const float4 weight = FOUR ? widened<T>(load4(w + at)) : part4(w + at, K - k);
            for (uint b = 0; b < BATCH; b++) sum[r][b] += dot(own[b], weight);
        }
    }
    for (uint r = 0; r < ROWS; r++)
        for (uint b = 0; b < BATCH; b++) {
            const float total = simd_sum(sum[r][b]);
            if (lane == 0 && n0 + r < N && m0 + b < M)
                y[size_t(m0 + b) * N + n0 + r] = T(total);
        }
""",
)


@dataclass(frozen=True)
class Lanes:
    threads: int = threads(32, 1024, default=128)
    rows: int = among(1, 2, 4, 8, default=4)  # of w in each SIMD-group
    batch: int = among(1, 2, 4, default=1)  # rows of x that share them


def refuse_lanes(config, limits, *, itemsize, M, N, K):
    return limits.refuse_held(config.rows * config.batch, 16, "sums in registers")


def lanes_work(config, limits, *, itemsize, M, N, K):
    rows, batch = config.rows, config.batch
    return Work(
        tiles=-(-N // rows) * -(-M // batch),
        steps=1,
        load_bytes=(rows + batch) * K * itemsize,
        store_bytes=rows * batch * itemsize,
    )


@matvec.impl(Lanes, backend="metal", refuse=refuse_lanes, work=lanes_work)
def lanes(x, w, *, config):
    """A SIMD-group for `rows` rows of w and `batch` rows of x."""
    (M, K), N = x.shape, w.shape[0]
    y = x.new_empty(M, N, device="meta")
    grid = (32 * -(-N // config.rows), -(-M // config.batch), 1)
    values = dict(T=x.dtype, ROWS=config.rows, BATCH=config.batch, FOUR=K % 4 == 0)
    return LANES(x, w, like=y, grid=grid, group=config.threads, **values)
