"""Stored runs as points under ceilings: the data of the roofline report, as plain numbers.

    from workbench.reports.figures.roofline_points import frame
    from workbench.commands.report_pages import sheet

    frame(sheet(["last"]))  # a pandas DataFrame, one row per point

Everything but `frame` needs the standard library alone. Rates are not stored: a rate is FLOPs or
least bytes over the median, or over the predicted time, and each point names which.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from workbench.data import stats
from workbench.data.frame import frame_of
from workbench.data.record import (
    Comparison,
    Failure,
    LaunchKind,
    Measured,
    Outcome,
    Profile,
    Record,
    Run,
    group_by,
)
from workbench.data.selection import interval_of, ranking, select
from workbench.device.ceilings import (
    Ceiling,
    CeilingSet,
    Held,
    Load,
    Regime,
    ceiling_set,
    clock_state,
    diagnose,
    known_device,
)
from workbench.reports.figures.profiled_traffic import ProfiledCalls, Traffic, bytes_at
from workbench.spec import label, sizes_text

if TYPE_CHECKING:
    import pandas

Role = Literal["", "winner", "default", "tuned config", "library", "best", "left", "right"]
Chosen = tuple[Record, Run, Role]
_RANK = {"final": 0, "compare": 0, "hot": 0, "predict": 0, "code": 0, "first_pass": 1}


@dataclass(frozen=True)
class RunWithOutcomes:
    """One run as it was stored."""

    run: Run
    outcomes: Sequence[Outcome]
    comparisons: Sequence[Comparison] = ()
    profiles: Sequence[Profile] = ()


@dataclass(frozen=True)
class Point:
    """One record under the ceilings of its device."""

    record: Record
    run: Run
    role: Role
    load: Load
    limit: Held
    share_of_time: float  # of all points of its device and kind
    traffic: tuple[Traffic, ...] = ()  # of a profiler, where its config was profiled

    @property
    def device(self) -> str:
        """Return the name of the device, which its ceilings share."""
        return self.record.case.device

    @property
    def timing(self) -> Measured | None:
        """Return its measured time; None where it is predicted."""
        return self.record.timing if isinstance(self.record.timing, Measured) else None

    @property
    def name(self) -> str:
        """Return Impl and config: `tiles 128x256x64, 8 warps, 3 stages`; of a library its name."""
        return self.record.case.label

    @property
    def sizes(self) -> str:
        """Return the sizes as text: `M=4096 N=4096`."""
        return sizes_text(self.record.case.sizes, " ")

    @property
    def regime(self) -> Regime:
        """Return the regime: cold, hot or predicted."""
        return self.load.regime

    @property
    def flops_rate(self) -> float:
        """Return the rate in FLOP/s."""
        return self.load.flops / self.load.time_s

    @property
    def bytes_rate(self) -> float:
        """Return least bytes over time, in B/s."""
        return self.load.bytes / self.load.time_s

    def sample_property(self, name: str) -> float | None:
        """Return a property of `Measured` in seconds; None where there are no samples."""
        measured = self.timing
        return getattr(measured, name) if measured and measured.samples_s else None

    @property
    def whisker_s(self) -> tuple[float, float] | None:
        """Return the p5 and p95 of its samples, in seconds; None where there are fewer than two."""
        samples = self.timing.samples_s if self.timing else ()
        if len(samples) < 2:
            return None
        return stats.quantile(samples, 0.05), stats.quantile(samples, 0.95)

    @property
    def bar_s(self) -> tuple[float, float] | None:
        """Return the seconds between which its bar is drawn: p5 and p95, or the interval that a
        model states; None where there is neither."""
        return self.whisker_s or self.load.span_s


@dataclass(frozen=True)
class Arrow:
    """From a baseline to a candidate of the same problem; numbers are indices in `Sheet.points`."""

    start: int
    end: int
    change: float  # of the time: -0.2 is a fifth less
    what: str  # "default to winner"


@dataclass(frozen=True)
class Sheet:
    """All contents of one roofline."""

    points: tuple[Point, ...]
    arrows: tuple[Arrow, ...]
    ceilings: Mapping[str, CeilingSet]  # by device, in the order of their points
    runs: tuple[Run, ...]
    silent: Mapping[str, int]  # "matmul: compile" -> number of the chosen without a time
    apart: int = 0  # times of parts of kernels, which are not drawn

    @property
    def devices(self) -> list[str]:
        """Return the names of the devices, in the order of their points."""
        return list(self.ceilings)


PARTS = ("_traffic", "_arithmetic")  # suffixes of files in `variants/` with half of a kernel's work


def sheet_of(
    stored: Iterable[RunWithOutcomes], ceilings: Sequence[Run] = (), everything: bool = False
) -> Sheet:
    """Return points, arrows and ceilings of these runs, which are read one by one.

    A sweep gives its winner (also hot), its default and its libraries, a run of `ceilings` the best
    of each of its kernels; with `everything` they give all. Of one config at one problem the final
    replaces the first pass and the newer the older; hot and predicted times, and those by the
    host's clock, are points of their own. Parts of a kernel, as memory_vs_compute times them, are
    left out beside it: they move other bytes than they declare. `ceilings` are runs whose ceilings
    are used in addition to those of `stored`.
    """
    runs: list[Run] = []
    records: list[Chosen] = []
    compared: set[tuple[str, str, str]] = set()
    silent: Counter[str] = Counter()
    profiles: list[Profile] = []
    for one in stored:
        runs.append(one.run)
        records += _chosen_records(one, everything)
        compared |= {(f.left_key, f.right_key, one.run.id) for f in one.comparisons}
        profiles += one.profiles
        silent.update(_silent(one))
    every = _newest(records)
    whole = [c for c in every if not c[0].case.kernel.endswith(PARTS)]
    records = every if everything or not whole else whole
    devices = dict.fromkeys(record.case.device for record, _, _ in records)
    devices |= dict.fromkeys(run.device for run in runs)
    by_device = {device: ceiling_set(device, [*runs, *ceilings]) for device in devices}
    points = _points(records, by_device, ProfiledCalls.select(profiles))
    arrows = tuple(_arrows(points, compared))
    apart = len(every) - len(records)
    return Sheet(tuple(points), arrows, by_device, tuple(runs), silent, apart)


def _newest(records: Sequence[Chosen]) -> list[Chosen]:
    """Return one record for each config, problem, regime and clock."""
    results: dict[Any, Chosen] = {}
    for record, run, role in sorted(records, key=lambda c: c[0].at):
        key = _problem_of(record)
        before = results.get(key)
        if before is None or _rank(record) <= _rank(before[0]):
            results[key] = record, run, role or (before[2] if before else "")
    return list(results.values())


def _rank(record: Record) -> tuple[int, bool]:
    """Return the precedence of a time among those of one config; the least counts."""
    return _RANK[record.phase], clock_state(record) == "boost"


def _problem_of(record: Record) -> tuple[Any, ...]:
    case = record.case
    config, sizes = (tuple(sorted(m.items())) for m in (case.config, case.sizes))
    what = (case.device, case.kernel, case.impl, case.backend, config, sizes, case.dtype)
    return (*what, _regime(record), _is_host_time(record))


def _is_host_time(record: Record) -> bool:
    """Return whether the time is by the host's clock, so with launches, and not comparable."""
    return isinstance(record.timing, Measured) and record.timing.method == "host"


def _regime(record: Record) -> Regime:
    timing = record.timing
    return timing.regime if isinstance(timing, Measured) else "predicted"


# Selection of records as points.


def _chosen_records(one: RunWithOutcomes, everything: bool) -> Iterator[Chosen]:
    operands = {result.left_key: "left" for result in one.comparisons}
    operands |= {result.right_key: "right" for result in one.comparisons}
    for outcomes in _problems(one.outcomes):
        times = [o for o in outcomes if isinstance(o, Record)]
        roles: dict[int, Any] = {id(r): operands.get(r.key, "") for r in times}
        if one.run.engine == "sweep":
            roles |= (picked := _sweep_roles(one.run, outcomes))
            times = times if everything else [r for r in times if id(r) in picked]
        elif one.run.engine in ("measure", "ceilings"):
            roles |= (picked := _measure_roles(times))
            if one.run.engine == "ceilings" and not everything:
                times = [r for r in times if id(r) in picked]
        yield from ((record, one.run, roles[id(record)]) for record in times)


def _problems(outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
    """Return the outcomes by kernel, sizes, dtype and device."""

    def problem(o: Outcome) -> tuple[Any, ...]:
        return o.case.kernel, tuple(sorted(o.case.sizes.items())), o.case.dtype, o.case.device

    return list(group_by(outcomes, problem).values())


def _sweep_roles(run: Run, outcomes: Sequence[Outcome]) -> dict[int, Role]:
    """Return the roles of a problem's records by id: winner, also hot, default, libraries."""
    case = outcomes[0].case
    result = select(replace(run, sizes=case.sizes, dtype=case.dtype), outcomes)
    if result.winner is None:
        return {}
    if not result.is_ranked:  # the default stands for its class
        shown = result.default.record if result.default else result.winner
        return {id(shown): run.launch_kind if result.default else ""}
    roles: dict[int, Role] = {id(result.winner): "winner"}
    if result.default and result.default.record is not result.winner:
        roles[id(result.default.record)] = run.launch_kind
    roles |= {id(baseline.record): "library" for baseline in result.baselines}
    config = dict(result.winner.case.config)
    for o in outcomes:
        same = o.case.impl == result.winner.case.impl and dict(o.case.config) == config
        if isinstance(o, Record) and o.phase == "hot" and same:
            roles[id(o)] = "winner"
    return roles


def _measure_roles(times: Sequence[Record]) -> dict[int, Role]:
    """Return the roles by id: the best Impl of each phase, where a model ranks them, and the
    libraries."""
    roles: dict[int, Role] = {id(r): "library" for r in times if r.case.is_baseline}
    for phase in dict.fromkeys(r.phase for r in times):
        own = [r for r in times if r.phase == phase and not r.case.is_baseline]
        if own and not any(map(interval_of, own)):
            roles[id(min(own, key=lambda r: r.time_s))] = "best"
    return roles


def _silent(one: RunWithOutcomes) -> Iterator[str]:
    """Yield requested items without a time. A sweep has none unless all of its configs failed."""
    for outcomes in _problems(one.outcomes):
        if one.run.engine == "sweep" and any(isinstance(o, Record) for o in outcomes):
            continue
        for result in ranking(outcomes):
            if isinstance(result, Failure):
                yield f"{result.case.kernel} {result.case.impl}: {result.stage}"


# Points and arrows.


def _points(
    records: Sequence[Chosen], ceilings: Mapping[str, CeilingSet], profiled: ProfiledCalls
) -> list[Point]:
    totals: dict[tuple[str, bool], float] = defaultdict(float)
    for record, _, _ in records:
        totals[record.case.device, record.is_measured] += record.time_s
    units = _units(record for record, _, _ in records)
    points = []
    for record, run, role in records:
        load = load_of(record, units)
        share = record.time_s / totals[record.case.device, record.is_measured]
        limit = diagnose(load, ceilings[record.case.device])
        traffic = () if load.regime == "hot" else profiled.traffic(record)
        points.append(Point(record, run, role, load, limit, share, traffic))
    devices, order = list(ceilings), ("cold", "hot", "predicted")

    def rank(p: Point) -> tuple[int, int, float]:
        return devices.index(p.device), order.index(p.regime), -p.share_of_time

    return sorted(points, key=rank)


def load_of(record: Record, units: Mapping[tuple[str, str], bool] | None = None) -> Load:
    """Return a record as a call on the roofline. `units` say of kernels and dtypes whether any
    config uses the matrix unit, for records without resources."""
    timing, case = record.timing, record.case
    high_s = timing.high_s if isinstance(timing, Measured) else record.time_s
    matrix = (units or {}).get((case.kernel, case.dtype), True)
    if record.resources is not None:
        matrix = record.resources.matrix_unit is not None
    dtype = case.dtype
    if not matrix and dtype in ("fp16", "bf16", "tf32"):
        dtype = "fp32"  # vector units: a kernel without matrix instructions computes in fp32 there
    elif matrix and dtype == "fp32" and (record.resources is not None or _beats_fp32(record)):
        device = known_device(case.device)
        dtype = "fp32_matrix" if device and device.backend == "hip" else "tf32"
    done = record.flops, record.bytes
    host, state = _is_host_time(record), clock_state(record)
    clock, span = (host, state), interval_of(record)
    return Load(record.time_s, high_s, *done, dtype, _regime(record), *clock, span)


def _beats_fp32(record: Record) -> bool:
    """Return whether a library beats the vector units, so that it used the matrix units."""
    device = known_device(record.case.device)
    peak = device.peaks.get("fp32") if device else None
    return peak is not None and record.flops > peak.value * record.time_s


def _units(records: Iterable[Record]) -> dict[tuple[str, str], bool]:
    """Return which kernels use matrix units, for their libraries, whose code is not read."""
    results: dict[tuple[str, str], bool] = {}
    for record in records:
        if record.resources is not None:
            at = (record.case.kernel, record.case.dtype)
            results[at] = results.get(at, False) or record.resources.matrix_unit is not None
    return results


def _arrows(points: Sequence[Point], compared: set[tuple[str, str, str]]) -> Iterator[Arrow]:
    """Yield arrows within one run and one phase, as only such times are comparable. `compared` are
    keys of both operands and a run."""

    def problem(n: int) -> tuple[str, ...]:
        p, case = points[n], points[n].record.case
        return p.run.id, p.record.phase, case.kernel, p.sizes, case.dtype, case.device

    for group in group_by(range(len(points)), problem).values():
        libraries = [n for n in group if points[n].role == "library"]
        library = min(libraries, key=lambda n: points[n].record.time_s, default=None)
        for start, end in itertools.permutations(group, 2):
            what = _what(points[start], points[end], compared)
            if what and (start == library or what != "library to best"):
                ratio = points[end].record.time_s / points[start].record.time_s
                yield Arrow(start, end, ratio - 1, what)


def _what(a: Point, b: Point, compared: set[tuple[str, str, str]]) -> str:
    """Return the meaning of an arrow from one point to the other; empty where there is none."""
    if (a.record.key, b.record.key, a.run.id) in compared:
        return "left to right"
    if a.role in get_args(LaunchKind) and b.role == "winner":
        return f"{a.role} to winner"
    return "library to best" if (a.role, b.role) == ("library", "best") else ""


def bests(sheet: Sheet) -> list[int]:
    """Return the index of the fastest point of each device, kernel, sizes, dtype, regime and clock.
    A library's point only where there is no other."""
    points = sheet.points

    def problem(n: int) -> tuple[Any, ...]:
        p, case = points[n], points[n].record.case
        return p.device, case.kernel, p.sizes, case.dtype, p.regime, p.load.host

    def order(n: int) -> tuple[bool, bool, float]:
        p = points[n]  # times of the two states are not ranked together
        return p.record.case.is_baseline, p.load.state == "boost", p.load.time_s

    return [min(group, key=order) for group in group_by(range(len(points)), problem).values()]


# Export of the numbers.

COLUMNS: Mapping[str, Callable[[Point], Any]] = {
    "device": lambda p: p.device,
    "kernel": lambda p: p.record.case.kernel,
    "impl": lambda p: p.record.case.impl,
    "config": lambda p: label(p.record.case.config) if p.record.case.config else "",
    "role": lambda p: p.role,
    "sizes": lambda p: sizes_text(p.record.case.sizes),
    "dtype": lambda p: p.record.case.dtype,
    "kind": lambda p: "measured" if p.timing else "predicted",
    "regime": lambda p: p.regime,
    "phase": lambda p: p.record.phase,
    "clock_state": lambda p: p.timing and p.timing.state,
    "method": lambda p: p.timing and p.timing.method,
    "protocol": lambda p: getattr(p.record.timing, "protocol" if p.timing else "model"),
    "time_s": lambda p: p.record.time_s,
    "low_s": lambda p: p.timing and p.timing.low_s,
    "high_s": lambda p: p.timing and p.timing.high_s,
    "p5_s": lambda p: p.whisker_s and p.whisker_s[0],
    "p95_s": lambda p: p.whisker_s and p.whisker_s[1],
    "mean_s": lambda p: p.sample_property("mean_s"),
    "std_s": lambda p: p.sample_property("std_s"),
    "min_s": lambda p: p.sample_property("min_s"),
    "max_s": lambda p: p.sample_property("max_s"),
    "host_s": lambda p: p.timing and p.timing.host_s,
    "samples": lambda p: len(p.timing.samples_s) if p.timing else 0,
    "flops": lambda p: p.record.flops,
    "bytes": lambda p: p.record.bytes,
    "bytes_read": lambda p: p.record.bytes_read,
    "bytes_written": lambda p: p.record.bytes_written,
    "intensity_flop_per_byte": lambda p: p.load.intensity,
    "profiled_dram_bytes": lambda p: bytes_at(p.traffic, "dram"),
    "profiled_l2_bytes": lambda p: bytes_at(p.traffic, "cache"),
    "profiled_l1_bytes": lambda p: bytes_at(p.traffic, "shared"),
    "flop_per_s": lambda p: p.flops_rate,
    "byte_per_s": lambda p: p.bytes_rate,
    "arithmetic": lambda p: p.load.dtype,
    "ceiling": lambda p: p.limit.ceiling and p.limit.ceiling.name,
    "ceiling_value": lambda p: p.limit.ceiling and p.limit.ceiling.value,
    "ceiling_origin": lambda p: p.limit.ceiling and p.limit.ceiling.origin,
    "ceiling_state": lambda p: (p.limit.ceiling and p.limit.ceiling.state) or None,
    "share_of_ceiling": lambda p: p.limit.share,
    "gain_s": lambda p: p.limit.gain_s,
    "share_of_time": lambda p: p.share_of_time,
    "held": lambda p: p.limit.word,
    "diagnosis": lambda p: p.limit.sentence,
    "above_because": lambda p: p.limit.excess_reason,
    "run": lambda p: p.record.run,
    "at": lambda p: p.record.at,
    "command": lambda p: p.run.command,
}


def rows(sheet: Sheet) -> list[dict[str, Any]]:
    """Return a row for each point, with every number that is drawn, under the names of `COLUMNS`.
    Seconds, bytes, FLOPs and shares from 0 to 1; None where there is no number."""
    return [{name: cell(point) for name, cell in COLUMNS.items()} for point in sheet.points]


def plain(sheet: Sheet) -> dict[str, Any]:
    """Return the sheet as plain data: points, arrows, and ceilings with source and ridge."""
    arrows = [
        {"from": a.start, "to": a.end, "change": a.change, "what": a.what} for a in sheet.arrows
    ]
    return {"points": rows(sheet), "arrows": arrows, "ceilings": plain_ceilings(sheet)}


def plain_ceilings(sheet: Sheet) -> list[dict[str, Any]]:
    """Return all ceilings of all devices as plain data, see `plain_ceiling`."""
    every = sheet.ceilings.values()
    return [plain_ceiling(c, of_device) for of_device in every for c in of_device.ceilings]


def plain_ceiling(c: Ceiling, ceilings: CeilingSet) -> dict[str, Any]:
    """Return a ceiling as plain data, with its ridge in FLOP/byte and whether it is drawn."""
    ridge = ceilings.ridge(c) if c.level == "compute" else None
    names = "device", "name", "level", "dtype", "value", "unit", "low", "high", "state", "clock_mhz"
    plain = {name: getattr(c, name) for name in (*names, "origin", "source", "run")}
    return {**plain, "ridge_flop_per_byte": ridge, "drawn": c in ceilings.lines()}


def json_text(sheet: Sheet) -> str:
    """Return `plain` as JSON."""
    return json.dumps(plain(sheet), indent=1, ensure_ascii=False) + "\n"


def csv_text(sheet: Sheet) -> str:
    """Return `rows` as CSV with a header; a cell without a number is empty."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS)
    writer.writeheader()
    writer.writerows(rows(sheet))
    return out.getvalue()


def frame(sheet: Sheet) -> pandas.DataFrame:
    """Return `rows` as a pandas DataFrame, one row per point.

    Columns are those of `COLUMNS`: times in seconds, rates in FLOP/s and B/s, NaN where there is no
    number.
    """
    return frame_of(rows(sheet), COLUMNS)
