"""A small x read again and again by a library: y[r, c] is the largest of the 4096 numbers of chunk
c, for each r. It is there for what torch's amax reaches over an x that repeats itself (a stride of
0) in the last-level cache: the library reference of that ceiling. Read once, x would be over in a
few microseconds, most of which are a launch.

A maximum is exact. NaN is not a number, and so never the largest.
"""

from dataclasses import dataclass

from workbench.dsl import tl, triton
from workbench.spec import Extent, Spec, Tensor, Tolerance, Work, threads

CHUNK = 4096


def reference(x, r):
    largest = x.masked_fill(x.isnan(), -float("inf")).view(-1, CHUNK).amax(1)
    return largest.repeat(len(r), 1)


library_cache = Spec(
    name="library_cache",
    inputs={"x": Tensor("N"), "r": Tensor("R")},  # of r only the length is asked
    outputs={"y": Tensor("R N/4096")},
    reference=reference,
    flops=lambda N, R: 0,  # comparisons are none
    check=[{"N": 4096, "R": 1}, {"N": 3 * 4096, "R": 2}, {"N": 9 * 4096, "R": 3}],
    bench=[{"N": 3 << 21, "R": 64}, {"N": 1 << 21, "R": 64}],
    tolerance={dtype: Tolerance(relative=0.0) for dtype in ("fp32", "fp16", "bf16")},
    extents={"N": Extent(multiple=CHUNK)},
)


@triton.jit
def _chunks(x_ptr, y_ptr, C, stride_x, CHUNK: tl.constexpr):
    c, r = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    x = tl.load(x_ptr + (c * CHUNK + tl.arange(0, CHUNK)) * stride_x, cache_modifier=".cg")
    tl.store(y_ptr + r * C + c, tl.max(x.to(tl.float32), axis=0).to(y_ptr.dtype.element_ty))


@dataclass(frozen=True)
class Chunks:
    num_warps: int = threads(4, 16, default=4)


def refuse_chunks(config, limits, *, itemsize, N, R):
    if R > 65_535:
        return f"{R} repetitions are more than the 65535 that a grid may have along its second axis"
    return None


def work(config, limits, *, itemsize, N, R):
    """What a library's version asks of the cache, too."""
    return Work(tiles=R * (N // CHUNK), steps=1, load_bytes=CHUNK * itemsize, store_bytes=itemsize)


@library_cache.impl(Chunks, refuse=refuse_chunks, work=work)
def chunks(x, r, *, config):
    """One program reads one chunk."""
    C = x.shape[0] // CHUNK
    y = x.new_empty(len(r), C)
    _chunks[(C, len(r))](x, y, C, x.stride(0), CHUNK=CHUNK, num_warps=config.num_warps)
    return y


@library_cache.impl(backend="torch", name="torch.amax", work=work)
def library(x, r):
    return x.view(1, -1, CHUNK).expand(len(r), -1, -1).amax(2)
