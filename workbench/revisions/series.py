"""Series of comparable times over commits, their steps, and what changed at each.

A series holds measured times of one Impl at one problem on one device, taken in one way: phase,
regime, method, state of the clock and protocol are part of its key, so times that cannot be
compared are never in one series. Predicted times are in none.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from workbench.data import stats
from workbench.data.clock import epoch_of
from workbench.data.database import RunFacts
from workbench.data.record import Environment, Measured, Ratio, Record
from workbench.revisions.change_points import (
    LEAST_POINTS,
    SeriesStep,
    episodes,
    levels,
    noise_of,
    steps,
)
from workbench.spec import label, sizes_text

# The shortest of a run's configs of the Impl, the config that runs by default, or a library's time.
Which = Literal["best", "default", "library"]
# library: its time moved, not the kernel's; drift, episode: no step that a commit can be named for
Direction = Literal["slower", "faster", "library", "drift", "episode"]
REFERENCED = 0.9  # share of a series' points that must have a ratio before steps are sought in it


class SeriesKey(NamedTuple):
    """What all times of a series have in common."""

    kernel: str
    sizes: str  # `M=4096,N=4096`
    dtype: str
    device: str
    impl: str
    which: Which
    phase: str
    regime: str
    state: str
    method: str
    protocol: str

    @property
    def problem(self) -> tuple[str, str, str, str]:
        """Kernel, sizes, dtype and device."""
        return self[:4]


class RunTime(NamedTuple):
    """One time of one run, in seconds, with its 95 % interval."""

    run: str
    epoch_s: float  # since 1970
    time_s: float
    low_s: float
    high_s: float
    config: str
    binary: str  # hash of the machine code; empty if unknown
    default: bool = False


class CommitName(NamedTuple):
    """Owner of a point: a commit, with or without uncommitted changes, or a run without one."""

    text: str  # hash, or the run's id
    dirty: bool = False
    is_known: bool = True  # False: the run was in no repository


@dataclass(frozen=True)
class CommitPoint:
    """The times of one commit: median of its runs' times, with an interval, and the same of the
    ratio to the library reference, where each of the runs has one."""

    name: CommitName
    time: Ratio  # seconds: middle, low, high
    runs: tuple[str, ...]
    epoch_s: float  # of the first of them
    config: str
    binary: str
    environment: Environment | None
    ratio: Ratio | None = None


@dataclass(frozen=True)
class LevelChange:
    """A step of a series: `before` and `after` are the places of the two points around it. Levels
    are medians of the points between steps, in seconds, with their intervals."""

    before: int
    after: int
    direction: Direction
    ratio: Ratio  # after over before, of what the step was found in
    p: float
    old: Ratio
    new: Ratio
    differences: tuple[str, ...]  # of the two environments, configs and machine codes
    commits: int = 0  # of a drift or an episode


@dataclass(frozen=True)
class View:
    """A series on one branch: places of its points, in the order of the commits, and its steps."""

    places: tuple[int, ...]
    changes: tuple[LevelChange, ...]


@dataclass
class HistorySeries:
    """One series with its points, oldest commit first. `reference` is the library whose time the
    ratios are to, empty without one; `sought_in` is what the steps are of."""

    key: SeriesKey
    points: list[CommitPoint]
    reference: str = ""
    sought_in: Literal["time", "ratio"] = "time"
    views: dict[str, View] = field(default_factory=dict)  # by the name of the branch


@dataclass(frozen=True)
class CommitOrder:
    """The commits of a repository: their place in its history, and those that each branch holds.
    Without a repository both are empty, and points are in the order of their times."""

    places: Mapping[str, int] = field(default_factory=dict)
    branches: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def place(self, point: CommitPoint) -> tuple[int, bool, float]:
        """Return what orders points: by commit, then by time; a changed work tree after its own
        commit. Commits that the repository lacks come first."""
        place = self.places.get(point.name.text, -1)
        return place, point.name.dirty and place >= 0, point.epoch_s


EVERYTHING = "all commits, by time"  # the only branch without a repository
ELSEWHERE = "no branch"  # commits that no branch of the repository holds


@dataclass
class _Part:
    """What one run has of one problem, taken in one way."""

    best: dict[tuple[str, str], RunTime] = field(default_factory=dict)  # by Impl and method
    default: dict[tuple[str, str], RunTime] = field(default_factory=dict)
    library: dict[tuple[str, str], RunTime] = field(default_factory=dict)

    def add(self, record: Record, timing: Measured) -> None:
        """Take a record in, where it is the best of its Impl, its default, or a library's."""
        case, by_launcher = record.case, (record.case.impl, timing.method)
        binary = record.resources.binary if record.resources else ""
        timed = RunTime(record.run, epoch_of(record.at), timing.median_s, timing.low_s,
                      timing.high_s, label(case.config) if case.config else "", binary,
                      record.default)  # fmt: skip
        if case.is_baseline:
            self._keep(self.library, by_launcher, timed)
            return
        self._keep(self.best, by_launcher, timed)
        if record.default:
            self._keep(self.default, by_launcher, timed)

    @staticmethod
    def _keep(where: dict[tuple[str, str], RunTime], by: tuple[str, str], timed: RunTime) -> None:
        where[by] = min(where.get(by, timed), timed, key=lambda each: each.time_s)


class Collected:
    """Take records in, one by one, and group them into series."""

    def __init__(self, runs: Mapping[str, RunFacts]) -> None:
        self.runs = runs
        self.taken_over = 0  # copies of records of earlier runs, which are not a new measurement
        self.records = 0
        self._parts: dict[tuple[str, ...], _Part] = {}
        self._finals: set[tuple[str, ...]] = set()

    def add(self, record: Record) -> None:
        """Take a record in; a predicted one, and a copy of an earlier run's, are left out."""
        timing, case = record.timing, record.case
        if not isinstance(timing, Measured):
            return
        run = self.runs.get(record.run)
        if run is not None and epoch_of(record.at) < run.started_s:
            self.taken_over += 1
            return
        self.records += 1
        way = (record.phase, timing.regime, timing.state, timing.protocol)
        key = (record.run, case.kernel, sizes_text(case.sizes), case.dtype, case.device, *way)
        self._parts.setdefault(key, _Part()).add(record, timing)
        if record.phase == "final":
            self._finals.add(key[1:5])

    def has_final(self, kernel: str, sizes: str, dtype: str, device: str) -> bool:
        """Return whether a final benchmark of this problem was taken in."""
        return (kernel, sizes, dtype, device) in self._finals

    @property
    def problems(self) -> set[tuple[str, ...]]:
        """Kernel, sizes, dtype and device of all times taken in."""
        return {key[1:5] for key in self._parts}

    def series(self, order: CommitOrder) -> list[HistorySeries]:
        """Return all series, each with its points in the order of the commits, in the order of
        their keys. Default and best of an Impl are one series where they are always the same."""
        grouped: dict[SeriesKey, list[_Beside]] = {}
        for key, part in self._parts.items():
            for named, beside in _keyed_times(key, part):
                grouped.setdefault(named, []).append(beside)
        for key in [k for k in grouped if k.which == "default"]:
            best = grouped.get(key._replace(which="best"), [])
            if [timed for timed, _ in grouped[key]] == [timed for timed, _ in best]:
                del grouped[key]
        return [self._series(key, grouped[key], order) for key in sorted(grouped)]

    def _series(
        self, key: SeriesKey, times: Sequence[_Beside], order: CommitOrder
    ) -> HistorySeries:
        reference = _reference(libraries for _, libraries in times)
        by_commit: dict[CommitName, list[tuple[RunTime, RunTime | None]]] = {}
        for timed, libraries in times:
            by_commit.setdefault(self._commit(timed.run), []).append(
                (timed, libraries.get(reference))
            )
        points = [self._point(name, each) for name, each in by_commit.items()]
        points.sort(key=order.place)
        series = HistorySeries(key, points, reference)
        series.sought_in = _sought_in(series)
        return series

    def _commit(self, run: str) -> CommitName:
        facts = self.runs.get(run)
        if facts is None or not facts.environment.commit:
            return CommitName(run, is_known=False)
        return CommitName(facts.environment.commit, bool(facts.environment.dirty))

    def _point(
        self, name: CommitName, each: Sequence[tuple[RunTime, RunTime | None]]
    ) -> CommitPoint:
        times = [timed for timed, _ in each]
        newest = max(times, key=lambda timed: timed.epoch_s)
        facts = self.runs.get(newest.run)
        pairs = [(timed, library) for timed, library in each if library is not None]
        return CommitPoint(
            name,
            _aggregate([Ratio(t.time_s, t.low_s, t.high_s) for t in times]),
            tuple(dict.fromkeys(t.run for t in sorted(times, key=lambda timed: timed.epoch_s))),
            min(t.epoch_s for t in times),
            newest.config,
            newest.binary,
            facts.environment if facts else None,
            _aggregate([_ratio(t, lib) for t, lib in pairs]) if len(pairs) == len(each) else None,
        )


_Beside = tuple[RunTime, Mapping[str, RunTime]]  # a time, and those of the libraries of its run


def _keyed_times(key: tuple[str, ...], part: _Part) -> Iterator[tuple[SeriesKey, _Beside]]:
    """Yield each time of one run with the key of its series."""
    libraries = {impl: timed for (impl, _), timed in part.library.items()}
    problem, (phase, regime, state, protocol) = key[1:5], key[5:]
    kinds: tuple[tuple[Which, dict[tuple[str, str], RunTime]], ...] = (
        ("best", part.best), ("default", part.default), ("library", part.library),
    )  # fmt: skip
    for which, each in kinds:
        for (impl, method), timed in each.items():
            way = (phase, regime, state, method, protocol)
            yield SeriesKey(*problem, impl, which, *way), (  # type: ignore[call-arg, arg-type]
                timed, libraries if which != "library" else {},
            )  # fmt: skip


def _ratio(timed: RunTime, library: RunTime) -> Ratio:
    """Return the ratio to a library's time; its interval spans the far ends of both intervals."""
    low_s = library.low_s or library.time_s
    return Ratio(timed.time_s / library.time_s, timed.low_s / library.high_s, timed.high_s / low_s)


def _aggregate(values: Sequence[Ratio]) -> Ratio:
    """Return the median of the runs' values. Its interval is that of order statistics from six runs
    on; of fewer, the whole range of the runs' own intervals."""
    middles = [v.middle for v in values]
    if len(values) < stats.least_for(0.95):
        return Ratio(stats.median(middles), min(v.low for v in values), max(v.high for v in values))
    return Ratio(stats.median(middles), *stats.median_interval(middles))


def _reference(of_each: Iterable[Mapping[str, RunTime]]) -> str:
    """Return the library that most runs timed beside the kernel; empty if none did."""
    counts = Counter(name for libraries in of_each for name in libraries)
    return min(counts, key=lambda name: (-counts[name], name)) if counts else ""


def _sought_in(series: HistorySeries) -> Literal["time", "ratio"]:
    """Return "ratio" where nearly all points have one and it is no noisier than the time: the
    differences between machines of one model, which are in both, then cancel."""
    times = [p.time.middle for p in series.points]
    ratios = [p.ratio.middle for p in series.points if p.ratio is not None]
    if len(ratios) < 3 or len(ratios) < REFERENCED * len(times):
        return "time"
    return "ratio" if noise_of(ratios) <= noise_of(times) else "time"


# Steps


def add_views(series: HistorySeries, order: CommitOrder) -> None:
    """Find the steps of a series on each branch that holds one of its commits. Branches with the
    same points share one view."""
    views: dict[tuple[int, ...], View] = {}
    for branch, places in _branches(series, order).items():
        if places not in views:
            views[places] = View(places, tuple(_changes(series, places)))
        series.views[branch] = views[places]


def _branches(series: HistorySeries, order: CommitOrder) -> dict[str, tuple[int, ...]]:
    names = [point.name.text for point in series.points]
    if not order.places:
        return {EVERYTHING: tuple(range(len(names)))}
    results = {
        branch: tuple(n for n, name in enumerate(names) if name in commits)
        for branch, commits in order.branches.items()
    }
    anywhere = frozenset().union(*order.branches.values())
    results[ELSEWHERE] = tuple(n for n, name in enumerate(names) if name not in anywhere)
    return {branch: places for branch, places in results.items() if places}


def _changes(series: HistorySeries, places: Sequence[int]) -> list[LevelChange]:
    """Return the steps between the points at these places. Work trees with uncommitted changes take
    no part: no commit could be named for their step."""
    value = _value_of(series.sought_in)
    used = [n for n in places if not series.points[n].name.dirty and value(series.points[n])]
    values = [value(series.points[n]) for n in used]
    results = steps(values)
    at = [step.index for step in results]
    time_levels = levels([series.points[n].time.middle for n in used], at) if at else []
    ends = [0, *at, len(used)]
    changes = []
    for n, step in enumerate(results):
        parts = [
            [series.points[p].time.middle for p in used[ends[k] : ends[k + 1]]] for k in (n, n + 1)
        ]
        old, new = (Ratio(stats.median(t), *stats.median_interval(t)) for t in parts)
        before, after = series.points[used[step.index - 1]], series.points[used[step.index]]
        in_time = math.log(time_levels[n + 1] / time_levels[n])
        changes.append(
            LevelChange(
                used[step.index - 1],
                used[step.index],
                _direction(series.sought_in, step.ratio.middle, in_time),
                step.ratio,
                step.p,
                old,
                new,
                differences(before, after),
            )
        )
        if step.kind == "drift":
            changes[-1] = replace(
                changes[-1], direction="drift", differences=(), commits=step.end - step.index,
                after=used[min(step.end, len(used) - 1)],
            )  # fmt: skip
    changes += [_episode(series, used, each) for each in episodes(values)]
    return sorted(changes, key=lambda change: change.before)


def _episode(series: HistorySeries, used: Sequence[int], episode: SeriesStep) -> LevelChange:
    """Return an episode as a change; its levels are those of it and of the points around it."""
    times = [series.points[n].time.middle for n in used]
    around = times[max(0, episode.index - LEAST_POINTS) : episode.index]
    around += times[episode.end : episode.end + LEAST_POINTS]
    inside = times[episode.index : episode.end]
    old, new = (Ratio(stats.median(t), min(t), max(t)) for t in (around, inside))
    return LevelChange(
        used[episode.index - 1], used[episode.index], "episode", episode.ratio, episode.p, old, new,
        (), len(inside),
    )  # fmt: skip


def _direction(sought_in: str, ratio: float, in_time: float) -> Direction:
    """Return whether the kernel became slower or faster, or whether it was the library: its time
    moved by more than the kernel's."""
    if sought_in == "ratio":
        of_library = in_time - math.log(ratio)
        if abs(of_library) > abs(in_time):
            return "library"
    return "slower" if ratio > 1 else "faster"


def _value_of(sought_in: str) -> Callable[[CommitPoint], float]:
    if sought_in == "time":
        return lambda point: point.time.middle
    return lambda point: point.ratio.middle if point.ratio else 0.0


_SOFTWARE = ("triton", "torch", "ptxas", "ptxas-blackwell", "cuda", "hip", "mlx", "workbench")


def differences(before: CommitPoint, after: CommitPoint) -> tuple[str, ...]:
    """Return what differs between two points, a text each: software, driver, settings, GPU, config
    and machine code. Empty where all that is known is the same."""
    a, b = before.environment, after.environment
    texts = []
    if a is not None and b is not None:
        pairs = [(name, a.versions.get(name), b.versions.get(name)) for name in _SOFTWARE]
        pairs += [("driver", a.driver, b.driver), ("GPU", a.gpu, b.gpu)]
        pairs += [("power limit in W", _whole(a.power_limit_w), _whole(b.power_limit_w))]
        pairs += [("clock policy", a.clock_policy, b.clock_policy), ("Python", a.python, b.python)]
        names = sorted({*a.settings, *b.settings})
        pairs += [(name, a.settings.get(name), b.settings.get(name)) for name in names]
        texts = [f"{n} {x or 'none'} to {y or 'none'}" for n, x, y in pairs if x != y]
    if before.config != after.config:
        texts.append(f"config {before.config or 'none'} to {after.config or 'none'}")
    elif before.binary and after.binary:
        same = before.binary == after.binary
        texts.append("not the machine code" if same else "machine code")
    return tuple(texts)


def _whole(value: float | None) -> str | None:
    return None if value is None else f"{value:.0f}"
