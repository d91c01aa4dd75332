"""Matrix products of whole numbers of 8 bits that are there already: `matrix_only` for integers.

Each of P programs loads a tile a (M x K) and a tile b (N x K) once. Then, 64 times, it begins a
sum anew and adds the product a b^T to it 32 times: y[p, m] = s[p] * 32 * sum over n, k of
a[m, k] b[n, k], exactly, in 32 bits. Its rate is in operations, which no datasheet calls FLOP.
"""

import torch

from workbench.dsl import INTERPRETED, strides, tl
from workbench.spec import Spec, Tensor, Tolerance, Work
from workbench.variants import matrix_only as floats

SUMS, ADDED = 64, 32  # their product is how often each tile is multiplied


def reference(a, b, s):
    # a float64 holds each of these numbers exactly, and torch multiplies no integers on a GPU
    products = a.double() @ b.double().T
    return (ADDED * s.double()[:, None] * products.sum(1)).long()


def bytes_(shape, dtype, device, generator):
    """All 8 bits in use."""
    return torch.randint(-128, 128, shape, generator=generator, device=device, dtype=dtype)


def signs(shape, dtype, device, generator):
    return torch.randint(-2, 3, shape, generator=generator, device=device, dtype=dtype)


matrix_int8 = Spec(
    name="matrix_int8",
    inputs={
        "a": Tensor("M K", dtype="int8", make=bytes_),
        "b": Tensor("N K", dtype="int8", make=bytes_),
        "s": Tensor("P", dtype="int32", make=signs),
    },
    outputs={"y": Tensor("P M", dtype="int32")},
    reference=reference,
    # the last sums over n and the products with s are left out: under 1 in 1000
    flops=lambda M, K, N, P: 2 * M * N * K * P * SUMS * ADDED,
    check=floats.matrix_only.check,
    bench=[
        {"M": 128, "K": 128, "N": 256, "P": 132},
        {"M": 128, "K": 128, "N": 128, "P": 264},
        {"M": 64, "K": 32, "N": 64, "P": 528},
    ],
    tolerance={"int8": Tolerance(relative=0.0)},
    extents=floats.matrix_only.extents,
)


def refuse_resident(config, limits, *, itemsize, M, K, N, P):
    threads_ = config.num_warps * limits.warp_size
    held, shared = M * N // threads_, (M + N) * K
    if limits.arch.startswith("gfx11") and M * N * K > 64 * 64 * 32:
        return f"{limits.arch} holds operands in registers: 64x64x32 are the most"
    return limits.refuse_sums(held) or limits.refuse_shared(shared, "tiles")


def work(config, limits, *, itemsize, M, K, N, P):
    # the tiles are loaded once: a step's share of that
    return Work(
        tiles=P,
        steps=SUMS * ADDED,
        load_bytes=(M + N) * K // (SUMS * ADDED),
        store_bytes=4 * M,
        dot=(M, N, K),
    )


@matrix_int8.impl(floats.Resident, refuse=refuse_resident, work=work)
def resident(a, b, s, *, config):
    """One program a tile, which never leaves it."""
    (M, K), (N, _), (P,) = a.shape, b.shape, s.shape
    y = a.new_empty(P, M, dtype=torch.int32)
    constants = dict(M=M, N=N, K=K, UPCAST=False, SUM=tl.int32, num_warps=config.num_warps)
    constants |= dict(SUMS=2 if INTERPRETED else SUMS)  # every sum is the same
    floats._resident[(P,)](a, b, s, y, *strides(a, b, s), ADDED, 0, **constants)
    return y


@matrix_int8.impl(backend="torch", name="torch")
def library(a, b, s):
    """The same numbers with each product once: what it is checked with, not a library reference."""
    return reference(a, b, s).int()
