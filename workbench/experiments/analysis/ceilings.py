"""Measure the ceilings of a device: what is timed for each, and how the results are validated.

A ceiling is the best of a few configs of a kernel that does one thing alone. It is validated
against library kernels that are timed beside it, against the other ceilings and against the maker's
figures; one that fails is kept with the reason and never used. Each is measured in both states of
the clock, first `boost`, then `sustained`; those of one state are compared with each other alone.
`commands/ceilings_command.py` times all this; `known` finds what was last measured on a device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from workbench import catalog
from workbench.backend.libraries import MLX
from workbench.data import stats
from workbench.data.record import Measured, State
from workbench.device.ceilings import MEASURED, Level, measured_name
from workbench.device.hardware import METAL, Device, Quantity
from workbench.experiments import Regime, Variant, VariantResult
from workbench.spec import Limits, Sizes, label, sizes_text

if TYPE_CHECKING:
    from workbench.data.database import History

Ceiling = Mapping[str, Any]  # a ceiling as `hardware.ceilings` writes it
Counted = Literal["bytes", "traffic", "flops", "launches"]

RECOVERED = 0.97  # least share of the sustained ceiling that one at the boost clock must reach
STREAM = 1 << 28  # bf16 numbers, from which on a copy on an H200 reaches its full rate
LINKS = 256  # launches in a chain
EDGE = 8192  # of the square products that libraries are timed with
CYCLE_BYTES = 128.0  # bytes that the banks of an NVIDIA multiprocessor deliver in a clock
CYCLE_SOURCE = (
    "computed as cores x 128 B x boost clock: 32 banks of 4 bytes (CUDA programming guide, shared "
    "memory), which L1 shares"
)


@dataclass(frozen=True)
class Sought:
    """One ceiling to measure.

    The best of `variants` counts, in `counted` a second, or in seconds a launch. It must reach
    `share` of the best library reference's rate (a launch may take 1 / `share` of its time),
    `above` names ceilings that it must exceed, and it must not exceed `most` times the stated
    figure.
    """

    name: str  # "dram_read", without the suffix of measured ceilings
    title: str
    level: Level
    count: Counted
    variants: tuple[Variant, ...]
    libraries: tuple[Variant, ...] = ()
    share: float = 0.98
    lower_limits: tuple[str, ...] = ()
    statement: Quantity | None = None
    most: float = 1.0
    dtype: str = ""

    @property
    def unit(self) -> str:
        """Unit of its value."""
        if self.count == "launches":
            return "s"
        if self.count != "flops":
            return "B/s"
        return "OP/s" if self.dtype.startswith("int") else "FLOP/s"


@dataclass(frozen=True)
class CeilingGroup:
    """Ceilings whose variants are interleaved, being of one kind of load and so of one clock. With
    `boost` they are measured in that state, too."""

    name: str
    sought: tuple[Sought, ...]
    boost: bool = True

    @property
    def variants(self) -> list[Variant]:
        """All variants that are timed for it, each once."""
        every = [a for s in self.sought for a in (*s.variants, *s.libraries)]
        return list({a.name: a for a in every}.values())


# Ceilings to measure


def groups_of(device: Device, memory_bytes: int | None) -> list[CeilingGroup]:
    """Return all ceilings to measure on a GPU with this memory in bytes (None: unknown)."""
    if device.backend == METAL:
        return [_metal(device)]
    return [
        _dram(device, memory_bytes),
        _caches(device),
        _vector(device),
        *(_matrix(device, dtype) for dtype in matrix_dtypes(device)),
        _launches(),
    ]


def matrix_dtypes(device: Device) -> list[str]:
    """Return the dtypes of the matrix unit in `Device.peaks`; without stated peaks, the usual."""
    dtypes = ("tf32", "fp16", "bf16", "fp8", "int8")
    if device.backend == "hip":
        dtypes = ("fp32_matrix", "fp16", "bf16", "fp8", "int8")
    return [d for d in dtypes if d in device.peaks] or ["fp16", "bf16"]


def stream_elements(memory_bytes: int | None) -> int:
    """Return the 16-bit numbers of a stream: at most STREAM, and few enough that the rotating sets,
    their outputs and the float64 references, some 250 bytes a number, take half the memory."""
    most = STREAM if memory_bytes is None else min(STREAM, memory_bytes // 512)
    return 1 << (max(1 << 20, most).bit_length() - 1)


def _variants(
    name: str,
    kernel: str,
    sizes: Sizes,
    dtype: str,
    configs: Sequence[Mapping[str, int]],
    regime: Regime = "cold",
) -> tuple[Variant, ...]:
    """Return a variant of `kernel`, named with its Impl, for each config."""
    kernel, impl = kernel.split(".")
    first = Variant(name, kernel, impl, dict(sizes), dtype, configs[0], regime)
    more = (replace(first, name=f"{name} {n}", config=c) for n, c in enumerate(configs) if n)
    return (first, *more)


def _configs(knobs: str, *values: tuple[int, ...]) -> list[dict[str, int]]:
    """Return configs from the names of their knobs and the values of each."""
    return [dict(zip(knobs.split(), each, strict=True)) for each in values]


def _dram(device: Device, memory_bytes: int | None) -> CeilingGroup:
    elements = stream_elements(memory_bytes)
    flat, outer = {"N": elements}, {"M": elements // 4096, "N": 4096}
    # The same bytes in fp32, in 1024 rows: in bf16, or in one sum, torch reads 4.0 to 4.2 TB/s on
    # an H200, and 4.33 in this way.
    summed, filled = {"M": 1024, "N": elements // 2048}, {"M": elements // 16384, "N": 4096}
    blocks = _configs("block_n num_warps", (1024, 4), (2048, 4), (2048, 8))
    chunks = _configs("block_c num_warps", (1, 4), (1, 8), (2, 8))
    rows = _configs("rows block_n num_warps", (1, 4096, 4), (1, 2048, 4), (4, 8192, 8))
    read = Variant("torch.sum", "reduce", "torch", summed, "fp32")
    write = Variant("torch.fill_", "library_fill", "torch.fill_", filled, "fp32")
    copy = Variant("torch.clone", "copy", "torch", flat, "bf16")
    triad = Variant("torch.add", "triad", "torch", flat, "bf16")
    limits = (
        ("read", "read", "read_only.chunks", flat, chunks, read, ("dram_copy",)),
        ("write", "write", "fill.rows", outer, rows, write, ()),
        ("copy", "copy (1 read : 1 write)", "copy.blocks", flat, blocks, copy, ()),
        ("triad", "triad (2 reads : 1 write)", "triad.blocks", flat, blocks, triad, ()),
    )
    sought = []
    for name, title, kernel, sizes, configs, library, above in limits:
        variants = _variants(name, kernel, sizes, "bf16", configs)
        one = Sought(f"dram_{name}", f"DRAM, {title}", "dram", "bytes", variants, (library,))
        sought.append(replace(one, lower_limits=above, statement=device.dram))
    return CeilingGroup("DRAM", tuple(sought))


def _caches(device: Device) -> CeilingGroup:
    cores = device.limits.cores
    # two fifths: a GPU with two partitions of cache may keep its data in both
    size = device.cache.value or 32 << 20  # if the driver does not report it
    pieces = int(0.4 * size) // (4 * 4096)
    working_set = {"N": pieces * 4096, "P": 32 * cores}
    own = {"P": 2 * cores, "N": 8192} if device.backend == "cuda" else {"P": cores, "N": 4096}
    shared = _configs("block_n num_warps", (4096, 8), (2048, 8), (4096, 16))
    cache = _configs("at_once num_warps", (2, 8), (1, 4), (1, 8))
    repeated = {"N": pieces * 4096, "R": 64}
    largest = Variant("torch.amax", "library_cache", "torch.amax", repeated, "fp32", None, "hot")
    last_level = Sought(
        "cache",
        "last-level cache, read",
        "cache",
        "traffic",
        _variants("cache", "cache_read.pieces", working_set, "fp32", cache, "hot"),
        (largest,),
        lower_limits=("dram_read",),
        statement=device.cache_bandwidth,
        most=2.0,
    )
    banks = Sought(
        "shared",
        "L1, read (shared memory's banks)",
        "shared",
        "traffic",
        _variants("L1", "l1_read.rows", own, "fp32", shared, "hot"),
        lower_limits=("cache",),
        statement=bank_bandwidth(device),
        most=1.02,
    )
    return CeilingGroup("caches", (last_level, banks))


def bank_bandwidth(device: Device) -> Quantity | None:
    """Return the B/s of shared memory, all cores at the boost clock; None if unknown."""
    if device.backend != "cuda" or device.clock_hz is None:
        return None
    value = device.limits.cores * CYCLE_BYTES * device.clock_hz.value
    return Quantity(value, "B/s", CYCLE_SOURCE, "computed")


def _arithmetic(
    of: Device, dtype: str, unit: str, variants: Sequence[Variant], library: Variant, most: float
) -> CeilingGroup:
    """Return the ceiling of one dtype, which may exceed its stated peak by the factor `most`."""
    sought = Sought(
        f"compute_{dtype}",
        f"{dtype}, {unit}",
        "compute",
        "flops",
        tuple(variants),
        (library,),
        0.97,
        statement=of.peaks.get(dtype),
        most=most,
        dtype=dtype,
    )
    return CeilingGroup(dtype, (sought,))


def _vector(device: Device) -> CeilingGroup:
    configs = _configs("block_n num_warps", (2048, 8), (1024, 4), (4096, 8))
    chains = _variants("fp32", "compute_only.chains", {"N": 1 << 24}, "fp32", configs)
    square = {"M": 4096, "N": 4096, "K": 4096}
    product = Variant("torch.mm, fp32", "matmul", "torch", square, "fp32")
    return _arithmetic(device, "fp32", "fused multiply-add", chains, product, 1.05)


def _metal(device: Device) -> CeilingGroup:
    """Return the ceilings of a Metal device: a read, a copy and multiply-adds through MLX, each at
    the fewest bytes of its Spec's sizes to time. There is one state of the clock, which no program
    reads without root."""
    rows: tuple[tuple[str, str, Level, Counted, str], ...] = (
        ("dram_read", "DRAM, read", "dram", "bytes", "read_only.simd_chunks"),
        ("dram_copy", "DRAM, copy (1 read : 1 write)", "dram", "bytes", "copy.mlx"),
        ("compute_fp32", "fp32, fused multiply-add", "compute", "flops",
         "compute_only.scalar_chains"),
    )  # fmt: skip
    sought = []
    for name, title, level, counted, timed in rows:
        kernel, impl = timed.split(".")
        spec = catalog.spec_of(kernel)
        sizes = min(spec.bench, key=partial(spec.bytes, dtype="fp32"))
        variant = Variant(title, kernel, impl, dict(sizes), "fp32")
        figure = device.dram if level == "dram" else device.peaks.get("fp32")
        most, dtype = (1.0, "") if level == "dram" else (1.05, "fp32")
        sought.append(Sought(name, title, level, counted, (variant,), statement=figure, most=most,
                             dtype=dtype))  # fmt: skip
    return CeilingGroup("Metal", tuple(sought), boost=False)


# Resident tiles (M, N, K, warps, programs a core): on Hopper a warpgroup takes 64 rows by up to
# 256 columns; two of them, in one program or in two, fill the matrix unit in turn.
TILES = {
    "sm_90": ((64, 256, 64, 4, 2), (128, 256, 64, 8, 1)),
    "sm_100": ((128, 256, 64, 8, 1), (128, 128, 64, 4, 2), (128, 256, 128, 8, 1)),
    "gfx1100": ((64, 64, 32, 4, 8), (64, 64, 32, 8, 8)),
}
OTHERS = ((128, 256, 64, 8, 1), (128, 128, 64, 8, 2), (128, 128, 32, 8, 2), (64, 64, 32, 4, 8))


def _matrix(device: Device, dtype: str) -> CeilingGroup:
    kernel = "matrix_int8" if dtype == "int8" else "matrix_only"
    given = "fp32" if dtype in ("tf32", "fp32_matrix") else dtype
    variants = []
    for m, n, k, warps, each in TILES.get(device.limits.arch, OTHERS):
        name, sizes = f"{dtype} {m}x{n}x{k}, {warps} warps", {"M": m, "K": k, "N": n}
        sizes["P"] = each * device.limits.cores
        config = {"num_warps": warps}
        variants.append(Variant(name, kernel, "resident", sizes, given, config, "hot"))
    # peaks are stated at a lower clock than the highest
    return _arithmetic(device, dtype, "matrix unit", variants, _library(dtype), most=1.1)


def _library(dtype: str) -> Variant:
    """Return a square product by the library."""
    square = {"M": EDGE, "N": EDGE, "K": EDGE}
    kernel, impl, given = {
        "tf32": ("library_tf32", "torch.mm", "fp32"),
        "fp32_matrix": ("matmul", "torch", "fp32"),
        "fp8": ("fp8_matmul", "torch._scaled_mm", "fp8"),
        "int8": ("library_int8", "torch._int_mm", "int8"),
    }.get(dtype, ("matmul", "torch", dtype))
    named = impl if impl != "torch" else "torch.mm"
    return Variant(f"{named}, {dtype}, {EDGE}^3", kernel, impl, square, given)


def _launches() -> CeilingGroup:
    def chain(name: str, clock: Literal["device", "host"], pdl: int) -> Variant:
        config = {"pdl": pdl}
        return Variant(name, "empty_chain", "links", {"L": LINKS}, "fp32", config, "hot", clock)

    graph, eager = chain("graph", "device", 0), chain("eager", "host", 0)
    dependent = chain("graph, PDL", "device", 1), chain("eager, PDL", "host", 1)
    once = Variant("one empty kernel", "empty", "once", {}, "fp32", None, "hot")
    fills = replace(eager, name="torch.fill_", impl="torch", config=None)
    rows = (
        ("launch", "launch in a graph", graph, once, 0.9),
        ("launch_pdl", "launch in a graph, dependent (PDL)", dependent[0], graph, 0.9),
        # Triton's launcher does more than a library's: up to five times as long is accepted
        ("launch_eager", "launch by the CPU", eager, fills, 0.2),
        ("launch_eager_pdl", "launch by the CPU, dependent (PDL)", dependent[1], eager, 0.9),
    )
    sought = [
        Sought(name, title, "launch", "launches", (variant,), (library,), share)
        for name, title, variant, library, share in rows
    ]
    # an empty kernel loads nothing: its clock is the same in both states
    return CeilingGroup("launches", tuple(sought), boost=False)


# Evaluation


@dataclass(frozen=True)
class Rate:
    """Rate of a variant, in the unit of its ceiling: median, and the p5 and p95 of its samples. For
    a launch, seconds: `low` is the shortest."""

    value: float
    low: float
    high: float


def rate_of(result: VariantResult, counted: Counted, limits: Limits) -> Rate | None:
    """Return the rate of one variant; None if it has no measured time."""
    timing = result.timing
    if timing is None:
        return None
    short, long = (stats.quantile(timing.samples_s, q) for q in (0.05, 0.95))
    amount = amount_of(result.variant, result.outcome.case.config, counted, limits)
    if counted == "launches":
        return Rate(timing.median_s / amount, short / amount, long / amount)
    return Rate(amount / timing.median_s, amount / long, amount / short)


def amount_of(
    variant: Variant, config: Mapping[str, int], counted: Counted, limits: Limits
) -> float:
    """Return the bytes, FLOPs or launches of one call. `traffic` is all that the launch requests
    from the cache, as the Impl's `work` describes it; `bytes` are the least that must move."""
    spec = catalog.spec_of(variant.kernel)
    if counted == "launches":
        return float(variant.sizes.get("L", 1))
    if counted == "flops":
        return float(spec.flops(**variant.sizes))
    impl = catalog.impl_of(spec, variant.impl) if counted == "traffic" else None
    if impl is None or impl.work is None:
        return float(spec.bytes(variant.sizes, variant.dtype))
    works = impl.work_of(impl.config(**config), limits, variant.dtype, variant.sizes)
    assert works is not None
    return float(sum(w.tiles * (w.steps * w.load_bytes + w.store_bytes) for w in works))


def evaluate(
    sought: Sequence[Sought],
    results: Mapping[str, VariantResult],
    limits: Limits,
    earlier: Ceiling,
    state: State = "sustained",
) -> dict[str, dict[str, Any]]:
    """Return every ceiling of a group in one state by its measured name, validated; `earlier` are
    those of the groups before, and of this group in the other state. A ceiling without a time has
    no value, but a reason."""
    best = {s.name: _best(s, s.variants, results, limits) for s in sought}
    plain = {
        measured_name(s.name, state): {**_plain(s, best[s.name], results, limits), "state": state}
        for s in sought
    }
    ceilings = {**earlier, **plain}
    for s in sought:
        one, result = plain[measured_name(s.name, state)], best[s.name]
        if result is None:
            continue
        reason = doubt(s, one, ceilings) or _launch_mismatch(s, results) or code_fault(s, result[0])
        if reason is not None:
            one |= {"failed": True, "reason": reason}
    return plain


def _best(
    s: Sought, variants: Sequence[Variant], results: Mapping[str, VariantResult], limits: Limits
) -> tuple[VariantResult, Rate] | None:
    timed = [results[v.name] for v in variants if v.name in results]
    rates = [(f, r) for f in timed if (r := rate_of(f, s.count, limits)) is not None]
    order = min if s.count == "launches" else max
    return order(rates, key=lambda pair: pair[1].value, default=None)


def _plain(
    s: Sought,
    best: tuple[VariantResult, Rate] | None,
    results: Mapping[str, VariantResult],
    limits: Limits,
) -> dict[str, Any]:
    text: dict[str, Any] = {"unit": s.unit, "title": s.title, "level": s.level}
    text |= {"dtype": s.dtype} if s.dtype else {}
    if s.statement is not None:
        text["stated"] = asdict(s.statement)
    if best is None:
        reasons = dict.fromkeys(results[a.name].failure for a in s.variants if a.name in results)
        reason = "; ".join(filter(None, reasons)) or "it was not timed"
        return {**text, **_missing("no variant gave a time", reason)}
    variant, rate = best
    text |= {**asdict(rate), "kind": "measured", "source": _source(variant, len(s.variants))}
    if variant.timing is not None and variant.timing.sm_mhz:
        text["clock_mhz"] = variant.timing.sm_mhz
    if yard := _best(s, s.libraries, results, limits):
        name, value = yard[0].variant.name, yard[1].value
        text["library"] = {"name": name, "value": value, "unit": s.unit}
    elif s.libraries:
        failed = [results[a.name] for a in s.libraries if a.name in results]
        reason = "; ".join(f"{f.variant.name} gave no time ({f.failure})" for f in failed)
        text["unchecked"] = reason or "its library reference was not timed"
    return text


def _missing(source: str, reason: str) -> dict[str, Any]:
    return {"kind": "missing", "source": source, "reason": reason}


def _source(result: VariantResult, count: int) -> str:
    case, timing = result.outcome.case, result.timing
    assert timing is not None
    config = f" at {label(case.config)}" if case.config else ""
    of = f", the best of {count}" if count > 1 else ""
    maker = "the library's" if case.backend == MLX else "the workbench's"
    return (
        f"{maker} {case.kernel}.{case.impl}{config}, {sizes_text(case.sizes)} "
        f"{case.dtype}, {timing.regime}, {timing.state} clock, by {timing.method}{of}"
    )


def doubt(s: Sought, one: Ceiling, ceilings: Mapping[str, Ceiling]) -> str | None:
    """Return in a sentence why a rate is not accepted; None if it agrees with its library
    reference, with the ceilings `ceilings` of its state, with that of the other state and with the
    stated figure."""
    value, state = float(one["value"]), one["state"]
    yard = one.get("library")
    if yard and s.count == "launches" and value * s.share > yard["value"]:
        return (
            f"a launch takes {value / yard['value']:.2f} times as long as {yard['name']}, and at "
            f"most {1 / s.share:.2f} is accepted"
        )
    if yard and s.count != "launches" and value < s.share * yard["value"]:
        return (
            f"it is {value / yard['value']:.3f} of what {yard['name']} reached with it, and at "
            f"least {s.share:g} is required: this kernel does not reach the limit"
        )
    for name in s.lower_limits:
        other = ceilings.get(measured_name(name, state), {})
        if "value" in other and value < 0.99 * other["value"]:
            return f"it lies below {other['title']}, which is impossible"
    settled = ceilings.get(measured_name(s.name, "sustained"), {})
    stands = "value" in settled and not settled.get("failed")
    if state == "boost" and stands and value < RECOVERED * settled["value"]:
        return (
            f"it is {value / settled['value']:.3f} of the sustained one, and at least "
            f"{RECOVERED:g} is required: the clock had not recovered"
        )
    if s.statement is not None and value > s.most * s.statement.value:
        return (
            f"it is {value / s.statement.value:.2f} of what is stated ({s.statement.kind}), and "
            f"more than {s.most:g} cannot be: not all of the work was done"
        )
    return None


def _launch_mismatch(s: Sought, results: Mapping[str, VariantResult]) -> str | None:
    """Return why the number of launches in a call is wrong, or None."""
    for variant in s.variants:
        count = results[variant.name].kernels if variant.name in results else None
        if s.count == "launches" and count is not None and count != variant.sizes.get("L", 1):
            return f"a call launched {count} kernels instead of {variant.sizes.get('L', 1)}"
    return None


def code_fault(s: Sought, best: VariantResult) -> str | None:
    """Return in a sentence how the machine code contradicts the ceiling: a loop of arithmetic loads
    nothing from global memory and has its matrix instructions, a loop that reads has its loads.
    None if it does not, or cannot be read."""
    for code in best.compilation.code if best.compilation is not None else ():
        inner = code.loop_counts
        if not code.readable or s.level not in ("compute", "cache", "shared"):
            continue
        if s.level != "compute":
            if not inner.global_loads:
                return "no load is left in the loop of its machine code"
        elif inner.global_loads:
            return f"{inner.global_loads} loads are in the loop that should only compute"
        elif not (inner.vector if s.dtype == "fp32" else inner.matrix):
            unit = "multiply-add" if s.dtype == "fp32" else "matrix instruction"
            return f"no {unit} is left in the loop of its machine code"
    return None


# Copies between host and device

LINKS_SOUGHT = {
    "h2d_pinned": "host to device, pinned",
    "h2d_pageable": "host to device, pageable",
    "d2h_pinned": "device to host, pinned",
    "d2h_pageable": "device to host, pageable",
}


def link_ceilings(
    copies: Mapping[str, Mapping[int, Measured]], reason: str = ""
) -> dict[str, dict[str, Any]]:
    """Return the best rate of each kind of copy over all sizes; `reason` explains missing ones."""
    plain: dict[str, dict[str, Any]] = {}
    for name, title in LINKS_SOUGHT.items():
        text: dict[str, Any] = {"unit": "B/s", "title": title, "level": "link"}
        times = copies.get(name, {})
        if not times:
            text |= _missing("no copy gave a time", reason or "not timed")
        else:
            size = max(times, key=lambda n: n / times[n].median_s)
            samples = times[size].samples_s
            text |= {
                "value": size / times[size].median_s,
                "low": size / stats.quantile(samples, 0.95),
                "high": size / stats.quantile(samples, 0.05),
                "kind": "measured",
                "source": f"torch's copy of {size >> 20 or size / (1 << 20):g} MiB, by the host's "
                "clock until the GPU is idle",
            }
        plain[name + MEASURED] = text
    for way in ("h2d", "d2h"):
        one, other = (plain[f"{way}_{kind}{MEASURED}"] for kind in ("pinned", "pageable"))
        if "value" in one and one["value"] < 0.95 * other.get("value", 0.0):
            one |= {"failed": True, "reason": "it lies below pageable memory, which is impossible"}
    return plain


# Stored and stated ceilings


def measured_ceilings(history: History, device: str) -> Mapping[str, Ceiling] | None:
    """Return the measured ceilings of a device from its latest complete run of `workbench
    ceilings`, without those that failed validation. None if there is no such run."""
    for run in history.runs(engine="ceilings", device=device, limit=8):
        if not run.predicted and history.state(run.id) == "complete":
            return usable(run.ceilings)
    return None


def usable(ceilings: Mapping[str, Ceiling]) -> dict[str, Ceiling]:
    """Return the ceilings that were measured and passed validation, of both states."""
    return {
        name: c
        for name, c in ceilings.items()
        if name.endswith(MEASURED) and "value" in c and not c.get("failed")
    }


def stated_ceilings(device: Device) -> dict[str, dict[str, Any]]:
    """Return the ceilings that the datasheet states or that follow by arithmetic, by their names
    without the suffix of measured ones: `dram`, `cache`, `shared`, and `compute_` with each dtype.
    """
    results: dict[str, tuple[str, str, Quantity | None]] = {
        "dram": ("DRAM", "dram", device.dram),
        "cache": ("last-level cache", "cache", device.cache_bandwidth),
        "shared": ("L1 and shared memory", "shared", bank_bandwidth(device)),
    }
    for dtype, peak in device.peaks.items():
        vector = dtype == "fp32" or device.backend == METAL
        unit = "vector units" if vector else "matrix unit"
        results[f"compute_{dtype}"] = (f"{dtype.replace('_matrix', '')}, {unit}", "compute", peak)
    return {
        name: {
            **asdict(q),
            "title": title,
            "level": level,
            **({"dtype": name[8:], **device.peak_state()} if level == "compute" else {}),
        }
        for name, (title, level, q) in results.items()
        if q is not None
    }
