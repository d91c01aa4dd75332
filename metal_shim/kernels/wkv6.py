"""The recurrence of RWKV-6 on Metal: bound by the latency of one token behind the other.

A SIMD-group owns `rows` values of the state, a lane two of the 64 keys: the state stays in
registers from the first token to the last, and a token takes one simd_sum for each value. A single
token is memory-bound by the state, of which each byte is read and written once. The state lies key
by key, so that the lanes read `rows` neighbours each: with 8 of them, whole sectors of 32 bytes.
simd_sum's order is not specified: results agree within tolerances, not bit by bit.
"""

from dataclasses import dataclass

from metal_shim.kernel import metal_kernel
from workbench.kernels.wkv6 import wkv6
from workbench.spec import Work, among, threads

# v is loaded by as many lanes as there are values, and y is stored by them.
LANES = metal_kernel(
    "wkv6_lanes",
    inputs="r w k v u state",
    outputs="y last",
    body="""
    constexpr uint KEYS = N / 32;
    const uint lane = thread_index_in_simdgroup;
    const uint count = r_shape[1], heads = r_shape[2];
    const uint first = thread_position_in_grid.x / 32 * ROWS;
    const uint h = threadgroup_position_in_grid.y, b = threadgroup_position_in_grid.z;
    const size_t head = (size_t(b) * heads + h) * N * N;
    float held[ROWS][KEYS], bonus[KEYS];
    for (uint j = 0; j < KEYS; j++) {
        bonus[j] = float(u[h * N + lane + 32 * j]);
        for (uint i = 0; i < ROWS; i++)
            held[i][j] = state[head + size_t(lane + 32 * j) * N + first + i];
    }
    for (uint t = 0; t < count; t++) {
        const size_t at = ((size_t(b) * count + t) * heads + h) * N;
        const float own = lane < ROWS ? float(v[at + first + lane]) : 0.0f;
        float receptance[KEYS], decay[KEYS], key[KEYS];
        for (uint j = 0; j < KEYS; j++) {
            receptance[j] = float(r[at + lane + 32 * j]);
            decay[j] = exp(float(w[at + lane + 32 * j]));
            key[j] = float(k[at + lane + 32 * j]);
        }
        float result = 0;
        for (uint i = 0; i < ROWS; i++) {
            const float value = simd_shuffle(own, i);
            float sum = 0;
            for (uint j = 0; j < KEYS; j++) {
                const float added = key[j] * value;
                sum += receptance[j] * (held[i][j] + bonus[j] * added);
                held[i][j] = held[i][j] * decay[j] + added;
            }
            sum = simd_sum(sum);
            if (lane == i) result = sum;
        }
        if (lane < ROWS) y[at + first + lane] = T(result);
    }
    for (uint j = 0; j < KEYS; j++)
        for (uint i = 0; i < ROWS; i++)
            last[head + size_t(lane + 32 * j) * N + first + i] = held[i][j];
""",
)


@dataclass(frozen=True)
class Lanes:
    threads: int = threads(32, 1024, default=128)
    rows: int = among(1, 2, 4, 8, default=8)  # values of each SIMD-group


def lanes_work(config, limits, *, itemsize, B, T, H, N):
    state = config.rows * N * 4
    return Work(
        tiles=B * H * N // config.rows,
        steps=T,
        load_bytes=(3 * N + config.rows) * itemsize + (state + N * itemsize) // T,
        store_bytes=T * config.rows * itemsize + state,
    )


@wkv6.impl(Lanes, backend="metal", work=lanes_work)
def lanes(r, w, k, v, u, state, *, config):
    """A SIMD-group for `rows` values of a head, its keys over the lanes."""
    B, _, H, N = r.shape
    grid = (32 * N // config.rows, H, B)
    like = (r.new_empty(r.shape, device="meta"), state.new_empty(state.shape, device="meta"))
    values = dict(T=r.dtype, N=N, ROWS=config.rows)
    return LANES(r, w, k, v, u, state, like=like, grid=grid, group=config.threads, **values)
