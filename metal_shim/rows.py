"""Text, configs, work and launch of kernels that give each row to one threadgroup."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from metal_shim.kernel import MetalKernel, metal_kernel
from metal_shim.msl import BLOCK_REDUCE, ROW_PLACE
from workbench.spec import AUTO, Impl, Limits, Spec, Work, among, given, threads


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
    count = given(config.threads, min(1024, max(256, sixteen)))
    least = next((v for v in (4, 8, 16, 32) if v * count >= N), 32)
    return replace(config, threads=count, values=given(config.values, least))


def refuse_rows(config: HeldRows, limits: Limits, *, itemsize: int, M: int, N: int) -> str | None:
    """Return why the threads do not hold a row, or None if they do."""
    return reject_rows(config.threads * config.values, N)


def reject_rows(held: int, N: int) -> str | None:
    """Return why so many values of a threadgroup are no whole row of N, or None if they are."""
    return f"{held} values are held, and a row has {N}" if held < N else None


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
