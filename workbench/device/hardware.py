"""Devices with limits and peaks, each number with its source, and detection of the live GPU.

A device is one file of `workbench/devices/`, named after it. Every number was stated or measured,
and its `Quantity` names the source. Unknown numbers are absent: a peak that is missing from
`peaks`, a bandwidth that is None. `workbench devices` lists the devices.
"""

from __future__ import annotations

import difflib
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, cast, get_args

from workbench.data.contributed import contributed_modules, device_file
from workbench.spec import Limits, WorkbenchError

KIB = 1024
MIB = 1024 * KIB

Kind = Literal["datasheet", "published", "reported", "computed", "driver"]


@dataclass(frozen=True)
class Quantity:
    """A number with its origin: `unit` is spelt out, `source` names where it was stated and `kind`
    how: by the maker, by a benchmark, by others who measured, by arithmetic, or by the driver."""

    value: float
    unit: str
    source: str
    kind: Kind = "datasheet"


BandKind = Literal["product", "stream", "launch", "code product", "code", "issued code", "estimate"]


@dataclass(frozen=True)
class Band:
    """Measured over predicted time of some kernels: from the 5th to the 95th percentile, and of
    all where fewer than 20 were compared."""

    title: str  # of the kernels, in a clause: "attention"
    kernels: tuple[str, ...]  # that were compared
    kind: BandKind | None  # of kernels that no other band names, which it serves, too
    low: float
    high: float
    times: int  # that were compared
    source: str


@dataclass(frozen=True)
class Device:
    """Limits and peaks of a GPU that the workbench knows.

    A core is the unit on which a block runs: a streaming multiprocessor (NVIDIA), a compute unit
    (CDNA) or a work-group processor (RDNA). None means unknown, as does a missing peak.
    """

    name: str  # "h200": the word on the command line
    title: str  # "NVIDIA H200 SXM"
    backend: str  # Triton's: "cuda" or "hip"; another where Triton does not compile for it
    limits: Limits
    warps_per_core: int
    blocks_per_core: int
    registers_per_core: int  # 32-bit
    register_unit: int  # registers are allocated per warp in multiples of this
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
    shared_unit: int = 128  # bytes: shared memory is allocated in multiples of this
    limits_source: str = ""
    fp32_flops_per_clock: int | None = None  # of one core on its vector units; None when unknown
    family: str = ""  # of an Apple GPU, as Metal's feature set tables name it: "apple8"
    memory: Quantity | None = None  # bytes of the largest configuration, which no buffer exceeds
    bands: tuple[Band, ...] = ()  # of the analytic model; empty where it was never compared

    def has_name(self, live: str) -> bool:
        """Return whether this is the name that a driver gives to such a GPU."""
        matched = any(part in live for part in self.matches)
        return matched and not any(part in live for part in self.excludes)

    def peak_state(self) -> dict[str, str]:
        """Return what peaks add as plain data: a maker states them at the boost clock, but those of
        a device without a stated clock are of whatever clock their source names."""
        return {} if self.clock_hz else {"state": ""}


class UnknownDevice(WorkbenchError, ValueError):
    """No device has this name."""


class DeviceFileError(WorkbenchError, ValueError):
    """A file of `devices/` is invalid; the message, one sentence, names the file and the key."""


FOLDER = Path(__file__).resolve().parents[1] / "devices"
COMPILED = ("cuda", "hip")  # backends that Triton compiles for
METAL = "metal"  # the backend of Apple's GPUs

# Units of a file: the factor to the unit of `Quantity.value`, and that unit.
UNITS: Mapping[str, tuple[float, str]] = {
    "GHz": (1e9, "Hz"),
    "TB/s": (1e12, "B/s"),
    "MiB": (MIB, "B"),
    "GiB": (1024 * MIB, "B"),
    "TFLOP/s": (1e12, "FLOP/s"),
    "TOP/s": (1e12, "OP/s"),
}
DTYPES = ("fp32", "fp32_matrix", "tf32", "fp16", "bf16", "fp8", "int8")  # that a peak may be of

# Keys that any file may omit, with their defaults.
_UNKNOWN = {"schedulers_per_core": 4, "fp32_flops_per_clock": 0}
# Further keys that a file may omit where Triton does not compile for the device.
_UNSTATED = {
    "registers_per_thread": 0,
    "warps_per_core": 0,
    "blocks_per_core": 0,
    "registers_per_core": 0,
    "register_unit": 1,
    "shared_reserved_kib": 0,
    "shared_unit_bytes": 128,
}


class Devices(Mapping[str, Device]):
    """Maps names to the devices of `folder`; each file is read on first access. With `compiled` it
    holds those that Triton compiles for, without it only the others. The workbench's own folder is
    joined by the devices of installed packages."""

    def __init__(self, folder: Path, *, compiled: bool) -> None:
        self.folder, self.compiled = folder, compiled

    def __getitem__(self, name: str) -> Device:
        own = name in _names(self.folder)
        added = device_file(name) if self.folder == FOLDER else None
        file = self.folder / f"{name}.toml" if own else added
        if file is not None:
            device = read_device(file)
            if (device.backend in COMPILED) == self.compiled:
                return device
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        others = contributed_modules("workbench.devices") if self.folder == FOLDER else ()
        return (name for name in sorted({*_names(self.folder), *others}) if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


@cache
def _names(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in folder.glob("*.toml")))


@cache
def read_device(path: Path) -> Device:
    """Return the device that a file describes.

    Raises DeviceFileError where a key is missing or unknown or has a value of another type, where a
    figure has another unit or no source, and where the file is not TOML.
    """
    import tomllib

    where = f"devices/{path.name}"
    if not re.fullmatch(r"[a-z0-9]+", path.stem):
        message = f"{where} has an invalid name; use lower-case letters and digits only."
        raise DeviceFileError(message)
    try:
        top = _Table(where, tomllib.loads(path.read_text(encoding="utf-8")))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DeviceFileError(f"{where} is not TOML: {str(error).splitlines()[0]}.") from error
    backend = top.text("backend")
    unstated = {} if backend in COMPILED else _UNSTATED
    limits = top.table("limits")
    device = Device(
        name=path.stem,
        title=top.text("title"),
        backend=backend,
        limits=Limits(
            arch=top.text("arch"),
            warp_size=limits.count("warp_size"),
            shared_bytes=limits.count("shared_per_block_kib") * KIB,
            registers_per_thread=limits.count("registers_per_thread", unstated),
            threads_per_block=limits.count("threads_per_block"),
            cores=top.count("cores"),
        ),
        warps_per_core=limits.count("warps_per_core", unstated),
        blocks_per_core=limits.count("blocks_per_core", unstated),
        registers_per_core=limits.count("registers_per_core", unstated),
        register_unit=limits.count("register_unit", unstated),
        shared_per_core=limits.count("shared_per_core_kib") * KIB,
        shared_reserved=limits.count("shared_reserved_kib", unstated) * KIB,
        clock_hz=top.figure("clock", "Hz"),
        dram=top.figure("dram", "B/s"),
        cache=top.read_quantity("cache", "B"),
        cache_bandwidth=top.figure("cache_bandwidth", "B/s"),
        peaks=_peaks(top.tables("peaks")),
        matches=top.texts("matches"),
        excludes=top.texts("excludes"),
        schedulers_per_core=limits.count("schedulers_per_core", _UNKNOWN),
        shared_unit=limits.count("shared_unit_bytes", unstated),
        limits_source=limits.text("source"),
        fp32_flops_per_clock=limits.count("fp32_flops_per_clock", _UNKNOWN) or None,
        family=top.text("family") if backend == METAL else "",
        memory=top.figure("memory", "B"),
        bands=tuple(map(_band, top.tables("bands"))),
    )
    limits.end()
    top.end()
    return device


def _peaks(groups: Sequence[_Table]) -> dict[str, Quantity]:
    """Return the peaks of all groups by dtype; those of integers count operations, not FLOPs."""
    peaks: dict[str, Quantity] = {}
    for group in groups:
        source, kind, unit = group.text("source"), group.kind(), group.text("unit")
        dtypes = [dtype for dtype in DTYPES if dtype in group.rest]
        if not dtypes:
            raise group.error(f"has no peak: the keys are dtypes, such as {', '.join(DTYPES)}")
        for dtype in dtypes:
            if dtype in peaks:
                raise group.error(f"states the key {dtype} a second time")
            base = "OP/s" if dtype.startswith("int") else "FLOP/s"
            value = group.scaled_number(dtype, unit, base)
            peaks[dtype] = Quantity(value, base, source, kind)
        group.keys += DTYPES
        group.end()
    return peaks


def _band(table: _Table) -> Band:
    """Return an error band of the model."""
    kind = table.text("kind") if "kind" in table.rest else None
    if kind is not None and kind not in get_args(BandKind):
        kinds = ", ".join(get_args(BandKind))
        raise table.error(f"must have one of {kinds} for the key kind, not {kind!r}")
    low, high = table.number("low"), table.number("high")
    if not low <= high:
        raise table.error(f"must have a low of at most its high, not {low:g} to {high:g}")
    band = Band(
        table.text("title"),
        tuple(table.text("kernels").split(", ")),
        cast("BandKind | None", kind),
        low,
        high,
        table.count("times"),
        table.text("source"),
    )
    table.end()
    return band


class _Table:
    """One table of a device file: each key is consumed once, and none may be left."""

    def __init__(self, where: str, value: object) -> None:
        self.where, self.keys = where, list[str]()
        if not isinstance(value, dict):
            raise self.error("is not a table")
        self.rest: dict[str, Any] = dict(value)

    def error(self, words: str) -> DeviceFileError:
        return DeviceFileError(f"{self.where} {words}.")

    def end(self) -> None:
        """Raise DeviceFileError where an unknown key is left."""
        for key in self.rest:
            near = difflib.get_close_matches(key, self.keys, n=1)
            raise self.error(f"has the unknown key {key}" + "".join(f"; is it {n}?" for n in near))

    def table(self, key: str) -> _Table:
        return _Table(f"{self.where} [{key}]", self._take_key(key))

    def tables(self, key: str) -> list[_Table]:
        value = self._take_key(key, [])
        if not isinstance(value, list):
            raise self.error(f"must write the key {key} as [[{key}]]")
        return [_Table(f"{self.where} [[{key}]]", each) for each in value]

    def text(self, key: str) -> str:
        value = self._take_key(key)
        if not isinstance(value, str) or not value.strip():
            raise self.error(f"must have a text for the key {key}, not {value!r}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        value = self._take_key(key, [])
        if not isinstance(value, list) or not all(isinstance(v, str) and v for v in value):
            raise self.error(f"must have a list of texts for the key {key}, not {value!r}")
        return tuple(value)

    def count(self, key: str, unstated: Mapping[str, int] | None = None) -> int:
        value = self._take_key(key, (unstated or {}).get(key))
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise self.error(f"must have a whole number for the key {key}, not {value!r}")
        return value

    def kind(self) -> Kind:
        value: Kind = self._take_key("kind", "datasheet")
        if value not in get_args(Kind):
            kinds = ", ".join(get_args(Kind))
            raise self.error(f"must have one of {kinds} for the key kind, not {value!r}")
        return value

    def figure(self, key: str, base: str) -> Quantity | None:
        """Return the figure with its source; None where the file does not state it."""
        if key in self.rest:
            return self.read_quantity(key, base)
        self.keys.append(key)
        return None

    def read_quantity(self, key: str, base: str) -> Quantity:
        table = self.table(key)
        value = table.scaled_number("value", table.text("unit"), base)
        figure = Quantity(value, base, table.text("source"), table.kind())
        table.end()
        return figure

    def number(self, key: str) -> float:
        """Return the number of this key, which is not negative."""
        value = self._take_key(key)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 <= value < math.inf:
            raise self.error(f"must have a number for the key {key}, not {value!r}")
        return float(value)

    def scaled_number(self, key: str, unit: str, base: str) -> float:
        """Return the number of this key, which is in `unit`, in the unit `base`."""
        value = self.number(key)
        factor, driver = UNITS.get(unit, (0.0, ""))
        if driver != base:
            units = " or ".join(u for u, (_, of) in UNITS.items() if of == base)
            raise self.error(f"must state the key {key} in the unit {units}, not {unit!r}")
        scaled: float = value * factor
        return scaled

    def _take_key(self, key: str, otherwise: Any = None) -> Any:
        self.keys.append(key)
        value = self.rest.pop(key, otherwise)
        if value is None:
            raise self.error(f"lacks the key {key}")
        return value


DEVICES: Mapping[str, Device] = Devices(FOLDER, compiled=True)
# Those for which Triton does not compile: Apple's, whose Metal kernels are emulated and predicted.
UNCOMPILED: Mapping[str, Device] = Devices(FOLDER, compiled=False)


def device_named(name: str) -> Device:
    """Return the device of this name, in any case and with or without spaces and hyphens.

    Raises UnknownDevice, which names the nearest ones.
    """
    return _find_named(name, DEVICES)


def backend_of(name: str | None) -> str:
    """Return the backend of the device of this name: "cuda", "hip" or "metal"; "" for None and for
    an unknown device."""
    try:
        return find_device(name).backend if name is not None else ""
    except UnknownDevice:
        return ""


def metal_device() -> bool:
    """Return whether MLX has a Metal device here. Imports MLX on a Mac alone."""
    return sys.platform == "darwin" and bool(import_module("metal_shim.kernel").metal_device())


def find_device(name: str) -> Device:
    """Return the device of this name, including those that Triton does not compile for. Raises
    UnknownDevice as `device_named` does."""
    return _find_named(name, DEVICES, UNCOMPILED)


def _find_named(name: str, *tables: Mapping[str, Device]) -> Device:
    plain = re.sub(r"[\s_-]", "", name.lower())
    for devices in tables:
        if plain in devices:
            return devices[plain]
    if plain in UNCOMPILED:
        raise UnknownDevice(
            f"Triton does not compile for {UNCOMPILED[plain].title}; `workbench sweep`, `measure` "
            "and `compare` emulate and predict its Metal kernels, and `workbench experiment "
            "expected` says what it allows"
        )
    names = [each for devices in tables for each in devices]
    near = difflib.get_close_matches(plain, names, n=3, cutoff=0.4)
    hint = f"the nearest are {', '.join(near)}" if near else "and none has a similar name"
    raise UnknownDevice(f"no device is named {name!r}, {hint}; `workbench devices` lists them all")


def ceilings(device: Device, dtype: str) -> dict[str, dict[str, Any]]:
    """Return the stated limits of a device as plain data for records and pages.

    Keys are `dram` and `cache` (B/s) and `compute` (FLOP/s or OP/s of this dtype), each a dict of
    `value`, `unit`, `source` and `kind`. Unknown ceilings have no key.
    """
    figures = {"dram": device.dram, "cache": device.cache_bandwidth}
    in_parts = parts_peak(device) if dtype == "fp32" else None
    figures["compute"] = in_parts or device.peaks.get(dtype)
    plain = {name: asdict(q) for name, q in figures.items() if q is not None}
    if "compute" in plain:
        plain["compute"] |= {"dtype": dtype, **device.peak_state()}
    return plain


def parts_peak(device: Device) -> Quantity | None:
    """Return the peak of fp32 products as six of bf16 parts, a sixth of the bf16 peak, on devices
    where kernels make them so (see `dsl.precision_of`); None on others."""
    bf16 = device.peaks.get("bf16")
    if not device.limits.fp32_in_parts or bf16 is None:
        return None
    source = f"a sixth of the bf16 peak: an fp32 product as six of bf16 parts ({bf16.source})"
    return replace(bf16, value=bf16.value / 6, source=source, kind="computed")


def live() -> Device | None:
    """Return the GPU that torch would use now, or None where it sees none or is not installed.

    A GPU of `DEVICES` keeps its name and its stated figures, and takes its title and its limits
    from the driver. Any other is described by the driver's figures, and the rest is unknown.
    """
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    driver = torch.cuda.get_device_properties(torch.cuda.current_device())
    arch = _arch(driver, hip=getattr(torch.version, "hip", None) is not None)
    kin = [d for d in DEVICES.values() if d.limits.arch == arch]
    device = next((d for d in kin if d.has_name(driver.name)), None)
    return _refresh(device, driver) if device else _describe(driver, arch)


def _arch(driver: Any, *, hip: bool) -> str:
    """Return Triton's name of the architecture: `gfx942` without its feature flags, or `sm_90`."""
    if hip:
        return str(driver.gcnArchName).split(":")[0]
    return f"sm_{driver.major}{driver.minor}"


def _driver_figure(driver: Any, attribute: str, otherwise: int) -> int:
    """Return a driver's figure, or `otherwise`: torch omits some and HIP reports some as 0."""
    return int(getattr(driver, attribute, 0) or 0) or otherwise


def _refresh(device: Device, driver: Any) -> Device:
    """Return the device with the driver's figures of the present GPU."""
    limits = device.limits
    cores = _driver_figure(driver, "multi_processor_count", limits.cores)
    if device.limits.arch.startswith("gfx11") and cores == 2 * device.limits.cores:
        # GPU_ENABLE_WGP_MODE=0 makes HIP count compute units; blocks still run on pairs of them.
        cores = device.limits.cores
    warp_size = _driver_figure(driver, "warp_size", limits.warp_size)
    shared = _driver_figure(driver, "shared_memory_per_block_optin", limits.shared_bytes)
    here = replace(limits, cores=cores, warp_size=warp_size, shared_bytes=shared)
    fresh = replace(device, title=driver.name, limits=here)
    if device.backend == "cuda":  # HIP's L2 is not the last level, and its register count differs
        registers = _driver_figure(driver, "regs_per_multiprocessor", device.registers_per_core)
        shared = _driver_figure(driver, "shared_memory_per_multiprocessor", device.shared_per_core)
        fresh = replace(fresh, registers_per_core=registers, shared_per_core=shared)
        fresh = replace(fresh, cache=_l2(driver) or device.cache)
    return fresh if cores == limits.cores else _part(fresh, cores / limits.cores)


def _part(device: Device, share: float) -> Device:
    """Return a GPU with another number of cores: a partition, or a variant that shares the name.
    Its arithmetic scales with its cores; its share of the memory's bandwidth is not known."""
    source = f"computed as {share:.3f} of the whole GPU's, by cores: "
    peaks = {
        dtype: Quantity(share * q.value, q.unit, source + q.source, "computed")
        for dtype, q in device.peaks.items()
    }
    return replace(device, dram=None, cache_bandwidth=None, peaks=peaks)


def _l2(driver: Any) -> Quantity | None:
    size = _driver_figure(driver, "L2_cache_size", 0)
    return Quantity(size, "B", "L2_cache_size as the driver reports it", "driver") if size else None


def _describe(driver: Any, arch: str) -> Device:
    """Return a GPU without a device file, from the driver's figures. Its limits are those of a
    device of the same architecture, where there is one."""
    kin = _kin(arch) or _describe_unlisted(driver, arch)
    cores = int(driver.multi_processor_count)
    clock_hz = 1e3 * _driver_figure(driver, "clock_rate", 0)
    clock = Quantity(clock_hz, "Hz", "clock_rate as the driver reports it", "driver")
    shared = _driver_figure(driver, "shared_memory_per_block_optin", kin.limits.shared_bytes)
    return replace(
        kin,
        name=re.sub(r"[^a-z0-9]+", "-", driver.name.lower()).strip("-"),
        title=driver.name,
        limits=replace(kin.limits, shared_bytes=shared, cores=cores),
        clock_hz=clock if clock_hz else None,
        dram=_memory_bandwidth(driver) if kin.backend == "cuda" else None,
        cache=_last_level(driver, arch),
        cache_bandwidth=None,
        peaks=_vector_peak(kin.fp32_flops_per_clock, cores, clock_hz),
        matches=(),
        excludes=(),
    )


def _kin(arch: str) -> Device | None:
    """Return the first known device of this architecture."""
    return next((d for d in DEVICES.values() if d.limits.arch == arch), None)


def _describe_unlisted(driver: Any, arch: str) -> Device:
    """Return a device of an architecture that no file has, as far as the driver describes it."""
    cuda = arch.startswith("sm_")
    warp_size = _driver_figure(driver, "warp_size", 32 if cuda else 64)
    warps = max(1, _driver_figure(driver, "max_threads_per_multi_processor", 1024) // warp_size)
    per_block = _driver_figure(driver, "shared_memory_per_block", 48 * KIB)
    return Device(
        name="",
        title="",
        backend="cuda" if cuda else "hip",
        limits=Limits(arch, warp_size, per_block, 255 if cuda else 256, 1024, cores=0),
        warps_per_core=warps,
        blocks_per_core=warps,  # the driver states no limit of its own
        registers_per_core=_driver_figure(driver, "regs_per_multiprocessor", 65536),
        register_unit=8 * warp_size,
        shared_per_core=_driver_figure(driver, "shared_memory_per_multiprocessor", per_block),
        shared_reserved=KIB if cuda and driver.major >= 8 else 0,
        clock_hz=None,
        dram=None,
        cache=Quantity(0, "B", "not reported by the driver", "driver"),
        cache_bandwidth=None,
        peaks={},
        shared_unit=128 if cuda else 512,
        limits_source=f"as the driver reports them; granularities as on similar GPUs ({arch})",
    )


def _memory_bandwidth(driver: Any) -> Quantity | None:
    """Return two transfers a clock over the bus, as CUDA defines its figures; HIP differs."""
    khz, bits = (_driver_figure(driver, f"memory_{f}", 0) for f in ("clock_rate", "bus_width"))
    if not khz or not bits:
        return None
    source = f"computed from {khz / 1e3:.0f} MHz x 2 x {bits} bits as the driver reports"
    return Quantity(2e3 * khz * bits / 8, "B/s", source, "computed")


def _last_level(driver: Any, arch: str) -> Quantity:
    """Return the last-level cache; of CDNA the device file's, as HIP reports the L2 before it."""
    kin = _kin(arch)
    if kin and arch.startswith("gfx9"):
        return replace(kin.cache, source=f"as on {kin.name}, of the same architecture")
    return _l2(driver) or Quantity(0, "B", "not reported by the driver", "driver")


def _vector_peak(per_clock: int | None, cores: int, clock_hz: float) -> dict[str, Quantity]:
    """Return the fp32 peak of the vector units, where FLOPs per clock and core and the clock are
    known.

    Matrix peaks are left out: products of one architecture differ in them by a factor of up to six
    at equal cores (H20 and H200; RTX 4090 and L40S accumulating in fp32).
    """
    if not per_clock or not clock_hz:
        return {}
    source = f"computed as {cores} cores x {per_clock} a clock x {clock_hz / 1e9:.3f} GHz"
    return {"fp32": Quantity(cores * per_clock * clock_hz, "FLOP/s", source, "computed")}
