"""The curves of two runs over one axis."""

from dataclasses import replace

import pytest
import synthetic

from workbench.data.record import Record
from workbench.reports.figures.curve import TIME_UNIT
from workbench.reports.figures.curve_data import paired_curves

pytestmark = pytest.mark.unit


def slower(outcomes, factor, run="later"):
    """The same outcomes of another run, whose medians are longer."""
    changed = []
    for o in outcomes:
        if isinstance(o, Record):
            o = replace(o, timing=replace(o.timing, median_s=factor * o.timing.median_s), run=run)
        changed.append(o)
    return changed


def sized(run, outcomes, m_of):
    """One config at several sizes: `m_of` gives seconds by M."""
    first = next(o for o in outcomes if isinstance(o, Record) and o.phase == "final")
    records = []
    for m, seconds in m_of.items():
        case = replace(first.case, sizes={**first.case.sizes, "M": m})
        timing = replace(first.timing, median_s=seconds, low_s=seconds, high_s=seconds)
        records.append(replace(first, case=case, timing=timing, flops=2 * m, bytes=0))
    return records


def test_two_sweeps_have_a_line_each_over_the_knob_that_they_vary():
    run, outcomes = synthetic.matmul()
    later = replace(run, id="later")
    curves = paired_curves((run, later), (outcomes, slower(outcomes, 1.25)))
    assert curves and all(c.unit == TIME_UNIT and len(c.lines) == 2 for c in curves)
    first = curves[0]
    left, right = first.lines
    assert left.name == f"left: {run.started[:16].replace('T', ' ')}" and left.x == right.x
    assert right.y == pytest.approx([1.25 * y for y in left.y])
    of_pass = [o for o in outcomes if isinstance(o, Record) and o.phase == "first_pass"]
    at = left.x[0]
    shortest = min(r.time_s for r in of_pass if r.case.config.get(first.axis) == at)
    assert left.y[0] == pytest.approx(1e6 * shortest)


def test_runs_over_several_sizes_have_a_line_each_over_the_sizes():
    run, outcomes = synthetic.matmul()
    one = sized(run, outcomes, {512: 2e-6, 1024: 4e-6})
    other = sized(run, outcomes, {512: 1e-6, 2048: 4e-6})
    (curve,) = paired_curves((run, replace(run, id="later")), (one, other))
    left, right = curve.lines
    assert curve.axis == "M" and left.x == (512, 1024) and right.x == (512, 2048)
    assert curve.unit == "TFLOP/s"
    assert left.y == pytest.approx([2 * 512 / 2e-6 / 1e12, 2 * 1024 / 4e-6 / 1e12])


def test_runs_without_times_or_with_one_place_have_no_curve():
    run, outcomes = synthetic.matmul()
    assert paired_curves((run, run), (outcomes, [])) == []
    one = sized(run, outcomes, {512: 2e-6})
    assert paired_curves((run, run), (one, one)) == []
