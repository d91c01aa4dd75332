"""Kernels whose configs differ in what the machine code does not."""

from __future__ import annotations

import random
from pathlib import Path


def written(folder: Path) -> Path:
    """A file of them that no cache has seen: its factor is drawn anew."""
    path = folder / "scaled.py"
    path.write_text(KERNEL.replace("FACTOR", f"{random.uniform(2, 3):.12f}"))
    return path


KERNEL = '''"""x by a factor, in several ways."""

import os
import signal
from dataclasses import dataclass

import triton
import triton.language as tl

from workbench.spec import Spec, Tensor, among, stages, threads, tile

scaled = Spec(
    name="scaled",
    inputs={"x": Tensor("N")},
    outputs={"y": Tensor("N")},
    reference=lambda x: FACTOR * x,
    flops=lambda N: N,
    check=[{"N": 7}],
    bench=[{"N": 1 << 16}],
)


@triton.jit
def double(x_ptr, y_ptr, N, bound, BLOCK: tl.constexpr):
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + n, FACTOR * tl.load(x_ptr + n, (n < N) & (n < bound)), n < N)


@triton.jit
def walk(x_ptr, y_ptr, N, BLOCK: tl.constexpr):
    for start in range(0, N, BLOCK):
        n = start + tl.arange(0, BLOCK)
        tl.store(y_ptr + n, FACTOR * tl.load(x_ptr + n, n < N), n < N)


@dataclass(frozen=True)
class Knobs:
    block: int = tile(128, 512, default=256)
    num_warps: int = threads(2, 4, default=4)
    num_stages: int = stages(1, 3, default=2)


def launch(x, y, config, bound=1 << 16):
    grid = (triton.cdiv(x.shape[0], config.block),)
    options = dict(BLOCK=config.block, num_warps=config.num_warps, num_stages=config.num_stages)
    return double[grid](x, y, x.shape[0], bound, **options)


@scaled.impl(Knobs)
def once(x, *, config):
    """No loop, so the depth changes nothing."""
    y = x.new_empty(x.shape)
    launch(x, y, config)
    return y


@scaled.impl(Knobs)
def looped(x, *, config):
    """A loop whose loads wait for nothing."""
    y = x.new_empty(x.shape)
    walk[(1,)](
        x, y, x.shape[0], BLOCK=config.block, num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    return y


@dataclass(frozen=True)
class Given:
    bound: int = among(16, 32, 48, default=32)  # all divisible by 16: equal machine code
    num_stages: int = stages(1, 2, default=2)


@scaled.impl(Given)
def given(x, *, config):
    """A number that the launcher passes as an argument."""
    y = x.new_empty(x.shape)
    launch(x, y, Knobs(num_stages=config.num_stages), config.bound)
    return y


@dataclass(frozen=True)
class Steps:
    block: int = tile(128, 256, default=128)  # of the first launch
    more: int = among(0, 1, 2, default=0)  # launches after the first, of different blocks
    num_stages: int = stages(1, 2, default=2)


@scaled.impl(Steps)
def steps(x, *, config):
    """Launches that other configs make too, in other company."""
    y = x.new_empty(x.shape)
    kernel = launch(x, y, Knobs(config.block, num_stages=config.num_stages))
    if config.more == 2:
        kernel.metadata  # a stopped launch is None
    if config.more:
        launch(y, y, Knobs(block=256 * config.more, num_warps=2, num_stages=config.num_stages))
    return y


@dataclass(frozen=True)
class Fatal:
    num_stages: int = stages(1, 4, default=2)


@scaled.impl(Fatal)
def fatal(x, *, config):
    """A config that compiles its launch dies then, and its claim stays; but not the last one."""
    y = x.new_empty(x.shape)
    if launch(x, y, Knobs(num_stages=config.num_stages)) is not None and config.num_stages < 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return y
'''
