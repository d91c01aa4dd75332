"""Predict the time of a launch from what its code does, for kernels that declare no `work`.

`LaunchWork` is what `code/code_work.py` derives from TTGIR: operations, bytes and waits of one
program, by region: a loop's body, or a straight part between loops. A region is executed in the
longest of compute, cache, shared memory, issue, special functions, the load unit, and the latency
of one program alone; programs come in rounds over cores and residents; memory bounds the whole
launch. Where a kernel's machine code was read, which is of NVIDIA's kernels without products, issue
and latency are those of its instructions (`warp_timeline.py`). Constants that
`cost_model.Constants` has are taken from there. The others were found on tables of an H100 and an
H200 (docs/model.md); the model was compared with measured times on these two alone.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from workbench.data.record import Predicted, Resources
from workbench.device.cost_model import CODE_MODELS, CONSTANTS, LAUNCH_S, norm, require_figures
from workbench.device.hardware import Device
from workbench.device.warp_timeline import (
    FLOAT,
    MULTIPLY,
    OTHER,
    SHARED,
    SPECIAL,
    Issued,
    IssuedCode,
    WarpLatencies,
)

MODEL, ISSUED_MODEL = CODE_MODELS
NEAR_BYTES = 240 << 10  # of a core for shared memory and its cache together
LEAST_NEAR = 8 << 10  # of it that is cache whatever shared memory takes


@dataclass(frozen=True)
class CodeConstants:
    """Constants of this model alone. Cycles are of the core's clock."""

    access_slots: float = 12.0  # issue slots of a warp's access, in 4 a cycle
    copy_slots: float = 22.0  # ... of a warp's copy to shared memory
    wait_s: float = 500e-9  # of a load from memory that nothing hides
    line_cycles: float = 2.0  # of the load unit for each line of 128 bytes of an access
    atomic_cycles: float = 3.5  # ... of an atomic one
    takers: float = 0.8  # how much a further program overlaps memory and arithmetic
    drain_s: float = 600e-9  # until a program's last stores have left
    single_cycles: float = 2.0  # between two instructions of one warp
    unrolled_share: float = 0.7  # of a wait in a loop of which trips are unrolled
    hot_s: float = 2.5e-9  # between two atomic operations of one address
    shuffle_slots: float = 4.0
    descriptor_s: float = 0.8e-6  # to write a tensor descriptor and have the copy engine see it


C = CodeConstants()


@dataclass(frozen=True)
class IssuedConstants:
    """Constants of the model that reads machine code. Cycles are of one of a core's four
    schedulers, for an instruction of a warp."""

    memory_s: float = 400e-9  # until a load has its data
    cache_s: float = 150e-9  # ... that an access has brought into the cache before
    integer_cycles: float = 1.0
    multiply_cycles: float = 2.0  # of integers
    special_cycles: float = 8.0
    drain_s: float = 100e-9  # until a program's last stores have left
    sharpness: float = 2.5  # with which a part's terms overlap
    overlap: float = 2.3  # ... and memory and cores
    spills: float = 2.0  # of the seconds that spills take by themselves
    hot_s: float = 8e-9  # between two atomic operations of one address
    even_programs: float = 64.0  # of a core, from which on all cores end at once
    lag: float = 0.01  # by which a halving of these lets the last core end later


ISSUED = IssuedConstants()
SCHEDULERS = 4  # of a core
WIDEST = 512  # bytes of a warp's access to shared memory


@dataclass(frozen=True)
class RegionWork:
    """What one program does in one execution of a region."""

    amounts: Mapping[str, float]  # by kind: flops, load_bytes, vector, barriers, ...
    executions: float  # of the region by a program, in the mean over the grid
    is_loop: bool
    waits: float = 0.0  # for memory; one for the cache counts by its part of that
    wgmma: bool = False
    peak: str = ""  # of the device, that products are held to: "bf16"
    loop: int = 0  # number of the innermost loop's operation; 0 outside of all

    def get(self, kind: str) -> float:
        """Return an amount, 0 where the region has none."""
        return self.amounts.get(kind, 0.0)


@dataclass(frozen=True)
class LaunchWork:
    """What the code of one launch does."""

    programs: int
    warps: int
    stages: int
    regions: tuple[RegionWork, ...]
    memory_bytes: float  # from and to memory, with what the cache cannot keep
    least_bytes: float  # distinct ones
    rounds: float | None = None  # of unequal programs in order of their start; None: all alike
    issued_code: Issued | None = None  # by a warp, where machine code was read
    unrolled_trips: Mapping[int, int] = field(default_factory=dict)  # trips in one, by loop
    fresh: Mapping[int, float] = field(default_factory=dict)  # of loads: share that is from memory

    @property
    def flops(self) -> float:
        """Return the FLOPs of all products of the launch."""
        return self.programs * sum(r.get("flops") * r.executions for r in self.regions)


@dataclass(frozen=True)
class _Terms:
    """Seconds of one execution of a region by the programs that share a core."""

    compute: float
    cache: float
    shared_memory: float
    issue: float
    special: float
    lines: float
    latency: float

    def seconds(self) -> tuple[float, ...]:
        """Return the terms in the order of `TERMS`."""
        each = self.compute, self.cache, self.shared_memory, self.issue, self.special
        return (*each, self.lines, self.latency)


TERMS = (
    *("compute", "cache", "shared memory", "instructions", "special functions", "load unit"),
    "latency",
)
MEMORY, ATOMICS = "memory", "atomic operations"
BOUNDS = (*TERMS, MEMORY, ATOMICS)  # what may bound a time


def predict_launch(device: Device, work: LaunchWork, resources: Resources) -> Predicted:
    """Return the predicted time of one cold launch, with its terms in seconds. Raises ValueError
    where the device lacks a figure that the launch needs."""
    model = _CodeModel if work.issued_code is None else _IssuedModel
    return model(device, work, resources).predict()


def predict_each(
    device: Device, works: Sequence[LaunchWork], each: Sequence[Resources]
) -> Predicted:
    """Return the predicted time of one cold call of several launches, one after the other."""
    parts = [predict_launch(device, w, r) for w, r in zip(works, each, strict=True)]
    terms = ("predicted_s", "compute_s", "dram_s", "cache_s", "latency_s", "launch_s")
    sums = {term: sum(getattr(one, term) for one in parts) for term in terms}
    slowest = max(parts, key=lambda p: p.predicted_s)
    return Predicted(**sums, model=min(p.model for p in parts), bound=slowest.bound)


@dataclass(frozen=True)
class _CodeModel:
    """The model of one launch, from its TTGIR."""

    device: Device
    work: LaunchWork
    resources: Resources
    model: ClassVar[str] = MODEL
    hot_s: ClassVar[float] = C.hot_s

    def predict(self) -> Predicted:
        """Return the predicted time of the launch."""
        require_figures(self.device, *self._peaks())
        core = self._core_s()
        dram = self.work.memory_bytes / (self._dram * CONSTANTS.dram)
        hot = sum(r.get("hot") * r.executions for r in self.work.regions) * self.hot_s
        hot *= self.work.programs
        overlapped = norm([core, dram], self._overlap())
        total = (LAUNCH_S + norm([overlapped, hot], CONSTANTS.sharpness)) * self._lag()
        named = {**self._part_seconds(), MEMORY: dram, ATOMICS: hot}
        return Predicted(
            predicted_s=total,
            model=self.model,
            compute_s=named["compute"],
            dram_s=dram,
            cache_s=max(named[n] for n in TERMS[1:-1]),
            latency_s=named["latency"],
            launch_s=LAUNCH_S,
            bound=max(named, key=lambda name: named[name]),
        )

    def _peaks(self) -> Iterable[str]:
        return ["fp32", *(r.peak for r in self.work.regions if r.peak)]

    @property
    def _clock(self) -> float:
        assert self.device.clock_hz is not None  # `require_figures`
        return self.device.clock_hz.value

    @property
    def _dram(self) -> float:
        assert self.device.dram is not None
        return self.device.dram.value

    @property
    def _cores(self) -> int:
        return self.device.limits.cores

    @property
    def _vector_rate(self) -> float:
        """Return the operations of a thread that a core does in a second."""
        return self.device.peaks["fp32"].value / self._cores / 2

    @property
    def _cache_rate(self) -> float:
        """Return the bytes/s that one core gets from the last-level cache."""
        assert self.device.cache_bandwidth is not None
        return self.device.cache_bandwidth.value / self._cores * CONSTANTS.cache

    def _matrix_rate(self, region: RegionWork) -> float:
        peak = self.device.peaks[region.peak].value
        older = self.device.limits.arch not in ("sm_90", "sm_100", "sm_103")
        is_full = older or region.wgmma or region.peak in ("fp32", "fp64")
        share = 1.0 if is_full else CONSTANTS.old_mma
        return peak / self._cores * CONSTANTS.matrix * share

    def _resident(self) -> int:
        return resident_programs(self.device, self.work.programs, self.resources)

    def _core_s(self) -> float:
        """Return the seconds in which the cores have run all programs; what the last one ends with
        is beside memory's work."""
        return max(0.0, self._rounds_s() - CONSTANTS.tile_cycles / self._clock)

    def _rounds_s(self) -> float:
        resident, programs = self._resident(), self.work.programs
        places = resident * self._cores
        one = self._program_s(resident)
        rounds, rest = divmod(programs, places)
        last = self._program_s(max(1, math.ceil(rest / self._cores))) if rest else 0.0
        if self.work.rounds is not None and programs <= places:
            return self._longest_s(math.ceil(programs / self._cores))
        if self.work.rounds is not None:
            return self.work.rounds * one
        return rounds * one + last

    def _longest_s(self, blocks: int) -> float:
        """Return the seconds of the program with most trips; all begin and end alike."""
        many = self.work.rounds or 1.0
        regions = tuple(
            replace(r, executions=many * r.executions) if r.loop else r for r in self.work.regions
        )
        longest = replace(self, work=replace(self.work, regions=regions))
        return longest._program_s(max(1, blocks))

    def _program_s(self, blocks: int) -> float:
        """Return the seconds of one program beside others, `blocks` together on a core."""
        regions = self.work.regions
        total = sum(
            often * norm(terms.seconds(), CONSTANTS.sharpness)
            for often, terms in self._parts(blocks)
        )
        prefetched = any(r.get("copy_bytes") for r in regions)
        ends = (
            CONSTANTS.latency_s if prefetched else C.drain_s
        ) + CONSTANTS.tile_cycles / self._clock
        most = max((r.executions for r in regions), default=1.0)
        spilled = max(1.0, most) * self._spill_s(blocks)
        each = max(CONSTANTS.start_cycles, self.work.warps * CONSTANTS.start_warp_cycles)
        start = blocks * each / self._clock
        return norm([total + spilled + ends, start], CONSTANTS.sharpness)

    def _spill_s(self, blocks: int) -> float:
        """Return the seconds in which spilled registers are written and read once."""
        moved = 2.0 * blocks * self.resources.loop_spill_bytes * self.resources.threads
        if moved / 2 <= NEAR_BYTES - blocks * self.resources.shared_bytes:
            return moved / (CONSTANTS.spill_bytes_cycle * self._clock)
        return moved / (self._cache_rate / CONSTANTS.cache * CONSTANTS.spill_far)

    def _parts(self, blocks: int) -> Iterator[tuple[float, _Terms]]:
        """Yield the terms of each part of a program, with how often it is executed."""
        for region in self.work.regions:
            yield region.executions, self._terms(region, blocks)

    def _terms(self, region: RegionWork, blocks: int) -> _Terms:
        get, clock, warps = region.get, self._clock, self.work.warps
        compute = get("flops") / self._matrix_rate(region) if get("flops") else 0.0
        cache = self._cached_bytes(region, blocks) / self._cache_rate
        shared = (get("shared_bytes") + get("copy_bytes")) / CONSTANTS.shared_bytes_cycle / clock
        accesses = get("load_instructions") + get("store_instructions")
        vector = (get("vector") + C.shuffle_slots * get("shuffles")) / self._vector_rate
        vector += accesses * C.access_slots / 4 / clock
        copies = get("copy_instructions") * C.copy_slots / 4 / clock
        special = get("special") / (self._vector_rate * CONSTANTS.special_share)
        through = sum(
            max(C.line_cycles * get(f"{kind}_lines"), get(f"{kind}_bytes") / 128)
            for kind in ("load", "store", "copy")
        )
        lines = (through + C.atomic_cycles * get("atomic_lines")) / clock
        alone = compute / min(1.0, warps / 4)
        alone += max(vector + special, vector * C.single_cycles * 4 / warps)
        barrier = CONSTANTS.step_cycles + CONSTANTS.shared_cycles
        chain = CONSTANTS.step_cycles + get("barriers") * barrier + get("chain")
        latency = self._latency_s(region, alone + chain / clock, cache)
        b = blocks
        return _Terms(
            b * compute,
            b * cache,
            b * shared,
            b * (vector + copies),
            b * special,
            b * lines,
            latency,
        )

    def _cached_bytes(self, region: RegionWork, blocks: int) -> float:
        """Return the bytes that a program asks the last-level cache for: what the core's own cache
        cannot keep is asked for by every instruction."""
        near = max(LEAST_NEAR, NEAR_BYTES - blocks * self.resources.shared_bytes) / blocks
        share = min(1.0, near / max(1.0, region.get("load_whole_bytes")))
        loaded = share * region.get("load_bytes") + (1 - share) * region.get("load_apart_bytes")
        stored = region.get("copy_apart_bytes") + region.get("store_apart_bytes")
        return loaded + stored + 2 * region.get("atomic_apart_bytes")

    def _latency_s(self, region: RegionWork, alone: float, cache: float) -> float:
        """Return the seconds that one program takes if nothing else is on its core."""
        waited = region.waits * C.wait_s + region.get("descriptors") * C.descriptor_s
        if region.get("copy_bytes") and region.is_loop:
            stages = max(1, self.work.stages - 1)
            return max(alone, (CONSTANTS.latency_s + alone) / stages) + waited
        share = C.unrolled_share if region.is_loop and not region.get("barriers") else 1.0
        return alone + waited * share + cache

    def _overlap(self) -> float:
        """Return the sharpness with which memory and cores overlap: programs that wait for their
        loads and then compute, in turn, use memory all the time only if there are several."""
        regions = self.work.regions
        if any(r.get("copy_bytes") and r.is_loop for r in regions):
            return CONSTANTS.sharpness
        in_step = any(r.get("barriers") for r in regions)
        takers = self._resident() * (1 if in_step else self.work.warps)
        return min(CONSTANTS.sharpness, 1 + C.takers * (takers - 1))

    def _lag(self) -> float:
        """Return the time of the last core over that of all."""
        return 1.0

    def _part_seconds(self) -> dict[str, float]:
        """Return the seconds that each part of a core would take for the whole launch if it were
        the only limit, by its name."""
        resident = self._resident()
        rounds = self.work.programs / (resident * self._cores)
        each = list(self._parts(resident))
        sums = [rounds * sum(n * t.seconds()[i] for n, t in each) for i in range(len(TERMS))]
        return dict(zip(TERMS, sums, strict=True))


class _IssuedModel(_CodeModel):
    """The model of one launch whose machine code was read: what a warp issues, and waits for, in
    place of estimates from TTGIR."""

    model = ISSUED_MODEL
    hot_s = ISSUED.hot_s

    def _core_s(self) -> float:
        return self._rounds_s()

    def _overlap(self) -> float:
        return ISSUED.overlap

    def _lag(self) -> float:
        each = max(1.0, self.work.programs / self._cores)
        return 1 + ISSUED.lag * max(0.0, math.log2(ISSUED.even_programs / each))

    def _program_s(self, blocks: int) -> float:
        parts = self._parts(blocks)
        total = sum(often * norm(terms.seconds(), ISSUED.sharpness) for often, terms in parts)
        most = max((r.executions for r in self.work.regions), default=1.0)
        spilled = ISSUED.spills * max(1.0, most) * self._spill_s(blocks)
        total = norm([total, spilled], CONSTANTS.sharpness) + ISSUED.drain_s
        each = max(CONSTANTS.start_cycles, self.work.warps * CONSTANTS.start_warp_cycles)
        return norm([total, blocks * each / self._clock], CONSTANTS.sharpness)

    def _parts(self, blocks: int) -> Iterator[tuple[float, _Terms]]:
        issued, unrolled = self.work.issued_code, self.work.unrolled_trips
        assert issued is not None  # or `_CodeModel` times the launch
        loops = {one.number: one for one in issued.loops}
        regions: dict[int, list[RegionWork]] = defaultdict(list)
        for region in self.work.regions:
            regions[region.loop if region.loop in loops else 0].append(region)
        yield 1.0, self._part_terms(regions.pop(0, []), issued.straight, 0.0, blocks)
        for number, own in regions.items():
            loop, many = loops[number], unrolled.get(number, 1)
            trips = max(region.executions for region in own)
            code, passes = loop.trip, trips / many
            if trips < many and loop.rest is not None:
                code, passes = loop.rest, trips
            yield 1.0, self._part_terms(own, code, passes, blocks)

    def _part_terms(
        self, regions: Sequence[RegionWork], code: IssuedCode, passes: float, blocks: int
    ) -> _Terms:
        """Return the terms of regions that are executed by one code: by so many passes of a loop,
        or, with none, by straight code."""
        each = [(r.executions, self._terms(r, blocks)) for r in regions]

        def whole(name: str) -> float:
            return sum(often * float(getattr(terms, name)) for often, terms in each)

        often, clock = passes or 1.0, self._clock
        at_once = max(1.0, blocks * self.work.warps / SCHEDULERS)
        latencies = WarpLatencies(ISSUED.memory_s * clock, ISSUED.cache_s * clock)
        cycles = code.cycles(latencies, self.work.fresh, in_loop=passes > 0)
        # its loads may be narrower than their addresses allow; conversions of layouts may be moves
        accesses = C.line_cycles * self.work.warps * len(code.widths)
        most = code.counts.get(SHARED, 0) * self.work.warps * WIDEST / CONSTANTS.shared_bytes_cycle
        return _Terms(
            whole("compute"),
            whole("cache"),
            min(whole("shared_memory"), often * blocks * most / clock),
            often * at_once * self._issue_cycles(code) / clock,
            often * at_once * code.counts.get(SPECIAL, 0) * ISSUED.special_cycles / clock,
            max(whole("lines"), often * blocks * accesses / clock),
            often * cycles / clock + whole("cache") / blocks,
        )

    def _issue_cycles(self, code: IssuedCode) -> float:
        """Return the cycles in which a scheduler issues the instructions of one warp, but for those
        of special functions."""
        lanes = self._vector_rate / self._clock  # of a core
        pipes = {
            FLOAT: 32 * SCHEDULERS / lanes,
            OTHER: ISSUED.integer_cycles,
            MULTIPLY: ISSUED.multiply_cycles,
        }
        each = [code.counts.get(kind, 0) * cycles for kind, cycles in pipes.items()]
        return max(float(len(code.kinds)), *each)


def resident_programs(device: Device, programs: int, resources: Resources) -> int:
    """Return the programs that share a core while there are enough of them."""
    there = math.ceil(programs / device.limits.cores)
    return max(1, min(resources.blocks_per_core, there))
