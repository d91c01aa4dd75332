"""Analytic cost model: a time from shapes and compiled resources, for any device in `hardware.py`.

One block processes its tiles; a tile is a fill, `steps` periods of its main loop and a store.
Blocks that are resident on a core together share its matrix unit, its shared memory and its part of
the cache's bandwidth, so a period is the longest of

    compute     blocks x FLOP of a step / matrix (or vector) rate of the core
    cache       blocks x bytes of a step / the core's part of the cache bandwidth
    shared      blocks x bytes that pass through shared memory / its bandwidth
    issue       blocks x load instructions, which counts when loads are narrow, and other
                instructions of the vector units that the kernel declares
    special     blocks x exponentials, roots and reciprocals / their rate
    latency     wait of a single block: a buffer's round of load and use over the stages that
                share it, or memory latency, arithmetic and barriers in a row where loads are
                not pipelined

Tiles come in rounds of (cores x resident blocks); the last round holds the remaining tiles. Memory
traffic is a bound of its own on the whole launch. Launches of a call wait for one another, so their
times add up. The model is related to the roofline model
(Williams et al. 2009) and to Volkov's latency model (2016, chapter 4); the constants below are
ours, fitted to measured tables of one NVIDIA H200 (see docs/facts.md), and are carried over to
other devices in clock cycles and nanoseconds. Its accuracy on those was never measured.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from workbench.data.record import Predicted, Resources
from workbench.device.hardware import Device, parts_peak
from workbench.device.occupancy import occupancy
from workbench.spec import ITEMSIZE, Impl, Sizes, Work


@dataclass(frozen=True)
class Constants:
    """Constants that shapes and resources do not give. Cycles are of the core's clock."""

    latency_s: float = 760e-9  # of a load from memory or a far cache slice, under load
    step_cycles: float = 43.0  # barriers and bookkeeping of one trip
    shared_cycles: float = 29.0  # of a load from shared memory: an H100, arXiv:2402.13499
    hit_cycles: float = 263.0  # of a load that the last-level cache holds: the same source
    tile_cycles: float = 234.0  # prologue and epilogue of one tile beside their memory time
    issue_cycles: float = 22.0  # of a warp's load by hand for a tile: address, mask, pack, store
    stream_cycles: float = 7.0  # of a warp's load that stays in registers
    special_share: float = 1 / 8  # rate of exponentials over that of additions: 16 of 128 a clock
    old_mma: float = 0.48  # share of the peak of mma.sync where wgmma or tcgen05 exists
    matrix: float = 0.89  # share of the peak of a loop of matrix instructions
    parts: float = 0.38  # share of a sixth of the bf16 peak for fp32 that is split in bf16 parts
    start_cycles: float = 150.0  # least distance of two block starts on one core
    start_warp_cycles: float = 20.0  # ... and for each warp of the block
    shared_bytes_cycle: float = 128.0  # NVIDIA SM and AMD CU alike
    cache: float = 0.99  # share of the cache's bandwidth that tiles reach
    dram: float = 0.895  # share of the datasheet's bandwidth that streams reach
    spill_bytes_cycle: float = 18.0  # to the core's own cache
    spill_far: float = 0.33  # share of the last-level cache's bandwidth for further spills
    exposed_share: float = 0.49  # share of fill and store that a persistent loop does not hide
    sharpness: float = 5.6  # exponent p of the norm that joins terms: how well they overlap


CONSTANTS = Constants()
MODEL = "analytic-4"
CODE_MODELS = ("code-1", "code-2")  # of `code_model`: from TTGIR alone, and with machine code
THROUGHPUTS = ("cache", "shared memory", "instructions", "special functions")
BOUNDS = ("compute", "memory", *THROUGHPUTS, "latency")  # what may bound a time
LAUNCH_S = 0.7e-6  # of an empty launch in a graph: measured as 0.59 to 0.82 us on an H200
MOST_RESULTS = 2_000  # that are kept of a function, of 1 KB each

P = ParamSpec("P")
T = TypeVar("T")


def _keep_results(
    function: Callable[Concatenate[Device, P], T],
) -> Callable[Concatenate[Device, P], T]:
    """Return the function, which keeps its results for the device that was asked for last. Of 550
    launches of a kernel's configs 180 differ, and a prediction with its guess takes 19 us."""
    results: dict[Any, T] = {}
    whose: Device | None = None

    @wraps(function)
    def call(device: Device, /, *args: P.args, **named: P.kwargs) -> T:
        nonlocal results, whose
        if whose is not device or len(results) >= MOST_RESULTS:
            whose, results = device, {}
        known, key = results, (args, tuple(named.items()))
        if (result := known.get(key)) is None:
            result = known[key] = function(device, *args, **named)
        return result

    return call


@_keep_results
def predict(
    device: Device,
    work: Work,
    resources: Resources,
    *,
    dtype: str,
    flops: int,
    bytes_: int,
    stages: int = 1,
    constants: Constants = CONSTANTS,
) -> Predicted:
    """Return the predicted time of one cold call, with its terms in seconds.

    `flops` and `bytes_` are the Spec's for the whole call. Raises ValueError when the device's
    clock, bandwidths or peak are unknown, rather than guess them.
    """
    require_figures(device, dtype, "fp32")
    model = _Model(device, work, resources, dtype, flops, work.stages or stages, constants)
    rounds, rest = divmod(work.tiles, model.places)
    core = rounds * model.tile(model.resident)
    if rest:
        core += model.tile(math.ceil(rest / device.limits.cores))
    # An empty launch starts a block and waits for its end, too, so that counts once.
    core = max(0.0, core - constants.latency_s - constants.tile_cycles / model.clock)
    named = model.terms(bytes_)
    return Predicted(
        predicted_s=LAUNCH_S + norm([core, named["memory"]], constants.sharpness),
        model=MODEL,
        compute_s=named["compute"],
        dram_s=named["memory"],
        cache_s=max(named[term] for term in THROUGHPUTS),
        latency_s=named["latency"],
        launch_s=LAUNCH_S,
        bound=max(named, key=lambda name: named[name]),
    )


def predict_call(
    device: Device,
    works: Sequence[Work],
    resources: Sequence[Resources],
    *,
    dtype: str,
    flops: int,
    bytes_: int,
    stages: int = 1,
    constants: Constants = CONSTANTS,
) -> Predicted:
    """Return the predicted time of one cold call of several launches, each of which waits for the
    one before it: sums over the launches, and the bound of the longest.

    `works` and `resources` are of each launch in order. Launches of a call count their arithmetic
    themselves, so `flops` is that of a call of one launch. What launches pass to one another moves
    through memory as far as the cache does not hold it. Raises ValueError as `predict` does.
    """
    costs: dict[str, Any] = dict(dtype=dtype, stages=stages, constants=constants)
    if len(works) == 1:
        return predict(device, works[0], resources[0], flops=flops, bytes_=bytes_, **costs)
    least = [work.memory_bytes for work in works]
    least[0] = max(least[0], bytes_ - sum(least[1:]))
    each = [
        predict(device, work, launch, flops=0, bytes_=moved + _passed_bytes(device, work), **costs)
        for work, launch, moved in zip(works, resources, least, strict=True)
    ]
    terms = ("predicted_s", "compute_s", "dram_s", "cache_s", "latency_s", "launch_s")
    sums = {term: sum(getattr(one, term) for one in each) for term in terms}
    return Predicted(**sums, model=MODEL, bound=max(each, key=lambda one: one.predicted_s).bound)


@dataclass(frozen=True)
class LaunchResources:
    """Resources of the launches of a call."""

    largest: Resources
    launches: int = 1
    each: tuple[Resources, ...] = ()  # of every launch in order, if there are several


def predict_launches(
    device: Device,
    works: Sequence[Work] | None,
    resources: LaunchResources,
    *,
    dtype: str,
    flops: int,
    bytes_: int,
    stages: int,
) -> Predicted:
    """Return the predicted time of one cold call of a compiled config. Without declared `works` a
    launch is taken to move its least bytes; one Work is that of the largest launch, beside which
    others take the time of an empty one. Raises ValueError where the device lacks a figure, and
    where there are neither one nor as many Works as launches."""
    if works is None:
        programs = max(1, resources.largest.programs)
        works = (Work(programs, 1, bytes_ // programs // 2, bytes_ // programs // 2),)
    costs: dict[str, Any] = dict(dtype=dtype, flops=flops, bytes_=bytes_, stages=stages)
    if len(works) == 1:
        computed = predict(device, works[0], resources.largest, **costs)
        if resources.launches == 1:
            return computed
        launches_s = (resources.launches - 1) * computed.launch_s
        return replace(computed, predicted_s=computed.predicted_s + launches_s)
    if len(works) != resources.launches or len(works) != len(resources.each):
        raise ValueError(
            f"`work` describes {len(works)} launches and the call has {resources.launches}; "
            "return a Work for each, or only that of the largest"
        )
    return predict_call(device, works, resources.each, **costs)


def _passed_bytes(device: Device, work: Work) -> int:
    """Return the bytes that a launch passes on, or is passed, by way of memory."""
    passed = work.passed_bytes
    return round(passed - passed * min(1.0, device.cache.value / passed)) if passed else 0


@_keep_results
def guess(device: Device, work: Work, dtype: str, *, warps: int, stages: int) -> Resources:
    """Return estimated resources before compilation, accurate enough only to order configs."""
    if work.dot and work.by_element:
        return _guess_by_elements(device, work, dtype, warps)
    threads = warps * device.limits.warp_size
    accumulators = work.dot[0] * work.dot[1] if work.dot else work.load_bytes // 4
    registers = 48 + accumulators // threads
    spills = 4 * max(0, registers - device.limits.registers_per_thread)
    shared = work.load_bytes * max(1, stages - (device.backend == "hip")) if work.dot else 0
    return _guess_resources(device, work, dtype, warps, registers, spills, shared, 128)


def _guess_by_elements(device: Device, work: Work, dtype: str, warps: int) -> Resources:
    """Return estimated resources of a product whose rows begin anywhere: its tiles are loaded one
    element at a time, by way of registers, and are not prefetched.

    A thread holds its sums, a pointer of 64 bits and the value of each element of the left tile,
    one register less of the right tile's, as the compiler computes some of these pointers anew, and
    16 registers for all else; it spills what is more than it may have. Of 906 configs of two
    kernels in bf16 for sm_90 the spills of three in four are up to 64 bytes or within a factor of
    two of that.
    """
    assert work.dot is not None
    threads = warps * device.limits.warp_size
    m, n, k = work.dot
    needed = 16 + math.ceil((m * n + 3 * m * k + 2 * n * k) / threads)
    most = min(device.limits.registers_per_thread, device.registers_per_core // threads)
    spills = 4 * max(0, needed - most)
    bits = 8 * ITEMSIZE[dtype]
    return _guess_resources(
        device, work, dtype, warps, min(needed, most), spills, work.load_bytes, bits
    )


def _guess_resources(
    device: Device,
    work: Work,
    dtype: str,
    warps: int,
    registers: int,
    spills: int,
    shared: int,
    load_bits: int,
) -> Resources:
    threads = warps * device.limits.warp_size
    registers = min(device.limits.registers_per_thread, registers)
    fit = occupancy(device, threads=threads, registers=registers, shared_bytes=shared)
    return Resources(
        binary="",
        registers=registers,
        spill_bytes=spills,
        shared_bytes=shared,
        threads=threads,
        blocks_per_core=max(1, fit.blocks_per_core),
        occupancy=fit.fraction,
        limiter=fit.limiter,
        programs=work.tiles,
        waves=0.0,
        tail=0.0,
        load_bits=load_bits,
        matrix_unit=_guessed_unit(device, work, dtype, warps),
        compile_s=0.0,
    )


def guesses(
    impl: Impl, config: Any, device: Device, dtype: str, sizes: Sizes
) -> tuple[Resources, ...]:
    """Return estimated resources of each launch of a call before compiling; none if the kernel
    declares no work, or its `work` fails."""
    try:
        works = impl.work_of(config, device.limits, dtype, sizes) or ()
        return _guess_each(works, config, device, dtype)
    except Exception:  # of the kernel's own `work`
        return ()


def _guess_each(
    works: Sequence[Work], config: Any, device: Device, dtype: str
) -> tuple[Resources, ...]:
    warps, stages = getattr(config, "num_warps", 4), getattr(config, "num_stages", 1)
    return tuple([guess(device, work, dtype, warps=warps, stages=stages) for work in works])


def guess_seconds(impl: Impl, config: Any, device: Device, dtype: str, sizes: Sizes) -> float:
    """Return the seconds that the model predicts before compiling; infinite if it cannot."""
    try:
        predicted = estimate_time(impl, config, device, dtype, sizes)
    except Exception:  # the device lacks a figure, or the kernel's own `work` failed
        return math.inf
    return math.inf if predicted is None else predicted.predicted_s


def estimate_time(
    impl: Impl, config: Any, device: Device, dtype: str, sizes: Sizes
) -> Predicted | None:
    """Return the time that the model predicts before compiling; None if the kernel declares no
    work. Raises ValueError where the device lacks a figure, and what the kernel's `work` raises."""
    estimate = estimate_launches(impl, config, device, dtype, sizes)
    return estimate[-1] if estimate else None


def estimate_launches(
    impl: Impl, config: Any, device: Device, dtype: str, sizes: Sizes
) -> tuple[Sequence[Work], Sequence[Resources], Predicted] | None:
    """Return the work and the estimated resources of each launch of a call, and the time of all
    that the model predicts before compiling, as `estimate_time` does."""
    works = impl.work_of(config, device.limits, dtype, sizes)
    if not works:
        return None
    resources = _guess_each(works, config, device, dtype)
    predicted = predict_call(
        device,
        works,
        resources,
        dtype=dtype,
        stages=getattr(config, "num_stages", 1),
        flops=impl.spec.flops(**sizes),
        bytes_=impl.spec.bytes(sizes, dtype),
    )
    return works, resources, predicted


def _guessed_unit(device: Device, work: Work, dtype: str, warps: int) -> str | None:
    arch = device.limits.arch
    if work.dot is None or (dtype == "fp32" and not device.limits.fp32_in_parts):
        return None
    if arch.startswith("gfx"):
        return "wmma" if arch.startswith("gfx1") else "mfma"
    large = work.dot[0] >= 64 and warps % 4 == 0
    return {"sm_90": "wgmma", "sm_100": "tcgen05"}.get(arch, "mma") if large else "mma"


class _Model:
    """The model of one launch."""

    def __init__(
        self,
        device: Device,
        work: Work,
        resources: Resources,
        dtype: str,
        flops: int,
        stages: int,
        constants: Constants,
    ) -> None:
        assert device.clock_hz is not None and device.cache_bandwidth is not None
        self.device, self.work, self.resources = device, work, resources
        self.dtype, self.stages, self.constants = dtype, stages, constants
        self.clock, self.cores = device.clock_hz.value, device.limits.cores
        self.warps = max(1, resources.threads // device.limits.warp_size)
        # fewer programs than tiles, so each processes several
        self.persistent = resources.programs < work.tiles
        there = math.ceil(min(resources.programs, work.tiles) / self.cores)
        # blocks that share a core while there are enough of them
        self.resident = max(1, min(resources.blocks_per_core, there))
        # tiles in work at once on the whole device
        self.places = min(self.resident * self.cores, max(1, resources.programs))
        # bytes/s that one core gets from the last-level cache
        self.cache_rate = device.cache_bandwidth.value / self.cores * constants.cache
        self.matrix_rate = self._matrix_rate()
        # vector operations a second of one core: the fp32 peak counts a fused multiply-add as two
        self.vector_rate = device.peaks["fp32"].value / self.cores / 2
        if work.dot is None:
            self.step_flops = flops / (work.tiles * max(1, work.steps))
        else:
            m, n, k = work.dot
            self.step_flops = 2.0 * m * n * k * work.products
        self.shared_bytes = self._shared_bytes()
        self._steps: dict[int, tuple[float, ...]] = {}  # by blocks

    def _matrix_rate(self) -> float:
        """Return the FLOP/s of one core."""
        unit, peaks, c = self.resources.matrix_unit, self.device.peaks, self.constants
        if unit is None:
            return peaks["fp32"].value / self.cores
        if unit == "wgmma" and self.work.dot is not None and max(self.work.dot[:2]) < 64:
            unit = "mma"  # wgmma multiplies 64 rows; it is of another product of the kernel
        in_parts = parts_peak(self.device) if self.dtype == "fp32" else None
        peak = c.parts * in_parts.value if in_parts else peaks[self.dtype].value
        rate = peak / self.cores * c.matrix
        modern = self.device.limits.arch in ("sm_90", "sm_100", "sm_103")
        return rate * c.old_mma if unit == "mma" and modern else rate

    def _shared_bytes(self) -> float:
        """Return the bytes that a step moves through shared memory for tiles it multiplies."""
        if self.work.dot is None:
            return 0.0
        m, n, k = self.work.dot
        itemsize = self.work.load_bytes / ((m + n) * k)
        if self.work.products > 1:  # of what it has computed, more than it has loaded
            itemsize = ITEMSIZE[self.dtype]
        if self.resources.matrix_unit == "wgmma":  # each group of 64 rows reads all of b
            read = math.ceil(m / 64) * (64 + n) * k
        elif self.resources.matrix_unit == "tcgen05":
            read = (m + n) * k
        else:  # each warp reads its own rows of a and columns of b
            down = min(self.warps, max(1, m // 16))
            down = 1 << round(math.log2(max(1.0, min(down, math.sqrt(self.warps * m / n)))))
            across = max(1, self.warps // down)
            read = (across * m + down * n) * k
        return (read + (m + n) * k) * itemsize * self.work.products

    @property
    def is_pipelined(self) -> bool:
        """Return whether loads run ahead of the arithmetic, straight into shared memory."""
        wide = self.resources.copy_engine or self.resources.load_bits >= 32
        loops = self.persistent or (self.work.steps > 1 and self.work.dot is not None)
        return self.stages > 1 and wide and loops

    def step(self, blocks: int) -> tuple[float, ...]:
        """Return compute, cache, shared, issue, special, latency seconds of a step of `blocks`."""
        if blocks not in self._steps:
            self._steps[blocks] = self._step(blocks)
        return self._steps[blocks]

    def _step(self, blocks: int) -> tuple[float, ...]:
        c, filled = self.constants, min(1.0, self.warps / 4)  # of the core's four schedulers
        alone = self.step_flops / (self.matrix_rate * filled)
        compute = blocks * self.step_flops / self.matrix_rate
        cache = blocks * self.work.load_bytes / self.cache_rate
        shared = blocks * self.shared_bytes / (c.shared_bytes_cycle * self.clock)
        width = 1024 if self.resources.copy_engine else max(8, self.resources.load_bits)
        loads = self.work.load_bytes / (width / 8) / self.device.limits.warp_size
        each = c.stream_cycles if self.work.dot is None else c.issue_cycles
        issue = blocks * loads * each / 4 / self.clock + self.spills(blocks)
        vector = self.work.vector_ops / self.vector_rate
        special = self.work.special_ops / (self.vector_rate * c.special_share)
        beside = (vector + special) / filled
        own = max(alone, beside) if self.work.overlapped else alone + beside
        own += (c.step_cycles + self.work.barriers * self.barrier_cycles) / self.clock
        if self.is_pipelined:
            # a buffer is filled (latency), used (own), and only then filled again
            latency = max(own, (c.latency_s + own) / (self.stages - 1))
        else:
            loaded = self.work.waits * c.latency_s if self.work.load_bytes else 0.0
            loaded += self.work.hits * c.hit_cycles / self.clock
            latency = loaded + own + (cache + issue) / blocks
        return compute, cache, shared, issue + blocks * vector, blocks * special, latency

    @property
    def barrier_cycles(self) -> float:
        """Return the cycles that a block waits at a barrier, and for the access to shared memory
        that the barrier orders."""
        return self.constants.step_cycles + self.constants.shared_cycles

    def spills(self, blocks: int) -> float:
        """Return the seconds of a step's spilled registers: written and read once, in the core's
        own cache while they fit beside shared memory, in the last-level cache otherwise."""
        assert self.device.cache_bandwidth is not None
        moved = 2.0 * blocks * self.resources.loop_spill_bytes * self.resources.threads
        near = self.device.shared_per_core - blocks * self.resources.shared_bytes
        if moved / 2 <= near:
            return moved / (self.constants.spill_bytes_cycle * self.clock)
        return moved / (self.device.cache_bandwidth.value / self.cores * self.constants.spill_far)

    def tile(self, blocks: int) -> float:
        """Return the seconds of one round: `blocks` tiles beside each other on a core."""
        c = self.constants
        period = norm(self.step(blocks), c.sharpness)
        store = blocks * self.work.store_bytes / self.cache_rate
        ends = c.latency_s + c.tile_cycles / self.clock + store
        if self.persistent:
            ends *= c.exposed_share
            return self.work.steps * period + ends
        start = blocks * max(c.start_cycles, self.warps * c.start_warp_cycles) / self.clock
        return norm([self.work.steps * period + ends, start], c.sharpness)

    def terms(self, bytes_: int) -> dict[str, float]:
        """Return the seconds that each resource would take for the whole launch if it were the only
        limit, by its name."""
        assert self.device.dram is not None
        rounds = self.work.tiles / self.places
        compute, *others = (rounds * self.work.steps * t for t in self.step(self.resident))
        dram = self.dram_bytes(bytes_) / (self.device.dram.value * self.constants.dram)
        return dict(zip(BOUNDS, (compute, dram, *others), strict=True))

    def dram_bytes(self, least: int) -> float:
        """Return the bytes from and to memory: the least, plus what the cache could not keep for
        rounds of tiles that read it again."""
        work = self.work
        requested_bytes = work.tiles * (work.steps * work.load_bytes + work.store_bytes)
        if work.dot is None:  # a second walk over a tile finds what the others left of it
            alive = self.places * requested_bytes / work.tiles
            share = min(1.0, self.device.cache.value / alive) if alive else 1.0
            return least + (1 - share) * max(0.0, requested_bytes - least)
        if least <= self.device.cache.value:
            return float(least)
        m, n, k = work.dot
        itemsize = work.load_bytes / ((m + n) * k)
        places = self.places
        down = min(work.band, places)
        across = math.ceil(places / down)
        wave = (down * m + across * n) * k * work.steps * itemsize
        return max(float(least), work.tiles / places * wave + work.tiles * work.store_bytes)


def norm(terms: Sequence[float], p: float) -> float:
    """Return a value between the sum (p = 1) and the maximum (p = infinity) of these terms."""
    top = max(terms)
    return top * sum([(t / top) ** p for t in terms]) ** (1 / p) if top > 0 else 0.0


def require_figures(device: Device, *peaks: str) -> None:
    """Raise ValueError where clock, bandwidths or one of these peaks of a device are unknown."""
    figures = [device.clock_hz, device.dram, device.cache_bandwidth, *map(device.peaks.get, peaks)]
    if None in figures:
        names = ("clock", "memory bandwidth", "cache bandwidth", *(f"{one} peak" for one in peaks))
        each = zip(names, figures, strict=True)
        missing = dict.fromkeys(name for name, value in each if value is None)
        raise ValueError(f"the {', '.join(missing)} of {device.title} is unknown: no prediction")
