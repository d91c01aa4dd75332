"""Kernels whose threads run chains of fused multiply-adds that do not wait for each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from metal_shim.kernel import MetalKernel, metal_kernel
from workbench.spec import Limits, Work, among, threads


@dataclass(frozen=True)
class ScalarChains:
    threads: int = threads(32, 1024, default=256)
    chains: int = among(1, 2, 4, 8, 16, default=8)  # in each thread


def chains_kernel(name: str, inputs: str, first: str, trips: str) -> MetalKernel:
    """Return the kernel whose chains begin with `first`, of element i, and go on for `trips`, a
    loop's head. The other factors, 1 - 2^-10 and 2^-10, are exact."""
    body = """
    const uint n = x_shape[0];
    const uint start = threadgroup_position_in_grid.x * TG * CHAINS + thread_index_in_threadgroup;
    float v[CHAINS];
    for (uint c = 0, i = start; c < CHAINS; c++, i += TG) v[c] = i < n ? FIRST : 0.0f;
    for (TRIPS)
        for (uint c = 0; c < CHAINS; c++) v[c] = fma(0.9990234375f, v[c], 0.0009765625f);
    for (uint c = 0, i = start; c < CHAINS; c++, i += TG)
        if (i < n) y[i] = T(v[c]);
"""
    text = body.replace("FIRST", first).replace("TRIPS", trips)
    return metal_kernel(name, inputs=inputs, outputs="y", body=text)


def chains_work(reads: int) -> Callable[..., Work]:
    """Return the `work` of a kernel that loads so many elements for one that it stores."""

    def work(config: ScalarChains, limits: Limits, *, itemsize: int, N: int, **sizes: int) -> Work:
        held = config.threads * config.chains
        moved = held * itemsize
        return Work(tiles=-(-N // held), steps=1, load_bytes=reads * moved, store_bytes=moved)

    return work


def launch_chains(
    kernel: MetalKernel, config: ScalarChains, *inputs: torch.Tensor, **more: int
) -> Any:
    """Launch `threads * chains` chains in each threadgroup, neighbours in neighbouring threads.
    Returns the output."""
    x, TG, C = inputs[0], config.threads, config.chains
    grid = (TG * -(-x.shape[0] // (TG * C)), 1, 1)
    return kernel(*inputs, like=x, grid=grid, group=TG, T=x.dtype, TG=TG, CHAINS=C, **more)
