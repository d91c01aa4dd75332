"""The arithmetic of `q4_k_matmul` without its memory traffic: `rows` on blocks that stay in
registers.

A row of w has one block here, loaded before the loop. In it the block stands for block b of a row
of K / 256, and so does a row of x, of which the 256 elements u[k] are whole numbers from a hash:

    word ^ (hash(b) & mask),    x[m, 256 b + k] = a[m] * u[k] * (1 + b / 1024)

Each trip has numbers of its own, so that none of its work can be taken out of the loop. That takes
an exclusive or for eight weights, and for each element of x a product in the place of the
conversion to fp32. The mask lets hash(b) change the last bits alone of the two fp16 numbers of a
block. As Triton 3.9 compiles it for an H200, a trip has 380 instructions; that of the whole kernel
has 445, its loads among them.
"""

import torch

from workbench.dsl import tl, triton
from workbench.kernels import q4_k_matmul as whole
from workbench.kernels.q4_k_matmul import _numbers, _singles
from workbench.spec import Spec, Tensor, Work
from workbench.variants.q4_k_matmul_traffic import q4_k_matmul_traffic as traffic

HASH = 0x1E3779B1
HALVES = 0x003F003F  # the last six bits of two fp16 numbers


def reference(a, w, like):
    blocks = like.shape[0] // 256
    b = torch.arange(blocks, device=w.device)
    mask = torch.full((36,), -1, dtype=torch.int32, device=w.device)
    mask[0] = HALVES
    bits = (b * HASH).to(torch.int32)[:, None] & mask
    words = w.view(torch.int32)[:, None, :] ^ bits  # N, K / 256, 36
    u = (torch.arange(256, device=w.device) * HASH).to(torch.int32) >> 8
    columns = (1 + b.to(a.dtype) / 1024)[:, None] * (u.to(a.dtype) / 2**23)  # K / 256, 256
    weights = whole.unpack(words.flatten(1).view(torch.uint8)).to(a.dtype)
    return a[:, None] * (weights @ columns.flatten())[None, :]


q4_k_matmul_arithmetic = Spec(
    name="q4_k_matmul_arithmetic",
    inputs={
        "a": Tensor("M"),
        "w": Tensor("N 144", dtype="uint8", make=whole.random_blocks),
        "like": Tensor("K"),  # its length alone counts
    },
    outputs={"y": Tensor("M N")},
    reference=reference,
    flops=lambda M, N, K: 2 * M * N * K,
    check=traffic.check,
    bench=whole.q4_k_matmul.bench[:4],
    tolerance=whole.q4_k_matmul.tolerance,
    extents=whole.q4_k_matmul.extents,
)


@triton.jit
def _numbered(q, one, BLOCK_N: tl.constexpr, CHUNKS: tl.constexpr):
    """Words of nibbles [BLOCK_N, CHUNKS, 4] as 1 + nibble / 16, beside the elements of x."""
    w = tl.permute(_singles(q, one), (0, 1, 5, 2, 3, 4))
    return tl.reshape(w, (BLOCK_N, 1, CHUNKS, 2, 16))


@triton.jit
def _rows(
    a_ptr, w_ptr, y_ptr, M, N, blocks, one, stride_a, stride_wn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_B: tl.constexpr, UNIT: tl.constexpr,
    EVEN: tl.constexpr, HASH: tl.constexpr, HALVES: tl.constexpr,
):  # fmt: skip
    CHUNKS: tl.constexpr = BLOCK_B * 8  # of 16 bytes: 16 low and 16 high nibbles
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    row = tl.minimum(n, N - 1).to(tl.int64) * stride_wn * UNIT
    c, i = tl.arange(0, CHUNKS), tl.arange(0, CHUNKS * 4)
    j = tl.arange(0, 32)
    k = (c // 2 % 4 * 64 + c % 2 * 16)[:, None] + (j // 16 * 32 + j % 16)[None, :]
    u = (k * HASH >> 8).to(tl.float32) * 0.00000011920928955078125  # 2^-23
    a = tl.load(a_ptr + tl.minimum(m, M - 1).to(tl.int64) * stride_a).to(tl.float32)
    # of each row, and so few that every thread loads what it needs, which passes no shared memory
    head0, first0 = tl.load(w_ptr + row)[:, None], tl.load(w_ptr + row + 1)[:, None]
    second0, third0 = tl.load(w_ptr + row + 2)[:, None], tl.load(w_ptr + row + 3)[:, None]
    q0 = tl.load(w_ptr + row[:, None] + (4 + i % 32)[None, :])
    q0 = tl.reshape(q0, (BLOCK_N, CHUNKS, 4))
    # Nothing is subtracted, but so u lies where the weights do: x is summed there in each trip.
    nothing = (_numbered(q0, one, BLOCK_N, CHUNKS).to(tl.int32, bitcast=True) & 1) >> 1
    u = tl.reshape(u, (1, 1, CHUNKS, 2, 16)) - nothing.to(tl.float32)
    acc = tl.zeros((BLOCK_N, BLOCK_M, CHUNKS, 2), tl.float32)
    for b in tl.range(0, blocks, BLOCK_B):
        block = (b + c // 8)[None, :]
        bits = block * HASH
        q = q0 ^ bits[:, :, None]
        head, first = head0 ^ (bits & HALVES), first0 ^ bits
        second, third = second0 ^ bits, third0 ^ bits
        grown = 1.0 + block.to(tl.float32) * 0.0009765625
        if not EVEN:
            grown = tl.where(block < blocks, grown, 0.0)
        low, high, under, over = _numbers(head, first, second, third, (c // 2 % 4)[None, :])
        w = _numbered(q, one, BLOCK_N, CHUNKS)
        x = u * (a[None, :, None] * grown[:, None, :])[:, :, :, None, None]
        step = tl.join(16 * low, 16 * high)[:, None, :, :]
        least = tl.join(16 * low + under, 16 * high + over)[:, None, :, :]
        acc += step * tl.sum(w * x, axis=4) - least * tl.sum(x, axis=4)
    y = tl.sum(tl.sum(acc, axis=3), axis=2)
    y_ptrs = y_ptr + m.to(tl.int64)[None, :] * N + n[:, None]
    tl.store(y_ptrs, y.to(y_ptr.dtype.element_ty), (n[:, None] < N) & (m[None, :] < M))


def rows_work(config, limits, *, itemsize, M, N, K):
    return Work(
        tiles=-(-M // 4) * -(-N // config.block_n),
        steps=1,
        load_bytes=config.block_n * 144 + min(M, 4) * itemsize,
        store_bytes=config.block_n * itemsize,
    )


@q4_k_matmul_arithmetic.impl(
    whole.Rows, resolve=whole.size_rows, refuse=whole.refuse_rows, work=rows_work
)
def rows(a, w, like, *, config):
    """As many weights are unpacked and multiplied as by `q4_k_matmul.rows`. `num_stages` changes
    nothing: no load is left to be pipelined."""
    M, N, K = a.shape[0], w.shape[0], like.shape[0]
    if w.stride(1) != 1 or w.stride(0) % 4 or w.data_ptr() % 4:
        raise ValueError("w must have dense rows of bytes that start at multiples of 4")
    words, y = w.view(torch.int32), a.new_empty(M, N)
    unit = 4 if words.stride(0) % 4 == 0 else 1  # 16 bytes, so that it shows in the address
    block_m = min(triton.next_power_of_2(M), 4)
    sizes = M, N, K // 256, 0x3F800000, a.stride(0), words.stride(0) // unit
    constants = dict(BLOCK_M=block_m, BLOCK_N=config.block_n, BLOCK_B=config.block_b, UNIT=unit)
    constants |= dict(EVEN=K // 256 % config.block_b == 0, HASH=HASH, HALVES=HALVES)
    grid = triton.cdiv(N, config.block_n), triton.cdiv(M, block_m)
    _rows[grid](a, words, y, *sizes, **constants, num_warps=config.num_warps)
    return y
