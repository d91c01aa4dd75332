"""Kernels with one fault each that the machine code shows, for the rules of `diagnose KERNEL`."""

from __future__ import annotations

from pathlib import Path

# The rule that holds by the Impl, and the architectures on which the fault is in the code.
ELEMENTS = {
    "spills": ("spills_in_loop", ("h200",)),
    "strided": ("narrow_accesses", ("h200", "mi300x")),
    "doubles": ("fp64_code", ("h200", "mi300x")),
    "divides": ("integer_division", ("h200", "mi300x")),
    "wide": ("few_warps", ("h200",)),
    "wide_of_waves": ("few_warps", ("mi300x",)),
}
PRODUCTS = {
    "outer": ("no_matrix_unit", ("h200", "mi300x")),
    "scattered": ("no_async_copy", ("h200", "a100")),
    "deep": ("shared_limit", ("h200",)),
}
# The line that a diagnosis names, as it stands in the file.
LINES = {
    "strided": "x_ptr + n * stride",
    "doubles": "tl.float64",
    "divides": "// (divisor + k)",
    "outer": "acc += a[:, None]",
    "scattered": "tl.load(",
}


def written(folder: Path) -> dict[str, Path]:
    """The two files, by the name of their Spec."""
    paths = {"planted": folder / "planted.py", "planted_product": folder / "planted_product.py"}
    paths["planted"].write_text(ELEMENT_FILE)
    paths["planted_product"].write_text(PRODUCT_FILE)
    return paths


def line_of(path: Path, impl: str) -> list[str]:
    """The places `file:line` that hold the text of the fault."""
    lines = path.read_text().splitlines()
    return [f"{path.name}:{n}" for n, line in enumerate(lines, 1) if LINES[impl] in line]


ELEMENT_FILE = '''"""Sums of blocks, each with a fault."""

from dataclasses import dataclass

import triton
import triton.language as tl

from workbench.spec import Spec, Tensor, threads

planted = Spec(
    name="planted",
    inputs={"x": Tensor("M N")},
    outputs={"y": Tensor("M N")},
    reference=lambda x: x,
    flops=lambda M, N: M * N,
    check=[{"M": 4, "N": 64}],
    bench=[{"M": 65536, "N": 4096}],
)


@triton.jit
def striding(x_ptr, y_ptr, N, stride, BLOCK: tl.constexpr):
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    for k in range(0, N):
        acc += tl.load(x_ptr + n * stride + k)
    tl.store(y_ptr + n, acc)


@triton.jit
def doubling(x_ptr, y_ptr, N, BLOCK: tl.constexpr):
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    for k in range(0, N, 16):
        x = tl.load(x_ptr + k * N + n)
        acc += (x.to(tl.float64) * 3.1).to(tl.float32)
    tl.store(y_ptr + n, acc)


@triton.jit
def dividing(x_ptr, y_ptr, N, divisor, BLOCK: tl.constexpr):
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    for k in range(0, N, 16):
        row = n // (divisor + k)
        acc += tl.load(x_ptr + row * N + n)
    tl.store(y_ptr + n, acc)


@triton.jit
def keeping(x_ptr, y_ptr, N, BLOCK: tl.constexpr):
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    acc = n.to(tl.float32)
    for k in range(0, N):
        acc = acc * tl.load(x_ptr + k) + 1.5
    tl.store(y_ptr + n, acc)


@dataclass(frozen=True)
class Knobs:
    num_warps: int = threads(1, 4, default=4)


def launch(kernel, x, block, warps, *more):
    y = x.new_empty(x.shape)
    kernel[(x.numel() // block,)](x, y, x.shape[1], *more, BLOCK=block, num_warps=warps)
    return y


@planted.impl(Knobs)
def spills(x, *, config):
    return launch(keeping, x, 16384, 1)


@planted.impl(Knobs)
def strided(x, *, config):
    return launch(striding, x, 1024, config.num_warps, x.stride(0) + 1)


@planted.impl(Knobs)
def doubles(x, *, config):
    return launch(doubling, x, 1024, config.num_warps)


@planted.impl(Knobs)
def divides(x, *, config):
    return launch(dividing, x, 1024, config.num_warps, x.shape[0] + 1)


@planted.impl(Knobs)
def wide(x, *, config):
    return launch(keeping, x, 8192, 2)


@planted.impl(Knobs)
def wide_of_waves(x, *, config):
    return launch(keeping, x, 16384, 2)
'''


PRODUCT_FILE = '''"""Products, each with a fault."""

from dataclasses import dataclass

import triton
import triton.language as tl

from workbench.spec import Spec, Tensor, threads

planted_product = Spec(
    name="planted_product",
    inputs={"a": Tensor("M K"), "b": Tensor("K N")},
    outputs={"c": Tensor("M N")},
    reference=lambda a, b: a @ b,
    flops=lambda M, N, K: 2 * M * N * K,
    check=[{"M": 256, "N": 256, "K": 128}],
    bench=[{"M": 4096, "N": 4096, "K": 4096}],
)


@triton.jit
def by_row(a_ptr, b_ptr, c_ptr, N, K, BM: tl.constexpr, BN: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K):
        a = tl.load(a_ptr + m * K + k).to(tl.float32)
        b = tl.load(b_ptr + k * N + n).to(tl.float32)
        acc += a[:, None] * b[None, :]
    tl.store(c_ptr + m[:, None] * N + n[None, :], acc)


@triton.jit
def by_tile(
    a_ptr, b_ptr, c_ptr, N, K, step, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        a = tl.load(a_ptr + m[:, None] * K + k[None, :] * step)
        b = tl.load(b_ptr + k[:, None] * N + n[None, :] * step)
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + m[:, None] * N + n[None, :] * step, acc)


@dataclass(frozen=True)
class Knobs:
    num_warps: int = threads(4, 8, default=4)


def launch(kernel, a, b, tile, *more, **options):
    c = a.new_empty((a.shape[0], b.shape[1]))
    grid = (a.shape[0] // tile["BM"], b.shape[1] // tile["BN"])
    kernel[grid](a, b, c, b.shape[1], a.shape[1], *more, **tile, **options)
    return c


@planted_product.impl(Knobs)
def outer(a, b, *, config):
    return launch(by_row, a, b, dict(BM=64, BN=64), num_warps=config.num_warps)


@planted_product.impl(Knobs)
def scattered(a, b, *, config):
    tile = dict(BM=64, BN=64, BK=32)
    return launch(by_tile, a, b, tile, 3, num_warps=config.num_warps, num_stages=3)


@planted_product.impl(Knobs)
def deep(a, b, *, config):
    tile = dict(BM=128, BN=256, BK=64)
    return launch(by_tile, a, b, tile, 1, num_warps=8, num_stages=6)

'''
