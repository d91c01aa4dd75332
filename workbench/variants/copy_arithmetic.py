"""The arithmetic of `copy`, which has none: what is left are programs that begin and end.

As many programs as `copy` has; the last one copies the last element, so that there is an answer.
The others read nothing, so the elements are bytes: a time is refused where it is too short for the
inputs that a Spec declares.
"""

import torch

from workbench.dsl import meta, tl, triton
from workbench.kernels import copy as whole
from workbench.spec import Spec, Tensor, Work


def whole_numbers(shape, dtype, device, generator):
    # every dtype holds them exactly
    return torch.randint(-100, 101, shape, dtype=dtype, device=device, generator=generator)


def reference(x, like):
    return x[-1:].to(like.dtype)


copy_arithmetic = Spec(
    name="copy_arithmetic",
    inputs={
        "x": Tensor("N", dtype="int8", make=whole_numbers),
        "like": Tensor("1"),  # its dtype alone counts
    },
    outputs={"y": Tensor("1")},
    reference=reference,
    flops=lambda N: 0,
    check=whole.copy.check,
    bench=whole.copy.bench,
    tolerance=whole.copy.tolerance,
)


@triton.jit
def _last(x_ptr, y_ptr, N, stride_x, BLOCK_N: tl.constexpr):
    n = tl.program_id(0).to(tl.int64) * BLOCK_N
    there = n + BLOCK_N >= N  # in the last program
    last = tl.load(x_ptr + (tl.cast(N, tl.int64) - 1) * stride_x, there)
    # by way of fp32: the interpreter turns whole numbers into garbage in bf16
    tl.store(y_ptr, last.to(tl.float32).to(y_ptr.dtype.element_ty), there)


def work(config, limits, *, itemsize, N):
    return Work(tiles=-(-N // config.block_n), steps=1, load_bytes=0, store_bytes=0)


@copy_arithmetic.impl(
    whole.Blocks, refuse=whole.refuse_blocks, work=work, defaults=whole.blocks.defaults
)
def blocks(x, like, *, config):
    """The programs of `copy.blocks`."""
    (N,) = x.shape
    y = like.new_empty(1)
    _last[(triton.cdiv(N, config.block_n),)](x, y, N, *x.stride(), **meta(config))
    return y
