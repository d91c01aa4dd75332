"""RMS norm over whole rows with 100 configs: rows a program, warps, stages."""

from dataclasses import dataclass

import torch

from workbench.dsl import tl, triton
from workbench.spec import Spec, Tensor, stages, threads, tile

EPS = 1e-6


def reference(x, w):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * w


listed = Spec(
    name="rms_norm_list",
    inputs={"x": Tensor("M N"), "w": Tensor("N")},
    outputs={"y": Tensor("M N")},
    reference=reference,
    flops=lambda M, N: 4 * M * N,
    check=[{"M": 5, "N": 127}, {"M": 4, "N": 4096}],
    bench=[{"M": 8192, "N": 4096}],
)


@triton.jit
def kernel(
    x_ptr, w_ptr, y_ptr, M, N, EPS: tl.constexpr, WIDTH: tl.constexpr, BLOCK_M: tl.constexpr
):
    m = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)[:, None]
    n = tl.arange(0, WIDTH)[None, :]
    mask = (m < M) & (n < N)
    x = tl.load(x_ptr + m * N + n, mask, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + n, n < N, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=1, keep_dims=True) / N + EPS)
    tl.store(y_ptr + m * N + n, (x * scale * w).to(y_ptr.dtype.element_ty), mask)


@dataclass(frozen=True)
class Config:
    block_m: int = tile(1, 16, default=1)
    num_warps: int = threads(1, 32, default=8)
    num_stages: int = stages(1, 5, default=3)


def refuse(config, limits, *, itemsize, M, N):
    held = config.block_m * 4096 // (config.num_warps * 32)  # the list does not know N
    return f"each thread would hold {held} of 4096 columns' elements" if held > 128 else None


def launch(function, x, w, **knobs):
    """`function` is `kernel` with its knobs, or `kernel` autotuned without."""
    M, N = x.shape
    y = x.new_empty(M, N)
    function[lambda meta: (triton.cdiv(M, meta["BLOCK_M"]),)](
        x, w, y, M, N, EPS=EPS, WIDTH=triton.next_power_of_2(N), **knobs
    )
    return y


@listed.impl(Config, refuse=refuse)
def plain(x, w, *, config):
    return launch(
        kernel, x, w,
        BLOCK_M=config.block_m, num_warps=config.num_warps, num_stages=config.num_stages,
    )  # fmt: skip
