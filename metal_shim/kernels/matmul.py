"""Matrix product on Metal, summed in fp32: compute-bound where tiles are large.

`tiled`: a thread for each output, tiles of both operands staged in threadgroup memory; the pad of
one column spreads a column of b over the banks. `simdgroup`: 8x8 products of a whole SIMD-group,
several for each pair of loads. Elements read from device memory: M N K (1 / BM + 1 / BN), edges
apart. simdgroup products may round inside a sum in any order: results agree within tolerances.
"""

from dataclasses import dataclass

from metal_shim.blocks import Simdgroup, block_values, refuse_uneven
from metal_shim.kernel import metal_kernel
from workbench.kernels.matmul import matmul
from workbench.spec import Work, tile

TILED = metal_kernel(
    "matmul_tiled",
    inputs="a b",
    outputs="c",
    body="""
    threadgroup float as[TILE][TILE];
    threadgroup float bs[TILE][TILE + 1];
    const uint M = a_shape[0], K = a_shape[1], N = b_shape[1];
    const uint tx = thread_position_in_threadgroup.x, ty = thread_position_in_threadgroup.y;
    const uint row = threadgroup_position_in_grid.y * TILE + ty;
    const uint column = threadgroup_position_in_grid.x * TILE + tx;
    float sum = 0;
    for (uint k0 = 0; k0 < K; k0 += TILE) {
        as[ty][tx] = row < M && k0 + tx < K ? float(a[size_t(row) * K + k0 + tx]) : 0.0f;
        bs[ty][tx] = k0 + ty < K && column < N ? float(b[size_t(k0 + ty) * N + column]) : 0.0f;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        const uint steps = min(uint(TILE), K - k0);
        for (uint k = 0; k < steps; k++) sum = fma(as[ty][k], bs[k][tx], sum);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (row < M && column < N) c[size_t(row) * N + column] = T(sum);
""",
)

# Past K both operands are 0: 0 times an infinity would be NaN, and there is none. Results go
# through threadgroup memory, since simdgroup_store neither converts nor stops at an edge.
SIMDGROUP = metal_kernel(
    "matmul_simdgroup",
    inputs="a b",
    outputs="c",
    body="""
    constexpr int NT = SM * SN * 32;
    constexpr int TM = BM / (8 * SM), TN = BN / (8 * SN);
    threadgroup T as[BM * BK];
    threadgroup T bs[BK * BN];
    threadgroup float out[SM * SN * 64];
    const uint M = a_shape[0], K = a_shape[1], N = b_shape[1];
    const uint lid = thread_index_in_threadgroup, lane = thread_index_in_simdgroup;
    const uint sg = simdgroup_index_in_threadgroup;
    const uint row0 = threadgroup_position_in_grid.y * BM;
    const uint column0 = threadgroup_position_in_grid.x * BN;
    const uint m0 = (sg / SN) * TM * 8, n0 = (sg % SN) * TN * 8;
    simdgroup_matrix<float, 8, 8> sum[TM][TN];
    for (int i = 0; i < TM; i++)
        for (int j = 0; j < TN; j++) sum[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    for (uint k0 = 0; k0 < K; k0 += BK) {
        for (uint i = lid; i < BM * BK; i += NT) {
            const uint r = row0 + i / BK, k = k0 + i % BK;
            as[i] = r < M && k < K ? a[size_t(r) * K + k] : T(0);
        }
        for (uint i = lid; i < BK * BN; i += NT) {
            const uint k = k0 + i / BN, n = column0 + i % BN;
            bs[i] = k < K && n < N ? b[size_t(k) * N + n] : T(0);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (int k = 0; k < BK; k += 8) {
            simdgroup_matrix<T, 8, 8> left[TM], right[TN];
            for (int i = 0; i < TM; i++) simdgroup_load(left[i], as + (m0 + i * 8) * BK + k, BK);
            for (int j = 0; j < TN; j++) simdgroup_load(right[j], bs + k * BN + n0 + j * 8, BN);
            for (int i = 0; i < TM; i++)
                for (int j = 0; j < TN; j++)
                    simdgroup_multiply_accumulate(sum[i][j], left[i], right[j], sum[i][j]);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    for (int i = 0; i < TM; i++)
        for (int j = 0; j < TN; j++) {
            simdgroup_store(sum[i][j], out + sg * 64, 8);
            simdgroup_barrier(mem_flags::mem_threadgroup);
            for (uint e = lane; e < 64; e += 32) {
                const uint r = row0 + m0 + i * 8 + e / 8, n = column0 + n0 + j * 8 + e % 8;
                if (r < M && n < N) c[size_t(r) * N + n] = T(out[sg * 64 + e]);
            }
            simdgroup_barrier(mem_flags::mem_threadgroup);
        }
""",
)


@dataclass(frozen=True)
class Tiled:
    tile: int = tile(8, 128, default=16)


def refuse_tiled(config, limits, *, itemsize, M, N, K):
    count = config.tile**2
    if count > limits.threads_per_block:
        most = limits.threads_per_block
        return f"one output a thread takes {count} threads; a threadgroup has at most {most}"
    return TILED.refuse_threadgroup(TILE=config.tile)


def tiled_work(config, limits, *, itemsize, M, N, K):
    edge = config.tile
    tiles, moved = -(-M // edge) * -(-N // edge), 2 * edge * edge * itemsize
    return Work(tiles=tiles, steps=-(-K // edge), load_bytes=moved, store_bytes=moved // 2)


@matmul.impl(Tiled, backend="metal", refuse=refuse_tiled, work=tiled_work)
def tiled(a, b, *, config):
    """A thread for each output of a square tile."""
    edge, (M, N) = config.tile, (a.shape[0], b.shape[1])
    grid = (-(-N // edge) * edge, -(-M // edge) * edge, 1)
    c = a.new_empty(M, N, device="meta")
    return TILED(a, b, like=c, grid=grid, group=(edge, edge, 1), T=a.dtype, TILE=edge)


def refuse_simdgroup(config, limits, *, itemsize, M, N, K):
    if reason := refuse_uneven(config):
        return reason
    held = config.block_m * config.block_n // (32 * config.simd_m * config.simd_n)
    kind = "fp32" if itemsize == 4 else "fp16"
    return limits.refuse_sums(held) or SIMDGROUP.refuse_threadgroup(T=kind, **block_values(config))


def simdgroup_work(config, limits, *, itemsize, M, N, K):
    return Work.of_product(config, itemsize, M=M, N=N, K=K)


@matmul.impl(Simdgroup, backend="metal", refuse=refuse_simdgroup, work=simdgroup_work)
def simdgroup(a, b, *, config):
    """`simd_m` x `simd_n` SIMD-groups for a block of `block_m` x `block_n`."""
    (M, N), group = (a.shape[0], b.shape[1]), 32 * config.simd_m * config.simd_n
    grid = (group * -(-N // config.block_n), -(-M // config.block_m), 1)
    c = a.new_empty(M, N, device="meta")
    return SIMDGROUP(a, b, like=c, grid=grid, group=group, T=a.dtype, **block_values(config))
