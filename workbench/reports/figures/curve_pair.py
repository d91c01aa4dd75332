"""The curves of two runs over one axis: of the sizes, or of a knob that both varied."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from workbench.data.record import Outcome, Phase, Record, Run, Series, group_by
from workbench.data.selection import ridge_of
from workbench.reports.figures.curve import TIME_UNIT, Curve, crosses
from workbench.reports.figures.curve_data import kind_of, rate_line, rate_of, varied_axis
from workbench.spec import sizes_text

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
    fixed = {k: v for k, v in every[0].case.sizes.items() if k != axis}
    about = ", ".join(part for part in (sizes_text(fixed, " "), every[0].case.dtype) if part)
    return Curve(axis, about, unit, lines) if crosses(lines) else None


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
