"""Time the instructions of one warp as the hardware issues them: in order, each after the cycles
that the compiler wrote into the one before, and after what it waits for.

The machine code itself says what overlaps: how many loads of an unrolled loop are on their way
before the first is waited for, and where a reduction waits for shared memory.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

# Letters of what the instructions are; every other operation is an "a", of the integer units.
LOAD, COPY, STORE, ATOMIC, MATRIX = "L", "C", "S", "A", "T"
SHARED, SHUFFLE, SPECIAL, CONSTANT, BARRIER = "s", "h", "x", "c", "b"
FLOAT, MULTIPLY, OTHER, COMMIT, DRAIN = "f", "m", "a", "g", "w"
DOUBLE = "d"
MOVE = "v"  # moves, branches and what all lanes share: they only take a slot
ACCESSES = LOAD + COPY + STORE + ATOMIC  # of global memory
TRIPS = 5  # of a loop that are timed; the last two count


@dataclass(frozen=True)
class WarpLatencies:
    """Cycles after which a result is there. `memory` is of data that no access has brought into
    the cache before."""

    memory: float
    cache: float
    atomic: float = 700.0
    shared_memory: float = 30.0
    shuffle: float = 30.0
    special: float = 22.0
    constant: float = 30.0
    other: float = 20.0
    operands: float = 15.0  # until an instruction has read its registers
    barrier: float = 90.0  # until all warps are there, too

    def other_kinds(self) -> dict[str, float]:
        """Return the latencies of instructions that are not loads of global memory."""
        named = {ATOMIC: self.atomic, SHARED: self.shared_memory, SHUFFLE: self.shuffle}
        return named | {SPECIAL: self.special, CONSTANT: self.constant}


@dataclass(frozen=True)
class IssuedCode:
    """Instructions that one warp issues, one after the other."""

    kinds: str  # a letter for each
    controls: tuple[int, ...]  # bits 105 to 121 of each: stall, yield, barriers set and waited for
    sites: tuple[int, ...] = ()  # of each access: the number of its operation in TTGIR, or 0
    pending: tuple[int, ...] = ()  # of each DRAIN: groups of copies that may remain
    widths: tuple[int, ...] = ()  # of each access: bytes of a thread

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """Return the number of instructions by kind."""
        return Counter(self.kinds)

    def cycles(
        self, latencies: WarpLatencies, fresh: Mapping[int, float], *, in_loop: bool
    ) -> float:
        """Return the cycles of one pass if nothing else is on the core, in a loop of one among
        many. `fresh` is the share of an operation's bytes that come from memory."""
        warp = _Warp(self, latencies, fresh)
        if not in_loop:
            warp.issue()
            return warp.end
        ends = []
        for _ in range(TRIPS):
            warp.issue()
            ends.append(warp.now)
        return (ends[-1] - ends[-3]) / 2


@dataclass
class _Warp:
    """A warp at some cycle: when its six barriers and its groups of copies are through."""

    code: IssuedCode
    latencies: WarpLatencies
    fresh: Mapping[int, float]
    now: float = 0.0
    _barriers: list[float] = field(default_factory=lambda: [0.0] * 6)
    _groups: list[float] = field(default_factory=list)
    _copies: float = 0.0

    @property
    def end(self) -> float:
        """Return the cycle at which everything that was begun is through."""
        return max(self.now, self._copies, *self._barriers)

    def issue(self) -> None:
        """Issue all instructions once."""
        barriers, others = self._barriers, self.latencies.other_kinds()
        sites, pending = iter(self.code.sites), iter(self.code.pending)
        for kind, control in zip(self.code.kinds, self.code.controls, strict=True):
            if waits := control >> 11:
                self.now = max(self.now, *(barriers[b] for b in range(6) if waits >> b & 1))
            latency = others.get(kind, self.latencies.other)
            if kind in ACCESSES:
                site = next(sites)
                if kind in LOAD + COPY:
                    latency = self._load(site)
                    self._copies = max(self._copies, self.now + latency * (kind == COPY))
            elif kind == COMMIT:
                self._groups.append(self._copies)
            elif kind == DRAIN:
                self._drain(next(pending))
            elif kind == BARRIER:
                self.now += self.latencies.barrier
            if (result := control >> 5 & 7) < 6:
                barriers[result] = max(barriers[result], self.now + latency)
            if (read := control >> 8 & 7) < 6:
                barriers[read] = max(barriers[read], self.now + self.latencies.operands)
            self.now += max(1, control & 15)

    def _load(self, site: int) -> float:
        share = self.fresh.get(site, 1.0)
        return share * self.latencies.memory + (1 - share) * self.latencies.cache

    def _drain(self, remain: int) -> None:
        through = self._groups[: len(self._groups) - remain]
        self._groups = self._groups[len(through) :]
        self.now = max([self.now, *through])


@dataclass(frozen=True)
class IssuedLoop:
    """A loop: its trip in machine code, which the compiler may have made of several, and the loop
    of what remains then."""

    number: int  # of its operation in TTGIR
    trip: IssuedCode
    rest: IssuedCode | None = None


@dataclass(frozen=True)
class Issued:
    """What a warp of a kernel issues: outside of all loops, and in each."""

    straight: IssuedCode
    loops: tuple[IssuedLoop, ...] = ()
