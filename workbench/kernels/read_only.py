"""The largest element of every 4096: y[c] = max(x[4096 c : 4096 (c + 1)]).

Reads everything and writes a four-thousandth of it: what DRAM gives when nothing has to turn the
bus round for writes. A maximum is exact in every dtype and cannot be left out by a compiler, since
its result is stored. NaN is not a number, and so never the largest.
"""

from dataclasses import dataclass

from workbench.dsl import meta, tl, triton
from workbench.spec import Extent, Spec, Tensor, Tolerance, Work, among, threads

CHUNK = 4096


def reference(x):
    return x.masked_fill(x.isnan(), -float("inf")).view(-1, CHUNK).amax(1)


read_only = Spec(
    name="read_only",
    inputs={"x": Tensor("N")},
    outputs={"y": Tensor("N/4096")},
    reference=reference,
    flops=lambda N: 0,  # comparisons are none
    check=[{"N": 4096}, {"N": 3 * 4096}, {"N": 9 * 4096}],
    bench=[{"N": 1 << 28}, {"N": 1 << 24}],
    tolerance={dtype: Tolerance(relative=0.0) for dtype in ("fp32", "fp16", "bf16")},
    extents={"N": Extent(multiple=CHUNK)},
    longest=1 << 40,
)


@triton.jit
def _chunks(x_ptr, y_ptr, C, stride_x, CHUNK: tl.constexpr, BLOCK_C: tl.constexpr):
    c = tl.program_id(0).to(tl.int64) * BLOCK_C + tl.arange(0, BLOCK_C)
    n = c[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :]
    x = tl.load(x_ptr + n * stride_x, (c < C)[:, None], other=-float("inf")).to(tl.float32)
    tl.store(y_ptr + c, tl.max(x, axis=1).to(y_ptr.dtype.element_ty), c < C)


@dataclass(frozen=True)
class Chunks:
    block_c: int = among(1, 2, 4, 8, default=1)
    num_warps: int = threads(1, 32, default=4)


def refuse_chunks(config, limits, *, itemsize, N):
    held = config.block_c * CHUNK // (config.num_warps * limits.warp_size)
    return limits.refuse_held(held, 64)


def work(config, limits, *, itemsize, N):
    return Work(
        tiles=-(-N // (config.block_c * CHUNK)),
        steps=1,
        load_bytes=config.block_c * CHUNK * itemsize,
        store_bytes=config.block_c * itemsize,
    )


@read_only.impl(Chunks, refuse=refuse_chunks, work=work)
def chunks(x, *, config):
    """One program reads `block_c` chunks, all loads in flight at once."""
    C = x.shape[0] // CHUNK
    y = x.new_empty(C)
    _chunks[(triton.cdiv(C, config.block_c),)](x, y, C, x.stride(0), CHUNK=CHUNK, **meta(config))
    return y


read_only.library("torch", lambda x: x.view(-1, CHUNK).amax(1))
