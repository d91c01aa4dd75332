"""The arithmetic of `empty`, which has none: one zero, as there.

A kernel whose limit is known: the experiment `memory_vs_compute` must call it latency-bound.
"""

from workbench.dsl import tl, triton
from workbench.kernels import empty as whole
from workbench.spec import Spec, Tensor

empty_arithmetic = Spec(
    name="empty_arithmetic",
    inputs={"x": Tensor("1")},
    outputs={"y": Tensor("1")},
    reference=whole.reference,
    flops=lambda: 0,
    check=whole.empty.check,
    bench=whole.empty.bench,
    tolerance=whole.empty.tolerance,
)


@triton.jit
def _once(y_ptr):
    tl.store(y_ptr, 0.0)


@empty_arithmetic.impl(whole.Once)
def once(x, *, config):
    """The one program of `empty.once`."""
    y = x.new_empty(1)
    _once[(1,)](y, num_warps=config.num_warps)
    return y
