"""An outer product, y[m, n] = a[m] * b[n]: memory that is written and hardly read.

Reads M + N numbers and writes M x N: what DRAM takes when no read has to turn the bus round. Each
program holds a piece of b in registers and stores it `rows` times, scaled. What is written is
random, since constant bits cost less power.
"""

from dataclasses import dataclass

from workbench.dsl import meta, strides, tl, triton
from workbench.spec import Spec, Tensor, Work, among, threads, tile


def reference(a, b):
    return a[:, None] * b[None, :]


fill = Spec(
    name="fill",
    inputs={"a": Tensor("M"), "b": Tensor("N")},
    outputs={"y": Tensor("M N")},
    reference=reference,
    flops=lambda M, N: M * N,
    check=[{"M": 1, "N": 1}, {"M": 3, "N": 127}, {"M": 17, "N": 1000}],
    bench=[{"M": 1 << 16, "N": 4096}, {"M": 1 << 12, "N": 4096}],
)


@triton.jit
def _rows(a_ptr, b_ptr, y_ptr, M, N, stride_a, stride_b, ROWS: tl.constexpr, BLOCK_N: tl.constexpr):
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    first = tl.program_id(0).to(tl.int64) * ROWS
    b = tl.load(b_ptr + n.to(tl.int64) * stride_b, n < N, other=0.0).to(tl.float32)
    for row in tl.static_range(ROWS):
        m = first + row
        a = tl.load(a_ptr + m * stride_a, m < M, other=0.0).to(tl.float32)
        y = (a * b).to(y_ptr.dtype.element_ty)
        tl.store(y_ptr + m * N + n, y, n < tl.where(m < M, N, 0))


@dataclass(frozen=True)
class Rows:
    rows: int = among(1, 4, default=1)
    block_n: int = tile(2048, 8192, default=4096)
    num_warps: int = threads(4, 16, default=4)


def refuse_rows(config, limits, *, itemsize, M, N):
    held = config.block_n // (config.num_warps * limits.warp_size)
    return limits.refuse_held(held, 64)


def work(config, limits, *, itemsize, M, N):
    moved = config.block_n * itemsize
    return Work(
        tiles=-(-M // config.rows) * -(-N // config.block_n),
        steps=1,
        load_bytes=moved,
        store_bytes=config.rows * moved,
    )


@fill.impl(Rows, refuse=refuse_rows, work=work)
def rows(a, b, *, config):
    """One program writes the same columns of `rows` rows."""
    (M,), (N,) = a.shape, b.shape
    y = a.new_empty(M, N)
    grid = triton.cdiv(M, config.rows), triton.cdiv(N, config.block_n)
    _rows[grid](a, b, y, M, N, *strides(a, b), ROWS=config.rows, **meta(config))
    return y


@fill.impl(backend="torch", name="torch")
def library(a, b):
    return a[:, None] * b[None, :]
