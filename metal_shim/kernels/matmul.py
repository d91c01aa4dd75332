"""Matrix product on Metal, summed in fp32: compute-bound where tiles are large.

`tiled`: a thread for each output, tiles of both operands staged in threadgroup memory; the pad of
one column spreads a column of b over the banks. `simdgroup`: 8x8 products of a whole SIMD-group,
several for each pair of loads. Elements read from device memory: M N K (1 / BM + 1 / BN), edges
apart. simdgroup products may round inside a sum in any order: results agree within tolerances.
"""

from dataclasses import dataclass
from functools import partial

from metal_shim.kernel import metal_kernel
from metal_shim.launches import Simdgroup, block_work, launch_blocks, refuse_shared
from metal_shim.msl import BLOCK_PLACE, BLOCK_PRODUCT
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

# Past K both operands are 0: 0 times an infinity would be NaN, and there is none.
SIMDGROUP = metal_kernel(
    "matmul_simdgroup",
    inputs="a b",
    outputs="c",
    header=BLOCK_PRODUCT,
    body=BLOCK_PLACE
    + """
    threadgroup T as[BM * BK];
    threadgroup T bs[BK * BN];
    const uint M = a_shape[0], K = a_shape[1], N = b_shape[1];
    for (uint k0 = 0; k0 < K; k0 += BK) {
        stage_rows<BM, BK, NT>(as, a, row0, M, k0, K, lid);
        stage_rows<BK, BN, NT>(bs, b, k0, K, column0, N, lid);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        add_products<TM, TN, BK, false>(sum, as + m0 * BK, BK, bs + n0, BN);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    store_blocks<TM, TN>(c, sum, out + sg * 64, row0 + m0, M, column0 + n0, N, lane);
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


@matmul.impl(Simdgroup, backend="metal", refuse=partial(refuse_shared, SIMDGROUP), work=block_work)
def simdgroup(a, b, *, config):
    """`simd_m` x `simd_n` SIMD-groups for a block of `block_m` x `block_n`."""
    return launch_blocks(SIMDGROUP, config, b.shape[1], a, b)
