"""Matrix product of whole numbers of 8 bits: c = a b^T, exactly, for a of M x K and b of N x K. It
is there for what cuBLAS reaches through torch._int_mm: the library reference of the ceiling.
"""

import torch

from workbench.dsl import tl
from workbench.spec import Spec, Tensor, Tolerance
from workbench.variants import library_tf32 as floats


def reference(a, b):
    # a float64 holds each of these sums exactly, and torch multiplies no integers on a GPU
    return (a.double() @ b.double().T).long()


def bytes_(shape, dtype, device, generator):
    """All 8 bits in use."""
    return torch.randint(-128, 128, shape, generator=generator, device=device, dtype=dtype)


library_int8 = Spec(
    name="library_int8",
    inputs={
        "a": Tensor("M K", dtype="int8", make=bytes_),
        "b": Tensor("N K", dtype="int8", make=bytes_),
    },
    outputs={"c": Tensor("M N", dtype="int32")},
    reference=reference,
    flops=lambda M, K, N: 2 * M * N * K,
    check=floats.library_tf32.check,
    bench=floats.library_tf32.bench,
    tolerance={"int8": Tolerance(relative=0.0)},
)


@library_int8.impl(floats.Tiles, refuse=floats.refuse_tiles, work=floats.work)
def tiles(a, b, *, config):
    """One program a tile."""
    c = a.new_empty(len(a), len(b), dtype=torch.int32)
    return floats.launch_tiles(a, b, c, config, 64, tl.int32)


@library_int8.impl(backend="torch", name="torch._int_mm")
def library(a, b):
    """cuBLAS."""
    return torch._int_mm(a, b.T)
