"""y = 2 x, with good configs, and configs whose launches deceive a harness or break it.

`workbench sweep full --kernel benchmarks/hostile_kernel.py` must fail each of them by a reason that
names its fault, and find a good config. `fault` 0 is good. Not to be launched in a process that is
still needed.
"""

import ctypes
from dataclasses import dataclass

import torch

from workbench.dsl import tl, triton
from workbench.spec import Spec, Tensor, Tolerance, among, threads, tile

FAULTS = {
    1: "endless loop",
    2: "deadlock on a grid barrier",
    3: "illegal memory access",
    4: "allocates 200 GB",
    5: "segfault of the host",
    6: "last element wrong",
    7: "one NaN",
    8: "all work on another stream",
    9: "half the work on another stream, forked and not joined",
    10: "a time that is three times as long by turns",
    11: "host code that spoils an equal binary",
    12: "remembers results by address",
    13: "does nothing while it is captured",
    14: "replaces torch.equal",
    15: "returns its input",
    16: "calls a library in place of the kernel",
    17: "host code that adds work to an equal binary",
    18: "half the work on another stream, not forked",
    19: "sys.exit",
    20: "returns a tensor on the CPU",
    21: "changes its input and returns it",
    22: "computes once, then returns the same memory",
}
EQUAL = (11, 17)  # those whose machine code is that of the good config


def reference(x):
    return 2 * x


hostile = Spec(
    name="hostile",
    inputs={"x": Tensor("N")},
    outputs={"y": Tensor("N")},
    reference=reference,
    flops=lambda N: N,
    check=[{"N": 32_768}, {"N": 65_536}],
    bench=[{"N": 1 << 24}],
    tolerance={dtype: Tolerance(relative=0.0) for dtype in ("fp32", "fp16", "bf16")},
)


@triton.jit
def _doubled(x_ptr, y_ptr, N, last, BLOCK_N: tl.constexpr, FAULT: tl.constexpr):
    n = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    x = tl.load(x_ptr + n, n < N).to(tl.float32)
    if FAULT > 0:  # other machine code than the good config's
        tl.debug_barrier()
    if FAULT == 1:
        word = x_ptr.to(tl.pointer_type(tl.int32))
        while tl.load(word, volatile=True) != 0x7FC17FC1:  # two NaNs that no input holds
            pass
    if FAULT == 2:  # more blocks than can be resident wait for each other
        count = y_ptr.to(tl.pointer_type(tl.int32))
        tl.atomic_add(count, 1)
        while tl.load(count, volatile=True) != -1:
            pass
    if FAULT == 3:
        away = (y_ptr.to(tl.int64) + (1 << 44)).to(y_ptr.dtype)
        tl.store(away + n, x.to(y_ptr.dtype.element_ty), n < N)
    y = x + x
    if FAULT == 6:
        y = tl.where(n == last, 0.0, y)
    if FAULT == 7:
        y = tl.where(n == last // 3, float("nan"), y)
    if FAULT == 10:  # by turns of 8 ms
        now = tl.inline_asm_elementwise(
            "mov.u64 $0, %globaltimer;", "=l", [], tl.int64, is_pure=False, pack=1
        )
        passes = tl.where((now >> 23) % 5 < 2, 12, 0)
        for _ in range(passes):
            again = tl.load(x_ptr + n, n < N, volatile=True).to(tl.float32)
            y = tl.where(again == 12345.0, again, y)
    tl.store(y_ptr + n, y.to(y_ptr.dtype.element_ty), n < N)


@dataclass(frozen=True)
class Blocks:
    block_n: int = tile(256, 4096, default=1024)
    num_warps: int = threads(2, 8, default=4)
    fault: int = among(0, *FAULTS, default=0)


def refuse(config, limits, *, itemsize, N):
    if config.fault and (config.block_n, config.num_warps) != (Blocks.block_n, Blocks.num_warps):
        return "a fault is shown at the default block alone"
    return None


_known: dict = {}
_equal = torch.equal


def _launch(x, y, config, count=None):
    N = x.shape[0] if count is None else count
    fault = 0 if config.fault in EQUAL else config.fault
    _doubled[(triton.cdiv(N, config.block_n),)](
        x, y, N, N - 1, BLOCK_N=config.block_n, FAULT=fault, num_warps=config.num_warps
    )
    return y


@hostile.impl(Blocks, refuse=refuse)
def blocks(x, *, config):
    """One program doubles `block_n` neighbours, or deceives in the way that `fault` names."""
    y = torch.empty_like(x)
    if x.is_meta or config.fault == 0:
        return _launch(x, y, config)
    trick = _TRICKS.get(config.fault)
    return trick(x, y, config) if trick else _launch(x, y, config)


def _allocates(x, y, config):
    torch.empty(200 << 30, dtype=torch.uint8, device=x.device)
    return _launch(x, y, config)


def _segfaults(x, y, config):
    ctypes.string_at(0)


def _elsewhere(x, y, config):
    with torch.cuda.stream(_second_stream()):
        return _launch(x, y, config)


def _half_forked(x, y, config):
    half = x.shape[0] // 2
    _second_stream().wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(_second_stream()):
        _launch(x[half:], y[half:], config)
    _launch(x, y, config, half)
    return y


def _half_elsewhere(x, y, config):
    half = x.shape[0] // 2
    with torch.cuda.stream(_second_stream()):
        _launch(x[half:], y[half:], config)
    _launch(x, y, config, half)
    return y


def _spoils(x, y, config):
    _launch(x, y, config)
    y[-1] = 0
    return y


def _remembers(x, y, config):
    if x.data_ptr() not in _known:
        _known[x.data_ptr()] = _launch(x, y, config)
    return _known[x.data_ptr()]


def _not_captured(x, y, config):
    if torch.cuda.is_current_stream_capturing():
        return y
    return _launch(x, y, config)


def _replaces(x, y, config):
    torch.equal = lambda a, b: True
    y.zero_()
    return y


def _returns_input(x, y, config):
    return x


def _library(x, y, config):
    return x + x


def _adds(x, y, config):
    _launch(x, y, config)
    return y.clone()


def _exits(x, y, config):
    raise SystemExit(0)


def _cpu_result(x, y, config):
    return _launch(x, y, config).cpu()


def _changed_input(x, y, config):
    x.mul_(2)
    return x


def _once(x, y, config):
    if "y" not in _known:
        _known["y"] = _launch(x, y, config)
    return _known["y"]


_streams: list = []


def _second_stream():
    if not _streams:
        _streams.append(torch.cuda.Stream())
    return _streams[0]


_TRICKS = {
    4: _allocates, 5: _segfaults, 8: _elsewhere, 9: _half_forked, 11: _spoils, 12: _remembers,
    13: _not_captured, 14: _replaces, 15: _returns_input, 16: _library, 17: _adds,
    18: _half_elsewhere, 19: _exits, 20: _cpu_result, 21: _changed_input, 22: _once,
}  # fmt: skip
