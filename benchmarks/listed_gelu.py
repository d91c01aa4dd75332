"""A plain Triton function with 72 configs, as a user brings it: y = gelu(x + b)."""

import triton
import triton.language as tl

SIZES = {"M": 8192, "N": 5120}
configs = [
    triton.Config({"BM": m, "BN": n}, num_warps=w, num_stages=s)
    for m in (1, 2, 4, 8)
    for n in (256, 512, 1024)
    for w in (2, 4, 8)
    for s in (1, 2)
]


@triton.jit
def gelu_bias(x, b, y, M, N, BM: tl.constexpr, BN: tl.constexpr):
    m = (tl.program_id(0) * BM + tl.arange(0, BM))[:, None]
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    at, inside = m.to(tl.int64) * N + n[None], (m < M) & (n[None] < N)
    v = tl.load(x + at, inside).to(tl.float32) + tl.load(b + n, n < N).to(tl.float32)[None]
    tl.store(y + at, 0.5 * v * (1 + tl.erf(v * 0.7071067811865475)), inside)
