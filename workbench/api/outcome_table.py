"""The table of outcomes that a notebook shows."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.data.record import Failure, Measured, Outcome, Record, group_by
from workbench.data.units import duration, reading, span_text, unit_of
from workbench.device.error_band import EXPECTED, expected_words, factor_words
from workbench.spec import sizes_text

HEADS = ("impl and config", "sizes", "dtype", "time", "95 % interval", "rate", "regime")
PREDICTED_HEADS = tuple({"95 % interval": EXPECTED}.get(head, head) for head in HEADS)


def time_text(record: Record) -> str:
    """Return a time with its kind: `12.3 µs measured`, `~12.3 µs predicted (measured
    times are 0.66 to 1.4 times the predicted)`."""
    text = duration(record.time_s)
    if record.is_measured:
        return f"{text} measured"
    error = factor_words([record])
    return f"~{text} predicted ({error})" if error else f"at least {text}"


def outcome_table(
    records: Sequence[Record], failures: Sequence[Failure], selected: Sequence[Record] = ()
) -> tuple[Sequence[str], list[Sequence[str]]]:
    """Return the heads and the cells of outcomes: of each size the winner, then the others, the
    fastest first; failures follow with their reason. Where times are predicted, the column of
    intervals has the times at which a measurement is expected."""
    phases = ("final", "predict", "compare", "first_pass", "hot")
    by_size = group_by(records, _problem_key)
    heads = HEADS if all(r.is_measured for r in records) else PREDICTED_HEADS

    def rank(record: Record) -> tuple[bool, int, float]:
        return record not in selected, phases.index(record.phase), record.time_s

    rows = [_cells(r) for some in by_size.values() for r in sorted(some, key=rank)]
    rows += [(f.case.label, *_problem_key(f), f.stage, "", "", f.reason) for f in failures]
    return heads, rows


def _problem_key(outcome: Outcome) -> tuple[str, str]:
    return sizes_text(outcome.case.sizes, " "), outcome.case.dtype


def _cells(record: Record) -> Sequence[str]:
    timing = record.timing
    time, regime = f"~{duration(record.time_s)}", "predicted"
    if isinstance(timing, Measured):
        scale, unit = unit_of(record.time_s)
        time = reading(record.time_s, "s")
        interval = f"{span_text(timing.low_s, timing.high_s, scale)} {unit}"
        regime = f"{timing.regime}, {record.phase.replace('_', ' ')}"
    elif timing.interval_s is not None:
        interval = " to ".join(duration(s) for s in timing.interval_s)
    else:
        interval = expected_words(record)
    tilde = "" if record.is_measured else "~"
    rates = [f"{record.bytes / record.time_s / 1e9:.4g} GB/s"] if record.bytes else []
    if record.flops:
        rates.append(f"{record.flops / record.time_s / 1e12:.3g} TFLOP/s")
    rate = ", ".join(f"{tilde}{rate}" for rate in rates)
    return record.case.label, *_problem_key(record), time, interval, rate, regime
