"""Tiled matmul with 256 configs: tiles, depth, order, warps, stages. After Triton's tutorial 03."""

from dataclasses import dataclass

import torch

from workbench.dsl import INTERPRETED, tl, triton
from workbench.spec import Spec, Tensor, Tolerance, among, stages, threads, tile

HOPPER_SHARED = 232_448  # bytes that a block may have on sm_90


def reference(a, b):
    return a @ b


listed = Spec(
    name="matmul_list",
    inputs={"a": Tensor("M K"), "b": Tensor("K N")},
    outputs={"c": Tensor("M N")},
    reference=reference,
    flops=lambda M, N, K: 2 * M * N * K,
    check=[{"M": 33, "N": 65, "K": 47}, {"M": 256, "N": 256, "K": 128}],
    bench=[{"M": 4096, "N": 4096, "K": 4096}],
    tolerance={
        "fp32": Tolerance(relative=1e-5, rms_share=5e-5),
        "fp16": Tolerance(relative=1e-3, rms_share=1e-4),
        "bf16": Tolerance(relative=8e-3, rms_share=1e-4),
    },
)


@triton.jit
def kernel(
    a_ptr, b_ptr, c_ptr, M, N, K,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn, UPCAST: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    pid, grid_m, grid_n = tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    first = pid // (GROUP_M * grid_n) * GROUP_M
    rows = min(grid_m - first, GROUP_M)
    pid_m = first + (pid % (GROUP_M * grid_n)) % rows
    pid_n = (pid % (GROUP_M * grid_n)) // rows
    m = (pid_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    n = (pid_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + m[:, None] * stride_am + k[None, :] * stride_ak
    b_ptrs = b_ptr + k[:, None] * stride_bk + n[None, :] * stride_bn
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(0, tl.cdiv(K, BLOCK_K)):
        a = tl.load(a_ptrs, k[None, :] < K - step * BLOCK_K, other=0.0)
        b = tl.load(b_ptrs, k[:, None] < K - step * BLOCK_K, other=0.0)
        if UPCAST:
            a, b = a.to(tl.float32), b.to(tl.float32)
        total = tl.dot(a, b, total, input_precision="ieee")
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    n = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    c_ptrs = c_ptr + m[:, None] * stride_cm + n[None, :] * stride_cn
    tl.store(c_ptrs, total.to(c_ptr.dtype.element_ty), (m[:, None] < M) & (n[None, :] < N))


@dataclass(frozen=True)
class Config:
    block_m: int = tile(64, 256, default=128)
    block_n: int = tile(64, 256, default=128)
    block_k: int = tile(32, 128, default=64)
    group_m: int = among(4, 8, default=8)
    num_warps: int = threads(4, 8, default=8)
    num_stages: int = stages(2, 5, default=3)


def refuse(config, limits, *, itemsize, M, N, K):
    """What a careful author leaves out of a list for Hopper in 16 bits."""
    sums = config.block_m * config.block_n // (config.num_warps * 32)
    if not 32 <= sums <= 128:
        return f"each thread would hold {sums} sums; the list keeps to 32 to 128"
    shared = config.num_stages * (config.block_m + config.block_n) * config.block_k * 2
    if shared > HOPPER_SHARED:
        return f"the stages need {shared} bytes of shared memory; a block has {HOPPER_SHARED}"
    return None


def launch(function, a, b, **knobs):
    """`function` is `kernel` with its knobs, or `kernel` autotuned without."""
    (M, K), (_, N) = a.shape, b.shape
    c = a.new_empty(M, N)
    function[lambda meta: (triton.cdiv(M, meta["BLOCK_M"]) * triton.cdiv(N, meta["BLOCK_N"]),)](
        a, b, c, M, N, K, *a.stride(), *b.stride(), *c.stride(),
        UPCAST=INTERPRETED and a.dtype == torch.bfloat16, **knobs,
    )  # fmt: skip
    return c


@listed.impl(Config, refuse=refuse)
def plain(a, b, *, config):
    return launch(
        kernel, a, b, BLOCK_M=config.block_m, BLOCK_N=config.block_n, BLOCK_K=config.block_k,
        GROUP_M=config.group_m, num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
