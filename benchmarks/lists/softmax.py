"""Softmax over whole rows with 100 configs: rows a program, warps, stages."""

from dataclasses import dataclass

import torch

from workbench.dsl import tl, triton
from workbench.spec import Spec, Tensor, Tolerance, stages, threads, tile


def reference(x):
    return torch.softmax(x, dim=-1)


listed = Spec(
    name="softmax_list",
    inputs={"x": Tensor("M N")},
    outputs={"y": Tensor("M N")},
    reference=reference,
    flops=lambda M, N: 5 * M * N,
    check=[{"M": 5, "N": 127}, {"M": 4, "N": 4096}],
    bench=[{"M": 8192, "N": 4096}],
    tolerance={
        "fp32": Tolerance(relative=2e-5, rms_share=1e-6),
        "fp16": Tolerance(relative=1e-3, rms_share=1e-4),
        "bf16": Tolerance(relative=8e-3, rms_share=1e-6),
    },
)


@triton.jit
def kernel(x_ptr, y_ptr, M, N, WIDTH: tl.constexpr, BLOCK_M: tl.constexpr):
    m = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
    n = tl.arange(0, WIDTH)[None, :]
    mask = (m < M) & (n < N)
    x = tl.load(x_ptr + m * N + n, mask, other=-float("inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, axis=1, keep_dims=True))
    y = e / tl.sum(e, axis=1, keep_dims=True)
    tl.store(y_ptr + m * N + n, y.to(y_ptr.dtype.element_ty), mask)


@dataclass(frozen=True)
class Config:
    block_m: int = tile(1, 16, default=1)
    num_warps: int = threads(1, 32, default=8)
    num_stages: int = stages(1, 5, default=3)


def refuse(config, limits, *, itemsize, M, N):
    held = config.block_m * 4096 // (config.num_warps * 32)  # the list does not know N
    return f"each thread would hold {held} of 4096 columns' elements" if held > 128 else None


def launch(function, x, **knobs):
    """`function` is `kernel` with its knobs, or `kernel` autotuned without."""
    M, N = x.shape
    y = x.new_empty(M, N)
    width = triton.next_power_of_2(N)
    function[lambda meta: (triton.cdiv(M, meta["BLOCK_M"]),)](x, y, M, N, WIDTH=width, **knobs)
    return y


@listed.impl(Config, refuse=refuse)
def plain(x, *, config):
    return launch(
        kernel, x, BLOCK_M=config.block_m, num_warps=config.num_warps, num_stages=config.num_stages
    )
