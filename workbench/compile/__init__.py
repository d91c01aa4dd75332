"""Compile a config for a target, with or without a GPU, and read the compiler's results.

The launcher runs only on shapes (torch's `meta` device) while Triton believes that the target is
present; its own binder then specialises the arguments exactly as for a real launch. The alignment
of pointers and strides decides whether loads are vectorised and loops are pipelined.
"""

import hashlib
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from workbench.code.code_reading import MachineCode, code_of_kernel
from workbench.code.code_work import launch_work
from workbench.code.hot_loop import read_instructions
from workbench.code.issued_code import issued_code
from workbench.code.loops import Code, code_of
from workbench.code.machine_code import (
    amdgcn_registers,
    cubin_registers,
    is_whole_elf,
    read_amdgcn,
    read_ptx,
)
from workbench.code.program_values import LaunchArguments
from workbench.code.ttgir import NotModelled
from workbench.compile.dedup import Claim, Dedup, SkippedLaunch
from workbench.compile.launchers import build_launchers
from workbench.compile.launches import Launch, capture_launches
from workbench.data.errors import first_sentence
from workbench.data.machine_failure import PART
from workbench.data.record import CountedTraffic, Resources, group_by
from workbench.device.code_model import LaunchWork
from workbench.device.hardware import Device
from workbench.device.occupancy import occupancy, waves
from workbench.measurement import inputs
from workbench.spec import Impl, Sizes

DOT = re.compile(r"\btt\.dot(?:_scaled)?\b")
MISSING = re.compile(r"missing \d+ required (?:\S+ )?arguments?: (.+)")  # Python's words
UNRECOGNISED = re.compile(r"[Kk]eyword argument (\w+) was specified but unrecognised")  # Triton's
KILLED = re.compile(r"`ptxas` failed with error code -(\d+)")


class CompileError(Exception):
    """A config does not compile for the target; the message is one sentence."""


@dataclass(frozen=True)
class LaunchShape:
    """One kernel of a call as it is launched: geometry, resources and occupancy."""

    function: str  # name of the device function
    grid: tuple[int, ...]
    threads: int  # per block
    shared_bytes: int  # per block
    registers: int | None  # per thread; None where no compiler of the target took part
    occupancy: float | None  # resident warps over the most that fit, 0 to 1
    launches: int = 1  # of this kind in one call


@dataclass(frozen=True)
class Compiled:
    """A compiled config: resources and grid of its largest launch, and the number of launches.
    A Metal kernel was compiled for the emulator: it has traffic and no resources."""

    resources: Resources | None
    kernel: str  # name of the device function
    grid: tuple[int, ...]
    launches: int
    ttgir: str = ""  # key of its TTGIR and of what later stages read: `compile_unless_duplicate`
    duplicate: bool = False  # its machine code was made for another config with the same key
    code: tuple[Code, ...] = ()  # of each launch, where it was requested
    shapes: tuple[LaunchShape, ...] = ()  # of all launches, equal ones once, in order
    traffic: CountedTraffic | None = None  # of a Metal kernel
    each: tuple[Resources, ...] = ()  # of every launch in order, by its own machine code
    works: tuple[LaunchWork, ...] = ()  # what the code of each does, where no work is declared
    not_modelled: str = ""  # why there are no `works`
    examination: Any = None  # what `Impl.examined` found in the code of the largest launch

    @property
    def binary(self) -> str:
        """Hash of the machine code; of a Metal kernel the key of its config, as each is emulated
        itself."""
        return self.resources.binary if self.resources else self.ttgir


@dataclass(frozen=True)
class CompiledDuplicate:
    """A config that stopped at TTGIR: the process that claimed `key` makes the same code."""

    key: str
    compile_s: float
    skipped_launches: tuple[SkippedLaunch, ...] = ()


def compile_config(
    impl: Impl,
    config: Any,
    sizes: Sizes,
    dtype: str,
    device: Device,
    code: bool = False,
    here: bool = False,
) -> Compiled:
    """Compile every launch of `impl` at these sizes for `device` and return the result; nothing
    runs.

    With `code` the machine code of each launch is read, loop by loop. Compiled code is stored in
    Triton's own cache, where a real launch finds it; where it will be launched `here`, its launcher
    too. Raises CompileError, and ChildProcessError if the compiler's process was ended from
    outside.
    """
    started, dedup = time.perf_counter(), Dedup()
    launches = _capture_call(impl, config, sizes, dtype, device, dedup, here)
    compiled = read_launches(impl, launches, device, dedup.key, started)
    if not code:
        return compiled
    # the launches of a chain share one kernel; each takes 0.4 s of nvdisasm, a process of its own
    kernels = {id(launch.kernel): launch.kernel for launch in launches}
    with ThreadPoolExecutor(min(8, len(kernels))) as threads:
        codes = threads.map(lambda k: code_of(k.asm, device.limits.arch), kernels.values())
        read = dict(zip(kernels, codes, strict=True))
    return replace(compiled, code=tuple(read[id(launch.kernel)] for launch in launches))


@dataclass(frozen=True)
class LaunchedCode:
    """The machine code of the largest launch of one call."""

    code: MachineCode
    resources: Resources
    functions: tuple[str, ...]  # names of all device functions that the call launches
    stages: int = 0  # num_stages of the launch
    dots: int = 0  # tl.dot in the kernel, before any optimisation


def machine_code_of(
    impl: Impl, config: Any, sizes: Sizes, dtype: str, device: Device
) -> LaunchedCode:
    """Compile a call for `device` and return the machine code of its largest launch; nothing runs.
    Raises CompileError, or CodeError where the code cannot be read."""
    started, dedup = time.perf_counter(), Dedup()
    launches = _capture_call(impl, config, sizes, dtype, device, dedup)
    compiled = read_launches(impl, launches, device, dedup.key, started)
    largest = max(launches, key=lambda launch: launch.programs)
    assert compiled.resources is not None  # Triton compiled it
    return _launched_code(largest, launches, compiled.resources, device)


def machine_codes_of(
    impl: Impl, config: Any, sizes: Sizes, dtype: str, device: Device
) -> tuple[LaunchedCode, ...]:
    """Compile a call for `device` and return the machine code of each kernel that it launches, in
    order and at its largest grid, also where it needs more than the device has; nothing runs.
    Raises CompileError, or CodeError where the code cannot be read."""
    started = time.perf_counter()
    launches = _capture_call(impl, config, sizes, dtype, device, Dedup())
    spent = time.perf_counter() - started
    result = []
    for same in group_by(launches, lambda one: id(one.kernel)).values():
        largest = max(same, key=lambda launch: launch.programs)
        resources = read_resources(largest, [largest], device, spent)
        result.append(_launched_code(largest, launches, resources, device))
    return tuple(result)


def _launched_code(
    launch: Launch, launches: Sequence[Launch], resources: Resources, device: Device
) -> LaunchedCode:
    names = dict.fromkeys(each.kernel.name for each in launches)
    kernel = launch.kernel
    return LaunchedCode(
        code_of_kernel(kernel.asm, device.limits.arch),
        resources,
        tuple(names),
        getattr(kernel.metadata, "num_stages", 0),
        len(DOT.findall(kernel.asm.get("ttir", ""))),  # Gluon has none
    )


def functions_launched(
    impl: Impl, config: Any, sizes: Sizes, dtype: str, device: Device
) -> tuple[str, ...]:
    """Return the names of the device functions that one call launches, in order. They are compiled
    for that. Raises CompileError."""
    launches = _capture_call(impl, config, sizes, dtype, device, Dedup())
    return tuple(launch.function for launch in launches)


def compile_unless_duplicate(
    impl: Impl,
    config: Any,
    sizes: Sizes,
    dtype: str,
    device: Device,
    claim: Claim,
    compiled: Path | None = None,
    here: bool = False,
) -> Compiled | CompiledDuplicate:
    """Return `compile_config`'s result, or stop before LLVM and return a CompiledDuplicate where
    `claim` is false, as another config came first. The folder `compiled` is for `store_skipped`.

    The claimed key hashes the TTGIR of all launches without source locations, the options that
    later stages read, the target, Triton's version, the grids and the arguments. Equal keys mean
    equal machine code and equal launches. A result in Triton's cache is used whether it is claimed
    or not. Raises CompileError.
    """
    started, dedup = time.perf_counter(), Dedup(claim, compiled)
    try:
        launches = _capture_call(impl, config, sizes, dtype, device, dedup, here)
    except CompileError:
        if not dedup.skipped:  # otherwise the launcher may have read a launch that was skipped
            raise
    else:
        if dedup.is_stopped:
            spent = time.perf_counter() - started
            return CompiledDuplicate(dedup.key, spent, tuple(dedup.skipped))
    if dedup.skipped:  # launches of another config, but not in this combination
        dedup = Dedup()
        launches = _capture_call(impl, config, sizes, dtype, device, dedup, here)
    return read_launches(impl, launches, device, dedup.key, started)


def compile_launches(
    impl: Impl, config: Any, sizes: Sizes, dtype: str, device: Device
) -> tuple[list[Launch], str]:
    """Compile a call and return its launches, and the key of its TTGIR. Raises as
    `compile_config`."""
    dedup = Dedup()
    return _capture_call(impl, config, sizes, dtype, device, dedup), dedup.key


def _capture_call(
    impl: Impl,
    config: Any,
    sizes: Sizes,
    dtype: str,
    device: Device,
    dedup: Dedup,
    here: bool = False,
) -> list[Launch]:
    try:
        with capture_launches(device, dedup) as launches:
            impl(*inputs.shapes(impl.spec, sizes, dtype), config=config)
    except Exception as error:
        if killed := KILLED.search(str(error)):
            # a compiler that the system ended, for want of memory for instance, says nothing of
            # the config: it is tried again, as after any lost process
            raise ChildProcessError(f"was ended: ptxas by signal {killed[1]}") from None
        raise CompileError(_argument_fault(error) or first_sentence(error)) from error
    _refuse_parts(launch.kernel for launch in launches)
    if not launches and not dedup.skipped:
        raise CompileError(f"{impl.title} launched no Triton kernel")
    if here:
        build_launchers((launch.kernel for launch in launches), device.backend)
    return launches


def _refuse_parts(kernels: Iterable[Any]) -> None:
    """Raise CompileError where the machine code of a kernel is not whole: a compiler that finds the
    disk full may end well, and Triton stores what it wrote. The stored part is removed."""
    from triton.runtime.cache import get_cache_manager

    for kernel in kernels:
        for binary in (kernel.asm.get("cubin"), kernel.asm.get("hsaco")):
            if binary is not None and not is_whole_elf(binary):
                place = getattr(get_cache_manager(kernel.hash), "cache_dir", None)
                if place is not None:
                    shutil.rmtree(place, ignore_errors=True)
                raise CompileError(f"{PART}: {len(binary)} bytes of {kernel.name}")


def _argument_fault(error: Exception) -> str | None:
    """Return what to write where a launch gives its function too few or other arguments: a knob
    that `meta` does not hand on, or one that is not a parameter. None for other errors."""
    if missing := MISSING.search(str(error)):
        names = " and ".join(re.findall(r"'(\w+)'", missing[1]))
        return (
            f"the launch gives its function no {names}: meta(config) passes only knobs called "
            f"block_*, group_m, num_warps and num_stages; rename the knob, or write "
            f"{names.split()[0]}=config.KNOB in the launch"
        )
    if extra := UNRECOGNISED.search(str(error)):
        return (
            f"the launch gives {extra[1]}, and its function has no such parameter: add "
            f"`{extra[1]}: tl.constexpr` to it, or rename the knob"
        )
    return None


def read_launches(
    impl: Impl, launches: Sequence[Launch], device: Device, key: str, started: float
) -> Compiled:
    """Return the result of compiled launches; `started` is `time.perf_counter` before they were
    compiled. Raises CompileError where the largest does not fit the device, or where any needs more
    shared memory than a block has."""
    largest = max(launches, key=lambda launch: launch.programs)
    resources = read_resources(largest, launches, device, time.perf_counter() - started)
    shared = max(launch.kernel.metadata.shared for launch in launches)  # of any launch
    if shared > device.limits.shared_bytes:
        raise CompileError(
            f"needs {shared} bytes of shared memory; "
            f"a block has {device.limits.shared_bytes} on {device.name}"
        )
    if resources.blocks_per_core == 0:
        raise CompileError(f"does not fit {device.name} once: {resources.limiter} run out")
    shapes = tuple(launch_shapes(launches, device))
    each = tuple(resources_of_each(launches, device)) if len(launches) > 1 else (resources,)
    named = largest.kernel.name, largest.grid, len(launches), key
    works, reason = _works(impl, launches, each, device)
    ttgir, arguments = largest.kernel.asm.get("ttgir", ""), largest.launch_arguments
    return Compiled(
        resources,
        *named,
        shapes=shapes,
        each=each,
        works=works,
        not_modelled=reason,
        examination=impl.examine_code(
            ttgir, largest.grid, replace(arguments, contents=impl.contents())
        ),
    )


def _works(
    impl: Impl, launches: Sequence[Launch], each: Sequence[Resources], device: Device
) -> tuple[tuple[LaunchWork, ...], str]:
    """Return what the code of each launch does, for an Impl that declares no work, or why that
    cannot be derived."""
    if impl.work is not None:
        return (), ""
    try:
        return tuple(_work_of(impl, *one, device) for one in zip(launches, each, strict=True)), ""
    except NotModelled as reason:
        return (), str(reason)


def _work_of(impl: Impl, launch: Launch, resources: Resources, device: Device) -> LaunchWork:
    kernel, arguments = launch.kernel, replace(launch.launch_arguments, contents=impl.contents())
    return work_of_launch(kernel, launch.grid, arguments, device, resources)


def work_of_launch(
    kernel: Any,
    grid: Sequence[int],
    arguments: LaunchArguments,
    device: Device,
    resources: Resources,
) -> LaunchWork:
    """Return what a compiled kernel does in a launch. Raises NotModelled where its code does not
    say it."""
    ttgir, cubin = kernel.asm["ttgir"], kernel.asm.get("cubin")
    issued = issued_code(ttgir, cubin) if cubin else None
    stages = getattr(kernel.metadata, "num_stages", 1)
    return launch_work(ttgir, grid, arguments, device, resources, stages, issued)


def resources_of_each(launches: Sequence[Launch], device: Device) -> Iterator[Resources]:
    """Yield the resources of each launch of a call by its own machine code. That of a chain, which
    launches one kernel hundreds of times, is read once."""
    read: dict[tuple[int, int], Resources] = {}
    for launch in launches:
        kind = id(launch.kernel), launch.programs
        if kind not in read:
            read[kind] = read_resources(launch, [launch], device, 0.0)
        yield read[kind]


def launch_shapes(launches: Sequence[Launch], device: Device) -> Iterator[LaunchShape]:
    """Yield the kinds of launches of one call in their order; equal ones are one kind."""
    kinds = group_by(launches, lambda one: (id(one.kernel), one.grid))
    for launch, *others in kinds.values():
        kernel, threads = launch.kernel, launch.kernel.metadata.num_warps * device.limits.warp_size
        registers, shared = _registers(kernel.asm)[0], kernel.metadata.shared
        fit = occupancy(device, threads=threads, registers=registers, shared_bytes=shared)
        shape = kernel.name, launch.grid, threads, shared, registers, fit.fraction
        yield LaunchShape(*shape, 1 + len(others))


def _registers(asm: Mapping[str, Any]) -> tuple[int, int]:
    """Return the registers and the bytes of spills of a thread."""
    if "cubin" in asm:
        return cubin_registers(asm["cubin"])
    return amdgcn_registers(asm["amdgcn"])


def read_resources(
    launch: Launch, launches: Sequence[Launch], device: Device, compile_s: float
) -> Resources:
    """Return the compiled resources of a launch, with its occupancy on the device. The matrix unit
    is that of any launch where this one has none, as the FLOPs are those of all."""
    kernel = launch.kernel
    asm, meta = kernel.asm, kernel.metadata
    registers, spills = _registers(asm)
    if "cubin" in asm:
        text, unit, bits = asm["ptx"], *read_ptx(asm["ptx"])
        engine = "cp.async.bulk.tensor" in text
        in_loop = _spills_in_loop(asm["cubin"], spills, device.limits.arch)
    else:
        unit, bits = read_amdgcn(asm["amdgcn"])
        engine, in_loop = False, True
    unit = unit or next(filter(None, map(_matrix_unit, launches)), None)
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
        spills_in_loop=in_loop,
    )


# The model counts spilled bytes in every trip of the hot loop. Few of them may all lie around it:
# then a persistent kernel, which keeps a tile's numbers over its loop, looked 1.5 times slower.
FEW_SPILLS = 128  # bytes per thread; disassembling takes 0.5 s


def _spills_in_loop(image: bytes, spills: int, arch: str) -> bool:
    """Return whether the hot loop may touch spilled registers: False if its machine code, which is
    read where there are few, does not."""
    if not 0 < spills <= FEW_SPILLS:
        return True
    try:
        _, loop = read_instructions(image, arch)
    except (OSError, ValueError, subprocess.SubprocessError):  # no disassembler
        return True
    return loop is None or "spills" in loop.groups


def _matrix_unit(launch: Launch) -> str | None:
    asm = launch.kernel.asm
    return (read_ptx(asm["ptx"]) if "cubin" in asm else read_amdgcn(asm["amdgcn"]))[0]


def _hash(launches: Sequence[Launch]) -> str:
    digest = hashlib.sha256()
    for launch in launches:
        asm, meta = launch.kernel.asm, launch.kernel.metadata
        digest.update(asm["cubin"] if "cubin" in asm else asm["hsaco"])
        shape = launch.grid, launch.arguments, meta.num_warps, meta.shared
        digest.update(repr(shape).encode())
    return digest.hexdigest()[:16]
