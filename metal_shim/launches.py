"""Text, configs, limits, work and launch that several kernels share, in addition to `msl`: kernels
with a threadgroup for each row, SIMD-groups for a block of a product, or chains of multiply-adds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from metal_shim.kernel import MetalKernel, metal_kernel
from metal_shim.msl import BLOCK_REDUCE, ROW_PLACE
from workbench.spec import AUTO, Impl, Limits, Spec, Work, among, threads, tile, value_or


def rows_kernel(name: str, inputs: str, body: str) -> MetalKernel:
    """Return the kernel whose body goes on behind `ROW_PLACE`, with reductions over a row."""
    return metal_kernel(
        name, inputs=inputs, outputs="y", header=BLOCK_REDUCE, body=ROW_PLACE + body
    )


def rows_work(reads: int, steps: int = 1) -> Callable[..., Work]:
    """Return the `work` of a kernel that in each step loads so many rows for one that it stores."""

    def work(config: Any, limits: Limits, *, itemsize: int, M: int, N: int) -> Work:
        load, store = reads * N * itemsize, N * itemsize
        return Work(tiles=M, steps=steps, load_bytes=load, store_bytes=store)

    return work


@dataclass(frozen=True)
class HeldRows:
    """Threads of a threadgroup and values of its row in each thread. AUTO: the fewest that hold a
    row, see `size_rows`."""

    threads: int = threads(32, 1024, default=AUTO)
    values: int = among(4, 8, 16, 32, default=AUTO)


def size_rows(config: HeldRows, limits: Limits, *, itemsize: int, M: int, N: int) -> HeldRows:
    """Return the config with what is AUTO chosen by the length of the rows: 256 threads until each
    would hold more than 16 values, then as many as keep it at 16."""
    sixteen = 1 << (-(-N // 16) - 1).bit_length()
    count = value_or(config.threads, min(1024, max(256, sixteen)))
    least = next((v for v in (4, 8, 16, 32) if v * count >= N), 32)
    return replace(config, threads=count, values=value_or(config.values, least))


def refuse_rows(config: HeldRows, limits: Limits, *, itemsize: int, M: int, N: int) -> str | None:
    """Return why the threads do not hold a row, or None if they do."""
    return reject_rows(config.threads * config.values, N)


def reject_rows(held: int, N: int) -> str | None:
    """Return why so many values of a threadgroup do not hold a row of N, or None if they do."""
    return f"the threads hold {held} values, but a row has {N}" if held < N else None


@dataclass(frozen=True)
class LoopedRows:
    """Threads of a threadgroup that walks its row, of any length."""

    threads: int = threads(32, 1024, default=256)


def held_impl(spec: Spec, reads: int) -> Callable[[Callable[..., Any]], Impl]:
    """Return the decorator of a launcher that holds rows, and loads so many for one it stores."""
    return spec.impl(
        HeldRows, backend="metal", resolve=size_rows, refuse=refuse_rows, work=rows_work(reads)
    )


def launch_rows(kernel: MetalKernel, config: HeldRows | LoopedRows, *inputs: torch.Tensor) -> Any:
    """Launch a threadgroup for each row of the first input and return the output. Raises ValueError
    where the threads do not hold a row."""
    x, values = inputs[0], {"TG": config.threads}
    if isinstance(config, HeldRows):
        values["VALUES"] = config.values
        if reason := reject_rows(config.threads * config.values, x.shape[1]):
            raise ValueError(f"{reason}; take more threads, or an impl for rows of any length")
    grid = (config.threads * x.shape[0], 1, 1)
    return kernel(*inputs, like=x, grid=grid, group=config.threads, T=x.dtype, **values)


@dataclass(frozen=True)
class Simdgroup:
    """`simd_m` x `simd_n` SIMD-groups for a block of `block_m` x `block_n` of the product."""

    block_m: int = tile(16, 128, default=64)
    block_n: int = tile(16, 128, default=64)
    block_k: int = tile(8, 32, default=16)
    simd_m: int = among(1, 2, 4, default=2)  # SIMD-groups along M
    simd_n: int = among(1, 2, 4, default=2)


def refuse_uneven(config: Any) -> str | None:
    """Return in one sentence why SIMD-groups do not share a block in 8 x 8 parts, or None."""
    for axis in "mn":
        block, count = getattr(config, f"block_{axis}"), getattr(config, f"simd_{axis}")
        if block % (8 * count):
            return f"block_{axis} = {block} is not a multiple of 8 x {count} SIMD-groups"
    return None


def block_values(config: Any) -> dict[str, int]:
    """Return the template values of the blocks and of their SIMD-groups."""
    blocks = {f"B{axis.upper()}": getattr(config, f"block_{axis}") for axis in "mnk"}
    return blocks | {"SM": config.simd_m, "SN": config.simd_n}


def refuse_shared(
    kernel: MetalKernel, config: Any, limits: Limits, *, itemsize: int, RANK: int = 0, **sizes: int
) -> str | None:
    """Return in one sentence why a block is not shared, or its sums or threadgroup memory do not
    suffice, or None. `RANK` is a further template value, of so many more columns of sums."""
    if reason := refuse_uneven(config):
        return reason
    columns = config.block_n + RANK
    held = config.block_m * columns // (32 * config.simd_m * config.simd_n)
    values = block_values(config) | ({"RANK": RANK} if RANK else {})
    kind = "fp32" if itemsize == 4 else "fp16"
    return limits.refuse_sums(held) or kernel.refuse_threadgroup(T=kind, **values)


def block_work(config: Any, limits: Limits, *, itemsize: int, M: int, N: int, K: int) -> Work:
    """Return the work of a product whose threadgroups have a block each."""
    return Work.product(config, itemsize, M=M, N=N, K=K)


def launch_blocks(
    kernel: MetalKernel, config: Any, N: int, *inputs: torch.Tensor, **more: int
) -> Any:
    """Launch a threadgroup for each block of an output of N columns, with as many rows as the first
    input, and return it."""
    x, group = inputs[0], 32 * config.simd_m * config.simd_n
    grid = (group * -(-N // config.block_n), -(-x.shape[0] // config.block_m), 1)
    y, values = x.new_empty(x.shape[0], N, device="meta"), block_values(config)
    return kernel(*inputs, like=y, grid=grid, group=group, T=x.dtype, **values, **more)


@dataclass(frozen=True)
class ScalarChains:
    """Threads of a threadgroup, and chains of multiply-adds in each of them."""

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
