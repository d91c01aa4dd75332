"""Patch embedding on Metal: a product summed in fp32, compute-bound where tiles are large.

`simdgroup`: 8x8 products of SIMD-groups over tiles in threadgroup memory; bias and position are
added where a block is stored, so that y is written once and never read. Elements read from device
memory: M N K (1 / BM + 1 / BN), edges apart, and for each output one of the bias and one of the
table, most of which the cache holds. Products may round inside a sum in any order: results agree
within tolerances.
"""

from dataclasses import replace

from metal_shim.blocks import Simdgroup, block_values, refuse_uneven
from metal_shim.kernel import metal_kernel
from metal_shim.msl import ROW_PRODUCT
from workbench.kernels.patch_embed import patch_embed
from workbench.spec import Work

# Past K both operands are 0: 0 times an infinity would be NaN, and there is none.
SIMDGROUP = metal_kernel(
    "patch_embed_simdgroup",
    inputs="x w bias position",
    outputs="y",
    header=ROW_PRODUCT,
    body="""
    constexpr int NT = SM * SN * 32;
    constexpr int TM = BM / (8 * SM), TN = BN / (8 * SN);
    threadgroup T xs[BM * BK];
    threadgroup T ws[BN * BK];
    threadgroup float out[SM * SN * 64];
    const uint M = x_shape[0], K = x_shape[1], N = w_shape[0], P = position_shape[0];
    const uint lid = thread_index_in_threadgroup, lane = thread_index_in_simdgroup;
    const uint sg = simdgroup_index_in_threadgroup;
    const uint row0 = threadgroup_position_in_grid.y * BM;
    const uint column0 = threadgroup_position_in_grid.x * BN;
    const uint m0 = (sg / SN) * TM * 8, n0 = (sg % SN) * TN * 8;
    simdgroup_matrix<float, 8, 8> sum[TM * TN];
    for (int i = 0; i < TM * TN; i++) sum[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    for (uint k0 = 0; k0 < K; k0 += BK) {
        stage_rows<BM, BK, NT>(xs, x, row0, M, k0, K, lid);
        stage_rows<BN, BK, NT>(ws, w, column0, N, k0, K, lid);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        add_products<TM, TN, BK>(sum, xs + m0 * BK, BK, ws + n0 * BK, BK);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    for (int i = 0; i < TM * TN; i++) {
        simdgroup_store(sum[i], out + sg * 64, 8);
        simdgroup_barrier(mem_flags::mem_threadgroup);
        for (uint e = lane; e < 64; e += 32) {
            const uint m = row0 + m0 + i / TN * 8 + e / 8, n = column0 + n0 + i % TN * 8 + e % 8;
            if (m < M && n < N) {
                const float table = float(position[size_t(m % P) * N + n]) + float(bias[n]);
                y[size_t(m) * N + n] = T(out[sg * 64 + e] + table);
            }
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
""",
)


def refuse_simdgroup(config, limits, *, itemsize, M, N, K, P):
    if reason := refuse_uneven(config):
        return reason
    held = config.block_m * config.block_n // (32 * config.simd_m * config.simd_n)
    kind = "fp32" if itemsize == 4 else "fp16"
    return limits.refuse_sums(held) or SIMDGROUP.refuse_threadgroup(T=kind, **block_values(config))


def simdgroup_work(config, limits, *, itemsize, M, N, K, P):
    whole = Work.of_product(config, itemsize, M=M, N=N, K=K)
    # with the bias and the position that each output reads
    return replace(whole, store_bytes=3 * whole.store_bytes)


@patch_embed.impl(Simdgroup, backend="metal", refuse=refuse_simdgroup, work=simdgroup_work)
def simdgroup(x, w, bias, position, *, config):
    """`simd_m` x `simd_n` SIMD-groups for a block of `block_m` x `block_n`."""
    (M, N), group = (x.shape[0], w.shape[0]), 32 * config.simd_m * config.simd_n
    grid = (group * -(-N // config.block_n), -(-M // config.block_m), 1)
    y = x.new_empty(M, N, device="meta")
    values = dict(T=x.dtype, **block_values(config))
    return SIMDGROUP(x, w, bias, position, like=y, grid=grid, group=group, **values)
