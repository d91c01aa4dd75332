"""Measure the SM clock of a window of samples with a kernel on the GPU.

A kernel of one warp runs before the first sample and after the last one, on their stream. It reads
a timer of fixed rate and the cycle counter of its core, spins for 30 us and reads both again. The
driver's sensor is slower: it averages over many milliseconds.
"""

from dataclasses import dataclass
from typing import Any

import torch

from workbench.dsl import INTERPRETED, tl, triton
from workbench.measurement.clocks import Clocks, SensorClock, SmClock, Source

# The step of %globaltimer is 32 ns on Hopper and was 1 us before; the probe waits for the timer to
# step at both ends, so the error is one turn of its loop, some 20 ns: 0.1 % of 30 us.
SPAN_NS = 30_000
MOST_TURNS = 100_000  # of its loop: it ends even if the timer stands still
FIELDS = 8  # int64 of one reading, five of them used: a slot of 64 bytes stays aligned
# All GFX9 cards run the timer of s_memrealtime at 100 MHz (LLVM, libc/src/time/gpu/time_utils.h).
TICK_NS = {"cuda": 1, "hip": 10}


@triton.jit
def _time(HIP: tl.constexpr):
    if HIP:
        return tl.inline_asm_elementwise(
            "s_memrealtime $0\ns_waitcnt lgkmcnt(0)", "=s", [], tl.int64, is_pure=False, pack=1
        )
    else:
        return tl.inline_asm_elementwise(
            "mov.u64 $0, %globaltimer;", "=l", [], tl.int64, is_pure=False, pack=1
        )


@triton.jit
def _cycles(HIP: tl.constexpr):
    if HIP:
        return tl.inline_asm_elementwise(
            "s_memtime $0\ns_waitcnt lgkmcnt(0)", "=s", [], tl.int64, is_pure=False, pack=1
        )
    else:
        return tl.inline_asm_elementwise(
            "mov.u64 $0, %clock64;", "=l", [], tl.int64, is_pure=False, pack=1
        )


@triton.jit
def _core(HIP: tl.constexpr):
    if HIP:  # unknown
        return tl.full((), -1, tl.int32)
    else:
        return tl.inline_asm_elementwise(
            "mov.u32 $0, %smid;", "=r", [], tl.int32, is_pure=False, pack=1
        )


@triton.jit
def read_clock(slot, SPAN: tl.constexpr, MOST: tl.constexpr, HIP: tl.constexpr):
    """Write time, cycles, time, cycles and core to `slot`; SPAN in ticks of the timer."""
    before = _time(HIP)
    start = before
    turns = 0
    while (start == before) & (turns < MOST):
        start = _time(HIP)
        turns += 1
    first = _cycles(HIP)
    end = start
    while (end - start < SPAN) & (turns < MOST):
        end = _time(HIP)
        turns += 1
    last = _cycles(HIP)
    tl.store(slot, start)
    tl.store(slot + 1, first)
    tl.store(slot + 2, end)
    tl.store(slot + 3, last)
    tl.store(slot + 4, _core(HIP).to(tl.int64))


@dataclass(frozen=True)
class Ticks:
    """Result of one run of the probe: ticks of the timer, cycles, and the core it ran on (negative
    where that is unknown)."""

    start: int
    first: int
    end: int
    last: int
    core: int

    def mhz(self, tick_ns: float) -> float | None:
        """Return the clock in MHz within this run; None where timer or counter stood still."""
        ns = (self.end - self.start) * tick_ns
        cycles = self.last - self.first
        return 1e3 * cycles / ns if ns > 0 and cycles > 0 else None


def window_mhz(before: Ticks, after: Ticks, tick_ns: float) -> float | None:
    """Return the mean clock in MHz between two runs of the probe; None where neither run has one.

    With both on one core it is the cycles over the time from the first to the second. That is
    accepted within a tenth of the two runs' own clocks, since a counter may stop while its core is
    idle. Otherwise it is the mean of the two.
    """
    ends = [mhz for ticks in (before, after) if (mhz := ticks.mhz(tick_ns)) is not None]
    if not ends:
        return None
    if len(ends) == 2 and before.core == after.core >= 0:
        whole = Ticks(before.end, before.last, after.start, after.first, 0).mhz(tick_ns)
        if whole is not None and 0.9 * min(ends) <= whole <= 1.1 * max(ends):
            return whole
    return sum(ends) / len(ends)


class Probe:
    """An SmClock by the probe kernel, on torch's current device and stream."""

    source: Source = "probe"

    def __init__(self) -> None:
        """Compile the probe and run it once. Raises RuntimeError where a counter stands still, and
        Triton's own errors."""
        backend = "cuda" if torch.version.hip is None else "hip"
        self._tick_ns = TICK_NS[backend]
        self._hip = backend == "hip"
        # two windows may be pending: one is read while the next one runs
        self._slots = torch.zeros(2, 2, FIELDS, dtype=torch.int64, device="cuda")
        self._rows = [tuple(pair) for pair in self._slots]
        self._counts = torch.zeros(2, 2, FIELDS, dtype=torch.int64, pin_memory=True)
        self._end_events = [torch.cuda.Event(), torch.cuda.Event()]
        self._windows_begun = self._windows_read = 0  # windows so far
        self.begin()
        self.end()
        if self.mhz() is None:
            raise RuntimeError("the GPU's timer or cycle counter stands still")

    def _run(self, slot: Any) -> None:
        span = SPAN_NS // self._tick_ns
        read_clock[(1,)](slot, SPAN=span, MOST=MOST_TURNS, HIP=self._hip, num_warps=1)

    def begin(self) -> None:
        """Enqueue the first run."""
        self._run(self._rows[self._windows_begun % 2][0])

    def end(self) -> None:
        """Enqueue the second run, and the copy of both readings to the host."""
        bank = self._windows_begun % 2
        self._run(self._rows[bank][1])
        self._counts[bank].copy_(self._slots[bank], non_blocking=True)
        self._end_events[bank].record()
        self._windows_begun += 1

    def mhz(self) -> float | None:
        """Return the clock in MHz of the oldest ended window that was not yet requested. Waits for
        that window, and for no later work. A window is dropped once two more have ended."""
        self._windows_read = max(self._windows_read, self._windows_begun - 2)
        bank = self._windows_read % 2
        self._windows_read += 1
        self._end_events[bank].synchronize()
        before, after = (Ticks(*row[:5]) for row in self._counts[bank].tolist())
        return window_mhz(before, after, self._tick_ns)


def sm_clock(clocks: Clocks) -> SmClock:
    """Return the probe where it runs, else the driver's sensor; its `source` names which."""
    if can_probe():
        try:
            return Probe()
        except Exception:  # a compiler or a driver that fails: the sensor replaces it
            torch.cuda.current_stream().synchronize()  # raises where the GPU itself is lost
    return SensorClock(clocks)


def can_probe() -> bool:
    """Return whether the current GPU has both counters: NVIDIA's all do, AMD's up to GFX9
    (CDNA)."""
    if INTERPRETED or not torch.cuda.is_available():
        return False
    if torch.version.hip is None:
        return True
    arch = torch.cuda.get_device_properties(torch.cuda.current_device()).gcnArchName
    return str(arch).startswith("gfx9")
