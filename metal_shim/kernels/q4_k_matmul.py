"""Product with 4-bit weights in GGUF's Q4_K blocks on Metal, read as they are.

`lanes`: a SIMD-group for a row of w; each lane takes 8 of a block's 256 weights, and four lanes
unpack the numbers of their sub-block and share them by a shuffle. Memory-bound for a few rows of x.
`tiled`: blocks of weights are unpacked into threadgroup memory for 8x8 products, which pays from
about 16 rows of x on. x is staged in its dtype, weights too: rounded as a matrix unit takes them.
simd_sum's order and that inside a product are not specified: results agree within tolerances.
"""

from dataclasses import dataclass

from metal_shim.kernel import metal_kernel
from metal_shim.launches import Simdgroup, block_values, launch_blocks
from metal_shim.msl import BLOCK_PLACE, BLOCK_PRODUCT, Q4_K
from workbench.kernels.q4_k_matmul import q4_k_matmul
from workbench.spec import Work, among, threads

# A lane has 4 bytes of nibbles: 4 weights of sub-block 2g and 4 of 2g + 1, with g = lane / 8.
LANES = metal_kernel(
    "q4_k_matmul_lanes",
    inputs="x w",
    outputs="y",
    header=Q4_K,
    body="""
    const uint lane = thread_index_in_simdgroup;
    const uint M = x_shape[0], K = x_shape[1], N = w_shape[0];
    const uint n = thread_position_in_grid.x / 32, m0 = thread_position_in_grid.y * BATCH;
    const device uchar* row = w + size_t(n) * w_shape[1];
    const uint g = lane / 8, i = lane % 8 * 4;
    float sum[BATCH];
    for (uint b = 0; b < BATCH; b++) sum[b] = 0;
    for (uint k0 = 0; k0 < K; k0 += 256, row += 144) {
        const float2 own = lane < 8 ? q4_k_numbers(row, lane) : float2(0, 0);
        const float low = simd_shuffle(own.x, 2 * g), low_min = simd_shuffle(own.y, 2 * g);
        const float high = simd_shuffle(own.x, 2 * g + 1);
        const float high_min = simd_shuffle(own.y, 2 * g + 1);
        const uint q = *(const device uint*)(row + 16 + lane * 4);
        for (uint b = 0; b < BATCH; b++) {
            const size_t at = size_t(min(m0 + b, M - 1)) * K + k0 + g * 64 + i;
            for (uint j = 0; j < 4; j++) {
                const uint byte = q >> (8 * j) & 255;
                sum[b] += float(x[at + j]) * (low * float(byte & 15) - low_min);
                sum[b] += float(x[at + 32 + j]) * (high * float(byte >> 4) - high_min);
            }
        }
    }
    for (uint b = 0; b < BATCH; b++) {
        const float total = simd_sum(sum[b]);
        if (lane == 0 && m0 + b < M) y[size_t(m0 + b) * N + n] = T(total);
    }
""",
)

# 32 columns of K a step: one sub-block of each row of w, of which a SIMD-group has 8.
TILED = metal_kernel(
    "q4_k_matmul_tiled",
    inputs="x w",
    outputs="y",
    header=BLOCK_PRODUCT + Q4_K,
    body=BLOCK_PLACE
    + """
    threadgroup T xs[BM * BK];
    threadgroup T ws[BK * BN];
    const uint M = x_shape[0], K = x_shape[1], N = w_shape[0];
    for (uint k0 = 0; k0 < K; k0 += BK) {
        stage_rows<BM, BK, NT>(xs, x, row0, M, k0, K, lid);
        const uint n = column0 + lid / 4, part = lid % 4 * 8, j = k0 / 32 % 8;
        const device uchar* block = w + size_t(min(n, N - 1)) * w_shape[1] + k0 / 256 * 144;
        const float2 numbers = q4_k_numbers(block, j);
        for (uint e = 0; e < 8; e++) {
            const uint byte = block[16 + j / 2 * 32 + part + e];
            const uint q = j % 2 == 0 ? byte & 15 : byte >> 4;
            ws[(part + e) * BN + lid / 4] = T(numbers.x * float(q) - numbers.y);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        add_products<TM, TN, BK, false>(sum, xs, BK, ws + n0, BN);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    store_blocks<TM, TN>(y, sum, out + sg * 64, row0, M, column0 + n0, N, lane);
""",
)


@dataclass(frozen=True)
class Lanes:
    threads: int = threads(32, 1024, default=128)
    batch: int = among(1, 2, 4, 8, default=1)  # rows of x that share a row of w


def lanes_work(config, limits, *, itemsize, M, N, K):
    tiles, bytes_of_w = N * -(-M // config.batch), K // 256 * 144
    load = bytes_of_w + config.batch * K * itemsize
    return Work(tiles=tiles, steps=1, load_bytes=load, store_bytes=config.batch * itemsize)


@q4_k_matmul.impl(Lanes, backend="metal", work=lanes_work)
def lanes(x, w, *, config):
    """A SIMD-group for a row of w and `batch` rows of x."""
    M, N = x.shape[0], w.shape[0]
    y = x.new_empty(M, N, device="meta")
    grid = (32 * N, -(-M // config.batch), 1)
    return LANES(x, w, like=y, grid=grid, group=config.threads, T=x.dtype, BATCH=config.batch)


@dataclass(frozen=True)
class Tiled:
    block_m: int = among(8, 16, 32, default=16)
    block_n: int = among(16, 32, 64, default=32)

    @property
    def blocks(self):
        """The same as blocks of a product, with a SIMD-group for 8 rows of w."""
        return Simdgroup(self.block_m, self.block_n, block_k=32, simd_m=1, simd_n=self.block_n // 8)


def refuse_tiled(config, limits, *, itemsize, M, N, K):
    kind = "fp32" if itemsize == 4 else "fp16"
    return TILED.refuse_threadgroup(T=kind, **block_values(config.blocks))


def tiled_work(config, limits, *, itemsize, M, N, K):
    BM, BN = config.block_m, config.block_n
    load = BM * 32 * itemsize + BN * 18
    tiles = -(-M // BM) * -(-N // BN)
    return Work(tiles=tiles, steps=K // 32, load_bytes=load, store_bytes=BM * BN * itemsize)


@q4_k_matmul.impl(Tiled, backend="metal", refuse=refuse_tiled, work=tiled_work)
def tiled(x, w, *, config):
    """A SIMD-group for every 8 rows of w of a block."""
    return launch_blocks(TILED, config.blocks, w.shape[0], x, w)
