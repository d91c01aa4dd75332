"""The kernel of `plain_product.py`: c = a @ b, all row-major, one tile of c a program."""

# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def mm(
    a_ptr, b_ptr, c_ptr, M, N, K, sam, sbk, scm,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, G: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    npm = tl.cdiv(M, BM)
    npn = tl.cdiv(N, BN)
    group = pid // (G * npn)
    first = group * G
    rows = min(npm - first, G)
    pm = first + (pid % (G * npn)) % rows
    pn = (pid % (G * npn)) // rows
    om = (pm * BM + tl.arange(0, BM)) % M
    on = (pn * BN + tl.arange(0, BN)) % N
    ok = tl.arange(0, BK)
    a = a_ptr + om[:, None] * sam + ok[None, :]
    b = b_ptr + ok[:, None] * sbk + on[None, :]
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a, mask=ok[None, :] < K - k, other=0.0)
        y = tl.load(b, mask=ok[:, None] < K - k, other=0.0)
        acc = tl.dot(x, y, acc)
        a += BK
        b += BK * sbk
    om = pm * BM + tl.arange(0, BM)
    on = pn * BN + tl.arange(0, BN)
    c = c_ptr + om[:, None] * scm + on[None, :]
    inside = (om[:, None] < M) & (on[None, :] < N)
    tl.store(c, acc.to(c_ptr.dtype.element_ty), mask=inside)
