"""Compile a config for a target, with or without a GPU, and read what the compiler made of it.

The launcher runs on shapes alone (torch's `meta` device) while Triton believes that the target is
there; its own binder then specialises the arguments exactly as a real launch would: alignment of
pointers and strides decides whether loads are vectorised and loops are pipelined at all.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from workbench import inputs
from workbench.hardware import Device
from workbench.occupancy import occupancy, waves
from workbench.record import Resources
from workbench.spec import Impl, Sizes

# Triton 3.10 flips the default; a result must not depend on which version asks.
FP_FUSION = "TRITON_DEFAULT_FP_FUSION"


class CompileError(Exception):
    """One sentence: why this config does not compile for that target."""


@dataclass(frozen=True)
class Compiled:
    """What one config became: the resources of its largest launch and the shape of that launch."""

    resources: Resources
    kernel: str  # name of the device function
    grid: tuple[int, ...]
    launches: int


@dataclass(frozen=True)
class _Launch:
    kernel: Any  # triton.compiler.CompiledKernel, not loaded
    grid: tuple[int, ...]

    @property
    def programs(self) -> int:
        total = 1
        for extent in self.grid:
            total *= extent
        return total


def compile_config(impl: Impl, config: Any, sizes: Sizes, dtype: str, device: Device) -> Compiled:
    """Compile every launch that `impl` makes at these sizes for `device`; nothing runs.

    Raises CompileError. Compiled code lands in Triton's own cache, where a real launch finds it.
    """
    started = time.perf_counter()
    try:
        with captured(device) as launches:
            impl(*inputs.shapes(impl.spec, sizes, dtype), config=config)
    except Exception as error:
        raise CompileError(first_sentence(error)) from error
    if not launches:
        raise CompileError(f"{impl.title} launched no Triton kernel")
    largest = max(launches, key=lambda launch: launch.programs)
    resources = read_resources(largest, launches, device, time.perf_counter() - started)
    if resources.shared_bytes > device.limits.shared_bytes:
        raise CompileError(
            f"needs {resources.shared_bytes} bytes of shared memory; "
            f"a block has {device.limits.shared_bytes} on {device.name}"
        )
    if resources.blocks_per_core == 0:
        raise CompileError(f"does not fit {device.name} once: {resources.limiter} run out")
    return Compiled(resources, largest.kernel.name, largest.grid, len(launches))


@contextmanager
def captured(device: Device) -> Iterator[list[_Launch]]:
    """Launches inside compile for `device` and are kept in the list instead of running."""
    os.environ.setdefault(FP_FUSION, "1")
    from triton.runtime.driver import driver
    from triton.runtime.jit import JITFunction

    from workbench.dsl import pretend_cores

    launches: list[_Launch] = []
    real_run = JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        kernel = real_run(self, *args, grid=grid, warmup=True, **kwargs)
        if callable(grid):
            grid = grid(dict(zip(self.arg_names, args, strict=False)) | kwargs)
        grid = tuple(grid) if isinstance(grid, Sequence) else (grid,)
        launches.append(_Launch(kernel, tuple(int(g) for g in grid)))
        return kernel

    before = driver._active  # `reset_active` would look for a GPU and fail where there is none
    driver.set_active(_Absent(device))
    JITFunction.run = run
    try:
        with pretend_cores(device.limits.cores):
            yield launches
    finally:
        JITFunction.run = real_run
        driver.set_active(before)


class _Absent:
    """A Triton driver for a GPU that is not here: it knows its target and can launch nothing."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        arch = self._device.limits.arch
        number = int(arch.removeprefix("sm_")) if arch.startswith("sm_") else arch
        return GPUTarget(self._device.backend, number, self._device.limits.warp_size)

    def get_current_device(self) -> int:
        # Triton keeps compiled kernels by device number: one number a target
        return int(hashlib.sha256(self._device.limits.arch.encode()).hexdigest()[:6], 16)

    def get_current_stream(self, device: int) -> int:
        return 0


def read_resources(
    launch: _Launch, launches: Sequence[_Launch], device: Device, compile_s: float
) -> Resources:
    """What the compiler says of a launch, and how many of its blocks fit the device at once."""
    kernel = launch.kernel
    asm, meta = kernel.asm, kernel.metadata
    if "cubin" in asm:
        registers, spills = cubin_registers(asm["cubin"])
        text, unit, bits = asm["ptx"], *read_ptx(asm["ptx"])
        engine = "cp.async.bulk.tensor" in text
    else:
        registers, spills = amdgcn_registers(asm["amdgcn"])
        unit, bits = read_amdgcn(asm["amdgcn"])
        engine = False
    threads = meta.num_warps * device.limits.warp_size
    fit = occupancy(device, threads=threads, registers=registers, shared_bytes=meta.shared)
    rounds, tail = waves(device, launch.programs, fit.blocks_per_core)
    return Resources(
        binary=_hash(launches),
        registers=registers,
        spill_bytes=spills,
        shared_bytes=meta.shared,
        threads=threads,
        blocks_per_core=fit.blocks_per_core,
        occupancy=fit.fraction,
        limiter=fit.limiter,
        programs=launch.programs,
        waves=rounds,
        tail=tail,
        load_bits=bits,
        matrix_unit=unit,
        compile_s=compile_s,
        copy_engine=engine,
    )


def _hash(launches: Sequence[_Launch]) -> str:
    digest = hashlib.sha256()
    for launch in launches:
        asm, meta = launch.kernel.asm, launch.kernel.metadata
        digest.update(asm["cubin"] if "cubin" in asm else asm["hsaco"])
        digest.update(repr((launch.grid, meta.num_warps, meta.shared)).encode())
    return digest.hexdigest()[:16]


def cubin_registers(cubin: bytes) -> tuple[int, int]:
    """Registers and stack bytes a thread, from a cubin.

    Format: ELF64; the section `.nv.info` holds (format, attribute, size) records, in which
    attribute 0x2f is (symbol, registers) and 0x11 is (symbol, frame size), as `cuobjdump
    --dump-resource-usage` prints them. Raises ValueError when the image holds neither.
    """
    data = _elf_section(cubin, b".nv.info")
    registers = frame = 0
    at = 0
    while at + 4 <= len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, at)
        at += 4
        if form != 4:  # the value sits in the size field itself
            continue
        if attribute in (0x2F, 0x11) and size >= 8:
            value = struct.unpack_from("<I", data, at + 4)[0]
            if attribute == 0x2F:
                registers = max(registers, value)
            else:
                frame = max(frame, value)
        at += size
    if registers == 0:
        raise ValueError("the cubin says nothing of its registers")
    return registers, frame


def _elf_section(image: bytes, wanted: bytes) -> bytes:
    """Contents of a section of a 64-bit little-endian ELF image (System V ABI, chapter 4)."""
    if image[:4] != b"\x7fELF" or len(image) < 64:
        raise ValueError("not an ELF image")
    table = struct.unpack_from("<Q", image, 0x28)[0]
    entry, count, names = struct.unpack_from("<HHH", image, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", image, table + i * entry) for i in range(count)]
    strings = headers[names][4]
    for name, _, _, _, offset, size, *_ in headers:
        end = image.index(b"\0", strings + name)
        if image[strings + name : end] == wanted:
            return image[offset : offset + size]
    raise ValueError(f"no section {wanted.decode()}")


def amdgcn_registers(text: str) -> tuple[int, int]:
    """Vector registers and scratch bytes a thread, from the metadata at the end of AMD assembly.

    On gfx90a and later `.vgpr_count` holds the accumulation registers too (LLVM AMDGPU usage,
    code object metadata). Raises ValueError when there is none.
    """
    count = re.search(r"\.vgpr_count:\s*(\d+)", text)
    scratch = re.search(r"\.private_segment_fixed_size:\s*(\d+)", text)
    if count is None:
        raise ValueError("the assembly says nothing of its registers")
    return int(count[1]), int(scratch[1]) if scratch else 0


def read_ptx(ptx: str) -> tuple[str | None, int]:
    """Matrix instruction and widest global load (bits a thread) of PTX."""
    units = {"tcgen05.mma": "tcgen05", "wgmma.mma_async": "wgmma", "mma.sync": "mma"}
    unit = next((name for text, name in units.items() if text in ptx), None)
    widths = [0]
    for vector, bits in re.findall(r"ld\.global[\w.:]*?(?:\.v(\d))?\.[bufs](\d+)\b", ptx):
        widths.append(int(vector or 1) * int(bits))
    for size in re.findall(
        r"cp\.async\.c[ag]\.shared\.global\s*\[[^]]*\],\s*\[[^]]*\],\s*(\w+)", ptx
    ):
        widths.append(int(size, 0) * 8)
    return unit, max(widths)


def read_amdgcn(text: str) -> tuple[str | None, int]:
    """Matrix instruction and widest global load (bits a thread) of AMD assembly."""
    unit = next((name for name in ("mfma", "wmma") if f"v_{name}_" in text), None)
    widths = [0]
    for kind in re.findall(r"(?:global|buffer|flat)_load_(\w+)", text):
        if match := re.match(r"(?:dword|b)(?:x?(\d+))?$", kind):
            amount = int(match[1] or 1)
            widths.append(amount if kind.startswith("b") else 32 * amount)
        elif "short" in kind or "16" in kind:
            widths.append(16)
        elif "byte" in kind or "8" in kind:
            widths.append(8)
    return unit, max(widths)


def first_sentence(error: BaseException) -> str:
    """An exception in one line, from the part of its text that says why."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if "fatal" in line or "error:" in line.lower()]
    if telling:
        return telling[0][:300]
    if error.__cause__ is not None and lines and lines[0].startswith("at "):
        return first_sentence(error.__cause__)  # Triton quotes the source line before the reason
    text = lines[-1] if lines and lines[0].startswith("at ") else (lines or [""])[0]
    return f"{type(error).__name__}: {text}"[:300] if text else type(error).__name__
