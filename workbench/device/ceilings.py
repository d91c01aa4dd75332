"""Ceilings of a device, and the diagnosis of a kernel under them: pure functions of numbers.

Ceilings come from runs, from the newest run of `workbench ceilings` and from the device files. Each
carries its origin, since a share of a measured ceiling and a share of a datasheet's are different
numbers. `CeilingSet` picks the ceilings of a kernel, `diagnose` says in words which of them limits
it. The model is that of Williams, Waterman and Patterson (Roofline, CACM 52(4), 2009): no kernel is
faster than its bytes over a bandwidth and its FLOPs over a peak, nor than a launch.

A measured ceiling has the state of the clock in which it was taken, `boost` or `sustained`, and a
time is compared with the ceiling of its own state: the power cap takes the clock of an H200 from
1980 to some 1500 MHz under products. Where only the other state is known that ceiling counts, and
every text names its state.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from workbench.data.record import Measured, Record, Run, State
from workbench.data.units import duration, percent, quantity
from workbench.device.hardware import DEVICES, UNCOMPILED, Device

Level = Literal["dram", "cache", "shared", "compute", "launch", "link"]
Origin = Literal["measured", "published", "computed", "driver", "datasheet"]
Regime = Literal["cold", "hot", "predicted"]
Word = Literal[
    "memory-bound",
    "compute-bound",
    "balanced",
    "launch-bound",
    "below its ceilings",
    "above its ceiling",
    "predicted as an interval",
    "unknown",
]

NEAR = 0.6  # share of a ceiling from which on it is called the limit
NOTABLE = 0.1  # share of a time from which on the launch time in it is mentioned
LAUNCH = 0.25  # and from which on it is called the limit, where no ceiling is near
LEVELS: Mapping[Level, str] = {
    "dram": "DRAM",
    "cache": "last-level cache",
    "shared": "L1 and shared memory",
    "compute": "arithmetic",
    "launch": "launch",
    "link": "host link",
}
_LEVEL_OF: Mapping[str, Level]
_LEVEL_OF = {"dram": "dram", "cache": "cache", "l2": "cache", "shared": "shared", "l1": "shared"}
# Preference among measured DRAM ceilings: most kernels' mix of reads and writes is like a copy's.
_DRAM_ORDER = ("dram_copy", "dram", "dram_triad", "dram_read", "dram_write")
_DTYPES = ("fp32_matrix", "fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8")
ALIKE = 0.02  # up to this difference the two states of a ceiling are one line
MEASURED, _BOOST = "_measured", "_boost_measured"  # suffixes of names


@dataclass(frozen=True)
class Ceiling:
    """One limit of one device. `value` is in B/s, FLOP/s (operations for integers) or, for a
    launch, s; `low` to `high` is the spread of its samples where it was measured here. `state` is
    that of the clock; empty where it is unknown or the clock of the cores does not matter."""

    device: str
    name: str  # as recorded: "dram_copy_measured"
    level: Level
    value: float
    origin: Origin
    source: str
    dtype: str = ""  # of arithmetic
    low: float | None = None
    high: float | None = None
    run: str = ""  # id of the run that recorded it; empty for a device file's
    state: State | Literal[""] = ""
    clock_mhz: float | None = None  # of the cores while it was measured, median

    @property
    def is_measured(self) -> bool:
        """Return whether the workbench measured it on this device."""
        return self.origin == "measured"

    @property
    def what(self) -> str:
        """Return the limited resource: `DRAM`, `bf16 arithmetic`."""
        return f"{self.dtype} {LEVELS[self.level]}" if self.dtype else LEVELS[self.level]

    @property
    def unit(self) -> str:
        """Return the unit of `value`: `B/s`, `FLOP/s`, `OP/s` or `s`."""
        if self.level == "compute":
            return "OP/s" if self.dtype.startswith("int") else "FLOP/s"
        return "s" if self.level == "launch" else "B/s"

    @property
    def text(self) -> str:
        """Return origin, resource, state and value: `measured DRAM, sustained clock (4.3 TB/s)`, or
        `measured DRAM, read, ..` for a mix of reads and writes other than a copy's."""
        mix = self.stem.removeprefix("dram_") if self.level == "dram" else ""
        parts = [self.what, mix if mix not in ("", "dram", "copy") else "", clock_words(self.state)]
        named = ", ".join(filter(None, parts))
        return f"{self.origin} {named} ({quantity(self.value, self.unit)})"

    @property
    def stem(self) -> str:
        """Return the name without the suffix of measured ceilings and of their state."""
        return stem_of(self.name)

    def suits(self, state: State) -> bool:
        """Return whether it holds for times of this state: it is of that state, or of none."""
        return self.state in (state, "")


def measured_name(stem: str, state: State) -> str:
    """Return the name under which a run holds the measured ceiling of this state. The sustained one
    has the name that ceilings had before they had states: `compute_bf16_measured`."""
    return stem + (_BOOST if state == "boost" else MEASURED)


def stem_of(name: str) -> str:
    """Return what a ceiling limits, from its name: `compute_bf16` of `compute_bf16_measured`."""
    return name.removesuffix(_BOOST).removesuffix(MEASURED)


def clock_words(state: str) -> str:
    """Return `boost clock`; empty where there is no state."""
    return f"{state} clock" if state else ""


def state_of(name: str, text: Mapping[str, Any]) -> State | Literal[""]:
    """Return the state of a ceiling in plain data; empty where it has none.

    A maker states arithmetic at the boost clock, and bank bandwidth is computed at it. DRAM has a
    clock of its own, and of somebody else's measurement the state is unknown. Of a device whose
    file states no clock, peaks have the state "".
    """
    state: State | Literal[""] | None = text.get("state")
    if state is not None or text.get("kind", "datasheet") == "measured":
        return state or ""
    return "boost" if _level(name, str(text.get("unit"))) in ("compute", "shared") else ""


def clock_state(record: Record) -> State:
    """Return the state of the clock that a time is of; the model's is the boost clock."""
    return record.timing.state if isinstance(record.timing, Measured) else "boost"


def ceilings_in_state(
    ceilings: Mapping[str, Mapping[str, Any]], state: State
) -> dict[str, Mapping[str, Any]]:
    """Return the plain ceilings without those measured in the other state, where one of this state
    limits the same. Stated ones stay."""
    own = {stem_of(n) for n, c in ceilings.items() if c.get("state") == state}
    return {
        name: c
        for name, c in ceilings.items()
        if c.get("state", state) == state or stem_of(name) not in own
    }


def ceiling_of(
    device: str, name: str, text: Mapping[str, Any], run: str = "", own: bool = False
) -> Ceiling | None:
    """Return the ceiling from the plain data of `Run.ceilings` or `hardware.ceilings`.

    None where the name is no ceiling's, the value is not a positive number, or the ceiling failed
    its own check (`failed`). `own`: the run measures ceilings, so entries of kind measured with a
    spread are its own.
    """
    value, unit = text.get("value"), text.get("unit")
    if not isinstance(value, int | float) or not 0 < value < math.inf or text.get("failed"):
        return None
    level = _level(name, str(unit))
    if level is None:
        return None
    origin = origin_of(name, text, own)
    dtype = str(text.get("dtype") or _dtype(name)) if level == "compute" else ""
    source, ends = str(text.get("source", "source not stated")), (text.get("low"), text.get("high"))
    clock = state_of(name, text), text.get("clock_mhz")
    return Ceiling(device, name, level, float(value), origin, source, dtype, *ends, run, *clock)


def origin_of(name: str, text: Mapping[str, Any], own: bool = False) -> Origin:
    """Return the origin of a ceiling of `Run.ceilings`. Older runs state what others
    measured and published as `measured`; names of ceilings that were measured here end in
    `_measured`, those of a run that measures ceilings (`own`) have a spread."""
    kind: Origin = text.get("kind", "datasheet")
    here = name.endswith("_measured") or (own and kind == "measured" and "low" in text)
    return "measured" if here else "published" if kind == "measured" else kind


def _level(name: str, unit: str) -> Level | None:
    if unit in ("FLOP/s", "OP/s"):
        return "compute"
    if unit == "s":
        return "launch" if name.startswith("launch") else None
    if unit != "B/s":
        return None
    return next((level for start, level in _LEVEL_OF.items() if name.startswith(start)), "link")


def _dtype(name: str) -> str:
    return next((dtype for dtype in _DTYPES if dtype in name), "")


def known_device(name: str) -> Device | None:
    """Return the known device of this name, which is its own or the driver's, or None."""
    for devices in (DEVICES, UNCOMPILED):
        if name in devices:
            return devices[name]
    return next((device for device in DEVICES.values() if device.has_name(name)), None)


@dataclass(frozen=True)
class CeilingSet:
    """All ceilings of one device, one for each name, and the bytes of its last-level cache. `state`
    is that of the times to compare with them: measured ceilings of it come before the others."""

    device: str
    ceilings: tuple[Ceiling, ...] = ()
    cache_bytes: float | None = None
    failures: tuple[tuple[str, str], ...] = ()  # name and reason of those that failed their check
    state: State = "sustained"

    def select(self, state: State) -> CeilingSet:
        """Return the same ceilings for times of this state."""
        return self if self.state == state else replace(self, state=state)

    def best(self, level: Level, dtype: str = "") -> Ceiling | None:
        """Return the ceiling to compare kernels with, preferably a measured one, or None."""
        return next(iter(self._rank_ceilings(level, dtype)), None)

    def lines(self) -> list[Ceiling]:
        """Return the ceilings to draw: for each level and dtype the measured one of each state, or
        one where they are alike, and the stated one."""
        dtypes = sorted({c.dtype for c in self.ceilings if c.level == "compute"})
        memory: list[tuple[Level, str]] = [("shared", ""), ("cache", ""), ("dram", "")]
        every = [*memory, *(("compute", dtype) for dtype in dtypes)]
        return [c for level, dtype in every for c in self._first_of_each(level, dtype)]

    def alike(self, c: Ceiling) -> bool:
        """Return whether it was measured in both states and differs by no more than ALIKE."""
        own = [d for d in self.ceilings if d.is_measured and (d.level, d.stem) == (c.level, c.stem)]
        return c.is_measured and any(_alike(c, d) for d in own if d.state != c.state)

    def highest(self, level: Level) -> Ceiling | None:
        """Return the highest measured ceiling of a level over all mixes of reads and writes, or
        None. Leaves out `dram`, which is a run's own copy, measured on another day."""
        results = [c for c in self._rank_ceilings(level, "") if c.is_measured and c.stem != "dram"]
        results = [c for c in results if c.suits(self.state)] or results
        return max(results, key=lambda c: c.value, default=None)

    def launch(self, host: bool) -> Ceiling | None:
        """Return the seconds of an empty launch by the CPU (`host`) or in a graph, or None."""
        names = ("launch_eager",) if host else ("launch", "launch_graph")
        return next((c for c in self._rank_ceilings("launch", "") if c.stem in names), None)

    def ridge(self, ceiling: Ceiling) -> float | None:
        """Return the FLOP/byte where a compute ceiling meets DRAM, both measured or both stated,
        and of one state where DRAM has it. None where no such DRAM ceiling is known."""
        ranked = self.select(ceiling.state or self.state)._rank_ceilings("dram", "")
        alike = [c for c in ranked if c.is_measured == ceiling.is_measured]
        return ceiling.value / alike[0].value if alike else None

    def _rank_ceilings(self, level: Level, dtype: str) -> list[Ceiling]:
        results = [c for c in self.ceilings if c.level == level and c.dtype == dtype]
        return sorted(results, key=self._rank)

    def _rank(self, c: Ceiling) -> tuple[bool, bool, int, float]:
        return not c.is_measured, c.is_measured and not c.suits(self.state), _priority(c), -c.value

    def _first_of_each(self, level: Any, dtype: str) -> list[Ceiling]:
        ranked = self._rank_ceilings(level, dtype)
        measured = [c for c in ranked if c.is_measured]
        if any(c.stem != "dram" for c in measured):  # a run's own copy only where there is no other
            measured = [c for c in measured if c.stem != "dram"]
        first = [next((c for c in measured if c.state == s), None) for s in _DRAWN]
        of_each = [c for c in first if c is not None]
        different = of_each[:1] + [c for c in of_each[1:] if not _alike(c, of_each[0])]
        return different + [c for c in ranked if not c.is_measured][:1]


def _alike(c: Ceiling, other: Ceiling) -> bool:
    return abs(c.value / other.value - 1) <= ALIKE


_DRAWN = ("sustained", "boost", "")  # states in the order of drawing


def _priority(ceiling: Ceiling) -> int:
    """Return the rank of a ceiling; lower is nearer to typical kernels: for DRAM, to a copy."""
    is_known = ceiling.stem in _DRAM_ORDER
    return _DRAM_ORDER.index(ceiling.stem) if is_known else len(_DRAM_ORDER)


def ceiling_set(device: str, runs: Iterable[Run]) -> CeilingSet:
    """Return the ceilings of one device from runs and from its device file.

    Runs of `ceilings` come before other runs, newer before older; the device file is last, and used
    only where the runs were on the whole of such a GPU.
    """
    mine = [run for run in runs if run.device == device]
    mine.sort(key=lambda run: run.started, reverse=True)
    mine.sort(key=lambda run: run.engine != "ceilings")
    device_limits = known_device(device)
    results: dict[tuple[str, ...], Ceiling] = {}
    failed: dict[str, str] = {}
    for run in mine:
        for name, text in run.ceilings.items():
            if text.get("failed"):
                failed.setdefault(name, str(text.get("reason", "it failed its check")))
            ceiling = ceiling_of(device, name, text, run.id, run.engine == "ceilings")
            if ceiling:
                results.setdefault(_same_limit(ceiling), ceiling)
    if device_limits and all(_whole(run, device_limits) for run in mine):
        for ceiling in stated_ceilings(device, device_limits):
            results.setdefault(_same_limit(ceiling), ceiling)
    cache_bytes = device_limits.cache.value if device_limits else None
    return CeilingSet(device, tuple(results.values()), cache_bytes, tuple(failed.items()))


def _same_limit(ceiling: Ceiling) -> tuple[str, ...]:
    """Return the key of equal ceilings, such as `compute`, `compute_bf16` and `bf16`."""
    named = ceiling.dtype if ceiling.level == "compute" else ceiling.stem
    origin = f"measured {ceiling.state}" if ceiling.is_measured else "stated"
    return ceiling.level, named, origin


def _whole(run: Run, device: Device) -> bool:
    """Return whether the run's stated peaks match the device file's: a part of a GPU has others."""
    compute = run.ceilings.get("compute", {})
    peak = device.peaks.get(str(compute.get("dtype")))
    stated = compute.get("value") if compute.get("kind") != "measured" else None
    pairs = (run.ceilings.get("dram", {}).get("value"), device.dram), (stated, peak)
    return all(text is None or not q or abs(text / q.value - 1) < 0.01 for text, q in pairs)


def stated_ceilings(device: str, limits: Device) -> list[Ceiling]:
    """Return the ceilings of a device file, under the device name that a run uses."""
    quantities = {"dram": limits.dram, "cache": limits.cache_bandwidth}
    quantities |= {f"compute_{dtype}": q for dtype, q in limits.peaks.items()}
    clock = limits.peak_state()
    named = {
        name: {**asdict(q), "dtype": name.removeprefix("compute_"), **clock}
        for name, q in quantities.items()
        if q
    }
    return [c for name, plain in named.items() if (c := ceiling_of(device, name, plain))]


# Diagnosis.


@dataclass(frozen=True)
class Load:
    """One call on the roofline: seconds, and the least bytes and FLOPs that its Spec declares.

    `high_s` is the upper end of its median's interval, or its time where it has none; `dtype` is
    that of the units that do its arithmetic. A predicted time is of the boost clock.
    """

    time_s: float
    high_s: float
    flops: int
    bytes: int
    dtype: str
    regime: Regime
    host: bool = False  # timed by the host's clock, so compared with a launch by the CPU
    state: State = "sustained"  # of the clock
    span_s: tuple[float, float] | None = None  # the interval of a prediction that states one

    @property
    def intensity(self) -> float | None:
        """Return FLOP/byte; None without bytes."""
        return self.flops / self.bytes if self.bytes else None


@dataclass(frozen=True)
class Held:
    """The limit of a kernel. `share` is the time at its nearest ceiling over its time; `gain_s`
    are the seconds between its time and its bound: that ceiling, or a launch where that takes
    longer."""

    word: Word
    sentence: str
    ceiling: Ceiling | None = None
    share: float | None = None
    gain_s: float | None = None
    excess_reason: str = ""  # why it is above the ceiling that is drawn; empty where it is not


def diagnose(load: Load, ceilings: CeilingSet) -> Held:
    """Return the nearest ceiling of a call, the share of it that is reached, and the reason in
    words.

    Cold and predicted times are compared with DRAM; hot ones with the last-level cache where their
    bytes fit into it, as nothing need come from DRAM then. Ceilings of the call's own state come
    before those of the other.
    """
    ceilings = ceilings.select(load.state)
    memory, compute = _memory(load, ceilings), ceilings.best("compute", load.dtype)
    bounds = [(load.bytes / memory.value, memory)] if memory and load.bytes else []
    if compute and load.flops:
        bounds.append((load.flops / compute.value, compute))
    launch = ceilings.launch(load.host)
    launch_s = launch.value if launch else 0.0
    if not bounds:
        return _roofless(load, launch_s)
    bound_s, ceiling = max(bounds, key=lambda f: f[0])
    kinder = _kinder(load, ceiling, ceilings)
    if kinder:
        bound_s, ceiling = load.bytes / kinder.value, kinder
    share = bound_s / load.time_s
    gain_s = max(0.0, load.time_s - max(bound_s, launch_s))
    reason = _reason_above(load, ceiling, ceilings) if _exceeds(load, ceiling) else ""
    word = _word(load, bounds, share, launch_s, bool(reason))
    if kinder:
        reason = "above a copy's ceiling, as its mix of reads and writes is kinder"
    if load.span_s is not None:
        return _share_interval(load.span_s, bound_s, ceiling)
    parts = [_ceiling_text(word, share, ceiling, len(bounds)), _clock_text(load, ceiling), reason]
    parts.append(_launch_words(load, launch_s))
    gains = gain_s > 0 and word != "above its ceiling"
    parts.append(f"{duration(gain_s)} to gain" if gains else "")
    start = "Predicted: " if load.regime == "predicted" else ""
    text = _sentence(start + "; ".join(filter(None, parts)))
    return Held(word, text, ceiling, share, gain_s, reason)


def _share_interval(span_s: tuple[float, float], bound_s: float, ceiling: Ceiling) -> Held:
    """Return what an interval tells: the shares that its ends have. What is to gain is unknown."""
    low, high = (percent(bound_s / s) for s in reversed(span_s))
    text = f"Predicted: {low} to {high} of {ceiling.what} ({ceiling.origin})"
    return Held("predicted as an interval", _sentence(text), ceiling)


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def _memory(load: Load, ceilings: CeilingSet) -> Ceiling | None:
    if load.regime != "hot":
        return ceilings.best("dram")
    fits = ceilings.cache_bytes is None or load.bytes <= ceilings.cache_bytes
    return ceilings.best("cache") if fits else ceilings.best("dram")


def _roofless(load: Load, launch_s: float) -> Held:
    gain_s = max(0.0, load.time_s - launch_s) if launch_s else None
    if not load.bytes and not load.flops:
        text = f"no bytes and no FLOPs are declared: its {duration(load.time_s)} are a launch"
        if launch_s:
            text += f", of which the floor is {duration(launch_s)}"
        return Held("launch-bound", _sentence(text), gain_s=gain_s)
    lacking = f"{load.dtype} arithmetic" if load.flops else "its memory"
    if load.regime == "hot":
        lacking = "the last-level cache, which may serve a hot call"
    text = f"no ceiling of {lacking} is known on this device; workbench ceilings measures them"
    return Held("unknown", _sentence(text))


def _exceeds(load: Load, ceiling: Ceiling) -> bool:
    """Return whether it is above the ceiling by more than both spreads: the slow end of its
    interval against the high end of the ceiling's."""
    amount = load.flops if ceiling.level == "compute" else load.bytes
    return amount / max(load.time_s, load.high_s) > max(ceiling.value, ceiling.high or 0.0)


def _kinder(load: Load, ceiling: Ceiling, ceilings: CeilingSet) -> Ceiling | None:
    """Return the measured ceiling of another mix of reads and writes for a call that passes a
    copy's ceiling but not that one, such as a kernel that mostly reads; else None."""
    if ceiling.level != "dram" or load.regime != "cold" or not _exceeds(load, ceiling):
        return None
    kindest = ceilings.highest("dram")
    return kindest if kindest and not _exceeds(load, kindest) else None


def _word(
    load: Load, bounds: Sequence[tuple[float, Ceiling]], share: float, launch_s: float, above: bool
) -> Word:
    if above:
        return "above its ceiling"
    if share >= NEAR:
        near = [ceiling.level for s, ceiling in bounds if s >= NEAR * load.time_s]
        if len(near) > 1:
            return "balanced"
        return "compute-bound" if near[0] == "compute" else "memory-bound"
    return "launch-bound" if launch_s >= LAUNCH * load.time_s else "below its ceilings"


def _ceiling_text(word: Word, share: float, ceiling: Ceiling, bounds: int) -> str:
    reached = f"{percent(share)} of {ceiling.text}"
    if word == "below its ceilings":
        held = "neither memory nor arithmetic holds it" if bounds > 1 else "that does not hold it"
        return (
            f"{reached}: {held} as declared; it waits, has too few loads in flight, or moves more "
            "bytes than the least"
        )
    at = ", equal within both spreads"
    return f"{word}: {reached}" + (at if share > 1 and word != "above its ceiling" else "")


def _clock_text(load: Load, ceiling: Ceiling) -> str:
    """Return the state of the time where the ceiling's is another."""
    return "" if ceiling.suits(load.state) else f"the time is of the {load.state} clock"


def _launch_words(load: Load, launch_s: float) -> str:
    share = launch_s / load.time_s
    if share < NOTABLE or launch_s > load.time_s:
        return ""
    return f"at {duration(load.time_s)} the launch floor of {duration(launch_s)} is {_part(share)}"


def _part(share: float) -> str:
    for words, value in (("a tenth", 0.1), ("a quarter", 0.25), ("a third", 1 / 3), ("half", 0.5)):
        if abs(share - value) <= 0.1 * value:
            return f"about {words} of it"
    return f"{percent(share)} of it"


def _reason_above(load: Load, ceiling: Ceiling, ceilings: CeilingSet) -> str:
    """Return the likeliest reason, given the numbers, why a kernel is above a physical ceiling."""
    if load.state == "boost" and ceiling.state == "sustained" and ceiling.level != "dram":
        return "its clock was higher than when that ceiling was measured"
    if ceiling.level == "compute":
        though = "" if ceiling.is_measured else ", though its maker states it"
        return (
            f"either fewer FLOPs are done than its kernel declares, or the ceiling of "
            f"{ceiling.dtype} is too low{though}"
        )
    if load.regime == "predicted":
        return "the model takes bandwidth to be higher than this ceiling"
    if load.regime == "hot":
        return "hot: the cache may hold some of its inputs"
    if ceilings.cache_bytes and load.bytes <= ceilings.cache_bytes:
        return (
            f"its {quantity(load.bytes, 'B')} fit into the last-level cache, where its output may "
            "still lie when the call ends"
        )
    return (
        "either fewer bytes move than its kernel declares (a cache served some), or the ceiling "
        "is too low: workbench ceilings measures it"
    )
