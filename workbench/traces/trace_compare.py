"""Compare two traces: key figures, kernels by name and order, metrics of their counters.

Both were taken apart in time while a profiler watched, so a difference is suspected at most. Pure
functions of stored runs.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

from workbench.data.comparison import EvidenceChange
from workbench.data.record import Evidence, Finding, Profile, group_by
from workbench.data.units import amount, percent, reading
from workbench.data.verdict import SUSPECTED

Word = Literal["SLOW", "FAST", "SAME", "INCONCLUSIVE"]
Change = Literal["slower", "faster", "same", "unknown", "new", "gone"]

# Difference up to which one window or one launch is the same, as its spread is not known; and the
# same for a window whose kernels do not differ, as the host's pace varies more.
SPREAD, IDLE_SPREAD = 0.05, 0.25
STEPS = "ranges"  # group of evidence that holds the ranges of a trace
INCOMPLETE = "incomplete"  # word of a trace that lacks something


@dataclass(frozen=True)
class TraceOperand:
    """One of two traces: its name, and what a run of it stores."""

    name: str
    findings: Sequence[Finding]
    profiles: Sequence[Profile]

    @property
    def devices(self) -> list[Finding]:
        """Findings of the devices, which hold their figures; or the one of the whole file."""
        return [f for f in self.findings if not f.rule]

    @property
    def lacks(self) -> str:
        """What the trace lacks, as a sentence; empty where it is complete."""
        return next((f.sentence for f in self.findings if f.word == INCOMPLETE), "")


@dataclass(frozen=True)
class KernelChange:
    """A kernel of one or both traces. `ratio` is of the medians of one launch, after over before,
    with its 95 % interval where both have one."""

    name: str
    before: Profile | None
    after: Profile | None
    word: Change
    ratio: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def is_timed(self) -> bool:
        """Whether a file tells the time of a launch; else a difference is not a number."""
        return any(p is not None and p.total_s is not None for p in (self.before, self.after))

    @property
    def difference_s(self) -> float:
        """Seconds that all launches take more than before; 0 where no file tells."""
        return _total(self.after) - _total(self.before)


@dataclass(frozen=True)
class TraceComparison:
    """Two traces beside each other, and the word with its reason."""

    before: TraceOperand
    after: TraceOperand
    word: Word
    reason: str  # one sentence
    figures: tuple[EvidenceChange, ...]
    kernels: tuple[KernelChange, ...]  # the largest difference first
    metrics: tuple[tuple[str, tuple[EvidenceChange, ...]], ...]  # by kernel, largest first

    @property
    def shown_word(self) -> str:
        """The word: of what profilers recorded apart in time, a difference is suspected."""
        return self.word if self.word in ("SAME", "INCONCLUSIVE") else f"{SUSPECTED}{self.word}"


def compare(before: TraceOperand, after: TraceOperand, threshold: float) -> TraceComparison:
    """Return the comparison of two traces; differences up to `threshold`, a share, do not count."""
    kernels = tuple(
        sorted(
            _kernels(before.profiles, after.profiles, threshold),
            key=lambda each: (-abs(each.difference_s), each.name),
        )
    )
    several = max(len(before.devices), len(after.devices)) > 1
    results = []
    for old, new in zip(before.devices, after.devices, strict=False):
        figures = tuple(_figures(_evidence(old, False), _evidence(new, False)))
        ranges = tuple(_figures(_evidence(old, True), _evidence(new, True)))
        word, reason = _no_verdict(before, after, kernels, ranges) or _verdict(
            figures, ranges, kernels, threshold
        )
        about = f"{old.evidence[0].group}: " if several and old.evidence else ""
        results.append((word, about + reason, figures + ranges))
    nothing: tuple[Word, str, tuple[EvidenceChange, ...]] = "INCONCLUSIVE", NOTHING, ()
    word, reason, shown = min(results, key=lambda each: WORST.index(each[0]), default=nothing)
    on = [sorted({p.device for p in operand.profiles}) for operand in (before, after)]
    if on[0] != on[1]:
        reason += f"; they ran on different devices, {', '.join(on[0])} and {', '.join(on[1])}"
    return TraceComparison(before, after, word, reason, shown, kernels, tuple(_metrics(kernels)))


WORST: tuple[Word, ...] = ("SLOW", "INCONCLUSIVE", "FAST", "SAME")  # the word of several devices
NOTHING = "the two have no total time in common"


def _evidence(device: Finding, is_range: bool) -> dict[str, Evidence]:
    """Return the ranges of a device that were entered several times, or its key figures."""
    return {e.name: e for e in device.evidence if (e.group == STEPS) == is_range}


def _total(profile: Profile | None) -> float:
    return (profile.total_s or 0.0) if profile is not None else 0.0


# Kernels

SUFFIXES = re.compile(
    r"\s*\[clone [^\]]*\]|\.kd$|_\d+d(?:\d+[dce]*)*$|\{lambda\(\w*\)#\d+\}|0x[0-9a-f]+"
)


def normal_name(name: str) -> str:
    """Return a kernel's name without what a compiler changes from build to build: clones, numbers
    of lambdas, addresses, Triton's suffix of specialised arguments."""
    return " ".join(SUFFIXES.sub("", name).split())


def _kernels(
    before: Sequence[Profile], after: Sequence[Profile], threshold: float
) -> Iterator[KernelChange]:
    """Yield the kernels of both traces, joined by their normal names, those of one name in the
    order of the file."""
    old, new = _group_by_name(before), _group_by_name(after)
    for key in {**old, **new}:
        for a, b in zip_longest(old.get(key, ()), new.get(key, ())):
            yield _change(key[0], a, b, threshold)


def _group_by_name(profiles: Sequence[Profile]) -> dict[tuple[str, str], list[Profile]]:
    """Return profiles by name, in order of launch; single launches have their own group."""
    ordered = sorted(profiles, key=_launch)
    return group_by(ordered, lambda p: (normal_name(p.name), "launch" if p.launch else ""))


def _launch(profile: Profile) -> tuple[int, str]:
    return int(profile.launch) if profile.launch.isdecimal() else 0, profile.launch


def _change(name: str, old: Profile | None, new: Profile | None, threshold: float) -> KernelChange:
    if old is None or new is None:
        return KernelChange(name, old, new, "gone" if new is None else "new")
    a, b = old.median_s or _mean(old), new.median_s or _mean(new)
    if not a or not b:
        return KernelChange(name, old, new, "unknown")
    ratio = b / a
    ends = old.median_low_s, old.median_high_s, new.median_low_s, new.median_high_s
    if any(end is None or end <= 0 for end in ends):
        limit = max(threshold, SPREAD)
        return KernelChange(name, old, new, _word(ratio, ratio, ratio, limit), ratio)
    low, high = ends[2] / ends[1], ends[3] / ends[0]  # type: ignore[operator]
    return KernelChange(name, old, new, _word(ratio, low, high, threshold), ratio, low, high)


def _mean(profile: Profile) -> float:
    return (profile.total_s or 0.0) / profile.count if profile.count else 0.0


def _word(ratio: float, low: float, high: float, threshold: float) -> Change:
    """Return the word of a ratio: beyond the threshold with its whole interval, or the same."""
    if low > 1 + threshold:
        return "slower"
    if high < 1 / (1 + threshold):
        return "faster"
    return "same"


# Figures


def _figures(
    before: Mapping[str, Evidence], after: Mapping[str, Evidence]
) -> Iterator[EvidenceChange]:
    for name, old in before.items():
        if name in after and after[name].unit == old.unit:
            yield EvidenceChange(name, old, after[name])


MOST_METRICS = 12  # of one kernel


def _metrics(kernels: Sequence[KernelChange]) -> Iterator[tuple[str, tuple[EvidenceChange, ...]]]:
    """Yield the metrics of each kernel that differ noticeably, the most first."""
    for kernel in kernels:
        if kernel.before is None or kernel.after is None or not kernel.before.metrics:
            continue
        old, new = ({e.name: e for e in p.metrics} for p in (kernel.before, kernel.after))
        cycles = sum(e.value for n, e in old.items() if n.startswith("stall_")) or 1.0
        changed = [c for c in _figures(old, new) if _notable(c, cycles)]
        changed.sort(key=lambda c: (-_apart(c), c.name))
        yield kernel.name, tuple(changed[:MOST_METRICS])


def _notable(change: EvidenceChange, cycles: float) -> bool:
    """Return whether a metric differs by over a percent: of all stalls for one reason to stall, of
    the whole for a share, else of itself."""
    difference = abs(change.after.value - change.before.value)
    if change.name.startswith("stall_"):
        return difference > 0.01 * cycles
    return difference > 0.01 if change.before.unit == "1" else _apart(change) > 0.01


def _apart(change: EvidenceChange) -> float:
    """Return how far two values are apart, as a share of the larger."""
    a, b = change.before.value, change.after.value
    return abs(a - b) / max(abs(a), abs(b)) if a != b else 0.0


# The word


def _no_verdict(
    before: TraceOperand,
    after: TraceOperand,
    kernels: Sequence[KernelChange],
    ranges: Sequence[EvidenceChange],
) -> tuple[Word, str] | None:
    """Return why two traces cannot give a verdict, or None: one lacks something, they have other
    numbers of devices, or they launched the kernels that both have another number of times."""
    for operand in (before, after):
        if operand.lacks:
            return "INCONCLUSIVE", f"{operand.name} is incomplete. {operand.lacks.rstrip('.')}"
    devices = [len(operand.devices) for operand in (before, after)]
    if devices[0] != devices[1]:
        return "INCONCLUSIVE", f"{devices[0]} devices had work before and {devices[1]} after"
    both = [k for k in kernels if k.before is not None and k.after is not None]
    if any(k.before.metrics or k.before.launch for k in both if k.before):
        return None
    counts = [
        sum(k.before.count for k in both if k.before), sum(k.after.count for k in both if k.after)
    ]  # fmt: skip
    if not both and kernels and not _steps(ranges):
        return "INCONCLUSIVE", "the two have no kernel and no numbered range in common"
    if not both or counts[0] == counts[1]:
        return None
    about = f"{counts[0]:,} launches before and {counts[1]:,} after, of the kernels that both have"
    if not _steps(ranges):
        return "INCONCLUSIVE", f"the two did not do the same work: {about}"
    each = next((r for r in ranges if r.before.unit == "kernels" and r.ratio != 1), None)
    if each is not None and len(both) == len(kernels):  # else kernels were fused or replaced
        return "INCONCLUSIVE", (
            f"{each.name} are {each.before.value:.4g} before and {each.after.value:.4g} after, of "
            "the same kernels: a step did not do the same work"
        )
    return None


def _verdict(
    figures: Sequence[EvidenceChange],
    ranges: Sequence[EvidenceChange],
    kernels: Sequence[KernelChange],
    threshold: float,
) -> tuple[Word, str]:
    """Return the word and its reason: from the steps where both traces have some, since those have
    a spread; else from the window, or from the launches."""
    steps = _steps(ranges) or list(ranges[:1])
    if steps:
        return _steps_verdict(steps[0], threshold)
    total = next((f for f in figures if f.name == "total time"), None)
    if total is None or total.ratio is None:
        return "INCONCLUSIVE", NOTHING
    return _window_verdict(total, kernels, max(threshold, SPREAD))


def _steps(ranges: Sequence[EvidenceChange]) -> list[EvidenceChange]:
    """Return the ranges that are numbered, as `ProfilerStep#` is: each does the same work."""
    return [each for each in ranges if "#" in each.name and each.before.unit == "s"]


def _steps_verdict(step: EvidenceChange, threshold: float) -> tuple[Word, str]:
    old, new = step.before, step.after
    ratio = step.ratio or 1.0
    about = (
        f"the median of {step.name} is {reading(new.value, 's', 4)} after "
        f"{reading(old.value, 's', 4)}, {percent_change(ratio)}"
    )
    if abs(ratio - 1) <= threshold:
        return "SAME", f"{about}: within the threshold of {percent(threshold)}"
    if _is_within(new.value, old) and _is_within(old.value, new):
        return "SAME", f"{about}: within the spread of the steps"
    return "SLOW" if ratio > 1 else "FAST", f"{about}: beyond the spread of the steps"


def _is_within(value: float, spread: Evidence) -> bool:
    low = spread.value if spread.low is None else spread.low
    high = spread.value if spread.high is None else spread.high
    return low <= value <= high


def _window_verdict(
    total: EvidenceChange, kernels: Sequence[KernelChange], limit: float
) -> tuple[Word, str]:
    ratio = total.ratio or 1.0
    about = (
        f"the total time is {reading(total.after.value, 's', 4)} after "
        f"{reading(total.before.value, 's', 4)}, {percent_change(ratio)}"
    )
    if 1 / (1 + limit) <= ratio <= 1 + limit:
        return "SAME", f"{about}: without a spread up to {percent(limit)} does not count"
    changed = [k for k in kernels if k.word in ("new", "gone")]
    way = "slower" if ratio > 1 else "faster"
    moved = [k for k in kernels if k.word == way]
    word: Word = "SLOW" if ratio > 1 else "FAST"
    if moved or changed:
        parts = [f"{amount(len(moved), 'kernel')} {moved[0].word}"] if moved else []
        parts += [f"{amount(len(changed), 'kernel')} in only one of the two"] if changed else []
        return word, f"{about}, with {' and '.join(parts)}"
    if not 1 / (1 + IDLE_SPREAD) <= ratio <= 1 + IDLE_SPREAD:
        return word, f"{about}; no kernel is {way}, so it is idle time"
    return "INCONCLUSIVE", f"{about}, and no kernel is {way}: idle time of one window has no spread"


def percent_change(ratio: float | None) -> str:
    """Return a ratio as a change: `+3.2 %`, or from three on `3.4 times`; empty where unknown."""
    if ratio is None:
        return ""
    return f"{ratio:.3g} times" if ratio >= 3 else f"{100 * (ratio - 1):+.3g} %"
