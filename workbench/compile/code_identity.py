"""Compile a config and read of its machine code what tells it from another compiler's."""

import hashlib
import struct
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from workbench.code.hot_loop import read_instructions
from workbench.code.machine_code import amdgcn_registers, cubin_registers, elf_sections
from workbench.compile import Compiled, compile_launches, read_launches
from workbench.compile.launches import Launch
from workbench.data.compiled_code import CompiledCode, HotLoop
from workbench.device.hardware import Device
from workbench.spec import Impl, Sizes

# Sections of an image that a GPU executes or reads. Those of debugging hold source lines and paths,
# which differ where the code does not.
EXECUTED = (".text", ".nv.constant", ".nv.global", ".rodata", ".data")
DESCRIPTOR = 64  # bytes of AMD's kernel descriptor, all that .rodata holds in a plain kernel
ENTRY = slice(16, 24)  # of the descriptor: distance to .text, which moves with other sections


def compile_code(
    impl: Impl, config: Any, sizes: Sizes, dtype: str, device: Device
) -> tuple[Compiled, CompiledCode]:
    """Compile a call for `device` and return it with its facts; nothing runs. Raises
    CompileError, and ChildProcessError if the compiler's process was ended from outside."""
    started = time.perf_counter()
    launches, key = compile_launches(impl, config, sizes, dtype, device)
    compiled = read_launches(impl, launches, device, key, started)
    largest = max(launches, key=lambda launch: launch.programs)
    arch, notes = device.limits.arch, list[str]()
    groups: Mapping[str, int] = {}
    loop: HotLoop | None = None
    try:
        groups, loop = read_instructions(_image(largest.kernel.asm), arch)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        notes.append(f"the machine code could not be disassembled: {error}")
    digest = hash_of_code(launches)
    return compiled, CompiledCode(digest, compiled.launches, groups, loop, tuple(notes))


def _image(asm: Mapping[str, Any]) -> bytes | str:
    return asm["amdgcn"] if "amdgcn" in asm else asm["cubin"]  # type: ignore[no-any-return]


def hash_of_code(launches: Sequence[Launch]) -> str:
    """Return the sha256 of the machine code of all launches, with the grid, the threads, the shared
    memory, the registers and the arguments of each: equal hashes mean equal calls."""
    digest = hashlib.sha256()
    for launch in launches:
        asm, meta = launch.kernel.asm, launch.kernel.metadata
        for name, data in _executed_sections(asm["cubin"] if "cubin" in asm else asm["hsaco"]):
            digest.update(name + struct.pack("<Q", len(data)) + data)
        # they decide the occupancy, and are stated beside the code
        if "cubin" in asm:
            registers = cubin_registers(asm["cubin"])
        else:
            registers = amdgcn_registers(asm["amdgcn"])
        shape = launch.grid, launch.arguments, meta.num_warps, meta.shared, registers
        digest.update(repr(shape).encode())
    return digest.hexdigest()


def _executed_sections(image: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the sections that a GPU executes or reads, by name. Raises ValueError for an image
    without code."""
    named = [
        (name, data)
        for name, data in elf_sections(image)
        if name.decode("ascii", "replace").startswith(EXECUTED)
    ]
    if not any(name.startswith(b".text") for name, _ in named):
        raise ValueError("the image holds no code")
    for name, data in sorted(named):
        if name == b".rodata" and len(data) == DESCRIPTOR:
            data = data[: ENTRY.start] + data[ENTRY.stop :]
        yield name, data
