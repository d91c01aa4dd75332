"""The recurrence of RWKV-7 on Metal: bound by the latency of one token behind the other.

A SIMD-group owns `rows` value rows of the state, a lane two of the 64 keys: the state stays in
registers from the first token to the last, and a token takes two simd_sums for each row, for what
is removed and for the output. A single token is memory-bound by the state, of which each byte is
read and written once, 128 neighbouring bytes by a SIMD-group. simd_sum's order is not specified:
results agree within tolerances, not bit by bit.
"""

from dataclasses import dataclass

from metal_shim.kernel import metal_kernel
from workbench.kernels.wkv7 import wkv7
from workbench.spec import Work, among, threads

# v is loaded by as many lanes as there are rows, and y is stored by them.
LANES = metal_kernel(
    "wkv7_lanes",
    inputs="r w k v kk a state",
    outputs="y last",
    body="""
    constexpr uint KEYS = N / 32;
    const uint lane = thread_index_in_simdgroup;
    const uint count = r_shape[1], heads = r_shape[2];
    const uint first = thread_position_in_grid.x / 32 * ROWS;
    const uint h = threadgroup_position_in_grid.y, b = threadgroup_position_in_grid.z;
    const size_t own_rows = ((size_t(b) * heads + h) * N + first) * N + lane;
    float held[ROWS][KEYS];
    for (uint i = 0; i < ROWS; i++)
        for (uint j = 0; j < KEYS; j++) held[i][j] = state[own_rows + i * N + 32 * j];
    for (uint t = 0; t < count; t++) {
        const size_t at = ((size_t(b) * count + t) * heads + h) * N;
        const float own = lane < ROWS ? float(v[at + first + lane]) : 0.0f;
        float receptance[KEYS], decay[KEYS], key[KEYS], unit[KEYS], back[KEYS];
        for (uint j = 0; j < KEYS; j++) {
            const size_t here = at + lane + 32 * j;
            receptance[j] = float(r[here]);
            decay[j] = exp(float(w[here]));
            key[j] = float(k[here]);
            unit[j] = float(kk[here]);
            back[j] = unit[j] * float(a[here]);
        }
        float result = 0;
        for (uint i = 0; i < ROWS; i++) {
            const float value = simd_shuffle(own, i);
            float removed = 0, sum = 0;
            for (uint j = 0; j < KEYS; j++) removed += held[i][j] * unit[j];
            removed = simd_sum(removed);
            for (uint j = 0; j < KEYS; j++) {
                held[i][j] = held[i][j] * decay[j] - removed * back[j] + value * key[j];
                sum += held[i][j] * receptance[j];
            }
            sum = simd_sum(sum);
            if (lane == i) result = sum;
        }
        if (lane < ROWS) y[at + first + lane] = T(result);
    }
    for (uint i = 0; i < ROWS; i++)
        for (uint j = 0; j < KEYS; j++) last[own_rows + i * N + 32 * j] = held[i][j];
""",
)


@dataclass(frozen=True)
class Lanes:
    threads: int = threads(32, 1024, default=128)
    rows: int = among(1, 2, 4, 8, default=4)  # of the state in each SIMD-group


def lanes_work(config, limits, *, itemsize, B, T, H, N):
    state = config.rows * N * 4
    return Work(
        tiles=B * H * N // config.rows,
        steps=T,
        load_bytes=(5 * N + config.rows) * itemsize + state // T,
        store_bytes=T * config.rows * itemsize + state,
    )


@wkv7.impl(Lanes, backend="metal", work=lanes_work)
def lanes(r, w, k, v, kk, a, state, *, config):
    """A SIMD-group for `rows` value rows of a head, its keys over the lanes."""
    B, _, H, N = r.shape
    grid = (32 * N // config.rows, H, B)
    like = (r.new_empty(r.shape, device="meta"), state.new_empty(state.shape, device="meta"))
    values = dict(T=r.dtype, N=N, ROWS=config.rows)
    return LANES(r, w, k, v, kk, a, state, like=like, grid=grid, group=config.threads, **values)
