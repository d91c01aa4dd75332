"""The memory traffic of `q4_k_matmul` without its arithmetic: the loads and stores of `rows`, with

    y[m, n] = sum of row m of x + (sum of the words of row n of w) mod 256

Grid, tiles, masks and pipeline are those of the whole kernel. A word of eight weights costs one
addition, where the kernel takes some twenty instructions, and an element of x one as well.
"""

import torch

from workbench.dsl import tl, triton
from workbench.kernels import q4_k_matmul as whole
from workbench.spec import Spec, Tensor, rms_bounds


def reference(x, w):
    low = w[:, ::4].sum(-1, dtype=torch.int64) & 0xFF  # the lowest byte of each word
    return x.sum(-1)[:, None] + low.to(x.dtype)[None, :]


q4_k_matmul_traffic = Spec(
    name="q4_k_matmul_traffic",
    inputs=whole.q4_k_matmul.inputs,
    outputs={"y": Tensor("M N")},
    reference=reference,
    flops=lambda M, N, K: 0,  # what the sums take is not work of the kernel that this belongs to
    check=[
        {"M": 1, "N": 1, "K": 256},
        {"M": 3, "N": 9, "K": 512},
        {"M": 2, "N": 20, "K": 768},
        {"M": 5, "N": 17, "K": 256},
    ],
    bench=whole.q4_k_matmul.bench[:4],
    # a sum of K numbers in fp32, in proportion to which single results may be small
    tolerance=rms_bounds(fp32=5e-5, fp16=5e-5, bf16=5e-5),
    extents=whole.q4_k_matmul.extents,
)


@triton.jit
def _rows(
    x_ptr, w_ptr, y_ptr, M, N, blocks, stride_xm, stride_xk, stride_wn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_B: tl.constexpr, UNIT: tl.constexpr,
    STAGES: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    CHUNKS: tl.constexpr = BLOCK_B * 8
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    row = tl.minimum(n, N - 1).to(tl.int64) * stride_wn * UNIT
    c, i = tl.arange(0, CHUNKS), tl.arange(0, CHUNKS * 4)
    j = tl.arange(0, 32)
    words = row[:, None] + (i // 32 * 36 + 4 + i % 32)[None, :]
    heads = row[:, None] + (c // 8 * 36)[None, :]
    k = (c // 2 * 64 + c % 2 * 16)[:, None] + (j // 16 * 32 + j % 16)[None, :]
    line = tl.minimum(m, M - 1).to(tl.int64) * stride_xm
    x_at = line[:, None, None] + (k.to(tl.int64) * stride_xk)[None, :, :]
    step_x = tl.full((), 256, tl.int64) * stride_xk
    sums = tl.zeros((BLOCK_M, CHUNKS, 32), tl.float32)
    bits = tl.zeros((BLOCK_N, CHUNKS * 4), tl.int32)
    tops = tl.zeros((BLOCK_N, CHUNKS), tl.int32)
    for b in tl.range(0, blocks, BLOCK_B, num_stages=STAGES):
        blocks_ptr, x_b = w_ptr + b * 36, x_ptr + b * step_x
        if EVEN:
            x = tl.load(x_b + x_at)
            head, first = tl.load(blocks_ptr + heads), tl.load(blocks_ptr + heads + 1)
            second, third = tl.load(blocks_ptr + heads + 2), tl.load(blocks_ptr + heads + 3)
            q = tl.load(blocks_ptr + words)
        else:
            there = b + c // 8 < blocks
            x = tl.load(x_b + x_at, there[None, :, None], other=0.0)
            head = tl.load(blocks_ptr + heads, there[None, :], other=0)
            first = tl.load(blocks_ptr + heads + 1, there[None, :], other=0)
            second = tl.load(blocks_ptr + heads + 2, there[None, :], other=0)
            third = tl.load(blocks_ptr + heads + 3, there[None, :], other=0)
            q = tl.load(blocks_ptr + words, (b + i // 32 < blocks)[None, :], other=0)
        bits += q
        tops += head + first + second + third
        sums += x.to(tl.float32)
    # every chunk of a block has loaded its four first words: one of eight counts
    tops = tl.where((c % 8 == 0)[None, :], tops & 0xFF, 0)
    low = (tl.sum(bits & 0xFF, axis=1) + tl.sum(tops, axis=1)) & 0xFF
    total = tl.sum(tl.sum(sums, axis=2), axis=1)
    y = total[None, :] + low.to(tl.float32)[:, None]
    y_ptrs = y_ptr + m.to(tl.int64)[None, :] * N + n[:, None]
    tl.store(y_ptrs, y.to(y_ptr.dtype.element_ty), (n[:, None] < N) & (m[None, :] < M))


@q4_k_matmul_traffic.impl(
    whole.Rows, resolve=whole.size_rows, refuse=whole.refuse_rows, work=whole.rows_work
)
def rows(x, w, *, config):
    """Blocks and elements of x are read as often and as wide as by `q4_k_matmul.rows`."""
    (M, K), N = x.shape, w.shape[0]
    words, stride, unit = whole.view_words(x, w)
    y = x.new_empty(M, N)
    block_m = min(triton.next_power_of_2(M), 4)
    grid, sizes = (triton.cdiv(N, config.block_n), triton.cdiv(M, block_m)), (M, N, K // 256)
    constants = dict(BLOCK_M=block_m, BLOCK_N=config.block_n, BLOCK_B=config.block_b, UNIT=unit)
    constants |= dict(STAGES=config.num_stages, EVEN=K // 256 % config.block_b == 0)
    constants |= dict(num_warps=config.num_warps)
    _rows[grid](x, words, y, *sizes, *x.stride(), stride, **constants)
    return y
