"""The memory traffic of `rms_norm` without its arithmetic: y = x + w, by the loads and stores of
`rows`.

Grid, tiles, masks and cache hints are those of the whole kernel. The sum is there because w must be
read, too: without a use of it the compiler would leave its loads out. Half of the traffic are
stores, so they belong to it: loads alone would call a kernel that keeps memory busy all the time
half memory-bound.
"""

from workbench.dsl import meta, padded, policies, strides, tl, triton
from workbench.dsl.row_schemes import refuse_rows, rows_work
from workbench.kernels.rms_norm import Rows, size_rows
from workbench.spec import Spec, Tensor


def reference(x, w):
    return x + w


rms_norm_traffic = Spec(
    name="rms_norm_traffic",
    inputs={"x": Tensor("M N"), "w": Tensor("N")},
    outputs={"y": Tensor("M N")},
    reference=reference,
    flops=lambda M, N: 0,  # what the sums take is not work of the kernel that this belongs to
    check=[{"M": 1, "N": 1}, {"M": 5, "N": 127}, {"M": 13, "N": 781}, {"M": 4, "N": 4096}],
    bench=[{"M": 8192, "N": 8192}, {"M": 8192, "N": 4096}, {"M": 32, "N": 4096}],
)


@triton.jit
def _rows(
    x_ptr, w_ptr, y_ptr, M, N, stride_m, stride_n, stride_w,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ONCE: tl.constexpr, KEPT: tl.constexpr,
):  # fmt: skip
    m = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
    n = tl.arange(0, BLOCK_N)[None, :]
    mask = (m < M) & (n < N)
    x_ptrs = x_ptr + m * stride_m + n.to(tl.int64) * stride_n
    w_ptrs = w_ptr + n.to(tl.int64) * stride_w
    x = tl.load(x_ptrs, mask, other=0.0, eviction_policy=ONCE).to(tl.float32)
    w = tl.load(w_ptrs, n < N, other=0.0, eviction_policy=KEPT).to(tl.float32)
    tl.store(y_ptr + m * N + n, (x + w).to(y_ptr.dtype.element_ty), mask)


@rms_norm_traffic.impl(Rows, resolve=size_rows, refuse=refuse_rows, work=rows_work(vectors=1))
def rows(x, w, *, config):
    """x is read once, w once by each program. `early` changes nothing: w waits for no sum here."""
    M, N = x.shape
    y = x.new_empty(M, N)
    once, kept = policies(config.hints)
    constants = dict(BLOCK_N=padded(N), ONCE=once, KEPT=kept, **meta(config))
    _rows[(triton.cdiv(M, config.block_m),)](x, w, y, M, N, *strides(x, w), **constants)
    return y
