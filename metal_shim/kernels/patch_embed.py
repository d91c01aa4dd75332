"""Patch embedding on Metal: a product summed in fp32, compute-bound where tiles are large.

`simdgroup`: 8x8 products of SIMD-groups over tiles in threadgroup memory; bias and position are
added where a block is stored, so that y is written once and never read. Elements read from device
memory: M N K (1 / BM + 1 / BN), edges apart, and for each output one of the bias and one of the
table, most of which the cache holds. Products may round inside a sum in any order: results agree
within tolerances.
"""

from dataclasses import replace
from functools import partial

from metal_shim.kernel import metal_kernel
from metal_shim.launches import Simdgroup, launch_blocks, refuse_shared
from metal_shim.msl import BLOCK_PLACE, BLOCK_PRODUCT
from workbench.kernels.patch_embed import patch_embed
from workbench.spec import Work

# Past K both operands are 0: 0 times an infinity would be NaN, and there is none.
SIMDGROUP = metal_kernel(
    "patch_embed_simdgroup",
    inputs="x w bias position",
    outputs="y",
    header=BLOCK_PRODUCT,
    body=BLOCK_PLACE
    + """
    threadgroup T xs[BM * BK];
    threadgroup T ws[BN * BK];
    const uint M = x_shape[0], K = x_shape[1], N = w_shape[0], P = position_shape[0];
    for (uint k0 = 0; k0 < K; k0 += BK) {
        stage_rows<BM, BK, NT>(xs, x, row0, M, k0, K, lid);
        stage_rows<BN, BK, NT>(ws, w, column0, N, k0, K, lid);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        add_products<TM, TN, BK, true>(sum, xs + m0 * BK, BK, ws + n0 * BK, BK);
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


def simdgroup_work(config, limits, *, itemsize, M, N, K, P):
    whole = Work.product(config, itemsize, M=M, N=N, K=K)
    # with the bias and the position that each output reads
    return replace(whole, store_bytes=3 * whole.store_bytes)


@patch_embed.impl(
    Simdgroup, backend="metal", refuse=partial(refuse_shared, SIMDGROUP), work=simdgroup_work
)
def simdgroup(x, w, bias, position, *, config):
    """`simd_m` x `simd_n` SIMD-groups for a block of `block_m` x `block_n`."""
    return launch_blocks(SIMDGROUP, config, w.shape[0], x, w, bias, position)
