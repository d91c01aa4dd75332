"""Curves of a measurement over one axis of the sizes, as `triton.testing.perf_report` draws them.

Everything here is a pure function of records, and runs without torch and Triton.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import isclose

from workbench.data.record import Kind, Measured, Outcome, Phase, Record, Run, Series, group_by
from workbench.data.selection import interval_of, memory_bound, ridge_of
from workbench.device.error_band import expected_s
from workbench.reports.figures.curve import TIME_UNIT, Curve, crosses
from workbench.reports.figures.size_groups import Group, groups_of
from workbench.spec import sizes_text

Rate = Callable[[Record, float], float]  # of a record, if one call takes so many seconds


def curves_of(run: Run, outcomes: Sequence[Outcome]) -> list[Curve]:
    """Return a curve for each dtype whose sizes differ on one axis alone; an empty list where there
    is none. Times are those on cold data, or predicted; times with a model's interval have none."""
    by_dtype = group_by(groups_of(run, outcomes), lambda g: g.outcomes[0].case.dtype)
    curves = [_curve(run, groups) for groups in by_dtype.values()]
    return [curve for curve in curves if curve is not None]


def _curve(run: Run, groups: Sequence[Group]) -> Curve | None:
    axis = varied_axis([g.outcomes[0].case.sizes for g in groups])
    records = [r for g in groups for r in _timed_records(g)]
    if axis is None or not records:
        return None
    rate, unit = rate_of(records, ridge_of(run))
    by_impl = group_by(records, lambda r: r.case.impl)
    lines = tuple(rate_line(name, some, axis, rate) for name, some in by_impl.items())
    if not crosses(lines):
        return None
    about = _fixed_text(records[0], axis)
    bound = None if unit == TIME_UNIT else _bound_line(groups, axis, rate)
    libraries = frozenset(r.case.impl for r in records if r.case.is_baseline)
    return Curve(axis, about, unit, lines, bound, libraries)


def _fixed_text(record: Record, axis: str) -> str:
    """Return the dtype and the sizes on other axes."""
    fixed = {k: v for k, v in record.case.sizes.items() if k != axis}
    return ", ".join(filter(None, (sizes_text(fixed, " "), record.case.dtype)))


def rate_of(records: Sequence[Record], ridge: float) -> tuple[Rate, str]:
    """Return what is drawn of records, and its unit: the rate of bytes where one is bound by memory
    or has no FLOPs, else that of FLOPs; times where neither is declared."""
    memory = any(memory_bound(r, ridge) for r in records) or not any(r.flops for r in records)
    if not any(r.bytes if memory else r.flops for r in records):
        return (lambda record, seconds: seconds * 1e6), TIME_UNIT
    if memory:
        return (lambda record, seconds: record.bytes / seconds / 1e9), "GB/s"
    return (lambda record, seconds: record.flops / seconds / 1e12), "TFLOP/s"


def varied_axis(sizes: Sequence[Mapping[str, int]]) -> str | None:
    """Return the one axis on which sizes differ, or None where they differ on several or none."""
    differ = [axis for axis in sizes[0] if len({one.get(axis) for one in sizes}) > 1]
    return differ[0] if len(differ) == 1 else None


def _timed_records(group: Group) -> list[Record]:
    cold = [r for r in group.records if r.phase in ("final", "predict")]
    return [r for r in cold if interval_of(r) is None]


def rate_line(name: str, records: Sequence[Record], axis: str, rate: Rate) -> Series:
    """Return the rates of records over an axis of their sizes."""
    records = sorted(records, key=lambda r: r.case.sizes[axis])
    at = tuple(r.case.sizes[axis] for r in records), tuple(rate(r, r.time_s) for r in records)
    return Series(name, *at, *_ends(records, rate), kind_of(records[0]))


def kind_of(record: Record) -> Kind:
    """Return how a time was obtained."""
    return "measured" if record.is_measured else "predicted"


def _ends(records: Sequence[Record], rate: Rate) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the ends of the intervals as rates, those of the error band where a time is predicted;
    none where a device has no band."""
    times = [
        (t.low_s, t.high_s) if isinstance(t := r.timing, Measured) else expected_s(r)
        for r in records
    ]
    known = [(r, span) for r, span in zip(records, times, strict=True) if span is not None]
    if len(known) < len(records):
        return (), ()
    ends = [sorted(rate(r, seconds) for seconds in span) for r, span in known]
    return tuple(low for low, _ in ends), tuple(high for _, high in ends)


def _bound_line(groups: Sequence[Group], axis: str, rate: Rate) -> Series | None:
    """Return the rate of a call that takes the least time that its nearest ceiling allows."""
    points = sorted(_bound_points(groups, axis, rate))
    if all(isclose(share, 1) for *_, share in points):  # none, or what is drawn is the bound itself
        return None
    xs, ys = zip(*((x, y) for x, y, *_ in points), strict=True)
    names = list(dict.fromkeys(name for *_, name, _ in points))
    return Series("\n".join(("roofline bound:", *names)), xs, ys, kind="computed")


def _bound_points(
    groups: Sequence[Group], axis: str, rate: Rate
) -> Iterator[tuple[int, float, str, float]]:
    """Yield the size, the rate at the bound, the ceiling's name and the share that is reached."""
    for group in groups:
        for record in _timed_records(group)[:1]:
            if nearest := group.ceiling(record):
                share, name = nearest
                bound_s = share * record.time_s
                yield record.case.sizes[axis], rate(record, bound_s), name, share


# The curves of two runs, over the sizes or over a knob that both varied.

MOST_KNOBS = 2  # axes drawn of a sweep
Times = Sequence[Record]


def paired_curves(runs: Sequence[Run], outcomes: Sequence[Sequence[Outcome]]) -> list[Curve]:
    """Return the curves of two runs, one line a run: the shortest time at each size where they hold
    several, else at each value of the knobs that both varied. An empty list where there is none."""
    best = [_phase_records(some, ("predict", "final", "first_pass")) for some in outcomes]
    even = [_phase_records(some, ("predict", "first_pass", "final")) for some in outcomes]
    if not all(best):
        return []
    if curve := _size_curve(runs, best):
        return [curve]
    return list(_knob_curves(runs, even))


def _names(runs: Sequence[Run]) -> list[str]:
    """Return which run a line is of, as the page calls it, and when it began."""
    began = (run.started[:16].replace("T", " ") for run in runs)
    return [f"{place}: {at}" for place, at in zip(("left", "right"), began, strict=True)]


def _phase_records(outcomes: Sequence[Outcome], phases: Sequence[Phase]) -> list[Record]:
    """Return the records of our own kernels of the first phase that has any: times of one kind."""
    records = [o for o in outcomes if isinstance(o, Record) and not o.case.is_baseline]
    every = ([r for r in records if r.phase == phase] for phase in phases)
    return next((some for some in every if some), [])


def _size_curve(runs: Sequence[Run], times: Sequence[Times]) -> Curve | None:
    every = [r for some in times for r in some]
    axis = varied_axis([r.case.sizes for r in every])
    if axis is None or len({r.case.dtype for r in every}) > 1:
        return None
    rate, unit = rate_of(every, ridge_of(runs[0]))
    best = [_shortest(some, lambda r: r.case.sizes[axis]) for some in times]
    lines = tuple(rate_line(n, s, axis, rate) for n, s in zip(_names(runs), best, strict=True))
    return Curve(axis, _fixed_text(every[0], axis), unit, lines) if crosses(lines) else None


def _knob_curves(runs: Sequence[Run], times: Sequence[Times]) -> Iterator[Curve]:
    first = times[0][0].case
    about = f"{sizes_text(first.sizes, ' ')}, {first.dtype}, best of the other knobs"
    for field in _moving_fields(runs[0], times)[:MOST_KNOBS]:
        lines = []
        for name, some in zip(_names(runs), times, strict=True):
            best = _shortest(
                [r for r in some if field in r.case.config], partial(_knob_value, field)
            )
            xs = tuple(r.case.config[field] for r in best)
            ys = tuple(1e6 * r.time_s for r in best)
            lines.append(Series(name, xs, ys, kind=kind_of(some[0])))
        if crosses(lines):
            yield Curve(field, about, TIME_UNIT, tuple(lines))


def _knob_value(field: str, record: Record) -> int:
    return record.case.config[field]


def _moving_fields(run: Run, times: Sequence[Times]) -> list[str]:
    """Return the fields that took several values in both runs, those that the sweep is about
    first."""
    moving = []
    for some in times:
        values = group_by((f for r in some for f in r.case.config.items()), lambda f: f[0])
        moving.append([name for name, seen in values.items() if len({*seen}) > 1])
    both = [field for field in moving[0] if field in moving[1]]
    knobs = {f: k for impl in run.impls.values() for f, k in impl.get("knobs", {}).items()}
    return sorted(both, key=lambda f: knobs.get(f) not in run.vary)


def _shortest(records: Times, place: Callable[[Record], int]) -> list[Record]:
    """Return the record of the shortest time at each place, in the order of places."""
    groups = group_by(records, place)
    return [min(groups[at], key=lambda r: r.time_s) for at in sorted(groups)]
