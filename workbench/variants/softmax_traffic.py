"""The memory traffic of `softmax` without its arithmetic: y = x, by the loads and stores of `rows`.

Grid, tiles, masks and cache hints are those of the whole kernel. Half of its traffic are stores,
so they belong to it: loads alone would take about half as long, and would call a kernel that keeps
memory busy all the time half memory-bound.
"""

from workbench.dsl import meta, pad_up, policies, tl, triton
from workbench.dsl.row_schemes import Rows, refuse_rows, rows_work, size_rows
from workbench.spec import Spec, Tensor, Tolerance


def reference(x):
    return x.clone()


softmax_traffic = Spec(
    name="softmax_traffic",
    inputs={"x": Tensor("M N")},
    outputs={"y": Tensor("M N")},
    reference=reference,
    flops=lambda M, N: 0,
    check=[{"M": 1, "N": 1}, {"M": 5, "N": 127}, {"M": 13, "N": 781}, {"M": 4, "N": 4096}],
    bench=[{"M": 8192, "N": 4096}, {"M": 32_768, "N": 1024}],
    tolerance={dtype: Tolerance(relative=0.0) for dtype in ("fp32", "fp16", "bf16")},
)


@triton.jit
def _rows(
    x_ptr, y_ptr, M, N, stride_m, stride_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ONCE: tl.constexpr,
):  # fmt: skip
    m = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
    n = tl.arange(0, BLOCK_N)[None, :]
    mask = (m < M) & (n < N)
    x_ptrs = x_ptr + m * stride_m + n.to(tl.int64) * stride_n
    x = tl.load(x_ptrs, mask, other=-float("inf"), eviction_policy=ONCE)
    tl.store(y_ptr + m * N + n, x, mask)


@softmax_traffic.impl(Rows, resolve=size_rows, refuse=refuse_rows, work=rows_work())
def rows(x, *, config):
    """Each element is read once and written once, as `softmax.rows` does."""
    M, N = x.shape
    y = x.new_empty(M, N)
    once, _ = policies(config.hints)
    constants = dict(BLOCK_N=pad_up(N), ONCE=once, **meta(config))
    _rows[(triton.cdiv(M, config.block_m),)](x, y, M, N, *x.stride(), **constants)
    return y
