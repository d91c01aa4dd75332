"""The memory traffic of `matmul` without its products: `tiles`, whose tiles are added up instead.

y[m, n] = sum_k a[m, k] + sum_k b[k, n]. Grid, tiles, masks, order, pipeline and stores are those of
the whole kernel. Each element that arrives is added once to a sum in registers, where the whole
kernel multiplies it block_n or block_m times. At tiles of 128x256x64 and 8 warps that is 192
conversions and additions a thread and step: 384 cycles of the four schedulers of a core, where an
H200's matrix unit takes 1024 at its peak of 4096 FLOP a cycle.

The stores belong to the traffic. They are few here, but loads alone would call a kernel that writes
as much as it reads half memory-bound.
"""

from workbench.dsl import meta, strides, tile_count, tl, triton
from workbench.kernels import matmul as whole
from workbench.spec import Spec, Tensor, Work, rms_bounds


def reference(a, b):
    return a.sum(1)[:, None] + b.sum(0)[None, :]


matmul_traffic = Spec(
    name="matmul_traffic",
    inputs={"a": Tensor("M K"), "b": Tensor("K N")},
    outputs={"y": Tensor("M N")},
    reference=reference,
    flops=lambda M, N, K: 0,  # the additions are there to keep the loads alive
    check=[
        {"M": 1, "N": 1, "K": 1},
        {"M": 33, "N": 65, "K": 47},
        {"M": 65, "N": 136, "K": 72},
        {"M": 67, "N": 264, "K": 136},
    ],
    bench=whole.matmul.bench,
    tolerance=rms_bounds(fp32=1e-5, fp16=1e-5, bf16=1e-5),
)


@triton.jit
def _tiles(
    a_ptr, b_ptr, y_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    EVEN_MN: tl.constexpr, EVEN_K: tl.constexpr, STAGES: tl.constexpr,
    DIV_M: tl.constexpr, DIV_N: tl.constexpr, DIV_K: tl.constexpr,
    DIV_AM: tl.constexpr, DIV_AK: tl.constexpr, DIV_BK: tl.constexpr, DIV_BN: tl.constexpr,
):  # fmt: skip
    M, N, K = M // DIV_M * DIV_M, N // DIV_N * DIV_N, K // DIV_K * DIV_K
    stride_am, stride_ak = stride_am // DIV_AM * DIV_AM, stride_ak // DIV_AK * DIV_AK
    stride_bk, stride_bn = stride_bk // DIV_BK * DIV_BK, stride_bn // DIV_BN * DIV_BN
    pid, grid_m, grid_n = tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    pid_m, pid_n = tl.swizzle2d(pid // grid_n, pid % grid_n, grid_m, grid_n, GROUP_M)
    m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    n = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + m.to(tl.int64)[:, None] * stride_am + k.to(tl.int64)[None, :] * stride_ak
    b_ptrs = b_ptr + k.to(tl.int64)[:, None] * stride_bk + n.to(tl.int64)[None, :] * stride_bn
    step = tl.full((), BLOCK_K, tl.int64)
    of_a = tl.zeros((BLOCK_M, BLOCK_K), tl.float32)
    of_b = tl.zeros((BLOCK_K, BLOCK_N), tl.float32)
    # without a product in it, a loop is pipelined only where it asks for it itself
    for k0 in tl.range(0, K, BLOCK_K, num_stages=STAGES):
        if EVEN_MN and EVEN_K:
            a, b = tl.load(a_ptrs), tl.load(b_ptrs)
        elif EVEN_K:
            a = tl.load(a_ptrs, m[:, None] < M, other=0.0)
            b = tl.load(b_ptrs, n[None, :] < N, other=0.0)
        else:
            a = tl.load(a_ptrs, (m[:, None] < M) & (k[None, :] < K - k0), other=0.0)
            b = tl.load(b_ptrs, (k[:, None] < K - k0) & (n[None, :] < N), other=0.0)
        of_a += a.to(tl.float32)
        of_b += b.to(tl.float32)
        a_ptrs += step * stride_ak
        b_ptrs += step * stride_bk
    y = tl.sum(of_a, axis=1)[:, None] + tl.sum(of_b, axis=0)[None, :]
    y_ptrs = y_ptr + m.to(tl.int64)[:, None] * N + n[None, :]
    tl.store(y_ptrs, y.to(y_ptr.dtype.element_ty), (m[:, None] < M) & (n[None, :] < N))


def work(config, limits, *, itemsize, M, N, K):
    # the model knows pipelined loops by their product; without one, they are one long load
    return Work(
        tiles=tile_count(config, M=M, N=N),
        steps=1,
        load_bytes=(config.block_m + config.block_n) * K * itemsize,
        store_bytes=config.block_m * config.block_n * itemsize,
        band=config.group_m,
    )


@matmul_traffic.impl(
    whole.Tiles, refuse=whole.refuse_tiles, work=work, defaults=whole.tiles.defaults
)
def tiles(a, b, *, config):
    """The loads and stores of `matmul.tiles`, in its order and with its pipeline."""
    (M, K), (_, N), y = a.shape, b.shape, a.new_empty(a.shape[0], b.shape[1])
    constants = dict(STAGES=config.num_stages, **whole.evenness(a, b, config), **meta(config))
    _tiles[(tile_count(config, M=M, N=N), 1)](a, b, y, M, N, K, *strides(a, b), **constants)
    return y
