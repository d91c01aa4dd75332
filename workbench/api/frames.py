"""Results as pandas DataFrames. Measured and predicted seconds are columns of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workbench.data.frame import frame_of
from workbench.data.record import (
    Comparison,
    Failure,
    Finding,
    Measured,
    Outcome,
    Profile,
    Record,
    Resources,
)
from workbench.device.error_band import expected_s
from workbench.spec import label, sizes_text

if TYPE_CHECKING:
    import pandas

# Columns of every outcome; those of the axes and of the knobs follow `dtype`.
FIRST = ("kernel", "impl", "config", "dtype")
LAST = (
    *("device", "kind", "phase", "measured_s", "low_s", "high_s", "predicted_s"),
    *("expected_low_s", "expected_high_s", "gbps", "tflops"),
    *("flops", "bytes", "regime", "checked", "default", "registers", "spill_bytes"),
    *("shared_bytes", "occupancy", "stage", "reason", "run", "at"),
)
RESOURCES = ("registers", "spill_bytes", "shared_bytes", "occupancy")


def outcomes_frame(outcomes: Sequence[Outcome]) -> pandas.DataFrame:
    """Return one row an outcome, failures last. `kind` is measured, predicted or failure. A
    prediction has no `measured_s`, a measurement no `predicted_s`: seconds of one call. A
    measured time of a prediction is expected from `expected_low_s` to `expected_high_s`; both are
    empty where the model was never validated on the device."""
    axes = dict.fromkeys(axis for o in outcomes for axis in o.case.sizes)
    knobs = dict.fromkeys(knob for o in outcomes for knob in o.case.config)
    timed_first = sorted(outcomes, key=lambda o: isinstance(o, Failure))
    frame = frame_of((_outcome(o) for o in timed_first), [*FIRST, *axes, *knobs, *LAST])
    return frame.astype(dict.fromkeys([*axes, *knobs], "Int64"))  # Impls differ in their knobs


def _outcome(outcome: Outcome) -> dict[str, Any]:
    case = outcome.case
    row = {
        **{"kernel": case.kernel, "impl": case.impl, "dtype": case.dtype, "device": case.device},
        **case.sizes,
        **case.config,
        **{"config": label(case.config) if case.config else "", "run": outcome.run},
        **{"at": outcome.at, "default": outcome.default},
    }
    row |= _resources(outcome.resources)
    if isinstance(outcome, Failure):
        return {**row, "kind": "failure", "stage": outcome.stage, "reason": outcome.reason}
    return {**row, **_times(outcome)}


def _resources(resources: Resources | None) -> dict[str, Any]:
    return {name: getattr(resources, name, None) for name in RESOURCES}


def _times(record: Record) -> dict[str, Any]:
    timing = record.timing
    row = {
        "phase": record.phase,
        "flops": record.flops,
        "bytes": record.bytes,
        "gbps": record.bytes / record.time_s / 1e9,
        "tflops": record.flops / record.time_s / 1e12,
        "checked": record.checked,
    }
    if isinstance(timing, Measured):
        ends = {"low_s": timing.low_s, "high_s": timing.high_s, "regime": timing.regime}
        return {**row, **ends, "kind": "measured", "measured_s": timing.median_s}
    low, high = timing.interval_s or (None, None)
    ends = {"low_s": low, "high_s": high}
    low, high = expected_s(record) or (None, None)
    ends |= {"expected_low_s": low, "expected_high_s": high}
    return {**row, **ends, "kind": "predicted", "predicted_s": timing.predicted_s}


def comparisons_frame(comparisons: Sequence[Comparison]) -> pandas.DataFrame:
    """Return a row per comparison: word, and the right operand's time over the left one's with
    the 95 % interval. Empty cells where an operand gave no time."""
    columns = ("kernel", "sizes", "dtype", "left", "right", "word", "ratio", "low", "high")
    rows = []
    for each in comparisons:
        row: dict[str, Any] = {"kernel": each.kernel, "sizes": sizes_text(each.sizes)}
        row |= {"dtype": each.dtype, "left": each.left, "right": each.right}
        if (verdict := each.verdict) is not None:
            time = verdict.time
            row |= {"word": verdict.word, "reason": verdict.reason, "rounds": verdict.rounds}
            row |= {"ratio": time.middle, "low": time.low, "high": time.high}
            row |= {"threshold": verdict.threshold}
        rows.append(row)
    return frame_of(rows, (*columns, "threshold", "rounds", "reason"))


def evidence_frame(findings: Sequence[Finding]) -> pandas.DataFrame:
    """Return a row per number of a finding: its value, unit and kind, with the ends of its interval
    where it has one."""
    columns = ("kernel", "sizes", "dtype", "word", "group", "name", "value", "unit", "kind")
    rows = [
        {
            **{"kernel": finding.kernel, "sizes": sizes_text(finding.sizes)},
            **{"dtype": finding.dtype, "word": finding.word, "group": e.group, "name": e.name},
            **{"value": e.value, "unit": e.unit, "kind": e.kind, "low": e.low, "high": e.high},
        }
        for finding in findings
        for e in finding.evidence
    ]
    return frame_of(rows, (*columns, "low", "high"))


def profiles_frame(profiles: Sequence[Profile]) -> pandas.DataFrame:
    """Return a row per kernel: launches, seconds, and a column for each metric of the tool."""
    metrics = dict.fromkeys(metric.name for p in profiles for metric in p.metrics)
    columns = ("name", "launch", "count", "total_s", "median_s", "low_s", "high_s", "tool")
    rows = [
        {
            **{name: getattr(p, name) for name in columns},
            **{metric.name: metric.value for metric in p.metrics},
        }
        for p in profiles
    ]
    return frame_of(rows, (*columns, *metrics))


def ceilings_frame(ceilings: Mapping[str, Mapping[str, Any]]) -> pandas.DataFrame:
    """Return one row per ceiling: its value and unit, `kind` (measured, datasheet or computed), the
    dtype and the state of the clock, and its source."""
    columns = ("name", "value", "unit", "kind", "level", "dtype", "state", "source", "failed")
    return frame_of(({"name": name, **c} for name, c in ceilings.items()), columns)
