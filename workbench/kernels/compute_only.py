"""1024 fused multiply-adds on each element: x <- a x + b, over and over, then one store.

2048 FLOP for two elements moved make it compute-bound on every GPU in `devices/`: it shows what
the vector units give in fp32, whatever the dtype in memory. Each thread holds several elements,
and so several chains that do not wait for each other: a multiply-add takes four cycles on NVIDIA's
GPUs, so a thread with one chain would leave the units idle unless many warps share them.

NaN and infinities stay in their chains.
"""

from dataclasses import dataclass

from workbench.dsl import meta, tile_count, tl, triton
from workbench.spec import Spec, Tensor, Tolerance, Work, threads, tile

TRIPS, UNROLLED = 64, 16  # their product is the number of multiply-adds
A, B = 1 - 2.0**-10, 2.0**-10  # both exact; x goes to 1 + (x - 1) / e


def reference(x):
    """With numbers written out: taken from the kernel's own, wrong ones would not show."""
    for _ in range(1024):
        x = (1 - 2.0**-10) * x + 2.0**-10
    return x


compute_only = Spec(
    name="compute_only",
    inputs={"x": Tensor("N")},
    outputs={"y": Tensor("N")},
    reference=reference,
    flops=lambda N: 2 * TRIPS * UNROLLED * N,
    check=[{"N": 1}, {"N": 127}, {"N": 4096}],
    bench=[{"N": 1 << 24}, {"N": 1 << 26}],
    tolerance={
        # a thousand roundings of 2^-24, of which the factor forgets the older ones
        "fp32": Tolerance(relative=4e-5, rms_share=4e-5),
        "fp16": Tolerance(relative=1e-3, rms_share=4e-5),
        "bf16": Tolerance(relative=8e-3, rms_share=4e-5),
    },
    longest=1 << 40,
)


@triton.jit
def _chains(
    x_ptr, y_ptr, N, stride_x, A: tl.constexpr, B: tl.constexpr,
    TRIPS: tl.constexpr, UNROLLED: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    x = tl.load(x_ptr + n * stride_x, n < N, other=0.0).to(tl.float32)
    a = tl.full((BLOCK_N,), A, tl.float32)
    b = tl.full((BLOCK_N,), B, tl.float32)
    for _ in range(TRIPS):
        for _ in tl.static_range(UNROLLED):
            x = tl.fma(a, x, b)
    tl.store(y_ptr + n, x.to(y_ptr.dtype.element_ty), n < N)


@dataclass(frozen=True)
class Chains:
    block_n: int = tile(256, 8192, default=2048)
    num_warps: int = threads(1, 16, default=8)


def refuse_chains(config, limits, *, itemsize, N):
    held = config.block_n // (config.num_warps * limits.warp_size)
    if not 1 <= held <= 32:
        return f"each thread would hold {held} chains; 1 to 32 fit its registers"
    return None


def work(config, limits, *, itemsize, N):
    moved = config.block_n * itemsize
    return Work(tiles=-(-N // config.block_n), steps=1, load_bytes=moved, store_bytes=moved)


@compute_only.impl(Chains, refuse=refuse_chains, work=work)
def chains(x, *, config):
    """One program runs `block_n` chains, several in each thread."""
    (N,) = x.shape
    y = x.new_empty(N)
    grid = (tile_count(config, N=N),)
    _chains[grid](x, y, N, x.stride(0), A, B, TRIPS, UNROLLED, **meta(config))
    return y
