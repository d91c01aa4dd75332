"""Devices: limits and peaks, each number with its source; and what the live GPU is.

A number is here because somebody stated or measured it, and its `Quantity` says who. What nobody
stated is absent: a peak that is missing from `peaks`, a bandwidth that is None. `python -m
workbench.hardware` lists the devices.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from workbench.spec import Limits, WorkbenchError

KIB = 1024
MIB = 1024 * KIB

Kind = Literal["datasheet", "measured", "computed", "driver"]


@dataclass(frozen=True)
class Quantity:
    """A number from somewhere: `unit` is spelt out, `source` says who stated it and `kind` how:
    by its maker, by a benchmark, by arithmetic on other numbers, or by the driver."""

    value: float
    unit: str
    source: str
    kind: Kind = "datasheet"


@dataclass(frozen=True)
class Device:
    """A GPU that the workbench knows: what it allows and what its maker says it reaches.

    A core is what one block lives on: a streaming multiprocessor (NVIDIA), a compute unit (CDNA)
    or a work-group processor (RDNA, see `_CORES`). None means unknown, as does a missing peak.
    """

    name: str  # "h200": the word on the command line
    title: str  # "NVIDIA H200 SXM"
    backend: str  # Triton's: "cuda" or "hip"
    limits: Limits
    warps_per_core: int
    blocks_per_core: int
    registers_per_core: int  # 32-bit
    register_unit: int  # registers are handed out per warp in multiples of this
    shared_per_core: int  # bytes
    shared_reserved: int  # bytes the system takes of each block's shared memory
    clock_hz: Quantity | None  # boost
    dram: Quantity | None  # bytes/s
    cache: Quantity  # bytes of the last-level cache
    cache_bandwidth: Quantity | None  # bytes/s
    peaks: Mapping[str, Quantity]  # dtype -> FLOP/s, dense, matrix unit where there is one
    matches: tuple[str, ...] = ()  # substrings of the live GPU's name
    excludes: tuple[str, ...] = ()  # substrings that make it another product
    schedulers_per_core: int = 4  # each owns its share of the registers and of the warps
    shared_unit: int = 128  # bytes: shared memory is handed out in multiples of this
    limits_source: str = ""


class UnknownDevice(WorkbenchError, ValueError):
    """No device has this name."""


@dataclass(frozen=True)
class _Core:
    """What the architecture alone decides about one core."""

    backend: str
    warp_size: int
    warps: int
    blocks: int
    registers: int
    register_unit: int
    registers_per_thread: int
    shared: int
    shared_per_block: int
    shared_reserved: int
    shared_unit: int
    flops_per_clock: int | None  # fp32 on the vector units; None when unknown
    source: str


_CUDA_TABLE = (
    "CUDA programming guide, technical specifications per compute capability; granularities of "
    "registers (256 a warp, in 4 partitions) and of shared memory (128 B) from cuda_occupancy.h"
)


def _sm(warps: int, blocks: int, shared_kib: int, lanes: int) -> _Core:
    # From compute capability 8.0 on, the system takes 1 KiB of each block's shared memory, so the
    # most that a block may ask for is 1 KiB less than the multiprocessor has.
    return _Core(
        backend="cuda",
        warp_size=32,
        warps=warps,
        blocks=blocks,
        registers=65536,
        register_unit=256,
        registers_per_thread=255,
        shared=shared_kib * KIB,
        shared_per_block=(shared_kib - 1) * KIB,
        shared_reserved=KIB,
        shared_unit=128,
        flops_per_clock=2 * lanes,
        source=_CUDA_TABLE,
    )


def _cu(shared_kib: int, shared_unit: int, flops_per_clock: int) -> _Core:
    # 4 SIMDs, each with 8 waves and 512 registers a lane (256 architectural and 256 accumulation,
    # one file since CDNA 2), handed out in eights. A work-group of several waves takes one of 16
    # barriers; one of a single wave takes none.
    return _Core(
        backend="hip",
        warp_size=64,
        warps=32,
        blocks=16,
        registers=4 * 512 * 64,
        register_unit=8 * 64,
        registers_per_thread=512,
        shared=shared_kib * KIB,
        shared_per_block=shared_kib * KIB,
        shared_reserved=0,
        shared_unit=shared_unit,
        flops_per_clock=flops_per_clock,
        source=(
            "ROCm GPU specifications (LDS, register file) and LLVM's AMDGPUBaseInfo.cpp "
            "(8 waves a SIMD, registers in units of 8, 16 barriers a CU)"
        ),
    )


# RDNA 3: Triton and LLVM compile in WGP mode unless told otherwise (`wgp_cu_mode="wgp"`), so a
# block lives on a work-group processor: two compute units, 4 SIMDs, 128 KiB of LDS of which one
# block may have 64. HIP, and torch with it, counts these and not compute units: 48 on an
# RX 7900 XTX of 96 (ROCm/hip issues 3198 and 3767). FLOPs count both halves of a dual issue.
_RDNA3 = _Core(
    backend="hip",
    warp_size=32,
    warps=64,
    blocks=32,
    registers=4 * 1536 * 32,
    register_unit=24 * 32,
    registers_per_thread=256,
    shared=128 * KIB,
    shared_per_block=64 * KIB,
    shared_reserved=0,
    shared_unit=512,
    flops_per_clock=4 * 32 * 2 * 2,
    source=(
        "LLVM's AMDGPUBaseInfo.cpp and occupancy-levels.ll for gfx1100 (1536 registers a lane in "
        "units of 24, 16 waves a SIMD, 32 barriers a WGP); ROCm GPU specifications (LDS)"
    ),
)

_CORES: Mapping[str, _Core] = {
    "sm_80": _sm(64, 32, 164, 64),
    "sm_86": _sm(48, 16, 100, 128),
    "sm_89": _sm(48, 24, 100, 128),
    "sm_90": _sm(64, 32, 228, 128),
    "sm_100": _sm(64, 32, 228, 128),
    "sm_120": _sm(48, 24, 100, 128),
    "gfx90a": _cu(64, 512, 128),
    "gfx942": _cu(64, 512, 256),
    "gfx950": _cu(160, 2048, 256),  # LLVM encodes its 160 KiB of LDS in units of 2 KiB
    "gfx1100": _RDNA3,
}


def _flops(tera: float, source: str, kind: Kind = "datasheet") -> Quantity:
    return Quantity(tera * 1e12, "FLOP/s", source, kind)


def _ops(tera: float, source: str, kind: Kind = "datasheet") -> Quantity:
    return Quantity(tera * 1e12, "OP/s", source, kind)


def _rate(tera: float, source: str, kind: Kind = "datasheet") -> Quantity:
    return Quantity(tera * 1e12, "B/s", source, kind)


def _clock(giga: float, source: str, kind: Kind = "datasheet") -> Quantity:
    return Quantity(giga * 1e9, "Hz", source, kind)


def _size(mib: float, source: str, kind: Kind = "datasheet") -> Quantity:
    return Quantity(mib * MIB, "B", source, kind)


def _peaks(source: str, kind: Kind = "datasheet", /, **tera: float) -> dict[str, Quantity]:
    """Peaks in units of 1e12 a second from one source; integers count operations, not FLOPs."""
    return {
        dtype: (_ops if dtype.startswith("int") else _flops)(value, source, kind)
        for dtype, value in tera.items()
    }


def _device(
    name: str,
    title: str,
    arch: str,
    cores: int,
    *,
    clock: Quantity,
    dram: Quantity,
    cache: Quantity,
    cache_bandwidth: Quantity,
    peaks: Mapping[str, Quantity],
    matches: tuple[str, ...],
    excludes: tuple[str, ...] = (),
) -> Device:
    core = _CORES[arch]
    return Device(
        name=name,
        title=title,
        backend=core.backend,
        limits=Limits(
            arch=arch,
            warp_size=core.warp_size,
            shared_bytes=core.shared_per_block,
            registers_per_thread=core.registers_per_thread,
            threads_per_block=1024,
            cores=cores,
        ),
        warps_per_core=core.warps,
        blocks_per_core=core.blocks,
        registers_per_core=core.registers,
        register_unit=core.register_unit,
        shared_per_core=core.shared,
        shared_reserved=core.shared_reserved,
        clock_hz=clock,
        dram=dram,
        cache=cache,
        cache_bandwidth=cache_bandwidth,
        peaks=peaks,
        matches=matches,
        excludes=excludes,
        shared_unit=core.shared_unit,
        limits_source=core.source,
    )


_RRZE = "RRZE gpu-benches, gpu-l2-cache/"
_HOPPER_PAPER = "NVIDIA H100 architecture whitepaper, SXM5, dense"
_HOPPER_PEAKS = {
    "fp32": 66.9,
    "tf32": 494.7,
    "fp16": 989.4,
    "bf16": 989.4,
    "fp8": 1978.9,
    "int8": 1978.9,
}
# The matrix peaks of Hopper are stated at 1.83 GHz, its fp32 peak at 1.98.
_HOPPER_CLOCK = _clock(1.98, "computed from 66.9 TFLOP/s over 132 SMs x 256 a clock", "computed")
_H200_L2 = "h200.txt: 9.7 to 9.8 TB/s at working sets of 17 to 31 MB"

_A100 = _device(
    "a100",
    "NVIDIA A100 SXM 80 GB",
    "sm_80",
    108,
    clock=_clock(1.41, "NVIDIA A100 architecture whitepaper, boost clock"),
    dram=_rate(2.039, "NVIDIA A100 datasheet, 80 GB SXM"),
    cache=_size(40, "NVIDIA A100 architecture whitepaper, L2"),
    cache_bandwidth=_rate(5.4, _RRZE + "a100_80.txt, working sets of 2 to 26 MB", "measured"),
    peaks=_peaks(
        "NVIDIA A100 datasheet, dense",
        fp32=19.5,
        tf32=156,
        fp16=312,
        bf16=312,
        int8=624,
    ),
    matches=("A100-SXM4-80GB", "A100-SXM-80GB"),
)

_H100 = _device(
    "h100",
    "NVIDIA H100 SXM 80 GB",
    "sm_90",
    132,
    clock=_HOPPER_CLOCK,
    dram=_rate(3.35, "NVIDIA H100 datasheet, SXM"),
    cache=_size(50, "NVIDIA H100 architecture whitepaper, L2"),
    cache_bandwidth=_rate(
        9.7,
        f"computed as that of an H200, which has the same die, SMs and clock: {_RRZE}{_H200_L2}",
        "computed",
    ),
    peaks=_peaks(_HOPPER_PAPER, **_HOPPER_PEAKS),
    matches=("NVIDIA H100 80GB HBM3",),
)

_H200 = _device(
    "h200",
    "NVIDIA H200 SXM 141 GB",
    "sm_90",
    132,
    clock=_HOPPER_CLOCK,
    dram=_rate(4.8, "NVIDIA H200 datasheet"),
    cache=_size(60, "L2_cache_size as CUDA reports it on an H200", "driver"),
    cache_bandwidth=_rate(9.7, _RRZE + _H200_L2, "measured"),
    peaks=_peaks(_HOPPER_PAPER + "; the H200 has the same compute", **_HOPPER_PEAKS),
    matches=("NVIDIA H200",),
    excludes=("NVL",),
)

_HGX_B200 = "NVIDIA HGX B200 specifications"
_B200 = _device(
    "b200",
    "NVIDIA B200 180 GB",
    "sm_100",
    148,
    clock=_clock(1.98, "computed from 75 TFLOP/s over 148 SMs x 256 a clock", "computed"),
    dram=_rate(7.7, _HGX_B200 + "; 3996 MHz x 2 x 7680 bits as CUDA reports gives 7.67"),
    cache=_size(126.5, "L2_cache_size as CUDA reports it on a B200 (pytorch/ao #4002)", "driver"),
    cache_bandwidth=_rate(
        10.9,
        "computed as 37.1 B a clock and SM, measured on an H200 (RRZE gpu-benches), x 148 SMs "
        "x 1.98 GHz; not measured on this GPU",
        "computed",
    ),
    peaks={
        **_peaks(_HGX_B200, fp32=75),
        **_peaks(
            _HGX_B200 + ", half of the sparse figure",
            tf32=1100,
            fp16=2250,
            bf16=2250,
            fp8=4500,
            int8=4500,
        ),
    },
    matches=("NVIDIA B200",),
)

_ADA_PAPER = "NVIDIA Ada architecture whitepaper, dense"
_RTX4090 = _device(
    "rtx4090",
    "NVIDIA GeForce RTX 4090",
    "sm_89",
    128,
    clock=_clock(2.52, "NVIDIA Ada architecture whitepaper, boost clock"),
    dram=_rate(1.008, "NVIDIA Ada architecture whitepaper"),
    cache=_size(72, "NVIDIA Ada architecture whitepaper, L2"),
    cache_bandwidth=_rate(
        3.9,
        "computed as 5.2 TB/s of an L40, the same die with 96 MiB of L2 (RRZE gpu-benches, "
        "gpu-l2-cache/l40.txt), x 72/96; not measured on this GPU",
        "computed",
    ),
    peaks={
        **_peaks(_ADA_PAPER, fp32=82.6, int8=660.6),
        **_peaks(
            _ADA_PAPER + ", accumulating in fp32",
            tf32=82.6,
            fp16=165.2,
            bf16=165.2,
            fp8=330.3,
        ),
    },
    matches=("GeForce RTX 4090",),
    excludes=("4090 D", "Laptop"),
)

_BLACKWELL_PAPER = "NVIDIA RTX Blackwell architecture whitepaper, dense"
_RTX5090 = _device(
    "rtx5090",
    "NVIDIA GeForce RTX 5090",
    "sm_120",
    170,
    clock=_clock(2.407, "NVIDIA RTX Blackwell architecture whitepaper, boost clock"),
    dram=_rate(1.792, "NVIDIA RTX Blackwell architecture whitepaper"),
    cache=_size(96, "NVIDIA RTX Blackwell architecture whitepaper, L2"),
    cache_bandwidth=_rate(
        5.0,
        "computed as 5.2 TB/s of an L40 (RRZE gpu-benches, gpu-l2-cache/l40.txt), which has as "
        "much L2, x 2.407/2.49 of its clock; another architecture, not measured on this GPU",
        "computed",
    ),
    peaks={
        **_peaks(_BLACKWELL_PAPER, fp32=104.8, int8=838),
        **_peaks(
            _BLACKWELL_PAPER + ", accumulating in fp32",
            tf32=104.8,
            fp16=209.5,
            bf16=209.5,
            fp8=419,
        ),
    },
    matches=("GeForce RTX 5090",),
    excludes=("5090 D", "Laptop"),
)

# ROCm shows an MI250X as two GPUs, and a kernel runs on one of them: every figure is one die's.
_HALF_MI250X = "AMD Instinct MI250X datasheet, half: one of two dies"
_MI250X = _device(
    "mi250x",
    "AMD Instinct MI250X, one of its two dies",
    "gfx90a",
    110,
    clock=_clock(1.7, "AMD Instinct MI250X datasheet, peak engine clock"),
    dram=_rate(1.6384, _HALF_MI250X),
    cache=_size(8, "AMD CDNA 2 whitepaper, L2 of one die"),
    cache_bandwidth=_rate(
        5.1,
        f"{_RRZE}mi210.txt, working sets of 3 to 5 MB: the same die with 104 CUs",
        "measured",
    ),
    peaks=_peaks(
        _HALF_MI250X,
        fp32=23.95,
        fp32_matrix=47.85,
        fp16=191.5,
        bf16=191.5,
        int8=191.5,
    ),
    matches=("MI250X",),
)

_MI300X = _device(
    "mi300x",
    "AMD Instinct MI300X",
    "gfx942",
    304,
    clock=_clock(2.1, "AMD Instinct MI300X datasheet, peak engine clock"),
    dram=_rate(5.3, "AMD Instinct MI300X datasheet"),
    cache=_size(256, "AMD CDNA 3 whitepaper, Infinity Cache"),
    cache_bandwidth=_rate(
        11.9,
        "Chips and Cheese, MI300X Infinity Cache; 17.2 is the peak in AMD's CDNA 3 whitepaper",
        "measured",
    ),
    peaks=_peaks(
        "AMD Instinct MI300X datasheet, dense",
        fp32=163.4,
        fp32_matrix=163.4,
        tf32=653.7,
        fp16=1307.4,
        bf16=1307.4,
        fp8=2614.9,
        int8=2614.9,
    ),
    matches=("MI300X",),
)

# CDNA 4 has no tf32 in hardware any more, hence no such peak.
_MI355X = _device(
    "mi355x",
    "AMD Instinct MI355X",
    "gfx950",
    256,
    clock=_clock(2.4, "AMD Instinct MI355X datasheet, peak engine clock"),
    dram=_rate(8.0, "AMD Instinct MI355X datasheet"),
    cache=_size(256, "ROCm GPU specifications, L3"),
    cache_bandwidth=_rate(
        11.9,
        "computed as that of an MI300X (Chips and Cheese): as many slices of as many bytes a "
        "clock; not measured on this GPU",
        "computed",
    ),
    peaks={
        **_peaks("AMD Instinct MI355X datasheet", fp32=157.3, fp32_matrix=157.3),
        **_peaks(
            "AMD Instinct MI355X datasheet (2.5 and 5.0 PFLOP/s dense), to more digits as 256 CUs "
            "x 4096 (16 bits) or 8192 (8 bits) a clock x 2.4 GHz",
            fp16=2516.6,
            bf16=2516.6,
            fp8=5033.2,
            int8=5033.2,
        ),
    },
    matches=("MI355X",),
)

_RX7900XTX = _device(
    "rx7900xtx",
    "AMD Radeon RX 7900 XTX",
    "gfx1100",
    48,
    clock=_clock(2.5, "AMD Radeon RX 7900 XTX product page, boost frequency"),
    dram=_rate(0.96, "AMD Radeon RX 7900 XTX product page"),
    cache=_size(96, "AMD Radeon RX 7900 XTX product page, Infinity Cache"),
    cache_bandwidth=_rate(5.3, "AMD, RDNA 3 launch: peak of the links to the six cache dies"),
    peaks={
        **_peaks("AMD Radeon RX 7900 XTX product page, dual issue", fp32=61.4),
        **_peaks(
            "computed as 96 CUs x 512 a clock (AMD GPUOpen on RDNA 3 WMMA) x 2.5 GHz",
            "computed",
            fp16=122.9,
            bf16=122.9,
            int8=122.9,
        ),
    },
    matches=("RX 7900 XTX",),
)

DEVICES: Mapping[str, Device] = {
    device.name: device
    for device in (
        _A100,
        _H100,
        _H200,
        _B200,
        _RTX4090,
        _RTX5090,
        _MI250X,
        _MI300X,
        _MI355X,
        _RX7900XTX,
    )
}


def _apple(
    name: str, title: str, cores: int, dram: Quantity, peaks: Mapping[str, Quantity]
) -> Device:
    """A GPU of Apple's: what a block may have is known, registers and caches are not stated."""
    unknown = 0
    return Device(
        name=name,
        title=title,
        backend="metal",
        limits=Limits("metal", 32, 32 * KIB, unknown, 1024, cores),
        warps_per_core=unknown,
        blocks_per_core=unknown,
        registers_per_core=unknown,
        register_unit=1,
        shared_per_core=32 * KIB,
        shared_reserved=0,
        clock_hz=None,
        dram=dram,
        cache=Quantity(0, "B", "not stated by Apple"),
        cache_bandwidth=None,
        peaks=peaks,
        limits_source="Metal feature set tables (Apple 7 and later): 1024 threads and 32 KB a "
        "threadgroup, SIMD groups of 32",
    )


# Known by their figures alone: what `expected` works out needs no compiler.
UNCOMPILED: Mapping[str, Device] = {
    device.name: device
    for device in (
        _apple(
            "m2max",
            "Apple M2 Max",
            38,
            _rate(0.4, "Apple, M2 Max: 400 GB/s of unified memory"),
            _peaks(
                "13.6 TFLOP/s in fp32 (Apple, 38 cores), twice that in fp16", fp32=13.6, fp16=27.2
            ),
        ),
    )
}


def device_named(name: str) -> Device:
    """The device of this name, in any case and with or without spaces and hyphens.

    Raises UnknownDevice, which names the nearest ones.
    """
    return _named(name, DEVICES)


def described(name: str) -> Device:
    """As `device_named`, and those too that Triton does not compile for. Raises UnknownDevice."""
    return _named(name, {**DEVICES, **UNCOMPILED})


def _named(name: str, known: Mapping[str, Device]) -> Device:
    plain = re.sub(r"[\s_-]", "", name.lower())
    if plain in known:
        return known[plain]
    if plain in UNCOMPILED:
        raise UnknownDevice(
            f"Triton does not compile for {UNCOMPILED[plain].title}; `workbench experiment "
            "expected` says what it allows"
        )
    near = difflib.get_close_matches(plain, known, n=3, cutoff=0.4)
    hint = f"the nearest are {', '.join(near)}" if near else "and none has a similar name"
    raise UnknownDevice(f"no device is named {name!r}, {hint}; `workbench devices` lists them all")


def ceilings(device: Device, dtype: str) -> dict[str, dict[str, Any]]:
    """What bounds a kernel on this device, as plain data for records and pages.

    Keys are `dram` and `cache` (B/s) and `compute` (FLOP/s or OP/s of this dtype), each a dict of
    `value`, `unit`, `source` and `kind`. A ceiling that nobody stated has no key.
    """
    known = {
        "dram": device.dram,
        "cache": device.cache_bandwidth,
        "compute": device.peaks.get(dtype),
    }
    plain: dict[str, dict[str, Any]] = {
        name: {"value": q.value, "unit": q.unit, "source": q.source, "kind": q.kind}
        for name, q in known.items()
        if q is not None
    }
    if "compute" in plain:
        plain["compute"]["dtype"] = dtype
    return plain


def live() -> Device | None:
    """The GPU that torch would use now, or None when it sees none or is not installed.

    A GPU of `DEVICES` keeps its name and its stated figures, and takes its title and its limits
    from the driver. Any other is described by what the driver says, and the rest is unknown.
    """
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    driver = torch.cuda.get_device_properties(torch.cuda.current_device())
    arch = _arch(driver, hip=getattr(torch.version, "hip", None) is not None)
    known = next((d for d in DEVICES.values() if _is(d, driver.name, arch)), None)
    return _refreshed(known, driver) if known else _described(driver, arch)


def _arch(driver: Any, *, hip: bool) -> str:
    """Triton's name of the architecture: `gfx942` without its feature flags, or `sm_90`."""
    if hip:
        return str(driver.gcnArchName).split(":")[0]
    return f"sm_{driver.major}{driver.minor}"


def _is(device: Device, name: str, arch: str) -> bool:
    return (
        device.limits.arch == arch
        and any(part in name for part in device.matches)
        and not any(part in name for part in device.excludes)
    )


def _driver_figure(driver: Any, attribute: str, otherwise: int) -> int:
    """A driver's figure; torch leaves some out and HIP reports some as 0."""
    return int(getattr(driver, attribute, 0) or 0) or otherwise


def _refreshed(device: Device, driver: Any) -> Device:
    """The device with what the driver says of this very GPU."""
    cores = _driver_figure(driver, "multi_processor_count", device.limits.cores)
    if device.limits.arch.startswith("gfx11") and cores == 2 * device.limits.cores:
        # GPU_ENABLE_WGP_MODE=0 makes HIP count compute units; blocks still live on pairs of them.
        cores = device.limits.cores
    fresh = replace(
        device,
        title=driver.name,
        limits=replace(
            device.limits,
            cores=cores,
            warp_size=_driver_figure(driver, "warp_size", device.limits.warp_size),
            shared_bytes=_driver_figure(
                driver, "shared_memory_per_block_optin", device.limits.shared_bytes
            ),
        ),
    )
    if device.backend == "cuda":  # HIP's L2 is not the last level, and its register count differs
        fresh = replace(
            fresh,
            registers_per_core=_driver_figure(
                driver, "regs_per_multiprocessor", device.registers_per_core
            ),
            shared_per_core=_driver_figure(
                driver, "shared_memory_per_multiprocessor", device.shared_per_core
            ),
            cache=_l2(driver) or device.cache,
        )
    return fresh if cores == device.limits.cores else _part(fresh, cores / device.limits.cores)


def _part(device: Device, share: float) -> Device:
    """A GPU with another number of cores: a partition, or a cut that shares the name.

    Its arithmetic goes with its cores; its share of the memory's bandwidth is not known.
    """
    source = f"computed as {share:.3f} of the whole GPU's, by cores: "
    return replace(
        device,
        dram=None,
        cache_bandwidth=None,
        peaks={
            dtype: Quantity(share * q.value, q.unit, source + q.source, "computed")
            for dtype, q in device.peaks.items()
        },
    )


def _l2(driver: Any) -> Quantity | None:
    size = _driver_figure(driver, "L2_cache_size", 0)
    return Quantity(size, "B", "L2_cache_size as the driver reports it", "driver") if size else None


def _described(driver: Any, arch: str) -> Device:
    """A GPU that is not in the table, from what the driver says of it."""
    core = _CORES.get(arch) or _unlisted_core(driver, arch)
    cores = int(driver.multi_processor_count)
    clock_hz = 1e3 * _driver_figure(driver, "clock_rate", 0)
    return Device(
        name=re.sub(r"[^a-z0-9]+", "-", driver.name.lower()).strip("-"),
        title=driver.name,
        backend=core.backend,
        limits=Limits(
            arch=arch,
            warp_size=core.warp_size,
            shared_bytes=_driver_figure(
                driver, "shared_memory_per_block_optin", core.shared_per_block
            ),
            registers_per_thread=core.registers_per_thread,
            threads_per_block=1024,
            cores=cores,
        ),
        warps_per_core=core.warps,
        blocks_per_core=core.blocks,
        registers_per_core=core.registers,
        register_unit=core.register_unit,
        shared_per_core=core.shared,
        shared_reserved=core.shared_reserved,
        clock_hz=Quantity(clock_hz, "Hz", "clock_rate as the driver reports it", "driver")
        if clock_hz
        else None,
        dram=_memory_bandwidth(driver) if core.backend == "cuda" else None,
        cache=_last_level(driver, arch),
        cache_bandwidth=None,
        peaks=_vector_peak(core, cores, clock_hz),
        shared_unit=core.shared_unit,
        limits_source=core.source,
    )


def _unlisted_core(driver: Any, arch: str) -> _Core:
    """One core of an architecture that `_CORES` lacks, as far as the driver describes it."""
    cuda = arch.startswith("sm_")
    warp_size = _driver_figure(driver, "warp_size", 32 if cuda else 64)
    warps = max(1, _driver_figure(driver, "max_threads_per_multi_processor", 1024) // warp_size)
    per_block = _driver_figure(driver, "shared_memory_per_block", 48 * KIB)
    return _Core(
        backend="cuda" if cuda else "hip",
        warp_size=warp_size,
        warps=warps,
        blocks=warps,  # the driver states no limit of its own
        registers=_driver_figure(driver, "regs_per_multiprocessor", 65536),
        register_unit=8 * warp_size,
        registers_per_thread=255 if cuda else 256,
        shared=_driver_figure(driver, "shared_memory_per_multiprocessor", per_block),
        shared_per_block=per_block,
        shared_reserved=KIB if cuda and driver.major >= 8 else 0,
        shared_unit=128 if cuda else 512,
        flops_per_clock=None,
        source=f"as the driver reports them; granularities as on the kin of {arch}",
    )


def _memory_bandwidth(driver: Any) -> Quantity | None:
    """Two transfers a clock over the bus, as CUDA defines its figures. HIP's count otherwise."""
    khz, bits = (
        _driver_figure(driver, "memory_clock_rate", 0),
        _driver_figure(driver, "memory_bus_width", 0),
    )
    if not khz or not bits:
        return None
    return _rate(
        2e3 * khz * bits / 8 / 1e12,
        f"computed from {khz / 1e3:.0f} MHz x 2 x {bits} bits as the driver reports",
        "computed",
    )


def _last_level(driver: Any, arch: str) -> Quantity:
    """The last-level cache. HIP reports the L2 before it, so for CDNA the table knows better."""
    kin = next((d for d in DEVICES.values() if d.limits.arch == arch), None)
    if kin and arch.startswith("gfx9"):
        return replace(kin.cache, source=f"as on {kin.name}, of the same architecture")
    return _l2(driver) or Quantity(0, "B", "not reported by the driver", "driver")


def _vector_peak(core: _Core, cores: int, clock_hz: float) -> dict[str, Quantity]:
    """fp32 on the vector units, where lanes and clock are known.

    Matrix peaks are left out: products of one architecture differ in them by a factor of up to
    six at equal cores (H20 and H200; RTX 4090 and L40S accumulating in fp32).
    """
    if not core.flops_per_clock or not clock_hz:
        return {}
    source = (
        f"computed as {cores} cores x {core.flops_per_clock} a clock x {clock_hz / 1e9:.3f} GHz"
    )
    return {"fp32": _flops(cores * core.flops_per_clock * clock_hz / 1e12, source, "computed")}


def _list() -> None:
    """Print the name, architecture and title of each device."""
    for device in (*DEVICES.values(), *UNCOMPILED.values()):
        print(f"{device.name:<10} {device.limits.arch:<8} {device.title}")
