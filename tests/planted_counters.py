"""Kernels with one known bottleneck each, for the rules on counters, and healthy ones.

Run as a program it launches each of them once, warm and within the range `wb`, for ncu:

    ncu --profile-from-start off --nvtx --nvtx-include wb/ ... python tests/planted_counters.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

HEALTHY = ("at_ceiling", None)  # words of a kernel that has no fault
MIB = 1 << 20


@dataclass(frozen=True)
class Planted:
    """A kernel, the rules that may give its word, and what its Spec would declare."""

    name: str
    rules: tuple[str | None, ...]
    make: Callable[[], Callable[[], object]]
    kernel: str  # start of the device kernel's name
    declared: dict[str, float] = field(default_factory=dict)


PLANTED: list[Planted] = []


def planted(*rules: str | None, kernel: str = "", **declared: float):
    """Add the function below, which makes the inputs and returns the launch, to PLANTED."""

    def add(make: Callable[[], Callable[[], object]]) -> Callable[[], Callable[[], object]]:
        name = make.__name__
        PLANTED.append(Planted(name, rules, make, kernel or f"{name}_kernel", declared))
        return make

    return add


def floats(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return values between 0 and 1."""
    return torch.rand(*shape, device="cuda", dtype=torch.float32).to(dtype)


# Registers


@triton.jit
def spilled_rows_kernel(x_ptr, y_ptr, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    x = tl.load(x_ptr + at)
    for _ in range(8):
        x = x - tl.max(x, 0) + x * tl.sum(x, 0)
    tl.store(y_ptr + at, x)


@planted("spills")
def spilled_rows():
    x = floats(4096, 8192)
    y = torch.empty_like(x)
    return lambda: spilled_rows_kernel[(4096,)](x, y, 8192, num_warps=4, maxnreg=40)


@triton.jit
def product_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in tl.range(0, K, BK, num_stages=STAGES):
        k = start + tl.arange(0, BK)
        a = tl.load(a_ptr + m[:, None] * K + k)
        b = tl.load(b_ptr + k[:, None] * N + n)
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + m[:, None] * N + n, acc.to(tl.bfloat16))


def product(size: int, blocks: tuple[int, int, int], stages: int, warps: int):
    a = floats(size, size, dtype=torch.bfloat16)
    c = torch.empty_like(a)
    bm, bn, bk = blocks
    grid = (size // bm, size // bn)
    return lambda: product_kernel[grid](
        a, a, c, size, size, size, bm, bn, bk, stages, num_warps=warps
    )


@planted("spills", kernel="product_kernel")
def spilled_product():
    return product(2048, (256, 256, 32), 2, 4)


# Memory


@triton.jit
def far_lanes_kernel(x_ptr, y_ptr, N, STRIDE: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + (at * STRIDE) % N)
    tl.store(y_ptr + at, x)


@planted("uncoalesced")
def far_lanes():
    x, y = floats(64 * MIB), torch.empty(8 * MIB, device="cuda")
    return lambda: far_lanes_kernel[(8 * MIB // 1024,)](x, y, 64 * MIB, 8, 1024)


@triton.jit
def walked_columns_kernel(x_ptr, y_ptr, N: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for k in range(N):
        total += tl.load(x_ptr + row * N + k)
    tl.store(y_ptr + row, total)


@planted("uncoalesced")
def walked_columns():
    x, y = floats(65536, 512), torch.empty(65536, device="cuda")
    return lambda: walked_columns_kernel[(512,)](x, y, 512, 128)


@triton.jit
def conflicts_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * BLOCK + lane)
    for _ in range(16):
        x += tl.gather(x, (lane * 32 + lane // 32) % BLOCK, 0)
    tl.store(y_ptr + tl.program_id(0) * BLOCK + lane, x)


@planted("bank_conflicts")
def conflicts():
    x = floats(8192, 1024)
    y = torch.empty_like(x)
    return lambda: conflicts_kernel[(8192,)](x, y, 1024, num_warps=4)


@triton.jit
def passes_kernel(x_ptr, y_ptr, N, PASSES: tl.constexpr, BLOCK: tl.constexpr):
    first = tl.program_id(0) * N
    total = tl.zeros((BLOCK,), tl.float32)
    for n in range(PASSES):
        for at in range(0, N, BLOCK):
            total += tl.load(x_ptr + first + at + tl.arange(0, BLOCK)) * n
    tl.store(y_ptr + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), total)


@planted("excess_traffic", least_bytes=264 * 262144 * 4, declared_flop=264 * 262144)
def passes():
    x, y = floats(264, 262144), torch.empty(264, 4096, device="cuda")
    return lambda: passes_kernel[(264,)](x, y, 262144, 4, 4096, num_warps=16)


@triton.jit
def second_level_kernel(x_ptr, y_ptr, N, TIMES: tl.constexpr, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for n in range(TIMES):
        at = tl.multiple_of(((tl.program_id(0) * TIMES + n) * BLOCK) % N, BLOCK)
        total += tl.load(x_ptr + at + lane, cache_modifier=".cg")
    tl.store(y_ptr + (tl.program_id(0) % 16) * BLOCK + lane, total)


@planted("l2_bound")
def second_level():
    x, y = floats(4 * MIB), torch.empty(16, 4096, device="cuda")
    return lambda: second_level_kernel[(4096,)](x, y, 4 * MIB, 32, 4096, num_warps=8)


@triton.jit
def chase_kernel(next_ptr, y_ptr, STEPS: tl.constexpr):
    at = tl.program_id(0)
    for _ in range(STEPS):
        at = tl.load(next_ptr + at)
    tl.store(y_ptr + tl.program_id(0), at)


@planted("dependent_loads")
def chase():
    following = torch.randperm(8 * MIB, device="cuda", dtype=torch.int32)
    y = torch.empty(2112, device="cuda", dtype=torch.int32)
    return lambda: chase_kernel[(2112,)](following, y, 256, num_warps=4)


@triton.jit
def short_rows_kernel(x_ptr, y_ptr, N, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    at = tl.program_id(0) * N + lane
    x = tl.load(x_ptr + at, mask=lane < N, other=0.0)
    tl.store(y_ptr + at, x / tl.sum(x, 0), mask=lane < N)


@planted("masked_lanes")
def short_rows():
    x = floats(262144, 5)
    y = torch.empty_like(x)
    return lambda: short_rows_kernel[(262144,)](x, y, 5, 1024, num_warps=4)


@triton.jit
def bytes_kernel(x_ptr, y_ptr, OFFSET, BLOCK: tl.constexpr, TIMES: tl.constexpr):
    first = tl.program_id(0) * BLOCK * TIMES
    for n in range(TIMES):
        at = first + n * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + at + OFFSET)
        tl.store(y_ptr + at + OFFSET, x)


@planted("narrow_loads")
def single_bytes():
    x = torch.randint(0, 100, (64 * MIB + 16,), device="cuda", dtype=torch.int8)
    y = torch.empty_like(x)
    grid = (64 * MIB // 8192,)
    return lambda: bytes_kernel[grid](x, y, 3, 1024, 8, num_warps=4)


# Pipes


@triton.jit
def doubled_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at).to(tl.float64)
    for _ in range(16):
        x = x * 0.999 + 0.1
    tl.store(y_ptr + at, x.to(tl.float32))


@planted("fp64")
def doubled():
    x = floats(16 * MIB)
    y = torch.empty_like(x)
    return lambda: doubled_kernel[(16 * MIB // 1024,)](x, y, 1024)


@triton.jit
def exponentials_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    for _ in range(24):
        x = tl.exp2(-x)
    tl.store(y_ptr + at, x)


@planted("special_functions")
def exponentials():
    x = floats(32 * MIB)
    y = torch.empty_like(x)
    return lambda: exponentials_kernel[(32 * MIB // 1024,)](x, y, 1024)


@triton.jit
def converted_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    for _ in range(12):
        x = (x * 1.5).to(tl.int32).to(tl.float32) + 1.25
    tl.store(y_ptr + at, x)


@planted("conversions")
def converted():
    x = floats(32 * MIB)
    y = torch.empty_like(x)
    return lambda: converted_kernel[(32 * MIB // 1024,)](x, y, 1024)


@triton.jit
def unpacked_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    total = tl.zeros((BLOCK,), tl.int32)
    for n in range(24):
        total = (total ^ ((x >> (n % 7)) & 15)) + ((x >> ((n * 3) % 11)) & 0x0F0F)
    tl.store(y_ptr + at, total)


@planted("conversions")
def unpacked():
    x = torch.randint(0, 1 << 30, (32 * MIB,), device="cuda", dtype=torch.int32)
    y = torch.empty_like(x)
    return lambda: unpacked_kernel[(32 * MIB // 1024,)](x, y, 1024)


@triton.jit
def sums_of_products_kernel(a_ptr, b_ptr, c_ptr, N, BM: tl.constexpr, BN: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(N):
        a = tl.load(a_ptr + k * N + m).to(tl.float32)
        b = tl.load(b_ptr + k * N + n).to(tl.float32)
        acc += a[:, None] * b[None, :]
    tl.store(c_ptr + m[:, None] * N + n, acc.to(tl.bfloat16))


@planted("no_matrix_work", product=1.0)
def sums_of_products():
    a = floats(2048, 2048, dtype=torch.bfloat16)
    c = torch.empty_like(a)
    return lambda: sums_of_products_kernel[(32, 32)](a, a, c, 2048, 64, 64, num_warps=4)


@planted("matrix_serialised", kernel="product_kernel", declared_flop=2.0 * 4096**3)
def one_stage():
    return product(4096, (128, 128, 64), 1, 8)


@planted("l2_bound", "matrix_serialised", kernel="product_kernel", declared_flop=2.0 * 4096**3)
def small_tiles():
    return product(4096, (32, 32, 32), 3, 4)


# Warps


@triton.jit
def contended_kernel(x_ptr, total_ptr, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * BLOCK + lane)
    tl.atomic_add(total_ptr + lane % 4, x, sem="relaxed")


@planted("atomics")
def contended():
    x, total = floats(4 * MIB), torch.zeros(4, device="cuda")
    return lambda: contended_kernel[(4 * MIB // 1024,)](x, total, 1024)


@triton.jit
def fenced_kernel(total_ptr, TIMES):
    for n in range(TIMES):
        tl.atomic_add(total_ptr + (tl.program_id(0) + n) % 64, 1.0, sem="acq_rel")


@planted("atomics")
def fenced():
    total = torch.zeros(64, device="cuda")
    return lambda: fenced_kernel[(8448,)](total, 16, num_warps=1)


@triton.jit
def reduced_in_loop_kernel(x_ptr, y_ptr, TIMES: tl.constexpr, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * BLOCK + lane)
    for _ in range(TIMES):
        x = x - tl.sum(x, 0) * 0.001
    tl.store(y_ptr + tl.program_id(0) * BLOCK + lane, x)


@planted("barriers")
def reduced_in_loop():
    x = floats(4096, 1024)
    y = torch.empty_like(x)
    return lambda: reduced_in_loop_kernel[(4096,)](x, y, 64, 1024, num_warps=16)


@triton.jit
def long_programs_kernel(x_ptr, y_ptr, TIMES, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * BLOCK + lane)
    for n in range(TIMES):
        x = x * 0.5 + n
    tl.store(y_ptr + tl.program_id(0) * BLOCK + lane, x)


def long_programs(programs: int, block: int, warps: int, times: int):
    x = floats(programs, block)
    y = torch.empty_like(x)
    return lambda: long_programs_kernel[(programs,)](x, y, times, block, num_warps=warps)


@planted("small_grid", kernel="long_programs_kernel")
def few_programs():
    return long_programs(24, 1024, 8, 4096)


@planted("tail", kernel="long_programs_kernel")
def one_program_too_many():
    cores = torch.cuda.get_device_properties("cuda").multi_processor_count
    return long_programs(cores * 2 + 1, 8192, 32, 2048)


@triton.jit
def few_warps_kernel(x_ptr, y_ptr, N, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for at in tl.range(0, N, BLOCK, num_stages=STAGES):
        x = tl.load(x_ptr + (tl.program_id(0) % 8) * N + at + lane)
        for _ in tl.static_range(12):
            x = x * 0.9 + total
        total = x
    tl.store(y_ptr + tl.program_id(0) * BLOCK + lane, total)


@planted("occupancy")
def few_warps():
    x, y = floats(8, 65536), torch.empty(1056, 4096, device="cuda")
    return lambda: few_warps_kernel[(1056,)](x, y, 65536, 4096, 13, num_warps=4)


@triton.jit
def one_chain_kernel(x_ptr, y_ptr, TIMES, BLOCK: tl.constexpr):
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + lane)
    for _ in range(TIMES):
        for _ in tl.static_range(16):
            x = x * x + 12345
    tl.store(y_ptr + lane, x)


@planted("fixed_latency")
def one_chain():
    x = torch.randint(1, 1000, (132 * 16 * 128,), device="cuda", dtype=torch.int32)
    y = torch.empty_like(x)
    return lambda: one_chain_kernel[(132 * 16,)](x, y, 64, 128, num_warps=4)


@triton.jit
def divergent_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + lane)
    for _ in range(8):
        x = libdevice.fmod(x, 1.37) + x
    tl.store(y_ptr + lane, x)


@planted("divergence")
def divergent():
    x = floats(8 * MIB)
    x[::16] = 1e30
    y = torch.empty_like(x)
    return lambda: divergent_kernel[(8 * MIB // 512,)](x, y, 512)


@triton.jit
def stored_by_copy_engine_kernel(x_ptr, y_ptr, TIMES, N: tl.constexpr, BLOCK: tl.constexpr):
    y = tl.make_tensor_descriptor(y_ptr, (132 * 8 * BLOCK, N), (N, 1), (BLOCK, N))
    row = (tl.program_id(0) % (132 * 8)) * BLOCK
    lane = tl.arange(0, BLOCK)[:, None] * N + tl.arange(0, N)
    x = tl.load(x_ptr + lane)
    for _ in range(TIMES):
        x += 1.0
        y.store([row, 0], x)


@planted("tma_store")
def stored_by_copy_engine():
    triton.set_allocator(lambda size, _a, _s: torch.empty(size, device="cuda", dtype=torch.int8))
    x, y = floats(16, 16), torch.empty(132 * 8 * 16, 16, device="cuda")
    return lambda: stored_by_copy_engine_kernel[(132 * 16,)](x, y, 64, 16, 16, num_warps=4)


# Healthy


def library(name: str, impl: str, sizes: dict[str, int], dtype: str):
    """Return a call of a kernel of the workbench at its default config."""
    from workbench import catalog
    from workbench.measurement import inputs

    spec = catalog.spec_of(name)
    tensors = inputs.make(spec, sizes, dtype, "cuda", seed=0)
    chosen = catalog.impl_of(spec, impl)
    return lambda: chosen(*tensors)


@planted(*HEALTHY, kernel="_blocks")
def healthy_copy():
    return library("copy", "blocks", {"N": 64 * MIB}, "fp32")


@planted(*HEALTHY, kernel="_rows")
def healthy_softmax():
    return library("softmax", "rows", {"M": 16384, "N": 4096}, "bf16")


@planted(*HEALTHY, kernel="_")
def healthy_rms_norm():
    return library("rms_norm", "rows", {"M": 16384, "N": 4096}, "bf16")


@planted(*HEALTHY, kernel="_")
def healthy_layer_norm():
    return library("layer_norm", "rows", {"M": 16384, "N": 4096}, "bf16")


@planted(*HEALTHY, kernel="")
def healthy_product():
    a = floats(4096, 4096, dtype=torch.bfloat16)
    return lambda: a @ a


@triton.jit
def healthy_elements_kernel(x_ptr, z_ptr, y_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x, z = tl.load(x_ptr + at), tl.load(z_ptr + at)
    tl.store(y_ptr + at, x * tl.sigmoid(x) * z)


@planted(*HEALTHY)
def healthy_elements():
    x, z = floats(64 * MIB), floats(64 * MIB)
    y = torch.empty_like(x)
    return lambda: healthy_elements_kernel[(64 * MIB // 1024,)](x, z, y, 1024)


# Further ones. No threshold was chosen in their sight but that of `atomics`.


@triton.jit
def stored_columns_kernel(x_ptr, y_ptr, M, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + (at % N) * M + at // N, tl.load(x_ptr + at))


@planted("uncoalesced")
def stored_columns():
    x = floats(4096, 4096)
    y = torch.empty_like(x)
    return lambda: stored_columns_kernel[(16 * MIB // 1024,)](x, y, 4096, 4096, 1024)


@triton.jit
def roots_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    for _ in range(24):
        x = tl.rsqrt(x + 1.5)
    tl.store(y_ptr + at, x)


@planted("special_functions")
def roots():
    x = floats(32 * MIB)
    y = torch.empty_like(x)
    return lambda: roots_kernel[(32 * MIB // 1024,)](x, y, 1024)


@triton.jit
def double_polynomial_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at).to(tl.float64)
    y = ((x * 0.1 + 0.2) * x + 0.3) * x + 0.4
    tl.store(y_ptr + at, (y * y * y - x).to(tl.float32))


@planted("fp64", "at_ceiling")
def double_polynomial():
    x = floats(32 * MIB)
    y = torch.empty_like(x)
    return lambda: double_polynomial_kernel[(32 * MIB // 1024,)](x, y, 1024)


@triton.jit
def histogram_kernel(x_ptr, bins_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(bins_ptr + tl.load(x_ptr + at), 1, sem="relaxed")


@planted("atomics")
def histogram():
    x = torch.randint(0, 32, (4 * MIB,), device="cuda", dtype=torch.int32)
    bins = torch.zeros(32, device="cuda", dtype=torch.int32)
    return lambda: histogram_kernel[(4 * MIB // 1024,)](x, bins, 1024)


@triton.jit
def rows_by_many_warps_kernel(x_ptr, y_ptr, ROWS: tl.constexpr, N: tl.constexpr):
    lane = tl.arange(0, N)
    for n in range(ROWS):
        at = (tl.program_id(0) * ROWS + n) * N + lane
        x = tl.load(x_ptr + at)
        x = tl.exp2(x - tl.max(x, 0))
        tl.store(y_ptr + at, x / tl.sum(x, 0))


@planted("barriers")
def rows_by_many_warps():
    x = floats(65536, 512)
    y = torch.empty_like(x)
    return lambda: rows_by_many_warps_kernel[(2048,)](x, y, 32, 512, num_warps=16)


@triton.jit
def strided_gather_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + tl.program_id(0) * BLOCK + lane)
    y = x
    for n in range(24):
        y += tl.gather(x + y, (lane * 64 + n) % BLOCK, 0)
    tl.store(y_ptr + tl.program_id(0) * BLOCK + lane, y)


@planted("bank_conflicts")
def strided_gather():
    x = floats(4096, 2048)
    y = torch.empty_like(x)
    return lambda: strided_gather_kernel[(4096,)](x, y, 2048, num_warps=8)


@planted("excess_traffic", kernel="passes_kernel", least_bytes=528 * 131072 * 4)
def two_passes():
    x, y = floats(528, 131072), torch.empty(528, 2048, device="cuda")
    return lambda: passes_kernel[(528,)](x, y, 131072, 2, 2048, num_warps=8)


@planted("tail", kernel="long_programs_kernel")
def third_wave():
    cores = torch.cuda.get_device_properties("cuda").multi_processor_count
    return long_programs(cores * 4 + 8, 8192, 32, 1024)


@triton.jit
def few_long_rows_kernel(x_ptr, y_ptr, N, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * N
    lane = tl.arange(0, BLOCK)
    top = tl.full((BLOCK,), -float("inf"), tl.float32)
    for at in range(0, N, BLOCK):
        top = tl.maximum(top, tl.load(x_ptr + first + at + lane))
    most = tl.max(top, 0)
    for at in range(0, N, BLOCK):
        x = tl.load(x_ptr + first + at + lane)
        tl.store(y_ptr + first + at + lane, tl.exp2(x - most))


@planted("small_grid")
def few_long_rows():
    x = floats(8, 1 << 20)
    y = torch.empty_like(x)
    return lambda: few_long_rows_kernel[(8,)](x, y, 1 << 20, 4096, num_warps=8)


@triton.jit
def wide_blocks_kernel(x_ptr, y_ptr, M, N, BM: tl.constexpr, BN: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]
    n = tl.arange(0, BN)[None, :]
    x = tl.load(x_ptr + m * N + n, mask=n < N, other=0.0)
    tl.store(y_ptr + m * N + n, x * 2, mask=n < N)


@planted("masked_lanes")
def wide_blocks():
    x = floats(131072, 33)
    y = torch.empty_like(x)
    return lambda: wide_blocks_kernel[(131072 // 4,)](x, y, 131072, 33, 4, 256, num_warps=4)


@triton.jit
def large_angles_kernel(x_ptr, y_ptr, BLOCK: tl.constexpr):
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + lane)
    y = x
    for n in range(6):
        y = libdevice.sin(x + y + n)
    tl.store(y_ptr + lane, y)


# The slow path keeps an array in local memory, which keeps L2 busy as well.
@planted("divergence", "l2_bound")
def large_angles():
    x = floats(4 * MIB)
    x[::8] = 1e9
    y = torch.empty_like(x)
    return lambda: large_angles_kernel[(4 * MIB // 512,)](x, y, 512)


@triton.jit
def hashed_kernel(x_ptr, y_ptr, TIMES):
    at = tl.program_id(0) * 256 + tl.arange(0, 256)
    x = tl.load(x_ptr + at)
    for _ in range(TIMES):
        for _ in tl.static_range(8):
            x = (x * 3 + 7) * x + at
    tl.store(y_ptr + at, x)


@planted("fixed_latency")
def hashed():
    x = torch.randint(1, 1000, (132 * 8 * 256,), device="cuda", dtype=torch.int32)
    y = torch.empty_like(x)
    return lambda: hashed_kernel[(132 * 8,)](x, y, 128, num_warps=8)


@triton.jit
def searched_kernel(sorted_ptr, x_ptr, y_ptr, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    low = tl.zeros((BLOCK,), tl.int32)
    step = 1 << (STEPS - 1)
    for _ in range(STEPS):
        value = tl.load(sorted_ptr + low + step - 1)
        low = tl.where(value < x, low + step, low)
        step = step // 2
    tl.store(y_ptr + at, low)


@planted("uncoalesced", "dependent_loads")
def searched():
    table = torch.sort(floats(1 << 22)).values
    x = floats(1 << 20)
    y = torch.empty(1 << 20, device="cuda", dtype=torch.int32)
    return lambda: searched_kernel[((1 << 20) // 128,)](table, x, y, 22, 128)


@triton.jit
def turned_attention_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, T, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr
):
    head = tl.program_id(1) * T * D
    m, n, d = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, D)
    q = tl.load(q_ptr + head + m[:, None] * D + d)
    acc = tl.zeros((BM, D), tl.float32)
    whole = tl.zeros((BM,), tl.float32)
    for start in tl.range(0, T, BN, num_stages=1):
        k = tl.load(k_ptr + head + (start + n)[:, None] * D + d)
        p = tl.exp2(tl.dot(q, tl.trans(k)) * 0.01)
        v = tl.load(v_ptr + head + (start + n)[:, None] * D + d)
        acc = tl.dot(p.to(tl.bfloat16), v, acc)
        whole += tl.sum(p, 1)
    tl.store(o_ptr + head + m[:, None] * D + d, (acc / whole[:, None]).to(tl.bfloat16))


@planted("matrix_serialised")
def turned_attention():
    q = floats(16, 4096, 128, dtype=torch.bfloat16)
    o = torch.empty_like(q)
    return lambda: turned_attention_kernel[(64, 16)](q, q, q, o, 4096, 64, 64, 128, num_warps=4)


@triton.jit
def exact_dot_kernel(a_ptr, b_ptr, c_ptr, N, BM: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BM + tl.arange(0, BM)
    acc = tl.zeros((BM, BM), tl.float32)
    for start in range(0, N, BK):
        k = start + tl.arange(0, BK)
        a = tl.load(a_ptr + m[:, None] * N + k)
        b = tl.load(b_ptr + k[:, None] * N + n)
        acc = tl.dot(a, b, acc, input_precision="ieee")
    tl.store(c_ptr + m[:, None] * N + n, acc)


@planted("no_matrix_work")
def exact_dot():
    a = floats(2048, 2048)
    c = torch.empty_like(a)
    return lambda: exact_dot_kernel[(32, 32)](a, a, c, 2048, 64, 16, num_warps=4)


@triton.jit
def odd_halves_kernel(x_ptr, y_ptr, FIRST, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + FIRST + at).to(tl.float32)
    z = tl.load(x_ptr + 3 * FIRST + at).to(tl.float32)
    tl.store(y_ptr + FIRST + at, (x * z).to(tl.float16))


@planted("narrow_loads")
def odd_halves():
    x = floats(32 * MIB + 64, dtype=torch.float16)
    y = torch.empty_like(x)
    return lambda: odd_halves_kernel[(32 * MIB // 4096,)](x, y, 5, 4096, num_warps=4)


@planted(*HEALTHY, kernel="_")
def healthy_triad():
    return library("triad", "blocks", {"N": 64 * MIB}, "fp32")


@planted(*HEALTHY, kernel="_")
def healthy_swiglu():
    return library("swiglu", "blocks", {"M": 8192, "N": 14336}, "bf16")


@planted(*HEALTHY, kernel="_")
def healthy_transpose():
    return library("transpose", "tiles", {"M": 16384, "N": 16384}, "bf16")


@planted(*HEALTHY, kernel="_")
def healthy_own_product():
    return library("matmul", "tiles", {"M": 8192, "N": 8192, "K": 8192}, "bf16")


def main(names: list[str]) -> int:
    """Launch the named kernels, or all, once each; return the number that failed."""
    failures = 0
    for each in PLANTED:
        if names and each.name not in names:
            continue
        try:
            launch = each.make()
            launch()
            torch.cuda.synchronize()
            torch.cuda.cudart().cudaProfilerStart()
            torch.cuda.nvtx.range_push("wb")
            launch()
            torch.cuda.synchronize()
            torch.cuda.nvtx.range_pop()
            torch.cuda.cudart().cudaProfilerStop()
            print("launched", each.name, flush=True)
        except Exception as error:  # one kernel's failure must not cost the others
            failures += 1
            print("failed", each.name, type(error).__name__, str(error)[:400], flush=True)
    return failures


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
