"""Matrix products of operands that are there already: the matrix unit and nothing else.

Each of P programs loads a tile a (M x K) and a tile b (N x K) once and multiplies them 2048 times:
again and again it begins a sum anew and adds the product a b^T to it a few times. All the sums are
the same, and the mean of the last one's products is summed over n and stored, so every element of
it is checked: y[p, m] = s[p] * sum over n, k of a[m, k] b[n, k]. Numbers are random: on zeros a GPU
at its power cap is 13 % faster.

A sum begins anew because Hopper's unit keeps 13 bits behind the point while it adds 8-bit products,
and cuts off the rest: equal products lose equal parts, so what is lost grows with their number. On
an H200 sums of 32 are off by up to 1.4 % of an element and of the rms, sums of 8 by 0.4 %, and take
3 to 10 % more time. fp32 goes through the matrix unit as tf32 where there is one (NVIDIA), and as
it is elsewhere.

The 8-bit float is e4m3fn, the dtype `fp8`; whole numbers of 8 bits are `matrix_int8`.
"""

from dataclasses import dataclass

import torch

from workbench.dsl import INTERPRETED, strides, tl, triton
from workbench.spec import Extent, Spec, Tensor, Tolerance, Work, threads

PRODUCTS = 2048  # how often each tile is multiplied


def added_of(itemsize):
    """Products in one sum."""
    return 16 if itemsize == 1 else 32


def reference(a, b, s):
    return s[:, None] * (a @ b.T).sum(1)


def shares(shape, dtype, device, generator):
    """Between 1/2 and 1, so that no row stands out, and with it what its sums lose."""
    return torch.rand(shape, generator=generator, device=device, dtype=dtype) / 2 + 0.5


matrix_only = Spec(
    name="matrix_only",
    inputs={"a": Tensor("M K"), "b": Tensor("N K"), "s": Tensor("P", dtype="fp32", make=shares)},
    outputs={"y": Tensor("P M", dtype="fp32")},
    reference=reference,
    # the last sums over n and the products with s are left out: under 1 in 1000
    flops=lambda M, K, N, P: 2 * M * N * K * P * PRODUCTS,
    check=[
        {"M": 16, "K": 32, "N": 16, "P": 1},
        {"M": 32, "K": 64, "N": 32, "P": 3},
        {"M": 128, "K": 64, "N": 128, "P": 2},
    ],
    bench=[
        {"M": 128, "K": 64, "N": 256, "P": 132},
        {"M": 128, "K": 128, "N": 128, "P": 264},
        {"M": 64, "K": 32, "N": 64, "P": 528},
    ],
    # tf32 rounds each factor by up to 2^-11; a sum over n cancels, so what is lost is a share of
    # the rms. y is fp32 whatever the inputs are, and so is judged by one tolerance: sums of 16
    # 8-bit products are off by half of it, and with one of 32 products left out by more than it.
    tolerance=dict.fromkeys(
        ("fp32", "fp16", "bf16", "fp8"), Tolerance(relative=1.5e-2, rms_share=1.5e-2)
    ),
    extents={
        "M": Extent(choices=(16, 32, 64, 128)),
        "N": Extent(choices=(16, 32, 64, 128, 256)),
        "K": Extent(choices=(32, 64, 128)),
    },
)


@triton.jit
def _resident(
    a_ptr, b_ptr, s_ptr, y_ptr, stride_am, stride_ak, stride_bn, stride_bk, stride_s,
    added, nothing, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, SUMS: tl.constexpr,
    UPCAST: tl.constexpr, SUM: tl.constexpr,
):  # fmt: skip
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K).to(tl.int64)
    a = tl.load(a_ptr + m.to(tl.int64)[:, None] * stride_am + k[None, :] * stride_ak)
    b = tl.load(b_ptr + k[:, None] * stride_bk + n.to(tl.int64)[None, :] * stride_bn)
    if UPCAST:
        a, b = a.to(tl.float32), b.to(tl.float32)
    last = tl.zeros((M, N), SUM)
    # `nothing` is 0, which only the launch knows: where all sums begin alike, LLVM adds up one of
    # them and leaves out the others, as it did for every target but sm_90 and sm_100
    for i in range(SUMS):
        acc = tl.full((M, N), (i * nothing).to(SUM), SUM)
        for _ in range(added):
            acc = tl.dot(a, b, acc, out_dtype=SUM)
        last = acc
    p = tl.program_id(0).to(tl.int64)
    s = tl.load(s_ptr + p * stride_s)
    y_ptrs = y_ptr + p * M + m
    y = s * tl.sum(last, axis=1)
    tl.store(y_ptrs, y / added if s.dtype == tl.float32 else y)


@dataclass(frozen=True)
class Resident:
    num_warps: int = threads(4, 8, default=8)


def refuse_resident(config, limits, *, itemsize, M, K, N, P):
    threads_ = config.num_warps * limits.warp_size
    if itemsize == 1 and (reason := limits.refuse_fp8()):
        return reason
    if limits.arch.startswith("gfx11") and (itemsize == 4 or M * N * K > 64 * 64 * 32):
        return f"{limits.arch} holds operands in registers: 16 bits and 64x64x32 are the most"
    held, shared = M * N // threads_, (M + N) * K * itemsize
    return limits.refuse_sums(held) or limits.refuse_shared(shared, "tiles")


def work(config, limits, *, itemsize, M, K, N, P):
    # the tiles are loaded once: a step's share of that
    return Work(
        tiles=P,
        steps=PRODUCTS,
        load_bytes=(M + N) * K * itemsize // PRODUCTS,
        store_bytes=4 * M,
        dot=(M, N, K),
    )


@matrix_only.impl(Resident, refuse=refuse_resident, work=work)
def resident(a, b, s, *, config):
    """One program a tile, which never leaves it."""
    (M, K), (N, _), (P,) = a.shape, b.shape, s.shape
    y = a.new_empty(P, M, dtype=torch.float32)
    added = added_of(a.element_size())
    constants = dict(M=M, N=N, K=K, UPCAST=INTERPRETED and a.dtype != torch.float32, SUM=tl.float32)
    constants |= dict(SUMS=2 if INTERPRETED else PRODUCTS // added)  # every sum is the same
    constants |= dict(num_warps=config.num_warps)
    _resident[(P,)](a, b, s, y, *strides(a, b, s), added, 0, **constants)
    return y


@matrix_only.impl(backend="torch", name="torch")
def library(a, b, s):
    """The same numbers with each product once: what it is checked with, not a library reference."""
    return s[:, None] * (a.float() @ b.float().T).sum(1)
