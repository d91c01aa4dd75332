"""Derive from the code of a launch what it does: `LaunchWork`, which `device/code_model.py` times.

Two walks of the TTGIR: one of all programs by the first elements of their tensors, for trips and
for the tiles that programs share; one of three programs or some more in full.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from workbench.code.program_values import LaunchArguments
from workbench.code.program_walk import CostWalk, FirstElementWalk, Region
from workbench.code.ttgir import Function, read_ttgir
from workbench.data.record import Resources
from workbench.device.code_model import LaunchWork, RegionWork, resident_programs
from workbench.device.hardware import Device
from workbench.device.warp_timeline import Issued, IssuedCode

FILES = (
    *("block_descriptors", "code_work", "issued_code", "program_slices", "program_values"),
    *("program_walk", "ttgir", "ttgir_layouts", "warp_code"),
)
SAMPLES = 3  # programs that are walked in full, at least
MOST = 1 << 15  # programs whose first addresses are computed; of a larger grid, evenly spaced ones
ALIKE = 0.02  # standard deviation of programs' work over its mean, up to which all are alike
HIT = 0.3  # of a wait for memory, for data that the cache holds: 150 of 500 ns
FEW = 4  # trips of a loop that counts as straight code where the machine code does not show it
NEAR = 1 << 24  # bytes between accesses of one tensor that may be of the same tiles


def code_files() -> tuple[Path, ...]:
    """Return the files whose text decides what is derived."""
    return tuple(Path(__file__).with_name(f"{name}.py") for name in FILES)


def places_of(grid: Sequence[int], numbers: Any) -> tuple[Any, Any, Any]:
    """Return the places along three axes of programs by their numbers, the first axis fastest."""
    x, y, _ = (*grid, 1, 1)[:3]
    return numbers % x, numbers // x % y, numbers // (x * y)


def launch_work(
    ttgir: str,
    grid: Sequence[int],
    given: LaunchArguments,
    device: Device,
    resources: Resources,
    stages: int,
    issued: Issued | None = None,
) -> LaunchWork:
    """Return what the code of a launch does, with what `issued_code` read from its machine code.
    Raises NotModelled where that cannot be derived."""
    function = read_ttgir(ttgir)
    programs = math.prod(grid)
    firsts, full, many = _walk(function, grid, given)
    places = resident_programs(device, programs, resources) * device.limits.cores
    traffic = _MemoryTraffic(full, firsts, given, many, programs, places)
    moved, least = traffic.bytes(device.cache.value)
    fresh = traffic.fresh()
    regions = tuple(_regions(full, firsts, fresh))
    unrolled = _unroll_counts(issued, regions, full) if issued else None
    return LaunchWork(
        programs,
        function.warps,
        stages,
        regions,
        moved,
        least,
        _rounds(full, firsts, programs, places),
        issued if unrolled is not None else None,
        unrolled or {},
        fresh,
    )


def distinct_bytes(ttgir: str, grid: Sequence[int], given: LaunchArguments) -> tuple[float, float]:
    """Return the distinct bytes that all programs of a launch read, and those that they write; an
    atomic operation does both. Raises NotModelled where that cannot be derived."""
    firsts, full, many = _walk(read_ttgir(ttgir), grid, given)
    traffic = _MemoryTraffic(full, firsts, given, many, math.prod(grid), 1)
    return traffic.distinct("load", "copy", "atomic"), traffic.distinct("store", "atomic")


def _walk(
    function: Function, grid: Sequence[int], given: LaunchArguments
) -> tuple[FirstElementWalk, CostWalk, Any]:
    """Return both walks, and the programs of the first one."""
    programs = math.prod(grid)
    few = np.unique(np.linspace(0, programs - 1, SAMPLES + 2).astype(np.int64)[1:-1])
    many = np.unique(np.linspace(0, programs - 1, min(programs, MOST)).astype(np.int64))
    firsts = FirstElementWalk(function, places_of(grid, many), grid, given)
    full = CostWalk(function, places_of(grid, _covering(few, many, firsts)), grid, given)
    return firsts, full, many


def _unroll_counts(
    issued: Issued, regions: Sequence[RegionWork], full: CostWalk
) -> dict[int, int] | None:
    """Return how many trips of each loop the compiler merged into one. None where a loop is neither
    in the machine code nor resolved, or has no access to count trips by."""
    loops: dict[int, dict[int, float]] = defaultdict(dict)  # bytes of each access, by loop
    for number, site in full.sites.items():
        loops[_loop_of(site.region)][number] = site.thread_bytes
    trips = {
        one.number: sum(one.trip.widths) / (sum(loops[one.number].values()) or math.inf)
        for one in issued.loops
    }
    for region in regions:
        n, is_small = region.loop, region.executions <= FEW
        is_resolved = _resolved_trips(issued.straight, loops[n]) >= region.executions / 2
        if n and not is_small and not (loops[n] and (n in trips or is_resolved)):
            return None
    return {n: max(1, round(many)) for n, many in trips.items()}


def _resolved_trips(straight: IssuedCode, loads: Mapping[int, float]) -> float:
    """Return how many trips of a loop straight code has, by the bytes that a thread accesses in a
    trip. Accesses whose operation is not known count, too."""
    each = zip(straight.sites, straight.widths, strict=True)
    accessed = sum(width for site, width in each if site in loads or not site)
    return accessed / (sum(loads.values()) or math.inf)


def _loops(region: Region) -> list[int]:
    """Return the numbers of the loops around a region, the outermost first."""
    return [part for part in region if isinstance(part, int)]


def _loop_of(region: Region) -> int:
    """Return the number of the innermost loop around a region, 0 outside of all."""
    return _loops(region)[-1] if _loops(region) else 0


def _covering(few: Any, many: Any, firsts: FirstElementWalk) -> Any:
    """Return the few programs and, for each region that none of them executes and others do, one
    that does: evenly spaced programs can all be the short ones, as rows of a causal mask are."""
    chosen = [int(n) for n in few]
    for runs in firsts.runs.values():
        each = np.broadcast_to(runs, (len(many),))
        alive = np.flatnonzero(each > 0)
        at = np.searchsorted(many, chosen).clip(max=len(many) - 1)
        if alive.size and not (each[at] > 0).any():
            usual = alive[np.argsort(each[alive], kind="stable")[alive.size // 2]]
            chosen.append(int(many[usual]))
    return np.unique(np.array(chosen, dtype=np.int64))


def _regions(
    full: CostWalk, firsts: FirstElementWalk, fresh: Mapping[int, float]
) -> list[RegionWork]:
    """Return the regions that programs execute, with the amounts of one execution."""
    results, waits = [], _waits(full, fresh)
    outer = {_loop_of(region[: region.index(n)]) for region in full.tally for n in _loops(region)}
    for region, tally in full.tally.items():
        runs = _mean(full.runs[region]) if region in full.runs else 1.0
        if runs <= 0:
            continue
        executions = _mean(firsts.runs[region]) if region in firsts.runs else runs
        amounts = {kind: amount / runs for kind, amount in tally.sums.items()}
        loop = _loop_of(region)
        is_loop = bool(loop) and (region[-1] == loop or loop not in outer)
        facts = executions, is_loop, waits[region], tally.wgmma, tally.peak, loop
        results.append(RegionWork(amounts, *facts))
    return results


def _waits(full: CostWalk, fresh: Mapping[int, float]) -> dict[Region, float]:
    """Return for how many loads in a row an execution of each region waits: a load of a branch
    counts as often as it is executed. Where tiles are prefetched, only few data are waited for, and
    what the cache has counts by its part."""
    result: dict[Region, float] = defaultdict(float)
    for number, site in full.sites.items():
        runs = float(np.sum(full.runs.get(site.region, site.executions)))
        waits = site.waits * min(1.0, site.executions / max(1e-9, runs))
        if full.tally[site.region].sums.get("copy_bytes", 0.0) > 0:
            waits *= HIT + (1 - HIT) * fresh.get(number, 1.0)
        result[site.region] = max(result[site.region], waits)
    return result


def _mean(values: Any) -> float:
    return float(np.mean(values))


def _rounds(full: CostWalk, firsts: FirstElementWalk, programs: int, places: int) -> float | None:
    """Return after how many times a mean program's seconds all programs have run, each place taking
    the next in order; None where they do as much work as one another."""
    uneven = _shares(full, firsts)
    if uneven is None or len(uneven) < 2 or uneven.std() < ALIKE:
        return None
    if programs <= places:
        return float(uneven.max())
    free = [0.0] * min(places, len(uneven))
    for share in uneven * (programs / len(uneven)):
        heapq.heapreplace(free, free[0] + float(share))
    return max(free)


def _shares(full: CostWalk, firsts: FirstElementWalk) -> Any:
    """Return each program's work over the mean one, by its executions of the loop with most work;
    None without a loop."""

    def amount(region: Region) -> float:
        sums = full.tally[region].sums
        moved = sums.get("load_bytes", 0.0) + sums.get("copy_bytes", 0.0)
        return sums.get("flops", 0.0) / 1e3 + sums.get("vector", 0.0) + moved

    regions = [region for region in full.tally if region and region in firsts.runs]
    if not regions:
        return None
    runs = np.broadcast_to(firsts.runs[max(regions, key=amount)], (firsts.programs,))
    return runs / max(1e-9, runs.mean())


class _Tiles:
    """Accesses of one tensor that may be of the same tiles: the first address and the bytes of
    each program."""

    def __init__(self, argument: str, what: str, first: int, addresses: Any, each: Any):
        self.argument, self.what, self.first = argument, what, first
        self.is_written = what in ("store", "atomic")
        self.addresses, self.each = addresses, each
        self.again = 0.0  # bytes of further accesses of the same data

    def joins(self, other: _Tiles) -> bool:
        """Return whether another access is of neighbours of these tiles, as the taps of a
        convolution are."""
        alike = self.argument == other.argument and self.is_written == other.is_written
        near = abs(self.first - other.first) < NEAR
        return alike and near and bool(np.isclose(self.each.mean(), other.each.mean(), rtol=0.02))


class _MemoryTraffic:
    """Bytes that a launch moves from and to memory."""

    def __init__(
        self,
        full: CostWalk,
        firsts: FirstElementWalk,
        given: LaunchArguments,
        many: Any,
        programs: int,
        places: int,
    ) -> None:
        self._full, self._firsts, self._given = full, firsts, given
        self._many, self._programs, self._places = many, programs, places
        self._scale = programs / len(many)
        self._groups = self._group_tiles()

    def bytes(self, cache: float) -> tuple[float, float]:
        """Return the bytes with tiles that a later round of programs reads again where the cache
        cannot hold all, and those of distinct tiles."""
        turn = (np.arange(len(self._many)) * self._scale // max(1, self._places)).astype(np.int64)
        distinct: dict[str, float] = {}
        by_round: dict[str, float] = {}
        again = alive = 0.0
        for tiles in self._groups:
            turns = np.tile(turn, len(tiles.each) // len(turn))
            name, own = tiles.argument, self._distinct(tiles, 0 * turns)
            distinct[name] = distinct.get(name, 0.0) + own
            by_round[name] = by_round.get(name, 0.0) + self._distinct(tiles, turns)
            again += tiles.again * self._scale
            each = float(tiles.each.sum()) / len(self._many)
            alive += min(own, each * min(self._places, self._programs))  # in one walk
        least = {n: min(b, self._given.tensors.get(n, b)) for n, b in distinct.items()}
        total = sum(least.values())
        moved = total
        if total > cache:
            moved = sum(max(least[n], by_round[n]) for n in least)
        kept = float(np.clip(1.5 - alive / cache, 0.0, 1.0))
        return moved + (1 - kept) * again, total

    def distinct(self, *kinds: str) -> float:
        """Return the distinct bytes that accesses of these kinds are of."""
        sums: dict[str, float] = defaultdict(float)
        for tiles in (each for each in self._groups if each.what in kinds):
            sums[tiles.argument] += self._distinct(tiles, np.zeros(len(tiles.each)))
        return sum(min(b, self._given.tensors.get(n, b)) for n, b in sums.items())

    def fresh(self) -> dict[int, float]:
        """Return for each load the share of its bytes that no access has brought into the cache
        before, by the number of its operation."""
        result: dict[int, float] = {}
        seen: dict[tuple[str, int], float] = {}
        for number, tiles, requested in self._accesses():
            if tiles.is_written:
                continue
            size = self._given.tensors.get(tiles.argument, math.inf)
            bytes_ = min(size, self._distinct(tiles, np.zeros(len(tiles.each), np.int64)))
            key = tiles.argument, tiles.first
            new = max(0.0, bytes_ - seen.get(key, 0.0))
            result[number] = min(1.0, new / max(1.0, requested))
            seen[key] = max(bytes_, seen.get(key, 0.0))
        return result

    def _distinct(self, tiles: _Tiles, turns: Any) -> float:
        """Return the bytes of a tile's first access in each turn."""
        order = np.lexsort((-tiles.each, tiles.addresses, turns))
        new = np.diff(tiles.addresses[order]) != 0
        first = np.r_[True, new | (np.diff(turns[order]) != 0)]
        scale = self._scale if first.mean() > 0.5 else 1
        return float(tiles.each[order][first].sum()) * scale

    def _group_tiles(self) -> list[_Tiles]:
        groups: dict[tuple[str, bool, int], _Tiles] = {}
        for _, tiles, _ in self._accesses():
            _put(groups, tiles)
        return list(groups.values())

    def _accesses(self) -> Iterator[tuple[int, _Tiles, float]]:
        """Yield each access by its number, with the bytes that all programs ask it for."""
        for number, site in self._firsts.sites.items():
            known = self._full.sites.get(number)
            if known is None or not known.executions:
                continue
            each = known.sector_bytes / known.executions
            if site.what in ("load", "copy"):
                each *= self._full.distinct_share(known.region, known.argument)
            executed = np.broadcast_to(site.executions, (len(self._many),))
            addresses = site.addresses
            counted = each * (executed if site.moves else np.minimum(executed, 1))
            tiles = _Tiles(known.argument, site.what, int(addresses[0]), addresses, counted)
            yield number, tiles, float((each * executed).sum()) * self._scale


def _put(groups: dict[tuple[str, bool, int], _Tiles], tiles: _Tiles) -> None:
    """Enter an access among those of the same tiles."""
    key = tiles.argument, tiles.is_written, tiles.first
    if key not in groups:
        near = next((other for other in groups.values() if other.joins(tiles)), None)
        if near is not None:
            near.addresses = np.r_[near.addresses, tiles.addresses]
            near.each = np.r_[near.each, tiles.each]
            return
    elif groups[key].each.mean() >= tiles.each.mean():
        groups[key].again += float(tiles.each.sum())
        return
    else:
        tiles.again = groups[key].again + float(groups[key].each.sum())
    groups[key] = tiles
