"""Walk a kernel's TTGIR for some programs of a launch, and count what one program does.

Loops are not run: their trips are computed, and at most six of them are walked, with weights: the
first, the last four, where prefetches past the end are masked, and the middle one of the others.
Integers that a loop carries are taken to grow by as much in each trip as in the first.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import log2, prod
from typing import Any

import numpy as np

from workbench.code.program_slices import ACCESSES, every_op, needed_values
from workbench.code.program_values import (
    LaunchArguments,
    LoopHead,
    ProgramValues,
    Value,
    broadcast_weights,
)
from workbench.code.ttgir import (
    BLOCK,
    Function,
    NotModelled,
    Op,
    TensorType,
    pointer_type,
    types_in,
)
from workbench.code.ttgir_layouts import Layouts

SLOTS = 6  # trips of a loop that are walked
MOST_TRIPS = 512  # of a loop whose end is computed in it
IN_TURN = 128  # trips that are walked of a loop that chooses its addresses trip by trip: 0.4 s
Region = tuple[Any, ...]  # the loops around an operation, and the part of the innermost one

# Instructions of a thread for each element that it holds: vector operations, special functions.
COSTS: Mapping[str, tuple[float, float]] = {
    **{"exp2": (1, 1), "exp": (2, 1), "log": (4, 1), "log2": (2, 1), "sqrt": (4, 1)},
    **{"rsqrt": (3, 1), "divf": (6, 1), "erf": (22, 1), "sin": (12, 2), "cos": (12, 2)},
    **{
        "tanh": (6, 2),
        "precise_sqrt": (8, 1),
        "precise_divf": (12, 1),
        "approx_divf": (2, 1),
        "truncf": (0.6, 0),
    },
    **{"fp_to_fp": (2, 0), "sitofp": (2, 0), "uitofp": (2, 0), "fptosi": (2, 0)},
    **{"fptoui": (2, 0), "divsi": (16, 1), "remsi": (18, 1), "divui": (14, 1)},
    **{"remui": (16, 1), "negf": (0.5, 0), "absf": (0.5, 0), "extern_elementwise": (12, 1)},
}
INTEGER = 0.3  # ... for one of addresses and masks, of which the compiler computes few
# Operations of shared memory, of waiting and of shapes, which are counted elsewhere or cost nothing
FREE = frozenset(
    (
        *("constant", "make_range", "splat", "unsplat", "expand_dims", "broadcast", "reshape"),
        *("trans", "get_program_id", "get_num_programs", "local_dealloc", "async_commit_group"),
        *("fence_async_shared", "warp_group_dot_wait", "memdesc_index", "memdesc_subslice"),
        *("memdesc_subview", "memdesc_trans", "memdesc_reshape", "barrier", "assume", "assert"),
        *("print", "poison", "extsi", "extui", "trunci", "index_cast", "bitcast", "ptr_to_int"),
        *("int_to_ptr", "global_scratch_alloc", "barrier_expect", "async_tma_store_wait"),
        *("init_barrier", "inval_barrier", "reinterpret_tensor_descriptor"),
        *("grid_dependency_wait", "grid_dependency_launch_dependents"),
        "tensormap_fenceproxy_acquire",
    )
)


@dataclass
class FirstElementSite:
    """An access of all programs, by the first element of its tensor of pointers."""

    what: str
    addresses: Any  # by program: the first one's, or a lower one of a loop that walks backwards
    executions: Any  # by program
    region: Region
    moves: bool = False  # later executions have other addresses


@dataclass
class AccessSite:
    """An access of the sampled programs: bytes in sectors, over all executions."""

    what: str
    argument: str
    region: Region
    thread_bytes: float = 0.0  # of each execution, whatever its mask says
    waits: int = 0  # of a load: itself and the loads before it whose data it needs
    sector_bytes: float = 0.0
    executions: float = 0.0


class SampledWalk(ProgramValues):
    """A walk that samples the trips of loops."""

    def __init__(
        self, function: Function, pids: Sequence[Any], grid: Sequence[int], given: LaunchArguments
    ) -> None:
        """Walk all of the kernel."""
        super().__init__(function, pids, grid, given)
        self.region: Region = ()
        self.runs: dict[Region, Any] = defaultdict(float)  # executions of a region by program
        self._parts: dict[Region, int] = defaultdict(int)
        self._needed = needed_values(function)
        self._depth: dict[str, tuple[Region, int]] = {}
        self.runs[()] = self.weight.copy()
        self.block(function.body)

    def here(self) -> Region:
        """Return the region: the loops around, and the part between loops of the innermost."""
        part = self._parts.get(self.region)
        return (*self.region, f"after {part}") if part else self.region

    def leave(self, op: Op) -> None:
        """Begin another part of the region: a loop or a branch lies between. What a trip does after
        a branch overlaps with what it does before."""
        if self.region and op.name == "scf.if":
            return
        self._parts[self.region] += 1
        self.runs[self.here()] = self.runs[self.here()] + self.weight

    def content(self, op: Op, pointers: Value) -> Value:
        """Return what a load of known integers gives, where an address depends on it."""
        return super().content(op, pointers) if self._needed.intersection(op.results) else None

    def level(self, name: str) -> int:
        """Return how many loads in a row a value waits for, from the start of this part."""
        where, deep = self._depth.get(name, (None, 0))
        return deep if where == self.here() else 0

    def step(self, op: Op) -> None:
        """Walk one operation, and note for how many loads in a row its result waits."""
        super().step(op)
        deep: tuple[Region, int] = (), 0
        if not op.name.startswith("scf."):
            waits = max((self.level(n) for n in op.operands), default=0)
            deep = self.here(), waits + (op.word == "load")
        for name in op.results:
            self._depth[name] = deep

    def loop(self, op: Op, head: LoopHead) -> None:
        """Walk some trips of a loop, with weights."""
        trips, outer, place = head.trips, self.weight, self.region
        start = [self.env.get(b) for _, b in head.pairs]
        self.region = region = (*self.here(), op.number)
        walk = self._walk_in_turn if self._is_uneven(op, head) else self._walk_samples
        ended = walk(op, head, start, outer)
        self.runs[region] = self.runs[region] + outer * trips
        self.region, self.weight = place, outer
        for name, value in zip(op.results, ended, strict=False):
            self.env[name] = value

    def _walk_samples(
        self, op: Op, head: LoopHead, start: Sequence[Value], outer: Any
    ) -> list[Value]:
        """Walk the first trip, one in the middle and the last ones; return what the loop yields,
        whose values grow evenly."""
        trips = head.trips
        ended = self._trip(op, head, start, 0 * trips, (trips > 0) * outer)
        growth = [_less(after, before) for before, after in zip(start, ended, strict=False)]
        growth += [None] * (len(start) - len(growth))
        for slot in range(1, SLOTS):
            few = trips <= SLOTS
            places = [0, (trips - 4) // 2, trips - 4, trips - 3, trips - 2, trips - 1]
            at = np.where(few, slot, places[slot])
            weight = np.where(few, slot < trips, [1, trips - 5, 1, 1, 1, 1][slot]) * outer
            if weight.any():
                self._trip(op, head, _grow(start, growth, at), at, weight)
        return _grow(start, growth, trips)

    def _walk_in_turn(
        self, op: Op, head: LoopHead, start: Sequence[Value], outer: Any
    ) -> list[Value]:
        """Walk the first trips one by one, in place of all; return what the last yields."""
        values, walked = list(start), np.minimum(head.trips, IN_TURN)
        share = head.trips / np.maximum(1, walked) * outer
        for at in range(int(walked.max())):
            values = self._trip(op, head, values, at + 0 * walked, (at < walked) * share)
        return values

    def _is_uneven(self, op: Op, head: LoopHead) -> bool:
        """Return whether a loop chooses addresses trip by trip, as one does that walks the tiles of
        a persistent program in one row with their steps: its carried integers do not grow evenly.
        """
        body = op.regions[0]
        known = {name: each for each in body for name in each.results}
        waiting = [
            passed
            for (name, _), passed in zip(head.pairs, body[-1].operands, strict=False)
            if name in self._needed
        ]
        seen: set[str] = set()
        while waiting:
            name = waiting.pop()
            if (source := known.get(name)) is None or name in seen:
                continue
            seen.add(name)
            if source.word in ("select", "if"):
                return True
            waiting += source.operands
        return False

    def _trip(
        self, op: Op, head: LoopHead, carried: Sequence[Value], at: Any, weight: Any
    ) -> list[Value]:
        """Walk one trip; return what it yields."""
        self.weight = weight * 1.0
        self._parts.pop(self.region, None)
        self.env[head.index] = head.start + head.stride * at
        self._depth[head.index] = (), 0
        for (name, _), value in zip(head.pairs, carried, strict=True):
            self.env[name], self._depth[name] = value, ((), 0)
        return self.block(op.regions[0])

    def loop_until(self, op: Op) -> None:
        """Walk all trips of a loop whose end is computed in it. Raises NotModelled where that
        depends on data that is not given, or where there are too many."""
        pairs = re.findall(r"(%[\w.$-]+) = (%[\w.#$-]+)", op.text.split(" : ")[0])
        values: list[Value] = [self.env.get(b) for _, b in pairs]
        outer, place = self.weight, self.region
        self.region = (*self.here(), op.number)
        alive, total = outer.copy(), 0.0 * outer
        first = op.regions[1][:1]
        labels = first[0].results if first and first[0].name == BLOCK else []
        for _ in range(MOST_TRIPS):
            self.weight = alive
            self._enter([name for name, _ in pairs], values)
            condition, *passed = self.block(op.regions[0])
            if condition is None:
                raise NotModelled("a loop ends when data that is not given says so")
            alive = alive * (np.broadcast_to(condition, (self.programs,)) != 0)
            total = total + alive
            if not alive.any():
                break
            self.weight = alive
            self._enter(labels, passed)
            values = self.block(op.regions[1])
        else:
            raise NotModelled(f"a loop of more than {MOST_TRIPS} trips that ends by its own test")
        self.runs[self.region] = self.runs[self.region] + total
        self.region, self.weight = place, outer
        self._enter(op.results, passed)

    def _enter(self, names: Sequence[str], values: Sequence[Value]) -> None:
        for name, value in zip(names, values, strict=False):
            self.env[name], self._depth[name] = value, ((), 0)

    def either(self, op: Op) -> Any:
        """Return one half where neither side reads, writes or multiplies. Raises NotModelled where
        one does."""
        inner = every_op(each for region in op.regions for each in region)
        if any(each.word in HEAVY for each in inner):
            raise NotModelled("a branch depends on data that is not given")
        return np.array([0.5])


HEAVY = (*ACCESSES, "dot", "warp_group_dot")


def _less(after: Value, before: Value) -> Value:
    return None if after is None or before is None else after - before


def _grow(start: Sequence[Value], growth: Sequence[Value], trips: Any) -> list[Value]:
    """Return what a loop carries after some trips."""
    return [
        None if s is None or g is None else s + g * broadcast_weights(trips, s, g)
        for s, g in zip(start, growth, strict=True)
    ]


class FirstElementWalk(SampledWalk):
    """A walk in which a tensor is its first element only, so that thousands of programs cost
    little: trips and first addresses of every program."""

    firsts = True

    def __init__(
        self, function: Function, pids: Sequence[Any], grid: Sequence[int], given: LaunchArguments
    ) -> None:
        self.sites: dict[int, FirstElementSite] = {}
        super().__init__(function, pids, grid, given)

    def access(self, op: Op, pointers: Value, mask: Value, what: str) -> None:
        """Note the first address of each program, and whether later trips have others. Raises
        NotModelled where an address depends on data that is not given."""
        if pointers is None:
            raise NotModelled("an address depends on data that is not given")
        firsts = _firsts(pointers, self.programs)
        if op.number not in self.sites:
            self.sites[op.number] = FirstElementSite(what, firsts, self.weight.copy(), self.here())
            return
        site, live = self.sites[op.number], self.weight
        if mask is not None:
            first = mask.reshape(len(mask), -1)[:, 0]
            live = live * np.broadcast_to(first, (self.programs,))
        site.executions = site.executions + live
        site.moves |= bool(((firsts != site.addresses) & (live > 0)).any())
        lowest = np.minimum(site.addresses, firsts)
        site.addresses = np.where(live > 0, lowest, site.addresses)


def _firsts(pointers: Any, programs: int) -> Any:
    """Return the first address of each program."""
    flat = pointers.reshape(len(pointers), -1)[:, 0]
    return np.broadcast_to(flat, (programs,))


@dataclass
class Tally:
    """Means of what one program does in one region, over all its executions."""

    sums: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    blocks: set[int] = field(default_factory=set)  # loads of blocks, each of which is waited for
    wgmma: bool = False
    item_bytes: float = 0.0  # of the operands of products, the largest
    peak: str = ""  # their dtype as the device's peaks name it


class CostWalk(SampledWalk):
    """A walk of few programs with all their addresses and masks, which counts what they do."""

    def __init__(
        self, function: Function, pids: Sequence[Any], grid: Sequence[int], given: LaunchArguments
    ) -> None:
        self.layouts = Layouts(function.layouts, function.warps, function.lanes)
        self.threads = function.warps * function.lanes
        self.tally: dict[Region, Tally] = defaultdict(Tally)
        self.sites: dict[int, AccessSite] = {}
        self._sectors: dict[tuple[Region, str], list[Any]] = defaultdict(list)
        self._counted: dict[Any, tuple[float, ...]] = {}
        super().__init__(function, pids, grid, given)

    def add(self, what: str, amount: Any) -> None:
        """Add to what one program does here, in the mean."""
        self.tally[self.here()].sums[what] += float(np.mean(amount * self.weight))

    def distinct_share(self, region: Region, argument: str) -> float:
        """Return the part of a program's loads of a tensor in one region that others of them do
        not repeat."""
        parts = self._sectors.get((region, argument), [])
        total = sum(len(p) for p in parts)
        if len(parts) < 2 or not total:
            return 1.0
        return len(np.unique(np.concatenate(parts))) / total

    # Accesses

    def access(self, op: Op, pointers: Value, mask: Value, what: str) -> None:
        """Count the bytes, lines and instructions of an access. Raises NotModelled where an address
        depends on data that is not given."""
        if pointers is None:
            raise NotModelled("an address depends on data that is not given")
        kind, here = pointer_type(op), self.here()
        one = TensorType((1,), kind.element, "") if not kind.shape else kind
        counts = np.array([self._count(one, kind, pointers, mask, i) for i in range(self.programs)])
        sectors, lines, instructions, apart, whole = counts.T
        is_block = op.word.startswith("async_tma")
        if is_block:  # the copy engine moves it: no thread's instruction, no line of the load unit
            lines, instructions, apart, whole = 0 * lines, 0 * lines, sectors, 0 * lines
            if what != "copy":  # copies' are counted beside their other bytes
                self.add("shared_bytes", sectors * 32.0)
        elif what == "load" and kind.shape:  # what several warps hold is loaded by each of them
            copies = self.layouts.warp_copies(kind)
            lines, instructions = lines * copies, instructions * copies
        if what == "load" and is_block:
            self.tally[here].blocks.add(op.number)
        name = self.tensor_of(pointers) or ""
        if what in ("load", "copy") and self.weight[-1]:
            last = np.broadcast_to(pointers[-1], one.shape)
            on = None if mask is None else np.broadcast_to(mask[-1], one.shape) != 0
            self._sectors[here, name].append(np.unique((last if on is None else last[on]) >> 5))
        self.add(f"{what}_bytes", sectors * 32.0)
        self.add(f"{what}_lines", lines)
        self.add(f"{what}_apart_bytes", apart * 32.0)
        self.add(f"{what}_whole_bytes", whole * 128.0)
        self.add(f"{what}_instructions", instructions)
        if what == "atomic":
            self._hottest(pointers, mask, one.shape)
        if op.number not in self.sites:
            own = self.layouts.registers(kind) * one.item_bytes
            self.sites[op.number] = AccessSite(what, name, here, own)
        site = self.sites[op.number]
        if what == "load":
            before = max((self.level(n) for n in op.operands), default=0)
            waits = len(self.tally[here].blocks) if is_block else 1 + before
            site.waits = max(site.waits, waits)
        site.sector_bytes += float(np.sum(sectors * 32.0 * self.weight))
        site.executions += float(np.sum(self.weight * (sectors > 0)))

    def _count(
        self, kind: TensorType, given: TensorType, pointers: Any, mask: Value, program: int
    ) -> tuple[float, ...]:
        """Return of one program's access the distinct sectors, the lines of each instruction of a
        warp, these instructions, the sectors of each, and the distinct lines."""
        if not self.weight[program]:
            return (0.0,) * 5
        address = np.broadcast_to(pointers[min(program, len(pointers) - 1)], kind.shape)
        on = None
        if mask is not None:
            on = np.broadcast_to(mask[min(program, len(mask) - 1)], kind.shape) != 0
        near = address - (int(address.flat[0]) & ~127)
        key = kind, near.tobytes(), None if on is None else on.tobytes()
        if key not in self._counted:
            group = np.zeros(1, np.int64)
            if given.shape:
                group = self.layouts.accesses(given, self.layouts.run(given, near))
            chosen = (near, group) if on is None else (near[on], group[on])
            self._counted[key] = _counts(*(part.reshape(-1) for part in chosen))
        return self._counted[key]

    def _hottest(self, pointers: Any, mask: Value, shape: tuple[int, ...]) -> None:
        """Note how often a program, in the mean, changes the address that is changed most often."""
        if pointers.ndim == 1:  # one address a program
            pointers, mask = pointers[:, None], None if mask is None else mask.reshape(-1, 1)
        every = np.broadcast_to(pointers, (self.programs, *shape)).reshape(self.programs, -1)
        weights = np.repeat(self.weight, every.shape[1]).reshape(every.shape)
        if mask is not None:
            weights = weights * np.broadcast_to(mask, (self.programs, *shape)).reshape(every.shape)
        _, index = np.unique(every, return_inverse=True)
        most = float(np.bincount(index.reshape(-1), weights.reshape(-1)).max())
        self.add("hot", most / self.programs / max(1e-9, float(self.weight.mean())))

    # Other operations

    def count(self, op: Op) -> None:
        """Count an operation that is not an access, by its rule or for each element."""
        rule = RULES.get(op.word)
        if rule is not None:
            rule(self, op)
        elif op.word not in FREE:
            self._vector(op)

    def _vector(self, op: Op) -> None:
        """Count an operation of every element that a thread holds."""
        kinds = types_in(op.text)
        if not kinds or not kinds[-1].shape:
            return
        kind = kinds[-1]
        is_number = kind.is_float and kind.element != "i1"
        plain, special = COSTS.get(op.word, (1.0 if is_number else INTEGER, 0.0))
        many = self.layouts.registers(kind) * self.threads
        self.add("vector", plain * many)
        self.add("special", special * many)


def _counts(near: Any, group: Any) -> tuple[float, ...]:
    if not near.size:
        return (0.0,) * 5
    sector = (near - near.min()) // 32
    spread = int(sector.max()) + 2

    def distinct(numbers: Any) -> float:
        return float(len(np.unique(numbers)))

    lines = distinct(group * (spread // 4 + 2) + sector // 4)
    apart = distinct(group * (spread + 2) + sector)
    return distinct(sector), lines, distinct(group), apart, distinct(sector // 4)


def _product(walk: CostWalk, op: Op) -> None:
    kinds = types_in(op.text)
    a, c, mine = kinds[0], kinds[-1], walk.tally[walk.here()]
    walk.add("flops", 2.0 * prod(c.shape) * a.shape[-1])
    is_wgmma = op.name.startswith("ttng.")
    mine.wgmma |= is_wgmma
    if a.item_bytes > mine.item_bytes:
        mine.item_bytes, mine.peak = a.item_bytes, _peak_of(walk, a, c)
    if is_wgmma:  # each group of 64 rows reads all of b, and its rows of a
        m, n, k = c.shape[-2], c.shape[-1], a.shape[-1]
        rows = 64 if "memdesc" in op.text.split(" : ", 1)[1].split(" * ")[0] else 0
        walk.add("shared_bytes", -(-m // 64) * (rows + n) * k * a.item_bytes)


def _peak_of(walk: CostWalk, a: TensorType, c: TensorType) -> str:
    """Return the peak that a product of these operands is held to. One whose result has no layout
    of the matrix unit is computed by the vector units."""
    if a.element == "f32":
        return "tf32" if "mma" in walk.layouts.text(c.layout).split("<")[0] else "fp32"
    names = {"bf16": "bf16", "f16": "fp16", "f64": "fp64", "i8": "int8", "ui8": "int8"}
    return names.get(a.element, "fp8" if a.item_bytes == 1 else "bf16")


def _read_shared(walk: CostWalk, op: Op) -> None:
    kind = types_in(op.text)[-1]
    walk.add("shared_bytes", walk.layouts.registers(kind) * walk.threads * kind.item_bytes)


def _wrote_shared(walk: CostWalk, op: Op) -> None:
    if op.word == "local_alloc" and not op.operands:
        return
    kind = types_in(op.text)[0]
    walk.add("shared_bytes", prod(kind.shape) * kind.item_bytes)
    if op.word == "local_alloc":
        walk.add("barriers", 1)


def _convert(walk: CostWalk, op: Op) -> None:
    a, b = types_in(op.text)[:2]
    texts = walk.layouts.text(a.layout), walk.layouts.text(b.layout)
    if texts[0] == texts[1] or not a.shape or "dot_op" in b.layout:
        return
    walk.add("shared_bytes", 2 * prod(a.shape) * a.item_bytes)
    walk.add("barriers", 2)
    packed = min(1, a.item_bytes / 4)
    walk.add("vector", 2 * walk.layouts.registers(b) * walk.threads * packed)


def _wait(walk: CostWalk, op: Op) -> None:
    walk.add("barriers", 1)


def _describe(walk: CostWalk, op: Op) -> None:
    walk.add("descriptors", 1)


def _reduce(walk: CostWalk, op: Op) -> None:
    """Count a reduction or scan: in a thread, between lanes, between warps."""
    kind = (types_in(op.tail) or types_in(op.text))[0]
    match = re.search(r"axis = (\d+)", op.text)
    axis = int(match.group(1)) if match else 0
    s = walk.layouts.spread(kind.layout, len(kind.shape))
    lanes, warps = s.lanes[axis], s.warps[axis]
    inner = max(1, sum("return" not in o.name and o.name != BLOCK for o in op.regions[0]))
    own = walk.layouts.registers(kind)
    along = max(1, min(own, -(-kind.shape[axis] // (lanes * warps))))
    left = max(1, own // along)
    steps = log2(max(1, min(lanes, kind.shape[axis])))
    repeat = 4 if op.word == "scan" else 1
    across = log2(warps) if warps > 1 else 0.0
    walk.add("vector", inner * repeat * own * walk.threads)
    walk.add("shuffles", (steps + across) * left * walk.threads * repeat)
    walk.add("chain", repeat * 30.0 * steps + (warps > 1) * (60.0 + 30.0 * across))
    walk.add("barriers", 2 * (warps > 1))


def _assemble(walk: CostWalk, op: Op) -> None:
    """Count the instructions of inline assembly, which its text ends by semicolons."""
    kind = types_in(op.text)[-1]
    packed = re.search(r"packed_element = (\d+)", op.text)
    each = max(1, op.text.split("{")[0].count(";")) / (int(packed.group(1)) if packed else 1)
    walk.add("vector", each * walk.layouts.registers(kind) * walk.threads)


RULES = {
    "elementwise_inline_asm": _assemble,
    **{"dot": _product, "warp_group_dot": _product, "local_load": _read_shared},
    **{"local_alloc": _wrote_shared, "local_store": _wrote_shared},
    **{"convert_layout": _convert, "reduce": _reduce, "scan": _reduce},
    **{"async_wait": _wait, "wait_barrier": _wait, "tensormap_create": _describe},
}
