"""Copy with 100 configs: block, warps, stages."""

from dataclasses import dataclass

from workbench.dsl import tl, triton
from workbench.spec import Spec, Tensor, Tolerance, stages, threads, tile


def reference(x):
    return x.clone()


listed = Spec(
    name="copy_list",
    inputs={"x": Tensor("N")},
    outputs={"y": Tensor("N")},
    reference=reference,
    flops=lambda N: 0,
    check=[{"N": 127}, {"N": 33_331}],
    bench=[{"N": 1 << 28}],
    tolerance={dtype: Tolerance(relative=0.0) for dtype in ("fp32", "fp16", "bf16")},
)


@triton.jit
def kernel(x_ptr, y_ptr, N, BLOCK_N: tl.constexpr):
    n = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    tl.store(y_ptr + n, tl.load(x_ptr + n, n < N), n < N)


@dataclass(frozen=True)
class Config:
    block_n: int = tile(256, 4096, default=1024)
    num_warps: int = threads(1, 8, default=4)
    num_stages: int = stages(1, 5, default=3)


def launch(function, x, **knobs):
    """`function` is `kernel` with its knobs, or `kernel` autotuned without."""
    (N,) = x.shape
    y = x.new_empty(N)
    function[lambda meta: (triton.cdiv(N, meta["BLOCK_N"]),)](x, y, N, **knobs)
    return y


@listed.impl(Config)
def plain(x, *, config):
    return launch(
        kernel, x, BLOCK_N=config.block_n, num_warps=config.num_warps, num_stages=config.num_stages
    )
