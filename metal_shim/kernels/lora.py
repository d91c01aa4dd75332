"""LoRA on Metal, in one launch: compute-bound by the product with W where tiles are large.

`fused`: rows of A are so many more rows of W while a block walks K, which gives u = SCALE x A^T of
the block's rows; it goes to threadgroup memory, and B takes r more steps. Compared with three
products, y is written once, and x is read as often as for the product with W alone. Each block of
columns computes u again, r / BN of its work. u and B are fp32 there, so that u cannot overflow in
fp16 and is not rounded. Elements read: M N K (1 / BM + 1 / BN), and A and B once a block.
Products may round inside a sum in any order: results agree within tolerances.
"""

from dataclasses import dataclass, replace

from metal_shim.kernel import metal_kernel
from metal_shim.launches import Simdgroup, launch_blocks, refuse_shared
from metal_shim.msl import BLOCK_PLACE, BLOCK_PRODUCT
from workbench.kernels.lora import SCALE, lora
from workbench.spec import Work, tile

# RANK is r rounded up. A column of u past r would be NaN where x is infinite: it is set to 0.
FUSED = metal_kernel(
    "lora_fused",
    inputs="x w a b",
    outputs="y",
    header=f"{BLOCK_PRODUCT}\nconstant float SCALE = {SCALE}f;\n",
    body=BLOCK_PLACE
    + """
    constexpr int TR = RANK / (8 * SN);
    threadgroup T xs[BM * BK];
    threadgroup T ws[BN * BK];
    threadgroup T as[RANK * BK];
    threadgroup float us[BM * RANK];
    threadgroup float bs[BN * 8];
    const uint M = x_shape[0], K = x_shape[1], N = w_shape[0], r = a_shape[0];
    const uint r0 = (sg % SN) * TR * 8;
    simdgroup_matrix<float, 8, 8> low[TM * TR];
    for (int i = 0; i < TM * TR; i++) low[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    for (uint k0 = 0; k0 < K; k0 += BK) {
        stage_rows<BM, BK, NT>(xs, x, row0, M, k0, K, lid);
        stage_rows<BN, BK, NT>(ws, w, column0, N, k0, K, lid);
        stage_rows<RANK, BK, NT>(as, a, 0, r, k0, K, lid);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        add_products<TM, TN, BK, true>(sum, xs + m0 * BK, BK, ws + n0 * BK, BK);
        add_products<TM, TR, BK, true>(low, xs + m0 * BK, BK, as + r0 * BK, BK);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    for (int i = 0; i < TM * TR; i++)
        simdgroup_store(low[i], us + (m0 + i / TR * 8) * RANK + r0 + i % TR * 8, RANK);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = lid; i < BM * RANK; i += NT) us[i] = i % RANK < r ? SCALE * us[i] : 0.0f;
    for (uint k0 = 0; k0 < r; k0 += 8) {
        stage_rows<BN, 8, NT>(bs, b, column0, N, k0, r, lid);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        add_products<TM, TN, 8, true>(sum, us + m0 * RANK + k0, RANK, bs + n0 * 8, 8);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    store_blocks<TM, TN>(y, sum, out + sg * 64, row0 + m0, M, column0 + n0, N, lane);
""",
)


@dataclass(frozen=True)
class Fused(Simdgroup):
    block_m: int = tile(16, 64, default=64)


def refuse_fused(config, limits, *, itemsize, M, N, K, r):
    return refuse_shared(FUSED, config, limits, itemsize=itemsize, RANK=_rank(config, r))


def _rank(config, r):
    """Return the rank, rounded up to whole blocks of all SIMD-groups."""
    return r + -r % (8 * config.simd_n)


def fused_work(config, limits, *, itemsize, M, N, K, r):
    BM, BN, BK = config.block_m, config.block_n, config.block_k
    whole = Work.product(config, itemsize, M=M, N=N, K=K)
    load = (BM + BN + r) * BK * itemsize
    return replace(whole, load_bytes=load, store_bytes=BN * (BM + r) * itemsize)  # with B


@lora.impl(Fused, backend="metal", refuse=refuse_fused, work=fused_work)
def fused(x, w, a, b, *, config):
    """`simd_m` x `simd_n` SIMD-groups for a block of `block_m` x `block_n` and its rows of u."""
    rank = _rank(config, a.shape[0])
    return launch_blocks(FUSED, config, w.shape[0], x, w, a, b, RANK=rank)
