"""y = 2 x, with forty good configs and nine that each go wrong in another way.

`python -m workbench.sweep full --kernel benchmarks/faulty_kernel.py` meets all nine; the sweep
`tile_size` leaves `fault` at 0 and meets none. Both must find the same winner. Not to be launched
in a process that is still needed: one of the faults ends it, and others spoil its GPU context.
"""

import ctypes
from dataclasses import dataclass

from workbench.dsl import tl, triton
from workbench.spec import Spec, Tensor, Tolerance, among, threads, tile

FAULTS = {
    1: "out of shared memory",
    2: "illegal memory access",
    3: "misaligned access",
    4: "infinite loop",
    5: "device assert",
    6: "compile error",
    7: "compiler abort",
    8: "segfault in the launcher",
    9: "wrong result",
}
SEGFAULT = 8
DEEP = 5  # stages of two 128 x 128 tiles of 2 bytes: 320 KiB, more than any block may have


def reference(x):
    return 2 * x


faulty = Spec(
    name="faulty",
    inputs={"x": Tensor("N")},
    outputs={"y": Tensor("N")},
    reference=reference,
    flops=lambda N: N,
    check=[{"N": 32_768}, {"N": 65_536}],
    bench=[{"N": 1 << 24}],
    tolerance={dtype: Tolerance(relative=0.0) for dtype in ("fp32", "fp16", "bf16")},
)


@triton.jit
def _doubled(x_ptr, y_ptr, N, BLOCK_N: tl.constexpr, FAULT: tl.constexpr):
    n = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    x = tl.load(x_ptr + n, n < N).to(tl.float32)
    y = (x + x).to(y_ptr.dtype.element_ty)
    if FAULT == 8:  # other machine code than the good config's, or it would count as the same
        tl.debug_barrier()
    if FAULT == 1:  # a product whose pipeline asks for more than any device has
        row, column = tl.arange(0, 128)[:, None], tl.arange(0, 128)[None, :]
        a_ptrs = x_ptr + row * 128 + column
        total = tl.zeros((128, 128), tl.float32)
        for step in range(0, N, 32_768):
            total = tl.dot(tl.load(a_ptrs + step), tl.load(a_ptrs + step + 16_384), total)
        tl.store(y_ptr + row * 128 + column, total.to(y_ptr.dtype.element_ty))
    if FAULT == 2:
        # 2^44 bytes on, which no process has mapped
        away = (y_ptr.to(tl.int64) + (1 << 44)).to(y_ptr.dtype)
        tl.store(away + n, y, n < N)
    if FAULT == 3:
        odd = (y_ptr.to(tl.int64) + 1).to(tl.pointer_type(tl.int32))
        tl.store(odd + n // 2, n.to(tl.int32), n < N - 4)
    if FAULT == 4:
        # two NaNs of bf16, which no random input holds
        word = x_ptr.to(tl.pointer_type(tl.int32))
        while tl.load(word, volatile=True) != 0x7FC17FC1:
            pass
    if FAULT == 5:
        tl.device_assert(n < 0, "every element is refused")
    if FAULT == 6:
        tl.static_assert(BLOCK_N < 0, "no block is this small")
    if FAULT == 7:  # LLVM: "Invalid $ operand number in inline asm string", then abort()
        word = y.to(tl.int32)
        word = tl.inline_asm_elementwise("mov.b32 $0, $9;", "=r,r", [word], tl.int32, True, 1)
        y = word.to(y_ptr.dtype.element_ty)
    if FAULT == 9:
        y = (x / 0.0 - x / 0.0).to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + n, y, n < N)


@dataclass(frozen=True)
class Blocks:
    block_n: int = tile(256, 32_768, default=1024)
    num_warps: int = threads(1, 16, default=4)
    fault: int = among(0, *FAULTS, default=0)


def refuse(config, limits, *, itemsize, N):
    if config.fault and (config.block_n, config.num_warps) != (Blocks.block_n, Blocks.num_warps):
        return "a fault is shown at the default block alone"
    return None


@faulty.impl(Blocks, refuse=refuse)
def blocks(x, *, config):
    """One program doubles `block_n` neighbours, or fails in the way that `fault` names."""
    (N,) = x.shape
    if config.fault == SEGFAULT and not x.is_meta:
        ctypes.string_at(0)
    y = x.new_empty(N)
    _doubled[(triton.cdiv(N, config.block_n),)](
        x, y, N, BLOCK_N=config.block_n, FAULT=config.fault, num_warps=config.num_warps,
        num_stages=DEEP if config.fault == 1 else 3, debug=config.fault == 5,
    )  # fmt: skip
    return y
