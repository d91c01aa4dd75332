"""Configs of kernels over the rows of a matrix, and what these ask of a device.

`rows` holds whole rows in registers, `persistent` walks many rows in each program, and `looped`
walks a row in blocks. The functions below return a scheme's `resolve`, `refuse` or `work` for a
kernel that reads and writes so many matrices of M x N, and reads so many vectors of N.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from workbench.dsl import cores, pad_up, tile_count
from workbench.spec import AUTO, Limits, Work, among, stages, threads, tile, value_or


@dataclass(frozen=True)
class Rows:
    """AUTO: what suits the length and the number of the rows, see `size_rows`."""

    block_m: int = tile(1, 16, default=AUTO)
    num_warps: int = threads(1, 32, default=AUTO)
    hints: int = among(0, 1, default=0)  # matrices pass through the caches, vectors stay


def size_rows(config: Any, limits: Limits, *, itemsize: int, M: int, N: int) -> Any:
    """Return the config with what is AUTO chosen by the sizes.

    A thread holds 16 elements, in 16 bits two of its widest loads: on an H200 softmax of rows of
    4096 takes 42.3 us with 8, 33.8 with 16 and 34.1 with 32. From 8 warps on it is 32, so that two
    programs still fit a core. A program costs a core some 70 ns to begin, as much as moving 2 KB
    there, so where there are many short rows, some of them share one.
    """
    return fill_rows(config, limits, M, N, 16)


def fill_rows(config: Any, limits: Limits, M: int, N: int, most: int) -> Any:
    """Return a config of `rows` with its rows and warps chosen as in `size_rows`, but `most` warps
    where a row fills them."""
    short = min(16, max(1, 2048 // pad_up(N))) if M >= 4096 else 1
    block_m = value_or(config.block_m, short)
    held = block_m * pad_up(N)
    share = 256 if limits.cores >= M else 512  # a row for each core waits for its loads alone
    suited = max(1, min(8, held // share), min(most, held // 1024))
    return replace(config, block_m=block_m, num_warps=value_or(config.num_warps, suited))


def widest_rows(limits: Limits, N: int) -> int:
    """Return the most warps of a norm's program: all that it can have for a row beyond 16384."""
    return limits.threads_per_block // limits.warp_size if N > 16_384 else 16


def refuse_rows(config: Any, limits: Limits, *, itemsize: int, M: int, N: int) -> str | None:
    """Return why rows do not fit a program's registers, or None."""
    threads_ = config.num_warps * limits.warp_size
    held = config.block_m * pad_up(N) // threads_
    most = 64 if threads_ < 1024 else 32  # 1024 threads have 64 registers each
    return limits.refuse_program(threads_, held, most)


def rows_work(read: int = 1, written: int = 1, vectors: int = 0) -> Callable[..., Work]:
    """Return the `work` of programs that take `block_m` rows at once."""

    def work(config: Any, limits: Limits, *, itemsize: int, M: int, N: int) -> Work:
        moved, tiles = config.block_m * N * itemsize, tile_count(config, M=M)
        loaded = read * moved + vectors * N * itemsize
        return Work(tiles=tiles, steps=1, load_bytes=loaded, store_bytes=written * moved)

    return work


@dataclass(frozen=True)
class Persistent:
    block_m: int = tile(1, 4, default=1)
    num_warps: int = threads(4, 16, default=8)
    num_stages: int = stages(1, 4, default=4)
    per_core: int = among(1, 2, 3, 4, default=2)  # programs on one core


def refuse_persistent(rows: int, most: int, read: int = 1) -> Callable[..., str | None]:
    """Return the `refuse` of programs that hold so many rows of 32 bits, `most` elements a thread,
    and have the next ones of `read` matrices on their way."""

    def refuse(config: Any, limits: Limits, *, itemsize: int, M: int, N: int) -> str | None:
        threads_ = config.num_warps * limits.warp_size
        block = config.block_m * pad_up(N)
        # NVIDIA has 65536 registers a core, AMD more
        fit = min(most, 65_536 // threads_ - 48)
        buffers = (config.num_stages - 1) * read * block * itemsize
        return limits.refuse_program(threads_, rows * block // threads_, fit, buffers)

    return refuse


def persistent_launch(x: Any, config: Any) -> tuple[tuple[int], dict[str, int]]:
    """Return the grid of `persistent` over the rows of x, and its constants."""
    M, N = x.shape
    programs = min(cores(x) * config.per_core, tile_count(config, M=M))
    constants = dict(BLOCK_M=config.block_m, BLOCK_N=pad_up(N), STAGES=config.num_stages)
    return (programs,), constants | dict(num_warps=config.num_warps)


@dataclass(frozen=True)
class Looped:
    """AUTO: what suits the length of the rows, see `size_blocks`."""

    block_n: int = tile(512, 16_384, default=AUTO)
    num_warps: int = threads(1, 32, default=AUTO)
    hints: int = among(0, 1, default=1)  # what is read again stays in the caches


def size_blocks(long: int) -> Callable[..., Any]:
    """Return the `resolve` of `looped` with blocks of `long` elements and 32 warps for rows beyond
    16384. Shorter rows are taken whole up to 4096 elements, 256 a warp: four programs fill a core,
    and their rows lie in its first-level cache when they are read again."""

    def resolve(config: Any, limits: Limits, *, itemsize: int, M: int, N: int) -> Any:
        is_long = N > 16_384
        block_n = value_or(config.block_n, long if is_long else max(512, min(4096, pad_up(N))))
        suited = max(1, min(32, block_n // (long // 32 if is_long else 256)))
        return replace(config, block_n=block_n, num_warps=value_or(config.num_warps, suited))

    return resolve


def refuse_looped(config: Any, limits: Limits, *, itemsize: int, M: int, N: int) -> str | None:
    """Return why a block does not fit a program's registers, or None."""
    return limits.refuse_held(config.block_n // (config.num_warps * limits.warp_size), 64)


def looped_work(read: int = 1, written: int = 1) -> Callable[..., Work]:
    """Return the `work` of programs that read a row twice in blocks."""

    def work(config: Any, limits: Limits, *, itemsize: int, M: int, N: int) -> Work:
        steps, loaded = 2 * tile_count(config, N=N), read * config.block_n * itemsize
        return Work(tiles=M, steps=steps, load_bytes=loaded, store_bytes=written * N * itemsize)

    return work


# 64 threads a warp
CDNA = {"gfx90a gfx942 gfx950": Looped(block_n=4096, num_warps=8)}
